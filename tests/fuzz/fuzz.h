/* Helpers that the fuzz harnesses share. A harness is one function that accepts any bytes.
 * libFuzzer calls it with generated inputs, and replay.c with the contents of files.
 *
 *     make fuzz [SECONDS=60] [FUZZ=message]            all of them, or one
 *     build/asan/fuzz/message build/fuzz/crash-...     runs files again, for example a crash */
#ifndef FUZZ_H
#define FUZZ_H

#include "doorman_permits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* An assertion that NDEBUG does not disable. */
#define must(condition) fuzz_must(condition, #condition, __FILE__, __LINE__)

static inline void fuzz_must(bool holds, const char *condition, const char *file, int line) {
    if (holds) return;
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
    abort();
}

/* A part of the input. It has no NUL at its end. */
typedef struct fuzz_text {
    const char *text;
    size_t bytes;
} fuzz_text;

/* Cuts the next line off *rest. Returns false if there is none. */
static inline bool fuzz_line(fuzz_text *rest, fuzz_text *line) {
    if (!rest->bytes) return false;
    const char *end = (const char *)memchr(rest->text, '\n', rest->bytes);
    *line = *rest;
    if (end) line->bytes = (size_t)(end - rest->text);
    size_t used = line->bytes + (end ? 1 : 0);
    rest->text += used;
    rest->bytes -= used;
    return true;
}

static inline bool fuzz_same(double a, double b) {
    return fabs(a - b) <= 1e-9 * fmax(1, fmax(fabs(a), fabs(b)));
}

static inline bool fuzz_amount(double amount) { return amount >= 0 && amount <= 1e15; }

/* Compares the sums of one resource of a server with a recount of its leases. */
static inline void fuzz_recount(doorman_server *server, const doorman_server_resource *resource,
                                doorman_time now) {
    double has = 0, committed = 0, wants = 0, subclients = 0;
    size_t count = 0;
    bool whole = true; /* false: some wants are cut to 1e15, so their sum is a lower bound */
    doorman_cursor cursor = {0};
    doorman_server_lease lease;
    while (doorman_server_next_lease(server, resource->resource_id, &cursor, &lease, now)) {
        must(lease.has >= 0 && lease.has <= lease.committed && isfinite(lease.committed));
        must(lease.expires_at > now);
        must(lease.subclients >= 1 || (lease.is_server && lease.wants <= 0));
        has += lease.has;
        committed += lease.committed;
        wants += lease.wants;
        whole = whole && lease.wants < DOORMAN_AMOUNT_MAX;
        subclients += lease.subclients;
        count++;
    }
    must(count == resource->holder_count);
    must(fuzz_same(has, resource->has) && fuzz_same(committed, resource->committed));
    must(fuzz_same(subclients, resource->subclients));
    must(whole ? fuzz_same(wants, resource->wants) : resource->wants >= wants * (1 - 1e-9));
}

/* Returns whether the algorithm divides the capacity, so that the committed sum stays within it. */
static inline bool fuzz_whole(const doorman_algorithm *algorithm) {
    return DOORMAN_KIND_DIVIDES(algorithm->kind);
}

/* Compares all sums of a server with a recount. Returns the number of its resources.
 *   bounded   nothing is learning and no capacity was ever reduced, so where the algorithm divides
 *             the capacity, the committed sum must be within it */
static inline size_t fuzz_check_server(doorman_server *server, bool bounded, doorman_time now) {
    doorman_cursor cursor = {0};
    doorman_server_resource resource;
    size_t count = 0;
    for (; doorman_server_next_resource(server, &cursor, &resource, now); count++) {
        bool whole = fuzz_whole(&resource.settings->algorithm);
        must(fuzz_amount(resource.capacity));
        must(!bounded || !whole || resource.committed <= resource.capacity + 1e-9);
        must(!resource.has_safe_capacity || resource.safe_capacity >= DOORMAN_UNLIMITED);
        fuzz_recount(server, &resource, now);
    }
    return count;
}

/* Makes a server that stays master forever. */
static inline doorman_server *fuzz_server(const doorman_server_options *options) {
    doorman_server *server = NULL;
    doorman_mastership mastership = {.address = "here", .until = DOORMAN_NEVER};
    doorman_server_options own = *options;
    own.seed[1] = 1; /* a fixed seed, so that the same input does the same */
    must(doorman_server_create(&server, &own, NULL, 0) == DOORMAN_OK);
    must(doorman_server_set_master(server, &mastership, 0) == DOORMAN_OK);
    return server;
}

#endif
