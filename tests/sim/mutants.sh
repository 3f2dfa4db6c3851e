#!/bin/sh
# Tests whether the simulator finds bugs. Each mutant is a copy of the headers, of the state machine
# of quotas, and of the conditions of simulated stores, with one known fault: a rule is left out or
# broken. This script builds the simulator with each mutant and prints the number of runs until the
# fault is found. Every fault must be found.
#
#     tests/sim/mutants.sh [NAME]...        from the top of the repository; no names: all
#     tests/sim/mutants.sh --check          only checks that the old texts of all mutants occur once
#
# PART=2/3 tries every third mutant, from the second one on. SEEDS is the number of runs for each
# mutant (3000). JOBS is the number of mutants that run at the same time (one for each processor).
# The script calls itself with --one for each mutant. The copies are in build/sim/mutants. The old
# text of a mutant must occur in the headers exactly once; spaces and line breaks may differ.
# --faults and --favour give a mutant the faults that find it within SEEDS runs.
set -eu
seeds=${SEEDS:-3000}
folder=build/sim/mutants
headers='doorman.h doorman_permits.h doorman_throttle.h server/grpc/quota.c
    tests/sim/shards_fences.h tests/sim/store_fences.h'
compile="${CC:-cc} -std=c11 -D_DEFAULT_SOURCE"
jobs=${JOBS:-$(nproc 2>/dev/null || echo 1)}

# Runs all mutants, several at a time, and prints their output in the order of the arguments.
try_all() { # name...
    missed=
    count=0
    mkdir -p $folder
    rm -f $folder/*.o # a source may have been renamed
    # shellcheck disable=SC2086 # the compiler and its flags
    for source in tests/sim/sim_*.c; do basename "$source" .c; done |
        xargs -P "$jobs" -I NAME $compile -O1 -I. -c tests/sim/NAME.c -o "$folder/NAME.o"
    for name in "$@"; do rm -rf "${folder:?}/$name"; done
    # shellcheck disable=SC2016 # for the inner shell
    printf '%s\n' "$@" | xargs -P "$jobs" -I NAME \
        sh -c 'mkdir -p "$2/$3"
               sh "$1" --one "$3" >"$2/$3/output" 2>&1 || touch "$2/$3/missed"
               touch "$2/$3/done"' sh "$0" "$folder" NAME &
    for name in "$@"; do
        while [ ! -e "$folder/$name/done" ] && kill -0 $! 2>/dev/null; do sleep 0.1; done
        cat "$folder/$name/output"
        if [ -e "$folder/$name/missed" ] || [ ! -e "$folder/$name/done" ]; then
            missed="$missed $name"
            count=$((count + 1))
        fi
    done
    wait
    echo "$count not found${missed:+:$missed}"
    [ $count = 0 ]
}

if [ "${1:-}" = --check ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    # shellcheck disable=SC2086 # several names
    cat $headers >"$folder/all"
    set -- --one ''
elif [ "${1:-}" != --one ]; then
    if [ $# = 0 ]; then
        names=$(sed -n 's/^mutant \([^ ]*\) .*/\1/p' "$0" | sh tests/part.sh)
        # shellcheck disable=SC2086 # several names
        set -- $names
    fi
    try_all "$@"
    exit
fi
wanted=$2 # empty: all
missed=

# Writes a header with one text replaced to standard output. The exit status says how often the text
# occurs: 0, 1, or 2 for more.
change() { # header, old, new
    OLD=$2 NEW=$3 awk '
        BEGIN { RS = "\001" } # the whole header is one record
        {
            text = $0
            for (i = 1; i <= length(ENVIRON["OLD"]); i++) {
                c = substr(ENVIRON["OLD"], i, 1)
                if (c == " ") c = "[ \n]+"
                else if (c !~ /[A-Za-z0-9_]/) c = "[" c "]"
                pattern = pattern c
            }
            while (match(text, pattern)) {
                before = before substr(text, 1, RSTART - 1) ENVIRON["NEW"]
                text = substr(text, RSTART + RLENGTH)
                count++
            }
            printf "%s%s", before, text
        }
        END { exit count > 1 ? 2 : count + 0 }
    ' "$1"
}

# Replaces a text in the headers of a folder. Fails unless the text occurs once in all of them.
change_headers() { # folder, old, new
    times=0
    for header in $headers; do
        mv "$1/$header" "$1/before.h"
        change "$1/before.h" "$2" "$3" >"$1/$header"
        times=$((times + $?))
    done
    [ $times = 1 ]
}

say_that_text_is_wrong() { # old
    echo "$name: this text does not occur exactly once in the headers: $1"
    missed=1
}

# Checks the old texts of a mutant, in all headers at once.
check_texts() { # old, new, old, new, ..., options
    while [ $# -ge 2 ] && [ "${1#--}" = "$1" ]; do
        times=0
        change "$folder/all" "$1" "$2" >/dev/null || times=$?
        [ $times = 1 ] || say_that_text_is_wrong "$1"
        shift 2
    done
}

# Says what the simulator has found: the check or assertion that failed, or else the exit status.
why_found() { # exit status
    why=$(sed -n -e 's/^FAILED: seed \([0-9]*\), event [0-9]*: /run \1: /p' \
        -e 's/ *\([<>]=\)  *\([0-9.]*\)  *\([^ ]*\) .*MISSED$/: \3, not \1 \2/p' \
        "$folder/$name/out" | head -n 1)
    if [ "$why" ]; then
        echo "$why"
    elif grep -q 'Assertion' "$folder/$name/errors"; then
        sed -n 's/^.*: \([^ ]*\): Assertion/\1: assertion/p' "$folder/$name/errors" | head -n 1
    elif [ "$1" -gt 128 ]; then
        echo "signal SIG$(kill -l $(($1 - 128)))"
    else
        echo "exit status $1: $(head -n 1 "$folder/$name/errors")"
    fi
}

# Builds a unit test with the changed headers, and runs it.
try_unit() { # test
    mkdir -p "$folder/$name/tests/unit"
    cp tests/test.h "$folder/$name/tests"
    cp -n tests/sim/*.h "$folder/$name/tests/sim" # -n: some are mutants
    cp tests/unit/*.h "tests/unit/$1.c" "$folder/$name/tests/unit"
    $compile -O0 -pthread "-I$folder/$name" "$folder/$name/tests/unit/$1.c" \
        -o "$folder/$name/unit" -lcjson -lcmocka -lm
    missed=0
    if SEED=1 "$folder/$name/unit" >"$folder/$name/out" 2>&1; then
        missed=1
        found="NOT FOUND by $1"
    else
        found="$1: $(sed -n -e 's/^ERROR: //p' -e 's/^\[  ERROR   \] --- //p' -e '/Assertion/p' \
            "$folder/$name/out" | head -n 1)"
    fi
    printf '%-16s %s\n%-16s   %s\n' "$name" "$rule" '' "$found"
}

# The options are those of `sim faults`. With --permits, --holds, --leased, --state or --throttle
# first, they are those of `sim permits`, `sim holds`, `sim leased`, `sim state` or `sim throttle`,
# and with --quotas or --shards those of `sim quotas` or `sim shards`. With --fair they are those of
# `sim fair`. With --unit NAME the test tests/unit/NAME.c must find the mutant, because no simulated
# system knows its rule.
mutant() { # name, the rule and how it is broken, old text, new text, ..., options
    name=$1 rule=$2 mode=faults
    shift 2
    if [ "$wanted" ] && [ "$name" != "$wanted" ]; then return; fi
    if [ ! "$wanted" ]; then
        check_texts "$@"
        return
    fi
    mkdir -p "$folder/$name/server/grpc" "$folder/$name/tests/sim"
    for header in $headers server/grpc/quota.h; do cp "$header" "$folder/$name/$header"; done
    while [ $# -ge 2 ] && [ "${1#--}" = "$1" ]; do
        change_headers "$folder/$name" "$1" "$2" || say_that_text_is_wrong "$1"
        shift 2
    done
    if [ "$missed" ]; then return; fi
    if [ "${1:-}" = --permits ]; then
        mode=permits
        shift
    fi
    if [ "${1:-}" = --holds ]; then
        mode=holds
        shift
    fi
    if [ "${1:-}" = --leased ]; then
        mode=leased
        shift
    fi
    if [ "${1:-}" = --state ]; then
        mode=state
        shift
    fi
    if [ "${1:-}" = --quotas ]; then
        mode=quotas
        shift
    fi
    if [ "${1:-}" = --shards ]; then
        mode=shards
        shift
    fi
    if [ "${1:-}" = --throttle ]; then
        mode=throttle
        shift
        set -- --seconds 4 --output "$folder/$name" "$@"
    fi
    if [ "${1:-}" = --unit ]; then
        try_unit "$2"
        return
    fi
    # Most mutants are found in a few runs, so it would take longer to optimize the header.
    level=-O0
    if [ "${1:-}" = --fair ]; then
        mode=fair
        level=-O1 # one long run
        shift
        set -- --quick "$@"
    fi
    $compile $level "-I$folder/$name" -c tests/sim/sim.c -o "$folder/$name/sim.o"
    # shellcheck disable=SC2086 # the objects
    $compile "$folder/$name/sim.o" $folder/*.o -o "$folder/$name/sim" -lm
    status=0
    "$folder/$name/sim" $mode --seeds "$seeds" --no-shrink "$@" >"$folder/$name/out" \
        2>"$folder/$name/errors" || status=$?
    missed=0
    if [ $status = 0 ]; then
        missed=1
        found="NOT FOUND in $seeds runs"
    else
        found=$(why_found $status)
    fi
    printf '%-16s %s\n%-16s   %s\n' "$name" "$rule" '' "$found"
}

mutant one-id 'R1: all leases have the same id' \
    'return id ? id : 1;' \
    'return id ? 1 : 1;'
mutant any-id 'R4: a claim confirms even if it names another lease' \
    'if (context->names_last_lease && !context->learns) { doorman__leases_confirm(' \
    'if (entry->lease_id && !context->learns) { doorman__leases_confirm('
mutant any-answer 'R2: a client accepts the response to any request' \
    'doorman_time now) { doorman__upstream_now(upstream, now);
    if (upstream->state != DOORMAN__REQUESTED || sequence != upstream->sequence)
        return DOORMAN_STALE;' \
    'doorman_time now) { doorman__upstream_now(upstream, now);
    if (upstream->state != DOORMAN__REQUESTED ||
        (sequence != upstream->sequence && !doorman__response_valid(upstream, response)))
        return DOORMAN_STALE;' \
    --favour delay
mutant in-flight 'R3: units in use are not claimed' \
    '.outstanding = doorman__resource_in_use(resource),' \
    '.outstanding = 0,' --faults hold,resign,loss,spike --favour hold,resign
mutant no-keep 'R5: the amount committed to a node does not bound that of its holders' \
    'if (!bound) return in_force;' \
    '(void)bound;
    if (1) return in_force;'
mutant learner-confirms 'R7: a claim of a node that learns counts as a confirmation' \
    'if (context->names_last_lease && !context->learns) { doorman__leases_confirm(' \
    'if (context->names_last_lease) { doorman__leases_confirm('
mutant learner-stops 'R8: a node that learns stops as soon as its parent has learned' \
    'out->learn_for = doorman__later(context->end - context->now, 0);' \
    'out->learn_for = 0;'
mutant end-back 'R9: the end of a lease entry moves back when leases become shorter' \
    'if (end <= entry->end) return;' \
    'if (end == entry->end) return;' --faults spike,reload,gap,stall,loss --favour reload,stall
mutant outlive 'S6: a lease is longer than the lease of its granter' \
    'length = doorman__earlier(leases->algorithm->lease_length, leases->end_by - now);' \
    'length = leases->algorithm->lease_length;'
mutant two-rounds 'A1: fair shares are found in two rounds' \
    'terms[0] = (doorman_terms){DOORMAN_ANY_PRIORITY, doorman__index_level(index, capacity), 0};' \
    'double level = capacity / (double)index->subclients;
    doorman__cut cut = doorman__index_cut(index, level);
    level += (capacity - cut.satisfied - level * cut.cut_subclients) / cut.cut_subclients;
    terms[0] = (doorman_terms){DOORMAN_ANY_PRIORITY, level, 0};'
mutant straddle 'T2: a demand group may straddle the level' \
    'doorman__upward_levels(upward, bounds, most);' \
    '0 * doorman__upward_levels(upward, bounds, 0);' --faults spike,resign --favour spike
mutant process-id 'T5: each process of a node has an id of its own' \
    'doorman__upstream_init(upstream, server->node, options->parents' \
    'doorman__upstream_init(upstream, server->master, options->parents' \
    'if (strcmp(sender, request->holder_id) != 0) {' \
    'if (0) {'
mutant overclaim 'R3: units in use beyond the lease are claimed as a lease' \
    'item.has.capacity = doorman__min(claim, held->capacity);' \
    'item.has.capacity = claim;' \
    --faults hold,loss,resign,gap,spike,stall,cut --favour hold,resign,cut
mutant other-node 'R9: a lease keeps the later end of a lease from another node' \
    'doorman__held_lease_live(held, now) && strcmp(held->node, lease->node) == 0;' \
    'doorman__held_lease_live(held, now);' \
    --faults roam,hold,partition,resign,spike --favour roam,hold,partition,resign
mutant learn-shorter 'R6: learning ends after half a lease' \
    'doorman__after(gone_at, doorman__server_bound(server, algorithm->lease_length));' \
    'doorman__after(gone_at, doorman__server_bound(server, algorithm->lease_length / 2));'
mutant learn-grow 'R6: holders grow while a server learns' \
    'doorman__leases_learn(leases, context->entry, target, context->claim_here, context->outstanding);' \
    'doorman__leases_grant(leases, context->entry, target, context->claim_here);'
mutant learn-zero 'S4: a server that learns grants 0 instead of answering TRY_LATER' \
    'if (!context->granted_here) { doorman__item_move(' \
    'if (!context->granted_here && context->learns) { doorman__item_move('
mutant learn-unbound 'R6: a learning server grants claims beyond the capacity' \
    'known = doorman__leases_round_down(leases, doorman__min(claim, free));' \
    'known = doorman__leases_round_down(leases, claim);'
mutant learn-spare 'R6: the overstated part of a claim is granted to others' \
    'if (entry->has > committed) { doorman__total_add(&leases->spare, entry->has);' \
    'if (entry->committed > committed) { doorman__total_add(&leases->spare, entry->committed);' \
    --levels 1 --clients 8 --resources 1 \
    --faults resign,delay,double,spike,stall --favour resign,delay,double,spike
mutant learn-alien 'R6: claims that name another node are believed' \
    'has->id && strcmp(has->node, server->node) == 0;' \
    'has->id != 0;' --favour roam,loss
mutant any-release 'R10: a release counts even if it names another lease' \
    'if (entry && entry->lease_id == item_request->has.id) {' \
    'if (entry) {' --faults close,delay,double --favour close,delay,double
mutant no-drift 'S8: a lease entry ends without the margin for clock drift' \
    'length + doorman__scale(length, server->options.drift);' \
    'length + doorman__scale(length, 0 * server->options.drift);' \
    --faults clock,stall,spike --favour clock,stall
mutant no-round 'R5: the leases of a round have no bound, so they may follow their targets' \
    'return doorman__min(most, doorman__left_by_others(leases->in_round, own, leases->capacity));' \
    '(void)own;
    return most;' --favour reload,spike,cut,overload
mutant growing-lease 'R5: a lease grows to what is in use while the leases do not fit' \
    'most = doorman__min(most, doorman__max(fits, entry->has));' \
    '(void)fits;'
mutant age-early 'R4: leases of the older step are forgotten before they end' \
    'if (now >= leases->older_end) {' \
    'if (1) {' --faults careless,spike,loss,delay,hold --favour careless,spike,loss,delay
mutant whole-parts 'A5: a claim of a part of a unit confirms that the whole unit is free' \
    'doorman__min(entry->committed, doorman__leases_round_up(leases, claim));' \
    'doorman__min(entry->committed, doorman__leases_round_down(leases, claim));' \
    --favour whole,hold
mutant whole-idle 'A5: units that do not divide evenly are granted to no holder' \
    'if (turns) target = doorman__leases_whole_target(leases, turns, target, &due, context->now);' \
    'if (turns) (void)doorman__leases_whole_target(leases, turns, target, &due, context->now);' \
    --favour whole
mutant no-floor 'G5: after a cut, the free capacity is negative' \
    'double most = doorman__max(doorman__leases_free(leases, entry), leased);' \
    'double most = leases->capacity - doorman__total_value(leases->committed) + entry->committed;
    (void)leased;' --favour reload
mutant no-expiry 'S2: leases do not expire at the server' \
    'if (resource->server->now < entry->end) break;' \
    'if (resource->server->now >= 0) break;'
mutant over-older 'S12: an older capacity does not count, although its leases are in force' \
    'if (covered || server->now >= before.until) return;' \
    'if (!covered || server->now >= before.until) return;'
mutant over-late 'S12: the older lease of a node does not count until late entries have ended' \
    'if (entry->has > 0 && entry->end > end) {' 'if (0) {'
mutant over-kept 'S12: an older capacity ends before the repeated lease of a learning child' \
    'older->until = doorman__later(older->until, until);' \
    '(void)older, (void)until;'
mutant rate-fast 'L1: a rate allows 10 % more' \
    'n * quota->unit_time, quota->most);' \
    'n * quota->unit_time * 0.9, quota->most);'
mutant ttl-whole 'V2: a mastership lasts for the whole TTL' \
    'doorman__after(election->sent_at, ttl / 100 * 95)' \
    'doorman__after(election->sent_at, ttl)' --favour exile,clock
mutant ttl-answer 'V2: a mastership counts from the answer to a renewal' \
    'doorman__after(election->sent_at, ttl / 100 * 95)' \
    'doorman__after(election->now, ttl / 100 * 95)' --favour exile,delay
mutant ttl-kept 'V2: a master stays master while the store does not answer' \
    'if (election->now >= election->until) { doorman__election_move(' \
    'if (election->state == DOORMAN_MASTER) election->until = DOORMAN_NEVER - 1;
    if (election->now >= election->until) { doorman__election_move(' --favour exile
mutant key-address 'V2: a key of an earlier process at the same address counts as our own' \
    'election->lease && answer->lease == election->lease' \
    'answer->address && strcmp(answer->address, election->address) == 0 &&
        (election->lease = answer->lease) != 0' --favour resign,delay
mutant key-redirect 'V2: a process that is not master redirects to itself' \
    'if (master && strcmp(master, election->address) == 0) master = NULL;' \
    'if (0) master = NULL;'
mutant key-stale 'V2: the answer to an earlier call of the election counts' \
    'sequence != election->sequence) return DOORMAN_STALE;' \
    'sequence > election->sequence) return DOORMAN_STALE;' --favour double,delay
mutant gone-between 'R8: a new master does not learn what a master before it granted' \
    'if (term != election->vacant_term) {' 'if (!election->vacant_term) {' \
    'if (term != election->vacant_term + 1) election->vacant_term = 0;' \
    '(void)term;' --favour resign
mutant gone-own 'R8: a master that becomes master again does not learn what it granted before' \
    'if (is_master) election->vacant_term = 0;' '' --favour exile,loss
mutant permit-part 'P1: the last limit alone decides on a permit' \
    'fits = fits && (!charge->reason || charge->shadow);' \
    'fits = !charge->reason || charge->shadow;' --permits
mutant permit-sum 'P1: what several items want of one counter is not added up' \
    'doorman__charge *charge = item ? doorman__permits_same_charge(permits, given) : NULL;' \
    'doorman__charge *charge = NULL;' --permits
mutant permit-debt 'P2: a bucket lends although its debt takes longer than the caller can wait' \
    'if (*wait > max_wait || *wait > figures->max_wait) return 0;' \
    'if (*wait > figures->max_wait) return 0;' --permits
mutant permit-wait 'P3: the wait of a grant is that of the last bucket' \
    'if (waits) result->wait = doorman__later(result->wait, charge->wait);' \
    'if (waits) result->wait = charge->wait;' --permits
mutant permit-named 'P4: the refusal that ends first is named' \
    'best_rank == 1 && given.delay > best->delay' \
    'best_rank == 1 && given.delay < best->delay' --permits
mutant permit-valid 'P5: a caller may refuse by itself while refusals count for a ban' \
    'if (counts && !charge->shadow) return 0;' \
    '(void)counts;' --permits
mutant permit-slices 'P12: a sliding window counts 15 slices' \
    'if (slice + DOORMAN__SLICES <= now) break; sum +=' \
    'if (slice + DOORMAN__SLICES - 1 <= now) break; sum +=' --permits
mutant permit-cooldown 'P12: a tier that cools down is always passed over' \
    'if (!tier->skippable) break;' \
    '' --permits
mutant permit-report 'P13: a report fills a window to three times its limit' \
    'uint64_t most = 2 * doorman__grains_ceil(figures->limit);' \
    'uint64_t most = 3 * doorman__grains_ceil(figures->limit);' --permits
mutant permit-forget 'P14: a counter is removed while its refusals count for a ban' \
    '!doorman__counter_counts(counter, limit, permits->at.now); if (!fresh)' \
    'limit; if (!fresh)' --permits
mutant permit-keep 'P14: a counter with an override is never removed' \
    'if (!fresh) return;' \
    'if (!fresh || counter->override_) return;' --permits
mutant permit-reload 'P15: a resource that gets another template loses its counters' \
    'bool stays = place->counter_count && limit->kind != DOORMAN_CONCURRENCY;' \
    'bool stays = false;' --permits
mutant permit-restart 'P16: the window in which a mastership begins is not used up' \
    'bool used_up = limit->empty_at_start && span.begin <= at->start_epoch;' \
    'bool used_up = false && limit && at;' --permits
mutant permit-max-keys 'P19: a full limit evicts a counter, although it has to refuse' \
    'if (limit->refuse_new) return false;' \
    'if (0) return false;' --permits
mutant permit-max-bans 'P20: a limit has more bans than max_keys' \
    'bool own_full = slot->limit && slot->bans.count >= slot->limit->max_keys;' \
    'bool own_full = slot->limit && slot->bans.count > slot->limit->max_keys;' --permits
mutant permit-ban-order 'P20: not the ban that ends first makes room' \
    'doorman__timer *first = doorman__timers_first(&slot->bans);' \
    'doorman__timer *first = slot->bans.count
        ? slot->bans.heap[slot->bans.count - 1].timer : NULL;' --permits
mutant permit-max-cost 'P2: a permit with a minimum is granted more than max_cost' \
    'const uint64_t most = saved < max_cost ? saved : max_cost;' \
    'const uint64_t most = saved;' --permits
mutant permit-evict 'P19: the counter that is fresh soonest is evicted, however much it has used' \
    'if (next.use < best.use || next.rest < best.rest) best = next;' \
    'if (next.rest < best.rest) best = next;' --permits
mutant permit-detail 'P6: the details say that a limit in shadow does not refuse' \
    'out->refused = charge->reason != DOORMAN_NO_REASON;' \
    'out->refused = charge->reason != DOORMAN_NO_REASON && !charge->shadow;' --permits
mutant permit-moved 'P6: the details do not say that a tier was entered' \
    'out->moved_up = charge->tier_entered > 0;' \
    'out->moved_up = false;' --permits
mutant permit-tier 'P18: the event of a tier has the number of the next one' \
    '(double)charge->tier_entered); }' \
    '(double)charge->tier_entered + 1); }' --permits
mutant permit-granted 'P18: the event of a grant has one unit too many' \
    '.amount = grant->granted};' \
    '.amount = grant->granted + 1};' --permits
mutant permit-warn 'warn_at: a warning comes when the limit has used exactly this fraction' \
    'return most - left > warn_at * most;' \
    'return most - left >= warn_at * most;' --permits
mutant permit-epoch 'P26: the time of day goes back' \
    'at->epoch = given > least ? given : least;' \
    'at->epoch = given; (void)least;' --permits
mutant permit-ban 'of two bans that begin at the same time, the one of the last limit is in force' \
    'doorman_time duration = doorman__later(ban->duration, end - now);' \
    'doorman_time duration = ban->duration; (void)end;' --permits
mutant client-lone 'P21: a message has one permit' \
    'if (!doorman__batch_fits(batch, call, items, bytes)) break;' \
    'if (batch->count) break;' --permits
mutant client-order 'P21: a permit that is sent again waits behind newer ones' \
    'bool returns = last == DOORMAN__CALL_SENT && state == DOORMAN__CALL_QUEUED;' \
    'bool returns = false;' --permits
mutant client-valid 'P22: a refusal counts from the response' \
    'doorman_time until = doorman__after(sent_at, permit->valid_for);' \
    'doorman_time until = doorman__after(doorman__later(sent_at, now), permit->valid_for);' \
    --permits
mutant client-less 'P22: a refusal also refuses permits with a smaller minimum' \
    'doorman__request_minimum(request, i) >= refusal->min) {' \
    '(doorman__request_minimum(request, i) >= refusal->min || 1)) {' --permits
mutant client-longer 'P22: a refusal also refuses permits that can wait longer' \
    'request->max_wait <= refusal->max_wait &&' '' --permits
mutant client-cut 'P22: a refusal is remembered with a longer max_wait than the server knew' \
    'refusal->max_wait = call->sent_max_wait;' \
    'refusal->max_wait = call->request.max_wait;' --permits
mutant client-unmatched 'P23: UNMATCHED is a refusal' \
    'if (!permit->granted && permit->reason == DOORMAN_REASON_UNMATCHED) {' \
    'if (!permit->granted && permit->reason == DOORMAN_REASON_COUNT) {' --permits
mutant client-breaker 'P23: the breaker never opens' \
    'if (upstream->failures >= DOORMAN__BREAKER_FAILURES) { doorman__breaker_open(port, now);' \
    'if (0) { doorman__breaker_open(port, now);' --permits
mutant client-pause 'P23: the breaker stays open for 1 s' \
    'doorman_time pause = doorman__earlier(DOORMAN_SECOND << doublings, most);' \
    'doorman_time pause = DOORMAN_SECOND; (void)doublings, (void)most;' --permits
mutant client-again 'P23: a permit is sent again for ever' \
    'bool gives_up = ++call->failures > addresses;' \
    'bool gives_up = false;' --permits
mutant client-late 'P23: a permit under way does not time out' \
    'doorman__list *to = doorman__call_list(call);' \
    'doorman__list *to = doorman__call_list(call);
    if (state == DOORMAN__CALL_SENT) doorman__timer_clear(&call->client->timers, &call->timer);' \
    --permits
mutant client-full 'P23: the fallback grants the cost, not the minimum' \
    'if (granted) doorman__call_grant(call, false);' \
    'if (granted) doorman__call_grant(call, true);' --permits
mutant client-wait 'P3: a caller waits for the whole wait, beyond its timeout' \
    'doorman_time end = doorman__earlier(ready, call->deadline);' \
    'doorman_time end = ready;' --permits
mutant client-twice 'R2: the response to an earlier message counts' \
    '(doorman__batch, upstream, upstream); now = doorman__upstream_now(&batch->client->home.batch.upstream, now); if (upstream->state != DOORMAN__REQUESTED || sequence != upstream->sequence) return DOORMAN_STALE;' \
    '(doorman__batch, upstream, upstream); now = doorman__upstream_now(&batch->client->home.batch.upstream, now); if (upstream->state != DOORMAN__REQUESTED || sequence > upstream->sequence) return DOORMAN_STALE;' \
    --permits
mutant client-silent 'P25: with the kill switch, no copy is sent' \
    'if (!copy || !doorman__permit_client_reserve(client, hold != NULL)) {' \
    'if (1) {' --permits
mutant client-killed 'P25: the kill switch does not end permits that wait' \
    'if (on) doorman__permit_client_end_all(client, DOORMAN_OK);' \
    '' --permits

mutant hold-drift 'P8: the end of a hold does not reckon with the drift of clocks' \
    'doorman_time longer = life + doorman__scale(life, permits->options.drift) + 1;' \
    'doorman_time longer = life;' --holds
mutant hold-repeat 'P9: a repeated acquire does not prolong the hold of the server' \
    'out->expires_in = doorman__hold_extend(permits, hold); }' \
    'out->expires_in = doorman__hold_time_to_live(hold); }' --holds
mutant hold-priority 'P7: lower priorities come first' \
    'doorman_time before = (doorman_time)(DOORMAN_PRIORITY_MAX - priority) << 58;' \
    'doorman_time before = (doorman_time)priority << 58;' --holds
mutant hold-receipt 'P8: the end of a hold counts from the receipt of the answer' \
    'hold->end = doorman__later(hold->end, doorman__after(begin, life));' \
    'hold->end = doorman__later(hold->end, doorman__after(doorman__later(begin, now), life));' \
    --holds
mutant hold-waited 'P8: the wait counts without the drift of clocks' \
    '(doorman_time)((double)permit->waited / (1 + drift))' \
    '((void)drift, permit->waited)' --holds --faults clock,delay,loss --favour clock
mutant hold-difference 'P8: a release says what is given back, not what is kept' \
    'doorman__hold_cut(permits, hold, i, doorman__hold_amount(request, i), NULL);' \
    'const doorman__hold_item *part = &doorman__hold_items(hold)[i];
        double less = part->cost - doorman__hold_amount(request, i);
        doorman__hold_cut(permits, hold, i, doorman__max(part->amount - less, 0), NULL);' --holds
mutant hold-kept 'P8: units are used after their release was sent' \
    'bool keeps = hold->state == DOORMAN__HOLD_IN_USE;' \
    'bool keeps = false;' --holds
mutant hold-moved 'P8: units are used after their transfer was sent' \
    'hold->amounts[i] -= moved[i];' \
    '' --holds
mutant hold-foreign 'P8: a client may release a hold of another one' \
    'if (strcmp(doorman__owner_name(hold->owner), client_id) != 0) return NULL;' \
    '(void)client_id;' --holds
mutant hold-alive 'P8: the end of a hold moves back' \
    'if (!hold->end.position || end > hold->end.at) {
        doorman__timer_set(&permits->holds.ends, &hold->end, end); }' \
    'doorman__timer_set(&permits->holds.ends, &hold->end, end);' --holds
mutant hold-taken-over 'P9: the wait of a repeat counts from the first request' \
    'wait->asked_at = permits->at.now; wait->max_wait = request->max_wait; wait->detail' \
    'wait->max_wait = request->max_wait; wait->detail' --holds
mutant hold-uncounted 'P11: the units of a transfer are not counted' \
    'if (less && to) {' \
    'if (less && to && to->state != DOORMAN__NEW) {' --holds
mutant hold-seized 'P11: a transfer can be seized twice' \
    'doorman__hold_describe(permits, hold, life, out);
    doorman__transfer_spend(permits, transfer);' \
    'doorman__hold_describe(permits, hold, life, out);
    for (size_t i = 0; i < hold->item_count; i++) {
        doorman__hold_items(transfer)[i].amount = doorman__hold_items(hold)[i].amount;
    }' --holds
mutant hold-spent 'P11: a transfer that was seized is answered as one that can be seized' \
    'bool ended = transfer->state == DOORMAN__SPENT || transfer->end.at <= permits->at.now;' \
    'bool ended = transfer->end.at <= permits->at.now;' --holds --favour delay,double
mutant hold-lowered 'P15: a limit that was lowered below what is held is granted once more' \
    'charge->offer = held >= most || learns || after ? 0 : most - held;' \
    'charge->offer = learns || after ? 0 : held >= most ? most : most - held;' --holds
mutant hold-reload 'P15: a changed configuration forgets the units that are held' \
    'state[0] += units;
    doorman__takes_add(&hold->next_takes, counter, units, i, life);' \
    'units = 1; state[0] += units;
            doorman__takes_add(&hold->next_takes, counter, units, i, life);' \
    --holds
mutant hold-learn 'P16: a new master grants at once' \
    'if (permits->at.now >= permits->holds.learns_until) return false;' \
    'if (permits) return false;' --holds
mutant hold-learn-cut 'P16: later configurations shorten the learning period' \
    'permits->holds.configured = false; if (changes)' \
    'permits->holds.longest = 0; permits->holds.configured = false;
    for (size_t j = 0; j < permits->own_count; j++) permits->own_slots[j]->longest = 0;
    if (0)' --holds
mutant hold-learn-own 'P16: a limit learns for a shorter time than its holds last' \
    'slot->learns_until = longest ? doorman__after(predecessor_gone_at, longest) : 0;' \
    'slot->learns_until = longest ? doorman__after(predecessor_gone_at, longest / 2) : 0;' --holds
mutant hold-learn-now 'P16: a configuration that is loaded ends the learning period' \
    'doorman__holds_note_life(permits, config); if' \
    'doorman__holds_note_life(permits, config);
    if (permits->holds.learns_until > permits->at.now) {
        permits->holds.learns_until = permits->at.now;
    }
    if' --holds
mutant hold-learn-more 'P16: a claim is believed beyond what is free' \
    'if (charge->spare < want->grains) want->grains = charge->spare;' \
    '(void)charge;' --holds
mutant hold-round 'P7: units that return do not wake the queue' \
    'state[0] -= take->grains;
    doorman__hold_queue_wake(permits, doorman__counter_queue(take->counter));' \
    'state[0] -= take->grains;' --holds
mutant hold-round-part 'P7: a release of a part does not wake the queue' \
    'state[0] -= less; doorman__hold_queue_wake(permits, doorman__counter_queue(take.counter));' \
    'state[0] -= less;' --holds
mutant hold-round-two 'P7: a queue that served one permit does not look at the next one' \
    'if (doorman__timers_first(&queue->turns) == turn) {' \
    'if (1) {' --holds
mutant hold-round-leave 'P7: a permit that leaves a queue does not wake those behind it' \
    'if (first) doorman__hold_queue_wake(permits, wait->queue);' \
    '(void)first;' --holds

mutant hold-overtake 'P7: a permit that fits is granted although others wait before it' \
    'bool after = queue && doorman__timers_due(&queue->turns) < turn;' \
    'bool after = queue && !permits;' --holds
mutant hold-moves-back 'P7: a permit that moves to another queue arrives there as the last one' \
    'if (wait->queue) doorman__hold_queue_leave(permits, wait); wait->queue = queue;' \
    'if (wait->queue) {
        doorman__hold_queue_leave(permits, wait);
        wait->rank = (wait->rank >> 58 << 58) + (doorman_time)++permits->holds.arrivals;
    }
    wait->queue = queue;' --holds
mutant hold-wait-limit 'P7: a permit waits for longer than its limit allows' \
    'doorman_time most = doorman__earlier(wait->max_wait, charge->figures->max_wait);' \
    'doorman_time most = wait->max_wait;' --holds
mutant hold-close 'P7: a permit still waits after its connection has closed' \
    'size_t count = 0, left = owner ? owner->wait_count : 0;' \
    'size_t count = 0, left = 0;' --holds
mutant hold-transfer-again 'P9: a repeated transfer moves units again' \
    'if (made && doorman__hold_is_transfer(made)) { return doorman__transfer_repeat' \
    'if (made && doorman__hold_is_transfer(made)) made = NULL;
    if (made && doorman__hold_is_transfer(made)) { return doorman__transfer_repeat' --holds

mutant hold-queue-bound 'P7: a queue has no bound' \
    'if (queue && queue->turns.count >= charge->figures->queue) return true;' \
    '(void)queue; (void)charge;' --holds
mutant hold-other-items 'P9: a repeat with other items renews the hold' \
    'bool same = !hold->seized && doorman__hold_same(permits, hold, request->item_count) &&' \
    'bool same = !hold->seized && hold->item_count == request->item_count &&' --holds
mutant hold-not-cancelled 'P9: a release by request_id cancels no permit that waits' \
    'bool waits = hold && hold->state == DOORMAN__WAITING;' \
    'bool waits = false;' --holds
mutant hold-not-named 'P9: a release by request_id frees no hold' \
    'hold = doorman__holds_of(permits, client_id, hold ? hold->id : request->id);' \
    'hold = doorman__holds_of(permits, client_id, request->id);' --holds
mutant hold-not-shared 'P10: a release is not shared' \
    'doorman__holds_share(permits, &doorman__hold_items(hold)[i]);' \
    '' --holds
mutant hold-shared-end 'P10: the end of a hold is shared' \
    'doorman__hold_return(permits, hold); if (hold->state == DOORMAN__TRANSFERRED) {' \
    'doorman__hold_return(permits, hold);
    for (size_t i = 0; i < hold->item_count; i++) {
        doorman__holds_share(permits, &doorman__hold_items(hold)[i]);
    }
    if (hold->state == DOORMAN__TRANSFERRED) {' \
    'static void doorman__hold_expire(doorman_permits *permits, doorman__hold *hold) {' \
    'static void doorman__holds_share(doorman_permits *permits, const doorman__hold_item *part);
static void doorman__hold_expire(doorman_permits *permits, doorman__hold *hold) {' --holds
mutant hold-transfer-owned 'P11: the owner of a transfer may release it' \
    'if (!hold || hold->state != DOORMAN__HELD) return NULL;' \
    'if (!hold || hold->state < DOORMAN__HELD || hold->state > DOORMAN__TRANSFERRED) return NULL;' \
    --holds
mutant hold-transfer-life 'P11: a transfer lasts longer than its limits allow' \
    'transfer->takes.time_to_live = hold->takes.time_to_live;' \
    'transfer->takes.time_to_live = 15 * DOORMAN_SECOND;' --holds
mutant hold-seize-again 'P9: a repeated seizure is gone' \
    'if (made) made = doorman__holds_of(permits, request->client_id, made->id);' \
    'made = NULL;' --holds

mutant overload-least 'H11: a cut ignores capacity_min' \
    'target = doorman__max(target, state->least);' \
    ''
mutant overload-past 'H11: the capacity grows past the configured one' \
    'state->capacity = doorman__min(state->capacity + step, state->configured);' \
    'state->capacity += step;'
mutant overload-expire 'H11: old reports count' \
    'if (!part->sum.interval || number - part->number >= DOORMAN__OVERLOAD_PARTS) continue;' \
    'if (!part->sum.interval || number < part->number) continue;'
mutant overload-twice 'H11: a root adds a report twice' \
    'doorman__overload_add(overload, report, server->now);' \
    'doorman__overload_add(overload, report, server->now);
    doorman__overload_add(overload, report, server->now);'
mutant overload-child 'H11: a node adds what its children report twice' \
    'if (resource->upward) doorman__tally_add(&resource->upward->tally, report, server->now);' \
    'if (resource->upward) doorman__tally_add(&resource->upward->tally, report, server->now);
    if (resource->upward) doorman__tally_add(&resource->upward->tally, report, server->now);'
mutant overload-again 'H11: a sum is passed on with each request' \
    'tally->has_counted = false; return report;' \
    'return report;'
mutant overload-drop 'H11: a node does not pass on what its children report' \
    'if (resource->upward) doorman__tally_add(&resource->upward->tally, report, server->now);' \
    ''
mutant leased-hold 'P17: a hold outlives its lease' \
    'if (most == life || !hold->end.position || hold->is_handed) return most;' \
    'if (most <= life || !hold->end.position) return life;' --leased
mutant leased-end 'P17: a leased amount is used beyond the lease' \
    'return doorman__held_lease_live(&lease->resource->held, permits->at.now);' \
    'return lease->resource->held.lease_id != 0;' \
    'lease->figures.limit = doorman__unlimited(quota.amount) ? DOORMAN_AMOUNT_MAX : quota.amount;' \
    'lease->figures.limit = lease->resource->held.capacity;' --leased
mutant leased-claim 'P17: the permits do not claim what is held' \
    'doorman__leased_set_held(lease, counter ? doorman__counter_state(counter)[0] : 0);' \
    'doorman__leased_set_held(lease, 0);' \
    'lease->place = place->node.tag; doorman__leased_set_held(lease, held);' \
    'lease->place = place->node.tag; doorman__leased_set_held(lease, 0 * held);' --leased
mutant leased-open 'P17: a refusal opens no lease' \
    'if (!lease) lease = doorman__leased_open(permits, limit, place);' \
    'if (!lease && units < 0) lease = doorman__leased_open(permits, limit, place);' --leased
mutant overload-few 'H11: a report of one request can lower the capacity' \
    'return sum->arrived >= DOORMAN__OVERLOAD_LEAST &&' \
    'return sum->arrived > 0 &&'
mutant overload-late 'H11: requests that are late do not count' \
    '(sum->refused > part * 0.05 * sum->arrived || sum->late > part * 0.5 * sum->finished);' \
    'sum->refused > part * 0.05 * sum->arrived;'
mutant overload-present 'H11: a cut depends on the present capacity' \
    'double leased = doorman__max((last.area - first.area) / seconds, 0);' \
    'double leased = seconds > 0 ? state->capacity : 0;'
mutant overload-raise 'H11: a report of overload can raise the capacity' \
    'if (target >= state->capacity) return false;' \
    'if (target >= state->configured) return false;'
mutant overload-leases 'H11: a cut is shown, but leases keep the old sum' \
    'doorman__leases_set_capacity(leases, capacity, DBL_MAX, DOORMAN_NEVER);
    doorman__resource_add_older(resource, before); }' \
    'if (resource->overload) capacity = doorman__max(capacity, leases->capacity);
    doorman__leases_set_capacity(leases, capacity, DBL_MAX, DOORMAN_NEVER);
    doorman__resource_add_older(resource, before); }' \
    '.capacity = leased ? leases->capacity : 0,' \
    '.capacity = held ? leases->capacity * leased : doorman__resource_capacity(resource),'
mutant overload-older 'S12: the capacity before a cut does not count' \
    'doorman__leases_set_capacity(leases, capacity, DBL_MAX, DOORMAN_NEVER);
    doorman__resource_add_older(resource, before); }' \
    'doorman__leases_set_capacity(leases, capacity, DBL_MAX, DOORMAN_NEVER);
    if (!resource->overload) doorman__resource_add_older(resource, before); }'
mutant overload-grow 'H11: the capacity grows while the resource is overloaded' \
    'if (doorman__overload_is_on(&sum, 1)) { state->calm = 0;' \
    'if (0) { state->calm = 0;'
mutant overload-wait 'H11: the first step comes at once' \
    'state->step_at = doorman__after(now, state->interval); state->calm = 0; return true;' \
    'state->step_at = now; state->calm = 0; return true;'
mutant overload-slow 'H11: the steps stay small' \
    'if (state->calm < 2 * DOORMAN__OVERLOAD_CALM) state->calm++;' \
    ''
mutant overload-near 'H11: large steps follow although requests are refused again' \
    'if (near && state->calm' 'if (0 && near && state->calm'
mutant overload-stay 'H11: a root does not wake for a step' \
    'if (resource->overload) due = doorman__earlier(due, resource->overload->step_at);' \
    ''
mutant overload-reload 'H11: a new configuration brings all capacity back' \
    'state->capacity = lowered ? doorman__min(state->capacity, configured) : configured;' \
    'state->capacity = configured; (void)lowered;'

mutant handover-used 'D8: leases are handed over, but not what is in use beyond them' \
    'doorman__leases_set_amounts(leases, entry, handed->has, handed->committed);' \
    'doorman__leases_set_amounts(leases, entry, handed->has, handed->has);' \
    --favour handover,resign
mutant handover-aged 'D8: what is in use beyond a lease is forgotten when the next step begins' \
    'entry->recent = doorman__float_up(handed->committed);' \
    'entry->recent = doorman__float_up(handed->has); entry->step = (leases->step + 3) & 3;' \
    --favour handover,resign
mutant handover-round 'D8: a round begins again without the leases that it had' \
    'if (leases->round_is_on) doorman__leases_set_in_round(leases, entry, handed->in_round);' \
    '' --favour handover,resign,cut
mutant handover-learned 'D8: a master that learns hands a resource over as learned' \
    'resource->leases.learned_at = learned_at;' \
    'resource->leases.learned_at = learned_at < DOORMAN_NEVER ? server->now : learned_at;' \
    --favour handover,resign
mutant handover-templates 'D8: a master that learns hands its templates over as learned' \
    'server->learned_at[index] = learned_at;' \
    'server->learned_at[index] = server->now + 0 * learned_at;' --favour handover,resign
mutant handover-new 'D8: a template that the last master did not have does not learn' \
    'server->drains_at = doorman__later(server->drains_at, drains_at); return DOORMAN_OK;' \
    'for (size_t i = 0; server->config && i < server->config->template_count; i++) {
        if (server->config->templates[i].has_algorithm) server->learned_at[i] = server->now;
    }
    return DOORMAN_OK;' --favour handover,resign,reload
mutant handover-permits 'D8: a resource does not learn what the permits of the node had leased' \
    'if (of_permits) doorman__handover_learn(resource);' '(void)of_permits;' \
    --leased --favour handover,resign
mutant handover-holds 'D8: holds are handed over, but not counted' \
    'if (doorman_permits_configure(permits, permits->config) != DOORMAN_OK) {' 'if (0) {' \
    --holds --favour handover,resign
mutant handover-holds-end 'D8: a hold that was handed over ends after half its rest' \
    'doorman__timer_set(&permits->holds.ends, &hold->end, handed->end);' \
    'doorman_time half = permits->at.now / 2 + handed->end / 2;
    doorman__timer_set(&permits->holds.ends, &hold->end, half);' \
    --holds --favour handover,resign
mutant handover-holds-learned 'D8: a master that learns hands its holds over as all that there are' \
    'holds->learns_until = in->learns_until;' 'holds->learns_until = 0;' \
    --holds --favour handover,resign
mutant handover-holds-request 'P9, D8: a repeated request gets a second hold from the next master' \
    'doorman__hold_create(permits, handed->client_id, handed->request_id, items,' \
    'doorman__hold_create(permits, handed->client_id, 0 * handed->request_id, items,' \
    --holds --favour handover,resign
mutant handover-holds-leased 'P17, D8: a hold that was handed over outlasts the lease of its node' \
    '|| !hold->end.position || hold->is_handed) return most;' \
    '|| !hold->end.position) return most;' \
    --leased --favour handover,resign
mutant handover-stays 'D8: a server that has handed over becomes master again at once' \
    'server->has_left = true;' '' --favour handover,resign
mutant handover-both 'D8: a server that has handed over still grants' \
    'doorman__server_resign(server); server->has_left = true;' '' --favour handover,resign
mutant handover-repeat 'S3, D8: a lease of the last master is repeated' \
    'entry->granted_at = entry->lease_end = in->server->now;' \
    'entry->granted_at = in->server->now; entry->lease_end = handed->end;' \
    --favour handover,resign

mutant handover-rest 'D8: a lease that was handed over lasts for half its rest' \
    'return doorman__after(in->now, length + doorman__scale(length, in->drift));' \
    'return doorman__after(in->now, length / 2);' --favour handover,resign
mutant handover-mark 'D9: a later master takes over what was left for the one before it' \
    'return handover->term + 1 == term;' 'return handover->term < term;' \
    --favour handover,resign,mark
mutant handover-once 'D9: an interrupted master looks for a handover again in the same term' \
    'return process->looked_term != term;' 'return process && term;' \
    --favour handover,resign,mark

mutant state-fence 'D9: a store takes batches of an old master' \
    'return call->term < store->term;' 'return call->term == 0 && store;' \
    --state --favour slow,resign
mutant state-copy 'D9: a store takes a late copy of a batch' \
    'return call->term == store->term && call->write_number < store->write_number;' \
    'return call->write_number == 0 && store;' --state --favour slow
mutant state-grant 'D4: a master grants before it has read' \
    'return permits->changes.rows == DOORMAN_ROWS_AWAITED || limit->refuse_unread;' \
    'return limit->refuse_unread;' --state
mutant state-unread 'D4: on_unread is ignored' \
    'return permits->changes.rows == DOORMAN_ROWS_AWAITED || limit->refuse_unread;' \
    'return permits->changes.rows == DOORMAN_ROWS_AWAITED;' --state --favour gone,slow,resign
mutant state-twice 'D4: a row that is read again counts twice' \
    'if ((counter->flags & DOORMAN__STORED) && !moves) return DOORMAN_OK;' \
    '' --state --favour reload
mutant state-late 'D4: what is read late replaces what was used meanwhile' \
    'return given < DOORMAN__ROW_GRAINS_MAX - own ? own + given : DOORMAN__ROW_GRAINS_MAX;' \
    'return given;' --state --favour gone,slow,resign
mutant state-mark 'D6: a mark is lost when a write fails' \
    'doorman__permits_mark(permits, target.slot, target.counter); return DOORMAN_OK;' \
    'return DOORMAN_OK;' --state --favour gone,slow
mutant state-removal 'D3: the deletion of a row is not yielded' \
    'if (!(counter->flags & DOORMAN__STORED)) return; size_t bytes' \
    'return; size_t bytes' --state
mutant state-remark 'D6: a deletion is lost when a write fails' \
    'bool added = doorman__permits_add_removal(permits, removal, bytes);' \
    'bool added = true;' --state --favour gone,slow
mutant state-override 'E1: an override row that was restored is in force before its beginning' \
    'row->starts_at = given->starts_at;' \
    'row->starts_at = restored && !content->plan ? 0 : given->starts_at;' \
    --state --favour resign,crash
mutant state-plan 'E2: a plan row that was restored has no end' \
    'row->ends_at = given->ends_at;' \
    'row->ends_at = restored && content->plan ? DOORMAN_NEVER : given->ends_at;' \
    --state --favour resign,crash
mutant reserve-repeat 'P27: a repeated settle is charged again' \
    'if (reservation->state != DOORMAN__SETTLED) {
        status = doorman__settle_now(permits, call, reservation, out);' \
    'if (true) {
        if (reservation->state == DOORMAN__SETTLED) {
            doorman__reservation_enter(permits, reservation, DOORMAN__ENDED, DOORMAN_NEVER);
        }
        status = doorman__settle_now(permits, call, reservation, out);' --state
mutant reserve-late 'P27: a late settle does not say that it is late' \
    'reservation->late = reservation->state == DOORMAN__ENDED;' \
    'reservation->late = false;' --state
mutant reserve-back 'P27: a late settle gives units back' \
    'if ((step.less > 0 || ends_share) && reservation->state == DOORMAN__OPEN) {' \
    'if (step.less > 0 || ends_share) {' --state
mutant reserve-free 'P27: a late settle charges nothing' \
    'out->more = enough < grains ? doorman__grains_units(grains - enough) : 0;' \
    'out->more = enough < grains && reservation->state != DOORMAN__ENDED
                    ? doorman__grains_units(grains - enough)
                    : 0;' --state
mutant reserve-whole 'P27: a late settle is charged in addition to the reservation' \
    'const uint64_t had = out->part ? out->part->grains : 0, grains' \
    'const bool open = reservation->state == DOORMAN__OPEN;
    const uint64_t had = out->part && open ? out->part->grains : 0, grains' --state
mutant reserve-all 'P28: the request_ids of all clients together are not bounded' \
    'if (full || own) return DOORMAN_REASON_REPEATS;' \
    'if ((full && own) || own) return DOORMAN_REASON_REPEATS;' --unit reservations_test
mutant reserve-own 'P28: the request_ids of a client are not bounded' \
    'if (full || own) return DOORMAN_REASON_REPEATS;' \
    'if (full || (full && own)) return DOORMAN_REASON_REPEATS;' --unit reservations_test
mutant figures-plan 'P31: a plan takes precedence over the figures that a caller brings' \
    'if (!found.figures && !brought && slot->overridden & DOORMAN__BY_PLAN) {' \
    'if (!found.figures && (!brought || brought) && slot->overridden & DOORMAN__BY_PLAN) {' \
    --unit figures_test
mutant figures-row 'P31: the figures that a caller brings take precedence over a row with an end' \
    'const doorman_figures *figures = found.figures ? &found.figures->all : otherwise;' \
    'const doorman_figures *figures =
        found.figures && !brought ? &found.figures->all : otherwise;' --unit figures_test
mutant figures-most 'P31: the figures that callers bring have no bound' \
    'const double times = limit->set_max * (1 + 1e-9);' \
    'const double times = 1e300 * limit->set_max;' --unit figures_test
mutant refund-full 'P27: what a bucket gains takes nothing from what may come back' \
    'if (back->pending <= left + 8 * DBL_EPSILON * size) return;' \
    'if (size >= 0 || left > 0) return;' --unit refunds_test
mutant refund-part 'P27: what a bucket gains makes only the sum of all shares smaller' \
    'back->scale *= left / back->pending;' \
    'if (!(left > 0)) back->scale = 0;' --unit refunds_test
mutant refund-share 'P27: the share of a settled reservation stays in the sum of all shares' \
    'back.pending -= share;' \
    'back.pending -= 0 * share;' --unit refunds_test
mutant refund-charge 'P27: shares are bounded only when units come back' \
    'doorman__counter_bound_back(counter, meter, at->now); const size_t entered =' \
    'const size_t entered =' --unit refunds_test
mutant refund-late 'P27: a share ends when the end of its reservation is noticed' \
    'return ended_at < permits->at.now ? ended_at : permits->at.now;' \
    '(void)ended_at; return permits->at.now;' --unit refunds_test
mutant refund-row 'P27: what may come back to a bucket is not in its row' \
    'end = doorman__figures_write(end, &meter, back.pending > 0 ? &back : NULL, at);' \
    'end = doorman__figures_write(end, &meter, NULL, at);' --unit refunds_test
mutant reserve-row 'P27: the row of a reservation is not yielded' \
    'if (!bytes) bytes = doorman__changes_yield_reservation(permits, &all->changed, out);' \
    '' --state --favour resign,crash
mutant state-ban 'D3: a ban that was made shorter comes back' \
    'bool known = !in_force && !(ban->flags & DOORMAN__CHANGED);' \
    'bool known = !in_force;' --unit state_test
mutant state-rest 'D5: a ban lasts for its whole rest after each restart' \
    'rest -= permits->at.epoch - row->written_at;' '' --state
mutant state-reach 'D5: a clock that was set back begins windows again' \
    'at->ahead += epoch - at->epoch; at->epoch = epoch;' '' --state --favour time,resign
mutant state-keeps 'D7: memory is kept though another master was between' \
    'static void doorman__permit_node_stop(doorman_server *server) {
    doorman__permits_clear(server->permits); }' \
    'static void doorman__permit_node_stop(doorman_server *server) { (void)server; }' \
    'assert(!permits->counter_count && !permits->place_table.count);' '' --state --favour resign
mutant state-forgets 'D7: memory is forgotten when a mastership is renewed' \
    'if (is_master && !server->is_master) {' \
    'if (is_master && server->is_master && DOORMAN__HAS_PERMITS) {
        doorman__permits_in_server.stop(server);
    }
    if (is_master && !server->is_master) {' --state
mutant interrupt-late 'D7: a mastership that ends is forgotten before it can be kept' \
    'options->on_mastership_end(options->context, server, server->now);' \
    'doorman__server_resign(server);
        options->on_mastership_end(options->context, server, server->now);' --unit handover_test
mutant interrupt-left 'D7: a mastership that was kept is never in force again' \
    'server->has_left = false; /* the mastership is over in any case */' '' --unit handover_test
mutant state-old 'D9: an old master takes over the term of the next one' \
    'const char *master = doorman__id_valid(answer->address) ? answer->address : NULL;' \
    'const char *master = doorman__id_valid(answer->address) ? answer->address : NULL;
        election->term = answer->term;' \
    'if (term != election->vacant_term + 1) election->vacant_term = 0; election->term = term;' \
    'if (term != election->vacant_term + 1) election->vacant_term = 0;' --state

mutant throttle-full 'H4: a full queue refuses every request' \
    'if (!doorman__throttle_can_have_room(throttle, level, cohort)) return false;' \
    'if (level <= DOORMAN_CRITICALITIES || cohort) return false;' --throttle
mutant throttle-oldest 'H4: while the newest goes first, it is refused if the queue is full' \
    'bool goes_first = own->count && doorman__newest_first(throttle, own);' \
    'bool goes_first = own->count && false;' --throttle
mutant throttle-cohort 'H4: a request displaces no other of its criticality' \
    'doorman__throttle_add_cohorts(throttle, level, goes_first ? cohort : cohort + 1, &count, &sum);' \
    'doorman__throttle_add_cohorts(throttle, level, DOORMAN__COHORTS, &count, &sum);
    (void)goes_first;' --throttle
mutant throttle-bound 'H2: a request is refused if its cost passes the bound' \
    'if (!doorman__throttle_make_room(throttle, request->criticality, cohort)) return false;' \
    'if (!doorman__throttle_make_room(throttle, request->criticality, cohort)) return false;
    if (throttle->counters.waiting && throttle->counters.waiting_cost +
            doorman__throttle_predict(throttle, request->class_id) > throttle->options.queue_cost)
        return false;' --throttle
mutant throttle-wait 'H5: a request waits until its deadline' \
    'slot->half_at = throttle->now + (request->deadline - throttle->now) / 2;' \
    'slot->half_at = request->deadline;' --throttle
mutant throttle-ever 'H5: max_wait is ignored' \
    'if (throttle->options.max_wait) return throttle->options.max_wait;' \
    'if (throttle->options.max_wait >= 0) return 10 * DOORMAN_SECOND;' --throttle
mutant throttle-low 'H6: the lowest criticality goes first' \
    'unsigned level = doorman__highest_bit(throttle->used_criticalities);
    unsigned cohort = doorman__lowest_bit(throttle->used_cohorts[level]);' \
    'unsigned level = doorman__lowest_bit(throttle->used_criticalities);
    unsigned cohort = doorman__lowest_bit(throttle->used_cohorts[level]);' --throttle
mutant throttle-fifo 'H6: the newest never goes first' \
    'return cohort->newest_first || throttle->now - since > limit / 2;' \
    'return cohort->newest_first && throttle->now - since > limit / 2;' --throttle
mutant throttle-lifo 'H6: the newest always goes first' \
    'return cohort->newest_first || throttle->now - since > limit / 2;' \
    'return cohort->newest_first || throttle->now - since <= limit;' --throttle
mutant throttle-user 'H6: the calls of a user are in different cohorts' \
    'return (unsigned)(doorman__hash(key, user) % DOORMAN__COHORTS);' \
    'return (unsigned)((doorman__hash(key, user) + throttle->number) % DOORMAN__COHORTS);' \
    --throttle
mutant throttle-budget 'H10: retries need no tokens' \
    'budget->tenths -= 10;' \
    '' --throttle
mutant fair-newcomers 'P29: newcomers have the whole limit, not the share of one key' \
    'const double share = doorman__fair_share(fair, weight); doorman__fair_view view' \
    'const double share = is_new ? fair->rate : doorman__fair_share(fair, weight);
    doorman__fair_view view' \
    'const double share = doorman__fair_share(fair, is_new ? 1 : doorman__fair_weight(key));' \
    'const double share =
        is_new ? fair->rate : doorman__fair_share(fair, doorman__fair_weight(key));' --fair
mutant fair-weights 'P29: keys share a limit without their weights' \
    'return doorman__min(fair->rate, doorman__fair_level(fair) * weight);' \
    'return doorman__min(fair->rate, doorman__fair_level(fair) + 0 * weight);' --fair
mutant fair-level 'P29: the level is the rate, whatever keys ask for' \
    'fair->level = all ? fair->rate : doorman__band_level(root, fair->rate);' \
    'fair->level = all || root ? fair->rate : 0;' --fair
mutant fair-tenth 'P29: keys above their shares leave nothing in the bucket of the limit' \
    'if (view.demand > share) view.left = DOORMAN__FAIR_TENTH * size * (1 + empty);' \
    'if (view.demand > share) view.left = 0 * size * (1 + empty);' --fair
mutant fair-lack 'P29: keys that lack more do not come first' \
    'if (view.demand > share) view.left = DOORMAN__FAIR_TENTH * size * (1 + empty);' \
    'if (view.demand > share) view.left = DOORMAN__FAIR_TENTH * size * (1 + 0 * empty);' \
    --unit fair_test
mutant fair-full 'P29: a full bucket of the limit does not serve any key' \
    'if (view->alone || pool.level >= pool.size) return true;' \
    'if (view->alone) return true;' \
    'if (pool.level >= pool.size && !(use->asked > use->minimum)) {' \
    'if (pool.level > pool.size && !(use->asked > use->minimum)) {' --fair
mutant fair-largest 'P29: the window of a key does not grow with its largest cost' \
    'return doorman__max((double)fair->window / 1e9, DOORMAN__FAIR_COSTS * largest / share);' \
    'return doorman__max((double)fair->window / 1e9, 0 * largest / share);' --fair
mutant fair-size 'P29: the bucket of a key does not hold its largest cost' \
    'return doorman__max(share * ((double)fair->window / 1e9), DOORMAN__FAIR_COSTS * largest);' \
    'return doorman__max(share * ((double)fair->window / 1e9), 0 * largest);' --fair
mutant fair-refused 'P29: what another limit refuses is a demand' \
    'if (!charge->fair || doorman__permits_refused_otherwise(permits, charge, count)) continue;' \
    'if (!charge->fair) continue;' --fair
mutant fair-index 'P29: the index keeps the demands that a key had before' \
    'if (before) doorman__index_remove(&fair->index, 0, before);' \
    '' --fair
mutant fair-saved 'P29: a grant takes nothing from the bucket of its key' \
    'flow->saved = doorman__max(0, flow->saved - granted);' \
    'flow->saved = doorman__max(0, flow->saved - 0 * granted);' --fair
mutant fair-gain 'P29: the bucket of a key gains the whole rate' \
    'const double saved = flow->saved + share * doorman__max(0, passed) / 1e9;' \
    'const double saved = flow->saved + fair->rate * doorman__max(0, passed) / 1e9;' --fair
mutant fair-granted 'P29: only what is granted is a demand' \
    'const float needed = (float)(asked + doorman__min(0, granted));' \
    'const float needed = (float)(granted + doorman__min(0, asked));' --fair
mutant quota-sum 'W5: only the last assignment of a stream is committed' \
    '.outstanding = quota_committed(bucket, now),' \
    '.outstanding = bucket->granted + 0 * quota_committed(bucket, now),' --quotas
mutant quota-forgets 'W5: a larger assignment is forgotten when a smaller one is granted' \
    'while (ended < bucket->commitment_count && now >= bucket->commitments[ended].until) ended++;' \
    'while (ended < bucket->commitment_count && (now >= bucket->commitments[ended].until ||
            bucket->commitments[ended].amount > bucket->granted)) ended++;' --quotas
mutant quota-margin 'W5: an assignment lasts as long as its lease' \
    'doorman_time rest = (bucket->lease_end - now - QUOTA_MARGIN) / DOORMAN_SECOND;' \
    'doorman_time rest = (bucket->lease_end - now) / DOORMAN_SECOND;' --quotas
mutant quota-learns 'W5: a new master assigns at once' \
    'quota_after(quotas->begun_at, quota_after(length, drift));' \
    'quota_after(quotas->begun_at, 0 * quota_after(length, drift));' --quotas --favour kill
mutant quota-round 'W5: tokens are rounded up' \
    'bucket->granted * (double)interval * (1 + 1e-12);' \
    'bucket->granted * (double)interval + 0.999;' --quotas
mutant quota-bound 'L4: the estimate does not know the safe capacity' \
    'bucket->safe_capacity = item->safe_capacity;' \
    'bucket->safe_capacity = 0;' --quotas
mutant quota-name 'W5: two live streams are one holder, because their clients have one name' \
    'if (stream && stream->is_live) {' \
    'if (stream && stream->is_live && stream->number == 0) {' --quotas --favour loss
mutant shards-sure 'N3: a map that a watch has brought is taken as sure' \
    'if (!is_sure) { if (map->epoch > mover->epoch) mover->is_sure = false;' \
    'if (!map) {' --shards
mutant shards-given 'N3: a permit is decided after its shard was given' \
    'return permits->shards.all[shard].is_owned ? DOORMAN_NO_REASON : DOORMAN_REASON_MOVED;' \
    'return DOORMAN_NO_REASON;' --shards
mutant shards-settled-by 'N3: a settlement is decided by another node than the owner' \
    'return doorman_permits_owns(permits, shard) ? DOORMAN_NO_REASON : DOORMAN_REASON_MOVED;' \
    'return DOORMAN_NO_REASON;' --shards
mutant shards-reported 'N3: a report is charged by another node than the owner' \
    'if (!permits->shards.of.count) return false;
    return !doorman_permits_owns(permits, doorman_permits_shard_of(permits, resource_id, key));' \
    'return (void)key, (void)resource_id, permits == NULL;' --shards
mutant shards-resume 'N3: a node resumes while its transaction may still have an effect' \
    'goes || moved->is_open ? DOORMAN_SHARD_COMMIT : DOORMAN_SHARD_RESUME,' \
    'goes && !moved->is_open ? DOORMAN_SHARD_COMMIT : DOORMAN_SHARD_RESUME,' --shards
mutant shards-back 'N3: a node resumes after its shard left and came back unseen' \
    'const bool is_back = owns && gave && moved->map.from;' \
    'const bool is_back = owns && gave && !owns;' --unit shards_test
mutant shards-id 'N4: the id of a hold does not tell its shard' \
    'return count ? id - id % count + shard : id;' \
    'return count > shard ? id : id;' --shards
mutant shards-by-id 'N4: a node answers requests on holds of other nodes' \
    'return !doorman_permits_owns(permits, doorman__permits_shard_of_id(permits, id));' \
    'return !id;' --shards
mutant shards-release 'N4: a release by request_id ignores the shard of its items' \
    'if (!request->item_count) return false;' \
    'if (request) return false;' --shards
mutant shards-present 'N4: a permit that has waited gives its shard to the id of another' \
    'permits->shards.present = shard; /* permits that wait' \
    '(void)shard; /* permits that wait' --shards
mutant shards-items 'N5: a permit has items of two shards' \
    '*wrong = i; return DOORMAN_REASON_SHARDS;' \
    '*wrong = 0;' --shards
mutant shards-commit 'N7: the map changes before all rows of a shard are written' \
    'const bool done = result == DOORMAN_SHARD_DONE; mover->acts = false;' \
    'const bool done = result == DOORMAN_SHARD_DONE || step == DOORMAN_SHARD_GIVE;
    mover->acts = false;' --shards
mutant shards-take 'N7: the next owner of a shard decides without its rows' \
    '.move = takes ? moved->map.from : moved->move,' \
    '.move = takes ? 0 : moved->move,' --shards
mutant shards-restore 'N7: the next owner restores only the first row of each part' \
    'at += DOORMAN_SHARD_RECORD_HEADER + count;' \
    'at += bytes;' --shards
mutant shards-drop 'N7: the last owner does not forget a shard' \
    'while (doorman__bucket_drop_one(permits, shard, cursor)) continue;' \
    '(void)permits; (void)shard; (void)cursor;' --shards
mutant shards-leave 'N7: a shard that leaves is not dropped' \
    '[DOORMAN_SHARD_LEAVING] = DOORMAN_SHARD_DROP};' \
    '[DOORMAN_SHARD_LEAVING] = none};' --shards
mutant shards-stored 'N7: a move is settled before the store has its rows' \
    'if (!mover->acts && stored && doorman__mover_must_settle(mover)) {' \
    'if (!mover->acts && doorman__mover_must_settle(mover)) {' --shards --favour kill,slow
mutant shards-unsettled 'N7: a shard is given before its last move is settled' \
    'goes && !moved->map.from ? DOORMAN_SHARD_GIVE : none,' \
    'goes ? DOORMAN_SHARD_GIVE : none,' --shards
mutant shards-fleeting 'N7: counters that are not durable do not move' \
    'if (!limit || doorman__limit_is_leased_rate(limit)) continue;
            bytes = doorman__counter_row_write(permits, slot, limit, counter, row);
        }
        const bool returns' \
    'if (!limit || !limit->durable) continue;
            bytes = doorman__counter_row_write(permits, slot, limit, counter, row);
        }
        const bool returns' --shards
mutant shards-reserved 'N7: reservations do not move' \
    'if (!doorman__reservation_in_shard(permits, reservation, shard)) continue;
            const doorman__reservation_form' \
    'if (reservation) continue;
            const doorman__reservation_form' --shards
mutant shards-holds 'N7: holds do not move' \
    'const doorman__hold *hold = doorman__shard_hold(permits, cursor, shard, node);
        if (!hold) continue;' \
    'const doorman__hold *hold = doorman__shard_hold(permits, cursor, shard, node);
        if (!hold || cursor->phase == DOORMAN__SHARD_HOLDS) continue;' --shards
mutant shards-transfers 'N7: transfers do not move' \
    'const doorman__hold *hold = doorman__shard_hold(permits, cursor, shard, node);
        if (!hold) continue;' \
    'const doorman__hold *hold = doorman__shard_hold(permits, cursor, shard, node);
        if (!hold || cursor->phase == DOORMAN__SHARD_TRANSFERS) continue;' --shards
mutant shards-come 'N7: a counter that comes after the index was begun is not noted' \
    'if (place) place->counter_count++;
    doorman__counter_note_shard(permits, slot, counter);' \
    'if (place) place->counter_count++;' --shards
mutant shards-hold 'N7: a hold that comes after the index was begun is not noted' \
    '(void)added;
    if (!permits->shards.index.sets) return;' \
    '(void)added;
    if (permits) return;' --shards
mutant shards-reserve 'N7: a reservation that comes after the index was begun is not noted' \
    'if (permits->shards.index.sets) {
        doorman__shards_note_new(permits, hash, doorman__reservation_shard' \
    'if (!made) {
        doorman__shards_note_new(permits, hash, doorman__reservation_shard' --shards
mutant shards-half 'N7: an index of shards is used before it is whole' \
    'if (!index->is_whole || shard == DOORMAN_SHARDS_AWAY) return true;' \
    'if (!index->sets || shard == DOORMAN_SHARDS_AWAY) return true;' --shards
mutant shards-tables 'N7: an index of shards is whole before reservations were visited' \
    'index->is_whole = index->cursor.phase >= DOORMAN__SHARD_TRANSFERS;' \
    'index->is_whole = index->cursor.phase >= DOORMAN__SHARD_RESERVATIONS;' --shards
mutant shards-index-hold 'N7: an index of shards is whole before holds were visited' \
    'index->is_whole = index->cursor.phase >= DOORMAN__SHARD_TRANSFERS;' \
    'index->is_whole = index->cursor.phase >= DOORMAN__SHARD_HOLDS;' --shards
mutant shards-sweep 'N7: a new master forgets only shards of the index' \
    'if (!index->is_whole || shard == DOORMAN_SHARDS_AWAY) return true;' \
    'if (!index->is_whole) return true;' --unit shards_test
mutant shards-other 'N7: an index of shards outlives its configuration' \
    'doorman__shards_forget_index(permits); /* keys may be in other shards */' \
    '' --unit shards_test
mutant shards-removals 'D3: a shard is forgotten faster than the store can follow' \
    'if (permits->changes.removal_count < DOORMAN__REMOVALS_MAX / 2) {' \
    'if (permits->changes.removal_count < DOORMAN__REMOVALS_MAX) {' --unit shards_test
mutant shards-handed 'N4: holds from a time without shards are taken over' \
    'if (in->wrong || !permits->shards.of.count) return;' \
    'if (in->wrong || permits) return;' --unit permit_handover_test
mutant shards-returns 'P27: after a move, units come back to a counter that was reset' \
    "returns ? 'r' : 'u'" "returns || !returns ? 'r' : 'u'" --shards
mutant shards-waits 'N3: permits still wait for a shard that moves' \
    'if (!owned) doorman__shard_refuse_waits(permits, shard);' '' --shards
mutant shards-learning 'P16: a shard that learns its holds moves as if they were known' \
    'if (until <= permits->at.now) return true;' 'if (until >= 0) return true;' --shards
mutant shards-lost 'P16: the next master of an owner does not learn the holds' \
    'if (owned && !has_holds && holds->longest) {' 'if (owned && !has_holds && !holds) {' --shards
mutant shards-forced 'P16: after a forced move the holds are not learned' \
    '.is_lost = takes && moved->map.is_lost' '.is_lost = false' --shards --favour die
mutant shards-fence 'D9: a store takes rows of an old master' \
    'if (access->term < store->term) return false;' \
    '' --shards --favour slow,resign
mutant shards-master 'N7: a process that is not master changes the map' \
    'return is_master && same && world->now < election->until;' \
    'return (is_master || same) && same;' --shards --faults loss,delay,resign,freeze \
    --favour loss,resign,delay
mutant shards-epoch 'N7: a transaction changes a map with another epoch' \
    'bool same = world->map.epoch == access->action.epoch;' \
    'bool same = world->map.epoch >= access->action.epoch;' --shards
mutant shards-pieces 'N7: rows of a move that were given up are mixed with the next ones' \
    'if (access->attempt != move->attempt) {' 'if (access->attempt < move->attempt - 1) {' --shards
mutant routes-old 'N9: a client takes an earlier map' \
    'if (map->epoch <= doorman__map_epoch(client)) return false;' \
    '' --unit permit_routes_test
mutant routes-tls 'N9: a map leads from TLS to plain text' \
    'if (doorman__address_fault(address) || (tls && !doorman__tls(address))) return false;' \
    'if (doorman__address_fault(address) || (tls && !address)) return false;' \
    --unit permit_routes_test
mutant routes-id 'N9: the id of a hold does not lead to its shard' \
    'if (id) return doorman__port_of_shard(routes, (size_t)(id % map->shards.count));' \
    'if (id) return doorman__port_of_shard(routes, 0);' --unit permit_routes_test
mutant routes-follow 'N9: a later map leaves calls in the queue of the last owner' \
    'if (to == port) continue;' \
    'if (to) continue;' --unit permit_routes_test
mutant routes-waits 'N9: a later map does not send what waits for its shard' \
    'if (call->is_moved) doorman__timer_set(&client->timers, &call->timer, now);' \
    '(void)call;' --unit permit_routes_test
mutant routes-moves 'N9: a call is refused as MOVED for ever' \
    'if (doorman__call_has_fallback(call) && call->moves >= DOORMAN__MOVES_MAX) {' \
    'if (doorman__call_has_fallback(call) && call->moves > DOORMAN__MOVES_MAX) {' \
    --unit permit_routes_test
mutant routes-ask 'N9: a client asks for a map all the time' \
    'if (client->map_port || now < client->map_ask_at) return;' \
    'if (client->map_port) return;' --unit permit_routes_test
mutant routes-gone 'N9: no server is asked for a map after a node has failed' \
    'if (port != &client->home) doorman__map_ask(&client->home, now);' \
    '(void)port; (void)now;' --unit permit_routes_test
mutant routes-rule 'N9: a client does not know which resources are in one shard' \
    'return doorman_shard_of(&map->shards, resource_id, key, rule && rule->by_resource);' \
    'return doorman_shard_of(&map->shards, resource_id, key, !rule && rule);' --unit shards_test
if [ -z "$missed" ] && [ "$wanted" ]; then
    echo "$wanted: no such mutant"
    missed=1
fi
[ "${missed:-0}" = 0 ]
