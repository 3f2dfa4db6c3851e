/* doorman_server, part SHARDS: the rows of shards that move (N7). The owner writes them into the
 * Redis in parts, and the next owner reads them. Both work in steps. A step holds the lock of the
 * service for about a millisecond, and never while it uses Redis. Before the owner stops deciding
 * for a shard, it finds out where the keys of each shard are, so that it need not look at all keys
 * afterwards. Even so a step finds few rows. A part has the rows of many steps, because hundreds of
 * small parts would take the Redis longer. */
#include "shards.h"

#define STEP_PAUSE 100000   /* nanoseconds between two steps, so that others get the lock */
#define FULL_PAUSE 20000000 /* while many removed rows wait to be written */
#define MOVE_STEPS 4        /* between two pauses, while nobody decides for the shard */
#define PART_BYTES 65536    /* a part of this size is written */
#define FIND_BUCKETS 1024   /* of a step that finds keys: some tenths of a millisecond */

static void rows_pause(long nanoseconds) {
    const struct timespec time = {.tv_nsec = nanoseconds};
    nanosleep(&time, NULL);
}

/* Opens the store, and begins there the mastership that has begun in the election. */
static bool rows_open(struct shards *shards) {
    char error[STORE_TEXT];
    if (!shards->store) shards->store = server_store_open(&shards->place, error);
    if (!shards->store) {
        server_shards_fail(shards, "the store of shards cannot be opened", error);
        return false;
    }
    if (server_store_begin(shards->store, shards->mastership) == STORE_OK) return true;
    server_shards_fail(shards, "the store of shards cannot be used",
                       server_store_error(shards->store));
    return false;
}

/* Copies the rows of a step to the part, so that the lock need not be held while the part is
 * written.
 *   used   in/out: the bytes of the part */
static bool rows_keep(struct shards *shards, size_t *used, const unsigned char *step,
                      size_t bytes) {
    assert(*used <= shards->part_capacity && (!bytes || bytes > DOORMAN_SHARD_PART_HEADER));
    if (*used && bytes) { /* the part has its header */
        step += DOORMAN_SHARD_PART_HEADER;
        bytes -= DOORMAN_SHARD_PART_HEADER;
    }
    if (*used + bytes > shards->part_capacity) {
        const size_t capacity = *used + bytes + PART_BYTES;
        unsigned char *room = (unsigned char *)realloc(shards->part, capacity);
        if (!room) return false;
        shards->part = room;
        shards->part_capacity = capacity;
    }
    if (bytes) memcpy(shards->part + *used, step, bytes);
    *used += bytes;
    return true;
}

/* Writes one part, if it has bytes or is the last one.
 *   part    in/out: its index counts the parts that were written */
static bool rows_put(struct shards *shards, struct store_shard_part *part) {
    if (!part->count && !part->is_last) return true;
    if (server_store_put_shard(shards->store, part) == STORE_OK) {
        part->index++;
        return true;
    }
    server_shards_fail(shards, "the rows of a shard cannot be written",
                       server_store_error(shards->store));
    return false;
}

/* Finds out where the keys of all shards are, in steps between which other threads can decide. */
static void rows_find(struct shards *shards) {
    struct service *service = shards->service;
    bool goes_on = true;
    while (goes_on) {
        server_lock(&service->lock);
        doorman_permits *permits = server_shards_permits(shards);
        goes_on = permits && !shards->stops &&
                  doorman_permits_find_shards(permits, FIND_BUCKETS, doorman_clock());
        server_unlock(&service->lock);
        if (goes_on) rows_pause(STEP_PAUSE);
    }
}

struct store *server_shards_store(struct shards *shards) {
    return rows_open(shards) ? shards->store : NULL;
}

bool server_shard_give(struct shards *shards, size_t shard, uint64_t move) {
    struct service *service = shards->service;
    struct store_shard_part part = {
        .cluster = shards->key.name, .shard = shard, .move = move, .index = 0};
    doorman_shard_cursor cursor = {0};
    rows_find(shards);
    if (!rows_open(shards)) return false;
    server_lock(&service->lock);
    doorman_permits *permits = server_shards_permits(shards);
    if (permits && doorman_permits_owns(permits, shard)) shards->closed_at = doorman_clock();
    if (permits) (void)doorman_permits_own(permits, shard, false, true, doorman_clock());
    server_unlock(&service->lock);
    if (!permits) return false;
    for (size_t steps = 1; !part.is_last; steps++) {
        doorman_shard_part step;
        server_lock(&service->lock);
        permits = server_shards_permits(shards);
        bool done = permits &&
                    doorman_permits_next_shard_rows(permits, shard, &cursor, &step,
                                                    doorman_clock()) == DOORMAN_OK &&
                    rows_keep(shards, &part.count, step.rows, step.bytes);
        server_unlock(&service->lock);
        if (!done) return false;
        part.bytes = shards->part;
        part.is_last = cursor.at_end;
        if (part.is_last || part.count >= PART_BYTES) {
            if (!rows_put(shards, &part)) return false;
            part.count = 0;
        }
        if (steps % MOVE_STEPS == 0) rows_pause(STEP_PAUSE);
    }
    return true;
}

/* Restores a part. Returns false if the mastership has ended, or memory has run out. If the part is
 * damaged, the rows after the damage are lost. */
static bool rows_restore(struct shards *shards, const doorman_shard_part *part) {
    struct service *service = shards->service;
    doorman_error error = {0};
    size_t lost = 0;
    server_lock(&service->lock);
    doorman_permits *permits = server_shards_permits(shards);
    doorman_status status = DOORMAN_UNAVAILABLE;
    if (permits) {
        status = doorman_permits_restore_shard(permits, part, &lost, &error, doorman_clock());
    }
    shards->rows_lost += lost;
    server_unlock(&service->lock);
    if (status == DOORMAN_OK) return true;
    server_shards_fail(shards, "the rows of a shard cannot be restored",
                       error.text[0] ? error.text : server_status_text(status));
    return status == DOORMAN_INVALID_ARGUMENT;
}

bool server_shard_take(struct shards *shards, size_t shard, uint64_t move, bool *is_lost) {
    struct store_shard_part part = {.cluster = shards->key.name, .shard = shard, .move = move};
    enum store_result result = STORE_OK;
    if (!move) return true;
    if (!rows_open(shards)) return false;
    while (result == STORE_OK) {
        unsigned char *bytes = NULL;
        result = server_store_get_shard(shards->store, &part, &bytes);
        const doorman_shard_part rows = {shard, bytes, part.count};
        bool restored = result != STORE_OK || rows_restore(shards, &rows);
        free(bytes);
        if (!restored) return false;
        part.index++;
        if (part.index == 1 && result == STORE_LOST) break;
        if (part.index % MOVE_STEPS == 0) rows_pause(STEP_PAUSE);
    }
    if (result == STORE_FAILED) {
        server_shards_fail(shards, "the rows of a shard cannot be read",
                           server_store_error(shards->store));
    }
    if (result == STORE_LOST) {
        *is_lost = true;
        server_shards_fail(shards, "the rows of a shard are gone; it starts without them",
                           server_store_error(shards->store));
    }
    return result == STORE_END || result == STORE_LOST;
}

bool server_shard_drop(struct shards *shards, size_t shard) {
    struct service *service = shards->service;
    doorman_shard_cursor cursor = {0};
    while (!cursor.at_end) {
        const doorman_shard_cursor before = cursor;
        server_lock(&service->lock);
        doorman_permits *permits = server_shards_permits(shards);
        doorman_status status = DOORMAN_UNAVAILABLE;
        if (permits && shard != DOORMAN_SHARDS_AWAY) {
            (void)doorman_permits_own(permits, shard, false, true, doorman_clock());
        }
        if (permits) status = doorman_permits_drop_shard(permits, shard, &cursor, doorman_clock());
        const bool stops = shards->stops;
        server_unlock(&service->lock);
        if (status != DOORMAN_OK || stops) return false;
        const bool stands = before.phase == cursor.phase && before.table == cursor.table &&
                            before.position == cursor.position;
        rows_pause(stands ? FULL_PAUSE : STEP_PAUSE);
    }
    return true;
}

/* ---- the store of a node without a master --------------------------------------------------- */

#define HEAP_BYTES (1U << 18) /* of a part */

/* The rows of one shard that are not written yet. */
struct row_heap {
    unsigned char *bytes;
    struct store_shard_part part;
};

static bool heap_flush(struct shards *shards, struct row_heap *heap, bool is_last) {
    heap->part.bytes = heap->bytes;
    heap->part.is_last = is_last;
    bool done = rows_put(shards, &heap->part);
    heap->part.count = 0;
    return done;
}

static bool heap_add(struct shards *shards, struct row_heap *heaps, const struct store_row *row) {
    struct service *service = shards->service;
    size_t shard = 0;
    server_lock(&service->lock);
    const doorman_permits *permits = server_shards_permits(shards);
    const bool found =
        permits && doorman_permits_shard_of_row(permits, (const unsigned char *)row->record,
                                                row->record_bytes, &shard) == DOORMAN_OK;
    server_unlock(&service->lock);
    if (!permits) return false;
    struct row_heap *heap = found ? &heaps[shard] : NULL;
    if (!heap || !heap->part.cluster) return true; /* the node does not own the shard */
    const size_t more = DOORMAN_SHARD_PART_HEADER + DOORMAN_SHARD_RECORD_HEADER + row->record_bytes;
    if (heap->part.count + more > HEAP_BYTES && !heap_flush(shards, heap, false)) return false;
    if (!heap->bytes) heap->bytes = (unsigned char *)malloc(HEAP_BYTES);
    if (!heap->bytes) return false;
    heap->part.count =
        doorman_shard_part_add(heap->bytes, heap->part.count, shard,
                               (const unsigned char *)row->record, row->record_bytes);
    return true;
}

/* Copies the rows of the move that brought the shard to the node, and that is not settled yet. */
static bool heap_copy_move(struct shards *shards, struct row_heap *heap, uint64_t from) {
    struct store_shard_part part = heap->part;
    enum store_result result = STORE_OK;
    part.move = from;
    part.index = 0;
    while (result == STORE_OK) {
        unsigned char *bytes = NULL;
        result = server_store_get_shard(shards->store, &part, &bytes);
        part.index++;
        heap->part.bytes = bytes;
        heap->part.count = part.count;
        bool done = result != STORE_OK || rows_put(shards, &heap->part);
        heap->part.count = 0;
        free(bytes);
        if (!done) return false;
    }
    return result == STORE_END || result == STORE_LOST;
}

/* Reads all rows in the store of the node, and adds the rows of its shards to the heaps. */
static bool heaps_fill(struct shards *shards, struct row_heap *heaps,
                       const struct store_place *place) {
    char error[STORE_TEXT];
    struct store_row row;
    enum store_result result = STORE_OK;
    struct store *store = server_store_open(place, error);
    if (!store) {
        server_shards_fail(shards, "the store of the node cannot be opened", error);
        return false;
    }
    bool done = true;
    while (done && (result = server_store_next(store, &row)) == STORE_OK) {
        done = heap_add(shards, heaps, &row);
    }
    if (result == STORE_FAILED) {
        server_shards_fail(shards, "the store of the node cannot be read",
                           server_store_error(store));
    }
    server_store_close(store);
    return done && result == STORE_END;
}

bool server_shard_give_for(struct shards *shards, size_t node, uint64_t move) {
    const doorman_shard_map *map = shards->key.map;
    struct store_place place = shards->place;
    assert(node < map->node_count);
    place.node = map->nodes[node].name;
    if (!rows_open(shards)) return false;
    struct row_heap *heaps = (struct row_heap *)calloc(map->shards.count, sizeof *heaps);
    bool done = heaps != NULL;
    for (size_t i = 0; done && i < map->shards.count; i++) {
        if (map->owners[i].owner != node) continue;
        heaps[i].part = (struct store_shard_part){
            .cluster = shards->key.name, .shard = i, .move = move, .index = 0};
        if (map->owners[i].from) done = heap_copy_move(shards, &heaps[i], map->owners[i].from);
    }
    done = done && heaps_fill(shards, heaps, &place);
    for (size_t i = 0; done && i < map->shards.count; i++) {
        if (heaps[i].part.cluster) done = heap_flush(shards, &heaps[i], true);
    }
    for (size_t i = 0; heaps && i < map->shards.count; i++) free(heaps[i].bytes);
    free(heaps);
    return done;
}
