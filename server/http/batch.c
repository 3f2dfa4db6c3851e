/* doorman_server, part HTTP: messages of another node that travel as one (N4). server/link/ sends
 * them to the path /v1/batch. This file changes state only through server_handle_message.
 *
 * The path needs no token, because each message has the mark of a node, which no client can make.
 * If one message lacks the mark, none is decided. The field Doorman-To has the address of the
 * process that the sender means, because a port may belong to another process by now. A request
 * without a body only asks whether this process is the right one. */
#include "http.h"

/* Returns whether the sender means this process and may ask it. If not, writes an error. */
static bool batch_check(struct service *service, const struct http_request *request,
                        const struct text_span *messages, size_t count,
                        struct http_response *response) {
    char to[DOORMAN_ID_BYTES_MAX + 1];
    if (!service->settings->shards) {
        server_http_response_set_error(response, 404, "NOT_FOUND",
                                       "this server was started without --shards");
        return false;
    }
    if (server_http_field_read(request->fields, "Doorman-To", to, sizeof to) != 1 ||
        strcmp(to, service->advertise) != 0) {
        server_http_response_set_error(response, 421, "NOT_FOUND",
                                       "Doorman-To is not the address of this process: only nodes "
                                       "of its cluster use this path");
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (service->forwards->is_signed(service, messages[i].text, messages[i].bytes)) continue;
        server_http_response_set_error(response, 403, "PERMISSION_DENIED",
                                       "a message does not have the mark of a node");
        return false;
    }
    return true;
}

/* Decides a message. Returns the reply of the exchange, which is empty if memory has run out. */
static const doorman_buffer *batch_decide(struct service *service,
                                          const struct http_request *request,
                                          struct text_span message,
                                          doorman_json_exchange *exchange) {
    struct waiter waiter = {.exchange = exchange, .peer = {.text = request->peer}};
    const bool is_decided = server_handle_message(service, &waiter, message.text, message.bytes);
    (void)is_decided;
    assert(is_decided); /* without `prepare` it does not wait */
    return &exchange->reply;
}

/* Decides several messages, and writes the answers. Returns NULL if memory has run out, or if the
 * answers are longer than DOORMAN_MESSAGE_BYTES_MAX, because the node that asks may refuse them. */
static nng_msg *batch_decide_all(struct service *service, const struct http_request *request,
                                 const struct text_span *messages, size_t count,
                                 doorman_json_exchange *exchange) {
    size_t bytes[BATCH_MAX];
    nng_msg *answer = service->batches->open();
    bool made = answer != NULL;
    for (size_t i = 0; i < count && made; i++) {
        const doorman_buffer *reply = batch_decide(service, request, messages[i], exchange);
        bytes[i] = reply->bytes;
        const bool fits = nng_msg_len(answer) + reply->bytes < DOORMAN_MESSAGE_BYTES_MAX;
        made = fits && reply->bytes > 0 && nng_msg_append(answer, reply->text, reply->bytes) == 0 &&
               nng_msg_append(answer, ",", 1) == 0;
    }
    if (made && service->batches->close(answer, bytes, count)) return answer;
    if (answer) nng_msg_free(answer);
    return NULL;
}

static void batch_handle(struct service *service, const struct http_request *request,
                         struct http_response *response) {
    struct text_span messages[BATCH_MAX] = {{request->body, request->body_bytes}};
    doorman_json_exchange exchange = {.reply = {.text = NULL}};
    const size_t several = service->batches->split(request->body, request->body_bytes, messages);
    const size_t count = several ? several : request->body_bytes > 0;
    if (!batch_check(service, request, messages, count, response)) return;
    response->type = "application/json";
    if (several) {
        nng_msg *answer = batch_decide_all(service, request, messages, count, &exchange);
        response->text.failed = !answer;
        if (answer)
            server_text_add_bytes(&response->text, nng_msg_body(answer), nng_msg_len(answer));
        if (answer) nng_msg_free(answer);
    } else if (count) {
        const doorman_buffer *reply = batch_decide(service, request, messages[0], &exchange);
        response->text.failed = reply->bytes == 0;
        server_text_add_bytes(&response->text, reply->text, reply->bytes);
    }
    doorman_json_exchange_uninit(&exchange);
}

static const struct http_route batch_routes[] = {{"/v1/batch", .verbs = VERB_POST, .is_open = true,
                                                  .is_immediate = true, .handle = batch_handle},
                                                 {.path = NULL}};

const struct server_part server_part_batch = {.routes = batch_routes};
