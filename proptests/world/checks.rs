//! What must hold in a world at every moment, by what its holders say and by what the ensemble knows; changes nothing.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use support::wired::Wired;
use tokio::time::Instant;
use zk_rwlock::coordinator::permits_of;
use zk_rwlock::error::PermitsError;
use zk_rwlock::error::ValueError;
use zk_rwlock::queue::Contender;
use zk_rwlock::shared::CopyState;
use zk_rwlock::{Dialect, Error, HoldState, Loss, Mode};

use crate::world::actor::{Actor, Claim, Claimed, Held, Listener, Waits, Work};
use crate::world::plan::{Action, Schedule, Step};
use crate::world::{LIMIT, LOCK, PERMITS, QUEUE, RECORD, VALUE_NODE, World};

/// So many answers in a row may be lost before the next try waits.
pub(super) const PATIENT: usize = 3;

/// How much later than it may a node that is idle can be given up.
const IDLE_LOOK: Duration = Duration::from_millis(10);

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
    /// Whether a reader that does not keep its node stood in the lock's queue when nothing moved any more.
    had_plain_reader: bool,
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
    /// How often the ensemble has forgotten.
    pub(super) age: u32,
    may_change_number: bool,
    may_lose_often: bool,
    may_remove: bool,
    may_expire: bool,
    may_cut: bool,
    /// A stranger may let in whom it likes, until that is found out.
    may_forge: bool,
    /// All use one handle, and nothing makes it give up a node in use. A write that is given up before it was granted does: reads that
    /// came behind it wait under its WRITE node. So does a write that has asked for the READ node before it: all are asked, its
    /// own node, too, and while nothing runs in the background uses join that node before it hears so.
    has_one_node: bool,
    /// How many permits there are, by the semaphore's own node, and which were taken at the last look.
    number: u32,
    taken: HashSet<String>,
    /// When each node was last held, by its token.
    used: HashMap<i64, Instant>,
    /// The nodes that were idle when time last passed, and until when each is kept; `None` stands for ever.
    idle: Vec<(String, Option<Instant>)>,
    /// Nobody but who asks for a node makes its process give it up before its time.
    is_calm: bool,
    /// Every request is carried out at once. Otherwise nodes of contenders that have left may stand for a while, and their
    /// session knows better than the ensemble.
    is_settled: bool,
}

impl Ledger {
    pub(super) fn new(schedule: &Schedule) -> Ledger {
        let dialects: HashSet<_> = schedule.handles.iter().map(|handle| handle.dialect.dialect()).collect();
        let has = |is: &dyn Fn(Action) -> bool| schedule.steps.iter().any(|Step(_, action, _)| is(*action));
        let is_loss = |step: &&Step| matches!(step.1, Action::LoseReply | Action::LoseRequest);
        let is_settled = !has(&|action| {
            matches!(action, Action::Stall | Action::Cut(_) | Action::LoseReply | Action::LoseRequest | Action::Hush)
        });
        let is_troubled = has(&|action| {
            use Action::*;
            let lags = matches!(action, Lag | Forget | Freeze(_) | Forge(_));
            lags || matches!(action, Expire | Reap | Remove(_) | Clear(_) | Reopen | Restore | Commit)
        });
        // A copy of a value acquires the lock by itself.
        let has_value = schedule.handles.iter().any(|handle| handle.has_value);
        let used: HashSet<_> = schedule.steps.iter().map(|Step(actor, ..)| schedule.handle_of[*actor]).collect();
        let losses = schedule.steps.iter().filter(is_loss).count();
        Ledger {
            owners: HashMap::new(),
            permits: HashSet::new(),
            lost: HashSet::new(),
            highest: 0,
            highest_writer: 0,
            most: schedule.permits,
            queued: HashMap::new(),
            had_plain_reader: false,
            written: 0,
            found: HashMap::new(),
            value: 0,
            value_before: 0,
            copies: HashMap::new(),
            has_strangers: dialects.len() > 1,
            has_stalls: has(&|action| matches!(action, Action::Stall | Action::Hush)),
            has_forgotten: false,
            age: 0,
            may_change_number: has(&|action| matches!(action, Action::SetPermits(_))),
            may_lose_often: losses >= PATIENT,
            // A directory that is made anew begins with the numbers again. Beside a node that a server still shows, the
            // same number is a tie, which evicts.
            may_remove: has(&|action| matches!(action, Action::Remove(_) | Action::Clear(_) | Action::Restore))
                || (has(&|action| matches!(action, Action::Freeze(_))) && has(&|action| action == Action::Reap)),
            may_expire: has(&|action| matches!(action, Action::Expire | Action::Restore)),
            may_cut: has(&|action| matches!(action, Action::Cut(_) | Action::Restore | Action::Hush)),
            may_forge: has(&|action| matches!(action, Action::Forge(_))),
            has_one_node: used.len() == 1 && is_settled && !schedule.are_blind,
            number: schedule.permits,
            taken: HashSet::new(),
            used: HashMap::new(),
            idle: Vec::new(),
            is_calm: is_settled && !schedule.are_blind && !is_troubled && dialects.len() == 1 && !has_value,
            is_settled,
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
        self.taken.clear();
        self.found.clear();
        self.copies.clear();
        (self.highest, self.highest_writer, self.written, self.value) = (0, 0, 0, 0);
        self.has_forgotten = true;
        self.age += 1;
    }

    /// What an actor has begun has ended.
    pub(super) fn came(&mut self, answer: Result<Held, Error>, handle: usize, age: u32) -> Actor {
        let held = match answer {
            Ok(Held::Nothing) => return Actor::Idle,
            Ok(held) => held,
            Err(error) => {
                self.ended(&error);
                return Actor::Idle;
            }
        };
        // The ensemble that has forgotten gives the token of an earlier grant once more, and to whoever comes first.
        if age < self.age && held.claims().iter().any(|claim| !claim.is_held()) {
            return Actor::Idle;
        }
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
        if self.may_forge {
            return;
        }
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
        assert!(self.may_forge || read == self.value, "a holder has {read}, and the newest commit is {}", self.value);
    }

    /// An actor drops what it does.
    pub(super) fn gives_up(&mut self, actor: &Actor) {
        let Actor::Busy(work) = actor else { return };
        self.has_one_node &= work.wish() != Some(Claimed::Lock(Mode::Write));
        // It may have used its node until now, and has not said which.
        self.is_calm &= !work.holds() && !work.is_woken();
    }

    pub(super) fn opens_anew(&mut self) {
        self.has_one_node = false;
    }

    /// Nothing is lost for no reason.
    fn check_loss(&self, loss: Loss) {
        let may_be = match loss {
            Loss::Removed => self.may_remove || self.may_expire,
            Loss::LeaseRanOut => self.may_cut,
            Loss::SessionOver(_) => self.may_expire || self.may_cut,
            Loss::Interfered => self.may_forge,
            _ => false,
        };
        assert!(may_be, "lost, and nothing has happened: {loss}");
    }

    /// Only what an acquisition may meet here may end it.
    fn ended(&self, error: &Error) {
        if let Error::Evicted(loss) | Error::Lost(loss) = error {
            self.check_loss(*loss);
        }
        let is_expected = match error {
            // A handle that was never used before finds a number that others have changed.
            Error::Permits { reason: PermitsError::TooFew { .. } | PermitsError::Other { .. }, .. }
            | Error::OutcomeUnknown { .. } => true,
            Error::ForeignContender { .. } => self.has_strangers,
            // Several answers in a row were lost, so the size may be the reason.
            Error::Value { error: ValueError::TooLarge { limit: None, .. }, .. } => self.may_lose_often,
            // A try waits for no answer for longer than a session timeout. A process that slept so long while it was cut off
            // may notice that before it hears that its session is over.
            Error::Unreachable(_) => self.has_stalls || (self.may_cut && self.may_expire),
            // The value is not what it was when the lock was granted.
            Error::TransactionRefused { .. } => self.has_forgotten,
            // A handle that has seen the value finds none, after the ensemble came back as it was before.
            Error::Value { error: ValueError::Vanished, .. } => self.has_forgotten,
            error => error.is_lost() || error.is_timeout() || error.is_would_block(),
        };
        assert!(is_expected, "an acquisition failed: {error}");
    }

    /// A holder has read the record.
    pub(super) fn read(&self, actor: usize, record: &[u8]) {
        let seen: i64 = String::from_utf8_lossy(record).parse().expect("a token");
        let Some(found) = self.found.get(&actor) else { return };
        assert!(
            self.may_forge || *found <= seen,
            "a holder reads {seen}, and {found} was written before it was granted"
        );
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
        self.check_nodes().await;
        self.check_permits().await;
        self.check_record().await;
        self.check_value().await;
    }

    /// Never a writer beside another holder, and never more permits than there are, among those who say they hold.
    pub(super) fn check_claims(&mut self) {
        self.check_exclusion(self.ledger.may_forge);
    }

    /// Whoever was let in falsely has found that out by now.
    pub(super) fn check_nobody_is_false(&mut self) {
        self.check_exclusion(self.ledger.has_strangers);
    }

    fn check_exclusion(&mut self, may_be_false: bool) {
        let (mut readers, mut writers, mut permits) = (0, 0, 0);
        for actor in &self.actors {
            let Actor::Holding(held) = actor else { continue };
            for claim in held.claims() {
                if let HoldState::Lost { why } = claim.state {
                    self.ledger.check_loss(why);
                }
                if !claim.is_held() {
                    assert!(!claim.says_held, "a guard says that it is lost, and that it is held");
                    self.ledger.lost.insert(claim.token);
                    continue;
                }
                assert!(!self.ledger.lost.contains(&claim.token), "what was lost is held again");
                self.ledger.used.insert(claim.token, Instant::now());
                match claim.what {
                    Claimed::Lock(Mode::Read) => readers += 1,
                    Claimed::Lock(Mode::Write) => writers += 1,
                    Claimed::Permits(count) => permits += count,
                }
            }
        }
        let excludes = writers == 0 || (writers == 1 && readers == 0);
        assert!(excludes || may_be_false, "{writers} writers hold beside {readers} readers");
        let most = self.ledger.most;
        assert!(permits <= most, "{permits} of {most} permits are held");
    }

    /// Nothing moves any more. Then nobody waits for what is free, and whoever has lost something was told.
    pub(super) fn check_rest(&mut self) {
        if self.is_blind || self.handles.is_empty() {
            return;
        }
        self.check_losses_heard();
        if self.is_held_up() || self.are_unheard || self.lagging.contains(&true) || !self.ghosts.is_empty() {
            return;
        }
        // After several lost answers in a row the next try waits a little. A stranger's rule may differ.
        if self.lost_messages > PATIENT || self.ledger.has_strangers {
            return;
        }
        let (mut held, mut waits) = (Vec::new(), Vec::new());
        let mut is_sure_of_permits = true;
        for (i, actor) in self.actors.iter().enumerate() {
            match actor {
                Actor::Holding(holds) => {
                    let claims = holds.claims();
                    let is_removed = |claim: &Claim| claim.state == HoldState::Lost { why: Loss::Removed };
                    // The node of one that has lost its lease stands until its guard is dropped.
                    if claims.iter().any(|claim| !claim.is_held() && !is_removed(claim)) {
                        return;
                    }
                    held.extend(claims.iter().filter(|claim| claim.is_held()).map(|claim| claim.what));
                }
                Actor::Busy(work) if work.holds() => return,
                // Its turn may have come.
                Actor::Busy(work) if self.is_asleep[i] && !work.is_new() => {
                    let Some(wish) = work.wish() else { return };
                    is_sure_of_permits &= !matches!(wish, Claimed::Permits(_));
                    held.push(wish);
                }
                Actor::Busy(_) if self.is_asleep[i] => {}
                Actor::Busy(work) => waits.extend(work.wish()),
                Actor::Idle => {}
            }
        }
        let modes = |all: &[Claimed]| -> Vec<Mode> {
            all.iter().filter_map(|it| if let Claimed::Lock(mode) = it { Some(*mode) } else { None }).collect()
        };
        let (holders, waiters) = (modes(&held), modes(&waits));
        assert!(waiters.is_empty() || !holders.is_empty(), "{waiters:?} wait for a lock that nobody holds");
        // A read may run under a WRITE node that is kept, and then readers with other nodes wait.
        let keeps = self.handles.iter().any(|handle| handle.plan.keep.is_some()) && !self.ledger.has_one_node;
        let is_shared = !keeps && holders.iter().chain(&waiters).all(|mode| *mode == Mode::Read);
        assert!(waiters.is_empty() || !is_shared, "readers wait beside readers, and no writer waits");
        if is_sure_of_permits {
            self.check_permits_at_rest(&held, &waits);
        }
        self.note_queue();
    }

    /// Whether there is one who cannot hear now.
    pub(super) fn is_held_up(&self) -> bool {
        self.clients.iter().any(Wired::is_stalled) || self.cut.contains(&true) || self.hushed.contains(&true)
    }

    /// Whoever waits now has its node in the queue. A use of a kept node may have none.
    fn note_queue(&mut self) {
        self.ledger.had_plain_reader = self.has_plain_reader();
        for (actor, work) in self.actors.iter_mut().enumerate() {
            let keeps = self.handles[self.handle_of[actor]].plan.keep.is_some();
            if let Actor::Busy(work) = work
                && work.queued.is_none()
                && !self.is_asleep[actor]
                && !work.is_new()
                && work.wish().is_some_and(|wish| !keeps || matches!(wish, Claimed::Permits(_)))
            {
                self.queued += 1;
                work.queued = Some(self.queued);
            }
        }
    }

    /// Whether a reader stands in the queue whose node is not kept. A handle that keeps nodes does not keep each of them.
    fn has_plain_reader(&self) -> bool {
        let is_plain_reader =
            |name: &String| contender(name).is_some_and(|it| it.mode() == Mode::Read) && !name.contains("~keep-");
        self.children(LOCK).iter().any(is_plain_reader)
    }

    /// Whoever stands in a queue, as far as that is known.
    pub(super) fn in_queue(&self) -> Vec<Waits> {
        self.actors.iter().filter_map(Actor::waits).collect()
    }

    /// Something may have put contenders out of their queues, so nobody is known to stand in one.
    pub(super) fn forget_queue(&mut self) {
        for actor in &mut self.actors {
            if let Actor::Busy(work) = actor {
                work.queued = None;
            }
        }
    }

    /// What an actor has begun has ended so.
    pub(super) fn check_answer(&mut self, i: usize, work: &Work, answer: &Result<Held, Error>) {
        let has_value = self.handles[self.handle_of[i]].value.is_some();
        match answer {
            Err(Error::OutcomeUnknown { reason, .. }) => {
                assert!(work.wish().is_none() || has_value, "the outcome of an acquisition is not known: {reason}");
            }
            Err(_) => self.ledger.has_one_node &= work.wish() != Some(Claimed::Lock(Mode::Write)),
            Ok(held) => {
                let claims = held.claims();
                let Some(claim) = claims.first() else { return };
                let may_be_lost = work.holds() || has_value || self.ledger.may_forge;
                assert!(claim.is_held() || may_be_lost, "what was lost was granted");
                // A contender that was woken and not polled yet may be about to ask for a node that is only kept.
                let keeps = self.handles[self.handle_of[i]].plan.keep.is_some();
                let is_up_to_date = |it: &&Actor| !keeps || !matches!(it, Actor::Busy(work) if work.is_woken());
                let in_queue: Vec<_> = self.actors.iter().filter(is_up_to_date).filter_map(Actor::waits).collect();
                let overtaken = work.behind.iter().find(|before| {
                    in_queue.iter().any(|it| it.queued == before.queued) && before.wish.excludes(claim.what)
                });
                // A writer asks for what is kept before it once it has looked. Behind a reader of its own session that does not
                // keep its node it looks only when that one leaves. The keeper hears the request only after that.
                let reads = |actor: &Actor| matches!(actor, Actor::Holding(Held::Reader(_) | Held::ValueReader(_)));
                let had_plain_reader = keeps && matches!(claim.what, Claimed::Lock(_)) && self.ledger.had_plain_reader;
                let may_not_ask = had_plain_reader || (self.actors.iter().any(reads) && self.has_plain_reader());
                let is_sure =
                    self.ledger.is_settled && !self.ledger.has_strangers && !may_not_ask && !self.ledger.may_forge;
                assert!(!is_sure || overtaken.is_none(), "actor {i} has overtaken {overtaken:?}");
            }
        }
    }

    /// The head of the queue has its permits as soon as there are enough.
    fn check_permits_at_rest(&self, held: &[Claimed], waits: &[Claimed]) {
        let counts = |all: &[Claimed]| -> Vec<u32> {
            all.iter().filter_map(|it| if let Claimed::Permits(count) = it { Some(*count) } else { None }).collect()
        };
        let (taken, wanted) = (counts(held).iter().sum::<u32>(), counts(waits));
        let Some(most) = wanted.iter().max() else { return };
        let least = if self.ledger.may_change_number { 0 } else { self.permits };
        assert!(taken > 0 || self.ledger.may_change_number, "{wanted:?} wait for permits, and none is taken");
        assert!(taken + most > least, "{wanted:?} wait for permits, and {taken} of {least} are taken");
    }

    fn check_losses_heard(&mut self) {
        for (actor, listener) in self.actors.iter().zip(&mut self.listeners) {
            let claims = if let Actor::Holding(held) = actor { held.claims() } else { Vec::new() };
            let (Actor::Holding(held), Some(claim)) = (actor, claims.first()) else {
                *listener = None;
                continue;
            };
            let is_same = listener.as_ref().is_some_and(|(token, _)| *token == claim.token);
            if !is_same {
                *listener = held.changes().map(|changes| (claim.token, Listener::new(changes)));
            }
            let Some((_, listener)) = listener else { continue };
            let has_heard = listener.has_heard();
            assert!(claim.is_held() || has_heard, "a hold was lost, and whoever waits for news of it was not told");
        }
    }

    /// By the ensemble's nodes, whoever holds has no contender before it that excludes it. The nodes are found by their tokens:
    /// a guard that was asked for its path counts as one whose writes may still be on their way.
    async fn check_nodes(&mut self) {
        if !self.ledger.is_settled || self.ledger.may_forge {
            return;
        }
        let holding = self.actors.iter().filter_map(|actor| match actor {
            Actor::Holding(held) => held.claims().into_iter().next(),
            _ => None,
        });
        let is_of_lock = |claim: &Claim| claim.is_held() && matches!(claim.what, Claimed::Lock(_));
        let tokens: HashSet<i64> = holding.filter(is_of_lock).map(|claim| claim.token).collect();
        if tokens.is_empty() {
            return;
        }
        let contenders: Vec<_> = self.children(LOCK).iter().filter_map(|name| contender(name)).collect();
        for me in &contenders {
            let node = self.observer.data(&format!("{LOCK}/{}", me.name())).await;
            if !node.is_ok_and(|(_, stat)| tokens.contains(&stat.czxid)) {
                continue;
            }
            let excludes = |it: &&Contender| it.sequence() < me.sequence() && it.mode().excludes(me.mode());
            assert_eq!(contenders.iter().find(excludes), None, "{me} was granted, and that stands before it");
        }
    }

    /// Before time passes. Nobody does anything, so each node is kept, and not for longer than it may be.
    pub(super) async fn note_idle(&mut self) {
        let all_idle = self.actors.iter().all(|actor| matches!(actor, Actor::Idle));
        if !self.ledger.is_calm || !all_idle {
            return;
        }
        for name in self.children(LOCK) {
            let Ok((_, stat)) = self.observer.data(&format!("{LOCK}/{name}")).await else { continue };
            let keep = self.ledger.owners.get(&stat.czxid).and_then(|handle| self.handles[*handle].plan.keep);
            let (Some(used), Some(keep)) = (self.ledger.used.get(&stat.czxid), keep) else { continue };
            let until = used.checked_add(Duration::from_millis(keep));
            let late = until.map(|until| Instant::now().saturating_duration_since(until));
            assert!(late.is_none_or(|late| late <= IDLE_LOOK), "{name} is idle, and kept for {late:?} too long");
            self.ledger.idle.push((name, until));
        }
    }

    /// Time has passed, and nothing else was done: what was idle is still kept, until its time comes.
    pub(super) fn check_idle(&mut self) {
        let names = self.children(LOCK);
        for (name, until) in std::mem::take(&mut self.ledger.idle) {
            let may_go = until.is_some_and(|until| until <= Instant::now());
            assert!(may_go || names.contains(&name), "{name} was given up before it was idle for as long as it may be");
        }
    }

    /// By the ensemble's nodes, there are never more permits, and whoever has just taken some was the first in the queue.
    async fn check_permits(&mut self) {
        let (names, taken) = (self.children(QUEUE), self.children(PERMITS));
        let all: u32 = taken.iter().filter_map(|name| permits_of(name)).sum();
        assert!(all <= self.ledger.most, "{all} permits are taken: {taken:?}");
        let before = self.ledger.number;
        if let Ok((bytes, _)) = self.observer.data(LIMIT).await
            && let Some(number) = String::from_utf8_lossy(&bytes).strip_prefix("permits=")
        {
            self.ledger.number = number.parse().expect("a number of permits");
        }
        // Who took some when there were more keeps them. Nobody takes more than there are then.
        let most = before.max(self.ledger.number);
        let now: HashSet<_> = taken.iter().cloned().collect();
        let is_new = !now.is_subset(&std::mem::replace(&mut self.ledger.taken, now.clone()));
        assert!(!is_new || all <= most, "{all} permits are taken, the last of them when there were {most}");
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
        assert!(ledger.may_forge || ledger.written <= written, "token {written} wrote after {}", ledger.written);
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
                && guard.lock().is_held()
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
        self.ledger.taken = self.children(PERMITS).into_iter().collect();
    }

    /// In the end every copy is the newest value. Where the ensemble has forgotten that there is one, a copy has the last one.
    pub(super) fn check_copies(&self) {
        for handle in self.handles.iter().filter_map(|handle| handle.value.as_ref()) {
            let is_behind = matches!(handle.copy_state(), CopyState::Behind(_));
            if let Some(copy) = handle.latest().filter(|_| !(self.ledger.has_forgotten && is_behind)) {
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
