//! Asks the ensemble's leader whether certain nodes exist, and decides when a waiter asks again.
//!
//! A crash of a server can lose the event of a watch, and a server can list a node that the ensemble no longer has. So
//! a task that has received no event for a long time sends transactions that only check nodes and change nothing. The
//! leader answers them in the order of all writes, and each answer comes after the events of earlier writes. A failed
//! transaction names only its first failed operation, so the checks after that operation must be sent again.

use std::future::pending;
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::session::contract::Session;
use crate::session::request::{Failure, Operation, Outcome, Watch, WatchEvent};
use crate::session::retry::{self, RetryBudget, repeat_within_limit, spawn_with_reply};
use crate::sync::random;
use crate::telemetry::log::emit;
use crate::telemetry::{meter, names};

/// The most checks in one transaction.
const CHECKS_MAX: usize = 1_000;

/// The most bytes of checks in one transaction, unless a single check is longer. ZooKeeper refuses a request of 1 MiB.
const BYTES_MAX: usize = 256 * 1024;

/// A transaction fails at its first failing check, and the checks after it must be sent again. They are divided into at
/// most this many transactions, so that several further failing checks are found at a time.
const PARTS: usize = 16;

/// The most contenders that an error names as the holders of a lock or as the contenders in front. The number is small,
/// because the leader is asked whether each of them exists, and the error must be returned in time.
pub(crate) const NAMED: usize = 8;

/// The longest pause before a check, without the jitter. If the session timeout is longer, each pause is one session
/// timeout.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Whether a check holds, that is, whether the leader has the node (with the given version, if one is given). A failure
/// says why this is unknown.
pub(crate) type CheckResult = Result<bool, Failure>;

/// Returns the operation that checks that a node exists, with this version if one is given.
pub(crate) fn existence_check(path: impl Into<String>, version: Option<i32>) -> Operation {
    Operation::Check { path: path.into(), version }
}

/// Returns for each check whether it holds at the leader now. Sends transactions until each result is known or cannot
/// be found out. With [`RetryBudget::once`], however, each check is sent at most once. If a check then fails, the
/// results of the later checks in its transaction stay unknown.
pub(super) async fn run_checks(
    session: &Arc<dyn Session>,
    checks: &[Operation],
    tries: RetryBudget,
) -> Vec<CheckResult> {
    let longest = checks.iter().map(|check| session.request_bytes(slice::from_ref(check))).max();
    let mut results = CheckResults::new(checks.len(), longest.unwrap_or_default());
    while results.send_unsent(session, checks, &tries).await && !tries.is_reached() {}
    results.known
}

/// Returns the indices of the checks that surely do not hold. A check whose result is unknown is left out.
pub(crate) async fn find_failed_checks(session: &Arc<dyn Session>, checks: &[Operation]) -> Vec<usize> {
    let known = run_checks(session, checks, RetryBudget::LOST_ANSWERS).await.into_iter().enumerate();
    known.filter(|(_, holds)| *holds == Ok(false)).map(|(index, _)| index).collect()
}

/// Returns whether the leader has this node, with this version if one is given.
pub(crate) async fn exists_at_leader(
    session: &Arc<dyn Session>,
    path: impl Into<String>,
    version: Option<i32>,
) -> CheckResult {
    run_checks(session, &[existence_check(path, version)], RetryBudget::LOST_ANSWERS).await.swap_remove(0)
}

/// Returns the path of the first of these nodes that exists, or `None` if none of them does. Repeats a request whose
/// answer is lost, until the request is answered or the session is over. Fails if no node is found and the result of a
/// check is unknown.
pub(crate) async fn first_existing(session: &Arc<dyn Session>, paths: &[String]) -> Result<Option<String>, Failure> {
    let checks: Vec<_> = paths.iter().map(|path| existence_check(path, None)).collect();
    let known = run_checks(session, &checks, RetryBudget::ENDLESS).await;
    match known.iter().position(|holds| *holds == Ok(true)) {
        Some(there) => Ok(Some(paths[there].clone())),
        None => known.into_iter().find_map(Result::err).map_or(Ok(None), Err),
    }
}

/// The results so far of several checks.
struct CheckResults {
    known: Vec<CheckResult>,
    /// The indexes of the checks that are still to be sent. Each range becomes one transaction.
    unsent: Vec<Range<usize>>,
}

impl CheckResults {
    /// Creates the results of `checks` checks, all unknown. Each check takes at most `longest` bytes in a request.
    fn new(checks: usize, longest: usize) -> CheckResults {
        let known = vec![Err(Failure::Unknown("not checked".to_owned())); checks];
        CheckResults { known, unsent: split_range(0..checks, CHECKS_MAX.min(BYTES_MAX / longest.max(1))) }
    }

    /// Sends the checks that are still to be sent, and records their results. Returns `false` if there was nothing to
    /// send.
    async fn send_unsent(&mut self, session: &Arc<dyn Session>, checks: &[Operation], tries: &RetryBudget) -> bool {
        let parts = self.take_unsent();
        let answers = parts
            .iter()
            .map(|part| repeat_within_limit(session, tries.clone(), || session.transact(&checks[part.clone()])));
        for (part, answer) in parts.iter().zip(join_all(answers).await) {
            self.record(part, answer.map(drop));
        }
        !parts.is_empty()
    }

    fn take_unsent(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.unsent)
    }

    fn record(&mut self, part: &Range<usize>, answer: Result<(), Failure>) {
        let (failed, holds) = match answer {
            Ok(()) => (part.end, Ok(true)),
            Err(Failure::Operation { index, failure }) if index < part.len() => {
                let holds = match *failure {
                    Failure::NoNode | Failure::BadVersion => Ok(false),
                    failure => Err(failure),
                };
                (part.start + index, holds)
            }
            // The transaction failed as a whole, and not at one of its checks, so the results of the whole range stay
            // unknown.
            Err(failure) => return self.known[part.clone()].fill(Err(failure)),
        };
        self.known[part.start..failed].fill(Ok(true));
        if failed < part.end {
            self.known[failed] = holds;
            let rest = failed + 1..part.end;
            self.unsent.extend(split_range(rest.clone(), rest.len().div_ceil(PARTS)));
        }
    }
}

/// Divides a range into parts of at most `most` elements.
fn split_range(all: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let most = most.max(1);
    let starts = all.clone().step_by(most);
    starts.map(|start| start..all.end.min(start + most)).collect()
}

/// Returns the pause that follows `pause`: twice as long, or [`PAUSE_MAX`] if that is shorter. But the pause is never
/// shorter than one session timeout.
fn next_pause(pause: Duration, session_timeout: Duration) -> Duration {
    pause.saturating_mul(2).min(PAUSE_MAX).max(session_timeout)
}

/// Returns the pause, lengthened by up to a tenth. Without this jitter, waiters that began together would ask the
/// leader at the same moment.
fn with_jitter(pause: Duration, random: u64) -> Duration {
    pause + pause / 10_000 * u32::try_from(random % 1_000).unwrap_or(0)
}

/// Says when one waiter asks the leader again whether a node exists. Each pause is twice as long as the one before, up
/// to [`PAUSE_MAX`].
pub(crate) struct LeaderRecheckTimer<'a> {
    session: &'a Arc<dyn Session>,
    pause: Duration,
}

impl<'a> LeaderRecheckTimer<'a> {
    pub(crate) fn new(session: &'a Arc<dyn Session>) -> LeaderRecheckTimer<'a> {
        LeaderRecheckTimer { session, pause: session.timeout() }
    }

    /// Waits for the event of a watch (`true`), or until a check is due (`false`). Fails if the event is the end of the
    /// session.
    pub(crate) async fn until_event_or_recheck(&mut self, watch: &mut Watch) -> Result<bool, Failure> {
        let Some(event) = retry::run_until(self.until_recheck_due(), watch).await else { return Ok(false) };
        fail_if_session_ended(self.session, event).await?;
        self.pause = self.session.timeout();
        Ok(true)
    }

    /// Waits until a check is due. While the connection is lost, no check is due. After the reconnect a new pause
    /// begins, because the server then delivers the missed events. Never completes once the session is over.
    pub(crate) async fn until_recheck_due(&mut self) {
        loop {
            self.session.sleep(with_jitter(self.pause, random())).await;
            if self.session.lease().is_connected() {
                self.pause = next_pause(self.pause, self.session.timeout());
                return;
            }
            if self.session.store().until_connected().await.is_err() {
                return pending().await;
            }
            self.pause = self.session.timeout();
        }
    }

    /// Asks the leader after each pause, until it has this node (`is_there`) or does not have it (`!is_there`).
    pub(crate) async fn until_leader_confirms(&mut self, path: &str, is_there: bool) {
        loop {
            self.until_recheck_due().await;
            if self::exists_at_leader(self.session, path, None).await == Ok(is_there) {
                return;
            }
        }
    }
}

/// Leaves the server (closes the connection to it) if it lists one of these nodes, which the ensemble's leader does not
/// have. Does the same at each next server, until a server lists none of the nodes or a listing fails. Returns whether
/// a server was left, even if another caller has left it first.
///
/// The leader's answer that a node is gone has also brought the server up to date. So a server that lists the node
/// afterwards is wrong.
pub(crate) async fn leave_server_if_listed(
    session: &Arc<dyn Session>,
    directory: &str,
    gone: Vec<String>,
) -> Result<bool, Failure> {
    let mut has_left = false;
    while !gone.is_empty() {
        let connection = session.store().connection_number();
        let Ok(names) = session.children(directory).await else { break };
        let listed = gone.iter().filter(|gone| names.contains(gone));
        let checks: Vec<_> = listed.map(|name| existence_check(format!("{directory}/{name}"), None)).collect();
        let failing = find_failed_checks(session, &checks).await;
        let Some(Operation::Check { path, .. }) = failing.first().map(|index| &checks[*index]) else { break };
        leave_server(session, connection, path).await?;
        has_left = true;
    }
    Ok(has_left)
}

/// Leaves each server (closes the connection to it) whose answer about a node still differs from the leader's. Called
/// after a check has shown a change that no watch reported. Returns whether a server was left, even if another caller
/// has left it first.
///
/// A read, which the server answers, is sent between two checks, which the leader answers. The answer to the first
/// check brings the server up to the leader's state. So if both checks agree and the read differs, the server is wrong.
pub(crate) async fn leave_differing_server(
    session: &Arc<dyn Session>,
    path: &str,
    version: Option<i32>,
) -> Result<bool, Failure> {
    let (checks, mut has_left) = ([existence_check(path, version)], false);
    loop {
        let connection = session.store().connection_number();
        // All three requests are sent without waiting for an answer, so that they go over one connection. After a
        // reconnect, the read might go to another server, which may only lag behind.
        let (before, read, after) = (session.transact(&checks), session.data(path), session.transact(&checks));
        let (before, read, after) = (single_check_holds(before.await), read.await, single_check_holds(after.await));
        let is_at_server = match read {
            Ok((_, stat)) => version.is_none_or(|version| version == stat.version),
            Err(Failure::NoNode) => false,
            Err(_) => return Ok(has_left),
        };
        // If the results of the two checks differ or are unknown, the node may have changed between the checks. Then
        // the read shows nothing.
        if before != after || before.is_none_or(|is_there| is_there == is_at_server) {
            return Ok(has_left);
        }
        leave_server(session, connection, path).await?;
        has_left = true;
    }
}

/// Leaves the server of this connection, which does not agree with the ensemble's leader about the node at `path`:
/// closes the connection, unless it is lost or closed already. Fails with [`Failure::Diverged`] if there is no other
/// server.
pub(crate) async fn leave_server(session: &Arc<dyn Session>, connection: u64, path: &str) -> Result<(), Failure> {
    let server = session.server().unwrap_or_else(|| "unknown".to_owned());
    let (on, node) = (Arc::clone(session), path.to_owned());
    // This work is spawned, so that it ends even if the caller's future is dropped at the first event that the next
    // server delivers.
    let left = async move {
        let left = on.leave_server(connection, &node).await;
        if matches!(left, Ok(true) | Err(Failure::Diverged { .. })) {
            meter::increment_counter(names::DISAGREEMENTS, None, &[]);
        }
        if left? {
            emit!(
                ERROR,
                node,
                server,
                "a server that does not agree with the leader about a node was left: zklock check, with that node as its path, asks all servers, and says what to do"
            );
        }
        Ok(())
    };
    spawn_with_reply(session, left, drop).await
}

/// Returns whether the only check of a transaction holds, as its answer shows. `None` if the answer does not show it.
fn single_check_holds(answer: Result<Vec<Outcome>, Failure>) -> Option<bool> {
    let mut results = CheckResults::new(1, 0);
    results.record(&(0..1), answer.map(drop));
    results.known.pop()?.ok()
}

/// Returns whether the ensemble's leader has a node although the server has answered that the node does not exist. If
/// so, waits until the request to the server may be repeated, or leaves the server if `tries` allows no repetition.
pub(crate) async fn await_retry_if_leader_has(
    session: &Arc<dyn Session>,
    path: &str,
    tries: &mut RetryBudget,
) -> CheckResult {
    let connection = session.store().connection_number();
    match exists_at_leader(session, path, None).await {
        Ok(true) if tries.is_reached() => leave_server(session, connection, path).await.map(|()| true),
        Ok(true) => tries.pause(session).await.map(|()| true),
        answer => answer,
    }
}

/// Fails if the event is the end of the session.
pub(crate) async fn fail_if_session_ended(session: &Arc<dyn Session>, event: WatchEvent) -> Result<(), Failure> {
    match event {
        WatchEvent::Over => Err(Failure::Over(session.store().until_over().await)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
