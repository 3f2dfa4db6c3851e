/* The client packages follow the map of shards (N9), with two real nodes, an etcd and a Redis. Each
 * client knows the HTTP address of one node, and uses a key of each node. run_shards.py says what
 * the clients do. */
#define _GNU_SOURCE
#include "shards_fixture.h"

#define ROUND 20 /* units of each key */
#define LIMITS                                                                                     \
    "{\"shards\": 16, \"resources\": [{\"identifier_glob\": \"*\", \"limits\": [{\"name\": "       \
    "\"day\", \"kind\": \"FIXED_WINDOW\", \"limit\": 100000, \"window\": 86400}]}]}"

/* Returns how many messages the nodes have forwarded. */
static double forwards(void) {
    double sum = 0;
    for (int node = 0; node < 2; node++) {
        char *text = get(&cluster.nodes[node].fixture, "/metrics", LINES);
        const char *at = text;
        while ((at = strstr(at, "\ndoorman_forwards_total{to=")) != NULL) {
            at = strchr(at, '}');
            assert_non_null(at);
            sum += strtod(at + 1, NULL);
        }
        free(text);
    }
    return sum;
}

/* Returns what a key has used. The first node answers for keys of all nodes. */
static long used_of(const char *key) {
    char body[256];
    snprintf(body, sizeof body, "{\"entry\": [{\"resource_id\": \"api\", \"key\": \"%s\"}]}", key);
    char *response = post(&cluster.nodes[0].fixture, "/v1/inspect", LINES, body);
    const char *at = strstr(response, "\"used\":");
    const long used = at ? atol(at + strlen("\"used\":")) : -1;
    free(response);
    return used;
}

/* Compiles the client in Go, and writes the path of the program to `out`. */
static void go_build(const char *program, char out[256]) {
    char command[1024], *root = get_current_dir_name();
    struct process *process = process_new();
    snprintf(out, 256, "%s/shards", process->folder);
    snprintf(command, sizeof command,
             "cp tests/system/clients/run_shards.go %s && cd %s && printf 'module run\ngo "
             "1.18\nrequire doorman.example/doorman v0.0.0\nreplace doorman.example/doorman => "
             "%s/clients/go\n' >go.mod && GOFLAGS=-mod=mod GOPROXY=off "
             "GOCACHE=%s/build/go_cache '%s' build -o shards",
             process->folder, process->folder, root, root, program);
    free(root);
    assert_int_equal(system(command), 0);
}

/* Starts a client that knows the first node. */
static struct process *client_start(const char *language, const char *script, char keys[2][32]) {
    char path[256], program[256], url[64];
    require(find_program(language, path), language);
    snprintf(program, sizeof program, "%s", path);
    const bool is_script = script != NULL;
    if (!is_script) go_build(path, program);
    snprintf(url, sizeof url, "http%s", strchr(cluster.nodes[0].fixture.http.url, ':'));
    const char *const arguments[] = {script ? script : "", url, "web-3", keys[0], keys[1], NULL};
    struct process *process = process_new();
    process_launch(process, program, arguments + !is_script, NULL);
    return process;
}

/* Waits until a client has done a number of rounds. Fails unless servers have granted all permits
 * of each round, and have counted the settle of the round. */
static void await_rounds(const struct process *client, int count) {
    char wanted[256] = "";
    for (int i = 0; i < count; i++) {
        const size_t bytes = strlen(wanted);
        snprintf(wanted + bytes, sizeof wanted - bytes, "round %d settled\n", 2 * ROUND);
    }
    for (int waited = 0;; waited += 20) {
        char *output = file_read(client->out);
        const bool is_done = strcmp(output, wanted) == 0;
        if (!is_done && (waited >= 4 * TIMEOUT_MS || strlen(output) >= strlen(wanted))) {
            fail_msg("%s%s", output, file_read(client->err));
        }
        free(output);
        if (is_done) return;
        sleep_ms(20);
    }
}

static void try_client(const char *language, const char *script) {
    char keys[2][32];
    cluster_share(LIMITS, 2);
    key_of_node(0, "first", keys[0]);
    key_of_node(1, "second", keys[1]);
    struct process *client = client_start(language, script, keys);
    await_rounds(client, 1);
    assert_int_equal(used_of(keys[0]), ROUND);
    assert_int_equal(used_of(keys[1]), ROUND + 2);

    const double before = forwards(); /* used_of and first calls may forward */
    process_signal(client, SIGUSR2);
    await_rounds(client, 2);
    assert_true(forwards() <= before); /* both nodes were asked directly */
    assert_int_equal(used_of(keys[1]), 2 * (ROUND + 2));

    cluster_change(0, "{\"drain\": \"n1\"}", 200, "\"moves\":8");
    process_signal(client, SIGUSR2); /* a round while shards move */
    await_rounds(client, 3);
    EVENTUALLY(cluster_owned(0) == 16);
    EVENTUALLY(cluster_rests(0));
    process_signal(client, SIGUSR2);
    await_rounds(client, 4); /* the client learns the last map at its first answer */
    const double moved = forwards();
    process_signal(client, SIGUSR2);
    await_rounds(client, 5);
    assert_true(forwards() <= moved);
    assert_int_equal(used_of(keys[0]), 5 * ROUND);
    assert_int_equal(used_of(keys[1]), 5 * (ROUND + 2));
    process_signal(client, SIGTERM);
    process_end(client, 0);
}

TEST(the_client_in_python_asks_the_owners_of_its_keys) {
    try_client("python3", "tests/system/clients/run_shards.py");
}

TEST(the_client_in_javascript_asks_the_owners_of_its_keys) {
    try_client("node", "tests/system/clients/run_shards.mjs");
}

TEST(the_client_in_go_asks_the_owners_of_its_keys) { try_client("go", NULL); }
