//! The basic tools of a test of locks. They open sessions and locks, run acquisitions as tasks, and wait for a
//! condition instead of sleeping.

use std::fmt::Debug;
use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use zk_rwlock::coordinator::{Coordinator, Failure, Session};
use zk_rwlock::queue::MemberState;
use zk_rwlock::{Error, Mode, ReadGuard, RwLock, WriteGuard, ZooKeeper};

use super::standstill::StandstillLimit;

/// The time limit for an event that must occur. The limit only ends a hanging test, and is no measure of speed.
pub const SOON: Duration = Duration::from_secs(20);

/// A session timeout so long that, during a test, no session expires and no heartbeat is sent.
pub const CALM: Duration = Duration::from_secs(60);

/// The pause between two checks of a condition.
const INTERVAL: Duration = Duration::from_millis(5);

pub async fn connect(address: &str) -> ZooKeeper {
    connect_with(address, CALM).await
}

pub async fn connect_with(address: &str, session_timeout: Duration) -> ZooKeeper {
    let builder = ZooKeeper::builder().session_timeout(session_timeout).connect_timeout(SOON);
    builder.connect(address).await.expect("the server can be reached")
}

pub fn lock_at(zk: &ZooKeeper, directory: &str) -> RwLock {
    RwLock::new(zk, directory).expect("a valid path")
}

/// Waits for a future, and returns its output. Fails after [`SOON`].
pub async fn soon<F: IntoFuture>(what: &str, future: F) -> F::Output {
    within(SOON, what, future).await
}

pub async fn within<F: IntoFuture>(limit: Duration, what: &str, future: F) -> F::Output {
    let mut future = std::pin::pin!(future.into_future());
    let mut limit_left = StandstillLimit::new(limit);
    loop {
        match timeout(StandstillLimit::LOOK, &mut future).await {
            Ok(output) => return output,
            Err(_) => assert!(!limit_left.is_over(Instant::now().into_std()), "{what}: not within {limit:?}"),
        }
    }
}

/// Calls `attempt` until it succeeds, with a time limit that doubles each time, up to a minute. On a busy machine the
/// first limits may be too short.
pub async fn with_time_enough<T, E: Debug>(
    first: Duration,
    mut attempt: impl AsyncFnMut(Duration) -> Result<T, E>,
) -> T {
    let mut told = Vec::new();
    let limits = std::iter::successors(Some(first), |limit| Some(*limit * 2));
    for limit in limits.take_while(|limit| *limit <= Duration::from_secs(60)) {
        match attempt(limit).await {
            Ok(said) => return said,
            Err(other) => told.push(other),
        }
    }
    panic!("{told:#?}");
}

/// Waits until the condition is met. Fails after [`SOON`].
pub async fn eventually<C, F>(what: &str, condition: C)
where
    C: Fn() -> F,
    F: Future<Output = bool>,
{
    becomes(what, condition, |is_met| *is_met).await;
}

/// Calls `look` again and again until `is_right` accepts its value. Fails after [`SOON`].
async fn becomes<T: Debug, F: Future<Output = T>>(what: &str, look: impl Fn() -> F, is_right: impl Fn(&T) -> bool) {
    let mut limit_left = StandstillLimit::new(SOON);
    loop {
        let seen = look().await;
        if is_right(&seen) {
            return;
        }
        assert!(!limit_left.is_over(Instant::now().into_std()), "{what}: not within {SOON:?}, it is {seen:?}");
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Returns a session of this client, with which a test reads and writes nodes directly, as an operator does.
pub async fn session(zk: &ZooKeeper) -> Arc<dyn Session> {
    Arc::clone(zk.session_slot(0).await.expect("the session is alive").session())
}

/// Returns the names in a lock's directory. Returns no names if the directory does not exist.
pub async fn children(zk: &ZooKeeper, directory: &str) -> Vec<String> {
    loop {
        match session(zk).await.children(directory).await {
            Ok(children) => return children,
            Err(Failure::NoNode) => return Vec::new(),
            // Retries: on a busy machine a server may close the connection of a client that it hears from too late.
            Err(Failure::Unknown(_)) => tokio::time::sleep(INTERVAL).await,
            Err(failure) => panic!("{directory} cannot be listed: {failure}"),
        }
    }
}

pub async fn becomes_empty(zk: &ZooKeeper, directory: &str) {
    becomes(&format!("{directory} without children"), || children(zk, directory), Vec::is_empty).await;
}

/// Returns the queue in order: for each contender its mode, and `+` if it holds or `-` if it waits.
pub async fn line(lock: &RwLock) -> String {
    let queue = lock.queue().await.expect("the queue can be read");
    let words: Vec<String> = queue
        .members
        .iter()
        .map(|member| {
            let mode = if member.mode == Mode::Read { 'R' } else { 'W' };
            let state = if member.state == MemberState::Holds { '+' } else { '-' };
            format!("{mode}{state}")
        })
        .collect();
    words.join(" ")
}

/// Waits until the queue is `expected`, in the notation of [`line`].
pub async fn line_becomes(lock: &RwLock, expected: &str) {
    becomes(&format!("the queue {expected:?}"), || line(lock), |line| line == expected).await;
}

/// Starts a write acquisition in a task of its own.
pub fn writer(lock: &RwLock) -> JoinHandle<Result<WriteGuard, Error>> {
    tokio::spawn(lock.write().into_future())
}

/// Starts a read acquisition in a task of its own.
pub fn reader(lock: &RwLock) -> JoinHandle<Result<ReadGuard, Error>> {
    tokio::spawn(lock.read().into_future())
}

/// Waits for an acquisition, and returns its guard. Fails if the acquisition fails, or after [`SOON`].
pub async fn granted<G>(task: JoinHandle<Result<G, Error>>) -> G {
    soon("the grant", task).await.expect("the task does not panic").expect("the lock is granted")
}

/// Waits for an acquisition that must fail, and returns its error. Fails if the acquisition is granted, or after
/// [`SOON`].
pub async fn refused<G>(task: JoinHandle<Result<G, Error>>) -> Error {
    match soon("the refusal", task).await.expect("the task does not panic") {
        Ok(_) => panic!("the lock was granted"),
        Err(error) => error,
    }
}

/// Random numbers from a seed (SplitMix64).
#[derive(Debug)]
pub struct Seeded(pub u64);

impl Seeded {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
