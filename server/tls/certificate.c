/* doorman_server, part TLS: when certificates are valid. nng reports no error for a certificate
 * that has ended, and does not say when certificates end. So GnuTLS reads them. The functions use
 * only their arguments.
 *
 * nng has already accepted the certificates. So if GnuTLS cannot read one, only the times of this
 * certificate are not known. */
#include "certificate.h"

#include <gnutls/x509.h>

/* Returns a time of GnuTLS, or 0 if it is not known. A certificate that never ends has the last
 * second of the year 9999 as its end (RFC 5280, 4.1.2.5). */
static int64_t time_known(time_t at) {
    if (at == GNUTLS_X509_NO_WELL_DEFINED_EXPIRATION) return INT64_C(253402300799);
    return at > 0 ? (int64_t)at : 0;
}

/* Reads the next certificate of a text in PEM. Its times are not known if it cannot be read.
 *   at   in/out: where to search; after the certificate's first line if there is one */
static bool pem_next(const char **at, struct certificate_period *period) {
    static const char first_line[] = "-----BEGIN CERTIFICATE-----";
    const char *begin = strstr(*at, first_line);
    gnutls_x509_crt_t certificate = NULL;
    *period = (struct certificate_period){.begin = 0};
    if (!begin) return false;
    *at = begin + strlen(first_line);
    const gnutls_datum_t text = server_tls_datum(begin);
    if (gnutls_x509_crt_init(&certificate) < 0) return true;
    if (gnutls_x509_crt_import(certificate, &text, GNUTLS_X509_FMT_PEM) >= 0) {
        period->begin = time_known(gnutls_x509_crt_get_activation_time(certificate));
        period->end = time_known(gnutls_x509_crt_get_expiration_time(certificate));
    }
    gnutls_x509_crt_deinit(certificate);
    return true;
}

int64_t server_certificate_end(const char *pem, bool latest) {
    struct certificate_period period;
    int64_t found = 0;
    while (pem_next(&pem, &period)) {
        bool better = latest ? period.end > found : period.end < found;
        if (period.end && (!found || better)) found = period.end;
    }
    return found;
}

static bool period_is_valid(const struct certificate_period *period, int64_t now) {
    return (!period->begin || period->begin <= now) && (!period->end || now <= period->end);
}

/* A certificate that cannot be read, for example because memory runs out, counts as valid. */
bool server_certificate_is_valid(const char *pem, bool any, int64_t now,
                                 struct certificate_period *first) {
    struct certificate_period period;
    bool valid = !pem_next(&pem, first) || period_is_valid(first, now);
    while (any && !valid && pem_next(&pem, &period)) valid = period_is_valid(&period, now);
    return valid;
}
