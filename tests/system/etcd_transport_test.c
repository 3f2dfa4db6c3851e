/* How doorman_server calls etcd: TLS, users, kept connections, deadlines, and members of etcd that
 * misbehave (V2, V7).
 *
 * Tests with a real etcd are skipped if etcd is not installed, and tests with TLS also if openssl
 * is not installed. The other tests use fake members or none. A run of doorman_server with
 * --check-config makes one call, and prints why the call failed. */
#define _GNU_SOURCE
#include "etcd_fixture.h"

#include <nng/supplemental/util/platform.h>

#define CONFIG "{\"resources\":[{\"identifier_glob\":\"*\",\"capacity\":120}]}"
#define CONFIG_BASE64 "eyJyZXNvdXJjZXMiOlt7ImlkZW50aWZpZXJfZ2xvYiI6IioiLCJjYXBhY2l0eSI6MTIwfV19"
#define PASSWORD "hush \"quoted\\ text"
#define IS_MASTER "this server is the master"
#define UNREACHABLE "etcd cannot be reached"
#define NOT_ETCD ": this is not a response of etcd: HTTP status "
#define OK_HEAD "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

/* ---- servers -------------------------------------------------------------------------------- */

/* Runs doorman_server with --check-config, and checks the exit code and the error. The error must
 * not contain the password.
 *   etcd   the addresses of etcd
 *   more   further flags, up to a NULL; NULL: none
 *   text   part of the error; if it begins with ":", it must follow the address of the member;
 *          NULL: no error */
static void expect_call(const char *etcd, const char *const *more, const char *text) {
    struct process *process = process_new();
    const char *arguments[ARGUMENT_MAX] = {"--check-config", "--config", "etcd:doorman/config",
                                           "--etcd", etcd};
    const char *const environment[] = {"http_proxy=http://127.0.0.1:1",
                                       "https_proxy=http://127.0.0.1:1", NULL};
    for (size_t i = 0; more && more[i]; i++) arguments[i + 5] = more[i];
    int code = process_run(process, arguments, environment);
    char *log_text = file_read(process->err), expected[512] = "";
    if (text && *text == ':') snprintf(expected, sizeof expected, "etcd:doorman/config: %s", etcd);
    if (text) strncat(expected, text, sizeof expected - strlen(expected) - 1);
    if (code != (text ? 1 : 0) || !strstr(log_text, expected) || strstr(log_text, "hush")) {
        fail_msg("expected '%s', got %d and '%s'", expected, code, log_text);
    }
    free(log_text);
    process_remove_last();
}

/* Starts a server that takes part in an election.
 *   etcd   the addresses of etcd
 *   more   further flags, up to a NULL; NULL: none */
static struct server elector_start(const char *etcd, const char *ttl, const char *const *more) {
    const char *arguments[ARGUMENT_MAX] = {"--etcd",         etcd, "--election-key", "doorman/test",
                                           "--election-ttl", ttl,  "--log-level",    "debug"};
    for (size_t i = 0; more && more[i]; i++) arguments[i + 8] = more[i];
    return server_start(CONFIG, arguments);
}

static bool server_is_master(const struct server *server) {
    cJSON *response = send_request(server, "{\"discovery\":{}}");
    bool is_master = cJSON_IsTrue(find(response, "discovery.is_master"));
    cJSON_Delete(response);
    return is_master;
}

/* Starts a server, which must become master. */
static void expect_master(const char *etcd, const char *const *more) {
    struct server server = elector_start(etcd, "60", more);
    process_await(server.process, IS_MASTER, 1);
    assert_true(server_is_master(&server));
    assert_int_equal(process_logged(server.process, "hush"), 0);
    server_stop(&server);
}

/* Starts a server, which must log why etcd cannot be used, and must not become master. On a very
 * slow machine it may log instead that a call has reached its deadline of 2 s. The deadline in
 * expect_call is 5 s. */
static void expect_no_master(const char *etcd, const char *const *more, const char *text) {
    expect_call(etcd, more, text);
    struct server server = elector_start(etcd, "60", more);
    process_await(server.process, UNREACHABLE, 1);
    if (!process_logged(server.process, text) && !process_logged(server.process, "timed out")) {
        char *log_text = file_read(server.process->err);
        fail_msg("expected '%s', got '%s'", text, log_text);
    }
    sleep_ms(1500); /* one or two more polls */
    assert_false(server_is_master(&server));
    assert_int_equal(process_logged(server.process, IS_MASTER), 0);
    assert_int_equal(process_logged(server.process, "hush"), 0);
    server_stop(&server);
}

/* ---- a fake member -------------------------------------------------------------------------- */

enum manner {
    ANSWERS,   /* sends the bytes of `reply` */
    CLOSES,    /* sends the bytes, then closes the connection */
    DRIPS,     /* sends the bytes, then one byte every 0.1 s */
    FLOODS,    /* sends the bytes, then lines without end */
    IS_SILENT, /* sends nothing */
    ECHOES     /* sends the body of the request with status 400 */
};

/* A member that behaves in one manner. A thread serves one connection after the other. The strings
 * must not change while the thread runs. */
struct fake {
    pthread_t thread;
    int listener;
    enum manner manner;
    const char *reply;
    const char *token_reply;           /* for requests for a token; NULL: as other requests */
    bool stop;                         /* atomic, like the counters */
    int connections, closed, requests; /* `requests` does not count requests for a token */
    int token_requests;
    char last[4096], last_token[4096]; /* the last requests; read them when the fake has stopped */
    char url[64];
};

static bool fake_is_stopped(const struct fake *fake) {
    return __atomic_load_n(&fake->stop, __ATOMIC_ACQUIRE);
}

static int fake_count(const int *counter) { return __atomic_load_n(counter, __ATOMIC_ACQUIRE); }

/* Waits until a socket is readable. Returns false if the fake stops first. */
static bool fake_wait(const struct fake *fake, int fd) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int count = 0;
    while (count == 0 && !fake_is_stopped(fake)) count = poll(&ready, 1, 10);
    return count > 0;
}

/* Receives a request with its body. Returns false at the end of the connection. */
static bool fake_receive(const struct fake *fake, int fd, char *request, size_t room) {
    size_t bytes = 0, expected = room;
    ssize_t got = 1;
    while (bytes < expected && got > 0) {
        got = fake_wait(fake, fd) ? recv(fd, request + bytes, room - 1 - bytes, 0) : 0;
        if (got > 0) bytes += (size_t)got;
        request[bytes] = 0;
        const char *body = strstr(request, "\r\n\r\n");
        const char *length = strcasestr(request, "Content-Length:");
        if (body && length) {
            expected = (size_t)(body + 4 - request) + (size_t)strtoul(length + 15, NULL, 10);
        }
    }
    return bytes >= expected;
}

static void fake_send(const struct fake *fake, int fd, const char *reply, const char *request) {
    char text[4096];
    const char *body = strstr(request, "\r\n\r\n") + 4;
    if (fake->manner == ECHOES) {
        snprintf(text, sizeof text, "HTTP/1.1 400 Bad Request\r\nContent-Length: %zu\r\n\r\n%s",
                 strlen(body) + 6, "cannot");
        strncat(text, body, sizeof text - strlen(text) - 1);
        reply = text;
    }
    bool open = fake->manner != IS_SILENT && raw_send(fd, reply, strlen(reply));
    while (open && fake->manner == DRIPS && !fake_is_stopped(fake)) {
        open = raw_send(fd, " ", 1);
        sleep_ms(100);
    }
    for (size_t at = 0; fake->manner == FLOODS && at + 27 < sizeof text; at += 27) {
        memcpy(text + at, "Line: of a head or a body\r\n", 28);
    }
    while (open && fake->manner == FLOODS && !fake_is_stopped(fake)) {
        open = raw_send(fd, text, strlen(text));
    }
}

/* Serves a connection until one of the two sides closes it, or the fake stops. */
static void fake_serve(struct fake *fake, int fd) {
    static const char token_path[] = "POST /v3/auth/authenticate ";
    char request[4096];
    bool open = true;
    while (open && fake_receive(fake, fd, request, sizeof request)) {
        bool is_token = strncmp(request, token_path, strlen(token_path)) == 0;
        const char *reply = is_token && fake->token_reply ? fake->token_reply : fake->reply;
        memcpy(is_token ? fake->last_token : fake->last, request, sizeof request);
        __atomic_add_fetch(is_token ? &fake->token_requests : &fake->requests, 1, __ATOMIC_RELEASE);
        fake_send(fake, fd, reply, request);
        open = fake->manner != CLOSES && fake->manner != FLOODS;
    }
}

static void *fake_main(void *argument) {
    struct fake *fake = (struct fake *)argument;
    while (fake_wait(fake, fake->listener)) {
        int fd = accept(fake->listener, NULL, NULL);
        __atomic_add_fetch(&fake->connections, 1, __ATOMIC_RELEASE);
        if (fd >= 0) {
            fake_serve(fake, fd);
            __atomic_add_fetch(&fake->closed, 1, __ATOMIC_RELEASE);
            close(fd);
        }
    }
    return NULL;
}

static void fake_start(struct fake *fake, enum manner manner, const char *reply,
                       const char *token_reply) {
    int port = 0;
    *fake = (struct fake){.manner = manner, .reply = reply, .token_reply = token_reply};
    fake->listener = port_listen(&port);
    snprintf(fake->url, sizeof fake->url, "http://127.0.0.1:%d", port);
    assert_int_equal(pthread_create(&fake->thread, NULL, fake_main, fake), 0);
}

static void fake_stop(struct fake *fake) {
    __atomic_store_n(&fake->stop, true, __ATOMIC_RELEASE);
    pthread_join(fake->thread, NULL);
    close(fake->listener);
}

static const char *with_body(char text[1024], const char *head, const char *body) {
    snprintf(text, 1024, "%sContent-Length: %zu\r\n\r\n%s", head, strlen(body), body);
    return text;
}

static const char *with_config(char text[1024]) {
    return with_body(text, OK_HEAD,
                     "{\"kvs\":[{\"mod_revision\":\"7\",\"value\":\"" CONFIG_BASE64 "\"}]}");
}

/* ---- tests of members that misbehave -------------------------------------------------------- */

/* After any failure, the call goes to the next member. */
TEST(a_bad_response_is_an_error_of_its_member) {
    static const struct {
        enum manner manner;
        const char *head, *body; /* body NULL: `head` is everything that the member sends */
        const char *text;
    } cases[] = {
        {ANSWERS, "HTTP/1.1 404 Not Found\r\n", "none", NOT_ETCD "404: none"},
        {ANSWERS, "HTTP/1.1 500 Error\r\n", "{}", NOT_ETCD "500: {}"},
        {ANSWERS, OK_HEAD, "[1]", NOT_ETCD "200: [1]"},
        {ANSWERS, OK_HEAD, "{", NOT_ETCD "200: {"},
        {ANSWERS, OK_HEAD, "", NOT_ETCD "200;"},
        {ANSWERS, OK_HEAD, "\033[2Jx\r\ny", NOT_ETCD "200: ?[2Jx;"},
        {ANSWERS, "HTTP/1.1 403 Forbidden\r\n",
         "{\"error\":\"permission denied\",\"message\":\"permission denied\",\"code\":7}",
         ": permission denied;"},
        {ANSWERS, "HTTP/1.1 403 Forbidden\r\n",
         "{\"code\":7,\"message\":\"permission denied\",\"details\":[]}", ": permission denied;"},
        {ANSWERS, OK_HEAD, "{\"error\":{\"grpc_code\":14,\"message\":\"no leader\"}}",
         ": no leader;"},
        {ANSWERS, OK_HEAD, "{\"error\":1}", ": an error without a text;"},
        {ANSWERS, "\001\002garbage\377\n\n", NULL, ": "},
        {CLOSES, "", NULL, ": Empty reply from server"},
        {CLOSES, OK_HEAD "Content-Length: 9\r\n\r\n{}", NULL, " with 7 bytes "},
        {FLOODS, OK_HEAD "\r\n", NULL, ": the response is too long"},
        {FLOODS, OK_HEAD, NULL, ": the head of the response is too long"},
    };
    char reply[1024], config[1024], urls[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fake bad, good;
        const char *head = cases[i].head, *body = cases[i].body;
        print_message("%s\n", cases[i].text);
        fake_start(&bad, cases[i].manner, body ? with_body(reply, head, body) : head, NULL);
        expect_call(bad.url, NULL, cases[i].text);
        fake_start(&good, ANSWERS, with_config(config), NULL);
        snprintf(urls, sizeof urls, "%s,%s", bad.url, good.url);
        expect_call(urls, NULL, NULL);
        fake_stop(&bad);
        fake_stop(&good);
        assert_int_equal(fake_count(&good.requests), 1);
    }
}

/* The deadline is for the whole response. Bytes that arrive do not extend it. */
TEST(a_slow_response_ends_at_the_deadline) {
    static const struct {
        enum manner manner;
        const char *reply;
    } cases[] = {{DRIPS, OK_HEAD "\r\n{"}, {DRIPS, "HTTP/1.1 200 OK\r\nX: "}, {IS_SILENT, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fake fake;
        fake_start(&fake, cases[i].manner, cases[i].reply, NULL);
        expect_call(fake.url, NULL, "timed out");
        fake_stop(&fake);
    }
}

/* The nameserver takes every question and never answers. The test replaces /etc/resolv.conf for the
 * server, so it is skipped without the right to mount. The resolver would wait for 150 s. The
 * address of the nameserver is made from the process id, because this program runs in several
 * flavors at the same time. */
TEST(a_slow_name_lookup_ends_at_the_deadline) {
    char command[256], unshare[256], urls[256], reply[1024], nameserver[96];
    struct process *process = process_new();
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(53)};
    const uint32_t own = 0x7f010000U + (uint32_t)getpid() % 0xfe0000U; /* after 127.1.0.0 */
    address.sin_addr.s_addr = htonl(own);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(nameserver, sizeof nameserver,
             "nameserver 127.%u.%u.%u\noptions timeout:30 attempts:5\n", own >> 16 & 255,
             own >> 8 & 255, own & 255);
    file_write(process->config, nameserver);
    snprintf(command, sizeof command, "mount --bind %s /etc/resolv.conf && exec \"$0\" \"$@\"",
             process->config);
    const char *program = getenv("DOORMAN_SERVER");
    const char *arguments[ARGUMENT_MAX] = {"--mount", "sh", "-c", command, "true"};
    bool can_mount = find_program("unshare", unshare);
    if (can_mount) process_launch(process, unshare, arguments, NULL);
    can_mount = can_mount && process_wait(process) == 0;
    if (!can_mount || bind(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        require(false, "the right to mount and to listen on port 53");
    }
    struct fake fake;
    fake_start(&fake, ANSWERS, with_config(reply), NULL);
    snprintf(urls, sizeof urls, "http://etcd.doorman.example:1,%s", fake.url);
    const char *const more[] = {program ? program : "build/doorman_server",
                                "--check-config",
                                "--config",
                                "etcd:doorman/config",
                                "--etcd",
                                urls};
    memcpy(arguments + 4, more, sizeof more);
    process_launch(process, unshare, arguments, NULL);
    process_end(process, 0);
    fake_stop(&fake);
    close(fd);
}

TEST(a_redirect_is_not_followed) {
    struct fake redirect, target;
    char reply[1024], head[256], location[1024];
    fake_start(&target, ANSWERS, with_config(reply), NULL);
    snprintf(head, sizeof head, "HTTP/1.1 307 Temporary Redirect\r\nLocation: %s/v3/kv/range\r\n",
             target.url);
    fake_start(&redirect, ANSWERS, with_body(location, head, "{}"), NULL);
    expect_call(redirect.url, NULL, NOT_ETCD "307: {};");
    fake_stop(&redirect);
    fake_stop(&target);
    assert_int_equal(fake_count(&target.connections), 0);
}

/* The request is a plain POST. It has no header that libcurl adds for large or encoded bodies. */
TEST(a_request_has_the_form_that_etcd_reads) {
    struct fake fake;
    char reply[1024];
    fake_start(&fake, ANSWERS, with_config(reply), NULL);
    expect_call(fake.url, NULL, NULL);
    fake_stop(&fake);
    assert_int_equal(strncmp(fake.last, "POST /v3/kv/range HTTP/1.1\r\n", 28), 0);
    assert_non_null(strstr(fake.last, "\r\nContent-Type: application/json\r\n"));
    assert_non_null(strstr(fake.last, "\r\n\r\n{\"key\":\"ZG9vcm1hbi9jb25maWc=\"}"));
    assert_null(strstr(fake.last, "\r\nExpect"));
    assert_null(strstr(fake.last, "\r\nAuthorization"));
}

/* The server is stopped while a member does not answer. Without the stop, the call would take 2 s.
 * The test measures the time until the server closes its connection. The machine may be busy, so it
 * is enough if one of 10 tries is fast. */
TEST(a_stop_ends_a_call_that_hangs) {
    double best = 1e9;
    for (int i = 0; i < 10 && best > 0.3; i++) {
        struct fake fake;
        fake_start(&fake, IS_SILENT, "", NULL);
        struct server server = elector_start(fake.url, "3600", NULL);
        for (int ms = 0; ms < TIMEOUT_MS && fake_count(&fake.requests) == 0; ms++) sleep_ms(1);
        sleep_ms(400); /* before that, libcurl wakes up by itself */
        nng_time started_at = nng_clock();
        process_signal(server.process, SIGTERM);
        for (int ms = 0; ms < TIMEOUT_MS && fake_count(&fake.closed) == 0; ms++) sleep_ms(1);
        double took = (double)(nng_clock() - started_at) / 1e3;
        print_message("the call ended after %.3f s\n", took);
        if (took < best) best = took;
        process_end(server.process, 0);
        fake_stop(&fake);
        harness_clean(NULL);
    }
    assert_true(best <= 0.3);
}

/* ---- tests of users ------------------------------------------------------------------------- */

/* Writes the password file. The server uses only its first line. */
static void password_write(const char *path, const char *password) {
    char text[256];
    snprintf(text, sizeof text, "%s\r\nanother line\n", password);
    file_write(path, text);
}

TEST(a_request_carries_the_token_of_the_user) {
    struct fake fake;
    char reply[1024], token[1024];
    struct process *files = process_new();
    const char *const user[] = {"--etcd-user", "doorman", "--etcd-password-file", files->config,
                                NULL};
    password_write(files->config, PASSWORD);
    fake_start(&fake, ANSWERS, with_config(reply),
               with_body(token, OK_HEAD, "{\"token\":\"abc.12\"}"));
    expect_call(fake.url, user, NULL);
    fake_stop(&fake);
    assert_int_equal(fake_count(&fake.connections), 1);
    assert_int_equal(fake_count(&fake.token_requests), 1);
    assert_non_null(strstr(fake.last, "\r\nAuthorization: abc.12\r\n"));
    assert_null(strstr(fake.last_token, "\r\nAuthorization"));
    cJSON *body = cJSON_Parse(strstr(fake.last_token, "\r\n\r\n"));
    assert_string_equal(text(body, "name"), "doorman");
    assert_string_equal(text(body, "password"), PASSWORD);
    cJSON_Delete(body);
}

TEST(a_useless_response_to_credentials_is_an_error) {
    static const struct {
        const char *head, *body, *text;
        int requests;
    } cases[] = {
        {OK_HEAD, "{\"token\":\"a\\r\\nX: y\"}", "the token of etcd is not valid", 0},
        {OK_HEAD, "{\"token\":\"\"}", "the token of etcd is not valid", 0},
        {OK_HEAD, "{\"token\":7}", "the token of etcd is not valid", 0},
        {OK_HEAD, "{}", "the token of etcd is not valid", 0},
        {"HTTP/1.1 400 Bad Request\r\n", "{\"error\":\"wrong\",\"code\":3}", ": wrong", 0},
        {"HTTP/1.1 503 Unavailable\r\n", "{\"error\":\"no leader\",\"code\":14}", ": no leader", 0},
        {"HTTP/1.1 412 Precondition Failed\r\n", "{\"error\":\"not enabled\",\"code\":9}", NULL, 1},
    };
    char reply[1024], token[1024];
    struct process *files = process_new();
    const char *const user[] = {"--etcd-user", "doorman", "--etcd-password-file", files->config,
                                NULL};
    password_write(files->config, PASSWORD);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fake fake;
        fake_start(&fake, ANSWERS, with_config(reply),
                   with_body(token, cases[i].head, cases[i].body));
        expect_call(fake.url, user, cases[i].text);
        fake_stop(&fake);
        assert_int_equal(fake_count(&fake.token_requests), 1);
        assert_int_equal(fake_count(&fake.requests), cases[i].requests);
    }
}

/* The member sends the password back. expect_call fails if the log has it. */
TEST(a_password_that_comes_back_is_not_logged) {
    struct fake fake;
    struct process *files = process_new();
    const char *const user[] = {"--etcd-user", "doorman", "--etcd-password-file", files->config,
                                NULL};
    password_write(files->config, PASSWORD);
    fake_start(&fake, ECHOES, "", NULL);
    expect_call(fake.url, user, NOT_ETCD "400;");
    fake_stop(&fake);
}

TEST(a_new_token_that_is_refused_is_not_replaced_again) {
    struct fake fake;
    char reply[1024], token[1024];
    struct process *files = process_new();
    const char *const user[] = {"--etcd-user", "doorman", "--etcd-password-file", files->config,
                                NULL};
    password_write(files->config, PASSWORD);
    fake_start(&fake, ANSWERS,
               with_body(reply, "HTTP/1.1 401 Unauthorized\r\n",
                         "{\"error\":\"invalid auth token\",\"code\":16}"),
               with_body(token, OK_HEAD, "{\"token\":\"abc.12\"}"));
    expect_call(fake.url, user, ": invalid auth token");
    fake_stop(&fake);
    assert_int_equal(fake_count(&fake.requests), 1);
    assert_int_equal(fake_count(&fake.token_requests), 1);
}

/* The check of a password takes much of etcd's time. So the server sends a refused password at most
 * every 2 s, although it polls every 0.4 s with a TTL of 2 s. */
TEST(a_refused_password_is_not_sent_with_each_poll) {
    struct fake fake;
    char reply[1024];
    struct process *files = process_new();
    password_write(files->config, PASSWORD);
    fake_start(&fake, ANSWERS,
               with_body(reply, "HTTP/1.1 400 Bad Request\r\n",
                         "{\"error\":\"authentication failed\",\"code\":3}"),
               NULL);
    nng_time started_at = nng_clock();
    struct server server = elector_start(
        fake.url, "2",
        (const char *[]){"--etcd-user", "doorman", "--etcd-password-file", files->config, NULL});
    process_await(server.process, ": authentication failed", 1);
    sleep_ms(5000);
    for (int ms = 0; ms < TIMEOUT_MS && fake_count(&fake.token_requests) < 2; ms++) sleep_ms(1);
    server_stop(&server);
    fake_stop(&fake);
    int seconds = (int)((nng_clock() - started_at) / 1000);
    int count = fake_count(&fake.token_requests);
    print_message("%d requests for a token in %d s\n", count, seconds);
    assert_in_range(count, 2, seconds / 2 + 2);
    assert_int_equal(fake_count(&fake.requests), 0);
}

TEST(a_file_that_cannot_be_read_is_named) {
    struct process *files = process_new();
    char missing[96], missing_text[128];
    snprintf(missing, sizeof missing, "%s/missing", files->folder);
    snprintf(missing_text, sizeof missing_text, " %s: No such file", missing);
    const char *const files_of_tls[] = {"--etcd-ca", "--etcd-cert", "--etcd-key"};
    file_write(files->config, "something");
    for (size_t i = 0; i < 3; i++) {
        const char *more[] = {"--etcd-ca",  files->config, "--etcd-cert", files->config,
                              "--etcd-key", files->config, NULL};
        more[2 * i + 1] = missing;
        char text[192];
        snprintf(text, sizeof text, "%s%s", files_of_tls[i], missing_text);
        expect_call("https://127.0.0.1:1", more, text);
        more[2 * i + 1] = files->folder;
        snprintf(text, sizeof text, "%s %s: is empty, or cannot be read", files_of_tls[i],
                 files->folder);
        expect_call("https://127.0.0.1:1", more, text);
    }
    const char *user[] = {"--etcd-user", "doorman", "--etcd-password-file", missing, NULL};
    expect_call("http://127.0.0.1:1", user, missing_text);
    user[3] = files->config;
    file_write(files->config, "\nsecond");
    expect_call("http://127.0.0.1:1", user, "config.json: its first line is empty");
}

/* The warning comes before the first call, which fails because nothing listens at the address. */
TEST(a_password_over_plain_http_is_a_warning) {
    static const struct {
        const char *url;
        int warnings;
    } cases[] = {{"http://127.0.0.1:1", 0},
                 {"http://localhost:1", 0},
                 {"https://192.0.2.1:1", 0},
                 {"http://192.0.2.1:1", 1}};
    struct process *files = process_new();
    password_write(files->config, PASSWORD);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct server server =
            elector_start(cases[i].url, "2",
                          (const char *[]){"--etcd-user", "doorman", "--etcd-password-file",
                                           files->config, NULL});
        assert_int_equal(process_logged(server.process, "travels in plain text"),
                         cases[i].warnings);
        server_stop(&server);
    }
}

TEST(a_user_with_its_password_becomes_master) {
    struct etcd etcd;
    etcd_require(&etcd);
    etcd_enable_users(&etcd, PASSWORD);
    struct process *files = process_new();
    const char *const user[] = {"--etcd-user", "doorman", "--etcd-password-file", files->config,
                                NULL};
    password_write(files->config, PASSWORD);
    expect_master(etcd.url, user);
    expect_no_master(etcd.url, NULL, "etcdserver: user name is empty");
    password_write(files->config, "hush wrong");
    expect_no_master(etcd.url, user,
                     "etcdserver: authentication failed, invalid user ID or password");
    struct server server = elector_start(etcd.url, "2", user);
    process_await(server.process, "etcdserver: authentication failed", 1);
    password_write(files->config, PASSWORD); /* a corrected file needs no restart */
    process_await(server.process, IS_MASTER, 1);
    server_stop(&server);
    etcd_stop(&etcd);
}

/* Here a token ends when it is not used for 1 s, so the token of a frozen server has ended. When
 * etcd starts again, it knows no token. The server logs in again in both cases. Its mastership of 1
 * h does not end, and it loads the configurations that etcd has afterwards. Returns false if a call
 * failed while etcd was there. */
static bool tokens_are_replaced(void) {
    struct etcd etcd;
    etcd_require_with(&etcd, &(struct etcd){.token_ttl = "1"});
    etcd_put(&etcd, "doorman/config", CONFIG);
    etcd_enable_users(&etcd, PASSWORD);
    struct process *files = process_new();
    password_write(files->config, PASSWORD);
    struct server server = {process_new(), ""};
    const char *const arguments[] = {"--config",
                                     "etcd:doorman/config",
                                     "--listen",
                                     "tcp://127.0.0.1:0",
                                     "--etcd",
                                     etcd.url,
                                     "--election-key",
                                     "doorman/test",
                                     "--election-ttl",
                                     "3600",
                                     "--etcd-user",
                                     "doorman",
                                     "--etcd-password-file",
                                     files->config,
                                     NULL};
    process_start(server.process, arguments, NULL);
    process_await(server.process, IS_MASTER, 1);
    process_signal(server.process, SIGSTOP);
    sleep_ms(4000);
    process_signal(server.process, SIGCONT);
    etcd_put(&etcd, "doorman/config", CONFIG " ");
    process_await(server.process, "configuration loaded", 1);
    bool good = process_logged(server.process, UNREACHABLE) == 0;
    etcd_stop(&etcd);
    process_await(server.process, UNREACHABLE, 1);
    etcd_start(&etcd);
    etcd_put(&etcd, "doorman/config", CONFIG);
    process_await(server.process, "configuration loaded", 2);
    good = good && process_logged(server.process, UNREACHABLE) == 1;
    assert_int_equal(process_logged(server.process, "no known master"), 0);
    assert_int_equal(process_logged(server.process, IS_MASTER), 1);
    process_signal(server.process, SIGTERM);
    process_end(server.process, 0);
    etcd_stop(&etcd);
    return good;
}

/* On a very busy machine a call may reach its deadline of 2 s, so there are several tries. */
TEST(a_token_that_ends_is_replaced) {
    bool good = tokens_are_replaced();
    for (int i = 1; i < 5 && !good; i++) {
        harness_clean(NULL);
        good = tokens_are_replaced();
    }
    assert_true(good);
}

/* ---- tests of TLS --------------------------------------------------------------------------- */

/* Two folders with certificates, and the paths that tests use. */
struct certificates {
    char own[64], others[64];
    char ca[80], wrong_ca[80], cert[80], key[80], wrong_cert[80], wrong_key[80], locked_key[80];
    char nameless_cert[80], nameless_key[80];
};

static void certificates_create(struct certificates *paths) {
    program_require("openssl");
    snprintf(paths->own, sizeof paths->own, "%s", process_new()->folder);
    snprintf(paths->others, sizeof paths->others, "%s", process_new()->folder);
    certificates_make(paths->own);
    certificates_make(paths->others);
    snprintf(paths->ca, sizeof paths->ca, "%s/ca.pem", paths->own);
    snprintf(paths->wrong_ca, sizeof paths->wrong_ca, "%s/ca.pem", paths->others);
    snprintf(paths->cert, sizeof paths->cert, "%s/own.pem", paths->own);
    snprintf(paths->key, sizeof paths->key, "%s/own.key", paths->own);
    snprintf(paths->wrong_cert, sizeof paths->wrong_cert, "%s/own.pem", paths->others);
    snprintf(paths->wrong_key, sizeof paths->wrong_key, "%s/own.key", paths->others);
    snprintf(paths->locked_key, sizeof paths->locked_key, "%s/locked.key", paths->own);
    snprintf(paths->nameless_cert, sizeof paths->nameless_cert, "%s/nameless.pem", paths->own);
    snprintf(paths->nameless_key, sizeof paths->nameless_key, "%s/nameless.key", paths->own);
}

/* The certificate of etcd is valid for 127.0.0.1, and not for localhost. */
TEST(a_member_must_have_the_right_certificate) {
    struct certificates paths;
    struct etcd etcd;
    char url[64], text[128];
    certificates_create(&paths);
    etcd_require_with(&etcd, &(struct etcd){.certificates = paths.own});
    expect_master(etcd.url, (const char *[]){"--etcd-ca", paths.ca, NULL});
    snprintf(text, sizeof text, "%s: SSL certificate problem: ", etcd.url);
    expect_no_master(etcd.url, (const char *[]){"--etcd-ca", paths.wrong_ca, NULL}, text);
    expect_no_master(etcd.url, NULL, text);
    snprintf(url, sizeof url, "https://localhost:%d", etcd.port);
    expect_no_master(url, (const char *[]){"--etcd-ca", paths.ca, NULL},
                     "subject name matches target host");
    expect_no_master(etcd.url, (const char *[]){"--etcd-ca", paths.key, NULL}, paths.key);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", etcd.port);
    snprintf(text, sizeof text, "%s: ", url);
    expect_no_master(url, NULL, text);
    etcd_stop(&etcd);
}

/* In TLS 1.3 a member checks the certificate of a client after the client has sent its request. The
 * client sees an alert, or only the end of the connection. */
TEST(a_member_can_require_a_certificate) {
    struct certificates paths;
    struct etcd etcd;
    certificates_create(&paths);
    etcd_require_with(&etcd, &(struct etcd){.certificates = paths.own, .asks_clients = true});
    const char *more[] = {"--etcd-ca",  paths.ca,  "--etcd-cert", paths.cert,
                          "--etcd-key", paths.key, NULL};
    expect_master(etcd.url, more);
    expect_no_master(etcd.url, (const char *[]){"--etcd-ca", paths.ca, NULL}, " certificate");
    more[3] = paths.wrong_cert;
    expect_no_master(etcd.url, more, "unable to set private key file");
    more[5] = paths.wrong_key;
    for (int i = 0; i < 5; i++) expect_call(etcd.url, more, " certificate");
    expect_no_master(etcd.url, more, " certificate");
    more[3] = paths.cert;
    more[5] = paths.locked_key;
    expect_no_master(etcd.url, more, "unable to set private key file");
    etcd_stop(&etcd);
}

/* The gateway of etcd 3.4 refuses a certificate with a common name if there are users, so the
 * client uses the nameless certificate. */
TEST(a_user_can_have_a_certificate_too) {
    struct certificates paths;
    struct etcd etcd;
    certificates_create(&paths);
    etcd_require_with(&etcd, &(struct etcd){.certificates = paths.own, .asks_clients = true});
    etcd_enable_users(&etcd, PASSWORD);
    struct process *files = process_new();
    password_write(files->config, PASSWORD);
    const char *more[] = {"--etcd-ca",         paths.ca,     "--etcd-cert",
                          paths.nameless_cert, "--etcd-key", paths.nameless_key,
                          "--etcd-user",       "doorman",    "--etcd-password-file",
                          files->config,       NULL};
    expect_master(etcd.url, more);
    password_write(files->config, "hush wrong");
    expect_no_master(etcd.url, more, "etcdserver: authentication failed");
    etcd_stop(&etcd);
}

/* Replaces the files that a server uses with the files of another folder. */
static void certificates_replace(const char *used, const char *from) {
    char command[512];
    snprintf(command, sizeof command,
             "for name in ca.pem own.key own.pem; do "
             "cp %s/$name %s/next && mv %s/next %s/$name || exit 1; done",
             from, used, used, used);
    assert_int_equal(system(command), 0);
}

/* V1: etcd starts again with certificates of another authority. */
TEST(changed_certificates_are_used_for_the_next_connection) {
    struct certificates paths;
    struct etcd etcd;
    char ca[96], cert[96], key[96];
    certificates_create(&paths);
    etcd_require_with(&etcd, &(struct etcd){.certificates = paths.own, .asks_clients = true});
    struct process *server = process_new();
    certificates_replace(server->folder, paths.own);
    snprintf(ca, sizeof ca, "%s/ca.pem", server->folder);
    snprintf(cert, sizeof cert, "%s/own.pem", server->folder);
    snprintf(key, sizeof key, "%s/own.key", server->folder);
    file_write(server->config, CONFIG);
    const char *const arguments[] = {"--config",
                                     server->config,
                                     "--listen",
                                     "tcp://127.0.0.1:0",
                                     "--etcd",
                                     etcd.url,
                                     "--election-key",
                                     "doorman/test",
                                     "--etcd-ca",
                                     ca,
                                     "--etcd-cert",
                                     cert,
                                     "--etcd-key",
                                     key,
                                     NULL};
    process_start(server, arguments, NULL);
    process_await(server, IS_MASTER, 1);
    etcd_stop(&etcd);
    etcd.certificates = paths.others;
    etcd_start(&etcd);
    process_await(server, "etcd cannot be reached", 1);
    certificates_replace(server->folder, paths.others);
    process_await(server, "etcd answers", 1);
    process_signal(server, SIGTERM);
    process_end(server, 0);
    etcd_stop(&etcd);
}

/* The first member accepts connections and never answers, not even to TLS. */
TEST(a_member_that_hangs_in_tls_is_skipped) {
    struct certificates paths;
    struct etcd etcd;
    char urls[160];
    int silent_port = 0, silent_fd = port_listen(&silent_port);
    certificates_create(&paths);
    etcd_require_with(&etcd, &(struct etcd){.certificates = paths.own});
    snprintf(urls, sizeof urls, "https://127.0.0.1:%d,%s", silent_port, etcd.url);
    expect_master(urls, (const char *[]){"--etcd-ca", paths.ca, NULL});
    close(silent_fd);
    etcd_stop(&etcd);
}

/* Returns how many connections to etcd a server makes while it loads seven configurations. It makes
 * several calls for each configuration. */
static int connections_for_calls(void) {
    struct certificates paths;
    struct etcd etcd;
    static struct proxy proxy;
    certificates_create(&paths);
    etcd_require_with(&etcd, &(struct etcd){.certificates = paths.own});
    etcd_put(&etcd, "doorman/config", CONFIG);
    proxy_start(&proxy, &etcd);
    struct server server = {process_new(), ""};
    const char *const arguments[] = {
        "--config", "etcd:doorman/config", "--listen",     "tcp://127.0.0.1:0", "--etcd",
        proxy.url,  "--election-key",      "doorman/test", "--etcd-ca",         paths.ca,
        NULL};
    process_start(server.process, arguments, NULL);
    process_await(server.process, IS_MASTER, 1);
    for (int i = 1; i <= 6; i++) {
        etcd_put(&etcd, "doorman/config", i % 2 ? CONFIG " " : CONFIG);
        process_await(server.process, "configuration loaded", i);
    }
    int accepted = __atomic_load_n(&proxy.accepted, __ATOMIC_RELAXED);
    print_message("%d connections\n", accepted);
    process_signal(server.process, SIGTERM);
    process_end(server.process, 0);
    proxy_stop(&proxy);
    etcd_stop(&etcd);
    return accepted;
}

/* A call that reaches its deadline ends its connection. On a very busy machine a call may take that
 * long, so there are several tries. */
TEST(calls_share_a_connection) {
    int accepted = connections_for_calls();
    for (int i = 1; i < 5 && accepted > 3; i++) {
        harness_clean(NULL);
        accepted = connections_for_calls();
    }
    assert_in_range(accepted, 1, 3);
}
