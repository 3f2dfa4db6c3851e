/* A server at an address ipc://..., and peers that leave while nng greets them. */
#define _GNU_SOURCE
#include "../test.h"
#include "harness.h"

#include <sys/un.h>

static int ipc_connect(const struct process *process) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval timeout = {2, 0};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_true(strlen(process->socket) < sizeof address.sun_path);
    memcpy(address.sun_path, process->socket, strlen(process->socket) + 1);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd); /* the path is gone for a moment, or the broken listener is full */
    return -1;
}

/* Asks who is master. Returns whether the server has answered. */
static bool ipc_ask(int fd) {
    static const char text[] = "\1\0\0\0\0\0\0\0\24\200\0\0\1{\"discovery\":{}}";
    char response[512];
    return raw_send(fd, text, sizeof text - 1) && recv(fd, response, sizeof response, 0) > 20;
}

/* Connects and greets. Returns the connection, or -1 if the server does not answer. */
static int ipc_open(const struct process *process) {
    static const unsigned char hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    unsigned char welcome[8];
    int fd = ipc_connect(process);
    if (fd < 0) return -1;
    if (raw_send(fd, hello, sizeof hello) &&
        recv(fd, welcome, sizeof welcome, MSG_WAITALL) == sizeof welcome && ipc_ask(fd)) {
        return fd;
    }
    close(fd);
    return -1;
}

static bool ipc_answers(const struct process *process) {
    int fd = ipc_open(process);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* After one such peer, nng 1.5.2 starts no further connection at the address. So the server opens
 * the address again. */
TEST(peers_that_leave_during_the_greeting_stop_no_other) {
    struct process *process = process_new();
    char url[NNG_MAXADDRLEN];
    snprintf(url, sizeof url, "ipc://%s", process->socket);
    const char *const arguments[] = {"--config", process->config, "--listen", url, NULL};
    file_write(process->config, "{\"resources\": [{\"identifier_glob\": \"*\", \"capacity\": 1}]}");
    const char *const environment[] = {"ASAN_OPTIONS=detect_leaks=0", NULL}; /* nng leaks then */
    process_start(process, arguments, environment);
    process_await(process, " listen=", 1);
    int before = ipc_open(process);
    assert_true(before >= 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 20; i++) {
            int fd = ipc_connect(process);
            if (fd >= 0) close(fd);
        }
        EVENTUALLY(ipc_answers(process));
        assert_true(ipc_ask(before)); /* a connection that nng has started stays */
    }
    close(before);
    process_signal(process, SIGTERM);
    process_end(process, 0);
}
