/* A shell whose commands act for any number of clients. Use it to try a configuration, and to
 * inspect a running server. It needs libedit (Debian: libedit-dev).
 *
 *     build/doorman_server --config config.example.json &
 *     build/examples/doorman_shell          # `help` lists the commands, Tab completes
 *     > get alice db/orders 700
 *     > watch db/orders
 *
 * It also reads commands from a pipe. The exit status is then 1 if a command has failed. At the end
 * the shell releases all leases:
 *
 *     { echo get alice db/orders 700; sleep 5; echo show; } | build/examples/doorman_shell
 *
 * `status` and `watch` show the leases of this shell. With --http http://127.0.0.1:15050 they show
 * the resources of the server, and the number of clients of each resource. If the server needs a
 * token, set DOORMAN_SHELL_TOKEN.
 */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman.h"

#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <editline/readline.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/http/http.h>

#define BLANKS " \t\r\n"

enum { WORDS_MAX = 8, PATIENCE_MS = 5000 /* timeout for a response */ };

/* A resource that a client asks for. All leases of a client share its agent. */
typedef struct lease {
    char client_id[DOORMAN_ID_BYTES_MAX + 1], resource_id[DOORMAN_ID_BYTES_MAX + 1];
    doorman_agent *agent;
    doorman_resource *resource;
    bool is_warned; /* the user has seen the note about parts of units */
    struct lease *next;
} lease;

typedef struct shell {
    const char *const *addresses;
    size_t address_count;
    char status_url[512], authorization[512]; /* "": not set */
    lease *first;
    bool failed;
    int line; /* the current line of a script; 0: interactive */
} shell;

static volatile sig_atomic_t interrupted; /* the number of the signal; 0: none */

static void on_signal(int number) { interrupted = number; }

__attribute__((format(printf, 2, 3))) static void fail(shell *s, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("doorman_shell: ", stderr);
    if (s->line > 0) fprintf(stderr, "line %d: ", s->line);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    s->failed = true;
}

static bool parse_number(shell *s, const char *text, double most, double *out) {
    char *end = NULL;
    *out = strtod(text, &end);
    bool good = end != text && !*end && *out > 0 && *out <= most;
    if (!good) fail(s, "'%s' is not a number above 0 and at most %g", text, most);
    return good;
}

/* ---- requests to the server ------------------------------------------------------------------ */

static const cJSON *json_get(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* Returns "" if there is no such text. Replaces control characters, so that a text cannot control
 * the terminal. */
static const char *json_text(const cJSON *object, const char *key) {
    char *text = cJSON_GetStringValue(json_get(object, key));
    for (char *at = text; at && *at; at++) {
        if ((unsigned char)*at < ' ' || *at == 0x7f) *at = '?';
    }
    return text ? text : "";
}

/* Asks a server for the master. Returns an error of nng, or 0 and a response that the caller
 * deletes.
 */
static int discover(const char *address, cJSON **out) {
    char request[] = "{\"discovery\": {}}", *answer = NULL;
    size_t bytes = 0;
    nng_socket socket;
    int error = nng_req0_open(&socket);
    if (error != 0) return error;
    error = nng_socket_set_ms(socket, NNG_OPT_SENDTIMEO, PATIENCE_MS);
    if (error == 0) error = nng_socket_set_ms(socket, NNG_OPT_RECVTIMEO, PATIENCE_MS);
    if (error == 0) error = nng_dial(socket, address, NULL, NNG_FLAG_NONBLOCK);
    if (error == 0) error = nng_send(socket, request, sizeof request - 1, 0);
    if (error == 0) error = nng_recv(socket, &answer, &bytes, NNG_FLAG_ALLOC);
    nng_close(socket);
    if (error != 0) return error;
    *out = cJSON_ParseWithLength(answer, bytes);
    nng_free(answer, bytes);
    return *out ? 0 : NNG_EPROTO;
}

/* Sends a GET. Returns an error of nng, or 0 and a response that the caller deletes. */
static int http_get(const char *address, const char *authorization, cJSON **out) {
    nng_url *url = NULL;
    nng_http_client *client = NULL;
    nng_http_req *request = NULL;
    nng_http_res *response = NULL;
    nng_aio *aio = NULL;
    void *body = NULL;
    size_t bytes = 0;
    int error = nng_url_parse(&url, address);
    if (error == 0) error = nng_http_client_alloc(&client, url);
    if (error == 0) error = nng_http_req_alloc(&request, url);
    if (error == 0) error = nng_http_res_alloc(&response);
    if (error == 0) error = nng_aio_alloc(&aio, NULL, NULL);
    if (error == 0 && *authorization) {
        error = nng_http_req_set_header(request, "Authorization", authorization);
    }
    if (error == 0) {
        nng_aio_set_timeout(aio, PATIENCE_MS);
        nng_http_client_transact(client, request, response, aio);
        nng_aio_wait(aio);
        error = nng_aio_result(aio);
    }
    if (error == 0) {
        int code = nng_http_res_get_status(response);
        nng_http_res_get_data(response, &body, &bytes);
        *out = code == NNG_HTTP_STATUS_OK ? cJSON_ParseWithLength(body, bytes) : NULL;
        error = code == NNG_HTTP_STATUS_UNAUTHORIZED ? NNG_EPERM : *out ? 0 : NNG_EPROTO;
    }
    if (aio) nng_aio_free(aio);
    if (response) nng_http_res_free(response);
    if (request) nng_http_req_free(request);
    if (client) nng_http_client_free(client);
    if (url) nng_url_free(url);
    return error;
}

/* Prints one resource of the server. If the resource is NULL, prints all resources. Prints an error
 * and returns false on failure. */
static bool print_status(shell *s, const char *resource_id) {
    static const char *const columns[] = {"capacity", "has", "wants", "clients"};
    cJSON *status = NULL;
    const cJSON *resource = NULL;
    int error = http_get(s->status_url, s->authorization, &status);
    if (error != 0) fail(s, "%s: %s", s->status_url, nng_strerror(error));
    if (status && !resource_id) {
        printf("server %s of node %s, %s %s\n", json_text(status, "id"), json_text(status, "node"),
               cJSON_IsTrue(json_get(status, "is_master")) ? "the master, at" : "not the master:",
               json_text(status, "master_address"));
    }
    if (status) puts("resource                    capacity         has       wants     clients");
    cJSON_ArrayForEach(resource, json_get(status, "resources")) {
        const char *id = json_text(resource, "resource_id");
        if (resource_id && strcmp(id, resource_id) != 0) continue;
        printf("%-24s", id);
        for (int i = 0; i < 4; i++) {
            printf(" %11.6g", cJSON_GetNumberValue(json_get(resource, columns[i])));
        }
        puts(cJSON_IsTrue(json_get(resource, "learning")) ? "  learning" : "");
    }
    cJSON_Delete(status);
    return error == 0;
}

/* ---- the leases of this shell ---------------------------------------------------------------- */

/* Finds the first lease of a client on a resource. NULL means any client or any resource.
 * Returns the position of the lease in the list, or the end of the list. */
static lease **find(lease **at, const char *client_id, const char *resource_id) {
    for (; *at; at = &(*at)->next) {
        bool client = !client_id || strcmp((*at)->client_id, client_id) == 0;
        if (client && (!resource_id || strcmp((*at)->resource_id, resource_id) == 0)) break;
    }
    return at;
}

/* Releases a lease. With the last lease of a client, the function also stops the agent. The agent
 * waits until the lease has been released. */
static void shell_remove(shell *s, lease **at) {
    lease *l = *at;
    *at = l->next;
    if (*find(&s->first, l->client_id, NULL)) {
        doorman_resource_close(l->resource);
    } else {
        doorman_agent_stop(l->agent);
    }
    free(l);
}

/* Adds a lease. The fallback is pessimistic, so all capacity that the shell shows is leased. Prints
 * an error and returns NULL on failure. */
static lease *shell_add(shell *s, const char *client_id, const char *resource_id, double wants) {
    doorman_client_options client = {
        .client_id = client_id, .addresses = s->addresses, .address_count = s->address_count};
    doorman_resource_options resource = {
        .resource_id = resource_id, .wants = wants, .fallback = DOORMAN_PESSIMISTIC};
    doorman_error error = {.text = "out of memory"};
    lease *other = *find(&s->first, client_id, NULL), *l = calloc(1, sizeof *l);
    doorman_agent *own = NULL;
    bool good = l && (other || doorman_agent_start(&own, &client, &error) == DOORMAN_OK);
    if (good) {
        l->agent = other ? other->agent : own;
        good = doorman_resource_open(&l->resource, l->agent, &resource, &error) == DOORMAN_OK;
    }
    if (!good) {
        fail(s, "%s", error.text);
        doorman_agent_stop(own);
        free(l);
        return NULL;
    }
    strcpy(l->client_id, client_id); /* fits, because the library refuses an id that is too long */
    strcpy(l->resource_id, resource_id);
    *find(&s->first, "", "") = l; /* no id is empty, so this is the end of the list */
    return l;
}

/* Prints the leases on one resource, and their sum. If the resource is NULL, prints all leases. */
static void print_leases(lease **at, const char *resource_id) {
    double wants = 0, has = 0;
    puts("client               resource                       wants         has  expires in  "
         "reason");
    for (lease *l = NULL; (l = *find(at, NULL, resource_id)); at = &l->next) {
        doorman_resource_info info;
        doorman_resource_read(l->resource, &info);
        double left = (double)(info.expires_at - doorman_clock()) / (double)DOORMAN_SECOND;
        printf("%-20s %-24s %11.6g", l->client_id, l->resource_id, info.wants);
        if (info.leased) printf(" %11.6g %9.1f s", info.capacity, left);
        if (info.reason) printf("  %s", doorman_lease_reason_name(info.reason));
        if (info.leased) puts("");
        if (!info.leased) printf(" %11s\n", "no lease");
        wants += info.wants;
        has += info.capacity;
    }
    if (resource_id) printf("%-45s %11.6g %11.6g\n", "sum", wants, has);
}

/* ---- commands -------------------------------------------------------------------------------- */

/* Prints a note once for each resource whose leases are not whole units. A gauge cannot use a part
 * of a unit. */
static void warn_of_parts(shell *s, lease *l, const doorman_resource_info *info) {
    if (info->whole || info->capacity <= (double)(int64_t)info->capacity) return;
    for (lease **at = &s->first, *other; (other = *find(at, NULL, l->resource_id));) {
        if (other->is_warned) return;
        at = &other->next;
    }
    printf("note: %s is not in whole units; a gauge needs \"whole\": true in its template\n",
           l->resource_id);
    l->is_warned = true;
}

/* Waits for the first response. A later `get` only changes the wants of the client. The change
 * takes effect with the client's next request. */
static void run_get(shell *s, char **words) {
    double wants = 0;
    if (!parse_number(s, words[3], DOORMAN_AMOUNT_MAX, &wants)) return;
    lease *l = *find(&s->first, words[1], words[2]);
    if (l) doorman_resource_set_wants(l->resource, wants);
    if (!l) l = shell_add(s, words[1], words[2], wants);
    if (!l) return;
    doorman_resource_info info;
    doorman_time end = doorman_clock() + PATIENCE_MS * (DOORMAN_SECOND / 1000);
    do {
        usleep(10000);
        doorman_resource_read(l->resource, &info);
    } while (!info.leased && !info.learning &&
             (!info.has_outcome || info.outcome == DOORMAN_TRY_LATER) && !interrupted &&
             doorman_clock() < end);
    if (info.leased) {
        const char *reason = doorman_lease_reason_name(info.reason);
        printf("%s has %.6g of %s, and wants %.6g%s%s%s\n", words[1], info.capacity, words[2],
               wants, reason[0] ? " (" : "", reason, reason[0] ? ")" : "");
        warn_of_parts(s, l, &info);
    } else {
        static const char *const why[] = {"no answer", "there is no free capacity now",
                                          "no template matches it", "the server is full"};
        fail(s, "no lease on %s: %s; the client keeps asking", words[2],
             info.learning ? "the server is new, and learns who has what"
                           : why[info.has_outcome ? info.outcome - DOORMAN_GRANTED : 0]);
    }
}

static void run_release(shell *s, char **words) {
    lease **at = find(&s->first, words[1], words[2]);
    if (!*at) fail(s, "%s does not ask for %s here; see `show`", words[1], words[2]);
    if (*at) shell_remove(s, at);
}

static void run_show(shell *s, char **words) { print_leases(&s->first, words[1]); }

static void run_master(shell *s, char **words) {
    cJSON *answer = NULL;
    size_t i = 0;
    int error = discover(s->addresses[0], &answer);
    while (error != 0 && ++i < s->address_count) error = discover(s->addresses[i], &answer);
    const cJSON *mastership = json_get(json_get(answer, "discovery"), "mastership");
    const char *address = json_text(mastership, "master_address");
    if (error != 0) fail(s, "%s: no answer: %s", words[0], nng_strerror(error));
    if (error == 0 && !*address) fail(s, "%s does not know the master", s->addresses[i]);
    if (*address) puts(address);
    cJSON_Delete(answer);
}

static void run_status(shell *s, char **words) {
    if (*s->status_url) {
        print_status(s, NULL);
        return;
    }
    run_master(s, words);
    print_leases(&s->first, NULL);
}

static void run_watch(shell *s, char **words) {
    double seconds = 1e9;
    bool good = !words[2] || parse_number(s, words[2], seconds, &seconds);
    for (double second = 0; good && second < seconds && !interrupted; second++) {
        if (isatty(STDOUT_FILENO)) printf("\x1b[H\x1b[2J");
        if (*s->status_url) good = print_status(s, words[1]);
        print_leases(&s->first, words[1]);
        puts("");
        sleep(1);
    }
}

static void run_help(shell *s, char **words);

static const struct command {
    const char *name, *arguments;
    int least, most; /* the number of words, including the name */
    void (*run)(shell *s, char **words);
    const char *help;
} commands[] = {
    {"get", "CLIENT RESOURCE CAPACITY", 4, 4, run_get, "the client asks for this capacity"},
    {"release", "CLIENT RESOURCE", 3, 3, run_release, "the client releases its lease"},
    {"show", "", 1, 1, run_show, "prints the leases of this shell's clients"},
    {"master", "", 1, 1, run_master, "prints the address of the master"},
    {"status", "", 1, 1, run_status, "prints master and leases; with --http, all resources"},
    {"watch", "RESOURCE [SECONDS]", 2, 3, run_watch, "prints a table every second, until Ctrl-C"},
    {"help", "", 1, 1, run_help, "prints this list"},
    {NULL, "", 0, 0, NULL, ""},
};

static void run_help(shell *s, char **words) {
    (void)s, (void)words;
    for (const struct command *c = commands; c->name; c++) {
        printf("%-7s %-26s %s\n", c->name, c->arguments, c->help);
    }
    puts(
        "Put an id with spaces in \"double quotes\". A # starts a comment. Ctrl-D ends the shell.");
}

/* Splits a line into words, in place. NULL follows the last word. Returns the number of words.
 * Returns -1 if there are too many words, or if a quote is not closed. */
static int split(char *line, char *words[WORDS_MAX]) {
    int count = 0;
    for (char *at = line + strspn(line, BLANKS); *at && *at != '#'; at += strspn(at, BLANKS)) {
        bool quoted = *at == '"';
        at += quoted;
        char *end = at + strcspn(at, quoted ? "\"" : BLANKS);
        if (count + 1 == WORDS_MAX || (quoted && !*end)) return -1;
        words[count++] = at;
        at = *end ? end + 1 : end;
        *end = 0;
    }
    words[count] = NULL;
    return count;
}

static void shell_run(shell *s, char *line) {
    char *words[WORDS_MAX];
    const struct command *c = commands;
    int count = split(line, words);
    while (count > 0 && c->name && strcmp(c->name, words[0]) != 0) c++;
    if (count < 0) {
        fail(s, "too many words, or a quote is not closed");
    } else if (count > 0 && !c->name) {
        fail(s, "no command '%s'; see `help`", words[0]);
    } else if (count > 0 && (count < c->least || count > c->most)) {
        fail(s, "use: %s %s", c->name, c->arguments);
    } else if (count > 0) {
        c->run(s, words);
    }
    fflush(stdout);
}

/* ---- input ----------------------------------------------------------------------------------- */

/* libedit calls complete_next repeatedly for the completions of a word. It passes no context, so
 * the context is in these variables. */
static lease **completed;
static int completed_word;

static char *complete_next(const char *start, int again) {
    static const struct command *c;
    static lease *l;
    if (!again) c = commands;
    if (!again) l = *completed;
    while (completed_word == 0 && c->name) {
        const char *name = (c++)->name;
        if (strncmp(name, start, strlen(start)) == 0) return strdup(name);
    }
    for (; completed_word > 0 && l; l = l->next) {
        bool client = completed_word == 1;
        const char *name = client ? l->client_id : l->resource_id;
        bool first = *find(completed, client ? name : NULL, client ? NULL : name) == l;
        if (!first || strncmp(name, start, strlen(start)) != 0) continue;
        l = l->next;
        return strdup(name);
    }
    return NULL;
}

static char **complete(const char *start, int from, int to) {
    char line[1024] = "", *words[WORDS_MAX];
    (void)to;
    snprintf(line, sizeof line, "%.*s", from, rl_line_buffer);
    completed_word = split(line, words);
    if (completed_word == 1 && strcmp(words[0], "watch") == 0) completed_word = 2;
    rl_attempted_completion_over = 1; /* do not complete file names */
    return rl_completion_matches(start, complete_next);
}

/* Reads and runs commands. Ctrl-C ends the current command, or the whole script. */
static void shell_read(shell *s, bool interactive) {
    char *line = NULL;
    size_t room = 0;
    while (!interactive && !interrupted && getline(&line, &room, stdin) >= 0) {
        s->line++;
        shell_run(s, line);
    }
    free(line);
    while (interactive && !interrupted && (line = readline("> "))) {
        if (*line) add_history(line);
        shell_run(s, line);
        free(line);
        if (interrupted == SIGINT) interrupted = 0;
    }
}

int main(int argc, char **argv) {
    static const char *const nearby[] = {"tcp://127.0.0.1:15000"};
    struct sigaction action = {.sa_handler = on_signal};
    const char *http = argc > 2 && strcmp(argv[1], "--http") == 0 ? argv[2] : NULL;
    const char *token = getenv("DOORMAN_SHELL_TOKEN");
    int first = http ? 3 : 1;
    if (first < argc && *argv[first] == '-') {
        fputs("Usage: doorman_shell [--http URL] [SERVER_URL]...\n", stderr);
        return 2;
    }
    shell s = {.addresses = first < argc ? (const char *const *)argv + first : nearby,
               .address_count = first < argc ? (size_t)(argc - first) : 1};
    if (http) snprintf(s.status_url, sizeof s.status_url, "%s/v1/status", http);
    if (token) snprintf(s.authorization, sizeof s.authorization, "Bearer %s", token);
    setlocale(LC_CTYPE, ""); /* for line editing; the format of numbers does not change */
    rl_basic_word_break_characters = BLANKS;
    rl_attempted_completion_function = complete;
    completed = &s.first;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    bool interactive = isatty(STDIN_FILENO) != 0;
    shell_read(&s, interactive);
    while (s.first) shell_remove(&s, &s.first);
    return s.failed && !interactive; /* an interactive user has seen the error */
}
