//! Random runs of the model, written as a server's log and as traces, and checked by `support::replay`. The check must
//! accept the runs of the correct model, and refuse runs of the wrong ones. This shows that the rules of
//! `support::replay`, which are stated independently, agree with the model.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use stateright::Model;
use support::replay::{MILLISECOND, OF_THE_MODEL, Run, judge};
use support::scene::Seeded;
use support::trace::{Event, What};
use support::txn_log::{Op, Txn};
use zk_rwlock::Mode;

use crate::model::{ALL, PLAIN, companies, of};
use crate::protocol::{self, Action, Asking, Node, Protocol, Signals, State, Step};

const PATH: &str = "/model/lock";
/// The time between two steps. It is longer than the time within which the report of a loss must arrive.
const PAUSE: Duration = Duration::from_secs(3);
/// The session id of an operator. The sessions of contenders have lower ids.
const OPERATOR: i64 = 99;
/// The number of random runs of each protocol.
const PATHS: u64 = 2_000;

/// A random run of the model, with its log and its events.
struct Walk<'m> {
    model: &'m Protocol,
    run: Run,
    time: Duration,
    /// The token of each node, by the node's sequence number.
    tokens: HashMap<u32, i64>,
}

fn path(node: Node) -> String {
    format!("{PATH}/{}", node.contender().as_str())
}

fn session(member: usize) -> i64 {
    member as i64 + 1
}

/// Returns the node of a member that holds, or that could use its idle node without a request.
fn held(step: Step) -> Option<Node> {
    match step {
        Step::Holding(node) | Step::Idle(node) => Some(node),
        _ => None,
    }
}

impl Walk<'_> {
    fn zxid(&self) -> i64 {
        self.run.log.len() as i64 + 1
    }

    fn writes(&mut self, session: i64, ops: Vec<Op>) {
        self.run.log.push(Txn { zxid: self.zxid(), time: self.time, session, ops });
    }

    fn tells(&mut self, at: Duration, who: u64, what: What, node: Option<Node>, how: &str) {
        let (mut path, mut mode, mut token, mut sequence) = (PATH.to_owned(), String::new(), 0, -1);
        if let Some(node) = node {
            mode = if node.mode == Mode::Read { "READ" } else { "WRITE" }.to_owned();
            (token, sequence) = (self.tokens[&node.sequence], node.sequence.into());
            if what == What::Lost {
                path = self::path(node);
            }
        }
        self.run.events.push(Event {
            at,
            who,
            what,
            path,
            mode,
            token,
            sequence,
            how: how.to_owned(),
            is_delayed: false,
        });
    }

    /// Writes one step of member `i` into the log and the events.
    fn takes(&mut self, action: Action, i: usize, from: &State, to: &State) {
        self.time += PAUSE;
        let (before, after) = (self.time - MILLISECOND, self.time + MILLISECOND);
        let (was, is) = (&from.members[i], &to.members[i]);
        let (who, of_hold) = (i as u64, i as u64 + 10);
        let came = to.nodes.iter().find(|node| !from.nodes.contains(node)).copied();
        let left = from.nodes.iter().find(|node| !to.nodes.contains(node)).copied();
        let hold = held(was.step);

        // These events occur before the step's transaction.
        match (action, hold) {
            (Action::Release(_), _) => self.tells(before, of_hold, What::Released, hold, ""),
            (Action::Expire(_), Some(_)) => self.tells(before, who, What::Lost, hold, "the session is over"),
            (Action::Notify(_), Some(_)) if is.step == Step::Done => {
                self.tells(before, who, What::GivenUp, hold, "asked")
            }
            (Action::GiveUp(_), Some(_)) => self.tells(before, who, What::GivenUp, hold, "idle"),
            _ => {}
        }

        let create = |node| Op::Create { path: path(node), data: Vec::new(), ephemeral: true };
        let delete = |node| Op::Delete { path: path(node) };
        match (action, came, left) {
            (Action::Expire(_), ..) => self.writes(session(i), vec![Op::End]),
            (Action::OperatorAsks, ..) => {
                self.writes(OPERATOR, vec![Op::Set { path: PATH.to_owned(), data: Vec::new() }])
            }
            (Action::Ask(_), ..) if from.version != to.version => {
                self.writes(session(i), vec![Op::Set { path: PATH.to_owned(), data: Vec::new() }]);
            }
            (_, Some(came), Some(left)) => self.writes(session(i), vec![create(came), delete(left)]),
            (_, Some(came), None) => {
                self.tokens.insert(came.sequence, self.zxid());
                self.writes(session(i), vec![create(came)]);
            }
            (_, None, Some(left)) => {
                let signals = match action {
                    Action::Cancel(_) => self.model.signals == Signals::CancelledWaitersToo,
                    Action::Release(_) => left.mode == Mode::Write || self.model.signals == Signals::ReadersToo,
                    _ => left.mode == Mode::Write,
                };
                let signal = signals.then(|| Op::Set { path: path(left), data: Vec::new() });
                self.writes(session(i), signal.into_iter().chain([delete(left)]).collect());
            }
            (_, None, None) => {}
        }

        // These events occur after the step's transaction.
        let is_over = |step| matches!(step, Step::Outside | Step::Done) || held(step).is_some();
        if was.step == Step::Outside && is.step != Step::Outside {
            self.tells(after, who, What::Asked, None, "");
        }
        match (action, is.step) {
            (Action::Recover(_), Step::Outside) => self.tells(after, who, What::Missed, None, "nobody"),
            (Action::Recover(_), Step::Listing(_)) => self.tells(after, who, What::Found, None, ""),
            (Action::Downgrade(_), Step::Holding(reads)) => {
                self.tells(after, of_hold, What::Released, hold, "");
                self.tells(after, of_hold, What::Holds, Some(reads), "");
            }
            (Action::UseAgain(_), Step::Holding(again)) => {
                self.tells(after, who, What::Got, Some(again), "");
                self.tells(after, of_hold, What::Holds, Some(again), "");
            }
            (_, Step::Holding(got)) if hold.is_none() => {
                let by = was.events.first().map(|(_, event)| *event);
                let is_signalled = matches!(action, Action::See(_)) && by == Some(protocol::Event::Changed);
                self.tells(after, who, What::Granted, Some(got), if is_signalled { "hand-off" } else { "look" });
                self.tells(after, who, What::Got, Some(got), "");
                self.tells(after, of_hold, What::Holds, Some(got), "");
            }
            _ => {}
        }
        // The end of a session also ends an acquisition. The model has no step for that.
        if matches!(action, Action::Expire(_)) || (!is_over(was.step) && is_over(is.step)) {
            self.tells(after, who, What::Ended, None, "");
        }
    }
}

fn member(action: Action) -> usize {
    match action {
        Action::OperatorAsks => 0,
        Action::ArmDirectory(i)
        | Action::Enter(i)
        | Action::EnterAnswerLost(i)
        | Action::EnterRequestLost(i)
        | Action::Recover(i)
        | Action::List(i)
        | Action::Arm(i)
        | Action::See(i)
        | Action::Ask(i)
        | Action::Notify(i)
        | Action::Release(i)
        | Action::UseAgain(i)
        | Action::GiveUp(i)
        | Action::Downgrade(i)
        | Action::Cancel(i)
        | Action::Expire(i) => i,
    }
}

/// Runs the model at random, until a state in which no action is due.
fn walk(model: &Protocol, dice: &mut Seeded) -> Run {
    let one_of = |number: usize, dice: &mut Seeded| dice.below(number as u64) as usize;
    let begins = model.init_states();
    let mut state = begins[one_of(begins.len(), dice)].clone();
    let run = Run { paths: vec![PATH.to_owned()], ..Run::default() };
    let mut walk = Walk { model, run, time: PAUSE, tokens: HashMap::new() };
    if model.operators > 0 {
        walk.run.operators.insert(PATH.to_owned());
    }
    loop {
        let mut actions = Vec::new();
        model.actions(&state, &mut actions);
        let is_due = actions.iter().any(|action| action.is_due());
        // The remaining actions may occur or not, so the run may end here.
        if actions.is_empty() || (!is_due && dice.below(2) == 0) {
            return walk.run;
        }
        // Prefers actions that are due. Without this, most members would cancel or lose their sessions.
        if is_due && dice.below(8) > 0 {
            actions.retain(|action| action.is_due());
        }
        let action = actions[one_of(actions.len(), dice)];
        if let Some(next) = model.next_state(&state, action) {
            walk.takes(action, member(action), &state, &next);
            state = next;
        }
    }
}

#[test]
fn the_replay_accepts_runs_of_the_model() {
    let mut seen = BTreeSet::new();
    for operators in [0, 1] {
        let model = Protocol { operators, ..of(companies(3, &ALL)) };
        let mut dice = Seeded(u64::from(operators));
        for _ in 0..PATHS {
            let run = walk(&model, &mut dice);
            let verdict = judge(&run);
            assert!(verdict.faults.is_empty(), "{:#?} in {run:#?}", verdict.faults);
            seen.extend(verdict.seen.into_keys());
        }
    }
    let missing: Vec<_> = OF_THE_MODEL.iter().filter(|step| !seen.contains(*step)).collect();
    assert_eq!(missing, Vec::<&&str>::new());
}

/// Checks that `support::replay` refuses some run of the wrong model with a message that contains `words`.
fn assert_refused(model: &Protocol, words: &str) {
    let mut dice = Seeded(0);
    let mut faults = (0..PATHS).flat_map(|_| judge(&walk(model, &mut dice)).faults);
    assert!(faults.any(|fault| fault.contains(words)), "{words}: {:?}, {:?}", model.signals, model.asking);
}

#[test]
fn the_replay_refuses_hand_offs_by_readers() {
    let wrong = Protocol { signals: Signals::ReadersToo, ..of(companies(3, &PLAIN)) };
    assert_refused(&wrong, "only a writer signals");
    assert_refused(&wrong, "its turn came only with");
}

#[test]
fn the_replay_refuses_hand_offs_by_waiters() {
    let wrong = Protocol { signals: Signals::CancelledWaitersToo, ..of(companies(3, &PLAIN)) };
    assert_refused(&wrong, "only a holder signals");
    assert_refused(&wrong, "its turn came only with");
}

#[test]
fn the_replay_refuses_endless_waits_for_kept_nodes() {
    let company = || vec![vec![(Mode::Read, true), (Mode::Write, false)]];
    for asking in
        [Asking::CreatedBeforeArmed, Asking::ForgottenBeforeTheGrant, Asking::NobodyAsks, Asking::ByAnOldVersion]
    {
        let wrong = Protocol { asking, loses_answers: false, expiries: 0, operators: 1, ..of(company()) };
        assert_refused(&wrong, "every wait ends");
    }
}
