/* doorman_server, part LINK: the connection of a link over HTTP. It carries batches to the path
 * /v1/batch of the same process, one at a time.
 *
 * nng wakes threads of its own for each message, in both processes, and that is most of what a
 * question costs. Over HTTP the thread that has the question sends it, the loop of the other
 * process decides it, and the loop of this process takes the answer. So nng carries only messages
 * that go alone, and batches while this connection is not there or is busy. nng stays connected: it
 * finds the host by its name, notices when the process ends, and can use TLS.
 *
 *     state        meaning                      event                               next
 *     NONE         there is no connection       a question comes, and nng is        CONNECTING
 *                                               connected
 *     CONNECTING   the system connects          it is connected                     PROBING
 *     PROBING      the process has not said     it has answered a request without   IDLE
 *                  that it takes batches        messages
 *     IDLE         a batch may be sent          it is sent, perhaps in part         ASKING
 *     ASKING       the process has not          the answer is complete              IDLE
 *                  answered
 *     not NONE     each has an end              its end, an error, a wrong answer,  NONE
 *                                               server_link_http_stop
 *
 * Once the loop watches the socket, only the thread of the loop closes it, because that thread may
 * have the next event of the socket already. Other threads move the state from NONE to CONNECTING
 * and from IDLE to ASKING. To end a connection they shut the socket down, which wakes the loop. */
#include "link_http.h"
#include "../util/host.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define OPENING DOORMAN_SECOND              /* until the connection is IDLE for the first time */
#define KEPT (20 * DOORMAN_SECOND)          /* while IDLE. The other process closes it after 30 s */
#define PAUSE DOORMAN_SECOND                /* after a connection has ended */
#define PAUSE_REFUSED (60 * DOORMAN_SECOND) /* after a process does not take batches */
#define READ_BYTES ((size_t)16 << 10)       /* for one read */
#define KEPT_BYTES ((size_t)64 << 10)       /* of a buffer between two batches */

/* ---- the address ---------------------------------------------------------------------------- */

/* Returns the port of "http://HOST[:PORT]"; 0: it is another text. */
static uint16_t address_port(const char *address) {
    static const char scheme[] = "http://";
    if (strncmp(address, scheme, sizeof scheme - 1) != 0) return 0;
    const char *end = strrchr(address, ']'), *colon = strrchr(end ? end : address + 5, ':');
    if (!colon || !colon[1]) return 80;
    const unsigned long port = strtoul(colon + 1, NULL, 10);
    return port < 65536 ? (uint16_t)port : 0;
}

/* Finds where another process listens over HTTP, without looking up a name. If `to` and `address`
 * have the same host, it is the IP address that nng is connected to, with the port of `address`.
 *   returns   the bytes of `out`; 0: it is not known */
static socklen_t address_find(const char *to, nng_pipe pipe, const char *address,
                              struct sockaddr_storage *out) {
    char host[DOORMAN_ID_BYTES_MAX + 1], other[DOORMAN_ID_BYTES_MAX + 1];
    struct sockaddr_in *four = (struct sockaddr_in *)(void *)out;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)(void *)out;
    const uint16_t port = address_port(address);
    nng_sockaddr at;
    server_host_read(to, host, sizeof host);
    server_host_read(address, other, sizeof other);
    const bool is_plain = strncmp(to, "tcp", 3) == 0;
    memset(out, 0, sizeof *out);
    if (!port || !is_plain || strcmp(host, other) != 0) return 0;
    if (nng_pipe_get_addr(pipe, NNG_OPT_REMADDR, &at) != 0) return 0;
    if (at.s_family == NNG_AF_INET) {
        *four = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
        four->sin_addr.s_addr = at.s_in.sa_addr;
        return sizeof *four;
    }
    if (at.s_family != NNG_AF_INET6) return 0;
    *six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
    memcpy(&six->sin6_addr, at.s_in6.sa_addr, sizeof six->sin6_addr);
    return sizeof *six;
}

/* ---- the socket ----------------------------------------------------------------------------- */

static void http_move(struct link_http *http, enum link_http_state state, doorman_time ends_at) {
    http->state = state;
    http->ends_at = ends_at;
}

/* Asks for events of the socket. Returns false if the system refuses. */
static bool http_watch(struct link_http *http, bool sends, bool is_new) {
    const struct service *service = http->service;
    const uint32_t events = EPOLLIN | (sends ? EPOLLOUT : 0);
    return service->loop->watch(service, &http->source, http->socket, events, is_new);
}

/* Sends as much of the request as the socket takes.
 *   returns   0, also if a part is left | an errno */
static int http_flush(struct link_http *http) {
    const size_t body = http->request ? nng_msg_len(http->request) : 0;
    const size_t all = http->head_bytes + body;
    while (http->sent < all) {
        const size_t head_left = http->sent < http->head_bytes ? http->head_bytes - http->sent : 0;
        const size_t body_sent = head_left ? 0 : http->sent - http->head_bytes;
        struct iovec parts[2] = {{http->head + http->sent, head_left}};
        if (body) parts[1].iov_base = (char *)nng_msg_body(http->request) + body_sent;
        parts[1].iov_len = body - body_sent;
        const struct msghdr header = {.msg_iov = parts, .msg_iovlen = 2};
        const ssize_t count = sendmsg(http->socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count < 0 && errno == EAGAIN) {
            http->has_rest = true;
            return http_watch(http, true, false) ? 0 : ENOMEM;
        }
        if (count < 0 && errno != EINTR) return errno;
        if (count > 0) http->sent += (size_t)count;
    }
    if (http->request) nng_msg_free(http->request);
    http->request = NULL;
    return 0;
}

/* Starts to send a request. If that fails, the loop ends the connection.
 *   message   the call takes it; NULL: no body */
static void http_begin(struct link_http *http, nng_msg *message) {
    const int bytes = snprintf(http->head, sizeof http->head,
                               "POST /v1/batch HTTP/1.1\r\nHost: %s\r\nDoorman-To: %s\r\n"
                               "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                               http->address + sizeof "http://" - 1, http->to,
                               message ? nng_msg_len(message) : 0);
    assert(bytes > 0 && (size_t)bytes < sizeof http->head && !http->request);
    http->head_bytes = (size_t)bytes;
    http->request = message;
    http->sent = http->received = 0;
    if (http_flush(http) != 0) server_link_http_stop(http, NNG_ECONNRESET);
}

/* Closes the connection. Only the thread of the loop calls this, except for a socket that the loop
 * does not watch yet. */
static void http_close(struct link_http *http, doorman_time pause) {
    close(http->socket);
    if (http->request) nng_msg_free(http->request);
    http->request = NULL;
    http->socket = -1;
    http->has_rest = false;
    http->error = 0;
    http->again_at = doorman_clock() + pause;
    http_move(http, LINK_HTTP_NONE, DOORMAN_NEVER);
}

/* ---- answers -------------------------------------------------------------------------------- */

/* The head of an answer. */
struct answer_head {
    size_t bytes, body_bytes; /* bytes: 0: it is not complete */
    int code;
    bool is_last; /* the process closes the connection after it */
};

/* Returns the value of a field of a head, or NULL. The head ends with a 0. */
static const char *head_find(const char *head, const char *name) {
    const size_t bytes = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        const char *value = line + 2 + bytes;
        if (strncasecmp(line + 2, name, bytes) != 0 || *value != ':') continue;
        return value + 1 + strspn(value + 1, " \t");
    }
    return NULL;
}

/* Reads the head of an answer, which ends with a 0. Returns false if it makes no sense. */
static bool head_read(const char *text, struct answer_head *out) {
    static const char version[] = "HTTP/1.1 ";
    const char *connection = head_find(text, "Connection");
    const char *length = head_find(text, "Content-Length");
    if (!length || strncmp(text, version, sizeof version - 1) != 0) return false;
    out->code = (int)strtol(text + sizeof version - 1, NULL, 10);
    out->body_bytes = strtoul(length, NULL, 10);
    out->is_last = connection && strncasecmp(connection, "close", 5) == 0;
    return out->body_bytes <= DOORMAN_MESSAGE_BYTES_MAX + READ_BYTES;
}

/* Looks for an answer in what was received. Returns false if it makes no sense.
 *   out   its `bytes` stay 0 until it is complete */
static bool http_look(const struct link_http *http, struct answer_head *out) {
    char *end = (char *)memmem(http->in, http->received, "\r\n\r\n", 4);
    *out = (struct answer_head){.bytes = 0};
    if (!end) return http->received < READ_BYTES;
    end[2] = 0; /* after its last line; what follows is the body */
    const size_t bytes = (size_t)(end - http->in) + 4;
    const bool makes_sense = head_read(http->in, out);
    end[2] = '\r'; /* it may be read again */
    if (makes_sense && http->received >= bytes + out->body_bytes) out->bytes = bytes;
    /* with more bytes, or with an answer before the whole request, the connection must end */
    if (http->received > bytes + out->body_bytes || http->request) out->is_last = true;
    return makes_sense;
}

/* Makes room for a read. Returns false if memory has run out. */
static bool http_reserve(struct link_http *http) {
    if (http->capacity - http->received > READ_BYTES) return true;
    const size_t capacity = http->capacity * 2 + 2 * READ_BYTES;
    char *in = (char *)realloc(http->in, capacity);
    if (in) http->in = in;
    if (in) http->capacity = capacity;
    return in != NULL;
}

/* Receives once. Returns 0, or an error of nng that ends the connection. */
static int http_receive(struct link_http *http) {
    if (!http_reserve(http)) return NNG_ENOMEM;
    const size_t room = http->capacity - http->received - 1;
    const ssize_t count = recv(http->socket, http->in + http->received, room, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (count <= 0) return NNG_ECONNRESET;
    http->received += (size_t)count;
    http->in[http->received] = 0;
    return 0;
}

/* Takes a complete answer.
 *   message   out: its body; NULL: there is none
 *   returns   0 | NNG_EAGAIN: the process has decided nothing | another error of nng */
static int http_take(const struct link_http *http, const struct answer_head *head,
                     nng_msg **message) {
    *message = NULL;
    if (head->code == 500) return NNG_ECONNRESET; /* it has decided, and memory has run out */
    if (head->code != 200) return NNG_EAGAIN;
    if (nng_msg_alloc(message, head->body_bytes) != 0) return NNG_ENOMEM;
    memcpy(nng_msg_body(*message), http->in + head->bytes, head->body_bytes);
    return 0;
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* Asks a process whether it takes batches, when the connection has been made. Returns 0, or an
 * error of nng. */
static int http_probe(struct link_http *http) {
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(http->socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 || error != 0 ||
        !http_watch(http, false, false)) {
        return NNG_ECONNREFUSED;
    }
    http_move(http, LINK_HTTP_PROBING, http->ends_at);
    http_begin(http, NULL);
    return http->error;
}

/* Sends the rest of a request. Returns 0, or an error of nng. */
static int http_send_rest(struct link_http *http) {
    http->has_rest = false;
    const bool sent = http_watch(http, false, false) && http_flush(http) == 0;
    return sent ? 0 : NNG_ECONNRESET;
}

/* Does what the connection can do now.
 *   head      out: of the answer, if it is complete; else its `bytes` are 0
 *   returns   0, or an error of nng that ends the connection */
static int http_step(struct link_http *http, uint32_t events, struct answer_head *head) {
    head->bytes = 0;
    if (http->error) return http->error;
    if (http->state == LINK_HTTP_CONNECTING) return http_probe(http);
    int error = http->has_rest ? http_send_rest(http) : 0;
    if (error != 0 || events == EPOLLOUT) return error;
    error = http_receive(http);
    if (error != 0) return error;
    if (http->state == LINK_HTTP_IDLE) return http->received ? NNG_EPROTO : 0;
    return http_look(http, head) ? 0 : NNG_EPROTO;
}

/* Ends a request, and the connection if it cannot carry another request. */
static void http_finish(struct link_http *http, const struct answer_head *head, int error) {
    const bool is_new = http->state < LINK_HTTP_IDLE;
    const bool is_refused = error ? is_new && error != NNG_ECONNREFUSED /* it may be starting */
                                  : head->code != 200 && head->code != 500;
    http->question = NULL;
    if (error == 0 && head->code == 200 && !head->is_last) {
        http_move(http, LINK_HTTP_IDLE, doorman_clock() + KEPT);
        http->received = 0;
        if (http->capacity > KEPT_BYTES) server_link_http_uninit(http);
    } else {
        http_close(http, is_refused ? PAUSE_REFUSED : PAUSE);
    }
}

/* The loop calls this when the socket has an event. After the unlock, another thread may free the
 * connection. */
static void http_ready(void *context, uint32_t events) {
    struct link_http *http = (struct link_http *)context;
    void *question = NULL;
    struct answer_head head;
    nng_msg *message = NULL;
    server_lock(http->lock);
    assert(http->state != LINK_HTTP_NONE);
    int error = http_step(http, events, &head);
    const bool is_over = error != 0 || head.bytes > 0;
    const int result = error == 0 && is_over ? http_take(http, &head, &message) : error;
    if (is_over) question = http->question;
    if (is_over) http_finish(http, &head, error);
    const bool is_closed = http->state == LINK_HTTP_NONE;
    void *const link = http->context;
    void (*const closed)(void *) = http->closed;
    void (*const finish)(void *, int, nng_msg *) = http->finish;
    server_unlock(http->lock);
    if (question) {
        finish(question, result, message);
    } else if (message) {
        nng_msg_free(message);
    }
    if (is_closed) closed(link);
}

/* ---- calls ---------------------------------------------------------------------------------- */

void server_link_http_init(struct link_http *http) {
    assert(http->service && http->lock && http->to && http->finish && http->closed);
    http->socket = -1;
    http->source = (struct loop_source){http_ready, http};
    http->ends_at = DOORMAN_NEVER;
}

void server_link_http_open(struct link_http *http, nng_pipe pipe, const char *address) {
    struct sockaddr_storage to;
    int one = 1;
    assert(server_lock_is_held(http->lock) && http->state == LINK_HTTP_NONE);
    http->again_at = doorman_clock() + PAUSE;
    const socklen_t bytes = address_find(http->to, pipe, address, &to);
    if (!bytes) return;
    http->socket = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (http->socket < 0) return;
    setsockopt(http->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    snprintf(http->address, sizeof http->address, "%s", address);
    const bool begins =
        connect(http->socket, (struct sockaddr *)&to, bytes) == 0 || errno == EINPROGRESS;
    http_move(http, LINK_HTTP_CONNECTING, doorman_clock() + OPENING);
    if (!begins || !http_watch(http, true, true)) http_close(http, PAUSE);
}

bool server_link_http_is_idle(const struct link_http *http) {
    assert(server_lock_is_held(http->lock));
    return http->state == LINK_HTTP_IDLE && !http->error;
}

void server_link_http_send(struct link_http *http, nng_msg *message, doorman_time ends_at,
                           void *question) {
    assert(server_link_http_is_idle(http) && !http->question && message && question);
    http->question = question;
    http_move(http, LINK_HTTP_ASKING, ends_at);
    http_begin(http, message);
}

void server_link_http_stop(struct link_http *http, int error) {
    assert(server_lock_is_held(http->lock) && error != 0);
    if (http->state == LINK_HTTP_NONE || http->error) return;
    http->error = error;
    (void)shutdown(http->socket, SHUT_RDWR);
}

void server_link_http_uninit(struct link_http *http) {
    free(http->in);
    http->in = NULL;
    http->capacity = 0;
}
