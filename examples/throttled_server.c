/* An HTTP server behind a throttle: 16 worker threads, and a 503 with Retry-After for each request
 * that the throttle refuses.
 *
 *     make
 *     build/examples/throttled_server
 *     curl --include http://127.0.0.1:8088/
 *
 * Each request needs a worker for 20 to 60 ms, so the server can answer 400 requests a second. As a
 * sidecar, it passes the requests on to a server on another port, 16 at a time:
 *
 *     build/examples/throttled_server --backend 127.0.0.1:8000
 *
 * A client can send a criticality from 0 to 15 in the header X-Criticality, and the name of its
 * user in X-User. With the address of a Doorman server, and a resource whose template has
 * `overload`, the program reports what its throttle counts. So the capacity of the resource follows
 * what this server can do:
 *
 *     build/examples/throttled_server --doorman tcp://127.0.0.1:15000 --resource db/orders
 *
 * With --off, the throttle refuses nothing as long as fewer than a million requests wait, as in a
 * server without a throttle. `make demo THROTTLE=1` compares the two.
 */
#define DOORMAN_IMPLEMENTATION
#define DOORMAN_JSON
#define DOORMAN_NNG
#include "doorman_throttle.h"

#include <arpa/inet.h>
#include <nng/nng.h>
#include <nng/supplemental/http/http.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { WORKERS = 16, BODY_MAX = 1 << 20, LINE_MAX_BYTES = 300 };

#define MILLISECOND (DOORMAN_SECOND / 1000)
#define WORK_MIN (20 * MILLISECOND)
#define WORK_MAX (60 * MILLISECOND)
#define BACKEND_PATIENCE 30000 /* milliseconds */

/* The mutex guards the throttle. nng calls `on_request` in threads of its own. */
static struct {
    const char *listen, *doorman, *resource;
    nng_url *backend; /* NULL: each request is answered here */
    bool off;
    pthread_mutex_t mutex;
    pthread_cond_t work; /* a request waits, or the program ends */
    doorman_throttle *throttle;
    bool ends;
} server = {.listen = "127.0.0.1:8088",
            .mutex = PTHREAD_MUTEX_INITIALIZER,
            .work = PTHREAD_COND_INITIALIZER};

static volatile sig_atomic_t stopped;

static void on_signal(int number) {
    (void)number;
    stopped = 1;
}

static void pause_for(doorman_time duration) {
    struct timespec time = {.tv_sec = (time_t)(duration / DOORMAN_SECOND),
                            .tv_nsec = (long)(duration % DOORMAN_SECOND)};
    nanosleep(&time, NULL);
}

/* ---- responses ------------------------------------------------------------------------------- */

static nng_http_res *response_make(uint16_t status, const char *text, const char *retry_after) {
    nng_http_res *response = NULL;
    if (nng_http_res_alloc(&response) != 0) return NULL;
    if (nng_http_res_set_status(response, status) == 0 &&
        (status != 502 || nng_http_res_set_reason(response, "Bad Gateway") == 0) &&
        nng_http_res_copy_data(response, text, strlen(text)) == 0 &&
        nng_http_res_set_header(response, "Content-Type", "text/plain") == 0 &&
        (!retry_after || nng_http_res_set_header(response, "Retry-After", retry_after) == 0)) {
        return response;
    }
    nng_http_res_free(response);
    return NULL;
}

/* Gives the response to nng. If there was no memory for one, nng ends the connection. */
static void respond(nng_aio *aio, nng_http_res *response) {
    if (response) nng_aio_set_output(aio, 0, response);
    nng_aio_finish(aio, response ? 0 : NNG_ENOMEM);
}

/* Responds with the refusal. Retry-After is in whole seconds. The text contains the exact time. */
static void respond_refused(nng_aio *aio, const doorman_throttle_refusal *refusal) {
    static const char *const reasons[] = {[DOORMAN_THROTTLE_FULL] = "the queue is full",
                                          [DOORMAN_THROTTLE_DISPLACED] = "others go before it",
                                          [DOORMAN_THROTTLE_WAITED] = "it has waited too long",
                                          [DOORMAN_THROTTLE_LATE] = "its deadline has passed"};
    if (refusal->reason == DOORMAN_THROTTLE_BAD_REQUEST) {
        respond(aio, response_make(400, "X-Criticality must be 0 to 15\n", NULL));
        return;
    }
    char text[LINE_MAX_BYTES], seconds[24];
    doorman_time after = refusal->retry_after;
    snprintf(text, sizeof text, "refused: %s; try again in %d ms\n", reasons[refusal->reason],
             (int)(after / MILLISECOND));
    snprintf(seconds, sizeof seconds, "%d", (int)((after + DOORMAN_SECOND - 1) / DOORMAN_SECOND));
    respond(aio, response_make(503, text, seconds));
}

/* The id of a request is the address of nng's request, so no table is needed to find it again. */
static uint64_t id_of(const nng_aio *aio) {
    uint64_t id = 0;
    memcpy(&id, &aio, sizeof aio);
    return id;
}

static nng_aio *aio_of(uint64_t id) {
    nng_aio *aio;
    memcpy(&aio, &id, sizeof aio);
    return aio;
}

/* Responds to the requests that waited and are refused. The caller holds the mutex. */
static void respond_to_refused(void) {
    doorman_throttle_refusal refusal;
    while (doorman_throttle_next_refused(server.throttle, &refusal)) {
        respond_refused(aio_of(refusal.id), &refusal);
    }
}

/* ---- work ------------------------------------------------------------------------------------ */

/* Passes a request on, and returns the response of the backend; NULL: there is none. nng has read
 * the whole body, so it is not sent in chunks. */
static nng_http_res *ask_backend(nng_http_req *request) {
    nng_http_client *client = NULL;
    nng_http_res *response = NULL;
    nng_aio *aio = NULL;
    bool answered = false;
    if (nng_http_client_alloc(&client, server.backend) == 0 && nng_http_res_alloc(&response) == 0 &&
        nng_aio_alloc(&aio, NULL, NULL) == 0) {
        nng_http_req_del_header(request, "Connection");
        nng_aio_set_timeout(aio, BACKEND_PATIENCE);
        nng_http_client_transact(client, request, response, aio);
        nng_aio_wait(aio);
        answered = nng_aio_result(aio) == 0;
    }
    if (aio) nng_aio_free(aio);
    if (client) nng_http_client_free(client);
    if (answered) {
        nng_http_res_del_header(response, "Connection");
        nng_http_res_del_header(response, "Transfer-Encoding");
        nng_http_res_set_version(response, "HTTP/1.1");
        return response;
    }
    if (response) nng_http_res_free(response);
    return NULL;
}

/* Does the work of a request, and returns the response; NULL: there is no memory. */
static nng_http_res *work_on(nng_http_req *request, unsigned *random) {
    if (server.backend) {
        nng_http_res *answer = ask_backend(request);
        return answer ? answer : response_make(502, "the backend does not answer\n", NULL);
    }
    double part = (double)rand_r(random) / RAND_MAX;
    pause_for(WORK_MIN + (doorman_time)(part * (double)(WORK_MAX - WORK_MIN)));
    char text[LINE_MAX_BYTES];
    snprintf(text, sizeof text, "done: %s\n", nng_http_req_get_uri(request));
    return response_make(200, text, NULL);
}

/* Works on requests. The cost is the time of a worker, in milliseconds. The throttle forgets the
 * request before the client gets its response, because the next request of the client can have the
 * same id. */
static void *worker_main(void *argument) {
    unsigned random = *(unsigned *)argument;
    uint64_t id;
    pthread_mutex_lock(&server.mutex);
    for (;;) {
        bool found = doorman_throttle_next(server.throttle, &id, doorman_clock());
        respond_to_refused();
        if (!found && server.ends) break;
        if (!found) {
            pthread_cond_wait(&server.work, &server.mutex);
            continue;
        }
        pthread_mutex_unlock(&server.mutex);
        nng_aio *aio = aio_of(id);
        doorman_time start = doorman_clock();
        nng_http_res *response = work_on(nng_aio_get_input(aio, 0), &random);
        doorman_time end = doorman_clock();
        pthread_mutex_lock(&server.mutex);
        doorman_throttle_finish(server.throttle, id, (double)(end - start) / MILLISECOND, end);
        respond(aio, response);
    }
    pthread_mutex_unlock(&server.mutex);
    return NULL;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void on_request(nng_aio *aio) {
    nng_http_req *http = nng_aio_get_input(aio, 0);
    const char *criticality = nng_http_req_get_header(http, "X-Criticality");
    doorman_throttle_request request = {.id = id_of(aio),
                                        .user = nng_http_req_get_header(http, "X-User")};
    doorman_throttle_refusal refusal;
    if (criticality) {
        char *end;
        unsigned long number = strtoul(criticality, &end, 10);
        bool valid = end != criticality && !*end && number < DOORMAN_CRITICALITIES;
        request.criticality = valid ? (unsigned)number : DOORMAN_CRITICALITIES;
    }
    pthread_mutex_lock(&server.mutex);
    doorman_throttle_result result =
        doorman_throttle_offer(server.throttle, &request, &refusal, doorman_clock());
    if (result == DOORMAN_THROTTLE_REFUSED) respond_refused(aio, &refusal);
    respond_to_refused();
    pthread_cond_signal(&server.work);
    pthread_mutex_unlock(&server.mutex);
}

/* Creates the throttle. Its queue has room for 100 ms of the work of all workers. */
static bool throttle_create(void) {
    doorman_throttle_options options = {
        .queue_cost = 100.0 * WORKERS, .concurrency = WORKERS, .initial_cost = 40};
    doorman_error error;
    if (server.off) {
        options.queue_cost = 1e15;
        options.queue_max = 1000000;
        options.max_wait = 1000000 * DOORMAN_SECOND;
    }
    if (getrandom(options.seed, sizeof options.seed, 0) != sizeof options.seed) return false;
    if (doorman_throttle_create(&server.throttle, &options, &error) == DOORMAN_OK) return true;
    fprintf(stderr, "throttled_server: %s\n", error.text);
    return false;
}

/* Makes nng call on_request for all methods and paths. Returns NULL after an error. */
static nng_http_server *http_start(void) {
    char text[LINE_MAX_BYTES];
    nng_url *url = NULL;
    nng_http_handler *handler = NULL;
    nng_http_server *http = NULL;
    snprintf(text, sizeof text, "http://%s/", server.listen);
    int status = nng_url_parse(&url, text);
    if (!status) status = nng_http_server_hold(&http, url);
    if (!status) status = nng_http_handler_alloc(&handler, "/", on_request);
    if (!status) status = nng_http_handler_set_tree(handler);
    if (!status) status = nng_http_handler_set_method(handler, NULL);
    if (!status) status = nng_http_handler_collect_body(handler, true, BODY_MAX);
    if (!status) status = nng_http_server_add_handler(http, handler);
    if (!status) status = nng_http_server_start(http);
    if (url) nng_url_free(url);
    if (!status) return http;
    fprintf(stderr, "throttled_server: %s: %s\n", text, nng_strerror(status));
    return NULL;
}

/* ---- reports to Doorman ---------------------------------------------------------------------- */

/* Opens the resource. The agent only reports, so it wants no capacity. */
static doorman_resource *doorman_open(doorman_agent **agent) {
    const char *addresses[] = {server.doorman};
    doorman_client_options options = {.addresses = addresses, .address_count = 1};
    doorman_resource_options named = {.resource_id = server.resource};
    doorman_resource *resource = NULL;
    doorman_error error = {0};
    if (doorman_agent_start(agent, &options, &error) == DOORMAN_OK &&
        doorman_resource_open(&resource, *agent, &named, &error) == DOORMAN_OK) {
        doorman_resource_set_wants(resource, 0);
        return resource;
    }
    fprintf(stderr, "throttled_server: %s\n", error.text);
    return NULL;
}

/* Reports to the agent, which adds the reports up, and sends the sum with its next request. */
static void doorman_report(doorman_resource *resource) {
    static bool told;
    doorman_resource_info info;
    doorman_overload_report report;
    doorman_resource_read(resource, &info);
    if (info.leased && !info.overload_target && !told) {
        fprintf(stderr,
                "throttled_server: reports have no effect: the template of %s has no overload\n",
                server.resource);
        told = true;
    }
    pthread_mutex_lock(&server.mutex);
    doorman_throttle_report(server.throttle, info.overload_target, &report, doorman_clock());
    pthread_mutex_unlock(&server.mutex);
    doorman_resource_report_overload(resource, &report);
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Refuses what has waited too long, also while all workers are busy. A request that arrives during
 * the pause can be due before the others, so a pause is short. */
static void keep_time(doorman_resource *resource) {
    doorman_time report_at = doorman_clock();
    while (!stopped) {
        pause_for(10 * MILLISECOND);
        doorman_time now = doorman_clock();
        pthread_mutex_lock(&server.mutex);
        doorman_throttle_update(server.throttle, now);
        respond_to_refused();
        pthread_mutex_unlock(&server.mutex);
        if (!resource || now < report_at) continue;
        doorman_report(resource);
        report_at = now + DOORMAN_SECOND;
    }
}

static void show_counters(void) {
    doorman_throttle_counters all;
    doorman_throttle_read(server.throttle, &all);
    unsigned long long refused = all.offered - all.started - all.waiting;
    fprintf(stderr, "%llu requests: %llu answered, %llu refused\n", (unsigned long long)all.offered,
            (unsigned long long)all.finished, refused);
}

/* Runs until a signal. Then the workers respond to the requests that wait, and end. */
static bool run(nng_http_server *http, doorman_resource *resource) {
    static pthread_t threads[WORKERS];
    static unsigned seeds[WORKERS];
    int count = 0;
    for (; count < WORKERS; count++) {
        seeds[count] = (unsigned)count + 1;
        if (pthread_create(&threads[count], NULL, worker_main, &seeds[count])) break;
    }
    if (count == WORKERS) {
        nng_sockaddr address = {.s_in = {.sa_port = 0}};
        nng_http_server_get_addr(http, &address);
        fprintf(stderr, "throttled_server: listens on %s, port %u\n", server.listen,
                (unsigned)ntohs(address.s_in.sa_port));
        keep_time(resource);
    }
    nng_http_server_stop(http);
    pthread_mutex_lock(&server.mutex);
    server.ends = true;
    pthread_cond_broadcast(&server.work);
    pthread_mutex_unlock(&server.mutex);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    nng_http_server_release(http);
    return count == WORKERS;
}

/* ---- the command line ------------------------------------------------------------------------ */

static int usage(void) {
    fprintf(stderr, "usage: throttled_server [--listen HOST:PORT] [--backend HOST:PORT] [--off]\n"
                    "           [--doorman ADDRESS --resource ID]\n");
    return 2;
}

static bool read_arguments(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *flag = argv[i];
        if (strcmp(flag, "--off") == 0) {
            server.off = true;
            continue;
        }
        if (++i == argc) return false;
        char url[LINE_MAX_BYTES];
        snprintf(url, sizeof url, "http://%s/", argv[i]);
        if (strcmp(flag, "--listen") == 0) {
            server.listen = argv[i];
        } else if (strcmp(flag, "--doorman") == 0) {
            server.doorman = argv[i];
        } else if (strcmp(flag, "--resource") == 0) {
            server.resource = argv[i];
        } else if (strcmp(flag, "--backend") != 0 || nng_url_parse(&server.backend, url) != 0) {
            return false;
        }
    }
    return !server.doorman == !server.resource;
}

int main(int argc, char **argv) {
    if (!read_arguments(argc, argv)) return usage();
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    doorman_agent *agent = NULL;
    doorman_resource *resource = NULL;
    nng_http_server *http = NULL;
    bool worked = throttle_create();
    if (worked && server.doorman) worked = (resource = doorman_open(&agent)) != NULL;
    if (worked) worked = (http = http_start()) != NULL && run(http, resource);
    if (worked) show_counters();
    doorman_agent_stop(agent);
    doorman_throttle_destroy(server.throttle);
    if (server.backend) nng_url_free(server.backend);
    return worked ? 0 : 1;
}
