/* doorman_server, part LINK: several messages in one. The functions change only their arguments.
 *
 * The lengths come first, so that a process can split a batch without parsing the messages. */
#include "batch.h"

static const char batch_start[] = "{\"batch\":{\"bytes\":[";
static const char batch_between[] = "],\"messages\":[";
static const char batch_end[] = "]}}";

#define LENGTH_BYTES 21 /* of a number, with its comma */
#define BATCH_HEAD_BYTES (sizeof batch_start + sizeof batch_between + BATCH_MAX * LENGTH_BYTES)

nng_msg *server_batch_open(void) {
    nng_msg *text = NULL;
    return nng_msg_alloc(&text, BATCH_HEAD_BYTES) == 0 ? text : NULL;
}

bool server_batch_close(nng_msg *text, const size_t *bytes, size_t count) {
    char head[BATCH_HEAD_BYTES];
    size_t used = (size_t)snprintf(head, sizeof head, "%s", batch_start);
    assert(count > 0 && count <= BATCH_MAX);
    for (size_t i = 0; i < count; i++) {
        used += (size_t)snprintf(head + used, sizeof head - used, "%s%zu", i ? "," : "", bytes[i]);
    }
    used += (size_t)snprintf(head + used, sizeof head - used, "%s", batch_between);
    const bool made = nng_msg_chop(text, 1) == 0 && /* the last comma */
                      nng_msg_append(text, batch_end, sizeof batch_end - 1) == 0 &&
                      nng_msg_trim(text, BATCH_HEAD_BYTES - used) == 0;
    if (made) memcpy(nng_msg_body(text), head, used);
    return made;
}

/* Moves past a word. Returns false if it is not there. */
static bool span_skip(struct text_span *rest, const char *word, size_t bytes) {
    if (rest->bytes < bytes || memcmp(rest->text, word, bytes) != 0) return false;
    rest->text += bytes;
    rest->bytes -= bytes;
    return true;
}

/* Moves past a number. Returns false if there is none. */
static bool span_read(struct text_span *rest, size_t *out) {
    size_t digits = 0;
    *out = 0;
    for (; digits < rest->bytes && digits < 10; digits++) {
        const char digit = rest->text[digits];
        if (digit < '0' || digit > '9') break;
        *out = *out * 10 + (size_t)(digit - '0');
    }
    rest->text += digits;
    rest->bytes -= digits;
    return digits > 0;
}

size_t server_batch_split(const char *text, size_t bytes, struct text_span *out) {
    struct text_span rest = {text, bytes};
    size_t count = 0;
    if (!span_skip(&rest, batch_start, sizeof batch_start - 1)) return 0;
    do {
        if (count == BATCH_MAX || !span_read(&rest, &out[count].bytes)) return 0;
        count++;
    } while (span_skip(&rest, ",", 1));
    if (!span_skip(&rest, batch_between, sizeof batch_between - 1)) return 0;
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && !span_skip(&rest, ",", 1)) return 0;
        if (out[i].bytes > rest.bytes) return 0;
        out[i].text = rest.text;
        rest.text += out[i].bytes;
        rest.bytes -= out[i].bytes;
    }
    const bool is_whole = span_skip(&rest, batch_end, sizeof batch_end - 1) && rest.bytes == 0;
    return is_whole ? count : 0;
}

static const struct batch_calls batch_functions = {server_batch_split, server_batch_open,
                                                   server_batch_close};

const struct server_part server_part_link = {.batches = &batch_functions};
