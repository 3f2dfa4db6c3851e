/* Tests the ring of events between two threads of doorman_server, and the numbers in lines. */
#define _GNU_SOURCE
#define DOORMAN_IMPLEMENTATION
#include "../../server/events/event_line.c"
#include "../../server/util/siphash.c"
#include "../../server/events/event_ring.c"
#include "../../server/http/text.c"

#include <time.h>

#include "../test.h"

#define RING_BYTES 16384 /* so that a test fills it soon */

struct world {
    struct event_ring ring;
    struct event_lines lines;
    uint64_t seq;
    uint64_t random;
};

static uint64_t seed_read(void) {
    const char *text = getenv("SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL) * 1000 + (uint64_t)rand();
    print_message("SEED=%" PRIu64 "\n", seed);
    return seed;
}

static void world_setup(struct world *w) {
    assert_true(server_event_ring_init(&w->ring, RING_BYTES));
    w->lines.server = "here";
    w->lines.node = "tree";
    w->lines.sample = 0.5;
    w->lines.secret[0] = 1;
    w->lines.secret[1] = 2;
    w->random = seed_read() | 1;
}

static void world_teardown(struct world *w) {
    server_event_ring_uninit(&w->ring);
    server_event_lines_uninit(&w->lines);
}
FIXTURE(world)

/* Returns a random number below `bound` (xorshift). */
static size_t draw(uint64_t *random, size_t bound) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return (size_t)(*random >> 11) % bound;
}

/* ---- the ring ------------------------------------------------------------------------------- */

/* Makes an event whose texts and numbers are derived from its number.
 *   room   for its texts */
static struct event event_of(uint64_t seq, char room[EVENT_TEXT_COUNT][EVENT_TEXT_MAX + 2]) {
    uint64_t random = seq * UINT64_C(0x9e3779b97f4a7c15) | 1;
    struct event event = {.kind = (int)(seq % EVENT_KIND_COUNT),
                          .flag = seq % 3 == 0,
                          .seq = seq,
                          .at = (int64_t)seq * 7,
                          .numbers = {(double)seq, 1, 2}};
    for (int i = 0; i < EVENT_TEXT_COUNT; i++) {
        size_t bytes = draw(&random, 20) ? draw(&random, 40) : EVENT_TEXT_MAX;
        memset(room[i], 'a' + (int)draw(&random, 26), bytes);
        room[i][bytes] = 0;
        event.texts[i] = draw(&random, 4) ? room[i] : NULL;
    }
    return event;
}

static void expect_event(const struct event *got) {
    char room[EVENT_TEXT_COUNT][EVENT_TEXT_MAX + 2];
    const struct event wanted = event_of(got->seq, room);
    assert_int_equal(got->kind, wanted.kind);
    assert_int_equal(got->flag, wanted.flag);
    assert_true(got->at == wanted.at);
    assert_true(got->numbers[0] == wanted.numbers[0] && got->numbers[2] == wanted.numbers[2]);
    for (int i = 0; i < EVENT_TEXT_COUNT; i++) {
        assert_true(!got->texts[i] == !wanted.texts[i]);
        if (wanted.texts[i]) assert_string_equal(got->texts[i], wanted.texts[i]);
    }
}

TEST_WITH(world, an_event_leaves_the_ring_as_it_came) {
    char room[EVENT_TEXT_COUNT][EVENT_TEXT_MAX + 2];
    struct event got;
    uint64_t pushed = 0, read = 0;
    assert_false(server_event_ring_read(&w->ring, &got));
    for (int round = 0; round < 20000; round++) {
        const struct event event = event_of(pushed + 1, room);
        if (draw(&w->random, 2)) {
            if (server_event_ring_push(&w->ring, &event)) pushed++;
        } else if (server_event_ring_read(&w->ring, &got)) {
            assert_true(got.seq == ++read);
            expect_event(&got);
            server_event_ring_drop(&w->ring);
        } else {
            assert_true(read == pushed);
            assert_true(server_event_ring_is_empty(&w->ring));
        }
    }
    assert_true(read > 1000);
}

TEST_WITH(world, a_full_ring_refuses_and_loses_nothing) {
    char room[EVENT_TEXT_COUNT][EVENT_TEXT_MAX + 2];
    struct event got;
    for (int round = 0; round < 50; round++) {
        uint64_t count = 0;
        struct event event = event_of(1, room);
        while (server_event_ring_push(&w->ring, &event)) event = event_of(++count + 1, room);
        assert_true(count * EVENT_RECORD_MAX >= RING_BYTES / 4);
        for (uint64_t i = 1; i <= count; i++) {
            assert_true(server_event_ring_read(&w->ring, &got));
            assert_true(got.seq == i);
            expect_event(&got);
            server_event_ring_drop(&w->ring);
        }
        assert_false(server_event_ring_read(&w->ring, &got));
    }
}

TEST_WITH(world, a_long_text_is_cut_off) {
    char text[2 * EVENT_TEXT_MAX];
    struct event event = {.seq = 1}, got;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    for (int i = 0; i < EVENT_TEXT_COUNT; i++) event.texts[i] = text;
    assert_true(server_event_ring_push(&w->ring, &event));
    assert_true(server_event_ring_read(&w->ring, &got));
    for (int i = 0; i < EVENT_TEXT_COUNT; i++) {
        assert_int_equal(strlen(got.texts[i]), EVENT_TEXT_MAX);
    }
}

#define EVENTS_OF_THREAD 100000

/* Pushes events. An event that finds no room is lost, as in the server. Only the last event waits
 * for room. Returns how many were lost. */
static void *push_all(void *context) {
    struct event_ring *ring = (struct event_ring *)context;
    char room[EVENT_TEXT_COUNT][EVENT_TEXT_MAX + 2];
    size_t *lost = (size_t *)calloc(1, sizeof *lost);
    for (uint64_t seq = 1; seq < EVENTS_OF_THREAD; seq++) {
        const struct event event = event_of(seq, room);
        if (!server_event_ring_push(ring, &event)) (*lost)++;
    }
    const struct event last = event_of(EVENTS_OF_THREAD, room);
    while (!server_event_ring_push(ring, &last)) continue;
    return lost;
}

TEST_WITH(world, two_threads_see_whole_events_in_their_order) {
    pthread_t thread;
    struct event got;
    void *lost = NULL;
    uint64_t seq = 0, gaps = 0;
    assert_int_equal(pthread_create(&thread, NULL, push_all, &w->ring), 0);
    while (seq < EVENTS_OF_THREAD) {
        if (!server_event_ring_read(&w->ring, &got)) continue;
        assert_true(got.seq > seq);
        gaps += got.seq - seq - 1;
        seq = got.seq;
        expect_event(&got);
        server_event_ring_drop(&w->ring);
    }
    assert_int_equal(pthread_join(thread, &lost), 0);
    assert_true(gaps == *(size_t *)lost);
    free(lost);
}

/* ---- lines ---------------------------------------------------------------------------------- */

/* Writes the line of an event on a resource, and returns it. */
static const char *line(struct world *w, int kind, const char *resource) {
    const struct event event = {.kind = kind,
                                .seq = ++w->seq,
                                .at = INT64_C(1795913348123456789),
                                .texts = {[EVENT_RESOURCE] = resource, [EVENT_KEY] = "bob"}};
    assert_true(server_event_line_write(&w->lines, &event));
    return w->lines.text.buffer.text;
}

static uint64_t number_in(const char *line, const char *name) {
    const char *at = strstr(line, name);
    assert_non_null(at);
    return strtoull(at + strlen(name), NULL, 10);
}

static uint64_t topic_seq(struct world *w, const char *resource) {
    return number_in(line(w, EVENT_PERMIT_REFUSED, resource), "\"topic_seq\":");
}

/* P33 */
TEST_WITH(world, without_plain_keys_no_event_of_any_kind_has_one) {
    static const enum event_keys modes[] = {EVENT_KEYS_HASH, EVENT_KEYS_NONE};
    for (size_t i = 0; i < 2 * EVENT_KIND_COUNT; i++) {
        const int kind = (int)(i / 2);
        struct event event = {.kind = kind,
                              .seq = ++w->seq,
                              .texts = {[EVENT_RESOURCE] = "login",
                                        [EVENT_KEY] = "bob",
                                        [EVENT_WHO] = kind == EVENT_ADMIN ? "token" : "bob:1...",
                                        [EVENT_WHAT] = "what",
                                        [EVENT_WHY] = "key 'bob': a customer"}};
        w->lines.keys = modes[i % 2];
        assert_true(server_event_line_write(&w->lines, &event));
        assert_null(strstr(w->lines.text.buffer.text, "bob"));
    }
}

TEST_WITH(world, a_line_has_its_topic_and_then_json) {
    assert_string_equal(
        line(w, EVENT_PERMIT_REFUSED, "login"),
        "permit.refused.login {\"event\":\"permit.refused\",\"seq\":1,\"topic_seq\":1,"
        "\"stream\":\"\",\"server\":\"here\",\"node\":\"tree\","
        "\"at\":\"2026-11-29T00:49:08.123456Z\",\"resource_id\":\"login\",\"key\":\"bob\"}\n");
}

TEST_WITH(world, a_topic_has_no_space_and_a_resource_stays_as_it_is) {
    const char *text = line(w, EVENT_BAN_STARTED, "a b/\"c\".%\xc3\xa9\n");
    assert_int_equal(strncmp(text, "ban.started.a%20b/\"c\".%25%C3%A9%0A {\"event\"", 43), 0);
    cJSON *json = cJSON_Parse(strchr(text, ' '));
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "resource_id")),
                        "a b/\"c\".%\xc3\xa9\n");
    cJSON_Delete(json);
}

TEST_WITH(world, each_topic_is_counted_by_itself) {
    for (uint64_t i = 1; i < 100; i++) {
        assert_true(topic_seq(w, "a") == i);
        if (i % 2) assert_true(topic_seq(w, "b") == (i + 1) / 2);
    }
}

TEST_WITH(world, what_was_never_seen_is_a_gap_in_each_topic) {
    assert_true(topic_seq(w, "a") == 1);
    assert_true(topic_seq(w, "b") == 1);
    w->seq += 5;
    assert_true(topic_seq(w, "a") == 7);
    assert_true(topic_seq(w, "a") == 8);
    assert_true(topic_seq(w, "b") == 7);
    assert_true(topic_seq(w, "c") == 1);
}

/* A gap in the numbers of a topic is at least as large as what its subscriber has lost, even with
 * more topics than the table has room for. */
TEST_WITH(world, a_gap_of_a_topic_is_never_too_small) {
    enum { TOPICS = 3 * EVENT_SLOTS };
    static uint64_t numbers[TOPICS], lost[TOPICS];
    char resource[32];
    memset(numbers, 0, sizeof numbers);
    memset(lost, 0, sizeof lost);
    for (int i = 0; i < 200000; i++) {
        const size_t topic = draw(&w->random, draw(&w->random, 2) ? TOPICS : 100);
        if (draw(&w->random, 10) == 0) { /* it is lost before it is seen here */
            w->seq++;
            lost[topic]++;
            continue;
        }
        snprintf(resource, sizeof resource, "%zu", topic);
        const uint64_t number = topic_seq(w, resource);
        if (numbers[topic]) assert_true(number - numbers[topic] > lost[topic]);
        assert_true(number > numbers[topic]);
        numbers[topic] = number;
        lost[topic] = 0;
    }
}

TEST_WITH(world, keys_can_be_hashes_or_left_out) {
    char first[64] = "", other[64] = "";
    w->lines.keys = EVENT_KEYS_HASH;
    const char *text = line(w, EVENT_PERMIT_REFUSED, "login");
    assert_null(strstr(text, "bob"));
    assert_int_equal(sscanf(strstr(text, "\"key\":"), "\"key\":\"%63[0-9a-f]\"", first), 1);
    assert_int_equal(strlen(first), 16);
    text = line(w, EVENT_PERMIT_REFUSED, "login");
    assert_non_null(strstr(text, first));
    w->lines.secret[0]++; /* as after a restart */
    text = line(w, EVENT_PERMIT_REFUSED, "login");
    assert_int_equal(sscanf(strstr(text, "\"key\":"), "\"key\":\"%63[0-9a-f]\"", other), 1);
    assert_string_not_equal(first, other);
    w->lines.keys = EVENT_KEYS_NONE;
    assert_null(strstr(line(w, EVENT_PERMIT_REFUSED, "login"), "\"key\""));
}
