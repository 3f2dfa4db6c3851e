/* doorman_server, part EVENTS: what its files share. events.c explains how the part works. */
#ifndef DOORMAN_SERVER_EVENTS_H
#define DOORMAN_SERVER_EVENTS_H

#include "event_line.h"

struct event_counters {
    counter published[EVENT_KIND_COUNT];
    counter lost; /* the ring was full, or memory has run out */
    unsigned subscribers;
};

#define EVENT_ADDRESS_MAX 256

struct events {
    struct service *service;
    struct event_ring ring;
    struct event_lines lines;
    nng_socket socket;
    nng_listener listener;
    bool has_socket, has_thread;
    char address[EVENT_ADDRESS_MAX]; /* where it listens, with the real port; "": nowhere */
    pthread_t thread;
    int wake;      /* an eventfd */
    bool sleeping; /* atomic: the thread sleeps, so it must be woken */
    bool ends;     /* atomic */

    /* The lock of the service guards these four members. */
    uint64_t seq;       /* of the last event */
    uint64_t random;    /* chooses grants */
    uint64_t threshold; /* of 2^53: a grant whose random number is smaller is an event */
    bool is_master;

    doorman_time warn_at; /* of the thread: when the next line about lost events may come */
    uint64_t lost_before; /* of the thread: lost events that are logged */
    struct event_counters counters;
};

#endif
