/* A scope guard for a reservation, in C++11. It reserves what a request may cost, and settles what
 * it has cost when the scope ends. If an exception ends the scope before the cost is known, the
 * guard settles what was reserved. If the process is killed, what was reserved stays charged, or
 * comes back where the limit has "unsettled": "refund".
 *
 * Compile the header once as C, as gauge_guard.cpp says:
 *
 *     cc -c -x c doorman.h -DDOORMAN_IMPLEMENTATION -DDOORMAN_JSON -DDOORMAN_NNG -o doorman.o
 *     c++ -std=c++11 -I. examples/reservation_guard.cpp doorman.o -lnng -lcjson -o guard
 *     build/doorman_server --config config.json &
 *     ./guard
 */
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman_permits.h"

#include <cstdio>
#include <stdexcept>
#include <string>

class reservation_guard {
public:
    /* Reserves units of a resource, or throws. */
    reservation_guard(doorman_agent *agent, const char *resource_id, const char *key, double cost)
        : agent_(agent), resource_id_(resource_id), key_(key), cost_(cost) {
        const doorman_permit_item item = item_of();
        doorman_permit_request request = {};
        request.items = &item;
        request.item_count = 1;
        request.settle_within = 60 * DOORMAN_SECOND;
        doorman_acquired acquired = {};
        doorman_error error = {};
        if (doorman_agent_acquire(agent, &request, DOORMAN_SECOND, &acquired, &error) !=
            DOORMAN_OK) {
            throw std::runtime_error(error.text);
        }
        if (!acquired.granted) throw std::runtime_error(doorman_reason_name(acquired.reason));
        reservation_ = acquired.reservation; /* 0: there is nothing to settle */
    }
    ~reservation_guard() {
        const doorman_permit_item item = item_of();
        doorman_settle_request request = {};
        request.id = reservation_;
        request.items = &item;
        request.item_count = 1;
        doorman_agent_settle(agent_, &request, nullptr, nullptr); /* does not wait */
    }
    reservation_guard(const reservation_guard &) = delete;
    reservation_guard &operator=(const reservation_guard &) = delete;

    /* Says what the request has cost. */
    void cost(double units) { cost_ = units; }

private:
    doorman_permit_item item_of() const {
        doorman_permit_item item = {};
        item.resource_id = resource_id_.c_str();
        item.key = key_.c_str();
        item.cost = cost_;
        return item;
    }
    doorman_agent *agent_;
    std::string resource_id_, key_;
    double cost_;
    uint64_t reservation_ = 0;
};

/* Each third request fails before its cost is known. */
static double complete(doorman_agent *agent, const char *resource_id, int number) {
    const double most = 100, used = 10 * number;
    reservation_guard guard(agent, resource_id, "acme", most);
    if (number % 3 == 0) throw std::runtime_error("failed");
    guard.cost(used);
    return used;
}

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] == '-') { /* such as --help */
        std::printf("usage: reservation_guard [ADDRESS [RESOURCE]]\n");
        return 0;
    }
    const char *addresses[] = {argc > 1 ? argv[1] : "tcp://127.0.0.1:15000"};
    doorman_client_options options = {};
    options.addresses = addresses;
    options.address_count = 1;
    options.permits.fallback = DOORMAN_FAIL_CLOSED; /* nothing is used without a server */
    doorman_agent *agent = nullptr;
    doorman_error error = {};
    if (doorman_agent_start(&agent, &options, &error) != DOORMAN_OK) {
        std::fprintf(stderr, "reservation_guard: %s\n", error.text);
        return 1;
    }
    for (int number = 1; number <= 4; number++) {
        try {
            double used = complete(agent, argc > 2 ? argv[2] : "llm/tokens", number);
            std::printf("request %d: %g units\n", number, used);
        } catch (const std::runtime_error &failure) {
            std::printf("request %d: %s\n", number, failure.what());
        }
    }
    doorman_agent_stop(agent); /* sends the settles that are left */
    return 0;
}
