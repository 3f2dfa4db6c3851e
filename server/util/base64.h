/* doorman_server: base64, for bytes in the JSON of etcd and in fields of HTTP. */
#ifndef DOORMAN_SERVER_BASE64_H
#define DOORMAN_SERVER_BASE64_H

#include "../server.h"

#define BASE64_TEXT(bytes) (4 * (bytes) / 3 + 4) /* enough for the base64 and a final 0 */

/* Encodes a string. Precondition: `text` has room for BASE64_TEXT(strlen(bytes)). */
void server_base64_write(char *text, const char *bytes);

/* Decodes up to the first character that is not a base64 digit, such as the padding or the end.
 *   room      size of `bytes`, including a final 0
 *   returns   the number of bytes; `room` if they do not fit */
size_t server_base64_read(char *bytes, size_t room, const char *text);

#endif
