/* doorman_server, part TLS_SESSIONS: TLS of connections over HTTP and gRPC, by GnuTLS. This file
 * changes only its own structs. The flags and the files belong to the part TLS, which also serves
 * --listen.
 *
 * With --tls-ca the server asks for a certificate, but the handshake succeeds without one too. The
 * certificate is checked after the handshake, so that HTTP can say in its first response what is
 * wrong (403). GnuTLS itself would only break the handshake off, and people do not see its alert.
 *
 * There are no session tickets. So each connection begins with a full handshake, in which the peer
 * shows its certificate again. */
#include "certificate.h"
#include "tls.h"

#include <gnutls/x509.h>

#define TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:%SAFE_RENEGOTIATION"

/* What connections share. */
struct tls_server {
    gnutls_certificate_credentials_t credentials;
    gnutls_priority_t priorities;
    const char *protocol; /* NULL: any */
    bool needs_certificate;
    unsigned users; /* atomic */
};

struct tls_session {
    struct tls_server *server;
    gnutls_session_t session;
    bool is_ready; /* the handshake is complete */
};

/* Reads the certificates. Returns 0, or an error of GnuTLS. */
static int session_read(struct tls_server *server, const struct pem *pem) {
    const gnutls_datum_t certificate = server_tls_datum(pem->certificate),
                         key = server_tls_datum(pem->key);
    int result = gnutls_certificate_set_x509_key_mem(server->credentials, &certificate, &key,
                                                     GNUTLS_X509_FMT_PEM);
    if (result >= 0 && pem->authority) {
        const gnutls_datum_t authority = server_tls_datum(pem->authority);
        result = gnutls_certificate_set_x509_trust_mem(server->credentials, &authority,
                                                       GNUTLS_X509_FMT_PEM);
        if (result == 0) result = GNUTLS_E_NO_CERTIFICATE_FOUND;
        server->needs_certificate = true;
    }
    if (result >= 0) result = gnutls_priority_init(&server->priorities, TLS_PRIORITIES, NULL);
    return result;
}

static void session_release(struct tls_server *server) {
    if (!server || __atomic_sub_fetch(&server->users, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (server->credentials) gnutls_certificate_free_credentials(server->credentials);
    if (server->priorities) gnutls_priority_deinit(server->priorities);
    free(server);
}

static struct tls_server *session_server(const struct pem *pem, const char *protocol,
                                         char why[TLS_TEXT]) {
    struct tls_server *server = (struct tls_server *)calloc(1, sizeof *server);
    int result = server ? gnutls_certificate_allocate_credentials(&server->credentials)
                        : GNUTLS_E_MEMORY_ERROR;
    if (server) server->users = 1;
    if (server) server->protocol = protocol;
    if (result >= 0) result = session_read(server, pem);
    if (result >= 0) return server;
    snprintf(why, TLS_TEXT, "%s", gnutls_strerror(result));
    session_release(server);
    return NULL;
}

/* ---- sessions ------------------------------------------------------------------------------- */

/* Asks the peer for the protocol of the server, if the server has one. */
static int session_ask_protocol(struct tls_session *session) {
    if (!session->server->protocol) return GNUTLS_E_SUCCESS;
    const gnutls_datum_t name = server_tls_datum(session->server->protocol);
    return gnutls_alpn_set_protocols(session->session, &name, 1, GNUTLS_ALPN_MANDATORY);
}

/* Returns whether the peer has chosen the protocol of the server, or the server has none. GnuTLS
 * accepts a peer that names no protocol. */
static bool session_has_protocol(const struct tls_session *session) {
    const char *protocol = session->server->protocol;
    gnutls_datum_t chosen = {NULL, 0};
    return !protocol ||
           (gnutls_alpn_get_selected_protocol(session->session, &chosen) >= 0 &&
            chosen.size == strlen(protocol) && memcmp(chosen.data, protocol, chosen.size) == 0);
}

static int session_init(struct tls_session *session, int socket) {
    int result = gnutls_init(&session->session, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL);
    if (result < 0) return result;
    result = gnutls_priority_set(session->session, session->server->priorities);
    if (result >= 0) {
        result = gnutls_credentials_set(session->session, GNUTLS_CRD_CERTIFICATE,
                                        session->server->credentials);
    }
    if (result >= 0) result = session_ask_protocol(session);
    if (session->server->needs_certificate) {
        gnutls_certificate_server_set_request(session->session, GNUTLS_CERT_REQUEST);
    }
    gnutls_transport_set_int(session->session, socket);
    return result;
}

static void session_end(struct tls_session *session) {
    if (!session) return;
    if (session->is_ready) (void)gnutls_bye(session->session, GNUTLS_SHUT_WR);
    if (session->session) gnutls_deinit(session->session);
    session_release(session->server);
    free(session);
}

static struct tls_session *session_begin(struct tls_server *server, int socket) {
    struct tls_session *session = (struct tls_session *)calloc(1, sizeof *session);
    if (!session) return NULL;
    __atomic_add_fetch(&server->users, 1, __ATOMIC_RELAXED);
    session->server = server;
    if (session_init(session, socket) >= 0) return session;
    session_end(session);
    return NULL;
}

/* Checks the certificate of the peer. It must be one for clients, if it says what it is for.
 *   refusal   out: "" if it is valid */
static void session_verify(struct tls_session *session, char *refusal, size_t room) {
    static unsigned char purpose[] = GNUTLS_KP_TLS_WWW_CLIENT;
    /* cppcheck-suppress legacyUninitvar ; it has a value, and the call below only reads it */
    gnutls_typed_vdata_st data = {.type = GNUTLS_DT_KEY_PURPOSE_OID, .data = purpose};
    unsigned count = 0, status = 0;
    gnutls_datum_t text = {NULL, 0};
    refusal[0] = 0;
    if (!session->server->needs_certificate) return;
    if (!gnutls_certificate_get_peers(session->session, &count) || count == 0) {
        snprintf(refusal, room, "the client has sent no certificate");
        return;
    }
    int result = gnutls_certificate_verify_peers(session->session, &data, 1, &status);
    if (result < 0) {
        snprintf(refusal, room, "%s", gnutls_strerror(result));
    } else if (status != 0) {
        result = gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509, &text, 0);
        snprintf(refusal, room, "%s", result >= 0 ? (const char *)text.data : "it is not valid");
        refusal[strcspn(refusal, "\r\n")] = 0;
        size_t bytes = strlen(refusal);
        while (bytes > 0 && strchr(" .", refusal[bytes - 1])) refusal[--bytes] = 0;
        gnutls_free(text.data);
    }
}

static enum tls_result session_handshake(struct tls_session *session, char *refusal, size_t room) {
    int result = gnutls_handshake(session->session);
    if (result == GNUTLS_E_SUCCESS) {
        session->is_ready = true;
        if (!session_has_protocol(session)) return TLS_FAILED;
        session_verify(session, refusal, room);
        return TLS_DONE;
    }
    if (!gnutls_error_is_fatal(result)) {
        return gnutls_record_get_direction(session->session) ? TLS_WRITES : TLS_READS;
    }
    (void)gnutls_alert_send_appropriate(session->session, result);
    return TLS_FAILED;
}

static void session_refuse(struct tls_session *session) {
    (void)gnutls_alert_send(session->session, GNUTLS_AL_FATAL, GNUTLS_A_CERTIFICATE_REQUIRED);
    session->is_ready = false; /* nothing follows an alert */
}

/* Turns a result of GnuTLS into a result of recv or send. */
static ssize_t session_result(ssize_t result) {
    if (result >= 0) return result;
    errno = result == GNUTLS_E_AGAIN || result == GNUTLS_E_INTERRUPTED ? EAGAIN : EPROTO;
    return -1;
}

static ssize_t session_receive(struct tls_session *session, void *bytes, size_t room) {
    return session_result(gnutls_record_recv(session->session, bytes, room));
}

static ssize_t session_send(struct tls_session *session, const void *bytes, size_t count) {
    return session_result(gnutls_record_send(session->session, bytes, count));
}

static bool session_has_bytes(struct tls_session *session) {
    return gnutls_record_check_pending(session->session) > 0;
}

static const struct tls_calls session_calls = {.create = session_server,
                                               .release = session_release,
                                               .begin = session_begin,
                                               .end = session_end,
                                               .handshake = session_handshake,
                                               .refuse = session_refuse,
                                               .receive = session_receive,
                                               .send = session_send,
                                               .has_bytes = session_has_bytes};

const struct server_part server_part_tls_sessions = {.name = "TLS_SESSIONS",
                                                     .tls_calls = &session_calls};
