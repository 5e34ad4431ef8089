//! Whether the leader has certain nodes: asked with transactions that only check them, which change nothing.
//!
//! The leader answers in the order of all writes, and a session's server has all that was written before by the time of the
//! answer. A transaction names only the first of its operations that fails, so the rest is asked again.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::session::contract::Session;
use crate::session::request::{Failure, Operation, Outcome};
use crate::session::retry;

/// How many nodes one transaction checks at most: it must stay far below ZooKeeper's limit of 1 MiB.
const CHECKS_MAX: usize = 500;

/// Into how many transactions the checks behind one that failed are divided: others may have failed as well.
const PARTS: usize = 16;

/// Whether a check holds. An error says why that is not known.
pub(crate) type Holds = Result<bool, Failure>;

/// Checks that a node is there, and has this version if one is given.
pub(crate) fn check(path: String, version: Option<i32>) -> Operation {
    Operation::Check { path, version }
}

/// Whether each of these checks holds at the leader now.
pub(crate) async fn ask(session: &Arc<dyn Session>, checks: &[Operation]) -> Vec<Holds> {
    let mut question = Question::of(checks.len());
    loop {
        let parts = question.parts();
        if parts.is_empty() {
            return question.known;
        }
        let asked = parts.iter().map(|part| retry::until_known(session, || session.transact(&checks[part.clone()])));
        for (part, answer) in parts.iter().zip(join_all(asked).await) {
            question.hears(part, answer.map(drop));
        }
    }
}

/// The indices of those of these checks that do not hold.
pub(crate) async fn failing(session: &Arc<dyn Session>, checks: &[Operation]) -> Vec<usize> {
    let known = ask(session, checks).await.into_iter().enumerate();
    known.filter(|(_, holds)| *holds == Ok(false)).map(|(index, _)| index).collect()
}

/// What the answer to a transaction of one check says of it.
pub(crate) fn answered(answer: Result<Vec<Outcome>, Failure>) -> Option<bool> {
    let mut question = Question::of(1);
    question.hears(&(0..1), answer.map(drop));
    question.known.pop()?.ok()
}

/// Whether the leader has this node, in this version if one is given; `None` if that is not known.
pub(crate) async fn is_there(session: &Arc<dyn Session>, path: String, version: Option<i32>) -> Option<bool> {
    ask(session, &[check(path, version)]).await.pop()?.ok()
}

/// The first of these nodes that is there. Asks for as long as the session lives.
pub(crate) async fn first_there(session: &Arc<dyn Session>, paths: &[String]) -> Result<Option<String>, Failure> {
    let checks: Vec<_> = paths.iter().map(|path| check(path.clone(), None)).collect();
    loop {
        let known = ask(session, &checks).await;
        if let Some(there) = known.iter().position(|holds| *holds == Ok(true)) {
            return Ok(Some(paths[there].clone()));
        }
        match known.into_iter().find_map(Result::err) {
            Some(Failure::Unknown(_)) => {}
            Some(failure) => return Err(failure),
            None => return Ok(None),
        }
    }
}

/// Several checks, and what is known of them.
struct Question {
    known: Vec<Holds>,
    /// Those that are to be asked, each part in one transaction.
    open: Vec<Range<usize>>,
}

impl Question {
    fn of(checks: usize) -> Question {
        let known = vec![Err(Failure::Unknown("not asked".to_owned())); checks];
        Question { known, open: divided(0..checks, CHECKS_MAX) }
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
    let starts = all.clone().step_by(most.max(1));
    starts.map(|start| start..all.end.min(start + most)).collect()
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
        let (mut question, mut rounds, mut transactions) = (Question::of(checks), 0, 0);
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
        let mut question = Question::of(CHECKS_MAX + 1);
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
}
