/* doorman_server, part GRPC: TLS by GnuTLS. A peer must choose HTTP/2 (`h2`) by ALPN, and with
 * --tls-ca it must have a certificate. New certificates are for new connections. */
#include "grpc.h"

#include <gnutls/gnutls.h>

#define TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:%SAFE_RENEGOTIATION"

/* Certificates, which connections share. */
struct grpc_tls {
    gnutls_certificate_credentials_t credentials;
    gnutls_priority_t priorities;
    bool needs_certificate;
    unsigned users; /* atomic */
};

struct grpc_tls_session {
    struct grpc_tls *tls;
    gnutls_session_t session;
    bool is_ready; /* the handshake is complete */
};

static gnutls_datum_t tls_datum(const char *text) {
    union {
        const char *from;
        unsigned char *to;
    } pointer = {text}; /* GnuTLS has no const here, and only reads it */
    return (gnutls_datum_t){pointer.to, (unsigned)strlen(text)};
}

/* Reads the certificates. Returns 0, or an error of GnuTLS. */
static int tls_read(struct grpc_tls *tls, const struct pem *pem) {
    const gnutls_datum_t certificate = tls_datum(pem->certificate), key = tls_datum(pem->key);
    int result = gnutls_certificate_set_x509_key_mem(tls->credentials, &certificate, &key,
                                                     GNUTLS_X509_FMT_PEM);
    if (result >= 0 && pem->authority) {
        const gnutls_datum_t authority = tls_datum(pem->authority);
        result = gnutls_certificate_set_x509_trust_mem(tls->credentials, &authority,
                                                       GNUTLS_X509_FMT_PEM);
        if (result == 0) result = GNUTLS_E_NO_CERTIFICATE_FOUND;
        tls->needs_certificate = true;
    }
    if (result >= 0) result = gnutls_priority_init(&tls->priorities, TLS_PRIORITIES, NULL);
    return result;
}

struct grpc_tls *server_grpc_tls_create(const struct pem *pem, char why[GRPC_TEXT_MAX]) {
    struct grpc_tls *tls = (struct grpc_tls *)calloc(1, sizeof *tls);
    int result =
        tls ? gnutls_certificate_allocate_credentials(&tls->credentials) : GNUTLS_E_MEMORY_ERROR;
    if (tls) tls->users = 1;
    if (result >= 0) result = tls_read(tls, pem);
    if (result >= 0) return tls;
    snprintf(why, GRPC_TEXT_MAX, "%s", gnutls_strerror(result));
    server_grpc_tls_release(tls);
    return NULL;
}

struct grpc_tls *server_grpc_tls_share(struct grpc_tls *tls) {
    if (tls) __atomic_add_fetch(&tls->users, 1, __ATOMIC_RELAXED);
    return tls;
}

void server_grpc_tls_release(struct grpc_tls *tls) {
    if (!tls || __atomic_sub_fetch(&tls->users, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (tls->credentials) gnutls_certificate_free_credentials(tls->credentials);
    if (tls->priorities) gnutls_priority_deinit(tls->priorities);
    free(tls);
}

/* ---- sessions ------------------------------------------------------------------------------- */

static int tls_session_init(struct grpc_tls_session *session, int socket) {
    static unsigned char name[] = "h2";
    const gnutls_datum_t h2 = {name, 2};
    int result = gnutls_init(&session->session, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL);
    if (result < 0) return result;
    result = gnutls_priority_set(session->session, session->tls->priorities);
    if (result >= 0) {
        result = gnutls_credentials_set(session->session, GNUTLS_CRD_CERTIFICATE,
                                        session->tls->credentials);
    }
    if (result >= 0) {
        result = gnutls_alpn_set_protocols(session->session, &h2, 1, GNUTLS_ALPN_MANDATORY);
    }
    if (session->tls->needs_certificate) {
        gnutls_certificate_server_set_request(session->session, GNUTLS_CERT_REQUIRE);
        gnutls_session_set_verify_cert(session->session, NULL, 0);
    }
    gnutls_transport_set_int(session->session, socket);
    return result;
}

struct grpc_tls_session *server_grpc_tls_begin(struct grpc_tls *tls, int socket) {
    struct grpc_tls_session *session = (struct grpc_tls_session *)calloc(1, sizeof *session);
    if (!session) return NULL;
    session->tls = server_grpc_tls_share(tls);
    if (tls_session_init(session, socket) >= 0) return session;
    server_grpc_tls_end(session);
    return NULL;
}

void server_grpc_tls_end(struct grpc_tls_session *session) {
    if (!session) return;
    if (session->is_ready) (void)gnutls_bye(session->session, GNUTLS_SHUT_WR);
    if (session->session) gnutls_deinit(session->session);
    server_grpc_tls_release(session->tls);
    free(session);
}

/* Returns whether the peer has chosen HTTP/2. A peer that names no protocol has not. */
static bool tls_is_h2(const struct grpc_tls_session *session) {
    gnutls_datum_t chosen = {NULL, 0};
    return gnutls_alpn_get_selected_protocol(session->session, &chosen) >= 0 && chosen.size == 2 &&
           memcmp(chosen.data, "h2", 2) == 0;
}

enum grpc_tls_result server_grpc_tls_handshake(struct grpc_tls_session *session, int *failure) {
    int result = gnutls_handshake(session->session);
    session->is_ready = result == GNUTLS_E_SUCCESS;
    if (session->is_ready && tls_is_h2(session)) return GRPC_TLS_DONE;
    if (result < 0 && !gnutls_error_is_fatal(result)) {
        return gnutls_record_get_direction(session->session) ? GRPC_TLS_WRITES : GRPC_TLS_READS;
    }
    bool is_certificate = result == GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR ||
                          result == GNUTLS_E_NO_CERTIFICATE_FOUND ||
                          result == GNUTLS_E_CERTIFICATE_REQUIRED;
    *failure = is_certificate ? FAILED_CERTIFICATE : FAILED_HANDSHAKE;
    if (result < 0) (void)gnutls_alert_send_appropriate(session->session, result);
    return GRPC_TLS_FAILED;
}

/* Turns a result of GnuTLS into one of recv or send. */
static ssize_t tls_result(ssize_t result) {
    if (result >= 0) return result;
    errno = result == GNUTLS_E_AGAIN || result == GNUTLS_E_INTERRUPTED ? EAGAIN : EPROTO;
    return -1;
}

ssize_t server_grpc_tls_recv(struct grpc_tls_session *session, void *bytes, size_t room) {
    return tls_result(gnutls_record_recv(session->session, bytes, room));
}

ssize_t server_grpc_tls_send(struct grpc_tls_session *session, const void *bytes, size_t count) {
    return tls_result(gnutls_record_send(session->session, bytes, count));
}

bool server_grpc_tls_has_bytes(struct grpc_tls_session *session) {
    return gnutls_record_check_pending(session->session) > 0;
}
