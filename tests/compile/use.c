/* Uses doorman.h from C99, C11 and C++11. The compiler command says whether the
 * implementation is in this file or in another one. */
#include "doorman.h"
#include "doorman.h" /* including it twice must work */

int main(void) {
    const doorman_demand demands[] = {{1000, 1, 1}, {50, 1, 1}, {10, 1, 1}};
    double amounts[3];
    if (doorman_shares(NULL, 120, demands, 3, amounts, NULL, NULL, NULL) != DOORMAN_OK) return 1;
    if (!(amounts[0] > 59.999999 && amounts[0] < 60.000001)) return 1;

    static doorman_limit_options options; /* zeros */
    doorman_limit limit;
    doorman_limiter limiter;
    doorman_result result;
    options.kind = DOORMAN_TOKEN_BUCKET;
    options.rate = 10;
    options.size = 1;
    if (doorman_limit_init(&limit, &options, NULL) != DOORMAN_OK) return 1;
    if (doorman_limiter_init(&limiter, &limit, NULL, 0) != DOORMAN_OK) return 1;
    if (doorman_limiter_try(&limiter, &limit, 1, NULL, 0) != DOORMAN_ALLOWED) return 1;
    if (doorman_limiter_delay(&limiter, &limit, 1, 0) != DOORMAN_SECOND / 10) return 1;

    static doorman_limit_options pool; /* zeros */
    pool.kind = DOORMAN_CONCURRENCY;
    pool.limit = 2;
    if (doorman_limit_init(&limit, &pool, NULL) != DOORMAN_OK) return 1;
    if (doorman_limiter_init(&limiter, &limit, NULL, 0) != DOORMAN_OK) return 1;
    if (doorman_limiter_try(&limiter, &limit, 2, &result, 0) != DOORMAN_ALLOWED) return 1;
    doorman_limiter_release(&limiter, &limit, 2);
    return result.decision == DOORMAN_ALLOWED && result.remaining <= 0 ? 0 : 1;
}
