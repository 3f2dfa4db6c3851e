/* doorman_server, part ETCD: the election of the master, and the configuration in etcd. This file
 * changes the mastership of the server object, the configuration, and service->election.
 *
 * One thread polls etcd every second. If the TTL is shorter than five seconds, the thread polls
 * five times within the TTL. It reads two keys. The election key holds the address of the master
 * and is attached to the master's etcd lease (V2). The other key holds the configuration (V1). The
 * thread takes the lock of the service only to apply what it has read.
 *
 *     state      meaning                     event                               next state
 *     NO_MASTER  no known master             our lease holds the key             MASTER
 *                                            another lease holds the key         STANDBY
 *     STANDBY    another process is master,  as above                            MASTER, STANDBY
 *                at `address`                no key, or no response for the TTL  NO_MASTER
 *     MASTER     this process is master      our lease is renewed                MASTER
 *                                            another lease holds the key         STANDBY
 *                                            no key, or the last renewal is      NO_MASTER
 *                                            too old
 *     RESIGNED   this process has left       none: every state changes to this
 *                the election                one when the process stops
 *
 * A master answers as master until 0.95 TTL after it sent its last successful renewal. etcd counts
 * the whole TTL, from the time at which it receives the renewal. So no other process can get the
 * key earlier, if the rates of the clocks differ by less than 5 %. The server object compares
 * `until` with the clock at each request. So a process does not answer as master after a long sleep
 * or without etcd, even before this thread runs.
 *
 * A new master starts to learn when it becomes master (R8). It cannot start earlier, because it
 * creates the key in the same poll in which it first finds no key. */
#include "server.h"

#include <arpa/inet.h>
#include <assert.h>

#define ELECTION_PERIOD DOORMAN_SECOND
#define ELECTION_PERIOD_NO_MASTER (DOORMAN_SECOND / 10) /* a process is about to win */

enum election_state { ELECTION_NO_MASTER, ELECTION_STANDBY, ELECTION_MASTER, ELECTION_RESIGNED };

/* The state of the election in this process, and its link to etcd. Only the thread of the election
 * uses these members. The exceptions are the members that the lock of the service guards. */
struct election {
    pthread_t thread;
    bool started;
    pthread_cond_t wake;
    struct etcd etcd;
    char lease[24];               /* the lease id in etcd, a number; "": none */
    doorman_time master_until;    /* when mastership ends, if this lease holds the key */
    char revision[ETCD_REVISION]; /* of the configuration that was loaded last */
    bool reachable;               /* the last call to etcd succeeded */
    bool reload;                  /* reload the configuration; the lock guards this and the rest */
    enum election_state state;    /* only election_set_state changes it */
    doorman_time until;           /* when the state ends, unless it is renewed */
    char address[DOORMAN_ID_BYTES_MAX + 1]; /* of the master; "": not known */
};

/* The result of one poll of etcd. */
struct poll_result {
    enum election_state state;
    doorman_time until; /* when the result becomes invalid */
    char address[DOORMAN_ID_BYTES_MAX + 1];
};

static void election_log(const struct service *service, const struct poll_result *result) {
    static const char *const texts[] = {
        [ELECTION_NO_MASTER] = "no known master",
        [ELECTION_STANDBY] = "another server is the master",
        [ELECTION_MASTER] = "this server is the master",
        [ELECTION_RESIGNED] = "this server has left the election",
    };
    server_log(service->settings, LEVEL_INFO, texts[result->state], "key",
               service->settings->election_key, result->address[0] ? "master" : LOG_END,
               result->address, LOG_END);
}

/* Changes the state of the election, and logs the change. No other function changes the state.
 * Precondition: the lock is held. */
static void election_set_state(struct service *service, const struct poll_result *to,
                               doorman_time now) {
    struct election *election = service->election;
    assert(election->state != ELECTION_RESIGNED);
    doorman_mastership mastership = {.address = to->address[0] ? to->address : NULL,
                                     .until = to->state == ELECTION_MASTER ? to->until : 0};
    if (doorman_server_set_master(service->server, &mastership, now) != DOORMAN_OK) {
        mastership.address = NULL; /* the address is not valid, so do not redirect to it */
        doorman_server_set_master(service->server, &mastership, now);
    }
    bool was_master = election->state == ELECTION_MASTER;
    bool expired = was_master && now >= election->until;
    /* A server that loses mastership frees all its leases, so it returns memory. */
    if (was_master && to->state != ELECTION_MASTER) service->ended_lease_count += TRIM_LEASES;
    bool changed =
        expired || to->state != election->state || strcmp(to->address, election->address) != 0;
    election->state = to->state;
    election->until = to->until;
    snprintf(election->address, sizeof election->address, "%s", to->address);
    if (changed) election_log(service, to);
}

/* Renews the etcd lease, or creates one. Sets `lease` and `master_until` from the response.
 *   ttl       seconds
 *   returns   false: etcd does not answer */
static bool election_renew(struct election *election, int ttl) {
    doorman_time sent = doorman_clock();
    bool has_lease = election->lease[0] != 0;
    struct etcd *etcd = &election->etcd;
    cJSON *response =
        has_lease
            ? server_etcd_call(etcd, "/v3/lease/keepalive", "{\"ID\":\"%s\"}", election->lease)
            : server_etcd_call(etcd, "/v3/lease/grant", "{\"TTL\":\"%d\"}", ttl);
    const cJSON *lease =
        has_lease ? cJSON_GetObjectItemCaseSensitive(response, "result") : response;
    long long seconds = strtoll(server_etcd_number(lease, "TTL"), NULL, 10);
    if (response) {
        const char *id = seconds > 0 ? server_etcd_number(lease, "ID") : "";
        snprintf(election->lease, sizeof election->lease, "%s", id);
    }
    if (seconds > TTL_MAX) seconds = TTL_MAX;
    if (seconds > 0) election->master_until = sent + seconds * (DOORMAN_SECOND / 100 * 95);
    cJSON_Delete(response);
    return response != NULL;
}

/* Creates the key, unless it exists.
 *   created   whether this call created the key; false too if etcd does not answer
 *   returns   false: etcd does not answer */
static bool election_create_key(struct service *service, bool *created) {
    struct election *election = service->election;
    char key[ETCD_KEY_TEXT], value[ETCD_KEY_TEXT];
    server_base64_write(key, service->settings->election_key);
    server_base64_write(value, service->advertise);
    cJSON *response = server_etcd_call(
        &election->etcd, "/v3/kv/txn",
        "{\"compare\":[{\"key\":\"%s\",\"target\":\"CREATE\",\"create_revision\":\"0\"}],"
        "\"success\":[{\"request_put\":{\"key\":\"%s\",\"value\":\"%s\",\"lease\":\"%s\"}}]}",
        key, key, value, election->lease);
    *created = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(response, "succeeded"));
    cJSON_Delete(response);
    return response != NULL;
}

/* Tries to create the key. Precondition: the key does not exist. A process that was master at the
 * last poll does not try, because another process may have held the key since that poll. So its
 * state becomes NO_MASTER first. If it wins at the next poll, it learns again. */
static bool election_campaign(struct service *service, struct poll_result *out) {
    struct election *election = service->election;
    bool reachable = true, created = false;
    if (election->state != ELECTION_MASTER) {
        if (!election->lease[0]) {
            reachable = election_renew(election, service->settings->election_ttl);
        }
        if (reachable && election->lease[0]) reachable = election_create_key(service, &created);
    }
    if (created) out->state = ELECTION_MASTER;
    return reachable;
}

/* Finds out which process holds the key. The key may have the address of this process, but another
 * lease. Such a key is from an earlier process at this address. The address of the key is then not
 * used, because clients would be redirected to this process. */
static void election_read_key(struct service *service, const cJSON *entry,
                              struct poll_result *out) {
    struct election *election = service->election;
    size_t bytes = 0;
    bool owns_key =
        election->lease[0] && strcmp(server_etcd_number(entry, "lease"), election->lease) == 0;
    out->state = owns_key ? ELECTION_MASTER : ELECTION_STANDBY;
    if (!owns_key) election->lease[0] = 0; /* no longer needed; it expires in etcd */
    if (!server_etcd_read_value(entry, out->address, sizeof out->address, &bytes) ||
        strcmp(out->address, service->advertise) == 0) {
        out->address[0] = 0;
    }
}

/* Polls etcd once. Renews the lease, if there is one, and reads the key. If the key does not exist,
 * tries to create the key.
 *   returns   false: etcd does not answer */
static bool election_poll(struct service *service, struct poll_result *out) {
    struct election *election = service->election;
    const cJSON *entry = NULL;
    cJSON *response = NULL;
    int ttl = service->settings->election_ttl;
    doorman_time sent = doorman_clock();
    *out = (struct poll_result){.state = ELECTION_NO_MASTER};
    bool reachable = !election->lease[0] || election_renew(election, ttl);
    if (reachable) {
        response = server_etcd_get(&election->etcd, service->settings->election_key, &entry);
        reachable = response != NULL;
    }
    if (entry) {
        election_read_key(service, entry, out);
    } else if (reachable) {
        reachable = election_campaign(service, out);
    }
    cJSON_Delete(response);
    bool master = out->state == ELECTION_MASTER;
    out->until = master ? election->master_until : sent + ttl * DOORMAN_SECOND;
    if (master) snprintf(out->address, sizeof out->address, "%s", service->advertise);
    return reachable;
}

/* Polls etcd once and applies the result. The state becomes NO_MASTER if the result is already too
 * old when it arrives. The state also becomes NO_MASTER if etcd does not answer and the last result
 * is too old.
 *   returns   false: etcd does not answer */
static bool election_step(struct service *service) {
    const struct election *election = service->election;
    struct poll_result result;
    bool reachable = election_poll(service, &result);
    pthread_mutex_lock(&service->lock);
    doorman_time now = doorman_clock();
    bool old = now >= (reachable ? result.until : election->until);
    if (old) result = (struct poll_result){.state = ELECTION_NO_MASTER, .until = DOORMAN_NEVER};
    if (reachable || old) election_set_state(service, &result, now);
    pthread_mutex_unlock(&service->lock);
    return reachable;
}

/* Loads the configuration if its key has changed (V1). An invalid configuration is logged only
 * once, because its revision is then known. */
static bool election_load_config(struct service *service) {
    struct election *election = service->election;
    doorman_config *config = NULL;
    doorman_error error;
    bool reachable = server_etcd_load_config(&election->etcd, service->settings->config_key,
                                             election->revision, &config, &error);
    if (config || error.text[0]) server_apply_config(service, config, &error);
    return reachable;
}

/* Logs whether etcd answers, if that has changed. Precondition: the lock is held. */
static void election_log_etcd(struct service *service, bool reachable) {
    struct election *election = service->election;
    const char *member = election->etcd.members->items[election->etcd.at];
    if (!reachable && !service->stopping) {
        service->warnings[WARNING_ETCD_UNREACHABLE].unlogged_count++;
        server_log_warning(service, WARNING_ETCD_UNREACHABLE, "key",
                           service->settings->election_key ? service->settings->election_key
                                                           : service->settings->config_key,
                           election->etcd.error.text, doorman_clock());
    } else if (reachable && !election->reachable) {
        server_log(service->settings, LEVEL_INFO, "etcd answers", "etcd", member, LOG_END);
    }
    election->reachable = reachable;
}

/* Sleeps until the next poll. The last poll began at `started_at`. Precondition: the lock is held.
 * The lock is released during the sleep. */
static void election_sleep(struct service *service, doorman_time started_at) {
    struct election *election = service->election;
    doorman_time period = service->settings->election_ttl * DOORMAN_SECOND / 5;
    bool nobody = service->settings->election_key && election->state == ELECTION_NO_MASTER;
    if (period > ELECTION_PERIOD) period = ELECTION_PERIOD;
    if (nobody && election->reachable) period = ELECTION_PERIOD_NO_MASTER;
    doorman_time duration = started_at + period - doorman_clock();
    if (duration > 0 && !service->stopping) {
        server_condition_wait(&election->wake, &service->lock, duration);
    }
}

/* Resigns as master, then deletes the key, so that another process can become master at once. If
 * etcd does not answer, the key ends with its etcd lease. */
static void election_resign(struct service *service) {
    struct election *election = service->election;
    const struct poll_result result = {.state = ELECTION_RESIGNED, .until = DOORMAN_NEVER};
    pthread_mutex_lock(&service->lock);
    election_set_state(service, &result, doorman_clock());
    pthread_mutex_unlock(&service->lock);
    if (election->lease[0]) {
        election->etcd.tries = 1;
        server_etcd_cancel(&election->etcd, false);
        cJSON_Delete(server_etcd_call(&election->etcd, "/v3/lease/revoke", "{\"ID\":\"%s\"}",
                                      election->lease));
    }
}

static void *election_main(void *argument) {
    struct service *service = (struct service *)argument;
    struct election *election = service->election;
    pthread_mutex_lock(&service->lock);
    while (!service->stopping) {
        doorman_time started_at = doorman_clock();
        if (election->reload) election->revision[0] = 0;
        election->reload = false;
        pthread_mutex_unlock(&service->lock);
        bool reachable = !service->settings->election_key || election_step(service);
        if (reachable && service->settings->config_key) reachable = election_load_config(service);
        pthread_mutex_lock(&service->lock);
        election_log_etcd(service, reachable);
        election_sleep(service, started_at);
    }
    pthread_mutex_unlock(&service->lock);
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

enum exit_status server_election_check_address(const struct service *service) {
    return service->settings->election_key && !address_is_reachable(service->advertise)
               ? server_fatal_error(
                     EXIT_USAGE,
                     "others cannot reach '%s': give --advertise with a host that they can reach",
                     service->advertise)
               : CONTINUE;
}

enum exit_status server_election_create(struct service *service) {
    enum exit_status exit_status = CONTINUE;
    if (service->settings->etcd.count > 0) {
        service->election = (struct election *)calloc(1, sizeof *service->election);
        if (service->election) {
            exit_status = server_etcd_init(&service->election->etcd, service->settings);
        } else {
            exit_status = server_fatal_error(EXIT_ERROR, "out of memory");
        }
    }
    return exit_status;
}

bool server_election_fetch_config(struct service *service, doorman_config **out,
                                  doorman_error *error) {
    struct election *election = service->election;
    if (!server_etcd_load_config(&election->etcd, service->settings->config_key, election->revision,
                                 out, error)) {
        *error = election->etcd.error;
    }
    return *out != NULL;
}

void server_election_reload_config(struct service *service) {
    pthread_mutex_lock(&service->lock);
    service->election->reload = true;
    pthread_cond_signal(&service->election->wake);
    pthread_mutex_unlock(&service->lock);
}

enum exit_status server_election_start(struct service *service) {
    struct election *election = service->election;
    server_etcd_set_election_deadline(&election->etcd, service->settings);
    election->reachable = true;
    election->until = DOORMAN_NEVER;
    election->started = server_condition_init(&election->wake) &&
                        pthread_create(&election->thread, NULL, election_main, service) == 0;
    return election->started
               ? CONTINUE
               : server_fatal_error(EXIT_ERROR,
                                    "cannot start the election: out of memory or threads");
}

void server_election_stop(struct service *service) {
    struct election *election = service->election;
    if (election && election->started) {
        pthread_mutex_lock(&service->lock);
        service->stopping = true;
        server_etcd_cancel(&election->etcd, true);
        pthread_cond_signal(&election->wake);
        pthread_mutex_unlock(&service->lock);
        pthread_join(election->thread, NULL);
        pthread_cond_destroy(&election->wake);
    }
    if (election) server_etcd_uninit(&election->etcd);
    free(election);
    service->election = NULL;
}
