/* Tests section >>leases of doorman.h: the lease table of one resource. There are examples in
 * numbers, and comparisons of sums and orders with a recount. T7 is tested with messages that are
 * lost, duplicated and delayed. */
#include "unit.h"

#define DOORMAN_IMPLEMENTATION
#include "../../doorman.h"

#define SECONDS(n) ((n)*DOORMAN_SECOND)
#define LEASE_LENGTH SECONDS(60)
#define ENTRY_LENGTH SECONDS(63) /* S8: 5 % longer than the lease */

/* ---- a lease table and its holders ---------------------------------------------------------- */

typedef struct fixture {
    doorman_template settings;
    doorman__lease_table *leases;
    doorman_time now;
    size_t blocks; /* allocated before the start */
} fixture;

/* Gives this template to the lease table of a root. */
static void set_template(fixture *f, const doorman_template *settings) {
    doorman__leases_set_algorithm(f->leases, &settings->algorithm, settings->whole);
    doorman__leases_set_capacity(f->leases, settings->capacity, DBL_MAX, DOORMAN_NEVER);
}

static void set_capacity(fixture *f, double capacity) {
    f->settings.capacity = capacity;
    set_template(f, &f->settings);
}

static void fixture_start(fixture *f, double capacity, doorman_kind kind,
                          doorman_handover handover) {
    *f = (fixture){.now = SECONDS(1000), .blocks = memory_blocks()};
    f->settings.capacity = capacity;
    f->settings.algorithm = (doorman_algorithm){.kind = kind, .handover = handover};
    f->leases = (doorman__lease_table *)unit_malloc(sizeof *f->leases);
    assert_non_null(f->leases);
    memset(f->leases, 0, sizeof *f->leases);
    set_template(f, &f->settings);
}

/* C9. Removes all holders. The sums must then be exactly 0. */
static void fixture_stop(fixture *f) {
    doorman__lease_table *leases = f->leases;
    while (doorman__leases_first(leases)) {
        doorman__leases_remove(leases, doorman__leases_first(leases));
    }
    assert_null(leases->newest);
    assert_int_equal(leases->entries.count, 0);
    assert_true(leases->has.high == 0 && leases->has.low == 0);
    assert_true(leases->committed.high == 0 && leases->committed.low == 0);
    assert_exact(doorman__leases_wants(leases), 0);
    assert_exact(doorman__leases_subclients(leases), 0);
    doorman__table_uninit(&leases->entries);
    doorman__index_uninit(&leases->index);
    unit_free(leases);
    assert_int_equal(memory_blocks(), f->blocks);
}

static doorman__lease_entry *find(fixture *f, const char *id) {
    static const uint64_t key[2] = {1, 2};
    uint64_t hash = doorman__hash(key, id);
    doorman__lease_entry *entry = doorman__leases_find(f->leases, hash, id, false);
    if (entry) return entry;
    entry = doorman__leases_add(f->leases, hash, id, false);
    assert_non_null(entry);
    doorman__leases_set_end(f->leases, entry, f->now);
    return entry;
}

typedef struct granted {
    double capacity, committed, target;
} granted;

static void set_demand(fixture *f, doorman__lease_entry *entry, const doorman_demand *demand) {
    assert_true(doorman__leases_reserve(f->leases, entry, demand, 1));
    doorman__leases_set_demands(f->leases, entry, demand, 1);
}

/* Handles one request as a server does. The claim counts as a confirmation if the holder names its
 * last lease. */
static granted request_lease(fixture *f, const char *id, double wants, double claim,
                             bool names_last) {
    doorman__lease_entry *entry = find(f, id);
    const doorman_demand demand = {wants, 1, 1};
    set_demand(f, entry, &demand);
    doorman__leases_age(f->leases, entry, f->now);
    if (names_last) doorman__leases_confirm(f->leases, entry, claim);
    double target = doorman__leases_target(f->leases, entry);
    double committed = doorman__leases_grant(f->leases, entry, target, claim);
    doorman__leases_set_end(f->leases, entry, f->now + ENTRY_LENGTH);
    entry->lease_id++;
    return (granted){entry->has, committed, target};
}

/* Renews a lease for a holder that claims everything it was granted. */
static double renew(fixture *f, const char *id, double wants) {
    return request_lease(f, id, wants, find(f, id)->has, true).capacity;
}

static granted learn(fixture *f, const char *id, double wants, double claim) {
    doorman__lease_entry *entry = find(f, id);
    const doorman_demand demand = {wants, 1, 1};
    set_demand(f, entry, &demand);
    double target = doorman__leases_target(f->leases, entry);
    double committed = doorman__leases_learn(f->leases, entry, target, claim, 0);
    return (granted){entry->has, committed, 0};
}

static double committed_of(fixture *f, const char *id) { return find(f, id)->committed; }

static bool exceeds(doorman__total a, doorman__total b) {
    return a.high > b.high || (a.high == b.high && a.low > b.low);
}

/* Returns whether the exact sum of the committed amounts is at most the capacity. */
static bool fits(const fixture *f) {
    return !exceeds(f->leases->committed, doorman__total_of(f->settings.capacity));
}

/* S2. Removes the leases that have ended. Returns their number. */
static size_t expire(fixture *f) {
    size_t count = 0;
    doorman__lease_entry *first = doorman__leases_first(f->leases);
    for (; first && first->end <= f->now; first = doorman__leases_first(f->leases), count++) {
        doorman__leases_remove(f->leases, first);
    }
    return count;
}

/* Iterates over the entries of both lists, beginning with the entries that drain. NULL gets the
 * first entry. */
static const doorman__lease_entry *next_of(const doorman__lease_table *leases,
                                           const doorman__lease_entry *entry) {
    if (!entry && leases->draining) return leases->draining;
    return entry && (entry->newer || entry == leases->newest) ? entry->newer : leases->oldest;
}

/* Compares every fast sum and every order with a slow recount. */
static void audit(const fixture *f) {
    const doorman__lease_table *leases = f->leases;
    const doorman__lease_entry *older = NULL, *first = doorman__leases_first(leases);
    doorman__total given = {0, 0}, counted = {0, 0}, in_round = {0, 0};
    double wants = 0, subclients = 0;
    size_t count = 0;
    for (const doorman__lease_entry *at = next_of(leases, NULL); at;
         at = next_of(leases, at), count++) {
        if (at == leases->oldest) older = NULL; /* the second list begins */
        assert_ptr_equal(at->older, older);
        assert_true(!older || older->end <= at->end);
        assert_true(first->end <= at->end);
        older = at;
        assert_true(at->has >= 0 && at->has <= at->committed);
        assert_true(at->has <= at->recent && at->recent <= doorman__float_up(at->committed));
        assert_true(doorman__entry_in_round(leases, at) <= doorman__float_up(at->committed));
        doorman__total_add(&in_round, doorman__entry_in_round(leases, at));
        doorman__total_add(&given, at->has);
        doorman__total_add(&counted, at->committed);
        wants += at->demand.wants;
        subclients += at->indexed;
    }
    assert_true(!leases->newest || leases->newest == older);
    assert_int_equal(leases->entries.count, count);
    assert_true(given.high == leases->has.high && given.low == leases->has.low);
    assert_true(counted.high == leases->committed.high && counted.low == leases->committed.low);
    assert_true(in_round.high == leases->in_round.high && in_round.low == leases->in_round.low);
    assert_near(doorman__leases_wants(leases), wants, 1e-12);
    assert_exact(doorman__leases_subclients(leases), subclients);
}

/* ---- R5: grants ---------------------------------------------------------------------------- */

/* R4, R5, T7 */
TEST(a_shrunk_lease_frees_capacity_once_its_holder_confirms) {
    fixture f;
    fixture_start(&f, 500, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    assert_exact(request_lease(&f, "c1", 500, 0, false).capacity, 500);
    granted c0 = request_lease(&f, "c0", 182, 0, false);
    assert_exact(c0.target, 182);
    assert_exact(c0.capacity, 0); /* c1 may be using all of it */

    granted c1 = request_lease(&f, "c1", 500, 500, true);
    assert_exact(c1.capacity, 318);
    assert_exact(c1.committed, 500); /* c1 has not received its smaller lease yet */
    assert_exact(committed_of(&f, "c1"), 500);
    assert_exact(renew(&f, "c0", 182), 0);

    c1 = request_lease(&f, "c1", 500, 318, true);
    assert_exact(c1.capacity, 318);
    assert_exact(c1.committed, 318);
    assert_exact(renew(&f, "c0", 182), 182);
    assert_true(fits(&f));
    fixture_stop(&f);
}

/* R1, R4. c1 claims 0 and gets 500. Then a copy of c1's request arrives. If the claim of 0 in that
 * copy counted, c0 would get 182, and leases of 682 would be in force. */
TEST(a_delayed_duplicate_of_a_request_frees_nothing) {
    fixture f;
    fixture_start(&f, 500, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    assert_exact(request_lease(&f, "c1", 500, 0, false).capacity, 500);
    assert_exact(request_lease(&f, "c1", 500, 0, false).capacity, 500);
    assert_exact(committed_of(&f, "c1"), 500);
    assert_exact(request_lease(&f, "c0", 182, 0, false).capacity, 0);
    assert_exact(request_lease(&f, "c1", 500, 0, false).capacity, 318);
    assert_exact(committed_of(&f, "c1"), 500);
    assert_exact(renew(&f, "c0", 182), 0);
    fixture_stop(&f);
}

/* R3. A gauge wants only 10, but still has 90 units in flight, and claims them. */
TEST(units_in_flight_stay_committed) {
    fixture f;
    fixture_start(&f, 100, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    assert_exact(request_lease(&f, "gauge", 100, 0, false).capacity, 100);
    set_capacity(&f, 20);
    assert_exact(request_lease(&f, "gauge", 100, 100, true).capacity, 20);
    granted gauge = request_lease(&f, "gauge", 10, 90, true);
    assert_exact(gauge.capacity, 10);
    assert_exact(gauge.committed, 90);
    assert_exact(committed_of(&f, "gauge"), 90);
    assert_exact(request_lease(&f, "other", 10, 0, false).capacity, 0);
    assert_exact(request_lease(&f, "gauge", 10, 10, true).committed, 10);
    assert_exact(renew(&f, "other", 10), 10);
    fixture_stop(&f);
}

/* R4. A claim can lower what is committed, but never raise it. */
TEST(a_claim_never_raises_the_committed_amount) {
    fixture f;
    fixture_start(&f, 100, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    assert_exact(request_lease(&f, "c1", 40, 0, false).capacity, 40);
    granted c1 = request_lease(&f, "c1", 10, 1e15, true);
    assert_exact(c1.capacity, 10);
    assert_exact(c1.committed, 40);
    assert_exact(committed_of(&f, "c1"), 40);
    c1 = request_lease(&f, "c2", 10, 1e15, false); /* S9: a claim under an unknown lease */
    assert_exact(c1.capacity, 10);
    assert_exact(c1.committed, 10);
    fixture_stop(&f);
}

/* R4. A claim may be finer than the unit of committed amounts. Such a claim is rounded up. */
TEST(the_committed_amount_covers_the_claim) {
    fixture f;
    fixture_start(&f, 10, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    assert_exact(request_lease(&f, "c1", 10, 0, false).capacity, 10);
    (void)request_lease(&f, "c1", 0, 1.0 / 3, true);
    assert_true(committed_of(&f, "c1") >= 1.0 / 3);
    assert_near(committed_of(&f, "c1"), 1.0 / 3, 1e-13);
    double rest = request_lease(&f, "c2", 10, 0, false).capacity;
    assert_true(rest <= 10 - 1.0 / 3);
    assert_about(rest, 10 - 1.0 / 3);
    fixture_stop(&f);
}

/* R5, S5. Thirds do not add up exactly in doubles. The committed amounts fit to the last bit, and
 * use the whole capacity. */
TEST(leases_never_exceed_the_capacity) {
    for (int i = 0; i < 300; i++) {
        fixture f;
        double capacity = i ? random_amount() : 100;
        fixture_start(&f, capacity, (doorman_kind)(i % DOORMAN_STATIC_SHARE),
                      (doorman_handover)(i & 1));
        size_t count = 3 + random_below(10);
        double wants[12];
        for (size_t round = 0; round < 8; round++) { /* the wants stay from the fourth round on */
            for (size_t j = 0; j < count; j++) {
                char id[2] = {(char)('a' + j), 0};
                double next = i % 2 ? DOORMAN_AMOUNT_MAX : random_amount() / 2 + capacity / 2;
                if (round < 4) wants[j] = next;
                double given = renew(&f, id, wants[j]);
                assert_exact(doorman__floor(given), given); /* sums can represent it exactly */
                assert_true(fits(&f));
            }
        }
        audit(&f);
        double in_use = doorman__total_value(f.leases->has);
        assert_true(capacity < 1e-3 || in_use >= capacity * (1 - 1e-9));
        fixture_stop(&f);
    }
}

/* S5. STATIC and NO_ALGORITHM do not divide the capacity. */
TEST(a_kind_that_does_not_divide_the_capacity_is_not_cut) {
    fixture f;
    fixture_start(&f, 100, DOORMAN_STATIC_SHARE, DOORMAN_CONFIRMED);
    assert_exact(request_lease(&f, "a", 1000, 0, false).capacity, 100);
    assert_exact(request_lease(&f, "b", 1000, 0, false).capacity, 100);
    assert_exact(request_lease(&f, "c", 7, 0, false).capacity, 7);
    fixture_stop(&f);
    fixture_start(&f, 100, DOORMAN_NO_ALGORITHM, DOORMAN_IMMEDIATE);
    assert_exact(request_lease(&f, "a", 1000, 0, false).capacity, 1000);
    assert_exact(request_lease(&f, "b", DOORMAN_AMOUNT_MAX, 0, false).capacity, DOORMAN_AMOUNT_MAX);
    assert_exact(renew(&f, "a", 0), 0);
    fixture_stop(&f);
}

/* A1. The original Doorman uses the sums from before the request. Here the request counts too.
 * Example: two holders want 1000 and 50 of 120. A third holder wants 10, which is below an equal
 * part, and gets 10. When a holder changes its demand, the earlier demand no longer counts. */
TEST(a_share_includes_the_demand_of_the_request) {
    fixture f;
    fixture_start(&f, 120, DOORMAN_PROPORTIONAL_SHARE, DOORMAN_CONFIRMED);
    assert_about(request_lease(&f, "greedy", 1000, 0, false).target, 120);
    assert_about(request_lease(&f, "medium", 50, 0, false).target, 50);
    assert_about(request_lease(&f, "modest", 10, 0, false).target, 10);
    assert_about(request_lease(&f, "medium", 50, 0, true).target, 40 + 30 * 10.0 / 970);
    assert_about(request_lease(&f, "greedy", 1000, 120, true).target, 40 + 30 * 960.0 / 970);
    assert_about(request_lease(&f, "greedy", 45, 120, true).target, 45);
    fixture_stop(&f);
}

/* ---- a cut in capacity --------------------------------------------------------------------- */

/* G5. In the original Doorman a cut makes the lease negative, and a negative lease counts as
 * unlimited. */
TEST(a_cut_in_capacity_never_gives_a_negative_lease) {
    static const char *const ids[] = {"a", "b", "c", "d"};
    static const double capacities[] = {10, 0, 1e-12, 100, 1};
    for (int handover = DOORMAN_CONFIRMED; handover <= DOORMAN_IMMEDIATE; handover++) {
        fixture f;
        fixture_start(&f, 100, DOORMAN_FAIR_SHARE, (doorman_handover)handover);
        for (size_t i = 0; i < 12; i++) (void)renew(&f, ids[i % 4], 60);
        assert_exact(renew(&f, "a", 60), 25);
        for (size_t cut = 0; cut < 5; cut++) {
            set_capacity(&f, capacities[cut]);
            for (size_t i = 0; i < 12; i++) {
                doorman__total before = f.leases->committed;
                double capacity = renew(&f, ids[i % 4], 60);
                assert_true(capacity >= 0 && capacity <= 60);
                assert_true(fits(&f) || !exceeds(f.leases->committed, before));
            }
            assert_true(fits(&f));
            assert_near(renew(&f, "a", 60), capacities[cut] / 4, 0.01);
        }
        fixture_stop(&f);
    }
}

/* R5. If grants were cut to the free capacity alone, the first holder that renews would drop to
 * 0. */
TEST(no_holder_is_cut_below_its_share) {
    fixture f;
    fixture_start(&f, 100, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    assert_exact(request_lease(&f, "a", 50, 0, false).capacity, 50);
    assert_exact(request_lease(&f, "b", 50, 0, false).capacity, 50);
    set_capacity(&f, 40);
    granted a = request_lease(&f, "a", 50, 50, true);
    assert_exact(a.capacity, 20);
    assert_exact(a.committed, 50);
    assert_exact(renew(&f, "b", 50), 20);
    set_capacity(&f, 60);
    a = request_lease(&f, "a", 50, 5, true); /* a gave back, and holds only 5 */
    assert_exact(a.target, 30);
    assert_exact(committed_of(&f, "b"), 50);
    assert_exact(a.capacity, 10);
    fixture_stop(&f);
}

/* R5. The 50 units of holder `a` stay committed. But its request does not name their lease, so `a`
 * may not have this lease. */
TEST(a_holder_that_names_no_lease_gets_only_free_capacity) {
    fixture f;
    fixture_start(&f, 100, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    assert_exact(request_lease(&f, "a", 50, 0, false).capacity, 50);
    assert_exact(request_lease(&f, "b", 50, 0, false).capacity, 50);
    set_capacity(&f, 60);
    granted a = request_lease(&f, "a", 50, 0, false);
    assert_exact(a.target, 30);
    assert_exact(a.capacity, 10);
    assert_exact(a.committed, 10);
    assert_exact(committed_of(&f, "a"), 50);
    fixture_stop(&f);
}

/* ---- R5: a round after a cut ---------------------------------------------------------------- */

/* Two gauges keep 150 units in flight each, while the capacity falls from 300 to 100. */
static void cut_with_units_in_flight(fixture *f, doorman_handover handover) {
    fixture_start(f, 300, DOORMAN_FAIR_SHARE, handover);
    assert_exact(request_lease(f, "a", 150, 0, false).capacity, 150);
    assert_exact(request_lease(f, "b", 150, 0, false).capacity, 150);
    f->now += SECONDS(1);
    set_capacity(f, 100);
}

/* T7, R5. With confirmed handover, each holder may still use 150 units after the cut. First `b`
 * gets its target, 90. Later the target of `a` is 50. Each of these two leases would be within the
 * 150 units of its holder, but together they would be above the capacity. */
TEST(moving_shares_after_a_cut_do_not_keep_leases_above_the_capacity) {
    for (int handover = DOORMAN_CONFIRMED; handover <= DOORMAN_IMMEDIATE; handover++) {
        fixture f;
        cut_with_units_in_flight(&f, (doorman_handover)handover);
        set_demand(&f, find(&f, "b"), &(doorman_demand){1000, 1, 1});
        f.now += SECONDS(1);
        granted a = request_lease(&f, "a", 10, 150, true);
        assert_exact(a.capacity, 10);
        assert_exact(a.committed, handover == DOORMAN_CONFIRMED ? 150 : 10);
        f.now += SECONDS(3);
        granted b = request_lease(&f, "b", 1000, 150, true);
        assert_exact(b.target, 90);
        assert_exact(b.capacity, 90);
        f.now += SECONDS(1);
        a = request_lease(&f, "a", 1000, 150, true);
        assert_exact(a.target, 50);
        assert_true(a.capacity >= 10 && a.capacity + 90 <= 100 + 1e-4);
        audit(&f);
        fixture_stop(&f);
    }
}

/* R5. The units in flight come back, so the committed amounts fit. The shares are exact again. */
TEST(a_cut_is_over_when_the_committed_amounts_fit) {
    fixture f;
    cut_with_units_in_flight(&f, DOORMAN_CONFIRMED);
    for (int i = 0; i < 3; i++) {
        (void)request_lease(&f, "a", 1000, 150, true);
        (void)request_lease(&f, "b", 1000, 150, true);
    }
    assert_true(f.leases->round_is_on);
    for (int i = 0; i < 3; i++) {
        (void)renew(&f, "a", 1000);
        (void)renew(&f, "b", 1000);
    }
    assert_false(f.leases->round_is_on);
    assert_exact(find(&f, "a")->has, 50);
    assert_exact(find(&f, "b")->has, 50);
    assert_true(fits(&f));
    fixture_stop(&f);
}

typedef struct gauge_client {
    const char *id;
    double capacity, in_flight;
    doorman_time end;
    bool names_last; /* false: the response to its last request was lost */
} gauge_client;

/* Makes a request. The client claims its units in flight, which drain slowly. Some responses are
 * lost. */
static void gauge_client_renew(fixture *f, gauge_client *self) {
    double capacity = f->now < self->end ? self->capacity : 0;
    double wants = random_below(2) ? 1000 : random_unit() * 20;
    self->in_flight = doorman__max(self->in_flight * (0.9 + 0.1 * random_unit()), capacity);
    bool names_last = self->names_last && f->now < self->end;
    granted lease = request_lease(f, self->id, wants, self->in_flight, names_last);
    self->names_last = random_below(16) > 0;
    if (!self->names_last) return;
    self->capacity = lease.capacity;
    self->end = f->now + LEASE_LENGTH;
}

/* T7, R5. The capacity is cut and raised, demands change, and responses are lost. One lease length
 * plus the drift after the last cut, the leases in force fit. */
TEST(one_lease_length_after_the_last_cut_the_leases_fit) {
    for (int run = 0; run < 400; run++) {
        gauge_client clients[] = {{.id = "a"}, {.id = "b"}, {.id = "c"}, {.id = "d"}};
        fixture f;
        fixture_start(&f, 1000, (doorman_kind)(run / 3 % DOORMAN_STATIC_SHARE), DOORMAN_CONFIRMED);
        doorman_time cut_at = f.now;
        for (size_t step = 0; step < 400; step++) {
            f.now += (doorman_time)(random_unit() * 2 * DOORMAN_SECOND);
            (void)expire(&f);
            if (step < 200 && random_below(10) == 0) {
                double capacity = f.settings.capacity * (random_below(4) ? random_unit() : 1.5);
                if (capacity < f.settings.capacity) cut_at = f.now;
                set_capacity(&f, capacity);
            }
            gauge_client_renew(&f, &clients[random_below(2 + (size_t)run % 3)]);
            double sum = 0;
            for (size_t i = 0; i < 4; i++) {
                if (f.now < clients[i].end) sum += clients[i].capacity;
            }
            if (f.now > cut_at + ENTRY_LENGTH) assert_true(sum <= f.settings.capacity + 1e-9);
            audit(&f);
        }
        fixture_stop(&f);
    }
}

/* ---- R4: age ------------------------------------------------------------------------------- */

/* R4. If a client never names its lease, its largest lease stays committed for at most two lease
 * lengths, each with the drift. After that, only recent grants are committed. */
TEST(an_unconfirmed_amount_is_free_after_its_lease_has_ended) {
    fixture f;
    fixture_start(&f, 1000, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    doorman_time start = f.now, fell_at = 0;
    assert_exact(request_lease(&f, "careless", 900, 0, false).capacity, 900);
    for (; f.now < start + 3 * ENTRY_LENGTH; f.now += SECONDS(10)) {
        assert_exact(request_lease(&f, "careless", 100, 0, false).capacity, 100);
        double counted = committed_of(&f, "careless");
        assert_true(counted >= (f.now < start + LEASE_LENGTH ? 900 : 100));
        if (!fell_at && counted <= 100) fell_at = f.now;
        audit(&f);
    }
    assert_true(fell_at >= start + ENTRY_LENGTH && fell_at <= start + 2 * ENTRY_LENGTH);
    assert_exact(request_lease(&f, "b", 1000, 0, false).capacity, 900);
    fixture_stop(&f);
}

/* R4. The committed amount is at least the largest lease that has not ended. The largest lease may
 * be neither the first nor the last. */
TEST(the_committed_amount_covers_every_lease_in_force) {
    fixture f;
    fixture_start(&f, 1000, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    double given[300];
    doorman_time at[300];
    for (size_t i = 0; i < 300; i++) {
        f.now += (doorman_time)(random_unit() * 20 * DOORMAN_SECOND);
        given[i] = request_lease(&f, "careless", random_unit() * 1000, 0, false).capacity;
        at[i] = f.now;
        double least = 0, most = 0;
        for (size_t k = 0; k <= i; k++) {
            if (f.now < at[k] + ENTRY_LENGTH) least = doorman__max(least, given[k]);
            if (f.now < at[k] + 2 * ENTRY_LENGTH + SECONDS(20)) {
                most = doorman__max(most, given[k]);
            }
        }
        assert_true(committed_of(&f, "careless") >= least);
        assert_true(committed_of(&f, "careless") <= most * (1 + 1e-6));
    }
    fixture_stop(&f);
}

/* R4. As long as a holder claims units in flight, each new lease keeps them committed. */
TEST(a_repeated_claim_stays_committed) {
    fixture f;
    cut_with_units_in_flight(&f, DOORMAN_CONFIRMED);
    for (int i = 0; i < 20; i++) {
        f.now += SECONDS(20);
        assert_exact(request_lease(&f, "a", 50, 150, true).committed, 150);
    }
    assert_exact(committed_of(&f, "a"), 150);
    fixture_stop(&f);
}

/* ---- immediate handover -------------------------------------------------------------------- */

/* T7 with immediate handover: when a lease shrinks, the difference is free at once. */
TEST(immediate_handover_commits_only_the_last_grant) {
    fixture f;
    fixture_start(&f, 500, DOORMAN_FAIR_SHARE, DOORMAN_IMMEDIATE);
    assert_exact(request_lease(&f, "c1", 500, 0, false).capacity, 500);
    assert_exact(request_lease(&f, "c0", 182, 0, false).capacity, 0);
    granted c1 = request_lease(&f, "c1", 500, 500, true);
    assert_exact(c1.capacity, 318);
    assert_exact(c1.committed, 318);
    assert_exact(committed_of(&f, "c1"), 318);
    assert_exact(renew(&f, "c0", 182), 182);
    assert_true(fits(&f));
    fixture_stop(&f);
}

/* ---- R6: learning -------------------------------------------------------------------------- */

/* S4, R6 */
TEST(while_learning_holders_keep_their_leases_and_none_grows) {
    fixture f;
    fixture_start(&f, 100, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    granted a = learn(&f, "a", 90, 30);
    assert_exact(a.capacity, 30);
    assert_exact(a.committed, 30);
    assert_exact(learn(&f, "new", 50, 0).capacity, 0);
    assert_exact(learn(&f, "b", 90, 20).capacity, 20);
    assert_exact(learn(&f, "a", 90, 30).capacity, 30);
    a = learn(&f, "a", 10, 5); /* 25 is given back, but stays committed until learning ends */
    assert_exact(a.capacity, 5);
    assert_exact(a.committed, 5);
    assert_exact(committed_of(&f, "a"), 30);
    assert_exact(doorman__total_value(f.leases->committed), 50);
    fixture_stop(&f);
}

/* S4, R6. While the original Doorman learns, it accepts a claim of 1e9. */
TEST(while_learning_claims_are_limited_to_the_capacity) {
    for (int handover = DOORMAN_CONFIRMED; handover <= DOORMAN_IMMEDIATE; handover++) {
        fixture f;
        fixture_start(&f, 100, DOORMAN_FAIR_SHARE, (doorman_handover)handover);
        assert_exact(learn(&f, "a", 60, 60).capacity, 60);
        granted liar = learn(&f, "liar", 60, 1e9);
        assert_exact(liar.capacity, 40);
        assert_exact(liar.committed, 40);
        assert_exact(committed_of(&f, "liar"), 40); /* the grant, not the claim */
        assert_exact(learn(&f, "late", 1, 1).capacity, 0);
        assert_exact(learn(&f, "liar", 60, DOORMAN_AMOUNT_MAX).capacity, 40);
        assert_true(fits(&f));
        fixture_stop(&f);
    }
}

/* ---- ends ---------------------------------------------------------------------------------- */

/* S2 */
TEST(leases_expire_on_time_and_the_earliest_first) {
    fixture f;
    fixture_start(&f, 100, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    (void)request_lease(&f, "a", 30, 0, false);
    f.now += SECONDS(10);
    (void)request_lease(&f, "b", 30, 0, false);
    f.now += SECONDS(10);
    (void)request_lease(&f, "c", 60, 0, false);
    (void)renew(&f, "a", 30);
    assert_string_equal(f.leases->oldest->holder_id, "b");
    assert_string_equal(f.leases->newest->holder_id, "a");

    f.now = f.leases->oldest->end - 1;
    assert_int_equal(expire(&f), 0);
    f.now += 1;
    assert_int_equal(expire(&f), 1);
    audit(&f);
    assert_exact(doorman__total_value(f.leases->committed), 70);
    f.now += SECONDS(10) - 1;
    assert_int_equal(expire(&f), 0);
    f.now += 1;
    assert_int_equal(expire(&f), 2);
    fixture_stop(&f);
}

static void set_lease_length(fixture *f, doorman_template *next, doorman_time length) {
    *next = f->settings;
    next->algorithm.lease_length = length;
    set_template(f, next);
}

/* R9, G5, S2. A new configuration has shorter leases. No end of a lease gets earlier. A new
 * holder's lease ends on time, before the leases of earlier holders. */
TEST(shorter_leases_from_a_new_configuration_end_on_time) {
    fixture f;
    doorman_template shorter;
    fixture_start(&f, 100, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    set_lease_length(&f, &f.settings, LEASE_LENGTH);
    (void)request_lease(&f, "a", 10, 0, false);
    f.now += SECONDS(10);
    (void)request_lease(&f, "b", 10, 0, false);
    doorman_time end_of_a = find(&f, "a")->end, end_of_b = find(&f, "b")->end;
    set_lease_length(&f, &shorter, SECONDS(5));
    doorman__leases_set_end(f.leases, find(&f, "b"), f.now + SECONDS(5));
    assert_int_equal(find(&f, "b")->end, end_of_b);
    (void)find(&f, "new");
    doorman__leases_set_end(f.leases, find(&f, "new"), f.now + SECONDS(5));
    assert_int_equal(find(&f, "new")->end, f.now + SECONDS(5));
    audit(&f);

    f.now += SECONDS(5);
    assert_int_equal(expire(&f), 1); /* the new holder */
    f.now = end_of_a - SECONDS(1);
    doorman__leases_set_end(f.leases, find(&f, "a"), f.now + SECONDS(5));
    assert_int_equal(find(&f, "a")->end, f.now + SECONDS(5));
    audit(&f);
    assert_int_equal(f.leases->entries.count, 2);
    f.now += SECONDS(5);
    assert_int_equal(expire(&f), 1); /* a is first in both lists */
    audit(&f);
    f.now = end_of_b - 1;
    assert_int_equal(expire(&f), 0);
    f.now = end_of_b;
    assert_int_equal(expire(&f), 1);
    fixture_stop(&f);
}

/* S2. Leases are shortened again while the first leases have not ended. No entry ends before the
 * entry ahead of it. So an entry can last as long as a lease of an earlier configuration. */
TEST(a_lease_that_is_shortened_twice_keeps_the_order_of_expiry) {
    fixture f;
    doorman_template shorter, shortest, last;
    fixture_start(&f, 100, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    set_lease_length(&f, &f.settings, LEASE_LENGTH);
    (void)request_lease(&f, "a", 10, 0, false);
    set_lease_length(&f, &shorter, SECONDS(30));
    (void)find(&f, "b");
    doorman__leases_set_end(f.leases, find(&f, "b"), f.now + SECONDS(30));
    set_lease_length(&f, &shortest, SECONDS(5));
    (void)find(&f, "c");
    doorman__leases_set_end(f.leases, find(&f, "c"), f.now + SECONDS(5));
    assert_int_equal(find(&f, "c")->end, f.now + SECONDS(30));
    audit(&f);
    f.now += SECONDS(30);
    assert_int_equal(expire(&f), 2);
    f.now += ENTRY_LENGTH;
    assert_int_equal(expire(&f), 1);
    (void)find(&f, "d");
    set_lease_length(&f, &last, SECONDS(1)); /* the first list is empty */
    assert_ptr_equal(f.leases->draining, find(&f, "d"));
    audit(&f);
    fixture_stop(&f);
}

/* ---- the lease table ----------------------------------------------------------------------- */

/* Clients and servers have separate id spaces. Entries with the same hash are distinguished. */
TEST(a_holder_is_found_by_its_id_and_whether_it_is_a_server) {
    fixture f;
    fixture_start(&f, 100, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    static const char *const ids[] = {"a", "b", "a"};
    doorman__lease_entry *records[3];
    for (size_t i = 0; i < 3; i++) {
        records[i] = doorman__leases_add(f.leases, 7, ids[i], i == 2);
        assert_non_null(records[i]);
        doorman__leases_set_end(f.leases, records[i], f.now);
    }
    for (size_t i = 0; i < 3; i++) {
        assert_ptr_equal(doorman__leases_find(f.leases, 7, ids[i], i == 2), records[i]);
    }
    assert_null(doorman__leases_find(f.leases, 7, "b", true));
    assert_null(doorman__leases_find(f.leases, 7, "c", false));
    assert_null(doorman__leases_find(f.leases, 8, "a", false));
    fixture_stop(&f);
}

/* C4 */
TEST(without_memory_the_lease_table_stays_unchanged) {
    fixture f;
    fixture_start(&f, 100, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    (void)request_lease(&f, "a", 10, 0, false);
    memory_fails_at(1);
    assert_null(doorman__leases_add(f.leases, 7, "b", false));
    assert_false(memory_works());
    audit(&f);
    assert_int_equal(f.leases->entries.count, 1);
    assert_exact(renew(&f, "a", 10), 10);
    fixture_stop(&f);
}

/* A2. A renewal that changes nothing keeps the terms. A holder that arrives, leaves or changes its
 * demand causes new terms. */
TEST(terms_stay_cached_until_a_demand_changes) {
    fixture f;
    fixture_start(&f, 100, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    (void)renew(&f, "a", 100);
    (void)renew(&f, "b", 100);
    assert_true(f.leases->terms_count > 0);
    f.leases->terms[0].level = 7; /* visible only if the terms are not computed again */
    assert_exact(request_lease(&f, "a", 100, 0, false).target, 7);
    assert_exact(request_lease(&f, "a", 101, 0, false).target, 50);
    f.leases->terms[0].level = 7;
    doorman__leases_remove(f.leases, find(&f, "b"));
    assert_exact(request_lease(&f, "a", 101, 0, false).target, 100);
    fixture_stop(&f);
}

/* A3. Demands are regrouped if either the old or the new kind has priority bands, but not both. */
TEST(a_new_template_shares_by_its_own_kind) {
    fixture f;
    fixture_start(&f, 120, DOORMAN_FAIR_SHARE, DOORMAN_CONFIRMED);
    static const doorman_demand demands[] = {{100, 1, 2}, {50, 1, 1}, {50, 1, 1}};
    static const char *const ids[] = {"a", "b", "c"};
    static const struct {
        doorman_kind kind;
        double targets[3];
    } examples[] = {
        {DOORMAN_FAIR_SHARE, {40, 40, 40}},    {DOORMAN_PRIORITY_SHARE, {100, 10, 10}},
        {DOORMAN_STATIC_SHARE, {100, 50, 50}}, {DOORMAN_PRIORITY_SHARE, {100, 10, 10}},
        {DOORMAN_NO_ALGORITHM, {100, 50, 50}}, {DOORMAN_FAIR_SHARE, {40, 40, 40}},
    };
    for (size_t i = 0; i < 3; i++) set_demand(&f, find(&f, ids[i]), &demands[i]);
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        doorman_template next = f.settings;
        next.algorithm.kind = examples[i].kind;
        set_template(&f, &next);
        audit(&f);
        for (size_t j = 0; j < 3; j++) {
            assert_about(doorman__leases_target(f.leases, find(&f, ids[j])),
                         examples[i].targets[j]);
        }
        f.settings = next;
        set_template(&f, &f.settings);
    }
    fixture_stop(&f);
}

/* 136 bytes and the 8 bytes of malloc fill a block of 144 bytes. One byte more would take 160. */
TEST(a_lease_entry_with_an_id_of_32_bytes_takes_136_bytes) {
    assert_true(offsetof(doorman__lease_entry, holder_id) + 32 + 1 <= 136);
}

/* C9. Random operations in random order. */
TEST(the_sums_of_a_lease_table_equal_a_recount) {
    fixture f;
    fixture_start(&f, 1000, DOORMAN_PRIORITY_SHARE, DOORMAN_CONFIRMED);
    for (int step = 0; step < 40000; step++) {
        char id[8];
        snprintf(id, sizeof id, "c%zu", random_below(60));
        doorman__lease_entry *entry = find(&f, id);
        const doorman_demand demand = {random_amount(), (double)random_below(2),
                                       (int)random_below(DOORMAN_PRIORITY_MAX + 1)};
        f.now += (doorman_time)random_below((size_t)DOORMAN_SECOND * 3);
        switch (random_below(9)) {
        case 0: doorman__leases_remove(f.leases, entry); break;
        case 1: doorman__leases_confirm(f.leases, entry, random_amount()); break;
        case 5: doorman__leases_age(f.leases, entry, f.now); break;
        case 2:
            (void)doorman__leases_learn(f.leases, entry, random_amount(), random_amount(),
                                        random_below(2) ? random_amount() : 0);
            break;
        case 3: (void)expire(&f); break;
        case 4:
            set_capacity(&f, random_amount());
            f.settings.algorithm.handover = (doorman_handover)random_below(2);
            break;
        default:
            set_demand(&f, entry, &demand);
            (void)doorman__leases_grant(f.leases, entry, doorman__leases_target(f.leases, entry),
                                        random_amount());
            doorman__leases_set_end(f.leases, entry,
                                    f.now + (doorman_time)random_below((size_t)ENTRY_LENGTH));
        }
        if (step % 20 == 0) audit(&f);
    }
    fixture_stop(&f);
}

/* ---- T7: lost, duplicated and delayed messages --------------------------------------------- */

enum { HOLDERS = 5, UNDER_WAY = 12 };

typedef struct client {
    char id[2];
    double wants, capacity;
    uint64_t lease_id, last_request;
    bool waits; /* for the response to its last request */
    doorman_time end;
} client;

/* A request, which later becomes its response. */
typedef struct message {
    size_t from;
    uint64_t request, lease_id; /* lease_id: the lease named, then the lease granted */
    double claim, wants, granted;
    doorman_time sent_at;
    bool sent, is_response;
} message;

typedef struct world {
    fixture f;
    client clients[HOLDERS];
    message messages[UNDER_WAY];
    uint64_t requests, leases;
} world;

static double client_has(const client *self, doorman_time now) {
    return now < self->end ? self->capacity : 0;
}

/* R3: the client first gives back what it no longer wants, and claims everything that it has. */
static message client_request(world *all, size_t from) {
    client *self = &all->clients[from];
    self->capacity = doorman__min(client_has(self, all->f.now), doorman__floor(self->wants));
    if (all->f.now >= self->end) self->lease_id = 0;
    self->last_request = ++all->requests;
    self->waits = true;
    return (message){.from = from,
                     .request = self->last_request,
                     .lease_id = self->lease_id,
                     .claim = self->capacity,
                     .wants = self->wants,
                     .sent_at = all->f.now,
                     .sent = true};
}

static message server_respond(world *all, const message *request) {
    fixture *f = &all->f;
    (void)expire(f);
    const char *id = all->clients[request->from].id;
    doorman__lease_entry *entry = find(f, id);
    bool names_last = entry->lease_id && request->lease_id == entry->lease_id;
    message response = *request;
    response.granted = request_lease(f, id, request->wants, request->claim, names_last).capacity;
    response.lease_id = entry->lease_id = ++all->leases;
    response.is_response = true;
    return response;
}

/* R2, R9 */
static void client_receive(world *all, const message *response) {
    client *self = &all->clients[response->from];
    if (!self->waits || response->request != self->last_request) return;
    self->waits = false;
    self->capacity = response->granted;
    self->lease_id = response->lease_id;
    self->end = doorman__later(self->end, response->sent_at + LEASE_LENGTH);
}

static void client_restart(client *self) {
    self->capacity = 0;
    self->lease_id = 0;
    self->end = 0;
    self->waits = false;
}

static void world_check(const world *all) {
    doorman__total in_force = {0, 0};
    for (size_t i = 0; i < HOLDERS; i++) {
        doorman__total_add(&in_force, client_has(&all->clients[i], all->f.now));
    }
    assert_false(exceeds(in_force, doorman__total_of(all->f.settings.capacity)));
    assert_true(fits(&all->f));
}

/* Makes random events. A new message may replace another message, which is then lost. A request
 * stays in its place if its response is stored in another place. Such a request may be delivered
 * again. A response may be delivered again too. */
static void world_step(world *all) {
    message *some = &all->messages[random_below(UNDER_WAY)];
    message *place = random_below(3) ? some : &all->messages[random_below(UNDER_WAY)];
    client *one = &all->clients[random_below(HOLDERS)];
    all->f.now += (doorman_time)random_below((size_t)SECONDS(random_below(50) ? 2 : 30));
    if (random_below(10) == 0) one->wants = random_unit() * all->f.settings.capacity;
    if (random_below(200) == 0) client_restart(one);
    if (some->is_response) {
        client_receive(all, some);
    } else if (some->sent) {
        *place = server_respond(all, some);
    }
    if (random_below(3) == 0) *place = client_request(all, (size_t)(one - all->clients));
}

/* No message is lost now. In four rounds each client receives its last lease, shrinks, confirms,
 * and grows. Then it has its share. */
static void world_settle(world *all) {
    for (size_t i = 0; i < (size_t)4 * HOLDERS; i++) {
        message request = client_request(all, i % HOLDERS);
        message response = server_respond(all, &request);
        client_receive(all, &response);
        world_check(all);
    }
    for (size_t i = 0; i < HOLDERS; i++) {
        doorman__lease_entry *entry = find(&all->f, all->clients[i].id);
        assert_about(client_has(&all->clients[i], all->f.now),
                     doorman__leases_target(all->f.leases, entry));
    }
}

/* T7, R1 to R5, R9, S8 */
TEST(leases_fit_the_capacity_despite_lost_duplicated_and_late_messages) {
    for (int run = 0; run < 300; run++) {
        static world all;
        memset(&all, 0, sizeof all);
        fixture_start(&all.f, 1 + random_unit() * 1000, (doorman_kind)(run % DOORMAN_STATIC_SHARE),
                      DOORMAN_CONFIRMED);
        for (size_t i = 0; i < HOLDERS; i++) {
            all.clients[i].id[0] = (char)('a' + i);
            all.clients[i].wants = all.f.settings.capacity;
        }
        for (int step = 0; step < 500; step++) {
            world_step(&all);
            world_check(&all);
        }
        world_settle(&all);
        fixture_stop(&all.f);
    }
}
