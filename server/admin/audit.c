/* doorman_server, part ADMIN: what was done, by whom, and why.
 *
 *     GET /v1/audit                     the newest acts, as lines of JSON
 *     GET /v1/audit?key=KEY&who=NAME    those that concern a key, or of one token
 *     GET /v1/audit?after=ID            the next page: those before the act with this number */
#include "admin.h"

#define ROWS_DEFAULT 100
#define ROWS_MAX 1000
#define VISITS_MAX 100000 /* of one page */

/* A page on its way. Allocated, as struct act. */
struct audit_page {
    struct state_call call;
    char key[DOORMAN_ID_BYTES_MAX + 1], who[TOKEN_NAME_MAX + 1], before[24];
    bool has_key, has_who;
    size_t limit, count, visits;
    struct text text;
    char last[24]; /* the number of the last act that was visited */
    bool is_over;  /* there are no more acts */
    bool failed;   /* the store cannot be read */
    char error[STORE_TEXT];
};

static void page_free(void *context) {
    struct audit_page *page = (struct audit_page *)context;
    if (page) doorman_buffer_uninit(&page->text.buffer);
    free(page);
}

static bool text_is(const cJSON *object, const char *name, const char *value) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    return text && strcmp(text, value) == 0;
}

/* Returns whether an act concerns a key. An act with several entries concerns the keys of all. */
static bool row_has_key(const cJSON *row, const char *key) {
    const cJSON *entry = NULL;
    bool found = text_is(row, "key", key);
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(row, "entries")) {
        found = found || text_is(entry, "key", key);
    }
    return found;
}

static bool page_shows(const struct audit_page *page, const char *text) {
    if (!page->has_key && !page->has_who) return true;
    cJSON *row = cJSON_Parse(text);
    bool shows = row && (!page->has_who || text_is(row, "token", page->who)) &&
                 (!page->has_key || row_has_key(row, page->key));
    cJSON_Delete(row);
    return shows;
}

static bool page_visit(void *context, const struct store_note *note) {
    struct audit_page *page = (struct audit_page *)context;
    page->is_over = page->count < page->limit && page->visits < VISITS_MAX;
    if (!page->is_over) return false;
    page->visits++;
    snprintf(page->last, sizeof page->last, "%.23s", note->identity);
    if (!page_shows(page, note->text)) return true;
    page->count++;
    server_text_add(&page->text, note->text);
    server_text_add(&page->text, "\n");
    return true;
}

/* Runs on the thread of the store. */
static void page_read(struct service *service, struct store *store, void *context) {
    struct audit_page *page = (struct audit_page *)context;
    (void)service;
    page->is_over = true;
    page->failed =
        server_store_list_notes(store, AUDIT_NOTE, page->before, page_visit, page) != STORE_OK;
    snprintf(page->error, sizeof page->error, "%s", server_store_error(store));
    if (page->is_over) return;
    server_text_addf(&page->text, "{\"next\":\"%llu\"}\n", strtoull(page->last, NULL, 10));
}

static bool page_refuse(struct http_response *response, const char *error) {
    server_http_response_set_error(response, 400, "INVALID_ARGUMENT", error);
    return false;
}

/* Reads the query. Returns false if it is wrong: then the response is an error. */
static bool page_read_query(struct audit_page *page, const struct http_request *request,
                            struct http_response *response) {
    static const char *const names[] = {"key", "who", "after", "limit", "redirect", NULL};
    const char *query = request->query, *end = NULL;
    char number[24];
    if (!server_admin_check_query(request, names, response)) return false;
    page->has_key = server_query_read(query, "key", page->key, sizeof page->key);
    page->has_who = server_query_read(query, "who", page->who, sizeof page->who);
    page->limit = ROWS_DEFAULT;
    if (server_query_read(query, "limit", number, sizeof number)) {
        page->limit = (size_t)server_number_read(number, 10, &end);
        if (*end || page->limit < 1 || page->limit > ROWS_MAX) {
            return page_refuse(response, "limit: must be a number from 1 to 1000");
        }
    }
    if (server_query_read(query, "after", number, sizeof number)) {
        uint64_t after = server_number_read(number, 10, &end);
        if (*end || after < 1) {
            return page_refuse(response, "after: must be the number of an act");
        }
        snprintf(page->before, sizeof page->before, "%020" PRIu64, after);
    }
    return true;
}

static void page_answer(struct service *service, struct audit_page *page,
                        struct http_response *response) {
    char why[CALL_TEXT];
    page->call = (struct state_call){.run = page_read, .drop = page_free, .context = page};
    enum call_result result = server_state_call(service, &page->call, why);
    if (result == CALL_OVER && !page->failed) {
        response->type = "application/x-ndjson";
        response->text = page->text;
        page->text = (struct text){.failed = false};
    } else {
        server_http_response_set_error(response, 503, "UNAVAILABLE",
                                       result == CALL_OVER ? page->error : why);
        response->more = "Retry-After: 1\r\n";
    }
    if (result != CALL_LOST) page_free(page);
}

static void handle_audit(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    if (!server_admin_serves(service, request, response)) return;
    struct audit_page *page = (struct audit_page *)calloc(1, sizeof *page);
    response->text.failed = !page;
    if (!page) return;
    if (page_read_query(page, request, response)) {
        page_answer(service, page, response);
    } else {
        page_free(page);
    }
}

/* ---- resets of the last day ----------------------------------------------------------------- */

struct reset_count {
    const char *resource, *key;
    char since[32]; /* the times of rows are texts whose order is that of the times */
    int count;
};

static bool reset_visit(void *context, const struct store_note *note) {
    struct reset_count *resets = (struct reset_count *)context;
    cJSON *row = cJSON_Parse(note->text);
    const char *at = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "at"));
    bool is_later = !at || strcmp(at, resets->since) > 0;
    bool counts = is_later && text_is(row, "what", "reset") && text_is(row, "role", "support");
    const cJSON *entry = NULL;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(row, "entries")) {
        bool same = text_is(entry, "resource_id", resets->resource) &&
                    text_is(entry, "key", resets->key) && !cJSON_GetObjectItem(entry, "ban");
        resets->count += counts && same;
    }
    cJSON_Delete(row);
    return is_later;
}

int server_audit_count_resets(struct store *store, const char *resource, const char *key) {
    struct reset_count resets = {.resource = resource, .key = key};
    time_t day = time(NULL) - 86400;
    struct tm parts;
    gmtime_r(&day, &parts);
    strftime(resets.since, sizeof resets.since, "%Y-%m-%dT%H:%M:%SZ", &parts);
    bool done = server_store_list_notes(store, AUDIT_NOTE, "", reset_visit, &resets) == STORE_OK;
    return done ? resets.count : -1;
}

static const struct http_route audit_routes[] = {
    {"/v1/audit", .administers = true, .reads = ROLE_SUPPORT, .handle = handle_audit},
    {.path = NULL}};

const struct server_part server_part_audit = {.routes = audit_routes};
