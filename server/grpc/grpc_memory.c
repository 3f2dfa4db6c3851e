/* doorman_server, part GRPC: memory for the loop, which nghttp2 uses too.
 *
 * A request needs about fifteen small pieces for a short time. A read of a connection may bring
 * many requests, which hold their pieces until their responses are written. malloc of glibc is
 * quick only for the last seven free pieces of a size, so this file keeps free pieces in a list for
 * each size. AddressSanitizer finds a use of a free piece as it does with malloc. While the loop
 * runs, no other thread calls these functions. */
#include "grpc.h"

#if defined __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(piece, bytes) ((void)(piece), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(piece, bytes) ((void)(piece), (void)(bytes))
#endif

#define MEMORY_STEP ((size_t)64)      /* bytes. The sizes in the lists are multiples of it */
#define MEMORY_KEPT ((size_t)1 << 20) /* bytes of all free pieces; others go back to malloc */

/* What stands before a piece. */
struct grpc_piece {
    _Alignas(16) size_t bytes; /* of the piece itself */
    struct grpc_piece *next;   /* if it is free */
};

void *server_grpc_memory_take(struct grpc_memory *memory, size_t bytes) {
    const size_t index = (bytes + MEMORY_STEP - 1) / MEMORY_STEP;
    if (bytes > SIZE_MAX / 2) return NULL;
    struct grpc_piece *piece = index < GRPC_MEMORY_SIZES ? memory->free[index] : NULL;
    if (piece) {
        memory->free[index] = piece->next;
        memory->kept -= piece->bytes;
        ASAN_UNPOISON_MEMORY_REGION(piece + 1, piece->bytes);
        return piece + 1;
    }
    piece = (struct grpc_piece *)malloc(sizeof *piece + index * MEMORY_STEP);
    if (!piece) return NULL;
    piece->bytes = index * MEMORY_STEP;
    return piece + 1;
}

void server_grpc_memory_give(struct grpc_memory *memory, void *bytes) {
    if (!bytes) return;
    struct grpc_piece *piece = (struct grpc_piece *)bytes - 1;
    const size_t index = piece->bytes / MEMORY_STEP;
    if (index >= GRPC_MEMORY_SIZES || memory->kept + piece->bytes > MEMORY_KEPT) {
        free(piece);
        return;
    }
    piece->next = memory->free[index];
    memory->free[index] = piece;
    memory->kept += piece->bytes;
    ASAN_POISON_MEMORY_REGION(bytes, piece->bytes);
}

void *server_grpc_memory_grow(struct grpc_memory *memory, void *piece, size_t needed) {
    const size_t had = piece ? ((struct grpc_piece *)piece - 1)->bytes : 0;
    if (piece && needed <= had) return piece;
    void *grown = server_grpc_memory_take(memory, needed);
    if (!grown) return NULL;
    if (had > 0) memcpy(grown, piece, had);
    server_grpc_memory_give(memory, piece);
    return grown;
}

void server_grpc_memory_free(struct grpc_memory *memory) {
    for (size_t i = 0; i < GRPC_MEMORY_SIZES; i++) {
        while (memory->free[i]) {
            struct grpc_piece *piece = memory->free[i];
            memory->free[i] = piece->next;
            free(piece);
        }
    }
    memory->kept = 0;
}
