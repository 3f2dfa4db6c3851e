/* A scope guard for a gauge, in C++11. The guard releases the units when the scope ends, even if an
 * exception ends it.
 *
 * The implementation needs C11. So compile the header once as C, and link the object:
 *
 *     cc -c -x c doorman.h -DDOORMAN_IMPLEMENTATION -DDOORMAN_JSON -DDOORMAN_NNG -o doorman.o
 *     c++ -std=c++11 -I. examples/gauge_guard.cpp doorman.o -lnng -lcjson -o gauge_guard
 *     build/doorman_server --config config.example.json &
 *     ./gauge_guard
 */
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman.h"

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>

class gauge_guard {
public:
    gauge_guard(doorman_resource *resource, double units, doorman_time timeout)
        : resource_(resource), units_(units),
          status_(doorman_resource_wait(resource, units, timeout)) {}
    ~gauge_guard() {
        if (status_ == DOORMAN_OK) doorman_resource_release(resource_, units_);
    }
    gauge_guard(const gauge_guard &) = delete;
    gauge_guard &operator=(const gauge_guard &) = delete;

    explicit operator bool() const { return status_ == DOORMAN_OK; }
    doorman_status status() const { return status_; }

private:
    doorman_resource *resource_;
    double units_;
    doorman_status status_;
};

static void transaction(doorman_resource *resource, int number) {
    gauge_guard guard(resource, 1, 5 * DOORMAN_SECOND);
    if (!guard) throw std::runtime_error(doorman_status_name(guard.status()));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (number % 3 == 0) throw std::runtime_error("rolled back");
}

static double in_use(const doorman_resource *resource) {
    doorman_resource_info info;
    doorman_resource_read(resource, &info);
    return info.in_use;
}

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] == '-') { /* such as --help */
        printf("usage: gauge_guard [ADDRESS]\n");
        return 0;
    }
    const char *addresses[] = {argc > 1 ? argv[1] : "tcp://127.0.0.1:15000"};
    doorman_client_options options = {};
    options.addresses = addresses;
    options.address_count = 1;
    doorman_resource_options database = {};
    database.resource_id = "db/orders/transactions";
    database.kind = DOORMAN_GAUGE;
    database.has_safe_capacity = true;
    database.safe_capacity = 1;

    doorman_agent *agent = nullptr;
    doorman_resource *resource = nullptr;
    doorman_error error = {};
    if (doorman_agent_start(&agent, &options, &error) != DOORMAN_OK ||
        doorman_resource_open(&resource, agent, &database, &error) != DOORMAN_OK) {
        std::fprintf(stderr, "gauge_guard: %s\n", error.text);
        doorman_agent_stop(agent);
        return 1;
    }
    for (int number = 1; number <= 6; number++) {
        const char *result = "committed";
        try {
            transaction(resource, number);
        } catch (const std::runtime_error &failure) {
            result = failure.what();
        }
        std::printf("transaction %d: %s, %g in use\n", number, result, in_use(resource));
    }
    doorman_agent_stop(agent);
    return 0;
}
