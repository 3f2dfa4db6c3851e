/* doorman_server, part STATE: TLS of the connection to a Redis. TLS uses the socket of the hiredis
 * context, with the time limits of the context.
 *
 * A Redis without TLS reads the first bytes of a handshake as a command. It answers with an error
 * that is no TLS, or waits for the end of a line. In both cases the handshake fails. */
#include "tls_redis.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>

#define TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"
#define RECEIVE_BYTES 16384
#define TEXT_BYTES sizeof((redisContext *)0)->errstr

struct redis_tls {
    gnutls_certificate_credentials_t credentials;
    gnutls_session_t session;
    bool is_open;      /* the handshake is complete, and nothing has failed since */
    bool has_answered; /* Redis has sent something since the handshake */
    char bytes[RECEIVE_BYTES];
};

/* ---- files ---------------------------------------------------------------------------------- */

/* Reads the files that --state-ca, --state-cert and --state-key name. Without --state-ca, the
 * authorities of the system are trusted. Returns false if a file is not valid.
 *   error   out: which flag and file, and why */
static bool tls_read_files(struct redis_tls *tls, const struct store_place *place,
                           char error[STORE_TEXT]) {
    const char *flag = "--state-ca", *path = place->authority;
    int result =
        path ? gnutls_certificate_set_x509_trust_file(tls->credentials, path, GNUTLS_X509_FMT_PEM)
             : gnutls_certificate_set_x509_system_trust(tls->credentials);
    if (path && result == 0) result = GNUTLS_E_NO_CERTIFICATE_FOUND;
    if (result >= 0 && place->certificate) {
        flag = "--state-cert", path = place->certificate;
        result = gnutls_certificate_set_x509_key_file(tls->credentials, path, place->key,
                                                      GNUTLS_X509_FMT_PEM);
    }
    if (result >= 0) return true;
    snprintf(error, STORE_TEXT, "%s %.256s: %s", flag, path ? path : "of the system",
             gnutls_strerror(result));
    return false;
}

/* ---- handshake ------------------------------------------------------------------------------ */

static void tls_explain_certificate(const struct redis_tls *tls, const char *host,
                                    char error[STORE_TEXT]) {
    const unsigned status = gnutls_session_get_verify_cert_status(tls->session);
    gnutls_datum_t text = {NULL, 0};
    if (status & GNUTLS_CERT_UNEXPECTED_OWNER) {
        snprintf(error, STORE_TEXT, "the certificate of Redis is not for the host %.256s", host);
        return;
    }
    const int result =
        gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509, &text, 0);
    snprintf(error, STORE_TEXT, "the certificate of Redis is refused: %.400s; look at --state-ca",
             result >= 0 ? (const char *)text.data : gnutls_strerror(result));
    gnutls_free(text.data);
}

/* Writes what Redis or GnuTLS says about a failure. */
static void tls_explain(const struct redis_tls *tls, int result, char out[TEXT_BYTES]) {
    const char *alert = result == GNUTLS_E_FATAL_ALERT_RECEIVED
                            ? gnutls_alert_get_name(gnutls_alert_get(tls->session))
                            : NULL;
    snprintf(out, TEXT_BYTES, "TLS: %s", alert ? alert : gnutls_strerror(result));
}

/* Does the handshake. Returns whether it has succeeded.
 *   is_refusal   see server_redis_tls_begin */
static bool tls_shake_hands(struct redis_tls *tls, const char *host, char error[STORE_TEXT],
                            bool *is_refusal) {
    char why[TEXT_BYTES];
    int result = GNUTLS_E_INTERRUPTED;
    while (result == GNUTLS_E_INTERRUPTED) result = gnutls_handshake(tls->session);
    if (result == GNUTLS_E_SUCCESS) return true;
    const bool is_alert = result == GNUTLS_E_FATAL_ALERT_RECEIVED;
    const bool is_certificate = result == GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR;
    *is_refusal = is_alert || is_certificate;
    tls_explain(tls, result, why);
    if (is_certificate) {
        tls_explain_certificate(tls, host, error);
    } else if (is_alert) {
        snprintf(error, STORE_TEXT, "Redis refuses the handshake of TLS (%s)", why);
    } else {
        snprintf(error, STORE_TEXT, "Redis does not answer, or has no TLS at this port (%s)", why);
    }
    return false;
}

/* Prepares a session. Returns 0, or an error of GnuTLS.
 *   checks   what the certificate of Redis must be; must stay valid until the handshake is over */
static int tls_prepare(struct redis_tls *tls, int socket, const char *host,
                       gnutls_typed_vdata_st checks[2]) {
    unsigned char address[sizeof(struct in6_addr)];
    const bool is_address =
        inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
    int result = gnutls_init(&tls->session, GNUTLS_CLIENT | GNUTLS_NO_SIGNAL);
    if (result < 0) return result;
    result = gnutls_priority_set_direct(tls->session, TLS_PRIORITIES, NULL);
    if (result >= 0) {
        result = gnutls_credentials_set(tls->session, GNUTLS_CRD_CERTIFICATE, tls->credentials);
    }
    if (result >= 0 && !is_address) {
        result = gnutls_server_name_set(tls->session, GNUTLS_NAME_DNS, host, strlen(host));
    }
    gnutls_session_set_verify_cert2(tls->session, checks, 2, 0);
    gnutls_transport_set_int(tls->session, socket);
    return result;
}

struct redis_tls *server_redis_tls_begin(redisContext *context, const struct store_place *place,
                                         const char *host, char error[STORE_TEXT],
                                         bool *is_refusal) {
    static unsigned char purpose[] = GNUTLS_KP_TLS_WWW_SERVER;
    unsigned char name[256];
    /* cppcheck-suppress legacyUninitvar ; they have values, and the handshake only reads them */
    gnutls_typed_vdata_st checks[2] = {{.type = GNUTLS_DT_DNS_HOSTNAME, .data = name},
                                       {.type = GNUTLS_DT_KEY_PURPOSE_OID, .data = purpose}};
    struct redis_tls *tls = (struct redis_tls *)calloc(1, sizeof *tls);
    *is_refusal = false;
    snprintf((char *)name, sizeof name, "%s", host);
    int result =
        tls ? gnutls_certificate_allocate_credentials(&tls->credentials) : GNUTLS_E_MEMORY_ERROR;
    if (result >= 0 && !tls_read_files(tls, place, error)) {
        *is_refusal = true;
    } else if (result >= 0) {
        result = tls_prepare(tls, context->fd, host, checks);
        if (result >= 0) tls->is_open = tls_shake_hands(tls, host, error, is_refusal);
    }
    if (result < 0) snprintf(error, STORE_TEXT, "TLS: %s", gnutls_strerror(result));
    if (tls && tls->is_open) return tls;
    server_redis_tls_end(tls);
    return NULL;
}

void server_redis_tls_end(struct redis_tls *tls) {
    if (!tls) return;
    if (tls->is_open) (void)gnutls_bye(tls->session, GNUTLS_SHUT_WR);
    if (tls->session) gnutls_deinit(tls->session);
    if (tls->credentials) gnutls_certificate_free_credentials(tls->credentials);
    free(tls);
}

/* ---- commands and answers ------------------------------------------------------------------- */

/* Notes why a connection has failed, in the fields `err` and `errstr` of the context, as hiredis
 * does. In TLS 1.3 Redis checks the certificate of this server after the handshake. Its alert is
 * lost in some cases, and only the end of the connection is visible.
 *   result   of GnuTLS; 0: the connection has ended */
static int tls_fail(struct redis_tls *tls, redisContext *context, int result) {
    const bool is_alert = result == GNUTLS_E_FATAL_ALERT_RECEIVED;
    const bool is_late = result == GNUTLS_E_AGAIN;
    tls->is_open = false;
    context->err = is_late ? REDIS_ERR_IO : is_alert ? REDIS_ERR_PROTOCOL : REDIS_ERR_EOF;
    tls_explain(tls, result, context->errstr);
    if (!is_late && !is_alert && !tls->has_answered) {
        snprintf(context->errstr, TEXT_BYTES,
                 "it has closed the connection; it may need another --state-cert");
    } else if (result == 0 || result == GNUTLS_E_PREMATURE_TERMINATION) {
        snprintf(context->errstr, TEXT_BYTES, "Server closed the connection");
    }
    if (is_late) errno = EAGAIN;
    return REDIS_ERR;
}

int server_redis_tls_send(struct redis_tls *tls, redisContext *context, int count,
                          const char **words, const size_t *bytes) {
    char *command = NULL;
    const int length = redisFormatCommandArgv(&command, count, words, bytes);
    if (length < 0) return tls_fail(tls, context, GNUTLS_E_MEMORY_ERROR);
    ssize_t sent = 0;
    for (size_t at = 0; at < (size_t)length && sent >= 0;) {
        sent = gnutls_record_send(tls->session, command + at, (size_t)length - at);
        if (sent == GNUTLS_E_INTERRUPTED) sent = 0; /* it continues with the same bytes */
        at += sent > 0 ? (size_t)sent : 0;
    }
    redisFreeCommand(command);
    return sent >= 0 ? REDIS_OK : tls_fail(tls, context, (int)sent);
}

/* Receives some bytes of answers. GnuTLS also returns GNUTLS_E_AGAIN when it has received a session
 * ticket. Then errno is not EAGAIN, and the loop tries again. */
static int tls_feed(struct redis_tls *tls, redisContext *context) {
    ssize_t count = GNUTLS_E_AGAIN;
    errno = 0;
    while (count < 0 && errno != EAGAIN && !gnutls_error_is_fatal((int)count)) {
        count = gnutls_record_recv(tls->session, tls->bytes, sizeof tls->bytes);
    }
    if (count <= 0) return tls_fail(tls, context, (int)count);
    tls->has_answered = true;
    return redisReaderFeed(context->reader, tls->bytes, (size_t)count);
}

int server_redis_tls_receive(struct redis_tls *tls, redisContext *context, void **reply) {
    *reply = NULL;
    int result = redisReaderGetReply(context->reader, reply);
    while (result == REDIS_OK && !*reply) {
        result = tls_feed(tls, context);
        if (result == REDIS_OK) result = redisReaderGetReply(context->reader, reply);
    }
    if (result != REDIS_OK && context->err == 0) { /* the reader says why */
        context->err = context->reader->err;
        snprintf(context->errstr, TEXT_BYTES, "%s", context->reader->errstr);
    }
    return result;
}
