/*
 * Tests that register themselves with cmocka. This is a whole program:
 *
 *     #include "../test.h"
 *
 *     TEST(a_sum_is_exact) { assert_int_equal(1 + 1, 2); }
 *
 * main runs the tests in the order of their lines. An argument, or TEST in the environment, is a
 * pattern for names: TEST='a_lease*'. TEST_PART=2/3 runs every third test, from the second one on.
 *
 * TEST_WITH gives the test a structure `w`, which the program prepares before each test. The
 * structure is zeroed before the setup, and freed after the teardown, also if the test failed:
 *
 *     struct world { FILE *log; };
 *     static void world_setup(struct world *w) { w->log = tmpfile(); }
 *     static void world_teardown(struct world *w) { fclose(w->log); }
 *     FIXTURE(world)
 *
 *     TEST_WITH(world, a_new_log_is_empty) { assert_int_equal(ftell(w->log), 0); }
 *
 * MEASURES marks a test of memory or speed, whose result a sanitizer would change. With the macro
 * TEST_ONLY_MEASURES a program that has such tests runs no others, except those of a pattern:
 *
 *     MEASURES(memory_is_returned)
 *     TEST(memory_is_returned) { ... }
 *
 * A header with helpers can redefine TEST_TEARDOWN as a function that cmocka calls after each TEST.
 * A program with a main of its own defines TEST_OWN_MAIN, and main calls test_main.
 */
#ifndef DOORMAN_TESTS_TEST_H
#define DOORMAN_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define TEST_MAX 512 /* in one program */

static struct CMUnitTest test__list[TEST_MAX];
static int test__lines[TEST_MAX];
static size_t test__count;
static const char *test__measures[TEST_MAX];
static size_t test__measures_count;

/* Adds a test before all tests of later lines, because constructors run in any order. */
static inline void test_add(int line, struct CMUnitTest test) {
    if (test__count == TEST_MAX) abort();
    size_t i = test__count++;
    for (; i > 0 && test__lines[i - 1] > line; i--) {
        test__lines[i] = test__lines[i - 1];
        test__list[i] = test__list[i - 1];
    }
    test__lines[i] = line;
    test__list[i] = test;
}

#define TEST_TEARDOWN NULL

#define TEST(name)                                                                                 \
    static void name(void **test_state);                                                           \
    __attribute__((constructor)) static void name##_add(void) {                                    \
        test_add(__LINE__, (struct CMUnitTest){#name, name, NULL, TEST_TEARDOWN, NULL});           \
    }                                                                                              \
    static void name(void **test_state __attribute__((unused)))

#define FIXTURE(type)                                                                              \
    static int type##_start(void **state) {                                                        \
        struct type *w = (struct type *)calloc(1, sizeof *w);                                      \
        assert_non_null(w);                                                                        \
        type##_setup(w);                                                                           \
        *state = w;                                                                                \
        return 0;                                                                                  \
    }                                                                                              \
    static int type##_end(void **state) {                                                          \
        type##_teardown((struct type *)*state);                                                    \
        free(*state);                                                                              \
        return 0;                                                                                  \
    }

#define TEST_WITH(type, name)                                                                      \
    static void name(struct type *w);                                                              \
    static void name##_run(void **state) { name((struct type *)*state); }                          \
    __attribute__((constructor)) static void name##_add(void) {                                    \
        test_add(__LINE__,                                                                         \
                 (struct CMUnitTest){#name, name##_run, type##_start, type##_end, NULL});          \
    }                                                                                              \
    static void name(struct type *w)

#define MEASURES(name)                                                                             \
    __attribute__((constructor)) static void name##_measures(void) {                               \
        if (test__measures_count == TEST_MAX) abort();                                             \
        test__measures[test__measures_count++] = #name;                                            \
    }

static inline bool test_measures(const char *name) {
    for (size_t i = 0; i < test__measures_count; i++) {
        if (strcmp(test__measures[i], name) == 0) return true;
    }
    return false;
}

/* Keeps only the tests that MEASURES marks, if there are any. */
static inline void test_keep_measures(void) {
    size_t kept = 0;
    for (size_t i = 0; i < test__count; i++) {
        if (test_measures(test__list[i].name)) test__list[kept++] = test__list[i];
    }
    if (kept != test__measures_count) abort(); /* MEASURES has a name that no test has */
    if (kept > 0) test__count = kept;
}

/* Keeps the tests of the part that a text like "2/3" names: every third, from the second one on. */
static inline void test_keep_part(const char *text) {
    char *at = NULL;
    const unsigned long part = strtoul(text, &at, 10), parts = *at ? strtoul(at + 1, NULL, 10) : 0;
    if (part == 0 || part > parts) abort();
    size_t kept = 0;
    for (size_t i = part - 1; i < test__count; i += parts) test__list[kept++] = test__list[i];
    test__count = kept;
}

static inline int test_main(int argc, char **argv) {
    const char *pattern = argc > 1 ? argv[1] : getenv("TEST");
    if (pattern) cmocka_set_test_filter(pattern);
#ifdef TEST_ONLY_MEASURES
    if (!pattern) test_keep_measures();
#endif
    const char *part = getenv("TEST_PART");
    if (part) test_keep_part(part);
    return _cmocka_run_group_tests("tests", test__list, test__count, NULL, NULL);
}

#ifndef TEST_OWN_MAIN
int main(int argc, char **argv) { return test_main(argc, argv); }
#endif

#endif
