//! Threads that share a kept node (a node that its process keeps between uses), while other contenders ask all the time
//! that it be given up. The tests use the embedded ensemble without a tokio runtime.
//!
//! `KEPT_SECONDS` sets the duration.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use support::safe;
use support::scene::Seeded;
use tokio_test::task;
use zk_rwlock::{Error, Memory, RwLock};

const DIRECTORY: &str = "/lock";
const WRITES: i64 = -1_000_000;

/// The current holders: the number of readers, or [`WRITES`] for a writer.
#[derive(Default)]
struct Holders {
    now: AtomicI64,
    grants: AtomicU64,
}

impl Holders {
    fn read<G>(&self, guard: Result<G, Error>) {
        let guard = guard.expect("an acquisition fails only by its timeout");
        safe!(self.now.fetch_add(1, Ordering::SeqCst) >= 0, "a reader and a writer hold together");
        thread::yield_now();
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.grants.fetch_add(1, Ordering::Relaxed);
        drop(guard);
    }

    fn write<G>(&self, guard: Result<G, Error>) {
        let guard = guard.expect("an acquisition fails only by its timeout");
        safe!(self.now.swap(WRITES, Ordering::SeqCst) == 0, "a writer and another holder hold together");
        thread::yield_now();
        safe!(self.now.swap(0, Ordering::SeqCst) == WRITES, "another holder joined a writer");
        self.grants.fetch_add(1, Ordering::Relaxed);
        drop(guard);
    }
}

/// Uses the lock in all ways until `is_over` is set.
fn use_lock(lock: &RwLock, holders: &Holders, mut dice: Seeded, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        match dice.below(16) {
            0..=8 => holders.read(lock.read().blocking()),
            9..=11 => holders.write(lock.write().blocking()),
            12 => match lock.read().timeout(Duration::from_micros(dice.below(300) + 1)).blocking() {
                Err(error) if error.is_timeout() => {}
                granted => holders.read(granted),
            },
            13 => match lock.try_write().blocking() {
                Err(error) if error.is_would_block() => {}
                granted => holders.write(granted),
            },
            // The acquisition is dropped after its first poll, whether granted or not.
            14 => drop(task::spawn(lock.read().into_future()).poll()),
            _ => drop(task::spawn(lock.write().into_future()).poll()),
        }
    }
}

#[support::judged]
fn threads_with_a_kept_node_exclude_and_never_hang() {
    let seconds = std::env::var("KEPT_SECONDS").ok().map_or(2, |it| it.parse().expect("a number"));
    let zk = Memory::new();
    let (holders, is_over) = (Holders::default(), AtomicBool::new(false));
    let open = |client: &Memory, keeps: bool| {
        let lock = RwLock::builder(client, DIRECTORY);
        if keeps { lock.keep(Duration::from_secs(60)) } else { lock }.build().expect("valid")
    };
    let other = zk.connect();
    let kept = open(&zk, true);
    // The first of these contenders shares the session of the kept node, so it asks for the node without a request to
    // the ensemble.
    let askers = [open(&zk, false), open(&other, false), open(&other, true)];
    let (ended, ends) = mpsc::channel();
    thread::scope(|scope| {
        let locks = std::iter::repeat_n(&kept, 8).chain(&askers);
        let threads = locks.enumerate().map(|(number, lock)| {
            let (holders, is_over, ended) = (&holders, &is_over, ended.clone());
            scope.spawn(move || {
                use_lock(lock, holders, Seeded(number as u64), is_over);
                let _nobody_waits_any_more = ended.send(());
            })
        });
        let threads = threads.count();
        thread::sleep(Duration::from_secs(seconds));
        is_over.store(true, Ordering::Relaxed);
        let limit = Instant::now() + Duration::from_secs(120);
        for number in 0..threads {
            if ends.recv_timeout(limit.saturating_duration_since(Instant::now())).is_err() {
                eprintln!("only {number} of {threads} threads came to an end: {:?}", zk.children(DIRECTORY));
                // Ends the process, because nothing else can end the threads that hang.
                std::process::exit(1);
            }
        }
    });
    println!("{} grants", holders.grants.load(Ordering::Relaxed));
    drop((kept, askers));
    assert_eq!((zk.children(DIRECTORY), zk.watches()), (Vec::new(), 0), "a node or a watch is left");
}
