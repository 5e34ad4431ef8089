#!/usr/bin/env bash
# Runs all tests for `make test`: builds them, runs each chapter to its end even after a failure, and lists what failed.
# A chapter is a test program, or the examples in the documentation of items.
#
#   chapters.sh plan [PACKAGE ...]      announces a run, and the packages that it installs
#   chapters.sh run CARGO_OPTION ...    builds and runs what these options of `cargo test` select
#
# The output of each chapter goes to a file in target/test-logs. Only the output of failed tests is shown here. A failed
# test, and a test that runs for more than a minute, is named at once.
#
# The tests of a chapter begin in a random order. TEST_ORDER, a number, repeats an order.
set -euo pipefail
cd "$(dirname "$0")/.."

logs=$PWD/target/test-logs
servers=$PWD/target/zookeeper-servers.log
# A chapter in which no test ends for this long hangs. It is stopped, and counts as failed. `support::rounds` ends a
# test that hangs a little earlier, so that the others go on.
limit=${TEST_SECONDS:-300}
order=${TEST_ORDER:-$SRANDOM}
# Chapters that compute, without looking at a clock.
computing=(threads proptests models doc pipeline orders unit-zk_rwlock unit-zklock)
# Chapters that mostly wait for a lease to end or a server to start, the longest first. Of both lists two chapters run
# at a time, each with half of the threads. The other chapters, such as `crowd`, use every core and look at clocks, so
# they run alone.
waiting=(session lock zklock conformance documents values embedded leadership metrics pages)

say() { echo "make test: $*"; }

in_words() { echo "$((($1 < 60)) || echo "$(($1 / 60)) min ")$(($1 % 60)) s"; }

plan() {
    local chapters server='the ZooKeeper of Debian'
    # Targets with tests, and the documentation.
    chapters=$(cargo metadata --no-deps --format-version 1 | grep -o '"test":true' | wc -l)
    if [[ -n ${ZOOKEEPER_CLASSPATH-} ]]; then
        server="the ZooKeeper in $ZOOKEEPER_CLASSPATH"
    fi
    say "builds all tests and runs $((chapters + 1)) chapters, on $server, with $(nproc) cores"
    say "installs first: ${*:-nothing, it is all here}"
    mkdir -p "$logs"
    if [[ -s $logs/last ]]; then
        say "the last run took $(in_words "$(<"$logs/last")")"
    fi
    date +%s >"$logs/began"
}

declare -A folder=() program=() pids=() started=()
chapters=() red=()
passed=0 finished=0

# Builds the tests, and lists the chapters.
build() {
    local name where file
    say "builds the tests; TEST_ORDER=$order repeats their order"
    cargo test "$@" --no-run --message-format=json-render-diagnostics >"$logs/built.json"
    while IFS=$'\t' read -r name where file; do
        folder[$name]=${where%/*}
        program[$name]=$file
        chapters+=("$name")
        "$file" --list --format terse >"$logs/$name.names" </dev/null
    done < <(awk '
        function after(key,   at, rest) {
            at = index($0, key "\"")
            rest = substr($0, at + length(key) + 1)
            return at ? substr(rest, 1, index(rest, "\"") - 1) : ""
        }
        /"profile":[{][^}]*"test":true/ && /"executable":"/ {
            # The unit tests and the other tests of a program may have the same name.
            print (after("\"kind\":[") == "test" ? "" : "unit-") after("\"name\":"), after("\"manifest_path\":"), after("\"executable\":")
        }' OFS='\t' "$logs/built.json")
    folder[doc]=$PWD
    program[doc]=
    chapters+=(doc)
    : >"$logs/doc.names"
}

# Starts a chapter in a session of its own, so that all its processes can be stopped together.
start() {
    # The Rust of releases has random orders only behind RUSTC_BOOTSTRAP.
    local name=$1 threads=$2 command=(env RUSTC_BOOTSTRAP=1 "${program[$1]}" --show-output -Z unstable-options "--shuffle-seed=$order")
    if [[ $name == doc ]]; then
        # Only the names of documentation tests contain `(line `.
        command=(cargo test "${options[@]}" -- "(line ")
    fi
    : >"$logs/$name.log"
    (
        cd "${folder[$name]}"
        export RUST_TEST_THREADS=$threads CARGO_MANIFEST_DIR=$PWD CARGO_TERM_COLOR=never ZK_RWLOCK_SERVERS=$servers
        export TEST_SECONDS=$limit
        # A child shell, because the leader of a session gets each terminal that it opens, and no other session can then
        # have that terminal.
        exec setsid bash -c '"$@"; exit $?' "$name" "${command[@]}" </dev/null >"$logs/$name.log" 2>&1
    ) &
    pids[$!]=$name
    watch $! "$name" &
    started[$name]=$SECONDS
}

# Names each test that fails, and each test that runs for more than a minute, as soon as the chapter's program prints it.
# Stops a chapter in which no test ends any more. The limit counts checks and not seconds, so a standstill of the machine
# does not count.
watch() {
    local waited=0 line rest= test log
    exec {log}<"$logs/$2.log"
    while sleep 1 && kill -0 "$1"; do
        waited=$((waited + 1))
        while IFS= read -r -u "$log" line || { rest+=$line && false; }; do
            line=$rest$line rest=
            # The tests of the documentation have no list.
            if [[ $2 == doc ]]; then
                waited=0
            elif [[ $line == "test "* ]]; then
                test=${line#test } test=${test%% *}
                # A program that a test starts may print such a line, too.
                grep -qxF "$test: test" "$logs/$2.names" || continue
                case $line in
                    *' ... FAILED') say "$2: FAILED: $test" ;;
                    *' has been running for over 60 seconds') say "$2: has run for over a minute: $test" ;;
                esac
                [[ $line != *' ... '* ]] || waited=0
            fi
        done
        if ((waited >= limit)); then
            : >"$logs/$2.silent"
            kill -TERM -- "-$1"
            sleep 10
            kill -KILL -- "-$1"
        fi
    done 2>/dev/null
}

# Stops what a chapter has left behind, after a moment for the watchdogs of its servers.
sweep() {
    for _ in {1..50}; do
        kill -0 -- "-$1" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "-$1" 2>/dev/null || true
}

# Waits for a chapter, and prints its result.
finish() {
    local pid code=0 name took late= kind test message tests=0 reds=0 unjudged=0 again
    wait -n -p pid "${!pids[@]}" || code=$?
    name=${pids[$pid]}
    unset "pids[$pid]"
    sweep "$pid"
    took=$((SECONDS - started[$name]))
    if [[ -e $logs/$name.silent ]]; then
        late=$(in_words "$limit")
    fi
    finished=$((finished + 1))
    awk -v names="$logs/$name.names" -v code="$code" -v late="$late" -f tests/chapters.awk "$logs/$name.log" >"$logs/$name.outcome"
    while IFS=$'\t' read -r kind test message; do
        case $kind in
            passed) tests=$test ;;
            unjudged)
                unjudged=$((unjudged + 1))
                red+=("$name: a test could not be judged: the machine stood still; target/test-logs/$name.log")
                ;;
            red)
                reds=$((reds + 1))
                red+=("$name: $test: $message; target/test-logs/$name.log")
                ;;
        esac
    done <"$logs/$name.outcome"
    passed=$((passed + tests))
    again=$(grep -c 'the round before this one is not judged$' "$logs/$name.log" || true)
    say "$finished of ${#chapters[@]}: $name: $tests passed$( ((reds == 0)) || echo ", $reds FAILED")$(
        ((unjudged == 0)) || echo ", $unjudged not judged")$(
        ((again == 0)) || echo ", rounds run again on a busy machine: $again"), $(in_words "$took")"
    # The output of the failed tests.
    sed -n 's/^|/    /p; s/^red\t\([^\t]*\).*/  -- \1/p' "$logs/$name.outcome"
}

# Runs these chapters, this many at a time.
run() {
    local at_a_time=$1 name
    shift
    for name; do
        [[ -v program[$name] ]] || continue
        ((${#pids[@]} < at_a_time)) || finish
        start "$name" $(((threads + at_a_time - 1) / at_a_time))
    done
    while ((${#pids[@]} > 0)); do
        finish
    done
}

stop() {
    trap - INT TERM EXIT
    local pid
    for pid in "${!pids[@]}"; do
        kill -TERM -- "-$pid" 2>/dev/null || true
        sweep "$pid"
    done
    exit "$1"
}

main() {
    local began alone=() name threads
    began=$(($(date +%s) - $(cat "$logs/began" 2>/dev/null || date +%s)))
    mkdir -p "$logs"
    rm -f "$servers" "$logs"/*.{log,names,outcome,silent} "$logs/began"
    # Most tests wait most of the time, so run more tests than there are cores; but only as many as a thousand
    # descriptors allow.
    threads=$((4 * $(nproc)))
    threads=${RUST_TEST_THREADS:-$((threads > 32 ? 32 : threads))}
    trap 'stop 130' INT
    trap 'stop 143' TERM
    trap 'stop $?' EXIT
    build "$@"
    for name in "${chapters[@]}"; do
        [[ " ${computing[*]} ${waiting[*]} " == *" $name "* ]] || alone+=("$name")
    done
    say "$(cat "$logs"/*.names | grep -c ': test$') tests, and those of the documentation; what they print is in target/test-logs"
    run 2 "${computing[@]}"
    run 1 "${alone[@]}"
    run 2 "${waiting[@]}"
    echo $((began + SECONDS)) >"$logs/last"
    # A run without a server proves nothing about ZooKeeper, even if all its tests pass.
    if [[ ! -s $servers ]]; then
        red+=("no test started a ZooKeeper server: $servers is empty")
    else
        awk '{ servers[$NF]++ } END { for (v in servers) print "make test: started ZooKeeper " v ": " servers[v] " times" }' "$servers" | sort
    fi
    # What this machine lacks.
    cat "$logs"/*.log | sed -n 's/^!!! /make test: /p' | sort -u
    say 'real Curator and kazoo are not part of it: make interop'
    say "$passed tests passed in ${#chapters[@]} chapters, $(in_words $((began + SECONDS)))"
    if ((${#red[@]} > 0)); then
        say "FAILED: ${#red[@]}, with TEST_ORDER=$order" >&2
        printf '  %s\n' "${red[@]}" >&2
        exit 1
    fi
}

case $1 in
    plan) plan "${@:2}" ;;
    run)
        options=("${@:2}")
        main "${options[@]}"
        ;;
esac
