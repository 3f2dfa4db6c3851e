/* What the objects of the headers that tests link call, so that agent_test can replace it: its
 * functions win over these weak ones. See open.awk. */
#ifndef DOORMAN_TESTS_HOOKS_H
#define DOORMAN_TESTS_HOOKS_H

#include <stdint.h>

/* The longest time that a thread sleeps, in nanoseconds. */
int64_t hook_nap_max(void);
#define DOORMAN__NAP_MAX hook_nap_max()

/* A thread calls this when it has read the state of a transport. */
void hook_state_read(void);
#define DOORMAN__AFTER_STATE_READ() hook_state_read()

#ifndef DOORMAN__DECLARES_STATIC
__attribute__((weak)) int64_t hook_nap_max(void) { return 1000000000; }
__attribute__((weak)) void hook_state_read(void) {}
#endif

#endif
