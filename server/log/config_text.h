/* doorman_server: the text of a configuration that came over HTTP, and what is wrong with it. */
#ifndef DOORMAN_SERVER_CONFIG_TEXT_H
#define DOORMAN_SERVER_CONFIG_TEXT_H

#include "../server.h"

/* Reads a configuration as a load would.
 *   problems   written in full: why it is not valid or does not fit this node, or warnings
 *   returns    NULL: it is not valid; the caller destroys it else */
doorman_config *server_config_read_text(const struct service *service, const char *text,
                                        size_t bytes, struct config_problems *problems);

/* Adds a list of problems: at most PROBLEM_MAX of them, and how many there are if there are more.
 *   key   "errors" or "warnings" */
void server_problems_add(cJSON *answer, const char *key, const struct config_problems *problems);

#endif
