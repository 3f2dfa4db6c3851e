/* doorman_server, part MEMORY: an allocator for cJSON, and the return of free memory to the system.
 * This file resets the counter of ended leases. Without this part, cJSON uses malloc, and the C
 * library keeps free memory. */
#include "../server.h"

#include <stddef.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

/* An arena allocator for cJSON. cJSON allocates one to three small blocks for each value, and
 * malloc and free would take much of the time of reading a message. So each thread has an arena,
 * and takes the blocks from it one after the other. The whole arena is free again when the last
 * block is freed. The arena is large enough for a request with 250 resources. For larger requests
 * the arena gets more pieces from malloc. These pieces are freed together with the last block, so a
 * message of 4 MiB leaves no memory in use.
 *
 * A block of an arena must be freed by the thread that has taken it. But another thread may delete
 * the JSON tree of an act, or of a message that may wait. So server_shares_memory is true while
 * such a tree is made, changed or deleted, and its blocks come from malloc. */
#define ARENA_BYTES ((size_t)256 << 10)
#define CHUNK_BYTES ((size_t)1 << 20)

struct chunk {
    struct chunk *previous;
};

static _Thread_local struct arena {
    _Alignas(max_align_t) char memory[ARENA_BYTES];
    char *at;                 /* the free part of `memory` or of the last piece */
    size_t left, block_count; /* left: bytes in the free part */
    struct chunk *last;
} arena;

/* Rounds up to the strictest alignment. */
static size_t arena_round(size_t bytes) {
    const size_t unit = _Alignof(max_align_t);
    return (bytes + unit - 1) / unit * unit;
}

static bool arena_grow(size_t bytes) {
    size_t head = arena_round(sizeof(struct chunk));
    size_t all = bytes > CHUNK_BYTES - head ? head + bytes : CHUNK_BYTES;
    struct chunk *chunk = (struct chunk *)malloc(all);
    if (chunk) {
        chunk->previous = arena.last;
        arena.last = chunk;
        arena.at = (char *)chunk + head;
        arena.left = all - head;
    }
    return chunk != NULL;
}

static void *arena_malloc(size_t bytes) {
    size_t rounded = arena_round(bytes);
    void *block = NULL;
    if (server_shares_memory) return malloc(bytes);
    if (arena.block_count == 0) {
        arena.at = arena.memory;
        arena.left = ARENA_BYTES;
    }
    if (rounded <= arena.left || arena_grow(rounded)) {
        block = arena.at;
        arena.at += rounded;
        arena.left -= rounded;
        arena.block_count++;
    }
    return block;
}

static void arena_free(void *block) {
    if (server_shares_memory) {
        free(block);
        return;
    }
    bool empty = block && --arena.block_count == 0;
    while (empty && arena.last) {
        struct chunk *chunk = arena.last;
        arena.last = chunk->previous;
        free(chunk);
    }
}

/* glibc gives each thread an arena of its own, up to eight for each core. Leases would lie in all
 * of these, between blocks that stay in use. So only 69 to 84 % of the memory of ended leases would
 * return to the system. With two arenas it is 90 % and more. All leases are behind one lock, so
 * more arenas would make nothing faster. */
#define GLIBC_ARENAS 2

static void memory_init(void) {
#ifdef __GLIBC__
    mallopt(M_ARENA_MAX, GLIBC_ARENAS);
#endif
    cJSON_InitHooks(&(cJSON_Hooks){arena_malloc, arena_free});
}

/* Memory goes back to the system at most once in this interval. */
#define TRIM_INTERVAL (10 * DOORMAN_SECOND)

/* What this part keeps. */
struct memory {
    doorman_time trim_due; /* the earliest time to return memory to the system */
    bool trim_again;       /* return memory once more, even if no more leases end */
};

/* Returns free memory to the system. glibc would keep this memory, because it lies between blocks
 * in use. malloc_trim takes tens of milliseconds. Other threads may have to wait for memory during
 * this time. So malloc_trim runs only after TRIM_LEASES leases or the mastership have ended, and at
 * most once in TRIM_INTERVAL. It then runs once more, because some memory is freed a little later,
 * such as the history of the resources whose leases have ended. */
static void memory_update(struct service *service, doorman_time now) {
#ifdef __GLIBC__
    struct memory *memory = service->memory;
    server_lock(&service->lock);
    bool many = service->ended_lease_count >= TRIM_LEASES;
    bool due = (many || memory->trim_again) && now >= memory->trim_due;
    if (due) {
        memory->trim_again = many;
        memory->trim_due = now + TRIM_INTERVAL;
        service->ended_lease_count = 0;
    }
    server_unlock(&service->lock);
    if (due) malloc_trim(0);
#else
    (void)service, (void)now;
#endif
}

const struct server_part server_part_memory = {SERVER_PART_STATE(memory), .init = memory_init,
                                               .work = memory_update};
