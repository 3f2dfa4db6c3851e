/* doorman_server, part EVENTS: what metrics, /v1/status and the status page say of events. This
 * file only reads atomic counters and what never changes. */
#include "events.h"

static bool events_listens(const struct service *service) {
    return service->events && service->events->address[0];
}

static uint64_t events_count(const counter *count) {
    return __atomic_load_n(count, __ATOMIC_RELAXED);
}

static unsigned events_subscribers(const struct service *service) {
    return __atomic_load_n(&service->events->counters.subscribers, __ATOMIC_RELAXED);
}

static void events_metrics(struct service *service, struct text *text) {
    if (!events_listens(service)) return;
    const struct event_counters *counters = &service->events->counters;
    server_metrics_header(text, "events_published_total", "counter",
                          "Events that were given to nng, by kind.");
    for (int i = 0; i < EVENT_KIND_COUNT; i++) {
        server_text_addf(text, "doorman_events_published_total{event=\"%s\"} %" PRIu64 "\n",
                         server_event_names[i], events_count(&counters->published[i]));
    }
    server_metrics_value(text, "events_lost_total", "counter",
                         "Events that came faster than they can be sent, so they were lost. What a "
                         "slow subscriber loses is not counted here.",
                         (double)events_count(&counters->lost));
    server_metrics_value(text, "events_subscribers", "gauge", "Subscribers of events.",
                         (double)events_subscribers(service));
}

static void events_status(struct service *service, struct text *text) {
    if (!events_listens(service)) return;
    server_text_add_json(text, ",\"events\":{\"address\":", service->events->address);
    server_text_addf(text, ",\"subscribers\":%u,\"lost\":%" PRIu64 ",\"sample\":",
                     events_subscribers(service), events_count(&service->events->counters.lost));
    server_text_add_number(text, service->events->lines.sample);
    server_text_add(text, "}");
}

static void events_facts(struct service *service, struct text *text) {
    if (!events_listens(service)) return;
    server_text_add(text, "<div><dt>events</dt><dd>");
    server_text_add_escaped(text, service->events->address, server_escape_html);
    server_text_addf(text, "; %u subscribers</dd></div>", events_subscribers(service));
}

const struct server_part server_part_events_status = {
    .metrics = events_metrics, .status = events_status, .facts = events_facts};
