/* Any bytes as the random numbers of the simulator (tests/sim). They decide how the system looks,
 * what the holders want, which faults occur when and where, and which messages are lost, late or
 * duplicated. All that must hold in a run of `make sim FAULTS=1` must hold here, at every event and
 * at the end. Then all resources are closed, and after a while no server knows any resource.
 *
 * A random number takes two bytes. When the bytes are used up, numbers from a fixed seed follow. */
#include "../sim/sim_faults.c"
#define DOORMAN_IMPLEMENTATION
#include "fuzz.h"

static struct {
    const uint8_t *data;
    size_t left;
    uint64_t state;
} dice;

uint64_t sim_random(uint64_t *ignored) {
    (void)ignored;
    if (dice.left < 2) return doorman__random(&dice.state);
    uint64_t number = (uint64_t)dice.data[0] << 8 | dice.data[1];
    dice.data += 2;
    dice.left -= 2;
    /* Both the highest bits, which sim_unit turns into a fraction, and the lowest bits are
     * random. */
    return number * UINT64_C(0x0001000100010001);
}

static void must_go_on(const sim_world *run) {
    if (!run->failure[0]) return;
    uint64_t count = run->note_count < SIM_NOTES ? run->note_count : SIM_NOTES;
    fprintf(stderr, "event %" PRIu64 ": %s\n", run->happened, run->failure);
    for (uint64_t i = run->note_count - count; i < run->note_count; i++) {
        fprintf(stderr, "%s\n", run->notes[i % SIM_NOTES]);
    }
    abort();
}

static void close_all(sim_world *run) {
    for (size_t i = 0; i < run->client_count; i++) {
        for (size_t k = 0; k < run->resource_count; k++) {
            if (run->clients[i].client && run->clients[i].uses[k].resource) sim_close(run, i, k);
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
    sim_story story = {.seed = 1};
    size_t most[SIM_BOUND_COUNT] = {[SIM_MOST_LEVELS] = 3,
                                    [SIM_MOST_NODES] = 3,
                                    [SIM_MOST_CLIENTS] = 4,
                                    [SIM_MOST_RESOURCES] = 2,
                                    [SIM_MOST_SECONDS] = 100};
    memcpy(story.most, most, sizeof most);
    for (size_t i = 0; i < SIM_FAULT_COUNT; i++) story.allowed[i] = true;
    dice.data = data;
    dice.left = bytes;
    dice.state = 1;

    sim_init(&world, story.seed);
    set_up(&world, &story);
    sim_run(&world, world.end);
    must_go_on(&world);
    heal(&world);
    sim_run(&world, world.now + settling_time(&world));
    must_go_on(&world);
    sim_check_settled(&world);
    must_go_on(&world);
    close_all(&world);
    sim_run(&world, world.now + settling_time(&world));
    must_go_on(&world);
    check_empty(&world);
    sim_uninit(&world);
    return 0;
}
