"""One contender for the leases of kazoo's semaphore: see benches/permits.rs.

Arguments: servers, path, number of leases, for how many milliseconds to contend, and how long to hold each time.
"""

import sys
import time

from kazoo.client import KazooClient


def main(servers, path, leases, lasts, hold):
    client = KazooClient(servers, timeout=30)
    client.start()
    semaphore = client.Semaphore(path, max_leases=int(leases))
    for _ in range(10):
        semaphore.acquire()
        semaphore.release()
    print("ready", flush=True)
    sys.stdin.readline()
    holds = []
    end = time.monotonic_ns() + int(lasts) * 1_000_000
    while time.monotonic_ns() < end:
        semaphore.acquire()
        begun = time.monotonic_ns()
        time.sleep(int(hold) / 1000)
        holds.append(f"{begun} {time.monotonic_ns()}")
        semaphore.release()
    print("\n".join(holds), flush=True)
    client.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
