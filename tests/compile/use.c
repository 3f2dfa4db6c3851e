/* Uses the public part from C99, C11 and C++11. The compiler command says whether the
 * implementation is in this file or in another one. */
#include "doorman.h"
#include "doorman.h" /* including it twice must work */

int main(void) {
    const doorman_demand demands[] = {{1000, 1, 1}, {50, 1, 1}, {10, 1, 1}};
    doorman_terms terms[DOORMAN_TERMS_MAX];
    size_t terms_count = 0;
    if (doorman_shares_solve(NULL, 120, demands, 3, terms, &terms_count) != DOORMAN_OK) return 1;
    double target = doorman_terms_target(terms, terms_count, &demands[0]);
    return target > 59.999999 && target < 60.000001 ? 0 : 1;
}
