//! A second look at nodes, for tasks that wait for the event of a watch.
//!
//! A server can lose a notification with its last moments, and can keep a node that the ensemble no longer has. So whoever
//! has heard nothing for long asks the leader, with a transaction that only checks the nodes. The answer comes in the order
//! of all writes, and after every event of what was written before.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use crate::session::contract::Session;
use crate::session::presence::{self, answered, check, is_there};
use crate::session::request::{Event, Failure, Operation, Watch};
use crate::session::retry;
use crate::sync::random;
use crate::telemetry::log::tell;

/// The longest pause before a look.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(600);

/// The pause after this one. The first is one session timeout.
fn next(pause: Duration, session_timeout: Duration) -> Duration {
    pause.saturating_mul(2).min(PAUSE_MAX).max(session_timeout)
}

/// Up to a tenth longer, by lot: many begin to wait at once.
fn drawn_apart(pause: Duration, lot: u64) -> Duration {
    pause + pause / 10_000 * u32::try_from(lot % 1_000).unwrap_or(0)
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

    /// Waits for the event of a watch, or until a look is due. Returns whether the watch has told something. Fails if it has
    /// told of the end of its session.
    pub(crate) async fn hears(&mut self, watch: &mut Watch) -> Result<bool, Failure> {
        tokio::select! {
            biased;
            event = watch => {
                unless_over(self.session, event).await?;
                self.pause = self.session.timeout();
                Ok(true)
            }
            () = self.pause() => Ok(false),
        }
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
            self.pause = self.session.timeout();
        }
    }

    /// Waits until one of these checks fails at the leader. Returns the indices of all that do.
    pub(crate) async fn finds(&mut self, checks: impl Fn() -> Vec<Operation>) -> Vec<usize> {
        loop {
            self.pause().await;
            let failing = presence::failing(self.session, &checks()).await;
            if !failing.is_empty() {
                return failing;
            }
        }
    }

    /// Waits until the leader has this node.
    pub(crate) async fn finds_there(&mut self, path: &str) {
        loop {
            self.pause().await;
            if is_there(self.session, path.to_owned(), None).await == Some(true) {
                return;
            }
        }
    }
}

/// A look has found what no watch has told. Logs an error if the server goes on showing a node as the leader does not have
/// it. Its answer between two of the leader's proves that: by then a server has all that the leader had.
pub(crate) fn report(session: &Arc<dyn Session>, path: String, version: Option<i32>) {
    let checks = [check(path.clone(), version)];
    // On one connection: otherwise a server could answer that only lags.
    let (before, read, after) = (session.transact(&checks), session.data(&path), session.transact(&checks));
    let asked = Arc::clone(session);
    session.spawn(Box::pin(async move {
        let (before, read, after) = (answered(before.await), read.await, answered(after.await));
        let is_at_server = match read {
            Ok((_, stat)) => version.is_none_or(|version| version == stat.version),
            Err(Failure::NoNode) => false,
            Err(_) => return,
        };
        // It may have changed in between.
        if before == after && before.is_some_and(|is_there| is_there != is_at_server) {
            let _logged = diverged(&asked, &path);
        }
    }));
}

/// As [`report`], of nodes in a directory that the leader no longer has: an error for each that the server goes on listing.
pub(crate) fn report_listed(session: &Arc<dyn Session>, directory: &str, gone: Vec<Arc<str>>) {
    let Some(first) = gone.first() else { return };
    let checks = [check(format!("{directory}/{first}"), None)];
    let (before, names, after) = (session.transact(&checks), session.children(directory), session.transact(&checks));
    let (asked, directory) = (Arc::clone(session), directory.to_owned());
    session.spawn(Box::pin(async move {
        let (before, names, after) = (answered(before.await), names.await, answered(after.await));
        let Ok(names) = names else { return };
        if (before, after) == (Some(false), Some(false)) {
            for ghost in gone.iter().filter(|ghost| names.iter().any(|name| **name == ***ghost)) {
                let _logged = diverged(&asked, &format!("{directory}/{ghost}"));
            }
        }
    }));
}

/// The server goes on showing this node as the leader does not have it. Logs an error, and says the same in words.
///
/// It cannot tell which of the two is wrong: the leader itself may be the one server that has lost the node.
pub(crate) fn diverged(session: &Arc<dyn Session>, path: &str) -> String {
    const NEXT: &str = "zklock check, with that node as its path, asks all servers, and says what to do";
    let server = session.server().unwrap_or_else(|| "unknown".to_owned());
    tell!(ERROR, node = path, server, "a server and the leader do not agree about a node: {NEXT}");
    format!("the server (address: {server}) and the leader do not agree about it: {NEXT}")
}

/// Fails if a watch has told of the end of its session.
pub(crate) async fn unless_over(session: &Arc<dyn Session>, event: Event) -> Result<(), Failure> {
    match event {
        Event::Over => Err(Failure::Over(session.over().await)),
        _ => Ok(()),
    }
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
