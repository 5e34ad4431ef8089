//! A record of a run on one monotonic clock, and checkers that judge such a record. The record says which guard held from
//! when to when, and what was done under it. Use it in every test in which several holders contend at random.
//!
//! A hold's *definite interval* runs from the return of its grant until just before the call of its release, or until
//! the last moment at which its guard said "held", whichever comes first. A thread asks every guard again and again, so
//! that a blocked runtime cannot hide an overlap.
//!
//! The checkers are plain functions that return faults in words. `tests/models/history.rs` gives each of them a wrong
//! history.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use zk_rwlock::leadership::Term;
use zk_rwlock::once::OnceGuard;
use zk_rwlock::semaphore::Permit;
use zk_rwlock::{Mode, ReadGuard, WriteGuard};

use super::trace;

/// The interval at which the witness, a thread, asks all guards whether they are held. A recorded interval may end too
/// early by this time, and never too late.
const ASK_EVERY: Duration = Duration::from_micros(500);

/// The time since the history began.
pub type Moment = Duration;

/// An interval, from `from` to `until`, during which one guard was certainly held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The id of the acquisition. All guards of one node have the same id, also after a downgrade or a share of the guard.
    pub acquisition: u64,
    pub path: String,
    pub node: String,
    pub host: String,
    pub mode: Mode,
    /// The node's czxid.
    pub token: i64,
    pub from: Moment,
    pub until: Moment,
    /// Whether the interval ended with a loss, and not with a release.
    pub lost: bool,
}

/// A guard of any kind, as the history records it: its mode, its token, its node, and whether it is held.
pub trait Guard: Send + Sync + 'static {
    const MODE: Mode;
    fn is_held(&self) -> bool;
    fn token(&self) -> i64;
    fn node(&self) -> String;
}

macro_rules! guard {
    ($guard:ident, $mode:expr) => {
        impl Guard for $guard {
            const MODE: Mode = $mode;

            fn is_held(&self) -> bool {
                zk_rwlock::Hold::is_held(self)
            }

            fn token(&self) -> i64 {
                self.fencing_token()
            }

            fn node(&self) -> String {
                self.node_path()
            }
        }
    };
}

guard!(ReadGuard, Mode::Read);
guard!(WriteGuard, Mode::Write);
guard!(OnceGuard, Mode::Write);
guard!(Term, Mode::Write);
// Several holders of permits hold at the same time, as readers do. The checker `overdrawn` counts their permits.
guard!(Permit, Mode::Read);

/// The record of one run, and the thread that asks the guards.
#[derive(Debug)]
pub struct History {
    book: Arc<Book>,
    stop: Arc<AtomicBool>,
    witness: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Book {
    start: Instant,
    /// The start of the history, on the clock of `support::trace`.
    began: Duration,
    entries: Mutex<Entries>,
    acquisitions: AtomicU64,
}

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    open: HashMap<u64, Open>,
    closed: Vec<Hold>,
    deletions: HashMap<String, Moment>,
    revived: Vec<String>,
}

/// A guard that was not released yet. It may have been lost.
struct Open {
    hold: Hold,
    guard: Arc<dyn IsHeld>,
}

trait IsHeld: Send + Sync {
    fn says_held(&self) -> bool;
}

impl<G: Guard> IsHeld for G {
    fn says_held(&self) -> bool {
        self.is_held()
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.hold.fmt(f)
    }
}

impl Open {
    /// Asks the guard whether it is held. Returns a fault if a guard that was lost says "held" again.
    fn ask(&mut self, book: &Book) -> Option<String> {
        // The time is read before the question. If the guard says "held", it was held at that time.
        let asked = book.now();
        let held = self.guard.says_held();
        if held && !self.hold.lost {
            self.hold.until = asked;
        }
        let revived = held && self.hold.lost;
        self.hold.lost |= !held;
        revived.then(|| format!("a lost guard says held again: {}", self.hold))
    }
}

impl Book {
    fn now(&self) -> Moment {
        self.start.elapsed()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask_all(&self) {
        let mut entries = self.entries();
        let Entries { open, revived, .. } = &mut *entries;
        revived.extend(open.values_mut().filter_map(|one| one.ask(self)));
    }

    fn open<G: Guard>(self: &Arc<Self>, guard: G, host: &str, acquisition: u64) -> Holding<G> {
        let from = self.now();
        let guard = Arc::new(guard);
        let node = guard.node();
        let path = directory(&node).to_owned();
        let hold = Hold {
            acquisition,
            path,
            node,
            host: host.to_owned(),
            mode: G::MODE,
            token: guard.token(),
            from,
            until: from,
            lost: false,
        };
        let mut open = Open { hold, guard: guard.clone() };
        open.ask(self);
        let mut entries = self.entries();
        let number = entries.next;
        entries.next += 1;
        entries.open.insert(number, open);
        drop(entries);
        Holding { guard: Some(guard), number, acquisition, from, host: host.to_owned(), book: Arc::clone(self) }
    }

    /// Records the end of a hold, and drops the witness's clone of the guard.
    fn close(&self, number: u64) {
        let mut entries = self.entries();
        let Some(mut open) = entries.open.remove(&number) else { return };
        let revived = open.ask(self);
        entries.revived.extend(revived);
        entries.closed.push(open.hold);
    }
}

/// A guard whose interval is being recorded. Dropping it records the end and drops the guard.
#[derive(Debug)]
pub struct Holding<G: Guard> {
    guard: Option<Arc<G>>,
    number: u64,
    acquisition: u64,
    from: Moment,
    host: String,
    book: Arc<Book>,
}

impl<G: Guard> Holding<G> {
    /// Records the end of the hold, and returns the guard. Call this method just before the release.
    pub fn leave(mut self) -> G {
        self.book.close(self.number);
        let guard = self.guard.take().expect("the guard is taken once");
        Arc::into_inner(guard).expect("the witness has dropped its clone")
    }

    /// Records another guard of the same node, such as a share.
    pub fn also<H: Guard>(&self, guard: H) -> Holding<H> {
        self.book.open(guard, &self.host, self.acquisition)
    }

    /// Records the end of this hold, and then the hold of the guard that `change` returns, such as a downgrade.
    pub async fn changed<H: Guard, E>(self, change: impl AsyncFnOnce(G) -> Result<H, E>) -> Result<Holding<H>, E> {
        let (book, host, acquisition) = (Arc::clone(&self.book), self.host.clone(), self.acquisition);
        let guard = change(self.leave()).await?;
        Ok(book.open(guard, &host, acquisition))
    }
}

impl<G: Guard> Deref for Holding<G> {
    type Target = G;

    fn deref(&self) -> &G {
        self.guard.as_ref().expect("the guard is taken only at the end")
    }
}

impl<G: Guard> Drop for Holding<G> {
    fn drop(&mut self) {
        self.book.close(self.number);
    }
}

impl History {
    pub fn start() -> Self {
        let (began, start) = (trace::now(), Instant::now());
        let book = Arc::new(Book { start, began, entries: Mutex::default(), acquisitions: AtomicU64::new(1) });
        let stop = Arc::new(AtomicBool::new(false));
        let (asks, stopped) = (Arc::clone(&book), Arc::clone(&stop));
        let witness = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                asks.ask_all();
                thread::sleep(ASK_EVERY);
            }
        });
        Self { book, stop, witness: Some(witness) }
    }

    pub fn now(&self) -> Moment {
        self.book.now()
    }

    /// Records a grant. Call this method right after the acquisition has returned.
    pub fn granted<G: Guard>(&self, guard: G, host: &str) -> Holding<G> {
        let acquisition = self.book.acquisitions.fetch_add(1, Ordering::Relaxed);
        self.book.open(guard, host, acquisition)
    }

    /// Records that an operator requested the deletion of a node at `asked`. The deletion may have been carried out or
    /// not.
    pub fn operator_deleted(&self, node: &str, asked: Moment) {
        self.book.entries().deletions.insert(node.to_owned(), asked);
    }

    pub fn deletions(&self) -> HashMap<String, Moment> {
        self.book.entries().deletions.clone()
    }

    /// Returns the holds that have ended. A hold whose node an operator deleted ends at the request for the deletion.
    pub fn holds(&self) -> Vec<Hold> {
        let entries = self.book.entries();
        definite(&entries.closed, &entries.deletions)
    }

    /// Returns the holds as [`History::holds`] does, on the clock of `support::trace`.
    pub fn traced(&self) -> Vec<Hold> {
        let began = self.book.began;
        let shifted = |hold: Hold| Hold { from: began + hold.from, until: began + hold.until, ..hold };
        self.holds().into_iter().map(shifted).collect()
    }

    /// Returns all faults of the intervals, in words.
    pub fn faults(&self) -> Vec<String> {
        let holds = self.holds();
        let mut faults = self.book.entries().revived.clone();
        faults.extend(overlaps(&holds));
        faults.extend(falling_fences(&holds));
        faults.extend(overtakings(&holds));
        faults
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(witness) = self.witness.take() {
            // A panic of the witness is ignored: its message is printed, and the intervals recorded until then are too
            // short rather than too long, so they show no false overlap.
            let _ = witness.join();
        }
    }
}

impl Hold {
    /// Returns the owner of the node. All acquisitions that use one node which a process keeps have the same owner. Any
    /// other acquisition is its own owner.
    fn owner(&self) -> String {
        match self.node.split_once("~keep-") {
            Some((owner, _)) => owner.to_owned(),
            None => self.acquisition.to_string(),
        }
    }
}

impl std::fmt::Display for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Hold { from, until, mode, host, node, token, .. } = self;
        let end = if self.lost { ", then lost" } else { "" };
        write!(f, "{from:?} to {until:?}{end}: {host} {mode:?} {node} token {token:#x}")
    }
}

fn directory(node: &str) -> &str {
    node.rsplit_once('/').map_or("", |(directory, _)| directory)
}

// ----------------------------------------------------------------------------------------------- Checkers of intervals

/// Returns the holds as the checkers judge them.
///
/// When an operator deletes a *holder's* node, ZooKeeper may notify the next contender before the holder, and no client
/// can prevent that. So such a hold counts as ended when the deletion was requested. Holds of no duration are left out,
/// such as grants that were lost before the caller received the guard.
pub fn definite(holds: &[Hold], deletions: &HashMap<String, Moment>) -> Vec<Hold> {
    let cut = |hold: &Hold| {
        let until = deletions.get(&hold.node).map_or(hold.until, |deleted| hold.until.min(*deleted));
        Hold { until, ..hold.clone() }
    };
    holds.iter().map(cut).filter(|hold| hold.until > hold.from).collect()
}

/// Finds writers that held at the same time as another holder.
pub fn overlaps(holds: &[Hold]) -> Vec<String> {
    let mut faults = Vec::new();
    each_path(holds, |holds| {
        let mut current: Vec<&Hold> = Vec::new();
        for hold in holds {
            current.retain(|other| other.until > hold.from);
            for other in &current {
                let excludes = hold.mode == Mode::Write || other.mode == Mode::Write;
                if excludes && other.acquisition != hold.acquisition {
                    faults.push(format!("two holders at {:?}:\n  {other}\n  {hold}", hold.from));
                }
            }
            current.push(hold);
        }
    });
    faults
}

/// Finds moments at which more permits were held than the semaphore has. Names the holders' nodes.
pub fn overdrawn(holds: &[Hold], permits: u64) -> Vec<String> {
    let count = |hold: &Hold| hold.node.rsplit('-').next().and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
    let mut faults = Vec::new();
    each_path(holds, |holds| {
        let mut current: Vec<&Hold> = Vec::new();
        for hold in holds {
            current.retain(|other| other.until > hold.from);
            current.push(hold);
            let held: u64 = current.iter().map(|hold| count(hold)).sum();
            if held > permits {
                let all: Vec<_> = current.iter().map(|hold| format!("\n  {hold}")).collect();
                faults.push(format!("{held} of {permits} permits at {:?}:{}", hold.from, all.concat()));
            }
        }
    });
    faults
}

/// Finds holders whose token is not higher than that of an earlier holder that excludes them, and tokens that two nodes
/// have.
pub fn falling_fences(holds: &[Hold]) -> Vec<String> {
    let mut faults = Vec::new();
    each_path(holds, |holds| {
        let mut owners: HashMap<i64, String> = HashMap::new();
        let mut ended: Vec<&Hold> = holds.to_vec();
        ended.sort_by_key(|hold| hold.until);
        let mut ended = ended.into_iter().peekable();
        let (mut highest, mut highest_writer): (Option<&Hold>, Option<&Hold>) = (None, None);
        for hold in holds {
            if *owners.entry(hold.token).or_insert_with(|| hold.owner()) != hold.owner() {
                faults.push(format!("a token given twice:\n  {hold}"));
            }
            while let Some(before) = ended.next_if(|before| before.until <= hold.from) {
                raise(&mut highest, before);
                if before.mode == Mode::Write {
                    raise(&mut highest_writer, before);
                }
            }
            let earlier = if hold.mode == Mode::Write { highest } else { highest_writer };
            if let Some(earlier) = earlier.filter(|earlier| earlier.token > hold.token) {
                faults.push(format!("the fencing token fell:\n  {earlier}\n  {hold}"));
            }
        }
    });
    faults
}

/// Finds contenders that were granted the lock before a contender that excludes them and has an older node. Readers may be
/// granted the lock in any order among themselves.
pub fn overtakings(holds: &[Hold]) -> Vec<String> {
    let mut faults = Vec::new();
    each_path(holds, |holds| {
        let (mut highest, mut highest_writer): (Option<&Hold>, Option<&Hold>) = (None, None);
        for hold in holds {
            let earlier = if hold.mode == Mode::Write { highest } else { highest_writer };
            if let Some(earlier) = earlier.filter(|earlier| earlier.token > hold.token) {
                faults.push(format!("granted out of turn:\n  {earlier}\n  {hold}"));
            }
            raise(&mut highest, hold);
            if hold.mode == Mode::Write {
                raise(&mut highest_writer, hold);
            }
        }
    });
    faults
}

fn raise<'h>(highest: &mut Option<&'h Hold>, hold: &'h Hold) {
    if highest.is_none_or(|highest| highest.token < hold.token) {
        *highest = Some(hold);
    }
}

/// Calls `judge` with the holds of each path, in the order of their grants.
fn each_path<'h>(holds: &'h [Hold], mut judge: impl FnMut(&[&'h Hold])) {
    let mut paths: HashMap<&str, Vec<&Hold>> = HashMap::new();
    for hold in holds {
        paths.entry(&hold.path).or_default().push(hold);
    }
    for holds in paths.values_mut() {
        holds.sort_by_key(|hold| hold.from);
        judge(holds);
    }
}

// ------------------------------------------------------------------------------------------------ The protected values

/// The values that one lock protects: a plain value, which only the lock protects, and a value that also checks fencing
/// tokens.
#[derive(Debug)]
pub struct Store {
    /// The plain value: the id of the last update. Each update writes a new id, so that a checker can name a lost
    /// update.
    plain: AtomicU64,
    highest: AtomicI64,
    next: AtomicU64,
    accesses: Mutex<Vec<Access>>,
}

/// One access of a holder to a [`Store`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub deed: Deed,
    pub acquisition: u64,
    pub node: String,
    pub granted: Moment,
    /// The moment just before the first step of the access.
    pub began: Moment,
    /// The moment just before the last step of the access.
    pub at: Moment,
    /// The moment after the last step of the access.
    pub done: Moment,
    /// Whether the guard said "held" after the last step. If so, the guard was held during the whole access.
    pub sure: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A writer read the plain value and later wrote a new one, without a second read.
    Update { read: u64, wrote: u64 },
    /// A reader read the plain value twice.
    Look { first: u64, second: u64 },
    /// A writer wrote with its token to the value that checks tokens.
    Fenced { token: i64, accepted: bool },
}

impl Default for Store {
    fn default() -> Self {
        Self {
            plain: AtomicU64::new(0),
            highest: AtomicI64::new(0),
            next: AtomicU64::new(1),
            accesses: Mutex::default(),
        }
    }
}

impl Store {
    /// Updates the plain value: reads the value, awaits `thinking`, and writes a new value if the guard is still held.
    pub async fn update(&self, holding: &Holding<WriteGuard>, thinking: impl Future<Output = ()>) {
        let began = holding.book.now();
        let read = self.plain.load(Ordering::SeqCst);
        thinking.await;
        let at = holding.book.now();
        if holding.is_held() {
            let wrote = self.next.fetch_add(1, Ordering::SeqCst);
            self.plain.store(wrote, Ordering::SeqCst);
            self.note(holding, Deed::Update { read, wrote }, began, at);
        }
    }

    /// Reads the plain value before and after `thinking`. The value must not change while a reader holds the lock.
    pub async fn look<G: Guard>(&self, holding: &Holding<G>, thinking: impl Future<Output = ()>) {
        let began = holding.book.now();
        let first = self.plain.load(Ordering::SeqCst);
        thinking.await;
        let at = holding.book.now();
        let second = self.plain.load(Ordering::SeqCst);
        self.note(holding, Deed::Look { first, second }, began, at);
    }

    /// Writes with the guard's token, also after the lock was lost, as a late packet would. The write is refused if its
    /// token is lower than the highest token so far.
    pub fn write_fenced(&self, holding: &Holding<WriteGuard>) {
        let (began, token) = (holding.book.now(), holding.fencing_token());
        let accepted = self.highest.fetch_max(token, Ordering::SeqCst) <= token;
        self.note(holding, Deed::Fenced { token, accepted }, began, began);
    }

    fn note<G: Guard>(&self, holding: &Holding<G>, deed: Deed, began: Moment, at: Moment) {
        let done = holding.book.now();
        let sure = holding.is_held();
        let (acquisition, granted, node) = (holding.acquisition, holding.from, holding.node());
        let access = Access { deed, acquisition, node, granted, began, at, done, sure };
        self.accesses.lock().unwrap_or_else(PoisonError::into_inner).push(access);
    }

    pub fn accesses(&self) -> Vec<Access> {
        self.accesses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Finds lost updates of the plain value, and changes of the plain value during a read.
///
/// Only accesses under a guard that was surely held are judged. Such an access may read the value of a writer that lost
/// the lock during its write, because its lease ended or an operator deleted its node.
pub fn lost_updates(accesses: &[Access], deletions: &HashMap<String, Moment>) -> Vec<String> {
    let mut accesses: Vec<&Access> = accesses.iter().collect();
    accesses.sort_by_key(|access| access.at);
    let (judged, others): (Vec<&Access>, Vec<&Access>) =
        accesses.into_iter().partition(|access| access.surely_held(deletions));
    let foreign = |wanted: u64, after: Moment, before: Moment| {
        others.iter().any(|other| match other.deed {
            Deed::Update { wrote, .. } => wrote == wanted && other.done >= after && other.at <= before,
            _ => false,
        })
    };
    let mut faults = Vec::new();
    let (mut last, mut last_at) = (0, Duration::ZERO);
    for access in judged {
        match access.deed {
            Deed::Update { read, wrote } => {
                if read != last && !foreign(read, last_at, access.at) {
                    faults.push(format!("an update was lost: {last} had been written, but {access:?}"));
                }
                (last, last_at) = (wrote, access.at);
            }
            Deed::Look { first, second } => {
                if first != second && !foreign(second, access.began, access.done) {
                    faults.push(format!("the value changed under a reader: {access:?}"));
                }
            }
            Deed::Fenced { .. } => {}
        }
    }
    faults
}

/// Finds writes of a holder that the check of tokens refused, and late writes that the check accepted.
pub fn wrong_fences(accesses: &[Access], deletions: &HashMap<String, Moment>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut accesses: Vec<&Access> = accesses.iter().collect();
    accesses.sort_by_key(|access| access.at);
    let mut newest: Option<&Access> = None;
    for access in accesses {
        match access.deed {
            Deed::Fenced { accepted: false, .. } if access.surely_held(deletions) => {
                faults.push(format!("the fence refused a holder: {access:?}"));
            }
            Deed::Fenced { accepted: true, .. } => {
                let later = newest.filter(|newest| newest.granted > access.granted && newest.at < access.at);
                // If an operator deletes a holder's node, the holder may hear of its own grant after the next contender
                // was granted the lock.
                let is_deleted = |access: &Access| deletions.contains_key(&access.node);
                if let Some(later) = later.filter(|later| !is_deleted(access) && !is_deleted(later)) {
                    faults.push(format!("the fence took a write from the past: {access:?} after {later:?}"));
                }
                if newest.is_none_or(|newest| newest.granted < access.granted) {
                    newest = Some(access);
                }
            }
            _ => {}
        }
    }
    faults
}

/// Returns the number of late writes that the check of tokens refused.
pub fn refused_by_fence(accesses: &[Access]) -> usize {
    accesses.iter().filter(|access| matches!(access.deed, Deed::Fenced { accepted: false, .. })).count()
}

impl Access {
    fn surely_held(&self, deletions: &HashMap<String, Moment>) -> bool {
        self.sure && deletions.get(&self.node).is_none_or(|deleted| *deleted > self.done)
    }
}
