/* doorman_server: what a part of the server is. server.h includes this file.
 *
 * A part adds to the core what operators need, and can be left out. server/core/parts.h lists the
 * parts that the build has chosen, in an order in which a part uses only the core and the parts
 * before it. The core calls no part by name: it calls the functions that the parts have put in
 * their struct, in the order of the list. It calls reload, stopping, stop, destroy and event in the
 * opposite order. */
#ifndef DOORMAN_SERVER_PART_H
#define DOORMAN_SERVER_PART_H

struct service;
struct store;
struct text;
struct http_route;

/* Files that are loaded again when they change. */
enum file_group { FILES_OF_TLS, FILES_OF_TOKENS };

/* A configuration that was loaded or refused. */
struct config_change {
    const doorman_config *last; /* the one that was in force before; this one if it was refused;
                                   NULL: none */
    const struct config_problems *problems;
    bool valid;    /* it could be read; it may have been refused for another reason */
    bool is_first; /* the process has started with it */
};

enum config_access_result {
    ACCESS_DONE,
    ACCESS_STALE,   /* nothing was written, because another version is there */
    ACCESS_REFUSED, /* nothing was written, and `error` says why */
    ACCESS_UNKNOWN  /* it is not known whether it was written */
};

/* A call that reads or replaces the text of a configuration in a key of etcd. */
struct config_access {
    const char *text;  /* the new text; NULL: only reads */
    uint64_t expected; /* the version that the new text replaces; 0: the key has no text */
    uint64_t version;  /* out: the version that is there now; 0: none */
    char *present;     /* out: the text that is there now, unless it is `text`, for free() */
    char error[PROBLEM_TEXT];
};

/* An act of administration that was done (E5). */
struct act_report {
    const char *what, *token;         /* the kind of the act; who did it */
    const char *resource;             /* its id, or a glob; NULL: several, or none */
    const char *key, *limit, *reason; /* NULL: none */
    bool is_glob;                     /* `resource` is a glob */
    uint64_t audit;                   /* the number of its row in the audit */
    size_t entries;                   /* how many keys it is about */
};

/* All functions may be NULL. */
struct server_part {
    const char *name; /* what flags.h calls it; flags of a missing part are refused. NULL: none */
    size_t state_bytes, state_at; /* see SERVER_PART_STATE */

    /* The core calls these at the start, in this order. Those that return a value return CONTINUE,
     * or the exit code with which the process ends. */
    void (*init)(void);                                         /* before anything else */
    enum exit_status (*check)(const struct settings *settings); /* the flags were read */
    /* Takes over what the last run of this process has left.
     *   argv   of main; lasts as long as the process */
    enum exit_status (*adopt)(struct settings *settings, char **argv);
    enum exit_status (*run)(const struct settings *settings); /* if the flags ask for it: does
                                                                 something instead of serving */
    enum exit_status (*load)(struct service *service);   /* before the configuration is loaded */
    enum exit_status (*open)(struct service *service);   /* nothing listens yet. Makes what the
                                                            threads of other parts read */
    enum exit_status (*listen)(struct service *service); /* the addresses and names are known */
    void (*begin)(struct service *service); /* the server object exists, and has answered nothing.
                                               With the lock */
    enum exit_status (*start)(struct service *service); /* messages are answered */
    enum exit_status (*serve)(struct service *service); /* the log says that the process serves */

    /* Only the main thread calls these, except `end`. */
    void (*work)(struct service *service, doorman_time now);   /* once a second */
    void (*update)(struct service *service, doorman_time now); /* once a second, with the lock */
    void (*reload)(struct service *service);                   /* SIGHUP has arrived */
    void (*reloaded)(struct service *service);                 /* after SIGHUP, all is loaded */
    void (*stopping)(struct service *service); /* SIGTERM or SIGINT, or service->replaces is true;
                                                  service->stopping is true */
    void (*stop)(struct service *service);     /* works after an incomplete start too */
    void (*end)(void); /* all parts have stopped. May run another program in place of this process.
                          If the stop hangs, a signal handler on any thread calls this function, so
                          it may only call what signal handlers may call */
    void (*destroy)(struct service *service); /* no other thread and no socket is left */

    /* Loads files again. If they are invalid, what was loaded before stays in force.
     *   is_quiet   a failure is not logged, because a later call will try again
     *   returns    false: they are invalid */
    bool (*load_files)(struct service *service, enum file_group group, bool is_quiet);
    void (*tls_changed)(struct service *service); /* service->tls is a new one */

    /* Any thread may call these. `message`: a message was decided, refused or passed on. */
    void (*message)(struct service *service, const struct message_report *report);

    /* Loads a configuration that is in a key of etcd or in the store.
     *   out       in: NULL; out: the configuration, on success
     *   returns   false: it cannot be loaded, or it is not where this part looks */
    bool (*load_config)(struct service *service, doorman_config **out,
                        struct config_problems *problems);
    void (*reload_config)(struct service *service); /* loads it again. Another thread applies it */

    /* Reads or replaces the text of a configuration in a key of etcd. May wait. Only one thread at
     * a time calls it. */
    enum config_access_result (*access_config)(struct service *service,
                                               struct config_access *access);

    /* Prints why the first configuration cannot be loaded, and returns the exit code. Only the
     * first part that has this function is asked. */
    enum exit_status (*refuse_config)(const struct settings *settings,
                                      const struct config_problems *problems);
    /* Returns whether this process must refuse a valid configuration, and writes why. Precondition:
     * the lock is held. */
    bool (*refuses)(const struct service *service, const doorman_config *config,
                    char error[PROBLEM_TEXT]);
    void (*before_config)(struct service *service); /* a new configuration was loaded. May wait */
    /* Logs a loaded or refused configuration. If no part has this function, the core logs a line,
     * except at the start. */
    void (*report_config)(struct service *service, const struct config_change *change);
    void (*configured)(struct service *service, const struct config_change *change);

    /* Any thread may call these, with the lock unless their comments say otherwise. */
    const char *(*forbids)(const struct service *service); /* why this process must not be master
                                                              of an election now; NULL: it may */
    const char *(*hinders)(const struct service *service); /* why a restart would fail or lose
                                                              something now; NULL: nothing */
    void (*decided)(struct service *service, doorman_json_exchange *exchange, doorman_time now);
    void (*configures)(struct service *service); /* a new configuration will come into force */
    void (*in_force)(struct service *service);   /* it is in force */
    /* An election will make this process the master and call `elected`, unless a part forbids it.
     * May wait for a second. Without the lock. */
    void (*wins)(struct service *service, uint64_t epoch);
    /* An election has made this process the master, or has ended its mastership. Without an
     * election this is not called. The lock is held.
     *   epoch   of the mastership; later ones are larger; 0: the settings have no --state */
    void (*elected)(struct service *service, bool is_master, uint64_t epoch);
    /* The mastership of this process ends, and was not handed over before. The server object has
     * forgotten nothing yet. See on_mastership_end for what may be called. The lock is held. */
    void (*loses)(struct service *service, doorman_time now);
    void (*drains)(struct service *service); /* service->drain has changed */
    /* The process stops, but not all changes are in the store: gives the mastership back now. */
    void (*gives_back)(struct service *service);
    void (*learns)(struct service *service, enum learning_cause cause, doorman_time now);

    /* Reads what the part keeps in the store. This process is master. Is called before any counter
     * is read from the store, and again after server_state_reread. With the lock if nothing was
     * answered yet, else without it.
     *   returns   false: the store has failed, and this is called again */
    bool (*read_store)(struct service *service, struct store *store);

    /* Reads what the part follows in the store, where another master may change it. While this
     * process is not master, is called about once a second, and once more before a mastership of
     * this process is in force. Without the lock.
     *   epoch   of this mastership, as for `wins`; 0: this process is not the master */
    void (*follow_store)(struct service *service, struct store *store, uint64_t epoch);

    /* With --shards, all nodes share notes in etcd, such as overrides. Reads those of this part.
     * This process is master. The notes are new to it, have changed, or are not all adopted yet.
     * Without the lock.
     *   store      the store of these notes, and not that of --state
     *   late       the id of a note that this process has perhaps written, and that may have
     *              arrived late; 0: none
     *   is_whole   false: etcd has come back with an earlier revision, so notes may be lost
     *   returns    false: the store has failed, and this is called again */
    bool (*read_cluster)(struct service *service, struct store *store, uint64_t late,
                         bool is_whole);
    void (*parent_answered)(struct service *service, const doorman_transport_result *result,
                            doorman_time now); /* a request to the parent has ended. Logs it */

    /* An event of the server object. The last part of the list is asked first.
     *   returns   true: the event is dealt with, and no other part is asked */
    bool (*event)(struct service *service, const doorman_event *event);

    void (*acted)(struct service *service, const struct act_report *report); /* an act of
                                                                                administration */

    /* An event of permits. At most PERMIT_PARTS_MAX parts have this.
     *   permit_events         a bit for each kind of event that the part wants
     *   wants_permit_events   whether it wants them at all; NULL: yes. Asked once */
    void (*permit_event)(struct service *service, const doorman_permit_event *event);
    unsigned permit_events;
    bool (*wants_permit_events)(const struct service *service);

    const struct waiting_calls *waits; /* messages whose permits wait. At most one part has them */
    const struct forward_calls *forwards; /* messages for other nodes. At most one part has them */
    const struct batch_calls *batches;    /* messages that travel as one. At most one part */
    const struct tls_calls *tls_calls;    /* TLS for HTTP and gRPC: see server/tls/tls.h. At most
                                          one part has them */

    /* What pages show of the part. The thread of pages calls these. */
    void (*metrics)(struct service *service, struct text *text); /* lines for Prometheus */
    void (*status)(struct service *service, struct text *text);  /* fields of /v1/status, each with
                                                                    a comma before it */
    void (*facts)(struct service *service, struct text *text);   /* rows of the status page */

    const struct http_route *routes; /* paths of HTTP: see server/http/http.h */
};

/* Gives a part a struct for its own use. A member of struct service points to the struct. The core
 * makes it, filled with zeros, before it calls functions that take a service, and frees it at the
 * end. */
#define SERVER_PART_STATE(member)                                                                  \
    .state_bytes = sizeof *((struct service *)NULL)->member,                                       \
    .state_at = offsetof(struct service, member)

/* Runs the statement behind the macro for each part that has the function, in the order of the
 * parts. The statement belongs to an `else`, so an `else` that follows it cannot belong to the
 * macro. */
#define EACH_PART(part, function)                                                                  \
    for (const struct server_part *const *part = server_parts; *part; part++)                      \
        if (!(*part)->function) {                                                                  \
        } else

/* Does the same in the opposite order. */
#define EACH_PART_BACKWARDS(part, function)                                                        \
    for (const struct server_part *const *part = server_parts + server_part_count;                 \
         part != server_parts && (part--, true);)                                                  \
        if (!(*part)->function) {                                                                  \
        } else

extern const struct server_part *const server_parts[]; /* NULL ends the list */
extern const size_t server_part_count;

#endif
