//! A second look at nodes, for whoever waits for the event of a watch; knows neither locks nor values.
//!
//! A server can lose a notification with its last moments, and can keep a node that the ensemble no longer has. So whoever
//! has heard nothing for long asks the leader, with a transaction that only checks the nodes. The answer comes in the order
//! of all writes, and after every event of what was written before.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use crate::session::contract::Session;
use crate::session::request::{Failure, Operation};
use crate::session::retry;
use crate::sync::random;

/// The longest pause before a look.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// How many nodes one transaction checks at most: it must stay far below ZooKeeper's limit of 1 MiB.
const CHECKS_MAX: usize = 500;

/// The pause after this one. The first is one session timeout.
fn next(pause: Duration, session_timeout: Duration) -> Duration {
    pause.saturating_mul(2).min(PAUSE_MAX).max(session_timeout)
}

/// Up to a tenth longer, by lot: many begin to wait at once.
fn drawn_apart(pause: Duration, lot: u64) -> Duration {
    pause + pause / 10_000 * u32::try_from(lot % 1_000).unwrap_or(0)
}

/// Checks that a node is there, and has this version if one is given.
pub(crate) fn check(path: String, version: Option<i32>) -> Operation {
    Operation::Check { path, version }
}

/// The looks of one that waits.
pub(crate) struct SecondLook<'a> {
    session: &'a Arc<dyn Session>,
    pause: Duration,
}

impl<'a> SecondLook<'a> {
    pub(crate) fn new(session: &'a Arc<dyn Session>) -> SecondLook<'a> {
        SecondLook::after(session, false)
    }

    /// A server that has shown a node that was gone may show more of them: then the first look comes at once.
    pub(crate) fn after(session: &'a Arc<dyn Session>, is_haunted: bool) -> SecondLook<'a> {
        let pause = if is_haunted { Duration::ZERO } else { session.timeout() };
        SecondLook { session, pause }
    }

    /// A watch has told something.
    pub(crate) fn heard(&mut self) {
        self.pause = self.session.timeout();
    }

    /// Waits until a look is due. None is while the connection is lost: what happens then is told when it is back.
    pub(crate) async fn pause(&mut self) {
        loop {
            if !retry::slept(self.session, drawn_apart(self.pause, random())).await {
                return pending().await;
            }
            if self.session.lease().is_connected() {
                self.pause = next(self.pause, self.session.timeout());
                return;
            }
            if self.session.connected().await.is_err() {
                return pending().await;
            }
            self.heard();
        }
    }

    /// Waits until one of these checks fails at the leader. Returns its index.
    pub(crate) async fn finds(&mut self, checks: impl Fn() -> Vec<Operation>) -> usize {
        loop {
            self.pause().await;
            for (i, some) in checks().chunks(CHECKS_MAX).enumerate() {
                if let Some(Err(index)) = self.ask(some).await {
                    return i * CHECKS_MAX + index;
                }
            }
        }
    }

    /// Waits for one look. Returns whether the leader has another version of this node, or none.
    pub(crate) async fn finds_other(&mut self, path: &str, version: i32) -> bool {
        self.pause().await;
        matches!(self.ask(&[check(path.to_owned(), Some(version))]).await, Some(Err(_)))
    }

    /// Waits until the leader has this node.
    pub(crate) async fn finds_there(&mut self, path: &str) {
        loop {
            self.pause().await;
            if self.ask(&[check(path.to_owned(), None)]).await == Some(Ok(())) {
                return;
            }
        }
    }

    /// Whether all checks hold, or the index of one that fails; `None` if that is not known.
    async fn ask(&self, checks: &[Operation]) -> Option<Result<(), usize>> {
        match self.session.transact(checks).await {
            Ok(_) => Some(Ok(())),
            Err(Failure::Operation { index, failure }) if is_other(&failure) => Some(Err(index)),
            Err(_) => None,
        }
    }
}

/// Whether a check failed because the node is not as it was seen.
fn is_other(failure: &Failure) -> bool {
    matches!(failure, Failure::NoNode | Failure::BadVersion)
}

/// Whether the leader has this node; `None` if that is not known.
pub(crate) async fn is_there(session: &Arc<dyn Session>, path: String) -> Option<bool> {
    let checks = [check(path, None)];
    let answer = retry::until_known(session, || session.transact(&checks)).await;
    match answer {
        Ok(_) => Some(true),
        Err(Failure::Operation { failure, .. }) if is_other(&failure) => Some(false),
        Err(_) => None,
    }
}

/// A look has found what no watch has told. Logs an error if the server goes on showing a node as the leader does not have
/// it. Its answer after the leader's proves that: by then a server has all that the leader had.
pub(crate) fn report(session: &Arc<dyn Session>, path: String, version: Option<i32>) {
    // On one connection: otherwise a server could answer that only lags.
    let (checked, read) = (session.transact(&[check(path.clone(), version)]), session.data(&path));
    let asked = Arc::clone(session);
    session.spawn(Box::pin(async move {
        let is_at_leader = match checked.await {
            Ok(_) => true,
            Err(Failure::Operation { failure, .. }) if is_other(&failure) => false,
            Err(_) => return,
        };
        let is_at_server = match read.await {
            Ok((_, stat)) => version.is_none_or(|version| version == stat.version),
            Err(Failure::NoNode) => false,
            Err(_) => return,
        };
        if is_at_leader != is_at_server {
            let server = asked.server().unwrap_or_else(|| "unknown".to_owned());
            tracing::error!(
                node = path,
                server,
                "a server does not show a node as the ensemble has it: stop that server, delete its data, and start it again"
            );
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(10);

    #[test]
    fn looks_come_after_pauses_that_double_up_to_ten_minutes() {
        let pauses = std::iter::successors(Some(T), |pause| Some(next(*pause, T)));
        let seconds: Vec<_> = pauses.map(|pause| pause.as_secs()).take(9).collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
        assert_eq!(next(Duration::ZERO, T), T, "after a look at once");
        assert_eq!(next(2 * PAUSE_MAX, 2 * PAUSE_MAX), 2 * PAUSE_MAX, "never sooner than a session timeout");
    }

    #[test]
    fn looks_are_drawn_apart_by_up_to_a_tenth() {
        for (lot, most) in [(0, 10_000), (500, 10_500), (999, 10_999), (1_000, 10_000), (u64::MAX, 10_615)] {
            assert_eq!(drawn_apart(T, lot).as_millis(), most);
        }
    }
}
