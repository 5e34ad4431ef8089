//! How a task waits for news of an own node.

use std::sync::Arc;
use std::time::Duration;

use crate::session::contract::Session;
use crate::session::loss::Loss;
use crate::session::node::{Asked, OwnNode};
use crate::session::retry::slept;
use crate::session::shield::shielded;

impl OwnNode {
    /// Waits until the hold is over, and says why.
    pub(crate) async fn lost(self: &Arc<Self>, session: &Arc<dyn Session>) -> Loss {
        shielded(self.until(session, || self.loss())).await
    }

    /// Asks for a watch on this node, unless one was asked for already. The request is on its way when this returns.
    pub(crate) fn ask_to_watch(&self, session: &Arc<dyn Session>) -> Option<Asked> {
        let path = self.change(|it| it.known.begin_to_watch())?;
        Some(Asked { watch: session.watch(&path), path })
    }

    /// Waits until `look` finds something; looks again after every change, and when the lease would run out.
    pub(crate) async fn until<T>(&self, session: &Arc<dyn Session>, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            // Registered before looking, so that a change in between is not missed.
            let mut changed = std::pin::pin!(self.changed());
            changed.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            match self.remaining() {
                // The lease ran out, or the limit was reached, since `look` was called.
                None if self.is_holding() => {}
                Some(left) if self.is_holding() && left < Duration::MAX => {
                    // In slices, because timers stand still while the machine is suspended and the lease does not.
                    let slice = left.min(session.timeout() / 20);
                    let is_awake = tokio::select! {
                        biased;
                        () = changed.as_mut() => true,
                        is_awake = slept(session, slice) => is_awake,
                    };
                    if !is_awake {
                        changed.await;
                    }
                }
                _ => changed.await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::session::lease::Lease;
    use crate::session::tests::{Answers, Stub};
    use crate::session::upkeep::Upkeep;

    /// A session that nobody asks anything.
    #[derive(Debug)]
    struct Silent(Arc<Upkeep>);

    impl Answers for Silent {
        fn upkeep(&self) -> &Arc<Upkeep> {
            &self.0
        }
    }

    /// A node that holds on a session of 6 s, and how the session's clock is set forward.
    fn holding() -> (Arc<OwnNode>, Arc<dyn Session>, impl Fn(u64)) {
        let clock = Arc::new(AtomicU64::new(100_000));
        let hands = Arc::clone(&clock);
        let read = move || Duration::from_millis(hands.load(Ordering::SeqCst));
        let upkeep = Arc::new(Upkeep::new(Lease::with_clock(Duration::from_secs(6), Box::new(read))));
        upkeep.began(upkeep.lease().now());
        let own_node = upkeep.enter("/lock/node".to_owned());
        own_node.hold(upkeep.lease().epoch().unwrap());
        let forward = move |milliseconds| {
            clock.fetch_add(milliseconds, Ordering::SeqCst);
        };
        (own_node, Arc::new(Stub(Silent(upkeep))), forward)
    }

    #[test]
    fn a_lease_that_runs_out_while_a_holder_looks_has_it_look_again() {
        let (own_node, session, forward) = holding();
        let mut looks = 0;
        let look = || {
            looks += 1;
            if looks == 1 {
                forward(6_000);
                return None;
            }
            own_node.loss()
        };
        let found = pin!(own_node.until(&session, look)).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(found, Poll::Ready(Loss::LeaseRanOut));
    }

    /// Timers stand still while the machine is suspended, and the lease does not.
    #[tokio::test(start_paused = true)]
    async fn a_holder_hears_soon_that_its_machine_was_suspended() {
        let (own_node, session, forward) = holding();
        let wakes = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            forward(6_000);
            tokio::time::Instant::now()
        };
        let (why, woke) = tokio::join!(own_node.until(&session, || own_node.loss()), wakes);
        assert_eq!(why, Loss::LeaseRanOut);
        assert!(woke.elapsed() <= Duration::from_millis(300), "{:?}", woke.elapsed());
    }
}
