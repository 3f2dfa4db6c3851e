/* doorman_server, part HTTP: a connection, and what all connections share. Only http_connection.c,
 * which serves connections, and http_listen.c, which accepts and limits them, include it. */
#ifndef DOORMAN_SERVER_HTTP_CONNECTION_H
#define DOORMAN_SERVER_HTTP_CONNECTION_H

#include "../tls/tls.h"
#include "http.h"

#include <sys/types.h>

#define HTTP_TIMEOUT_SECONDS 30

/* The maximum number of connections. If the process can open few files, there are fewer: one
 * connection for each HTTP_FILES_PER_CONNECTION files, but at least 8. An idle connection takes 20
 * KiB of memory, or up to 67 KiB after a large request, besides its TLS session. A connection that
 * receives a body takes up to three times --max-message for a moment. */
#define HTTP_CONNECTION_MAX 512
#define HTTP_FILES_PER_CONNECTION 4

enum http_connection_state {
    CONNECTION_FREE,
    CONNECTION_SHAKING,
    CONNECTION_IDLE,
    CONNECTION_HEAD,
    CONNECTION_CONTINUING,
    CONNECTION_BODY,
    CONNECTION_ANSWERING,
    CONNECTION_ABANDONED,
    CONNECTION_DELAYED,
    CONNECTION_SENDING,
    CONNECTION_DRAINING
};

/* The loop owns all members, unless their comments say otherwise. */
struct http_connection {
    enum http_connection_state state; /* only server_connection_move writes it */
    struct service *service;
    struct loop_source source; /* constant; so are those of struct http */
    int socket;
    uint32_t events;              /* that epoll reports; 0: epoll does not know the socket */
    struct tls_session *tls;      /* NULL: no TLS */
    char refusal[128];            /* why the certificate of the peer is refused; "": it is not */
    char peer[PEER_BYTES];        /* its address */
    doorman_time deadline;        /* of the state */
    char *in;                     /* bytes received */
    size_t in_bytes, in_capacity; /* in_bytes: bytes of `in` that have been received */
    char *head;                   /* a copy of the head; NULL: the head is not complete */
    size_t head_bytes, used;      /* bytes of `in`: of the head, and of the whole request */
    struct http_request request;  /* points into `head`; its body is in `in` */
    struct chunk_reader chunks;   /* the position in a body that comes in chunks */
    size_t sent;                  /* bytes of `out` that have been sent */
    size_t body_left;             /* bytes of a refused body to read before closing, so that
                                     the peer can read the response; SIZE_MAX: not known */
    bool receives;                /* in ANSWERING and DELAYED: bytes of next requests come in */

    /* In ANSWERING and ABANDONED these members belong to the thread that makes the response, until
     * it has added the connection to http->answered. The loop changes none of them until then. */
    struct text out;         /* bytes to send */
    doorman_time delay;      /* before the response is sent; 0: none */
    bool last, is_head;      /* last: close after the response; is_head: send no body */
    bool is_delay;           /* while `waits`: the message has reserved a delay */
    struct method_call call; /* of a request without a route */

    bool abandoned; /* atomic: see server_is_abandoned */

    /* The lock of HTTP guards these members. */
    bool is_answered;             /* in ANSWERING and ABANDONED: the response is made */
    bool waits;                   /* permits of this message wait or may begin to wait, or other
                                     nodes are asked */
    struct http_connection *next; /* in one of the lists of struct http */
};

struct http {
    /* The loop owns these members. */
    struct service *service;
    char address[320]; /* "http://HOST:PORT"; constant after the start */
    struct loop_source on_listener, on_wake;
    int epoll;              /* -1: not open */
    int listener;           /* -1: HTTP does not listen */
    bool is_listening;      /* epoll reports new connections */
    bool is_ending;         /* the loop ends when the last responses are sent */
    doorman_time now;       /* the time of this turn of the loop */
    doorman_time next_at;   /* not later than the next deadline of a connection */
    doorman_time accept_at; /* after an error: when to accept again */
    doorman_time evict_at;  /* when to look for connections to close; DOORMAN_NEVER: HTTP is not
                               crowded */
    doorman_time ends_at;   /* when the loop ends in any case; DOORMAN_NEVER: it does not end */
    struct http_connection *free; /* connections that are not in use */

    int wake;               /* an eventfd, to which any thread writes; -1: not open */
    struct lock lock;       /* guards what follows */
    struct tls_server *tls; /* for new connections; NULL: no TLS */
    bool stopping;          /* the loop begins to end */
    bool ending;            /* the thread of pages ends */
    size_t limit;           /* the maximum number of connections; constant after the start */
    size_t used_count;      /* connections that are not FREE. Only the loop changes it, and reads it
                               without the lock */
    size_t delayed_count;   /* connections in DELAYED, and reservations for them */
    pthread_t loop, thread; /* thread: makes pages */
    bool has_loop, has_thread;
    pthread_cond_t page_wake;                /* wakes the thread of pages */
    struct http_connection *queue, *current; /* current: the thread makes its response */
    size_t queue_count;
    struct http_connection *answered;     /* the responses of these are made */
    uint64_t made_count, abandoned_count; /* responses that the thread made; that it stopped */
    uint64_t waiter_count;                /* messages that have waited, since the start */
    struct http_connection connections[HTTP_CONNECTION_MAX];
};

/* ---- connections ---------------------------------------------------------------------------- */
/* Only the loop calls these functions, and http_stop after the end of the loop. */

/* Moves a connection to its next state. Sets its deadline, or keeps the deadline of the request. */
void server_connection_move(struct http_connection *connection, enum http_connection_state state);

/* Does what a connection can do now, without waiting. The loop calls this for each event of the
 * socket, and for a new connection. */
void server_connection_step(struct http_connection *connection);

/* Processes bytes that have arrived, if the connection receives a request or waits for one. The
 * loop calls this before it ends a state whose deadline has passed, and before it closes a
 * connection to make room for others. Otherwise a request that has just arrived would be lost. */
void server_connection_probe(struct http_connection *connection);

/* Ends a state whose deadline has passed: sends a delayed response, or closes the connection if no
 * other thread uses it. */
void server_connection_expire(struct http_connection *connection);

/* Sends the status 503 now in place of a delayed response, because the server stops. */
void server_connection_end_delay(struct http_connection *connection);

/* Closes a connection that no other thread uses. It is FREE afterwards. */
void server_connection_close(struct http_connection *connection);

/* Whether this thread is the loop. Each file that includes this header defines the variable, and
 * the linker keeps one of them. */
__attribute__((weak)) _Thread_local bool server_http_is_loop;

/* Sends the responses that other threads have made, and those that the loop has made for
 * connections that waited. */
void server_http_take_answers(struct http *http);

/* Returns whether few connections are free. */
bool server_http_is_crowded(const struct http *http);
size_t server_http_reserve(const struct http *http); /* connections that are kept free */

/* ---- the thread of pages -------------------------------------------------------------------- */

/* Starts the thread of pages. Returns false if the system has no thread for it. */
bool server_http_start_thread(struct http *http);

/* Ends the thread of pages. A response that the thread is making is abandoned. */
void server_http_stop_thread(struct http *http);

/* Wakes the loop. Any thread may call this. */
void server_http_wake(const struct http *http);

#endif
