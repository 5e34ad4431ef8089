//! A replay of a run from the server's transaction log. It checks that the protocol allows each write to its contender
//! at its time, and that each contender was granted the lock when its turn had come. The rules are stated here a second
//! time, independently of the library.
//!
//! The log does not show when a contender learns something, only the earliest time at which it can learn it. A contender
//! can learn of its turn from the transaction that brings the turn. A kept node is a node that its process keeps between
//! uses. A contender behind a kept node writes to the directory's data to ask for this node. The contender can learn of
//! the kept node from the transaction that creates the node, until some contender has asked. A hold begins when the
//! contender reports it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Display;
use std::hash::Hash;
use std::time::Duration;

use zk_rwlock::Mode;

use crate::history::{Hold, falling_fences, overlaps};
use crate::trace::{Event, What, drift, recorded};
use crate::txn_log::{Op, Txn};

/// The precision of the times in a server's transaction log.
pub const MILLISECOND: Duration = Duration::from_millis(1);

/// The error code for a create of an existing node.
const NODE_EXISTS: i32 = -110;

/// The time within which a holder must learn that its session has ended. Until it learns of the end, it may release the
/// lock as if nothing were lost, because the event is still on its way or the machine is busy.
const ABOUT_TO_HEAR: Duration = Duration::from_secs(2);

/// The longest time by which the library's log thread is assumed to delay an event.
const DELIVERED_WITHIN: Duration = Duration::from_secs(3);

/// The record of a run: the server's log, and the reports of the contenders.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The prefixes of the lock directories that are judged.
    pub paths: Vec<String>,
    pub log: Vec<Txn>,
    pub events: Vec<Event>,
    /// The times during which guards said "held", on the clock of `events`. Holds that an operator may have ended are
    /// left out.
    pub holds: Vec<Hold>,
    /// The nodes that an operator may have deleted, and the directories whose data an operator may have set.
    pub operators: HashSet<String>,
    /// The prefixes of the paths that only the holder of a lock may write.
    pub guarded: Vec<String>,
    /// The prefix of the contenders that may receive false replies: a refusal of a request that the server has carried
    /// out.
    pub lied_to: Option<String>,
    /// The largest possible difference between the clock of the log and the clock of the events.
    pub leeway: Duration,
}

impl Run {
    /// Returns a run with the events that [`recorded`] has for these paths.
    pub fn of(paths: &[&str], log: Vec<Txn>, holds: Vec<Hold>, operators: HashSet<String>) -> Run {
        let (events, paths) = (recorded(paths), paths.iter().map(|path| (*path).to_owned()).collect());
        Run { paths, log, events, holds, operators, guarded: Vec::new(), lied_to: None, leeway: drift() }
    }

    /// Returns the log without operations on other paths, because other tests may use the same server.
    fn judged(&self) -> Vec<Txn> {
        let is_judged = |path: &String| self.paths.iter().chain(&self.guarded).any(|begin| path.starts_with(begin));
        let concerns = |op: &&Op| match op {
            Op::Create { path, .. } | Op::Delete { path } | Op::Set { path, .. } | Op::Check { path } => {
                is_judged(path)
            }
            Op::Refused { .. } | Op::Begin | Op::End => true,
        };
        let of = |txn: &Txn| Txn { ops: txn.ops.iter().filter(concerns).cloned().collect(), ..*txn };
        self.log.iter().map(of).collect()
    }
}

/// The verdict on a run: its faults, in words, and the number of times that each step of the protocol occurred.
#[derive(Debug, Default)]
pub struct Verdict {
    pub faults: Vec<String>,
    pub seen: BTreeMap<&'static str, usize>,
}

/// The steps of the model in `tests/models/protocol.rs`, by the names that the model gives them. `ArmDirectory`,
/// `List`, `Arm`, `See` and `Recover` leave no trace in the log or in the events. They are counted at a later step that
/// implies them.
pub const OF_THE_MODEL: [&str; 17] = [
    "ArmDirectory",
    "Enter",
    "EnterAnswerLost",
    "EnterRequestLost",
    "Recover",
    "List",
    "Arm",
    "See",
    "Ask",
    "Notify",
    "OperatorAsks",
    "Release",
    "UseAgain",
    "GiveUp",
    "Downgrade",
    "Cancel",
    "Expire",
];

/// The steps of the protocol that the model does not have.
pub const OTHERS: [&str; 5] = ["Evict", "Commit", "TakePermit", "GiveBackPermit", "LosePermit"];

/// The parts of a contender's node name.
#[derive(Clone, Debug)]
struct Name {
    owner: String,
    mode: Mode,
    sequence: i64,
    keeps: bool,
    /// Whether a writer of this dialect signals the next contender when it releases the lock.
    signals: bool,
}

impl Name {
    fn parse(name: &str) -> Option<Name> {
        const MARKERS: [(&str, Mode, bool); 8] = [
            ("-READ-", Mode::Read, true),
            ("-WRITE-", Mode::Write, true),
            ("__READ__", Mode::Read, false),
            ("__WRIT__", Mode::Write, false),
            ("__rlock__", Mode::Read, false),
            ("__lock__", Mode::Write, false),
            ("READ-lock-", Mode::Read, false),
            ("lock-", Mode::Write, false),
        ];
        let (front, digits) = name.split_at_checked(name.len().checked_sub(10)?)?;
        let sequence = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
        let (marker, mode, signals) = MARKERS.into_iter().find(|(marker, ..)| front.ends_with(marker))?;
        let owner = front.strip_suffix(marker)?.to_owned();
        let keeps = signals && owner.ends_with("~keep");
        Some(Name { owner, mode, sequence, keeps, signals })
    }

    /// Returns whether this contender is ahead of the other one in the queue and excludes it.
    fn is_before(&self, other: &Name) -> bool {
        self.sequence < other.sequence && (self.mode == Mode::Write || other.mode == Mode::Write)
    }
}

/// The way in which a node was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Signalled,
    Deleted,
    Exchanged,
    Downgraded,
    Expired,
    Evicted,
}

/// The node of a contender or of a holder of permits, also after its deletion.
#[derive(Clone, Debug)]
struct Node {
    path: String,
    name: Name,
    session: i64,
    /// The zxid of the transaction that created the node. For a node that a downgrade created, the token of the node
    /// that the downgrade replaced.
    token: i64,
    /// When it became the contender's turn: the zxid and the proposal time of the transaction that brought the turn,
    /// and how the last node that the contender waited for was removed. The last part is `None` if the contender waited
    /// for no node.
    turn: Option<(i64, Duration, Option<Left>)>,
    left: Option<(i64, Duration, Left)>,
}

impl Node {
    fn shown(&self) -> String {
        format!("{} of session {:#x}", self.path, self.session)
    }
}

/// The directory of a lock.
#[derive(Debug, Default)]
struct Queue {
    /// The indices of the existing nodes.
    live: BTreeSet<usize>,
    next: i64,
    /// The sessions that may ask the owner of a kept node to give the node up. Each such request empties the set. A
    /// contender repeats a request whose reply was lost, even after it has left the queue.
    may_ask: HashSet<i64>,
    /// The nodes of all contenders that had a kept node ahead of them at some time. Each contender asks for it at most
    /// once, and the log shows only the session that asks.
    might_ask: HashSet<usize>,
    /// The session of each transaction so far that asks the owner of a kept node to give the node up.
    asked: Vec<i64>,
}

#[derive(Debug, Default)]
struct Semaphore {
    number: Option<u64>,
    /// The number of permits that each permit's node has taken, by the index of the node.
    taken: BTreeMap<usize, u64>,
}

struct Replay<'r> {
    run: &'r Run,
    nodes: Vec<Node>,
    /// The indices in `nodes` of the existing nodes, by path.
    at: HashMap<String, usize>,
    tokens: HashMap<i64, Vec<usize>>,
    queues: HashMap<String, Queue>,
    semaphores: HashMap<String, Semaphore>,
    /// For each guarded path, the lock under which the path was written first.
    guards: HashMap<String, String>,
    /// The time at which a contender first reported its grant, by the token of its node.
    told: HashMap<i64, Duration>,
    /// When the loss of a node was first reported, by the path of the node. The library's log thread reports it.
    lost: HashMap<&'r str, Duration>,
    verdict: Verdict,
}

/// Replays the run, and returns its faults.
pub fn judge(run: &Run) -> Verdict {
    let mut replay = Replay {
        run,
        nodes: Vec::new(),
        at: HashMap::new(),
        tokens: HashMap::new(),
        queues: HashMap::new(),
        semaphores: HashMap::new(),
        guards: HashMap::new(),
        told: firsts(run, &[What::Granted, What::Got], |event| (event.token, event.earliest())),
        lost: firsts(run, &[What::Lost], |event| (&*event.path, event.at)),
        verdict: Verdict::default(),
    };
    for txn in run.judged() {
        replay.step(&txn);
    }
    replay.judge_events();
    replay.judge_holds();
    replay.verdict
}

/// Returns the earliest of the times that `of` returns for the events of these kinds, by key.
fn firsts<'r, K: Eq + Hash>(
    run: &'r Run,
    told: &[What],
    of: impl Fn(&'r Event) -> (K, Duration),
) -> HashMap<K, Duration> {
    let mut firsts = HashMap::new();
    for (key, at) in run.events.iter().filter(|event| told.contains(&event.what)).map(of) {
        let first = firsts.entry(key).or_insert(at);
        *first = at.min(*first);
    }
    firsts
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn child(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, child)| child)
}

/// Returns the semaphore and the number of permits of a permit's node.
fn permit(path: &str) -> Option<(&str, u64)> {
    let semaphore = parent(path).strip_suffix("/permits")?;
    Some((semaphore, path.rsplit_once("-PERMIT-")?.1.parse().ok()?))
}

fn number(data: &[u8]) -> Option<u64> {
    std::str::from_utf8(data).ok()?.strip_prefix("permits=")?.trim().parse().ok()
}

impl Replay<'_> {
    fn saw(&mut self, step: &'static str) {
        *self.verdict.seen.entry(step).or_default() += 1;
    }

    fn refuse(&mut self, txn: &Txn, step: &str, whose: impl Display, rule: &str) {
        let Txn { zxid, session, .. } = txn;
        self.verdict.faults.push(format!("{step} of {whose}, at zxid {zxid:#x} by session {session:#x}: {rule}"));
    }

    fn is_lied_to(&self, name: &Name) -> bool {
        self.run.lied_to.as_ref().is_some_and(|begin| name.owner.starts_with(begin))
    }

    /// Returns the latest possible time at which a transaction was proposed, on the clock of the events, if the log dates
    /// the transaction to `time`.
    fn latest(&self, time: Duration) -> Duration {
        time + MILLISECOND + self.run.leeway
    }

    fn was_told(&self, node: &Node, by: Duration) -> bool {
        self.told.get(&node.token).is_some_and(|told| *told <= self.latest(by))
    }

    /// Describes when a contender's turn came and when it was notified, for a fault of a contender that acted as a
    /// holder without a grant.
    fn not_granted(&self, node: &Node, by: Duration) -> String {
        let (turn, told) = (node.turn.map(|(zxid, time, _)| (zxid, time)), self.told.get(&node.token));
        format!("and it was not granted by {by:?}: its turn came at {turn:?}, and it was notified at {told:?}")
    }

    fn step(&mut self, txn: &Txn) {
        let changes = txn.ops.iter().any(|op| !matches!(op, Op::Check { .. }));
        let mut guards = Vec::new();
        for op in &txn.ops {
            match op {
                Op::Create { path, data, ephemeral } => self.created(txn, path, data, *ephemeral),
                Op::Delete { path } => self.deleted(txn, path),
                Op::Set { path, data } => self.set(txn, path, data),
                Op::End => self.ended(txn),
                Op::Check { path } if changes => guards.push(path),
                Op::Check { .. } | Op::Refused { .. } | Op::Begin => {}
            }
        }
        let lock = guards.iter().find(|guard| self.at.contains_key(**guard)).map(|guard| parent(guard).to_owned());
        for op in &txn.ops {
            match op {
                Op::Create { path, data, .. } | Op::Set { path, data } if !data.is_empty() && self.is_guarded(path) => {
                    self.written(txn, path, lock.as_deref());
                }
                _ => {}
            }
        }
        // A check of a node that still exists after the transaction belongs to a commit. An exchange for a permit also
        // checks the contender's node, but then deletes that node.
        for path in guards {
            if let Some(node) = self.at.get(path).map(|at| self.nodes[*at].clone()) {
                self.saw("Commit");
                if node.session != txn.session {
                    self.refuse(txn, "Commit", node.shown(), "the node is another session's");
                } else if node.turn.is_none() || !self.was_told(&node, txn.time) {
                    let rule = format!("only a holder commits, {}", self.not_granted(&node, txn.time));
                    self.refuse(txn, "Commit", node.shown(), &rule);
                }
            }
        }
    }

    fn is_guarded(&self, path: &str) -> bool {
        self.run.guarded.iter().any(|guarded| path.starts_with(guarded)) && Name::parse(child(path)).is_none()
    }

    /// Records that a transaction wrote the guarded `path` under a check of `lock`. Reports a fault if there was no
    /// check, or if the path was written under another lock before.
    fn written(&mut self, txn: &Txn, path: &str, lock: Option<&str>) {
        let Some(lock) = lock else { return self.refuse(txn, "Commit", path, "only a holder writes it, by its node") };
        let first = self.guards.entry(path.to_owned()).or_insert_with(|| lock.to_owned()).clone();
        if first != lock {
            self.refuse(txn, "Commit", path, &format!("it is written under {first}, and not under {lock}"));
        }
    }

    fn created(&mut self, txn: &Txn, path: &str, data: &[u8], ephemeral: bool) {
        if let Some((semaphore, count)) = permit(path) {
            return self.took_permits(txn, path, semaphore, count);
        }
        if let Some(number) = number(data) {
            self.semaphores.entry(path.to_owned()).or_default().number = Some(number);
        }
        let Some(name) = Name::parse(child(path)).filter(|_| ephemeral) else { return };
        let deletes = |op: &Op| match op {
            Op::Delete { path: old } => self.at.get(old).copied(),
            _ => None,
        };
        let mut token = txn.zxid;
        if let Some(old) = txn.ops.iter().find_map(deletes).map(|old| self.nodes[old].clone()) {
            self.saw("Downgrade");
            token = old.token;
            let keeps_place = (&old.name.owner, old.name.sequence) == (&name.owner, name.sequence);
            if !keeps_place || parent(&old.path) != parent(path) {
                self.refuse(txn, "Downgrade", old.shown(), &format!("it keeps its place, and {path} is another"));
            } else if (old.name.mode, name.mode) != (Mode::Write, Mode::Read) {
                self.refuse(txn, "Downgrade", old.shown(), "only a writer becomes a reader");
            } else if old.turn.is_none() || !self.was_told(&old, txn.time) {
                let rule = format!("only a holder downgrades, {}", self.not_granted(&old, txn.time));
                self.refuse(txn, "Downgrade", old.shown(), &rule);
            }
        } else {
            self.saw("Enter");
            if name.keeps {
                self.saw("ArmDirectory");
            }
            let queue = self.queues.entry(parent(path).to_owned()).or_default();
            let next = std::mem::replace(&mut queue.next, name.sequence + 1);
            if name.sequence < next {
                self.refuse(txn, "Enter", path, &format!("number {next} comes next"));
            }
            let mut live = self.queues[parent(path)].live.iter();
            let first = live.find(|other| self.nodes[**other].name.owner == name.owner);
            if first.is_some_and(|first| !self.may_have_two(txn, path, &self.nodes[*first])) {
                self.refuse(txn, "Enter", path, "the contender has a node already");
            }
        }
        let at = self.stands(Node { path: path.to_owned(), name, session: txn.session, token, turn: None, left: None });
        self.queues.entry(parent(path).to_owned()).or_default().live.insert(at);
        self.look(txn, parent(path), None);
    }

    /// Returns whether a contender may create a second node. Two cases allow this:
    ///
    /// - The reply to its first create was lost, and the contender reported that it found no node.
    /// - The server gives false replies: that the directory does not exist, both to the create and to the listing.
    fn may_have_two(&self, txn: &Txn, path: &str, first: &Node) -> bool {
        let by = self.latest(txn.time);
        let is_missed = |event: &Event| {
            let is_before = event.earliest() <= by;
            event.what == What::Missed && event.path == parent(path) && event.how == first.name.owner && is_before
        };
        let is_between =
            |other: &Txn| other.session == txn.session && first.token < other.zxid && other.zxid < txn.zxid;
        let is_made = |other: &Txn| is_between(other) && other.ops == [Op::Refused { code: NODE_EXISTS }];
        let was_lied_to = || self.run.log.iter().any(is_made);
        self.run.events.iter().any(is_missed) || (self.is_lied_to(&first.name) && was_lied_to())
    }

    /// After a change of a directory, records which contenders have their turn now, and which may ask for a kept node.
    fn look(&mut self, txn: &Txn, directory: &str, left: Option<Left>) {
        let Some(queue) = self.queues.get_mut(directory) else { return };
        for at in &queue.live {
            let me = &self.nodes[*at];
            let mut before =
                queue.live.iter().map(|other| &self.nodes[*other]).filter(|it| it.name.is_before(&me.name));
            if before.clone().any(|it| it.name.keeps) {
                queue.may_ask.insert(me.session);
                queue.might_ask.insert(*at);
            }
            if me.turn.is_none() && before.next().is_none() {
                self.nodes[*at].turn = Some((txn.zxid, txn.time, left));
            }
        }
    }

    fn leaves(&mut self, txn: &Txn, at: usize, how: Left) {
        let node = &mut self.nodes[at];
        node.left = Some((txn.zxid, txn.time, how));
        let path = node.path.clone();
        self.at.remove(&path);
        if let Some((semaphore, _)) = permit(&path) {
            self.saw(if how == Left::Expired { "LosePermit" } else { "GiveBackPermit" });
            self.semaphores.entry(semaphore.to_owned()).or_default().taken.remove(&at);
        } else {
            self.queues.entry(parent(&path).to_owned()).or_default().live.remove(&at);
            self.look(txn, parent(&path), Some(how));
        }
    }

    fn deleted(&mut self, txn: &Txn, path: &str) {
        let Some(at) = self.at.get(path).copied() else {
            // The queue of a deleted directory is forgotten, because the sequence numbers of a new directory begin with 0.
            self.queues.remove(path);
            return;
        };
        let node = self.nodes[at].clone();
        let of_own = |op: &Op| matches!(op, Op::Set { path: it, .. } if it == path);
        let creates = |wanted: fn(&str) -> bool| {
            txn.ops.iter().any(|op| matches!(op, Op::Create { path, ephemeral: true, .. } if wanted(child(path))))
        };
        let told = self.was_told(&node, txn.time);
        let is_own = node.session == txn.session;
        let how = if !is_own && !self.is_given_up(txn, &node) {
            if !self.run.operators.contains(path) {
                self.refuse(txn, "Delete", node.shown(), "nobody deletes another's node");
            }
            self.saw("Evict");
            Left::Evicted
        } else if creates(|name| name.contains("-PERMIT-")) {
            Left::Exchanged
        } else if creates(|name| Name::parse(name).is_some()) {
            Left::Downgraded
        } else if txn.ops.iter().any(of_own) {
            self.saw("Release");
            if node.name.mode != Mode::Write || !node.name.signals {
                self.refuse(txn, "Release", node.shown(), "only a writer signals");
            } else if node.turn.is_none() || !told {
                let rule = format!("only a holder signals, {}", self.not_granted(&node, txn.time));
                self.refuse(txn, "Release", node.shown(), &rule);
            }
            Left::Signalled
        } else {
            if permit(path).is_none() {
                self.saw(if told { "Release" } else { "Cancel" });
                let signals = node.name.mode == Mode::Write && node.name.signals && told && is_own;
                if signals && !self.is_lied_to(&node.name) {
                    self.refuse(txn, "Release", node.shown(), "a writer that held must signal");
                }
            }
            Left::Deleted
        };
        self.leaves(txn, at, how);
    }

    /// Returns whether another session of the contender may delete this node. A session may do this if the contender has
    /// lost the node with its former session, and is finding out the outcome of a commit.
    fn is_given_up(&self, txn: &Txn, node: &Node) -> bool {
        let begun =
            |session| self.run.log.iter().find(|it| it.session == session && it.ops == [Op::Begin]).map(|it| it.zxid);
        let is_lost = |event: &Event| {
            let is_over = event.how.starts_with("the session") || event.how.starts_with("the lease");
            let is_before = event.at <= self.latest(txn.time) + DELIVERED_WITHIN;
            event.what == What::Lost && event.path == node.path && is_over && is_before
        };
        let is_over = self.run.events.iter().any(is_lost);
        txn.ops.len() == 1 && begun(txn.session) > begun(node.session) && is_over
    }

    fn set(&mut self, txn: &Txn, path: &str, data: &[u8]) {
        if let Some(node) = self.at.get(path).map(|at| self.nodes[*at].clone()) {
            let leaves = |op: &Op| matches!(op, Op::Delete { path: it } if it == path);
            if !txn.ops.iter().any(leaves) && !self.run.operators.contains(path) {
                self.refuse(txn, "Set", node.shown(), "nobody writes to a node that stays");
            }
        } else if let Some(queue) = self.queues.get_mut(path) {
            let contenders = queue.might_ask.iter().filter(|at| self.nodes[**at].session == txn.session).count();
            let asked = queue.asked.iter().filter(|session| **session == txn.session).count();
            let may = queue.may_ask.contains(&txn.session) && asked < contenders;
            queue.may_ask.clear();
            queue.asked.push(txn.session);
            self.look(txn, path, None);
            self.saw(if may { "Ask" } else { "OperatorAsks" });
            if !may && !self.run.operators.contains(path) {
                self.refuse(txn, "Ask", path, "only a contender behind a kept node asks, and each once");
            }
        } else if let Some(number) = number(data) {
            self.semaphores.entry(path.to_owned()).or_default().number = Some(number);
        }
    }

    fn ended(&mut self, txn: &Txn) {
        let of_session = |at: &&usize| self.nodes[**at].session == txn.session;
        let mut gone: Vec<usize> = self.at.values().filter(of_session).copied().collect();
        gone.sort_unstable();
        if !gone.is_empty() {
            self.saw("Expire");
        }
        for at in gone {
            self.leaves(txn, at, Left::Expired);
        }
    }

    fn took_permits(&mut self, txn: &Txn, path: &str, semaphore: &str, count: u64) {
        self.saw("TakePermit");
        let place = |op: &Op| match op {
            Op::Delete { path } => self.at.get(path).map(|at| &self.nodes[*at]),
            _ => None,
        };
        let place = txn.ops.iter().find_map(place).cloned();
        let place = place.filter(|it| it.session == txn.session && parent(&it.path) == format!("{semaphore}/queue"));
        let how = place.as_ref().and_then(|it| it.turn?.2);
        match place {
            None => self.refuse(txn, "TakePermit", path, "it is taken in exchange for a place in the queue"),
            Some(place) if place.turn.is_none() => {
                self.refuse(txn, "TakePermit", place.shown(), "only the head of the queue takes permits");
            }
            Some(_) => {}
        }
        let Semaphore { number, taken } = self.semaphores.entry(semaphore.to_owned()).or_default();
        let (number, before) = (number.unwrap_or(0), taken.values().sum::<u64>());
        let at = self.nodes.len();
        taken.insert(at, count);
        if before + count > number {
            self.refuse(
                txn,
                "TakePermit",
                path,
                &format!("{before} of {number} permits are taken, and it takes {count}"),
            );
        }
        let name = Name { owner: String::new(), mode: Mode::Read, sequence: 0, keeps: false, signals: false };
        let turn = Some((txn.zxid, txn.time, how));
        let (path, session, token) = (path.to_owned(), txn.session, txn.zxid);
        self.stands(Node { path, name, session, token, turn, left: None });
    }

    /// Adds a node that was created. Returns its index.
    fn stands(&mut self, node: Node) -> usize {
        let at = self.nodes.len();
        self.at.insert(node.path.clone(), at);
        self.tokens.entry(node.token).or_default().push(at);
        self.nodes.push(node);
        at
    }

    /// Returns the nodes with this token whose paths begin with `path`, such as a directory.
    fn of_token(&self, path: &str, token: i64) -> Vec<&Node> {
        let nodes = self.tokens.get(&token).into_iter().flatten().map(|at| &self.nodes[*at]);
        nodes.filter(|node| node.path.starts_with(path)).collect()
    }

    /// Returns the nodes of the hold to which this event belongs. A hold that was downgraded has two nodes.
    fn held_by(&self, event: &Event) -> Vec<&Node> {
        let mut nodes = self.of_token(&event.path, event.token);
        nodes.retain(|node| permit(&node.path).is_some() || node.name.sequence == event.sequence);
        nodes
    }

    fn judge_events(&mut self) {
        let mut open: BTreeMap<u64, &Event> = BTreeMap::new();
        let mut held: BTreeMap<u64, &Event> = BTreeMap::new();
        let mut used: HashSet<(i64, &str)> = HashSet::new();
        for event in &self.run.events {
            match (event.what, &*event.how) {
                (What::Asked, _) => _ = open.insert(event.who, event),
                (What::Created, _) => {
                    if let Some(asked) = open.get_mut(&event.who) {
                        *asked = event;
                    }
                }
                // The end of a killed process ends all its acquisitions and holds.
                (What::Ended, _) => _ = (open.remove(&event.who), held.remove(&event.who)),
                (What::Holds, _) => {
                    // A downgrade begins a second hold of the same token in another mode. The second hold is no second
                    // use of a kept node.
                    if !used.insert((event.token, &*event.mode)) {
                        self.saw("UseAgain");
                    }
                    held.insert(event.who, event);
                }
                (What::Released, _) => {
                    if let Some(begun) = held.remove(&event.who) {
                        self.judge_end(begun, event.earliest());
                    }
                }
                (What::Granted, how) => {
                    self.saw("List");
                    if how != "at once" {
                        self.saw("Arm");
                        self.saw("See");
                    }
                    self.judge_grant(event);
                }
                (What::Got, _) => self.judge_grant(event),
                (What::Found, _) => {
                    self.saw("EnterAnswerLost");
                    self.saw("Recover");
                }
                (What::Missed, _) => {
                    self.saw("EnterRequestLost");
                    self.saw("Recover");
                }
                (What::GivenUp, "asked") => self.saw("Notify"),
                (What::GivenUp, "idle" | "closed" | "replaced") => self.saw("GiveUp"),
                (What::GivenUp | What::Lost, _) => {}
            }
        }
        let end = self.run.events.iter().map(|event| event.at).max().unwrap_or_default();
        for begun in held.into_values() {
            self.judge_end(begun, end);
        }
        for event in open.into_values() {
            let last = self.run.log.last().map_or(0, |txn| txn.zxid);
            let Event { path, mode, sequence, at, .. } = event;
            let is_its = |it: &&Node| parent(&it.path) == path && it.name.sequence == *sequence;
            let node = self.nodes.iter().rev().find(is_its).map(|node| {
                format!(", {}, created at zxid {:#x} and gone at {:?}", node.shown(), node.token, node.left)
            });
            self.verdict.faults.push(format!(
                "Wait of {path} {mode} number {sequence} since {at:?}{}, up to zxid {last:#x}: every wait ends",
                node.unwrap_or_default()
            ));
        }
    }

    fn judge_grant(&mut self, event: &Event) {
        let Event { at, path, mode, token, sequence, .. } = event;
        let what = format!("Grant of {path} {mode} number {sequence} at {at:?}, token and zxid {token:#x}");
        let nodes = self.held_by(event);
        let fault = match nodes.first() {
            None => Some(format!("{what}: that transaction has created no such node")),
            Some(node) => match node.turn {
                None => {
                    Some(format!("{what}, {}: it was never its turn, {}", node.shown(), self.behind(node, &event.how)))
                }
                Some((zxid, time, _)) if *at + self.run.leeway < time => Some(format!(
                    "{what}, {}: its turn came only with the transaction {zxid:#x}, proposed at {time:?}",
                    node.shown()
                )),
                Some((zxid, _, None | Some(Left::Deleted | Left::Expired | Left::Evicted)))
                    if event.how == "hand-off" =>
                {
                    Some(format!("{what}, {}: by a hand-off, and zxid {zxid:#x} is none", node.shown()))
                }
                Some(_) => match nodes.last().and_then(|last| last.left) {
                    Some((zxid, time, left @ (Left::Signalled | Left::Deleted | Left::Exchanged | Left::Expired)))
                        if event.earliest() > self.latest(time) =>
                    {
                        Some(format!(
                            "{what}, {}: its node had left at zxid {zxid:#x}, proposed at {time:?}, {left:?}",
                            node.shown()
                        ))
                    }
                    _ => None,
                },
            },
        };
        self.verdict.faults.extend(fault);
    }

    /// Checks that a hold ended before its node was removed, or that its loss was reported in time. After a deletion by
    /// an operator the report may be late.
    fn judge_end(&mut self, begun: &Event, until: Duration) {
        let Event { path, mode, sequence, token, .. } = begun;
        let nodes = self.held_by(begun);
        let last = nodes.last().and_then(|node| Some((node, node.left?)));
        let Some((node, (zxid, time, how))) = last else { return };
        let heard_by = self.latest(time) + ABOUT_TO_HEAR;
        let (is_late, told_by) = match how {
            Left::Evicted => (false, until),
            // The end of a hold reports a loss that was not noticed before.
            Left::Expired => (until > heard_by, until.max(heard_by + DELIVERED_WITHIN)),
            _ => (until > self.latest(time), Duration::MAX),
        };
        let is_told = |node: &&Node| self.lost.get(&*node.path).is_some_and(|told| *told <= told_by);
        if is_late && !nodes.iter().any(is_told) {
            let fault = format!(
                "Hold of {path} {mode} number {sequence}, token and zxid {token:#x}, {}: it lasted until {until:?} and was not notified of a \
                 loss, but its node had left at zxid {zxid:#x}, proposed at {time:?}, {how:?}",
                node.shown()
            );
            self.verdict.faults.push(fault);
        }
    }

    /// Describes the contender whose presence shows that another contender was granted the lock too early.
    fn behind(&self, node: &Node, how: &str) -> String {
        let gone = |it: &Node| it.left.map_or(i64::MAX, |(zxid, ..)| zxid);
        let is_before = |it: &&Node| parent(&it.path) == parent(&node.path) && it.name.is_before(&node.name);
        let stays = self.nodes.iter().filter(is_before).filter(|it| gone(it) > node.token).max_by_key(|it| gone(it));
        let stays =
            stays.map(|it| format!("{}, created at zxid {:#x} and gone at {:?}", it.shown(), it.token, it.left));
        format!("and it was granted by {how:?}: it was behind {stays:?}")
    }

    /// Checks the times during which guards said "held" against the log.
    fn judge_holds(&mut self) {
        let holds = &self.run.holds;
        let mut faults = overlaps(holds);
        faults.extend(falling_fences(holds));
        for hold in holds {
            let Some(node) = self.of_token("", hold.token).into_iter().find(|node| node.path == hold.node) else {
                faults.push(format!("Hold of {hold}: no transaction has created its node"));
                continue;
            };
            let since = node.turn.map(|(zxid, time, _)| (zxid, time));
            if let Some((zxid, _)) = since.filter(|(_, time)| hold.from + self.run.leeway < *time) {
                faults.push(format!("Hold of {hold}: it began before zxid {zxid:#x} made it its turn"));
            }
            if let Some((zxid, _, how)) = node.left.filter(|(_, time, _)| hold.until > self.latest(*time))
                && how != Left::Downgraded
            {
                faults.push(format!("Hold of {hold}: it said held after its node had left at zxid {zxid:#x}, {how:?}"));
            }
        }
        self.verdict.faults.extend(faults);
    }
}
