#include "password.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const char *server_password_read(const char *path, char password[PASSWORD_MAX]) {
    FILE *file = fopen(path, "rb");
    const char *why = file ? NULL : strerror(errno);
    password[0] = 0;
    if (file && !fgets(password, PASSWORD_MAX, file)) why = "is empty, or cannot be read";
    size_t bytes = strcspn(password, "\r\n");
    if (!why && bytes == 0) why = "its first line is empty";
    if (!why && bytes == PASSWORD_MAX - 1) why = "its first line is too long";
    password[bytes] = 0;
    if (file) fclose(file);
    return why;
}
