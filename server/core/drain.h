/* doorman_server: drains. A drain ends the mastership of a process, but not the process. server.h
 * includes this file.
 *
 * E11 A drained process is not master, and does not become master. A drain has the steps of a
 *     planned stop, so no grant is lost:
 *
 *     phase     messages              what ends it    next phase
 *     NONE      decided               a request       WANTED, or WRITING without an election
 *     WANTED    decided               the election    WRITING; LEFT if there is nothing to write
 *     WRITING   decided               the store       PAUSED when all is written
 *     PAUSED    refused               the store       LEAVING when the rest is written
 *     LEAVING   refused               the store       LEFT when leases and holds are in the store
 *     LEFT      "not the master"      the election    DONE when it has given the mastership back
 *     DONE      "not the master"      a request       NONE; RETURNING without an election
 *     RETURNING "not the master"      the store       NONE when this process is master
 *
 * Without an election, DONE comes after LEAVING. Without --state too, DONE comes after NONE, and
 * NONE after DONE. With an election, the loss of the mastership before LEAVING leads to LEFT. If a
 * request ends the drain or the store fails before LEAVING, the phase is NONE again, and this
 * process stays master. */
#ifndef DOORMAN_SERVER_DRAIN_H
#define DOORMAN_SERVER_DRAIN_H

enum drain_phase {
    DRAIN_NONE,
    DRAIN_WANTED,
    DRAIN_WRITING,
    DRAIN_PAUSED,
    DRAIN_LEAVING,
    DRAIN_LEFT,
    DRAIN_DONE,
    DRAIN_RETURNING,
    DRAIN_PHASE_COUNT
};

#define DRAIN_TEXT 520 /* bytes of a reason or of a failure, with the final 0 */

/* The longest durations: of WRITING, and of PAUSED or LEAVING. */
#define DRAIN_WRITE_SECONDS 25
#define DRAIN_PAUSE_SECONDS 5

/* The lock of the service guards it. */
struct drain {
    enum drain_phase phase;
    bool must_end;      /* the drain ends as soon as it is DONE */
    doorman_time until; /* when the phase is given up; only of WRITING, PAUSED and LEAVING */
    int64_t since;      /* seconds since 1970 */
    char by[DOORMAN_ID_BYTES_MAX + 1]; /* the name of the token; "": none */
    char reason[DRAIN_TEXT];           /* "": none */
    char failure[DRAIN_TEXT];          /* why the last drain was called off; "": it was not */
};

/* Returns the state of a process as a word, for pages and JSON. */
static inline const char *server_drain_state(const struct drain *drain) {
    switch (drain->phase) {
    case DRAIN_NONE: return "serving";
    case DRAIN_DONE: return "drained";
    case DRAIN_RETURNING: return "returning";
    case DRAIN_WANTED:
    case DRAIN_WRITING:
    case DRAIN_PAUSED:
    case DRAIN_LEAVING:
    case DRAIN_LEFT:
    case DRAIN_PHASE_COUNT:
    default: return "draining";
    }
}

/* Returns whether a process may not become master, because its drain is LEFT or DONE. */
static inline bool server_drain_abstains(const struct drain *drain) {
    return drain->phase == DRAIN_LEFT || drain->phase == DRAIN_DONE;
}

#endif
