//! How an acquisition whose turn has come takes the lock; knows no queue.

use std::sync::Arc;

use crate::acquisition::request::Acquisition;
use crate::error::error::Error;
use crate::hold::hold::Held;
use crate::queue::local::Ground;
use crate::queue::waiter::{Evidence, Take};
use crate::session::loss::Loss;
use crate::session::request::{Failure, Operation};
use crate::session::retry;
use crate::telemetry::meter;

/// How often a quorum may confirm our node without the lease becoming valid, before something must be wrong.
pub(crate) const LEASE_TRIES: u32 = 100;

/// That it is our turn, and how that is known.
pub(crate) struct Grant {
    pub(crate) ground: Ground,
    /// The kind of the grant, for traces and metrics.
    pub(crate) kind: &'static str,
}

impl Grant {
    /// What a waiter's evidence is worth.
    pub(crate) fn by(take: Take<Ground>, held: &Held) -> Grant {
        let (ground, kind) = match take.evidence {
            Evidence::Book(ground) => (ground, if take.has_waited { "pass" } else { "next" }),
            Evidence::Listing => (Ground::Sure, if take.has_waited { "look" } else { "at once" }),
            Evidence::Signal(name) => {
                let (place, node) = (held.place(), held.place().child(&name));
                (Ground::HandOff(place.session().upkeep().nodes().hand_off(&node.into())), "hand-off")
            }
        };
        Grant { ground, kind }
    }
}

impl Acquisition {
    /// Takes the lock, now that nothing before us excludes us.
    ///
    /// What we know may be old, if we were cut off: only under a valid lease is it certain that the session, and so
    /// our node, still exists. Without one a quorum is asked first.
    pub(crate) async fn grant(&self, held: &Held, grant: Grant) -> Result<(), Error> {
        // A waiter that does not watch its own node, because a stranger's write has used the watch up, might have been evicted.
        let is_deaf = matches!(grant.kind, "pass" | "hand-off") && !held.tenure().is_armed();
        let granted = if is_deaf { None } else { self.granted(held, &grant) };
        match granted {
            Some(answer) => answer,
            None => Box::pin(self.grant_once_confirmed(held, &grant)).await,
        }
    }

    /// As [`Self::grant`]; `None` if a quorum has to be asked.
    pub(crate) fn granted(&self, held: &Held, grant: &Grant) -> Option<Result<(), Error>> {
        let (session, tenure) = (held.place().session(), held.tenure());
        if let Some(loss) = held.loss() {
            return Some(Err(Error::Evicted(loss)));
        }
        tenure.hold(tenure.stretch(session.lease())?);
        held.place().book().granted(held.standing(), &grant.ground);
        let roll = session.upkeep().nodes();
        if let Ground::HandOff(signal) = &grant.ground {
            roll.confirm_gone(signal, tenure);
        }
        let kind = grant.kind;
        meter::granted(self.mode, kind);
        let (sequence, token) = (held.contender().sequence(), held.standing().czxid);
        tracing::debug!(path = &*self.handle.path, mode = %self.mode, sequence, token, kind, "granted");
        Some(Ok(()))
    }

    pub(crate) async fn grant_once_confirmed(&self, held: &Held, grant: &Grant) -> Result<(), Error> {
        let (session, tenure) = (held.place().session(), held.tenure());
        for tries in 0..LEASE_TRIES {
            if tries > 1 {
                session.sleep(session.timeout() / 20).await;
            }
            let check = [Operation::Check { path: tenure.path(), version: None }];
            match retry::settled(session, || session.transact(&check)).await {
                Ok(_) => {}
                Err(Failure::Operation { failure, .. }) if *failure == Failure::NoNode => tenure.lose(Loss::Removed),
                Err(failure) => return Err(self.stop(failure)),
            }
            if let Some(answer) = self.granted(held, grant) {
                return answer;
            }
        }
        // Its answers take longer than the lease, or it does not say whose session this is.
        Err(Error::Unreachable("the servers answer too late to hold a lock by".to_owned()))
    }

    /// Has it seen from outside that the lock is held.
    pub(crate) fn begin_hold(&self, held: &mut Held) {
        let (standing, upkeep) = (held.standing(), held.place().session().upkeep());
        let sequence = standing.contender.sequence();
        upkeep.holds().begin(standing.czxid, &self.handle.path, sequence, self.asker(), &standing.tenure);
        held.granted(self.trace.granted(&self.handle.path, self.label(), held.standing()));
        let Some(limit) = self.handle.warn_holding else {
            return;
        };
        let (session, tenure) = (Arc::clone(held.place().session()), Arc::clone(held.tenure()));
        let (path, label, token) = (Arc::clone(&self.handle.path), self.options.label.clone(), held.standing().czxid);
        let watch = Arc::clone(&session);
        session.spawn(Box::pin(async move {
            tokio::select! {
                biased;
                () = tenure.ended(&watch) => {}
                () = watch.sleep(limit) => {
                    let node = tenure.path();
                    tracing::warn!(path = &*path, node, label, token, held = ?limit, "a lock is held for long");
                }
            }
        }));
    }
}
