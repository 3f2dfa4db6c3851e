/* Reservations, their settlement, and reports that count once (P27, P28). */
#include "unit.h"

#include <math.h>
#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define MINUTE (60 * SECOND)
#define HOUR (60 * MINUTE)
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define ROW_MAX DOORMAN_PERMIT_ROW_BYTES_MAX

static const doorman_time noon = INT64_C(1767225600) * SECOND + 12 * HOUR; /* 1 January 2026 */

/* ---- a process with permits ----------------------------------------------------------------- */

struct process {
    doorman_config *config;
    doorman_permits *permits;
    doorman_time now, epoch;
    doorman_permit out;
    doorman_settlement settled;
    doorman_permits_options options; /* other than the config and the seed */
};

static doorman_config *limits_of(const char *limits) {
    static char text[8192];
    doorman_config *config = NULL;
    doorman_error error = {0};
    snprintf(text, sizeof text, "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [%s]}]}",
             limits);
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return config;
}

static void process_start(struct process *p) {
    p->options.config = p->config;
    p->options.seed[0] = random_bits() | 1;
    doorman_status status = doorman_permits_create(&p->permits, &p->options, NULL, p->now);
    assert_int_equal(status, DOORMAN_OK);
    doorman_permits_set_epoch(p->permits, p->epoch, p->now);
}

static struct process process_of(const char *limits) {
    struct process p = {.config = limits_of(limits), .now = 5 * SECOND, .epoch = noon};
    process_start(&p);
    return p;
}

static void process_end(struct process *p) {
    doorman_permits_destroy(p->permits);
    doorman_config_destroy(p->config);
}

static void pass(struct process *p, doorman_time time) {
    p->now += time;
    p->epoch += time;
    doorman_permits_set_epoch(p->permits, p->epoch, p->now);
    doorman_permits_update(p->permits, p->now);
}

static void configure(struct process *p, const char *limits) {
    doorman_config *next = limits_of(limits);
    assert_int_equal(doorman_permits_configure(p->permits, next), DOORMAN_OK);
    doorman_config_destroy(p->config);
    p->config = next;
}

/* Reserves units of the resource "llm" for the key "acme". Returns whether they are granted. */
static bool reserve(struct process *p, uint64_t request_id, double cost, doorman_time within) {
    const doorman_permit_item item = {.resource_id = "llm", .key = "acme", .cost = cost};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .client_id = "gateway",
                                            .request_id = request_id,
                                            .settle_within = within};
    doorman_error error = {0};
    doorman_status status = doorman_permits_acquire(p->permits, &request, &p->out, &error, p->now);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return p->out.granted;
}

static const doorman_settlement *settle(struct process *p, uint64_t request_id, double cost) {
    const doorman_permit_item item = {.resource_id = "llm", .key = "acme", .cost = cost};
    const doorman_settle_request request = {
        .client_id = "gateway", .request_id = request_id, .items = &item, .item_count = 1};
    doorman_error error = {0};
    doorman_status status =
        doorman_permits_settle(p->permits, &request, &p->settled, &error, p->now);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return &p->settled;
}

static const doorman_settlement *report_once(struct process *p, uint64_t request_id, double cost) {
    const doorman_permit_item item = {.resource_id = "llm", .key = "acme", .cost = cost};
    const doorman_settle_request request = {
        .client_id = "gateway", .request_id = request_id, .items = &item, .item_count = 1};
    doorman_error error = {0};
    doorman_status status =
        doorman_permits_report_once(p->permits, &request, &p->settled, &error, p->now);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return &p->settled;
}

/* Returns what a limit has used. */
static double used(struct process *p, size_t index) {
    doorman_permit out;
    doorman_status status = doorman_permits_inspect(p->permits, "llm", "acme", &out, NULL, p->now);
    assert_int_equal(status, DOORMAN_OK);
    assert_true(index < out.detail_count);
    return out.details[index].used;
}

static size_t open_count(const struct process *p) {
    doorman_permits_info info;
    doorman_permits_read(p->permits, &info);
    return info.reservation_count;
}

static size_t request_count(const struct process *p) {
    doorman_permits_info info;
    doorman_permits_read(p->permits, &info);
    return info.request_count;
}

#define WINDOW "{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1000, \"window\": \"day\""
#define LARGE                                                                                      \
    "{\"name\": \"l\", \"kind\": \"FIXED_WINDOW\", \"limit\": 10000, \"window\": \"day\", "        \
    "\"max_cost\": 900}"
#define SLIDING "{\"name\": \"s\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 1000, \"window\": 1600"
#define BUCKET "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1000"
#define TIERS                                                                                      \
    "{\"name\": \"t\", \"kind\": \"TIERS\", \"tiers\": [{\"limit\": 1000, \"window\": 3600, "      \
    "\"active\": 3600}]"

#define assert_settled(settlement, returned_, charged_)                                            \
    do {                                                                                           \
        const doorman_settlement *settlement_ = (settlement);                                      \
        assert_int_equal(settlement_->reason, DOORMAN_NO_REASON);                                  \
        assert_int_equal(settlement_->item_count, 1);                                              \
        assert_exact(settlement_->items[0].returned, returned_);                                   \
        assert_exact(settlement_->items[0].charged, charged_);                                     \
    } while (0)

/* ---- what comes back ------------------------------------------------------------------------ */

/* P27: a window of the same number has what was reserved and not used. */
TEST(what_a_request_did_not_cost_comes_back_to_its_window) {
    struct process p = process_of(WINDOW "}");
    assert_true(reserve(&p, 7, 400.3, MINUTE));
    assert_true(p.out.reservation_id != 0);
    assert_int_equal(p.out.settle_within, MINUTE);
    assert_int_equal(open_count(&p), 1);
    pass(&p, 5 * SECOND);
    assert_settled(settle(&p, 7, 100), 300.300048828125, 0);
    assert_int_equal(p.settled.id, p.out.reservation_id);
    assert_false(p.settled.late || p.settled.unknown);
    assert_exact(used(&p, 0), 100);
    assert_int_equal(open_count(&p), 0);
    process_end(&p);
}

/* P27: the next window has not counted the reservation, so nothing comes back to it. */
TEST(nothing_comes_back_to_a_later_window) {
    struct process p = process_of(WINDOW "}");
    pass(&p, 12 * HOUR - 10 * SECOND);
    assert_true(reserve(&p, 7, 400, MINUTE));
    pass(&p, 11 * SECOND);
    assert_true(reserve(&p, 8, 250, MINUTE));
    assert_settled(settle(&p, 7, 100), 0, 0);
    assert_exact(used(&p, 0), 250);
    process_end(&p);
}

/* P27: units come back to the slice that was charged, and others stay where they are. */
TEST(units_come_back_to_their_slice) {
    struct process p = process_of(SLIDING "}");
    assert_true(reserve(&p, 7, 400, HOUR));
    pass(&p, 300 * SECOND);
    assert_true(reserve(&p, 8, 200, HOUR));
    assert_settled(settle(&p, 7, 100), 300, 0);
    assert_exact(used(&p, 0), 300);
    pass(&p, 1300 * SECOND); /* the slice of the first one has ended */
    assert_exact(used(&p, 0), 200);
    assert_settled(settle(&p, 8, 50), 150, 0);
    assert_exact(used(&p, 0), 50);
    process_end(&p);
}

/* P27: units do not come back to a slice that does not count any more. */
TEST(units_of_an_old_slice_do_not_come_back) {
    struct process p = process_of(SLIDING "}");
    assert_true(reserve(&p, 7, 400, HOUR));
    pass(&p, 1600 * SECOND);
    assert_true(reserve(&p, 8, 200, HOUR));
    assert_settled(settle(&p, 7, 100), 0, 0);
    assert_exact(used(&p, 0), 200);
    process_end(&p);
}

/* P27: a bucket takes units back up to its size. */
TEST(a_bucket_takes_units_back_up_to_its_size) {
    struct process p = process_of(BUCKET "}");
    assert_true(reserve(&p, 7, 400, HOUR));
    assert_settled(settle(&p, 7, 100), 300, 0);
    assert_exact(used(&p, 0), 100);
    assert_true(reserve(&p, 8, 400, HOUR));
    pass(&p, 480 * SECOND);
    assert_settled(settle(&p, 8, 0), 20, 0);
    assert_exact(used(&p, 0), 0);
    process_end(&p);
}

/* P27: TIERS give nothing back. */
TEST(tiers_give_nothing_back) {
    struct process p = process_of(TIERS "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    assert_settled(settle(&p, 7, 100), 0, 0);
    assert_exact(used(&p, 0), 400);
    process_end(&p);
}

/* P27, P13: what is more is charged as a report is. */
TEST(what_a_request_cost_in_addition_is_charged) {
    struct process p = process_of(LARGE ", " TIERS "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    assert_settled(settle(&p, 7, 700), 0, 300);
    assert_exact(used(&p, 0), 700);
    assert_exact(used(&p, 1), 700);
    assert_true(reserve(&p, 8, 100, MINUTE));
    assert_settled(settle(&p, 8, 5000), 0, 200); /* TIERS take what fits */
    assert_exact(used(&p, 0), 1700);             /* max_cost */
    assert_exact(used(&p, 1), 1000);
    process_end(&p);
}

/* P27: a counter that was reset meanwhile has not counted the reservation. What others have used of
 * it since then stays. */
TEST(a_counter_that_was_reset_gives_nothing_back) {
    struct process p = process_of(WINDOW "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    doorman_status status = doorman_permits_reset(p.permits, "llm", "acme", NULL, NULL, NULL);
    assert_int_equal(status, DOORMAN_OK);
    const doorman_permit_item item = {.resource_id = "llm", .key = "acme", .cost = 50};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    status = doorman_permits_acquire(p.permits, &request, &p.out, NULL, p.now);
    assert_int_equal(status, DOORMAN_OK);
    assert_settled(settle(&p, 7, 100), 0, 0);
    assert_exact(used(&p, 0), 50);
    process_end(&p);
}

/* P15, P27: a limit of another kind has not charged the reservation, so it is charged the cost. */
TEST(a_limit_of_another_kind_is_charged_the_cost) {
    struct process p = process_of(WINDOW "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    configure(&p, "{\"name\": \"w\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1000}");
    assert_settled(settle(&p, 7, 100), 0, 100);
    assert_exact(used(&p, 0), 100);
    process_end(&p);
}

/* ---- repeats -------------------------------------------------------------------------------- */

/* P27: a repeated settle answers what the first one counted. */
TEST(a_repeated_settle_counts_once) {
    struct process p = process_of(WINDOW "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    assert_settled(settle(&p, 7, 100), 300, 0);
    pass(&p, 59 * SECOND);
    assert_settled(settle(&p, 7, 100), 300, 0);
    assert_exact(used(&p, 0), 100);
    assert_int_equal(request_count(&p), 1);
    pass(&p, SECOND);
    assert_int_equal(request_count(&p), 0);
    process_end(&p);
}

/* P27: other figures are refused, and nothing changes. */
TEST(a_settle_with_other_figures_is_refused) {
    struct process p = process_of(WINDOW "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    (void)settle(&p, 7, 100);
    assert_int_equal(settle(&p, 7, 90)->reason, DOORMAN_REASON_REPEATED);
    assert_null(p.settled.items);
    assert_exact(used(&p, 0), 100);
    process_end(&p);
}

/* P27: a repeated permit answers what was granted, and charges nothing. */
TEST(a_repeated_reservation_is_charged_once) {
    struct process p = process_of(WINDOW "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    const uint64_t id = p.out.reservation_id;
    pass(&p, 20 * SECOND);
    assert_true(reserve(&p, 7, 400, MINUTE));
    assert_int_equal(p.out.reservation_id, id);
    assert_int_equal(p.out.settle_within, 40 * SECOND);
    assert_exact(p.out.items[0].granted, 400);
    assert_exact(used(&p, 0), 400);
    assert_false(reserve(&p, 7, 300, MINUTE)); /* another cost */
    assert_int_equal(p.out.reason, DOORMAN_REASON_REPEATED);
    assert_false(reserve(&p, 7, 400, 0)); /* no reservation */
    assert_int_equal(p.out.reason, DOORMAN_REASON_REPEATED);
    (void)settle(&p, 7, 100);
    assert_false(reserve(&p, 7, 400, MINUTE));
    assert_int_equal(p.out.reason, DOORMAN_REASON_REPEATED);
    assert_exact(used(&p, 0), 100);
    process_end(&p);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* P27: what is not settled in time stays charged. A late settle charges only what is more. */
TEST(an_unsettled_reservation_stays_charged) {
    struct process p = process_of(WINDOW "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    assert_true(reserve(&p, 8, 400, MINUTE));
    pass(&p, MINUTE);
    assert_int_equal(open_count(&p), 0);
    assert_exact(used(&p, 0), 800);
    assert_settled(settle(&p, 7, 100), 0, 0);
    assert_true(p.settled.late);
    assert_settled(settle(&p, 8, 450), 0, 50);
    assert_true(p.settled.late && !p.settled.unknown);
    assert_exact(used(&p, 0), 850);
    process_end(&p);
}

/* P27: with refund_unsettled it comes back. A late settle is charged in full. */
TEST(an_unsettled_reservation_can_come_back) {
    struct process p = process_of(WINDOW ", \"unsettled\": \"refund\"}, " BUCKET "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    pass(&p, MINUTE - 1);
    assert_exact(used(&p, 0), 400);
    pass(&p, 1);
    assert_exact(used(&p, 0), 0);
    assert_exact(used(&p, 1), 340); /* this limit keeps it, and has gained 60 */
    assert_settled(settle(&p, 7, 100), 0, 100);
    assert_true(p.settled.late);
    assert_exact(used(&p, 0), 100);
    assert_exact(used(&p, 1), 340);
    process_end(&p);
}

/* P27: a settle without a reservation is charged as a report, once. */
TEST(an_unknown_settle_is_charged_once) {
    struct process p = process_of(WINDOW "}");
    assert_settled(settle(&p, 7, 100), 0, 100);
    assert_true(p.settled.unknown && !p.settled.late && !p.settled.id);
    assert_settled(settle(&p, 7, 100), 0, 100);
    assert_true(p.settled.unknown);
    assert_exact(used(&p, 0), 100);
    process_end(&p);
}

/* P27: the right to a reservation is its client_id. */
TEST(a_client_cannot_settle_for_another) {
    struct process p = process_of(WINDOW "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    const doorman_permit_item item = {.resource_id = "llm", .key = "acme", .cost = 1};
    const doorman_settle_request foreign = {
        .client_id = "another", .id = p.out.reservation_id, .items = &item, .item_count = 1};
    doorman_settlement out;
    doorman_status status = doorman_permits_settle(p.permits, &foreign, &out, NULL, p.now);
    assert_int_equal(status, DOORMAN_OK);
    assert_true(out.unknown);
    assert_exact(used(&p, 0), 401);
    assert_int_equal(open_count(&p), 1);
    assert_settled(settle(&p, 7, 100), 300, 0);
    process_end(&p);
}

/* ---- holds beside it ------------------------------------------------------------------------ */

#define HOLDS                                                                                      \
    "{\"name\": \"c\", \"kind\": \"CONCURRENCY\", \"limit\": 500, \"queue\": 10, "                 \
    "\"max_wait\": 60, \"time_to_live\": 30}"

/* P27: a settle releases the hold of the same permit. */
TEST(a_settle_releases_the_hold) {
    struct process p = process_of(WINDOW "}, " HOLDS);
    assert_true(reserve(&p, 7, 400, MINUTE));
    assert_int_equal(p.out.hold_id, p.out.reservation_id);
    assert_exact(used(&p, 1), 400);
    assert_false(reserve(&p, 8, 400, MINUTE));
    assert_settled(settle(&p, 7, 100), 300, 0);
    assert_exact(used(&p, 1), 0);
    assert_exact(used(&p, 0), 100);
    process_end(&p);
}

/* P7, P27: a permit that has waited is a reservation too. */
TEST(a_permit_that_waits_becomes_a_reservation) {
    struct process p = process_of(WINDOW "}, " HOLDS);
    assert_true(reserve(&p, 7, 400, MINUTE));
    const doorman_permit_item item = {.resource_id = "llm", .key = "acme", .cost = 300};
    const doorman_permit_request waits = {.items = &item,
                                          .item_count = 1,
                                          .max_wait = MINUTE,
                                          .client_id = "gateway",
                                          .request_id = 8,
                                          .settle_within = MINUTE};
    doorman_status status = doorman_permits_acquire(p.permits, &waits, &p.out, NULL, p.now);
    assert_int_equal(status, DOORMAN_OK);
    assert_true(p.out.pending);
    assert_int_equal(settle(&p, 8, 5)->reason, DOORMAN_REASON_REPEATED);
    (void)settle(&p, 7, 100);
    uint64_t ticket = 0;
    assert_true(doorman_permits_next_decision(p.permits, &ticket, &p.out));
    assert_true(p.out.granted && p.out.reservation_id == p.out.hold_id);
    assert_exact(used(&p, 0), 400);
    assert_settled(settle(&p, 8, 100), 200, 0);
    assert_exact(used(&p, 0), 200);
    assert_exact(used(&p, 1), 0);
    process_end(&p);
}

/* ---- reports that count once ---------------------------------------------------------------- */

/* P28: a report with a request_id counts once in 10 minutes. */
TEST(a_report_with_a_request_id_counts_once) {
    struct process p = process_of(WINDOW "}");
    assert_settled(report_once(&p, 7, 100), 0, 100);
    assert_false(p.settled.unknown);
    pass(&p, 10 * MINUTE - 1);
    assert_settled(report_once(&p, 7, 100), 0, 100);
    assert_exact(used(&p, 0), 100);
    assert_int_equal(report_once(&p, 7, 90)->reason, DOORMAN_REASON_REPEATED);
    pass(&p, 1);
    assert_settled(report_once(&p, 7, 100), 0, 100);
    assert_exact(used(&p, 0), 200);
    process_end(&p);
}

/* P28: beyond the bound nothing is charged, and the reason says so. */
TEST(too_many_request_ids_are_refused_by_name) {
    struct process p = {.config = limits_of(WINDOW "}"), .now = 5 * SECOND, .epoch = noon};
    p.options.client_request_max = 3;
    process_start(&p);
    assert_true(reserve(&p, 1, 10, MINUTE));
    (void)settle(&p, 1, 10);
    (void)report_once(&p, 1, 10);
    assert_true(reserve(&p, 2, 10, MINUTE));
    assert_int_equal(report_once(&p, 2, 10)->reason, DOORMAN_REASON_REPEATS);
    assert_int_equal(settle(&p, 9, 10)->reason, DOORMAN_REASON_REPEATS);
    assert_false(reserve(&p, 3, 10, MINUTE));
    assert_int_equal(p.out.reason, DOORMAN_REASON_REPEATS);
    assert_settled(settle(&p, 2, 20), 0, 10); /* a known one is always settled */
    assert_exact(used(&p, 0), 40);
    pass(&p, MINUTE);
    assert_settled(report_once(&p, 2, 10), 0, 10);
    process_end(&p);
}
