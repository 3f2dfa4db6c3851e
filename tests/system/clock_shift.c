/* A library that clock_test.c loads into a server: CLOCK_SHIFT seconds are added to the time of
 * day. The other clocks stay as they are. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *out) {
    const char *shift = getenv("CLOCK_SHIFT");
    int result = (int)syscall(SYS_clock_gettime, clock, out);
    if (result == 0 && clock == CLOCK_REALTIME && shift) out->tv_sec += strtol(shift, NULL, 10);
    return result;
}

time_t time(time_t *out) {
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
