//! What must hold in a world at every moment, by what its holders say and by what the ensemble knows; changes nothing.

use std::collections::{HashMap, HashSet};

use zk_rwlock::coordinator::permits_of;
use zk_rwlock::{Contender, Dialect, Error, HoldState, Loss, Mode};

use crate::world::actor::{Actor, Claimed, Held};
use crate::world::plan::{Action, Schedule, Step};
use crate::world::{LOCK, PERMITS, QUEUE, RECORD, VALUE_NODE, World};

/// What is remembered from one moment to the next.
pub(crate) struct Ledger {
    /// Which handle's node has each token that was granted. Only its own handle may use a kept node again.
    owners: HashMap<i64, usize>,
    /// The tokens of permits, each of which is given once.
    permits: HashSet<i64>,
    /// The tokens of those that said they were lost.
    lost: HashSet<i64>,
    /// The highest token of any grant of the lock, and of any grant to a writer.
    highest: i64,
    highest_writer: i64,
    /// The most permits that there ever were: who took some when there were more keeps them.
    most: u32,
    /// Who stood in the queue for permits at the last look: its id, and its number.
    queued: HashMap<String, i64>,
    /// The newest token in the record, and what it was when each actor was granted what it holds.
    written: i64,
    found: HashMap<usize, i64>,
    /// The value, and what it was when commits were last counted anew.
    value: u64,
    value_before: u64,
    /// The newest value in the copy of each handle.
    copies: HashMap<usize, u64>,
    /// What may happen in this schedule.
    has_strangers: bool,
    has_stalls: bool,
    has_forgotten: bool,
    /// Every request is carried out at once. Otherwise nodes of contenders that have left may stand for a while, and their
    /// session knows better than the ensemble.
    is_settled: bool,
}

impl Ledger {
    pub(super) fn new(schedule: &Schedule) -> Ledger {
        let dialects: HashSet<_> = schedule.handles.iter().map(|handle| handle.dialect.dialect()).collect();
        let has = |is: &dyn Fn(Action) -> bool| schedule.steps.iter().any(|Step(_, action, _)| is(*action));
        Ledger {
            owners: HashMap::new(),
            permits: HashSet::new(),
            lost: HashSet::new(),
            highest: 0,
            highest_writer: 0,
            most: schedule.permits,
            queued: HashMap::new(),
            written: 0,
            found: HashMap::new(),
            value: 0,
            value_before: 0,
            copies: HashMap::new(),
            has_strangers: dialects.len() > 1,
            has_stalls: has(&|action| action == Action::Stall),
            has_forgotten: false,
            is_settled: !has(&|action| {
                matches!(action, Action::Stall | Action::Cut(_) | Action::LoseReply | Action::LoseRequest)
            }),
        }
    }

    pub(super) fn may_have(&mut self, number: u32) {
        self.most = self.most.max(number);
    }

    /// The ensemble has forgotten. Tokens and values begin anew.
    pub(super) fn forget(&mut self) {
        self.owners.clear();
        self.permits.clear();
        self.lost.clear();
        self.queued.clear();
        self.found.clear();
        self.copies.clear();
        (self.highest, self.highest_writer, self.written, self.value) = (0, 0, 0, 0);
        self.has_forgotten = true;
    }

    /// What an actor has begun has ended.
    pub(super) fn came(&mut self, answer: Result<Held, Error>, handle: usize) -> Actor {
        let held = match answer {
            Ok(Held::Nothing) => return Actor::Idle,
            Ok(held) => held,
            Err(error) => {
                self.ended(&error);
                return Actor::Idle;
            }
        };
        for claim in held.claims().iter().take(1) {
            match claim.what {
                Claimed::Permits(_) => assert!(self.permits.insert(claim.token), "a token was given twice"),
                // A commit may come back after another was granted what its guard has lost.
                Claimed::Lock(mode) if claim.is_held() => self.rises(mode, claim.token, handle),
                Claimed::Lock(_) => {}
            }
        }
        // What it has read under the lock is what is written there.
        if held.claims().iter().all(|claim| claim.is_held()) {
            match &held {
                Held::ValueReader(guard) => self.is_newest(***guard),
                Held::ValueWriter(guard) => self.is_newest(***guard),
                _ => {}
            }
        }
        Actor::Holding(held)
    }

    fn rises(&mut self, mode: Mode, token: i64, handle: usize) {
        let before = self.owners.insert(token, handle);
        assert!(before.is_none_or(|owner| owner == handle), "one node was granted to two handles");
        let is_again = before.is_some();
        let least = if mode == Mode::Read { self.highest_writer } else { self.highest };
        let rises = token > least || (is_again && token == least);
        assert!(rises, "the token {token} of a grant to {mode} does not rise above {least}");
        self.highest = self.highest.max(token);
        if mode == Mode::Write {
            self.highest_writer = token;
        }
    }

    fn is_newest(&self, read: u64) {
        assert_eq!(read, self.value, "a holder has another value than the newest commit");
    }

    /// Only what an acquisition may meet here may end it.
    fn ended(&self, error: &Error) {
        assert!(!matches!(error, Error::Evicted(Loss::Interfered)), "no client wrote to a lock node");
        let is_expected = match error {
            // A handle that was never used before finds a number that others have changed.
            Error::TooFewPermits { .. } | Error::OtherPermits { .. } | Error::OutcomeUnknown { .. } => true,
            Error::ForeignContender { .. } => self.has_strangers,
            // A try waits for no answer for longer than a session timeout.
            Error::Unreachable(_) => self.has_stalls,
            // The value is not what it was when the lock was granted.
            Error::TransactionRefused { .. } => self.has_forgotten,
            error => error.is_lost() || error.is_timeout() || error.is_would_block(),
        };
        assert!(is_expected, "an acquisition failed: {error}");
    }

    /// A holder has read the record.
    pub(super) fn read(&self, actor: usize, record: &[u8]) {
        let seen: i64 = String::from_utf8_lossy(record).parse().expect("a token");
        let Some(found) = self.found.get(&actor) else { return };
        assert!(*found <= seen, "a holder reads {seen}, and {found} was written before it was granted");
    }

    pub(super) fn saw_copy(&mut self, handle: usize, copy: u64) {
        if self.has_forgotten {
            return;
        }
        assert!(copy <= self.value, "a copy has {copy}, and only {} was ever committed", self.value);
        let before = self.copies.insert(handle, copy);
        assert!(before.is_none_or(|before| before <= copy), "a copy went back from {before:?} to {copy}");
    }
}

impl World {
    /// Checks everything.
    pub(super) async fn check(&mut self) {
        self.check_claims();
        self.check_nodes();
        self.check_permits();
        self.check_record().await;
        self.check_value().await;
    }

    /// Never a writer beside another holder, and never more permits than there are, among those who say they hold.
    pub(super) fn check_claims(&mut self) {
        let (mut readers, mut writers, mut permits) = (0, 0, 0);
        for actor in &self.actors {
            let Actor::Holding(held) = actor else { continue };
            for claim in held.claims() {
                assert_ne!(claim.state, HoldState::Lost { why: Loss::Interfered }, "no client wrote to a lock node");
                if !claim.is_held() {
                    self.ledger.lost.insert(claim.token);
                    continue;
                }
                assert!(!self.ledger.lost.contains(&claim.token), "what was lost is held again");
                match claim.what {
                    Claimed::Lock(Mode::Read) => readers += 1,
                    Claimed::Lock(Mode::Write) => writers += 1,
                    Claimed::Permits(count) => permits += count,
                }
            }
        }
        assert!(writers == 0 || (writers == 1 && readers == 0), "{writers} writers hold beside {readers} readers");
        let most = self.ledger.most;
        assert!(permits <= most, "{permits} of {most} permits are held");
    }

    /// By the ensemble's nodes, whoever holds has no contender before it that excludes it.
    fn check_nodes(&self) {
        if !self.ledger.is_settled {
            return;
        }
        let holders = self.actors.iter().filter_map(|actor| match actor {
            Actor::Holding(held) if held.claims().first().is_some_and(|claim| claim.is_held()) => held.lock_node(),
            _ => None,
        });
        let holders: Vec<_> = holders.collect();
        if holders.is_empty() {
            return;
        }
        let contenders: Vec<_> = self.children(LOCK).iter().filter_map(|name| contender(name)).collect();
        for path in &holders {
            let name = path.rsplit('/').next().unwrap_or_default();
            let Some(me) = contenders.iter().find(|it| it.name() == name) else { continue };
            let excludes = |it: &&Contender| it.sequence() < me.sequence() && it.mode().excludes(me.mode());
            assert_eq!(contenders.iter().find(excludes), None, "{me} was granted, and that stands before it");
        }
    }

    /// By the ensemble's nodes, there are never more permits, and whoever has just taken some was the first in the queue.
    fn check_permits(&mut self) {
        let (names, taken) = (self.children(QUEUE), self.children(PERMITS));
        let all: u32 = taken.iter().filter_map(|name| permits_of(name)).sum();
        assert!(all <= self.ledger.most, "{all} permits are taken: {taken:?}");
        if !self.ledger.is_settled {
            return;
        }
        let queued: HashMap<String, i64> = names.iter().filter_map(|name| of_queue(name)).collect();
        for name in taken {
            let Some(number) = self.ledger.queued.get(id(&name)) else { continue };
            let earlier = self.ledger.queued.iter().filter(|(id, other)| *other < number && queued.contains_key(*id));
            assert_eq!(earlier.count(), 0, "{name} has overtaken");
        }
        self.ledger.queued = queued;
    }

    /// What was written under the lock was written in the order of its tokens.
    async fn check_record(&mut self) {
        let (record, _) = self.observer.data(RECORD).await.expect("never deleted");
        let written = String::from_utf8_lossy(&record).parse().expect("a token");
        let ledger = &mut self.ledger;
        assert!(ledger.written <= written, "token {written} wrote after {}", ledger.written);
        ledger.written = written;
        for (i, actor) in self.actors.iter().enumerate() {
            match actor {
                Actor::Holding(Held::Reader(_) | Held::Writer(_)) => {
                    ledger.found.entry(i).or_insert(written);
                }
                _ => {
                    ledger.found.remove(&i);
                }
            }
        }
    }

    /// The value has grown by one for each commit that is said to be done, and for some of those in doubt. What is read
    /// under the lock stays the newest.
    pub(super) async fn check_value(&mut self) {
        let value = match self.observer.data(VALUE_NODE).await {
            Ok((bytes, _)) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                text.rsplit_once("\n\n").and_then(|(_, value)| value.parse().ok()).expect("a value")
            }
            Err(_) => 0,
        };
        let counts = self.commits.counts();
        let ledger = &mut self.ledger;
        assert!(ledger.value <= value, "the value went back from {} to {value}", ledger.value);
        ledger.value = value;
        let (least, most) = (ledger.value_before + counts.done, ledger.value_before + counts.done + counts.maybe);
        assert!(least <= value && value <= most, "{value} is not from {least} to {most}: {counts:?}");
        for actor in &self.actors {
            if let Actor::Holding(Held::ValueReader(guard)) = actor
                && guard.is_held()
            {
                self.ledger.is_newest(***guard);
            }
        }
    }

    /// All sessions are over.
    pub(super) fn check_all_lost(&self) {
        for actor in &self.actors {
            let Actor::Holding(held) = actor else { continue };
            assert!(held.claims().iter().all(|claim| !claim.is_held()), "a hold outlives its session");
        }
    }

    /// The ensemble came back as it was: what is there now is what counts.
    pub(super) async fn begin_anew(&mut self) {
        if let Ok((bytes, _)) = self.observer.data(VALUE_NODE).await {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            self.ledger.value = text.rsplit_once("\n\n").and_then(|(_, value)| value.parse().ok()).expect("a value");
        }
        self.ledger.value_before = self.ledger.value;
    }

    /// In the end every copy is the newest value.
    pub(super) fn check_copies(&self) {
        if self.ledger.has_forgotten {
            return;
        }
        for handle in self.handles.iter().filter_map(|handle| handle.value.as_ref()) {
            if let Some(copy) = handle.latest() {
                assert_eq!(**copy, self.ledger.value, "a copy stays behind");
            }
        }
    }
}

fn contender(name: &str) -> Option<Contender> {
    Dialect::of(name).and_then(|dialect| Contender::parse_as(name, dialect))
}

/// What identifies an acquisition, in the name of either of its nodes.
fn id(name: &str) -> &str {
    name.split_once('~').and_then(|(_, rest)| rest.split_once('-')).map_or("", |(id, _)| id)
}

fn of_queue(name: &str) -> Option<(String, i64)> {
    Some((id(name).to_owned(), Contender::parse(name)?.sequence()))
}
