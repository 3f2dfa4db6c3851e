/* The configurations on the pages for users, README.md and docs/: each block of JSON that has
 * templates is valid, and nothing in it causes a warning. cookbook_test.c also plays the
 * configurations of docs/permits.md. */
#include "unit.h"

#include <glob.h>
#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

enum { PAGE_BYTES_MAX = 1 << 20, PROBLEMS_MAX = 4 };

/* Checks the configurations of a page. Returns how many there are. */
static int check_page(const char *path) {
    static char text[PAGE_BYTES_MAX];
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("%s: cannot be read; run the test where doorman.h is", path);
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    text[bytes] = 0;
    assert_true(bytes > 0 && bytes < sizeof text - 1);
    assert_int_equal(fclose(file), 0);
    int count = 0;
    for (const char *at = text; (at = strstr(at, "\n```json\n")) != NULL;) {
        at += strlen("\n```json\n");
        const char *end = strstr(at, "\n```");
        assert_non_null(end);
        char *block = strndup(at, (size_t)(end - at));
        assert_non_null(block);
        at = end;
        if (strstr(block, "\"identifier_glob\"")) {
            doorman_config_problem problems[PROBLEMS_MAX];
            doorman_config_problems list = {.items = problems, .room = PROBLEMS_MAX};
            doorman_status status = doorman_json_check_config(NULL, block, strlen(block), &list);
            if (status != DOORMAN_OK || list.count > 0) {
                fail_msg("%s: %s\n%s", path, problems[0].error.text, block);
            }
            count++;
        }
        free(block);
    }
    return count;
}

TEST(every_configuration_on_a_page_is_valid_and_causes_no_warning) {
    glob_t pages;
    assert_int_equal(glob("README.md", 0, NULL, &pages), 0);
    assert_int_equal(glob("docs/*.md", GLOB_APPEND, NULL, &pages), 0);
    assert_int_equal(glob("docs/*/*.md", GLOB_APPEND, NULL, &pages), 0);
    int count = 0;
    for (size_t i = 0; i < pages.gl_pathc; i++) count += check_page(pages.gl_pathv[i]);
    globfree(&pages);
    print_message("%d configurations\n", count);
    assert_true(count >= 35);
}
