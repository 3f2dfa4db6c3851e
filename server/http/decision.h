/* doorman_server, part HTTP: a decision that another process has made, as JSON. */
#ifndef DOORMAN_SERVER_DECISION_H
#define DOORMAN_SERVER_DECISION_H

#include "http.h"

#define DECISION_ITEM_MAX 100 /* items of a permit */
#define DECISION_DETAIL_MAX ((size_t)DECISION_ITEM_MAX * DOORMAN_LIMITS_MAX)

/* The texts are those of the tree. */
struct decision {
    doorman_permit permit;
    doorman_permit_grant grants[DECISION_ITEM_MAX];
    doorman_permit_detail details[DECISION_DETAIL_MAX];
};

/* Reads the decision on a permit.
 *   item_count   of the permit
 *   returns      false: it is no decision on this many items */
bool server_decision_read(struct decision *out, const cJSON *decision, size_t item_count);

/* Returns a reason by its name; a name that is not known: NO_REASON. */
doorman_reason server_decision_reason(const char *name);

#endif
