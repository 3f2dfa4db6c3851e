/* Tests the memory of the loop of gRPC: which pieces it keeps, and that they are used again. */
#include "../../server/grpc/grpc_memory.c"

#include "../test.h"

struct world {
    struct grpc_memory memory;
};

static void world_setup(struct world *w) { (void)w; }
static void world_teardown(struct world *w) { server_grpc_memory_free(&w->memory); }
FIXTURE(world)

static void *take(struct world *w, size_t bytes) {
    void *piece = server_grpc_memory_take(&w->memory, bytes);
    assert_non_null(piece);
    assert_int_equal((uintptr_t)piece % 16, 0);
    memset(piece, 'x', bytes);
    return piece;
}

TEST_WITH(world, a_free_piece_is_used_for_the_next_one_of_its_size) {
    void *one = take(w, 65), *other = take(w, 100);
    server_grpc_memory_give(&w->memory, one);
    assert_int_equal(w->memory.kept, 128);
    void *small = take(w, 64);
    assert_ptr_not_equal(small, one);
    assert_ptr_equal(take(w, 128), one);
    assert_int_equal(w->memory.kept, 0);
    server_grpc_memory_give(&w->memory, one);
    server_grpc_memory_give(&w->memory, other);
    server_grpc_memory_give(&w->memory, small);
    server_grpc_memory_give(&w->memory, NULL);
    assert_int_equal(w->memory.kept, 320);
}

TEST_WITH(world, a_grown_piece_keeps_its_bytes) {
    char *piece = (char *)server_grpc_memory_grow(&w->memory, NULL, 10);
    assert_non_null(piece);
    memcpy(piece, "ten bytes", 10);
    assert_ptr_equal(server_grpc_memory_grow(&w->memory, piece, 64), piece);
    piece = (char *)server_grpc_memory_grow(&w->memory, piece, 5000);
    assert_non_null(piece);
    assert_string_equal(piece, "ten bytes");
    server_grpc_memory_give(&w->memory, piece);
}

TEST_WITH(world, large_pieces_and_too_many_are_not_kept) {
    enum { COUNT = 600 };
    void *pieces[COUNT];
    server_grpc_memory_give(&w->memory, take(w, GRPC_MEMORY_SIZES * MEMORY_STEP));
    assert_int_equal(w->memory.kept, 0);
    for (size_t i = 0; i < COUNT; i++) pieces[i] = take(w, 2048);
    for (size_t i = 0; i < COUNT; i++) server_grpc_memory_give(&w->memory, pieces[i]);
    assert_int_equal(w->memory.kept, MEMORY_KEPT);
}

TEST_WITH(world, an_impossible_size_gets_nothing) {
    assert_null(server_grpc_memory_take(&w->memory, SIZE_MAX));
    assert_null(server_grpc_memory_take(&w->memory, SIZE_MAX / 2 + 1));
}
