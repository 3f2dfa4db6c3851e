/* doorman_server, part GRPC: the field `limit` of a descriptor as figures that the peer brings
 * (P31). The functions change only the call, and its counters.
 *
 * W3 The protocol cannot name a limit of the server. So the figures are for the first limit of the
 *    resource that takes figures: a bucket or a window, per key, and not leased. Figures are never
 *    an error. They are ignored and counted if the peer must not bring them, if the call is a
 *    Report or a Commit, if the master is asked, if no limit takes them, or if they are not valid
 *    or more than set_max allows. */
#include "grpc.h"

#include "build/grpc/messages.pb-c.h"

double server_grpc_unit_seconds(uint32_t unit) {
    static const double seconds[] = {
        [GRPC_WIRE__UNIT__SECOND] = 1,         [GRPC_WIRE__UNIT__MINUTE] = 60,
        [GRPC_WIRE__UNIT__HOUR] = 3600,        [GRPC_WIRE__UNIT__DAY] = 86400,
        [GRPC_WIRE__UNIT__MONTH] = 30 * 86400, [GRPC_WIRE__UNIT__YEAR] = 365 * 86400};
    return unit < sizeof seconds / sizeof *seconds ? seconds[unit] : 0;
}

static bool figures_take(const doorman_permit_limit *limit) {
    return limit->per == DOORMAN_PER_KEY && !limit->leased &&
           (limit->kind == DOORMAN_TOKEN_BUCKET || limit->kind == DOORMAN_FIXED_WINDOW ||
            limit->kind == DOORMAN_SLIDING_WINDOW);
}

/* Makes a rate and a size. A bucket whose size is 0 gets only a rate. Returns whether the limit
 * allows them. */
static bool figures_of_bucket(doorman_figures *out, const doorman_permit_limit *limit,
                              const struct grpc_wanted *wanted) {
    const double most = limit->set_max * (1 + 1e-9);
    out->rate = wanted->requests / wanted->seconds;
    out->has_size = limit->figures.size > 0;
    if (out->has_size) out->size = wanted->requests;
    return out->rate > 0 && out->rate <= most * limit->figures.rate &&
           out->size <= most * limit->figures.size;
}

/* Returns the seconds of a window of the calendar. */
static double figures_calendar(doorman_calendar calendar) {
    switch (calendar) {
    case DOORMAN_MINUTE: return 60;
    case DOORMAN_HOUR: return 3600;
    case DOORMAN_DAY: return 86400;
    case DOORMAN_WEEK: return 7 * 86400;
    case DOORMAN_MONTH: return 30 * 86400;
    case DOORMAN_NO_CALENDAR:
    case DOORMAN_CALENDAR_COUNT:
    default: return 0;
    }
}

/* Makes what a window grants, and its length if that differs from the length in the configuration.
 * Returns whether the limit allows them. */
static bool figures_of_window(doorman_figures *out, const doorman_permit_limit *limit,
                              const struct grpc_wanted *wanted) {
    const double most = limit->set_max * (1 + 1e-9) * limit->figures.limit;
    const doorman_time window = (doorman_time)(wanted->seconds * (double)DOORMAN_SECOND);
    const doorman_time own = limit->figures.window;
    out->has_limit = true;
    out->limit = wanted->requests;
    if (limit->figures.calendar) {
        const double seconds = figures_calendar(limit->figures.calendar);
        return wanted->seconds >= seconds && wanted->seconds <= seconds && out->limit <= most;
    }
    if (window == own) return out->limit <= most;
    out->window = window;
    return out->limit <= most && out->limit <= most * ((double)window / (double)own);
}

/* Makes the figures of a descriptor. Returns false if no limit takes them, or if they are not valid
 * for the limit. */
static bool figures_make(struct grpc_descriptor *descriptor, const doorman_config *config) {
    const doorman_template *found =
        config ? doorman_config_find(config, descriptor->item.resource_id) : NULL;
    const struct grpc_wanted *wanted = &descriptor->wanted;
    size_t at = 0;
    while (found && at < found->limit_count && !figures_take(&found->limits[at])) at++;
    if (!found || at == found->limit_count) return false;
    if (!(wanted->seconds > 0 && wanted->seconds <= 1e8)) return false;
    const doorman_permit_limit *limit = &found->limits[at];
    const bool is_bucket = limit->kind == DOORMAN_TOKEN_BUCKET;
    descriptor->set = (doorman_permit_set){.limit = descriptor->set_limit};
    snprintf(descriptor->set_limit, sizeof descriptor->set_limit, "%s", limit->name);
    return is_bucket ? figures_of_bucket(&descriptor->set.figures, limit, wanted)
                     : figures_of_window(&descriptor->set.figures, limit, wanted);
}

bool server_grpc_figures_bring(struct grpc_call *call, bool may) {
    const bool is_permit = call->step == GRPC_STEP_PERMIT;
    bool brings = false;
    for (size_t i = 0; i < call->descriptor_count; i++) {
        struct grpc_descriptor *descriptor = &call->descriptors[i];
        if (!descriptor->has_wanted) continue;
        descriptor->brings = may && is_permit && figures_make(descriptor, call->service->config);
        if (!descriptor->brings) server_counter_add(&call->counters->limits_ignored, 1);
        brings = brings || descriptor->brings;
    }
    return brings;
}

void server_grpc_figures_drop(struct grpc_call *call) {
    for (size_t i = 0; i < call->descriptor_count; i++) {
        struct grpc_descriptor *descriptor = &call->descriptors[i];
        if (descriptor->brings) server_counter_add(&call->counters->limits_ignored, 1);
        descriptor->brings = false;
    }
    call->brings = false;
}
