/* Quotas: up to 50 clients like Envoy on one resource, and a node whose master assigns them shares.
 *
 * The server object and the state machine of quotas are real. The model of a client follows the
 * source of Envoy. The client reports its bucket in each interval, even if there were no requests.
 * If a new assignment has the numbers of the one in force, the bucket keeps its tokens; otherwise
 * it becomes full. A time to live counts from the arrival of the assignment. The client never
 * confirms.
 *
 * A run has three processes, streams, and faults. A stream delivers messages in order, at most
 * DELAY_MAX late, or it breaks: then nothing passes, and each end notices that at its own time. The
 * stream of a client that stands still breaks too, because the client would read old assignments
 * later and use them for too long, which the protocol cannot exclude. The world moves in small
 * steps.
 *
 * Checks in each step: the sum of the assignments in force is at most the largest capacity within
 * about the last lease length. The requests that have passed are at most what this capacity allows,
 * plus each bucket that an assignment has filled. When the faults have ended, shares are exact;
 * then something changes, and two leases later they are exact again (W5). */
#include "sim_quota.h"

#include "server/grpc/quota.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define ENVOYS 50
#define PROCESSES 3
#define CONNECTIONS 1024
#define MESSAGES 64
#define DELAY_MAX (SECOND * 9 / 10)
#define MASTERSHIP (4 * SECOND) /* by the clock of the process */
#define VACANCY (5 * SECOND)    /* after which the next master can be elected, by true time */
#define CHANGES 64

typedef struct quota_message {
    doorman_time at;
    bool closes; /* the other end has ended the stream */
    double allowed, denied;
    struct quota_action action;
    uint32_t nanos; /* of the interval */
} quota_message;

typedef struct quota_queue {
    quota_message list[MESSAGES];
    size_t first, count;
} quota_queue;

/* A stream between a client and a process. */
typedef struct quota_connection {
    bool used, client_open, server_open, broken;
    size_t envoy, process;
    struct quota_stream *stream; /* NULL: the process has not opened it, or has ended it */
    doorman_time client_notices, server_notices; /* when each end notices that it is broken */
    quota_queue to_client, to_server;
} quota_connection;

typedef struct quota_envoy {
    sim_clock clock;
    char name[16];
    bool alive;
    doorman_time stalled_until;
    double demand; /* requests a second */
    double owed;   /* a part of the next request */
    bool has_bucket, has_action, has_tokens;
    uint32_t size, nanos;
    double tokens, rate;
    doorman_time filled_at, ends_at, report_at, report_interval; /* by its clock */
    double allowed, denied;
    size_t connection; /* SIM_NONE: none */
} quota_envoy;

typedef struct quota_process {
    sim_clock clock;
    doorman_server *server; /* NULL: it is dead */
    struct quotas *quotas;
    bool is_master;                       /* as its quotas know */
    uint64_t election_count, begun_count; /* how often it was elected: now; when its quotas began */
    bool is_clean; /* at its last election it has got the leases of the last master */
    doorman_time paused_until, starts_at;
    doorman_time until;      /* of its mastership, by its clock */
    doorman_time renewed_at; /* by true time */
} quota_process;

typedef struct quota_past {
    double capacity;
    doorman_time until;
} quota_past;

typedef struct quota_world {
    uint64_t seed, random, step_count, hash;
    doorman_time now, step, lease;
    bool on[SIM_FAULT_COUNT];
    doorman_config *configs[CHANGES];
    size_t config_count;
    double capacity;
    quota_past past[CHANGES];
    size_t past_count;
    quota_process processes[PROCESSES];
    size_t master; /* that the election has chosen; SIM_NONE: none */
    doorman_time vacant_until;
    unsigned char *handover;
    size_t handover_bytes, handover_room;
    quota_envoy envoys[ENVOYS];
    size_t envoy_count;
    quota_connection connections[CONNECTIONS];
    double passed, filled,
        could; /* requests that passed; tokens of full buckets; of the capacity */
    uint64_t assignments, breaks, deaths;
    bool faulty; /* faults still happen */
    bool learns; /* false: a new master does not learn, and only the quotas wait */
    bool verbose;
    char failure[256];
} quota_world;

static quota_world the_world;

__attribute__((format(printf, 2, 3))) static void quota_fail(quota_world *world, const char *format,
                                                             ...) {
    va_list arguments;
    if (world->failure[0]) return;
    va_start(arguments, format);
    vsnprintf(world->failure, sizeof world->failure, format, arguments);
    va_end(arguments);
}

__attribute__((format(printf, 2, 3))) static void quota_log(const quota_world *world,
                                                            const char *format, ...) {
    va_list arguments;
    if (!world->verbose) return;
    printf("%9.3f  ", (double)world->now / 1e9);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

static doorman_time clock_at(const sim_clock *clock, doorman_time now) {
    return clock->offset + now / 1000 * clock->rate + now % 1000 * clock->rate / 1000;
}

static bool chance(quota_world *world, double probability) {
    return (double)(sim_random(&world->random) >> 11) * 0x1p-53 < probability;
}

/* Returns whether a fault that comes about once in `seconds` strikes in this step. */
static bool strikes(quota_world *world, sim_fault fault, double seconds) {
    bool hit = chance(world, (double)world->step / 1e9 / seconds);
    return hit && world->faulty && world->on[fault];
}

static doorman_time between(quota_world *world, doorman_time low, doorman_time high) {
    return sim_time_between(&world->random, low, high);
}

static sim_clock draw_clock(quota_world *world) {
    int64_t rate =
        SIM_RATE_MIN + (int64_t)sim_below(&world->random, SIM_RATE_MAX - SIM_RATE_MIN + 1);
    return (sim_clock){between(world, SECOND, 1000 * SECOND), world->on[SIM_CLOCK] ? rate : 1000};
}

/* ---- the configuration */

/* Returns the interval of a bucket in seconds, as the server chooses it. */
static unsigned interval_of(void *context, const char *resource_id) {
    const quota_world *world = context;
    unsigned interval = 1;
    (void)resource_id;
    while (interval < 10 && world->capacity * interval < 100) interval++;
    return interval;
}

static void describe(void *context, const char *resource_id, struct quota_facts *out) {
    const quota_world *world = context;
    out->interval = interval_of(context, resource_id);
    out->lease_length = world->lease;
    out->learns = world->learns;
}

static void add_config(quota_world *world, double capacity) {
    doorman_template template = {.identifier_glob = "*", .capacity = capacity};
    template.has_algorithm = true;
    template.algorithm = (doorman_algorithm){.kind = DOORMAN_FAIR_SHARE,
                                             .lease_length = world->lease,
                                             .refresh_interval = world->lease / 4,
                                             .has_learning_mode_duration = !world->learns};
    const doorman_config_options options = {.templates = &template, .template_count = 1};
    if (world->config_count == CHANGES) return;
    if (doorman_config_create(&world->configs[world->config_count], &options, NULL) != DOORMAN_OK) {
        abort();
    }
    world->config_count++;
    /* what was assigned under the last one ends within a lease */
    world->past[world->past_count++] =
        (quota_past){world->capacity, world->now + world->lease / 100 * 108 + 2 * SECOND};
    world->capacity = capacity;
}

static doorman_config *config_of(const quota_world *world) {
    return world->configs[world->config_count - 1];
}

static void change_capacity(quota_world *world, double capacity) {
    if (world->config_count == CHANGES) return;
    add_config(world, capacity);
    quota_log(world, "the capacity is %g", capacity);
    for (size_t i = 0; i < PROCESSES; i++) {
        quota_process *process = &world->processes[i];
        if (!process->server) continue;
        if (doorman_server_configure(process->server, config_of(world),
                                     clock_at(&process->clock, world->now)) != DOORMAN_OK) {
            quota_fail(world, "a configuration is refused");
        }
    }
}

/* Returns the largest capacity under which assignments may be in force. */
static double allowed_at(const quota_world *world) {
    double most = world->capacity;
    for (size_t i = 0; i < world->past_count; i++) {
        const quota_past *past = &world->past[i];
        if (world->now < past->until && past->capacity > most) most = past->capacity;
    }
    return most;
}

/* ---- streams */

static void queue_add(quota_world *world, quota_connection *connection, quota_queue *queue,
                      quota_message message) {
    if (connection->broken) return;
    if (queue->count == MESSAGES) { /* the receiver does not read */
        connection->broken = true;
        connection->client_notices = connection->server_notices = world->now;
        return;
    }
    doorman_time delay = world->faulty && world->on[SIM_DELAY]
                             ? between(world, 0, DELAY_MAX - 2 * world->step)
                             : SECOND / 100;
    message.at = world->now + delay;
    if (queue->count > 0) { /* in order */
        doorman_time last = queue->list[(queue->first + queue->count - 1) % MESSAGES].at;
        if (message.at < last) message.at = last;
    }
    queue->list[(queue->first + queue->count++) % MESSAGES] = message;
}

static bool queue_take(const quota_world *world, const quota_connection *connection,
                       quota_queue *queue, quota_message *out) {
    if (connection->broken || queue->count == 0 || queue->list[queue->first].at > world->now) {
        return false;
    }
    *out = queue->list[queue->first];
    queue->first = (queue->first + 1) % MESSAGES;
    queue->count--;
    return true;
}

static void connection_break(quota_world *world, quota_connection *connection) {
    if (!connection->used || connection->broken) return;
    connection->broken = true;
    connection->client_notices = world->now + between(world, 0, 10 * SECOND);
    connection->server_notices = world->now + between(world, 0, 20 * SECOND);
    world->breaks++;
}

static void connection_tidy(quota_connection *connection) {
    if (connection->client_open || connection->server_open) return;
    connection->used = false;
}

static void close_at_client(quota_world *world, quota_connection *connection, bool tells) {
    if (!connection->client_open) return;
    connection->client_open = false;
    world->envoys[connection->envoy].connection = SIM_NONE;
    if (tells) {
        queue_add(world, connection, &connection->to_server, (quota_message){.closes = true});
    }
    connection_tidy(connection);
}

static void close_at_server(quota_world *world, quota_connection *connection, bool tells) {
    quota_process *process = &world->processes[connection->process];
    if (!connection->server_open) return;
    if (connection->stream) {
        server_quota_close(connection->stream, clock_at(&process->clock, world->now));
    }
    connection->stream = NULL;
    connection->server_open = false;
    if (tells) {
        queue_add(world, connection, &connection->to_client, (quota_message){.closes = true});
    }
    connection_tidy(connection);
}

static quota_connection *connection_open(quota_world *world, size_t envoy, size_t process) {
    for (size_t i = 0; i < CONNECTIONS; i++) {
        quota_connection *connection = &world->connections[i];
        if (connection->used) continue;
        memset(connection, 0, sizeof *connection);
        connection->used = connection->client_open = connection->server_open = true;
        connection->envoy = envoy;
        connection->process = process;
        world->envoys[envoy].connection = i;
        return connection;
    }
    quota_fail(world, "too many streams");
    return NULL;
}

/* ---- clients */

/* Lets requests come. They pass if there are tokens. */
static void envoy_consume(quota_world *world, quota_envoy *envoy) {
    doorman_time local = clock_at(&envoy->clock, world->now);
    bool is_over = envoy->has_action && local >= envoy->ends_at;
    doorman_time until = is_over ? envoy->ends_at : local;
    if (envoy->has_action && envoy->has_tokens && until > envoy->filled_at) {
        envoy->tokens += envoy->rate * (double)(until - envoy->filled_at) / 1e9;
        if (envoy->tokens > envoy->size) envoy->tokens = envoy->size;
        envoy->filled_at = until;
    }
    if (local < envoy->stalled_until || !envoy->alive) return;
    envoy->owed += envoy->demand * (double)world->step / 1e9;
    double count = floor(envoy->owed), passes = 0;
    envoy->owed -= count;
    if (envoy->has_action && envoy->has_tokens) passes = fmin(count, floor(envoy->tokens));
    envoy->tokens -= passes;
    world->passed += passes;
    envoy->allowed += passes;
    envoy->denied += count - passes;
    if (is_over) envoy->has_action = false;
}

static void envoy_assign(quota_world *world, quota_envoy *envoy, const quota_message *message) {
    doorman_time local = clock_at(&envoy->clock, world->now);
    const struct quota_action *action = &message->action;
    bool same = envoy->has_action && envoy->has_tokens && action->tokens == envoy->size &&
                message->nanos == envoy->nanos;
    if (!same) {
        envoy->has_tokens = action->tokens > 0;
        envoy->size = action->tokens;
        envoy->nanos = message->nanos;
        envoy->tokens = action->tokens;
        envoy->rate = (double)action->tokens / action->interval;
        envoy->filled_at = local;
        world->filled += action->tokens;
    }
    envoy->has_action = true;
    envoy->ends_at = local + action->time_to_live * SECOND;
}

static void envoy_report(quota_world *world, size_t index) {
    quota_envoy *envoy = &world->envoys[index];
    if (envoy->connection == SIM_NONE) {
        bool astray = world->master == SIM_NONE || (world->faulty && chance(world, 0.1));
        size_t process = astray ? (size_t)sim_below(&world->random, PROCESSES) : world->master;
        if (!world->processes[process].server) return; /* the stream cannot be opened */
        if (!connection_open(world, index, process)) return;
    }
    quota_connection *connection = &world->connections[envoy->connection];
    queue_add(world, connection, &connection->to_server,
              (quota_message){.allowed = envoy->allowed, .denied = envoy->denied});
    envoy->allowed = envoy->denied = 0;
}

static void envoy_die(quota_world *world, size_t index) {
    quota_envoy *envoy = &world->envoys[index];
    if (envoy->connection != SIM_NONE) {
        close_at_client(world, &world->connections[envoy->connection], true);
    }
    envoy->has_bucket = envoy->has_action = envoy->has_tokens = false;
    envoy->allowed = envoy->denied = envoy->owed = 0;
    world->deaths++;
}

static void envoy_step(quota_world *world, size_t index) {
    quota_envoy *envoy = &world->envoys[index];
    doorman_time local = clock_at(&envoy->clock, world->now);
    quota_message message;
    envoy_consume(world, envoy);
    if (!envoy->alive || local < envoy->stalled_until) return;
    if (envoy->connection != SIM_NONE) {
        quota_connection *connection = &world->connections[envoy->connection];
        if (connection->broken && world->now >= connection->client_notices) {
            close_at_client(world, connection, false);
        }
        while (envoy->connection != SIM_NONE &&
               queue_take(world, connection, &connection->to_client, &message)) {
            if (message.closes) {
                close_at_client(world, connection, false);
            } else if (!envoy->has_bucket) {
                continue; /* Envoy ignores a bucket that it does not have */
            } else if (message.action.kind == QUOTA_ABANDON) {
                envoy->has_bucket = envoy->has_action = false;
            } else {
                envoy_assign(world, envoy, &message);
            }
        }
    }
    bool begins = !envoy->has_bucket && envoy->allowed + envoy->denied > 0;
    if (begins) envoy->has_bucket = true;
    if (!begins && local < envoy->report_at) return;
    if (!begins) envoy->report_at = local + envoy->report_interval;
    if (envoy->has_bucket) envoy_report(world, index);
}

/* ---- processes */

static void process_start(quota_world *world, size_t index) {
    quota_process *process = &world->processes[index];
    doorman_time local = clock_at(&process->clock, world->now);
    const doorman_server_options options = {
        .node = "node",
        .config = config_of(world),
        .seed = {sim_random(&world->random), sim_random(&world->random)}};
    const struct quota_options quotas = {.bucket_max = 1000,
                                         .drift = 0.05,
                                         .seed = sim_random(&world->random),
                                         .describe = describe,
                                         .context = world};
    process->is_master = false;
    process->until = process->renewed_at = 0;
    process->quotas = server_quotas_create(&quotas);
    if (doorman_server_create(&process->server, &options, NULL, local) != DOORMAN_OK ||
        !process->quotas) {
        abort();
    }
}

/* Ends all streams of a process.
 *   tells   the clients get a message; false: the process has died */
static void process_end_streams(quota_world *world, size_t index, bool tells) {
    for (size_t i = 0; i < CONNECTIONS; i++) {
        quota_connection *connection = &world->connections[i];
        if (!connection->used || connection->process != index) continue;
        if (!tells) connection_break(world, connection);
        close_at_server(world, connection, tells);
    }
}

static void process_kill(quota_world *world, size_t index) {
    quota_process *process = &world->processes[index];
    if (!process->server) return;
    quota_log(world, "process %zu dies", index);
    process_end_streams(world, index, false);
    server_quotas_destroy(process->quotas);
    doorman_server_destroy(process->server);
    process->quotas = NULL;
    process->server = NULL;
    process->starts_at = world->now + between(world, 0, 20 * SECOND);
    process->paused_until = 0;
    if (world->master == index) {
        world->master = SIM_NONE;
        world->vacant_until = world->now + between(world, 0, 3 * SECOND);
    }
}

static bool hand_over_write(void *context, const void *bytes, size_t count) {
    quota_world *world = context;
    if (world->handover_bytes + count > world->handover_room) {
        world->handover_room = 2 * (world->handover_bytes + count);
        world->handover = realloc(world->handover, world->handover_room);
        if (!world->handover) abort();
    }
    memcpy(world->handover + world->handover_bytes, bytes, count);
    world->handover_bytes += count;
    return true;
}

/* Makes the master resign. With the fault HANDOVER it mostly leaves its leases to the next
 * master. */
static void process_resign(quota_world *world) {
    if (world->master == SIM_NONE) return;
    quota_process *process = &world->processes[world->master];
    doorman_time local = clock_at(&process->clock, world->now);
    const doorman_mastership none = {.until = 0};
    if (!process->server || local < process->paused_until) return;
    world->handover_bytes = 0;
    if (world->on[SIM_HANDOVER] && chance(world, 0.7) &&
        doorman_server_hand_over(process->server, hand_over_write, world, local) != DOORMAN_OK) {
        world->handover_bytes = 0;
    }
    quota_log(world, "process %zu resigns, %zu bytes", world->master, world->handover_bytes);
    (void)doorman_server_set_master(process->server, &none, local);
    process->until = 0;
    world->master = SIM_NONE;
    world->vacant_until = world->now;
    if (world->on[SIM_GAP]) world->vacant_until += between(world, 0, 20 * SECOND);
}

/* Elects a master if there is none, or if the last one has not renewed its mastership. */
static void elect(quota_world *world) {
    if (world->master != SIM_NONE) {
        const quota_process *last = &world->processes[world->master];
        if (world->now < last->renewed_at + VACANCY) return;
        world->master = SIM_NONE; /* it stands still */
        world->handover_bytes = 0;
    }
    if (world->now < world->vacant_until) return;
    size_t chosen = (size_t)sim_below(&world->random, PROCESSES);
    quota_process *process = &world->processes[chosen];
    doorman_time local = clock_at(&process->clock, world->now);
    if (!process->server || local < process->paused_until) return;
    world->master = chosen;
    process->renewed_at = world->now;
    process->until = local + MASTERSHIP;
    process->election_count++;
    const doorman_mastership mastership = {.address = "here", .until = process->until};
    (void)doorman_server_set_master(process->server, &mastership, local);
    process->is_clean = world->handover_bytes > 0 &&
                        doorman_server_take_over(process->server, world->handover,
                                                 world->handover_bytes, NULL, local) == DOORMAN_OK;
    world->handover_bytes = 0;
    quota_log(world, "process %zu is master%s", chosen, process->is_clean ? ", clean" : "");
}

/* Notes whether a process is master, and returns it. As in the server, streams end with a
 * mastership, and quotas begin with one. */
static bool process_look(quota_world *world, size_t index, doorman_time local) {
    quota_process *process = &world->processes[index];
    const doorman_request discovery = {.method = DOORMAN_DISCOVERY};
    doorman_response response = {.is_master = false};
    (void)doorman_server_handle(process->server, &discovery, &response, NULL, local);
    bool is_same = response.is_master && process->begun_count == process->election_count;
    if (!is_same && process->is_master) process_end_streams(world, index, true);
    if (response.is_master && !(process->is_master && is_same)) {
        process->begun_count = process->election_count;
        server_quotas_begin(process->quotas, local);
    }
    process->is_master = response.is_master;
    return response.is_master;
}

static void process_receive(quota_world *world, quota_connection *connection, doorman_time local) {
    quota_process *process = &world->processes[connection->process];
    const quota_envoy *envoy = &world->envoys[connection->envoy];
    quota_message message;
    if (connection->broken && world->now >= connection->server_notices) {
        close_at_server(world, connection, false);
    }
    while (connection->server_open &&
           queue_take(world, connection, &connection->to_server, &message)) {
        if (message.closes || !process->is_master) {
            close_at_server(world, connection, !message.closes);
            return;
        }
        if (!connection->stream) {
            connection->stream = server_quota_open(process->quotas, envoy->name, local);
        }
        const struct quota_report report = {"shop/name=a", "a", 1, message.allowed, message.denied};
        if (!connection->stream || !server_quota_report(connection->stream, &report, local)) {
            quota_fail(world, "a report is refused");
            return;
        }
    }
}

static void process_send(quota_world *world, quota_connection *connection, doorman_time local) {
    struct quota_action action;
    while (connection->stream && server_quota_next_action(connection->stream, &action, local)) {
        quota_message message = {.action = action, .nanos = action.interval - 1};
        if (action.kind == QUOTA_ASSIGN) world->assignments++;
        if (action.kind == QUOTA_ASSIGN && action.time_to_live * SECOND > world->lease - SECOND) {
            quota_fail(world, "an assignment lasts longer than its lease");
        }
        queue_add(world, connection, &connection->to_client, message);
    }
}

/* Asks for leases, as the server does. */
static void process_work(quota_world *world, size_t index, doorman_time local) {
    quota_process *process = &world->processes[index];
    doorman_request request;
    doorman_response response;
    for (int i = 0; server_quotas_request(process->quotas, &request, local); i++) {
        doorman_error error = {0};
        if (doorman_server_handle(process->server, &request, &response, &error, local) !=
            DOORMAN_OK) {
            quota_fail(world, "a request is refused: %s", error.text);
            return;
        }
        server_quotas_response(process->quotas, response.is_master ? &response : NULL, local);
        if (!response.is_master) return;
        if (i > 1000) quota_fail(world, "requests do not end");
        if (world->failure[0]) return;
    }
    if (server_quotas_due(process->quotas) <= local) {
        quota_fail(world, "what is due is not done");
    }
}

static void process_step(quota_world *world, size_t index) {
    quota_process *process = &world->processes[index];
    if (!process->server) {
        if (world->now >= process->starts_at) process_start(world, index);
        return;
    }
    doorman_time local = clock_at(&process->clock, world->now);
    doorman_request ignored;
    if (local < process->paused_until) return;
    if (world->master == index && local < process->until &&
        world->now - process->renewed_at >= SECOND) {
        process->renewed_at = world->now;
        process->until = local + MASTERSHIP;
        const doorman_mastership mastership = {.address = "here", .until = process->until};
        (void)doorman_server_set_master(process->server, &mastership, local);
    }
    (void)doorman_upstream_request(doorman_server_upstream(process->server), &ignored, local);
    bool is_master = process_look(world, index, local);
    for (size_t i = 0; i < CONNECTIONS; i++) {
        quota_connection *connection = &world->connections[i];
        if (!connection->used || connection->process != index) continue;
        process_receive(world, connection, local);
    }
    if (is_master) process_work(world, index, local);
    for (size_t i = 0; is_master && i < CONNECTIONS; i++) {
        quota_connection *connection = &world->connections[i];
        if (connection->used && connection->process == index) {
            process_send(world, connection, local);
        }
    }
}

/* ---- checks */

static double rate_of(const quota_world *world, const quota_envoy *envoy) {
    bool in_force = envoy->has_action && envoy->has_tokens &&
                    clock_at(&envoy->clock, world->now) < envoy->ends_at;
    return in_force ? envoy->rate : 0;
}

static void check_step(quota_world *world) {
    double sum = 0, most = allowed_at(world);
    for (size_t i = 0; i < world->envoy_count; i++) {
        sum += rate_of(world, &world->envoys[i]);
        if (world->envoys[i].tokens > world->envoys[i].size) quota_fail(world, "too many tokens");
    }
    world->could += most * (double)world->step / 1e9;
    world->hash = world->hash * 31 + (uint64_t)(sum * 1000);
    if (sum > most * (1 + 1e-9)) {
        quota_fail(world, "%.17g is in force, and %.17g is the most", sum, most);
    }
    /* clocks are up to 1 % wrong */
    if (world->passed > 1.02 * world->could + world->filled + 1) {
        quota_fail(world, "%g requests have passed: the capacity is %g, and full buckets %g",
                   world->passed, world->could, world->filled);
    }
}

/* Checks the shares. Each live client wants much more than its share, so all must have the same. */
static void check_exact(quota_world *world, const char *when) {
    size_t count = 0;
    for (size_t i = 0; i < world->envoy_count; i++) count += world->envoys[i].alive;
    unsigned interval = interval_of(world, "");
    double share = world->capacity / (double)count;
    uint32_t expected = (uint32_t)(share * interval * (1 + 1e-12));
    for (size_t i = 0; i < world->envoy_count; i++) {
        const quota_envoy *envoy = &world->envoys[i];
        if (!envoy->alive) continue;
        double tokens = rate_of(world, envoy) * interval;
        if (fabs(tokens - expected) < 1e-6) continue;
        quota_fail(world, "%s: client %zu of %zu has %g tokens in %u s, and its share is %u of %g",
                   when, i, count, tokens, interval, expected, world->capacity);
    }
}

/* ---- runs */

static void strike(quota_world *world) {
    size_t process = (size_t)sim_below(&world->random, PROCESSES);
    size_t index = (size_t)sim_below(&world->random, world->envoy_count);
    quota_envoy *envoy = &world->envoys[index];
    if (strikes(world, SIM_KILL, 40)) process_kill(world, process);
    /* a master that waits for the assignments of the last one may leave before they have ended */
    bool waits = world->master != SIM_NONE && !world->processes[world->master].is_clean;
    if (strikes(world, SIM_RESIGN, waits ? 8 : 40)) process_resign(world);
    if (strikes(world, SIM_FREEZE, 40) && world->processes[process].server) {
        world->processes[process].paused_until =
            clock_at(&world->processes[process].clock, world->now) + between(world, 0, 8 * SECOND);
    }
    if (strikes(world, SIM_LOSS, 3)) {
        connection_break(world, &world->connections[sim_below(&world->random, CONNECTIONS)]);
        if (envoy->connection != SIM_NONE) {
            connection_break(world, &world->connections[envoy->connection]);
        }
    }
    if (strikes(world, SIM_PARTITION, 30)) {
        for (size_t i = 0; i < CONNECTIONS; i++) {
            if (chance(world, 0.5)) connection_break(world, &world->connections[i]);
        }
    }
    if (strikes(world, SIM_DIE, 5)) envoy_die(world, index);
    if (strikes(world, SIM_STALL, 10)) {
        envoy->stalled_until = clock_at(&envoy->clock, world->now) + between(world, 0, 20 * SECOND);
        if (envoy->connection != SIM_NONE) {
            connection_break(world, &world->connections[envoy->connection]);
        }
    }
    if (strikes(world, SIM_SPIKE, 2)) {
        envoy->demand = chance(world, 0.3) ? 0 : pow(10, (double)sim_below(&world->random, 4));
    }
    if (strikes(world, SIM_RELOAD, 40)) {
        change_capacity(world, (double)(1 + sim_below(&world->random, 3000)));
    }
    if (strikes(world, SIM_CUT, 40)) {
        change_capacity(world, floor(world->capacity * 0.7) + 1);
    }
}

static void run_for(quota_world *world, doorman_time duration) {
    doorman_time end = world->now + duration;
    while (world->now < end && !world->failure[0]) {
        world->now += world->step;
        world->step_count++;
        if (world->faulty) strike(world);
        elect(world);
        for (size_t i = 0; i < PROCESSES; i++) process_step(world, i);
        for (size_t i = 0; i < world->envoy_count; i++) envoy_step(world, i);
        check_step(world);
    }
}

static void set_up(quota_world *world, const sim_run_options *options) {
    memset(world, 0, sizeof *world);
    world->seed = options->seed;
    world->random = options->seed * 2654435761u + 17;
    world->verbose = options->verbose;
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) {
        bool drawn = chance(world, 0.5);
        world->on[i] = options->favoured[i] || (options->allowed[i] && drawn);
    }
    world->now = 10 * SECOND;
    world->step = between(world, SECOND / 100, SECOND / 20);
    world->lease = SECOND * (doorman_time)(10 + sim_below(&world->random, 11));
    world->learns = chance(world, 0.7);
    add_config(world, (double)(1 + sim_below(&world->random, 3000)));
    world->past_count = 0;
    world->master = SIM_NONE;
    world->envoy_count = 2 + (size_t)sim_below(&world->random, ENVOYS - 1);
    if (chance(world, 0.3)) world->envoy_count = ENVOYS;
    size_t most = options->maximum[SIM_MAX_CLIENTS];
    if (world->envoy_count > most) world->envoy_count = most;
    for (size_t i = 0; i < PROCESSES; i++) world->processes[i].clock = draw_clock(world);
    for (size_t i = 0; i < world->envoy_count; i++) {
        quota_envoy *envoy = &world->envoys[i];
        envoy->clock = draw_clock(world);
        envoy->alive = true;
        envoy->connection = SIM_NONE;
        envoy->demand = chance(world, 0.5) ? 10000 : (double)sim_below(&world->random, 100);
        envoy->report_interval = between(world, SECOND / 2, 2 * SECOND);
        envoy->report_at = clock_at(&envoy->clock, world->now) + between(world, 0, 2 * SECOND);
        if (chance(world, 0.5)) snprintf(envoy->name, sizeof envoy->name, "envoy-%zu", i);
    }
}

static void tear_down(quota_world *world) {
    for (size_t i = 0; i < PROCESSES; i++) {
        server_quotas_destroy(world->processes[i].quotas);
        doorman_server_destroy(world->processes[i].server);
    }
    for (size_t i = 0; i < world->config_count; i++) doorman_config_destroy(world->configs[i]);
    free(world->handover);
}

/* Changes something, and checks that the shares are exact two leases later. */
static void change_and_check(quota_world *world) {
    size_t count = 1 + (size_t)sim_below(&world->random, world->envoy_count / 2);
    switch (sim_below(&world->random, 3)) {
    case 0:
        change_capacity(world, (double)(1 + sim_below(&world->random, 3000)));
        run_for(world, 2 * world->lease);
        check_exact(world, "two leases after a change of the capacity");
        break;
    case 1:
        for (size_t i = 0; i < count; i++) {
            envoy_die(world, i);
            world->envoys[i].alive = false;
        }
        run_for(world, 2 * world->lease);
        check_exact(world, "two leases after clients have gone");
        break;
    default:
        for (size_t i = 0; i < count; i++) world->envoys[i].demand = 0.2;
        run_for(world, 30 * SECOND + 2 * world->lease);
        for (size_t i = 0; i < count; i++) world->envoys[i].demand = 10000;
        run_for(world, 2 * world->lease);
        check_exact(world, "two leases after clients want more");
    }
}

static bool run_fails(const sim_run_options *options) {
    quota_world *world = &the_world;
    set_up(world, options);
    doorman_time faulty = SECOND * (doorman_time)(20 + sim_below(&world->random, 180));
    doorman_time most = (doorman_time)options->maximum[SIM_MAX_SECONDS] * SECOND;
    world->faulty = true;
    run_for(world, faulty < most ? faulty : most);
    world->faulty = false;
    for (size_t i = 0; i < world->envoy_count; i++) {
        world->envoys[i].demand = 10000;
        world->envoys[i].stalled_until = 0;
    }
    /* until broken streams are noticed, processes run, and a new master has learned */
    run_for(world, 45 * SECOND + 4 * world->lease);
    check_exact(world, "after the faults");
    for (int i = 0; i < 2; i++) {
        if (!world->failure[0]) change_and_check(world);
    }
    tear_down(world);
    if (!world->failure[0]) return false;
    printf("FAILED: seed %llu, event %llu: %s\n", (unsigned long long)options->seed,
           (unsigned long long)world->step_count, world->failure);
    printf("repeat: %s quotas --seed %llu --verbose\n", options->program,
           (unsigned long long)options->seed);
    return true;
}

/* Runs every `step`-th seed. Returns whether one has failed. */
static bool run_seeds(const sim_run_options *options, uint64_t first, uint64_t seeds,
                      uint64_t step) {
    uint64_t steps = 0, assignments = 0, breaks = 0, deaths = 0, runs = 0, hash = 0;
    for (uint64_t i = first; i < seeds; i += step) {
        sim_run_options next = *options;
        next.seed = options->seed + i;
        if (run_fails(&next)) return true;
        steps += the_world.step_count;
        assignments += the_world.assignments;
        breaks += the_world.breaks;
        deaths += the_world.deaths;
        hash += the_world.hash;
        runs++;
    }
    printf("%llu runs, %llu steps, %llu assignments, %llu broken streams, %llu clients that died: "
           "nothing found; the hash is %016llx\n",
           (unsigned long long)runs, (unsigned long long)steps, (unsigned long long)assignments,
           (unsigned long long)breaks, (unsigned long long)deaths, (unsigned long long)hash);
    return false;
}

int sim_quotas(const sim_run_options *options, uint64_t seeds, uint64_t jobs) {
    return sim_in_processes(run_seeds, options, seeds, jobs);
}
