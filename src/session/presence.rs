//! Whether the leader has certain nodes, and when to ask for that.
//!
//! A server can lose the notification of a watch with its last moments, and can show a node that the ensemble no longer has.
//! So a task that has heard nothing for long asks the leader, with transactions that only check the nodes, which change
//! nothing. The leader answers in the order of all writes, and after every event of what was written before. A transaction
//! names only the first of its operations that fails, so the rest is asked again.

use std::future::pending;
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::session::contract::Session;
use crate::session::request::{Event, Failure, Operation, Outcome, Watch};
use crate::session::retry::{self, Tries, repeated};
use crate::sync::random;
use crate::telemetry::log::tell;

/// How many checks one transaction has at most, and how many bytes: ZooKeeper refuses a request of 1 MiB.
const CHECKS_MAX: usize = 1_000;
const BYTES_MAX: usize = 256 * 1024;

/// Into how many transactions the checks behind one that failed are divided: others may have failed as well.
const PARTS: usize = 16;

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
    while question.asks(session, checks, Tries::of_unknown).await {}
    question.known
}

/// As [`ask`], with one transaction for each batch, sent once. What is behind a check that fails stays unknown.
pub(super) async fn ask_once(session: &Arc<dyn Session>, checks: &[Operation]) -> Vec<Holds> {
    let mut question = Question::of(session, checks);
    question.asks(session, checks, Tries::default).await;
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
    while question.asks(session, &checks, Tries::endless).await {}
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
    async fn asks(&mut self, session: &Arc<dyn Session>, checks: &[Operation], tries: fn() -> Tries) -> bool {
        let parts = self.parts();
        let asked = parts.iter().map(|part| repeated(session, tries(), || session.transact(&checks[part.clone()])));
        for (part, answer) in parts.iter().zip(join_all(asked).await) {
            self.hears(part, answer.map(drop));
        }
        !parts.is_empty()
    }

    /// What to ask next.
    fn parts(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.open)
    }

    /// The answer to one of the parts.
    fn hears(&mut self, part: &Range<usize>, answer: Result<(), Failure>) {
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

    /// Waits until the leader has this node, or has it no longer.
    pub(crate) async fn finds(&mut self, path: &str, is_there: bool) {
        loop {
            self.pause().await;
            if self::is_there(self.session, path, None).await == Ok(is_there) {
                return;
            }
        }
    }
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

/// What the answer to a transaction of one check says of it.
fn answered(answer: Result<Vec<Outcome>, Failure>) -> Option<bool> {
    let mut question = Question::new(1, 0);
    question.hears(&(0..1), answer.map(drop));
    question.known.pop()?.ok()
}

/// A server denies this node. Returns whether the leader has it; if so, the server may be asked again, but not for ever.
pub(crate) async fn denied(session: &Arc<dyn Session>, path: &str, tries: &mut Tries) -> Holds {
    match is_there(session, path, None).await {
        Ok(true) if tries.are_over() => Err(Failure::Refused(diverged(session, path))),
        Ok(true) => tries.pause(session).await.map(|()| true),
        answer => answer,
    }
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

    /// What a leader answers that fails these checks, each in its own way.
    fn answer(part: &Range<usize>, fails: &dyn Fn(usize) -> Option<Failure>) -> Result<(), Failure> {
        let first = part.clone().find_map(|check| Some((check, fails(check)?)));
        first.map_or(Ok(()), |(check, failure)| {
            Err(Failure::Operation { index: check - part.start, failure: Box::new(failure) })
        })
    }

    /// What is known at last of so many checks, and after how many answers.
    fn asked(checks: usize, fails: &dyn Fn(usize) -> Option<Failure>) -> (Vec<Holds>, usize, usize) {
        let (mut question, mut rounds, mut transactions) = (Question::new(checks, 100), 0, 0);
        loop {
            let parts = question.parts();
            if parts.is_empty() {
                return (question.known, rounds, transactions);
            }
            rounds += 1;
            transactions += parts.len();
            parts.iter().for_each(|part| question.hears(part, answer(part, fails)));
        }
    }

    #[test]
    fn every_subset_of_checks_that_fail_is_found() {
        for checks in 0..=10_usize {
            for failing in 0_u32..1 << checks {
                let fails = |check| (failing >> check & 1 == 1).then_some(Failure::NoNode);
                let expected: Vec<_> = (0..checks).map(|check| Ok(fails(check).is_none())).collect();
                assert_eq!(asked(checks, &fails).0, expected);
            }
        }
    }

    #[test]
    fn a_node_that_may_not_be_checked_is_unknown_and_no_other() {
        let no_auth = || Failure::NoAuth(Box::default());
        for denied in 0..6 {
            let fails = |check| match check {
                _ if check == denied => Some(no_auth()),
                2 | 4 => Some(Failure::NoNode),
                _ => None,
            };
            let known = asked(6, &fails).0;
            for (check, holds) in known.into_iter().enumerate() {
                let expected = if check == denied { Err(no_auth()) } else { Ok(check != 2 && check != 4) };
                assert_eq!(holds, expected, "{check} beside {denied}");
            }
        }
    }

    #[test]
    fn an_answer_that_is_lost_leaves_its_own_checks_unknown() {
        let mut question = Question::new(CHECKS_MAX + 1, 100);
        let parts = question.parts();
        assert_eq!(parts, [0..CHECKS_MAX, CHECKS_MAX..CHECKS_MAX + 1]);
        question.hears(&parts[0], Err(Failure::Unknown("the connection broke".to_owned())));
        question.hears(&parts[1], Ok(()));
        assert!(question.parts().is_empty());
        assert!(question.known[..CHECKS_MAX].iter().all(Result::is_err) && question.known[CHECKS_MAX] == Ok(true));
        let beyond = Failure::Operation { index: CHECKS_MAX, failure: Box::new(Failure::NoNode) };
        question.hears(&parts[0], Err(beyond.clone()));
        assert_eq!((question.parts().len(), &question.known[0]), (0, &Err(beyond)), "it is none of this transaction");
    }

    #[test]
    fn no_transaction_of_checks_is_larger_than_a_quarter_of_what_servers_accept() {
        for (longest, expected) in [(60, 1_000), (262, 1_000), (300, 873), (1_100, 238), (1_000_000, 1)] {
            let mut question = Question::new(3_000, longest);
            assert!(question.parts().into_iter().take(2).all(|part| part.len() == expected), "{longest}");
        }
    }

    /// All is there, all is gone, one of a thousand is gone.
    #[test]
    fn a_question_takes_one_answer_more_for_each_that_fails_and_few_round_trips() {
        let (_, rounds, transactions) = asked(CHECKS_MAX, &|_| None);
        assert_eq!((rounds, transactions), (1, 1));
        let (_, rounds, transactions) = asked(17, &|_| Some(Failure::NoNode));
        assert_eq!((rounds, transactions), (2, 17));
        let (_, rounds, transactions) = asked(CHECKS_MAX, &|check| (check == 300).then_some(Failure::NoNode));
        assert_eq!((rounds, transactions), (2, 1 + 16));
        let (_, rounds, transactions) = asked(CHECKS_MAX, &|_| Some(Failure::NoNode));
        assert_eq!((rounds, transactions), (4, CHECKS_MAX));
    }

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
