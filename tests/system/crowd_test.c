/* More clients over HTTP than the server has connections for (V5). All clients get their answers,
 * and a probe of the health is answered meanwhile. If the connection of a client ends before the
 * first byte of a response, the client connects and tries again. */
#define _GNU_SOURCE
#include "http.h"

#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

#define REQUEST                                                                                    \
    "POST /v1/discovery HTTP/1.1\r\n" HOST JSON "Content-Length: 2\r\n"                            \
    "\r\n{}"

enum { CLIENT_MIN = 400, CLIENT_MAX = 1000, ANSWERS = 10, PROBES = 3 };

struct client {
    int fd; /* -1: not connected */
    char response[4096];
    size_t bytes;
    int answer_count;
    bool is_reused; /* the connection has had a response */
    bool waits;     /* a request has no response yet */
};

struct crowd {
    const struct fixture *fixture;
    struct client clients[CLIENT_MAX];
    int count, lost_count, close_count;
    int probe_count, failure_count; /* atomic; of requests for the health */
    bool ends;                      /* atomic */
};

static struct crowd crowd;

/* Raises the limit of open files of this process, and starts a server. Sets crowd.count to the
 * server's limit of connections plus `more`. */
static struct fixture crowd_start(int more) {
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    struct fixture fixture = fixture_start(CONFIG("100", ""), NULL);
    int limit = (int)metric(&fixture, "doorman_server_http_connections_limit");
    memset(&crowd, 0, sizeof crowd);
    crowd.count = limit + more;
    assert_true(crowd.count > 0 && crowd.count <= CLIENT_MAX);
    for (int i = 0; i < crowd.count; i++) crowd.clients[i].fd = -1;
    return fixture;
}

static void client_send(struct client *client) {
    if (client->fd < 0) {
        client->fd = raw_connect(&crowd.fixture->http);
        client->is_reused = false;
    }
    client->bytes = 0;
    client->waits = true;
    (void)raw_send(client->fd, REQUEST, strlen(REQUEST));
}

static void client_close(struct client *client) {
    if (client->fd >= 0) close(client->fd);
    client->fd = -1;
}

static bool client_is_complete(const struct client *client) {
    const char *head_end = strstr(client->response, "\r\n\r\n");
    const char *length = strstr(client->response, "Content-Length: ");
    return head_end && length &&
           client->bytes >= (size_t)(head_end + 4 - client->response) + (size_t)atoi(length + 16);
}

/* Reads what has arrived. Returns false if the connection has ended. */
static bool client_receive(struct client *client) {
    ssize_t got = recv(client->fd, client->response + client->bytes,
                       sizeof client->response - 1 - client->bytes, MSG_DONTWAIT);
    if (got > 0) client->bytes += (size_t)got;
    client->response[client->bytes] = 0;
    return got > 0;
}

/* Handles bytes for a client, or the end of its connection. Returns whether the client has received
 * an answer. */
static bool client_step(struct client *client) {
    bool complete = false, ended = !client_receive(client);
    if (ended && !client->waits) {
        client_close(client); /* an idle connection may close */
    } else if (ended) {
        assert_int_equal(client->bytes, 0); /* a response is never cut off */
        crowd.lost_count++;
        if (!client->is_reused) print_message("a new connection was closed\n");
        client_close(client);
        client_send(client);
    } else if (client_is_complete(client)) {
        complete = client->is_reused = true;
        client->waits = false;
        assert_int_equal(code_of(client->response), 200);
        client->answer_count++;
        if (strstr(client->response, "\r\nConnection: close\r\n")) {
            crowd.close_count++;
            client_close(client);
        }
    }
    return complete;
}

/* Lets all clients send requests until each has `wanted` answers.
 *   busy   a client with all its answers sends further requests */
static void crowd_run(int wanted, bool busy) {
    static struct pollfd polls[CLIENT_MAX];
    int done = 0;
    time_t end = time(NULL) + TIMEOUT_MS / 1000;
    while (done < crowd.count && time(NULL) < end) {
        for (int i = 0; i < crowd.count; i++) {
            polls[i] = (struct pollfd){.fd = crowd.clients[i].fd, .events = POLLIN};
        }
        poll(polls, (nfds_t)crowd.count, 100);
        done = 0;
        for (int i = 0; i < crowd.count; i++) {
            struct client *client = &crowd.clients[i];
            bool answered = polls[i].revents && client_step(client);
            if (answered && (busy || client->answer_count < wanted)) client_send(client);
            done += client->answer_count >= wanted;
        }
    }
    assert_int_equal(done, crowd.count);
}

/* Asks for the health, each time on a new connection, until the crowd ends. */
static void *probe_main(void *argument) {
    unsigned port = 0;
    (void)argument;
    sscanf(crowd.fixture->http.url, "tcp://127.0.0.1:%u", &port);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const struct timeval timeout = {TIMEOUT_MS / 1000, 0};
    static const char request[] = "GET /healthz HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n";
    while (!__atomic_load_n(&crowd.ends, __ATOMIC_RELAXED)) {
        char response[16] = "";
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
        bool answered = connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                        raw_send(fd, request, sizeof request - 1) &&
                        recv(fd, response, 12, MSG_WAITALL) == 12 && code_of(response) == 200;
        __atomic_add_fetch(answered ? &crowd.probe_count : &crowd.failure_count, 1,
                           __ATOMIC_RELAXED);
        close(fd);
        sleep_ms(20);
    }
    return NULL;
}

/* V5: each client always has a request on its way, so no connection is ever idle for long. */
TEST(more_busy_clients_than_connections_all_get_their_answers) {
    struct fixture fixture = crowd_start(100);
    pthread_t thread;
    if (crowd.count < CLIENT_MIN) {
        for (int i = crowd.count; i < CLIENT_MIN; i++) crowd.clients[i].fd = -1;
        crowd.count = CLIENT_MIN;
    }
    crowd.fixture = &fixture;
    assert_int_equal(pthread_create(&thread, NULL, probe_main, NULL), 0);
    for (int i = 0; i < crowd.count; i++) client_send(&crowd.clients[i]);
    crowd_run(ANSWERS, true);
    for (int i = 0; i < TIMEOUT_MS; i += 20) { /* all clients are silent, with open connections */
        if (__atomic_load_n(&crowd.probe_count, __ATOMIC_RELAXED) >= PROBES) break;
        sleep_ms(20);
    }
    __atomic_store_n(&crowd.ends, true, __ATOMIC_RELAXED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    print_message("%d clients, %d closed by their last response, %d lost, %d probes\n", crowd.count,
                  crowd.close_count, crowd.lost_count, crowd.probe_count);
    assert_int_equal(crowd.failure_count, 0);
    assert_true(crowd.probe_count >= PROBES && crowd.close_count > 0);
    process_await(fixture.server.process, "few HTTP connections are free", 1);
    for (int i = 0; i < crowd.count; i++) client_close(&crowd.clients[i]);
    server_stop(&fixture.server);
}

/* V5: requests that arrive while the process is stopped lie unread on idle connections, beside new
 * connections that need the place of idle connections. No connection with such a request is
 * closed. */
TEST(no_connection_with_an_unread_request_is_closed) {
    enum { NEW = 100 }; /* fewer than the system's queue of new connections can hold */
    struct fixture fixture = crowd_start(0);
    crowd.fixture = &fixture;
    int kept = crowd.count - crowd.count / 8 - 2; /* the server is not crowded yet */
    crowd.count = kept;
    for (int i = 0; i < kept; i++) client_send(&crowd.clients[i]);
    crowd_run(1, false);
    assert_int_equal(crowd.close_count, 0);
    sleep_ms(600); /* long enough for the server to call them idle; a longer time changes nothing */
    assert_int_equal(kill(fixture.server.process->pid, SIGSTOP), 0);
    for (int i = 0; i < kept; i++) client_send(&crowd.clients[i]);
    for (int i = 0; i < NEW; i++) {
        struct client *client = &crowd.clients[crowd.count++];
        *client = (struct client){.fd = -1, .answer_count = 1};
        client_send(client);
    }
    sleep_ms(600);
    assert_int_equal(kill(fixture.server.process->pid, SIGCONT), 0);
    crowd_run(2, false);
    assert_int_equal(crowd.lost_count, 0);
    for (int i = 0; i < crowd.count; i++) client_close(&crowd.clients[i]);
    server_stop(&fixture.server);
}
