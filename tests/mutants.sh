#!/usr/bin/env bash
# Plants faults in the deciding code with cargo-mutants, one at a time, and runs the tests that need no server. Each
# fault that they do not find must be in mutants.txt, with the reason why it may survive.
#
#   mutants.sh [REGEX]   only faults whose names in `cargo mutants --list` match, for example src/queue/turn.rs
set -euo pipefail
cd "$(dirname "$0")/.."
only=${1:-.}
home=$PWD/target/mutants
list=$PWD/tests/mutants.txt
# The least percentage of faults that must be found.
floor=95

# Older versions drop the exclusions of mutants.toml when the command line adds others.
version=$(cargo mutants --version | sed -n 's/^cargo-mutants \([0-9]*\).*/\1/p')
if ((version < 27)); then
    echo "make mutants: FAILED: cargo-mutants 27 or newer is needed, and this is $version" >&2
    exit 1
fi

# A copy of the tree at a fixed place: the work tree stays unchanged, and a run reuses the last build.
rm -rf "$home/tree" "$home/mutants.out" "$home/found"
mkdir -p "$home/tree"
git ls-files -z | tar --null --files-from - --create | tar --extract --directory "$home/tree"

export CARGO_TARGET_DIR=$home/build CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_DEBUG=none
# Some tests only wait, so run more of them at once than there are cores.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((4 * $(nproc)))}
# Stops a program at its first failed test, by an option that is not stable in Rust.
stop_early='target."cfg(unix)".runner = ["env", "RUSTC_BOOTSTRAP=1"]'

# The same inputs and schedules in each run. Only the order in which tasks are woken is still random.
export FUZZ_SEED=1 SCHEDULE_SEED=1 PROPTEST_RNG_SEED=1

# look_for SECONDS OPTION-FOR-CARGO ... [-- OPTION-FOR-CARGO-MUTANTS ...]: runs some tests against the faults that are
# not found yet. Code that hangs for SECONDS counts as found. Tests that need a server or processes are skipped by name.
look_for() {
    local seconds=$1 cargo=(-C=--config "-C=$stop_early")
    shift
    while [[ $# -gt 0 && $1 != -- ]]; do
        cargo+=("-C=$1")
        shift
    done
    shift || true
    local status=0
    (
        cd "$home/tree"
        cargo mutants --config tests/mutants.toml --in-place --iterate --output "$home" --re "$only" --timeout "$seconds" \
            --cap-lints true "${cargo[@]}" "$@" -- -- -Zunstable-options --fail-fast \
            --skip zookeeper:: --skip wire:: --skip crashes:: --skip processes::
    ) || status=$?
    # Exit code 2 means missed faults, 3 means hung tests. With any other code the run is void.
    if ((status != 0 && status != 2 && status != 3)); then
        echo 'make mutants: FAILED: the faults could not be tried' >&2
        exit 1
    fi
    cat "$home/mutants.out/"{caught,timeout}.txt >>"$home/found"
    # A fault found by hanging is not tried again.
    cat "$home/mutants.out/timeout.txt" >>"$home/mutants.out/caught.txt"
}

# `src/queue/` builds alone in a second, with its tests, and five seconds find most of its faults.
if cargo mutants --config tests/mutants.toml --list --re "$only" --exclude-re '^src/[^q]' | grep -q .; then
    cp -p "$home/tree/src/lib.rs" "$home/lib.rs"
    printf '%s\n' '//! Whose turn it is, and nothing else.' 'mod queue;' 'mod sync;' '#[cfg(test)]' 'mod tests;' >"$home/tree/src/lib.rs"
    look_for 60 --lib -- --exclude-re '^src/[^q]'
    mv "$home/lib.rs" "$home/tree/src/lib.rs"
fi
look_for 60 --lib -- --exclude-re '^src/q'
look_for 90 --package=zk-rwlock-tests --test=values --test=embedded --test=leadership
export SCHEDULES=300
look_for 300 --package=zk-rwlock-tests --test=conformance --package=zk-rwlock-proptests --test=proptests

# Removes lines and columns, which change with every edit. Two faults may then have the same name.
named() {
    sed -E 's/^([^:]*):[0-9]+:[0-9]+: /\1: /' | { grep -E "$only" || true; } | LC_ALL=C sort
}
named <"$home/mutants.out/missed.txt" >"$home/survivors"
sed -n 's/ # .*//p' "$list" | named >"$home/explained"
found=$(wc -l <"$home/found")
lived=$(wc -l <"$home/survivors")
echo "make mutants: $found of $((found + lived)) faults were found; the others are in target/mutants/survivors"
failed=
if ((found + lived == 0)); then
    failed+=" no fault has a name like '$only';"
fi
if comm -23 "$home/survivors" "$home/explained" | grep .; then
    failed+=' the faults above were not found, and tests/mutants.txt does not say why;'
fi
if comm -13 "$home/survivors" "$home/explained" | grep .; then
    failed+=' the faults above are in tests/mutants.txt, and are found or are none any more;'
fi
if ((100 * found < floor * (found + lived))); then
    failed+=" less than $floor of a hundred were found;"
fi
if [[ -n $failed ]]; then
    echo "make mutants: FAILED:${failed%;}" >&2
    exit 1
fi
