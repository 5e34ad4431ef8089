//! The protocol as a model: a server and a few contenders, with every fault.
//!
//! The model's server orders the requests and keeps the nodes and watches. The contenders decide with the library's own
//! [`Waiter`]. Some keep their nodes between uses. Others ask the owners of such kept nodes to give them up, by a write
//! to the directory's data.

use stateright::{Model, Property};
use zk_rwlock::Mode;
use zk_rwlock::coordinator::{IfTaken, NodeName, PredecessorNews, Step as Decision, Waiter};

/// The contenders that change their node's data before they delete it, which signals a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signals {
    HoldingWriters,
    ReadersToo,
    CancelledWaitersToo,
}

/// The way in which contenders ask for kept nodes, and in which the owners notice that they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    /// The owner of a kept node watches the directory's data since before its create, and gives the node up at an
    /// event.
    Right,
    CreatedBeforeArmed,
    ForgottenBeforeTheGrant,
    NobodyAsks,
    /// A contender asks with the first version of the directory's data, although the version may have changed.
    ByAnOldVersion,
}

/// The mode of a contender, and whether it keeps its node.
pub(super) type Role = (Mode, bool);

pub(super) struct Protocol {
    /// The initial states of the search, each as a list of contenders.
    pub(super) companies: Vec<Vec<Role>>,
    pub(super) signals: Signals,
    pub(super) asking: Asking,
    pub(super) loses_answers: bool,
    /// The largest number of sessions that expire in one run.
    pub(super) expiries: usize,
    /// The largest number of times that an operator sets the directory's data.
    pub(super) operators: u8,
}

/// The largest number of times that a member uses its idle node again.
const AGAIN: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    next_sequence: u32,
    /// The version of the directory's data.
    pub(super) version: u8,
    operators: u8,
    expired: usize,
    /// The nodes in the directory at the leader.
    pub(super) nodes: Vec<Node>,
    pub(super) members: Vec<Member>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    owner: usize,
    pub(super) mode: Mode,
    pub(super) sequence: u32,
    keeps: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Member {
    mode: Mode,
    pub(super) step: Step,
    /// The state machine that decides for the member, from its create until it holds.
    waiter: Option<Waiter<NodeName>>,
    /// Whether the server has ended the member's session. The member does not know yet.
    expired: bool,
    /// Events on their way to the member, in order, each with the node that it concerns.
    pub(super) events: Vec<(Node, Event)>,
    /// Whether the member keeps its node between uses.
    keeps: bool,
    again: u8,
    directory: Watching,
    /// Whether the member knows that another contender asks for its node.
    is_asked: bool,
    /// The version in the member's ask for kept nodes, while the ask is on its way to the server. The server sets the
    /// directory's data only if the data still has this version.
    asks: Option<u8>,
}

/// The state of a member's watch on the directory's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Watching {
    No,
    Armed,
    /// The watch has fired, and its event is on the way.
    Fired,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Outside,
    /// The reply to the create was lost, so the member does not know whether the server has created its node.
    Unsure,
    Listing(Node),
    /// The member sets watches on its own node (the first) and on its predecessor's. With a version, the member also
    /// asks for the kept nodes ahead.
    Arming(Node, Node, Option<u8>),
    Waiting(Node, Node),
    Holding(Node),
    /// The member keeps its node without using it.
    Idle(Node),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Event {
    Changed,
    Deleted,
}

/// A step of the search. The number is the index of the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    ArmDirectory(usize),
    Enter(usize),
    EnterAnswerLost(usize),
    EnterRequestLost(usize),
    Recover(usize),
    List(usize),
    Arm(usize),
    See(usize),
    /// The server receives the member's ask for kept nodes.
    Ask(usize),
    /// The member learns that the directory's data has changed.
    Notify(usize),
    OperatorAsks,
    /// The member ends its use of the lock.
    Release(usize),
    UseAgain(usize),
    /// The member gives up its idle node, for which no contender has asked.
    GiveUp(usize),
    Downgrade(usize),
    Cancel(usize),
    Expire(usize),
}

impl Action {
    /// Returns whether the action must occur in the end. Other actions may never occur.
    pub(super) fn is_due(self) -> bool {
        let free =
            matches!(self, Action::UseAgain(_) | Action::GiveUp(_) | Action::Downgrade(_) | Action::OperatorAsks);
        !free && !matches!(self, Action::Cancel(_) | Action::Expire(_))
    }
}

impl Member {
    fn begin((mode, keeps): Role) -> Member {
        Member {
            mode,
            step: Step::Outside,
            waiter: None,
            expired: false,
            events: Vec::new(),
            keeps,
            again: 0,
            directory: Watching::No,
            is_asked: false,
            asks: None,
        }
    }

    /// Resets a member that has ended. Its ask stays, if it is still on the way to the server.
    fn forget(&mut self) {
        *self = Member { step: Step::Done, asks: self.asks, ..Member::begin((Mode::Read, false)) };
    }

    /// Records that the reply to the create was lost.
    fn unsure(&mut self) {
        self.step = Step::Unsure;
        if self.keeps {
            (self.directory, self.is_asked) = (Watching::Over, true);
        }
    }
}

impl Node {
    pub(super) fn contender(self) -> NodeName {
        let mode = if self.mode == Mode::Read { "READ" } else { "WRITE" };
        let keep = if self.keeps { "~keep" } else { "" };
        let name = format!("h~{}{keep}-{mode}-{:010}", self.owner, self.sequence);
        NodeName::parse(&name).expect("the model makes well-formed names")
    }
}

impl State {
    /// Returns the nodes of the members that say "held", or that could use their idle node without a request. A member
    /// whose session has expired is left out: its lease ended earlier, so it has said "lost".
    fn holders(&self) -> impl Iterator<Item = &Node> {
        self.members.iter().filter_map(|member| match &member.step {
            Step::Holding(node) | Step::Idle(node) if !member.expired => Some(node),
            _ => None,
        })
    }

    fn create(&mut self, owner: usize) -> Node {
        let Member { mode, keeps, .. } = self.members[owner];
        let node = Node { owner, mode, sequence: self.next_sequence, keeps };
        self.next_sequence += 1;
        self.nodes.push(node);
        node
    }

    /// Removes a node, and sends an event to each member that watches it.
    fn remove(&mut self, node: Node, event: Event) {
        self.nodes.retain(|other| *other != node);
        for member in &mut self.members {
            let watches = matches!(member.step, Step::Waiting(_, watched) if watched == node);
            if watches && !member.events.iter().any(|(about, _)| *about == node) {
                member.events.push((node, event));
            }
        }
    }

    /// Sets the directory's data, and fires each watch on the data.
    fn set_directory(&mut self) {
        self.version += 1;
        let armed = self.members.iter_mut().filter(|member| member.directory == Watching::Armed);
        armed.for_each(|member| member.directory = Watching::Fired);
    }

    /// Ends a use, and removes the member's node.
    fn leave(&mut self, me: Node, signals: bool) {
        self.members[me.owner].step = Step::Done;
        if self.stands(me) {
            self.remove(me, if signals { Event::Changed } else { Event::Deleted });
        }
    }

    /// Starts the waiter of a member whose node was created.
    fn begins(&mut self, i: usize, me: Node) {
        self.members[i].waiter = Some(Waiter::new(me.contender(), true, IfTaken::Wait));
        self.follows(i, me, Decision::List);
    }

    /// Tells the member's waiter what happened, and carries out the waiter's decision.
    fn hears(&mut self, i: usize, me: Node, tell: impl FnOnce(&mut Waiter<NodeName>) -> Decision) {
        if let Some(decision) = self.members[i].waiter.as_mut().map(tell) {
            self.follows(i, me, decision);
        }
    }

    fn follows(&mut self, i: usize, me: Node, decision: Decision) {
        let step = match decision {
            Decision::List => Step::Listing(me),
            Decision::Await { predecessor, asks } => {
                let is_it = |node: &&Node| *node.contender().as_str() == *predecessor.name;
                let nearest = *self.nodes.iter().find(is_it).expect("the waiter names a node of the listing");
                Step::Arming(me, nearest, asks.then_some(self.version))
            }
            // The lease of an expired session is not valid, so the member asks the quorum and learns that its node is
            // gone.
            Decision::Take(_) if self.members[i].expired => Step::Done,
            Decision::Take(_) => Step::Holding(me),
            Decision::AskLeader(claim) => {
                let differs = self.stands(me);
                return self.hears(i, me, |waiter| waiter.next_after_leader_answer(claim, differs));
            }
            Decision::Evicted => Step::Done,
            Decision::AwaitAtLeader(_) => unreachable!("the model's server lists no node that it denies"),
            Decision::WouldBlock => unreachable!("each contender of the model may wait"),
            Decision::Stuck(_) => unreachable!("the model's server gives each number once"),
            Decision::Foreign(name) => unreachable!("{name} is no name of the model"),
        };
        let member = &mut self.members[i];
        member.step = step;
        if matches!(step, Step::Holding(_) | Step::Done) {
            member.waiter = None;
        }
    }

    fn stands(&self, node: Node) -> bool {
        self.nodes.contains(&node)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let world = |company: &Vec<Role>| State {
            next_sequence: 0,
            version: 0,
            operators: 0,
            expired: 0,
            nodes: Vec::new(),
            members: company.iter().copied().map(Member::begin).collect(),
        };
        self.companies.iter().map(world).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let mut arms_late = self.asking == Asking::CreatedBeforeArmed;
        for (i, member) in state.members.iter().enumerate() {
            let is_to_arm = member.keeps && member.directory == Watching::No;
            match member.step {
                Step::Outside if is_to_arm && !arms_late => actions.push(Action::ArmDirectory(i)),
                Step::Outside => {
                    actions.push(Action::Enter(i));
                    if self.loses_answers {
                        actions.extend([Action::EnterAnswerLost(i), Action::EnterRequestLost(i)]);
                    }
                }
                Step::Unsure => actions.push(Action::Recover(i)),
                Step::Listing(_) => actions.push(Action::List(i)),
                Step::Arming(..) => actions.push(Action::Arm(i)),
                Step::Waiting(..) if !member.events.is_empty() => actions.push(Action::See(i)),
                Step::Waiting(..) => {}
                Step::Holding(_) => {
                    actions.push(Action::Release(i));
                    if member.mode == Mode::Write {
                        actions.push(Action::Downgrade(i));
                    }
                }
                Step::Idle(_) => {
                    actions.push(Action::GiveUp(i));
                    if member.again < AGAIN && !member.expired {
                        actions.push(Action::UseAgain(i));
                    }
                }
                Step::Done => {}
            }
            // An ask for kept nodes that was sent arrives even if its sender has left.
            actions.extend(member.asks.map(|_| Action::Ask(i)));
            if member.step == Step::Done {
                continue;
            }
            let has_node = !matches!(member.step, Step::Outside | Step::Unsure);
            arms_late &= is_to_arm && has_node && !member.expired;
            if arms_late {
                actions.push(Action::ArmDirectory(i));
            }
            if member.directory == Watching::Fired && has_node {
                actions.push(Action::Notify(i));
            }
            if matches!(member.step, Step::Unsure | Step::Listing(_) | Step::Arming(..) | Step::Waiting(..)) {
                actions.push(Action::Cancel(i));
            }
            if !member.expired && member.step != Step::Outside && state.expired < self.expiries {
                actions.push(Action::Expire(i));
            }
        }
        if state.operators < self.operators {
            actions.push(Action::OperatorAsks);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Enter(i) => {
                let node = state.create(i);
                state.begins(i, node);
            }
            // The reply was lost, so the member cannot prove that its watch on the directory was set before the create.
            // It does not keep the node.
            Action::EnterAnswerLost(i) => {
                state.create(i);
                state.members[i].unsure();
            }
            Action::EnterRequestLost(i) => state.members[i].unsure(),
            Action::ArmDirectory(i) => state.members[i].directory = Watching::Armed,
            Action::Recover(i) => {
                // After a sync, the member lists the directory and looks for a node with its own id.
                let mine = state.nodes.iter().find(|node| node.owner == i).copied();
                match mine {
                    _ if state.members[i].expired => state.members[i].step = Step::Done,
                    Some(node) => state.begins(i, node),
                    None => {
                        state.members[i].step = Step::Outside;
                        (state.members[i].is_asked, state.members[i].directory) = (false, Watching::No);
                    }
                }
            }
            Action::List(i) => {
                let Step::Listing(me) = state.members[i].step else { return None };
                let names: Vec<String> = state.nodes.iter().map(|node| node.contender().as_str().to_owned()).collect();
                state.hears(i, me, |waiter| waiter.next_after_listing(&names, &[]));
            }
            Action::Arm(i) => {
                let Step::Arming(me, nearest, asks) = state.members[i].step else { return None };
                let asks = match self.asking {
                    Asking::NobodyAsks => None,
                    Asking::ByAnOldVersion => asks.map(|_| 0),
                    _ => asks,
                };
                state.members[i].asks = state.members[i].asks.or(asks);
                if state.stands(nearest) {
                    state.members[i].step = Step::Waiting(me, nearest);
                } else {
                    state.hears(i, me, |waiter| waiter.next_after_news(PredecessorNews::Missing));
                }
            }
            Action::See(i) => {
                let Step::Waiting(me, _) = state.members[i].step else { return None };
                let (_, event) = state.members[i].events.remove(0);
                match event {
                    // In the wrong protocols, readers or waiters also change their nodes, and a waiter takes each such
                    // change for a hand-off.
                    Event::Changed if self.signals != Signals::HoldingWriters && !state.members[i].expired => {
                        state.members[i].step = Step::Holding(me);
                        state.members[i].waiter = None;
                    }
                    Event::Changed => state.hears(i, me, |waiter| waiter.next_after_news(PredecessorNews::Signalled)),
                    Event::Deleted => state.hears(i, me, |waiter| waiter.next_after_news(PredecessorNews::ListAgain)),
                }
            }
            Action::Ask(i) => {
                let version = state.members[i].asks.take();
                if version == Some(state.version) {
                    state.set_directory();
                }
            }
            Action::OperatorAsks => {
                state.operators += 1;
                state.set_directory();
            }
            Action::Notify(i) | Action::GiveUp(i) => {
                state.members[i].directory = Watching::Over;
                match state.members[i].step {
                    Step::Idle(me) => state.leave(me, me.mode == Mode::Write),
                    Step::Holding(_) => state.members[i].is_asked = true,
                    _ => state.members[i].is_asked |= self.asking != Asking::ForgottenBeforeTheGrant,
                }
            }
            Action::Release(i) => {
                let Step::Holding(me) = state.members[i].step else { return None };
                let Member { keeps, is_asked, expired, .. } = state.members[i];
                if keeps && !is_asked && !expired {
                    state.members[i].step = Step::Idle(me);
                } else {
                    state.leave(me, me.mode == Mode::Write || self.signals == Signals::ReadersToo);
                }
            }
            Action::UseAgain(i) => {
                let Step::Idle(me) = state.members[i].step else { return None };
                state.members[i].again += 1;
                state.members[i].step = Step::Holding(me);
            }
            Action::Downgrade(i) => {
                let Step::Holding(me) = state.members[i].step else { return None };
                if !state.stands(me) {
                    return None;
                }
                let read = Node { mode: Mode::Read, ..me };
                state.nodes.push(read);
                state.remove(me, Event::Deleted);
                state.members[i].mode = Mode::Read;
                state.members[i].step = Step::Holding(read);
            }
            Action::Cancel(i) => {
                let mine: Vec<Node> = state.nodes.iter().filter(|node| node.owner == i).copied().collect();
                state.members[i].step = Step::Done;
                state.members[i].waiter = None;
                state.members[i].events.clear();
                let signals = self.signals == Signals::CancelledWaitersToo;
                for node in mine {
                    state.remove(node, if signals { Event::Changed } else { Event::Deleted });
                }
            }
            Action::Expire(i) => {
                let mine: Vec<Node> = state.nodes.iter().filter(|node| node.owner == i).copied().collect();
                // The server refuses all requests of the expired session, and sends no events to it.
                (state.members[i].asks, state.members[i].directory) = (None, Watching::No);
                state.members[i].expired = true;
                state.expired += 1;
                for node in mine {
                    state.remove(node, Event::Deleted);
                }
            }
        }
        state.members.iter_mut().filter(|member| member.step == Step::Done).for_each(Member::forget);
        if self.expiries == usize::MAX {
            state.expired = 0;
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a writer holds alone", |_, state: &State| {
                let holders: Vec<_> = state.holders().collect();
                holders.len() < 2 || holders.iter().all(|node| node.mode == Mode::Read)
            }),
            Property::always("no contender overtakes another", |_, state: &State| {
                let before =
                    |holder: &Node, other: &Node| other.sequence < holder.sequence && other.mode.excludes(holder.mode);
                state.holders().all(|holder| !state.nodes.iter().any(|other| before(holder, other)))
            }),
            Property::always("a contender hears that its predecessor has left", |_, state: &State| {
                state.members.iter().all(|member| match member.step {
                    Step::Waiting(_, nearest) => state.stands(nearest) || !member.events.is_empty(),
                    _ => true,
                })
            }),
            Property::always("a departure wakes at most one writer", |_, state: &State| {
                let woken = |node: &Node| {
                    let waits_for = |member: &&Member| {
                        member.mode == Mode::Write
                            && matches!(member.step, Step::Waiting(_, nearest) if nearest == *node)
                    };
                    state.members.iter().filter(waits_for).filter(|member| !member.expired).count()
                };
                state.nodes.iter().all(|node| woken(node) <= 1)
            }),
            Property::always("a holder that says held has its node", |_, state: &State| {
                state.holders().all(|node| state.stands(*node))
            }),
            Property::always("no contender waits for ever for a kept node", |_, state: &State| {
                let is_only_kept =
                    |nearest: &Node| matches!(state.members[nearest.owner].step, Step::Idle(it) if it == *nearest);
                let will_ask = |member: &Member| member.asks == Some(state.version);
                state.members.iter().filter(|member| !member.expired).all(|member| match member.step {
                    Step::Waiting(_, nearest) if is_only_kept(&nearest) && state.stands(nearest) => {
                        match state.members[nearest.owner].directory {
                            Watching::Armed => state.members.iter().any(will_ask),
                            heard => heard == Watching::Fired,
                        }
                    }
                    _ => true,
                })
            }),
            Property::always("every waiter moves on without a fault", |model: &Protocol, state: &State| {
                let waits = |member: &Member| matches!(member.step, Step::Waiting(..)) && !member.expired;
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                !state.members.iter().any(waits) || actions.iter().any(|action| action.is_due())
            }),
            Property::always("the directory is empty when all have left", |_, state: &State| {
                !state.members.iter().all(|member| member.step == Step::Done) || state.nodes.is_empty()
            }),
            Property::sometimes("a writer takes over by a hand-off", |_, state: &State| {
                state.holders().any(|node| node.mode == Mode::Write && node.sequence > 0)
            }),
            Property::sometimes("readers hold together", |_, state: &State| state.holders().count() >= 2),
        ]
        .into_iter()
        .chain(if self.companies.iter().flatten().any(|(_, keeps)| *keeps) { sometimes_kept() } else { Vec::new() })
        .collect()
    }
}

/// Returns conditions that some state of a search with kept nodes must meet. Otherwise the search covered too little.
fn sometimes_kept() -> Vec<Property<Protocol>> {
    vec![
        Property::sometimes("a kept node is used again", |_, state: &State| {
            state.members.iter().any(|it| it.again > 0 && matches!(it.step, Step::Holding(_)))
        }),
        Property::sometimes("an idle node is asked for", |_, state: &State| {
            state.members.iter().any(|it| it.directory == Watching::Fired && matches!(it.step, Step::Idle(_)))
        }),
        Property::sometimes("a node is asked for before its grant", |_, state: &State| {
            state
                .members
                .iter()
                .any(|it| it.directory == Watching::Over && it.is_asked && matches!(it.step, Step::Waiting(..)))
        }),
    ]
}
