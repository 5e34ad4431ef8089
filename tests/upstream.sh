#!/usr/bin/env bash
# Applies each patch in docs/upstream/ to the client crate that cargo has fetched, and runs the test in the patch.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n '/^name = "zookeeper-client"$/{n;s/^version = "\(.*\)"$/\1/p}' "$root/Cargo.lock")
cargo fetch --quiet --locked --manifest-path "$root/Cargo.toml"
crate=$(echo "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"zookeeper-client-$version")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export CARGO_TARGET_DIR=$root/target/upstream CARGO_PROFILE_DEV_LTO=off
for patch in "$root"/docs/upstream/*.patch; do
	test=$(sed -n 's/^+ *\(async \)\{0,1\}fn \([a-z_]*\)() {$/\2/p' "$patch")
	rm -rf "$place/crate"
	cp -r "$crate" "$place/crate"
	cd "$place/crate"
	chmod -R u+w .
	# The crate's other tests need containers.
	rm -rf tests Cargo.lock
	sed -i '/^#\[cfg(test)\]$/,$d' src/client/mod.rs
	printf '\n[workspace]\n' >>Cargo.toml
	patch -p1 --quiet <"$patch"
	cargo test --quiet --lib --features tokio "$test" | tee "$place/log"
	grep -q '1 passed' "$place/log"
	echo "$(basename "$patch"): $test"
done
