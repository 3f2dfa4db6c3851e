/* doorman_server, part HTTP: the requests, responses and functions that the paths use. */
#ifndef DOORMAN_SERVER_HTTP_H
#define DOORMAN_SERVER_HTTP_H

#include "../log/log.h"

/* ---- >>text --------------------------------------------------------------------------------- */

/* Text that grows. If memory runs out, `failed` is true and further text is ignored. */
struct text {
    doorman_buffer buffer;
    bool failed;
};

void server_text_add_bytes(struct text *text, const char *bytes, size_t count);
void server_text_add(struct text *text, const char *plain);

/* Adds several texts.
 *   texts   ends with NULL: TEXTS("a", "b") */
void server_text_add_all(struct text *text, const char *const *texts);
#define TEXTS(...) ((const char *const[]){__VA_ARGS__, NULL})

void server_text_add_integer(struct text *text, int64_t value);

/* Adds a duration in seconds, with as many decimals as it has.
 *   duration   at least 0 */
void server_text_add_seconds(struct text *text, doorman_time duration);

/* Adds formatted numbers and constant names. The added text is cut off after 1,023 bytes. In
 * responses to permits, use the functions above: they need a tenth of the time. */
__attribute__((format(printf, 2, 3))) void server_text_addf(struct text *text, const char *format,
                                                            ...);

/* Adds a number without the digits that only come from rounding: an integer with all its digits,
 * and any other number with at most 12 significant digits. */
void server_text_add_number(struct text *text, double value);

/* Adds an amount of a lease, or a sum of such amounts, as server_text_add_number does. The number
 * in the text is at most the amount, so if leases fit into a capacity, their texts do too.
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

/* Adds a text as a string of JSON.
 *   before   the text before the string, for example ",\"key\":" */
void server_text_add_json(struct text *text, const char *before, const char *value);

#define HOLDER_BYTES (DOORMAN_ID_BYTES_MAX + 4)

/* Writes the part of a client_id that people may see: all before its last colon, or its first half
 * if it has no colon. With the whole id, they could use the holds of the client. */
void server_holder_write(const char *client_id, char out[HOLDER_BYTES]);

/* Reads and decodes the value of `name` in "name=value&name=value". A value that does not fit is
 * cut off. Returns false if there is no such value, or if the value contains a 0 byte. */
bool server_query_read(const char *query, const char *name, char *out, size_t room);

/* Returns how often a parameter occurs in a query. */
int server_query_count(const char *query, const char *name);

/* Returns the first parameter of a query that is not in `names` or has no "="; NULL if there is
 * none. The name of the parameter ends before the next "=" or "&".
 *   names   ends with NULL */
const char *server_query_find_unknown(const char *query, const char *const *names);

/* Returns whether a query has "NAME=1". */
bool server_query_is_set(const char *query, const char *name);

/* Reads a number of at most 16 digits. Returns 0 if there is no such number.
 *   end   out: the first character behind the number */
uint64_t server_number_read(const char *text, int base, const char **end);

/* Adds the lines before the values of a metric. `name` is without the prefix "doorman_". */
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

/* What a token allows. Each role allows what ROLE_READ allows, and ROLE_ADMIN allows all.
 * ROLE_FIGURES allows what ROLE_WRITE allows. Otherwise no role includes another role. */
enum role { ROLE_READ, ROLE_WRITE, ROLE_FIGURES, ROLE_SUPPORT, ROLE_ADMIN };

#define TOKEN_GLOBS_BYTES 512 /* of the globs of a token, with a space between two */

struct token_identity {
    char name[TOKEN_NAME_MAX + 1]; /* "": none */
    enum role role;
};

/* The parts of an HTTP request. `verb`, `path`, `query` and `fields` point into its head. */
struct http_request {
    const char *verb, *path, *query;
    const char *fields;  /* the lines of the head after the first line */
    char authority[256]; /* the host of the target, and its port; "": the target is a path */
    struct token_identity token;    /* of the sender */
    const char *peer;               /* its address */
    bool has_wrong_token;           /* the sender has given a token that is not valid */
    bool lacks_role;                /* the token does not have the role that the request needs */
    const struct http_route *route; /* NULL: unknown path, or a method of the protocol */
    size_t length;                  /* bytes of the body; SIZE_MAX: not known */
    size_t body_max;                /* the most that the path takes; set by the check */
    int coding_count;               /* how often Transfer-Encoding occurs */
    bool has_length, is_chunked;    /* Content-Length occurs; the body comes in chunks */
    bool is_old, is_head;           /* the version is HTTP/1.0; the verb is HEAD */
    bool is_last;                   /* the connection closes after the response: the request says
                                       so, or is HTTP/1.0 */
    bool expects_continue; /* the peer may wait for an interim response before it sends the body */
    const char *body;
    size_t body_bytes;
};

/* The response to an HTTP request. */
struct http_response {
    int code;
    const char *type, *more; /* Content-Type; further lines of the head */
    char nonce[33];          /* marks our styles and scripts, see Content-Security-Policy */
    bool has_form;           /* the page has a form that changes something. Browsers then send their
                                real Origin to this server, instead of "null" */
    struct text lines;       /* further lines of the head, after `more` */
    struct text text;        /* the body */
    char field[24];     /* of an error, for the page that shows it: the member of the body that is
                           wrong, such as "set"; "": not known */
    doorman_time delay; /* how long the response waits; if it waits, server_http_reserve_delay has
                           succeeded */
    bool is_asked;      /* server_http_ask has sent a message, so there is no response yet */
    bool may_delay;     /* for `finish`: `handle` has reserved a delay */
    const bool *abandoned; /* atomic: see server_is_abandoned; NULL: false */
};

/* The function of a route, which makes the response. */
typedef void server_handler(struct service *service, const struct http_request *request,
                            struct http_response *response);

/* A message of the protocol that came over HTTP. */
struct method_call {
    struct waiter waiter; /* first: a pointer to it is a pointer to the call */
    doorman_json_exchange exchange;
    char http_address[DOORMAN_ID_BYTES_MAX + 1];
    bool has_reset; /* written by server_method_handle: this process has decided a RESET */
};

/* Handles a message. If the path names a method, the bodies lack the outer {"METHOD": ...}. With
 * the path /v1 the bodies are whole messages, as in every other transport.
 *   call      the caller has set prepare and finish of its waiter
 *   returns   false: permits wait, or other nodes decide. Then `finish` is called, perhaps before
 *             this function returns. The call stays valid until then, unused by the caller */
bool server_method_handle(struct service *service, struct method_call *call,
                          const struct http_request *request, struct http_response *response);

/* Finds a limit of a resource by its name. Precondition: the lock of the service is held.
 *   glob      out: the glob of the template; only written if the limit is found
 *   returns   NULL: the resource has no such limit. Valid while the lock is held */
const doorman_permit_limit *server_limit_find(const struct service *service, const char *resource,
                                              const char *name, const char **glob);

/* Checks that a token may reset what the message of a request names. A message that is not valid is
 * allowed here, because it is refused later. Precondition: the server has tokens.
 *   returns   false: the response is an error */
bool server_reset_check_token(struct service *service, const struct http_request *request,
                              struct http_response *response);

/* Makes the response to a message whose reply is made. Does not use the body of the request. */
void server_method_respond(struct method_call *call, const struct http_request *request,
                           struct http_response *response);

struct http_response server_http_response_init(const bool *abandoned);

/* Returns whether the peer has left, or the server stops. The response may then end early. */
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

/* Refuses a request that may be sent again in a second: 503. */
void server_http_response_set_unavailable(struct http_response *response, const char *message);

/* Refuses a body that is larger than the path takes. */
void server_http_response_set_too_large(struct http_response *response,
                                        const struct http_request *request);

/* Checks that a query has only these parameters, each at most once and with a value. If not,
 * returns false and writes an error. Without this check, a list would come whole if the name of a
 * filter has a typing error.
 *   names   ends with NULL */
bool server_http_check_query(const char *query, const char *const *names,
                             struct http_response *response);

/* ---- >>http requests ------------------------------------------------------------------------ */

#define HTTP_HEAD_MAX ((size_t)16 << 10) /* bytes; also for chunk extensions and trailers */

/* The most bytes of a body on a path that needs no token, where anybody may send a body. A batch of
 * server/link/ has fewer. */
#define HTTP_OPEN_BODY_MAX ((size_t)128 << 10)

/* The verbs of a path: bits, because a path can have several. HEAD counts as GET. */
enum verb { VERB_OTHER = 0, VERB_GET = 1, VERB_POST = 2, VERB_PUT = 4, VERB_DELETE = 8 };

/* A path of HTTP. struct server_part has a list of routes. */
struct http_route {
    const char *path;  /* NULL: the end of the list */
    unsigned verbs;    /* that the path accepts; 0: VERB_GET */
    enum role role;    /* that verbs other than GET need */
    enum role reads;   /* the role that GET and HEAD need */
    bool administers;  /* needs a token also for GET, so that it is known who reads */
    bool has_rest;     /* the path is the start of others, and is no path itself */
    bool is_open;      /* needs no token or Host, for health checks and other nodes */
    bool is_immediate; /* needs few steps, so the loop calls `handle`, and no page delays it */
    bool charges;      /* takes units of permits: see request_check_access. A body is ignored */
    bool takes_form; /* a POST has the body of an HTML form, and comes from a page of this server */
    server_handler *handle;
    /* Makes the response out of the answer to the message that `handle` has sent with
     * server_http_ask. Any thread may call it. NULL: `handle` does not ask. The response may have a
     * delay, which `handle` has reserved.
     *   text   of the answer: see struct forward_asker */
    void (*finish)(struct service *service, const struct http_request *request, const char *text,
                   size_t bytes, struct http_response *response);
};

/* Asks the nodes that own the shards of a message to decide it. Only `handle` of an immediate route
 * with `finish` may call this. Precondition: service->forwards is set.
 *   may_delay   a delay is reserved, which `finish` uses or cancels
 *   returns   NULL: they are asked, and the handler makes no response | why they are not asked */
const char *server_http_ask(struct service *service, const struct http_request *request,
                            const doorman_request *message, bool may_delay);

/* Reads a head.
 *   request   out
 *   head      in/out: lines that end with CR LF, and a final 0. The function splits it in place
 *   bytes     the length of the head without the final 0
 *   returns   NULL; or why the head is invalid */
const char *server_http_request_read(struct http_request *request, char *head, size_t bytes);

/* Reads a field of the head.
 *   out       the first value, without the spaces around it
 *   returns   how often the field occurs; at least 2 if a value does not fit in `room` */
int server_http_field_read(const char *fields, const char *name, char *out, size_t room);

/* Returns the length of the empty lines before a request, which have no meaning (RFC 9112, 2.2).
 *   in   what was received, without a final 0 */
size_t server_http_empty_lines(const char *in, size_t bytes);

/* Checks a request whose body may not have arrived yet. Sets request->route. If the request is
 * refused, returns false and writes an error to the response. */
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

/* Reads chunks in place. The data of the chunks read so far is at the start of `body`. The bytes
 * behind it have not been read yet.
 *   count     in/out: the bytes at `body`. There are fewer when sizes and trailers are removed
 *   returns   100: more bytes are needed; 200: the body is complete, and the rest of the bytes
 *             belongs to the next request; any other value is the status of a refusal */
int server_http_read_chunks(struct chunk_reader *reader, char *body, size_t *count,
                            size_t message_max);

/* Returns the address of HTTP, with the real port instead of 0; "off": it does not listen. */
static inline const char *server_http_address(const struct service *service) {
    return service->http_address ? service->http_address : "off";
}

/* Refuses an address that other machines can reach, unless a token or client certificates protect
 * it. Logs a warning if the token travels in plain text.
 *   flag      that names the address, without "--"
 *   warning   the text of the warning */
enum exit_status server_http_check_reach(const struct service *service, const char *flag,
                                         const char *address, const char *warning);

/* Returns the number of open connections.
 *   limit    out: their maximum
 *   delayed  out: how many of them wait before their responses */
size_t server_http_connection_count(const struct service *service, size_t *limit, size_t *delayed);

/* The most responses that have reserved a delay, and the longest delay of /v1/allow. If the maximum
 * number of connections is small, fewer have one: at most a quarter of it. */
#define HTTP_DELAYED_MAX 64
#define HTTP_DELAY_SECONDS_MAX 25

/* Reserves the delay of one response, before it is known whether the response needs it.
 *   returns   false: as many connections as may wait do so already */
bool server_http_reserve_delay(struct service *service);
void server_http_cancel_delay(struct service *service);

/* ---- >>tokens ------------------------------------------------------------------------------- */

#define HTTP_AUTHORIZATION_MAX (HTTP_TOKEN_MAX * 2 + 512) /* bytes, with a final 0 */

/* Finds the token of a field Authorization. Programs send "Bearer TOKEN". A browser asks its user
 * for a password, and sends "Basic" with any user name and the token as the password. Takes the
 * same time for any wrong token of at most HTTP_TOKEN_MAX bytes.
 *   out       written only if the token is found
 *   returns   false: there is no such token */
bool server_authorization_find(struct tokens *tokens, const char *value,
                               struct token_identity *out);

const char *server_role_name(enum role role);

/* Returns whether a token with the role `role` may do what needs the role `needed`. */
static inline bool server_role_includes(enum role role, enum role needed) {
    return needed == ROLE_READ || role == needed || role == ROLE_ADMIN ||
           (role == ROLE_FIGURES && needed == ROLE_WRITE);
}

/* Returns whether a token may change a resource, or all resources of a template. The role admin
 * covers all. The role support covers the globs of its line, as last loaded.
 *   name          the id of the resource, or the glob of the template
 *   is_template   what `name` is
 *   globs         out: on false, the globs of the token; "" if the file has no such token now */
bool server_token_covers(struct tokens *tokens, const struct token_identity *token,
                         const char *name, bool is_template, char globs[TOKEN_GLOBS_BYTES]);

/* ---- >>limit fields ------------------------------------------------------------------------- */

/* The fields RateLimit, RateLimit-Policy and Retry-After, which say what is left after a permit.
 * /v1/allow and the services of gRPC send them. */

/* A limit that concerns an item. */
struct limit_field {
    char name[DOORMAN_ID_BYTES_MAX + 1];
    double most, remaining;
    doorman_time reset_after, more_after;
    doorman_time window; /* 0: not known */
};

/* The limits of an item. */
struct limit_fields {
    struct limit_field items[DOORMAN_LIMITS_MAX];
    size_t count;
    bool has_first; /* items[0] is the limit that decided */
    bool has_retry_after;
    doorman_time retry_after;
    double share; /* units a second that the key may use, if it is refused with SHARE; else 0 */
};

/* Copies the limits of an item of a permit: first the limit that decided, then the others. Leaves
 * out limits in shadow. */
void server_limit_fields_take(struct limit_fields *fields, const doorman_permit *permit,
                              size_t item_index);

/* Adds a list of limits, which is the value of RateLimit-Policy or of RateLimit. Limits that do not
 * fit into about 1 KiB are left out. Precondition: there is a limit. */
void server_limit_fields_add_list(struct text *text, const struct limit_fields *fields,
                                  bool is_policy);

/* Returns the value of Retry-After, at least 1. */
long long server_limit_fields_retry(const struct limit_fields *fields);

/* Returns whether it is known when a limit has units. A limit of 0 never has units: false. */
bool server_limit_has_times(const struct limit_field *limit);

long long server_limit_integer(double units);          /* rounded down */
long long server_limit_seconds(doorman_time duration); /* rounded up */

/* ---- >>decisions ---------------------------------------------------------------------------- */

/* A decision that another process has made, as JSON. */

#define DECISION_ITEM_MAX 100 /* items of a permit */
#define DECISION_DETAIL_MAX ((size_t)DECISION_ITEM_MAX * DOORMAN_LIMITS_MAX)

/* A decision. Its texts point into the JSON tree from which it was read. */
struct decision {
    doorman_permit permit;
    doorman_permit_grant grants[DECISION_ITEM_MAX];
    doorman_permit_detail details[DECISION_DETAIL_MAX];
};

/* Reads the decision on a permit.
 *   item_count   of the permit
 *   returns      false: it is no decision on this many items */
bool server_decision_read(struct decision *out, const cJSON *decision, size_t item_count);

/* Reads why another process has not decided a permit. On the wire an error is one text, which
 * begins with the method and the path of the field: docs/protocol.md.
 *   out       its path is that of a request without the method
 *   returns   INVALID_ARGUMENT: the permit is wrong | UNAVAILABLE: any other reason */
doorman_status server_decision_read_error(doorman_error *out, const cJSON *error);

/* Returns a reason by its name; a name that is not known: NO_REASON. */
doorman_reason server_decision_reason(const char *name);

#endif
