#!/usr/bin/env python3
"""Measures what docs/performance.md compares: zk-rwlock, other libraries' locks and bare nodes, in turns. `make performance`.

Everything runs in network namespaces that end with this program, so no other program can reach the servers.
The first namespace has the servers and the clients on loopback. A link of TUN devices leads to the second, which has the
far clients. The link uses the kernel's own TCP. (A proxy on loopback would acknowledge each segment at once, and so hide
the cost of Nagle's algorithm and delayed acknowledgements.)

A driver is a program that measures one library. It gets the arguments SERVERS KIND CONTENDERS ACQUISITIONS SESSIONS WARM-UP
ONE-IN HOLD. It prints "ready" and waits for a line of input. Then it does its work, and prints the elapsed
nanoseconds, the nanoseconds of processor time, and the number of errors. It waits for another line of input before the
next measurement, or before its end. One acquisition in ONE-IN writes, or none if ONE-IN is 0. HOLD is in milliseconds.
"""

import argparse
import datetime
import fcntl
import glob
import json
import os
import pathlib
import queue
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
INTEROP = pathlib.Path(os.environ.get("INTEROP_HOME", ROOT / "target/interop"))
JARS = f"{INTEROP}/jars/*"
HOME = ROOT / "target/performance/servers"
NAMESPACES = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"] + ["--map-root-user"] * (os.getuid() != 0)

# The delay of the link in milliseconds, in each direction.
DELAY = 10
NEAR, FAR = "10.77.0.2", "10.77.0.1"
STANDALONE, ENSEMBLE = [2181], [2191, 2192, 2193]
PLACES = {
    "link": (STANDALONE, NEAR),
    "loopback": (STANDALONE, "127.0.0.1"),
    "ensemble": (ENSEMBLE, "127.0.0.1"),
}

# A case: name, kind, contenders, ONE-IN, HOLD, acquisitions on the link, on loopback and on the ensemble (0: the case
# is not measured there), and the peers, which are the libraries to compare. A peer that keeps its nodes on one session
# gets a thousand times as many acquisitions.
ALL = "raw zookeeper-client curator kazoo ours-apart"
CASES = [
    ("write", "contend", 1, 1, 0, 50, 3000, 500, ALL),
    ("read", "contend", 1, 0, 0, 50, 3000, 0, "raw curator kazoo ours-apart"),
    ("drain-10", "drain", 10, 1, 0, 0, 10, 0, ALL),
    ("drain-50", "drain", 50, 1, 0, 50, 0, 50, ALL),
    ("drain-100", "drain", 100, 1, 0, 0, 100, 0, ALL),
    ("drain-1000", "drain", 1000, 1, 0, 0, 1000, 0, ALL),
    ("readers-100", "readers", 100, 0, 0, 0, 100, 0, "raw curator kazoo ours-apart"),
    ("readers-200", "readers", 200, 0, 0, 200, 0, 200, "raw curator kazoo ours-apart"),
    ("readers-1000", "readers", 1000, 0, 0, 0, 1000, 0, "raw curator kazoo ours-apart"),
    ("contend-2", "contend", 2, 1, 0, 0, 1000, 0, "zookeeper-client curator kazoo ours-apart ours"),
    ("contend-8", "contend", 8, 1, 0, 160, 2000, 480, "zookeeper-client curator kazoo ours-apart ours"),
    ("contend-64", "contend", 64, 1, 0, 0, 1280, 0, ALL + " ours"),
    ("contend-64", "contend", 64, 1, 0, 0, 0, 1280, "raw ours-apart"),
    ("mix-16", "contend", 16, 10, 1, 320, 3200, 640, "curator kazoo ours-apart ours"),
    ("permits-16", "permits", 16, 1, 1, 96, 1600, 0, "curator kazoo ours-apart"),
    ("keepers-20", "keepers", 20, 0, 0, 5, 0, 0, "ours-kept-apart"),
    ("keepers-100", "keepers", 100, 0, 0, 5, 0, 0, "ours-kept-apart"),
    ("kept-read-1", "contend", 1, 0, 0, 0, 2000, 0, "ours ours-kept local"),
    ("kept-write-1", "contend", 1, 1, 0, 0, 2000, 0, "ours ours-kept local"),
    ("kept-read-64", "contend", 64, 0, 0, 0, 2560, 0, "ours ours-kept local"),
    ("kept-mix-8", "contend", 8, 20, 1, 0, 2000, 0, "ours-apart ours-kept-apart ours ours-kept local"),
]
WARM_UP = {"link": 10, "loopback": 500, "ensemble": 100}
# The contenders of a library in Java or Python share at most this number of sessions. Otherwise the cost of the
# sessions would decide the case.
SESSIONS_OF_OTHERS = 20


def command(peer):
    if peer == "curator":
        return ["java", "-Xmx1g", "-Dslf4j.internal.verbosity=ERROR", "-cp", f"{INTEROP}/classes:{JARS}", "CuratorDriver"]
    if peer == "kazoo":
        return [f"{INTEROP}/venv/bin/python", str(ROOT / "benches/peers/kazoo_driver.py")]
    kind = peer if peer in ("raw", "zookeeper-client", "local") else "kept" if "kept" in peer else "ours"
    return [str(ROOT / "target/release/examples/drive"), kind]


def sessions(peer, contenders):
    if peer in ("curator", "kazoo"):
        return min(contenders, SESSIONS_OF_OTHERS)
    return 1 if peer in ("ours", "ours-kept", "local") else contenders


def versions():
    def stated(text, name):
        return re.search(rf'name = "{name}"\nversion = "(.*)"', text)[1]

    def of_file(pattern):
        return re.search(r"-([0-9.]*[0-9])\.", glob.glob(f"{INTEROP}/{pattern}")[0])[1]

    lock = (ROOT / "Cargo.lock").read_text()
    client, ours = stated(lock, "zookeeper-client"), stated(lock, "zk-rwlock")
    others = {"raw": client, "zookeeper-client": client, "local": stated(lock, "tokio")}
    others["curator"] = of_file("jars/curator-recipes-*.jar")
    others["kazoo"] = of_file("venv/lib/*/site-packages/kazoo-*.dist-info")
    return lambda peer: others.get(peer, ours)


def commit():
    """Returns the commit of the library. Empty outside of a Git repository."""
    said = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return said.stdout.strip()


def machine():
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{os.cpu_count()} cores, {model[1] if model else os.uname().machine}, Linux {os.uname().release}"


def ip(*arguments):
    subprocess.run(("ip", *arguments), check=True)


def carry(source, target):
    """Forwards each packet after the delay of the link."""
    packets = queue.SimpleQueue()

    def take():
        while True:
            packet = os.read(source, 65536)
            packets.put((time.monotonic() + DELAY / 1000, packet))

    def give():
        while True:
            due, packet = packets.get()
            time.sleep(max(0, due - time.monotonic()))
            try:
                os.write(target, packet)
            except OSError:
                pass  # the queue is full, as on a real link: TCP sends the packet again

    for work in take, give:
        threading.Thread(target=work, daemon=True).start()


def link():
    """Makes the link. Returns the words before the command of a far client."""
    set_interface, tun, bare = 0x400454CA, 0x0001, 0x1000
    far = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    inside = ["nsenter", f"--net=/proc/{far.pid}/ns/net"]
    while os.readlink(f"/proc/{far.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        time.sleep(0.01)
    ends = []
    for device in "near", "far":
        ends.append(os.open("/dev/net/tun", os.O_RDWR))
        fcntl.ioctl(ends[-1], set_interface, struct.pack("16sH", device.encode(), tun | bare))
    ip("link", "set", "far", "netns", str(far.pid))
    for before, device, own, other in ([], "near", NEAR, FAR), (inside, "far", FAR, NEAR):
        for words in f"addr add {own} peer {other} dev {device}", f"link set {device} txqueuelen 10000 up", "link set lo up":
            subprocess.run([*before, "ip", *words.split()], check=True)
    carry(*ends)
    carry(*reversed(ends))
    return inside


def start_servers(ports):
    """Starts a server or an ensemble. As in production, every transaction is synced to the disk before it counts."""
    for number, port in enumerate(ports, 1):
        home = HOME / str(port)
        home.mkdir(parents=True)
        lines = ["tickTime=2000", "initLimit=20", "syncLimit=10", "maxClientCnxns=0", "admin.enableServer=false", "forceSync=yes",
                 "4lw.commands.whitelist=*", f"dataDir={home}", f"clientPort={port}"]
        if len(ports) > 1:
            (home / "myid").write_text(str(number))
            lines += [f"server.{i}=127.0.0.1:{p + 100}:{p + 200}" for i, p in enumerate(ports, 1)]
        (home / "zoo.cfg").write_text("\n".join(lines))
        classes = os.environ.get("ZOOKEEPER_CLASSPATH", JARS)
        server = ["java", "-Xmx1g", "-cp", classes, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(home / "zoo.cfg")]
        with (home / "log").open("w") as log:
            subprocess.Popen(server, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    for port in ports:
        deadline = time.monotonic() + 60
        while "Mode:" not in ask(port, "srvr"):
            if time.monotonic() > deadline:
                sys.exit(f"compare: a server does not start:\n{(HOME / str(port) / 'log').read_text()[-2000:]}")
            time.sleep(0.2)


def ask(port, word):
    try:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except OSError:
        return ""


COUNTERS = "packets_received", "bytes_received_count", "response_bytes"


class Meter:
    """Measures the rise of the servers' counters. The requests that read the counters are subtracted."""

    def __init__(self, ports):
        self.ports = ports

    def read(self):
        answers = [dict(line.split("\t") for line in ask(port, "mntr").splitlines()) for port in self.ports]
        counts = [sum(int(answer[f"zk_{counter}"]) for answer in answers) for counter in COUNTERS]
        return counts, int(answers[0]["zk_ephemerals_count"])

    def wait(self, nodes, idle):
        """Waits until `nodes` nodes exist and the servers get almost no requests."""
        quiet, began = 0, time.monotonic()
        while quiet < 2:
            (before, *_), had = self.read()
            time.sleep(0.2)
            (after, *_), has = self.read()
            is_quiet = after - before <= 3 * len(self.ports) + idle // 10 and had == has >= nodes
            quiet = quiet + 1 if is_quiet else 0
            waited = time.monotonic() - began
            # After 20 s the wait ends without a quiet moment: on a busy machine the heartbeats of a thousand sessions leave few.
            if waited > 20 and had == has >= nodes:
                return
            if waited > 90:
                raise RuntimeError(f"the servers have {has} of {nodes} nodes")

    def start(self):
        once, _ = self.read()
        # A server counts the request that reads the counters only a moment after its answer.
        time.sleep(0.02)
        self.before, _ = self.read()
        self.asking = [two - one for one, two in zip(once, self.before)]

    def stop(self):
        after, _ = self.read()
        return [now - then - asking for now, then, asking in zip(after, self.before, self.asking)]


def measure(argv, meter, nodes, idle):
    """Returns elapsed time, processor time, errors and the servers' counts, summed over all measurements of a driver."""
    base = meter.read()[1]
    totals, times = [0] * (3 + len(COUNTERS)), 0
    driver = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    limit = threading.Timer(180, driver.kill)
    limit.start()
    for _ready in driver.stdout:
        if nodes:
            meter.wait(base + nodes, idle)
        meter.start()
        print(file=driver.stdin)
        said = [int(number) for number in driver.stdout.readline().split()]
        totals = [total + more for total, more in zip(totals, said + meter.stop())]
        times += 1
        print(file=driver.stdin)
    limit.cancel()
    if driver.wait() or not times or totals[2]:
        sys.exit(f"compare: {' '.join(argv)} ended with {driver.returncode}, after {times} measurements and {totals[2]} errors")
    return totals


def measure_case(name, kind, n, one_in, hold, ops, peers, place, arguments, far, first=0):
    """Measures a case with all its peers in turn, beginning with peer number `first`. Yields a line of results for each."""
    ports, host = PLACES[place]
    if kind in ("contend", "permits"):
        ops = n * max(1, int(ops * arguments.share) // n)
    peers = peers.split()
    first %= len(peers)
    for peer in peers[first:] + peers[:first]:
        if arguments.peers and peer not in arguments.peers:
            continue
        share = sessions(peer, n)
        done = ops * 1000 if hold == 0 and peer in ("ours-kept", "local") else ops
        warm = max(10, int(WARM_UP[place] * arguments.share))
        servers = ",".join(f"{host}:{port}" for port in ports)
        argv = [*command(peer), servers, kind, *map(str, (n, done, share, warm, one_in, hold))]
        nodes = {"drain": n + 1, "readers": n + 1, "keepers": n}.get(kind, 0)
        measured = measure(far + argv if place == "link" else argv, Meter(ports), nodes, share)
        nanoseconds, processor, _, *counted = measured
        requests, taken, given = (count / done for count in counted)
        print(f"{place} {name} {peer}: {nanoseconds / 1e6 / done:.3f} ms, {processor / 1e3 / done:.0f} µs of the processor,"
              f" {requests:.2f} requests", flush=True)  # fmt: skip
        yield {
            "place": place, "case": name, "kind": kind, "peer": peer, "n": n, "sessions": share, "ops": done,
            "seconds": nanoseconds / 1e9, "processor_us": processor / 1e3 / done,
            "requests": requests, "bytes_in": taken, "bytes_out": given,
        }  # fmt: skip


def run(arguments):
    HOME.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(HOME)
    ip("link", "set", "lo", "up")
    far = link()
    for ports in {ports[0]: ports for ports, _ in PLACES.values()}.values():
        start_servers(ports)
    version, now = versions(), datetime.datetime.now(datetime.timezone.utc)
    common = {
        "run": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit(),
        "machine": machine(),
        "server": re.search(r"version: ([0-9.]*)", ask(STANDALONE[0], "srvr"))[1],
    }
    for place in ("loopback", "ensemble"):
        # This warm-up is not measured. A server in Java becomes faster during its first ten thousand requests or so.
        for _unused in measure_case("warm-up", "contend", 64, 1, 0, 12800, "raw", place, arguments, far):
            pass
    with open(arguments.out, "w") as out:
        for round in range(1, arguments.rounds + 1):
            began = time.monotonic()
            for *case, link_ops, loopback_ops, ensemble_ops, peers in CASES:
                for place, ops in zip(PLACES, (link_ops, loopback_ops, ensemble_ops)):
                    if not ops or place not in arguments.places or (arguments.cases and case[0] not in arguments.cases):
                        continue
                    for line in measure_case(*case, ops, peers, place, arguments, far, round - 1):
                        line = common | {"round": round, "version": version(line["peer"])} | line
                        print(json.dumps(line), file=out, flush=True)
            print(f"round {round} of {arguments.rounds}: {time.monotonic() - began:.0f} s", flush=True)


def main():
    names = list(dict.fromkeys(case[0] for case in CASES))
    parser = argparse.ArgumentParser(description="Runs what docs/performance.md compares, in turns.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", default=str(ROOT / "target/performance/results.jsonl"))
    parser.add_argument("--share", type=float, default=1.0, help="the share of the usual number of acquisitions")
    parser.add_argument("--cases", nargs="*", default=[], choices=names, metavar="CASE", help=" ".join(names))
    parser.add_argument("--peers", nargs="*", default=[], metavar="PEER")
    parser.add_argument("--places", nargs="*", default=list(PLACES), choices=PLACES)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        try:
            return run(arguments)
        except KeyboardInterrupt:
            # All other processes in these namespaces end with this process.
            os._exit(130)
    missing = [program for program in ("unshare", "nsenter", "ip", "java") if not shutil.which(program)]
    if missing:
        sys.exit(f"compare: missing: {', '.join(missing)} (of util-linux, iproute2 and a Java)")
    if subprocess.run([*NAMESPACES, "test", "-w", "/dev/net/tun"]).returncode:
        sys.exit("compare: needs /dev/net/tun, and network and process namespaces of its own: run as root, or let users make namespaces")
    os.execvp("unshare", [*NAMESPACES, sys.executable, *sys.argv, "--inside"])


main()
