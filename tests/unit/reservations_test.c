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

/* Charges units of the resource "llm" for a key, without a reservation. */
static void charge(struct process *p, const char *key, double cost) {
    const doorman_permit_item item = {.resource_id = "llm", .key = key, .cost = cost};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    doorman_status status = doorman_permits_acquire(p->permits, &request, &p->out, NULL, p->now);
    assert_int_equal(status, DOORMAN_OK);
    assert_true(p->out.granted);
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

/* Returns how many units of a limit are used. */
static double used(struct process *p, size_t index) {
    doorman_permit out;
    doorman_status status =
        doorman_permits_inspect(p->permits, ITEM_OF("llm", "acme"), &out, NULL, p->now);
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

/* ---- what operators see and do ------------------------------------------------------------ */

/* What events have said. */
struct told {
    size_t counts[DOORMAN_PERMIT_EVENT_COUNT];
    doorman_permit_event last;
};

static void tell(void *context, const doorman_permit_event *event) {
    struct told *told = (struct told *)context;
    assert_string_equal(event->resource_id, "llm");
    assert_string_equal(event->key, "acme");
    told->counts[event->kind]++;
    told->last = *event;
}

static struct process process_telling(const char *limits, struct told *told) {
    struct process p = {.config = limits_of(limits), .now = 5 * SECOND, .epoch = noon};
    p.options.on_event = tell;
    p.options.context = told;
    p.options.event_kinds = 1U << DOORMAN_PERMIT_RESERVED | 1U << DOORMAN_PERMIT_SETTLED |
                            1U << DOORMAN_PERMIT_UNSETTLED;
    process_start(&p);
    return p;
}

/* P27, P33 */
TEST(each_step_of_a_reservation_is_an_event) {
    struct told told = {.last = {.amount = 0}};
    struct process p = process_telling(WINDOW ", \"unsettled\": \"refund\"}", &told);
    assert_true(reserve(&p, 1, 400, MINUTE));
    assert_true(reserve(&p, 1, 400, MINUTE)); /* a repeat is no event */
    assert_int_equal(told.counts[DOORMAN_PERMIT_RESERVED], 1);
    assert_exact(told.last.amount, 400);
    assert_settled(settle(&p, 1, 100), 300, 0);
    assert_settled(settle(&p, 1, 100), 300, 0);
    assert_int_equal(told.counts[DOORMAN_PERMIT_SETTLED], 1);
    assert_exact(told.last.amount, 100);
    assert_exact(told.last.returned, 300);
    assert_exact(told.last.charged, 0);
    assert_false(told.last.late);
    assert_true(reserve(&p, 2, 50, MINUTE));
    pass(&p, MINUTE);
    assert_int_equal(told.counts[DOORMAN_PERMIT_UNSETTLED], 1);
    assert_exact(told.last.amount, 50);
    assert_exact(told.last.returned, 50);
    assert_settled(settle(&p, 2, 20), 0, 20);
    assert_int_equal(told.counts[DOORMAN_PERMIT_SETTLED], 2);
    assert_exact(told.last.charged, 20);
    assert_true(told.last.late);
    assert_settled(report_once(&p, 3, 5), 0, 5); /* no settlement */
    assert_int_equal(told.counts[DOORMAN_PERMIT_SETTLED], 2);
    process_end(&p);
}

TEST(the_ends_of_reservations_are_counted) {
    struct process p = process_of(WINDOW ", \"unsettled\": \"refund\"}");
    doorman_permits_info info;
    for (uint64_t i = 1; i <= 3; i++) assert_true(reserve(&p, i, 100, MINUTE));
    assert_settled(settle(&p, 1, 10), 90, 0);
    assert_settled(settle(&p, 1, 10), 90, 0);
    pass(&p, MINUTE);
    doorman_permits_read(p.permits, &info);
    assert_int_equal(info.reservation_count, 0);
    assert_int_equal(info.settled, 1);
    assert_int_equal(info.unsettled, 2);
    assert_exact(info.returned_units, 290);
    process_end(&p);
}

/* Ends reservation 1 of 400 units as an administrator, and settles it with 30.
 *   limit   its `unsettled` has no effect */
static void try_end(const char *limit, bool refunds) {
    struct told told = {.last = {.amount = 0}};
    struct process p = process_telling(limit, &told);
    doorman_permits_reservation found;
    assert_true(reserve(&p, 1, 400, MINUTE));
    const uint64_t id = p.out.reservation_id;
    assert_true(doorman_permits_find_reservation(p.permits, id, &found));
    assert_string_equal(found.client_id, "gateway");
    assert_string_equal(found.key, "acme");
    assert_exact(found.amount, 400);
    assert_int_equal(doorman_permits_end_reservation(p.permits, id + 1, refunds, p.now),
                     DOORMAN_NOT_FOUND);
    assert_exact(used(&p, 0), 400);
    assert_int_equal(told.last.id, id);
    assert_int_equal(doorman_permits_end_reservation(p.permits, id, refunds, p.now), DOORMAN_OK);
    assert_exact(used(&p, 0), refunds ? 0 : 400);
    assert_int_equal(told.counts[DOORMAN_PERMIT_UNSETTLED], 1);
    assert_exact(told.last.returned, refunds ? 400 : 0);
    assert_int_equal(told.last.id, id);
    assert_int_equal(open_count(&p), 0);
    assert_false(doorman_permits_find_reservation(p.permits, id, &found));
    assert_int_equal(doorman_permits_end_reservation(p.permits, id, refunds, p.now),
                     DOORMAN_NOT_FOUND);
    assert_true(settle(&p, 1, 30)->late);
    assert_int_equal(told.last.id, id);
    (void)settle(&p, 2, 30);
    assert_int_equal(told.last.id, 0); /* the reservation was not known */
    assert_exact(used(&p, 0), refunds ? 60 : 430);
    process_end(&p);
}

/* If an allocation fails, the reservation stays open, and the status is OUT_OF_MEMORY. */
TEST(an_end_without_memory_is_named_and_changes_nothing) {
    struct process p = process_of(WINDOW "}");
    assert_true(reserve(&p, 1, 400, MINUTE));
    const uint64_t id = p.out.reservation_id;
    size_t failures = 0;
    doorman_status status = DOORMAN_OK;
    DOORMAN_FREE(p.permits->wants); /* so that an end needs memory */
    p.permits->wants = NULL;
    p.permits->want_capacity = 0;
    for (size_t n = 1; n < 100; n++) {
        memory_fails_at(n);
        status = doorman_permits_end_reservation(p.permits, id, true, p.now);
        if (memory_works()) break;
        if (status == DOORMAN_OK) break;
        assert_int_equal(status, DOORMAN_OUT_OF_MEMORY);
        assert_int_equal(open_count(&p), 1);
        assert_exact(used(&p, 0), 400);
        failures++;
        DOORMAN_FREE(p.permits->wants); /* the inspection has allocated it */
        p.permits->wants = NULL;
        p.permits->want_capacity = 0;
    }
    assert_int_equal(status, DOORMAN_OK);
    assert_true(failures > 0);
    assert_exact(used(&p, 0), 0);
    process_end(&p);
}

TEST(an_administrator_ends_a_reservation_and_says_whether_units_come_back) {
    try_end(WINDOW "}", true);
    try_end(WINDOW "}", false);
    try_end(WINDOW ", \"unsettled\": \"refund\"}", true);
    try_end(WINDOW ", \"unsettled\": \"refund\"}", false);
}

TEST(a_reservation_of_no_time_names_its_bounds) {
    struct process p = process_of(WINDOW "}");
    const doorman_permit_item item = {.resource_id = "llm", .cost = 1};
    const doorman_time wrong[] = {-1, HOUR + 1};
    for (size_t i = 0; i < 2; i++) {
        const doorman_permit_request request = {.items = &item,
                                                .item_count = 1,
                                                .client_id = "gateway",
                                                .request_id = 1,
                                                .settle_within = wrong[i]};
        doorman_error error = {0};
        assert_int_equal(doorman_permits_acquire(p.permits, &request, &p.out, &error, p.now),
                         DOORMAN_INVALID_ARGUMENT);
        assert_string_equal(error.text, "settle_within: must be more than 0 and at most an hour");
    }
    process_end(&p);
}

/* ---- what comes back ------------------------------------------------------------------------ */

/* P27: what was reserved and not used comes back if the window is still the same one. */
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

/* P27: units come back to the slice that was charged, and the other slices stay as they are. */
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

/* P27 */
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

/* P27: a bucket that was full after a reservation has gained back all that the reservation charged.
 * So the settle gives nothing back, even if another reservation has given units back before. */
TEST(a_bucket_that_was_full_gives_nothing_back) {
    struct process p = process_of("{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, "
                                  "\"size\": 100}");
    for (int i = 0; i < 3000; i++) { /* so that the sweep does not remove the counter */
        char key[16];
        snprintf(key, sizeof key, "key %d", i);
        charge(&p, key, 100);
    }
    assert_true(reserve(&p, 7, 60, MINUTE));
    assert_true(reserve(&p, 8, 40, MINUTE));
    assert_settled(settle(&p, 7, 0), 60, 0);
    p.now += 40 * SECOND;
    charge(&p, "acme", 100);
    assert_settled(settle(&p, 8, 0), 0, 0);
    assert_exact(used(&p, 0), 100);
    process_end(&p);
}

/* P27 */
TEST(tiers_give_nothing_back) {
    struct process p = process_of(TIERS "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    assert_settled(settle(&p, 7, 100), 0, 0);
    assert_exact(used(&p, 0), 400);
    process_end(&p);
}

/* P27, P13: the cost beyond a reservation is charged like a report. */
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

/* P27: a reset after the reservation removes its charge from the counter. What others have charged
 * since the reset stays. */
TEST(a_counter_that_was_reset_gives_nothing_back) {
    struct process p = process_of(WINDOW "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    doorman_status status =
        doorman_permits_reset(p.permits, ITEM_OF("llm", "acme"), NULL, NULL, NULL);
    assert_int_equal(status, DOORMAN_OK);
    const doorman_permit_item item = {.resource_id = "llm", .key = "acme", .cost = 50};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    status = doorman_permits_acquire(p.permits, &request, &p.out, NULL, p.now);
    assert_int_equal(status, DOORMAN_OK);
    assert_settled(settle(&p, 7, 100), 0, 0);
    assert_exact(used(&p, 0), 50);
    process_end(&p);
}

/* P15, P27: a limit of another kind has new counters, so the settle charges the whole cost. */
TEST(a_limit_of_another_kind_is_charged_the_cost) {
    struct process p = process_of(WINDOW "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    configure(&p, "{\"name\": \"w\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 1000}");
    assert_settled(settle(&p, 7, 100), 0, 100);
    assert_exact(used(&p, 0), 100);
    process_end(&p);
}

/* Reserves 400 units. Charges 50 units while `others` are in force, and 300 units when `limits` are
 * in force again. The 3000 other keys keep the sweep from removing the counter in between. */
static void try_other_window(const char *limits, const char *others) {
    struct process p = process_of(limits);
    for (int i = 0; i < 3000; i++) {
        char key[16];
        snprintf(key, sizeof key, "key %d", i);
        charge(&p, key, 1);
    }
    assert_true(reserve(&p, 7, 400, HOUR));
    configure(&p, others);
    charge(&p, "acme", 50);
    configure(&p, limits);
    for (int i = 0; i < 6; i++) charge(&p, "acme", 50);
    assert_exact(used(&p, 0), 300);
    assert_settled(settle(&p, 7, 0), 0, 0);
    assert_exact(used(&p, 0), 300);
    process_end(&p);
}

/* P15, P27: a counter whose window has another length for a while forgets the reservation. */
TEST(a_counter_that_had_another_window_gives_nothing_back) {
    try_other_window(WINDOW "}", "{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1000, "
                                 "\"window\": \"hour\"}");
    try_other_window(SLIDING "}", "{\"name\": \"s\", \"kind\": \"SLIDING_WINDOW\", "
                                  "\"limit\": 1000, \"window\": 60}");
}

static doorman_config *config_of(const char *text) {
    doorman_config *config = NULL;
    doorman_error error = {0};
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return config;
}

/* P15, P27: the resource gets another template, whose shared counter was not charged. */
TEST(the_counter_of_another_template_gives_nothing_back) {
    static const char *const text =
        "{\"resources\": ["
        "{\"identifier_glob\": \"%s\", \"limits\": [" WINDOW ", \"per\": \"template\"}]}]}";
    char first[256], second[256];
    snprintf(first, sizeof first, text, "l*");
    snprintf(second, sizeof second, text, "ll*");
    struct process p = {.config = config_of(first), .now = 5 * SECOND, .epoch = noon};
    process_start(&p);
    assert_true(reserve(&p, 7, 400, HOUR));
    doorman_config *next = config_of(second);
    assert_int_equal(doorman_permits_configure(p.permits, next), DOORMAN_OK);
    doorman_config_destroy(p.config);
    p.config = next;
    assert_true(reserve(&p, 8, 300, HOUR));
    assert_settled(settle(&p, 7, 100), 0, 100);
    assert_exact(used(&p, 0), 400);
    process_end(&p);
}

/* P27: a limit in shadow never refuses a settle, as it never refuses a permit. */
TEST(a_limit_in_shadow_without_room_refuses_no_settle) {
    struct process p = process_of(
        WINDOW "}, {\"name\": \"x\", \"kind\": \"FIXED_WINDOW\", \"limit\": 1000, \"window\": "
               "\"day\", \"shadow\": true, \"max_keys\": 1}");
    doorman_permit_item items[] = {{.resource_id = "llm", .key = "acme", .cost = 400},
                                   {.resource_id = "llm", .key = "bob", .cost = 400}};
    const doorman_permit_request request = {.items = items,
                                            .item_count = 2,
                                            .client_id = "gateway",
                                            .request_id = 7,
                                            .settle_within = MINUTE};
    doorman_status status = doorman_permits_acquire(p.permits, &request, &p.out, NULL, p.now);
    assert_int_equal(status, DOORMAN_OK);
    assert_true(p.out.granted);
    items[0].cost = items[1].cost = 100;
    const doorman_settle_request settles = {
        .client_id = "gateway", .request_id = 7, .items = items, .item_count = 2};
    status = doorman_permits_settle(p.permits, &settles, &p.settled, NULL, p.now);
    assert_int_equal(status, DOORMAN_OK);
    assert_int_equal(p.settled.reason, DOORMAN_NO_REASON);
    assert_exact(p.settled.items[0].returned, 300);
    assert_exact(p.settled.items[1].returned, 300);
    assert_exact(used(&p, 0), 100);
    process_end(&p);
}

/* P27: a limit in shadow does not charge units that it would have refused. A settle does not charge
 * these units either, so `charged` does not contain them. */
TEST(a_limit_in_shadow_charges_nothing_at_a_settle_that_it_would_have_refused) {
    struct process p =
        process_of(WINDOW "}, {\"name\": \"x\", \"kind\": \"FIXED_WINDOW\", \"limit\": 300, "
                          "\"window\": \"day\", \"shadow\": true}");
    assert_true(reserve(&p, 7, 400, MINUTE)); /* in shadow it is refused */
    assert_settled(settle(&p, 7, 400), 0, 0);
    assert_exact(used(&p, 0), 400);
    assert_exact(used(&p, 1), 0);
    assert_true(reserve(&p, 8, 200, MINUTE));
    assert_settled(settle(&p, 8, 250), 0, 50);
    assert_exact(used(&p, 1), 250);
    assert_true(reserve(&p, 9, 100, MINUTE));
    pass(&p, HOUR);
    assert_settled(settle(&p, 9, 60), 0, 0); /* it is late */
    assert_exact(used(&p, 0), 750);
    assert_exact(used(&p, 1), 250);
    process_end(&p);
}

/* ---- repeats -------------------------------------------------------------------------------- */

/* P27: the answer to a repeated settle says what the first one counted. */
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

/* P27: a repeated settle with another cost is refused, and changes nothing. */
TEST(a_settle_with_other_figures_is_refused) {
    struct process p = process_of(WINDOW "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    (void)settle(&p, 7, 100);
    assert_int_equal(settle(&p, 7, 90)->reason, DOORMAN_REASON_REPEATED);
    assert_null(p.settled.items);
    assert_exact(used(&p, 0), 100);
    process_end(&p);
}

/* P27: the answer to a repeated permit says what was granted, and nothing is charged. */
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

/* P27: an unsettled reservation stays charged. A late settle charges only what exceeds it. */
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

/* P27: with refund_unsettled, what was not settled in time comes back. A late settle is charged in
 * full. */
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

/* P27: a reservation ends at its time, even if the next call is a report. If it did not end, the
 * report would find that the use is twice the limit (P13), and charge nothing. */
TEST(a_report_finds_what_ended_reservations_have_given_back) {
    struct process p = process_of(WINDOW ", \"unsettled\": \"refund\"}");
    const doorman_permit_item item = {.resource_id = "llm", .key = "acme", .cost = 3000};
    double charged = 0;
    assert_true(reserve(&p, 7, 1000, MINUTE));
    assert_int_equal(doorman_permits_report(p.permits, &item, &charged, NULL, p.now), DOORMAN_OK);
    assert_exact(charged, 1000);
    p.now += MINUTE;
    p.epoch += MINUTE;
    assert_int_equal(doorman_permits_report(p.permits, &item, &charged, NULL, p.now), DOORMAN_OK);
    assert_exact(charged, 1000);
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

/* P27: only the client that made a reservation may settle it. */
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

/* P27: a settle and its repeat may name a reservation by its id or by its request_id. */
TEST(a_reservation_is_settled_by_its_id) {
    struct process p = process_of(WINDOW "}");
    assert_true(reserve(&p, 7, 400, MINUTE));
    const doorman_permit_item item = {.resource_id = "llm", .key = "acme", .cost = 100};
    const doorman_settle_request by_id = {
        .client_id = "gateway", .id = p.out.reservation_id, .items = &item, .item_count = 1};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(doorman_permits_settle(p.permits, &by_id, &p.settled, NULL, p.now),
                         DOORMAN_OK);
        assert_settled(&p.settled, 300, 0);
        assert_false(p.settled.unknown || p.settled.late);
        assert_settled(settle(&p, 7, 100), 300, 0);
    }
    assert_exact(used(&p, 0), 100);
    process_end(&p);
}

/* P19, P27: open reservations count in both bounds on holds, hold_max and client_hold_max. A
 * refused reservation charges nothing. */
TEST(open_reservations_count_in_the_bounds_on_holds) {
    for (int i = 0; i < 2; i++) {
        struct process p = {.config = limits_of(WINDOW "}"), .now = 5 * SECOND, .epoch = noon};
        if (i == 0) p.options.hold_max = 2;
        if (i == 1) p.options.client_hold_max = 2;
        process_start(&p);
        assert_true(reserve(&p, 1, 10, MINUTE));
        assert_true(reserve(&p, 2, 10, MINUTE));
        assert_false(reserve(&p, 3, 10, MINUTE));
        assert_int_equal(p.out.reason, DOORMAN_REASON_MAX_HOLDS);
        assert_exact(used(&p, 0), 20);
        assert_true(reserve(&p, 2, 10, MINUTE)); /* a repeat */
        (void)settle(&p, 1, 10);
        assert_true(reserve(&p, 3, 10, MINUTE));
        process_end(&p);
    }
}

/* P27: an invalid settle is refused with an error that names the field. The reservation stays open,
 * and nothing is charged. */
TEST(a_wrong_settle_leaves_the_reservation_open) {
    struct process p = process_of(WINDOW "}");
    const struct {
        double cost;
        const char *key, *text;
    } wrong[] = {
        {-1, "acme", "items[0].cost: must be "},
        {NAN, "acme", "items[0].cost: must be "},
        {INFINITY, "acme", "items[0].cost: must be "},
        {-INFINITY, "acme", "items[0].cost: must be "},
        {2 * DOORMAN_AMOUNT_MAX, "acme", "items[0].cost: must be "},
        {1, "\xff", "items[0].key: must be "},
    };
    assert_true(reserve(&p, 7, 400, MINUTE));
    for (size_t i = 0; i < COUNT(wrong); i++) {
        const doorman_permit_item item = {
            .resource_id = "llm", .key = wrong[i].key, .cost = wrong[i].cost};
        const doorman_settle_request request = {
            .client_id = "gateway", .request_id = 7, .items = &item, .item_count = 1};
        doorman_error error = {0};
        assert_int_equal(doorman_permits_settle(p.permits, &request, &p.settled, &error, p.now),
                         DOORMAN_INVALID_ARGUMENT);
        assert_memory_equal(error.text, wrong[i].text, strlen(wrong[i].text));
        assert_int_equal(open_count(&p), 1);
        assert_exact(used(&p, 0), 400);
    }
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

/* P28: beyond client_request_max, a new request_id is refused, and nothing is charged. */
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

/* P28: all clients together have a bound too. The defaults are 100,000 for one client and 1,000,000
 * for all. */
TEST(the_request_ids_of_all_clients_are_bounded) {
    struct process p = {.config = limits_of(WINDOW "}"), .now = 5 * SECOND, .epoch = noon};
    p.options.request_max = 3;
    process_start(&p);
    assert_int_equal(p.permits->options.client_request_max, 100000);
    const doorman_permit_item item = {.resource_id = "llm", .key = "acme", .cost = 10};
    for (int i = 0; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof name, "client %d", i);
        const doorman_settle_request request = {
            .client_id = name, .request_id = 1, .items = &item, .item_count = 1};
        assert_int_equal(doorman_permits_report_once(p.permits, &request, &p.settled, NULL, p.now),
                         DOORMAN_OK);
        assert_int_equal(p.settled.reason, i < 3 ? DOORMAN_NO_REASON : DOORMAN_REASON_REPEATS);
    }
    assert_exact(used(&p, 0), 30);
    assert_false(reserve(&p, 1, 10, MINUTE));
    assert_int_equal(p.out.reason, DOORMAN_REASON_REPEATS);
    pass(&p, 10 * MINUTE);
    assert_true(reserve(&p, 1, 10, MINUTE));
    process_end(&p);
    p = process_of(WINDOW "}");
    assert_int_equal(p.permits->options.request_max, 1000000);
    process_end(&p);
}

/* ---- rows in a store ------------------------------------------------------------------------ */

struct stored_row {
    size_t bytes;
    unsigned char row[ROW_MAX];
};

struct store {
    struct stored_row *rows;
    size_t count, capacity;
};

static doorman_permit_row header_of(const struct stored_row *row) {
    doorman_permit_row header;
    doorman_error error = {0};
    doorman_status status = doorman_permit_row_read(row->row, row->bytes, &header, &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return header;
}

static void store_write(struct store *store, const struct stored_row *row) {
    const doorman_permit_row header = header_of(row);
    size_t at = 0;
    for (; at < store->count; at++) {
        const doorman_permit_row own = header_of(&store->rows[at]);
        if (own.identity_bytes == header.identity_bytes &&
            memcmp(own.identity, header.identity, own.identity_bytes) == 0) {
            break;
        }
    }
    if (header.removed && at < store->count) store->rows[at] = store->rows[--store->count];
    if (header.removed) return;
    if (at == store->capacity) {
        store->capacity = store->capacity ? 2 * store->capacity : 16;
        store->rows =
            (struct stored_row *)realloc(store->rows, store->capacity * sizeof *store->rows);
        assert_non_null(store->rows);
    }
    if (at == store->count) store->count++;
    store->rows[at] = *row;
}

/* Writes at most `most` changes. Returns how many there were. */
static size_t write_some(struct process *p, struct store *store, size_t most) {
    struct stored_row row;
    size_t count = 0;
    while (count < most &&
           (row.bytes = doorman_permits_next_changed(p->permits, row.row, p->now))) {
        store_write(store, &row);
        count++;
    }
    return count;
}

static size_t write_all(struct process *p, struct store *store) {
    doorman_permits_info info;
    const size_t count = write_some(p, store, SIZE_MAX);
    doorman_permits_read(p->permits, &info);
    assert_int_equal(info.changed_count, 0);
    return count;
}

/* Ends the process, and starts another one. It reads all rows, beginning with a random one. */
static void restart(struct process *p, const struct store *store) {
    doorman_permits_destroy(p->permits);
    p->now = 2 * SECOND + (doorman_time)(random_bits() % 1000);
    process_start(p);
    const size_t first = store->count ? random_bits() % store->count : 0;
    for (size_t i = 0; i < store->count; i++) {
        const struct stored_row *row = &store->rows[(first + i) % store->count];
        doorman_error error = {0};
        doorman_status status =
            doorman_permits_restore(p->permits, row->row, row->bytes, &error, p->now);
        if (status != DOORMAN_OK) fail_msg("%s", error.text);
    }
}

#define DURABLE ", \"durable\": true}"

/* D1, P27: a reservation lasts over a restart, for every kind of limit that gives units back. */
TEST(a_reservation_lasts_over_a_restart) {
    struct process p = process_of(WINDOW DURABLE ", " SLIDING DURABLE ", " BUCKET DURABLE);
    struct store store = {.rows = NULL};
    assert_true(reserve(&p, 7, 400, HOUR));
    const uint64_t id = p.out.reservation_id;
    assert_true(reserve(&p, 8, 100, MINUTE));
    assert_settled(settle(&p, 8, 30), 70, 0);
    (void)write_all(&p, &store);
    restart(&p, &store);
    assert_int_equal(open_count(&p), 1);
    assert_true(reserve(&p, 7, 400, HOUR)); /* a repeat */
    assert_int_equal(p.out.reservation_id, id);
    assert_int_equal(p.out.settle_within, HOUR);
    assert_settled(settle(&p, 8, 30), 70, 0);
    assert_settled(settle(&p, 7, 100), 300, 0);
    assert_int_equal(p.settled.id, id);
    for (size_t i = 0; i < 3; i++) assert_exact(used(&p, i), 130);
    (void)write_all(&p, &store);
    restart(&p, &store);
    assert_settled(settle(&p, 7, 100), 300, 0);
    for (size_t i = 0; i < 3; i++) assert_exact(used(&p, i), 130);
    process_end(&p);
    free(store.rows);
}

/* P27: a reservation may be written after its time, before a call ends it. */
TEST(a_reservation_that_is_written_after_its_end_ends_after_a_restart) {
    struct process p = process_of(WINDOW DURABLE);
    struct store store = {.rows = NULL};
    assert_true(reserve(&p, 7, 400, SECOND));
    pass(&p, 3 * SECOND);
    (void)write_all(&p, &store);
    restart(&p, &store);
    doorman_permits_update(p.permits, p.now);
    assert_int_equal(open_count(&p), 0);
    (void)settle(&p, 7, 100);
    assert_true(p.settled.late);
    process_end(&p);
    free(store.rows);
}

/* P27: if a reservation ended before a restart, a settle after the restart is late. */
TEST(an_ended_reservation_is_late_after_a_restart) {
    struct process p = process_of(WINDOW ", \"unsettled\": \"refund\"" DURABLE ", " BUCKET DURABLE);
    struct store store = {.rows = NULL};
    assert_true(reserve(&p, 7, 400, MINUTE));
    pass(&p, MINUTE);
    (void)write_all(&p, &store);
    restart(&p, &store);
    assert_int_equal(open_count(&p), 0);
    assert_settled(settle(&p, 7, 500), 0, 100);
    assert_true(p.settled.late);
    assert_exact(used(&p, 0), 500); /* it had come back */
    assert_exact(used(&p, 1), 440);
    process_end(&p);
    free(store.rows);
}

/* P27: if a reservation ends while no process runs, its units come back in the next process. */
TEST(a_reservation_ends_while_nothing_runs) {
    struct process p = process_of(WINDOW ", \"unsettled\": \"refund\"" DURABLE);
    struct store store = {.rows = NULL};
    assert_true(reserve(&p, 7, 400, MINUTE));
    (void)write_all(&p, &store);
    p.epoch += 2 * MINUTE;
    restart(&p, &store);
    pass(&p, 1);
    assert_int_equal(open_count(&p), 0);
    assert_exact(used(&p, 0), 0);
    process_end(&p);
    free(store.rows);
}

/* D5, P27: a crash comes after the row of a reservation and before the row of its counter. No units
 * come back, because the counter may not have been charged. */
TEST(a_crash_before_the_row_of_the_counter_gives_nothing_back) {
    struct process p = process_of(WINDOW DURABLE);
    struct store store = {.rows = NULL};
    assert_true(reserve(&p, 1, 500, MINUTE));
    (void)settle(&p, 1, 500);
    (void)write_all(&p, &store);
    assert_true(reserve(&p, 7, 400, MINUTE));
    assert_int_equal(write_some(&p, &store, 1), 1);
    assert_true(header_of(&store.rows[store.count - 1]).is_reservation);
    restart(&p, &store);
    assert_settled(settle(&p, 7, 100), 0, 0);
    assert_exact(used(&p, 0), 500);
    process_end(&p);
    free(store.rows);
}

/* P27: the row of a reservation is yielded before the row of its counter, and again behind it. */
TEST(the_row_of_a_reservation_encloses_those_of_its_counters) {
    struct process p = process_of(WINDOW DURABLE);
    struct stored_row rows[4];
    doorman_permits_info info;
    assert_true(reserve(&p, 7, 400, MINUTE));
    doorman_permits_read(p.permits, &info);
    assert_int_equal(info.changed_count, 3);
    size_t count = 0;
    for (; count < 4; count++) {
        rows[count].bytes = doorman_permits_next_changed(p.permits, rows[count].row, p.now);
        if (!rows[count].bytes) break;
    }
    assert_int_equal(count, 3);
    const doorman_permit_row first = header_of(&rows[0]), last = header_of(&rows[2]);
    assert_true(first.is_reservation && !first.is_last);
    assert_string_equal(first.resource_id, "gateway");
    assert_string_equal(first.key, "q7");
    assert_false(header_of(&rows[1]).is_reservation);
    assert_true(last.is_reservation && last.is_last);
    assert_int_equal(last.fresh_at, p.epoch + 11 * MINUTE);
    doorman_status status =
        doorman_permits_mark_changed(p.permits, rows[0].row, rows[0].bytes, NULL);
    assert_int_equal(status, DOORMAN_OK);
    doorman_permits_read(p.permits, &info);
    assert_int_equal(info.changed_count, 2);
    process_end(&p);
}

/* D4: while the rows are awaited, nobody knows whether a settle or a report is a repeat. */
TEST(an_unknown_settle_waits_for_the_rows) {
    struct process p = process_of(WINDOW DURABLE);
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_AWAITED), DOORMAN_OK);
    assert_int_equal(settle(&p, 7, 100)->reason, DOORMAN_REASON_LEARNING);
    assert_int_equal(report_once(&p, 7, 100)->reason, DOORMAN_REASON_LEARNING);
    assert_int_equal(request_count(&p), 0);
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_READ), DOORMAN_OK);
    assert_settled(settle(&p, 7, 100), 0, 100);
    process_end(&p);
}

/* P27: while the rows are not read, the reservation of an unknown settle may be in the store. So
 * the settle is refused, and counts once when it is sent again after the rows were read. */
TEST(an_unknown_settle_is_not_charged_beside_the_reservation_in_the_store) {
    struct process p = process_of(WINDOW ", \"on_unread\": \"grant\"" DURABLE);
    struct store store = {.rows = NULL};
    assert_true(reserve(&p, 7, 100, HOUR));
    (void)write_all(&p, &store);
    doorman_permits_destroy(p.permits);
    process_start(&p);
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_UNREAD), DOORMAN_OK);
    assert_int_equal(settle(&p, 7, 60)->reason, DOORMAN_REASON_LEARNING);
    assert_exact(used(&p, 0), 0);
    for (size_t i = 0; i < store.count; i++) {
        const struct stored_row *row = &store.rows[i];
        doorman_status status =
            doorman_permits_restore(p.permits, row->row, row->bytes, NULL, p.now);
        assert_int_equal(status, DOORMAN_OK);
    }
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_READ), DOORMAN_OK);
    assert_settled(settle(&p, 7, 60), 40, 0);
    assert_exact(used(&p, 0), 60);
    process_end(&p);
    free(store.rows);
}

/* P27: rows that are not read may have the reservation, but only for 70 minutes: it ends after at
 * most an hour, and is forgotten 10 minutes later. */
TEST(an_unknown_settle_waits_at_most_70_minutes_for_the_rows) {
    struct process p = process_of(WINDOW ", \"on_unread\": \"grant\"" DURABLE);
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_UNREAD), DOORMAN_OK);
    pass(&p, 70 * MINUTE - 1);
    assert_int_equal(settle(&p, 7, 100)->reason, DOORMAN_REASON_LEARNING);
    pass(&p, 1);
    assert_settled(settle(&p, 7, 100), 0, 100);
    process_end(&p);
}

/* P28: if the rows cannot be read, a report is refused for 10 minutes, because the store may have
 * it. A client does not repeat a report for longer than that. */
TEST(a_report_waits_at_most_10_minutes_for_the_rows) {
    struct process p = process_of(WINDOW DURABLE);
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_AWAITED), DOORMAN_OK);
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_UNREAD), DOORMAN_OK);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(report_once(&p, 7, 100)->reason, DOORMAN_REASON_LEARNING);
        assert_exact(used(&p, 0), 0);
        pass(&p, MINUTE);
    }
    assert_settled(report_once(&p, 7, 100), 0, 100);
    assert_settled(report_once(&p, 7, 100), 0, 100);
    assert_exact(used(&p, 0), 100);
    process_end(&p);
}

/* P28: a report that concerns no durable limit is in no store. */
TEST(a_report_to_a_limit_that_is_not_durable_waits_for_no_rows) {
    struct process p = process_of(WINDOW ", \"durable\": false}");
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_UNREAD), DOORMAN_OK);
    assert_settled(report_once(&p, 7, 100), 0, 100);
    process_end(&p);
}

/* D10: after rows that were changed at random, later calls still succeed. */
TEST(random_rows_do_no_harm) {
    struct process p = process_of(WINDOW DURABLE ", " SLIDING DURABLE);
    struct store store = {.rows = NULL};
    assert_true(reserve(&p, 7, 400, HOUR));
    (void)write_all(&p, &store);
    for (int round = 0; round < 20000; round++) {
        struct stored_row row = store.rows[random_bits() % store.count];
        const int changes = 1 + (int)(random_bits() % 3);
        for (int i = 0; i < changes; i++) {
            row.row[random_bits() % row.bytes] = (unsigned char)random_bits();
        }
        if (random_bits() % 8 == 0) row.bytes = random_bits() % row.bytes;
        if (round % 500 == 0) restart(&p, &(struct store){.rows = NULL});
        (void)doorman_permits_restore(p.permits, row.row, row.bytes, NULL, p.now);
        if (round % 10 == 0) (void)settle(&p, 7, 100);
        if (round % 50 == 0) pass(&p, MINUTE);
        unsigned char out[ROW_MAX];
        while (round % 20 == 0 && doorman_permits_next_changed(p.permits, out, p.now)) continue;
    }
    process_end(&p);
    free(store.rows);
}

/* D3: if a store has lost its rows, the rows of all reservations are written again. */
TEST(all_reservations_can_be_written_again) {
    struct process p = process_of(WINDOW DURABLE);
    struct store first = {.rows = NULL}, second = {.rows = NULL};
    for (uint64_t i = 1; i <= 50; i++) assert_true(reserve(&p, i, 4, HOUR));
    (void)settle(&p, 3, 2);
    (void)report_once(&p, 3, 2);
    (void)write_all(&p, &first);
    doorman_counter_cursor cursor = {.table = 0};
    while (doorman_permits_mark_all(p.permits, &cursor)) continue;
    (void)write_all(&p, &second);
    assert_int_equal(second.count, 53); /* 50 reservations, a report, a counter, the clock */
    assert_int_equal(second.count, first.count + 1);
    restart(&p, &second);
    assert_settled(settle(&p, 3, 2), 2, 0);
    assert_settled(report_once(&p, 3, 2), 0, 2);
    assert_settled(settle(&p, 4, 1), 3, 0);
    assert_exact(used(&p, 0), 197);
    process_end(&p);
    free(first.rows);
    free(second.rows);
}

/* P27: a settlement may be forgotten before its row is written. The row in the store then still
 * shows an open reservation, so this row is removed. Otherwise units would come back twice. */
TEST(a_settlement_that_was_never_written_is_removed) {
    struct process p = process_of(WINDOW DURABLE);
    struct store store = {.rows = NULL};
    assert_true(reserve(&p, 7, 400, HOUR));
    (void)write_all(&p, &store);
    assert_settled(settle(&p, 7, 100), 300, 0);
    pass(&p, 2 * MINUTE);
    (void)write_all(&p, &store);
    restart(&p, &store);
    assert_int_equal(request_count(&p), 0);
    assert_exact(used(&p, 0), 100);
    process_end(&p);
    free(store.rows);
}

/* ---- crashes -------------------------------------------------------------------------------- */

#define CRASH_REQUESTS 20

/* What a trial with crashes knows of a request. */
struct crashed {
    double reserved, cost; /* 0: neither reserved nor settled */
    bool settled, written; /* written: the store has had it since it was reserved */
};

/* D5, P27: a crash may lose any number of the last changes. Each reservation is charged at most
 * once, and each one that was written before is charged at least once. */
TEST(a_crash_charges_nothing_twice_and_forgets_only_the_last_changes) {
    for (int round = 0; round < 300; round++) {
        struct process p = process_of("{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", "
                                      "\"limit\": 1000000, \"window\": \"day\"" DURABLE);
        struct store store = {.rows = NULL};
        struct crashed requests[CRASH_REQUESTS] = {{.cost = 0}};
        for (int step = 0; step < 60; step++) {
            const size_t index = random_below(CRASH_REQUESTS);
            struct crashed *request = &requests[index];
            const unsigned choice = (unsigned)random_below(10);
            if (choice < 5 && !request->settled && !(request->reserved > 0)) {
                request->reserved = (double)(1 + random_below(100));
                assert_true(reserve(&p, index + 1, request->reserved, HOUR));
            } else if (choice < 7 && !request->settled && request->reserved > 0) {
                request->cost = (double)(1 + random_below(100));
                request->settled = true;
                (void)settle(&p, index + 1, request->cost);
            } else if (choice == 8) {
                (void)write_all(&p, &store);
                for (size_t i = 0; i < CRASH_REQUESTS; i++) {
                    requests[i].written = requests[i].reserved > 0;
                }
            } else if (choice == 9) {
                (void)write_some(&p, &store, random_below(4));
            }
        }
        (void)write_some(&p, &store, random_below(12));
        restart(&p, &store);
        double least = 0, most = 0;
        for (size_t i = 0; i < CRASH_REQUESTS; i++) {
            struct crashed *request = &requests[i];
            if (!(request->reserved > 0)) continue;
            if (!request->settled) request->cost = (double)(1 + random_below(100));
            (void)settle(&p, i + 1, request->cost); /* also a repeat of a lost one */
            assert_int_equal(p.settled.reason, DOORMAN_NO_REASON);
            if (request->written) least += fmin(request->cost, request->reserved);
            most += fmax(request->cost, request->reserved);
        }
        assert_true(used(&p, 0) <= most && used(&p, 0) >= least);
        process_end(&p);
        free(store.rows);
    }
}

/* ---- a slow model --------------------------------------------------------------------------- */

/* The model of a window keeps each charge, and adds the charges up whenever it is asked. The model
 * of a bucket has a level. All amounts are multiples of 1/4, and times are whole seconds, so that
 * only `share` is rounded. */

#define MODEL_LIMITS 3
#define MODEL_REQUESTS 40
#define MODEL_SECONDS 1600 /* of windows; a slice has 100 */

enum model_kind { MODEL_FIXED, MODEL_SLIDING, MODEL_BUCKET };

struct model_charge {
    double amount;
    doorman_time epoch; /* in seconds */
};

struct model_limit {
    enum model_kind kind;
    bool refunds;
    double size; /* or limit */
    struct model_charge charges[4096];
    size_t count;
    int resets;
    double level; /* of a bucket with a rate of 1 */
    doorman_time level_at;
};

enum model_state { MODEL_FREE, MODEL_OPEN, MODEL_SETTLED, MODEL_ENDED };

struct model_request {
    enum model_state state;
    double reserved, cost;
    double had[MODEL_LIMITS];    /* what is still charged */
    int resets[MODEL_LIMITS];    /* of the limit when it was charged */
    size_t charge[MODEL_LIMITS]; /* the index of the charge */
    double share;                /* what may come back to the bucket */
    doorman_time end;            /* or when it is forgotten */
    doorman_settled_item result;
    bool late, unknown;
};

struct model {
    struct model_limit limits[MODEL_LIMITS];
    struct model_request requests[MODEL_REQUESTS];
    doorman_time epoch; /* in seconds */
};

static doorman_time model_slice(doorman_time time) { return time / (MODEL_SECONDS / 16); }

static bool model_counts(const struct model *m, const struct model_limit *limit,
                         const struct model_charge *charge) {
    if (limit->kind == MODEL_FIXED) {
        return charge->epoch / MODEL_SECONDS == m->epoch / MODEL_SECONDS;
    }
    return model_slice(charge->epoch) + 16 > model_slice(m->epoch);
}

/* Lowers the shares in proportion, so that their sum is at most `missing`. */
static void model_bound(struct model *m, double missing) {
    double sum = 0;
    for (size_t i = 0; i < MODEL_REQUESTS; i++) sum += m->requests[i].share;
    for (size_t i = 0; i < MODEL_REQUESTS && sum > missing; i++) {
        m->requests[i].share *= missing / sum;
    }
}

static double model_used(struct model *m, struct model_limit *limit) {
    double sum = 0;
    if (limit->kind == MODEL_BUCKET) {
        const double gained = (double)(m->epoch - limit->level_at);
        limit->level = fmin(limit->size, limit->level + gained);
        limit->level_at = m->epoch;
        model_bound(m, limit->size - limit->level);
        return limit->size - limit->level;
    }
    for (size_t i = 0; i < limit->count; i++) {
        if (model_counts(m, limit, &limit->charges[i])) sum += limit->charges[i].amount;
    }
    return sum;
}

static size_t model_charge(struct model *m, struct model_limit *limit, double amount) {
    (void)model_used(m, limit);
    if (limit->kind == MODEL_BUCKET) {
        limit->level -= amount;
        return 0;
    }
    assert_true(limit->count < COUNT(limit->charges));
    limit->charges[limit->count] = (struct model_charge){amount, m->epoch};
    return limit->count++;
}

/* Gives units of a request back to a limit. Returns how many of `amount` have come back. */
static double model_return(struct model *m, struct model_request *request, size_t index,
                           double amount) {
    struct model_limit *limit = &m->limits[index];
    const double out = model_used(m, limit);
    if (limit->kind == MODEL_BUCKET) {
        const double share = floor((fmin(request->share, out) + 1e-7) * 4096) / 4096;
        request->share = 0;
        amount = fmin(amount, share);
        limit->level += amount;
        return amount;
    }
    if (request->resets[index] != limit->resets) return 0;
    struct model_charge *charge = &limit->charges[request->charge[index]];
    if (!model_counts(m, limit, charge)) return 0;
    charge->amount -= amount;
    return amount;
}

/* Charges a report to a limit. Returns how much it has charged. */
static double model_report(struct model *m, struct model_limit *limit, double cost) {
    const double out = model_used(m, limit);
    const double most = fmax(0, 2 * limit->size - out);
    const double amount = fmin(fmin(cost, most), limit->size);
    if (amount > 0) (void)model_charge(m, limit, amount);
    return amount;
}

static void model_settle(struct model *m, struct model_request *request, double cost) {
    double least = -1, back = 0;
    request->late = request->state == MODEL_ENDED;
    request->unknown = request->state == MODEL_FREE;
    for (size_t i = 0; i < MODEL_LIMITS; i++) {
        const double had = request->unknown ? 0 : request->had[i];
        if (request->state == MODEL_OPEN && (had > cost || i == MODEL_BUCKET)) {
            back = fmax(back, model_return(m, request, i, fmax(0, had - cost)));
        }
        if (had >= cost && !request->unknown) continue;
        const double amount = model_report(m, &m->limits[i], cost - had);
        if (least < 0 || amount < least) least = amount;
    }
    request->state = MODEL_SETTLED;
    request->cost = cost;
    request->result = (doorman_settled_item){back, fmax(least, 0)};
    request->end = m->epoch + 60;
}

static void model_pass(struct model *m, doorman_time seconds) {
    for (; seconds > 0; seconds--) {
        m->epoch++;
        for (size_t i = 0; i < MODEL_REQUESTS; i++) {
            struct model_request *request = &m->requests[i];
            if (request->state == MODEL_FREE || request->end > m->epoch) continue;
            if (request->state != MODEL_OPEN) {
                *request = (struct model_request){.state = MODEL_FREE};
                continue;
            }
            for (size_t j = 0; j < MODEL_LIMITS; j++) {
                if (!m->limits[j].refunds) continue;
                (void)model_return(m, request, j, request->had[j]);
                request->had[j] = 0;
            }
            (void)model_used(m, &m->limits[MODEL_BUCKET]);
            request->share = 0;
            request->state = MODEL_ENDED;
            request->end = m->epoch + 600;
        }
    }
}

static bool model_reserve(struct model *m, struct model_request *request, double cost,
                          doorman_time within) {
    for (size_t i = 0; i < MODEL_LIMITS; i++) {
        if (m->limits[i].size - model_used(m, &m->limits[i]) < cost) return false;
    }
    *request = (struct model_request){
        .state = MODEL_OPEN, .reserved = cost, .cost = cost, .end = m->epoch + within};
    for (size_t i = 0; i < MODEL_LIMITS; i++) {
        request->charge[i] = model_charge(m, &m->limits[i], cost);
        request->had[i] = cost;
        request->resets[i] = m->limits[i].resets;
    }
    request->share = cost;
    return true;
}

struct trial {
    struct process p;
    struct model m;
    struct store store;
};

static void trial_reserve(struct trial *t, size_t index) {
    struct model_request *request = &t->m.requests[index];
    const double cost =
        request->state == MODEL_FREE ? (double)(1 + random_bits() % 2000) / 4 : request->reserved;
    const doorman_time within = (doorman_time)(1 + random_bits() % 400);
    const enum model_state before = request->state;
    bool granted = before == MODEL_OPEN;
    if (before == MODEL_FREE) granted = model_reserve(&t->m, request, cost, within);
    assert_int_equal(reserve(&t->p, index + 1, cost, within * SECOND), granted);
    if (granted) {
        assert_int_equal(t->p.out.settle_within, (request->end - t->m.epoch) * SECOND);
    }
    if (before == MODEL_SETTLED || before == MODEL_ENDED) {
        assert_int_equal(t->p.out.reason, DOORMAN_REASON_REPEATED);
    }
}

static void trial_settle(struct trial *t, size_t index) {
    struct model_request *request = &t->m.requests[index];
    double cost = (double)(random_bits() % 3000) / 4;
    const bool settled = request->state == MODEL_SETTLED;
    if (settled && random_bits() % 4) cost = request->cost;
    const doorman_settlement *out = settle(&t->p, index + 1, cost);
    if (settled && !(fabs(cost - request->cost) < 0.1)) {
        assert_int_equal(out->reason, DOORMAN_REASON_REPEATED);
        return;
    }
    if (!settled) model_settle(&t->m, request, cost);
    assert_settled(out, request->result.returned, request->result.charged);
    assert_int_equal(out->late, request->late);
    assert_int_equal(out->unknown, request->unknown);
}

static void trial_reset(struct trial *t) {
    doorman_status status =
        doorman_permits_reset(t->p.permits, ITEM_OF("llm", "acme"), NULL, NULL, NULL);
    assert_int_equal(status, DOORMAN_OK);
    for (size_t i = 0; i < MODEL_LIMITS; i++) {
        struct model_limit *limit = &t->m.limits[i];
        limit->count = 0;
        limit->resets++;
        limit->level = limit->size;
        limit->level_at = t->m.epoch;
    }
}

/* Fails unless the limits have used what the model says. */
static void trial_compare(struct trial *t) {
    doorman_permit out;
    doorman_status status =
        doorman_permits_inspect(t->p.permits, ITEM_OF("llm", "acme"), &out, NULL, t->p.now);
    assert_int_equal(status, DOORMAN_OK);
    for (size_t i = 0; i < MODEL_LIMITS; i++) {
        struct model_limit *limit = &t->m.limits[i];
        const double expected = model_used(&t->m, limit);
        if (limit->kind != MODEL_BUCKET && expected >= limit->size) {
            assert_exact(out.details[i].remaining, 0);
        } else {
            assert_exact(out.details[i].used, expected);
        }
    }
}

/* Returns whether no reservation is open. Only then a trial resets the limits. Otherwise an earlier
 * reservation could find a counter that later ones have charged, and get units back that the model
 * does not give. */
static bool trial_is_idle(const struct trial *t) {
    for (size_t i = 0; i < MODEL_REQUESTS; i++) {
        if (t->m.requests[i].state == MODEL_OPEN) return false;
    }
    return true;
}

static struct trial *trial_start(void) {
    static const char *const formats[MODEL_LIMITS] = {
        [MODEL_FIXED] = "{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", \"limit\": %d, "
                        "\"window\": 1600, \"durable\": true%s}, ",
        [MODEL_SLIDING] = "{\"name\": \"s\", \"kind\": \"SLIDING_WINDOW\", \"limit\": %d, "
                          "\"window\": 1600, \"durable\": true%s}, ",
        [MODEL_BUCKET] = "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, "
                         "\"size\": %d, \"durable\": true%s}"};
    char limits[2048] = "";
    struct trial *t = (struct trial *)calloc(1, sizeof *t);
    assert_non_null(t);
    for (size_t i = 0; i < MODEL_LIMITS; i++) {
        const size_t at = strlen(limits);
        const int size = 500 + (int)(random_bits() % 4000);
        struct model_limit *limit = &t->m.limits[i];
        limit->kind = (enum model_kind)i;
        limit->size = limit->level = size;
        limit->refunds = random_bits() % 2;
        const char *more = limit->refunds ? ", \"unsettled\": \"refund\"" : "";
        snprintf(limits + at, sizeof limits - at, formats[i], size, more);
    }
    t->p = (struct process){.config = limits_of(limits)};
    /* so that slices of both clocks begin together */
    t->p.now = MODEL_SECONDS * SECOND;
    t->m.epoch = noon / SECOND / MODEL_SECONDS * MODEL_SECONDS;
    t->p.epoch = t->m.epoch * SECOND;
    for (size_t i = 0; i < MODEL_LIMITS; i++) t->m.limits[i].level_at = t->m.epoch;
    process_start(&t->p);
    return t;
}

/* Writes all rows, and starts another process with them. Its slices begin together with the slices
 * of the model. */
static void trial_restart(struct trial *t) {
    (void)write_all(&t->p, &t->store);
    doorman_permits_destroy(t->p.permits);
    t->p.now =
        ((doorman_time)(1 + random_bits() % 9) * MODEL_SECONDS + t->m.epoch % MODEL_SECONDS) *
        SECOND;
    process_start(&t->p);
    for (size_t i = 0; i < t->store.count; i++) {
        const struct stored_row *row = &t->store.rows[i];
        doorman_status status =
            doorman_permits_restore(t->p.permits, row->row, row->bytes, NULL, t->p.now);
        assert_int_equal(status, DOORMAN_OK);
    }
}

static void trial_step(struct trial *t) {
    const size_t index = random_bits() % MODEL_REQUESTS;
    const unsigned choice = (unsigned)(random_bits() % 100);
    if (choice < 40) {
        trial_reserve(t, index);
    } else if (choice < 80) {
        trial_settle(t, index);
    } else if (choice < 97) {
        const doorman_time seconds = 1 + (doorman_time)(random_bits() % (choice < 90 ? 5 : 300));
        model_pass(&t->m, seconds);
        for (doorman_time i = 0; i < seconds; i++) pass(&t->p, SECOND);
    } else if (choice < 98) {
        if (trial_is_idle(t)) trial_reset(t);
    } else {
        trial_restart(t);
    }
    trial_compare(t);
}

/* P27: random calls, restarts and resets agree with the model. */
TEST(random_reservations_agree_with_a_slow_model) {
    for (int i = 0; i < 10; i++) {
        struct trial *t = trial_start();
        for (int step = 0; step < 400; step++) trial_step(t);
        process_end(&t->p);
        free(t->store.rows);
        free(t);
    }
}
