/* The parts of doorman_server that the build has chosen. A part uses the core and the parts before
 * it. A file defines the macro PART before it includes this one:
 *   name   server_part_name is its struct server_part */
#ifdef DOORMAN_SERVER_MEMORY
PART(memory)
#endif
#ifdef DOORMAN_SERVER_WARNINGS
PART(warnings)
#endif
#ifdef DOORMAN_SERVER_REPORTS
PART(reports)
#endif
#ifdef DOORMAN_SERVER_UNMATCHED
PART(unmatched)
#endif
#ifdef DOORMAN_SERVER_TLS
PART(tls)
#ifdef DOORMAN_SERVER_HTTP
PART(tls_sessions)
#endif
#endif
#ifdef DOORMAN_SERVER_ETCD
PART(etcd)
PART(config_writer)
#endif
#ifdef DOORMAN_SERVER_STATE
PART(state)
#endif
#ifdef DOORMAN_SERVER_NOTES
PART(notes)
#endif
#ifdef DOORMAN_SERVER_SHARDS
PART(shards)
#endif
#if defined DOORMAN_SERVER_GRPC || defined DOORMAN_SERVER_SHARDS
PART(link)
#endif
#ifdef DOORMAN_SERVER_CHECK
PART(check)
#endif
#ifdef DOORMAN_SERVER_WAITING
PART(waiting)
#endif
#ifdef DOORMAN_SERVER_HTTP
PART(tokens)
PART(allow)
#ifdef DOORMAN_SERVER_SHARDS
PART(batch)
#endif
PART(http)
#ifdef DOORMAN_SERVER_EVENTS
PART(events_status)
PART(events)
#endif
#ifdef DOORMAN_SERVER_GRPC
PART(grpc_status)
PART(grpc)
#endif
#ifdef DOORMAN_SERVER_ADMIN
PART(admin)
PART(audit)
PART(reset)
PART(drain)
PART(hold_end)
PART(override)
PART(plan)
PART(admin_cluster)
PART(versions)
PART(config_change)
PART(undo)
#endif
PART(snapshot)
PART(children)
PART(history)
PART(limit_history)
PART(health)
PART(pages)
PART(limits)
#ifdef DOORMAN_SERVER_ADMIN
PART(acts)
PART(override_form)
PART(versions_page)
#endif
PART(front)
PART(holds)
PART(descriptors)
#ifdef DOORMAN_SERVER_SHARDS
PART(shard_pages)
#endif
PART(counters)
PART(lists)
PART(json)
PART(config_check)
PART(metrics)
#endif
#ifdef DOORMAN_SERVER_SHARDS
PART(forward)
#endif
#ifdef DOORMAN_SERVER_WATCH
PART(watch)
#endif
#ifdef DOORMAN_SERVER_REPLACE
PART(replace)
#endif
#ifdef DOORMAN_SERVER_IPC
PART(ipc)
#endif
#ifdef DOORMAN_SERVER_NOTIFY
PART(notify)
#endif
