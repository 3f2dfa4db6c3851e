/* A pool of jobs: three processes share the slots of one limit, and pass jobs on with their slots.
 *
 *     make
 *     build/examples/job_pool                          starts build/doorman_server
 *     build/examples/job_pool tcp://127.0.0.1:15000    uses a server that has the template below
 *
 * Process 1 accepts jobs. For each job it acquires a hold of one slot, and transfers it to process
 * 2, which does the first step. Process 2 transfers it to process 3, which does the second step and
 * releases the slot. No other job can take the slot in between. Only the id of a transfer gives the
 * right to seize it; process 1 passes the ids on.
 *
 * Process 2 is killed during job 2, and its jobs go to process 3. Process 3 seizes the transfers
 * that process 2 has not seized. The slot of job 2 stays taken until the hold of process 2 has
 * ended, so process 1 acquires another slot for job 2. The program checks that the limit is never
 * exceeded, and that all slots are free again at the end.
 */
#define DEMO_HAS_PERMITS
#include "demo.h"

#include <poll.h>

static const char config[] =
    "{\"resources\": [{\"identifier_glob\": \"jobs\", \"limits\": [\n"
    "  {\"name\": \"slots\", \"kind\": \"CONCURRENCY\", \"limit\": 3, \"time_to_live\": 3,\n"
    "   \"queue\": 100, \"max_wait\": 30, \"on_restart\": \"full\"}]}]}\n";

enum { SLOTS = 3, JOBS = 6, PROCESSES = 3, PARTS = 3, PATIENCE = 60 };

/* What a worker tells process 1. LOST: it has no slot for the job. */
typedef enum kind { TAKEN, PASSED, FINISHED, LOST } kind;
typedef struct message {
    kind kind;
    int job, step;
    uint64_t transfer_id;
    doorman_time ends_at; /* of the hold of the worker; 0: it has not seized one */
} message;

typedef struct job {
    bool accepted;
    int worker, step;
    uint64_t transfer_id;
    doorman_time ends_at; /* of its hold, as far as process 1 knows; 0: it has none */
} job;

typedef struct pool {
    const char *address;
    server server;
    int inbox[PROCESSES + 1][2], events[2]; /* pipes: to each worker, and to process 1 */
    pid_t workers[PROCESSES + 1];           /* 2 and 3; 0: it does not run */
    doorman_agent *agent;
    doorman_time start, lost_ends_at; /* of the last hold that was lost */
    job jobs[JOBS + 1];               /* from 1 */
    int finished, most_slots;
} pool;

/* Starts the agent of a process. A process that has used nng must not fork, so each process calls
 * this after the forks. */
static doorman_agent *start_agent(const char *address) {
    const doorman_client_options options = {
        .addresses = &address,
        .address_count = 1,
        .permits = {.fallback = DOORMAN_FAIL_CLOSED}}; /* no slot without a server */
    doorman_agent *agent = NULL;
    doorman_error error = {0};
    if (doorman_agent_start(&agent, &options, &error) != DOORMAN_OK) {
        fprintf(stderr, "job_pool: %s\n", error.text);
    }
    return agent;
}

/* Moves a hold into a transfer. Returns the id of the transfer, or 0. */
static uint64_t transfer(doorman_agent *agent, uint64_t hold) {
    const doorman_hold_request request = {.id = hold, .timeout = 5 * DOORMAN_SECOND};
    doorman_acquired out = {.granted = false};
    doorman_agent_transfer(agent, &request, &out, NULL);
    return out.granted ? out.transfer_id : 0;
}

/* ---- processes 2 and 3, the workers ---------------------------------------------------------- */

static void tell(const pool *p, kind what, message m) {
    m.kind = what;
    if (write(p->events[1], &m, sizeof m) != sizeof m) _exit(1);
}

/* Does one step. Returns false if the hold has ended, because the worker must stop then. */
static bool do_step(doorman_agent *agent, uint64_t hold, bool is_killed) {
    for (int part = 0; part < PARTS; part++) {
        doorman_held held = {.gone = true};
        doorman_agent_read_hold(agent, hold, &held);
        if (held.gone || doorman_clock() >= held.ends_at) return false;
        sleep_until(doorman_clock() + DOORMAN_SECOND / 10);
        if (is_killed) raise(SIGKILL);
    }
    return true;
}

/* Does one step of a job. Sends the result before it releases the slot, so that process 1 knows the
 * result before it can acquire the slot. */
static void do_job(const pool *p, doorman_agent *agent, int worker, message m) {
    const doorman_hold_request seizure = {.id = m.transfer_id, .timeout = 5 * DOORMAN_SECOND};
    doorman_acquired out = {.granted = false};
    doorman_agent_seize(agent, &seizure, &out, NULL);
    if (!out.granted) {
        tell(p, LOST, m);
        return;
    }
    m.ends_at = out.ends_at;
    tell(p, TAKEN, m);
    kind result = m.step == 1 ? PASSED : FINISHED;
    if (!do_step(agent, out.hold, worker == 2 && m.job == 2)) result = LOST;
    if (result == PASSED) m.transfer_id = transfer(agent, out.hold);
    if (result == PASSED && !m.transfer_id) result = LOST;
    tell(p, result, m);
    if (result != PASSED) doorman_agent_release(agent, out.hold);
}

/* Does jobs until process 1 closes the pipe. */
static void worker_main(const pool *p, int worker) {
    for (int i = 2; i <= worker; i++) close(p->inbox[i][1]);
    if (worker == 3) close(p->inbox[2][0]);
    doorman_agent *agent = start_agent(p->address);
    message m;
    while (agent && read(p->inbox[worker][0], &m, sizeof m) == sizeof m) {
        do_job(p, agent, worker, m);
    }
    doorman_agent_stop(agent);
    _exit(agent ? 0 : 1);
}

/* ---- process 1 ------------------------------------------------------------------------------- */

static void say(const pool *p, int process, const char *format, int number, int value) {
    printf("%4.1f s  process %d: ", (double)(doorman_clock() - p->start) / 1e9, process);
    printf(format, number, value);
    printf("\n");
    fflush(stdout);
}

/* Sends a job to the worker of its step. Process 3 does both steps if process 2 does not run. */
static void give(pool *p, int number) {
    job *j = &p->jobs[number];
    j->worker = j->step == 1 && p->workers[2] ? 2 : 3;
    const message m = {.job = number, .step = j->step, .transfer_id = j->transfer_id};
    bool sent = write(p->inbox[j->worker][1], &m, sizeof m) == sizeof m;
    if (sent) say(p, 1, "job %d goes to process %d", number, j->worker);
}

static void handle(pool *p, const message *m) {
    job *j = &p->jobs[m->job];
    if (m->kind == TAKEN) {
        j->ends_at = m->ends_at;
        say(p, j->worker, "job %d seized, step %d", m->job, m->step);
    } else if (m->kind == PASSED) {
        j->step = 2;
        j->transfer_id = m->transfer_id;
        give(p, m->job);
    } else if (m->kind == FINISHED) {
        j->ends_at = 0;
        say(p, j->worker, "job %d finished, %d in all", m->job, ++p->finished);
    } else {
        if (!m->ends_at && j->ends_at > p->lost_ends_at) p->lost_ends_at = j->ends_at;
        j->ends_at = 0;
        j->accepted = false;
        say(p, j->worker, "job %d has lost its slot at step %d", m->job, m->step);
    }
}

static void handle_all(pool *p, int wait_ms) {
    struct pollfd events = {.fd = p->events[0], .events = POLLIN};
    message m;
    for (; poll(&events, 1, wait_ms) == 1; wait_ms = 0) {
        if (read(p->events[0], &m, sizeof m) != sizeof m) return;
        handle(p, &m);
    }
}

static doorman_acquired acquire(pool *p, double slots, doorman_time max_wait) {
    const doorman_permit_item item = {.resource_id = "jobs", .cost = slots};
    uint64_t hold = 0;
    const doorman_permit_request request = {
        .items = &item, .item_count = 1, .max_wait = max_wait, .hold = &hold};
    doorman_acquired out = {.granted = false};
    doorman_agent_acquire(p->agent, &request, max_wait + 5 * DOORMAN_SECOND, &out, NULL);
    return out;
}

/* Acquires a slot for the next job. Waits only for a short time, because the workers send messages
 * too. Counts the slots: those of the jobs, and the one that was lost, until its hold has ended. */
static void accept_job(pool *p) {
    int number = 1, slots = 0;
    while (number <= JOBS && p->jobs[number].accepted) number++;
    if (number > JOBS) return;
    doorman_acquired out = acquire(p, 1, DOORMAN_SECOND / 10);
    if (!out.granted) return;
    handle_all(p, 0); /* a worker may have released this slot */
    p->jobs[number] = (job){.accepted = true, .step = 1, .ends_at = out.ends_at};
    for (int i = 1; i <= JOBS; i++) slots += p->jobs[i].ends_at > doorman_clock();
    slots += p->lost_ends_at > doorman_clock();
    if (slots > p->most_slots) p->most_slots = slots;
    say(p, 1, "job %d accepted, slots taken: %d", number, slots);
    p->jobs[number].transfer_id = transfer(p->agent, out.hold);
    give(p, number); /* without a transfer, the worker answers LOST */
}

/* Gives the jobs of process 2 to process 3 if process 2 has ended. */
static void replace_worker(pool *p) {
    if (!p->workers[2] || waitpid(p->workers[2], NULL, WNOHANG) == 0) return;
    p->workers[2] = 0;
    handle_all(p, 0); /* what it has sent before */
    say(p, 2, "killed, %d of %d jobs finished", p->finished, JOBS);
    for (int i = 1; i <= JOBS; i++) {
        if (p->jobs[i].accepted && p->jobs[i].worker == 2) give(p, i);
    }
}

/* Returns whether all jobs were finished, and all slots are free, within the limit. */
static bool run(pool *p) {
    p->start = doorman_clock();
    p->agent = start_agent(p->address);
    doorman_time patience = p->start + PATIENCE * DOORMAN_SECOND;
    while (p->agent && p->finished < JOBS && !interrupted && doorman_clock() < patience) {
        handle_all(p, 20);
        replace_worker(p);
        accept_job(p);
    }
    bool good = p->finished == JOBS && p->most_slots <= SLOTS;
    doorman_acquired all = {.granted = false};
    if (good) all = acquire(p, SLOTS, 10 * DOORMAN_SECOND);
    good = all.granted;
    if (good) say(p, 1, "all %d slots are free, at most %d were taken", SLOTS, p->most_slots);
    if (!good) say(p, 1, "failed: %d jobs, at most %d slots", p->finished, p->most_slots);
    if (good) doorman_agent_release(p->agent, all.hold);
    doorman_agent_stop(p->agent);
    return good;
}

/* ---- the processes --------------------------------------------------------------------------- */

static bool start_workers(pool *p) {
    if (pipe(p->events) || pipe(p->inbox[2]) || pipe(p->inbox[3])) return false;
    for (int i = 2; i <= PROCESSES; i++) {
        p->workers[i] = fork();
        if (p->workers[i] == 0) worker_main(p, i);
        if (p->workers[i] < 0) return false;
    }
    close(p->inbox[2][0]);
    close(p->inbox[3][0]);
    return true;
}

static void stop(pool *p) {
    for (int i = 2; i <= PROCESSES; i++) {
        if (p->inbox[i][1] > 0) close(p->inbox[i][1]);
        if (p->workers[i] > 0) waitpid(p->workers[i], NULL, 0);
    }
    server_destroy(&p->server);
}

int main(int argc, char **argv) {
    if (argc > 2 || (argc > 1 && argv[1][0] == '-')) { /* such as --help */
        printf("usage: job_pool [ADDRESS]\n");
        return argc > 2;
    }
    static pool p;
    p.address = argc > 1 ? argv[1] : p.server.address;
    catch_signals();
    signal(SIGPIPE, SIG_IGN); /* a worker that is dead reads nothing */
    bool good = (argc > 1 || server_create(&p.server, "build/doorman_server", config)) &&
                start_workers(&p) && run(&p);
    stop(&p);
    return good ? 0 : 1;
}
