/* Tests section >>overload of doorman.h: capacity that follows what overloaded servers report. The
 * comment that opens the section defines the rule H11. */
#include "unit.h"

#include <math.h>
#include <string.h>

#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#define SECOND DOORMAN_SECOND
#define REFRESH (16 * SECOND)       /* the default refresh interval */
#define HALF_LOST 1000, 500, 500, 0 /* arrived, finished, refused, late */
#define ALL_WELL 1000, 1000, 0, 0

/* ---- a root with one resource, holders, and servers that report ---- */

typedef struct holder {
    char id[16], node[16];
    double wants;
    doorman_lease has;
    doorman_time end;
} holder;

typedef struct world {
    doorman_config *config;
    doorman_server *server, *child; /* child: NULL, or a node below the server */
    doorman_time now;
    holder holders[4];
    size_t cuts;
    doorman_error error;
} world;

static void count_cuts(void *context, const doorman_event *event) {
    world *w = context;
    if (event->kind != DOORMAN_EVENT_OVERLOADED) return;
    assert_string_equal(event->resource_id, "db");
    w->cuts++;
}

static doorman_status config_of(doorman_config **out, double capacity, doorman_overload overload,
                                doorman_algorithm algorithm, doorman_error *error) {
    algorithm.has_learning_mode_duration = true;
    const doorman_template all = {.identifier_glob = "*",
                                  .capacity = capacity,
                                  .overload = overload,
                                  .has_algorithm = true,
                                  .algorithm = algorithm};
    const doorman_config_options options = {.templates = &all, .template_count = 1};
    return doorman_config_create(out, &options, error);
}

static doorman_config *usual_config(double capacity, double capacity_min) {
    doorman_config *config = NULL;
    const doorman_overload overload = {SECOND / 10, capacity_min};
    const doorman_algorithm algorithm = {.reserve = 0};
    assert_int_equal(config_of(&config, capacity, overload, algorithm, NULL), DOORMAN_OK);
    return config;
}

static void become_master(doorman_server *server, doorman_time now) {
    const doorman_mastership mastership = {.address = "tcp://here:1", .until = DOORMAN_NEVER};
    assert_int_equal(doorman_server_set_master(server, &mastership, now), DOORMAN_OK);
}

static doorman_server *server_of(world *w, const char *node, const char *parent) {
    const char *const parents[] = {parent};
    const doorman_server_options options = {.node = node,
                                            .config = parent ? NULL : w->config,
                                            .parents = parents,
                                            .parent_count = parent ? 1 : 0,
                                            .seed = {7, 8},
                                            .on_event = count_cuts,
                                            .context = w};
    doorman_server *server = NULL;
    assert_int_equal(doorman_server_create(&server, &options, &w->error, w->now), DOORMAN_OK);
    become_master(server, w->now);
    return server;
}

static world *start(double capacity, double capacity_min) {
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->now = 100000 * SECOND;
    w->config = usual_config(capacity, capacity_min);
    w->server = server_of(w, "root", NULL);
    for (size_t i = 0; i < 4; i++) snprintf(w->holders[i].id, sizeof w->holders[i].id, "c%zu", i);
    return w;
}

static void stop(world *w) {
    doorman_server_destroy(w->child);
    doorman_server_destroy(w->server);
    doorman_config_destroy(w->config);
    free(w);
}

/* A holder renews its lease. Returns its new capacity. */
static double renew(world *w, size_t index) {
    holder *h = &w->holders[index];
    const doorman_demand demand = {h->wants, 1, 1};
    if (w->now >= h->end) h->has.id = 0;
    h->has.expires_in = h->has.id ? h->end - w->now : 0;
    const doorman_capacity_request item = {
        .resource_id = "db", .has = h->has, .wants = &demand, .wants_count = 1};
    const doorman_request request = {
        .method = DOORMAN_GET_CAPACITY, .holder_id = h->id, .items = &item, .item_count = 1};
    doorman_response response;
    doorman_server *server = w->child ? w->child : w->server;
    assert_int_equal(doorman_server_handle(server, &request, &response, &w->error, w->now),
                     DOORMAN_OK);
    assert_int_equal(response.item_count, 1);
    if (response.items[0].outcome != DOORMAN_GRANTED) return 0;
    h->has = response.items[0].gets;
    snprintf(h->node, sizeof h->node, "%s", h->has.node);
    h->has.node = h->node;
    h->end = w->now + h->has.expires_in;
    return h->has.capacity;
}

static doorman_server_resource read_resource(const world *w) {
    doorman_server_resource out;
    assert_true(doorman_server_find(w->server, "db", &out, w->now));
    return out;
}

static double capacity_of(const world *w) { return read_resource(w).capacity; }

/* Lets the server do the work that is due. A root never has a request. */
static void work(const world *w) {
    doorman_request request;
    assert_false(doorman_upstream_request(doorman_server_upstream(w->server), &request, w->now));
}

/* Sends a report of one refresh interval. Returns the target in the response. */
static doorman_time report(world *w, double arrived, double finished, double refused, double late) {
    const doorman_capacity_request item = {.resource_id = "db",
                                           .overload = {REFRESH, arrived, finished, refused, late}};
    const doorman_request request = {
        .method = DOORMAN_REPORT_OVERLOAD, .holder_id = "server", .items = &item, .item_count = 1};
    doorman_response response;
    doorman_server *server = w->child ? w->child : w->server;
    assert_int_equal(doorman_server_handle(server, &request, &response, &w->error, w->now),
                     DOORMAN_OK);
    assert_int_equal(response.item_count, 1);
    assert_string_equal(response.items[0].resource_id, "db");
    return response.items[0].overload_target;
}

/* Starts a world in which four holders together have leased `leased` for four refresh intervals. */
static world *start_leased(double capacity, double capacity_min, double leased) {
    world *w = start(capacity, capacity_min);
    for (size_t i = 0; i < 4; i++) w->holders[i].wants = leased / 4;
    for (size_t round = 0; round < 4; round++, w->now += REFRESH) {
        for (size_t i = 0; i < 4; i++) assert_about(renew(w, i), leased / 4);
    }
    return w;
}

/* ---- configuration and input ---- */

TEST(wrong_settings_are_refused_by_name) {
    const struct {
        const char *text;
        doorman_overload overload;
        doorman_kind kind;
    } rows[] = {{"overload.target: must be more", {-1, 0}, DOORMAN_FAIR_SHARE},
                {"overload.target: must be more", {DOORMAN_NEVER, 0}, DOORMAN_FAIR_SHARE},
                {"overload.capacity_min: must be", {SECOND, 101}, DOORMAN_FAIR_SHARE},
                {"overload.capacity_min: must be", {SECOND, -1}, DOORMAN_FAIR_SHARE},
                {"overload.capacity_min: must be", {SECOND, NAN}, DOORMAN_FAIR_SHARE},
                {"overload.target: is missing", {0, 10}, DOORMAN_FAIR_SHARE},
                {"overload.target: must be 0", {SECOND, 0}, DOORMAN_STATIC_SHARE},
                {"overload.target: must be 0", {SECOND, 0}, DOORMAN_NO_ALGORITHM}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        doorman_config *config = NULL;
        doorman_error error = {0};
        const doorman_algorithm algorithm = {.kind = rows[i].kind};
        assert_int_equal(config_of(&config, 100, rows[i].overload, algorithm, &error),
                         DOORMAN_INVALID_ARGUMENT);
        assert_memory_equal(error.text, "templates[0].", 13);
        assert_memory_equal(error.text + 13, rows[i].text, strlen(rows[i].text));
    }
}

TEST(wrong_reports_are_refused_by_name) {
    const struct {
        const char *text;
        doorman_overload_report report;
    } rows[] = {{"interval: must be more", {0, 1, 1, 0, 0}},
                {"interval: must be", {-1, 1, 1, 0, 0}},
                {"interval: must be", {DOORMAN_NEVER, 1, 1, 0, 0}},
                {"arrived: must be", {SECOND, NAN, 1, 0, 0}},
                {"finished: must be", {SECOND, 1, 2e15, 0, 0}},
                {"refused: must be", {SECOND, 1, 1, -1, 0}},
                {"late: must be", {SECOND, 1, 1, 0, 2}},
                {"late: must be", {SECOND, 1, 1, 0, NAN}}};
    world *w = start_leased(100, 0, 80);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const doorman_capacity_request item = {.resource_id = "db", .overload = rows[i].report};
        const doorman_request request = {.method = DOORMAN_REPORT_OVERLOAD,
                                         .holder_id = "server",
                                         .items = &item,
                                         .item_count = 1};
        doorman_response response;
        assert_int_equal(doorman_server_handle(w->server, &request, &response, &w->error, w->now),
                         DOORMAN_INVALID_ARGUMENT);
        assert_memory_equal(w->error.text, "items[0].overload.", 18);
        assert_memory_equal(w->error.text + 18, rows[i].text, strlen(rows[i].text));
    }
    assert_exact(capacity_of(w), 100);
    stop(w);
}

TEST(without_a_target_reports_have_no_effect) {
    world *w = start_leased(100, 0, 80);
    doorman_config *config = NULL;
    const doorman_algorithm algorithm = {.reserve = 0};
    assert_int_equal(config_of(&config, 100, (doorman_overload){0, 0}, algorithm, NULL),
                     DOORMAN_OK);
    assert_int_equal(report(w, HALF_LOST), SECOND / 10);
    assert_true(capacity_of(w) < 100);
    assert_int_equal(doorman_server_configure(w->server, config, w->now), DOORMAN_OK);
    doorman_config_destroy(w->config);
    w->config = config;
    assert_exact(capacity_of(w), 100);
    assert_int_equal(report(w, HALF_LOST), 0);
    assert_exact(capacity_of(w), 100);
    stop(w);
}

/* ---- cuts ---- */

/* The reports are on both sides of each limit of the rule. */
TEST(a_resource_is_overloaded_beyond_each_limit) {
    const struct {
        double arrived, finished, refused, late;
        bool overloaded;
    } rows[] = {{19, 0, 19, 0, false},       {20, 10, 10, 0, true},      {1000, 950, 50, 0, false},
                {1000, 949, 51, 0, true},    {1000, 900, 0, 450, false}, {1000, 900, 0, 451, true},
                {1000, 1000, 0, 1000, true}, {0, 0, 0, 0, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        world *w = start_leased(100, 0, 80);
        report(w, rows[i].arrived, rows[i].finished, rows[i].refused, rows[i].late);
        double cut = 0.97 * 80 * rows[i].finished / rows[i].arrived;
        assert_about(capacity_of(w), rows[i].overloaded ? cut : 100);
        assert_int_equal(w->cuts, rows[i].overloaded);
        stop(w);
    }
}

/* A cut uses the mean of the leases in the time of the reports. So a second report about the same
 * time does not cut again. */
TEST(a_second_report_of_the_same_time_does_not_cut_again) {
    world *w = start_leased(100, 0, 80);
    report(w, HALF_LOST);
    assert_about(capacity_of(w), 0.97 * 80 / 2);
    for (int i = 0; i < 10; i++) report(w, HALF_LOST);
    assert_about(capacity_of(w), 0.97 * 80 / 2);
    assert_int_equal(w->cuts, 1);
    stop(w);
}

/* The reports cover three intervals: the leases were 80 for two, and 40 for the third. */
TEST(the_mean_of_the_leases_is_that_of_the_time_of_the_reports) {
    world *w = start_leased(100, 0, 80);
    report(w, ALL_WELL);
    for (size_t i = 0; i < 4; i++) renew(w, i);
    w->now += REFRESH;
    for (size_t i = 0; i < 4; i++) w->holders[i].wants = 10;
    for (size_t i = 0; i < 4; i++) assert_about(renew(w, i), 10);
    w->now += REFRESH;
    for (size_t i = 0; i < 4; i++) renew(w, i);
    report(w, 10000, 2000, 8000, 0);
    /* three intervals: two with 80, one with 40 */
    assert_near(capacity_of(w), 0.97 * (80 + 80 + 40) / 3 * 3000 / 11000, 1e-6);
    stop(w);
}

/* A server that catches up finishes more requests than arrive. */
TEST(more_may_finish_than_arrive) {
    world *w = start_leased(100, 0, 60);
    report(w, 1000, 1500, 100, 0);
    assert_about(capacity_of(w), 0.97 * 60 * 1.5);
    stop(w);
}

TEST(the_capacity_stays_within_its_bounds) {
    world *w = start_leased(100, 30, 80);
    report(w, 1000, 0, 1000, 0);
    assert_exact(capacity_of(w), 30);
    stop(w);
}

/* Reports count for two refresh intervals, and for up to a quarter of an interval more. */
TEST(old_reports_do_not_count) {
    for (int quarters = 7; quarters <= 9; quarters++) {
        world *w = start_leased(100, 0, 80);
        report(w, 1000, 950, 50, 0); /* not overloaded */
        w->now += quarters * REFRESH / 4;
        const double counts = quarters < 9 ? 1000 : 0;
        assert_exact(read_resource(w).overload.arrived, counts);
        stop(w);
    }
}

/* T7: a cut ends no lease that is in force. Other holders get more only when their leases fit. */
TEST(leases_in_force_never_exceed_the_capacity_before_the_cut) {
    world *w = start_leased(100, 0, 100);
    report(w, HALF_LOST);
    assert_about(capacity_of(w), 48.5);
    w->holders[0].wants = 1000;
    for (int i = 0; i < 400; i++, w->now += SECOND) {
        double sum = 0;
        renew(w, random_below(4));
        work(w);
        for (size_t k = 0; k < 4; k++) {
            if (w->now < w->holders[k].end) sum += w->holders[k].has.capacity;
        }
        assert_true(sum <= 100 * (1 + 1e-9));
        assert_exact(read_resource(w).overshoot, 0);
        if (i > 70 && i < 75) assert_true(sum <= capacity_of(w) + 1e-6);
    }
    stop(w);
}

/* ---- growth ---- */

/* Reports the same in each interval, and lets the server work. */
static void pass_intervals(world *w, int count, double refused) {
    for (int i = 0; i < count; i++) {
        w->now += REFRESH;
        work(w);
        report(w, 1000, 1000 - refused, refused, 0);
        for (size_t k = 0; k < 4; k++) renew(w, k);
    }
}

TEST(the_capacity_comes_back_in_steps_that_grow) {
    static const double steps[] = {.5, .5, .5, .5, .5, .5, .5, .5, .5,
                                   .5, 1,  2,  4,  8,  10, 10, 10, 10};
    world *w = start_leased(100, 0, 100);
    report(w, HALF_LOST);
    double wanted = 48.5;
    assert_about(capacity_of(w), wanted);
    w->now += REFRESH - 1;
    work(w);
    assert_about(capacity_of(w), wanted); /* one refresh interval has not passed */
    w->now += 1;
    work(w);
    assert_about(capacity_of(w), wanted); /* the report still counts: overloaded */
    for (size_t k = 0; k < 4; k++) renew(w, k);
    w->now += REFRESH;
    for (size_t k = 0; k < 4; k++) renew(w, k);
    work(w);
    assert_about(capacity_of(w), wanted); /* the report counts for the last time */
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        w->now += REFRESH;
        for (size_t k = 0; k < 4; k++) renew(w, k);
        work(w);
        wanted = fmin(wanted + steps[i], 100);
        assert_near(capacity_of(w), wanted, 1e-9);
    }
    assert_exact(capacity_of(w), 100);
    stop(w);
}

TEST(it_does_not_grow_while_the_resource_is_overloaded) {
    world *w = start_leased(100, 0, 100);
    report(w, HALF_LOST);
    for (size_t k = 0; k < 4; k++) w->holders[k].wants = 100;
    double least = 100;
    for (int i = 0; i < 20; i++) {
        pass_intervals(w, 1, 60);
        assert_true(capacity_of(w) <= 48.5 + 1e-6);
        least = fmin(least, capacity_of(w));
    }
    assert_true(least < 40);   /* it is still overloaded, so it is cut again */
    pass_intervals(w, 30, 10); /* 1 % are refused, and not more */
    assert_exact(capacity_of(w), 100);
    stop(w);
}

/* With 5 % refused, the resource is only nearly overloaded. */
TEST(the_steps_stay_small_while_the_resource_is_nearly_overloaded) {
    world *w = start_leased(100, 0, 100);
    report(w, HALF_LOST);
    pass_intervals(w, 3, 0);
    double before = capacity_of(w);
    pass_intervals(w, 20, 50);
    assert_near(capacity_of(w), before + 20 * 0.5, 1e-9);
    pass_intervals(w, 10, 0); /* the small steps count, so larger steps follow at once */
    assert_true(capacity_of(w) > before + 30);
    pass_intervals(w, 1, 50);
    before = capacity_of(w);
    pass_intervals(w, 1, 50);
    assert_near(capacity_of(w), fmin(before + 0.5, 100), 1e-9);
    stop(w);
}

/* A server that nobody has called for a day makes all steps in one call. */
TEST(a_late_call_makes_all_steps) {
    world *w = start_leased(100, 0, 100);
    report(w, 1000, 1, 999, 0);
    w->now += 24 * 3600 * SECOND;
    renew(w, 0);
    assert_exact(capacity_of(w), 100);
    stop(w);
}

TEST(the_server_is_due_when_a_step_is_due) {
    world *w = start_leased(100, 0, 100);
    report(w, HALF_LOST);
    for (int i = 0; i < 4 * 16 * 10; i++) {
        doorman_time due = doorman_upstream_due(doorman_server_upstream(w->server));
        if (due == DOORMAN_NEVER) break;
        w->now = doorman__later(w->now + SECOND / 10, due);
        for (size_t k = 0; k < 4; k++) {
            if (w->now + 10 * SECOND >= w->holders[k].end) renew(w, k);
        }
        work(w);
    }
    assert_exact(capacity_of(w), 100);
    stop(w);
}

/* ---- what a change of configuration or of master does ---- */

TEST(a_new_configuration_keeps_what_reports_have_lowered) {
    const struct {
        double capacity, least, wanted;
    } rows[] = {{100, 0, 48.5}, {200, 0, 48.5}, {40, 0, 40}, {100, 60, 60}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        world *w = start_leased(100, 0, 100);
        doorman_config *config = usual_config(rows[i].capacity, rows[i].least);
        report(w, HALF_LOST);
        assert_int_equal(doorman_server_configure(w->server, config, w->now), DOORMAN_OK);
        doorman_config_destroy(w->config);
        w->config = config;
        assert_about(capacity_of(w), rows[i].wanted);
        w->now += 3600 * SECOND;
        renew(w, 0);
        assert_exact(capacity_of(w), rows[i].capacity);
        stop(w);
    }
}

TEST(a_new_master_begins_with_the_configured_capacity) {
    world *w = start_leased(100, 0, 100);
    report(w, HALF_LOST);
    const doorman_mastership none = {.address = NULL};
    assert_int_equal(doorman_server_set_master(w->server, &none, w->now), DOORMAN_OK);
    become_master(w->server, w->now);
    renew(w, 0);
    assert_exact(capacity_of(w), 100);
    stop(w);
}

/* ---- in a tree ---- */

/* Sends the child's request to the root, if one is due. Returns whether the request had a
 * report. */
static bool child_asks(world *w) {
    doorman_upstream *upstream = doorman_server_upstream(w->child);
    doorman_request request;
    doorman_response response;
    if (!doorman_upstream_request(upstream, &request, w->now)) return false;
    bool reported = request.items[0].overload.interval > 0;
    uint64_t sequence = request.sequence;
    assert_int_equal(doorman_server_handle(w->server, &request, &response, &w->error, w->now),
                     DOORMAN_OK);
    assert_int_equal(doorman_upstream_response(upstream, sequence, &response, w->now), DOORMAN_OK);
    return reported;
}

TEST(a_node_passes_the_sum_of_its_reports_on_once) {
    world *w = start(100, 0);
    w->child = server_of(w, "child", "tcp://root:1");
    w->holders[0].wants = 100;
    size_t reported = 0;
    for (int i = 0; i < 100; i++, w->now += SECOND) {
        renew(w, 0);
        child_asks(w);
    }
    assert_int_equal(report(w, 600, 300, 300, 0), SECOND / 10); /* the child has it from the root */
    assert_int_equal(report(w, 400, 200, 200, 0), SECOND / 10);
    assert_exact(capacity_of(w), 100);
    for (int i = 0; i < 30; i++, w->now += SECOND) {
        renew(w, 0);
        reported += child_asks(w);
    }
    assert_int_equal(reported, 1);
    assert_exact(read_resource(w).overload.arrived, 1000);
    assert_exact(read_resource(w).overload.refused, 500);
    assert_near(capacity_of(w), 48.5, 0.01);
    stop(w);
}

/* ---- a client that reports ---- */

/* A client with one resource sends its request to the root, if one is due. Returns the report in
 * the request. */
static doorman_overload_report client_asks(world *w, doorman_client *client) {
    doorman_upstream *upstream = doorman_client_upstream(client);
    doorman_overload_report sent = {.interval = 0};
    doorman_request request;
    doorman_response response;
    if (!doorman_upstream_request(upstream, &request, w->now)) return sent;
    sent = request.items[0].overload;
    uint64_t sequence = request.sequence;
    assert_int_equal(doorman_server_handle(w->server, &request, &response, &w->error, w->now),
                     DOORMAN_OK);
    assert_int_equal(doorman_upstream_response(upstream, sequence, &response, w->now), DOORMAN_OK);
    return sent;
}

/* A program that a resource protects, such as a search, has a client. The client reports what the
 * program has counted. */
TEST(a_client_sends_the_sum_of_its_reports_once) {
    world *w = start_leased(100, 0, 80);
    const char *const addresses[] = {"tcp://root:1"};
    const doorman_client_options options = {
        .client_id = "search-3", .addresses = addresses, .address_count = 1, .seed = 5};
    const doorman_resource_options opens = {.resource_id = "db", .wants = 1};
    const doorman_overload_report half = {REFRESH / 2, HALF_LOST}, wrong = {SECOND, -1, 0, 0, 0};
    doorman_client *client = NULL;
    doorman_client_resource *resource = NULL;
    doorman_resource_info info;
    assert_int_equal(doorman_client_create(&client, &options, NULL, w->now), DOORMAN_OK);
    assert_int_equal(doorman_client_open(&resource, client, &opens, NULL, w->now), DOORMAN_OK);
    doorman_client_read(resource, &info, w->now);
    assert_int_equal(info.overload_target, 0);
    assert_int_equal(doorman_client_report_overload(resource, &half, w->now), DOORMAN_OK);
    assert_int_equal(client_asks(w, client).interval, 0); /* no server has asked for reports */
    doorman_client_read(resource, &info, w->now);
    assert_int_equal(info.overload_target, SECOND / 10);
    assert_int_equal(doorman_client_report_overload(resource, &wrong, w->now),
                     DOORMAN_INVALID_ARGUMENT);
    doorman_overload_report sent = {.interval = 0};
    size_t count = 0;
    for (int i = 0; i < 40; i++, w->now += SECOND) {
        if (i == 2) assert_int_equal(doorman_client_report_overload(resource, &half, w->now), 0);
        if (i == 3) assert_int_equal(doorman_client_report_overload(resource, &half, w->now), 0);
        doorman_overload_report one = client_asks(w, client);
        if (one.interval) sent = one;
        count += one.interval > 0;
    }
    assert_int_equal(count, 1);
    assert_exact(sent.arrived, 2000);
    assert_exact(sent.finished, 1000);
    assert_true(sent.interval >= REFRESH / 2 && sent.interval <= 2 * REFRESH);
    assert_int_equal(w->cuts, 1);
    doorman_client_destroy(client);
    stop(w);
}

/* ---- memory ---- */

TEST(a_report_that_finds_no_memory_changes_nothing) {
    size_t n = 0;
    doorman_status status = DOORMAN_OK;
    do {
        world *w = start_leased(100, 0, 80);
        const doorman_capacity_request item = {.resource_id = "db",
                                               .overload = {REFRESH, HALF_LOST}};
        const doorman_request request = {.method = DOORMAN_REPORT_OVERLOAD,
                                         .holder_id = "server",
                                         .items = &item,
                                         .item_count = 1};
        doorman_response response;
        memory_fails_at(++n);
        status = doorman_server_handle(w->server, &request, &response, &w->error, w->now);
        bool worked = memory_works();
        assert_int_equal(status, worked ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY);
        assert_about(capacity_of(w), worked ? 38.8 : 100);
        stop(w);
    } while (status != DOORMAN_OK);
    assert_true(n > 1);
}
