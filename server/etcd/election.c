/* doorman_server, part ETCD: the election of the master, and the configuration in etcd. This file
 * changes the mastership of the server object, the configuration, the phase of a drain, and of the
 * service election_status, master_http, stopping and ended_lease_count.
 *
 * doorman_election of doorman.h decides which process is master (V2). One thread makes the calls to
 * etcd that doorman_election needs, and gives it the answers. What doorman.h calls a store lease is
 * an etcd lease. The election key of etcd is attached to the etcd lease of the master.
 *
 * The value of the key has one line or two lines. The first line is the address of the master. The
 * second line is its HTTP address, if it has one (--http-advertise). A server of an earlier
 * version, which knows only one line, reads a value of two lines as an address with a control
 * character. Such an address is not valid, so the older server knows that there is a master, but
 * not where.
 *
 * With --state, the master also needs an epoch: a number that is larger than the epochs of all
 * earlier masters (D9). The epoch is the version of a second key, KEY/epoch. etcd counts the
 * versions of a key, and this key is never deleted. The transaction that creates the election key
 * also writes KEY/epoch, and a process reads both keys in one transaction. So a process whose etcd
 * lease holds the election key reads the epoch of its own mastership, even if the response to the
 * transaction that created the key was lost.
 *
 * The same thread reads the key of the configuration every second, or five times within the TTL if
 * that is more often (V1). A poll of the election goes first, so that it is not late. The thread
 * does not hold the lock of the service while it waits for etcd.
 *
 * The server object compares the end of a mastership with the clock at each request. So a process
 * that has slept or has lost etcd does not answer as master after this end, even before this thread
 * runs. */
#include "etcd.h"
#include "../util/host.h"

#include <arpa/inet.h>
#include <assert.h>

#define ELECTION_VALUE (2 * DOORMAN_ID_BYTES_MAX + 2) /* bytes: the two lines and the final 0 */

/* The lock of the service guards `reload` and the members after it. The others are for the thread
 * of the election, except those with which another thread wakes it, cancels its call or ends it. */
struct election {
    pthread_t thread;
    bool started;
    pthread_cond_t wake;
    struct etcd etcd;
    doorman_election core;                    /* decides; not initialised without an election key */
    char revision[ETCD_REVISION];             /* that of the configuration that was loaded last */
    doorman_time config_due;                  /* when to read the configuration next */
    char http_read[DOORMAN_ID_BYTES_MAX + 1]; /* the HTTP address in the key that was read last */
    bool reachable;                           /* the last call to etcd succeeded */
    uint64_t epoch;              /* of the last key of this process; 0: none yet, or no --state */
    bool reload;                 /* reload the configuration; the lock guards this and the rest */
    enum drain_phase drain_seen; /* the phase that the thread has followed */
    bool is_forbidden;           /* a part does not let this process become master */
    bool stops;   /* the thread must resign and end. service->stopping is true before, while other
                       parts still need the mastership: the store gets its last changes (V8) */
    bool resigns; /* the thread deletes the key, and its call must not be cancelled */
    doorman_election_state state;           /* the state that was applied last */
    doorman_time until;                     /* the end of the mastership that was applied last */
    char address[DOORMAN_ID_BYTES_MAX + 1]; /* of the master; "": not known */
};

static void election_log(const struct service *service) {
    static const char *const texts[DOORMAN_ELECTION_STATE_COUNT] = {
        [DOORMAN_NO_MASTER] = "no known master",
        [DOORMAN_STANDBY] = "another server is the master",
        [DOORMAN_MASTER] = "this server is the master",
        [DOORMAN_RESIGNED] = "this server has left the election",
    };
    const struct election *election = service->election;
    enum log_level level = election->state == DOORMAN_NO_MASTER ? LEVEL_WARNING : LEVEL_INFO;
    bool has_reason =
        election->state == DOORMAN_NO_MASTER && service->election_status.no_master.since;
    const char *value = has_reason ? service->election_status.no_master.reason : election->address;
    const char *pair = has_reason ? "reason" : value[0] ? "master" : LOG_END;
    server_log(service->settings, level, texts[election->state], "key",
               service->settings->election_key, pair, value, LOG_END);
}

/* Logs why this process has lost its mastership.
 *   expired     the time of the mastership has passed
 *   reachable   etcd has answered the last call */
static void election_log_loss(struct service *service, bool expired, bool reachable) {
    const struct election *election = service->election;
    const char *reason = "the election key is gone, or its etcd lease has ended";
    if (expired && reachable) {
        reason = "this process did not run in time, or etcd answered too late";
    } else if (expired) {
        reason = "etcd did not answer in time";
    } else if (election->state == DOORMAN_STANDBY) {
        reason = "another server owns the election key";
    }
    bool has_error = expired && !reachable;
    server_log(service->settings, LEVEL_WARNING, "this server is no longer the master", "key",
               service->settings->election_key, "reason", reason, has_error ? "error" : LOG_END,
               election->etcd.error.text, LOG_END);
    service->election_status.last_loss.since = doorman_clock();
    snprintf(service->election_status.last_loss.reason,
             sizeof service->election_status.last_loss.reason, "%s%s%.180s", reason,
             has_error ? ": " : "", has_error ? election->etcd.error.text : "");
}

/* Returns why this process must not be master, or NULL. Precondition: the lock is held. */
static const char *election_forbids(const struct service *service) {
    assert(server_lock_is_held(&service->lock));
    const char *why = NULL;
    EACH_PART(part, forbids) if (!why) why = (*part)->forbids(service);
    return why;
}

/* Notes whether the node has a master, and if not, why. Precondition: the lock is held. */
static void election_note_master(struct service *service, bool reachable, doorman_time now) {
    assert(server_lock_is_held(&service->lock));
    const struct election *election = service->election;
    if (election->state == DOORMAN_MASTER || election->address[0]) {
        service->election_status.no_master.since = 0;
    } else {
        const char *forbids = election_forbids(service);
        server_trouble_set(&service->election_status.no_master,
                           !reachable ? "etcd cannot be reached, or refuses the call"
                           : forbids  ? forbids
                                      : "the election has not ended yet",
                           now);
    }
}

/* Passes the mastership on to the server object, and logs a change. Precondition: the lock is
 * held.
 *   reachable   etcd has answered the last call */
static void election_apply(struct service *service, bool reachable) {
    struct election *election = service->election;
    doorman_mastership mastership;
    doorman_time now = doorman_clock();
    doorman_election_state state = doorman_election_mastership(&election->core, &mastership, now);
    doorman_status status = doorman_server_set_master(service->server, &mastership, now);
    const char *address = mastership.address ? mastership.address : "";
    bool was_master = election->state == DOORMAN_MASTER;
    bool expired = was_master && now >= election->until;
    bool changed = expired || state != election->state || strcmp(address, election->address) != 0;
    assert(status == DOORMAN_OK);
    (void)status;
    /* A server that loses mastership frees all its leases. TRIM_LEASES makes it return memory. */
    if (was_master && state != DOORMAN_MASTER) service->ended_lease_count += TRIM_LEASES;
    election->state = state;
    election->until = mastership.until;
    service->election_status.master_until = state == DOORMAN_MASTER ? mastership.until : 0;
    snprintf(election->address, sizeof election->address, "%s", address);
    snprintf(service->master_http, sizeof service->master_http, "%s",
             state == DOORMAN_STANDBY && address[0] ? election->http_read : "");
    bool gives_back = state == DOORMAN_RESIGNED || election->core.abstains;
    if (was_master && (expired || state != DOORMAN_MASTER) && !gives_back) {
        election_log_loss(service, expired, reachable);
    }
    election_note_master(service, reachable, now);
    bool is_master = state == DOORMAN_MASTER;
    service->election_status.lease = is_master ? election->core.lease : 0;
    if (expired || was_master != is_master) {
        EACH_PART(part, elected)(*part)->elected(service, is_master, election->epoch);
    }
    if (changed) {
        server_counter_add(&service->counters.master_changes[state], 1);
        election_log(service);
    }
    server_note_learning(service, LEARNING_OF_MASTER, now);
}

/* Notes whether etcd answers. Logs failures, and the first answer after them. Precondition: the
 * lock is held. */
static void election_log_etcd(struct service *service, bool reachable) {
    assert(server_lock_is_held(&service->lock));
    struct election *election = service->election;
    const char *member = election->etcd.members->items[election->etcd.at];
    if (!reachable && !service->stopping) {
        const struct settings *settings = service->settings;
        const char *const pairs[WARNING_PAIR_MAX][2] = {
            {"key", settings->election_key ? settings->election_key : settings->config_key},
            {"error", election->etcd.error.text}};
        server_log_warning(service, WARNING_ETCD_UNREACHABLE, pairs, doorman_clock());
    } else if (reachable && !election->reachable) {
        struct trouble_text end =
            server_trouble_text(&service->election_status.etcd, doorman_clock());
        server_end_warning(service, WARNING_ETCD_UNREACHABLE);
        server_log(service->settings, LEVEL_INFO, "etcd answers", "etcd", member, "after_seconds",
                   end.seconds, "failures", end.count, LOG_END);
    }
    election->reachable = reachable;
    if (reachable) {
        service->election_status.etcd.since = 0;
        service->election_status.etcd_answered_at = doorman_clock();
    } else {
        server_trouble_set(&service->election_status.etcd, election->etcd.error.text,
                           doorman_clock());
    }
}

/* Returns the time between two reads of the configuration. */
static doorman_time election_period(const struct service *service) {
    doorman_time period = service->settings->election_ttl * DOORMAN_SECOND / 5;
    return period < DOORMAN_SECOND ? period : DOORMAN_SECOND;
}

/* Reads an etcd lease from the response to a call. */
static void election_read_lease(const cJSON *lease, doorman_election_answer *out) {
    long long seconds = strtoll(server_etcd_number(lease, "TTL"), NULL, 10);
    if (seconds > TTL_MAX) seconds = TTL_MAX;
    out->ttl = seconds > 0 ? seconds * DOORMAN_SECOND : 0;
    out->lease = strtoll(server_etcd_number(lease, "ID"), NULL, 10);
}

#define EPOCH_KEY "/epoch" /* behind the election key */
#define EPOCH_KEY_BYTES (ETCD_KEY_BYTES_MAX + sizeof EPOCH_KEY - 1)

static void election_write_epoch_key(const struct service *service,
                                     char key[BASE64_TEXT(EPOCH_KEY_BYTES)]) {
    char name[EPOCH_KEY_BYTES + 1];
    snprintf(name, sizeof name, "%s" EPOCH_KEY, service->settings->election_key);
    server_base64_write(key, name);
}

/* Finds the entry of a key in the response to a transaction.
 *   index     of the operation, which reads one key
 *   returns   NULL: the key does not exist */
static const cJSON *election_find_entry(const cJSON *response, int index) {
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(response, "responses");
    const cJSON *range =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(all, index), "response_range");
    return cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(range, "kvs"), 0);
}

static uint64_t election_read_epoch(const cJSON *response, int index) {
    return strtoull(server_etcd_number(election_find_entry(response, index), "version"), NULL, 10);
}

/* Creates the election key, unless it exists. With --state, also makes a new epoch. */
static cJSON *election_create_key(struct service *service, const doorman_election_call *call,
                                  doorman_election_answer *out) {
    char key[ETCD_KEY_TEXT], lines[ELECTION_VALUE], value[BASE64_TEXT(ELECTION_VALUE)];
    char epoch[BASE64_TEXT(EPOCH_KEY_BYTES)], more[2 * sizeof epoch + 128] = "";
    const char *http = service->http_advertise;
    snprintf(lines, sizeof lines, "%s%s%s", call->address, http[0] ? "\n" : "", http);
    server_base64_write(key, service->settings->election_key);
    server_base64_write(value, lines);
    election_write_epoch_key(service, epoch);
    if (service->settings->state) {
        snprintf(more, sizeof more,
                 ",{\"request_put\":{\"key\":\"%s\"}},{\"request_range\":{\"key\":\"%s\"}}", epoch,
                 epoch);
    }
    cJSON *response = server_etcd_call(
        &service->election->etcd, "/v3/kv/txn",
        "{\"compare\":[{\"key\":\"%s\",\"target\":\"CREATE\",\"create_revision\":\"0\"}],"
        "\"success\":[{\"request_put\":{\"key\":\"%s\",\"value\":\"%s\",\"lease\":\"%lld\"}}%s]}",
        key, key, value, (long long)call->lease, more);
    out->created = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(response, "succeeded"));
    if (out->created) service->election->epoch = election_read_epoch(response, 2);
    return response;
}

/* Reads the two lines of a value, and splits it in place. Further lines are ignored. An HTTP
 * address that is not valid counts as not known. doorman_election checks the first line. */
static void election_read_value(struct election *election, char value[ELECTION_VALUE]) {
    char *line = strchr(value, '\n');
    if (line) *line++ = 0;
    if (line) line[strcspn(line, "\n")] = 0;
    bool valid = line && server_host_is_http_address(line);
    snprintf(election->http_read, sizeof election->http_read, "%.256s", valid ? line : "");
}

/* Reads the key and, with --state, the epoch.
 *   out   the entry of the key, a part of the response; NULL: it does not exist */
static cJSON *election_get(struct service *service, const cJSON **out, uint64_t *epoch) {
    struct etcd *etcd = &service->election->etcd;
    const char *name = service->settings->election_key;
    char key[ETCD_KEY_TEXT], second[BASE64_TEXT(EPOCH_KEY_BYTES)];
    if (!service->settings->state) return server_etcd_get(etcd, name, out);
    server_base64_write(key, name);
    election_write_epoch_key(service, second);
    cJSON *response = server_etcd_call(
        etcd, "/v3/kv/txn",
        "{\"success\":[{\"request_range\":{\"key\":\"%s\"}},{\"request_range\":{\"key\":\"%s\"}}]}",
        key, second);
    *out = election_find_entry(response, 0);
    *epoch = election_read_epoch(response, 1);
    return response;
}

/* Reads the election key. A value that does not fit counts as not known. With --state, a key
 * without an epoch counts as the key of another process: it ends with its etcd lease, and the next
 * key has an epoch.
 *   value   room for the value. The address of the answer points into it */
static cJSON *election_read_key(struct service *service, doorman_election_answer *out,
                                char value[ELECTION_VALUE]) {
    struct election *election = service->election;
    const cJSON *entry = NULL;
    uint64_t epoch = 0;
    size_t bytes = 0;
    cJSON *response = election_get(service, &entry, &epoch);
    if (entry) {
        out->exists = true;
        out->lease = strtoll(server_etcd_number(entry, "lease"), NULL, 10);
        if (service->settings->state && epoch == 0) out->lease = 0;
        if (out->lease && out->lease == election->core.lease) election->epoch = epoch;
        bool fits = server_etcd_read_value(entry, value, ELECTION_VALUE, &bytes);
        if (fits) election_read_value(election, value);
        out->address = fits ? value : NULL;
    }
    return response;
}

/* Makes a call of the election.
 *   value     see election_read_key
 *   returns   false: etcd does not answer */
static bool election_call_etcd(struct service *service, const doorman_election_call *call,
                               doorman_election_answer *out, char value[ELECTION_VALUE]) {
    struct etcd *etcd = &service->election->etcd;
    long long lease = (long long)call->lease;
    cJSON *response = NULL;
    *out = (doorman_election_answer){.lease = 0};
    if (call->kind == DOORMAN_GRANT_LEASE) {
        response = server_etcd_call(etcd, "/v3/lease/grant", "{\"TTL\":\"%lld\"}",
                                    (long long)(call->ttl / DOORMAN_SECOND));
        election_read_lease(response, out);
    } else if (call->kind == DOORMAN_KEEP_ALIVE) {
        response = server_etcd_call(etcd, "/v3/lease/keepalive", "{\"ID\":\"%lld\"}", lease);
        election_read_lease(cJSON_GetObjectItemCaseSensitive(response, "result"), out);
    } else if (call->kind == DOORMAN_READ_KEY) {
        response = election_read_key(service, out, value);
    } else if (call->kind == DOORMAN_CREATE_KEY) {
        response = election_create_key(service, call, out);
    } else {
        response = server_etcd_call(etcd, "/v3/lease/revoke", "{\"ID\":\"%lld\"}", lease);
    }
    cJSON_Delete(response);
    return response != NULL;
}

/* Tells the parts about a mastership that election_apply will begin. If a part then forbids the
 * mastership, it is given back before it is in force. */
static void election_note_win(struct service *service) {
    struct election *election = service->election;
    doorman_mastership mastership;
    doorman_election_state state =
        doorman_election_mastership(&election->core, &mastership, doorman_clock());
    if (state != DOORMAN_MASTER || election->state == DOORMAN_MASTER) return;
    EACH_PART(part, wins)(*part)->wins(service, election->epoch);
    server_lock(&service->lock);
    if (election_forbids(service)) {
        doorman_election_abstain(&election->core, true, doorman_clock());
    }
    server_unlock(&service->lock);
}

/* Makes a call of the election, and applies its answer. */
static void election_step(struct service *service, const doorman_election_call *call) {
    struct election *election = service->election;
    doorman_election_answer answer;
    char value[ELECTION_VALUE];
    bool reachable = election_call_etcd(service, call, &answer, value);
    doorman_election_answered(&election->core, call->sequence, reachable ? &answer : NULL,
                              doorman_clock());
    election_note_win(service);
    server_lock(&service->lock);
    election_apply(service, reachable);
    election_log_etcd(service, reachable);
    server_unlock(&service->lock);
}

/* Loads the configuration if its key has changed (V1). An invalid configuration is logged again
 * only after a reload, or with a new revision. */
static void election_load_config(struct service *service) {
    struct election *election = service->election;
    doorman_config *config = NULL;
    struct config_problems problems;
    election->config_due = doorman_clock() + election_period(service);
    bool reachable = server_etcd_load_config(&election->etcd, service->settings->config_key,
                                             election->revision, &config, &problems);
    if (config && service->settings->state) server_drop_warnings(&problems);
    if (config || problems.count > 0) server_apply_config(service, config, &problems);
    server_lock(&service->lock);
    election_log_etcd(service, reachable);
    server_unlock(&service->lock);
}

/* Makes the next call of the election, if one is due. Then loads the configuration, if that is due.
 * While the election gets no answers, the configuration is not loaded. If the polls of the
 * election leave no pause, the configuration waits for at most one more period.
 *   returns   when there is more to do */
static doorman_time election_work(struct service *service) {
    struct election *election = service->election;
    const struct settings *settings = service->settings;
    doorman_election_call call = {.due = DOORMAN_NEVER};
    doorman_time config_due = DOORMAN_NEVER, now = doorman_clock();
    bool stepped = settings->election_key && doorman_election_next(&election->core, &call, now);
    if (stepped) election_step(service, &call);
    if (settings->config_key && (election->reachable || !settings->election_key)) {
        config_due = election->config_due + (stepped ? election_period(service) : 0);
    }
    bool loads = doorman_clock() >= config_due;
    if (loads) election_load_config(service);
    if (stepped || loads) return 0;
    return call.due < config_due ? call.due : config_due;
}

/* Resigns as master, then deletes the key, so that another process can become master at once. If
 * etcd does not answer, the key ends with its etcd lease. */
static void election_resign(struct service *service) {
    struct election *election = service->election;
    doorman_election_call call;
    doorman_election_answer answer;
    char value[ELECTION_VALUE];
    server_lock(&service->lock);
    doorman_election_resign(&election->core, doorman_clock());
    election_apply(service, true);
    election->resigns = true;
    server_etcd_cancel(&election->etcd, false);
    server_unlock(&service->lock);
    if (doorman_election_next(&election->core, &call, doorman_clock())) {
        election->etcd.tries = 1;
        (void)election_call_etcd(service, &call, &answer, value);
    }
}

/* Stands for election, unless this process is drained, or a part forbids it. Precondition: the lock
 * is held. */
static void election_stand(struct service *service) {
    assert(server_lock_is_held(&service->lock));
    struct election *election = service->election;
    const char *why = election_forbids(service);
    const bool abstains = server_drain_abstains(&service->drain) || why;
    if (why && !election->is_forbidden) {
        server_log(service->settings, LEVEL_WARNING, "this process must not become master", "key",
                   service->settings->election_key, "why", why, LOG_END);
    }
    election->is_forbidden = why != NULL;
    if (election->core.abstains == abstains) return;
    doorman_election_abstain(&election->core, abstains, doorman_clock());
    election_apply(service, election->reachable);
}

/* Follows a drain. A master with --state stays until its state is in the store, or DRAIN_LEAVING
 * has lasted too long. Then it gives its mastership back. Precondition: the lock is held. */
static void election_follow_drain(struct service *service) {
    assert(server_lock_is_held(&service->lock));
    struct election *election = service->election;
    const struct drain *drain = &service->drain;
    bool is_master = election->state == DOORMAN_MASTER;
    bool is_late = drain->phase == DRAIN_LEAVING && doorman_clock() >= drain->until;
    bool is_pending = drain->phase == DRAIN_WANTED || drain->phase == DRAIN_WRITING ||
                      drain->phase == DRAIN_PAUSED;
    if (!service->settings->election_key) return;
    if (drain->phase == DRAIN_WANTED && is_master && service->state_status) {
        server_drain_move(service, DRAIN_WRITING);
    } else if (is_late || (is_pending && (!is_master || !service->state_status))) {
        server_drain_move(service, DRAIN_LEFT);
    }
    election_stand(service);
    if (drain->phase == DRAIN_LEFT && !election->core.lease) server_drain_move(service, DRAIN_DONE);
}

/* Returns whether the thread leaves the election. When the server stops, a master stays until the
 * parts that stop before this one have written what they know, because they can write it only
 * during the mastership. A standby leaves at once, so that it does not become master. Precondition:
 * the lock is held. */
static bool election_leaves(const struct service *service) {
    assert(server_lock_is_held(&service->lock));
    const struct election *election = service->election;
    return election->stops || (service->stopping && election->state != DOORMAN_MASTER);
}

static void *election_main(void *argument) {
    struct service *service = (struct service *)argument;
    struct election *election = service->election;
    server_lock(&service->lock);
    while (!election_leaves(service)) {
        election_follow_drain(service);
        election->drain_seen = service->drain.phase;
        if (election->reload) {
            election->revision[0] = 0;
            election->config_due = 0;
        }
        election->reload = false;
        server_unlock(&service->lock);
        doorman_time due = election_work(service);
        server_lock(&service->lock);
        doorman_time duration = due - doorman_clock();
        bool is_called = election->reload || election->drain_seen != service->drain.phase;
        if (duration > 0 && !election_leaves(service) && !is_called) {
            server_condition_wait(&election->wake, &service->lock, duration);
        }
    }
    server_unlock(&service->lock);
    if (service->settings->election_key) election_resign(service);
    return NULL;
}

/* Returns whether a client that is redirected to this address can reach this process. Loopback
 * addresses count as reachable, because all processes may run on one machine. */
static bool address_is_reachable(const char *address) {
    char host[INET6_ADDRSTRLEN] = "";
    struct in_addr four;
    struct in6_addr six;
    const char *at = strstr(address, "://");
    if (strncmp(address, "inproc:", 7) == 0 || !at) return false;
    if (strncmp(address, "ipc:", 4) == 0) return true;
    at += 3;
    bool bracket = *at == '[';
    size_t bytes = bracket ? strcspn(++at, "]") : strcspn(at, ":/");
    snprintf(host, sizeof host, "%.*s", (int)bytes, at);
    bool any = bytes == 0 || strcmp(host, "*") == 0;
    if (inet_pton(AF_INET, host, &four) == 1) any = four.s_addr == htonl(INADDR_ANY);
    if (inet_pton(AF_INET6, host, &six) == 1) any = IN6_IS_ADDR_UNSPECIFIED(&six);
    return !any;
}

/* Checks that clients can reach the address of a process that takes part in an election. */
static enum exit_status election_check_address(struct service *service) {
    return service->settings->election_key && !address_is_reachable(service->advertise)
               ? server_fatal_error(
                     EXIT_USAGE,
                     "others cannot reach '%s': give --advertise with a host that they can reach",
                     service->advertise)
               : CONTINUE;
}

/* Loads the configuration for the first time. Precondition: the thread has not started. */
static bool election_fetch_config(struct service *service, doorman_config **out,
                                  struct config_problems *problems) {
    struct election *election = service->election;
    if (!service->settings->config_key) return false;
    if (!server_etcd_load_config(&election->etcd, service->settings->config_key, election->revision,
                                 out, problems)) {
        server_set_problem(problems, "", election->etcd.error.text);
        problems->is_unreachable = true;
    }
    return *out != NULL;
}

/* Wakes the thread, which then loads the configuration again. */
static void election_reload_config(struct service *service) {
    if (!service->settings->config_key) return;
    server_lock(&service->lock);
    service->election->reload = true;
    pthread_cond_signal(&service->election->wake);
    server_unlock(&service->lock);
}

static void election_drains(struct service *service) {
    if (service->election && service->election->started) {
        pthread_cond_signal(&service->election->wake);
    }
}

/* Prepares calls to etcd, if there is --etcd. Does not start the thread. */
static enum exit_status election_load(struct service *service) {
    enum exit_status exit_status = CONTINUE;
    if (service->settings->etcd.count > 0) {
        exit_status = server_etcd_init(&service->election->etcd, service->settings);
        service->election->etcd.errors = service->counters.etcd_errors;
    }
    return exit_status;
}

static enum exit_status election_start(struct service *service) {
    struct election *election = service->election;
    if (service->settings->etcd.count == 0) return CONTINUE;
    doorman_election_options options = {.address = service->advertise,
                                        .ttl = service->settings->election_ttl * DOORMAN_SECOND};
    doorman_error error;
    server_etcd_set_election_deadline(&election->etcd, service->settings);
    if (service->settings->election_key &&
        doorman_election_init(&election->core, &options, &error, doorman_clock()) != DOORMAN_OK) {
        return server_fatal_error(EXIT_USAGE, "--advertise: %s", error.text);
    }
    election->reachable = true;
    election->started = server_condition_init(&election->wake) &&
                        pthread_create(&election->thread, NULL, election_main, service) == 0;
    return election->started
               ? CONTINUE
               : server_fatal_error(EXIT_ERROR,
                                    "cannot start the election: out of memory or threads");
}

/* Lets the thread delete the key and end. Cancels its call to etcd, unless that deletes the key.
 * Precondition: the lock is held. */
static void election_end(struct service *service) {
    assert(server_lock_is_held(&service->lock));
    struct election *election = service->election;
    if (!election || !election->started) return; /* NULL: there was no memory */
    service->stopping = election->stops = true;
    if (!election->resigns) server_etcd_cancel(&election->etcd, true);
    pthread_cond_signal(&election->wake);
}

/* Calls election_end, and waits for the end of the thread. May be called after an incomplete start,
 * and a second time. */
static void election_stop(struct service *service) {
    struct election *election = service->election;
    if (election && election->started) {
        server_lock(&service->lock);
        election_end(service);
        server_unlock(&service->lock);
        pthread_join(election->thread, NULL);
        pthread_cond_destroy(&election->wake);
        election->started = false;
    }
    if (election) server_etcd_uninit(&election->etcd);
}

/* Returns why a restart would fail or lose something now, or NULL. Without etcd, a new process has
 * at best the configuration of --config-cache. */
static const char *election_hinders(const struct service *service) {
    bool fails = service->settings->config_key && service->election_status.etcd.since;
    return fails ? "etcd, which has the configuration, cannot be reached" : NULL;
}

const struct server_part server_part_etcd = {SERVER_PART_STATE(election),
                                             .name = "etcd",
                                             .check = server_etcd_check_settings,
                                             .load = election_load,
                                             .load_config = election_fetch_config,
                                             .reload_config = election_reload_config,
                                             .listen = election_check_address,
                                             .hinders = election_hinders,
                                             .serve = election_start,
                                             .drains = election_drains,
                                             .gives_back = election_end,
                                             .stopping = election_stop,
                                             .stop = election_stop};
