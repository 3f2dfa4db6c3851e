/* doorman_server: a loop that waits for the sockets of several parts. server/http/ has it. server.h
 * includes this file. */
#ifndef DOORMAN_SERVER_LOOP_H
#define DOORMAN_SERVER_LOOP_H

/* A source gets the events of a socket. */
struct loop_source {
    /* The thread of the loop calls this function, without a lock.
     *   events   of epoll */
    void (*ready)(void *context, uint32_t events);
    void *context;
};

/* What the loop does for other parts. service->loop points to these functions once the loop runs.
 * It does not run without HTTP, or if the address of HTTP is in use. */
struct loop_calls {
    /* Makes the loop call `ready` of a source while its socket has one of these events, until the
     * socket is closed. Any thread may call `watch`. Only `ready` may close the socket, because the
     * loop may already have its next event. Other threads shut the socket down, which gives `ready`
     * an event. All sockets must be closed before the part with the loop stops.
     *   source    must stay valid until the socket is closed
     *   is_new    false: the loop knows the socket, and other events are wanted
     *   returns   false: the system has refused */
    bool (*watch)(const struct service *service, struct loop_source *source, int socket,
                  uint32_t events, bool is_new);
};

#endif
