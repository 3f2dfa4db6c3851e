/* doorman_server: the host in an address, and whether other machines can reach it. The functions
 * use only their arguments. */
#include "host.h"

#include <strings.h>

void server_host_read(const char *address, char *out, size_t room) {
    const char *scheme = strstr(address, "://");
    const char *host = scheme ? scheme + 3 : address;
    size_t bytes = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/");
    if (bytes >= room) bytes = room - 1;
    memcpy(out, host, bytes);
    out[bytes] = 0;
}

bool server_host_is_numeric(const char *host) {
    return *host == '[' || (*host && strspn(host, "0123456789.") == strlen(host));
}

bool server_host_is_wildcard(const char *host) {
    return !*host || strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 ||
           strcmp(host, "[::]") == 0;
}

bool server_host_is_http_address(const char *text) {
    size_t scheme = strncmp(text, "http://", 7) == 0    ? 7
                    : strncmp(text, "https://", 8) == 0 ? 8
                                                        : 0;
    const char *host = text + scheme;
    size_t bytes = strspn(host, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                "-._~:[]");
    return scheme > 0 && *host && *host != ':' && !host[bytes] &&
           scheme + bytes <= DOORMAN_ID_BYTES_MAX;
}

bool server_host_is_loopback(const char *host) {
    bool numeric = server_host_is_numeric(host) && strncmp(host, "127.", 4) == 0;
    return numeric || strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0;
}
