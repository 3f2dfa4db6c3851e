/* doorman_server, part TLS: the head of the part, and which addresses need it. Only server.h
 * includes this file. */
#ifndef DOORMAN_SERVER_TLS_H
#define DOORMAN_SERVER_TLS_H

/* Returns whether an address has a scheme of nng that uses TLS. */
static inline bool server_url_wants_tls(const char *url) {
    return strncmp(url, "tls+", 4) == 0 || strncmp(url, "wss", 3) == 0;
}

static inline bool server_addresses_want_tls(const struct addresses *addresses) {
    bool wanted = false;
    for (size_t i = 0; i < addresses->count; i++) {
        wanted = wanted || server_url_wants_tls(addresses->items[i]);
    }
    return wanted;
}

/* The files of certificates, and their flags. */
enum { CERTIFICATE_OWN, CERTIFICATE_AUTHORITY, CERTIFICATE_COUNT };

static inline const char *server_certificate_flag(int file) {
    return server_flag_name(file == CERTIFICATE_OWN ? FLAG_TLS_CERT : FLAG_TLS_CA);
}

#ifdef DOORMAN_SERVER_TLS
/* Checks that the flags for TLS fit together, and that each TLS address has the files it needs. */
enum exit_status server_tls_check_settings(const struct settings *settings);

/* Sets service->pem and service->tls. */
enum exit_status server_tls_start(struct service *service);
void server_tls_stop(struct service *service);

/* Loads the files again, and gives them to the listeners and to the link to the parent. If a file
 * is invalid, only logs the reason. The main thread calls this function.
 *   is_quiet   a failure is not logged, because a later call will try again
 *   returns    whether the files were loaded; true if there are no files */
bool server_tls_reload(struct service *service, bool is_quiet);

/* Gives the transport of the link to the parent the files that were loaded last. The thread of the
 * link calls this function. Precondition: the lock is held. */
void server_tls_update_parent_link(struct service *service);

/* Counts and logs the handshakes over nng that have failed, and warns about certificates that end
 * soon. The main thread calls this function once a second. */
void server_tls_update(struct service *service, doorman_time now);

/* Reads when the certificates in force end, in seconds since 1970. 0: the flag is not given, or the
 * end is not known. Precondition: the lock is not held. */
void server_tls_ends(struct service *service, int64_t ends[CERTIFICATE_COUNT]);

/* Returns when the certificates of a PEM text end, in seconds since 1970. Returns 0 if no
 * certificate can be read.
 *   latest   true: the latest end of all certificates. false: the earliest one */
int64_t server_certificate_end(const char *pem, bool latest);

/* When a certificate is valid, in seconds since 1970. 0: not known. */
struct certificate_period {
    int64_t begin, end; /* both are inside */
};

/* Returns whether the first certificate of a PEM text is valid now. A time that is not known does
 * not make it invalid.
 *   any     true: it is enough if one certificate of the text is valid now
 *   first   out: when the first certificate is valid */
bool server_certificate_is_valid(const char *pem, bool any, int64_t now,
                                 struct certificate_period *first);
#else
static inline enum exit_status server_tls_check_settings(const struct settings *settings) {
    bool wanted = server_addresses_want_tls(&settings->listen) ||
                  server_addresses_want_tls(&settings->parents);
    return wanted ? server_fatal_error(EXIT_USAGE, "an address starts with tls+ or wss: this "
                                                   "server was built without TLS")
                  : CONTINUE;
}
static inline enum exit_status server_tls_start(struct service *service) {
    (void)service;
    return CONTINUE;
}
static inline void server_tls_stop(struct service *service) { (void)service; }
static inline bool server_tls_reload(struct service *service, bool is_quiet) {
    (void)service, (void)is_quiet;
    return true;
}
static inline void server_tls_update_parent_link(struct service *service) { (void)service; }
static inline void server_tls_update(struct service *service, doorman_time now) {
    (void)service, (void)now;
}
static inline void server_tls_ends(struct service *service, int64_t ends[CERTIFICATE_COUNT]) {
    (void)service;
    ends[CERTIFICATE_OWN] = ends[CERTIFICATE_AUTHORITY] = 0;
}
#endif

#endif
