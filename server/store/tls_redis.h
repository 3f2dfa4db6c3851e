/* doorman_server, part STATE: TLS of the connection to a Redis (rediss://...), by GnuTLS. hiredis
 * 0.14 has no TLS, so its context only makes the connection and reads answers out of bytes. */
#ifndef DOORMAN_SERVER_TLS_REDIS_H
#define DOORMAN_SERVER_TLS_REDIS_H

#include "store.h"

#include <hiredis/hiredis.h>

struct redis_tls; /* of one connection */

/* Does the handshake on a connection that has time limits. The certificate of the Redis must be
 * valid for the host, and one of the authorities must have signed it. The files of the place are
 * read each time, so changed files need no restart.
 *   host         a name or an IP address
 *   error        out: why it fails
 *   is_refusal   out: the failure does not pass by itself
 *   returns      NULL: it fails */
struct redis_tls *server_redis_tls_begin(redisContext *context, const struct store_place *place,
                                         const char *host, char error[STORE_TEXT],
                                         bool *is_refusal);
void server_redis_tls_end(struct redis_tls *tls); /* NULL has no effect */

/* Sends a command at once. redisAppendCommandArgv would leave the sending to redisGetReply. On
 * failure the fields `err` and `errstr` of the context say why, and errno is EAGAIN if Redis does
 * not take the command in time. */
int server_redis_tls_send(struct redis_tls *tls, redisContext *context, int count,
                          const char **words, const size_t *bytes);

/* Works like redisGetReply, for commands that were sent. */
int server_redis_tls_receive(struct redis_tls *tls, redisContext *context, void **reply);

#endif
