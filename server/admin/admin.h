/* doorman_server, part ADMIN: acts of administration.
 *
 * E5 Each act is a row of the audit, which the store keeps: when and with which token it was done,
 *    why, and what it has changed. What cannot be written is not done, except for a drain of a
 *    process that is not master, and the end of a drain. Acts of some kinds can be taken back.
 *    Without a store, drains, resets and ends of holds are only logged. */
#ifndef DOORMAN_SERVER_ADMIN_H
#define DOORMAN_SERVER_ADMIN_H

#include "../http/http.h"
#include "../state/state.h"

#define ACT_TEXT (CALL_TEXT + 256)
#define REASON_MAX DOORMAN_REASON_BYTES_MAX
#define AUDIT_NOTE "act"         /* the kind of the notes of the audit */
#define OVERRIDE_NOTE "override" /* the kind of overrides, which have the identity of their act */
#define PLAN_NOTE                                                                                  \
    "plan" /* the kind of plan rows. The rows of the act N have the identities from N * 2^14 on */
#define PLAN_ID_BITS 14  /* of the index of a plan row in its act */
#define ROWS_AT_ONCE 500 /* rows that are looked at while the lock is held */

/* A note that is written with the row of an act. */
struct act_note {
    const char *kind; /* a constant */
    uint64_t id;      /* the identity of the note, as a number of 20 digits */
    int64_t ends_at;  /* as in struct store_note */
    size_t entry;     /* the index of the entry of the act to which it belongs; never less than that
                         of the note before it; 0 if the act has no list of entries */
    char *text;       /* for cJSON_free; NULL: the note is deleted */
};

struct act_notes {
    struct act_note *notes; /* for free, each text for cJSON_free */
    size_t count, capacity;
};

/* An act on its way: described, written, applied, answered. It is allocated, because the thread of
 * the store may need it longer than the request. The threads of pages, of the store and of the
 * shards make and delete its JSON. So the thread of pages shares memory (server_shares_memory) from
 * server_act_new to server_act_free. Between these two calls it must not delete a tree that it made
 * before them. */
struct act {
    struct state_call call;
    struct service *service;
    enum act_kind kind;
    struct token_identity token;
    cJSON *row; /* what the audit says */

    void *detail;                      /* what its kind needs; NULL: nothing */
    void (*free_detail)(void *detail); /* frees it with the act; NULL: nothing to free */

    /* Checks the act, and completes its row. Runs on the thread of the store before anything is
     * written. `id` is known. Returns false if it refuses the act: then `code`, `name` and `error`
     * are set. NULL: nothing to check. */
    bool (*prepare)(struct act *act, struct store *store);

    /* Adds to `notes` what is written with the row. Runs after `prepare`, or after `look_again`, on
     * the same thread. Returns false if memory runs out. NULL: there is nothing but the row. */
    bool (*add_notes)(struct act *act);

    /* Puts the first `written` notes into force. Runs with the lock. NULL: the caller does that. */
    void (*apply)(struct act *act);

    /* Looks again at what other acts may have changed since `prepare`, and refuses or describes the
     * act as `prepare` does. Only used with --shards, for acts whose notes all nodes share. Runs on
     * the thread of the shards. */
    bool (*look_again)(struct act *act);

    struct act_notes notes;
    size_t written;     /* how many of the notes are in the store */
    bool shared_before; /* server_shares_memory at server_act_new */
    size_t row_bytes;   /* of its row in the store; 0: it is not written */
    bool is_done;       /* the change is made, outside of the store */
    bool announces;     /* the change is made after server_act_run: see server_act_confirm */
    uint64_t id;        /* of its row */
    uint64_t row_id;    /* of its first note, if all nodes share it; 0: that of its row */
    bool is_unsure;     /* it is not known whether the notes that all nodes share are written */
    int code;           /* the status of a refusal; 0: none */
    const char *name;
    char error[ACT_TEXT];
};

/* Adds a note to an act.
 *   note      its text belongs to the act from now on, also after a failure
 *   returns   false: memory has run out */
bool server_act_add_note(struct act *act, const struct act_note *note);

/* Writes the row of an act with "known": false, before `prepare` makes a change outside of the
 * store. So the audit has a row even if the process ends during the change. When the act is
 * written, its row is written once more. Returns false if the store has failed: then the act is
 * refused. */
bool server_act_announce(struct act *act, struct store *store);

/* Writes into the row of an announced act why it was refused. Returns false if the store has
 * failed. */
bool server_act_forget(struct act *act, struct store *store, const char *why);

/* Returns the text of the field `name` of a row of the audit or of a note, or NULL if there is
 * none. */
static inline const char *server_row_text(const cJSON *row, const char *name) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, name));
}

/* Returns the same, but "" if there is none. */
static inline const char *server_row_word(const cJSON *row, const char *name) {
    const char *text = server_row_text(row, name);
    return text ? text : "";
}

/* Returns the name of the store of acts in error texts. */
static inline const char *server_acts_store(const struct service *service) {
    return service->state ? "the store of --state" : "etcd";
}

/* Checks that this process keeps acts (server_keeps_acts), and that it is master.
 *   returns   false: the response is an error, or redirects to the master */
bool server_admin_serves(struct service *service, const struct http_request *request,
                         struct http_response *response);

struct note_page;

/* What a list of notes shows. */
struct note_list {
    const char *kind;         /* of the notes */
    const char *const *names; /* of the parameters of its query; ends with NULL */

    /* Adds a line for a note. Runs on the thread that reads the notes (server_notes_read), without
     * the lock. Returns false if the list leaves the note out. */
    bool (*add)(struct note_page *page, const struct store_note *note);

    /* Adds where the next page begins. NULL: the page ends with a line of JSON that has the member
     * `next`. */
    void (*add_next)(struct note_page *page, const char *next);
};

/* A page of a list that is being made. It is allocated, as struct act is. */
struct note_page {
    struct state_call call;
    struct service *service;
    struct note_list list;
    char key[DOORMAN_ID_BYTES_MAX + 1], who[TOKEN_NAME_MAX + 1]; /* of the query */
    char resource[DOORMAN_ID_BYTES_MAX + 1]; /* of the query: only overrides that concern it */
    bool has_key, has_who, has_resource;
    int64_t ending; /* only notes that end until then, in seconds since 1970; 0: all */
    size_t limit, count, visits;
    char before[24], last[24]; /* identities: where the page begins; the last one visited */
    struct text text;
    bool is_over; /* there are no more notes */
    bool failed;  /* the store cannot be read */
    char error[STORE_TEXT];
};

/* Adds a line of any length. */
void server_admin_add_line(struct text *text, const char *line);

/* Answers with a page of a list. The parameters can be key, resource, who, limit, after and ending,
 * as far as list->names has them. May wait for the store. */
void server_admin_list(struct service *service, const struct http_request *request,
                       struct http_response *response, const struct note_list *list);

/* Returns whether a text is UTF-8, without overlong forms and surrogates. */
bool server_text_is_utf8(const char *text);

/* Begins an act. Returns NULL if memory runs out: then the response has failed. The caller frees
 * the act with server_act_free, unless server_act_run or server_act_write_later does. */
struct act *server_act_new(struct service *service, const struct http_request *request,
                           enum act_kind kind, struct http_response *response);
void server_act_free(struct act *act); /* NULL: does nothing */

/* Writes an act, and puts it into force. May wait for the store.
 *   act       after a refusal it is freed, or will be
 *   returns   false: it is refused, and the response says why */
bool server_act_run(struct act *act, struct http_response *response);

/* Does the same for an act whose notes are overrides or plans. With --shards all nodes share these
 * notes, and server/admin/cluster.c writes them. */
bool server_act_run_rows(struct act *act, struct http_response *response);

/* Returns the id of the first note of an act. */
static inline uint64_t server_act_note_id(const struct act *act) {
    return act->row_id ? act->row_id : act->id;
}

/* Runs a call that reads the notes of a kind, as server_state_call does. */
enum call_result server_notes_read(struct service *service, const char *kind,
                                   struct state_call *call, char why[CALL_TEXT]);

/* Writes the notes of an act that are not written yet, without its row.
 *   returns   STORE_OK, or why not all of them are written; act->written says how many are */
enum store_result server_act_put_notes(struct act *act, struct store *store);

/* Frees the notes of an act, so that it has none. */
void server_act_clear_notes(struct act *act);

/* Writes the row of an act once more, after the caller has made the change, or could not make it.
 * Precondition: the act was run with `announces`, so its row has "known": false. This call removes
 * that field, and calls server_act_run.
 *   refusal   why nothing was changed; NULL: it was changed */
bool server_act_confirm(struct act *act, const char *refusal, struct http_response *response);

/* Use this instead of server_act_run while this process is not master. Writes the act when the
 * process is master, and frees it. The act must have no `prepare`. It is lost if the process ends
 * before that, or if too many acts wait. */
void server_act_write_later(struct act *act);

/* Refuses an act: sets `code`, `name` and `error`. Returns false, so that `prepare` can return the
 * result. */
__attribute__((format(printf, 4, 5))) bool
server_act_refuse(struct act *act, int code, const char *name, const char *format, ...);

/* Checks a reason that people give. "" is valid here.
 *   returns   an error for people; NULL: it is valid */
const char *server_reason_check(const char *reason);

/* Adds a parameter `reason` of the query to a row, if there is one.
 *   returns   false: it is not valid, and the response is an error */
bool server_act_add_reason(cJSON *row, const struct http_request *request,
                           struct http_response *response);

/* Adds a time as text, in UTC. */
void server_act_add_time(cJSON *object, const char *name, time_t at);

/* Reads the row of a note with the kind OVERRIDE_NOTE. Returns false if it is not valid.
 *   message   {0}; the caller uninits it */
bool server_override_read(const struct store_note *note, doorman_override_message *message);

/* Does the same for a note with the kind PLAN_NOTE. */
bool server_plan_read(const struct store_note *note, doorman_plans_message *message);

/* What is done with the rows of the store. */
struct rows_wanted {
    bool ends_others; /* rows in force that are not in the store are ended: an act has removed them,
                         but it was not known whether it had succeeded */
    uint64_t late_id; /* an act that the store has perhaps taken late. If its row adds to a bucket,
                         the bucket gets the units now; 0: none */
    bool deletes;     /* notes that a later note replaces are deleted */
    bool is_shared;   /* the store is that of the cluster: a deletion that fails, such as when
                         another node writes, is left to the reading after the next write */
};

/* Deletes the notes of a kind that have ended. Returns false if the store has failed. */
bool server_notes_trim(struct store *store, const char *kind);

/* Puts the overrides and the plan rows of the store into force. The caller may hold the lock of the
 * service. Returns false if the store has failed, or memory has run out. */
bool server_rows_read(struct service *service, struct store *store,
                      const struct rows_wanted *wanted);

/* Moves overrides and plan rows to the notes of a cluster, and puts them into force. Precondition:
 * the caller does not hold the lock of the service, and the rows of the cluster are in force.
 *   from      the store of this node, of this mastership
 *   to        the notes of the cluster, as they were read
 *   returns   false: a store has failed, memory has run out, or another process has written since.
 *             The caller tries again later */
bool server_rows_adopt(struct service *service, struct store *from, struct store *to);

/* Returns the row of an act for cJSON_Delete, or NULL if the list leaves it out. */
cJSON *server_audit_find(const struct note_page *page, const struct store_note *note);

/* Does the same for an override. The row also has the state of the override, and what happens at
 * the end of the override. */
cJSON *server_override_find(const struct note_page *page, const struct store_note *note);

/* Sets the override that the body of a request has as JSON, and answers as PUT /v1/overrides. */
server_handler server_override_set;

/* An act of the audit that a request takes back (E5). */
struct undo {
    uint64_t id;      /* of the act */
    const char *of;   /* what it was about: the name of a kind that has a function for this */
    const cJSON *row; /* of the audit */
    time_t at;        /* when it was done */
};

/* Returns the id of the first note of the act that is taken back. */
uint64_t server_undo_note_id(const struct undo *undo);

/* Takes back an act. `undo` is valid during the call. The new act has the kind ACT_UNDO. */
typedef void undo_function(struct service *service, const struct http_request *request,
                           const struct undo *undo, struct http_response *response);

undo_function server_override_undo, server_plan_undo, server_ban_undo, server_config_undo;

/* Begins the row of an act that takes back another one.
 *   returns   false: the reason is missing or not valid, and the response is an error */
bool server_undo_begin(struct act *act, const struct undo *undo, const struct http_request *request,
                       struct http_response *response);

/* Refuses an undo (an act that takes back another one) in its function `prepare`, if a third act
 * had the same `name` and came after the undone act. Returns whether it refused the undo.
 *   name   its members `resource`, `resource_id`, `glob`, `limit` and `key` are those of the act */
bool server_undo_has_newer(struct act *act, struct store *store, const cJSON *name);

/* Refuses an undo in its function `prepare` or `look_again`, because a third act came later, as
 * above, or because the value that the undone act had set has ended. Returns false.
 *   store   NULL: a third act is not looked for
 *   name    as above */
bool server_undo_refuse(struct act *act, struct store *store, const cJSON *name);

/* Returns how often tokens of the role support have reset a counter, or added to it, in the last
 * day. Call it in a function `prepare`.
 *   entry   has the resource, the key and, if keys share the counter, the limit and `shared_by` */
int server_act_count_resets(const struct act *act, const cJSON *entry);

/* Refuses an act in its function `prepare` if tokens of the role support have reset the counter of
 * an entry too often (server_act_count_resets). Returns false if it refused the act.
 *   more   how often earlier entries of the act do the same */
bool server_reset_check_count(struct act *act, const cJSON *entry, int more);

/* ---- versions of the configuration (E3) ----------------------------------------------------- */

/* Reads one version and the one before it, for GET /v1/config/versions/N and pages.
 *   number    in: a version that is kept
 *   now, last  out: notes as trees that the caller deletes; last NULL: there is none before it
 *   returns   false: the response is an error */
bool server_version_find(struct service *service, uint64_t number, cJSON **now, cJSON **last,
                         struct http_response *response);

/* Makes the answer of GET /v1/config/versions/N/diff, which the caller deletes. */
cJSON *server_version_differ(const cJSON *now, const cJSON *last);

/* The list of versions, without their configurations. */
extern const struct note_list server_version_list;

#endif
