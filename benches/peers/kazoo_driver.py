"""Puts kazoo's locks and semaphore through the workloads of benches/compare.py, which documents them."""

import os
import sys
import threading
import time

from kazoo.client import KazooClient

# The weight of a held write lock. A read lock weighs 1, and a permit a quarter of this. It is an error if the contenders
# together hold more than this weight.
ALL = 1_000_000
held, errors, counting = 0, 0, threading.Lock()


def count(weight):
    global held, errors
    with counting:
        held += weight
        errors += held > ALL


def start(n, work):
    def guarded(contender):
        global errors
        try:
            work(contender)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            errors += 1

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    return threads


def join(threads):
    for thread in threads:
        thread.join()


def measure(work):
    """Measures the work between two orders, and prints the figures."""
    print("ready", flush=True)
    sys.stdin.readline()
    processor, begun = time.process_time_ns(), time.perf_counter_ns()
    work()
    elapsed = time.perf_counter_ns() - begun
    print(elapsed, time.process_time_ns() - processor, errors, flush=True)
    sys.stdin.readline()


def main(servers, kind, *numbers):
    n, ops, sessions, warm, one_in, hold = map(int, numbers)
    path = f"/performance/kazoo-{os.getpid()}-{time.monotonic_ns()}"
    clients = [KazooClient(servers, timeout=30) for _ in range(sessions + 1)]
    for client in clients:
        client.start()
    first = clients[0].WriteLock(path) if one_in else clients[0].ReadLock(path)
    for _ in range(warm):
        first.acquire()
        first.release()
    drain, go, granted, all_in = kind == "drain", threading.Event(), [], threading.Event()

    def wait(i):
        lock = clients[i % sessions].WriteLock(path) if drain else clients[i % sessions].ReadLock(path)
        lock.acquire()
        count(ALL if drain else 1)
        granted.append(i)
        if len(granted) == n:
            all_in.set()
        if not drain:
            go.wait()
        count(-ALL if drain else -1)
        lock.release()

    def contend(i):
        client = clients[i % sessions]
        permit, write, read = client.Semaphore(path + "-permits", max_leases=4), client.WriteLock(path), client.ReadLock(path)
        go.wait()
        for k in range(ops // n):
            writes = one_in and ((k * n + i) * 0x9E3779B97F4A7C15 % 2**64 >> 32) % one_in == 0
            lock, weight = (permit, ALL // 4) if kind == "permits" else (write, ALL) if writes else (read, 1)
            lock.acquire()
            count(weight)
            if hold:
                time.sleep(hold / 1000)
            count(-weight)
            lock.release()

    if kind in ("drain", "readers"):
        gate = clients[sessions].WriteLock(path)
        gate.acquire()
        threads = start(n, wait)
        measure(lambda: (gate.release(), all_in.wait(), drain and join(threads)))
    else:
        threads = start(n, contend)
        measure(lambda: (go.set(), join(threads)))
    go.set()
    join(threads)
    for client in clients:
        client.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
