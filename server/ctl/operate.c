/* doormanctl: drains, ends of holds and reservations, bans, and keys that use most. */
#include "ctl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DRAIN_LOOK_MICROSECONDS 200000
#define DRAIN_QUIET_SECONDS 2  /* without a line about what happens */
#define DRAIN_WAIT_SECONDS 120 /* until it is a failure */

/* ---- drains --------------------------------------------------------------------------------- */

static bool drain_is_over(const cJSON *answer) {
    const char *state = ctl_text(answer, "state");
    return strcmp(state, "draining") != 0 && strcmp(state, "returning") != 0;
}

static double drain_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Waits, at most DRAIN_WAIT_SECONDS, until a drain or an undrain is complete or called off.
 *   reply   in: an answer with the state; out: the last one */
static enum ctl_exit drain_await(struct ctl *ctl, struct ctl_reply *reply) {
    const struct ctl_request request = {.path = "/v1/drain", .here = true};
    const double began = drain_clock();
    char shown[96] = "";
    enum ctl_exit code = CTL_DONE;
    while (code == CTL_DONE && !drain_is_over(reply->json)) {
        const double passed = drain_clock() - began;
        const char *step = ctl_text(reply->json, "step");
        if (passed > DRAIN_WAIT_SECONDS) {
            return ctl_fail(CTL_REFUSED, "not over after %d s: %s; look at the log of the server",
                            DRAIN_WAIT_SECONDS, step);
        }
        if (passed > DRAIN_QUIET_SECONDS && strcmp(step, shown) != 0) {
            snprintf(shown, sizeof shown, "%s", step);
            fprintf(stderr, "doormanctl: %s\n", shown);
        }
        usleep(DRAIN_LOOK_MICROSECONDS);
        ctl_reply_free(reply);
        code = ctl_call(ctl, &request, reply);
    }
    return code;
}

/* Prints the state of a process. Returns CTL_DONE if it is the wanted state. */
static enum ctl_exit drain_report(struct ctl *ctl, const struct ctl_reply *reply,
                                  const char *wanted) {
    const cJSON *json = reply->json;
    const char *state = ctl_text(json, "state"), *failure = ctl_text(json, "failure");
    const bool is_done = strcmp(state, wanted) == 0;
    if (ctl->json) fwrite(reply->text, 1, reply->bytes, stdout);
    if (!is_done && failure[0]) {
        return ctl_fail(CTL_REFUSED, "the drain was called off: %s", failure);
    }
    if (!is_done) return ctl_fail(CTL_REFUSED, "the process is %s now", state);
    if (ctl->json) return CTL_DONE;
    const char *by = ctl_text(json, "by"), *reason = ctl_text(json, "reason");
    if (strcmp(state, "drained") == 0) {
        ctl_say("drained since %s by %s%s%s", ctl_text(json, "since"), by[0] ? by : "(no token)",
                reason[0] ? ": " : "", reason);
    } else {
        ctl_say("serving, %s",
                ctl_is_true(json, "is_master") ? "as the master" : "and not the master");
    }
    return CTL_DONE;
}

static enum ctl_exit drain_run(struct ctl *ctl, const struct ctl_request *request,
                               const char *wanted) {
    struct ctl_reply reply;
    enum ctl_exit code = ctl_call(ctl, request, &reply);
    if (code == CTL_DONE && !ctl_text(reply.json, "state")[0]) {
        code = ctl_fail(CTL_UNREACHABLE,
                        "%s answers, but not as a Doorman server does; is the address right?",
                        ctl->url);
    }
    if (code == CTL_DONE) code = drain_await(ctl, &reply);
    if (code == CTL_DONE) code = drain_report(ctl, &reply, wanted);
    ctl_reply_free(&reply);
    return code;
}

static enum ctl_exit drain_start(struct ctl *ctl, const char *reason, const char *force) {
    cJSON *body = (cJSON *)ctl_need(cJSON_CreateObject());
    const struct ctl_request request = {.path = "/v1/drain",
                                        .query = {{"reason", reason}, {"force", force}},
                                        .body = body,
                                        .here = true};
    enum ctl_exit code = drain_run(ctl, &request, "drained");
    cJSON_Delete(body);
    return code;
}

enum ctl_exit ctl_run_drain(struct ctl *ctl, char *const words[]) {
    return drain_start(ctl, words[0], NULL);
}

enum ctl_exit ctl_run_drain_alone(struct ctl *ctl, char *const words[]) {
    return drain_start(ctl, words[0], "1");
}

enum ctl_exit ctl_run_undrain(struct ctl *ctl, char *const words[]) {
    cJSON *body = (cJSON *)ctl_need(cJSON_CreateObject());
    const struct ctl_request request = {
        .path = "/v1/undrain", .query = {{"reason", words[0]}}, .body = body, .here = true};
    enum ctl_exit code = drain_run(ctl, &request, "serving");
    cJSON_Delete(body);
    return code;
}

/* ---- holds and reservations ----------------------------------------------------------------- */

/* Ends a hold or a reservation.
 *   id_word     the id, as a word of the command line
 *   unsettled   of a reservation: keep or refund; NULL: a hold */
static enum ctl_exit operate_end(struct ctl *ctl, const char *id_word, const char *unsettled,
                                 const char *reason) {
    char *end = NULL, number[CTL_NUMBER_BYTES];
    const double id = strtod(id_word, &end);
    struct ctl_reply reply;
    if (*end || !(id >= 1 && id <= 9007199254740991.0)) {
        return ctl_fail(CTL_USAGE, "%s: must be the ID that `doormanctl holds` shows", id_word);
    }
    cJSON *body = (cJSON *)ctl_need(cJSON_CreateObject());
    snprintf(number, sizeof number, "%.0f", id);
    cJSON_AddRawToObject(body, "id", number); /* cJSON rounds numbers of 16 digits */
    if (unsettled) cJSON_AddStringToObject(body, "unsettled", unsettled);
    const struct ctl_request request = {.path =
                                            unsettled ? "/v1/reservations/end" : "/v1/holds/end",
                                        .query = {{"reason", reason}},
                                        .body = body,
                                        .expects = "ended"};
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    if (code == CTL_DONE && !ctl->json) {
        ctl_say(ctl_is_true(reply.json, "ended")
                    ? "ended: %g units of %s for '%s'"
                    : "it has ended by itself: %g units of %s for '%s'",
                ctl_number(reply.json, "amount"), ctl_text(reply.json, "resource_id"),
                ctl_text(reply.json, "key"));
    }
    cJSON_Delete(body);
    ctl_reply_free(&reply);
    return code;
}

enum ctl_exit ctl_run_hold_end(struct ctl *ctl, char *const words[]) {
    return operate_end(ctl, words[0], NULL, words[1]);
}

enum ctl_exit ctl_run_reservation_end(struct ctl *ctl, char *const words[]) {
    if (strcmp(words[1], "keep") != 0 && strcmp(words[1], "refund") != 0) {
        return ctl_fail(CTL_USAGE, "%s: must be keep or refund", words[1]);
    }
    return operate_end(ctl, words[0], words[1], words[2]);
}

/* ---- lists ---------------------------------------------------------------------------------- */

enum ctl_exit ctl_run_bans(struct ctl *ctl, char *const words[]) {
    static const struct ctl_column columns[] = {
        {"KEY", "key", CTL_TEXT},     {"RESOURCE", "resource_id", CTL_TEXT}, {"BY", "by", CTL_TEXT},
        {"LIMIT", "limit", CTL_TEXT}, {"ENDS IN", "ends_in", CTL_SECONDS},   {.header = NULL}};
    struct ctl_table table = {.columns = columns};
    struct ctl_reply reply;
    char after[128] = "", last[128];
    enum ctl_exit code = CTL_DONE;
    do {
        const struct ctl_request request = {.path = "/v1/bans",
                                            .query = {{"resource", words[0]},
                                                      {"key", words[0] ? words[1] : NULL},
                                                      {"after", after[0] ? after : NULL},
                                                      {"limit", "1000"}},
                                            .expects = "bans"};
        code = ctl_call(ctl, &request, &reply);
        const cJSON *bans = cJSON_GetObjectItemCaseSensitive(reply.json, "bans");
        if (code == CTL_DONE && !ctl->json) ctl_table_print(&table, bans, ctl->has_color);
        memcpy(last, after, sizeof last);
        snprintf(after, sizeof after, "%s", ctl_text(reply.json, "next"));
        ctl_reply_free(&reply);
    } while (code == CTL_DONE && after[0] && strcmp(after, last) != 0 && !ferror(stdout));
    return code;
}

static enum ctl_exit top_show(struct ctl *ctl, const char *by, const char *over,
                              const struct ctl_column *columns) {
    struct ctl_table table = {.columns = columns};
    struct ctl_reply reply;
    const struct ctl_request request = {.path = "/v1/top",
                                        .query = {{"by", by}, {"over", over}, {"limit", "100"}},
                                        .expects = "keys"};
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    if (code == CTL_DONE && !ctl->json) {
        const cJSON *keys = cJSON_GetObjectItemCaseSensitive(reply.json, "keys");
        ctl_table_print(&table, keys, ctl->has_color);
    }
    ctl_reply_free(&reply);
    return code;
}

enum ctl_exit ctl_run_top_units(struct ctl *ctl, char *const words[]) {
    static const struct ctl_column columns[] = {
        {"UNITS", "units", CTL_AMOUNT},        {"OF ALL", "all_units", CTL_AMOUNT},
        {"ERROR", "error", CTL_AMOUNT},        {"KEY", "key", CTL_TEXT},
        {"RESOURCE", "resource_id", CTL_TEXT}, {"TEMPLATE", "template", CTL_TEXT},
        {"LIMIT", "limit", CTL_TEXT},          {.header = NULL}};
    return top_show(ctl, "units", words[0] ? words[0] : "hour", columns);
}

enum ctl_exit ctl_run_top_nearest(struct ctl *ctl, char *const words[]) {
    static const struct ctl_column columns[] = {{"USED", "used", CTL_AMOUNT},
                                                {"OF", "size", CTL_AMOUNT},
                                                {"FRESH IN", "reset_after", CTL_SECONDS},
                                                {"KEY", "key", CTL_TEXT},
                                                {"RESOURCE", "resource_id", CTL_TEXT},
                                                {"TEMPLATE", "template", CTL_TEXT},
                                                {"LIMIT", "limit", CTL_TEXT},
                                                {.header = NULL}};
    (void)words;
    return top_show(ctl, "nearest", NULL, columns);
}

#ifndef DOORMAN_CTL_EVENTS
enum ctl_exit ctl_run_events(struct ctl *ctl, char *const words[]) {
    (void)ctl;
    (void)words;
    return ctl_fail(CTL_USAGE, "this doormanctl was built without events (make EVENTS=0)");
}
#endif
