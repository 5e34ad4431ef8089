//! Calls with several effects, dropped between any two of them: after each request was carried out, and after each was
//! answered. Afterwards all of the effects have come, or none.

use std::cell::Cell;
use std::future::{Future, IntoFuture};
use std::rc::Rc;
use std::time::Duration;

use support::polled::now;
use support::wired::Wired;
use tokio::time::advance;
use tokio_test::task;
use zk_rwlock::once::OnceGuard;
use zk_rwlock::{Leadership, Memory, Mode, MultiLock, RwLock, Shared};

/// More steps than any of the calls takes. A step is the commit of one request, or the arrival of one reply.
const STEPS: usize = 100;

const PERIOD: Duration = Duration::from_secs(3_600);

/// Drops `call` after so many steps. Returns whether it was under way until then. Its requests are carried out.
fn dropped(wired: &Wired, call: impl IntoFuture, steps: usize) -> bool {
    wired.stall();
    let mut call = task::spawn(call.into_future());
    let mut is_under_way = call.poll().is_pending();
    for step in 0..steps {
        is_under_way &= wired.has_requests();
        match step % 2 {
            0 => wired.carry_out(),
            _ => _ = wired.deliver(),
        }
        while is_under_way && call.is_woken() {
            is_under_way = call.poll().is_pending();
        }
    }
    drop(call);
    wired.flow();
    while wired.deliver() {}
    is_under_way
}

/// Runs `case` for every number of steps, until the call ends before the drop.
async fn every_drop<F: Future<Output = bool>>(case: impl Fn(usize) -> F) {
    for steps in 0..STEPS {
        if !tokio::task::unconstrained(case(steps)).await {
            return assert!(steps > 1, "the call sent nothing");
        }
    }
    panic!("the call did not end within {STEPS} steps");
}

/// The end of a short term gives the lock back, and schedules a pause.
#[tokio::test(start_paused = true)]
async fn a_term_that_ends_at_any_drop_is_followed_by_its_pause() {
    let pause = Duration::from_secs(60);
    every_drop(|steps| async move {
        let wired = Wired::new(Memory::new());
        let candidate = Leadership::builder(&wired, "/leaders").pause(pause).build().expect("valid");
        let has_worked = Rc::new(Cell::new(false));
        let works = Rc::clone(&has_worked);
        let lead = candidate.lead(move |_term| {
            works.set(true);
            async {}
        });
        let is_under_way = dropped(&wired, lead, steps);
        assert_eq!(wired.memory.children("/leaders"), Vec::<String>::new(), "at step {steps}");
        let mut next = task::spawn(candidate.lead(|_term| std::future::pending::<()>()));
        assert!(next.poll().is_pending());
        assert_eq!(candidate.is_leader(), !has_worked.get(), "at step {steps}");
        advance(pause).await;
        assert!(next.poll().is_pending() && candidate.is_leader(), "at step {steps}");
        is_under_way
    })
    .await;
}

/// The acquisition and the release of several locks.
#[tokio::test(start_paused = true)]
async fn several_locks_are_all_given_back_after_any_drop() {
    let paths = ["/one", "/two", "/three"];
    for releases in [false, true] {
        every_drop(|steps| async move {
            let wired = Wired::new(Memory::new());
            let locks = paths.map(|path| (RwLock::new(&wired, path).expect("valid"), Mode::Write));
            let all = MultiLock::new(locks).expect("valid");
            let is_under_way = match releases {
                false => dropped(&wired, all.lock(), steps),
                true => {
                    let guard = now(all.lock()).expect("free");
                    dropped(&wired, guard.release(), steps)
                }
            };
            if is_under_way {
                let left = paths.map(|path| wired.memory.children(path).len());
                assert_eq!((left, wired.memory.watches()), ([0; 3], 0), "releases: {releases}, at step {steps}");
            }
            is_under_way
        })
        .await;
    }
}

/// An update commits, and gives the lock back.
#[tokio::test(start_paused = true)]
async fn an_update_is_done_once_or_not_after_any_drop() {
    every_drop(|steps| async move {
        let wired = Wired::new(Memory::new());
        let value = Shared::builder(&wired, "/value").initial(|| 10_u32).build().expect("valid");
        let is_under_way = dropped(&wired, value.update(|number| *number += 1), steps);
        let seen = *now(value.read()).expect("free");
        assert!(seen == 10 || seen == 11, "{seen} at step {steps}");
        now(value.update(|number| *number += 1)).expect("free");
        assert_eq!(*now(value.read()).expect("free"), seen + 1, "at step {steps}");
        assert_eq!(wired.memory.children("/value/lock"), Vec::<String>::new(), "at step {steps}");
        is_under_way
    })
    .await;
}

fn due(lock: &RwLock) -> OnceGuard {
    now(lock.write().once_in(PERIOD)).expect("free").due().expect("due")
}

/// A success is recorded in a record and in its twin, and both are forgotten together.
#[tokio::test(start_paused = true)]
async fn a_record_and_its_twin_are_both_there_or_not_after_any_drop() {
    for forgets in [false, true] {
        every_drop(|steps| async move {
            let wired = Wired::new(Memory::new());
            let lock = RwLock::new(&wired, "/cron/report").expect("valid");
            let guard = due(&lock);
            let is_under_way = if forgets {
                now(guard.done()).expect("recorded");
                drop(guard);
                dropped(&wired, lock.forget(), steps)
            } else {
                dropped(&wired, async { guard.done().await }, steps)
            };
            let nodes = wired.memory.children("/cron");
            let [record, twin] = ["report.done", "report.done.twin"].map(|name| nodes.iter().any(|node| node == name));
            assert_eq!(record, twin, "forgets: {forgets}, at step {steps}: {nodes:?}");
            is_under_way
        })
        .await;
    }
}
