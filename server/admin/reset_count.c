/* doorman_server, part ADMIN: how often the role support has made a counter fresh.
 *
 *     a reset of                        counts for
 *     a key at a resource               this key at this resource
 *     a key at all resources of a       this key at each of these resources
 *     template, by an override
 *     a counter of a limit that the     this limit at this resource, and the key of the message
 *     keys of a resource share
 *     one that all resources of a       this limit at any resource, and the key of the message
 *     template share
 *
 * An act on all resources of a template is only done if each of them may be reset once more. For
 * such an act the resets of the key at single resources of all templates count too, because the
 * templates may have changed since those resets. */
#include "reset_count.h"

#define FIRST_CAPACITY 64

/* ---- hashes --------------------------------------------------------------------------------- */

static const char *reset_text(const cJSON *entry, const char *name) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, name));
}

static const char *reset_resource(const cJSON *entry) {
    const char *resource = reset_text(entry, "resource_id");
    if (!resource || !*resource) resource = reset_text(entry, "resource");
    return resource ? resource : "";
}

/* Returns the FNV-1a hash of texts, with the zeros at their ends.
 *   kind   makes the hashes of equal texts of different kinds differ */
static uint64_t reset_hash(uint64_t seed, char kind, const char *const texts[3]) {
    uint64_t hash = (14695981039346656037U ^ seed ^ (unsigned char)kind) * 1099511628211U;
    for (size_t i = 0; i < 3; i++) {
        const unsigned char *at = (const unsigned char *)texts[i];
        do {
            hash = (hash ^ *at) * 1099511628211U;
        } while (*at++);
    }
    return hash ^ hash >> 29;
}

/* Returns the hash of a key at a resource. */
static uint64_t reset_hash_key(uint64_t seed, const char *resource, const char *key) {
    return reset_hash(seed, 'k', (const char *const[]){resource, key, ""});
}

/* Returns the hash of a key at any resource. */
static uint64_t reset_hash_any(uint64_t seed, const char *key) {
    return reset_hash(seed, 'a', (const char *const[]){key, "", ""});
}

/* Returns the hash of a key at all resources of a template. */
static uint64_t reset_hash_glob(uint64_t seed, const char *glob, const char *key) {
    return reset_hash(seed, 'g', (const char *const[]){glob, key, ""});
}

/* Returns the hash of a counter that keys share. If all resources of a template share the counter,
 * the hash leaves the resource out. */
static uint64_t reset_hash_shared(uint64_t seed, const cJSON *entry, const char *shared_by,
                                  bool has_resource) {
    const char *limit = reset_text(entry, "limit");
    const char *const texts[] = {shared_by, limit ? limit : "",
                                 has_resource ? reset_resource(entry) : ""};
    return reset_hash(seed, has_resource ? 'r' : 't', texts);
}

/* ---- resets --------------------------------------------------------------------------------- */

void server_resets_clear(struct resets_seen *seen) {
    free(seen->items);
    free(seen->heads);
    *seen = (struct resets_seen){.count = 0};
}

static void reset_link(struct resets_seen *seen, size_t index) {
    assert(index < seen->capacity && (seen->capacity & (seen->capacity - 1)) == 0);
    size_t *head = &seen->heads[seen->items[index].hash & (seen->capacity - 1)];
    seen->items[index].next = *head;
    *head = index + 1;
}

/* Makes room for one more reset. Returns false on failure. */
static bool reset_reserve(struct resets_seen *seen) {
    const size_t capacity = seen->capacity ? 2 * seen->capacity : FIRST_CAPACITY;
    if (seen->count < seen->capacity) return true;
    if (seen->capacity == 0 && getentropy(&seen->seed, sizeof seen->seed) != 0) return false;
    size_t *heads = (size_t *)calloc(capacity, sizeof *heads);
    void *items = heads ? realloc(seen->items, capacity * sizeof *seen->items) : NULL;
    if (!items) {
        free(heads);
        return false;
    }
    free(seen->heads);
    seen->heads = heads;
    seen->items = (struct reset_seen *)items;
    seen->capacity = capacity;
    for (size_t i = 0; i < seen->count; i++) reset_link(seen, i);
    return true;
}

static bool reset_add_hash(struct resets_seen *seen, uint64_t hash, int64_t at) {
    if (!reset_reserve(seen)) return false;
    seen->items[seen->count] = (struct reset_seen){.hash = hash, .at = at};
    reset_link(seen, seen->count++);
    return true;
}

static bool reset_add_key(struct resets_seen *seen, const cJSON *entry, const char *key,
                          int64_t at) {
    const char *glob = reset_text(entry, "glob");
    if (glob) return reset_add_hash(seen, reset_hash_glob(seen->seed, glob, key), at);
    return reset_add_hash(seen, reset_hash_key(seen->seed, reset_resource(entry), key), at) &&
           reset_add_hash(seen, reset_hash_any(seen->seed, key), at);
}

bool server_resets_add(struct resets_seen *seen, const cJSON *entry, int64_t at) {
    const char *key = reset_text(entry, "key"), *shared_by = reset_text(entry, "shared_by");
    if (!reset_reserve(seen)) return false; /* there is a seed then */
    if (key && !reset_add_key(seen, entry, key, at)) return false;
    if (!shared_by || !*shared_by || !reset_text(entry, "limit")) return true;
    const bool has_resource = strcmp(shared_by, "template") != 0;
    return reset_add_hash(seen, reset_hash_shared(seen->seed, entry, shared_by, has_resource), at);
}

/* Reads the time of an act, such as 2026-11-29T03:10:55Z. Returns false if it has none. */
static bool reset_read_time(const cJSON *row, int64_t *at) {
    static const char separators[] = "--T::Z";
    const char *text = reset_text(row, "at");
    int numbers[sizeof separators - 1] = {0};
    bool is_read = text != NULL;
    for (size_t i = 0; is_read && i < sizeof separators - 1; i++) {
        char *end = NULL;
        numbers[i] = (int)strtol(text, &end, 10);
        is_read = end > text && *end == separators[i];
        text = end + 1;
    }
    struct tm parts = {.tm_year = numbers[0] - 1900,
                       .tm_mon = numbers[1] - 1,
                       .tm_mday = numbers[2],
                       .tm_hour = numbers[3],
                       .tm_min = numbers[4],
                       .tm_sec = numbers[5]};
    *at = is_read ? (int64_t)timegm(&parts) : 0;
    return is_read;
}

bool server_resets_add_act(struct resets_seen *seen, const cJSON *row) {
    const char *role = reset_text(row, "role"), *what = reset_text(row, "what");
    const cJSON *after = cJSON_GetObjectItemCaseSensitive(row, "after"), *entry = NULL;
    const cJSON *set = cJSON_GetObjectItemCaseSensitive(after, "set");
    const bool fills = cJSON_HasObjectItem(after, "add") || cJSON_HasObjectItem(set, "size");
    int64_t at = 0;
    if (!role || strcmp(role, "support") != 0 || !reset_read_time(row, &at)) return true;
    bool done = !fills || server_resets_add(seen, row, at);
    if (!what || strcmp(what, "reset") != 0) return done;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(row, "entries")) {
        const bool is_reset = !cJSON_GetObjectItem(entry, "ban");
        done = done && (!is_reset || server_resets_add(seen, entry, at));
    }
    return done;
}

static int reset_count_hash(const struct resets_seen *seen, uint64_t hash, int64_t since) {
    int count = 0;
    for (size_t i = seen->heads[hash & (seen->capacity - 1)]; i > 0; i = seen->items[i - 1].next) {
        const struct reset_seen *item = &seen->items[i - 1];
        count += item->hash == hash && item->at > since;
    }
    return count;
}

int server_resets_count(const struct resets_seen *seen, const cJSON *entry, const char *glob,
                        int64_t since) {
    const char *shared_by = reset_text(entry, "shared_by"), *own_glob = reset_text(entry, "glob");
    const char *key = reset_text(entry, "key") ? reset_text(entry, "key") : "";
    const uint64_t seed = seen->seed;
    if (seen->capacity == 0) return 0;
    if (shared_by && *shared_by) {
        const bool has_resource = strcmp(shared_by, "template") != 0;
        return reset_count_hash(seen, reset_hash_shared(seed, entry, shared_by, has_resource),
                                since);
    }
    if (own_glob) glob = own_glob;
    const uint64_t hash =
        own_glob ? reset_hash_any(seed, key) : reset_hash_key(seed, reset_resource(entry), key);
    return reset_count_hash(seen, hash, since) +
           (glob ? reset_count_hash(seen, reset_hash_glob(seed, glob, key), since) : 0);
}
