/* What each kind of store promises (server/store/store.h). A test program defines before it
 * includes this file:
 *
 *     struct world     with the members store and error
 *     STORY(name)      a test that has a struct world *w, whose store is open and empty
 *     reopen(w)        closes the store and opens it again, in a new mastership
 *
 * With STORIES_OF_NOTES, only the stories of notes are included, for a store without rows. */
#ifndef DOORMAN_TESTS_STORE_STORIES_H
#define DOORMAN_TESTS_STORE_STORIES_H

#include <string.h>
#include <time.h>

#ifndef STORIES_OF_NOTES

/* Returns a time that no test reaches, because a store may drop rows that have long been fresh. */
static int64_t tomorrow(int64_t more) { return (int64_t)time(NULL) + 86400 + more; }

/* A row of the limit "user" whose identity is its key. Its record is a text; NULL: the row is
 * deleted. */
static struct store_row row_of(const char *key, const char *record, int64_t fresh_at) {
    return (struct store_row){.identity = key,
                              .identity_bytes = strlen(key),
                              .template = "api*",
                              .limit = "user",
                              .resource = "api",
                              .key = key,
                              .fresh_at = fresh_at,
                              .record = record,
                              .record_bytes = record ? strlen(record) : 0};
}

static void put(struct world *w, const char *key, const char *record) {
    struct store_row row = row_of(key, record, tomorrow(1000));
    assert_int_equal(server_store_write(w->store, &row, 1), STORE_OK);
}

static int compare_texts(const void *left, const void *right) {
    return strcmp((const char *)left, (const char *)right);
}

/* Expects these rows, as "key=record" in the order of the keys. */
static void expect_rows(struct world *w, const char *expected) {
    char rows[16][64], text[1024] = "";
    struct store_row row;
    size_t count = 0;
    enum store_result result;
    while (count < 16 && (result = server_store_next(w->store, &row)) == STORE_OK) {
        snprintf(rows[count++], 64, "%s=%.*s", row.key, (int)row.record_bytes,
                 (const char *)row.record);
    }
    assert_int_equal(result, STORE_END);
    qsort(rows, count, sizeof *rows, compare_texts);
    for (size_t i = 0; i < count; i++) {
        size_t bytes = strlen(text);
        snprintf(text + bytes, sizeof text - bytes, "%s%s", i > 0 ? " " : "", rows[i]);
    }
    assert_string_equal(text, expected);
}

STORY(rows_last_until_they_are_replaced_or_deleted) {
    const struct store_row rows[] = {row_of("a", "1", tomorrow(10)), row_of("b", "2", tomorrow(10)),
                                     row_of("c", "3", tomorrow(10))};
    assert_int_equal(server_store_write(w->store, rows, 3), STORE_OK);
    reopen(w);
    expect_rows(w, "a=1 b=2 c=3");
    put(w, "b", "20");
    put(w, "c", NULL);
    put(w, "never written", NULL);
    reopen(w);
    expect_rows(w, "a=1 b=20");
    expect_rows(w, "a=1 b=20"); /* from the beginning */
}

/* A record may have any bytes, and a name any text. */
STORY(all_fields_of_a_row_come_back) {
    char key[257], record[4096], identity[800];
    for (int i = 0; i < 256; i++) key[i] = (char)(i ? i : ' ');
    key[256] = 0;
    for (size_t i = 0; i < sizeof record; i++) record[i] = (char)(i * 7);
    for (size_t i = 0; i < sizeof identity; i++) identity[i] = (char)(i * 5);
    struct store_row in = row_of(key, record, INT64_C(99999999999)), out;
    in.identity = identity, in.identity_bytes = sizeof identity;
    in.record_bytes = sizeof record;
    in.is_ban = true;
    assert_int_equal(server_store_write(w->store, &in, 1), STORE_OK);
    reopen(w);
    assert_int_equal(server_store_next(w->store, &out), STORE_OK);
    assert_int_equal(out.identity_bytes, sizeof identity);
    assert_memory_equal(out.identity, identity, sizeof identity);
    assert_true(out.is_ban);
    assert_string_equal(out.template, "api*");
    assert_string_equal(out.limit, "user");
    assert_string_equal(out.resource, "api");
    assert_string_equal(out.key, key);
    assert_int_equal(out.fresh_at, INT64_C(99999999999));
    assert_int_equal(out.record_bytes, sizeof record);
    assert_memory_equal(out.record, record, sizeof record);
    assert_int_equal(server_store_next(w->store, &out), STORE_END);
}

/* Only the bytes behind the zero byte in their identities tell these rows apart. */
STORY(rows_with_another_identity_are_other_rows) {
    struct store_row rows[2] = {row_of("k", "1", tomorrow(10)), row_of("k", "2", tomorrow(10))};
    rows[0].identity = "a\0b", rows[1].identity = "a\0c";
    rows[0].identity_bytes = rows[1].identity_bytes = 3;
    assert_int_equal(server_store_write(w->store, rows, 2), STORE_OK);
    expect_rows(w, "k=1 k=2");
    rows[0].record = NULL;
    assert_int_equal(server_store_write(w->store, rows, 1), STORE_OK);
    expect_rows(w, "k=2");
}

/* Many rows do not fit into one step of reading or writing. */
STORY(many_rows_come_back) {
    enum { COUNT = 3000 };
    static char keys[COUNT][16];
    static struct store_row rows[COUNT];
    static bool found[COUNT];
    struct store_row row;
    for (int i = 0; i < COUNT; i++) {
        snprintf(keys[i], sizeof keys[i], "%d", i);
        rows[i] = row_of(keys[i], "a record", tomorrow(10));
    }
    assert_int_equal(server_store_write(w->store, rows, COUNT), STORE_OK);
    reopen(w);
    while (server_store_next(w->store, &row) == STORE_OK) {
        int number = atoi(row.key);
        assert_in_range(number, 0, COUNT - 1);
        found[number] = true;
    }
    for (int i = 0; i < COUNT; i++) assert_true(found[i]);
}

/* D9 */
STORY(each_mastership_has_the_next_epoch) {
    assert_int_equal(server_store_epoch(w->store), 1);
    for (unsigned epoch = 2; epoch < 5; epoch++) {
        reopen(w);
        assert_int_equal(server_store_epoch(w->store), epoch);
    }
}

static void leave(struct world *w, const char *text) {
    assert_int_equal(server_store_leave(w->store, text, strlen(text) + 1), STORE_OK);
}

static void expect_taken(struct world *w, const char *text) {
    unsigned char *bytes = NULL;
    size_t count = 0;
    assert_int_equal(server_store_take(w->store, &bytes, &count), STORE_OK);
    assert_int_equal(count, strlen(text) + 1);
    assert_string_equal((const char *)bytes, text);
    free(bytes);
}

static void expect_not_taken(struct world *w, enum store_result result, const char *why) {
    unsigned char *bytes = NULL;
    size_t count = 0;
    assert_int_equal(server_store_take(w->store, &bytes, &count), result);
    assert_null(bytes);
    if (!strstr(server_store_error(w->store), why)) {
        fail_msg("'%s' does not say '%s'", server_store_error(w->store), why);
    }
}

/* D8 */
STORY(the_next_mastership_takes_what_was_left_and_only_once) {
    put(w, "a", "1");
    leave(w, "leases");
    reopen(w);
    expect_taken(w, "leases");
    expect_not_taken(w, STORE_END, "did not stop as planned");
    expect_rows(w, "a=1");
    leave(w, "other leases");
    reopen(w);
    expect_taken(w, "other leases");
}

/* D9: a process of an earlier version may begin a mastership and not take what was left. */
STORY(what_was_left_is_only_for_the_next_mastership) {
    leave(w, "leases");
    reopen(w);
    reopen(w);
    expect_not_taken(w, STORE_FAILED, "was for an earlier");
    expect_not_taken(w, STORE_END, "did not stop as planned"); /* it was removed */
}

#endif

/* ---- notes */

/* Adds the identity, text and end of a note to the text `context`. Stops after the note "stop". */
static bool note_add(void *context, const struct store_note *note) {
    char *text = (char *)context;
    size_t bytes = strlen(text);
    assert_true(bytes < 900);
    snprintf(text + bytes, 1024 - bytes, "%s%s=%s@%d", bytes ? " " : "", note->identity, note->text,
             (int)note->ends_at);
    return strcmp(note->identity, "stop") != 0;
}

static void expect_notes(struct world *w, const char *kind, const char *before,
                         const char *expected) {
    char text[1024] = "";
    assert_int_equal(server_store_list_notes(w->store, kind, before, note_add, text), STORE_OK);
    assert_string_equal(text, expected);
}

STORY(notes_last_until_they_are_replaced_or_deleted) {
    const struct store_note notes[] = {
        {"act", "1", 10, "{}"}, {"act", "2", 20, "[\"\xc3\xa4\"]"}, {"override", "1", 30, "x"}};
    expect_notes(w, "act", "", "");
    assert_int_equal(server_store_put_notes(w->store, notes, 3), STORE_OK);
    reopen(w);
    expect_notes(w, "act", "", "2=[\"\xc3\xa4\"]@20 1={}@10");
    expect_notes(w, "override", "", "1=x@30");
    expect_notes(w, "overrid", "", "");
    struct store_row row;
    assert_int_equal(server_store_next(w->store, &row), STORE_END);
    const struct store_note changes[] = {
        {"act", "1", 11, "new"}, {"act", "2", 0, NULL}, {"act", "never", 0, NULL}};
    assert_int_equal(server_store_put_notes(w->store, changes, 3), STORE_OK);
    reopen(w);
    expect_notes(w, "act", "", "1=new@11");
    expect_notes(w, "override", "", "1=x@30");
}

/* A page of a list continues behind the last note of the page before. */
STORY(notes_are_listed_from_the_largest_identity_down) {
    const struct store_note notes[] = {{"act", "a", 1, "1"},
                                       {"act", "stop", 1, "2"},
                                       {"act", "b*[", 1, "3"},
                                       {"act", "z", 1, "4"}};
    assert_int_equal(server_store_put_notes(w->store, notes, 4), STORE_OK);
    expect_notes(w, "act", "", "z=4@1 stop=2@1"); /* the visitor stops */
    expect_notes(w, "act", "stop", "b*[=3@1 a=1@1");
    expect_notes(w, "act", "b*[", "a=1@1");
    expect_notes(w, "act", "a", "");
}

#ifndef STORIES_OF_NOTES
STORY(rows_are_read_from_the_beginning_after_notes_are_written) {
    const struct store_note note = {"act", "1", 1, "{}"};
    struct store_row row;
    put(w, "a", "1");
    put(w, "b", "2");
    assert_int_equal(server_store_next(w->store, &row), STORE_OK);
    assert_int_equal(server_store_put_notes(w->store, &note, 1), STORE_OK);
    expect_rows(w, "a=1 b=2");
}
#endif

#endif
