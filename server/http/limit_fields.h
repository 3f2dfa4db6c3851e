/* doorman_server, part HTTP: the fields RateLimit, RateLimit-Policy and Retry-After, which say what
 * a permit has left. /v1/allow and the services of gRPC send them. */
#ifndef DOORMAN_SERVER_LIMIT_FIELDS_H
#define DOORMAN_SERVER_LIMIT_FIELDS_H

#include "http.h"

/* A limit that concerns an item. */
struct limit_field {
    char name[DOORMAN_ID_BYTES_MAX + 1];
    double most, remaining;
    doorman_time reset_after, more_after;
    doorman_time window; /* 0: not known */
};

/* The limits of an item. */
struct limit_fields {
    struct limit_field items[DOORMAN_LIMITS_MAX];
    size_t count;
    bool has_first; /* items[0] is the limit that decided */
    bool has_retry_after;
    doorman_time retry_after;
    double share; /* units a second that the key may use, if it is refused with SHARE; else 0 */
};

/* Copies the limits of an item of a permit: first the limit that decided, then the others. */
void server_limit_fields_take(struct limit_fields *fields, const doorman_permit *permit,
                              size_t item_index);

/* Adds a list of limits, which is the value of RateLimit-Policy or of RateLimit. The list ends
 * before it becomes too long. Precondition: there is a limit. */
void server_limit_fields_add_list(struct text *text, const struct limit_fields *fields,
                                  bool is_policy);

/* Returns the value of Retry-After, at least 1. */
long long server_limit_fields_retry(const struct limit_fields *fields);

/* Returns whether it is known when a limit has units. A limit of 0 has none, and gets none. */
bool server_limit_has_times(const struct limit_field *limit);

long long server_limit_integer(double units);          /* rounded down */
long long server_limit_seconds(doorman_time duration); /* rounded up */

#endif
