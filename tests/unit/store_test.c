/* The file in which counters last (server/store/store.h): rows that were written are read again,
 * two servers never share the file, and a wrong file is refused before it is changed. */
#define _GNU_SOURCE
#include "../../server/store/store_choice.c"
#include "../../server/store/store_sqlite.c"

#include "../test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

struct world {
    char folder[32], path[48], kept[48];
    char error[STORE_TEXT];
    struct store *store; /* NULL: closed */
};

static struct store *open_at(struct world *w, const char *path) {
    const struct store_place place = {.address = path};
    assert_true(server_store_check(&place, w->error));
    return server_store_open(&place, w->error);
}

static void reopen(struct world *w) {
    server_store_close(w->store);
    w->store = open_at(w, w->path);
    if (!w->store) fail_msg("%s", w->error);
    assert_int_equal(server_store_begin(w->store, 0), STORE_OK);
}

static void world_setup(struct world *w) {
    snprintf(w->folder, sizeof w->folder, "/tmp/doorman-test-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    snprintf(w->path, sizeof w->path, "%s/state", w->folder);
    snprintf(w->kept, sizeof w->kept, "%s/kept", w->folder);
    reopen(w);
}

static void remove_all(const char *path) {
    static const char *const suffixes[] = {"", "-wal", "-shm"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", path, suffixes[i]);
        (void)unlink(name);
    }
}

static void world_teardown(struct world *w) {
    server_store_close(w->store);
    remove_all(w->path);
    remove_all(w->kept);
    assert_int_equal(rmdir(w->folder), 0);
}
FIXTURE(world)

#define STORY(name) TEST_WITH(world, name)
#include "store_stories.h"

static void expect_refused(struct world *w, const char *path, const char *why) {
    struct store *store = open_at(w, path);
    assert_null(store);
    if (!strstr(w->error, why)) fail_msg("'%s' does not say '%s'", w->error, why);
}

/* Runs commands of SQL on the file, as a person with the tool sqlite3 does. */
static void person_runs(const char *path, const char *commands) {
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_exec(database, commands, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

TEST_WITH(world, rows_are_dropped_after_a_time) {
    const struct store_row rows[] = {row_of("a", "1", 99), row_of("b", "2", 100),
                                     row_of("c", "3", 101)};
    assert_int_equal(server_store_write(w->store, rows, 3), STORE_OK);
    assert_int_equal(server_store_drop(w->store, 100), STORE_OK);
    expect_rows(w, "b=2 c=3");
}

/* V8: the mode FULL lets a commit outlast a loss of power. No test causes such a loss. */
TEST_WITH(world, a_commit_waits_for_the_disk) {
    int64_t synchronous = 0, tables = 0;
    struct file_store *file = (struct file_store *)w->store;
    assert_true(file_query_number(file, "PRAGMA synchronous", &synchronous));
    assert_int_equal(synchronous, 2); /* FULL */
    assert_true(file_query_number(
        file, "SELECT count(*) FROM pragma_journal_mode WHERE journal_mode = 'wal'", &tables));
    assert_int_equal(tables, 1);
}

/* D9 */
TEST_WITH(world, an_opening_that_is_refused_has_no_epoch) {
    expect_refused(w, w->path, "another process uses it");
    reopen(w);
    assert_int_equal(server_store_epoch(w->store), 2);
}

/* D9: a second server is refused even if it opens the file by another name. */
TEST_WITH(world, a_second_server_is_refused) {
    expect_refused(w, w->path, "another process uses it");
    assert_int_equal(link(w->path, w->kept), 0);
    expect_refused(w, w->kept, "another process uses it");
    put(w, "a", "1");
    expect_rows(w, "a=1");
}

TEST_WITH(world, a_person_can_read_the_file_while_it_is_in_use) {
    const struct store_row row = row_of("bob", "r", 1000);
    assert_int_equal(server_store_write(w->store, &row, 1), STORE_OK);
    sqlite3 *person = NULL;
    sqlite3_stmt *query = NULL;
    assert_int_equal(sqlite3_open(w->path, &person), SQLITE_OK);
    assert_int_equal(
        sqlite3_prepare_v2(person, "SELECT * FROM readable_counters", -1, &query, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(query), SQLITE_ROW);
    assert_string_equal(sqlite3_column_text(query, 0), "counter");
    assert_string_equal(sqlite3_column_text(query, 4), "bob");
    assert_string_equal(sqlite3_column_text(query, 5), "1970-01-01 00:16:40");
    put(w, "bob", "s"); /* the query is still open */
    assert_int_equal(sqlite3_finalize(query), SQLITE_OK);
    assert_int_equal(sqlite3_close(person), SQLITE_OK);
    expect_rows(w, "bob=s");
}

TEST_WITH(world, a_write_that_meets_a_lock_fails_and_changes_nothing) {
    sqlite3 *person = NULL;
    put(w, "a", "1");
    assert_int_equal(sqlite3_open(w->path, &person), SQLITE_OK);
    assert_int_equal(sqlite3_exec(person, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    const struct store_row row = row_of("a", "2", 1000);
    assert_int_equal(server_store_write(w->store, &row, 1), STORE_FAILED);
    assert_non_null(strstr(server_store_error(w->store), "another process has locked it"));
    expect_rows(w, "a=1");
    assert_int_equal(sqlite3_close(person), SQLITE_OK);
    put(w, "a", "2");
    expect_rows(w, "a=2");
}

/* D10 */
TEST_WITH(world, a_file_of_a_newer_version_is_refused_and_kept) {
    put(w, "a", "1");
    server_store_close(w->store);
    w->store = NULL;
    person_runs(w->path, "PRAGMA user_version = 2");
    expect_refused(w, w->path, "was written by a newer doorman_server");
    person_runs(w->path, "PRAGMA user_version = 1");
    reopen(w);
    expect_rows(w, "a=1");
    assert_int_equal(server_store_epoch(w->store), 2);
}

TEST_WITH(world, a_database_of_another_program_is_refused_and_kept) {
    person_runs(w->kept, "CREATE TABLE theirs (x); PRAGMA user_version = 1");
    expect_refused(w, w->kept, "is a database of another program");
    person_runs(w->kept, "INSERT INTO theirs VALUES (1); DROP TABLE theirs");
}

static void write_at(const char *path, off_t at, const char *bytes, size_t count) {
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, count, at), (ssize_t)count);
    assert_int_equal(close(fd), 0);
}

TEST_WITH(world, a_file_that_is_no_database_is_refused_and_kept) {
    char text[600];
    memset(text, 'x', sizeof text);
    write_at(w->kept, 0, text, sizeof text);
    expect_refused(w, w->kept, "it is damaged, or not of Doorman; stop the server, move");
    struct stat status;
    assert_int_equal(stat(w->kept, &status), 0);
    assert_int_equal(status.st_size, sizeof text);
}

/* The damage is behind the first page, so that it is found only by reading. */
TEST_WITH(world, a_damaged_page_ends_the_reading) {
    for (int i = 0; i < 300; i++) {
        char key[16];
        snprintf(key, sizeof key, "key %d", i);
        put(w, key, "a record that fills the pages of the table");
    }
    server_store_close(w->store);
    w->store = NULL;
    char rubbish[4096];
    struct stat status;
    memset(rubbish, 'x', sizeof rubbish);
    assert_int_equal(stat(w->path, &status), 0);
    for (off_t at = 3 * 4096; at < status.st_size; at += 4096) {
        write_at(w->path, at, rubbish, sizeof rubbish);
    }
    reopen(w);
    struct store_row row;
    enum store_result result = STORE_OK;
    for (int i = 0; i < 1000 && result == STORE_OK; i++) result = server_store_next(w->store, &row);
    assert_int_equal(result, STORE_FAILED);
    assert_non_null(strstr(server_store_error(w->store), "it is damaged"));
}

TEST_WITH(world, places_that_cannot_hold_a_file_are_named) {
    expect_refused(w, "/nowhere/at/all", "No such file or directory; its folder must exist");
    expect_refused(w, w->folder, "cannot be opened for writing");
    expect_refused(w, "/dev/null", "is not a regular file");
}

/* Rows in a file that has no name any more would be lost, so a write to such a file fails. */
TEST_WITH(world, a_file_that_was_moved_away_is_written_when_it_is_back) {
    const struct store_row row = row_of("a", "1", 1000);
    assert_int_equal(rename(w->path, w->kept), 0);
    assert_int_equal(server_store_write(w->store, &row, 1), STORE_FAILED);
    assert_non_null(strstr(server_store_error(w->store), "was removed or replaced"));
    assert_int_equal(rename(w->kept, w->path), 0);
    assert_int_equal(server_store_write(w->store, &row, 1), STORE_OK);
    expect_rows(w, "a=1");
}

/* Writes rows until a limit on the size of files refuses a row. Then writes a row without the
 * limit. */
static void fill_the_disk(struct world *w) {
    char record[4096];
    memset(record, 'x', sizeof record);
    record[sizeof record - 1] = 0;
    const struct rlimit small = {256 << 10, RLIM_INFINITY}, large = {RLIM_INFINITY, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    put(w, "first", "1");
    if (setrlimit(RLIMIT_FSIZE, &small) != 0) _exit(2);
    enum store_result result = STORE_OK;
    for (int i = 0; i < 1000 && result == STORE_OK; i++) {
        char key[16];
        snprintf(key, sizeof key, "key %d", i);
        const struct store_row row = row_of(key, record, 1000);
        result = server_store_write(w->store, &row, 1);
    }
    bool failed = result == STORE_FAILED && strstr(server_store_error(w->store), "disk");
    if (setrlimit(RLIMIT_FSIZE, &large) != 0) _exit(3);
    const struct store_row row = row_of("last", "2", 1000);
    _exit(failed && server_store_write(w->store, &row, 1) == STORE_OK ? 0 : 1);
}

TEST_WITH(world, a_full_disk_fails_the_write_and_nothing_else) {
    int status = 0, found = 0;
    server_store_close(w->store);
    w->store = NULL;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60);
        reopen(w);
        fill_the_disk(w);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    reopen(w);
    struct store_row row;
    while (server_store_next(w->store, &row) == STORE_OK) {
        found += strcmp(row.key, "first") == 0 || strcmp(row.key, "last") == 0;
    }
    assert_int_equal(found, 2);
}

/* ---- what a planned stop leaves (D8, D9) ----------------------------------------------------- */

TEST_WITH(world, a_new_file_and_a_crash_leave_nothing) {
    expect_not_taken(w, STORE_END, "the file is new");
    reopen(w);
    expect_not_taken(w, STORE_END, "did not stop as planned");
}

TEST_WITH(world, a_copy_has_nothing_left) {
    char command[128];
    leave(w, "leases");
    server_store_close(w->store);
    w->store = NULL;
    snprintf(command, sizeof command, "cp %s %s", w->path, w->kept);
    assert_int_equal(system(command), 0);
    w->store = open_at(w, w->kept);
    expect_not_taken(w, STORE_FAILED, "is a copy");
    reopen(w);
    expect_taken(w, "leases");
}

static void copy(const char *from, const char *to) {
    char command[128];
    snprintf(command, sizeof command, "cp %s %s", from, to);
    assert_int_equal(system(command), 0);
}

/* The copy has the device, the inode and the epoch that the server expects. */
TEST_WITH(world, an_older_copy_that_is_put_back_is_not_taken) {
    if (setxattr(w->folder, EPOCH_ATTRIBUTE, "0", 1, 0) != 0) skip();
    leave(w, "leases");
    server_store_close(w->store);
    w->store = NULL;
    copy(w->path, w->kept);
    copy(w->kept, w->path); /* nobody has used it meanwhile */
    reopen(w);
    expect_taken(w, "leases");
    for (int i = 0; i < 2; i++) {
        leave(w, "later");
        server_store_close(w->store);
        w->store = NULL;
        copy(w->kept, w->path);
        reopen(w);
        expect_not_taken(w, STORE_FAILED, "is an older copy");
    }
    leave(w, "later");
    reopen(w);
    expect_taken(w, "later");
}

TEST_WITH(world, what_is_damaged_is_not_taken) {
    leave(w, "leases");
    person_runs(w->path, "UPDATE handover SET leases = x'6c65617365'");
    reopen(w);
    expect_not_taken(w, STORE_FAILED, "is damaged");
    leave(w, "leases");
    person_runs(w->path, "UPDATE handover SET epoch = 'x'");
    reopen(w);
    expect_not_taken(w, STORE_FAILED, "earlier start");
}

/* D10: a version without the table can use the file too, so the schema keeps its number. */
TEST_WITH(world, a_file_of_a_version_without_the_table_is_extended) {
    put(w, "a", "1");
    server_store_close(w->store);
    w->store = NULL;
    person_runs(w->path, "DROP TABLE handover");
    reopen(w);
    expect_not_taken(w, STORE_END, "did not stop as planned");
    expect_rows(w, "a=1");
    leave(w, "leases");
    reopen(w);
    expect_taken(w, "leases");
}

/* What a planned stop left is used only after it was removed, so that no other process uses it
 * too. */
TEST_WITH(world, what_cannot_be_removed_is_not_taken) {
    sqlite3 *person = NULL;
    leave(w, "leases");
    reopen(w);
    assert_int_equal(sqlite3_open(w->path, &person), SQLITE_OK);
    assert_int_equal(sqlite3_exec(person, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    expect_not_taken(w, STORE_FAILED, "locked");
    assert_int_equal(sqlite3_close(person), SQLITE_OK);
}
