/* Uses any bytes as the random numbers of the simulator (tests/sim). These decide which nodes and
 * clients the system has, what the holders want, which faults occur when and where, and which
 * messages are lost, late or duplicated. All that must hold in a run of `make sim FAULTS=1` must
 * hold here, at every event and at the end. After the checks at the end all resources are closed,
 * and after a while no server knows any resource.
 *
 * A random number takes two bytes. When the bytes are used up, numbers from a fixed seed follow. */
#include "../sim/sim_faults.c"
#include "../sim/sim_state.h"
#include "../sim/store_fences.h"
#define DOORMAN_IMPLEMENTATION
#include "fuzz.h"

static struct {
    const uint8_t *data;
    size_t left;
    uint64_t state;
} random_input;

uint64_t sim_random(uint64_t *ignored) {
    (void)ignored;
    if (random_input.left < 2) return doorman__random(&random_input.state);
    uint64_t number = (uint64_t)random_input.data[0] << 8 | random_input.data[1];
    random_input.data += 2;
    random_input.left -= 2;
    /* Both the highest bits, which sim_unit turns into a fraction, and the lowest bits are
     * random. */
    return number * UINT64_C(0x0001000100010001);
}

static void check_failure(const sim_world *run) {
    if (!run->failure[0]) return;
    uint64_t count = run->log_count < SIM_LOG_LINES ? run->log_count : SIM_LOG_LINES;
    fprintf(stderr, "event %" PRIu64 ": %s\n", run->handled_count, run->failure);
    for (uint64_t i = run->log_count - count; i < run->log_count; i++) {
        fprintf(stderr, "%s\n", run->log_lines[i % SIM_LOG_LINES]);
    }
    abort();
}

static void close_all(sim_world *run) {
    for (size_t i = 0; i < run->client_count; i++) {
        for (size_t k = 0; k < run->resource_count; k++) {
            if (run->clients[i].client && run->clients[i].usages[k].resource) sim_close(run, i, k);
        }
    }
}

static void check_empty(sim_world *run) {
    for (size_t i = 0; i < run->process_count; i++) {
        const sim_process *process = &run->processes[i];
        doorman_time local = sim_local(&process->machine.clock, run->now);
        if (process->server) must(fuzz_check_server(process->server, false, local) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    sim_run_options options = {.seed = 1};
    size_t maximum[SIM_BOUND_COUNT] = {[SIM_MAX_LEVELS] = 3,
                                       [SIM_MAX_NODES] = 3,
                                       [SIM_MAX_CLIENTS] = 4,
                                       [SIM_MAX_RESOURCES] = 2,
                                       [SIM_MAX_SECONDS] = 100};
    memcpy(options.maximum, maximum, sizeof maximum);
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) options.allowed[i] = true;
    random_input.data = data;
    random_input.left = bytes;
    random_input.state = 1;

    sim_init(&world, options.seed);
    set_up(&world, &options);
    sim_run(&world, world.end);
    check_failure(&world);
    end_faults(&world);
    sim_run(&world, world.now + settling_time(&world));
    check_failure(&world);
    sim_check_settled(&world);
    check_failure(&world);
    close_all(&world);
    sim_run(&world, world.now + settling_time(&world));
    check_failure(&world);
    check_empty(&world);
    sim_uninit(&world);
    return 0;
}
