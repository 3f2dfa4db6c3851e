/* doorman_server, part HTTP: text that grows, and the rules that escape text from outside. The
 * functions use only their arguments.
 *
 * HTTP bodies are built in a struct text, whose buffer grows. If memory runs out, `failed` is set,
 * and all further text is ignored. So a caller checks for failure only once, at the end. Text from
 * outside, such as ids, is added by server_text_add_escaped, with the rule of the language around
 * the text.
 *
 * Numbers have at most 12 significant digits, because further digits often come from rounding. An
 * amount that holders have is rounded down, so printed leases fit into a printed capacity. Integers
 * have all digits. Other functions make the JSON of messages of the protocol: see >>json in
 * doorman.h. */
#include "http.h"

#include <stdarg.h>

#define TEXT_BYTES_MIN 512 /* of a buffer, so that a short response is allocated once */

void server_text_add_bytes(struct text *text, const char *bytes, size_t count) {
    doorman_buffer *buffer = &text->buffer;
    size_t needed = buffer->bytes + count + 1;
    if (!text->failed && needed > buffer->capacity) {
        size_t capacity = needed * 2 > TEXT_BYTES_MIN ? needed * 2 : TEXT_BYTES_MIN;
        char *grown = (char *)realloc(buffer->text, capacity);
        text->failed = !grown;
        if (grown) *buffer = (doorman_buffer){grown, buffer->bytes, capacity};
        /* cppcheck-suppress memleak ; the buffer owns the memory */
    }
    if (text->failed) return;
    if (count > 0) memcpy(buffer->text + buffer->bytes, bytes, count); /* bytes may be NULL */
    buffer->bytes += count;
    buffer->text[buffer->bytes] = 0;
}

void server_text_add(struct text *text, const char *plain) {
    server_text_add_bytes(text, plain, strlen(plain));
}

void server_text_add_all(struct text *text, const char *const *texts) {
    for (; *texts; texts++) server_text_add(text, *texts);
}

void server_text_add_integer(struct text *text, int64_t value) {
    char digits[24], *const end = digits + sizeof digits, *at = end;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        *--at = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (value < 0) *--at = '-';
    server_text_add_bytes(text, at, (size_t)(end - at));
}

void server_text_add_seconds(struct text *text, doorman_time duration) {
    char decimals[] = ".000000000";
    int64_t fraction = duration % DOORMAN_SECOND;
    size_t last = sizeof decimals - 2;
    assert(duration >= 0);
    server_text_add_integer(text, duration / DOORMAN_SECOND);
    if (fraction == 0) return;
    for (; fraction % 10 == 0; fraction /= 10) last--;
    for (size_t i = last; i > 0; i--, fraction /= 10) decimals[i] = (char)('0' + fraction % 10);
    server_text_add_bytes(text, decimals, last + 1);
}

__attribute__((format(printf, 2, 3))) void server_text_addf(struct text *text, const char *format,
                                                            ...) {
    char formatted[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(formatted, sizeof formatted, format, arguments);
    va_end(arguments);
    server_text_add(text, formatted);
}

/* Returns whether a number is an integer that is written with all its digits. Any other number has
 * at most 12 significant digits. */
static bool number_is_integer(double value) {
    return value > -9e15 && value < 9e15 && (double)(int64_t)value == value;
}

static void number_format(char out[40], double value) {
    snprintf(out, 40, number_is_integer(value) ? "%.0f" : "%.12g", value);
}

void server_text_add_number(struct text *text, double value) {
    if (number_is_integer(value)) {
        server_text_add_integer(text, (int64_t)value);
    } else {
        server_text_addf(text, "%.12g", value);
    }
}

/* If the text is larger than the amount, writes the next smaller number with 12 digits. The digits
 * of "3.33333333333e+01" without the point are 333333333333, and its exponent is 1. */
void server_text_add_lease(struct text *text, double amount) {
    char out[40], digits[64];
    number_format(out, amount);
    if (amount > 0 && strtod(out, NULL) > amount) {
        snprintf(digits, sizeof digits, "%.11e", amount);
        digits[1] = digits[0]; /* moves the first digit to where the point was */
        char *end = NULL;
        long long number = strtoll(digits + 1, &end, 10);
        long exponent = strtol(end + 1, NULL, 10);
        bool is_power = number == 100000000000; /* the smaller number has a digit less */
        number = is_power ? 999999999999 : number - 1;
        snprintf(digits, sizeof digits, "%llde%ld", number, exponent - 11 - is_power);
        number_format(out, strtod(digits, NULL));
    }
    server_text_add(text, out);
}

const char *server_escape_html(char character, char room[8]) {
    (void)room;
    switch (character) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    default: return NULL;
    }
}

const char *server_escape_json(char character, char room[8]) {
    unsigned char code = (unsigned char)character;
    if (character != '"' && character != '\\' && code >= ' ') return NULL;
    snprintf(room, 8, "\\u%04x", code);
    return room;
}

const char *server_escape_label(char character, char room[8]) {
    (void)room;
    switch (character) {
    case '\\': return "\\\\";
    case '"': return "\\\"";
    case '\n': return "\\n";
    default: return NULL;
    }
}

const char *server_escape_query(char character, char room[8]) {
    bool plain = (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
                 (character >= '0' && character <= '9') || strchr("-._~/:", character);
    if (plain) return NULL;
    snprintf(room, 8, "%%%02X", (unsigned)(unsigned char)character);
    return room;
}

void server_text_add_escaped(struct text *text, const char *from, escape_rule rule) {
    char room[8];
    const char *plain = from; /* has no character to escape until `from` */
    for (; *from; from++) {
        const char *replacement = rule(*from, room);
        if (!replacement) continue;
        server_text_add_bytes(text, plain, (size_t)(from - plain));
        server_text_add(text, replacement);
        plain = from + 1;
    }
    server_text_add_bytes(text, plain, (size_t)(from - plain));
}

void server_text_add_json(struct text *text, const char *before, const char *value) {
    server_text_add(text, before);
    server_text_add(text, "\"");
    server_text_add_escaped(text, value, server_escape_json);
    server_text_add(text, "\"");
}

int server_hex_value(char digit) {
    static const char digits[] = "0123456789abcdef";
    const char *at = digit ? strchr(digits, digit | ('a' - 'A')) : NULL;
    return at && (digit <= '9' || digit >= 'A') ? (int)(at - digits) : -1;
}

bool server_query_read(const char *query, const char *name, char *out, size_t room) {
    size_t name_bytes = strlen(name), bytes = 0;
    out[0] = 0;
    while (query && (strncmp(query, name, name_bytes) != 0 || query[name_bytes] != '=')) {
        query = strchr(query, '&');
        if (query) query++;
    }
    if (!query) return false;
    for (const char *at = query + name_bytes + 1; *at && *at != '&' && bytes + 1 < room; at++) {
        char character = *at == '+' ? ' ' : *at;
        if (*at == '%' && server_hex_value(at[1]) >= 0 && server_hex_value(at[2]) >= 0) {
            character = (char)(server_hex_value(at[1]) * 16 + server_hex_value(at[2]));
            at += 2;
        }
        if (!character) return false;
        out[bytes++] = character;
        out[bytes] = 0;
    }
    return true;
}

uint64_t server_number_read(const char *text, int base, const char **end) {
    size_t digits = strspn(text, base == 16 ? "0123456789abcdef" : "0123456789");
    *end = text + digits;
    return digits > 0 && digits <= 16 ? strtoull(text, NULL, base) : 0;
}

int server_query_count(const char *query, const char *name) {
    size_t bytes = strlen(name);
    int count = 0;
    while (query) {
        count += strncmp(query, name, bytes) == 0 && query[bytes] == '=';
        query = strchr(query, '&');
        if (query) query++;
    }
    return count;
}

const char *server_query_find_unknown(const char *query, const char *const *names) {
    for (const char *at = query; at; at = strchr(at, '&') ? strchr(at, '&') + 1 : NULL) {
        size_t bytes = strcspn(at, "=&");
        bool known = bytes == 0 && at[0] != '=';
        for (size_t i = 0; names[i]; i++) {
            const char *name = names[i];
            known = known || (strncmp(at, name, bytes) == 0 && !name[bytes] && at[bytes] == '=');
        }
        if (!known) return at;
    }
    return NULL;
}

bool server_query_is_set(const char *query, const char *name) {
    char value[8];
    return server_query_read(query, name, value, sizeof value) && strcmp(value, "1") == 0;
}

void server_metrics_header(struct text *text, const char *name, const char *type,
                           const char *help) {
    server_text_addf(text, "# HELP doorman_%s %s\n# TYPE doorman_%s %s\n", name, help, name, type);
}

void server_metrics_value(struct text *text, const char *name, const char *type, const char *help,
                          double value) {
    server_metrics_header(text, name, type, help);
    server_text_addf(text, "doorman_%s ", name);
    server_text_add_number(text, value);
    server_text_add(text, "\n");
}

void server_holder_write(const char *client_id, char out[HOLDER_BYTES]) {
    const char *colon = strrchr(client_id, ':');
    size_t bytes = colon ? (size_t)(colon - client_id) : strlen(client_id) / 2;
    while (bytes > 0 && ((unsigned char)client_id[bytes] & 0xc0U) == 0x80) bytes--; /* UTF-8 */
    snprintf(out, HOLDER_BYTES, "%.*s...", (int)bytes, client_id);
}
