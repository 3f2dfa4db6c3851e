/* The file of --state on a disk that is really full or read-only, and a file that a person has
 * damaged or put back (V8): D6, D9, D10. The disk is a small tmpfs. unshare makes a mount namespace
 * for the server and the disk. So no test changes the machine. */
#define _GNU_SOURCE
#include "state_fixture.h"

#include <errno.h>
#include <sqlite3.h>

/* ---- a small disk --------------------------------------------------------------------------- */

struct disk {
    char folder[80];    /* where the server has its disk */
    char path[96];      /* of the file of counters on it */
    char program[96];   /* starts a server with the disk */
    const char *server; /* starts a server without it */
};

/* Makes a program that starts a server with a tmpfs of 1 MiB.
 *   then   a further command, in the folder above that of the disk */
static void disk_make(struct disk *disk, const char *then) {
    const struct process *files = process_new();
    char script[1024];
    require(system("unshare -rm mount -t tmpfs none /tmp 2>/dev/null") == 0, "unshare");
    disk->server = getenv("DOORMAN_SERVER");
    if (!disk->server) disk->server = "build/doorman_server";
    snprintf(disk->folder, sizeof disk->folder, "%s/disk", files->folder);
    snprintf(disk->path, sizeof disk->path, "%s/state", disk->folder);
    snprintf(disk->program, sizeof disk->program, "%s/server", files->folder);
    snprintf(script, sizeof script,
             "#!/bin/sh\n"
             "exec unshare -rm sh -c '(cd %s && mount -t tmpfs -o size=1m none disk && %s) && "
             "exec \"$0\" \"$@\"' %s \"$@\"\n",
             files->folder, then, disk->server);
    file_write(disk->program, script);
    assert_int_equal(chmod(disk->program, 0700), 0);
    assert_int_equal(mkdir(disk->folder, 0700), 0);
}

/* Chooses whether servers that are started from now on have the disk. */
static void disk_use(const struct disk *disk, bool uses) {
    setenv("DOORMAN_SERVER", uses ? disk->program : disk->server, 1);
}

/* Writes to `out` the path at which this program sees a file of the disk while the server runs. */
static void disk_name(const struct disk *disk, const struct fixture *fixture, const char *name,
                      char out[192]) {
    snprintf(out, 192, "/proc/%d/root%s/%s", (int)fixture->server.process->pid, disk->folder, name);
}

/* Fills the disk with a file of this name, to the last byte. */
static void disk_fill(const char *name) {
    static const char zeros[512];
    int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ssize_t bytes = 1;
    assert_true(fd >= 0);
    for (int i = 0; i < 4096 && bytes > 0; i++) bytes = write(fd, zeros, sizeof zeros);
    assert_int_equal(bytes, -1);
    assert_int_equal(errno, ENOSPC);
    close(fd);
}

/* Copies the file of counters and its -wal file, as a crash of the machine would leave them. */
static void copy_as_after_a_crash(const struct disk *disk, const struct fixture *fixture,
                                  const char *to) {
    char from[192], command[512];
    disk_name(disk, fixture, "state", from);
    process_signal(fixture->server.process, SIGSTOP);
    snprintf(command, sizeof command, "cp %s %s && cp %s-wal %s-wal", from, to, from, to);
    assert_int_equal(system(command), 0);
    process_signal(fixture->server.process, SIGCONT);
}

/* D6: while the disk is full, decisions continue, and all changes are written when there is
 * room. */
TEST(a_disk_without_room_delays_the_writes_and_stops_no_decision) {
    struct disk disk;
    char ballast[192], copy[96], key[16];
    disk_make(&disk, "true");
    state_path(copy);
    disk_use(&disk, true);
    struct fixture fixture = start(QUOTA, disk.path, NULL);
    disk_use(&disk, false);
    take(&fixture, "ann", 1);
    await_written(&fixture);
    disk_name(&disk, &fixture, "ballast", ballast);
    disk_fill(ballast);
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "key-%d", i);
        take(&fixture, key, 3);
    }
    process_await(fixture.server.process, "the disk is full; make room on it", 1);
    EVENTUALLY(metric(&fixture, "doorman_state_errors_total") >= 2);
    expect(&fixture, "/v1/status", HOST, 200, "the disk is full");
    expect(&fixture, "/", HOST, 200, "cannot be written");
    take(&fixture, "ann", 1000);
    assert_int_equal(used(&fixture, "key-299"), 3);
    assert_int_equal(unlink(ballast), 0);
    process_await(fixture.server.process, "msg=\"the store of counters works again\"", 1);
    await_written(&fixture);
    copy_as_after_a_crash(&disk, &fixture, copy);
    server_stop(&fixture.server);
    fixture = start(QUOTA, copy, NULL);
    assert_int_equal(used(&fixture, "ann"), 1001);
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "key-%d", i);
        assert_int_equal(used(&fixture, key), 3);
    }
    server_stop(&fixture.server);
}

/* A read-only disk is refused even if the file is there and its mode lets anybody write it. */
TEST(a_read_only_disk_is_refused) {
    struct disk disk;
    disk_make(&disk, "touch disk/state && chmod 666 disk/state && mount -o remount,ro disk");
    disk_use(&disk, true);
    expect_refusal((const char *[]){"--state", disk.path, NULL}, 1,
                   "cannot be opened for writing: Read-only file system");
    disk_use(&disk, false);
}

/* ---- what people do with the file ------------------------------------------------------------ */

/* Runs commands of SQL on the file, as a person with the tool sqlite3 does. */
static void person_runs(const char *path, const char *commands) {
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(path, &database), SQLITE_OK);
    if (sqlite3_exec(database, commands, NULL, NULL, NULL) != SQLITE_OK) {
        fail_msg("%s: %s", commands, sqlite3_errmsg(database));
    }
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

static void make_file(const char *path) {
    struct fixture fixture = start(QUOTA, path, NULL);
    take(&fixture, "ann", 10);
    take(&fixture, "bob", 10);
    server_stop(&fixture.server);
}

/* Puts a copy in the place of the file of a server that was killed, and expects the counters of the
 * copy. */
static void expect_put_back(const char *path, const char *command, const char *learns) {
    char line[512];
    struct fixture fixture = start(QUOTA, path, NULL);
    take(&fixture, "ann", 1000);
    await_written(&fixture);
    kill_now(&fixture);
    snprintf(line, sizeof line, "cd $(dirname %s) && rm -f state-wal state-shm && %s", path,
             command);
    assert_int_equal(system(line), 0);
    fixture = start(QUOTA, path, NULL);
    process_await(fixture.server.process, learns, 1);
    assert_int_equal(used(&fixture, "ann"), 10);
    server_stop(&fixture.server);
}

/* D9, as docs/operations.md says. The copy of the file of a stopped server also has its leases,
 * which are old when the copy is put back. If the copy replaces the file (mv), the server sees
 * another inode. If the copy is written into the file (cp), the person deletes the leases in the
 * copy first. The copy of the file of a running server has no leases. */
TEST(a_copy_that_is_put_back_has_its_counters_and_no_leases) {
    char path[96], command[256];
    state_path(path);
    make_file(path);
    snprintf(command, sizeof command, "cp %s %s-copy && cp %s %s-old", path, path, path, path);
    assert_int_equal(system(command), 0);
    expect_put_back(path, "mv state-copy state", "why=\"the file is a copy of the one");
    snprintf(command, sizeof command, "%s-old", path);
    person_runs(command, "DELETE FROM handover");
    expect_put_back(path, "cp state-old state", "why=\"the last process did not stop as planned\"");
    struct fixture fixture = start(QUOTA, path, NULL);
    await_written(&fixture);
    snprintf(command, sizeof command, "VACUUM INTO '%s-running'", path);
    person_runs(path, command);
    kill_now(&fixture);
    expect_put_back(path, "cp state-running state",
                    "why=\"the last process did not stop as planned\"");
}

/* D10: a row that cannot be read is kept, skipped, counted and named. */
TEST(a_row_that_cannot_be_read_is_named_and_stays) {
    char path[96];
    state_path(path);
    make_file(path);
    person_runs(path, "UPDATE counters SET record = x'ff00' WHERE key = 'bob'");
    for (int i = 0; i < 2; i++) {
        struct fixture fixture = start(QUOTA, path, NULL);
        process_await(fixture.server.process, "of_no_limit=0 unreadable=1", 1);
        process_await(fixture.server.process,
                      "msg=\"a counter cannot be read, and stays in the store\"", 1);
        process_await(fixture.server.process, "limit=quota resource=maps key=bob", 1);
        assert_true(metric(&fixture, "doorman_state_unreadable_rows") >= 1);
        assert_int_equal(used(&fixture, "ann"), 10);
        assert_int_equal(used(&fixture, "bob"), 0);
        server_stop(&fixture.server);
    }
}
