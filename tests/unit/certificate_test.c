/* Tests server/tls/certificate.c, which reads when certificates are valid. The certificates were
 * made by openssl. They hold no secret, because their keys are not here. */
#include "../../server/tls/certificate.c"

#include "../test.h"

#define PEM_BEGIN "-----BEGIN CERTIFICATE-----"
#define PEM_END "-----END CERTIFICATE-----"

/* Returns a number below the bound. The numbers are the same in each run. */
static unsigned random_below(unsigned bound) {
    static uint64_t state = 1;
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (unsigned)(state >> 33) % bound;
}

/* Ends at 2026-12-22 19:24:35, as UTCTime. */
static const char near[] = "-----BEGIN CERTIFICATE-----\n"
                           "MIIBbTCCAROgAwIBAgIUbWPmCSJLL0hV5YcCbOBZbHehh7owCgYIKoZIzj0EAwIw\n"
                           "DDEKMAgGA1UEAwwBYTAeFw0yNjExMjIxOTI0MzVaFw0yNjEyMjIxOTI0MzVaMAwx\n"
                           "CjAIBgNVBAMMAWEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASDbeIOXBbN9wQ9\n"
                           "ficsTIsrhWKZelLDV/DMOzvjYQSEh0o2ea8Tz5Wv5OGC9fQ8g8Ncz7mwOxKUR8qm\n"
                           "+XiYB8tSo1MwUTAdBgNVHQ4EFgQUnWII7MBKtK9xAjPu/t0g24FMzVYwHwYDVR0j\n"
                           "BBgwFoAUnWII7MBKtK9xAjPu/t0g24FMzVYwDwYDVR0TAQH/BAUwAwEB/zAKBggq\n"
                           "hkjOPQQDAgNIADBFAiEAvdNzsoMdgyVlUVvwGgL8FInUrBtO43Tm6fwtdp8WGXoC\n"
                           "IF2/5hvtneXh6kXMezG/abOEvnye/BM+v0RU3AzYNm15\n"
                           "-----END CERTIFICATE-----\n";
#define NEAR_BEGIN 1795375475 /* 2026-11-22 19:24:35 */
#define NEAR_END 1797967475

/* Ends at 2081-08-25 19:24:35, as GeneralizedTime. */
static const char far[] = "-----BEGIN CERTIFICATE-----\n"
                          "MIIBbzCCARWgAwIBAgIUcbQA+ddCgFp0Y1bxRQlNKjusEZ4wCgYIKoZIzj0EAwIw\n"
                          "DDEKMAgGA1UEAwwBYjAgFw0yNjExMjIxOTI0MzVaGA8yMDgxMDgyNTE5MjQzNVow\n"
                          "DDEKMAgGA1UEAwwBYjBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABGA79EGN3cZz\n"
                          "frKeXov5bgTX7EB5LvExacWGjwN20h9tTNq9I0cobXfP4RsG3U1T51rdijoge7Zu\n"
                          "s874XUBGNTKjUzBRMB0GA1UdDgQWBBQP6SUAsn98LN/CP+pDhXWUMHESUjAfBgNV\n"
                          "HSMEGDAWgBQP6SUAsn98LN/CP+pDhXWUMHESUjAPBgNVHRMBAf8EBTADAQH/MAoG\n"
                          "CCqGSM49BAMCA0gAMEUCIGTboqi028I8YGB+cZaz5BPbVtPUATGH11HSWcK0Js/e\n"
                          "AiEAl+APZC45pMqWYME9syHgt+/XFFfyOu8kgMTgA86mgW0=\n"
                          "-----END CERTIFICATE-----\n";
#define FAR_END INT64_C(3523375475)

/* Ends at 9999-12-31 23:59:59, which stands for no end. */
static const char endless[] = "-----BEGIN CERTIFICATE-----\n"
                              "MIIBATCBqAIBATAKBggqhkjOPQQDAjAMMQowCAYDVQQDDAFjMCAXDTI2MTEyMjE5\n"
                              "MjQzNVoYDzk5OTkxMjMxMjM1OTU5WjAMMQowCAYDVQQDDAFjMFkwEwYHKoZIzj0C\n"
                              "AQYIKoZIzj0DAQcDQgAEQhFGLQAoQ+zyX9ToxM9hjimmhEXCT0/UIg20hXTVozWu\n"
                              "42KJX4R6yffMad7RM1l7/gHEbs5YXMBi7opth9iqWDAKBggqhkjOPQQDAgNIADBF\n"
                              "AiEA75i6XgWxIfqzNzwe4uKMkR9Nbx/FiTMn5rjuYIs+/v8CIBEgICZyWgZJLhMB\n"
                              "OcSbZ9gtO5SSiZKFCBrakjfHY0v7\n"
                              "-----END CERTIFICATE-----\n";

TEST(the_end_of_a_certificate_is_read) {
    assert_int_equal(server_certificate_end(near, false), NEAR_END);
    assert_int_equal(server_certificate_end(near, true), NEAR_END);
    assert_int_equal(server_certificate_end(far, false), FAR_END);
    assert_int_equal(server_certificate_end(endless, false), INT64_C(253402300799));
}

TEST(a_file_with_several_certificates_has_an_earliest_and_a_latest_end) {
    char text[4096];
    for (int order = 0; order < 2; order++) {
        snprintf(text, sizeof text, "a comment\n%s\n%s", order ? near : far, order ? far : near);
        assert_int_equal(server_certificate_end(text, false), NEAR_END);
        assert_int_equal(server_certificate_end(text, true), FAR_END);
    }
}

/* RFC 5280, 4.1.2.5: the first and the last second belong to the validity. */
TEST(a_certificate_is_valid_from_its_begin_to_its_end) {
    struct certificate_period first;
    for (int any = 0; any < 2; any++) {
        assert_false(server_certificate_is_valid(near, any, NEAR_BEGIN - 1, &first));
        assert_true(server_certificate_is_valid(near, any, NEAR_BEGIN, &first));
        assert_true(server_certificate_is_valid(near, any, NEAR_END, &first));
        assert_false(server_certificate_is_valid(near, any, NEAR_END + 1, &first));
        assert_int_equal(first.begin, NEAR_BEGIN);
        assert_int_equal(first.end, NEAR_END);
        assert_true(server_certificate_is_valid("not PEM", any, NEAR_END, &first));
    }
}

/* In the file of a node the first certificate must be valid. In a file of authorities one valid
 * certificate is enough. */
TEST(one_valid_authority_is_enough) {
    struct certificate_period first;
    char text[4096];
    snprintf(text, sizeof text, "%s%s", near, far);
    assert_false(server_certificate_is_valid(text, false, NEAR_END + 1, &first));
    assert_true(server_certificate_is_valid(text, true, NEAR_END + 1, &first));
    assert_false(server_certificate_is_valid(text, true, FAR_END + 1, &first));
    snprintf(text, sizeof text, "%s%s", far, near);
    assert_true(server_certificate_is_valid(text, false, NEAR_END + 1, &first));
}

/* A certificate that cannot be read does not hide the others. */
TEST(what_is_no_certificate_has_no_end) {
    static const char *const texts[] = {"",
                                        "not PEM",
                                        PEM_BEGIN,
                                        PEM_BEGIN PEM_END,
                                        PEM_BEGIN "\nMIIB\n" PEM_END,
                                        PEM_BEGIN "\n####\n" PEM_END};
    char text[4096];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(server_certificate_end(texts[i], false), 0);
        if (!strstr(texts[i], PEM_END)) continue;
        snprintf(text, sizeof text, "%s\n%s", texts[i], near);
        assert_int_equal(server_certificate_end(text, false), NEAR_END);
    }
}

/* A text that was cut or changed may have another end or none. It never leads to a read outside the
 * text, which a sanitizer would detect. */
TEST(damaged_certificates_are_read_safely) {
    size_t first = strlen(PEM_BEGIN) + 1, last = sizeof near - 1 - strlen(PEM_END) - 1;
    for (size_t cut = first; cut < last; cut++) {
        char *text = NULL;
        assert_true(asprintf(&text, "%.*s%s", (int)cut, near, PEM_END) > 0);
        (void)server_certificate_end(text, false);
        free(text);
    }
    for (int round = 0; round < 20000; round++) {
        char *text = strdup(far);
        assert_non_null(text);
        for (int i = 0; i < 3; i++)
            text[first + random_below((unsigned)(last - first))] = "AZaz09+/"[random_below(8)];
        (void)server_certificate_end(text, false);
        free(text);
    }
}
