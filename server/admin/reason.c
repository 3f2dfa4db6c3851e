/* doorman_server, part ADMIN: the reason of an act. People type it, and others read it in the
 * audit, on pages and in terminals. So it has no characters that change how a text is shown. */
#include "admin.h"

/* Reads a character of a text.
 *   at        in/out: moves behind it
 *   returns   UINT32_MAX: the bytes are not UTF-8, or an overlong form, or a surrogate */
static uint32_t reason_next(const unsigned char **at) {
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    const unsigned char first = *(*at)++;
    const int more = first < 0x80       ? 0
                     : first >> 5 == 6  ? 1
                     : first >> 4 == 14 ? 2
                     : first >> 3 == 30 ? 3
                                        : -1;
    uint32_t code = more < 1 ? first : first & (0x3fU >> more);
    for (int i = 0; i < more; i++) {
        if (**at >> 6 != 2) return UINT32_MAX;
        code = code << 6 | (*(*at)++ & 0x3fU);
    }
    const bool is_valid = more >= 0 && code >= least[more] && code <= 0x10ffff && code >> 11 != 27;
    return is_valid ? code : UINT32_MAX;
}

bool server_text_is_utf8(const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    bool is_valid = true;
    while (*at && is_valid) is_valid = reason_next(&at) != UINT32_MAX;
    return is_valid;
}

/* Returns whether a character changes how the characters beside it are shown: a control character,
 * a separator of lines, or one that turns the direction of writing. The marks U+061C, U+200E and
 * U+200F do not count. */
static bool reason_is_control(uint32_t code) {
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069);
}

/* Returns whether a character shows nothing. */
static bool reason_is_space(uint32_t code) {
    static const uint32_t codes[] = {' ',    0xa0,   0xad,   0x1680, 0x180e, 0x202f,
                                     0x205f, 0x2060, 0x2800, 0x3000, 0x3164, 0xfeff};
    bool found = code >= 0x2000 && code <= 0x200f;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) found = found || codes[i] == code;
    return found;
}

const char *server_reason_check(const char *reason) {
    const unsigned char *at = (const unsigned char *)reason;
    bool is_blank = true;
    if (strlen(reason) > REASON_MAX) return "reason: must have 1 to 500 bytes of UTF-8";
    while (*at) {
        const uint32_t code = reason_next(&at);
        if (code == UINT32_MAX) return "reason: must have 1 to 500 bytes of UTF-8";
        if (reason_is_control(code)) {
            return "reason: must be a line of text, without control characters and characters "
                   "that turn the direction of writing";
        }
        is_blank = is_blank && reason_is_space(code);
    }
    return is_blank && *reason ? "reason: must say why, and not only be white space" : NULL;
}

bool server_act_add_reason(cJSON *row, const struct http_request *request,
                           struct http_response *response) {
    char reason[REASON_MAX + 2];
    const bool is_read = server_query_read(request->query, "reason", reason, sizeof reason);
    if (!is_read && server_query_count(request->query, "reason") == 0) return true;
    const char *error = is_read ? server_reason_check(reason) : "reason: must have no 0 byte";
    if (error) {
        server_http_response_set_error(response, 400, "INVALID_ARGUMENT", error);
        return false;
    }
    cJSON_AddStringToObject(row, "reason", reason);
    return true;
}
