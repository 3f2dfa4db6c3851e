/* doorman_server, part EVENTS: the ring of events. It is memory of a fixed size, between one thread
 * that pushes and one that reads.
 *
 *     | free | record | record | record | free |
 *            tail                       head
 *
 * A record is a head of a fixed size, and then the texts, each with a final 0. It starts at a
 * multiple of 8 and is never split: if it does not fit before the end of the memory, the rest of
 * the memory becomes a gap, which starts with GAP. The thread that pushes writes `head` after the
 * record, and the thread that reads writes `tail` after it has used the record. So neither sees
 * what the other has not completed.
 *
 * Before the thread that reads sleeps, it sets `sleeping` of struct events, and then looks once
 * more whether the ring is empty. All threads agree on the order of the accesses to `sleeping` and
 * to `head`. So a push that this look misses sees `sleeping`, and wakes the thread. */
#include "event_ring.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define GAP UINT32_MAX
#define NO_TEXT UINT16_MAX

/* The start of a record. */
struct record_head {
    uint32_t bytes; /* of the record, with this head; GAP: the rest of the memory is not used */
    uint16_t lengths[EVENT_TEXT_COUNT]; /* NO_TEXT: there is none */
    int32_t kind, reason, flag;
    uint64_t seq;
    int64_t at;
    uint64_t id;
    double numbers[EVENT_NUMBER_MAX];
};

bool server_event_ring_init(struct event_ring *ring, uint32_t capacity) {
    assert((capacity & (capacity - 1)) == 0 && capacity >= 2 * EVENT_RECORD_MAX);
    *ring = (struct event_ring){.bytes = (unsigned char *)malloc(capacity), .capacity = capacity};
    return ring->bytes != NULL;
}

void server_event_ring_uninit(struct event_ring *ring) {
    free(ring->bytes);
    ring->bytes = NULL;
}

/* Measures the texts. Returns the bytes of the record. */
static uint32_t record_measure(struct record_head *head, const struct event *event) {
    size_t bytes = sizeof *head;
    for (int i = 0; i < EVENT_TEXT_COUNT; i++) {
        size_t length = event->texts[i] ? strnlen(event->texts[i], EVENT_TEXT_MAX) : 0;
        head->lengths[i] = event->texts[i] ? (uint16_t)length : NO_TEXT;
        if (event->texts[i]) bytes += length + 1;
    }
    bytes = (bytes + 7) & ~(size_t)7;
    assert(bytes <= EVENT_RECORD_MAX);
    return (uint32_t)bytes;
}

/* Finds room for a record, behind a gap if need be. Returns whether there is room.
 *   at   out: where the record begins */
static bool ring_find_room(struct event_ring *ring, uint32_t bytes, uint32_t *at) {
    const uint32_t head = __atomic_load_n(&ring->head, __ATOMIC_RELAXED);
    assert(head - ring->tail_seen <= ring->capacity);
    const uint32_t until_end = ring->capacity - (head & (ring->capacity - 1));
    const uint32_t gap = bytes <= until_end ? 0 : until_end;
    if (gap + bytes > ring->capacity - (head - ring->tail_seen)) {
        ring->tail_seen = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
    }
    if (gap + bytes > ring->capacity - (head - ring->tail_seen)) return false;
    if (gap) {
        const uint32_t size = GAP;
        memcpy(ring->bytes + (head & (ring->capacity - 1)), &size, sizeof size);
    }
    *at = head + gap;
    return true;
}

bool server_event_ring_push(struct event_ring *ring, const struct event *event) {
    struct record_head head = {.kind = event->kind,
                               .reason = event->reason,
                               .flag = event->flag,
                               .seq = event->seq,
                               .at = event->at,
                               .id = event->id};
    uint32_t at = 0;
    head.bytes = record_measure(&head, event);
    if (!ring_find_room(ring, head.bytes, &at)) return false;
    memcpy(head.numbers, event->numbers, sizeof head.numbers);
    unsigned char *to = ring->bytes + (at & (ring->capacity - 1));
    memcpy(to, &head, sizeof head);
    to += sizeof head;
    for (int i = 0; i < EVENT_TEXT_COUNT; i++) {
        if (!event->texts[i]) continue;
        memcpy(to, event->texts[i], head.lengths[i]);
        to[head.lengths[i]] = 0;
        to += head.lengths[i] + 1;
    }
    __atomic_store_n(&ring->head, at + head.bytes, __ATOMIC_SEQ_CST);
    return true;
}

bool server_event_ring_is_empty(const struct event_ring *ring) {
    return __atomic_load_n(&ring->head, __ATOMIC_SEQ_CST) ==
           __atomic_load_n(&ring->tail, __ATOMIC_RELAXED);
}

bool server_event_ring_read(struct event_ring *ring, struct event *out) {
    const uint32_t mask = ring->capacity - 1;
    uint32_t tail = __atomic_load_n(&ring->tail, __ATOMIC_RELAXED);
    struct record_head head;
    if (server_event_ring_is_empty(ring)) return false;
    memcpy(&head.bytes, ring->bytes + (tail & mask), sizeof head.bytes);
    if (head.bytes == GAP) tail += ring->capacity - (tail & mask);
    const unsigned char *from = ring->bytes + (tail & mask);
    memcpy(&head, from, sizeof head);
    assert(head.bytes >= sizeof head && head.bytes <= EVENT_RECORD_MAX);
    from += sizeof head;
    *out = (struct event){.kind = head.kind,
                          .reason = head.reason,
                          .flag = head.flag,
                          .seq = head.seq,
                          .at = head.at,
                          .id = head.id};
    memcpy(out->numbers, head.numbers, sizeof head.numbers);
    for (int i = 0; i < EVENT_TEXT_COUNT; i++) {
        if (head.lengths[i] == NO_TEXT) continue;
        out->texts[i] = (const char *)from;
        from += head.lengths[i] + 1;
    }
    ring->next = tail + head.bytes;
    return true;
}

void server_event_ring_drop(struct event_ring *ring) {
    assert(ring->next != __atomic_load_n(&ring->tail, __ATOMIC_RELAXED)); /* one was read */
    __atomic_store_n(&ring->tail, ring->next, __ATOMIC_RELEASE);
}
