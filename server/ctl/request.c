/* doormanctl: requests to a server, with libcurl.
 *
 * A request fails if no byte has come or gone during the timeout. A limit for the whole request
 * would also end long lists that are on their way. A process that is not the master redirects
 * a message if it knows the HTTP address of the master, and libcurl follows. It answers GET with
 * what it knows, which is little. Then the address of the master is taken from /v1/status, and the
 * master is asked. */
#include "ctl.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include <curl/curl.h>

#define REPLY_BYTES_MAX ((size_t)256 << 20)
#define PROGRESS_AFTER 2.0 /* seconds */
#define PROGRESS_EVERY 10.0

/* ---- one transfer --------------------------------------------------------------------------- */

/* A request that is under way. */
struct transfer {
    struct ctl *ctl;
    FILE *text; /* of the reply */
    size_t bytes;
    curl_off_t moved; /* bytes in both directions */
    double moved_at;
    char error[CURL_ERROR_SIZE];
};

static double clock_read(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Shows that a command takes long. On a terminal this is one line, which changes. */
static void progress_show(struct ctl *ctl, double received, double now) {
    bool is_terminal = isatty(STDERR_FILENO);
    double every = is_terminal ? 0.5 : PROGRESS_EVERY;
    if (now - ctl->started < PROGRESS_AFTER || (ctl->shown > 0 && now - ctl->shown < every)) return;
    fprintf(stderr, "%sdoormanctl: waiting for %s: %.0f s, %.1f MB received%s",
            is_terminal ? "\r" : "", ctl->url, now - ctl->started, (ctl->received + received) / 1e6,
            is_terminal ? "\033[K" : "\n");
    ctl->shown = now;
}

static void progress_clear(const struct ctl *ctl) {
    if (ctl->shown > 0 && isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
}

/* A progress callback, which libcurl calls about once a second or more often. Returns 1, which ends
 * the request, if no byte has moved for the timeout. */
static int on_progress(void *context, curl_off_t total, curl_off_t received, curl_off_t send_total,
                       curl_off_t sent) {
    struct transfer *transfer = (struct transfer *)context;
    double now = clock_read();
    (void)total;
    (void)send_total;
    if (received + sent != transfer->moved) {
        transfer->moved = received + sent;
        transfer->moved_at = now;
    }
    progress_show(transfer->ctl, (double)received, now);
    return now - transfer->moved_at > transfer->ctl->timeout;
}

/* A write callback of libcurl. Returns 0, which ends the request, if the reply is too long. */
static size_t on_bytes(char *bytes, size_t size, size_t count, void *context) {
    struct transfer *transfer = (struct transfer *)context;
    transfer->bytes += size * count;
    if (transfer->bytes > REPLY_BYTES_MAX) return 0;
    return fwrite(bytes, size, count, transfer->text) * size;
}

/* Returns the URL of a request. The caller frees it. */
static char *url_make(const struct ctl *ctl, const struct ctl_request *request) {
    char *url = NULL, separator = '?';
    size_t bytes = 0, base = strlen(ctl->url);
    FILE *text = (FILE *)ctl_need(open_memstream(&url, &bytes));
    while (base > 0 && ctl->url[base - 1] == '/') base--;
    fprintf(text, "%.*s%s", (int)base, ctl->url, request->path);
    for (size_t i = 0; i < CTL_PARAMETER_MAX; i++) {
        if (!request->query[i].value) continue;
        char *value = curl_easy_escape(ctl->curl, request->query[i].value, 0);
        fprintf(text, "%c%s=%s", separator, request->query[i].name, value ? value : "");
        curl_free(value);
        separator = '&';
    }
    if ((request->body || request->verb) && !request->here && !request->forwards)
        fprintf(text, "%credirect=1", separator);
    fclose(text);
    return url;
}

/* Sets the options of the connection. libcurl sends the token to the address of a redirect too, but
 * follows no redirect from HTTPS to HTTP. */
static void curl_set_connection(struct ctl *ctl) {
    const struct ctl_settings *settings = &ctl->settings;
    bool is_https = strncasecmp(ctl->url, "https:", 6) == 0;
    CURL *curl = ctl->curl;
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)(ctl->timeout * 1000) + 1);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 3L);
    curl_easy_setopt(curl, CURLOPT_UNRESTRICTED_AUTH, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700 /* 7.87 */
    curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, is_https ? "https" : "http,https");
#else
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS,
                     (long)(is_https ? CURLPROTO_HTTPS : CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    if (settings->cacert) curl_easy_setopt(curl, CURLOPT_CAINFO, settings->cacert);
    if (settings->cert) curl_easy_setopt(curl, CURLOPT_SSLCERT, settings->cert);
    if (settings->key) curl_easy_setopt(curl, CURLOPT_SSLKEY, settings->key);
    curl_easy_setopt(curl, CURLOPT_KEYPASSWD, ""); /* OpenSSL would ask for it */
}

static void curl_set_callbacks(CURL *curl, struct transfer *transfer) {
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, transfer->error);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, transfer);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, transfer);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
}

/* Returns the header lines of a request. "Expect:" without a value keeps libcurl from waiting for
 * a response before it sends the body. */
static struct curl_slist *headers_make(const struct ctl *ctl, const struct ctl_request *request) {
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (headers) headers = curl_slist_append(headers, "Expect:");
    if (headers && request->header) headers = curl_slist_append(headers, request->header);
    if (headers && ctl->settings.token) {
        char line[CTL_TOKEN_BYTES_MAX + 32];
        snprintf(line, sizeof line, "Authorization: Bearer %s", ctl->settings.token);
        headers = curl_slist_append(headers, line);
    }
    return (struct curl_slist *)ctl_need(headers);
}

/* Reports why there is no answer, and what to do. */
static enum ctl_exit transfer_report(const struct transfer *transfer, CURLcode result) {
    const char *why = transfer->error[0] ? transfer->error : curl_easy_strerror(result);
    const char *hint = "is the server running, with --http? Another address: --url, DOORMAN_URL";
    const char *url = transfer->ctl->url;
    if (transfer->bytes > REPLY_BYTES_MAX) {
        return ctl_fail(CTL_UNREACHABLE, "%s: the answer has more than 256 MiB", url);
    }
    if (result == CURLE_ABORTED_BY_CALLBACK || result == CURLE_OPERATION_TIMEDOUT) {
        return ctl_fail(CTL_UNREACHABLE,
                        "%s: nothing has come for %g s; is it a Doorman server? A longer time: "
                        "--timeout SECONDS",
                        url, transfer->ctl->timeout);
    }
    if (result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE) {
        hint = "--cacert FILE names the authority of the certificate";
    }
    if (result == CURLE_TOO_MANY_REDIRECTS) hint = "no process says that it is the master; wait";
    return ctl_fail(CTL_UNREACHABLE, "cannot reach %s: %s; %s", url, why, hint);
}

enum ctl_exit ctl_send(struct ctl *ctl, const struct ctl_request *request,
                       struct ctl_reply *reply) {
    struct transfer transfer = {.ctl = ctl, .moved_at = clock_read()};
    char *body = request->body ? cJSON_PrintUnformatted(request->body) : NULL;
    *reply = (struct ctl_reply){.status = 0};
    transfer.text = (FILE *)ctl_need(open_memstream(&reply->text, &reply->bytes));
    if (request->body) ctl_need(body);
    char *url = url_make(ctl, request);
    struct curl_slist *headers = headers_make(ctl, request);
    if (ctl->started <= 0) ctl->started = transfer.moved_at;
    curl_easy_reset(ctl->curl);
    curl_set_connection(ctl);
    curl_set_callbacks(ctl->curl, &transfer);
    curl_easy_setopt(ctl->curl, CURLOPT_URL, url);
    curl_easy_setopt(ctl->curl, CURLOPT_HTTPHEADER, headers);
    const char *sent = request->text ? request->text : body;
    if (sent) curl_easy_setopt(ctl->curl, CURLOPT_POSTFIELDS, sent);
    if (request->verb) curl_easy_setopt(ctl->curl, CURLOPT_CUSTOMREQUEST, request->verb);
    CURLcode result = curl_easy_perform(ctl->curl);
    progress_clear(ctl);
    curl_easy_getinfo(ctl->curl, CURLINFO_RESPONSE_CODE, &reply->status);
    ctl->received += (double)transfer.bytes;
    ctl_need(fclose(transfer.text) == 0 ? reply->text : NULL);
    reply->json = cJSON_Parse(reply->text);
    curl_slist_free_all(headers);
    free(url);
    cJSON_free(body);
    return result == CURLE_OK ? CTL_DONE : transfer_report(&transfer, result);
}

void ctl_reply_free(struct ctl_reply *reply) {
    cJSON_Delete(reply->json);
    free(reply->text);
    *reply = (struct ctl_reply){.status = 0};
}

/* ---- answers -------------------------------------------------------------------------------- */

/* Returns whether an answer may come from a process that is not the master. The answer to a message
 * then has `mastership`, and most paths say that `is_master` is false. Other paths answer 404. */
static bool is_of_standby(const struct ctl_reply *reply) {
    return reply->status == 404 ||
           cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(reply->json, "is_master")) ||
           cJSON_HasObjectItem(reply->json, "mastership");
}

/* Looks for the master, after an answer that may be of another process.
 *   returns   CTL_DONE: this is the master, or ctl->url is now the master's */
static enum ctl_exit master_find(struct ctl *ctl, bool *is_other) {
    struct ctl_reply reply;
    enum ctl_exit code = ctl_send(ctl, &(struct ctl_request){.path = "/v1/status"}, &reply);
    const char *http = ctl_text(reply.json, "master_http_address");
    const char *address = ctl_text(reply.json, "master_address");
    *is_other = cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(reply.json, "is_master"));
    bool is_safe = strncasecmp(ctl->url, "https:", 6) != 0 || strncasecmp(http, "https:", 6) == 0;
    if (code == CTL_DONE && *is_other && !address[0]) {
        code = ctl_fail(CTL_REFUSED, "no process is the master now; `doormanctl status` says why");
    } else if (code == CTL_DONE && *is_other && (!http[0] || !is_safe)) {
        code = ctl_fail(CTL_REFUSED,
                        "this process is not the master, which is at %s; give the HTTP address of "
                        "the master with --url",
                        http[0] ? http : address);
    } else if (code == CTL_DONE && *is_other) {
        free(ctl->url);
        ctl->url = (char *)ctl_need(strdup(http));
    }
    ctl_reply_free(&reply);
    return code;
}

/* Reports an answer that is an error or nonsense. */
static enum ctl_exit reply_report(const struct ctl *ctl, const struct ctl_reply *reply) {
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(reply->json, "error");
    const char *message = ctl_text(error, "message");
    if (!message[0]) {
        return ctl_fail(CTL_UNREACHABLE,
                        "%s answers, but not as a Doorman server does (status %ld, %zu bytes); is "
                        "the address right?",
                        ctl->url, reply->status, reply->bytes);
    }
    if (reply->status == 401) {
        return ctl_fail(CTL_NOT_ALLOWED,
                        "%s: set DOORMAN_TOKEN, or write `token TOKEN` into ~/.config/doormanctl "
                        "(mode 600)",
                        ctl->settings.token ? "the server does not know this token"
                                            : "the server wants a token");
    }
    return ctl_fail(reply->status == 403 ? CTL_NOT_ALLOWED : CTL_REFUSED, "%s", message);
}

enum ctl_exit ctl_call(struct ctl *ctl, const struct ctl_request *request,
                       struct ctl_reply *reply) {
    enum ctl_exit code = ctl_send(ctl, request, reply);
    bool is_other = false;
    if (code == CTL_DONE && !request->here && is_of_standby(reply)) {
        code = master_find(ctl, &is_other);
        if (code == CTL_DONE && is_other) {
            ctl_reply_free(reply);
            code = ctl_send(ctl, request, reply);
        }
    }
    if (code != CTL_DONE) return code;
    bool is_good = reply->status >= 200 && reply->status < 300;
    if (!is_good || (request->expects && !cJSON_HasObjectItem(reply->json, request->expects))) {
        return reply_report(ctl, reply);
    }
    if (request->expects && ctl->json) fwrite(reply->text, 1, reply->bytes, stdout);
    return CTL_DONE;
}
