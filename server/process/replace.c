/* doorman_server, part REPLACE: a process whose file descriptors leak replaces itself. nng 1.5.2
 * can lose connections whose peers leave while responses to them are under way. Each lost
 * connection keeps its descriptor until the process ends. Peers can cause thousands of these in a
 * second, and a process without free descriptors accepts no connection. So the server stops as at
 * SIGTERM, and then runs its program again: with the same path, flags, environment and process id.
 *
 * Once a second, or less often if there are very many descriptors, the main thread asks poll about
 * all of them. poll knows which ones are open, and which have a peer that has left. nng itself
 * counts lost connections as open. A peer that leaves is normal, and its descriptor is closed at
 * once. A descriptor that stays open after its peer has left is leaked.
 *
 *     what a look finds                            then
 *     under --replace-at % of the limit are open   nothing
 *     less than a quarter of these is leaked       nothing: honest connections use the descriptors,
 *                                                  and would come back
 *     a leak, at fewer than LOOKS looks in a row   nothing yet
 *     the last replacement was in the last ten     a warning each minute. A process that leaks so
 *     minutes, or a restart would fail or lose     fast would serve for seconds only, and one that
 *     something now (hinders of server_part)       cannot start again would be gone
 *     otherwise                                    the process replaces itself
 *
 * Without --state a replacement forgets the counters of permits, as any restart does. That is still
 * better than a process that accepts no client. Only a restart frees the descriptors, and without a
 * replacement it would come only after an outage. With --replace-at 0 the process never replaces
 * itself.
 *
 * The variable DOORMAN_REPLACED tells the new run how often the process has replaced itself, when
 * it last did so (doorman_clock), and the ports at which it listened. An address of --listen,
 * --http or --http-health with port 0 gets the same port again, so clients find the server. The
 * program is found by its path. So if a new version was installed there, the new version runs, as
 * after any other restart.
 *
 * The stop can hang in nng because of what has leaked. Then a signal handler runs the program. A
 * handler may not allocate memory, so the arguments of execve are prepared before. */
#include "../server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#define PERCENT_DEFAULT 80
#define LOOKS 5
#define LEAKED_PART 4 /* a leak: at least 1 / LEAKED_PART of the open descriptors */
#define REPLACE_INTERVAL (600 * DOORMAN_SECOND)
#define LOG_INTERVAL (60 * DOORMAN_SECOND)
#define BLOCK 1024 /* descriptors in one call of poll */
#define PAUSE 100  /* a look takes at most 1 / PAUSE of the time of the main thread */

#ifndef POLLRDHUP /* Linux and FreeBSD have it. Others report a peer that has left as POLLHUP */
#define POLLRDHUP 0
#endif

#define VARIABLE "DOORMAN_REPLACED"
#define PORT_COUNT (ADDRESS_MAX + 2) /* of --listen, and then of --http and --http-health */
enum { PORT_HTTP = ADDRESS_MAX, PORT_HEALTH };

/* What this part keeps. Only the main thread uses it. */
struct replace {
    unsigned looks;        /* how many of the last looks in a row have found a leak */
    doorman_time look_at;  /* the time of the next look */
    doorman_time quiet_to; /* no warning before this time */
};

/* What execve needs to run the program again. A signal handler uses it too. */
static struct rerun {
    bool is_ready;       /* atomic; the next call of replace_end runs the program */
    char path[PATH_MAX]; /* of the program; "": not known */
    char **argv, **envp;
    int end; /* all open descriptors are below it */
    char variable[64 + 6 * PORT_COUNT];
    char http[300], http_health[300]; /* --http and --http-health with the ports of the last run */
    uint64_t count;                   /* how often the process has replaced itself until now */
    doorman_time replaced_at;         /* when it last did */
} rerun;

/* ---- descriptors ---------------------------------------------------------------------------- */

/* Counts open and leaked descriptors, up to the first block of numbers without an open one. The
 * system always gives the lowest free number, so there are hardly any open ones above such a block.
 * The cost therefore does not depend on the limit, which can be a billion.
 *   descriptors   out: open, leaked, limit
 *   returns       a number above those of the descriptors that were counted
 *   cost          0.35 us for each open descriptor: 6 ms for 18,000 */
static int descriptors_count(struct descriptors *descriptors) {
    struct pollfd block[BLOCK];
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    getrlimit(RLIMIT_NOFILE, &limit);
    descriptors->limit = limit.rlim_cur > INT_MAX ? INT_MAX : (size_t)limit.rlim_cur;
    descriptors->open = descriptors->leaked = 0;
    const int size = descriptors->limit < BLOCK ? (int)descriptors->limit : BLOCK;
    int first = 0;
    for (int found = 1; found > 0; first += size) {
        found = 0;
        for (int i = 0; i < size; i++) block[i] = (struct pollfd){first + i, POLLRDHUP, 0};
        if (size == 0 || poll(block, (nfds_t)size, 0) < 0) break;
        for (int i = 0; i < size; i++) {
            bool is_open = !(block[i].revents & POLLNVAL);
            bool is_left = block[i].revents & (POLLRDHUP | POLLHUP | POLLERR);
            found += is_open;
            descriptors->leaked += is_open && is_left && first + i > STDERR_FILENO;
        }
        descriptors->open += (size_t)found;
    }
    return first;
}

/* ---- ports ---------------------------------------------------------------------------------- */

/* Returns where the port of an address starts; NULL: it has none. */
static const char *port_find(const char *address) {
    const char *scheme = strstr(address, "://"), *host = scheme ? scheme + 3 : address;
    if (*host == '[') host += strcspn(host, "]");
    const char *colon = *host == '/' ? NULL : strchr(host, ':');
    return colon ? colon + 1 : NULL;
}

static unsigned port_read(const char *address) {
    const char *port = address ? port_find(address) : NULL;
    return port ? (unsigned)strtoul(port, NULL, 10) : 0;
}

/* If an address has port 0, writes it with the port of the last run instead.
 *   returns   false: the address stays as it is */
static bool port_replace(const char *address, unsigned port, char *text, size_t room) {
    const char *given = address ? port_find(address) : NULL;
    bool is_free = given && given[0] == '0' && (given[1] == 0 || given[1] == '/');
    if (!is_free || port == 0) return false;
    int bytes = snprintf(text, room, "%.*s%u%s", (int)(given - address), address, port, given + 1);
    return bytes > 0 && (size_t)bytes < room;
}

/* Gives the addresses with port 0 the ports of the last run. */
static enum exit_status ports_adopt(struct settings *settings, const unsigned ports[PORT_COUNT]) {
    char text[NNG_MAXADDRLEN + 8];
    for (size_t i = 0; i < settings->listen.count; i++) {
        char **item = &settings->listen.items[i];
        if (!port_replace(*item, ports[i], text, sizeof text)) continue;
        free(*item);
        *item = strdup(text);
        if (!*item) return server_fatal_error(EXIT_ERROR, "out of memory");
    }
    if (port_replace(settings->http, ports[PORT_HTTP], rerun.http, sizeof rerun.http)) {
        settings->http = rerun.http;
    }
    if (port_replace(settings->http_health, ports[PORT_HEALTH], rerun.http_health,
                     sizeof rerun.http_health)) {
        settings->http_health = rerun.http_health;
    }
    return CONTINUE;
}

/* ---- the next run --------------------------------------------------------------------------- */

/* Writes what the next run must know, and makes its environment. Returns false if memory runs
 * out. */
static bool rerun_prepare(const struct service *service, doorman_time now) {
    unsigned ports[PORT_COUNT] = {0};
    size_t count = 0, kept = 0, room = sizeof rerun.variable;
    for (size_t i = 0; i < service->url_count; i++) ports[i] = port_read(service->urls[i]);
    ports[PORT_HTTP] = port_read(service->http_address);
    ports[PORT_HEALTH] = service->http_health_port;
    size_t bytes = (size_t)snprintf(rerun.variable, room, VARIABLE "=%" PRIu64 " %" PRId64,
                                    rerun.count + 1, (int64_t)now);
    for (int i = 0; i < PORT_COUNT; i++) {
        bytes += (size_t)snprintf(rerun.variable + bytes, room - bytes, " %u", ports[i]);
    }
    while (environ[count]) count++;
    rerun.envp = (char **)calloc(count + 2, sizeof *rerun.envp);
    if (!rerun.envp) return false;
    for (size_t i = 0; i < count; i++) {
        bool is_old = strncmp(environ[i], VARIABLE "=", strlen(VARIABLE "=")) == 0;
        if (!is_old) rerun.envp[kept++] = environ[i];
    }
    rerun.envp[kept] = rerun.variable;
    return true;
}

/* Finds the program of this process. Without /proc, the name by which it was called must be a
 * path. */
static void rerun_find_program(const char *name) {
    ssize_t bytes = readlink("/proc/self/exe", rerun.path, sizeof rerun.path - 1);
    if (bytes > 0) {
        rerun.path[bytes] = 0;
    } else if (!strchr(name, '/') || !realpath(name, rerun.path)) {
        rerun.path[0] = 0;
    }
}

/* Reads what the last run has left. A number that is missing is 0. */
static enum exit_status replace_adopt(struct settings *settings, char **argv) {
    unsigned ports[PORT_COUNT];
    const char *text = getenv(VARIABLE);
    char *at = NULL;
    rerun.argv = argv;
    rerun_find_program(argv[0]);
    if (!text || !*text) return CONTINUE;
    rerun.count = strtoull(text, &at, 10);
    rerun.replaced_at = strtoll(at, &at, 10);
    for (int i = 0; i < PORT_COUNT; i++) ports[i] = (unsigned)strtoul(at, &at, 10);
    return ports_adopt(settings, ports);
}

/* If the process replaces itself, runs the program in its place, unless SIGTERM or SIGINT is
 * pending. These and SIGHUP stay blocked: a signal that comes now waits until the next run can
 * handle it. Otherwise the next run would die of the signal. An alarm would outlast execve too, so
 * it is cancelled. */
static void replace_end(void) {
    static const char failed[] = "doorman_server: cannot run itself again\n";
    sigset_t signals;
    if (!__atomic_load_n(&rerun.is_ready, __ATOMIC_ACQUIRE)) return;
    sigpending(&signals);
    if (sigismember(&signals, SIGTERM) == 1 || sigismember(&signals, SIGINT) == 1) return;
    alarm(0);
    for (int fd = STDERR_FILENO + 1; fd < rerun.end; fd++) (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_SETMASK, &signals, NULL);
    execve(rerun.path, rerun.argv, rerun.envp);
    (void)!write(STDERR_FILENO, failed, sizeof failed - 1);
    _exit(EXIT_ERROR);
}

/* ---- the part ------------------------------------------------------------------------------- */

/* Returns --replace-at; -1: it is not valid. */
static int replace_percent(const struct settings *settings) {
    const char *text = settings->replace_at;
    size_t digits = text ? strspn(text, "0123456789") : 0;
    if (!text) return PERCENT_DEFAULT;
    int percent = digits > 0 && digits <= 3 && !text[digits] ? (int)strtol(text, NULL, 10) : -1;
    return percent <= 100 ? percent : -1;
}

static enum exit_status replace_check(const struct settings *settings) {
    return replace_percent(settings) >= 0
               ? CONTINUE
               : server_usage_error("--replace-at is '%s', not a whole number from 0 to 100",
                                    settings->replace_at);
}

static enum exit_status replace_open(struct service *service) {
    rerun.end = descriptors_count(&service->descriptors);
    service->descriptors.replacement_count = rerun.count;
    service->descriptors.replaced_at = rerun.replaced_at;
    return CONTINUE;
}

/* Logs that the process has replaced itself, if it has. */
static enum exit_status replace_serve(struct service *service) {
    char count[24], seconds[32];
    double duration = (double)(doorman_clock() - rerun.replaced_at) / (double)DOORMAN_SECOND;
    if (rerun.count == 0) return CONTINUE;
    snprintf(count, sizeof count, "%" PRIu64, rerun.count);
    snprintf(seconds, sizeof seconds, "%.1f", duration);
    server_log(service->settings, LEVEL_WARNING, "this process has replaced itself", "replacements",
               count, "after_seconds", seconds, LOG_END);
    return CONTINUE;
}

/* Returns why the process must not replace itself now; "": it may. Precondition: the lock is
 * held. */
static doorman_error replace_find_hindrance(const struct service *service, doorman_time now) {
    assert(server_lock_is_held(&service->lock));
    const struct config_load *load = &service->last_load;
    const char *why = load->error[0] ? load->error : NULL;
    for (int i = 0; i < LOAD_FAILURE_COUNT && !why; i++) {
        if (load->failures[i][0]) why = load->failures[i];
    }
    EACH_PART(part, hinders) if (!why) why = (*part)->hinders(service);
    if (rerun.count > 0 && now - rerun.replaced_at < REPLACE_INTERVAL) {
        why = "it has done so in the last ten minutes";
    } else if (access(rerun.path, X_OK) != 0) {
        why = "its program cannot be run";
    }
    doorman_error hindrance = {0};
    snprintf(hindrance.text, sizeof hindrance.text, "%.500s", why ? why : "");
    return hindrance;
}

static void replace_log(const struct service *service, const char *message, const char *why) {
    char open[24], leaked[24], limit[24];
    snprintf(open, sizeof open, "%zu", service->descriptors.open);
    snprintf(leaked, sizeof leaked, "%zu", service->descriptors.leaked);
    snprintf(limit, sizeof limit, "%zu", service->descriptors.limit);
    server_log(service->settings, LEVEL_WARNING, message, "open", open, "leaked", leaked, "limit",
               limit, why[0] ? "because" : LOG_END, why, LOG_END);
}

/* Lets the process replace itself because of a leak, or logs why it must not now. */
static void replace_act(struct service *service, doorman_time now) {
    struct replace *replace = service->replace;
    struct trouble *trouble = &service->descriptors.trouble;
    server_lock(&service->lock);
    doorman_error why = replace_find_hindrance(service, now);
    if (!why.text[0] && !rerun_prepare(service, now))
        why = (doorman_error){.text = "out of memory"};
    if (why.text[0]) server_trouble_set(trouble, why.text, now);
    service->replaces = !why.text[0];
    server_unlock(&service->lock);
    if (service->replaces) {
        __atomic_store_n(&rerun.is_ready, true, __ATOMIC_RELEASE);
        replace_log(service, "file descriptors leak, so the process replaces itself", "");
    } else if (now >= replace->quiet_to) {
        replace->quiet_to = now + LOG_INTERVAL;
        replace_log(service, "file descriptors leak, and the process must not replace itself now",
                    why.text);
    }
}

static void replace_work(struct service *service, doorman_time now) {
    struct descriptors *seen = &service->descriptors, look;
    size_t percent = (size_t)replace_percent(service->settings);
    if (now < service->replace->look_at) return;
    rerun.end = descriptors_count(&look);
    service->replace->look_at = now + PAUSE * (doorman_clock() - now);
    bool is_full = percent > 0 && 100 * look.open >= percent * look.limit;
    bool is_leak = is_full && LEAKED_PART * look.leaked >= look.open;
    server_lock(&service->lock);
    seen->open = look.open, seen->leaked = look.leaked, seen->limit = look.limit;
    if (!is_leak) seen->trouble.since = 0;
    server_unlock(&service->lock);
    service->replace->looks = is_leak ? service->replace->looks + 1 : 0;
    if (service->replace->looks >= LOOKS) replace_act(service, now);
}

const struct server_part server_part_replace = {SERVER_PART_STATE(replace), .name = "REPLACE",
                                                .check = replace_check,     .adopt = replace_adopt,
                                                .open = replace_open,       .serve = replace_serve,
                                                .work = replace_work,       .end = replace_end};
