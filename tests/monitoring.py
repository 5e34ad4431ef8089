#!/usr/bin/env python3
"""Checks `examples/monitoring` with a real Prometheus: `make monitoring`.

promtool checks the rules and runs their tests. Then a ZooKeeper server, the example `metrics` and Prometheus run for a minute or
two, on loopback. The server is stopped once, so that connections break. Each panel of the dashboard must get data, and the alert
about a loss must fire with the path of the lock.
"""

import json
import os
import pathlib
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
    return sorted(f"{title}: {expr}" for title, expr in missing) + ([] if has_fired else ["the alert LockIsLost has not fired"])


def main():
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"], ["check", "config", "prometheus.yml"]):
        subprocess.run(["promtool", *command], cwd=FILES, check=True)
    subprocess.run(["cargo", "build", "-p", "example-metrics"], cwd=ROOT, check=True)
    example = ROOT / "target/debug/metrics"
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
            log = open(home / f"{name}.log", "w")
            running.append(subprocess.Popen(command, stdout=log, stderr=log))
            return running[-1]

        try:
            server = start("server", "java", "-cp", JARS, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(home / "zoo.cfg"))
            start("program", str(example), "--zookeeper", zookeeper, "--listen", program)
            start("prometheus", "prometheus", f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/tsdb", f"--web.listen-address={web}")
            missing = watch(f"http://{web}", server)
            if missing:
                for log in sorted(home.glob("*.log")):
                    print(f"--- {log.name}\n{log.read_text()[-2000:]}", file=sys.stderr)
        finally:
            for process in reversed(running):
                process.kill()
                process.wait()
    if missing:
        sys.exit("make monitoring: FAILED: no data for\n  " + "\n  ".join(missing))
    print("make monitoring: the rules are right, each panel got data, and LockIsLost fired for /locks/config")


if __name__ == "__main__":
    main()
