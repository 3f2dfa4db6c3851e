/* doorman_server, part ETCD: requests of HTTP to the members of etcd. The interface of this folder,
 * etcd.h, does not need this file. */
#ifndef DOORMAN_SERVER_ETCD_HTTP_H
#define DOORMAN_SERVER_ETCD_HTTP_H

#include "../server.h"

#define ETCD_POST_TOKEN 4096 /* bytes: the longest token and the final 0 */

/* A request of HTTP. The strings must stay valid during the call. */
struct etcd_post {
    const char *member; /* its address */
    const char *path, *body;
    const char *token; /* the value of the Authorization header; "": none */
    doorman_time ends_at;
};

struct etcd_reply {
    long status;         /* of HTTP; 0: no response */
    doorman_buffer body; /* the caller frees its text; the text is NULL or ends with a 0 */
    size_t head_bytes;
    const char *refusal; /* why the rest of the response was not received; NULL: it was */
    bool is_too_long;    /* the reason is its length */
    bool has_timed_out;  /* there is no response because the member, or the way to it, is slow */
};

/* Returns NULL if memory runs out. The first call initialises libcurl, so it must be made while
 * there is only one thread. Only the main thread makes later calls. */
struct etcd_transport *server_etcd_transport_create(const struct settings *settings);
void server_etcd_transport_destroy(struct etcd_transport *transport); /* NULL: does nothing */

/* With true, the current request and all later requests fail at once. Any thread may call this
 * function. */
void server_etcd_transport_cancel(struct etcd_transport *transport, bool cancelled);
bool server_etcd_transport_is_cancelled(const struct etcd_transport *transport);

/* Sends a request and receives the response.
 *   reply     written always
 *   returns   NULL, or why there is no response; valid until the next call */
const char *server_etcd_transport_post(struct etcd_transport *transport,
                                       const struct etcd_post *post, struct etcd_reply *reply);

enum etcd_address { ETCD_ADDRESS_VALID, ETCD_ADDRESS_INVALID, ETCD_ADDRESS_HAS_SECRET };

/* Checks that the address has the form http://HOST[:PORT] or https://HOST[:PORT]. An address with
 * an @ may have a user and a password, so it must not be printed. */
enum etcd_address server_etcd_check_address(const char *address);
bool server_etcd_address_is_https(const char *address);

#endif
