/* doorman_server, part HTTP: declarations for the files that write the pages, the JSON for programs
 * and the metrics. */
#ifndef DOORMAN_SERVER_PAGES_H
#define DOORMAN_SERVER_PAGES_H

#include "../http/http.h"
#include "../state/state.h"

/* ---- >>snapshot ----------------------------------------------------------------------------- */

#define ROWS_MAX 100000 /* resources or leases of a snapshot */

struct row {
    char *id;
    doorman_server_resource info; /* its id and settings pointers are not valid */
    doorman_kind kind;
    char unit[DOORMAN_UNIT_BYTES_MAX + 1]; /* "": none */
    double reserved; /* capacity that the holders want, and that none of them has yet */
    bool is_missing; /* only for metrics: the resource has lost its last holder */
};

struct snapshot {
    const char *filter;    /* only resources whose ids contain this text become rows */
    size_t limit;          /* maximum number of rows */
    const bool *abandoned; /* see struct http_response */
    doorman_time now;
    bool is_master, stopping, has_others;
    char master[DOORMAN_ID_BYTES_MAX + 1];      /* "": not known */
    char master_http[DOORMAN_ID_BYTES_MAX + 1]; /* of another process; "": not known */
    char parent_http[DOORMAN_ID_BYTES_MAX + 1]; /* of the parent's pages; "": not known */
    size_t resource_count, leased_count, learning_count, holder_count, match_count;
    doorman_time learned_at, lease_end; /* latest end of learning; earliest lease end */
    doorman_time learns_until; /* when the process stops learning, also if it has no resources; 0:
                                  it does not learn */
    uint64_t config_version;   /* in force; 0: the configuration has none */
    bool config_is_cached;     /* see struct config_load */
    struct parent_state parent;
    struct election_status election;
    struct descriptors descriptors; /* see struct service */
    struct drain drain;
    bool has_state; /* --state is given */
    struct state_status state;
    doorman_time state_age; /* of the oldest change that is not in the store */
    struct row *rows;
    size_t row_count, row_capacity;
    struct row others; /* the sum of the resources beyond `limit` */
    bool failed;       /* out of memory */
};

struct lease_row {
    char *id;
    doorman_server_lease info; /* its id pointer is not valid */
    bool is_late;              /* the holder has missed two refreshes */
    struct suspect *suspect;   /* the peers, if `info` is shared or unconfirmed; NULL: not known */
};

/* One resource, and some of its leases. */
struct lease_list {
    const char *resource_id;
    const char *filter;    /* only leases whose holder ids contain this text become rows */
    size_t limit;          /* maximum number of rows */
    const bool *abandoned; /* see struct http_response */
    doorman_cursor cursor; /* in: where the list starts; {0}: with the first lease. out: where the
                              next list starts */
    bool has_more;         /* there are more leases than `limit` */
    doorman_time now;
    doorman_time late_age; /* the age from which the last renewal of a holder is late */
    bool found;
    struct row resource;
    char *description; /* NULL: none */
    char *glob;        /* of the template; NULL: not known to this node */
    struct lease_row *rows;
    size_t row_count, row_capacity;
    bool failed;
};

/* When a request shows that two processes use one name, the parent says so in the response. After
 * this time without such a response, the name is probably no longer shared. */
#define NODE_SHARED_MAX (300 * DOORMAN_SECOND)

/* Returns whether the parent has said within NODE_SHARED_MAX that another process uses the name of
 * this node too. */
static inline bool server_node_is_shared(const struct parent_state *parent, doorman_time now) {
    return parent->shared_at > 0 && now - parent->shared_at < NODE_SHARED_MAX;
}

/* Takes a snapshot.
 *   filter   only resources whose ids contain this text become rows
 *   limit    maximum number of rows; the other matching resources are added up
 *   cost     O(resources) */
void server_snapshot_take(struct snapshot *snapshot, struct service *service, const char *filter,
                          size_t limit);
void server_snapshot_uninit(struct snapshot *snapshot);

/* Finds the master with a discovery request, as a client does, and copies the state of the process
 * without its resources. Precondition: the lock is held. */
void server_snapshot_find_master(struct snapshot *snapshot, struct service *service);
void server_snapshot_add_row(struct snapshot *snapshot, const doorman_server_resource *info);
void server_snapshot_add_other(struct snapshot *snapshot, const struct row *row);

#define SLICE_STEPS_MAX 4096 /* elements that are visited while the lock is held */

/* The part of an iteration during which the lock is held. */
struct slice {
    size_t steps;
    doorman_time started_at, started_cpu;
};

/* Takes the lock. */
struct slice server_slice_start(struct service *service);

/* Counts a step. Returns whether the slice is over. */
bool server_slice_step(struct slice *slice);

/* Notes how long the lock was held, releases it, and sleeps for a moment. */
void server_slice_end(const struct slice *slice, struct service *service);

/* Calls `callback` for each resource until it returns false. The lock is held during these calls,
 * and is released for a moment after at most SLICE_STEPS_MAX of them.
 *   reserve   called without the lock. It makes room for SLICE_STEPS_MAX elements. If it returns
 *             false, the iteration ends */
void server_for_each_resource(struct service *service, bool (*reserve)(void *context),
                              bool (*callback)(void *context, const doorman_server_resource *info),
                              void *context);

/* Makes room for SLICE_STEPS_MAX more items; may move the items.
 *   capacity   in/out
 *   bytes      the size of an item
 *   returns    the items; NULL if memory runs out, and the items stay where they are */
void *server_reserve(void *items, size_t count, size_t *capacity, size_t bytes);
bool server_snapshot_reserve(void *snapshot); /* for server_for_each_resource */

/* Returns the name of a kind of algorithm, as in a configuration. */
const char *server_kind_name(doorman_kind kind);

int server_compare_row_ids(const void *left, const void *right);

/* Copies a resource, and its leases up to `limit`. The caller sets the fields from resource_id to
 * cursor. */
void server_lease_list_take(struct lease_list *leases, struct service *service);
void server_lease_list_uninit(struct lease_list *leases);
void server_lease_row_uninit(struct lease_row *row);

/* A search finds the leases of holders over all resources. */

#define SEARCH_ROWS 100      /* the default of `limit` */
#define SEARCH_ROWS_MAX 1000 /* the largest `limit` */

/* A position in the leases of all resources. {0} is the start. */
struct search_position {
    uint64_t before;   /* the position of a cursor before the current resource */
    uint64_t resource; /* the position of that cursor behind the resource. If the cursor now moves
                          to another position, the resource is gone, and `lease` is not valid */
    uint64_t lease;    /* the position of a cursor in the leases of the current resource */
};

struct found_lease {
    char *resource_id;
    char unit[DOORMAN_UNIT_BYTES_MAX + 1];
    struct lease_row lease;
};

struct lease_search {
    const char *prefix;              /* the ids of the holders start with this text */
    size_t limit;                    /* maximum number of rows */
    const bool *abandoned;           /* see struct http_response */
    struct search_position position; /* in: where the search starts. out: where the next one does */
    bool has_more;                   /* the search has not come to the end of all leases */
    doorman_time now;
    size_t step_count; /* resources and leases that the search has visited */
    struct found_lease *rows;
    size_t row_count, row_capacity;
    bool failed;
};

/* Finds leases. The caller sets the fields from prefix to position.
 *   cost   O(visited resources and leases). There is no index of holders, because it would take
 *          memory for each lease. One call visits at most 5,000 elements for each row of `limit`,
 *          and at most 500,000 in all. These take about 0.4 s, or some seconds if their data is
 *          not in the CPU's caches. The call holds the lock for slices of about 1 ms. So it delays
 *          other pages, but hardly any requests for leases */
void server_search_take(struct lease_search *search, struct service *service);
void server_search_uninit(struct lease_search *search);

/* Reads the position of a search from the field "after" of a query. Returns false if the query has
 * a position that is not from this process. */
bool server_search_read_position(const char *query, const struct service *service,
                                 struct search_position *out);
void server_search_add_position(struct text *text, const struct service *service,
                                const struct search_position *position);
struct config_load server_last_load(struct service *service);

/* ---- >>children ----------------------------------------------------------------------------- */

enum child_state { CHILD_LIVE, CHILD_SILENT, CHILD_ENDED, CHILD_STATE_COUNT };

struct child {
    char node[DOORMAN_ID_BYTES_MAX + 1];
    char http_address[DOORMAN_ID_BYTES_MAX + 1]; /* of its pages; "": not known */
    doorman_time seen_at;                        /* the time of its last request */
    enum child_state state;
    doorman_time lease_end;        /* of the lease that ends last; 0: the child had none */
    doorman_time refresh_interval; /* of its last response; 0: not known, because it had no lease,
                                      or has released one since then */
};

struct child_list {
    struct child *items; /* in the order of their names */
    size_t count;
    doorman_time now;
};

/* Copies the child nodes that have sent requests in the last hour. If memory runs out, the list is
 * empty. */
void server_children_take(struct child_list *list, struct service *service);
void server_children_free(struct child_list *list);
const struct child *server_children_find(const struct child_list *list, const char *node);
const char *server_child_state_name(enum child_state state);

/* Adds the metric of the child nodes. */
void server_children_metrics(struct text *text, struct service *service);

#define CHILDREN_TEXT (DOORMAN_ID_BYTES_MAX + 128)

/* Describes a child node that is silent or has ended, and says how many more there are; "" if there
 * is none. Precondition: the lock is held. */
void server_children_text(const struct service *service, char text[CHILDREN_TEXT],
                          doorman_time now);

/* ---- >>pages -------------------------------------------------------------------------------- */

/* Starts a page.
 *   filter   the filter of the list on the page; NULL: the page has no filter, and browsers without
 *            JavaScript do not load the page again
 *   client   the text in the search for a client */
void server_page_start(struct service *service, const struct http_request *request,
                       struct http_response *response, const char *filter, const char *client);

/* The first page is one of these: the resources, or the limits of a server that only decides on
 * permits. Both begin with the facts about the process. */
server_handler server_page_resources, server_page_limits;

/* Ends a page.
 *   has_script   the page has the script, which loads it again every two seconds */
void server_page_end(struct http_response *response, bool has_script);

#define PAGE_NOT_MASTER                                                                            \
    "<p class=soft>This process is not the master. Only the master decides on permits.</p>"

/* Starts a row of a table: adds a key with a link to its page, and the resource. */
void server_page_key_start(struct text *text, const char *resource, const char *key);

/* Add a cell of a table.
 *   name   of its column, for narrow screens */
void server_page_cell(struct text *text, const char *name, double amount);
void server_page_cell_text(struct text *text, const char *name, const char *value);
void server_page_cell_duration(struct text *text, const char *name, doorman_time duration);

/* ---- >>limits ------------------------------------------------------------------------------- */

/* Adds the metrics of the limits of permits. */
void server_limits_metrics(struct text *text, struct service *service, const bool *abandoned);

/* Adds what the limits have counted for a key, as a table. */
void server_page_key(struct text *text, struct service *service, const char *resource,
                     const char *key);

/* Reads a position in the counters: four numbers in hexadecimal digits. The last one names the
 * process. Returns false if the position is not from this process. An empty text is the start. */
bool server_counters_read_position(const char *text, const struct service *service,
                                   doorman_counter_cursor *out);
void server_counters_add_position(struct text *text, const struct service *service,
                                  const doorman_counter_cursor *cursor);

/* ---- >>history ------------------------------------------------------------------------------ */

#define HISTORY_POINTS 60
#define HISTORY_INTERVAL (10 * DOORMAN_SECOND)

struct trend {
    char id[DOORMAN_ID_BYTES_MAX + 1]; /* in place: see history.c */
    unsigned count;   /* the number of valid points, which are at the end; the newest is last */
    unsigned missing; /* points since the resource lost its last holder; 0: it has holders */
    float has[HISTORY_POINTS], wants[HISTORY_POINTS];
    float capacity[HISTORY_POINTS]; /* below 0: the holders did not share a capacity */
};

/* Adds the newest point, and drops the oldest. */
void server_points_add(float points[HISTORY_POINTS], double value);

/* Returns a copy of the history of a resource. The copy is empty if the resource is not found. */
struct trend server_history_find(struct service *service, const char *id);

/* Adds a row for each resource that has lost its last holder in the last ten minutes. The amounts
 * of such a row are 0. Sorts the rows that the snapshot has.
 *   limit   of all rows */
void server_history_add_missing(struct service *service, struct snapshot *snapshot, size_t limit);

/* The last ten minutes of a limit of permits. */
struct limit_trend {
    char glob[DOORMAN_ID_BYTES_MAX + 1], name[DOORMAN_ID_BYTES_MAX + 1]; /* in place, as in trend */
    uint64_t granted_count, refused_count; /* of the newest point: what the limit has decided */
    unsigned count;                        /* as in struct trend */
    float granted[HISTORY_POINTS], refused[HISTORY_POINTS]; /* permits a second */
};

/* Returns a copy of the history of a limit. The copy is empty if the limit is not found. */
struct limit_trend server_limit_history_find(struct service *service, const char *glob,
                                             const char *name);

/* Returns the sum of the refusals of a limit. */
uint64_t server_limit_refused(const doorman_permits_limit *info);

/* ---- >>facts -------------------------------------------------------------------------------- */

/* Starts an element that shows the meaning of a word on hover, such as "<th title='...'>". */
void server_page_start_term(struct text *text, const char *element, const char *word);

/* Lists the words and their meanings. */
void server_page_terms(struct text *text);

/* Writes a duration in at most two units, such as "3 d 4 h". */
void server_page_duration(struct text *text, doorman_time time);

/* Adds the time that is left until the server stops learning. */
void server_page_learning_time(struct text *text, doorman_time learned_at, doorman_time now);

/* Adds a text that links to the page of another process.
 *   http       the HTTP address of that process; "": not known, so there is no link
 *   resource   the link is to the page of this resource; NULL: to the list of resources */
void server_page_link(struct text *text, const char *http, const char *resource, const char *title);

/* Adds the box at the top of the first page. */
void server_page_facts(struct text *text, struct service *service, const struct snapshot *snapshot);

/* ---- >>graphs ------------------------------------------------------------------------------- */

/* Adds an amount with at most two decimals, or two significant digits below 0.01. Adds "unlimited"
 * if it is below 0. */
void server_text_add_amount(struct text *text, double amount);

/* Adds a bar that shows what the holders have and want. If the holders share one capacity, an edge
 * marks it. The bar ends at the largest of what they have, what they want, and this capacity. Much
 * larger wants are cut off: see WANTS_MAX in graph.c. */
void server_graph_add_bar(struct text *text, const struct row *row);

/* Adds a graph of the last ten minutes, with its axes. A dashed line shows the capacity over
 * time. */
void server_graph_add_trend(struct text *text, struct service *service, const char *id);

/* Adds such a graph of a limit of permits.
 *   is_small   it has no horizontal axis */
void server_graph_add_limit(struct text *text, const struct limit_trend *trend, bool is_small);

/* ---- >>metrics ------------------------------------------------------------------------------ */

/* Adds the metrics of the process: its CPU time, memory, file descriptors and start. */
void server_process_metrics(struct text *text);

#endif
