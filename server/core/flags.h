/* The flags of doorman_server, in the order of --help. A file defines the macro FLAG before it
 * includes this one:
 *   code       FLAG_code is the number of the flag
 *   name       without the two hyphens
 *   argument   what the help calls the argument; NULL: the flag takes none
 *   variable   the environment variable that sets the same value; NULL: none
 *   part       the part that the flag needs; NULL: none
 *   place      PLACE(member): the value is plain text, and this member of struct settings points to
 *              it; 0: the value is read in another way
 *   help       a text with lines of at most 100 columns */
/* clang-format off */
FLAG(CONFIG, "config", "FILE|etcd:KEY|store:", "DOORMAN_CONFIG", NULL, 0,
     "the resources and how each is shared: a file, or a key of etcd; the server reloads it when\n"
     "        it changes; store: is the store of --state, which PUT /v1/config writes; required\n"
     "        unless --parent is given")
FLAG(CONFIG_CACHE, "config-cache", "FILE", "DOORMAN_CONFIG_CACHE", "ADMIN", PLACE(config_cache),
     "a file that keeps a copy of the configuration in force; the server starts with it if etcd\n"
     "        or the store of --config cannot be reached (default none: it does not start then)")
FLAG(LISTEN, "listen", "URL[,URL...]", "DOORMAN_LISTEN", NULL, 0,
     "the addresses to listen on; can be given more than once (default " LISTEN_DEFAULT ")")
FLAG(PARENT, "parent", "URL[,URL...]", "DOORMAN_PARENT", NULL, 0,
     "the servers of the parent node, which grants this node its capacity and names its "
     "resources;\n"
     "        --config may then only have limits of permits; can be given more than once (default\n"
     "        none: this node is a root)")
FLAG(ID, "id", "NAME", "DOORMAN_ID", NULL, PLACE(id),
     "the name of this process (default HOST:PORT of the first --listen)")
FLAG(NODE, "node", "NAME", "DOORMAN_NODE", NULL, PLACE(node),
     "the name of the node that this process serves; unique in the tree, and the same for all\n"
     "        processes of the node and after a restart, because leases name it (default the "
     "election\n"
     "        key, else the id)")
FLAG(ADVERTISE, "advertise", "URL", "DOORMAN_ADVERTISE", NULL, PLACE(advertise),
     "the address at which others reach this process (default the first --listen)")
FLAG(ETCD, "etcd", "URL[,URL...]", "DOORMAN_ETCD", "etcd", 0,
     "the members of an etcd cluster, for an election or a configuration; can be given more than\n"
     "        once (default none: this server is the master)")
FLAG(ETCD_CA, "etcd-ca", "FILE", "DOORMAN_ETCD_CA", "etcd", PLACE(etcd_ca),
     "the authorities, in PEM, one of which must have signed the certificate of each --etcd\n"
     "        https://... (default: those that the system trusts)")
FLAG(ETCD_CERT, "etcd-cert", "FILE", "DOORMAN_ETCD_CERT", "etcd", PLACE(etcd_cert),
     "the certificate of this server for etcd, in PEM (default none)")
FLAG(ETCD_KEY, "etcd-key", "FILE", "DOORMAN_ETCD_KEY", "etcd", PLACE(etcd_key),
     "the key of --etcd-cert, in PEM")
FLAG(ETCD_USER, "etcd-user", "NAME", "DOORMAN_ETCD_USER", "etcd", PLACE(etcd_user),
     "the user of this server at etcd (default none)")
FLAG(ETCD_PASSWORD_FILE, "etcd-password-file", "FILE", "DOORMAN_ETCD_PASSWORD_FILE", "etcd",
     PLACE(etcd_password_file),
     "a file whose first line is the password of --etcd-user; the server reads it again\n"
     "        when etcd asks for the password")
FLAG(ELECTION_KEY, "election-key", "KEY", "DOORMAN_ELECTION_KEY", "etcd", PLACE(election_key),
     "the key of etcd whose owner is the master; the same for all processes of this node, and\n"
     "        used by no other node")
FLAG(ELECTION_TTL, "election-ttl", "SECONDS", "DOORMAN_ELECTION_TTL", "etcd", 0,
     "how long an unreachable master remains master, 2 to 3600 (default 10)")
FLAG(STATE, "state", "FILE|redis://...", "DOORMAN_STATE", "STATE", PLACE(state),
     "where counters of durable limits and bans outlast a restart: a file, which is made if it\n"
     "        does not exist, or a Redis, as redis://USER@HOST:PORT/DATABASE or, with TLS,\n"
     "        rediss://...; with --election-key only a Redis, which without --election-key needs\n"
     "        --node (default none: a restart forgets them)")
FLAG(STATE_PASSWORD_FILE, "state-password-file", "FILE", "DOORMAN_STATE_PASSWORD_FILE", "STATE",
     PLACE(state_password_file),
     "a file whose first line is the password of --state redis://...; the server reads it again\n"
     "        with each connection (default none)")
FLAG(STATE_CA, "state-ca", "FILE", "DOORMAN_STATE_CA", "STATE", PLACE(state_ca),
     "the authorities, in PEM, one of which must have signed the certificate of\n"
     "        --state rediss://...; the server reads the files of these three flags again with\n"
     "        each connection (default: those of the system)")
FLAG(STATE_CERT, "state-cert", "FILE", "DOORMAN_STATE_CERT", "STATE", PLACE(state_cert),
     "the certificate of this server for --state rediss://..., in PEM (default none)")
FLAG(STATE_KEY, "state-key", "FILE", "DOORMAN_STATE_KEY", "STATE", PLACE(state_key),
     "the key of --state-cert, in PEM")
FLAG(STATE_INTERVAL, "state-interval", "SECONDS", "DOORMAN_STATE_INTERVAL", "STATE", 0,
     "how often changes are written to --state, 1 to 3600; a crash forgets about as much\n"
     "        (default 1)")
FLAG(STATE_WAIT, "state-wait", "SECONDS", "DOORMAN_STATE_WAIT", "STATE", 0,
     "how long permits of durable limits wait at the start until --state is read, 0 to 3600\n"
     "        (default 10)")
FLAG(SHARDS, "shards", "KEY", "DOORMAN_SHARDS", "SHARDS", PLACE(shards),
     "the key of etcd with the map of a cluster, whose nodes share the keys of permits; the same\n"
     "        for all nodes; needs --election-key, --state redis://... and \"shards\" in the\n"
     "        configuration (default none: this node decides for all keys)")
FLAG(HTTP, "http", "HOST:PORT|off", "DOORMAN_HTTP", "HTTP", PLACE(http),
     "the address of the status page, the metrics and the protocol over HTTP (default\n"
     "        " HTTP_DEFAULT "); beyond loopback it needs --http-token or --tls-ca")
FLAG(HTTP_ADVERTISE, "http-advertise", "URL", "DOORMAN_HTTP_ADVERTISE", "HTTP",
     PLACE(http_advertise),
     "the address at which others reach --http, such as http://10.0.0.1:15050 (default --http,\n"
     "        with the host of --advertise if it listens on all addresses; none if it is loopback\n"
     "        and --advertise is not)")
FLAG(HTTP_TOKEN, "http-token", "FILE", "DOORMAN_HTTP_TOKEN", "HTTP", PLACE(http_token),
     "a file with a line ROLE NAME TOKEN for each token, where ROLE is read, write, figures,\n"
     "        support or admin, and support has globs of resources behind the token; every HTTP\n"
     "        request must send a token, as 'Authorization: Bearer TOKEN' or as a password,\n"
     "        except for /healthz and /readyz (default none)")
FLAG(HTTP_HEALTH, "http-health", "HOST:PORT", "DOORMAN_HTTP_HEALTH", "HTTP",
     PLACE(http_health),
     "an address that answers only /healthz and /readyz, without TLS and without a token, for\n"
     "        programs that watch this process (default none)")
FLAG(GRPC, "grpc", "HOST:PORT", "DOORMAN_GRPC", "GRPC", PLACE(grpc),
     "the address of the rate limit services of Envoy and Kuadrant, over gRPC; beyond loopback it\n"
     "        needs --http-token or --tls-ca (default none)")
FLAG(GRPC_CONNECTIONS, "grpc-connections", "NUMBER", "DOORMAN_GRPC_CONNECTIONS", "GRPC", 0,
     "the maximum number of connections to --grpc at once (default 1024)")
FLAG(GRPC_HEADERS, "grpc-headers", NULL, "DOORMAN_GRPC_HEADERS", "GRPC", 0,
     "answers over gRPC have the headers RateLimit-Policy, RateLimit and Retry-After for the\n"
     "        response of the gateway (default no)")
FLAG(EVENTS, "events", "URL", "DOORMAN_EVENTS", "EVENTS", PLACE(events),
     "an address, such as tcp://127.0.0.1:15060, at which nng SUB sockets get what happens:\n"
     "        decisions, bans, leases, masterships, administration; beyond loopback it needs\n"
     "        tls+tcp://... and --tls-ca (default none)")
FLAG(EVENT_SAMPLE, "event-sample", "FRACTION", "DOORMAN_EVENT_SAMPLE", "EVENTS",
     PLACE(event_sample),
     "the fraction of grants, of permits and leases, that are events, 0 to 1 (default 0.01)")
FLAG(EVENT_KEYS, "event-keys", "plain|hash|none", "DOORMAN_EVENT_KEYS", "EVENTS",
     PLACE(event_keys),
     "what events say of keys and holders: as they are, a hash that differs after a restart, or\n"
     "        nothing (default plain)")
FLAG(TLS_CERT, "tls-cert", "FILE", "DOORMAN_TLS_CERT", "TLS", PLACE(tls_cert),
     "the certificate of this server, in PEM, for --listen tls+tcp://..., for gRPC, and for\n"
     "        HTTP, which then is HTTPS (default none: no TLS)")
FLAG(TLS_KEY, "tls-key", "FILE", "DOORMAN_TLS_KEY", "TLS", PLACE(tls_key),
     "the key of --tls-cert, in PEM")
FLAG(TLS_CA, "tls-ca", "FILE", "DOORMAN_TLS_CA", "TLS", PLACE(tls_ca),
     "the authorities, in PEM, that must have signed the certificate of every peer that "
     "connects,\n"
     "        and of a --parent tls+tcp://... (default none: peers need no certificate)")
FLAG(MAX_RESOURCES, "max-resources", "NUMBER", "DOORMAN_MAX_RESOURCES", NULL, 0,
     "the maximum number of resources (default 1000000)")
FLAG(MAX_HOLDERS, "max-holders", "NUMBER", "DOORMAN_MAX_HOLDERS", NULL, 0,
     "the maximum number of holders of one resource (default 10000000)")
FLAG(MAX_MESSAGE, "max-message", "BYTES", "DOORMAN_MAX_MESSAGE", NULL, 0,
     "the maximum size of a message (default 4194304, also the upper bound)")
FLAG(MAX_CONNECTIONS, "max-connections", "NUMBER", "DOORMAN_MAX_CONNECTIONS", NULL, 0,
     "the maximum number of nng connections at once (default: as many as the process can open\n"
     "        files)")
FLAG(REPLACE_AT, "replace-at", "PERCENT", "DOORMAN_REPLACE_AT", "REPLACE", PLACE(replace_at),
     "when so many of the file descriptors are open, and at least a quarter of them has leaked,\n"
     "        the server stops and runs itself again, at most once in ten minutes; 0: never\n"
     "        (default 80)")
FLAG(LOG_LEVEL, "log-level", "LEVEL", "DOORMAN_LOG_LEVEL", NULL, 0,
     "debug, info, warning or error (default info)")
FLAG(CHECK_CONFIG, "check-config", NULL, "DOORMAN_CHECK_CONFIG", "checks", 0,
     "check the configuration, print the result, and exit (default no)")
FLAG(VERSION, "version", NULL, NULL, NULL, 0,
     "print the version, and exit")
FLAG(HELP, "help", NULL, NULL, NULL, 0,
     "print this help, and exit")
/* clang-format on */
