/* Runs a harness with the contents of files, one after the other. It prints the name of each file
 * first, so after a crash the last name is that of the file that caused it. */
#include "fuzz.h"

static bool replay(const char *path) {
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t bytes = 0, capacity = 0;
    if (!file) return false;
    do {
        capacity = capacity * 2 + 4096;
        data = (uint8_t *)realloc(data, capacity);
        must(data != NULL);
        bytes += fread(data + bytes, 1, capacity - bytes, file);
    } while (bytes == capacity);
    fclose(file);
    /* A copy of exactly this size lets a sanitizer detect a read behind the end. */
    uint8_t *exact = (uint8_t *)malloc(bytes + !bytes);
    must(exact != NULL);
    memcpy(exact, data, bytes);
    free(data);
    (void)LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
    return true;
}

int main(int argc, char **argv) {
    int wrong = argc < 2;
    if (wrong) fprintf(stderr, "usage: %s FILE...\n", argv[0]);
    for (int i = 1; i < argc && !wrong; i++) {
        printf("%s\n", argv[i]);
        fflush(stdout);
        wrong = !replay(argv[i]);
        if (wrong) perror(argv[i]);
    }
    return wrong;
}
