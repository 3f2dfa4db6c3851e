/*
 * Helpers that the unit tests share. Include this file before doorman.h, because it defines the
 * allocator that doorman.h uses:
 *
 *     #include "unit.h"
 *
 *     #define DOORMAN_IMPLEMENTATION
 *     #include "../../doorman.h"
 *
 *     TEST(a_promise_is_kept) { ... }
 *
 * numbers   random_bits(), random_below(n), random_unit(), random_amount(): one random sequence for
 *           each program. It prints its seed, which SEED=42 in the environment sets.
 *           random_runs(n): how often a long test draws a new case. It is a third of n with the
 *           address sanitizer, which makes each case several times as slow, and n without it
 * memory    memory_fails_at(n): the n-th allocation from now on fails, once;
 *           memory_fails_from(n): the n-th and all later allocations fail; memory_works():
 *           allocations succeed again. It returns true if none has failed since the last of these
 *           calls. The calls affect only their own thread. memory_blocks(): how many blocks are
 *           allocated now, by all threads. To make each allocation of a call fail in turn:
 *
 *               size_t n = 0;
 *               do {
 *                   memory_fails_at(++n);
 *                   status = the_call(&object);
 *                   ... OUT_OF_MEMORY or not, the object is as it should be ...
 *               } while (!memory_works());
 *
 * compare   assert_near(actual, expected, relative), assert_about(actual, expected) within one
 *           part in 10^9 (A1), assert_exact(actual, expected): for doubles; a failure prints
 *           both values
 *
 * permits   ITEM_OF(resource_id, key): a doorman_permit_item, for functions that concern one key
 *
 * Only one thread may use the random numbers, because no lock guards them.
 */
#ifndef UNIT_H
#define UNIT_H

#include "../test.h"

#include <stdbool.h>
#include <stdio.h>
#include <time.h>

/* ---- numbers ------------------------------------------------------------------------------- */

static uint64_t unit__random_state;

/* Returns 64 random bits of xorshift64* (Vigna 2014). The library uses another generator. */
static inline uint64_t random_bits(void) {
    uint64_t x = unit__random_state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    unit__random_state = x;
    return x * UINT64_C(0x2545f4914f6cdd1d);
}

static inline size_t random_below(size_t bound) { return (size_t)(random_bits() >> 16) % bound; }

static inline size_t random_runs(size_t n) {
#ifdef __SANITIZE_ADDRESS__
    return (n + 2) / 3;
#else
    return n;
#endif
}

/* Returns a number in [0, 1). */
static inline double random_unit(void) {
    return (double)(random_bits() >> 11) * (1.0 / 9007199254740992.0);
}

/* Returns an amount of any size in [0, 1e15]. One in eight amounts is a value at which code often
 * breaks. */
static inline double random_amount(void) {
    static const double edges[] = {0,    5e-324, 1e-300, 3.6e-15, 1.0 / 3, 1, 31.999999999999996,
                                   32.0, 1e6,    1e14,   1e15};
    if (random_below(8) == 0) return edges[random_below(sizeof edges / sizeof *edges)];
    double amount = random_unit();
    for (size_t digits = random_below(16); digits > 0; digits--) amount *= 10;
    return amount;
}

__attribute__((constructor)) static void unit__seed(void) {
    const char *given = getenv("SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("SEED=%llu\n", (unsigned long long)seed);
    unit__random_state = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15);
    if (!unit__random_state) unit__random_state = 1;
}

/* ---- memory -------------------------------------------------------------------------------- */

static size_t unit__memory_blocks; /* atomic */
static _Thread_local struct {
    size_t until_failure; /* 0: no allocation fails */
    bool on, failed;      /* on: all later allocations fail too */
} unit__memory;

static inline bool unit__memory_refuses(void) {
    if (unit__memory.until_failure == 0 || --unit__memory.until_failure > 0) return false;
    if (unit__memory.on) unit__memory.until_failure = 1;
    return unit__memory.failed = true;
}

/* The object of doorman.h that the Makefile links to a test calls these functions too. */
void *unit_malloc(size_t bytes);
void *unit_realloc(void *old, size_t bytes);
void unit_free(void *block);

void *unit_realloc(void *old, size_t bytes) {
    void *block = unit__memory_refuses() ? NULL : realloc(old, bytes);
    if (block && !old) __atomic_fetch_add(&unit__memory_blocks, 1, __ATOMIC_RELAXED);
    return block;
}

void *unit_malloc(size_t bytes) { return unit_realloc(NULL, bytes); }

void unit_free(void *block) {
    if (block) __atomic_fetch_sub(&unit__memory_blocks, 1, __ATOMIC_RELAXED);
    free(block);
}

/* A test compiles the implementation, unless the Makefile links an object of it: see open.awk. With
 * DOORMAN_STATIC the compiler drops the functions that a test does not reach. */
#ifndef DOORMAN_H
#define DOORMAN_STATIC
#define DOORMAN_MALLOC(bytes) unit_malloc(bytes)
#define DOORMAN_REALLOC(pointer, bytes) unit_realloc(pointer, bytes)
#define DOORMAN_FREE(pointer) unit_free(pointer)
#endif

static inline size_t memory_blocks(void) {
    return __atomic_load_n(&unit__memory_blocks, __ATOMIC_RELAXED);
}

static inline bool memory_works(void) {
    bool worked = !unit__memory.failed;
    unit__memory.until_failure = 0;
    unit__memory.on = unit__memory.failed = false;
    return worked;
}

static inline void memory_fails_at(size_t nth) {
    (void)memory_works();
    unit__memory.until_failure = nth;
}

static inline void memory_fails_from(size_t nth) {
    memory_fails_at(nth);
    unit__memory.on = true;
}

/* ---- compare ------------------------------------------------------------------------------- */

static inline void unit__near(double actual, double expected, double relative, const char *text,
                              const char *file, int line) {
    double difference = actual > expected ? actual - expected : expected - actual;
    double most = relative * (expected < 0 ? -expected : expected);
    if (difference <= most) return; /* NaN fails */
    print_error("%s is %.17g, expected %.17g\n", text, actual, expected);
    _fail(file, line);
}

#define assert_near(actual, expected, relative)                                                    \
    unit__near((actual), (expected), (relative), #actual, __FILE__, __LINE__)
#define assert_about(actual, expected) assert_near(actual, expected, 1e-9)
#define assert_exact(actual, expected) assert_near(actual, expected, 0)

#define ITEM_OF(resource, name) (&(doorman_permit_item){.resource_id = (resource), .key = (name)})

#endif /* UNIT_H */
