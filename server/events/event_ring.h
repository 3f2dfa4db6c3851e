/* doorman_server, part EVENTS: the ring that carries events to the thread that sends them. */
#ifndef DOORMAN_SERVER_EVENT_RING_H
#define DOORMAN_SERVER_EVENT_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EVENT_TEXT_MAX 512    /* bytes of a text of an event; a longer one is cut off */
#define EVENT_NUMBER_MAX 3    /* numbers of an event */
#define EVENT_RECORD_MAX 4096 /* bytes of a record in the ring, with all its texts */

/* The texts of an event. What they say depends on its kind: see event_line.c. */
enum { EVENT_RESOURCE, EVENT_KEY, EVENT_LIMIT, EVENT_WHO, EVENT_WHAT, EVENT_WHY, EVENT_TEXT_COUNT };

struct event {
    int kind;     /* an enum event_kind */
    int reason;   /* a doorman_reason; 0: none */
    bool flag;    /* what it says depends on the kind */
    uint64_t seq; /* its number in the stream, from 1 */
    int64_t at;   /* nanoseconds since 1970 */
    uint64_t id;  /* of a reservation; 0: the event is about none, or it was not known */
    double numbers[EVENT_NUMBER_MAX];
    const char *texts[EVENT_TEXT_COUNT]; /* NULL: the event has none */
};

/* One thread pushes at a time, and one thread reads. Neither waits for the other one. Positions
 * count bytes modulo 2^32. */
struct event_ring {
    unsigned char *bytes;
    uint32_t capacity;   /* a power of two */
    uint32_t head, tail; /* atomic: where the next record begins; where the oldest one does */
    uint32_t tail_seen;  /* the last `tail` that the thread that pushes has read */
    uint32_t next;       /* of the thread that reads: where its present record ends */
};

/* Makes an empty ring.
 *   capacity   bytes: a power of two, at least 2 * EVENT_RECORD_MAX
 *   returns    false: memory has run out */
bool server_event_ring_init(struct event_ring *ring, uint32_t capacity);
void server_event_ring_uninit(struct event_ring *ring); /* works after {0} too */

/* Copies an event. Allocates nothing, and makes no system call.
 *   returns   false: the ring is full, and nothing has changed
 *   cost      O(bytes of the texts) */
bool server_event_ring_push(struct event_ring *ring, const struct event *event);

/* Reads the oldest event, and keeps it.
 *   out       its texts point into the ring, until server_event_ring_drop
 *   returns   false: the ring is empty */
bool server_event_ring_read(struct event_ring *ring, struct event *out);

/* Removes the event that server_event_ring_read has read. */
void server_event_ring_drop(struct event_ring *ring);

bool server_event_ring_is_empty(const struct event_ring *ring); /* for the thread that reads */

#endif
