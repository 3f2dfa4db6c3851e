/* doorman_server, part HTTP: writes what is left of the limits after a permit, as fields of HTTP.
 *
 * RateLimit-Policy and RateLimit follow the draft of the IETF (draft-ietf-httpapi-ratelimit-headers
 * 10). Each of the two fields is a list of limits. The first one is the limit that decided: the
 * limit that refuses, or the one with the least units left. Limits in shadow are left out, because
 * a client would obey them. In the list, q is the quota, w is the seconds in which the quota comes
 * back, r is the units that remain, and t is the seconds until more units are available. For the
 * limit that refuses, t is the time of Retry-After, as the draft asks. All seconds are rounded up,
 * and all units are rounded down. A limit of 0 never has units, so it has no t: a client with r=0
 * and t=0 would ask again at once, for ever. */
#include "http.h"

#define LIST_BYTES_MAX 1024         /* of a list of limits, because proxies bound the head */
#define INTEGER_MAX 999999999999999 /* of a structured field (RFC 9651, 3.3.1) */

/* Copies a limit. Its times count from the response, which is later than the decision if the permit
 * had to wait. */
static void limit_fields_copy(struct limit_fields *fields, const doorman_permit *permit,
                              const doorman_permit_detail *detail, bool is_first) {
    struct limit_field *limit = &fields->items[fields->count++];
    const size_t bytes = strnlen(detail->limit, sizeof limit->name - 1);
    memcpy(limit->name, detail->limit, bytes);
    limit->name[bytes] = 0;
    limit->most = detail->most;
    limit->remaining = detail->remaining;
    limit->reset_after = detail->reset_after - (permit->granted ? permit->wait : 0);
    limit->more_after = detail->more_after - (permit->granted ? permit->wait : 0);
    limit->window = detail->window;
    if (is_first && fields->share > 0) limit->remaining = 0; /* what is left is for others */
    if (is_first && fields->has_retry_after) {
        limit->reset_after = limit->more_after = permit->retry_after;
    }
    fields->has_first = fields->has_first || is_first;
}

void server_limit_fields_take(struct limit_fields *fields, const doorman_permit *permit,
                              size_t item_index) {
    bool decides = permit->granted || permit->item_index == item_index;
    const char *first = permit->granted ? permit->items[item_index].limit
                        : decides       ? permit->limit
                                        : NULL;
    fields->count = 0;
    fields->has_first = false;
    fields->has_retry_after = decides && !permit->granted && permit->has_retry_after;
    fields->retry_after = permit->retry_after;
    fields->share = decides && !permit->granted ? permit->share : 0;
    for (int others = 0; others < 2; others++) {
        for (size_t i = 0; i < permit->detail_count; i++) {
            const doorman_permit_detail *detail = &permit->details[i];
            if (detail->item_index != item_index || detail->shadow) continue;
            bool is_first = first && (detail->limit == first || strcmp(detail->limit, first) == 0);
            if (is_first == (others > 0)) continue;
            if (fields->count == DOORMAN_LIMITS_MAX) return;
            limit_fields_copy(fields, permit, detail, is_first);
        }
    }
}

/* The rule that escapes a name in a structured field. The field has only printable characters of
 * ASCII (RFC 9651, 3.3.3). */
static const char *limit_escape_name(char character, char room[8]) {
    unsigned char code = (unsigned char)character;
    if (character == '"' || character == '\\') {
        snprintf(room, 8, "\\%c", character);
    } else if (code < ' ' || code >= 0x7f) {
        snprintf(room, 8, "%%%02X", (unsigned)code);
    } else {
        return NULL;
    }
    return room;
}

long long server_limit_integer(double units) {
    if (!(units > 0)) return 0;
    return units < INTEGER_MAX ? (long long)units : INTEGER_MAX;
}

long long server_limit_seconds(doorman_time duration) {
    return duration > 0 ? (duration - 1) / DOORMAN_SECOND + 1 : 0;
}

long long server_limit_fields_retry(const struct limit_fields *fields) {
    long long seconds = server_limit_seconds(fields->retry_after);
    return seconds > 0 ? seconds : 1;
}

bool server_limit_has_times(const struct limit_field *limit) {
    return limit->more_after > 0 || limit->remaining >= 1;
}

static void limit_add_integer(struct text *text, const char *name, long long value) {
    server_text_add(text, name);
    server_text_add_integer(text, value);
}

/* Adds one member of a list. */
static void limit_fields_add(struct text *text, const struct limit_field *limit, bool is_policy) {
    server_text_add(text, "\"");
    server_text_add_escaped(text, limit->name, limit_escape_name);
    if (!is_policy && !server_limit_has_times(limit)) {
        server_text_add(text, "\";r=0");
    } else if (!is_policy) {
        limit_add_integer(text, "\";r=", server_limit_integer(limit->remaining));
        limit_add_integer(text, ";t=", server_limit_seconds(limit->more_after));
    } else {
        limit_add_integer(text, "\";q=", server_limit_integer(limit->most));
        if (limit->window > 0) {
            limit_add_integer(text, ";w=", server_limit_seconds(limit->window));
        }
    }
}

void server_limit_fields_add_list(struct text *text, const struct limit_fields *fields,
                                  bool is_policy) {
    size_t bytes = 0;
    for (size_t i = 0; i < fields->count; i++) {
        bytes += 3 * strlen(fields->items[i].name) + 64;
        if (i > 0 && bytes > LIST_BYTES_MAX) break;
        if (i > 0) server_text_add(text, ", ");
        limit_fields_add(text, &fields->items[i], is_policy);
    }
}
