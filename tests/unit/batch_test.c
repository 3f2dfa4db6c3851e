/* N4: other nodes send several messages as one over HTTP. Tests how long the answers may be. */
#define _GNU_SOURCE
#include "../../server/http/batch.c"
#include "../../server/link/batch.c"

#include "../test.h"

static size_t reply_bytes; /* of each answer */

/* ---- in place of other files ---------------------------------------------------------------- */

bool server_handle_message(struct service *service, struct waiter *waiter, const char *text,
                           size_t bytes) {
    doorman_buffer *reply = &waiter->exchange->reply;
    (void)service;
    assert_true(bytes == 1 && *text == 'm');
    doorman_buffer_uninit(reply);
    reply->text = (char *)malloc(reply_bytes);
    assert_non_null(reply->text);
    memset(reply->text, 'r', reply_bytes);
    reply->bytes = reply->capacity = reply_bytes;
    return true;
}

int server_http_field_read(const char *fields, const char *name, char *out, size_t room) {
    (void)fields, (void)name;
    snprintf(out, room, "tcp://here:1");
    return 1;
}

void server_http_response_set_error(struct http_response *response, int code, const char *name,
                                    const char *message) {
    (void)response, (void)name;
    fail_msg("%d: %s", code, message);
}

void server_text_add_bytes(struct text *text, const char *bytes, size_t count) {
    assert_null(text->buffer.text); /* the whole answer is one piece */
    text->buffer.text = (char *)malloc(count);
    assert_non_null(text->buffer.text);
    memcpy(text->buffer.text, bytes, count);
    text->buffer.bytes = text->buffer.capacity = count;
}

static bool is_signed(struct service *service, const char *text, size_t bytes) {
    (void)service, (void)text, (void)bytes;
    return true;
}

/* ---- stories -------------------------------------------------------------------------------- */

/* Sends a batch of BATCH_MAX messages. Returns whether their answers, of `bytes` each, were
 * sent. */
static bool answers_fit(size_t bytes) {
    static const struct batch_calls batches = {server_batch_split, server_batch_open,
                                               server_batch_close};
    static const struct forward_calls forwards = {.is_signed = is_signed};
    const struct settings settings = {.shards = "doorman/shards"};
    struct service *service = (struct service *)calloc(1, sizeof *service);
    struct http_response response = {.code = 200};
    size_t ones[BATCH_MAX];
    nng_msg *message = server_batch_open();
    assert_true(service && message);
    for (size_t i = 0; i < BATCH_MAX; i++) {
        ones[i] = 1;
        assert_int_equal(nng_msg_append(message, "m,", 2), 0);
    }
    assert_true(server_batch_close(message, ones, BATCH_MAX));
    reply_bytes = bytes;
    service->settings = &settings;
    service->batches = &batches;
    service->forwards = &forwards;
    service->advertise = "tcp://here:1";
    const struct http_request request = {.body = (const char *)nng_msg_body(message),
                                         .body_bytes = nng_msg_len(message)};
    batch_handle(service, &request, &response);
    const bool fit = !response.text.failed && response.text.buffer.bytes > BATCH_MAX * bytes;
    doorman_buffer_uninit(&response.text.buffer);
    nng_msg_free(message);
    free(service);
    return fit;
}

/* The node that asks reads no more bytes than one message may have. */
TEST(answers_that_are_longer_together_than_a_message_are_not_sent) {
    assert_true(answers_fit(1));
    assert_true(answers_fit(DOORMAN_MESSAGE_BYTES_MAX / BATCH_MAX - 100));
    assert_false(answers_fit(DOORMAN_MESSAGE_BYTES_MAX / BATCH_MAX + 1));
}
