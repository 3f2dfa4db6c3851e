/* doorman_server, part STATE: the address of a Redis. */
#ifndef DOORMAN_SERVER_ADDRESS_REDIS_H
#define DOORMAN_SERVER_ADDRESS_REDIS_H

#include "../util/password.h"

#include <stdbool.h>

struct redis_address {
    char host[256]; /* an IPv6 address has no brackets here */
    int port, database;
    bool has_tls;
    char user[PASSWORD_MAX], password[PASSWORD_MAX]; /* "": none */
};

/* Reads redis://[[USER][:PASSWORD]@]HOST[:PORT][/DATABASE], or rediss://... for TLS. USER and
 * PASSWORD may have bytes as %XX.
 *   returns   NULL, or what is wrong, without any part of the address */
const char *server_redis_address_read(const char *text, struct redis_address *out);

#endif
