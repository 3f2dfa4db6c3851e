/* doorman_server: opens connections to other processes of Doorman. The functions change only their
 * arguments. */
#include "dial.h"
#include "host.h"

#include <nng/protocol/reqrep0/req.h>

/* Makes the TLS of a connection, out of the files of this process. nng checks that the certificate
 * of the peer is for the host, but only if the nng_tls_config has the name of the host. */
static int dial_set_tls(struct service *service, const char *address, nng_dialer dialer) {
    char host[DOORMAN_ID_BYTES_MAX + 1];
    nng_tls_config *tls = NULL;
    server_host_read(address, host, sizeof host);
    int error = nng_tls_config_alloc(&tls, NNG_TLS_MODE_CLIENT);
    if (error != 0) return error;
    error = nng_tls_config_server_name(tls, host);
    server_lock(&service->lock);
    const struct pem *pem = &service->pem;
    if (error == 0) {
        error = pem->authority ? nng_tls_config_ca_chain(tls, pem->authority, NULL) : NNG_ECRYPTO;
    }
    if (error == 0 && pem->certificate) {
        error = nng_tls_config_own_cert(tls, pem->certificate, pem->key, NULL);
    }
    server_unlock(&service->lock);
    if (error == 0) error = nng_tls_config_auth_mode(tls, NNG_TLS_AUTH_MODE_REQUIRED);
    if (error == 0) error = nng_dialer_set_ptr(dialer, NNG_OPT_TLS_CONFIG, tls);
    nng_tls_config_free(tls); /* the dialer has a reference of its own */
    return error;
}

static int dial_start(struct service *service, const char *address, nng_socket socket) {
    nng_dialer dialer;
    int error = nng_dialer_create(&dialer, socket, address);
    if (error == 0 && server_url_wants_tls(address)) error = dial_set_tls(service, address, dialer);
    if (error == 0) error = nng_dialer_start(dialer, NNG_FLAG_NONBLOCK);
    return error;
}

int server_dial(struct service *service, const char *address, nng_socket *socket,
                nng_pipe_cb notify, void *context) {
    nng_socket opened;
    int error = nng_req0_open(&opened);
    if (error != 0) return error;
    error = nng_pipe_notify(opened, NNG_PIPE_EV_ADD_PRE, notify, context);
    if (error == 0) error = nng_pipe_notify(opened, NNG_PIPE_EV_REM_POST, notify, context);
    if (error == 0) {
        error = nng_socket_set_size(opened, NNG_OPT_RECVMAXSZ, DOORMAN_MESSAGE_BYTES_MAX + 4);
    }
    if (error == 0) {
        error = nng_socket_set_ms(opened, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    }
    if (error == 0) error = nng_socket_set_ms(opened, NNG_OPT_RECONNMINT, 20);
    if (error == 0) error = nng_socket_set_ms(opened, NNG_OPT_RECONNMAXT, 500);
    if (error == 0) error = dial_start(service, address, opened);
    if (error == 0) *socket = opened;
    if (error != 0) nng_close(opened);
    return error;
}
