/* Tests fair limits (P29): what keys get of a limit that they share. */
#include "unit.h"

#include <math.h>
#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#include "../sim/fair_mixes.h"

#define SECOND DOORMAN_SECOND
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- mixes of keys (P29) */

/* Simulates mixes of keys at new random times. Checks how much of the limit is in use, and what the
 * first group of keys gets. If the mix has a bound `within`, checks that in ten windows what each
 * key gets differs from its exact share by at most this part of the share. Runs a quarter of the
 * mixes, and fewer with a sanitizer, because `make sim FAIR=1` runs all. */
TEST(keys_get_their_exact_shares_in_mixes_of_keys) {
    const size_t step = FAIR_MIXES / random_runs(FAIR_MIXES / 4);
    for (size_t i = random_below(step); i < FAIR_MIXES; i += step) {
        fair_mix mix = fair_mixes[i];
        mix.seed = random_bits();
        const fair_result result = fair_simulate(&mix, true);
        if (result.used < mix.used) fail_msg("%s: %.3f in use", mix.name, result.used);
        if (mix.within > 0 && result.worst > mix.within) {
            fail_msg("%s: a key lacks %.3f of its share", mix.name, result.worst);
        }
        if (mix.within > 0 && result.most > mix.within) {
            fail_msg("%s: a key gets %.3f more than its share", mix.name, result.most);
        }
        if (result.served[0] < mix.least) fail_msg("%s: %.3f served", mix.name, result.served[0]);
        assert_true(result.used < 1.1); /* the bucket is the bound, also of one span */
    }
}

/* First come first served gives other results, so the test above can fail. */
TEST(without_fair_a_greedy_key_starves_the_others) {
    fair_mix mix = fair_mixes[0];
    mix.seed = random_bits();
    const fair_result result = fair_simulate(&mix, false);
    assert_true(result.served[0] < 0.2 && result.worst > 0.5);
}

/* ---- one limit */

typedef struct fixture {
    doorman_config *config;
    doorman_permits *permits;
    doorman_time now;
    doorman_permit out;
} fixture;

static doorman_config *config_of(const char *limits) {
    char text[2048];
    doorman_config *config = NULL;
    doorman_error error = {0};
    snprintf(text, sizeof text, "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [%s]}]}",
             limits);
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return config;
}

static void *start_limits(const char *limits, size_t memory_max) {
    fixture *f = (fixture *)test_malloc(sizeof *f);
    *f = (fixture){.config = config_of(limits), .now = 1000 * SECOND};
    const doorman_permits_options options = {
        .config = f->config, .seed = {3, 5}, .memory_max = memory_max};
    assert_int_equal(doorman_permits_create(&f->permits, &options, NULL, f->now), DOORMAN_OK);
    return f;
}

static fixture *start(const char *limits) { return (fixture *)start_limits(limits, 0); }

static void stop(fixture *f) {
    doorman_permits_destroy(f->permits);
    doorman_config_destroy(f->config);
    test_free(f);
}

static void configure(fixture *f, const char *limits) {
    doorman_config *config = config_of(limits);
    assert_int_equal(doorman_permits_configure(f->permits, config), DOORMAN_OK);
    doorman_config_destroy(f->config);
    f->config = config;
}

static bool ask_of(fixture *f, const char *resource, const char *key, double cost) {
    const doorman_permit_item item = {.resource_id = resource, .key = key, .cost = cost};
    const doorman_permit_request request = {.items = &item, .item_count = 1, .detail = true};
    doorman_error error = {0};
    if (doorman_permits_acquire(f->permits, &request, &f->out, &error, f->now) != DOORMAN_OK) {
        fail_msg("%s", error.text);
    }
    return f->out.granted;
}

static bool ask(fixture *f, const char *key, double cost) { return ask_of(f, "a", key, cost); }

/* Lets two keys ask for more than they can get: each ten times in each 10 ms. Returns the part of
 * `one` in what both get after the first 10 s. */
static double part_of(fixture *f, const char *one, const char *other, double seconds) {
    double got[2] = {0, 0};
    const doorman_time begin = f->now;
    for (; f->now - begin < (doorman_time)(seconds * 1e9); f->now += SECOND / 100) {
        for (int i = 0; i < 20; i++) {
            const bool counts = f->now - begin >= 10 * SECOND;
            if (ask(f, i % 2 ? one : other, 1) && counts) got[i % 2]++;
        }
    }
    return got[1] / (got[0] + got[1]);
}

static doorman_permit_detail inspect(fixture *f, const char *key) {
    assert_int_equal(doorman_permits_inspect(f->permits, ITEM_OF("a", key), &f->out, NULL, f->now),
                     DOORMAN_OK);
    assert_int_equal(f->out.detail_count > 0, true);
    return f->out.details[0];
}

static doorman_permits_limit first_limit(const fixture *f) {
    doorman_cursor cursor = {0};
    doorman_permits_limit limit;
    assert_true(doorman_permits_next_limit(f->permits, &cursor, &limit));
    return limit;
}

#define FAIR                                                                                       \
    "{\"name\": \"f\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 100, "         \
    "\"size\": 100, \"fair\": true}"
#define PLAIN                                                                                      \
    "{\"name\": \"f\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 100, "         \
    "\"size\": 100}"

/* P29: a lone key gets all: the same limit without `fair` makes the same decisions. */
TEST(a_lone_key_is_decided_on_as_without_fair) {
    fixture *fair = start(FAIR), *plain = start(PLAIN);
    for (int i = 0; i < 5000; i++) {
        const double cost = (double)random_below(60);
        fair->now = plain->now += (doorman_time)random_below(400) * SECOND / 1000;
        assert_int_equal(ask(fair, "lone", cost), ask(plain, "lone", cost));
        assert_exact(fair->out.details[0].used, plain->out.details[0].used);
        assert_int_equal(fair->out.retry_after, plain->out.retry_after);
    }
    stop(fair);
    stop(plain);
}

/* P29: the bucket of the limit is the hard bound, whatever keys ask for, and however the
 * configuration changes. The model is a bucket that is charged with what was granted. */
TEST(keys_together_never_get_more_than_the_limit) {
    fixture *f = start(FAIR);
    double level = 100;
    for (int i = 0; i < 20000; i++) {
        char key[16];
        const doorman_time step = (doorman_time)random_below(40) * SECOND / 1000;
        const double cost = (double)random_below(random_below(8) ? 4 : 101);
        snprintf(key, sizeof key, "k%zu", random_below(random_below(4) ? 6 : 500));
        f->now += step;
        level = fmin(100, level + (double)step / 1e9 * 100);
        if (random_below(3000) == 0) {
            configure(f, random_below(2) ? FAIR
                                         : FAIR ", {\"name\": \"other\", \"kind\": "
                                                "\"TOKEN_BUCKET\", \"rate\": 20, \"size\": "
                                                "20}");
        }
        if (ask(f, key, cost)) level -= cost;
        assert_true(level > -0.001);
        const bool known = f->out.granted || f->out.reason == DOORMAN_REASON_RATE ||
                           f->out.reason == DOORMAN_REASON_SHARE ||
                           f->out.reason == DOORMAN_REASON_MAX_COST; /* of the other limit */
        assert_true(known);
    }
    stop(f);
}

/* P29: the level is the one that a slow search finds for the demands in the index. */
TEST(the_level_is_where_the_demands_sum_up_to_the_rate) {
    fixture *f = start(FAIR);
    for (int i = 0; i < 20000; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%zu", random_below(1 + random_below(60)));
        f->now += (doorman_time)random_below(10) * SECOND / 1000;
        (void)ask(f, key, (double)(1 + random_below(3)));
        if (i % 500) continue;
        doorman__fair *fair = &f->permits->pools.first->fair;
        double low = 0, high = 100, all = 0;
        for (int step = 0; step < 100; step++) {
            const double level = (low + high) / 2;
            all = doorman__min(level, doorman__fair_rounded(fair->newcomers.demand));
            for (int state = DOORMAN__FAIR_ACTIVE; state < DOORMAN__FAIR_STATES; state++) {
                for (doorman__fair_key *at = fair->lists[state].first; at; at = at->later) {
                    all += fmin(level, doorman__fair_rounded(at->flow.demand));
                }
            }
            if (all < 100) low = level;
            if (all >= 100) high = level;
        }
        assert_near(doorman__fair_level(fair), high, 1e-9);
    }
    stop(f);
}

/* After a million changes, the index still has the sums of all demands. */
TEST(the_sums_of_demands_do_not_drift) {
    enum { KEYS = 500, CHANGES = 1000000 };
    static doorman__demand own[KEYS];
    doorman__fair fair;
    assert_true(doorman__fair_init(&fair, 1e6, 3600 * SECOND, 0));
    for (int i = 0; i < CHANGES; i++) {
        doorman__demand *demand = &own[random_below(KEYS)];
        const bool is_new = demand->subclients == 0;
        const double scale = exp((double)random_below(60) - 30);
        const doorman__demand next =
            doorman__fair_demand((float)(scale * (double)(1 + random_below(1000))),
                                 (uint32_t)(1 + random_below(DOORMAN_WEIGHT_MAX)));
        assert_true(doorman__fair_replace(&fair, is_new ? NULL : demand, next));
        *demand = next;
        if (i % 10007 && i + 1 < CHANGES) continue;
        double wants = 0;
        uint64_t weights = 1; /* of the newcomers */
        for (int j = 0; j < KEYS; j++) wants += own[j].wants;
        for (int j = 0; j < KEYS; j++) weights += own[j].subclients;
        const doorman__sums sums = doorman__node_sums(fair.index.bands[0]);
        assert_near(sums.wants / wants, 1, 1e-12);
        assert_int_equal(sums.subclients, weights);
    }
    doorman__fair_uninit(&fair);
}

/* P29: in a window of an hour a key asks for more units than a float counts one by one. */
TEST(a_demand_over_an_hour_counts_each_unit) {
    enum { ASKS = 4000000 };
    for (int newcomers = 0; newcomers < 2; newcomers++) {
        doorman__fair fair;
        doorman_time now = SECOND;
        const doorman__fair_name name = {.text = "a", .bytes = 1, .hash = 7, .weight = 1};
        assert_true(doorman__fair_init(&fair, 1e6, 3600 * SECOND, now));
        doorman__fair_key *key = newcomers ? NULL : doorman__fair_add(&fair, &name, now);
        if (key) assert_true(doorman__fair_measure(&fair, key, &name, now));
        const doorman__fair_flow *flow = key ? &key->flow : &fair.newcomers;
        now += SECOND;
        doorman__fair_note(&fair, key, &name, (doorman__fair_ask){1 << 24, 0}, now);
        for (int i = 0; i < ASKS; i++) {
            now += SECOND / 100000; /* 40 s in all */
            doorman__fair_note(&fair, key, &name, (doorman__fair_ask){1, 0}, now);
        }
        const double all = (1 << 24) + (double)ASKS;
        const double demand = (double)doorman__fair_measured(&fair, flow, 1e6, now);
        assert_near(demand / (all / 3600), 1, 0.02);
        doorman__fair_uninit(&fair);
    }
}

/* ---- refusals and descriptions */

/* P29: the refusal names the limit and the share. After retry_after the same permit is granted, if
 * no other key asks. */
TEST(a_key_that_has_used_its_share_is_refused_with_the_share) {
    fixture *f = start(FAIR);
    (void)part_of(f, "a", "b", 20);
    while (ask(f, "a", 1) || f->out.reason != DOORMAN_REASON_SHARE) f->now += SECOND / 1000;
    assert_string_equal(f->out.limit, "f");
    assert_near(f->out.share, 50, 0.01);
    assert_true(f->out.has_retry_after && f->out.retry_after > 0 && f->out.retry_after < SECOND);
    assert_true(f->out.valid_for <= f->out.retry_after);
    f->now += f->out.retry_after + SECOND / 1000;
    assert_true(ask(f, "a", 1));
    assert_string_equal(doorman_reason_name(DOORMAN_REASON_SHARE), "SHARE");
    assert_true(first_limit(f).refused[DOORMAN_REASON_SHARE] > 100);
    stop(f);
}

/* P29: of the keys above their shares, those with the fullest buckets come first. One of two greedy
 * keys takes all that it may have. Then the other key still gets some units. */
TEST(of_two_greedy_keys_the_one_that_lacks_more_comes_first) {
    fixture *f = start(FAIR);
    int taken = 0, left = 0;
    (void)part_of(f, "one", "other", 20);
    f->now += 3 * SECOND;
    while (ask(f, "one", 1)) taken++;
    assert_int_equal(f->out.reason, DOORMAN_REASON_SHARE);
    assert_near(inspect(f, "one").remaining, 20, 0.06);
    while (ask(f, "other", 1)) left++;
    assert_int_equal(f->out.reason, DOORMAN_REASON_SHARE);
    assert_in_range(taken, 80, 82);
    assert_in_range(left, 5, 9);
    stop(f);
}

TEST(an_inspection_says_what_a_key_asks_for_and_changes_nothing) {
    fixture *f = start(FAIR);
    doorman_permit_detail detail = inspect(f, "a");
    assert_true(detail.fair);
    assert_exact(detail.demand, 0);
    assert_exact(detail.share, 100);
    assert_int_equal(first_limit(f).fair_count, 0);
    for (int i = 0; i < 2000; i++, f->now += SECOND / 100) {
        (void)ask(f, "greedy", 10);
        const bool asks = i % 10 == 0;
        if (asks && !ask(f, "small", 1) && i > 500) fail_msg("it is refused");
    }
    for (int i = 0; i < 2; i++) {
        detail = inspect(f, "small");
        assert_near(detail.demand, 10, 0.1);
        assert_near(detail.level, 90, 0.05);
        assert_exact(detail.share, detail.level);
        detail = inspect(f, "greedy");
        assert_near(detail.demand, 100, 0.01); /* cut to the rate */
        assert_near(detail.share, 90, 0.05);
    }
    assert_int_equal(first_limit(f).fair_count, 2);
    stop(f);
}

TEST(the_most_frequent_keys_are_listed_with_their_shares) {
    fixture *f = start(FAIR);
    (void)part_of(f, "a", "b", 12);
    doorman_cursor cursor = {0};
    doorman_permits_top top;
    size_t count = 0;
    while (doorman_permits_next_top(f->permits, 0, DOORMAN_TOP_GRANTED, &cursor, &top)) {
        assert_true(top.fair);
        assert_near(top.share, 50, 0.01);
        assert_near(top.demand, 100, 0.01);
        count++;
    }
    assert_int_equal(count, 2);
    f->now += 1000 * SECOND; /* the keys are forgotten */
    doorman_permits_update(f->permits, f->now);
    for (int i = 0; i < 20; i++) doorman_permits_update(f->permits, f->now += 2 * SECOND);
    cursor = (doorman_cursor){0};
    while (doorman_permits_next_top(f->permits, 0, DOORMAN_TOP_GRANTED, &cursor, &top)) {
        assert_false(top.fair);
    }
    stop(f);
}

/* ---- what counts as a demand */

/* P29: a permit that another limit refuses is no demand, and makes no key. */
TEST(a_permit_that_another_limit_refuses_is_no_demand) {
    fixture *f = start(FAIR ", {\"name\": \"own\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, "
                            "\"size\": 5}");
    for (int i = 0; i < 5; i++) assert_true(ask(f, "a", 1));
    const double before = inspect(f, "a").demand;
    for (int i = 0; i < 1000; i++) assert_false(ask(f, "a", 1));
    assert_exact(inspect(f, "a").demand, before);
    assert_false(ask(f, "b", 6)); /* more than the other limit ever grants */
    assert_int_equal(first_limit(f).fair_count, 1);
    stop(f);
}

/* P29: newcomers together have the share of one key. */
TEST(keys_that_ask_once_do_not_starve_a_key_that_stays) {
    fixture *f = start(FAIR);
    size_t refused = 0, once = 0;
    for (int i = 0; i < 40000; i++, f->now += SECOND / 1000) {
        char key[24];
        snprintf(key, sizeof key, "once-%d", i);
        once += ask(f, key, 1);
        if (i % 50 == 0 && !ask(f, "stays", 1) && i > 5000) refused++; /* 20 a second */
    }
    assert_int_equal(refused, 0);
    assert_true(once > 3000 && once < 3400); /* 80 a second */
    stop(f);
}

/* P29, P27: a key that reserves much and uses little has a small demand, so others get the rest. */
TEST(a_settlement_takes_back_the_demand_of_its_key) {
    fixture *f = start(FAIR);
    int got = 0;
    for (uint64_t i = 1; i <= 500; i++, f->now += SECOND / 10) {
        doorman_permit_item item = {.resource_id = "a", .key = "reserves", .cost = 20};
        const doorman_permit_request request = {.items = &item,
                                                .item_count = 1,
                                                .client_id = "c",
                                                .request_id = i,
                                                .settle_within = 10 * SECOND};
        const doorman_settle_request settle = {
            .client_id = "c", .request_id = i, .items = &item, .item_count = 1};
        doorman_settlement settled;
        for (int j = 0; j < 8; j++) got += ask(f, "b", 1);
        assert_int_equal(doorman_permits_acquire(f->permits, &request, &f->out, NULL, f->now),
                         DOORMAN_OK);
        if (!f->out.granted) continue;
        item.cost = 1;
        assert_int_equal(doorman_permits_settle(f->permits, &settle, &settled, NULL, f->now),
                         DOORMAN_OK);
    }
    assert_true(got > 3800); /* of 4000; the two together use 90 of 100 a second */
    assert_near(inspect(f, "reserves").demand, 10, 2);
    stop(f);
}

/* P29, P13: what a report charges is a demand, and is taken from the bucket of the key too. */
TEST(a_report_is_a_demand_of_its_key) {
    fixture *f = start(FAIR);
    const doorman_permit_item item = {.resource_id = "a", .key = "a", .cost = 40};
    double charged = 0;
    assert_int_equal(doorman_permits_report(f->permits, &item, &charged, NULL, f->now), DOORMAN_OK);
    f->now += SECOND;
    assert_near(inspect(f, "a").demand, 20, 0.01); /* over two seconds */
    stop(f);
}

/* P29: a cost that the limit can never give counts as the most that it can give. Otherwise one such
 * request would be a demand for years, and its key could save units all that time. */
TEST(a_cost_that_the_limit_never_gives_is_soon_forgotten) {
    fixture *f = start(FAIR);
    for (int i = 0; i < 1000; i++, f->now += SECOND / 100) {
        const doorman_permit_item item = {
            .resource_id = "a", .key = "vast", .cost = 1e12, .has_min = true};
        const doorman_permit_request request = {.items = &item, .item_count = i % 100 == 0};
        if (request.item_count) {
            assert_int_equal(doorman_permits_acquire(f->permits, &request, &f->out, NULL, f->now),
                             DOORMAN_OK);
        }
        (void)ask(f, "b", 2);
    }
    for (int i = 0; i < 20000; i++, f->now += SECOND / 100) (void)ask(f, "b", 2);
    assert_near(inspect(f, "b").share, 100, 1);
    assert_int_equal(first_limit(f).fair_count, 1);
    assert_near(part_of(f, "vast", "b", 30), 0.5, 0.02);
    stop(f);
}

/* P25: a limit in shadow refuses nothing, and counts what it would refuse. */
TEST(a_fair_limit_in_shadow_only_counts) {
    fixture *f = start("{\"name\": \"f\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", "
                       "\"rate\": 100, \"size\": 100, \"fair\": true, \"shadow\": true}");
    assert_near(part_of(f, "a", "b", 12), 0.5, 1e-9);
    assert_true(first_limit(f).shadow_refused > 1000);
    stop(f);
}

/* A permit with a minimum gets what its key has saved, and never less than the minimum. */
TEST(a_permit_with_a_minimum_gets_what_the_key_has_saved) {
    fixture *f = start(FAIR);
    (void)part_of(f, "a", "b", 20);
    for (int i = 0; i < 500; i++, f->now += SECOND / 100) {
        const doorman_permit_item item = {
            .resource_id = "a", .key = "a", .cost = 50, .has_min = true, .min = 1};
        const doorman_permit_request request = {.items = &item, .item_count = 1};
        (void)ask(f, "b", 3);
        assert_int_equal(doorman_permits_acquire(f->permits, &request, &f->out, NULL, f->now),
                         DOORMAN_OK);
        if (f->out.granted) assert_true(f->out.items[0].granted >= 1);
    }
    assert_near(part_of(f, "a", "b", 30), 0.5, 0.02);
    stop(f);
}

/* ---- permits of several keys */

typedef struct part_of_permit {
    const char *key;
    double min, cost;
} part_of_permit;

/* Asks for a permit of several items of one resource. */
static bool ask_several(fixture *f, const part_of_permit *parts, size_t count) {
    doorman_permit_item items[16];
    assert_true(count <= 16);
    for (size_t i = 0; i < count; i++) {
        items[i] = (doorman_permit_item){.resource_id = "a",
                                         .key = parts[i].key,
                                         .cost = parts[i].cost,
                                         .has_min = parts[i].min < parts[i].cost,
                                         .min = parts[i].min < parts[i].cost ? parts[i].min : 0};
    }
    const doorman_permit_request request = {.items = items, .item_count = count, .detail = true};
    assert_int_equal(doorman_permits_acquire(f->permits, &request, &f->out, NULL, f->now),
                     DOORMAN_OK);
    return f->out.granted;
}

/* Lets two keys ask for more than they can get, and a third one for 10/s, until the first one is
 * refused with SHARE. */
static void crowd(fixture *f) {
    for (int i = 0; i < 2000 || f->out.reason != DOORMAN_REASON_SHARE; i++) {
        f->now += SECOND / 100;
        if (i % 10 == 0) (void)ask(f, "small", 1);
        for (int j = 0; j < 4; j++) (void)ask(f, "b", 1);
        for (int j = 0; j < 4; j++) (void)ask(f, "a", 1);
    }
}

/* P29: while there is enough, a permit of several keys counts as one permit of each key. */
TEST(each_key_of_a_permit_counts_what_it_asks_for) {
    static const char *const keys[] = {"k1", "k2", "k3", "k4"};
    fixture *together = start(FAIR), *apart = start(FAIR);
    for (int step = 0; step < 3000; step++) {
        part_of_permit parts[4];
        size_t count = 0;
        together->now = apart->now += (doorman_time)random_below(200) * SECOND / 1000;
        for (size_t i = 0; i < 4; i++) {
            const double cost = (double)(1 + random_below(8)) / 8;
            if (random_below(2)) parts[count++] = (part_of_permit){keys[i], cost, cost};
        }
        if (!count) continue;
        assert_true(ask_several(together, parts, count));
        for (size_t i = 0; i < count; i++) assert_true(ask(apart, parts[i].key, parts[i].cost));
        for (size_t i = 0; i < 4; i++) {
            const doorman_permit_detail one = inspect(together, keys[i]);
            const doorman_permit_detail other = inspect(apart, keys[i]);
            assert_near(one.demand, other.demand, 1e-5);
            assert_exact(one.share, other.share);
            assert_exact(one.used, other.used);
        }
    }
    assert_int_equal(first_limit(together).fair_count, 4);
    stop(together);
    stop(apart);
}

/* P1, P29: the second key has used its share, so nothing of the permit is charged. The refusal
 * names the item of this key, and the demand of the other key does not grow. */
TEST(a_permit_is_refused_if_one_of_its_keys_has_used_its_share) {
    fixture *f = start(FAIR);
    crowd(f);
    const double before = inspect(f, "small").demand, used = inspect(f, "small").used;
    const part_of_permit parts[] = {{"small", 1, 1}, {"a", 1, 1}};
    assert_false(ask_several(f, parts, 2));
    assert_int_equal(f->out.reason, DOORMAN_REASON_SHARE);
    assert_int_equal(f->out.item_index, 1);
    assert_true(f->out.share > 40);
    const doorman_time wait = f->out.retry_after + SECOND / 1000;
    assert_exact(inspect(f, "small").demand, before);
    assert_exact(inspect(f, "small").used, used);
    f->now += wait;
    assert_true(ask_several(f, parts, 2));
    stop(f);
}

/* P29: a key gets no more than its share, even if its permits name another key before it. */
TEST(a_key_gets_its_share_behind_any_other_key) {
    fixture *f = start(FAIR);
    double got = 0, all = 0;
    for (int step = 0; step < 6000; step++, f->now += SECOND / 100) {
        char cover[16];
        snprintf(cover, sizeof cover, "c%d", step % 7);
        const part_of_permit parts[] = {{cover, 0, 0}, {"greedy", 1, 1}};
        for (int i = 0; i < 10; i++) {
            const bool hidden = ask_several(f, parts, 2), honest = ask(f, "honest", 1);
            if (step < 1000) continue;
            got += honest;
            all += hidden + honest;
        }
    }
    assert_near(got / all, 0.5, 0.02);
    stop(f);
}

/* P2, P29: above its minimum, each item gets what its own key has saved. */
TEST(each_item_gets_what_its_own_key_has_saved) {
    fixture *f = start(FAIR);
    crowd(f);
    const part_of_permit parts[] = {{"small", 0, 3}, {"a", 0, 10}, {"small", 0, 2}};
    assert_true(ask_several(f, parts, 3));
    assert_exact(f->out.items[0].granted, 3);
    assert_true(f->out.items[1].granted < 2);
    assert_exact(f->out.items[2].granted, 2);
    stop(f);
}

/* P27, P29 */
TEST(a_settlement_takes_back_the_demand_of_each_key) {
    fixture *f = start(FAIR);
    for (int i = 0; i < 50; i++, f->now += SECOND / 10) {
        assert_true(ask(f, "x", 1) && ask(f, "y", 1));
    }
    const double before[] = {inspect(f, "x").demand, inspect(f, "y").demand};
    doorman_permit_item items[] = {{.resource_id = "a", .key = "x", .cost = 5},
                                   {.resource_id = "a", .key = "y", .cost = 20}};
    const doorman_permit_request request = {.items = items,
                                            .item_count = 2,
                                            .client_id = "c",
                                            .request_id = 1,
                                            .settle_within = SECOND};
    assert_int_equal(doorman_permits_acquire(f->permits, &request, &f->out, NULL, f->now),
                     DOORMAN_OK);
    assert_true(f->out.granted);
    doorman_settlement settled;
    items[0].cost = items[1].cost = 0;
    const doorman_settle_request settle = {
        .client_id = "c", .request_id = 1, .items = items, .item_count = 2};
    assert_int_equal(doorman_permits_settle(f->permits, &settle, &settled, NULL, f->now),
                     DOORMAN_OK);
    assert_exact(settled.items[1].returned, 20);
    f->now += SECOND / 10;
    for (int i = 0; i < 2; i++) assert_true(inspect(f, i ? "y" : "x").demand < before[i] + 0.01);
    stop(f);
}

/* P19, P29: a new key takes the room of an older newcomer, even if both are in the same permit. */
TEST(keys_of_one_permit_stay_within_max_keys) {
    fixture *f = start("{\"name\": \"f\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", "
                       "\"rate\": 1000, \"size\": 1000, \"fair\": true, \"max_keys\": 3}");
    for (int step = 0; step < 3000; step++) {
        char texts[8][16];
        part_of_permit parts[8];
        for (int i = 0; i < 8; i++) {
            snprintf(texts[i], sizeof texts[i], "k%d", (int)random_below(12));
            parts[i] = (part_of_permit){texts[i], 0, 1};
        }
        f->now += (doorman_time)random_below(1000) * SECOND / 1000;
        assert_true(ask_several(f, parts, 8));
        assert_true(first_limit(f).fair_count <= 3);
    }
    stop(f);
}

/* ---- weights */

#define WEIGHTED(rest)                                                                             \
    "{\"name\": \"f\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 100, "         \
    "\"size\": 100, \"fair\": true, " rest "}"

TEST(weights_of_a_configuration_divide_the_limit) {
    fixture *f = start(WEIGHTED("\"overrides\": [{\"keys\": [\"vip-*\"], \"weight\": 3}]"));
    assert_near(part_of(f, "vip-1", "b", 30), 0.75, 0.01);
    configure(f, WEIGHTED("\"overrides\": [{\"keys\": [\"vip-*\"], \"weight\": 4}], \"weight\": "
                          "6"));
    assert_near(part_of(f, "vip-1", "b", 30), 0.4, 0.01);
    configure(f, FAIR);
    assert_near(part_of(f, "vip-1", "b", 30), 0.5, 0.01);
    stop(f);
}

/* E1: a row sets the weight of one key, and ends. */
TEST(an_override_row_sets_a_weight) {
    fixture *f = start(FAIR);
    doorman_permits_set_epoch(f->permits, 1000000 * SECOND, f->now);
    doorman_override_row row = {.resource_id = "a",
                                .limit = "f",
                                .key = "a",
                                .id = 1,
                                .figures = {.weight = 9},
                                .ends_at = 1000040 * SECOND};
    doorman_error error = {0};
    if (doorman_permits_set_override(f->permits, &row, &error, f->now) != DOORMAN_OK) {
        fail_msg("%s", error.text);
    }
    assert_near(part_of(f, "a", "b", 30), 0.9, 0.01);
    assert_near(inspect(f, "a").share, 90, 0.01);
    f->now += 20 * SECOND;
    assert_near(part_of(f, "a", "b", 30), 0.5, 0.02);
    row.figures = (doorman_figures){.rate = 5};
    row.ends_at = 0;
    assert_int_equal(doorman_permits_set_override(f->permits, &row, &error, f->now),
                     DOORMAN_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "weight: is all that a fair limit can have for some keys"));
    row.figures = (doorman_figures){.rate = 0};
    row.add = 5;
    assert_int_equal(doorman_permits_set_override(f->permits, &row, &error, f->now),
                     DOORMAN_INVALID_ARGUMENT);
    stop(f);
}

/* E2: a plan sets a weight. A limit per template has one pool for all its resources. */
TEST(a_plan_sets_a_weight_of_a_limit_per_template) {
    fixture *f = start("{\"name\": \"f\", \"per\": \"template\", \"kind\": \"TOKEN_BUCKET\", "
                       "\"rate\": 100, \"size\": 100, \"fair\": true, "
                       "\"plans\": {\"pro\": {\"weight\": 4}}}");
    const doorman_plan_row row = {.identifier_glob = "*", .key = "a", .plan = "pro", .id = 1};
    doorman_error error = {0};
    if (doorman_permits_set_plan(f->permits, &row, &error, f->now) != DOORMAN_OK) {
        fail_msg("%s", error.text);
    }
    double got[2] = {0, 0};
    const doorman_time begin = f->now;
    for (; f->now - begin < 40 * SECOND; f->now += SECOND / 200) {
        const char *resource = random_below(2) ? "x" : "y";
        const bool counts = f->now - begin > 10 * SECOND;
        if (ask_of(f, resource, "a", 1) && counts) got[0]++;
        if (ask_of(f, resource, "b", 1) && counts) got[1]++;
    }
    assert_near(got[0] / got[1], 4, 0.05);
    assert_int_equal(first_limit(f).fair_count, 2);
    const doorman_override_row wrong = {
        .resource_id = "x", .limit = "f", .key = "a", .id = 2, .figures = {.weight = 2}};
    assert_int_equal(doorman_permits_set_override(f->permits, &wrong, NULL, f->now),
                     DOORMAN_INVALID_ARGUMENT);
    stop(f);
}

/* P29: a key that stayed silent over any number of configurations has the present weight. */
TEST(a_weight_is_right_after_many_configurations) {
    static const char three[] = WEIGHTED("\"overrides\": [{\"keys\": [\"vip\"], \"weight\": 3}]");
    static const char seven[] = WEIGHTED("\"overrides\": [{\"keys\": [\"vip\"], \"weight\": 7}]");
    for (int configurations = 1; configurations < 40; configurations++) {
        fixture *f = start(three);
        for (int i = 0; i < 30; i++, f->now += SECOND / 10) {
            assert_true(ask(f, "vip", 1) && ask(f, "b", 1));
        }
        for (int i = 1; i < configurations; i++) {
            configure(f, three);
            (void)ask(f, "b", 1);
        }
        configure(f, seven);
        for (int i = 0; i < 10; i++, f->now += SECOND / 10) assert_true(ask(f, "vip", 1));
        const doorman__fair_key *key = f->permits->pools.first->fair.lists[1].last;
        assert_memory_equal(key + 1, "vip", 3);
        assert_int_equal(doorman__fair_weight(key), 7);
        stop(f);
    }
}

/* ---- memory */

/* P19: a limit measures at most max_keys keys. A flood replaces newcomers, but not the keys that
 * ask all the time. */
TEST(a_flood_of_keys_stays_within_max_keys) {
    fixture *f = start(WEIGHTED("\"max_keys\": 50"));
    for (int i = 0; i < 300; i++, f->now += SECOND / 100) (void)ask(f, "stays", 1);
    for (int i = 0; i < 20000; i++, f->now += SECOND / 1000) {
        char key[24];
        snprintf(key, sizeof key, "once-%d", i);
        (void)ask(f, key, 1);
        if (i % 100 == 0) (void)ask(f, "stays", 1);
        assert_true(first_limit(f).fair_count <= 50);
    }
    assert_near(inspect(f, "stays").demand, 10, 0.2);
    stop(f);
}

/* P29: a flood of keys of one resource leaves room for the keys of another one. */
TEST(a_flood_at_one_resource_leaves_another_one_fair) {
    fixture *f = start(WEIGHTED("\"max_keys\": 50"));
    int small = 0;
    for (int i = 0; i < 6000; i++, f->now += SECOND / 100) {
        char key[24];
        for (int j = 0; j < 2; j++) {
            snprintf(key, sizeof key, "once-%d-%d", i, j);
            (void)ask_of(f, "flooded", key, 1);
        }
        for (int j = 0; j < 20 && i > 1000; j++) (void)ask(f, "greedy", 1);
        if (i > 1000 && i % 10 == 5) small += ask(f, "small", 1);
        assert_true(first_limit(f).fair_count <= 50);
    }
    assert_true(small > 450); /* of 500; first come first served gives it almost nothing */
    stop(f);
}

/* P19: memory_max bounds the keys too. Keys that do not fit count as newcomers without a name. */
TEST(keys_of_fair_limits_stay_within_memory_max) {
    fixture *f = (fixture *)start_limits(FAIR, 40000);
    doorman_permits_info info;
    for (int i = 0; i < 5000; i++, f->now += SECOND / 1000) {
        char key[24];
        snprintf(key, sizeof key, "once-%d", i);
        (void)ask(f, key, 1);
        assert_true(f->permits->node_bytes + f->permits->top_bytes <= 40000);
    }
    doorman_permits_read(f->permits, &info);
    assert_true(first_limit(f).fair_count > 10);
    stop(f);
}

/* On 64-bit systems a key needs 24 bytes more than a bucket of its own. P14: keys that are silent
 * are forgotten, and so is the pool. */
TEST(silent_keys_are_forgotten) {
    if (sizeof(void *) == 8) {
        assert_int_equal(sizeof(doorman__fair_key),
                         sizeof(doorman__counter) + 2 * sizeof(uint64_t) + 24);
    }
    fixture *f = start(FAIR);
    for (int i = 0; i < 2000; i++, f->now += SECOND / 500) {
        char key[24];
        snprintf(key, sizeof key, "k%d", i % 100);
        (void)ask(f, key, 1);
    }
    assert_int_equal(first_limit(f).fair_count, 100);
    for (int i = 0; i < 60; i++) doorman_permits_update(f->permits, f->now += SECOND);
    assert_int_equal(first_limit(f).fair_count, 0);
    assert_null(f->permits->pools.first);
    assert_int_equal(doorman_permits_due(f->permits), DOORMAN_NEVER);
    stop(f);
}

/* If memory runs out, the call fails, or the limit decides as usual without measuring the key. */
TEST(a_decision_without_memory_is_made_without_the_key) {
    for (size_t n = 2; n < 48; n++) {
        fixture *f = start(FAIR);
        const doorman_permit_item item = {.resource_id = "a", .key = "a", .cost = 1};
        const doorman_permit_request request = {.items = &item, .item_count = 1};
        memory_fails_at(n / 2);
        const doorman_status status =
            doorman_permits_acquire(f->permits, &request, &f->out, NULL, f->now);
        (void)memory_works();
        assert_true(status == DOORMAN_OK || status == DOORMAN_OUT_OF_MEMORY);
        for (int i = status == DOORMAN_OK; n % 2 && i < 100; i++) assert_true(ask(f, "a", 1));
        assert_true(n % 2 == 0 || !ask(f, "a", 1));
        stop(f); /* half of the times right after the failure */
    }
}

/* P29, P15, P16: a reset fills the bucket of the limit. A change of the configuration keeps the
 * keys and what they ask for. */
TEST(a_reset_and_a_configuration_keep_the_demands) {
    fixture *f = start(FAIR);
    (void)part_of(f, "a", "b", 12);
    while (ask(f, "a", 1)) continue;
    assert_int_equal(doorman_permits_reset(f->permits, ITEM_OF("a", ""), "f", NULL, NULL),
                     DOORMAN_OK);
    assert_true(ask(f, "a", 1)); /* the bucket is full */
    configure(f, FAIR);
    assert_near(inspect(f, "a").demand, 100, 0.05);
    assert_near(inspect(f, "a").share, 50, 0.01);
    configure(f, PLAIN);
    assert_false(inspect(f, "a").fair);
    f->now += SECOND;
    for (int i = 0; i < 100; i++) assert_true(ask(f, "a", 1)); /* without shares */
    stop(f);
}

/* ---- configurations */

static void expect_error(const char *limit, const char *path) {
    char text[1024];
    doorman_config *config = NULL;
    doorman_error error = {0};
    snprintf(text, sizeof text, "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [%s]}]}",
             limit);
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    assert_int_equal(status, DOORMAN_INVALID_ARGUMENT);
    if (!strstr(error.text, path)) fail_msg("%s\n  is not in\n%s", path, error.text);
}

#define BUCKET "\"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1, \"on_restart\": \"full\""

TEST(a_wrong_fair_limit_is_refused_by_name) {
    static const char *const wrong[][2] = {
        {"{\"name\": \"f\", " BUCKET ", \"fair\": true}",
         "limits[0].fair: needs a limit per resource or per template, which its keys share"},
        {"{\"name\": \"f\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1, "
         "\"window\": 1, \"fair\": true}",
         "limits[0].fair: only a TOKEN_BUCKET can be fair"},
        {"{\"name\": \"f\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": "
         "\"leased\", \"fair\": true}",
         "limits[0].fair: a leased limit cannot be fair"},
        {"{\"name\": \"f\", \"per\": \"resource\", " BUCKET ", \"fair\": 1}", "limits[0].fair: "},
        {"{\"name\": \"f\", \"per\": \"resource\", " BUCKET ", \"fair_window\": 2}",
         "limits[0].fair_window: only a fair limit has one"},
        {"{\"name\": \"f\", \"per\": \"resource\", " BUCKET ", \"fair\": true, \"fair_window\": "
         "0.01}",
         "limits[0].fair_window: must be from 0.1 to 3,600 seconds"},
        {"{\"name\": \"f\", \"per\": \"resource\", " BUCKET ", \"weight\": 2}",
         "limits[0].weight: only a fair limit has one"},
        {"{\"name\": \"f\", \"per\": \"resource\", " BUCKET ", \"fair\": true, \"weight\": 0}",
         "limits[0].weight: "},
        {"{\"name\": \"f\", \"per\": \"resource\", " BUCKET ", \"fair\": true, \"weight\": -1}",
         "limits[0].weight: "},
        {"{\"name\": \"f\", \"per\": \"resource\", " BUCKET ", \"fair\": true, \"weight\": "
         "\"NaN\"}",
         "limits[0].weight: "},
        {"{\"name\": \"f\", \"per\": \"resource\", " BUCKET ", \"fair\": true, \"weight\": 100001}",
         "limits[0].weight: "},
        {"{\"name\": \"f\", \"per\": \"resource\", " BUCKET ", \"fair\": true, \"overrides\": "
         "[{\"keys\": [\"a\"], \"weight\": 2, \"rate\": 3}]}",
         "limits[0].overrides[0].weight: is all that a fair limit can have for some keys"},
        {"{\"name\": \"f\", \"per\": \"resource\", " BUCKET ", \"fair\": true, \"overrides\": "
         "[{\"keys\": [\"a\"]}]}",
         "limits[0].overrides[0].weight: must be an integer from 1 to 100,000"},
        {"{\"name\": \"f\", \"per\": \"resource\", " BUCKET ", \"fair\": true, \"plans\": "
         "{\"pro\": {\"size\": 2}}}",
         "limits[0].plans.pro.weight: is all that a fair limit can have for some keys"},
        {"{\"name\": \"f\", \"per\": \"resource\", " BUCKET ", \"overrides\": "
         "[{\"keys\": [\"a\"], \"rate\": 2}]}",
         "limits[0].overrides: needs a limit per key"},
        {"{\"name\": \"f\", \"per\": \"resource\", " BUCKET ", \"fair\": true, \"ban\": "
         "{\"refusals\": 1, \"window\": 1, \"duration\": 1}}",
         "limits[0].ban: needs a limit per key"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) expect_error(wrong[i][0], wrong[i][1]);
}

TEST(a_fair_limit_is_written_and_read_back) {
    doorman_config *config =
        config_of(WEIGHTED("\"fair_window\": 5, \"weight\": 2, \"overrides\": [{\"keys\": "
                           "[\"a\"], \"weight\": 7}], \"plans\": {\"pro\": {\"weight\": 3}}"));
    doorman_config_options read;
    doorman_buffer text = {NULL, 0, 0};
    doorman_config_read(config, &read);
    const doorman_permit_limit *limit = &read.templates[0].limits[0];
    assert_true(limit->fair && limit->fair_window == 5 * SECOND && limit->figures.weight == 2);
    assert_int_equal(limit->overrides[0].figures.weight, 7);
    assert_int_equal(limit->plans[0].figures.weight, 3);
    assert_int_equal(doorman_json_write_config(&read, &text), DOORMAN_OK);
    assert_non_null(strstr(text.text, "\"fair\":true"));
    assert_non_null(strstr(text.text, "\"fair_window\":5"));
    assert_non_null(strstr(text.text, "\"weight\":2"));
    assert_non_null(strstr(text.text, "\"weight\":7"));
    doorman_config *again = NULL;
    assert_int_equal(doorman_json_config(&again, text.text, text.bytes, NULL), DOORMAN_OK);
    doorman_config_read(again, &read);
    assert_int_equal(read.templates[0].limits[0].overrides[0].figures.weight, 7);
    assert_int_equal(read.templates[0].limits[0].plans[0].figures.weight, 3);
    doorman_config *copy = NULL;
    assert_int_equal(doorman_config_create(&copy, &read, NULL), DOORMAN_OK);
    doorman_config_destroy(copy);
    doorman_config_destroy(again);
    doorman_buffer_uninit(&text);
    doorman_config_destroy(config);
    config = config_of(FAIR);
    doorman_config_read(config, &read);
    assert_int_equal(read.templates[0].limits[0].fair_window, 2 * SECOND);
    assert_int_equal(doorman_json_write_config(&read, &text), DOORMAN_OK);
    assert_null(strstr(text.text, "fair_window"));
    doorman_buffer_uninit(&text);
    doorman_config_destroy(config);
}
