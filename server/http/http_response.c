/* doorman_server, part HTTP: responses. This file makes empty responses and errors, and formats the
 * head of a response. The functions use only their arguments, and random bits of the system. */
#include "http.h"

#include <sys/random.h>

/* Only the thread of pages passes `abandoned`, and only pages have styles and scripts. So other
 * responses need no nonce, and save a system call. */
struct http_response server_http_response_init(const bool *abandoned) {
    struct http_response response = {
        .code = 200, .type = "text/plain; charset=utf-8", .more = "", .abandoned = abandoned};
    uint64_t random[2] = {0};
    if (!abandoned) return response;
    (void)!getentropy(random, sizeof random);
    snprintf(response.nonce, sizeof response.nonce, "%016" PRIx64 "%016" PRIx64, random[0],
             random[1]);
    return response;
}

void server_http_response_set_error(struct http_response *response, int code, const char *name,
                                    const char *message) {
    response->code = code;
    response->type = "application/json";
    response->field[0] = 0;
    response->text.buffer.bytes = 0;
    response->text.failed = false;
    server_text_addf(&response->text, "{\"error\":{\"code\":\"%s\",\"message\":\"", name);
    server_text_add_escaped(&response->text, message, server_escape_json);
    server_text_add(&response->text, "\"}}\n");
}

void server_http_response_set_unavailable(struct http_response *response, const char *message) {
    server_http_response_set_error(response, 503, "UNAVAILABLE", message);
    response->more = "Retry-After: 1\r\n";
}

void server_http_response_set_too_large(struct http_response *response,
                                        const struct http_request *request) {
    const bool is_open = request->route && request->route->is_open;
    char text[96];
    snprintf(text, sizeof text, "the message is larger than %s %zu bytes",
             is_open ? "this path takes:" : "--max-message, which is", request->body_max);
    server_http_response_set_error(response, 413, "RESOURCE_EXHAUSTED", text);
}

bool server_http_check_query(const char *query, const char *const *names,
                             struct http_response *response) {
    const char *unknown = server_query_find_unknown(query, names);
    char error[256];
    size_t used = 0;
    if (unknown) {
        used = (size_t)snprintf(error, sizeof error, "%.*s: is no parameter; the parameters are",
                                (int)(strcspn(unknown, "=&") < 40 ? strcspn(unknown, "=&") : 40),
                                unknown);
        for (size_t i = 0; names[i]; i++) {
            used += (size_t)snprintf(error + used, sizeof error - used, "%s %s", i ? "," : "",
                                     names[i]);
        }
        snprintf(error + used, sizeof error - used, ", each with a value");
    }
    for (size_t i = 0; names[i] && !used; i++) {
        if (server_query_count(query, names[i]) > 1) {
            used = (size_t)snprintf(error, sizeof error, "%s: occurs twice", names[i]);
        }
    }
    if (used) server_http_response_set_error(response, 400, "INVALID_ARGUMENT", error);
    return !used;
}

static const char *code_reason(int code) {
    static const struct {
        int code;
        const char *reason;
    } reasons[] = {{200, "OK"},
                   {303, "See Other"},
                   {307, "Temporary Redirect"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {409, "Conflict"},
                   {411, "Length Required"},
                   {412, "Precondition Failed"},
                   {413, "Content Too Large"},
                   {415, "Unsupported Media Type"},
                   {417, "Expectation Failed"},
                   {421, "Misdirected Request"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"}};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        if (reasons[i].code == code) return reasons[i].reason;
    }
    return "Internal Server Error";
}

void server_http_response_write(struct text *out, struct http_response *response, bool last,
                                bool is_head) {
    if (response->text.failed || response->lines.failed) {
        server_http_response_set_error(response, 500, "INTERNAL", "out of memory");
    }
    out->buffer.bytes = 0;
    server_text_add(out, "HTTP/1.1 ");
    server_text_add_integer(out, response->code);
    server_text_add_all(out, TEXTS(" ", code_reason(response->code),
                                   "\r\nContent-Type: ", response->type, "\r\nContent-Length: "));
    server_text_add_integer(out, (int64_t)response->text.buffer.bytes);
    server_text_add_all(
        out, TEXTS("\r\nConnection: ", last ? "close" : "keep-alive",
                   "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff",
                   "\r\nReferrer-Policy: ", response->has_form ? "same-origin" : "no-referrer",
                   "\r\n", response->more));
    if (!response->lines.failed && response->lines.buffer.bytes > 0) {
        server_text_add_bytes(out, response->lines.buffer.text, response->lines.buffer.bytes);
    }
    if (!response->nonce[0]) {
        server_text_add(out, "Content-Security-Policy: default-src 'none'; "
                             "frame-ancestors 'none'\r\n\r\n");
    } else {
        server_text_add_all(
            out, TEXTS("Content-Security-Policy: default-src 'none'; style-src 'nonce-",
                       response->nonce, "'; script-src 'nonce-", response->nonce,
                       "'; connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'",
                       "; frame-ancestors 'none'\r\n\r\n"));
    }
    if (!is_head) {
        server_text_add_bytes(out, response->text.buffer.text, response->text.buffer.bytes);
    }
    doorman_buffer_uninit(&response->text.buffer);
    doorman_buffer_uninit(&response->lines.buffer);
}
