/* doormanctl: shows the events that servers publish (P33). nng connects again by itself. A gap in
 * the numbers of the events shows a loss. If the user gives topics, other events do not arrive, so
 * `topic_seq` is compared for each topic. Otherwise `seq` of the stream is compared. */
#include "ctl.h"

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <nng/nng.h>
#include <nng/protocol/pubsub0/sub.h>
#include <nng/supplemental/tls/tls.h>
#include <nng/supplemental/util/platform.h>

#define ADDRESS_MAX 16
#define ADDRESS_BYTES 512
#define TOPIC_SLOTS 65536 /* numbers of topics that are remembered; a power of two */
#define STREAM_MAX 64
#define QUEUE_EVENTS 8192
#define WAIT_MS 200

/* A stream, and the number of its last event. */
struct stream {
    char server[300], name[32];
    double seq;
};

struct subscription {
    struct ctl *ctl;
    nng_socket socket;
    size_t address_count;
    bool has_topics, has_header;
    int connections; /* atomic */
    int shown, lost; /* of connections_show: the connections at its last call; those that were
                        lost and not made again */
    struct stream streams[STREAM_MAX];
    size_t stream_count;
    struct {
        uint64_t hash; /* of a topic in a stream */
        double number;
    } * topics;
};

static volatile sig_atomic_t stops;

static void on_signal(int number) {
    (void)number;
    stops = 1;
}

/* ---- addresses ------------------------------------------------------------------------------ */

/* Writes an address. If its host means all addresses of the server, the host of `url` replaces
 * it.
 *   url   that of the server's HTTP */
static void address_write(char out[ADDRESS_BYTES], const char *address, const char *url) {
    const char *host = strstr(address, "://"), *port = strrchr(address, ':');
    const char *other = strstr(url, "://");
    snprintf(out, ADDRESS_BYTES, "%s", address);
    if (!host || !port || port <= host || !other) return;
    host += 3;
    other += 3;
    const size_t bytes = (size_t)(port - host);
    static const char *const all[] = {"*", "0.0.0.0", "[::]", ""};
    bool is_all = false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        is_all = is_all || (strlen(all[i]) == bytes && strncmp(host, all[i], bytes) == 0);
    }
    if (!is_all) return;
    const size_t other_bytes = *other == '[' ? strcspn(other, "]") + 1 : strcspn(other, ":/");
    snprintf(out, ADDRESS_BYTES, "%.*s%.*s%s", (int)(host - address), address, (int)other_bytes,
             other, port);
}

static enum ctl_exit address_ask(struct ctl *ctl, char out[ADDRESS_BYTES]) {
    struct ctl_reply reply;
    const bool json = ctl->json;
    const struct ctl_request request = {.path = "/v1/status", .here = true};
    ctl->json = false;
    enum ctl_exit code = ctl_call(ctl, &request, &reply);
    ctl->json = json;
    const cJSON *events = cJSON_GetObjectItemCaseSensitive(reply.json, "events");
    const char *address = ctl_text(events, "address");
    if (code == CTL_DONE && !address[0]) {
        code = ctl_fail(CTL_REFUSED, "%s publishes no events: start it with --events", ctl->url);
    }
    address_write(out, address, ctl->url);
    ctl_reply_free(&reply);
    return code;
}

/* ---- connections ---------------------------------------------------------------------------- */

/* Counts the connections. nng calls this on its own threads. */
static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *context) {
    struct subscription *own = (struct subscription *)context;
    (void)pipe;
    __atomic_add_fetch(&own->connections, event == NNG_PIPE_EV_ADD_POST ? 1 : -1, __ATOMIC_RELAXED);
}

#define PEM_BYTES_MAX 65536

/* Returns the text of a file, or NULL. The caller frees it. */
static char *pem_read(const char *path) {
    char *text = (char *)ctl_need(calloc(1, PEM_BYTES_MAX + 1));
    FILE *file = fopen(path, "rb");
    size_t bytes = file ? fread(text, 1, PEM_BYTES_MAX, file) : 0;
    if (file) fclose(file);
    if (bytes > 0) return text;
    free(text);
    return NULL;
}

static enum ctl_exit tls_set(const struct ctl *ctl, nng_dialer dialer) {
    const struct ctl_settings *settings = &ctl->settings;
    nng_tls_config *tls = NULL;
    char *cert = NULL, *key = NULL;
    if (!settings->cacert) {
        return ctl_fail(CTL_USAGE, "events over TLS need --cacert, and mostly --cert and --key");
    }
    int error = nng_tls_config_alloc(&tls, NNG_TLS_MODE_CLIENT);
    if (error == 0) error = nng_tls_config_ca_file(tls, settings->cacert);
    if (error == 0 && settings->cert) {
        cert = pem_read(settings->cert);
        key = pem_read(settings->key);
        error = cert && key ? nng_tls_config_own_cert(tls, cert, key, NULL) : NNG_ENOENT;
    }
    if (error == 0) error = nng_dialer_set_ptr(dialer, NNG_OPT_TLS_CONFIG, tls);
    free(cert);
    free(key);
    if (tls) nng_tls_config_free(tls);
    if (error == 0) return CTL_DONE;
    return ctl_fail(CTL_USAGE, "--cacert, --cert or --key cannot be used: %s", nng_strerror(error));
}

static enum ctl_exit address_dial(struct subscription *own, const char *address) {
    nng_dialer dialer = NNG_DIALER_INITIALIZER;
    enum ctl_exit code = CTL_DONE;
    int error = nng_dialer_create(&dialer, own->socket, address);
    if (error == 0 && strncmp(address, "tls+", 4) == 0) code = tls_set(own->ctl, dialer);
    if (error == 0 && code == CTL_DONE) {
        nng_dialer_set_ms(dialer, NNG_OPT_RECONNMINT, 100);
        nng_dialer_set_ms(dialer, NNG_OPT_RECONNMAXT, 5000);
        error = nng_dialer_start(dialer, NNG_FLAG_NONBLOCK);
    }
    own->address_count++;
    if (error == 0) return code;
    return ctl_fail(CTL_USAGE, "%s: %s; an address of events is, for example, tcp://10.0.0.1:15060",
                    address, nng_strerror(error));
}

static enum ctl_exit addresses_dial(struct subscription *own, const char *list) {
    enum ctl_exit code = CTL_DONE;
    char address[ADDRESS_BYTES];
    while (code == CTL_DONE && list) {
        const size_t bytes = strcspn(list, ",");
        snprintf(address, sizeof address, "%.*s", (int)bytes, list);
        if (own->address_count == ADDRESS_MAX || bytes >= sizeof address) {
            return ctl_fail(CTL_USAGE, "--events: more than %d addresses, or a long one",
                            ADDRESS_MAX);
        }
        code = address_dial(own, address);
        list = list[bytes] ? list + bytes + 1 : NULL;
    }
    return code;
}

static enum ctl_exit connection_await(const struct subscription *own, const char *addresses) {
    for (double waited = 0; waited < own->ctl->timeout && !stops; waited += 0.01) {
        if (__atomic_load_n(&own->connections, __ATOMIC_RELAXED) > 0) return CTL_DONE;
        nng_msleep(10);
    }
    if (stops) return CTL_DONE;
    return ctl_fail(CTL_UNREACHABLE, "cannot reach %s within %g s", addresses, own->ctl->timeout);
}

/* Says whether connections were lost, or made again after a loss, since the last call. */
static void connections_show(struct subscription *own) {
    const int now = __atomic_load_n(&own->connections, __ATOMIC_RELAXED);
    if (now == own->shown) return;
    if (own->shown > now) {
        own->lost += own->shown - now;
        (void)ctl_fail(CTL_DONE, "a connection is lost; trying to connect again");
    } else if (own->lost > 0) {
        own->lost -= now - own->shown < own->lost ? now - own->shown : own->lost;
        (void)ctl_fail(CTL_DONE, "connected again");
    }
    own->shown = now;
}

/* ---- what was lost -------------------------------------------------------------------------- */

/* Returns the stream of an event. In a new stream, no event before this one counts as lost. */
static struct stream *stream_find(struct subscription *own, const cJSON *json) {
    const char *server = ctl_text(json, "server"), *name = ctl_text(json, "stream");
    struct stream *found = NULL;
    for (size_t i = 0; i < own->stream_count && !found; i++) {
        if (strcmp(own->streams[i].server, server) == 0) found = &own->streams[i];
    }
    if (found && strcmp(found->name, name) == 0) return found;
    if (found) (void)ctl_fail(CTL_DONE, "%s has started again, with a new stream", server);
    if (!found) {
        found = &own->streams[own->stream_count % STREAM_MAX];
        if (own->stream_count < STREAM_MAX) own->stream_count++;
    }
    *found = (struct stream){.seq = ctl_number(json, "seq") - 1};
    snprintf(found->server, sizeof found->server, "%s", server);
    snprintf(found->name, sizeof found->name, "%s", name);
    return found;
}

static uint64_t hash_of(uint64_t hash, const char *text) {
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * UINT64_C(1099511628211);
    return hash;
}

/* Says how many events of a topic may be lost since its last event arrived. */
static void topic_check(struct subscription *own, const char *topic, const cJSON *json) {
    const double number = ctl_number(json, "topic_seq");
    uint64_t hash = hash_of(UINT64_C(14695981039346656037), ctl_text(json, "stream"));
    hash = hash_of(hash, topic);
    const size_t at = (size_t)(hash >> 16) & (TOPIC_SLOTS - 1);
    if (own->topics[at].hash == hash && number > own->topics[at].number + 1) {
        (void)ctl_fail(CTL_DONE, "lost at most %.0f events of %s",
                       number - own->topics[at].number - 1, topic);
    }
    own->topics[at].hash = hash;
    own->topics[at].number = number;
}

static void losses_show(struct subscription *own, const char *topic, const cJSON *json) {
    struct stream *stream = stream_find(own, json);
    const double seq = ctl_number(json, "seq"), lost = seq - stream->seq - 1;
    if (own->has_topics) {
        topic_check(own, topic, json);
    } else if (lost > 0) {
        (void)ctl_fail(CTL_DONE, "lost %.0f events of %s", lost, stream->server);
    }
    stream->seq = seq;
}

/* ---- lines ---------------------------------------------------------------------------------- */

static void cell_show(const char *text, int width) {
    ctl_print(stdout, text[0] ? text : "-");
    printf("%*s", ctl_width(text) < width ? width - ctl_width(text[0] ? text : "-") + 2 : 2, "");
}

/* Prints, as NAME=VALUE, the fields that `shown` does not name. With several addresses, also prints
 * the server. */
static void rest_show(const struct subscription *own, const cJSON *json) {
    static const char *const shown[] = {"event", "seq", "topic_seq",   "stream", "server", "node",
                                        "at",    "key", "resource_id", "glob",   "sample"};
    const cJSON *field = NULL;
    const char *gap = "";
    cJSON_ArrayForEach(field, json) {
        bool is_shown = false;
        for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
            is_shown = is_shown || strcmp(field->string, shown[i]) == 0;
        }
        is_shown = is_shown && !(own->address_count > 1 && strcmp(field->string, "server") == 0);
        if (is_shown) continue;
        char *value =
            cJSON_IsString(field) ? NULL : (char *)ctl_need(cJSON_PrintUnformatted(field));
        printf("%s", gap);
        ctl_print(stdout, field->string);
        putchar('=');
        ctl_print(stdout, value ? value : field->valuestring);
        cJSON_free(value);
        gap = " ";
    }
    putchar('\n');
}

/* Prints an event as a row. The time is UTC, without the day. */
static void event_show(struct subscription *own, const cJSON *json) {
    const char *at = ctl_text(json, "at"), *resource = ctl_text(json, "resource_id");
    char time[16] = "-";
    if (strlen(at) > 23) snprintf(time, sizeof time, "%.12s", at + 11);
    if (!own->has_header) {
        printf("%s%-12s  %-17s  %-20s  %-16s  %s%s\n", own->ctl->has_color ? "\033[1m" : "", "UTC",
               "EVENT", "RESOURCE", "KEY", "MORE", own->ctl->has_color ? "\033[0m" : "");
    }
    own->has_header = true;
    cell_show(time, 12);
    cell_show(ctl_text(json, "event"), 17);
    cell_show(resource[0] ? resource : ctl_text(json, "glob"), 20);
    cell_show(ctl_text(json, "key"), 16);
    rest_show(own, json);
}

/* Shows a line of the server: a topic, a space, and JSON. */
static enum ctl_exit line_show(struct subscription *own, char *line) {
    char *space = strchr(line, ' ');
    cJSON *json = space ? cJSON_Parse(space) : NULL;
    if (!ctl_text(json, "event")[0]) {
        cJSON_Delete(json);
        return ctl_fail(CTL_UNREACHABLE, "what publishes there is not a Doorman server");
    }
    *space = 0;
    losses_show(own, line, json);
    if (own->ctl->json) {
        space[1 + strcspn(space + 1, "\n")] = 0;
        puts(space + 1);
    } else {
        event_show(own, json);
    }
    cJSON_Delete(json);
    fflush(stdout);
    return CTL_DONE;
}

/* Shows events until a signal comes, or an error occurs. */
static enum ctl_exit events_show(struct subscription *own) {
    enum ctl_exit code = CTL_DONE;
    while (!stops && code == CTL_DONE && !ferror(stdout)) {
        nng_msg *message = NULL;
        char *line = NULL;
        int error = nng_recvmsg(own->socket, &message, 0);
        connections_show(own);
        if (error == NNG_ETIMEDOUT) continue;
        if (error != 0) return ctl_fail(CTL_UNREACHABLE, "%s", nng_strerror(error));
        line = (char *)ctl_need(strndup((const char *)nng_msg_body(message), nng_msg_len(message)));
        nng_msg_free(message);
        code = line_show(own, line);
        free(line);
    }
    return code;
}

static enum ctl_exit subscription_open(struct subscription *own, char *const words[]) {
    int error = nng_sub0_open(&own->socket);
    if (error == 0) error = nng_socket_set_int(own->socket, NNG_OPT_RECVBUF, QUEUE_EVENTS);
    if (error == 0) error = nng_socket_set_ms(own->socket, NNG_OPT_RECVTIMEO, WAIT_MS);
    for (int i = 0; i < 2 && error == 0; i++) {
        error = nng_pipe_notify(own->socket, i ? NNG_PIPE_EV_REM_POST : NNG_PIPE_EV_ADD_POST,
                                on_pipe, own);
    }
    own->has_topics = words[0] != NULL;
    for (size_t i = 0; error == 0 && (i == 0 || words[i]); i++) {
        const char *topic = words[i] ? words[i] : "";
        error = nng_socket_set(own->socket, NNG_OPT_SUB_SUBSCRIBE, topic, strlen(topic));
        if (!words[i]) break;
    }
    if (error == 0) return CTL_DONE;
    return ctl_fail(CTL_REFUSED, "cannot subscribe: %s", nng_strerror(error));
}

enum ctl_exit ctl_run_events(struct ctl *ctl, char *const words[]) {
    const struct sigaction action = {.sa_handler = on_signal};
    struct subscription *own = (struct subscription *)ctl_need(calloc(1, sizeof *own));
    char address[ADDRESS_BYTES] = "";
    const char *addresses = ctl->settings.events;
    enum ctl_exit code = CTL_DONE;
    own->ctl = ctl;
    own->topics = ctl_need(calloc(TOPIC_SLOTS, sizeof *own->topics));
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (!addresses) {
        code = address_ask(ctl, address);
        addresses = address;
    }
    if (code == CTL_DONE) {
        code = subscription_open(own, words);
        if (code == CTL_DONE) code = addresses_dial(own, addresses);
        if (code == CTL_DONE) code = connection_await(own, addresses);
        if (code == CTL_DONE) code = events_show(own);
        nng_close(own->socket);
    }
    free(own->topics);
    free(own);
    return code;
}
