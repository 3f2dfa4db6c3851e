/* doormanctl: shows which node decides for which keys, and moves shards between nodes. */
#include "ctl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SHARDS_LOOK_MICROSECONDS 200000
#define SHARDS_QUIET_SECONDS 2   /* between two lines about what is left */
#define SHARDS_WAIT_SECONDS 1800 /* until it is a failure */

static double shards_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Adds to each node a text about its master. */
static void shards_add_masters(cJSON *nodes) {
    cJSON *node = NULL;
    cJSON_ArrayForEach(node, nodes) {
        const cJSON *has_master = cJSON_GetObjectItemCaseSensitive(node, "has_master");
        const cJSON *answers = cJSON_GetObjectItemCaseSensitive(node, "answers");
        char text[CTL_NUMBER_BYTES + 32] = "not known", seconds[CTL_NUMBER_BYTES];
        if (cJSON_IsTrue(has_master)) {
            snprintf(text, sizeof text, "yes%s",
                     cJSON_IsFalse(answers) ? ", but did not answer" : "");
        } else if (cJSON_IsFalse(has_master)) {
            snprintf(text, sizeof text, "none for %s",
                     ctl_seconds(seconds, ctl_number(node, "without_master_seconds")));
        }
        ctl_need(cJSON_AddStringToObject(node, "master", text));
    }
}

/* Shows the nodes, and the shards that move. */
static void shards_show(struct ctl *ctl, const struct ctl_reply *reply) {
    static const struct ctl_column columns[] = {{"NODE", "name", CTL_TEXT},
                                                {"SHARDS", "shards", CTL_ID},
                                                {"MASTER", "master", CTL_TEXT},
                                                {.header = NULL}};
    static const struct ctl_column moves[] = {{"SHARD", "shard", CTL_ID},
                                              {"OWNER", "owner", CTL_TEXT},
                                              {"MOVES TO", "target", CTL_TEXT},
                                              {.header = NULL}};
    struct ctl_table table = {.columns = columns}, moving = {.columns = moves};
    cJSON *left = (cJSON *)ctl_need(cJSON_CreateArray());
    const cJSON *shard = NULL;
    cJSON_ArrayForEach(shard, cJSON_GetObjectItemCaseSensitive(reply->json, "shards")) {
        if (!ctl_text(shard, "target")[0]) continue;
        cJSON_AddItemToArray(left, (cJSON *)ctl_need(cJSON_Duplicate(shard, true)));
    }
    ctl_say("map %.0f, %.0f of %d shards move", ctl_number(reply->json, "epoch"),
            ctl_number(reply->json, "moving"),
            cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(reply->json, "shards")));
    cJSON *nodes = cJSON_GetObjectItemCaseSensitive(reply->json, "nodes");
    shards_add_masters(nodes);
    ctl_table_print(&table, nodes, ctl->has_color);
    if (cJSON_GetArraySize(left)) ctl_table_print(&moving, left, ctl->has_color);
    cJSON_Delete(left);
    const char *trouble = ctl_text(reply->json, "trouble");
    if (trouble[0]) ctl_say("trouble: %s", trouble);
}

static const struct ctl_request shards_request = {
    .path = "/v1/shards", .expects = "shards", .here = true};

enum ctl_exit ctl_run_shards(struct ctl *ctl, char *const words[]) {
    struct ctl_reply reply;
    (void)words;
    enum ctl_exit code = ctl_call(ctl, &shards_request, &reply);
    if (code == CTL_DONE && !ctl->json) shards_show(ctl, &reply);
    ctl_reply_free(&reply);
    return code;
}

/* Waits, at most SHARDS_WAIT_SECONDS, until no shard moves.
 *   reply   in: an answer with the map; out: the last one */
static enum ctl_exit shards_await(struct ctl *ctl, struct ctl_reply *reply) {
    const struct ctl_request request = {.path = "/v1/shards", .here = true};
    const double began = shards_clock();
    double shown = began;
    enum ctl_exit code = CTL_DONE;
    while (code == CTL_DONE && ctl_number(reply->json, "moving") > 0) {
        const double now = shards_clock(), left = ctl_number(reply->json, "moving");
        const char *trouble = ctl_text(reply->json, "trouble");
        if (now - began > SHARDS_WAIT_SECONDS) {
            return ctl_fail(CTL_REFUSED,
                            "%.0f shards still move after %d s: look at the logs of their owners",
                            left, SHARDS_WAIT_SECONDS);
        }
        if (now - shown > SHARDS_QUIET_SECONDS) {
            fprintf(stderr, "doormanctl: %.0f shards are left%s%s\n", left, trouble[0] ? "; " : "",
                    trouble);
            shown = now;
        }
        usleep(SHARDS_LOOK_MICROSECONDS);
        ctl_reply_free(reply);
        code = ctl_call(ctl, &request, reply);
    }
    return code;
}

/* Sends a change of the map, and waits until no shard moves. Frees the body. */
static enum ctl_exit shards_change(struct ctl *ctl, cJSON *body) {
    struct ctl_request request = shards_request;
    struct ctl_reply reply;
    const bool json = ctl->json;
    ctl->json = false; /* only the last answer is printed */
    request.body = body;
    request.here = false; /* the audit is that of the master */
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    if (code == CTL_DONE && !json && cJSON_GetObjectItemCaseSensitive(body, "remove")) {
        ctl_say("the node has left the map");
    } else if (code == CTL_DONE && !json) {
        ctl_say("%.0f shards move", ctl_number(reply.json, "moves"));
    }
    if (code == CTL_DONE) code = shards_await(ctl, &reply);
    ctl->json = json;
    if (code == CTL_DONE && json) fwrite(reply.text, 1, reply.bytes, stdout);
    if (code == CTL_DONE && !json) shards_show(ctl, &reply);
    ctl_reply_free(&reply);
    cJSON_Delete(body);
    return code;
}

/* Returns {NAME: NODE}, the body of a change. */
static cJSON *shards_body(const char *name, const char *node) {
    cJSON *body = (cJSON *)ctl_need(cJSON_CreateObject());
    ctl_need(cJSON_AddStringToObject(body, name, node));
    return body;
}

enum ctl_exit ctl_run_shards_move(struct ctl *ctl, char *const words[]) {
    char *end = NULL;
    const long shard = strtol(words[0], &end, 10);
    if (end == words[0] || *end || shard < 0 || shard > 100000) {
        return ctl_fail(CTL_USAGE, "SHARD must be a number, not '%s'", words[0]);
    }
    cJSON *body = shards_body("node", words[1]);
    ctl_need(cJSON_AddNumberToObject(body, "move", (double)shard));
    return shards_change(ctl, body);
}

enum ctl_exit ctl_run_shards_drain(struct ctl *ctl, char *const words[]) {
    return shards_change(ctl, shards_body("drain", words[0]));
}

enum ctl_exit ctl_run_shards_rebalance(struct ctl *ctl, char *const words[]) {
    cJSON *body = (cJSON *)ctl_need(cJSON_CreateObject());
    (void)words;
    ctl_need(cJSON_AddTrueToObject(body, "rebalance"));
    return shards_change(ctl, body);
}

enum ctl_exit ctl_run_shards_force(struct ctl *ctl, char *const words[]) {
    return shards_change(ctl, shards_body("force", words[0]));
}

enum ctl_exit ctl_run_shards_remove(struct ctl *ctl, char *const words[]) {
    return shards_change(ctl, shards_body("remove", words[0]));
}
