/* doorman_server, part HTTP: the graphs of the status page, as SVG. This file reads the history,
 * and otherwise uses only its arguments.
 *
 * A bar shows what the holders of a resource have and want now. A trend shows the last ten
 * minutes. The Content-Security-Policy forbids style attributes, so the sizes are attributes of
 * SVG. An SVG is stretched to the width of the page, which would stretch text too. So the numbers
 * at the axes are HTML beside the SVG. */
#include "pages.h"

#define BAR_WIDTH 1000.0
#define BAR_MINIMUM 4.0 /* the width of an amount above 0 that is too small for the scale */

/* The SVG of a trend is TREND_WIDTH by 40. The lines are between TREND_TOP and TREND_BOTTOM. */
#define TREND_WIDTH (HISTORY_POINTS - 1)
#define TREND_TOP 2.0
#define TREND_BOTTOM 38.0
/* A bar or an axis ends at this many times the larger of the capacity and what the holders have,
 * whatever they want. */
#define WANTS_MAX 4.0

const char *server_amount_text(double amount, char room[32]) {
    if (amount < 0) return "unlimited";
    snprintf(room, 32, amount > 0 && amount < 0.01 ? "%.2g" : "%.2f", amount);
    char *point = strchr(room, '.');
    size_t bytes = strlen(room);
    while (point && !strchr(room, 'e') && (room[bytes - 1] == '0' || room[bytes - 1] == '.')) {
        bool end = room[--bytes] == '.';
        room[bytes] = 0;
        if (end) break;
    }
    return room;
}

void server_text_add_amount(struct text *text, double amount) {
    char room[32];
    server_text_add(text, server_amount_text(amount, room));
}

/* Writes an amount with at most three digits, such as "1.5k", for an axis. */
static void add_short_amount(struct text *text, double amount) {
    static const char units[] = {'k', 'M', 'G', 'T'};
    if (amount < 999.5 || amount >= 999.5e12) {
        server_text_addf(text, "%.3g", amount);
    } else {
        size_t unit = 0;
        amount /= 1000;
        while (amount >= 999.5) {
            amount /= 1000;
            unit++;
        }
        server_text_addf(text, "%.3g%c", amount, units[unit]);
    }
}

static double larger(double left, double right) { return left > right ? left : right; }

static double bar_width(double amount, double scale) {
    double width = amount * scale;
    if (amount > 0 && width < BAR_MINIMUM) width = BAR_MINIMUM;
    return width < BAR_WIDTH ? width : BAR_WIDTH;
}

/* Returns the amount at the end of a bar: the largest one. Wants can be a thousand times larger
 * than the rest. Then the rest would not be visible, so wants are cut off. */
static double bar_maximum(const doorman_server_resource *info, double capacity) {
    double limit = larger(capacity, info->has), maximum = larger(limit, info->wants);
    bool cut = limit > 0 && maximum > WANTS_MAX * limit;
    return cut ? WANTS_MAX * limit : maximum;
}

void server_graph_add_bar(struct text *text, const struct row *row) {
    const doorman_server_resource *info = &row->info;
    double capacity = info->divides_capacity ? info->capacity : 0;
    double maximum = bar_maximum(info, capacity);
    double scale = maximum > 0 ? BAR_WIDTH / maximum : 0;
    server_text_add(text, "<svg class=bar viewBox='0 0 1000 10' preserveAspectRatio=none role=img>"
                          "<title>has ");
    server_text_add_amount(text, info->has);
    server_text_add(text, ", wants ");
    server_text_add_amount(text, info->wants);
    if (capacity > 0) {
        server_text_add(text, ", capacity ");
        server_text_add_amount(text, capacity);
    }
    if (row->unit[0]) server_text_add(text, ", in ");
    server_text_add_escaped(text, row->unit, server_escape_html);
    server_text_addf(text,
                     "</title><rect class=track width=1000 height=10 />"
                     "<rect class=wants width=%.1f height=10 />"
                     "<rect class=has width=%.1f height=10 />",
                     bar_width(info->wants, scale), bar_width(info->has, scale));
    if (capacity > 0) {
        server_text_addf(text, "<rect class=edge x=%.1f width=3 height=10 />",
                         larger(bar_width(capacity, scale) - 3, 0));
    }
    if (info->wants > maximum) { /* an arrow: the wants continue beyond the bar */
        server_text_add(text, "<path class=more d='M960 0L1000 5L960 10Z' />");
    }
    server_text_add(text, "</svg>");
}

/* The vertical axis of a trend, and the amounts that decide where it ends. */
struct axis {
    double has, wants, capacity; /* the largest values */
    double top, scale;           /* scale: units of the SVG for 1 */
};

/* Returns the smallest product of a step and a power of ten that is at least `amount`.
 * Precondition: the amount is from AMOUNT_MIN to AMOUNT_MAX, which bounds the loops. */
#define AMOUNT_MIN 1e-30
#define AMOUNT_MAX 1e30
static double round_up(double amount) {
    static const double steps[] = {1, 1.5, 2, 3, 4, 5, 6, 8, 10};
    double power = 1;
    size_t step = 0;
    assert(amount >= AMOUNT_MIN && amount <= AMOUNT_MAX);
    while (power * 10 <= amount) power *= 10;
    while (power > amount) power /= 10;
    while (step + 1 < sizeof steps / sizeof *steps && steps[step] * power < amount) step++;
    return steps[step] * power;
}

/* The axis ends above everything that the resource had and could give. Wants can be a thousand
 * times larger. Then the other lines would be flat, so wants above the axis are cut off. */
static struct axis axis_make(const struct trend *trend) {
    struct axis axis = {.has = 0};
    for (unsigned i = HISTORY_POINTS - trend->count; i < HISTORY_POINTS; i++) {
        axis.has = larger(axis.has, (double)trend->has[i]);
        axis.wants = larger(axis.wants, (double)trend->wants[i]);
        axis.capacity = larger(axis.capacity, (double)trend->capacity[i]);
    }
    double limit = larger(axis.has, axis.capacity), top = larger(limit, axis.wants);
    if (limit > 0 && top > WANTS_MAX * limit) top = WANTS_MAX * limit;
    axis.top = top < AMOUNT_MIN ? 1 : top > AMOUNT_MAX ? top : round_up(top);
    axis.scale = (TREND_BOTTOM - TREND_TOP) / axis.top;
    return axis;
}

static double axis_y(const struct axis *axis, float value) {
    return larger(TREND_BOTTOM - (double)value * axis->scale, TREND_TOP);
}

static void add_line(struct text *text, const struct trend *trend, const struct axis *axis,
                     const float *values, const char *class) {
    server_text_addf(text, "<polyline class=%s points='", class);
    for (unsigned i = HISTORY_POINTS - trend->count; i < HISTORY_POINTS; i++) {
        server_text_addf(text, "%u,%.1f ", i, axis_y(axis, values[i]));
    }
    server_text_add(text, "'/>");
}

/* Adds the capacity over time as a line with steps. A value below 0 means that there was none. */
static void add_capacity(struct text *text, const struct trend *trend, const struct axis *axis) {
    float last = -1;
    server_text_add(text, "<path class=limit d='");
    for (unsigned i = HISTORY_POINTS - trend->count; i < HISTORY_POINTS; i++) {
        float value = trend->capacity[i];
        if (last >= 0) server_text_addf(text, "H%u", i);
        if (value >= 0 && last < 0) server_text_addf(text, "M%u,%.1f", i, axis_y(axis, value));
        if (value >= 0 && last >= 0) server_text_addf(text, "V%.1f", axis_y(axis, value));
        last = value;
    }
    server_text_add(text, "'/>");
}

/* Describes the trend for readers of the page who cannot see it, and on hover. */
static void add_title(struct text *text, const struct trend *trend, const struct axis *axis) {
    if (trend->count < 2) {
        server_text_add(text, "<title>no history yet</title>");
        return;
    }
    server_text_addf(text, "<title>the last %u s: has at most ",
                     (trend->count - 1) * (unsigned)(HISTORY_INTERVAL / DOORMAN_SECOND));
    server_text_add_amount(text, axis->has);
    server_text_add(text, ", wants at most ");
    server_text_add_amount(text, axis->wants);
    if (axis->capacity > 0) {
        server_text_add(text, ", capacity at most ");
        server_text_add_amount(text, axis->capacity);
    }
    server_text_add(text, "</title>");
}

void server_graph_add_trend(struct text *text, struct service *service, const char *id) {
    struct trend trend = server_history_find(service, id);
    struct axis axis = axis_make(&trend);
    server_text_add(text, "<div class=trend><span class=top>");
    if (trend.count > 1) add_short_amount(text, axis.top);
    server_text_add(text, "</span><span class=zero>0</span>");
    server_text_addf(text, "<svg viewBox='0 0 %d 40' preserveAspectRatio=none role=img>",
                     TREND_WIDTH);
    add_title(text, &trend, &axis);
    server_text_addf(text, "<path class=grid d='M0,2H%dM0,38H%dM%.1f,2V38'/>", TREND_WIDTH,
                     TREND_WIDTH, TREND_WIDTH / 2.0);
    if (trend.count > 1) {
        add_line(text, &trend, &axis, trend.wants, "wanted");
        add_line(text, &trend, &axis, trend.has, "given");
        add_capacity(text, &trend, &axis);
    }
    server_text_add(text, "</svg><span class=from>10 min ago</span><span class=cut>");
    if (trend.count > 1 && axis.wants > axis.top) {
        server_text_add(text, "wants to ");
        add_short_amount(text, axis.wants);
    }
    server_text_add(text, "</span><span class=to>now</span></div>");
}
