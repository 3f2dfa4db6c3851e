/* Tests docs/permits.md, the cookbook of permits. Each block of JSON on the page is a
 * configuration. The table after it says what happens at which second. The test loads each
 * configuration, plays the rows of its table, and compares each decision with the page.
 *
 * The first cell of a row is a time since the start of the table, for example "1 h 30 s". The test
 * writes down all facts of a decision, in the words of the page. Each clause of the last cell must
 * be one of these facts. Some facts must be on the page: whether the permit was granted, its wait,
 * a warning, what a limit in shadow would refuse, and the result of a report, a reset or a
 * settle. */
#include "unit.h"

#include <stdlib.h>
#include <string.h>

#define DOORMAN_JSON
#define DOORMAN_IMPLEMENTATION
#include "../../doorman_permits.h"

#define PAGE "docs/permits.md"
#define HEAD "| at | resource | key | asks for | decision |"
#define TIMES "\xc3\x97"                /* the multiplication sign */
#define MONDAY 1704067200               /* 2024-01-01 00:00 UTC, when each kind of window begins */
#define UPTIME (86400 * DOORMAN_SECOND) /* `now` at the start of each table, when slices begin */

enum { CELLS = 5, CELL_BYTES = 128, ITEMS_MAX = 4, FACTS_MAX = 24 };

/* ---- texts ---------------------------------------------------------------------------------- */

/* Returns the whole page, which the caller frees. */
static char *page_read(void) {
    FILE *file = fopen(PAGE, "r");
    if (!file) fail_msg(PAGE ": cannot be read; run the test where doorman.h is");
    char *text = NULL;
    size_t bytes = 0, room = 1 << 20;
    text = calloc(1, room);
    assert_non_null(text);
    bytes = fread(text, 1, room - 1, file);
    assert_true(bytes > 0 && bytes < room - 1);
    assert_int_equal(fclose(file), 0);
    return text;
}

/* Returns the rest of a text that begins with `word`, or NULL if it does not. */
static const char *after(const char *text, const char *word) {
    return strncmp(text, word, strlen(word)) == 0 ? text + strlen(word) : NULL;
}

/* Copies the next part of a text, up to the separator. Moves `at` behind the separator. Returns
 * false if the text has ended. */
static bool next_part(const char **at, const char *separator, char out[CELL_BYTES]) {
    if (!*at) return false;
    const char *end = strstr(*at, separator);
    size_t bytes = end ? (size_t)(end - *at) : strlen(*at);
    assert_true(bytes < CELL_BYTES);
    snprintf(out, CELL_BYTES, "%.*s", (int)bytes, *at);
    *at = end ? end + strlen(separator) : NULL;
    return true;
}

static const struct {
    const char *name;
    doorman_time length;
} units[] = {{"d", 86400 * DOORMAN_SECOND},
             {"h", 3600 * DOORMAN_SECOND},
             {"min", 60 * DOORMAN_SECOND},
             {"s", DOORMAN_SECOND}};

/* Reads a duration such as "1 d 90 s". A number without a unit is a number of seconds. */
static doorman_time duration_of(const char *text) {
    doorman_time sum = 0;
    while (*text) {
        char *end = NULL, unit[8] = "s";
        double count = strtod(text, &end);
        if (end == text) fail_msg("\"%s\" is not a duration", text);
        int bytes = 0;
        if (sscanf(end, " %7[a-z]%n", unit, &bytes) == 1) end += bytes;
        size_t i = 0;
        while (i < 3 && strcmp(units[i].name, unit) != 0) i++;
        assert_string_equal(units[i].name, unit);
        sum += (doorman_time)(count * (double)units[i].length + 0.5);
        text = end + strspn(end, " ");
    }
    return sum;
}

/* Writes `word`, and then a duration in the format of duration_of, rounded to milliseconds. */
static void put_duration(char out[CELL_BYTES], const char *word, doorman_time duration) {
    doorman_time rest = (duration + 500000) / 1000000 * 1000000;
    size_t used = (size_t)snprintf(out, CELL_BYTES, "%s", word);
    for (size_t i = 0; i < 3; i++) {
        int count = (int)(rest / units[i].length);
        rest %= units[i].length;
        if (!count) continue;
        used += (size_t)snprintf(out + used, CELL_BYTES - used, " %d %s", count, units[i].name);
    }
    if (!rest && used > strlen(word)) return;
    snprintf(out + used, CELL_BYTES - used, " %.6g s", (double)rest / 1e9);
}

/* ---- what a row asks for -------------------------------------------------------------------- */

typedef struct row {
    int line;
    char cells[CELLS][CELL_BYTES];
    char names[2][ITEMS_MAX][CELL_BYTES]; /* the resources and keys of the items */
    doorman_permit_item items[ITEMS_MAX];
    doorman_permit_request request;
    int times; /* how many permits; only the last one must have all facts of the row */
    bool reports, resets;
    uint64_t settles; /* the number of the permit that is settled, from 1; 0: none */
} row;

/* Splits a line of a table into its cells. */
static void row_split(row *out, const char *line) {
    const char *at = line + 1;
    for (int i = 0; i < CELLS; i++) {
        char cell[CELL_BYTES];
        if (!next_part(&at, "|", cell)) fail_msg(PAGE ":%d: has no cell %d", out->line, i + 1);
        size_t begin = strspn(cell, " "), end = strlen(cell);
        while (end > begin && cell[end - 1] == ' ') end--;
        snprintf(out->cells[i], CELL_BYTES, "%.*s", (int)(end - begin), cell + begin);
    }
}

/* Reads the names of the items from a cell, for example "a + b". Returns how many there are. */
static size_t row_names(row *out, int which, const char *cell) {
    size_t count = 0;
    for (const char *at = cell; count < ITEMS_MAX; count++) {
        if (!next_part(&at, " + ", out->names[which][count])) break;
    }
    return count;
}

/* Reads the first clause of what a row asks for, for example "20 x 1". */
static void row_read_amount(row *out, const char *clause) {
    const char *times = strstr(clause, " " TIMES " "), *amount = clause;
    if (times) {
        out->times = atoi(clause);
        amount = times + strlen(" " TIMES " ");
    }
    out->reports = after(amount, "report ") != NULL;
    out->resets = strcmp(amount, "reset") == 0;
    if (out->reports) amount = after(amount, "report ");
    const char *settles = after(amount, "settle ");
    if (settles) out->settles = strtoull(settles, NULL, 10);
    if (settles) amount = strstr(settles, ": ") + 2;
    char each[CELL_BYTES], *end = NULL;
    double cost = 0;
    for (size_t i = 0; i < ITEMS_MAX && !out->resets; i++) { /* the last cost is also that of the
                                                              * other items */
        const bool more = next_part(&amount, " + ", each);
        if (more) cost = strtod(each, &end);
        if (more && (end == each || *end)) fail_msg(PAGE ":%d: %s", out->line, clause);
        out->items[i].cost = cost;
    }
}

static void row_read_clause(row *out, const char *clause) {
    const char *least = after(clause, "at least "), *wait = after(clause, "may wait ");
    const char *within = after(clause, "settle within ");
    if (within) {
        out->request.settle_within = duration_of(within);
    } else if (least) {
        for (size_t i = 0; i < ITEMS_MAX; i++) {
            out->items[i].has_min = true;
            out->items[i].min = strtod(least, NULL);
        }
    } else if (wait) {
        out->request.max_wait = duration_of(wait);
    } else if (strcmp(clause, "equal parts") == 0) {
        out->request.equal = true;
    } else {
        fail_msg(PAGE ":%d: \"%s\" is not known", out->line, clause);
    }
}

static void row_read(row *out, const char *line) {
    char clause[CELL_BYTES];
    row_split(out, line);
    out->times = 1;
    size_t resources = row_names(out, 0, out->cells[1]), keys = row_names(out, 1, out->cells[2]);
    size_t count = resources > keys ? resources : keys;
    for (size_t i = 0; i < count; i++) {
        out->items[i].resource_id = out->names[0][resources > 1 ? i : 0];
        out->items[i].key = out->names[1][keys > 1 ? i : 0];
    }
    const char *at = out->cells[3];
    for (int i = 0; next_part(&at, ", ", clause); i++) {
        if (i == 0) row_read_amount(out, clause);
        if (i > 0) row_read_clause(out, clause);
    }
    out->request.items = out->items;
    out->request.item_count = count;
    out->request.detail = true;
}

/* ---- what is decided ------------------------------------------------------------------------ */

/* The facts of a decision. The first `needed` facts must be on the page. */
typedef struct facts {
    char texts[FACTS_MAX][CELL_BYTES];
    size_t needed, count;
} facts;

static char *add_fact(facts *out, bool needed) {
    assert_true(out->count < FACTS_MAX);
    assert_true(!needed || out->needed == out->count);
    out->needed += needed;
    return out->texts[out->count++];
}

/* Describes a permit that was granted. Writes the amounts only if an item got less than it asked
 * for. */
static void describe_grant(facts *out, const row *asked, const doorman_permit *permit) {
    char *text = add_fact(out, true);
    size_t used = (size_t)snprintf(text, CELL_BYTES, "granted");
    bool all = true;
    for (size_t i = 0; i < permit->item_count; i++) {
        all = all && doorman__equal(permit->items[i].granted, asked->items[i].cost);
    }
    for (size_t i = 0; !all && i < permit->item_count; i++) {
        used += (size_t)snprintf(text + used, CELL_BYTES - used, "%s%.6g", i ? " + " : " ",
                                 permit->items[i].granted);
    }
    if (permit->wait) put_duration(add_fact(out, true), "wait", permit->wait);
    if (permit->warning) snprintf(add_fact(out, true), CELL_BYTES, "warning");
}

static void describe_refusal(facts *out, const doorman_permit *permit) {
    const char *reason = doorman_reason_name(permit->reason);
    char by[CELL_BYTES] = "";
    if (permit->limit) snprintf(by, sizeof by, " by %.100s", permit->limit);
    bool rate = permit->reason == DOORMAN_REASON_RATE;
    snprintf(add_fact(out, true), CELL_BYTES, "refused%.100s%s%s", by, rate ? "" : ": ",
             rate ? "" : reason);
    if (permit->has_retry_after) {
        put_duration(add_fact(out, false), "retry after", permit->retry_after);
    } else {
        snprintf(add_fact(out, false), CELL_BYTES, "waiting does not help");
    }
}

static void describe_details(facts *out, const doorman_permit *permit) {
    for (size_t i = 0; permit->granted && i < permit->detail_count; i++) {
        const doorman_permit_detail *detail = &permit->details[i];
        if (!detail->refused) continue;
        snprintf(add_fact(out, true), CELL_BYTES, "in shadow refused by %s", detail->limit);
    }
    for (size_t i = 0; i < permit->detail_count; i++) {
        const doorman_permit_detail *detail = &permit->details[i];
        snprintf(add_fact(out, false), CELL_BYTES, "%.6g left of %s", detail->remaining,
                 detail->limit);
        if (detail->tier) snprintf(add_fact(out, false), CELL_BYTES, "tier %zu", detail->tier);
    }
}

static void describe_permit(facts *out, const row *asked, const doorman_permit *permit) {
    memset(out, 0, sizeof *out);
    if (permit->granted) describe_grant(out, asked, permit);
    if (!permit->granted) describe_refusal(out, permit);
    describe_details(out, permit);
}

static bool has_fact(const facts *all, const char *text) {
    for (size_t i = 0; i < all->count; i++) {
        if (strcmp(all->texts[i], text) == 0) return true;
    }
    return false;
}

/* Compares the last cell of a row with the facts. Returns 1 if they differ, otherwise 0. */
static int compare(const row *page, const facts *real) {
    char clause[CELL_BYTES];
    size_t needed = 0;
    bool differs = false;
    const char *at = page->cells[4];
    while (next_part(&at, ", ", clause)) {
        differs = differs || !has_fact(real, clause);
        for (size_t i = 0; i < real->needed; i++) needed += strcmp(real->texts[i], clause) == 0;
    }
    if (!differs && needed == real->needed) return 0;
    print_error(PAGE ":%d: %s\n    in truth: ", page->line, page->cells[4]);
    for (size_t i = 0; i < real->count; i++) print_error("%s%s", i ? ", " : "", real->texts[i]);
    print_error("\n");
    return 1;
}

/* ---- one table ------------------------------------------------------------------------------ */

typedef struct player {
    doorman_config *config; /* NULL: no configuration, or its table has ended */
    doorman_permits *permits;
    doorman_time at; /* since the start of the table */
    bool in_table;
    int rows, recipes, differences;
    uint64_t request_id; /* of the last permit */
    uint64_t first_id;   /* of the table */
} player;

static void player_stop(player *p) {
    if (p->config && p->rows == 0) fail_msg(PAGE ": configuration %d has no table", p->recipes);
    doorman_permits_destroy(p->permits);
    doorman_config_destroy(p->config);
    p->permits = NULL;
    p->config = NULL;
    p->in_table = false;
}

/* Starts permits with a configuration of the page, which must be valid and cause no warning. */
static void player_start(player *p, const char *text, size_t bytes, int line) {
    player_stop(p);
    doorman_error error = {0};
    doorman_config_problem problems[4];
    doorman_config_problems list = {.items = problems, .room = 4};
    doorman_status status = doorman_json_check_config(NULL, text, bytes, &list);
    if (status != DOORMAN_OK || list.count) {
        fail_msg(PAGE ", the block at line %d: %s", line, problems[0].error.text);
    }
    assert_int_equal(doorman_json_config(&p->config, text, bytes, &error), DOORMAN_OK);
    const doorman_permits_options options = {.config = p->config, .seed = {3, 4}};
    status = doorman_permits_create(&p->permits, &options, &error, UPTIME);
    if (status != DOORMAN_OK) fail_msg(PAGE ":%d: %s", line, error.text);
    doorman_permits_set_epoch(p->permits, MONDAY * DOORMAN_SECOND, UPTIME);
    p->at = 0;
    p->rows = 0;
    p->recipes++;
    p->first_id = p->request_id + 1;
}

/* Settles a permit of the table, and describes the result. */
static doorman_status player_settle(player *p, const row *asked, facts *out, doorman_error *error) {
    doorman_settlement settled;
    const doorman_settle_request request = {.client_id = "cookbook",
                                            .request_id = p->first_id + asked->settles - 1,
                                            .items = asked->items,
                                            .item_count = asked->request.item_count};
    doorman_status status =
        doorman_permits_settle(p->permits, &request, &settled, error, UPTIME + p->at);
    char *returned = add_fact(out, true), *charged = add_fact(out, true);
    size_t used[2] = {(size_t)snprintf(returned, CELL_BYTES, "returned"),
                      (size_t)snprintf(charged, CELL_BYTES, "charged")};
    bool has_charged = false;
    for (size_t i = 0; status == DOORMAN_OK && i < settled.item_count; i++) {
        const char *plus = i ? " +" : "";
        const doorman_settled_item *item = &settled.items[i];
        used[0] += (size_t)snprintf(returned + used[0], CELL_BYTES - used[0], "%s %.6g", plus,
                                    item->returned);
        used[1] += (size_t)snprintf(charged + used[1], CELL_BYTES - used[1], "%s %.6g", plus,
                                    item->charged);
        has_charged = has_charged || item->charged > 0;
    }
    if (!has_charged) out->count--, out->needed--;
    if (settled.late) snprintf(add_fact(out, true), CELL_BYTES, "late");
    return status;
}

/* Decides one permit, or makes one report, reset or settle, and describes the result. */
static void player_ask(player *p, const row *asked, facts *out) {
    doorman_permit permit = {.granted = false};
    doorman_error error = {0};
    doorman_time now = UPTIME + p->at;
    const doorman_permit_item *item = &asked->items[0];
    doorman_status status = DOORMAN_OK;
    memset(out, 0, sizeof *out);
    if (asked->reports) {
        double charged = 0;
        status = doorman_permits_report(p->permits, item, &charged, &error, now);
        snprintf(add_fact(out, true), CELL_BYTES, "charged %.6g", charged);
    } else if (asked->settles) {
        status = player_settle(p, asked, out, &error);
    } else if (asked->resets) {
        size_t count = 0;
        status = doorman_permits_reset(p->permits, item, NULL, &count, &error);
        snprintf(add_fact(out, true), CELL_BYTES, "%zu removed", count);
    } else {
        doorman_permit_request request = asked->request;
        request.client_id = "cookbook";
        request.request_id = ++p->request_id; /* each permit has a hold of its own */
        status = doorman_permits_acquire(p->permits, &request, &permit, &error, now);
        if (status == DOORMAN_OK) describe_permit(out, asked, &permit);
    }
    if (status != DOORMAN_OK) fail_msg(PAGE ":%d: %s", asked->line, error.text);
}

/* Plays a row. If the row has several permits, the first clause applies to each permit. */
static void player_row(player *p, const char *line, int number) {
    static row asked;
    static facts real;
    memset(&asked, 0, sizeof asked);
    asked.line = number;
    row_read(&asked, line);
    doorman_time at = duration_of(asked.cells[0]);
    assert_true(at >= p->at);
    p->at = at;
    for (int i = 0; i < asked.times; i++) {
        player_ask(p, &asked, &real);
        const char *first = real.texts[0];
        bool differs = strncmp(asked.cells[4], first, strlen(first)) != 0;
        if (!differs && i + 1 < asked.times) continue;
        p->differences += compare(&asked, &real);
        if (differs) break;
    }
    p->rows++;
}

/* Handles one line of the page that is not in a block. */
static void player_line(player *p, const char *line, int number) {
    if (strcmp(line, HEAD) == 0) {
        if (!p->config) fail_msg(PAGE ":%d: the table has no configuration", number);
        p->in_table = true;
    } else if (p->in_table && line[0] != '|') {
        player_stop(p);
    } else if (p->in_table && !after(line, "| ---")) {
        player_row(p, line, number);
    }
}

/* ---- the page ------------------------------------------------------------------------------- */

/* Plays all recipes. */
TEST(every_statement_of_the_cookbook_holds) {
    char *page = page_read(), *next = page;
    player p = {.config = NULL};
    int number = 1, block_line = 0;
    const char *block = NULL;
    for (char *line = page; next; line = next, number++) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        if (block && strcmp(line, "```") == 0) {
            player_start(&p, block, (size_t)(line - block), block_line);
            block = NULL;
        } else if (strcmp(line, "```json") == 0) {
            block = next;
            block_line = number + 1;
        } else if (!block) {
            player_line(&p, line, number);
        }
        if (block && next) next[-1] = '\n'; /* a block stays one text */
    }
    player_stop(&p);
    free(page);
    print_message("%d recipes\n", p.recipes);
    assert_int_equal(p.differences, 0);
    assert_true(p.recipes >= 20);
}
