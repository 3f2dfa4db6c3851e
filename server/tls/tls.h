/* doorman_server, part TLS_SESSIONS: sessions of sockets that another part reads and writes by
 * itself, as HTTP and gRPC do. HTTP and gRPC reach the functions by service->tls_calls, which is
 * NULL if the build has no part TLS. */
#ifndef DOORMAN_SERVER_TLS_H
#define DOORMAN_SERVER_TLS_H

#include "../server.h"

#include <sys/types.h>

enum tls_result { TLS_DONE, TLS_READS, TLS_WRITES, TLS_FAILED };

#define TLS_TEXT 160

struct tls_server;  /* what the connections of a listener share: its certificates */
struct tls_session; /* of one connection */

struct tls_calls {
    /* Makes what connections share. The caller releases it.
     *   protocol   such as "h2". A peer must choose it by ALPN. A constant. NULL: any
     *   why        out: on NULL, what is wrong with the files */
    struct tls_server *(*create)(const struct pem *pem, const char *protocol, char why[TLS_TEXT]);
    void (*release)(struct tls_server *server); /* NULL has no effect */

    /* Begins a session. The session keeps what it needs of the server. Returns NULL on failure. */
    struct tls_session *(*begin)(struct tls_server *server, int socket);
    void (*end)(struct tls_session *session); /* NULL has no effect */

    /* Continues a handshake.
     *   refusal   out: on TLS_DONE why the certificate of the peer is refused, or ""
     *   returns   READS, WRITES: it continues when the socket can be read, or written */
    enum tls_result (*handshake)(struct tls_session *session, char *refusal, size_t room);

    /* Sends an alert to a peer whose certificate is refused. The caller ends the session. */
    void (*refuse)(struct tls_session *session);

    /* Like recv and send, they return -1 and set errno on failure. */
    ssize_t (*receive)(struct tls_session *session, void *bytes, size_t room);
    ssize_t (*send)(struct tls_session *session, const void *bytes, size_t count);

    /* Returns whether there are received bytes that epoll does not report. */
    bool (*has_bytes)(struct tls_session *session);
};

/* Returns the flag that names a file of certificates. */
static inline const char *server_certificate_flag(int file) {
    return server_flag_name(file == CERTIFICATE_OWN ? FLAG_TLS_CERT : FLAG_TLS_CA);
}

#endif
