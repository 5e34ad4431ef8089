//! Durations of all lengths in every public option: each is refused with the reason or obeyed, and none overflows.

use std::future::IntoFuture;
use std::time::Duration;

use support::several::several;
use tokio::time::{sleep, timeout};
use tokio_test::{assert_pending, task};
use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{Error, Leadership, Memory, Mode, MultiLock, RwLock, Semaphore, Shared, ZooKeeper};

const SECOND: Duration = Duration::from_secs(1);
const YEARS: Duration = Duration::from_secs(500 * 365 * 24 * 60 * 60);
const LENGTHS: [Duration; 5] = [Duration::ZERO, Duration::from_nanos(1), SECOND, YEARS, Duration::MAX];

/// Longer than every finite duration that these tests use, and shorter than the practically endless ones. The time is
/// virtual.
const LONG: Duration = Duration::from_secs(60);

/// Returns the value, or `None` if an option was refused.
fn built<T>(built: Result<T, Error>) -> Option<T> {
    match built {
        Ok(built) => Some(built),
        Err(Error::InvalidInput(_)) => None,
        Err(other) => panic!("{other:?}"),
    }
}

/// Uses a lock in three ways: behind a holder that releases while the waiter is not polled; as a holder for a long time; and
/// behind a holder whose session ends.
async fn use_lock(lock: &RwLock, memory: &Memory) {
    let there = memory.connect();
    let other = RwLock::new(&there, lock.path()).expect("valid");
    let holder = other.write().await.expect("free");
    let mut waits = task::spawn(lock.write().into_future());
    assert_pending!(waits.poll());
    sleep(LONG).await;
    holder.release().await.expect("held");
    sleep(LONG).await;
    let guard = timeout(LONG, waits).await.expect("the waiter's turn has come").expect("granted");
    sleep(LONG).await;
    guard.release().await.expect("held");

    let _vanishes = other.write().await.expect("a kept node is given up when it is asked for or idle");
    let waits = lock.write().timeout(LONG);
    let vanishes = async {
        sleep(SECOND).await;
        there.faults().expire();
    };
    let (granted, ()) = tokio::join!(waits, vanishes);
    assert!(granted.expect("no contender is in the way").is_held());
}

#[tokio::test(start_paused = true)]
async fn options_of_any_length_are_refused_or_obeyed() {
    for one in LENGTHS {
        for other in LENGTHS {
            for idle in [None, Some(one), Some(other)] {
                let memory = Memory::new();
                let lock = RwLock::builder(&memory, "/lock").warn_after_waiting(one);
                let lock = idle.into_iter().fold(lock.warn_after_holding(other), |lock, idle| lock.keep(idle));
                if let Some(lock) = built(lock.build()) {
                    use_lock(&lock, &memory).await;
                }
            }
        }
        let memory = Memory::new();
        let open = |path| RwLock::builder(&memory, path).warn_after_waiting(one).warn_after_holding(one).build();
        if let (Some(first), Some(second)) = (built(open("/one")), built(open("/two"))) {
            let all = MultiLock::new([(first, Mode::Write), (second, Mode::Read)]).expect("two");
            let holder = RwLock::new(&memory.connect(), "/two").expect("valid").write().await.expect("free");
            let mut waits = task::spawn(all.lock().into_future());
            assert_pending!(waits.poll());
            holder.release().await.expect("held");
            sleep(LONG).await;
            drop(waits.await.expect("free"));
        }
        let permits = Semaphore::builder(&memory, "/permits")
            .lock(|lock| lock.warn_after_waiting(one))
            .lock(|lock| lock.warn_after_holding(one));
        if let Some(permits) = built(permits.permits(1).build()) {
            let held = permits.acquire().await.expect("free");
            let mut waits = task::spawn(permits.acquire().into_future());
            assert_pending!(waits.poll());
            sleep(LONG).await;
            held.release().await.expect("held");
            drop(waits.await.expect("free"));
        }
        if let Some(value) = built(Shared::builder(&memory, "/value").initial(|| 1).lock(|lock| lock.keep(one)).build())
        {
            assert_eq!(*value.read().await.expect("free"), 1);
            sleep(LONG).await;
            assert_eq!(*value.read().await.expect("free"), 1);
        }
        let leader = Leadership::builder(&memory, "/leader").pause(one).health(one.min(SECOND), || async { true });
        if let Some(leader) = built(leader.build()) {
            let terms = leader.lead(|_| async {
                sleep(SECOND).await;
                Ok::<(), Error>(())
            });
            timeout(LONG, terms).await.expect("one term").expect("granted");
            // The term took one second. A candidate pauses for `one` after a term that was no longer than `one`, so the
            // next term comes within the time only if `one` is at most `LONG`.
            let next = timeout(2 * LONG, leader.lead(|_| async {})).await;
            assert_eq!(next.is_err(), one > LONG, "{one:?}");
        }
    }
}

/// Checks that a call that could never be granted ended at its limit.
fn assert_limited<T>(limit: Duration, ended: Result<Result<T, Error>, tokio::time::error::Elapsed>) {
    match ended {
        Err(_still_waits) => assert!(limit > LONG, "{limit:?}"),
        Ok(Err(Error::InvalidInput(_))) => assert_eq!(limit, Duration::ZERO),
        Ok(Err(error)) => assert!(error.is_timeout() && limit < LONG, "{limit:?}: {error}"),
        Ok(Ok(_)) => panic!("{limit:?}: there was nothing to wait for"),
    }
}

#[tokio::test(start_paused = true)]
async fn limits_of_any_length_are_refused_or_obeyed() {
    let (memory, lock) = (Memory::new(), |zk: &Memory| RwLock::new(zk, "/lock").expect("valid"));
    let (ours, cut) = (lock(&memory), memory.connect());
    let _held = ours.write().await.expect("free");
    cut.faults().cut();
    for limit in LENGTHS {
        assert_limited(limit, timeout(LONG, lock(&memory.connect()).read().timeout(limit)).await);
        assert_limited(limit, timeout(LONG, lock(&cut).queue().timeout(limit)).await);
        let both = several(&memory.connect(), [("/free", Mode::Write), ("/lock", Mode::Write)]).expect("valid");
        assert_limited(limit, timeout(LONG, both.lock().timeout(limit)).await);
        drop(memory.connect().sleep(limit));
    }
}

#[tokio::test(start_paused = true)]
async fn a_period_of_any_length_counts_at_any_clock_step() {
    for period in LENGTHS {
        for step in LENGTHS {
            let memory = Memory::new();
            let lock = RwLock::new(&memory, "/job").expect("valid");
            let Some(due) = built(lock.write().once_in(period).await) else {
                assert_eq!(period, Duration::ZERO);
                continue;
            };
            due.due().expect("never done").done().await.expect("recorded");
            memory.faults().set_clock_forward(step);
            let is_due = lock.try_once_in(period).await.expect("free").is_due();
            let since = if step > YEARS { YEARS * 10 } else { step };
            assert!(!is_due || since + SECOND > period, "{period:?} {step:?}");
            assert!(is_due || since <= period, "{period:?} {step:?}");
            memory.faults().set_clock_back(step);
            memory.faults().set_clock_back(step);
            drop(lock.try_once_in(period).await.expect("free"));
        }
    }
}

#[support::judged]
async fn connection_options_of_any_length_are_handled() {
    for length in LENGTHS {
        let new = || ZooKeeper::builder().connect_timeout(Duration::from_millis(50));
        for builder in [new().session_timeout(length), new().tick_time(length), new().stop_margin(length)] {
            match builder.connect("127.0.0.1:1").await {
                Err(Error::InvalidInput(_)) => assert_ne!(length, SECOND),
                Err(Error::Unreachable(_)) => assert_eq!(length, SECOND),
                other => panic!("{length:?}: {other:?}"),
            }
        }
        let mut waits = task::spawn(ZooKeeper::builder().connect_timeout(length).connect("127.0.0.1:1"));
        let long = if length < SECOND { 60 * SECOND } else { SECOND / 2 };
        match timeout(long, &mut waits).await {
            Ok(Err(Error::InvalidInput(_))) => assert_eq!(length, Duration::ZERO),
            Ok(Err(Error::Unreachable(why))) => {
                assert!(why.contains("within ") && length <= SECOND, "{length:?}: {why}")
            }
            Ok(other) => panic!("{length:?}: {other:?}"),
            Err(_still_tries) => assert!(length >= SECOND, "{length:?}"),
        }
    }
}
