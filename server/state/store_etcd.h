/* doorman_server, part NOTES: a store in etcd that keeps notes, and no rows. */
#ifndef DOORMAN_SERVER_STORE_ETCD_H
#define DOORMAN_SERVER_STORE_ETCD_H

#include "../server.h"
#include "store.h"

/* Opens the notes of a node. Makes no call to etcd.
 *   settings   with --config etcd:KEY; they must stay valid
 *   returns    NULL: out of memory */
struct store *server_store_etcd_open(const struct settings *settings);

/* Opens the notes that all nodes of a cluster share, below the key of --shards. server_store_begin
 * reads the revision of the last write, and server_store_epoch returns it. Makes no call to etcd.
 *   settings   with --shards; they must stay valid
 *   returns    NULL: out of memory, or the system has no random numbers */
struct store *server_store_etcd_open_cluster(const struct settings *settings);

/* Sets the etcd lease of the mastership that begins next. Writes need it from then on.
 *   lease   0: there is no election */
void server_store_etcd_set_lease(struct store *store, int64_t lease);

/* Lets the current call and all later ones fail at once. Any thread calls this. */
void server_store_etcd_cancel(struct store *store);

#endif
