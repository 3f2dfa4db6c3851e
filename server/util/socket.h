/* doorman_server: TCP sockets that listen. */
#ifndef DOORMAN_SERVER_SOCKET_H
#define DOORMAN_SERVER_SOCKET_H

#include "../server.h"

#include <sys/socket.h>

#define PEER_BYTES 64 /* the address of a peer as text */

/* Starts to listen. A call of accept4 does not wait, and connections have TCP_NODELAY.
 *   listener   out: the socket; the caller closes it. -1 after an error
 *   address    HOST:PORT. Without a host, or with *, the socket listens on all addresses of the
 *              first family that works, mostly IPv4. With port 0 the system chooses the port
 *   name       out: the same with the real port
 *   returns    0 | EINVAL: it is not HOST:PORT, or the host is not known | another errno */
int server_socket_listen(int *listener, const char *address, char *name, size_t room);

/* Prints why a server cannot listen on the address of a flag.
 *   flag      without "--"
 *   example   an address that is valid
 *   error     what server_socket_listen has returned; not 0
 *   instead   what to do instead of listening there */
enum exit_status server_socket_refuse(const char *flag, const char *address, const char *example,
                                      int error, const char *instead);

/* Accepts a connection, without waiting.
 *   peer       out: its address for the log, as HOST:PORT
 *   is_short   out: on -1, whether the system has failed, as without free descriptors or memory
 *   returns    its socket; -1: there is none */
int server_socket_accept(int listener, char peer[PEER_BYTES], bool *is_short);

#endif
