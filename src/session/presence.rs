//! Whether the leader has certain nodes, and when to ask for that.
//!
//! A server can lose the notification of a watch with its last moments, and can show a node that the ensemble no longer has.
//! So a task that has heard nothing for long asks the leader, with transactions that only check the nodes, which change
//! nothing. The leader answers in the order of all writes, and after every event of what was written before. A transaction
//! names only the first of its operations that fails, so the rest is asked again.

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
use crate::session::directories::passes;
use crate::session::request::{Event, Failure, Operation, Outcome, Watch};
use crate::session::retry::{self, Tries, repeated};
use crate::sync::random;
use crate::telemetry::log::emit;

/// How many checks one transaction has at most, and how many bytes: ZooKeeper refuses a request of 1 MiB.
const CHECKS_MAX: usize = 1_000;
const BYTES_MAX: usize = 256 * 1024;

/// Into how many transactions the checks behind one that failed are divided: others may have failed as well.
const PARTS: usize = 16;

/// How many contenders in the way an error names: it must come in time.
pub(crate) const NAMED: usize = 8;

/// The longest pause before a look.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Whether a check holds. An error says why that is not known.
pub(crate) type Holds = Result<bool, Failure>;

/// Checks that a node is there, and has this version if one is given.
pub(crate) fn check(path: impl Into<String>, version: Option<i32>) -> Operation {
    Operation::Check { path: path.into(), version }
}

/// Whether each of these checks holds at the leader now.
pub(crate) async fn ask(session: &Arc<dyn Session>, checks: &[Operation]) -> Vec<Holds> {
    let mut question = Question::of(session, checks);
    while question.ask(session, checks, &Tries::LOST_ANSWERS).await {}
    question.known
}

/// As [`ask`], with one transaction for each batch, sent once. What is behind a check that fails stays unknown.
pub(super) async fn ask_once(session: &Arc<dyn Session>, checks: &[Operation]) -> Vec<Holds> {
    let mut question = Question::of(session, checks);
    question.ask(session, checks, &Tries::NONE).await;
    question.known
}

/// The indices of those of these checks that do not hold.
pub(crate) async fn failing(session: &Arc<dyn Session>, checks: &[Operation]) -> Vec<usize> {
    let known = ask(session, checks).await.into_iter().enumerate();
    known.filter(|(_, holds)| *holds == Ok(false)).map(|(index, _)| index).collect()
}

/// Whether the leader has this node, in this version if one is given.
pub(crate) async fn is_there(session: &Arc<dyn Session>, path: impl Into<String>, version: Option<i32>) -> Holds {
    ask(session, &[check(path, version)]).await.swap_remove(0)
}

/// The first of these nodes that is there. Asks for as long as the session lives.
pub(crate) async fn first_there(session: &Arc<dyn Session>, paths: &[String]) -> Result<Option<String>, Failure> {
    let checks: Vec<_> = paths.iter().map(|path| check(path, None)).collect();
    let mut question = Question::of(session, &checks);
    while question.ask(session, &checks, &Tries::ENDLESS).await {}
    match question.known.iter().position(|holds| *holds == Ok(true)) {
        Some(there) => Ok(Some(paths[there].clone())),
        None => question.known.into_iter().find_map(Result::err).map_or(Ok(None), Err),
    }
}

/// Several checks, and what is known of them.
struct Question {
    known: Vec<Holds>,
    /// Those that are to be asked, each part in one transaction.
    open: Vec<Range<usize>>,
}

impl Question {
    fn of(session: &Arc<dyn Session>, checks: &[Operation]) -> Question {
        let longest = checks.iter().map(|check| session.request_bytes(slice::from_ref(check))).max();
        Question::new(checks.len(), longest.unwrap_or_default())
    }

    /// So many checks, none with more than so many bytes.
    fn new(checks: usize, longest: usize) -> Question {
        let known = vec![Err(Failure::Unknown("not asked".to_owned())); checks];
        Question { known, open: divided(0..checks, CHECKS_MAX.min(BYTES_MAX / longest.max(1))) }
    }

    /// Asks what is open now. Returns whether anything was.
    async fn ask(&mut self, session: &Arc<dyn Session>, checks: &[Operation], tries: &Tries) -> bool {
        let parts = self.parts();
        let asked =
            parts.iter().map(|part| repeated(session, tries.clone(), || session.transact(&checks[part.clone()])));
        for (part, answer) in parts.iter().zip(join_all(asked).await) {
            self.record(part, answer.map(drop));
        }
        !parts.is_empty()
    }

    /// What to ask next.
    fn parts(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.open)
    }

    /// The answer to one of the parts.
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
            // It says nothing of any of them.
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

/// Parts of these, none with more than `most`.
fn divided(all: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let most = most.max(1);
    let starts = all.clone().step_by(most);
    starts.map(|start| start..all.end.min(start + most)).collect()
}

/// The pause after this one. The first is one session timeout.
fn next(pause: Duration, session_timeout: Duration) -> Duration {
    pause.saturating_mul(2).min(PAUSE_MAX).max(session_timeout)
}

/// Up to a tenth longer, by lot: many begin to wait at once.
fn with_jitter(pause: Duration, random: u64) -> Duration {
    pause + pause / 10_000 * u32::try_from(random % 1_000).unwrap_or(0)
}

/// The looks of one that waits.
pub(crate) struct Recheck<'a> {
    session: &'a Arc<dyn Session>,
    pause: Duration,
}

impl<'a> Recheck<'a> {
    pub(crate) fn new(session: &'a Arc<dyn Session>) -> Recheck<'a> {
        Recheck::after(session, false)
    }

    /// A server that has shown a node that was gone may show more of them: then the first look comes at once.
    pub(crate) fn after(session: &'a Arc<dyn Session>, has_ghosts: bool) -> Recheck<'a> {
        let pause = if has_ghosts { Duration::ZERO } else { session.timeout() };
        Recheck { session, pause }
    }

    /// Waits for the event of a watch, or until a look is due. Returns whether the watch has told something. Fails if it has
    /// told of the end of its session.
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

    /// Waits until a look is due. None is while the connection is lost: what happens then is told when it is back.
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

    /// Waits until the leader has this node, or has it no longer.
    pub(crate) async fn find(&mut self, path: &str, is_there: bool) {
        loop {
            self.pause().await;
            if self::is_there(self.session, path, None).await == Ok(is_there) {
                return;
            }
        }
    }
}

/// Asks the leader for these nodes, which the server shows in a directory. Returns the ghosts for this mode: the contenders
/// that have left, as far as such a one may pass over them.
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

/// As [`ghosts_among`], of names that the leader does not have: those whose contenders have left. Logs those that are news.
pub(crate) async fn ghosts_of(
    session: &Arc<dyn Session>,
    directory: &str,
    gone: Vec<Arc<str>>,
    (dialect, mode): (Dialect, Mode),
) -> Vec<Arc<str>> {
    // A server that has missed a downgrade does not show the reader, which a writer waits for. Another one does.
    let as_reader = |name: &Arc<str>| {
        let writer = Contender::parse_as(name, dialect).filter(|it| it.mode() == Mode::Write)?;
        Some(check(format!("{directory}/{}", writer.downgraded()), None))
    };
    let (writers, checks): (Vec<_>, Vec<_>) = gone.iter().filter_map(|name| Some((name, as_reader(name)?))).unzip();
    let known = writers.into_iter().zip(ask(session, &checks).await);
    let readers: BTreeSet<_> = known.filter(|(_, holds)| *holds != Ok(false)).map(|(name, _)| name).collect();
    let by = |name| if readers.contains(name) { Mode::Read } else { Mode::Write };
    let found: Vec<_> = gone.iter().map(|name| (name, by(name))).collect();
    let ghosts = session.upkeep().ghosts();
    let new = found.iter().filter(|(name, by)| ghosts.enter(directory, name, *by));
    report_listed(session, directory, new.map(|(name, _)| Arc::clone(name)).collect());
    found.into_iter().filter(|(_, by)| passes(mode, *by)).map(|(name, _)| Arc::clone(name)).collect()
}

/// As [`ghosts_among`], of contenders in the way in the order of arrival: asks until [`NAMED`] are known that may be there. Returns
/// the ghosts before and between them.
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

/// A look has found what no watch has told. Logs an error if the server goes on showing a node as the leader does not have
/// it. Its answer between two of the leader's proves that: by then a server has all that the leader had.
pub(crate) fn report(session: &Arc<dyn Session>, path: &str, version: Option<i32>) {
    let checks = [check(path, version)];
    // On one connection: otherwise a server could answer that only lags.
    let (before, read, after) = (session.transact(&checks), session.data(path), session.transact(&checks));
    let (asked, path) = (Arc::clone(session), path.to_owned());
    session.spawn(Box::pin(async move {
        let (before, read, after) = (answered(before.await), read.await, answered(after.await));
        let is_at_server = match read {
            Ok((_, stat)) => version.is_none_or(|version| version == stat.version),
            Err(Failure::NoNode) => false,
            Err(_) => return,
        };
        // It may have changed in between.
        if before == after && before.is_some_and(|is_there| is_there != is_at_server) {
            let _logged = log_disagreement(&asked, &path);
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
                let _logged = log_disagreement(&asked, &format!("{directory}/{ghost}"));
            }
        }
    }));
}

/// What the answer to a transaction of one check says of it.
fn answered(answer: Result<Vec<Outcome>, Failure>) -> Option<bool> {
    let mut question = Question::new(1, 0);
    question.record(&(0..1), answer.map(drop));
    question.known.pop()?.ok()
}

/// A server denies this node. Returns whether the leader has it; if so, the server may be asked again, but not for ever.
pub(crate) async fn leader_still_has(session: &Arc<dyn Session>, path: &str, tries: &mut Tries) -> Holds {
    match is_there(session, path, None).await {
        Ok(true) if tries.are_over() => Err(Failure::Refused(log_disagreement(session, path))),
        Ok(true) => tries.pause(session).await.map(|()| true),
        answer => answer,
    }
}

/// What to do where a server and the leader do not agree about a node.
const NEXT: &str = "zklock check, with that node as its path, asks all servers, and says what to do";

/// The server goes on showing this node as the leader does not have it. Logs an error, and says the same in words.
///
/// It cannot tell which of the two is wrong: the leader itself may be the one server that has lost the node.
pub(crate) fn log_disagreement(session: &Arc<dyn Session>, path: &str) -> String {
    let server = session.server().unwrap_or_else(|| "unknown".to_owned());
    emit!(ERROR, node = path, server, "a server and the leader do not agree about a node: {NEXT}");
    disagreement(session)
}

/// The words of [`diverged`].
pub(crate) fn disagreement(session: &Arc<dyn Session>) -> String {
    let server = session.server().unwrap_or_else(|| "unknown".to_owned());
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
mod tests;
