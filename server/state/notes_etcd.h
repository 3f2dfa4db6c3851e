/* doorman_server, part NOTES: calls of the store in etcd. */
#ifndef DOORMAN_SERVER_NOTES_ETCD_H
#define DOORMAN_SERVER_NOTES_ETCD_H

#include "state.h"

/* Works like server_state_call. Precondition: acts are kept in etcd. */
enum call_result server_notes_call(struct service *service, struct state_call *call,
                                   char why[CALL_TEXT]);

/* Works like server_state_reread. Calls are refused until the acts are read. */
void server_notes_reread(struct service *service);

#endif
