/* Capacity that follows reports of overload (H11): random reports, and what must follow from them.
 * See sim.h.
 *
 * Clients report with their next request, or in a separate message. In a burst the servers behind a
 * resource refuse requests or are late. Some reports are wrong. The network loses and repeats
 * reports like all messages. The checks are these:
 *   - A node and a client pass on exactly what was reported to them since their last request.
 *   - A root adds up exactly the reports of the last two to two and a quarter refresh intervals.
 *   - A model of each process of a root has bounds for the capacity in force. The capacity falls
 *     only when the resource is overloaded, and not below capacity_min. It grows by the exact
 *     steps, and not before they are due. Only one amount is not exact: a cut depends on the mean,
 *     over the time of the reports, of the sum of all leases. The model knows only the smallest and
 *     the largest sum in this time and shortly before it.
 *   - The leases in force add up to at most the largest capacity in force within the last lease
 *     length. sim_check.c compares the sums with this peak. */
#include "sim.h"

#include <math.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define AMOUNT_MAX 1e15
#define TOLERANCE 1e-9

static bool exceeds(double amount, double bound) {
    if (!(amount > bound)) return false; /* this is frequent, and fmax is slow */
    return amount > bound + TOLERANCE * fmax(1, fmax(fabs(amount), fabs(bound)));
}

static bool differs(double a, double b) { return exceeds(a, b) || exceeds(b, a); }

/* ---- random configurations and reports */

static bool divides_capacity(const sim_rules *rules) {
    doorman_kind kind = rules->algorithm.kind;
    return rules->matched && DOORMAN_KIND_DIVIDES(kind);
}

/* Lets the capacity of most resources follow reports. In a third of the cases it may fall to 0. */
void sim_overload_draw(sim_world *world, sim_rules *rules, bool first) {
    uint64_t *random = &world->fault_random[SIM_OVERLOAD];
    if (!world->follows) return;
    bool change = sim_below(random, 4) == 0 || first, follows = sim_below(random, 8) > 0;
    double part = sim_below(random, 3) ? sim_unit(random) : 0;
    if (change) rules->overload.target = follows ? SECOND : 0;
    if (change) rules->overload.capacity_min = part * rules->capacity;
    if (!rules->overload.target || !divides_capacity(rules)) {
        rules->overload = (doorman_overload){.target = 0};
    }
    rules->overload.capacity_min = fmin(rules->overload.capacity_min, rules->capacity);
}

/* Returns whether a server must take the report. */
bool sim_overload_is_valid(const doorman_overload_report *report) {
    const double amounts[] = {report->arrived, report->finished, report->refused, report->late};
    bool valid = report->interval > 0 && report->interval <= 100000000 * SECOND;
    for (size_t i = 0; i < 4; i++) valid = valid && amounts[i] >= 0 && amounts[i] <= AMOUNT_MAX;
    return valid && report->late <= report->finished;
}

/* Changes a number of a report. It may then contradict the others, be huge or not be allowed. */
static void make_wrong(doorman_overload_report *report, uint64_t *random) {
    double *const amounts[] = {&report->arrived, &report->finished, &report->refused,
                               &report->late};
    double *amount = amounts[sim_below(random, 4)];
    switch (sim_below(random, 6)) {
    case 0: *amount = sim_unit(random) * AMOUNT_MAX; break;
    case 1: *amount = 0; break;
    case 2: *amount = NAN; break;
    case 3: *amount = -1; break;
    case 4: report->interval = 1 + (doorman_time)sim_below(random, 1000); break;
    default: report->interval = (doorman_time)sim_below(random, 200000000) * SECOND; break;
    }
}

static doorman_overload_report draw_report(sim_world *world, size_t resource, uint64_t *random) {
    bool burst = world->now < world->burst_until[resource], late = sim_below(random, 4) == 0;
    double can = burst ? sim_between(random, 0.3, 0.95) : sim_between(random, 0.97, 1.1);
    doorman_overload_report report = {.interval =
                                          sim_time_between(random, SECOND / 10, 30 * SECOND)};
    report.arrived = sim_between(random, 0, 100);
    report.finished = report.arrived * (late ? 1 : can);
    report.refused = fmax(report.arrived - report.finished, 0);
    if (late) report.late = report.finished * (burst ? sim_between(random, 0.4, 1) : 0);
    if (sim_below(random, 32) == 0) make_wrong(&report, random);
    return report;
}

/* ---- what is passed on */

/* Adds a report to what a client or a node must pass on. */
static void add_pending(sim_pending *pending, const doorman_overload_report *report,
                        doorman_time local) {
    doorman_overload_report *sum = &pending->sum;
    bool uncertain = pending->uncertain;
    if (!pending->some) *pending = (sim_pending){.some = true, .since = local};
    pending->uncertain = uncertain;
    if (local - report->interval < pending->since) pending->since = local - report->interval;
    sum->arrived = fmin(sum->arrived + report->arrived, AMOUNT_MAX);
    sum->finished = fmin(sum->finished + report->finished, AMOUNT_MAX);
    sum->refused = fmin(sum->refused + report->refused, AMOUNT_MAX);
    sum->late = fmin(sum->late + report->late, sum->finished);
}

static bool has_more(const doorman_overload_report *a, const doorman_overload_report *b) {
    return exceeds(a->arrived, b->arrived) || exceeds(a->finished, b->finished) ||
           exceeds(a->refused, b->refused) || exceeds(a->late, b->late);
}

/* Checks what a sender passes on. The sender then forgets it. If the sender may have forgotten
 * reports earlier (`uncertain`), it passes on at most what was reported. */
static void check_passed_on(sim_world *world, sim_pending *pending, const char *sender,
                            const doorman_capacity_request *item, doorman_time local) {
    const doorman_overload_report *sent = &item->overload, *sum = &pending->sum;
    bool more = has_more(sent, sum), less = has_more(sum, sent);
    doorman_time interval = pending->some ? local - pending->since : 0;
    if (interval > 100000000 * SECOND) interval = 100000000 * SECOND;
    bool wrong = pending->uncertain ? sent->interval > interval : sent->interval != interval;
    if (more || wrong || (less && !pending->uncertain)) {
        sim_fail(world, "%s reports %g, %g, %g, %g in %.3f s of %s, and not %g, %g, %g, %g", sender,
                 sent->arrived, sent->finished, sent->refused, sent->late,
                 (double)sent->interval / SECOND, item->resource_id, sum->arrived, sum->finished,
                 sum->refused, sum->late);
    }
    *pending = (sim_pending){.some = false};
}

void sim_overload_sent(sim_world *world, const sim_message *message) {
    sim_sender sender = message->sender;
    if (!world->follows || message->request.method != DOORMAN_GET_CAPACITY) return;
    for (size_t i = 0; i < message->request.item_count; i++) {
        const doorman_capacity_request *item = &message->request_items[i];
        size_t resource = sim_resource_index(world, item->resource_id);
        sim_pending *pending = sender.is_process
                                   ? &world->processes[sender.index].pending[resource]
                                   : &world->clients[sender.index].usages[resource].pending;
        check_passed_on(world, pending, message->request.holder_id, item, message->sent_at);
    }
}

/* Lets a client add a report to its next request. The client must refuse a wrong report. */
static void report_with_request(sim_world *world, size_t index, size_t resource,
                                const doorman_overload_report *report) {
    sim_client *client = &world->clients[index];
    sim_usage *usage = &client->usages[resource];
    doorman_time local = sim_local(&client->machine.clock, world->now);
    doorman_resource_info info;
    if (!usage->resource) return;
    doorman_client_read(usage->resource, &info, local);
    doorman_status status = doorman_client_report_overload(usage->resource, report, local);
    sim_invalidate_client(world, index);
    if ((status == DOORMAN_OK) != sim_overload_is_valid(report) && report->interval) {
        sim_fail(world, "%s answers %s to a report", client->id, doorman_status_name(status));
    }
    if (!sim_overload_is_valid(report) || !info.overload_target) return;
    add_pending(&usage->pending, report, local);
    sim_log(world, "%s notes that %g of %g of %s were refused and %g late", client->id,
            report->refused, report->arrived, world->resources[resource], report->late);
}

/* Makes one report. From time to time a burst of overload begins. */
void sim_overload_inject(sim_world *world, uint64_t *random) {
    size_t client = sim_pick(random, world->client_count);
    size_t resource = sim_pick(random, world->resource_count);
    bool begins = sim_below(random, 40) == 0, alone = sim_below(random, 3) == 0;
    doorman_time until = world->now + sim_time_between(random, 5 * SECOND, 60 * SECOND);
    if (begins) world->burst_until[resource] = until;
    const doorman_overload_report report = draw_report(world, resource, random);
    if (!world->clients[client].client || world->clients[client].machine.paused_until) return;
    if (alone) {
        sim_send_report(world, client, resource, &report);
    } else {
        report_with_request(world, client, resource, &report);
    }
}

/* ---- a model of the capacity in force */

static bool reports_more(const doorman_overload_report *sum, double refused, double late) {
    if (sum->arrived < 20) return false;
    return sum->refused > refused * sum->arrived || sum->late > late * sum->finished;
}

static bool is_overloaded(const doorman_overload_report *sum) {
    return reports_more(sum, 0.05, 0.5);
}

static doorman_time part_length(const sim_followed *model) {
    return model->interval / 4 > 1 ? model->interval / 4 : 1;
}

/* Forgets the parts that are older than two refresh intervals. Returns the sum of the others. */
static doorman_overload_report sum_up(sim_followed *model, doorman_time local, doorman_time *from) {
    doorman_overload_report sum = {.interval = 0};
    doorman_time until = 0;
    size_t count = 0;
    int64_t oldest = local / part_length(model) - 8;
    *from = DOORMAN_NEVER;
    for (size_t i = 0; i < model->part_count; i++) {
        const sim_report_part part = model->parts[i];
        if (part.number < oldest) continue;
        model->parts[count++] = part;
        if (part.from < *from) *from = part.from;
        until = part.until;
        sum.arrived += part.sum.arrived;
        sum.finished += part.sum.finished;
        sum.refused += part.sum.refused;
        sum.late += part.sum.late;
    }
    model->part_count = count;
    if (count) sum.interval = until - *from;
    return sum;
}

static void add_report(sim_followed *model, const doorman_overload_report *report,
                       doorman_time local) {
    int64_t number = local / part_length(model);
    sim_report_part *last = model->part_count ? &model->parts[model->part_count - 1] : NULL;
    if (!last || last->number != number) {
        last = &model->parts[model->part_count++];
        *last = (sim_report_part){.number = number, .from = local};
    }
    if (local - report->interval < last->from) last->from = local - report->interval;
    last->until = local;
    last->sum.arrived += report->arrived;
    last->sum.finished += report->finished;
    last->sum.refused += report->refused;
    last->sum.late += report->late;
}

/* If the sum of the leases has changed, adds it to the last span, or begins a new span. A span has
 * all sums until the next span begins. Each span is at least as long as a part. */
static void note_leases(sim_followed *model, double has, doorman_time local) {
    sim_span *last = &model->spans[model->span_count - 1];
    double before = model->has;
    if (has >= before && has <= before) return;
    model->has = has;
    if (local - last->from >= part_length(model)) {
        if (model->span_count == SIM_SPANS) {
            model->spans[1].from = model->spans[0].from;
            model->spans[1].low = fmin(model->spans[1].low, model->spans[0].low);
            model->spans[1].high = fmax(model->spans[1].high, model->spans[0].high);
            memmove(model->spans, model->spans + 1, (SIM_SPANS - 1) * sizeof *model->spans);
            model->span_count--;
        }
        last = &model->spans[model->span_count++];
        *last = (sim_span){local, before, before};
    }
    last->low = fmin(last->low, has);
    last->high = fmax(last->high, has);
}

/* Makes the steps by which the capacity grows. They depend on the reports before this event. */
static void grow(sim_followed *model, doorman_time local) {
    doorman_time from;
    if (!model->follows || local < model->step_at) return;
    doorman_overload_report sum = sum_up(model, local, &from);
    if (is_overloaded(&sum)) {
        model->calm = 0;
        model->step_at = local + model->interval;
        return;
    }
    if (reports_more(&sum, 0.01, 0.1) && model->calm > 9) model->calm = 9;
    while (local >= model->step_at) {
        double step = fmin(0.005 * pow(2, model->calm < 10 ? 0 : model->calm - 9), 0.1);
        if (model->calm < 20) model->calm++;
        model->low = fmin(model->low + step * model->configured, model->configured);
        model->high = fmin(model->high + step * model->configured, model->configured);
        bool full = model->low >= model->configured;
        model->step_at = full ? DOORMAN_NEVER : model->step_at + model->interval;
    }
}

/* Computes the bounds of the capacity after a cut, which depends on the mean of the leases in the
 * time of the reports: this mean is at least the smallest sum and at most the largest. The server
 * stores the integral of the sum at marks that are at least a part apart, and interpolates between
 * them. A span is at least as long as a part, so the sums of up to two earlier spans count too. The
 * server subtracts two integrals, so the mean of a very short time has a rounding error. */
static void cut(sim_followed *model, doorman_time local) {
    doorman_time from;
    doorman_overload_report sum = sum_up(model, local, &from);
    model->must_cut = model->may_cut = false;
    if (!is_overloaded(&sum)) return;
    double low = model->has, high = low, ratio = 0.97 * sum.finished / sum.arrived;
    for (size_t i = model->span_count, earlier = 0; i-- > 0 && earlier < 3;) {
        low = fmin(low, model->spans[i].low);
        high = fmax(high, model->spans[i].high);
        earlier += model->spans[i].from <= from;
    }
    double error = 4e-9 * SECOND / (double)(local - from);
    low = fmax((low - error) * ratio, model->least);
    high = fmax((high + error) * ratio, model->least);
    model->may_cut = !exceeds(low, model->high);
    model->cut_low = fmin(low, model->low);
    model->cut_high = fmin(high, model->high);
    model->must_cut = exceeds(model->low, model->cut_high);
}

/* Applies a configuration to a model. A capacity that reports have lowered stays, within its
 * bounds. */
static void bound(sim_followed *model, const sim_rules *rules, doorman_time local) {
    bool lowered = model->low < model->configured;
    doorman_time interval = rules->algorithm.refresh_interval;
    if (interval != model->interval) model->part_count = 0;
    model->interval = interval;
    model->configured = rules->capacity;
    model->least = rules->overload.capacity_min;
    model->low = lowered ? fmin(model->low, rules->capacity) : rules->capacity;
    model->high = lowered ? fmin(model->high, rules->capacity) : rules->capacity;
    model->low = fmax(model->low, model->least);
    model->high = fmax(model->high, model->least);
    bool full = model->low >= model->configured;
    if (model->step_at > local + interval) model->step_at = local + interval;
    if (full) model->step_at = DOORMAN_NEVER;
}

/* Begins a model with the first report. Earlier sums of the leases do not count. */
static void begin(sim_followed *model, const sim_rules *rules, doorman_time local) {
    double has = model->has;
    *model = (sim_followed){.follows = true, .has = has, .span_count = 1};
    model->spans[0] = (sim_span){0, has, has};
    model->step_at = DOORMAN_NEVER;
    bound(model, rules, local);
}

/* Checks that the last report has lowered the capacity if it must, and only if it may. Applies the
 * cut to the model. */
static void take_cut(sim_world *world, const sim_process *process, sim_followed *model,
                     const doorman_server_resource *state, doorman_time local) {
    bool happened = state->overload_cut_at == local && local > 0;
    if (model->cut_at != local && (happened ? !model->may_cut : model->must_cut)) {
        sim_fail(world, "%s %s the capacity of %s, and reports allow %.9g to %.9g",
                 process->address, happened ? "lowers" : "does not lower", state->resource_id,
                 model->cut_low, model->cut_high);
    }
    if (happened && model->may_cut) {
        model->low = model->cut_low;
        model->high = model->cut_high;
        model->cut_at = local;
        model->step_at = local + model->interval;
        model->calm = 0;
    }
    model->may_cut = model->must_cut = false;
    if (state->overload_cut_at == model->cut_at) return;
    sim_fail(world, "%s has lowered the capacity of %s at %.3f s, not at %.3f s", process->address,
             state->resource_id, (double)state->overload_cut_at / SECOND,
             (double)model->cut_at / SECOND);
}

/* Compares the capacity in force and the sum of the reports with the model, and moves the bounds of
 * the model to that capacity. A server rounds the capacity of whole units down. */
static void compare(sim_world *world, const sim_process *process, sim_followed *model,
                    const doorman_server_resource *state, const sim_rules *rules,
                    doorman_time local) {
    double low = model->follows ? model->low : rules->capacity, high = low, own = state->capacity;
    doorman_time from;
    doorman_overload_report sum = {.interval = 0};
    if (model->follows) sum = sum_up(model, local, &from);
    if (model->follows) high = model->high;
    if (exceeds(rules->whole ? floor(low - TOLERANCE) : low, own) || exceeds(own, high)) {
        sim_fail(world, "%s has a capacity of %.9g of %s in force, not %.9g to %.9g",
                 process->address, own, state->resource_id, low, high);
    }
    if (differs(state->configured_capacity, rules->capacity)) {
        sim_fail(world, "%s has a configured capacity of %.9g of %s, not %.9g", process->address,
                 state->configured_capacity, state->resource_id, rules->capacity);
    }
    if (state->overload.interval != sum.interval || has_more(&state->overload, &sum) ||
        has_more(&sum, &state->overload)) {
        sim_fail(world,
                 "%s adds up the reports of %s to %g of %g refused and %g of %g late in "
                 "%.3f s, not %g, %g, %g, %g in %.3f s",
                 process->address, state->resource_id, state->overload.refused,
                 state->overload.arrived, state->overload.late, state->overload.finished,
                 (double)state->overload.interval / SECOND, sum.refused, sum.arrived, sum.late,
                 sum.finished, (double)sum.interval / SECOND);
    }
    if (!model->follows) return;
    model->low = fmax(model->low, own);
    model->high = fmin(model->high, own + (rules->whole ? 1 : TOLERANCE));
    if (!exceeds(model->configured, own)) {
        model->low = model->high = model->configured;
        model->step_at = DOORMAN_NEVER;
    }
}

/* Compares a resource of a process of a root with its model, after a call. */
static void observe(sim_world *world, sim_process *process, size_t resource) {
    sim_followed *model = &process->followed[resource];
    const sim_rules *rules = &world->versions[process->version].rules[resource];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    doorman_server_resource state;
    process->in_force[resource] = 0;
    if (!doorman_server_find(process->server, world->resources[resource], &state, local)) {
        *model = (sim_followed){.follows = false};
        return;
    }
    process->in_force[resource] = state.capacity;
    if (model->follows) take_cut(world, process, model, &state, local);
    compare(world, process, model, &state, rules, local);
    if (model->follows) note_leases(model, state.has, local);
    model->has = state.has;
}

static bool has_model(const sim_world *world, size_t index) {
    const sim_process *process = &world->processes[index];
    return world->follows && process->server && sim_is_root(world, process);
}

/* Notes the sums of the leases of a process before it handles a message. Forgets the reports of
 * resources that the process has removed, as the process does. */
void sim_overload_before(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    for (size_t i = 0; i < world->resource_count && world->follows; i++) {
        doorman_server_resource state;
        bool found = doorman_server_find(process->server, world->resources[i], &state, local);
        if (!found) process->pending[i].uncertain = true;
        if (!found) process->followed[i] = (sim_followed){.follows = false};
        if (found && process->followed[i].follows) {
            note_leases(&process->followed[i], state.has, local);
        }
        if (found) process->followed[i].has = state.has;
    }
}

/* Must be called when a process has taken over leases, which come without the reports. */
void sim_overload_forget(sim_process *process) {
    memset(process->followed, 0, sizeof process->followed);
    for (size_t i = 0; i < SIM_RESOURCES; i++) process->pending[i].uncertain = true;
}

void sim_overload_stepped(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    for (size_t i = 0; i < world->resource_count && has_model(world, index); i++) {
        grow(&process->followed[i], local);
        observe(world, process, i);
    }
}

void sim_overload_configured(sim_world *world, size_t index) {
    sim_process *process = &world->processes[index];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    for (size_t i = 0; i < world->resource_count && has_model(world, index); i++) {
        sim_followed *model = &process->followed[i];
        const sim_rules *rules = &world->versions[process->version].rules[i];
        if (model->follows && rules->overload.target) bound(model, rules, local);
        if (!rules->overload.target) *model = (sim_followed){.follows = false, .has = model->has};
        observe(world, process, i);
    }
}

/* Applies one item of a message to the model, in the order of a server: first the steps that are
 * due, then the report. A message that only reports makes no step. */
static void follow_report(sim_world *world, size_t index, const sim_message *message, size_t item,
                          size_t resource) {
    sim_process *process = &world->processes[index];
    sim_followed *model = &process->followed[resource];
    const sim_rules *rules = &world->versions[process->version].rules[resource];
    const doorman_overload_report *report = &message->request_items[item].overload;
    doorman_time local = sim_local(&process->machine.clock, world->now);
    if (!sim_is_root(world, process)) {
        if (report->interval) add_pending(&process->pending[resource], report, local);
        return;
    }
    if (report->interval && !model->follows) begin(model, rules, local);
    if (message->request.method == DOORMAN_GET_CAPACITY) grow(model, local);
    if (!report->interval) return;
    add_report(model, report, local);
    cut(model, local);
}

void sim_overload_handled(sim_world *world, size_t index, const sim_message *message,
                          const doorman_response *response) {
    sim_process *process = &world->processes[index];
    for (size_t i = 0; i < response->item_count && world->follows; i++) {
        size_t resource = sim_resource_index(world, response->items[i].resource_id);
        if (response->items[i].overload_target) {
            follow_report(world, index, message, i, resource);
        }
    }
    for (size_t i = 0; i < world->resource_count && has_model(world, index); i++) {
        observe(world, process, i);
    }
}

/* ---- peaks */

/* Adds an amount to the peaks of a root. Each peak is larger than the later ones. */
static void add_peak(sim_peaks *peaks, double amount, doorman_time end, doorman_time now) {
    size_t count = 0;
    for (size_t i = 0; i < peaks->count; i++) {
        if (now > peaks->list[i].end || peaks->list[i].amount <= amount) continue;
        peaks->list[count++] = peaks->list[i];
    }
    if (count == SIM_PEAKS) amount = peaks->list[--count].amount;
    peaks->list[count] = (sim_peak){amount, end};
    peaks->count = count + 1;
}

/* Adds the capacity in force to the peaks. It counts from now on until leases that are granted now
 * have ended. While some server learns, it repeats leases, so older amounts count until these
 * leases have ended. */
void sim_overload_check(sim_world *world, size_t resource, bool learns) {
    if (!world->follows) return;
    doorman_time end =
        world->now + world->versions[world->version].drain_max[resource] + world->hold;
    for (size_t i = 0; i < world->node_count; i++) {
        sim_node *node = &world->nodes[i];
        sim_peaks *peaks = &node->peaks[resource];
        double amount = 0;
        if (node->parent != SIM_NONE) continue;
        for (size_t j = 0; j < node->process_count; j++) {
            const sim_process *process = &world->processes[node->first_process + j];
            bool running = process->server && !process->machine.paused_until;
            if (running && process->in_force[resource] > amount) {
                amount = process->in_force[resource];
            }
        }
        add_peak(peaks, amount, end, world->now);
        for (size_t j = 0; j < peaks->count && learns; j++) peaks->list[j].end = end;
    }
}

double sim_overload_peak(const sim_world *world, size_t root, size_t resource, bool of_leases) {
    const sim_peaks *peaks = &world->nodes[root].peaks[resource];
    doorman_time early = of_leases ? world->hold : 0;
    double most = 0;
    if (!world->follows) return INFINITY;
    for (size_t i = 0; i < peaks->count; i++) {
        const sim_peak *peak = &peaks->list[i];
        if (world->now <= peak->end - early && peak->amount > most) most = peak->amount;
    }
    return most;
}

/* Checks that all capacity is back in force at the end. */
void sim_overload_check_settled(sim_world *world, size_t index) {
    const sim_process *process = &world->processes[index];
    doorman_time local = sim_local(&process->machine.clock, world->now);
    doorman_cursor cursor = {0};
    doorman_server_resource state;
    if (!has_model(world, index)) return;
    while (doorman_server_next_resource(process->server, &cursor, &state, local)) {
        if (!differs(state.capacity, state.configured_capacity)) continue;
        sim_fail(world, "long after the last report %s has only %.9g of %s in force, not %.9g",
                 process->address, state.capacity, state.resource_id, state.configured_capacity);
    }
}
