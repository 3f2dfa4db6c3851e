/* Measures how fast Doorman is: `make bench`, or `make bench QUICK=1` for some minutes.
 *
 *     build/bench [--quick] [--only NAME | --part N/PARTS] build/doorman_server FOLDER
 *
 * prints a table with the goal of each figure, and writes bench.csv and, for the pictures,
 * bench_cost.dat and bench_permits.dat to the folder. With --only it measures one of the parts
 * below, such as `shards`, and with --part 2/3 every third part, from the second on.
 * `build/bench echo` and `build/bench http2` are peers that the server is compared with.
 *
 * The machine is noisy, so figures are medians of several rounds. Two loads that are compared are
 * measured alternately: a short round of one, then a short round of the other. Work of a single
 * thread that waits for nothing is measured in CPU time. */
#define DOORMAN_IMPLEMENTATION
#include "bench.h"

#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* ---- numbers --------------------------------------------------------------------------------- */

doorman_time cpu_time(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (doorman_time)time.tv_sec * DOORMAN_SECOND + (doorman_time)time.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sort(double *values, size_t count) { qsort(values, count, sizeof *values, compare); }

double median(double *values, size_t count) {
    sort(values, count);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t random_next(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

uint64_t random_below(uint64_t *state, uint64_t bound) { return random_next(state) % bound; }

double random_unit(uint64_t *state) { return (double)(random_next(state) >> 11) * 0x1p-53; }

void write_holder_id(char out[HOLDER_ID_BYTES + 1], size_t index) {
    snprintf(out, HOLDER_ID_BYTES + 1, "web-%016zx-%011zu", index * 2654435761u,
             index % 100000000000);
}

/* ---- work of one thread ---------------------------------------------------------------------- */

double bytes_in_use(void) {
    struct mallinfo2 info = mallinfo2();
    return (double)info.uordblks + (double)info.hblkhd;
}

void note_pause(doorman_time *pause, doorman_time start) {
    doorman_time passed = cpu_time() - start;
    if (passed > *pause) *pause = passed;
}

/* Measures operations for `length` of CPU time, but for at most four times as long in real time. */
static double round_of(void (*some)(void *), void *context, doorman_time length) {
    doorman_time start = cpu_time(), passed = 0, end = doorman_clock() + 4 * length;
    size_t count = 0;
    for (; passed < length && doorman_clock() < end; passed = cpu_time() - start) {
        some(context);
        count += BENCH_SOME;
    }
    return (double)count * 1e9 / (double)passed;
}

double bench_rate(bench *b, void (*some)(void *), void *context) {
    double rates[7];
    size_t rounds = b->quick ? 3 : sizeof rates / sizeof *rates;
    doorman_time length = DOORMAN_SECOND / (b->quick ? 8 : 3);
    round_of(some, context, length / 2);
    for (size_t i = 0; i < rounds; i++) {
        rates[i] = round_of(some, context, length);
        bench_tick(b);
    }
    return median(rates, rounds);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void clear_step(const bench *b) {
    if (b->terminal) fputs("\r\033[K", stderr);
}

void must(bool done, const char *message) {
    if (done) return;
    fprintf(stderr, "\nbench: %s\n", message);
    exit(1);
}

static void show_step(bench *b) {
    double seconds = (double)(b->shown - b->started) / (double)DOORMAN_SECOND;
    clear_step(b);
    fprintf(stderr, "bench: %s", b->step);
    if (seconds >= 1) fprintf(stderr, ", %.0f s", seconds);
    fputs(b->terminal ? " ..." : "\n", stderr);
}

void bench_step(bench *b, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(b->step, sizeof b->step, format, arguments);
    va_end(arguments);
    b->started = b->shown = doorman_clock();
    show_step(b);
}

/* On a terminal each line replaces the last one. Elsewhere lines stay, so bench_tick prints them
 * less often. */
void bench_tick(bench *b) {
    doorman_time now = doorman_clock();
    if (now - b->shown < (b->terminal ? 1 : 5) * DOORMAN_SECOND) return;
    b->shown = now;
    show_step(b);
}

/* Writes a number for people: at most three digits below a thousand, else an integer with groups of
 * three digits. */
static const char *write_number(char out[32], double value) {
    char digits[32];
    if (fabs(value) < 999.5) {
        int places = fabs(value) < 9.995 ? 2 : fabs(value) < 99.95 ? 1 : 0;
        snprintf(out, 32, "%.*f", value == floor(value) ? 0 : places, value);
        return out;
    }
    size_t count = (size_t)snprintf(digits, sizeof digits, "%.0f", value), bytes = 0;
    for (size_t i = 0; i < count && bytes < 30; i++) {
        if (i > 0 && (count - i) % 3 == 0) out[bytes++] = ',';
        out[bytes++] = digits[i];
    }
    out[bytes] = 0;
    return out;
}

#define LARGE_PAGES "glibc.malloc.hugetlb=1"

#define TABLE_ROW "%-54s %10s  %s\n"
#define TABLE_GOAL_ROW "%-54s %10s  %-15s %-12s %s\n"

/* An indented name belongs to the last row that is not indented. The file has both names. */
static void write_csv(bench *b, const char *name, double value, const char *unit, goal to) {
    const char *sign = to.sense == AT_LEAST ? ">= " : "<= ";
    const char *own = name + strspn(name, " ");
    if (own == name) snprintf(b->group, sizeof b->group, "%s", name);
    fprintf(b->csv, "\"%s%s%s\",%.6g,%s,", own == name ? "" : b->group, own == name ? "" : ": ",
            own, value, unit);
    if (to.sense != NO_GOAL) fprintf(b->csv, "%s%.10g", sign, to.value);
    fputc('\n', b->csv);
}

void bench_row(bench *b, double value, const char *unit, goal to, const char *format, ...) {
    char name[96], number[32], wanted[32];
    const char *sign = to.sense == AT_LEAST ? ">=" : "<=";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    write_number(number, value);
    clear_step(b);
    if (to.sense == NO_GOAL) {
        printf(TABLE_ROW, name, number, unit);
    } else {
        char reach[40];
        bool done = to.sense == AT_LEAST ? value >= to.value : value <= to.value;
        snprintf(reach, sizeof reach, "%s %s", sign, write_number(wanted, to.value));
        printf(TABLE_GOAL_ROW, name, number, unit, reach, done ? "yes" : "no");
    }
    fflush(stdout);
    write_csv(b, name, value, unit, to);
}

void bench_skip(const bench *b, const char *name, const char *program) {
    clear_step(b);
    printf("%-54s %10s  %s is not installed\n", name, "SKIPPED", program);
}

/* ---- main ------------------------------------------------------------------------------------ */

static void on_signal(int number) {
    peers_kill();
    _exit(128 + number);
}

/* Removes all DOORMAN_ variables, so that none affects the server. A server has no port for HTTP
 * unless its arguments say so. */
static void clean_environment(void) {
    for (char **variable = environ; *variable;) {
        char name[64] = "";
        sscanf(*variable, "%63[^=]", name);
        bool ours = strncmp(name, "DOORMAN_", 8) == 0;
        if (!ours || unsetenv(name) != 0) variable++;
    }
    setenv("DOORMAN_HTTP", "off", 1);
}

/* Uses memory in pages of 2 MiB, if the kernel has them. A million holders are on 60,000 small
 * pages, and the processor caches the addresses of only a few thousand. malloc reads the setting
 * from a variable when a program starts, so this runs the program again. Returns if the variable is
 * set already, or the program cannot run again. */
static void use_large_pages(char **arguments) {
    static const char name[] = "GLIBC_TUNABLES";
    if (getenv(name) || setenv(name, LARGE_PAGES, 1) != 0) return;
    execv("/proc/self/exe", arguments);
}

static bool has_large_pages(void) {
    char modes[64] = "[never]";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    const char *set = getenv("GLIBC_TUNABLES");
    if (!file) return false;
    modes[fread(modes, 1, sizeof modes - 1, file)] = 0;
    fclose(file);
    return set && strcmp(set, LARGE_PAGES) == 0 && !strstr(modes, "[never]");
}

static FILE *create(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    if (!file) fprintf(stderr, "bench: %s: %s\n", path, strerror(errno));
    must(file, "cannot write the results");
    return file;
}

static const struct part {
    const char *name;
    void (*measure)(bench *b);
} parts[] = {
    {"limiter", bench_limiter},
    {"pacing", bench_pacing},
    {"wire", bench_wire},
    {"agent", bench_agent},
    {"events", bench_events},
    {"http", bench_http},
    {"grpc", bench_grpc},
    {"shards", bench_shards},
    {"moves", bench_moves},
    {"throttled", bench_throttled},
    {"connections", bench_connections},
    {"renewals", bench_renewals},
    {"permits", bench_permits},
    {"batch", bench_batch},
    {"holds", bench_holds},
    {"pool", bench_pool},
    {"state", bench_state},
    {"throttle", bench_throttle},
};

static bool has_part(const char *name) {
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(parts[i].name, name) == 0) return true;
    }
    return false;
}

static bool is_chosen(const bench *b, size_t i) {
    if (b->only) return strcmp(b->only, parts[i].name) == 0;
    return !b->share || (i + 1) % b->shares == b->share % b->shares;
}

/* Reads a text such as 2/3, which is every third part from the second one on. */
static bool read_share(bench *b, const char *text) {
    char behind;
    return sscanf(text, "%u/%u%c", &b->share, &b->shares, &behind) == 2 && b->share > 0 &&
           b->share <= b->shares;
}

static int run(bench *b, const char *folder) {
    atexit(peers_kill);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    signal(SIGHUP, on_signal);
    signal(SIGPIPE, SIG_IGN);
    clean_environment();
    b->terminal = isatty(STDERR_FILENO);
    b->csv = create(folder, "bench.csv");
    b->cost = create(folder, "bench_cost.dat");
    b->permits = create(folder, "bench_permits.dat");
    fprintf(b->csv, "name,value,unit,to_reach\n");
    printf(TABLE_GOAL_ROW, "what", "value", "unit", "goal", "reached");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (is_chosen(b, i)) parts[i].measure(b);
    }
    clear_step(b);
    bool written = fclose(b->csv) == 0 && fclose(b->cost) == 0 && fclose(b->permits) == 0 &&
                   fflush(stdout) == 0;
    must(written, "cannot write the results");
    return 0;
}

int main(int argc, char **argv) {
    bench b = {.quick = argc > 1 && strcmp(argv[1], "--quick") == 0};
    bool is_right = true;
    int at = b.quick ? 2 : 1;
    if (argc == 2 && strcmp(argv[1], "echo") == 0) return echo_main();
    if (argc == 2 && strcmp(argv[1], "http2") == 0) return http2_main();
    if (at + 1 < argc && strcmp(argv[at], "--only") == 0) {
        b.only = argv[at + 1];
        is_right = has_part(b.only);
        at += 2;
    } else if (at + 1 < argc && strcmp(argv[at], "--part") == 0) {
        is_right = read_share(&b, argv[at + 1]);
        at += 2;
    }
    if (argc - at != 2 || !is_right) {
        fprintf(stderr, "usage: bench [--quick] [--only NAME | --part N/PARTS] SERVER FOLDER\n");
        return 2;
    }
    use_large_pages(argv);
    b.large_pages = has_large_pages();
    b.server = argv[at];
    return run(&b, argv[at + 1]);
}
