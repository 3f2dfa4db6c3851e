/* doorman_server: TCP sockets that listen. */
#ifndef DOORMAN_SERVER_SOCKET_H
#define DOORMAN_SERVER_SOCKET_H

#include "../server.h"

#include <sys/socket.h>

#define PEER_BYTES 64 /* the address of a peer as text */

/* Starts to listen. A call of accept4 does not wait, and connections have TCP_NODELAY.
 *   listener   out: the socket; the caller closes it. -1 after an error
 *   address    HOST:PORT. Without a host, or with *, the socket listens on all addresses. With port
 *              0 the system chooses the port
 *   name       out: the same with the real port
 *   returns    0 | EINVAL: it is not HOST:PORT, or the host is not known | another errno */
int server_socket_listen(int *listener, const char *address, char *name, size_t room);

/* Writes the address of a peer for the log, as HOST:PORT. */
void server_socket_peer(char text[PEER_BYTES], const struct sockaddr_storage *peer);

#endif
