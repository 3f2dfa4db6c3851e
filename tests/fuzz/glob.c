/* Reads any two lines as a glob and an id. doorman__glob_match must match like a slow and simple
 * matcher, within a bound of steps. doorman__id_valid must agree with the Unicode standard. */
#define DOORMAN_STATIC /* compiles in less time */
#define DOORMAN_IMPLEMENTATION
#include "fuzz.h"

#define UNSEEN (-1)

typedef struct glob_text {
    uint32_t codes[DOORMAN_ID_BYTES_MAX];
    size_t count;
} glob_text;

typedef struct glob_pair {
    glob_text glob, id;
    signed char known[DOORMAN_ID_BYTES_MAX + 1]
                     [DOORMAN_ID_BYTES_MAX + 1]; /* the result, if known */
} glob_pair;

/* The number of function calls. The build uses -finstrument-functions, so each call is counted. */
static size_t steps;

void __cyg_profile_func_enter(void *function, void *site) __attribute__((no_instrument_function));
void __cyg_profile_func_exit(void *function, void *site) __attribute__((no_instrument_function));

void __cyg_profile_func_enter(void *function, void *site) {
    (void)function;
    (void)site;
    steps++;
}

void __cyg_profile_func_exit(void *function, void *site) {
    (void)function;
    (void)site;
}

/* Decodes one character by table 3-7 of the Unicode standard, which lists the well-formed byte
 * sequences. Returns 0 if there is no such sequence. */
static uint32_t decode(const unsigned char *at, size_t left, size_t *used) {
    static const struct {
        unsigned char first, last, second_first, second_last;
        size_t bytes;
    } rows[] = {
        {0x01, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    static const unsigned masks[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (*at < rows[i].first || *at > rows[i].last || rows[i].bytes > left) continue;
        uint32_t code = *at & masks[rows[i].bytes];
        for (size_t k = 1; k < rows[i].bytes; k++) {
            unsigned char low = k == 1 ? rows[i].second_first : 0x80;
            unsigned char high = k == 1 ? rows[i].second_last : 0xbf;
            if (at[k] < low || at[k] > high) return 0;
            code = code * 64 + (at[k] & 0x3f);
        }
        *used = rows[i].bytes;
        return code;
    }
    return 0;
}

/* Decodes a line. Returns false if it is not a valid id. */
static bool read_text(fuzz_text line, glob_text *out) {
    out->count = 0;
    if (line.bytes < 1 || line.bytes > DOORMAN_ID_BYTES_MAX) return false;
    for (size_t at = 0, used = 0; at < line.bytes; at += used) {
        uint32_t code = decode((const unsigned char *)line.text + at, line.bytes - at, &used);
        if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return false;
        out->codes[out->count++] = code;
    }
    return true;
}

static uint32_t code_at(const glob_text *text, size_t at) {
    return at < text->count ? text->codes[at] : 0;
}

/* Returns the position behind the `]` of the bracket that begins at `at`; 0 if it has no end. Sets
 * *holds to whether the bracket matches a character. */
static size_t bracket(const glob_text *glob, size_t at, uint32_t character, bool *holds) {
    bool negated = code_at(glob, at + 1) == '!' || code_at(glob, at + 1) == '^', found = false;
    size_t first = at + 1 + negated, next = first;
    while (code_at(glob, next) && (next == first || code_at(glob, next) != ']')) {
        uint32_t ends[2] = {0, 0};
        next += code_at(glob, next) == '\\' && code_at(glob, next + 1);
        ends[0] = ends[1] = code_at(glob, next++);
        uint32_t behind = code_at(glob, next + 1);
        if (code_at(glob, next) == '-' && behind && behind != ']') {
            next++;
            next += code_at(glob, next) == '\\' && code_at(glob, next + 1);
            ends[1] = code_at(glob, next++);
        }
        found = found || (character >= ends[0] && character <= ends[1]);
    }
    *holds = found != negated;
    return code_at(glob, next) ? next + 1 : 0;
}

/* Returns whether the rest of the glob, from `g`, matches the rest of the id, from `i`. */
static bool matches(glob_pair *pair, size_t g, size_t i) {
    signed char *known = &pair->known[g][i];
    if (*known != UNSEEN) return *known;
    uint32_t element = code_at(&pair->glob, g), character = code_at(&pair->id, i);
    bool result = false, holds = false;
    size_t behind = element == '[' ? bracket(&pair->glob, g, character, &holds) : 0;
    if (!element) {
        result = !character;
    } else if (element == '*') {
        result = matches(pair, g + 1, i) || (character && matches(pair, g, i + 1));
    } else if (!character) {
        result = false;
    } else if (element == '?') {
        result = matches(pair, g + 1, i + 1);
    } else if (behind) {
        result = holds && matches(pair, behind, i + 1);
    } else if (element == '\\' && code_at(&pair->glob, g + 1)) {
        result = code_at(&pair->glob, g + 1) == character && matches(pair, g + 2, i + 1);
    } else {
        result = element == character && matches(pair, g + 1, i + 1);
    }
    *known = (signed char)result;
    return result;
}

static char *copy(fuzz_text line) {
    char *text = (char *)malloc(line.bytes + 1);
    must(text != NULL);
    memcpy(text, line.text, line.bytes);
    text[line.bytes] = 0;
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static glob_pair pair;
    fuzz_text rest = {(const char *)data, bytes}, lines[2] = {{"", 0}, {"", 0}};
    for (int i = 0; i < 2; i++) {
        if (!fuzz_line(&rest, &lines[i])) lines[i].bytes = 0;
        const char *end = (const char *)memchr(lines[i].text, 0, lines[i].bytes);
        if (end) lines[i].bytes = (size_t)(end - lines[i].text);
    }
    char *glob = copy(lines[0]), *id = copy(lines[1]);
    bool good[2] = {read_text(lines[0], &pair.glob), read_text(lines[1], &pair.id)};
    must(doorman__id_valid(glob) == good[0] && doorman__id_valid(id) == good[1]);
    if (good[0] && good[1]) {
        memset(pair.known, UNSEEN, sizeof pair.known);
        bool wanted = matches(&pair, 0, 0);
        steps = 0;
        bool matched = doorman__glob_match(glob, id);
        must(steps <= 8 * (lines[0].bytes + 1) * (lines[1].bytes + 1));
        must(matched == wanted);
    }
    free(glob);
    free(id);
    return 0;
}
