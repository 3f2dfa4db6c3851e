/* doorman_server: the way of one message, from its text to its reply. Only the core includes this
 * file. */
#ifndef DOORMAN_SERVER_MESSAGE_H
#define DOORMAN_SERVER_MESSAGE_H

#include "registry.h"

/* Adds the HTTP address of the master, if the response says which process is the master.
 * Precondition: the lock is held. */
static void response_add_http_address(doorman_response *response, const struct service *service,
                                      char room[DOORMAN_ID_BYTES_MAX + 1]) {
    assert(server_lock_is_held(&service->lock));
    const char *address = response->is_master ? service->http_advertise : service->master_http;
    snprintf(room, DOORMAN_ID_BYTES_MAX + 1, "%s", address);
    response->http_address = room[0] && response->master_address ? room : NULL;
}

doorman_status server_finish_message(struct service *service, doorman_json_exchange *exchange,
                                     const struct peer *peer, bool was_read,
                                     doorman_time duration) {
    doorman_time started_at = doorman_clock();
    char client[DOORMAN_ID_BYTES_MAX + 1] = ""; /* a copy, because _write frees the request */
    bool is_debug = service->settings->log_level == LEVEL_DEBUG;
    if (is_debug && was_read && exchange->request.holder_id) {
        snprintf(client, sizeof client, "%s", exchange->request.holder_id);
    }
    doorman_status status = doorman_json_exchange_write(exchange, (int64_t)time(NULL));
    duration += doorman_clock() - started_at;
    const struct message_report report = {exchange, peer, was_read, status, duration, client};
    server_note_message(service, &report);
    return status;
}

/* Decides a message. Returns whether it waits. Reads the clock while it holds the lock, so that the
 * time never decreases from one call of the server object to the next. */
static bool message_decide(struct service *service, struct waiter *waiter, bool may_wait) {
    doorman_json_exchange *exchange = waiter->exchange;
    const doorman_request *request = &exchange->request;
    const struct peer peer = waiter->peer;
    bool waits = false;
    server_lock(&service->lock);
    doorman_time now = doorman_clock();
    waiter->is_decided = false;
    if (!server_pauses(service)) {
        service->sender = (struct sender){.peer = &peer, .is_server = request->is_server};
        doorman_status decided = doorman_json_exchange_decide(exchange, service->server, now);
        service->sender.peer = NULL;
        exchange->response.shared_id = service->sender.has_shared_id;
        waiter->is_decided = decided == DOORMAN_OK;
        if (decided == DOORMAN_OK) {
            EACH_PART(part, decided)(*part)->decided(service, exchange, now);
        }
        if (waiter->http_address) {
            response_add_http_address(&exchange->response, service, waiter->http_address);
        }
        bool releases = request->method == DOORMAN_RELEASE_CAPACITY;
        if (decided == DOORMAN_OK && releases) service->ended_lease_count += request->item_count;
        server_expedite_parent(service);
        waits = may_wait && decided == DOORMAN_OK && service->waits->add(service, waiter);
        if (service->waits) service->waits->collect(service);
    }
    server_unlock(&service->lock);
    return waits;
}

/* Sends a message to other nodes, which decide for all of it. No reply is written here. */
static void message_pass(struct service *service, struct waiter *waiter, struct forward_job *job,
                         doorman_time started_at) {
    const struct peer peer = waiter->peer;
    const struct message_report report = {.exchange = waiter->exchange,
                                          .peer = &peer,
                                          .was_read = true,
                                          .duration = doorman_clock() - started_at};
    server_note_message(service, &report);
    doorman_json_exchange_uninit(waiter->exchange);
    service->forwards->begin(service, job);
}

bool server_handle_message(struct service *service, struct waiter *waiter, const char *text,
                           size_t bytes) {
    doorman_time started_at = doorman_clock();
    doorman_json_exchange *exchange = waiter->exchange;
    const struct waiting_calls *waits = service->waits;
    const struct forward_calls *forwards = service->forwards;
    bool shared = waits && waits->is_likely(waiter, text, bytes);
    server_shares_memory = shared;
    bool was_read = doorman_json_exchange_read(exchange, waiter->method, text, bytes) == DOORMAN_OK;
    server_shares_memory = false;
    bool may_wait = waits && was_read && waits->prepare(service, waiter, text, bytes, &shared);
    struct forward_job *job = NULL;
    if (forwards && was_read && !may_wait) {
        job = forwards->prepare_whole(service, waiter, text, bytes);
    }
    if (job) {
        server_shares_memory = shared;
        message_pass(service, waiter, job, started_at);
        server_shares_memory = false;
        return false;
    }
    const struct peer peer = waiter->peer;
    const bool is_waiting = message_decide(service, waiter, may_wait);
    if (waits) waits->finish(service);
    if (is_waiting) return false;
    if (forwards) job = forwards->prepare(service, waiter, text, bytes);
    doorman_time duration = doorman_clock() - started_at;
    server_shares_memory = shared;
    waiter->status = server_finish_message(service, exchange, &peer, was_read, duration);
    server_shares_memory = false;
    if (may_wait) waits->forget(waiter);
    if (job) forwards->begin(service, job);
    return !job;
}

#endif
