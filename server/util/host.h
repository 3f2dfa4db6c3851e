/* doorman_server: the hosts of addresses. */
#ifndef DOORMAN_SERVER_HOST_H
#define DOORMAN_SERVER_HOST_H

#include "../server.h"

/* Reads the host of "SCHEME://HOST:PORT/PATH". Each part may be missing. */
void server_host_read(const char *address, char *out, size_t room);
bool server_host_is_numeric(const char *host); /* an IP address, which needs no DNS */
bool server_host_is_loopback(const char *host);
bool server_host_is_wildcard(const char *host); /* all addresses of this machine */

/* Returns whether a text has at most 256 bytes and can be "http://HOST[:PORT]" or
 * "https://HOST[:PORT]". Behind the scheme it checks little more than which characters occur. */
bool server_host_is_http_address(const char *text);

#endif
