/* doorman_server, part GRPC: checks messages before memory is taken for them, and reads their
 * fields. */
#ifndef DOORMAN_SERVER_GRPC_SCAN_H
#define DOORMAN_SERVER_GRPC_SCAN_H

#include "../server.h"

#define GRPC_DESCRIPTOR_MAX 100
#define GRPC_ENTRY_MAX 16
#define GRPC_FIELD_MAX 8192         /* of a whole message, unknown fields included */
#define GRPC_USAGE_MAX 10000        /* reports of buckets in one message */
#define GRPC_BUCKET_ID_MAX 4096     /* bytes */
#define GRPC_QUOTA_FIELD_MAX 200000 /* as GRPC_FIELD_MAX, of a message of reports */

enum grpc_schema {
    GRPC_LIMIT_REQUEST,
    GRPC_RESERVE_REQUEST,
    GRPC_COMMIT_REQUEST,
    GRPC_HEALTH_REQUEST,
    GRPC_QUOTA_REPORTS
};

/* Why a message cannot be read. */
struct grpc_scan_error {
    bool is_too_large; /* too many fields; false: a field is too long, or it is no message */
    char text[192];    /* "descriptors[3].entries: at most 16" */
};

/* Checks the bytes of a message against the fields that the server reads. Unknown fields are
 * skipped. Takes no memory.
 *   error     out: written if the result is false */
bool server_grpc_scan(enum grpc_schema schema, const uint8_t *bytes, size_t count,
                      struct grpc_scan_error *error);

struct grpc_bytes {
    const uint8_t *bytes;
    size_t count;
};

/* One field of a message. */
struct grpc_field {
    uint32_t number;
    uint64_t value;          /* of a varint; else 0 */
    struct grpc_bytes bytes; /* of a text or a message */
};

/* Takes the next field from the bytes of a message. Precondition: server_grpc_scan has accepted
 * them, so a field that the server knows has its type.
 *   returns   false: the message is over */
bool server_grpc_field_next(struct grpc_bytes *from, struct grpc_field *out);

#endif
