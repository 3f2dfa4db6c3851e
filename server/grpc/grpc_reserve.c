/* doorman_server, part GRPC: Kuadrant's Reserve and Commit as reservations (P27). The functions
 * change only their arguments.
 *
 * The process that reads a Reserve chooses a random number, which is the request_id of the permit,
 * and the gateway gets it in the reservation_id. So any process of the node can settle the
 * reservation. The reservation_id also says which descriptors had no limits: they are not in the
 * permit, so they must not be in the settle request. The number chooses one of RESERVE_HOLDERS
 * client ids, so that all gateways together may have more reservations than one client may have. */
#include "grpc.h"

#include <sys/random.h>

#define RESERVE_HOLDERS 64
#define RESERVE_TTL (60 * DOORMAN_SECOND)
#define RESERVE_TTL_MAX (3600 * DOORMAN_SECOND) /* a longer one ends after this time */
#define RESERVE_NUMBER_MAX ((UINT64_C(1) << 53) - 1)
#define RESERVE_NUMBER_DIGITS 14

/* The id of a reservation is its number. If some descriptors have no limits, '-' and hexadecimal
 * digits follow, such as in 0000000000002a-9. Each digit is for four descriptors, and has a bit for
 * each one without limits. */
static const char reserve_digits[] = "0123456789abcdef";

static int reserve_digit(char digit) {
    const char *found = digit ? strchr(reserve_digits, digit) : NULL;
    return found ? (int)(found - reserve_digits) : -1;
}

static void reserve_set_number(struct grpc_reservation *out, uint64_t number) {
    out->number = number;
    snprintf(out->holder, sizeof out->holder, "grpc-%d", (int)(number % RESERVE_HOLDERS));
}

bool server_grpc_reserve_start(struct grpc_reservation *out, bool has_ttl, int64_t seconds,
                               int32_t nanos, struct grpc_status *status) {
    uint64_t number = 0;
    *out = (struct grpc_reservation){.ttl = RESERVE_TTL};
    if (seconds < 0 || nanos < 0 || nanos > 999999999) {
        return server_grpc_fail(status, GRPC_INVALID_ARGUMENT, "ttl: must not be negative");
    }
    if (has_ttl && (seconds > 0 || nanos > 0)) {
        bool is_long = seconds >= RESERVE_TTL_MAX / DOORMAN_SECOND;
        out->ttl = is_long ? RESERVE_TTL_MAX : seconds * DOORMAN_SECOND + nanos;
    }
    if (getentropy(&number, sizeof number) != 0) {
        return server_grpc_fail(status, GRPC_UNAVAILABLE, "the system has no random bits");
    }
    reserve_set_number(out, number % RESERVE_NUMBER_MAX + 1);
    return true;
}

void server_grpc_reserve_id(const struct grpc_call *call, char id[GRPC_RESERVATION_ID]) {
    uint64_t number = call->reservation.number;
    bool some = false;
    size_t at = RESERVE_NUMBER_DIGITS;
    for (size_t i = RESERVE_NUMBER_DIGITS; i-- > 0; number >>= 4) {
        id[i] = reserve_digits[number & 15];
    }
    for (size_t i = 0; i < call->descriptor_count; i++) {
        some = some || call->descriptors[i].is_unmatched;
    }
    if (some) id[at++] = '-';
    for (size_t i = 0; some && i < call->descriptor_count; i += 4) {
        unsigned digit = 0;
        for (size_t j = i; j < i + 4 && j < call->descriptor_count; j++) {
            digit |= (unsigned)call->descriptors[j].is_unmatched << (j - i);
        }
        id[at++] = reserve_digits[digit];
    }
    id[at] = 0;
}

/* Reads which descriptors have no limits. Returns false if the text is not valid. */
static bool reserve_read_unmatched(struct grpc_call *call, const char *id, size_t bytes) {
    if (bytes != (call->descriptor_count + 3) / 4) return false;
    for (size_t i = 0; i < bytes; i++) {
        if (reserve_digit(id[i]) < 0) return false;
    }
    for (size_t i = 0; i < call->descriptor_count; i++) {
        call->descriptors[i].is_unmatched = reserve_digit(id[i / 4]) >> i % 4 & 1;
    }
    return true;
}

bool server_grpc_reserve_read_id(struct grpc_call *call, const uint8_t *bytes, size_t count) {
    char id[GRPC_RESERVATION_ID] = {0};
    uint64_t number = 0;
    if (count < RESERVE_NUMBER_DIGITS || count >= sizeof id) return false;
    memcpy(id, bytes, count);
    for (size_t i = 0; i < RESERVE_NUMBER_DIGITS; i++) {
        int digit = reserve_digit(id[i]);
        if (digit < 0) return false;
        number = number << 4 | (uint64_t)digit;
    }
    if (number == 0 || number > RESERVE_NUMBER_MAX) return false;
    const size_t rest = RESERVE_NUMBER_DIGITS + 1;
    if (count >= rest) {
        if (id[rest - 1] != '-') return false;
        if (!reserve_read_unmatched(call, id + rest, count - rest)) return false;
    }
    reserve_set_number(&call->reservation, number);
    return true;
}
