/* doorman_server: condition variables whose clock nobody sets. server.h includes this file. */
#ifndef DOORMAN_SERVER_CONDITION_H
#define DOORMAN_SERVER_CONDITION_H

#include <pthread.h>
#include <time.h>

/* Condition variables cannot use the clock of doorman_clock. Their clock stops while the machine is
 * suspended. */
static inline bool server_condition_init(pthread_cond_t *condition) {
    pthread_condattr_t monotonic;
    bool done = pthread_condattr_init(&monotonic) == 0 &&
                pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(condition, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    return done;
}

/* Waits for a condition, at most for `duration`. */
static inline void server_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                         doorman_time duration) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)duration;
    until.tv_sec += until.tv_nsec / (long)DOORMAN_SECOND;
    until.tv_nsec %= (long)DOORMAN_SECOND;
    pthread_cond_timedwait(condition, lock, &until);
}

#endif
