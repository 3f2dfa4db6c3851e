/* doorman_server, part GRPC: checks the bytes of a message before they are read. A peer could
 * otherwise make protobuf-c allocate many more bytes than its message has, and protobuf-c does not
 * say which field is wrong. grpc_call.c reads the fields with server_grpc_field_next.
 *
 * A message is a list of fields. Each field begins with a tag: its number and its wire type. The
 * type says what follows: a varint, 8 bytes, 4 bytes, or a length and that many bytes. The types 3
 * and 4 are groups, which these messages do not have. */
#include "grpc_scan.h"

enum { WIRE_VARINT = 0, WIRE_8_BYTES = 1, WIRE_BYTES = 2, WIRE_4_BYTES = 5 };

struct scan_message;

struct scan_field {
    uint32_t number, wire;
    const char *name;
    size_t most;                        /* how often it may occur; 0: a later one replaces it */
    size_t bytes_most;                  /* of a field with a length; 0: no bound */
    const struct scan_message *message; /* NULL: no message */
};

struct scan_message {
    const struct scan_field *fields; /* a name that is NULL ends the list */
};

static const struct scan_message number_message = {
    (const struct scan_field[]){{1, WIRE_VARINT, "value", 0, 0, NULL}, {.name = NULL}}};

static const struct scan_message span_message = {
    (const struct scan_field[]){{1, WIRE_VARINT, "seconds", 0, 0, NULL},
                                {2, WIRE_VARINT, "nanos", 0, 0, NULL},
                                {.name = NULL}}};

static const struct scan_message wanted_message = {
    (const struct scan_field[]){{1, WIRE_VARINT, "requests_per_unit", 0, 0, NULL},
                                {2, WIRE_VARINT, "unit", 0, 0, NULL},
                                {3, WIRE_VARINT, "unit_multiplier", 0, 0, NULL},
                                {.name = NULL}}};

static const struct scan_message entry_message = {(const struct scan_field[]){
    {1, WIRE_BYTES, "key", 0, 0, NULL}, {2, WIRE_BYTES, "value", 0, 0, NULL}, {.name = NULL}}};

static const struct scan_message descriptor_message = {
    (const struct scan_field[]){{1, WIRE_BYTES, "entries", GRPC_ENTRY_MAX, 0, &entry_message},
                                {2, WIRE_BYTES, "limit", 0, 0, &wanted_message},
                                {3, WIRE_BYTES, "hits_addend", 0, 0, &number_message},
                                {4, WIRE_VARINT, "is_negative_hits", 0, 0, NULL},
                                {.name = NULL}}};

static const struct scan_message bucket_id_message = {(const struct scan_field[]){
    {1, WIRE_BYTES, "bucket", GRPC_ENTRY_MAX, 0, &entry_message}, {.name = NULL}}};

static const struct scan_message usage_message = {(const struct scan_field[]){
    {1, WIRE_BYTES, "bucket_id", 0, GRPC_BUCKET_ID_MAX, &bucket_id_message},
    {2, WIRE_BYTES, "time_elapsed", 0, 0, &span_message},
    {3, WIRE_VARINT, "num_requests_allowed", 0, 0, NULL},
    {4, WIRE_VARINT, "num_requests_denied", 0, 0, NULL},
    {.name = NULL}}};

#define SCAN_DESCRIPTORS                                                                           \
    {1, WIRE_BYTES, "domain", 0, DOORMAN_ID_BYTES_MAX, NULL}, {                                    \
        2, WIRE_BYTES, "descriptors", GRPC_DESCRIPTOR_MAX, 0, &descriptor_message                  \
    }

static const struct scan_message scan_messages[] = {
    [GRPC_LIMIT_REQUEST] = {(const struct scan_field[]){
        SCAN_DESCRIPTORS, {3, WIRE_VARINT, "hits_addend", 0, 0, NULL}, {.name = NULL}}},
    [GRPC_RESERVE_REQUEST] = {(const struct scan_field[]){
        SCAN_DESCRIPTORS,
        {3, WIRE_VARINT, "amount", 0, 0, NULL},
        {4, WIRE_BYTES, "ttl", 0, 0, &span_message},
        {.name = NULL}}},
    [GRPC_COMMIT_REQUEST] = {(const struct scan_field[]){
        SCAN_DESCRIPTORS,
        {3, WIRE_BYTES, "reservation_id", 0, 0, NULL},
        {4, WIRE_VARINT, "actual_amount", 0, 0, NULL},
        {.name = NULL}}},
    [GRPC_HEALTH_REQUEST] = {(const struct scan_field[]){{1, WIRE_BYTES, "service", 0, 0, NULL},
                                                         {.name = NULL}}},
    [GRPC_QUOTA_REPORTS] = {(const struct scan_field[]){
        {1, WIRE_BYTES, "domain", 0, DOORMAN_ID_BYTES_MAX, NULL},
        {2, WIRE_BYTES, "bucket_quota_usages", GRPC_USAGE_MAX, 0, &usage_message},
        {.name = NULL}}}};

/* The position in a message, and the fields around it. An error has their names. */
struct scan {
    const uint8_t *at, *end;
    const struct scan *around;
    const struct scan_field *field; /* that has these bytes; NULL: the whole message */
    size_t index;                   /* of the field in its list */
    size_t *field_count;            /* of the whole message */
    size_t field_most;
    struct grpc_scan_error *error;
};

/* Writes the path of a field: the names of the fields around it, and its own name. A field that may
 * be repeated also gets its index, unless that index is too large. */
static void scan_write_path(const struct scan *scan, char *path, size_t room) {
    const struct scan_field *field = scan->field;
    if (!field) return;
    scan_write_path(scan->around, path, room);
    size_t used = strlen(path);
    snprintf(path + used, room - used, "%s%s", used ? "." : "", field->name);
    used = strlen(path);
    if (field->most > 0 && scan->index < field->most) {
        snprintf(path + used, room - used, "[%zu]", scan->index);
    }
}

static bool scan_fail(struct scan *scan, bool is_too_large, const char *rule) {
    char path[128] = "";
    scan_write_path(scan, path, sizeof path);
    if (!path[0]) snprintf(path, sizeof path, "message");
    scan->error->is_too_large = is_too_large;
    snprintf(scan->error->text, sizeof scan->error->text, "%s: %s", path, rule);
    return false;
}

static bool scan_long_varint(struct scan *scan, uint64_t *out) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (scan->at == scan->end) return scan_fail(scan, false, "ends in the middle of a number");
        uint8_t byte = *scan->at++;
        if (shift == 63 && byte > 1) break;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return scan_fail(scan, false, "has a number of more than 64 bits");
}

/* Reads a number of one byte, as most numbers are. Returns false if there is no such number. */
static inline bool scan_byte(struct scan *scan, uint64_t *out) {
    if (scan->at == scan->end || *scan->at >= 0x80) return false;
    *out = *scan->at++;
    return true;
}

static inline bool scan_varint(struct scan *scan, uint64_t *out) {
    return scan_byte(scan, out) || scan_long_varint(scan, out);
}

/* Reads a number of at most 32 bits: a tag, or a length. protobuf-c reads only 5 bytes of it, so a
 * longer one is refused, even if its value fits into 32 bits. */
static bool scan_long_short(struct scan *scan, uint64_t *out) {
    const uint8_t *const from = scan->at;
    if (!scan_long_varint(scan, out)) return false;
    return (scan->at - from <= 5 && *out <= UINT32_MAX) ||
           scan_fail(scan, false, "has a tag or a length of more than 32 bits");
}

static inline bool scan_short(struct scan *scan, uint64_t *out) {
    return scan_byte(scan, out) || scan_long_short(scan, out);
}

/* Sets the end of the scan to the end of a value. A varint is read, so nothing remains of it. */
static inline bool scan_value(struct scan *scan, uint32_t wire) {
    uint64_t bytes = wire == WIRE_8_BYTES ? 8 : 4;
    if (wire == WIRE_VARINT) {
        if (!scan_varint(scan, &bytes)) return false;
        scan->end = scan->at;
        return true;
    }
    if (wire != WIRE_BYTES && wire != WIRE_8_BYTES && wire != WIRE_4_BYTES) {
        return scan_fail(scan, false, "has a field of an unknown type");
    }
    if (wire == WIRE_BYTES && !scan_short(scan, &bytes)) return false;
    if (bytes > (uint64_t)(scan->end - scan->at)) {
        return scan_fail(scan, false, "is longer than the message that has it");
    }
    scan->end = scan->at + bytes;
    return true;
}

static const struct scan_field *scan_find(const struct scan_message *message, uint64_t number) {
    const struct scan_field *field = message->fields;
    while (field->name && field->number != number) field++;
    return field->name ? field : NULL;
}

static bool scan_fields(struct scan *scan, const struct scan_message *message);

/* Checks one field, whose tag has been read.
 *   scan   what follows the tag */
static bool scan_known(struct scan *scan, const struct scan_field *field, uint32_t wire) {
    const size_t index = scan->index;
    char rule[64];
    if (wire != field->wire) return scan_fail(scan, false, "has the wrong type");
    if (field->most > 0 && index >= field->most) {
        snprintf(rule, sizeof rule, "at most %zu", field->most);
        return scan_fail(scan, true, rule);
    }
    if (!scan_value(scan, wire)) return false;
    if (field->bytes_most > 0 && (size_t)(scan->end - scan->at) > field->bytes_most) {
        snprintf(rule, sizeof rule, "at most %zu bytes", field->bytes_most);
        return scan_fail(scan, false, rule);
    }
    return !field->message || scan_fields(scan, field->message);
}

#define SCAN_FIELDS 4 /* the largest number of a known field */

static bool scan_fields(struct scan *scan, const struct scan_message *message) {
    size_t counts[SCAN_FIELDS + 1] = {0};
    while (scan->at < scan->end) {
        uint64_t tag = 0;
        if (!scan_short(scan, &tag)) return false;
        if (++*scan->field_count > scan->field_most) {
            return scan_fail(scan, true, "the message has too many fields");
        }
        uint32_t wire = (uint32_t)(tag & 7);
        if (tag >> 3 == 0) {
            return scan_fail(scan, false, "has a field with an impossible number");
        }
        const struct scan_field *field = scan_find(message, tag >> 3);
        struct scan inner = *scan;
        if (field) {
            inner.around = scan;
            inner.field = field;
            inner.index = counts[field->number]++;
        }
        if (!(field ? scan_known(&inner, field, wire) : scan_value(&inner, wire))) return false;
        scan->at = inner.end;
    }
    return true;
}

bool server_grpc_scan(enum grpc_schema schema, const uint8_t *bytes, size_t count,
                      struct grpc_scan_error *error) {
    size_t field_count = 0;
    struct scan scan = {
        .at = bytes, .end = bytes + count, .field_count = &field_count, .error = error};
    scan.field_most = schema == GRPC_QUOTA_REPORTS ? GRPC_QUOTA_FIELD_MAX : GRPC_FIELD_MAX;
    return scan_fields(&scan, &scan_messages[schema]);
}

/* ---- fields --------------------------------------------------------------------------------- */

static inline uint64_t field_varint(struct grpc_bytes *from) {
    uint64_t value = 0;
    uint8_t byte = 0x80;
    if (from->count > 0 && *from->bytes < 0x80) { /* most numbers */
        from->count--;
        return *from->bytes++;
    }
    for (unsigned shift = 0; byte >= 0x80 && shift < 64 && from->count > 0; shift += 7) {
        byte = *from->bytes++;
        from->count--;
        value |= (uint64_t)(byte & 0x7f) << shift;
    }
    return value;
}

bool server_grpc_field_next(struct grpc_bytes *from, struct grpc_field *out) {
    struct grpc_bytes rest = *from;
    if (rest.count == 0) return false;
    const uint64_t tag = field_varint(&rest);
    const uint32_t wire = (uint32_t)(tag & 7);
    out->number = (uint32_t)(tag >> 3);
    out->value = wire == WIRE_VARINT ? field_varint(&rest) : 0;
    size_t count = 0;
    if (wire == WIRE_BYTES) count = (size_t)field_varint(&rest);
    if (wire == WIRE_8_BYTES || wire == WIRE_4_BYTES) count = wire == WIRE_8_BYTES ? 8 : 4;
    assert(count <= rest.count);
    out->bytes = (struct grpc_bytes){rest.bytes, count};
    *from = (struct grpc_bytes){rest.bytes + count, rest.count - count};
    return true;
}
