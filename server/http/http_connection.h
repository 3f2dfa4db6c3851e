/* doorman_server, part HTTP: a connection, and what all connections share. Only http_connection.c,
 * which serves connections, and http_listen.c, which accepts and limits them, include it. */
#ifndef DOORMAN_SERVER_HTTP_CONNECTION_H
#define DOORMAN_SERVER_HTTP_CONNECTION_H

#include "http.h"

#include <nng/supplemental/util/platform.h>

#define HTTP_TIMEOUT_SECONDS 30

/* The maximum number of connections. If the process can open few files, there are fewer: at most
 * one connection for each HTTP_FILES_PER_CONNECTION files. An idle connection takes 20 KiB of
 * memory. A connection that receives a body takes up to three times --max-message for a moment. */
#define HTTP_CONNECTION_MAX 512
#define HTTP_FILES_PER_CONNECTION 4

enum http_connection_state {
    CONNECTION_FREE,
    CONNECTION_IDLE,
    CONNECTION_HEAD,
    CONNECTION_CONTINUING,
    CONNECTION_BODY,
    CONNECTION_ANSWERING,
    CONNECTION_ABANDONED,
    CONNECTION_DELAYED,
    CONNECTION_SENDING,
    CONNECTION_DRAINING,
    CONNECTION_CLOSING
};

struct http_connection {
    struct service *service;
    nng_stream *stream;
    nng_sockaddr peer; /* read when the connection opens, because a failure can remove it */
    nng_aio *aio;
    enum http_connection_state state; /* the lock of HTTP guards this and the next three members */
    doorman_time deadline;
    bool is_evicted;              /* the timer has chosen to close this connection */
    bool is_probed;               /* the timer has cancelled the receive operation once */
    char *in;                     /* bytes received */
    size_t in_bytes, in_capacity; /* in_bytes: bytes of `in` that have been received */
    char *head;                   /* a copy of the head; NULL: the head is not complete */
    size_t head_bytes, used;      /* bytes of `in`: of the head, and of the whole request */
    struct http_request request;  /* its strings point into `head` */
    struct chunk_reader chunks;   /* the position in a body that comes in chunks */
    struct text out;              /* bytes to send */
    size_t sent;                  /* bytes of `out` that have been sent */
    bool last, is_head;           /* last: close after the response; is_head: send no body */
    size_t body_left;             /* bytes of a refused body to read before closing, so that
                                     the peer can read the response; SIZE_MAX: not known */
    /* These members are for ANSWERING. The lock of HTTP guards them, except `abandoned`. */
    bool is_answered, receives;   /* the response is made; a receive operation is in progress */
    bool abandoned;               /* atomic; true: nobody waits for the response */
    struct http_connection *next; /* in the queue */
    struct method_call call;      /* of a request without a route */
    bool waits;                   /* the permits of this message wait, or may begin to wait */
};

struct http {
    struct lock lock;
    char address[320]; /* "http://HOST:PORT"; "": HTTP does not listen */
    nng_stream_listener *listener;
    nng_aio *aio;                     /* for accepting connections */
    bool accepting, stopping, ending; /* ending: the thread of pages ends */
    size_t limit, used_count;         /* the maximum number of connections; those not FREE */
    size_t delayed_count;             /* connections in DELAYED, and reservations for them */
    nng_aio *timer;                   /* for the next eviction */
    bool evicting;                    /* the timer runs */
    pthread_t thread;                 /* makes pages */
    bool has_thread;
    pthread_cond_t wake;                     /* wakes the thread of pages */
    struct http_connection *queue, *current; /* current: the thread makes its response */
    size_t queue_count;
    uint64_t made_count, abandoned_count; /* responses that the thread made; that it stopped */
    uint64_t waiter_count;                /* messages that have waited, since the start */
    struct http_connection connections[HTTP_CONNECTION_MAX];
};

/* Returns whether connections over HTTP use TLS. Threads of nng must not read service->tls, because
 * a reload replaces it. */
static inline bool server_http_has_tls(const struct service *service) {
    return service->settings->tls_cert != NULL;
}

/* ---- connections ---------------------------------------------------------------------------- */

/* Moves a connection to its next state, and sets the deadline of this state. Precondition: the lock
 * of HTTP is held. */
void server_connection_move(struct http_connection *connection, enum http_connection_state state);

/* Starts to receive. The callback of the connection may run before this function returns. So the
 * caller must not use the connection after this call. */
void server_connection_receive(struct http_connection *connection);

/* The callback of a connection: bytes were received or sent, or this has failed. */
void server_connection_step(void *connection);

/* Frees the buffers of a request and its response. */
void server_connection_free_buffers(struct http_connection *connection);

/* Starts the thread of pages. Returns false if the system has no thread for it. */
bool server_http_start_thread(struct http *http);

/* Ends the thread of pages. A response that it makes is abandoned. */
void server_http_stop_thread(struct http *http);

/* ---- the limit ------------------------------------------------------------------------------ */

/* Starts to accept a connection, if one is free and no accept is in progress. */
void server_http_accept(struct http *http);

/* Returns whether few connections are free. Precondition: the lock of HTTP is held. */
bool server_http_is_crowded(const struct http *http);
size_t server_http_reserve(const struct http *http); /* connections that are kept free */

#endif
