# Contributors and CI run the same commands: `make lint`, `make test` and a short `make interop`.
# The workspace has the library, and packages for the command `zklock`, the tests, the property tests, the benchmarks and three examples.

SHELL := /bin/bash
# One shell runs a whole recipe, and stops at the first failure, also inside a pipe.
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
# Builds need the packages that earlier targets install.
.NOTPARALLEL:

DEBIAN_JAR := /usr/share/java/zookeeper.jar
# Every package with every feature, so that all commands share one build.
WHOLE := --workspace --all-features

.PHONY: test plan programs lint soak mutants interop nemesis versions monitoring growth scale performance figures shells kerberos databases pages upstream msrv deny semver package \
	filled-in binary deb zookeeper servers

# Prints a plan, installs missing packages, builds, and runs every chapter to its end: tests/chapters.sh. The tests start their own
# ZooKeeper servers, and a run that started no server fails.
test: plan servers programs
	@tests/chapters.sh run $(WHOLE)

plan:
	@$(SERVER_PACKAGES)
	tests/chapters.sh plan "$${packages[@]}"

# Builds the programs that the tests run: `zklock` and the examples. The tests refuse a program that is older than its sources.
programs:
	cargo build $(WHOLE) --bins --examples

# Runs the long versions of `make test`: more rounds, waiters, schedules, contenders and crashes, ten minutes of threads, and the swarms
# for twenty minutes on one server and as long on three. Each stage prints its largest number of open descriptors.
COUNTED_TEST := cargo --config 'target."cfg(unix)".runner = ["$(CURDIR)/tests/descriptors.sh"]' test --release
soak: zookeeper
	export SCHEDULES=1000000 MULTI_SCHEDULES=5000 LEASE_ROUNDS=40 SILENCE_ROUNDS=200 LEASE_HISTORIES=60000 BREAK_ROUNDS=20 SCALE_WAITERS=10000 MODEL_CONTENDERS=4
	export ALONE_TIMEOUT=40 FREEZE_ROUNDS=10 CRASH_ROUNDS=25 ROLLS=5 FLAP_SECONDS=60 SWARM_SECONDS=600 LINEAR_SECONDS=300 COST_CONTENDERS=3000
	export FUZZ_SECONDS=$${FUZZ_SECONDS:-120}
	# Each of 23 tests runs for this long, one on each core.
	export THREADS_SECONDS=$$((600 * $$(nproc) / 23))
	failed='$(CURDIR)/target/soak.failed'
	mkdir -p target
	rm -f "$$failed"
	stage() { $(COUNTED_TEST) "$${@:2}" || echo "$$1" >>"$$failed"; }
	trap 'kill 0' INT TERM
	# The stages that compute run at the same time as the stages that mostly wait.
	{
		stage proptests -p zk-rwlock-proptests -- --nocapture
		stage threads -p zk-rwlock-threads -- --nocapture
		stage parsers --all-features --lib -- any_ fuzzed
		stage models -p zk-rwlock-tests --test models -- --nocapture
	} &
	for part in session::{lease,silence,breaks,cost,ensemble,alone,outages,garbled} crowd::{scale,traces} lock::multi; do
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

# Plants fault after fault in the code that decides; the tests must find it. tests/mutants.txt explains the faults that they do not
# find. FAULTS is a regular expression that selects faults: make mutants FAULTS=src/queue/turn.rs
FAULTS ?= .
mutants:
	@$(call NEEDS,cargo-mutants)
	tests/mutants.sh '$(FAULTS)'

# Runs fleets of this library, Curator, kazoo and zookeeper-client on one path for INTEROP_SECONDS in all, and kills their processes in
# turn. The first run needs the network: PySpark's source distribution (456 MB) for Curator's jars, and kazoo.
INTEROP_SECONDS ?= 180
interop: zookeeper
	tests/interop/setup.sh
	INTEROP_SECONDS=$(INTEROP_SECONDS) cargo test $(WHOLE) --test interop -- --nocapture

# Adds the run, the commit and the machine to each line of a file of results.
STAMP = sed "s/^{/{\"run\":\"$$(date -u +%FT%TZ)\",\"commit\":\"$$(git describe --always --dirty)\",\"machine\":\"$$(nproc) cores, Linux $$(uname -r)\",/" '$(1).part' >'$(1)'; rm '$(1).part'

# Causes one fault after the other for one holder and one waiting writer, the same for this library, Curator and kazoo, NEMESIS_ROUNDS
# times each. This takes some minutes. `cp target/nemesis.jsonl docs/ && make pages` puts the results into docs/choosing.md.
NEMESIS_ROUNDS ?= 20
NEMESIS := $(CURDIR)/target/nemesis.jsonl
nemesis: zookeeper
	tests/interop/setup.sh
	rm -f '$(NEMESIS).part'
	NEMESIS_ROUNDS=$(NEMESIS_ROUNDS) cargo test $(WHOLE) --test nemesis -- --nocapture
	$(call STAMP,$(NEMESIS))

# Runs the server tests on ZooKeeper 3.6.3, 3.8.0 and 3.9.3 to 3.9.6 in turn, and on a server that behaves like ClickHouse Keeper;
# VERSIONS selects some of them. The first run needs the network: PySpark's source distributions (318, 456 and 456 MB) for the jars,
# and packages of Debian 13 and sid.
VERSIONS ?= 3.6.3 3.8.0 3.9.3 3.9.4 3.9.5 3.9.6 keeper
versions: zookeeper programs
	tests/versions.sh $(VERSIONS)

# Measures processor time and bytes up to a hundred thousand locks, holds, waiters and members. This takes some minutes.
GROWTH := $(CURDIR)/target/performance/growth.jsonl
growth: zookeeper
	cargo build --release -p zklock
	mkdir -p target/performance
	rm -f '$(GROWTH).part'
	cargo bench -p zk-rwlock-benches --bench growth -- --all --out '$(GROWTH).part'
	$(call STAMP,$(GROWTH))

# Simulates, in virtual time, a hundred thousand clients that reconnect at once. This takes some minutes.
STORMS := $(CURDIR)/target/performance/storms.jsonl
scale:
	mkdir -p target/performance
	rm -f '$(STORMS).part'
	cargo bench -p zk-rwlock-benches --bench scale -- --contenders 100000 --out '$(STORMS).part'
	$(call STAMP,$(STORMS))

# Measures everything that docs/performance.md compares, in one run of some 20 minutes: this library, the other libraries and bare nodes, in
# turns on a link of 10 ms each way, on loopback and on an ensemble of three. The tables and plots go to target/performance. Needs root, or
# user namespaces. `make performance ONLY='--cases write --peers ours-apart raw'` runs a part: `benches/compare.py --help`.
ROUNDS := 3
performance: zookeeper
	tests/interop/setup.sh
	cargo build --release -p zk-rwlock-benches --example drive
	mkdir -p target/performance
	# A thousand contenders with a session each need more than the thousand that a shell usually allows.
	ulimit -Sn hard
	python3 benches/compare.py --rounds $(ROUNDS) $(ONLY)
	cargo run --release --example performance -- target/performance

# Makes the tables, plots and figures of docs/performance.md and README.md from the committed results.
# `make figures RESULTS=target/performance/results.jsonl` first replaces the committed run.
figures:
	if [[ -n '$(RESULTS)' ]]; then
		cp '$(RESULTS)' docs/performance/
	fi
	cargo run --release --example performance -- docs/performance docs/performance.md README.md

# Copies the snippets of tests/pages, which are compiled and run, into README.md and docs/; makes docs/pictures.txt, and the table of
# docs/choosing.md from docs/nemesis.jsonl.
pages:
	WRITE_PAGES=1 cargo test -p zk-rwlock-tests --test documents -- --nocapture the_pictures_have_the_numbers snippets:: nemesis:: the_pictures_of

# Checks the dashboard and the alert rules of examples/monitoring with a real Prometheus on a real run, and opens the timeline of this
# run in a browser. It installs both. target/monitoring has pictures of the timeline.
monitoring: zookeeper programs
	@packages=()
	if ! command -v promtool >/dev/null; then
		packages+=(prometheus)
	fi
	if ! command -v chromium >/dev/null; then
		packages+=(chromium)
	fi
	( $(INSTALL) )
	python3 tests/monitoring.py

# Tests the completion of `zklock` in zsh and fish, which it installs. `make test` uses only installed shells.
shells: zookeeper programs
	@packages=()
	for shell in zsh fish; do
		if ! command -v "$$shell" >/dev/null; then
			packages+=("$$shell")
		fi
	done
	( $(INSTALL) )
	cargo test $(WHOLE) --test zklock -- completion::

# Tests Kerberos in a realm of its own. Kerberos is behind a cfg, because its build needs C headers and libclang.
# On Debian: apt-get install libkrb5-dev libclang-dev krb5-kdc krb5-admin-server krb5-user
kerberos: zookeeper
	tests/kerberos.sh

# Runs the SQL of docs/fencing.md on a PostgreSQL and a MariaDB of its own. docs/fencing.md says what must be refused.
# On Debian: apt-get install postgresql mariadb-server
databases:
	tests/databases.sh

# Applies each patch of docs/upstream/ to the client crate, and runs the test in the patch.
upstream:
	tests/upstream.sh

# Builds with the oldest Rust that Cargo.toml states; rustup installs it.
msrv:
	cargo +$$(sed -n 's/^rust-version = "\(.*\)"/\1.0/p' Cargo.toml) check -p zk-rwlock -p zklock --all-features --lib --bins

# Checks the licences, known faults and sources of the dependencies by deny.toml. Needs the network for the list of known faults.
deny:
	@$(call NEEDS,cargo-deny)
	cargo deny --workspace check

# Checks whether the version in Cargo.toml allows the changes since the last release, which is a tag `v1.2.3`.
# Semantic versioning does not cover the module `coordinator`: a finding there needs only a line in CHANGELOG.md.
semver:
	@released=$$(git describe --tags --match 'v[0-9]*' --abbrev=0 2>/dev/null || true)
	if [[ -z $$released ]]; then
		echo 'make semver: no release has a tag yet, so there is nothing to compare with'
		exit 0
	fi
	$(call NEEDS,cargo-semver-checks)
	cargo semver-checks --all-features --baseline-rev "$$released"

# Builds the packages as they would be published. Needs cargo 1.90, a clean work tree, and the placeholders filled in.
package: filled-in
	cargo publish --dry-run -p zk-rwlock -p zklock

# A placeholder is a name that ends with `.invalid`, which no real host has.
filled-in:
	@if grep -nE '[A-Za-z0-9-]+\.invalid' Cargo.toml SECURITY.md >&2; then
		echo 'make package: REFUSED: the lines above have placeholders. Fill in:' >&2
		echo '  Cargo.toml   repository: where the source is; crates.io resolves the links of README.md by it' >&2
		echo '  SECURITY.md  where a vulnerability is to be reported' >&2
		echo 'To build the packages without publishing them: cargo package -p zk-rwlock -p zklock' >&2
		exit 1
	fi

# Packs `zklock`, its manual and its completions into an archive in target/archives. TAG, if given, must be that of the version in
# Cargo.toml. TARGET builds for another target of Rust; a program for a musl target needs no C library of the system.
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
	for task in ls watch timeline ask forget permits break check; do
		"$$zklock" man $$task >"target/archives/$$name/man/zklock-$$task.1"
	done
	for shell in bash fish zsh; do
		"$$zklock" completions $$shell >"target/archives/$$name/completions/zklock.$$shell"
	done
	cd target/archives
	tar -czf "$$name.tar.gz" "$$name"
	sha256sum "$$name.tar.gz" >"$$name.tar.gz.sha256"
	echo "make binary: target/archives/$$name.tar.gz"

# Packs the same as a package for Debian, into target/archives or OUT. PROGRAM, if given, is packed instead of a release build.
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
	for task in '' ls watch timeline ask forget permits break check; do
		"$$program" man $$task | gzip -9 -n >"$$share/man/man1/zklock$${task:+-$$task}.1.gz"
	done
	"$$program" completions bash >"$$share/bash-completion/completions/zklock"
	"$$program" completions zsh >"$$share/zsh/vendor-completions/_zklock"
	"$$program" completions fish >"$$share/fish/vendor_completions.d/zklock.fish"
	gzip -9 -n <CHANGELOG.md >"$$share/doc/zklock/changelog.gz"
	{ echo 'Licensed under either of these, as you like.'; cat LICENSE-MIT LICENSE-APACHE; } >"$$share/doc/zklock/copyright"
	# The newest C library that the program needs. A statically linked program needs none.
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

# Requires a tool of cargo's: CI installs the tool, and a person gets the command.
define NEEDS
if ! command -v $(1) >/dev/null; then
	if [[ -z "$${CI:-}" ]]; then
		echo 'make: $(1) is missing: cargo install --locked $(1)' >&2
		exit 1
	fi
	cargo install --locked $(1)
fi
endef

# Installs Debian's `packages`, if any. Several installations at once wait for each other.
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
# The tests start a PostgreSQL of their own; by default the package would start another.
"$${as_root[@]}" flock /var/lib/dpkg bash -euc '
	if [[ " $$* " == *" postgresql "* && ! -e /etc/postgresql-common/createcluster.conf ]]; then
		mkdir -p /etc/postgresql-common
		echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
	fi
	# apt-get does not wait for another update by itself.
	for _ in {1..20}; do apt-get update && break || sleep 5; done
	DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "$$@"' bash "$${packages[@]}"
endef

# Fetches a release of ZooKeeper into target/zookeeper: `make test ZOOKEEPER_VERSION=3.9.5`.
ZOOKEEPER_ARCHIVES := https://archive.apache.org/dist/zookeeper
ifdef ZOOKEEPER_VERSION
# A relative path: make cannot handle a space in the path of this directory.
ZOOKEEPER_RELEASE := target/zookeeper/apache-zookeeper-$(ZOOKEEPER_VERSION)-bin
export ZOOKEEPER_CLASSPATH := $(CURDIR)/$(ZOOKEEPER_RELEASE)/lib/*

zookeeper servers: | $(ZOOKEEPER_RELEASE)

# The checksum comes from the same host: it detects a broken download, and TLS a false host.
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

# Lists the missing packages for a ZooKeeper: none for the Java archives of ZOOKEEPER_VERSION or ZOOKEEPER_CLASSPATH, else Debian's.
define ZOOKEEPER_PACKAGES
packages=()
if [[ -z "$${ZOOKEEPER_CLASSPATH:-}" && ! -e $(DEBIAN_JAR) ]]; then
	packages+=(zookeeper)
fi
if ! command -v java >/dev/null; then
	packages+=(default-jre-headless)
fi
endef

# Lists the missing packages of everything that `make test` needs: for the migrations also a PostgreSQL, and for the tests of
# certificates openssl.
define SERVER_PACKAGES
$(ZOOKEEPER_PACKAGES)
if ! command -v initdb >/dev/null && ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then
	packages+=(postgresql)
fi
if ! command -v openssl >/dev/null; then
	packages+=(openssl)
fi
endef

zookeeper:
	@$(ZOOKEEPER_PACKAGES)
	$(INSTALL)

servers:
	@$(SERVER_PACKAGES)
	$(INSTALL)
