/* A real etcd for system tests, and a proxy in front of it. Tests that use it are skipped if etcd
 * is not installed.
 *
 * Each etcd has free ports and keeps its data in a temporary folder. An etcd with certificates
 * accepts only TLS connections. */
#ifndef DOORMAN_TESTS_ETCD_FIXTURE_H
#define DOORMAN_TESTS_ETCD_FIXTURE_H

#include "harness.h"

#include <poll.h>
#include <pthread.h>

/* ---- etcd ----------------------------------------------------------------------------------- */

struct etcd {
    struct process *process;
    int port;
    char url[64], peer[64], data[96];
    const char *token_ttl;    /* seconds; NULL: etcd's default */
    const char *certificates; /* a folder filled by certificates_make; NULL: no TLS */
    bool asks_clients;        /* clients need a certificate of the same folder */
    bool has_users;           /* etcd_enable_users was called */
};

/* Finds a program on PATH. Returns false if it is not there. */
static inline bool find_program(const char *name, char path[256]) {
    const char *at = getenv("PATH");
    bool found = false;
    while (!found && at && *at) {
        size_t bytes = strcspn(at, ":");
        snprintf(path, 256, "%.*s/%s", (int)bytes, at, name);
        found = access(path, X_OK) == 0;
        at += bytes + (at[bytes] == ':');
    }
    return found;
}

/* Makes an authority, ca.pem. The authority signs two certificates, which servers at 127.0.0.1 and
 * clients can use: "own", and "nameless", which has no subject. "locked.key" is own.key with a
 * password. */
static inline void certificates_make(const char *folder) {
    char command[2048];
    snprintf(command, sizeof command,
             "cd %s && { ec='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'; "
             "echo subjectAltName=IP:127.0.0.1 >names; "
             "openssl req -x509 $ec -days 2 -keyout ca.key -out ca.pem -subj /CN=authority && "
             "for name in own nameless; do "
             "  openssl req $ec -keyout $name.key -out $name.csr "
             "    -subj $(test $name = own && echo /CN=own || echo /) && "
             "  openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial "
             "    -days 2 -extfile names -out $name.pem || exit 1; "
             "done; "
             "openssl ec -aes128 -passout pass:locked -in own.key -out locked.key; } "
             ">certificates.log 2>&1",
             folder);
    assert_int_equal(system(command), 0);
}

static inline void etcd_start(struct etcd *etcd) {
    char program[256], cluster[96], cert[128], key[128], ca[128];
    assert_true(find_program("etcd", program));
    snprintf(cluster, sizeof cluster, "default=%s", etcd->peer);
    const char *arguments[ARGUMENT_MAX] = {"--data-dir",
                                           etcd->data,
                                           "--listen-client-urls",
                                           etcd->url,
                                           "--advertise-client-urls",
                                           etcd->url,
                                           "--listen-peer-urls",
                                           etcd->peer,
                                           "--initial-advertise-peer-urls",
                                           etcd->peer,
                                           "--initial-cluster",
                                           cluster};
    size_t count = 12;
    if (etcd->token_ttl) {
        arguments[count++] = "--auth-token-ttl";
        arguments[count++] = etcd->token_ttl;
    }
    if (etcd->certificates) {
        snprintf(cert, sizeof cert, "--cert-file=%s/own.pem", etcd->certificates);
        snprintf(key, sizeof key, "--key-file=%s/own.key", etcd->certificates);
        arguments[count++] = cert;
        arguments[count++] = key;
    }
    if (etcd->asks_clients) {
        snprintf(ca, sizeof ca, "--trusted-ca-file=%s/ca.pem", etcd->certificates);
        arguments[count++] = ca;
        arguments[count++] = "--client-cert-auth";
    }
    process_launch(etcd->process, program, arguments, NULL);
    process_await(etcd->process, "ready to serve client requests", 1);
}

static inline void etcd_stop(struct etcd *etcd) {
    process_signal(etcd->process, SIGKILL);
    process_wait(etcd->process);
}

static inline void program_require(const char *name) {
    char program[256];
    require(find_program(name, program), name);
}

/* Starts an etcd, or skips the test.
 *   options   the members from token_ttl to asks_clients; NULL: none */
static inline void etcd_require_with(struct etcd *etcd, const struct etcd *options) {
    program_require("etcd");
    program_require("etcdctl");
    *etcd = options ? *options : (struct etcd){.process = NULL};
    const char *scheme = etcd->certificates ? "https" : "http";
    etcd->process = process_new();
    etcd->port = port_free();
    snprintf(etcd->url, sizeof etcd->url, "%s://127.0.0.1:%d", scheme, etcd->port);
    snprintf(etcd->peer, sizeof etcd->peer, "http://127.0.0.1:%d", port_free());
    snprintf(etcd->data, sizeof etcd->data, "%s/data", etcd->process->folder);
    etcd_start(etcd);
}

static inline void etcd_require(struct etcd *etcd) { etcd_require_with(etcd, NULL); }

/* Runs etcdctl, as root if etcd has users.
 *   more   its arguments, up to a NULL */
static inline void etcd_control(const struct etcd *etcd, const char *const *more) {
    char program[256], ca[128], cert[128], key[128];
    const char *arguments[ARGUMENT_MAX] = {"--endpoints", etcd->url};
    const char *const environment[] = {"ETCDCTL_API=3", NULL};
    size_t count = 2;
    assert_true(find_program("etcdctl", program));
    if (etcd->certificates) {
        snprintf(ca, sizeof ca, "--cacert=%s/ca.pem", etcd->certificates);
        snprintf(cert, sizeof cert, "--cert=%s/own.pem", etcd->certificates);
        snprintf(key, sizeof key, "--key=%s/own.key", etcd->certificates);
        arguments[count++] = ca;
        arguments[count++] = cert;
        arguments[count++] = key;
    }
    if (etcd->has_users) arguments[count++] = "--user=root:root-password";
    for (size_t i = 0; more[i]; i++) arguments[count++] = more[i];
    struct process *process = process_new();
    process_launch(process, program, arguments, environment);
    process_end(process, 0);
    process_remove_last();
}

static inline void etcd_put(const struct etcd *etcd, const char *key, const char *value) {
    etcd_control(etcd, (const char *[]){"put", key, value, NULL});
}

/* Returns the value of a key and a newline, or "" if there is no such key. The caller frees it. */
static inline char *etcd_read_lines(const struct etcd *etcd, const char *key) {
    char program[256];
    assert_true(find_program("etcdctl", program));
    const char *const environment[] = {"ETCDCTL_API=3", NULL};
    const char *const arguments[] = {"--endpoints",        etcd->url, "get",
                                     "--print-value-only", key,       NULL};
    struct process *process = process_new();
    process_launch(process, program, arguments, environment);
    process_end(process, 0);
    char *value = file_read(process->out);
    process_remove_last();
    return value;
}

/* Returns the first line of the value of a key. The caller frees it. */
static inline char *etcd_read(const struct etcd *etcd, const char *key) {
    char *value = etcd_read_lines(etcd, key);
    value[strcspn(value, "\n")] = 0;
    return value;
}

/* Turns on authentication. The user "doorman" has access to the keys "doorman/...". */
static inline void etcd_enable_users(struct etcd *etcd, const char *password) {
    char user[128];
    snprintf(user, sizeof user, "doorman:%s", password);
    const char *const commands[][6] = {
        {"user", "add", "root:root-password"},
        {"user", "grant-role", "root", "root"},
        {"role", "add", "doorman"},
        {"role", "grant-permission", "doorman", "readwrite", "doorman/", "--prefix"},
        {"user", "add", user},
        {"user", "grant-role", "doorman", "doorman"},
        {"auth", "enable"}};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const char *arguments[7] = {NULL};
        memcpy(arguments, commands[i], sizeof commands[i]);
        etcd_control(etcd, arguments);
    }
    etcd->has_users = true;
}

/* ---- a connection to etcd that can be cut --------------------------------------------------- */

#define PAIR_MAX 64

/* A TCP proxy in a separate thread. While it is cut, it accepts and forwards nothing and closes
 * nothing, like a network partition. It can also lose answers: see proxy_lose. */
struct proxy {
    pthread_t thread;
    int listener, port;
    int to;         /* atomic; the port of the server */
    int accepted;   /* atomic; the number of connections so far */
    bool cut, stop; /* atomic */
    int pairs[PAIR_MAX][2];
    bool is_mute[PAIR_MAX]; /* the next answer of the pair is lost */
    int pair_count;
    const char *loses; /* a text of the requests whose answers are lost */
    int lose_count;    /* atomic; how many answers are still lost */
    char url[64];
};

static inline int tcp_connect(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static inline void proxy_accept(struct proxy *proxy) {
    int from = accept(proxy->listener, NULL, NULL);
    int to = from >= 0 && proxy->pair_count < PAIR_MAX
                 ? tcp_connect(__atomic_load_n(&proxy->to, __ATOMIC_RELAXED))
                 : -1;
    if (from >= 0) __atomic_add_fetch(&proxy->accepted, 1, __ATOMIC_RELAXED);
    if (to >= 0) {
        proxy->is_mute[proxy->pair_count] = false;
        proxy->pairs[proxy->pair_count][0] = from;
        proxy->pairs[proxy->pair_count++][1] = to;
    } else if (from >= 0) {
        close(from);
    }
}

/* Closes a connection. shutdown comes first, because a server that was started meanwhile may have
 * copies of the file descriptors. */
static inline void proxy_close(struct proxy *proxy, int pair) {
    shutdown(proxy->pairs[pair][0], SHUT_RDWR);
    shutdown(proxy->pairs[pair][1], SHUT_RDWR);
    close(proxy->pairs[pair][0]);
    close(proxy->pairs[pair][1]);
    int last = --proxy->pair_count;
    memmove(proxy->pairs[pair], proxy->pairs[last], sizeof proxy->pairs[pair]);
    proxy->is_mute[pair] = proxy->is_mute[last];
}

/* Forwards the bytes that have come from one end. Returns false if the connection must be closed:
 * an end has closed it, or the bytes are an answer that proxy_lose loses. */
static inline bool proxy_forward(struct proxy *proxy, int pair, int end) {
    char bytes[16384 + 1];
    ssize_t got = recv(proxy->pairs[pair][end], bytes, sizeof bytes - 1, 0);
    if (got <= 0) return false;
    bytes[got] = 0;
    if (end == 0 && __atomic_load_n(&proxy->lose_count, __ATOMIC_ACQUIRE) > 0 &&
        strstr(bytes, proxy->loses)) {
        proxy->is_mute[pair] = true;
    }
    if (end == 1 && proxy->is_mute[pair]) {
        __atomic_sub_fetch(&proxy->lose_count, 1, __ATOMIC_RELAXED);
        return false;
    }
    return raw_send(proxy->pairs[pair][!end], bytes, (size_t)got);
}

static inline void *proxy_main(void *argument) {
    struct proxy *proxy = (struct proxy *)argument;
    while (!__atomic_load_n(&proxy->stop, __ATOMIC_RELAXED)) {
        struct pollfd polls[1 + 2 * PAIR_MAX] = {{.fd = proxy->listener, .events = POLLIN}};
        int count = proxy->pair_count;
        for (int i = 0; i < 2 * count; i++) {
            polls[1 + i] = (struct pollfd){.fd = proxy->pairs[i / 2][i % 2], .events = POLLIN};
        }
        if (__atomic_load_n(&proxy->cut, __ATOMIC_RELAXED)) {
            sleep_ms(10);
        } else if (poll(polls, (nfds_t)(1 + 2 * count), 10) > 0) {
            for (int i = count; i-- > 0;) {
                const struct pollfd *ends = &polls[1 + 2 * i];
                bool open = !ends[0].revents || proxy_forward(proxy, i, 0);
                open = open && (!ends[1].revents || proxy_forward(proxy, i, 1));
                if (!open) proxy_close(proxy, i);
            }
            if (polls[0].revents) proxy_accept(proxy);
        }
    }
    return NULL;
}

static inline void proxy_start(struct proxy *proxy, const struct etcd *etcd) {
    *proxy = (struct proxy){.to = etcd->port};
    proxy->listener = port_listen(&proxy->port);
    snprintf(proxy->url, sizeof proxy->url, "%s://127.0.0.1:%d",
             etcd->certificates ? "https" : "http", proxy->port);
    assert_int_equal(pthread_create(&proxy->thread, NULL, proxy_main, proxy), 0);
}

static inline void proxy_cut(struct proxy *proxy, bool cut) {
    __atomic_store_n(&proxy->cut, cut, __ATOMIC_RELAXED);
}

/* Loses the next `count` answers to requests that contain a text, and closes their connections. The
 * requests reach etcd, which does what they ask for. */
static inline void proxy_lose(struct proxy *proxy, const char *text, int count) {
    proxy->loses = text;
    __atomic_store_n(&proxy->lose_count, count, __ATOMIC_RELEASE);
}

static inline void proxy_stop(struct proxy *proxy) {
    __atomic_store_n(&proxy->stop, true, __ATOMIC_RELAXED);
    pthread_join(proxy->thread, NULL);
    while (proxy->pair_count > 0) proxy_close(proxy, 0);
    close(proxy->listener);
}

#endif
