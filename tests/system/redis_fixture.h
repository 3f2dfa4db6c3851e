/* A real Redis for system tests. Tests that use it are skipped if redis-server is not installed.
 * Each Redis has a free port and keeps its data in a temporary folder. */
#ifndef DOORMAN_TESTS_REDIS_FIXTURE_H
#define DOORMAN_TESTS_REDIS_FIXTURE_H

#include "etcd_fixture.h"

#include <hiredis/hiredis.h>

struct redis {
    struct process *process;
    int port;
    char address[64];
    const char *certificates; /* a folder filled by certificates_make; NULL: no TLS */
    int tls_port;             /* only with certificates */
    bool asks_clients;        /* clients over TLS need a certificate of the same folder */
    const char *protocols;    /* the versions of TLS; NULL: the default */
};

static inline void redis_start(struct redis *redis) {
    char program[256], port[16], log_path[96], tls_port[16], files[3][128];
    static const char *const names[] = {"own.pem", "own.key", "ca.pem"};
    const char *folder = redis->certificates;
    assert_true(find_program("redis-server", program));
    snprintf(port, sizeof port, "%d", redis->port);
    snprintf(log_path, sizeof log_path, "%s", redis->process->err);
    snprintf(tls_port, sizeof tls_port, "%d", redis->tls_port);
    for (int i = 0; i < 3; i++) {
        snprintf(files[i], sizeof files[i], "%s/%s", folder ? folder : "", names[i]);
    }
    const char *const arguments[] = {"--port",
                                     port,
                                     "--bind",
                                     "127.0.0.1",
                                     "--dir",
                                     redis->process->folder,
                                     "--logfile",
                                     log_path,
                                     "--save",
                                     "",
                                     "--appendonly",
                                     "yes",
                                     "--appendfsync",
                                     "always",
                                     folder ? "--tls-port" : NULL,
                                     tls_port,
                                     "--tls-cert-file",
                                     files[0],
                                     "--tls-key-file",
                                     files[1],
                                     "--tls-ca-cert-file",
                                     files[2],
                                     "--tls-auth-clients",
                                     redis->asks_clients ? "yes" : "no",
                                     redis->protocols ? "--tls-protocols" : NULL,
                                     redis->protocols,
                                     NULL};
    process_launch(redis->process, program, arguments, NULL);
    process_await(redis->process, "Ready to accept connections", 1);
}

/* Starts a Redis that keeps what it has confirmed, or skips the test. */
static inline void redis_require(struct redis *redis) {
    program_require("redis-server");
    *redis = (struct redis){.process = process_new()};
    redis->port = port_free();
    snprintf(redis->address, sizeof redis->address, "redis://127.0.0.1:%d/1", redis->port);
    redis_start(redis);
}

/* Starts a Redis that takes TLS too, with certificates in its own folder.
 *   protocols   as in struct redis */
static inline void redis_require_tls(struct redis *redis, bool asks_clients,
                                     const char *protocols) {
    program_require("redis-server");
    *redis = (struct redis){.process = process_new(), .protocols = protocols};
    redis->port = port_free();
    redis->tls_port = port_free();
    redis->certificates = redis->process->folder;
    redis->asks_clients = asks_clients;
    certificates_make(redis->certificates);
    snprintf(redis->address, sizeof redis->address, "rediss://127.0.0.1:%d/1", redis->tls_port);
    redis_start(redis);
}

static inline void redis_kill(struct redis *redis) {
    process_signal(redis->process, SIGKILL);
    process_wait(redis->process);
}

/* Runs a command in database 1, as an operator would, and returns its answer as text.
 *   format   the command, as redisCommand takes it */
static inline const char *redis_run(const struct redis *redis, const char *format, ...) {
    static char text[4096];
    const struct timeval most = {.tv_sec = TIMEOUT_MS / 1000};
    va_list arguments;
    redisContext *context = redisConnectWithTimeout("127.0.0.1", redis->port, most);
    assert_non_null(context);
    assert_int_equal(context->err, 0);
    freeReplyObject(redisCommand(context, "SELECT 1"));
    va_start(arguments, format);
    redisReply *reply = (redisReply *)redisvCommand(context, format, arguments);
    va_end(arguments);
    assert_non_null(reply);
    if (reply->type == REDIS_REPLY_ERROR) fail_msg("%s: %s", format, reply->str);
    if (reply->type == REDIS_REPLY_INTEGER) {
        snprintf(text, sizeof text, "%lld", reply->integer);
    } else {
        snprintf(text, sizeof text, "%s", reply->str ? reply->str : "");
    }
    freeReplyObject(reply);
    redisFree(context);
    return text;
}

#endif
