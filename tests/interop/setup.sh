#!/usr/bin/env bash
# Installs what tests/interop/main.rs needs into target/interop or $INTEROP_HOME: the jars of Curator and of ZooKeeper's
# Java client, kazoo in a Python environment, and the compiled drivers in Java. Does nothing if all is there.
#
#   INTEROP_SDIST   pyspark's source distribution, if it is already downloaded (456 MB); the jars are in it
set -euo pipefail
cd "$(dirname "$0")/../.."

missing() {
    echo "make interop: $1" >&2
    exit 1
}

home=${INTEROP_HOME:-target/interop}
jars=$home/jars python=$home/venv/bin/python
curator=5.9.0 kazoo=2.11.0 pyspark=4.3.0
mkdir -p "$home/classes"

# Debian's Python has no pip.
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    command -v apt-get >/dev/null || missing 'Python 3 with its modules venv and ensurepip is missing: install it'
    as_root=()
    if [[ $(id -u) -ne 0 ]]; then
        as_root=(sudo)
    fi
    "${as_root[@]}" apt-get update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-venv
fi

if ! "$python" -c "import kazoo.version as v; assert v.__version__ == '$kazoo'" 2>/dev/null; then
    python3 -m venv "$home/venv"
    "$python" -m pip install --quiet "kazoo==$kazoo" || missing "no kazoo $kazoo is to be had from pip's package index"
fi

# PySpark contains Curator, so one package index is enough for all.
if ! [[ -e $jars/curator-recipes-$curator.jar ]]; then
    sdist=${INTEROP_SDIST:-$home/pyspark-$pyspark.tar.gz}
    if [[ -n ${INTEROP_SDIST:-} && ! -e $sdist ]]; then
        missing "INTEROP_SDIST names $sdist, which does not exist"
    fi
    if [[ ! -e $sdist ]]; then
        {
            "$python" -m pip install --quiet setuptools wheel &&
                "$python" -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation --dest "$home" \
                    "pyspark==$pyspark"
        } || missing "no source of pyspark $pyspark is to be had from pip's package index; INTEROP_SDIST may name the file"
    fi
    wanted=()
    for jar in curator-{client,framework,recipes} zookeeper zookeeper-jute guava failureaccess slf4j-api metrics-core \
        snappy-java commons-io audience-annotations \
        netty-{buffer,codec,codec-base,common,handler,resolver,transport,transport-classes-epoll,transport-native-unix-common}; do
        wanted+=("*/deps/jars/$jar-[0-9]*.jar")
    done
    # Moved at the end, so that an interrupted download does not pass for a complete one.
    rm -rf "$jars.part"
    mkdir "$jars.part"
    tar -xzf "$sdist" -C "$jars.part" --strip-components=3 --wildcards "${wanted[@]}" ||
        missing "$sdist is not the source of pyspark $pyspark"
    mkdir -p "$jars"
    mv "$jars.part"/* "$jars"
    rmdir "$jars.part"
    if [[ -z ${INTEROP_SDIST:-} ]]; then
        rm "$sdist"
    fi
fi

drivers=({tests/interop/CuratorPeer,benches/peers/CuratorDriver,tests/nemesis/CuratorNemesis}.java)
for driver in "${drivers[@]}"; do
    class=$(basename "$driver" .java).class
    if [[ $driver -nt $home/classes/$class ]]; then
        # The compiler's main class, because Debian's runtime has no `javac` program.
        java --list-modules | grep '^jdk.compiler@' >/dev/null || missing 'this Java has no compiler: install a JDK'
        java --module jdk.compiler/com.sun.tools.javac.Main -d "$home/classes" \
            -cp "$(printf '%s:' "$jars"/*.jar)" "${drivers[@]}"
        break
    fi
done
