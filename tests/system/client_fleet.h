/* A fleet of clients below real servers, which checks the servers' promise: the leases in force
 * never add up to more than the capacity (T7).
 *
 * The clients live in the test program. One thread sends their requests and takes the responses one
 * at a time. It adds up the leases in force after each response, so that no moment is missed. */
#ifndef DOORMAN_TESTS_CLIENT_FLEET_H
#define DOORMAN_TESTS_CLIENT_FLEET_H

#include "harness.h"

#define DOORMAN_JSON
#define DOORMAN_NNG
#include "../../doorman.h"

#define RESOURCE "db/orders"
#define CAPACITY 120.0
#define CLIENT_MAX 8

struct client {
    char id[16];
    doorman_client *client;
    doorman_client_resource *resource;
    doorman_transport *transport;
};

static struct client_fleet {
    struct client clients[CLIENT_MAX];
    int count;
} fleet;

/* nng can leak a connection and its dialer if the connection is made at the moment when its server
 * ends. The versions 1.5.2, 1.10.1 and 1.12.4 all do this. Only tests with this fleet suppress such
 * leaks. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libnng.so"; }

/* Responses are polled every 2 ms, so no notification is needed. */
static inline void ignore_wakeup(void *context) { (void)context; }

static inline void fleet_add(const char *const *addresses, size_t count, double wants) {
    struct client *self = &fleet.clients[fleet.count++];
    doorman_time now = doorman_clock();
    snprintf(self->id, sizeof self->id, "client-%d", fleet.count);
    doorman_client_options client_options = {.client_id = self->id,
                                             .addresses = addresses,
                                             .address_count = count,
                                             .seed = (uint64_t)fleet.count,
                                             .request_timeout = DOORMAN_SECOND};
    doorman_resource_options resource_options = {
        .resource_id = RESOURCE, .wants = wants, .fallback = DOORMAN_PESSIMISTIC};
    assert_int_equal(doorman_client_create(&self->client, &client_options, NULL, now), DOORMAN_OK);
    assert_int_equal(
        doorman_client_open(&self->resource, self->client, &resource_options, NULL, now),
        DOORMAN_OK);
    doorman_transport_options transport_options = {
        .upstream = doorman_client_upstream(self->client), .on_wakeup = ignore_wakeup};
    assert_int_equal(doorman_transport_create(&self->transport, &transport_options), DOORMAN_OK);
}

static inline void fleet_set_wants(int index, double wants) {
    assert_int_equal(
        doorman_client_set_wants(fleet.clients[index].resource, wants, doorman_clock()),
        DOORMAN_OK);
}

static inline double client_has(int index, doorman_time now) {
    doorman_resource_info info;
    doorman_client_read(fleet.clients[index].resource, &info, now);
    return info.leased ? info.capacity : 0;
}

/* Fails if the leases in force add up to more than the capacity (T7). The tolerance is for the
 * rounding of sums. */
static inline void fleet_check(doorman_time now) {
    double sum = 0;
    for (int i = 0; i < fleet.count; i++) sum += client_has(i, now);
    if (sum <= CAPACITY * (1 + 1e-9)) return;
    for (int i = 0; i < fleet.count; i++) {
        print_error("%s has %g\n", fleet.clients[i].id, client_has(i, now));
    }
    fail_msg("leases of %.17g are in force; the capacity is %g", sum, CAPACITY);
}

/* For fleet_run_until: each client must have the same capacity. */
#define ALL(has)                                                                                   \
    (const double[CLIENT_MAX]) { has, has, has, has, has, has, has, has }

/* Takes the responses that have come, checks T7, and sends the requests that are due. */
static inline void fleet_step(void) {
    for (int i = 0; i < fleet.count; i++) {
        struct client *self = &fleet.clients[i];
        doorman_time now = doorman_clock();
        bool made = doorman_transport_update(self->transport, NULL, now);
        fleet_check(now);
        if (made) doorman_transport_send(self->transport);
    }
    sleep_ms(2);
}

static inline bool fleet_has(const double *expected) {
    doorman_time now = doorman_clock();
    for (int i = 0; i < fleet.count; i++) {
        double has = client_has(i, now);
        if (has < expected[i] * 0.999 || has > expected[i] * 1.001) return false;
    }
    return true;
}

/* Repeats fleet_step until each client has what is expected. Returns whether that happened before
 * the time-out. */
static inline bool fleet_reaches(const double *expected) {
    doorman_time end = doorman_clock() + TIMEOUT_MS * (DOORMAN_SECOND / 1000);
    while (doorman_clock() < end) {
        if (fleet_has(expected)) return true;
        fleet_step();
    }
    for (int i = 0; i < fleet.count; i++) {
        print_error("%s has %g; expected: %g\n", fleet.clients[i].id,
                    client_has(i, doorman_clock()), expected[i]);
    }
    return false;
}

static inline void fleet_run_until(const double *expected) { assert_true(fleet_reaches(expected)); }

static inline void fleet_run_for(doorman_time duration) {
    for (doorman_time end = doorman_clock() + duration; doorman_clock() < end;) fleet_step();
}

/* Teardown for each test: also ends the clients. */
static inline int fleet_clean(void **state) {
    for (int i = 0; i < fleet.count; i++) {
        doorman_transport_destroy(fleet.clients[i].transport);
        doorman_client_destroy(fleet.clients[i].client);
    }
    memset(&fleet, 0, sizeof fleet);
    return harness_clean(state);
}

#undef TEST_TEARDOWN
#define TEST_TEARDOWN fleet_clean

#endif
