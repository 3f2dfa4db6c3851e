/* The form that gives one key other figures for a time (E10). Most tests use a real server with a
 * file as its store. */
#define _GNU_SOURCE
#include <sys/resource.h>

#include "etcd_fixture.h"
#include "redis_fixture.h"
#include "state_fixture.h"

#define ADMIN HOST BEARER("top-1")
#define ALICE HOST BEARER("alice-2")
#define BOB HOST BEARER("bob-3")
#define READER HOST BEARER("read-4")
#define TOKENS                                                                                     \
    "admin ann top-1\nsupport alice alice-2 api/*\nsupport bob bob-3 maps\nread ron read-4\n"
#define API                                                                                        \
    "{\"resources\": [{\"identifier_glob\": \"api/*\", \"limits\": [{\"name\": \"quota\", "        \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 5, \"window\": 10000000, \"plans\": {\"pro\": "        \
    "{\"limit\": 40}}}, {\"name\": \"all\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", "   \
    "\"limit\": 1000000, \"window\": 10000000}]}]}"
#define PAGE "/override?resource=api/search&key=acme"
#define FORM "Content-Type: application/x-www-form-urlencoded\r\n"
#define OWN FORM "Sec-Fetch-Site: same-origin\r\n"
#define TWENTY "&limit=quota&figures=limit%3D20&number=1&unit=days&reason=ticket+4711"

/* What a test uses: a server with a store and tokens, and the nonce of the last page. */
struct office {
    char path[96], tokens[96];
    struct fixture fixture;
    char nonce[33];
};

static void office_open(struct office *office) {
    const char *const more[] = {"--http-token", office->tokens, NULL};
    state_path(office->path);
    snprintf(office->tokens, sizeof office->tokens, "%s/tokens", process_new()->folder);
    file_write(office->tokens, TOKENS);
    office->fixture = start(API, office->path, more);
}

/* Takes the nonce out of a page. Returns false if the page has no form. */
static bool nonce_take(struct office *office, const char *page) {
    static const char before[] = "name=nonce value=\"";
    const char *at = strstr(page, before);
    return at && sscanf(at + strlen(before), "%32[0-9a-f]", office->nonce) == 1;
}

/* Gets the page of acme, and keeps the nonce of its form. */
static void look(struct office *office, const char *lines) {
    char *page = get(&office->fixture, PAGE, lines);
    if (code_of(page) != 200 || !nonce_take(office, page)) fail_msg("%s", page);
    free(page);
}

/* Sends the form for acme with the nonce. Returns the response; the caller frees it.
 *   fields   the other fields, as in a query */
static char *form_send(const struct office *office, const char *lines, const char *fields) {
    char body[8192];
    snprintf(body, sizeof body, "resource=api%%2Fsearch&key=acme&nonce=%s%s", office->nonce,
             fields);
    return post(&office->fixture, "/override", lines, body);
}

static void expect_form(const struct office *office, const char *lines, const char *fields,
                        int code, const char *text) {
    char *response = form_send(office, lines, fields);
    if (code_of(response) != code || !strstr(response, text)) {
        fail_msg("%s: expected %d and '%s', got:\n%.9000s", fields, code, text, response);
    }
    free(response);
}

static void expect_limit(const struct office *office, int limit) {
    char text[64];
    snprintf(text, sizeof text, "\"limit\":%d,", limit);
    expect_post(&office->fixture, "/v1/inspect", ADMIN JSON,
                "{\"entry\": [{\"resource_id\": \"api/search\", \"key\": \"acme\"}]}", 200, text);
}

static bool page_has(const struct fixture *fixture, const char *path, const char *text) {
    char *page = get(fixture, path, ALICE);
    const bool found = strstr(page, text);
    free(page);
    return found;
}

/* ---- stories -------------------------------------------------------------------------------- */

TEST(the_page_shows_figures_plan_and_overrides) {
    struct office office;
    office_open(&office);
    look(&office, ALICE);
    expect(&office.fixture, PAGE, ALICE, 200, "<option value=\"quota\">quota</option>");
    expect(&office.fixture, PAGE, ALICE, 200, "<td data-name='of'>5</td>");
    expect(&office.fixture, PAGE, ALICE, 200, "There is none.");
    expect_form(&office, ALICE OWN, TWENTY, 303, "Location: /override?");
    expect(&office.fixture, PAGE, READER, 200, "<td data-name='figures'>limit 20 until ");
    expect(&office.fixture, PAGE, READER, 200, "<td data-name='why'>ticket 4711</td>");
    expect(&office.fixture, "/override?resource=api/other&key=acme", ALICE, 200, "There is none.");
    expect(&office.fixture, "/keys?resource=api/search&key=acme", ALICE, 200,
           "<a href=\"/override?resource=api/search&amp;key=acme\">give other figures for a time");
    server_stop(&office.fixture.server);
}

TEST(a_plan_is_shown_beside_its_limit) {
    static const char plan[] =
        "{\"glob\": \"api/*\", \"key\": \"acme\", \"plan\": \"pro\", \"reason\": \"r\"}";
    char request[1024];
    struct office office;
    office_open(&office);
    snprintf(request, sizeof request,
             "PUT /v1/plans HTTP/1.1\r\n" ADMIN JSON
             "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
             strlen(plan), plan);
    char *response = exchange(&office.fixture, request);
    assert_int_equal(code_of(response), 200);
    free(response);
    expect(&office.fixture, PAGE, ALICE, 200, "quota <small>plan pro</small>");
    expect(&office.fixture, PAGE, ALICE, 200, "<td data-name='of'>40</td>");
    server_stop(&office.fixture.server);
}

TEST(the_form_sets_figures_and_the_audit_has_the_token) {
    char path[256];
    struct office office;
    office_open(&office);
    look(&office, ALICE);
    expect_form(&office, ALICE OWN, TWENTY, 303,
                "Location: /override?resource=api/search&key=acme");
    expect_limit(&office, 20);
    snprintf(path, sizeof path, PAGE "&done=%s", office.nonce);
    expect(&office.fixture, path, ALICE, 200, "Done, as act 1.");
    expect(&office.fixture, "/v1/audit?limit=1", ADMIN, 200, "\"token\":\"alice\"");
    expect(&office.fixture, "/v1/audit?limit=1", ADMIN, 200, "\"what\":\"override\"");
    expect(&office.fixture, "/v1/audit?limit=1", ADMIN, 200, "\"reason\":\"ticket 4711\"");
    server_stop(&office.fixture.server);
}

TEST(units_are_added_once) {
    struct office office;
    office_open(&office);
    look(&office, ALICE);
    expect_form(&office, ALICE OWN, "&limit=quota&figures=add%3D7&number=2.5&unit=hours&reason=r",
                303, "Location: ");
    expect_limit(&office, 12);
    server_stop(&office.fixture.server);
}

TEST(a_form_that_is_sent_twice_acts_once) {
    struct office office;
    office_open(&office);
    look(&office, ALICE);
    expect_form(&office, ALICE OWN, TWENTY, 303, "Location: ");
    expect_form(&office, ALICE OWN, TWENTY, 200, "This was done already as act 1. Nothing was");
    expect_form(&office, ALICE OWN, "&limit=quota&figures=limit%3D30&number=1&unit=days&reason=r",
                200, "This was done already as act 1.");
    expect_limit(&office, 20);
    expect(&office.fixture, "/v1/audit?limit=1", ADMIN, 200, "\"id\":1,");
    server_stop(&office.fixture.server);
}

TEST(a_made_up_act_is_not_shown) {
    struct office office;
    char path[256];
    office_open(&office);
    look(&office, ALICE);
    expect_form(&office, ALICE OWN, TWENTY, 303, "Location: ");
    snprintf(path, sizeof path, PAGE "&done=%s", office.nonce);
    const char *const others[][2] = {
        {PAGE "&done=1", ALICE}, {PAGE "&done=", ALICE}, {path, BOB}, {PAGE, ALICE}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char *page = get(&office.fixture, others[i][0], others[i][1]);
        assert_int_equal(code_of(page), 200);
        assert_null(strstr(page, "as act"));
        free(page);
    }
    server_stop(&office.fixture.server);
}

TEST(an_unknown_nonce_does_nothing_and_keeps_the_values) {
    struct office office;
    office_open(&office);
    snprintf(office.nonce, sizeof office.nonce, "0123456789abcdef0123456789abcdef");
    char *page = form_send(&office, ALICE OWN, TWENTY);
    assert_int_equal(code_of(page), 409);
    assert_non_null(strstr(page, "Nothing was done now, because this form is older"));
    assert_non_null(strstr(page, "value=\"limit=20\""));
    assert_non_null(strstr(page, "value=\"ticket 4711\""));
    assert_true(nonce_take(&office, page));
    free(page);
    expect_limit(&office, 5);
    expect_form(&office, BOB OWN, TWENTY, 409, "Nothing was done"); /* the nonce is of alice */
    expect_form(&office, ALICE OWN, TWENTY, 303, "Location: ");
    expect_limit(&office, 20);
    server_stop(&office.fixture.server);
}

/* A glob in place of a resource means all resources of the template, as it does for doormanctl. */
TEST(a_form_for_a_glob_gives_figures_at_all_its_resources) {
    struct office office;
    office_open(&office);
    char *page = get(&office.fixture, "/override?resource=api/*&key=acme", ALICE);
    char body[512];
    if (!nonce_take(&office, page)) fail_msg("%s", page);
    free(page);
    snprintf(body, sizeof body, "resource=api%%2F*&key=acme&nonce=%s%s", office.nonce, TWENTY);
    expect_post(&office.fixture, "/override", ALICE OWN, body, 303, "");
    expect_limit(&office, 20);
    server_stop(&office.fixture.server);
}

/* A store that fails may still have written the act, so the server takes the form only once. */
TEST(a_form_that_a_store_has_not_answered_is_not_sent_again) {
    const struct rlimit full = {4096, RLIM_INFINITY}, room = {RLIM_INFINITY, RLIM_INFINITY};
    struct office office;
    office_open(&office);
    look(&office, ALICE);
    const pid_t pid = office.fixture.server.process->pid;
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &full, NULL), 0);
    expect_form(&office, ALICE OWN, TWENTY, 503, "nothing was changed");
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &room, NULL), 0);
    expect_form(&office, ALICE OWN, TWENTY, 409, "Nothing was done now");
    look(&office, ALICE);
    expect_form(&office, ALICE OWN, TWENTY, 303, "");
    server_stop(&office.fixture.server);
}

TEST(a_nonce_gives_way_to_the_next_1024) {
    struct office office;
    char first[33];
    office_open(&office);
    look(&office, ALICE);
    memcpy(first, office.nonce, sizeof first);
    for (int i = 0; i < 1023; i++) look(&office, ALICE);
    memcpy(office.nonce, first, sizeof first);
    expect_form(&office, ALICE OWN, "&limit=none&figures=limit%3D20&number=1&unit=days&reason=r",
                404, "limit: ");
    look(&office, ALICE);
    memcpy(office.nonce, first, sizeof first);
    expect_form(&office, ALICE OWN, TWENTY, 409, "Nothing was done");
    server_stop(&office.fixture.server);
}

TEST(a_form_of_another_page_is_refused) {
    unsigned port = 0;
    char same[256], other[256];
    struct office office;
    office_open(&office);
    look(&office, ALICE);
    sscanf(office.fixture.http.url, "tcp://127.0.0.1:%u", &port);
    snprintf(same, sizeof same,
             "Host: localhost:%u\r\n" BEARER("alice-2") FORM "Origin: http://localhost:%u\r\n",
             port, port);
    snprintf(other, sizeof other,
             "Host: localhost:%u\r\n" BEARER("alice-2") FORM "Origin: http://localhost:%u\r\n",
             port, port + 1);
    const char *const refused[] = {
        ALICE FORM, /* neither field */
        other,
        ALICE FORM "Origin: http://evil.example\r\n",
        ALICE FORM "Origin: null\r\n",
        ALICE FORM "Origin: localhost\r\n",
        ALICE FORM "Origin: http://localhost\r\nOrigin: http://localhost\r\n",
        ALICE FORM "Sec-Fetch-Site: cross-site\r\n",
        ALICE FORM "Sec-Fetch-Site: none\r\n",
        ALICE FORM "Origin: http://localhost\r\nSec-Fetch-Site: same-site\r\n"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        expect_form(&office, refused[i], TWENTY, 403, "a form must be sent from a page of this");
    }
    expect_form(&office, "Host: evil.example\r\n" BEARER("alice-2") OWN, TWENTY, 403,
                "the Host is unknown");
    expect_limit(&office, 5);
    expect_form(&office, same, TWENTY, 303, "Location: ");
    look(&office, ALICE);
    expect_form(&office, ALICE FORM "Origin: https://localhost\r\n", TWENTY, 303, "Location: ");
    server_stop(&office.fixture.server);
}

TEST(only_forms_are_read) {
    struct office office;
    office_open(&office);
    look(&office, ALICE);
    expect_form(&office, ALICE JSON "Sec-Fetch-Site: same-origin\r\n", TWENTY, 415,
                "application/x-www-form-urlencoded");
    expect_post(&office.fixture, "/v1/inspect", ADMIN OWN, "{}", 415, "application/json");
    expect(&office.fixture, PAGE, ALICE, 200, "form-action 'self'");
    expect(&office.fixture, PAGE, ALICE, 200, "Referrer-Policy: same-origin\r\n");
    expect(&office.fixture, "/limits", ALICE, 200, "Referrer-Policy: no-referrer\r\n");
    server_stop(&office.fixture.server);
}

TEST(a_token_may_do_what_its_role_and_globs_allow) {
    struct office office;
    office_open(&office);
    char *page = get(&office.fixture, PAGE, READER);
    assert_int_equal(code_of(page), 200);
    assert_non_null(strstr(page, "This one has the role read."));
    assert_false(nonce_take(&office, page));
    free(page);
    snprintf(office.nonce, sizeof office.nonce, "1");
    expect_form(&office, READER OWN, TWENTY, 403, "needs a token with the role support");
    expect(&office.fixture, PAGE, HOST, 401, "the token is missing");
    page = get(&office.fixture, PAGE, BOB);
    assert_non_null(strstr(page, "This token may only change maps."));
    assert_false(nonce_take(&office, page));
    free(page);
    look(&office, ALICE);
    expect_form(&office, ALICE OWN, "&limit=quota&figures=limit%3D51&number=1&unit=days&reason=r",
                403, "at most 10 times the limit");
    expect_limit(&office, 5);
    look(&office, ADMIN);
    expect_form(&office, ADMIN OWN, "&limit=quota&figures=limit%3D51&number=1&unit=days&reason=r",
                303, "Location: ");
    expect_limit(&office, 51);
    server_stop(&office.fixture.server);
}

TEST(an_error_names_the_field_and_keeps_the_values) {
    static const struct {
        const char *fields;
        int code;
        const char *text;
    } cases[] = {
        {"&limit=quota&figures=20&number=1&unit=days&reason=r", 400, "figures: must be names"},
        {"&limit=quota&figures=limit%3D20,&number=1&unit=days&reason=r", 400, "figures: must be"},
        {"&limit=quota&figures=limit%3D0x10&number=1&unit=days&reason=r", 400, "figures: must be"},
        {"&limit=quota&figures=limit%3Dinf&number=1&unit=days&reason=r", 400, "figures: must be"},
        {"&limit=quota&figures=limit%3D20&number=0x1&unit=days&reason=r", 400, "number: must be"},
        {"&limit=quota&figures=limit%3D20&number=1&unit=days&reason=%20", 400,
         "\"><p class=bad role=alert>reason: must say"},
        {"&limit=quota&figures=limit%3D1,limit%3D2&number=1&unit=days&reason=r", 400, "figures: "},
        {"&limit=quota&figures=rate%3D20&number=1&unit=days&reason=r", 400,
         "once</p><p class=bad role=alert>set.rate: "},
        {"&limit=quota&figures=limit%3D20&number=0&unit=days&reason=r", 400, "number: must be"},
        {"&limit=quota&figures=limit%3D20&number=1&unit=weeks&reason=r", 400, "unit: must be"},
        {"&limit=quota&figures=limit%3D20&number=1&unit=days&reason=", 400, "reason: is missing"},
        {"&limit=quota&figures=limit%3D20&number=1&unit=days&reason=%ff", 400, "reason: must be"},
        {"&limit=quota&figures=limit%3D20&number=1&unit=days&reason=%00", 400, "reason: must be"},
        {"&limit=quota&limit=b&figures=limit%3D2&number=1&unit=days&reason=r", 400,
         "limit: occurs"},
        {"&limit=none&figures=limit%3D20&number=1&unit=days&reason=r", 404,
         "</select><p class=bad role=alert>limit: "},
        {"&limit=quota&figures=limit%3D20&number=9e99&unit=days&reason=r", 400,
         "</select><p class=bad role=alert>expires_in: "}};
    struct office office;
    office_open(&office);
    look(&office, ALICE);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_form(&office, ALICE OWN, cases[i].fields, cases[i].code, cases[i].text);
    }
    char *page = form_send(&office, ALICE OWN,
                           "&limit=quota&figures=x%3D1&number=36&unit=hours&"
                           "reason=R%26D");
    assert_non_null(strstr(page, "value=\"x=1\""));
    assert_non_null(strstr(page, "value=\"36\""));
    assert_non_null(strstr(page, "<option selected>hours"));
    assert_non_null(strstr(page, "value=\"R&amp;D\""));
    free(page);
    expect_limit(&office, 5);
    expect_form(&office, ALICE OWN, TWENTY, 303, "Location: "); /* the same nonce */
    server_stop(&office.fixture.server);
}

TEST(the_form_offers_the_limits_of_one_key_and_seconds) {
    struct office office;
    office_open(&office);
    char *page = get(&office.fixture, PAGE, ALICE);
    assert_non_null(strstr(page, "<option value=\"quota\">"));
    assert_null(strstr(page, "<option value=\"all\">")); /* all keys share it */
    free(page);
    look(&office, ALICE);
    expect_form(&office, ALICE OWN,
                "&limit=quota&figures=limit%3D20&number=90&unit=seconds&reason=r", 303,
                "Location: ");
    server_stop(&office.fixture.server);
}

TEST(a_long_value_is_refused) {
    char fields[2048] = TWENTY;
    struct office office;
    office_open(&office);
    look(&office, ALICE);
    memset(fields + strlen(fields), 'x', 1200);
    expect_form(&office, ALICE OWN, fields, 400, "reason: must have at most 500 bytes");
    server_stop(&office.fixture.server);
}

TEST(values_are_escaped) {
    static const char evil[] = "%22%3E%3Cscript%3Ealert(1)%3C/script%3E";
    char path[256], body[1024];
    struct office office;
    office_open(&office);
    snprintf(path, sizeof path, "/override?resource=api/%s&key=%s", evil, evil);
    char *page = get(&office.fixture, path, ALICE);
    assert_int_equal(code_of(page), 200);
    assert_null(strstr(page, "<script"));
    assert_true(nonce_take(&office, page));
    free(page);
    snprintf(body, sizeof body,
             "resource=api/%s&key=%s&nonce=%s&limit=%s&figures=%s&number=%s&"
             "unit=days&reason=%s",
             evil, evil, office.nonce, evil, evil, evil, evil);
    page = post(&office.fixture, "/override", ALICE OWN, body);
    assert_int_equal(code_of(page), 400);
    assert_null(strstr(page, "<script"));
    assert_non_null(strstr(page, "value=\"&quot;&gt;&lt;script&gt;alert(1)"));
    free(page);
    server_stop(&office.fixture.server);
}

TEST(without_a_store_the_page_says_what_is_missing) {
    char tokens[96];
    snprintf(tokens, sizeof tokens, "%s/tokens", process_new()->folder);
    file_write(tokens, TOKENS);
    const char *const more[] = {"--http-token", tokens, NULL};
    struct fixture fixture = fixture_start(API, more);
    expect(&fixture, PAGE, ALICE, 200, "start it with --state");
    expect_post(&fixture, "/override", ALICE OWN, "resource=api/search&key=acme" TWENTY, 404,
                "start it with --state");
    server_stop(&fixture.server);
}

TEST(a_process_that_is_not_master_links_to_the_master) {
    struct etcd etcd;
    struct redis redis;
    char tokens[96], link[256];
    unsigned port = 0;
    redis_require(&redis);
    etcd_require(&etcd);
    snprintf(tokens, sizeof tokens, "%s/tokens", process_new()->folder);
    file_write(tokens, TOKENS);
    const char *const flags[] = {"--state", redis.address,    "--http-token",   tokens, "--etcd",
                                 etcd.url,  "--election-key", "doorman/master", NULL};
    struct fixture first = fixture_start(API, flags);
    process_await(first.server.process, "msg=\"counters read\"", 1);
    struct fixture second = fixture_start(API, flags);
    assert_int_equal(sscanf(first.http.url, "tcp://127.0.0.1:%u", &port), 1);
    snprintf(link, sizeof link,
             "<a href=\"http://127.0.0.1:%u/override?resource=api/search&amp;key=acme\">", port);
    EVENTUALLY(page_has(&second, PAGE, link));
    expect(&second, PAGE, ALICE, 200, "this process is not the master");
    expect_post(&second, "/override", ALICE OWN, "resource=api/search&key=acme" TWENTY, 503, link);
    server_stop(&second.server);
    server_stop(&first.server);
    etcd_stop(&etcd);
    redis_kill(&redis);
}
