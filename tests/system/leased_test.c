/* Leased limits of permits (P17) in real processes: a root and a child decide on permits, and an
 * agent has a lease, all out of one capacity. In any time t all their grants together are at most
 * capacity * (t + burst), as L1 promises, apart from rounding. A slow machine makes t longer, so it
 * cannot break this bound. Nothing else is asserted about time. */
#define _GNU_SOURCE
#include "harness.h"

#define DOORMAN_JSON
#define DOORMAN_NNG
#include "../../doorman.h"

#define CAPACITY 200.0
#define LIMITS                                                                                     \
    "\"limits\": [{\"name\": \"share\", \"per\": \"resource\", \"kind\": \"TOKEN_BUCKET\", "       \
    "\"rate\": \"leased\"}]"
#define ROOT                                                                                       \
    "{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 200, \"algorithm\": "            \
    "{\"kind\": \"FAIR_SHARE\", \"lease_length\": 20, \"refresh_interval\": 2, "                   \
    "\"learning_mode_duration\": 0}, " LIMITS "}]}"
#define LEAF "{\"resources\": [{\"identifier_glob\": \"db\", " LIMITS "}]}"

enum { ITEMS = 20, ENOUGH = 1000 };

/* Asks for permits of one unit. Returns how many were granted. */
static double acquire(const struct server *server) {
    char message[2048], path[64];
    size_t used = (size_t)snprintf(message, sizeof message,
                                   "{\"acquire\": {\"client_id\": \"web\", \"permit\": [");
    for (int i = 0; i < ITEMS; i++) {
        used += (size_t)snprintf(message + used, sizeof message - used,
                                 "%s{\"item\": [{\"resource_id\": \"db\"}]}", i ? "," : "");
    }
    snprintf(message + used, sizeof message - used, "]}}");
    cJSON *response = send_request(server, message);
    double granted = 0;
    for (int i = 0; i < ITEMS; i++) {
        snprintf(path, sizeof path, "acquire.permit[%d].decision", i);
        granted += strcmp(text(response, path), "GRANTED") == 0;
    }
    cJSON_Delete(response);
    return granted;
}

TEST(leases_and_permits_of_two_nodes_share_one_capacity) {
    struct server root = server_start(ROOT, (const char *[]){"--node", "root", NULL});
    const char *const child[] = {"--parent", root.url, "--node", "leaf", NULL};
    struct server leaf = server_start(LEAF, child);
    const char *const addresses[] = {root.url};
    const doorman_client_options options = {.addresses = addresses, .address_count = 1};
    const doorman_resource_options db = {.resource_id = "db", .fallback = DOORMAN_PESSIMISTIC};
    doorman_agent *agent = NULL;
    doorman_resource *resource = NULL;
    assert_int_equal(doorman_agent_start(&agent, &options, NULL), DOORMAN_OK);
    assert_int_equal(doorman_resource_open(&resource, agent, &db, NULL), DOORMAN_OK);
    const doorman_time start = doorman_clock();
    double granted[3] = {0};
    bool enough = false;
    for (int round = 0; !enough; round++) {
        granted[0] += acquire(&root);
        granted[1] += acquire(&leaf);
        for (int i = 0; i < ITEMS; i++) {
            granted[2] += doorman_resource_try(resource, 1, NULL) == DOORMAN_ALLOWED;
        }
        const double seconds = (double)(doorman_clock() - start) / 1e9;
        const double sum = granted[0] + granted[1] + granted[2];
        /* a burst of 0.1 s, and one unit that each of the three limiters may round up */
        const double most = CAPACITY * (seconds + 0.1) + 3;
        if (sum > most) fail_msg("%g units in %g s, at most %g", sum, seconds, most);
        enough = sum >= ENOUGH && granted[0] >= 50 && granted[1] >= 50 && granted[2] >= 50;
        assert_true(seconds < 10.0 * TIMEOUT_MS / 1000);
        sleep_ms(10);
    }
    print_message("granted by the root %g, by the leaf %g, by the agent %g\n", granted[0],
                  granted[1], granted[2]);
    assert_int_equal(doorman_resource_close(resource), DOORMAN_OK);
    assert_int_equal(doorman_agent_stop(agent), DOORMAN_OK);
    server_stop(&leaf);
    server_stop(&root);
}

/* On a root, a template must match the resource that `lease_of` names. A node with a parent needs
 * no such template, because its parent grants the capacity. */
TEST(check_config_names_a_wrong_lease) {
    struct process *process = process_new();
    const char *const arguments[] = {"--config", process->config, "--check-config", NULL};
    file_write(process->config,
               "{\"resources\": [{\"identifier_glob\": \"db\", \"capacity\": 1},\n"
               "{\"identifier_glob\": \"api\", \"limits\": [{\"name\": \"share\", \"per\": "
               "\"resource\", \"kind\": \"TOKEN_BUCKET\", \"rate\": \"leased\", \"lease_of\": "
               "\"cache\"}]}]}");
    assert_int_not_equal(process_run(process, arguments, NULL), 0);
    assert_true(process_logged(process, ":2:") > 0);
    assert_true(process_logged(process, "resources[1].limits[0].lease_of: no template matches") >
                0);
}
