/* The conditions under which a simulated store takes a batch, and under which a master uses what
 * the last master has handed over: see sim_state_store.c and sim_election.c. They have a file of
 * their own, because mutants change it. sim.c and tests/fuzz/system.c include it. */
#ifndef STORE_FENCES_H
#define STORE_FENCES_H

/* D9: a store takes nothing of an earlier mastership than the one that has claimed it last. */
bool sim_state_is_refused(const sim_state_store *store, const sim_state_call *call) {
    return call->term < store->term;
}

/* D9: a store does not take a copy of a batch that arrives after a later batch. */
bool sim_state_is_late(const sim_state_store *store, const sim_state_call *call) {
    return call->term == store->term && call->write_number < store->write_number;
}

/* D9: what a master has handed over is only valid in the next term. */
bool sim_handover_is_next(const sim_handover *handover, uint64_t term) {
    return handover->term + 1 == term;
}

/* D9: a master looks only once in a term at what was handed over: it may have granted since. */
bool sim_handover_is_new(const sim_process *process, uint64_t term) {
    return process->looked_term != term;
}

#endif
