/* doorman_server, part EVENTS: an event as a line, "TOPIC JSON\n".
 *
 * The topic is the kind, and the resource if there is one: permit.refused.login. In the topic of an
 * act of an administrator, the name of the act replaces the resource. Subscribers filter by the
 * start of the line, so the topic ends with a space, and has none inside: each byte that is no
 * visible ASCII character, and each '%', is written as %XX.
 *
 * A line has two numbers, which show a subscriber how many events it has lost. `seq` counts the
 * events of the stream, and `topic_seq` the events of one topic. The numbers of a topic never
 * decrease, and a gap is never smaller than what was lost:
 *
 *     - an event that came while the ring was full or nobody had subscribed has no line. It may
 *       have had any topic, so it counts for each topic
 *     - the table has room for EVENT_SLOTS topics. A topic that has lost its slot continues behind
 *       the largest number of all topics that have lost their slots */
#include "event_line.h"

#include <math.h>

const char *const server_event_names[EVENT_KIND_COUNT] = {
#define EVENT_NAME(code, name) name,
    EVENT_KINDS(EVENT_NAME)
#undef EVENT_NAME
};

/* The names of the fields that only some kinds have. NULL: the kind lacks the field. */
static const struct line_shape {
    const char *who, *what, *why, *flag;
    const char *numbers[EVENT_NUMBER_MAX];
    bool is_sampled;
} line_shapes[EVENT_KIND_COUNT] = {
    [EVENT_PERMIT_GRANTED] = {.numbers = {"units"}, .is_sampled = true},
    [EVENT_PERMIT_REFUSED] = {.flag = "shadow"},
    [EVENT_PERMIT_UNMATCHED] = {.numbers = {"cost"}},
    [EVENT_PERMIT_TIER] = {.numbers = {"tier"}},
    [EVENT_QUEUE_ENDED] = {.what = "outcome", .numbers = {"waited"}},
    [EVENT_BAN_STARTED] = {.numbers = {"seconds"}},
    [EVENT_HOLD_EXPIRED] = {.numbers = {"units"}},
    [EVENT_RESERVATION_MADE] = {.numbers = {"units"}, .is_sampled = true},
    [EVENT_RESERVATION_SETTLED] = {.flag = "late",
                                   .numbers = {"cost", "returned", "charged"},
                                   .is_sampled = true},
    [EVENT_RESERVATION_ENDED] = {.numbers = {"units", "returned"}},
    [EVENT_KEY_EVICTED] = {.numbers = {"used"}},
    [EVENT_LEASE_GRANTED] = {.who = "holder_id",
                             .flag = "is_server",
                             .numbers = {"has", "wants", "expires_in"},
                             .is_sampled = true},
    [EVENT_LEASE_REFUSED] = {.who = "holder_id",
                             .what = "outcome",
                             .flag = "is_server",
                             .numbers = {NULL, "wants"}},
    [EVENT_LEASE_ENDED] = {.who = "holder_id", .what = "outcome", .numbers = {"had"}},
    [EVENT_LEASE_LOST] = {.numbers = {"had"}},
    [EVENT_MASTERSHIP_GAINED] = {.numbers = {"epoch"}},
    [EVENT_CONFIG_LOADED] = {.what = "hash"},
    [EVENT_CONFIG_REFUSED] = {.why = "error"},
    [EVENT_ADMIN] = {.who = "token",
                     .what = "what",
                     .why = "reason",
                     .numbers = {"audit", "entries"}},
};

/* ---- topics --------------------------------------------------------------------------------- */

/* Appends a resource or the name of an act to a topic. */
static void topic_add(struct text *text, const char *name) {
    char room[4] = {'.'};
    server_text_add_bytes(text, room, 1);
    for (const unsigned char *at = (const unsigned char *)name; *at; at++) {
        if (*at > ' ' && *at < 0x7f && *at != '%') {
            server_text_add_bytes(text, (const char *)at, 1);
        } else {
            snprintf(room, sizeof room, "%%%02X", *at);
            server_text_add_bytes(text, room, 3);
        }
    }
}

/* Returns the slot of a topic. A topic that has none gets one of EVENT_WAYS slots: the one whose
 * last event is the oldest. */
static struct topic_slot *topic_find(struct event_lines *lines, uint64_t hash) {
    struct topic_slot *set = &lines->slots[hash & (EVENT_SLOTS - EVENT_WAYS)], *oldest = set;
    for (size_t i = 0; i < EVENT_WAYS; i++) {
        if (set[i].seq && set[i].hash == hash) return &set[i];
        if (set[i].seq < oldest->seq) oldest = &set[i];
    }
    if (oldest->seq) {
        /* events that were lost since its last event may have had its topic too */
        const uint64_t most = oldest->number + (lines->lost - oldest->lost);
        if (most > lines->evicted) lines->evicted = most;
    }
    *oldest = (struct topic_slot){.hash = hash, .number = lines->evicted, .lost = lines->lost};
    return oldest;
}

/* Returns the number of an event in its topic. */
static uint64_t topic_number(struct event_lines *lines, const struct event *event) {
    const doorman_buffer *topic = &lines->text.buffer;
    const uint64_t hash = server_siphash(lines->secret, topic->text, topic->bytes);
    struct topic_slot *slot = topic_find(lines, hash);
    slot->number += 1 + (lines->lost - slot->lost);
    slot->lost = lines->lost;
    slot->seq = event->seq;
    return slot->number;
}

/* ---- fields --------------------------------------------------------------------------------- */

static void field_text(struct text *text, const char *name, const char *value) {
    if (!name || !value) return;
    server_text_addf(text, ",\"%s\":", name);
    server_text_add_json(text, "", value);
}

static void field_number(struct text *text, const char *name, double value) {
    if (!name || !isfinite(value)) return;
    server_text_addf(text, ",\"%s\":", name);
    server_text_add_number(text, value);
}

/* Adds a key or a holder, which may be the data of a person. */
static void field_person(const struct event_lines *lines, struct text *text, const char *name,
                         const char *value) {
    char hash[17];
    if (!name || !value || lines->keys == EVENT_KEYS_NONE) return;
    if (lines->keys == EVENT_KEYS_HASH && *value) {
        snprintf(hash, sizeof hash, "%016" PRIx64,
                 server_siphash(lines->secret, value, strlen(value)));
        value = hash;
    }
    field_text(text, name, value);
}

static void field_time(struct text *text, int64_t at) {
    const time_t seconds = (time_t)(at / 1000000000);
    char date[32] = "";
    struct tm parts;
    gmtime_r(&seconds, &parts);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
    server_text_addf(text, ",\"at\":\"%s.%06dZ\"", date, (int)(at % 1000000000 / 1000));
}

static void line_add_fields(const struct event_lines *lines, struct text *text,
                            const struct event *event) {
    const struct line_shape *shape = &line_shapes[event->kind];
    const bool is_act = event->kind == EVENT_ADMIN;
    const bool is_person = shape->who && !is_act;
    field_text(text, is_act && event->flag ? "glob" : "resource_id", event->texts[EVENT_RESOURCE]);
    field_person(lines, text, "key", event->texts[EVENT_KEY]);
    field_text(text, "limit", event->texts[EVENT_LIMIT]);
    if (is_person) {
        field_person(lines, text, shape->who, event->texts[EVENT_WHO]);
    } else {
        field_text(text, shape->who, event->texts[EVENT_WHO]);
    }
    field_text(text, shape->what, event->texts[EVENT_WHAT]);
    if (event->reason) {
        field_text(text, "reason", doorman_reason_name((doorman_reason)event->reason));
    }
    /* people write the reason of an act, and errors quote a configuration: keys can be in them */
    if (lines->keys == EVENT_KEYS_PLAIN) field_text(text, shape->why, event->texts[EVENT_WHY]);
    if (event->id) server_text_addf(text, ",\"id\":%" PRIu64, event->id);
    for (int i = 0; i < EVENT_NUMBER_MAX; i++) {
        field_number(text, shape->numbers[i], event->numbers[i]);
    }
    if (shape->flag && event->flag) server_text_addf(text, ",\"%s\":true", shape->flag);
    if (shape->is_sampled) field_number(text, "sample", lines->sample);
}

bool server_event_line_write(struct event_lines *lines, const struct event *event) {
    struct text *text = &lines->text;
    const char *name = server_event_names[event->kind];
    const char *rest =
        event->kind == EVENT_ADMIN ? event->texts[EVENT_WHAT] : event->texts[EVENT_RESOURCE];
    assert(event->seq > lines->seq);
    text->failed = false;
    text->buffer.bytes = 0;
    lines->lost += event->seq - lines->seq - 1;
    lines->seq = event->seq;
    server_text_add(text, name);
    if (rest) topic_add(text, rest);
    if (text->failed) {
        lines->lost++;
        return false;
    }
    const uint64_t number = topic_number(lines, event);
    server_text_addf(text, " {\"event\":\"%s\",\"seq\":%" PRIu64 ",\"topic_seq\":%" PRIu64, name,
                     event->seq, number);
    server_text_addf(text, ",\"stream\":\"%s\"", lines->stream);
    field_text(text, "server", lines->server);
    field_text(text, "node", lines->node);
    field_time(text, event->at);
    line_add_fields(lines, text, event);
    server_text_add(text, "}\n");
    return !text->failed; /* its number is used, so the next event shows the loss */
}

void server_event_lines_uninit(struct event_lines *lines) {
    doorman_buffer_uninit(&lines->text.buffer);
}
