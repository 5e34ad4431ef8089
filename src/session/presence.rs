//! Asks the leader whether certain nodes exist, and decides when a waiter asks again.
//!
//! A crash of a server can lose the event of a watch, and a server can list a node that the ensemble no longer has. So
//! a task that has received no event for a long time sends transactions that only check nodes and change nothing. The
//! leader answers them in the order of all writes, and each answer comes after the events of earlier writes. A failed
//! transaction names only its first failed operation, so the checks after that operation are sent again.

use std::collections::BTreeSet;
use std::future::pending;
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::queue::mode::Mode;
use crate::session::contract::Session;
use crate::session::request::{Event, Failure, Operation, Outcome, Watch};
use crate::session::retry::{self, Tries, repeated};
use crate::session::store::may_pass;
use crate::sync::random;
use crate::telemetry::log::emit;

/// The most checks in one transaction.
const CHECKS_MAX: usize = 1_000;

/// The most bytes in one transaction. ZooKeeper refuses a request of 1 MiB.
const BYTES_MAX: usize = 256 * 1024;

/// The number of transactions into which the checks after a failed one are divided. More of these checks may fail, and
/// each failure costs another transaction.
const PARTS: usize = 16;

/// The most contenders that an error names as the holders of a lock or the contenders in front. Few, because the leader
/// is asked for each, and the error must be returned in time.
pub(crate) const NAMED: usize = 8;

/// The longest pause before a check.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Whether a check holds, that is, whether the leader has the node, with the given version if there is one. A failure
/// is the reason why that is unknown.
pub(crate) type Holds = Result<bool, Failure>;

/// Returns the operation that checks that a node exists, with this version if one is given.
pub(crate) fn check(path: impl Into<String>, version: Option<i32>) -> Operation {
    Operation::Check { path: path.into(), version }
}

/// Returns for each check whether it holds at the leader now. Sends transactions until every result is known or cannot
/// be found out.
pub(crate) async fn run_checks(session: &Arc<dyn Session>, checks: &[Operation]) -> Vec<Holds> {
    let mut results = CheckResults::of(session, checks);
    while results.send_open(session, checks, &Tries::LOST_ANSWERS).await {}
    results.known
}

/// As [`run_checks`], but sends each check once. If a check fails, the result of each later check in the same
/// transaction stays unknown.
pub(super) async fn run_checks_once(session: &Arc<dyn Session>, checks: &[Operation]) -> Vec<Holds> {
    let mut results = CheckResults::of(session, checks);
    results.send_open(session, checks, &Tries::NONE).await;
    results.known
}

/// Returns the indices of the checks that are known not to hold.
pub(crate) async fn failing(session: &Arc<dyn Session>, checks: &[Operation]) -> Vec<usize> {
    let known = run_checks(session, checks).await.into_iter().enumerate();
    known.filter(|(_, holds)| *holds == Ok(false)).map(|(index, _)| index).collect()
}

/// Returns whether the leader has this node, with this version if one is given.
pub(crate) async fn is_there(session: &Arc<dyn Session>, path: impl Into<String>, version: Option<i32>) -> Holds {
    run_checks(session, &[check(path, version)]).await.swap_remove(0)
}

/// Returns the first of these nodes that exists. Repeats lost requests until the answer is known or the session is
/// over.
pub(crate) async fn first_there(session: &Arc<dyn Session>, paths: &[String]) -> Result<Option<String>, Failure> {
    let checks: Vec<_> = paths.iter().map(|path| check(path, None)).collect();
    let mut results = CheckResults::of(session, &checks);
    while results.send_open(session, &checks, &Tries::ENDLESS).await {}
    match results.known.iter().position(|holds| *holds == Ok(true)) {
        Some(there) => Ok(Some(paths[there].clone())),
        None => results.known.into_iter().find_map(Result::err).map_or(Ok(None), Err),
    }
}

/// The results so far of several checks.
struct CheckResults {
    known: Vec<Holds>,
    /// The indexes of the checks that are still to be sent. Each range becomes one transaction.
    open: Vec<Range<usize>>,
}

impl CheckResults {
    fn of(session: &Arc<dyn Session>, checks: &[Operation]) -> CheckResults {
        let longest = checks.iter().map(|check| session.request_bytes(slice::from_ref(check))).max();
        CheckResults::new(checks.len(), longest.unwrap_or_default())
    }

    /// Creates the results of `checks` checks, all unknown. Each check takes at most `longest` bytes in a request.
    fn new(checks: usize, longest: usize) -> CheckResults {
        let known = vec![Err(Failure::Unknown("not checked".to_owned())); checks];
        CheckResults { known, open: divided(0..checks, CHECKS_MAX.min(BYTES_MAX / longest.max(1))) }
    }

    /// Sends the checks that are still to be sent, and records their results. Returns `false` if there was none to
    /// send.
    async fn send_open(&mut self, session: &Arc<dyn Session>, checks: &[Operation], tries: &Tries) -> bool {
        let parts = self.parts();
        let answers =
            parts.iter().map(|part| repeated(session, tries.clone(), || session.transact(&checks[part.clone()])));
        for (part, answer) in parts.iter().zip(join_all(answers).await) {
            self.record(part, answer.map(drop));
        }
        !parts.is_empty()
    }

    fn parts(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.open)
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
            self.open.extend(divided(rest.clone(), rest.len().div_ceil(PARTS)));
        }
    }
}

/// Divides a range into parts of at most `most` elements.
fn divided(all: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let most = most.max(1);
    let starts = all.clone().step_by(most);
    starts.map(|start| start..all.end.min(start + most)).collect()
}

/// Returns the pause that follows `pause`: twice as long, but at most [`PAUSE_MAX`], and never less than one session
/// timeout.
fn next(pause: Duration, session_timeout: Duration) -> Duration {
    pause.saturating_mul(2).min(PAUSE_MAX).max(session_timeout)
}

/// Returns the pause, lengthened by up to a tenth. Without this jitter, waiters that began together would ask the
/// leader at the same moment.
fn with_jitter(pause: Duration, random: u64) -> Duration {
    pause + pause / 10_000 * u32::try_from(random % 1_000).unwrap_or(0)
}

/// The times at which one waiter asks the leader again. The pauses between them double.
pub(crate) struct Recheck<'a> {
    session: &'a Arc<dyn Session>,
    pause: Duration,
}

impl<'a> Recheck<'a> {
    pub(crate) fn new(session: &'a Arc<dyn Session>) -> Recheck<'a> {
        Recheck::after(session, false)
    }

    /// Returns the schedule of a new waiter. If the server has listed ghosts, the first pause is zero, because the
    /// server may list more of them.
    pub(crate) fn after(session: &'a Arc<dyn Session>, has_ghosts: bool) -> Recheck<'a> {
        let pause = if has_ghosts { Duration::ZERO } else { session.timeout() };
        Recheck { session, pause }
    }

    /// Waits for the event of a watch (`true`), or until a check is due (`false`). Fails if the event is the end of the
    /// session.
    pub(crate) async fn wait(&mut self, watch: &mut Watch) -> Result<bool, Failure> {
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

    /// Waits until a check is due. While the connection is lost, no check is due. After the reconnect a new pause
    /// begins, because the server then delivers the missed events. Never completes once the session is over.
    pub(crate) async fn pause(&mut self) {
        loop {
            if !retry::slept(self.session, with_jitter(self.pause, random())).await {
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

    /// Asks the leader again and again until the leader has this node (`is_there`) or does not have it (`!is_there`).
    pub(crate) async fn find(&mut self, path: &str, is_there: bool) {
        loop {
            self.pause().await;
            if self::is_there(self.session, path, None).await == Ok(is_there) {
                return;
            }
        }
    }
}

/// Asks the leader for these nodes, which the server lists in a directory. Returns the names of the ghosts that a
/// contender of this mode may ignore. A ghost is a node that the server lists although the ensemble has deleted it.
pub(crate) async fn ghosts_among<N: AsRef<str>>(
    session: &Arc<dyn Session>,
    directory: &str,
    names: &[N],
    (dialect, mode): (Dialect, Mode),
) -> Vec<Arc<str>> {
    let checks: Vec<_> = names.iter().map(|name| check(format!("{directory}/{}", name.as_ref()), None)).collect();
    let gone = failing(session, &checks).await;
    let gone = gone.into_iter().map(|index| names[index].as_ref().into()).collect();
    ghosts_of(session, directory, gone, (dialect, mode)).await
}

/// As [`ghosts_among`], for names whose nodes the leader is known not to have. Records each ghost, and logs an error if
/// it is new.
pub(crate) async fn ghosts_of(
    session: &Arc<dyn Session>,
    directory: &str,
    gone: Vec<Arc<str>>,
    (dialect, mode): (Dialect, Mode),
) -> Vec<Arc<str>> {
    // A server that missed a downgrade lists the writer's node, and not the reader's node that has replaced it. Writers
    // must wait for that reader, so the leader is asked for the reader's node too. If the reader's node exists, only
    // readers may ignore the ghost.
    let as_reader = |name: &Arc<str>| {
        let writer = Contender::parse_as(name, dialect).filter(|it| it.mode() == Mode::Write)?;
        Some(check(format!("{directory}/{}", writer.downgraded()), None))
    };
    let (writers, checks): (Vec<_>, Vec<_>) = gone.iter().filter_map(|name| Some((name, as_reader(name)?))).unzip();
    let known = writers.into_iter().zip(run_checks(session, &checks).await);
    let readers: BTreeSet<_> = known.filter(|(_, holds)| *holds != Ok(false)).map(|(name, _)| name).collect();
    let passable_by = |name| if readers.contains(name) { Mode::Read } else { Mode::Write };
    let found: Vec<_> = gone.iter().map(|name| (name, passable_by(name))).collect();
    let new = found.iter().filter(|(name, passable_by)| session.store().enter_ghost(directory, name, *passable_by));
    report_listed(session, directory, new.map(|(name, _)| Arc::clone(name)).collect());
    found
        .into_iter()
        .filter(|(_, passable_by)| may_pass(mode, *passable_by))
        .map(|(name, _)| Arc::clone(name))
        .collect()
}

/// As [`ghosts_among`], for the contenders in front of a waiter, in their order. Stops once [`NAMED`] of them are no
/// ghosts, so the ghosts behind those are not returned.
pub(crate) async fn ghosts_ahead(
    session: &Arc<dyn Session>,
    directory: &str,
    mut in_the_way: &[&str],
    (dialect, mode): (Dialect, Mode),
) -> Vec<Arc<str>> {
    let (mut ghosts, mut there) = (Vec::new(), 0);
    while there < NAMED && !in_the_way.is_empty() {
        let (first, rest) = in_the_way.split_at(in_the_way.len().min(NAMED - there));
        let found = ghosts_among(session, directory, first, (dialect, mode)).await;
        there += first.len() - found.len();
        ghosts.extend(found);
        in_the_way = rest;
    }
    ghosts
}

/// Logs an error if the server's answer about a node still differs from the leader's. Called after a check has shown a
/// change that no watch reported.
///
/// A read from the server is sent between two checks by the leader. The answer to the first check brings the server up
/// to the leader's state. So if both checks agree and the read differs, the server is wrong.
pub(crate) fn report(session: &Arc<dyn Session>, path: &str, version: Option<i32>) {
    let checks = [check(path, version)];
    // All three requests are sent without waiting for an answer, so that they go over one connection. After a
    // reconnect, the read might go to another server, which may only lag behind.
    let (before, read, after) = (session.transact(&checks), session.data(path), session.transact(&checks));
    let (on, path) = (Arc::clone(session), path.to_owned());
    session.spawn(Box::pin(async move {
        let (before, read, after) = (answered(before.await), read.await, answered(after.await));
        let is_at_server = match read {
            Ok((_, stat)) => version.is_none_or(|version| version == stat.version),
            Err(Failure::NoNode) => false,
            Err(_) => return,
        };
        // If the two checks differ, the node changed between them, and the read shows nothing.
        if before == after && before.is_some_and(|is_there| is_there != is_at_server) {
            let _logged = log_disagreement(&on, &path);
        }
    }));
}

/// As [`report`], for nodes that the leader no longer has. Logs an error for each of them that the server still lists.
pub(crate) fn report_listed(session: &Arc<dyn Session>, directory: &str, gone: Vec<Arc<str>>) {
    let Some(first) = gone.first() else { return };
    let checks = [check(format!("{directory}/{first}"), None)];
    let (before, names, after) = (session.transact(&checks), session.children(directory), session.transact(&checks));
    let (on, directory) = (Arc::clone(session), directory.to_owned());
    session.spawn(Box::pin(async move {
        let (before, names, after) = (answered(before.await), names.await, answered(after.await));
        let Ok(names) = names else { return };
        if (before, after) == (Some(false), Some(false)) {
            for ghost in gone.iter().filter(|ghost| names.iter().any(|name| **name == ***ghost)) {
                let _logged = log_disagreement(&on, &format!("{directory}/{ghost}"));
            }
        }
    }));
}

/// Returns whether the check holds, by the answer to a transaction with that check alone. `None` if the answer does not
/// show it.
fn answered(answer: Result<Vec<Outcome>, Failure>) -> Option<bool> {
    let mut results = CheckResults::new(1, 0);
    results.record(&(0..1), answer.map(drop));
    results.known.pop()?.ok()
}

/// Returns whether the leader has a node although the server has answered that the node does not exist. If so, this
/// waits until the request to the server may be repeated. Fails if `tries` allows no repetition.
pub(crate) async fn leader_still_has(session: &Arc<dyn Session>, path: &str, tries: &mut Tries) -> Holds {
    match is_there(session, path, None).await {
        Ok(true) if tries.are_over() => Err(Failure::Refused(log_disagreement(session, path))),
        Ok(true) => tries.pause(session).await.map(|()| true),
        answer => answer,
    }
}

/// The advice in an error about a server and a leader that do not agree.
const NEXT: &str = "zklock check, with that node as its path, asks all servers, and says what to do";

/// Logs an error that the server and the leader do not agree about the node at `path`. Returns the message for an error
/// to the caller.
///
/// The message blames neither, because the leader may be the server that has lost the node.
pub(crate) fn log_disagreement(session: &Arc<dyn Session>, path: &str) -> String {
    let server = session.server().unwrap_or_else(|| "unknown".to_owned());
    emit!(ERROR, node = path, server, "a server and the leader do not agree about a node: {NEXT}");
    disagreement(session)
}

/// Returns the message of [`log_disagreement`] without logging.
pub(crate) fn disagreement(session: &Arc<dyn Session>) -> String {
    let server = session.server().unwrap_or_else(|| "unknown".to_owned());
    format!("the server (address: {server}) and the leader do not agree about it: {NEXT}")
}

/// Fails if the event is the end of the session.
pub(crate) async fn unless_over(session: &Arc<dyn Session>, event: Event) -> Result<(), Failure> {
    match event {
        Event::Over => Err(Failure::Over(session.over().await)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
