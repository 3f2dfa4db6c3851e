/* The linked objects of the headers call these functions (see open.awk). They are weak, so that
 * agent_test can replace them by its own. */
#ifndef DOORMAN_TESTS_HOOKS_H
#define DOORMAN_TESTS_HOOKS_H

#include <stdint.h>

/* The longest sleep of a thread without a look at the clock, in nanoseconds. */
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
