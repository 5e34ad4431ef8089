//! The checks of a world. They compare the answers of all guards with each other and with the nodes of the ensemble,
//! after every step.
//!
//! A kept node is a node that its process keeps between uses. Other contenders ask the process to give it up.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use support::wired::Wired;
use tokio::time::Instant;
use zk_rwlock::coordinator::permits_in_name;
use zk_rwlock::error::PermitsError;
use zk_rwlock::error::ValueError;
use zk_rwlock::queue::NodeName;
use zk_rwlock::shared::CopyState;
use zk_rwlock::{Dialect, Error, HoldState, Loss, Mode};

use crate::world::actor::{Actor, Claim, Claimed, Held, Listener, Waits, Work};
use crate::world::plan::{Action, Schedule, Step};
use crate::world::{LIMIT, LOCK, PERMITS, QUEUE, RECORD, VALUE_NODE, World};

/// The number of consecutive lost replies after which the library waits before it sends the request again.
pub(super) const PATIENT: usize = 3;

/// How long a node that is kept between uses may still exist after the end of its idle time.
const IDLE_LOOK: Duration = Duration::from_millis(10);

/// The facts that the checks remember between steps, and which events the schedule can cause.
pub(crate) struct Ledger {
    /// The handle to which each token was granted. Only that handle may use the token's node again.
    owners: HashMap<i64, usize>,
    /// The tokens of all permits so far. No token is granted twice.
    permits: HashSet<i64>,
    /// The tokens of all holds that were lost.
    lost: HashSet<i64>,
    /// The highest token of any grant of the lock.
    highest: i64,
    /// The highest token of a grant of the lock to a writer.
    highest_writer: i64,
    /// The largest number of permits that the semaphore ever had. Holders keep their permits when the number is
    /// reduced.
    most: u32,
    /// The queue for permits at the last check: the sequence number of each contender, by its id.
    queued: HashMap<String, i64>,
    /// Whether, at the last check at which nothing moved, the lock's queue had a reader whose node is not kept between uses.
    had_plain_reader: bool,
    /// The token in the node [`RECORD`] at the last check.
    written: i64,
    /// The token in [`RECORD`] when each actor was granted the lock, by the index of the actor.
    found: HashMap<usize, i64>,
    /// The shared value at the last check.
    value: u64,
    /// The value at the last reset of the counts of commits.
    value_before: u64,
    /// The newest value that the local copy of each handle has shown.
    copies: HashMap<usize, u64>,
    /// Whether some handles use the dialect of another library. This field and all others named `has_` or `may_` say
    /// what this schedule can cause.
    has_strangers: bool,
    has_stalls: bool,
    has_forgotten: bool,
    /// The number of times that the ensemble was restored.
    pub(super) age: u32,
    may_change_number: bool,
    may_lose_often: bool,
    may_remove: bool,
    may_expire: bool,
    may_cut: bool,
    /// Whether a stranger's write may look like a holder's hand-off. After such a write a guard may say "held" without a right,
    /// until the library notices the forgery.
    may_forge: bool,
    /// Whether all actors use one handle, and this handle has given up no node in use. It may give one up in two cases:
    ///
    /// - A write is dropped before its grant. It leaves its WRITE node to the reads that wait for the node.
    /// - A write asks its own handle to give up the handle's kept READ node. Without background tasks the handle
    ///   notices this late, so other uses may still join the node.
    has_one_node: bool,
    /// The number of permits in the semaphore's node at the last check.
    number: u32,
    /// The nodes of the permits that were taken at the last check.
    taken: HashSet<String>,
    /// When a guard last said "held", by the token of the guard.
    used: HashMap<i64, Instant>,
    /// The nodes that were idle when time last passed, each with the end of its idle time. `None` if it has no end.
    idle: Vec<(String, Option<Instant>)>,
    /// Whether a process that keeps a node gives it up before the end of its idle time only if another contender asks for it.
    is_calm: bool,
    /// Whether every request is carried out immediately. If not, a contender may have left although the ensemble still has
    /// its node.
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
        // The local copy of a value acquires the lock on its own. So it may use a kept node, or make a process give its
        // kept node up, and a schedule with a value is not calm.
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
            // The sequence numbers of a new directory begin with 0 again. If a server still shows an old node with the same
            // number as a new node, both contenders are evicted.
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

    /// Resets all facts after a restore, because tokens and values begin again.
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

    /// Records the result of an actor's work. Returns the actor's next state.
    pub(super) fn came(&mut self, answer: Result<Held, Error>, handle: usize, age: u32) -> Actor {
        let held = match answer {
            Ok(Held::Nothing) => return Actor::Idle,
            Ok(held) => held,
            Err(error) => {
                self.ended(&error);
                return Actor::Idle;
            }
        };
        // The ensemble was restored during this work. The token of a lost hold may then be granted to another contender
        // too, so the token is not checked.
        if age < self.age && held.claims().iter().any(|claim| !claim.is_held()) {
            return Actor::Idle;
        }
        for claim in held.claims().iter().take(1) {
            match claim.what {
                Claimed::Permits(_) => assert!(self.permits.insert(claim.token), "a token was given twice"),
                // A commit may end after its guard was lost and another contender was granted the lock, so only guards
                // that are held are checked.
                Claimed::Lock(mode) if claim.is_held() => self.rises(mode, claim.token, handle),
                Claimed::Lock(_) => {}
            }
        }
        // If the guard is held, the value that was read under it must be the newest one.
        if held.claims().iter().all(|claim| claim.is_held()) {
            match &held {
                Held::ValueReader(guard) => self.check_newest(***guard),
                Held::ValueWriter(guard) => self.check_newest(***guard),
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

    fn check_newest(&self, read: u64) {
        assert!(self.may_forge || read == self.value, "a holder has {read}, and the newest commit is {}", self.value);
    }

    /// Records that an actor drops its work.
    pub(super) fn gives_up(&mut self, actor: &Actor) {
        let Actor::Busy(work) = actor else { return };
        self.has_one_node &= work.wish() != Some(Claimed::Lock(Mode::Write));
        // The dropped work may have used a node that its process keeps between uses, and the process may now give it up.
        self.is_calm &= !work.holds() && !work.is_woken();
    }

    pub(super) fn opens_anew(&mut self) {
        self.has_one_node = false;
    }

    /// Checks that this schedule can cause such a loss.
    fn check_loss(&self, loss: Loss) {
        let may_be = match loss {
            Loss::Removed => self.may_remove || self.may_expire,
            Loss::LeaseRanOut => self.may_cut,
            Loss::SessionOver(_) => self.may_expire || self.may_cut,
            Loss::Interfered => self.may_forge,
            _ => false,
        };
        assert!(may_be, "lost without a cause: {loss}");
    }

    /// Checks that this schedule can make an acquisition end with this error.
    fn ended(&self, error: &Error) {
        if let Error::Evicted(loss) | Error::Lost(loss) = error {
            self.check_loss(*loss);
        }
        let is_expected = match error {
            // A handle reads the number of permits at its first use, and other handles may have changed the number
            // since.
            Error::Permits { reason: PermitsError::TooFew { .. } | PermitsError::Other { .. }, .. }
            | Error::OutcomeUnknown { .. } => true,
            Error::ForeignContender { .. } => self.has_strangers,
            // After several lost replies the library reports that the value may be too large.
            Error::Value { error: ValueError::TooLarge { limit: None, .. }, .. } => self.may_lose_often,
            // The library waits for a reply for at most a session timeout. A process that was cut off and slept for
            // that long may report `Unreachable` before it learns that its session is over.
            Error::Unreachable(_) => self.has_stalls || (self.may_cut && self.may_expire),
            // A write of the value checks the value's version, and the restore has changed the version since the grant.
            Error::TransactionRefused { .. } => self.has_forgotten,
            // The handle has seen the value, and the restored ensemble has none.
            Error::Value { error: ValueError::Vanished, .. } => self.has_forgotten,
            error => error.is_lost() || error.is_timeout() || error.is_would_block(),
        };
        assert!(is_expected, "an acquisition failed: {error}");
    }

    /// Checks that the token that a holder has read from [`RECORD`] is not lower than the token there at the holder's
    /// grant.
    pub(super) fn read(&self, actor: usize, record: &[u8]) {
        let seen: i64 = String::from_utf8_lossy(record).parse().expect("a token");
        let Some(found) = self.found.get(&actor) else { return };
        assert!(self.may_forge || *found <= seen, "a holder reads {seen}, but {found} was written before its grant");
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
    /// Runs all checks.
    pub(super) async fn check(&mut self) {
        self.check_claims();
        self.check_nodes().await;
        self.check_permits().await;
        self.check_record().await;
        self.check_value().await;
    }

    /// Checks that no guard of a writer is held together with another guard, and that no more permits are held than
    /// exist.
    pub(super) fn check_claims(&mut self) {
        self.check_exclusion(self.ledger.may_forge);
    }

    /// Checks, after a stranger's write that looked like a hand-off, that no guard says "held" without a right to the lock.
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
                assert!(!self.ledger.lost.contains(&claim.token), "a lost hold is held again");
                self.ledger.used.insert(claim.token, Instant::now());
                match claim.what {
                    Claimed::Lock(Mode::Read) => readers += 1,
                    Claimed::Lock(Mode::Write) => writers += 1,
                    Claimed::Permits(count) => permits += count,
                }
            }
        }
        let excludes = writers == 0 || (writers == 1 && readers == 0);
        assert!(excludes || may_be_false, "{writers} writers and {readers} readers hold at once");
        let most = self.ledger.most;
        assert!(permits <= most, "{permits} of {most} permits are held");
    }

    /// Checks a world in which nothing moves: no contender waits although the lock is free, and every loss was
    /// reported.
    pub(super) fn check_rest(&mut self) {
        if self.is_blind || self.handles.is_empty() {
            return;
        }
        self.check_losses_heard();
        if self.is_held_up() || self.are_unheard || self.lagging.contains(&true) || !self.ghosts.is_empty() {
            return;
        }
        // The rest is skipped in two cases. After several lost replies in a row the library waits before it sends a request
        // again. Contenders of other libraries may follow other rules.
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
                    // A guard whose lease has ended keeps its node until it is dropped, so other contenders still wait.
                    if claims.iter().any(|claim| !claim.is_held() && !is_removed(claim)) {
                        return;
                    }
                    held.extend(claims.iter().filter(|claim| claim.is_held()).map(|claim| claim.what));
                }
                Actor::Busy(work) if work.holds() => return,
                // This waiter is not polled, so it may not have noticed its turn. It counts as a holder here, and no
                // waiter is expected to be granted the lock in its place.
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
        // Reads may use a WRITE node that their process keeps. Readers with nodes of their own wait behind it, although only
        // readers hold.
        let keeps = self.handles.iter().any(|handle| handle.plan.keep.is_some()) && !self.ledger.has_one_node;
        let is_shared = !keeps && holders.iter().chain(&waiters).all(|mode| *mode == Mode::Read);
        assert!(waiters.is_empty() || !is_shared, "readers wait for readers, and no writer waits");
        if is_sure_of_permits {
            self.check_permits_at_rest(&held, &waits);
        }
        self.note_queue();
    }

    /// Returns whether some actor cannot learn of events now.
    pub(super) fn is_held_up(&self) -> bool {
        self.clients.iter().any(Wired::is_stalled) || self.cut.contains(&true) || self.hushed.contains(&true)
    }

    /// Gives each waiter without a place in a queue the next place. A waiter that may use a node which its process keeps gets
    /// no place, because it may have no node of its own.
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

    /// Returns whether the queue has a reader whose node is not kept between uses. A handle with `keep` may also create such
    /// nodes.
    fn has_plain_reader(&self) -> bool {
        let is_plain_reader =
            |name: &String| contender(name).is_some_and(|it| it.mode() == Mode::Read) && !name.contains("~keep-");
        self.children(LOCK).iter().any(is_plain_reader)
    }

    /// Returns the contenders in a queue whose place is known.
    pub(super) fn in_queue(&self) -> Vec<Waits> {
        self.actors.iter().filter_map(Actor::waits).collect()
    }

    /// Resets all places in queues, because contenders may have been removed.
    pub(super) fn forget_queue(&mut self) {
        for actor in &mut self.actors {
            if let Actor::Busy(work) = actor {
                work.queued = None;
            }
        }
    }

    /// Checks the order of the grants when an actor's work ends.
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
                assert!(claim.is_held() || may_be_lost, "a lost hold was granted");
                // A waiter that was woken and not polled is left out. It may not have asked yet for the node that this actor's
                // process keeps.
                let keeps = self.handles[self.handle_of[i]].plan.keep.is_some();
                let is_up_to_date = |it: &&Actor| !keeps || !matches!(it, Actor::Busy(work) if work.is_woken());
                let in_queue: Vec<_> = self.actors.iter().filter(is_up_to_date).filter_map(Actor::waits).collect();
                let overtaken = work.behind.iter().find(|before| {
                    in_queue.iter().any(|it| it.queued == before.queued) && before.wish.excludes(claim.what)
                });
                // A writer lists the queue, and then asks the owners of the kept nodes ahead of it to give these up. If a
                // reader of its session without a kept node is ahead, the writer lists the queue only after that reader has
                // left. So the owners may learn late that they are asked.
                let reads = |actor: &Actor| matches!(actor, Actor::Holding(Held::Reader(_) | Held::ValueReader(_)));
                let had_plain_reader = keeps && matches!(claim.what, Claimed::Lock(_)) && self.ledger.had_plain_reader;
                let may_not_ask = had_plain_reader || (self.actors.iter().any(reads) && self.has_plain_reader());
                let is_sure =
                    self.ledger.is_settled && !self.ledger.has_strangers && !may_not_ask && !self.ledger.may_forge;
                assert!(!is_sure || overtaken.is_none(), "actor {i} has overtaken {overtaken:?}");
            }
        }
    }

    /// Checks that the head of the queue has its permits if enough are free.
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
            assert!(claim.is_held() || has_heard, "a hold was lost, and its listener was not notified");
        }
    }

    /// Checks, by the ensemble's nodes, that no contender that excludes a holder has an older node. A holder's node is
    /// found by its token.
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
            let node = self.observer.data(&format!("{LOCK}/{}", me.as_str())).await;
            if !node.is_ok_and(|(_, stat)| tokens.contains(&stat.czxid)) {
                continue;
            }
            let excludes = |it: &&NodeName| it.sequence() < me.sequence() && it.mode().excludes(me.mode());
            assert_eq!(contenders.iter().find(excludes), None, "{me} was granted behind this contender");
        }
    }

    /// Records the idle nodes before time passes, and checks that none is kept after its idle time.
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
            assert!(late.is_none_or(|late| late <= IDLE_LOOK), "{name} is idle, and was kept {late:?} too long");
            self.ledger.idle.push((name, until));
        }
    }

    /// Checks, after time has passed without an action, that idle nodes exist until the end of their idle time.
    pub(super) fn check_idle(&mut self) {
        let names = self.children(LOCK);
        for (name, until) in std::mem::take(&mut self.ledger.idle) {
            let may_go = until.is_some_and(|until| until <= Instant::now());
            assert!(may_go || names.contains(&name), "{name} was given up before its idle time was over");
        }
    }

    /// Checks, by the ensemble's nodes, that no more permits are taken than exist, and that the head of the queue took
    /// the newest ones.
    async fn check_permits(&mut self) {
        let (names, taken) = (self.children(QUEUE), self.children(PERMITS));
        let all: u32 = taken.iter().filter_map(|name| permits_in_name(name)).sum();
        assert!(all <= self.ledger.most, "{all} permits are taken: {taken:?}");
        let before = self.ledger.number;
        if let Ok((bytes, _)) = self.observer.data(LIMIT).await
            && let Some(number) = String::from_utf8_lossy(&bytes).strip_prefix("permits=")
        {
            self.ledger.number = number.parse().expect("a number of permits");
        }
        // If the number of permits was reduced, more permits may stay taken, but no further permits are taken.
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
            assert_eq!(earlier.count(), 0, "{name} was granted before an earlier contender");
        }
        self.ledger.queued = queued;
    }

    /// Checks that the token in [`RECORD`] is not lower than at the last check. Records the token for each actor that
    /// has been granted the lock since then.
    async fn check_record(&mut self) {
        let (record, _) = self.observer.data(RECORD).await.expect("never deleted");
        let written = String::from_utf8_lossy(&record).parse().expect("a token");
        let ledger = &mut self.ledger;
        assert!(ledger.may_forge || ledger.written <= written, "token {written} wrote after token {}", ledger.written);
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

    /// Checks that the value is the sum of all commits that were reported as done and of some whose outcome is unknown, and
    /// that the value does not change while a guard of the value is held.
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
                self.ledger.check_newest(***guard);
            }
        }
    }

    /// Checks that all holds are lost after all sessions have ended.
    pub(super) fn check_all_lost(&self) {
        for actor in &self.actors {
            let Actor::Holding(held) = actor else { continue };
            assert!(held.claims().iter().all(|claim| !claim.is_held()), "a hold outlives its session");
        }
    }

    /// Sets the value and the taken permits in the ledger to those of the restored ensemble.
    pub(super) async fn begin_anew(&mut self) {
        if let Ok((bytes, _)) = self.observer.data(VALUE_NODE).await {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            self.ledger.value = text.rsplit_once("\n\n").and_then(|(_, value)| value.parse().ok()).expect("a value");
        }
        self.ledger.value_before = self.ledger.value;
        self.ledger.taken = self.children(PERMITS).into_iter().collect();
    }

    /// Checks at the end that every local copy has the newest value. If a restored ensemble has no value, a copy keeps
    /// its last one.
    pub(super) fn check_copies(&self) {
        for handle in self.handles.iter().filter_map(|handle| handle.value.as_ref()) {
            let is_behind = matches!(handle.copy_state(), CopyState::Behind(_));
            if let Some(copy) = handle.latest().filter(|_| !(self.ledger.has_forgotten && is_behind)) {
                assert_eq!(**copy, self.ledger.value, "a copy stays behind");
            }
        }
    }
}

fn contender(name: &str) -> Option<NodeName> {
    Dialect::of(name).and_then(|dialect| NodeName::parse_as(name, dialect))
}

/// Returns the contender's id, which its READ and its WRITE node have in common.
fn id(name: &str) -> &str {
    name.split_once('~').and_then(|(_, rest)| rest.split_once('-')).map_or("", |(id, _)| id)
}

fn of_queue(name: &str) -> Option<(String, i64)> {
    Some((id(name).to_owned(), NodeName::parse(name)?.sequence()))
}
