/* Tests which rows of the audit are removed (E5): slow, simple code must remove the same rows of
 * random audits. SEED=N repeats a run. The store is a list in memory. */
#define AUDIT_BYTES_MAX ((size_t)20000)
#include "../../server/admin/audit_trim.c"
#include "../../server/admin/reset_count.c"
#include "../test.h"

#define ROW_MAX 400
#define ROW_BYTES 2000
#define TOKENS 5
#define DAY INT64_C(86400)

struct stored {
    uint64_t id;
    int64_t ends_at;
    int token;
    bool is_support, is_bulk, is_deleted;
    size_t bytes;
    char *text;
};

/* The rows, the newest first. */
struct store {
    struct stored rows[ROW_MAX];
    size_t count;
    bool fails;
};

enum store_result server_store_list_notes(struct store *store, const char *kind, const char *before,
                                          store_visitor *visit, void *context) {
    char identity[AUDIT_IDENTITY];
    assert_string_equal(kind, AUDIT_NOTE);
    assert_string_equal(before, "");
    if (store->fails) return STORE_FAILED;
    for (size_t i = 0; i < store->count; i++) {
        const struct stored *row = &store->rows[i];
        server_audit_identity(identity, row->id);
        const struct store_note note = {
            .kind = kind, .identity = identity, .ends_at = row->ends_at, .text = row->text};
        if (!row->is_deleted && !visit(context, &note)) break;
    }
    return STORE_OK;
}

enum store_result server_store_put_notes(struct store *store, const struct store_note *notes,
                                         size_t count) {
    assert_in_range(count, 1, STORE_NOTES_MAX);
    for (size_t i = 0; i < count; i++) {
        const uint64_t id = strtoull(notes[i].identity, NULL, 10);
        assert_null(notes[i].text);
        for (size_t k = 0; k < store->count; k++) {
            if (store->rows[k].id == id) store->rows[k].is_deleted = true;
        }
    }
    return STORE_OK;
}

/* Adds a row that is newer than all others.
 *   age   seconds */
static void row_add(struct store *store, int token, bool is_support, bool is_bulk, int64_t age,
                    size_t bytes) {
    assert_true(store->count < ROW_MAX);
    memmove(store->rows + 1, store->rows, store->count * sizeof *store->rows);
    struct stored *row = store->rows;
    *row = (struct stored){.id = ++store->count,
                           .ends_at = (int64_t)time(NULL) + DAY * AUDIT_DAYS - age,
                           .token = token,
                           .is_support = is_support,
                           .is_bulk = is_bulk};
    row->text = (char *)malloc(ROW_BYTES + bytes);
    assert_non_null(row->text);
    const int used =
        snprintf(row->text, ROW_BYTES,
                 "{\"id\":1,\"at\":\"2026-11-29T00:00:00Z\",\"token\":\"t\\\"%d\","
                 "\"role\":\"%s\",\"what\":\"reset\"%s,\"reason\":\"\\\"bulk\\\":true",
                 token, is_support ? "support" : "admin", is_bulk ? ",\"bulk\":true" : "");
    memset(row->text + used, 'x', bytes);
    memcpy(row->text + used + bytes, "\"}", 3);
    row->bytes = strlen(row->text);
}

static void store_free(struct store *store) {
    for (size_t i = 0; i < store->count; i++) free(store->rows[i].text);
    free(store);
}

/* ---- slow obvious code ---------------------------------------------------------------------- */

static size_t sum(const struct store *store, int token, const bool *gone) {
    size_t bytes = 0;
    for (size_t i = 0; i < store->count; i++) {
        if (!gone[i] && (token < 0 || store->rows[i].token == token)) bytes += store->rows[i].bytes;
    }
    return bytes;
}

static bool is_free(const struct store *store, size_t index, const bool *gone) {
    const struct stored *row = &store->rows[index];
    const int64_t age = (int64_t)time(NULL) + DAY * AUDIT_DAYS - row->ends_at;
    return index > 0 && !gone[index] && !(row->is_support && age < DAY);
}

/* Returns the row that is removed next; 0: none. */
static size_t next_of(const struct store *store, const bool *gone) {
    size_t most = 0, found = 0;
    int token = -1;
    for (size_t i = 0; i < store->count; i++) { /* the token with most bytes */
        const int other = store->rows[i].token;
        bool has_free = false;
        for (size_t k = 0; k < store->count; k++) {
            has_free = has_free || (store->rows[k].token == other && is_free(store, k, gone));
        }
        if (!has_free || (token >= 0 && sum(store, other, gone) <= most)) continue;
        token = other;
        most = sum(store, other, gone);
    }
    for (int bulk = 1; bulk >= 0 && !found; bulk--) { /* its oldest row */
        for (size_t i = store->count; i-- > 1 && !found;) {
            const struct stored *row = &store->rows[i];
            if (row->token == token && is_free(store, i, gone) && row->is_bulk == (bulk == 1)) {
                found = i;
            }
        }
    }
    return found;
}

static void trim_slowly(const struct store *store, bool *gone) {
    const int64_t now = (int64_t)time(NULL);
    for (size_t i = 1; i < store->count; i++) gone[i] = store->rows[i].ends_at <= now;
    if (sum(store, -1, gone) <= AUDIT_BYTES_MAX) return;
    for (size_t next = 1; next > 0 && sum(store, -1, gone) > AUDIT_BYTES_MAX / 10 * 9;) {
        next = next_of(store, gone);
        if (next > 0) gone[next] = true;
    }
}

/* ---- tests ---------------------------------------------------------------------------------- */

static uint64_t random_state;

static int below(int count) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)(random_state >> 33) % count;
}

static struct store *store_make(void) {
    struct store *store = (struct store *)calloc(1, sizeof *store);
    const int count = below(120), bulk = below(4);
    int64_t age = DAY * (below(3) ? 3 : AUDIT_DAYS + 2);
    assert_non_null(store);
    for (int i = 0; i < count && age > 60; i++) {
        const int token = below(3) ? below(TOKENS) : 0;
        age -= age / 20 + below(4000); /* no row is within a minute of an edge */
        if (llabs(age - DAY) < 60 || llabs(age - DAY * AUDIT_DAYS) < 60) age -= 120;
        row_add(store, token, token<3, below(4) < bulk, age> 60 ? age : 60,
                (size_t)below(below(10) ? 300 : ROW_BYTES));
    }
    return store;
}

TEST(random_audits_lose_what_slow_code_chooses) {
    const char *given = getenv("SEED");
    const uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("SEED=%" PRIu64 "\n", seed);
    random_state = seed;
    for (int round = 0; round < 200; round++) {
        bool gone[ROW_MAX] = {false};
        struct audit_size size = {.bytes = 1};
        struct store *store = store_make();
        trim_slowly(store, gone);
        assert_true(server_audit_trim(&size, store));
        for (size_t i = 0; i < store->count; i++) {
            if (store->rows[i].is_deleted != gone[i]) {
                fail_msg("SEED=%" PRIu64 " round %d row %zu", seed, round, i);
            }
        }
        assert_int_equal(size.bytes, sum(store, -1, gone));
        assert_int_equal(size.last_id, store->count);
        assert_true(size.trim_bytes >= AUDIT_BYTES_MAX && size.trim_bytes >= size.bytes);
        server_resets_clear(&size.resets);
        store_free(store);
    }
}

/* E5 */
TEST(a_token_pushes_only_its_own_rows_out) {
    struct audit_size size = {.bytes = 0};
    struct store *store = (struct store *)calloc(1, sizeof *store);
    assert_non_null(store);
    for (int i = 0; i < 10; i++) row_add(store, 1, false, true, 9 * DAY, 400);
    for (int i = 0; i < 100; i++) row_add(store, 0, i % 2, false, 2 * DAY, 400);
    assert_true(server_audit_trim(&size, store));
    for (size_t i = 100; i < 110; i++) assert_false(store->rows[i].is_deleted);
    assert_true(store->rows[99].is_deleted);
    assert_true(size.bytes <= AUDIT_BYTES_MAX);
    store_free(store);
}

/* E5: rows of the role support stay for a day, even if the audit exceeds its bound. They count
 * towards the bound that each token of this role has. */
TEST(the_last_day_of_the_role_support_stays_also_above_the_bound) {
    const struct token_identity first = {.role = ROLE_SUPPORT, .name = "t\"0"};
    const struct token_identity other = {.role = ROLE_SUPPORT, .name = "t\"1"};
    const struct token_identity admin = {.role = ROLE_ADMIN, .name = "t\"0"};
    struct audit_size size = {.bytes = 0};
    struct store *store = (struct store *)calloc(1, sizeof *store);
    assert_non_null(store);
    for (int i = 0; i < 100; i++) row_add(store, 0, true, true, 80000, 400);
    assert_true(server_audit_trim(&size, store));
    for (size_t i = 0; i < 100; i++) assert_false(store->rows[i].is_deleted);
    assert_true(size.bytes > AUDIT_BYTES_MAX && size.trim_bytes > size.bytes);
    const size_t left = AUDIT_SUPPORT_BYTES_MAX - size.bytes;
    assert_true(server_audit_has_room(&size, &first, left));
    assert_false(server_audit_has_room(&size, &first, left + 1));
    assert_true(server_audit_has_room(&size, &other, AUDIT_SUPPORT_BYTES_MAX));
    assert_true(server_audit_has_room(&size, &admin, 2 * AUDIT_SUPPORT_BYTES_MAX));
    assert_true(server_audit_add(&size, &first, left, NULL));
    assert_true(server_audit_add(&size, &other, 7, NULL));
    assert_true(server_audit_add(&size, &admin, 7, NULL));
    assert_false(server_audit_has_room(&size, &first, 1));
    assert_false(server_audit_has_room(&size, &other, AUDIT_SUPPORT_BYTES_MAX - 6));
    store->fails = true;
    const size_t bytes = size.bytes;
    assert_false(server_audit_trim(&size, store));
    assert_int_equal(size.bytes, bytes);
    store_free(store);
}

/* A file has at most 64 tokens, but they can change. So the audit can have rows of more tokens. */
TEST(tokens_without_a_bound_of_their_own_share_one) {
    struct audit_size size = {.bytes = 0};
    struct token_identity token = {.role = ROLE_SUPPORT};
    for (int i = 0; i < AUDIT_SUPPORT_TOKENS + 20; i++) {
        snprintf(token.name, sizeof token.name, "n%d", i);
        assert_true(server_audit_add(&size, &token, AUDIT_SUPPORT_BYTES_MAX / 4, NULL));
    }
    assert_false(server_audit_has_room(&size, &token, 1));
    snprintf(token.name, sizeof token.name, "n%d", 7);
    assert_true(server_audit_has_room(&size, &token, AUDIT_SUPPORT_BYTES_MAX / 4));
}
