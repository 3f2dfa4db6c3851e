/* doorman_server, part HTTP: the graphs of the status page, as SVG. The functions read the
 * history, and otherwise use only their arguments.
 *
 * A bar shows what the holders of a resource have and want now. A trend shows the last ten minutes
 * of a resource, or of a limit of permits. The Content-Security-Policy forbids style attributes, so
 * the sizes are attributes of SVG. An SVG is stretched to the width of the page, which would
 * stretch text too. So the numbers at the axes are HTML beside the SVG. */
#include "pages.h"

#define BAR_WIDTH 1000.0
#define BAR_MINIMUM 4.0 /* the width of an amount above 0 that is too small for the scale */

/* The SVG of a trend is TREND_WIDTH by 40. The lines are between TREND_TOP and TREND_BOTTOM. */
#define TREND_WIDTH (HISTORY_POINTS - 1)
#define TREND_TOP 2.0
#define TREND_BOTTOM 38.0
/* A bar cuts off wants beyond this many times the larger of two amounts: the capacity, and what the
 * holders have. A trend rounds this bound up. If both amounts are 0, nothing is cut off. */
#define WANTS_MAX 4.0

static const char *amount_text(double amount, char room[32]) {
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
    server_text_add(text, amount_text(amount, room));
}

/* Writes an amount with at most three significant digits, such as "1.5k", for an axis. */
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

/* Returns the amount at the end of a bar: the largest of capacity, has and wants. Much larger wants
 * are cut off (WANTS_MAX), so that the other amounts stay visible. */
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

/* One line of a graph. */
struct curve {
    const float *points; /* HISTORY_POINTS */
    const char *class;   /* its style */
    const char *title;   /* what its largest value means, such as "has at most " */
    double most;         /* its largest value */
};

/* What a graph shows, and its vertical axis. */
struct graph {
    unsigned count;            /* the number of valid points, as in struct trend */
    struct curve front, back;  /* the front is drawn over the back */
    const float *capacity;     /* as in struct trend; NULL: none */
    const char *unit, *beyond; /* what follows an amount of the title; the word for amounts of the
                                  back that are above the axis */
    double capacity_most;
    double top, scale; /* scale: units of the SVG for 1 */
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

static double points_most(const float *points, unsigned count) {
    double most = 0;
    for (unsigned i = HISTORY_POINTS - count; i < HISTORY_POINTS; i++) {
        most = larger(most, (double)points[i]);
    }
    return most;
}

/* Sets the vertical axis, which ends at or above the largest value.
 *   cuts   the axis ends lower if the back is much larger than the other lines (WANTS_MAX), so that
 *          these are not flat. The back is cut off where the axis ends */
static void graph_set_axis(struct graph *graph, bool cuts) {
    graph->front.most = points_most(graph->front.points, graph->count);
    graph->back.most = points_most(graph->back.points, graph->count);
    if (graph->capacity) graph->capacity_most = points_most(graph->capacity, graph->count);
    double limit = larger(graph->front.most, graph->capacity_most);
    double top = larger(limit, graph->back.most);
    if (cuts && limit > 0 && top > WANTS_MAX * limit) top = WANTS_MAX * limit;
    graph->top = top < AMOUNT_MIN ? 1 : top > AMOUNT_MAX ? top : round_up(top);
    graph->scale = (TREND_BOTTOM - TREND_TOP) / graph->top;
}

static double graph_y(const struct graph *graph, float value) {
    return larger(TREND_BOTTOM - (double)value * graph->scale, TREND_TOP);
}

static void add_line(struct text *text, const struct graph *graph, const struct curve *curve) {
    server_text_addf(text, "<polyline class=%s points='", curve->class);
    for (unsigned i = HISTORY_POINTS - graph->count; i < HISTORY_POINTS; i++) {
        server_text_addf(text, "%u,%.1f ", i, graph_y(graph, curve->points[i]));
    }
    server_text_add(text, "'/>");
}

/* Adds the capacity over time as a line with steps. A value below 0 means that there was none. */
static void add_capacity(struct text *text, const struct graph *graph) {
    float last = -1;
    server_text_add(text, "<path class=limit d='");
    for (unsigned i = HISTORY_POINTS - graph->count; i < HISTORY_POINTS; i++) {
        float value = graph->capacity[i];
        if (last >= 0) server_text_addf(text, "H%u", i);
        if (value >= 0 && last < 0) server_text_addf(text, "M%u,%.1f", i, graph_y(graph, value));
        if (value >= 0 && last >= 0) server_text_addf(text, "V%.1f", graph_y(graph, value));
        last = value;
    }
    server_text_add(text, "'/>");
}

static void add_title_amount(struct text *text, const char *title, double amount,
                             const char *unit) {
    server_text_add(text, title);
    server_text_add_amount(text, amount);
    server_text_add(text, unit);
}

/* Describes the graph for readers of the page who cannot see it, and on hover. */
static void add_title(struct text *text, const struct graph *graph) {
    if (graph->count < 2) {
        server_text_add(text, "<title>no history yet</title>");
        return;
    }
    server_text_addf(text, "<title>the last %u s: ",
                     (graph->count - 1) * (unsigned)(HISTORY_INTERVAL / DOORMAN_SECOND));
    add_title_amount(text, graph->front.title, graph->front.most, graph->unit);
    server_text_add(text, ", ");
    add_title_amount(text, graph->back.title, graph->back.most, graph->unit);
    if (graph->capacity_most > 0) {
        add_title_amount(text, ", capacity at most ", graph->capacity_most, graph->unit);
    }
    server_text_add(text, "</title>");
}

/* Adds the numbers of the vertical axis, and the lines. */
static void add_lines(struct text *text, const struct graph *graph) {
    server_text_add(text, "<span class=top>");
    if (graph->count > 1) add_short_amount(text, graph->top);
    server_text_add(text, "</span><span class=zero>0</span>");
    server_text_addf(text, "<svg viewBox='0 0 %d 40' preserveAspectRatio=none role=img>",
                     TREND_WIDTH);
    add_title(text, graph);
    server_text_addf(text, "<path class=grid d='M0,2H%dM0,38H%dM%.1f,2V38'/>", TREND_WIDTH,
                     TREND_WIDTH, TREND_WIDTH / 2.0);
    if (graph->count > 1) {
        add_line(text, graph, &graph->back);
        add_line(text, graph, &graph->front);
        if (graph->capacity) add_capacity(text, graph);
    }
    server_text_add(text, "</svg>");
}

/* Adds the ends of the horizontal axis, and the largest value of the back if the vertical axis cuts
 * it off. */
static void add_times(struct text *text, const struct graph *graph) {
    server_text_add(text, "<span class=from>10 min ago</span><span class=cut>");
    if (graph->count > 1 && graph->back.most > graph->top) {
        server_text_add(text, graph->beyond);
        add_short_amount(text, graph->back.most);
    }
    server_text_add(text, "</span><span class=to>now</span>");
}

void server_graph_add_trend(struct text *text, struct service *service, const char *id) {
    struct trend trend = server_history_find(service, id);
    struct graph graph = {.count = trend.count, .capacity = trend.capacity, .unit = ""};
    graph.front = (struct curve){.points = trend.has, .class = "given", .title = "has at most "};
    graph.back = (struct curve){.points = trend.wants, .class = "wanted"};
    graph.back.title = "wants at most ";
    graph.beyond = "wants to ";
    graph_set_axis(&graph, true);
    server_text_add(text, "<div class=trend>");
    add_lines(text, &graph);
    add_times(text, &graph);
    server_text_add(text, "</div>");
}

/* Both lines count permits, and the refusals are what an operator looks for. So nothing is cut
 * off. */
void server_graph_add_limit(struct text *text, const struct limit_trend *trend, bool is_small) {
    struct graph graph = {.count = trend->count, .unit = " a second", .beyond = ""};
    graph.front = (struct curve){.points = trend->granted, .class = "given"};
    graph.front.title = "granted at most ";
    graph.back = (struct curve){.points = trend->refused, .class = "refused"};
    graph.back.title = "refused at most ";
    graph_set_axis(&graph, false);
    server_text_add(text, is_small ? "<div class='trend small'>" : "<div class=trend>");
    add_lines(text, &graph);
    if (!is_small) add_times(text, &graph);
    server_text_add(text, "</div>");
}
