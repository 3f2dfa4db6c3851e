/* The conditions under which a store, the rows of a move, and the map in etcd change: see
 * sim_shards_node.c. They have a file of their own, because mutants change it. sim.c
 * includes it after sim_shards.h. */
#ifndef SHARDS_FENCES_H
#define SHARDS_FENCES_H

bool sim_shards_store_takes(shards_store *store, const shards_access *access) {
    if (access->term < store->term) return false;
    if (access->term == store->term && access->number < store->number) return false;
    store->term = access->term;
    store->number = access->number;
    return true;
}

bool sim_shards_map_changes(const shards_world *world, const shards_access *access) {
    const shards_election *election = &world->elections[world->processes[access->process].node];
    bool is_master = election->master == access->process && election->term == access->term;
    bool same = world->map.epoch == access->action.epoch;
    return is_master && same && world->now < election->until;
}

bool sim_shards_move_takes(const shards_move *move, const shards_access *access) {
    if (access->term != move->term) return access->term > move->term && access->index == 0;
    if (access->attempt != move->attempt) {
        return access->attempt > move->attempt && access->index == 0;
    }
    return access->index == move->count && !move->is_whole;
}

#endif
