/* doorman_server, part ETCD: requests to one member of etcd, over HTTP or HTTPS. libcurl does the
 * HTTP and the TLS. This file uses the settings, and no other part of the service.
 *
 * A request has a deadline, which covers the name lookup, the connection, TLS and the response.
 * Another thread can cancel a request, which then ends at once. A response has a maximum size.
 *
 * A connection stays open after a response, and the next request to the same member uses it. If a
 * request fails or is cancelled, libcurl closes its connection. So a late response never reaches a
 * later request. If a member has closed a kept connection, libcurl sends the request again on a new
 * connection. All calls of the server are safe to repeat.
 *
 * Redirects, proxies from the environment, and protocols other than HTTP and HTTPS are off, because
 * only etcd itself may answer: its answers control the node. The caches of names and of authorities
 * are off too. So a new connection uses the current addresses and files. */
#include "etcd_http.h"

#include <assert.h>
#include <curl/curl.h>
#include <signal.h>
#include <strings.h>

#define BODY_BYTES_MAX (2 * (DOORMAN_MESSAGE_BYTES_MAX + 4096)) /* a configuration in base64 */
#define HEAD_BYTES_MAX 65536

/* Only one thread at a time may use the fields, except where a comment says otherwise. */
struct etcd_transport {
    CURLM *multi; /* keeps the connections; another thread may wake it up */
    CURL *easy;   /* the request, with the options that all requests share */
    CURLU *url;
    bool cancelled;              /* atomic; true: the current request fails at once */
    char error[CURL_ERROR_SIZE]; /* why the request failed; "": libcurl has no details */
};

/* ---- addresses ------------------------------------------------------------------------------ */

static bool url_lacks(CURLU *url, CURLUPart part) {
    char *text = NULL;
    bool lacks = curl_url_get(url, part, &text, 0) != CURLUE_OK;
    curl_free(text);
    return lacks;
}

static bool url_has(CURLU *url, CURLUPart part, const char *one, const char *other) {
    char *text = NULL;
    bool has = curl_url_get(url, part, &text, 0) == CURLUE_OK &&
               (strcmp(text, one) == 0 || strcmp(text, other) == 0);
    curl_free(text);
    return has;
}

enum etcd_address server_etcd_check_address(const char *address) {
    enum etcd_address result = ETCD_ADDRESS_INVALID;
    CURLU *url = curl_url();
    if (strchr(address, '@')) {
        result = ETCD_ADDRESS_HAS_SECRET;
    } else if (url && curl_url_set(url, CURLUPART_URL, address, 0) == CURLUE_OK &&
               url_has(url, CURLUPART_SCHEME, "http", "https") &&
               url_has(url, CURLUPART_PATH, "/", "") && url_lacks(url, CURLUPART_QUERY) &&
               url_lacks(url, CURLUPART_FRAGMENT)) {
        result = ETCD_ADDRESS_VALID;
    }
    curl_url_cleanup(url);
    return result;
}

bool server_etcd_address_is_https(const char *address) {
    return strncasecmp(address, "https:", 6) == 0;
}

/* ---- setup ---------------------------------------------------------------------------------- */

/* A write callback of libcurl: appends bytes, and then a 0, to the body of an etcd_reply. */
static size_t reply_add(char *bytes, size_t size, size_t count, void *context) {
    struct etcd_reply *reply = (struct etcd_reply *)context;
    doorman_buffer *body = &reply->body;
    size_t all = size * count, needed = body->bytes + all + 1;
    reply->is_too_long = reply->is_too_long || needed > BODY_BYTES_MAX;
    if (needed > BODY_BYTES_MAX) reply->refusal = "the response is too long";
    if (!reply->refusal && needed > body->capacity) {
        char *text = (char *)realloc(body->text, 2 * needed);
        if (text) {
            body->text = text;
            body->capacity = 2 * needed;
        } else {
            reply->refusal = strerror(ENOMEM);
        }
    }
    if (!reply->refusal) {
        memcpy(body->text + body->bytes, bytes, all);
        body->bytes += all;
        body->text[body->bytes] = 0;
        assert(body->bytes < body->capacity);
    }
    return reply->refusal ? 0 : all; /* 0: libcurl ends the request */
}

/* A header callback of libcurl: counts the bytes of the head, and ends the request if there are too
 * many. */
static size_t reply_count_head(char *bytes, size_t size, size_t count, void *context) {
    struct etcd_reply *reply = (struct etcd_reply *)context;
    (void)bytes;
    reply->head_bytes += size * count;
    reply->is_too_long = reply->is_too_long || reply->head_bytes > HEAD_BYTES_MAX;
    if (reply->head_bytes > HEAD_BYTES_MAX) reply->refusal = "the head of the response is too long";
    return reply->refusal ? 0 : size * count;
}

/* Sets the options for HTTP that all requests share. Returns false if memory runs out. */
static bool transport_set_http(struct etcd_transport *transport) {
    CURL *easy = transport->easy;
    bool is_set = curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK;
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, 0L);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transport->error);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, reply_add);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, reply_count_head);
#if LIBCURL_VERSION_NUM >= 0x075700 /* 7.87 */
    /* Without QUICK_EXIT, a request that ends during a name lookup waits until the lookup ends. */
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
    curl_easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT, 0L);
    is_set = is_set && curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
#endif
    return is_set;
}

/* Sets the options for TLS. Without --etcd-ca, the authorities of the system are trusted. The
 * password of the key is empty, because OpenSSL would otherwise ask for it on the terminal. Returns
 * false if memory runs out. */
static bool transport_set_tls(CURL *easy, const struct settings *settings) {
    const char *ca = settings->etcd_ca, *cert = settings->etcd_cert, *key = settings->etcd_key;
    bool is_set = curl_easy_setopt(easy, CURLOPT_KEYPASSWD, "") == CURLE_OK;
    curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 1L);
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 2L);
    if (ca) {
        is_set = is_set && curl_easy_setopt(easy, CURLOPT_CAINFO, ca) == CURLE_OK;
        curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    }
    if (cert) is_set = is_set && curl_easy_setopt(easy, CURLOPT_SSLCERT, cert) == CURLE_OK;
    if (key) is_set = is_set && curl_easy_setopt(easy, CURLOPT_SSLKEY, key) == CURLE_OK;
    return is_set;
}

struct etcd_transport *server_etcd_transport_create(const struct settings *settings) {
    struct etcd_transport *transport = NULL;
    signal(SIGPIPE, SIG_IGN); /* libraries for TLS may write to a closed connection */
    if (curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) {
        transport = (struct etcd_transport *)calloc(1, sizeof *transport);
        if (!transport) curl_global_cleanup();
    }
    if (transport) {
        transport->multi = curl_multi_init();
        transport->easy = curl_easy_init();
        transport->url = curl_url();
        if (!transport->multi || !transport->easy || !transport->url ||
            !transport_set_http(transport) || !transport_set_tls(transport->easy, settings)) {
            server_etcd_transport_destroy(transport);
            transport = NULL;
        }
    }
    return transport;
}

void server_etcd_transport_destroy(struct etcd_transport *transport) {
    if (transport) {
        curl_easy_cleanup(transport->easy);
        curl_multi_cleanup(transport->multi);
        curl_url_cleanup(transport->url);
        curl_global_cleanup();
        free(transport);
    }
}

/* ---- requests ------------------------------------------------------------------------------- */

void server_etcd_transport_cancel(struct etcd_transport *transport, bool cancelled) {
    __atomic_store_n(&transport->cancelled, cancelled, __ATOMIC_RELEASE);
    if (cancelled) curl_multi_wakeup(transport->multi);
}

bool server_etcd_transport_is_cancelled(const struct etcd_transport *transport) {
    return __atomic_load_n(&transport->cancelled, __ATOMIC_ACQUIRE);
}

/* Makes the header lines of a request. "Expect:" without a value keeps libcurl from waiting for a
 * response before it sends the body. Returns NULL if memory runs out. */
static struct curl_slist *headers_create(const char *token) {
    char line[ETCD_POST_TOKEN + 32];
    const char *const lines[] = {"Content-Type: application/json", "Expect:", line};
    size_t count = token[0] ? 3 : 2, added = 0;
    struct curl_slist *headers = NULL, *longer = NULL;
    snprintf(line, sizeof line, "Authorization: %s", token);
    while (added < count && (longer = curl_slist_append(headers, lines[added])) != NULL) {
        headers = longer;
        added++;
    }
    if (added < count) {
        curl_slist_free_all(headers);
        headers = NULL;
    }
    return headers;
}

/* Sets the options of one request. libcurl uses the arguments until the request ends. Returns false
 * if memory runs out. */
static bool transport_set_request(struct etcd_transport *transport, const struct etcd_post *post,
                                  const struct curl_slist *headers, struct etcd_reply *reply) {
    CURL *easy = transport->easy;
    long ms = (long)((post->ends_at - doorman_clock()) / (DOORMAN_SECOND / 1000));
    transport->error[0] = 0;
    curl_easy_setopt(easy, CURLOPT_CURLU, transport->url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, post->body);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)strlen(post->body));
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, ms > 0 ? ms : 1L); /* 0 would mean no limit */
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, reply);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, reply);
    return curl_url_set(transport->url, CURLUPART_URL, post->member, 0) == CURLUE_OK &&
           curl_url_set(transport->url, CURLUPART_PATH, post->path, 0) == CURLUE_OK;
}

/* Runs the request until it ends, is cancelled, or reaches its deadline. libcurl has the deadline
 * too. The check here also covers a sleep of the machine, in which libcurl's clock may stop.
 *   running   0: the request has ended */
static CURLMcode transport_run(struct etcd_transport *transport, doorman_time ends_at,
                               int *running) {
    CURLMcode error = CURLM_OK;
    for (bool waits = true; waits && error == CURLM_OK;) {
        error = curl_multi_perform(transport->multi, running);
        doorman_time left = ends_at - doorman_clock();
        waits = *running > 0 && left > 0 && !server_etcd_transport_is_cancelled(transport);
        if (waits && error == CURLM_OK) {
            int ms = (int)(left / (DOORMAN_SECOND / 1000)) + 1;
            error = curl_multi_poll(transport->multi, NULL, 0, ms, NULL);
        }
    }
    return error;
}

/* Returns whether a member may have refused this server, because its certificate is wrong or
 * missing. In TLS 1.3 the member checks the certificate when this server has already sent its
 * request. Then the alert of the member can be lost, and only the end of the connection is seen. */
static bool transport_was_refused(const struct etcd_transport *transport, CURLcode result,
                                  const char *member) {
    bool closed =
        result == CURLE_SEND_ERROR || result == CURLE_RECV_ERROR || result == CURLE_GOT_NOTHING;
    return closed && server_etcd_address_is_https(member) && !strstr(transport->error, "alert");
}

/* Returns why a request that has ended failed, or NULL if there is a response.
 *   reply   in/out: gets has_timed_out */
static const char *transport_result(struct etcd_transport *transport, const char *member,
                                    struct etcd_reply *reply) {
    int more = 0;
    long system_error = 0;
    const CURLMsg *message = curl_multi_info_read(transport->multi, &more);
    CURLcode result = message ? message->data.result : CURLE_FAILED_INIT;
    const char *why = result == CURLE_OK ? NULL : curl_easy_strerror(result);
    curl_easy_getinfo(transport->easy, CURLINFO_OS_ERRNO, &system_error);
    reply->has_timed_out = result == CURLE_OPERATION_TIMEDOUT || (why && system_error == ETIMEDOUT);
    if (why && reply->refusal) {
        why = reply->refusal;
    } else if (result == CURLE_COULDNT_CONNECT && system_error) {
        why = strerror((int)system_error);
    } else if (transport_was_refused(transport, result, member)) {
        why = "the member closed the connection; it may refuse the certificate of this server";
    } else if (why && transport->error[0]) {
        why = transport->error;
    }
    return why;
}

const char *server_etcd_transport_post(struct etcd_transport *transport,
                                       const struct etcd_post *post, struct etcd_reply *reply) {
    struct curl_slist *headers = headers_create(post->token);
    const char *why = NULL;
    *reply = (struct etcd_reply){.status = 0};
    if (headers && transport_set_request(transport, post, headers, reply) &&
        curl_multi_add_handle(transport->multi, transport->easy) == CURLM_OK) {
        int running = 1;
        CURLMcode error = transport_run(transport, post->ends_at, &running);
        if (running == 0) {
            why = transport_result(transport, post->member, reply);
        } else if (error != CURLM_OK) {
            why = curl_multi_strerror(error);
        } else {
            reply->has_timed_out = !server_etcd_transport_is_cancelled(transport);
            why = strerror(reply->has_timed_out ? ETIMEDOUT : ECANCELED);
        }
        curl_multi_remove_handle(transport->multi, transport->easy);
        curl_easy_getinfo(transport->easy, CURLINFO_RESPONSE_CODE, &reply->status);
    } else {
        why = strerror(ENOMEM);
    }
    curl_slist_free_all(headers);
    return why;
}
