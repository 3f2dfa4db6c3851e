/* doorman_server, part LINK: a connection over HTTP to a process. Only link.c and link_http.c
 * include this file. The caller holds the lock. _init and _uninit do not need it. */
#ifndef DOORMAN_SERVER_LINK_HTTP_H
#define DOORMAN_SERVER_LINK_HTTP_H

#include "../server.h"

enum link_http_state {
    LINK_HTTP_NONE,
    LINK_HTTP_CONNECTING,
    LINK_HTTP_PROBING,
    LINK_HTTP_IDLE,
    LINK_HTTP_ASKING
};

/* The caller fills in the first members, which are constant. */
struct link_http {
    const struct service *service;
    struct lock *lock;
    const char *to; /* the address of the process over nng */
    void *context;

    /* The thread of the loop calls these functions, without the lock. A question has ended:
     *   result    0 | NNG_EAGAIN: the process has decided nothing, and gets no question over HTTP
     *             for a while | another error of nng
     *   message   the answer, which the function takes; NULL: there is none */
    void (*finish)(void *question, int result, nng_msg *message);
    void (*closed)(void *context); /* the connection is closed */

    enum link_http_state state;
    doorman_time ends_at;  /* of the state; DOORMAN_NEVER: in NONE */
    doorman_time again_at; /* in NONE: when to connect again */
    int socket, error;     /* error: of nng, why it was shut down; 0: it was not */
    struct loop_source source;
    char address[DOORMAN_ID_BYTES_MAX + 1]; /* "http://HOST:PORT" */
    void *question;                         /* of `finish`; NULL: in other states than ASKING */
    char head[3 * DOORMAN_ID_BYTES_MAX];    /* of the request */
    nng_msg *request;                       /* its body; NULL: none, or it is sent */
    size_t head_bytes, sent;                /* sent: of both */
    bool has_rest;                          /* the socket has not taken all of the request */
    char *in;                               /* the answer, with a final 0 */
    size_t received, capacity;
};

/* Prepares a connection whose first members are filled in. */
void server_link_http_init(struct link_http *http);

/* Opens the connection. Precondition: its state is NONE.
 *   pipe      the connection of nng to the same process, which gives the host
 *   address   "http://HOST:PORT". Nothing is opened if it has another host than `to` */
void server_link_http_open(struct link_http *http, nng_pipe pipe, const char *address);

/* Returns whether a question can be sent. */
bool server_link_http_is_idle(const struct link_http *http);

/* Sends a question. Precondition: the connection is idle.
 *   message    the call takes it
 *   ends_at    when the question is over without an answer
 *   question   not NULL; what `finish` gets */
void server_link_http_send(struct link_http *http, nng_msg *message, doorman_time ends_at,
                           void *question);

/* Lets the connection end as soon as it can. Its question gets this error of nng. */
void server_link_http_stop(struct link_http *http, int error);

/* Frees the buffer of a connection that has no question. Does not free the struct. */
void server_link_http_uninit(struct link_http *http);

#endif
