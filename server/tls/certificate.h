/* doorman_server, part TLS: when certificates are valid, and how GnuTLS gets texts. */
#ifndef DOORMAN_SERVER_CERTIFICATE_H
#define DOORMAN_SERVER_CERTIFICATE_H

#include "../log/log.h"

#include <gnutls/gnutls.h>

static inline gnutls_datum_t server_tls_datum(const char *text) {
    const union {
        const char *from;
        unsigned char *to;
    } pointer = {text}; /* GnuTLS has no const here, and only reads it */
    return (gnutls_datum_t){pointer.to, (unsigned)strlen(text)};
}

/* Returns when the certificates of a PEM text end, in seconds since 1970. Returns 0 if no
 * certificate can be read.
 *   latest   true: the latest end of all certificates. false: the earliest one */
int64_t server_certificate_end(const char *pem, bool latest);

/* When a certificate is valid, in seconds since 1970. 0: not known. */
struct certificate_period {
    int64_t begin, end; /* both belong to the period */
};

/* Returns whether the first certificate of a PEM text is valid now. A time that is not known does
 * not make it invalid.
 *   any     true: it is enough if one certificate of the text is valid now
 *   first   out: when the first certificate is valid */
bool server_certificate_is_valid(const char *pem, bool any, int64_t now,
                                 struct certificate_period *first);

#endif
