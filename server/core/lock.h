/* doorman_server: locks that have an order, and condition variables whose clock cannot be set.
 * server.h includes this file. */
#ifndef DOORMAN_SERVER_LOCK_H
#define DOORMAN_SERVER_LOCK_H

#include <assert.h>
#include <pthread.h>
#include <time.h>

/* All locks of the server, in the order in which a thread takes them. A thread that holds one of
 * them takes only later ones, so no two threads wait for each other. server_lock asserts this. */
enum lock_order {
    LOCK_CONFIG,    /* while a configuration is destroyed, or used without LOCK_SERVICE */
    LOCK_LINKS,     /* messages to other processes, and their answers */
    LOCK_SERVICE,   /* the server object, and most of the state of the process */
    LOCK_HTTP,      /* the queue of the thread of pages, and what others give to the loop of HTTP */
    LOCK_HISTORY,   /* the last ten minutes of the resources, or of the limits */
    LOCK_TOKENS,    /* the list of the tokens */
    LOCK_GRPC,      /* orders to the loop of gRPC */
    LOCK_POOL,      /* the workers that receive in the place of others */
    LOCK_UNMATCHED, /* the table of descriptors without a template */
    LOCK_LOG        /* one line of the log at a time */
};

struct lock {
    pthread_mutex_t mutex;
    enum lock_order order;
};

#define LOCK_INITIALIZER(order)                                                                    \
    { PTHREAD_MUTEX_INITIALIZER, (order) }

/* Bit i: this thread holds a lock of the order i. Each file that includes this header defines the
 * variable, and the linker keeps one of them. */
__attribute__((weak)) _Thread_local unsigned server_held_locks;

static inline bool server_lock_is_held(const struct lock *lock) {
    return server_held_locks >> lock->order & 1U;
}

static inline void server_lock(struct lock *lock) {
    assert(server_held_locks >> lock->order == 0); /* see enum lock_order */
    pthread_mutex_lock(&lock->mutex);
    server_held_locks |= 1U << lock->order;
}

/* Takes a lock if no thread holds it. Returns whether it did. */
static inline bool server_try_lock(struct lock *lock) {
    assert(server_held_locks >> lock->order == 0); /* see enum lock_order */
    if (pthread_mutex_trylock(&lock->mutex) != 0) return false;
    server_held_locks |= 1U << lock->order;
    return true;
}

static inline void server_unlock(struct lock *lock) {
    assert(server_lock_is_held(lock));
    server_held_locks &= ~(1U << lock->order);
    pthread_mutex_unlock(&lock->mutex);
}

static inline bool server_lock_init(struct lock *lock, enum lock_order order) {
    lock->order = order;
    return pthread_mutex_init(&lock->mutex, NULL) == 0;
}

static inline void server_lock_uninit(struct lock *lock) { pthread_mutex_destroy(&lock->mutex); }

/* Makes a condition variable with CLOCK_MONOTONIC. On Linux this clock stops while the machine is
 * suspended. The clock of doorman_clock does not stop, but condition variables cannot use it. */
static inline bool server_condition_init(pthread_cond_t *condition) {
    pthread_condattr_t monotonic;
    bool done = pthread_condattr_init(&monotonic) == 0 &&
                pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(condition, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    return done;
}

/* Adds a duration to a time. The whole seconds are added apart, because a `long` of 32 bits has no
 * room for the nanoseconds of three seconds.
 *   duration   at least 0 */
static inline struct timespec server_time_after(struct timespec time, doorman_time duration) {
    assert(duration >= 0 && time.tv_nsec >= 0 && time.tv_nsec < DOORMAN_SECOND);
    time.tv_sec += (time_t)(duration / DOORMAN_SECOND);
    time.tv_nsec += (long)(duration % DOORMAN_SECOND); /* less than 2 s */
    if (time.tv_nsec >= DOORMAN_SECOND) {
        time.tv_nsec -= (long)DOORMAN_SECOND;
        time.tv_sec++;
    }
    return time;
}

/* Waits for a condition. The wait releases only this lock, so the thread must hold no other one.
 *   duration   the longest wait; DOORMAN_NEVER: no limit */
static inline void server_condition_wait(pthread_cond_t *condition, struct lock *lock,
                                         doorman_time duration) {
    struct timespec now;
    assert(server_held_locks == 1U << lock->order);
    if (duration == DOORMAN_NEVER) {
        pthread_cond_wait(condition, &lock->mutex);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    const struct timespec until = server_time_after(now, duration);
    pthread_cond_timedwait(condition, &lock->mutex, &until);
}

#endif
