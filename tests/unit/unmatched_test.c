/* The table of descriptors without a template: what it keeps, and that any thread may add to it. */
#define main server_main
int server_main(int argc, char **argv);
#define DOORMAN_SERVER_UNMATCHED
#include "../../doorman_server.c"
#undef main
#include "../../server/log/unmatched.c"

#include "../test.h"

struct world {
    struct service service;
    struct unmatched_row rows[UNMATCHED_MAX];
};

static void world_setup(struct world *w) {
    assert_int_equal(unmatched_open(&w->service), CONTINUE);
}

static void world_teardown(struct world *w) { unmatched_destroy(&w->service); }
FIXTURE(world)

static void note(struct world *w, const char *domain, const char *resource, const char *key) {
    doorman_descriptor_item item = {.matched = false};
    snprintf(item.resource_id, sizeof item.resource_id, "%s", resource);
    snprintf(item.key, sizeof item.key, "%s", key);
    server_unmatched_note(&w->service, domain, &item);
}

TEST_WITH(world, a_row_counts_the_descriptors_of_a_resource) {
    uint64_t all = 0;
    assert_int_equal(server_unmatched_list(&w->service, w->rows, &all), 0);
    note(w, "shop", "shop/path", "/a");
    note(w, "shop", "shop/ip", "1.2.3.4");
    note(w, "shop", "shop/path", "/b");
    note(w, "other", "shop/path", "/c");
    assert_int_equal(server_unmatched_list(&w->service, w->rows, &all), 3);
    assert_int_equal(all, 4);
    for (size_t i = 0; i < 3; i++) {
        const struct unmatched_row *row = &w->rows[i];
        if (strcmp(row->domain, "other") == 0) assert_string_equal(row->key, "/c");
        const bool is_path =
            strcmp(row->domain, "shop") == 0 && strcmp(row->resource, "shop/path") == 0;
        assert_int_equal(row->count, is_path ? 2 : 1);
        if (is_path) assert_string_equal(row->key, "/b");
    }
}

TEST_WITH(world, a_full_table_keeps_the_last_resources) {
    uint64_t all = 0;
    bool found = false;
    for (int i = 0; i < 3 * UNMATCHED_MAX; i++) {
        char resource[32];
        snprintf(resource, sizeof resource, "d/%d", i);
        note(w, "d", resource, "");
    }
    assert_int_equal(server_unmatched_list(&w->service, w->rows, &all), UNMATCHED_MAX);
    assert_int_equal(all, 3 * UNMATCHED_MAX);
    for (size_t i = 0; i < UNMATCHED_MAX; i++) {
        found = found || strcmp(w->rows[i].resource, "d/95") == 0;
        assert_int_equal(w->rows[i].count, 1);
        if (i) assert_true(w->rows[i].at <= w->rows[i - 1].at);
    }
    assert_true(found);
}

TEST_WITH(world, a_domain_is_shown_in_printable_ascii) {
    uint64_t all = 0;
    char domain[400];
    memset(domain, 'd', sizeof domain);
    domain[sizeof domain - 1] = '\0';
    note(w, "a\n\xff\"<", "r", "");
    assert_int_equal(server_unmatched_list(&w->service, w->rows, &all), 1);
    assert_string_equal(w->rows[0].domain, "a??\"<");
    note(w, domain, "s", "");
    note(w, domain, "s", "");
    assert_int_equal(server_unmatched_list(&w->service, w->rows, &all), 2);
}

TEST_WITH(world, a_server_without_the_table_notes_nothing) {
    uint64_t all = 1;
    unmatched_destroy(&w->service);
    note(w, "d", "r", "");
    assert_int_equal(server_unmatched_list(&w->service, w->rows, &all), 0);
    assert_int_equal(all, 0);
}

#define NOTES 2000

static void *note_many(void *context) {
    struct world *w = (struct world *)context;
    for (int i = 0; i < NOTES; i++) {
        char resource[32];
        snprintf(resource, sizeof resource, "d/%d", i % 5);
        note(w, "d", resource, "k");
    }
    return NULL;
}

TEST_WITH(world, threads_add_to_the_same_rows) {
    pthread_t threads[4];
    uint64_t all = 0, sum = 0;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, note_many, w), 0);
    }
    for (int i = 0; i < 50; i++) (void)server_unmatched_list(&w->service, w->rows, &all);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(server_unmatched_list(&w->service, w->rows, &all), 5);
    for (int i = 0; i < 5; i++) sum += w->rows[i].count;
    assert_int_equal(all, 4 * NOTES);
    assert_int_equal(sum, 4 * NOTES);
}
