/* doorman_server: batches. A batch is one text that has several messages of one process. One
 * text has all of their answers. server/link/ makes batches, and workers and server/http/ answer
 * them. server.h includes this file. */
#ifndef DOORMAN_SERVER_BATCHES_H
#define DOORMAN_SERVER_BATCHES_H

#define BATCH_MAX 16 /* messages */

/* A piece of a text. */
struct text_span {
    const char *text;
    size_t bytes;
};

/* The functions for batches. service->batches has them if a part of the server sends batches. */
struct batch_calls {
    /* Finds the messages of a batch.
     *   out       room for BATCH_MAX
     *   returns   how many there are; 0: the text is no batch */
    size_t (*split)(const char *text, size_t bytes, struct text_span *out);

    /* Begins a batch. Append messages to it, with a comma after each. Returns NULL if memory has
     * run out. */
    nng_msg *(*open)(void);

    /* Ends a batch. Returns false if memory has run out.
     *   bytes   of each message */
    bool (*close)(nng_msg *text, const size_t *bytes, size_t count);
};

#endif
