/* A client in the event loop of its application: one thread with poll(2), without nng or an agent.
 *
 *     make
 *     build/doorman_server --config config.example.json &
 *     build/examples/event_loop [http://127.0.0.1:15050 [SECONDS]]
 *
 * It makes up to 400 queries a second. Each request to the server is a POST to its HTTP port, over
 * a connection of its own. No call may block. So the host must be a numeric address, because a name
 * lookup could block. Without a server the program continues with its lease, and then with the safe
 * capacity. */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#include "doorman.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct exchange { /* a request over HTTP/1.0; the server closes after the response */
    doorman_upstream *upstream;
    uint64_t sequence;
    int socket; /* -1: there is no connection */
    doorman_buffer body;
    char request[8192], response[8192]; /* enough for a few resources */
    size_t request_bytes, sent, received;
} exchange = {.socket = -1};

static doorman_time clock_now(void) {
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return (doorman_time)now.tv_sec * DOORMAN_SECOND + (doorman_time)now.tv_nsec;
}

static void exchange_close(void) {
    if (exchange.socket >= 0) close(exchange.socket);
    exchange.socket = -1;
}

static void exchange_fail(const char *why) {
    fprintf(stderr, "event_loop: the request failed: %s\n", why);
    exchange_close();
    doorman_upstream_failed(exchange.upstream, exchange.sequence, clock_now());
}

static int connect_to(const char *address) {
    char host[64], port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *found = NULL;
    if (sscanf(address, "http://%63[^:/]:%7[0-9]", host, port) != 2) return -1;
    if (getaddrinfo(host, port, &hints, &found) != 0) return -1;
    int s = socket(found->ai_family, SOCK_STREAM, 0);
    bool started = s >= 0 && fcntl(s, F_SETFL, O_NONBLOCK) == 0 &&
                   (connect(s, found->ai_addr, found->ai_addrlen) == 0 || errno == EINPROGRESS);
    if (s >= 0 && !started) close(s);
    freeaddrinfo(found);
    return started ? s : -1;
}

/* Starts an exchange. The previous exchange has ended, or the upstream has given it up. */
static void exchange_start(const doorman_request *request) {
    int bytes = 0;
    exchange_close();
    exchange.sequence = request->sequence;
    exchange.sent = exchange.received = 0;
    if (doorman_json_request(request, &exchange.body) == DOORMAN_OK) {
        bytes = snprintf(exchange.request, sizeof exchange.request,
                         "POST /v1 HTTP/1.0\r\nHost: %s\r\nContent-Type: application/json\r\n"
                         "Content-Length: %zu\r\n\r\n%s",
                         request->address + 7, exchange.body.bytes, exchange.body.text);
    }
    exchange.request_bytes = bytes < (int)sizeof exchange.request ? (size_t)bytes : 0;
    if (exchange.request_bytes) exchange.socket = connect_to(request->address);
    if (exchange.socket < 0) exchange_fail("cannot connect");
}

/* Passes the response to the upstream. Must be called when the server has closed the connection, or
 * the response is too large. */
static void exchange_finish(void) {
    doorman_error error = {0};
    exchange.response[exchange.received] = 0;
    const char *end = strstr(exchange.response, "\r\n\r\n"), *body = end ? end + 4 : "";
    exchange_close();
    if (doorman_json_response(exchange.upstream, exchange.sequence, body, strlen(body), &error,
                              clock_now()) != DOORMAN_OK) {
        exchange_fail(error.text);
    }
}

/* Sends a part of the request, or receives a part of the response. The socket must be ready. */
static void exchange_step(void) {
    size_t left = exchange.request_bytes - exchange.sent;
    size_t room = sizeof exchange.response - 1 - exchange.received;
    ssize_t bytes =
        left ? send(exchange.socket, exchange.request + exchange.sent, left, MSG_NOSIGNAL)
             : recv(exchange.socket, exchange.response + exchange.received, room, 0);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (bytes < 0) exchange_fail(strerror(errno));
    if (bytes >= 0 && left) exchange.sent += (size_t)bytes;
    if (bytes > 0 && !left) exchange.received += (size_t)bytes;
    if (bytes == 0 && !left) exchange_finish();
}

/* Makes the request that is due. Then waits until the next request is due, the socket is ready, or
 * `until` has come. */
static void loop_step(doorman_time until) {
    doorman_request request;
    doorman_time now = clock_now();
    if (doorman_upstream_request(exchange.upstream, &request, now)) exchange_start(&request);
    doorman_time due = doorman_upstream_due(exchange.upstream);
    doorman_time wait = (due < until ? due : until) - now;
    struct pollfd ready = {.fd = exchange.socket, .events = POLLIN};
    if (exchange.sent < exchange.request_bytes) ready.events = POLLOUT;
    if (poll(&ready, 1, wait > 0 ? (int)(wait / 1000000) + 1 : 0) > 0) exchange_step();
}

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] == '-') { /* such as --help */
        printf("usage: event_loop [ADDRESS [SECONDS]]\n");
        return 0;
    }
    const char *address = argc > 1 ? argv[1] : "http://127.0.0.1:15050";
    int seconds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 10, queries = 0;
    uint64_t random[2];
    if (getentropy(random, sizeof random) != 0) return 1;
    char id[32];
    snprintf(id, sizeof id, "event_loop:%016llx", (unsigned long long)random[0]);
    doorman_time now = clock_now(), tick = now;
    doorman_client_options options = {
        .client_id = id, .addresses = &address, .address_count = 1, .seed = random[1]};
    doorman_resource_options orders = {
        .resource_id = "db/orders", .wants = 400, .has_safe_capacity = true, .safe_capacity = 10};
    doorman_client *client = NULL;
    doorman_client_resource *resource = NULL;
    if (doorman_client_create(&client, &options, NULL, now) != DOORMAN_OK) return 1;
    if (doorman_client_open(&resource, client, &orders, NULL, now) != DOORMAN_OK) return 1;
    exchange.upstream = doorman_client_upstream(client);

    for (doorman_time end = now + seconds * DOORMAN_SECOND; now < end; now = clock_now()) {
        for (; tick <= now; tick += DOORMAN_SECOND / 400) { /* a query is wanted at each tick */
            queries += doorman_client_try(resource, 1, NULL, now) == DOORMAN_ALLOWED;
        }
        loop_step(tick);
    }
    doorman_resource_info info;
    doorman_client_read(resource, &info, now);
    printf("%d queries, %s of %g a second\n", queries,
           info.leased ? "a lease" : "the safe capacity", info.capacity);
    /* A client whose resources are closed is never due again after it has released its leases. */
    doorman_client_close(resource, now);
    doorman_time end = now + DOORMAN_SECOND;
    while (doorman_upstream_due(exchange.upstream) < end && clock_now() < end) loop_step(end);
    exchange_close();
    doorman_buffer_uninit(&exchange.body);
    doorman_client_destroy(client);
    return 0;
}
