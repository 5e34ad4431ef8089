#!/usr/bin/env python3
"""Checks `examples/monitoring` with a real Prometheus: `make monitoring`.

promtool checks the rules and runs their tests. Then a ZooKeeper server, the example `metrics`, `zklock watch` and Prometheus run for
a minute or two, on loopback. `make programs` builds the programs. The server is stopped once, so that connections break. Each panel of the dashboard must get data, and
the alert about a loss must fire with the path of the lock. At the end a browser opens the timeline of the time around the break.
`target/monitoring` has the timeline, and pictures of it in light and dark.
"""

import datetime
import html
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = ROOT / "examples/monitoring"
JARS = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar:/usr/share/java/metrics-core.jar"
LIMIT = 240
# Nothing in this run makes these counters. So their panels stay empty.
ONLY_AFTER_TROUBLE = ["zk_rwlock_disagreements_total", "zk_rwlock_events_dropped_total"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def panels():
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$__rate_interval", "30s").replace("$path", ".+")


def asked(prometheus, what, **query):
    try:
        with urllib.request.urlopen(f"{prometheus}/api/v1/{what}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return {}


def fires(prometheus):
    alerts = asked(prometheus, "alerts").get("alerts", [])
    return any(
        alert["state"] == "firing" and alert["labels"] | {"alertname": "LockIsLost", "path": "/locks/config"} == alert["labels"]
        for alert in alerts
    )


def watch(prometheus, server):
    """Returns what is still missing at the end: titles of panels, and the alert."""
    missing = {(title, expr) for title, expr in panels() if not any(name in expr for name in ONLY_AFTER_TROUBLE)}
    has_fired, began = False, time.monotonic()
    stopped_at = None
    while (missing or not has_fired) and time.monotonic() - began < LIMIT:
        time.sleep(2)
        age = time.monotonic() - began
        # A stop of half a session timeout breaks connections, and may cost a lock.
        if stopped_at is None and age > 10:
            stopped_at = age
            server.send_signal(signal.SIGSTOP)
        elif stopped_at and age - stopped_at > 5:
            server.send_signal(signal.SIGCONT)
        missing = {(title, expr) for title, expr in missing if not asked(prometheus, "query", query=expr).get("result")}
        has_fired = has_fired or fires(prometheus)
    server.send_signal(signal.SIGCONT)
    return sorted(f"no data for {title}: {expr}" for title, expr in missing) + ([] if has_fired else ["the alert LockIsLost has not fired"])


def browse(*arguments):
    # Only as root chromium refuses to run with its sandbox.
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120, check=True).stdout


def timeline(zklock, seen):
    """Draws the time around the break, and opens the picture. Returns what is missing in the picture."""
    lines = [json.loads(line) for line in seen.read_text().splitlines() if line.endswith("}")]
    cut_off = next((line["at"] for line in lines if line["event"] == "disconnected"), None)
    if cut_off is None:
        return ["the watcher has not told of the break"]
    at = datetime.datetime.fromisoformat(cut_off.replace("Z", "+00:00"))
    begin, end = ((at + datetime.timedelta(seconds=by)).strftime("%Y-%m-%dT%H:%M:%S.000Z") for by in (-3, 12))
    there = {
        (line["path"], member["node"])
        for line in lines
        if line["event"] == "queue" and begin <= line["at"] <= end
        for member in line["members"]
    }
    home = ROOT / "target/monitoring"
    home.mkdir(parents=True, exist_ok=True)
    svg = subprocess.run([zklock, "timeline", "--from", begin, "--to", end, seen], stdout=subprocess.PIPE, check=True).stdout
    (home / "timeline.svg").write_bytes(svg)
    address = (home / "timeline.svg").as_uri()
    shown = html.unescape(browse("--dump-dom", address))
    for name, dark in [("light", []), ("dark", ["--blink-settings=preferredColorScheme=0"])]:
        browse(*dark, "--window-size=1200,1600", f"--screenshot={home}/timeline-{name}.png", address)
    rows = len(re.findall(r"\nqueued \d{4}-", shown))
    words = ["/locks/config", "/locks/orders/0", "WRITE", "READ", "after holding for", "the watcher was cut off"]
    missing = [f"the timeline does not show {it!r}" for it in words if it not in shown]
    # A row may also be that of a contender that went before the first line of this time.
    return missing + ([] if len(there) <= rows else [f"the timeline has {rows} rows for {len(there)} contenders"])


def main():
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"], ["check", "config", "prometheus.yml"]):
        subprocess.run(["promtool", *command], cwd=FILES, check=True)
    example, zklock = ROOT / "target/debug/metrics", ROOT / "target/debug/zklock"
    zookeeper, program, web = (f"127.0.0.1:{free_port()}" for _ in range(3))
    running = []
    with tempfile.TemporaryDirectory() as home:
        home = pathlib.Path(home)
        config = (FILES / "prometheus.yml").read_text().replace("host.docker.internal:9464", program)
        config = config.replace("rules.yml", str(FILES / "rules.yml")).replace("10s", "1s")
        (home / "prometheus.yml").write_text(config)
        (home / "zoo.cfg").write_text(
            f"dataDir={home}/data\nclientPort={zookeeper.split(':')[1]}\nclientPortAddress=127.0.0.1\ntickTime=500\nadmin.enableServer=false\n"
        )

        def start(name, *command):
            out, log = open(home / f"{name}.out", "w"), open(home / f"{name}.log", "w")
            running.append(subprocess.Popen(command, stdout=out, stderr=log))
            return running[-1]

        try:
            server = start("server", "java", "-cp", JARS, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(home / "zoo.cfg"))
            start("program", str(example), "--zookeeper", zookeeper, "--listen", program)
            start("watch", str(zklock), "watch", "--zk", zookeeper, "--json", "--tree", "/locks")
            start("prometheus", "prometheus", f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/tsdb", f"--web.listen-address={web}")
            missing = watch(f"http://{web}", server) + timeline(zklock, home / "watch.out")
            if missing:
                for log in sorted(home.glob("*.log")):
                    print(f"--- {log.name}\n{log.read_text()[-2000:]}", file=sys.stderr)
        finally:
            for process in reversed(running):
                process.kill()
                process.wait()
    if missing:
        sys.exit("make monitoring: FAILED:\n  " + "\n  ".join(missing))
    print("make monitoring: the rules are right, each panel got data, LockIsLost fired for /locks/config, and a browser shows the timeline")


if __name__ == "__main__":
    main()
