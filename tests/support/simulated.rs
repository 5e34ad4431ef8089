//! Thousands of readers that keep their read locks between uses, and one writer, on the embedded ensemble in virtual
//! time. Use it to count the requests of clients that read often and seldom write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, sleep_until};
use zk_rwlock::{Memory, RwLock};

const DIRECTORY: &str = "/simulated";
const MINUTE: Duration = Duration::from_secs(60);

/// The counts of one minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minute {
    pub reads: u64,
    pub writes: u64,
    pub requests: u64,
}

/// Runs `clients` clients, each with a session of its own, that read once a second. A writer takes the lock once in
/// each minute whose element of `written` is `true`. Returns the counts of each minute.
///
/// The clock of the runtime must be paused.
pub async fn minutes(clients: usize, written: &[bool]) -> Vec<Minute> {
    let zk = Memory::new();
    let reads = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut readers = JoinSet::new();
    for _ in 0..clients {
        let lock = RwLock::builder(&zk.connect(), DIRECTORY).keep(10 * MINUTE).build().expect("valid");
        let reads = Arc::clone(&reads);
        readers.spawn(async move {
            let mut seconds = interval_at(began, Duration::from_secs(1));
            loop {
                seconds.tick().await;
                lock.read().await.expect("nothing is lost").release().await.expect("nothing is lost");
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let elsewhere = zk.connect();
    let writer = RwLock::new(&elsewhere, DIRECTORY).expect("valid");
    let mut minutes = Vec::new();
    let so_far = || (reads.load(Ordering::Relaxed), zk.requests());
    // The minutes start half a second after the first read, so that the writer comes between two reads.
    let mut starts = began + Duration::from_millis(500);
    for is_written in written {
        sleep_until(starts).await;
        let before = so_far();
        sleep_until(starts + MINUTE / 2).await;
        if *is_written {
            writer.write().await.expect("the lock is granted").release().await.expect("nothing is lost");
        }
        starts += MINUTE;
        sleep_until(starts - Duration::from_millis(1)).await;
        let after = so_far();
        minutes.push(Minute { reads: after.0 - before.0, writes: (*is_written).into(), requests: after.1 - before.1 });
    }
    readers.shutdown().await;
    minutes
}
