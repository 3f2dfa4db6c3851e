/* doorman_server, part LINK: several messages in one. Only link.c and batch.c include this file.
 *
 * Messages travel as {"batch":{"bytes":[LENGTH,...],"messages":[MESSAGE,...]}}, and so do their
 * answers. Each message is checked and decided as if it came alone, and its answer has the same
 * index. struct batch_calls says what the functions do. */
#ifndef DOORMAN_SERVER_BATCH_H
#define DOORMAN_SERVER_BATCH_H

#include "../server.h"

/* nng_msg_insert of nng 1.5.2 can write beyond the memory of a message. So server_batch_open leaves
 * room for the head, and server_batch_close writes it there. */
nng_msg *server_batch_open(void);
bool server_batch_close(nng_msg *text, const size_t *bytes, size_t count);
size_t server_batch_split(const char *text, size_t bytes, struct text_span *out);

#endif
