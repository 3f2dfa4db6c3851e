/* A process and the store of its node: see sim_state.c.
 *
 * A process takes the same steps as server/state/state_thread.c, with the functions of the library.
 * A new master claims the store with its term, reads all rows, and then writes once a second what
 * has changed. A batch is written whole or not at all. A store that does not answer in time may
 * have written the batch, may still write it, or may never do so. The process keeps the batch and
 * writes it again, or marks its rows as changed.
 *
 * The store takes no batch of an earlier term than the one that has claimed it last. Within a term,
 * it takes no batch that was sent before the last batch it took. */
#include "sim_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SECOND DOORMAN_SECOND
#define INTERVAL SECOND         /* --state-interval */
#define WAIT (10 * SECOND)      /* --state-wait */
#define STOP (25 * SECOND)      /* for the last changes, when a server stops */
#define TIME_LIMIT (2 * SECOND) /* of a call */
#define RETRY (5 * SECOND)
#define READ_ROWS 8 /* of one call */

static sim_state_process *process_of(sim_world *world, size_t process) {
    return &world->states->processes[process];
}

static sim_state_store *store_of(sim_world *world, size_t process) {
    return &world->states->stores[world->processes[process].node];
}

static void proceed(sim_world *world, size_t process);

/* ---- rows that a process has taken */

static void forget_rows(sim_state_process *own, size_t count) {
    assert(count <= own->row_count);
    for (size_t i = 0; i < count; i++) sim_state_row_clear(&own->rows[i]);
    memmove(own->rows, own->rows + count, (own->row_count - count) * sizeof *own->rows);
    own->row_count -= count;
    if (!own->row_count) own->are_of_old_limits = false;
}

/* Takes the next row that has changed. Returns false if there is none. */
static bool take_row(sim_world *world, size_t process) {
    static unsigned char bytes[DOORMAN_PERMIT_ROW_BYTES_MAX];
    sim_state_process *own = process_of(world, process);
    size_t count = doorman_permits_next_changed(sim_state_permits(world, process), bytes,
                                                sim_state_local(world, process));
    if (!count) return false;
    if (own->row_count == own->row_capacity) {
        own->row_capacity = own->row_capacity ? 2 * own->row_capacity : 16;
        own->rows = (sim_state_row *)realloc(own->rows, own->row_capacity * sizeof *own->rows);
        if (!own->rows) abort();
    }
    sim_state_row *row = &own->rows[own->row_count++];
    assert(count <= sizeof row->bytes);
    *row = (sim_state_row){.byte_count = count};
    memcpy(row->bytes, bytes, count);
    sim_state_account_yielded(world, process, row);
    return true;
}

/* Returns whether the row that was taken last is about a reservation. Rows of new reservations come
 * before other rows, so take_rows does not count them. */
static bool is_of_reservation(const sim_state_process *own) {
    const sim_state_row *last = &own->rows[own->row_count - 1];
    doorman_permit_row row;
    doorman_status status = doorman_permit_row_read(last->bytes, last->byte_count, &row, NULL);
    assert(status == DOORMAN_OK);
    (void)status;
    return row.is_reservation;
}

/* Takes what has changed until now, or a part of it. Returns whether it was all. */
static bool take_rows(sim_world *world, size_t process, size_t most) {
    doorman_permits_info info;
    doorman_permits_read(sim_state_permits(world, process), &info);
    size_t left = info.changed_count;
    bool more = left > 0;
    while (more && most-- > 0) {
        more = take_row(world, process);
        if (more && !is_of_reservation(process_of(world, process))) more = --left > 0;
    }
    return !more;
}

void sim_state_take_all(sim_world *world, size_t process) {
    sim_state_process *own = process_of(world, process);
    if (!sim_state_permits(world, process) || own->step != SIM_STATE_WRITING) return;
    (void)take_rows(world, process, SIZE_MAX);
    own->are_of_old_limits = own->row_count > 0;
}

/* ---- the store */

static void apply_row(sim_state_store *store, const sim_state_row *row) {
    sim_state_row *own = &store->rows[row->index];
    if (!row->removed) {
        sim_state_row_copy(own, row);
        return;
    }
    sim_state_row_clear(own);
    own->change_count = row->change_count;
}

static void read_rows(const sim_state_store *store, sim_state_call *call) {
    call->rows = (sim_state_row *)calloc(READ_ROWS, sizeof *call->rows);
    if (!call->rows) abort();
    for (call->next_row = call->first; call->next_row < SIM_STATE_ROWS; call->next_row++) {
        const sim_state_row *row = &store->rows[call->next_row];
        if (!row->byte_count) continue;
        if (call->row_count == READ_ROWS) break;
        sim_state_row_copy(&call->rows[call->row_count], row);
        call->rows[call->row_count++].index = call->next_row;
    }
}

/* Lets the store handle a call (D9). Returns false if the store ignores the call, because it has
 * taken a later batch. */
static bool handle_call(sim_world *world, sim_state_call *call) {
    sim_state_store *store = store_of(world, call->process);
    call->is_refused = sim_state_is_refused(store, call);
    if (call->step == SIM_STATE_READING) {
        call->is_refused = false;
        if (call->first == 0) call->acts = store->acts;
        read_rows(store, call);
        return true;
    }
    if (call->is_refused) {
        world->counts[SIM_BATCHES_REFUSED] += call->step == SIM_STATE_WRITING;
        return true;
    }
    if (sim_state_is_late(store, call)) return false;
    store->term = call->term;
    store->write_number = call->write_number;
    for (size_t i = 0; i < call->row_count; i++) apply_row(store, &call->rows[i]);
    world->counts[SIM_ROWS_WRITTEN] += call->row_count;
    return true;
}

void sim_state_store_clear(sim_state_store *store) {
    for (size_t i = 0; i < SIM_STATE_ROWS; i++) {
        sim_state_row_clear(&store->rows[i]);
        sim_state_row_clear(&store->copy[i]);
    }
}

/* ---- calls and answers on their way */

static void on_answer(sim_world *world, const sim_event *event);

static void on_crash(sim_world *world, const sim_event *event) {
    const sim_process *process = &world->processes[event->actor];
    if (process->server && process->machine.incarnation == event->incarnation) {
        sim_state_restart(world, event->actor, false);
    }
}

/* Sometimes lets a process crash at this moment. Returns whether it does. */
static bool crashes(sim_world *world, size_t process) {
    if (!sim_fault_occurs(world, SIM_CRASH, 0.05)) return false;
    sim_event event = {.handler = on_crash, .actor = process};
    event.incarnation = world->processes[process].machine.incarnation;
    sim_schedule(world, world->now, event);
    return true;
}

static doorman_time store_delay(sim_world *world) {
    doorman_time delay = sim_time_between(&world->states->random, 0, world->latency / 4);
    if (!sim_fault_occurs(world, SIM_SLOW, 0.1)) return delay;
    return delay + sim_time_between(&world->fault_random[SIM_SLOW], 0, 6 * SECOND);
}

static void on_call(sim_world *world, const sim_event *event) {
    sim_state_call *call = &world->states->calls[event->target];
    if (world->now < store_of(world, call->process)->gone_until) return;
    if (!handle_call(world, call)) return;
    if (call->step == SIM_STATE_WRITING && crashes(world, call->process)) return;
    sim_event answer = *event;
    answer.handler = on_answer;
    answer.term = 1;
    sim_schedule(world, world->now + store_delay(world), answer);
}

/* Makes the call of the present step. The process gives it up after the time limit. */
static void send_call(sim_world *world, size_t process) {
    sim_states *states = world->states;
    sim_state_process *own = process_of(world, process);
    if (states->call_count == states->call_capacity) {
        states->call_capacity = states->call_capacity ? 2 * states->call_capacity : 256;
        states->calls =
            (sim_state_call *)realloc(states->calls, states->call_capacity * sizeof *states->calls);
        if (!states->calls) abort();
    }
    sim_state_call *call = &states->calls[states->call_count];
    *call = (sim_state_call){.process = process, .step = own->step, .term = own->term};
    call->number = ++own->call_number;
    call->first = own->next_row;
    sim_event event = {.handler = on_call, .actor = process, .target = states->call_count++};
    event.incarnation = world->processes[process].machine.incarnation;
    if (own->step != SIM_STATE_READING) call->write_number = ++own->write_number;
    if (own->step == SIM_STATE_WRITING) {
        own->sent_count = own->row_count < SIM_STATE_BATCH ? own->row_count : SIM_STATE_BATCH;
        call->row_count = own->sent_count;
        call->rows = (sim_state_row *)calloc(call->row_count, sizeof *call->rows);
        if (!call->rows) abort();
        for (size_t i = 0; i < call->row_count; i++) {
            sim_state_row_copy(&call->rows[i], &own->rows[i]);
        }
        if (crashes(world, process)) return;
    }
    sim_schedule(world, world->now + store_delay(world), event);
    event.handler = on_answer;
    event.term = 0;
    sim_schedule(world, world->now + TIME_LIMIT, event);
}

static void on_due(sim_world *world, const sim_event *event) {
    const sim_process *process = &world->processes[event->actor];
    if (!process->server || process->machine.incarnation != event->incarnation) return;
    if (process_of(world, event->actor)->call_number != event->term) return;
    if (process->machine.paused_until) {
        sim_schedule(world, process->machine.paused_until, *event);
    } else {
        proceed(world, event->actor);
    }
}

/* Proceeds at `at`, unless the process calls the store or waits for another time before. */
static void wait_until(sim_world *world, size_t process, doorman_time at) {
    sim_event event = {.handler = on_due, .actor = process};
    event.incarnation = world->processes[process].machine.incarnation;
    event.term = ++process_of(world, process)->call_number;
    sim_schedule(world, at, event);
}

static void retry(sim_world *world, size_t process) {
    wait_until(world, process,
               world->now + sim_time_between(&world->states->random, SECOND / 100, RETRY));
}

/* ---- what a process does with an answer */

static void set_rows(sim_world *world, size_t process, doorman_rows rows) {
    (void)doorman_permits_set_rows(sim_state_permits(world, process), rows);
    sim_state_account_move(world, process)->rows = rows;
    sim_log(world, "%s: rows are %s", world->processes[process].address,
            rows == DOORMAN_ROWS_READ      ? "read"
            : rows == DOORMAN_ROWS_AWAITED ? "awaited"
                                           : "unread");
}

static void end_reading(sim_world *world, size_t process) {
    sim_state_process *own = process_of(world, process);
    own->next_row = 0;
    bool again = own->reads_again;
    own->reads_again = false;
    if (again) return;
    own->was_read = true;
    own->late_at = DOORMAN_NEVER;
    own->step = SIM_STATE_WRITING;
    own->round_began_at = world->now;
    own->took_all = false;
    set_rows(world, process, DOORMAN_ROWS_READ);
    sim_state_check_all(world, process);
}

static void restore_rows(sim_world *world, size_t process, const sim_state_call *call) {
    sim_state_process *own = process_of(world, process);
    if (call->first == 0) sim_acts_restore(world, process, &call->acts);
    for (size_t i = 0; i < call->row_count && !world->failure[0]; i++) {
        const sim_state_row *row = &call->rows[i];
        doorman_error error = {0};
        doorman_status status =
            doorman_permits_restore(sim_state_permits(world, process), row->bytes, row->byte_count,
                                    &error, sim_state_local(world, process));
        if (status == sim_state_account_restore(world, process, row)) continue;
        sim_fail(world, "%s restores row %zu: %s", world->processes[process].address, row->index,
                 error.text);
    }
    world->counts[SIM_ROWS_READ] += call->row_count;
    own->next_row = call->next_row;
    if (own->next_row == SIM_STATE_ROWS) end_reading(world, process);
}

/* D6: keeps a batch that could not be written, or marks its rows so that they are yielded again. */
static void keep_rows(sim_world *world, size_t process) {
    sim_state_process *own = process_of(world, process);
    if (own->are_of_old_limits || sim_below(&world->states->random, 3)) return;
    for (size_t i = 0; i < own->row_count; i++) {
        const sim_state_row *row = &own->rows[i];
        doorman_status status = doorman_permits_mark_changed(sim_state_permits(world, process),
                                                             row->bytes, row->byte_count, NULL);
        if (status != DOORMAN_OK) sim_fail(world, "a row cannot be marked");
        sim_state_account_marked(world, process, row);
    }
    forget_rows(own, own->row_count);
    own->took_all = false;
}

static void take_answer(sim_world *world, size_t process, const sim_state_call *call,
                        bool answered) {
    sim_state_process *own = process_of(world, process);
    if (!answered) {
        if (own->step == SIM_STATE_READING) own->next_row = 0;
        if (own->step == SIM_STATE_WRITING) keep_rows(world, process);
        retry(world, process);
        return;
    }
    if (call->is_refused) {
        sim_log(world, "%s: its term is over", world->processes[process].address);
        if (call->term >= store_of(world, process)->term) sim_fail(world, "a term is refused");
        own->step = SIM_STATE_IDLE;
        return;
    }
    if (own->step == SIM_STATE_CLAIMING) {
        own->step = SIM_STATE_READING;
    } else if (own->step == SIM_STATE_READING) {
        restore_rows(world, process, call);
    } else {
        forget_rows(own, own->sent_count);
    }
    proceed(world, process);
}

static void on_answer(sim_world *world, const sim_event *event) {
    const sim_process *process = &world->processes[event->actor];
    sim_state_process *own = process_of(world, event->actor);
    const sim_state_call call = world->states->calls[event->target];
    if (!process->server || process->machine.incarnation != event->incarnation) return;
    if (call.number != own->call_number) return;
    if (process->machine.paused_until) {
        sim_schedule(world, process->machine.paused_until, *event);
        return;
    }
    own->call_number++;
    if (!sim_state_permits(world, event->actor)) {
        sim_state_end(world, event->actor);
    } else {
        take_answer(world, event->actor, &call, event->term != 0);
    }
}

/* ---- the steps */

static void read_again(sim_world *world, size_t process) {
    sim_state_process *own = process_of(world, process);
    own->reads_again = false;
    own->step = SIM_STATE_READING;
    send_call(world, process);
}

/* D3, D6: the round is over, so all changes before it are in the store. */
static void end_round(sim_world *world, size_t process) {
    sim_state_process *own = process_of(world, process);
    sim_state_account_check_kept(world, process, own->round_began_at);
    own->account.kept_at = own->round_began_at;
    sim_settle_kept(world, process, own->round_began_at);
    own->took_all = false;
    if (own->stop_at) {
        sim_state_account_check_kept(world, process, DOORMAN_NEVER);
        world->counts[SIM_STOPS]++;
        sim_state_restart(world, process, true);
    } else if (own->account.rows != DOORMAN_ROWS_READ) {
        read_again(world, process);
    } else {
        wait_until(world, process, own->round_began_at + INTERVAL);
    }
}

/* Begins a round of writing, or continues it. */
static void write_rows(sim_world *world, size_t process) {
    sim_state_process *own = process_of(world, process);
    if (!own->row_count && own->account.rows != DOORMAN_ROWS_READ) {
        read_again(world, process); /* nothing is yielded before */
        return;
    }
    if (!own->row_count && !own->took_all) {
        own->round_began_at = world->now;
        size_t most = sim_below(&world->states->random, 4) ? SIZE_MAX : SIM_STATE_BATCH;
        own->took_all = take_rows(world, process, most);
        if (own->took_all) sim_state_account_took_all(world, process);
    }
    if (world->failure[0]) return;
    if (own->row_count) {
        send_call(world, process);
    } else if (own->took_all) {
        end_round(world, process);
    } else {
        wait_until(world, process, world->now + 1);
    }
}

/* Does what the present step has to do next. */
static void proceed(sim_world *world, size_t process) {
    const sim_state_process *own = process_of(world, process);
    if (!sim_state_permits(world, process)) {
        sim_state_end(world, process);
    } else if (own->step == SIM_STATE_WRITING) {
        write_rows(world, process);
    } else if (own->step != SIM_STATE_IDLE) {
        send_call(world, process);
    }
}

void sim_state_begin(sim_world *world, size_t process) {
    sim_state_process *own = process_of(world, process);
    sim_state_end(world, process);
    sim_state_account_open(world, process);
    sim_settle_opened(world, process);
    sim_acts_opened(world, process);
    own->step = SIM_STATE_CLAIMING;
    own->late_at = sim_state_local(world, process) + WAIT;
    set_rows(world, process, DOORMAN_ROWS_AWAITED);
    send_call(world, process);
}

void sim_state_end(sim_world *world, size_t process) {
    sim_state_process *own = process_of(world, process);
    forget_rows(own, own->row_count);
    sim_state_account_close(&own->account);
    own->step = SIM_STATE_IDLE;
    own->was_read = own->reads_again = own->took_all = false;
    own->next_row = own->sent_count = 0;
    own->call_number++;
}

/* Must be called when a configuration with other durable limits is in force. */
void sim_state_read_again(sim_world *world, size_t process) {
    sim_state_process *own = process_of(world, process);
    own->reads_again = true;
    if (own->step != SIM_STATE_WRITING) return;
    own->late_at = sim_state_local(world, process) + WAIT;
    set_rows(world, process, DOORMAN_ROWS_AWAITED);
}

void sim_state_stop(sim_world *world, size_t process) {
    sim_state_process *own = process_of(world, process);
    if (own->stop_at || !sim_state_permits(world, process) || !own->was_read) return;
    if (own->step == SIM_STATE_IDLE) return;
    sim_log(world, "%s stops", world->processes[process].address);
    own->stop_at = world->now + STOP;
    own->step = SIM_STATE_WRITING;
    own->took_all = false;
    set_rows(world, process, DOORMAN_ROWS_READ);
    wait_until(world, process, world->now);
}

void sim_state_tick(sim_world *world, size_t process) {
    sim_state_process *own = process_of(world, process);
    sim_acts_tick(world, process);
    if (own->stop_at && world->now >= own->stop_at) {
        sim_state_restart(world, process, true); /* it has given up */
        return;
    }
    if (!sim_state_permits(world, process) || own->account.rows != DOORMAN_ROWS_AWAITED) return;
    if (sim_state_local(world, process) < own->late_at) return;
    own->late_at = DOORMAN_NEVER;
    world->counts[SIM_LATE]++;
    set_rows(world, process, DOORMAN_ROWS_UNREAD);
}
