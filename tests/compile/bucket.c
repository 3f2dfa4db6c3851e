/* The smallest program with a limiter. docs/library.md has its size. */
#include "doorman.h"

#include <stdio.h>

int main(void) {
    doorman_limit_options options = {.kind = DOORMAN_TOKEN_BUCKET, .rate = 10, .size = 50};
    doorman_limit limit;
    doorman_limiter limiter;
    if (doorman_limit_init(&limit, &options, NULL) != DOORMAN_OK) return 1;
    if (doorman_limiter_init(&limiter, &limit, NULL, 0) != DOORMAN_OK) return 1;
    printf("%d\n", doorman_limiter_try(&limiter, &limit, 1, NULL, 1) == DOORMAN_ALLOWED);
    return 0;
}
