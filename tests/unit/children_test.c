/* The log lines of server/pages/children.c (V6): which child nodes are silent, and which send
 * requests again. */
#define main server_main
int server_main(int argc, char **argv);
#define DOORMAN_SERVER_WARNINGS
#include "../../doorman_server.c"
#undef main
#include "../../server/http/text.c"
#include "../../server/log/warnings.c"
#include "../../server/pages/children.c"
#include "../../server/util/host.c"

#include "server_log.h"

#define AGAIN "a child node sends requests again"

/* Notes that a child node has sent a request. */
static void ask(struct world *w, const char *node, doorman_time now) {
    doorman_json_exchange exchange = {
        .request = {.method = DOORMAN_GET_CAPACITY, .is_server = true, .holder_id = node},
        .response = {.is_master = true}};
    children_note(&w->service, &exchange, now);
}

static void end(struct world *w, const char *node) {
    const doorman_event event = {.kind = DOORMAN_EVENT_CHILD_ENDED, .holder_id = node};
    assert_true(children_on_event(&w->service, &event));
}

/* Peers can invent nodes, so there are CHILD_LINES_MAX lines about nodes that have ended in a
 * minute. The minute after that begins with no line. */
TEST_WITH(world, each_minute_has_lines_of_its_own) {
    const int count = CHILD_LINES_MAX + 5;
    const doorman_time now = doorman_clock();
    char node[16];
    for (int i = 0; i < count; i++) {
        snprintf(node, sizeof node, "n%d", i);
        ask(w, node, now);
        end(w, node);
    }
    assert_int_equal(logged(w, " child=n"), CHILD_LINES_MAX + 1); /* one counts the others */
    ask(w, "n0", now + SECOND);
    assert_int_equal(logged(w, AGAIN), 0);
    for (int i = 1; i < count; i++) {
        snprintf(node, sizeof node, "n%d", i);
        ask(w, node, now + 120 * SECOND);
    }
    assert_int_equal(logged(w, AGAIN), CHILD_LINES_MAX);
    children_destroy(&w->service);
}
