/* Tests the tokens of HTTP: their file, and what their roles allow. */
#define _GNU_SOURCE
#include "http.h"

#include <sys/stat.h>

#define TOKENS                                                                                     \
    "# the tokens of this server\r\n"                                                              \
    "\n"                                                                                           \
    "  read  prometheus  scrape-1\r\n"                                                             \
    "write\tbilling\tlease-2\n"                                                                    \
    "write billing2 lease-3\n"                                                                     \
    "admin ann top-4" /* the last line may have no end */

/* Starts a server whose file of tokens has this text. */
static struct fixture start_with_tokens(const char *tokens) {
    struct process *files = process_new();
    file_write(files->config, tokens);
    return fixture_start(CONFIG("100", ""), (const char *[]){"--http-token", files->config, NULL});
}

/* V3: the role read allows these pages. The roles write and admin also allow messages. */
TEST(a_role_decides_what_a_token_allows) {
    static const struct {
        const char *token;
        bool writes;
    } cases[] = {{BEARER("scrape-1"), false},
                 {BEARER("lease-2"), true},
                 {BEARER("lease-3"), true},
                 {BEARER("top-4"), true}};
    static const char *const pages[] = {"/",          "/limits",          "/versions",
                                        "/holds",     "/metrics",         "/v1/status",
                                        "/v1/limits", "/v1/holds",        "/v1/counters",
                                        "/v1/config", "/v1/openapi.json", "/bans",
                                        "/top",       "/v1/bans",         "/v1/top",
                                        "/v1/drain",  "/descriptors",     "/v1/descriptors",
                                        "/override"};
    struct fixture fixture = start_with_tokens(TOKENS);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char lines[256];
        snprintf(lines, sizeof lines, HOST JSON "%s", cases[i].token);
        for (size_t k = 0; k < sizeof pages / sizeof *pages; k++) {
            expect(&fixture, pages[k], lines, 200, "");
        }
        expect_post(&fixture, "/v1/get_capacity", lines, CAPACITY_REQUEST("a", "db", "1"),
                    cases[i].writes ? 200 : 403,
                    cases[i].writes ? "\"response\""
                                    : "this request needs a token with the role write; "
                                      "'prometheus' has the role read");
        expect_post(&fixture, "/v1", lines, "{\"discovery\": {}}", cases[i].writes ? 200 : 403, "");
        expect_post(&fixture, "/v1/nothing", lines, "{}", 404, "NOT_FOUND");
        expect(&fixture, "/v1/get_capacity", lines, 405, "Allow: POST");
    }
    server_stop(&fixture.server);
}

#define LIMITED                                                                                    \
    "{\"resources\": [{\"identifier_glob\": \"login\", \"limits\": [{\"name\": \"w\", \"kind\": "  \
    "\"FIXED_WINDOW\", \"limit\": 2, \"window\": 100000000}]}]}"
#define ACQUIRE                                                                                    \
    "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"login\", \"key\": "       \
    "\"ann\"}]}]}"
#define ENTRY(more) "{\"entry\": [{\"resource_id\": \"login\", \"key\": \"ann\"" more "}]}"
#define REPORT "{\"client_id\": \"c\", \"entry\": [{\"resource_id\": \"login\", \"cost\": 1}]}"

/* P20: to ask for permits needs the role write, and to inspect a key the role read. To change a key
 * needs an even higher role, here admin. */
TEST(permits_need_the_role_of_their_method) {
    static const struct {
        const char *path, *body;
        int codes[3]; /* of read, write and admin */
    } cases[] = {{"/v1/acquire", ACQUIRE, {403, 200, 200}},
                 {"/v1/report", REPORT, {403, 200, 200}},
                 {"/v1/inspect", ENTRY(""), {200, 200, 200}},
                 {"/v1/reset", ENTRY(""), {403, 403, 200}}};
    static const char *const tokens[] = {BEARER("scrape-1"), BEARER("lease-2"), BEARER("top-4")};
    struct process *files = process_new();
    file_write(files->config, TOKENS);
    struct fixture fixture =
        fixture_start(LIMITED, (const char *[]){"--http-token", files->config, NULL});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t k = 0; k < 3; k++) {
            char lines[256];
            snprintf(lines, sizeof lines, HOST JSON "%s", tokens[k]);
            expect_post(&fixture, cases[i].path, lines, cases[i].body, cases[i].codes[k], "");
        }
    }
    server_stop(&fixture.server);
}

#define BRINGS(set)                                                                                \
    "{\"client_id\": \"c\", \"permit\": [{\"detail\": true, \"item\": [{\"resource_id\": "         \
    "\"login\", "                                                                                  \
    "\"key\": \"eve\", \"" set "\": {\"w\": {\"limit\": 9}}}]}]}"

/* P31: a message with figures needs the role figures, even if an escape hides the name `set`. */
TEST(figures_by_the_caller_need_their_role) {
    static const char *const needs = "acquire.permit[0].item[0].set: needs a token with the role "
                                     "figures; 'billing' has the role write";
    struct process *files = process_new();
    file_write(files->config, "write billing lease-2\nfigures gate set-3\nadmin ann top-4\n");
    struct fixture fixture =
        fixture_start(LIMITED, (const char *[]){"--http-token", files->config, NULL});
    const char *writes = HOST JSON BEARER("lease-2"), *brings = HOST JSON BEARER("set-3");
    expect_post(&fixture, "/v1/acquire", writes, BRINGS("set"), 403, needs);
    expect_post(&fixture, "/v1", writes, "{\"acquire\": " BRINGS("set") "}", 403, needs);
    expect_post(&fixture, "/v1/acquire", writes, BRINGS("s\\u0065t"), 404, "the role figures");
    expect_post(&fixture, "/v1/acquire", writes, ACQUIRE, 200, "GRANTED");
    expect_post(&fixture, "/v1/acquire", brings, BRINGS("set"), 200, "\"remaining\":8");
    expect_post(&fixture, "/v1", brings, "{\"acquire\": " BRINGS("set") "}", 200, "\"set\":true");
    expect_post(&fixture, "/v1/acquire", HOST JSON BEARER("top-4"), BRINGS("set"), 200,
                "\"remaining\":6");
    expect_post(&fixture, "/v1/reset", brings, ENTRY(""), 403, "the role support");
    process_await(fixture.server.process, "token=billing", 1);
    server_stop(&fixture.server);
}

#define OF(limit)                                                                                  \
    "{\"client_id\": \"c\", \"permit\": [{\"item\": [{\"resource_id\": \"login\", "                \
    "\"key\": \"eve\", \"set\": {\"w\": {\"limit\": " #limit "}}}]}]}"

/* P31 */
TEST(the_page_says_that_callers_bring_figures_that_differ) {
    static const char *const differ = "callers bring figures that differ for one key: ";
    struct process *files = process_new();
    file_write(files->config, "figures gate set-3\n");
    struct fixture fixture =
        fixture_start(LIMITED, (const char *[]){"--http-token", files->config, NULL});
    const char *brings = HOST JSON BEARER("set-3");
    for (int i = 0; i < 2; i++) {
        expect_post(&fixture, "/v1/acquire", brings, OF(9), 200, "\"GRANTED\"");
    }
    char *page = get(&fixture, "/limits", brings);
    assert_int_equal(code_of(page), 200);
    assert_null(strstr(page, differ));
    free(page);
    expect_post(&fixture, "/v1/acquire", brings, OF(8), 200, "\"GRANTED\"");
    page = get(&fixture, "/limits", brings);
    assert_non_null(strstr(page, differ));
    assert_int_equal(atoi(strstr(page, differ) + strlen(differ)), 1);
    free(page);
    expect(&fixture, "/v1/limits", brings, 200, "\"set_changes\":1,");
    expect(&fixture, "/metrics", brings, 200, "\ndoorman_permits_set_changes_total{");
    server_stop(&fixture.server);
}

TEST(figures_by_the_caller_need_a_server_with_tokens) {
    struct fixture fixture = fixture_start(LIMITED, NULL);
    expect_post(&fixture, "/v1/acquire", HOST JSON, BRINGS("set"), 403,
                "needs a server with "
                "--http-token");
    server_stop(&fixture.server);
}

/* P20 */
TEST(a_reset_and_a_ban_are_logged_with_the_name_of_the_token) {
    struct process *files = process_new();
    file_write(files->config, TOKENS);
    struct fixture fixture =
        fixture_start(LIMITED, (const char *[]){"--http-token", files->config, NULL});
    const char *lines = HOST JSON BEARER("top-4");
    struct process *process = fixture.server.process;
    for (int i = 0; i < 2; i++)
        expect_post(&fixture, "/v1/acquire", lines, ACQUIRE, 200, "GRANTED");
    expect_post(&fixture, "/v1/acquire", lines, ACQUIRE, 200, "\"reason\":\"RATE\"");
    expect_post(&fixture, "/v1/reset", lines, ENTRY(", \"limit\": \"w\""), 200, "\"count\":1");
    process_await(process, "msg=\"a counter was reset\" token=ann peer=127.0.0.1:", 1);
    process_await(process, " resource=login key=ann limit=w used_before=2\n", 1);
    expect_post(&fixture, "/v1/acquire", lines, ACQUIRE, 200, "GRANTED");
    expect_post(&fixture, "/v1/reset", lines, ENTRY(", \"ban\": 600"), 200, "\"count\":1");
    process_await(process, "msg=\"a key was banned\" token=ann peer=127.0.0.1:", 1);
    process_await(process, " resource=login key=ann seconds=600\n", 1);
    expect_post(&fixture, "/v1/acquire", lines, ACQUIRE, 200, "\"reason\":\"BANNED\"");
    expect_post(&fixture, "/v1/inspect", lines, ENTRY(""), 200, "\"reason\":\"BANNED\"");
    expect_post(&fixture, "/v1/reset", lines, ENTRY(", \"ban\": 0"), 200, "\"count\":1");
    process_await(process, "msg=\"a ban was ended\" token=ann peer=127.0.0.1:", 1);
    expect_post(&fixture, "/v1/reset", lines, ENTRY(", \"ban\": 0"), 200, "\"count\":0");
    process_await(process, "msg=\"no ban was ended, because there is none\" token=ann", 1);
    expect_post(&fixture, "/v1/reset", lines, ENTRY(""), 200, "\"count\":1");
    process_await(process, " resource=login key=ann limit=w used_before=1\n", 1);
    expect_post(&fixture, "/v1/reset", lines, ENTRY(""), 200, "\"count\":0");
    process_await(process, "msg=\"nothing was reset, because the limit has counted nothing for", 1);
    expect_post(&fixture, "/v1/reset", lines, ENTRY(", \"ban\": -1"), 400, "ban: must be");
    assert_int_equal(process_logged(process, "a ban was ended"), 1); /* the wrong one did nothing */
    server_stop(&fixture.server);
}

TEST(a_reset_of_holds_is_logged_as_having_no_effect) {
    struct process *files = process_new();
    file_write(files->config, TOKENS);
    struct fixture fixture = fixture_start(
        "{\"resources\": [{\"identifier_glob\": \"login\", \"limits\": [{\"name\": \"slots\", "
        "\"kind\": \"CONCURRENCY\", \"limit\": 4, \"on_restart\": \"full\"}]}]}",
        (const char *[]){"--http-token", files->config, NULL});
    const char *lines = HOST JSON BEARER("top-4");
    expect_post(&fixture, "/v1/acquire", lines,
                "{\"client_id\": \"c\", \"permit\": [{\"request_id\": 1, \"item\": "
                "[{\"resource_id\": \"login\", \"key\": \"ann\", \"cost\": 3}]}]}",
                200, "GRANTED");
    expect_post(&fixture, "/v1/reset", lines, ENTRY(", \"limit\": \"slots\""), 200, "\"count\":0");
    process_await(fixture.server.process,
                  "msg=\"nothing was reset, because holds stay until they are released or end\" "
                  "token=ann peer=127.0.0.1:",
                  1);
    process_await(fixture.server.process, " key=ann limit=slots held=3\n", 1);
    server_stop(&fixture.server);
}

#define SLOTS                                                                                      \
    "{\"resources\": [{\"identifier_glob\": \"login\", \"limits\": [{\"name\": \"slots\", "        \
    "\"kind\": \"CONCURRENCY\", \"limit\": 1, \"time_to_live\": 600, \"on_restart\": "             \
    "\"full\"}]}]}"
#define HOLD(id)                                                                                   \
    "{\"client_id\": \"c\", \"permit\": [{\"request_id\": " id ", \"item\": [{\"resource_id\": "   \
    "\"login\", \"key\": \"ann\"}]}]}"

/* P20: units that somebody holds cannot be reset, because they are in use. */
TEST(a_reset_frees_no_units_that_are_held) {
    struct process *files = process_new();
    file_write(files->config, TOKENS);
    struct fixture fixture =
        fixture_start(SLOTS, (const char *[]){"--http-token", files->config, NULL});
    const char *lines = HOST JSON BEARER("top-4");
    expect_post(&fixture, "/v1/acquire", lines, HOLD("1"), 200, "\"expires_in\":600");
    expect_post(&fixture, "/v1/inspect", lines, ENTRY(""), 200,
                "\"name\":\"slots\",\"limit\":1,\"used\":1,\"remaining\":0");
    expect_post(&fixture, "/v1/reset", lines, ENTRY(""), 200, "\"entry\":[");
    expect_post(&fixture, "/v1/reset", lines, ENTRY(", \"limit\": \"slots\""), 200, "\"entry\":[");
    expect_post(&fixture, "/v1/acquire", lines, HOLD("2"), 200, "\"reason\":\"CONCURRENCY\"");
    expect_post(&fixture, "/v1/release", lines,
                "{\"client_id\": \"c\", \"entry\": [{\"request_id\": 1}]}", 200, "\"amount\":[]");
    expect_post(&fixture, "/v1/inspect", lines, ENTRY(""), 200, "\"used\":0,\"remaining\":1");
    expect_post(&fixture, "/v1/acquire", lines, HOLD("2"), 200, "GRANTED");
    server_stop(&fixture.server);
}

#define SHARED_AND_OWN                                                                             \
    "{\"resources\": [{\"identifier_glob\": \"api/*\", \"limits\": [{\"name\": \"all\", \"per\": " \
    "\"template\", \"kind\": \"FIXED_WINDOW\", \"limit\": 9, \"window\": 1000}, {\"name\": "       \
    "\"own\", "                                                                                    \
    "\"kind\": \"FIXED_WINDOW\", \"limit\": 2, \"window\": 1000}]}]}"
#define RESET(resource, more)                                                                      \
    "{\"entry\": [{\"resource_id\": \"api/mail\", \"key\": \"ann\"}, {\"resource_id\": "           \
    "\"" resource "\", \"key\": \"ann\"" more "}]}"

/* E6: support engineers can change only the resources that their globs match. */
TEST(the_role_support_resets_and_bans_within_its_globs) {
    static const struct {
        const char *token, *body;
        int code;
        const char *text;
    } cases[] = {
        {BEARER("mail-1"), RESET("api/mail", ""), 200, "\"count\""},
        {BEARER("mail-1"), RESET("api/mail/out", ", \"ban\": 60"), 200, "\"count\":1"},
        {BEARER("mail-1"), RESET("api/mai", ""), 403,
         "entry[1].resource_id: api/mai: 'mia' may only change api/mail*"},
        {BEARER("mail-1"), RESET("api", ", \"ban\": 60"), 403, "entry[1].resource_id: api: 'mia'"},
        {BEARER("mail-1"), RESET("api/mail", ", \"limit\": \"own\""), 200, "\"count\""},
        {BEARER("mail-1"), RESET("api/mail", ", \"limit\": \"all\""), 403,
         "entry[1].limit: all is shared by all resources of api/*, and 'mia' may only change "
         "api/mail*"},
        {BEARER("list-2"), RESET("api/mail", ", \"limit\": \"all\""), 200, "\"count\""},
        {BEARER("list-2"), RESET("api/mail/out", ""), 200, "\"count\""},
        {BEARER("list-2"), RESET("login", ", \"ban\": 60"), 200, "\"count\":1"},
        {BEARER("list-2"), RESET("login2", ", \"ban\": 60"), 403,
         "'lou' may only change login api/*"},
        {BEARER("lease-3"), RESET("api/mail", ""), 403,
         "needs a token with the role support; 'bo'"},
        {BEARER("mail-1"), "{\"entry\": [{\"key\": \"ann\"}]}", 400,
         "entry[0].resource_id: is missing"},
        {BEARER("mail-1"), "{\"entry\"", 400, "INVALID_ARGUMENT"},
    };
    struct process *files = process_new();
    file_write(files->config, "support mia mail-1 api/mail*\n"
                              "support lou list-2 login api/*\nwrite bo lease-3\n");
    struct fixture fixture =
        fixture_start(SHARED_AND_OWN, (const char *[]){"--http-token", files->config, NULL});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char lines[256];
        snprintf(lines, sizeof lines, HOST JSON "%s", cases[i].token);
        expect_post(&fixture, "/v1/reset", lines, cases[i].body, cases[i].code, cases[i].text);
    }
    server_stop(&fixture.server);
}

/* E6 */
TEST(the_role_support_reads_everything_and_takes_nothing) {
    struct process *files = process_new();
    file_write(files->config, "support mia mail-1 *\n");
    struct fixture fixture =
        fixture_start(LIMITED, (const char *[]){"--http-token", files->config, NULL});
    const char *lines = HOST JSON BEARER("mail-1");
    expect(&fixture, "/v1/status", lines, 200, "");
    expect_post(&fixture, "/v1/inspect", lines, ENTRY(""), 200, "\"limits\"");
    expect_post(&fixture, "/v1/acquire", lines, ACQUIRE, 403,
                "with the role write; 'mia' has the "
                "role support");
    expect(&fixture, "/v1/allow?resource=login&key=ann", lines, 403, "with the role write");
    server_stop(&fixture.server);
}

/* Over nng the server does not know who sends a message. */
TEST(a_key_is_inspected_and_reset_only_over_http_with_a_token) {
    struct fixture open = fixture_start(LIMITED, NULL);
    expect_post(&open, "/v1/acquire", HOST JSON, ACQUIRE, 200, "GRANTED");
    expect_post(&open, "/v1/inspect", HOST JSON, ENTRY(""), 403,
                "needs a server with --http-token");
    expect_post(&open, "/v1/reset", HOST JSON, ENTRY(""), 403, "needs a server with --http-token");
    const char *only = "as POST /v1/reset with a token of the role support";
    expect_post(&open, "/v1", HOST JSON, "{\"inspect\": " ENTRY("") "}", 404,
                "as POST /v1/inspect with a token of the role read");
    cJSON *reply = send_request(&open.server, "{\"reset\":" ENTRY("") "}");
    const cJSON *error = cJSON_GetObjectItem(reply, "error");
    assert_string_equal(cJSON_GetObjectItem(error, "code")->valuestring, "NOT_FOUND");
    assert_non_null(strstr(cJSON_GetObjectItem(error, "message")->valuestring, only));
    cJSON_Delete(reply);
    expect_post(&open, "/v1/acquire", HOST JSON, "{\"acquire\": " ACQUIRE "}", 400, "acquire");
    server_stop(&open.server);
}

TEST(a_token_that_is_not_in_the_file_is_refused) {
    static const char *const wrong[] = {"",
                                        BEARER("scrape-"),
                                        BEARER("scrape-11"),
                                        BEARER("prometheus"),
                                        BEARER("lease-1"),
                                        BEARER("read prometheus scrape-1"),
                                        BEARER("#"),
                                        "Authorization: Basic OnNjcmFwZS0xAA==\r\n", /* a 0 byte */
                                        BEARER("scrape-1") BEARER("scrape-1")};
    struct fixture fixture = start_with_tokens(TOKENS);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char lines[256];
        snprintf(lines, sizeof lines, HOST "%s", wrong[i]);
        expect(&fixture, "/metrics", lines, 401, "UNAUTHENTICATED");
    }
    char lines[1024];
    snprintf(lines, sizeof lines, HOST "Authorization: Bearer %0600d\r\n", 1);
    expect(&fixture, "/metrics", lines, 401, "UNAUTHENTICATED");
    expect(&fixture, "/metrics", HOST "Authorization: Basic OnNjcmFwZS0x\r\n", 200, "doorman");
    server_stop(&fixture.server);
}

/* V6: a browser first sends no token, so a request without a token is not logged. */
TEST(a_wrong_token_is_logged) {
    struct fixture fixture = start_with_tokens(TOKENS);
    expect(&fixture, "/metrics", HOST, 401, "");
    expect(&fixture, "/metrics", HOST BEARER("scrape-1"), 200, "");
    assert_int_equal(process_logged(fixture.server.process, "wrong token"), 0);
    for (int i = 0; i < 3; i++) expect(&fixture, "/metrics", HOST BEARER("guess"), 401, "");
    process_await(fixture.server.process,
                  "\"a request has a wrong token\" count=1 peer=127.0.0.1:", 1);
    assert_int_equal(process_logged(fixture.server.process, "guess"), 0);
    server_stop(&fixture.server);
}

/* V6: the metrics also count the requests of tokens whose role is too small. */
TEST(a_role_that_is_too_small_is_logged_and_counted) {
    struct fixture fixture = start_with_tokens(TOKENS);
    for (int i = 0; i < 3; i++) {
        expect_post(&fixture, "/v1/get_capacity", HOST JSON BEARER("scrape-1"), "{}", 403, "");
    }
    process_await(fixture.server.process,
                  "\"a token does not have the role that its request needs\" count=1 "
                  "peer=127.0.0.1:",
                  1);
    process_await(fixture.server.process, " hosts=1 token=prometheus\n", 1);
    expect(&fixture, "/metrics", HOST BEARER("scrape-1"), 200, "kind=\"http\",reason=\"role\"} 3");
    server_stop(&fixture.server);
}

/* V6 */
TEST(the_name_of_a_token_is_logged) {
    struct process *files = process_new();
    file_write(files->config, TOKENS);
    struct fixture fixture =
        fixture_start(CONFIG("100", ""), (const char *[]){"--http-token", files->config,
                                                          "--log-level", "debug", NULL});
    expect_post(&fixture, "/v1/get_capacity", HOST JSON BEARER("lease-2"),
                CAPACITY_REQUEST("a", "db", "1"), 200, "\"response\"");
    process_await(fixture.server.process,
                  "\"HTTP request allowed\" token=billing verb=POST path=/v1/get_capacity", 1);
    expect_post(&fixture, "/v1/get_capacity", HOST JSON BEARER("scrape-1"), "{}", 403, "");
    process_await(fixture.server.process,
                  "\"HTTP request refused\" token=prometheus verb=POST path=/v1/get_capacity "
                  "status=403",
                  1);
    expect_post(&fixture, "/v1/get_capacity", HOST JSON BEARER("lease-2"), "{}", 400, "");
    process_await(fixture.server.process, " token=billing method=get_capacity code=INVALID", 1);
    server_stop(&fixture.server);
}

/* V7: the error names the line, and has no part of a token. */
TEST(an_error_in_the_file_of_tokens_names_the_line) {
    static const struct {
        const char *file, *error;
    } cases[] = {
        {"", ": must hold a token"},
        {"# nothing\n\n", ": must hold a token"},
        {"read a s3cret\nwriter b s3cret2\n", ": line 2: the first word must be a role"},
        {"#\n\nread s3cret\n", ": line 3: must be ROLE NAME TOKEN"},
        {"read a s3cret more\n", ": line 1: must be ROLE NAME TOKEN: only the role support has"},
        {"# cut off\nread\n", ": line 2: a role needs a name and a token"},
        {"s3cret\ns3cret2\n", ": line 2: a token without a role must be the only one"},
        {"read a s3cret\ns3cret2\n", ": line 2: a token without a role must be the only one"},
        {"s3cret\nread a s3cret2\n", ": line 2: a token without a role must be the only one"},
        {"read a s3cret\nread b x\nwrite a y\n", ": line 3: line 1 has the same name"},
        {"read a s3cret\nwrite b s3cret\n", ": line 2: line 1 has the same token"},
        {"read \x01 s3cret\n", ": line 1: a name has at most 64 characters"},
        {"admin a s3cret api/*\n", ": line 1: must be ROLE NAME TOKEN: only the role support has"},
        {"read b x\nsupport a s3cret\n", ": line 2: the role support needs globs of resources"},
        {"support a s3cret login api/?\n",
         ": line 1: a glob is the id of a resource, or the first"},
        {"support a s3cret *\nsupport b s3cret2 a*b\n", ": line 2: a glob is the id of a resource"},
        {"support a s3cret 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n",
         ": line 1: a token has at most 16 globs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct process *process = process_new(), *files = process_new();
        file_write(process->config, CONFIG("100", ""));
        file_write(files->config, cases[i].file);
        const char *arguments[] = {"--config",     process->config,
                                   "--listen",     "tcp://127.0.0.1:0",
                                   "--http",       "127.0.0.1:0",
                                   "--http-token", files->config,
                                   NULL,           NULL};
        arguments[8] = i % 2 ? "--check-config" : NULL; /* which checks the file too */
        assert_int_equal(process_run(process, arguments, NULL), 1);
        char *log_text = file_read(process->err);
        if (!strstr(log_text, cases[i].error) || strstr(log_text, "s3cret")) {
            fail_msg("expected '%s', got '%s'", cases[i].error, log_text);
        }
        free(log_text);
    }
}

TEST(a_file_of_tokens_that_all_users_can_read_is_logged) {
    static const char text[] = "all users of this machine can read the tokens";
    struct process *files = process_new();
    file_write(files->config, "read a first\n");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(chmod(files->config, i == 0 ? 0604 : 0640), 0);
        struct fixture fixture =
            fixture_start(CONFIG("100", ""), (const char *[]){"--http-token", files->config, NULL});
        assert_int_equal(process_logged(fixture.server.process, text), i == 0 ? 1 : 0);
        assert_int_equal(process_logged(fixture.server.process, "mode=604"), i == 0 ? 1 : 0);
        server_stop(&fixture.server);
    }
}

/* Writes a file with `count` tokens of `bytes` bytes each. */
static void write_tokens(const char *path, int count, int bytes) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < count; i++) fprintf(file, "read n%d %0*d\n", i, bytes, i);
    assert_int_equal(fclose(file), 0);
}

TEST(the_file_of_tokens_has_limits) {
    static const struct {
        int count, bytes;
        const char *error; /* NULL: the file is valid */
    } cases[] = {{64, 512, NULL},
                 {65, 512, "line 65: the file has more than 64 tokens"},
                 {1, 513, "line 1: a token has at most 512 bytes"},
                 {10, 6600, "is larger than 65536 bytes"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct process *files = process_new();
        write_tokens(files->config, cases[i].count, cases[i].bytes);
        const char *flags[] = {"--http-token", files->config, "--http", "127.0.0.1:0", NULL};
        if (cases[i].error) {
            expect_refusal(flags, 1, cases[i].error);
        } else {
            struct fixture fixture = fixture_start(CONFIG("100", ""), flags);
            char lines[1024];
            snprintf(lines, sizeof lines, HOST "Authorization: Bearer %0512d\r\n", 63);
            expect(&fixture, "/metrics", lines, 200, "doorman");
            server_stop(&fixture.server);
        }
    }
}

/* V1: an invalid file changes nothing. */
TEST(a_changed_file_of_tokens_is_loaded) {
    struct process *files = process_new();
    file_write(files->config, "read a first\n");
    struct fixture fixture =
        fixture_start(CONFIG("100", ""), (const char *[]){"--http-token", files->config, NULL});
    expect(&fixture, "/metrics", HOST BEARER("first"), 200, "doorman");
    config_replace(files, "read a second\nwrong b third\n");
    process_await(fixture.server.process, "tokens refused; the last ones stay in force", 1);
    process_await(fixture.server.process, "line 2: the first word must be a role", 1);
    expect(&fixture, "/metrics", HOST BEARER("first"), 200, "doorman");
    expect(&fixture, "/metrics", HOST BEARER("second"), 401, "UNAUTHENTICATED");
    expect(&fixture, "/metrics", HOST BEARER("first"), 200,
           "\ndoorman_server_last_reload_successful{what=\"tokens\"} 0\n");
    expect(&fixture, "/", HOST BEARER("first"), 200, "line 2: the first word must be a role");
    config_replace(files, "write a second\nread b third\n");
    process_await(fixture.server.process, "tokens loaded", 1);
    expect(&fixture, "/metrics", HOST BEARER("first"), 401, "UNAUTHENTICATED");
    expect(&fixture, "/metrics", HOST BEARER("third"), 200,
           "\ndoorman_server_last_reload_successful{what=\"tokens\"} 1\n");
    expect_post(&fixture, "/v1/get_capacity", HOST JSON BEARER("second"),
                CAPACITY_REQUEST("a", "db", "1"), 200, "\"response\"");
    process_signal(fixture.server.process, SIGHUP);
    process_await(fixture.server.process, "tokens loaded", 2);
    server_stop(&fixture.server);
}
