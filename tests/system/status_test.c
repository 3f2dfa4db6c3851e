/* Tests how JSON, the pages and the metrics show the leases of a resource, and what is committed
 * for each holder. */
#define _GNU_SOURCE
#include "http.h"

#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman.h"

static void request_for(const struct fixture *fixture, int client, const char *wants) {
    char body[256];
    snprintf(body, sizeof body, CAPACITY_REQUEST("c%03d", "db", "%s"), client, wants);
    request_capacity(fixture, body);
}

/* Reads the status with a query, which must succeed. The caller deletes the result. */
static cJSON *read_status(const struct fixture *fixture, const char *query) {
    char path[512];
    snprintf(path, sizeof path, "/v1/status?%s", query);
    char *response = get(fixture, path, HOST);
    if (code_of(response) != 200) fail_msg("%s: %s", path, response);
    cJSON *tree = cJSON_Parse(body_of(response));
    assert_non_null(tree);
    free(response);
    return tree;
}

/* S14: the page, the search and the status say why a lease is less than its holder wants. A lease
 * that is as large as its holder wants has no reason. */
TEST(a_lease_below_the_wants_is_shown_with_its_reason) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    request_for(&fixture, 1, "100");
    request_for(&fixture, 2, "50");
    cJSON *tree = read_status(&fixture, "resource=db&filter=c001");
    assert_null(find(tree, "leases[0].reason"));
    assert_null(find(tree, "resource.lease_reason")); /* a root has no lease of its own */
    cJSON_Delete(tree);
    tree = read_status(&fixture, "resource=db&filter=c002");
    assert_string_equal(text(tree, "leases[0].reason"), "RESERVED");
    assert_true(number(tree, "leases[0].has") == 0);
    cJSON_Delete(tree);
    tree = read_status(&fixture, "client=c002");
    assert_string_equal(text(tree, "leases[0].reason"), "RESERVED");
    cJSON_Delete(tree);
    expect(&fixture, "/resources?resource=db&filter=c002", HOST, 200,
           "data-name=reason><span title='the share of the holder is larger");
    expect(&fixture, "/resources?resource=db&filter=c002", HOST, 200, "'>RESERVED</span></td>");
    expect(&fixture, "/resources?resource=db&filter=c001", HOST, 200, "data-name=reason></td>");
    expect(&fixture, "/clients?client=c002", HOST, 200, "'>RESERVED</span></td>");
    char *page = get(&fixture, "/resources?resource=db&sort=reason", HOST);
    const char *first = strstr(page, "<td>c002</td>"), *second = strstr(page, "<td>c001</td>");
    assert_true(first && second && first < second);
    free(page);
    server_stop(&fixture.server);
}

enum { CLIENTS = 250 };

/* The leases that a test has read from several pages. */
struct leases {
    int visits[CLIENTS], count, page_count;
    double committed;
    char next[64]; /* "": there are no more pages */
};

static void read_page(struct leases *leases, const struct fixture *fixture, const char *query) {
    cJSON *tree = read_status(fixture, query);
    const cJSON *lease;
    cJSON_ArrayForEach(lease, find(tree, "leases")) {
        int client = atoi(text(lease, "holder_id") + 1);
        assert_in_range(client, 0, CLIENTS - 1);
        leases->visits[client]++;
        leases->count++;
        leases->committed += number(lease, "committed");
    }
    leases->page_count++;
    snprintf(leases->next, sizeof leases->next, "%s", find(tree, "next") ? text(tree, "next") : "");
    cJSON_Delete(tree);
}

/* Each lease appears on exactly one page. A lease that is granted after the first page was read
 * appears on at most one page. */
TEST(the_leases_of_a_resource_are_listed_in_pages) {
    struct fixture fixture = fixture_start(CONFIG("1000000", ""), NULL);
    for (int i = 0; i < 200; i++) request_for(&fixture, i, "3");
    struct leases leases = {.count = 0};
    read_page(&leases, &fixture, "resource=db&limit=60");
    assert_int_equal(leases.count, 60);
    for (int i = 200; i < CLIENTS; i++) request_for(&fixture, i, "3");
    while (leases.next[0] && leases.page_count < 10) {
        char query[128];
        snprintf(query, sizeof query, "resource=db&limit=60&after=%s", leases.next);
        read_page(&leases, &fixture, query);
    }
    assert_int_equal(leases.next[0], 0);
    for (int i = 0; i < CLIENTS; i++) assert_true(leases.visits[i] == 1 || i >= 200);
    for (int i = 200; i < CLIENTS; i++) assert_true(leases.visits[i] <= 1);
    assert_true(leases.committed == 3 * leases.count);
    server_stop(&fixture.server);
}

/* Without `limit` a page has at most 1,000 leases. The last page never has a `next`. */
TEST(a_page_that_has_all_leases_is_the_last) {
    struct fixture fixture = fixture_start(CONFIG("1000000", ""), NULL);
    for (int i = 0; i < CLIENTS; i++) request_for(&fixture, i, "3");
    const char *const queries[] = {"resource=db", "resource=db&limit=250", "resource=db&limit=5000",
                                   "resource=db&limit=10&filter=c24"};
    for (size_t i = 0; i < sizeof queries / sizeof *queries; i++) {
        struct leases leases = {.count = 0};
        read_page(&leases, &fixture, queries[i]);
        assert_int_equal(leases.count, i < 3 ? CLIENTS : 10);
        assert_int_equal(leases.next[0], 0);
    }
    struct leases nine = {.count = 0};
    read_page(&nine, &fixture, "resource=db&limit=9&filter=c24");
    assert_true(nine.count == 9 && nine.next[0]);
    server_stop(&fixture.server);
}

/* Each process lists the leases in an order of its own. So a position of another process would skip
 * leases. */
TEST(a_position_of_another_process_is_refused) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    for (int i = 0; i < 3; i++) request_for(&fixture, i, "3");
    struct leases leases = {.count = 0};
    read_page(&leases, &fixture, "resource=db&limit=1");
    struct fixture other = fixture_start(CONFIG("100", ""), NULL);
    for (int i = 0; i < 3; i++) request_for(&other, i, "3");
    char path[256];
    snprintf(path, sizeof path, "/v1/status?resource=db&after=%s", leases.next);
    expect(&fixture, path, HOST, 200, "\"holder_id\"");
    expect(&other, path, HOST, 400, "after: is not a position of this process");
    const char *const wrong[] = {"after=",   "after=0-0", "after=1",
                                 "after=1-", "after=x-1", "after=11111111111111111-1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(path, sizeof path, "/v1/status?resource=db&%s", wrong[i]);
        expect(&fixture, path, HOST, 400, "after: is not a position of this process");
    }
    const char *const limits[] = {"limit=", "limit=0", "limit=5001", "limit=-1", "limit=1x"};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        snprintf(path, sizeof path, "/v1/status?resource=db&%s", limits[i]);
        expect(&fixture, path, HOST, 400, "limit: must be an integer from 1 to 5000");
    }
    expect(&fixture, "/v1/status?resource=none", HOST, 404, "the resource has no holders");
    server_stop(&other.server);
    server_stop(&fixture.server);
}

TEST(a_process_that_is_not_master_has_no_leases) {
    const char *const more[] = {"--etcd", "http://127.0.0.1:1", "--election-key", "/k", NULL};
    struct fixture fixture = fixture_start(CONFIG("100", ""), more);
    expect(&fixture, "/v1/status?resource=db", HOST, 404, "this process is not the master");
    server_stop(&fixture.server);
}

/* If a client never names its last lease, the server keeps the client's first lease committed. */
TEST(a_holder_that_never_confirms_is_shown) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    request_for(&fixture, 1, "100");
    request_for(&fixture, 2, "50");
    cJSON *tree = read_status(&fixture, "resource=db&filter=c001");
    assert_true(cJSON_IsFalse(find(tree, "leases[0].unconfirmed")));
    cJSON_Delete(tree);
    for (int i = 0; i < 3; i++) request_for(&fixture, 1, "100");
    tree = read_status(&fixture, "resource=db&filter=c001");
    assert_true(cJSON_IsTrue(find(tree, "leases[0].unconfirmed")));
    assert_memory_equal(text(tree, "leases[0].peer"), "127.0.0.1:", 10);
    assert_null(find(tree, "leases[0].other_peer"));
    assert_null(find(tree, "leases[0].token"));
    assert_true(number(tree, "leases[0].has") == 50);
    assert_true(number(tree, "leases[0].committed") == 100);
    assert_true(number(tree, "leases[0].wants") == 100);
    assert_true(number(tree, "leases[0].subclients") == 1);
    assert_true(number(tree, "leases[0].expires_in") > 0);
    assert_true(number(tree, "leases[0].renewed_ago") >= 0);
    assert_true(number(tree, "resource.committed") == 100);
    assert_true(number(tree, "resource.unconfirmed_holders") == 1);
    assert_true(number(tree, "resource.holders") == 2);
    cJSON_Delete(tree);
    expect(&fixture, "/v1/status", HOST, 200, "\"committed\":100");
    assert_true(metric(&fixture, "doorman_resource_committed{resource=\"db\"}") == 100);
    assert_true(metric(&fixture, "doorman_resource_unconfirmed_holders{resource=\"db\"}") == 1);
    expect(&fixture, "/", HOST, 200, "1 holder does not confirm");
    expect(&fixture, "/", HOST, 200, "2 holders</span>, 2 subclients &middot; ");
    expect(&fixture, "/", HOST, 200, ">committed 100</span>");
    process_await(fixture.server.process, " holder=c001 peer=127.0.0.1:", 1);
    expect(&fixture, "/resources?resource=db&filter=c001", HOST, 200,
           "does not confirm</span> <span class=soft>from 127.0.0.1:");
    expect(&fixture, "/resources?resource=db", HOST, 200, "data-name=committed>100<");
    char *page = get(&fixture, "/resources?resource=db&filter=c002", HOST);
    assert_null(strstr(page, "does not confirm</span></td>"));
    free(page);
    server_stop(&fixture.server);
}

/* Renews the lease of a client, which names its last lease. Returns the id of the new lease.
 *   id   0: the client has no lease */
static double renew(const struct fixture *fixture, double id, double has) {
    char body[300];
    snprintf(body, sizeof body,
             "{\"client_id\": \"renews\", \"resource\": [{\"resource_id\": \"db\", \"wants\": 100, "
             "\"has\": {\"id\": %.0f, \"node\": \"n\", \"capacity\": %g, \"expires_in\": 60}}]}",
             id, has);
    if (id <= 0) snprintf(body, sizeof body, "%s", CAPACITY_REQUEST("renews", "db", "100"));
    char *response = post(fixture, "/v1/get_capacity", HOST JSON, body);
    cJSON *tree = cJSON_Parse(body_of(response));
    double next = number(tree, "response[0].gets.id");
    cJSON_Delete(tree);
    free(response);
    return next;
}

static void await_page(const struct fixture *fixture, const char *path, const char *expected) {
    bool found = false;
    for (int waited = 0; waited < TIMEOUT_MS && !found; waited += 50) {
        char *page = get(fixture, path, HOST);
        found = strstr(page, expected) != NULL;
        free(page);
        if (!found) sleep_ms(50);
    }
    if (!found) fail_msg("%s: no %s", path, expected);
}

/* The client "renews" has all, so another client that asks once gets nothing. Then the first client
 * gives half back. This half stays reserved for the other client, which does not fetch it. */
TEST(the_share_of_a_client_that_asks_once_is_shown_as_reserved) {
    static const char config[] =
        "{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 100, \"algorithm\": "
        "{\"kind\": \"FAIR_SHARE\", \"lease_length\": 600, \"refresh_interval\": 0.1, "
        "\"learning_mode_duration\": 0}}]}";
    struct fixture fixture = fixture_start(config, (const char *[]){"--node", "n", NULL});
    double id = renew(&fixture, 0, 0);
    request_for(&fixture, 1, "100");
    assert_true(metric(&fixture, "doorman_resource_reserved{resource=\"db\"}") == 0);
    id = renew(&fixture, id, 100);
    (void)renew(&fixture, id, 50);
    assert_true(metric(&fixture, "doorman_resource_committed{resource=\"db\"}") == 50);
    assert_true(metric(&fixture, "doorman_resource_reserved{resource=\"db\"}") == 50);
    expect(&fixture, "/v1/status", HOST, 200, "\"reserved\":50,");
    expect(&fixture, "/", HOST, 200, ">reserved 50</span>");
    await_page(&fixture, "/resources?resource=db&filter=c001", "'>late</span></span>");
    expect(&fixture, "/v1/status?resource=db&filter=c001", HOST, 200, "\"late\":true,");
    server_stop(&fixture.server);
}

/* The refresh interval is 5 s, so the client is not late yet. */
TEST(a_client_that_has_just_asked_is_not_late) {
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    request_for(&fixture, 1, "1");
    expect(&fixture, "/v1/status?resource=db", HOST, 200, "\"late\":false,");
    expect(&fixture, "/v1/status?client=c", HOST, 200, "\"late\":false,");
    expect(&fixture, "/v1/status", HOST, 200, "\"reserved\":0,");
    server_stop(&fixture.server);
}

/* A third of 200 units is printed with 12 digits. The sum of the printed leases is at most 200. */
TEST(the_status_has_no_digits_that_come_from_rounding) {
    struct fixture fixture = fixture_start(CONFIG("200", ""), NULL);
    for (int i = 0; i < 3; i++) request_for(&fixture, i, "0");
    for (int i = 0; i < 3; i++) request_for(&fixture, i, "150.1");
    for (int i = 0; i < 3; i++) request_for(&fixture, i, "150.1");
    char *response = get(&fixture, "/v1/status?resource=db", HOST);
    const char *list = strstr(response, "\"leases\"");
    assert_non_null(list);
    assert_non_null(strstr(list, "\"has\":66.6666666666,"));
    assert_null(strstr(list, "66.66666666666"));
    assert_non_null(strstr(list, "\"wants\":150.1,"));
    free(response);
    expect(&fixture, "/v1/status", HOST, 200, "\"wants\":450.3,");
    expect(&fixture, "/metrics", HOST, 200, "doorman_resource_wants{resource=\"db\"} 450.3\n");
    server_stop(&fixture.server);
}

static void await_metric(const struct fixture *fixture, const char *series, double value) {
    double now = -1;
    for (int waited = 0; waited < TIMEOUT_MS; waited += 50) {
        now = metric(fixture, series);
        if (now <= value && now >= value) return;
        sleep_ms(50);
    }
    fail_msg("%s is %g, expected %g", series, now, value);
}

/* A client of a leaf has a lease of 100. Then another client asks the root for 100, so the lease of
 * the leaf shrinks to 50. The first client does not renew, so the leaf has granted more than its
 * lease. With `confirmed` handover the root keeps the older lease committed for the leaf. */
static void a_leaf_whose_lease_shrinks(const char *handover, double overshoot) {
    char config[512], expected[64];
    snprintf(config, sizeof config,
             "{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 100, \"algorithm\": "
             "{\"kind\": \"FAIR_SHARE\", \"lease_length\": 600, \"refresh_interval\": 2, "
             "\"learning_mode_duration\": 0, \"parameters\": [{\"name\": \"handover\", "
             "\"value\": \"%s\"}]}}]}",
             handover);
    struct fixture root = fixture_start(config, (const char *[]){"--node", "root", NULL});
    struct fixture leaf = leaf_start(root.server.url);
    request_for(&leaf, 1, "100");
    await_metric(&leaf, "doorman_resource_capacity{resource=\"db\"}", 100);
    request_for(&leaf, 1, "100");
    assert_true(metric(&leaf, "doorman_resource_has{resource=\"db\"}") == 100);
    request_for(&root, 2, "100");
    await_metric(&leaf, "doorman_resource_capacity{resource=\"db\"}", 50);
    assert_true(metric(&leaf, "doorman_resource_has{resource=\"db\"}") == 100);
    assert_true(metric(&leaf, "doorman_resource_overshoot{resource=\"db\"}") == overshoot);
    snprintf(expected, sizeof expected, "\"overshoot\":%g,", overshoot);
    expect(&leaf, "/v1/status", HOST, 200, expected);
    expect(&leaf, "/v1/status", HOST, 200, ",\"lease_reason\":\"SHARE\"}"); /* S14 */
    expect(&leaf, "/resources?resource=db", HOST, 200, ", less than it wants: <span title='");
    char *page = get(&leaf, "/", HOST);
    bool marked = strstr(page, "'>over its capacity</span></span>") != NULL;
    assert_int_equal(marked, overshoot > 0);
    free(page);
    server_stop(&leaf.server);
    server_stop(&root.server);
}

TEST(a_leaf_reports_what_it_granted_beyond_what_it_may_have) {
    a_leaf_whose_lease_shrinks("confirmed", 0);
    a_leaf_whose_lease_shrinks("immediate", 50);
}
