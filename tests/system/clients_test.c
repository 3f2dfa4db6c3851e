/* The clients of examples/clients, in Python, JavaScript and Go. They share one resource of a tree:
 * a root, and a leaf whose master changes. With etcd the leaf has two processes, and when the
 * master is killed, the other process becomes master. Without etcd the only process of the leaf is
 * killed and started again. Languages that are not installed are left out.
 *
 * Each client prints 20 lines a second: the time, the units that it has used since the last line,
 * its rate, and whether the rate is a lease. Time is real. So the test waits for a state, and
 * bounds only what has been used, which a slow machine cannot increase. */
#define _GNU_SOURCE
#include "etcd_fixture.h"
#include "http.h"

#define CAPACITY 120.0
#define SAFE_CAPACITY 0.5
#define BURST 0.1 /* seconds of the rate that a client saves */
#define CLIENTS 6
#define LANGUAGES 3
#define MEMBERS 2
#define WAIT_MS 300000 /* longer than two pauses of a client after failures */
#define TREE_CONFIG                                                                                \
    "{\"resources\":[{\"identifier_glob\":\"*\",\"capacity\":120,\"safe_capacity\":0.5,"           \
    "\"algorithm\":{\"kind\":\"FAIR_SHARE\",\"lease_length\":8,\"refresh_interval\":1,"            \
    "\"parameters\":[{\"name\":\"minimum_interval\",\"value\":0.1},"                               \
    "{\"name\":\"minimum_refresh_interval\",\"value\":0.5}]}}]}"

/* ---- clients -------------------------------------------------------------------------------- */

static const struct language {
    const char *program, *file; /* the file runs a client of examples/clients */
} languages[LANGUAGES] = {
    {"python3", "tests/system/clients/run.py"},
    {"node", "tests/system/clients/run.mjs"},
    {"go", "tests/system/clients/run.go"},
};

/* Compiles the client in Go, as a package of a module, and writes the path of the program to `out`.
 * Go's own packages stay compiled in build/, because compiling them takes ten seconds of CPU
 * time. */
static void go_build(const char *program, char out[256]) {
    char command[1024];
    struct process *process = process_new();
    snprintf(out, 256, "%s/client", process->folder);
    snprintf(
        command, sizeof command,
        "mkdir %s/doorman && cp examples/clients/doorman.go %s/doorman && cp %s %s && cd %s && "
        "printf 'module run\\ngo 1.18\\n' >go.mod && GOCACHE=$OLDPWD/build/go_cache '%s' build -o "
        "client",
        process->folder, process->folder, languages[2].file, process->folder, process->folder,
        program);
    assert_int_equal(system(command), 0);
}

/* Finds what runs the client of a language. Returns false if the language is not installed.
 *   program   the path of python3 or node, or of the compiled client in Go */
static bool language_find(const struct language *language, char program[256]) {
    char path[256];
    if (!find_program(language->program, path)) return false;
    if (strcmp(language->program, "go") == 0) {
        go_build(path, program);
    } else {
        snprintf(program, 256, "%s", path);
    }
    return true;
}

static struct process *client_start(const struct language *language, const char *program,
                                    const char *urls, const char *wants) {
    bool is_script = strcmp(language->program, "go") != 0;
    const char *const arguments[] = {language->file, urls, "db", wants, NULL};
    struct process *process = process_new();
    process_launch(process, program, arguments + !is_script, NULL);
    return process;
}

struct line {
    double time, rate;
    long used;
    char source[16];
};

/* Reads the next complete line. Returns NULL at the end. */
static const char *line_read(const char *at, struct line *out) {
    const char *end = strchr(at, '\n');
    if (!end) return NULL;
    if (sscanf(at, "%lf %ld %lf %15s", &out->time, &out->used, &out->rate, out->source) != 4) {
        fail_msg("not a line of a client: %.*s", (int)(end - at), at);
    }
    return end + 1;
}

/* Returns the last line of a client. Its time is 0 if there is none. */
static struct line line_last(const struct process *client) {
    struct line line = {.time = 0};
    char *output = file_read(client->out);
    for (const char *at = output; at; at = line_read(at, &line)) {
    }
    free(output);
    return line;
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Waits until each client has printed a new line with this rate and this source. */
static void await_rate(struct process *const *clients, int count, double rate, const char *source) {
    double started_at = seconds_now();
    int reached = 0;
    for (int waited = 0; waited < WAIT_MS && reached < count; waited += 100) {
        reached = 0;
        for (int i = 0; i < count; i++) {
            struct line line = line_last(clients[i]);
            bool same = line.rate >= rate * 0.98 && line.rate <= rate * 1.02;
            reached += line.time > started_at && same && strcmp(line.source, source) == 0;
        }
        if (reached < count) sleep_ms(100);
    }
    for (int i = 0; i < count && reached < count; i++) {
        struct line line = line_last(clients[i]);
        char *errors = file_read(clients[i]->err);
        print_error("client %d: %.3f %s\n%s", i, line.rate, line.source, errors);
        free(errors);
    }
    print_message("%.1f s until all have %g (%s)\n", seconds_now() - started_at, rate, source);
    assert_int_equal(reached, count);
}

/* ---- what was used -------------------------------------------------------------------------- */

/* Adds up what a client has certainly used in a window. The units of a line count if the line and
 * the line before it have their times within the window. */
static long used_within(const char *output, double from, double to) {
    struct line line;
    double last = 1e18; /* the time before the first line is not known */
    long used = 0;
    for (const char *at = output; (at = line_read(at, &line)); last = line.time) {
        if (last >= from && line.time <= to) used += line.used;
    }
    return used;
}

/* Checks that all clients together use at most capacity * t in t seconds. Beyond that, each client
 * may have saved a burst and one unit (L1), and may use its safe capacity while others have the
 * whole capacity. */
static void expect_never_over(char *const *outputs, int count, double from, double to) {
    static const double widths[] = {2, 4, 8, 16};
    double highest = 0;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        double bound =
            (CAPACITY + count * SAFE_CAPACITY) * widths[w] + count * (BURST * CAPACITY + 1);
        for (double start = from; start + widths[w] <= to; start += 0.25) {
            long used = 0;
            for (int i = 0; i < count; i++)
                used += used_within(outputs[i], start, start + widths[w]);
            if ((double)used > bound) {
                fail_msg("%ld units in %g s, of at most %g", used, widths[w], bound);
            }
            double share = (double)used / (CAPACITY * widths[w]);
            if (share > highest) highest = share;
        }
    }
    print_message("at most %.0f %% of the capacity in any window\n", 100 * highest);
}

/* Returns whether each client used at least half of its share in a window. */
static bool all_use(struct process *const *clients, int count, double from, double to) {
    bool enough = true;
    for (int i = 0; i < count; i++) {
        char *output = file_read(clients[i]->out);
        double used = (double)used_within(output, from, to);
        if (used < CAPACITY / count * (to - from) / 2) enough = false;
        if (!enough) print_message("client %d used only %g in %.1f s\n", i, used, to - from);
        free(output);
        if (!enough) break;
    }
    return enough;
}

/* Fails unless there is a window in which each client uses at least half of its share. A busy
 * machine can delay a client, so several windows are tried. */
static void expect_use(struct process *const *clients, int count) {
    enum { TRIES = 30 };
    bool enough = false;
    for (int i = 0; i < TRIES && !enough; i++) {
        double from = seconds_now();
        sleep_ms(3000);
        enough = all_use(clients, count, from, seconds_now());
    }
    assert_true(enough);
}

/* ---- the tree ------------------------------------------------------------------------------- */

struct leaf {
    struct fixture members[MEMBERS];
    int member_count, ports[MEMBERS];
    const char *parent, *etcd; /* etcd NULL: there is one process, which is the master */
    char urls[256];            /* for clients; nothing listens at the first address */
};

static void member_start(const struct leaf *leaf, int index) {
    char http[64];
    struct process *process = leaf->members[index].server.process;
    snprintf(http, sizeof http, "127.0.0.1:%d", leaf->ports[index]);
    const char *arguments[] = {"--parent",
                               leaf->parent,
                               "--listen",
                               "tcp://127.0.0.1:0",
                               "--http",
                               http,
                               "--node",
                               "leaf",
                               "--etcd",
                               leaf->etcd,
                               "--election-key",
                               "doorman/leaf",
                               "--election-ttl",
                               "5", /* so long that no busy machine loses its master */
                               NULL};
    if (!leaf->etcd) arguments[8] = NULL;
    process_start(process, arguments, NULL);
    process_await(process, "msg=serving", 1);
}

static void leaf_members_start(struct leaf *leaf, const char *parent, const char *etcd) {
    *leaf = (struct leaf){.parent = parent, .etcd = etcd, .member_count = etcd ? MEMBERS : 1};
    size_t bytes = (size_t)snprintf(leaf->urls, sizeof leaf->urls, "http://127.0.0.1:1");
    for (int i = 0; i < leaf->member_count; i++) {
        struct fixture *member = &leaf->members[i];
        leaf->ports[i] = port_free();
        member->server.process = member->http.process = process_new();
        snprintf(member->http.url, sizeof member->http.url, "tcp://127.0.0.1:%d", leaf->ports[i]);
        bytes += (size_t)snprintf(leaf->urls + bytes, sizeof leaf->urls - bytes,
                                  ",http://127.0.0.1:%d", leaf->ports[i]);
        member_start(leaf, i);
    }
}

static void leaf_stop(struct leaf *leaf) {
    for (int i = 0; i < leaf->member_count; i++) {
        if (leaf->members[i].server.process->pid) server_stop(&leaf->members[i].server);
    }
}

static int leaf_await_master(const struct leaf *leaf) {
    int master = -1;
    for (int waited = 0; waited < WAIT_MS && master < 0; waited += 50) {
        for (int i = 0; i < leaf->member_count && master < 0; i++) {
            if (!leaf->members[i].server.process->pid) continue;
            char *response = get(&leaf->members[i], "/readyz?master=1", HOST);
            if (code_of(response) == 200) master = i;
            free(response);
        }
        if (master < 0) sleep_ms(50);
    }
    assert_true(master >= 0);
    return master;
}

/* Kills the master. With etcd another process takes over, else the same process starts again. */
static void leaf_change_master(struct leaf *leaf) {
    int master = leaf_await_master(leaf);
    process_signal(leaf->members[master].server.process, SIGKILL);
    process_wait(leaf->members[master].server.process);
    if (!leaf->etcd) member_start(leaf, master);
    int next = leaf_await_master(leaf);
    assert_true(leaf->etcd ? next != master : next == master);
    if (leaf->etcd) member_start(leaf, master);
}

/* ---- tests ---------------------------------------------------------------------------------- */

/* Starts two clients of each language that is installed. Returns how many clients there are. */
static int clients_start(struct process *clients[CLIENTS], const char *urls) {
    int count = 0;
    for (int i = 0; i < LANGUAGES; i++) {
        char program[256];
        bool has = language_find(&languages[i], program);
        print_message("clients in %s: %d\n", languages[i].file, 2 * has);
        for (int k = 0; k < 2 * has; k++) {
            clients[count++] = client_start(&languages[i], program, urls, "1000");
        }
    }
    return count;
}

/* Ends the clients. Fails unless they have released their leases. */
static void clients_stop(struct process *const *clients, int count, const struct leaf *leaf) {
    for (int i = 0; i < count; i++) process_signal(clients[i], SIGTERM);
    for (int i = 0; i < count; i++) process_end(clients[i], 0);
    const struct fixture *master = &leaf->members[leaf_await_master(leaf)];
    char *response = get(master, "/v1/status", HOST);
    cJSON *tree = cJSON_Parse(body_of(response));
    const cJSON *left = find(tree, "resources[0].clients");
    if (left && left->valuedouble > 0) fail_msg("leases were not released: %s", response);
    cJSON_Delete(tree);
    free(response);
}

TEST(clients_share_the_capacity_and_follow_the_master) {
    static struct etcd etcd;
    static struct leaf leaf;
    struct process *clients[CLIENTS];
    char *outputs[CLIENTS], program[256];
    bool has_etcd = find_program("etcd", program) && find_program("etcdctl", program);
    if (has_etcd) etcd_require(&etcd);
    if (!has_etcd) print_message("etcd is not installed: the leaf has one process\n");
    struct server root = server_start(TREE_CONFIG, NULL);
    leaf_members_start(&leaf, root.url, has_etcd ? etcd.url : NULL);
    double started_at = seconds_now();
    int count = clients_start(clients, leaf.urls);
    require(count > 0, "python3, node or go");
    await_rate(clients, count, CAPACITY / count, "lease");
    expect_use(clients, count);
    print_message("another master\n");
    leaf_change_master(&leaf);
    await_rate(clients, count, CAPACITY / count, "lease");
    print_message("no server\n");
    leaf_stop(&leaf);
    await_rate(clients, count, SAFE_CAPACITY, "fallback");
    print_message("servers again\n");
    for (int i = 0; i < leaf.member_count; i++) member_start(&leaf, i);
    await_rate(clients, count, CAPACITY / count, "lease");
    clients_stop(clients, count, &leaf);
    for (int i = 0; i < count; i++) outputs[i] = file_read(clients[i]->out);
    expect_never_over(outputs, count, started_at, seconds_now());
    for (int i = 0; i < count; i++) free(outputs[i]);
    leaf_stop(&leaf);
    server_stop(&root);
}

/* Until a server answers for the first time, a client uses the safe capacity of its own options,
 * here nothing. */
static void try_early_client(const struct language *language) {
    char url[64], http[64], program[256];
    int port = port_free();
    require(language_find(language, program), language->program);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    snprintf(http, sizeof http, "127.0.0.1:%d", port);
    struct process *client = client_start(language, program, url, "5");
    await_rate(&client, 1, 0, "fallback");
    char *output = file_read(client->out);
    assert_int_equal(used_within(output, 0, 1e18), 0);
    free(output);
    const char *const more[] = {"--http", http, NULL};
    struct server server = server_start(CONFIG("20", ""), more);
    await_rate(&client, 1, 5, "lease");
    process_signal(client, SIGTERM);
    process_end(client, 0);
    server_stop(&server);
}

TEST(a_client_in_python_starts_before_its_server) { try_early_client(&languages[0]); }

TEST(a_client_in_javascript_starts_before_its_server) { try_early_client(&languages[1]); }

TEST(a_client_in_go_starts_before_its_server) { try_early_client(&languages[2]); }
