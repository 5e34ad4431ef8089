//! A process that is stopped and continues: its clock has advanced, and the reply that its work awaits has arrived, but
//! no timer has fired yet.

use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use support::polled::{now, write};
use support::slow::Slow;
use tokio_test::task::{self, Spawn};
use tokio_test::{assert_pending, assert_ready};
use zk_rwlock::{Error, Leadership, Loss, Memory, Mode, MultiLock, RwLock, Semaphore};

const PATH: &str = "/lock";

/// Longer than any lease.
const STOP: Duration = Duration::from_secs(60);

/// Stops the process and continues it: only the clock advances, and no timer fires.
fn stop_process() {
    assert_pending!(task::spawn(tokio::time::advance(STOP)).poll());
}

/// The moment at which the process is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    /// Between two polls, while the work waits for a reply. The reply has arrived when the process goes on.
    BetweenPolls,
    InTheLastPoll,
}

type Work = Pin<Box<dyn Future<Output = &'static str>>>;

/// Returns work that ends at its third poll, and the count of its polls.
fn work(stopped: Stopped) -> (Work, Arc<AtomicUsize>) {
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&polls);
    let work = poll_fn(move |_| {
        if counted.fetch_add(1, Ordering::SeqCst) < 2 {
            return Poll::Pending;
        }
        if stopped == Stopped::InTheLastPoll {
            stop_process();
        }
        Poll::Ready("done")
    });
    (Box::pin(work), polls)
}

/// Polls the work three times. The client is cut off before the second poll. With `Stopped::BetweenPolls`, the process
/// is stopped before the third poll.
fn run_until_stopped<F: Future>(zk: &Memory, runs: &mut Spawn<F>, stopped: Stopped) -> Poll<F::Output> {
    assert!(runs.poll().is_pending());
    zk.faults().cut();
    assert!(runs.poll().is_pending());
    if stopped == Stopped::BetweenPolls {
        stop_process();
    }
    runs.poll()
}

fn assert_lost<T: Debug>(answer: Result<T, Error>) {
    let lost = answer.expect_err("the lock was lost");
    let lost = if let Error::OneOfMany { error, .. } = lost { *error } else { lost };
    assert!(matches!(lost, Error::Lost(Loss::LeaseRanOut)), "{lost}");
}

/// Stops the process while work runs under the hold that `take` returns. Checks that the work is not polled again and
/// that `run` fails because the lock is lost.
fn assert_work_ends<H>(take: impl Fn(&Memory) -> H, run: impl AsyncFn(&H, Work) -> Result<&'static str, Error>) {
    for stopped in [Stopped::BetweenPolls, Stopped::InTheLastPoll] {
        let zk = Memory::new();
        let (hold, (work, polls)) = (take(&zk), work(stopped));
        let mut runs = task::spawn(run(&hold, work));
        assert_lost(assert_ready!(run_until_stopped(&zk, &mut runs, stopped)));
        let before = usize::from(stopped == Stopped::InTheLastPoll);
        assert_eq!(polls.load(Ordering::SeqCst), 2 + before, "{stopped:?}");
    }
}

fn lock(zk: &Memory) -> RwLock {
    RwLock::new(zk, PATH).expect("valid")
}

#[tokio::test(start_paused = true)]
async fn work_under_a_guard_ends_if_a_stop_costs_the_lock() {
    assert_work_ends(|zk| write(&lock(zk)), async |guard, work| guard.run(work).await);
    let kept = |zk: &Memory| RwLock::builder(zk, PATH).keep(STOP).build().expect("valid");
    assert_work_ends(|zk| write(&kept(zk)), async |guard, work| guard.run(work).await);
}

#[tokio::test(start_paused = true)]
async fn work_under_several_locks_ends_if_a_stop_costs_one() {
    let both = |zk: &Memory| {
        let other = RwLock::new(&zk.connect(), "/other").expect("valid");
        let both = MultiLock::new([(&lock(zk), Mode::Write), (&other, Mode::Read)]).expect("valid");
        now(both.lock()).expect("free")
    };
    assert_work_ends(both, async |guard, work| guard.run(work).await);
}

#[tokio::test(start_paused = true)]
async fn work_under_a_permit_ends_if_a_stop_costs_it() {
    let take = |zk: &Memory| now(Semaphore::new(zk, PATH, 1).expect("valid").acquire()).expect("free");
    assert_work_ends(take, async |permit, work| permit.run(work).await);
}

#[tokio::test(start_paused = true)]
async fn the_work_of_a_term_ends_if_a_stop_costs_the_term() {
    for stopped in [Stopped::BetweenPolls, Stopped::InTheLastPoll] {
        let zk = Memory::new();
        let leadership = Leadership::new(&zk, PATH).expect("valid");
        let (work, polls) = work(stopped);
        let mut work = Some(work);
        let mut leads = task::spawn(leadership.lead(|_| work.take().expect("one term")));
        assert_pending!(run_until_stopped(&zk, &mut leads, stopped), "the output of the work was returned");
        let before = usize::from(stopped == Stopped::InTheLastPoll);
        assert_eq!((polls.load(Ordering::SeqCst), leadership.is_leader()), (2 + before, false), "{stopped:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_in_a_stop_reads_and_reports_nothing() {
    let zk = Memory::new();
    let guard = RwLock::new(&Slow(zk.clone()), PATH).expect("valid").write().await.expect("free");
    let other = lock(&zk.connect());
    let (mut read, mut contended) = (task::spawn(guard.read_node("/config")), task::spawn(guard.contended()));
    assert_pending!(read.poll());
    assert_pending!(contended.poll());
    let _waits = task::spawn(async move { other.write().await }).poll();
    zk.faults().cut();
    stop_process();
    assert_lost(assert_ready!(read.poll()));
    assert_lost(assert_ready!(contended.poll()));
}

#[tokio::test(start_paused = true)]
async fn an_answered_commit_is_reported_despite_the_loss() {
    let zk = Memory::new();
    let guard = RwLock::new(&Slow(zk.clone()), PATH).expect("valid").write().await.expect("free");
    let mut commits = task::spawn(guard.transaction().create("/config", "v1").commit());
    assert_pending!(commits.poll());
    zk.faults().cut();
    stop_process();
    assert_ready!(commits.poll()).expect("the commit was done");
    assert_lost(guard.transaction().set("/config", "v2").commit().await);
}
