//! Tests on many threads with readers, writers and handles that keep their nodes between uses, in one session and in
//! several. Acquisitions are dropped at any poll, or time out. Guards are downgraded, shared and lost.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::thread;
use zk_rwlock::{Error, Memory, RwLock};

use crate::explore::{explore, replay_each};
use crate::witness::Witness;
use crate::world::{Client, World, draw, let_others_run, spawn, warned};

const PATH: &str = "/lock";
/// The duration of the tests' own timers. A timer fires when the schedule lets it, and the clock then shows its end.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// Polls a future up to `polls` times, and drops it if it is not ready then.
pub(crate) async fn cut_short<T>(polls: usize, future: impl IntoFuture<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future.into_future()), polls);
    std::future::poll_fn(move |context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => {
            // Other threads run before the drop, so that the event for which the future waits may arrive first.
            let_others_run(8);
            Poll::Ready(None)
        }
        Poll::Pending => {
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

/// The number of ways to use the lock: see [`one_use`].
const KINDS: usize = 11;

/// Uses the lock once. `kind` selects the way.
async fn one_use(kind: usize, lock: &RwLock, witness: &Witness) -> Result<(), Error> {
    match kind {
        0 => drop(witness.works(lock.write().await?)),
        1 => drop(witness.works(lock.read().await?)),
        2 => witness.works(lock.write().await?).release().await?,
        3 => witness.works(lock.read().await?).release().await?,
        4 => drop(witness.works(witness.works(lock.write().await?).downgrade().await?)),
        5 => {
            let first = lock.read().await?;
            let second = first.share();
            drop(witness.works(first));
            witness.works(second).release().await?;
        }
        6 => {
            let guard = lock.write().await?;
            let _contended = cut_short(draw(4), guard.contended()).await.transpose()?;
            drop(witness.works(guard));
        }
        7 => match lock.write().timeout(LONG).await {
            Err(Error::Timeout { .. }) => {}
            granted => drop(witness.works(granted?)),
        },
        8 => match lock.try_write().await {
            Err(Error::WouldBlock { .. } | Error::Unreachable(_)) => {}
            granted => drop(witness.works(granted?)),
        },
        9 => drop(cut_short(draw(8), lock.write()).await.transpose()?.map(|guard| witness.works(guard))),
        _ => drop(cut_short(draw(8), lock.read()).await.transpose()?.map(|guard| witness.works(guard))),
    }
    Ok(())
}

/// Causes faults of one random kind in the clients' sessions, and repairs them.
pub(crate) fn troubles(clients: &[Client; 2]) {
    let kind = draw(5);
    for _ in 0..3 {
        trouble(kind, &clients[draw(2)].memory);
    }
}

fn trouble(kind: usize, memory: &Memory) {
    match kind {
        0 => memory.faults().expire(),
        1 => {
            memory.faults().cut();
            thread::yield_now();
            memory.faults().heal();
        }
        2 => memory.faults().lose_next_reply(),
        3 => memory.faults().lose_next_request(),
        _ => {
            memory.faults().lag();
            thread::yield_now();
            memory.faults().catch_up();
        }
    }
}

/// The plan of a test: several threads that each use one lock several times. Some threads share a handle.
struct Plan {
    threads: usize,
    uses: usize,
    /// Whether handles keep their nodes between uses. If so, each handle does with a probability of three in four.
    keeps: bool,
    /// Whether sessions and replies are lost and servers lag.
    has_losses: bool,
}

impl Plan {
    fn runs(&self) {
        let (world, witness) = (World::with_timers(self.has_losses || draw(2) == 0), Witness::of_lock());
        let clients = [world.client(), world.client()];
        // Several threads share a handle, so that they use one node at the same time.
        let handles: Vec<RwLock> = (0..3)
            .map(|number| {
                let builder = RwLock::builder(&clients[number % 2], PATH).host("h").warn_after_waiting(warned());
                let keeps = self.keeps && draw(4) > 0;
                if keeps { builder.keep(LONG).build() } else { builder.build() }.expect("a lock")
            })
            .collect();
        // Each schedule has at most three kinds of uses, so that each pair of kinds meets often.
        let (has_losses, kinds) = (self.has_losses, [draw(KINDS), draw(KINDS), draw(KINDS)]);
        let workers = (0..self.threads).map(|_| {
            let (lock, witness, uses) = (handles[draw(handles.len())].clone(), Arc::clone(&witness), self.uses);
            spawn(move || {
                for _ in 0..uses {
                    let answer = block_on(one_use(kinds[draw(3)], &lock, &witness));
                    assert!(has_losses || answer.is_ok(), "{answer:?}");
                }
            })
        });
        let workers: Vec<_> = workers.collect();
        drop(handles);
        if has_losses {
            troubles(&clients);
        }
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
        world.ends(&[PATH]);
    }
}

#[test]
fn threads_never_break_exclusion_or_hang() {
    explore(1_000, || Plan { threads: 3, uses: 2, keeps: false, has_losses: false }.runs());
}

#[test]
fn lost_sessions_and_replies_break_no_exclusion() {
    explore(1_000, || Plan { threads: 3, uses: 2, keeps: false, has_losses: true }.runs());
}

#[test]
fn kept_nodes_break_no_exclusion() {
    explore(1_000, || Plan { threads: 3, uses: 2, keeps: true, has_losses: false }.runs());
}

#[test]
fn lost_kept_nodes_break_no_exclusion() {
    explore(1_000, || Plan { threads: 3, uses: 2, keeps: true, has_losses: true }.runs());
}

#[test]
fn a_holder_is_notified_of_a_blocked_contender() {
    explore(1_000, || {
        // Three of four schedules have no timers. When a timer ends the idle time of a kept node, the waiter creates a node
        // of its own. That node also notifies the holder, and so would hide a lost wake-up.
        let (world, witness) = (World::with_timers(draw(4) == 0), Witness::of_lock());
        let client = world.client();
        let builder = RwLock::builder(&client, PATH).host("h").warn_after_waiting(warned());
        let lock = if draw(4) > 0 { builder.keep(LONG).build() } else { builder.build() }.expect("a lock");
        let (other, seen) = (lock.clone(), Arc::clone(&witness));
        let guard = block_on(lock.write().into_future()).expect("a guard");
        let waiter = spawn(move || {
            let_others_run(40);
            drop(seen.works(block_on(other.read().into_future()).expect("a guard")));
        });
        block_on(guard.contended()).expect("a contender");
        drop(witness.works(guard));
        waiter.join().expect("no panic");
        drop(lock);
        world.ends(&[PATH]);
    });
}

#[test]
fn nothing_but_the_schedule_decides_what_happens() {
    replay_each(100, || Plan { threads: 3, uses: 2, keeps: true, has_losses: true }.runs());
}
