/* doormanctl: a program for the operators of doorman_server. It asks a server over HTTP, and shows
 * the answers as tables for people or, with --json, as the server has written them.
 *
 *     main.c       flags, help, and the way to a command
 *     commands.c   the commands, and their table
 *     plans.c      the commands of plans
 *     audit.c      what was done, and the way back
 *     config.c     the commands of the configuration
 *     operate.c    drains, ends of holds and reservations, bans, and keys that use most
 *     lines.c      lists that come in parts, and times
 *     request.c    one request to a server, with libcurl
 *     settings.c   the address, the token and the like: flags, environment, file
 *     table.c      tables, and amounts with units
 *     ctl.c        what the other files use
 *     shards.c     which node decides for which keys
 *     subscribe.c  what happens, as the server publishes it; needs libnng
 *     descriptor.c the commands about descriptors of gateways
 *     convert.c    a configuration of Envoy's ratelimit as one of Doorman; yaml.c reads it
 *
 * The program uses no source file of the server. It runs one command on one thread, except on_pipe
 * of subscribe.c, and then ends. */
#ifndef DOORMAN_CTL_H
#define DOORMAN_CTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <cjson/cJSON.h>

/* The exit code of the program. */
enum ctl_exit {
    CTL_DONE = 0,
    CTL_REFUSED = 1,     /* the server refused, what was named does not exist, or another failure */
    CTL_USAGE = 2,       /* the command line, the environment or the settings are wrong */
    CTL_UNREACHABLE = 3, /* no server of Doorman answers at the address */
    CTL_NOT_ALLOWED = 4, /* the token is missing, wrong, or lacks the role */
};

/* ---- texts ---------------------------------------------------------------------------------- */

/* Prints "doormanctl: ..." to standard error, and returns `code`. */
__attribute__((format(printf, 2, 3))) enum ctl_exit ctl_fail(enum ctl_exit code, const char *format,
                                                             ...);

/* Prints a line to standard output, without control characters. */
__attribute__((format(printf, 1, 2))) void ctl_say(const char *format, ...);

/* Ends the program if `memory` is NULL, because memory ran out. Returns `memory`. */
void *ctl_need(void *memory);

/* Prints a text, with `?` for each control character. ctl_width returns how many characters it
 * prints. */
void ctl_print(FILE *file, const char *text);
int ctl_width(const char *text);

/* Return a field of an object: "", 0 or false if the field is missing or has another type. */
const char *ctl_text(const cJSON *object, const char *name);
double ctl_number(const cJSON *object, const char *name);
bool ctl_is_true(const cJSON *object, const char *name);

/* ---- settings ------------------------------------------------------------------------------- */

struct ctl_settings {
    const char *url, *token, *cacert, *cert, *key, *timeout; /* NULL: not given */
    const char *events;                                      /* addresses; NULL: not given */
    const char *file;                                        /* where more settings are */
    char *text; /* of the file; the settings point into it. The caller frees it */
};

/* A setting. `flag` is its name in the file too. */
struct ctl_setting {
    const char *flag, *argument, *variable;
    size_t place; /* in struct ctl_settings */
    bool has_flag, in_file;
    const char *help;
};

#define CTL_SETTING_COUNT 8
#define CTL_TOKEN_BYTES_MAX 512
extern const struct ctl_setting ctl_settings_table[CTL_SETTING_COUNT];

/* Fills in what no flag has given, from the environment and then from the file. Checks all values,
 * and reports what is wrong.
 *   settings   in/out: the values of the flags
 *   timeout    out: seconds, above 0 */
enum ctl_exit ctl_settings_complete(struct ctl_settings *settings, double *timeout);

/* ---- requests ------------------------------------------------------------------------------- */

/* A server, and how its answers are shown. */
struct ctl {
    struct ctl_settings settings;
    char *url;             /* of the server: that of the settings, or of the master */
    double timeout;        /* seconds without a byte after which a request fails */
    double started, shown; /* seconds of a clock: the first request, the last line of progress */
    double received;       /* bytes of the requests that have ended */
    bool json, has_color;
    const char *reason; /* that of --reason; NULL: not given */
    void *curl;         /* the CURL, which keeps the connection */
};

/* A name and a value of a query. */
struct ctl_parameter {
    const char *name, *value; /* value NULL: the parameter is left out */
};

#define CTL_PARAMETER_MAX 5

struct ctl_request {
    const char *path;
    struct ctl_parameter query[CTL_PARAMETER_MAX];
    const char *verb;    /* NULL: POST with a body, else GET */
    const cJSON *body;   /* NULL: none */
    const char *text;    /* a body that is sent as it is; NULL: `body`, or none */
    const char *header;  /* a line of the head; NULL: none */
    const char *expects; /* a field of each answer of a Doorman; NULL: any text is an answer */
    bool here;           /* about this process, so the master is not asked instead */
    bool forwards;       /* the server asks other nodes: no redirect=1, which forbids that */
};

struct ctl_reply {
    long status;
    char *text; /* as it came, with a 0 behind it */
    size_t bytes;
    cJSON *json; /* NULL: the text is not JSON */
};

/* Sends one request, and does not check the answer. If there is no answer, reports why. The caller
 * calls ctl_reply_free in any case. */
enum ctl_exit ctl_send(struct ctl *ctl, const struct ctl_request *request, struct ctl_reply *reply);

/* Sends a request. If the process that answers is not the master, asks the master, unless `here` is
 * set. Reports an answer that is an error. With --json, prints the answer if `expects` is set. The
 * caller calls ctl_reply_free in any case. */
enum ctl_exit ctl_call(struct ctl *ctl, const struct ctl_request *request, struct ctl_reply *reply);

void ctl_reply_free(struct ctl_reply *reply);

/* ---- tables --------------------------------------------------------------------------------- */

/* How a column shows a field of a row. Only CTL_TEXT and CTL_MARKS are aligned to the left. */
enum ctl_kind {
    CTL_TEXT,
    CTL_ID,      /* a whole number, in the form that other commands take */
    CTL_AMOUNT,  /* with at most two decimals, and with the row's `unit` in the column `capacity` */
    CTL_SECONDS, /* such as "90 s" or "3.5 h" */
    CTL_SUM,     /* of the numbers in an object */
    CTL_MARKS,   /* the field names several fields: those that are true, in red */
};

struct ctl_column {
    const char *header, *field; /* a row that lacks the field has "-", or nothing if it is a text */
    enum ctl_kind kind;
};

#define CTL_COLUMN_MAX 10

/* A table whose rows come in several parts. */
struct ctl_table {
    const struct ctl_column *columns; /* ends with a header that is NULL */
    const char *what;                 /* what the rows are, if there are other tables; or NULL */
    int widths[CTL_COLUMN_MAX];       /* characters; of all rows so far */
    bool has_begun;
};

/* Prints rows. The first call prints the headers too. If there is no row, it prints "none", or
 * "WHAT: none".
 *   rows   an array of objects, or NULL */
void ctl_table_print(struct ctl_table *table, const cJSON *rows, bool has_color);

#define CTL_NUMBER_BYTES 48
double ctl_now(void);                                                /* seconds since 1970 */
const char *ctl_seconds(char out[CTL_NUMBER_BYTES], double seconds); /* as CTL_SECONDS */

/* Shows a list that comes as lines of JSON, in parts.
 *   request   its query has room for the position of a part
 *   field     each line has it
 *   change    changes a row before it is shown; NULL: nothing does
 *   columns   NULL: prints the lines as they are */
enum ctl_exit ctl_lines_show(struct ctl *ctl, struct ctl_request request, const char *field,
                             void (*change)(cJSON *row), const struct ctl_column *columns);

#define CTL_POSITION_BYTES 512

/* Stores the position of the next part of a list. Returns false if it is the same part again.
 *   position   in/out: "": there is no other part */
bool ctl_position_move(char position[CTL_POSITION_BYTES], const char *next);

/* Reports an answer that no Doorman gives. */
enum ctl_exit ctl_answer_is_wrong(const struct ctl *ctl);

/* Returns the seconds of a text such as "90", "15m" or "1d", or -1. */
double ctl_duration_read(const char *text);

/* ---- commands ------------------------------------------------------------------------------- */

struct ctl_command {
    const char *name;      /* one or two words */
    const char *arguments; /* shown, and counted: a word in [BRACKETS] may be left out */
    const char *summary, *help;
    enum ctl_exit (*run)(struct ctl *ctl, char *const words[]); /* words: the arguments and NULL */
};

enum ctl_exit ctl_audit(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_undo(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_plan_set(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_plan_load(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_plan_list(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_plan_end(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_config_get(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_config_check(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_config_versions(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_config_diff(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_config_put(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_config_rollback(struct ctl *ctl, char *const words[]);
/* Commands of operate.c. */
enum ctl_exit ctl_run_drain(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_drain_alone(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_undrain(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_hold_end(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_reservation_end(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_bans(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_top_units(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_top_nearest(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_shards(struct ctl *ctl, char *const words[]); /* of shards.c */
enum ctl_exit ctl_run_shards_move(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_shards_drain(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_shards_rebalance(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_shards_force(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_shards_remove(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_descriptor(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_convert(struct ctl *ctl, char *const words[]);
enum ctl_exit ctl_run_events(struct ctl *ctl, char *const words[]); /* of subscribe.c */

/* All commands. A command whose name is NULL ends the list. */
extern const struct ctl_command ctl_commands[];

#endif
