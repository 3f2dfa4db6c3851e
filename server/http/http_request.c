/* doorman_server, part HTTP: requests. This file reads the head of a request, checks whether the
 * request is allowed, and reads the chunks of a body. It changes its arguments, counts requests
 * without a valid token or role, and logs the names of tokens.
 *
 * The server checks a request as soon as its head is complete, before its body arrives (V3).
 *
 *     check      rule                                                      status of a refusal
 *     syntax     RFC 9112. A field has a valid name, then a colon. Its     400
 *                value has no control character except the tab.
 *     escapes    Each % of the target stands before two hexadecimal        400
 *                digits.
 *     one Host   HTTP/1.1 needs exactly one Host, HTTP/1.0 at most one     400
 *                (RFC 9112, 3.2).
 *     Host       It must be known, except for a GET that needs a token     403
 *                and charges for nothing, and for paths that need none.
 *                Otherwise a web page could use a DNS name of its own to
 *                reach a server on the machine of its reader.
 *     page       A path that charges for permits refuses requests of web   403
 *                pages. A page can send a GET to any address without
 *                reading the response, so it could use up the units of
 *                other keys.
 *     form       A path that takes HTML forms refuses forms from pages of  403
 *                other servers, because a browser adds the token of its
 *                user to each form that any page sends here.
 *     token      It must be in the file of tokens, if there is one.        401
 *     path       It must exist, and accept the verb.                       404, 405
 *     type       A body must be JSON, which HTML forms cannot send, or a   415
 *                form if the path takes forms. It must be in UTF-8, and
 *                have no Content-Encoding other than identity.
 *     role       The token must have the role that the path needs for the  403
 *                verb.
 *     body       Its end must be clear: see request_check_framing.         400, 411, 501
 *     size       The body has at most --max-message bytes, and at most     413
 *                HTTP_OPEN_BODY_MAX on a path that needs no token.
 *     Expect     The only known value is 100-continue.                     417
 *
 * A target can be a path, or a whole URL such as http://HOST/path. With a URL, the host of the URL
 * counts instead of the field Host (RFC 9112, 3.2.2). */
#include "http.h"
#include "../util/host.h"

#include <strings.h>

/* The characters of a token (RFC 9110, 5.6.2) and of a host, besides letters and digits. */
#define TOKEN_MARKS "!#$%&'*+-.^_`|~"
#define HOST_MARKS "!$%&'()*+,-.;=_~"

/* ---- heads ---------------------------------------------------------------------------------- */

/* Returns whether a character may be in the value of a field. */
static bool is_text(char character) {
    unsigned char code = (unsigned char)character;
    return code == '\t' || (code >= ' ' && code != 0x7f);
}

/* Returns how many of the first characters are letters, digits or in `marks`. strspn is slower for
 * the short texts of a head, because it first makes a table of the set. */
static size_t span_of(const char *text, const char *marks) {
    const char *at = text;
    for (; *at; at++) {
        const char letter = (char)(*at | ('a' - 'A'));
        const bool is_plain = (letter >= 'a' && letter <= 'z') || (*at >= '0' && *at <= '9');
        if (!is_plain && !strchr(marks, *at)) break;
    }
    return (size_t)(at - text);
}

/* Returns the length of a line without its CR LF. */
static size_t line_bytes(const char *line) {
    const char *end = strstr(line, "\r\n");
    return end ? (size_t)(end - line) : strlen(line);
}

/* Returns the line after a line; "" after the last one. */
static const char *line_next(const char *line) {
    line += line_bytes(line);
    return *line ? line + 2 : line;
}

int server_http_field_read(const char *fields, const char *name, char *out, size_t room) {
    size_t name_bytes = strlen(name);
    int count = 0;
    out[0] = 0;
    for (const char *line = fields; *line; line = line_next(line)) {
        if (strncasecmp(line, name, name_bytes) != 0 || line[name_bytes] != ':') continue;
        const char *value = line + name_bytes + 1, *end = line + line_bytes(line);
        value += strspn(value, " \t");
        while (end > value && (end[-1] == ' ' || end[-1] == '\t')) end--;
        size_t bytes = end > value ? (size_t)(end - value) : 0;
        if (count++ == 0 && bytes < room) {
            memcpy(out, value, bytes);
            out[bytes] = 0;
        }
        if (bytes >= room) count = 2;
    }
    return count;
}

/* Returns whether all fields are valid. A space before the colon, and a line that continues the
 * line before it, are invalid, because a proxy could read other fields than this server. */
static bool fields_are_valid(const char *fields) {
    bool valid = true;
    for (const char *line = fields; *line && valid; line = line_next(line)) {
        size_t name_bytes = span_of(line, TOKEN_MARKS), bytes = line_bytes(line);
        valid = name_bytes > 0 && line[name_bytes] == ':';
        for (size_t i = name_bytes; i < bytes && valid; i++) valid = is_text(line[i]);
    }
    return valid;
}

/* Returns whether text is "HOST" or "HOST:PORT". A user name before the host is not valid. */
static bool authority_is_valid(const char *text) {
    size_t host_bytes = span_of(text, HOST_MARKS);
    if (*text == '[') {
        host_bytes = 1 + span_of(text + 1, HOST_MARKS ":");
        if (text[host_bytes] != ']') return false;
        host_bytes++;
    }
    const char *port = text + host_bytes;
    return host_bytes > 0 &&
           (!*port || (*port == ':' && !port[1 + strspn(port + 1, "0123456789")]));
}

/* Returns how many bytes of a target are the scheme and "://". Returns 0 without a known scheme. */
static size_t scheme_bytes(const char *target) {
    if (strncasecmp(target, "http://", 7) == 0) return 7;
    return strncasecmp(target, "https://", 8) == 0 ? 8 : 0;
}

/* Returns whether each % stands before two hexadecimal digits (RFC 3986, 2.1). A client that has
 * forgotten to escape a % would otherwise use another key than it means. */
static bool escapes_are_valid(const char *target) {
    for (const char *at = strchr(target, '%'); at; at = strchr(at + 1, '%')) {
        if (server_hex_value(at[1]) < 0 || server_hex_value(at[2]) < 0) return false;
    }
    return true;
}

/* Splits a target in place. The target is "/path?query", or "http://HOST/path?query". Returns false
 * if the target is invalid. */
static bool target_read(struct http_request *request, char *target) {
    size_t scheme = scheme_bytes(target), bytes = strcspn(target + scheme, "/?");
    char *path = target + scheme;
    if (scheme) {
        snprintf(request->authority, sizeof request->authority, "%.*s", (int)bytes, path);
        if (bytes >= sizeof request->authority || !authority_is_valid(request->authority)) {
            return false;
        }
        path += bytes;
    } else if (*path != '/') {
        return false;
    }
    char *query = strchr(path, '?');
    if (query) *query++ = 0;
    request->path = *path ? path : "/";
    request->query = query ? query : "";
    return true;
}

#define HEAD_INVALID "this is not a valid HTTP/1.1 request"

/* Splits the first line of the head, "VERB TARGET HTTP/1.1", in place. Returns NULL, or why the
 * line is invalid. */
static const char *first_line_read(struct http_request *request, char *line) {
    char *target = strchr(line, ' ');
    char *version = target ? strchr(target + 1, ' ') : NULL;
    if (!version) return HEAD_INVALID;
    *target++ = 0;
    *version++ = 0;
    request->verb = line;
    request->is_old = strcmp(version, "HTTP/1.0") == 0;
    bool known = strncmp(version, "HTTP/1.", 7) == 0 && strspn(version + 7, "0123456789") == 1;
    bool valid = *line && !line[span_of(line, TOKEN_MARKS)] && known && !version[8];
    if (valid && !escapes_are_valid(target)) {
        return "the target has a % that does not stand before two hexadecimal digits: send %25";
    }
    return valid && target_read(request, target) ? NULL : HEAD_INVALID;
}

/* Reads Content-Length and Transfer-Encoding. Sets request->length to SIZE_MAX if the length of the
 * body is not known. */
static void request_read_length(struct http_request *request) {
    char value[32], coding[32];
    int count = server_http_field_read(request->fields, "Content-Length", value, sizeof value);
    size_t digits = strspn(value, "0123456789");
    bool valid = count == 1 && digits > 0 && digits <= 18 && !value[digits];
    request->has_length = count > 0;
    request->coding_count =
        server_http_field_read(request->fields, "Transfer-Encoding", coding, sizeof coding);
    request->is_chunked = request->coding_count == 1 && strcasecmp(coding, "chunked") == 0;
    request->length = valid ? (size_t)strtoull(value, NULL, 10) : count ? SIZE_MAX : 0;
    if (request->coding_count > 0) request->length = SIZE_MAX;
}

size_t server_http_empty_lines(const char *in, size_t bytes) {
    size_t count = 0;
    while (bytes - count >= 2 && in[count] == '\r' && in[count + 1] == '\n') count += 2;
    return count;
}

const char *server_http_request_read(struct http_request *request, char *head, size_t bytes) {
    char value[64], host[256], *end = strstr(head, "\r\n");
    if (strlen(head) != bytes || !end) return HEAD_INVALID;
    *end = 0;
    request->fields = end + 2;
    const char *wrong = first_line_read(request, head);
    if (wrong) return wrong;
    if (!fields_are_valid(request->fields)) return HEAD_INVALID;
    int hosts = server_http_field_read(request->fields, "Host", host, sizeof host);
    if (hosts == 0 && !request->is_old) return "the Host is missing, which HTTP/1.1 needs";
    if (hosts > 1) return "the Host occurs twice, or is longer than 255 bytes";
    request_read_length(request);
    server_http_field_read(request->fields, "Connection", value, sizeof value);
    request->is_last = request->is_old || strcasestr(value, "close");
    request->is_head = strcmp(request->verb, "HEAD") == 0;
    return NULL;
}

/* ---- checks --------------------------------------------------------------------------------- */

/* Returns whether an address has this host. */
static bool host_is_of(const char *host, const char *address) {
    char other[256];
    server_host_read(address, other, sizeof other);
    return !server_host_is_wildcard(other) && strcasecmp(host, other) == 0;
}

/* Returns whether a host is known. Known hosts are loopback, and the hosts of --http,
 * --http-advertise and --advertise. If HTTP listens on all addresses, every IP address is known
 * too. */
static bool host_known(const struct service *service, const char *given) {
    char host[256], listening[256];
    server_host_read(given, host, sizeof host);
    server_host_read(server_http_address(service), listening, sizeof listening);
    return server_host_is_loopback(host) || strcasecmp(host, listening) == 0 ||
           host_is_of(host, service->http_advertise) || host_is_of(host, service->advertise) ||
           (server_host_is_wildcard(listening) && server_host_is_numeric(host));
}

/* Returns whether the host that counts is known. This is the host of the target, or else the field
 * Host, which the head has at most once. */
static bool request_host_known(const struct service *service, const struct http_request *request) {
    char host[256];
    if (request->authority[0]) return host_known(service, request->authority);
    server_http_field_read(request->fields, "Host", host, sizeof host);
    return authority_is_valid(host) && host_known(service, host);
}

static bool request_find_token(struct tokens *tokens, const char *fields,
                               struct token_identity *out) {
    char value[HTTP_AUTHORIZATION_MAX];
    return server_http_field_read(fields, "Authorization", value, sizeof value) == 1 &&
           server_authorization_find(tokens, value, out);
}

const char *const server_message_names[MESSAGE_KIND_COUNT] = {"discovery",
                                                              "get_capacity",
                                                              "get_server_capacity",
                                                              "release_capacity",
                                                              "report_overload",
                                                              "acquire",
                                                              "report",
                                                              "inspect",
                                                              "reset",
                                                              "renew",
                                                              "release",
                                                              "transfer",
                                                              "seize",
                                                              "settle",
                                                              "unknown"};

static bool route_matches(const struct http_route *route, const char *path) {
    if (!route->has_rest) return strcmp(route->path, path) == 0;
    const size_t bytes = strlen(route->path);
    return strncmp(route->path, path, bytes) == 0 && path[bytes];
}

/* Returns whether the path accepts messages of the protocol. Such a path is /v1, or /v1/ and the
 * name of a method. */
static bool path_is_method(const char *path) {
    bool found = strcmp(path, "/v1") == 0;
    for (int i = 0; strncmp(path, "/v1/", 4) == 0 && i < MESSAGE_UNKNOWN; i++) {
        found = found || strcmp(path + 4, server_message_names[i]) == 0;
    }
    return found;
}

/* Returns whether the body has the type `wanted`, and no charset other than UTF-8. JSON has no
 * other charset (RFC 8259, 8.1). */
static bool type_is(const char *fields, const char *wanted) {
    char type[128];
    if (server_http_field_read(fields, "Content-Type", type, sizeof type) != 1) return false;
    const char *charset = strcasestr(type, "charset=");
    if (charset) charset += strlen("charset=");
    if (charset && *charset == '"') charset++;
    if (charset && (strncasecmp(charset, "utf-8", 5) != 0 || !strchr("\"; \t", charset[5]))) {
        return false;
    }
    type[strcspn(type, "; \t")] = 0;
    return strcasecmp(type, wanted) == 0;
}

/* Returns whether the path takes units of permits, and is no method of the protocol. */
static bool request_charges(const struct http_request *request) {
    return request->route && request->route->charges;
}

static const struct {
    const char *name;
    enum verb verb;
} verbs[] = {{"GET", VERB_GET},
             {"HEAD", VERB_GET},
             {"POST", VERB_POST},
             {"PUT", VERB_PUT},
             {"DELETE", VERB_DELETE}};

static enum verb request_verb(const struct http_request *request) {
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        if (strcmp(request->verb, verbs[i].name) == 0) return verbs[i].verb;
    }
    return VERB_OTHER;
}

/* Returns whether the verb may change something. A GET changes nothing, but it may charge for
 * permits. */
static bool request_changes(const struct http_request *request) {
    return (request_verb(request) & (VERB_POST | VERB_PUT | VERB_DELETE)) != 0;
}

/* Returns whether the request has the body of an HTML form. */
static bool request_has_form(const struct http_request *request) {
    return request->route && request->route->takes_form && request_verb(request) == VERB_POST;
}

/* Returns whether the request should have a body, which is JSON or a form. */
static bool request_has_body(const struct http_request *request) {
    return (request_verb(request) & (VERB_POST | VERB_PUT)) != 0 && !request_charges(request);
}

static unsigned route_verbs(const struct http_route *route) {
    return route->verbs ? route->verbs : VERB_GET;
}

/* Finds the route of a request, and the verbs that its path accepts. Several routes can have the
 * same path and different verbs. If none has the verb, the first one counts.
 *   returns   NULL: there is no such path, or it is a method of the protocol */
static const struct http_route *route_find(const struct http_request *request, unsigned *allowed) {
    const struct http_route *found = NULL;
    const unsigned verb = request_verb(request);
    *allowed = 0;
    EACH_PART(part, routes) {
        for (const struct http_route *route = (*part)->routes; route->path; route++) {
            if (!route_matches(route, request->path)) continue;
            *allowed |= route_verbs(route);
            bool is_better = found && !(route_verbs(found) & verb) && route_verbs(route) & verb;
            if (!found || is_better) found = route;
        }
    }
    if (!found) *allowed = VERB_POST; /* a method of the protocol */
    return found;
}

/* Returns whether the fields of a request show that a web page has sent it. Browsers add an Origin
 * to many requests of pages. Over TLS, or to this machine, they add Sec-Fetch-Site to all requests:
 * "none" if the user makes the request, and "same-origin" if a page of this server makes it. With
 * one of these values, and without an Origin, the function returns false. */
static bool request_is_from_page(const struct http_request *request) {
    char value[16];
    if (server_http_field_read(request->fields, "Origin", value, sizeof value) > 0) return true;
    int count = server_http_field_read(request->fields, "Sec-Fetch-Site", value, sizeof value);
    bool own = strcmp(value, "none") == 0 || strcmp(value, "same-origin") == 0;
    return count > 1 || (count == 1 && !own);
}

/* Returns whether a page of this server has sent the request. A page can set neither Sec-Fetch-Site
 * nor Origin itself. If there is no Sec-Fetch-Site, as without TLS, the Origin decides. The scheme
 * of the Origin does not count, because a proxy may use another scheme than this server. */
static bool request_is_from_own_page(const struct http_request *request) {
    char value[300], host[256];
    int count = server_http_field_read(request->fields, "Sec-Fetch-Site", value, sizeof value);
    if (count > 0) return count == 1 && strcmp(value, "same-origin") == 0;
    count = server_http_field_read(request->fields, "Origin", value, sizeof value);
    server_http_field_read(request->fields, "Host", host, sizeof host);
    const char *own = request->authority[0] ? request->authority : host;
    size_t scheme = scheme_bytes(value);
    return count == 1 && scheme > 0 && strcasecmp(value + scheme, own) == 0;
}

/* Refuses a path that does not exist. For a path below /v1 the text names the methods. */
static void response_set_unknown_path(struct http_response *response, const char *path) {
    char text[256] = "this path does not exist";
    if (strncmp(path, "/v1/", 4) == 0) {
        snprintf(text, sizeof text, "there is no such method; the methods are");
        for (int i = 0; i < MESSAGE_UNKNOWN; i++) {
            size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, "%s %s", i ? "," : "",
                     server_message_names[i]);
        }
    }
    server_http_response_set_error(response, 404, "NOT_FOUND", text);
}

/* Checks the type and the coding of a body. */
static void request_check_type(const struct http_request *request, struct http_response *response) {
    static const char form[] = "application/x-www-form-urlencoded";
    const char *wanted = request_has_form(request) ? form : "application/json";
    char coding[32], error[192];
    int count = server_http_field_read(request->fields, "Content-Encoding", coding, sizeof coding);
    if (!type_is(request->fields, wanted)) {
        snprintf(error, sizeof error,
                 "the body must be of Content-Type %s, in UTF-8; send the type also with an empty "
                 "body",
                 wanted);
        server_http_response_set_error(response, 415, "UNSUPPORTED_MEDIA_TYPE", error);
    } else if (count > 0 && (count > 1 || strcasecmp(coding, "identity") != 0)) {
        server_http_response_set_error(
            response, 415, "UNSUPPORTED_MEDIA_TYPE",
            "Content-Encoding is not supported: send the body without compression");
    }
}

/* Refuses a verb that the path does not accept, and lists the verbs that it accepts. */
static void response_set_wrong_verb(struct http_response *response, unsigned allowed,
                                    bool is_method) {
    char list[64] = "", error[128];
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        if (!(allowed & verbs[i].verb)) continue;
        bytes += (size_t)snprintf(list + bytes, sizeof list - bytes, "%s%s", bytes ? ", " : "",
                                  verbs[i].name);
    }
    snprintf(error, sizeof error, "%s %s",
             is_method ? "methods of the protocol need" : "this path needs", list);
    server_http_response_set_error(response, 405, "INVALID_ARGUMENT", error);
    server_text_addf(&response->lines, "Allow: %s\r\n", list);
}

/* Checks the path, the verb and the type of the body.
 *   allowed   the verbs that the path accepts */
static void request_check_path(const struct http_request *request, unsigned allowed,
                               struct http_response *response) {
    if (!request->route && !path_is_method(request->path)) {
        response_set_unknown_path(response, request->path);
    } else if (!(allowed & request_verb(request))) {
        response_set_wrong_verb(response, allowed, path_is_method(request->path));
    } else if (request_has_body(request)) {
        request_check_type(request, response);
    }
}

/* Checks the Host and the token. If the server has tokens, a GET may have any Host, because proxies
 * and Prometheus may use other names for the server, and the token already protects the data. A
 * request that charges for permits must have a known Host, and must not come from a web page. A
 * form must come from a page of this server. */
static void request_check_access(struct service *service, struct http_request *request,
                                 struct http_response *response) {
    struct tokens *tokens = service->tokens;
    bool open = request->route && request->route->is_open;
    bool charges = request_charges(request);
    bool by_host = !tokens || request_changes(request) || charges;
    if (open) return;
    if (charges && request_is_from_page(request)) {
        server_http_response_set_error(
            response, 403, "PERMISSION_DENIED",
            "a web page must not use permits: the request has an Origin, or a Sec-Fetch-Site other "
            "than none and same-origin; a gateway must remove both");
    } else if (by_host && !request_host_known(service, request)) {
        server_http_response_set_error(
            response, 403, "PERMISSION_DENIED",
            "the Host is unknown: use a loopback name, or the host of --http, --http-advertise or "
            "--advertise");
    } else if (request_has_form(request) && !request_is_from_own_page(request)) {
        server_http_response_set_error(
            response, 403, "PERMISSION_DENIED",
            "a form must be sent from a page of this server: the request needs the Sec-Fetch-Site "
            "same-origin, or an Origin whose host is that of the request; programs use /v1");
    } else if (tokens && !request_find_token(tokens, request->fields, &request->token)) {
        char value[8]; /* a browser first sends no token */
        bool given =
            server_http_field_read(request->fields, "Authorization", value, sizeof value) > 0;
        request->has_wrong_token = given;
        int kind = given ? FAILED_TOKEN_WRONG : FAILED_TOKEN_MISSING;
        server_counter_add(&service->counters.authentication_failures[kind], 1);
        server_http_response_set_error(response, 401, "UNAUTHENTICATED",
                                       given ? "the token is wrong: it is not in the server's file"
                                             : "the token is missing: send "
                                               "'Authorization: Bearer TOKEN'");
        response->more = "WWW-Authenticate: Basic realm=\"doorman\", charset=\"UTF-8\"\r\n";
    }
}

/* Returns whether the request is for administrators. A POST to a route with the role ROLE_READ
 * changes nothing (/v1/config/check), or is for clients (/v1/batch, /v1/allow). */
static bool request_administers(const struct http_request *request) {
    if (request->route) {
        return request->route->administers ||
               (request_changes(request) && request->route->role != ROLE_READ &&
                !request_charges(request));
    }
    return strcmp(request->path, "/v1/inspect") == 0 || strcmp(request->path, "/v1/reset") == 0;
}

/* Returns the role that a request needs. An inspection changes nothing, so it needs the role read.
 * A reset needs the role support, and server_reset_check_token checks its entries. The other
 * messages need the role write, because most of them change leases or permits. A request that
 * charges for permits needs the role write too. */
static enum role request_role(const struct http_request *request) {
    if (request_charges(request)) return ROLE_WRITE;
    if (request->route) {
        return request_changes(request) ? request->route->role : request->route->reads;
    }
    if (strcmp(request->path, "/v1/inspect") == 0) return ROLE_READ;
    return strcmp(request->path, "/v1/reset") == 0 ? ROLE_SUPPORT : ROLE_WRITE;
}

/* Checks the role of the token. A request for administrators needs a token, so that the log can
 * name its sender. Precondition: the path exists, and the verb is one of its verbs. */
static void request_check_role(struct service *service, struct http_request *request,
                               struct http_response *response) {
    enum role needed = request_role(request);
    bool open = request->route && request->route->is_open;
    char text[128 + TOKEN_NAME_MAX];
    if (!service->tokens && request_administers(request)) {
        server_http_response_set_error(response, 403, "PERMISSION_DENIED",
                                       "this request needs a server with --http-token");
    }
    if (!service->tokens || open || server_role_includes(request->token.role, needed)) return;
    snprintf(text, sizeof text, "this request needs a token with the role %s; '%s' has the role %s",
             server_role_name(needed), request->token.name, server_role_name(request->token.role));
    request->lacks_role = true;
    server_counter_add(&service->counters.authentication_failures[FAILED_ROLE], 1);
    server_http_response_set_error(response, 403, "PERMISSION_DENIED", text);
}

/* Checks that the request says without doubt where its body ends (RFC 9112, 6). The body has one
 * Content-Length, or comes in chunks, and not both. HTTP/1.0 has no chunks. No other coding is
 * supported. */
static void request_check_framing(const struct http_request *request,
                                  struct http_response *response) {
    bool coded = request->coding_count > 0;
    if (coded && (request->has_length || request->is_old)) {
        server_http_response_set_error(response, 400, "INVALID_ARGUMENT",
                                       "Transfer-Encoding excludes Content-Length and HTTP/1.0");
    } else if (coded && !request->is_chunked) {
        server_http_response_set_error(response, 501, "INVALID_ARGUMENT",
                                       "the only known Transfer-Encoding is chunked");
    } else if (!coded && request->length == SIZE_MAX) {
        server_http_response_set_error(response, 400, "INVALID_ARGUMENT",
                                       "a body needs exactly one Content-Length, a number");
    } else if (!coded && !request->has_length && request_has_body(request)) {
        server_http_response_set_error(response, 411, "INVALID_ARGUMENT",
                                       "a body needs a Content-Length, or must be chunked");
    }
}

/* Checks the size of the body and the field Expect. HTTP/1.0 has no 100-continue, so a server must
 * ignore it there (RFC 9110, 10.1.1). */
static void request_check_body(struct http_request *request, struct http_response *response) {
    char value[32];
    int count = server_http_field_read(request->fields, "Expect", value, sizeof value);
    bool known = count == 1 && strcasecmp(value, "100-continue") == 0;
    if (!request->is_chunked && request->length > request->body_max) {
        server_http_response_set_too_large(response, request);
    } else if (count > 0 && !known) {
        server_http_response_set_error(response, 417, "INVALID_ARGUMENT",
                                       "the only known Expect is 100-continue");
    }
    request->expects_continue = known && !request->is_old && request->length > 0;
}

/* At level debug, logs the name of the token of each request, so that an operator can find the
 * sender. Requests for paths that need no token are not logged. Nothing is logged if the server has
 * no tokens. */
static void request_log(const struct service *service, const struct http_request *request,
                        int code) {
    char status[16];
    bool open = request->route && request->route->is_open;
    if (!service->tokens || open || service->settings->log_level > LEVEL_DEBUG) return;
    snprintf(status, sizeof status, "%d", code);
    server_log(service->settings, LEVEL_DEBUG,
               code == 200 ? "HTTP request allowed" : "HTTP request refused", "token",
               request->token.name, "verb", request->verb, "path", request->path, "status", status,
               LOG_END);
}

bool server_http_request_check(struct service *service, struct http_request *request,
                               struct http_response *response) {
    unsigned allowed = 0;
    request->route = route_find(request, &allowed);
    request->body_max = service->settings->message_max;
    if (request->route && request->route->is_open && request->body_max > HTTP_OPEN_BODY_MAX) {
        request->body_max = HTTP_OPEN_BODY_MAX;
    }
    request_check_access(service, request, response);
    if (response->code == 200) request_check_path(request, allowed, response);
    if (response->code == 200) request_check_role(service, request, response);
    if (response->code == 200) request_check_framing(request, response);
    if (response->code == 200) request_check_body(request, response);
    request_log(service, request, response->code);
    return response->code == 200;
}

/* ---- chunks --------------------------------------------------------------------------------- */
/* A body in chunks (RFC 9112, 7.1) is read byte by byte, except the data. The state says which byte
 * may be next. Any other byte makes the body invalid.
 *
 *     state            the next byte                    next state
 *     SIZE             a hexadecimal digit              SIZE
 *                      a space or a tab, after a digit  SPACE
 *                      ;, after a digit                 EXTENSION
 *                      CR, after a digit                SIZE_LF
 *     SPACE            a space or a tab                 SPACE
 *                      ;                                EXTENSION
 *     EXTENSION        text                             EXTENSION
 *                      CR                               SIZE_LF
 *     SIZE_LF          LF                               DATA; TRAILER_START if the size is 0
 *     DATA             any; the last byte of the chunk  DATA_CR
 *     DATA_CR          CR                               DATA_LF
 *     DATA_LF          LF                               SIZE
 *     TRAILER_START    text                             TRAILER
 *                      CR                               END_LF
 *     TRAILER          text                             TRAILER
 *                      CR                               TRAILER_LF
 *     TRAILER_LF       LF                               TRAILER_START
 *     END_LF           LF                               COMPLETE
 *
 * Extensions and trailers are ignored. In one body they have at most HTTP_HEAD_MAX bytes. */

#define CHUNK_DIGITS_MAX 15 /* a size with more digits might not fit in 64 bits */

static enum chunk_state chunk_read_size(struct chunk_reader *reader, char byte) {
    int digit = server_hex_value(byte);
    enum chunk_state next = CHUNK_INVALID;
    if (digit >= 0) {
        reader->left = reader->left * 16 + (unsigned)digit;
        next = ++reader->digits <= CHUNK_DIGITS_MAX ? CHUNK_SIZE : CHUNK_INVALID;
    } else if (reader->digits > 0 && byte == '\r') {
        next = CHUNK_SIZE_LF;
    } else if (reader->digits > 0 && byte == ';') {
        next = CHUNK_EXTENSION;
    } else if (reader->digits > 0 && (byte == ' ' || byte == '\t')) {
        next = CHUNK_SPACE;
    }
    return next;
}

/* Returns the state after a byte of an extension or a trailer: `text`, or `end` after CR. */
static enum chunk_state chunk_read_text(char byte, enum chunk_state text, enum chunk_state end) {
    return is_text(byte) ? text : byte == '\r' ? end : CHUNK_INVALID;
}

/* Returns the state after one byte that is not data. */
static enum chunk_state chunk_next(struct chunk_reader *reader, char byte) {
    enum chunk_state after_size = reader->left > 0 ? CHUNK_DATA : CHUNK_TRAILER_START;
    bool space = byte == ' ' || byte == '\t';
    switch (reader->state) {
    case CHUNK_SIZE: return chunk_read_size(reader, byte);
    case CHUNK_SPACE: return space ? CHUNK_SPACE : byte == ';' ? CHUNK_EXTENSION : CHUNK_INVALID;
    case CHUNK_EXTENSION: return chunk_read_text(byte, CHUNK_EXTENSION, CHUNK_SIZE_LF);
    case CHUNK_SIZE_LF: return byte == '\n' ? after_size : CHUNK_INVALID;
    case CHUNK_DATA_CR: return byte == '\r' ? CHUNK_DATA_LF : CHUNK_INVALID;
    case CHUNK_DATA_LF: return byte == '\n' ? CHUNK_SIZE : CHUNK_INVALID;
    case CHUNK_TRAILER_START: return chunk_read_text(byte, CHUNK_TRAILER, CHUNK_END_LF);
    case CHUNK_TRAILER: return chunk_read_text(byte, CHUNK_TRAILER, CHUNK_TRAILER_LF);
    case CHUNK_TRAILER_LF: return byte == '\n' ? CHUNK_TRAILER_START : CHUNK_INVALID;
    case CHUNK_END_LF: return byte == '\n' ? CHUNK_COMPLETE : CHUNK_INVALID;
    case CHUNK_DATA:
    case CHUNK_COMPLETE:
    case CHUNK_INVALID:
    default: return CHUNK_INVALID;
    }
}

static void chunk_step(struct chunk_reader *reader, char byte) {
    enum chunk_state state = chunk_next(reader, byte);
    bool ignored = state == CHUNK_SPACE || state == CHUNK_EXTENSION || state == CHUNK_TRAILER;
    reader->ignored_bytes += ignored;
    if (reader->state == CHUNK_DATA_LF) reader->digits = 0;
    reader->state = state;
}

/* Moves data of a chunk behind the data of the chunks before it. Returns how many bytes. */
static size_t chunk_move(struct chunk_reader *reader, char *body, const char *from, size_t count) {
    size_t bytes = count < reader->left ? count : (size_t)reader->left;
    memmove(body + reader->body_bytes, from, bytes);
    reader->body_bytes += bytes;
    reader->left -= bytes;
    if (reader->left == 0) reader->state = CHUNK_DATA_CR;
    return bytes;
}

int server_http_read_chunks(struct chunk_reader *reader, char *body, size_t *count,
                            size_t message_max) {
    size_t at = reader->body_bytes;
    int code = 100;
    while (at < *count && reader->state != CHUNK_COMPLETE && code == 100) {
        if (reader->state == CHUNK_DATA) {
            at += chunk_move(reader, body, body + at, *count - at);
        } else {
            chunk_step(reader, body[at++]);
        }
        if (reader->state == CHUNK_INVALID) code = 400;
        if (reader->left > message_max - reader->body_bytes) code = 413;
        if (reader->ignored_bytes > HTTP_HEAD_MAX) code = 431;
    }
    memmove(body + reader->body_bytes, body + at, *count - at);
    *count -= at - reader->body_bytes;
    assert(reader->body_bytes <= *count && reader->body_bytes <= message_max);
    return reader->state == CHUNK_COMPLETE ? 200 : code;
}
