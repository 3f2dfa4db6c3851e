/* doorman_server, part ADMIN: versions of the configuration.
 *
 * E3 If the configuration is in the store or in a key of etcd, requests change it. Each change
 *    names the version that it replaces and a reason, and earlier versions can be read and brought
 *    back. A configuration in a file has no versions, and no request changes it. */
#ifndef DOORMAN_SERVER_VERSIONS_H
#define DOORMAN_SERVER_VERSIONS_H

#include "admin.h"
#include "normal.h"

#define VERSION_NOTE "version" /* the kind of the notes of versions */
#define VERSION_NAME 24        /* bytes of an identity of a note */

/* ---- notes of versions ---------------------------------------------------------------------- */

/* Reads notes of versions. Runs on the thread of the store, or at the start.
 *   before   only versions with a smaller number; 0: the newest ones
 *   notes    out: texts that the caller frees; NULL behind the last one
 *   count    how many are wanted
 *   returns  false: the store has failed, or memory ran out */
bool server_versions_read(struct store *store, uint64_t before, char *notes[], size_t count);

/* A few versions that were read for a page or a path. */
struct version_look {
    struct state_call call;
    uint64_t before; /* in */
    size_t count;    /* in: at most 2 */
    char *notes[3];
    bool failed;
    char error[STORE_TEXT];
};

/* Reads versions. May wait for the store.
 *   returns   the look, which the caller frees with server_version_look_free; NULL: the response is
 *             an error */
struct version_look *server_version_look(struct service *service, uint64_t before, size_t count,
                                         struct http_response *response);
void server_version_look_free(void *look);

/* ---- the version in force ------------------------------------------------------------------- */

/* Offers a version of the store: the main thread puts it into force within a second. Precondition:
 * the lock is held.
 *   config     the function takes ownership
 *   problems   its version, and the warnings about it */
void server_versions_offer(struct service *service, doorman_config *config,
                           const struct config_problems *problems);

/* Waits until a version is in force, for some seconds at most.
 *   returns   false: it is not yet */
bool server_versions_await(struct service *service, uint64_t number);

/* Returns the version in force; 0: the configuration has none. */
uint64_t server_versions_in_force(struct service *service);

#endif
