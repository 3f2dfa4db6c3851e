/* doorman_server: passwords in files. */
#ifndef DOORMAN_SERVER_PASSWORD_H
#define DOORMAN_SERVER_PASSWORD_H

#define PASSWORD_MAX 512 /* bytes, with the final 0 */

/* Reads a password from the first line of a file.
 *   returns   NULL, or why it cannot be read, as a phrase about the file */
const char *server_password_read(const char *path, char password[PASSWORD_MAX]);

#endif
