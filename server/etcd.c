/* doorman_server, part ETCD: calls to the v3 gateway of etcd. This file uses the settings, and no
 * other part of the service.
 *
 * A call is a POST of JSON. In this JSON, keys and values are base64, and 64-bit numbers are
 * strings. Each call opens a connection and has a deadline. A call goes first to the member that
 * answered last. If that member fails, the call goes to the other members in turn. Only one thread
 * at a time may use a struct etcd.
 *
 * The calls use a plain socket. The HTTP client of nng 1.5 crashes the process if a call reaches
 * its deadline while the response comes in. HTTP/1.0 is enough, because the end of the connection
 * ends the response. */
#include "server.h"

#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>

#define ETCD_REQUEST 2048                                          /* bytes; any request fits */
#define ETCD_RESPONSE_MAX (2 * (DOORMAN_MESSAGE_BYTES_MAX + 4096)) /* a configuration in base64 */
#define ETCD_NO_LEASE 5                                            /* gRPC's NOT_FOUND */
#define ETCD_CHECK_MS 50 /* a blocked call checks `cancelled` this often */

/* At the start, no other work waits for the response. The deadline is long, because etcd may be
 * busy. */
void server_etcd_init(struct etcd *etcd, const struct settings *settings) {
    etcd->members = &settings->etcd;
    etcd->tries = settings->etcd.count;
    etcd->deadline = 5 * DOORMAN_SECOND;
}

/* Sets the deadline to a fifth of the election's TTL. So five tries fit into the time that a master
 * stays master. The deadline is at least 0.5 s, because etcd writes to disk. It is at most 2 s. */
void server_etcd_set_election_deadline(struct etcd *etcd, const struct settings *settings) {
    etcd->deadline = settings->election_ttl * DOORMAN_SECOND / 5;
    if (etcd->deadline < DOORMAN_SECOND / 2) etcd->deadline = DOORMAN_SECOND / 2;
    if (etcd->deadline > 2 * DOORMAN_SECOND) etcd->deadline = 2 * DOORMAN_SECOND;
}

void server_etcd_cancel(struct etcd *etcd, bool cancelled) {
    __atomic_store_n(&etcd->cancelled, cancelled, __ATOMIC_RELAXED);
}

static bool etcd_is_cancelled(const struct etcd *etcd) {
    return __atomic_load_n(&etcd->cancelled, __ATOMIC_RELAXED);
}

/* Waits until a socket is ready. Returns 0 or an errno value. */
static int etcd_wait(const struct etcd *etcd, int fd, short events) {
    struct pollfd ready = {.fd = fd, .events = events};
    int count = 0;
    while (count == 0 && doorman_clock() < etcd->ends_at && !etcd_is_cancelled(etcd)) {
        count = poll(&ready, 1, ETCD_CHECK_MS);
        if (count < 0 && errno == EINTR) count = 0;
    }
    return count > 0 ? 0 : count < 0 ? errno : etcd_is_cancelled(etcd) ? ECANCELED : ETIMEDOUT;
}

/* Connects to one address. Returns 0 on success. On failure, returns an errno value and sets *fd to
 * -1. */
static int etcd_connect_to(const struct etcd *etcd, const struct addrinfo *address, int *fd) {
    socklen_t bytes = sizeof(int);
    int error = 0;
    *fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0 || connect(*fd, address->ai_addr, address->ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) {
        error = etcd_wait(etcd, *fd, POLLOUT);
        if (error == 0) getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    if (error != 0 && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return error;
}

/* Connects to the first reachable address of a host name. The name lookup has the timeouts of the
 * system's resolver, not the deadline. Returns NULL or an error text. */
static const char *etcd_connect(const struct etcd *etcd, const nng_url *url, int *fd) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int unknown = getaddrinfo(url->u_hostname, url->u_port, &hints, &list), error = 0;
    const char *why = unknown ? gai_strerror(unknown) : NULL;
    *fd = -1;
    for (const struct addrinfo *at = list; at && *fd < 0; at = at->ai_next) {
        error = etcd_connect_to(etcd, at, fd);
        why = error ? strerror(error) : NULL;
    }
    if (list) freeaddrinfo(list);
    return why;
}

static int etcd_send(const struct etcd *etcd, int fd, const char *text) {
    int error = 0;
    while (error == 0 && *text) {
        error = etcd_wait(etcd, fd, POLLOUT);
        ssize_t sent = error == 0 ? send(fd, text, strlen(text), MSG_NOSIGNAL) : 0;
        if (sent > 0) text += sent;
        if (sent < 0 && errno != EAGAIN) error = errno;
    }
    return error;
}

/* Receives until the peer closes the connection, and appends a 0. */
static int etcd_receive(const struct etcd *etcd, int fd, doorman_buffer *response) {
    int error = 0;
    for (ssize_t got = 1; error == 0 && got != 0;) {
        if (response->bytes + 1 >= response->capacity) {
            size_t capacity = response->capacity ? 2 * response->capacity : 4096;
            char *text = capacity <= ETCD_RESPONSE_MAX ? realloc(response->text, capacity) : NULL;
            error = text ? 0 : ENOMEM;
            if (text) *response = (doorman_buffer){text, response->bytes, capacity};
        }
        if (error == 0) error = etcd_wait(etcd, fd, POLLIN);
        if (error == 0) {
            got = recv(fd, response->text + response->bytes,
                       response->capacity - response->bytes - 1, 0);
            if (got < 0 && errno != EAGAIN) error = errno;
            if (got > 0) response->bytes += (size_t)got;
        }
    }
    if (response->text) response->text[response->bytes] = 0;
    return error;
}

/* Sends one request to one member. Returns NULL or an error text. */
static const char *etcd_exchange(struct etcd *etcd, const char *path, const char *body,
                                 doorman_buffer *response) {
    char request[ETCD_REQUEST];
    nng_url *url = NULL;
    int fd = -1, error = 0;
    const char *why = NULL;
    etcd->ends_at = doorman_clock() + etcd->deadline;
    if (nng_url_parse(&url, etcd->members->items[etcd->at]) != 0) return strerror(ENOMEM);
    snprintf(request, sizeof request,
             "POST %s HTTP/1.0\r\nHost: %s\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             path, url->u_host, strlen(body), body);
    why = etcd_connect(etcd, url, &fd);
    if (!why) error = etcd_send(etcd, fd, request);
    if (!why && error == 0) error = etcd_receive(etcd, fd, response);
    if (fd >= 0) close(fd);
    nng_url_free(url);
    return why ? why : error ? strerror(error) : NULL;
}

/* Parses a response. The error "no such lease" counts as a response too. On any other error and on
 * invalid JSON, returns NULL and sets `error`. */
static cJSON *etcd_read_response(struct etcd *etcd, const doorman_buffer *response) {
    const char *body = response->text ? strstr(response->text, "\r\n\r\n") : NULL;
    cJSON *tree = body ? cJSON_Parse(body) : NULL;
    const cJSON *code = cJSON_GetObjectItemCaseSensitive(tree, "code");
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(tree, "error");
    bool no_lease = cJSON_IsNumber(code) && code->valueint == ETCD_NO_LEASE;
    if (!cJSON_IsObject(tree) || (error && !no_lease)) {
        bool has_text = cJSON_IsString(error);
        snprintf(etcd->error.text, sizeof etcd->error.text, "%.128s: %.200s",
                 etcd->members->items[etcd->at],
                 has_text ? error->valuestring : "this is not a response of etcd");
        cJSON_Delete(tree);
        tree = NULL;
    }
    return tree;
}

static cJSON *etcd_try(struct etcd *etcd, const char *path, const char *body) {
    doorman_buffer response = {NULL, 0, 0};
    const char *why = etcd_exchange(etcd, path, body, &response);
    cJSON *tree = why ? NULL : etcd_read_response(etcd, &response);
    if (why) {
        snprintf(etcd->error.text, sizeof etcd->error.text, "%.128s: %s",
                 etcd->members->items[etcd->at], why);
    }
    free(response.text);
    return tree;
}

__attribute__((format(printf, 3, 4))) cJSON *server_etcd_call(struct etcd *etcd, const char *path,
                                                              const char *format, ...) {
    char body[ETCD_REQUEST / 4 * 3];
    cJSON *response = NULL;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(body, sizeof body, format, arguments);
    va_end(arguments);
    for (size_t tries = 0; !response && tries < etcd->tries && !etcd_is_cancelled(etcd); tries++) {
        response = etcd_try(etcd, path, body);
        if (!response) etcd->at = (etcd->at + 1) % etcd->members->count;
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
                                        doorman_error *error) {
    doorman_status status = DOORMAN_OUT_OF_MEMORY;
    size_t bytes = 0, room = DOORMAN_MESSAGE_BYTES_MAX + 2;
    char *text = (char *)malloc(room);
    if (text) {
        server_etcd_read_value(entry, text, room, &bytes);
        status = doorman_json_config(out, text, bytes, error);
    }
    free(text);
    return status;
}

bool server_etcd_load_config(struct etcd *etcd, const char *key, char revision[ETCD_REVISION],
                             doorman_config **out, doorman_error *error) {
    const cJSON *entry = NULL;
    cJSON *response = server_etcd_get(etcd, key, &entry);
    const char *now = server_etcd_number(entry, "mod_revision");
    bool changed = response && strcmp(now, revision) != 0;
    *out = NULL;
    error->text[0] = 0;
    if (changed) {
        snprintf(revision, ETCD_REVISION, "%s", now);
        doorman_status status = DOORMAN_NOT_FOUND;
        if (entry) status = etcd_parse_config(entry, out, error);
        if (!entry) snprintf(error->text, sizeof error->text, "the key does not exist");
        if (status != DOORMAN_OK && !error->text[0]) {
            snprintf(error->text, sizeof error->text, "%s", server_status_text(status));
        }
        if (status == DOORMAN_OUT_OF_MEMORY) revision[0] = 0; /* try again next time */
    }
    cJSON_Delete(response);
    return response != NULL;
}
/* Checks an address at the start, because the server may use this member much later. */
static enum exit_status settings_check_etcd_address(const char *address) {
    nng_url *url = NULL;
    bool parsed = nng_url_parse(&url, address) == 0;
    bool valid = parsed && strcmp(url->u_scheme, "http") == 0 && *url->u_hostname;
    if (parsed) nng_url_free(url);
    return valid
               ? CONTINUE
               : server_fatal_error(EXIT_USAGE, "--etcd '%s' is not an address of etcd, such as %s",
                                    address, ETCD_EXAMPLE);
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
    return exit_status;
}
