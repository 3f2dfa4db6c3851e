/* Tests the graphs of the status page and their history. The time of the history is a variable. The
 * time of the leases is the clock of the process, and the leases outlive the test. */
#define DOORMAN_IMPLEMENTATION
#include "../../server/http/http.h"

#include "../../server/pages/graph.c"
#include "../../server/pages/history.c"
#include "../../server/pages/limit_history.c"
#include "../../server/util/host.c"
#include "../../server/pages/snapshot.c"
#include "../../server/http/text.c"

#include "../test.h"

/* This replaces the rest of the server. */
bool server_http_is_on(const struct settings *settings) {
    (void)settings;
    return true;
}
enum exit_status server_fatal_error(enum exit_status exit_status, const char *format, ...) {
    fail_msg("%s", format);
    return exit_status;
}
void server_log(const struct settings *settings, enum log_level level, const char *message, ...) {
    (void)settings, (void)level, (void)message;
}
const struct suspect *server_suspect_find(const struct service *service, const char *holder_id,
                                          bool is_server) {
    (void)service, (void)holder_id, (void)is_server;
    return NULL;
}

/* A service whose clients request "db". */
struct world {
    struct settings settings;
    struct service service;
    struct lock_hold longest_hold;
    doorman_config *config;
    struct text text;
    doorman_time now; /* of the history */
};

/* Puts a configuration in the place of the last one. */
static void configure_with(struct world *w, const doorman_template *template_) {
    const doorman_config_options options = {.templates = template_, .template_count = 1};
    doorman_config *config = NULL;
    assert_int_equal(doorman_config_create(&config, &options, NULL), DOORMAN_OK);
    if (w->service.server) {
        assert_int_equal(doorman_server_configure(w->service.server, config, doorman_clock()),
                         DOORMAN_OK);
    }
    doorman_config_destroy(w->config);
    w->config = config;
}

static void configure(struct world *w, double capacity) {
    const doorman_template all = {
        .identifier_glob = "*",
        .capacity = capacity,
        .has_algorithm = true,
        .algorithm = {.lease_length = 3600 * DOORMAN_SECOND, .has_learning_mode_duration = true}};
    configure_with(w, &all);
}

/* Configures a limit that gives each key `amount` permits a month. */
static void configure_limit(struct world *w, const char *name, double amount) {
    const doorman_permit_limit limit = {.name = name,
                                        .kind = DOORMAN_FIXED_WINDOW,
                                        .figures = {.limit = amount, .calendar = DOORMAN_MONTH}};
    const doorman_template all = {.identifier_glob = "*",
                                  .without_capacity = true,
                                  .has_limits = true,
                                  .limits = &limit,
                                  .limit_count = 1};
    configure_with(w, &all);
}

static void world_setup(struct world *w) {
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    doorman_time now = doorman_clock();
    configure(w, 100);
    const doorman_server_options options = {.node = "node", .config = w->config, .seed = {7, 7}};
    assert_int_equal(doorman_server_create(&w->service.server, &options, NULL, now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(w->service.server, &mastership, now), DOORMAN_OK);
    assert_true(server_lock_init(&w->service.lock, LOCK_SERVICE));
    w->settings.http = HTTP_DEFAULT;
    w->service.settings = &w->settings;
    w->service.longest_hold = &w->longest_hold;
    assert_int_equal(history_open(&w->service), CONTINUE);
    assert_int_equal(limit_history_open(&w->service), CONTINUE);
    w->now = 1;
}

static void world_teardown(struct world *w) {
    history_destroy(&w->service);
    limit_history_destroy(&w->service);
    server_lock_uninit(&w->service.lock);
    doorman_server_destroy(w->service.server);
    doorman_config_destroy(w->config);
    doorman_buffer_uninit(&w->text.buffer);
}
FIXTURE(world)

/* Requests a lease of "db". Returns its id. */
static uint64_t request(struct world *w, const char *client, double wants) {
    const doorman_demand demand = {.wants = wants, .subclients = 1, .priority = 1};
    const doorman_capacity_request item = {.resource_id = "db", .wants = &demand, .wants_count = 1};
    const doorman_request request = {
        .method = DOORMAN_GET_CAPACITY, .holder_id = client, .items = &item, .item_count = 1};
    doorman_response response;
    assert_int_equal(
        doorman_server_handle(w->service.server, &request, &response, NULL, doorman_clock()),
        DOORMAN_OK);
    return response.items[0].gets.id;
}

static void release(struct world *w, const char *client, uint64_t id) {
    const doorman_capacity_request item = {.resource_id = "db", .has = {.id = id}};
    const doorman_request request = {
        .method = DOORMAN_RELEASE_CAPACITY, .holder_id = client, .items = &item, .item_count = 1};
    doorman_response response;
    assert_int_equal(
        doorman_server_handle(w->service.server, &request, &response, NULL, doorman_clock()),
        DOORMAN_OK);
    doorman_request none; /* an update removes the resource */
    assert_false(doorman_upstream_request(doorman_server_upstream(w->service.server), &none,
                                          doorman_clock()));
}

static void add_point(struct world *w) {
    history_work(&w->service, w->now);
    w->now += HISTORY_INTERVAL;
}

/* Returns the graph of "db"; valid until the next call. */
static const char *draw_trend(struct world *w) {
    w->text.buffer.bytes = 0;
    server_graph_add_trend(&w->text, &w->service, "db");
    return w->text.buffer.text;
}

static const char *draw_bar(struct world *w, double capacity, double has, double wants) {
    const struct row row = {
        .info = {.capacity = capacity, .has = has, .wants = wants, .divides_capacity = true}};
    w->text.buffer.bytes = 0;
    server_graph_add_bar(&w->text, &row);
    return w->text.buffer.text;
}

static void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("expected '%s' in: %s", part, text);
}

/* ---- bars ----------------------------------------------------------------------------------- */

/* A greedy client hides neither the capacity nor the leases. */
TEST_WITH(world, wants_above_four_times_the_capacity_are_cut_off) {
    const char *bar = draw_bar(w, 100, 100, 100000);
    assert_contains(bar, "<rect class=wants width=1000.0 ");
    assert_contains(bar, "<rect class=has width=250.0 ");
    assert_contains(bar, "<rect class=edge x=247.0 ");
    assert_contains(bar, "<path class=more ");
    assert_contains(bar, "wants 100000");
    assert_null(strstr(draw_bar(w, 100, 100, 400), "class=more"));
    assert_null(strstr(draw_bar(w, 0, 0, 400), "class=more"));
}

TEST_WITH(world, a_bar_is_as_long_as_the_wants) {
    const char *bar = draw_bar(w, 100, 100, 400);
    assert_contains(bar, "<rect class=wants width=1000.0 ");
    assert_contains(bar, "<rect class=has width=250.0 ");
    assert_contains(bar, "<rect class=edge x=247.0 ");
    assert_contains(bar, "<title>has 100, wants 400, capacity 100</title>");
}

TEST_WITH(world, a_bar_names_the_unit) {
    const struct row row = {.info = {.has = 2, .wants = 3}, .unit = "\"><b>q/s"};
    server_graph_add_bar(&w->text, &row);
    assert_contains(w->text.buffer.text,
                    "<title>has 2, wants 3, in &quot;&gt;&lt;b&gt;q/s</title>");
}

TEST_WITH(world, a_small_part_of_a_bar_stays_visible) {
    const char *bar = draw_bar(w, 1e9, 1, 1);
    assert_contains(bar, "<rect class=has width=4.0 ");
    assert_contains(bar, "<rect class=wants width=4.0 ");
}

TEST_WITH(world, a_bar_of_nothing_is_empty) {
    const char *bar = draw_bar(w, 0, 0, 0);
    assert_contains(bar, "<rect class=wants width=0.0 ");
    assert_contains(bar, "<rect class=has width=0.0 ");
    assert_null(strstr(bar, "edge"));
}

/* ---- trends --------------------------------------------------------------------------------- */

/* The capacity falls from 100 to 40 after two points. */
TEST_WITH(world, a_trend_shows_the_capacity_of_then) {
    request(w, "a", 50);
    add_point(w);
    add_point(w);
    configure(w, 40);
    add_point(w);
    const char *trend = draw_trend(w);
    assert_contains(trend, "<path class=limit d='M57,2.0H58V2.0H59V23.6'/>");
    assert_contains(trend, "<polyline class=given points='57,20.0 58,20.0 59,20.0 '/>");
    assert_contains(trend, "<span class=top>100</span>");
    assert_contains(trend, "the last 20 s: has at most 50, wants at most 50, capacity at most 100");
}

TEST_WITH(world, an_axis_ends_at_four_times_the_capacity_and_says_what_is_wanted) {
    request(w, "a", 12500);
    add_point(w);
    add_point(w);
    const char *trend = draw_trend(w);
    assert_contains(trend, "<span class=top>400</span>");
    assert_contains(trend, "<span class=cut>wants to 12.5k</span>");
    assert_contains(trend, "<polyline class=wanted points='58,2.0 59,2.0 '/>");
}

TEST_WITH(world, a_trend_without_two_points_has_only_axes) {
    assert_contains(draw_trend(w), "<title>no history yet</title>");
    request(w, "a", 10);
    add_point(w);
    assert_contains(draw_trend(w), "<title>no history yet</title>");
    assert_null(strstr(draw_trend(w), "polyline"));
}

TEST_WITH(world, a_trend_keeps_its_last_ten_minutes) {
    request(w, "a", 90);
    add_point(w);
    request(w, "b", 1);
    for (int i = 0; i < HISTORY_POINTS; i++) add_point(w);
    struct trend trend = server_history_find(&w->service, "db");
    assert_int_equal(trend.count, HISTORY_POINTS);
    assert_true(trend.wants[0] == 91);
    assert_contains(draw_trend(w), "the last 590 s: ");
}

/* Returns how many rows the metrics have for resources that have lost their holders. */
static size_t count_missing(struct world *w) {
    struct snapshot snapshot = {.now = 0};
    server_for_each_resource(&w->service, server_snapshot_reserve, history_add_row, &snapshot);
    size_t before = snapshot.row_count;
    server_history_add_missing(&w->service, &snapshot, 1000);
    size_t added = snapshot.row_count - before;
    for (size_t i = before; i < snapshot.row_count; i++) assert_true(snapshot.rows[i].is_missing);
    server_snapshot_uninit(&snapshot);
    return added;
}

TEST_WITH(world, a_resource_keeps_its_history_without_holders) {
    uint64_t id = request(w, "a", 90);
    add_point(w);
    add_point(w);
    release(w, "a", id);
    assert_int_equal(count_missing(w), 0); /* no sample has noticed it yet */
    for (int i = 1; i < HISTORY_POINTS; i++) {
        add_point(w);
        assert_int_equal(count_missing(w), 1);
        struct trend trend = server_history_find(&w->service, "db");
        assert_true(trend.has[HISTORY_POINTS - 1 - i] == 90 && trend.has[HISTORY_POINTS - 1] == 0);
    }
    add_point(w);
    assert_int_equal(server_history_find(&w->service, "db").count, 0);
    assert_int_equal(count_missing(w), 0);
}

TEST_WITH(world, a_resource_continues_its_history_with_a_new_holder) {
    uint64_t id = request(w, "a", 90);
    add_point(w);
    release(w, "a", id);
    add_point(w);
    assert_int_equal(count_missing(w), 1);
    request(w, "b", 50);
    assert_int_equal(count_missing(w), 0); /* before the next sample too */
    add_point(w);
    struct trend trend = server_history_find(&w->service, "db");
    assert_int_equal(trend.count, 3);
    assert_true(trend.has[HISTORY_POINTS - 3] == 90 && trend.has[HISTORY_POINTS - 2] == 0 &&
                trend.has[HISTORY_POINTS - 1] == 50);
}

/* ---- limits --------------------------------------------------------------------------------- */

static void acquire(struct world *w, const char *key, int count) {
    const doorman_permit_item item = {.resource_id = "login", .key = key, .cost = 1};
    const doorman_permit_request permit = {.items = &item, .item_count = 1};
    const doorman_request request = {
        .method = DOORMAN_ACQUIRE, .holder_id = "c", .permits = &permit, .permit_count = 1};
    for (int i = 0; i < count; i++) {
        doorman_response response;
        assert_int_equal(
            doorman_server_handle(w->service.server, &request, &response, NULL, doorman_clock()),
            DOORMAN_OK);
    }
}

static void add_limit_point(struct world *w) {
    limit_history_work(&w->service, w->now);
    w->now += HISTORY_INTERVAL;
}

static struct limit_trend find_limit(struct world *w, const char *name) {
    return server_limit_history_find(&w->service, "*", name);
}

/* Returns the graph of a limit; valid until the next call. */
static const char *draw_limit(struct world *w, const char *name, bool is_small) {
    struct limit_trend trend = find_limit(w, name);
    w->text.buffer.bytes = 0;
    server_graph_add_limit(&w->text, &trend, is_small);
    return w->text.buffer.text;
}

/* Twenty permits in ten seconds are two a second. Decisions before the first point of the limit are
 * in no point. */
TEST_WITH(world, a_graph_of_a_limit_shows_what_it_grants_and_refuses_in_a_second) {
    configure_limit(w, "l", 120);
    acquire(w, "ann", 100);
    add_limit_point(w);
    acquire(w, "ann", 40);
    add_limit_point(w);
    acquire(w, "bob", 10);
    add_limit_point(w);
    const char *graph = draw_limit(w, "l", false);
    assert_contains(graph, "the last 10 s: granted at most 2 a second, refused at most 2 a second");
    assert_contains(graph, "<polyline class=refused points='58,2.0 59,38.0 '/>");
    assert_contains(graph, "<polyline class=given points='58,2.0 59,20.0 '/>");
    assert_contains(graph, "<span class=top>2</span>");
    assert_contains(graph, "<span class=from>10 min ago</span>");
    assert_null(strstr(draw_limit(w, "l", true), "10 min ago"));
}

/* An attack on a limit stays visible, although it hides what is granted. */
TEST_WITH(world, a_graph_of_a_limit_cuts_nothing_off) {
    configure_limit(w, "l", 10);
    add_limit_point(w);
    acquire(w, "ann", 10);
    add_limit_point(w);
    acquire(w, "ann", 1000);
    add_limit_point(w);
    const char *graph = draw_limit(w, "l", false);
    assert_contains(graph, "<polyline class=refused points='58,38.0 59,2.0 '/>");
    assert_contains(graph, "<span class=top>100</span>");
    assert_contains(graph, "<span class=cut></span>");
}

TEST_WITH(world, a_graph_of_a_limit_without_two_points_has_only_axes) {
    configure_limit(w, "l", 10);
    assert_contains(draw_limit(w, "l", true), "<title>no history yet</title>");
    add_limit_point(w);
    add_limit_point(w);
    assert_int_equal(find_limit(w, "l").count, 1);
    assert_null(strstr(draw_limit(w, "l", true), "polyline"));
}

TEST_WITH(world, a_limit_keeps_its_last_ten_minutes) {
    configure_limit(w, "l", 10);
    add_limit_point(w);
    acquire(w, "ann", 10);
    add_limit_point(w);
    for (int i = 1; i < HISTORY_POINTS; i++) add_limit_point(w);
    struct limit_trend trend = find_limit(w, "l");
    assert_int_equal(trend.count, HISTORY_POINTS);
    assert_true(trend.granted[0] == 1 && trend.granted[1] == 0);
    add_limit_point(w);
    assert_true(find_limit(w, "l").count == HISTORY_POINTS && find_limit(w, "l").granted[0] == 0);
}

TEST_WITH(world, a_limit_that_goes_away_loses_its_history) {
    configure_limit(w, "old", 10);
    add_limit_point(w);
    add_limit_point(w);
    configure_limit(w, "new", 10);
    add_limit_point(w);
    add_limit_point(w);
    assert_true(find_limit(w, "old").count == 0 && find_limit(w, "new").count == 1);
    configure_limit(w, "old", 10);
    add_limit_point(w);
    assert_true(find_limit(w, "old").count == 0 && find_limit(w, "new").count == 0);
    assert_int_equal(w->service.limit_history->count, 1);
}

TEST_WITH(world, a_process_that_is_not_master_has_no_history_of_limits) {
    configure_limit(w, "l", 10);
    add_limit_point(w);
    add_limit_point(w);
    const doorman_mastership other = {.address = "tcp://there:1"};
    assert_int_equal(doorman_server_set_master(w->service.server, &other, doorman_clock()),
                     DOORMAN_OK);
    add_limit_point(w);
    assert_int_equal(w->service.limit_history->count, 0);
    assert_null(w->service.limit_history->trends);
}

/* A smaller sum than before has started again at 0, for example with a new mastership. */
TEST(a_rate_is_what_was_added_since_the_last_point) {
    assert_true(limit_rate(300, 100, 10 * DOORMAN_SECOND) == 20);
    assert_true(limit_rate(300, 100, 40 * DOORMAN_SECOND) == 5);
    assert_true(limit_rate(50, 100, 10 * DOORMAN_SECOND) == 5);
    assert_true(limit_rate(100, 100, 1) == 0);
}

/* ---- axes ----------------------------------------------------------------------------------- */

TEST(an_axis_ends_at_a_round_number) {
    static const struct {
        double amount, expected;
    } rows[] = {{1, 1},   {1.1, 1.5},  {2.5, 3},    {7, 8},
                {10, 10}, {999, 1000}, {0.45, 0.5}, {45e19, 5e20}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double rounded = round_up(rows[i].amount) / rows[i].expected;
        assert_true(rounded > 1 - 1e-9 && rounded < 1 + 1e-9);
    }
}

TEST_WITH(world, a_short_amount_has_at_most_three_digits) {
    static const struct {
        double amount;
        const char *expected;
    } rows[] = {{0, "0"},       {12.345, "12.3"}, {999, "999"},   {999.7, "1k"},
                {1500, "1.5k"}, {12345, "12.3k"}, {2e6, "2M"},    {3e9, "3G"},
                {5e12, "5T"},   {1e18, "1e+18"},  {999999, "1M"}, {0.5, "0.5"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        w->text.buffer.bytes = 0;
        add_short_amount(&w->text, rows[i].amount);
        assert_string_equal(w->text.buffer.text, rows[i].expected);
    }
}
