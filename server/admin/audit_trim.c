/* doorman_server, part ADMIN: which rows of the audit are removed (E5).
 *
 *     older than AUDIT_DAYS             always
 *     more than AUDIT_BYTES_MAX bytes   one by one, a row of the token that then has most bytes:
 *                                       the oldest of an act with many entries, else the oldest
 *     of the role support, of the       never
 *     last day
 *     the newest row                    never, because its number is that of the last act */
#include "audit_trim.h"

#define AUDIT_BYTES_KEPT (AUDIT_BYTES_MAX / 10 * 9) /* so that not each act removes rows */
#define TRIM_DAY 86400
#define TRIM_NONE SIZE_MAX

/* A row of the audit. */
struct trim_row {
    uint64_t id;
    size_t bytes, token; /* token: an index */
    size_t next;         /* the next newer row of the same token and class; TRIM_NONE: none */
    bool is_bulk, is_over, is_recent; /* is_bulk: of an act with many entries; is_recent: of the
                                         role support, of the last day */
    bool is_deleted;
};

/* What one token has written. */
struct trim_token {
    char name[TOKEN_NAME_MAX + 1];
    size_t bytes;
    size_t oldest[2]; /* rows that can be removed: with is_bulk, and all others */
};

struct trim {
    struct trim_row *rows; /* the newest is first */
    struct trim_token *tokens;
    size_t row_count, row_capacity, token_count, token_capacity, bytes;
    int64_t now;
    struct resets_seen resets;
    bool failed; /* out of memory */
};

/* ---- the rows ------------------------------------------------------------------------------- */

/* Makes room for one more item. Returns the array, or NULL if memory has run out. The old array
 * stays valid then. */
static void *trim_grow(void *items, size_t count, size_t *capacity, size_t bytes) {
    if (count < *capacity) return items;
    void *grown = realloc(items, (2 * *capacity + 64) * bytes);
    if (grown) *capacity = 2 * *capacity + 64;
    return grown;
}

/* Reads the token of a row: ..."token":"NAME","role":"ROLE"... Only the number and the time of the
 * row come before the token. A name is ASCII, so a backslash only stands before a quote or another
 * backslash.
 *   returns   whether its role is support */
static bool trim_read_token(const char *text, char name[TOKEN_NAME_MAX + 1]) {
    static const char before[] = "\"token\":\"", after[] = "\",\"role\":\"support\"";
    const char *at = strstr(text, before);
    size_t bytes = 0;
    name[0] = 0;
    if (!at) return false;
    for (at += sizeof before - 1; *at && *at != '"' && bytes < TOKEN_NAME_MAX; at++) {
        if (*at == '\\' && at[1]) at++;
        name[bytes++] = *at;
    }
    name[bytes] = 0;
    return strncmp(at, after, sizeof after - 1) == 0;
}

/* Returns the index of a token, or TRIM_NONE if memory has run out. */
static size_t trim_find_token(struct trim *all, const char *name) {
    size_t i = 0;
    while (i < all->token_count && strcmp(all->tokens[i].name, name) != 0) i++;
    if (i < all->token_count) return i;
    void *grown = trim_grow(all->tokens, i, &all->token_capacity, sizeof *all->tokens);
    if (!grown) return TRIM_NONE;
    all->tokens = (struct trim_token *)grown;
    all->tokens[i] = (struct trim_token){.oldest = {TRIM_NONE, TRIM_NONE}};
    snprintf(all->tokens[i].name, sizeof all->tokens[i].name, "%s", name);
    return all->token_count++;
}

/* Counts the resets of a row. Returns false if memory has run out. */
static bool trim_take_resets(struct trim *all, const char *text) {
    cJSON *row = cJSON_Parse(text);
    const bool done = server_resets_add_act(&all->resets, row);
    cJSON_Delete(row);
    return done;
}

static bool trim_take_row(void *context, const struct store_note *note) {
    struct trim *all = (struct trim *)context;
    char name[TOKEN_NAME_MAX + 1];
    const bool is_support = trim_read_token(note->text, name);
    const int64_t at = note->ends_at - (int64_t)TRIM_DAY * AUDIT_DAYS;
    const size_t token = trim_find_token(all, name);
    void *grown = trim_grow(all->rows, all->row_count, &all->row_capacity, sizeof *all->rows);
    if (grown) all->rows = (struct trim_row *)grown;
    const bool is_recent = is_support && at > all->now - TRIM_DAY;
    all->failed = token == TRIM_NONE || !grown || (is_recent && !trim_take_resets(all, note->text));
    if (all->failed) return false;
    all->rows[all->row_count++] =
        (struct trim_row){.id = strtoull(note->identity, NULL, 10),
                          .bytes = strlen(note->text),
                          .token = token,
                          .next = TRIM_NONE,
                          .is_bulk = strstr(note->text, "\"bulk\":true") != NULL,
                          .is_over = note->ends_at <= all->now,
                          .is_recent = is_recent};
    return true;
}

/* ---- what is removed ------------------------------------------------------------------------ */

static void trim_delete(struct trim *all, size_t index) {
    struct trim_row *row = &all->rows[index];
    assert(index < all->row_count && !row->is_deleted);
    assert(all->bytes >= row->bytes && all->tokens[row->token].bytes >= row->bytes);
    row->is_deleted = true;
    all->bytes -= row->bytes;
    all->tokens[row->token].bytes -= row->bytes;
}

/* Sums the bytes, and links the rows that can be removed. */
static void trim_link(struct trim *all) {
    for (size_t i = 0; i < all->row_count; i++) {
        struct trim_row *row = &all->rows[i];
        struct trim_token *token = &all->tokens[row->token];
        size_t *oldest = &token->oldest[row->is_bulk ? 0 : 1];
        all->bytes += row->bytes;
        token->bytes += row->bytes;
        if (i == 0 || row->is_over || row->is_recent) continue;
        row->next = *oldest;
        *oldest = i;
    }
}

/* Removes one row. Returns false if none can be removed. */
static bool trim_delete_one(struct trim *all) {
    struct trim_token *most = NULL;
    for (size_t i = 0; i < all->token_count; i++) {
        struct trim_token *token = &all->tokens[i];
        const bool has_rows = token->oldest[0] != TRIM_NONE || token->oldest[1] != TRIM_NONE;
        if (has_rows && (!most || token->bytes > most->bytes)) most = token;
    }
    if (!most) return false;
    size_t *oldest = &most->oldest[most->oldest[0] != TRIM_NONE ? 0 : 1];
    const size_t index = *oldest;
    *oldest = all->rows[index].next;
    trim_delete(all, index);
    return true;
}

static void trim_choose(struct trim *all) {
    bool has_more = true;
    trim_link(all);
    for (size_t i = all->row_count; i-- > 1;) {
        if (all->rows[i].is_over) trim_delete(all, i);
    }
    if (all->bytes <= AUDIT_BYTES_MAX) return;
    while (all->bytes > AUDIT_BYTES_KEPT && has_more) has_more = trim_delete_one(all);
}

/* Deletes the rows that were chosen. Returns false if the store has failed. */
static bool trim_write(const struct trim *all, struct store *store) {
    char identities[STORE_NOTES_MAX][AUDIT_IDENTITY];
    struct store_note notes[STORE_NOTES_MAX];
    size_t count = 0;
    bool done = true;
    for (size_t i = 0; i < all->row_count && done; i++) {
        if (all->rows[i].is_deleted) {
            server_audit_identity(identities[count], all->rows[i].id);
            notes[count] = (struct store_note){.kind = AUDIT_NOTE, .identity = identities[count]};
            count++;
        }
        bool is_full = count == STORE_NOTES_MAX || (count > 0 && i + 1 == all->row_count);
        if (is_full) done = server_store_put_notes(store, notes, count) == STORE_OK;
        if (is_full) count = 0;
    }
    return done;
}

/* ---- how much there is ---------------------------------------------------------------------- */

/* Returns the index of the writer for a token of the role support; `writer_count`: there is none
 * yet. The tokens for which there is no room share the last writer. */
static size_t writer_find(const struct audit_size *size, const char *token) {
    size_t i = 0;
    while (i < size->writer_count && strcmp(size->writers[i].token, token) != 0) i++;
    return i < AUDIT_SUPPORT_TOKENS ? i : AUDIT_SUPPORT_TOKENS - 1;
}

static void writer_add(struct audit_size *size, const char *token, size_t bytes) {
    const size_t i = writer_find(size, token);
    if (i == size->writer_count) {
        const bool is_last = ++size->writer_count == AUDIT_SUPPORT_TOKENS;
        size->writers[i] = (struct audit_writer){.bytes = 0};
        snprintf(size->writers[i].token, sizeof size->writers[i].token, "%s", is_last ? "" : token);
    }
    size->writers[i].bytes += bytes;
}

static void size_take(struct audit_size *size, struct trim *all) {
    server_resets_clear(&size->resets);
    size->resets = all->resets;
    all->resets = (struct resets_seen){.count = 0};
    size->last_id = all->row_count ? all->rows[0].id : 0;
    size->bytes = all->bytes;
    size->trim_bytes = AUDIT_BYTES_MAX;
    if (all->bytes > AUDIT_BYTES_MAX) { /* no more can be removed now */
        size->trim_bytes = all->bytes + (AUDIT_BYTES_MAX - AUDIT_BYTES_KEPT);
    }
    size->writer_count = 0;
    for (size_t i = 0; i < all->row_count; i++) {
        const struct trim_row *row = &all->rows[i];
        if (row->is_recent) writer_add(size, all->tokens[row->token].name, row->bytes);
    }
}

bool server_audit_trim(struct audit_size *size, struct store *store) {
    struct trim all = {.now = (int64_t)time(NULL)};
    bool done = server_store_list_notes(store, AUDIT_NOTE, "", trim_take_row, &all) == STORE_OK &&
                !all.failed;
    if (done) {
        trim_choose(&all);
        size_take(size, &all);
        done = trim_write(&all, store);
    }
    server_resets_clear(&all.resets);
    free(all.rows);
    free(all.tokens);
    return done;
}

bool server_audit_add(struct audit_size *size, const struct token_identity *token, size_t bytes,
                      const cJSON *row) {
    size->bytes += bytes;
    if (token->role == ROLE_SUPPORT) writer_add(size, token->name, bytes);
    return server_resets_add_act(&size->resets, row);
}

bool server_audit_has_room(const struct audit_size *size, const struct token_identity *token,
                           size_t bytes) {
    const size_t i = writer_find(size, token->name);
    const size_t written = i < size->writer_count ? size->writers[i].bytes : 0;
    return token->role != ROLE_SUPPORT || written + bytes <= AUDIT_SUPPORT_BYTES_MAX;
}
