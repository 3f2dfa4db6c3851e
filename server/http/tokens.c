/* doorman_server, part HTTP: tokens and their roles. This file reads the file of --http-token, and
 * finds the token of a request. It changes service->tokens.
 *
 * The file has one token a line:
 *
 *     # comment
 *     ROLE NAME TOKEN [GLOB...]
 *
 *     role      a request with the token may
 *     read      read all pages except the audit, check a configuration, send the message inspect
 *     write     do what read does, use /v1/allow, send all messages of the protocol except reset
 *     figures   do what write does, and bring figures of limits with a permit (P31)
 *     support   do what read does, and read the audit. Also reset counters, and set overrides and
 *               plans, for resources that a GLOB matches
 *     admin     do everything
 *
 * Only the role support has globs, and it needs at least one. A glob is the id of a resource, or
 * the first part of ids with a `*` behind it. It covers all resources of a template if the glob of
 * the template is this id, or begins with this first part.
 *
 * Instead, a file can have a single word. The word is then a token with the role admin. Before
 * there were roles, every file was such a file.
 *
 * The log has the name of a token, never the token. So an error names the line, and quotes nothing
 * from the file.
 *
 * A comparison takes the same time for any wrong token of at most HTTP_TOKEN_MAX bytes. It compares
 * all bytes of all tokens, with zeros behind the end of a token. So neither the first wrong byte,
 * nor the length of a token, nor its position in the file changes the time. */
#include "http.h"
#include "../util/base64.h"

#include <stdarg.h>
#include <strings.h>
#include <sys/stat.h>

#define TOKEN_MAX 64
#define TOKEN_FILE_BYTES_MAX ((size_t)64 << 10)
#define TOKEN_GLOB_MAX 16 /* of one token */
#define TOKEN_SPACE " \t\r"

struct token {
    struct token_identity identity;
    char globs[TOKEN_GLOBS_BYTES]; /* with a space between two; "": none */
    size_t line;                   /* in the file, from 1 */
    size_t bytes;                  /* of the token */
    char text[HTTP_TOKEN_MAX];     /* has zeros behind the token */
};

struct token_list {
    size_t count;
    struct token items[TOKEN_MAX];
};

struct tokens {
    struct lock lock; /* guards `list` */
    struct token_list *list;
};

static const char *const role_names[] = {[ROLE_READ] = "read",
                                         [ROLE_WRITE] = "write",
                                         [ROLE_FIGURES] = "figures",
                                         [ROLE_SUPPORT] = "support",
                                         [ROLE_ADMIN] = "admin"};

const char *server_role_name(enum role role) { return role_names[role]; }

/* ---- the file ------------------------------------------------------------------------------- */

/* Writes an error, and returns false. `line` 0: the error is about the whole file. */
__attribute__((format(printf, 3, 4))) static bool token_fail(doorman_error *error, size_t line,
                                                             const char *format, ...) {
    va_list arguments;
    int bytes = line ? snprintf(error->text, sizeof error->text, "line %zu: ", line) : 0;
    va_start(arguments, format);
    vsnprintf(error->text + bytes, sizeof error->text - (size_t)bytes, format, arguments);
    va_end(arguments);
    return false;
}

static bool role_read(enum role *out, const char *name) {
    bool found = false;
    for (int i = 0; i <= ROLE_ADMIN; i++) {
        if (strcmp(name, role_names[i]) != 0) continue;
        *out = (enum role)i;
        found = true;
    }
    return found;
}

/* Returns whether a name has only visible ASCII characters, and at most TOKEN_NAME_MAX of them. */
static bool name_is_valid(const char *name) {
    bool valid = true;
    for (const char *at = name; *at; at++) valid = valid && *at > ' ' && *at < 0x7f;
    return valid && strlen(name) <= TOKEN_NAME_MAX;
}

/* Splits a line in place.
 *   words     out: the first words of the line
 *   returns   the number of words in the line, which may be more than `room` */
static size_t line_split(char *line, char *words[], size_t room) {
    size_t count = 0;
    for (line += strspn(line, TOKEN_SPACE); *line; line += strspn(line, TOKEN_SPACE)) {
        if (count < room) words[count] = line;
        count++;
        line += strcspn(line, TOKEN_SPACE);
        if (*line) *line++ = 0;
    }
    return count;
}

/* Checks that no other token has the same name, or is the same. */
static bool token_check_unique(const struct token_list *list, const struct token *token,
                               doorman_error *error) {
    bool done = true;
    for (size_t i = 0; i < list->count && done; i++) {
        const struct token *other = &list->items[i];
        if (strcmp(other->identity.name, token->identity.name) == 0) {
            done = token_fail(error, token->line, "line %zu has the same name", other->line);
        } else if (other->bytes == token->bytes &&
                   memcmp(other->text, token->text, sizeof token->text) == 0) {
            done = token_fail(error, token->line, "line %zu has the same token", other->line);
        }
    }
    return done;
}

/* What a line says about its token. */
struct token_words {
    enum role role;
    const char *name; /* valid */
    const char *text;
};

static bool token_add(struct token_list *list, const struct token_words *words, size_t line,
                      doorman_error *error) {
    struct token *token = &list->items[list->count];
    size_t bytes = strlen(words->text);
    if (list->count == TOKEN_MAX) {
        return token_fail(error, line, "the file has more than %d tokens", TOKEN_MAX);
    }
    if (bytes > HTTP_TOKEN_MAX) {
        return token_fail(error, line, "a token has at most %d bytes", HTTP_TOKEN_MAX);
    }
    *token = (struct token){.line = line, .bytes = bytes, .identity = {.role = words->role}};
    snprintf(token->identity.name, sizeof token->identity.name, "%s", words->name);
    memcpy(token->text, words->text, bytes);
    if (!token_check_unique(list, token, error)) return false;
    list->count++;
    return true;
}

/* Returns whether a word is the id of a resource, or the first part of ids with a `*` behind it. */
static bool glob_is_valid(const char *glob) {
    size_t bytes = strcspn(glob, "*?[\\");
    bool is_end = !glob[bytes] || (glob[bytes] == '*' && !glob[bytes + 1]);
    return is_end && strlen(glob) <= DOORMAN_ID_BYTES_MAX;
}

/* Reads the words behind the token of a line.
 *   token   the last one of the list */
static bool token_read_globs(struct token *token, char *const *words, size_t count,
                             doorman_error *error) {
    bool is_support = token->identity.role == ROLE_SUPPORT;
    size_t used = 0;
    if (!is_support && count > 0) {
        return token_fail(error, token->line,
                          "must be ROLE NAME TOKEN: only the role support has globs behind it");
    }
    if (is_support && count == 0) {
        return token_fail(error, token->line,
                          "the role support needs globs of resources behind the token; * is all");
    }
    for (size_t i = 0; i < count; i++) {
        if (!glob_is_valid(words[i])) {
            return token_fail(error, token->line,
                              "a glob is the id of a resource, or the first part of ids and then "
                              "*, such as api/*; glob %zu is neither",
                              i + 1);
        }
        size_t bytes = strlen(words[i]);
        if (used + bytes + 2 > sizeof token->globs) {
            return token_fail(error, token->line, "the globs of a token have at most %d bytes",
                              TOKEN_GLOBS_BYTES - 1);
        }
        used += (size_t)snprintf(token->globs + used, sizeof token->globs - used, "%s%s",
                                 i ? " " : "", words[i]);
    }
    return true;
}

/* Reads one line.
 *   single   in/out: the file has a token without a role */
static bool token_read_line(struct token_list *list, char *text, size_t line, bool *single,
                            doorman_error *error) {
    char *words[3 + TOKEN_GLOB_MAX];
    size_t count = line_split(text, words, 3 + TOKEN_GLOB_MAX);
    enum role role = ROLE_READ;
    if (count == 0 || *words[0] == '#') return true;
    if (*single || (count == 1 && list->count > 0)) {
        return token_fail(error, line, "a token without a role must be the only one in the file");
    }
    if (count == 1 && role_read(&role, words[0])) {
        return token_fail(error, line, "a role needs a name and a token: ROLE NAME TOKEN");
    }
    if (count == 1) {
        *single = true;
        const struct token_words only = {ROLE_ADMIN, TOKEN_NAME_DEFAULT, words[0]};
        return token_add(list, &only, line, error);
    }
    if (!role_read(&role, words[0])) {
        return token_fail(error, line,
                          "the first word must be a role: read, write, figures, support or admin");
    }
    if (count < 3) return token_fail(error, line, "must be ROLE NAME TOKEN");
    if (count > 3 + TOKEN_GLOB_MAX) {
        return token_fail(error, line, "a token has at most %d globs", TOKEN_GLOB_MAX);
    }
    if (!name_is_valid(words[1])) {
        return token_fail(error, line, "a name has at most %d characters, all visible ASCII",
                          TOKEN_NAME_MAX);
    }
    const struct token_words own = {role, words[1], words[2]};
    return token_add(list, &own, line, error) &&
           token_read_globs(&list->items[list->count - 1], words + 3, count - 3, error);
}

/* Reads the text of a file, which it splits in place. */
static bool tokens_read(struct token_list *list, char *text, doorman_error *error) {
    bool done = true, single = false;
    for (size_t line = 1; done && text; line++) {
        char *end = strchr(text, '\n');
        if (end) *end = 0;
        done = token_read_line(list, text, line, &single, error);
        text = end ? end + 1 : NULL;
    }
    if (done && list->count == 0) done = token_fail(error, 0, "must hold a token");
    return done;
}

/* Returns the number of the line that has this byte. */
static size_t line_of(const char *text, size_t at) {
    size_t line = 1;
    for (size_t i = 0; i < at; i++) line += text[i] == '\n';
    return line;
}

/* Reads a file into `text`, which has room for TOKEN_FILE_BYTES_MAX + 1 bytes. */
static bool file_read_text(char *text, const char *path, doorman_error *error) {
    FILE *file = fopen(path, "rb");
    if (!file) return token_fail(error, 0, "%s", strerror(errno));
    size_t bytes = fread(text, 1, TOKEN_FILE_BYTES_MAX + 1, file);
    bool done = !ferror(file) || token_fail(error, 0, "%s", strerror(errno));
    fclose(file);
    if (done && bytes > TOKEN_FILE_BYTES_MAX) {
        return token_fail(error, 0, "is larger than %zu bytes", TOKEN_FILE_BYTES_MAX);
    }
    text[bytes <= TOKEN_FILE_BYTES_MAX ? bytes : TOKEN_FILE_BYTES_MAX] = 0;
    const char *zero = done ? (const char *)memchr(text, 0, bytes) : NULL;
    if (zero) {
        done = token_fail(error, line_of(text, (size_t)(zero - text)), "has a byte that is 0");
    }
    return done;
}

/* Loads a file. Returns NULL and writes an error if it is invalid. The caller frees the list. */
static struct token_list *tokens_load(const char *path, doorman_error *error) {
    struct token_list *list = (struct token_list *)calloc(1, sizeof *list);
    char *text = (char *)malloc(TOKEN_FILE_BYTES_MAX + 1);
    bool done = list && text;
    if (!done) token_fail(error, 0, "out of memory");
    done = done && file_read_text(text, path, error) && tokens_read(list, text, error);
    free(text);
    if (!done) free(list);
    return done ? list : NULL;
}

/* ---- requests ------------------------------------------------------------------------------- */

static bool token_equals(const struct token *token, const char given[HTTP_TOKEN_MAX],
                         size_t bytes) {
    unsigned different = token->bytes != bytes;
    for (size_t i = 0; i < HTTP_TOKEN_MAX; i++) {
        different |= (unsigned char)token->text[i] ^ (unsigned char)given[i];
    }
    return different == 0;
}

static bool tokens_find(struct tokens *tokens, const char *given, size_t bytes,
                        struct token_identity *out) {
    char padded[HTTP_TOKEN_MAX] = {0};
    bool found = false;
    if (bytes > sizeof padded) return false;
    memcpy(padded, given, bytes);
    server_lock(&tokens->lock);
    for (size_t i = 0; i < tokens->list->count; i++) {
        bool equal = token_equals(&tokens->list->items[i], padded, bytes);
        if (equal) *out = tokens->list->items[i].identity;
        found |= equal;
    }
    server_unlock(&tokens->lock);
    return found;
}

bool server_authorization_find(struct tokens *tokens, const char *value,
                               struct token_identity *out) {
    char pair[HTTP_AUTHORIZATION_MAX];
    if (strncasecmp(value, "Bearer ", 7) == 0) {
        return tokens_find(tokens, value + 7, strlen(value + 7), out);
    }
    if (strncasecmp(value, "Basic ", 6) != 0) return false;
    size_t bytes = server_base64_read(pair, sizeof pair, value + 6);
    const char *colon = (const char *)memchr(pair, ':', bytes);
    size_t before = colon ? (size_t)(colon - pair) + 1 : bytes;
    return tokens_find(tokens, pair + before, bytes - before, out);
}

/* Returns whether a glob of a token covers a resource, or all resources of a template. */
static bool glob_covers(const char *glob, size_t bytes, const char *name, bool is_template) {
    bool is_prefix = glob[bytes - 1] == '*';
    size_t head = is_template ? strcspn(name, "*?[\\") : strlen(name);
    if (is_prefix) bytes--;
    bool begins = bytes <= head && strncmp(glob, name, bytes) == 0;
    return begins && (is_prefix || !name[bytes]);
}

bool server_token_covers(struct tokens *tokens, const struct token_identity *token,
                         const char *name, bool is_template, char globs[TOKEN_GLOBS_BYTES]) {
    bool covers = token->role == ROLE_ADMIN;
    globs[0] = 0;
    if (covers) return true;
    server_lock(&tokens->lock);
    for (size_t i = 0; i < tokens->list->count; i++) {
        const struct token *item = &tokens->list->items[i];
        if (strcmp(item->identity.name, token->name) != 0) continue;
        memcpy(globs, item->globs, TOKEN_GLOBS_BYTES);
    }
    server_unlock(&tokens->lock);
    for (const char *at = globs; *at; at += strspn(at, " ")) {
        size_t bytes = strcspn(at, " ");
        covers = covers || glob_covers(at, bytes, name, is_template);
        at += bytes;
    }
    return covers;
}

/* ---- start ---------------------------------------------------------------------------------- */

/* Checks the file of the tokens, if --check-config is given. */
static enum exit_status tokens_check(const struct settings *settings) {
    doorman_error error = {0};
    if (!settings->check_config || !settings->http_token) return CONTINUE;
    struct token_list *list = tokens_load(settings->http_token, &error);
    const bool is_valid = list != NULL;
    free(list);
    return is_valid ? CONTINUE
                    : server_fatal_error(EXIT_ERROR, "--http-token %s: %s", settings->http_token,
                                         error.text);
}

/* Warns about a file that all users of the machine can read. */
static void tokens_warn_mode(const struct settings *settings) {
    struct stat status;
    char mode[8];
    if (stat(settings->http_token, &status) != 0 || !(status.st_mode & S_IROTH)) return;
    snprintf(mode, sizeof mode, "%03o", (unsigned)status.st_mode & 0777U);
    server_log(settings, LEVEL_WARNING,
               "all users of this machine can read the tokens: chmod 600, or 640 and the group of "
               "the server",
               "file", settings->http_token, "mode", mode, LOG_END);
}

/* Loads the tokens, if --http-token is given and HTTP or gRPC is on. */
static enum exit_status tokens_start(struct service *service) {
    const char *path = service->settings->http_token;
    doorman_error error = {0};
    if (!path || (!server_http_is_on(service->settings) && !service->settings->grpc)) {
        return CONTINUE;
    }
    struct tokens *tokens = (struct tokens *)calloc(1, sizeof *tokens);
    if (!tokens || !server_lock_init(&tokens->lock, LOCK_TOKENS)) {
        free(tokens);
        return server_fatal_error(EXIT_ERROR, "out of memory");
    }
    service->tokens = tokens;
    tokens->list = tokens_load(path, &error);
    if (tokens->list) tokens_warn_mode(service->settings);
    return tokens->list ? CONTINUE
                        : server_fatal_error(EXIT_ERROR, "--http-token %s: %s", path, error.text);
}

static bool tokens_load_files(struct service *service, enum file_group group, bool is_quiet) {
    const char *path = service->settings->http_token;
    struct tokens *tokens = service->tokens;
    doorman_error error = {0};
    char count[24];
    (void)is_quiet;
    if (group != FILES_OF_TOKENS || !tokens) return true;
    struct token_list *list = tokens_load(path, &error);
    server_note_failure(service, TOKENS_REFUSED, list ? "" : error.text);
    if (!list) {
        server_log(service->settings, LEVEL_ERROR, "tokens refused; the last ones stay in force",
                   "file", path, "error", error.text, LOG_END);
        return false;
    }
    snprintf(count, sizeof count, "%zu", list->count);
    server_lock(&tokens->lock);
    struct token_list *last = tokens->list;
    tokens->list = list;
    server_unlock(&tokens->lock);
    free(last);
    tokens_warn_mode(service->settings);
    server_log(service->settings, LEVEL_INFO, "tokens loaded", "file", path, "count", count,
               LOG_END);
    return true;
}

static void tokens_destroy(struct service *service) {
    if (!service->tokens) return;
    server_lock_uninit(&service->tokens->lock);
    free(service->tokens->list);
    free(service->tokens);
}

const struct server_part server_part_tokens = {.check = tokens_check,
                                               .start = tokens_start,
                                               .destroy = tokens_destroy,
                                               .load_files = tokens_load_files};
