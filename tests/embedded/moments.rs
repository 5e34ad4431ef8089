//! Time that passes while a request is sent and not carried out, and while it is carried out and not answered: at every
//! request of a call, by several durations. What a call decides by a time must count from the right moment.

use std::future::IntoFuture;
use std::task::Poll;
use std::time::Duration;

use support::polled::now;
use support::wired::Wired;
use tokio::time::{Instant, advance};
use tokio_test::task::{self, Spawn};
use zk_rwlock::once::OnceGuard;
use zk_rwlock::{Memory, RwLock, WriteGuard};

const PATH: &str = "/cron/report";

const MINUTE: Duration = Duration::from_secs(60);

/// Work that is done once in this time.
const PERIOD: Duration = Duration::from_secs(50 * 60);

/// How long a request takes until it is carried out, and until it is answered. One is shorter than the period, and one
/// is longer.
const TIMES: [Duration; 3] = [Duration::ZERO, Duration::from_secs(20 * 60), Duration::from_secs(70 * 60)];

/// The request that takes long, as its place among the requests of the call, and how long it takes.
#[derive(Clone, Copy, Debug)]
struct Slow {
    request: usize,
    until_carried_out: Duration,
    until_answered: Duration,
}

impl Slow {
    /// Returns all pairs of times for this request.
    fn all(request: usize) -> impl Iterator<Item = Slow> {
        let pairs = TIMES.into_iter().flat_map(|first| TIMES.into_iter().map(move |second| (first, second)));
        let slow = move |(until_carried_out, until_answered)| Slow { request, until_carried_out, until_answered };
        pairs.map(slow)
    }
}

/// Lets time pass, also on the ensemble's clock.
async fn pass(zk: &Memory, time: Duration) {
    zk.faults().set_clock_forward(time);
    advance(time).await;
}

/// A call whose requests are carried out and answered one at a time, and one of them slowly.
struct Driven<F: Future> {
    wired: Wired,
    call: Spawn<F>,
    is_new: bool,
    slow: Slow,
    /// The number of requests that were answered so far.
    answered: usize,
}

impl<F: Future> Driven<F> {
    fn new(wired: &Wired, call: impl IntoFuture<IntoFuture = F>, slow: Slow) -> Driven<F> {
        wired.stall();
        Driven { wired: wired.clone(), call: task::spawn(call.into_future()), is_new: true, slow, answered: 0 }
    }

    /// Polls the call until it ends, or until none of its requests is under way. Calls `observe` after each commit.
    async fn drive(&mut self, zk: &Memory, mut observe: impl FnMut()) -> Option<F::Output> {
        loop {
            while std::mem::take(&mut self.is_new) || self.call.is_woken() {
                if let Poll::Ready(output) = self.call.poll() {
                    self.wired.flow();
                    while self.wired.deliver() {}
                    return Some(output);
                }
            }
            if !self.wired.has_requests() {
                return None;
            }
            let is_slow = self.answered == self.slow.request;
            if is_slow {
                pass(zk, self.slow.until_carried_out).await;
            }
            self.wired.carry_out();
            observe();
            if is_slow {
                pass(zk, self.slow.until_answered).await;
            }
            self.wired.deliver();
            self.answered += 1;
        }
    }
}

fn open(client: &Memory) -> RwLock {
    RwLock::new(client, PATH).expect("valid")
}

fn due(lock: &RwLock) -> OnceGuard {
    now(lock.write().once_in(PERIOD)).expect("granted").due().expect("due")
}

/// What happens before and while a contender asks whether the work is due.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// The time since the work was done last.
    age: Duration,
    /// How long another contender holds the lock and does the work while this one waits. With `None` nobody does.
    works_for: Option<Duration>,
    /// Whether the answer to the create is lost.
    is_lost: bool,
    slow: Slow,
}

/// Runs a case. Returns the number of requests that the call has sent.
async fn once(case: Case) -> usize {
    let zk = Memory::new();
    let (worker, wired) = (open(&zk.connect()), Wired::new(zk.connect()));
    let began = Instant::now();
    let mut done_at = Duration::ZERO;
    let guard = due(&worker);
    now(guard.done()).expect("recorded");
    now(guard.release()).expect("held");
    pass(&zk, case.age).await;
    let working = match case.works_for {
        None => None,
        Some(_) => {
            pass(&zk, PERIOD).await;
            Some(due(&worker))
        }
    };
    let lock = RwLock::new(&wired, PATH).expect("valid");
    if case.is_lost {
        wired.memory.faults().lose_next_reply();
    }
    let mut call = Driven::new(&wired, lock.write().once_in(PERIOD), case.slow);
    let mut committed_at = None;
    let contenders = zk.children(PATH).len();
    let mut observe = || {
        if zk.children(PATH).len() > contenders {
            committed_at.get_or_insert(began.elapsed());
        }
    };
    let mut ended = call.drive(&zk, &mut observe).await;
    if let (Some(guard), Some(works_for)) = (working, case.works_for) {
        assert!(ended.is_none(), "the lock is taken");
        pass(&zk, works_for).await;
        now(guard.done()).expect("recorded");
        done_at = began.elapsed();
        now(guard.release()).expect("held");
        ended = call.drive(&zk, &mut observe).await;
    }
    let work = ended.expect("the lock is free").expect("granted");
    let (committed_at, at) = (committed_at.expect("its node was created"), began.elapsed());
    // The work is never done twice in a period.
    assert!(!work.is_due() || at - done_at >= PERIOD, "due {:?} after it was done", at - done_at);
    let was_due = committed_at.checked_sub(done_at).is_some_and(|age| age >= PERIOD);
    assert!(work.is_due() || !was_due, "the period was over when the contender queued up");
    drop(work);
    call.answered
}

#[tokio::test(start_paused = true)]
async fn work_is_done_once_in_a_period_however_slow_a_request_is() {
    let all = async {
        let mut cases = 0;
        for is_lost in [false, true] {
            for minutes in [0, 20, 40, 49, 51] {
                for works_for in [None, Some(Duration::ZERO), Some(30 * MINUTE), Some(60 * MINUTE)] {
                    // What was done before another contender works does not matter.
                    if works_for.is_some() && minutes > 0 {
                        continue;
                    }
                    let mut requests = 1;
                    let mut request = 0;
                    while request < requests {
                        for slow in Slow::all(request) {
                            let case = Case { age: minutes * MINUTE, works_for, is_lost, slow };
                            requests = once(case).await;
                            cases += 1;
                        }
                        request += 1;
                    }
                }
            }
        }
        cases
    };
    let cases: usize = tokio::task::unconstrained(all).await;
    println!("{cases} cases");
    assert!(cases > 500, "{cases}");
}

/// Acquires a lock that is held for at most a period, and returns the number of requests that this has taken. The hold
/// must last for the whole period from its grant.
async fn hold(slow: Slow, keep: Option<Duration>) -> usize {
    let zk = Memory::new();
    let wired = Wired::new(zk.connect());
    drop(now(open(&zk).write()).expect("free"));
    let lock = RwLock::builder(&wired, PATH).max_hold(PERIOD);
    let lock = keep.into_iter().fold(lock, zk_rwlock::RwLockBuilder::keep).build().expect("valid");
    let mut call = Driven::new(&wired, lock.write(), slow);
    let guard: WriteGuard = call.drive(&zk, || {}).await.expect("nobody else waits").expect("granted");
    pass(&zk, PERIOD - MINUTE).await;
    assert!(guard.is_held(), "the hold ended too early: {slow:?}, kept: {keep:?}");
    if keep.is_some() {
        drop(guard);
        pass(&zk, PERIOD - MINUTE).await;
        assert!(!zk.children(PATH).is_empty(), "the node was idle for less than its idle time: {slow:?}");
        pass(&zk, 2 * MINUTE).await;
        assert!(zk.children(PATH).is_empty(), "the node was idle for longer than its idle time: {slow:?}");
    } else {
        pass(&zk, 2 * MINUTE).await;
        assert!(!guard.is_held(), "the hold ended too late: {slow:?}");
    }
    call.answered
}

#[tokio::test(start_paused = true)]
async fn a_hold_and_an_idle_time_last_their_whole_time_however_slow_a_request_is() {
    for keep in [None, Some(PERIOD)] {
        let mut request = 0;
        while request < tokio::task::unconstrained(hold(Slow::all(request).next().expect("a pair"), keep)).await {
            for slow in Slow::all(request) {
                tokio::task::unconstrained(hold(slow, keep)).await;
            }
            request += 1;
        }
        assert!(request > 1, "{request} requests");
    }
}
