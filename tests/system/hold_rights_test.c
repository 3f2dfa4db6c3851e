/* Who may do what with a hold (P8, P11, P16, P19), at a real server, over nng and HTTP. Each test
 * runs once with each transport. Most tests use a limit of 2 units. */
#define _GNU_SOURCE
#include "http.h"

#define TEMPLATE(glob, limit, on_restart)                                                          \
    "{\"identifier_glob\": \"" glob "\", \"limits\": [{\"name\": \"slots\", \"per\": "             \
    "\"resource\", \"kind\": \"CONCURRENCY\", \"limit\": " limit ", \"max_wait\": 600, "           \
    "\"queue\": 9, \"time_to_live\": 600, \"on_restart\": \"" on_restart "\"}]}"
#define CONFIG_OF(limit)                                                                           \
    "{\"resources\": [" TEMPLATE("slots", limit, "full") ", " TEMPLATE(                            \
        "learned", limit, "learn") ", " TEMPLATE("many", "1e6", "full") "]}"
#define HOLD_MAX 10000 /* of a client */
#define BATCH 100      /* permits in a message */

/* A server, and how the requests of a test reach it. */
struct site {
    struct fixture fixture;
    bool over_http;
    cJSON *response; /* the last one, without the name of the method */
};

static struct site site_start(bool over_http) {
    return (struct site){.fixture = fixture_start(CONFIG_OF("2"), NULL), .over_http = over_http};
}

static void site_stop(struct site *site) {
    cJSON_Delete(site->response);
    server_stop(&site->fixture.server);
}

static void request(struct site *site, const char *method, const char *body) {
    cJSON_Delete(site->response);
    if (site->over_http) {
        char path[32];
        snprintf(path, sizeof path, "/v1/%s", method);
        char *response = post(&site->fixture, path, HOST JSON, body);
        site->response = cJSON_Parse(body_of(response));
        free(response);
    } else {
        size_t bytes = strlen(body) + 64;
        char *message = (char *)malloc(bytes);
        assert_non_null(message);
        snprintf(message, bytes, "{\"%s\": %s}", method, body);
        cJSON *response = send_request(&site->fixture.server, message);
        site->response = cJSON_DetachItemFromObject(response, method);
        cJSON_Delete(response);
        free(message);
    }
    assert_non_null(site->response);
}

/* Sends a request with one entry. Returns whether the hold or transfer in this entry exists. */
static bool entry(struct site *site, const char *method, const char *client, const char *name,
                  double id, const char *more) {
    char body[512];
    snprintf(body, sizeof body, "{\"client_id\": \"%s\", \"entry\": [{\"%s\": %.0f%s}]}", client,
             name, id, more);
    request(site, method, body);
    return !find(site->response, "entry[0].gone");
}

/* Acquires without a wait. Returns the id of the hold, or 0. */
static double acquire(struct site *site, const char *client, int request_id, int cost,
                      const char *more) {
    char body[512];
    snprintf(body, sizeof body,
             "{\"client_id\": \"%s\", \"permit\": [{\"request_id\": %d%s, \"item\": "
             "[{\"resource_id\": \"slots\", \"cost\": %d}]}]}",
             client, request_id, more, cost);
    request(site, "acquire", body);
    const cJSON *id = find(site->response, "permit[0].hold.id");
    return id ? id->valuedouble : 0;
}

/* Checks that this number of units is free, and not one more. */
static void expect_free(struct site *site, int units) {
    static int request_id;
    assert_true(acquire(site, "probe", ++request_id, units + 1, "") == 0);
    if (units == 0) return;
    double id = acquire(site, "probe", ++request_id, units, "");
    assert_true(id > 0);
    assert_true(entry(site, "release", "probe", "id", id, ""));
}

static void await_free(struct site *site) {
    double id = 0;
    for (int waited = 0; id == 0; waited += 10) {
        assert_true(waited < TIMEOUT_MS);
        id = acquire(site, "probe", 1000000, 2, "");
        if (id == 0) sleep_ms(10);
    }
    assert_true(entry(site, "release", "probe", "id", id, ""));
}

/* Waits until the server refuses a unit, because the limit was lowered to 0. */
static void await_refusal(struct site *site) {
    double id = 1;
    for (int waited = 0; id > 0; waited += 10) {
        assert_true(waited < TIMEOUT_MS);
        id = acquire(site, "probe", 2000000, 1, "");
        if (id > 0) assert_true(entry(site, "release", "probe", "id", id, ""));
        if (id > 0) sleep_ms(10);
    }
}

TEST(nobody_can_use_the_hold_of_another_client) {
    for (int i = 0; i < 2; i++) {
        struct site site = site_start(i);
        double id = acquire(&site, "ann", 1, 2, "");
        assert_false(entry(&site, "release", "bob", "id", id, ""));
        assert_false(entry(&site, "release", "bob", "request_id", 1, ""));
        assert_false(entry(&site, "renew", "bob", "id", id, ""));
        assert_false(entry(&site, "renew", "bob", "id", id,
                           ", \"item\": [{\"resource_id\": \"slots\", \"amount\": 2}]"));
        assert_false(entry(&site, "transfer", "bob", "id", id, ", \"request_id\": 2"));
        assert_false(entry(&site, "seize", "bob", "transfer_id", id, ", \"request_id\": 3"));
        expect_free(&site, 0);
        assert_true(entry(&site, "renew", "ann", "id", id, ""));
        assert_true(number(site.response, "entry[0].amount[0]") == 2);
        site_stop(&site);
    }
}

TEST(a_release_never_keeps_more_than_is_held) {
    for (int i = 0; i < 2; i++) {
        struct site site = site_start(i);
        double id = acquire(&site, "ann", 1, 1, "");
        assert_true(entry(&site, "release", "ann", "id", id, ", \"keep\": [1e15]"));
        assert_true(number(site.response, "entry[0].amount[0]") == 1);
        expect_free(&site, 1);
        assert_true(entry(&site, "release", "ann", "id", id, ""));
        assert_false(entry(&site, "release", "ann", "id", id, "")); /* it was released before */
        assert_false(entry(&site, "release", "ann", "id", id, ", \"keep\": [1]"));
        expect_free(&site, 2);
        site_stop(&site);
    }
}

/* The units belong to another client when the release arrives. */
TEST(a_late_release_frees_nothing) {
    for (int i = 0; i < 2; i++) {
        struct site site = site_start(i);
        double ended = acquire(&site, "ann", 1, 2, ", \"time_to_live\": 0.001");
        assert_true(ended > 0);
        await_free(&site);
        assert_true(acquire(&site, "bob", 1, 2, "") > 0);
        assert_false(entry(&site, "release", "ann", "id", ended, ""));
        assert_false(entry(&site, "release", "ann", "request_id", 1, ""));
        assert_false(entry(&site, "renew", "ann", "id", ended, ""));
        assert_false(entry(&site, "transfer", "ann", "id", ended, ", \"request_id\": 2"));
        expect_free(&site, 0);
        site_stop(&site);
    }
}

TEST(a_transfer_is_seized_once) {
    for (int i = 0; i < 2; i++) {
        struct site site = site_start(i);
        double id = acquire(&site, "ann", 1, 2, "");
        assert_true(
            entry(&site, "transfer", "ann", "id", id, ", \"request_id\": 2, \"amount\": [1]"));
        double moved = number(site.response, "entry[0].transfer_id");
        assert_false(entry(&site, "release", "ann", "id", moved, ""));
        expect_free(&site, 0);
        assert_true(entry(&site, "seize", "bob", "transfer_id", moved, ", \"request_id\": 1"));
        double seized = number(site.response, "entry[0].id");
        assert_true(number(site.response, "entry[0].item[0].amount") == 1);
        assert_false(entry(&site, "seize", "cyd", "transfer_id", moved, ", \"request_id\": 1"));
        assert_false(entry(&site, "seize", "ann", "transfer_id", moved, ", \"request_id\": 3"));
        assert_true(entry(&site, "seize", "bob", "transfer_id", moved, ", \"request_id\": 1"));
        assert_true(number(site.response, "entry[0].id") == seized); /* a repeat */
        expect_free(&site, 0);
        site_stop(&site);
    }
}

TEST(a_transfer_can_be_seized_by_its_own_client_and_not_after_its_end) {
    for (int i = 0; i < 2; i++) {
        struct site site = site_start(i);
        double id = acquire(&site, "ann", 1, 2, "");
        assert_true(entry(&site, "transfer", "ann", "id", id, ", \"request_id\": 2"));
        double moved = number(site.response, "entry[0].transfer_id");
        assert_true(entry(&site, "seize", "ann", "transfer_id", moved, ", \"request_id\": 3"));
        id = number(site.response, "entry[0].id");
        expect_free(&site, 0);
        assert_true(entry(&site, "transfer", "ann", "id", id,
                          ", \"request_id\": 4, \"time_to_live\": 0.001"));
        moved = number(site.response, "entry[0].transfer_id");
        await_free(&site);
        assert_false(entry(&site, "seize", "ann", "transfer_id", moved, ", \"request_id\": 5"));
        assert_false(entry(&site, "seize", "bob", "transfer_id", moved, ", \"request_id\": 1"));
        expect_free(&site, 2);
        site_stop(&site);
    }
}

/* A client may claim what it held before a change of master. */
TEST(claims_are_believed_up_to_the_limit) {
    for (int i = 0; i < 2; i++) {
        struct site site = site_start(i);
        const char *claims[] = {"1", "1e15", "1"};
        for (int j = 0; j < 3; j++) {
            char item[128];
            snprintf(item, sizeof item,
                     ", \"item\": [{\"resource_id\": \"learned\", \"amount\": %s}]", claims[j]);
            bool known = entry(&site, "renew", "ann", "id", 100 + j, item);
            assert_int_equal(known, j < 2);
            if (known) assert_true(number(site.response, "entry[0].amount[0]") == 1);
        }
        site_stop(&site);
    }
}

/* Acquires many holds with one message. Returns how many are granted. */
static int acquire_batch(struct site *site, int first) {
    static char body[BATCH * 80 + 100];
    int bytes = snprintf(body, sizeof body, "{\"client_id\": \"ann\", \"permit\": [");
    for (int i = 0; i < BATCH; i++) {
        bytes += snprintf(body + bytes, sizeof body - (size_t)bytes,
                          "%s{\"request_id\": %d, \"item\": [{\"resource_id\": \"many\"}]}",
                          i ? ", " : "", first + i);
    }
    snprintf(body + bytes, sizeof body - (size_t)bytes, "]}");
    request(site, "acquire", body);
    int granted = 0;
    for (int i = 0; i < BATCH; i++) {
        char path[64];
        snprintf(path, sizeof path, "permit[%d].hold", i);
        granted += find(site->response, path) != NULL;
    }
    return granted;
}

TEST(a_client_has_at_most_ten_thousand_holds) {
    for (int i = 0; i < 2; i++) {
        struct site site = site_start(i);
        for (int first = 1; first <= HOLD_MAX; first += BATCH) {
            assert_int_equal(acquire_batch(&site, first), BATCH);
        }
        assert_int_equal(acquire_batch(&site, HOLD_MAX + 1), 0);
        assert_string_equal(text(site.response, "permit[0].reason"), "MAX_HOLDS");
        assert_true(acquire(&site, "bob", 1, 1, "") > 0);
        assert_true(entry(&site, "release", "ann", "request_id", 1, ""));
        assert_int_equal(acquire_batch(&site, HOLD_MAX + 1), 1);
        site_stop(&site);
    }
}

/* P15. What is held stays held, and nothing more is granted. */
TEST(a_limit_that_is_lowered_to_0_keeps_its_holds) {
    for (int i = 0; i < 2; i++) {
        struct site site = site_start(i);
        const struct process *process = site.fixture.server.process;
        double id = acquire(&site, "ann", 1, 1, "");
        config_replace(process, CONFIG_OF("0"));
        process_signal(site.fixture.server.process, SIGHUP);
        await_refusal(&site);
        assert_true(entry(&site, "renew", "ann", "id", id, ""));
        assert_true(number(site.response, "entry[0].amount[0]") == 1);
        assert_true(entry(&site, "release", "ann", "id", id, ""));
        assert_true(acquire(&site, "bob", 1, 1, "") == 0);
        config_replace(process, CONFIG_OF("2"));
        process_signal(site.fixture.server.process, SIGHUP);
        await_free(&site);
        site_stop(&site);
    }
}
