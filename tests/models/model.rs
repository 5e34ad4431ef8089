//! The protocol as a model, searched exhaustively: every interleaving of a few contenders, with every fault.
//!
//! The model's server orders the requests and keeps the nodes and watches; its contenders decide with the library's
//! own [`Waiter`]. Whatever the protocol must keep is checked in every reachable state. The same search must find two
//! changes of the protocol that are known to be wrong, which shows that the check finds faults.
//!
//! Three contenders take seconds; `MODEL_CONTENDERS=4`, which `make soak` sets, takes minutes.

use stateright::{Checker, Model, Property};
use zk_rwlock::Mode;
use zk_rwlock::coordinator::{Contender, Departure, Known, News, Rules, Step as Decision, Waiter};

/// Which contenders say, by a data change, that they held and released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signals {
    HoldingWriters,
    ReadersToo,
    CancelledWaitersToo,
}

struct Protocol {
    contenders: usize,
    signals: Signals,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    next_sequence: u32,
    /// What is in the directory, as the quorum knows it.
    nodes: Vec<Node>,
    members: Vec<Member>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    owner: usize,
    mode: Mode,
    sequence: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Member {
    mode: Mode,
    step: Step,
    /// Decides what it does, from its node on until it holds.
    waiter: Option<Waiter<Contender>>,
    /// The server has given its session up; it does not know yet.
    expired: bool,
    /// Events that the server has sent and the member has not seen, in their order, with the node they are about.
    events: Vec<(Node, Event)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Outside,
    /// The answer to its create was lost; it does not know whether there is a node.
    Unsure,
    Listing(Node),
    Arming(Node, Node),
    Waiting(Node, Node),
    Holding(Node),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Changed,
    Deleted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Enter(usize),
    EnterAnswerLost(usize),
    EnterRequestLost(usize),
    Recover(usize),
    List(usize),
    Arm(usize),
    See(usize),
    Release(usize),
    Downgrade(usize),
    Cancel(usize),
    Expire(usize),
}

impl Node {
    fn contender(self) -> Contender {
        let mode = if self.mode == Mode::Read { "READ" } else { "WRITE" };
        let name = format!("h~{}-{mode}-{:010}", self.owner, self.sequence);
        Contender::parse(&name).expect("the model makes well-formed names")
    }
}

impl State {
    /// The members that say they hold. A member whose session has expired has said lost before, because its lease is
    /// shorter.
    fn holders(&self) -> impl Iterator<Item = &Node> {
        self.members.iter().filter_map(|member| match &member.step {
            Step::Holding(node) if !member.expired => Some(node),
            _ => None,
        })
    }

    fn create(&mut self, owner: usize) -> Node {
        let node = Node { owner, mode: self.members[owner].mode, sequence: self.next_sequence };
        self.next_sequence += 1;
        self.nodes.push(node);
        node
    }

    /// Takes a node away, and sends an event to each member that watches it.
    fn remove(&mut self, node: Node, event: Event) {
        self.nodes.retain(|other| *other != node);
        for member in &mut self.members {
            let watches = matches!(member.step, Step::Waiting(_, watched) if watched == node);
            if watches && !member.events.iter().any(|(about, _)| *about == node) {
                member.events.push((node, event));
            }
        }
    }

    /// The member has a node, and begins to wait.
    fn begins(&mut self, i: usize, me: Node) {
        let rules = Rules { hands_off: true, trusts_book: true, pauses: false };
        self.members[i].waiter = Some(Waiter::new(me.contender(), rules));
        self.follows(i, me, Decision::Consult);
    }

    /// The member's waiter hears news.
    fn hears(&mut self, i: usize, me: Node, news: News<'_, ()>) {
        if let Some(decision) = self.members[i].waiter.as_mut().map(|waiter| waiter.next(news)) {
            self.follows(i, me, decision);
        }
    }

    fn follows(&mut self, i: usize, me: Node, decision: Decision<()>) {
        let step = match decision {
            // No two members are of one session, so the book knows nothing.
            Decision::Consult => return self.hears(i, me, News::Known { known: Known::Nothing, has_listing: false }),
            Decision::List => Step::Listing(me),
            Decision::Await { predecessor, watches, .. } => {
                assert!(watches);
                let is_it = |node: &&Node| *node.contender().name() == *predecessor.name;
                Step::Arming(me, *self.nodes.iter().find(is_it).expect("it was in the listing"))
            }
            // The lease of an expired session has run out, so the quorum is asked, and says no.
            Decision::Take(_) if self.members[i].expired => Step::Done,
            Decision::Take(_) => Step::Holding(me),
            Decision::Evicted => Step::Done,
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
        let vectors = 0..1_u32 << self.contenders;
        let member = |bits: u32, i: usize| Member {
            mode: if bits >> i & 1 == 0 { Mode::Read } else { Mode::Write },
            step: Step::Outside,
            waiter: None,
            expired: false,
            events: Vec::new(),
        };
        let world = |bits| State {
            next_sequence: 0,
            nodes: Vec::new(),
            members: (0..self.contenders).map(|i| member(bits, i)).collect(),
        };
        vectors.map(world).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (i, member) in state.members.iter().enumerate() {
            match member.step {
                Step::Outside => {
                    actions.extend([Action::Enter(i), Action::EnterAnswerLost(i), Action::EnterRequestLost(i)])
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
                Step::Done => continue,
            }
            if matches!(member.step, Step::Unsure | Step::Listing(_) | Step::Arming(..) | Step::Waiting(..)) {
                actions.push(Action::Cancel(i));
            }
            if !member.expired && member.step != Step::Outside {
                actions.push(Action::Expire(i));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Enter(i) => {
                let node = state.create(i);
                state.begins(i, node);
            }
            Action::EnterAnswerLost(i) => {
                state.create(i);
                state.members[i].step = Step::Unsure;
            }
            Action::EnterRequestLost(i) => state.members[i].step = Step::Unsure,
            Action::Recover(i) => {
                // Sync, list, and look for our own id.
                let mine = state.nodes.iter().find(|node| node.owner == i).copied();
                match mine {
                    _ if state.members[i].expired => state.members[i].step = Step::Done,
                    Some(node) => state.begins(i, node),
                    None => state.members[i].step = Step::Outside,
                }
            }
            Action::List(i) => {
                let Step::Listing(me) = state.members[i].step else { return None };
                let names: Vec<String> = state.nodes.iter().map(|node| node.contender().name().to_owned()).collect();
                state.hears(i, me, News::Listed { names: &names, known: Known::Nothing });
            }
            Action::Arm(i) => {
                let Step::Arming(me, nearest) = state.members[i].step else { return None };
                if state.stands(nearest) {
                    state.members[i].step = Step::Waiting(me, nearest);
                } else {
                    state.hears(i, me, News::Departed(Departure::Unseen));
                }
            }
            Action::See(i) => {
                let Step::Waiting(me, _) = state.members[i].step else { return None };
                let (_, event) = state.members[i].events.remove(0);
                match event {
                    // The wrong protocols take the signal of a reader or of a waiter for a hand-off, too.
                    Event::Changed if self.signals != Signals::HoldingWriters && !state.members[i].expired => {
                        state.members[i].step = Step::Holding(me);
                        state.members[i].waiter = None;
                    }
                    Event::Changed => state.hears(i, me, News::Departed(Departure::Signalled(None))),
                    Event::Deleted => state.hears(i, me, News::Departed(Departure::Seen(None))),
                }
            }
            Action::Release(i) => {
                let Step::Holding(me) = state.members[i].step else { return None };
                let signals = me.mode == Mode::Write || self.signals == Signals::ReadersToo;
                state.members[i].step = Step::Done;
                if state.stands(me) {
                    state.remove(me, if signals { Event::Changed } else { Event::Deleted });
                }
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
                state.members[i].expired = true;
                for node in mine {
                    state.remove(node, Event::Deleted);
                }
            }
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
            Property::always("one leaving wakes one writer at most", |_, state: &State| {
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
            Property::always("everyone gone leaves an empty directory", |_, state: &State| {
                !state.members.iter().all(|member| member.step == Step::Done) || state.nodes.is_empty()
            }),
            Property::sometimes("a writer takes over by a hand-off", |_, state: &State| {
                state.holders().any(|node| node.mode == Mode::Write && node.sequence > 0)
            }),
            Property::sometimes("readers hold together", |_, state: &State| state.holders().count() >= 2),
        ]
    }
}

fn contenders() -> usize {
    std::env::var("MODEL_CONTENDERS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

#[test]
fn the_protocol_keeps_every_property_in_every_interleaving() {
    let checker = Protocol { contenders: contenders(), signals: Signals::HoldingWriters }.checker();
    let checker = checker.threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{} states, {} of them different", checker.state_count(), checker.unique_state_count());
    assert!(checker.unique_state_count() > 10_000, "the search was cut short");
}

#[test]
fn two_hold_at_once_if_readers_signal_a_hand_off() {
    let wrong = Protocol { contenders: 3, signals: Signals::ReadersToo };
    let checker = wrong.checker().threads(2).spawn_bfs().join();
    assert!(checker.discovery("a writer holds alone").is_some(), "the check does not bite");
}

#[test]
fn two_hold_at_once_if_cancelled_waiters_signal_a_hand_off() {
    let wrong = Protocol { contenders: 3, signals: Signals::CancelledWaitersToo };
    let checker = wrong.checker().threads(2).spawn_bfs().join();
    assert!(checker.discovery("a writer holds alone").is_some(), "the check does not bite");
}
