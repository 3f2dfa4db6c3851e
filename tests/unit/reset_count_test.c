/* How often the role `support` has made a counter fresh, compared with slow code that looks at each
 * pair of entries. SEED=N repeats a run. */
#include "../../server/admin/reset_count.c"
#include "../test.h"

#define ACTS 300
#define NOW INT64_C(1800000000)

/* ---- slow obvious code ---------------------------------------------------------------------- */

static const char *text_of(const cJSON *entry, const char *name) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(entry, name));
    return text ? text : "";
}

static const char *resource_of(const cJSON *entry) {
    return text_of(entry, "resource_id")[0] ? text_of(entry, "resource_id")
                                            : text_of(entry, "resource");
}

/* Returns whether a reset of the entry `other` counts for the entry `one`. */
static bool is_same(const cJSON *one, const char *glob, const cJSON *other) {
    const char *shared_by = text_of(one, "shared_by");
    const bool of_glob = cJSON_HasObjectItem(other, "glob");
    if (cJSON_HasObjectItem(one, "glob")) glob = text_of(one, "glob");
    const bool of_resource = of_glob ? strcmp(text_of(other, "glob"), glob ? glob : "") == 0
                                     : cJSON_HasObjectItem(one, "glob") ||
                                           strcmp(resource_of(one), resource_of(other)) == 0;
    const bool of_key = cJSON_HasObjectItem(other, "key") &&
                        strcmp(text_of(one, "key"), text_of(other, "key")) == 0;
    if (!shared_by[0]) return of_resource && of_key;
    return strcmp(shared_by, text_of(other, "shared_by")) == 0 &&
           strcmp(text_of(one, "limit"), text_of(other, "limit")) == 0 &&
           (of_resource || strcmp(shared_by, "template") == 0);
}

/*   glob   of the template of the resource of the entry */
static int count_slowly(cJSON *const acts[], int count, const cJSON *entry, const char *glob,
                        int64_t since) {
    int found = 0;
    for (int i = 0; i < count; i++) {
        const cJSON *row = acts[i], *after = cJSON_GetObjectItem(row, "after"), *item = NULL;
        int64_t at = 0;
        assert_true(reset_read_time(row, &at));
        if (at <= since || strcmp(text_of(row, "role"), "support") != 0) continue;
        const bool fills = cJSON_HasObjectItem(after, "add") ||
                           cJSON_HasObjectItem(cJSON_GetObjectItem(after, "set"), "size");
        found += fills && is_same(entry, glob, row);
        if (strcmp(text_of(row, "what"), "reset") != 0) continue;
        cJSON_ArrayForEach(item, cJSON_GetObjectItem(row, "entries")) {
            found += !cJSON_GetObjectItem(item, "ban") && is_same(entry, glob, item);
        }
    }
    return found;
}

/* ---- random acts ---------------------------------------------------------------------------- */

static uint64_t random_state;

static int below(int count) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((random_state >> 33) % (uint64_t)count);
}

static void add_name(cJSON *entry, const char *name, const char *letter) {
    char text[16];
    snprintf(text, sizeof text, "%s%d", letter, below(3));
    cJSON_AddStringToObject(entry, name, text);
}

static cJSON *entry_make(void) {
    cJSON *entry = cJSON_CreateObject();
    const bool of_glob = below(5) == 0;
    add_name(entry, of_glob ? "glob" : "resource_id", "x");
    if (below(10)) add_name(entry, "key", below(2) ? "x" : "");
    if (of_glob || below(2)) return entry;
    add_name(entry, "limit", "x");
    if (below(2)) {
        cJSON_AddStringToObject(entry, "shared_by", below(2) ? "resource" : "template");
    }
    return entry;
}

static cJSON *act_make(void) {
    static const char *const names[] = {"reset", "reset", "ban", "override", "undo"};
    const time_t at = (time_t)(NOW - below(1000));
    char text[32];
    struct tm parts;
    cJSON *row = cJSON_CreateObject();
    gmtime_r(&at, &parts);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    cJSON_AddStringToObject(row, "at", text);
    cJSON_AddStringToObject(row, "role", below(5) ? "support" : "admin");
    cJSON_AddStringToObject(row, "what", names[below(5)]);
    if (below(3) == 0) { /* an override */
        add_name(row, below(3) ? "resource" : "glob", "x");
        add_name(row, "limit", "x");
        add_name(row, "key", "x");
        cJSON *after = cJSON_AddObjectToObject(row, "after");
        if (below(3) == 0) cJSON_AddNumberToObject(after, "add", 5);
        cJSON *set = cJSON_AddObjectToObject(after, "set");
        cJSON_AddNumberToObject(set, below(2) ? "size" : "rate", 7);
        return row;
    }
    cJSON *entries = cJSON_AddArrayToObject(row, "entries");
    for (int i = below(5); i > 0; i--) {
        cJSON *entry = entry_make();
        if (below(5) == 0) cJSON_AddNumberToObject(entry, "ban", 60);
        cJSON_AddItemToArray(entries, entry);
    }
    return row;
}

/* ---- tests ---------------------------------------------------------------------------------- */

/* E5 */
TEST(resets_are_counted_as_slow_code_counts_them) {
    const char *given = getenv("SEED");
    const uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("SEED=%" PRIu64 "\n", seed);
    random_state = seed;
    for (int round = 0; round < 20; round++) {
        struct resets_seen seen = {.count = 0};
        cJSON *acts[ACTS];
        int matches = 0;
        for (int i = 0; i < ACTS; i++) {
            acts[i] = act_make();
            assert_true(server_resets_add_act(&seen, acts[i]));
            cJSON *entry = entry_make();
            const int64_t since = NOW - below(1200);
            const char *glob = below(2) ? "x1" : NULL;
            const int expected = count_slowly(acts, i + 1, entry, glob, since);
            const int got = server_resets_count(&seen, entry, glob, since);
            if (got != expected) {
                fail_msg("SEED=%" PRIu64 " round %d: %s: expected %d, got %d", seed, round,
                         cJSON_PrintUnformatted(entry), expected, got);
            }
            matches += got > 0;
            cJSON_Delete(entry);
        }
        assert_true(matches > 20);
        for (int i = 0; i < ACTS; i++) cJSON_Delete(acts[i]);
        server_resets_clear(&seen);
        assert_int_equal(seen.count, 0);
    }
}

TEST(what_is_no_act_counts_for_nothing) {
    struct resets_seen seen = {.count = 0};
    cJSON *entry = cJSON_Parse("{\"resource_id\": \"a\", \"key\": \"b\"}");
    cJSON *row = cJSON_Parse("{\"role\": \"support\", \"what\": \"reset\", \"at\": \"soon\", "
                             "\"entries\": [{\"resource_id\": \"a\", \"key\": \"b\"}]}");
    assert_int_equal(server_resets_count(&seen, entry, NULL, 0), 0);
    assert_true(server_resets_add_act(&seen, NULL));
    assert_true(server_resets_add_act(&seen, row));
    assert_int_equal(server_resets_count(&seen, entry, NULL, 0), 0);
    assert_true(server_resets_add(&seen, entry, 5));
    assert_int_equal(server_resets_count(&seen, entry, NULL, 4), 1);
    assert_int_equal(server_resets_count(&seen, entry, NULL, 5), 0);
    server_resets_clear(&seen);
    cJSON_Delete(entry);
    cJSON_Delete(row);
}
