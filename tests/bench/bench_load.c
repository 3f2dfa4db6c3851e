/* The clients: any number of connections from one thread, with epoll. They speak nng's wire
 * protocol on plain sockets, because nng as a client would use more CPU time than the server does.
 * A holder never has two requests in flight.
 *
 * A connection opens with a greeting of eight bytes in each direction, which names the protocols
 * REQ and REP (0x30, 0x31). A message is its length in eight bytes, the most significant first; the
 * number of the request in four bytes, with the highest bit set; and the text. The number says
 * which slot of a connection the request belongs to. Each slot has one request in flight at a time,
 * and its holders take turns.
 *
 * A request names the lease of the last response, as a client does. Its text is put together from
 * parts, and in a response only the few numbers that are needed are searched for, so that little of
 * the measured time is spent here. With an echo the leases are invented, so that requests are as
 * long as requests to the server, and responses are read in the same way. */
#define _GNU_SOURCE /* memmem, ppoll */
#include "bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GREETING_BYTES = 8, HEAD_BYTES = 12, EVENTS_MAX = 256, CONNECTING_MAX = 64 };
static const unsigned char hello[GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
static const unsigned char welcome[GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};

typedef struct text {
    char *at;
    size_t count, capacity;
} text;

typedef struct lease {
    char id[20], capacity[32]; /* as in the response; empty: none */
} lease;

typedef struct holder {
    char id[HOLDER_ID_BYTES + 1], wants[12]; /* a number, 1 to 99 */
    lease *leases;                           /* one lease for each resource */
} holder;

typedef struct connection {
    int fd; /* -1: closed */
    bool greeted;
    size_t waiting;   /* slots with a request in flight */
    doorman_time due; /* when the last request was due */
    size_t sent;      /* bytes of `out` that are sent */
    text out, in;
} connection;

struct load {
    load_options options;
    int epoll;
    connection *connections;
    holder *holders;
    lease *leases;
    char (*openings)[64]; /* the start of each resource's part of a request */
    size_t *slot_holders; /* the current holder of each slot; a connection's slots are neighbours */
    size_t greeted, waiting;
    uint64_t answered, lost; /* responses, and connections that broke */
    uint64_t random;
    bool go_on;                /* a slot sends a new request after each response */
    bool request_when_greeted; /* a connection sends a request when it has opened */
    double *latencies;         /* seconds; NULL: not recorded */
    size_t latency_count, latency_max;
};

/* ---- text ------------------------------------------------------------------------------------ */

static void text_reserve(text *b, size_t more) {
    if (b->capacity - b->count >= more) return;
    size_t capacity = b->capacity ? b->capacity : 512;
    while (capacity - b->count < more) capacity *= 2;
    b->at = realloc(b->at, capacity);
    must(b->at, "out of memory");
    b->capacity = capacity;
}

static void text_add(text *b, const void *data, size_t count) {
    text_reserve(b, count);
    memcpy(b->at + b->count, data, count);
    b->count += count;
}

static void text_write(text *b, const char *words) { text_add(b, words, strlen(words)); }

static void write_resource(const load *l, const holder *h, size_t i, text *out) {
    text_write(out, l->openings[i]);
    text_write(out, h->wants);
    if (h->leases[i].id[0]) {
        text_write(out, ",\"has\":{\"id\":");
        text_write(out, h->leases[i].id);
        text_write(out, ",\"node\":\"root\",\"capacity\":");
        text_write(out, h->leases[i].capacity);
        text_write(out, ",\"expires_in\":55.5}");
    }
    text_write(out, "}");
}

static void write_leases(const load *l, const holder *h, text *out) {
    text_write(out, "{\"get_capacity\":{\"client_id\":\"");
    text_write(out, h->id);
    text_write(out, "\",\"resource\":[");
    for (size_t i = 0; i < l->options.resources; i++) write_resource(l, h, i, out);
    text_write(out, "]}}");
}

/* Writes a request for permits. With several permits, a key is the holder's id and a number. */
static void write_permits(const load *l, const holder *h, text *out) {
    text_write(out, "{\"acquire\":{\"client_id\":\"bench\",\"permit\":[");
    for (size_t i = 0; i < l->options.resources; i++) {
        char number[24] = "";
        if (l->options.resources > 1) snprintf(number, sizeof number, "-%zu", i);
        text_write(out, i ? ",{\"item\":[{\"resource_id\":\"" : "{\"item\":[{\"resource_id\":\"");
        text_write(out, l->options.resource);
        text_write(out, "\",\"key\":\"");
        text_write(out, h->id);
        text_write(out, number);
        text_write(out, "\",\"cost\":1}]}");
    }
    text_write(out, "]}}");
}

static void write_request(const load *l, const holder *h, size_t slot, text *out) {
    size_t start = out->count;
    unsigned char head[HEAD_BYTES] = {0};
    text_add(out, head, sizeof head);
    (l->options.permits ? write_permits : write_leases)(l, h, out);
    uint64_t length = out->count - start - GREETING_BYTES;
    for (size_t i = 0; i < 8; i++) head[i] = (unsigned char)(length >> (56 - 8 * i));
    head[8] = 0x80;
    head[11] = (unsigned char)slot;
    memcpy(out->at + start, head, sizeof head);
}

/* Copies the text between a key and the next comma, and moves *at to the comma. Returns false if
 * there is no such text, or if it is too long. */
static bool read_number(const char **at, const char *end, const char *key, char *out, size_t room) {
    size_t bytes = strlen(key);
    const char *value = memmem(*at, (size_t)(end - *at), key, bytes);
    const char *comma = value ? memchr(value, ',', (size_t)(end - value)) : NULL;
    if (!comma) return false;
    value += bytes;
    size_t count = (size_t)(comma - value);
    if (count >= room) return false;
    memcpy(out, value, count);
    out[count] = 0;
    *at = comma;
    return true;
}

static bool read_response(const load *l, holder *h, const char *response, size_t bytes) {
    const char *end = response + bytes;
    const char *granted = l->options.echo ? "\"cost\":1" : "\"granted\":1";
    if (l->options.permits) return memmem(response, bytes, granted, strlen(granted)) != NULL;
    const char *key = l->options.echo ? "\"has\":{\"id\":" : "\"gets\":{\"id\":";
    bool there = true;
    for (size_t i = 0; there && i < l->options.resources; i++) {
        lease *to = &h->leases[i];
        there = read_number(&response, end, key, to->id, sizeof to->id) &&
                read_number(&response, end, "\"capacity\":", to->capacity, sizeof to->capacity);
    }
    return there;
}

/* ---- connections ----------------------------------------------------------------------------- */

static void connection_open(load *l, connection *c) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(l->options.to->port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    must(c->fd >= 0, "cannot open so many sockets");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    int result = connect(c->fd, (struct sockaddr *)&address, sizeof address);
    must(result == 0 || errno == EINPROGRESS, "cannot connect");
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    must(epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &event) == 0, "cannot watch a socket");
    text_add(&c->out, hello, sizeof hello);
}

static void connection_close(load *l, connection *c) {
    if (c->fd < 0) return;
    close(c->fd);
    l->greeted -= c->greeted;
    l->waiting -= c->waiting;
    c->fd = -1;
    c->greeted = false;
    c->waiting = c->sent = c->out.count = c->in.count = 0;
}

static void connection_send_request(load *l, connection *c, size_t slot) {
    size_t slots = l->options.connections * l->options.in_flight;
    size_t first = (size_t)(c - l->connections) * l->options.in_flight + slot;
    size_t slot_holder = l->slot_holders[first] + slots < l->options.holders
                             ? l->slot_holders[first] + slots
                             : first;
    holder *h = &l->holders[slot_holder];
    l->slot_holders[first] = slot_holder;
    if (random_below(&l->random, 10) == 0) {
        snprintf(h->wants, sizeof h->wants, "%d", 1 + (int)random_below(&l->random, 99));
    }
    write_request(l, h, slot, &c->out);
    c->waiting++;
    l->waiting++;
}

static void connection_on_response(load *l, connection *c, size_t slot, const char *response,
                                   size_t bytes) {
    must(slot < l->options.in_flight && c->waiting > 0, "a response that belongs to no request");
    size_t first = (size_t)(c - l->connections) * l->options.in_flight + slot;
    if (!read_response(l, &l->holders[l->slot_holders[first]], response, bytes)) {
        fprintf(stderr, "\nbench: %.*s\n", (int)(bytes < 500 ? bytes : 500), response);
        must(false, "a response without leases");
    }
    c->waiting--;
    l->waiting--;
    l->answered++;
    if (l->latency_count < l->latency_max) {
        l->latencies[l->latency_count++] = (double)(doorman_clock() - c->due) / 1e9;
    }
    if (l->go_on) connection_send_request(l, c, slot);
}

/* Sends what is in `out`. Returns false if the connection is broken. */
static bool connection_flush(connection *c) {
    while (c->sent < c->out.count) {
        ssize_t sent = send(c->fd, c->out.at + c->sent, c->out.count - c->sent, MSG_NOSIGNAL);
        if (sent < 0) return errno == EAGAIN || errno == EINTR;
        c->sent += (size_t)sent;
    }
    c->sent = c->out.count = 0;
    return true;
}

/* Takes all complete messages; an incomplete one stays in `in`. */
static void connection_parse(load *l, connection *c) {
    size_t at = 0;
    if (!c->greeted && c->in.count >= GREETING_BYTES) {
        must(memcmp(c->in.at, welcome, sizeof welcome) == 0, "the peer is not an nng REP socket");
        c->greeted = true;
        l->greeted++;
        at = GREETING_BYTES;
        if (l->request_when_greeted) connection_send_request(l, c, 0);
    }
    while (c->greeted && c->in.count - at >= HEAD_BYTES) {
        const unsigned char *head = (const unsigned char *)c->in.at + at;
        uint64_t length = 0;
        for (size_t i = 0; i < 8; i++) length = length << 8 | head[i];
        must(length >= 4 && length <= DOORMAN_MESSAGE_BYTES_MAX, "a message has an invalid length");
        if (c->in.count - at < 8 + length) break;
        connection_on_response(l, c, head[11], c->in.at + at + HEAD_BYTES, length - 4);
        at += 8 + length;
    }
    c->in.count -= at;
    if (c->in.count > 0 && at > 0) memmove(c->in.at, c->in.at + at, c->in.count);
}

/* Reads from a socket. A read that does not fill the buffer has emptied the socket. Returns false
 * if the connection is broken. */
static bool connection_receive(load *l, connection *c) {
    ssize_t got = 0;
    size_t room = 0;
    do {
        text_reserve(&c->in, 512);
        room = c->in.capacity - c->in.count;
        got = recv(c->fd, c->in.at + c->in.count, room, 0);
        if (got > 0) c->in.count += (size_t)got;
    } while (got == (ssize_t)room);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    connection_parse(l, c);
    return true;
}

/* Waits for events on the connections, at most for timeout_ms, and handles them. A broken
 * connection is opened again. */
static void load_step(load *l, int timeout_ms) {
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(l->epoll, events, EVENTS_MAX, timeout_ms);
    for (int i = 0; i < count; i++) {
        connection *c = events[i].data.ptr;
        if (connection_flush(c) && connection_receive(l, c) && connection_flush(c)) continue;
        l->lost++;
        connection_close(l, c);
        must(l->lost <= 10 * l->options.connections, "too many connections broke");
        connection_open(l, c);
    }
}

/* ---- loads ----------------------------------------------------------------------------------- */

static void load_make_holders(load *l) {
    size_t count = l->options.holders, resources = l->options.resources;
    l->holders = calloc(count, sizeof *l->holders);
    l->leases = calloc(count * resources, sizeof *l->leases);
    must(l->holders && l->leases, "out of memory");
    for (size_t i = 0; i < count; i++) {
        holder *h = &l->holders[i];
        h->leases = &l->leases[i * resources];
        write_holder_id(h->id, i);
        snprintf(h->wants, sizeof h->wants, "%d", 1 + (int)random_below(&l->random, 99));
    }
    const lease placeholder = {"1180663310274001", "39.578125"};
    for (size_t i = 0; l->options.echo && i < count * resources; i++) l->leases[i] = placeholder;
}

static void load_make_openings(load *l) {
    l->openings = calloc(l->options.resources, sizeof *l->openings);
    must(l->openings, "out of memory");
    for (size_t i = 0; i < l->options.resources; i++) {
        char number[24] = "";
        if (l->options.resources > 1) snprintf(number, sizeof number, "%zu", i);
        snprintf(l->openings[i], sizeof l->openings[i],
                 "%s{\"resource_id\":\"%s%s\",\"wants\":", i ? "," : "", l->options.resource,
                 number);
    }
}

/* Opens all connections, but no more at once than the peer's backlog holds, because beyond that a
 * connection waits a second for its next attempt. */
static void load_connect(load *l) {
    doorman_time end = doorman_clock() + TIMEOUT;
    size_t count = l->options.connections;
    for (size_t opened = 0; l->greeted < count && doorman_clock() < end;) {
        while (opened < count && opened < l->greeted + CONNECTING_MAX) {
            connection_open(l, &l->connections[opened++]);
        }
        load_step(l, 10);
    }
    must(l->greeted == count, "the peer does not accept all connections");
}

load *load_open(const load_options *options) {
    load *l = calloc(1, sizeof *l);
    must(l, "out of memory");
    l->options = *options;
    l->random = 1;
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    size_t slots = options->connections * options->in_flight;
    must(l->epoll >= 0 && slots <= options->holders, "invalid options of a load");
    l->connections = calloc(options->connections, sizeof *l->connections);
    l->slot_holders = calloc(slots, sizeof *l->slot_holders);
    must(l->connections && l->slot_holders, "out of memory");
    for (size_t i = 0; i < slots; i++) l->slot_holders[i] = i;
    for (size_t i = 0; i < options->connections; i++) l->connections[i].fd = -1;
    load_make_holders(l);
    load_make_openings(l);
    load_connect(l);
    return l;
}

/* Waits for the responses to all requests in flight. */
static void load_drain(load *l) {
    doorman_time end = doorman_clock() + TIMEOUT;
    l->go_on = false;
    while (l->waiting > 0 && doorman_clock() < end) load_step(l, 10);
}

void load_close(load *l) {
    load_drain(l);
    for (size_t i = 0; i < l->options.connections; i++) {
        connection *c = &l->connections[i];
        connection_close(l, c);
        free(c->out.at);
        free(c->in.at);
    }
    close(l->epoll);
    free(l->connections);
    free(l->slot_holders);
    free(l->holders);
    free(l->leases);
    free(l->openings);
    free(l);
}

uint64_t load_answered(const load *l) { return l->answered; }

double load_round(load *l, doorman_time length) {
    l->go_on = true;
    for (size_t i = 0; i < l->options.connections; i++) {
        connection *c = &l->connections[i];
        for (size_t slot = 0; slot < l->options.in_flight; slot++) {
            connection_send_request(l, c, slot);
        }
        connection_flush(c);
    }
    uint64_t answered = l->answered, lost = l->lost;
    doorman_time start = doorman_clock(), now = start;
    while (now - start < length) {
        load_step(l, 10);
        now = doorman_clock();
    }
    double rate = (double)(l->answered - answered) * 1e9 / (double)(now - start);
    load_drain(l);
    must(l->waiting == 0 && l->lost == lost, "some requests were not answered");
    return rate;
}

/* Sleeps until a time, or until an event. epoll_wait alone counts in milliseconds. */
static void load_sleep(load *l, doorman_time until) {
    doorman_time left = until - doorman_clock();
    if (left <= 0) return;
    struct timespec time = {.tv_sec = (time_t)(left / DOORMAN_SECOND),
                            .tv_nsec = (long)(left % DOORMAN_SECOND)};
    struct pollfd file = {.fd = l->epoll, .events = POLLIN};
    ppoll(&file, 1, &time, NULL);
}

/* Sends requests with the gaps of a Poisson process, as independent clients do. A connection whose
 * last request is still in flight is skipped, and this counts as a request without a response. */
static size_t load_send_paced(load *l, bench *b, double gap, doorman_time end) {
    size_t asked = 0;
    double due = (double)doorman_clock();
    while (due < (double)end) {
        connection *c = &l->connections[asked % l->options.connections];
        due -= gap * log(1 - random_unit(&l->random));
        while (doorman_clock() < (doorman_time)due) {
            load_sleep(l, (doorman_time)due);
            load_step(l, 0);
        }
        asked++;
        if (c->waiting > 0) continue;
        c->due = (doorman_time)due;
        connection_send_request(l, c, 0);
        connection_flush(c);
        bench_tick(b);
    }
    return asked;
}

paced load_pace(load *l, bench *b, doorman_time period, doorman_time length) {
    double gap = (double)period / (double)l->options.connections;
    l->latency_max = 2 * (size_t)((double)length / gap);
    l->latencies = calloc(l->latency_max, sizeof *l->latencies);
    must(l->latencies, "out of memory");
    l->latency_count = 0;
    uint64_t answered = l->answered;
    paced result = {.asked = load_send_paced(l, b, gap, doorman_clock() + length)};
    load_drain(l);
    result.unanswered = result.asked - (size_t)(l->answered - answered);
    size_t count = l->latency_count;
    must(count > 0, "no request was answered");
    sort(l->latencies, count);
    result.p50 = l->latencies[count / 2];
    result.p99 = l->latencies[count * 99 / 100];
    result.p999 = l->latencies[count * 999 / 1000];
    result.longest = l->latencies[count - 1];
    free(l->latencies);
    l->latency_max = 0;
    return result;
}

double load_reconnect(load *l, bench *b) {
    size_t count = l->options.connections;
    for (size_t i = 0; i < count; i++) connection_close(l, &l->connections[i]);
    doorman_time start = doorman_clock();
    uint64_t answered = l->answered;
    l->request_when_greeted = true;
    for (size_t i = 0; i < count; i++) {
        connection_open(l, &l->connections[i]);
        if (i % 64 == 0) load_step(l, 0);
    }
    while (l->answered - answered < count && doorman_clock() - start < 2 * TIMEOUT) {
        load_step(l, 10);
        bench_tick(b);
    }
    l->request_when_greeted = false;
    must(l->answered - answered == count, "not all connections were answered after reconnecting");
    return (double)(doorman_clock() - start) / 1e9;
}
