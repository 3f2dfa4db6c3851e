/* doorman_server, part ETCD: calls to etcd. server.h has the settings of the part, and the fields
 * that other parts read. */
#ifndef DOORMAN_SERVER_ETCD_H
#define DOORMAN_SERVER_ETCD_H

#include "../log/log.h"
#include "../util/base64.h"

/* Only one thread at a time may use a struct etcd, except to cancel a call. */
#define ETCD_REVISION 24 /* bytes; a 64-bit number in decimal fits */
#define ETCD_TOKEN 4096  /* bytes: a token of etcd and the final 0 */
#define ETCD_KEY_TEXT BASE64_TEXT(ETCD_KEY_BYTES_MAX)

/* Why a call has failed, if the caller can do something about it. */
enum etcd_failure {
    ETCD_FAILED,   /* another reason */
    ETCD_DENIED,   /* the user of etcd lacks a right */
    ETCD_FULL,     /* etcd has no space left */
    ETCD_TOO_LONG, /* the response would be too long */
    ETCD_TIMED_OUT
};

struct etcd {
    const struct settings *settings;
    const struct addresses *members;
    struct etcd_transport *transport; /* NULL: not initialized */
    size_t at;                        /* the member to try next; stays the same while it answers */
    size_t tries;                     /* members to try for one call */
    doorman_time deadline;            /* a duration: the time limit of one try */
    doorman_time ends_at;             /* when the current try ends */
    doorman_time refused_until;       /* no authentication before this time */
    char token[ETCD_TOKEN];           /* for --etcd-user; "": none */
    doorman_error error;              /* why the last call failed: "MEMBER: reason" */
    enum etcd_failure failure;        /* the kind of this reason */
    bool is_denied;                   /* the last call has changed nothing, because each member that
                                         was tried denied it. An etcd that becomes full may have
                                         made the change */
    counter *errors;                  /* for each member: failed tries; NULL: not counted */
};

/* Prepares calls, and reads the files that the flags name, to check them. Precondition: the server
 * has not started its threads. */
enum exit_status server_etcd_init(struct etcd *etcd, const struct settings *settings);
void server_etcd_uninit(struct etcd *etcd); /* works after an incomplete init too */

/* Prepares calls without a check, for another struct with settings that were checked before. */
enum exit_status server_etcd_init_again(struct etcd *etcd, const struct settings *settings);
void server_etcd_set_election_deadline(struct etcd *etcd, const struct settings *settings);

/* With true, the current call to etcd and all later calls fail at once. Any thread may call this
 * function. */
void server_etcd_cancel(struct etcd *etcd, bool cancelled);

/* Tries the members in turn until one answers. If the response to the first try is lost, etcd can
 * get the call twice. All calls of the server are safe to repeat.
 *   returns   the response, which the caller deletes; NULL: no member answers, see `error` */
__attribute__((format(printf, 3, 4))) cJSON *server_etcd_call(struct etcd *etcd, const char *path,
                                                              const char *format, ...);

/* Does the same as server_etcd_call, for a body of any length. */
cJSON *server_etcd_post(struct etcd *etcd, const char *path, const char *body);

/* Returns a number of an object as a string. Returns "0" if the number is missing, because etcd
 * omits zeros. */
const char *server_etcd_number(const cJSON *object, const char *key);

/* Reads a key.
 *   out       the entry, a part of the response; NULL: the key does not exist
 *   returns   the response, which the caller deletes; NULL: etcd does not answer */
cJSON *server_etcd_get(struct etcd *etcd, const char *key, const cJSON **out);

/* Decodes the value of an entry. Returns false if the value does not fit. */
bool server_etcd_read_value(const cJSON *entry, char *bytes, size_t room, size_t *count);

/* Loads the configuration from a key, if the key has changed.
 *   revision   in/out: the revision that was loaded last; "": none
 *   out        NULL: the key has not changed, or its value is invalid
 *   problems   written in full: why the value is invalid, or warnings about it
 *   returns    false: etcd does not answer */
bool server_etcd_load_config(struct etcd *etcd, const char *key, char revision[ETCD_REVISION],
                             doorman_config **out, struct config_problems *problems);

enum exit_status server_etcd_check_settings(const struct settings *settings);

#endif
