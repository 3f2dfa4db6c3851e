/* doorman_server, part GRPC: the names of methods, of status codes, and of the
 * reasons why a connection was ended. */
#include "grpc.h"

#include <stdarg.h>

#define ENVOY "envoy.service.ratelimit.v3.RateLimitService"
#define KUADRANT "kuadrant.service.ratelimit.v1.RateLimitService"
#define QUOTAS "envoy.service.rate_limit_quota.v3.RateLimitQuotaService"
#define HEALTH "grpc.health.v1.Health"

static const char *const grpc_services[] = {ENVOY, KUADRANT, QUOTAS, HEALTH};

static const struct {
    const char *path, *name;
} grpc_methods[GRPC_METHOD_COUNT] = {
    [GRPC_SHOULD_RATE_LIMIT] = {"/" ENVOY "/ShouldRateLimit", "ShouldRateLimit"},
    [GRPC_CHECK_RATE_LIMIT] = {"/" KUADRANT "/CheckRateLimit", "CheckRateLimit"},
    [GRPC_REPORT] = {"/" KUADRANT "/Report", "Report"},
    [GRPC_RESERVE] = {"/" KUADRANT "/Reserve", "Reserve"},
    [GRPC_COMMIT] = {"/" KUADRANT "/Commit", "Commit"},
    [GRPC_STREAM_QUOTAS] = {"/" QUOTAS "/StreamRateLimitQuotas", "StreamRateLimitQuotas"},
    [GRPC_HEALTH_CHECK] = {"/" HEALTH "/Check", "Check"},
    [GRPC_HEALTH_WATCH] = {"/" HEALTH "/Watch", "Watch"},
    [GRPC_UNKNOWN_METHOD] = {NULL, "unknown"},
};

enum grpc_method server_grpc_method_find(const char *path, size_t bytes) {
    for (int i = 0; i < GRPC_UNKNOWN_METHOD; i++) {
        const char *known = grpc_methods[i].path;
        if (strlen(known) == bytes && memcmp(known, path, bytes) == 0) return (enum grpc_method)i;
    }
    return GRPC_UNKNOWN_METHOD;
}

const char *server_grpc_method_name(enum grpc_method method) { return grpc_methods[method].name; }

bool server_grpc_service_is_known(const char *name, size_t bytes) {
    bool known = bytes == 0; /* the server as a whole */
    for (size_t i = 0; i < sizeof grpc_services / sizeof *grpc_services; i++) {
        known = known ||
                (strlen(grpc_services[i]) == bytes && memcmp(grpc_services[i], name, bytes) == 0);
    }
    return known;
}

const char *server_grpc_code_name(enum grpc_code code) {
    static const char *const names[GRPC_CODE_COUNT] = {
#define GRPC_CODE(name, number) [number] = #name,
        GRPC_CODES(GRPC_CODE)
#undef GRPC_CODE
    };
    return names[code];
}

const char *server_grpc_ending_name(enum grpc_ending ending) {
    static const char *const names[GRPC_END_COUNT] = {
        [GRPC_END_PEER] = "peer",         [GRPC_END_HANDSHAKE] = "handshake",
        [GRPC_END_PROTOCOL] = "protocol", [GRPC_END_FLOOD] = "flood",
        [GRPC_END_SLOW] = "slow",         [GRPC_END_CROWDED] = "crowded",
        [GRPC_END_STOP] = "stop"};
    return names[ending];
}

bool server_grpc_fail(struct grpc_status *status, enum grpc_code code, const char *format, ...) {
    va_list arguments;
    status->code = code;
    va_start(arguments, format);
    vsnprintf(status->text, sizeof status->text, format, arguments);
    va_end(arguments);
    return false;
}
