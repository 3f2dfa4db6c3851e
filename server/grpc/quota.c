/* doorman_server, part GRPC: quotas, as a state machine without clock and I/O (W5).
 *
 * W5 Each live stream is a holder, whatever name its client has. A new stream with the name of an
 *    ended stream continues that holder. The estimator of the library makes the wants of a bucket
 *    from its reports, by the clock of this process. The lease of a bucket becomes its assignment.
 *       A new assignment is in force at once, but nothing proves that it has arrived. So an earlier
 *    and larger assignment stays committed until its time to live, with the drift, has passed:
 *    until then the holder reports it to the server object as outstanding. An assignment needs
 *    time to arrive, so its time to live, counted from the decision, ends at least QUOTA_MARGIN
 *    before its lease.
 *       A bucket that has no requests for the length of three leases is abandoned, as soon as
 *    nothing is committed for it. If a stream has not reported a bucket for the length of a lease,
 *    it gets no new assignment for the bucket, because its client may stand still. When the client
 *    continues, it reads all that was sent, and uses each assignment for its whole time to live.
 *       A new master learns for the length of a lease, with the drift, or knows the leases of the
 *    last master. In both cases the server object grants no more than these leases leave. If
 *    learning_mode_duration is shorter than that, the new mastership assigns nothing of the
 *    resource for the length of a lease, with the drift. It waits even if it knows the leases of
 *    the last master. The last master may have waited too: then its leases may lack assignments of
 *    earlier masters.
 *       One stream may have at most a tenth of bucket_max, or STREAM_BUCKETS if that is more, so
 *    that it leaves room for others.
 *
 * A bucket is in one of these states. Only quota_move changes the state:
 *
 *   state   meaning                                            event                        next
 *   ASKS    asks for leases, and has the assignments           no request for 3 leases      IDLE
 *   IDLE    asks for none; waits until nothing is committed    a report with requests       ASKS
 *                                                              nothing is committed         LEAVES
 *   LEAVES  the stream must still learn that the bucket is     a report with requests       ASKS
 *           abandoned                                          the action is taken          (freed)
 *
 * A stream that has ended keeps only commitments. It is freed when the last commitment ends. */
#include "quota.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDLE_LEASES 3
#define IDLE_LEASE (20 * DOORMAN_SECOND) /* while the length of a lease is not known */
#define ASK_PAUSE (DOORMAN_SECOND / 5)   /* at least, between two requests for one bucket */
#define RETRY_PAUSE DOORMAN_SECOND       /* after a request that has failed */
#define COMMITMENT_MAX 6                 /* of one bucket; one more becomes part of the last */
#define WANTS_STEADY 0.875 /* an estimate of at least this part of the wants leaves them */
#define INITIAL_PART 0.125 /* of the safe capacity: the least wants of a new bucket */
#define STREAM_PART 10     /* one stream has at most 1/10 of bucket_max */
#define STREAM_BUCKETS 100 /* or this many, if that is more */

struct quota_link {
    struct quota_link *next;
    uint64_t hash;
};

struct quota_table {
    struct quota_link **slots;
    size_t slot_count, count; /* slot_count: a power of 2 */
};

/* A resource for which streams have buckets. */
struct quota_resource {
    struct quota_link link; /* must be the first field */
    size_t bucket_count;
    char id[];
};

/* An amount that a stream may use until a time. */
struct quota_commitment {
    double amount;
    doorman_time until;
};

enum quota_state { QUOTA_ASKS, QUOTA_IDLE, QUOTA_LEAVES };

struct quota_bucket {
    struct quota_link link; /* must be the first field */
    struct quota_stream *stream;
    struct quota_resource *resource;
    struct quota_bucket *next, *previous; /* of the stream */
    size_t position;                      /* in the heap */
    doorman_time due;
    enum quota_state state;
    doorman_estimate *estimate;
    double wants;   /* of the last request */
    double initial; /* the least wants until initial_until */
    doorman_time initial_until;
    doorman_time asked_at, ask_at;     /* ask_at: when the next request is due */
    doorman_time used_at, reported_at; /* used_at: the last report that had requests */
    uint64_t lease_id, assigned_id;    /* 0: none */
    double granted;                    /* of the lease */
    double safe_capacity;              /* that the server object has sent last; 0: none */
    doorman_time lease_end, length;    /* length: of a new lease; 0: not known */
    bool is_exhausted;                 /* the last response has granted less than the wants */
    struct quota_commitment commitments[COMMITMENT_MAX]; /* each larger, and ends earlier, than the
                                                            next */
    size_t commitment_count;
    double ended; /* what is committed, if the stream has ended; else 0 */
    struct quota_action action;
    bool has_action;
    doorman_time decided_at;
    struct quota_bucket *next_action, *last_action; /* in the list of the stream's
                                                       buckets with an action */
    char label[];
};

struct quota_stream {
    struct quota_link link; /* by name; must be the first field */
    struct quotas *quotas;
    struct quota_stream *next, *previous;
    struct quota_bucket *buckets;
    size_t bucket_count;
    struct quota_bucket *first_action, *newest_action;
    struct quota_bucket *taken; /* its last action was taken, so the next call frees it */
    uint64_t number;
    bool is_live, has_name;
    char holder[QUOTA_CLIENT_MAX + 32];
};

struct quotas {
    struct quota_options options;
    struct quota_counts counts;
    struct quota_table buckets, names, resources;
    struct quota_stream *streams; /* live ones, and those with commitments */
    struct quota_bucket **heap;   /* the first one is due first */
    size_t heap_count, heap_room;
    uint64_t stream_count, random;
    doorman_time begun_at;
    struct quota_bucket *asking[QUOTA_BATCH_MAX];
    size_t asking_count;
    doorman_capacity_request items[QUOTA_BATCH_MAX];
    doorman_demand demands[QUOTA_BATCH_MAX];
    char node[DOORMAN_ID_BYTES_MAX + 1]; /* that has granted the leases */
};

static doorman_time quota_after(doorman_time time, doorman_time duration) {
    return time < DOORMAN_NEVER - duration ? time + duration : DOORMAN_NEVER;
}

static doorman_time quota_earlier(doorman_time a, doorman_time b) { return a < b ? a : b; }

/* ---- a table -------------------------------------------------------------------------------- */

/* Returns a hash that a peer cannot foresee. */
static uint64_t quota_hash(const struct quotas *quotas, uint64_t number, const char *text) {
    uint64_t hash = quotas->options.seed ^ (number * 0x9e3779b97f4a7c15u);
    for (; *text; text++) {
        hash = (hash ^ (unsigned char)*text) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return hash ^ hash >> 29;
}

/* Makes room for one more. Returns false if memory runs out before the table has any slot. */
static bool quota_table_reserve(struct quota_table *table) {
    if (table->count < table->slot_count) return true;
    size_t count = table->slot_count ? 2 * table->slot_count : 16;
    struct quota_link **slots = (struct quota_link **)calloc(count, sizeof(struct quota_link *));
    if (!slots) return table->slot_count > 0; /* the chains get longer */
    for (size_t i = 0; i < table->slot_count; i++) {
        while (table->slots[i]) {
            struct quota_link *link = table->slots[i];
            table->slots[i] = link->next;
            link->next = slots[link->hash & (count - 1)];
            slots[link->hash & (count - 1)] = link;
        }
    }
    free(table->slots);
    table->slots = slots;
    table->slot_count = count;
    return true;
}

static void quota_table_add(struct quota_table *table, struct quota_link *link, uint64_t hash) {
    struct quota_link **slot = &table->slots[hash & (table->slot_count - 1)];
    link->hash = hash;
    link->next = *slot;
    *slot = link;
    table->count++;
}

static void quota_table_remove(struct quota_table *table, struct quota_link *link) {
    struct quota_link **at = &table->slots[link->hash & (table->slot_count - 1)];
    while (*at != link) at = &(*at)->next;
    *at = link->next;
    table->count--;
}

static struct quota_link *quota_table_first(const struct quota_table *table, uint64_t hash) {
    return table->slot_count ? table->slots[hash & (table->slot_count - 1)] : NULL;
}

/* ---- what is due ---------------------------------------------------------------------------- */

static bool quota_is_before(const struct quota_bucket *a, const struct quota_bucket *b) {
    return a->due != b->due ? a->due < b->due : a->stream->number < b->stream->number;
}

static void quota_heap_put(struct quotas *quotas, size_t position, struct quota_bucket *bucket) {
    quotas->heap[position] = bucket;
    bucket->position = position;
}

/* Moves a bucket to the position in the heap that fits its `due`. */
static void quota_heap_fix(struct quotas *quotas, struct quota_bucket *bucket) {
    size_t at = bucket->position;
    while (at > 0 && quota_is_before(bucket, quotas->heap[(at - 1) / 2])) {
        quota_heap_put(quotas, at, quotas->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (size_t child = 2 * at + 1; child < quotas->heap_count; child = 2 * at + 1) {
        bool is_right = child + 1 < quotas->heap_count &&
                        quota_is_before(quotas->heap[child + 1], quotas->heap[child]);
        child += is_right;
        if (!quota_is_before(quotas->heap[child], bucket)) break;
        quota_heap_put(quotas, at, quotas->heap[child]);
        at = child;
    }
    quota_heap_put(quotas, at, bucket);
}

static bool quota_heap_reserve(struct quotas *quotas) {
    if (quotas->heap_count < quotas->heap_room) return true;
    size_t room = quotas->heap_room ? 2 * quotas->heap_room : 16;
    struct quota_bucket **heap =
        (struct quota_bucket **)realloc(quotas->heap, room * sizeof(struct quota_bucket *));
    if (!heap) return false;
    quotas->heap = heap;
    quotas->heap_room = room;
    return true;
}

static void quota_heap_remove(struct quotas *quotas, struct quota_bucket *bucket) {
    struct quota_bucket *last = quotas->heap[--quotas->heap_count];
    if (last == bucket) return;
    quota_heap_put(quotas, bucket->position, last);
    quota_heap_fix(quotas, last);
}

/* Returns when a bucket becomes idle if no more requests are reported. */
static doorman_time quota_idle_at(const struct quota_bucket *bucket) {
    doorman_time length = bucket->length ? bucket->length : IDLE_LEASE;
    return quota_after(bucket->used_at, IDLE_LEASES * length);
}

/* Sets when a bucket needs work. Call it after each change. */
static void quota_schedule(struct quota_bucket *bucket) {
    doorman_time due = bucket->commitment_count > 0 ? bucket->commitments[0].until : 0;
    if (bucket->stream->is_live && bucket->state == QUOTA_ASKS) {
        due = quota_earlier(bucket->ask_at, quota_idle_at(bucket));
        /* the rest can go to others as soon as a larger assignment has ended */
        if (bucket->commitment_count > 1) due = quota_earlier(due, bucket->commitments[0].until);
    } else if (bucket->stream->is_live && bucket->state == QUOTA_LEAVES) {
        due = DOORMAN_NEVER;
    }
    bucket->due = due;
    quota_heap_fix(bucket->stream->quotas, bucket);
}

static void quota_move(struct quota_bucket *bucket, enum quota_state state) {
    assert(state != bucket->state && (state != QUOTA_LEAVES || bucket->state == QUOTA_IDLE));
    bucket->state = state;
}

/* ---- commitments ---------------------------------------------------------------------------- */

/* Forgets the commitments that have ended. Returns what the stream may use of the bucket. */
static double quota_committed(struct quota_bucket *bucket, doorman_time now) {
    size_t ended = 0;
    while (ended < bucket->commitment_count && now >= bucket->commitments[ended].until) ended++;
    bucket->commitment_count -= ended;
    memmove(bucket->commitments, bucket->commitments + ended,
            bucket->commitment_count * sizeof *bucket->commitments);
    return bucket->commitment_count > 0 ? bucket->commitments[0].amount : 0;
}

/* Sets `ended` of a bucket, and the counts of the ended streams. */
static void quota_set_ended(struct quota_bucket *bucket, double amount) {
    struct quota_counts *counts = &bucket->stream->quotas->counts;
    counts->ended_buckets += amount > 0;
    counts->ended_buckets -= bucket->ended > 0;
    counts->ended_committed += amount - bucket->ended;
    if (counts->ended_buckets == 0) counts->ended_committed = 0; /* a sum of parts is rounded */
    bucket->ended = amount;
}

/* Adds what a new assignment commits. An earlier commitment stays if it is larger and ends earlier.
 * Otherwise the two are merged: the result has the larger amount and the later end. Without room,
 * the last commitment is merged too. */
static void quota_commit(struct quota_bucket *bucket, double amount, doorman_time until) {
    struct quota_commitment *list = bucket->commitments;
    size_t count = bucket->commitment_count;
    while (count > 0 && (list[count - 1].amount <= amount || list[count - 1].until >= until)) {
        if (list[count - 1].amount > amount) amount = list[count - 1].amount;
        if (list[count - 1].until > until) until = list[count - 1].until;
        count--;
    }
    if (count == COMMITMENT_MAX) amount = list[--count].amount;
    list[count++] = (struct quota_commitment){amount, until};
    bucket->commitment_count = count;
}

/* ---- actions -------------------------------------------------------------------------------- */

static void quota_add_action(struct quota_bucket *bucket) {
    struct quota_stream *stream = bucket->stream;
    if (bucket->has_action) return;
    bucket->has_action = true;
    bucket->next_action = NULL;
    bucket->last_action = stream->newest_action;
    if (stream->newest_action) stream->newest_action->next_action = bucket;
    if (!stream->first_action) stream->first_action = bucket;
    stream->newest_action = bucket;
}

static void quota_remove_action(struct quota_bucket *bucket) {
    struct quota_stream *stream = bucket->stream;
    if (!bucket->has_action) return;
    bucket->has_action = false;
    struct quota_bucket *last = bucket->last_action, *next = bucket->next_action;
    *(last ? &last->next_action : &stream->first_action) = next;
    *(next ? &next->last_action : &stream->newest_action) = last;
}

static struct quota_facts quota_facts_of(const struct quota_bucket *bucket) {
    const struct quota_options *options = &bucket->stream->quotas->options;
    struct quota_facts facts = {.interval = 1};
    options->describe(options->context, bucket->resource->id, &facts);
    assert(facts.interval >= 1 && facts.lease_length >= 0);
    return facts;
}

/* Makes the lease an assignment, unless the lease ends too soon. */
static void quota_assign(struct quota_bucket *bucket, doorman_time now) {
    const struct quotas *quotas = bucket->stream->quotas;
    doorman_time rest = (bucket->lease_end - now - QUOTA_MARGIN) / DOORMAN_SECOND;
    if (rest < 1) return; /* it would end before it arrives */
    const unsigned interval = quota_facts_of(bucket).interval;
    /* sums of shares are exact, but a share is rounded once more here */
    double tokens = bucket->granted * (double)interval * (1 + 1e-12);
    bucket->action.kind = QUOTA_ASSIGN;
    bucket->action.tokens = tokens < (double)UINT32_MAX ? (uint32_t)tokens : UINT32_MAX;
    bucket->action.interval = interval;
    bucket->action.time_to_live = rest < 86400 ? (unsigned)rest : 86400;
    bucket->assigned_id = bucket->lease_id;
    bucket->decided_at = now;
    doorman_time lasts = bucket->action.time_to_live * DOORMAN_SECOND + QUOTA_MARGIN;
    lasts += (doorman_time)((double)lasts * quotas->options.drift);
    quota_commit(bucket, bucket->granted, quota_after(now, lasts));
    quota_add_action(bucket);
}

/* ---- buckets and streams -------------------------------------------------------------------- */

static struct quota_bucket *quota_find(const struct quota_stream *stream, const char *resource_id) {
    const struct quotas *quotas = stream->quotas;
    uint64_t hash = quota_hash(quotas, stream->number, resource_id);
    struct quota_link *link = quota_table_first(&quotas->buckets, hash);
    for (; link; link = link->next) {
        struct quota_bucket *bucket = (struct quota_bucket *)(void *)link;
        if (link->hash == hash && bucket->stream == stream &&
            strcmp(bucket->resource->id, resource_id) == 0) {
            return bucket;
        }
    }
    return NULL;
}

/* Returns a resource for one more bucket; NULL: memory has run out. */
static struct quota_resource *quota_resource_take(struct quotas *quotas, const char *id) {
    const uint64_t hash = quota_hash(quotas, 0, id);
    struct quota_link *link = quota_table_first(&quotas->resources, hash);
    for (; link; link = link->next) {
        struct quota_resource *resource = (struct quota_resource *)(void *)link;
        if (link->hash != hash || strcmp(resource->id, id) != 0) continue;
        resource->bucket_count++;
        return resource;
    }
    const size_t bytes = strlen(id) + 1;
    if (!quota_table_reserve(&quotas->resources)) return NULL;
    struct quota_resource *resource = (struct quota_resource *)calloc(1, sizeof *resource + bytes);
    if (!resource) return NULL;
    memcpy(resource->id, id, bytes);
    resource->bucket_count = 1;
    quota_table_add(&quotas->resources, &resource->link, hash);
    quotas->counts.resources++;
    return resource;
}

static void quota_resource_give(struct quotas *quotas, struct quota_resource *resource) {
    if (--resource->bucket_count > 0) return;
    quota_table_remove(&quotas->resources, &resource->link);
    quotas->counts.resources--;
    free(resource);
}

static struct quota_bucket *quota_bucket_create(struct quota_stream *stream,
                                                const struct quota_report *report,
                                                doorman_time now) {
    const doorman_estimate_options options = {.minimum = 1, .window = QUOTA_WINDOW};
    struct quota_bucket *bucket =
        (struct quota_bucket *)calloc(1, sizeof *bucket + report->label_bytes);
    if (!bucket) return NULL;
    bucket->resource = quota_resource_take(stream->quotas, report->resource_id);
    if (!bucket->resource ||
        doorman_estimate_create(&bucket->estimate, &options, NULL, now) != DOORMAN_OK) {
        if (bucket->resource) quota_resource_give(stream->quotas, bucket->resource);
        free(bucket);
        return NULL;
    }
    if (report->label_bytes) memcpy(bucket->label, report->label, report->label_bytes);
    bucket->action.resource_id = bucket->resource->id;
    bucket->action.label = bucket->label;
    bucket->action.label_bytes = report->label_bytes;
    bucket->stream = stream;
    bucket->wants = 1;
    bucket->initial_until = quota_after(now, QUOTA_WINDOW);
    bucket->ask_at = bucket->used_at = now;
    return bucket;
}

/* Returns whether a stream may have one more bucket. */
static bool quota_has_room(const struct quota_stream *stream) {
    const struct quotas *quotas = stream->quotas;
    const size_t most = quotas->options.bucket_max, part = most / STREAM_PART;
    return quotas->counts.buckets < most &&
           stream->bucket_count < (part > STREAM_BUCKETS ? part : STREAM_BUCKETS);
}

/* Adds a bucket to a stream. Returns NULL if there is no room, or if memory runs out. */
static struct quota_bucket *quota_add_bucket(struct quota_stream *stream,
                                             const struct quota_report *report, doorman_time now) {
    struct quotas *quotas = stream->quotas;
    bool has_room = quota_has_room(stream) && quota_table_reserve(&quotas->buckets) &&
                    quota_heap_reserve(quotas);
    struct quota_bucket *bucket = has_room ? quota_bucket_create(stream, report, now) : NULL;
    if (!bucket) {
        quotas->counts.refused++;
        return NULL;
    }
    quota_table_add(&quotas->buckets, &bucket->link,
                    quota_hash(quotas, stream->number, report->resource_id));
    bucket->next = stream->buckets;
    if (bucket->next) bucket->next->previous = bucket;
    stream->buckets = bucket;
    bucket->due = now;
    quota_heap_put(quotas, quotas->heap_count++, bucket);
    stream->bucket_count++;
    quotas->counts.buckets++;
    return bucket;
}

static void quota_bucket_free(struct quota_bucket *bucket) {
    struct quota_stream *stream = bucket->stream;
    struct quotas *quotas = stream->quotas;
    quota_remove_action(bucket);
    quota_set_ended(bucket, 0);
    quota_table_remove(&quotas->buckets, &bucket->link);
    quota_heap_remove(quotas, bucket);
    assert(quotas->heap_count == 0 || quotas->heap[0] != bucket);
    *(bucket->previous ? &bucket->previous->next : &stream->buckets) = bucket->next;
    if (bucket->next) bucket->next->previous = bucket->previous;
    if (stream->taken == bucket) stream->taken = NULL;
    quota_resource_give(quotas, bucket->resource);
    doorman_estimate_destroy(bucket->estimate);
    free(bucket);
    stream->bucket_count--;
    quotas->counts.buckets--;
}

/* Frees a stream without buckets. */
static void quota_stream_free(struct quota_stream *stream) {
    struct quotas *quotas = stream->quotas;
    assert(!stream->buckets && !stream->is_live);
    if (stream->has_name) quota_table_remove(&quotas->names, &stream->link);
    *(stream->previous ? &stream->previous->next : &quotas->streams) = stream->next;
    if (stream->next) stream->next->previous = stream->previous;
    free(stream);
}

/* Returns whether a name can be a part of a holder's id. */
static bool quota_name_is_valid(const char *name) {
    size_t bytes = 0;
    for (; bytes <= QUOTA_CLIENT_MAX && name[bytes]; bytes++) {
        if (name[bytes] < 0x20 || name[bytes] > 0x7e) return false;
    }
    return bytes > 0 && bytes <= QUOTA_CLIENT_MAX;
}

/* Returns the stream of a holder, live or ended; NULL: none. */
static struct quota_stream *quota_find_name(const struct quotas *quotas, const char *holder) {
    uint64_t hash = quota_hash(quotas, 0, holder);
    struct quota_link *link = quota_table_first(&quotas->names, hash);
    for (; link; link = link->next) {
        struct quota_stream *stream = (struct quota_stream *)(void *)link;
        if (link->hash == hash && strcmp(stream->holder, holder) == 0) return stream;
    }
    return NULL;
}

static uint64_t quota_random(struct quotas *quotas) {
    uint64_t bits = quotas->random += 0x9e3779b97f4a7c15u;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return bits ^ bits >> 31;
}

static struct quota_stream *quota_stream_create(struct quotas *quotas, const char *holder) {
    struct quota_stream *stream = (struct quota_stream *)calloc(1, sizeof *stream);
    if (!stream) return NULL;
    stream->quotas = quotas;
    stream->number = ++quotas->stream_count;
    stream->has_name = holder[0] != 0;
    if (stream->has_name) {
        snprintf(stream->holder, sizeof stream->holder, "%s", holder);
        quota_table_add(&quotas->names, &stream->link, quota_hash(quotas, 0, stream->holder));
    } else {
        snprintf(stream->holder, sizeof stream->holder, "quota#%016llx",
                 (unsigned long long)quota_random(quotas));
    }
    stream->next = quotas->streams;
    if (stream->next) stream->next->previous = stream;
    quotas->streams = stream;
    return stream;
}

struct quota_stream *server_quota_open(struct quotas *quotas, const char *client,
                                       doorman_time now) {
    char holder[QUOTA_CLIENT_MAX + 32] = "";
    struct quota_stream *stream = NULL;
    if (quota_name_is_valid(client) && quota_table_reserve(&quotas->names)) {
        snprintf(holder, sizeof holder, "quota:%s", client);
        stream = quota_find_name(quotas, holder);
        if (stream && stream->is_live) {
            stream = NULL;
            holder[0] = 0;
        }
    }
    if (!stream) stream = quota_stream_create(quotas, holder);
    if (!stream) return NULL;
    stream->is_live = true;
    quotas->counts.streams++;
    if (stream->buckets) quotas->counts.ended_streams--;
    for (struct quota_bucket *each = stream->buckets; each; each = each->next) {
        quota_set_ended(each, 0);
        if (each->state == QUOTA_LEAVES) quota_move(each, QUOTA_ASKS);
        each->used_at = now;
        each->ask_at = DOORMAN_NEVER; /* until it is reported */
        quota_schedule(each);
    }
    return stream;
}

void server_quota_close(struct quota_stream *stream, doorman_time now) {
    struct quota_bucket *next = NULL;
    assert(stream->is_live);
    stream->is_live = false;
    stream->quotas->counts.streams--;
    for (struct quota_bucket *each = stream->buckets; each; each = next) {
        next = each->next;
        quota_remove_action(each);
        const double committed = quota_committed(each, now);
        if (committed <= 0) {
            quota_bucket_free(each);
        } else {
            quota_set_ended(each, committed);
            quota_schedule(each);
        }
    }
    if (stream->buckets) stream->quotas->counts.ended_streams++;
    if (!stream->buckets) quota_stream_free(stream);
}

const char *server_quota_holder(const struct quota_stream *stream) { return stream->holder; }

/* ---- reports -------------------------------------------------------------------------------- */

/* Returns the wants after a report. Noise in reports must not change them, because a stream whose
 * assignment changes begins with a full bucket of tokens. */
static double quota_wants(const struct quota_bucket *bucket, double estimate, doorman_time now) {
    if (now < bucket->initial_until && estimate < bucket->initial) estimate = bucket->initial;
    bool is_steady = estimate <= bucket->wants && estimate >= WANTS_STEADY * bucket->wants;
    return is_steady ? bucket->wants : estimate;
}

bool server_quota_report(struct quota_stream *stream, const struct quota_report *report,
                         doorman_time now) {
    if (stream->taken) quota_bucket_free(stream->taken); /* it was abandoned */
    struct quota_bucket *bucket = quota_find(stream, report->resource_id);
    const bool is_new = !bucket;
    if (!bucket) bucket = quota_add_bucket(stream, report, now);
    if (!bucket) return false;
    const doorman_estimate_counts counts = {.allowed = report->allowed,
                                            .refused = report->denied,
                                            .capacity = bucket->granted > bucket->safe_capacity
                                                            ? bucket->granted
                                                            : bucket->safe_capacity,
                                            .exhausted = bucket->is_exhausted};
    double last = bucket->wants;
    bucket->wants = quota_wants(bucket, doorman_estimate_add(bucket->estimate, &counts, now), now);
    bucket->reported_at = now;
    const bool is_used = report->allowed > 0 || report->denied > 0;
    if (is_used) bucket->used_at = now;
    if (is_used && bucket->state != QUOTA_ASKS) {
        quota_move(bucket, QUOTA_ASKS);
        quota_remove_action(bucket);
        bucket->ask_at = now;
    }
    const bool grows = bucket->wants > last && !bucket->is_exhausted;
    if (is_new || bucket->ask_at == DOORMAN_NEVER || grows) {
        doorman_time soon = quota_after(bucket->asked_at, bucket->asked_at ? ASK_PAUSE : 0);
        bucket->ask_at = quota_earlier(bucket->ask_at, soon > now ? soon : now);
    }
    quota_schedule(bucket);
    return true;
}

/* ---- requests ------------------------------------------------------------------------------- */

doorman_time server_quotas_due(const struct quotas *quotas) {
    return quotas->heap_count > 0 ? quotas->heap[0]->due : DOORMAN_NEVER;
}

/* Forgets what is no longer committed for a stream that has ended. */
static void quota_bucket_work_ended(struct quota_bucket *bucket, double committed) {
    struct quota_stream *stream = bucket->stream;
    if (bucket->commitment_count > 0) {
        quota_set_ended(bucket, committed);
        quota_schedule(bucket);
        return;
    }
    quota_bucket_free(bucket);
    if (stream->buckets) return;
    stream->quotas->counts.ended_streams--;
    quota_stream_free(stream);
}

/* Does the work that is due for a bucket. Returns whether a request for it is due. */
static bool quota_bucket_work(struct quota_bucket *bucket, doorman_time now) {
    struct quota_stream *stream = bucket->stream;
    const double committed = quota_committed(bucket, now);
    bool has_ended = bucket->commitment_count == 0;
    if (!stream->is_live) {
        quota_bucket_work_ended(bucket, committed);
        return false;
    }
    if (bucket->state == QUOTA_ASKS && now >= quota_idle_at(bucket)) {
        quota_move(bucket, QUOTA_IDLE);
        quota_remove_action(bucket);
    }
    if (bucket->state == QUOTA_IDLE && has_ended) {
        quota_move(bucket, QUOTA_LEAVES);
        bucket->action.kind = QUOTA_ABANDON;
        quota_add_action(bucket);
    }
    doorman_time length = bucket->length ? bucket->length : IDLE_LEASE;
    bool asks = bucket->state == QUOTA_ASKS;
    if (asks && now - bucket->reported_at >= length) { /* it may stand still */
        bucket->ask_at = DOORMAN_NEVER;
        asks = false;
    }
    if (!asks) quota_schedule(bucket);
    return asks;
}

static void quota_add_item(struct quotas *quotas, struct quota_bucket *bucket, doorman_time now) {
    size_t at = quotas->asking_count++;
    doorman_capacity_request *item = &quotas->items[at];
    quotas->asking[at] = bucket;
    quotas->demands[at] = (doorman_demand){.wants = bucket->wants, .subclients = 1, .priority = 1};
    *item = (doorman_capacity_request){.resource_id = bucket->resource->id,
                                       .outstanding = quota_committed(bucket, now),
                                       .wants = &quotas->demands[at],
                                       .wants_count = 1};
    if (bucket->lease_id && now < bucket->lease_end) {
        item->has = (doorman_lease){.id = bucket->lease_id,
                                    .node = quotas->node,
                                    .capacity = bucket->granted,
                                    .expires_in = bucket->lease_end - now};
    }
    bucket->asked_at = now;
    bucket->ask_at = quota_after(now, RETRY_PAUSE);
    quota_schedule(bucket);
}

bool server_quotas_request(struct quotas *quotas, doorman_request *out, doorman_time now) {
    struct quota_stream *stream = NULL;
    quotas->asking_count = 0;
    while (quotas->heap_count > 0 && quotas->asking_count < QUOTA_BATCH_MAX) {
        struct quota_bucket *first = quotas->heap[0];
        if (first->due > now || (stream && first->stream != stream)) break;
        if (!quota_bucket_work(first, now)) continue;
        stream = first->stream;
        quota_add_item(quotas, first, now);
    }
    if (!stream) return false;
    *out = (doorman_request){.method = DOORMAN_GET_CAPACITY,
                             .holder_id = stream->holder,
                             .items = quotas->items,
                             .item_count = quotas->asking_count};
    return true;
}

/* ---- responses ------------------------------------------------------------------------------ */

/* Takes the safe capacity from a response. The estimate of the wants needs it, like the estimate of
 * a client. From its second request on, a new bucket wants at least INITIAL_PART of it, so that an
 * assignment of one request a second does not last. A safe capacity that is not configured is the
 * capacity divided by the number of holders. So even many new streams want little together: 1/1 +
 * 1/2 + 1/3 ... of 1/8 of the capacity. */
static void quota_take_safe(struct quota_bucket *bucket, const doorman_capacity_response *item,
                            doorman_time now) {
    if (!item->has_safe_capacity || item->safe_capacity > DOORMAN_AMOUNT_MAX) return;
    bucket->safe_capacity = item->safe_capacity;
    if (bucket->initial > 0 || now >= bucket->initial_until) return;
    bucket->initial = INITIAL_PART * bucket->safe_capacity;
    if (bucket->initial <= bucket->wants) return;
    bucket->wants = bucket->initial;
    if (!bucket->is_exhausted) bucket->ask_at = quota_after(now, ASK_PAUSE);
}

/* Returns when this mastership may first assign: at its beginning if a new master learns for the
 * length of a lease, and else when the assignments of earlier masterships have ended. In a node
 * with a parent, the bucket's lease can be shorter than earlier ones, as it ends with the lease of
 * the node. */
static doorman_time quota_assigns_at(const struct quota_bucket *bucket) {
    const struct quotas *quotas = bucket->stream->quotas;
    const struct quota_facts facts = quota_facts_of(bucket);
    if (facts.learns) return quotas->begun_at;
    doorman_time length = bucket->length;
    if (length < facts.lease_length) length = facts.lease_length;
    const doorman_time drift = (doorman_time)((double)length * quotas->options.drift);
    return quota_after(quotas->begun_at, quota_after(length, drift));
}

/* Takes a lease. Assigns it once no assignment of an earlier mastership can be in force. */
static void quota_take_lease(struct quota_bucket *bucket, const doorman_lease *lease,
                             doorman_time now) {
    doorman_time ends = quota_after(now, lease->expires_in);
    if (lease->id != bucket->lease_id) bucket->length = lease->expires_in;
    bucket->lease_id = lease->id;
    bucket->lease_end = ends;
    bucket->granted = lease->capacity;
    bucket->is_exhausted = lease->capacity < 0.999 * bucket->wants;
    bucket->ask_at = quota_after(now, lease->refresh_interval);
    if (lease->id == bucket->assigned_id) return;
    const doorman_time assigns_at = bucket->assigned_id ? now : quota_assigns_at(bucket);
    if (now < assigns_at) {
        bucket->ask_at = quota_earlier(bucket->ask_at, assigns_at);
    } else {
        quota_assign(bucket, now);
    }
}

static void quota_take_item(struct quota_bucket *bucket, const doorman_capacity_response *item,
                            doorman_time now) {
    doorman_time refresh = item->gets.refresh_interval;
    if (item->outcome == DOORMAN_UNMATCHED && bucket->commitment_count == 0) {
        bucket->stream->quotas->counts.unmatched++;
        quota_bucket_free(bucket);
        return;
    }
    if (item->outcome == DOORMAN_GRANTED) {
        quota_take_lease(bucket, &item->gets, now);
        quota_take_safe(bucket, item, now);
    } else {
        bucket->ask_at = quota_after(now, refresh > RETRY_PAUSE ? refresh : RETRY_PAUSE);
    }
    quota_schedule(bucket);
}

void server_quotas_response(struct quotas *quotas, const doorman_response *response,
                            doorman_time now) {
    size_t count = response ? response->item_count : 0;
    assert(!response || count == quotas->asking_count);
    for (size_t i = 0; i < count; i++) {
        const char *node = response->items[i].gets.node;
        if (node) snprintf(quotas->node, sizeof quotas->node, "%s", node);
        quota_take_item(quotas->asking[i], &response->items[i], now);
    }
    quotas->asking_count = 0;
}

bool server_quota_next_action(struct quota_stream *stream, struct quota_action *out,
                              doorman_time now) {
    struct quotas *quotas = stream->quotas;
    if (stream->taken) quota_bucket_free(stream->taken);
    struct quota_bucket *bucket = stream->first_action;
    for (; bucket; bucket = stream->first_action) {
        quota_remove_action(bucket);
        if (bucket->state == QUOTA_LEAVES || now - bucket->decided_at <= QUOTA_AGE_MAX) break;
        bucket->assigned_id = 0; /* the stream has not read for long: it is decided again */
        bucket->ask_at = now;
        quota_schedule(bucket);
    }
    if (!bucket) return false;
    *out = bucket->action;
    if (out->kind == QUOTA_ABANDON) {
        stream->taken = bucket;
        quotas->counts.abandoned++;
    } else {
        quotas->counts.assignments++;
    }
    return true;
}

/* ---- all ------------------------------------------------------------------------------------ */

struct quotas *server_quotas_create(const struct quota_options *options) {
    struct quotas *quotas = (struct quotas *)calloc(1, sizeof *quotas);
    if (!quotas) return NULL;
    quotas->options = *options;
    quotas->random = options->seed;
    return quotas;
}

static void quota_free_buckets(struct quota_stream *stream) {
    struct quota_bucket *next = NULL;
    for (struct quota_bucket *each = stream->buckets; each; each = next) {
        next = each->next;
        quota_bucket_free(each);
    }
}

/* Forgets all streams, and their commitments. */
static void quotas_forget(struct quotas *quotas) {
    struct quota_stream *next = NULL;
    for (struct quota_stream *each = quotas->streams; each; each = next) {
        next = each->next;
        if (!each->is_live) quotas->counts.ended_streams--;
        quota_free_buckets(each);
        each->is_live = false;
        quota_stream_free(each);
    }
}

void server_quotas_begin(struct quotas *quotas, doorman_time now) {
    assert(quotas->counts.streams == 0);
    quotas_forget(quotas);
    quotas->begun_at = now;
}

void server_quotas_destroy(struct quotas *quotas) {
    if (!quotas) return;
    quotas_forget(quotas);
    free(quotas->buckets.slots);
    free(quotas->names.slots);
    free(quotas->resources.slots);
    free(quotas->heap);
    free(quotas);
}

const struct quota_counts *server_quotas_counts(const struct quotas *quotas) {
    return &quotas->counts;
}
