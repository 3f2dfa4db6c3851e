/* Tests section >>handover of doorman.h: a master that stops as planned (D8) or whose mastership
 * has ended (D7), and the next one. The simulator checks T7 across handovers with all faults. */
#include "unit.h"

#include <string.h>

#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#define SECOND DOORMAN_SECOND
#define START (1000 * SECOND)

/* ---- a master, what it hands over, and the next master -------------------------------------- */

typedef struct bytes {
    unsigned char *at;
    size_t count, room; /* room: `write` fails when it is full */
} bytes;

static bool keep(void *context, const void *more, size_t count) {
    bytes *kept = context;
    if (count > kept->room - kept->count) return false;
    memcpy(kept->at + kept->count, more, count);
    kept->count += count;
    return true;
}

static bytes bytes_of(size_t room) {
    bytes made = {.at = malloc(room + 1), .room = room};
    assert_non_null(made.at);
    return made;
}

static doorman_config *config_of(double capacity, const char *glob) {
    doorman_template settings = {.identifier_glob = glob, .capacity = capacity};
    const doorman_config_options options = {.templates = &settings, .template_count = 1};
    doorman_config *config = NULL;
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    return config;
}

static doorman_server *server_of(const doorman_server_options *options, uint64_t seed,
                                 doorman_time now) {
    doorman_server *server = NULL;
    doorman_server_options own = *options;
    own.seed[0] = seed;
    assert_int_equal(doorman_server_create(&server, &own, NULL, now), DOORMAN_OK);
    return server;
}

static void elect(doorman_server *server, doorman_time now) {
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    assert_int_equal(doorman_server_set_master(server, &mastership, now), DOORMAN_OK);
}

/* Asks for the resource "db" as a holder. Returns the item of the response. */
static doorman_capacity_response ask(doorman_server *server, const char *holder, double wants,
                                     const doorman_lease *has, doorman_time now) {
    const doorman_demand demand = {wants, 1, 0};
    doorman_capacity_request item = {.resource_id = "db", .wants = &demand, .wants_count = 1};
    if (has) item.has = *has;
    if (has) item.outstanding = has->capacity;
    const doorman_request request = {
        .method = DOORMAN_GET_CAPACITY, .holder_id = holder, .items = &item, .item_count = 1};
    doorman_response response = {.is_master = false};
    assert_int_equal(doorman_server_handle(server, &request, &response, NULL, now), DOORMAN_OK);
    assert_true(response.is_master);
    assert_int_equal(response.item_count, 1);
    return response.items[0];
}

static double sum_of(doorman_server *server, doorman_time now) {
    doorman_server_resource found;
    return doorman_server_find(server, "db", &found, now) ? found.committed : -1;
}

/* The root `first` has a capacity of 100, and has learned. Its holders a and b have 50 each. */
typedef struct world {
    doorman_config *config;
    doorman_server_options options;
    doorman_server *first, *next; /* next: master after hand_over */
    doorman_lease a, b;
    bytes handed;
    doorman_time now;
    int ends;     /* calls of on_mastership_end */
    bool is_deaf; /* the listener hands nothing over */
} world;

static void world_start(world *w) {
    *w = (world){.config = config_of(100, "*"), .now = START, .handed = bytes_of(1 << 20)};
    w->options = (doorman_server_options){.node = "root", .config = w->config};
    w->first = server_of(&w->options, 1, w->now);
    elect(w->first, w->now);
    w->now += 1000 * SECOND;
    w->a = ask(w->first, "a", 80, NULL, w->now).gets;
    w->now += SECOND;
    for (int i = 0; i < 4; i++) {
        w->b = ask(w->first, "b", 80, i ? &w->b : NULL, w->now).gets;
        w->now += 10 * SECOND;
        w->a = ask(w->first, "a", 80, &w->a, w->now).gets;
    }
    assert_about(w->a.capacity, 50);
    assert_about(w->b.capacity, 50);
    w->next = server_of(&w->options, 2, w->now);
}

static void hand_over(world *w) {
    assert_int_equal(doorman_server_hand_over(w->first, keep, &w->handed, w->now), DOORMAN_OK);
    w->now += 2 * SECOND;
    elect(w->next, w->now);
}

static doorman_status take_over(world *w, size_t count, doorman_error *error) {
    return doorman_server_take_over(w->next, w->handed.at, count, error, w->now);
}

static void world_stop(world *w) {
    doorman_server_destroy(w->first);
    doorman_server_destroy(w->next);
    doorman_config_destroy(w->config);
    free(w->handed.at);
}

/* ---- a mastership that ends by itself -------------------------------------------------------- */

/* D7: the listener hands over what the server is about to forget, unless is_deaf is set. */
static void on_end(void *context, doorman_server *server, doorman_time now) {
    world *w = context;
    w->handed.count = 0;
    w->ends++;
    if (w->is_deaf) return;
    assert_int_equal(doorman_server_hand_over(server, keep, &w->handed, now), DOORMAN_OK);
    assert_int_equal(doorman_server_hand_over(server, keep, &w->handed, now), DOORMAN_UNAVAILABLE);
}

/* Starts a world whose first server has a listener. The holder a has 100. */
static void world_listen(world *w) {
    world_start(w);
    doorman_server_destroy(w->first);
    w->options.on_mastership_end = on_end;
    w->options.context = w;
    w->first = server_of(&w->options, 1, w->now);
    elect(w->first, w->now);
    w->now += 1000 * SECOND;
    w->a = ask(w->first, "a", 100, NULL, w->now).gets;
    assert_about(w->a.capacity, 100);
}

static void elect_until(doorman_server *server, doorman_time until, doorman_time now) {
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = until};
    assert_int_equal(doorman_server_set_master(server, &mastership, now), DOORMAN_OK);
}

/* Checks that the listener was called once. Then makes the first server master again, and lets it
 * take over the bytes in w->handed. */
static void expect_memory_stands(world *w) {
    assert_int_equal(w->ends, 1);
    assert_true(sum_of(w->first, w->now) < 0); /* it has forgotten */
    elect(w->first, w->now);
    assert_true(doorman_server_learns_until(w->first, w->now) > w->now);
    assert_int_equal(
        doorman_server_take_over(w->first, w->handed.at, w->handed.count, NULL, w->now),
        DOORMAN_OK);
    assert_int_equal(doorman_server_learns_until(w->first, w->now), 0);
    assert_about(sum_of(w->first, w->now), 100);
    assert_int_equal(ask(w->first, "b", 30, NULL, w->now).outcome, DOORMAN_GRANTED);
    assert_int_equal(w->ends, 1);
}

/* D7. */
TEST(a_mastership_whose_time_has_passed_can_be_handed_over) {
    world w;
    world_listen(&w);
    elect_until(w.first, w.now + SECOND, w.now);
    w.now += SECOND - 1;
    assert_about(sum_of(w.first, w.now), 100);
    assert_int_equal(w.ends, 0);
    w.now += 1;
    assert_true(sum_of(w.first, w.now) < 0);
    expect_memory_stands(&w);
    world_stop(&w);
}

/* D7. */
TEST(a_mastership_that_the_caller_ends_can_be_handed_over) {
    world w;
    world_listen(&w);
    elect_until(w.first, 0, w.now);
    expect_memory_stands(&w);
    elect_until(w.first, 0, w.now);
    assert_int_equal(w.ends, 2);
    elect_until(w.first, 0, w.now);
    assert_int_equal(w.ends, 2); /* it was not master */
    world_stop(&w);
}

/* D7: one call can notice that a mastership is over, and also begin the next mastership. */
TEST(a_mastership_that_is_renewed_too_late_is_a_new_one) {
    for (int deaf = 0; deaf < 2; deaf++) {
        world w;
        world_listen(&w);
        w.is_deaf = deaf;
        elect_until(w.first, w.now + SECOND, w.now);
        w.now += 2 * SECOND;
        elect(w.first, w.now);
        assert_int_equal(w.ends, 1);
        assert_true(doorman_server_learns_until(w.first, w.now) > w.now);
        const doorman_status status =
            doorman_server_take_over(w.first, w.handed.at, w.handed.count, NULL, w.now);
        assert_int_equal(status, deaf ? DOORMAN_INVALID_ARGUMENT : DOORMAN_OK);
        assert_int_equal(doorman_server_learns_until(w.first, w.now) == 0, !deaf);
        world_stop(&w);
    }
}

/* D8: a server that has handed over for a planned stop does not call its listener. */
TEST(a_planned_stop_does_not_end_a_mastership_twice) {
    world w;
    world_listen(&w);
    assert_int_equal(doorman_server_hand_over(w.first, keep, &w.handed, w.now), DOORMAN_OK);
    elect_until(w.first, 0, w.now);
    assert_int_equal(w.ends, 0);
    world_stop(&w);
}

/* ---- a planned stop -------------------------------------------------------------------------- */

TEST(the_next_master_serves_a_new_holder_at_once) {
    world w;
    world_start(&w);
    hand_over(&w);
    assert_int_equal(ask(w.next, "c", 30, NULL, w.now).outcome, DOORMAN_TRY_LATER); /* it learns */
    doorman_server_destroy(w.next);
    w.next = server_of(&w.options, 3, w.now);
    elect(w.next, w.now);
    assert_int_equal(take_over(&w, w.handed.count, NULL), DOORMAN_OK);
    assert_int_equal(doorman_server_learns_until(w.next, w.now), 0);
    assert_about(sum_of(w.next, w.now), 100);
    doorman_capacity_response c = ask(w.next, "c", 30, NULL, w.now);
    assert_int_equal(c.outcome, DOORMAN_GRANTED);
    assert_exact(c.gets.capacity, 0); /* a and b still have all of it */
    world_stop(&w);
}

/* R4: a holder that names its lease of the last master gets a smaller lease, and confirms it. */
TEST(holders_confirm_leases_of_the_last_master) {
    world w;
    world_start(&w);
    hand_over(&w);
    assert_int_equal(take_over(&w, w.handed.count, NULL), DOORMAN_OK);
    (void)ask(w.next, "c", 80, NULL, w.now);
    w.now += 10 * SECOND;
    w.a = ask(w.next, "a", 80, &w.a, w.now).gets;
    assert_about(w.a.capacity, 100.0 / 3);
    w.a = ask(w.next, "a", 80, &w.a, w.now + SECOND).gets;
    w.now += 10 * SECOND;
    doorman_capacity_response c = ask(w.next, "c", 80, NULL, w.now);
    assert_about(c.gets.capacity, 100 - 50 - 100.0 / 3);
    world_stop(&w);
}

/* D8: the next master adds the drift (5 %) once more to the time that a lease has left. */
TEST(a_lease_that_is_not_renewed_ends_after_its_rest) {
    world w;
    world_start(&w);
    doorman_time granted_at = w.now; /* to a */
    w.now += 30 * SECOND;
    hand_over(&w);
    assert_int_equal(take_over(&w, w.handed.count, NULL), DOORMAN_OK);
    doorman_time rest = granted_at + 63 * SECOND - (w.now - 2 * SECOND); /* S8 */
    doorman_time end = w.now + rest + rest / 20;
    assert_int_equal(ask(w.next, "c", 80, NULL, end - SECOND / 10).gets.capacity, 50);
    assert_int_equal(ask(w.next, "d", 80, NULL, end + SECOND).outcome, DOORMAN_GRANTED);
    doorman_server_resource found;
    assert_true(doorman_server_find(w.next, "db", &found, end + SECOND));
    assert_int_equal(found.holder_count, 2); /* c and d */
    world_stop(&w);
}

TEST(a_server_that_has_handed_over_is_master_only_after_it_has_heard_that_it_is_not) {
    const doorman_mastership none = {.address = "tcp://other:1"};
    world w;
    world_start(&w);
    hand_over(&w);
    const doorman_request request = {.method = DOORMAN_DISCOVERY};
    doorman_response response;
    elect(w.first, w.now);
    assert_int_equal(doorman_server_handle(w.first, &request, &response, NULL, w.now), DOORMAN_OK);
    assert_false(response.is_master);
    assert_int_equal(doorman_server_set_master(w.first, &none, w.now), DOORMAN_OK);
    elect(w.first, w.now);
    assert_int_equal(doorman_server_handle(w.first, &request, &response, NULL, w.now), DOORMAN_OK);
    assert_true(response.is_master);
    world_stop(&w);
}

TEST(a_master_that_learns_hands_its_learning_over) {
    world w;
    world_start(&w);
    doorman_server_destroy(w.first);
    w.first = server_of(&w.options, 4, w.now);
    elect(w.first, w.now);
    doorman_time until = doorman_server_learns_until(w.first, w.now);
    assert_true(until > w.now);
    hand_over(&w);
    assert_int_equal(take_over(&w, w.handed.count, NULL), DOORMAN_OK);
    assert_true(doorman_server_learns_until(w.next, w.now) > until);
    assert_int_equal(ask(w.next, "c", 30, NULL, w.now).outcome, DOORMAN_TRY_LATER);
    world_stop(&w);
}

/* ---- another configuration ------------------------------------------------------------------- */

/* R8: the last master kept no record of resources without a template, so the next one learns. */
TEST(a_template_that_the_last_master_had_not_learns) {
    world w;
    world_start(&w);
    doorman_config *config = config_of(100, "d?");
    assert_int_equal(doorman_server_configure(w.next, config, w.now), DOORMAN_OK);
    hand_over(&w);
    assert_int_equal(take_over(&w, w.handed.count, NULL), DOORMAN_OK);
    assert_true(doorman_server_learns_until(w.next, w.now) > 0);
    assert_about(sum_of(w.next, w.now), 100); /* but "db" had a template, so all of it is known */
    assert_int_equal(ask(w.next, "c", 30, NULL, w.now).outcome, DOORMAN_GRANTED);
    world_stop(&w);
    doorman_config_destroy(config);
}

/* G5. */
TEST(leases_of_a_resource_without_a_template_are_dropped) {
    world w;
    world_start(&w);
    doorman_config *config = config_of(100, "other");
    assert_int_equal(doorman_server_configure(w.next, config, w.now), DOORMAN_OK);
    hand_over(&w);
    assert_int_equal(take_over(&w, w.handed.count, NULL), DOORMAN_OK);
    assert_exact(sum_of(w.next, w.now), -1);
    world_stop(&w);
    doorman_config_destroy(config);
}

/* T7: the leases together exceed the new capacity, so they are cut, and no lease grows. */
TEST(a_smaller_capacity_of_the_next_master_is_a_cut) {
    world w;
    world_start(&w);
    doorman_config *config = config_of(40, "*");
    assert_int_equal(doorman_server_configure(w.next, config, w.now), DOORMAN_OK);
    hand_over(&w);
    assert_int_equal(take_over(&w, w.handed.count, NULL), DOORMAN_OK);
    doorman_lease a = ask(w.next, "a", 80, &w.a, w.now).gets;
    assert_about(a.capacity, 20);
    assert_int_equal(a.reason, DOORMAN_LEASE_CUT);
    assert_exact(ask(w.next, "c", 80, NULL, w.now).gets.capacity, 0);
    world_stop(&w);
    doorman_config_destroy(config);
}

/* ---- bad input ------------------------------------------------------------------------------- */

static void expect_refused(world *w, size_t count, doorman_status status, const char *text) {
    doorman_error error = {0};
    assert_int_equal(take_over(w, count, &error), status);
    if (!strstr(error.text, text)) fail_msg("%s, and not: %s", error.text, text);
    assert_exact(sum_of(w->next, w->now), -1);
    assert_true(doorman_server_learns_until(w->next, w->now) > w->now); /* as without the call */
}

TEST(bytes_that_are_cut_off_are_refused_and_the_server_learns) {
    world w;
    world_start(&w);
    hand_over(&w);
    for (size_t count = 0; count < w.handed.count; count++) {
        expect_refused(&w, count, DOORMAN_INVALID_ARGUMENT, "bytes: ");
    }
    w.handed.at[w.handed.count] = 0;
    expect_refused(&w, w.handed.count + 1, DOORMAN_INVALID_ARGUMENT, "go on after the end");
    assert_int_equal(take_over(&w, w.handed.count, NULL), DOORMAN_OK);
    world_stop(&w);
}

/* The bytes begin with the version, the node, and how long older leases last. */
TEST(a_wrong_time_in_refused_bytes_does_not_prolong_the_learning) {
    world w;
    world_start(&w);
    hand_over(&w);
    w.handed.at[8 + 2 + sizeof "root" + 6] = 1; /* 2^48 ns, which is 78 hours */
    expect_refused(&w, w.handed.count - 1, DOORMAN_INVALID_ARGUMENT, "too early");
    assert_true(doorman_server_learns_until(w.next, w.now) < w.now + 100 * SECOND);
    world_stop(&w);
}

/* If one bit has changed, the server refuses the bytes, or takes them over and can answer. */
TEST(a_changed_byte_does_no_harm) {
    world w;
    world_start(&w);
    hand_over(&w);
    for (size_t i = 0; i < w.handed.count; i++) {
        unsigned char right = w.handed.at[i];
        w.handed.at[i] = (unsigned char)(right ^ (1U << random_below(8)));
        doorman_status status = take_over(&w, w.handed.count, NULL);
        w.handed.at[i] = right;
        if (status == DOORMAN_OK) {
            (void)ask(w.next, "a", 80, &w.a, w.now);
            doorman_server_destroy(w.next);
            w.next = server_of(&w.options, i + 5, w.now);
            elect(w.next, w.now);
        } else { /* the name of the node may be the part that has changed */
            assert_true(status == DOORMAN_INVALID_ARGUMENT || status == DOORMAN_NOT_FOUND);
        }
    }
    world_stop(&w);
}

/* A lease without time left has ended. At time 0 its end would be 0, so it would be in no list. */
TEST(a_lease_that_has_ended_is_refused) {
    static const unsigned char start[] = {'E', 1, 0, 'a', 0};
    world w;
    world_start(&w);
    hand_over(&w);
    size_t at = 0;
    while (memcmp(w.handed.at + at, start, sizeof start) != 0) at++;
    memset(w.handed.at + at + sizeof start + 1 + 8, 0, 8); /* behind the kind and the lease id */
    expect_refused(&w, w.handed.count, DOORMAN_INVALID_ARGUMENT, "a lease is not valid");
    doorman_server_destroy(w.next);
    w.next = server_of(&w.options, 2, w.now = 0);
    elect(w.next, w.now);
    expect_refused(&w, w.handed.count, DOORMAN_INVALID_ARGUMENT, "a lease is not valid");
    world_stop(&w);
}

TEST(bytes_of_another_node_or_version_are_refused) {
    world w;
    world_start(&w);
    hand_over(&w);
    w.handed.at[7]++;
    expect_refused(&w, w.handed.count, DOORMAN_INVALID_ARGUMENT, "another version");
    w.handed.at[7]--;
    w.handed.at[10] ^= 1; /* a character of "root" */
    expect_refused(&w, w.handed.count, DOORMAN_NOT_FOUND, "another node");
    world_stop(&w);
}

TEST(a_server_that_is_not_master_or_has_leases_takes_nothing_over) {
    world w;
    world_start(&w);
    assert_int_equal(doorman_server_hand_over(w.next, keep, &w.handed, w.now), DOORMAN_UNAVAILABLE);
    assert_int_equal(take_over(&w, 0, NULL), DOORMAN_INVALID_ARGUMENT);
    hand_over(&w);
    assert_int_equal(take_over(&w, w.handed.count, NULL), DOORMAN_OK);
    assert_int_equal(take_over(&w, w.handed.count, NULL), DOORMAN_INVALID_ARGUMENT);
    assert_about(sum_of(w.next, w.now), 100);
    world_stop(&w);
}

TEST(a_smaller_limit_of_the_next_master_is_named) {
    world w;
    world_start(&w);
    doorman_server_destroy(w.next);
    w.options.holder_max = 1;
    w.next = server_of(&w.options, 3, w.now);
    hand_over(&w);
    expect_refused(&w, w.handed.count, DOORMAN_RESOURCE_EXHAUSTED, "holder_max");
    world_stop(&w);
}

TEST(a_store_without_room_changes_nothing) {
    world w;
    world_start(&w);
    w.handed.room = 20;
    assert_int_equal(doorman_server_hand_over(w.first, keep, &w.handed, w.now),
                     DOORMAN_UNAVAILABLE);
    assert_about(ask(w.first, "a", 80, &w.a, w.now).gets.capacity, 50);
    world_stop(&w);
}

TEST(without_memory_nothing_is_taken_over) {
    size_t blocks = memory_blocks(), n = 0;
    world w;
    world_start(&w);
    hand_over(&w);
    doorman_status status = DOORMAN_OK;
    do {
        memory_fails_at(++n);
        status = take_over(&w, w.handed.count, NULL);
        assert_true(status == DOORMAN_OK || status == DOORMAN_OUT_OF_MEMORY);
        if (status != DOORMAN_OK) assert_exact(sum_of(w.next, w.now), -1);
    } while (!memory_works());
    assert_int_equal(status, DOORMAN_OK);
    assert_true(n > 3);
    assert_about(sum_of(w.next, w.now), 100);
    world_stop(&w);
    assert_int_equal(memory_blocks(), blocks);
}

/* ---- a node with a parent -------------------------------------------------------------------- */

/* Lets a node ask its parent once. */
static void renew(doorman_server *node, doorman_server *parent, doorman_time now) {
    doorman_request request;
    doorman_response response;
    doorman_upstream *upstream = doorman_server_upstream(node);
    assert_true(doorman_upstream_request(upstream, &request, now));
    assert_int_equal(doorman_server_handle(parent, &request, &response, NULL, now), DOORMAN_OK);
    assert_int_equal(doorman_upstream_response(upstream, request.sequence, &response, now),
                     DOORMAN_OK);
}

TEST(a_node_knows_its_holders_and_grants_when_its_parent_has_answered) {
    static const char *const parents[] = {"tcp://root:1"};
    world w;
    world_start(&w);
    doorman_server_destroy(w.first);
    w.first = server_of(&w.options, 9, START);
    elect(w.first, START);
    const doorman_server_options leaf_options = {
        .node = "leaf", .parents = parents, .parent_count = 1};
    doorman_server *leaf = server_of(&leaf_options, 5, w.now);
    elect(leaf, w.now);
    (void)ask(leaf, "x", 60, NULL, w.now);
    renew(leaf, w.first, w.now);
    doorman_lease x = ask(leaf, "x", 60, NULL, w.now + SECOND).gets;
    assert_about(x.capacity, 60);
    x.node = leaf_options.node;
    w.now += 5 * SECOND;
    assert_int_equal(doorman_server_hand_over(leaf, keep, &w.handed, w.now), DOORMAN_OK);
    doorman_server_destroy(leaf);
    leaf = server_of(&leaf_options, 6, w.now);
    elect(leaf, w.now);
    assert_int_equal(doorman_server_take_over(leaf, w.handed.at, w.handed.count, NULL, w.now),
                     DOORMAN_OK);
    assert_int_equal(ask(leaf, "x", 60, &x, w.now).outcome, DOORMAN_TRY_LATER);
    renew(leaf, w.first, w.now);
    assert_about(ask(leaf, "x", 60, &x, w.now + SECOND).gets.capacity, 60);
    assert_int_equal(ask(leaf, "y", 10, NULL, w.now + SECOND).outcome, DOORMAN_GRANTED);
    doorman_server_destroy(leaf);
    world_stop(&w);
}
