/* doorman_server, part STATE: the store that is a Redis, over hiredis. All processes of a node use
 * it, and the one that is master writes (D9).
 *
 *     doorman:{NODE}:process         a hash: the schema, the epoch of the last mastership, and the
 *                                    number of its last batch
 *     doorman:{NODE}:row:IDENTITY    a string for each struct store_row, in which 0 is a zero byte:
 *
 *         fresh_at 0 what 0 template 0 limit 0 resource 0 key 0 record
 *
 *     doorman:{NODE}:handover        a string: what a planned stop has left. The hash then has the
 *                                    field "left", with the epoch of the mastership that has left
 *                                    it
 *
 *     doorman:shard:CLUSTER:S:MOVE   a hash: the rows of the shard S that one move has written, by
 *                                    the number of each part, and "count" when all are there
 *     doorman:{NODE}:notes:KIND      a hash: for each note, by its identity, ends_at 0 text
 *     doorman:{NODE}:order:KIND      a sorted set of these identities, all with the score 0
 *
 * A row is a key of its own, and not a field of one large hash, because a key can expire: Redis
 * removes the row a day after it is fresh, and no process has to look for old rows. The braces keep
 * all keys of a node in one slot of a Redis Cluster.
 *
 * Rows are written by a script, because nothing else compares the epoch and writes in one step. A
 * script has few rows, so that it does not stop other users of the Redis for long. The scripts of a
 * batch are sent together, so a batch costs one round trip. If the connection breaks, a part of the
 * batch may be written. Then the same batch is written again. What is left of the first copy may
 * still arrive, later than the batches after it. So each copy has a number, and a script with a
 * lower number than the last one writes nothing.
 *
 * Keys of rows are read with SCAN, and their values with MGET. SCAN finds each key at least once,
 * unless a process adds or deletes the key meanwhile. server_store_begin shuts out all other
 * writers.
 *
 * A call fails when Redis does not answer within COMMAND_SECONDS. The connection is then closed,
 * and the next call makes a new one.
 *
 * A standby may use its connection for the first time after weeks. Redis may have closed it by
 * then, after a restart or because of the setting "timeout". So each call first looks whether the
 * connection is still open. If it is not, nothing was sent yet, so the call uses a new one. Only a
 * SCAN does not continue over a new connection, because its cursor means nothing to a Redis that
 * was restarted: the reading fails then, and begins again. */
#include "address_redis.h"
#include "store_kind.h"
#include "tls_redis.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <hiredis/hiredis.h>

#define CONNECT_SECONDS 2
#ifndef COMMAND_SECONDS
#define COMMAND_SECONDS 5
#endif

#define NODE_BYTES_MAX 256
#define PREFIX_BYTES (NODE_BYTES_MAX + 32)
#define SCRIPT_ROWS 256
#define SCRIPT_BYTES (1 << 18) /* of keys and values */
#define SCAN_ROWS "1000"
#define NEWER "was written by a newer doorman_server; start that version"
#define NUMBER_TEXT 24 /* bytes; any 64-bit number in decimal fits */

struct redis_store {
    struct store base;
    const struct store_place *place;
    struct redis_address address;
    redisContext *context;       /* NULL: no connection */
    struct redis_tls *tls;       /* of the connection; NULL: it has none */
    bool is_refused;             /* the last error is an answer, and does not pass by itself */
    bool timed_out;              /* the last connection has ended because no answer came in time */
    char process[PREFIX_BYTES];  /* the key of the hash */
    char handover[PREFIX_BYTES]; /* the key of what a planned stop has left */
    char prefix[PREFIX_BYTES];   /* of the keys of rows */
    char pattern[2 * PREFIX_BYTES];

    uint64_t batch; /* the number of the last batch that was sent */

    /* The rows that were read last. */
    char cursor[NUMBER_TEXT]; /* "": begin; "0": there are no further rows */
    redisReply *keys, *values;
    size_t at;

    char bytes[SCRIPT_BYTES];
};

/* KEYS: the hash. ARGV: the schema; the epoch, 0 for the next one. Returns 'begun' and the epoch,
 * or 'later' and the epoch in force, or 'newer' if the keys have a newer schema. */
static const char begin_script[] =
    "local kept = redis.call('HMGET', KEYS[1], 'schema', 'epoch')\n"
    "if kept[1] and tonumber(kept[1]) > tonumber(ARGV[1]) then return {'newer', 0} end\n"
    "local last, epoch = tonumber(kept[2] or '0'), tonumber(ARGV[2])\n"
    "if epoch == 0 then epoch = last + 1 end\n"
    "if last > epoch then return {'later', last} end\n"
    "redis.call('HSET', KEYS[1], 'schema', ARGV[1], 'epoch', string.format('%.0f', epoch))\n"
    "if last < epoch then redis.call('HDEL', KEYS[1], 'batch') end\n"
    "return {'begun', epoch}\n";

/* KEYS: the hash; the rows. ARGV: the epoch; the number of the batch; for each row its value and
 * when it expires, or two empty texts to delete it. Returns the epoch in force: a number, or a text
 * if it is another epoch and nothing was written. */
static const char write_script[] =
    "local kept = redis.call('HMGET', KEYS[1], 'epoch', 'batch')\n"
    "local epoch, number = kept[1], tonumber(ARGV[2])\n"
    "if epoch ~= ARGV[1] then return epoch or '0' end\n"
    "if tonumber(kept[2] or '0') > number then return tonumber(epoch) end\n"
    "redis.call('HSET', KEYS[1], 'batch', ARGV[2])\n"
    "for i = 2, #KEYS do\n"
    "  local value = ARGV[2 * i - 1]\n"
    "  if value == '' then redis.call('DEL', KEYS[i])\n"
    "  else redis.call('SET', KEYS[i], value, 'EXAT', ARGV[2 * i]) end\n"
    "end\n"
    "return tonumber(epoch)\n";

/* KEYS: the hash; for each note, the hash and the set of its kind. ARGV: the epoch; the number of
 * the batch; for each note its identity and its value, which is empty if the note is deleted.
 * Returns as write_script does. */
static const char notes_script[] =
    "local kept = redis.call('HMGET', KEYS[1], 'epoch', 'batch')\n"
    "local epoch, number = kept[1], tonumber(ARGV[2])\n"
    "if epoch ~= ARGV[1] then return epoch or '0' end\n"
    "if tonumber(kept[2] or '0') > number then return tonumber(epoch) end\n"
    "redis.call('HSET', KEYS[1], 'batch', ARGV[2])\n"
    "for i = 2, #KEYS, 2 do\n"
    "  local identity, value = ARGV[i + 1], ARGV[i + 2]\n"
    "  if value == '' then\n"
    "    redis.call('HDEL', KEYS[i], identity)\n"
    "    redis.call('ZREM', KEYS[i + 1], identity)\n"
    "  else\n"
    "    redis.call('HSET', KEYS[i], identity, value)\n"
    "    redis.call('ZADD', KEYS[i + 1], 0, identity)\n"
    "  end\n"
    "end\n"
    "return tonumber(epoch)\n";

/* KEYS: the hash and the set of a kind. ARGV: the end of the range, and how many notes. Returns
 * identities and values, in turn. */
static const char list_script[] =
    "local found = {}\n"
    "for _, identity in ipairs(redis.call('ZREVRANGEBYLEX', KEYS[2], ARGV[1], '-', 'LIMIT', 0,\n"
    "    ARGV[2])) do\n"
    "  found[#found + 1] = identity\n"
    "  found[#found + 1] = redis.call('HGET', KEYS[1], identity) or ''\n"
    "end\n"
    "return found\n";

/* KEYS: the hash; the string. ARGV: the epoch; the bytes. Returns as write_script does. */
static const char leave_script[] = "local epoch = redis.call('HGET', KEYS[1], 'epoch')\n"
                                   "if epoch ~= ARGV[1] then return epoch or '0' end\n"
                                   "redis.call('SET', KEYS[2], ARGV[2])\n"
                                   "redis.call('HSET', KEYS[1], 'left', epoch)\n"
                                   "return tonumber(epoch)\n";

/* KEYS: the hash; the string. ARGV: the epoch. Returns what there was, and the bytes if they are
 * for this mastership. Removes the bytes, unless another mastership has begun. */
static const char take_script[] =
    "local kept = redis.call('HMGET', KEYS[1], 'epoch', 'left')\n"
    "if kept[1] ~= ARGV[1] then return {'outdated'} end\n"
    "if not kept[2] then return {'none'} end\n"
    "local bytes = redis.call('GET', KEYS[2])\n"
    "redis.call('HDEL', KEYS[1], 'left')\n"
    "redis.call('DEL', KEYS[2])\n"
    "if not bytes then return {'lost'} end\n"
    "if tonumber(kept[2]) + 1 ~= tonumber(kept[1]) then return {'earlier'} end\n"
    "return {'left', bytes}\n";

/* KEYS: the hash of the node; the hash of a move. ARGV: the epoch; the number of the part; its
 * bytes; the number of parts, or "". The move expires 60 days after its last part. Returns as
 * write_script does. */
static const char put_shard_script[] =
    "local epoch = redis.call('HGET', KEYS[1], 'epoch')\n"
    "if epoch ~= ARGV[1] then return epoch or '0' end\n"
    "if ARGV[2] == '0' then redis.call('DEL', KEYS[2]) end\n"
    "redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])\n"
    "if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], 'count', ARGV[4]) end\n"
    "redis.call('EXPIRE', KEYS[2], 5184000)\n"
    "return tonumber(epoch)\n";

/* ---- errors --------------------------------------------------------------------------------- */

/* What a person can do about an answer that is an error. The error of a script contains the text of
 * Redis, so a word may be anywhere in it. The last entry is for all other errors. */
static const struct redis_remedy {
    const char *word, *remedy;
    bool is_refusal; /* it does not pass by itself */
} remedies[] = {
    {"OOM ", "Redis is full; give it more memory (maxmemory)", false},
    {"READONLY ",
     "this Redis is a replica, which cannot be written; give the address of its master", false},
    {"LOADING ", "Redis is reading its file; wait", false},
    {"MASTERDOWN ", "this Redis is a replica without its master", false},
    {"MISCONF ", "Redis cannot save to its disk; look at its log", false},
    {"NOREPLICAS ", "Redis has too few replicas (min-replicas-to-write)", false},
    {"BUSY ", "a script of another program stops this Redis", false},
    {"WRONGPASS", "Redis refuses the user or the password", true},
    {"invalid password", "Redis refuses the password", true},
    {"NOAUTH", "Redis needs a password; give --state-password-file", true},
    {"no password is set", "Redis has no password; give none", true},
    {"without any password", "Redis has no password; give none", true},
    {"NOPERM", "the user of Redis needs the keys doorman:* and the commands of docs/operations.md",
     true},
    {"WRONGTYPE", "the keys doorman:* are of another program; give another database", true},
    {"DB index", "Redis has no database with this number", true},
    {"SELECT is not allowed", "a Redis Cluster has only the database 0", true},
    {"MOVED ", "this is a Redis Cluster, which does not follow one address; give a single Redis",
     true},
    {"unknown command", "this Redis is too old, or forbids a command; 6.2 or later is needed",
     true},
    {"syntax error", "this Redis is too old; 6.2 or later is needed", true},
    {"", "look at the log of Redis", false},
};

static void redis_disconnect(struct redis_store *store) {
#ifdef DOORMAN_SERVER_TLS
    server_redis_tls_end(store->tls);
#endif
    store->tls = NULL;
    if (store->context) redisFree(store->context);
    store->context = NULL;
}

/* Notes a failure and a text of Redis. Control characters become spaces. */
static enum store_result redis_fail(struct redis_store *store, const char *what, const char *text) {
    char *error = store->base.error;
    snprintf(error, STORE_TEXT, "%s%s%.400s%s", what, text[0] ? " (" : "", text,
             text[0] ? ")" : "");
    for (char *at = error; *at; at++) {
        if ((unsigned char)*at < ' ' || *at == 0x7f) *at = ' ';
    }
    return STORE_FAILED;
}

/* Notes that Redis did not answer, and closes the connection. */
static enum store_result redis_fail_connection(struct redis_store *store) {
    const redisContext *context = store->context;
    const bool is_late = errno == EAGAIN || errno == EINTR;
    store->timed_out = context && context->err == REDIS_ERR_IO && is_late;
    const char *text = context ? context->errstr : strerror(ENOMEM);
    store->is_refused = store->tls && context && context->err == REDIS_ERR_PROTOCOL;
    redis_fail(store,
               store->timed_out ? "Redis does not answer in time" : "Redis cannot be reached",
               store->timed_out ? "" : text);
    redis_disconnect(store);
    return STORE_FAILED;
}

/* Notes an answer that is an error, or is of an unknown form. */
static enum store_result redis_fail_answer(struct redis_store *store, const redisReply *reply) {
    const char *text = reply->type == REDIS_REPLY_ERROR ? reply->str : "an unknown answer";
    const struct redis_remedy *remedy = remedies;
    while (!strstr(text, remedy->word)) remedy++;
    store->is_refused = remedy->is_refusal;
    return redis_fail(store, remedy->remedy, text);
}

/* ---- commands ------------------------------------------------------------------------------- */

/* Sends a command, or keeps it in memory until redis_get_reply sends it. */
static int redis_append(struct redis_store *store, int count, const char **words,
                        const size_t *bytes) {
#ifdef DOORMAN_SERVER_TLS
    errno = 0;
    if (store->tls) return server_redis_tls_send(store->tls, store->context, count, words, bytes);
#endif
    return redisAppendCommandArgv(store->context, count, words, bytes);
}

static int redis_get_reply(struct redis_store *store, void **reply) {
#ifdef DOORMAN_SERVER_TLS
    if (store->tls) return server_redis_tls_receive(store->tls, store->context, reply);
#endif
    return redisGetReply(store->context, reply);
}

/* Receives the next answer.
 *   returns   the answer, which the caller frees; NULL: it failed, see base.error */
static redisReply *redis_receive(struct redis_store *store) {
    void *reply = NULL;
    errno = 0;
    if (redis_get_reply(store, &reply) != REDIS_OK) redis_fail_connection(store);
    return (redisReply *)reply;
}

/* Sends a command, and receives its answer. An answer of another type than `type` is a failure.
 *   returns   the answer, which the caller frees; NULL: it failed, see base.error */
static redisReply *redis_ask(struct redis_store *store, int type, int count,
                             const char *const *words) {
    const char *argv[8];
    for (int i = 0; i < count; i++) argv[i] = words[i];
    if (redis_append(store, count, argv, NULL) != REDIS_OK) {
        redis_fail_connection(store);
        return NULL;
    }
    redisReply *reply = redis_receive(store);
    if (!reply || reply->type == type) return reply;
    redis_fail_answer(store, reply);
    freeReplyObject(reply);
    return NULL;
}

/* Sends a command that changes only the connection. */
static bool redis_set(struct redis_store *store, int count, const char *const *words) {
    redisReply *reply = redis_ask(store, REDIS_REPLY_STATUS, count, words);
    freeReplyObject(reply);
    return reply != NULL;
}

/* Sends the password, if there is one. Its file is read each time, so a new password needs no
 * restart. */
static bool redis_authenticate(struct redis_store *store) {
    const char *path = store->place->password_file, *user = store->address.user;
    char password[PASSWORD_MAX];
    memcpy(password, store->address.password, sizeof password);
    const char *why = path ? server_password_read(path, password) : NULL;
    if (why) {
        snprintf(store->base.error, STORE_TEXT, "--state-password-file %.256s: %s", path, why);
        store->is_refused = true;
        return false;
    }
    if (!password[0]) return true;
    const char *const words[] = {"AUTH", user[0] ? user : password, password};
    return redis_set(store, user[0] ? 3 : 2, words);
}

/* Returns whether Redis has closed a connection. Precondition: no answer is expected. Bytes that
 * come nevertheless are an error that Redis sends before it closes. */
static bool redis_is_closed(const redisContext *context) {
    char byte;
    const ssize_t count = recv(context->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return count >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* Does the handshake of TLS, if the address wants it. */
static bool redis_begin_tls(struct redis_store *store) {
    if (!store->address.has_tls) return true;
#ifdef DOORMAN_SERVER_TLS
    store->tls = server_redis_tls_begin(store->context, store->place, store->address.host,
                                        store->base.error, &store->is_refused);
#endif
    store->timed_out = !store->tls; /* so that nobody waits for a second handshake */
    return store->tls != NULL;
}

/* Makes a connection, unless there is one that is open. The connection is closed if Redis refuses
 * it. Precondition: no answer is expected.
 *   returns   false: see base.error */
static bool redis_connect(struct redis_store *store) {
    const struct timeval connect = {.tv_sec = CONNECT_SECONDS}, command = {COMMAND_SECONDS, 0};
    char database[NUMBER_TEXT];
    store->is_refused = false;
    if (store->context && redis_is_closed(store->context)) redis_disconnect(store);
    if (store->context) return true;
    errno = 0;
    store->context = redisConnectWithTimeout(store->address.host, store->address.port, connect);
    if (!store->context || store->context->err ||
        redisSetTimeout(store->context, command) != REDIS_OK) {
        return redis_fail_connection(store) == STORE_OK;
    }
    (void)redisEnableKeepAlive(store->context);
    snprintf(database, sizeof database, "%d", store->address.database);
    bool is_open = redis_begin_tls(store) && redis_authenticate(store);
    if (store->address.database != 0) {
        is_open = is_open && redis_set(store, 2, (const char *const[]){"SELECT", database});
    }
    if (!is_open) redis_disconnect(store);
    return is_open;
}

/* ---- opening -------------------------------------------------------------------------------- */

static bool redis_check(const struct store_place *place, char error[STORE_TEXT]) {
    struct redis_address address;
    const char *why = server_redis_address_read(place->address, &address);
    if (!why && !place->node) {
        why = "needs the name of the node, which must be the same after a restart: give --node";
    } else if (!why && (strlen(place->node) > NODE_BYTES_MAX || strpbrk(place->node, "{}"))) {
        why = "needs a name of the node without braces, of at most 256 bytes: give --node";
    } else if (!why && place->password_file && address.password[0]) {
        why = "has a password, and --state-password-file another one: give one of them";
    }
    snprintf(error, STORE_TEXT, "%s", why ? why : "");
    return !why;
}

static bool redis_has_password(const char *text) {
    struct redis_address address;
    (void)server_redis_address_read(text, &address); /* reads the password first */
    return address.password[0] != 0;
}

static void redis_name(const char *text, char name[STORE_TEXT]) {
    struct redis_address address;
    const char *why = server_redis_address_read(text, &address);
    bool is_six = strchr(address.host, ':') != NULL;
    const char *scheme = address.has_tls ? "rediss" : "redis";
    snprintf(name, STORE_TEXT, "%s://%s%s%s:%d/%d", scheme, is_six ? "[" : "", address.host,
             is_six ? "]" : "", address.port, address.database);
    if (why) snprintf(name, STORE_TEXT, "%s://...", scheme); /* its parts may be in wrong places */
}

/* Writes a pattern of SCAN that matches each key with this prefix. */
static void pattern_write(char *pattern, const char *prefix) {
    for (const char *at = prefix; *at; at++) {
        if (strchr("*?[]\\^", *at)) *pattern++ = '\\';
        *pattern++ = *at;
    }
    memcpy(pattern, "*", 2);
}

static bool redis_open(struct store *base, const struct store_place *place) {
    struct redis_store *store = (struct redis_store *)base;
    store->place = place;
    (void)server_redis_address_read(place->address, &store->address);
    snprintf(store->process, sizeof store->process, "doorman:{%s}:process", place->node);
    snprintf(store->handover, sizeof store->handover, "doorman:{%s}:handover", place->node);
    snprintf(store->prefix, sizeof store->prefix, "doorman:{%s}:row:", place->node);
    pattern_write(store->pattern, store->prefix);
    if (!redis_connect(store)) return !store->is_refused;
    const char *const words[] = {"HMGET", store->process, "schema"};
    redisReply *reply = redis_ask(store, REDIS_REPLY_ARRAY, 3, words);
    const redisReply *schema = reply && reply->elements == 1 ? reply->element[0] : NULL;
    bool is_newer = schema && schema->str && strtol(schema->str, NULL, 10) > STORE_SCHEMA;
    freeReplyObject(reply);
    if (is_newer) redis_fail(store, NEWER, "");
    return !is_newer && !store->is_refused;
}

static void redis_forget_rows(struct redis_store *store) {
    freeReplyObject(store->keys);
    freeReplyObject(store->values);
    store->keys = store->values = NULL;
    store->at = 0;
}

static void redis_close(struct store *base) {
    struct redis_store *store = (struct redis_store *)base;
    redis_forget_rows(store);
    redis_disconnect(store);
}

static void redis_warn(struct redis_store *store, const char *text) {
    size_t bytes = strlen(store->base.warning);
    snprintf(store->base.warning + bytes, STORE_TEXT - bytes, "%s%s", bytes ? "; " : "", text);
}

/* Warns if this Redis may lose rows (V8). */
static void redis_look(struct redis_store *store) {
    redisReply *reply = redis_ask(store, REDIS_REPLY_STRING, 1, (const char *const[]){"INFO"});
    store->base.warning[0] = 0;
    if (!reply) {
        redis_warn(store, "cannot say whether it keeps its rows, because INFO fails");
        return;
    }
    if (strstr(reply->str, "aof_enabled:0")) {
        redis_warn(store, "appendonly is no: when this Redis restarts it forgets what was written "
                          "since its last snapshot");
    }
    const char *policy = strstr(reply->str, "maxmemory_policy:");
    if (policy && strncmp(policy, "maxmemory_policy:noeviction", 27) != 0) {
        redis_warn(store, "maxmemory-policy is not noeviction: when this Redis is full it forgets "
                          "counters");
    }
    freeReplyObject(reply);
}

static enum store_result redis_read_begun(struct redis_store *store, const redisReply *reply) {
    const redisReply *what = reply->elements == 2 ? reply->element[0] : NULL;
    if (!what || what->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_INTEGER) {
        return redis_fail_answer(store, reply);
    }
    uint64_t epoch = (uint64_t)reply->element[1]->integer;
    if (strcmp(what->str, "newer") == 0) {
        return redis_fail(store, NEWER, "");
    }
    if (strcmp(what->str, "later") == 0) {
        snprintf(store->base.error, STORE_TEXT,
                 "has the epoch %" PRIu64 ", and this mastership is older: another process is "
                 "master; or etcd has lost its keys, or another node has the same --node",
                 epoch);
        return STORE_OUTDATED;
    }
    store->base.epoch = epoch;
    return STORE_OK;
}

static enum store_result redis_begin(struct store *base, uint64_t epoch) {
    struct redis_store *store = (struct redis_store *)base;
    char schema[NUMBER_TEXT], number[NUMBER_TEXT];
    redis_forget_rows(store);
    store->cursor[0] = 0;
    snprintf(schema, sizeof schema, "%d", STORE_SCHEMA);
    snprintf(number, sizeof number, "%" PRIu64, epoch);
    if (!redis_connect(store)) return STORE_FAILED;
    const char *const words[] = {"EVAL", begin_script, "1", store->process, schema, number};
    redisReply *reply = redis_ask(store, REDIS_REPLY_ARRAY, 6, words);
    if (!reply) return STORE_FAILED;
    enum store_result result = redis_read_begun(store, reply);
    freeReplyObject(reply);
    if (result == STORE_OK) redis_look(store);
    return result;
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Takes a text that ends with a zero from the front of a value. Returns NULL if there is none. */
static const char *value_text(const char **at, const char *end) {
    const char *text = *at;
    const char *zero = (const char *)memchr(text, 0, (size_t)(end - text));
    if (zero) *at = zero + 1;
    return zero ? text : NULL;
}

/* Reads a row. A value that is not of Doorman becomes a record, which the library then refuses. */
static void row_read(const struct redis_store *store, const redisReply *key,
                     const redisReply *value, struct store_row *row) {
    const size_t prefix = strlen(store->prefix);
    const char *at = value->str, *end = value->str + value->len, *texts[6];
    bool is_valid = true;
    for (int i = 0; i < 6; i++) is_valid = (texts[i] = value_text(&at, end)) != NULL && is_valid;
    *row = (struct store_row){.identity = key->str + prefix,
                              .identity_bytes = key->len - prefix,
                              .is_ban = is_valid && strcmp(texts[1], "ban") == 0,
                              .template = is_valid ? texts[2] : "",
                              .limit = is_valid ? texts[3] : "",
                              .resource = is_valid ? texts[4] : "",
                              .key = is_valid ? texts[5] : key->str,
                              .fresh_at = is_valid ? strtoll(texts[0], NULL, 10) : 0,
                              .record = is_valid ? at : value->str,
                              .record_bytes = is_valid ? (size_t)(end - at) : value->len};
}

static bool redis_scan(struct redis_store *store) {
    const char *const words[] = {"SCAN",  store->cursor[0] ? store->cursor : "0",
                                 "MATCH", store->pattern,
                                 "COUNT", SCAN_ROWS};
    redisReply *reply = redis_ask(store, REDIS_REPLY_ARRAY, 6, words);
    if (!reply) return false;
    bool is_valid = reply->elements == 2 && reply->element[0]->type == REDIS_REPLY_STRING &&
                    reply->element[1]->type == REDIS_REPLY_ARRAY &&
                    reply->element[0]->len < sizeof store->cursor;
    if (is_valid) {
        memcpy(store->cursor, reply->element[0]->str, reply->element[0]->len + 1);
        store->keys = reply->element[1];
        reply->element[1] = NULL;
        reply->elements = 1;
    } else {
        redis_fail_answer(store, reply);
    }
    freeReplyObject(reply);
    return is_valid;
}

/* Receives the values of the keys. */
static bool redis_get(struct redis_store *store) {
    const size_t count = store->keys->elements;
    const char **argv = (const char **)calloc(count + 1, sizeof *argv);
    size_t *bytes = (size_t *)calloc(count + 1, sizeof *bytes);
    bool is_sent = argv && bytes;
    if (is_sent) {
        argv[0] = "MGET", bytes[0] = 4;
        for (size_t i = 0; i < count; i++) {
            argv[i + 1] = store->keys->element[i]->str;
            bytes[i + 1] = store->keys->element[i]->len;
        }
        is_sent = redis_append(store, (int)count + 1, argv, bytes) == REDIS_OK;
    }
    free((void *)argv);
    free(bytes);
    if (!is_sent) return redis_fail(store, "out of memory", "") == STORE_OK;
    store->values = redis_receive(store);
    if (!store->values) return false;
    bool is_valid = store->values->type == REDIS_REPLY_ARRAY && store->values->elements == count;
    return is_valid || redis_fail_answer(store, store->values) == STORE_OK;
}

/* Finds the next row among the received rows. A key that has expired since, or is no string, has no
 * value. */
static bool redis_take_row(struct redis_store *store, struct store_row *row) {
    const size_t prefix = strlen(store->prefix);
    while (store->values && store->at < store->values->elements) {
        const redisReply *key = store->keys->element[store->at];
        const redisReply *value = store->values->element[store->at++];
        if (value->type != REDIS_REPLY_STRING || key->len < prefix) continue;
        row_read(store, key, value, row);
        return true;
    }
    return false;
}

/* Returns whether a reading can begin or continue. It can continue only on the connection on which
 * it has begun. */
static bool redis_reads_on(struct redis_store *store) {
    if (!store->cursor[0]) return redis_connect(store);
    if (!store->context) redis_fail(store, "Redis cannot be reached", "the connection has ended");
    return store->context != NULL;
}

static enum store_result redis_next(struct store *base, struct store_row *row) {
    struct redis_store *store = (struct redis_store *)base;
    while (!redis_take_row(store, row)) {
        redis_forget_rows(store);
        bool is_over = strcmp(store->cursor, "0") == 0;
        bool is_done = !is_over && redis_reads_on(store) && redis_scan(store) &&
                       (store->keys->elements == 0 || redis_get(store));
        if (is_done) continue;
        redis_forget_rows(store);
        store->cursor[0] = 0;
        return is_over ? STORE_END : STORE_FAILED;
    }
    return STORE_OK;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* The words of one script, and the memory for keys and values. */
struct script {
    int count;
    const char *words[6 + 3 * SCRIPT_ROWS];
    size_t bytes[6 + 3 * SCRIPT_ROWS];
    size_t used; /* of store->bytes */
};

static void script_add(struct script *script, const char *word, size_t bytes) {
    script->words[script->count] = word;
    script->bytes[script->count++] = bytes;
}

/* Copies bytes into the memory of a script, and returns their copy. */
static char *script_copy(struct redis_store *store, struct script *script, const void *from,
                         size_t bytes) {
    char *to = store->bytes + script->used;
    memcpy(to, from, bytes);
    script->used += bytes;
    return to;
}

/* Returns how many bytes a row takes in a script, at most. */
static size_t row_bytes(const struct redis_store *store, const struct store_row *row) {
    size_t bytes = strlen(store->prefix) + row->identity_bytes + 2 * NUMBER_TEXT + 8;
    if (!row->record) return bytes;
    return bytes + strlen(row->template) + strlen(row->limit) + strlen(row->resource) +
           strlen(row->key) + 4 + row->record_bytes;
}

/* Adds the value of a row, and when it expires. */
static void script_add_value(struct redis_store *store, struct script *script,
                             const struct store_row *row) {
    char number[NUMBER_TEXT];
    const char *const texts[] = {number,     server_store_what(row), row->template,
                                 row->limit, row->resource,          row->key};
    const char *value = store->bytes + script->used;
    snprintf(number, sizeof number, "%" PRId64, row->fresh_at);
    for (int i = 0; i < 6; i++) script_copy(store, script, texts[i], strlen(texts[i]) + 1);
    script_copy(store, script, row->record, row->record_bytes);
    script_add(script, value, (size_t)(store->bytes + script->used - value));
    snprintf(number, sizeof number, "%" PRId64, row->fresh_at + STORE_KEPT_SECONDS);
    script_add(script, script_copy(store, script, number, strlen(number)), strlen(number));
}

static void script_add_number(struct redis_store *store, struct script *script, uint64_t number) {
    char text[NUMBER_TEXT];
    size_t bytes = (size_t)snprintf(text, sizeof text, "%" PRIu64, number);
    script_add(script, script_copy(store, script, text, bytes), bytes);
}

/* Makes a script of as many rows as fit. Returns how many fit. */
static size_t script_make(struct redis_store *store, struct script *script,
                          const struct store_row *rows, size_t count) {
    static const char *const heads[] = {"EVAL", write_script};
    size_t fits = 0, bytes = 3 * NUMBER_TEXT;
    while (fits < count && fits < SCRIPT_ROWS &&
           (bytes += row_bytes(store, &rows[fits])) <= SCRIPT_BYTES) {
        fits++;
    }
    script->count = 0, script->used = 0;
    for (int i = 0; i < 2; i++) script_add(script, heads[i], strlen(heads[i]));
    script_add_number(store, script, fits + 1);
    script_add(script, store->process, strlen(store->process));
    for (size_t i = 0; i < fits; i++) {
        const char *key = script_copy(store, script, store->prefix, strlen(store->prefix));
        script_copy(store, script, rows[i].identity, rows[i].identity_bytes);
        script_add(script, key, strlen(store->prefix) + rows[i].identity_bytes);
    }
    script_add_number(store, script, store->base.epoch);
    script_add_number(store, script, store->batch);
    for (size_t i = 0; i < fits; i++) {
        if (rows[i].record) {
            script_add_value(store, script, &rows[i]);
        } else {
            script_add(script, "", 0);
            script_add(script, "", 0);
        }
    }
    return fits;
}

static enum store_result redis_read_written(struct redis_store *store, const redisReply *reply) {
    if (reply->type == REDIS_REPLY_INTEGER) return STORE_OK;
    if (reply->type != REDIS_REPLY_STRING) return redis_fail_answer(store, reply);
    uint64_t epoch = strtoull(reply->str, NULL, 10);
    bool is_later = epoch > store->base.epoch;
    snprintf(store->base.error, STORE_TEXT,
             is_later ? "another process has begun the mastership %" PRIu64 " of this node, after "
                        "the mastership %" PRIu64 " of this process"
                      : "it has lost rows: its epoch is %" PRIu64 ", and was %" PRIu64
                        "; look at its persistence and replication",
             epoch, store->base.epoch);
    return is_later ? STORE_OUTDATED : STORE_LOST;
}

static enum store_result redis_run_writer(struct redis_store *store, int count, const char **words,
                                          const size_t *lengths) {
    if (!redis_connect(store)) return STORE_FAILED;
    if (redis_append(store, count, words, lengths) != REDIS_OK) return redis_fail_connection(store);
    redisReply *reply = redis_receive(store);
    enum store_result result = reply ? redis_read_written(store, reply) : STORE_FAILED;
    freeReplyObject(reply);
    return result;
}

static enum store_result redis_send(struct redis_store *store, const struct store_row *rows,
                                    size_t count) {
    struct script script;
    size_t scripts = 0, sent = 0;
    enum store_result result = STORE_OK;
    store->batch++;
    do { /* without rows, one script still looks at the epoch */
        size_t fits = script_make(store, &script, rows + sent, count - sent);
        assert(fits > 0 || count == 0); /* no row of the library is longer than some KiB */
        sent += fits;
        scripts++;
        if (redis_append(store, script.count, script.words, script.bytes) != REDIS_OK) {
            return redis_fail_connection(store);
        }
    } while (sent < count);
    for (; scripts > 0; scripts--) {
        redisReply *reply = redis_receive(store);
        if (!reply) return STORE_FAILED;
        if (result == STORE_OK) result = redis_read_written(store, reply);
        freeReplyObject(reply);
    }
    return result;
}

/* Returns whether a batch is sent a second time over a new connection, because the other side has
 * ended the first one. A Redis that does not answer is not asked twice, because the caller has
 * waited already.
 *   had_connection   there was one before the call */
static bool redis_sends_again(const struct redis_store *store, enum store_result result,
                              bool had_connection) {
    return result == STORE_FAILED && had_connection && !store->context && !store->timed_out;
}

static enum store_result redis_write(struct store *base, const struct store_row *rows,
                                     size_t count) {
    struct redis_store *store = (struct redis_store *)base;
    bool had_connection = store->context != NULL;
    redis_forget_rows(store);
    store->cursor[0] = 0;
    enum store_result result = redis_connect(store) ? redis_send(store, rows, count) : STORE_FAILED;
    if (redis_sends_again(store, result, had_connection)) {
        result = redis_connect(store) ? redis_send(store, rows, count) : STORE_FAILED;
    }
    return result;
}

/* ---- notes ---------------------------------------------------------------------------------- */

#define NOTES_SCANNED "500" /* in one answer */
#define NOTE_WORDS 4        /* of each note in a script */

/* Writes the names of the hash and of the set of a kind. */
static void note_keys(const struct redis_store *store, const char *kind,
                      char keys[2][2 * PREFIX_BYTES]) {
    snprintf(keys[0], 2 * PREFIX_BYTES, "doorman:{%s}:notes:%s", store->place->node, kind);
    snprintf(keys[1], 2 * PREFIX_BYTES, "doorman:{%s}:order:%s", store->place->node, kind);
}

/* The words of one call of notes_script. */
struct note_call {
    const char *words[6 + NOTE_WORDS * STORE_NOTES_MAX];
    size_t bytes[6 + NOTE_WORDS * STORE_NOTES_MAX];
    int count;
    char numbers[3][NUMBER_TEXT];
    char keys[STORE_NOTES_MAX][2][2 * PREFIX_BYTES];
    char *values[STORE_NOTES_MAX]; /* NULL: deleted */
};

static void note_call_add(struct note_call *call, const char *word, size_t bytes) {
    call->words[call->count] = word;
    call->bytes[call->count++] = bytes;
}

static void note_call_add_text(struct note_call *call, const char *word) {
    note_call_add(call, word, strlen(word));
}

/* Adds the identity and the value of a note. Returns false if memory runs out. */
static bool note_call_add_note(struct note_call *call, size_t index,
                               const struct store_note *note) {
    char ends_at[NUMBER_TEXT];
    note_call_add_text(call, note->identity);
    if (!note->text) {
        note_call_add(call, "", 0);
        return true;
    }
    size_t head = (size_t)snprintf(ends_at, sizeof ends_at, "%" PRId64, note->ends_at) + 1;
    size_t bytes = strlen(note->text);
    call->values[index] = (char *)malloc(head + bytes + 1);
    if (!call->values[index]) return false;
    memcpy(call->values[index], ends_at, head);
    memcpy(call->values[index] + head, note->text, bytes + 1);
    note_call_add(call, call->values[index], head + bytes);
    return true;
}

/* Makes the words of a call. Returns false if memory runs out. */
static bool note_call_make(struct note_call *call, const struct redis_store *store,
                           const struct store_note *notes, size_t count) {
    bool made = true;
    snprintf(call->numbers[0], NUMBER_TEXT, "%zu", 1 + 2 * count);
    snprintf(call->numbers[1], NUMBER_TEXT, "%" PRIu64, store->base.epoch);
    snprintf(call->numbers[2], NUMBER_TEXT, "%" PRIu64, store->batch);
    note_call_add_text(call, "EVAL");
    note_call_add_text(call, notes_script);
    note_call_add_text(call, call->numbers[0]);
    note_call_add_text(call, store->process);
    for (size_t i = 0; i < count; i++) {
        note_keys(store, notes[i].kind, call->keys[i]);
        for (int k = 0; k < 2; k++) note_call_add_text(call, call->keys[i][k]);
    }
    for (int i = 1; i < 3; i++) note_call_add_text(call, call->numbers[i]);
    for (size_t i = 0; made && i < count; i++) made = note_call_add_note(call, i, &notes[i]);
    return made;
}

static enum store_result redis_send_notes(struct redis_store *store, struct note_call *call) {
    if (!redis_connect(store)) return STORE_FAILED;
    if (redis_append(store, call->count, call->words, call->bytes) != REDIS_OK) {
        return redis_fail_connection(store);
    }
    redisReply *reply = redis_receive(store);
    if (!reply) store->base.is_unsure = true;
    enum store_result result = reply ? redis_read_written(store, reply) : STORE_FAILED;
    freeReplyObject(reply);
    return result;
}

static enum store_result redis_put_notes(struct store *base, const struct store_note *notes,
                                         size_t count) {
    struct redis_store *store = (struct redis_store *)base;
    struct note_call *call = (struct note_call *)calloc(1, sizeof *call);
    bool had_connection = store->context != NULL;
    enum store_result result = STORE_FAILED;
    redis_forget_rows(store);
    store->cursor[0] = 0;
    store->batch++;
    if (call && note_call_make(call, store, notes, count)) {
        result = redis_send_notes(store, call);
        if (redis_sends_again(store, result, had_connection)) {
            result = redis_send_notes(store, call);
        }
    } else {
        redis_fail(store, "out of memory", "");
    }
    for (size_t i = 0; call && i < count; i++) free(call->values[i]);
    free(call);
    return result;
}

/* Gives the notes of an answer to the visitor. Returns whether it wants more.
 *   last   out: the identity of the last note */
static bool redis_visit_notes(const redisReply *reply, const char *kind, store_visitor *visit,
                              void *context, char last[STORE_TEXT + 1]) {
    bool wants = true;
    for (size_t i = 0; wants && i + 1 < reply->elements; i += 2) {
        const char *identity = reply->element[i]->str, *value = reply->element[i + 1]->str;
        if (!identity || !value) continue;
        const char *at = value, *ends_at = value_text(&at, value + reply->element[i + 1]->len);
        const struct store_note note = {kind, identity, ends_at ? strtoll(ends_at, NULL, 10) : 0,
                                        ends_at ? at : ""};
        snprintf(last, STORE_TEXT + 1, "%s", identity);
        wants = visit(context, &note);
    }
    return wants;
}

static enum store_result redis_list_notes(struct store *base, const char *kind, const char *before,
                                          store_visitor *visit, void *context) {
    struct redis_store *store = (struct redis_store *)base;
    char keys[2][2 * PREFIX_BYTES], last[STORE_TEXT + 1], end[STORE_TEXT + 2];
    snprintf(last, sizeof last, "%s", before);
    for (bool more = true; more;) {
        snprintf(end, sizeof end, "%s%s", last[0] ? "(" : "+", last);
        note_keys(store, kind, keys);
        if (!redis_connect(store)) return STORE_FAILED;
        const char *const words[] = {"EVAL",  list_script, "2",          keys[0],
                                     keys[1], end,         NOTES_SCANNED};
        redisReply *reply = redis_ask(store, REDIS_REPLY_ARRAY, 7, words);
        if (!reply) return STORE_FAILED;
        more = redis_visit_notes(reply, kind, visit, context, last) && reply->elements > 0;
        freeReplyObject(reply);
    }
    return STORE_OK;
}

static enum store_result redis_last_note(struct store *base, const char *kind,
                                         char identity[STORE_TEXT + 1]) {
    struct redis_store *store = (struct redis_store *)base;
    char keys[2][2 * PREFIX_BYTES];
    note_keys(store, kind, keys);
    const char *const words[] = {"ZREVRANGEBYLEX", keys[1], "+", "-", "LIMIT", "0", "1"};
    redisReply *reply = redis_connect(store) ? redis_ask(store, REDIS_REPLY_ARRAY, 7, words) : NULL;
    if (!reply) return STORE_FAILED;
    const char *found = reply->elements > 0 ? reply->element[0]->str : NULL;
    snprintf(identity, STORE_TEXT + 1, "%s", found ? found : "");
    freeReplyObject(reply);
    return STORE_OK;
}

/* ---- shards that move ------------------------------------------------------------------------ */

#define SHARD_KEY_BYTES (NODE_BYTES_MAX + 64)

static void shard_key_write(char key[SHARD_KEY_BYTES], const char *cluster, size_t shard,
                            uint64_t move) {
    snprintf(key, SHARD_KEY_BYTES, "doorman:shard:%.256s:%zu:%" PRIu64, cluster, shard, move);
}

static enum store_result redis_put_shard(struct store *base, const struct store_shard_part *part) {
    struct redis_store *store = (struct redis_store *)base;
    char epoch[NUMBER_TEXT], index[NUMBER_TEXT], count[NUMBER_TEXT] = "", key[SHARD_KEY_BYTES];
    snprintf(epoch, sizeof epoch, "%" PRIu64, base->epoch);
    snprintf(index, sizeof index, "%zu", part->index);
    if (part->is_last) snprintf(count, sizeof count, "%zu", part->index + 1);
    shard_key_write(key, part->cluster, part->shard, part->move);
    const char *words[] = {"EVAL", put_shard_script, "2", store->process, key, epoch, index, NULL,
                           count};
    size_t lengths[9];
    for (int i = 0; i < 9; i++) lengths[i] = words[i] ? strlen(words[i]) : part->count;
    words[7] = part->count ? (const char *)part->bytes : "";
    return redis_run_writer(store, 9, words, lengths);
}

static enum store_result redis_read_part(struct redis_store *store, const redisReply *reply,
                                         struct store_shard_part *part, unsigned char **bytes) {
    const redisReply *value = reply->elements == 2 ? reply->element[0] : NULL;
    const redisReply *count = reply->elements == 2 ? reply->element[1] : NULL;
    if (!count || !count->str) {
        redis_fail(store, "the store does not have the rows of this move", "");
        return STORE_LOST;
    }
    if (part->index >= strtoull(count->str, NULL, 10)) return STORE_END;
    if (!value->str) {
        redis_fail(store, "the store has only a part of the rows of this move", "");
        return STORE_LOST;
    }
    *bytes = (unsigned char *)malloc(value->len + 1);
    if (!*bytes) return redis_fail(store, "out of memory", "");
    memcpy(*bytes, value->str, value->len);
    part->count = value->len;
    return STORE_OK;
}

static enum store_result redis_get_shard(struct store *base, struct store_shard_part *part,
                                         unsigned char **bytes) {
    struct redis_store *store = (struct redis_store *)base;
    char index[NUMBER_TEXT], key[SHARD_KEY_BYTES];
    snprintf(index, sizeof index, "%zu", part->index);
    shard_key_write(key, part->cluster, part->shard, part->move);
    const char *const words[] = {"HMGET", key, index, "count"};
    if (!redis_connect(store)) return STORE_FAILED;
    redisReply *reply = redis_ask(store, REDIS_REPLY_ARRAY, 4, words);
    if (!reply) return STORE_FAILED;
    enum store_result result = redis_read_part(store, reply, part, bytes);
    freeReplyObject(reply);
    return result;
}

static enum store_result redis_drop_shard(struct store *base, const char *cluster, size_t shard,
                                          uint64_t move) {
    struct redis_store *store = (struct redis_store *)base;
    char key[SHARD_KEY_BYTES];
    shard_key_write(key, cluster, shard, move);
    if (!redis_connect(store)) return STORE_FAILED;
    redisReply *reply = redis_ask(store, REDIS_REPLY_INTEGER, 2, (const char *const[]){"DEL", key});
    freeReplyObject(reply);
    return reply ? STORE_OK : STORE_FAILED;
}

/* ---- planned stops -------------------------------------------------------------------------- */

static enum store_result redis_leave(struct store *base, const void *bytes, size_t count) {
    struct redis_store *store = (struct redis_store *)base;
    char epoch[NUMBER_TEXT];
    snprintf(epoch, sizeof epoch, "%" PRIu64, base->epoch);
    const char *words[] = {"EVAL", leave_script, "2", store->process, store->handover, epoch, NULL};
    size_t lengths[7];
    for (int i = 0; i < 6; i++) lengths[i] = strlen(words[i]);
    words[6] = count ? (const char *)bytes : "";
    lengths[6] = count;
    return redis_run_writer(store, 7, words, lengths);
}

/* Returns why there are no bytes for this mastership. */
static const char *taken_text(const struct redis_store *store, const char *what) {
    if (strcmp(what, "none") == 0) {
        return store->base.epoch == 1 ? "the store is new"
                                      : "the last process did not stop as planned";
    }
    if (strcmp(what, "earlier") == 0) {
        return "what a planned stop has left was for an earlier mastership";
    }
    return strcmp(what, "lost") == 0 ? "what a planned stop has left is gone"
                                     : "another process has begun a later mastership";
}

static enum store_result redis_read_taken(struct redis_store *store, const redisReply *reply,
                                          unsigned char **bytes, size_t *count) {
    const redisReply *what = reply->elements > 0 ? reply->element[0] : NULL;
    const redisReply *left = reply->elements > 1 ? reply->element[1] : NULL;
    if (!what || what->type != REDIS_REPLY_STRING) return redis_fail_answer(store, reply);
    if (!left || left->type != REDIS_REPLY_STRING) {
        redis_fail(store, taken_text(store, what->str), "");
        return strcmp(what->str, "none") == 0 ? STORE_END : STORE_FAILED;
    }
    *bytes = (unsigned char *)malloc(left->len + 1);
    if (!*bytes) return redis_fail(store, "out of memory", "");
    memcpy(*bytes, left->str, left->len);
    *count = left->len;
    return STORE_OK;
}

static enum store_result redis_take(struct store *base, unsigned char **bytes, size_t *count) {
    struct redis_store *store = (struct redis_store *)base;
    char epoch[NUMBER_TEXT];
    snprintf(epoch, sizeof epoch, "%" PRIu64, base->epoch);
    if (!redis_connect(store)) return STORE_FAILED;
    const char *const words[] = {"EVAL", take_script, "2", store->process, store->handover, epoch};
    redisReply *reply = redis_ask(store, REDIS_REPLY_ARRAY, 6, words);
    if (!reply) return STORE_FAILED;
    enum store_result result = redis_read_taken(store, reply, bytes, count);
    freeReplyObject(reply);
    return result;
}

#define REDIS_KIND(scheme, tls)                                                                    \
    {                                                                                              \
        .prefix = (scheme), .is_shared = true, .has_tls = (tls),                                   \
        .bytes = sizeof(struct redis_store), .check = redis_check,                                 \
        .has_password = redis_has_password, .name = redis_name, .open = redis_open,                \
        .close = redis_close, .begin = redis_begin, .next = redis_next, .write = redis_write,      \
        .put_notes = redis_put_notes, .list_notes = redis_list_notes,                              \
        .last_note = redis_last_note, .put_shard = redis_put_shard, .get_shard = redis_get_shard,  \
        .drop_shard = redis_drop_shard, .leave = redis_leave, .take = redis_take                   \
    }

const struct store_kind server_store_redis = REDIS_KIND("redis://", false);
#ifdef DOORMAN_SERVER_TLS
const struct store_kind server_store_redis_tls = REDIS_KIND("rediss://", true);
#endif
