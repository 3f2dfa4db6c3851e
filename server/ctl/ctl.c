/* doormanctl: what all its files use. */
#include "ctl.h"

#include <stdarg.h>
#include <stdlib.h>

/* ---- texts ---------------------------------------------------------------------------------- */

/* Returns how many bytes the control character at the start of a text has; 0: there is none. U+0080
 * to U+009F have two bytes in UTF-8. Some terminals obey them. U+200E, U+200F, U+2028 to U+202E and
 * U+2066 to U+2069 have three. They end a line, or turn the direction of writing. */
static size_t control_bytes(const char *text) {
    unsigned char first = (unsigned char)text[0], second = (unsigned char)text[1];
    const unsigned char third = first == 0xe2 && second ? (unsigned char)text[2] : 0;
    if (first == 0xc2 && second >= 0x80 && second < 0xa0) return 2;
    if (second == 0x80 && (third == 0x8e || third == 0x8f)) return 3;
    if (second == 0x80 && third >= 0xa8 && third <= 0xae) return 3;
    if (second == 0x81 && third >= 0xa6 && third <= 0xa9) return 3;
    return first < 0x20 || first == 0x7f;
}

void ctl_print(FILE *file, const char *text) {
    while (*text) {
        size_t skipped = control_bytes(text);
        fputc(skipped ? '?' : *text, file);
        text += skipped ? skipped : 1;
    }
}

int ctl_width(const char *text) {
    int width = 0;
    while (*text) {
        size_t skipped = control_bytes(text);
        width += ((unsigned char)*text & 0xc0) != 0x80; /* not inside a character */
        text += skipped ? skipped : 1;
    }
    return width;
}

/* Prints a line, with `?` for each control character. */
static void line_print(FILE *file, const char *format, va_list arguments) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    if (memory) vfprintf(memory, format, arguments);
    if (memory) fclose(memory);
    ctl_print(file, text ? text : format);
    fputc('\n', file);
    free(text);
}

void ctl_say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    line_print(stdout, format, arguments);
    va_end(arguments);
}

enum ctl_exit ctl_fail(enum ctl_exit code, const char *format, ...) {
    va_list arguments;
    fflush(stdout); /* so that the message stands behind what was printed before */
    fputs("doormanctl: ", stderr);
    va_start(arguments, format);
    line_print(stderr, format, arguments);
    va_end(arguments);
    return code;
}

void *ctl_need(void *memory) {
    if (!memory) {
        fputs("doormanctl: out of memory\n", stderr);
        exit(CTL_REFUSED);
    }
    return memory;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

const char *ctl_text(const cJSON *object, const char *name) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    return text ? text : "";
}

double ctl_number(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

bool ctl_is_true(const cJSON *object, const char *name) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, name));
}
