/* doorman_server, part TLS: when certificates are valid. This file reads the fields notBefore and
 * notAfter of X.509 certificates in PEM. nng reports no error for a certificate that has ended, and
 * does not say when certificates end. The functions use only their arguments.
 *
 * A certificate is a tree of elements in DER. Each element has a tag, a length and a content:
 *
 *     SEQUENCE                       Certificate (RFC 5280, 4.1)
 *         SEQUENCE                   tbsCertificate
 *             [0]                    version; version 1 leaves it out
 *             INTEGER                serialNumber
 *             SEQUENCE               signature
 *             SEQUENCE               issuer
 *             SEQUENCE               validity
 *                 time               notBefore
 *                 time               notAfter: YYMMDDhhmmssZ or YYYYMMDDhhmmssZ
 *
 * nng has already accepted the certificates. So an element that does not fit only means that a time
 * is not known. */
#include "certificate.h"
#include "../util/base64.h"

enum der_tag {
    DER_UTC_TIME = 0x17, /* two digits of the year: 1950 to 2049 */
    DER_GENERALIZED_TIME = 0x18,
    DER_SEQUENCE = 0x30,
    DER_VERSION = 0xa0
};

struct der {
    const unsigned char *at, *end;
};

/* Reads the length of an element. A first byte up to 0x7f is the length. Otherwise its lower 7 bits
 * say how many bytes follow, and these bytes have the length. */
static bool der_read_length(struct der *from, size_t *out) {
    if (from->at == from->end) return false;
    size_t first = *from->at++, count = first > 0x80 ? first - 0x80 : 0;
    size_t length = count ? 0 : first;
    if (first == 0x80 || count > 4 || count > (size_t)(from->end - from->at)) return false;
    for (size_t i = 0; i < count; i++) length = length << 8 | *from->at++;
    *out = length;
    return length <= (size_t)(from->end - from->at);
}

/* Reads the next element.
 *   content   out: what the element contains */
static bool der_read(struct der *from, unsigned *tag, struct der *content) {
    size_t length = 0;
    if (from->at == from->end) return false;
    *tag = *from->at++;
    if (!der_read_length(from, &length)) return false;
    *content = (struct der){from->at, from->at + length};
    from->at += length;
    return true;
}

/* Goes into the next element. Returns false if it is not a sequence. */
static bool der_enter(struct der *at) {
    unsigned tag = 0;
    struct der content = *at;
    if (!der_read(at, &tag, &content) || tag != DER_SEQUENCE) return false;
    *at = content;
    return true;
}

/* Reads a time. Returns the seconds since 1970, or 0 if it is not valid. */
static int64_t der_read_time(unsigned tag, const struct der *content) {
    static const size_t digits[] = {[DER_UTC_TIME] = 12, [DER_GENERALIZED_TIME] = 14};
    char text[16] = "";
    size_t bytes = (size_t)(content->end - content->at);
    if (tag != DER_UTC_TIME && tag != DER_GENERALIZED_TIME) return 0;
    if (bytes != digits[tag] + 1 || content->at[bytes - 1] != 'Z') return 0;
    memcpy(text, content->at, bytes - 1);
    if (strspn(text, "0123456789") != bytes - 1) return 0;
    int year = 0;
    struct tm time = {.tm_sec = 0};
    const char *const format = tag == DER_UTC_TIME ? "%2d%2d%2d%2d%2d%2d" : "%4d%2d%2d%2d%2d%2d";
    int count = sscanf(text, format, &year, &time.tm_mon, &time.tm_mday, &time.tm_hour,
                       &time.tm_min, &time.tm_sec);
    if (tag == DER_UTC_TIME) year += year < 50 ? 2000 : 1900;
    time.tm_year = year - 1900;
    time.tm_mon--;
    return count == 6 ? (int64_t)timegm(&time) : 0;
}

/* Reads when a certificate is valid. A time is 0 if it is not known. */
static struct certificate_period der_read_period(struct der at) {
    const struct certificate_period unknown = {.begin = 0};
    struct certificate_period period = unknown;
    unsigned tag = 0;
    struct der content = at;
    bool inside = der_enter(&at);      /* the certificate */
    inside = inside && der_enter(&at); /* what its issuer has signed */
    if (!inside || !der_read(&at, &tag, &content)) return unknown;
    int skipped = tag == DER_VERSION ? 3 : 2; /* the serial number, the signature, the issuer */
    for (int i = 0; i < skipped; i++) {
        if (!der_read(&at, &tag, &content)) return unknown;
    }
    if (!der_enter(&at) || !der_read(&at, &tag, &content)) return unknown;
    period.begin = der_read_time(tag, &content);
    if (der_read(&at, &tag, &content)) period.end = der_read_time(tag, &content);
    return period;
}

#define PEM_BEGIN "-----BEGIN CERTIFICATE-----"
#define PEM_END "-----END CERTIFICATE-----"

/* Reads when a certificate is valid, from its base64, which has line breaks. Both times are 0 if
 * they cannot be read.
 *   room   has space for the text and a final 0 */
static struct certificate_period pem_read_period(const char *from, const char *to, char *room) {
    size_t count = 0;
    for (; from < to; from++) {
        if (!strchr(" \t\r\n", *from)) room[count++] = *from;
    }
    room[count] = 0;
    size_t bytes =
        server_base64_read(room, count + 1, room); /* never writes what it has not read */
    return der_read_period((struct der){(unsigned char *)room, (unsigned char *)room + bytes});
}

/* Reads the next certificate of a text.
 *   at     in/out: where to search; after the certificate's first line if there is one
 *   room   has space for the text and a final 0 */
static bool pem_next(const char **at, char *room, struct certificate_period *period) {
    const char *begin = strstr(*at, PEM_BEGIN);
    if (!begin) return false;
    *at = begin + strlen(PEM_BEGIN);
    const char *to = strstr(*at, PEM_END);
    *period = to ? pem_read_period(*at, to, room) : (struct certificate_period){.begin = 0};
    return true;
}

int64_t server_certificate_end(const char *pem, bool latest) {
    char *room = (char *)malloc(strlen(pem) + 1);
    struct certificate_period period;
    int64_t found = 0;
    while (room && pem_next(&pem, room, &period)) {
        bool better = latest ? period.end > found : period.end < found;
        if (period.end && (!found || better)) found = period.end;
    }
    free(room);
    return found;
}

static bool period_is_valid(const struct certificate_period *period, int64_t now) {
    return (!period->begin || period->begin <= now) && (!period->end || now <= period->end);
}

/* Without memory, no certificate is known to be invalid. */
bool server_certificate_is_valid(const char *pem, bool any, int64_t now,
                                 struct certificate_period *first) {
    char *room = (char *)malloc(strlen(pem) + 1);
    struct certificate_period period = {.begin = 0};
    *first = period;
    bool found = room && pem_next(&pem, room, first);
    bool valid = !found || period_is_valid(first, now);
    while (any && !valid && pem_next(&pem, room, &period)) valid = period_is_valid(&period, now);
    free(room);
    return valid;
}
