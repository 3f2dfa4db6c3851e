/* doorman_server: what the process knows about its last loads, of the configuration and of other
 * files. The log, the metrics and the status page show it. Only server.h includes this file. */
#ifndef DOORMAN_SERVER_LOAD_H
#define DOORMAN_SERVER_LOAD_H

#define PROBLEM_MAX 20

/* Why a configuration cannot be loaded; or the warnings about one that was loaded. */
struct config_problems {
    size_t count; /* how many there are; `items` has at most PROBLEM_MAX of them */
    doorman_config_problem items[PROBLEM_MAX];
    uint64_t version;    /* of the configuration that was loaded; 0: it has no version */
    bool is_cached;      /* it was loaded from --config-cache */
    bool is_unreachable; /* etcd or the store, which has the configuration, does not answer */
};

#define PROBLEM_TEXT (sizeof(doorman_error) + 64) /* room for an error and its position */

/* Sets a single error that has no position. The text consists of `what` and `why`. */
static inline void server_set_problem(struct config_problems *problems, const char *what,
                                      const char *why) {
    doorman_config_problem *only = &problems->items[0];
    problems->count = 1;
    only->line = only->column = 0;
    snprintf(only->error.text, sizeof only->error.text, "%s%s", what, why);
    only->error.path_bytes = 0;
}

/* Checks the text of a configuration, and makes it.
 *   problems   out: its errors or warnings
 *   returns    as doorman_json_check_config */
static inline doorman_status server_config_check(doorman_config **out, const char *text,
                                                 size_t bytes, struct config_problems *problems) {
    doorman_config_problems list = {.items = problems->items, .room = PROBLEM_MAX};
    doorman_status status = doorman_json_check_config(out, text, bytes, &list);
    problems->count = list.count;
    return status;
}

/* Removes the warnings that do not apply with a store of counters (V8). If one is removed, the
 * warnings for which the list had no room are no longer counted. */
static inline void server_drop_warnings(struct config_problems *problems) {
    size_t listed = problems->count < PROBLEM_MAX ? problems->count : PROBLEM_MAX;
    size_t kept = 0;
    for (size_t i = 0; i < listed; i++) {
        if (!problems->items[i].without_store) problems->items[kept++] = problems->items[i];
    }
    if (kept < listed) problems->count = kept;
}

/* Writes a problem with its position. */
static inline void server_problem_text(const doorman_config_problem *problem,
                                       char text[PROBLEM_TEXT]) {
    int bytes = 0;
    text[0] = 0;
    if (problem->line > 0) {
        bytes =
            snprintf(text, PROBLEM_TEXT, "line %zu, column %zu: ", problem->line, problem->column);
    }
    snprintf(text + bytes, PROBLEM_TEXT - (size_t)bytes, "%s", problem->error.text);
}

/* Writes the first problem, and how many more there are. */
static inline void server_problems_text(const struct config_problems *problems,
                                        char text[PROBLEM_TEXT]) {
    server_problem_text(&problems->items[0], text);
    size_t bytes = strlen(text);
    if (problems->count > 1) {
        snprintf(text + bytes, PROBLEM_TEXT - bytes, " (and %zu more)", problems->count - 1);
    }
}

#define CONFIG_HASH_BYTES 17 /* 16 hexadecimal digits and the final 0 */

/* What can be wrong with a file, apart from an invalid configuration. */
enum load_failure {
    CONFIG_UNREADABLE,
    CERTIFICATE_REFUSED,
    CERTIFICATE_UNREADABLE,
    TOKENS_REFUSED,
    TOKENS_UNREADABLE,
    LOAD_FAILURE_COUNT
};

/* The results of the last loads: of the configuration, of the certificates and of the tokens. */
struct config_load {
    time_t loaded_at;             /* when the configuration in force was loaded */
    uint64_t version;             /* of the configuration in force; 0: it has none */
    bool is_cached;               /* the configuration in force is that of --config-cache */
    char hash[CONFIG_HASH_BYTES]; /* of the configuration in force; "": not known */
    char error[PROBLEM_TEXT];     /* why the last load failed; "": it succeeded */
    size_t warning_count;         /* about the configuration in force */
    char warning[PROBLEM_TEXT];   /* the first of them, and how many more; "": none */
    char failures[LOAD_FAILURE_COUNT][PROBLEM_TEXT]; /* the last of each kind; "": none */
};

/* Notes that a configuration has come into force, and the warnings about it.
 *   hash   may be load->hash */
static inline void server_note_load(struct config_load *load, const char hash[CONFIG_HASH_BYTES],
                                    const struct config_problems *warnings) {
    load->loaded_at = time(NULL);
    load->version = warnings->version;
    load->is_cached = warnings->is_cached;
    memmove(load->hash, hash, CONFIG_HASH_BYTES);
    load->warning_count = warnings->count;
    load->warning[0] = 0;
    if (warnings->count > 0) server_problems_text(warnings, load->warning);
}

#endif
