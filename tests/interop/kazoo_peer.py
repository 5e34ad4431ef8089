"""kazoo's locks, with commands on standard input: see tests/interop/main.rs.

Arguments: servers, the lock's path, the path of the value it protects, the common log of all holds, a
name, the session timeout in milliseconds, and "kazoo" or "curator".
"""

import os
import random
import sys
import time

from kazoo.client import KazooClient
from kazoo.recipe.lock import ReadLock, WriteLock


class CuratorReadLock(ReadLock):
    """A reader in the queue of Curator's InterProcessReadWriteLock."""

    _NODE_NAME = "__READ__"
    _EXCLUDE_NAMES = ["__WRIT__"]


class CuratorWriteLock(WriteLock):
    """A writer in the queue of Curator's InterProcessReadWriteLock."""

    _NODE_NAME = "__WRIT__"
    _EXCLUDE_NAMES = ["__READ__", "__WRIT__"]


def say(words):
    print(f"child says {words}", flush=True)


def main(servers, path, value, log, name, timeout, dialect):
    client = KazooClient(servers, timeout=int(timeout) / 1000)
    client.start()
    kinds = (CuratorReadLock, CuratorWriteLock) if dialect == "curator" else (ReadLock, WriteLock)
    locks = {"read": kinds[0](client, path, name), "write": kinds[1](client, path, name)}
    log = os.open(log, os.O_WRONLY | os.O_APPEND)

    def note(words):
        os.write(log, (words + "\n").encode())

    def number():
        return int(client.get(value)[0])

    def hold(mode, pause):
        """Holds the lock once, and reads the protected value or increments it."""
        lock = locks[mode]
        lock.acquire()
        token = client.exists(path + "/" + lock.node).czxid
        letter = "W" if mode == "write" else "R"
        note(f"B {name} {letter} {token}")
        before = number()
        time.sleep(pause / 1000)
        if mode == "write":
            after = before + 1
            client.set(value, str(after).encode())
        else:
            after = number()
        note(f"E {name} {letter} {before} {after}")
        lock.release()

    say("ready")
    for line in sys.stdin:
        words = line.split()
        if words[0] in locks:
            lock = locks[words[0]]
            lock.acquire()
            say(f"held {path}/{lock.node}")
        elif words[0] == "release":
            locks[words[1]].release()
            say("released")
        elif words[0] == "contend":
            chance = random.Random(int(words[1]))
            end = time.monotonic() + int(words[2]) / 1000
            holds = 0
            while time.monotonic() < end or holds < 3:
                hold("write" if chance.randrange(3) == 0 else "read", chance.randrange(4))
                holds += 1
            say("done")
        else:
            raise ValueError(line)
    client.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
