//! What a schedule consists of, how one is drawn at random, and how it is written down; carries nothing out.
//!
//! A schedule is written down as it is, and not as the seed that it was drawn from. So it stays the same schedule when the
//! drawing changes.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use serde::{Deserialize, Serialize};
use zk_rwlock::Dialect;

pub(crate) const CLIENTS: usize = 3;
pub(crate) const HANDLES: usize = 6;
pub(crate) const ACTORS: usize = 6;
const STEPS: usize = 120;

/// The most permits that there are at first.
const NUMBER: u32 = 3;

/// More than the session timeout: a client that was cut off for so long has lost what it held.
pub(crate) const LONG: Duration = Duration::from_secs(11);

/// What one [`Action::Wait`] lasts.
pub(crate) const WHILE: Duration = LONG.checked_div(4).expect("not divided by zero");

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Action {
    Read,
    Write,
    /// With a timeout that ends when the next [`Action::Wait`] does.
    ReadBriefly,
    WriteBriefly,
    TryRead,
    TryWrite,
    /// Adds one to the value, in one call.
    Update,
    Acquire(u32),
    AcquireBriefly(u32),
    TryAcquire(u32),
    SetPermits(u32),
    /// A write under what is held: it must be refused once that is lost.
    Commit,
    /// A read under the lock, which must show what all earlier holders wrote.
    Look,
    /// A look at the copy of the value that this process has.
    Latest,
    /// Drops the acquisition, the commit or what is held.
    Drop,
    Release,
    Downgrade,
    Share,
    /// One poll of this actor, and no other.
    Run,
    /// From now on requests of this actor's client are held up.
    Stall,
    /// One of them is carried out.
    Deliver,
    /// None is held up any more.
    Flow,
    /// The connection breaks. So many of the requests that are held up are carried out.
    Cut(usize),
    Heal,
    Expire,
    LoseReply,
    LoseRequest,
    Lag,
    CatchUp,
    Reap,
    /// An operator deletes a node.
    Remove(Part),
    /// An operator deletes a whole directory.
    Clear(Part),
    /// Opens this actor's handle anew. The old one ends with its last acquisition, and takes the node that it keeps along.
    Reopen,
    /// Remembers all that the ensemble holds.
    BackUp,
    /// The ensemble stands still for longer than a session timeout, and comes back as it was then.
    Restore,
    Wait,
}

/// Where an operator deletes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Part {
    Lock,
    Queue,
    Permits,
}

/// What runs between a step and the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum After {
    Nothing,
    /// Each actor that is woken is polled once.
    Polls,
    /// Everything, until nothing moves any more. Requests stay held up.
    Settles,
}

/// Which actor does what, and what runs before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step(pub(crate) usize, pub(crate) Action, pub(crate) After);

/// A handle of the lock, and one of the semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handle {
    /// Handles of one client share a session, and their contenders know of each other.
    pub(crate) client: usize,
    pub(crate) dialect: Speech,
    /// For how many milliseconds it keeps an idle node, if it keeps any.
    pub(crate) keep: Option<u64>,
    /// It uses the lock through the value that the lock guards.
    pub(crate) has_value: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Speech {
    Native,
    Curator,
    CuratorMutex,
    Kazoo,
}

impl Speech {
    pub(crate) fn dialect(self) -> Dialect {
        match self {
            Speech::Native => Dialect::Native,
            Speech::Curator => Dialect::Curator,
            Speech::CuratorMutex => Dialect::CuratorMutex,
            Speech::Kazoo => Dialect::Kazoo,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Schedule {
    /// How many permits there are at first.
    pub(crate) permits: u32,
    pub(crate) handles: Vec<Handle>,
    /// Which handle each actor uses. Actors of one handle share the nodes that it keeps.
    pub(crate) handle_of: Vec<usize>,
    /// Holders do not come to watch their own nodes for many steps, as on ZooKeeper at first.
    pub(crate) are_blind: bool,
    pub(crate) steps: Vec<Step>,
}

/// Actions that a schedule has together or not at all. What is left out makes room for the others, and a fault that needs
/// many steps of few kinds is found sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Always,
    OfLocks,
    OfPermits,
    Brief,
    Number,
    Writing,
    Changing,
    Stalling,
    Cutting,
    Expiring,
    Losing,
    Lagging,
    Removing,
    Reopening,
    Forgetting,
}

const OPTIONAL: [Kind; 11] = [
    Kind::Brief,
    Kind::Number,
    Kind::Writing,
    Kind::Changing,
    Kind::Cutting,
    Kind::Expiring,
    Kind::Losing,
    Kind::Lagging,
    Kind::Removing,
    Kind::Reopening,
    Kind::Forgetting,
];

fn kind_of(action: Action) -> Kind {
    use Action::*;
    match action {
        Drop | Release | Run | Wait => Kind::Always,
        Read | Write => Kind::OfLocks,
        Acquire(_) => Kind::OfPermits,
        ReadBriefly | WriteBriefly | TryRead | TryWrite | AcquireBriefly(_) | TryAcquire(_) => Kind::Brief,
        SetPermits(_) => Kind::Number,
        Update | Commit | Look | Latest => Kind::Writing,
        Downgrade | Share => Kind::Changing,
        Stall | Deliver | Flow => Kind::Stalling,
        Cut(_) | Heal => Kind::Cutting,
        Expire => Kind::Expiring,
        LoseReply | LoseRequest => Kind::Losing,
        Lag | CatchUp => Kind::Lagging,
        Reap | Remove(_) | Clear(_) => Kind::Removing,
        Reopen => Kind::Reopening,
        BackUp | Restore => Kind::Forgetting,
    }
}

/// Whether an action is about the lock or about the semaphore, if it is about one of them alone.
fn subject_of(action: Action) -> Option<Kind> {
    use Action::*;
    match action {
        Read | Write | ReadBriefly | WriteBriefly | TryRead | TryWrite | Update | Look | Latest | Downgrade | Share
        | Remove(Part::Lock) | Clear(Part::Lock) => Some(Kind::OfLocks),
        Acquire(_)
        | AcquireBriefly(_)
        | TryAcquire(_)
        | SetPermits(_)
        | Remove(Part::Queue | Part::Permits)
        | Clear(Part::Queue | Part::Permits) => Some(Kind::OfPermits),
        _ => None,
    }
}

fn asking() -> impl Strategy<Value = Action> {
    let count = || 1..=NUMBER;
    prop_oneof![
        8 => Just(Action::Read),
        8 => Just(Action::Write),
        2 => Just(Action::ReadBriefly),
        3 => Just(Action::WriteBriefly),
        2 => Just(Action::TryRead),
        2 => Just(Action::TryWrite),
        3 => Just(Action::Update),
        8 => prop_oneof![2 => Just(1), 1 => count()].prop_map(Action::Acquire),
        3 => count().prop_map(Action::AcquireBriefly),
        2 => count().prop_map(Action::TryAcquire),
        1 => (1..=NUMBER + 2).prop_map(Action::SetPermits),
        6 => Just(Action::Commit),
        3 => Just(Action::Look),
        1 => Just(Action::Latest),
        6 => Just(Action::Drop),
        9 => Just(Action::Release),
        4 => Just(Action::Downgrade),
        1 => Just(Action::Share),
        10 => Just(Action::Run),
    ]
}

fn disturbing() -> impl Strategy<Value = Action> {
    let part = || select(vec![Part::Lock, Part::Queue, Part::Permits]);
    prop_oneof![
        6 => Just(Action::Stall),
        8 => Just(Action::Deliver),
        4 => Just(Action::Flow),
        2 => (0..4_usize).prop_map(Action::Cut),
        3 => Just(Action::Heal),
        2 => Just(Action::Expire),
        2 => Just(Action::LoseReply),
        2 => Just(Action::LoseRequest),
        2 => Just(Action::Lag),
        2 => Just(Action::CatchUp),
        1 => Just(Action::Reap),
        2 => part().prop_map(Action::Remove),
        1 => part().prop_map(Action::Clear),
        2 => Just(Action::Reopen),
        1 => Just(Action::BackUp),
        1 => Just(Action::Restore),
        4 => Just(Action::Wait),
    ]
}

fn step() -> impl Strategy<Value = (Step, u8)> {
    let action = prop_oneof![5 => asking(), 2 => disturbing()];
    let step = (0..ACTORS, action).prop_map(|(actor, action)| Step(actor, action, After::Nothing));
    (step, any::<u8>())
}

/// What runs after a step, by chance: in a hasty schedule seldom everything.
fn after(is_hasty: bool, chance: u8) -> After {
    let (settles, polls) = if is_hasty { (30, 50) } else { (150, 190) };
    match chance {
        _ if chance < settles => After::Settles,
        _ if chance < polls => After::Polls,
        _ => After::Nothing,
    }
}

fn handles() -> impl Strategy<Value = Vec<Handle>> {
    let speech = || select(vec![Speech::Curator, Speech::CuratorMutex, Speech::Kazoo]);
    let while_ms = WHILE.as_millis() as u64;
    // Over before, with or after the next [`Action::Wait`], or never.
    let keep = select(vec![while_ms / 2, while_ms, 2 * while_ms, u64::MAX, u64::MAX]);
    let keep = prop_oneof![Just(vec![None::<u64>; HANDLES]), prop::collection::vec(prop::option::of(keep), HANDLES)];
    let of_all = prop_oneof![7 => Just(Speech::Native), 2 => speech()];
    // One handle that was not migrated with the others.
    let stray = prop_oneof![5 => Just(None), 1 => (0..HANDLES, speech()).prop_map(Some)];
    let clients = prop::collection::vec(0..CLIENTS, HANDLES);
    let values = prop_oneof![1 => Just(vec![false; HANDLES]), 2 => prop::collection::vec(any::<bool>(), HANDLES)];
    (of_all, stray, keep, clients, values).prop_map(
        |(of_all, stray, keep, clients, values): (_, _, Vec<Option<u64>>, Vec<usize>, Vec<bool>)| {
            let handle = |(i, client): (usize, usize)| {
                let dialect = stray.filter(|(at, _)| *at == i).map_or(of_all, |(_, speech)| speech);
                // In another library's dialect nobody asks, so nothing is kept.
                let keep = keep[i].filter(|_| dialect == Speech::Native);
                Handle { client, dialect, keep, has_value: values[i] }
            };
            clients.into_iter().enumerate().map(handle).collect()
        },
    )
}

pub(crate) fn schedule() -> impl Strategy<Value = Schedule> {
    let left_out = prop::sample::subsequence(OPTIONAL.to_vec(), 0..=OPTIONAL.len() - 2);
    let stalls = prop_oneof![1 => Just(Some(Kind::Stalling)), 2 => Just(None)];
    let subject = prop_oneof![2 => Just(None), 3 => Just(Some(Kind::OfPermits)), 3 => Just(Some(Kind::OfLocks))];
    let steps = prop::collection::vec(step(), 1..STEPS);
    let handle_of = prop::collection::vec(0..HANDLES, ACTORS);
    // With few actors and few permits they meet more often.
    let crew = prop_oneof![3..=4_usize, Just(ACTORS)];
    let permits = prop_oneof![2 => Just(1), 1 => 1..=NUMBER];
    let (are_blind, is_hasty) = (prop::bool::weighted(0.3), prop::bool::weighted(0.4));
    let what = (left_out, stalls, subject);
    (handles(), handle_of, are_blind, is_hasty, crew, permits, what, steps).prop_map(
        |(handles, handle_of, are_blind, is_hasty, crew, permits, (left_out, stalls, subject), steps)| {
            let is_in = |action| {
                let kind = kind_of(action);
                let is_out = left_out.contains(&kind) || stalls == Some(kind);
                !is_out && (subject.is_none() || subject_of(action) != subject)
            };
            let steps = steps.into_iter().filter(|(Step(_, action, _), _)| is_in(*action));
            let steps = steps.map(|(Step(actor, action, _), chance)| {
                let action = match action {
                    Action::Acquire(count) => Action::Acquire(count.min(permits)),
                    action => action,
                };
                Step(actor % crew, action, after(is_hasty, chance))
            });
            Schedule { permits, handles, handle_of, are_blind, steps: steps.collect() }
        },
    )
}
