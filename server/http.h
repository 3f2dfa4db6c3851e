/* doorman_server, part HTTP: what the files of this part share. Only these files include it, and
 * their tests. */
#ifndef DOORMAN_SERVER_HTTP_H
#define DOORMAN_SERVER_HTTP_H

#include "server.h"

/* ---- >>text --------------------------------------------------------------------------------- */

/* Text that grows. If memory runs out, `failed` is true and further text is ignored. */
struct text {
    doorman_buffer buffer;
    bool failed;
};

void server_text_add_bytes(struct text *text, const char *bytes, size_t count);
void server_text_add(struct text *text, const char *plain);

/* Adds formatted numbers and constant names. The result is cut off after 1,023 bytes. */
__attribute__((format(printf, 2, 3))) void server_text_addf(struct text *text, const char *format,
                                                            ...);

/* Adds a number without the digits that only come from rounding: an integer with all its digits,
 * and any other number with at most 12 significant digits. */
void server_text_add_number(struct text *text, double value);

/* Adds an amount of a lease, or a sum of such amounts, in the same form. The text is never larger
 * than the amount. So if leases fit into a capacity, their texts fit too.
 *   amount   at least 0 */
void server_text_add_lease(struct text *text, double amount);

/* A rule that escapes characters for a language. Returns the text that replaces a character, or
 * NULL if the character needs no escape. The function may write the result to `room`. */
typedef const char *(*escape_rule)(char character, char room[8]);

const char *server_escape_html(char character, char room[8]);
const char *server_escape_json(char character, char room[8]);
const char *server_escape_label(char character, char room[8]);

/* Escapes a character for the query part of a URL. */
const char *server_escape_query(char character, char room[8]);

void server_text_add_escaped(struct text *text, const char *from, escape_rule rule);

/* Reads and decodes the value of `name` in "name=value&name=value". A value that does not fit is
 * cut off. Returns false if there is no such value, or if the value contains a 0 byte. */
bool server_query_read(const char *query, const char *name, char *out, size_t room);

/* Returns whether a query has "NAME=1". */
bool server_query_is_set(const char *query, const char *name);

/* Reads a number of at most 16 digits. Returns 0 if there is no such number.
 *   end   out: the first character behind the number */
uint64_t server_number_read(const char *text, int base, const char **end);

/* Starts a metric. `name` is without the prefix "doorman_". */
void server_metrics_header(struct text *text, const char *name, const char *type, const char *help);

/* Adds a metric with one value. */
void server_metrics_value(struct text *text, const char *name, const char *type, const char *help,
                          double value);

/* Returns the value of a hexadecimal digit, or -1 for any other character. */
int server_hex_value(char digit);

extern const char *const server_message_names[MESSAGE_KIND_COUNT];

#define HTTP_TOKEN_MAX 512           /* bytes of a token */
#define TOKEN_NAME_MAX 64            /* bytes of its name */
#define TOKEN_NAME_DEFAULT "default" /* the name of a token without a name */

/* What a token allows. A role allows all that the roles before it allow. */
enum role { ROLE_READ, ROLE_WRITE, ROLE_ADMIN };

struct token_identity {
    char name[TOKEN_NAME_MAX + 1]; /* "": none */
    enum role role;
};

/* The parts of an HTTP request. The strings point into its head. */
struct http_request {
    const char *verb, *path, *query;
    const char *fields;  /* the lines of the head after the first line */
    char authority[256]; /* the host of the target, and its port; "": the target is a path */
    struct token_identity token;    /* of the sender */
    nng_stream *stream;             /* the connection, which tells the address of the peer */
    bool has_wrong_token;           /* the sender has given a token that is not valid */
    bool lacks_role;                /* the token does not have the role that the request needs */
    const struct http_route *route; /* NULL: unknown path, or a method of the protocol */
    size_t length;                  /* bytes of the body; SIZE_MAX: not known */
    int coding_count;               /* how often Transfer-Encoding occurs */
    bool has_length, is_chunked;    /* Content-Length occurs; the body comes in chunks */
    bool is_old, is_head;           /* the version is HTTP/1.0; the verb is HEAD */
    bool is_last;                   /* the peer wants the connection to close after the response */
    bool expects_continue; /* the peer may wait for an interim response before it sends the body */
    const char *body;
    size_t body_bytes;
};

/* The response to an HTTP request. */
struct http_response {
    int code;
    const char *type, *more; /* Content-Type; further lines of the head */
    char nonce[33];          /* marks our styles and scripts, see Content-Security-Policy */
    char location[DOORMAN_ID_BYTES_MAX + 64]; /* the URL of a redirect; "": none */
    struct text lines;                        /* further lines of the head, after `more` */
    struct text text;                         /* the body */
    doorman_time delay; /* the response goes out so much later; above 0: server_http_reserve_delay
                           has succeeded */
    const bool *abandoned; /* atomic; true: the peer has left; NULL: it stays */
};

/* Each path of HTTP has a function of this type, which makes the response. */
typedef void server_handler(struct service *service, const struct http_request *request,
                            struct http_response *response);

/* A message of the protocol that came over HTTP. */
struct method_call {
    struct waiter waiter; /* first, so that a pointer to it is one to the call */
    doorman_json_exchange exchange;
    char http_address[DOORMAN_ID_BYTES_MAX + 1];
};

/* Handles a message. If the path names a method, the bodies of the request and of the response are
 * the inner objects. With the path /v1 the bodies are whole messages, as in every other transport.
 *   call      the caller sets prepare and finish of its waiter. It must stay valid while it waits
 *   returns   false: permits wait, and finish is called later. It may have been called already, so
 *             the caller must not use the call */
bool server_method_handle(struct service *service, struct method_call *call,
                          const struct http_request *request, struct http_response *response);

/* Makes the response to a message that has waited. The body of the request is not used. */
void server_method_respond(struct method_call *call, const struct http_request *request,
                           struct http_response *response);

struct http_response server_http_response_init(const bool *abandoned);

/* Returns whether the peer has left. A function that makes a response then returns early. */
static inline bool server_is_abandoned(const bool *abandoned) {
    return abandoned && __atomic_load_n(abandoned, __ATOMIC_RELAXED);
}

/* Writes the head and the body of a response to `out`, and frees the body.
 *   last      the connection closes after the response
 *   is_head   leaves out the body */
void server_http_response_write(struct text *out, struct http_response *response, bool last,
                                bool is_head);

/* Turns the response into an error. `name` is an error code of the protocol. `code` is an HTTP
 * status. */
void server_http_response_set_error(struct http_response *response, int code, const char *name,
                                    const char *message);

/* Refuses a message that is larger than --max-message. */
void server_http_response_set_too_large(struct http_response *response, size_t message_max);

/* ---- >>http requests ------------------------------------------------------------------------ */

#define HTTP_HEAD_MAX ((size_t)16 << 10) /* bytes; also for the trailers of a body */

/* A path. server_part has a list of them. */
struct http_route {
    const char *path;  /* NULL: the end of the list */
    bool is_open;      /* needs no token or Host, for health checks */
    bool is_immediate; /* needs few steps, so any thread may make the response */
    bool charges;      /* takes units of permits: see request_check_access */
    server_handler *handle;
};

/* Reads a head.
 *   request   out
 *   head      in/out: lines that end with CR LF, and a final 0. The function splits it in place
 *   bytes     the length of the head without the final 0
 *   returns   NULL; or why the head is invalid */
const char *server_http_request_read(struct http_request *request, char *head, size_t bytes);

/* Returns the length of the empty lines before a request, which have no meaning (RFC 9112, 2.2).
 *   in   what was received, without a final 0 */
size_t server_http_empty_lines(const char *in, size_t bytes);

/* Checks a request whose body may be missing. Sets request->route. If the request is refused,
 * returns false and writes an error to the response. */
bool server_http_request_check(struct service *service, struct http_request *request,
                               struct http_response *response);

enum chunk_state {
    CHUNK_SIZE,
    CHUNK_SPACE,
    CHUNK_EXTENSION,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER_START,
    CHUNK_TRAILER,
    CHUNK_TRAILER_LF,
    CHUNK_END_LF,
    CHUNK_COMPLETE,
    CHUNK_INVALID
};

/* The position in a body that comes in chunks. {0} is the start. */
struct chunk_reader {
    enum chunk_state state;
    uint64_t left; /* the size of the current chunk, without the bytes that have been read */
    unsigned digits;
    size_t body_bytes;    /* bytes of the body that have been read */
    size_t ignored_bytes; /* bytes of extensions and trailers */
};

/* Reads chunks in place. The body so far is at the start of `body`. The bytes that follow the body
 * have not been read yet.
 *   count     in/out: the bytes at `body`. Without sizes and trailers there are fewer
 *   returns   100: more bytes are needed; 200: the body is complete, and the rest of the bytes
 *             belongs to the next request; any other value is the status of a refusal */
int server_http_read_chunks(struct chunk_reader *reader, char *body, size_t *count,
                            size_t message_max);

/* Returns the address, with the real port instead of 0. Returns "off" if HTTP does not listen. */
static inline const char *server_http_address(const struct service *service) {
    return service->http_address ? service->http_address : "off";
}

/* Returns the number of open connections.
 *   limit    out: their maximum
 *   delayed  out: how many of them wait before their responses */
size_t server_http_connection_count(const struct service *service, size_t *limit, size_t *delayed);

/* The most connections that wait before their responses at the same time, and how long they wait.
 * With few connections there are fewer: at most one connection of four waits. */
#define HTTP_DELAYED_MAX 64
#define HTTP_DELAY_SECONDS_MAX 25

/* Reserves the delay of one response, before it is known whether the response needs it.
 *   returns   false: as many connections as may wait do so already */
bool server_http_reserve_delay(struct service *service);
void server_http_cancel_delay(struct service *service);

/* Adds the metrics of the process: its CPU time, memory, file descriptors and start. */
void server_process_metrics(struct text *text);

/* ---- >>tokens ------------------------------------------------------------------------------- */

/* Finds a token. Takes the same time for any wrong token.
 *   out       written only if the token is found
 *   returns   false: there is no such token */
bool server_tokens_find(struct tokens *tokens, const char *given, size_t bytes,
                        struct token_identity *out);

const char *server_role_name(enum role role);

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
    doorman_time learns_until; /* of the process, also without resources; 0: it does not learn */
    struct parent_state parent;
    struct trouble no_master, last_loss, etcd;   /* see struct service */
    doorman_time etcd_answered_at, master_until; /* see struct service */
    struct row *rows;
    size_t row_count, row_capacity;
    struct row others; /* the sum of the resources beyond `limit` */
    bool failed;       /* out of memory */
};

struct lease_row {
    char *id;
    doorman_server_lease info; /* its id pointer is not valid */
    bool is_late;              /* the holder has missed two refreshes */
    struct suspect *suspect;   /* the peers of a lease with a mark; NULL: not known */
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
    doorman_time late_age; /* of the last renewal of a late holder */
    bool found;
    struct row resource;
    char *description; /* NULL: none */
    char *glob;        /* of the template; NULL: not known to this node */
    struct lease_row *rows;
    size_t row_count, row_capacity;
    bool failed;
};

/* The parent reports a shared name with the requests that show it. After this time without such a
 * report, the name is probably no longer shared. */
#define NODE_SHARED_MAX (300 * DOORMAN_SECOND)

/* Returns whether the parent says that another process uses the name of this node too. */
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

/* Finds the master with a discovery request, as a client does, and copies the addresses of other
 * processes. Precondition: the lock is held. */
void server_snapshot_find_master(struct snapshot *snapshot, struct service *service);
void server_snapshot_add_row(struct snapshot *snapshot, const doorman_server_resource *info);
void server_snapshot_add_other(struct snapshot *snapshot, const struct row *row);

#define SLICE_STEPS_MAX 4096 /* elements that are visited while the lock is held */

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

/* Copies a resource and its leases. The caller sets the fields from resource_id to cursor. */
void server_lease_list_take(struct lease_list *leases, struct service *service);
void server_lease_list_uninit(struct lease_list *leases);
void server_lease_row_uninit(struct lease_row *row);

/* The leases of holders over all resources. */

#define SEARCH_ROWS 100      /* the default of `limit` */
#define SEARCH_ROWS_MAX 1000 /* the largest `limit` */

/* A position in the leases of all resources. {0} is the start. */
struct search_position {
    uint64_t before;   /* of a cursor before the current resource */
    uint64_t resource; /* of the same cursor behind the current resource; another value: the current
                          resource is gone, so `lease` is not valid */
    uint64_t lease;    /* of a cursor in the leases of the current resource */
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
 *          and at most 500,000 in all. This takes about 0.4 s, or some seconds if their data is not
 *          in the CPU's caches. The call holds the lock for slices of about 1 ms. So it delays
 *          other pages, but no requests for leases */
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
    doorman_time lease_end;        /* of the lease that ends last; 0: it had none */
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

/* Describes a child node that is silent, and how many others are; "" if none is. Precondition: the
 * lock is held. */
void server_children_text(const struct service *service, char text[CHILDREN_TEXT],
                          doorman_time now);

/* ---- >>pages -------------------------------------------------------------------------------- */

/* Starts a page.
 *   filter   the filter of the list on the page; NULL: the page has no filter. It is not loaded
 *            again every two seconds either, because it can be expensive
 *   client   the text in the search for a client */
void server_page_start(struct service *service, const struct http_request *request,
                       struct http_response *response, const char *filter, const char *client);

/* Ends a page.
 *   has_script   the page has the script */
void server_page_end(struct http_response *response, bool has_script);

/* ---- >>limits ------------------------------------------------------------------------------- */

/* Adds the metrics of the limits of permits. */
void server_limits_metrics(struct text *text, struct service *service, const bool *abandoned);

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

/* Returns a copy of the history of a resource. The copy is empty if the resource is not found. */
struct trend server_history_find(struct service *service, const char *id);

/* Adds a row for each resource that has lost its last holder in the last ten minutes. The amounts
 * of such a row are 0. Sorts the rows that the snapshot has.
 *   limit   of all rows */
void server_history_add_missing(struct service *service, struct snapshot *snapshot, size_t limit);

/* ---- >>facts -------------------------------------------------------------------------------- */

/* Starts an element whose meaning the page shows on hover, such as "<th title='...'>". */
void server_page_start_term(struct text *text, const char *element, const char *word);

/* Lists the words and their meanings. */
void server_page_terms(struct text *text);

/* Writes a duration in its two largest units, such as "3 d 4 h". */
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

/* Returns an amount as text. It has at most two decimals, or two significant digits below 0.01. */
const char *server_amount_text(double amount, char room[32]);
void server_text_add_amount(struct text *text, double amount);

/* Adds a bar that shows what the holders have and want. Its length is the largest of what they
 * have, what they want, and the capacity. If the holders share one capacity, an edge marks it. */
void server_graph_add_bar(struct text *text, const struct row *row);

/* Adds a graph of the last ten minutes, with its axes. A dashed line is the capacity of then. */
void server_graph_add_trend(struct text *text, struct service *service, const char *id);

#endif
