/* Writes the events of Doorman servers to a file, one JSON object on each line, for a program that
 * ships logs: Logstash (codec json_lines), Vector, Fluent Bit.
 *
 *     events_to_file FILE URL [URL...]      for example: events.json tcp://127.0.0.1:15060
 *
 * Give the addresses of all processes of a node, because only its master has events. nng connects
 * again by itself.
 *
 * Rotation: the file is opened again on SIGHUP, and also within a second after it was renamed or
 * removed. So logrotate needs neither `copytruncate` nor `postrotate`.
 *
 * Losses: if the numbers of a stream have a gap, a line says how many events are missing:
 *
 *     {"event":"lost","lost":12,"server":"10.0.0.1:15000","stream":"10e8ba383bf2ba21"}
 *
 * A line that the disk does not take counts as lost too. SIGTERM and SIGINT end the program after
 * the events that have arrived. */
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <cjson/cJSON.h>
#include <nng/nng.h>
#include <nng/protocol/pubsub0/sub.h>

#define STREAM_MAX 64
#define NAME_BYTES 300
#define WAIT_MS 200
#define QUEUE_EVENTS 8192

/* What is known of a process that publishes. */
struct stream {
    char server[NAME_BYTES], name[32];
    double seq; /* of the last event that is in the file */
};

struct writer {
    const char *path;
    FILE *file; /* NULL: it cannot be opened now */
    time_t looked_at;
    bool is_broken; /* the last line could not be written, and an error was printed */
    struct stream streams[STREAM_MAX];
    size_t stream_count;
};

static volatile sig_atomic_t stops, reopens;

static void on_signal(int number) {
    if (number == SIGHUP) {
        reopens = 1;
    } else {
        stops = 1;
    }
}

/* ---- the file ------------------------------------------------------------------------------- */

static void file_open(struct writer *writer) {
    if (writer->file) fclose(writer->file);
    writer->file = fopen(writer->path, "a");
    if (!writer->file && !writer->is_broken) perror(writer->path);
    writer->is_broken = !writer->file;
}

/* Returns whether the path still leads to the file that is open. */
static bool file_is_there(const struct writer *writer) {
    struct stat path, file;
    return writer->file && stat(writer->path, &path) == 0 &&
           fstat(fileno(writer->file), &file) == 0 && path.st_ino == file.st_ino &&
           path.st_dev == file.st_dev;
}

/* Opens the file again if that is due. */
static void file_look(struct writer *writer) {
    const time_t now = time(NULL);
    if (!reopens && now == writer->looked_at) return;
    writer->looked_at = now;
    if (reopens || !file_is_there(writer)) file_open(writer);
    reopens = 0;
}

/* Writes a line. Returns false if the disk does not take it. */
static bool line_write(struct writer *writer, const char *line) {
    bool done =
        writer->file && fprintf(writer->file, "%s\n", line) >= 0 && fflush(writer->file) == 0;
    if (!done && !writer->is_broken) perror(writer->path);
    if (writer->file) clearerr(writer->file);
    writer->is_broken = !done;
    return done;
}

/* ---- events --------------------------------------------------------------------------------- */

static const char *text_of(const cJSON *json, const char *name) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, name));
    return text ? text : "";
}

/* Returns the stream of an event. A new one begins with this event. If there are too many, it takes
 * the place of the first one. */
static struct stream *stream_find(struct writer *writer, const cJSON *json, double seq) {
    const char *server = text_of(json, "server"), *name = text_of(json, "stream");
    struct stream *found = NULL;
    for (size_t i = 0; i < writer->stream_count && !found; i++) {
        if (strcmp(writer->streams[i].server, server) == 0) found = &writer->streams[i];
    }
    if (found && strcmp(found->name, name) == 0) return found;
    if (!found && writer->stream_count < STREAM_MAX) {
        found = &writer->streams[writer->stream_count++];
    }
    if (!found) found = &writer->streams[0];
    *found = (struct stream){.seq = seq - 1};
    snprintf(found->server, sizeof found->server, "%s", server);
    snprintf(found->name, sizeof found->name, "%s", name);
    return found;
}

/* Writes how many events are missing before the one with the number `seq`. */
static bool gap_write(struct writer *writer, const struct stream *stream, double seq) {
    if (seq <= stream->seq + 1) return true;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "event", "lost");
    cJSON_AddNumberToObject(json, "lost", seq - stream->seq - 1);
    cJSON_AddStringToObject(json, "server", stream->server);
    cJSON_AddStringToObject(json, "stream", stream->name);
    char *line = cJSON_PrintUnformatted(json);
    bool done = line && line_write(writer, line);
    cJSON_free(line);
    cJSON_Delete(json);
    return done;
}

/* Writes an event: a topic, a space, JSON and a line feed. */
static void event_write(struct writer *writer, char *line) {
    char *object = strchr(line, ' ');
    cJSON *json = object ? cJSON_Parse(object) : NULL;
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(json, "seq");
    if (cJSON_IsNumber(number)) {
        object++;
        object[strcspn(object, "\n")] = 0;
        struct stream *stream = stream_find(writer, json, number->valuedouble);
        /* What is not written stays missing, and the next gap counts it. */
        if (gap_write(writer, stream, number->valuedouble)) {
            stream->seq = number->valuedouble - 1;
            if (line_write(writer, object)) stream->seq = number->valuedouble;
        }
    }
    cJSON_Delete(json);
}

/* Returns a line as a text that the caller frees, or NULL if none has come. */
static char *line_receive(nng_socket socket) {
    nng_msg *message = NULL;
    if (nng_recvmsg(socket, &message, 0) != 0) return NULL;
    const size_t bytes = nng_msg_len(message);
    char *line = (char *)malloc(bytes + 1);
    if (line) {
        memcpy(line, nng_msg_body(message), bytes);
        line[bytes] = 0;
    }
    nng_msg_free(message);
    return line;
}

/* Subscribes to all events of all addresses. Returns an error of nng. */
static int subscribe(nng_socket *socket, char *const urls[]) {
    int error = nng_sub0_open(socket);
    if (error == 0) error = nng_socket_set(*socket, NNG_OPT_SUB_SUBSCRIBE, "", 0);
    if (error == 0) error = nng_socket_set_int(*socket, NNG_OPT_RECVBUF, QUEUE_EVENTS);
    if (error == 0) error = nng_socket_set_ms(*socket, NNG_OPT_RECVTIMEO, WAIT_MS);
    if (error == 0) error = nng_socket_set_ms(*socket, NNG_OPT_RECONNMINT, 100);
    if (error == 0) error = nng_socket_set_ms(*socket, NNG_OPT_RECONNMAXT, 5000);
    for (; error == 0 && *urls; urls++) error = nng_dial(*socket, *urls, NULL, NNG_FLAG_NONBLOCK);
    return error;
}

int main(int count, char *arguments[]) {
    static struct writer writer;
    const struct sigaction action = {.sa_handler = on_signal};
    nng_socket socket = NNG_SOCKET_INITIALIZER;
    int after_stop = 0;
    if (count < 3) {
        fprintf(stderr, "Usage: %s FILE URL [URL...]\n", arguments[0]);
        return 2;
    }
    writer.path = arguments[1];
    file_open(&writer);
    if (!writer.file) return 1;
    sigaction(SIGHUP, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    int error = subscribe(&socket, arguments + 2);
    if (error != 0) fprintf(stderr, "cannot subscribe: %s\n", nng_strerror(error));
    while (error == 0) {
        char *line = line_receive(socket);
        file_look(&writer);
        if (line) event_write(&writer, line);
        free(line);
        if (stops && (!line || ++after_stop > QUEUE_EVENTS)) break;
    }
    nng_close(socket);
    if (writer.file) fclose(writer.file);
    return error == 0 ? 0 : 1;
}
