/* Tests section >>shares of doorman.h. Compares each kind with examples from the literature, and
 * with a slow solver that is written from the definition. Compares the index with a recount. */
#include "unit.h"

#include <math.h>

#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
enum { DEMANDS_MAX = 400 };

#define ALGORITHM(...) ((doorman_algorithm){__VA_ARGS__})

/* Asserts that each demand gets the amount with the same index in `expected`. */
static void assert_shares(doorman_algorithm algorithm, double capacity,
                          const doorman_demand *demands, const double *expected, size_t count) {
    double amounts[DEMANDS_MAX];
    assert_int_equal(
        doorman_shares(&algorithm, capacity, demands, count, amounts, NULL, NULL, NULL),
        DOORMAN_OK);
    for (size_t i = 0; i < count; i++) assert_about(amounts[i], expected[i]);
}

/* ---- worked examples ----------------------------------------------------------------------- */

static const doorman_demand three_demands[] = {{1000, 1, 1}, {50, 1, 1}, {10, 1, 1}};

TEST(fair_shares_of_120_between_1000_and_50_and_10_are_60_and_50_and_10) {
    const double expected[] = {60, 50, 10};
    assert_shares(ALGORITHM(.kind = DOORMAN_FAIR_SHARE), 120, three_demands, expected, 3);
}

TEST(proportional_shares_of_120_are_equal_parts_and_a_part_of_the_rest) {
    const double expected[] = {40 + 30 * 960.0 / 970, 40 + 30 * 10.0 / 970, 10};
    assert_shares(ALGORITHM(.kind = DOORMAN_PROPORTIONAL_SHARE), 120, three_demands, expected, 3);
    assert_near(expected[0], 69.69, 1e-4);
    assert_near(expected[1], 40.31, 1e-4);
}

TEST(proportional_shares_of_90_between_100_and_50_and_10) {
    const doorman_demand demands[] = {{100, 1, 1}, {50, 1, 1}, {10, 1, 1}};
    const double expected[] = {30 + 20 * 70.0 / 90, 30 + 20 * 20.0 / 90, 10};
    assert_shares(ALGORITHM(.kind = DOORMAN_PROPORTIONAL_SHARE), 90, demands, expected, 3);
}

/* The demand of 10 leaves 30 of its equal part of 40. Then the demand of 45 leaves 5 of its part of
 * 50. These 5 go to the demand of 100. */
TEST(fair_share_distributes_the_whole_capacity) {
    const doorman_demand demands[] = {{100, 1, 1}, {50, 1, 1}, {45, 1, 1}, {10, 1, 1}};
    const double expected[] = {55, 50, 45, 10};
    assert_shares(ALGORITHM(.kind = DOORMAN_FAIR_SHARE), 160, demands, expected, 4);
}

TEST(fair_shares_of_unlimited_wants_are_proportional_to_weights) {
    const doorman_demand demands[] = {{1000, 6, 1}, {500, 4, 1}, {200, 2, 1}};
    const double expected[] = {60, 40, 20};
    assert_shares(ALGORITHM(.kind = DOORMAN_FAIR_SHARE), 120, demands, expected, 3);
}

TEST(priority_bands_are_served_from_the_highest_down) {
    const doorman_demand demands[] = {{100, 1, 2}, {50, 1, 1}, {50, 1, 1}};
    const double expected[] = {100, 10, 10};
    assert_shares(ALGORITHM(.kind = DOORMAN_PRIORITY_SHARE), 120, demands, expected, 3);
    const double of_nothing_left[] = {90, 0, 0};
    assert_shares(ALGORITHM(.kind = DOORMAN_PRIORITY_SHARE), 90, demands, of_nothing_left, 3);
}

TEST(a_reserve_is_shared_by_all_before_the_priority_bands) {
    const doorman_demand demands[] = {{100, 1, 2}, {50, 1, 1}, {50, 1, 1}};
    const double half[] = {80, 20, 20}, whole[] = {40, 40, 40};
    assert_shares(ALGORITHM(.kind = DOORMAN_PRIORITY_SHARE, .reserve = 0.5), 120, demands, half, 3);
    assert_shares(ALGORITHM(.kind = DOORMAN_PRIORITY_SHARE, .reserve = 1), 120, demands, whole, 3);
}

TEST(static_shares_are_per_client_and_do_not_divide_the_capacity) {
    const doorman_demand demands[] = {{1000, 1, 1}, {1000, 3, 1}, {10, 1, 1}};
    const double expected[] = {120, 360, 10};
    assert_shares(ALGORITHM(.kind = DOORMAN_STATIC_SHARE), 120, demands, expected, 3);
}

TEST(no_algorithm_grants_the_wants) {
    const doorman_demand demands[] = {{1e15, 1, 1}, {1000, 3, 0}, {0, 1, 15}};
    const double expected[] = {1e15, 1000, 0};
    assert_shares(ALGORITHM(.kind = DOORMAN_NO_ALGORITHM), 120, demands, expected, 3);
}

/* ---- known faults of the original Doorman ---------------------------------------------------- */

/* A4 */
TEST(fair_shares_never_exceed_the_wants) {
    const doorman_demand demands[] = {{1, 10, 1}, {20, 1, 1}, {5, 1, 1}};
    const double expected[] = {1, 6, 5};
    assert_shares(ALGORITHM(.kind = DOORMAN_FAIR_SHARE), 12, demands, expected, 3);
}

/* A holder that wants at most its weight's part of the capacity gets all its wants, whatever the
 * others want. */
TEST(a_guaranteed_share_is_not_starved_where_weights_differ) {
    const doorman_demand demands[] = {{50, 5, 1}, {1e15, 1, 1}, {1e15, 4, 1}};
    const double expected[] = {50, 10, 40};
    assert_shares(ALGORITHM(.kind = DOORMAN_FAIR_SHARE), 100, demands, expected, 3);
    assert_shares(ALGORITHM(.kind = DOORMAN_PROPORTIONAL_SHARE), 100, demands, expected, 3);
}

/* ---- a slow solver, from the definitions --------------------------------------------------- */

typedef struct problem {
    doorman_algorithm algorithm;
    double capacity;
    size_t count;
    doorman_demand demands[DEMANDS_MAX];
    long double exact[DEMANDS_MAX];
} problem;

static int compare_ratios(const void *a, const void *b) {
    const doorman_demand *one = (const doorman_demand *)a, *other = (const doorman_demand *)b;
    long double left = (long double)one->wants * (long double)other->subclients;
    long double right = (long double)other->wants * (long double)one->subclients;
    return (left > right) - (left < right);
}

/* Water-filling: returns the level at which the amounts min(wants, level * weight) sum to the
 * capacity. If all wants fit, returns DOORMAN_AMOUNT_MAX. */
static long double reference_level(const doorman_demand *demands, size_t count,
                                   long double capacity) {
    static doorman_demand sorted[DEMANDS_MAX];
    long double weight = 0, left = capacity;
    for (size_t i = 0; i < count; i++) {
        sorted[i] = demands[i];
        weight += (long double)demands[i].subclients; /* exact: a sum of integers */
    }
    qsort(sorted, count, sizeof *sorted, compare_ratios);
    for (size_t i = 0; i < count; i++) {
        long double wants = (long double)sorted[i].wants, own = (long double)sorted[i].subclients;
        if (wants * weight > left * own) return left / weight;
        left -= wants;
        weight -= own;
    }
    return (long double)DOORMAN_AMOUNT_MAX;
}

static long double filled(const doorman_demand *demand, long double level) {
    return fminl((long double)demand->wants, level * (long double)demand->subclients);
}

static void reference_fair(problem *it) {
    long double level = reference_level(it->demands, it->count, (long double)it->capacity);
    for (size_t i = 0; i < it->count; i++) it->exact[i] = filled(&it->demands[i], level);
}

/* Demands below their equal part leave the rest of that part to the other demands. Each other
 * demand gets a share of this rest in proportion to its wants above its own equal part. */
static void reference_proportional(problem *it) {
    long double weights = 0, wants = 0, left = 0, above = 0;
    for (size_t i = 0; i < it->count; i++) {
        weights += (long double)it->demands[i].subclients;
        wants += (long double)it->demands[i].wants;
    }
    for (size_t i = 0; i < it->count; i++) {
        long double equal = (long double)it->capacity / weights;
        equal *= (long double)it->demands[i].subclients;
        left += fmaxl(0, equal - (long double)it->demands[i].wants);
        above += fmaxl(0, (long double)it->demands[i].wants - equal);
    }
    for (size_t i = 0; i < it->count; i++) {
        long double own = (long double)it->demands[i].wants;
        long double equal = (long double)it->capacity / weights;
        equal *= (long double)it->demands[i].subclients;
        bool modest = own <= equal || wants <= (long double)it->capacity;
        it->exact[i] = modest ? own : equal + (own - equal) * (left / above);
    }
}

static void reference_priority(problem *it) {
    static doorman_demand band[DEMANDS_MAX];
    long double reserve = (long double)it->capacity * (long double)it->algorithm.reserve;
    long double floor = reference_level(it->demands, it->count, reserve);
    long double left = (long double)it->capacity, below = 0;
    for (size_t i = 0; i < it->count; i++) below += filled(&it->demands[i], floor);
    for (int priority = DOORMAN_PRIORITY_MAX; priority >= 0; priority--) {
        size_t count = 0;
        for (size_t i = 0; i < it->count; i++) {
            if (it->demands[i].priority == priority) band[count++] = it->demands[i];
        }
        for (size_t i = 0; i < count; i++) below -= filled(&band[i], floor);
        long double level = fmaxl(floor, reference_level(band, count, left - fmaxl(0, below)));
        for (size_t i = 0; i < it->count; i++) {
            if (it->demands[i].priority != priority) continue;
            it->exact[i] = filled(&it->demands[i], level);
            left -= it->exact[i];
        }
    }
}

static void reference_solve(problem *it) {
    switch (it->algorithm.kind) {
    case DOORMAN_FAIR_SHARE: reference_fair(it); break;
    case DOORMAN_PROPORTIONAL_SHARE: reference_proportional(it); break;
    case DOORMAN_PRIORITY_SHARE: reference_priority(it); break;
    case DOORMAN_STATIC_SHARE:
        for (size_t i = 0; i < it->count; i++) {
            it->exact[i] = filled(&it->demands[i], (long double)it->capacity);
        }
        break;
    case DOORMAN_NO_ALGORITHM:
    case DOORMAN_KIND_COUNT:
        for (size_t i = 0; i < it->count; i++) it->exact[i] = (long double)it->demands[i].wants;
        break;
    }
}

static double random_weight(void) {
    double most = 1;
    for (size_t digits = random_below(7); digits > 0; digits--) most *= 10;
    return 1 + floor(random_unit() * most);
}

/* Draws demands with ties and zeros, of all sizes or of one size, and a capacity that is enough,
 * just enough, or too small. */
static void random_problem(problem *it) {
    bool weighted = random_below(2), one_size = random_below(2);
    size_t priorities = random_below(4) ? 1 + random_below(4) : DOORMAN_TERMS_MAX;
    double size = random_amount(), sum = 0;
    it->count = 1 + random_below(random_below(50) ? 12 : DEMANDS_MAX);
    for (size_t i = 0; i < it->count; i++) {
        doorman_demand *demand = &it->demands[i];
        demand->wants = one_size ? size * random_unit() : random_amount();
        demand->subclients = weighted ? random_weight() : 1;
        demand->priority = (int)random_below(priorities);
        if (i && random_below(5) == 0) *demand = it->demands[random_below(i)];
        sum += demand->wants;
    }
    const double capacities[] = {0,
                                 sum,
                                 sum * random_unit(),
                                 sum * random_unit(),
                                 sum * (0.9 + 0.2 * random_unit()),
                                 random_amount()};
    it->capacity = fmin(capacities[random_below(COUNT_OF(capacities))], DOORMAN_AMOUNT_MAX);
    const double reserves[] = {0, random_unit(), 1};
    it->algorithm = (doorman_algorithm){.reserve = reserves[random_below(3)]};
}

/* A1. Fails unless `target` is `exact`. Allows an error of one part in 10^9 of the target. Also
 * allows the last bits of the capacity, because the lowest band gets what the other bands leave.
 * Also allows 1e-300, because tiny doubles have fewer digits. */
static void assert_target(double target, long double exact, double capacity) {
    double most = 1e-9 * (double)exact + 4e-15 * capacity + 1e-300;
    if (fabs(target - (double)exact) <= most) return;
    fail_msg("a target is %.17g, expected %.17Lg, of the capacity %.17g", target, exact, capacity);
}

/* A1, A4 */
static void check_terms(problem *it, const doorman_terms *terms, size_t terms_count) {
    reference_solve(it);
    long double sum = 0;
    for (size_t i = 0; i < it->count; i++) {
        double target = doorman__terms_target(terms, terms_count, &it->demands[i]);
        assert_true(target >= 0 && target <= it->demands[i].wants);
        assert_target(target, it->exact[i], it->capacity);
        sum += (long double)target;
    }
    bool whole = DOORMAN_KIND_DIVIDES(it->algorithm.kind);
    assert_true(!whole || sum <= (long double)it->capacity * (1 + 1e-12L) + 1e-300L);
}

static void check_problem(problem *it) {
    static double amounts[DEMANDS_MAX];
    doorman_terms terms[DOORMAN_TERMS_MAX];
    size_t terms_count = 0;
    assert_int_equal(doorman_shares(&it->algorithm, it->capacity, it->demands, it->count, amounts,
                                    terms, &terms_count, NULL),
                     DOORMAN_OK);
    check_terms(it, terms, terms_count);
    for (size_t i = 0; i < it->count; i++) {
        assert_exact(amounts[i], doorman__terms_target(terms, terms_count, &it->demands[i]));
    }
}

static void check_kind(doorman_kind kind) {
    static problem it;
    for (int i = 0; i < 5000; i++) {
        random_problem(&it);
        it.algorithm.kind = kind;
        if (kind != DOORMAN_PRIORITY_SHARE) it.algorithm.reserve = 0;
        check_problem(&it);
    }
}

TEST(the_shares_of_each_kind_equal_a_slow_solution) {
    for (int kind = 0; kind < DOORMAN_KIND_COUNT; kind++) check_kind((doorman_kind)kind);
}

/* ---- edges --------------------------------------------------------------------------------- */

/* As doubles, 1 + 0.1 + 0.1 is a little more than 1.2. No holder may lose more than that
 * difference. */
TEST(a_capacity_that_is_short_by_the_last_bit_is_shared_completely) {
    const doorman_demand demands[] = {{1, 1, 1}, {0.1, 1, 1}, {0.1, 1, 1}};
    const double expected[] = {1, 0.1, 0.1};
    for (int kind = 0; DOORMAN_KIND_DIVIDES(kind); kind++) {
        assert_shares(ALGORITHM(.kind = (doorman_kind)kind), 1.2, demands, expected, 3);
    }
    for (int i = 0; i < 20000; i++) {
        doorman_demand tenths[4];
        size_t count = 2 + random_below(3), sum = 0;
        for (size_t j = 0; j < count; j++) {
            size_t wants = random_below(60);
            tenths[j] = (doorman_demand){(double)wants / 10, 1, 1};
            sum += wants;
        }
        double wants[4];
        for (size_t j = 0; j < count; j++) wants[j] = tenths[j].wants;
        assert_shares(ALGORITHM(.kind = (doorman_kind)(i % DOORMAN_STATIC_SHARE)), (double)sum / 10,
                      tenths, wants, count);
    }
}

TEST(without_capacity_every_share_is_0) {
    const double expected[] = {0, 0, 0};
    for (int kind = 0; kind <= DOORMAN_STATIC_SHARE; kind++) {
        assert_shares(ALGORITHM(.kind = (doorman_kind)kind), 0, three_demands, expected, 3);
    }
}

TEST(terms_are_common_or_per_priority_from_the_highest) {
    const doorman_demand demands[] = {{5, 1, 3}, {5, 1, 15}, {5, 1, 0}, {5, 1, 3}};
    doorman_terms terms[DOORMAN_TERMS_MAX];
    size_t count = 0;
    for (int kind = 0; kind < DOORMAN_KIND_COUNT; kind++) {
        doorman_algorithm algorithm = {.kind = (doorman_kind)kind};
        assert_int_equal(doorman_shares(&algorithm, 12, demands, 4, NULL, terms, &count, NULL),
                         DOORMAN_OK);
        bool by_priority = kind == DOORMAN_PRIORITY_SHARE;
        assert_int_equal(count, by_priority ? 3 : 1);
        assert_int_equal(terms[0].priority, by_priority ? 15 : DOORMAN_ANY_PRIORITY);
        if (!by_priority) continue;
        assert_int_equal(terms[1].priority, 3);
        assert_int_equal(terms[2].priority, 0);
        const doorman_demand other = {5, 1, 7};
        assert_exact(doorman__terms_target(terms, count, &other), 0);
    }
    assert_int_equal(doorman_shares(NULL, 12, NULL, 0, NULL, terms, &count, NULL), DOORMAN_OK);
    assert_exact(doorman__terms_target(terms, count, &demands[0]), 5); /* this demand alone fits */
}

TEST(the_default_algorithm_is_fair_share_and_subclients_default_to_1) {
    const doorman_demand demands[] = {{1000, 0, 1}, {50, 1, 1}, {10, 0, 1}};
    double amounts[3];
    assert_int_equal(doorman_shares(NULL, 120, demands, 3, amounts, NULL, NULL, NULL), DOORMAN_OK);
    assert_about(amounts[0], 60);
    assert_about(amounts[1], 50);
    assert_about(amounts[2], 10);
}

/* Shares the capacity between a valid demand and another one. After an error nothing may be
 * written. */
static doorman_status share_two(doorman_algorithm algorithm, double capacity, doorman_demand second,
                                doorman_error *error) {
    doorman_terms terms[DOORMAN_TERMS_MAX] = {{7, -1, -1}};
    double amounts[2] = {-1, -1};
    const doorman_demand demands[] = {{1, 1, 1}, second};
    size_t count = 7;
    doorman_status status =
        doorman_shares(&algorithm, capacity, demands, 2, amounts, terms, &count, error);
    assert_int_equal(count == 7, status != DOORMAN_OK);
    assert_int_equal(terms[0].level < 0 && terms[0].slope < 0, status != DOORMAN_OK);
    assert_int_equal(amounts[0] < 0 && amounts[1] < 0, status != DOORMAN_OK);
    return status;
}

/* C5 */
TEST(what_is_no_demand_is_refused_by_its_path_and_writes_nothing) {
    const double infinite = (double)INFINITY, none = (double)NAN, more = 1.0000000000000002e15;
    const doorman_demand good = {1e15, 1e9, 15};
    const struct {
        doorman_algorithm algorithm;
        double capacity;
        doorman_demand demand;
        const char *path;
    } wrong[] = {
        {{.reserve = 0}, 1, {-1, 1, 1}, "demands[1].wants: must be a finite number from 0 to 1e15"},
        {{.reserve = 0}, 1, {more, 1, 1}, "demands[1].wants: "},
        {{.reserve = 0}, 1, {infinite, 1, 1}, "demands[1].wants: "},
        {{.reserve = 0}, 1, {none, 1, 1}, "demands[1].wants: "},
        {{.reserve = 0}, 1, {1, -1, 1}, "demands[1].subclients: must be an integer from 1 to 1e9"},
        {{.reserve = 0}, 1, {1, 0.5, 1}, "demands[1].subclients: "},
        {{.reserve = 0}, 1, {1, 1.5, 1}, "demands[1].subclients: "},
        {{.reserve = 0}, 1, {1, 1e9 + 1, 1}, "demands[1].subclients: "},
        {{.reserve = 0}, 1, {1, infinite, 1}, "demands[1].subclients: "},
        {{.reserve = 0}, 1, {1, none, 1}, "demands[1].subclients: "},
        {{.reserve = 0}, 1, {1, 1, -1}, "demands[1].priority: must be an integer from 0 to 15"},
        {{.reserve = 0}, 1, {1, 1, 16}, "demands[1].priority: "},
        {{.reserve = 0}, -1, good, "capacity: must be a finite number from 0 to 1e15"},
        {{.reserve = 0}, more, good, "capacity: "},
        {{.reserve = 0}, infinite, good, "capacity: "},
        {{.reserve = 0}, none, good, "capacity: "},
        {{.reserve = 1.5}, 1, good, "algorithm.reserve: must be from 0 to 1"},
        {{.reserve = 0.5}, 1, good, "algorithm.reserve: only PRIORITY_SHARE has one"},
        {{.kind = DOORMAN_KIND_COUNT}, 1, good, "algorithm.kind: is not a kind of algorithm"},
        {{.lease_length = -1}, 1, good, "algorithm.lease_length: "},
    };
    assert_int_equal(share_two(ALGORITHM(.reserve = 0), 1e15, good, NULL), DOORMAN_OK);
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        doorman_error error = {0};
        assert_int_equal(share_two(wrong[i].algorithm, wrong[i].capacity, wrong[i].demand, &error),
                         DOORMAN_INVALID_ARGUMENT);
        if (strncmp(error.text, wrong[i].path, strlen(wrong[i].path)) != 0) {
            fail_msg("\"%s\" does not begin with \"%s\"", error.text, wrong[i].path);
        }
    }
}

/* Amounts and terms are optional. A call that wants terms, but not their number, is refused. */
TEST(a_caller_takes_amounts_or_terms_or_both_or_neither) {
    const doorman_demand *demands = three_demands;
    doorman_terms terms[DOORMAN_TERMS_MAX] = {{7, -1, -1}};
    doorman_error error = {0};
    double amounts[3];
    size_t count = 7;
    assert_int_equal(doorman_shares(NULL, 120, demands, 3, NULL, NULL, NULL, NULL), DOORMAN_OK);
    assert_int_equal(doorman_shares(NULL, 120, demands, 3, NULL, NULL, &count, NULL), DOORMAN_OK);
    assert_int_equal(count, 1);
    assert_int_equal(doorman_shares(NULL, 120, demands, 3, amounts, terms, &count, NULL),
                     DOORMAN_OK);
    assert_about(amounts[0], 60);
    assert_about(terms[0].level, 60);
    assert_int_equal(doorman_shares(NULL, 0, NULL, 0, amounts, NULL, NULL, NULL), DOORMAN_OK);
    assert_about(amounts[0], 60); /* there is no demand, so no amount is written */
    assert_int_equal(doorman_shares(NULL, 120, demands, 3, amounts, terms, NULL, &error),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "terms_count: must not be NULL");
    assert_int_equal(doorman_shares(NULL, 120, NULL, 3, amounts, NULL, NULL, &error),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(error.text, "demands: must not be NULL");
}

/* ---- the index ----------------------------------------------------------------------------- */

enum { KEPT_MAX = 300, MANY = 100000 };

/* A demand in a plain list. The tests compare the index with this list. */
typedef struct kept {
    int band; /* -1: not in the index */
    doorman__demand demand;
} kept;

typedef struct recount {
    size_t count, nodes;
    long double wants, subclients;
    const doorman__demand *last; /* the last demand in order */
} recount;

static void recount_node(const doorman__node *node, const doorman__demand *key, recount *all);

static void recount_below(const doorman__inner *inner, recount *all) {
    for (size_t i = 0; i < inner->node.count; i++) {
        const doorman__node *below = inner->below[i];
        doorman__sums sums = doorman__node_sums(below);
        assert_int_equal(below->height + 1, inner->node.height);
        assert_exact(inner->sums[i].wants, sums.wants);
        assert_int_equal(inner->sums[i].subclients, sums.subclients);
        assert_int_equal(inner->sums[i].count, sums.count);
        recount_node(below, &inner->keys[i], all);
    }
}

/* Checks a whole tree: its order, its keys, its sums and its shape. */
static void recount_node(const doorman__node *node, const doorman__demand *key, recount *all) {
    all->nodes++;
    assert_in_range(node->count, 1, node->room);
    assert_false(key && all->last && !doorman__demand_before(all->last, key));
    const doorman__demand *demands = doorman__node_demands(node);
    assert_false(key && doorman__demand_before(&demands[0], key));
    if (node->height) {
        recount_below((const doorman__inner *)(const void *)node, all);
        return;
    }
    for (size_t i = 0; i < node->count; i++) {
        assert_true(demands[i].count > 0);
        assert_true(!all->last || doorman__demand_before(all->last, &demands[i]));
        all->last = &demands[i];
        all->count += demands[i].count;
        all->wants += (long double)demands[i].wants * demands[i].count;
        all->subclients += (long double)demands[i].subclients * demands[i].count;
    }
}

static recount recount_band(const doorman__node *root) {
    recount all = {0, 0, 0, 0, NULL};
    if (root) recount_node(root, NULL, &all);
    doorman__sums sums = doorman__node_sums(root);
    assert_near(sums.wants, (double)all.wants, 1e-12);
    assert_exact((double)sums.subclients, (double)all.subclients);
    assert_int_equal(sums.count, all.count);
    return all;
}

static void put(doorman__index *index, int band, const doorman__demand *demand) {
    assert_true(doorman__index_reserve(index, band, demand));
    doorman__index_insert(index, band, demand);
    assert_true(!index->spare_leaf && !index->spare_inner);
}

static doorman__demand random_demand(void) {
    double wants = random_below(4) ? random_amount() : 5;
    double weight = random_below(4) ? random_weight() : 1;
    return (doorman__demand){wants, (uint32_t)weight, 1};
}

/* Compares the sums of a random range with sums from the definition. */
static void check_between(const doorman__index *index, const kept *list, size_t count, int band) {
    double low = random_below(8) ? random_amount() : -1, high = random_amount();
    const kept *some = &list[random_below(count)], *other = &list[random_below(count)];
    if (random_below(2) && some->band >= 0) low = doorman__demand_ratio(&some->demand);
    if (random_below(2) && other->band >= 0) high = doorman__demand_ratio(&other->demand);
    doorman__sums sums = doorman__band_between(index->bands[band], low, high);
    long double wants = 0;
    uint64_t subclients = 0, demands = 0;
    for (size_t i = 0; i < count; i++) {
        double ratio = doorman__demand_ratio(&list[i].demand);
        if (list[i].band != band || ratio <= low || ratio > high) continue;
        wants += (long double)list[i].demand.wants;
        subclients += list[i].demand.subclients;
        demands++;
    }
    assert_near(sums.wants, (double)wants, 1e-12);
    assert_int_equal(sums.subclients, subclients);
    assert_int_equal(sums.count, demands);
}

/* C9. Demands are inserted and removed at random. */
TEST(the_index_keeps_exact_sums) {
    static kept list[KEPT_MAX];
    size_t blocks = memory_blocks(), in = 0;
    doorman__index index = {.spare_leaf = NULL};
    for (size_t i = 0; i < KEPT_MAX; i++) list[i].band = -1;
    for (int step = 0; step < 100000; step++) {
        kept *one = &list[random_below(KEPT_MAX)];
        kept next = {random_below(4) ? (int)random_below(3) * 7 : -1, random_demand()};
        if (next.band >= 0) put(&index, next.band, &next.demand);
        if (one->band >= 0) doorman__index_remove(&index, one->band, &one->demand);
        in += (size_t)(next.band >= 0) - (size_t)(one->band >= 0);
        *one = next;
        check_between(&index, list, KEPT_MAX, (int)random_below(3) * 7);
        if (step % 500) continue;
        size_t count = 0;
        double subclients = 0;
        for (int band = 0; band <= DOORMAN_PRIORITY_MAX; band++) {
            recount all = recount_band(index.bands[band]);
            count += all.count;
            subclients += (double)all.subclients;
        }
        assert_int_equal(count, in);
        assert_exact((double)index.subclients, subclients);
    }
    for (size_t i = 0; i < KEPT_MAX; i++) {
        if (list[i].band >= 0) doorman__index_remove(&index, list[i].band, &list[i].demand);
    }
    for (int band = 0; band <= DOORMAN_PRIORITY_MAX; band++) assert_null(index.bands[band]);
    assert_exact(doorman__index_wants(&index), 0);
    assert_int_equal(index.subclients, 0);
    assert_int_equal(memory_blocks(), blocks);
}

/* C9. A sum that is kept by adding and subtracting would be 0.125 here. */
TEST(a_small_demand_survives_the_removal_of_a_large_one) {
    const doorman__demand small = {0.1, 1, 1}, large = {1e15, 1000000000, 1};
    doorman__index index = {.spare_leaf = NULL};
    put(&index, 0, &small);
    put(&index, 0, &large);
    doorman__index_remove(&index, 0, &large);
    assert_exact(doorman__index_wants(&index), 0.1);
    assert_int_equal(index.subclients, 1);
    doorman__index_uninit(&index);
}

/* C4. Each allocation fails in turn, with nodes that are full to any degree. */
TEST(without_memory_the_index_stays_unchanged) {
    size_t blocks = memory_blocks();
    doorman__index index = {.spare_leaf = NULL};
    for (size_t i = 0; i < 3000; i++) {
        const doorman__demand demand = {random_below(2) ? (double)i : random_unit(), 1, 1};
        for (size_t nth = 1;; nth++) {
            size_t before = memory_blocks();
            memory_fails_at(nth);
            bool done = doorman__index_reserve(&index, 0, &demand);
            assert_int_equal(done, memory_works());
            if (done) break;
            assert_int_equal(memory_blocks(), before);
        }
        doorman__index_insert(&index, 0, &demand);
        assert_int_equal(doorman__node_sums(index.bands[0]).count, i + 1);
    }
    assert_int_equal(recount_band(index.bands[0]).count, 3000);
    doorman__index_uninit(&index);
    assert_int_equal(memory_blocks(), blocks);
}

/* A2. A node that is emptied between two full nodes is removed. It is not joined with a full
 * node. */
TEST(a_node_between_full_ones_can_be_emptied) {
    enum { SPAN = DOORMAN__WIDTH, NODES = 4 };
    size_t blocks = memory_blocks();
    doorman__index index = {.spare_leaf = NULL};
    for (int i = 0; i < NODES * SPAN; i++) { /* ascending, so each full node is split in halves */
        put(&index, 0, &(doorman__demand){i, 1, 1});
    }
    doorman__inner *root = doorman__as_inner(index.bands[0]);
    assert_int_equal(root->node.height, 1);
    for (size_t at = 0; at < 3; at += 2) { /* fills the first and the third node */
        const doorman__demand least = root->keys[at];
        for (int i = 1; root->below[at]->count < DOORMAN__WIDTH; i++) {
            put(&index, 0, &(doorman__demand){least.wants + i / 100.0, 1, 1});
        }
    }
    size_t nodes = root->node.count, left = doorman__node_sums(&root->node).count;
    const doorman__node *emptied = root->below[1];
    for (size_t i = emptied->count; i > 0; i--, left--) {
        doorman__demand first = doorman__node_demands(root->below[1])[0];
        doorman__index_remove(&index, 0, &first);
        assert_int_equal(recount_band(index.bands[0]).count, left - 1);
    }
    assert_int_equal(root->node.count, nodes - 1);
    assert_int_equal(root->below[1]->count, DOORMAN__WIDTH);
    doorman__index_uninit(&index);
    assert_int_equal(memory_blocks(), blocks);
}

/* A2. Every operation descends along one or two paths through nodes of bounded width. So the height
 * bounds the worst case. The number of nodes is bounded too, so that nodes do not have too few
 * demands. */
static void check_shape(const doorman__index *index, size_t demands) {
    recount all = recount_band(index->bands[0]);
    assert_int_equal(all.count, demands);
    assert_in_range(index->bands[0]->height, 2, 5);
    assert_in_range(all.nodes, demands / DOORMAN__WIDTH, demands / 4);
}

static doorman__demand ordered_demand(int order, size_t i) {
    double wants[] = {(double)i, (double)(MANY - i), random_unit(),
                      (double)(i % 1000) + 1e-9 * (double)i};
    return (doorman__demand){wants[order], 1, 1};
}

/* A2. Holders choose their wants to harm the index. The wants rise, fall, are random, or rise 100
 * times from 0 to 999. Then every second demand leaves, three times. */
TEST(the_index_stays_shallow_in_any_order_of_changes) {
    static doorman__demand demands[MANY];
    for (int order = 0; order < 4; order++) {
        doorman__index index = {.spare_leaf = NULL};
        for (size_t i = 0; i < MANY; i++) {
            demands[i] = ordered_demand(order, i);
            put(&index, 0, &demands[i]);
        }
        check_shape(&index, MANY);
        size_t left = MANY;
        for (size_t every = 2; every <= 8; every *= 2) {
            for (size_t i = every / 2 - 1; i < MANY; i += every, left--) {
                doorman__index_remove(&index, 0, &demands[i]);
            }
            check_shape(&index, left);
        }
        doorman__index_uninit(&index);
    }
}

/* Any number of equal demands is one entry. */
TEST(equal_demands_share_one_entry) {
    const doorman__demand demand = {5, 3, 1}, other = {5, 4, 1}, of_equal_ratio = {10, 6, 1};
    doorman__index index = {.spare_leaf = NULL};
    for (size_t i = 0; i < MANY; i++) put(&index, 1, &demand);
    put(&index, 1, &other);
    put(&index, 1, &of_equal_ratio);
    assert_int_equal(recount_band(index.bands[1]).nodes, 1);
    assert_int_equal(index.bands[1]->count, 3);
    for (size_t i = 0; i < MANY; i++) doorman__index_remove(&index, 1, &demand);
    assert_exact(doorman__index_wants(&index), 15);
    doorman__index_uninit(&index);
}

/* ---- shares of an index that changes ------------------------------------------------------- */

static void index_put(doorman__index *index, const doorman_demand *demand) {
    doorman__demand own = doorman__demand_of(demand, false);
    put(index, demand->priority, &own);
}

static void index_remove(doorman__index *index, const doorman_demand *demand) {
    doorman__demand own = doorman__demand_of(demand, false);
    doorman__index_remove(index, demand->priority, &own);
}

/* Adds, removes or changes one demand. */
static void change_problem(problem *it, doorman__index *index, size_t most) {
    size_t at = random_below(most);
    doorman_demand next = {random_below(4) ? random_amount() : 0,
                           random_below(2) ? random_weight() : 1, (int)random_below(3) * 5};
    if (it->count && random_below(4) == 0) next = it->demands[random_below(it->count)];
    if (at >= it->count) {
        index_put(index, &next);
        it->demands[it->count++] = next;
    } else if (random_below(3)) {
        index_put(index, &next);
        index_remove(index, &it->demands[at]);
        it->demands[at] = next;
    } else {
        index_remove(index, &it->demands[at]);
        it->demands[at] = it->demands[--it->count];
    }
}

/* A1, A4. Checks every kind on one index, after random insertions, changes and removals. */
TEST(shares_are_right_after_random_changes) {
    static problem it;
    doorman__index index = {.spare_leaf = NULL};
    for (int step = 0; step < 100000; step++) {
        change_problem(&it, &index, step / 10000 % 2 ? 8 : 120);
        if (step % 20 || !it.count) continue;
        double sum = doorman__index_wants(&index);
        it.capacity = fmin(sum * random_unit() * 1.5, DOORMAN_AMOUNT_MAX);
        it.algorithm = (doorman_algorithm){.reserve = random_below(2) ? random_unit() : 0};
        for (int kind = 0; kind < DOORMAN_KIND_COUNT; kind++) {
            doorman_terms terms[DOORMAN_TERMS_MAX];
            it.algorithm.kind = (doorman_kind)kind;
            check_terms(&it, terms,
                        doorman__solvers[kind](&it.algorithm, it.capacity, &index, terms));
        }
    }
    while (it.count) index_remove(&index, &it.demands[--it.count]);
    assert_exact(doorman__index_wants(&index), 0);
    doorman__index_uninit(&index);
}
