/* doorman_server, part WARNINGS: warnings about events that peers can cause at any rate (V6). This
 * file changes service->warnings, service->sender and counters. The lock is held when a function is
 * called, except for server_warning_text, server_peer_write, server_log_peer and functions that log
 * handshakes.
 *
 * A kind of warning is logged at once, and then at most once a minute with the number of events.
 * The line describes the last event, except for permits (see below). When a problem such as a dead
 * parent ends, its line for this minute is dropped, because it would come after the line about the
 * end, which has the number of failures. Each of the first ids that two processes use has a kind of
 * its own. Further ids share one kind. Refused messages have a kind for each method, so that many
 * bad messages of one method do not hide those of another.
 *
 * When a parent is gone, all leases of the node end, most of them at the same time. So the line
 * about them comes a moment later, and names their resources, as many as have room. Leases that end
 * later have a line of their own, at least 10 seconds after that line.
 *
 * Permits come at a higher rate than other events. So a line about permits describes the first
 * event since the last line, and each further event is only counted.
 *
 * The line about a shared id has the addresses of its last two peers. The line about a holder that
 * does not confirm its leases has the address of its last peer. */
#include "log.h"

#include <arpa/inet.h>

#define WARNING_INTERVAL                                                                           \
    (60 * DOORMAN_SECOND) /* between two lines of the same repeated warning (V6) */
#define ENDED_INTERVAL (10 * DOORMAN_SECOND) /* between two lines about leases from the parent */

#define CHILD_ENDED_TEXT                                                                           \
    "all leases of a child node have ended, because it is silent; its capacity goes to others"

static const char *const warning_texts[WARNING_COUNT] = {
    [DOORMAN_EVENT_UNMATCHED] = "a request names a resource that no template matches",
    [DOORMAN_EVENT_UNKNOWN_CLAIM] =
        "a holder claims a lease that this server does not know; normal after a lost message",
    [DOORMAN_EVENT_EXCESS_CLAIM] = "a holder claims more than it was granted",
    [DOORMAN_EVENT_EXPIRED] = "a lease has expired",
    [DOORMAN_EVENT_FULL] = "a request was refused, because the server or a resource is full",
    [DOORMAN_EVENT_UNKNOWN_KIND] = "the parent names an algorithm that this server does not know",
    [DOORMAN_EVENT_SHARED_ID] = "two processes seem to use one id: further ids, this is the last",
    [DOORMAN_EVENT_UNCONFIRMED] =
        "a holder does not confirm its leases, so it holds back capacity after each cut",
    [DOORMAN_EVENT_LEASE_ENDED] =
        "leases from the parent have ended, so clients of these resources get no capacity",
    [DOORMAN_EVENT_OVERLOADED] =
        "servers report overload of a resource, so its capacity in force was lowered",
    [DOORMAN_EVENT_CHILD_ENDED] = CHILD_ENDED_TEXT,
    [WARNING_MESSAGE_REFUSED] = "a message was refused",
    [WARNING_PARENT_UNREACHABLE] = "the parent cannot be reached",
    [WARNING_PARENT_RESPONSE] = "the parent refuses the request, or its response is invalid",
    [WARNING_PARENT_MASTER] = "the parent knows no master, so this node gets no leases",
    [WARNING_NODE_SHARED] =
        "another process uses the name of this node too, says the parent: give it another --node",
    [WARNING_ETCD_UNREACHABLE] = "etcd cannot be reached, or refuses the call",
    [WARNING_HANDSHAKE] =
        "a TLS handshake has failed: plain HTTP, or a certificate that was refused or is expired",
    [WARNING_NNG_HANDSHAKE] =
        "TLS handshakes at --listen have failed; nng does not report the peers",
    [WARNING_PEER_CERTIFICATE] = "a peer has no valid certificate that --tls-ca has signed",
    [WARNING_TOKEN] = "a request has a wrong token",
    [WARNING_ROLE] = "a token does not have the role that its request needs",
    [WARNING_HTTP_CROWDED] =
        "few HTTP connections are free, so the server closes each one after its response",
    [WARNING_BANS_EVICTED] =
        "bans were ended early to make room for others: raise max_keys of this limit, or memory",
    [WARNING_PERMIT_UNMATCHED] = "a permit names a resource that no template with limits matches",
    [WARNING_KEY_EVICTED] =
        "a limit has max_keys keys, so a key that was in use was forgotten, and starts again",
    [WARNING_CHILD_SILENT] = "a child node is silent: it has missed two refreshes",
    [WARNING_CHILD_ENDED] = CHILD_ENDED_TEXT,
    [WARNING_SHARED_ID] = "two processes seem to use one id, and each uses the whole share",
};

struct warning_pair {
    const char *key; /* a constant string, for example "resource"; NULL: no pair */
    char value[sizeof(doorman_error)];
};

#define WARNING_HOSTS_MAX 32

struct repeated_warning {
    uint64_t unlogged_count;
    size_t host_count; /* different hosts of peers since the last line, up to WARNING_HOSTS_MAX */
    uint32_t hosts[WARNING_HOSTS_MAX];           /* their hashes */
    doorman_time quiet_until;                    /* no line of this kind before this time */
    struct warning_pair pairs[WARNING_PAIR_MAX]; /* they describe the last event */
};

#define SUSPECTS_MAX 64

/* What this part keeps. The lock of the service guards it. */
struct warnings {
    struct repeated_warning list[WARNING_COUNT];
    struct suspect suspects[SUSPECTS_MAX];
    size_t suspect_count;
    uint64_t evicted_bans; /* bans that had ended early at the last look */
};

/* Returns the text of a kind. Kinds that differ only in what they count have the same text. */
const char *server_warning_text(int kind) {
    bool is_refusal = kind >= WARNING_MESSAGE_REFUSED && kind < WARNING_PARENT_UNREACHABLE;
    if (is_refusal) kind = WARNING_MESSAGE_REFUSED;
    if (kind > WARNING_SHARED_ID) kind = WARNING_SHARED_ID;
    assert(warning_texts[kind]);
    return warning_texts[kind];
}

/* Logs a repeated warning if it is due. */
static void warning_update(struct service *service, int kind, doorman_time now) {
    assert(kind >= 0 && kind < WARNING_COUNT);
    struct repeated_warning *warning = &service->warnings->list[kind];
    const struct warning_pair *pairs = warning->pairs;
    if (warning->unlogged_count > 0 && now >= warning->quiet_until) {
        char count[24];
        snprintf(count, sizeof count, "%" PRIu64, warning->unlogged_count);
        server_log(service->settings, LEVEL_WARNING, server_warning_text(kind), "count", count,
                   pairs[0].key, pairs[0].value, pairs[1].key, pairs[1].value, pairs[2].key,
                   pairs[2].value, pairs[3].key, pairs[3].value, pairs[4].key, pairs[4].value,
                   pairs[5].key, pairs[5].value, LOG_END);
        warning->unlogged_count = 0;
        warning->host_count = 0;
        bool is_ended = kind == DOORMAN_EVENT_LEASE_ENDED;
        warning->quiet_until = now + (is_ended ? ENDED_INTERVAL : WARNING_INTERVAL);
    }
}

/* Pairs without a value are left out. The others are stored one after the other, because the first
 * NULL key ends the line. */
void server_log_warning(struct service *service, int kind,
                        const char *const pairs[WARNING_PAIR_MAX][2], doorman_time now) {
    struct repeated_warning *warning = &service->warnings->list[kind];
    size_t count = 0;
    assert(server_lock_is_held(&service->lock));
    for (size_t i = 0; i < WARNING_PAIR_MAX; i++) {
        struct warning_pair *pair = &warning->pairs[count];
        if (!pairs[i][1]) continue;
        pair->key = pairs[i][0];
        snprintf(pair->value, sizeof pair->value, "%s", pairs[i][1]);
        count++;
    }
    if (count < WARNING_PAIR_MAX) warning->pairs[count].key = NULL;
    warning->unlogged_count++;
    warning_update(service, kind, now);
}

void server_end_warning(struct service *service, int kind) {
    assert(server_lock_is_held(&service->lock));
    service->warnings->list[kind].unlogged_count = 0;
    service->warnings->list[kind].host_count = 0;
}

static bool peer_format(const nng_sockaddr *peer, char text[PEER_BYTES]) {
    char host[INET6_ADDRSTRLEN] = "";
    bool is_4 = peer->s_family == NNG_AF_INET, is_6 = peer->s_family == NNG_AF_INET6;
    if (is_4) {
        inet_ntop(AF_INET, &peer->s_in.sa_addr, host, sizeof host);
        snprintf(text, PEER_BYTES, "%s:%u", host, (unsigned)ntohs(peer->s_in.sa_port));
    } else if (is_6) {
        inet_ntop(AF_INET6, peer->s_in6.sa_addr, host, sizeof host);
        snprintf(text, PEER_BYTES, "[%s]:%u", host, (unsigned)ntohs(peer->s_in6.sa_port));
    }
    return is_4 || is_6;
}

void server_peer_write(const struct peer *peer, char text[PEER_BYTES]) {
    nng_sockaddr address = {.s_family = NNG_AF_UNSPEC};
    uint64_t process = 0;
    if (peer->text) {
        snprintf(text, PEER_BYTES, "%s", peer->text);
        return;
    }
    int error = nng_pipe_get_addr(peer->pipe, NNG_OPT_REMADDR, &address);
    if (error == 0 && peer_format(&address, text)) return;
    bool is_ipc = nng_pipe_get_uint64(peer->pipe, NNG_OPT_IPC_PEER_PID, &process) == 0;
    if (is_ipc) {
        snprintf(text, PEER_BYTES, "ipc:pid:%" PRIu64, process);
    } else {
        snprintf(text, PEER_BYTES, "unknown");
    }
}

#define HOSTS_TEXT 40

/* Notes the host of a peer, and writes how many different hosts there are. Each connection has a
 * port of its own, so the port does not count. */
static void warning_note_host(struct repeated_warning *warning, const char *peer,
                              char count[HOSTS_TEXT]) {
    const char *end = strrchr(peer, ':');
    uint32_t hash = 2166136261U; /* FNV-1a */
    size_t at = 0;
    for (; *peer && peer != end; peer++) hash = (hash ^ (unsigned char)*peer) * 16777619U;
    while (at < warning->host_count && warning->hosts[at] != hash) at++;
    bool full = at == WARNING_HOSTS_MAX;
    if (!full) warning->hosts[at] = hash;
    if (!full && at == warning->host_count) warning->host_count++;
    snprintf(count, HOSTS_TEXT, "%s%zu", full ? "more than " : "", warning->host_count);
}

void server_log_peer(struct service *service, int kind, const char *peer, const char *token) {
    char hosts[HOSTS_TEXT];
    server_lock(&service->lock);
    warning_note_host(&service->warnings->list[kind], peer, hosts);
    const char *const pairs[WARNING_PAIR_MAX][2] = {
        {"peer", peer}, {"hosts", hosts}, {"token", token}};
    server_log_warning(service, kind, pairs, doorman_clock());
    server_unlock(&service->lock);
}

void server_log_handshake(struct service *service, bool is_certificate, const char *peer) {
    counter *failures = service->counters.authentication_failures;
    if (is_certificate) {
        server_counter_add(&failures[FAILED_CERTIFICATE], 1);
        server_log_peer(service, WARNING_PEER_CERTIFICATE, peer, NULL);
    } else {
        server_counter_add(&failures[FAILED_HANDSHAKE], 1);
        server_log_peer(service, WARNING_HANDSHAKE, peer, NULL);
    }
}

void server_log_nng_handshakes(struct service *service, uint64_t count) {
    struct repeated_warning *warning = &service->warnings->list[WARNING_NNG_HANDSHAKE];
    assert(count > 0);
    server_counter_add(&service->counters.authentication_failures[FAILED_NNG_HANDSHAKE], count);
    server_lock(&service->lock);
    warning->unlogged_count += count;
    warning_update(service, WARNING_NNG_HANDSHAKE, doorman_clock());
    server_unlock(&service->lock);
}

/* ---- suspects ---- */
/* A holder is a suspect if two processes seem to use its id, or if it does not confirm its leases.
 * The server remembers the peers of suspects, so that an operator finds their machines. It does not
 * remember the peers of other holders, because there may be a million of them. The table is small:
 * if it is full, a new suspect takes the place of the one whose last event is oldest. All leases of
 * a holder share one entry. A suspect that behaves well again keeps its entry, but pages show the
 * entry only beside a lease that the server object reports as shared or unconfirmed. */

static struct suspect *suspects_find(struct warnings *warnings, const char *holder_id,
                                     bool is_server) {
    for (size_t i = 0; i < warnings->suspect_count; i++) {
        struct suspect *suspect = &warnings->suspects[i];
        bool is_same = suspect->is_server == is_server && strcmp(suspect->id, holder_id) == 0;
        if (is_same) return suspect;
    }
    return NULL;
}

const struct suspect *server_suspect_find(const struct service *service, const char *holder_id,
                                          bool is_server) {
    assert(server_lock_is_held(&service->lock));
    return suspects_find(service->warnings, holder_id, is_server);
}

/* Returns the entry of a holder, and makes it if there is none. */
static struct suspect *suspects_add(struct warnings *warnings, const char *holder_id,
                                    bool is_server) {
    struct suspect *suspect = suspects_find(warnings, holder_id, is_server);
    if (suspect) return suspect;
    suspect = warnings->suspects;
    for (size_t i = 1; i < warnings->suspect_count; i++) {
        if (warnings->suspects[i].seen_at < suspect->seen_at) suspect = &warnings->suspects[i];
    }
    if (warnings->suspect_count < SUSPECTS_MAX) {
        suspect = &warnings->suspects[warnings->suspect_count++];
    }
    *suspect = (struct suspect){.is_server = is_server};
    snprintf(suspect->id, sizeof suspect->id, "%s", holder_id);
    return suspect;
}

/* Notes the peer of a suspect. If the last peer had another address, that address becomes
 * other_peer. */
static const struct suspect *suspect_note(struct service *service, const char *holder_id,
                                          doorman_time now) {
    const struct sender *sender = &service->sender;
    struct suspect *suspect = suspects_add(service->warnings, holder_id, sender->is_server);
    char text[PEER_BYTES];
    if (!suspect || !sender->peer) return suspect;
    const char *token = sender->peer->token;
    server_peer_write(sender->peer, text);
    if (strcmp(text, suspect->peer) != 0) {
        memcpy(suspect->other_peer, suspect->peer, sizeof suspect->peer);
        memcpy(suspect->peer, text, sizeof text);
    }
    snprintf(suspect->token, sizeof suspect->token, "%s", token ? token : "");
    suspect->seen_at = now;
    return suspect;
}

/* ---- events ---- */

/* Returns the kind of warning for a shared id: the kind that has this id, or else a kind without a
 * line in the last minute. If all these kinds are in use, returns DOORMAN_EVENT_SHARED_ID, the kind
 * of further ids. */
static int warning_find_shared_id(const struct service *service, const char *holder_id,
                                  doorman_time now) {
    int found = DOORMAN_EVENT_SHARED_ID;
    for (int kind = WARNING_SHARED_ID; kind < WARNING_COUNT; kind++) {
        const struct repeated_warning *warning = &service->warnings->list[kind];
        bool is_same = strcmp(warning->pairs[1].value, holder_id) == 0;
        bool is_free = warning->unlogged_count == 0 && now >= warning->quiet_until;
        if (is_same || (is_free && found == DOORMAN_EVENT_SHARED_ID)) found = kind;
        if (is_same) break;
    }
    return found;
}

static const char *text_or_null(const char *text) { return text && *text ? text : NULL; }

/* Returns whether a list of names has this name. */
static bool list_has(const char *list, const char *name) {
    const size_t bytes = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += bytes) {
        bool begins = at == list || (at - list >= 2 && memcmp(at - 2, ", ", 2) == 0);
        if (begins && (!at[bytes] || strncmp(at + bytes, ", ", 2) == 0)) return true;
    }
    return false;
}

/* Notes a lease of this node that has ended. A later update logs all such leases in one line, at
 * least ENDED_INTERVAL after the last one. The line names each resource once, if it has room. */
static void warning_add_ended_lease(struct service *service, const char *resource_id) {
    static const char more[] = ", ...";
    struct repeated_warning *warning = &service->warnings->list[DOORMAN_EVENT_LEASE_ENDED];
    struct warning_pair *names = &warning->pairs[0];
    if (warning->unlogged_count++ == 0) names->value[0] = 0;
    names->key = "resources";
    names[1].key = NULL;
    size_t bytes = strlen(names->value), added = strlen(resource_id) + 2;
    if (list_has(names->value, resource_id) || list_has(names->value, "...")) return;
    bool fits = bytes + added + sizeof more <= sizeof names->value;
    snprintf(names->value + bytes, sizeof names->value - bytes, "%s%s", bytes > 0 ? ", " : "",
             fits ? resource_id : "...");
}

/* Logs an event of the server object. The line about a suspect also names its last peer, and for a
 * shared id also other_peer. Precondition: the lock is held. */
static void warning_add_event(struct service *service, const doorman_event *event,
                              doorman_time now) {
    int kind = (int)event->kind;
    bool is_shared = event->kind == DOORMAN_EVENT_SHARED_ID, is_server = service->sender.is_server;
    bool is_suspect = is_shared || event->kind == DOORMAN_EVENT_UNCONFIRMED;
    const struct suspect *suspect =
        is_suspect ? suspect_note(service, event->holder_id, now) : NULL;
    if (is_shared) kind = warning_find_shared_id(service, event->holder_id, now);
    const char *const pairs[WARNING_PAIR_MAX][2] = {
        {"resource", event->resource_id},
        {"holder", event->holder_id},
        {"kind", is_suspect && is_server ? "server" : NULL},
        {"peer", suspect ? text_or_null(suspect->peer) : NULL},
        {"other_peer", suspect && is_shared ? text_or_null(suspect->other_peer) : NULL},
        {"token", suspect ? text_or_null(suspect->token) : NULL}};
    server_log_warning(service, kind, pairs, now);
}

/* Warns of bans that were ended early since the last call, and names the limit that has lost the
 * most bans in this way so far. */
static void warning_note_bans(struct service *service, doorman_time now) {
    const doorman_permits *permits =
        service->server ? doorman_server_permits(service->server) : NULL;
    doorman_permits_info info = {.bans_evicted = service->warnings->evicted_bans};
    doorman_permits_limit limit, most = {.limit = NULL};
    doorman_cursor cursor = {0};
    if (permits) doorman_permits_read(permits, &info);
    uint64_t count = info.bans_evicted - service->warnings->evicted_bans;
    service->warnings->evicted_bans = info.bans_evicted;
    if (count == 0) return;
    while (doorman_permits_next_limit(permits, &cursor, &limit)) {
        if (limit.bans_evicted > most.bans_evicted) most = limit;
    }
    const char *const pairs[WARNING_PAIR_MAX][2] = {{"template", most.identifier_glob},
                                                    {"limit", most.limit}};
    service->warnings->list[WARNING_BANS_EVICTED].unlogged_count += count - 1;
    server_log_warning(service, WARNING_BANS_EVICTED, pairs, now);
}

static void warnings_update(struct service *service, doorman_time now) {
    warning_note_bans(service, now);
    for (int kind = 0; kind < WARNING_COUNT; kind++) warning_update(service, kind, now);
}

static bool warnings_on_event(struct service *service, const doorman_event *event) {
    if (event->kind == DOORMAN_EVENT_EXPIRED) {
        char amount[32];
        service->ended_lease_count++;
        snprintf(amount, sizeof amount, "%.15g", event->amount);
        server_log(service->settings, LEVEL_DEBUG, warning_texts[event->kind], "resource",
                   event->resource_id, "holder", event->holder_id, "amount", amount, LOG_END);
    } else if (event->kind == DOORMAN_EVENT_LEASE_ENDED) {
        warning_add_ended_lease(service, event->resource_id);
    } else {
        if (event->kind == DOORMAN_EVENT_UNMATCHED) {
            server_counter_add(&service->counters.unmatched, 1);
        } else if (event->kind == DOORMAN_EVENT_SHARED_ID) {
            service->sender.has_shared_id = true;
            server_counter_add(&service->counters.shared_id[service->sender.is_server], 1);
        }
        warning_add_event(service, event, doorman_clock());
    }
    return true;
}

static void warnings_on_permit_event(struct service *service, const doorman_permit_event *event) {
    bool unmatched = event->kind == DOORMAN_PERMIT_UNMATCHED;
    int kind = unmatched ? WARNING_PERMIT_UNMATCHED : WARNING_KEY_EVICTED;
    struct repeated_warning *warning = &service->warnings->list[kind];
    if (!unmatched && event->amount <= 0) return; /* the key was fresh, so nothing was lost */
    if (warning->unlogged_count > 0) {
        warning->unlogged_count++;
        return;
    }
    char used[32];
    snprintf(used, sizeof used, "%.3g", event->amount);
    const char *const pairs[WARNING_PAIR_MAX][2] = {{"limit", event->limit},
                                                    {"resource", event->resource_id},
                                                    {"key", text_or_null(event->key)},
                                                    {"used", unmatched ? NULL : used}};
    server_log_warning(service, kind, pairs, doorman_clock());
}

const struct server_part server_part_warnings = {
    SERVER_PART_STATE(warnings), .update = warnings_update, .event = warnings_on_event,
    .permit_event = warnings_on_permit_event,
    .permit_events = 1U << DOORMAN_PERMIT_UNMATCHED | 1U << DOORMAN_PERMIT_KEY_EVICTED};
