/* doorman_server, part GRPC: quotas, as a state machine without clock and I/O.
 *
 * A quota is a lease that Envoy holds. Each stream is a holder. A stream reports what it has
 * counted in its buckets, and each bucket is a resource for which the stream wants a lease.
 * grpc_quota.c owns the state machine: it gives the requests of the state machine to the server
 * object, and sends the actions over the streams. */
#ifndef DOORMAN_SERVER_QUOTA_H
#define DOORMAN_SERVER_QUOTA_H

#include "../../doorman.h"

#define QUOTA_BATCH_MAX 64                 /* items of one request */
#define QUOTA_CLIENT_MAX 200               /* bytes of the name of a client */
#define QUOTA_MARGIN DOORMAN_SECOND        /* the time for an assignment to arrive: see quota.c */
#define QUOTA_AGE_MAX (QUOTA_MARGIN / 2)   /* an older assignment is not sent any more */
#define QUOTA_WINDOW (10 * DOORMAN_SECOND) /* how long reports count for the wants */

struct quotas;       /* all streams and buckets of a process */
struct quota_stream; /* a holder */

/* What `describe` says of a resource. */
struct quota_facts {
    unsigned interval;         /* seconds of a fill interval, at least 1 */
    doorman_time lease_length; /* the longest that a lease can have; 0: not known */
    bool learns;               /* a new master learns for as long as a lease can last */
};

struct quota_options {
    size_t bucket_max; /* of all streams; one has at most a tenth, or 100 if that is more */
    double drift;      /* of two clocks, as in doorman_server_options */
    uint64_t seed;     /* random bits that are new for each process */
    /* Describes a resource. Functions below call this function.
     *   out   interval is 1, and the rest 0 */
    void (*describe)(void *context, const char *resource_id, struct quota_facts *out);
    void *context;
};

/* Numbers of streams, buckets and events. */
struct quota_counts {
    size_t streams, buckets;             /* live streams; the buckets of all streams */
    size_t resources;                    /* the different resources of the buckets */
    size_t ended_streams, ended_buckets; /* for which something is committed */
    double ended_committed; /* the sum of that, in requests a second, over all resources */
    uint64_t assignments, abandoned;
    uint64_t refused;   /* reports of new buckets for which there was no room or no memory */
    uint64_t unmatched; /* buckets without a template */
};

/* What a stream says of one of its buckets. */
struct quota_report {
    const char *resource_id; /* a valid id */
    const void *label;       /* the id of the bucket as the stream knows it; copied */
    size_t label_bytes;
    double allowed, denied; /* requests since the last report */
};

enum quota_kind { QUOTA_ASSIGN, QUOTA_ABANDON };

struct quota_action {
    enum quota_kind kind;
    const char *resource_id;
    const void *label;
    size_t label_bytes;
    /* of ASSIGN */
    uint32_t tokens;                 /* in each interval; 0: all requests are denied */
    unsigned interval, time_to_live; /* seconds */
};

/* Returns NULL if memory runs out. */
struct quotas *server_quotas_create(const struct quota_options *options);
void server_quotas_destroy(struct quotas *quotas); /* also the streams; NULL has no effect */

/* Begins a mastership, and forgets all that the last one has assigned. Precondition: no stream is
 * live. */
void server_quotas_begin(struct quotas *quotas, doorman_time now);

/* Opens a stream. If a stream with the same name has ended, the new one continues it.
 *   client    the name; "": none. An invalid name, or that of a live stream, counts as none
 *   returns   NULL: memory has run out */
struct quota_stream *server_quota_open(struct quotas *quotas, const char *client, doorman_time now);

/* Ends a stream. Its assignments stay committed for their time to live, with the drift. */
void server_quota_close(struct quota_stream *stream, doorman_time now);

const char *server_quota_holder(const struct quota_stream *stream);

/* Notes a report. Returns false if there is no room or no memory for a new bucket. */
bool server_quota_report(struct quota_stream *stream, const struct quota_report *report,
                         doorman_time now);

/* Returns when server_quotas_request has work. */
doorman_time server_quotas_due(const struct quotas *quotas);

/* Makes the next request that is due. Call it until it returns false. Each request needs a
 * response before the next call.
 *   out   valid until the next call */
bool server_quotas_request(struct quotas *quotas, doorman_request *out, doorman_time now);

/* Takes the response to the last request.
 *   response   of a master; NULL: the request has failed */
void server_quotas_response(struct quotas *quotas, const doorman_response *response,
                            doorman_time now);

/* Takes the next action of a stream, which must be sent at once.
 *   out   valid until the next call
 *   returns   false: there is none */
bool server_quota_next_action(struct quota_stream *stream, struct quota_action *out,
                              doorman_time now);

const struct quota_counts *server_quotas_counts(const struct quotas *quotas);

#endif
