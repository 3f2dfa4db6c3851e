/* doorman_server, part HTTP: the facts at the top of the status page, and what the words on the
 * pages mean. The facts are about the process: its node, its master, its parent, and what goes
 * wrong. This file reads snapshots, and writes HTML. page.c makes the pages. */
#include "pages.h"

/* What the words on the pages mean. The pages show the meaning of a word on hover. A page also has
 * the whole list at its end, for devices without a pointer. */
static const struct term {
    const char *word, *meaning;
} terms[] = {
    {"master", "the process of a node that grants leases"},
    {"parent", "the server from which this node gets its leases"},
    {"children", "the nodes that get their leases from this node"},
    {"learning", "a new master does not know the leases of its predecessor; until they have ended, "
                 "it grants only what holders say they have"},
    {"lease", "an amount of capacity that a holder may use until a point in time"},
    {"capacity", "how much there is of a resource"},
    {"holder", "a client, or a server on behalf of its clients"},
    {"has", "how much the holders hold: the sum of their leases"},
    {"wants", "how much the holders ask for"},
    {"committed", "what the server still counts as used by a holder, at least what it has"},
    {"reserved",
     "capacity that holders want and none has yet: it is the share of holders that have "
     "not asked again, until their leases end"},
    {"late", "the holder has missed two refreshes; its share stays reserved until its lease ends"},
    {"over its capacity", "the leases exceed what the node may have in force at this moment; after "
                          "a cut, the older capacity counts until its leases have ended"},
    {"reason", "why a lease is less than its holder wants; empty if it is not"},
    {"SHARE",
     "the lease is the fair share of the holder: others want the rest, or there is no more"},
    {"CUT", "the capacity was cut, and what is committed from before does not fit into it yet"},
    {"RESERVED",
     "the share of the holder is larger than its lease; the rest is still committed for "
     "other holders, until they confirm smaller leases or their leases end"},
    {"LEARNING", "no lease grows yet, because the server or the node that holds the lease learns"},
    {"subclients", "the clients that a holder stands for; a client stands for itself"},
    {"safe", "the safe capacity: what a client may use without a lease"},
    {"priority", "a higher number is more important; each client below a node has its own"},
    {"ends in", "the time until the lease ends, unless the holder renews it"},
    {"last renewal", "the time since the holder was last granted a lease"},
};

void server_page_start_term(struct text *text, const char *element, const char *word) {
    server_text_addf(text, "<%s", element);
    for (size_t i = 0; i < sizeof terms / sizeof *terms; i++) {
        if (strcmp(terms[i].word, word) != 0) continue;
        server_text_addf(text, " title='%s'", terms[i].meaning);
    }
    server_text_add(text, ">");
}

/* Lists the words. The list is outside <main>, so it stays open when the script replaces <main>. */
void server_page_terms(struct text *text) {
    server_text_add(text, "<details><summary>what the words mean</summary><dl>");
    for (size_t i = 0; i < sizeof terms / sizeof *terms; i++) {
        server_text_addf(text, "<dt>%s</dt><dd>%s</dd>", terms[i].word, terms[i].meaning);
    }
    server_text_add(text, "</dl></details>");
}

void server_page_duration(struct text *text, doorman_time time) {
    long long seconds = (long long)(time / DOORMAN_SECOND);
    if (seconds >= 86400) {
        server_text_addf(text, "%lld d %lld h", seconds / 86400, seconds / 3600 % 24);
    } else if (seconds >= 3600) {
        server_text_addf(text, "%lld h %lld min", seconds / 3600, seconds / 60 % 60);
    } else if (seconds >= 60) {
        server_text_addf(text, "%lld min %lld s", seconds / 60, seconds % 60);
    } else {
        server_text_addf(text, "%lld s", seconds > 0 ? seconds : 0);
    }
}

/* Adds the time that is left until the server stops learning. A node with a parent does not know
 * this time until the parent has granted it a lease. */
void server_page_learning_time(struct text *text, doorman_time learned_at, doorman_time now) {
    if (learned_at == DOORMAN_NEVER) {
        server_text_add(text, "until the parent has a lease");
    } else {
        server_text_add(text, "for ");
        server_page_duration(text, learned_at - now);
    }
}

/* Starts one entry of the box at the top. The caller adds the value and the end tags. */
static void page_fact(struct text *text, const char *name, const char *class) {
    server_text_addf(text, "<div%s>", strcmp(class, "wide") == 0 ? " class=wide" : "");
    server_page_start_term(text, "dt", name);
    server_text_addf(text, "%s</dt><dd class='%s'>", name, class);
}

static void page_fact_text(struct text *text, const char *name, const char *value,
                           const char *class) {
    page_fact(text, name, class);
    server_text_add_escaped(text, value, server_escape_html);
    server_text_add(text, "</dd></div>");
}

void server_page_link(struct text *text, const char *http, const char *resource,
                      const char *title) {
    if (http[0]) {
        server_text_add(text, "<a href=\"");
        server_text_add_escaped(text, http, server_escape_html);
        server_text_add(text, resource ? "/resources?resource=" : "/");
        server_text_add_escaped(text, resource ? resource : "", server_escape_query);
        server_text_add(text, "\">");
    }
    server_text_add_escaped(text, title, server_escape_html);
    if (http[0]) server_text_add(text, "</a>");
}

/* Adds how long this process stays the master if etcd does not answer any more. */
static void page_master_self(struct text *text, const struct snapshot *snapshot) {
    server_text_add(text, "this process");
    if (snapshot->election.master_until == 0) return;
    server_text_add(text, "; without etcd it stays the master for ");
    server_page_duration(text, snapshot->election.master_until - snapshot->now);
}

/* Adds the address of the master, with a link if the HTTP address of the master is known. Also adds
 * how soon the lease in etcd ends if the master fails. */
static void page_master_other(struct text *text, const struct service *service,
                              const struct snapshot *snapshot) {
    server_text_add(text, "another: ");
    server_page_link(text, snapshot->master_http, NULL, snapshot->master);
    server_text_addf(text, "; if it fails, its lease in etcd ends within %d s",
                     service->settings->election_ttl);
}

static void page_master(struct text *text, const struct service *service,
                        const struct snapshot *snapshot) {
    page_fact(text, "master", snapshot->is_master ? "good" : snapshot->master[0] ? "warn" : "bad");
    if (snapshot->is_master) {
        page_master_self(text, snapshot);
    } else if (snapshot->master[0]) {
        page_master_other(text, service, snapshot);
    } else if (snapshot->election.no_master.since) {
        server_text_add(text, "none for ");
        server_page_duration(text, snapshot->now - snapshot->election.no_master.since);
        server_text_add(text, ": ");
        server_text_add_escaped(text, snapshot->election.no_master.reason, server_escape_html);
    } else {
        server_text_add(text, "not known");
    }
    server_text_add(text, "</dd></div>");
}

/* Adds since when and by whom the process is drained, or why its last drain was called off. */
static void page_drain(struct text *text, const struct drain *drain) {
    int64_t age = (int64_t)time(NULL) - drain->since;
    if (drain->failure[0]) page_fact_text(text, "last drain called off", drain->failure, "bad");
    if (drain->phase == DRAIN_NONE) return;
    page_fact(text, "drain", "warn");
    server_text_addf(text, "%s, asked for ", server_drain_state(drain));
    server_page_duration(text, (age > 0 ? age : 0) * DOORMAN_SECOND);
    server_text_add(text, drain->by[0] ? " ago by " : " ago");
    server_text_add_escaped(text, drain->by, server_escape_html);
    server_text_add(text, drain->reason[0] ? ": " : "");
    server_text_add_escaped(text, drain->reason, server_escape_html);
    server_text_add(text, "</dd></div>");
}

/* Adds a problem that lasts, or an event that has happened.
 *   words   what stands in front of the duration, and behind it */
static void page_trouble(struct text *text, const char *name, const struct trouble *trouble,
                         const char *const words[2], doorman_time now) {
    if (trouble->since == 0) return;
    page_fact(text, name, "wide");
    server_text_addf(text, "<span class=bad>%s", words[0]);
    server_page_duration(text, now - trouble->since);
    server_text_add(text, words[1]);
    server_text_add_escaped(text, trouble->reason, server_escape_html);
    server_text_add(text, "</span></dd></div>");
}

/* Adds whether etcd answers, and when and why this process lost its mastership. */
static void page_election(struct text *text, const struct snapshot *snapshot) {
    static const char *const fails[] = {"has not answered for ", ": "};
    static const char *const lost[] = {"", " ago: "};
    page_trouble(text, "etcd", &snapshot->election.etcd, fails, snapshot->now);
    if (snapshot->election.etcd_answered_at && !snapshot->election.etcd.since) {
        page_fact(text, "etcd", "good");
        server_text_add(text, "answered ");
        server_page_duration(text, snapshot->now - snapshot->election.etcd_answered_at);
        server_text_add(text, " ago</dd></div>");
    }
    page_trouble(text, "last loss of mastership", &snapshot->election.last_loss, lost,
                 snapshot->now);
}

/* Adds whether the store of counters has all changes. */
static void page_state(struct text *text, const struct snapshot *snapshot) {
    static const char *const fails[] = {"has failed for ", ": "};
    const struct state_status *state = &snapshot->state;
    if (!snapshot->has_state) return;
    page_trouble(text, "store of counters", &state->trouble, fails, snapshot->now);
    page_fact(text, "counters in the store", state->is_reading ? "warn" : "");
    if (state->is_reading) {
        server_text_addf(text, "%" PRIu64 " rows read", state->rows_read);
    } else if (snapshot->state_age > 0) {
        server_text_add(text, "all changes until ");
        server_page_duration(text, snapshot->state_age);
        server_text_add(text, " ago");
    } else {
        server_text_add(text, "all changes");
    }
    server_text_add(text, "</dd></div>");
    if (state->took_over || state->learns[0]) {
        page_fact(text, "leases and holds at the start", "");
        server_text_add(text, state->took_over ? "taken over" : "learned: ");
        server_text_add_escaped(text, state->learns, server_escape_html);
        server_text_add(text, "</dd></div>");
    }
    if (state->rows_unreadable == 0) return;
    page_fact(text, "rows that cannot be read", "bad");
    server_text_addf(text, "%" PRIu64 "</dd></div>", state->rows_unreadable);
}

/* Adds whether file descriptors leak, and how often the process has replaced itself because of
 * leaks. */
static void page_descriptors(struct text *text, const struct snapshot *snapshot) {
    static const char *const leak[] = {"have leaked for ",
                                       "; the process does not replace itself: "};
    const struct descriptors *descriptors = &snapshot->descriptors;
    page_trouble(text, "file descriptors", &descriptors->trouble, leak, snapshot->now);
    if (descriptors->replacement_count == 0) return;
    page_fact(text, "replaced itself", "warn");
    server_text_addf(text, "%" PRIu64 " time%s, because file descriptors leaked; the last one ",
                     descriptors->replacement_count,
                     descriptors->replacement_count == 1 ? "" : "s");
    server_page_duration(text, snapshot->now - descriptors->replaced_at);
    server_text_add(text, " ago</dd></div>");
}

/* Adds why the last request to the parent failed, and when the next one is sent. */
static void page_parent_trouble(struct text *text, const struct parent_state *parent,
                                doorman_time now) {
    static const char *const fails[] = {"not reached for ", ": "};
    static const char *const answers[] = {"answers, but has had no master for ", ": "};
    page_trouble(text, "link to the parent", &parent->trouble,
                 parent->has_no_master ? answers : fails, now);
    if (parent->retry_at <= now) return;
    page_fact(text, "next request to the parent", "");
    server_text_add(text, "in ");
    server_page_duration(text, parent->retry_at - now);
    server_text_add(text, "</dd></div>");
}

static void page_parent_state(struct text *text, const struct snapshot *snapshot) {
    const struct parent_state *parent = &snapshot->parent;
    if (parent->trouble.since) {
        page_parent_trouble(text, parent, snapshot->now);
        return;
    }
    page_fact(text, "link to the parent", parent->answered_at ? "good" : "");
    if (parent->answered_at) {
        server_text_add_escaped(text, parent->address, server_escape_html);
        server_text_add(text, " answered ");
        server_page_duration(text, snapshot->now - parent->answered_at);
        server_text_add(text, " ago");
    } else {
        server_text_add(text, "no answer yet");
    }
    server_text_add(text, "</dd></div>");
}

static void page_parent(struct text *text, struct service *service,
                        const struct snapshot *snapshot) {
    const struct addresses *parents = &service->settings->parents;
    if (parents->count == 0) return;
    bool all = snapshot->leased_count == snapshot->resource_count;
    page_fact(text, "parent", "");
    for (size_t i = 0; i < parents->count; i++) {
        server_text_add(text, i ? ", " : "");
        server_text_add_escaped(text, parents->items[i], server_escape_html);
    }
    if (snapshot->parent_http[0]) {
        server_text_add(text, " &middot; ");
        server_page_link(text, snapshot->parent_http, NULL, "page");
    }
    server_text_add(text, "</dd></div>");
    page_parent_state(text, snapshot);
    if (server_node_is_shared(&snapshot->parent, snapshot->now)) {
        page_fact_text(text, "node name", "another process uses it too, says the parent", "bad");
    }
    page_fact(text, "leases from the parent", all ? "" : "bad");
    server_text_addf(text, "%zu of %zu resources", snapshot->leased_count,
                     snapshot->resource_count);
    if (snapshot->leased_count > 0) {
        server_text_add(text, "; the first one ends in ");
        server_page_duration(text, snapshot->lease_end - snapshot->now);
    }
    server_text_add(text, "</dd></div>");
}

#define CHILDREN_SHOWN 50

/* Adds how long a child node has been silent, and when its lease ends. */
static void page_child_mark(struct text *text, const struct child *child, doorman_time now) {
    if (child->state == CHILD_LIVE) return;
    bool ends = child->state == CHILD_SILENT && child->lease_end > now;
    server_text_addf(text, " <span class=%s>(silent for ", ends ? "warn" : "bad");
    server_page_duration(text, now - child->seen_at);
    server_text_add(text, ends ? "; its lease ends in " : "; its lease has ended");
    if (ends) server_page_duration(text, child->lease_end - now);
    server_text_add(text, ")</span>");
}

static void page_children(struct text *text, struct service *service) {
    struct child_list children;
    server_children_take(&children, service);
    if (children.count > 0) page_fact(text, "children", "wide");
    for (size_t i = 0; i < children.count && i < CHILDREN_SHOWN; i++) {
        const struct child *child = &children.items[i];
        server_text_add(text, i ? ", " : "");
        server_page_link(text, child->http_address, NULL, child->node);
        page_child_mark(text, child, children.now);
    }
    if (children.count > CHILDREN_SHOWN) {
        server_text_addf(text, " and %zu more", children.count - CHILDREN_SHOWN);
    }
    if (children.count > 0) server_text_add(text, "</dd></div>");
    server_children_free(&children);
}

/* Adds what is wrong with a file; nothing if the reason is "". */
static void page_file(struct text *text, const char *name, const char *reason, const char *class) {
    if (!reason[0]) return;
    page_fact(text, name, "wide");
    server_text_addf(text, "<span class=%s>", class);
    server_text_add_escaped(text, reason, server_escape_html);
    server_text_add(text, "</span></dd></div>");
}

/* Adds the version of the configuration, if it has one. */
static void page_version(struct text *text, const struct config_load *load) {
    if (load->version == 0) return;
    page_fact(text, "configuration version", load->is_cached ? "bad" : "");
    const bool has_page = !server_flag_lacks(FLAG_CONFIG_CACHE);
    server_text_addf(text, has_page ? "<a href='/versions'>%" PRIu64 "</a>" : "%" PRIu64,
                     load->version);
    server_text_add(text, load->is_cached ? ", of --config-cache</dd></div>" : "</dd></div>");
}

/* Adds when the configuration was loaded, and what is wrong with the files. */
static void page_configuration(struct text *text, struct service *service) {
    static const char *const names[LOAD_FAILURE_COUNT] = {
        [CONFIG_UNREADABLE] = "configuration file cannot be read",
        [CERTIFICATE_REFUSED] = "last certificate refused",
        [CERTIFICATE_UNREADABLE] = "certificate cannot be read",
        [TOKENS_REFUSED] = "last tokens refused",
        [TOKENS_UNREADABLE] = "tokens cannot be read"};
    struct config_load last_load = server_last_load(service);
    bool failed = last_load.error[0] || last_load.failures[CONFIG_UNREADABLE][0];
    char when[32];
    struct tm utc;
    gmtime_r(&last_load.loaded_at, &utc);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &utc);
    if (service->settings->config) {
        page_fact_text(text, "configuration loaded (UTC)", when, failed ? "warn" : "");
        page_version(text, &last_load);
        page_file(text, "last change refused", last_load.error, "bad");
        page_file(text, "warning about the configuration", last_load.warning, "warn");
    }
    for (int i = 0; i < LOAD_FAILURE_COUNT; i++) {
        page_file(text, names[i], last_load.failures[i], "bad");
    }
}

void server_page_facts(struct text *text, struct service *service,
                       const struct snapshot *snapshot) {
    bool is_root = service->settings->parents.count == 0;
    server_text_add(text, "<dl class=facts>");
    page_fact_text(text, "node", service->node, "");
    if (strcmp(service->id, service->node) != 0) page_fact_text(text, "process", service->id, "");
    page_fact_text(text, "role", is_root ? "root: has the configuration" : "child of a parent", "");
    page_master(text, service, snapshot);
    page_drain(text, &snapshot->drain);
    page_fact_text(text, "address", service->advertise, "");
    EACH_PART(part, facts)(*part)->facts(service, text);
    page_election(text, snapshot);
    page_state(text, snapshot);
    page_parent(text, service, snapshot);
    bool learns = snapshot->learning_count > 0 || snapshot->learns_until;
    page_fact(text, "learning", learns ? "warn" : "");
    if (snapshot->learning_count > 0) {
        server_text_addf(text, "%zu resource%s, ", snapshot->learning_count,
                         snapshot->learning_count == 1 ? "" : "s");
        server_page_learning_time(text, snapshot->learned_at, snapshot->now);
    } else if (learns) { /* no holder has asked yet */
        server_text_add(text, "all resources, ");
        server_page_learning_time(text, snapshot->learns_until, snapshot->now);
    } else {
        server_text_add(text, "no");
    }
    server_text_add(text, "</dd></div>");
    page_fact(text, "resources, holders", "");
    server_text_addf(text, "%zu, %zu</dd></div>", snapshot->resource_count, snapshot->holder_count);
    page_fact(text, "limits", "");
    server_text_add(text, "<a href='/limits'>of permits</a></dd></div>");
    page_descriptors(text, snapshot);
    page_fact(text, "uptime", "");
    server_page_duration(text, snapshot->now - service->started_at);
    server_text_add(text, "</dd></div>");
    page_fact_text(text, "version", DOORMAN_VERSION, "");
    page_configuration(text, service);
    if (snapshot->is_master) page_children(text, service);
    server_text_add(text, "</dl>");
}
