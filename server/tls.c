/* doorman_server, part TLS: certificates. This file checks the flags and sets service->pem and
 * service->tls.
 *
 * All listeners share one TLS configuration. With --tls-ca, a peer must have a certificate that the
 * authority has signed. nng checks the certificate before it reports the connection. The link to
 * the parent uses the same files, and the authority must have signed the parent's certificate. */
#include "server.h"

#define PEM_BYTES_MAX ((size_t)1 << 20)

/* Reads a file. If the flag is not given, `path` is NULL and *out becomes NULL. */
static enum exit_status pem_load(char **out, int flag, const char *path) {
    enum exit_status exit_status = CONTINUE;
    FILE *file = path ? fopen(path, "rb") : NULL;
    char *text = path ? (char *)calloc(1, PEM_BYTES_MAX) : NULL;
    if (path && !text) {
        exit_status = server_fatal_error(EXIT_ERROR, "out of memory");
    } else if (path && (!file || (fread(text, 1, PEM_BYTES_MAX - 1, file) == 0))) {
        exit_status = server_fatal_error(EXIT_ERROR, "--%s %s: %s", server_flag_name(flag), path,
                                         file ? "is empty, or cannot be read" : strerror(errno));
    }
    if (file) fclose(file);
    *out = text;
    return exit_status;
}

/* Makes a TLS configuration. To do so, nng checks the certificates. In client mode the
 * configuration is only used for this check, because the transport makes its own. */
static enum exit_status tls_create(nng_tls_config **out, nng_tls_mode mode,
                                   const struct service *service) {
    const struct pem *pem = &service->pem;
    const struct settings *settings = service->settings;
    enum exit_status exit_status = CONTINUE;
    int error = nng_tls_config_alloc(out, mode);
    if (error != 0) {
        exit_status =
            server_fatal_error(EXIT_USAGE, "TLS is not available: %s; libnng was built without TLS",
                               nng_strerror(error));
    }
    if (exit_status == CONTINUE && pem->certificate) {
        error = nng_tls_config_own_cert(*out, pem->certificate, pem->key, NULL);
        if (error != 0) {
            exit_status =
                server_fatal_error(EXIT_ERROR,
                                   "--tls-cert %s, --tls-key %s: %s; they must be a certificate "
                                   "and its key, in PEM",
                                   settings->tls_cert, settings->tls_key, nng_strerror(error));
        }
    }
    if (exit_status == CONTINUE && pem->authority) {
        error = nng_tls_config_ca_chain(*out, pem->authority, NULL);
        if (error == 0) error = nng_tls_config_auth_mode(*out, NNG_TLS_AUTH_MODE_REQUIRED);
        if (error != 0) {
            exit_status =
                server_fatal_error(EXIT_ERROR, "--tls-ca %s: %s; it must hold certificates, in PEM",
                                   settings->tls_ca, nng_strerror(error));
        }
    }
    return exit_status;
}

enum exit_status server_tls_start(struct service *service) {
    const struct settings *settings = service->settings;
    struct pem *pem = &service->pem;
    enum exit_status exit_status = pem_load(&pem->certificate, FLAG_TLS_CERT, settings->tls_cert);
    if (exit_status == CONTINUE) exit_status = pem_load(&pem->key, FLAG_TLS_KEY, settings->tls_key);
    if (exit_status == CONTINUE) {
        exit_status = pem_load(&pem->authority, FLAG_TLS_CA, settings->tls_ca);
    }
    if (exit_status == CONTINUE && pem->certificate) {
        exit_status = tls_create(&service->tls, NNG_TLS_MODE_SERVER, service);
    } else if (exit_status == CONTINUE && pem->authority) {
        nng_tls_config *client = NULL;
        exit_status = tls_create(&client, NNG_TLS_MODE_CLIENT, service);
        if (client) nng_tls_config_free(client);
    }
    return exit_status;
}

void server_tls_stop(struct service *service) {
    if (service->tls) nng_tls_config_free(service->tls);
    free(service->pem.certificate);
    free(service->pem.key);
    free(service->pem.authority);
}

enum exit_status server_tls_check_settings(const struct settings *settings) {
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
