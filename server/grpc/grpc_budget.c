/* doorman_server, part GRPC: ends connections that flood the server.
 *
 * A connection has a budget of frames that ask nothing: settings, pings, resets, updates of the
 * window, empty data. The budget grows by BUDGET_RATE a second and with each complete call, so a
 * client that makes calls does not use it up. A flood uses it up, and then the server ends the
 * connection. */
#include "grpc.h"

#define BUDGET_RATE 200.0

void server_grpc_connection_end(struct grpc_connection *connection, enum grpc_ending why) {
    if (connection->has_ended) return;
    connection->has_ended = true;
    connection->grpc->ended_count++;
    server_counter_add(&connection->grpc->counters.endings[why], 1);
}

void server_grpc_connection_charge(struct grpc_connection *connection, double frames) {
    struct grpc *grpc = connection->grpc;
    double seconds = (double)(grpc->now - connection->budget_at) / (double)DOORMAN_SECOND;
    connection->budget += seconds * BUDGET_RATE - frames;
    connection->budget_at = grpc->now;
    if (connection->budget > GRPC_BUDGET_MAX) connection->budget = GRPC_BUDGET_MAX;
    if (connection->budget >= 0 || connection->has_ended) return;
    server_grpc_connection_end(connection, GRPC_END_FLOOD);
    server_log(grpc->service->settings, LEVEL_DEBUG, "a gRPC connection floods, and is closed",
               "peer", connection->peer, LOG_END);
}
