/* doorman_server, part REPORTS: the head of the part. Only server.h includes this file. */
#ifndef DOORMAN_SERVER_REPORTS_H
#define DOORMAN_SERVER_REPORTS_H

#define CONFIG_LOADED "configuration loaded"
#define CONFIG_REFUSED "configuration refused; the last one stays in force"

#ifdef DOORMAN_SERVER_REPORTS
/* Logs a refused message, at most once a minute for each kind of message (V6). With --log-level
 * debug, logs every message. Precondition: the lock is not held. */
void server_report_message(struct service *service, const struct message_report *report);

/* Writes a hash of a configuration. Equal configurations have equal hashes, in files with different
 * layouts too. Writes "" if memory runs out, or if there is no configuration.
 *   config   NULL: none */
void server_config_hash(const doorman_config *config, char hash[CONFIG_HASH_BYTES]);

/* Returns how many counters each limit of the configuration in force has, in its order. Returns
 * NULL if memory runs out, or if the process is not the master. The caller frees the list.
 * Precondition: the lock is held. */
size_t *server_count_counters(const struct service *service);

/* Logs the result of the last load of the configuration, which is in service->last_load. After a
 * success, logs how the configuration in force differs from `last`. Only the thread that loads
 * configurations calls this function, so it needs no lock.
 *   counters   how many counters the limits of `last` had; may be NULL */
void server_report_config(const struct service *service, const doorman_config *last,
                          const size_t *counters);

/* Logs when learning starts and when it ends. The main thread calls this once a second. A root also
 * logs when a new configuration makes learning longer. Precondition: the lock is held.
 *   cause   why the server learns, if it did not learn before */
void server_report_learning(struct service *service, enum learning_cause cause, doorman_time now);

/* Logs and notes how a request to the parent has ended. Precondition: the lock is held. */
void server_report_parent(struct service *service, const doorman_transport_result *result,
                          doorman_time now);
#else
static inline void server_report_message(struct service *service,
                                         const struct message_report *report) {
    (void)service, (void)report;
}
static inline void server_config_hash(const doorman_config *config, char hash[CONFIG_HASH_BYTES]) {
    (void)config;
    hash[0] = 0;
}
static inline size_t *server_count_counters(const struct service *service) {
    (void)service;
    return NULL;
}
static inline void server_report_config(const struct service *service, const doorman_config *last,
                                        const size_t *counters) {
    const char *error = service->last_load.error;
    (void)last, (void)counters;
    server_log(service->settings, error[0] ? LEVEL_ERROR : LEVEL_INFO,
               error[0] ? CONFIG_REFUSED : CONFIG_LOADED, "file", service->settings->config,
               error[0] ? "error" : LOG_END, error, LOG_END);
}
static inline void server_report_learning(struct service *service, enum learning_cause cause,
                                          doorman_time now) {
    (void)service, (void)cause, (void)now;
}
static inline void server_report_parent(struct service *service,
                                        const doorman_transport_result *result, doorman_time now) {
    if (result->status == DOORMAN_OK) return;
    server_log_warning(service, WARNING_PARENT_UNREACHABLE, "parent", result->address,
                       result->error.text, now);
}
#endif

#endif
