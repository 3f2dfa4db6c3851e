/* A process of a node with shards, its store, and its mover: see sim_shards.c.
 *
 * A master claims the store of its node, reads all rows, and then does what its mover says. Some
 * rows may be of shards that the node does not own any more. The master forgets these when it has
 * read the map from etcd. About twice a second it writes what has changed. */
#include "sim_shards.h"

#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define TIMEOUT SECOND
#define PIECES 3 /* in which the rows of a shard that moves are written */

static shards_process *process_of(shards_world *world, size_t process) {
    return &world->processes[process];
}

/* ---- rows */

void sim_shards_rows_clear(shards_rows *rows) {
    for (size_t i = 0; i < rows->count; i++) free(rows->list[i].bytes);
    free(rows->list);
    *rows = (shards_rows){.list = NULL};
}

/* Returns the index of a name, or 0. */
static size_t index_of(const char *const *names, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) return i;
    }
    return 0;
}

static void rows_add(const shards_world *world, shards_rows *rows, const unsigned char *bytes,
                     size_t count) {
    doorman_permit_row read;
    shards_row row = {.byte_count = count, .bytes = malloc(count)};
    if (!row.bytes) abort();
    memcpy(row.bytes, bytes, count);
    if (doorman_permit_row_read(row.bytes, count, &read, NULL) != DOORMAN_OK) abort();
    row.identity = read.identity;
    row.identity_bytes = read.identity_bytes;
    row.removed = read.removed;
    row.fresh_at = read.fresh_at;
    row.is_counter = !read.is_clock && !read.is_reservation;
    if (row.is_counter) {
        const size_t place = index_of(sim_shards_places, SHARDS_PLACES, read.resource_id);
        const size_t key = index_of(sim_shards_keys, SHARDS_KEYS, read.key);
        row.shard = sim_shards_shard_of(world, place, key);
    }
    rows->list = sim_shards_grow(rows->list, rows->count, &rows->capacity, sizeof *rows->list);
    rows->list[rows->count++] = row;
}

/* Writes a row to a store. A removed row stays as a mark. */
static void store_row(const shards_world *world, shards_rows *rows, const shards_row *row) {
    for (size_t i = 0; i < rows->count; i++) {
        shards_row *old = &rows->list[i];
        if (old->identity_bytes != row->identity_bytes ||
            memcmp(old->identity, row->identity, row->identity_bytes) != 0) {
            continue;
        }
        free(old->bytes);
        *old = rows->list[--rows->count];
        break;
    }
    rows_add(world, rows, row->bytes, row->byte_count);
}

static void raise_upto(uint64_t *upto, uint64_t to) {
    if (to > *upto) *upto = to;
}

/* Raises the numbers of the counters of one shard.
 *   is_stored   only those of counters that have rows in a store */
static void raise_all(const shards_world *world, uint64_t *upto, const uint64_t *to, size_t shard,
                      bool is_stored) {
    for (size_t place = 0; place < SHARDS_PLACES; place++) {
        for (size_t key = 0; key < SHARDS_KEYS; key++) {
            if (sim_shards_shard_of(world, place, key) != shard) continue;
            for (int is_ban = 0; is_ban < 2; is_ban++) {
                if (is_stored && !is_ban && !sim_shards_is_durable(place)) continue;
                const size_t counter = sim_shards_counter(place, key, is_ban);
                raise_upto(&upto[counter], to[counter]);
            }
        }
    }
}

static void restore_rows(shards_world *world, doorman_permits *permits, const shards_rows *rows,
                         doorman_time now) {
    for (size_t i = 0; i < rows->count; i++) {
        const shards_row *row = &rows->list[i];
        doorman_error error = {0};
        if (row->removed) continue;
        doorman_status status =
            doorman_permits_restore(permits, row->bytes, row->byte_count, &error, now);
        if (status != DOORMAN_OK) sim_shards_fail(world, "a row is not restored: %s", error.text);
    }
}

/* ---- rows of a shard that moves */

static shards_move *move_of(shards_world *world, size_t shard, uint64_t number) {
    for (size_t i = 0; i < world->move_count; i++) {
        if (world->moves[i].shard == shard && world->moves[i].move == number) {
            return &world->moves[i];
        }
    }
    return NULL;
}

static shards_move *add_move(shards_world *world, size_t shard, uint64_t number) {
    shards_move *move = move_of(world, shard, number);
    if (move) return move;
    world->moves =
        sim_shards_grow(world->moves, world->move_count, &world->move_capacity, sizeof *move);
    move = &world->moves[world->move_count++];
    *move = (shards_move){.shard = shard, .move = number};
    return move;
}

/* Returns all parts of a shard, each after its length, as new memory. */
static unsigned char *write_shard(shards_world *world, doorman_permits *permits, size_t shard,
                                  size_t *bytes, doorman_time now) {
    doorman_shard_cursor cursor = {0};
    unsigned char *text = NULL;
    *bytes = 0;
    while (!cursor.at_end && !world->failure[0]) {
        doorman_shard_part part = {0};
        if (doorman_permits_next_shard_rows(permits, shard, &cursor, &part, now) != DOORMAN_OK) {
            sim_shards_fail(world, "a shard cannot be written");
        }
        const size_t count = part.bytes;
        if (!count) continue;
        text = realloc(text, *bytes + sizeof count + count);
        if (!text) abort();
        memcpy(text + *bytes, &count, sizeof count);
        memcpy(text + *bytes + sizeof count, part.rows, count);
        *bytes += sizeof count + count;
    }
    return text;
}

static void restore_shard(shards_world *world, doorman_permits *permits, size_t shard,
                          const unsigned char *text, size_t bytes, doorman_time now) {
    for (size_t at = 0; at < bytes;) {
        size_t count = 0, lost = 0;
        doorman_error error = {0};
        memcpy(&count, text + at, sizeof count);
        at += sizeof count;
        const doorman_shard_part part = {shard, text + at, count};
        if (doorman_permits_restore_shard(permits, &part, &lost, &error, now) != DOORMAN_OK ||
            lost) {
            sim_shards_fail(world, "shard %zu is not restored: %s, %zu lost", shard, error.text,
                            lost);
        }
        at += count;
    }
}

/* ---- accesses to stores and etcd */

static bool is_store(shards_io io) { return io <= SHARDS_WRITE; }

/* Begins an access. The answer may be lost, with or without the effect. The effect may also come
 * after the process has given the access up. */
static shards_access *begin_access(shards_world *world, size_t process, shards_io io) {
    const shards_process *own = process_of(world, process);
    size_t at = 0;
    while (at < SHARDS_ACCESSES && world->accesses[at].used) at++;
    if (at == SHARDS_ACCESSES) abort();
    shards_access *access = &world->accesses[at];
    *access = (shards_access){.used = true, .io = io, .process = process, .term = own->term};
    access->incarnation = own->incarnation;
    access->number = ++world->accessed;
    access->apply_at = world->now + sim_shards_between(world, 0, SECOND / 20);
    if (is_store(io) && sim_shards_fault(world, SIM_SLOW, 0.1)) {
        access->apply_at += sim_shards_between(world, 0, 6 * SECOND);
    }
    if (!is_store(io) && sim_shards_fault(world, SIM_LOSS, 0.1)) {
        access->apply_at += sim_shards_between(world, 0, 4 * SECOND);
    }
    access->answer_at = access->apply_at + sim_shards_between(world, 0, SECOND / 20);
    const bool lost = !is_store(io) &&
                      (sim_shards_fault(world, SIM_LOSS, 0.05) || world->now < own->exiled_until);
    if (lost) access->answer_at = DOORMAN_NEVER;
    if (lost && sim_shards_chance(world, 0.5)) access->is_applied = true; /* it never arrives */
    access->is_late = access->answer_at > world->now + TIMEOUT;
    if (access->is_late) access->answer_at = world->now + TIMEOUT;
    return access;
}

static void end_access(shards_access *access) {
    sim_shards_rows_clear(&access->rows);
    free(access->text);
    access->used = false;
}

static void apply_write(shards_world *world, shards_access *access) {
    shards_store *store = &world->stores[process_of(world, access->process)->node];
    access->is_refused = !sim_shards_store_takes(store, access);
    world->refused_writes += access->is_refused;
    for (size_t i = 0; i < access->rows.count && !access->is_refused; i++) {
        store_row(world, &store->rows, &access->rows.list[i]);
    }
    for (size_t i = 0; i < SHARDS_COUNTERS && !access->is_refused; i++) {
        raise_upto(&store->upto[i], access->upto[i]);
    }
}

static void apply_change(shards_world *world, shards_access *access) {
    const doorman_shard_action *action = &access->action;
    doorman_shard *owners = world->map.owners;
    access->is_refused = !sim_shards_map_changes(world, access);
    if (access->is_refused) return;
    world->map.epoch++;
    if (action->step == DOORMAN_SHARD_COMMIT) {
        owners[action->shard] = (doorman_shard){
            .owner = action->target, .target = action->target, .from = action->move};
        world->moves_done++;
    }
    for (size_t i = 0; i < world->shards.count; i++) {
        shards_store *store = &world->stores[process_of(world, access->process)->node];
        if (!access->settles[i]) continue;
        owners[i].from = 0;
        raise_all(world, store->upto, access->upto, i, true); /* it has what was taken */
    }
}

static void forget_moves(shards_world *world, size_t shard, uint64_t before) {
    for (size_t i = 0; i < world->move_count; i++) {
        if (world->moves[i].shard != shard || world->moves[i].move >= before) continue;
        free(world->moves[i].text);
        world->moves[i--] = world->moves[--world->move_count];
    }
}

static void apply_move(shards_world *world, shards_access *access) {
    const size_t shard = access->action.shard;
    const uint64_t number = access->action.move;
    for (size_t i = 0; i < world->move_count; i++) {
        const bool later = world->moves[i].shard == shard && world->moves[i].move > number;
        access->is_refused = access->is_refused || later;
    }
    if (access->is_refused) return;
    shards_move *move = add_move(world, shard, number);
    access->is_refused = !sim_shards_move_takes(move, access);
    if (access->is_refused) return;
    forget_moves(world, shard, number);
    move = move_of(world, shard, number);
    if (access->index == 0) move->bytes = move->count = 0;
    move->term = access->term;
    move->attempt = access->attempt;
    move->text = realloc(move->text, move->bytes + access->bytes + 1);
    if (!move->text) abort();
    if (access->bytes) memcpy(move->text + move->bytes, access->text, access->bytes);
    move->bytes += access->bytes;
    move->count++;
    move->is_whole = access->is_last;
    memcpy(move->upto, access->upto, sizeof move->upto);
}

static void apply_read_move(shards_world *world, shards_access *access) {
    const shards_move *move = move_of(world, access->action.shard, access->action.move);
    const doorman_shard *owner = &world->map.owners[access->action.shard];
    const bool counts = owner->from == access->action.move &&
                        owner->owner == process_of(world, access->process)->node;
    access->is_refused = !move || !move->is_whole;
    if (access->is_refused && !counts) return; /* the process is not master any more */
    if (access->is_refused) {
        sim_shards_fail(world, "the rows of move %llu of shard %zu are not whole",
                        (unsigned long long)access->action.move, access->action.shard);
        return;
    }
    access->bytes = move->bytes;
    access->text = malloc(move->bytes + 1);
    if (!access->text) abort();
    if (move->bytes) memcpy(access->text, move->text, move->bytes);
    memcpy(access->upto, move->upto, sizeof access->upto);
}

static void apply(shards_world *world, shards_access *access) {
    const shards_store *store = &world->stores[process_of(world, access->process)->node];
    const shards_rows *stored = &store->rows;
    access->is_applied = true;
    switch (access->io) {
    case SHARDS_CLAIM:
    case SHARDS_WRITE: apply_write(world, access); break;
    case SHARDS_READ:
        memcpy(access->upto, store->upto, sizeof access->upto);
        for (size_t i = 0; i < stored->count; i++) {
            rows_add(world, &access->rows, stored->list[i].bytes, stored->list[i].byte_count);
        }
        break;
    case SHARDS_READ_MAP: access->map = world->map; break;
    case SHARDS_CHANGE_MAP: apply_change(world, access); break;
    case SHARDS_WRITE_MOVE: apply_move(world, access); break;
    case SHARDS_READ_MOVE: apply_read_move(world, access); break;
    }
    const bool writes = access->io == SHARDS_WRITE || access->io >= SHARDS_CHANGE_MAP;
    if (writes && process_of(world, access->process)->incarnation == access->incarnation &&
        sim_shards_fault(world, SIM_CRASH, 0.04)) {
        sim_shards_crash(world, access->process);
    }
}

/* ---- what a process does with answers of its store */

static void forget_rows(shards_process *own) { sim_shards_rows_clear(&own->rows); }

static void take_stored(shards_world *world, size_t process, const shards_access *access,
                        bool answered) {
    shards_process *own = process_of(world, process);
    own->is_busy = false;
    own->next_at = world->now + sim_shards_between(world, 0, SECOND / 5);
    if (!answered) return; /* once more */
    if (access->is_refused) {
        own->is_fenced = true;
        return;
    }
    if (own->step == SHARDS_CLAIM) {
        own->step = SHARDS_READ;
    } else if (own->step == SHARDS_READ) {
        memcpy(own->stored, access->upto, sizeof own->stored);
        restore_rows(world, own->permits, &access->rows, sim_shards_local(own, world->now));
        (void)doorman_permits_set_rows(own->permits, DOORMAN_ROWS_READ);
        own->was_read = true;
        own->step = SHARDS_WRITE;
    } else {
        forget_rows(own);
        own->stored_takes = own->round_takes;
        own->next_at = world->now + sim_shards_between(world, SECOND / 10, SECOND);
    }
}

/* Notes in own->round which decisions the store has once the rows of this round are written. */
static void note_round(const shards_world *world, shards_process *own) {
    uint64_t all[SHARDS_COUNTERS];
    for (size_t i = 0; i < SHARDS_COUNTERS; i++) all[i] = world->op_number;
    memset(own->round, 0, sizeof own->round);
    for (size_t i = 0; i < world->shards.count; i++) {
        if (own->knows[i]) raise_all(world, own->round, all, i, true);
    }
}

/* Writes the rows that have changed, or again the rows of a write that was not answered. */
static void write_rows(shards_world *world, size_t process) {
    unsigned char bytes[DOORMAN_PERMIT_ROW_BYTES_MAX];
    shards_process *own = process_of(world, process);
    if (!own->rows.count) {
        own->round_takes = own->takes;
        for (size_t i = 0; i < 10000; i++) {
            size_t count = doorman_permits_next_changed(own->permits, bytes,
                                                        sim_shards_local(own, world->now));
            if (!count) break;
            rows_add(world, &own->rows, bytes, count);
        }
        note_round(world, own); /* D3: a counter without a row has no changes */
    }
    shards_access *access = begin_access(world, process, SHARDS_WRITE);
    for (size_t i = 0; i < own->rows.count; i++) {
        const shards_row *row = &own->rows.list[i];
        rows_add(world, &access->rows, row->bytes, row->byte_count);
    }
    memcpy(access->upto, own->round, sizeof access->upto);
    own->number = access->number;
    own->is_busy = true;
}

static void work_store(shards_world *world, size_t process) {
    shards_process *own = process_of(world, process);
    if (own->is_busy || own->is_fenced || world->now < own->next_at) return;
    if (own->step == SHARDS_WRITE) {
        write_rows(world, process);
        return;
    }
    own->number = begin_access(world, process, own->step)->number;
    own->is_busy = true;
}

/* ---- what a process does for its mover */

static void end_action(shards_world *world, size_t process, doorman_shard_result result) {
    shards_process *own = process_of(world, process);
    own->acts = false;
    own->move_at = world->now;
    if (result != DOORMAN_SHARD_DONE) {
        own->move_at += sim_shards_between(world, SECOND / 50, SECOND / 4);
    }
    doorman_shard_mover_end(own->mover, result);
}

static doorman_shard_map map_of(const shards_map *map, const shards_world *world,
                                doorman_shard_node nodes[SHARDS_NODES]) {
    static const char *const names[SHARDS_NODES] = {"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"};
    static const char *const address[] = {"tcp://127.0.0.1:1"};
    for (size_t i = 0; i < map->node_count; i++) {
        nodes[i] = (doorman_shard_node){.name = names[i], .addresses = address, .address_count = 1};
    }
    return (doorman_shard_map){.epoch = map->epoch,
                               .shards = world->shards,
                               .owners = map->owners,
                               .nodes = nodes,
                               .node_count = map->node_count};
}

static void forget_shard(shards_world *world, size_t process, size_t shard) {
    shards_process *own = process_of(world, process);
    doorman_shard_cursor cursor = {0};
    const doorman_time local = sim_shards_local(own, world->now);
    (void)doorman_permits_own(own->permits, shard, false, true, local);
    sim_shards_drain(world, process);
    for (size_t i = 0; i < 1000 && !cursor.at_end; i++) {
        if (doorman_permits_drop_shard(own->permits, shard, &cursor, local) != DOORMAN_OK) break;
    }
    sim_shards_drain(world, process);
    if (!cursor.at_end) sim_shards_fail(world, "a shard is not forgotten");
    own->is_first[shard] = own->knows[shard] = false;
}

/* Forgets the shards that belong to other nodes in the first map that a mastership reads from etcd.
 * Their rows were read from the store before the map was known. */
static void take_first_map(shards_world *world, size_t process) {
    shards_process *own = process_of(world, process);
    own->has_map = true;
    for (size_t i = 0; i < world->shards.count; i++) {
        own->is_first[i] = doorman_shard_mover_state(own->mover, i) != DOORMAN_SHARD_AWAY;
        if (!own->is_first[i]) forget_shard(world, process, i);
    }
}

static void give_map(shards_world *world, size_t process, const shards_map *map, bool is_sure) {
    shards_process *own = process_of(world, process);
    doorman_shard_node nodes[SHARDS_NODES];
    const doorman_shard_map whole = map_of(map, world, nodes);
    if (doorman_shard_mover_map(own->mover, &whole, is_sure) != DOORMAN_OK) {
        sim_shards_fail(world, "a map is refused");
    }
    if (is_sure && !own->has_map) take_first_map(world, process);
}

/* Lets a process decide for a shard from now on. Fails if another process decides for it too. */
static void decide(shards_world *world, size_t process, size_t shard, bool has_holds) {
    shards_process *own = process_of(world, process);
    for (size_t i = 0; i < world->process_count; i++) {
        const shards_process *other = process_of(world, i);
        if (i == process || !other->permits || !sim_shards_is_master(world, other)) continue;
        if (!doorman_permits_owns(other->permits, shard)) continue;
        sim_shards_fail(world, "processes %zu and %zu decide for shard %zu", process, i, shard);
    }
    (void)doorman_permits_own(own->permits, shard, true, has_holds,
                              sim_shards_local(own, world->now));
}

static void write_piece(shards_world *world, size_t process) {
    shards_process *own = process_of(world, process);
    shards_access *access = begin_access(world, process, SHARDS_WRITE_MOVE);
    const size_t piece = own->bytes / PIECES + 1, left = own->bytes - own->written;
    access->action = own->action;
    access->attempt = own->attempt;
    access->index = own->pieces;
    access->bytes = left < piece ? left : piece;
    access->is_last = access->bytes == left;
    access->text = malloc(access->bytes + 1);
    if (!access->text) abort();
    if (access->bytes) memcpy(access->text, own->text + own->written, access->bytes);
    for (size_t i = 0; i < SHARDS_COUNTERS; i++) access->upto[i] = world->op_number;
    own->move_number = access->number;
}

/* Step 1 of N7: stops deciding for a shard, and writes its rows. */
static void give(shards_world *world, size_t process) {
    shards_process *own = process_of(world, process);
    const doorman_time local = sim_shards_local(own, world->now);
    (void)doorman_permits_own(own->permits, own->action.shard, false, true, local);
    sim_shards_drain(world, process);
    free(own->text);
    own->text = write_shard(world, own->permits, own->action.shard, &own->bytes, local);
    own->written = own->pieces = 0;
    own->attempt++;
    write_piece(world, process);
}

/* Lets the permits note where the keys of shards are, before step 1 of N7. Between two calls the
 * process still decides. Sometimes it gives the shard before all keys are noted. */
static void find(shards_world *world, size_t process) {
    shards_process *own = process_of(world, process);
    const size_t most = (size_t)sim_shards_between(world, 1, 16);
    const bool goes_on =
        doorman_permits_find_shards(own->permits, most, sim_shards_local(own, world->now));
    own->find_at = world->now + sim_shards_between(world, 0, SECOND / 20);
    if (goes_on && !sim_shards_chance(world, 0.02)) return;
    own->finds = false;
    give(world, process);
}

/* Step 3 of N7: restores the rows of a shard, and begins to decide for it. */
static void take(shards_world *world, size_t process, const shards_access *access) {
    shards_process *own = process_of(world, process);
    const size_t shard = own->action.shard;
    uint64_t upto[SHARDS_COUNTERS] = {0};
    const bool is_first = own->is_first[shard];
    /* what was read from the store is kept only if a predecessor may have decided since the move */
    if (is_first) memcpy(upto, own->stored, sizeof upto);
    if (!is_first || own->term == 1) forget_shard(world, process, shard);
    own->is_first[shard] = is_first;
    if (access) {
        restore_shard(world, own->permits, shard, access->text, access->bytes,
                      sim_shards_local(own, world->now));
        for (size_t i = 0; i < SHARDS_COUNTERS; i++) raise_upto(&upto[i], access->upto[i]);
    }
    if (world->faulty && sim_shards_chance(world, 0.1)) {
        sim_shards_log(world, "process %zu fails to take shard %zu", process, shard);
        end_action(world, process, DOORMAN_SHARD_FAILED); /* for example memory ran out */
        return;
    }
    sim_shards_account_taken(world, shard, upto);
    raise_all(world, own->taken, upto, shard, false);
    const bool knows_holds = !own->action.is_lost && !(is_first && own->term > 1);
    decide(world, process, shard, knows_holds);
    own->knows[shard] = true;
    own->takes++;
    sim_shards_log(world, "process %zu takes shard %zu by move %llu", process, shard,
                   (unsigned long long)own->action.move);
    end_action(world, process, DOORMAN_SHARD_DONE);
    if (world->exact) sim_shards_account_inspect(world, process, shard);
    sim_shards_drain(world, process); /* an inspection decides on permits whose time has come */
}

static void change_map(shards_world *world, size_t process) {
    shards_process *own = process_of(world, process);
    shards_access *access = begin_access(world, process, SHARDS_CHANGE_MAP);
    access->action = own->action;
    memcpy(access->upto, own->taken, sizeof access->upto);
    for (size_t i = 0; own->action.step == DOORMAN_SHARD_SETTLE && i < world->shards.count; i++) {
        access->settles[i] = world->map.owners[i].owner == own->node &&
                             doorman_shard_mover_state(own->mover, i) == DOORMAN_SHARD_OWNED;
    }
    own->move_number = access->number;
}

static void begin_action(shards_world *world, size_t process) {
    shards_process *own = process_of(world, process);
    const size_t shard = own->action.shard;
    own->acts = true;
    switch (own->action.step) {
    case DOORMAN_SHARD_READ_MAP:
        own->move_number = begin_access(world, process, SHARDS_READ_MAP)->number;
        break;
    case DOORMAN_SHARD_GIVE:
        own->finds = true;
        own->find_at = world->now;
        break;
    case DOORMAN_SHARD_COMMIT:
    case DOORMAN_SHARD_SETTLE: change_map(world, process); break;
    case DOORMAN_SHARD_RESUME:
        decide(world, process, shard, true);
        end_action(world, process, DOORMAN_SHARD_DONE);
        break;
    case DOORMAN_SHARD_TAKE:
        if (own->action.move) {
            shards_access *access = begin_access(world, process, SHARDS_READ_MOVE);
            access->action = own->action;
            own->move_number = access->number;
        } else {
            take(world, process, NULL);
        }
        break;
    case DOORMAN_SHARD_DROP:
        forget_shard(world, process, shard);
        end_action(world, process, DOORMAN_SHARD_DONE);
        break;
    case DOORMAN_SHARD_STEP_COUNT: sim_shards_fail(world, "an unknown step"); break;
    }
}

static void take_moved(shards_world *world, size_t process, const shards_access *access,
                       bool answered) {
    shards_process *own = process_of(world, process);
    const bool done = answered && !access->is_refused;
    if (access->io == SHARDS_READ_MAP && done) {
        own->acts = false;
        give_map(world, process, &access->map, true);
    } else if (access->io == SHARDS_WRITE_MOVE && done && !access->is_last) {
        own->written += access->bytes;
        own->pieces++;
        write_piece(world, process);
    } else if (access->io == SHARDS_READ_MOVE && done) {
        take(world, process, access);
    } else {
        const bool unknown = access->io == SHARDS_CHANGE_MAP && !answered;
        end_action(world, process,
                   done      ? DOORMAN_SHARD_DONE
                   : unknown ? DOORMAN_SHARD_UNKNOWN
                             : DOORMAN_SHARD_FAILED);
    }
}

static void work_mover(shards_world *world, size_t process) {
    shards_process *own = process_of(world, process);
    if (world->now >= own->watch_at) {
        own->watch_at = world->now + sim_shards_between(world, SECOND / 50, 2 * SECOND);
        give_map(world, process, &world->map, false);
    }
    for (int i = 0; i < 50 && !own->acts && own->permits && world->now >= own->move_at; i++) {
        const bool stored = own->stored_takes == own->takes;
        if (!doorman_shard_mover_next(own->mover, stored, &own->action)) break;
        begin_action(world, process);
    }
    if (own->finds && own->permits && world->now >= own->find_at) find(world, process);
}

/* ---- the process */

static void answer(shards_world *world, shards_access *access) {
    shards_process *own = process_of(world, access->process);
    const size_t process = access->process;
    access->is_answered = true;
    const bool same = own->incarnation == access->incarnation && own->term == access->term;
    if (!same || !own->permits || !sim_shards_is_master(world, own)) return;
    const bool answered = access->is_applied && !access->is_late;
    if (is_store(access->io)) {
        if (own->is_busy && access->number == own->number) {
            take_stored(world, process, access, answered);
        }
    } else if (own->acts && access->number == own->move_number) {
        take_moved(world, process, access, answered);
    }
}

void sim_shards_access(shards_world *world) {
    for (size_t i = 0; i < SHARDS_ACCESSES && !world->failure[0]; i++) {
        shards_access *access = &world->accesses[i];
        if (!access->used) continue;
        const shards_process *own = process_of(world, access->process);
        const bool gone = is_store(access->io) && world->now < world->stores[own->node].gone_until;
        if (!access->is_applied && !gone && world->now >= access->apply_at) apply(world, access);
        if (access->is_answered || world->now < access->answer_at) {
            if (access->is_answered && access->is_applied) end_access(access);
            continue;
        }
        if (own->incarnation == access->incarnation && world->now < own->paused_until) continue;
        answer(world, access);
        if (access->is_applied) end_access(access);
    }
}

void sim_shards_begin(shards_world *world, size_t process) {
    static const char *const names[SHARDS_NODES] = {"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"};
    shards_process *own = process_of(world, process);
    const doorman_time local = sim_shards_local(own, world->now);
    /* a seed of its own, as a process draws one, so that no hold has the id of a forgotten one */
    const doorman_permits_options options = {.config = world->config,
                                             .seed = {4 + world->masterships, world->seed},
                                             .node = names[own->node]};
    sim_shards_end(world, process);
    if (doorman_permits_create(&own->permits, &options, NULL, local) != DOORMAN_OK) abort();
    doorman_permits_set_epoch(own->permits, sim_shards_epoch(world), local);
    if (doorman_permits_set_shards(own->permits, &world->shards) != DOORMAN_OK) abort();
    (void)doorman_permits_set_rows(own->permits, DOORMAN_ROWS_AWAITED);
    if (!own->mover && doorman_shard_mover_create(&own->mover, names[own->node]) != DOORMAN_OK) {
        abort();
    }
    doorman_shard_mover_start(own->mover);
    own->is_master = true;
    own->step = SHARDS_CLAIM;
    own->next_at = own->move_at = world->now;
    world->masterships++;
}

void sim_shards_end(shards_world *world, size_t process) {
    shards_process *own = process_of(world, process);
    for (size_t i = 0; i < SHARDS_WAITS; i++) {
        if (world->waits[i].process == process) world->waits[i].used = false;
    }
    if (own->mover) doorman_shard_mover_stop(own->mover);
    doorman_permits_destroy(own->permits);
    own->permits = NULL;
    forget_rows(own);
    free(own->text);
    own->text = NULL;
    own->is_master = own->is_busy = own->was_read = own->is_fenced = own->acts = false;
    own->has_map = own->finds = false;
    own->takes = own->round_takes = own->stored_takes = 0;
    memset(own->is_first, 0, sizeof own->is_first);
    memset(own->knows, 0, sizeof own->knows);
    memset(own->taken, 0, sizeof own->taken);
}

void sim_shards_work(shards_world *world, size_t process) {
    shards_process *own = process_of(world, process);
    if (!own->permits) return;
    if (!sim_shards_is_master(world, own)) {
        sim_shards_end(world, process);
        return;
    }
    if (world->now >= own->update_at) {
        const doorman_time local = sim_shards_local(own, world->now);
        own->update_at = world->now + sim_shards_between(world, SECOND / 10, SECOND / 2);
        doorman_permits_set_epoch(own->permits, sim_shards_epoch(world), local);
        doorman_permits_update(own->permits, local);
        sim_shards_drain(world, process);
    }
    work_store(world, process);
    if (own->was_read && !world->failure[0]) work_mover(world, process);
}

/* ---- moves of shards of a dead node */

/* Makes the rows of a shard out of the store of its node. */
static void force_write(shards_world *world) {
    shards_force *force = &world->force;
    const doorman_permits_options options = {.config = world->config, .seed = {3, world->seed}};
    const uint64_t from = world->map.owners[force->shard].from;
    const shards_rows *rows = &world->stores[force->from].rows;
    doorman_permits *permits = NULL;
    if (doorman_permits_create(&permits, &options, NULL, world->now) != DOORMAN_OK) abort();
    doorman_permits_set_epoch(permits, sim_shards_epoch(world), world->now);
    if (doorman_permits_set_shards(permits, &world->shards) != DOORMAN_OK) abort();
    restore_rows(world, permits, rows, world->now);
    shards_move *move = add_move(world, force->shard, force->epoch + 1);
    memcpy(move->upto, world->stores[force->from].upto, sizeof move->upto);
    const shards_move *old = from ? move_of(world, force->shard, from) : NULL;
    if (old) {
        restore_shard(world, permits, force->shard, old->text, old->bytes, world->now);
        for (size_t i = 0; i < SHARDS_COUNTERS; i++) raise_upto(&move->upto[i], old->upto[i]);
    }
    free(move->text);
    move->text = write_shard(world, permits, force->shard, &move->bytes, world->now);
    move->is_whole = true;
    move->term = force->term;
    doorman_permits_destroy(permits);
}

void sim_shards_force(shards_world *world) {
    shards_force *force = &world->force;
    const shards_election *election = &world->elections[force->from];
    if (!force->used || world->now < force->at) return;
    const bool same = world->map.epoch == force->epoch && election->term == force->term;
    if (!same) {
        force->used = false;
    } else if (!force->is_written) {
        force_write(world);
        force->is_written = true;
        force->at = world->now + SECOND / 10;
    } else {
        world->map.owners[force->shard] = (doorman_shard){.owner = force->target,
                                                          .target = force->target,
                                                          .from = force->epoch + 1,
                                                          .is_lost = true};
        world->map.epoch++;
        world->forced++;
        force->used = false;
        sim_shards_log(world, "shard %zu of the dead node %zu moves to node %zu", force->shard,
                       force->from, force->target);
    }
}

/* ---- checks */

void sim_shards_check_known(shards_world *world, size_t process) {
    const shards_process *own = process_of(world, process);
    doorman_counter_cursor cursor = {0};
    doorman_cursor position = {0};
    doorman_permits_counter counter;
    doorman_permits_hold hold;
    doorman_permits_reservation reservation;
    size_t foreign = 0;
    while (doorman_permits_next_counter(own->permits, NULL, &cursor, &counter,
                                        sim_shards_local(own, world->now)) == DOORMAN_OK) {
        const size_t shard =
            doorman_permits_shard_of(own->permits, counter.resource_id, counter.key);
        foreign += !doorman_permits_owns(own->permits, shard);
    }
    while (doorman_permits_next_hold(own->permits, &position, &hold)) {
        foreign += !doorman_permits_owns(own->permits, (size_t)(hold.id % world->shards.count));
    }
    position = (doorman_cursor){0};
    while (doorman_permits_next_reservation(own->permits, &position, &reservation)) {
        const size_t shard = (size_t)(reservation.id % world->shards.count);
        foreign += !doorman_permits_owns(own->permits, shard);
    }
    const shards_rows *rows = &world->stores[own->node].rows;
    for (size_t i = 0; i < rows->count; i++) {
        const shards_row *row = &rows->list[i];
        const bool counts =
            row->is_counter && !row->removed && row->fresh_at > sim_shards_epoch(world);
        foreign += counts && !doorman_permits_owns(own->permits, row->shard);
    }
    if (foreign) {
        sim_shards_fail(world, "process %zu knows %zu rows of shards of other nodes", process,
                        foreign);
    }
}

void sim_shards_uninit(shards_world *world) {
    for (size_t i = 0; i < SHARDS_ACCESSES; i++) {
        if (world->accesses[i].used) end_access(&world->accesses[i]);
    }
    for (size_t i = 0; i < world->process_count; i++) {
        sim_shards_end(world, i);
        doorman_shard_mover_destroy(world->processes[i].mover);
    }
    for (size_t i = 0; i < world->node_count; i++) sim_shards_rows_clear(&world->stores[i].rows);
    for (size_t i = 0; i < world->move_count; i++) free(world->moves[i].text);
    free(world->moves);
    free(world->messages);
}
