/* A scope guard for a hold, in C++11. It waits for a slot, and gives it back when the scope ends,
 * even if an exception ends it. Meanwhile the agent renews the hold in the background. If the
 * process is killed, the hold ends by itself.
 *
 * Compile the header once as C, as gauge_guard.cpp says:
 *
 *     cc -c -x c doorman.h -DDOORMAN_IMPLEMENTATION -DDOORMAN_JSON -DDOORMAN_NNG -o doorman.o
 *     c++ -std=c++11 -I. examples/hold_guard.cpp doorman.o -lnng -lcjson -o hold_guard
 *     build/doorman_server --config config.example.json &
 *     ./hold_guard
 */
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman_permits.h"

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

class hold_guard {
public:
    /* Waits for one unit of a resource, for at most `timeout`. */
    hold_guard(doorman_agent *agent, const char *resource_id, const char *key, doorman_time timeout)
        : agent_(agent) {
        doorman_permit_item item = {};
        item.resource_id = resource_id;
        item.key = key;
        item.cost = 1;
        doorman_permit_request request = {};
        request.items = &item;
        request.item_count = 1;
        request.max_wait = timeout;
        request.hold = &hold_; /* doorman_agent_new_hold gives a number, if another thread should
                                  be able to cancel the wait: see "holds of an agent" */
        doorman_acquired acquired = {};
        doorman_error error = {};
        if (doorman_agent_acquire(agent, &request, timeout, &acquired, &error) != DOORMAN_OK) {
            throw std::runtime_error(error.text);
        }
        if (!acquired.granted) throw std::runtime_error(refusal(acquired));
        hold_ = acquired.hold; /* 0: nothing is held, because nothing limits the resource */
    }
    ~hold_guard() { doorman_agent_release(agent_, hold_); }
    hold_guard(hold_guard &&other) noexcept : agent_(other.agent_), hold_(other.hold_) {
        other.hold_ = 0;
    }
    hold_guard(const hold_guard &) = delete;
    hold_guard &operator=(const hold_guard &) = delete;

    /* A long job asks this from time to time: false means that it must stop using the slot. That
     * happens if no server has answered for the time to live. */
    bool held() const {
        doorman_held held = {};
        if (!hold_) return true;
        return doorman_agent_read_hold(agent_, hold_, &held) == DOORMAN_OK && !held.gone &&
               doorman_clock() < held.ends_at;
    }

private:
    static const char *refusal(const doorman_acquired &acquired) {
        if (acquired.decided_by == DOORMAN_BY_FALLBACK) return "no server has decided";
        return doorman_reason_name(acquired.reason);
    }
    doorman_agent *agent_;
    uint64_t hold_ = 0;
};

static void transcode(doorman_agent *agent, int number) {
    hold_guard guard(agent, "transcode", "acme", 20 * DOORMAN_SECOND);
    for (int part = 0; part < 3; part++) {
        if (!guard.held()) throw std::runtime_error("lost its slot");
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (number % 3 == 0) throw std::runtime_error("failed");
}

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] == '-') { /* such as --help */
        printf("usage: hold_guard [ADDRESS]\n");
        return 0;
    }
    const char *addresses[] = {argc > 1 ? argv[1] : "tcp://127.0.0.1:15000"};
    doorman_client_options options = {};
    options.addresses = addresses;
    options.address_count = 1;
    options.permits.fallback = DOORMAN_FAIL_CLOSED; /* no slot without a server */
    doorman_agent *agent = nullptr;
    doorman_error error = {};
    if (doorman_agent_start(&agent, &options, &error) != DOORMAN_OK) {
        std::fprintf(stderr, "hold_guard: %s\n", error.text);
        return 1;
    }
    int lost = 0;
    for (int number = 1; number <= 6; number++) {
        std::string result = "done";
        try {
            transcode(agent, number);
        } catch (const std::runtime_error &failure) {
            result = failure.what();
        }
        lost += result != "done" && result != "failed";
        std::printf("job %d: %s\n", number, result.c_str());
    }
    doorman_agent_stop(agent);
    return lost ? 1 : 0;
}
