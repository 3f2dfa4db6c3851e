/* doorman_server, part EVENTS: publishes events as JSON on an nng PUB socket (--events, P33).
 *
 *     decides   a thread with the lock of the service copies the event into the ring. If the ring
 *               is full, the event is counted and lost. No decision waits for this part
 *     sends     a thread of this part makes lines of the events, and gives them to nng
 *     queues    nng has a queue for each subscriber. A slow one loses its oldest lines
 *
 * Each event has a number, even if the event is then lost, so subscribers see how many they have
 * lost. While nobody subscribes, events are numbered, but not copied.
 *
 * Grants and settlements are many, so only a fraction of them are events (--event-sample). Random
 * numbers choose this fraction, because every hundredth grant would always be of the same client if
 * 100 clients took turns.
 *
 * Subscribers need no token, because nng has none. So the socket is for this machine only, unless
 * it has TLS and asks for certificates. */
#include "events.h"
#include "../util/host.h"

#include <math.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <nng/protocol/pubsub0/pub.h>
#include <nng/supplemental/util/platform.h>

#define RING_BYTES ((uint32_t)4 << 20)
#define SUBSCRIBER_MAX 64
#define QUEUE_LINES 4096 /* for each subscriber. They share the lines */
#define NAP_MS 1         /* so that a busy server wakes the thread at most 1,000 times a second */
#define SLEEP_MS 1000
#define LINGER_MS 100 /* a pause before nng_close, which drops lines that are not sent yet */
#define WARN_INTERVAL (60 * DOORMAN_SECOND)
#define SAMPLE_DEFAULT 0.01
#define EVENTS_EXAMPLE "tcp://127.0.0.1:15060"

/* ---- flags ---------------------------------------------------------------------------------- */

/* Reads --event-sample. Returns false if it is no fraction. */
static bool sample_read(const struct settings *settings, double *sample) {
    const char *text = settings->event_sample;
    char *end = NULL;
    *sample = SAMPLE_DEFAULT;
    if (!text) return true;
    *sample = strtod(text, &end);
    return strspn(text, "0123456789.") == strlen(text) && !*end && *sample >= 0 && *sample <= 1;
}

/* Reads --event-keys. Returns false if it is not plain, hash or none. */
static bool keys_read(const struct settings *settings, enum event_keys *keys) {
    static const char *const names[EVENT_KEYS_COUNT] = {"plain", "hash", "none"};
    int i = 0;
    *keys = EVENT_KEYS_PLAIN;
    if (!settings->event_keys) return true;
    while (i < EVENT_KEYS_COUNT && strcmp(settings->event_keys, names[i]) != 0) i++;
    *keys = (enum event_keys)i;
    return i < EVENT_KEYS_COUNT;
}

/* Checks that other machines can reach the address only with TLS and with a certificate. */
static enum exit_status events_check_address(const struct settings *settings) {
    const char *url = settings->events;
    const bool tls = strncmp(url, "tls+tcp://", 10) == 0;
    char host[EVENT_ADDRESS_MAX];
    if (!tls && strncmp(url, "tcp://", 6) != 0) {
        return server_usage_error("--events '%s': must be tcp://HOST:PORT or tls+tcp://HOST:PORT, "
                                  "for example " EVENTS_EXAMPLE,
                                  url);
    }
    if (tls && server_flag_lacks(FLAG_TLS_CERT)) {
        return server_usage_error("--events tls+tcp://...: this server was built without %s",
                                  server_flag_lacks(FLAG_TLS_CERT));
    }
    if (tls && !settings->tls_cert) {
        return server_usage_error("--events tls+tcp://... needs --tls-cert and --tls-key");
    }
    server_host_read(url, host, sizeof host);
    if (server_host_is_loopback(host) || (tls && settings->tls_ca)) return CONTINUE;
    return server_usage_error(
        "--events %s can be reached from other machines, and subscribers have "
        "no token: give tls+tcp://... and --tls-ca, or a loopback address",
        url);
}

static enum exit_status events_check(const struct settings *settings) {
    double sample = 0;
    enum event_keys keys = EVENT_KEYS_PLAIN;
    if (!sample_read(settings, &sample)) {
        return server_usage_error("--event-sample is '%s', not a number from 0 to 1",
                                  settings->event_sample);
    }
    if (!keys_read(settings, &keys)) {
        return server_usage_error("--event-keys is '%s', not plain, hash or none",
                                  settings->event_keys);
    }
    if (!settings->events && (settings->event_sample || settings->event_keys)) {
        return server_usage_error("--%s needs --events",
                                  settings->event_sample ? "event-sample" : "event-keys");
    }
    return settings->events ? events_check_address(settings) : CONTINUE;
}

/* ---- what happens --------------------------------------------------------------------------- */

static bool events_are_on(const struct service *service) {
    return service->events && service->events->has_thread;
}

static void events_wake(struct events *events) {
    (void)eventfd_write(events->wake, 1); /* never waits: EFD_NONBLOCK */
}

/* Numbers an event, and copies it into the ring if anybody subscribes. Precondition: the lock is
 * held. */
static void events_add(struct service *service, struct event *event) {
    struct events *events = service->events;
    struct timespec now;
    assert(server_lock_is_held(&service->lock));
    event->seq = ++events->seq;
    if (!__atomic_load_n(&events->counters.subscribers, __ATOMIC_RELAXED)) return;
    clock_gettime(CLOCK_REALTIME, &now);
    event->at = (int64_t)now.tv_sec * DOORMAN_SECOND + now.tv_nsec;
    if (!server_event_ring_push(&events->ring, event)) {
        server_counter_add(&events->counters.lost, 1);
    } else if (__atomic_load_n(&events->sleeping, __ATOMIC_SEQ_CST)) {
        __atomic_store_n(&events->sleeping, false, __ATOMIC_RELAXED);
        events_wake(events);
    }
}

/* Returns whether an event of a sampled kind is kept (SplitMix64). Precondition: the lock is
 * held. */
static bool events_choose(struct events *events) {
    uint64_t value = events->random += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return (value ^ value >> 31) >> 11 < events->threshold;
}

/* For each kind of event of the library: whether this part sends it, and the kind that it sends. */
static const struct {
    bool is_event;
    enum event_kind kind;
} permit_kinds[DOORMAN_PERMIT_EVENT_COUNT] = {
    [DOORMAN_PERMIT_GRANTED] = {true, EVENT_PERMIT_GRANTED},
    [DOORMAN_PERMIT_REFUSED] = {true, EVENT_PERMIT_REFUSED},
    [DOORMAN_PERMIT_BANNED] = {true, EVENT_BAN_STARTED},
    [DOORMAN_PERMIT_KEY_EVICTED] = {true, EVENT_KEY_EVICTED},
    [DOORMAN_PERMIT_BAN_EVICTED] = {true, EVENT_BAN_EVICTED},
    [DOORMAN_PERMIT_TIER_ENTERED] = {true, EVENT_PERMIT_TIER},
    [DOORMAN_PERMIT_WAITING] = {true, EVENT_QUEUE_ENTERED},
    [DOORMAN_PERMIT_WAIT_ENDED] = {true, EVENT_QUEUE_ENDED},
    [DOORMAN_PERMIT_WAIT_LEFT] = {true, EVENT_QUEUE_ENDED},
    [DOORMAN_PERMIT_HOLD_EXPIRED] = {true, EVENT_HOLD_EXPIRED},
    [DOORMAN_PERMIT_UNMATCHED] = {true, EVENT_PERMIT_UNMATCHED},
    [DOORMAN_PERMIT_RESERVED] = {true, EVENT_RESERVATION_MADE},
    [DOORMAN_PERMIT_SETTLED] = {true, EVENT_RESERVATION_SETTLED},
    [DOORMAN_PERMIT_UNSETTLED] = {true, EVENT_RESERVATION_ENDED},
};

static void events_on_permit(struct service *service, const doorman_permit_event *event) {
    if (!permit_kinds[event->kind].is_event) return;
    const bool is_sampled = event->kind == DOORMAN_PERMIT_GRANTED ||
                            event->kind == DOORMAN_PERMIT_RESERVED ||
                            event->kind == DOORMAN_PERMIT_SETTLED;
    if (is_sampled && !events_choose(service->events)) return;
    if (event->kind == DOORMAN_PERMIT_KEY_EVICTED && event->amount <= 0) return; /* it was fresh */
    const char *outcome = NULL;
    if (event->kind == DOORMAN_PERMIT_WAIT_ENDED) outcome = event->reason ? "refused" : "granted";
    if (event->kind == DOORMAN_PERMIT_WAIT_LEFT) outcome = "left";
    struct event added = {.kind = (int)permit_kinds[event->kind].kind,
                          .reason = (int)event->reason,
                          .flag = event->shadow || event->late,
                          .id = event->id,
                          .numbers = {event->amount, event->returned, event->charged},
                          .texts = {[EVENT_RESOURCE] = event->item_resource_id
                                                           ? event->item_resource_id
                                                           : event->resource_id,
                                    [EVENT_KEY] = event->key,
                                    [EVENT_LIMIT] = event->limit,
                                    [EVENT_WHAT] = outcome}};
    events_add(service, &added);
}

/* Adds an event about a lease that has expired, or about a lease that this node itself has lost. */
static bool events_on_event(struct service *service, const doorman_event *event) {
    const bool is_own = event->kind == DOORMAN_EVENT_LEASE_ENDED;
    char holder[HOLDER_BYTES];
    if (!events_are_on(service)) return false;
    if (!is_own && !(event->kind == DOORMAN_EVENT_EXPIRED && event->amount > 0)) return false;
    server_holder_write(event->holder_id, holder);
    struct event added = {.kind = is_own ? EVENT_LEASE_LOST : EVENT_LEASE_ENDED,
                          .numbers = {event->amount},
                          .texts = {[EVENT_RESOURCE] = event->resource_id,
                                    [EVENT_WHO] = is_own ? NULL : holder,
                                    [EVENT_WHAT] = is_own ? NULL : "expired"}};
    events_add(service, &added);
    return false; /* other parts want the event too */
}

static const char *outcome_name(doorman_outcome outcome) {
    return outcome == DOORMAN_TRY_LATER ? "TRY_LATER"
           : outcome == DOORMAN_FULL    ? "FULL"
                                        : "UNMATCHED";
}

/* Notes the answer about one lease.
 *   holder   as people may see it */
static void events_on_lease(struct service *service, const doorman_capacity_request *asked,
                            const doorman_capacity_response *answer, bool is_server,
                            const char *holder) {
    const bool is_granted = answer->outcome == DOORMAN_GRANTED;
    double wants = 0;
    if (is_granted && !events_choose(service->events)) return;
    for (size_t i = 0; i < asked->wants_count; i++) wants += asked->wants[i].wants;
    struct event added = {
        .kind = is_granted ? EVENT_LEASE_GRANTED : EVENT_LEASE_REFUSED,
        .flag = is_server,
        .numbers = {answer->gets.capacity, wants,
                    (double)answer->gets.expires_in / (double)DOORMAN_SECOND},
        .texts = {[EVENT_RESOURCE] = answer->resource_id,
                  [EVENT_WHO] = holder,
                  [EVENT_WHAT] = is_granted ? NULL : outcome_name(answer->outcome)}};
    events_add(service, &added);
}

/* Adds the events about the leases of a message. */
static void events_on_decided(struct service *service, doorman_json_exchange *exchange,
                              doorman_time now) {
    const doorman_request *request = &exchange->request;
    const doorman_response *response = &exchange->response;
    char holder[HOLDER_BYTES];
    (void)now;
    if (!events_are_on(service) || !response->is_master || !request->holder_id) return;
    const bool releases = request->method == DOORMAN_RELEASE_CAPACITY;
    if (!releases && request->method != DOORMAN_GET_CAPACITY) return;
    server_holder_write(request->holder_id, holder);
    for (size_t i = 0; i < request->item_count && releases; i++) {
        struct event added = {.kind = EVENT_LEASE_ENDED,
                              .numbers = {(double)NAN},
                              .texts = {[EVENT_RESOURCE] = request->items[i].resource_id,
                                        [EVENT_WHO] = holder,
                                        [EVENT_WHAT] = "released"}};
        events_add(service, &added);
    }
    for (size_t i = 0; i < response->item_count && !releases; i++) {
        events_on_lease(service, &request->items[i], &response->items[i], request->is_server,
                        holder);
    }
}

static void events_elected(struct service *service, bool is_master, uint64_t epoch) {
    struct events *events = service->events;
    if (!events_are_on(service) || events->is_master == is_master) return;
    events->is_master = is_master;
    struct event added = {.kind = is_master ? EVENT_MASTERSHIP_GAINED : EVENT_MASTERSHIP_LOST,
                          .numbers = {epoch ? (double)epoch : (double)NAN}};
    events_add(service, &added);
}

static void events_configured(struct service *service, const struct config_change *change) {
    if (!events_are_on(service) || change->is_first) return;
    server_lock(&service->lock);
    const struct config_load *load = &service->last_load;
    const bool is_refused = load->error[0];
    struct event added = {.kind = is_refused ? EVENT_CONFIG_REFUSED : EVENT_CONFIG_LOADED,
                          .texts = {[EVENT_WHAT] = is_refused ? NULL : load->hash,
                                    [EVENT_WHY] = is_refused ? load->error : NULL}};
    events_add(service, &added);
    server_unlock(&service->lock);
}

static void events_on_act(struct service *service, const struct act_report *report) {
    if (!events_are_on(service)) return;
    struct event added = {.kind = EVENT_ADMIN,
                          .flag = report->is_glob,
                          .numbers = {(double)report->audit, (double)report->entries},
                          .texts = {[EVENT_RESOURCE] = report->resource,
                                    [EVENT_KEY] = report->key,
                                    [EVENT_LIMIT] = report->limit,
                                    [EVENT_WHO] = report->token,
                                    [EVENT_WHAT] = report->what,
                                    [EVENT_WHY] = report->reason}};
    events_add(service, &added);
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Sends the line of an event. nng never waits for a subscriber. */
static void events_send(struct events *events, const struct event *event) {
    const doorman_buffer *line = &events->lines.text.buffer;
    nng_msg *message = NULL;
    bool done = server_event_line_write(&events->lines, event) && nng_msg_alloc(&message, 0) == 0 &&
                nng_msg_append(message, line->text, line->bytes) == 0 &&
                nng_sendmsg(events->socket, message, NNG_FLAG_NONBLOCK) == 0;
    if (!done && message) nng_msg_free(message);
    server_counter_add(done ? &events->counters.published[event->kind] : &events->counters.lost, 1);
}

/* Logs how many events were lost, at most once a minute. */
static void events_warn(struct events *events) {
    const uint64_t lost = __atomic_load_n(&events->counters.lost, __ATOMIC_RELAXED);
    const doorman_time now = doorman_clock();
    char count[24];
    if (lost == events->lost_before || now < events->warn_at) return;
    snprintf(count, sizeof count, "%" PRIu64, lost - events->lost_before);
    server_log(events->service->settings, LEVEL_WARNING,
               "events were lost, because they came faster than they can be sent", "lost", count,
               LOG_END);
    events->lost_before = lost;
    events->warn_at = now + WARN_INTERVAL;
}

/* Sleeps for NAP_MS, and then until there is an event, at most for SLEEP_MS. See event_ring.c for
 * the order of the accesses. */
static void events_sleep(struct events *events) {
    struct pollfd wake = {.fd = events->wake, .events = POLLIN};
    eventfd_t count = 0;
    nng_msleep(NAP_MS);
    __atomic_store_n(&events->sleeping, true, __ATOMIC_SEQ_CST);
    if (server_event_ring_is_empty(&events->ring) &&
        !__atomic_load_n(&events->ends, __ATOMIC_SEQ_CST)) {
        (void)poll(&wake, 1, SLEEP_MS);
    }
    __atomic_store_n(&events->sleeping, false, __ATOMIC_RELAXED);
    (void)eventfd_read(events->wake, &count);
}

static void *events_main(void *argument) {
    struct events *events = (struct events *)argument;
    struct event event;
    bool ends = false;
    while (!ends) {
        ends = __atomic_load_n(&events->ends, __ATOMIC_SEQ_CST); /* then once more, for the rest */
        while (server_event_ring_read(&events->ring, &event)) {
            events_send(events, &event);
            server_event_ring_drop(&events->ring);
        }
        events_warn(events);
        if (!ends) events_sleep(events);
    }
    return NULL;
}

/* ---- the socket ----------------------------------------------------------------------------- */

/* Counts subscribers, and closes each new one beyond the limit. A closed one is subtracted too,
 * because nng reports its end. */
static void events_on_pipe(nng_pipe pipe, nng_pipe_ev event, void *argument) {
    struct events *events = (struct events *)argument;
    unsigned *count = &events->counters.subscribers;
    if (event == NNG_PIPE_EV_REM_POST) {
        __atomic_sub_fetch(count, 1, __ATOMIC_RELAXED);
    } else if (__atomic_add_fetch(count, 1, __ATOMIC_RELAXED) > SUBSCRIBER_MAX) {
        nng_pipe_close(pipe);
    }
}

static int events_open(struct events *events, const char *url) {
    char *bound = NULL;
    int error = nng_pub0_open(&events->socket);
    events->has_socket = error == 0;
    if (error == 0) error = nng_socket_set_int(events->socket, NNG_OPT_SENDBUF, QUEUE_LINES);
    for (int i = 0; i < 2 && error == 0; i++) {
        error = nng_pipe_notify(events->socket, i ? NNG_PIPE_EV_REM_POST : NNG_PIPE_EV_ADD_PRE,
                                events_on_pipe, events);
    }
    if (error == 0) error = nng_listener_create(&events->listener, events->socket, url);
    if (error == 0 && server_url_wants_tls(url)) {
        error = nng_listener_set_ptr(events->listener, NNG_OPT_TLS_CONFIG, events->service->tls);
    }
    if (error == 0) (void)nng_listener_set_bool(events->listener, NNG_OPT_TCP_KEEPALIVE, true);
    if (error == 0) error = nng_listener_start(events->listener, 0);
    if (error == 0) error = nng_listener_get_string(events->listener, NNG_OPT_URL, &bound);
    if (error == 0) snprintf(events->address, sizeof events->address, "%s", bound);
    nng_strfree(bound);
    return error;
}

/* Makes what the events need, except the socket. */
static bool events_init(struct service *service) {
    struct events *events = service->events;
    struct event_lines *lines = &events->lines;
    uint64_t stream = 0;
    bool done = server_event_ring_init(&events->ring, RING_BYTES) &&
                (events->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) >= 0 &&
                getrandom(lines->secret, sizeof lines->secret, 0) == sizeof lines->secret &&
                getrandom(&stream, sizeof stream, 0) == sizeof stream &&
                getrandom(&events->random, sizeof events->random, 0) == sizeof events->random;
    snprintf(lines->stream, sizeof lines->stream, "%016" PRIx64, stream);
    (void)sample_read(service->settings, &lines->sample);
    (void)keys_read(service->settings, &lines->keys);
    events->threshold = (uint64_t)(lines->sample * 9007199254740992.0);
    lines->server = service->id;
    lines->node = service->node;
    return done;
}

static enum exit_status events_listen(struct service *service) {
    struct events *events = service->events;
    const char *url = service->settings->events;
    events->wake = -1;
    if (!url) return CONTINUE;
    events->service = service;
    if (!events_init(service)) {
        return server_fatal_error(EXIT_ERROR, "cannot publish events: out of memory");
    }
    int error = events_open(events, url);
    if (error == NNG_EINVAL || error == NNG_EADDRINVAL || error == NNG_ENOTSUP) {
        return server_usage_error(
            "cannot listen on --events '%s': %s; an address is, for example, " EVENTS_EXAMPLE, url,
            nng_strerror(error));
    }
    if (error != 0) {
        return server_fatal_error(EXIT_ERROR,
                                  "cannot listen on --events %s: %s; give another address", url,
                                  nng_strerror(error));
    }
    events->has_thread = pthread_create(&events->thread, NULL, events_main, events) == 0;
    return events->has_thread
               ? CONTINUE
               : server_fatal_error(EXIT_ERROR, "cannot publish events: out of threads");
}

static enum exit_status events_serve(struct service *service) {
    char sample[32];
    if (!events_are_on(service)) return CONTINUE;
    snprintf(sample, sizeof sample, "%g", service->events->lines.sample);
    server_log(service->settings, LEVEL_INFO, "publishing events", "events",
               service->events->address, "sample", sample, LOG_END);
    return CONTINUE;
}

/* Gives the listener the new certificates. The listener has prepared its next connection already,
 * which still uses the old ones. */
static void events_set_tls(struct service *service) {
    struct events *events = service->events;
    if (!events_are_on(service) || !server_url_wants_tls(events->address)) return;
    int error = nng_listener_set_ptr(events->listener, NNG_OPT_TLS_CONFIG, service->tls);
    if (error == 0) return;
    server_log(service->settings, LEVEL_WARNING,
               "this listener keeps its certificate until the server starts again", "events",
               events->address, "error", nng_strerror(error), LOG_END);
}

/* Sends all events that are in the ring, and ends the thread. Other threads may still add events,
 * so the ring stays until events_destroy. */
static void events_stop(struct service *service) {
    struct events *events = service->events;
    if (!events || !events->service) return; /* the start has not come so far */
    if (events->has_thread) {
        __atomic_store_n(&events->ends, true, __ATOMIC_SEQ_CST);
        events_wake(events);
        pthread_join(events->thread, NULL);
        const unsigned *subscribers = &events->counters.subscribers;
        if (__atomic_load_n(subscribers, __ATOMIC_RELAXED)) nng_msleep(LINGER_MS);
    }
    if (events->has_socket) nng_close(events->socket);
    events->has_socket = false;
}

static void events_destroy(struct service *service) {
    struct events *events = service->events;
    if (!events || !events->service) return;
    if (events->wake >= 0) close(events->wake);
    server_event_ring_uninit(&events->ring);
    server_event_lines_uninit(&events->lines);
}

static bool events_want_permits(const struct service *service) {
    return service->settings->events != NULL;
}

#define PERMIT_BIT(kind) (1U << DOORMAN_PERMIT_##kind)

const struct server_part server_part_events = {
    .name = "EVENTS",
    SERVER_PART_STATE(events),
    .check = events_check,
    .listen = events_listen,
    .serve = events_serve,
    .stop = events_stop,
    .destroy = events_destroy,
    .tls_changed = events_set_tls,
    .configured = events_configured,
    .decided = events_on_decided,
    .elected = events_elected,
    .acted = events_on_act,
    .event = events_on_event,
    .permit_event = events_on_permit,
    .wants_permit_events = events_want_permits,
    .permit_events = PERMIT_BIT(GRANTED) | PERMIT_BIT(REFUSED) | PERMIT_BIT(BANNED) |
                     PERMIT_BIT(KEY_EVICTED) | PERMIT_BIT(BAN_EVICTED) | PERMIT_BIT(TIER_ENTERED) |
                     PERMIT_BIT(WAITING) | PERMIT_BIT(WAIT_ENDED) | PERMIT_BIT(WAIT_LEFT) |
                     PERMIT_BIT(HOLD_EXPIRED) | PERMIT_BIT(UNMATCHED) | PERMIT_BIT(RESERVED) |
                     PERMIT_BIT(SETTLED) | PERMIT_BIT(UNSETTLED)};
