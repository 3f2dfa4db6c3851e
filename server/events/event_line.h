/* doorman_server, part EVENTS: the kinds of events, and how they become lines. */
#ifndef DOORMAN_SERVER_EVENT_LINE_H
#define DOORMAN_SERVER_EVENT_LINE_H

#include "../http/http.h"
#include "../util/siphash.h"
#include "event_ring.h"

/* The kinds of events: docs/protocol.md lists them. The name of a kind is the start of its topics,
 * and the field `event` of its lines. */
#define EVENT_KINDS(X)                                                                             \
    X(PERMIT_GRANTED, "permit.granted")                                                            \
    X(PERMIT_REFUSED, "permit.refused")                                                            \
    X(PERMIT_UNMATCHED, "permit.unmatched")                                                        \
    X(PERMIT_TIER, "permit.tier")                                                                  \
    X(QUEUE_ENTERED, "queue.entered")                                                              \
    X(QUEUE_ENDED, "queue.ended")                                                                  \
    X(BAN_STARTED, "ban.started")                                                                  \
    X(BAN_EVICTED, "ban.evicted")                                                                  \
    X(HOLD_EXPIRED, "hold.expired")                                                                \
    X(RESERVATION_MADE, "reservation.made")                                                        \
    X(RESERVATION_SETTLED, "reservation.settled")                                                  \
    X(RESERVATION_ENDED, "reservation.ended")                                                      \
    X(KEY_EVICTED, "key.evicted")                                                                  \
    X(LEASE_GRANTED, "lease.granted")                                                              \
    X(LEASE_REFUSED, "lease.refused")                                                              \
    X(LEASE_ENDED, "lease.ended")                                                                  \
    X(LEASE_LOST, "lease.lost")                                                                    \
    X(MASTERSHIP_GAINED, "mastership.gained")                                                      \
    X(MASTERSHIP_LOST, "mastership.lost")                                                          \
    X(CONFIG_LOADED, "config.loaded")                                                              \
    X(CONFIG_REFUSED, "config.refused")                                                            \
    X(ADMIN, "admin")

enum event_kind {
#define EVENT_CODE(code, name) EVENT_##code,
    EVENT_KINDS(EVENT_CODE)
#undef EVENT_CODE
        EVENT_KIND_COUNT
};

extern const char *const server_event_names[EVENT_KIND_COUNT];

/* What lines say of keys and holders: --event-keys. Free texts can have keys in them, so only lines
 * with PLAIN have free texts. */
enum event_keys { EVENT_KEYS_PLAIN, EVENT_KEYS_HASH, EVENT_KEYS_NONE, EVENT_KEYS_COUNT };

#define EVENT_SLOTS 4096 /* topics whose numbers are known; a power of two */
#define EVENT_WAYS 4     /* slots in which a topic may be */
#define EVENT_TOPIC_MAX (3 * EVENT_TEXT_MAX + 128)

/* A topic, and the number of its last event. */
struct topic_slot {
    uint64_t hash; /* of the topic */
    uint64_t number, lost;
    uint64_t seq; /* of its last event; 0: the slot is free */
};

/* What turns events into lines. Only one thread uses it. */
struct event_lines {
    const char *server, *node; /* of this process; borrowed */
    char stream[17];           /* names the run of this process */
    uint64_t secret[2];        /* of hashes */
    enum event_keys keys;
    double sample;
    uint64_t seq, lost; /* of the last event that was seen; how many were never seen */
    uint64_t evicted;   /* the largest number of a topic that has lost its slot */
    struct topic_slot slots[EVENT_SLOTS];
    struct text text; /* the last line; its memory is used again */
};

/* Writes "TOPIC JSON" into lines->text, for the next event of the stream.
 *   returns   false: memory has run out, and the event counts as lost */
bool server_event_line_write(struct event_lines *lines, const struct event *event);
void server_event_lines_uninit(struct event_lines *lines);

#endif
