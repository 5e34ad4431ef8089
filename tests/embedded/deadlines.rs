//! One time limit over all tries of a call: every call with a `timeout` ends within it, however slow its requests are,
//! and whatever makes it try again.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use support::polled::now;
use support::wired::Wired;
use tokio::time::{Instant, advance};
use tokio_test::task;
use zk_rwlock::coordinator::{Coordinator, Operation};
use zk_rwlock::{Error, Leadership, Memory, Mode, MultiLock, RwLock, Semaphore, Shared, Survey};

const LOCK: &str = "/deadlines/lock";
const OTHER: &str = "/deadlines/other";
const LIMIT: &str = "/deadlines/limit";
const VALUE: &str = "/deadlines/value";

/// The time limit of each call. Longer than several session timeouts, so that a call has time for several sessions.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The test's clock moves by this time at once, so a call is seen to end at most so much later.
const SLICE: Duration = Duration::from_millis(500);

type Answer = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// What goes wrong again and again while a call is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    /// The server never answers from a request on.
    Silence(usize),
    /// A stranger writes the value, the number of permits, and the directories before each request.
    Rewriting,
    /// The session ends after so many requests.
    Expiring(usize),
    /// The connection breaks after so many requests, and is back at once.
    Breaking(usize),
}

const TROUBLES: [Trouble; 9] = [
    Trouble::None,
    Trouble::Silence(0),
    Trouble::Silence(2),
    Trouble::Silence(5),
    Trouble::Rewriting,
    Trouble::Expiring(2),
    Trouble::Expiring(4),
    Trouble::Breaking(1),
    Trouble::Breaking(3),
];

/// How long each request takes. A call of several requests, or of several tries, exceeds its limit with the longer ones.
const TIMES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(13)];

fn lock<C: Coordinator + Clone>(zk: &C, path: &str) -> RwLock {
    RwLock::new(zk, path).expect("valid")
}

fn value<C: Coordinator + Clone>(zk: &C) -> Shared<u32> {
    Shared::builder(zk, VALUE).initial(|| 1).build().expect("valid")
}

/// Returns every call with a time limit, by name.
fn calls(zk: &Wired) -> Vec<(&'static str, Answer)> {
    let mut calls: Vec<(&'static str, Answer)> = Vec::new();
    macro_rules! calls {
        ($($name:literal: $call:expr),* $(,)?) => {
            $(calls.push(($name, {
                let call = $call.timeout(TIMEOUT).into_future();
                Box::pin(async move { call.await.map(drop) })
            }));)*
        };
    }
    let (one, other, limit, value) =
        (lock(zk, LOCK), lock(zk, OTHER), Semaphore::new(zk, LIMIT, 1).expect("valid"), value(zk));
    let kept = RwLock::builder(zk, LOCK).keep(TIMEOUT).build().expect("valid");
    let both = MultiLock::new([(&one, Mode::Write), (&other, Mode::Read)]).expect("valid");
    let leadership = Leadership::new(zk, LOCK).expect("valid");
    let period = Duration::from_secs(3_600);
    calls! {
        "read": one.read(),
        "write": one.write(),
        "read kept": kept.read(),
        "write kept": kept.write(),
        "try_read": one.try_read(),
        "try_write": one.try_write(),
        "once_in": one.write().once_in(period),
        "try_once_in": one.try_once_in(period),
        "queue": one.queue(),
        "evict": one.evict(1),
        "forget": one.forget(),
        "ask": one.ask(),
        "survey": Survey::below(zk, "/deadlines"),
        "multi": both.lock(),
        "try multi": both.try_lock(),
        "leader": leadership.leader(),
        "acquire": limit.acquire(),
        "try_acquire": limit.try_acquire(),
        "permits": limit.permits(),
        "set_permits": limit.set_permits(2),
        "evict a permit": limit.evict(1),
        "value read": value.read(),
        "value write": value.write(),
        "value replacing": value.write().replacing(7),
        "value try_read": value.try_read(),
        "value try_write": value.try_write(),
        "update": value.update(|number| *number += 1),
        "live": value.live(),
        "wait_for": value.wait_for(|number| *number > 1_000),
    }
    calls
}

/// Makes the directories and the value, so that a stranger can write them.
fn made() -> Memory {
    let zk = Memory::new();
    for path in [LOCK, OTHER] {
        drop(now(lock(&zk, path).write()).expect("free"));
    }
    drop(now(Semaphore::new(&zk, LIMIT, 1).expect("valid").acquire()).expect("free"));
    drop(now(value(&zk).read()).expect("free"));
    zk
}

async fn rewrite(zk: &Memory) {
    let slot = zk.session_slot(0).await.expect("open");
    let session = slot.session();
    for path in [LOCK, OTHER, LIMIT, "/deadlines/value/value"] {
        if let Ok((data, _)) = session.data(path).await {
            session.transact(&[Operation::Set { path: path.to_owned(), data, version: None }]).await.expect("there");
        }
    }
}

/// A call, how long each of its requests takes, and what goes wrong.
#[derive(Clone, Copy, Debug)]
struct Case {
    call: &'static str,
    takes: Duration,
    trouble: Trouble,
    /// Whether other contenders hold what the call acquires.
    is_taken: bool,
}

/// Runs a case. Returns how long the call took.
async fn run(case: Case) -> Duration {
    let zk = made();
    let _holders = case.is_taken.then(|| {
        let guard = now(lock(&zk, LOCK).write()).expect("free");
        let permit = now(Semaphore::new(&zk, LIMIT, 1).expect("valid").acquire()).expect("free");
        (guard, permit, now(value(&zk).write()).expect("free"))
    });
    let wired = Wired::new(zk.connect());
    // The session begins now.
    drop(wired.session_slot(0).await.expect("open"));
    let call = calls(&wired).into_iter().find(|(name, _)| *name == case.call).expect("listed").1;
    wired.stall();
    let (mut call, mut is_new) = (task::spawn(call), true);
    let (began, mut requests) = (Instant::now(), 0);
    let mut sent = began;
    loop {
        while std::mem::take(&mut is_new) || call.is_woken() {
            if let Poll::Ready(answer) = call.poll() {
                let took = began.elapsed();
                let words = answer.map_or_else(|error| error.to_string(), |()| "done".to_owned());
                assert!(took <= TIMEOUT + SLICE, "ended {took:?} after it began: {words}: {case:?}");
                return took;
            }
        }
        assert!(began.elapsed() <= 4 * TIMEOUT, "does not end: {case:?}");
        if !wired.has_requests() {
            sent = Instant::now();
        }
        advance(SLICE).await;
        let is_silent = matches!(case.trouble, Trouble::Silence(from) if requests >= from);
        if !wired.has_requests() || is_silent || sent.elapsed() < case.takes {
            continue;
        }
        if case.trouble == Trouble::Rewriting {
            rewrite(&zk).await;
        }
        wired.deliver();
        (requests, sent) = (requests + 1, Instant::now());
        match case.trouble {
            Trouble::Expiring(each) if requests % each == 0 => wired.memory.faults().expire(),
            Trouble::Breaking(each) if requests % each == 0 => {
                wired.cut(0);
                wired.memory.faults().heal();
            }
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_call_ends_within_its_limit_however_often_it_tries() {
    let names: Vec<_> = calls(&Wired::new(Memory::new())).iter().map(|(name, _)| *name).collect();
    let (mut runs, mut late) = (0, 0);
    for call in names {
        for trouble in TROUBLES {
            for takes in TIMES {
                // A call that waits for others sends few requests.
                let waits = [Trouble::None, Trouble::Rewriting, Trouble::Expiring(2)].contains(&trouble);
                for is_taken in if waits { &[false, true][..] } else { &[false] } {
                    let case = Case { call, takes, trouble, is_taken: *is_taken };
                    let took = tokio::task::unconstrained(run(case)).await;
                    runs += 1;
                    late += usize::from(took >= TIMEOUT);
                }
            }
        }
    }
    println!("{runs} calls, {late} of them until their limit");
    assert!(late > runs / 4, "the requests were too fast: {late} of {runs}");
}
