/* A bare server of HTTP/2, which bench_grpc.c compares the server with: one thread, an epoll loop
 * and nghttp2. It answers every request with the bytes that Doorman would answer, and decides
 * nothing. So the two servers differ by Doorman's own cost; the rest is the cost of the library and
 * the kernel. */
#define _GNU_SOURCE /* accept4 */
#include "bench.h"

#ifdef BENCH_HTTP2
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nghttp2/nghttp2.h>

/* A prefix, and a response of ShouldRateLimit: ALLOWED, one status with its limit, what remains of
 * it, and its reset. */
static const uint8_t answer[] = {0,    0,    0,    0,    0x20, 0x08, 0x01, 0x12, 0x1c, 0x08,
                                 0x01, 0x12, 0x0e, 0x08, 0xe8, 0x07, 0x10, 0x01, 0x1a, 0x07,
                                 'p',  'e',  'r',  '-',  'k',  'e',  'y',  0x18, 0xff, 0x93,
                                 0xeb, 0xdc, 0x03, 0x22, 0x02, 0x08, 0x01};

/* A header field that nghttp2 need not copy. */
#define FIELD(name, value)                                                                         \
    {                                                                                              \
        (uint8_t *)(name), (uint8_t *)(value), sizeof(name) - 1, sizeof(value) - 1,                \
            NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE                           \
    }

/* nghttp2 only reads the texts, although its types have no const for them. */
static char status_name[] = ":status", status_value[] = "200";
static char type_name[] = "content-type", type_value[] = "application/grpc";
static char code_name[] = "grpc-status", code_value[] = "0";

static ssize_t give_body(nghttp2_session *session, int32_t id, uint8_t *to, size_t room,
                         uint32_t *flags, nghttp2_data_source *source, void *context) {
    const nghttp2_nv trailer = FIELD(code_name, code_value);
    (void)source, (void)context;
    if (room < sizeof answer) return NGHTTP2_ERR_CALLBACK_FAILURE;
    memcpy(to, answer, sizeof answer);
    *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    nghttp2_submit_trailer(session, id, &trailer, 1);
    return sizeof answer;
}

typedef struct bare_connection {
    int fd;
    nghttp2_session *session;
    uint8_t body[1 << 10]; /* of a request */
} bare_connection;

/* Copies the body of a request. A request of the benchmark has one frame of data. */
static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *bytes,
                   size_t count, void *context) {
    bare_connection *connection = context;
    (void)session, (void)flags, (void)id;
    if (count > sizeof connection->body) return NGHTTP2_ERR_CALLBACK_FAILURE;
    memcpy(connection->body, bytes, count);
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *context) {
    const nghttp2_nv fields[] = {FIELD(status_name, status_value), FIELD(type_name, type_value)};
    const nghttp2_data_provider body = {.read_callback = give_body};
    bool asks = frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS;
    (void)context;
    if (!asks || !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM)) return 0;
    return nghttp2_submit_response(session, frame->hd.stream_id, fields, 2, &body);
}

/* Sends what the session wants to send. Returns false if the connection ends. */
static bool session_send(nghttp2_session *session, int fd) {
    uint8_t out[16 << 10];
    size_t bytes = 0;
    while (true) {
        const uint8_t *part = NULL;
        ssize_t count = nghttp2_session_mem_send(session, &part);
        bool fits = count > 0 && bytes + (size_t)count <= sizeof out;
        if (bytes > 0 && !fits && send(fd, out, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
            return false;
        if (!fits) bytes = 0;
        if (count <= 0) return count == 0;
        if ((size_t)count > sizeof out) return false;
        memcpy(out + bytes, part, (size_t)count);
        bytes += (size_t)count;
    }
}

static void session_open(bare_connection *connection) {
    nghttp2_session_callbacks *callbacks = NULL;
    const nghttp2_settings_entry settings = {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 100};
    const int on = 1;
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    must(nghttp2_session_callbacks_new(&callbacks) == 0, "out of memory");
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    must(nghttp2_session_server_new(&connection->session, callbacks, connection) == 0,
         "out of memory");
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(connection->session, NGHTTP2_FLAG_NONE, &settings, 1);
}

static void bare_accept(int epoll, int listener) {
    bare_connection *connection = malloc(sizeof *connection);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    must(connection && fd >= 0, "cannot accept a connection");
    connection->fd = fd;
    session_open(connection);
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = connection}};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "cannot wait for a connection");
}

static void bare_serve(bare_connection *connection) {
    uint8_t in[16 << 10];
    ssize_t count = recv(connection->fd, in, sizeof in, 0);
    bool goes = count > 0 &&
                nghttp2_session_mem_recv(connection->session, in, (size_t)count) == count &&
                session_send(connection->session, connection->fd);
    if (goes) return;
    nghttp2_session_del(connection->session);
    close(connection->fd);
    free(connection);
}

int http2_main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct sockaddr *at = (struct sockaddr *)&address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event events[64], event = {.events = EPOLLIN, .data = {.ptr = NULL}};
    must(listener >= 0 && epoll >= 0 && bind(listener, at, bytes) == 0 &&
             listen(listener, 64) == 0 && getsockname(listener, at, &bytes) == 0 &&
             epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) == 0,
         "cannot listen");
    printf("http2 grpc=127.0.0.1:%u\n", (unsigned)ntohs(address.sin_port));
    fflush(stdout);
    while (true) { /* until SIGTERM, or until the parent ends */
        int count = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < count; i++) {
            bare_connection *connection = events[i].data.ptr;
            if (connection) bare_serve(connection);
            if (!connection) bare_accept(epoll, listener);
        }
    }
}
#else
int http2_main(void) { return 1; }
#endif
