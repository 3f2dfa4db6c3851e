/* Tests figures that a caller brings with a permit (P31). */
#include "unit.h"

#include "permits_at_noon.h"

#include <math.h>

/* ---- limits, and how they are used ----------------------------------------------------------- */

#define BURST                                                                                      \
    "{\"name\": \"burst\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 10, "                \
    "\"plans\": {\"pro\": {\"size\": 50}}, \"overrides\": [{\"keys\": [\"vip\"], \"size\": 20}]}"
#define HOURLY(more)                                                                               \
    "{\"name\": \"hourly\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": 3600" more "}"
#define SLIDING                                                                                    \
    "{\"name\": \"sliding\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 8, \"window\": 1600}"
#define OTHERS                                                                                     \
    "{\"name\": \"all\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 10, "                  \
    "\"per\": \"resource\"}, "                                                                     \
    "{\"name\": \"leased\", \"kind\": \"TOKEN_BUCKET\", \"rate\": \"leased\", "                    \
    "\"per\": \"resource\"}, "                                                                     \
    "{\"name\": \"jobs\", \"kind\": \"CONCURRENCY\", \"limit\": 1, \"queue\": 9, "                 \
    "\"max_wait\": 600, \"on_restart\": \"full\"}, "                                               \
    "{\"name\": \"trials\", \"kind\": \"TIERS\", \"tiers\": []}, "                                 \
    "{\"name\": \"day\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": \"day\"}"

static doorman_permit_set bucket(double rate, double size) {
    const doorman_figures figures = {.rate = rate, .has_size = size > 0, .size = size};
    return (doorman_permit_set){.limit = "burst", .figures = figures};
}

static doorman_permit_set window(const char *limit, double most, doorman_time seconds) {
    const doorman_figures figures = {
        .has_limit = most > 0, .limit = most, .window = seconds * SECOND};
    return (doorman_permit_set){.limit = limit, .figures = figures};
}

/* Asks for units. Returns whether they are granted.
 *   set   NULL: the caller brings no figures */
static bool take_with(struct process *p, const char *key, double units,
                      const doorman_permit_set *set) {
    const doorman_permit_item item = {
        .resource_id = "api/a", .key = key, .cost = units, .sets = set, .set_count = set ? 1 : 0};
    const doorman_permit_request request = {.items = &item, .item_count = 1, .detail = true};
    doorman_status status =
        doorman_permits_acquire(p->permits, &request, &p->out, &p->error, p->now);
    if (status != DOORMAN_OK) fail_msg("%s", p->error.text);
    return p->out.granted;
}

static doorman_permits_limit count_of(const struct process *p) {
    doorman_permits_limit out = {0};
    doorman_cursor cursor = {0};
    assert_true(doorman_permits_next_limit(p->permits, &cursor, &out));
    return out;
}

/* ---- what they do ---------------------------------------------------------------------------- */

TEST(a_caller_brings_figures_for_one_key) {
    struct process p = process_of(BURST ", " HOURLY(""));
    const doorman_permit_set large = bucket(5, 100), more = window("hourly", 200, 0);
    assert_true(take_with(&p, "acme", 60, &large));
    assert_exact(detail_of(&p, "burst").most, 100);
    assert_exact(detail_of(&p, "burst").remaining, 40);
    assert_true(detail_of(&p, "burst").set);
    assert_false(detail_of(&p, "hourly").set);
    assert_exact(detail_of(&p, "hourly").most, 100);
    assert_false(take_with(&p, "bob", 60, NULL));
    assert_exact(look(&p, "api/a", "bob", "burst").most, 10);
    p.now = 4 * SECOND; /* the bucket fills at the rate of the caller */
    assert_true(take_with(&p, "acme", 1, &more));
    assert_exact(detail_of(&p, "burst").remaining, 59);
    assert_exact(detail_of(&p, "hourly").remaining, 139);
    process_end(&p);
}

TEST(a_figure_that_is_not_brought_is_that_of_the_limit) {
    struct process p = process_of(BURST);
    const doorman_permit_set faster = bucket(2, 0), smaller = bucket(0, 4);
    assert_true(take_with(&p, "acme", 10, &faster));
    p.now = 3 * SECOND;
    assert_exact(look(&p, "api/a", "acme", "burst").remaining, 6);
    assert_false(take_with(&p, "bob", 5, &smaller));
    assert_true(take_with(&p, "bob", 4, &smaller));
    process_end(&p);
}

TEST(a_counter_remembers_the_figures_until_it_is_fresh) {
    struct process p = process_of(BURST);
    const doorman_permit_set large = bucket(1, 100);
    const doorman_permit_item cost = {.resource_id = "api/a", .key = "acme", .cost = 3};
    double charged = 0;
    assert_true(take_with(&p, "acme", 50, &large));
    for (; p.now < 40 * SECOND; p.now += SECOND) { /* more is saved than the limit ever saves */
        doorman_permits_update(p.permits, p.now);
        assert_exact(look(&p, "api/a", "acme", "burst").remaining, 50 + (double)(p.now / SECOND));
    }
    assert_true(take_with(&p, "acme", 30, NULL)); /* without figures */
    assert_true(detail_of(&p, "burst").set);
    assert_exact(detail_of(&p, "burst").remaining, 60);
    doorman_permits_report(p.permits, &cost, &charged, NULL, p.now);
    assert_exact(charged, 3);
    assert_exact(look(&p, "api/a", "acme", "burst").remaining, 57);
    p.now += 43 * SECOND;
    doorman_permits_update(p.permits, p.now);
    assert_exact(look(&p, "api/a", "acme", "burst").most, 10);
    assert_false(look(&p, "api/a", "acme", "burst").set);
    process_end(&p);
}

TEST(the_last_figures_count_and_differences_are_counted) {
    struct process p = process_of(BURST);
    const doorman_permit_set large = bucket(1, 100), small = bucket(1, 20);
    assert_true(take_with(&p, "acme", 30, &large));
    assert_true(take_with(&p, "acme", 30, &large));
    assert_int_equal(count_of(&p).set_changes, 0);
    assert_true(take_with(&p, "acme", 15, &small)); /* of the 20 that the bucket can save */
    assert_int_equal(count_of(&p).set_changes, 1);
    assert_false(take_with(&p, "acme", 6, NULL));
    assert_exact(detail_of(&p, "burst").most, 20);
    assert_true(take_with(&p, "acme", 5, &large)); /* what was cut off is lost */
    assert_exact(detail_of(&p, "burst").remaining, 0);
    assert_int_equal(count_of(&p).set_changes, 2);
    assert_int_equal(count_of(&p).set_granted, 4);
    process_end(&p);
}

static size_t bytes_of(const struct process *p) {
    doorman_permits_info info;
    doorman_permits_read(p->permits, &info);
    return info.bytes;
}

#define CROWD 2000
#define TABLES 32768 /* bytes; more than the hash tables of so few figures need */

/* Lets a crowd of keys bring different figures, in bounded memory. Nobody is refused. */
static void try_crowd(const char *limits) {
    struct process p = {.config = limits_of(limits)};
    const doorman_permits_options options = {
        .config = p.config, .seed = {1, random_bits() | 1}, .memory_max = 131072};
    char key[16];
    assert_int_equal(doorman_permits_create(&p.permits, &options, NULL, 0), DOORMAN_OK);
    doorman_permits_set_epoch(p.permits, noon, 0);
    for (int i = 0; i < CROWD; i++) {
        snprintf(key, sizeof key, "%d", i);
        assert_true(take_with(&p, key, 1, NULL));
    }
    const size_t before = bytes_of(&p);
    for (int i = CROWD; i-- > 0;) {
        const doorman_permit_set set = window("hourly", 100 + i / 64.0, 0);
        snprintf(key, sizeof key, "%d", i);
        assert_true(take_with(&p, key, 1, &set));
        assert_true(bytes_of(&p) <= before + TABLES);
    }
    process_end(&p);
}

/* P19: figures that counters remember need memory, which memory_max bounds. */
TEST(the_memory_of_remembered_figures_is_bounded) {
    try_crowd(HOURLY(""));
    try_crowd(HOURLY(", \"shadow\": true"));
    try_crowd(HOURLY(", \"shadow\": true, \"overflow\": \"refuse\""));
}

TEST(a_refused_permit_is_not_remembered) {
    struct process p = process_of(BURST);
    const doorman_permit_set large = bucket(1, 100), small = bucket(1, 2);
    assert_false(take_with(&p, "acme", 101, &large));
    assert_true(take_with(&p, "acme", 7, NULL));
    assert_false(take_with(&p, "acme", 3, &small));
    assert_exact(look(&p, "api/a", "acme", "burst").most, 10);
    assert_exact(look(&p, "api/a", "acme", "burst").remaining, 3);
    process_end(&p);
}

TEST(a_row_goes_before_what_a_caller_brings_and_that_before_a_plan) {
    struct process p = process_of(BURST);
    const doorman_permit_set large = bucket(1, 30);
    const doorman_plan_row plan = {
        .identifier_glob = "api/*", .key = "vip", .plan = "pro", .id = 1};
    const doorman_override_row row = {.resource_id = "api/a",
                                      .limit = "burst",
                                      .key = "vip",
                                      .id = 2,
                                      .figures = {.has_size = true, .size = 40},
                                      .ends_at = noon + 60 * SECOND};
    assert_exact(look(&p, "api/a", "vip", "burst").most, 20);
    assert_int_equal(doorman_permits_set_plan(p.permits, &plan, NULL, p.now), DOORMAN_OK);
    assert_exact(look(&p, "api/a", "vip", "burst").most, 50);
    assert_true(take_with(&p, "vip", 1, &large));
    assert_exact(detail_of(&p, "burst").most, 30);
    assert_int_equal(doorman_permits_set_override(p.permits, &row, NULL, p.now), DOORMAN_OK);
    assert_true(take_with(&p, "vip", 1, &large));
    assert_exact(detail_of(&p, "burst").most, 40);
    assert_false(detail_of(&p, "burst").set);
    p.now = 60 * SECOND - 1;
    assert_true(take_with(&p, "vip", 35, &large));
    p.now = 60 * SECOND; /* the row has ended */
    assert_exact(look(&p, "api/a", "vip", "burst").most, 30);
    process_end(&p);
}

TEST(a_window_of_another_length_starts_fresh_and_the_same_one_continues) {
    struct process p = process_of(SLIDING);
    const doorman_permit_set longer = window("sliding", 8, 3200), more = window("sliding", 20, 0);
    assert_true(take_with(&p, "acme", 6, NULL));
    assert_true(take_with(&p, "acme", 12, &more));
    assert_exact(detail_of(&p, "sliding").used, 18);
    assert_false(take_with(&p, "acme", 3, NULL)); /* the counter remembers 20 */
    assert_true(take_with(&p, "acme", 8, &longer));
    assert_exact(detail_of(&p, "sliding").used, 8);
    p.now = 2000 * SECOND;
    doorman_permits_update(p.permits, p.now);
    assert_false(take_with(&p, "acme", 1, NULL));
    process_end(&p);
}

TEST(a_new_configuration_bounds_what_counters_remember) {
    struct process p = process_of(HOURLY(""));
    const doorman_permit_set most = window("hourly", 1000, 0);
    assert_true(take_with(&p, "acme", 50, &most));
    reconfigure(&p, HOURLY(", \"shadow\": false, \"warn_at\": 0.5"));
    assert_exact(look(&p, "api/a", "acme", "hourly").most, 1000);
    assert_exact(look(&p, "api/a", "acme", "hourly").used, 50);
    reconfigure(&p, HOURLY(", \"set_max\": 2"));
    assert_exact(look(&p, "api/a", "acme", "hourly").most, 100);
    assert_exact(look(&p, "api/a", "acme", "hourly").used, 50);
    reconfigure(&p, HOURLY(", \"set_max\": 9"));
    assert_exact(look(&p, "api/a", "acme", "hourly").most, 100);
    for (int i = 0; i < 8; i++) { /* a configuration may have the address of an earlier one */
        reconfigure(&p, HOURLY(", \"set_max\": 20"));
        assert_exact(look(&p, "api/a", "acme", "hourly").most, 1000);
        reconfigure(&p, HOURLY(", \"set_max\": 30"));
        reconfigure(&p, HOURLY(", \"set_max\": 2"));
        assert_exact(look(&p, "api/a", "acme", "hourly").most, 100);
    }
    reconfigure(&p, HOURLY(", \"ban\": {\"refusals\": 2, \"window\": 60, \"duration\": 60}"));
    assert_exact(look(&p, "api/a", "acme", "hourly").most, 1000);
    assert_false(take_with(&p, "acme", 951, &most));
    assert_int_equal(detail_of(&p, "hourly").refusals, 1);
    process_end(&p);
}

TEST(items_of_one_counter_use_the_last_figures) {
    struct process p = process_of(BURST);
    const doorman_permit_set sets[] = {bucket(1, 20), bucket(1, 30)};
    const doorman_permit_item items[] = {
        {.resource_id = "api/a", .key = "k", .cost = 15, .sets = &sets[0], .set_count = 1},
        {.resource_id = "api/a", .key = "k", .cost = 15, .sets = &sets[1], .set_count = 1}};
    const doorman_permit_request request = {.items = items, .item_count = 2};
    assert_int_equal(doorman_permits_acquire(p.permits, &request, &p.out, NULL, p.now), DOORMAN_OK);
    assert_true(p.out.granted);
    assert_exact(look(&p, "api/a", "k", "burst").most, 30);
    process_end(&p);
}

TEST(a_permit_with_figures_does_not_wait) {
    struct process p = process_of(BURST ", " OTHERS);
    const doorman_permit_set large = bucket(1, 100);
    doorman_permit_item item = {.resource_id = "api/a", .key = "k", .cost = 1};
    doorman_permit_request request = {.items = &item,
                                      .item_count = 1,
                                      .max_wait = 60 * SECOND,
                                      .client_id = "c",
                                      .request_id = 1};
    const char *limits =
        BURST ", {\"name\": \"jobs\", \"kind\": \"CONCURRENCY\", \"limit\": 1, \"queue\": 9, "
              "\"max_wait\": 600, \"on_restart\": \"full\"}";
    reconfigure(&p, limits);
    assert_int_equal(doorman_permits_acquire(p.permits, &request, &p.out, NULL, p.now), DOORMAN_OK);
    assert_true(p.out.granted);
    item.sets = &large;
    item.set_count = 1;
    request.request_id = 2;
    assert_int_equal(doorman_permits_acquire(p.permits, &request, &p.out, NULL, p.now), DOORMAN_OK);
    assert_false(p.out.granted || p.out.pending);
    assert_int_equal(p.out.reason, DOORMAN_REASON_CONCURRENCY);
    item.set_count = 0;
    assert_int_equal(doorman_permits_acquire(p.permits, &request, &p.out, NULL, p.now), DOORMAN_OK);
    assert_true(p.out.pending);
    process_end(&p);
}

/* ---- what is refused ------------------------------------------------------------------------- */

TEST(wrong_figures_are_refused_by_name_and_charge_nothing) {
    struct process p = process_of(BURST ", " HOURLY("") ", " OTHERS);
    const struct {
        doorman_permit_set set;
        const char *text;
    } wrong[] = {
        {bucket(10.5, 0), "items[0].sets[0].figures.rate: is at most 10 here"},
        {bucket(0, 101), "items[0].sets[0].figures.size: is at most 100 here"},
        {bucket(1e-9, 0), "items[0].sets[0].figures.size: is worth at most 1e8 s"},
        {bucket(-1, 0), "items[0].sets[0].figures.rate: must be more than 0"},
        {bucket(0, 0), "items[0].sets[0]: must have rate or size"},
        {window("hourly", 1001, 0), "items[0].sets[0].figures.limit: is at most 1000 here"},
        {window("hourly", 0, 359), "items[0].sets[0].figures.limit: is at most 99.7"},
        {window("hourly", 1001, 7200), "items[0].sets[0].figures.limit: is at most 1000 here"},
        {window("burst", 5, 0), "items[0].sets[0]: a TOKEN_BUCKET has rate and size"},
        {window("day", 5, 60), "items[0].sets[0].figures.window: that of the limit is a calendar"},
        {window("none", 5, 0), "items[0].sets[0]: the template of the resource has no such limit"},
        {window("", 5, 0), "items[0].sets[0]: the name of a limit "},
        {window("jobs", 5, 0), "items[0].sets[0]: the limit is of kind CONCURRENCY"},
        {window("trials", 5, 0), "items[0].sets[0]: the limit is of kind TIERS"},
        {window("all", 5, 0), "items[0].sets[0]: needs a limit per key"},
        {window("leased", 5, 0), "items[0].sets[0]: the limit is leased"},
        {{"burst", {.rate = 1, .max_debt = 1}}, "items[0].sets[0].figures.max_debt: a caller"},
        {{"burst", {.rate = 1, .has_limit = true}}, "items[0].sets[0]: must have only rate"},
        {{"burst", {.size = 1}}, "items[0].sets[0].figures.size: needs has_size"},
        {{"hourly", {.calendar = DOORMAN_DAY}}, "items[0].sets[0].figures.window: must be a"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        const doorman_permit_item item = {
            .resource_id = "api/a", .key = "k", .cost = 1, .sets = &wrong[i].set, .set_count = 1};
        const doorman_permit_request request = {.items = &item, .item_count = 1};
        assert_int_equal(doorman_permits_acquire(p.permits, &request, &p.out, &p.error, p.now),
                         DOORMAN_INVALID_ARGUMENT);
        if (strncmp(p.error.text, wrong[i].text, strlen(wrong[i].text)) != 0) {
            fail_msg("%s, expected %s", p.error.text, wrong[i].text);
        }
    }
    assert_exact(look(&p, "api/a", "k", "burst").used, 0);
    process_end(&p);
}

TEST(a_limit_is_named_once_in_an_item) {
    struct process p = process_of(BURST);
    const doorman_permit_set twice[] = {bucket(1, 20), bucket(1, 30)};
    doorman_permit_item item = {
        .resource_id = "api/a", .key = "k", .cost = 1, .sets = twice, .set_count = 2};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    assert_int_equal(doorman_permits_acquire(p.permits, &request, &p.out, &p.error, p.now),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(p.error.text, "items[0].sets[1]: the limit was named before");
    item.sets = NULL;
    assert_int_equal(doorman_permits_acquire(p.permits, &request, &p.out, &p.error, p.now),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(p.error.text, "items[0].sets: must be at most 16");
    process_end(&p);
}

TEST(set_max_has_bounds) {
    const char *const limits[] = {"0", "0.5", "-1", "1000001", "1e999", "\"x\""};
    for (size_t i = 0; i < COUNT(limits); i++) {
        char text[512];
        doorman_config *config = NULL;
        doorman_error error = {0};
        snprintf(text, sizeof text,
                 "{\"resources\": [{\"identifier_glob\": \"a\", \"limits\": [%s%s}]}]}",
                 "{\"name\": \"x\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1, "
                 "\"set_max\": ",
                 limits[i]);
        assert_int_equal(doorman_json_config(&config, text, strlen(text), &error),
                         DOORMAN_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, "set_max: must be "));
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Reads a message, and returns the text of its error, or "". */
static const char *read_error(doorman_json_exchange *exchange, const char *set) {
    char text[512];
    doorman_json_exchange_uninit(exchange);
    snprintf(text, sizeof text,
             "{\"client_id\":\"c\",\"permit\":[{\"item\":[{\"resource_id\":\"api/a\"},"
             "{\"resource_id\":\"api/a\",\"set\":%s}]}]}",
             set);
    doorman_status status = doorman_json_exchange_read(exchange, "acquire", text, strlen(text));
    return status == DOORMAN_OK ? "" : exchange->error.text;
}

TEST(a_message_names_the_limit_of_figures) {
    doorman_json_exchange exchange = {.is_body = false};
    doorman_buffer text = {.text = NULL};
    assert_string_equal(
        read_error(&exchange, "{\"burst\":{\"rate\":20,\"size\":40},\"hourly\":{\"limit\":7}}"),
        "");
    const doorman_permit_item *item = &exchange.request.permits[0].items[1];
    assert_int_equal(item->set_count, 2);
    assert_string_equal(item->sets[0].limit, "burst");
    assert_exact(item->sets[0].figures.size, 40);
    assert_exact(item->sets[1].figures.limit, 7);
    assert_int_equal(doorman_json_request(&exchange.request, &text), DOORMAN_OK);
    assert_non_null(strstr(
        text.text, "\"set\":{\"burst\":{\"rate\":20,\"size\":40},\"hourly\":{\"limit\":7}}"));
    doorman_buffer_uninit(&text);
    const char *const wrong[][2] = {
        {"[]", "acquire.permit[0].item[1].set: must be an object"},
        {"{\"burst\":5}", "acquire.permit[0].item[1].set.burst: must be an object"},
        {"{\"burst\":{\"rat\":5}}", "acquire.permit[0].item[1].set.burst.rat: is not a figure"},
        {"{\"burst\":{\"rate\":\"leased\"}}",
         "acquire.permit[0].item[1].set.burst.rate: must be a number"},
        {"{\"burst\":{\"rate\":0}}", "acquire.permit[0].item[1].set.burst.rate: must be more"},
        {"{\"burst\":{\"rate\":1},\"burst\":{\"rate\":1}}",
         "acquire.permit[0].item[1].set.burst: appears twice"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        const char *error = read_error(&exchange, wrong[i][0]);
        if (strncmp(error, wrong[i][1], strlen(wrong[i][1])) != 0) fail_msg("%s", error);
    }
    doorman_json_exchange_uninit(&exchange);
}

TEST(a_message_is_refused_if_its_sender_must_not_bring_figures) {
    doorman_json_exchange exchange = {.is_body = false};
    static const char message[] =
        "{\"client_id\":\"c\",\"permit\":[{\"item\":[{\"resource_id\":\"a\"}]},"
        "{\"item\":[{\"resource_id\":\"a\",\"set\":{\"x\":{\"rate\":1}}}]}]}";
    exchange.forbids_figures = true;
    assert_int_equal(doorman_json_exchange_read(&exchange, "acquire", message, strlen(message)),
                     DOORMAN_NOT_FOUND);
    assert_memory_equal(exchange.error.text, "acquire.permit[1].item[0].set: ", 31);
    doorman_json_exchange_uninit(&exchange);
    assert_false(exchange.forbids_figures);
}

/* ---- against a slow model -------------------------------------------------------------------- */

/* A model of one key. As in P15, the time since the last grant counts at the rate of the present
 * figures. */
struct model {
    double rate, size, saved; /* of the bucket */
    double limit, used;       /* of the window */
    doorman_time length, at;  /* at: of the last grant */
    int64_t index;            /* of the window */
    bool has_bucket, has_window;
};

static const struct model fresh = {
    .rate = 1, .size = 10, .saved = 10, .limit = 100, .length = 3600};

static double model_level(const struct model *m, doorman_time seconds) {
    const double level = m->saved + (double)(seconds - m->at) * m->rate;
    return level < m->size ? level : m->size;
}

static int64_t model_index(const struct model *m, doorman_time seconds) {
    return (noon / SECOND + seconds) / m->length;
}

/* Moves a model to a time. Forgets the figures of a bucket that is full then, or of a window
 * without use. */
static void model_move(struct model *m, doorman_time seconds) {
    if (model_index(m, seconds) != m->index) m->used = 0;
    m->has_bucket = m->has_bucket && model_level(m, seconds) < m->size;
    m->has_window = m->has_window && m->used > 0;
    if (!m->has_bucket) m->rate = fresh.rate, m->size = fresh.size, m->saved = fresh.size;
    if (!m->has_window) m->limit = fresh.limit, m->length = fresh.length;
    m->index = model_index(m, seconds);
}

/* Returns a model with other figures. */
static struct model model_with(struct model m, const doorman_permit_set *set,
                               doorman_time seconds) {
    const doorman_figures *given = &set->figures;
    if (strcmp(set->limit, "burst") == 0) {
        m.rate = given->rate > 0 ? given->rate : fresh.rate;
        m.size = given->has_size ? given->size : fresh.size;
        if (!m.has_bucket) m.saved = m.size;
        return m;
    }
    const doorman_time length = given->window ? given->window / SECOND : fresh.length;
    m.limit = given->has_limit ? given->limit : fresh.limit;
    if (length != m.length) m.used = 0;
    m.length = length;
    m.index = model_index(&m, seconds);
    return m;
}

static doorman_permit_set any_set(void) {
    static const double rates[] = {0, 0.25, 0.5, 2, 10}, sizes[] = {4, 8, 20, 100};
    static const double limits[] = {30, 50, 200, 1000};
    static const doorman_time lengths[] = {0, 0, 3600, 7200, 10800};
    if (random_below(2)) return bucket(rates[random_below(5)], sizes[random_below(4)]);
    return window("hourly", limits[random_below(4)], lengths[random_below(5)]);
}

TEST(figures_agree_with_a_slow_model) {
    static const char *const keys[] = {"a", "b", "c"};
    struct process p = process_of(BURST ", " HOURLY(""));
    struct model models[3] = {fresh, fresh, fresh};
    doorman_time seconds = 0;
    for (int i = 0; i < 3000; i++) {
        const size_t k = random_below(3);
        const double cost = 1 + (double)random_below(random_below(4) ? 5 : 60);
        doorman_permit_set set = any_set();
        const bool brings = random_below(3) > 0;
        seconds += (doorman_time)random_below(random_below(20) ? 4 : 4000);
        p.now = seconds * SECOND;
        doorman_permits_update(p.permits, p.now);
        for (size_t j = 0; j < 3; j++) model_move(&models[j], seconds);
        struct model m = brings ? model_with(models[k], &set, seconds) : models[k];
        const bool fits = model_level(&m, seconds) >= cost && m.used + cost <= m.limit;
        assert_int_equal(take_with(&p, keys[k], cost, brings ? &set : NULL), fits);
        if (fits) {
            m.saved = model_level(&m, seconds) - cost;
            m.used += cost;
            m.at = seconds;
            m.has_bucket = m.has_window = true;
            models[k] = m;
        }
        assert_exact(detail_of(&p, "burst").remaining, model_level(&m, seconds));
        assert_exact(detail_of(&p, "burst").most, m.size);
        assert_exact(detail_of(&p, "hourly").most, m.limit);
        const double left = m.limit - m.used;
        assert_exact(detail_of(&p, "hourly").remaining, left > 0 ? left : 0);
    }
    doorman_permits_info info;
    p.now += 100000 * SECOND;
    doorman_permits_update(p.permits, p.now);
    doorman_permits_read(p.permits, &info);
    assert_int_equal(info.counter_count, 0);
    assert_int_equal(p.permits->sets.count, 0); /* no counter remembers figures */
    process_end(&p);
}

/* ---- the table of figures -------------------------------------------------------------------- */

/* Returns the row of the table for a field of JSON, or fails. */
static const doorman__figure *figure_of(const doorman__row *row) {
    const bool is_window = strcmp(row->key, "window") == 0; /* its row of JSON has no offset */
    const size_t at = is_window ? offsetof(doorman_figures, window) : row->at;
    for (size_t i = 0; i < DOORMAN__FIGURE_COUNT; i++) {
        if (doorman__figures[i].at == at) return &doorman__figures[i];
    }
    fail_msg("%s has no row in doorman__figures", row->key);
    return NULL;
}

TEST(each_figure_of_json_has_a_row_in_the_table_of_figures) {
    size_t count = 0;
    for (const doorman__row *row = doorman__figure_rows; row->type; row++, count++) {
        const doorman__figure *figure = figure_of(row);
        assert_int_equal(figure->has, row->has);
        const char *const texts[] = {figure->unused, figure->hidden, figure->brought};
        for (size_t i = 0; i < COUNT(texts); i++) {
            const size_t bytes = strlen(row->key);
            if (!texts[i]) continue;
            assert_int_equal(strncmp(texts[i], row->key, bytes), 0);
            assert_int_equal(texts[i][bytes], ':');
        }
    }
    assert_int_equal(count, DOORMAN__FIGURE_COUNT);
}

/* Figures that differ in any one field are unequal. Each figure counts as given, and replaces the
 * figure of the limit. */
TEST(each_figure_of_an_override_replaces_that_of_the_limit) {
    static const doorman_tier one = {.limit = 1, .window = SECOND, .active = SECOND};
    static const doorman_figures none = {.rate = 0}, all = {.rate = 1,
                                                            .size = 2,
                                                            .max_debt = 3,
                                                            .max_wait = 4,
                                                            .time_to_live = 5,
                                                            .queue = 6,
                                                            .limit = 7,
                                                            .window = 8,
                                                            .weight = 9,
                                                            .has_size = true,
                                                            .has_max_debt = true,
                                                            .has_queue = true,
                                                            .has_limit = true,
                                                            .has_tiers = true,
                                                            .has_max_wait = true,
                                                            .tiers = &one,
                                                            .tier_count = 1};
    doorman_permit_limit limit = {.kind = DOORMAN_TOKEN_BUCKET};
    assert_true(doorman__figures_equal(&all, &all));
    assert_false(doorman__figures_given(&none, 0));
    for (size_t i = 0; i < DOORMAN__FIGURE_COUNT; i++) {
        const doorman__figure *figure = &doorman__figures[i];
        doorman_figures given = none;
        doorman__figure_copy(figure, &given, &all);
        assert_true(doorman__figure_present(figure, &given));
        assert_false(doorman__figures_equal(&given, &none));
        if (figure->has) {
            assert_false(doorman__figure_given(figure, &given));
            memset((char *)&given + figure->has, 1, sizeof(bool));
        }
        assert_true(doorman__figures_given(&given, 0));
        const doorman_figures resolved = doorman__override_resolve(&limit, &given);
        if (figure->at != offsetof(doorman_figures, max_wait)) { /* no longer than max_debt */
            assert_true(doorman__figure_equal(figure, &resolved, &all));
        }
    }
}

/* A NaN is refused, because only an error of a program can have made it. */
TEST(an_override_whose_figure_is_nan_is_refused) {
    static const char *const keys[] = {"a"};
    const doorman_override nan = {.keys = keys, .key_count = 1, .figures = {.rate = (double)NAN}};
    const doorman_permit_limit limit = {.name = "a",
                                        .kind = DOORMAN_TOKEN_BUCKET,
                                        .figures = {.rate = 1, .size = 1},
                                        .overrides = &nan,
                                        .override_count = 1};
    const doorman_template template_ = {.identifier_glob = "*",
                                        .without_capacity = true,
                                        .has_limits = true,
                                        .limits = &limit,
                                        .limit_count = 1};
    const doorman_config_options options = {.templates = &template_, .template_count = 1};
    doorman_config *config = NULL;
    doorman_error error = {0};
    assert_int_equal(doorman_config_create(&config, &options, &error), DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "overrides[0].figures.rate: must be more than 0"));
}
