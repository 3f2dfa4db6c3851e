/* Tests a tree of servers that are real processes: the leases of its clients never add up to more
 * than the capacity, whichever process is killed. Also tests how a node handles its parents. Leases
 * last 2 s and time is real, so the tests assert only bounds and final states, and wait long for
 * slow machines. */
#define _GNU_SOURCE
#include "client_fleet.h"

#define CONFIG(more)                                                                               \
    "{\"resources\":[{\"identifier_glob\":\"*\",\"capacity\":120,\"algorithm\":{"                  \
    "\"kind\":\"FAIR_SHARE\",\"lease_length\":2,\"refresh_interval\":0.5," more                    \
    "\"parameters\":[{\"name\":\"minimum_interval\",\"value\":0.1},"                               \
    "{\"name\":\"minimum_refresh_interval\",\"value\":0.1}]}}]}"

/* ---- nodes ---------------------------------------------------------------------------------- */

/* A server that listens on a socket in its own folder, so that it has the same address after a
 * restart. Another program could take a TCP port in the meantime. */
struct node {
    const char *name, *config, *parents; /* exactly one of config and parents is set */
    struct server server;
};

static void node_prepare(struct node *node) {
    struct server *server = &node->server;
    server->process = process_new();
    snprintf(server->url, sizeof server->url, "ipc://%s", server->process->socket);
    if (node->config) file_write(server->process->config, node->config);
}

static void node_start(struct node *node) {
    const char *const arguments[] = {"--listen",
                                     node->server.url,
                                     "--node",
                                     node->name,
                                     node->config ? "--config" : "--parent",
                                     node->config ? node->server.process->config : node->parents,
                                     "--log-level",
                                     "debug",
                                     NULL};
    process_start(node->server.process, arguments, NULL);
    process_await(node->server.process, "msg=serving", 1);
}

static void node_kill(struct node *node) {
    process_signal(node->server.process, SIGKILL);
    process_end(node->server.process, 128 + SIGKILL);
}

/* ---- clients -------------------------------------------------------------------------------- */

static void client_add(const struct node *node, double wants) {
    const char *const addresses[] = {node->server.url};
    fleet_add(addresses, 1, wants);
}

/* ---- a tree --------------------------------------------------------------------------------- */

enum { ROOT, EU, US, EU_1, EU_2, US_1, US_2, NODES };

struct tree {
    struct node nodes[NODES];
};

/* Starts the tree and two clients for each leaf, in the order of the leaves. */
static void tree_start(struct tree *tree, double wants) {
    static const char *const names[NODES] = {"root", "eu", "us", "eu-1", "eu-2", "us-1", "us-2"};
    static const int parents[NODES] = {-1, ROOT, ROOT, EU, EU, US, US};
    for (int i = 0; i < NODES; i++) {
        struct node *node = &tree->nodes[i];
        *node = (struct node){.name = names[i]};
        if (i == ROOT) node->config = CONFIG("");
        if (i != ROOT) node->parents = tree->nodes[parents[i]].server.url;
        node_prepare(node);
        node_start(node);
    }
    for (int i = 0; i < CLIENT_MAX; i++) client_add(&tree->nodes[EU_1 + i / 2], wants);
}

/* Stops all nodes. With a sanitizer, the exit codes also report leaks and races. */
static void tree_stop(struct tree *tree) {
    for (int i = 0; i < NODES; i++) process_signal(tree->nodes[i].server.process, SIGTERM);
    for (int i = 0; i < NODES; i++) {
        process_end(tree->nodes[i].server.process, 0);
    }
}

/* T2, T7. */
TEST(a_tree_shares_as_one_server_would_and_never_exceeds_the_capacity) {
    static struct tree tree;
    tree_start(&tree, 10);
    fleet_run_until(ALL(10));
    fleet_set_wants(7, 1000);
    fleet_run_until((const double[]){10, 10, 10, 10, 10, 10, 10, 50});
    fleet_set_wants(0, 500);
    fleet_set_wants(1, 500);
    fleet_run_until((const double[]){70.0 / 3, 70.0 / 3, 10, 10, 10, 10, 10, 70.0 / 3});
    for (int i = 0; i < CLIENT_MAX; i++) fleet_set_wants(i, 100 + i);
    fleet_run_until(ALL(15));
    fleet_set_wants(3, 0);
    fleet_run_until((const double[]){120.0 / 7, 120.0 / 7, 120.0 / 7, 0, 120.0 / 7, 120.0 / 7,
                                     120.0 / 7, 120.0 / 7});
    tree_stop(&tree);
}

/* T5, T6, T7. The next process of the leaf learns the leases of its clients. If that process starts
 * after the leases have ended, other clients have the capacity meanwhile. */
TEST(a_leaf_recovers_after_a_kill) {
    static struct tree tree;
    tree_start(&tree, 100);
    fleet_run_until(ALL(15));
    node_kill(&tree.nodes[EU_1]);
    fleet_run_for(DOORMAN_SECOND / 2);
    node_start(&tree.nodes[EU_1]);
    fleet_run_for(DOORMAN_SECOND);
    for (int i = 2; i < CLIENT_MAX; i++) fleet_set_wants(i, 5);
    fleet_run_until((const double[]){45, 45, 5, 5, 5, 5, 5, 5});
    for (int i = 0; i < CLIENT_MAX; i++) fleet_set_wants(i, 100);
    fleet_run_until(ALL(15));
    node_kill(&tree.nodes[US_2]);
    fleet_run_until((const double[]){20, 20, 20, 20, 20, 20, 0, 0});
    node_start(&tree.nodes[US_2]);
    fleet_run_until(ALL(15));
    tree_stop(&tree);
}

/* S6, T4, T7. Without the root all leases end. After its return each client gets its share
 * again. */
TEST(leases_end_when_the_root_is_away_for_too_long) {
    static struct tree tree;
    tree_start(&tree, 100);
    fleet_run_until(ALL(15));
    node_kill(&tree.nodes[ROOT]);
    fleet_run_until(ALL(0));
    node_start(&tree.nodes[ROOT]);
    fleet_run_until(ALL(15));
    tree_stop(&tree);
}

/* A region is killed and forgets its leaves. Its next process serves them again. SIGSTOP stops this
 * process until its lease has ended. After SIGCONT it answers the requests that came meanwhile. */
TEST(a_region_recovers_after_a_kill_and_a_freeze) {
    static struct tree tree;
    tree_start(&tree, 100);
    fleet_run_until(ALL(15));
    node_kill(&tree.nodes[EU]);
    node_start(&tree.nodes[EU]);
    for (int i = 4; i < CLIENT_MAX; i++) fleet_set_wants(i, 5);
    fleet_run_until((const double[]){25, 25, 25, 25, 5, 5, 5, 5});
    for (int i = 4; i < CLIENT_MAX; i++) fleet_set_wants(i, 100);
    process_signal(tree.nodes[EU].server.process, SIGSTOP);
    fleet_run_until((const double[]){0, 0, 0, 0, 30, 30, 30, 30});
    process_signal(tree.nodes[EU].server.process, SIGCONT);
    fleet_run_until(ALL(15));
    tree_stop(&tree);
}

/* ---- parents -------------------------------------------------------------------------------- */

/* V6: the log has the failure, with the address and the reason. */
TEST(a_parent_address_that_does_not_answer_is_skipped) {
    char silent_fd[NNG_MAXADDRLEN], log_text[512], parents[512];
    int fd = silent_listen(silent_fd);
    struct node root = {.name = "root", .config = CONFIG("")}, leaf = {.name = "leaf"};
    node_prepare(&root);
    node_start(&root);
    node_prepare(&leaf);
    snprintf(parents, sizeof parents, "%s,%s", silent_fd, root.server.url);
    leaf.parents = parents;
    node_start(&leaf);
    snprintf(log_text, sizeof log_text, " node=leaf listen=%s advertise=%s parent=%s,",
             leaf.server.url, leaf.server.url, silent_fd);
    assert_int_equal(process_logged(leaf.server.process, log_text), 1);
    client_add(&leaf, 50);
    fleet_run_until((const double[]){50});
    snprintf(log_text, sizeof log_text, "cannot be reached\" count=1 parent=%s error=", silent_fd);
    process_await(leaf.server.process, log_text, 1);
    snprintf(log_text, sizeof log_text, "the parent answers\" parent=%s", root.server.url);
    process_await(leaf.server.process, log_text, 1);
    server_stop(&leaf.server);
    server_stop(&root.server);
    close(fd);
}

/* T8. */
TEST(two_nodes_that_are_parents_of_each_other_report_it_and_grant_nothing) {
    struct node one = {.name = "one"}, two = {.name = "two"};
    node_prepare(&one);
    node_prepare(&two);
    one.parents = two.server.url;
    two.parents = one.server.url;
    node_start(&one);
    node_start(&two);
    client_add(&one, 50);
    client_add(&two, 50);
    for (int waited = 0;; waited += 100) {
        fleet_run_for(DOORMAN_SECOND / 10);
        if (process_logged(one.server.process, "a loop") +
            process_logged(two.server.process, "a loop")) {
            break;
        }
        assert_true(waited < TIMEOUT_MS);
    }
    fleet_run_for(DOORMAN_SECOND);
    fleet_run_until((const double[]){0, 0});
    server_stop(&one.server);
    server_stop(&two.server);
}

/* Gets a lease on each of `count` resources, one after the other. Returns how long that takes. */
static doorman_time leases_got(const struct node *leaf, int first, int count) {
    doorman_time from = doorman_clock();
    for (int i = first; i < first + count; i++) {
        char request[256];
        double capacity = 0;
        snprintf(request, sizeof request,
                 "{\"get_capacity\":{\"client_id\":\"a\",\"resource\":["
                 "{\"resource_id\":\"db/%d\",\"wants\":7}]}}",
                 i);
        for (int waited = 0; capacity < 7 && waited < TIMEOUT_MS; waited += 10) {
            cJSON *reply = send_request(&leaf->server, request);
            if (find(reply, "get_capacity.response[0].gets")) {
                capacity = number(reply, "get_capacity.response[0].gets.capacity");
            }
            cJSON_Delete(reply);
            if (capacity < 7) sleep_ms(10);
        }
        assert_true(capacity == 7);
    }
    return doorman_clock() - from;
}

/* Requests new resources, and then the same resources again. The leaf answers the second requests
 * alone. Returns how much longer the first requests take. */
static doorman_time parent_delay(const struct node *leaf, int first, int count) {
    doorman_time new_ = leases_got(leaf, first, count);
    return new_ - leases_got(leaf, first, count);
}

/* T4. If the node did not send its request at once, each new resource would take up to a second
 * more. A busy machine can be as slow, so there are several tries. */
TEST(a_node_requests_a_new_resource_at_once) {
    enum { ROUNDS = 20, TRIES = 10 };
    const doorman_time most = ROUNDS * DOORMAN_SECOND / 2;
    struct node root = {.name = "root", .config = CONFIG("\"learning_mode_duration\":0,")};
    struct node leaf = {.name = "leaf"};
    node_prepare(&root);
    node_start(&root);
    node_prepare(&leaf);
    leaf.parents = root.server.url;
    node_start(&leaf);
    doorman_time delay = parent_delay(&leaf, 0, ROUNDS);
    for (int i = 1; i < TRIES && delay > most; i++) delay = parent_delay(&leaf, i * ROUNDS, ROUNDS);
    assert_true(delay <= most);
    server_stop(&leaf.server);
    server_stop(&root.server);
}

static doorman_resource *agent_open(doorman_agent **agent, const struct node *node, double wants) {
    const char *const addresses[] = {node->server.url};
    doorman_client_options who = {.addresses = addresses, .address_count = 1};
    doorman_resource_options action = {
        .resource_id = RESOURCE, .wants = wants, .has_safe_capacity = true, .safe_capacity = 40};
    doorman_resource *resource = NULL;
    assert_int_equal(doorman_agent_start(agent, &who, NULL), DOORMAN_OK);
    assert_int_equal(doorman_resource_open(&resource, *agent, &action, NULL), DOORMAN_OK);
    return resource;
}

/* Starts a client, and waits until it has a lease. Returns whether the server has said that it
 * learns. Fails if `kept`, the resource of an older client, ever has less than its lease. */
static bool fresh_client_sees_learning(const struct node *root, doorman_resource *kept) {
    doorman_agent *agent = NULL;
    doorman_resource *fresh = agent_open(&agent, root, 30);
    doorman_resource_info info = {.leased = false};
    doorman_time end = doorman_clock() + TIMEOUT_MS * (DOORMAN_SECOND / 1000);
    bool learned = false;
    while (!info.leased) {
        assert_true(doorman_clock() < end);
        sleep_ms(5);
        doorman_resource_read(kept, &info);
        assert_true(info.capacity >= 30);
        doorman_resource_read(fresh, &info);
        assert_true(info.capacity >= (info.leased ? 30 : 40));
        learned = learned || info.learning;
    }
    doorman_agent_stop(agent);
    return learned;
}

/* S4: when a server restarts, a client with a lease keeps it, and a client without one keeps its
 * safe capacity. The server reports that it learns. On a very slow machine a client may come when
 * the learning is over, so there are several tries. */
TEST(a_restarted_server_leaves_the_safe_capacity_in_force) {
    struct node root = {.name = "root", .config = CONFIG("\"learning_mode_duration\":4,")};
    doorman_agent *old = NULL;
    doorman_resource_info info = {.leased = false};
    node_prepare(&root);
    node_start(&root);
    doorman_resource *kept = agent_open(&old, &root, 30);
    doorman_time end = doorman_clock() + TIMEOUT_MS * (DOORMAN_SECOND / 1000);
    while (!info.leased && doorman_clock() < end) {
        sleep_ms(5);
        doorman_resource_read(kept, &info);
    }
    assert_true(info.leased);
    bool learned = false;
    for (int i = 0; i < 5 && !learned; i++) {
        node_kill(&root);
        node_start(&root);
        learned = fresh_client_sees_learning(&root, kept);
    }
    assert_true(learned);
    doorman_agent_stop(old);
    server_stop(&root.server);
}

/* G8, V1: SIGHUP loads no configuration at a node with a parent. */
TEST(a_node_with_a_parent_cannot_reload_a_configuration) {
    struct node root = {.name = "root", .config = CONFIG("")}, leaf = {.name = "leaf"};
    node_prepare(&root);
    node_start(&root);
    node_prepare(&leaf);
    leaf.parents = root.server.url;
    node_start(&leaf);
    process_signal(leaf.server.process, SIGHUP);
    process_await(leaf.server.process, "there is nothing to load", 1);
    client_add(&leaf, 50);
    fleet_run_until((const double[]){50});
    server_stop(&leaf.server);
    server_stop(&root.server);
}

/* G8, V7. */
TEST(an_invalid_parent_address_is_a_usage_error) {
    struct process *process = process_new();
    char own[96];
    snprintf(own, sizeof own, "ipc://%s", process->socket);
    const char *const cases[][2] = {{own, "this server itself"},
                                    {"tcp://doorman.example:1", "this server itself"},
                                    {"carrier-pigeon://roof", "carrier-pigeon://roof"},
                                    {"15000", "'15000'"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const arguments[] = {"--listen",    own,
                                         "--advertise", "tcp://doorman.example:1",
                                         "--parent",    "ipc:///nowhere",
                                         "--parent",    cases[i][0],
                                         NULL};
        assert_int_equal(process_run(process, arguments, NULL), 2);
        assert_int_equal(process_logged(process, cases[i][1]), 1);
        assert_int_equal(process_logged(process, "\n"), 1);
    }
}
