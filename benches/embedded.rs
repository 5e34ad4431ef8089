//! Measures, without a server, how long a contender needs to decide whether it holds the lock, and how long the lock
//! needs on the embedded backend. The benchmarks only report times: they assert no limits.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tokio_test::{assert_pending, assert_ready_ok, task};
use zk_rwlock::coordinator::{Turn, turn};
use zk_rwlock::queue::NodeName;
use zk_rwlock::{Memory, RwLock};

/// Returns the names in a directory of `length` contenders, in no order, as a server lists them.
fn names(length: usize) -> Vec<String> {
    // 7919 has no common factor with `length`, a power of ten. So every number below `length` occurs once.
    let shuffled = (0..length).map(|i| i * 7919 % length);
    let mode = |number| if number % 3 == 0 { "WRITE" } else { "READ" };
    shuffled.map(|number| format!("web-{}~k3v9x2ma-{}-{number:010}", number % 7, mode(number))).collect()
}

/// Measures how long one contender needs to decide, from the listing of the directory, whether it holds the lock. The
/// time should grow linearly with the listing.
fn turns(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("turn");
    for length in [10, 100, 1_000, 10_000] {
        let queue = names(length);
        let last = queue.iter().filter_map(|name| NodeName::parse(name)).max_by_key(NodeName::sequence);
        let last = last.expect("the queue is not empty");
        assert!(matches!(turn(&last, &queue), Turn::Behind(_)));
        group.throughput(Throughput::Elements(length as u64));
        group.bench_with_input(BenchmarkId::from_parameter(length), &queue, |bencher, queue| {
            bencher.iter(|| turn(black_box(&last), black_box(queue)));
        });
    }
    group.finish();
}

fn parsing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse");
    for (what, name) in [
        ("contender", "web-1~k3v9x2ma-WRITE-0000000007"),
        ("host_that_looks_like_a_mode", "web-READ-0000000001-WRITE-2~k3v9x2ma-READ-2147483647"),
        ("stranger", "_c_3f1b7a52-52a4-4f2e-9c55-0b1de3c2a0d4-lock-0000000007"),
    ] {
        group.bench_function(what, |bencher| bencher.iter(|| NodeName::parse(black_box(name))));
    }
    group.finish();
}

/// Acquires and releases a free lock.
fn uncontended(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("embedded");
    let lock = RwLock::new(&Memory::new(), "/bench/free").expect("a valid path");
    group.bench_function("write_and_release", |bencher| {
        bencher.iter(|| pollster::block_on(async { lock.write().await?.release().await }).expect("free"));
    });
    group.bench_function("read_and_release", |bencher| {
        bencher.iter(|| pollster::block_on(async { lock.read().await?.release().await }).expect("free"));
    });
    group.bench_function("write_and_drop", |bencher| {
        bencher.iter(|| drop(pollster::block_on(lock.write().into_future()).expect("free")));
    });
    group.finish();
}

/// Measures from a writer's release until the next writer has its guard. The time should not grow with the queue.
fn hand_off(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hand_off");
    for length in [2, 10, 100, 1_000] {
        let zk = Memory::new();
        let lock = RwLock::new(&zk, "/bench/queue").expect("a valid path");
        group.bench_function(BenchmarkId::from_parameter(length), |bencher| {
            bencher.iter_custom(|hand_offs| {
                let mut elapsed = Duration::ZERO;
                let mut left = hand_offs;
                while left > 0 {
                    let mut held = pollster::block_on(lock.write().into_future()).expect("free");
                    // Only the first half of each queue is measured, so the queue never has less than half of its
                    // nominal length.
                    let mut waiters: Vec<_> = (1..length).map(|_| task::spawn(lock.write().into_future())).collect();
                    for waiter in &mut waiters {
                        assert_pending!(waiter.poll());
                    }
                    let measured = left.min((length as u64).div_ceil(2));
                    left -= measured;
                    let mut waiters = waiters.into_iter();
                    let began = Instant::now();
                    for mut next in waiters
                        .by_ref()
                        .take(usize::try_from(measured).expect("the number of iterations fits into usize"))
                    {
                        pollster::block_on(held.release()).expect("held");
                        held = assert_ready_ok!(next.poll());
                    }
                    elapsed += began.elapsed();
                    // The last waiter is dropped first, so that no dropped waiter becomes the next holder and has to release
                    // the lock.
                    waiters.rev().for_each(drop);
                }
                elapsed
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(30);
    targets = turns, parsing, uncontended, hand_off
}
criterion_main!(benches);
