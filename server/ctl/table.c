/* doormanctl: tables for people. */
#include "ctl.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* ---- texts ---------------------------------------------------------------------------------- */

/* Writes an amount as "1,234.5". */
static const char *amount_text(char out[CTL_NUMBER_BYTES], double amount) {
    char digits[CTL_NUMBER_BYTES];
    if (!(fabs(amount) < 1e15)) { /* too long to read; also if it is no number */
        snprintf(out, CTL_NUMBER_BYTES, "%.6g", amount);
        return out;
    }
    int whole = snprintf(digits, sizeof digits, "%.2f", amount) - 3, used = 0;
    for (int i = 0; i < whole; i++) {
        if (i > (digits[0] == '-') && (whole - i) % 3 == 0) out[used++] = ',';
        out[used++] = digits[i];
    }
    memcpy(out + used, digits + whole, 4); /* ".00" and the final 0 */
    char *end = out + used + 3;
    while (end[-1] == '0') *--end = 0;
    if (end[-1] == '.') end[-1] = 0;
    return out;
}

double ctl_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

const char *ctl_seconds(char out[CTL_NUMBER_BYTES], double seconds) {
    static const struct {
        double below, seconds; /* the unit is used below this time, and has this many seconds */
        const char *unit;
    } units[] = {
        {120, 1, "s"}, {7200, 60, "min"}, {48.0 * 3600, 3600, "h"}, {HUGE_VAL, 86400, "d"}};
    size_t i = 0;
    while (i < 3 && !(seconds < units[i].below)) i++;
    amount_text(out, round(seconds / units[i].seconds * 10) / 10);
    size_t bytes = strlen(out);
    snprintf(out + bytes, CTL_NUMBER_BYTES - bytes, " %s", units[i].unit);
    return out;
}

/* ---- tables --------------------------------------------------------------------------------- */

#define CELL_BYTES 128

/* Returns the text of a cell.
 *   out   room for a text that is not in the row itself */
static const char *cell_text(char out[CELL_BYTES], const struct ctl_column *column,
                             const cJSON *row) {
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(row, column->field), *part = NULL;
    char number[CTL_NUMBER_BYTES], name[32];
    double sum = cJSON_IsNumber(field) ? field->valuedouble : 0;
    const char *unit = strcmp(column->field, "capacity") == 0 ? ctl_text(row, "unit") : "";
    if (column->kind == CTL_TEXT) return ctl_text(row, column->field);
    out[0] = 0;
    if (column->kind == CTL_MARKS) {
        for (const char *at = column->field; *at; at += strspn(at, " ")) {
            int bytes = (int)strcspn(at, " ");
            snprintf(name, sizeof name, "%.*s", bytes, at);
            at += bytes;
            if (!ctl_is_true(row, name)) continue;
            size_t used = strlen(out);
            snprintf(out + used, CELL_BYTES - used, "%s%s", used ? " " : "", name);
        }
        return out;
    }
    if (!field) return "-";
    if (column->kind == CTL_SECONDS) return ctl_seconds(out, sum);
    if (column->kind == CTL_ID) {
        snprintf(out, CELL_BYTES, "%.0f", sum);
        return out;
    }
    if (column->kind == CTL_SUM) cJSON_ArrayForEach(part, field) sum += part->valuedouble;
    snprintf(out, CELL_BYTES, "%s%s%s", amount_text(number, sum), unit[0] ? " " : "", unit);
    return out;
}

/* Prints a cell. No line ends with spaces.
 *   gap   in/out: the spaces that are due before the next text of the row */
static void cell_print(const struct ctl_table *table, size_t i, const char *text, const char *color,
                       int *gap) {
    enum ctl_kind kind = table->columns[i].kind;
    bool is_right = kind != CTL_TEXT && kind != CTL_MARKS, is_last = !table->columns[i + 1].header;
    int padding = table->widths[i] - ctl_width(text);
    if (is_right) *gap += padding;
    if (*text) {
        printf("%*s%s", *gap, "", color);
        ctl_print(stdout, text);
        if (*color) fputs("\033[0m", stdout);
        *gap = 0;
    }
    *gap = is_last ? 0 : *gap + (is_right ? 0 : padding) + 2;
    if (is_last) putchar('\n');
}

static void widen(int *width, const char *text) {
    int other = ctl_width(text);
    if (other > *width) *width = other;
}

void ctl_table_print(struct ctl_table *table, const cJSON *rows, bool has_color) {
    const struct ctl_column *columns = table->columns;
    const cJSON *row = NULL;
    char room[CELL_BYTES];
    bool begins = !table->has_begun;
    int gap = 0;
    table->has_begun = true;
    for (size_t i = 0; columns[i].header; i++) {
        widen(&table->widths[i], columns[i].header);
        cJSON_ArrayForEach(row, rows) {
            widen(&table->widths[i], cell_text(room, &columns[i], row));
        }
    }
    if (begins && cJSON_GetArraySize(rows) == 0) {
        printf("%s%snone\n", table->what ? table->what : "", table->what ? ": " : "");
    }
    for (size_t i = 0; begins && cJSON_GetArraySize(rows) > 0 && columns[i].header; i++) {
        cell_print(table, i, columns[i].header, has_color ? "\033[1m" : "", &gap);
    }
    cJSON_ArrayForEach(row, rows) {
        for (size_t i = 0; columns[i].header; i++) {
            const char *color = has_color && columns[i].kind == CTL_MARKS ? "\033[31m" : "";
            cell_print(table, i, cell_text(room, &columns[i], row), color, &gap);
        }
    }
}
