/* doorman_server, part TLS: certificates. This file checks the flags and sets service->pem and
 * service->tls.
 *
 * All nng listeners share one TLS configuration. With --tls-ca, a peer must have a certificate that
 * the authority has signed. nng checks the certificate before it reports the connection. The link
 * to the parent uses the same files, and the authority must have signed the parent's certificate.
 *
 * When the files change, the listeners use the new ones for new connections (see
 * tls_set_listeners). The link to the parent makes a new connection for its next request. So a
 * parent that refuses the new certificate is noticed at once, while the node still has its leases.
 * With the old connection, it would be noticed when that connection breaks, perhaps months later.
 *
 * nng accepts a certificate and a key that do not belong together: nng_tls_config_own_cert returns
 * 0 with nng 1.5.2 and 1.10.1. Only a handshake shows the difference. So a process that serves TLS
 * first connects to itself, with an extra socket on loopback. The server signs this handshake with
 * its key. The client verifies the signature with the certificate of the server, but accepts any
 * issuer and any name. A certificate that mbedTLS does not offer as a server fails too. An example
 * is a certificate whose extendedKeyUsage has only clientAuth. */
#include "certificate.h"
#include "tls.h"

#include <stdarg.h>

/* What this part keeps about failed handshakes, which nng counts, and about the ends of the
 * certificates. Only the main thread uses it. */
struct tls_watch {
    uint64_t count;                /* failed handshakes at the last look */
    doorman_time look_at, warn_at; /* when to count failed handshakes next, and when to look at the
                                      ends of the certificates next */
};

#define PEM_BYTES_MAX ((size_t)1 << 20)

/* ---- files ---------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static bool tls_fail(doorman_error *error, const char *format,
                                                           ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return false;
}

/* Reads a file. If the flag is not given, `path` is NULL and *out becomes NULL. */
static bool pem_read(char **out, int flag, const char *path, doorman_error *error) {
    bool done = true;
    FILE *file = path ? fopen(path, "rb") : NULL;
    char *text = path ? (char *)calloc(1, PEM_BYTES_MAX) : NULL;
    if (path && !text) {
        done = tls_fail(error, "out of memory");
    } else if (path && (!file || (fread(text, 1, PEM_BYTES_MAX - 1, file) == 0))) {
        done = tls_fail(error, "--%s %s: %s", server_flag_name(flag), path,
                        file ? "is empty, or cannot be read" : strerror(errno));
    }
    if (file) fclose(file);
    *out = text;
    return done;
}

static void pem_uninit(struct pem *pem) {
    free(pem->certificate);
    free(pem->key);
    free(pem->authority);
}

static bool pem_load(struct pem *pem, const struct settings *settings, doorman_error *error) {
    return pem_read(&pem->certificate, FLAG_TLS_CERT, settings->tls_cert, error) &&
           pem_read(&pem->key, FLAG_TLS_KEY, settings->tls_key, error) &&
           pem_read(&pem->authority, FLAG_TLS_CA, settings->tls_ca, error);
}

/* ---- configuration -------------------------------------------------------------------------- */

static bool tls_set_certificate(nng_tls_config *tls, const struct pem *pem,
                                const struct settings *settings, doorman_error *error) {
    int code = nng_tls_config_own_cert(tls, pem->certificate, pem->key, NULL);
    return code == 0 ||
           tls_fail(error,
                    "--tls-cert %s, --tls-key %s: %s; they must be a certificate and its key, "
                    "in PEM",
                    settings->tls_cert, settings->tls_key, nng_strerror(code));
}

static bool tls_set_authority(nng_tls_config *tls, const struct pem *pem,
                              const struct settings *settings, doorman_error *error) {
    int code = nng_tls_config_ca_chain(tls, pem->authority, NULL);
    if (code == 0) code = nng_tls_config_auth_mode(tls, NNG_TLS_AUTH_MODE_REQUIRED);
    return code == 0 || tls_fail(error, "--tls-ca %s: %s; it must hold certificates, in PEM",
                                 settings->tls_ca, nng_strerror(code));
}

/* Makes a TLS configuration. To do so, nng checks the certificates. In client mode the
 * configuration is only used for this check, because the transport makes its own. */
static bool tls_create(nng_tls_config **out, nng_tls_mode mode, const struct pem *pem,
                       const struct settings *settings, doorman_error *error) {
    int code = nng_tls_config_alloc(out, mode);
    bool done = code == 0 || tls_fail(error, "TLS: %s", nng_strerror(code));
    if (done && pem->certificate) done = tls_set_certificate(*out, pem, settings, error);
    if (done && pem->authority) done = tls_set_authority(*out, pem, settings, error);
    return done;
}

/* ---- handshake ------------------------------------------------------------------------------ */

/* The handshake takes some milliseconds. A machine that is very busy may need much longer. */
#define HANDSHAKE_TIMEOUT_MS 20000

enum { SERVER_SIDE, CLIENT_SIDE, SIDE_COUNT };

/* A connection of this process to itself. */
struct loopback {
    nng_stream_listener *listener;
    nng_stream_dialer *dialer;
    nng_aio *aios[SIDE_COUNT];
    nng_stream *streams[SIDE_COUNT];
};

static int loopback_listen(struct loopback *loopback, nng_tls_config *server, int *port) {
    int error = nng_stream_listener_alloc(&loopback->listener, "tls+tcp://127.0.0.1:0");
    if (error == 0) {
        error = nng_stream_listener_set_ptr(loopback->listener, NNG_OPT_TLS_CONFIG, server);
    }
    if (error == 0) error = nng_stream_listener_listen(loopback->listener);
    if (error == 0) {
        error = nng_stream_listener_get_int(loopback->listener, NNG_OPT_TCP_BOUND_PORT, port);
    }
    return error;
}

/* Connects over TCP. If the client cannot connect, the server must not wait for it. */
static int loopback_connect(struct loopback *loopback, nng_tls_config *client, int port) {
    char url[40];
    int error = 0;
    snprintf(url, sizeof url, "tls+tcp://127.0.0.1:%d", port);
    for (int i = 0; error == 0 && i < SIDE_COUNT; i++) {
        error = nng_aio_alloc(&loopback->aios[i], NULL, NULL);
        if (error == 0) nng_aio_set_timeout(loopback->aios[i], HANDSHAKE_TIMEOUT_MS);
    }
    if (error == 0) error = nng_stream_dialer_alloc(&loopback->dialer, url);
    if (error == 0) {
        error = nng_stream_dialer_set_ptr(loopback->dialer, NNG_OPT_TLS_CONFIG, client);
    }
    if (error != 0) return error;
    nng_stream_listener_accept(loopback->listener, loopback->aios[SERVER_SIDE]);
    nng_stream_dialer_dial(loopback->dialer, loopback->aios[CLIENT_SIDE]);
    for (int i = SIDE_COUNT - 1; i >= 0; i--) {
        if (error != 0) nng_aio_cancel(loopback->aios[i]);
        nng_aio_wait(loopback->aios[i]);
        int result = nng_aio_result(loopback->aios[i]);
        if (result == 0) loopback->streams[i] = nng_aio_get_output(loopback->aios[i], 0);
        if (error == 0) error = result;
    }
    return error;
}

/* Sends one byte from the server to the client. It arrives only after a complete handshake. Returns
 * the error of the client. */
static int loopback_send(struct loopback *loopback) {
    char bytes[SIDE_COUNT] = {0};
    for (int i = 0; i < SIDE_COUNT; i++) {
        nng_iov iov = {&bytes[i], 1};
        nng_aio_set_iov(loopback->aios[i], 1, &iov);
    }
    nng_stream_send(loopback->streams[SERVER_SIDE], loopback->aios[SERVER_SIDE]);
    nng_stream_recv(loopback->streams[CLIENT_SIDE], loopback->aios[CLIENT_SIDE]);
    nng_aio_wait(loopback->aios[CLIENT_SIDE]);
    nng_aio_cancel(loopback->aios[SERVER_SIDE]);
    nng_aio_wait(loopback->aios[SERVER_SIDE]);
    return nng_aio_result(loopback->aios[CLIENT_SIDE]);
}

/* The aios are freed first: nng's thread for timeouts may use their streams until then. The streams
 * have references to the dialer. The dialer is freed before them, so that the thread of nng that
 * frees the last stream sees all that this thread has done with the dialer. */
static void loopback_close(struct loopback *loopback) {
    for (int i = 0; i < SIDE_COUNT; i++) nng_aio_free(loopback->aios[i]);
    if (loopback->dialer) nng_stream_dialer_free(loopback->dialer);
    for (int i = 0; i < SIDE_COUNT; i++) nng_stream_free(loopback->streams[i]);
    if (loopback->listener) nng_stream_listener_free(loopback->listener);
}

/* Does a handshake in which the server has this certificate and key. Returns 0 or an error of
 * nng. */
static int handshake_try(const struct pem *pem) {
    struct loopback loopback = {.listener = NULL};
    nng_tls_config *server = NULL, *client = NULL;
    int port = 0;
    int error = nng_tls_config_alloc(&server, NNG_TLS_MODE_SERVER);
    if (error == 0) error = nng_tls_config_own_cert(server, pem->certificate, pem->key, NULL);
    if (error == 0) error = nng_tls_config_alloc(&client, NNG_TLS_MODE_CLIENT);
    if (error == 0) error = nng_tls_config_auth_mode(client, NNG_TLS_AUTH_MODE_NONE);
    if (error == 0) error = loopback_listen(&loopback, server, &port);
    if (error == 0) error = loopback_connect(&loopback, client, port);
    if (error == 0) error = loopback_send(&loopback);
    loopback_close(&loopback);
    if (server) nng_tls_config_free(server);
    if (client) nng_tls_config_free(client);
    return error;
}

/* Checks that the key belongs to the certificate. An error that does not come from TLS, for example
 * on a machine without loopback, says nothing about the files. Then the server only logs a
 * warning. */
static bool handshake_check(const struct pem *pem, const struct settings *settings,
                            doorman_error *error) {
    int code = handshake_try(pem);
    if (code == NNG_ECRYPTO || code == NNG_EPEERAUTH) {
        return tls_fail(error,
                        "--tls-cert %s, --tls-key %s: a handshake of the server with itself fails; "
                        "the key does not belong to the certificate, or the certificate is not "
                        "for servers",
                        settings->tls_cert, settings->tls_key);
    }
    if (code != 0) {
        server_log(settings, LEVEL_WARNING,
                   "could not check that the key of TLS belongs to the certificate", "tls_cert",
                   settings->tls_cert, "error", nng_strerror(code), LOG_END);
    }
    return true;
}

/* ---- validity ------------------------------------------------------------------------------- */
/* nng accepts certificates that have ended, or that are not valid yet. All peers would then refuse
 * the node, or the node would refuse all peers. So such files are refused at the start, and never
 * replace others. The first certificate of --tls-cert belongs to the node. It is enough if one
 * authority is valid. */

/* Writes a time, for example 2026-11-22T22:00:00Z. */
static void time_text(int64_t at, char text[32]) {
    time_t seconds = (time_t)at;
    struct tm utc;
    gmtime_r(&seconds, &utc);
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

/* Checks that the certificates of a file are valid now.
 *   pem   NULL: the flag is not given */
static bool validity_check(const char *pem, int file, const char *path, doorman_error *error) {
    const int64_t now = (int64_t)time(NULL);
    const char *flag = server_certificate_flag(file);
    struct certificate_period period;
    char at[32], clock[32];
    bool any = file == CERTIFICATE_AUTHORITY;
    if (!pem || server_certificate_is_valid(pem, any, now, &period)) return true;
    bool ended = period.end && period.end < now;
    time_text(ended ? period.end : period.begin, at);
    time_text(now, clock);
    return tls_fail(error,
                    ended ? "--%s %s: the certificate has expired, at %s (now: %s); replace it"
                          : "--%s %s: the certificate is not valid before %s (now: %s); replace "
                            "it, or correct the clock of this machine",
                    flag, path, at, clock);
}

/* Notes the ends of the certificates in force. Precondition: if workers run, the lock is held. */
static void tls_note_ends(struct service *service) {
    const struct pem *pem = &service->pem;
    int64_t *ends = service->certificate_ends;
    ends[CERTIFICATE_OWN] = pem->certificate ? server_certificate_end(pem->certificate, false) : 0;
    ends[CERTIFICATE_AUTHORITY] = pem->authority ? server_certificate_end(pem->authority, true) : 0;
}

/* ---- start ---------------------------------------------------------------------------------- */

/* Returns whether this process serves TLS over nng or HTTP. If not, the certificate need not be one
 * for servers, because perhaps only the link to the parent uses it. */
static bool tls_serves(const struct settings *settings) {
    return server_addresses_want_tls(&settings->listen) || server_http_is_on(settings) ||
           (settings->events && server_url_wants_tls(settings->events));
}

/* Loads and checks the files.
 *   pem, tls   out: the caller frees them, also after an error */
static bool tls_load(struct pem *pem, nng_tls_config **tls, const struct settings *settings,
                     doorman_error *error) {
    nng_tls_config *client = NULL;
    bool done = pem_load(pem, settings, error);
    if (done && pem->certificate) {
        done = tls_create(tls, NNG_TLS_MODE_SERVER, pem, settings, error) &&
               (!tls_serves(settings) || handshake_check(pem, settings, error));
    } else if (done && pem->authority) {
        done = tls_create(&client, NNG_TLS_MODE_CLIENT, pem, settings, error);
    }
    done = done && validity_check(pem->certificate, CERTIFICATE_OWN, settings->tls_cert, error) &&
           validity_check(pem->authority, CERTIFICATE_AUTHORITY, settings->tls_ca, error);
    if (client) nng_tls_config_free(client);
    return done;
}

/* Checks that libnng has TLS. */
static enum exit_status tls_check_library(void) {
    nng_tls_config *tls = NULL;
    int error = nng_tls_config_alloc(&tls, NNG_TLS_MODE_CLIENT);
    if (tls) nng_tls_config_free(tls);
    return error == 0 ? CONTINUE
                      : server_fatal_error(EXIT_USAGE,
                                           "TLS is not available: %s; libnng was built without TLS",
                                           nng_strerror(error));
}

static enum exit_status tls_start(struct service *service) {
    const struct settings *settings = service->settings;
    doorman_error error;
    if (!settings->tls_cert && !settings->tls_ca) return CONTINUE;
    enum exit_status exit_status = tls_check_library();
    if (exit_status == CONTINUE && !tls_load(&service->pem, &service->tls, settings, &error)) {
        exit_status = server_fatal_error(EXIT_ERROR, "%s", error.text);
    }
    if (exit_status == CONTINUE) tls_note_ends(service);
    return exit_status;
}

/* ---- reload --------------------------------------------------------------------------------- */

/* Gives the nng listeners the new configuration. Each of them has already prepared its next
 * connection, so this one connection still uses the last configuration. */
static void tls_set_listeners(struct service *service) {
    for (size_t i = 0; i < service->url_count; i++) {
        if (!server_url_wants_tls(service->urls[i])) continue;
        int error = nng_listener_set_ptr(service->listeners[i], NNG_OPT_TLS_CONFIG, service->tls);
        if (error != 0) {
            server_log(service->settings, LEVEL_WARNING,
                       "this listener keeps its certificate until the server starts again",
                       "listen", service->urls[i], "error", nng_strerror(error), LOG_END);
        }
    }
}

/* Puts a new configuration into force. A thread of nng may be about to use the last one, which it
 * has not referenced yet. So the last one stays until the next reload. */
static void tls_replace(struct service *service, nng_tls_config *tls) {
    if (service->last_tls) nng_tls_config_free(service->last_tls);
    service->last_tls = service->tls;
    service->tls = tls;
    tls_set_listeners(service);
    server_note_tls(service);
}

static bool text_equals(const char *one, const char *other) {
    return one && other ? strcmp(one, other) == 0 : one == other;
}

/* Puts new files into force for the link to the parent. Takes ownership of them. If they have the
 * same texts as the last ones, the link keeps its connection. */
static void pem_replace(struct service *service, struct pem *pem) {
    server_lock(&service->lock);
    struct pem last = service->pem;
    bool is_same = text_equals(pem->certificate, last.certificate) &&
                   text_equals(pem->key, last.key) && text_equals(pem->authority, last.authority);
    service->pem = *pem;
    tls_note_ends(service);
    if (!is_same) service->parent_link.has_new_tls = true;
    server_unlock(&service->lock);
    pem_uninit(&last);
}

/* Loads the files again, and gives them to the listeners and to the link to the parent. If there
 * are no files, does nothing. */
static bool tls_load_files(struct service *service, enum file_group group, bool is_quiet) {
    const struct settings *settings = service->settings;
    struct pem pem = {.certificate = NULL};
    nng_tls_config *tls = NULL;
    doorman_error error;
    if (group != FILES_OF_TLS || (!settings->tls_cert && !settings->tls_ca)) return true;
    bool loaded = tls_load(&pem, &tls, settings, &error);
    if (loaded) {
        assert(!tls == !service->tls);
        pem_replace(service, &pem); /* before the listeners: that of gRPC reads the texts */
        if (tls) tls_replace(service, tls);
        service->tls_watch->warn_at = 0;
        server_note_failure(service, CERTIFICATE_REFUSED, "");
        server_log(settings, LEVEL_INFO, "certificate loaded",
                   settings->tls_cert ? "tls_cert" : "tls_ca",
                   settings->tls_cert ? settings->tls_cert : settings->tls_ca, LOG_END);
    } else {
        if (tls) nng_tls_config_free(tls);
        pem_uninit(&pem);
    }
    if (!loaded && !is_quiet) {
        server_note_failure(service, CERTIFICATE_REFUSED, error.text);
        server_log(settings, LEVEL_ERROR, "certificate refused; the last one stays in force",
                   "error", error.text, LOG_END);
    }
    return loaded;
}

static void tls_destroy(struct service *service) {
    if (service->tls) nng_tls_config_free(service->tls);
    if (service->last_tls) nng_tls_config_free(service->last_tls);
    pem_uninit(&service->pem);
}

/* ---- failed handshakes ---------------------------------------------------------------------- */
/* nng reports no failed handshake of its listeners. Its statistics count the failed handshakes of
 * tls+tcp, but not of wss. The statistics have a counter `auth` for each listener. After a failed
 * handshake, a listener of nng 1.5.2 waits 0.1 s before it takes the next connection. So its
 * counter rises at most ten times a second. */

/* The time between two looks. A look is expensive in a process with many connections: it takes 3 ms
 * with 1,000 of them, because nng copies the statistics of each. */
#define HANDSHAKE_LOOK_INTERVAL (10 * DOORMAN_SECOND)

/* Returns the value of a counter, or 0 if there is none. */
static uint64_t stat_value(nng_stat *parent, const char *name) {
    nng_stat *at = nng_stat_child(parent);
    while (at && strcmp(nng_stat_name(at), name) != 0) at = nng_stat_next(at);
    return at ? nng_stat_value(at) : 0;
}

/* Returns how many handshakes have failed at the listeners of a socket. */
static uint64_t socket_count_failures(nng_socket socket) {
    uint64_t id = (uint64_t)nng_socket_id(socket), count = 0;
    nng_stat *all = NULL;
    if (nng_stats_get(&all) != 0) return 0;
    for (nng_stat *at = nng_stat_child(all); at; at = nng_stat_next(at)) {
        bool is_listener = strncmp(nng_stat_name(at), "listener", strlen("listener")) == 0;
        if (is_listener && stat_value(at, "socket") == id) count += stat_value(at, "auth");
    }
    nng_stats_free(all);
    return count;
}

static void tls_look_at_handshakes(struct service *service, doorman_time now) {
    struct tls_watch *watch = service->tls_watch;
    if (now < watch->look_at || !server_addresses_want_tls(&service->settings->listen)) return;
    watch->look_at = now + HANDSHAKE_LOOK_INTERVAL;
    uint64_t count = socket_count_failures(service->socket);
    if (count <= watch->count) return; /* less: there was no memory for the statistics */
    server_log_nng_handshakes(service, count - watch->count);
    watch->count = count;
}

/* ---- ends of certificates ------------------------------------------------------------------- */
/* The file of --tls-cert can have a chain, which works only while all its certificates are valid.
 * So the earliest end counts. The file of --tls-ca can have several authorities, when one is being
 * replaced. So the latest end counts. */

#define WARN_DAYS 14
#define DAY ((doorman_time)86400 * DOORMAN_SECOND)

/* Logs a warning if the certificates of a file end soon, or have ended. */
static bool tls_warn_about_end(const struct service *service, int file, int64_t end) {
    const struct settings *settings = service->settings;
    const char *path = file == CERTIFICATE_OWN ? settings->tls_cert : settings->tls_ca;
    int64_t now = (int64_t)time(NULL);
    char text[32];
    if (end == 0 || end - now > WARN_DAYS * 86400) return false;
    time_text(end, text);
    server_log(settings, LEVEL_WARNING,
               end > now ? "a certificate ends soon: replace it" : "a certificate has ended",
               "flag", server_certificate_flag(file), "file", path, "end", text, LOG_END);
    return true;
}

/* Looks at the ends when files were loaded, then after an hour, or a day if it has warned. */
static void tls_look_at_ends(struct service *service, doorman_time now) {
    struct tls_watch *watch = service->tls_watch;
    bool warned = false;
    if (now < watch->warn_at) return;
    for (int i = 0; i < CERTIFICATE_COUNT; i++) {
        warned |= tls_warn_about_end(service, i, service->certificate_ends[i]);
    }
    watch->warn_at = now + (warned ? DAY : DAY / 24);
}

static void tls_work(struct service *service, doorman_time now) {
    tls_look_at_handshakes(service, now);
    tls_look_at_ends(service, now);
}

/* ---- flags ---------------------------------------------------------------------------------- */

static enum exit_status tls_check_settings(const struct settings *settings) {
    enum exit_status exit_status = CONTINUE;
    bool parent = server_addresses_want_tls(&settings->parents);
    bool listens = server_addresses_want_tls(&settings->listen);
    if (!settings->tls_cert != !settings->tls_key) {
        exit_status =
            server_fatal_error(EXIT_USAGE, "--tls-cert and --tls-key need each other: give both");
    } else if (listens && !settings->tls_cert) {
        exit_status =
            server_fatal_error(EXIT_USAGE, "--listen tls+tcp://... needs --tls-cert and --tls-key");
    } else if (parent && !settings->tls_ca) {
        exit_status = server_fatal_error(
            EXIT_USAGE, "--parent tls+tcp://... needs --tls-ca: the authority that "
                        "signed the parent's certificate");
    } else if (settings->tls_ca && !settings->tls_cert && !parent) {
        exit_status = server_fatal_error(
            EXIT_USAGE, "--tls-ca needs a certificate of this server: give --tls-cert "
                        "and --tls-key too");
    }
    return exit_status;
}

const struct server_part server_part_tls = {SERVER_PART_STATE(tls_watch),
                                            .name = "TLS",
                                            .check = tls_check_settings,
                                            .open = tls_start,
                                            .work = tls_work,
                                            .destroy = tls_destroy,
                                            .load_files = tls_load_files};
