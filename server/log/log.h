/* doorman_server: events that peers can cause as often as they like. They are counted, and the log
 * has at most one line a minute for each kind, and about ended leases one in 10 seconds (V6). */
#ifndef DOORMAN_SERVER_LOG_FACE_H
#define DOORMAN_SERVER_LOG_FACE_H

#include "../util/socket.h"

/* ---- part WARNINGS -------------------------------------------------------------------------- */

/* Events that peers can cause at any rate, as log lines (V6). */

#define SHARED_ID_MAX 8 /* ids that have warnings of their own at the same time (V6) */

/* The kinds of repeated warnings: first those of doorman_event, then those of the server. Refused
 * messages have one kind of warning for each kind of message. Each of the last kinds is for one
 * shared id. The kind DOORMAN_EVENT_SHARED_ID is for further shared ids. */
enum {
    WARNING_MESSAGE_REFUSED = DOORMAN_EVENT_COUNT, /* the first of MESSAGE_KIND_COUNT kinds */
    WARNING_PARENT_UNREACHABLE = WARNING_MESSAGE_REFUSED + MESSAGE_KIND_COUNT,
    WARNING_PARENT_RESPONSE,
    WARNING_PARENT_MASTER,
    WARNING_NODE_SHARED,
    WARNING_ETCD_UNREACHABLE,
    WARNING_HANDSHAKE,
    WARNING_NNG_HANDSHAKE,
    WARNING_PEER_CERTIFICATE,
    WARNING_TOKEN,
    WARNING_ROLE,
    WARNING_HTTP_CROWDED,
    WARNING_PERMIT_UNMATCHED,
    WARNING_KEY_EVICTED,
    WARNING_CHILD_SILENT,
    WARNING_CHILD_ENDED,
    WARNING_BANS_EVICTED,
    WARNING_SHARED_ID, /* the first of SHARED_ID_MAX kinds */
    WARNING_COUNT = WARNING_SHARED_ID + SHARED_ID_MAX
};

#define WARNING_PAIR_MAX 6

/* A holder whose id two processes seem to use, or that does not confirm its leases. */
struct suspect {
    char id[DOORMAN_ID_BYTES_MAX + 1];
    bool is_server;
    char peer[PEER_BYTES];                /* the last peer that used the id; "": not known */
    char other_peer[PEER_BYTES];          /* the last one with another address; "": not known */
    char token[DOORMAN_ID_BYTES_MAX + 1]; /* the name of the token of the last peer; "": none */
    doorman_time seen_at;                 /* the time of the last event */
};

/* Counts an event, and logs its warning at most once a minute, with the number of events since the
 * last line (V6). Precondition: the lock is held.
 *   pairs   of the new event: WARNING_PAIR_MAX keys, each followed by its value. The keys are
 *           constant strings. A pair whose value is NULL is left out */
void server_log_warning(struct service *service, int kind,
                        const char *const pairs[WARNING_PAIR_MAX][2], doorman_time now);

/* Drops the events of a kind that no line has reported, because the problem has ended. The caller
 * logs the end, with the number of events. Precondition: the lock is held. */
void server_end_warning(struct service *service, int kind);

/* Writes the address of a peer. A peer over IPC has no address, so its process id is written. */
void server_peer_write(const struct peer *peer, char text[PEER_BYTES]);

/* Finds a suspect. Precondition: the lock is held, and stays held while the result is used.
 *   returns   NULL: the holder is no suspect, or the table of suspects was too small for it */
const struct suspect *server_suspect_find(const struct service *service, const char *holder_id,
                                          bool is_server);

/* Logs a refused peer as a repeated warning, with the number of different hosts. Precondition: the
 * lock is not held.
 *   token   the name of its token; NULL: none */
void server_log_peer(struct service *service, int kind, const char *peer, const char *token);

/* Counts and logs a failed handshake of HTTPS or of gRPC.
 *   is_certificate   the certificate of the peer is missing or refused
 *   peer             its address */
void server_log_handshake(struct service *service, bool is_certificate, const char *peer);

/* Counts and logs failed handshakes over nng, which does not say who the peers are.
 *   count   of new failures; at least 1 */
void server_log_nng_handshakes(struct service *service, uint64_t count);

/* Returns the text of a kind of warning. */
const char *server_warning_text(int kind);

/* ---- part UNMATCHED ------------------------------------------------------------------------- */

/* The last descriptors that match no template with limits. Gateways have sent them. */

#define UNMATCHED_MAX 32 /* rows */

/* Descriptors of one domain that became the same resource. */
struct unmatched_row {
    char domain[DOORMAN_ID_BYTES_MAX + 1]; /* cut off; `?` stands for what is not printable ASCII */
    char resource[DOORMAN_ID_BYTES_MAX + 1];
    char key[DOORMAN_ID_BYTES_MAX + 1]; /* of the last one */
    uint64_t count;
    doorman_time at; /* of the last one */
    bool matched;    /* a rule of the configuration has given the resource */
};

/* Notes a descriptor whose resource has no template with limits. Any thread may call it, with or
 * without the lock of the service.
 *   domain   as the client has sent it
 *   item     of doorman_descriptors_resolve
 *   cost     a mutex, and a look at UNMATCHED_MAX rows */
void server_unmatched_note(struct service *service, const char *domain,
                           const doorman_descriptor_item *item);

/* Copies the rows, the last one first.
 *   all       out: how many descriptors were noted since the process started
 *   returns   the number of rows */
size_t server_unmatched_list(struct service *service, struct unmatched_row rows[UNMATCHED_MAX],
                             uint64_t *all);

#endif
