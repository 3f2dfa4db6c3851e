/* doorman_server, part ADMIN: versions of the configuration (E3): where it is loaded from, the copy
 * on this machine, and the lists of versions.
 *
 *     --config FILE       the file is the truth. There are no versions
 *     --config store:     the newest note with the kind VERSION_NOTE is the truth
 *     --config etcd:KEY   the key is the truth. The version is its revision. Notes keep the
 *                         versions that were there at each change
 *
 * The identity of a note is the number of the version. Its text is an object whose last field is
 * the configuration, so a list only copies what is before it.
 *
 * The thread of the store reads versions, and offers a new one. The main thread puts an offered
 * version into force. When an election has made this process the master, the thread of the election
 * does so before the mastership begins. The thread of the election also follows the key of etcd. A
 * version in force is copied to --config-cache by the thread that has put it into force.
 *
 * Which configuration decides, with `store:` and an election:
 *
 *     standby                reads the newest number once a second, and the version if it is new.
 *                            So its configuration and its copy are at most about a second behind
 *     new master             reads the newest version when no earlier master can write any more,
 *                            and before it decides. If the store does not answer in time, the
 *                            process uses the last version that it has seen: at worst that version
 *                            was replaced a moment ago, and to have no master would be worse
 *     nothing was seen yet   the empty configuration limits nothing. That configuration is right
 *                            only while the store says that it has no version, as at the very first
 *                            start. If the store cannot be read, another process may have put a
 *                            version there. So this process does not become master: requests are
 *                            answered as without a master, which clients know how to survive. A
 *                            process that has seen a version, or has a copy, can become master. All
 *                            this also holds if the newest version is not valid here
 *
 * Without an election no other process changes the store while this one is the master. A process
 * that cannot read the store at its start, and has no copy, ends. */
#include "versions.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIGURATION ",\"configuration\":" /* no string of JSON has it, because of its quote */
#define AWAIT_SECONDS 5

#define FOLLOW_INTERVAL (DOORMAN_SECOND - DOORMAN_SECOND / 10) /* the thread wakes each second */
#define FAILED_INTERVAL (3 * DOORMAN_SECOND)                   /* after a look that has failed */
#define APPLY_SECONDS 1 /* how long a victory waits for a version that is being put into force */

struct versions {
    pthread_cond_t changed; /* another version is in force */
    bool is_made;

    doorman_time follow_at; /* when to look for a newer version; only for the thread of the store */
    bool must_read;         /* the last look has failed; only for the same thread */

    /* The lock of the service guards these. */
    bool has_offer;                  /* of the store, not in force yet */
    doorman_config *offered;         /* NULL: it is not valid */
    struct config_problems problems; /* of what is offered */
    bool is_applying;                /* a thread puts a version into force */
    uint64_t seen;                   /* the newest number that the store had */
    uint64_t followed;    /* the last mastership that has begun with the newest version */
    bool is_unsure;       /* the store may have a version that this process cannot use */
    struct trouble store; /* why the store cannot be read while another process is master */
    struct trouble cache; /* why the copy cannot be written */
};

/* ---- notes ---------------------------------------------------------------------------------- */

struct version_reading {
    char **notes;
    size_t count, found;
    bool failed;
};

static bool version_visit(void *context, const struct store_note *note) {
    struct version_reading *reading = (struct version_reading *)context;
    char *text = strdup(note->text);
    reading->failed = !text;
    if (!text) return false;
    reading->notes[reading->found++] = text;
    return reading->found < reading->count;
}

bool server_versions_read(struct store *store, uint64_t before, char *notes[], size_t count) {
    struct version_reading reading = {.notes = notes, .count = count};
    char identity[VERSION_NAME] = "";
    if (before) snprintf(identity, sizeof identity, "%020" PRIu64, before);
    for (size_t i = 0; i <= count; i++) notes[i] = NULL;
    return server_store_list_notes(store, VERSION_NOTE, identity, version_visit, &reading) ==
               STORE_OK &&
           !reading.failed;
}

static uint64_t note_number(const cJSON *note) {
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(note, "version");
    return cJSON_IsNumber(number) && number->valuedouble > 0 ? (uint64_t)number->valuedouble : 0;
}

/* Makes a configuration of a tree.
 *   problems   out: why it is not valid, or warnings
 *   returns    NULL: it is not valid */
static doorman_config *config_of(const struct service *service, const cJSON *tree,
                                 struct config_problems *problems) {
    doorman_config *config = NULL;
    char *text = cJSON_PrintUnformatted(tree);
    doorman_status status = DOORMAN_OUT_OF_MEMORY;
    problems->count = 0;
    if (text) status = server_config_check(&config, text, strlen(text), problems);
    if (status != DOORMAN_OK && problems->count == 0) {
        server_set_problem(problems, "", server_status_text(status));
    }
    if (config && service->settings->state) server_drop_warnings(problems);
    cJSON_free(text);
    return config;
}

/* Reads the newest version.
 *   problems   out: its number; why there is no configuration, or warnings
 *   returns    false: the store has failed */
static bool newest_read(const struct service *service, struct store *store, doorman_config **out,
                        struct config_problems *problems) {
    static const char none[] = "{\"resources\":[]}";
    char *notes[2];
    *problems = (struct config_problems){.count = 0};
    if (!server_versions_read(store, 0, notes, 1)) {
        server_set_problem(problems, "", server_store_error(store));
        problems->is_unreachable = true;
        return false;
    }
    cJSON *note = notes[0] ? cJSON_Parse(notes[0]) : NULL;
    cJSON *empty = notes[0] ? NULL : cJSON_Parse(none);
    problems->version = note_number(note);
    *out = config_of(
        service, note ? cJSON_GetObjectItemCaseSensitive(note, "configuration") : empty, problems);
    cJSON_Delete(note);
    cJSON_Delete(empty);
    free(notes[0]);
    return true;
}

/* ---- the copy on this machine --------------------------------------------------------------- */

/* Returns the text of a file, which the caller frees, or NULL. */
static char *cache_read(const char *path) {
    const size_t room = 2U * DOORMAN_MESSAGE_BYTES_MAX + 1;
    char *text = (char *)malloc(room);
    FILE *file = text ? fopen(path, "rb") : NULL;
    size_t bytes = file ? fread(text, 1, room - 1, file) : 0;
    bool failed = !file || ferror(file);
    if (file) fclose(file);
    if (text) text[bytes] = 0;
    if (!failed) return text;
    free(text);
    return NULL;
}

/* Makes a configuration from the copy. Returns false if there is no copy, or if it is not valid. */
static bool cache_take(const struct service *service, doorman_config **out,
                       struct config_problems *problems) {
    char *text = cache_read(service->settings->config_cache);
    cJSON *note = text ? cJSON_Parse(text) : NULL;
    if (note) {
        *out =
            config_of(service, cJSON_GetObjectItemCaseSensitive(note, "configuration"), problems);
    }
    problems->version = note_number(note);
    problems->is_cached = *out != NULL;
    cJSON_Delete(note);
    free(text);
    return *out != NULL;
}

/* Loads the copy, because the store or etcd cannot be reached. On failure, `problems` also says
 * that the copy cannot be read. */
static bool cache_load(struct service *service, doorman_config **out,
                       struct config_problems *problems) {
    const char *path = service->settings->config_cache;
    char why[PROBLEM_TEXT], number[24];
    server_problems_text(problems, why);
    if (!cache_take(service, out, problems)) {
        char error[400];
        snprintf(error, sizeof error, "%.200s; and --config-cache %.100s cannot be read", why,
                 path);
        server_set_problem(problems, "", error);
        return false;
    }
    snprintf(number, sizeof number, "%" PRIu64, problems->version);
    server_log(service->settings, LEVEL_WARNING,
               "the configuration cannot be reached; its last version that this machine has seen "
               "is used",
               "config", service->settings->config, "version", number, "file", path, "error", why,
               LOG_END);
    return true;
}

/* Begins with the copy, because the store has no version: the store is new, or its files were moved
 * away. Without a copy, the empty configuration stays. */
static void cache_load_instead(struct service *service, doorman_config **out,
                               struct config_problems *problems) {
    struct config_problems copied = {.count = 0};
    doorman_config *config = NULL;
    char number[24];
    if (!service->settings->config_cache || !cache_take(service, &config, &copied)) {
        server_log(service->settings, LEVEL_WARNING,
                   "the store has no configuration yet, so this server begins with an empty one; "
                   "put one with doormanctl config put FILE REASON, or with PUT /v1/config and "
                   "If-None-Match: *",
                   LOG_END);
        return;
    }
    doorman_config_destroy(*out);
    *out = config;
    *problems = copied;
    snprintf(number, sizeof number, "%" PRIu64, problems->version);
    server_log(service->settings, LEVEL_WARNING,
               "the store has no configuration; its last version that this machine has seen is "
               "used; put it again: doormanctl config get >FILE, and then doormanctl config put "
               "FILE REASON 0",
               "version", number, "file", service->settings->config_cache, LOG_END);
}

/* Writes a file whole or not at all. Returns false on failure: errno says why. */
static bool cache_replace(const char *path, const char *text) {
    char draft[PATH_MAX + 8];
    const size_t bytes = strlen(text);
    snprintf(draft, sizeof draft, "%.*s.new", PATH_MAX, path);
    (void)unlink(draft); /* of a process that was killed */
    int file = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool done = file >= 0;
    for (size_t at = 0; done && at < bytes;) {
        ssize_t written = write(file, text + at, bytes - at);
        if (written < 0 && errno == EINTR) continue;
        done = written > 0;
        if (done) at += (size_t)written;
    }
    done = done && fsync(file) == 0;
    if (file >= 0) done = close(file) == 0 && done;
    return done && rename(draft, path) == 0;
}

/* Returns the text of the copy, which the caller frees; NULL: out of memory. */
static char *cache_text(struct service *service, uint64_t number) {
    cJSON *note = cJSON_CreateObject();
    server_lock(&service->config_lock);
    cJSON *config = server_config_normalise(service->config);
    server_unlock(&service->config_lock);
    cJSON_AddNumberToObject(note, "version", (double)number);
    if (config) cJSON_AddItemToObject(note, "configuration", config);
    char *text = config ? cJSON_PrintUnformatted(note) : NULL;
    cJSON_Delete(note);
    return text;
}

/* Copies the version in force. A failure that lasts is logged only once. */
static void cache_write(struct service *service, uint64_t number) {
    const char *path = service->settings->config_cache;
    char *text = cache_text(service, number);
    bool done = text && cache_replace(path, text);
    const char *why = strerror(text ? errno : ENOMEM);
    cJSON_free(text);
    server_lock(&service->lock);
    struct trouble *trouble = &service->versions->cache;
    bool is_new = !done && trouble->since == 0;
    if (done) trouble->since = 0;
    if (!done) server_trouble_set(trouble, why, doorman_clock());
    server_unlock(&service->lock);
    if (!is_new) return;
    server_log(service->settings, LEVEL_WARNING, "the copy of the configuration cannot be written",
               "file", path, "error", why, LOG_END);
}

/* ---- the version in force ------------------------------------------------------------------- */

void server_versions_offer(struct service *service, doorman_config *config,
                           const struct config_problems *problems) {
    struct versions *versions = service->versions;
    assert(server_lock_is_held(&service->lock));
    doorman_config_destroy(versions->offered);
    versions->has_offer = true;
    versions->offered = config;
    versions->problems = *problems;
    if (config) versions->seen = problems->version;
}

uint64_t server_versions_in_force(struct service *service) {
    server_lock(&service->lock);
    uint64_t number = service->last_load.version;
    server_unlock(&service->lock);
    return number;
}

bool server_versions_await(struct service *service, uint64_t number) {
    server_lock(&service->lock);
    doorman_time now = doorman_clock(), until = now + AWAIT_SECONDS * DOORMAN_SECOND;
    const struct config_load *load = &service->last_load;
    while (now < until && (load->version < number || load->is_cached) && !service->stopping) {
        server_condition_wait(&service->versions->changed, &service->lock, until - now);
        now = doorman_clock();
    }
    bool is_in_force = load->version >= number && !load->is_cached;
    server_unlock(&service->lock);
    return is_in_force;
}

/* Notes whether the store could be read. A failure that lasts is logged only once. */
static void note_read(struct service *service, struct store *store, bool is_read) {
    struct trouble *trouble = &service->versions->store;
    char version[24];
    bool held = server_lock_is_held(&service->lock);
    if (!held) server_lock(&service->lock);
    const bool had_failed = trouble->since != 0;
    if (is_read) trouble->since = 0;
    if (!is_read) server_trouble_set(trouble, server_store_error(store), doorman_clock());
    snprintf(version, sizeof version, "%" PRIu64, service->last_load.version);
    if (!held) server_unlock(&service->lock);
    if (had_failed != is_read) return;
    server_log(service->settings, is_read ? LEVEL_INFO : LEVEL_WARNING,
               is_read ? "the configuration in the store can be read again"
                       : "the configuration in the store cannot be read; the last version that "
                         "this process has seen stays in force",
               "version", version, is_read ? LOG_END : "error", server_store_error(store), LOG_END);
}

/* Returns whether a version is in force. The number alone does not say it: a store that was
 * emptied begins again with 1. Precondition: the lock is held. */
static bool is_in_force(const struct config_load *load, const doorman_config *config,
                        uint64_t number) {
    char hash[CONFIG_HASH_BYTES];
    server_config_hash(config, hash);
    return load->version == number && !load->is_cached && strcmp(load->hash, hash) == 0;
}

/* Offers what was read, unless it is in force. If the store has lost its versions, offers nothing,
 * so that all limits stay. Precondition: the lock is held.
 *   config    the function takes ownership; NULL: the newest version is not valid
 *   returns   whether the store has lost its versions */
static bool newest_take(struct service *service, doorman_config *config,
                        const struct config_problems *problems) {
    assert(server_lock_is_held(&service->lock));
    struct versions *versions = service->versions;
    const struct config_load *load = &service->last_load;
    const bool is_lost = config && problems->version == 0 && load->version > 0;
    versions->seen = problems->version;
    versions->is_unsure = !config;
    if (is_lost || (config && is_in_force(load, config, problems->version))) {
        doorman_config_destroy(config);
    } else {
        server_versions_offer(service, config, problems);
    }
    return is_lost;
}

/* Offers the newest version of the store. Runs on the thread of the store, or at the start. Returns
 * false if the store has failed. */
static bool newest_offer(struct service *service, struct store *store) {
    struct config_problems problems;
    doorman_config *config = NULL;
    if (!newest_read(service, store, &config, &problems)) return false;
    bool held = server_lock_is_held(&service->lock);
    if (!held) server_lock(&service->lock);
    bool is_lost = newest_take(service, config, &problems);
    if (!held) server_unlock(&service->lock);
    note_read(service, store, true);
    if (!is_lost) return true;
    server_log(service->settings, LEVEL_ERROR,
               "the newest version of the store is not used; the last one stays in force", "error",
               "the store has no versions any more; put the configuration again", LOG_END);
    return true;
}

static bool versions_read_store(struct service *service, struct store *store) {
    return !service->settings->config_in_store || newest_offer(service, store);
}

/* Returns whether the newest version of the store is not the last one seen. Reads only a few bytes.
 *   failed   out: the store has failed */
static bool newest_differs(struct service *service, struct store *store, bool *failed) {
    char identity[STORE_TEXT + 1];
    *failed = server_store_last_note(store, VERSION_NOTE, identity) != STORE_OK;
    server_lock(&service->lock);
    const uint64_t seen = service->versions->seen;
    server_unlock(&service->lock);
    return !*failed && strtoull(identity, NULL, 10) != seen;
}

/* Follows the versions that another process puts into the store. */
static void versions_follow(struct service *service, struct store *store, uint64_t epoch) {
    struct versions *versions = service->versions;
    bool failed = false;
    if (!service->settings->config_in_store) return;
    if (!epoch && doorman_clock() < versions->follow_at) return;
    bool reads = epoch || versions->must_read || newest_differs(service, store, &failed);
    if (reads) failed = !newest_offer(service, store);
    versions->must_read = failed;
    versions->follow_at = doorman_clock() + (failed ? FAILED_INTERVAL : FOLLOW_INTERVAL);
    if (failed || !reads) note_read(service, store, !failed);
    server_lock(&service->lock);
    if (failed) versions->is_unsure = true;
    if (epoch && !failed) versions->followed = epoch;
    server_unlock(&service->lock);
}

/* Puts what was offered into force. Returns false if another thread is doing so. */
static bool versions_apply(struct service *service) {
    struct versions *versions = service->versions;
    server_lock(&service->lock);
    const bool is_free = !versions->is_applying, has_offer = is_free && versions->has_offer;
    doorman_config *config = versions->offered;
    const struct config_problems problems = versions->problems;
    if (has_offer) {
        versions->offered = NULL;
        versions->has_offer = false;
        versions->is_applying = true;
    }
    server_unlock(&service->lock);
    if (!has_offer) return is_free;
    server_apply_config(service, config, &problems);
    server_lock(&service->lock);
    /* A master whose new version was refused stays master, so that it can take a better version. */
    const bool is_master = doorman_server_permits(service->server) != NULL;
    if (service->last_load.error[0] && !is_master) versions->is_unsure = true;
    versions->is_applying = false;
    pthread_cond_broadcast(&versions->changed);
    server_unlock(&service->lock);
    return true;
}

static void versions_work(struct service *service, doorman_time now) {
    (void)now;
    (void)versions_apply(service);
}

/* Puts the newest version into force before this process decides as master. Usually the thread of
 * the store has read that version by now. If not, this process uses the version that it has. */
static void versions_win(struct service *service, uint64_t epoch) {
    struct versions *versions = service->versions;
    if (!service->settings->config_in_store) return;
    doorman_time wait = service->settings->election_ttl * DOORMAN_SECOND / 5;
    if (wait > APPLY_SECONDS * DOORMAN_SECOND) wait = APPLY_SECONDS * DOORMAN_SECOND;
    server_lock(&service->lock);
    doorman_time now = doorman_clock(), until = now + wait;
    const bool is_late = versions->followed != epoch;
    if (is_late) versions->is_unsure = true;
    while (now < until && versions->is_applying) {
        server_condition_wait(&versions->changed, &service->lock, until - now);
        now = doorman_clock();
    }
    char version[24];
    snprintf(version, sizeof version, "%" PRIu64, service->last_load.version);
    server_unlock(&service->lock);
    (void)versions_apply(service);
    if (!is_late) return;
    server_log(
        service->settings, LEVEL_WARNING,
        "this mastership begins with the last version of the configuration that this process "
        "has seen, because the store could not be read in time",
        "version", version, LOG_END);
}

/* Forbids a mastership without a configuration: see the comment at the top. */
static const char *versions_forbid(const struct service *service) {
    const struct config_load *load = &service->last_load;
    const bool has_none = load->version == 0 && !load->is_cached;
    if (!service->settings->config_in_store || !has_none) return NULL;
    if (!service->versions->is_unsure) return NULL;
    return service->versions->store.since
               ? "the store, which has the configuration, cannot be read, and this process has not "
                 "seen any version of it yet"
               : "this process has no configuration: the newest version of the store could not be "
                 "read in time, or is not valid here";
}

static void versions_reload(struct service *service) {
    if (!service->settings->config_in_store) return;
    server_log(service->settings, LEVEL_INFO, "the newest version of the store is read", LOG_END);
    server_state_reread(service);
}

/* Runs after each load. Copies the version in force, and wakes the threads that wait for a
 * version. */
static void versions_configured(struct service *service, const struct config_change *change) {
    (void)change;
    server_lock(&service->lock);
    const struct config_load load = service->last_load;
    pthread_cond_broadcast(&service->versions->changed);
    server_unlock(&service->lock);
    bool copies = service->settings->config_cache && load.version > 0 && !load.is_cached;
    if (copies) cache_write(service, load.version);
}

/* ---- looks ---------------------------------------------------------------------------------- */

void server_version_look_free(void *context) {
    struct version_look *look = (struct version_look *)context;
    if (!look) return;
    for (size_t i = 0; i < sizeof look->notes / sizeof *look->notes; i++) free(look->notes[i]);
    free(look);
}

/* Reads the versions of a look. Runs on the thread of the store. */
static void look_read(struct service *service, struct store *store, void *context) {
    struct version_look *look = (struct version_look *)context;
    (void)service;
    look->failed = !server_versions_read(store, look->before, look->notes, look->count);
    snprintf(look->error, sizeof look->error, "%s", server_store_error(store));
}

struct version_look *server_version_look(struct service *service, uint64_t before, size_t count,
                                         struct http_response *response) {
    char why[CALL_TEXT];
    struct version_look *look = (struct version_look *)calloc(1, sizeof *look);
    response->text.failed = !look;
    if (!look) return NULL;
    look->call =
        (struct state_call){.run = look_read, .drop = server_version_look_free, .context = look};
    look->before = before;
    look->count = count;
    enum call_result result = server_state_call(service, &look->call, why);
    if (result == CALL_OVER && !look->failed) return look;
    server_http_response_set_unavailable(response, result == CALL_OVER ? look->error : why);
    if (result != CALL_LOST) server_version_look_free(look);
    return NULL;
}

/* Returns the version of etcd in force as a row, or NULL if it has another number. If another
 * program has written it, no act has kept it as a note. */
static cJSON *version_in_force(struct service *service, uint64_t number) {
    server_lock(&service->lock);
    const struct config_load load = service->last_load;
    server_unlock(&service->lock);
    if (!service->settings->config_key || load.version != number) return NULL;
    cJSON *row = cJSON_CreateObject();
    cJSON_AddNumberToObject(row, "version", (double)number);
    server_act_add_time(row, "at", load.loaded_at);
    server_lock(&service->config_lock);
    cJSON_AddItemToObject(row, "configuration", server_config_normalise(service->config));
    server_unlock(&service->config_lock);
    return row;
}

bool server_version_find(struct service *service, uint64_t number, cJSON **now, cJSON **last,
                         struct http_response *response) {
    struct version_look *look = server_version_look(service, number + 1, 2, response);
    char error[128];
    *now = *last = NULL;
    if (!look) return false;
    if (look->notes[0]) *now = cJSON_Parse(look->notes[0]);
    if (look->notes[1]) *last = cJSON_Parse(look->notes[1]);
    server_version_look_free(look);
    if (*now && note_number(*now) == number) return true;
    cJSON_Delete(*last);
    *last = *now; /* the newest one before it */
    *now = version_in_force(service, number);
    if (*now) return true;
    cJSON_Delete(*last);
    *last = NULL;
    snprintf(error, sizeof error,
             "there is no version %" PRIu64 "; GET /v1/config/versions lists those that are kept",
             number);
    server_http_response_set_error(response, 404, "NOT_FOUND", error);
    return false;
}

cJSON *server_version_differ(const cJSON *now, const cJSON *last) {
    cJSON *out = cJSON_CreateObject();
    cJSON *difference =
        server_config_differ(cJSON_GetObjectItemCaseSensitive(last, "configuration"),
                             cJSON_GetObjectItemCaseSensitive(now, "configuration"));
    cJSON_AddNumberToObject(out, "version", (double)note_number(now));
    cJSON_AddNumberToObject(out, "before", (double)note_number(last));
    while (difference && difference->child) {
        cJSON *item = cJSON_DetachItemViaPointer(difference, difference->child);
        cJSON_AddItemToObject(out, item->string, item);
    }
    cJSON_Delete(difference);
    return out;
}

/* ---- GET ------------------------------------------------------------------------------------ */

static bool versions_add(struct note_page *page, const struct store_note *note) {
    const char *end = strstr(note->text, CONFIGURATION);
    if (!end) return false;
    server_text_add_bytes(&page->text, note->text, (size_t)(end - note->text));
    server_text_add(&page->text, "}\n");
    return true;
}

static const char *const list_names[] = {"after", "limit", "redirect", NULL};
const struct note_list server_version_list = {
    .kind = VERSION_NOTE, .names = list_names, .add = versions_add};

static void versions_answer(struct http_response *response, cJSON *json) {
    char *text = cJSON_PrintUnformatted(json);
    response->type = "application/json";
    response->text.failed = response->text.failed || !text;
    server_text_add(&response->text, text ? text : "");
    server_text_add(&response->text, "\n");
    cJSON_free(text);
    cJSON_Delete(json);
}

static void handle_versions(struct service *service, const struct http_request *request,
                            struct http_response *response) {
    if (!server_admin_serves(service, request, response)) return;
    server_admin_list(service, request, response, &server_version_list);
}

/* Answers GET /v1/config/versions/N, and GET /v1/config/versions/N/diff. */
static void handle_version(struct service *service, const struct http_request *request,
                           struct http_response *response) {
    static const char *const names[] = {"redirect", NULL};
    const char *rest = request->path + strlen(request->route->path), *end = rest;
    cJSON *now = NULL, *last = NULL;
    uint64_t number = server_number_read(rest, 10, &end);
    bool differs = strcmp(end, "/diff") == 0;
    if (number == 0 || (*end && !differs)) {
        server_http_response_set_error(response, 404, "NOT_FOUND",
                                       "there is no such path: it is /v1/config/versions/NUMBER "
                                       "or /v1/config/versions/NUMBER/diff");
        return;
    }
    if (!server_admin_serves(service, request, response) ||
        !server_http_check_query(request->query, names, response) ||
        !server_version_find(service, number, &now, &last, response)) {
        return;
    }
    versions_answer(response, differs ? server_version_differ(now, last) : now);
    if (differs) cJSON_Delete(now);
    cJSON_Delete(last);
}

static const struct http_route versions_routes[] = {
    {"/v1/config/versions", .handle = handle_versions},
    {"/v1/config/versions/", .has_rest = true, .handle = handle_version},
    {.path = NULL}};

/* ---- the part ------------------------------------------------------------------------------- */

static enum exit_status versions_check(const struct settings *settings) {
    const bool has_place = settings->config_in_store || settings->config_key;
    if (settings->config_in_store && !settings->state) {
        return server_usage_error("--config store: needs --state, which keeps the configuration");
    }
    if (settings->config_in_store && settings->check_config) {
        return server_usage_error("--check-config needs a file; doormanctl config check FILE "
                                  "checks one with a running server");
    }
    if (settings->config_in_store && settings->parents.count > 0) {
        return server_usage_error("--config store: and --parent: a node with a parent takes its "
                                  "configuration from a file or from etcd");
    }
    if (settings->config_in_store && !server_http_is_on(settings)) {
        return server_usage_error("--config store: needs --http, which changes the configuration");
    }
    if (settings->config_cache && !has_place) {
        return server_usage_error("--config-cache needs --config store: or --config etcd:KEY");
    }
    return CONTINUE;
}

static enum exit_status versions_load(struct service *service) {
    struct versions *versions = service->versions;
    versions->is_made = server_condition_init(&versions->changed);
    return versions->is_made ? CONTINUE : server_fatal_error(EXIT_ERROR, "out of memory");
}

/* Loads the newest version of the store. Loads the copy if the store or etcd cannot be reached, or
 * if the store has no version. */
static bool versions_load_config(struct service *service, doorman_config **out,
                                 struct config_problems *problems) {
    const struct settings *settings = service->settings;
    if (settings->config_in_store) {
        (void)newest_read(service, server_state_store(service), out, problems);
        service->versions->seen = problems->version;
        service->versions->must_read = problems->is_unreachable;
        if (*out && problems->version == 0) cache_load_instead(service, out, problems);
    }
    if (problems->is_unreachable && settings->config_cache) cache_load(service, out, problems);
    return *out != NULL;
}

static void versions_destroy(struct service *service) {
    struct versions *versions = service->versions;
    if (!versions) return;
    doorman_config_destroy(versions->offered);
    versions->offered = NULL;
    if (versions->is_made) pthread_cond_destroy(&versions->changed);
    versions->is_made = false;
}

/* Returns why the configuration in the store cannot be read. `since` is 0 if it can. */
static struct trouble store_trouble(struct service *service) {
    server_lock(&service->lock);
    struct trouble trouble = service->versions->store;
    server_unlock(&service->lock);
    return trouble;
}

static void versions_status(struct service *service, struct text *text) {
    const struct trouble trouble = store_trouble(service);
    if (trouble.since == 0) return;
    server_text_add(text, ",\"config_failure\":{\"for\":");
    server_text_add_number(text,
                           (double)(doorman_clock() - trouble.since) / (double)DOORMAN_SECOND);
    server_text_add_json(text, ",\"reason\":", trouble.reason);
    server_text_add(text, "}");
}

static void versions_facts(struct service *service, struct text *text) {
    const struct trouble trouble = store_trouble(service);
    if (trouble.since == 0) return;
    server_text_add(text, "<div class=bad><dt>configuration in the store</dt><dd>cannot be read: ");
    server_text_add_escaped(text, trouble.reason, server_escape_html);
    server_text_add(text, "</dd></div>");
}

const struct server_part server_part_versions = {SERVER_PART_STATE(versions),
                                                 .check = versions_check,
                                                 .load = versions_load,
                                                 .load_config = versions_load_config,
                                                 .reload_config = versions_reload,
                                                 .read_store = versions_read_store,
                                                 .follow_store = versions_follow,
                                                 .wins = versions_win,
                                                 .forbids = versions_forbid,
                                                 .work = versions_work,
                                                 .configured = versions_configured,
                                                 .destroy = versions_destroy,
                                                 .status = versions_status,
                                                 .facts = versions_facts,
                                                 .routes = versions_routes};
