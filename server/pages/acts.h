/* doorman_server, part ADMIN: what the pages of administration share. */
#ifndef DOORMAN_SERVER_ACTS_H
#define DOORMAN_SERVER_ACTS_H

#include "../admin/admin.h"
#include "pages.h"

/* Adds the overrides of a key that concern a resource, as a table. May wait for the store. */
void server_page_overrides(struct text *text, struct service *service, const char *resource,
                           const char *key);

#endif
