/* Tests section >>permit_handover of doorman_permits.h: the holds of a master that stops as planned
 * (D8). The simulator checks that limits are kept across handovers with all faults. */
#include "unit.h"

#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define START (1000 * SECOND)
#define LIMIT                                                                                      \
    "{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 10, \"time_to_live\": 30}"

/* ---- a master, what it hands over, and the next master -------------------------------------- */

/* A node whose limit has ten units for each key, and lets a hold last for 30 s. */
typedef struct world {
    doorman_config *config, *next_config;
    doorman_server_options options;
    doorman_permits_options permits;
    doorman_server *first, *next;
    unsigned char handed[1 << 14];
    size_t count, room;
    doorman_time now;
    doorman_permit permit;
    doorman_hold hold;
} world;

static bool keep(void *context, const void *more, size_t count) {
    world *w = (world *)context;
    if (count > w->room - w->count) return false;
    memcpy(w->handed + w->count, more, count);
    w->count += count;
    return true;
}

static doorman_config *config_of(const char *limits) {
    char text[1024];
    doorman_config *config = NULL;
    doorman_error error = {0};
    snprintf(text, sizeof text, "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [%s]}]}",
             limits);
    if (doorman_json_config(&config, text, strlen(text), &error) == DOORMAN_OK) return config;
    fail_msg("%s", error.text);
    return NULL;
}

static doorman_server *elected(world *w, const doorman_config *config, uint64_t seed) {
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    doorman_server *server = NULL;
    doorman_server_options options = w->options;
    options.config = config;
    options.seed[0] = seed;
    options.permits = &w->permits;
    assert_int_equal(doorman_server_create(&server, &options, NULL, w->now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(server, &mastership, w->now), DOORMAN_OK);
    return server;
}

/* Starts a world whose first master has learned. */
static void world_start(world *w) {
    *w = (world){.config = config_of(LIMIT), .next_config = config_of(LIMIT), .now = START};
    w->options.node = "root";
    w->room = sizeof w->handed;
    w->first = elected(w, w->config, 1);
    w->now += 1000 * SECOND;
}

static void set_next_limits(world *w, const char *limits) {
    doorman_config_destroy(w->next_config);
    w->next_config = config_of(limits);
}

/* Stops the first master, and two seconds later elects the next one. */
static void hand_over(world *w) {
    w->count = 0;
    assert_int_equal(doorman_server_hand_over(w->first, keep, w, w->now), DOORMAN_OK);
    assert_null(doorman_server_permits(w->first));
    w->now += 2 * SECOND;
    w->next = elected(w, w->next_config, 2);
}

static doorman_status take_over(world *w, doorman_error *error) {
    return doorman_server_take_over(w->next, w->handed, w->count, error, w->now);
}

static void restart(world *w) {
    hand_over(w);
    assert_int_equal(take_over(w, NULL), DOORMAN_OK);
}

static void world_stop(world *w) {
    doorman_server_destroy(w->first);
    doorman_server_destroy(w->next);
    doorman_config_destroy(w->config);
    doorman_config_destroy(w->next_config);
}

/* ---- what clients ask ----------------------------------------------------------------------- */

static doorman_permits *permits_now(const world *w) {
    return doorman_server_permits(w->next ? w->next : w->first);
}

/* Asks for units of the key "k". Returns the id of the hold, or 0. */
static uint64_t acquire(world *w, const char *client, uint64_t request_id, double cost) {
    const doorman_permit_item item = {.resource_id = "r", .key = "k", .cost = cost};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .client_id = client, .request_id = request_id};
    assert_int_equal(doorman_permits_acquire(permits_now(w), &request, &w->permit, NULL, w->now),
                     DOORMAN_OK);
    return w->permit.granted ? w->permit.hold_id : 0;
}

typedef doorman_status hold_function(doorman_permits *permits, const doorman_hold_request *request,
                                     doorman_hold *out, doorman_error *error, doorman_time now);

/* Calls a function on a hold. Returns whether the call has succeeded.
 *   amount   of its item; < 0: none is given */
static bool call(world *w, hold_function *function, doorman_hold_request request, double amount) {
    if (amount >= 0) request.amounts = &amount, request.amount_count = 1;
    assert_int_equal(function(permits_now(w), &request, &w->hold, NULL, w->now), DOORMAN_OK);
    return !w->hold.gone && !w->hold.reason;
}

static bool renew(world *w, const char *client, uint64_t id) {
    const doorman_hold_request request = {.client_id = client, .id = id};
    return call(w, doorman_permits_renew, request, -1);
}

static bool release(world *w, const char *client, uint64_t id, double kept) {
    const doorman_hold_request request = {.client_id = client, .id = id};
    return call(w, doorman_permits_release, request, kept);
}

static bool transfer(world *w, uint64_t id, uint64_t request_id, double amount) {
    const doorman_hold_request request = {.client_id = "a", .id = id, .request_id = request_id};
    return call(w, doorman_permits_transfer, request, amount);
}

static bool seize(world *w, const char *client, uint64_t id, uint64_t request_id) {
    const doorman_hold_request request = {.client_id = client, .id = id, .request_id = request_id};
    return call(w, doorman_permits_seize, request, -1);
}

static size_t hold_count(const world *w) {
    doorman_permits_info info;
    doorman_permits_read(permits_now(w), &info);
    return info.hold_count;
}

/* ---- a planned stop -------------------------------------------------------------------------- */

TEST(new_holds_are_granted_at_once_next_to_those_of_the_last_master) {
    world w;
    world_start(&w);
    uint64_t id = acquire(&w, "a", 1, 4);
    hand_over(&w);
    assert_int_equal(acquire(&w, "b", 1, 1), 0);
    assert_int_equal(w.permit.reason, DOORMAN_REASON_LEARNING); /* as after a crash */
    assert_int_equal(take_over(&w, NULL), DOORMAN_OK);
    assert_int_equal(acquire(&w, "b", 1, 7), 0);
    assert_int_equal(w.permit.reason, DOORMAN_REASON_CONCURRENCY);
    assert_true(acquire(&w, "b", 2, 6));
    assert_true(renew(&w, "a", id));
    assert_exact(w.hold.items[0].amount, 4);
    assert_int_equal(w.hold.expires_in, 30 * SECOND);
    world_stop(&w);
}

/* P8: the holder first releases a part of its hold, and then all of it. */
TEST(a_hold_of_the_last_master_is_released) {
    world w;
    world_start(&w);
    uint64_t id = acquire(&w, "a", 1, 10);
    restart(&w);
    assert_true(release(&w, "a", id, 3));
    assert_true(acquire(&w, "b", 1, 7));
    assert_int_equal(acquire(&w, "b", 2, 1), 0);
    assert_true(release(&w, "a", id, -1));
    assert_true(acquire(&w, "b", 3, 3));
    assert_false(release(&w, "a", id, -1));
    world_stop(&w);
}

/* P8: the holder may use the hold until the end that it knows. */
TEST(a_hold_that_is_not_renewed_ends_after_its_rest) {
    world w;
    world_start(&w);
    (void)acquire(&w, "a", 1, 10);
    w.now += 20 * SECOND;
    restart(&w);
    doorman_time rest = 30 * SECOND + 30 * SECOND / 20 - 20 * SECOND;
    doorman_time end = w.now + rest + rest / 20;
    w.now = end - SECOND / 10;
    assert_int_equal(acquire(&w, "b", 1, 1), 0);
    w.now = end + SECOND / 10;
    assert_true(acquire(&w, "b", 2, 10));
    world_stop(&w);
}

/* P9: the response of the last master was lost, so the client repeats its request. */
TEST(a_repeated_request_gets_the_hold_that_the_last_master_has_granted) {
    world w;
    world_start(&w);
    uint64_t id = acquire(&w, "a", 7, 6);
    restart(&w);
    assert_true(acquire(&w, "a", 7, 6) == id);
    assert_int_equal(hold_count(&w), 1);
    assert_int_equal(acquire(&w, "a", 7, 5), 0);
    assert_int_equal(w.permit.reason, DOORMAN_REASON_REPEATED);
    world_stop(&w);
}

TEST(an_end_that_was_due_is_not_handed_over) {
    world w;
    world_start(&w);
    (void)acquire(&w, "a", 1, 6);
    w.now += 100 * SECOND;
    restart(&w);
    assert_int_equal(hold_count(&w), 0);
    world_stop(&w);
}

/* The client asks for a shorter time to live than the limit has. */
TEST(a_hold_keeps_the_time_to_live_that_its_client_has_asked_for) {
    const doorman_permit_item item = {.resource_id = "r", .key = "k", .cost = 2};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .client_id = "a",
                                            .request_id = 1,
                                            .time_to_live = 8 * SECOND};
    world w;
    world_start(&w);
    assert_int_equal(doorman_permits_acquire(permits_now(&w), &request, &w.permit, NULL, w.now),
                     DOORMAN_OK);
    uint64_t id = w.permit.hold_id;
    restart(&w);
    assert_true(renew(&w, "a", id));
    assert_int_equal(w.hold.expires_in, 8 * SECOND);
    world_stop(&w);
}

/* ---- shards (N4) ----------------------------------------------------------------------------- */

/* The last master stops. The next master divides the keys into eight shards, and owns them all. */
static void hand_over_to_shards(world *w) {
    const doorman_shards shards = {.count = 8, .seed = {1, 2}};
    static const char text[] = "{\"shards\": 8, \"resources\": [{\"identifier_glob\": \"*\", "
                               "\"limits\": [" LIMIT "]}]}";
    if (w->next) {
        doorman_server_destroy(w->first);
        w->first = w->next;
        w->next = NULL;
    } else {
        doorman_config_destroy(w->next_config);
        assert_int_equal(doorman_json_config(&w->next_config, text, strlen(text), NULL),
                         DOORMAN_OK);
    }
    hand_over(w);
    assert_int_equal(doorman_permits_set_shards(permits_now(w), &shards), DOORMAN_OK);
    for (size_t i = 0; i < shards.count; i++) {
        assert_int_equal(doorman_permits_own(permits_now(w), i, true, true, w->now), DOORMAN_OK);
    }
}

/* These holds have ids without a shard, so the holds could not move with their counters. */
TEST(holds_that_were_granted_without_shards_are_learned_with_them) {
    doorman_error error = {0};
    uint64_t last = 0;
    world w;
    world_start(&w);
    for (uint64_t i = 1; i <= 10; i++) last = acquire(&w, "a", i, 1);
    assert_true(last);
    hand_over_to_shards(&w);
    assert_int_equal(take_over(&w, &error), DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "from a time without shards"));
    assert_int_equal(hold_count(&w), 0);
    assert_int_equal(acquire(&w, "b", 1, 1), 0);
    assert_int_equal(w.permit.reason, DOORMAN_REASON_LEARNING);
    w.now += 40 * SECOND; /* the last holder knows by now that its hold has ended */
    assert_true(acquire(&w, "b", 2, 10));
    world_stop(&w);
}

TEST(holds_of_shards_are_taken_over) {
    world w;
    world_start(&w);
    hand_over_to_shards(&w);
    assert_int_equal(take_over(&w, NULL), DOORMAN_OK);
    const uint64_t id = acquire(&w, "a", 1, 4);
    hand_over_to_shards(&w);
    assert_int_equal(take_over(&w, NULL), DOORMAN_OK);
    assert_true(renew(&w, "a", id));
    assert_int_equal(acquire(&w, "b", 1, 7), 0);
    world_stop(&w);
}

/* ---- transfers (P11) ------------------------------------------------------------------------- */

TEST(a_transfer_is_seized_from_the_next_master) {
    world w;
    world_start(&w);
    uint64_t id = acquire(&w, "a", 1, 10);
    assert_true(transfer(&w, id, 2, 4));
    uint64_t transferred = w.hold.id;
    restart(&w);
    assert_int_equal(acquire(&w, "c", 1, 1), 0); /* the transferred units stay taken */
    assert_true(seize(&w, "b", transferred, 1));
    assert_exact(w.hold.items[0].amount, 4);
    assert_true(renew(&w, "a", id));
    assert_exact(w.hold.items[0].amount, 6);
    world_stop(&w);
}

/* The next master knows the used transfer. Otherwise the late copy would take four more units. */
TEST(a_late_copy_of_a_transfer_does_not_take_units_again) {
    world w;
    world_start(&w);
    uint64_t id = acquire(&w, "a", 1, 10);
    assert_true(transfer(&w, id, 2, 4));
    uint64_t transferred = w.hold.id;
    assert_true(seize(&w, "b", transferred, 1));
    uint64_t seized = w.hold.id;
    restart(&w);
    assert_false(transfer(&w, id, 2, 4));
    assert_true(w.hold.id == transferred); /* it was used */
    assert_true(renew(&w, "a", id));
    assert_exact(w.hold.items[0].amount, 6);
    assert_true(seize(&w, "b", transferred, 1)); /* a copy of the seizure too */
    assert_true(w.hold.id == seized);
    world_stop(&w);
}

TEST(a_transfer_of_all_units_is_handed_over_without_its_source) {
    world w;
    world_start(&w);
    uint64_t id = acquire(&w, "a", 1, 10);
    assert_true(transfer(&w, id, 2, -1));
    uint64_t transferred = w.hold.id;
    restart(&w);
    assert_false(renew(&w, "a", id));
    assert_true(seize(&w, "b", transferred, 1));
    assert_exact(w.hold.items[0].amount, 10);
    world_stop(&w);
}

/* ---- another configuration (P15) ------------------------------------------------------------- */

TEST(a_smaller_limit_of_the_next_master_counts_what_is_held) {
    world w;
    world_start(&w);
    set_next_limits(&w, "{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 5}");
    uint64_t id = acquire(&w, "a", 1, 8);
    restart(&w);
    assert_true(release(&w, "a", id, 5));
    assert_int_equal(acquire(&w, "b", 1, 1), 0);
    assert_int_equal(w.permit.reason, DOORMAN_REASON_CONCURRENCY);
    assert_true(release(&w, "a", id, 4));
    assert_true(acquire(&w, "b", 2, 1));
    world_stop(&w);
}

/* All holds are known, so the new limit knows what it has to count. */
TEST(a_limit_that_is_new_need_not_learn) {
    world w;
    world_start(&w);
    set_next_limits(&w, "{\"name\": \"other\", \"kind\": \"CONCURRENCY\", \"limit\": 9, "
                        "\"per\": \"resource\"}");
    (void)acquire(&w, "a", 1, 8);
    restart(&w);
    assert_int_equal(acquire(&w, "b", 1, 2), 0);
    assert_int_equal(w.permit.reason, DOORMAN_REASON_CONCURRENCY);
    assert_true(acquire(&w, "b", 2, 1));
    world_stop(&w);
}

TEST(a_hold_without_a_limit_stays_known_until_its_end) {
    world w;
    world_start(&w);
    set_next_limits(&w, "");
    uint64_t id = acquire(&w, "a", 1, 8);
    restart(&w);
    assert_true(renew(&w, "a", id));
    assert_int_equal(w.hold.expires_in, 30 * SECOND);
    world_stop(&w);
}

/* ---- learning (P16) -------------------------------------------------------------------------- */

TEST(a_master_that_learns_holds_hands_its_learning_over) {
    world w;
    world_start(&w);
    doorman_server_destroy(w.first);
    w.first = elected(&w, w.config, 3);
    w.now += 10 * SECOND;
    hand_over(&w);
    w.now += 5 * SECOND; /* the next one has learned for longer than the last one had left */
    assert_int_equal(take_over(&w, NULL), DOORMAN_OK);
    doorman_time rest = 31 * SECOND + SECOND / 2 - 10 * SECOND;
    w.now += rest;
    assert_int_equal(acquire(&w, "b", 1, 1), 0);
    assert_int_equal(w.permit.reason, DOORMAN_REASON_LEARNING);
    w.now += rest / 20 + SECOND;
    assert_true(acquire(&w, "b", 2, 1));
    world_stop(&w);
}

/* A hold of the last master, whose limits had a longer time to live, may last beyond what this
 * configuration allows. So a server that soon loses and regains its mastership learns for
 * longer. */
TEST(the_longest_time_to_live_of_the_last_master_counts_for_the_next_mastership) {
    const doorman_mastership other = {.address = "tcp://other:1"};
    const doorman_mastership again = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    world w;
    world_start(&w);
    set_next_limits(&w, "{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 10, "
                        "\"time_to_live\": 2}");
    restart(&w);
    assert_int_equal(doorman_server_set_master(w.next, &other, w.now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(w.next, &again, w.now), DOORMAN_OK);
    w.now += 29 * SECOND;
    assert_int_equal(acquire(&w, "b", 1, 1), 0);
    assert_int_equal(w.permit.reason, DOORMAN_REASON_LEARNING);
    world_stop(&w);
}

/* ---- bad input ------------------------------------------------------------------------------- */

/* Hands over a hold, a transfer, and a transfer that was used. */
static void hand_much_over(world *w) {
    uint64_t id = acquire(w, "a", 1, 9);
    assert_true(transfer(w, id, 2, 3));
    assert_true(seize(w, "b", w->hold.id, 1));
    assert_true(transfer(w, id, 3, 2));
    hand_over(w);
}

static void expect_refused(world *w, doorman_status status, const char *text) {
    doorman_error error = {0};
    assert_int_equal(take_over(w, &error), status);
    if (!strstr(error.text, text)) fail_msg("%s, and not: %s", error.text, text);
    assert_int_equal(hold_count(w), 0);
    assert_int_equal(acquire(w, "z", 1, 1), 0);
    assert_int_equal(w->permit.reason, DOORMAN_REASON_LEARNING); /* as without the call */
}

TEST(holds_that_are_cut_off_are_refused_and_the_server_learns) {
    world w;
    world_start(&w);
    hand_much_over(&w);
    size_t all = w.count;
    for (w.count = 0; w.count < all; w.count++) {
        expect_refused(&w, DOORMAN_INVALID_ARGUMENT, "bytes: ");
    }
    assert_int_equal(take_over(&w, NULL), DOORMAN_OK);
    assert_int_equal(hold_count(&w), 4);
    world_stop(&w);
}

/* If one bit has changed, the server refuses the bytes, or can work with what it has read. */
TEST(a_changed_byte_of_a_hold_does_no_harm) {
    world w;
    world_start(&w);
    hand_much_over(&w);
    for (size_t i = 0; i < w.count; i++) {
        unsigned char right = w.handed[i];
        w.handed[i] = (unsigned char)(right ^ (1U << random_below(8)));
        doorman_status status = take_over(&w, NULL);
        w.handed[i] = right;
        assert_true(status == DOORMAN_OK || status == DOORMAN_INVALID_ARGUMENT ||
                    status == DOORMAN_NOT_FOUND || status == DOORMAN_RESOURCE_EXHAUSTED);
        if (status != DOORMAN_OK) assert_int_equal(hold_count(&w), 0);
        doorman_permits_update(permits_now(&w), w.now);
        doorman_server_destroy(w.next);
        w.next = elected(&w, w.next_config, i + 5);
    }
    world_stop(&w);
}

/* The test repeats the permits at the end of the bytes. */
TEST(permits_that_occur_twice_are_refused) {
    world w;
    world_start(&w);
    (void)acquire(&w, "a", 1, 9);
    hand_over(&w);
    size_t end = w.count - 1, start = end;
    while (w.handed[start] != 'P') start--;
    memcpy(w.handed + end, w.handed + start, end - start);
    w.count += end - start;
    w.handed[w.count - 1] = '.';
    expect_refused(&w, DOORMAN_INVALID_ARGUMENT, "permits occur twice");
    world_stop(&w);
}

TEST(a_server_that_has_holds_takes_nothing_over) {
    world w;
    world_start(&w);
    (void)acquire(&w, "a", 1, 9);
    restart(&w);
    assert_int_equal(take_over(&w, NULL), DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(hold_count(&w), 1);
    world_stop(&w);
}

TEST(fewer_holds_of_the_next_master_are_named) {
    world w;
    world_start(&w);
    (void)acquire(&w, "a", 1, 1);
    (void)acquire(&w, "a", 2, 1);
    w.permits.hold_max = 1;
    hand_over(&w);
    expect_refused(&w, DOORMAN_RESOURCE_EXHAUSTED, "hold_max");
    world_stop(&w);
}

TEST(without_room_for_the_bytes_no_hold_is_lost) {
    world w;
    world_start(&w);
    uint64_t id = acquire(&w, "a", 1, 9);
    w.room = 20;
    assert_int_equal(doorman_server_hand_over(w.first, keep, &w, w.now), DOORMAN_UNAVAILABLE);
    assert_true(renew(&w, "a", id));
    world_stop(&w);
}

TEST(without_memory_no_hold_is_taken_over) {
    size_t blocks = memory_blocks(), n = 0;
    doorman_status status = DOORMAN_OK;
    world w;
    world_start(&w);
    hand_much_over(&w);
    do { /* it also succeeds if the failed allocation is one that can be made later */
        memory_fails_at(++n);
        status = take_over(&w, NULL);
        (void)memory_works();
        assert_true(status == DOORMAN_OK || status == DOORMAN_OUT_OF_MEMORY);
        if (status != DOORMAN_OK) assert_int_equal(hold_count(&w), 0);
    } while (status != DOORMAN_OK);
    assert_true(n > 5);
    assert_int_equal(hold_count(&w), 4);
    world_stop(&w);
    assert_int_equal(memory_blocks(), blocks);
}
