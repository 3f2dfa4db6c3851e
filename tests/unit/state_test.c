/* State that lasts: rows of counters and bans, which a store keeps over a restart (D3, D5). The
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
    struct stored_row clock; /* bytes: 0: there is none */
};

static doorman_permit_row header_of(const unsigned char *row, size_t bytes) {
    doorman_permit_row header;
    doorman_error error = {0};
    doorman_status status = doorman_permit_row_read(row, bytes, &header, &error);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return header;
}

/* Returns the position of the row with the identity of `wanted`, or `count` if there is none. */
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
    if (header.is_clock) {
        store->clock.bytes = bytes;
        memcpy(store->clock.row, row, bytes);
        return;
    }
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
    doorman_time boot;       /* `now` at the next start; 0: any */
    doorman_permit out;
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

/* Writes all changes. Returns how many there were, without the clock. */
static size_t process_write(struct process *p) {
    unsigned char row[ROW_MAX];
    size_t count = 0;
    for (size_t bytes; (bytes = doorman_permits_next_changed(p->permits, row, p->now));) {
        store_write(&p->store, row, bytes);
        count += !header_of(row, bytes).is_clock;
        assert_true(count < 1000000);
    }
    doorman_permits_info info;
    doorman_permits_read(p->permits, &info);
    assert_int_equal(info.changed_count, 0);
    return count;
}

/* Returns 1 if no limit is there for a row, and 0 if it was restored. Any other status fails the
 * test. */
static size_t is_unknown(doorman_status status, const doorman_error *error) {
    if (status != DOORMAN_OK && status != DOORMAN_NOT_FOUND) fail_msg("%s", error->text);
    return status == DOORMAN_NOT_FOUND;
}

static size_t restore_one_by_one(struct process *p, const doorman_stored_row *rows, size_t count) {
    size_t unknown = 0;
    for (size_t i = 0; i < count; i++) {
        doorman_error error = {0};
        unknown += is_unknown(
            doorman_permits_restore(p->permits, rows[i].row, rows[i].bytes, &error, p->now),
            &error);
    }
    return unknown;
}

static size_t restore_together(struct process *p, const doorman_stored_row *rows, size_t count) {
    size_t unknown = 0;
    for (size_t i = 0, some; i < count; i += some) {
        doorman_error error = {0};
        some = count - i;
        doorman_status status =
            doorman_permits_restore_rows(p->permits, rows + i, &some, &error, p->now);
        assert_true(status == DOORMAN_OK ? some == count - i : some < count - i);
        some += status != DOORMAN_OK;
        unknown += is_unknown(status, &error);
    }
    return unknown;
}

/* Restores all rows, one by one or together. Returns how many were not restored, because no limit
 * is there for them. */
static size_t process_read(struct process *p) {
    const struct store *store = &p->store;
    size_t count = store->count + (store->clock.bytes > 0);
    doorman_stored_row *rows = (doorman_stored_row *)calloc(count + 1, sizeof *rows);
    assert_non_null(rows);
    for (size_t i = 0; i < count; i++) {
        const struct stored_row *row = i < store->count ? &store->rows[i] : &store->clock;
        rows[i] = (doorman_stored_row){row->row, row->bytes};
    }
    size_t unknown =
        random_below(2) ? restore_one_by_one(p, rows, count) : restore_together(p, rows, count);
    free(rows);
    return unknown;
}

/* Ends the process without writing. Starts another process after the time `down`, and lets it read
 * the rows. Its clock `now` begins at another time. */
static void process_crash(struct process *p, doorman_time down) {
    doorman_permits_destroy(p->permits);
    p->now = p->boot ? p->boot : (doorman_time)random_below(100) * SECOND;
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
    doorman_error error = {0};
    doorman_status status = doorman_permits_acquire(p->permits, &request, &p->out, &error, p->now);
    if (status != DOORMAN_OK) fail_msg("%s", error.text);
    return p->out.granted;
}

/* Returns how many units of the first limit are left. */
static double left(struct process *p, const char *key) {
    doorman_status status =
        doorman_permits_inspect(p->permits, ITEM_OF("r", key), &p->out, NULL, p->now);
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

/* Leaves bytes on the stack that the next calls find there: doubles above 1. */
static __attribute__((noinline)) void stack_fill(void) {
    volatile unsigned char bytes[65536];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = 0x41;
}

TEST(a_row_of_a_window_has_nothing_that_comes_back_to_a_bucket) {
    static const char *const limits[] = {QUOTA, SLIDING, TIERS};
    for (size_t i = 0; i < COUNT(limits); i++) {
        struct process p = process_of(limits[i]);
        assert_true(take(&p, "acme", 6));
        process_write(&p);
        doorman_permits_destroy(p.permits);
        process_start(&p);
        for (size_t j = 0; j < p.store.count; j++) {
            const struct stored_row *row = &p.store.rows[j];
            stack_fill();
            assert_int_equal(doorman_permits_restore(p.permits, row->row, row->bytes, NULL, p.now),
                             DOORMAN_OK);
        }
        assert_false(take(&p, "acme", 95));
        process_end(&p);
    }
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
    pass(&p, 201 * SECOND); /* tier 2 cools down, and cannot be entered */
    process_restart(&p, SECOND);
    assert_true(take(&p, "a", 10));
    assert_false(take(&p, "a", 1));
    pass(&p, 598 * SECOND);
    assert_true(take(&p, "a", 40));
    process_end(&p);
}

TEST(a_ban_lasts_for_the_rest_of_its_time) {
    struct process p = process_of(QUOTA);
    assert_int_equal(doorman_permits_ban(p.permits, ITEM_OF("r", "bad"), 100 * SECOND, NULL, p.now),
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

/* D3. The store still has the first end of the ban. The write at the restart removes the row. */
TEST(a_ban_that_was_made_shorter_and_is_reset_later_does_not_come_back) {
    struct process p = process_of(QUOTA);
    const doorman_time ends[] = {100 * SECOND, SECOND, 0};
    for (size_t i = 0; i < COUNT(ends); i++) {
        assert_int_equal(doorman_permits_ban(p.permits, ITEM_OF("r", "bad"), ends[i], NULL, p.now),
                         DOORMAN_OK);
        if (i == 0) process_write(&p);
        pass(&p, 2 * SECOND);
    }
    process_restart(&p, SECOND);
    assert_true(take(&p, "bad", 1));
    process_end(&p);
}

static void mark_all(const struct process *p) {
    doorman_counter_cursor cursor = {0};
    for (int i = 0; doorman_permits_mark_all(p->permits, &cursor); i++) assert_true(i < 1000);
}

/* A store that has lost its rows gets them all once more. */
TEST(what_is_known_can_be_yielded_again) {
    struct process p = process_of(QUOTA);
    unsigned char row[ROW_MAX];
    assert_true(take(&p, "a", 1));
    assert_true(take(&p, "b", 1));
    assert_int_equal(doorman_permits_ban(p.permits, ITEM_OF("r", "bad"), 100 * SECOND, NULL, p.now),
                     DOORMAN_OK);
    process_write(&p);
    assert_int_equal(doorman_permits_next_changed(p.permits, row, p.now), 0);
    mark_all(&p);
    size_t bans = 0, counters = 0, clocks = 0, bytes = 0;
    for (int i = 0; i < 10 && (bytes = doorman_permits_next_changed(p.permits, row, p.now)); i++) {
        doorman_permit_row read;
        assert_int_equal(doorman_permit_row_read(row, bytes, &read, NULL), DOORMAN_OK);
        assert_false(read.removed);
        bans += read.is_ban;
        clocks += read.is_clock;
        counters += !read.is_ban && !read.is_clock;
    }
    assert_int_equal(bans, 1);
    assert_int_equal(counters, 2);
    assert_int_equal(clocks, 1);
    process_end(&p);
}

static const char *key_of(int number) {
    static char key[16];
    snprintf(key, sizeof key, "k%d", number);
    return key;
}

/* Between two steps of marking, the tables of a limit grow or shrink by thousands of keys. The keys
 * below KEPT exist all the time. In each round the limit OTHER begins or ends. */
#define OTHER "{\"name\": \"o\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": \"day\"}"
TEST(all_that_exists_during_the_steps_of_marking_is_yielded) {
    enum { KEPT = 300, MOST = 6000 };
    struct process p = process_of(QUOTA);
    doorman_config *quota = p.config, *both = limits_of(QUOTA ", " OTHER);
    for (int round = 0; round < 10; round++) {
        unsigned char row[ROW_MAX];
        bool yielded[KEPT] = {false};
        doorman_counter_cursor cursor = {0};
        int grown = MOST, steps = 0;
        for (int i = 0; i < MOST; i++) assert_true(take(&p, key_of(i), 1));
        while (doorman_permits_next_changed(p.permits, row, p.now)) continue;
        for (bool more = true; more; steps++) {
            more = doorman_permits_mark_all(p.permits, &cursor);
            int wanted = KEPT + (int)(random_bits() % (MOST - KEPT));
            for (; grown < wanted; grown++) (void)take(&p, key_of(grown), 1);
            while (grown > wanted) {
                (void)doorman_permits_reset(p.permits, ITEM_OF("r", key_of(--grown)), NULL, NULL,
                                            NULL);
            }
            doorman_permits_update(p.permits, p.now);
            if (steps != 0) continue;
            p.config = p.config == quota ? both : quota;
            assert_int_equal(doorman_permits_configure(p.permits, p.config), DOORMAN_OK);
        }
        assert_true(steps > 1 && steps < 1000);
        for (size_t bytes; (bytes = doorman_permits_next_changed(p.permits, row, p.now));) {
            const doorman_permit_row header = header_of(row, bytes);
            const int number = header.key[0] ? atoi(header.key + 1) : KEPT;
            if (number >= KEPT || header.removed || strcmp(header.limit, "q") != 0) continue;
            yielded[number] = true;
        }
        for (int i = 0; i < KEPT; i++) assert_true(yielded[i]);
    }
    doorman_config_destroy(p.config == quota ? both : quota);
    process_end(&p);
}

/* D3. A ban with a row in the store is replaced by a shorter one, whose row cannot be written. The
 * shorter ban ends before the process marks it as changed again. */
TEST(a_ban_that_ended_before_its_row_was_marked_does_not_come_back) {
    struct process p = process_of(QUOTA);
    unsigned char row[ROW_MAX];
    assert_int_equal(doorman_permits_ban(p.permits, ITEM_OF("r", "bad"), 100 * SECOND, NULL, p.now),
                     DOORMAN_OK);
    process_write(&p);
    assert_int_equal(doorman_permits_ban(p.permits, ITEM_OF("r", "bad"), SECOND, NULL, p.now),
                     DOORMAN_OK);
    size_t bytes = doorman_permits_next_changed(p.permits, row, p.now);
    assert_true(bytes > 0);
    pass(&p, 2 * SECOND);
    doorman_permits_update(p.permits, p.now);
    assert_int_equal(doorman_permits_mark_changed(p.permits, row, bytes, NULL), DOORMAN_OK);
    process_restart(&p, SECOND);
    assert_true(take(&p, "bad", 1));
    process_end(&p);
}

/* Counters of resources and of templates have no key. They are restored too. */
TEST(limits_of_all_scopes_are_restored) {
    struct process p = process_of(
        "{\"name\": \"k\", \"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": \"day\"}, "
        "{\"name\": \"r\", \"kind\": \"FIXED_WINDOW\", \"limit\": 90, \"window\": \"day\", "
        "\"per\": \"resource\"}, "
        "{\"name\": \"t\", \"kind\": \"FIXED_WINDOW\", \"limit\": 900, \"window\": \"day\", "
        "\"per\": \"template\"}");
    assert_true(take(&p, "a", 5));
    assert_int_equal(process_write(&p), 3);
    process_restart(&p, SECOND);
    assert_exact(left(&p, "a"), 4);
    assert_exact(p.out.details[1].remaining, 85);
    assert_exact(p.out.details[2].remaining, 895);
    process_end(&p);
}

/* D2: by default a limit has rows if its counters last at least a minute, but not if its kind is
 * CONCURRENCY. The configuration can say otherwise. */
TEST(a_limit_has_rows_if_it_lasts_a_minute_or_says_so) {
    static const struct {
        const char *limit;
        bool durable;
    } cases[] = {
        {"\"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": 59.9", false},
        {"\"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": 60", true},
        {"\"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": \"minute\"", true},
        {"\"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": 1, \"durable\": true", true},
        {"\"kind\": \"FIXED_WINDOW\", \"limit\": 1, \"window\": \"month\", \"durable\": false",
         false},
        {"\"kind\": \"TOKEN_BUCKET\", \"rate\": 2, \"size\": 119", false},
        {"\"kind\": \"TOKEN_BUCKET\", \"rate\": 2, \"size\": 120", true},
        {"\"kind\": \"TOKEN_BUCKET\", \"rate\": 2, \"size\": 1, \"overrides\": [{\"keys\": "
         "[\"a\"], \"size\": 120}]",
         true},
        {"\"kind\": \"TOKEN_BUCKET\", \"rate\": 2, \"size\": 1, \"ban\": {\"refusals\": 9, "
         "\"window\": 1, \"duration\": 60}",
         true},
        {"\"kind\": \"TIERS\", \"tiers\": [{\"limit\": 1, \"window\": 1, \"active\": 30, "
         "\"cooldown\": 29}]",
         false},
        {"\"kind\": \"TIERS\", \"tiers\": [{\"limit\": 1, \"window\": 1, \"active\": 30, "
         "\"cooldown\": 30}]",
         true},
        {"\"kind\": \"CONCURRENCY\", \"limit\": 1, \"time_to_live\": 90", false},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[512];
        snprintf(text, sizeof text, "{\"name\": \"l\", %s}", cases[i].limit);
        doorman_config *config = limits_of(text);
        doorman_config_options read;
        doorman_config_read(config, &read);
        if (read.templates[0].limits[0].durable != cases[i].durable) fail_msg("%s", text);
        doorman_config_destroy(config);
    }
}

TEST(a_limit_without_rows_yields_nothing_and_takes_none) {
    struct process p = process_of(QUOTA);
    assert_true(take(&p, "a", 60));
    process_write(&p);
    reload(&p, "{\"name\": \"q\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": "
               "\"month\", \"durable\": false}");
    assert_true(take(&p, "a", 20));
    assert_int_equal(process_write(&p), 0);
    process_crash(&p, SECOND);
    assert_int_equal(process_read(&p), 1);
    assert_exact(left(&p, "a"), 100);
    process_end(&p);
}

/* ---- changes -------------------------------------------------------------------------------- */

TEST(only_what_changed_is_yielded) {
    struct process p = process_of(QUOTA);
    for (int i = 0; i < 500; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_true(take(&p, key, 1));
        assert_true(take(&p, key, 1));
    }
    assert_int_equal(process_write(&p), 500);
    assert_int_equal(process_write(&p), 0);
    assert_true(take(&p, "k7", 1) && take(&p, "k400", 1));
    assert_false(take(&p, "k8", 99)); /* a refusal changes nothing */
    assert_exact(left(&p, "k9"), 98);
    doorman_permits_info info;
    doorman_permits_read(p.permits, &info);
    assert_int_equal(info.changed_count, 2);
    assert_int_equal(process_write(&p), 2);
    assert_int_equal(p.store.count, 500);
    process_end(&p);
}

TEST(a_counter_that_changes_again_is_yielded_again) {
    struct process p = process_of(QUOTA);
    unsigned char row[ROW_MAX];
    assert_true(take(&p, "a", 1) && take(&p, "b", 1));
    size_t bytes = doorman_permits_next_changed(p.permits, row, p.now);
    const doorman_permit_row first = header_of(row, bytes);
    char key[4];
    snprintf(key, sizeof key, "%s", first.key);
    store_write(&p.store, row, bytes);
    assert_true(take(&p, key, 5)); /* in the middle of the batch */
    assert_int_equal(process_write(&p), 2);
    process_crash(&p, SECOND);
    assert_exact(left(&p, key), 94);
    assert_exact(left(&p, key[0] == 'a' ? "b" : "a"), 99);
    process_end(&p);
}

/* changed_since is the time of the oldest change that was not yielded yet. */
TEST(the_age_of_the_oldest_change_is_known) {
    struct process p = process_of(QUOTA);
    doorman_permits_info info;
    doorman_permits_read(p.permits, &info);
    assert_int_equal(info.changed_since, DOORMAN_NEVER);
    pass(&p, SECOND);
    doorman_time at = p.now;
    assert_true(take(&p, "a", 1));
    pass(&p, SECOND);
    assert_true(take(&p, "b", 1));
    doorman_permits_read(p.permits, &info);
    assert_int_equal(info.changed_since, at);
    process_write(&p);
    pass(&p, SECOND);
    assert_int_equal(doorman_permits_reset(p.permits, ITEM_OF("r", "a"), NULL, NULL, NULL),
                     DOORMAN_OK);
    doorman_permits_read(p.permits, &info);
    assert_int_equal(info.changed_since, at + SECOND); /* the time of the last call with a time */
    process_end(&p);
}

TEST(a_reset_counter_is_deleted_from_the_store) {
    struct process p = process_of(QUOTA);
    assert_true(take(&p, "a", 100) && take(&p, "b", 100));
    process_write(&p);
    assert_int_equal(doorman_permits_reset(p.permits, ITEM_OF("r", "a"), NULL, NULL, NULL),
                     DOORMAN_OK);
    process_restart(&p, SECOND);
    assert_int_equal(p.store.count, 1);
    assert_exact(left(&p, "a"), 100);
    assert_exact(left(&p, "b"), 0);
    assert_int_equal(doorman_permits_reset(p.permits, ITEM_OF("r", "b"), NULL, NULL, NULL),
                     DOORMAN_OK);
    assert_true(take(&p, "b", 7)); /* the removal is written first, and then the new row */
    process_restart(&p, SECOND);
    assert_exact(left(&p, "b"), 93);
    process_end(&p);
}

TEST(a_counter_that_a_refund_has_made_fresh_is_deleted_from_the_store) {
    struct process p = process_of("{\"name\": \"q\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, "
                                  "\"window\": \"month\", \"refunds\": true}");
    for (int sweeps = 0; sweeps < 2; sweeps++) {
        assert_true(take(&p, "a", 60));
        process_write(&p);
        assert_int_equal(p.store.count, 1);
        const doorman_permit_item item = {.resource_id = "r", .key = "a", .cost = -60};
        double charged = 0;
        assert_int_equal(doorman_permits_report(p.permits, &item, &charged, NULL, p.now),
                         DOORMAN_OK);
        assert_exact(charged, -60);
        if (sweeps) doorman_permits_update(p.permits, p.now); /* removes the fresh counter */
        process_write(&p);
        assert_int_equal(p.store.count, 0);
    }
    process_end(&p);
}

TEST(a_ban_that_ends_early_is_deleted_from_the_store) {
    struct process p = process_of(QUOTA);
    for (int by_reset = 0; by_reset < 2; by_reset++) {
        doorman_permits_ban(p.permits, ITEM_OF("r", "bad"), HOUR, NULL, p.now);
        process_write(&p);
        assert_int_equal(p.store.count, 1);
        if (by_reset) {
            doorman_permits_reset(p.permits, ITEM_OF("r", "bad"), NULL, NULL, NULL);
        } else {
            doorman_permits_ban(p.permits, ITEM_OF("r", "bad"), 0, NULL, p.now);
        }
        process_write(&p);
        assert_int_equal(p.store.count, 0);
    }
    doorman_permits_ban(p.permits, ITEM_OF("r", "bad"), HOUR, NULL, p.now);
    process_write(&p);
    doorman_permits_ban(p.permits, ITEM_OF("r", "bad"), SECOND, NULL, p.now); /* shorter */
    pass(&p, 2 * SECOND);
    doorman_permits_update(p.permits, p.now);
    process_restart(&p, SECOND);
    assert_true(take(&p, "bad", 1));
    process_end(&p);
}

/* When a counter gets fresh because time has passed, no row is written. The last row of the counter
 * says in fresh_at when it gets fresh. */
TEST(a_row_says_when_it_is_fresh) {
    static const struct {
        const char *limit;
        doorman_time fresh_after;
    } cases[] = {{QUOTA, 31 * DAY - 12 * HOUR},
                 {BUCKET, 80 * SECOND},
                 {SLIDING, 1600 * SECOND}, /* `now` is 0, the begin of a slice */
                 {TIERS, 900 * SECOND}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        unsigned char row[ROW_MAX];
        struct process p = {.config = limits_of(cases[i].limit), .epoch = noon};
        process_start(&p);
        assert_true(take(&p, "a", 40));
        size_t bytes = doorman_permits_next_changed(p.permits, row, p.now);
        const doorman_permit_row header = header_of(row, bytes);
        assert_int_equal(header.fresh_at, noon + cases[i].fresh_after);
        assert_int_equal(header.written_at, noon);
        pass(&p, cases[i].fresh_after);
        doorman_permits_update(p.permits, p.now);
        doorman_permits_info info;
        doorman_permits_read(p.permits, &info);
        assert_int_equal(info.counter_count, 0);
        assert_int_equal(info.changed_count, 0);
        process_end(&p);
    }
}

TEST(a_row_names_its_counter) {
    struct process p = process_of(QUOTA);
    unsigned char row[ROW_MAX];
    assert_true(take(&p, "acme", 1));
    size_t bytes = doorman_permits_next_changed(p.permits, row, p.now);
    doorman_permit_row header = header_of(row, bytes);
    assert_int_equal(header.version, DOORMAN_PERMIT_ROW_VERSION);
    assert_false(header.removed || header.is_ban);
    assert_int_equal(header.kind, DOORMAN_FIXED_WINDOW);
    assert_int_equal(header.per, DOORMAN_PER_KEY);
    assert_string_equal(header.limit, "q");
    assert_string_equal(header.resource_id, "r");
    assert_string_equal(header.key, "acme");
    assert_string_equal(header.identifier_glob, "*");
    doorman_permits_ban(p.permits, ITEM_OF("r", "acme"), HOUR, NULL, p.now);
    bytes = doorman_permits_next_changed(p.permits, row, p.now);
    header = header_of(row, bytes);
    assert_true(header.is_ban);
    assert_string_equal(header.limit, "");
    assert_string_equal(header.key, "acme");
    assert_int_equal(header.fresh_at, noon + HOUR);
    process_end(&p);
}

/* The bytes are the same on every machine, and a later version must read them. */
TEST(the_bytes_of_a_row_never_change) {
    static const unsigned char expected[] = {
        1,   0,   11,  0,                                   /* version, identity */
        0,   128, 161, 54, 156, 153, 134, 24,               /* written_at */
        0,   48,  48,  39, 184, 153, 134, 24,               /* fresh_at */
        'b', 'k', 'b', 0,  'r', 0,   'a', 'c', 'm', 'e', 0, /* the identity */
        '*', 0,   'b', 0,                                   /* the glob, the limit */
        0,   0,   0,   0,  0,   0,   68,  64,               /* the level is 40.0 */
        0,   128, 161, 54, 156, 153, 134, 24};              /* at this time */
    struct process p = process_of(BUCKET);
    unsigned char row[ROW_MAX];
    assert_true(take(&p, "acme", 60));
    size_t bytes = doorman_permits_next_changed(p.permits, row, p.now);
    assert_int_equal(bytes, sizeof expected);
    assert_memory_equal(row, expected, bytes);
    process_end(&p);
}

/* D3. The store has only the keys that the permits have, so a flood of keys does not fill it. */
TEST(an_evicted_counter_is_deleted_from_the_store) {
    struct process p = process_of("{\"name\": \"q\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, "
                                  "\"window\": \"month\", \"max_keys\": 20}");
    for (int i = 0; i < 400; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_true(take(&p, key, 1 + i % 50));
        if (i % 7 == 0) process_write(&p);
        if (i % 7 == 0) assert_true(p.store.count <= 20);
    }
    process_write(&p);
    assert_int_equal(p.store.count, 20);
    double before[20];
    for (size_t i = 0; i < 20; i++) {
        before[i] = left(&p, header_of(p.store.rows[i].row, p.store.rows[i].bytes).key);
        assert_true(before[i] < 100);
    }
    process_crash(&p, SECOND);
    for (size_t i = 0; i < 20; i++) {
        const struct stored_row *row = &p.store.rows[i];
        assert_exact(left(&p, header_of(row->row, row->bytes).key), before[i]);
    }
    process_end(&p);
}

static void take_many(struct process *p, int first, int count) {
    for (int i = first; i < first + count; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_true(take(p, key, 1));
    }
}

/* Yields all rows, and forgets them. */
static void yield_all(struct process *p) {
    unsigned char row[ROW_MAX];
    while (doorman_permits_next_changed(p->permits, row, p->now)) continue;
}

/* D6. Memory does not grow with time while nobody takes the rows. */
TEST(removals_that_nobody_takes_are_bounded) {
    struct process p = process_of("{\"name\": \"q\", \"kind\": \"FIXED_WINDOW\", \"limit\": 9, "
                                  "\"window\": \"month\", \"max_keys\": 60000}");
    doorman_permits_info info;
    take_many(&p, 0, 60000);
    yield_all(&p);
    take_many(&p, 60000, 240000); /* each of them evicts a counter, also most of the first ones */
    doorman_permits_read(p.permits, &info);
    assert_int_equal(p.permits->changes.removal_count, 50000);
    assert_true(info.removals_lost > 0 && info.removals_lost <= 10000);
    yield_all(&p);
    process_end(&p);
}

/* ---- rows that were not written ------------------------------------------------------------- */

TEST(rows_that_were_not_written_come_again) {
    struct process p = process_of(QUOTA);
    assert_true(take(&p, "a", 10) && take(&p, "b", 20) && take(&p, "c", 30));
    process_write(&p);
    doorman_permits_reset(p.permits, ITEM_OF("r", "a"), NULL, NULL, NULL);
    doorman_permits_ban(p.permits, ITEM_OF("r", "x"), HOUR, NULL, p.now);
    assert_true(take(&p, "b", 1));
    struct store lost = {.rows = NULL};
    unsigned char row[ROW_MAX];
    for (size_t bytes; (bytes = doorman_permits_next_changed(p.permits, row, p.now));) {
        lost.rows = (struct stored_row *)realloc(lost.rows, (lost.count + 1) * sizeof *lost.rows);
        lost.rows[lost.count].bytes = bytes;
        memcpy(lost.rows[lost.count++].row, row, bytes);
    }
    assert_int_equal(lost.count, 4); /* with the clock */
    assert_true(take(&p, "b", 1));   /* before the failure is known */
    for (size_t i = 0; i < lost.count; i++) {
        doorman_status status =
            doorman_permits_mark_changed(p.permits, lost.rows[i].row, lost.rows[i].bytes, NULL);
        assert_int_equal(status, DOORMAN_OK);
    }
    assert_int_equal(process_write(&p), 3);
    process_crash(&p, SECOND);
    assert_exact(left(&p, "a"), 100);
    assert_exact(left(&p, "b"), 78);
    assert_exact(left(&p, "c"), 70);
    assert_false(take(&p, "x", 1));
    free(lost.rows);
    process_end(&p);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* D4. Durable limits grant nothing while the rows are awaited. Other limits do not wait. */
TEST(durable_limits_learn_until_the_rows_are_read) {
    struct process p = process_of(QUOTA ", {\"name\": \"fast\", \"kind\": \"TOKEN_BUCKET\", "
                                        "\"rate\": 1, \"size\": 1, \"keys\": [\"never\"]}");
    assert_true(take(&p, "a", 60));
    process_write(&p);
    doorman_permits_destroy(p.permits);
    process_start(&p);
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_AWAITED), DOORMAN_OK);
    assert_false(take(&p, "a", 1));
    assert_int_equal(p.out.reason, DOORMAN_REASON_LEARNING);
    assert_string_equal(p.out.limit, "q");
    assert_true(p.out.has_retry_after);
    assert_int_equal(p.out.retry_after, SECOND);
    const doorman_permit_item greedy = {
        .resource_id = "r", .key = "a", .cost = 5, .has_min = true, .min = 0};
    const doorman_permit_request request = {.items = &greedy, .item_count = 1};
    assert_int_equal(doorman_permits_acquire(p.permits, &request, &p.out, NULL, p.now), DOORMAN_OK);
    assert_false(p.out.granted); /* the item accepts 0 units too, but it is not known what is
                                  * left */
    assert_int_equal(p.out.reason, DOORMAN_REASON_LEARNING);
    assert_false(take(&p, "a", 0)); /* it only looks */
    assert_int_equal(p.out.reason, DOORMAN_REASON_LEARNING);
    assert_int_equal(process_read(&p), 0);
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_READ), DOORMAN_OK);
    assert_false(take(&p, "a", 41));
    assert_true(take(&p, "a", 40));
    process_end(&p);
}

/* D4. Each limit has its own "on_unread". Rows that are read later only take units away. */
TEST(without_the_rows_each_limit_does_what_it_says) {
    struct process p = process_of(QUOTA);
    assert_true(take(&p, "a", 60));
    process_write(&p);
    process_crash(&p, SECOND);
    doorman_permits_destroy(p.permits);
    process_start(&p);
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_UNREAD), DOORMAN_OK);
    assert_true(take(&p, "a", 30)); /* "on_unread": "grant" is the default */
    unsigned char row[ROW_MAX];
    assert_int_equal(doorman_permits_next_changed(p.permits, row, p.now), 0); /* nothing is lost */
    for (int again = 0; again < 2; again++) {
        process_read(&p); /* to read twice does no harm */
        assert_exact(left(&p, "a"), 10);
    }
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_READ), DOORMAN_OK);
    process_restart(&p, SECOND);
    assert_exact(left(&p, "a"), 10);
    reload(&p, "{\"name\": \"q\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": "
               "\"month\", \"on_unread\": \"refuse\"}");
    assert_true(take(&p, "a", 1));
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_UNREAD), DOORMAN_OK);
    assert_false(take(&p, "a", 1));
    assert_int_equal(p.out.reason, DOORMAN_REASON_LEARNING);
    assert_int_equal(doorman_permits_set_rows(p.permits, DOORMAN_ROWS_COUNT),
                     DOORMAN_INVALID_ARGUMENT);
    process_end(&p);
}

/* D5. The rows are read again after a change of the configuration. Clocks drift, so a row of a
 * sliding window may then have a slightly different time than the counter in memory. */
TEST(a_row_that_is_read_again_later_changes_nothing) {
    struct process p = process_of(SLIDING);
    for (int i = 0; i < 8; i++) {
        assert_true(take(&p, "a", 5));
        process_write(&p);
        pass(&p, 90 * SECOND);
    }
    p.epoch += SECOND / 1000; /* the clock of the wall was a millisecond late */
    for (int again = 0; again < 10; again++) {
        pass(&p, 30 * SECOND);
        process_read(&p);
        assert_exact(left(&p, "a"), 60);
        assert_int_equal(process_write(&p), 0);
    }
    process_end(&p);
}

/* A row that is read late counts together with what was granted in the meantime. */
TEST(what_is_read_late_is_added_to_what_was_used_meanwhile) {
    static const struct {
        const char *limit;
        double left;
    } cases[] = {{QUOTA, 20}, {BUCKET, 30}, {SLIDING, 20}, {TIERS, 15}}; /* tier 2 has 15 of 30 */
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct process p = process_of(cases[i].limit);
        const double first = i == 3 ? 5 : 50;
        assert_true(take(&p, "a", first));
        process_write(&p);
        doorman_permits_destroy(p.permits);
        p.now = 1000 * SECOND;
        p.epoch += 20 * SECOND;
        process_start(&p);
        assert_true(take(&p, "a", i == 3 ? 25 : 30)); /* the row is read after this */
        process_read(&p);
        assert_exact(left(&p, "a"), cases[i].left);
        process_read(&p);
        assert_exact(left(&p, "a"), cases[i].left);
        process_end(&p);
    }
}

/* D10 */
TEST(a_row_waits_until_its_limit_comes_back) {
    struct process p = process_of(QUOTA);
    assert_true(take(&p, "a", 60));
    process_write(&p);
    reload(&p, BUCKET);
    process_restart(&p, SECOND);
    assert_int_equal(p.store.count, 1);
    assert_int_equal(process_read(&p), 1);
    reload(&p, QUOTA);
    assert_int_equal(process_read(&p), 0);
    assert_exact(left(&p, "a"), 40);
    process_end(&p);
}

/* ---- clocks --------------------------------------------------------------------------------- */

/* P26, D5. The permits and the store remember the latest time. Otherwise a clock that is set back
 * would begin a window in which nothing is used. */
TEST(a_clock_that_was_set_back_gives_no_new_window) {
    struct process p = process_of(
        "{\"name\": \"q\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, \"window\": \"day\"}");
    assert_true(take(&p, "a", 100));
    p.epoch -= DAY; /* while the process runs */
    pass(&p, SECOND);
    assert_exact(left(&p, "a"), 0);
    process_restart(&p, SECOND);
    assert_exact(left(&p, "a"), 0);
    process_write(&p);
    process_crash(&p, -DAY); /* while it is down */
    assert_exact(left(&p, "a"), 0);
    process_end(&p);
}

TEST(a_time_in_the_future_counts_as_now) {
    struct process p = process_of(BUCKET ", " SLIDING);
    assert_true(take(&p, "a", 60));
    doorman_permits_ban(p.permits, ITEM_OF("r", "bad"), 10 * SECOND, NULL, p.now);
    process_write(&p);
    process_crash(&p, -DAY);
    assert_exact(left(&p, "a"), 40);
    assert_exact(p.out.details[1].remaining, 40);
    assert_false(take(&p, "bad", 1));
    assert_int_equal(p.out.retry_after, 10 * SECOND);
    process_end(&p);
}

/* A machine that has just started has a `now` smaller than the window. Even so, units return in
 * time. */
TEST(a_window_that_is_longer_than_the_machine_runs_is_restored) {
    struct process p = process_of(SLIDING);
    assert_true(take(&p, "a", 60));
    pass(&p, 800 * SECOND);
    assert_true(take(&p, "a", 40));
    process_write(&p);
    doorman_permits_destroy(p.permits);
    p.now = 0;
    process_start(&p);
    process_read(&p);
    assert_exact(left(&p, "a"), 0);
    pass(&p, 800 * SECOND);
    assert_exact(left(&p, "a"), 60);
    pass(&p, 800 * SECOND);
    assert_exact(left(&p, "a"), 100);
    process_end(&p);
}

/* ---- rows that cannot be read --------------------------------------------------------------- */

/* Returns a row of the counter or ban of ("r", "acme"). */
static size_t row_of(const char *limits, unsigned char *row) {
    struct process p = process_of(limits);
    if (strstr(limits, "ban")) {
        doorman_permits_ban(p.permits, ITEM_OF("r", "acme"), HOUR, NULL, p.now);
    } else {
        assert_true(take(&p, "acme", 12));
    }
    size_t bytes = doorman_permits_next_changed(p.permits, row, p.now);
    assert_true(bytes > 0);
    process_end(&p);
    return bytes;
}

#define BANNING                                                                                    \
    "{\"name\": \"f\", \"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": 60, \"ban\": "        \
    "{\"refusals\": 1, \"window\": 1, \"duration\": 60}}"
static const char *const row_limits[] = {QUOTA, BUCKET, SLIDING, TIERS, BANNING};

static doorman_status restore_bytes(const unsigned char *row, size_t bytes, doorman_error *error) {
    struct process p = process_of(QUOTA ", " BUCKET ", " SLIDING ", " TIERS);
    doorman_status status = doorman_permits_restore(p.permits, row, bytes, error, p.now);
    if (status == DOORMAN_INVALID_ARGUMENT) { /* nothing has changed */
        doorman_permits_info info;
        doorman_permits_read(p.permits, &info);
        assert_int_equal(info.counter_count + info.ban_count + info.resource_count, 0);
        assert_int_equal(p.permits->at.ahead, 0);
        assert_true(error->text[0]);
    }
    process_end(&p);
    return status;
}

TEST(a_row_that_is_too_short_or_too_long_is_refused) {
    for (size_t i = 0; i < COUNT(row_limits); i++) {
        unsigned char row[ROW_MAX + 1] = {0};
        size_t whole = row_of(row_limits[i], row);
        for (size_t bytes = 0; bytes < whole; bytes++) {
            doorman_error error = {0};
            unsigned char *copy =
                (unsigned char *)malloc(bytes ? bytes : 1); /* for the sanitizer */
            assert_non_null(copy);
            memcpy(copy, row, bytes);
            assert_int_equal(restore_bytes(copy, bytes, &error), DOORMAN_INVALID_ARGUMENT);
            assert_true(strncmp(error.text, "bytes: ", 7) == 0);
            free(copy);
        }
        doorman_error error = {0};
        assert_int_equal(restore_bytes(row, whole, &error), DOORMAN_OK);
        assert_int_equal(restore_bytes(row, whole + 1, &error), DOORMAN_INVALID_ARGUMENT);
        assert_int_equal(restore_bytes(row, ROW_MAX + 1, &error), DOORMAN_INVALID_ARGUMENT);
        assert_string_equal(error.text, "bytes: must be at most 4,096");
    }
}

/* The identity of the rows of this test has 11 bytes, and is followed by "*", and the limit. */
#define FIGURES (20 + 11 + 4)

static const struct {
    const char *limits, *error;
    size_t at, count;
    const char *bytes;
} malformed_rows[] = {
    {QUOTA, "version: must not be 0", 0, 1, "\0"},
    {QUOTA, "version: 2 is later than 1", 0, 1, "\2"},
    {QUOTA, "removed: must be 0 or 1", 1, 1, "\2"},
    {QUOTA, "identity_bytes: differs", 2, 1, "\7"},
    {QUOTA, "written_at: must be a time", 4, 8, "\377\377\377\377\377\377\377\377"},
    {QUOTA, "written_at: must be a time", 4, 8, "\377\377\377\377\377\377\377\177"},
    {QUOTA, "fresh_at: must not be before", 12, 8, "\0\0\0\0\0\0\0\0"},
    {QUOTA, "kind: is not known", 20, 1, "?"},
    {QUOTA, "kind: is not known", 20, 1, "\0"},
    {QUOTA, "per: is not known", 21, 1, "?"},
    {QUOTA, "key: needs a counter per key", 21, 1, "r"},
    {QUOTA, "limit: must be the same twice", 22, 1, "p"},
    {QUOTA, "limit: must be 1 to 256 bytes", FIGURES - 2, 1, "\1"},
    {QUOTA, "resource_id: must be 1 to 256 bytes", 24, 1, "\1"},
    {QUOTA, "key: must be 0 to 256 bytes", 26, 1, "\377"},
    {QUOTA, "identifier_glob: must be", FIGURES - 4, 1, "\377"},
    {QUOTA, "begin: must be before", FIGURES, 8, "\0\0\0\0\0\0\0\177"},
    {QUOTA, "end: must be after", FIGURES + 8, 8, "\0\0\0\0\0\0\0\0"},
    {QUOTA, "end: must be after", FIGURES + 8, 8, "\0\0\0\0\0\0\0\177"},
    {QUOTA, "used: is too much", FIGURES + 16, 8, "\1\0\0\0\0\0\0\200"},
    {BUCKET, "level: must be a number", FIGURES, 8, "\0\0\0\0\0\0\370\177"}, /* NaN */
    {BUCKET, "level: must be a number", FIGURES, 8, "\0\0\0\0\0\0\360\177"}, /* infinite */
    {BUCKET, "level: must be a number", FIGURES, 8, "\0\0\0\0\0\0\360\377"},
    {BUCKET, "at: must be before", FIGURES + 8, 8, "\0\0\0\0\0\0\0\177"},
    {BUCKET, "at: must be before", FIGURES + 8, 8, "\0\0\0\0\0\0\0\200"},
    {SLIDING, "window: must be", FIGURES, 8, "\0\0\0\0\0\0\0\200"},
    {SLIDING, "grains: need a window", FIGURES, 8, "\0\0\0\0\0\0\0\0"},
    {SLIDING, "begin: must be before", FIGURES + 8, 8, "\0\0\0\0\0\0\0\177"},
    {SLIDING, "grains: are too many", FIGURES + 16, 16,
     "\0\0\0\0\0\0\0\100\1\0\0\0\0\0\0\100\1\0\0\0\0\0\0\100"},
    {SLIDING, "grains: are too many", FIGURES + 16, 8, "\377\377\377\377\377\377\377\377"},
    {TIERS, "tiers: must be at most 8", FIGURES, 1, "\11"},
    {TIERS, "entered: must be before", FIGURES + 1, 8, "\0\0\0\0\0\0\0\177"},
    {TIERS, "window: must be", FIGURES + 9, 8, "\377\377\377\377\377\377\377\377"},
    {BANNING, "per: must be key", 21, 1, "r"},
    {BANNING, "identity_bytes: differs", 22, 1, "x"}, /* the name of a limit */
    {BANNING, "rest: must be", 20 + 10 + 2, 8, "\0\0\0\0\0\0\0\0"},
    {BANNING, "rest: must be", 20 + 10 + 2, 8, "\0\0\0\0\0\0\0\177"},
};

TEST(a_malformed_row_is_refused_by_name) {
    for (size_t i = 0; i < COUNT(malformed_rows); i++) {
        unsigned char row[ROW_MAX];
        doorman_error error = {0};
        size_t bytes = row_of(malformed_rows[i].limits, row);
        memcpy(row + malformed_rows[i].at, malformed_rows[i].bytes, malformed_rows[i].count);
        doorman_status status = restore_bytes(row, bytes, &error);
        if (status != DOORMAN_INVALID_ARGUMENT ||
            strncmp(error.text, malformed_rows[i].error, strlen(malformed_rows[i].error)) != 0) {
            fail_msg("case %zu, %s: %s", i, malformed_rows[i].error, error.text);
        }
    }
}

/* A row with any bytes is refused, or its counter never offers more than the limit. */
TEST(a_damaged_row_does_no_harm) {
    for (int i = 0; i < 2000; i++) {
        unsigned char row[ROW_MAX];
        struct process p = process_of(QUOTA ", " BUCKET ", " SLIDING ", " TIERS);
        size_t bytes = row_of(row_limits[random_below(COUNT(row_limits))], row);
        for (size_t changes = 1 + random_below(3); changes > 0; changes--) {
            row[random_below(bytes)] = (unsigned char)random_bits();
        }
        doorman_status status = doorman_permits_restore(p.permits, row, bytes, NULL, p.now);
        assert_true(status == DOORMAN_OK || status == DOORMAN_INVALID_ARGUMENT ||
                    status == DOORMAN_NOT_FOUND);
        for (int steps = 0; steps < 3; steps++) {
            (void)take(&p, "acme", 1);
            for (size_t j = 0; j < p.out.detail_count; j++) {
                assert_true(p.out.details[j].remaining >= 0);
                assert_true(p.out.details[j].remaining <= p.out.details[j].most);
            }
            pass(&p, (doorman_time)random_below(100000) * SECOND);
        }
        (void)process_write(&p);
        process_restart(&p, HOUR);
        process_end(&p);
    }
}

/* ---- without memory ------------------------------------------------------------------------- */

/* A row that could not be restored for lack of memory can be restored later. Marking the row of a
 * counter needs no memory. */
TEST(no_row_is_lost_when_memory_runs_out) {
    for (size_t i = 0; i < COUNT(row_limits); i++) {
        unsigned char row[ROW_MAX];
        const size_t bytes = row_of(row_limits[i], row);
        doorman_permit_row header = header_of(row, bytes);
        for (size_t n = 1, done = 0; !done; n++) {
            struct process p = process_of(QUOTA ", " BUCKET ", " SLIDING ", " TIERS);
            memory_fails_at(n);
            doorman_status status = doorman_permits_restore(p.permits, row, bytes, NULL, p.now);
            done = memory_works();
            assert_true(status == (done ? DOORMAN_OK : DOORMAN_OUT_OF_MEMORY));
            assert_int_equal(doorman_permits_restore(p.permits, row, bytes, NULL, p.now),
                             DOORMAN_OK);
            memory_fails_from(1);
            status = doorman_permits_mark_changed(p.permits, row, bytes, NULL);
            assert_int_equal(status, DOORMAN_OK);
            (void)memory_works();
            assert_int_equal(process_write(&p), 1);
            assert_int_equal(store_find(&p.store, &header), 0);
            process_end(&p);
        }
    }
}

TEST(a_removal_that_was_not_written_needs_memory) {
    struct process p = process_of(QUOTA);
    unsigned char row[ROW_MAX];
    assert_true(take(&p, "a", 1));
    (void)process_write(&p);
    doorman_permits_reset(p.permits, ITEM_OF("r", "a"), NULL, NULL, NULL);
    size_t bytes = doorman_permits_next_changed(p.permits, row, p.now);
    assert_true(header_of(row, bytes).removed);
    memory_fails_from(1);
    assert_int_equal(doorman_permits_mark_changed(p.permits, row, bytes, NULL),
                     DOORMAN_OUT_OF_MEMORY);
    (void)memory_works();
    assert_int_equal(doorman_permits_mark_changed(p.permits, row, bytes, NULL), DOORMAN_OK);
    assert_int_equal(process_write(&p), 1);
    assert_int_equal(p.store.count, 0);
    process_end(&p);
}

/* P19. A row without room is refused even if the limit evicts, because the row of the evicted
 * counter would be lost. */
TEST(a_row_without_room_is_refused) {
    struct process p = process_of("{\"name\": \"q\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100, "
                                  "\"window\": \"month\", \"max_keys\": 1}");
    unsigned char row[ROW_MAX];
    const size_t bytes = row_of(QUOTA, row);
    doorman_error error = {0};
    assert_true(take(&p, "a", 1));
    assert_int_equal(doorman_permits_restore(p.permits, row, bytes, &error, p.now),
                     DOORMAN_RESOURCE_EXHAUSTED);
    assert_string_equal(error.text, "there is no room for one more: raise max_keys of the limit");
    process_end(&p);
}

/* Rows before the malformed one are restored, and none after it. A row that is cut off anywhere
 * does no harm. */
TEST(the_first_row_that_cannot_be_restored_is_named) {
    enum { ROWS = 40 };
    static unsigned char bytes[ROWS][ROW_MAX];
    doorman_stored_row rows[ROWS];
    struct process from = process_of(QUOTA);
    for (size_t i = 0; i < ROWS; i++) {
        char key[8];
        snprintf(key, sizeof key, "%zu", i);
        assert_true(take(&from, key, 1 + (double)i));
        rows[i] = (doorman_stored_row){
            bytes[i], doorman_permits_next_changed(from.permits, bytes[i], from.now)};
    }
    for (size_t wrong = 0; wrong <= ROWS; wrong++) {
        struct process to = process_of(QUOTA);
        const size_t whole = wrong < ROWS ? rows[wrong].bytes : 0;
        doorman_error error = {0};
        size_t count = ROWS;
        if (wrong < ROWS) rows[wrong].bytes = random_below(whole);
        doorman_status status =
            doorman_permits_restore_rows(to.permits, rows, &count, &error, to.now);
        assert_int_equal(status, wrong < ROWS ? DOORMAN_INVALID_ARGUMENT : DOORMAN_OK);
        assert_int_equal(count, wrong);
        assert_true((strstr(error.text, "bytes: the row ends") != NULL) == (wrong < ROWS));
        for (size_t i = 0; i < ROWS; i++) {
            doorman_permit_row row = header_of(bytes[i], wrong == i ? whole : rows[i].bytes);
            assert_exact(left(&to, row.key), i < wrong ? left(&from, row.key) : 100);
        }
        if (wrong < ROWS) rows[wrong].bytes = whole;
        process_end(&to);
    }
    process_end(&from);
}

/* ---- random histories ----------------------------------------------------------------------- */

static const char *const keys[] = {"a", "b", "vip-c", ""};
static const char *const resources[] = {"r", "s"};

/* All kinds and scopes. The windows are short, so that much happens in a history. */
#define RANDOM_LIMITS                                                                              \
    "{\"name\": \"w\", \"kind\": \"FIXED_WINDOW\", \"limit\": 40, \"window\": 90, "                \
    "\"refunds\": true, \"durable\": true, \"overrides\": [{\"keys\": [\"vip-*\"], \"limit\": "    \
    "60}]}, "                                                                                      \
    "{\"name\": \"b\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.3, \"size\": 30, \"max_debt\": "    \
    "20, "                                                                                         \
    "\"refunds\": true, \"durable\": true}, "                                                      \
    "{\"name\": \"s\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 50, \"window\": 77, "              \
    "\"durable\": true}, "                                                                         \
    "{\"name\": \"t\", \"kind\": \"TIERS\", \"durable\": true, \"tiers\": [{\"limit\": 10, "       \
    "\"window\": 16, \"active\": 20, \"cooldown\": 5, \"skippable\": true}, {\"limit\": 30, "      \
    "\"window\": 64, \"active\": 40, \"cooldown\": 30}]}, "                                        \
    "{\"name\": \"p\", \"kind\": \"SLIDING_WINDOW\", \"limit\": 90, \"window\": 60, \"per\": "     \
    "\"resource\", \"durable\": true}, "                                                           \
    "{\"name\": \"g\", \"kind\": \"FIXED_WINDOW\", \"limit\": 150, \"window\": \"minute\", "       \
    "\"per\": \"template\", \"durable\": true}"

static void random_item(doorman_permit_item *item) {
    *item = (doorman_permit_item){.resource_id = resources[random_below(COUNT(resources))],
                                  .key = keys[random_below(COUNT(keys))],
                                  .cost = (double)random_below(48) / 4};
    item->has_min = random_below(3) == 0;
    if (item->has_min) item->min = (double)random_below((size_t)(item->cost * 4) + 1) / 4;
}

static void assert_same_permit(const doorman_permit *p, const doorman_permit *twin) {
    assert_int_equal(p->granted, twin->granted);
    assert_int_equal(p->wait, twin->wait);
    assert_int_equal(p->reason, twin->reason);
    assert_int_equal(p->retry_after, twin->retry_after);
    for (size_t i = 0; i < p->item_count; i++) {
        assert_exact(p->items[i].granted, twin->items[i].granted);
    }
    assert_int_equal(p->detail_count, twin->detail_count);
    for (size_t i = 0; i < p->detail_count; i++) {
        assert_exact(p->details[i].used, twin->details[i].used);
        assert_exact(p->details[i].remaining, twin->details[i].remaining);
        assert_int_equal(p->details[i].reset_after, twin->details[i].reset_after);
        assert_int_equal(p->details[i].tier, twin->details[i].tier);
    }
}

/* Makes the same random call on both processes. The second one is never stopped. */
static void random_call(struct process *p, struct process *twin) {
    struct process *both[] = {p, twin};
    doorman_permit_item item;
    random_item(&item);
    const size_t kind = random_below(24);
    const doorman_time ban = (doorman_time)random_below(40) * SECOND;
    const double refund = random_below(2) ? -1 : 1;
    for (size_t i = 0; i < 2; i++) {
        struct process *one = both[i];
        double charged = 0;
        doorman_status status = DOORMAN_OK;
        if (kind == 0) {
            status =
                doorman_permits_reset(one->permits, &item, item.has_min ? "s" : NULL, NULL, NULL);
        } else if (kind == 1) {
            status = doorman_permits_ban(one->permits, &item, ban, NULL, one->now);
        } else if (kind < 6) {
            doorman_permit_item report = item;
            report.has_min = false;
            report.min = 0;
            report.cost *= refund;
            status = doorman_permits_report(one->permits, &report, &charged, NULL, one->now);
        } else {
            const doorman_permit_request request = {
                .items = &item, .item_count = 1, .detail = true, .max_wait = ban / 2};
            status = doorman_permits_acquire(one->permits, &request, &one->out, NULL, one->now);
        }
        assert_int_equal(status, DOORMAN_OK);
    }
    if (kind >= 6) assert_same_permit(&p->out, &twin->out);
}

/* D3, D5. A process that writes before it stops, and reads after it, decides exactly like a
 * process that never stops. */
TEST(a_process_that_is_restarted_decides_like_one_that_is_not) {
    for (int history = 0; history < 40; history++) {
        struct process p = process_of(RANDOM_LIMITS), twin = process_of(RANDOM_LIMITS);
        for (int step = 0; step < 400; step++) {
            const doorman_time time =
                (doorman_time)(random_below(3) ? random_below(4000) : random_below(20000)) *
                (SECOND / 1000);
            const size_t what = random_below(24);
            if (what == 0) {
                pass(&twin, time);
                /* new slices begin at multiples of window / 16 of `now` (P12) */
                p.boot = twin.now % (77 * 60 * SECOND) + 77 * 60 * SECOND;
                process_restart(&p, time);
            } else if (what == 1) {
                (void)process_write(&p);
            } else if (what < 10) {
                pass(&p, time);
                pass(&twin, time);
            } else {
                random_call(&p, &twin);
            }
            if (what == 2) doorman_permits_update(p.permits, p.now);
            if (what == 3) doorman_permits_update(twin.permits, twin.now);
        }
        process_end(&p);
        process_end(&twin);
    }
}

struct grant {
    const char *key;
    doorman_time at; /* by a clock that nobody sets */
    double units;
};

/* Returns how many units of a key were granted in the last 15/16 of the window of SLIDING. These
 * units have not returned yet (P12). */
static double granted_lately(const struct grant *grants, size_t count, const char *key,
                             doorman_time now) {
    double units = 0;
    for (size_t i = 0; i < count; i++) {
        bool is_late = now - grants[i].at < 1500 * SECOND;
        if (is_late && strcmp(grants[i].key, key) == 0) units += grants[i].units;
    }
    return units;
}

/* D5. If the clock of the wall is set back, a restarted process never offers more of a bucket than
 * its twin, which is not restarted and does not see that clock. Slices begin at other times after a
 * restart, so the use of a window is compared with the grants. */
TEST(a_clock_that_is_set_back_never_gives_more) {
    for (int history = 0; history < 40; history++) {
        struct process p = process_of(BUCKET ", " SLIDING), twin = process_of(BUCKET);
        static struct grant grants[300];
        size_t count = 0;
        for (int step = 0; step < 300; step++) {
            const doorman_time time = (doorman_time)random_below(60000) * (SECOND / 1000);
            const size_t what = random_below(16);
            const char *key = keys[random_below(COUNT(keys))];
            const double cost = (double)random_below(120) / 4;
            if (what == 0) {
                process_restart(&p, time - (doorman_time)random_below(2) * HOUR);
                pass(&twin, time);
            } else if (what == 1) {
                p.epoch -= (doorman_time)random_below(7200) * SECOND;
            } else if (what < 6) {
                pass(&p, time);
                pass(&twin, time);
            } else if (take(&p, key, cost)) {
                assert_true(take(&twin, key, cost));
                assert_true(p.out.details[0].remaining <= twin.out.details[0].remaining);
                grants[count++] = (struct grant){key, twin.now, cost};
                assert_true(p.out.details[1].used >= granted_lately(grants, count, key, twin.now));
            }
        }
        process_end(&p);
        process_end(&twin);
    }
}

/* D5. In each window of the clock `epoch` at most the limit is granted, plus what was granted since
 * the last write before each crash. The clock is set back and forward at any moment. */
TEST(a_crash_forgets_only_what_was_granted_since_the_last_write) {
    enum { WINDOWS = 4096 };
    for (int history = 0; history < 40; history++) {
        static double granted[WINDOWS], unwritten[WINDOWS];
        struct process p = process_of("{\"name\": \"q\", \"kind\": \"FIXED_WINDOW\", "
                                      "\"limit\": 50, \"window\": 60, \"durable\": true}");
        memset(granted, 0, sizeof granted);
        memset(unwritten, 0, sizeof unwritten);
        const int64_t origin = p.epoch / (60 * SECOND) - WINDOWS / 2;
        for (int step = 0; step < 500; step++) {
            const doorman_time time = (doorman_time)random_below(20) * SECOND;
            const size_t what = random_below(16);
            if (what < 2) {
                (void)process_write(&p);
                memset(unwritten, 0, sizeof unwritten);
            } else if (what == 2) {
                process_crash(&p, time - (doorman_time)random_below(3) * 40 * SECOND);
                for (size_t i = 0; i < WINDOWS; i++) granted[i] -= unwritten[i];
                memset(unwritten, 0, sizeof unwritten);
            } else if (what == 3) {
                p.epoch += ((doorman_time)random_below(200) - 110) * SECOND;
                pass(&p, 0);
            } else if (what < 8) {
                pass(&p, time);
            } else if (take(&p, "a", (double)random_below(20))) {
                int64_t window = p.permits->at.epoch / (60 * SECOND) - origin;
                assert_true(window >= 0 && window < WINDOWS);
                granted[window] += p.out.items[0].granted;
                unwritten[window] += p.out.items[0].granted;
                assert_true(granted[window] <= 50);
            }
        }
        process_end(&p);
    }
}
