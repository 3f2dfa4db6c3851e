/* doorman_server, part WARNINGS: the head of the part. Only server.h includes this file. */
#ifndef DOORMAN_SERVER_WARNINGS_H
#define DOORMAN_SERVER_WARNINGS_H

#define PEER_BYTES 64 /* the address of a peer as text */

#ifdef DOORMAN_SERVER_WARNINGS
/* Counts an event, and logs its warning at most once a minute, with the number of events since the
 * last line (V6). Precondition: the lock is held.
 *   key     a constant string
 *   value   what the new event is about
 *   cause   the holder or the error of the new event; may be NULL */
void server_log_warning(struct service *service, int kind, const char *key, const char *value,
                        const char *cause, doorman_time now);

/* Works like server_log_warning, for an event with other pairs.
 *   pairs   WARNING_PAIR_MAX keys, each followed by its value. The keys are constant strings. A
 *           pair whose value is NULL is left out */
void server_log_warning_pairs(struct service *service, int kind,
                              const char *const pairs[WARNING_PAIR_MAX][2], doorman_time now);

/* Writes the address and the port of a peer. Returns false for a peer that is not at an IP address,
 * and leaves `text` unchanged. */
bool server_peer_format(const nng_sockaddr *peer, char text[PEER_BYTES]);

/* Logs a refused peer as a repeated warning, with the number of different hosts. Precondition: the
 * lock is not held.
 *   token   the name of its token; NULL: none */
void server_log_peer(struct service *service, int kind, const nng_sockaddr *peer,
                     const char *token);

/* Counts and logs the error of a handshake over HTTPS, if the error is one of TLS. */
void server_log_handshake(struct service *service, int error, const nng_sockaddr *peer);

/* Counts and logs failed handshakes over nng, which does not say who the peers are.
 *   count   of new failures; at least 1 */
void server_log_nng_handshakes(struct service *service, uint64_t count);

/* Logs the warnings that are due. The main thread calls this once a second. */
void server_warnings_update(struct service *service, doorman_time now);

/* Counts and logs an event of the server object, which calls this function. */
void server_on_event(void *context, const doorman_event *event);
#else
/* Without this part, only failures of requests to the parent are logged, each of them at once. */
static inline void server_log_warning(struct service *service, int kind, const char *key,
                                      const char *value, const char *cause, doorman_time now) {
    (void)kind, (void)now;
    if (!cause) return;
    server_log(service->settings, LEVEL_WARNING, "a request to another server has failed", key,
               value, "error", cause, LOG_END);
}
static inline void server_log_warning_pairs(struct service *service, int kind,
                                            const char *const pairs[WARNING_PAIR_MAX][2],
                                            doorman_time now) {
    (void)service, (void)kind, (void)pairs, (void)now;
}
static inline bool server_peer_format(const nng_sockaddr *peer, char text[PEER_BYTES]) {
    (void)peer, (void)text;
    return false;
}
static inline void server_log_peer(struct service *service, int kind, const nng_sockaddr *peer,
                                   const char *token) {
    (void)service, (void)kind, (void)peer, (void)token;
}
static inline void server_log_handshake(struct service *service, int error,
                                        const nng_sockaddr *peer) {
    (void)service, (void)error, (void)peer;
}
static inline void server_log_nng_handshakes(struct service *service, uint64_t count) {
    (void)service, (void)count;
}
static inline void server_warnings_update(struct service *service, doorman_time now) {
    (void)service, (void)now;
}
static inline void server_on_event(void *context, const doorman_event *event) {
    (void)context, (void)event;
}
#endif

#endif
