/* doorman_server, part HTTP: metrics of the process. They have the names and units that the client
 * libraries of Prometheus use, so that general dashboards and alerts work for this server too. The
 * functions do not read the state of the server, so they need no lock.
 *
 * A metric is left out if the system does not provide its value. Systems without /proc, such as
 * FreeBSD, provide only the CPU time and the limit of file descriptors. */
#include "pages.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

static void process_metric(struct text *text, const char *name, const char *type, const char *help,
                           double value) {
    server_text_addf(text, "# HELP process_%s %s\n# TYPE process_%s %s\nprocess_%s %.17g\n", name,
                     help, name, type, name, value);
}

static double seconds_of_timeval(struct timeval time) {
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

static double seconds_of_clock(clockid_t clock) {
    struct timespec time = {0};
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Returns the number of open file descriptors; -1: not known. The count leaves out the descriptor
 * that this function opens. */
static int process_count_files(void) {
    int count = -1;
    DIR *folder = opendir("/proc/self/fd");
    if (folder) {
        count = 0;
        for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
            count += entry->d_name[0] != '.';
        }
        count--;
        closedir(folder);
    }
    return count;
}

/* What /proc/self/stat says about this process. */
struct process_state {
    double started; /* clock ticks after the start of the system */
    double virtual_bytes, resident_pages;
};

/* Reads the fields 22 to 24 of /proc/self/stat (proc(5)). The second field is the name of the
 * program in parentheses, and may contain spaces and parentheses. Returns false if the fields
 * cannot be read. */
static bool process_read_state(struct process_state *out) {
    char line[1024] = "";
    FILE *file = fopen("/proc/self/stat", "rb");
    if (!file) return false;
    line[fread(line, 1, sizeof line - 1, file)] = 0;
    fclose(file);
    const char *at = strrchr(line, ')');
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    double *const fields[] = {&out->started, &out->virtual_bytes, &out->resident_pages};
    for (size_t i = 0; at && i < sizeof fields / sizeof *fields; i++) {
        char *end = NULL;
        *fields[i] = strtod(at, &end);
        at = end > at ? end : NULL;
    }
    return at != NULL;
}

#ifdef CLOCK_BOOTTIME
/* Adds when the process started. The value is computed only once. Otherwise it would change a
 * little each time, because two clocks are read one after the other. Only the thread of pages calls
 * this function. */
static void process_add_start(struct text *text, const struct process_state *state) {
    static double started_at; /* Unix seconds; 0: not computed */
    if (started_at <= 0) {
        double booted_at = seconds_of_clock(CLOCK_REALTIME) - seconds_of_clock(CLOCK_BOOTTIME);
        started_at = booted_at + state->started / (double)sysconf(_SC_CLK_TCK);
    }
    process_metric(text, "start_time_seconds", "gauge",
                   "Start time of the process since unix epoch in seconds.", started_at);
}
#else
static void process_add_start(struct text *text, const struct process_state *state) {
    (void)text, (void)state;
}
#endif

void server_process_metrics(struct text *text) {
    struct process_state state = {0};
    struct rusage usage;
    struct rlimit limit;
    int files = process_count_files();
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        process_metric(text, "cpu_seconds_total", "counter",
                       "Total user and system CPU time spent in seconds.",
                       seconds_of_timeval(usage.ru_utime) + seconds_of_timeval(usage.ru_stime));
    }
    if (process_read_state(&state)) {
        process_metric(text, "virtual_memory_bytes", "gauge", "Virtual memory size in bytes.",
                       state.virtual_bytes);
        process_metric(text, "resident_memory_bytes", "gauge", "Resident memory size in bytes.",
                       state.resident_pages * (double)sysconf(_SC_PAGESIZE));
        process_add_start(text, &state);
    }
    if (files >= 0) {
        process_metric(text, "open_fds", "gauge", "Number of open file descriptors.", files);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        process_metric(text, "max_fds", "gauge", "Maximum number of open file descriptors.",
                       (double)limit.rlim_cur);
    }
}
