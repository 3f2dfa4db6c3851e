/* doorman_server, part ADMIN: lists of notes of the store, the newest first, in pages. */
#include "admin.h"

#define ROWS_DEFAULT 100
#define ROWS_MAX 1000
#define PAGE_BYTES_MAX ((size_t)4 << 20) /* a page ends behind the line that reaches this */
#define VISITS_MAX                                                                                 \
    100000 /* of one page, because the thread of the store writes nothing meanwhile */

void server_admin_add_line(struct text *text, const char *line) {
    server_text_add(text, line);
    server_text_add(text, "\n");
}

static void page_free(void *context) {
    struct note_page *page = (struct note_page *)context;
    if (page) doorman_buffer_uninit(&page->text.buffer);
    free(page);
}

static bool page_visit(void *context, const struct store_note *note) {
    struct note_page *page = (struct note_page *)context;
    page->is_over = page->count < page->limit && page->visits < VISITS_MAX &&
                    page->text.buffer.bytes < PAGE_BYTES_MAX;
    if (!page->is_over) return false;
    page->visits++;
    snprintf(page->last, sizeof page->last, "%.23s", note->identity);
    bool ends = !page->ending || (note->ends_at > 0 && note->ends_at <= page->ending);
    page->count += ends && page->list.add(page, note);
    return true;
}

/* Makes the lines of a page. Runs on the thread of the store, or of the shards. */
static void page_read(struct service *service, struct store *store, void *context) {
    struct note_page *page = (struct note_page *)context;
    page->service = service;
    page->is_over = true;
    page->failed =
        server_store_list_notes(store, page->list.kind, page->before, page_visit, page) != STORE_OK;
    snprintf(page->error, sizeof page->error, "%s", server_store_error(store));
    if (page->is_over) return;
    char next[24];
    snprintf(next, sizeof next, "%llu", strtoull(page->last, NULL, 10));
    if (page->list.add_next) {
        page->list.add_next(page, next);
    } else {
        server_text_addf(&page->text, "{\"next\":\"%s\"}\n", next);
    }
}

static bool page_refuse(struct http_response *response, const char *error) {
    server_http_response_set_error(response, 400, "INVALID_ARGUMENT", error);
    return false;
}

/* Reads the query. Returns false if it is wrong: then the response is an error. */
static bool page_read_query(struct note_page *page, const struct http_request *request,
                            struct http_response *response) {
    const char *query = request->query, *end = NULL;
    char number[24];
    if (!server_http_check_query(request->query, page->list.names, response)) return false;
    page->has_key = server_query_read(query, "key", page->key, sizeof page->key);
    page->has_resource =
        server_query_read(query, "resource", page->resource, sizeof page->resource);
    page->has_who = server_query_read(query, "who", page->who, sizeof page->who);
    page->limit = ROWS_DEFAULT;
    if (server_query_read(query, "limit", number, sizeof number)) {
        page->limit = (size_t)server_number_read(number, 10, &end);
        if (*end || page->limit < 1 || page->limit > ROWS_MAX) {
            return page_refuse(response, "limit: must be a number from 1 to 1000");
        }
    }
    if (server_query_read(query, "ending", number, sizeof number)) {
        uint64_t ending = server_number_read(number, 10, &end);
        if (*end || !number[0] || ending > 1000000000) {
            return page_refuse(response, "ending: must be a number of seconds, at most 1e9");
        }
        page->ending = (int64_t)time(NULL) + (int64_t)ending + 1; /* 1: time() rounds down */
    }
    if (server_query_read(query, "after", number, sizeof number)) {
        uint64_t after = server_number_read(number, 10, &end);
        if (*end || after < 1) return page_refuse(response, "after: must be an id of the list");
        snprintf(page->before, sizeof page->before, "%020" PRIu64, after);
    }
    return true;
}

static void page_answer(struct service *service, struct note_page *page,
                        struct http_response *response) {
    char why[CALL_TEXT];
    page->call = (struct state_call){.run = page_read, .drop = page_free, .context = page};
    enum call_result result = server_notes_read(service, page->list.kind, &page->call, why);
    if (result == CALL_OVER && !page->failed) {
        response->type = "application/x-ndjson";
        response->text = page->text;
        page->text = (struct text){.failed = false};
    } else {
        server_http_response_set_unavailable(response, result == CALL_OVER ? page->error : why);
    }
    if (result != CALL_LOST) page_free(page);
}

void server_admin_list(struct service *service, const struct http_request *request,
                       struct http_response *response, const struct note_list *list) {
    struct note_page *page = (struct note_page *)calloc(1, sizeof *page);
    response->text.failed = !page;
    if (!page) return;
    page->list = *list;
    if (page_read_query(page, request, response)) {
        page_answer(service, page, response);
    } else {
        page_free(page);
    }
}
