/* doorman_server, part UNMATCHED: the last descriptors of gateways without a template that has
 * limits. */
#ifndef DOORMAN_SERVER_UNMATCHED_H
#define DOORMAN_SERVER_UNMATCHED_H

#include "../server.h"

#define UNMATCHED_MAX 32 /* rows */

/* Descriptors of one domain that became the same resource. */
struct unmatched_row {
    char domain[DOORMAN_ID_BYTES_MAX + 1]; /* cut off, and only printable ASCII: others are `?` */
    char resource[DOORMAN_ID_BYTES_MAX + 1];
    char key[DOORMAN_ID_BYTES_MAX + 1]; /* of the last one */
    uint64_t count;
    doorman_time at; /* of the last one */
    bool matched;    /* a rule of the configuration has given the resource */
};

/* Notes a descriptor whose resource has no template with limits. Any thread may call it, with or
 * without the lock of the service.
 *   domain   as the client has sent it
 *   item     of doorman_descriptors_resolve
 *   cost     a mutex, and a look at UNMATCHED_MAX rows */
void server_unmatched_note(struct service *service, const char *domain,
                           const doorman_descriptor_item *item);

/* Copies the rows, the last one first.
 *   all       out: how many descriptors were noted since the process started
 *   returns   the number of rows */
size_t server_unmatched_list(struct service *service, struct unmatched_row rows[UNMATCHED_MAX],
                             uint64_t *all);

#endif
