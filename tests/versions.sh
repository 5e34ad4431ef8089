#!/usr/bin/env bash
# Runs the server tests on each release of ZooKeeper, and on a server that behaves like ClickHouse Keeper. Downloads
# missing jars into target/versions: from a source distribution of PySpark, or from packages of a later Debian, which
# are unpacked there and not installed. Debian 12 has 3.8.0.
#
#   versions.sh [VERSION ...]   some of 3.6.3, 3.8.0, 3.9.3, 3.9.4, 3.9.5, 3.9.6 and keeper; all by default
#   VERSIONS_SDISTS             a directory with downloaded source distributions of PySpark
set -euo pipefail
cd "$(dirname "$0")/.."

missing() {
    echo "make versions: $1" >&2
    exit 1
}

home=$PWD/target/versions
debian=/usr/share/java/zookeeper.jar
mkdir -p "$home"

# Prints the source distribution of PySpark with the jars of a release, and its SHA-256.
source_of() {
    case $1 in
        3.6.3) echo '3.5.9 ea27adc39ddac9413b8951e45aa748cbed6c785971b81386efc41938f6243d93' ;;
        3.9.4) echo '4.1.4 bcbd5e18690cf79d438e97210ad06fb8d451a251bb77becc2b0418868d2acd73' ;;
        3.9.5) echo '4.3.0 e8c517948eff7088a7aa07449aa8eafa4a15a8d50319de2525a6fd26622476c6' ;;
        *) missing "there is no source for ZooKeeper $1" ;;
    esac
}

# Finds a Python that can download a source distribution: Debian's has no pip.
python() {
    if ! "$home/venv/bin/python" -c 'import setuptools, wheel' 2>/dev/null; then
        {
            python3 -m venv "$home/venv" && "$home/venv/bin/python" -m pip install --quiet setuptools wheel
        } >&2 || missing 'Python 3 with its module venv, and a package index for pip, are needed'
    fi
    "$home/venv/bin/python" "$@"
}

fetch() {
    local version=$1 pyspark sum sdist wanted=()
    read -r pyspark sum <<<"$(source_of "$version")"
    sdist=${VERSIONS_SDISTS:-$home}/pyspark-$pyspark.tar.gz
    if [[ ! -e $sdist ]]; then
        sdist=$home/pyspark-$pyspark.tar.gz
        echo "make versions: fetching the jars of ZooKeeper $version"
        python -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation --dest "$home" "pyspark==$pyspark" ||
            missing "no source of pyspark $pyspark is to be had from pip's package index, and so no ZooKeeper $version"
    fi
    sha256sum --check --quiet <<<"$sum  $sdist" || missing "$sdist is not the file that was published"
    for jar in zookeeper netty slf4j-api log4j metrics-core snappy-java commons-cli commons-io commons-lang audience-annotations; do
        wanted+=("*/deps/jars/$jar-*.jar")
    done
    # Moved at the end, so that an interrupted download does not pass for a complete one.
    rm -rf "$home/part"
    mkdir "$home/part"
    tar -xzf "$sdist" -C "$home/part" --strip-components=3 --wildcards "${wanted[@]}" || missing "$sdist has not all jars"
    [[ -e $home/part/zookeeper-$version.jar ]] || missing "$sdist has no jar of ZooKeeper $version"
    mv "$home/part" "$home/$version"
    if [[ $sdist == "$home"/* ]]; then
        rm "$sdist"
    fi
}

# Prints the suite of Debian that has a release. The suite may have moved on to a newer release by now.
suite_of() {
    case $1 in
        3.9.3) echo trixie ;;
        3.9.6) echo sid ;;
    esac
}

# Unpacks the packages of a release from a suite of Debian, with package lists of its own. The system stays unchanged.
unpack() {
    local version=$1 suite=$2 packages=(zookeeper netty slf4j dropwizard-metrics snappy commons-cli commons-io)
    command -v apt-get >/dev/null || missing "apt-get is needed for ZooKeeper $version, which $suite of Debian has"
    echo "make versions: fetching the packages of ZooKeeper $version from Debian's $suite"
    rm -rf "$home/part"
    mkdir -p "$home"/part/{lists,archives,root,jars}/partial
    local mirror keys=/usr/share/keyrings/debian-archive-keyring.gpg
    mirror=$(sed -nE 's,^(URIs:|deb( \[.*\])?) *(https?://[^ ]*/debian/?)( .*)?$,\3,p' /etc/apt/sources.list \
        /etc/apt/sources.list.d/* 2>/dev/null | head -n 1 || true)
    echo "deb [signed-by=$keys] ${mirror:-http://deb.debian.org/debian} $suite main" >"$home/part/sources"
    local options=(-qq -o "Dir::Etc::sourcelist=$home/part/sources" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$home/part/lists" -o "Dir::Cache=$home/part" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update || missing "no list of the packages of Debian's $suite is to be had"
    local names=("${packages[@]/#/lib}")
    names=("${names[@]/%/-java}")
    if [[ $suite == sid ]]; then
        names+=(libnetty-buffer-java libnetty-common-java)
    fi
    (cd "$home/part/archives" && apt-get "${options[@]}" download "${names[@]/%//$suite}") ||
        missing "Debian's $suite does not give the packages of ZooKeeper $version"
    local package
    for package in "$home"/part/archives/*.deb; do
        dpkg-deb -x "$package" "$home/part/root"
    done
    local java=$home/part/root/usr/share/java jar
    [[ -e $java/zookeeper-$version.jar ]] || missing "Debian's $suite does not have ZooKeeper $version any more"
    rmdir "$home/part/jars/partial"
    for jar in zookeeper zookeeper-jute slf4j-api slf4j-simple metrics-core snappy-java commons-cli commons-io \
        netty-{buffer,codec,common,handler,resolver,transport,transport-native-{epoll,unix-common}}; do
        mv "$java/$jar"-[0-9]*.jar "$home/part/jars/"
    done
    mv "$home/part/jars" "$home/$version"
    rm -rf "$home/part"
}

# Sets ZOOKEEPER_CLASSPATH for a release.
provide() {
    local suite
    unset ZOOKEEPER_CLASSPATH
    if [[ $1 == 3.8.0 && -e $debian ]]; then
        return
    fi
    suite=$(suite_of "$1")
    if [[ ! -d $home/$1 ]]; then
        if [[ -n $suite ]]; then unpack "$1" "$suite"; else fetch "$1"; fi
    fi
    if [[ -z $suite ]]; then
        export ZOOKEEPER_CLASSPATH="$home/$1/*"
        return
    fi
    # The manifest of Debian's zookeeper.jar names paths where another release may be installed. These take effect
    # behind the jar, so that jar comes last.
    local jars
    jars=$(find "$home/$1" -name '*.jar' ! -name "zookeeper-$1.jar" | sort | tr '\n' ':')
    export ZOOKEEPER_CLASSPATH="$jars$home/$1/zookeeper-$1.jar"
}

# Runs tests on servers of a release, and checks that the servers had that version.
run() {
    local name=$1 version=$2 began=$SECONDS
    shift 2
    provide "$version"
    export ZK_RWLOCK_SERVERS=$home/servers-$name.log
    rm -f "$ZK_RWLOCK_SERVERS"
    echo "make versions: ZooKeeper $version, as $name"
    local outcome=passed
    cargo test --workspace --all-features --no-fail-fast "$@" || outcome=FAILED
    if [[ ! -s $ZK_RWLOCK_SERVERS ]]; then
        outcome='FAILED: no test started a server'
    elif ! awk -v wanted="$version" '$NF != wanted { exit 1 }' "$ZK_RWLOCK_SERVERS"; then
        outcome='FAILED: a server was of another version'
    fi
    results+=("make versions: $name: $outcome, $((SECONDS - began)) s")
    [[ $outcome == passed ]] || failed=1
}

# Tests that cannot pass on a server on which each broken connection ends the session.
not_on_keeper=()
for test in ::a_guard_cut_off_is_suspect_until_the_reconnect ::a_permit_cut_off_is_suspect_until_reconnected \
    ::a_write_that_a_waiter_missed_while_cut_off_is_no_hand_off contract::a_disconnected_session_reconnects_after_the_cut \
    contract::an_event_missed_while_cut_off_fires_on_reconnect contract::a_missed_child_event_fires_on_reconnect \
    contract::an_ended_session_fails_every_request contract::a_server_is_left_with_the_same_session; do
    not_on_keeper+=(--skip "$test")
done
# The chapters that start servers, except those that use every core.
chapters=(--test conformance --test lock --test session --test values --test leadership --test zklock)
# Most tests wait most of the time.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
results=() failed=
if [[ $# -eq 0 ]]; then
    set -- 3.6.3 3.8.0 3.9.3 3.9.4 3.9.5 3.9.6 keeper
fi
for version; do
    case $version in
        keeper) ZK_RWLOCK_KEEPER=1 run keeper 3.8.0 --test conformance -- zookeeper:: "${not_on_keeper[@]}" ;;
        *) run "$version" "$version" "${chapters[@]}" ;;
    esac
done
printf '%s\n' "${results[@]}"
[[ -z $failed ]]
