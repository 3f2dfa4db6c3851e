/* The reference of the wire protocol, docs/protocol.md. Its examples are sent to servers in their
 * order, and each response must equal the one on the page. The ids of leases and holds differ each
 * time. So the test replaces each id of the page by the id from the server. Another test reads the
 * description of the API from a server. */
#define _GNU_SOURCE
#include "http.h"

#define PAGE "docs/protocol.md"
#define EXAMPLE_IDS_MAX 64

/* The ids of leases, holds and transfers of the page, and what the server made in their place. */
struct ids {
    double page[EXAMPLE_IDS_MAX], real[EXAMPLE_IDS_MAX];
    size_t count;
};

/* Finds the next block of the page that starts with "```json " and a kind.
 *   at        where to start; moves behind the block
 *   kind      is set to what follows "```json ", up to the end of the line
 *   returns   the text of the block, which the caller frees; NULL: there is no other block */
static char *next_block(const char **at, char *kind, size_t kind_room) {
    const char *start = strstr(*at, "\n```json ");
    if (!start) return NULL;
    start += strlen("\n```json ");
    snprintf(kind, kind_room, "%.*s", (int)strcspn(start, "\n"), start);
    start = strchr(start, '\n') + 1;
    const char *end = strstr(start, "\n```");
    assert_non_null(end);
    *at = end;
    return strndup(start, (size_t)(end - start));
}

/* Replaces each id of the page in the text of a request by the id from the server. An id for which
 * the server has made none stays. The function changes the text rather than the JSON, because cJSON
 * may print only 15 digits of an id. The caller frees the new text. */
static char *put_real_ids(const char *request, const struct ids *ids) {
    char *out = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&out, &bytes);
    assert_non_null(file);
    while (*request) {
        size_t digits = strspn(request, "0123456789"), found = ids->count;
        for (size_t i = 0; digits > 0 && i < ids->count; i++) {
            if (strtod(request, NULL) == ids->page[i]) found = i;
        }
        if (found < ids->count) {
            fprintf(file, "%.0f", ids->real[found]);
        } else {
            fprintf(file, "%.*s", (int)(digits > 0 ? digits : 1), request);
        }
        request += digits > 0 ? digits : 1;
    }
    assert_int_equal(fclose(file), 0);
    return out;
}

/* Remembers the real id for an id of the page. Fails if an earlier response had another real id. */
static void add_id(struct ids *ids, double page, double real) {
    assert_true(ids->count < EXAMPLE_IDS_MAX);
    for (size_t i = 0; i < ids->count; i++) {
        assert_int_equal(ids->page[i] == page, ids->real[i] == real);
        if (ids->page[i] == page) return;
    }
    ids->page[ids->count] = page;
    ids->real[ids->count++] = real;
}

/* Returns whether a number depends on when the test runs. */
static bool is_of_the_moment(const char *name) {
    static const char *const names[] = {"expiry_time", "learn_for", "ends_in"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) return true;
    }
    return false;
}

/* Fails unless a response equals the one on the page, apart from ids and numbers that depend on
 * when the test runs. */
static void expect_equal(const cJSON *page, const cJSON *real, struct ids *ids) {
    const char *name = page->string ? page->string : "";
    if ((page->type & 0xff) != (real->type & 0xff)) fail_msg("%s: another type", name);
    if (cJSON_IsString(page)) assert_string_equal(page->valuestring, real->valuestring);
    bool is_id = strcmp(name, "id") == 0 || strcmp(name, "transfer_id") == 0;
    if (cJSON_IsNumber(page) && is_id) {
        add_id(ids, page->valuedouble, real->valuedouble);
    } else if (cJSON_IsNumber(page) && !is_of_the_moment(name)) {
        if (page->valuedouble != real->valuedouble) {
            fail_msg("%s: %.17g on the page, %.17g from the server", name, page->valuedouble,
                     real->valuedouble);
        }
    }
    assert_int_equal(cJSON_GetArraySize(page), cJSON_GetArraySize(real));
    int index = 0;
    for (const cJSON *child = page->child; child; child = child->next, index++) {
        const cJSON *other = cJSON_IsArray(page)
                                 ? cJSON_GetArrayItem(real, index)
                                 : cJSON_GetObjectItemCaseSensitive(real, child->string);
        if (!other) fail_msg("%s: is missing", child->string ? child->string : name);
        expect_equal(child, other, ids);
    }
}

/* Replaces the addresses of the master on the page with the addresses of the server. Responses over
 * HTTP, and all responses to nodes, have the HTTP address. */
static void put_real_addresses(cJSON *page, const struct fixture *fixture, bool by_http) {
    char http[NNG_MAXADDRLEN + 8];
    cJSON *mastership = (cJSON *)(uintptr_t)find(page, "discovery.mastership");
    cJSON *to_node = (cJSON *)(uintptr_t)find(page, "get_server_capacity.http_address");
    snprintf(http, sizeof http, "http%s", strchr(fixture->http.url, ':'));
    if (to_node) cJSON_SetValuestring(to_node, http);
    if (!mastership) return;
    cJSON_SetValuestring(cJSON_GetObjectItem(mastership, "master_address"), fixture->server.url);
    cJSON_SetValuestring(cJSON_GetObjectItem(mastership, "http_address"), http);
    if (!by_http) cJSON_DeleteItemFromObject(mastership, "http_address");
}

/* Sends a message over nng. Returns the response, which the caller deletes. */
static cJSON *send_by_nng(const struct fixture *fixture, const char *message) {
    return send_request(&fixture->server, message);
}

/* Sends a message over HTTP. If its method has a path, sends only the inner object to that path.
 * Returns the response in the form that it has over nng. */
static cJSON *send_by_http(const struct fixture *fixture, const char *message) {
    char path[64], method[32];
    const char *key = strchr(message, '"') + 1;
    snprintf(method, sizeof method, "%.*s", (int)strcspn(key, "\""), key);
    bool has_path = strcmp(method, "lend") != 0;
    snprintf(path, sizeof path, "/v1%s%s", has_path ? "/" : "", has_path ? method : "");
    const char *inner = strchr(message, ':') + 1;
    char *body = has_path ? strndup(inner, (size_t)(strrchr(inner, '}') - inner)) : strdup(message);
    char *response = post(fixture, path, HOST JSON "Authorization: Bearer top-1\r\n", body);
    cJSON *result = cJSON_Parse(body_of(response)), *whole = result;
    assert_non_null(result);
    assert_int_equal(code_of(response) == 200, !cJSON_HasObjectItem(result, "error"));
    if (code_of(response) == 200) {
        whole = cJSON_CreateObject();
        cJSON_AddItemToObject(whole, method, result);
    }
    free(response);
    free(body);
    return whole;
}

typedef cJSON *(*sender)(const struct fixture *fixture, const char *message);

/* Sends one request of the page, and compares the response. */
static void try_example(sender send_message, const struct fixture *fixture, const char *request,
                        const char *response, struct ids *ids) {
    cJSON *page = cJSON_Parse(response);
    if (!page) fail_msg("not JSON: %s", response);
    put_real_addresses(page, fixture, send_message == send_by_http);
    char *text = put_real_ids(request, ids);
    cJSON *real = send_message(fixture, text);
    char *printed = cJSON_PrintUnformatted(real);
    print_message("%s\n    %s\n", text, printed);
    expect_equal(page, real, ids);
    free(printed);
    free(text);
    cJSON_Delete(real);
    cJSON_Delete(page);
}

/* Sends a GET of the page. Its response has a JSON object in each line. */
static void try_lines(const struct fixture *fixture, const char *request, const char *lines) {
    char path[128];
    assert_int_equal(sscanf(request, "GET %127s", path), 1);
    char *response = get(fixture, path, HOST "Authorization: Bearer top-1\r\n");
    assert_int_equal(code_of(response), 200);
    print_message("%s\n%s", path, body_of(response));
    const char *of_server = body_of(response);
    struct ids ids = {.count = 0};
    while (*lines) {
        const char *page_end = NULL, *real_end = NULL;
        cJSON *page = cJSON_ParseWithOpts(lines, &page_end, false);
        cJSON *real = cJSON_ParseWithOpts(of_server, &real_end, false);
        assert_true(page && real);
        cJSON_DeleteItemFromObject(page, "reset_after"); /* depends on the day */
        cJSON_DeleteItemFromObject(real, "reset_after");
        expect_equal(page, real, &ids);
        lines = page_end + strspn(page_end, "\n");
        of_server = real_end + strspn(real_end, "\n");
        cJSON_Delete(page);
        cJSON_Delete(real);
    }
    assert_string_equal(of_server, "");
    free(response);
}

/* Starts a process that takes part in an election, but reaches no etcd. So it is not master. */
static struct fixture standby_start(const char *config) {
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port_free());
    const char *arguments[] = {"--etcd", url, "--election-key", "protocol", NULL};
    return fixture_start(config, arguments);
}

/* Starts a server with a token, for the methods of administrators. */
static struct fixture guarded_start(const char *config) {
    struct process *files = process_new();
    file_write(files->config, "admin ann top-1\n");
    return fixture_start(config, (const char *[]){"--http-token", files->config, NULL});
}

static void try_examples(sender send_message) {
    char *page = file_read(PAGE), kind[32], request_kind[32];
    const char *at = page;
    struct ids ids = {.count = 0};
    char *config = next_block(&at, kind, sizeof kind), *request = NULL;
    assert_string_equal(kind, "configuration");
    const char *more[] = {"--node", "eu", "--max-holders", "3", NULL};
    struct fixture master = fixture_start(config, more), standby = standby_start(config);
    struct fixture guarded = guarded_start(config);
    int count = 0;
    while ((request = next_block(&at, request_kind, sizeof request_kind))) {
        char *response = next_block(&at, kind, sizeof kind);
        const char *to = request_kind + strlen("request");
        assert_non_null(response);
        assert_string_equal(kind + strlen("response"), to);
        if (strcmp(to, " get") == 0) {
            try_lines(&guarded, request, response);
        } else if (strcmp(to, " admin") == 0) {
            try_example(send_by_http, &guarded, request, response, &ids);
        } else {
            if (*to) assert_string_equal(to, " standby");
            try_example(send_message, *to ? &standby : &master, request, response, &ids);
        }
        free(request);
        free(response);
        count++;
    }
    assert_true(count >= 12);
    server_stop(&master.server);
    server_stop(&standby.server);
    server_stop(&guarded.server);
    free(config);
    free(page);
}

TEST(the_examples_of_the_reference_hold_over_nng) { try_examples(send_by_nng); }

TEST(the_examples_of_the_reference_hold_over_http) { try_examples(send_by_http); }

/* tests/openapi_check.sh compares the description with the reference and with servers. */
TEST(the_server_has_its_description) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    char *file = file_read("server/pages/openapi.json");
    char *response = get(&fixture, "/v1/openapi.json", HOST);
    cJSON *written = cJSON_Parse(file), *served = cJSON_Parse(body_of(response));
    assert_int_equal(code_of(response), 200);
    assert_non_null(strstr(response, "\r\nContent-Type: application/json\r\n"));
    assert_non_null(written);
    assert_true(cJSON_Compare(written, served, true));
    cJSON_Delete(served);
    cJSON_Delete(written);
    free(response);
    free(file);
    server_stop(&fixture.server);
}
