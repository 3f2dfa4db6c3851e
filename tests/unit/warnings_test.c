/* The repeated warnings of doorman_server (V6), with the time as a variable. */
#define main server_main
int server_main(int argc, char **argv);
#define DOORMAN_SERVER_WARNINGS
#include "../../doorman_server.c"
#undef main
#include "../../server/log/warnings.c"

#include "server_log.h"

static void add_event(struct world *w, doorman_event_kind kind, const char *holder_id,
                      doorman_time now) {
    const doorman_event event = {kind, "db", holder_id, 1};
    warning_add_event(&w->service, &event, now);
}

static void shared(struct world *w, const char *holder_id, doorman_time now) {
    add_event(w, DOORMAN_EVENT_SHARED_ID, holder_id, now);
}

static void unconfirmed(struct world *w, const char *holder_id, doorman_time now) {
    add_event(w, DOORMAN_EVENT_UNCONFIRMED, holder_id, now);
}

/* Does what the main thread does every second. */
static void update(struct world *w, doorman_time now) { warnings_update(&w->service, now); }

TEST_WITH(world, each_shared_id_is_named_at_once_and_then_once_a_minute) {
    shared(w, "a", 100 * SECOND);
    assert_int_equal(logged(w, " count=1 resource=db holder=a\n"), 1);
    shared(w, "b", 101 * SECOND);
    assert_int_equal(logged(w, " count=1 resource=db holder=b\n"), 1);
    for (int i = 0; i < 5; i++) shared(w, "a", 102 * SECOND);
    shared(w, "b", 103 * SECOND);
    update(w, 160 * SECOND - 1);
    assert_int_equal(logged(w, ""), 0);
    update(w, 160 * SECOND);
    assert_int_equal(logged(w, " count=5 resource=db holder=a\n"), 1);
    update(w, 161 * SECOND);
    assert_int_equal(logged(w, " count=1 resource=db holder=b\n"), 1);
    update(w, 1000 * SECOND);
    assert_int_equal(logged(w, ""), 0);
}

TEST_WITH(world, further_shared_ids_have_one_line_that_names_the_last) {
    char id[] = "a";
    for (; id[0] < 'a' + SHARED_ID_MAX; id[0]++) shared(w, id, 100 * SECOND);
    assert_int_equal(logged(w, "each uses the whole share\" count=1 "), SHARED_ID_MAX);
    shared(w, "x", 101 * SECOND);
    assert_int_equal(logged(w, "further ids, this is the last\" count=1 resource=db holder=x\n"),
                     1);
    shared(w, "y", 102 * SECOND);
    shared(w, "z", 103 * SECOND);
    assert_int_equal(logged(w, ""), 0);
    update(w, 161 * SECOND);
    assert_int_equal(logged(w, "further ids, this is the last\" count=2 resource=db holder=z\n"),
                     1);
}

TEST_WITH(world, an_id_that_is_no_longer_shared_makes_room_for_another) {
    char id[] = "a";
    for (; id[0] < 'a' + SHARED_ID_MAX; id[0]++) shared(w, id, 100 * SECOND);
    for (id[0] = 'b'; id[0] < 'a' + SHARED_ID_MAX; id[0]++) shared(w, id, 120 * SECOND);
    shared(w, "x", 160 * SECOND - 1);
    (void)logged(w, "");
    update(w, 160 * SECOND);
    assert_int_equal(logged(w, "each uses the whole share\" count=1 "), SHARED_ID_MAX - 1);
    shared(w, "x", 160 * SECOND);
    assert_int_equal(logged(w, "each uses the whole share\" count=1 resource=db holder=x\n"), 1);
    shared(w, "a", 160 * SECOND);
    update(w, 220 * SECOND);
    assert_int_equal(logged(w, "further ids, this is the last\" count=1 resource=db holder=a\n"),
                     1);
}

/* A peer over nng, without an address. A test that needs an address sets it in `suspects`. */
static const struct peer some_peer = {.token = "ci"};

TEST_WITH(world, the_line_about_a_suspect_has_its_peers) {
    w->service.sender = (struct sender){.peer = &some_peer, .is_server = true};
    shared(w, "a", 100 * SECOND);
    assert_int_equal(logged(w, " count=1 resource=db holder=a kind=server peer=unknown token=ci\n"),
                     1);
    snprintf(w->service.warnings->suspects[0].peer, PEER_BYTES, "10.0.0.1:1000");
    shared(w, "a", 101 * SECOND);
    update(w, 160 * SECOND);
    assert_int_equal(logged(w, " count=1 resource=db holder=a kind=server peer=unknown "
                               "other_peer=10.0.0.1:1000 token=ci\n"),
                     1);
    w->service.sender = (struct sender){.peer = &some_peer};
    unconfirmed(w, "a", 102 * SECOND); /* a client has an id of another space */
    assert_int_equal(logged(w, "does not confirm its leases, so it holds back capacity after each "
                               "cut\" count=1 resource=db holder=a peer=unknown token=ci\n"),
                     1);
    for (int i = 0; i < 5; i++) unconfirmed(w, "b", 103 * SECOND);
    update(w, 162 * SECOND);
    assert_int_equal(logged(w, " count=5 resource=db holder=b peer=unknown token=ci\n"), 1);
    assert_int_equal(w->service.warnings->suspect_count, 3);
}

TEST_WITH(world, a_new_suspect_takes_the_place_of_the_oldest) {
    char id[8];
    w->service.sender.peer = &some_peer;
    for (int i = 0; i < SUSPECTS_MAX; i++) {
        snprintf(id, sizeof id, "s%d", i);
        unconfirmed(w, id, (100 + i) * SECOND);
    }
    unconfirmed(w, "s0", 200 * SECOND);
    unconfirmed(w, "new", 201 * SECOND);
    assert_non_null(server_suspect_find(&w->service, "s0", false));
    assert_null(server_suspect_find(&w->service, "s1", false));
    assert_non_null(server_suspect_find(&w->service, "s2", false));
    assert_null(server_suspect_find(&w->service, "s2", true));
    assert_string_equal(server_suspect_find(&w->service, "new", false)->token, "ci");
}

/* A line that reports events of the last minute describes the last one of them. */
TEST_WITH(world, a_line_about_several_events_describes_the_last) {
    doorman_event event = {DOORMAN_EVENT_UNMATCHED, "one", "a", 1};
    warning_add_event(&w->service, &event, 100 * SECOND);
    assert_int_equal(logged(w, " count=1 resource=one holder=a\n"), 1);
    warning_add_event(&w->service, &event, 101 * SECOND);
    event = (doorman_event){DOORMAN_EVENT_UNMATCHED, "two", "b", 1};
    warning_add_event(&w->service, &event, 102 * SECOND);
    const char *const pairs[WARNING_PAIR_MAX][2] = {{"code", "NOT_FOUND"}};
    server_log_warning(&w->service, WARNING_MESSAGE_REFUSED, pairs, 103 * SECOND);
    assert_int_equal(logged(w, "a message was refused\" count=1 code=NOT_FOUND\n"), 1);
    update(w, 160 * SECOND);
    assert_int_equal(logged(w, " count=2 resource=two holder=b\n"), 1);
}

/* The line about the end of a problem counts all its events. So no line about them comes later. */
TEST_WITH(world, a_problem_that_has_ended_is_not_logged_any_more) {
    const int kind = WARNING_ETCD_UNREACHABLE;
    const char *const pairs[WARNING_PAIR_MAX][2] = {{"key", "k"}, {"error", "no answer"}};
    for (int i = 0; i < 20; i++) {
        server_log_warning(&w->service, kind, pairs, (100 + i) * SECOND);
    }
    assert_int_equal(logged(w, " count=1 key=k error=\"no answer\"\n"), 1);
    server_end_warning(&w->service, kind);
    update(w, 160 * SECOND);
    update(w, 1000 * SECOND);
    assert_int_equal(logged(w, ""), 0);
    server_log_warning(&w->service, kind, pairs, 1001 * SECOND);
    assert_int_equal(logged(w, " count=1 key=k error=\"no answer\"\n"), 1);
}

static void end_lease(struct world *w, const char *resource_id) {
    const doorman_event event = {DOORMAN_EVENT_LEASE_ENDED, resource_id, "node", 1};
    warnings_on_event(&w->service, &event);
}

/* The holder of these leases is the node itself, so the line does not name it. */
TEST_WITH(world, leases_of_the_node_that_end_together_have_one_line) {
    end_lease(w, "db/orders");
    end_lease(w, "db/order");
    assert_int_equal(logged(w, ""), 0);
    update(w, 100 * SECOND);
    assert_int_equal(logged(w, "level=warning msg=\"leases from the parent have ended, so clients "
                               "of these resources get no capacity\" count=2 "
                               "resources=\"db/orders, db/order\"\n"),
                     1);
    for (int i = 0; i < 3; i++) end_lease(w, "late");
    update(w, 101 * SECOND);
    assert_int_equal(logged(w, ""), 0);
    update(w, 110 * SECOND);
    assert_int_equal(logged(w, " count=3 resources=late\n"), 1);
    update(w, 1000 * SECOND);
    assert_int_equal(logged(w, ""), 0);
}

TEST_WITH(world, the_line_about_very_many_leases_names_the_first) {
    char id[16];
    for (int i = 0; i < 1000; i++) {
        snprintf(id, sizeof id, "db/%d", i);
        end_lease(w, id);
    }
    update(w, 100 * SECOND);
    assert_int_equal(logged(w, " count=1000 resources=\"db/0, db/1, db/2, "), 1);
    for (int i = 0; i < 1000; i++) end_lease(w, "db/again");
    end_lease(w, "db/other");
    update(w, 200 * SECOND);
    assert_int_equal(logged(w, " count=1001 resources=\"db/again, db/other\"\n"), 1);
}

/* Logs a refused peer with this IPv4 address and port. */
static void refuse(struct world *w, uint32_t host, uint16_t port) {
    char peer[PEER_BYTES];
    snprintf(peer, sizeof peer, "%u.%u.%u.%u:%u", host >> 24, host >> 16 & 255, host >> 8 & 255,
             host & 255, (unsigned)port);
    server_unlock(&w->service.lock);
    server_log_peer(&w->service, WARNING_TOKEN, peer, NULL);
    server_lock(&w->service.lock);
}

TEST_WITH(world, a_line_about_peers_counts_their_hosts) {
    refuse(w, 0x0a000001, 1000);
    assert_int_equal(logged(w, " count=1 peer=10.0.0.1:1000 hosts=1\n"), 1);
    for (uint16_t port = 1; port <= 5; port++) refuse(w, 0x0a000002, port);
    refuse(w, 0x0a000003, 6);
    refuse(w, 0x0a000002, 7);
    update(w, doorman_clock() + 60 * SECOND);
    assert_int_equal(logged(w, " count=7 peer=10.0.0.2:7 hosts=2\n"), 1);
    for (uint32_t host = 1; host <= WARNING_HOSTS_MAX; host++) refuse(w, host, 1);
    update(w, doorman_clock() + 200 * SECOND);
    assert_int_equal(logged(w, " count=32 peer=0.0.0.32:1 hosts=32\n"), 1);
    for (uint32_t host = 1; host <= WARNING_HOSTS_MAX + 9; host++) refuse(w, host, 1);
    update(w, doorman_clock() + 400 * SECOND);
    assert_int_equal(logged(w, " count=41 peer=0.0.0.41:1 hosts=\"more than 32\"\n"), 1);
}

/* nng does not report the peers. The server reads the counters of nng from time to time. */
TEST_WITH(world, failed_handshakes_over_nng_are_counted_and_logged_once_a_minute) {
    const counter *count = &w->service.counters.authentication_failures[FAILED_NNG_HANDSHAKE];
    server_unlock(&w->service.lock);
    server_log_nng_handshakes(&w->service, 3);
    server_lock(&w->service.lock);
    assert_int_equal(logged(w, "nng does not report the peers\" count=3\n"), 1);
    server_unlock(&w->service.lock);
    server_log_nng_handshakes(&w->service, 1);
    server_log_nng_handshakes(&w->service, 4);
    server_lock(&w->service.lock);
    assert_int_equal(logged(w, ""), 0);
    update(w, doorman_clock() + 60 * SECOND);
    assert_int_equal(logged(w, "nng does not report the peers\" count=5\n"), 1);
    assert_int_equal(*count, 8);
}

/* Permits come at any rate. A line describes the first event since the last line. */
TEST_WITH(world, events_of_permits_are_logged_at_once_and_then_once_a_minute) {
    doorman_permit_event event = {
        .kind = DOORMAN_PERMIT_UNMATCHED, .resource_id = "Api", .key = ""};
    warnings_on_permit_event(&w->service, &event);
    assert_int_equal(logged(w, "matches\" count=1 resource=Api\n"), 1);
    for (int i = 0; i < 100; i++) {
        event.resource_id = i ? "other" : "Apo";
        warnings_on_permit_event(&w->service, &event);
    }
    event = (doorman_permit_event){
        .kind = DOORMAN_PERMIT_KEY_EVICTED, .resource_id = "r", .key = "k", .limit = "m"};
    warnings_on_permit_event(&w->service, &event); /* the evicted counter was fresh */
    assert_int_equal(logged(w, ""), 0);
    event.amount = 0.25;
    warnings_on_permit_event(&w->service, &event);
    assert_int_equal(logged(w, "starts again\" count=1 limit=m resource=r key=k used=0.25\n"), 1);
    warnings_on_permit_event(&w->service, &event);
    update(w, doorman_clock() + 60 * SECOND);
    assert_int_equal(logged(w, " count=100 resource=Apo\n"), 1);
    update(w, doorman_clock() + 200 * SECOND);
    assert_int_equal(logged(w, ""), 0);
}
