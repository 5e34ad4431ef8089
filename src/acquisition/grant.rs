//! How an acquisition whose turn has come takes the lock; lists no queue.

use std::sync::Arc;

use crate::acquisition::request::Acquisition;
use crate::error::error::Error;
use crate::hold::hold::Hold;
use crate::queue::waiter::Take;
use crate::session::loss::Loss;
use crate::session::nodes::HandOff;
use crate::session::request::{Failure, Operation};
use crate::session::retry;
use crate::telemetry::meter;

/// How often a quorum may confirm our node without a valid lease. More often means that something is wrong.
pub(crate) const LEASE_TRIES: u32 = 100;

/// A turn that has come, with the evidence for it.
pub(crate) struct Grant {
    /// The signal that shows it. `None` if a listing does.
    pub(crate) signal: Option<Arc<HandOff>>,
    pub(crate) kind: GrantKind,
    /// The contender had to wait.
    pub(crate) has_waited: bool,
    /// Those who have left the queue although our server shows them there.
    pub(crate) ghosts: Vec<Arc<str>>,
}

/// By what it was known that the lock could be taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrantKind {
    /// A listing right after the create.
    AtOnce,
    /// A later listing.
    Look,
    /// The holder's signal.
    HandOff,
    /// The node was held already, and is kept.
    Kept,
}

impl GrantKind {
    /// As traces and metrics show it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            GrantKind::AtOnce => "at once",
            GrantKind::Look => "look",
            GrantKind::HandOff => "hand-off",
            GrantKind::Kept => "kept",
        }
    }
}

impl Grant {
    /// The grant for a waiter's evidence.
    pub(crate) fn by(take: Take, held: &Hold) -> Grant {
        let (ticket, nodes) = (held.ticket(), held.ticket().session().upkeep().nodes());
        let signal = take.signalled_by.map(|name| nodes.hand_off(&ticket.child(&name).into()));
        let kind = match (&signal, take.has_waited) {
            (Some(_), _) => GrantKind::HandOff,
            (None, true) => GrantKind::Look,
            (None, false) => GrantKind::AtOnce,
        };
        Grant { signal, kind, has_waited: take.has_waited, ghosts: take.ghosts }
    }
}

impl Acquisition {
    /// Takes the lock, now that no contender before us excludes us.
    ///
    /// Our evidence may be old, if we were cut off. Only under a valid lease is it certain that the session still
    /// exists, and with it our own node. Without a valid lease a quorum is asked first.
    pub(crate) async fn grant(&self, held: &Hold, grant: Grant) -> Result<(), Error> {
        // A waiter whose watch on its own node was used up by another client's write may have been evicted without
        // noticing.
        let is_deaf = grant.signal.is_some() && held.loss().is_none() && !held.own_node().is_armed();
        let granted = if is_deaf { None } else { self.granted(held, &grant) };
        match granted {
            Some(answer) => answer,
            None => Box::pin(self.grant_once_confirmed(held, &grant)).await,
        }
    }

    /// As [`Self::grant`], but `None` if a quorum has to be asked.
    pub(crate) fn granted(&self, held: &Hold, grant: &Grant) -> Option<Result<(), Error>> {
        let (session, own_node) = (held.ticket().session(), held.own_node());
        if let Some(loss) = held.loss() {
            return Some(Err(Error::Evicted(loss)));
        }
        own_node.hold(own_node.epoch(session.lease())?);
        if let Some(signal) = &grant.signal {
            session.upkeep().nodes().confirm_gone(signal, own_node);
        }
        let kind = grant.kind.as_str();
        meter::granted(self.aim(), kind);
        let (sequence, token) = (held.contender().sequence(), held.position().czxid);
        tracing::debug!(path = &**self.handle.shown(), mode = %self.aim(), sequence, token, kind, "granted");
        Some(Ok(()))
    }

    pub(crate) async fn grant_once_confirmed(&self, held: &Hold, grant: &Grant) -> Result<(), Error> {
        let (session, own_node) = (held.ticket().session(), held.own_node());
        for tries in 0..LEASE_TRIES {
            if tries > 1 {
                session.sleep(session.timeout() / 20).await;
            }
            let check = [Operation::Check { path: own_node.path(), version: None }];
            match retry::until_known(session, || session.transact(&check)).await {
                Ok(_) => {}
                Err(Failure::Operation { failure, .. }) if *failure == Failure::NoNode => own_node.lose(Loss::Removed),
                Err(failure) => return Err(self.stop(failure)),
            }
            if let Some(answer) = self.granted(held, grant) {
                return answer;
            }
        }
        // The servers' answers take longer than the lease, or the server does not show whose session this is.
        Err(Error::Unreachable("the servers' answers come too late for the lease".to_owned()))
    }

    /// Records the hold for tracing, and for the warning that it lasts long.
    pub(crate) fn begin_hold(&self, held: &Hold) {
        // Of a node that is kept, each use is traced.
        if self.kept.is_some() {
            return self.trace.granted_to_others(held.position());
        }
        held.granted(self.holding(held));
    }
}
