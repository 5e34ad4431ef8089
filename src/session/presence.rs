//! Asks the leader whether it has certain nodes, and decides when a waiter asks. Waiters, holders and hand-offs use it.
//!
//! A crash of a server can lose the event of a watch, and a server can show a node that the ensemble no longer has. A
//! task that has received no event for long therefore asks the leader, by transactions that only check nodes and change
//! nothing. The leader answers in the order of all writes, and after every event of an earlier write. A failed
//! transaction names only the first operation that failed, so the checks behind it are asked again.

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
use crate::session::directories::may_pass;
use crate::session::request::{Event, Failure, Operation, Outcome, Watch};
use crate::session::retry::{self, Tries, repeated};
use crate::sync::random;
use crate::telemetry::log::emit;

/// The most checks, and the most bytes, in one transaction. ZooKeeper refuses a request of 1 MiB.
const CHECKS_MAX: usize = 1_000;
const BYTES_MAX: usize = 256 * 1024;

/// The number of transactions into which the checks behind a failed one are divided, because others may fail as well.
const PARTS: usize = 16;

/// The most contenders that an error names as being in the way. The number is small, because the error must come in time.
pub(crate) const NAMED: usize = 8;

/// The longest pause before a check.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Whether a check holds, or the reason why that is not known.
pub(crate) type Holds = Result<bool, Failure>;

/// Returns the operation that checks that a node is there, in this version if one is given.
pub(crate) fn check(path: impl Into<String>, version: Option<i32>) -> Operation {
    Operation::Check { path: path.into(), version }
}

/// Returns for each check whether it holds at the leader now.
pub(crate) async fn run_checks(session: &Arc<dyn Session>, checks: &[Operation]) -> Vec<Holds> {
    let mut results = CheckResults::of(session, checks);
    while results.send_open(session, checks, &Tries::LOST_ANSWERS).await {}
    results.known
}

/// As [`run_checks`], but each transaction is sent once. The checks behind a failed one stay unknown.
pub(super) async fn run_checks_once(session: &Arc<dyn Session>, checks: &[Operation]) -> Vec<Holds> {
    let mut results = CheckResults::of(session, checks);
    results.send_open(session, checks, &Tries::NONE).await;
    results.known
}

/// Returns the indices of the checks that do not hold.
pub(crate) async fn failing(session: &Arc<dyn Session>, checks: &[Operation]) -> Vec<usize> {
    let known = run_checks(session, checks).await.into_iter().enumerate();
    known.filter(|(_, holds)| *holds == Ok(false)).map(|(index, _)| index).collect()
}

/// Returns whether the leader has this node, in this version if one is given.
pub(crate) async fn is_there(session: &Arc<dyn Session>, path: impl Into<String>, version: Option<i32>) -> Holds {
    run_checks(session, &[check(path, version)]).await.swap_remove(0)
}

/// Returns the first of these nodes that is there. Asks until it is known, or the session is over.
pub(crate) async fn first_there(session: &Arc<dyn Session>, paths: &[String]) -> Result<Option<String>, Failure> {
    let checks: Vec<_> = paths.iter().map(|path| check(path, None)).collect();
    let mut results = CheckResults::of(session, &checks);
    while results.send_open(session, &checks, &Tries::ENDLESS).await {}
    match results.known.iter().position(|holds| *holds == Ok(true)) {
        Some(there) => Ok(Some(paths[there].clone())),
        None => results.known.into_iter().find_map(Result::err).map_or(Ok(None), Err),
    }
}

/// Several checks, and their results so far.
struct CheckResults {
    known: Vec<Holds>,
    /// The checks that are to be asked. Each range becomes one transaction.
    open: Vec<Range<usize>>,
}

impl CheckResults {
    fn of(session: &Arc<dyn Session>, checks: &[Operation]) -> CheckResults {
        let longest = checks.iter().map(|check| session.request_bytes(slice::from_ref(check))).max();
        CheckResults::new(checks.len(), longest.unwrap_or_default())
    }

    /// Returns a results of `checks` checks, each of at most `longest` bytes.
    fn new(checks: usize, longest: usize) -> CheckResults {
        let known = vec![Err(Failure::Unknown("not checked".to_owned())); checks];
        CheckResults { known, open: divided(0..checks, CHECKS_MAX.min(BYTES_MAX / longest.max(1))) }
    }

    /// Sends the open checks, and records the answers. Returns whether any check was open.
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
            // The failure concerns no single check, so the whole range stays unknown.
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

/// Divides a range into parts of at most `most`.
fn divided(all: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let most = most.max(1);
    let starts = all.clone().step_by(most);
    starts.map(|start| start..all.end.min(start + most)).collect()
}

/// Returns the pause after this one: twice as long, from one session timeout to [`PAUSE_MAX`].
fn next(pause: Duration, session_timeout: Duration) -> Duration {
    pause.saturating_mul(2).min(PAUSE_MAX).max(session_timeout)
}

/// Returns the pause with a jitter of up to a tenth, because many waiters begin at once.
fn with_jitter(pause: Duration, random: u64) -> Duration {
    pause + pause / 10_000 * u32::try_from(random % 1_000).unwrap_or(0)
}

/// Decides when one waiter asks the leader again whether a node is there, with pauses that double.
pub(crate) struct Recheck<'a> {
    session: &'a Arc<dyn Session>,
    pause: Duration,
}

impl<'a> Recheck<'a> {
    pub(crate) fn new(session: &'a Arc<dyn Session>) -> Recheck<'a> {
        Recheck::after(session, false)
    }

    /// Returns a recheck whose first check is due at once if the server has shown ghosts, because it may show more of
    /// them.
    pub(crate) fn after(session: &'a Arc<dyn Session>, has_ghosts: bool) -> Recheck<'a> {
        let pause = if has_ghosts { Duration::ZERO } else { session.timeout() };
        Recheck { session, pause }
    }

    /// Waits for the event of a watch, or until a check is due. Returns whether the watch fired. Fails if the watch
    /// reports the end of its session.
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

    /// Waits until a check is due. No check is due while the connection is lost, because events of that time come after
    /// the reconnect.
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

    /// Waits until the leader has this node (`is_there`), or no longer has it (`!is_there`).
    pub(crate) async fn find(&mut self, path: &str, is_there: bool) {
        loop {
            self.pause().await;
            if self::is_there(self.session, path, None).await == Ok(is_there) {
                return;
            }
        }
    }
}

/// Asks the leader for these nodes, which the server shows in a directory. Returns the ghosts for this mode: the nodes of
/// contenders that have left, except those that this mode may not pass over.
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

/// As [`ghosts_among`], for names that the leader is known not to have. Logs each new ghost.
pub(crate) async fn ghosts_of(
    session: &Arc<dyn Session>,
    directory: &str,
    gone: Vec<Arc<str>>,
    (dialect, mode): (Dialect, Mode),
) -> Vec<Arc<str>> {
    // A server that missed a downgrade shows neither the deletion of the writer nor the node of the reader. A later
    // writer must wait for that reader, so the leader is asked for it as well.
    let as_reader = |name: &Arc<str>| {
        let writer = Contender::parse_as(name, dialect).filter(|it| it.mode() == Mode::Write)?;
        Some(check(format!("{directory}/{}", writer.downgraded()), None))
    };
    let (writers, checks): (Vec<_>, Vec<_>) = gone.iter().filter_map(|name| Some((name, as_reader(name)?))).unzip();
    let known = writers.into_iter().zip(run_checks(session, &checks).await);
    let readers: BTreeSet<_> = known.filter(|(_, holds)| *holds != Ok(false)).map(|(name, _)| name).collect();
    let passable_by = |name| if readers.contains(name) { Mode::Read } else { Mode::Write };
    let found: Vec<_> = gone.iter().map(|name| (name, passable_by(name))).collect();
    let ghosts = session.store().ghosts();
    let new = found.iter().filter(|(name, passable_by)| ghosts.enter(directory, name, *passable_by));
    report_listed(session, directory, new.map(|(name, _)| Arc::clone(name)).collect());
    found
        .into_iter()
        .filter(|(_, passable_by)| may_pass(mode, *passable_by))
        .map(|(name, _)| Arc::clone(name))
        .collect()
}

/// As [`ghosts_among`], for contenders in the way in the order of arrival. Asks until [`NAMED`] of them may be there.
/// Returns the ghosts before and between those.
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

/// Logs an error if the server still shows a node differently from the leader. Called after a check found a change that
/// no watch reported. The server's read is sent between two checks by the leader. The answer to the first check brings
/// the server up to the leader's state, so if both checks agree and the read differs, the server errs.
pub(crate) fn report(session: &Arc<dyn Session>, path: &str, version: Option<i32>) {
    let checks = [check(path, version)];
    // One connection carries all three requests; another server might only lag.
    let (before, read, after) = (session.transact(&checks), session.data(path), session.transact(&checks));
    let (on, path) = (Arc::clone(session), path.to_owned());
    session.spawn(Box::pin(async move {
        let (before, read, after) = (answered(before.await), read.await, answered(after.await));
        let is_at_server = match read {
            Ok((_, stat)) => version.is_none_or(|version| version == stat.version),
            Err(Failure::NoNode) => false,
            Err(_) => return,
        };
        // If the two checks differ, the node changed in between.
        if before == after && before.is_some_and(|is_there| is_there != is_at_server) {
            let _logged = log_disagreement(&on, &path);
        }
    }));
}

/// As [`report`], for nodes in a directory that the leader no longer has. Logs an error for each that the server still
/// lists.
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

/// Returns whether the check holds, from the answer to a transaction of one check; `None` if that is not known.
fn answered(answer: Result<Vec<Outcome>, Failure>) -> Option<bool> {
    let mut results = CheckResults::new(1, 0);
    results.record(&(0..1), answer.map(drop));
    results.known.pop()?.ok()
}

/// Returns whether the leader has a node that the server denies. If so, the caller may ask the server again, but only a
/// limited number of times.
pub(crate) async fn leader_still_has(session: &Arc<dyn Session>, path: &str, tries: &mut Tries) -> Holds {
    match is_there(session, path, None).await {
        Ok(true) if tries.are_over() => Err(Failure::Refused(log_disagreement(session, path))),
        Ok(true) => tries.pause(session).await.map(|()| true),
        answer => answer,
    }
}

/// The advice of an error about a node on which a server and the leader do not agree.
const NEXT: &str = "zklock check, with that node as its path, asks all servers, and says what to do";

/// Logs an error: the server and the leader do not agree about this node. Returns the same in words.
///
/// Either of them may be wrong: the leader itself may be the one server that has lost the node.
pub(crate) fn log_disagreement(session: &Arc<dyn Session>, path: &str) -> String {
    let server = session.server().unwrap_or_else(|| "unknown".to_owned());
    emit!(ERROR, node = path, server, "a server and the leader do not agree about a node: {NEXT}");
    disagreement(session)
}

/// Returns the words of [`log_disagreement`].
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
