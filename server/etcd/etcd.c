/* doorman_server, part ETCD: calls to the v3 gateway of etcd. This file uses the settings, and no
 * other part of the service. server/etcd/etcd_http.c carries the requests.
 *
 * A call is a POST of JSON. In this JSON, keys and values are base64, and 64-bit numbers are
 * strings. A call goes first to the member that answered last. If that member fails, the call goes
 * to the other members in turn. Each try has a deadline. Only one thread at a time may use a struct
 * etcd.
 *
 * With --etcd-user, each request has a token. etcd issues a token for the user and the password.
 * The token is valid at all members. A simple token ends after some minutes without use, and a
 * member that restarts forgets it. The deadline of a try includes its request for a token.
 *
 *     token   event                             next
 *     none    a try begins                      the server asks for a token
 *             etcd issues a token               valid; the server sends the request
 *             etcd has no authentication        none; the server sends the request without a token
 *             etcd refuses the password         none; the call fails, and the server does not ask
 *                                               again for ETCD_REFUSED_PAUSE
 *     valid   etcd refuses the token            none; the try begins once more
 *             etcd refuses a new token          none; the try fails
 *
 * The pause protects etcd, because the check of a password takes much of its time. The password is
 * read from its file each time, so a changed password needs no restart. */
#include "etcd.h"
#include "../util/host.h"
#include "../util/password.h"
#include "etcd_http.h"

#include <stdarg.h>

#define ETCD_REQUEST 4096 /* bytes; the body of any call of server_etcd_call fits */
#define ETCD_TOKEN_PATH "/v3/auth/authenticate"
#define ETCD_REFUSED_PAUSE (2 * DOORMAN_SECOND)

_Static_assert(ETCD_TOKEN <= ETCD_POST_TOKEN, "a request has room for each token");

/* The codes of gRPC that the server reacts to. */
#define ETCD_INVALID_ARGUMENT 3 /* a wrong password, or a request without a token */
#define ETCD_NO_LEASE 5         /* NOT_FOUND */
#define ETCD_PERMISSION_DENIED 7
#define ETCD_RESOURCE_EXHAUSTED 8
#define ETCD_NO_AUTHENTICATION 9 /* FAILED_PRECONDITION, for a request for a token */
#define ETCD_UNAVAILABLE 14
#define ETCD_UNAUTHENTICATED 16 /* the token is not valid, or not any more */

#define HTTP_REQUEST_TIMEOUT 408
#define HTTP_GATEWAY_TIMEOUT 504

/* ---- setup ---------------------------------------------------------------------------------- */

/* Checks that the file of a flag can be read, and is not empty. */
static enum exit_status etcd_check_file(int flag, const char *path) {
    enum exit_status exit_status = CONTINUE;
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (path && (!file || fgetc(file) == EOF)) {
        exit_status = server_fatal_error(EXIT_ERROR, "--%s %s: %s", server_flag_name(flag), path,
                                         file ? "is empty, or cannot be read" : strerror(errno));
    }
    if (file) fclose(file);
    return exit_status;
}

/* Warns about each member to which the password would travel over a network in plain text. */
static void etcd_warn_about_plain_text(const struct settings *settings) {
    for (size_t i = 0; settings->etcd_user && i < settings->etcd.count; i++) {
        const char *address = settings->etcd.items[i];
        char host[256];
        server_host_read(address, host, sizeof host);
        if (!server_etcd_address_is_https(address) && !server_host_is_loopback(host)) {
            server_log(settings, LEVEL_WARNING,
                       "the password of etcd travels in plain text: give https:// addresses",
                       "etcd", address, LOG_END);
        }
    }
}

static enum exit_status etcd_check_password(const struct settings *settings) {
    char password[PASSWORD_MAX] = "";
    const char *path = settings->etcd_password_file;
    const char *why = path ? server_password_read(path, password) : NULL;
    return why ? server_fatal_error(EXIT_ERROR, "--etcd-password-file %s: %s", path, why)
               : CONTINUE;
}

enum exit_status server_etcd_init(struct etcd *etcd, const struct settings *settings) {
    enum exit_status exit_status = etcd_check_file(FLAG_ETCD_CA, settings->etcd_ca);
    if (exit_status == CONTINUE) {
        exit_status = etcd_check_file(FLAG_ETCD_CERT, settings->etcd_cert);
    }
    if (exit_status == CONTINUE) exit_status = etcd_check_file(FLAG_ETCD_KEY, settings->etcd_key);
    if (exit_status == CONTINUE) exit_status = etcd_check_password(settings);
    *etcd = (struct etcd){.settings = settings};
    if (exit_status == CONTINUE) exit_status = server_etcd_init_again(etcd, settings);
    if (exit_status == CONTINUE) etcd_warn_about_plain_text(settings);
    return exit_status;
}

/* The deadline is long, because etcd may be busy. Callers that cannot wait so long change it. */
enum exit_status server_etcd_init_again(struct etcd *etcd, const struct settings *settings) {
    *etcd = (struct etcd){.settings = settings,
                          .members = &settings->etcd,
                          .tries = settings->etcd.count,
                          .deadline = 5 * DOORMAN_SECOND,
                          .transport = server_etcd_transport_create(settings)};
    return etcd->transport ? CONTINUE : server_fatal_error(EXIT_ERROR, "out of memory");
}

void server_etcd_uninit(struct etcd *etcd) {
    server_etcd_transport_destroy(etcd->transport);
    etcd->transport = NULL;
}

/* Sets the deadline to a fifth of the election's TTL. So four tries fit into the 0.95 TTL for which
 * a master stays master after a renewal (V2). The deadline is at most 2 s. It is at least 0.5 s,
 * because etcd needs time to write to disk. So with the smallest TTL, 2 s, only three tries fit. */
void server_etcd_set_election_deadline(struct etcd *etcd, const struct settings *settings) {
    etcd->deadline = settings->election_ttl * DOORMAN_SECOND / 5;
    if (etcd->deadline < DOORMAN_SECOND / 2) etcd->deadline = DOORMAN_SECOND / 2;
    if (etcd->deadline > 2 * DOORMAN_SECOND) etcd->deadline = 2 * DOORMAN_SECOND;
}

void server_etcd_cancel(struct etcd *etcd, bool cancelled) {
    server_etcd_transport_cancel(etcd->transport, cancelled);
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* Sets etcd->error to "MEMBER: reason". A reason can contain text of a member, which could control
 * a terminal. So control characters are replaced. */
__attribute__((format(printf, 3, 4))) static void
etcd_set_error(struct etcd *etcd, enum etcd_failure failure, const char *format, ...) {
    char reason[320];
    etcd->failure = failure;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    for (char *at = reason; *at; at++) {
        if ((unsigned char)*at < ' ' || *at == 0x7f) *at = '?';
    }
    snprintf(etcd->error.text, sizeof etcd->error.text, "%.128s: %s",
             etcd->members->items[etcd->at], reason);
}

/* The error in a response. The gateways of etcd 3.4 and 3.6 use different forms, and so do
 * responses that are streams.
 *
 *     {"error": TEXT, "message": TEXT, "code": NUMBER}
 *     {"error": {"message": TEXT, "grpc_code": NUMBER}}
 *     {"message": TEXT, "code": NUMBER} */
struct etcd_error {
    int code;         /* of gRPC; 0: no code */
    const char *text; /* part of the response; NULL: there is no error */
};

static struct etcd_error etcd_find_error(const cJSON *tree) {
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(tree, "error");
    const cJSON *from = cJSON_IsObject(error) ? error : tree;
    const cJSON *code = cJSON_GetObjectItemCaseSensitive(from, "grpc_code");
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(from, "message");
    if (!code) code = cJSON_GetObjectItemCaseSensitive(from, "code");
    if (!text) text = error;
    struct etcd_error result = {0, NULL};
    if (cJSON_IsNumber(code)) result.code = code->valueint;
    if (error || result.code != 0) {
        result.text = cJSON_IsString(text) ? text->valuestring : "an error without a text";
    }
    return result;
}

/* Returns the kind of an error of etcd. etcd gives several errors the same code of gRPC. Its own
 * clients tell these errors apart by their texts, which are constants in its package rpctypes, so
 * this function does the same. If a message is too large, the text comes from the library for
 * gRPC. */
static enum etcd_failure etcd_failure_of(const struct etcd_error *error) {
    static const struct {
        const char *begins;
        int code;
        enum etcd_failure failure;
    } known[] = {{"", ETCD_PERMISSION_DENIED, ETCD_DENIED},
                 {"etcdserver: mvcc: database space exceeded", ETCD_RESOURCE_EXHAUSTED, ETCD_FULL},
                 {"grpc: ", ETCD_RESOURCE_EXHAUSTED, ETCD_TOO_LONG},
                 {"etcdserver: request timed out", ETCD_UNAVAILABLE, ETCD_TIMED_OUT}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const bool begins = strncmp(error->text, known[i].begins, strlen(known[i].begins)) == 0;
        if (error->code == known[i].code && begins) return known[i].failure;
    }
    return ETCD_FAILED;
}

/* Sets etcd->error for a response that is not a response of etcd. Its first line may say more, for
 * example that the member expects TLS. If the request had the password, the error has no part of
 * the response, because a program that is not etcd may send the password back. */
static void etcd_set_error_of_reply(struct etcd *etcd, const char *path,
                                    const struct etcd_reply *reply) {
    bool is_safe = reply->body.text && strcmp(path, ETCD_TOKEN_PATH) != 0;
    const char *text = is_safe ? reply->body.text : "";
    int bytes = (int)strcspn(text, "\r\n");
    const bool is_late =
        reply->status == HTTP_REQUEST_TIMEOUT || reply->status == HTTP_GATEWAY_TIMEOUT;
    etcd_set_error(etcd, is_late ? ETCD_TIMED_OUT : ETCD_FAILED,
                   "this is not a response of etcd: HTTP status %ld%s%.*s", reply->status,
                   bytes > 0 ? ": " : "", bytes < 160 ? bytes : 160, text);
}

/* Parses a response. The error "no such lease" counts as a response too. On any other error and on
 * invalid JSON, returns NULL and sets etcd->error.
 *   code   out: the code of the error; 0: none */
static cJSON *etcd_read_response(struct etcd *etcd, const char *path,
                                 const struct etcd_reply *reply, int *code) {
    cJSON *tree = reply->body.text ? cJSON_Parse(reply->body.text) : NULL;
    struct etcd_error error = etcd_find_error(tree);
    bool no_lease = error.code == ETCD_NO_LEASE;
    bool succeeded = !error.text && reply->status == 200;
    *code = error.code;
    if (!cJSON_IsObject(tree) || !(succeeded || no_lease)) {
        if (error.text) {
            etcd_set_error(etcd, etcd_failure_of(&error), "%s", error.text);
        } else {
            etcd_set_error_of_reply(etcd, path, reply);
        }
        cJSON_Delete(tree);
        tree = NULL;
    }
    return tree;
}

/* Sends one request to the current member. Returns the response. On failure, returns NULL and sets
 * etcd->error.
 *   code   out: the code of an error in the response; 0: none */
static cJSON *etcd_exchange(struct etcd *etcd, const char *path, const char *body, int *code) {
    const struct etcd_post post = {.member = etcd->members->items[etcd->at],
                                   .path = path,
                                   .body = body,
                                   .token = etcd->token,
                                   .ends_at = etcd->ends_at};
    struct etcd_reply reply;
    const char *why = server_etcd_transport_post(etcd->transport, &post, &reply);
    *code = 0;
    const enum etcd_failure failure = reply.is_too_long     ? ETCD_TOO_LONG
                                      : reply.has_timed_out ? ETCD_TIMED_OUT
                                                            : ETCD_FAILED;
    if (why) etcd_set_error(etcd, failure, "%s", why);
    cJSON *tree = why ? NULL : etcd_read_response(etcd, path, &reply, code);
    free(reply.body.text);
    return tree;
}

/* Stores a token of etcd. It becomes a header line, so it must not have spaces or control
 * characters. */
static void etcd_set_token(struct etcd *etcd, const char *token) {
    size_t bytes = strlen(token);
    bool valid = bytes > 0 && bytes < sizeof etcd->token;
    for (size_t i = 0; valid && i < bytes; i++) valid = token[i] > ' ' && token[i] < 0x7f;
    if (valid) memcpy(etcd->token, token, bytes + 1);
    if (!valid) etcd_set_error(etcd, ETCD_FAILED, "the token of etcd is not valid");
}

/* Returns the body of a request for a token, which the caller frees with cJSON_free. On failure,
 * returns NULL and sets etcd->error. */
static char *etcd_create_credentials(struct etcd *etcd) {
    char password[PASSWORD_MAX];
    const char *path = etcd->settings->etcd_password_file;
    const char *why = server_password_read(path, password);
    cJSON *tree = why ? NULL : cJSON_CreateObject();
    char *text = NULL;
    if (cJSON_AddStringToObject(tree, "name", etcd->settings->etcd_user) &&
        cJSON_AddStringToObject(tree, "password", password)) {
        text = cJSON_PrintUnformatted(tree);
    }
    if (!text) {
        etcd_set_error(etcd, ETCD_FAILED, "--etcd-password-file %s: %s", path,
                       why ? why : strerror(ENOMEM));
    }
    cJSON_Delete(tree);
    return text;
}

/* Asks the current member for a token, and stores it. If etcd has no authentication, there is no
 * token, and requests without one succeed.
 *   returns   false: the try fails, see etcd->error */
static bool etcd_authenticate(struct etcd *etcd) {
    bool paused = doorman_clock() < etcd->refused_until; /* etcd->error still names the reason */
    char *body = paused ? NULL : etcd_create_credentials(etcd);
    cJSON *response = NULL;
    int code = 0;
    if (body) response = etcd_exchange(etcd, ETCD_TOKEN_PATH, body, &code);
    const cJSON *token = cJSON_GetObjectItemCaseSensitive(response, "token");
    if (response) etcd_set_token(etcd, cJSON_IsString(token) ? token->valuestring : "");
    if (code == ETCD_INVALID_ARGUMENT || code == ETCD_UNAUTHENTICATED) {
        etcd->refused_until = doorman_clock() + ETCD_REFUSED_PAUSE;
    }
    cJSON_Delete(response);
    cJSON_free(body);
    return etcd->token[0] || code == ETCD_NO_AUTHENTICATION;
}

/* Tries the current member once. If etcd refuses a token that an earlier try has obtained, gets a
 * new token and sends the call once more. If this try has obtained the token, only drops it. */
static cJSON *etcd_try(struct etcd *etcd, const char *path, const char *body) {
    bool had_token = etcd->token[0] != 0;
    int code = 0;
    cJSON *tree = NULL;
    etcd->ends_at = doorman_clock() + etcd->deadline;
    if (had_token || !etcd->settings->etcd_user || etcd_authenticate(etcd)) {
        tree = etcd_exchange(etcd, path, body, &code);
    }
    if (code == ETCD_UNAUTHENTICATED || code == ETCD_INVALID_ARGUMENT) {
        etcd->token[0] = 0;
        if (had_token && etcd_authenticate(etcd)) tree = etcd_exchange(etcd, path, body, &code);
    }
    return tree;
}

/* Counts a failed try, unless it was cancelled, and lets the next try use the next member. */
static void etcd_skip_member(struct etcd *etcd) {
    bool cancelled = server_etcd_transport_is_cancelled(etcd->transport);
    if (etcd->errors && !cancelled) server_counter_add(&etcd->errors[etcd->at], 1);
    etcd->at = (etcd->at + 1) % etcd->members->count;
}

__attribute__((format(printf, 3, 4))) cJSON *server_etcd_call(struct etcd *etcd, const char *path,
                                                              const char *format, ...) {
    char body[ETCD_REQUEST];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(body, sizeof body, format, arguments);
    va_end(arguments);
    return server_etcd_post(etcd, path, body);
}

cJSON *server_etcd_post(struct etcd *etcd, const char *path, const char *body) {
    cJSON *response = NULL;
    for (size_t tries = 0;
         !response && tries < etcd->tries && !server_etcd_transport_is_cancelled(etcd->transport);
         tries++) {
        response = etcd_try(etcd, path, body);
        const bool is_denied = !response && etcd->failure == ETCD_DENIED;
        etcd->is_denied = is_denied && (tries == 0 || etcd->is_denied);
        if (!response) etcd_skip_member(etcd);
    }
    return response;
}

const char *server_etcd_number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? item->valuestring : "0";
}

cJSON *server_etcd_get(struct etcd *etcd, const char *key, const cJSON **out) {
    char name[ETCD_KEY_TEXT];
    server_base64_write(name, key);
    cJSON *response = server_etcd_call(etcd, "/v3/kv/range", "{\"key\":\"%s\"}", name);
    *out = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(response, "kvs"), 0);
    return response;
}

bool server_etcd_read_value(const cJSON *entry, char *bytes, size_t room, size_t *count) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(entry, "value");
    *count = server_base64_read(bytes, room, cJSON_IsString(value) ? value->valuestring : "");
    return *count < room;
}

static doorman_status etcd_parse_config(const cJSON *entry, doorman_config **out,
                                        struct config_problems *problems) {
    doorman_status status = DOORMAN_OUT_OF_MEMORY;
    size_t bytes = 0, room = DOORMAN_MESSAGE_BYTES_MAX + 2;
    char *text = (char *)malloc(room);
    if (text) {
        server_etcd_read_value(entry, text, room, &bytes);
        status = server_config_check(out, text, bytes, problems);
    }
    free(text);
    return status;
}

bool server_etcd_load_config(struct etcd *etcd, const char *key, char revision[ETCD_REVISION],
                             doorman_config **out, struct config_problems *problems) {
    const cJSON *entry = NULL;
    cJSON *response = server_etcd_get(etcd, key, &entry);
    const char *now = server_etcd_number(entry, "mod_revision");
    bool changed = response && strcmp(now, revision) != 0;
    *out = NULL;
    *problems = (struct config_problems){.version = strtoull(now, NULL, 10)};
    if (changed) {
        snprintf(revision, ETCD_REVISION, "%s", now);
        doorman_status status = DOORMAN_NOT_FOUND;
        if (entry) status = etcd_parse_config(entry, out, problems);
        if (!entry) server_set_problem(problems, "", "the key does not exist");
        if (status != DOORMAN_OK && problems->count == 0) {
            server_set_problem(problems, "", server_status_text(status));
        }
        if (status == DOORMAN_OUT_OF_MEMORY) revision[0] = 0; /* try again next time */
    }
    cJSON_Delete(response);
    return response != NULL;
}

/* ---- flags ---------------------------------------------------------------------------------- */

/* Checks an address at the start, because the server may use this member much later. */
static enum exit_status settings_check_etcd_address(const char *address) {
    enum exit_status exit_status = CONTINUE;
    enum etcd_address kind = server_etcd_check_address(address);
    if (kind == ETCD_ADDRESS_HAS_SECRET) {
        exit_status =
            server_fatal_error(EXIT_USAGE, "an address of --etcd has a user or a password: give "
                                           "--etcd-user and --etcd-password-file instead");
    } else if (kind == ETCD_ADDRESS_INVALID) {
        exit_status = server_fatal_error(
            EXIT_USAGE, "--etcd '%s' is not an address of etcd, such as %s", address, ETCD_EXAMPLE);
    }
    return exit_status;
}

/* Checks that the flags for TLS and for the password fit together. */
static enum exit_status settings_check_etcd_security(const struct settings *settings) {
    enum exit_status exit_status = CONTINUE;
    int tls = settings->etcd_ca ? FLAG_ETCD_CA : FLAG_ETCD_CERT;
    bool has_https = false;
    for (size_t i = 0; i < settings->etcd.count; i++) {
        has_https = has_https || server_etcd_address_is_https(settings->etcd.items[i]);
    }
    if (!settings->etcd_cert != !settings->etcd_key) {
        exit_status =
            server_fatal_error(EXIT_USAGE, "--etcd-cert and --etcd-key need each other: give both");
    } else if (!settings->etcd_user != !settings->etcd_password_file) {
        exit_status = server_fatal_error(
            EXIT_USAGE, "--etcd-user and --etcd-password-file need each other: give both");
    } else if (settings->etcd_user && settings->etcd.count == 0) {
        exit_status = server_fatal_error(EXIT_USAGE, "--etcd-user needs --etcd " ETCD_EXAMPLE);
    } else if ((settings->etcd_ca || settings->etcd_cert) && !has_https) {
        exit_status = server_fatal_error(EXIT_USAGE, "--%s needs an address --etcd https://...",
                                         server_flag_name(tls));
    }
    return exit_status;
}

enum exit_status server_etcd_check_settings(const struct settings *settings) {
    const char *key = settings->election_key;
    enum exit_status exit_status = CONTINUE;
    if (settings->etcd.count == 0 && (key || settings->config_key)) {
        exit_status = server_fatal_error(EXIT_USAGE, "%s needs --etcd " ETCD_EXAMPLE,
                                         key ? "--election-key" : "--config etcd:KEY");
    } else if (settings->etcd.count > 0 && !key && !settings->config_key) {
        exit_status =
            server_fatal_error(EXIT_USAGE, "--etcd needs --election-key KEY or --config etcd:KEY");
    } else if (settings->given[FLAG_ELECTION_TTL] && !key) {
        exit_status = server_fatal_error(EXIT_USAGE, "--election-ttl needs --election-key KEY");
    } else if ((key && strlen(key) > ETCD_KEY_BYTES_MAX) ||
               (settings->config_key && strlen(settings->config_key) > ETCD_KEY_BYTES_MAX)) {
        exit_status = server_fatal_error(EXIT_USAGE, "a key of etcd has more than %d bytes",
                                         ETCD_KEY_BYTES_MAX);
    }
    for (size_t i = 0; exit_status == CONTINUE && i < settings->etcd.count; i++) {
        exit_status = settings_check_etcd_address(settings->etcd.items[i]);
    }
    if (exit_status == CONTINUE) exit_status = settings_check_etcd_security(settings);
    return exit_status;
}
