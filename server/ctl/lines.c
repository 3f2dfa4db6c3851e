/* doormanctl: what several commands share: lists that come in parts, and times. */
#include "ctl.h"

#include <stdlib.h>
#include <string.h>

bool ctl_position_move(char position[CTL_POSITION_BYTES], const char *next) {
    bool has_moved = !next[0] || strcmp(position, next) != 0;
    snprintf(position, CTL_POSITION_BYTES, "%s", next);
    return has_moved;
}

enum ctl_exit ctl_answer_is_wrong(const struct ctl *ctl) {
    return ctl_fail(CTL_UNREACHABLE,
                    "%s answers, but not as a Doorman server does; is the address right?",
                    ctl->url);
}

/* Reads the lines of one answer, or prints them.
 *   field   each line has it
 *   rows   the array to which they are added; NULL: prints them as they are
 *   next   in/out: the position of the next part; "": there is none
 *   returns   whether all lines are those of a Doorman, and the position has moved */
static bool lines_take(char *text, const char *field, cJSON *rows, char next[CTL_POSITION_BYTES]) {
    bool is_good = true, has_moved = false;
    for (char *line = text; is_good && *line;) {
        size_t bytes = strcspn(line, "\n");
        char *following = line + bytes + (line[bytes] == '\n');
        line[bytes] = 0;
        cJSON *row = cJSON_Parse(line);
        if (ctl_text(row, "next")[0]) {
            is_good = has_moved = ctl_position_move(next, ctl_text(row, "next"));
        } else {
            is_good = cJSON_HasObjectItem(row, field);
            if (is_good && !rows) puts(line);
        }
        if (!is_good || has_moved || !rows || !cJSON_AddItemToArray(rows, row)) cJSON_Delete(row);
        line = following;
    }
    if (!has_moved) next[0] = 0;
    return is_good;
}

enum ctl_exit ctl_lines_show(struct ctl *ctl, struct ctl_request request, const char *field,
                             void (*change)(cJSON *row), const struct ctl_column *columns) {
    struct ctl_table table = {.columns = columns};
    struct ctl_reply reply;
    char after[CTL_POSITION_BYTES] = "";
    enum ctl_exit code = CTL_DONE;
    do {
        cJSON *rows = columns ? cJSON_CreateArray() : NULL;
        request.query[CTL_PARAMETER_MAX - 1] =
            (struct ctl_parameter){"after", after[0] ? after : NULL};
        code = ctl_call(ctl, &request, &reply);
        if (code == CTL_DONE && !lines_take(reply.text, field, rows, after)) {
            code = ctl_answer_is_wrong(ctl);
        }
        for (cJSON *row = rows ? rows->child : NULL; row && change; row = row->next) change(row);
        if (code == CTL_DONE && rows) ctl_table_print(&table, rows, ctl->has_color);
        cJSON_Delete(rows);
        ctl_reply_free(&reply);
    } while (code == CTL_DONE && after[0] && !ferror(stdout));
    return code;
}

double ctl_duration_read(const char *text) {
    static const char units[] = "smhd";
    static const double seconds[] = {1, 60, 3600, 86400};
    char *end = NULL;
    double value = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end) : units;
    bool is_valid = end != text && value >= 0 && value <= 1e9 && unit && (!*end || !end[1]);
    return is_valid ? value * seconds[unit - units] : -1;
}
