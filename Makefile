# What a contributor runs and what CI runs are the same commands: `make lint`, `make test` and a short `make interop`.
# The workspace is the library and, as packages of their own, the command `zklock`, the tests, property tests, benchmarks and three examples.

SHELL := /bin/bash
# One shell for a whole recipe, which stops at the first failure, also inside a pipe.
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
# What is built needs what is installed before it.
.NOTPARALLEL:

DEBIAN_JAR := /usr/share/java/zookeeper.jar
# Every package with every feature. What is built for one of these commands is built for all of them.
WHOLE := --workspace --all-features

.PHONY: test plan programs lint soak mutants interop nemesis versions growth scale performance figures shells kerberos databases pages upstream msrv deny semver package \
	filled-in binary deb zookeeper servers

# Says what it will do, installs what is missing, builds, and runs every chapter to its end: tests/chapters.sh. The tests start their own
# ZooKeeper servers, and a run that started none fails however green the tests look.
test: plan servers programs
	@tests/chapters.sh run $(WHOLE)

plan:
	@$(SERVER_PACKAGES)
	tests/chapters.sh plan "$${packages[@]}"

# What the tests run as a user would: `zklock` and the examples. The tests refuse one that is older than its sources.
programs:
	cargo build $(WHOLE) --bins --examples

# The long versions of what `make test` runs: more rounds, more waiters, more schedules, more contenders, more crashes,
# ten minutes of threads, and the swarms for twenty minutes on one server and as long on three. Each stage says how many descriptors it had open at most.
COUNTED_TEST := cargo --config 'target."cfg(unix)".runner = ["$(CURDIR)/tests/descriptors.sh"]' test --release
soak: zookeeper
	export SCHEDULES=1000000 MULTI_SCHEDULES=5000 LEASE_ROUNDS=40 SILENCE_ROUNDS=200 LEASE_HISTORIES=60000 BREAK_ROUNDS=20 SCALE_WAITERS=10000 MODEL_CONTENDERS=4
	export ALONE_TIMEOUT=40 FREEZE_ROUNDS=10 CRASH_ROUNDS=25 ROLLS=5 FLAP_SECONDS=60 SWARM_SECONDS=600 LINEAR_SECONDS=300
	export FUZZ_SECONDS=$${FUZZ_SECONDS:-120}
	# Each of 23 tests for so long, as many at once as there are cores.
	export THREADS_SECONDS=$$((600 * $$(nproc) / 23))
	failed='$(CURDIR)/target/soak.failed'
	mkdir -p target
	rm -f "$$failed"
	stage() { $(COUNTED_TEST) "$${@:2}" || echo "$$1" >>"$$failed"; }
	trap 'kill 0' INT TERM
	# What computes all the time goes beside what mostly waits.
	{
		stage proptests -p zk-rwlock-proptests -- --nocapture
		stage threads -p zk-rwlock-threads -- --nocapture
		stage parsers --all-features --lib -- any_ fuzzed
		stage models -p zk-rwlock-tests --test models -- --nocapture
	} &
	for part in session::{lease,silence,breaks,ensemble,alone,outages,garbled} crowd::{scale,traces} lock::multi; do
		stage "$$part" -p zk-rwlock-tests --test "$${part%%::*}" "$${part#*::}::" -- --nocapture
	done
	for servers in 1 3; do
		SWARM_SERVERS=$$servers stage "swarm-$$servers" -p zk-rwlock-tests --test crowd swarm:: -- --nocapture
		SWARM_SERVERS=$$servers SWARM_SECONDS=300 stage "permits-$$servers" -p zk-rwlock-tests --test crowd permits:: -- --nocapture
		SWARM_SERVERS=$$servers stage "linear-$$servers" -p zk-rwlock-tests --test crowd linear:: -- --nocapture
	done
	wait
	if [[ -s $$failed ]]; then
		echo "make soak: FAILED: $$(tr '\n' ' ' <"$$failed")" >&2
		exit 1
	fi
	echo 'make soak: all stages passed'

# Plants fault after fault in the code that decides, and has the tests find it. What they do not find is explained in
# tests/mutants.txt. FAULTS is a regular expression, for some of them: make mutants FAULTS=src/queue/turn.rs
FAULTS ?= .
mutants:
	@$(call NEEDS,cargo-mutants)
	tests/mutants.sh '$(FAULTS)'

# The lock among real Curator, kazoo and zookeeper-client on one path, each killed in turn: fleets that contend for so
# many seconds in all. The first run needs the network: PySpark's source distribution (456 MB) for Curator's jars, and
# kazoo.
INTEROP_SECONDS ?= 180
interop: zookeeper
	tests/interop/setup.sh
	INTEROP_SECONDS=$(INTEROP_SECONDS) cargo test $(WHOLE) --test interop -- --nocapture

# Says in each line of a file in which run it was measured.
STAMP = sed "s/^{/{\"run\":\"$$(date -u +%FT%TZ)\",\"commit\":\"$$(git describe --always --dirty)\",\"machine\":\"$$(nproc) cores, Linux $$(uname -r)\",/" '$(1).part' >'$(1)'; rm '$(1).part'

# One holder, one waiting writer and one fault after the other, the same for us, Curator and kazoo, so many rounds of each. Some
# minutes, of which it mostly sleeps. `cp target/nemesis.jsonl docs/ && make pages` has docs/comparison.md show what was seen.
NEMESIS_ROUNDS ?= 20
NEMESIS := $(CURDIR)/target/nemesis.jsonl
nemesis: zookeeper
	tests/interop/setup.sh
	rm -f '$(NEMESIS).part'
	NEMESIS_ROUNDS=$(NEMESIS_ROUNDS) cargo test $(WHOLE) --test nemesis -- --nocapture
	$(call STAMP,$(NEMESIS))

# The server tests on ZooKeeper 3.6.3, 3.8.0 and 3.9.3 to 3.9.6 in turn, and on a server that behaves like ClickHouse Keeper;
# VERSIONS names some of them. The first run needs the network: PySpark's source distributions (318, 456 and 456 MB) for the jars,
# and packages of Debian 13 and sid.
VERSIONS ?= 3.6.3 3.8.0 3.9.3 3.9.4 3.9.5 3.9.6 keeper
versions: zookeeper programs
	tests/versions.sh $(VERSIONS)

# What everything costs as it grows to a hundred thousand, in time of the processor and in bytes. Some minutes.
GROWTH := $(CURDIR)/target/performance/growth.jsonl
growth: zookeeper
	cargo build --release -p zklock
	mkdir -p target/performance
	rm -f '$(GROWTH).part'
	cargo bench -p zk-rwlock-benches --bench growth -- --all --out '$(GROWTH).part'
	$(call STAMP,$(GROWTH))

# A hundred thousand clients that come back all at once, in virtual time: what the ensemble is asked. Some minutes.
STORMS := $(CURDIR)/target/performance/storms.jsonl
scale:
	mkdir -p target/performance
	rm -f '$(STORMS).part'
	cargo bench -p zk-rwlock-benches --bench scale -- --contenders 100000 --out '$(STORMS).part'
	$(call STAMP,$(STORMS))

# What docs/performance.md compares, in one run of some 20 minutes: ours, the other libraries and bare nodes, in turns on a link of
# 10 ms each way, on loopback and on an ensemble of three. Its tables and plots are in target/performance. As root, or where
# users may make namespaces. `make performance ONLY='--cases write --peers ours-apart raw'` runs some of it: `benches/compare.py --help`.
ROUNDS := 3
performance: zookeeper
	tests/interop/setup.sh
	cargo build --release -p zk-rwlock-benches --example drive
	mkdir -p target/performance
	# A thousand contenders with a session each need more than the thousand that a shell usually allows.
	ulimit -Sn hard
	python3 benches/compare.py --rounds $(ROUNDS) $(ONLY)
	cargo run --release --example performance -- target/performance

# The tables, plots and figures of docs/performance.md and README.md, from the results that are committed with them.
# `make figures RESULTS=target/performance/results.jsonl` first puts another run in the place of the one that is there.
figures:
	if [[ -n '$(RESULTS)' ]]; then
		cp '$(RESULTS)' docs/performance/
	fi
	cargo run --release --example performance -- docs/performance docs/performance.md README.md

# The Rust in README.md and in docs/, from the snippets in tests/pages, which are compiled and run; docs/pictures.txt; and the
# table of docs/comparison.md, from docs/nemesis.jsonl.
pages:
	WRITE_PAGES=1 cargo test -p zk-rwlock-tests --test documents -- --nocapture snippets:: nemesis:: the_pictures_of

# Completion of `zklock` in the shells that are not on every machine; `make test` tries what is there, and says what is not.
shells: zookeeper programs
	@packages=()
	for shell in zsh fish; do
		if ! command -v "$$shell" >/dev/null; then
			packages+=("$$shell")
		fi
	done
	( $(INSTALL) )
	cargo test $(WHOLE) --test zklock -- completion::

# Kerberos is behind a cfg, because it needs C headers and libclang to build; the tests run in a realm of their own.
# On Debian: apt-get install libkrb5-dev libclang-dev krb5-kdc krb5-admin-server krb5-user
kerberos: zookeeper
	tests/kerberos.sh

# The SQL of docs/guide.md, on a PostgreSQL and a MariaDB that are started for it; docs/guide.md says what must be refused.
# On Debian: apt-get install postgresql mariadb-server
databases:
	tests/databases.sh

# What docs/upstream/ proposes to the client crate: applies each patch to it, and runs the test that the patch brings.
upstream:
	tests/upstream.sh

# The oldest Rust that Cargo.toml states, for real: rustup installs it. `make lint` asks clippy only.
msrv:
	cargo +$$(sed -n 's/^rust-version = "\(.*\)"/\1.0/p' Cargo.toml) check -p zk-rwlock -p zklock --all-features --lib --bins

# What the dependencies must keep to is in deny.toml: licences, known faults, sources. Needs the network for the list of
# known faults.
deny:
	@$(call NEEDS,cargo-deny)
	cargo deny --workspace check

# Whether the version that Cargo.toml states allows for what has changed since the last release, which is a tag `v1.2.3`.
# Semantic versioning does not cover the module `coordinator`: a finding there needs no more than a word in CHANGELOG.md.
semver:
	@released=$$(git describe --tags --match 'v[0-9]*' --abbrev=0 2>/dev/null || true)
	if [[ -z $$released ]]; then
		echo 'make semver: no release has a tag yet, so there is nothing to compare with'
		exit 0
	fi
	$(call NEEDS,cargo-semver-checks)
	cargo semver-checks --all-features --baseline-rev "$$released"

# What would be published, built from nothing but itself. Needs cargo 1.90, a clean work tree, and what only the publisher can fill in.
package: filled-in
	cargo publish --dry-run -p zk-rwlock -p zklock

# A placeholder is a name that ends with `.invalid`, which no host and no address will ever have.
filled-in:
	@if grep -nE '[A-Za-z0-9-]+\.invalid' Cargo.toml SECURITY.md >&2; then
		echo 'make package: REFUSED: the lines above have placeholders. Fill in:' >&2
		echo '  Cargo.toml   repository: where the source is; crates.io resolves the links of README.md by it' >&2
		echo '  SECURITY.md  where a vulnerability is to be reported' >&2
		echo 'To build the packages without publishing them: cargo package -p zk-rwlock -p zklock' >&2
		exit 1
	fi

# `zklock` for machines without Rust, with its manual and completions, as an archive in target/archives. TAG, if it is given,
# has to be that of the version in Cargo.toml. TARGET builds for another target of Rust: one for musl gives a program that
# needs no C library of the system's.
binary:
	@version=$$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
	if [[ -n '$(TAG)' && '$(TAG)' != "v$$version" ]]; then
		echo "make binary: REFUSED: the tag is $(TAG), and Cargo.toml has the version $$version" >&2
		exit 1
	fi
	target=$(or $(TARGET),$$(rustc -vV | sed -n 's/^host: //p'))
	name=zklock-$$version-$$target
	cargo build --release --locked -p zklock --config 'profile.release.strip = true' $(if $(TARGET),--target '$(TARGET)')
	zklock="$${CARGO_TARGET_DIR:-target}/$(if $(TARGET),$(TARGET)/)release/zklock"
	rm -rf "target/archives/$$name"
	mkdir -p "target/archives/$$name/"{man,completions}
	cp "$$zklock" README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "target/archives/$$name/"
	"$$zklock" man >"target/archives/$$name/man/zklock.1"
	for task in ls watch ask forget permits break check; do
		"$$zklock" man $$task >"target/archives/$$name/man/zklock-$$task.1"
	done
	for shell in bash fish zsh; do
		"$$zklock" completions $$shell >"target/archives/$$name/completions/zklock.$$shell"
	done
	cd target/archives
	tar -czf "$$name.tar.gz" "$$name"
	sha256sum "$$name.tar.gz" >"$$name.tar.gz.sha256"
	echo "make binary: target/archives/$$name.tar.gz"

# The same as a package for Debian and its kin, in target/archives or where OUT says. PROGRAM, if it is given, is packed
# instead of a release build.
deb:
	@program='$(PROGRAM)'
	if [[ -z $$program ]]; then
		cargo build --release --locked -p zklock --config 'profile.release.strip = true'
		program="$${CARGO_TARGET_DIR:-target}/release/zklock"
	fi
	out='$(or $(OUT),target/archives)'
	root=$$(mktemp -d)
	trap 'rm -rf "$$root"' EXIT
	chmod 755 "$$root"
	share=$$root/usr/share
	install -d "$$out" "$$root/DEBIAN" "$$share"/{man/man1,bash-completion/completions,zsh/vendor-completions}
	install -d "$$share"/{fish/vendor_completions.d,doc/zklock}
	install -D -m 755 "$$program" "$$root/usr/bin/zklock"
	for task in '' ls watch ask forget permits break check; do
		"$$program" man $$task | gzip -9 -n >"$$share/man/man1/zklock$${task:+-$$task}.1.gz"
	done
	"$$program" completions bash >"$$share/bash-completion/completions/zklock"
	"$$program" completions zsh >"$$share/zsh/vendor-completions/_zklock"
	"$$program" completions fish >"$$share/fish/vendor_completions.d/zklock.fish"
	gzip -9 -n <CHANGELOG.md >"$$share/doc/zklock/changelog.gz"
	{ echo 'Licensed under either of these, as you like.'; cat LICENSE-MIT LICENSE-APACHE; } >"$$share/doc/zklock/copyright"
	# The newest C library that the program asks for. One that is linked statically asks for none.
	glibc=$$(objdump -T "$$program" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -n 1 || true)
	version=$$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
	architecture=$$(dpkg --print-architecture)
	maintainer=$$(sed -n 's/^Write to \*\*\(.*\)\*\*.*/\1/p' SECURITY.md)
	{
		printf '%s\n' 'Package: zklock' "Version: $$version" "Architecture: $$architecture" \
			"Maintainer: zk-rwlock <$$maintainer>" 'Section: utils' 'Priority: optional' \
			"Installed-Size: $$(du -ks "$$root/usr" | cut -f 1)"
		if [[ -n $$glibc ]]; then
			printf '%s\n' "Depends: libc6 (>= $${glibc#GLIBC_}), libgcc-s1"
		fi
		printf '%s\n' 'Description: run a command under a lock of many machines' \
			' zklock is flock(1) for many machines: one read/write lock, kept in' \
			' Apache ZooKeeper, with the letters and the exit codes of flock.'
	} >"$$root/DEBIAN/control"
	dpkg-deb --root-owner-group --build "$$root" "$$out/zklock_$${version}_$$architecture.deb"

lint:
	cargo fmt --all --check
	cargo clippy $(WHOLE) --all-targets -- -D warnings
	cargo clippy $(WHOLE) --test interop --test nemesis -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --all-features -p zk-rwlock

# Has a tool of cargo's at hand: CI installs it, and people are told how to.
define NEEDS
if ! command -v $(1) >/dev/null; then
	if [[ -z "$${CI:-}" ]]; then
		echo 'make: $(1) is missing: cargo install --locked $(1)' >&2
		exit 1
	fi
	cargo install --locked $(1)
fi
endef

# Installs Debian's `packages`, if there are any. Two runs at once install one after the other, and wait for whoever else installs something.
define INSTALL
if [[ $${#packages[@]} -eq 0 ]]; then
	exit 0
fi
if ! command -v apt-get >/dev/null; then
	echo "make test: this system has no apt-get to install $${packages[*]} with." \
		"ZooKeeper: install Java and set ZOOKEEPER_CLASSPATH='DIRECTORY/lib/*', where DIRECTORY is an unpacked release." \
		'PostgreSQL: put the directory of initdb and postgres into PATH' >&2
	exit 1
fi
as_root=()
if [[ $$(id -u) -ne 0 ]]; then
	as_root=(sudo)
	if ! command -v sudo >/dev/null || ! sudo true; then
		echo "make test: packages are missing, and only root can install them. Have this run as root, and then run make test again:" >&2
		echo "    apt-get update && apt-get install -y --no-install-recommends $${packages[*]}" >&2
		exit 1
	fi
fi
echo "make test: installing $${packages[*]}"
# The tests start a PostgreSQL of their own; the package would make and start one that nobody asked for.
"$${as_root[@]}" flock /var/lib/dpkg bash -euc '
	if [[ " $$* " == *" postgresql "* && ! -e /etc/postgresql-common/createcluster.conf ]]; then
		mkdir -p /etc/postgresql-common
		echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
	fi
	# It does not wait for another one by itself.
	for _ in {1..20}; do apt-get update && break || sleep 5; done
	DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "$$@"' bash "$${packages[@]}"
endef

# A release of ZooKeeper to test on, fetched into target/zookeeper: `make test ZOOKEEPER_VERSION=3.9.5`.
ZOOKEEPER_ARCHIVES := https://archive.apache.org/dist/zookeeper
ifdef ZOOKEEPER_VERSION
# Without the path to here, which may have a space: make has no word for such a file.
ZOOKEEPER_RELEASE := target/zookeeper/apache-zookeeper-$(ZOOKEEPER_VERSION)-bin
export ZOOKEEPER_CLASSPATH := $(CURDIR)/$(ZOOKEEPER_RELEASE)/lib/*

zookeeper servers: | $(ZOOKEEPER_RELEASE)

# The checksum comes from the same place: it tells of a broken download, and TLS of a false one.
$(ZOOKEEPER_RELEASE):
	@mkdir -p '$(@D)'
	cd '$(@D)'
	archive=$(@F).tar.gz
	curl --fail --silent --show-error --location --retry 3 \
		--remote-name-all '$(ZOOKEEPER_ARCHIVES)/zookeeper-$(ZOOKEEPER_VERSION)/$(@F).tar.gz'{,.sha512}
	sum=$$(sed 's/^.*: *//' "$$archive.sha512" | tr -cd '[:xdigit:]' | cut -c 1-128)
	sha512sum --check --quiet <<<"$$sum  $$archive"
	rm -rf unpacked
	mkdir unpacked
	tar -xzf "$$archive" -C unpacked
	mv 'unpacked/$(@F)' .
	rm -r unpacked "$$archive" "$$archive.sha512"
endif

# What is missing of a ZooKeeper for the tests: the release that ZOOKEEPER_VERSION says, the one that ZOOKEEPER_CLASSPATH names, or
# else Debian's.
define ZOOKEEPER_PACKAGES
packages=()
if [[ -z "$${ZOOKEEPER_CLASSPATH:-}" && ! -e $(DEBIAN_JAR) ]]; then
	packages+=(zookeeper)
fi
if ! command -v java >/dev/null; then
	packages+=(default-jre-headless)
fi
endef

# What is missing of all that `make test` needs beside Rust: for the migrations also a PostgreSQL.
define SERVER_PACKAGES
$(ZOOKEEPER_PACKAGES)
if ! command -v initdb >/dev/null && ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then
	packages+=(postgresql)
fi
endef

zookeeper:
	@$(ZOOKEEPER_PACKAGES)
	$(INSTALL)

servers:
	@$(SERVER_PACKAGES)
	$(INSTALL)
