/* Holds: units of CONCURRENCY limits, queues, transfers and learning. Some random histories compare
 * the code with a slow, simple model. */
#include "unit.h"

#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- a fixture ------------------------------------------------------------------------------ */

typedef struct fixture {
    doorman_config *config;
    doorman_permits *permits;
    doorman_permits_options options;
    doorman_time now;
    doorman_permit out;
    doorman_hold hold;
    doorman_error error;
    size_t events[DOORMAN_PERMIT_EVENT_COUNT];
    size_t refused[DOORMAN_REASON_COUNT];
    double waited; /* the last wait that has ended */
    doorman_reason wait_reason;
} fixture;

static void count_event(void *context, const doorman_permit_event *event) {
    fixture *f = (fixture *)context;
    f->events[event->kind]++;
    if (event->kind == DOORMAN_PERMIT_REFUSED) f->refused[event->reason]++;
    if (event->kind == DOORMAN_PERMIT_WAIT_ENDED || event->kind == DOORMAN_PERMIT_WAIT_LEFT) {
        f->waited = event->amount;
        f->wait_reason = event->reason;
    }
}

/* Returns a configuration whose template `*` has the limits. */
static doorman_config *limits_of(const char *limits) {
    char text[2048];
    doorman_config *config = NULL;
    doorman_error error = {0};
    snprintf(text, sizeof text, "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [%s]}]}",
             limits);
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return config;
}

static void begin(fixture *f) {
    f->options.config = f->config;
    f->options.seed[0] = 7;
    f->options.on_event = count_event;
    f->options.context = f;
    assert_int_equal(doorman_permits_create(&f->permits, &f->options, NULL, f->now), DOORMAN_OK);
}

static fixture start(const char *limits) {
    return (fixture){.config = limits_of(limits), .now = 1000 * SECOND};
}

static void stop(fixture *f) {
    doorman_permits_destroy(f->permits);
    doorman_config_destroy(f->config);
}

static void reload(fixture *f, const char *limits) {
    doorman_config *config = limits_of(limits);
    assert_int_equal(doorman_permits_configure(f->permits, config), DOORMAN_OK);
    doorman_config_destroy(f->config);
    f->config = config;
}

static void update(fixture *f) {
    for (int i = 0; i < 1000; i++) {
        doorman_permits_update(f->permits, f->now);
        if (doorman_permits_due(f->permits) > f->now) return;
    }
    fail_msg("updates do not end");
}

static void pass(fixture *f, doorman_time time) { f->now += time; }

static doorman_permits_info info(const fixture *f) {
    doorman_permits_info out;
    doorman_permits_read(f->permits, &out);
    return out;
}

static bool ask(fixture *f, const char *client, uint64_t request_id, const char *key, double cost,
                doorman_time max_wait) {
    const doorman_permit_item item = {.resource_id = "r", .key = key, .cost = cost};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .max_wait = max_wait,
                                            .client_id = client,
                                            .request_id = request_id};
    doorman_status status =
        doorman_permits_acquire(f->permits, &request, &f->out, &f->error, f->now);
    if (status != DOORMAN_OK) fail_msg("%s", f->error.text);
    return f->out.granted;
}

static bool ask_with(fixture *f, const doorman_permit_request *given, const char *key,
                     double cost) {
    const doorman_permit_item item = {.resource_id = "r", .key = key, .cost = cost};
    doorman_permit_request request = *given;
    request.items = &item;
    request.item_count = 1;
    doorman_status status =
        doorman_permits_acquire(f->permits, &request, &f->out, &f->error, f->now);
    if (status != DOORMAN_OK) fail_msg("%s", f->error.text);
    return f->out.granted;
}

/* Reads the next decision. Returns its ticket, or 0. */
static uint64_t next(fixture *f) {
    uint64_t ticket = 0;
    return doorman_permits_next_decision(f->permits, &ticket, &f->out) ? ticket : 0;
}

typedef doorman_status (*hold_call)(doorman_permits *permits, const doorman_hold_request *request,
                                    doorman_hold *out, doorman_error *error, doorman_time now);

/* Calls a function on a hold. Returns false if the hold is gone. */
static bool call(fixture *f, hold_call function, doorman_hold_request request) {
    doorman_status status = function(f->permits, &request, &f->hold, &f->error, f->now);
    if (status != DOORMAN_OK) fail_msg("%s", f->error.text);
    return !f->hold.gone;
}

static bool renew(fixture *f, const char *client, uint64_t id) {
    return call(f, doorman_permits_renew, (doorman_hold_request){.client_id = client, .id = id});
}

static bool release(fixture *f, const char *client, uint64_t id) {
    return call(f, doorman_permits_release, (doorman_hold_request){.client_id = client, .id = id});
}

static bool keep(fixture *f, const char *client, uint64_t id, double amount) {
    return call(f, doorman_permits_release,
                (doorman_hold_request){
                    .client_id = client, .id = id, .amounts = &amount, .amount_count = 1});
}

/* Returns the units that a key can still get. */
static double left(fixture *f, const char *key) {
    doorman_permit out;
    assert_int_equal(doorman_permits_inspect(f->permits, ITEM_OF("r", key), &out, NULL, f->now),
                     DOORMAN_OK);
    return out.details[0].remaining;
}

/* P6: returns the units of a key that are held. */
static double used(fixture *f, const char *key) {
    doorman_permit out;
    assert_int_equal(doorman_permits_inspect(f->permits, ITEM_OF("r", key), &out, NULL, f->now),
                     DOORMAN_OK);
    return out.details[0].used;
}

/* ---- an exact recount ----------------------------------------------------------------------- */

/* Returns the grains that all holds take from a counter; NULL: from all counters. */
static uint64_t recount_takes(const doorman_permits *p, const doorman__counter *counter) {
    uint64_t sum = 0;
    for (doorman__hold *hold = p->holds.granted.first; hold; hold = hold->later) {
        for (size_t t = 0; t < hold->takes.count; t++) {
            const doorman__take *take = doorman__takes_at(&hold->takes, t);
            if (!counter || take->counter == counter) sum += take->grains;
        }
    }
    return sum;
}

/* Checks one counter. Adds what it counts to the sums.
 *   turns   in/out: the turns of all queues */
static uint64_t recount_counter(const doorman_permits *p, doorman__counter *counter,
                                size_t *turns) {
    const doorman__hold_queue *queue = doorman__counter_queue(counter);
    const uint64_t sum = recount_takes(p, counter);
    assert_int_equal(sum, doorman__counter_state(counter)[0]);
    if (!queue) return sum;
    *turns += queue->turns.count;
    doorman__timer *first = doorman__timers_first(&queue->turns);
    assert_true(first || queue->ready);
    bool fits = first && doorman__hold_queue_fits(p, queue, doorman__turn_wait(first));
    assert_true(!fits || queue->ready);
    return sum;
}

/* Checks the state of each hold and of each permit that waits. */
static void recount_states(const doorman_permits *p) {
    for (doorman__hold *hold = p->holds.granted.first; hold; hold = hold->later) {
        assert_true(hold->state == DOORMAN__HELD || hold->state == DOORMAN__TRANSFERRED);
        assert_true(hold->end.position > 0);
    }
    for (doorman__hold *hold = p->holds.spent.first; hold; hold = hold->later) {
        assert_true(hold->state == DOORMAN__SPENT && hold->source);
        assert_true(!hold->end.position && !hold->takes.count);
    }
    for (doorman__hold *hold = p->holds.waiting.first; hold; hold = hold->later) {
        assert_true(hold->wait->hold == hold && hold->wait->turn.position > 0);
    }
}

/* Compares all sums with the holds. A queue whose first permit fits must be ready. */
static void recount(const fixture *f) {
    const doorman_permits *p = f->permits;
    uint64_t all = 0;
    size_t turns = 0;
    for (size_t i = 0; i < p->slot_count; i++) {
        const doorman__slot *slot = p->slots[i];
        assert_int_equal(slot->next_nodes.count, 0);
        if (slot->kind != DOORMAN_CONCURRENCY) continue;
        for (size_t b = 0; b < slot->nodes.bucket_count; b++) {
            doorman__chain *node = *doorman__chains_at(&slot->nodes, b);
            for (; node; node = node->next) {
                all += recount_counter(p, (doorman__counter *)(void *)node, &turns);
            }
        }
    }
    recount_states(p);
    assert_int_equal(recount_takes(p, NULL), all);
    assert_int_equal(turns + p->holds.loose.turns.count, p->holds.waiting.count);
    assert_int_equal(p->holds.ends.count, p->holds.granted.count + p->holds.waiting.count);
    assert_int_equal(p->holds.by_id.count, p->holds.granted.count + p->holds.spent.count);
}

/* ---- holds ---------------------------------------------------------------------------------- */

#define SLOTS "{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 4"
#define QUEUE SLOTS ", \"queue\": 200, \"max_wait\": 30}"

TEST(a_limit_of_holds_has_its_defaults) {
    doorman_config *config = limits_of(SLOTS ", \"overrides\": [{\"keys\": [\"a\"], \"limit\": 9},"
                                             "{\"keys\": [\"b\"], \"queue\": 3}]}");
    doorman_config_options read;
    doorman_config_read(config, &read);
    const doorman_permit_limit *limit = &read.templates[0].limits[0];
    assert_int_equal(limit->figures.time_to_live, 15 * SECOND);
    assert_true(limit->figures.queue == 0 && limit->figures.max_wait == 0);
    assert_false(limit->full_at_start);
    assert_exact(limit->overrides[0].figures.limit, 9);
    assert_exact(limit->overrides[1].figures.limit, 4);
    assert_int_equal(limit->overrides[1].figures.queue, 3);
    assert_int_equal(limit->overrides[1].figures.time_to_live, 15 * SECOND);
    doorman_buffer first = {NULL, 0, 0}, second = {NULL, 0, 0};
    assert_int_equal(doorman_json_write_config(&read, &first), DOORMAN_OK);
    doorman_config *again = NULL;
    assert_int_equal(doorman_json_config(&again, first.text, strlen(first.text), NULL), DOORMAN_OK);
    doorman_config_read(again, &read);
    assert_int_equal(doorman_json_write_config(&read, &second), DOORMAN_OK);
    assert_string_equal(first.text, second.text);
    doorman_buffer_uninit(&first);
    doorman_buffer_uninit(&second);
    doorman_config_destroy(again);
    doorman_config_destroy(config);
}

TEST(a_hold_keeps_its_units_until_it_is_released) {
    fixture f = start(SLOTS "}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 3, 0));
    uint64_t id = f.out.hold_id;
    assert_true(id > 0 && id < UINT64_C(1) << 53);
    assert_int_equal(f.out.expires_in, 15 * SECOND);
    assert_exact(f.out.items[0].granted, 3);
    assert_exact(f.out.items[0].remaining, 1);
    assert_false(ask(&f, "bob", 1, "k", 2, 0));
    assert_int_equal(f.out.reason, DOORMAN_REASON_CONCURRENCY);
    assert_string_equal(f.out.limit, "slots");
    assert_false(f.out.has_retry_after);
    assert_int_equal(f.out.valid_for, 0);
    assert_true(ask(&f, "bob", 2, "other", 2, 0));
    assert_true(release(&f, "ann", id));
    assert_exact(left(&f, "k"), 4);
    assert_false(release(&f, "ann", id));
    assert_true(ask(&f, "bob", 3, "k", 4, 0));
    recount(&f);
    stop(&f);
}

/* P8 */
TEST(a_hold_ends_after_its_time_to_live_and_the_drift) {
    fixture f = start(SLOTS "}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t id = f.out.hold_id;
    doorman_time end = 15 * SECOND + 15 * SECOND / 20;
    assert_int_equal(doorman_permits_due(f.permits), f.now + SECOND);
    pass(&f, end);
    assert_false(ask(&f, "bob", 1, "k", 1, 0));
    assert_int_equal(f.events[DOORMAN_PERMIT_HOLD_EXPIRED], 0);
    pass(&f, 1);
    assert_false(renew(&f, "ann", id));
    assert_int_equal(f.events[DOORMAN_PERMIT_HOLD_EXPIRED], 1);
    assert_true(ask(&f, "bob", 2, "k", 4, 0));
    stop(&f);
}

/* P8 */
TEST(a_renewal_moves_the_end_but_never_back) {
    fixture f = start(SLOTS "}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t id = f.out.hold_id;
    pass(&f, 10 * SECOND);
    assert_true(renew(&f, "ann", id));
    assert_int_equal(f.hold.expires_in, 15 * SECOND);
    assert_exact(f.hold.items[0].amount, 4);
    pass(&f, 15 * SECOND);
    assert_true(renew(&f, "ann", id));
    reload(&f, SLOTS ", \"time_to_live\": 1}");
    assert_true(renew(&f, "ann", id));
    assert_int_equal(f.hold.expires_in, SECOND);
    pass(&f, 15 * SECOND);
    assert_true(renew(&f, "ann", id)); /* the end that it had before */
    pass(&f, 2 * SECOND);
    assert_false(renew(&f, "ann", id));
    stop(&f);
}

TEST(a_time_to_live_is_cut_to_that_of_the_limit) {
    fixture f = start(SLOTS "}");
    begin(&f);
    doorman_permit_request request = {
        .client_id = "ann", .request_id = 1, .time_to_live = 20 * SECOND};
    assert_true(ask_with(&f, &request, "k", 1));
    assert_int_equal(f.out.expires_in, 15 * SECOND);
    request.request_id = 2;
    request.time_to_live = 2 * SECOND;
    assert_true(ask_with(&f, &request, "k", 1));
    assert_int_equal(f.out.expires_in, 2 * SECOND);
    stop(&f);
}

/* P8 */
TEST(a_release_says_what_is_kept) {
    fixture f = start(SLOTS "}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t id = f.out.hold_id;
    for (int i = 0; i < 2; i++) { /* the second one is a copy */
        assert_true(keep(&f, "ann", id, 3));
        assert_exact(f.hold.items[0].amount, 3);
        assert_exact(left(&f, "k"), 1);
    }
    assert_true(keep(&f, "ann", id, 9)); /* more than is held */
    assert_exact(f.hold.items[0].amount, 3);
    assert_false(keep(&f, "bob", id, 0)); /* of another client */
    assert_false(renew(&f, "bob", id));
    assert_exact(left(&f, "k"), 1);
    recount(&f);
    assert_true(keep(&f, "ann", id, 0));
    assert_int_equal(f.hold.item_count, 0);
    assert_false(keep(&f, "ann", id, 0));
    stop(&f);
}

/* P1, P8 */
TEST(items_are_held_and_released_one_by_one) {
    fixture f = start(SLOTS "}, {\"name\": \"all\", \"per\": \"template\", \"kind\": "
                            "\"CONCURRENCY\", \"limit\": 6, \"time_to_live\": 5}");
    begin(&f);
    const doorman_permit_item items[] = {{.resource_id = "r", .key = "a", .cost = 3},
                                         {.resource_id = "s", .key = "b", .cost = 2}};
    const doorman_permit_request request = {
        .items = items, .item_count = 2, .client_id = "ann", .request_id = 1};
    assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, NULL, f.now), DOORMAN_OK);
    uint64_t id = f.out.hold_id;
    assert_int_equal(f.out.expires_in, 5 * SECOND); /* the smallest */
    assert_false(ask(&f, "bob", 1, "c", 2, 0));
    assert_string_equal(f.out.limit, "all");
    const double amounts[] = {1, 2};
    assert_true(call(&f, doorman_permits_release,
                     (doorman_hold_request){
                         .client_id = "ann", .id = id, .amounts = amounts, .amount_count = 2}));
    assert_exact(f.hold.items[0].amount, 1);
    assert_exact(f.hold.items[1].amount, 2);
    assert_string_equal(f.hold.items[1].resource_id, "s");
    assert_string_equal(f.hold.items[1].key, "b");
    assert_exact(left(&f, "a"), 3);
    assert_true(ask(&f, "bob", 2, "c", 3, 0));
    recount(&f);
    stop(&f);
}

/* P8, P11: a list of a wrong length is a mistake of the client, so the call changes nothing. */
TEST(a_list_of_amounts_must_have_one_for_each_item) {
    fixture f = start(SLOTS "}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 2, 0));
    const uint64_t id = f.out.hold_id;
    const double amounts[] = {1, 1};
    const doorman_hold_request wrong = {
        .client_id = "ann", .id = id, .amounts = amounts, .amount_count = 2};
    doorman_hold_request by_request = wrong, moves = wrong, gone = wrong;
    by_request.id = 0;
    by_request.request_id = 1;
    moves.request_id = 7;
    gone.id = id + 1;
    assert_int_equal(doorman_permits_release(f.permits, &wrong, &f.hold, &f.error, f.now),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(f.error.text, "amounts: must be one for each item of the hold");
    assert_int_equal(doorman_permits_release(f.permits, &by_request, &f.hold, &f.error, f.now),
                     DOORMAN_INVALID_ARGUMENT);
    assert_int_equal(doorman_permits_transfer(f.permits, &moves, &f.hold, &f.error, f.now),
                     DOORMAN_INVALID_ARGUMENT);
    assert_exact(left(&f, "k"), 2);
    assert_false(call(&f, doorman_permits_release, gone));
    assert_true(keep(&f, "ann", id, 1));
    assert_exact(left(&f, "k"), 3);
    stop(&f);
}

/* What a hold takes is rounded up to 1/4096 of a unit, and what a transfer moves is rounded down.
 * So the units that a hold keeps are never counted too low. */
TEST(fractions_of_units_come_back_in_full) {
    fixture f = start(SLOTS "}");
    begin(&f);
    doorman_permit_item items[10];
    for (int i = 0; i < 10; i++) {
        items[i] = (doorman_permit_item){.resource_id = "r", .key = "k", .cost = 0.1};
    }
    const doorman_permit_request request = {
        .items = items, .item_count = 10, .client_id = "ann", .request_id = 1};
    assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, NULL, f.now), DOORMAN_OK);
    assert_exact(f.out.items[9].granted, 0.1);
    uint64_t id = f.out.hold_id;
    assert_exact(left(&f, "k"), 4 - 4100 / 4096.0);
    const double moves[10] = {0.05}, amounts[10] = {0.05, 0.1, 0.1, 0.1};
    assert_true(call(
        &f, doorman_permits_transfer,
        (doorman_hold_request){
            .client_id = "ann", .id = id, .request_id = 2, .amounts = moves, .amount_count = 10}));
    assert_exact(f.hold.items[0].amount, 204 / 4096.0); /* rounded down */
    uint64_t moved = f.hold.id;
    recount(&f);
    assert_true(call(&f, doorman_permits_release,
                     (doorman_hold_request){
                         .client_id = "ann", .id = id, .amounts = amounts, .amount_count = 10}));
    assert_exact(left(&f, "k"), 4 - (204 + 205 + 3 * 410) / 4096.0);
    assert_true(call(&f, doorman_permits_seize,
                     (doorman_hold_request){.client_id = "bob", .id = moved, .request_id = 1}));
    assert_true(release(&f, "bob", f.hold.id) && release(&f, "ann", id));
    assert_exact(left(&f, "k"), 4);
    stop(&f);
}

TEST(a_permit_that_holds_needs_a_request_id) {
    fixture f = start(SLOTS "}");
    begin(&f);
    doorman_permit_item item = {.resource_id = "r", .cost = 1};
    const doorman_permit_request request = {.items = &item, .item_count = 1};
    assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, &f.error, f.now),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(f.error.text, "request_id: is needed for a limit of kind CONCURRENCY");
    assert_int_equal(info(&f).counter_count, 0);
    item.cost = 0; /* only looks */
    assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, &f.error, f.now),
                     DOORMAN_OK);
    assert_true(f.out.granted && f.out.hold_id == 0);
    assert_exact(f.out.items[0].remaining, 4);
    stop(&f);
}

TEST(a_limit_of_zero_is_never_granted) {
    fixture f = start("{\"name\": \"none\", \"kind\": \"CONCURRENCY\", \"limit\": 0, \"queue\": 9, "
                      "\"max_wait\": 9}");
    begin(&f);
    assert_false(ask(&f, "ann", 1, "k", 1, 9 * SECOND));
    assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_COST);
    assert_false(f.out.pending);
    stop(&f);
}

static void expect_error(const fixture *f, const char *text) {
    if (strncmp(f->error.text, text, strlen(text)) != 0) {
        fail_msg("\"%s\" does not begin with \"%s\"", f->error.text, text);
    }
}

TEST(a_wrong_field_of_a_permit_is_named) {
    fixture f = start(SLOTS "}");
    begin(&f);
    const doorman_permit_item items[] = {{.resource_id = "r", .cost = 1},
                                         {.resource_id = "r", .cost = 1}};
    const struct {
        doorman_permit_request request;
        const char *error;
    } permits[] = {
        {{.client_id = ""}, "client_id: must be"},
        {{.request_id = 1}, "client_id: is needed with request_id"},
        {{.client_id = "a", .request_id = UINT64_C(1) << 53}, "request_id: must be at most"},
        {{.client_id = "a", .time_to_live = -1}, "time_to_live: must be"},
        {{.has_priority = true, .priority = 16}, "priority: must be from 0 to 15"},
        {{.has_priority = true, .priority = -1}, "priority: must be from 0 to 15"},
        {{.priority = 1}, "priority: needs has_priority"},
        {{.share = true}, "share: needs a permit of one item"},
    };
    for (size_t i = 0; i < COUNT(permits); i++) {
        doorman_permit_request request = permits[i].request;
        request.items = items;
        request.item_count = 2;
        assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, &f.error, f.now),
                         DOORMAN_INVALID_ARGUMENT);
        expect_error(&f, permits[i].error);
    }
    stop(&f);
}

TEST(a_wrong_field_of_a_call_on_a_hold_is_named) {
    fixture f = start(SLOTS "}");
    begin(&f);
    const double amount = -1;
    const doorman_hold_item item = {"", NULL, 1};
    const struct {
        hold_call function;
        doorman_hold_request request;
        const char *error;
    } calls[] = {
        {doorman_permits_renew, {.id = 1}, "client_id: must be"},
        {doorman_permits_renew, {.client_id = "a"}, "id: is missing"},
        {doorman_permits_renew,
         {.client_id = "a", .id = 1, .items = &item, .item_count = 1},
         "items[0].resource_id: must be"},
        {doorman_permits_renew,
         {.client_id = "a", .id = 1, .item_count = 1},
         "items: must not be NULL"},
        {doorman_permits_release, {.client_id = "a"}, "id: exactly one of id and request_id"},
        {doorman_permits_release,
         {.client_id = "a", .id = 1, .request_id = 1},
         "id: exactly one of id and request_id"},
        {doorman_permits_release,
         {.client_id = "a", .id = 1, .amounts = &amount, .amount_count = 1},
         "amounts[0]: must be"},
        {doorman_permits_release,
         {.client_id = "a", .id = 1, .amount_count = 1},
         "amounts: must not be NULL"},
        {doorman_permits_transfer, {.client_id = "a", .id = 1}, "request_id: is missing"},
        {doorman_permits_seize, {.client_id = "a", .request_id = 1}, "id: is missing"},
        {doorman_permits_seize,
         {.client_id = "a", .id = 1, .request_id = 1, .time_to_live = -1},
         "time_to_live: must be"},
    };
    for (size_t i = 0; i < COUNT(calls); i++) {
        assert_int_equal(calls[i].function(f.permits, &calls[i].request, &f.hold, &f.error, f.now),
                         DOORMAN_INVALID_ARGUMENT);
        expect_error(&f, calls[i].error);
    }
    stop(&f);
}

/* ---- repeats (P9) --------------------------------------------------------------------------- */

TEST(a_repeat_renews_the_same_hold) {
    fixture f = start(SLOTS "}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 3, 0));
    uint64_t id = f.out.hold_id;
    pass(&f, 10 * SECOND);
    assert_true(ask(&f, "ann", 1, "k", 3, 0));
    assert_true(f.out.hold_id == id);
    assert_int_equal(f.out.waited, 0);
    assert_exact(f.out.items[0].granted, 3);
    assert_int_equal(f.out.expires_in, 15 * SECOND);
    pass(&f, 14 * SECOND);
    assert_exact(left(&f, "k"), 1);            /* it was prolonged */
    assert_true(ask(&f, "bob", 1, "k", 1, 0)); /* another client has its own numbers */
    assert_false(ask(&f, "ann", 1, "k", 1, 0));
    assert_int_equal(f.out.reason, DOORMAN_REASON_REPEATED);
    assert_false(ask(&f, "ann", 1, "other", 3, 0));
    assert_int_equal(f.out.reason, DOORMAN_REASON_REPEATED);
    recount(&f);
    stop(&f);
}

TEST(a_repeat_takes_over_the_place_of_a_waiting_permit) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t id = f.out.hold_id;
    assert_false(ask(&f, "bob", 1, "k", 1, 5 * SECOND));
    assert_true(f.out.pending);
    uint64_t first = f.out.ticket;
    assert_false(ask(&f, "cyd", 1, "k", 1, 20 * SECOND));
    uint64_t other = f.out.ticket;
    pass(&f, 4 * SECOND);
    assert_false(ask(&f, "bob", 1, "k", 1, 5 * SECOND));
    assert_true(f.out.pending);
    uint64_t second = f.out.ticket;
    assert_true(second != first && info(&f).wait_count == 2);
    assert_true(next(&f) == first);
    assert_int_equal(f.out.reason, DOORMAN_REASON_REPEATED);
    pass(&f, 4 * SECOND); /* the wait counts from the repeat */
    assert_true(keep(&f, "ann", id, 3));
    assert_true(next(&f) == second); /* it is still before cyd */
    assert_true(f.out.granted);
    assert_int_equal(f.out.waited, 4 * SECOND);
    assert_true(release(&f, "ann", id));
    assert_true(next(&f) == other && f.out.granted);
    assert_int_equal(f.out.waited, 8 * SECOND);
    assert_true(next(&f) == 0);
    recount(&f);
    stop(&f);
}

/* A repeat with max_wait 0 ends the wait, because a permit that may not wait is never pending. */
TEST(a_repeat_that_may_not_wait_ends_the_wait) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    assert_false(ask(&f, "bob", 1, "k", 1, 5 * SECOND));
    uint64_t first = f.out.ticket;
    assert_false(ask(&f, "bob", 1, "k", 1, 0));
    assert_false(f.out.pending);
    assert_int_equal(f.out.reason, DOORMAN_REASON_CONCURRENCY);
    assert_true(next(&f) == first);
    assert_int_equal(f.out.reason, DOORMAN_REASON_REPEATED);
    assert_int_equal(info(&f).wait_count, 0);
    recount(&f);
    stop(&f);
}

TEST(a_released_request_id_cancels_or_frees) {
    fixture f = start(QUEUE);
    begin(&f);
    const doorman_hold_request ann = {.client_id = "ann", .request_id = 1};
    const doorman_hold_request bob = {.client_id = "bob", .request_id = 1};
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    assert_false(ask(&f, "bob", 1, "k", 4, 9 * SECOND));
    uint64_t ticket = f.out.ticket;
    assert_true(call(&f, doorman_permits_release, bob));
    assert_true(next(&f) == ticket && f.out.reason == DOORMAN_REASON_TIMED_OUT);
    assert_false(call(&f, doorman_permits_release, bob));
    assert_true(call(&f, doorman_permits_release, ann));
    assert_exact(left(&f, "k"), 4);
    assert_int_equal(info(&f).hold_count + info(&f).wait_count, 0);
    stop(&f);
}

/* ---- queues (P7) ---------------------------------------------------------------------------- */

static uint64_t wait_for(fixture *f, const char *client, int priority, double cost) {
    const doorman_permit_request request = {.client_id = client,
                                            .request_id = 1,
                                            .max_wait = 20 * SECOND,
                                            .has_priority = true,
                                            .priority = priority};
    assert_false(ask_with(f, &request, "k", cost));
    assert_true(f->out.pending);
    return f->out.ticket;
}

TEST(permits_wait_by_priority_and_then_by_arrival) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t id = f.out.hold_id;
    uint64_t low = wait_for(&f, "low", 0, 1), first = wait_for(&f, "first", 1, 1);
    uint64_t second = wait_for(&f, "second", 1, 1), high = wait_for(&f, "high", 15, 1);
    assert_int_equal(f.events[DOORMAN_PERMIT_WAITING], 4);
    assert_int_equal(f.events[DOORMAN_PERMIT_WAIT_ENDED], 0);
    const uint64_t order[] = {high, first, second, low};
    for (int i = 0; i < 4; i++) {
        assert_true(next(&f) == 0);
        assert_true(keep(&f, "ann", id, 3 - i));
        assert_true(next(&f) == order[i] && f.out.granted);
        assert_int_equal(f.events[DOORMAN_PERMIT_WAIT_ENDED], i + 1);
        recount(&f);
    }
    stop(&f);
}

TEST(nobody_overtakes_a_permit_of_the_same_priority) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 3, 0));
    uint64_t id = f.out.hold_id;
    uint64_t big = wait_for(&f, "big", 1, 3);
    uint64_t small = wait_for(&f, "small", 1, 1); /* one unit is free, but `big` was first */
    const doorman_permit_request urgent = {
        .client_id = "urgent", .request_id = 1, .has_priority = true, .priority = 2};
    assert_false(ask(&f, "late", 1, "k", 1, 0));
    assert_int_equal(f.out.reason, DOORMAN_REASON_CONCURRENCY);
    assert_true(ask_with(&f, &urgent, "k", 1));
    assert_true(release(&f, "ann", id));
    assert_true(next(&f) == big && f.out.granted);
    assert_true(next(&f) == 0);
    assert_true(call(&f, doorman_permits_release,
                     (doorman_hold_request){.client_id = "urgent", .request_id = 1}));
    assert_true(next(&f) == small && f.out.granted);
    recount(&f);
    stop(&f);
}

/* The first permit is too large. When its client gives it up, the next permit is granted. */
TEST(the_next_permit_is_served_when_the_first_gives_up) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 3, 0));
    (void)wait_for(&f, "big", 1, 3);
    uint64_t small = wait_for(&f, "small", 1, 1);
    assert_true(call(&f, doorman_permits_release,
                     (doorman_hold_request){.client_id = "big", .request_id = 1}));
    assert_true(next(&f) && f.out.reason == DOORMAN_REASON_TIMED_OUT);
    assert_true(next(&f) == small && f.out.granted);
    stop(&f);
}

TEST(a_wait_ends_with_the_shorter_max_wait) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t id = f.out.hold_id;
    assert_false(ask(&f, "bob", 1, "k", 1, 5 * SECOND));
    uint64_t bob = f.out.ticket;
    assert_false(ask(&f, "cyd", 1, "k", 1, 90 * SECOND)); /* 30 s of the limit */
    uint64_t cyd = f.out.ticket;
    pass(&f, 5 * SECOND - 1);
    update(&f);
    assert_true(next(&f) == 0);
    assert_int_equal(doorman_permits_due(f.permits), f.now + 1);
    pass(&f, 1);
    update(&f);
    assert_true(next(&f) == bob);
    assert_int_equal(f.out.reason, DOORMAN_REASON_TIMED_OUT);
    assert_string_equal(f.out.limit, "slots");
    for (int i = 0; i < 5; i++) {
        assert_true(renew(&f, "ann", id));
        pass(&f, 5 * SECOND);
    }
    update(&f);
    assert_true(next(&f) == cyd && f.out.reason == DOORMAN_REASON_TIMED_OUT);
    assert_int_equal(f.refused[DOORMAN_REASON_TIMED_OUT], 2);
    doorman_cursor cursor = {0};
    doorman_permits_limit limit;
    assert_true(doorman_permits_next_limit(f.permits, &cursor, &limit));
    assert_int_equal(limit.waited, 2);
    assert_int_equal(limit.refused[DOORMAN_REASON_TIMED_OUT], 2);
    stop(&f);
}

/* Asks for a unit of the key "k", which has no unit left. Checks that the permit waits, or, if
 * `waits` is false, is refused with QUEUE_FULL. */
static void expect_wait(fixture *f, const doorman_permit_request *request, bool waits) {
    assert_false(ask_with(f, request, "k", 1));
    assert_int_equal(f->out.pending, waits);
    if (!waits) assert_int_equal(f->out.reason, DOORMAN_REASON_QUEUE_FULL);
}

/* A repeat does not count twice, because it replaces the permit that it repeats. */
TEST(the_permits_that_wait_on_a_connection_have_a_bound) {
    fixture f = start(QUEUE);
    f.options.connection_waiting_max = 1;
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    doorman_permit_request request = {
        .client_id = "bob", .request_id = 1, .max_wait = SECOND, .connection = 8};
    expect_wait(&f, &request, true);
    request.request_id = 2;
    expect_wait(&f, &request, false); /* the connection has one already */
    request.connection = 0;
    expect_wait(&f, &request, true);
    request.connection = 8;
    expect_wait(&f, &request, false);
    assert_int_equal(info(&f).wait_count, 2); /* the first one still waits */
    request.request_id = 1;                   /* its permit waits on this connection already */
    expect_wait(&f, &request, true);
    assert_int_not_equal(next(&f), 0);
    assert_int_equal(f.out.reason, DOORMAN_REASON_REPEATED);
    recount(&f);
    stop(&f);
}

TEST(the_permits_of_a_client_that_wait_have_a_bound) {
    fixture f = start(QUEUE);
    f.options.client_waiting_max = 2;
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    for (uint64_t i = 1; i <= 3; i++) {
        expect_wait(
            &f, &(doorman_permit_request){.client_id = "bob", .request_id = i, .max_wait = SECOND},
            i <= 2);
    }
    expect_wait(&f,
                &(doorman_permit_request){.client_id = "cyd", .request_id = 1, .max_wait = SECOND},
                true);
    recount(&f);
    stop(&f);
}

TEST(each_queue_has_a_bound_of_its_own) {
    fixture f = start(SLOTS ", \"queue\": 1, \"max_wait\": 30}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    assert_true(ask(&f, "ann", 2, "other", 4, 0));
    (void)wait_for(&f, "cyd", 1, 1);
    assert_false(ask(&f, "dan", 1, "k", 1, SECOND));
    assert_int_equal(f.out.reason, DOORMAN_REASON_QUEUE_FULL);
    assert_false(ask(&f, "dan", 1, "other", 1, SECOND));
    assert_true(f.out.pending);
    assert_int_equal(info(&f).wait_count, 2);
    recount(&f);
    stop(&f);
}

TEST(all_permits_that_wait_have_a_bound) {
    fixture f = start(QUEUE);
    f.options.waiting_max = 1;
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    (void)wait_for(&f, "bob", 1, 1);
    assert_false(ask(&f, "cyd", 1, "k", 1, SECOND));
    assert_int_equal(f.out.reason, DOORMAN_REASON_QUEUE_FULL);
    stop(&f);
}

TEST(a_closed_connection_cancels_its_permits) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 3, 0));
    doorman_permit_request request = {.client_id = "bob", .max_wait = SECOND, .connection = 8};
    for (uint64_t i = 1; i <= 100; i++) {
        request.request_id = i;
        assert_false(ask_with(&f, &request, "k", 2));
        assert_true(f.out.pending);
        if (i == 50) (void)wait_for(&f, "cyd", 1, 1);
    }
    request.request_id = 101;
    assert_false(ask_with(&f, &request, "k", 2));
    assert_false(f.out.pending);
    assert_int_equal(info(&f).wait_count, 101);
    assert_int_equal(doorman_permits_cancel(f.permits, 9, f.now), 0);
    assert_int_equal(doorman_permits_cancel(f.permits, 8, f.now), 100);
    assert_true(next(&f) && f.out.granted); /* cyd */
    assert_true(next(&f) == 0);             /* the connection of the others has ended */
    assert_int_equal(info(&f).wait_count, 0);
    recount(&f);
    stop(&f);
}

#define TWO                                                                                        \
    SLOTS ", \"queue\": 9, \"max_wait\": 30}, {\"name\": \"all\", \"per\": \"resource\", "         \
          "\"kind\": \"CONCURRENCY\", \"limit\": 6, \"queue\": 9, \"max_wait\": 30}"

TEST(the_end_of_a_wait_is_an_event) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t id = f.out.hold_id;
    wait_for(&f, "bob", 1, 1);
    pass(&f, 3 * SECOND);
    assert_true(keep(&f, "ann", id, 3));
    assert_true(next(&f) && f.out.granted);
    assert_int_equal(f.events[DOORMAN_PERMIT_WAIT_ENDED], 1);
    assert_exact(f.waited, 3);
    assert_int_equal(f.wait_reason, DOORMAN_NO_REASON);
    wait_for(&f, "cyd", 1, 2);
    pass(&f, 20 * SECOND);
    update(&f);
    assert_true(next(&f) && !f.out.granted);
    assert_int_equal(f.events[DOORMAN_PERMIT_WAIT_ENDED], 2);
    assert_exact(f.waited, 20);
    assert_int_equal(f.wait_reason, DOORMAN_REASON_TIMED_OUT);
    assert_true(ask(&f, "eve", 1, "k", 4, 0)); /* the holds before it have ended */
    const doorman_permit_request request = {
        .client_id = "dan", .request_id = 1, .max_wait = 20 * SECOND, .connection = 9};
    assert_false(ask_with(&f, &request, "k", 4));
    assert_true(f.out.pending);
    pass(&f, 2 * SECOND);
    assert_int_equal(doorman_permits_cancel(f.permits, 9, f.now), 1);
    assert_int_equal(f.events[DOORMAN_PERMIT_WAIT_LEFT], 1);
    assert_exact(f.waited, 2);
    stop(&f);
}

TEST(a_permit_moves_to_the_queue_of_the_counter_that_lacks_room) {
    fixture f = start(TWO);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "a", 4, 0));
    uint64_t ann = f.out.hold_id;
    assert_true(ask(&f, "bob", 1, "b", 2, 0));
    uint64_t bob = f.out.hold_id;
    assert_false(ask(&f, "cyd", 1, "c", 1, 20 * SECOND)); /* in the queue of `all` */
    uint64_t cyd = f.out.ticket;
    assert_string_equal(f.out.limit, "all");
    pass(&f, SECOND);
    assert_false(ask(&f, "dan", 1, "a", 3, 20 * SECOND)); /* in the queue of `slots` */
    uint64_t dan = f.out.ticket;
    assert_string_equal(f.out.limit, "slots");
    pass(&f, SECOND);
    assert_false(ask(&f, "eve", 1, "e", 1, 20 * SECOND)); /* in the queue of `all` */
    uint64_t eve = f.out.ticket;
    assert_true(keep(&f, "ann", ann, 1)); /* 3 are free in both, but cyd was first */
    assert_true(next(&f) == cyd && f.out.granted);
    assert_true(next(&f) == 0); /* dan waits at `all` now, before eve */
    assert_int_equal(f.events[DOORMAN_PERMIT_WAITING], 4);
    recount(&f);
    assert_true(keep(&f, "bob", bob, 1));
    assert_true(next(&f) == dan && f.out.granted);
    assert_int_equal(f.out.waited, SECOND);
    assert_true(next(&f) == 0);
    assert_true(release(&f, "bob", bob));
    assert_true(next(&f) == eve && f.out.granted);
    recount(&f);
    stop(&f);
}

TEST(a_permit_that_cannot_wait_at_the_next_counter_is_refused) {
    fixture f = start(SLOTS ", \"queue\": 9, \"max_wait\": 30}, {\"name\": \"all\", \"per\": "
                            "\"resource\", \"kind\": \"CONCURRENCY\", \"limit\": 6}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "a", 4, 0));
    uint64_t ann = f.out.hold_id;
    assert_true(ask(&f, "bob", 1, "b", 2, 0));
    assert_false(ask(&f, "cyd", 1, "a", 3, 20 * SECOND));
    uint64_t cyd = f.out.ticket;
    assert_true(keep(&f, "ann", ann, 3)); /* does not fit `slots` yet */
    assert_true(next(&f) == 0);
    assert_true(ask(&f, "dan", 1, "d", 1, 0));
    assert_true(keep(&f, "ann", ann, 1)); /* fits `slots`, but not `all` */
    assert_true(next(&f) == cyd);
    assert_int_equal(f.out.reason, DOORMAN_REASON_CONCURRENCY);
    assert_string_equal(f.out.limit, "all");
    recount(&f);
    stop(&f);
}

#define RATED                                                                                      \
    SLOTS ", \"queue\": 9, \"max_wait\": 30}, {\"name\": \"rate\", \"kind\": \"TOKEN_BUCKET\", "   \
          "\"rate\": 0.01, \"size\": 6}"

TEST(rates_are_charged_with_the_grant) {
    fixture f = start(RATED);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0)); /* 2 are left of the rate */
    uint64_t ann = f.out.hold_id;
    assert_false(ask(&f, "bob", 1, "k", 2, 9 * SECOND));
    assert_true(f.out.pending);
    uint64_t bob = f.out.ticket;
    assert_false(ask(&f, "cyd", 1, "k", 2, 9 * SECOND));
    uint64_t cyd = f.out.ticket;
    assert_true(f.out.pending); /* the rate would still allow it */
    assert_true(release(&f, "ann", ann));
    assert_true(next(&f) == bob && f.out.granted);
    assert_true(next(&f) == cyd); /* the rate refuses it now */
    assert_int_equal(f.out.reason, DOORMAN_REASON_RATE);
    assert_true(f.out.has_retry_after);
    assert_false(ask(&f, "dan", 1, "k", 2, 9 * SECOND)); /* lacks units of a rate, so no queue */
    assert_int_equal(f.out.reason, DOORMAN_REASON_RATE);
    stop(&f);
}

/* P10 */
TEST(a_full_release_answers_those_who_share) {
    fixture f = start(QUEUE);
    begin(&f);
    doorman_permit_request request = {
        .client_id = "bob", .request_id = 1, .max_wait = 20 * SECOND, .share = true};
    for (int i = 0; i < 3; i++) { /* partial release, then transfer, then full release */
        assert_true(ask(&f, "ann", 10 + (uint64_t)i, "k", 4, 0));
        uint64_t ann = f.out.hold_id;
        assert_false(ask_with(&f, &request, "k", 4));
        uint64_t bob = f.out.ticket;
        assert_false(ask(&f, "cyd", 1, "k", 4, 20 * SECOND)); /* does not share */
        uint64_t cyd = f.out.ticket;
        assert_true(keep(&f, "ann", ann, 3));
        assert_true(next(&f) == 0);
        if (i == 1) {
            pass(&f, 16 * SECOND); /* the end of the hold does not share */
            update(&f);
            assert_true(next(&f) == bob && f.out.granted);
            assert_true(release(&f, "bob", f.out.hold_id));
        } else {
            assert_true(release(&f, "ann", ann));
            assert_true(next(&f) == bob);
            assert_int_equal(f.out.reason, DOORMAN_REASON_SHARED);
        }
        assert_true(next(&f) == cyd && f.out.granted);
        assert_true(release(&f, "cyd", f.out.hold_id));
        assert_true(next(&f) == 0);
        recount(&f);
    }
    stop(&f);
}

/* ---- transfers (P11) ------------------------------------------------------------------------ */

static bool transfer(fixture *f, const char *client, uint64_t request_id, uint64_t id,
                     double amount) {
    return call(f, doorman_permits_transfer,
                (doorman_hold_request){.client_id = client,
                                       .id = id,
                                       .request_id = request_id,
                                       .amounts = &amount,
                                       .amount_count = amount > 0});
}

static bool seize(fixture *f, const char *client, uint64_t request_id, uint64_t id) {
    return call(f, doorman_permits_seize,
                (doorman_hold_request){.client_id = client, .id = id, .request_id = request_id});
}

TEST(a_transfer_moves_units_to_another_client) {
    fixture f = start(SLOTS "}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t ann = f.out.hold_id;
    assert_true(transfer(&f, "ann", 2, ann, 3));
    uint64_t moved = f.hold.id;
    assert_exact(f.hold.items[0].amount, 3);
    assert_int_equal(f.hold.expires_in, 15 * SECOND);
    assert_true(renew(&f, "ann", ann));
    assert_exact(f.hold.items[0].amount, 1);
    assert_exact(left(&f, "k"), 0); /* it stays counted */
    assert_false(release(&f, "ann", moved) || renew(&f, "ann", moved));
    assert_false(release(&f, "bob", moved));
    assert_false(transfer(&f, "bob", 1, ann, 1)); /* not its hold */
    assert_true(seize(&f, "bob", 1, moved));
    uint64_t bob = f.hold.id;
    assert_exact(f.hold.items[0].amount, 3);
    assert_false(seize(&f, "cyd", 1, moved)); /* twice */
    assert_true(seize(&f, "bob", 1, moved));  /* a repeat */
    assert_true(f.hold.id == bob);
    recount(&f);
    assert_true(release(&f, "bob", bob));
    assert_exact(left(&f, "k"), 3);
    assert_false(seize(&f, "bob", 1, moved));
    recount(&f);
    stop(&f);
}

/* P9 */
TEST(a_late_copy_of_a_transfer_moves_nothing) {
    fixture f = start(SLOTS "}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t ann = f.out.hold_id;
    assert_true(transfer(&f, "ann", 2, ann, 1));
    uint64_t moved = f.hold.id;
    assert_true(transfer(&f, "ann", 2, ann, 1));
    assert_true(f.hold.id == moved);
    assert_true(seize(&f, "bob", 1, moved));
    uint64_t bob = f.hold.id;
    for (int i = 0; i < 10; i++) {
        pass(&f, 10 * SECOND);
        assert_true(renew(&f, "ann", ann));
        assert_exact(f.hold.items[0].amount, 3);
        if (i < 3) assert_true(renew(&f, "bob", bob));
        assert_false(transfer(&f, "ann", 2, ann, 1));
        assert_true(f.hold.id == moved);
        recount(&f);
    }
    assert_true(release(&f, "ann", ann));
    assert_int_equal(info(&f).hold_count, 0); /* nothing is remembered for ever */
    stop(&f);
}

TEST(a_transfer_ends_and_frees_its_units) {
    fixture f = start(SLOTS "}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    assert_true(transfer(&f, "ann", 2, f.out.hold_id, 0)); /* all of it */
    uint64_t moved = f.hold.id;
    assert_int_equal(info(&f).hold_count, 1);
    pass(&f, 15 * SECOND);
    assert_exact(left(&f, "k"), 0);
    assert_true(transfer(&f, "ann", 2, 1, 0)); /* a repeat moves the end */
    pass(&f, 16 * SECOND);
    assert_false(seize(&f, "ann", 3, moved));
    assert_exact(left(&f, "k"), 4);
    assert_true(ask(&f, "ann", 4, "k", 4, 0));
    assert_true(transfer(&f, "ann", 5, f.out.hold_id, 4));
    assert_true(seize(&f, "ann", 6, f.hold.id)); /* by its own client */
    recount(&f);
    stop(&f);
}

/* It is an error to move more than was asked for. It is no error to move more than is still held,
 * because a holder may not know yet that it holds less than before. */
TEST(a_transfer_of_more_than_was_asked_for_is_an_error) {
    fixture f = start(SLOTS "}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 3, 0));
    const double more = 3.01, all = 3;
    doorman_hold_request request = {.client_id = "ann",
                                    .id = f.out.hold_id,
                                    .request_id = 2,
                                    .amounts = &more,
                                    .amount_count = 1};
    assert_int_equal(doorman_permits_transfer(f.permits, &request, &f.hold, &f.error, f.now),
                     DOORMAN_INVALID_ARGUMENT);
    assert_string_equal(f.error.text,
                        "amounts: must be at most what the item of the hold has asked for");
    assert_exact(used(&f, "k"), 3);
    assert_true(keep(&f, "ann", f.out.hold_id, 2));
    request.amounts = &all;
    assert_int_equal(doorman_permits_transfer(f.permits, &request, &f.hold, &f.error, f.now),
                     DOORMAN_OK);
    assert_exact(f.hold.items[0].amount, 2);
    request.amounts = &more; /* a repeat has no effect */
    assert_int_equal(doorman_permits_transfer(f.permits, &request, &f.hold, &f.error, f.now),
                     DOORMAN_OK);
    recount(&f);
    stop(&f);
}

/* P10: the holder may not have done the shared work, so the next permit does it. */
TEST(the_end_of_a_hold_lets_the_next_permit_do_the_shared_work) {
    fixture f = start("{\"name\": \"one\", \"kind\": \"CONCURRENCY\", \"limit\": 1, "
                      "\"queue\": 9, \"max_wait\": 60}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 1, 0));
    const doorman_permit_item item = {.resource_id = "r", .key = "k", .cost = 1};
    uint64_t tickets[2] = {0};
    for (uint64_t i = 0; i < 2; i++) {
        const doorman_permit_request request = {.items = &item,
                                                .item_count = 1,
                                                .client_id = "bob",
                                                .request_id = i + 1,
                                                .max_wait = 60 * SECOND,
                                                .share = true};
        assert_int_equal(doorman_permits_acquire(f.permits, &request, &f.out, NULL, f.now),
                         DOORMAN_OK);
        assert_true(f.out.pending);
        tickets[i] = f.out.ticket;
    }
    pass(&f, 16 * SECOND);
    update(&f);
    assert_true(next(&f) == tickets[0] && f.out.granted);
    assert_true(next(&f) == 0);
    assert_true(release(&f, "bob", f.out.hold_id));
    assert_true(next(&f) == tickets[1]);
    assert_int_equal(f.out.reason, DOORMAN_REASON_SHARED);
    stop(&f);
}

/* ---- learning (P16) ------------------------------------------------------------------------- */

static bool claim(fixture *f, const char *client, uint64_t id, const char *key, double amount) {
    const doorman_hold_item item = {"r", key, amount};
    return call(
        f, doorman_permits_renew,
        (doorman_hold_request){.client_id = client, .id = id, .items = &item, .item_count = 1});
}

TEST(a_new_master_learns_holds_within_what_is_free) {
    fixture f = start(QUEUE);
    f.options.learns_until = f.now + 16 * SECOND;
    begin(&f);
    assert_false(ask(&f, "new", 1, "k", 1, 0));
    assert_int_equal(f.out.reason, DOORMAN_REASON_LEARNING);
    assert_int_equal(f.out.retry_after, 16 * SECOND);
    assert_false(ask(&f, "new", 2, "k", 1, 20 * SECOND));
    assert_true(f.out.pending);
    uint64_t waits = f.out.ticket;
    assert_true(claim(&f, "ann", 77, "k", 3));
    assert_true(f.hold.id == 77 && f.hold.expires_in == 15 * SECOND);
    assert_true(claim(&f, "ann", 77, "k", 4)); /* known now, so the claim does not matter */
    assert_exact(f.hold.items[0].amount, 3);
    assert_false(claim(&f, "bob", 77, "k", 1));
    assert_true(claim(&f, "bob", 78, "k", 3));
    assert_exact(f.hold.items[0].amount, 1);
    assert_false(claim(&f, "cyd", 79, "k", 1));
    assert_true(release(&f, "bob", 78)); /* nothing is granted while it learns */
    assert_true(next(&f) == 0);
    recount(&f);
    reload(&f, SLOTS ", \"time_to_live\": 1, \"queue\": 9, \"max_wait\": 30}");
    pass(&f, 16 * SECOND - 1);
    update(&f);
    assert_true(next(&f) == 0);
    assert_int_equal(doorman_permits_due(f.permits), f.now + 1);
    pass(&f, 1);
    update(&f);
    assert_true(next(&f) == waits && f.out.granted);
    assert_false(claim(&f, "dan", 80, "k", 1));
    recount(&f);
    stop(&f);
}

/* P16. The limit in shadow has room for one key, so it cannot count the second one. */
TEST(a_claim_that_a_limit_in_shadow_cannot_count_is_believed) {
    fixture f = start(SLOTS "}, {\"name\": \"dark\", \"kind\": \"CONCURRENCY\", \"limit\": 1, "
                            "\"shadow\": true, \"max_keys\": 1, \"overflow\": \"refuse\"}");
    f.options.learns_until = f.now + 16 * SECOND;
    begin(&f);
    assert_true(claim(&f, "ann", 1, "k", 3));
    assert_exact(f.hold.items[0].amount, 3);
    assert_true(claim(&f, "ann", 2, "l", 3));
    assert_exact(f.hold.items[0].amount, 3);
    recount(&f);
    assert_true(release(&f, "ann", 1) && release(&f, "ann", 2));
    recount(&f);
    stop(&f);
}

/* P16, P19. A limit in shadow does not bound claims, and their sum could be too large to count. */
TEST(claims_at_a_limit_in_shadow_are_counted_without_overflow) {
    fixture f = start(SLOTS ", \"shadow\": true}");
    f.options.learns_until = f.now + 16 * SECOND;
    begin(&f);
    uint64_t believed = 0;
    for (uint64_t id = 1; id <= 9; id++) believed += claim(&f, "ann", id, "k", 1e15);
    assert_true(believed > 0);
    for (uint64_t id = 1; id <= 9; id++) (void)release(&f, "ann", id);
    assert_int_equal(info(&f).hold_count, 0);
    recount(&f);
    stop(&f);
}

/* P15, P19. Each key holds as much as a limit can have. A limit of all keys counts their sum. */
TEST(holds_are_counted_again_without_overflow) {
    fixture f = start("{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 1e15}");
    begin(&f);
    uint64_t ids[9];
    for (size_t i = 0; i < COUNT(ids); i++) {
        const char key[2] = {(char)('a' + i), 0};
        assert_true(ask(&f, "ann", i + 1, key, 1e15, 0));
        ids[i] = f.out.hold_id;
    }
    reload(&f, "{\"name\": \"all\", \"kind\": \"CONCURRENCY\", \"limit\": 1e15, "
               "\"per\": \"resource\"}");
    assert_false(ask(&f, "bob", 1, "k", 1, 0));
    for (size_t i = 0; i < COUNT(ids); i++) assert_true(release(&f, "ann", ids[i]));
    assert_true(ask(&f, "bob", 1, "k", 1e15, 0));
    recount(&f);
    stop(&f);
}

TEST(a_limit_that_is_full_at_the_start_grants_at_once) {
    fixture f = start(SLOTS ", \"on_restart\": \"full\"}");
    f.options.learns_until = f.now + 16 * SECOND;
    begin(&f);
    assert_true(ask(&f, "new", 1, "k", 2, 0));
    assert_true(claim(&f, "ann", 77, "k", 3));
    assert_exact(f.hold.items[0].amount, 2);
    stop(&f);
}

/* ---- a changed configuration (P15) ---------------------------------------------------------- */

TEST(a_lowered_limit_grants_nothing_until_it_fits) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t ann = f.out.hold_id;
    uint64_t bob = wait_for(&f, "bob", 1, 1);
    reload(&f, "{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 1, \"queue\": 9, "
               "\"max_wait\": 30}");
    recount(&f);
    assert_exact(used(&f, "k"), 4);
    update(&f);
    assert_true(next(&f) == 0);
    assert_true(renew(&f, "ann", ann));
    assert_true(keep(&f, "ann", ann, 1));
    assert_true(next(&f) == 0);
    assert_true(release(&f, "ann", ann));
    assert_true(next(&f) == bob && f.out.granted);
    reload(&f, "{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 0}");
    assert_true(renew(&f, "bob", f.out.hold_id));
    assert_false(ask(&f, "cyd", 1, "k", 1, 0));
    recount(&f);
    stop(&f);
}

TEST(a_raised_limit_serves_its_queue) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t bob = wait_for(&f, "bob", 1, 2);
    reload(&f, "{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 6, \"queue\": 9, "
               "\"max_wait\": 30}");
    assert_true(doorman_permits_due(f.permits) <= f.now);
    update(&f);
    assert_true(next(&f) == bob && f.out.granted);
    recount(&f);
    stop(&f);
}

TEST(a_new_limit_counts_the_holds_in_force) {
    fixture f = start(SLOTS "}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "a", 3, 0));
    uint64_t ann = f.out.hold_id;
    assert_true(ask(&f, "bob", 1, "b", 2, 0));
    reload(&f, SLOTS "}, {\"name\": \"all\", \"per\": \"template\", \"kind\": \"CONCURRENCY\", "
                     "\"limit\": 6, \"time_to_live\": 3}");
    recount(&f);
    assert_false(ask(&f, "cyd", 1, "c", 2, 0));
    assert_string_equal(f.out.limit, "all");
    assert_true(renew(&f, "ann", ann));
    assert_int_equal(f.hold.expires_in, 3 * SECOND);
    assert_true(keep(&f, "ann", ann, 2));
    assert_true(ask(&f, "cyd", 1, "c", 2, 0));
    reload(&f, "");
    assert_int_equal(info(&f).counter_count, 0);
    assert_true(renew(&f, "ann", ann));
    recount(&f);
    reload(&f, SLOTS "}");
    assert_exact(left(&f, "a"), 2);
    assert_true(release(&f, "ann", ann));
    assert_exact(left(&f, "a"), 4);
    recount(&f);
    stop(&f);
}

TEST(permits_that_no_limit_concerns_any_more_are_granted) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t bob = wait_for(&f, "bob", 1, 2), cyd = wait_for(&f, "cyd", 1, 2);
    reload(&f, "");
    reload(&f, "");
    recount(&f);
    update(&f);
    assert_true(next(&f) == bob && f.out.granted && f.out.hold_id == 0);
    assert_true(next(&f) == cyd && f.out.granted);
    recount(&f);
    stop(&f);
}

TEST(decisions_outlive_a_change_of_the_configuration) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t ann = f.out.hold_id;
    doorman_permit_request request = {
        .client_id = "bob", .request_id = 1, .max_wait = SECOND, .detail = true};
    assert_false(ask_with(&f, &request, "k", 1));
    assert_false(ask(&f, "cyd", 1, "k", 4, SECOND));
    assert_true(keep(&f, "ann", ann, 3));
    pass(&f, SECOND);
    update(&f);
    reload(&f, SLOTS "}");
    assert_true(next(&f) && f.out.granted);
    assert_string_equal(f.out.items[0].limit, "slots");
    assert_int_equal(f.out.detail_count, 1);
    assert_string_equal(f.out.details[0].limit, "slots");
    reload(&f, "");
    assert_true(next(&f) && f.out.reason == DOORMAN_REASON_TIMED_OUT);
    assert_null(f.out.limit);
    stop(&f);
}

/* ---- bounds (P19), lists (P20), shadow ------------------------------------------------------ */

TEST(holds_have_bounds) {
    fixture f = start("{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 100}");
    f.options.client_hold_max = 3;
    f.options.hold_max = 4;
    begin(&f);
    for (uint64_t i = 1; i <= 3; i++) assert_true(ask(&f, "ann", i, "k", 2, 0));
    uint64_t id = f.out.hold_id;
    size_t counters = info(&f).counter_count;
    assert_false(ask(&f, "ann", 4, "other", 1, 0));
    assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_HOLDS);
    assert_int_equal(info(&f).counter_count, counters);
    doorman_hold_request request = {.client_id = "ann", .id = id, .request_id = 9};
    assert_true(call(&f, doorman_permits_transfer, request));
    assert_int_equal(f.hold.reason, DOORMAN_REASON_MAX_HOLDS);
    request.request_id = 1; /* of another hold */
    assert_true(call(&f, doorman_permits_transfer, request));
    assert_int_equal(f.hold.reason, DOORMAN_REASON_REPEATED);
    assert_true(call(&f, doorman_permits_seize, request));
    assert_int_equal(f.hold.reason, DOORMAN_REASON_REPEATED);
    assert_true(ask(&f, "bob", 1, "k", 1, 0));
    assert_false(ask(&f, "cyd", 1, "k", 1, 0));
    assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_HOLDS);
    assert_true(release(&f, "ann", id));
    assert_true(ask(&f, "cyd", 1, "k", 1, 0));
    recount(&f);
    stop(&f);
}

/* P9: a transfer and a permit are different requests, even with the same items. */
TEST(a_permit_with_the_request_id_of_a_transfer_is_refused_as_repeated) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 2, 0));
    assert_true(transfer(&f, "ann", 2, f.out.hold_id, 1));
    for (int seized = 0; seized < 2; seized++) {
        assert_false(ask(&f, "ann", 2, "k", 2, 0));
        assert_int_equal(f.out.reason, DOORMAN_REASON_REPEATED);
        assert_true(seized || seize(&f, "bob", 1, f.hold.id));
    }
    recount(&f);
    stop(&f);
}

/* These are the default bounds. With a sanitizer a million holds would take 8 s, so the bound of a
 * server is lower then. `make matrix` runs this test without a sanitizer. */
TEST(a_client_has_ten_thousand_holds_and_a_server_a_million) {
#ifdef __SANITIZE_ADDRESS__
    enum { OF_CLIENT = 10000, OF_SERVER = 30000 };
#else
    enum { OF_CLIENT = 10000, OF_SERVER = 1000000 };
#endif
    fixture f = start("{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 1e7}");
    begin(&f);
    assert_int_equal(f.permits->options.hold_max, 1000000);
    f.permits->options.hold_max = OF_SERVER;
    for (int i = 0; i < OF_SERVER; i++) {
        char client[16];
        snprintf(client, sizeof client, "c%d", i / OF_CLIENT);
        assert_true(ask(&f, client, (uint64_t)i % OF_CLIENT + 1, "k", 1, 0));
        if (i != OF_CLIENT - 1) continue;
        assert_false(ask(&f, client, OF_CLIENT + 1, "k", 1, 0));
        assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_HOLDS);
    }
    assert_false(ask(&f, "one more", 1, "k", 1, 0));
    assert_int_equal(f.out.reason, DOORMAN_REASON_MAX_HOLDS);
    assert_int_equal(info(&f).hold_count, OF_SERVER);
    pass(&f, 100 * SECOND);
    for (int i = 0; i <= OF_SERVER / 1000; i++) update(&f); /* each update ends at most 1,000 */
    assert_int_equal(info(&f).hold_count, 0);
    assert_true(ask(&f, "one more", 1, "k", 1, 0));
    stop(&f);
}

TEST(the_longest_held_holds_are_listed) {
    fixture f = start("{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 1000}");
    begin(&f);
    for (uint64_t i = 1; i <= 150; i++) {
        assert_true(ask(&f, "ann", i, "k", 2, 0));
        if (i == 1) assert_true(transfer(&f, "ann", 999, f.out.hold_id, 0));
        pass(&f, SECOND / 100);
    }
    doorman_cursor cursor = {0};
    doorman_permits_hold hold;
    doorman_time last = 0;
    size_t count = 0;
    while (doorman_permits_next_hold(f.permits, &cursor, &hold)) {
        assert_true(hold.granted_at >= last && hold.ends_at > hold.granted_at);
        assert_true(count == 0 ? !hold.client_id : strcmp(hold.client_id, "ann") == 0);
        assert_string_equal(hold.resource_id, "r");
        assert_string_equal(hold.key, "k");
        assert_exact(hold.amount, 2);
        assert_int_equal(hold.item_count, 1);
        last = hold.granted_at;
        count++;
    }
    assert_int_equal(count, 100);
    stop(&f);
}

/* P20 */
TEST(the_permits_that_wait_are_listed) {
    fixture f = start(SLOTS ", \"queue\": 1000, \"max_wait\": 60}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    for (uint64_t i = 1; i <= 150; i++) {
        assert_false(ask(&f, "bob", i, "k", 1, (doorman_time)i * SECOND));
        pass(&f, SECOND / 1000);
    }
    doorman_cursor cursor = {0};
    doorman_permits_wait wait;
    doorman_time last = 0;
    int count = 0;
    while (doorman_permits_next_wait(f.permits, &cursor, &wait)) {
        count++;
        assert_true(wait.asked_at > last);
        assert_true(wait.ends_at == wait.asked_at + (count < 60 ? count : 60) * SECOND);
        assert_string_equal(wait.client_id, "bob");
        assert_string_equal(wait.resource_id, "r");
        assert_string_equal(wait.key, "k");
        assert_string_equal(wait.limit, "slots");
        assert_exact(wait.cost, 1);
        assert_int_equal(wait.priority, 1);
        last = wait.asked_at;
    }
    assert_int_equal(count, 100);
    assert_false(doorman_permits_next_wait(f.permits, &cursor, &wait));
    stop(&f);
}

TEST(shadow_never_refuses_and_counts_what_fits) {
    fixture f = start(SLOTS ", \"shadow\": true}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 3, 0));
    assert_true(f.out.hold_id > 0);
    uint64_t ann = f.out.hold_id;
    assert_true(ask(&f, "bob", 1, "k", 3, 0)); /* would be refused, so it is not counted */
    assert_true(f.out.hold_id == 0);
    assert_exact(left(&f, "k"), 1);
    assert_true(release(&f, "ann", ann));
    assert_exact(left(&f, "k"), 4);
    recount(&f);
    stop(&f);
}

/* P18. There is no room for a hold, so the counter that was made for it counts nothing. */
TEST(a_counter_in_shadow_has_its_events_without_room_for_a_hold) {
    fixture f = start(SLOTS ", \"shadow\": true}");
    f.options.hold_max = 1;
    f.options.learns_until = f.now + 16 * SECOND;
    begin(&f);
    assert_true(claim(&f, "ann", 1, "a", 1));
    assert_true(ask(&f, "bob", 1, "b", 1, 0));
    assert_int_equal(f.out.hold_id, 0);
    assert_false(claim(&f, "cat", 2, "c", 1));
    size_t created = f.events[DOORMAN_PERMIT_KEY_CREATED];
    assert_int_equal(info(&f).counter_count, created - f.events[DOORMAN_PERMIT_KEY_REMOVED]);
    stop(&f);
}

TEST(a_reset_does_not_free_what_is_held) {
    fixture f = start(SLOTS "}");
    begin(&f);
    size_t count = 1;
    double charged = 1;
    assert_true(ask(&f, "ann", 1, "k", 3, 0));
    uint64_t ann = f.out.hold_id;
    assert_int_equal(doorman_permits_reset(f.permits, ITEM_OF("r", "k"), NULL, &count, NULL),
                     DOORMAN_OK);
    assert_int_equal(count, 0);
    assert_int_equal(
        doorman_permits_report(f.permits,
                               &(doorman_permit_item){.resource_id = "r", .key = "k", .cost = 5},
                               &charged, NULL, f.now),
        DOORMAN_OK);
    assert_exact(left(&f, "k"), 1); /* a report does not charge it either (P13) */
    assert_true(release(&f, "ann", ann));
    stop(&f);
}

/* ---- many --------------------------------------------------------------------------------- */

/* P7: 10,000 permits wait in one queue, and all of them time out at the same time. */
TEST(many_timeouts_take_many_short_updates) {
    fixture f = start("{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 1, "
                      "\"queue\": 20000, \"max_wait\": 30}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 1, 0));
    size_t bytes = info(&f).bytes;
    for (size_t i = 0; i < 10000; i++) {
        char client[32];
        snprintf(client, sizeof client, "client-%zu", i % 20);
        assert_false(ask(&f, client, 1 + i / 20, "k", 1, 10 * SECOND));
        assert_true(f.out.pending);
    }
    pass(&f, 10 * SECOND);
    size_t updates = 0, last = 10000;
    doorman_time longest = 0;
    while (info(&f).wait_count > 0) {
        assert_true(doorman_permits_due(f.permits) <= f.now && updates < 100);
        struct timespec before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        doorman_permits_update(f.permits, f.now);
        clock_gettime(CLOCK_MONOTONIC, &after);
        doorman_time took = (doorman_time)(after.tv_sec - before.tv_sec) * SECOND +
                            (after.tv_nsec - before.tv_nsec);
        if (took > longest) longest = took;
        assert_true(last - info(&f).wait_count <= 2000);
        last = info(&f).wait_count;
        updates++;
    }
    print_message("%zu updates, the longest took %.2f ms\n", updates, (double)longest / 1e6);
    for (size_t i = 0; i < 10000; i++) {
        assert_true(next(&f) && f.out.reason == DOORMAN_REASON_TIMED_OUT);
    }
    assert_true(next(&f) == 0);
    recount(&f);
    assert_true(info(&f).bytes <= bytes);
    stop(&f);
}

TEST(released_holds_give_their_memory_back) {
    fixture f = start("{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 100000}");
    begin(&f);
    assert_true(ask(&f, "zoe", 1, "k", 1, 0));
    assert_true(release(&f, "zoe", f.out.hold_id));
    update(&f);
    size_t blocks = memory_blocks();
    static uint64_t ids[9000];
    for (size_t i = 0; i < COUNT(ids); i++) {
        char key[32];
        snprintf(key, sizeof key, "key-%zu", i);
        assert_true(ask(&f, "ann", i + 1, key, 1, 0));
        ids[i] = f.out.hold_id;
    }
    for (size_t i = 0; i < COUNT(ids); i++) assert_true(release(&f, "ann", ids[i]));
    for (int i = 0; i < 4; i++) {
        pass(&f, SECOND);
        update(&f);
    }
    assert_int_equal(info(&f).hold_count, 0);
    assert_int_equal(info(&f).counter_count, 0);
    assert_true(memory_blocks() <= blocks + 2 * DOORMAN__TOP_ENTRIES); /* names of frequent keys */
    assert_true(f.permits->holds.ends.capacity <= 1024);
    stop(&f);
}

/* ---- random histories ----------------------------------------------------------------------- */

/* The model has one limit, with one counter for each of three keys. It computes everything from the
 * list of its holds. */
typedef enum model_state { M_NONE, M_WAITS, M_HELD, M_TRANSFER } model_state;

typedef struct model_hold {
    model_state state;
    int client, key, priority;
    uint64_t request_id, id, ticket, arrival, connection;
    uint64_t source; /* of a transfer: the hold, as long as it exists */
    double cost, min, amount;
    doorman_time asked, until; /* the end of the hold or of the wait */
    doorman_time life;         /* that was asked for, 0: that of the limit */
    bool share, spent;
} model_hold;

#define MODEL_HOLDS 64

typedef struct model {
    double limit;
    size_t queue;
    doorman_time life, max_wait, learns_until;
    model_hold holds[MODEL_HOLDS];
    uint64_t arrivals, decided;
    struct {
        uint64_t ticket;
        doorman_reason reason;
        double granted;
        int hold;
    } late[256]; /* decisions that the code must give, in any order */
    size_t late_count;
} model;

static const char *const model_clients[] = {"ann", "bob", "cyd"};
static const char *const model_keys[] = {"a", "b", "c"};

static doorman_time model_end(doorman_time now, doorman_time life) {
    return now + life + doorman__scale(life, 0.05) + 1;
}

static doorman_time model_life(const model *m, doorman_time asked) {
    return asked && asked < m->life ? asked : m->life;
}

static double model_used(const model *m, int key) {
    double sum = 0;
    for (int i = 0; i < MODEL_HOLDS; i++) {
        const model_hold *h = &m->holds[i];
        bool counts = (h->state == M_HELD || h->state == M_TRANSFER) && h->key == key;
        if (counts) sum += h->amount;
    }
    return sum;
}

/* Returns whether a waiting permit comes before another. */
static bool model_before(const model_hold *a, const model_hold *b) {
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->arrival < b->arrival;
}

/* Returns the first waiting permit of a key, or -1. */
static int model_first(const model *m, int key) {
    int first = -1;
    for (int i = 0; i < MODEL_HOLDS; i++) {
        const model_hold *h = &m->holds[i];
        if (h->state != M_WAITS || h->key != key) continue;
        if (first < 0 || model_before(h, &m->holds[first])) first = i;
    }
    return first;
}

static size_t model_waiting(const model *m, int key) {
    size_t count = 0;
    for (int i = 0; i < MODEL_HOLDS; i++) {
        count += m->holds[i].state == M_WAITS && m->holds[i].key == key;
    }
    return count;
}

static int model_find(const model *m, int client, uint64_t request_id) {
    for (int i = 0; i < MODEL_HOLDS; i++) {
        const model_hold *h = &m->holds[i];
        bool found = h->state && h->client == client && h->request_id == request_id && request_id;
        if (found) return i;
    }
    return -1;
}

static int model_free(const model *m) {
    for (int i = 0; i < MODEL_HOLDS; i++) {
        if (!m->holds[i].state) return i;
    }
    return -1;
}

static void model_decide(model *m, int index, doorman_reason reason, double granted) {
    assert_true(m->late_count < COUNT(m->late));
    m->late[m->late_count].ticket = m->holds[index].ticket;
    m->late[m->late_count].reason = reason;
    m->late[m->late_count].granted = granted;
    m->late[m->late_count++].hold = reason ? -1 : index;
    if (reason) m->holds[index].state = M_NONE;
}

/* Removes a hold, and the used transfers that the hold remembers. */
static void model_remove(model *m, int index) {
    uint64_t id = m->holds[index].id;
    m->holds[index].state = M_NONE;
    for (int i = 0; i < MODEL_HOLDS; i++) {
        model_hold *h = &m->holds[i];
        if (h->state != M_TRANSFER || h->source != id) continue;
        h->source = 0;
        if (h->spent) h->state = M_NONE;
    }
}

static void model_spend(model *m, int index) {
    model_hold *h = &m->holds[index];
    h->amount = 0;
    h->spent = true;
    if (!h->source) h->state = M_NONE;
}

/* Returns how much a permit gets if it asks for `cost` and accepts `min`; -1: it is not granted. */
static double model_fit(double room, double cost, double min) {
    if (room < min) return -1;
    double extra = cost - min <= room - min ? cost - min : (double)(int)(room - min);
    return min + extra;
}

/* Grants the first permits of each queue as long as they fit. */
static void model_serve(model *m, doorman_time now) {
    for (int key = 0; key < 3 && now >= m->learns_until; key++) {
        for (int i; (i = model_first(m, key)) >= 0;) {
            model_hold *h = &m->holds[i];
            double got = model_fit(m->limit - model_used(m, key), h->cost, h->min);
            if (got < 0) break;
            h->state = M_HELD;
            h->amount = got;
            h->until = model_end(now, model_life(m, h->life));
            model_decide(m, i, DOORMAN_NO_REASON, got);
        }
    }
}

/* Ends each wait, hold and transfer whose time is over, and serves the queues. */
static void model_settle(model *m, doorman_time now) {
    for (int i = 0; i < MODEL_HOLDS; i++) {
        model_hold *h = &m->holds[i];
        if (!h->state || h->spent || h->until > now) continue;
        if (h->state == M_WAITS) {
            model_decide(m, i, DOORMAN_REASON_TIMED_OUT, 0);
        } else if (h->state == M_HELD) {
            model_remove(m, i);
        } else {
            model_spend(m, i);
        }
    }
    model_serve(m, now);
}

/* Compares the decisions on permits that have waited. */
static void compare_late(fixture *f, model *m) {
    uint64_t ticket = 0;
    doorman_permit out;
    while (doorman_permits_next_decision(f->permits, &ticket, &out)) {
        size_t i = 0;
        while (i < m->late_count && m->late[i].ticket != ticket) i++;
        if (i == m->late_count) fail_msg("ticket %d is not expected", (int)ticket);
        assert_int_equal(out.reason, m->late[i].reason);
        assert_int_equal(out.granted, m->late[i].reason == DOORMAN_NO_REASON);
        if (out.granted) {
            model_hold *h = &m->holds[m->late[i].hold];
            assert_exact(out.items[0].granted, m->late[i].granted);
            assert_int_equal(out.waited, f->now - h->asked);
            assert_int_equal(out.expires_in, model_life(m, h->life));
            h->id = out.hold_id;
            m->decided++;
        }
        m->late[i] = m->late[--m->late_count];
    }
    assert_int_equal(m->late_count, 0);
}

static void compare(fixture *f, model *m) {
    size_t holds = 0, waits = 0;
    compare_late(f, m);
    for (int key = 0; key < 3; key++) {
        double used = model_used(m, key), room = used < m->limit ? m->limit - used : 0;
        assert_exact(left(f, model_keys[key]), room);
    }
    for (int i = 0; i < MODEL_HOLDS; i++) {
        holds += m->holds[i].state == M_HELD || m->holds[i].state == M_TRANSFER;
        waits += m->holds[i].state == M_WAITS;
    }
    assert_int_equal(info(f).hold_count, holds);
    assert_int_equal(info(f).wait_count, waits);
    recount(f);
}

/* Draws a permit. Its request_id is often in use, and then its items are often the same.
 *   known   out: the hold with this request_id; -1: none */
static model_hold random_request(const fixture *f, const model *m, int *known) {
    model_hold h = {.client = (int)random_below(3),
                    .key = (int)random_below(3),
                    .priority = (int)random_below(3),
                    .request_id = 1 + random_below(30),
                    .connection = random_below(3),
                    .cost = (double)(1 + random_below(8)) / 2,
                    .asked = f->now,
                    .life = random_below(2) ? (doorman_time)(1 + random_below(20)) * SECOND : 0,
                    .share = random_below(4) == 0};
    h.min = random_below(2) ? h.cost : h.cost / 2;
    *known = model_find(m, h.client, h.request_id);
    if (*known >= 0 && random_below(4)) {
        h.key = m->holds[*known].key;
        h.cost = m->holds[*known].cost;
        h.min = m->holds[*known].min;
    }
    return h;
}

static void acquire_hold(fixture *f, const model_hold *h, doorman_time max_wait) {
    const doorman_permit_item item = {.resource_id = "r",
                                      .key = model_keys[h->key],
                                      .cost = h->cost,
                                      .has_min = true,
                                      .min = h->min};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .max_wait = max_wait,
                                            .client_id = model_clients[h->client],
                                            .request_id = h->request_id,
                                            .connection = h->connection,
                                            .time_to_live = h->life,
                                            .has_priority = true,
                                            .priority = h->priority,
                                            .share = h->share};
    assert_int_equal(doorman_permits_acquire(f->permits, &request, &f->out, NULL, f->now),
                     DOORMAN_OK);
}

static doorman_time model_wait(const model *m, doorman_time max_wait) {
    return max_wait < m->max_wait ? max_wait : m->max_wait;
}

/* Checks the decision on a permit whose request_id is in use. Returns whether the permit is decided
 * like a new one. */
static bool expect_repeated(fixture *f, model *m, int known, const model_hold *h,
                            doorman_time max_wait) {
    model_hold *old = &m->holds[known];
    bool same = old->key == h->key && doorman__equal(old->cost, h->cost) &&
                doorman__equal(old->min, h->min);
    if (same && old->state == M_HELD && old->source == 0) {
        assert_true(f->out.granted && f->out.hold_id == old->id);
        assert_exact(f->out.items[0].granted, old->amount);
        doorman_time end = model_end(f->now, model_life(m, old->life));
        if (end > old->until) old->until = end;
    } else if (same && old->state == M_WAITS && max_wait == 0) {
        model_decide(m, known, DOORMAN_REASON_REPEATED, 0);
        return true;
    } else if (same && old->state == M_WAITS) {
        assert_true(f->out.pending);
        m->late[m->late_count].ticket = old->ticket;
        m->late[m->late_count].reason = DOORMAN_REASON_REPEATED;
        m->late[m->late_count++].hold = -1;
        old->ticket = f->out.ticket;
        old->asked = f->now;
        old->until = f->now + model_wait(m, max_wait);
        old->life = h->life;
        old->connection = h->connection;
    } else {
        assert_int_equal(f->out.reason, DOORMAN_REASON_REPEATED);
    }
    return false;
}

/* Checks the decision on a permit whose request_id is new: it is granted, waits, or is refused. */
static void expect_new(fixture *f, model *m, model_hold *h, doorman_time max_wait) {
    model_hold *new = &m->holds[model_free(m)];
    int first = model_first(m, h->key);
    h->arrival = ++m->arrivals;
    bool blocked = first >= 0 && !model_before(h, &m->holds[first]);
    bool learns = f->now < m->learns_until;
    double room = blocked || learns ? 0 : m->limit - model_used(m, h->key);
    double got = model_fit(room < 0 ? 0 : room, h->cost, h->min);
    bool waits = model_wait(m, max_wait) > 0 && m->queue > 0 && h->min <= m->limit;
    bool full = model_waiting(m, h->key) >= m->queue;
    if (got >= 0) {
        assert_true(f->out.granted);
        assert_exact(f->out.items[0].granted, got);
        h->state = M_HELD;
        h->id = f->out.hold_id;
        h->amount = got;
        h->until = model_end(f->now, model_life(m, h->life));
        *new = *h;
    } else if (waits && !full) {
        assert_true(f->out.pending);
        h->state = M_WAITS;
        h->ticket = f->out.ticket;
        h->until = f->now + model_wait(m, max_wait);
        *new = *h;
    } else {
        doorman_reason reason = learns ? DOORMAN_REASON_LEARNING : DOORMAN_REASON_CONCURRENCY;
        if (h->min > m->limit) reason = DOORMAN_REASON_MAX_COST;
        if (waits && full) reason = DOORMAN_REASON_QUEUE_FULL;
        assert_int_equal(f->out.reason, reason);
    }
}

/* Asks for a random permit, and checks the decision. */
static void random_ask(fixture *f, model *m) {
    int known = -1;
    model_hold h = random_request(f, m, &known);
    doorman_time max_wait = (doorman_time)random_below(5) * 4 * SECOND;
    if (known < 0 && model_free(m) < 0) return;
    acquire_hold(f, &h, max_wait);
    bool is_new = known < 0 || expect_repeated(f, m, known, &h, max_wait);
    if (is_new) expect_new(f, m, &h, max_wait);
}

/* Returns a random entry in this state; -1: none was found. */
static int random_hold(const model *m, model_state wanted) {
    for (int i = 0; i < 40; i++) {
        int index = (int)random_below(MODEL_HOLDS);
        if (m->holds[index].state == wanted) return index;
    }
    return -1;
}

static void model_share(model *m, int key) {
    for (int i = 0; i < MODEL_HOLDS; i++) {
        model_hold *h = &m->holds[i];
        if (h->state == M_WAITS && h->share && h->key == key) {
            model_decide(m, i, DOORMAN_REASON_SHARED, 0);
        }
    }
}

static void random_release(fixture *f, model *m) {
    int index = random_hold(m, M_HELD);
    if (index < 0) return;
    model_hold *h = &m->holds[index];
    int client = random_below(8) ? h->client : (int)random_below(3);
    double kept = random_below(2) ? 0 : (double)random_below(8) / 2;
    bool works = keep(f, model_clients[client], h->id, kept);
    assert_int_equal(works, client == h->client);
    if (!works) return;
    if (kept < h->amount) h->amount = kept;
    if (!(h->amount > 0)) {
        int key = h->key;
        model_remove(m, index);
        model_share(m, key);
    }
    model_serve(m, f->now);
}

static void random_renew(fixture *f, model *m) {
    int index = random_hold(m, M_HELD);
    if (index < 0) return;
    model_hold *h = &m->holds[index];
    assert_true(renew(f, model_clients[h->client], h->id));
    assert_exact(f->hold.items[0].amount, h->amount);
    doorman_time end = model_end(f->now, model_life(m, h->life));
    if (end > h->until) h->until = end;
}

static void random_transfer(fixture *f, model *m) {
    int index = random_hold(m, M_HELD), room = model_free(m);
    uint64_t request_id = 100 + random_below(1000);
    if (index < 0 || room < 0) return;
    model_hold *h = &m->holds[index], *t = &m->holds[room];
    if (model_find(m, h->client, request_id) >= 0) return;
    double amount = (double)(1 + random_below(6)) / 2;
    if (amount > h->amount) amount = h->amount;
    for (int i = 0; i < 2; i++) { /* and a copy */
        bool again = i == 0 || amount < h->amount;
        if (!again && random_below(2)) break;
        assert_true(transfer(f, model_clients[h->client], request_id, h->id, amount));
        assert_exact(f->hold.items[0].amount, amount);
        if (!again) break;
        if (i > 0) break;
    }
    *t = (model_hold){.state = M_TRANSFER,
                      .client = h->client,
                      .key = h->key,
                      .request_id = request_id,
                      .id = f->hold.id,
                      .source = h->id,
                      .amount = amount,
                      .until = model_end(f->now, m->life)};
    h->amount -= amount;
    if (!(h->amount > 0)) model_remove(m, index);
}

static void random_seize(fixture *f, model *m) {
    int index = random_hold(m, M_TRANSFER), room = model_free(m);
    uint64_t request_id = 2000 + random_below(1000);
    int client = (int)random_below(3);
    if (index < 0 || room < 0 || model_find(m, client, request_id) >= 0) return;
    model_hold *t = &m->holds[index], *h = &m->holds[room];
    bool works = seize(f, model_clients[client], request_id, t->id);
    assert_int_equal(works, !t->spent);
    if (!works) return;
    assert_exact(f->hold.items[0].amount, t->amount);
    *h = (model_hold){.state = M_HELD,
                      .client = client,
                      .key = t->key,
                      .request_id = request_id,
                      .id = f->hold.id,
                      .cost = -1,
                      .amount = t->amount,
                      .until = model_end(f->now, m->life)};
    model_spend(m, index);
}

static void random_cancel(fixture *f, model *m) {
    uint64_t connection = 1 + random_below(2);
    size_t count = 0;
    for (int i = 0; i < MODEL_HOLDS; i++) {
        model_hold *h = &m->holds[i];
        if (h->state != M_WAITS || h->connection != connection) continue;
        h->state = M_NONE;
        count++;
    }
    assert_int_equal(doorman_permits_cancel(f->permits, connection, f->now), count);
    model_serve(m, f->now);
}

static void random_give_up(fixture *f, model *m) {
    int index = random_hold(m, M_WAITS);
    if (index < 0) return;
    const model_hold *h = &m->holds[index];
    assert_true(call(f, doorman_permits_release,
                     (doorman_hold_request){.client_id = model_clients[h->client],
                                            .request_id = h->request_id}));
    model_decide(m, index, DOORMAN_REASON_TIMED_OUT, 0);
    model_serve(m, f->now);
}

/* Claims a random hold, as if a predecessor had granted it. */
static void random_claim(fixture *f, model *m) {
    int client = (int)random_below(3), key = (int)random_below(3), room = model_free(m);
    uint64_t id = 1 + random_below(1000);
    double amount = (double)(1 + random_below(6)) / 2;
    for (int i = 0; i < MODEL_HOLDS; i++) {
        if (m->holds[i].state && m->holds[i].id == id) return;
    }
    if (room < 0) return;
    double free_units = m->limit - model_used(m, key);
    double believed = amount < free_units ? amount : free_units;
    bool works = claim(f, model_clients[client], id, model_keys[key], amount);
    assert_int_equal(works, f->now < m->learns_until && believed > 0);
    if (!works) return;
    assert_exact(f->hold.items[0].amount, believed);
    m->holds[room] = (model_hold){.state = M_HELD,
                                  .client = client,
                                  .key = key,
                                  .id = id,
                                  .amount = believed,
                                  .until = model_end(f->now, m->life)};
}

/* Loads a configuration with random figures. */
static void random_reload(fixture *f, model *m) {
    char text[256];
    m->limit = (double)random_below(9);
    m->queue = random_below(6);
    m->life = (doorman_time)(1 + random_below(20)) * SECOND;
    m->max_wait = (doorman_time)random_below(5) * 4 * SECOND;
    snprintf(text, sizeof text,
             "{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": %g, \"queue\": %zu, "
             "\"time_to_live\": %g, \"max_wait\": %g}",
             m->limit, m->queue, (double)m->life / 1e9, (double)m->max_wait / 1e9);
    if (f->permits) {
        reload(f, text);
    } else {
        f->config = limits_of(text);
        begin(f);
    }
}

static void random_step(fixture *f, model *m) {
    switch (random_below(16)) {
    case 0:
    case 1:
    case 2: random_release(f, m); break;
    case 3:
    case 4:
        for (int i = 0; i < 3; i++) random_renew(f, m);
        break;
    case 5: random_transfer(f, m); break;
    case 6: random_seize(f, m); break;
    case 7: random_claim(f, m); break;
    case 8: random_give_up(f, m); break;
    case 9:
        if (random_below(4) == 0) random_cancel(f, m);
        break;
    default: random_ask(f, m); break;
    }
}

/* Runs a random history. A changed limit may refuse permits that wait. The model does not know
 * that, so the configuration only changes while no permit waits. */
static void random_history(size_t steps, uint64_t *decided) {
    fixture f = {.now = 1000 * SECOND};
    static model m;
    memset(&m, 0, sizeof m);
    f.options.learns_until = m.learns_until = f.now + (doorman_time)random_below(30) * SECOND;
    random_reload(&f, &m);
    for (size_t i = 0; i < steps; i++) {
        if (random_below(3) == 0) pass(&f, (doorman_time)random_below(4 * SECOND));
        update(&f);
        model_settle(&m, f.now);
        compare(&f, &m);
        size_t waits = model_waiting(&m, 0) + model_waiting(&m, 1) + model_waiting(&m, 2);
        if (random_below(40) == 0 && !waits) random_reload(&f, &m);
        random_step(&f, &m);
        update(&f); /* a repeat may wait no longer */
        model_settle(&m, f.now);
        compare(&f, &m);
    }
    *decided += m.decided;
    stop(&f);
}

TEST(random_histories_are_those_of_the_model) {
    uint64_t decided = 0;
    for (int i = 0; i < 100; i++) random_history(300, &decided);
    print_message("%d permits were granted after a wait\n", (int)decided);
    assert_true(decided > 100);
}

/* ---- histories with several limits ---------------------------------------------------------- */

/* These histories have permits with several items, three limits of different scopes, rates, changes
 * of the configuration, and allocations that fail. Each step ends with a recount, and each ticket
 * gets one decision. The units that holders may use by their own clocks never exceed a limit
 * that was never lowered. */
#define MANY 200

typedef struct holder {
    uint64_t id, ticket, request_id;
    double speed; /* of its clock */
    doorman_time sent, until;
    double amounts[2];
    int keys[2];
    size_t item_count;
    bool waits, holds;
} holder;

static const char *const many_limits[] = {
    SLOTS
    ", \"queue\": 5, \"max_wait\": 10}, {\"name\": \"all\", \"per\": \"resource\", "
    "\"kind\": \"CONCURRENCY\", \"limit\": 7, \"queue\": 5, \"max_wait\": 8}, "
    "{\"name\": \"group\", \"per\": \"template\", \"keys\": [\"a\", \"b\"], \"kind\": "
    "\"CONCURRENCY\", \"limit\": 5, \"queue\": 5, \"max_wait\": 9, \"time_to_live\": 7}, "
    "{\"name\": \"rate\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 1, \"size\": 6, \"max_debt\": "
    "2}",
    SLOTS ", \"queue\": 2, \"max_wait\": 3}, {\"name\": \"all\", \"per\": \"resource\", "
          "\"kind\": \"CONCURRENCY\", \"limit\": 7}, {\"name\": \"group\", \"per\": \"template\", "
          "\"keys\": [\"a\", \"b\"], \"kind\": \"CONCURRENCY\", \"limit\": 5, \"time_to_live\": 4}",
};

/* Returns the units of a key (-1: of all keys) that holders may use now by their own clocks. */
static double many_used(const fixture *f, const holder *all, int key) {
    double sum = 0;
    for (int i = 0; i < MANY; i++) {
        for (size_t j = 0; j < all[i].item_count; j++) {
            bool counts = all[i].holds && f->now < all[i].until;
            bool same = key < 0 || all[i].keys[j] == key;
            if (counts && same) sum += all[i].amounts[j];
        }
    }
    return sum;
}

static void many_granted(fixture *f, holder *h, const doorman_permit *out) {
    double local = (double)out->waited / 1.05 + (double)out->expires_in;
    h->waits = false;
    h->holds = out->granted && out->hold_id;
    if (!h->holds) return;
    h->id = out->hold_id;
    h->until = h->sent + (doorman_time)(local / h->speed);
    for (size_t i = 0; i < h->item_count; i++) h->amounts[i] = out->items[i].granted;
    (void)f;
}

static void many_ask(fixture *f, holder *h, uint64_t request_id) {
    doorman_permit_item items[2];
    doorman_permit out;
    size_t count = 1 + random_below(2);
    for (size_t i = 0; i < count; i++) {
        h->keys[i] = (int)random_below(3);
        items[i] = (doorman_permit_item){
            .resource_id = "r", .key = model_keys[h->keys[i]], .cost = (double)random_below(8) / 2};
        items[i].has_min = random_below(2) != 0;
        items[i].min = items[i].has_min ? items[i].cost / 2 : 0;
    }
    const doorman_permit_request request = {.items = items,
                                            .item_count = count,
                                            .max_wait = (doorman_time)random_below(12) * SECOND,
                                            .client_id = "ann",
                                            .request_id = request_id,
                                            .connection = random_below(3),
                                            .has_priority = true,
                                            .priority = (int)random_below(3),
                                            .detail = random_below(2) != 0};
    doorman_status status = doorman_permits_acquire(f->permits, &request, &out, NULL, f->now);
    if (status == DOORMAN_OUT_OF_MEMORY) return;
    assert_int_equal(status, DOORMAN_OK);
    h->item_count = count;
    h->sent = f->now;
    h->request_id = request_id;
    h->speed = 1 + 0.05 * random_unit(); /* clocks differ by at most the drift */
    h->speed = random_below(2) ? 1 / h->speed : h->speed;
    h->waits = out.pending;
    h->ticket = out.ticket;
    if (!out.pending) many_granted(f, h, &out);
}

static void many_decisions(fixture *f, holder *all) {
    uint64_t ticket = 0;
    doorman_permit out;
    while (doorman_permits_next_decision(f->permits, &ticket, &out)) {
        int i = 0;
        while (i < MANY && !(all[i].waits && all[i].ticket == ticket)) i++;
        assert_true(i < MANY);
        assert_false(out.pending);
        assert_true(!out.granted || out.waited + out.wait <= 12 * SECOND);
        many_granted(f, &all[i], &out);
    }
}

static void many_release(fixture *f, holder *h) {
    double amounts[2] = {h->amounts[0] / 2, 0};
    bool part = random_below(2) != 0;
    const doorman_hold_request request = {.client_id = "ann",
                                          .id = h->id,
                                          .amounts = amounts,
                                          .amount_count = part ? h->item_count : 0};
    doorman_hold out;
    doorman_status status = doorman_permits_release(f->permits, &request, &out, NULL, f->now);
    if (status != DOORMAN_OK) return;
    for (size_t i = 0; i < h->item_count; i++) {
        if (!part || out.gone) amounts[i] = 0;
        if (amounts[i] < h->amounts[i]) h->amounts[i] = amounts[i];
    }
    h->holds = !out.gone && out.item_count > 0;
}

static void many_renew(fixture *f, holder *h) {
    const doorman_hold_request request = {.client_id = "ann", .id = h->id};
    doorman_hold out;
    if (doorman_permits_renew(f->permits, &request, &out, NULL, f->now) != DOORMAN_OK) {
        return;
    }
    if (!out.gone) h->until = f->now + (doorman_time)((double)out.expires_in / h->speed);
}

static void many_step(fixture *f, holder *all, uint64_t *requests) {
    holder *h = &all[random_below(MANY)];
    switch (random_below(8)) {
    case 0:
    case 1:
        if (h->holds) many_release(f, h);
        break;
    case 2:
        if (h->holds && f->now < h->until) many_renew(f, h);
        break;
    default:
        if (!h->holds && !h->waits) many_ask(f, h, ++*requests);
        break;
    }
}

TEST(holders_never_use_more_than_a_limit) {
    for (int run = 0; run < 20; run++) {
        fixture f = start(many_limits[0]);
        static holder all[MANY];
        uint64_t requests = 0;
        memset(all, 0, sizeof all);
        begin(&f);
        for (int step = 0; step < 1500; step++) {
            if (random_below(2)) pass(&f, (doorman_time)random_below(SECOND));
            if (random_below(100) == 0) reload(&f, many_limits[random_below(2)]);
            if (random_below(20) == 0) memory_fails_at(1 + random_below(6));
            if (random_below(8) == 0) doorman_permits_update(f.permits, f.now);
            many_step(&f, all, &requests);
            (void)memory_works();
            many_decisions(&f, all);
            recount(&f);
            assert_true(many_used(&f, all, -1) <= 7);
            assert_true(many_used(&f, all, 0) + many_used(&f, all, 1) <= 5);
            for (int key = 0; key < 3; key++) assert_true(many_used(&f, all, key) <= 4);
        }
        pass(&f, 60 * SECOND); /* nobody waits for ever, and nothing is held for ever */
        update(&f);
        update(&f);
        many_decisions(&f, all);
        for (int i = 0; i < MANY; i++) assert_false(all[i].waits);
        assert_int_equal(info(&f).hold_count, 0);
        stop(&f);
    }
}

/* ---- no memory ------------------------------------------------------------------------------ */

/* One call of a story. Returns its status. */
typedef doorman_status (*step)(fixture *f);

static doorman_status step_ask(fixture *f, const char *client, uint64_t request_id,
                               doorman_time max_wait, bool share) {
    const doorman_permit_item item = {.resource_id = client, .key = "k", .cost = 3};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .max_wait = max_wait,
                                            .detail = true,
                                            .client_id = client,
                                            .request_id = request_id,
                                            .connection = max_wait ? 5 : 0,
                                            .share = share};
    return doorman_permits_acquire(f->permits, &request, &f->out, NULL, f->now);
}

static doorman_status step_hold(fixture *f) { return step_ask(f, "ann", 1, 0, false); }
static doorman_status step_wait(fixture *f) { return step_ask(f, "bob", 1, 9 * SECOND, true); }
static doorman_status step_repeat(fixture *f) { return step_ask(f, "bob", 1, 8 * SECOND, true); }
static doorman_status step_wait_more(fixture *f) {
    return step_ask(f, "cyd", 1, 9 * SECOND, false);
}

static doorman_status step_reload(fixture *f) {
    doorman_config *config =
        limits_of("{\"name\": \"slots\", \"per\": \"template\", \"kind\": \"CONCURRENCY\", "
                  "\"limit\": 5, \"queue\": 9, \"max_wait\": 30}, {\"name\": \"more\", \"kind\": "
                  "\"CONCURRENCY\", \"limit\": 9}");
    doorman_status status = doorman_permits_configure(f->permits, config);
    doorman_config *unused = status == DOORMAN_OK ? f->config : config;
    if (status == DOORMAN_OK) f->config = config;
    doorman_config_destroy(unused);
    return status;
}

static doorman_status step_renew(fixture *f) {
    const doorman_hold_request request = {.client_id = "ann",
                                          .id = f->permits->holds.granted.first->id};
    return doorman_permits_renew(f->permits, &request, &f->hold, NULL, f->now);
}

static doorman_status step_transfer(fixture *f) {
    const double amount = 1;
    const doorman_hold_request request = {.client_id = "ann",
                                          .id = f->permits->holds.granted.first->id,
                                          .request_id = 2,
                                          .amounts = &amount,
                                          .amount_count = 1};
    return doorman_permits_transfer(f->permits, &request, &f->hold, NULL, f->now);
}

static doorman_status step_seize(fixture *f) {
    const doorman_hold_request request = {
        .client_id = "dan", .id = f->permits->holds.granted.last->id, .request_id = 1};
    return doorman_permits_seize(f->permits, &request, &f->hold, NULL, f->now);
}

static doorman_status step_release(fixture *f) {
    const doorman_hold_request request = {.client_id = "ann",
                                          .id = f->permits->holds.granted.first->id};
    return doorman_permits_release(f->permits, &request, &f->hold, NULL, f->now);
}

static doorman_status step_learn(fixture *f) {
    const doorman_hold_item item = {"s", "k", 1};
    const doorman_hold_request request = {
        .client_id = "eve", .id = 9, .items = &item, .item_count = 1};
    return doorman_permits_renew(f->permits, &request, &f->hold, NULL, f->now);
}

/* C4: each allocation of each call except the reload fails once. Then the call changes nothing. */
TEST(a_call_without_memory_changes_nothing) {
    static const step story[] = {step_learn,  step_hold,      step_renew,    step_wait,
                                 step_repeat, step_wait,      step_transfer, step_seize,
                                 step_reload, step_wait_more, step_release};
    fixture f = start("{\"name\": \"slots\", \"per\": \"template\", \"kind\": \"CONCURRENCY\", "
                      "\"limit\": 4, \"queue\": 9, \"max_wait\": 30, \"on_restart\": \"full\"}");
    f.options.learns_until = f.now + SECOND;
    size_t blocks = memory_blocks(), failures = 0;
    begin(&f);
    for (size_t i = 0; i < COUNT(story); i++) {
        doorman_status status = DOORMAN_OK;
        size_t nth = 0;
        do {
            doorman_permits_info before = info(&f);
            bool configures = story[i] == step_reload; /* the next test is for it */
            if (!configures) memory_fails_at(++nth);
            status = story[i](&f);
            doorman_permits_info after = info(&f);
            recount(&f);
            if (status == DOORMAN_OK) continue;
            failures++;
            assert_int_equal(status, DOORMAN_OUT_OF_MEMORY);
            assert_int_equal(after.hold_count, before.hold_count);
            assert_int_equal(after.wait_count, before.wait_count);
            assert_int_equal(after.counter_count, before.counter_count);
            assert_true(nth < 100);
        } while (!memory_works());
    }
    assert_true(failures > 20);
    update(&f);
    recount(&f);
    stop(&f);
    assert_true(memory_blocks() <= blocks);
}

/* P15: a call of configure that fails for lack of memory leaves everything as before. */
TEST(a_configuration_without_memory_changes_nothing) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 3, 0));
    assert_true(transfer(&f, "ann", 2, f.out.hold_id, 1));
    (void)wait_for(&f, "bob", 1, 2);
    (void)wait_for(&f, "cyd", 1, 2);
    doorman_config *config = limits_of(many_limits[0]);
    size_t nth = 0;
    doorman_status status = DOORMAN_OK;
    do {
        memory_fails_at(++nth);
        status = doorman_permits_configure(f.permits, config);
        recount(&f);
        if (status == DOORMAN_OK) continue;
        assert_int_equal(status, DOORMAN_OUT_OF_MEMORY);
        assert_true(nth < 100 && f.permits->config == f.config);
        assert_exact(left(&f, "k"), 1);
    } while (!memory_works() && status != DOORMAN_OK);
    assert_true(nth > 5);
    doorman_config_destroy(f.config);
    f.config = config;
    update(&f);
    recount(&f);
    stop(&f);
}

/* Without memory the first permit of a queue keeps waiting, and a later update tries again. */
TEST(a_queue_is_served_when_memory_comes_back) {
    fixture f = start(QUEUE);
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    uint64_t ann = f.out.hold_id, bob = wait_for(&f, "bob", 1, 2);
    assert_true(renew(&f, "ann", ann)); /* makes room for the result */
    memory_fails_from(1);
    assert_true(release(&f, "ann", ann));
    assert_false(memory_works());
    recount(&f);
    assert_true(next(&f) == 0);
    doorman_time due = doorman_permits_due(f.permits);
    assert_true(due > f.now && due <= f.now + SECOND);
    f.now = due;
    update(&f);
    assert_true(next(&f) == bob && f.out.granted);
    stop(&f);
}

/* ---- messages ------------------------------------------------------------------------------- */

/* Sends a message, in which ' stands for ". The caller frees the reply. */
static doorman_buffer reply_to(doorman_server *server, const char *message, doorman_time now) {
    doorman_buffer reply = {NULL, 0, 0};
    char text[512];
    size_t bytes = 0;
    for (const char *at = message; *at; at++) text[bytes++] = *at == '\'' ? '"' : *at;
    (void)doorman_json_serve(server, text, bytes, &reply, 0, now);
    return reply;
}

static void serve(doorman_server *server, const char *message, const char *expected,
                  doorman_time now) {
    doorman_buffer reply = reply_to(server, message, now);
    for (char *at = reply.text; *at; at++) *at = *at == '"' ? '\'' : *at;
    if (strcmp(reply.text, expected) != 0) fail_msg("%s\n%s\n%s", message, reply.text, expected);
    doorman_buffer_uninit(&reply);
}

/* Sends a message. Returns the id behind `name` in the reply. */
static uint64_t serve_id(doorman_server *server, const char *message, const char *name,
                         doorman_time now) {
    doorman_buffer reply = reply_to(server, message, now);
    const char *at = strstr(reply.text, name);
    if (!at) fail_msg("%s\n%s", message, reply.text);
    uint64_t id = at ? strtoull(at + strlen(name), NULL, 10) : 0;
    doorman_buffer_uninit(&reply);
    return id;
}

static doorman_server *server_of(doorman_config *config, doorman_time now) {
    doorman_server *server = NULL;
    const doorman_server_options options = {.node = "root", .config = config, .seed = {1, 2}};
    const doorman_mastership master = {.address = "here", .until = DOORMAN_NEVER};
    assert_int_equal(doorman_server_create(&server, &options, NULL, now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(server, &master, now), DOORMAN_OK);
    return server;
}

TEST(holds_are_asked_for_and_renewed_by_messages) {
    doorman_config *config = limits_of(SLOTS ", \"on_restart\": \"full\"}");
    doorman_time now = 1000 * SECOND;
    doorman_server *server = server_of(config, now);
    char text[256];
    uint64_t id = serve_id(server,
                           "{'acquire': {'client_id': 'ann', 'permit': [{'request_id': 7, "
                           "'time_to_live': 10, 'priority': 2, 'item': [{'resource_id': 'r', "
                           "'key': 'k', 'cost': 3}]}]}}",
                           "\"hold\":{\"id\":", now);
    assert_true(id > 0);
    snprintf(text, sizeof text,
             "{'renew': {'client_id': 'ann', 'entry': [{'id': %llu}, {'id': 1}]}}",
             (unsigned long long)id);
    serve(server, text, "{'renew':{'entry':[{'expires_in':10,'amount':[3]},{'gone':true}]}}", now);
    snprintf(text, sizeof text,
             "{'transfer': {'client_id': 'ann', 'entry': [{'id': %llu, 'request_id': 8, 'amount': "
             "[1]}]}}",
             (unsigned long long)id);
    uint64_t moved = serve_id(server, text, "\"transfer_id\":", now);
    snprintf(text, sizeof text,
             "{'seize': {'client_id': 'bob', 'entry': [{'transfer_id': %llu, 'request_id': 1, "
             "'time_to_live': 4}]}}",
             (unsigned long long)moved);
    assert_true(serve_id(server, text, "\"id\":", now) > 0);
    snprintf(text, sizeof text,
             "{'release': {'client_id': 'ann', 'entry': [{'id': %llu, 'keep': [1]}, "
             "{'request_id': 7}, {'request_id': 7}]}}",
             (unsigned long long)id);
    serve(server, text, "{'release':{'entry':[{'amount':[1]},{'amount':[]},{'gone':true}]}}", now);
    serve(
        server, "{'release': {'client_id': 'ann', 'entry': [{'keep': [1]}]}}",
        "{'error':{'code':'INVALID_ARGUMENT','message':'release.entry[0].id: exactly one of id and "
        "request_id must be given'}}",
        now);
    serve(server, "{'acquire': {'client_id': 'ann', 'permit': [{'item': [{'resource_id': 'r'}]}]}}",
          "{'error':{'code':'INVALID_ARGUMENT','message':'acquire.permit[0].request_id: is needed "
          "for a limit of kind CONCURRENCY'}}",
          now);
    doorman_server_destroy(server);
    doorman_config_destroy(config);
}

/* Without time_to_live a hold lasts as long as its limits allow. A time_to_live of 0 is refused,
 * because the library reads 0 as no time_to_live. */
TEST(a_time_to_live_of_0_is_an_error_in_a_message) {
    doorman_config *config = limits_of(SLOTS ", \"on_restart\": \"full\"}");
    doorman_time now = 1000 * SECOND;
    doorman_server *server = server_of(config, now);
    static const char *const messages[][2] = {
        {"acquire", "'permit': [{'request_id': 7, 'item': [{'resource_id': 'r', 'cost': 1}],"},
        {"renew", "'entry': [{'id': 1,"},
        {"transfer", "'entry': [{'id': 1, 'request_id': 2,"},
        {"seize", "'entry': [{'transfer_id': 1, 'request_id': 2,"}};
    for (size_t i = 0; i < COUNT(messages); i++) {
        char text[256], expected[256];
        snprintf(text, sizeof text, "{'%s': {'client_id': 'ann', %s 'time_to_live': 0}]}}",
                 messages[i][0], messages[i][1]);
        snprintf(expected, sizeof expected,
                 "{'error':{'code':'INVALID_ARGUMENT','message':'%s.%s[0].time_to_live: must be "
                 "more than 0 and at most 1e8 seconds'}}",
                 messages[i][0], i == 0 ? "permit" : "entry");
        serve(server, text, expected, now);
    }
    doorman_server_destroy(server);
    doorman_config_destroy(config);
}

/* Any client that knows the id of a transfer can seize it. A client that asks for many leases sees
 * many ids, and none of them is the id of a hold or of a transfer. */
TEST(the_ids_of_leases_tell_nothing_about_transfers) {
    enum { COUNT = 20 };
    const char resources[] = "{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 100}, "
                             "{\"identifier_glob\": \"r\", \"limits\": [" SLOTS "}]}]}";
    doorman_config *config = NULL;
    assert_int_equal(doorman_json_config(&config, resources, strlen(resources), NULL), DOORMAN_OK);
    doorman_time now = 1000 * SECOND;
    doorman_server *server = server_of(config, now);
    char text[256];
    uint64_t leases[COUNT];
    now += 1000 * SECOND; /* nothing is left to learn */
    for (int i = 0; i < COUNT; i++) {
        snprintf(text, sizeof text,
                 "{'get_capacity': {'client_id': 'eve-%d', 'resource': [{'resource_id': 'db', "
                 "'wants': 1}]}}",
                 i);
        leases[i] = serve_id(server, text, "\"gets\":{\"id\":", now);
    }
    uint64_t id = serve_id(server,
                           "{'acquire': {'client_id': 'ann', 'permit': [{'request_id': 1, 'item': "
                           "[{'resource_id': 'r', 'key': 'k'}]}]}}",
                           "\"hold\":{\"id\":", now);
    snprintf(text, sizeof text,
             "{'transfer': {'client_id': 'ann', 'entry': [{'id': %llu, 'request_id': 2}]}}",
             (unsigned long long)id);
    uint64_t moved = serve_id(server, text, "\"transfer_id\":", now);
    for (int i = 0; i < COUNT; i++) assert_true(leases[i] != id && leases[i] != moved);
    doorman_server_destroy(server);
    doorman_config_destroy(config);
}

/* A request that the library writes is read back the same, and so is a response. */
TEST(messages_on_holds_are_read_back_the_same) {
    const double amounts[] = {1, 0.5};
    const doorman_hold_item items[] = {{"r", "k", 2}, {"s", NULL, 1}};
    const doorman_hold_request holds[] = {{.id = 5,
                                           .request_id = 6,
                                           .time_to_live = 3 * SECOND,
                                           .amounts = amounts,
                                           .amount_count = 2},
                                          {.id = 7, .items = items, .item_count = 2}};
    static const doorman_method methods[] = {DOORMAN_TRANSFER, DOORMAN_RENEW};
    for (size_t i = 0; i < COUNT(methods); i++) {
        const doorman_request request = {
            .method = methods[i], .holder_id = "ann", .holds = &holds[i], .hold_count = 1};
        doorman_buffer text = {NULL, 0, 0};
        doorman_json_exchange exchange = {.reply = {.text = NULL}};
        assert_int_equal(doorman_json_request(&request, &text), DOORMAN_OK);
        assert_int_equal(doorman_json_exchange_read(&exchange, NULL, text.text, strlen(text.text)),
                         DOORMAN_OK);
        assert_int_equal(exchange.request.hold_count, 1);
        const doorman_hold_request *read = &exchange.request.holds[0];
        assert_true(read->id == holds[i].id && read->request_id == holds[i].request_id);
        assert_int_equal(read->time_to_live, holds[i].time_to_live);
        assert_int_equal(read->amount_count, holds[i].amount_count);
        assert_int_equal(read->item_count, holds[i].item_count);
        if (i == 0) assert_exact(read->amounts[1], 0.5);
        if (i == 1) assert_string_equal(read->items[1].resource_id, "s");
        doorman_json_exchange_uninit(&exchange);
        doorman_buffer_uninit(&text);
    }
}

/* P16: after each victory a server learns the holds of its predecessor, for the longest time to
 * live of the limit so far, plus the drift. */
TEST(a_server_learns_holds_after_a_victory) {
    doorman_config *config = limits_of(SLOTS ", \"time_to_live\": 20}");
    doorman_config *shorter = limits_of(SLOTS ", \"time_to_live\": 1}");
    doorman_time now = 1000 * SECOND;
    doorman_server *server = server_of(config, now);
    doorman_permits_info read;
    doorman_permits_read(doorman_server_permits(server), &read);
    assert_int_equal(read.learns_until, now + 21 * SECOND + 1);
    assert_int_equal(doorman_server_configure(server, shorter, now), DOORMAN_OK);
    const doorman_mastership lost = {.address = NULL};
    const doorman_mastership won = {
        .address = "here", .until = DOORMAN_NEVER, .predecessor_gone = now + SECOND};
    assert_int_equal(doorman_server_set_master(server, &lost, now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(server, &won, now + 2 * SECOND), DOORMAN_OK);
    doorman_permits_read(doorman_server_permits(server), &read);
    assert_int_equal(read.learns_until, now + 22 * SECOND + 1);
    serve(server,
          "{'renew': {'client_id': 'ann', 'entry': [{'id': 9, 'item': [{'resource_id': 'r', 'key': "
          "'k', 'amount': 9}]}]}}",
          "{'renew':{'entry':[{'expires_in':1,'amount':[4]}]}}", now + 2 * SECOND);
    doorman_server_destroy(server);
    doorman_config_destroy(config);
    doorman_config_destroy(shorter);
}

#define TWO_LIVES(name, fast, slow)                                                                \
    "{\"resources\": [{\"identifier_glob\": \"fast\", \"limits\": [{\"name\": \"" name "\", "      \
    "\"kind\": \"CONCURRENCY\", \"limit\": 4, \"queue\": 9, \"max_wait\": 60, "                    \
    "\"time_to_live\": " #fast                                                                     \
    "}]}, {\"identifier_glob\": \"slow\", \"limits\": [{\"name\": \"s\", \"kind\": "               \
    "\"CONCURRENCY\", \"limit\": 4, \"time_to_live\": " #slow "}]}]}"

static doorman_config *two_lives(const char *text) {
    doorman_config *config = NULL;
    assert_int_equal(doorman_json_config(&config, text, strlen(text), NULL), DOORMAN_OK);
    return config;
}

/* Sends a permit on a resource to a server. Returns the reason of its refusal, or 0. */
static doorman_reason asks_server(doorman_server *server, const char *resource_id,
                                  uint64_t request_id, doorman_time now) {
    const doorman_permit_item item = {.resource_id = resource_id, .cost = 1};
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .client_id = "new", .request_id = request_id};
    doorman_permit out = {.pending = false};
    assert_int_equal(
        doorman_permits_acquire(doorman_server_permits(server), &request, &out, NULL, now),
        DOORMAN_OK);
    return out.reason;
}

/* Returns whether a server believes that a hold of one unit of each resource is in force. */
static bool believes(doorman_server *server, uint64_t id, const char *one, const char *other,
                     doorman_time now) {
    const doorman_hold_item items[] = {{.resource_id = one, .amount = 1},
                                       {.resource_id = other, .amount = 1}};
    const doorman_hold_request request = {
        .client_id = "ann", .id = id, .items = items, .item_count = other ? 2 : 1};
    doorman_hold out = {.gone = false};
    assert_int_equal(
        doorman_permits_renew(doorman_server_permits(server), &request, &out, NULL, now),
        DOORMAN_OK);
    return !out.gone;
}

/* P16: a template whose holds last for an hour does not block other templates for so long. */
TEST(each_limit_learns_for_its_own_longest_time_to_live) {
    doorman_config *config = two_lives(TWO_LIVES("f", 20, 3600));
    doorman_time now = 1000 * SECOND, fast = now + 21 * SECOND + 1, slow = now + 3780 * SECOND + 1;
    doorman_server *server = server_of(config, now);
    assert_int_equal(asks_server(server, "fast", 1, fast - 1), DOORMAN_REASON_LEARNING);
    assert_true(believes(server, 1, "fast", NULL, fast - 1));
    assert_true(believes(server, 2, "fast", "slow", fast - 1));
    assert_int_equal(asks_server(server, "fast", 2, fast), DOORMAN_NO_REASON);
    assert_false(believes(server, 3, "fast", NULL, fast));
    assert_false(believes(server, 4, "fast", "slow", fast)); /* it would end with "fast" */
    assert_true(believes(server, 5, "slow", NULL, fast));
    assert_int_equal(asks_server(server, "slow", 3, slow - 1), DOORMAN_REASON_LEARNING);
    assert_true(believes(server, 6, "slow", NULL, slow - 1));
    assert_false(believes(server, 7, "slow", NULL, slow));
    assert_int_equal(asks_server(server, "slow", 4, slow), DOORMAN_NO_REASON);
    doorman_server_destroy(server);
    doorman_config_destroy(config);
}

/* P16: the queue of a limit is served as soon as this limit has learned. */
TEST(a_permit_that_waits_is_granted_when_its_limit_has_learned) {
    doorman_config *config = two_lives(TWO_LIVES("f", 20, 3600));
    doorman_time now = 1000 * SECOND, fast = now + 21 * SECOND + 1;
    doorman_server *server = server_of(config, now);
    doorman_permits *permits = doorman_server_permits(server);
    const doorman_permit_item item = {.resource_id = "fast", .cost = 1};
    const doorman_permit_request request = {.items = &item,
                                            .item_count = 1,
                                            .client_id = "new",
                                            .request_id = 1,
                                            .max_wait = 60 * SECOND};
    doorman_permit out = {.granted = false};
    assert_int_equal(doorman_permits_acquire(permits, &request, &out, NULL, now), DOORMAN_OK);
    assert_true(out.pending);
    uint64_t ticket = out.ticket;
    doorman_permits_update(permits, fast - 1);
    assert_int_equal(doorman_permits_due(permits), fast);
    doorman_permits_update(permits, fast);
    assert_true(doorman_permits_next_decision(permits, &ticket, &out) && out.granted);
    doorman_server_destroy(server);
    doorman_config_destroy(config);
}

static void loses_and_wins(doorman_server *server, doorman_time gone, doorman_time now) {
    const doorman_mastership lost = {.address = NULL};
    const doorman_mastership won = {
        .address = "here", .until = DOORMAN_NEVER, .predecessor_gone = gone};
    assert_int_equal(doorman_server_set_master(server, &lost, now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(server, &won, now), DOORMAN_OK);
}

/* P16: after a change, a limit may count holds of a limit that it has replaced. */
TEST(after_a_change_all_limits_learn_for_the_longest_time_to_live) {
    doorman_config *config = two_lives(TWO_LIVES("f", 20, 3600));
    doorman_config *other = two_lives(TWO_LIVES("g", 20, 20));
    doorman_time now = 1000 * SECOND, hour = 3780 * SECOND + 1, short_ = 21 * SECOND + 1;
    doorman_server *server = server_of(config, now);
    now += hour;
    assert_int_equal(asks_server(server, "fast", 1, now), DOORMAN_NO_REASON);
    assert_int_equal(doorman_server_configure(server, other, now), DOORMAN_OK);
    assert_int_equal(asks_server(server, "fast", 2, now), DOORMAN_NO_REASON); /* all is known */
    loses_and_wins(server, now + hour - 1, now + hour - 1);
    assert_int_equal(asks_server(server, "fast", 3, now + 2 * hour - 2), DOORMAN_REASON_LEARNING);
    assert_int_equal(asks_server(server, "fast", 4, now + 2 * hour - 1), DOORMAN_NO_REASON);
    now += 2 * hour;
    loses_and_wins(server, now, now);
    assert_int_equal(asks_server(server, "fast", 5, now + short_), DOORMAN_NO_REASON);
    assert_int_equal(asks_server(server, "slow", 6, now + short_), DOORMAN_REASON_LEARNING);
    assert_int_equal(doorman_server_configure(server, config, now + short_), DOORMAN_OK);
    assert_int_equal(asks_server(server, "fast", 7, now + short_), DOORMAN_REASON_LEARNING);
    assert_int_equal(asks_server(server, "fast", 8, now + hour), DOORMAN_NO_REASON);
    doorman_server_destroy(server);
    doorman_config_destroy(config);
    doorman_config_destroy(other);
}

/* P16: a limit that does not learn has holds too. A limit of a later configuration learns them. */
TEST(holds_of_a_limit_that_does_not_learn_are_learned) {
    doorman_config *full = limits_of(SLOTS ", \"time_to_live\": 20, \"on_restart\": \"full\"}");
    doorman_config *learns = limits_of(SLOTS ", \"time_to_live\": 1}");
    doorman_time now = 1000 * SECOND;
    doorman_server *server = server_of(full, now);
    doorman_permits_info read;
    assert_int_equal(doorman_server_configure(server, learns, now), DOORMAN_OK);
    const doorman_mastership lost = {.address = NULL};
    const doorman_mastership won = {
        .address = "here", .until = DOORMAN_NEVER, .predecessor_gone = now + SECOND};
    assert_int_equal(doorman_server_set_master(server, &lost, now), DOORMAN_OK);
    assert_int_equal(doorman_server_set_master(server, &won, now + 2 * SECOND), DOORMAN_OK);
    doorman_permits_read(doorman_server_permits(server), &read);
    assert_int_equal(read.learns_until, now + 22 * SECOND + 1);
    doorman_server_destroy(server);
    doorman_config_destroy(full);
    doorman_config_destroy(learns);
}

/* ---- how much one call does ----------------------------------------------------------------- */

enum { CROWD = 100000, CROWD_CLIENTS = 10 };

#define CROWD_LIMITS(limit)                                                                        \
    "{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": " limit                           \
    ", \"time_to_live\": 10, "                                                                     \
    "\"queue\": 10000, \"max_wait\": 5}"

static void take_crowd(fixture *f) {
    for (uint64_t i = 0; i < CROWD; i++) {
        char client[] = "client-0";
        client[7] = (char)('0' + i % CROWD_CLIENTS);
        assert_true(ask(f, client, i + 1, "k", 1, 0));
    }
    assert_int_equal(info(f).hold_count, CROWD);
}

static void start_crowd(fixture *f) {
    *f = start(CROWD_LIMITS("100000"));
    begin(f);
    take_crowd(f);
}

TEST(an_update_ends_at_most_a_thousand_holds) {
    fixture f;
    start_crowd(&f);
    pass(&f, 11 * SECOND);
    for (size_t left_over = CROWD; left_over; left_over -= 1000) {
        assert_true(doorman_permits_due(f.permits) <= f.now);
        doorman_permits_update(f.permits, f.now);
        assert_int_equal(info(&f).hold_count, left_over - 1000);
    }
    assert_true(doorman_permits_due(f.permits) > f.now);
    assert_int_equal(f.events[DOORMAN_PERMIT_HOLD_EXPIRED], CROWD);
    stop(&f);
}

TEST(an_acquire_ends_a_bounded_number_of_holds) {
    fixture f;
    start_crowd(&f);
    pass(&f, 11 * SECOND);
    assert_true(ask(&f, "late", 1, "k", 1, 0));
    assert_int_equal(info(&f).hold_count, CROWD - 256 + 1);
    assert_false(ask(&f, "late", 2, "k", 50000, 0));
    assert_int_equal(f.out.reason, DOORMAN_REASON_CONCURRENCY);
    assert_int_equal(info(&f).hold_count, CROWD + 1 - 2 * 256 - 16 * 256);
    update(&f);
    assert_true(ask(&f, "late", 3, "k", 50000, 0));
    stop(&f);
}

TEST(an_acquire_sees_the_units_of_4352_holds_that_have_ended) {
    const uint64_t holds = 256 + 16 * 256;
    fixture f = start("{\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 5000, "
                      "\"time_to_live\": 10}");
    begin(&f);
    for (uint64_t i = 1; i < holds; i++) assert_true(ask(&f, "early", i, "other", 1, 0));
    assert_true(ask(&f, "early", holds, "k", 5000, 0));
    assert_false(ask(&f, "late", 1, "k", 1, 0));
    pass(&f, 11 * SECOND);
    assert_true(ask(&f, "late", 2, "k", 1, 0));
    stop(&f);
}

/* ---- ended by an administrator (E8) --------------------------------------------------------- */

TEST(an_administrator_ends_a_hold_and_the_first_that_waits_is_granted) {
    fixture f = start(QUEUE);
    doorman_permits_hold shown;
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    const uint64_t id = f.out.hold_id;
    assert_false(ask(&f, "bob", 2, "k", 3, 20 * SECOND));
    const uint64_t ticket = f.out.ticket;
    assert_true(doorman_permits_find_hold(f.permits, id, &shown));
    assert_string_equal(shown.client_id, "ann");
    assert_string_equal(shown.resource_id, "r");
    assert_string_equal(shown.key, "k");
    assert_exact(shown.amount, 4);
    assert_false(doorman_permits_find_hold(f.permits, id + 1, &shown));
    assert_false(doorman_permits_end_hold(f.permits, id + 1, f.now));
    assert_false(doorman_permits_end_hold(f.permits, 0, f.now));
    assert_true(doorman_permits_end_hold(f.permits, id, f.now));
    recount(&f);
    assert_int_equal(next(&f), ticket);
    assert_true(f.out.granted);
    assert_exact(used(&f, "k"), 3);
    assert_int_equal(f.events[DOORMAN_PERMIT_HOLD_EXPIRED], 1);
    assert_false(renew(&f, "ann", id));
    assert_false(release(&f, "ann", id));
    assert_false(doorman_permits_end_hold(f.permits, id, f.now));
    assert_exact(used(&f, "k"), 3);
    recount(&f);
    stop(&f);
}

TEST(an_administrator_ends_a_transfer) {
    fixture f = start(SLOTS "}");
    begin(&f);
    assert_true(ask(&f, "ann", 1, "k", 4, 0));
    const uint64_t source = f.out.hold_id;
    assert_true(call(&f, doorman_permits_transfer,
                     (doorman_hold_request){.client_id = "ann", .id = source, .request_id = 2}));
    const uint64_t id = f.hold.id;
    assert_true(doorman_permits_end_hold(f.permits, id, f.now));
    assert_exact(used(&f, "k"), 0);
    assert_false(call(&f, doorman_permits_seize,
                      (doorman_hold_request){.client_id = "bob", .id = id, .request_id = 3}));
    recount(&f);
    stop(&f);
}

/* The 100th allocation would fail, so the reload makes fewer than 100. */
TEST(a_reload_allocates_nothing_for_each_hold) {
    fixture f;
    start_crowd(&f);
    doorman_config *none = limits_of(CROWD_LIMITS("0"));
    memory_fails_at(100);
    assert_int_equal(doorman_permits_configure(f.permits, none), DOORMAN_OK);
    memory_works();
    doorman_config_destroy(f.config);
    f.config = none;
    assert_int_equal(info(&f).hold_count, CROWD);
    assert_false(ask(&f, "late", 1, "k", 1, 0));
    pass(&f, 11 * SECOND);
    update(&f);
    assert_int_equal(info(&f).hold_count, 0);
    assert_false(ask(&f, "late", 2, "k", 1, 0));
    reload(&f, CROWD_LIMITS("1"));
    assert_true(ask(&f, "late", 3, "k", 1, 0));
    stop(&f);
}
