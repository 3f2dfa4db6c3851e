/* doormanctl: the command line. */
#include "ctl.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <curl/curl.h>

#include "../../doorman.h"

#define WORD_MAX 64       /* words for an argument that has "..." */
#define NAME_BYTES_MAX 32 /* of a command */

/* ---- help ----------------------------------------------------------------------------------- */

static void help_print(void) {
    puts("Usage: doormanctl [FLAG]... COMMAND [ARGUMENT]...\n"
         "Shows and changes what a Doorman server does.\n\n"
         "Commands (`doormanctl help COMMAND` says more):");
    for (const struct ctl_command *command = ctl_commands; command->name; command++) {
        char usage[96];
        snprintf(usage, sizeof usage, "%s %s", command->name, command->arguments);
        if (strlen(usage) > 36) printf("  %s\n  %-36s %s\n", usage, "", command->summary);
        if (strlen(usage) <= 36) printf("  %-36s %s\n", usage, command->summary);
    }
    puts("\nFlags, with the environment variables that set the same:\n"
         "  --json\n        print the answer of the server as it is, for programs\n"
         "  --reason TEXT\n        why, for the audit: of undo, which needs it, and of ban and "
         "reset");
    for (size_t i = 0; i < CTL_SETTING_COUNT; i++) {
        const struct ctl_setting *setting = &ctl_settings_table[i];
        if (setting->has_flag) {
            printf("  --%s %s   [%s]\n", setting->flag, setting->argument, setting->variable);
        } else {
            printf("  [%s]\n", setting->variable);
        }
        printf("        %s\n", setting->help);
    }
    puts("  --help, --version\n\n"
         "Exit codes: 0 done, 1 refused or not found, 2 usage error, 3 no server answers, 4 the\n"
         "token is missing, wrong or lacks the role.");
}

static void help_print_command(const struct ctl_command *command) {
    printf("Usage: doormanctl [FLAG]... %s %s\n%s\n\n%s\n", command->name, command->arguments,
           command->summary, command->help);
}

/* ---- commands ------------------------------------------------------------------------------- */

/* Returns how many words at the start of a command line are the name of a command; 0: it names
 * another command. */
static size_t name_words(const struct ctl_command *command, char *const words[]) {
    const char *name = command->name;
    size_t count = 0;
    while (name && words[count]) {
        size_t bytes = strcspn(name, " ");
        if (strlen(words[count]) != bytes || strncmp(words[count], name, bytes) != 0) return 0;
        count++;
        name = name[bytes] ? name + bytes + 1 : NULL;
    }
    return name ? 0 : count;
}

/* Returns the command that words name, or NULL.
 *   words   in/out: moves to the arguments behind the name */
static const struct ctl_command *command_find(char **words[]) {
    for (const struct ctl_command *command = ctl_commands; command->name; command++) {
        size_t count = name_words(command, *words);
        *words += count;
        if (count) return command;
    }
    return NULL;
}

/* Returns how many letters must be inserted, removed or replaced to turn one name into another. */
static size_t distance(const char *from, const char *to) {
    size_t row[NAME_BYTES_MAX + 1], columns = strlen(to);
    for (size_t i = 0; i <= columns; i++) row[i] = i;
    for (size_t i = 1; from[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t k = 1; k <= columns; k++) {
            size_t replaced = diagonal + (from[i - 1] != to[k - 1]);
            size_t other = 1 + (row[k] < row[k - 1] ? row[k] : row[k - 1]);
            diagonal = row[k];
            row[k] = replaced < other ? replaced : other;
        }
    }
    return row[columns];
}

/* Returns whether `word` is the first of several words of a command's name. */
static bool command_is_of(const struct ctl_command *command, const char *word) {
    const size_t bytes = strlen(word);
    return bytes > 0 && strncmp(command->name, word, bytes) == 0 && command->name[bytes] == ' ';
}

/* Prints the commands of several words that begin with `word`. Returns whether there are any. */
static bool help_print_group(const char *word) {
    bool found = false;
    for (const struct ctl_command *command = ctl_commands; command->name; command++) {
        if (!command_is_of(command, word)) continue;
        printf("%sdoormanctl %s %s\n    %s\n",
               found ? ""
                     : "Commands (`doormanctl help COMMAND` "
                       "says more):\n",
               command->name, command->arguments, command->summary);
        found = true;
    }
    return found;
}

/* Reports a command whose second word is missing. Returns false if no such word is missing. */
static bool group_report(char *const words[]) {
    char names[256] = "";
    size_t used = 0;
    for (const struct ctl_command *command = ctl_commands; command->name; command++) {
        if (words[1] || !command_is_of(command, words[0]) || used >= sizeof names) continue;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s`%s`", used ? ", " : "",
                                 command->name);
    }
    if (used) (void)ctl_fail(CTL_USAGE, "%s: needs a second word: %s", words[0], names);
    return used > 0;
}

static enum ctl_exit command_is_unknown(char *const words[]) {
    char given[NAME_BYTES_MAX + 1];
    const char *nearest = NULL;
    size_t least = 4;
    for (const struct ctl_command *command = ctl_commands; command->name; command++) {
        bool is_pair = strchr(command->name, ' ') && words[1];
        snprintf(given, sizeof given, "%s%s%s", words[0], is_pair ? " " : "",
                 is_pair ? words[1] : "");
        size_t differs = distance(given, command->name);
        /* A name that begins with the word counts as one wrong letter away. */
        if (!is_pair && strncmp(command->name, given, strlen(given)) == 0) differs = 1;
        if (differs >= least) continue;
        least = differs;
        nearest = command->name;
    }
    return ctl_fail(CTL_USAGE, "unknown command: %s.%s%s%s `doormanctl help` lists the commands",
                    words[0], nearest ? " Do you mean `" : "", nearest ? nearest : "",
                    nearest ? "`?" : "");
}

/* Returns whether the number of words fits the arguments of a command. */
static bool arguments_fit(const char *arguments, char *const words[]) {
    size_t least = 0, most = 0, given = 0;
    while (words[given]) given++;
    for (const char *at = arguments; *at; at += strspn(at, " ")) {
        size_t bytes = strcspn(at, " ");
        least += *at != '[';
        most += memchr(at, '.', bytes) ? WORD_MAX : 1;
        at += bytes;
    }
    return given >= least && given <= most;
}

/* Returns whether a command takes --reason. Other commands that need a reason take it as a word. */
static bool takes_reason(const struct ctl_command *command) {
    static const char *const names[] = {"reset", "ban", "undo"};
    bool takes = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        takes = takes || strcmp(command->name, names[i]) == 0;
    }
    return takes;
}

static enum ctl_exit command_run(const struct ctl_command *command, struct ctl *ctl,
                                 char *const words[]) {
    const char *no_color = getenv("NO_COLOR"), *terminal = getenv("TERM");
    ctl->has_color = isatty(STDOUT_FILENO) && !(no_color && no_color[0]) && terminal &&
                     strcmp(terminal, "dumb") != 0;
    ctl->url = (char *)ctl_need(strdup(ctl->settings.url));
    curl_global_init(CURL_GLOBAL_DEFAULT);
    ctl->curl = ctl_need(curl_easy_init());
    enum ctl_exit code = command->run(ctl, words);
    curl_easy_cleanup(ctl->curl);
    curl_global_cleanup();
    free(ctl->url);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == CTL_DONE) {
        code = ctl_fail(CTL_REFUSED, "standard output cannot be written");
    }
    return code;
}

/* ---- flags ---------------------------------------------------------------------------------- */

enum { FLAG_JSON = CTL_SETTING_COUNT, FLAG_REASON, FLAG_HELP, FLAG_VERSION, FLAG_COUNT };

/* Reads the flags. Returns false if one is wrong. Sets `optind` to the index of the first word. */
static bool flags_read(int count, char *arguments[], struct ctl *ctl, bool seen[FLAG_COUNT]) {
    struct option options[FLAG_COUNT + 1] = {{"json", no_argument, NULL, FLAG_JSON},
                                             {"reason", required_argument, NULL, FLAG_REASON},
                                             {"help", no_argument, NULL, FLAG_HELP},
                                             {"version", no_argument, NULL, FLAG_VERSION}};
    struct option *next = options + 4;
    for (int i = 0; i < CTL_SETTING_COUNT; i++) {
        const struct ctl_setting *setting = &ctl_settings_table[i];
        if (!setting->has_flag) continue;
        *next++ = (struct option){setting->flag, required_argument, NULL, i};
    }
    for (int flag; (flag = getopt_long(count, arguments, "", options, NULL)) != -1;) {
        if (flag >= FLAG_COUNT) return false;
        seen[flag] = true;
        if (flag == FLAG_REASON) ctl->reason = optarg;
        if (flag < CTL_SETTING_COUNT) {
            size_t place = ctl_settings_table[flag].place;
            memcpy((char *)&ctl->settings + place, &optarg, sizeof optarg);
        }
    }
    return true;
}

int main(int count, char *arguments[]) {
    struct ctl ctl = {.json = false};
    bool seen[FLAG_COUNT] = {false};
    if (!flags_read(count, arguments, &ctl, seen)) {
        return (int)ctl_fail(CTL_USAGE, "`doormanctl help` lists the flags");
    }
    char **words = arguments + optind;
    bool wants_help = seen[FLAG_HELP];
    ctl.json = seen[FLAG_JSON];
    if (seen[FLAG_VERSION]) {
        puts("doormanctl " DOORMAN_VERSION);
        return CTL_DONE;
    }
    if (*words && strcmp(*words, "help") == 0) {
        wants_help = true;
        words++;
    }
    if (!*words && !wants_help) {
        return (int)ctl_fail(CTL_USAGE,
                             "a command is missing; `doormanctl help` lists the commands");
    }
    if (!*words) {
        help_print();
        return CTL_DONE;
    }
    char **first = words;
    const struct ctl_command *command = command_find(&words);
    if (!command && wants_help && !first[1] && help_print_group(*first)) return CTL_DONE;
    if (!command && group_report(first)) return CTL_USAGE;
    if (!command) return (int)command_is_unknown(first);
    if (wants_help) {
        help_print_command(command);
        return CTL_DONE;
    }
    if (!arguments_fit(command->arguments, words)) {
        return (int)ctl_fail(CTL_USAGE, "usage: doormanctl %s %s", command->name,
                             command->arguments);
    }
    if (ctl.reason && !takes_reason(command)) {
        return (int)ctl_fail(CTL_USAGE, "%s does not take --reason", command->name);
    }
    enum ctl_exit code = ctl_settings_complete(&ctl.settings, &ctl.timeout);
    if (code == CTL_DONE) code = command_run(command, &ctl, words);
    free(ctl.settings.text);
    return (int)code;
}
