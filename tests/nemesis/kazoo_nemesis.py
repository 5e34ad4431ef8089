"""A holder or the waiters of kazoo's lock, with commands on standard input: see tests/nemesis/peer.rs.

Arguments: the session timeout and the pause between two questions, both in milliseconds. All reported times are
time.monotonic_ns(), the machine's monotonic clock.
"""

import os
import sys
import threading
import time

from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState


def say(words):
    # One write for each line, because several threads write lines.
    os.write(1, f"child says {words}\n".encode())


class Hold(threading.Thread):
    """One hold, and the times of the answers of its API. Zero means never."""

    def __init__(self, client, path, timeout, pause):
        super().__init__(daemon=True)
        self.client, self.lock, self.pause, self.timeout = client, client.WriteLock(path), pause, timeout
        self.path, self.over = path, threading.Event()
        self.signal = self.lost = self.held_until = self.denied_from = 0
        self.resumed = "0 -"
        client.add_listener(self.hear)

    def hear(self, state):
        now = time.monotonic_ns()
        if state in (KazooState.SUSPENDED, KazooState.LOST):
            self.signal = self.signal or now
        if state == KazooState.LOST:
            self.lost = self.lost or now

    def run(self):
        self.lock.acquire()
        say(f"held {self.path}/{self.lock.node}")
        last = time.monotonic_ns()
        while not self.over.is_set():
            asked = time.monotonic_ns()
            held = self.lock.is_acquired
            if asked - last > self.timeout * 1_000_000:
                self.resumed = f"{asked} {'held' if held else 'lost'}"
            last = asked
            if held:
                self.held_until = asked
            else:
                self.denied_from = self.denied_from or asked
            time.sleep(self.pause / 1000)

    def end(self):
        self.over.set()
        self.join()
        say(f"ended {self.signal} {self.lost} {self.held_until} {self.denied_from} {self.resumed}")
        self.client.stop()
        self.client.close()


def main(timeout, pause):
    def open_client(servers):
        client = KazooClient(servers, timeout=timeout / 1000)
        client.start()
        return client

    def wait(client, path):
        client.WriteLock(path).acquire()
        say(f"granted {path} {time.monotonic_ns()}")

    hold = waiting = None
    say("ready")
    for line in sys.stdin:
        words = line.split()
        if words[0] == "hold":
            hold = Hold(open_client(words[1]), words[2], timeout, pause)
            hold.start()
        elif words[0] == "end":
            hold.end()
        elif words[0] == "wait":
            waiting = waiting or open_client(words[1])
            threading.Thread(target=wait, args=(waiting, words[2]), daemon=True).start()
        else:
            raise ValueError(line)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
