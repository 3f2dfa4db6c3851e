/* Tests the thread that forwards messages (N4), without threads and other nodes: a test takes the
 * steps of the thread, and answers its questions in place of the nodes. */
#define _GNU_SOURCE
#define main server_main
int server_main(int argc, char **argv);
#include "../../doorman_server.c"
#undef main

/* Counts the allocations of the files below. The allocation with the number `fails_at` fails; 0:
 * none fails. */
static size_t allocated, fails_at;

static bool allocation_fails(void) { return ++allocated == fails_at; }
static void *may_malloc(size_t bytes) { return allocation_fails() ? NULL : malloc(bytes); }
static void *may_calloc(size_t count, size_t bytes) {
    return allocation_fails() ? NULL : calloc(count, bytes);
}

#define malloc may_malloc
#define calloc may_calloc
#include "../../server/forward/forward_mark.c"
#include "../../server/forward/forward_text.c"
#include "../../server/forward/forward_thread.c"
#include "../../server/util/siphash.c"
#undef malloc
#undef calloc

#include "../test.h"

#define NODES 3 /* this process is the first one */
#define GRANTED "{\"decision\":\"GRANTED\",\"item\":[{\"granted\":1}]}"
#define MOVED "{\"decision\":\"REFUSED\",\"reason\":\"MOVED\",\"valid_for\":0}"

/* A question that a test answers. */
struct asked {
    struct forward_question *question;
    struct asked *next;
    nng_msg *message;
    char answer[2048];
};

struct world {
    struct settings settings;
    struct service service;
    struct shards shards;
    struct forward forward;
    struct asked *asked; /* the last one first */
    size_t sends, alone, flushes, answers, refused;
    bool wants_http;
    char http[64];         /* the last address that was offered for HTTP */
    doorman_time max_wait; /* of the permits that a test asks for */
    char last[512];        /* the last answer; "": NULL */
};

static struct world *here; /* of the test that runs */

/* ---- in place of server/link/ --------------------------------------------------------------- */

struct link *server_link_open(struct link_pool *pool, const char *address) {
    static struct link any;
    assert_true(pool == &here->forward.pool && address[0]);
    return &any;
}

bool server_link_send(struct link *link, struct link_question *question, nng_msg *message,
                      doorman_time timeout, bool is_alone) {
    struct asked *asked = (struct asked *)may_calloc(1, sizeof *asked);
    (void)link;
    assert_true(timeout > 0);
    if (!asked) return false;
    asked->question = (struct forward_question *)question;
    asked->message = message;
    question->started_at = doorman_clock();
    asked->next = here->asked;
    here->asked = asked;
    here->sends++;
    here->alone += is_alone;
    return true;
}

bool server_link_wants_http(const struct link *link) {
    (void)link;
    return here->wants_http;
}

void server_link_open_http(struct link *link, const char *address) {
    (void)link;
    snprintf(here->http, sizeof here->http, "%s", address);
}

bool server_link_has_http(const struct link_pool *pool) {
    (void)pool;
    return false;
}

doorman_time server_link_due(const struct link_pool *pool) {
    (void)pool;
    return DOORMAN_NEVER;
}

void server_link_end(struct link_question *question) { (void)question; }

void server_link_flush(struct link_pool *pool) {
    (void)pool;
    here->flushes++;
}

struct link *server_link_tend(struct link_pool *pool, doorman_time now) {
    (void)pool, (void)now;
    return NULL;
}

void server_link_close(struct link *links) { (void)links; }

void server_link_note_tls(struct link_pool *pool) { (void)pool; }

/* ---- steps ---------------------------------------------------------------------------------- */

static void world_setup(struct world *w) {
    static const char *const addresses[NODES][1] = {{"tcp://a"}, {"tcp://b"}, {"tcp://c"}};
    static const char *const http[2] = {"http://b", "http://b2"};
    const doorman_shard_node nodes[NODES] = {
        {.name = "a", .addresses = addresses[0], .address_count = 1},
        {.name = "b",
         .addresses = addresses[1],
         .address_count = 1,
         .http_addresses = http,
         .http_address_count = 1},
        {.name = "c",
         .addresses = addresses[2],
         .address_count = 1,
         .http_addresses = http,
         .http_address_count = 2}};
    const doorman_shard owners[4] = {{.owner = 1, .target = 1},
                                     {.owner = 2, .target = 2},
                                     {.owner = 1, .target = 1},
                                     {.owner = 2, .target = 2}};
    const doorman_shard_map map = {.shards = {.count = 4, .seed = {1, 2}},
                                   .epoch = 7,
                                   .owners = (doorman_shard *)(uintptr_t)owners,
                                   .nodes = (doorman_shard_node *)(uintptr_t)nodes,
                                   .node_count = NODES};
    w->settings.shards = "map";
    w->service.settings = &w->settings;
    w->service.shards = &w->shards;
    w->service.forward = &w->forward;
    w->service.node = "a";
    w->forward.service = w->forward.pool.service = &w->service;
    w->forward.is_started = true;
    assert_true(server_lock_init(&w->service.lock, LOCK_SERVICE));
    assert_true(w->forward.has_lock = server_lock_init(&w->forward.lock, LOCK_LINKS));
    assert_true(server_condition_init(&w->forward.wake));
    assert_true(server_condition_init(&w->shards.changed));
    assert_int_equal(doorman_shard_map_create(&w->shards.map, &map, NULL), DOORMAN_OK);
    forward_take_map(&w->forward);
    assert_non_null(w->forward.map);
    here = w;
    allocated = fails_at = 0;
}

static void world_teardown(struct world *w) {
    assert_null(w->asked);
    assert_int_equal(w->forward.job_count, 0);
    assert_int_equal(w->forward.byte_count, 0);
    forward_destroy(&w->service);
    doorman_shard_map_destroy(w->shards.map);
    server_lock_uninit(&w->service.lock);
}
FIXTURE(world)

/* Does what the thread does in a turn. */
static void step(struct world *w) {
    server_lock(&w->forward.lock);
    forward_turn(&w->forward);
    server_unlock(&w->forward.lock);
}

/* Answers all questions with one word for each entry, or not at all.
 *   word   NULL: the nodes do not answer */
static void answer(struct world *w, const char *word) {
    while (w->asked) {
        struct asked *asked = w->asked;
        struct forward_question *question = asked->question;
        w->asked = asked->next;
        nng_msg_free(asked->message);
        strcpy(asked->answer, "{\"acquire\":{\"permit\":[");
        for (size_t i = 0; i < question->count; i++) {
            if (i) strcat(asked->answer, ",");
            strcat(asked->answer, word ? word : "");
        }
        strcat(asked->answer, "]}}");
        question->link.text = asked->answer;
        question->link.bytes = strlen(asked->answer);
        question->link.result = word ? 0 : NNG_ETIMEDOUT;
        const struct link_batch batch = {.questions = &question->link};
        forward_take_batch(&w->forward.pool, &batch);
        free(asked);
    }
}

static void take_answer(void *context, const char *text, size_t bytes) {
    struct world *w = (struct world *)context;
    w->answers++;
    w->refused += !text || strstr(text, "UNAVAILABLE");
    snprintf(w->last, sizeof w->last, "%.*s", (int)bytes, text ? text : "");
}

/* Asks for permits, each of one key. Returns what `ask` of struct forward_calls returns. */
static const char *ask(struct world *w, const char *const *keys, size_t count) {
    doorman_permit_item items[4];
    doorman_permit_request permits[4];
    memset(items, 0, sizeof items);
    memset(permits, 0, sizeof permits);
    for (size_t i = 0; i < count; i++) {
        items[i] = (doorman_permit_item){.resource_id = "api", .key = keys[i], .cost = 1};
        permits[i] = (doorman_permit_request){
            .client_id = "c", .items = &items[i], .item_count = 1, .max_wait = w->max_wait};
    }
    const doorman_request request = {
        .method = DOORMAN_ACQUIRE, .holder_id = "c", .permits = permits, .permit_count = count};
    const struct forward_asker asker = {take_answer, w, DOORMAN_SECOND};
    return forward_ask(&w->service, &request, asker);
}

/* Finds a key that a node owns. */
static const char *key_of(const struct world *w, size_t node) {
    static char keys[NODES][16];
    for (int i = 0; i < 100; i++) {
        snprintf(keys[node], sizeof keys[node], "k%d", i);
        const size_t shard = doorman_shard_of(&w->forward.map->shards, "api", keys[node], false);
        if (w->forward.map->owners[shard].owner == node) return keys[node];
    }
    fail();
    return NULL;
}

/* ---- stories -------------------------------------------------------------------------------- */

TEST_WITH(world, a_message_is_split_by_node_and_its_answers_are_merged) {
    const char *const keys[] = {key_of(w, 1), key_of(w, 2), key_of(w, 1)};
    assert_null(ask(w, keys, 3));
    step(w);
    assert_int_equal(w->sends, 2);
    answer(w, GRANTED);
    step(w);
    assert_int_equal(w->answers, 1);
    assert_string_equal(w->last,
                        "{\"acquire\":{\"permit\":[" GRANTED "," GRANTED "," GRANTED "]}}");
}

TEST_WITH(world, messages_of_one_turn_are_sent_at_its_end) {
    const char *const keys[] = {key_of(w, 1)};
    forward_hold();
    for (int i = 0; i < 3; i++) assert_null(ask(w, keys, 1));
    assert_int_equal(w->flushes, 0);
    forward_release(&w->service);
    assert_int_equal(w->flushes, 1);
    assert_null(ask(w, keys, 1)); /* no turn: at once */
    assert_int_equal(w->flushes, 2);
    forward_hold();
    forward_release(&w->service);
    assert_int_equal(w->flushes, 2); /* there was nothing to send */
    assert_int_equal(w->alone, 0);
    answer(w, GRANTED);
    assert_int_equal(w->answers, 4);
}

/* If a node has as many HTTP addresses as other addresses, the addresses at the same position
 * belong to one process. */
TEST_WITH(world, a_link_is_offered_the_http_address_of_its_process) {
    const char *const one[] = {key_of(w, 1)}, *const other[] = {key_of(w, 2)};
    assert_null(ask(w, one, 1));
    assert_string_equal(w->http, "");
    answer(w, GRANTED);
    w->wants_http = true;
    assert_null(ask(w, one, 1));
    assert_string_equal(w->http, "http://b");
    answer(w, GRANTED);
    assert_null(ask(w, other, 1));
    assert_string_equal(w->http, "");
    answer(w, GRANTED);
}

TEST_WITH(world, a_message_whose_permits_may_wait_travels_alone) {
    const char *const keys[] = {key_of(w, 1)};
    w->max_wait = DOORMAN_SECOND;
    assert_null(ask(w, keys, 1));
    assert_int_equal(w->alone, 1);
    answer(w, GRANTED);
}

TEST_WITH(world, a_full_node_refuses_by_name_and_the_others_go_on) {
    const char *const full[] = {key_of(w, 1)}, *const other[] = {key_of(w, 2)};
    for (size_t i = 0; i < FORWARD_NODE_MAX; i++) assert_null(ask(w, full, 1));
    step(w);
    assert_int_equal(w->sends, FORWARD_NODE_MAX);
    assert_int_equal(w->answers, 0);
    assert_null(ask(w, full, 1));
    step(w);
    assert_int_equal(w->answers, 1);
    assert_string_equal(w->last, "{\"error\":{\"code\":\"UNAVAILABLE\",\"message\":\"the node 'b' "
                                 "has too many messages under way\"}}");
    struct forward_figures figures[NODES];
    memset(figures, 0, sizeof figures);
    server_forward_read(&w->service, w->shards.map, figures);
    assert_int_equal(figures[1].full, 1);
    assert_null(ask(w, other, 1));
    step(w);
    assert_int_equal(w->sends, FORWARD_NODE_MAX + 1);
    answer(w, GRANTED);
    step(w);
    assert_int_equal(w->answers, FORWARD_NODE_MAX + 2);
    assert_int_equal(w->refused, 1);
    assert_null(ask(w, full, 1)); /* there is room again */
    step(w);
    answer(w, GRANTED);
    step(w);
    assert_int_equal(w->refused, 1);
}

TEST_WITH(world, too_many_messages_are_refused_before_they_wait) {
    const char *const keys[] = {key_of(w, 1)};
    for (size_t i = 0; i < FORWARD_JOB_MAX; i++) assert_null(ask(w, keys, 1));
    assert_string_equal(ask(w, keys, 1), "too many messages wait for other nodes");
    while (w->answers < FORWARD_JOB_MAX) {
        step(w);
        answer(w, GRANTED);
    }
    assert_null(ask(w, keys, 1));
    step(w);
    answer(w, GRANTED);
    step(w);
}

TEST_WITH(world, a_node_that_says_moved_is_asked_for_a_second_and_not_more) {
    const char *const keys[] = {key_of(w, 1)};
    const doorman_time began = doorman_clock();
    assert_null(ask(w, keys, 1));
    while (w->answers == 0) {
        step(w);
        answer(w, MOVED);
        nng_msleep(2);
        if (doorman_clock() - began > 10 * DOORMAN_SECOND) fail();
    }
    assert_true(doorman_clock() - began >= DOORMAN_SECOND - DOORMAN_SECOND / 100);
    assert_true(w->sends > 3 && w->sends <= 14); /* 20, 40, 80 and then 100 ms apart */
    assert_non_null(strstr(w->last, "MOVED"));
}

TEST_WITH(world, a_node_that_does_not_answer_is_spared_for_a_moment) {
    const char *const keys[] = {key_of(w, 1)};
    assert_null(ask(w, keys, 1));
    for (int i = 0; i < 5 && w->answers == 0; i++) {
        step(w);
        answer(w, NULL);
    }
    assert_int_equal(w->answers, 1);
    assert_non_null(strstr(w->last, "the node 'b' does not answer"));
    const size_t sends = w->sends;
    assert_null(ask(w, keys, 1));
    step(w);
    assert_int_equal(w->answers, 2);
    assert_int_equal(w->sends, sends);
    nng_msleep(1 + (nng_duration)(NODE_PAUSE / (DOORMAN_SECOND / 1000)));
    assert_null(ask(w, keys, 1));
    step(w);
    assert_int_equal(w->sends, sends + 1);
    answer(w, GRANTED);
    step(w);
    assert_non_null(strstr(w->last, "GRANTED"));
}

TEST_WITH(world, an_end_answers_all_and_takes_no_more) {
    const char *const keys[] = {key_of(w, 1), key_of(w, 2)};
    assert_null(ask(w, keys, 1));
    assert_null(ask(w, keys, 2));
    step(w);
    assert_null(ask(w, keys + 1, 1)); /* not sent yet */
    w->forward.pool.stops = true;
    assert_string_equal(ask(w, keys, 1), "too many messages wait for other nodes");
    step(w);
    answer(w, NULL); /* as server_forward_tend does */
    for (int i = 0; i < 5; i++) {
        step(w);
        answer(w, NULL);
    }
    assert_int_equal(w->answers, 3);
    assert_null(forward_main(&w->forward)); /* the thread ends */
    server_shares_memory = false;
}

static void *cjson_malloc(size_t bytes) { return may_malloc(bytes); }

/* Each allocation fails once. The asker gets one answer, or the call says why there is none. */
TEST_WITH(world, every_failed_allocation_still_gives_one_answer) {
    const char *const keys[] = {key_of(w, 1), key_of(w, 2), key_of(w, 1)};
    bool has_failed = true;
    size_t whole = 0;
    cJSON_InitHooks(&(cJSON_Hooks){cjson_malloc, free});
    for (size_t number = 1; has_failed && number < 1000; number++) {
        const size_t answers = w->answers;
        allocated = 0;
        fails_at = number;
        const char *why = ask(w, keys, 3);
        const doorman_time began = doorman_clock();
        while (!why && w->answers == answers) {
            step(w);
            answer(w, GRANTED);
            if (doorman_clock() - began > 10 * DOORMAN_SECOND) fail_msg("never, at %zu", number);
        }
        has_failed = allocated >= number;
        fails_at = 0;
        if (why) assert_string_equal(why, "out of memory");
        assert_int_equal(w->answers, answers + !why);
        assert_int_equal(w->forward.job_count, 0);
        whole += !why && !strstr(w->last, "MOVED") && strstr(w->last, "GRANTED");
    }
    cJSON_InitHooks(NULL);
    assert_false(has_failed);
    assert_true(whole > 0);
    assert_non_null(strstr(w->last, GRANTED "," GRANTED "," GRANTED));
}
