/* doorman_server, part ADMIN: the overrides and the plan rows that the store keeps, each as a note.
 * The text of the note contains the row, and the identity of the note is the id of the row. Without
 * --shards the id of an override is the number of its act.
 *
 * A store may have several notes for one name, such as (resource, limit, key): after two acts at
 * once, or if a process ended before it had deleted the earlier note. The latest note counts, also
 * if it has ended. The store lists it first. The others are outranked: they are not put into force,
 * and are deleted. If they stayed, the end of the latest row would bring an earlier one back. With
 * --shards the notes are in etcd, and each node deletes the outranked ones. */
#include "admin.h"

/* ---- names of rows that have ended ---------------------------------------------------------- */

/* A set of texts, in a hash table with open addressing. The set owns the texts. */
struct names {
    char **texts;
    size_t count, capacity; /* capacity: 0, or a power of 2 */
};

static void names_free(struct names *names) {
    for (size_t i = 0; i < names->capacity; i++) free(names->texts[i]);
    free(names->texts);
}

/* Returns where a text is, or would be. Precondition: the table has a free place. */
static size_t names_find(char *const *texts, size_t capacity, const char *text) {
    assert(capacity > 0 && (capacity & (capacity - 1)) == 0);
    uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */
    for (const char *at = text; *at; at++) {
        hash = (hash ^ (unsigned char)*at) * UINT64_C(1099511628211);
    }
    size_t i = (size_t)(hash ^ hash >> 32) & (capacity - 1);
    while (texts[i] && strcmp(texts[i], text) != 0) i = (i + 1) & (capacity - 1);
    return i;
}

static bool names_have(const struct names *names, const char *text) {
    return names->count > 0 && names->texts[names_find(names->texts, names->capacity, text)];
}

static bool names_grow(struct names *names) {
    const size_t capacity = names->capacity ? 2 * names->capacity : 64;
    char **texts = (char **)calloc(capacity, sizeof *texts);
    if (!texts) return false;
    for (size_t i = 0; i < names->capacity; i++) {
        char *text = names->texts[i];
        if (text) texts[names_find(texts, capacity, text)] = text;
    }
    free(names->texts);
    names->texts = texts;
    names->capacity = capacity;
    return true;
}

/* Adds a text that the set does not have. Returns false if memory runs out. */
static bool names_add(struct names *names, const char *text) {
    if (2 * names->count >= names->capacity && !names_grow(names)) return false;
    char *copy = strdup(text);
    if (!copy) return false;
    names->texts[names_find(names->texts, names->capacity, text)] = copy;
    names->count++;
    return true;
}

/* ---- a pass over the notes of a kind -------------------------------------------------------- */

#define NAME_BYTES (4 * DOORMAN_ID_BYTES_MAX)
#define OUTRANKED_MAX 100000 /* deleted after one pass. The others are deleted after the next one */

/* Ids of notes, the largest first. */
struct ids {
    uint64_t *ids;
    size_t count, capacity;
};

/* Adds an id. Returns false if memory runs out. */
static bool ids_add(struct ids *all, uint64_t id) {
    if (all->count == all->capacity) {
        const size_t capacity = 2 * all->capacity + 64;
        void *grown = realloc(all->ids, capacity * sizeof *all->ids);
        if (!grown) return false;
        all->ids = (uint64_t *)grown;
        all->capacity = capacity;
    }
    all->ids[all->count++] = id;
    return true;
}

static int compare_ids(const void *left, const void *right) {
    const uint64_t one = *(const uint64_t *)left, other = *(const uint64_t *)right;
    return (one < other) - (one > other);
}

static bool ids_have(const struct ids *all, uint64_t id) {
    return all->count > 0 && bsearch(&id, all->ids, all->count, sizeof id, compare_ids);
}

struct notes_pass {
    struct service *service;
    const struct rows_wanted *wanted;
    struct names ended;
    struct ids visited;
    struct ids outranked; /* of notes to delete */
    bool failed;          /* out of memory */
};

/* Remembers a note that a later note outranks, for pass_delete. */
static void pass_outrank(struct notes_pass *pass, uint64_t id) {
    if (pass->outranked.count == OUTRANKED_MAX) return;
    if (!ids_add(&pass->outranked, id)) pass->failed = true;
}

/* Returns whether the row of a note is put into force. It is not if it has ended, or if a later row
 * has its name.
 *   id        of the note
 *   in_force  the id of the row that the permits have under this name; 0: none */
static bool pass_wants(struct notes_pass *pass, const char *name, const struct store_note *note,
                       uint64_t id, uint64_t in_force) {
    if (in_force > pass->visited.ids[0]) return false; /* a Redis has lost the note of that row */
    const bool has_ended = names_have(&pass->ended, name);
    /* the row in force has perhaps no note, and then its note outranks nothing */
    if (has_ended || (in_force > id && ids_have(&pass->visited, in_force))) pass_outrank(pass, id);
    if (has_ended || in_force > id) return false;
    if (note->ends_at == 0 || note->ends_at > (int64_t)time(NULL)) return true;
    if (!names_add(&pass->ended, name)) pass->failed = true;
    return false;
}

static void pass_log(const struct service *service, const char *kind, const struct store_note *note,
                     const char *error) {
    server_log(service->settings, LEVEL_ERROR,
               strcmp(kind, PLAN_NOTE) == 0 ? "a plan cannot be read, and stays in the store"
                                            : "an override cannot be read, and stays in the store",
               kind, note->identity, "error", error[0] ? error : "is not valid", LOG_END);
}

/* Deletes the notes that are outranked. Returns false if the store has failed. */
static bool pass_delete(const struct notes_pass *pass, struct store *store, const char *kind) {
    for (size_t i = 0; i < pass->outranked.count;) {
        char identities[STORE_NOTES_MAX][24];
        struct store_note notes[STORE_NOTES_MAX];
        size_t count = 0;
        for (; i < pass->outranked.count && count < STORE_NOTES_MAX; i++, count++) {
            snprintf(identities[count], 24, "%020" PRIu64, pass->outranked.ids[i]);
            notes[count] = (struct store_note){.kind = kind, .identity = identities[count]};
        }
        if (server_store_put_notes(store, notes, count) != STORE_OK) return false;
    }
    return true;
}

/* What a pass does with the notes of a kind. */
struct notes_kind {
    const char *name;
    store_visitor *visit;

    /* Looks at the next row of this kind, and ends it if it has no note. Precondition: the lock is
     * held.
     *   more      out: false if no row is left
     *   returns   the id of the row that has ended; 0: none has */
    uint64_t (*end_next)(const struct notes_pass *pass, doorman_permits *permits,
                         doorman_override_cursor *cursor, bool *more);
};

/* Logs that a row was ended, because the store has no note of it. */
static void pass_log_end(const struct notes_pass *pass, const char *kind, uint64_t row_id) {
    char id[24];
    snprintf(id, sizeof id, "%" PRIu64, row_id);
    server_log(pass->service->settings, LEVEL_INFO,
               "a row has ended, because the store says that an act has removed it", kind, id,
               LOG_END);
}

/* Ends the rows in force that have no note. Looks at no more than ROWS_AT_ONCE rows before it
 * releases the lock, unless the caller holds the lock. */
static void pass_end_others(const struct notes_pass *pass, const struct notes_kind *kind) {
    struct service *service = pass->service;
    doorman_override_cursor cursor = {0};
    for (bool more = true; more;) {
        uint64_t ended = 0;
        bool held = server_lock_is_held(&service->lock);
        if (!held) server_lock(&service->lock);
        doorman_permits *permits = doorman_server_permits(service->server);
        more = permits != NULL;
        for (int i = 0; i < ROWS_AT_ONCE && more && !ended; i++) {
            ended = kind->end_next(pass, permits, &cursor, &more);
        }
        if (!held) server_unlock(&service->lock);
        if (ended) pass_log_end(pass, kind->name, ended);
    }
}

static bool pass_run(struct service *service, struct store *store, const struct notes_kind *kind,
                     const struct rows_wanted *wanted) {
    struct notes_pass pass = {.service = service, .wanted = wanted};
    bool done = server_store_list_notes(store, kind->name, "", kind->visit, &pass) == STORE_OK &&
                !pass.failed;
    if (done && wanted->ends_others) pass_end_others(&pass, kind);
    if (done && wanted->deletes) {
        done = pass_delete(&pass, store, kind->name) || wanted->is_shared;
    }
    names_free(&pass.ended);
    free(pass.visited.ids);
    free(pass.outranked.ids);
    return done;
}

/* ---- overrides ------------------------------------------------------------------------------ */

/* Returns a member of a note as a text for cJSON_free, or NULL. */
static char *note_member(const struct store_note *note, const char *name) {
    cJSON *json = cJSON_Parse(note->text);
    cJSON *member = cJSON_GetObjectItemCaseSensitive(json, name);
    char *text = member ? cJSON_PrintUnformatted(member) : NULL;
    cJSON_Delete(json);
    return text;
}

bool server_override_read(const struct store_note *note, doorman_override_message *message) {
    char *text = note_member(note, "override");
    bool is_valid =
        text && doorman_json_read_override(message, text, strlen(text), NULL) == DOORMAN_OK;
    message->row.id = strtoull(note->identity, NULL, 10);
    cJSON_free(text);
    return is_valid && message->row.id > 0;
}

/* Sets a row as it is in the store. A row with the id late_id adds its units now, because its act
 * may have been written late. */
static doorman_status override_enter(const struct notes_pass *pass, doorman_permits *permits,
                                     const doorman_override_row *row, doorman_error *error) {
    const bool is_new = row->id == pass->wanted->late_id && row->add > 0;
    if (is_new &&
        doorman_permits_set_override(permits, row, error, doorman_clock()) == DOORMAN_OK) {
        return DOORMAN_OK;
    }
    return doorman_permits_restore_override(permits, row, error, doorman_clock());
}

/* Puts a row into force, unless pass_wants refuses it. Precondition: the lock is held. */
static doorman_status override_restore(struct notes_pass *pass, const struct store_note *note,
                                       doorman_permits *permits, const doorman_override_row *row,
                                       doorman_error *error) {
    char name[NAME_BYTES];
    doorman_override_info info;
    const bool is_there = doorman_permits_find_override(permits, row, &info);
    snprintf(name, sizeof name, "%c%s\x1f%s\x1f%s\x1f%s", row->resource_id ? 'r' : 'g',
             row->resource_id ? row->resource_id : row->identifier_glob, row->limit,
             row->key ? row->key : "", row->add > 0 ? "+" : "");
    if (!pass_wants(pass, name, note, row->id, is_there ? info.row.id : 0)) return DOORMAN_OK;
    const doorman_status status = override_enter(pass, permits, row, error);
    /* a window that it adds to may have ended */
    const bool has_ended =
        status == DOORMAN_OK && !doorman_permits_find_override(permits, row, &info);
    if (has_ended && !names_add(&pass->ended, name)) pass->failed = true;
    return status;
}

static bool override_visit(void *context, const struct store_note *note) {
    struct notes_pass *pass = (struct notes_pass *)context;
    if (!ids_add(&pass->visited, strtoull(note->identity, NULL, 10))) return false;
    struct service *service = pass->service;
    doorman_override_message message = {.expires_in = 0};
    doorman_error error = {0};
    bool is_valid = server_override_read(note, &message);
    bool held = server_lock_is_held(&service->lock);
    if (!held) server_lock(&service->lock);
    doorman_permits *permits = doorman_server_permits(service->server);
    doorman_status status = DOORMAN_INVALID_ARGUMENT;
    if (permits && is_valid) {
        status = override_restore(pass, note, permits, &message.row, &error);
    }
    if (!held) server_unlock(&service->lock);
    if (permits && status != DOORMAN_OK) pass_log(service, OVERRIDE_NOTE, note, error.text);
    doorman_override_message_uninit(&message);
    return permits && !pass->failed;
}

static uint64_t override_end_next(const struct notes_pass *pass, doorman_permits *permits,
                                  doorman_override_cursor *cursor, bool *more) {
    doorman_override_info info;
    *more = doorman_permits_next_override(permits, cursor, &info);
    if (!*more || ids_have(&pass->visited, info.row.id)) return 0;
    const uint64_t id = info.row.id;
    (void)doorman_permits_end_override(permits, &info.row, NULL, doorman_clock());
    return id;
}

/* ---- plan rows ------------------------------------------------------------------------------ */

bool server_plan_read(const struct store_note *note, doorman_plans_message *message) {
    char *text = note_member(note, "plan");
    bool is_valid =
        text && doorman_json_read_plans(message, text, strlen(text), NULL) == DOORMAN_OK;
    cJSON_free(text);
    return is_valid && !message->is_bulk && strtoull(note->identity, NULL, 10) > 0;
}

/* Puts a row into force, unless pass_wants refuses it. Precondition: the lock is held. */
static doorman_status plan_restore(struct notes_pass *pass, const struct store_note *note,
                                   doorman_permits *permits, const doorman_plan_row *read,
                                   doorman_error *error) {
    char name[NAME_BYTES];
    doorman_plan_info info;
    doorman_plan_row row = *read;
    row.id = strtoull(note->identity, NULL, 10);
    const bool is_there = doorman_permits_find_plan(permits, &row, &info);
    snprintf(name, sizeof name, "%s\x1f%s", row.identifier_glob, row.key);
    if (!pass_wants(pass, name, note, row.id, is_there ? info.row.id : 0)) return DOORMAN_OK;
    return doorman_permits_restore_plan(permits, &row, error, doorman_clock());
}

static bool plan_visit(void *context, const struct store_note *note) {
    struct notes_pass *pass = (struct notes_pass *)context;
    if (!ids_add(&pass->visited, strtoull(note->identity, NULL, 10))) return false;
    struct service *service = pass->service;
    doorman_plans_message message = {.tree = NULL};
    doorman_error error = {0};
    bool is_valid = server_plan_read(note, &message);
    bool held = server_lock_is_held(&service->lock);
    if (!held) server_lock(&service->lock);
    doorman_permits *permits = doorman_server_permits(service->server);
    doorman_status status = DOORMAN_INVALID_ARGUMENT;
    if (permits && is_valid) {
        status = plan_restore(pass, note, permits, &message.plans[0].row, &error);
    }
    if (!held) server_unlock(&service->lock);
    if (permits && status != DOORMAN_OK) pass_log(service, PLAN_NOTE, note, error.text);
    doorman_plans_message_uninit(&message);
    return permits && !pass->failed;
}

static uint64_t plan_end_next(const struct notes_pass *pass, doorman_permits *permits,
                              doorman_override_cursor *cursor, bool *more) {
    doorman_plan_info info;
    *more = doorman_permits_next_plan(permits, cursor, &info);
    if (!*more || ids_have(&pass->visited, info.row.id)) return 0;
    const uint64_t id = info.row.id;
    (void)doorman_permits_end_plan(permits, &info.row, NULL, doorman_clock());
    return id;
}

bool server_rows_read(struct service *service, struct store *store,
                      const struct rows_wanted *wanted) {
    static const struct notes_kind overrides = {OVERRIDE_NOTE, override_visit, override_end_next};
    static const struct notes_kind plans = {PLAN_NOTE, plan_visit, plan_end_next};
    return pass_run(service, store, &overrides, wanted) && pass_run(service, store, &plans, wanted);
}
