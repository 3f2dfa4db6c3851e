/* doorman_server, part STATE: the address of a Redis. */
#ifndef DOORMAN_SERVER_ADDRESS_REDIS_H
#define DOORMAN_SERVER_ADDRESS_REDIS_H

#include <stdbool.h>

#define REDIS_TEXT 512 /* bytes: a user or a password, and the final 0 */

struct redis_address {
    char host[256]; /* an IPv6 address has no brackets here */
    int port, database;
    char user[REDIS_TEXT], password[REDIS_TEXT]; /* "": none */
};

/* Reads redis://[[USER][:PASSWORD]@]HOST[:PORT][/DATABASE]. USER and PASSWORD may have bytes as
 *   %XX. returns   NULL, or what is wrong, without any part of the address */
const char *server_redis_address_read(const char *text, struct redis_address *out);

/* Reads a password from the first line of a file.
 *   returns   NULL, or why it cannot be read, as a phrase about the file */
const char *server_redis_password_read(const char *path, char password[REDIS_TEXT]);

#endif
