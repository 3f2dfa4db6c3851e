/* Tests the iteration over all counters and bans, in steps, while others use the permits. */
#include "unit.h"

#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND

struct fixture {
    doorman_config *config;
    doorman_permits *permits;
    doorman_time now;
};

static doorman_config *config_of(const char *text) {
    doorman_config *config = NULL;
    doorman_error error = {0};
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return config;
}

static struct fixture start(const char *text) {
    struct fixture f = {.config = config_of(text), .now = 5 * SECOND};
    const doorman_permits_options options = {.config = f.config, .seed = {1, random_bits() | 1}};
    assert_int_equal(doorman_permits_create(&f.permits, &options, NULL, f.now), DOORMAN_OK);
    return f;
}

static void stop(struct fixture *f) {
    doorman_permits_destroy(f->permits);
    doorman_config_destroy(f->config);
}

static void reload(struct fixture *f, const char *text) {
    doorman_config *next = config_of(text);
    assert_int_equal(doorman_permits_configure(f->permits, next), DOORMAN_OK);
    doorman_config_destroy(f->config);
    f->config = next;
}

static bool take(struct fixture *f, const char *resource, const char *key, double cost) {
    const doorman_permit_item item = {.resource_id = resource, .key = key, .cost = cost};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_permit out;
    doorman_error error = {0};
    doorman_status status = doorman_permits_acquire(f->permits, &request, &out, &error, f->now);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return out.granted;
}

static doorman_status next(struct fixture *f, const char *limit, doorman_counter_cursor *cursor,
                           doorman_permits_counter *out) {
    return doorman_permits_next_counter(f->permits, limit, cursor, out, f->now);
}

static size_t count_of(struct fixture *f, const char *limit) {
    doorman_counter_cursor cursor = {.table = 0};
    doorman_permits_counter found;
    size_t count = 0;
    doorman_status status;
    while ((status = next(f, limit, &cursor, &found)) == DOORMAN_OK) count += found.limit != NULL;
    assert_int_equal(status, DOORMAN_NOT_FOUND);
    return count;
}

#define QUOTA(name, more)                                                                          \
    "{\"name\": \"" name                                                                           \
    "\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": \"month\"" more "}"
#define TEMPLATE(glob, limits) "{\"identifier_glob\": \"" glob "\", \"limits\": [" limits "]}"
#define CONFIG(templates) "{\"resources\": [" templates "]}"

/* ---- what a step shows ---------------------------------------------------------------------- */

/* A template with limits of all scopes, and of all kinds except CONCURRENCY. */
#define ALL_QUOTAS                                                                                 \
    QUOTA("quota", ", \"overrides\": [{\"keys\": [\"acme\"], \"limit\": 500}]")                    \
    ", " QUOTA("all", ", \"per\": \"resource\"") ", " QUOTA("node", ", \"per\": \"template\"")
#define ALL_RATES                                                                                  \
    "{\"name\": \"bucket\", \"kind\": \"TOKEN_BUCKET\", \"size\": 50, \"rate\": 0.5}, "            \
    "{\"name\": \"sliding\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 90, \"window\": 600}, "      \
    "{\"name\": \"tiers\", \"kind\": \"TIERS\", \"tiers\": [{\"limit\": 90, \"window\": 60, "      \
    "\"active\": 60}]}"
#define ALL_LIMITS CONFIG(TEMPLATE("api/*", ALL_QUOTAS ", " ALL_RATES))

/* Fails unless a counter of the template above has the figures that INSPECT shows. */
static void assert_as_inspected(struct fixture *f, const doorman_permits_counter *found) {
    const char *resource = found->resource_id[0] ? found->resource_id : "api/a";
    const char *key = found->key[0] ? found->key : "acme";
    doorman_permit inspected;
    doorman_status status =
        doorman_permits_inspect(f->permits, ITEM_OF(resource, key), &inspected, NULL, f->now);
    assert_int_equal(status, DOORMAN_OK);
    size_t i = 0;
    while (i < inspected.detail_count && strcmp(inspected.details[i].limit, found->limit) != 0) i++;
    assert_true(i < inspected.detail_count);
    const doorman_permit_detail *detail = &inspected.details[i];
    assert_exact(found->state.most, detail->most);
    assert_exact(found->state.used, detail->used);
    assert_exact(found->state.remaining, detail->remaining);
    assert_int_equal(found->state.reset_after, detail->reset_after);
    assert_int_equal(found->state.tier, detail->tier);
}

TEST(a_counter_is_shown_with_the_figures_of_an_inspection) {
    struct fixture f = start(ALL_LIMITS);
    doorman_permits_counter found;
    size_t count = 0;
    assert_true(take(&f, "api/a", "acme", 7.5) && take(&f, "api/b", "bob", 3));
    f.now += 4 * SECOND;
    doorman_counter_cursor cursor = {.table = 0};
    for (; next(&f, NULL, &cursor, &found) == DOORMAN_OK; count++) {
        assert_string_equal(found.identifier_glob, "api/*");
        assert_false(found.is_ban);
        assert_true(found.state.used > 0);
        assert_as_inspected(&f, &found);
    }
    assert_int_equal(count, 4 * 2 + 2 + 1);
    assert_int_equal(count_of(&f, "quota"), 2);
    assert_int_equal(count_of(&f, "none"), 0);
    stop(&f);
}

/* The counter of a CONCURRENCY limit shows the units that holds have taken. */
TEST(units_that_are_held_are_shown) {
    struct fixture f = start(
        CONFIG(TEMPLATE("jobs", "{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 5, "
                                "\"time_to_live\": 60, \"on_restart\": \"full\"}")));
    const doorman_permit_item item = {.resource_id = "jobs", .key = "a", .cost = 2};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .client_id = "c", .request_id = 1};
    doorman_permit out;
    doorman_permits_counter found;
    doorman_counter_cursor cursor = {.table = 0};
    assert_int_equal(doorman_permits_acquire(f.permits, &request, &out, NULL, f.now), DOORMAN_OK);
    assert_true(out.granted);
    assert_int_equal(next(&f, "slots", &cursor, &found), DOORMAN_OK);
    assert_exact(found.state.most, 5);
    assert_exact(found.state.used, 2);
    assert_exact(found.state.remaining, 3);
    assert_int_equal(next(&f, "slots", &cursor, &found), DOORMAN_NOT_FOUND);
    stop(&f);
}

TEST(bans_come_first_with_the_limit_that_has_set_them) {
    struct fixture f = start(CONFIG(TEMPLATE(
        "login", QUOTA("quota", ", \"ban\": {\"refusals\": 1, \"window\": 1, \"duration\": 60}"))));
    doorman_permits_counter first, second, third;
    doorman_counter_cursor cursor = {.table = 0};
    assert_true(take(&f, "login", "eve", 100));
    assert_false(take(&f, "login", "eve", 1));
    doorman_permits_ban(f.permits, ITEM_OF("other", "mallory"), 90 * SECOND, NULL, f.now);
    f.now += 10 * SECOND;
    assert_int_equal(next(&f, "quota", &cursor, &first), DOORMAN_OK);
    assert_int_equal(next(&f, "quota", &cursor, &second), DOORMAN_OK);
    assert_int_equal(next(&f, "quota", &cursor, &third), DOORMAN_OK);
    assert_true(first.is_ban && second.is_ban && !third.is_ban);
    bool swapped = first.key[0] == 'm';
    const doorman_permits_counter *eve = swapped ? &second : &first;
    const doorman_permits_counter *mallory = swapped ? &first : &second;
    assert_string_equal(eve->key, "eve");
    assert_string_equal(eve->identifier_glob, "login");
    assert_string_equal(eve->limit, "quota");
    assert_int_equal(eve->ban_rest, 50 * SECOND);
    assert_string_equal(mallory->resource_id, "other");
    assert_string_equal(mallory->identifier_glob, "");
    assert_string_equal(mallory->limit, "");
    assert_int_equal(mallory->ban_rest, 80 * SECOND);
    f.now += 70 * SECOND; /* both are over, and not removed yet */
    cursor = (doorman_counter_cursor){.table = 0};
    assert_int_equal(next(&f, "quota", &cursor, &first), DOORMAN_OK);
    assert_true(first.is_ban && first.ban_rest <= 10 * SECOND);
    stop(&f);
}

/* P15: a resource that gets another template keeps its counters. They are shown with their present
 * limit, and with its figures. A counter whose limit is gone is shown without a limit. */
TEST(a_counter_is_shown_with_the_limit_that_it_has_now) {
    struct fixture f = start(CONFIG(TEMPLATE("*", QUOTA("q", "") ", " QUOTA("old", ""))));
    assert_true(take(&f, "api", "acme", 60));
    reload(&f,
           CONFIG(TEMPLATE("api", "{\"name\": \"q\", \"kind\": \"FIXED_WINDOW\", \"limit\": 70, "
                                  "\"window\": \"month\"}")));
    doorman_counter_cursor cursor = {.table = 0};
    doorman_permits_counter found;
    assert_int_equal(next(&f, "q", &cursor, &found), DOORMAN_OK);
    assert_string_equal(found.identifier_glob, "api");
    assert_string_equal(found.limit, "q");
    assert_exact(found.state.most, 70);
    assert_exact(found.state.remaining, 10);
    cursor = (doorman_counter_cursor){.table = 0};
    assert_int_equal(next(&f, "old", &cursor, &found), DOORMAN_OK);
    assert_null(found.limit);
    assert_int_equal(count_of(&f, NULL), 1);
    stop(&f);
}

/* ---- steps, while others use the permits ---------------------------------------------------- */

enum { KEYS = 3000 };

/* How often each of the keys "0" to "2999" was visited. */
struct visits {
    unsigned counts[KEYS];
};

static void visit(struct visits *visits, const doorman_permits_counter *found) {
    unsigned long number = strtoul(found->key, NULL, 10);
    assert_true(number < KEYS);
    visits->counts[number]++;
}

static void use(struct fixture *f, size_t number) {
    char key[16];
    snprintf(key, sizeof key, "%zu", number);
    (void)take(f, "api", key, 0.001);
}

static void reset(struct fixture *f, size_t number) {
    char key[16];
    snprintf(key, sizeof key, "%zu", number);
    assert_int_equal(doorman_permits_reset(f->permits, ITEM_OF("api", key), NULL, NULL, NULL),
                     DOORMAN_OK);
}

/* Keys are added and removed at random while an iteration is under way, so the table grows and
 * shrinks. Keys that are there all the time are visited once, and no key is visited twice. */
TEST(a_counter_that_lasts_is_visited_once_while_the_table_grows_and_shrinks) {
    for (size_t run = 0; run < random_runs(60); run++) {
        struct fixture f = start(CONFIG(TEMPLATE("api", QUOTA("q", ""))));
        const size_t lasting = 1 + random_below(KEYS / 10), pace = 1 + random_below(40);
        static struct visits visits;
        memset(&visits, 0, sizeof visits);
        const size_t at_start = random_below(KEYS - lasting);
        for (size_t i = 0; i < lasting + at_start; i++) use(&f, i);
        doorman_counter_cursor cursor = {.table = 0};
        doorman_permits_counter found;
        bool grows = random_below(2) == 0;
        while (next(&f, NULL, &cursor, &found) == DOORMAN_OK) {
            visit(&visits, &found);
            for (size_t i = 0; i < pace; i++) {
                size_t other = lasting + random_below(KEYS - lasting);
                if (grows) use(&f, other);
                if (!grows) reset(&f, other);
            }
            if (random_below(100) == 0) grows = !grows;
        }
        for (size_t i = 0; i < KEYS; i++) {
            if (i < lasting) assert_int_equal(visits.counts[i], 1);
            assert_true(visits.counts[i] <= 1);
        }
        stop(&f);
    }
}

struct hashed {
    uint32_t hash;
    size_t number;
};

static int compare_hashes(const void *left, const void *right) {
    uint32_t a = ((const struct hashed *)left)->hash, b = ((const struct hashed *)right)->hash;
    return a < b ? -1 : a > b;
}

/* A table stores 32 bits of a hash. Among some hundred thousand keys, two have the same 32 bits. */
TEST(keys_whose_hashes_are_alike_are_both_visited) {
    enum { TRIED = 400000 };
    struct fixture f = start(CONFIG(TEMPLATE("*", QUOTA("q", ""))));
    struct hashed *hashes = (struct hashed *)malloc(TRIED * sizeof *hashes);
    char key[16];
    assert_non_null(hashes);
    for (size_t i = 0; i < TRIED; i++) {
        snprintf(key, sizeof key, "%zu", i);
        hashes[i] = (struct hashed){(uint32_t)doorman__hash(f.permits->options.seed, key), i};
    }
    qsort(hashes, TRIED, sizeof *hashes, compare_hashes);
    size_t pairs = 0, count = 0;
    doorman_counter_cursor cursor = {.table = 0};
    doorman_permits_counter found;
    for (size_t i = 1; i < TRIED; i++) {
        if (hashes[i].hash != hashes[i - 1].hash) continue;
        pairs++;
        for (size_t k = i - 1; k <= i; k++) {
            snprintf(key, sizeof key, "%zu", hashes[k].number);
            assert_true(take(&f, "api", key, 1));
        }
    }
    assert_true(pairs > 0);
    for (; next(&f, NULL, &cursor, &found) == DOORMAN_OK; count++) {
        doorman_permits_reset(f.permits, ITEM_OF("api", "none"), NULL, NULL, NULL);
    }
    doorman_permits_info info;
    doorman_permits_read(f.permits, &info);
    assert_int_equal(count, info.counter_count);
    assert_true(count >= pairs + 1);
    free(hashes);
    stop(&f);
}

/* A configuration that removes a limit moves tables when the last counter of the limit is gone. A
 * configuration that adds a limit moves no tables. */
TEST(an_iteration_begins_again_after_a_limit_was_removed) {
    struct fixture f =
        start(CONFIG(TEMPLATE("a", QUOTA("q", "")) ", " TEMPLATE("b", QUOTA("q", ""))));
    doorman_counter_cursor cursor = {.table = 0};
    doorman_permits_counter found;
    assert_true(take(&f, "a", "x", 1) && take(&f, "b", "x", 1));
    assert_int_equal(next(&f, NULL, &cursor, &found), DOORMAN_OK);
    reload(&f, CONFIG(TEMPLATE("a", QUOTA("q", "")) ", " TEMPLATE(
                   "b", QUOTA("q", "")) ", " TEMPLATE("c", QUOTA("q", ""))));
    assert_true(take(&f, "c", "x", 1));
    assert_int_equal(next(&f, NULL, &cursor, &found), DOORMAN_OK);
    assert_int_equal(next(&f, NULL, &cursor, &found), DOORMAN_OK);
    reload(&f, CONFIG(TEMPLATE("c", QUOTA("q", ""))));
    for (int i = 0; i < 10; i++) {
        f.now += SECOND;
        doorman_permits_update(f.permits, f.now);
    }
    assert_int_equal(next(&f, NULL, &cursor, &found), DOORMAN_INVALID_ARGUMENT);
    cursor = (doorman_counter_cursor){.table = 0};
    assert_int_equal(next(&f, NULL, &cursor, &found), DOORMAN_OK);
    assert_string_equal(found.identifier_glob, "c");
    assert_int_equal(next(&f, NULL, &cursor, &found), DOORMAN_NOT_FOUND);
    stop(&f);
}
