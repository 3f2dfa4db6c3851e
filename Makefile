# Builds Doorman into build/. `make help` lists the targets.

PREFIX ?= /usr/local
CFLAGS ?= -O2 -g
CXXFLAGS ?= -O2 -g

WARNINGS = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef -Wcast-qual \
    -Wswitch-enum
C = $(CC) -std=c11 -D_DEFAULT_SOURCE -I. -pthread $(WARNINGS) -Wstrict-prototypes \
    -Wmissing-prototypes $(CPPFLAGS)
CXX11 = $(CXX) -std=c++11 -I. -pthread $(WARNINGS) $(CPPFLAGS)
LIBRARIES = -lnng -lcjson

# The shell needs libedit, and is not built without it.
HAS_LIBEDIT = $(shell CC='$(CC)' CPPFLAGS='$(CPPFLAGS)' sh .ci/deps --look libedit && echo yes)
EXAMPLES = $(patsubst %.c,build/%,$(filter-out $(if $(HAS_LIBEDIT),,%/doorman_shell.c), \
    $(wildcard examples/*.c)))
CXX_EXAMPLES = $(if $(shell command -v $(CXX) 2>/dev/null), \
    $(patsubst %.cpp,build/%,$(wildcard examples/*.cpp)))

# doormanctl is a program of its own. It is not built without libcurl and libyaml, or with CTL=0.
# With YAML=0 it needs no libyaml, and has no command `convert`.
CTL = 1
YAML = 1
CTL_YAML = $(filter-out 0,$(YAML))
DOORMANCTL = $(if $(filter-out 0,$(CTL)),$(shell CC='$(CC)' CPPFLAGS='$(CPPFLAGS)' \
    sh .ci/deps --look libcurl $(if $(CTL_YAML),yaml) && echo build/doormanctl))

# A single goal is built in parallel. Several goals, such as `make clean test`, are built one after
# the other. An explicit -j takes precedence.
# `make test` gets a job more, for the tests that run, and mostly wait, while others are built.
ifeq ($(filter-out 0,$(MAKELEVEL))$(filter -j%,$(MAKEFLAGS))$(word 2,$(MAKECMDGOALS)),)
MAKEFLAGS += -j$(shell expr $$(nproc 2>/dev/null || echo 1) \
    + $(words $(filter test,$(MAKECMDGOALS))))
endif

.PHONY: all doormanctl demo early_tests late_tests test races test_packages test_image coverage \
    matrix abuse kills bench sim fuzz lint docs install install_headers deb release uninstall deps \
    build_deps ctl_deps test_deps clean help always
.DELETE_ON_ERROR:

EVERYTHING = build/doorman_server $(DOORMANCTL) $(EXAMPLES) $(CXX_EXAMPLES)
all: $(EVERYTHING) ## the server, doormanctl and the examples (default)

# These goals take long, so they say first what they do.
ABOUT_demo = a server and five clients for 20 s (after the build)
ABOUT_test = all tests, about 5 minutes on two cores; the last line says how many failed
ifdef TREE
ABOUT_demo = seven servers and twelve clients for 40 s (after the build)
endif
ifdef PERMITS
ABOUT_demo = a server that decides on permits of seven users for 20 s (after the build)
endif
ifdef THROTTLE
ABOUT_demo = a server with and without a throttle for 20 s (after the build)
endif
ifdef FAIR
ABOUT_demo = ten tenants share a limit, and one is greedy, for 20 s (after the build)
endif
ifeq ($(STATE),1) # the server has this part by default: see below
ABOUT_demo = a server is killed and upgraded, and forgets nothing, for 20 s (after the build)
endif
ifeq ($(SHARDS),1) # as STATE
ABOUT_demo = three nodes share a thousand keys, and one is killed, for 24 s (after the build)
endif
$(foreach goal,$(filter demo test,$(MAKECMDGOALS)),$(info make $(goal): $(ABOUT_$(goal))))

ifdef TREE
demo: build/doorman_server build/examples/demo_tree
	@build/examples/demo_tree build/doorman_server
else ifdef PERMITS
demo: build/doorman_server build/examples/demo_permits
	@build/examples/demo_permits build/doorman_server
else ifdef THROTTLE
demo: build/examples/throttled_server build/examples/demo_throttle
	@build/examples/demo_throttle build/examples/throttled_server
else ifdef FAIR
demo: build/doorman_server build/examples/demo_fair
	@build/examples/demo_fair build/doorman_server
else ifeq ($(STATE),1)
demo: build/doorman_server build/examples/demo_state
	@build/examples/demo_state build/doorman_server
else ifeq ($(SHARDS),1)
demo: build/doorman_server build/examples/demo_shards
	@sh .ci/deps etcd redis
	@build/examples/demo_shards build/doorman_server
else
demo: build/doorman_server build/examples/demo ## or TREE, PERMITS, THROTTLE, FAIR, STATE, SHARDS=1
	@build/examples/demo build/doorman_server config.example.json
endif

define announce
@echo "build $(@:build/%=%)"
@mkdir -p $(@D)
endef

# The headers of the library. All but the first one include the first one.
HEADERS = doorman.h doorman_permits.h doorman_throttle.h
INCLUDING_HEADERS = $(filter-out doorman.h,$(HEADERS))

# A program that links doorman.o leaves the implementation out, even if its source asks for it.
IMPLEMENTED = $(addprefix -DDOORMAN__,IMPLEMENTED PERMITS_IMPLEMENTED THROTTLE_IMPLEMENTED)
LINKED_MACROS = $(if $(filter %/doorman.o,$^),$(IMPLEMENTED))

define build
$(announce)
@$(C) $(CFLAGS) $(LINKED_MACROS) $< $(filter %.o,$^) -o $@ $(LDFLAGS) $(LIBRARIES)
endef

# doorman_server.c alone makes a node of a tree. The other parts of the server are optional, for
# example `make HTTP=0 ETCD=0`. build/server_parts changes when this choice changes.
HTTP = 1
ETCD = 1
TLS = 1
STATE = 1
REDIS = 1
ADMIN = 1
GRPC = 1
EVENTS = 1
SHARDS = 1
PARTS = MEMORY CHECK REPORTS REPLACE UNMATCHED WAITING WARNINGS WATCH NOTIFY IPC \
    $(foreach part,HTTP ETCD TLS STATE,$(if $(filter-out 0,$($(part))),$(part))) \
    $(if $(filter-out 0,$(STATE)),$(if $(filter-out 0,$(REDIS)),REDIS)) \
    $(if $(filter 0,$(HTTP) $(STATE) $(ADMIN)),,ADMIN) \
    $(if $(filter 0,$(HTTP) $(STATE) $(ADMIN) $(ETCD)),,NOTES) \
    $(if $(filter 0,$(HTTP) $(GRPC)),,GRPC) $(if $(filter 0,$(HTTP) $(EVENTS)),,EVENTS) \
    $(if $(filter 0,$(HTTP) $(STATE) $(REDIS) $(ETCD) $(ADMIN) $(SHARDS)),,SHARDS)
FOLDERS = util config log process waiting $(if $(filter HTTP,$(PARTS)),http pages) \
    $(if $(filter ETCD,$(PARTS)),etcd) $(if $(filter TLS,$(PARTS)),tls) \
    $(if $(filter STATE,$(PARTS)),store state) $(if $(filter ADMIN,$(PARTS)),admin) \
    $(if $(filter GRPC,$(PARTS)),grpc) $(if $(filter EVENTS,$(PARTS)),events) \
    $(if $(filter GRPC SHARDS,$(PARTS)),link) $(if $(filter SHARDS,$(PARTS)),shards forward)
# These files need the parts ADMIN and SHARDS.
LEFT_OUT = $(if $(filter REDIS,$(PARTS)),,%_redis.c) \
    $(if $(filter NOTES,$(PARTS)),,%_etcd.c) \
    $(if $(filter HTTP,$(PARTS)),,%/session.c) \
    $(if $(filter TLS,$(PARTS)),,%/tls_redis.c) \
    $(if $(filter ADMIN,$(PARTS)),, \
        $(addprefix server/pages/,acts.c override_form.c versions_page.c)) \
    $(if $(filter SHARDS,$(PARTS)),,server/http/batch.c server/pages/shards.c)
SERVER_SOURCES = doorman_server.c $(sort $(filter-out $(LEFT_OUT), \
    $(wildcard $(FOLDERS:%=server/%/*.c))))
SERVER_MACROS = $(PARTS:%=-DDOORMAN_SERVER_%)
SERVER_LIBRARIES = -lm $(if $(filter ETCD,$(PARTS)),-lcurl) \
    $(if $(filter STATE,$(PARTS)),-lsqlite3) $(if $(filter REDIS,$(PARTS)),-lhiredis) \
    $(if $(filter GRPC,$(PARTS)),-lnghttp2 -lprotobuf-c) $(if $(filter TLS,$(PARTS)),-lgnutls)
HTTP_FILES = build/page_files.h build/openapi.h
SERVER_HEADERS = $(wildcard server/*.h server/*/*.h)
GRPC_FILES = $(if $(filter GRPC,$(PARTS)),build/grpc/messages.pb-c.h build/grpc/messages.o)
SERVER_INPUTS = $(SERVER_SOURCES) $(SERVER_HEADERS) $(HTTP_FILES) $(GRPC_FILES) \
    build/server_parts $(HEADERS)

# Each flavor has an object for each source, so another choice of parts compiles only the sources
# that ask for it: all, if a header asks, except the one that doorman_server.c includes.
SERVER_FOLDERS = build build/asan build/tsan build/coverage
ASKS = grep -l -s '^\#ifdef DOORMAN_SERVER_\|^\#.*defined.*DOORMAN_SERVER_'
ASKING_SOURCES := $(sort doorman_server.c $(shell $(ASKS) $(wildcard server/*/*.c)) \
    $(if $(shell $(ASKS) $(filter-out server/core/parts.h,$(SERVER_HEADERS))),$(SERVER_SOURCES)))
define compile_server
@mkdir -p $(@D)
@$(C) $(CFLAGS) $(IMPLEMENTED) $(SERVER_MACROS) -c $< -o $@
endef
$(foreach folder,$(SERVER_FOLDERS), \
    $(eval $(SERVER_SOURCES:%.c=$(folder)/%.o): $(folder)/%.o: %.c ; $$(compile_server)) \
    $(eval $(ASKING_SOURCES:%.c=$(folder)/%.o): build/server_parts) \
    $(eval $(folder)/doorman_server: $(SERVER_SOURCES:%.c=$(folder)/%.o)))
$(foreach folder,$(SERVER_FOLDERS),$(SERVER_SOURCES:%.c=$(folder)/%.o)): $(SERVER_HEADERS) \
    $(HTTP_FILES) $(filter %.h,$(GRPC_FILES)) $(HEADERS) | build_deps

define build_server
$(announce)
@$(C) $(CFLAGS) $(filter %.o,$^) -o $@ $(LDFLAGS) $(LIBRARIES) $(SERVER_LIBRARIES)
endef

build/server_parts: always
	@mkdir -p $(@D)
	@echo '$(PARTS)' | cmp -s - $@ || echo '$(PARTS)' >$@

# The style and the script of the status page as arrays of C, without comments and indentation.
build/page_files.h: server/pages/page.css server/pages/page.js
	@mkdir -p $(@D)
	@for name in css js; do \
	    echo "static const char page_$$name[] = {" && \
	    sed -e '/^\/\*/,/\*\/$$/d' -e 's/^ *//' server/pages/page.$$name | od -A n -v -t u1 | \
	        sed 's/[0-9][0-9]*/&,/g' && \
	    echo '0};'; \
	done >$@

# The description of the API as an array of its lines, without indentation. It is large, so cppcheck
# would need minutes for an array of its characters.
build/openapi.h: server/pages/openapi.json
	@mkdir -p $(@D)
	@{ echo 'static const char *const openapi_lines[] = {' && \
	    sed -e 's/^ *//' -e 's/[\\"]/\\&/g' -e 's/.*/"&\\n",/' $< && echo '};'; } >$@

# The messages of gRPC in C. protoc-c generates code that is not checked here. It is compiled once.
build/grpc/messages.pb-c.c: server/grpc/messages.proto | build_deps
	@mkdir -p $(@D)
	@protoc-c --proto_path=server/grpc --c_out=build/grpc messages.proto
build/grpc/messages.pb-c.h: build/grpc/messages.pb-c.c
build/grpc/messages.o: build/grpc/messages.pb-c.c
	$(announce)
	@$(CC) -std=c11 -O2 -g -c $< -o $@

build/doorman_server: $(SERVER_INPUTS) build/doorman.o | build_deps
	$(build_server)
build/examples/%: examples/%.c $(HEADERS) build/doorman.o | build_deps
	$(build)

CTL_EVENTS = $(filter-out 0,$(EVENTS))
CTL_SOURCES = $(sort $(filter-out $(if $(CTL_YAML),,%/convert.c %/yaml.c) \
    $(if $(CTL_EVENTS),,%/subscribe.c),$(wildcard server/ctl/*.c)))
CTL_HEADERS = $(wildcard server/ctl/*.h) doorman.h
define build_ctl
$(announce)
@$(C) $(CFLAGS) $(if $(CTL_YAML),-DDOORMAN_CTL_YAML) $(if $(CTL_EVENTS),-DDOORMAN_CTL_EVENTS) \
    $(CTL_SOURCES) -o $@ $(LDFLAGS) -lcjson -lcurl $(if $(CTL_YAML),-lyaml) \
    $(if $(CTL_EVENTS),-lnng) -lm
endef
doormanctl: build/doormanctl ## the program for operators
# A test that needs the program must not give it the flags of its sanitizer.
build/doormanctl: CFLAGS := $(CFLAGS)
build/doormanctl: $(CTL_SOURCES) $(CTL_HEADERS) | ctl_deps
	$(build_ctl)

# Examples that need fewer libraries compile the implementation themselves.
SMALL_EXAMPLES = $(addprefix build/examples/,library_only local_limiters event_loop permits_only)
$(SMALL_EXAMPLES): build/examples/%: examples/%.c $(HEADERS) | build_deps
	$(build)
build/examples/library_only build/examples/local_limiters: LIBRARIES = # none
build/examples/event_loop build/examples/permits_only: LIBRARIES = -lcjson
build/examples/demo build/examples/demo_tree: examples/demo_fleet.h examples/demo.h
$(addprefix build/examples/,demo_permits demo_throttle demo_state demo_fair demo_shards job_pool): \
    examples/demo.h
build/examples/doorman_shell: LIBRARIES += -ledit

# The implementation for the server and the examples. C++ needs it compiled as C.
define implement
@$(C) $(CFLAGS) -DDOORMAN_IMPLEMENTATION -DDOORMAN_JSON -DDOORMAN_NNG \
    $(patsubst %,-include %,$(filter-out %doorman.h,$(filter %.h,$^))) -x c -c /dev/null -o $@
endef
build/doorman.o: $(HEADERS) | build_deps
	$(announce)
	$(implement)
build/examples/%: examples/%.cpp build/doorman.o
	$(announce)
	@$(CXX11) $(CXXFLAGS) $^ -o $@ $(LDFLAGS) $(LIBRARIES)

# Tests are built in three flavors. Each flavor has a folder in build/, with a server of the same
# flavor. All tests run in the flavor asan (ASan and UBSan). Tests that measure memory or speed,
# which their files mark with MEASURES, also run in the flavor plain. `make matrix` runs all unit
# tests so.
#
# `make races` runs the tests with threads in the flavor tsan, and limiters_test also in the flavor
# plain, because its threads meet more often there. It leaves out abuse_test, which takes 90 s, and
# clients_test, hold_clients_test, reservation_clients_test and shard_clients_test, which test
# clients of other languages. system/events_test is left out too: libnng counts the users of a
# published message with atomic operations, and TSan does not see them there. unit/events_test has
# what our threads share. PART=2/3 runs every third program, from the second one on.
# Warnings are errors, except two kinds that gcc reports wrongly with a sanitizer.
FLAVORS = plain asan tsan
SANITIZED = -Og -g1 -Werror -fno-omit-frame-pointer -Wno-unknown-warning-option \
    -Wno-format-truncation -Wno-error=maybe-uninitialized
build/plain/%: CFLAGS = -O2 -g -Werror
build/plain/system/%: CPPFLAGS += -DTEST_ONLY_MEASURES
build/asan/%: CFLAGS = $(SANITIZED) -fsanitize=address,undefined -fno-sanitize-recover=all
build/tsan/%: CFLAGS = $(SANITIZED) -fsanitize=thread

PROGRAMS = $(patsubst tests/%.c,%,$(filter-out $(if $(CTL_YAML),,%/convert_test.c), \
    $(wildcard tests/system/*_test.c tests/unit/*_test.c)))
THREADED = $(filter-out system/abuse_test system/clients_test system/hold_clients_test \
    system/reservation_clients_test system/shard_clients_test system/events_test, \
    $(filter unit/limiters_test unit/events_test system/%,$(PROGRAMS)))
MEASURING = $(addprefix system/,abuse_test http_request_test http_test pages_test)
TESTS = $(PROGRAMS:%=build/asan/%) $(MEASURING:%=build/plain/%)
RACES = $(addprefix build/, $(shell printf '%s\n' plain/unit/limiters_test $(THREADED:%=tsan/%) | \
    PART='$(PART)' sh tests/part.sh))
ALL_FLAVORS = $(foreach flavor,$(FLAVORS),$(PROGRAMS:%=build/$(flavor)/%))
TEST_SERVERS = $(FLAVORS:%=build/%/doorman_server)
TEST_SHELL = build/asan/examples/doorman_shell
TEST_EXAMPLES = $(addprefix build/asan/examples/,event_loop events_to_file job_pool \
    throttled_server)
TEST_SOURCES = $(HEADERS) $(wildcard tests/*.h tests/*/*.h)

HARNESSES = $(filter-out replay,$(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/*.c)))
REPLAYS = $(HARNESSES:%=build/asan/fuzz/%)
# tests/pages_check.sh and agent_permits_test run these.
PAGE_EXAMPLES = $(addprefix build/examples/,rate_client polite_crawler hold_guard reservation_guard)
TEST_CTL = $(if $(DOORMANCTL),build/asan/doormanctl)
TEST_TOOLS = $(filter-out build/tsan/%,$(TEST_SERVERS)) $(TEST_SHELL) $(TEST_EXAMPLES) \
    $(PAGE_EXAMPLES) $(DOORMANCTL) $(TEST_CTL) build/doorman_server build/clock_shift.so
RACE_TOOLS = build/tsan/doorman_server $(PAGE_EXAMPLES) $(DOORMANCTL) build/clock_shift.so
# The longest programs come first, because they run in parallel, and mostly wait.
LONG = $(addprefix %/system/,redis_test tls_test hold_clients_test etcd_transport_test \
    versions_test etcd_test shards_test replace_test forward_test state_test tree_test \
    clients_test abuse_test agent_test http_test server_test)
# These wait so long that their tests run in two halves.
in_halves = $(foreach program,$(1),$(if $(filter $(addprefix %/system/,redis_test tls_test \
    hold_clients_test),$(program)),$(program):1/2 $(program):2/2,$(program)))
RUN_TESTS = CC='$(CC)' CXX='$(CXX)' CPPFLAGS='$(CPPFLAGS)' WARNINGS='$(WARNINGS)' sh tests/run.sh
# The long programs run while make builds the others: see MAKEFLAGS. The longest come first, so that
# none runs alone at the end. Both kinds together run at most ten programs per core.
EARLY = $(filter $(TESTS),$(subst %,build/asan,$(LONG)))
CORES = $$(nproc 2>/dev/null || echo 1)
RUN_EARLY = JOBS=$${JOBS:-$$((6 * $(CORES)))} $(RUN_TESTS) --into build/early_tests
RUN_LATE = JOBS=$${JOBS:-$$((4 * $(CORES)))} $(RUN_TESTS) --into build/late_tests
early_tests: $(EARLY) build/asan/doorman_server
	@$(RUN_EARLY) tests/grpc_quotas_check.sh tests/grpc_check.sh \
	    $(call in_halves,$(EARLY))

late_tests: $(TESTS) $(TEST_TOOLS)
	@$(RUN_LATE) $(filter $(LONG),$(filter-out $(EARLY),$(TESTS))) \
	    tests/browser_check.sh tests/pages_check.sh tests/doormanctl_check.sh \
	    $(filter-out $(LONG),$(TESTS)) \
	    tests/shell_check.sh tests/event_loop_check.sh tests/events_check.sh \
	    tests/job_pool_check.sh tests/throttle_check.sh \
	    tests/openapi_check.sh tests/gateway_check.sh tests/lint_check.sh \
	    tests/text_check.sh tests/comment_check.sh tests/contributing_check.sh

test: early_tests late_tests ## tests of the library and of the server; SEED=N repeats random ones
	@sh tests/run.sh --sum build/early_tests build/late_tests

races: $(RACES) $(RACE_TOOLS) ## tests with threads, with the thread sanitizer; PART=2/3
	@$(if $(RACES),,exit 2) # tests/part.sh has said why
	@$(RUN_TESTS) $(call in_halves,$(filter $(LONG),$(RACES))) $(filter-out $(LONG),$(RACES))

# What people install, in the forms in which they get it.
test_packages: $(EVERYTHING) build/plain/doorman_server build/asan/unit/stories_test
test_packages: | test_deps ## tests of packages, client packages, deployment, pages and upgrades
	@$(RUN_TESTS) tests/compile_check.sh tests/package_check.sh tests/release_check.sh \
	    tests/upgrade_check.sh tests/deploy_check.sh tests/install_check.sh \
	    tests/cmake_check.sh tests/python_client_check.sh tests/javascript_client_check.sh \
	    tests/go_client_check.sh tests/docs_check.sh

# It takes some minutes, and needs docker, or root and the packages of Debian.
test_image: ## build the image of examples/deploy/Dockerfile, and run the server in it
	@sh tests/image_check.sh

# clock_test.c loads this into a server.
build/clock_shift.so: tests/system/clock_shift.c
	$(announce)
	@$(C) -O1 -shared -fPIC $< -o $@

$(ALL_FLAVORS): LIBRARIES += -lcmocka -lm
# These programs include files of the server.
OF_SERVER = audit_trim batch certificate children events grpc_memory link link_http \
    forward_mark forward_thread graph lock notify reports reset_count row_order store text \
    unmatched versions warnings watch
$(filter $(OF_SERVER:%=\%/unit/%_test),$(ALL_FLAVORS)): doorman_server.c $(SERVER_HEADERS) \
    $(wildcard server/*/*.c)

REDIS_PROGRAMS = $(addprefix system/,redis_test admin_test cluster_acts_test drain_test \
    forward_test late_acts_test office_test plans_test shard_clients_test shards_test versions_test)
REDIS_TESTS = $(filter $(REDIS_PROGRAMS:%=\%/%),$(ALL_FLAVORS))
$(REDIS_TESTS): doorman_server.c $(SERVER_HEADERS) $(wildcard server/store/*.c)
$(REDIS_TESTS) $(REDIS_PROGRAMS:%=build/coverage/%): LIBRARIES += -lhiredis
$(filter %/system/forward_test,$(ALL_FLAVORS)): | $(DOORMANCTL)
CURL_TESTS = $(filter %/system/store_etcd_test,$(ALL_FLAVORS)) build/coverage/system/store_etcd_test
$(CURL_TESTS): LIBRARIES += -lcurl
$(CURL_TESTS): doorman_server.c $(SERVER_HEADERS) $(wildcard server/*/*.c)
SQLITE_TESTS = unit/store_test system/plans_test system/disk_test system/drain_test
$(filter $(SQLITE_TESTS:%=\%/%),$(ALL_FLAVORS)) $(SQLITE_TESTS:%=build/coverage/%): \
    LIBRARIES += -lsqlite3
$(filter %/unit/certificate_test,$(ALL_FLAVORS)) build/coverage/unit/certificate_test: \
    LIBRARIES += -lgnutls
CONVERT_TESTS = $(filter %/unit/convert_test,$(ALL_FLAVORS)) build/coverage/unit/convert_test
$(CONVERT_TESTS): LIBRARIES += -lyaml
$(CONVERT_TESTS): $(wildcard server/ctl/*.[ch])

# These programs and the servers call no private function of the header, so each flavor compiles the
# headers for them once.
LINKED = doorman_server $(addprefix fuzz/,calls grpc handover http permits response rows shards) \
    $(addprefix system/,abuse_test agent_holds_test agent_permits_test agent_routes_test etcd_test \
    leased_test status_test store_etcd_test tls_test tree_test) \
    $(addprefix unit/,arguments_test audit_trim_test batch_test children_test events_test \
        link_http_test link_test forward_mark_test forward_thread_test graph_test lock_test \
        notify_test reports_test reset_count_test unmatched_test versions_test warnings_test)
$(foreach flavor,$(FLAVORS) coverage,\
    $(eval $(LINKED:%=build/$(flavor)/%): build/$(flavor)/doorman.o))
$(TEST_SHELL) $(TEST_EXAMPLES): build/asan/doorman.o
build/plain/doorman.o build/plain/doorman_server: build/plain/%: build/%
	$(announce)
	@cp -f $< $@

# Other tests call private functions. Each flavor has an object in which all functions are public,
# and the tests include their declarations: see tests/unit/open.awk. Unit tests link a copy of it
# that uses the allocator of tests/unit/unit.h. server_test compiles the header itself, because it
# uses no nng. agent_test links a copy that calls its functions in place of two of nng.
OPEN_FLAVORS = $(FLAVORS) coverage
OPEN_TESTS = $(filter-out unit/server_test, \
    $(patsubst tests/%.c,%,$(shell grep -s -l '^.include "unit.h"' tests/unit/*.c)))
OPEN_HARNESSES = $(foreach folder,asan/fuzz fuzz, \
    $(addprefix build/$(folder)/,configuration holds message system throttle))
OPEN_PROGRAMS = $(OPEN_HARNESSES) \
    $(foreach flavor,$(OPEN_FLAVORS),$(patsubst %,build/$(flavor)/%,$(OPEN_TESTS) \
        system/agent_test))
OPEN_OBJECTS = $(addprefix build/,asan/doorman.o tsan/doorman.o coverage/doorman.o plain/open.o \
    fuzz/doorman.o)
$(foreach flavor,$(OPEN_FLAVORS),\
    $(eval $(OPEN_TESTS:%=build/$(flavor)/%): build/$(flavor)/unit.o)\
    $(eval build/$(flavor)/system/agent_test: build/$(flavor)/agent.o))
$(filter build/asan/%,$(OPEN_HARNESSES)): build/asan/doorman.o
$(filter build/fuzz/%,$(OPEN_HARNESSES) $(LINKED:%=build/%)): build/fuzz/doorman.o
$(OPEN_PROGRAMS): LINKED_MACROS = -DDOORMAN_IMPLEMENTATION= -DDOORMAN_JSON= -DDOORMAN_NNG= \
    -DDOORMAN__DECLARES_STATIC $(patsubst %,-include build/declared/%,$(INCLUDING_HEADERS))
build/open/%.h build/declared/%.h: %.h tests/unit/open.awk tests/unit/hooks.h
	@mkdir -p build/open build/declared
	@awk -f tests/unit/open.awk $< >build/open/$<
	@awk -v declare=1 -f tests/unit/open.awk $< >build/declared/$<
$(OPEN_OBJECTS): CPPFLAGS += -Wno-missing-prototypes
$(OPEN_OBJECTS): $(HEADERS:%=build/open/%) | test_deps
	$(announce)
	$(implement)
define use_unit_allocator
@objcopy $(foreach name,malloc realloc free,--redefine-sym $(name)=unit_$(name)) $< $@
endef
build/%/unit.o: build/%/doorman.o
	$(use_unit_allocator)
# build/plain/doorman.o is that of the programs. gcc would make one calloc of malloc and memset.
build/plain/open.o: CFLAGS += -fno-builtin-malloc
build/plain/unit.o: build/plain/open.o
	$(use_unit_allocator)
define use_agent_hooks
@objcopy --redefine-sym nng_close=close_or_hang --redefine-sym nng_aio_free=free_and_count $< $@
endef
build/%/agent.o: build/%/doorman.o
	$(use_agent_hooks)
build/plain/agent.o: build/plain/open.o
	$(use_agent_hooks)

build/plain/%: tests/%.c $(TEST_SOURCES) | test_deps
	$(build)
build/asan/%: tests/%.c $(TEST_SOURCES) | test_deps
	$(build)
build/tsan/%: tests/%.c $(TEST_SOURCES) | test_deps
	$(build)
$(filter-out build/plain/%,$(TEST_SERVERS)): $(SERVER_INPUTS) | test_deps
	$(build_server)
build/asan/doormanctl: $(CTL_SOURCES) $(CTL_HEADERS) | ctl_deps
	$(build_ctl)
$(TEST_SHELL): LIBRARIES += -ledit
build/asan/examples/job_pool: examples/demo.h
$(TEST_SHELL) $(TEST_EXAMPLES): build/asan/%: %.c $(HEADERS) | test_deps
	$(build)

# Measures which lines and branches of the headers and of the server the tests reach: the unit
# tests, the simulator, and the system tests except abuse_test. A server that a test kills writes no
# data. The measurement ignores the branches of assertions, because they never fail. It also ignores
# server.h, which only has functions for parts that are left out. index.html in the folders header
# and server of build/coverage shows every line.
COVERED = $(filter-out system/abuse_test,$(PROGRAMS))
COVERAGE_TESTS = $(COVERED:%=build/coverage/%)
COVERAGE_SERVER = build/coverage/doorman_server
COVERAGE_SIM = build/coverage/sim/sim
build/coverage/%: CC = gcc
build/coverage/%: CFLAGS = -O0 -g --coverage
REPORT_header = $(HEADERS:%=--filter %) --fail-under-line 95 --fail-under-branch 85
REPORT_server = --filter doorman_server.c --filter server/ --fail-under-line 90

define report
@echo 'coverage of the $(1)'
@mkdir -p build/coverage/$(1)
@gcovr --add-tracefile build/coverage/all.json $(REPORT_$(1)) --print-summary \
    --html-details build/coverage/$(1)/index.html
endef

coverage: build/clock_shift.so
coverage: $(COVERAGE_TESTS) $(COVERAGE_SERVER) $(COVERAGE_SIM) ## coverage of headers and server
	@sh .ci/deps --need 'sh .ci/deps gcovr' gcovr
	@find build/coverage -name '*.gcda' -delete
	@sh tests/run.sh $(COVERAGE_TESTS)
	@sh tests/grpc_check.sh $(COVERAGE_SERVER)
	@sh tests/grpc_quotas_check.sh $(COVERAGE_SERVER)
	@echo '$(COVERAGE_SIM) faults, permits; its log is $(COVERAGE_SIM).log'
	@for mode in faults permits holds; do $(COVERAGE_SIM) $$mode \
	    --jobs $$(nproc 2>/dev/null || echo 1) --seeds 200 || exit; done >$(COVERAGE_SIM).log 2>&1
	@gcovr $(HEADERS:%=--filter %) --filter doorman_server.c --filter server/ \
	    --exclude server/server.h --exclude-branches-by-pattern '^ *assert\(' \
	    --json build/coverage/all.json build/coverage
	$(call report,header)
	$(call report,server)

$(COVERAGE_TESTS): LIBRARIES += -lcmocka -lm
build/coverage/%: tests/%.c $(TEST_SOURCES) | test_deps
	$(build)
$(COVERAGE_SERVER): $(SERVER_INPUTS) | test_deps
	$(build_server)
$(COVERAGE_SIM): LIBRARIES = -lm
$(COVERAGE_SIM): $(wildcard tests/sim/*.[ch] server/grpc/quota.[ch]) $(HEADERS) | build_deps
	$(announce)
	@$(C) $(CFLAGS) $(filter tests/sim/%.c,$^) -o $@ $(LDFLAGS) $(LIBRARIES)

# Compiles with every compiler at every level of optimization; `make test_packages` does a part of
# that. Also runs the unit tests as they are without a sanitizer.
PLAIN_UNITS = $(addprefix build/plain/,$(shell \
    printf '%s\n' $(filter unit/%,$(PROGRAMS)) | PART='$(PART)' sh tests/part.sh))
matrix: $(filter %.h,$(GRPC_FILES))
matrix: $(PLAIN_UNITS) build/sim/sim $(HTTP_FILES) | test_deps ## compile in all supported ways
	@sh tests/run.sh $(PLAIN_UNITS)
	@CC='$(CC)' CXX='$(CXX)' CPPFLAGS='$(CPPFLAGS)' WARNINGS='$(WARNINGS)' \
	    sh tests/compile_check.sh --all

# The abuse tests at full size: a million leases, floods of 30 s, 100 killed servers in MINUTES.
MINUTES ?= 10
abuse: build/plain/system/abuse_test build/plain/doorman_server ## abuse at full size; MINUTES=N
	@DOORMAN_SERVER=build/plain/doorman_server ABUSE_MINUTES=$(MINUTES) $< '*'

# What `make test` does a few times: an account of every grant, over servers with a file or a Redis
# that are killed or restarted, and over nodes of three processes that are upgraded.
KILLS = $(addprefix build/plain/system/,state_test redis_test)
kills: $(KILLS) build/plain/doorman_server ## kills and restarts of servers with a store, 100 each
	@for program in $(KILLS); do DOORMAN_SERVER=build/plain/doorman_server DOORMAN_KILLS=100 \
	    DOORMAN_RESTARTS=100 $$program || exit; done

C_SOURCES = $(wildcard *.[ch] server/*.h server/*/*.[ch] examples/*.[ch]* tests/*.h tests/*/*.[ch])
SCRIPTS = .ci/run .ci/deps .ci/release $(wildcard tests/*.sh tests/grpc/*.sh) \
    server/ctl/completion.bash \
    $(addprefix examples/deploy/debian/,package.sh postinst prerm postrm)

# QUICK=1 takes some minutes. It draws no picture, because that needs the whole measurement. ONLY=
# measures one part, such as `shards` (tests/bench/bench_shards.c), and PART=2/3 every third one.
build/bench: | build/examples/throttled_server
bench: build/bench build/doorman_server ## benchmarks, some minutes; QUICK=1 is shorter; ONLY=PART
	@build/bench $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(PART),--part $(PART)) \
	    build/doorman_server build
ifeq ($(QUICK)$(ONLY)$(PART),)
	@sh tests/bench/draw.sh build/bench_cost.dat tests/bench/cost.svg
	@sh tests/bench/draw.sh build/bench_permits.dat tests/bench/permits.svg
endif

# Without the library of a peer, its rows are skipped.
build/bench: BENCH_FLAGS = $(if $(filter GRPC,$(PARTS)),-DBENCH_HTTP2) \
    $(if $(filter REDIS,$(PARTS)),-DBENCH_REDIS) $(if $(filter SHARDS,$(PARTS)),-DBENCH_SHARDS)
build/bench: LIBRARIES += $(if $(filter GRPC,$(PARTS)),-lnghttp2) \
    $(if $(filter REDIS,$(PARTS)),-lhiredis)
build/bench: $(wildcard tests/bench/*.[ch]) $(HEADERS) | build_deps
	$(announce)
	@$(C) -O2 -g -Werror $(BENCH_FLAGS) $(filter %.c,$^) -o $@ $(LDFLAGS) $(LIBRARIES) -lm

# The simulator runs the scenarios, with figures and pictures. FAULTS=1 runs random faults instead.
# MUTANTS=1 checks that it finds known faults, which are inserted into copies of the headers.
# THROTTLE=1 compares the throttle with other policies, and FAIR=1 shares of a fair limit with the
# order of arrival. This takes seconds.
SIM_SEEDS = $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SEED),--seed $(SEED))
# A run of `sim leased` takes five times as long as the others.
LEASED_SEEDS = $(if $(SEEDS),--seeds $(shell expr $(SEEDS) / 5 + 1))
sim: build/sim/sim ## simulated scenarios; or THROTTLE=1; FAIR=1; FAULTS=1 [SEEDS=N]; MUTANTS=1
ifdef MUTANTS
	@CC='$(CC)' sh tests/sim/mutants.sh
else ifdef FAULTS
	@for mode in faults permits holds state quotas shards leased; do echo "sim $$mode" && \
	    build/sim/sim $$mode --jobs $$(nproc 2>/dev/null || echo 1) $(SIM_SEEDS) \
	        $$([ $$mode != leased ] || echo '$(LEASED_SEEDS)') || exit; done
else ifdef THROTTLE
	@build/sim/sim throttle $(if $(SEED),--seed $(SEED)) --output build/sim
	@sh tests/sim/draw.sh build/sim/throttle.dat tests/sim/throttle.svg
	@sh tests/sim/draw.sh build/sim/feedback.dat tests/sim/feedback.svg
else ifdef FAIR
	@build/sim/sim fair $(if $(SEED),--seed $(SEED)) --output build/sim
	@sh tests/sim/draw.sh build/sim/fair.dat tests/sim/fair.svg
else
	@build/sim/sim scenarios --jobs $$(nproc 2>/dev/null || echo 1) \
	    $(if $(SEEDS),--seeds $(SEEDS)) --output build/sim
	@sh tests/sim/draw.sh build/sim
endif

# The longest source, sim.c, is the first one.
build/sim/sim: $(patsubst tests/sim/%.c,build/sim/%.o,$(sort $(wildcard tests/sim/*.c)))
	$(announce)
	@$(C) $^ -o $@ $(LDFLAGS) -lm
build/sim/%.o: tests/sim/%.c $(wildcard tests/sim/*.h server/grpc/quota.[ch]) $(HEADERS) \
    | build_deps
	@mkdir -p $(@D)
	@$(C) -O3 -g -Werror -c $< -o $@

# The harnesses of tests/fuzz. `make fuzz` runs each with libFuzzer for SECONDS, starting from its
# corpus, and writes what it finds to build/fuzz. build/asan/fuzz/NAME runs one on the files that it
# gets as arguments.
FUZZ ?= $(HARNESSES)
SECONDS ?= 60
FUZZ_FLAGS = -max_total_time=$(SECONDS) -timeout=60 -rss_limit_mb=2048 -print_final_stats=1
FUZZ_FLAGS_response = -max_len=4096 -dict=../../tests/fuzz/json.dict
FUZZ_FLAGS_configuration = $(FUZZ_FLAGS_response)
FUZZ_FLAGS_message = $(FUZZ_FLAGS_response)
FUZZ_FLAGS_permits = $(FUZZ_FLAGS_response)
FUZZ_FLAGS_holds = $(FUZZ_FLAGS_response)
FUZZ_FLAGS_calls = -max_len=1024
FUZZ_FLAGS_throttle = -max_len=1024
FUZZ_FLAGS_glob = -max_len=520 -use_value_profile=1
FUZZ_FLAGS_http = -max_len=8192 -dict=../../tests/fuzz/http.dict
FUZZ_FLAGS_grpc = -max_len=8192
FUZZ_FLAGS_system = -max_len=8192 -len_control=0
# What sim_faults.c, which the harness system includes, needs of the simulator.
SIM_SOURCES = $(filter-out \
    $(addprefix tests/sim/sim_,fair.c faults.c quota.c random.c scenarios.c shards% \
    throttle%), \
    $(wildcard tests/sim/sim_*.c))

fuzz: $(FUZZ:%=fuzz_%) ## fuzz everything that reads bytes (libFuzzer); SECONDS=60 FUZZ=glob

fuzz_%: build/fuzz/%
	@mkdir -p build/fuzz/corpus/$*
	@cd build/fuzz && echo "fuzz $*, $(SECONDS) s" && \
	    { ./$* $(FUZZ_FLAGS) $(FUZZ_FLAGS_$*) -artifact_prefix=$*- corpus/$* ../../tests/fuzz/$* || \
	    { echo "repeat: build/fuzz/$* build/fuzz/$*-... (the file named above)"; exit 1; }; }

FUZZ_CC = clang -std=c11 -D_DEFAULT_SOURCE -O1 -g -fsanitize=address,undefined \
    -fno-sanitize-recover=all -I. -pthread $(WARNINGS) $(CPPFLAGS)
build/fuzz/doorman.o: C = $(FUZZ_CC)
build/fuzz/doorman.o: CFLAGS = -fsanitize=fuzzer-no-link
build/fuzz/%: tests/fuzz/%.c $(wildcard tests/fuzz/*.h) $(HEADERS) | build_deps
	@sh .ci/deps --need 'sh .ci/deps fuzzer' fuzzer
	$(announce)
	@$(FUZZ_CC) -fsanitize=fuzzer $(LINKED_MACROS) $< $(filter %.o,$^) -o $@ $(LIBRARIES) -lm

$(REPLAYS): build/asan/fuzz/%: tests/fuzz/%.c tests/fuzz/replay.c $(TEST_SOURCES) | test_deps
	$(announce)
	@$(C) $(CFLAGS) $(LINKED_MACROS) $(filter-out $(INCLUDED),$(filter %.c,$^)) \
	    $(filter %.o,$^) -o $@ $(LDFLAGS) $(LIBRARIES) -lm

INCLUDED = doorman_server.c server/%.c tests/sim/sim_faults.c
build/fuzz/http build/asan/fuzz/http: $(filter-out %.o,$(SERVER_INPUTS))
build/fuzz/grpc build/asan/fuzz/grpc: $(SERVER_INPUTS)
build/fuzz/grpc build/asan/fuzz/grpc: LIBRARIES += $(SERVER_LIBRARIES)
build/fuzz/system build/asan/fuzz/system: tests/sim/sim_faults.c
# The harness glob bounds the number of function calls, so it needs -finstrument-functions. In the
# harness system, the simulator is only the environment of the code under test, so it is built
# without instrumentation.
build/fuzz/glob build/asan/fuzz/glob: CPPFLAGS += -finstrument-functions
build/asan/fuzz/system: $(SIM_SOURCES)
build/fuzz/system: $(SIM_SOURCES:tests/sim/%.c=build/fuzz/%.o)
build/fuzz/sim_%.o: tests/sim/sim_%.c tests/sim/sim.h $(HEADERS)
	$(announce)
	@clang -std=c11 -O2 -g -I. $(CPPFLAGS) -c $< -o $@

# Runs a tool, if it is installed: its name, what it checks, the command.
lint = @if command -v $(1) >/dev/null; then echo "$(1): $(2)"; $(3); \
    else echo "$(1) is not installed: $(2) not checked"; fi

lint: lint_tidy lint_tidy_examples $(addprefix lint_,cppcheck_header cppcheck columns order layers \
    format scripts spelling mutants) ## clang-tidy, cppcheck and others, if installed

# The compiler flags for clang-tidy come after --. It checks a header only where the header is the
# source itself, not where another file includes it. The examples include a header, so the slow
# part, the analyzer, is off for them and checks each header only once. .clang-tidy and .codespellrc
# say which findings are ignored, and why. Exceptions for cppcheck are comments in the code.
# Standard error is dropped, because clang-tidy only writes there how many findings it suppressed.
# Each source has a process of its own, because clang-tidy 14 forgets va_start in a second source.
# The header of permits comes first, because it takes a third of the time.
TIDY = -- -x c -std=c11 -D_DEFAULT_SOURCE -I. $(CPPFLAGS)
TIDIED = $(addprefix lint_tidy/,doorman_permits.h $(HEADERS) $(SERVER_SOURCES) $(CTL_SOURCES))
lint_tidy: $(TIDIED)
$(HEADERS:%=lint_tidy/%): TIDY_MACROS = -DDOORMAN_IMPLEMENTATION -DDOORMAN_JSON -DDOORMAN_NNG
$(filter-out %.h,$(TIDIED)): TIDY_MACROS = $(SERVER_MACROS)
$(filter-out %.h,$(TIDIED)): $(HTTP_FILES) $(filter %.h,$(GRPC_FILES))
lint_tidy/%: always
	$(call lint,clang-tidy,$*,clang-tidy --quiet $* $(TIDY) $(TIDY_MACROS) 2>/dev/null)
lint_tidy_examples:
	$(call lint,clang-tidy,examples,clang-tidy --quiet --checks=-clang-analyzer-* \
	    $(wildcard examples/*.c) $(TIDY) 2>/dev/null)

# cppcheck reads no system headers. It checks the implementation once, and not in each example.
CPPCHECK = cppcheck -q --error-exitcode=1 --inline-suppr --enable=warning --enable=performance \
    --enable=portability --suppress=toomanyconfigs -I.
lint_cppcheck_header:
	$(call lint,cppcheck,headers,$(CPPCHECK) --language=c -DCLOCK_MONOTONIC=1 \
	    -DDOORMAN_IMPLEMENTATION -DDOORMAN_JSON -DDOORMAN_NNG $(INCLUDING_HEADERS))
lint_cppcheck: $(HTTP_FILES) $(filter %.h,$(GRPC_FILES))
	$(call lint,cppcheck,server and examples,$(CPPCHECK) $(IMPLEMENTED) \
	    -DPROTOBUF_C_VERSION_NUMBER=9999999 \
	    $(wildcard *.c server/*/*.c examples/*.c*))

lint_columns:
	@awk 'length > 100 { print FILENAME ":" FNR ": more than 100 columns"; bad = 1 } \
	    END { exit bad }' $(C_SOURCES) $(SCRIPTS) server/pages/page.css server/pages/page.js Makefile
lint_order:
	@sh tests/order_check.sh $(HEADERS)
# The objects need no optimisation, because only their symbols are read.
LAYERS = $(patsubst %.c,build/layers/%.o,$(SERVER_SOURCES) $(CTL_SOURCES))
build/layers/%.o: %.c $(SERVER_INPUTS)
	@mkdir -p $(@D)
	@$(C) -O0 $(IMPLEMENTED) $(SERVER_MACROS) -c $< -o $@
lint_layers: $(LAYERS)
	@rm -f $(filter-out $(LAYERS),$(wildcard build/layers/server/*/*.o)) # of sources that are gone
	@sh tests/layers_check.sh $(if $(GRAPH),--graph) build/layers
lint_format:
	$(call lint,clang-format,C sources,clang-format --dry-run -Werror $(C_SOURCES))
lint_scripts:
	$(call lint,shellcheck,scripts,shellcheck $(SCRIPTS))
lint_spelling:
	$(call lint,codespell,all files,codespell $(filter-out build,$(wildcard *)) .ci/*)
lint_mutants:
	@sh tests/sim/mutants.sh --check

# The site of all pages. docs/mkdocs.yml says what is in it.
docs: ## the pages as a site with search: build/docs/index.html
	@sh .ci/deps --need 'sh .ci/deps mkdocs' mkdocs
	@mkdir -p build/docs_pages
	@mkdocs build --quiet --strict --config-file docs/mkdocs.yml
	@python3 tests/docs_links.py build/docs

# What comes with doormanctl: its page of the manual, and what shells complete.
BASH_COMPLETION = share/bash-completion/completions
ZSH_COMPLETION = share/zsh/site-functions
CTL_FILES = bin/doormanctl share/man/man1/doormanctl.1 $(BASH_COMPLETION)/doormanctl \
    $(ZSH_COMPLETION)/_doormanctl

# What tells compilers where the headers are: a file for pkg-config, and two for CMake.
CMAKE_FOLDER = lib/cmake/doorman
FOUND_FILES = share/pkgconfig/doorman.pc $(CMAKE_FOLDER)/doormanConfig.cmake \
    $(CMAKE_FOLDER)/doormanConfigVersion.cmake

# The headers need no build and no library. These files contain the version of the headers, and that
# of pkg-config also the path.
install_headers:
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,include $(dir $(FOUND_FILES)))
	install -m 644 $(HEADERS) $(DESTDIR)$(PREFIX)/include
	version=$$(sed -n 's/^#define DOORMAN_VERSION "\(.*\)"$$/\1/p' doorman.h) && \
	    for file in $(FOUND_FILES); do \
	        sed -e 's|@PREFIX@|$(PREFIX)|' -e "s|@VERSION@|$$version|" \
	            examples/deploy/$${file##*/}.in \
	            >$(DESTDIR)$(PREFIX)/$$file && chmod 644 $(DESTDIR)$(PREFIX)/$$file || exit; \
	    done

install: build/doorman_server $(DOORMANCTL) install_headers ## headers and programs: PREFIX, DESTDIR
	install -d $(DESTDIR)$(PREFIX)/bin
	install -m 755 build/doorman_server $(DESTDIR)$(PREFIX)/bin
ifneq ($(DOORMANCTL),)
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,$(sort $(dir $(CTL_FILES))))
	install -m 755 build/doormanctl $(DESTDIR)$(PREFIX)/bin
	install -m 644 docs/doormanctl.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 server/ctl/completion.bash $(DESTDIR)$(PREFIX)/$(BASH_COMPLETION)/doormanctl
	install -m 644 server/ctl/completion.zsh $(DESTDIR)$(PREFIX)/$(ZSH_COMPLETION)/_doormanctl
endif

deb: build/doorman_server build/doormanctl ## build the three Debian packages in build/
	@sh .ci/deps --need 'sh .ci/deps dpkg-dev' dpkg-dev
	@sh examples/deploy/debian/package.sh build/doorman_server build/doormanctl build

# The variables are those of .ci/release.
release: ## check, and make the archives of a release in build/release; CHECKED=1 has checked
	@CHECKED='$(CHECKED)' $(if $(ONLY),ONLY='$(ONLY)') .ci/release

uninstall: ## undo make install
	rm -f $(HEADERS:%=$(DESTDIR)$(PREFIX)/include/%) $(DESTDIR)$(PREFIX)/bin/doorman_server \
	    $(addprefix $(DESTDIR)$(PREFIX)/,$(FOUND_FILES) $(CTL_FILES))

# What is missing is named before anything is built. Only the goals deps, demo and test install it.
# `make demo` needs less than `make test`.
INSTALLS = $(filter deps demo test,$(MAKECMDGOALS))
DEPS = CC='$(CC)' CXX='$(CXX)' CPPFLAGS='$(CPPFLAGS)' sh .ci/deps \
    $(if $(INSTALLS),,--need 'make deps')

ctl_deps:
	@$(DEPS) cc cjson libcurl $(if $(CTL_YAML),yaml) $(if $(CTL_EVENTS),nng)

build_deps:
	@$(DEPS) cc nng cjson $(if $(filter ETCD,$(PARTS)),libcurl) \
	    $(if $(filter STATE,$(PARTS)),sqlite) $(if $(filter REDIS,$(PARTS)),hiredis) \
	    $(if $(filter GRPC,$(PARTS)),nghttp2 protobuf-c) $(if $(filter TLS,$(PARTS)),gnutls)

test_deps: build_deps
	@$(DEPS) cmocka nngcat c++ libedit $(if $(CTL_YAML),yaml)
ifneq ($(INSTALLS),)
	@sh .ci/deps etcd redis || echo 'deps: without etcd and Redis some tests are skipped'
endif

deps: test_deps ## install missing libraries and tools (also done by demo and test)

clean: ## remove build/
	rm -rf build

help: ## print this list
	@awk -F ':.*## ' '/^[a-z_]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile
