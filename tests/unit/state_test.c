/* State that lasts: rows of counters and bans, which a store keeps over a restart (P27, P28). The
 * store of these tests is a list of rows. */
#include "unit.h"

#include <math.h>
#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define SECOND DOORMAN_SECOND
#define HOUR (3600 * SECOND)
#define DAY (24 * HOUR)
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define ROW_MAX DOORMAN_PERMIT_ROW_BYTES_MAX

static const doorman_time noon = INT64_C(1767225600) * SECOND + 12 * HOUR; /* 1 January 2026 */

/* ---- a store -------------------------------------------------------------------------------- */

struct stored_row {
    size_t bytes;
    unsigned char row[ROW_MAX];
};

struct store {
    struct stored_row *rows;
    size_t count, capacity;
};

static doorman_permit_row header_of(const unsigned char *row, size_t bytes) {
    doorman_permit_row header;
    doorman_error error = {""};
    doorman_status status = doorman_permit_row_read(row, bytes, &header, &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return header;
}

/* Returns the position of the row with the identity of another, or `count`. */
static size_t store_find(const struct store *store, const doorman_permit_row *wanted) {
    size_t i = 0;
    for (; i < store->count; i++) {
        doorman_permit_row own = header_of(store->rows[i].row, store->rows[i].bytes);
        if (own.identity_bytes == wanted->identity_bytes &&
            memcmp(own.identity, wanted->identity, own.identity_bytes) == 0) {
            break;
        }
    }
    return i;
}

static void store_write(struct store *store, const unsigned char *row, size_t bytes) {
    const doorman_permit_row header = header_of(row, bytes);
    size_t at = store_find(store, &header);
    if (header.removed) {
        if (at < store->count) store->rows[at] = store->rows[--store->count];
        return;
    }
    if (at == store->capacity) {
        store->capacity = store->capacity ? 2 * store->capacity : 16;
        store->rows =
            (struct stored_row *)realloc(store->rows, store->capacity * sizeof *store->rows);
        assert_non_null(store->rows);
    }
    if (at == store->count) store->count++;
    store->rows[at].bytes = bytes;
    memcpy(store->rows[at].row, row, bytes);
}

/* ---- a process with permits ----------------------------------------------------------------- */

struct process {
    doorman_config *config;
    doorman_permits *permits;
    struct store store;
    doorman_time now, epoch; /* `epoch` is what the clock of the wall says */
    doorman_permit out;
};

static doorman_config *limits_of(const char *limits) {
    static char text[8192];
    doorman_config *config = NULL;
    doorman_error error = {""};
    snprintf(text, sizeof text, "{\"resources\": [{\"identifier_glob\": \"*\", \"limits\": [%s]}]}",
             limits);
    doorman_status status = doorman_json_config(&config, text, strlen(text), &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return config;
}

static void process_start(struct process *p) {
    const doorman_permits_options options = {.config = p->config, .seed = {1, random_bits() | 1}};
    doorman_status status = doorman_permits_create(&p->permits, &options, NULL, p->now);
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
    free(p->store.rows);
}

static void pass(struct process *p, doorman_time time) {
    p->now += time;
    p->epoch += time;
    doorman_permits_set_epoch(p->permits, p->epoch, p->now);
}

/* Writes all changes. Returns how many there were. */
static size_t process_write(struct process *p) {
    unsigned char row[ROW_MAX];
    size_t count = 0;
    for (size_t bytes; (bytes = doorman_permits_next_changed(p->permits, row, p->now)); count++) {
        store_write(&p->store, row, bytes);
        assert_true(count < 1000000);
    }
    doorman_permits_info info;
    doorman_permits_read(p->permits, &info);
    assert_int_equal(info.changed_count, 0);
    return count;
}

/* Returns how many rows were not restored, because no limit is there for them. */
static size_t process_read(struct process *p) {
    size_t unknown = 0;
    for (size_t i = 0; i < p->store.count; i++) {
        const struct stored_row *row = &p->store.rows[i];
        doorman_error error = {""};
        doorman_status status =
            doorman_permits_restore(p->permits, row->row, row->bytes, &error, p->now);
        if (status != DOORMAN_OK && status != DOORMAN_NOT_FOUND) fail_msg("%s", error.text);
        unknown += status == DOORMAN_NOT_FOUND;
    }
    return unknown;
}

/* Stops without a word, and starts after some time. The clock `now` of the machine begins again. */
static void process_crash(struct process *p, doorman_time down) {
    doorman_permits_destroy(p->permits);
    p->now = (doorman_time)random_below(100) * SECOND;
    p->epoch += down;
    process_start(p);
    process_read(p);
}

static void process_restart(struct process *p, doorman_time down) {
    process_write(p);
    process_crash(p, down);
}

static bool take(struct process *p, const char *key, double cost) {
    const doorman_permit_item item = {.resource_id = "r", .key = key, .cost = cost};
    const doorman_permit_request request = {.items = &item, .item_count = 1, .detail = true};
    doorman_error error = {""};
    doorman_status status = doorman_permits_acquire(p->permits, &request, &p->out, &error, p->now);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return p->out.granted;
}

/* Returns how many units are left of the first limit. */
static double left(struct process *p, const char *key) {
    doorman_status status = doorman_permits_inspect(p->permits, "r", key, &p->out, NULL, p->now);
    assert_int_equal(status, DOORMAN_OK);
    assert_true(p->out.detail_count > 0);
    return p->out.details[0].remaining;
}

static void reload(struct process *p, const char *limits) {
    doorman_config *next = limits_of(limits);
    assert_int_equal(doorman_permits_configure(p->permits, next), DOORMAN_OK);
    doorman_config_destroy(p->config);
    p->config = next;
}

#define QUOTA "{\"name\": \"q\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": \"month\"}"
#define BUCKET "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"size\": 100, \"rate\": 0.5}"
#define SLIDING "{\"name\": \"s\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 100, \"window\": 1600}"
#define TIERS                                                                                      \
    "{\"name\": \"t\", \"kind\": \"TIERS\", \"tiers\": [{\"limit\": 10, \"window\": 60, "          \
    "\"active\": 60}, {\"limit\": 30, \"window\": 160, \"active\": 300, \"cooldown\": 600}]}"

/* ---- what was used before a stop is used after it ------------------------------------------- */

TEST(a_quota_of_a_month_is_used_after_a_restart) {
    struct process p = process_of(QUOTA);
    assert_true(take(&p, "acme", 60));
    process_restart(&p, 10 * SECOND);
    assert_exact(left(&p, "acme"), 40);
    assert_false(take(&p, "acme", 41));
    assert_true(take(&p, "acme", 40));
    assert_exact(left(&p, "other"), 100);
    process_restart(&p, 31 * DAY); /* it is February */
    assert_exact(left(&p, "acme"), 100);
    process_end(&p);
}

TEST(a_bucket_gains_while_the_process_is_down) {
    struct process p = process_of(BUCKET);
    assert_true(take(&p, "acme", 100));
    pass(&p, 20 * SECOND);
    process_restart(&p, 30 * SECOND);
    assert_exact(left(&p, "acme"), 25);
    pass(&p, 2 * SECOND);
    assert_exact(left(&p, "acme"), 26);
    process_end(&p);
}

/* P12. The units of each slice return when they would have returned without the restarts. */
TEST(the_slices_of_a_sliding_window_keep_their_begin_over_many_restarts) {
    struct process p = process_of(SLIDING), twin = process_of(SLIDING);
    for (int i = 0; i < 16; i++) {
        assert_true(take(&p, "a", 1 + i % 3) && take(&twin, "a", 1 + i % 3));
        pass(&p, 77 * SECOND);
        pass(&twin, 77 * SECOND);
        process_restart(&p, 23 * SECOND);
        pass(&twin, 23 * SECOND);
        assert_exact(left(&p, "a"), left(&twin, "a"));
    }
    for (int i = 0; i < 1700; i++) {
        pass(&p, SECOND);
        pass(&twin, SECOND);
        assert_exact(left(&p, "a"), left(&twin, "a"));
    }
    process_end(&p);
    process_end(&twin);
}

TEST(a_tier_stays_active_and_cools_down_over_a_restart) {
    struct process p = process_of(TIERS);
    assert_true(take(&p, "a", 25)); /* tier 2 is active, and has 15 left */
    process_restart(&p, 100 * SECOND);
    assert_exact(left(&p, "a"), 15);
    assert_int_equal(p.out.details[0].tier, 2);
    pass(&p, 201 * SECOND); /* it cools down, and blocks */
    process_restart(&p, SECOND);
    assert_true(take(&p, "a", 10));
    assert_false(take(&p, "a", 1));
    pass(&p, 598 * SECOND);
    assert_true(take(&p, "a", 40));
    process_end(&p);
}

TEST(a_ban_lasts_for_the_rest_of_its_time) {
    struct process p = process_of(QUOTA);
    assert_int_equal(doorman_permits_ban(p.permits, "r", "bad", 100 * SECOND, NULL, p.now),
                     DOORMAN_OK);
    pass(&p, 10 * SECOND);
    process_restart(&p, 20 * SECOND); /* written after 10 s: 90 s are left then */
    assert_false(take(&p, "bad", 1));
    assert_int_equal(p.out.reason, DOORMAN_REASON_BANNED);
    assert_int_equal(p.out.retry_after, 70 * SECOND);
    pass(&p, 70 * SECOND);
    assert_true(take(&p, "bad", 1));
    process_end(&p);
}
