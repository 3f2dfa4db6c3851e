/*
 * The world of a story: a client of the library, a clock, and what the client has sent and decided.
 * clients/stories/README.md has the form of the stories. stories_test.c has their steps.
 *
 * If a step does not see what it must see, it describes the difference in `fault`, and the story
 * ends. */
#ifndef STORIES_H
#define STORIES_H

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define START (1000 * SECOND)        /* the time 0 of a story */
#define TOLERANCE (SECOND / 1000000) /* a client may compute a time in another order */
#define SENT_MAX 64
#define CALLS_MAX 64
#define CHANGES_MAX 16
#define TURNS_MAX 20000 /* of a client while one step waits */

typedef struct story_request {
    char address[300], method[32];
    cJSON *message;
    doorman_time at;
    doorman_upstream *upstream;
    uint64_t sequence;
    char name[32]; /* by which a later step names it */
    bool answered;
} story_request;

/* A permit, a settle, a transfer or a seizure of the application. */
typedef struct story_call {
    char name[32];
    const cJSON *items; /* in the story */
    doorman_acquired out;
    doorman_time at; /* of the decision */
    bool decided, seen;
} story_call;

typedef struct story_change {
    doorman_held held;
    doorman_time at;
} story_change;

typedef struct world {
    char fault[1000];
    doorman_client *client;
    doorman_permit_client *permits; /* one of the two is NULL */
    doorman_upstream *upstreams[1 + DOORMAN_PERMIT_LANES_MAX];
    size_t upstream_count;
    doorman_time now;
    story_request sent[SENT_MAX];
    size_t sent_count, read_count; /* `read_count`: how many a step has seen */
    story_call calls[CALLS_MAX];
    size_t call_count;
    story_change changes[CHANGES_MAX];
    size_t change_count, changes_seen;
    const cJSON *step; /* the current one */
} world;

/* ---- reading a story */

static void fail_story(world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail_story(world *w, const char *format, ...) {
    va_list arguments;
    if (w->fault[0]) return;
    va_start(arguments, format);
    vsnprintf(w->fault, sizeof w->fault, format, arguments);
    va_end(arguments);
}

static const cJSON *get(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static double number_of(const cJSON *object, const char *key, double otherwise) {
    const cJSON *value = get(object, key);
    return cJSON_IsNumber(value) ? value->valuedouble : otherwise;
}

static const char *text_of(const cJSON *object, const char *key, const char *otherwise) {
    const cJSON *value = get(object, key);
    return cJSON_IsString(value) ? value->valuestring : otherwise;
}

static bool is_true(const cJSON *object, const char *key) { return cJSON_IsTrue(get(object, key)); }

static doorman_time duration(double seconds) { return (doorman_time)llround(seconds * 1e9); }

static doorman_time duration_of(const cJSON *object, const char *key) {
    return duration(number_of(object, key, 0));
}

static double seconds_of(doorman_time time) { return (double)time / 1e9; }

static size_t name_index(world *w, const char *name, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) return i;
    }
    fail_story(w, "the story has an unknown word: %s", name);
    return 0;
}
#define INDEX_OF(w, name, names) name_index(w, name, names, sizeof(names) / sizeof *(names))

/* Fails if an object of the story has a key that the form does not know. */
static void check_keys(world *w, const cJSON *object, const char *known) {
    const cJSON *field;
    cJSON_ArrayForEach(field, object) {
        char key[64];
        snprintf(key, sizeof key, " %s ", field->string);
        if (!strstr(known, key)) fail_story(w, "the story has an unknown key: %s", field->string);
    }
}

/* ---- what is seen is as it is expected */

static bool numbers_match(double actual, double expected) {
    return fabs(actual - expected) <= 1e-6 + 1e-9 * fabs(expected);
}

static void mismatch(world *w, const char *path, const cJSON *actual, const cJSON *expected) {
    char *is = actual ? cJSON_PrintUnformatted(actual) : NULL;
    char *must = cJSON_PrintUnformatted(expected);
    fail_story(w, "%s is %s, expected %s", path, is ? is : "absent", must);
    cJSON_free(is);
    cJSON_free(must);
}

static void match(world *w, const char *path, const cJSON *actual, const cJSON *expected);

static void match_object(world *w, const char *path, const cJSON *actual, const cJSON *expected) {
    const cJSON *field;
    const cJSON *range = get(expected, "between");
    if (range) {
        double least = cJSON_GetArrayItem(range, 0)->valuedouble;
        double most = cJSON_GetArrayItem(range, 1)->valuedouble;
        if (!cJSON_IsNumber(actual) || actual->valuedouble < least - 1e-6 ||
            actual->valuedouble > most + 1e-6) {
            mismatch(w, path, actual, expected);
        }
        return;
    }
    if (!cJSON_IsObject(actual)) {
        mismatch(w, path, actual, expected);
        return;
    }
    cJSON_ArrayForEach(field, expected) {
        char inner[300];
        snprintf(inner, sizeof inner, "%s.%s", path, field->string);
        match(w, inner, get(actual, field->string), field);
    }
}

/* Compares a value with what the story expects: see "Values" in the README of the stories. */
static void match(world *w, const char *path, const cJSON *actual, const cJSON *expected) {
    bool same = false;
    if (w->fault[0]) return;
    if (cJSON_IsObject(expected)) {
        match_object(w, path, actual, expected);
        return;
    }
    if (cJSON_IsArray(expected) && cJSON_IsArray(actual)) {
        int count = cJSON_GetArraySize(expected);
        if (cJSON_GetArraySize(actual) != count) mismatch(w, path, actual, expected);
        for (int i = 0; i < count && !w->fault[0]; i++) {
            char inner[300];
            snprintf(inner, sizeof inner, "%s[%d]", path, i);
            match(w, inner, cJSON_GetArrayItem(actual, i), cJSON_GetArrayItem(expected, i));
        }
        return;
    }
    if (cJSON_IsNull(expected)) {
        same = !actual;
    } else if (cJSON_IsNumber(expected)) {
        same = cJSON_IsNumber(actual) && numbers_match(actual->valuedouble, expected->valuedouble);
    } else {
        same = actual && cJSON_Compare(actual, expected, true);
    }
    if (!same) mismatch(w, path, actual, expected);
}

/* Compares what a step has seen, and frees it. */
static void match_seen(world *w, const char *path, cJSON *actual, const cJSON *expected) {
    if (expected) match(w, path, actual, expected);
    cJSON_Delete(actual);
}

/* Returns whether a list has an entry with the same resource_id as `entry`. */
static bool has_resource(const cJSON *list, const cJSON *entry) {
    const cJSON *other;
    cJSON_ArrayForEach(other, list) {
        const char *id = text_of(other, "resource_id", "");
        if (strcmp(id, text_of(entry, "resource_id", "?")) == 0) return true;
    }
    return false;
}

/* Brings the entries of a list of `object` into the order of another list, by their resource_id.
 * Entries that are not in the other list come last. */
static void reorder(cJSON *object, const char *key, const cJSON *order) {
    const cJSON *list = get(object, key), *want, *entry;
    if (!cJSON_IsArray(list) || !cJSON_IsArray(order)) return;
    cJSON *sorted = cJSON_CreateArray();
    cJSON_ArrayForEach(want, order) {
        cJSON_ArrayForEach(entry, list) {
            const char *id = text_of(entry, "resource_id", "");
            if (strcmp(id, text_of(want, "resource_id", "?")) != 0) continue;
            cJSON_AddItemToArray(sorted, cJSON_Duplicate(entry, true));
        }
    }
    cJSON_ArrayForEach(entry, list) {
        if (has_resource(order, entry)) continue;
        cJSON_AddItemToArray(sorted, cJSON_Duplicate(entry, true));
    }
    cJSON_ReplaceItemInObjectCaseSensitive(object, key, sorted);
}

/* ---- addresses */

/* Translates an address: the library has the schemes of nng, and stories have the schemes of
 * HTTP. */
static void translate(char *to, size_t bytes, const char *address, bool to_http) {
    static const char *const http[] = {"http://", "https://"}, *const nng[] = {"ws://", "wss://"};
    const char *const *from = to_http ? nng : http, *const *other = to_http ? http : nng;
    for (int i = 0; i < 2; i++) {
        size_t scheme = strlen(from[i]);
        if (strncmp(address, from[i], scheme) != 0) continue;
        snprintf(to, bytes, "%s%s", other[i], address + scheme);
        return;
    }
    snprintf(to, bytes, "%s", address);
}

/* ---- time */

/* Makes the next random number of each upstream 0, because the stories have no jitter. */
static void remove_jitter(world *w) {
    for (size_t i = 0; i < w->upstream_count; i++) {
        w->upstreams[i]->random = (uint64_t)0 - UINT64_C(0x9e3779b97f4a7c15);
    }
}

/* After remove_jitter only the first random number of a call is 0. So this function moves the
 * renewals of further resources to the times that they would have without jitter. */
static void remove_jitter_of_renewals(world *w) {
    doorman__held_lease *held = w->client ? w->client->upstream.first : NULL;
    for (; held; held = held->next) {
        doorman_time exact = held->requested_at + held->refresh_interval;
        doorman_time half = w->client->upstream.sent_at + held->refresh_interval / 2;
        bool answered = held->requested_at == (w->now < half ? w->now : half);
        if (held->state != DOORMAN__HELD_IDLE || !answered || held->renew_at <= exact) continue;
        if (held->request_at == held->renew_at) held->request_at = exact;
        held->renew_at = exact;
        doorman__held_lease_set_timers(&w->client->upstream, held);
        doorman__resource_announce(doorman__resource_of(held));
    }
}

static void keep_request(world *w, doorman_upstream *upstream, const doorman_request *request) {
    doorman_buffer text = {.text = NULL};
    if (w->sent_count == SENT_MAX) {
        fail_story(w, "the client sends more than %d requests", SENT_MAX);
        return;
    }
    story_request *at = &w->sent[w->sent_count++];
    assert_int_equal(doorman_json_request(request, &text), DOORMAN_OK);
    cJSON *message = cJSON_Parse(text.text);
    assert_non_null(message);
    doorman_buffer_uninit(&text);
    snprintf(at->method, sizeof at->method, "%s", message->child->string);
    at->message = cJSON_DetachItemViaPointer(message, message->child);
    cJSON_Delete(message);
    translate(at->address, sizeof at->address, request->address, true);
    at->at = w->now;
    at->upstream = upstream;
    at->sequence = request->sequence;
}

static bool collect_decision(world *w) {
    void *context;
    doorman_acquired out;
    if (!doorman_permit_client_next(w->permits, &context, &out, w->now)) return false;
    story_call *decided = (story_call *)context;
    assert_false(decided->decided);
    decided->out = out;
    decided->at = w->now;
    decided->decided = true;
    return true;
}

static bool collect_change(world *w) {
    doorman_held held;
    if (!doorman_permit_client_next_change(w->permits, &held, w->now)) return false;
    assert_true(w->change_count < CHANGES_MAX);
    w->changes[w->change_count++] = (story_change){held, w->now};
    return true;
}

/* Takes all requests, results and changes that the client has now. */
static void collect(world *w) {
    bool more = true;
    for (int turn = 0; more && !w->fault[0]; turn++) {
        more = false;
        for (size_t i = 0; i < w->upstream_count; i++) {
            doorman_request request;
            remove_jitter(w);
            if (!doorman_upstream_request(w->upstreams[i], &request, w->now)) continue;
            keep_request(w, w->upstreams[i], &request);
            more = true;
        }
        if (w->permits) more = collect_decision(w) || collect_change(w) || more;
        if (turn == TURNS_MAX) fail_story(w, "the client never stops sending");
    }
}

static doorman_time client_due(const world *w) {
    doorman_time due = DOORMAN_NEVER;
    for (size_t i = 0; i < w->upstream_count; i++) {
        doorman_time next = doorman_upstream_due(w->upstreams[i]);
        if (next < due) due = next;
    }
    return due;
}

/* What a step waits for. */
typedef enum story_wait { WAIT_TIME, WAIT_REQUEST, WAIT_CALL, WAIT_CHANGE } story_wait;

static bool wait_is_over(const world *w, story_wait wait, const story_call *call) {
    switch (wait) {
    case WAIT_REQUEST: return w->read_count < w->sent_count;
    case WAIT_CALL: return call->decided;
    case WAIT_CHANGE: return w->changes_seen < w->change_count;
    case WAIT_TIME: break;
    }
    return false;
}

/* Lets time pass until `to`, or until the step has what it waits for. */
static void advance(world *w, doorman_time to, story_wait wait, const story_call *call) {
    for (int turn = 0; !w->fault[0] && !wait_is_over(w, wait, call); turn++) {
        doorman_time due = client_due(w);
        if (due > to) {
            w->now = to > w->now ? to : w->now;
            return;
        }
        if (due > w->now) w->now = due;
        collect(w);
        if (turn == TURNS_MAX) fail_story(w, "the client stays due, and does nothing");
    }
}

/* Lets time pass until the latest time of the step, or until the step has what it waits for.
 * Returns the earliest time. `at` of a step is a time, a list of two times, or absent: now. */
static doorman_time advance_for(world *w, story_wait wait, const story_call *call) {
    const cJSON *at = get(w->step, "at");
    doorman_time first = w->now, last = w->now;
    if (cJSON_IsNumber(at)) first = last = START + duration(at->valuedouble);
    if (cJSON_IsArray(at)) {
        first = START + duration(cJSON_GetArrayItem(at, 0)->valuedouble);
        last = START + duration(cJSON_GetArrayItem(at, 1)->valuedouble);
    }
    if (last < w->now - TOLERANCE) fail_story(w, "the story goes back in time");
    advance(w, wait == WAIT_TIME ? last : last + TOLERANCE, wait, call);
    return first;
}

/* Checks that something did not come too early. */
static void check_time(world *w, const char *what, doorman_time at, doorman_time first) {
    if (at >= first - TOLERANCE) return;
    fail_story(w, "%s came at %.6f s, expected at %.6f s", what, seconds_of(at - START),
               seconds_of(first - START));
}

#endif /* STORIES_H */
