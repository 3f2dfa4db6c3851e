/* The pages of administration (E10): what they show of the audit and of overrides. The tests run a
 * real server with a file as its store. */
#define _GNU_SOURCE
#include "state_fixture.h"

#define ADMIN HOST JSON BEARER("top-1")
#define READER HOST BEARER("read-4")
#define TOKENS "admin ann top-1\nread ron read-4\n"
#define API                                                                                        \
    "{\"resources\": [{\"identifier_glob\": \"api/*\", \"limits\": [{\"name\": \"quota\", "        \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 5, \"window\": 10000000, \"plans\": "                  \
    "{\"pro\": {\"limit\": 8}}}]}]}"

static struct fixture open_office(void) {
    static char path[96], tokens[96];
    state_path(path);
    snprintf(tokens, sizeof tokens, "%s/tokens", process_new()->folder);
    file_write(tokens, TOKENS);
    const char *const more[] = {"--http-token", tokens, NULL};
    return start(API, path, more);
}

static void put(const struct fixture *fixture, const char *path, const char *body) {
    expect_verb(fixture, "PUT", path, ADMIN, body, 200, "");
}

static bool is_shown(const struct fixture *fixture, const char *path, const char *text) {
    char *response = get(fixture, path, READER);
    const bool is_shown = strstr(response, text) != NULL;
    free(response);
    return is_shown;
}

/* Sets an override of a key, which must not need escapes in JSON. */
static void raise_limit(const struct fixture *fixture, const char *key, const char *more) {
    char body[1024];
    snprintf(body, sizeof body,
             "{\"resource\": \"api/search\", \"limit\": \"quota\", \"key\": \"%s\", \"set\": "
             "{\"limit\": 20}, \"reason\": \"for <b>%s</b>\"%s}",
             key, key, more);
    put(fixture, "/v1/overrides", body);
}

TEST(the_page_of_overrides_shows_figures_end_and_reason) {
    struct fixture fixture = open_office();
    expect(&fixture, "/overrides", READER, 200, "<p class=soft>There is none.</p>");
    raise_limit(&fixture, "acme", ", \"ends_at\": 4102444800");
    expect(&fixture, "/overrides", READER, 200, "limit 20 until 2100-01-01 00:00:00");
    expect(&fixture, "/overrides", READER, 200, "<td data-name='state'>in force</td>");
    expect(&fixture, "/overrides", READER, 200,
           "<a href=\"/keys?resource=api/search&amp;key=acme\">acme</a>");
    expect(&fixture, "/overrides?key=other", READER, 200, "There is none.");
    raise_limit(&fixture, "later", ", \"starts_at\": 4102444800, \"ends_at\": 4102444900");
    expect(&fixture, "/overrides?key=later", READER, 200, "ahead, from 2100-01-01 00:00:00");
    server_stop(&fixture.server);
}

TEST(the_page_of_overrides_shows_what_goes_before_what) {
    static const char glob[] = "{\"glob\": \"api/*\", \"limit\": \"quota\", \"key\": \"acme\", "
                               "\"set\": {\"limit\": 9}, \"reason\": \"all\"}";
    static const char plan[] = "{\"glob\": \"api/*\", \"key\": \"acme\", \"plan\": \"pro\", "
                               "\"reason\": \"paid\"}";
    struct fixture fixture = open_office();
    raise_limit(&fixture, "acme", "");
    assert_false(is_shown(&fixture, "/overrides", "goes before"));
    put(&fixture, "/v1/overrides", glob);
    expect(&fixture, "/overrides", READER, 200, "<div class=soft>goes before act 2</div>");
    expect(&fixture, "/v1/overrides", READER, 200, "\"hides\":{\"override\":2}}");
    put(&fixture, "/v1/plans", plan);
    expect(&fixture, "/overrides", READER, 200, "<div class=soft>goes before the plan pro</div>");
    expect(&fixture, "/v1/overrides", READER, 200, "\"hides\":{\"override\":2,\"plan\":\"pro\"}}");
    server_stop(&fixture.server);
}

TEST(a_server_that_keeps_acts_links_to_them_from_each_page) {
    static const char *const paths[] = {"/", "/limits", "/holds", "/versions", "/clients"};
    struct fixture fixture = open_office();
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        expect(&fixture, paths[i], READER, 200,
               "<nav aria-label=pages><a href='/limits'>limits</a><a href='/overrides'>");
    }
    server_stop(&fixture.server);
}

TEST(the_page_of_the_audit_shows_who_what_and_why) {
    static const char reset[] = "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"acme\", "
                                "\"ban\": 60}, {\"resource_id\": \"api/maps\", \"key\": \"b\", "
                                "\"ban\": 0}]}";
    struct fixture fixture = open_office();
    raise_limit(&fixture, "acme", "");
    expect_post(&fixture, "/v1/reset?reason=noisy", ADMIN, reset, 200, "");
    expect(&fixture, "/audit", READER, 403, "with the role support");
    expect(&fixture, "/audit", ADMIN, 200, "<td data-name='by'>ann</td>");
    expect(&fixture, "/audit", ADMIN, 200, "none &rarr; limit 20");
    expect(&fixture, "/audit", ADMIN, 200, "banned for 60 s</div>");
    expect(&fixture, "/audit", ADMIN, 200, "<td data-name='why'>noisy</td>");
    expect(&fixture, "/audit?key=b", ADMIN, 200, "not banned</div>");
    expect(&fixture, "/audit?who=bob", ADMIN, 200, "There is none.");
    expect(&fixture, "/audit?limit=1&key=acme", ADMIN, 200,
           "<a href=\"?key=acme&amp;after=2\">older &rarr;</a>");
    expect(&fixture, "/audit?limit=1&key=acme&after=2", ADMIN, 200, "none &rarr; limit 20");
    expect(&fixture, "/audit?limit=x", ADMIN, 200, "<p class=bad>limit: must be a number");
    server_stop(&fixture.server);
}

/* For an act on one key, the column `change` says what has changed, as it does for an override. */
TEST(the_page_of_the_audit_shows_a_ban_of_one_key) {
    struct fixture fixture = open_office();
    expect_post(&fixture, "/v1/reset?reason=noisy", ADMIN,
                "{\"entry\": [{\"resource_id\": \"api/maps\", \"key\": \"b\", \"ban\": 70}]}", 200,
                "");
    expect(&fixture, "/audit", ADMIN, 200,
           "<td data-name='change' class=note>banned for 70 s</td>");
    server_stop(&fixture.server);
}

TEST(what_people_have_written_is_escaped) {
    struct fixture fixture = open_office();
    raise_limit(&fixture, "'><script>alert(1)</script>&", "");
    static const char *const paths[] = {"/audit", "/overrides"};
    for (size_t i = 0; i < 2; i++) {
        char *response = get(&fixture, paths[i], ADMIN);
        assert_int_equal(code_of(response), 200);
        assert_null(strstr(response, "<script>alert"));
        assert_null(strstr(response, "<b>'"));
        assert_non_null(strstr(response, "&lt;script&gt;alert(1)&lt;/script&gt;&amp;"));
        free(response);
    }
    expect(&fixture, "/audit?key=%22%3E%3Cscript%3E", ADMIN, 200, "value=\"&quot;&gt;&lt;script");
    server_stop(&fixture.server);
}

TEST(without_a_store_the_pages_say_what_is_missing) {
    char tokens[96];
    snprintf(tokens, sizeof tokens, "%s/tokens", process_new()->folder);
    file_write(tokens, TOKENS);
    const char *const more[] = {"--http-token", tokens, NULL};
    struct fixture fixture = fixture_start(API, more);
    expect(&fixture, "/audit", ADMIN, 200, "start it with --state");
    expect(&fixture, "/overrides", READER, 200, "start it with --state");
    assert_false(is_shown(&fixture, "/limits", "<nav aria-label=pages>"));
    server_stop(&fixture.server);
}
