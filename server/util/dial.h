/* doorman_server: connections to other processes of Doorman. */
#ifndef DOORMAN_SERVER_DIAL_H
#define DOORMAN_SERVER_DIAL_H

#include "../server.h"

/* Opens a REQ socket that asks one process, and connects in the background. TLS uses the files of
 * this process, and the name of the host in the address.
 *   socket    written on 0 alone
 *   notify    is called when a connection is there or ends
 *   returns   0, or an error of nng */
int server_dial(struct service *service, const char *address, nng_socket *socket,
                nng_pipe_cb notify, void *context);

#endif
