/* What a page says about other processes and other resources: links to the parent and to the child
 * nodes, the description and the unit of a resource on all nodes, and the search for a client over
 * all resources. Pages show hostile texts as text. */
#define _GNU_SOURCE
#include "http.h"

#include "etcd_fixture.h"

#define TEMPLATE(more)                                                                             \
    "{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 1000, " more "\"algorithm\": "    \
    "{\"kind\": \"FAIR_SHARE\", \"lease_length\": 600, \"refresh_interval\": 5, "                  \
    "\"learning_mode_duration\": 0}}]}"
#define HOSTILE "\\\"><script>alert(1)</script>"
#define HOSTILE_HTML "&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;"

/* ---- a tree --------------------------------------------------------------------------------- */

enum { ROOT, MIDDLE, LEAF, NODES };

struct tree {
    struct fixture nodes[NODES];
    char urls[NODES][160]; /* the addresses of their pages */
};

/* Reads the address that a server logs behind a key such as " listen=". */
static void read_logged(const struct process *process, const char *key, char out[128]) {
    char *log_text = file_read(process->err);
    const char *at = strstr(log_text, key);
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(key), "%127[^ ,\n]", out), 1);
    free(log_text);
}

static struct fixture child_start(const struct fixture *parent, const char *name) {
    struct process *process = process_new();
    struct fixture child = {.server = {process, ""}, .http = {process, ""}};
    const char *const arguments[] = {"--parent", parent->server.url, "--node",
                                     name,       "--listen",         "tcp://127.0.0.1:0",
                                     "--http",   "127.0.0.1:0",      NULL};
    char url[128];
    process_start(process, arguments, NULL);
    process_await(process, "msg=serving", 1);
    read_logged(process, " listen=", url);
    snprintf(child.server.url, sizeof child.server.url, "%s", url);
    read_logged(process, " http=", url);
    snprintf(child.http.url, sizeof child.http.url, "tcp%s", strchr(url, ':'));
    return child;
}

static void await_text(const struct fixture *fixture, const char *path, const char *expected) {
    for (int ms = 0; ms < TIMEOUT_MS; ms += 20) {
        char *response = get(fixture, path, HOST);
        bool found = strstr(response, expected) != NULL;
        if (!found && ms + 20 >= TIMEOUT_MS)
            fail_msg("%s: no '%s' in:\n%s", path, expected, response);
        free(response);
        if (found) return;
        sleep_ms(20);
    }
}

/* Starts a tree, and waits until a client of the leaf has a lease of the resource db/a. */
static void tree_start(struct tree *tree, const char *config) {
    const char *const more[] = {"--node", "root", NULL};
    tree->nodes[ROOT] = fixture_start(config, more);
    tree->nodes[MIDDLE] = child_start(&tree->nodes[ROOT], "middle");
    tree->nodes[LEAF] = child_start(&tree->nodes[MIDDLE], "leaf");
    for (int i = 0; i < NODES; i++) {
        snprintf(tree->urls[i], sizeof tree->urls[i], "http%s",
                 strchr(tree->nodes[i].http.url, ':'));
    }
    bool granted = false;
    for (int ms = 0; ms < TIMEOUT_MS && !granted; ms += 20) {
        char *response = post(&tree->nodes[LEAF], "/v1/get_capacity", HOST JSON,
                              CAPACITY_REQUEST("c", "db/a", "5"));
        granted = strstr(response, "\"gets\"") != NULL;
        free(response);
        if (!granted) sleep_ms(20);
    }
    assert_true(granted);
}

static void tree_stop(struct tree *tree) {
    for (int i = NODES - 1; i >= 0; i--) server_stop(&tree->nodes[i].server);
}

static void await_link(const struct tree *tree, int from, const char *page, int to,
                       const char *format) {
    char link[512];
    snprintf(link, sizeof link, format, tree->urls[to]);
    await_text(&tree->nodes[from], page, link);
}

/* A node shows the state of its parent before its first client asks. It notices a dead parent, also
 * while it has no client. */
TEST(a_node_says_whether_its_parent_answers) {
    struct fixture root = fixture_start(TEMPLATE(""), NULL);
    struct fixture leaf = child_start(&root, "leaf");
    process_await(leaf.server.process, "the parent answers", 1);
    await_text(&leaf, "/", " answered ");
    await_text(&leaf, "/v1/status", "\"parent\":{\"reachable\":true,\"address\":\"tcp://");
    await_text(&leaf, "/metrics", "\ndoorman_server_parent_reachable 1\n");
    server_stop(&root.server);
    process_await(leaf.server.process, "the parent cannot be reached", 1);
    await_text(&leaf, "/", "not reached for ");
    await_text(&leaf, "/", "<span id=live class=warn>the parent fails</span>");
    await_text(&leaf, "/", "next request to the parent</dt><dd class=''>in ");
    await_text(&leaf, "/v1/status", "\"failure\":{\"for\":");
    await_text(&leaf, "/metrics", "\ndoorman_server_parent_reachable 0\n");
    free(post(&leaf, "/v1/get_capacity", HOST JSON, CAPACITY_REQUEST("c", "db/a", "5")));
    await_text(&leaf, "/resources?resource=db/a", "no lease from the parent: it is not reached");
    server_stop(&leaf.server);
}

#define SHORT_LEASES                                                                               \
    "{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 1000, \"algorithm\": "            \
    "{\"kind\": \"FAIR_SHARE\", \"lease_length\": 4, \"refresh_interval\": 1, "                    \
    "\"learning_mode_duration\": 0}}]}"

/* Sends requests of a client for two resources until the page of a node has a text. */
static void ask_until(const struct fixture *node, const char *expected) {
    bool found = false;
    for (int ms = 0; ms < TIMEOUT_MS && !found; ms += 100) {
        free(
            post(node, "/v1/get_capacity", HOST JSON,
                 "{\"client_id\": \"c\", \"resource\": [{\"resource_id\": \"db/a\", \"wants\": 5}, "
                 "{\"resource_id\": \"db/b\", \"wants\": 6}]}"));
        char *page = get(node, "/", HOST);
        found = strstr(page, expected) != NULL;
        free(page);
        if (!found) sleep_ms(100);
    }
    if (!found) fail_msg("the page never has '%s'", expected);
}

/* The header is green only while the node has its leases and its parent answers. */
TEST(a_node_whose_lease_has_ended_is_not_live) {
    struct fixture root = fixture_start(SHORT_LEASES, NULL);
    struct fixture leaf = child_start(&root, "leaf");
    ask_until(&leaf, "5 leased from the parent");
    ask_until(&leaf, "6 leased from the parent");
    ask_until(&leaf, "<span id=live class=good>live</span>");
    server_stop(&root.server);
    ask_until(&leaf, "<span id=live class=bad>no lease from the parent</span>");
    process_await(leaf.server.process,
                  "msg=\"leases from the parent have ended, so clients of these resources get no "
                  "capacity\" count=2 resources=\"db/",
                  1);
    ask_until(&leaf, "next request to the parent</dt>");
    server_stop(&leaf.server);
}

TEST(a_node_says_where_its_capacity_comes_from) {
    struct tree tree;
    tree_start(&tree, TEMPLATE(""));
    await_text(&tree.nodes[LEAF], "/resources?resource=db/a", "5 leased from the parent tcp://");
    await_text(&tree.nodes[ROOT], "/resources?resource=db/a", "FAIR_SHARE by the template *");
    await_text(&tree.nodes[ROOT], "/resources?resource=db/a", "<td data-name=priority>&ndash;");
    tree_stop(&tree);
}

/* The page and the status say why there is no master, and since when. */
TEST(a_node_says_why_it_has_no_master) {
    const char *const flags[] = {"--etcd", "http://127.0.0.1:1", "--election-key", "key", NULL};
    struct fixture lonely = fixture_start(TEMPLATE(""), flags);
    await_text(&lonely, "/", "none for ");
    await_text(&lonely, "/", "etcd cannot be reached");
    await_text(&lonely, "/", "has not answered for ");
    await_text(&lonely, "/v1/status", "\"no_master\":{\"for\":");
    await_text(&lonely, "/v1/status", "\"etcd_failure\":{\"for\":");
    server_stop(&lonely.server);
}

/* Returns a number of the status of a server, or -1 if the status does not have it. */
static double status_number(const struct fixture *fixture, const char *name) {
    char *response = get(fixture, "/v1/status", HOST);
    cJSON *tree = cJSON_Parse(body_of(response));
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(tree, name);
    double value = cJSON_IsNumber(field) ? field->valuedouble : -1;
    cJSON_Delete(tree);
    free(response);
    return value;
}

/* The mastership lasts an hour without etcd, so it does not end during the test. */
TEST(a_master_says_how_long_it_stays_master_without_etcd) {
    struct etcd etcd;
    etcd_require(&etcd);
    const char *const flags[] = {
        "--etcd", etcd.url, "--election-key", "doorman/links", "--election-ttl", "3600", NULL};
    struct fixture master = fixture_start(TEMPLATE(""), flags);
    await_text(&master, "/v1/status", "\"mastership_ends_in\":");
    await_text(&master, "/", "this process; without etcd it stays the master for ");
    await_text(&master, "/", "etcd</dt><dd class='good'>answered ");
    double left = status_number(&master, "mastership_ends_in");
    assert_true(left > 0 && left <= 3600);
    assert_true(status_number(&master, "etcd_answered_ago") >= 0);
    etcd_stop(&etcd);
    await_text(&master, "/v1/status", "\"etcd_failure\":{\"for\":");
    assert_true(status_number(&master, "mastership_ends_in") <= left);
    assert_true(status_number(&master, "mastership_ends_in") > 0);
    assert_true(status_number(&master, "etcd_answered_ago") > 0);
    server_stop(&master.server);
}

TEST(a_server_without_an_election_does_not_speak_of_etcd) {
    struct fixture server = fixture_start(TEMPLATE(""), NULL);
    assert_true(status_number(&server, "mastership_ends_in") < 0);
    assert_true(status_number(&server, "etcd_answered_ago") < 0);
    char *page = get(&server, "/", HOST);
    assert_null(strstr(page, "etcd"));
    free(page);
    server_stop(&server.server);
}

TEST(pages_link_up_and_down_the_tree) {
    struct tree tree;
    tree_start(&tree, TEMPLATE(""));
    for (int i = ROOT; i < LEAF; i++) {
        const char *child = i == ROOT ? "middle" : "leaf";
        char format[128];
        snprintf(format, sizeof format, "<a href=\"%%s/\">%s</a>", child);
        await_link(&tree, i, "/", i + 1, format);
        snprintf(format, sizeof format, "<a href=\"%%s/resources?resource=db/a\">%s</a>", child);
        await_link(&tree, i, "/resources?resource=db/a", i + 1, format);
        await_link(&tree, i + 1, "/", i, "<a href=\"%s/\">page</a>");
        await_link(&tree, i + 1, "/resources?resource=db/a", i,
                   "<a href=\"%s/resources?resource=db/a\">this resource at the parent</a>");
        await_link(&tree, i + 1, "/v1/status", i, "\"parent_http_address\":\"%s\"");
        snprintf(format, sizeof format, "{\"node\":\"%s\",\"http_address\":\"%%s\",", child);
        await_link(&tree, i, "/v1/status", i + 1, format);
    }
    expect(&tree.nodes[LEAF], "/v1/status", HOST, 200, "\"node\":\"leaf\"");
    char *page = get(&tree.nodes[ROOT], "/", HOST);
    assert_null(strstr(page, ">page<"));
    free(page);
    tree_stop(&tree);
}

/* The pages of each node show the description and the unit, and so do /v1/status and /v1/config. */
TEST(nodes_below_show_the_description_and_the_unit) {
    struct tree tree;
    tree_start(&tree, TEMPLATE("\"description\": \"all orders\", \"unit\": \"queries/s\", "));
    for (int i = 0; i < NODES; i++) {
        const struct fixture *node = &tree.nodes[i];
        await_text(node, "/", "</b> queries/s</span>");
        await_text(node, "/resources?resource=db/a", "all orders</p>");
        await_text(node, "/v1/status", "\"unit\":\"queries/s\"");
        await_text(node, "/v1/status?resource=db/a",
                   "\"description\":\"all orders\",\"unit\":\"queries/s\"");
        await_text(node, "/v1/config", "\"description\":\"all orders\",\"unit\":\"queries/s\"");
    }
    tree_stop(&tree);
}

static void expect_no_script(const struct fixture *fixture, const char *path) {
    char *response = get(fixture, path, HOST);
    if (strstr(response, "<script>")) fail_msg("%s:\n%s", path, response);
    free(response);
}

TEST(hostile_texts_of_a_configuration_stay_texts) {
    struct tree tree;
    tree_start(&tree, TEMPLATE("\"description\": \"" HOSTILE "\", \"unit\": \"" HOSTILE "\", "));
    const char *const pages[] = {"/", "/resources?resource=db/a", "/clients?client=c"};
    for (int i = 0; i < NODES; i++) {
        await_text(&tree.nodes[i], "/resources?resource=db/a", "</b> " HOSTILE_HTML "</span>");
        await_text(&tree.nodes[i], "/resources?resource=db/a", HOSTILE_HTML "</p>");
        for (size_t k = 0; k < 3; k++) expect_no_script(&tree.nodes[i], pages[k]);
    }
    await_text(&tree.nodes[LEAF], "/clients?client=c", " in " HOSTILE_HTML "</span>");
    tree_stop(&tree);
}

/* ---- children ------------------------------------------------------------------------------- */

#define NODE_REQUEST(node, more)                                                                   \
    "{\"server_id\": \"" node "\", \"path\": [\"" node "\"], " more "\"resource\": []}"

static void request_as_node(const struct fixture *fixture, const char *node, const char *more,
                            int code, const char *expected) {
    char body[1024];
    snprintf(body, sizeof body, NODE_REQUEST("%s", "%s"), node, node, more);
    expect_post(fixture, "/v1/get_server_capacity", HOST JSON, body, code, expected);
}

/* A node of an older version sends no address. An address that is not valid is ignored. */
TEST(a_node_without_a_valid_address_has_no_link) {
    char long_address[400] = "";
    static const char *const addresses[] = {"",
                                            "javascript:alert(1)",
                                            "http://a/\\\"onclick=x",
                                            "http://a" HOSTILE,
                                            "http://a/path",
                                            "http://user@a",
                                            "//a",
                                            "ftp://a",
                                            "http://a b",
                                            "http://"};
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    request_as_node(&fixture, "old", "", 200, "\"response\":[]");
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        char more[512], node[32];
        snprintf(more, sizeof more, "\"http_address\": \"%s\", ", addresses[i]);
        snprintf(node, sizeof node, "n%zu", i);
        request_as_node(&fixture, node, more, 200, "\"response\":[]");
    }
    snprintf(long_address, sizeof long_address, "\"http_address\": \"http://%0300d\", ", 0);
    request_as_node(&fixture, "long", long_address, 200, "\"response\":[]");
    request_as_node(&fixture, HOSTILE, "", 200, "\"response\":[]");
    request_as_node(&fixture, "number", "\"http_address\": 1, ", 400,
                    "get_server_capacity.http_address: must be a string");
    expect(&fixture, "/", HOST, 200,
           HOSTILE_HTML ", long, n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, old<");
    expect_no_script(&fixture, "/");
    char *response = get(&fixture, "/v1/status", HOST);
    cJSON *tree = cJSON_Parse(body_of(response));
    const cJSON *child;
    free(response);
    cJSON_ArrayForEach(child, find(tree, "children")) assert_null(find(child, "http_address"));
    assert_int_equal(cJSON_GetArraySize(find(tree, "children")), 13);
    cJSON_Delete(tree);
    server_stop(&fixture.server);
}

/* The address in the last request of a node counts, because another process of the node may have
 * become master. */
TEST(a_node_that_moves_has_its_new_address) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    char own[160];
    snprintf(own, sizeof own, "{\"http_address\":\"http%s\",\"response\":[]}",
             strchr(fixture.http.url, ':'));
    request_as_node(&fixture, "eu", "\"http_address\": \"http://one:1\", ", 200, own);
    expect(&fixture, "/", HOST, 200, "<a href=\"http://one:1/\">eu</a>");
    request_as_node(&fixture, "eu", "\"http_address\": \"https://two.example\", ", 200, own);
    expect(&fixture, "/", HOST, 200, "<a href=\"https://two.example/\">eu</a>");
    request_as_node(&fixture, "eu", "", 200, own);
    expect(&fixture, "/", HOST, 200, ">eu</dd>");
    server_stop(&fixture.server);
}

#define SHORT "\"parameters\": [{\"name\": \"minimum_interval\", \"value\": 0.1}]"
#define KIND                                                                                       \
    "\"kind\": \"FAIR_SHARE\", \"refresh_interval\": 0.5, \"learning_mode_duration\": 0, " SHORT
#define CHILD_REQUEST(node, resource)                                                              \
    "{\"server_id\": \"" node "\", \"path\": [\"" node                                             \
    "\"], \"resource\": [{\"resource_id\": \"" resource                                            \
    "\", \"wants\": [{\"priority\": 1, \"num_clients\": 1, \"wants\": 5}]}]}"

static void ask_as_child(const struct fixture *fixture, const char *request) {
    expect_post(fixture, "/v1/get_server_capacity", HOST JSON, request, 200, "\"gets\"");
}

/* S13: a child node that dies is reported by its parent: in the log, on each page, as JSON and as a
 * metric. The child is not reported before it has missed two refreshes. A node without leases is
 * never reported. */
TEST(a_silent_child_is_shown_and_logged) {
    static const char config[] =
        "{\"resources\": ["
        "{\"identifier_glob\": \"short\", \"capacity\": 9, \"algorithm\": {" KIND
        ", \"lease_length\": 2}},"
        "{\"identifier_glob\": \"*\", \"capacity\": 9, \"algorithm\": {" KIND
        ", \"lease_length\": 600}}]}";
    struct fixture fixture = fixture_start(config, NULL);
    struct process *process = fixture.server.process;
    request_as_node(&fixture, "idle", "", 200, "\"response\":[]");
    expect(&fixture, "/", HOST, 200, "<span id=live class=good>live</span>");
    ask_as_child(&fixture, CHILD_REQUEST("leaf", "db"));
    process_await(process,
                  "level=warning msg=\"a child node is silent: it has missed two "
                  "refreshes\" child=leaf silent_seconds=",
                  1);
    await_text(&fixture, "/limits", "<span id=live class=warn>child leaf: silent for ");
    expect(&fixture, "/", HOST, 200, " s; its lease ends in ");
    expect(&fixture, "/", HOST, 200, "leaf <span class=warn>(silent for ");
    expect(&fixture, "/v1/status", HOST, 200, "\"state\":\"silent\",\"lease_ends_in\":5");
    assert_true(metric(&fixture, "doorman_server_children{state=\"silent\"}") == 1);
    assert_true(metric(&fixture, "doorman_server_children{state=\"live\"}") == 1);
    ask_as_child(&fixture, CHILD_REQUEST(HOSTILE, "short"));
    process_await(process,
                  "msg=\"all leases of a child node have ended, because it is silent; its "
                  "capacity goes to others\" child=",
                  1);
    await_text(&fixture, "/", "class=warn>child " HOSTILE_HTML ": silent for ");
    expect(&fixture, "/", HOST, 200, "; its lease has ended (and 1 more)</span>");
    expect(&fixture, "/", HOST, 200, HOSTILE_HTML " <span class=bad>(silent for ");
    expect_no_script(&fixture, "/");
    assert_true(metric(&fixture, "doorman_server_children{state=\"ended\"}") == 1);
    ask_as_child(&fixture, CHILD_REQUEST("leaf", "db"));
    process_await(process,
                  "msg=\"a child node sends requests again\" child=leaf after_seconds=", 1);
    assert_int_equal(process_logged(process, "child=idle"), 0);
    server_stop(&fixture.server);
}

/* Any peer can invent names, so the table is bounded. A node that keeps sending requests keeps its
 * place. */
TEST(names_of_nodes_take_a_bounded_memory) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    for (int i = 0; i < 300; i++) {
        char node[32];
        snprintf(node, sizeof node, "n%03d", i);
        request_as_node(&fixture, node, "", 200, "\"response\":[]");
        if (i % 100 == 0) request_as_node(&fixture, "stays", "", 200, "\"response\":[]");
    }
    char *response = get(&fixture, "/v1/status", HOST);
    cJSON *tree = cJSON_Parse(body_of(response));
    assert_int_equal(cJSON_GetArraySize(find(tree, "children")), 256);
    assert_null(strstr(response, "\"n044\""));
    assert_non_null(strstr(response, "\"n045\""));
    assert_non_null(strstr(response, "\"n299\""));
    assert_non_null(strstr(response, "\"stays\""));
    cJSON_Delete(tree);
    free(response);
    expect(&fixture, "/", HOST, 200, "n094 and 206 more</dd>");
    server_stop(&fixture.server);
}

/* ---- the search ----------------------------------------------------------------------------- */

enum { RESOURCES = 6, CLIENTS = 3 };

/* Requests a lease for a client. Returns the id of the lease. */
static double request_one(const struct fixture *fixture, int resource, int client) {
    char body[256];
    snprintf(body, sizeof body, CAPACITY_REQUEST("web-%d", "r%d", "3"), client, resource);
    char *response = post(fixture, "/v1/get_capacity", HOST JSON, body);
    cJSON *tree = cJSON_Parse(body_of(response));
    double id = number(tree, "response[0].gets.id");
    cJSON_Delete(tree);
    free(response);
    return id;
}

static void request_all(const struct fixture *fixture) {
    for (int resource = 0; resource < RESOURCES; resource++) {
        for (int client = 0; client < CLIENTS; client++) request_one(fixture, resource, client);
    }
    request_capacity(fixture, CAPACITY_REQUEST("api-1", "r0", "3"));
    request_capacity(fixture, CAPACITY_REQUEST(HOSTILE, HOSTILE, "3"));
}

/* The leases that the parts of a search have found so far. */
struct found {
    int visits[RESOURCES][CLIENTS], count, part_count, last_resource;
    char next[128]; /* "": the search is complete */
};

static void search(struct found *found, const struct fixture *fixture, const char *query) {
    char path[512];
    snprintf(path, sizeof path, "/v1/status?%s%s%s", query, found->next[0] ? "&after=" : "",
             found->next);
    char *response = get(fixture, path, HOST);
    assert_int_equal(code_of(response), 200);
    cJSON *tree = cJSON_Parse(body_of(response));
    const cJSON *lease;
    cJSON_ArrayForEach(lease, find(tree, "leases")) {
        int resource = atoi(text(lease, "resource_id") + 1);
        int client = atoi(text(lease, "holder_id") + 4);
        assert_in_range(resource, 0, RESOURCES - 1);
        assert_in_range(client, 0, CLIENTS - 1);
        assert_true(number(lease, "has") == 3 && number(lease, "wants") == 3);
        assert_true(number(lease, "committed") == 3 && number(lease, "expires_in") > 0);
        found->visits[resource][client]++;
        found->count++;
        found->last_resource = resource;
    }
    found->part_count++;
    snprintf(found->next, sizeof found->next, "%s", find(tree, "next") ? text(tree, "next") : "");
    cJSON_Delete(tree);
    free(response);
}

/* Fails unless each lease was found once. Ignores the leases of the resource `except`. */
static void expect_one_visit(const struct found *found, int except) {
    for (int resource = 0; resource < RESOURCES; resource++) {
        for (int client = 0; client < CLIENTS && resource != except; client++) {
            assert_int_equal(found->visits[resource][client], 1);
        }
    }
}

TEST(a_client_is_found_over_all_resources) {
    struct fixture fixture = fixture_start(TEMPLATE(""), NULL);
    request_all(&fixture);
    static const struct {
        const char *query;
        int count;
    } rows[] = {{"client=web-", RESOURCES * CLIENTS},
                {"client=web-2", RESOURCES},
                {"client=web-22", 0},
                {"client=Web-", 0},
                {"client=eb-", 0},
                {"client=web-&limit=1000", RESOURCES * CLIENTS}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct found found = {.count = 0};
        search(&found, &fixture, rows[i].query);
        assert_int_equal(found.count, rows[i].count);
        assert_int_equal(found.next[0], 0);
    }
    for (int limit = 1; limit <= 7; limit++) {
        struct found found = {.count = 0};
        char query[64];
        snprintf(query, sizeof query, "client=web-&limit=%d", limit);
        do {
            search(&found, &fixture, query);
            assert_true(found.count <= limit * found.part_count && found.part_count <= 100);
        } while (found.next[0]);
        assert_int_equal(found.count, RESOURCES * CLIENTS);
        expect_one_visit(&found, -1);
    }
    server_stop(&fixture.server);
}

/* All holders of a resource leave after a part of the search has stopped within this resource. */
TEST(a_search_skips_no_lease_when_a_resource_disappears) {
    struct fixture fixture = fixture_start(TEMPLATE(""), NULL);
    request_all(&fixture);
    struct found found = {.count = 0};
    search(&found, &fixture, "client=web-&limit=1");
    int gone = found.last_resource;
    for (int client = 0; client < CLIENTS; client++) {
        char body[256];
        snprintf(body, sizeof body,
                 "{\"client_id\": \"web-%d\", \"resource\": [{\"resource_id\": \"r%d\", \"id\": "
                 "%.0f}]}",
                 client, gone, request_one(&fixture, gone, client));
        expect_post(&fixture, "/v1/release_capacity", HOST JSON, body, 200, "{}");
    }
    for (int part = 0; found.next[0] && part < 100; part++) {
        search(&found, &fixture, "client=web-&limit=1");
    }
    assert_int_equal(found.next[0], 0);
    expect_one_visit(&found, gone);
    assert_int_equal(found.count, 1 + (RESOURCES - 1) * CLIENTS);
    server_stop(&fixture.server);
}

TEST(a_wrong_search_says_what_is_wrong) {
    struct fixture fixture = fixture_start(TEMPLATE(""), NULL);
    struct fixture other = fixture_start(TEMPLATE(""), NULL);
    struct found found = {.count = 0};
    char path[512];
    request_all(&fixture);
    search(&found, &fixture, "client=web-&limit=1");
    snprintf(path, sizeof path, "/v1/status?client=web-&after=%s", found.next);
    expect(&other, path, HOST, 400, "after: is not a position of this process");
    snprintf(path, sizeof path, "/clients?client=web-&after=%s", found.next);
    expect(&fixture, path, HOST, 200, "17 leases.");
    expect(&other, path, HOST, 404, "not from the running process");
    const char *const wrong[] = {"", "1", "1-2-3", "1-2-3-", "1-2-3-4", "x-2-3-4", "-----"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(path, sizeof path, "/v1/status?client=web-&after=%s", wrong[i]);
        expect(&fixture, path, HOST, 400, "after: is not a position of this process");
    }
    const char *const limits[] = {"", "0", "1001", "-1", "1x"};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        snprintf(path, sizeof path, "/v1/status?client=web-&limit=%s", limits[i]);
        expect(&fixture, path, HOST, 400, "limit: must be an integer from 1 to 1000");
    }
    expect(&fixture, "/v1/status?client=", HOST, 400, "client: must be the start of");
    server_stop(&other.server);
    server_stop(&fixture.server);
}

TEST(the_page_finds_a_client) {
    struct fixture fixture = fixture_start(TEMPLATE(""), NULL);
    request_all(&fixture);
    expect(&fixture, "/", HOST, 200, "<form action='/clients' role=search><input name=client ");
    expect(&fixture, "/clients", HOST, 200, "Give the start of a client id");
    expect(&fixture, "/clients?client=web-2", HOST, 200, "value=\"web-2\"");
    expect(&fixture, "/clients?client=web-2", HOST, 200,
           "<a href=\"/resources?resource=r5&amp;filter=web-2\">r5</a>");
    expect(&fixture, "/clients?client=web-2", HOST, 200, ">6 leases.");
    expect(&fixture, "/clients?client=none", HOST, 200, ">0 leases.");
    const char *const hostile = "/clients?client=%22%3E%3Cscript%3Ealert(1)%3C/script%3E";
    expect(&fixture, hostile, HOST, 200, "value=\"" HOSTILE_HTML "\"");
    expect(&fixture, hostile, HOST, 200, ">" HOSTILE_HTML "</a>");
    expect(&fixture, hostile, HOST, 200, "<div class=holder>" HOSTILE_HTML "</div>");
    expect_no_script(&fixture, hostile);
    server_stop(&fixture.server);
}

/* With the limit 1, a part of a search takes at most 5,000 steps. It needs a step to enter a
 * resource, one for each lease, and one to leave the resource. So the search for the only match
 * among 6,000 leases has three or four parts, and most of them have no lease. */
TEST(a_search_visits_a_bounded_number_of_leases) {
    enum { EACH = 500, LEASES = 6000 };
    struct fixture fixture = fixture_start(TEMPLATE(""), NULL);
    char *body = (char *)malloc((size_t)EACH * 64 + 256);
    assert_non_null(body);
    for (int i = 0; i < LEASES; i += EACH) {
        int bytes = sprintf(body, "{\"client_id\": \"other\", \"resource\": [");
        for (int k = i; k < i + EACH; k++) {
            bytes += sprintf(body + bytes, "%s{\"resource_id\": \"x%05d\", \"wants\": 0}",
                             k > i ? "," : "", k);
        }
        sprintf(body + bytes, "]}");
        request_capacity(&fixture, body);
    }
    free(body);
    request_capacity(&fixture, CAPACITY_REQUEST("web-1", "r1", "3"));
    struct found found = {.count = 0};
    do {
        search(&found, &fixture, "client=web-&limit=1");
    } while (found.next[0] && found.part_count < 100);
    assert_int_equal(found.count, 1);
    assert_int_equal(found.next[0], 0);
    assert_in_range(found.part_count, 3, 4);
    server_stop(&fixture.server);
}

/* S10: two servers without an election use one node name. The root says so, and tells both
 * servers. */
TEST(two_nodes_of_one_name_are_told_and_shown) {
    static const char config[] =
        "{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 100, \"algorithm\": "
        "{\"kind\": \"FAIR_SHARE\", \"lease_length\": 600, \"refresh_interval\": 0.5, "
        "\"learning_mode_duration\": 0, \"parameters\": [{\"name\": \"minimum_interval\", "
        "\"value\": 0.1}, {\"name\": \"minimum_refresh_interval\", \"value\": 0.1}]}}]}";
    static const char metric[] = "\ndoorman_server_shared_id_requests_total{holder=\"client\"} 0\n"
                                 "doorman_server_shared_id_requests_total{holder=\"server\"} ";
    struct fixture root = fixture_start(config, (const char *[]){"--node", "root", NULL});
    struct fixture one = leaf_start(root.server.url), two = leaf_start(root.server.url);
    request_capacity(&one, CAPACITY_REQUEST("a", "db", "30"));
    request_capacity(&two, CAPACITY_REQUEST("b", "db", "30"));
    process_await(root.server.process,
                  "share\" count=1 resource=db holder=leaf kind=server peer=127.0.0.1:", 1);
    await_text(&root, "/resources?resource=db", "used by two processes</span>");
    expect(&root, "/metrics", HOST, 200, metric);
    process_await(one.server.process, "another process uses the name of this node too", 1);
    process_await(two.server.process, "another process uses the name of this node too", 1);
    await_text(&one, "/", "another process uses it too, says the parent");
    await_text(&two, "/v1/status", "\"shared_node\":true}");
    server_stop(&two.server);
    server_stop(&one.server);
    server_stop(&root.server);
}
