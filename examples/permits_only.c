/* Permits in one process, without a network: a login that each user may try five times, and then
 * once every five seconds. All users together may try nine times a minute. Time is a variable, so
 * the program does not wait, and prints the same text every time.
 *
 *     cc -I. examples/permits_only.c -lcjson -o permits_only && ./permits_only
 */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#include "doorman_permits.h"

static const char text[] =
    "{\"resources\": [{\"identifier_glob\": \"login\", \"limits\": ["
    "{\"name\": \"per-user\", \"kind\": \"TOKEN_BUCKET\", \"rate\": 0.2, \"size\": 5},"
    "{\"name\": \"all\", \"per\": \"resource\", \"kind\": \"FIXED_WINDOW\", \"limit\": 9,"
    " \"window\": 60}]}]}";

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] == '-') { /* such as --help */
        printf("usage: permits_only\n");
        return 0;
    }
    doorman_config *config = NULL;
    doorman_permits *permits = NULL;
    doorman_error error = {0};
    doorman_permits_options options = {.seed = {1, 2}}; /* a program takes random bits */
    bool started = doorman_json_config(&config, text, strlen(text), &error) == DOORMAN_OK;
    options.config = config;
    started = started && doorman_permits_create(&permits, &options, &error, 0) == DOORMAN_OK;
    for (int second = 0; started && second < 12; second++) {
        const char *key = second % 4 == 3 ? "bob" : "ann";
        const doorman_permit_item item = {.resource_id = "login", .key = key, .cost = 1};
        const doorman_permit_request request = {.items = &item, .item_count = 1};
        doorman_permit permit;
        doorman_time now = second * DOORMAN_SECOND;
        started = doorman_permits_acquire(permits, &request, &permit, &error, now) == DOORMAN_OK;
        if (!started) break;
        if (permit.granted) {
            printf("%2d s: %s may log in; %s has %.1f left\n", second, key, permit.items[0].limit,
                   permit.items[0].remaining);
        } else {
            printf("%2d s: %s must wait %g s for %s\n", second, key,
                   (double)permit.retry_after / 1e9, permit.limit);
        }
    }
    if (!started) fprintf(stderr, "permits_only: %s\n", error.text);
    doorman_permits_destroy(permits);
    doorman_config_destroy(config);
    return started ? 0 : 1;
}
