//! An exhaustive search of a node's life: a create with lost replies, a hold, a downgrade or an exchange for a permit,
//! and leaving at any point, with every fault.
//!
//! Contenders and removals decide with the library's own [`NodeState`] and [`NodeRemoval`]. The model's server carries
//! requests out in the order of each session. A connection can break at any moment. Then each request without a reply
//! is carried out, is carried out later, or is lost. After a newer write of a session, the server carries out no older
//! one.
//!
//! In each state, the search checks that all nodes are removed in the end if all contenders give up now and no further
//! fault occurs.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, SystemTime};

use stateright::{Checker, Model, Property};
use zk_rwlock::coordinator::{
    Created, DeniedRight, EntryStep, Failure, NodeName, NodeRemoval, NodeState, Phase, RemovalReport,
    RemovalStepAnswer, SessionEnd,
};
use zk_rwlock::{Loss, Mode};

/// What a contender wants: the lock or a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    Lock(Mode),
    Permit,
}

struct Lives {
    aims: Vec<Aim>,
    /// The largest number of creates that an acquisition sends.
    creates: u8,
    /// The largest number of broken connections.
    cuts: usize,
    /// The largest number of expired sessions.
    expiries: usize,
    /// Whether the server may reply that the directory does not exist, after it has created a node there.
    denies: bool,
    /// Whether the server refuses the writes to lock nodes by which writers signal a hand-off.
    refuses_signals: bool,
    /// Whether the server may refuse a downgrade.
    refuses_downgrades: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    next: i64,
    cuts: usize,
    expired: usize,
    /// The paths of the ensemble's nodes.
    nodes: BTreeSet<String>,
    members: Vec<Member>,
    /// The first violation of a rule.
    wrong: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Member {
    node: NodeState,
    /// The number of creates that the contender has sent.
    creates: u8,
    /// Whether the caller has dropped the acquisition or the guard.
    is_dropped: bool,
    has_held: bool,
    /// Whether the contender's hold was found to rest on a forged hand-off.
    is_forged: bool,
    /// Whether the server has refused the contender's downgrade. An earlier request for the same downgrade may have
    /// been carried out.
    is_refused: bool,
    is_over: bool,
    may_signal: bool,
    /// The index in `removals` of the removal that the contender's release has started.
    release: Option<usize>,
    removals: Vec<NodeRemoval>,
    /// The requests on the present connection.
    sent: VecDeque<Request>,
    /// The requests of earlier connections that may yet be carried out.
    late: VecDeque<What>,
}

/// A request and its origin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Request {
    what: What,
    by: By,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum What {
    Create,
    Delete {
        path: String,
        signals: bool,
    },
    List,
    /// Replaces one node by another.
    Swap {
        from: String,
        to: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum By {
    Acquisition,
    Removal(usize),
}

/// The reply to a request.
enum Reply {
    Created(Result<String, Failure>),
    Done(Result<(), Failure>),
    Listed(Result<Vec<String>, Failure>),
}

/// A step of the search. The first number is the index of the contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Enter(usize),
    /// The server carries out the oldest request and sends the reply.
    Serve(usize),
    /// The server carries out the oldest request, a create, and replies that the directory does not exist.
    Deny(usize),
    /// The server refuses the oldest request, a downgrade.
    Refuse(usize),
    Cut(usize),
    /// The server carries out the oldest request of a broken connection.
    Late(usize),
    /// The removal with this index (the second number) learns that the connection is back.
    Link(usize, usize),
    Take(usize),
    Move(usize),
    /// The grant turns out to rest on a forged hand-off.
    Forge(usize),
    Release(usize),
    Drop(usize),
    Expire(usize),
}

const NOW: Duration = Duration::from_secs(1);

fn owner(member: usize) -> String {
    format!("/lock/h~{member}-")
}

fn permit(member: usize) -> String {
    format!("/permits/h~{member}")
}

fn unknown() -> Failure {
    Failure::Unknown(String::new())
}

fn contender(path: &str) -> NodeName {
    NodeName::parse(path.rsplit('/').next().unwrap_or_default()).expect("the model makes well-formed names")
}

impl Member {
    fn new(member: usize, aim: Aim) -> Member {
        let mode = if aim == Aim::Lock(Mode::Read) { "READ" } else { "WRITE" };
        let node = NodeState::new("/lock", contender(&format!("h~{member}-{mode}-0000000000")));
        Member {
            node,
            creates: 0,
            is_dropped: false,
            has_held: false,
            is_forged: false,
            is_refused: false,
            is_over: false,
            may_signal: true,
            release: None,
            removals: Vec::new(),
            sent: VecDeque::new(),
            late: VecDeque::new(),
        }
    }

    fn send(&mut self, what: What, by: By) {
        self.sent.push_back(Request { what, by });
    }

    fn asks_for_node(&mut self) {
        self.creates += 1;
        self.node.record_create_sent(NOW, 0);
        self.send(What::Create, By::Acquisition);
    }

    fn stands(&self) -> bool {
        matches!(self.node.phase(), Phase::Waiting | Phase::Holding(_))
    }

    /// Starts a removal. Sends its first request, unless the create is still in progress.
    fn begins(&mut self, mut leaving: NodeRemoval) {
        if let NodeRemoval::Deleting(deletion) = &mut leaving {
            deletion.signals &= self.may_signal;
        }
        self.removals.push(leaving);
        self.asks(self.removals.len() - 1);
    }

    /// Sends the request that a removal needs.
    fn asks(&mut self, removal: usize) {
        let what = match &self.removals[removal] {
            NodeRemoval::Deleting(deletion) => What::Delete { path: deletion.path.clone(), signals: deletion.signals },
            NodeRemoval::Listing => What::List,
            // No request is needed now: the create is in progress, the connection is down, or the removal is over.
            _ => return,
        };
        self.send(what, By::Removal(removal));
    }

    fn removal_hears(&mut self, removal: usize, input: RemovalStepAnswer) {
        let leaving = std::mem::replace(&mut self.removals[removal], NodeRemoval::Listing);
        let (next, report) = leaving.advance(input);
        self.may_signal &= report != Some(RemovalReport::SignalRefused);
        self.removals[removal] = next;
        self.asks(removal);
    }

    fn drops(&mut self) {
        self.is_dropped = true;
        let removals = self.node.mark_left_in_any_phase();
        for leaving in removals {
            if let NodeRemoval::Coming { .. } = leaving {
                let create = self.sent.iter_mut().find(|it| it.what == What::Create);
                create.expect("the create is in progress").by = By::Removal(self.removals.len());
            }
            self.begins(leaving);
        }
    }

    /// Passes a reply to the acquisition. The library's own [`NodeState`] decides how the entry goes on. A downgrade or an
    /// exchange goes on as `downgrade` and `exchange` do in the library.
    fn hears(&mut self, me: usize, reply: Reply, creates: u8) {
        if self.is_dropped {
            return;
        }
        match reply {
            Reply::Created(Ok(path)) => self.stands_at(path),
            Reply::Created(Err(failure)) => {
                // A server that denies the directory and yet has created the node lists this node.
                let is_listed = failure == Failure::NoNode;
                if let Ok(step) = self.node.record_create_failure(failure, is_listed) {
                    self.goes_on(step, creates);
                }
            }
            Reply::Listed(Ok(names)) => match names.first() {
                Some(path) => self.stands_at(path.clone()),
                None => self.goes_on(EntryStep::Create, creates),
            },
            Reply::Listed(Err(Failure::Unknown(_))) => self.send(What::List, By::Acquisition),
            Reply::Done(Ok(())) => self.move_node(),
            Reply::Done(Err(Failure::Unknown(_))) => self.moves(me),
            Reply::Done(Err(Failure::NoAuth(_))) => self.node.record_not_replaced(),
            Reply::Done(Err(_)) | Reply::Listed(Err(_)) => {}
        }
    }

    /// Takes the next step of the acquisition. The caller gives up instead of sending too many creates.
    fn goes_on(&mut self, step: EntryStep, creates: u8) {
        match step {
            EntryStep::Recover => self.send(What::List, By::Acquisition),
            EntryStep::Create | EntryStep::MakeDirectory if self.creates < creates => self.asks_for_node(),
            EntryStep::Create | EntryStep::MakeDirectory => self.drops(),
        }
    }

    fn stands_at(&mut self, path: String) {
        let created = Created { path, czxid: 1, ctime: SystemTime::UNIX_EPOCH, ephemeral_owner: 1 };
        self.node.record_created(&created, 1, NOW).expect("the node is ours");
    }

    fn path(&self) -> String {
        self.node.path().to_owned()
    }

    /// Sends the exchange or the downgrade. A retry sends it again.
    fn moves(&mut self, me: usize) {
        let to = match self.has_held {
            true => self.path().replace("WRITE", "READ"),
            false => permit(me),
        };
        self.send(What::Swap { from: self.path(), to }, By::Acquisition);
    }

    fn move_node(&mut self) {
        match self.has_held {
            true => self.node.record_downgrade(contender(&self.path().replace("WRITE", "READ"))),
            false => {
                self.node.record_exchange(2);
                self.node.mark_held(0);
            }
        }
    }
}

impl State {
    fn note_if_wrong(&mut self, condition: bool, what: &'static str) {
        if condition {
            self.wrong.get_or_insert(what);
        }
    }

    /// Carries a request out, as the ensemble does.
    fn carry_out(&mut self, me: usize, what: &What, refuses_signals: bool) -> Reply {
        match what {
            What::Create => {
                let mode = self.members[me].node.node_name().mode();
                let path = format!("{}{mode}-{:010}", owner(me), self.next);
                self.next += 1;
                self.nodes.insert(path.clone());
                Reply::Created(Ok(path))
            }
            What::Delete { signals: true, .. } if refuses_signals => {
                let failure = Box::new(Failure::NoAuth(Box::<DeniedRight>::default()));
                Reply::Done(Err(Failure::Operation { index: 0, failure }))
            }
            What::Delete { path, signals } => {
                let is_own = path.starts_with(&owner(me)) || *path == permit(me);
                self.note_if_wrong(!is_own, "a contender deletes the node of another");
                self.note_if_wrong(*signals && !self.members[me].has_held, "a contender that has not held signals");
                self.note_if_wrong(*signals && path.contains("-READ-"), "a reader signals");
                self.note_if_wrong(*signals && self.members[me].is_forged, "a contender with a forged grant signals");
                let is_gone = !self.nodes.remove(path);
                Reply::Done(if is_gone { Err(Failure::NoNode) } else { Ok(()) })
            }
            What::List => {
                Reply::Listed(Ok(self.nodes.iter().filter(|path| path.starts_with(&owner(me))).cloned().collect()))
            }
            What::Swap { from, to } => {
                if self.nodes.remove(from) {
                    self.nodes.insert(to.clone());
                }
                Reply::Done(if self.nodes.contains(to) { Ok(()) } else { Err(Failure::NoNode) })
            }
        }
    }

    fn answers(&mut self, me: usize, by: By, reply: Reply, creates: u8) {
        let member = &mut self.members[me];
        match (by, reply) {
            (By::Acquisition, reply) => member.hears(me, reply, creates),
            (By::Removal(removal), Reply::Created(answer)) => {
                member.removal_hears(removal, RemovalStepAnswer::Created(answer))
            }
            (By::Removal(removal), Reply::Done(answer)) => {
                member.removal_hears(removal, RemovalStepAnswer::Deleted(answer))
            }
            (By::Removal(removal), Reply::Listed(answer)) => {
                member.removal_hears(removal, RemovalStepAnswer::Listed(answer))
            }
        }
        let was_there = !member.is_over && !member.is_refused;
        let says_gone =
            member.release.and_then(|at| member.removals.get(at)) == Some(&NodeRemoval::Gone(Err(Failure::NoNode)));
        self.note_if_wrong(was_there && says_gone, "a repeated release reports that its node was already gone");
    }

    fn serve(&mut self, me: usize, model: &Lives, is_denied: bool) {
        if self.members[me].is_over {
            return self.fail(me, &Failure::Over(SessionEnd::Expired), model.creates);
        }
        let Some(request) = self.members[me].sent.pop_front() else { return };
        // A newer write, or a sync, rules out older writes. The listing of an acquisition does neither, so a create may
        // still come late.
        if request.what != What::List || request.by != By::Acquisition {
            self.members[me].late.clear();
        }
        let mut reply = self.carry_out(me, &request.what, model.refuses_signals);
        if is_denied {
            reply = Reply::Created(Err(Failure::NoNode));
        }
        self.answers(me, request.by, reply, model.creates);
    }

    /// Answers every request of a connection or session with this failure.
    fn fail(&mut self, me: usize, failure: &Failure, creates: u8) {
        let failed: Vec<_> = self.members[me].sent.drain(..).collect();
        // The server carries out no request of a session that is over, so none of these requests can be carried out
        // late.
        if *failure == unknown() && !self.members[me].is_over {
            let late = &mut self.members[me].late;
            for Request { what, .. } in &failed {
                // A delete or swap that is carried out a second time changes nothing more, but a second create does.
                if *what == What::Create || !late.contains(what) && *what != What::List {
                    late.push_back(what.clone());
                }
            }
        }
        for request in failed {
            let failure = failure.clone();
            let reply = match request.what {
                What::Create => Reply::Created(Err(failure)),
                What::List => Reply::Listed(Err(failure)),
                What::Delete { .. } | What::Swap { .. } => Reply::Done(Err(failure)),
            };
            self.answers(me, request.by, reply, creates);
        }
    }

    /// Lists the queue, and removes the nodes of lost creates.
    fn lists(&mut self, me: usize) {
        let names: Vec<_> =
            self.nodes.iter().filter_map(|path| path.strip_prefix("/lock/")).map(str::to_owned).collect();
        for orphan in self.members[me].node.orphans(&names) {
            self.members[me].begins(NodeRemoval::by_plain_delete(format!("/lock/{orphan}")));
        }
    }

    fn take(&mut self, me: usize) {
        self.lists(me);
        self.members[me].node.mark_held(0);
        self.members[me].has_held = true;
    }

    fn link(&mut self, me: usize, removal: usize) {
        let is_over = self.members[me].is_over;
        let linked = if is_over { Err(Failure::Over(SessionEnd::Expired)) } else { Ok(()) };
        self.members[me].removal_hears(removal, RemovalStepAnswer::Linked(linked));
    }

    fn cut_off(member: &Member) -> Vec<usize> {
        let is_cut = |(_, it): &(usize, &NodeRemoval)| matches!(it, NodeRemoval::Cut(_));
        member.removals.iter().enumerate().filter(is_cut).map(|(at, _)| at).collect()
    }

    /// Returns whether no rule is violated and all nodes are removed in the end, if all contenders give up now and no
    /// further fault occurs.
    fn comes_to_rest(&self, model: &Lives) -> bool {
        let mut state = self.clone();
        for me in 0..state.members.len() {
            if !state.members[me].is_dropped {
                state.members[me].drops();
            }
            for _ in 0..32 {
                while !state.members[me].sent.is_empty() {
                    state.serve(me, model, false);
                }
                for removal in State::cut_off(&state.members[me]) {
                    state.link(me, removal);
                }
            }
        }
        let is_gone = |it: &NodeRemoval| matches!(it, NodeRemoval::Gone(_));
        let all_gone = state.members.iter().all(|member| member.removals.iter().all(is_gone));
        state.wrong.is_none() && all_gone && state.nodes.is_empty()
    }
}

impl Model for Lives {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let members = self.aims.iter().enumerate().map(|(member, aim)| Member::new(member, *aim)).collect();
        vec![State { next: 1, cuts: 0, expired: 0, nodes: BTreeSet::new(), members, wrong: None }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (me, member) in state.members.iter().enumerate() {
            if !member.late.is_empty() {
                actions.push(Action::Late(me));
            }
            if let Some(first) = member.sent.front() {
                actions.push(Action::Serve(me));
                if self.denies && first.what == What::Create {
                    actions.push(Action::Deny(me));
                }
                if self.refuses_downgrades
                    && member.has_held
                    && !member.is_over
                    && !member.is_refused
                    && matches!(first.what, What::Swap { .. })
                {
                    actions.push(Action::Refuse(me));
                }
                if state.cuts < self.cuts {
                    actions.push(Action::Cut(me));
                }
            }
            actions.extend(State::cut_off(member).into_iter().map(|removal| Action::Link(me, removal)));
            if member.creates > 0 && !member.is_over && state.expired < self.expiries {
                actions.push(Action::Expire(me));
            }
            if member.is_dropped {
                continue;
            }
            actions.push(Action::Drop(me));
            if member.creates == 0 {
                actions.push(Action::Enter(me));
            }
            if !member.stands() {
                continue;
            }
            actions.push(Action::Release(me));
            let sequence = member.node.node_name().sequence();
            let is_first =
                state.nodes.iter().all(|path| path.starts_with("/permits") || contender(path).sequence() >= sequence);
            let holds = matches!(member.node.phase(), Phase::Holding(_));
            if holds && !member.is_forged {
                actions.push(Action::Forge(me));
            }
            match self.aims[me] {
                Aim::Lock(_) if !holds && is_first => actions.push(Action::Take(me)),
                Aim::Lock(Mode::Write) if holds && member.node.node_name().mode() == Mode::Write => {
                    actions.push(Action::Move(me));
                }
                Aim::Permit if !holds && is_first => actions.push(Action::Move(me)),
                _ => {}
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Enter(me) => state.members[me].asks_for_node(),
            Action::Serve(me) => state.serve(me, self, false),
            Action::Deny(me) => state.serve(me, self, true),
            Action::Refuse(me) => {
                let refused = state.members[me].sent.pop_front()?;
                state.members[me].is_refused = true;
                let failure = Failure::NoAuth(Box::<DeniedRight>::default());
                state.answers(me, refused.by, Reply::Done(Err(failure)), self.creates);
            }
            Action::Cut(me) => {
                state.cuts += usize::from(self.cuts < usize::MAX);
                state.fail(me, &unknown(), self.creates);
            }
            Action::Late(me) => {
                let late = state.members[me].late.pop_front()?;
                drop(state.carry_out(me, &late, self.refuses_signals));
            }
            Action::Link(me, removal) => state.link(me, removal),
            Action::Take(me) => state.take(me),
            Action::Move(me) => {
                state.lists(me);
                let member = &mut state.members[me];
                let outside = (self.aims[me] == Aim::Permit).then(|| permit(me));
                member.node.begin_replacement(outside);
                member.moves(me);
            }
            Action::Forge(me) => {
                state.members[me].is_forged = true;
                state.members[me].node.record_loss(Loss::Interfered);
            }
            Action::Release(me) => {
                let member = &mut state.members[me];
                if let Some(leaving) = member.node.mark_left() {
                    member.release = Some(member.removals.len());
                    member.begins(leaving);
                }
                state.members[me].drops();
            }
            Action::Drop(me) => state.members[me].drops(),
            Action::Expire(me) => {
                state.expired += 1;
                state.members[me].is_over = true;
                state.members[me].late.clear();
                state.members[me].node.record_loss(Loss::SessionOver(SessionEnd::Expired));
                state.nodes.retain(|path| !path.starts_with(&owner(me)) && *path != permit(me));
                state.fail(me, &Failure::Over(SessionEnd::Expired), self.creates);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Lives>> {
        vec![
            Property::always("no rule is violated", |_: &Lives, state: &State| state.wrong.is_none()),
            Property::always("no contender loses its node by its own requests", |_, state: &State| {
                let has_its_node =
                    |it: &Member| !it.stands() || it.is_over || it.is_refused || state.nodes.contains(it.node.path());
                state.members.iter().all(has_its_node)
            }),
            Property::always("all nodes are removed in the end", |model, state: &State| state.comes_to_rest(model)),
        ]
    }
}

fn search(model: Lives) -> usize {
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{} states, {} of them different", checker.state_count(), checker.unique_state_count());
    checker.unique_state_count()
}

const ANY: usize = usize::MAX;

fn right(aims: Vec<Aim>) -> Lives {
    Lives { aims, creates: 2, cuts: ANY, expiries: 1, denies: true, refuses_signals: false, refuses_downgrades: false }
}

const AIMS: [Aim; 3] = [Aim::Lock(Mode::Read), Aim::Lock(Mode::Write), Aim::Permit];

/// One contender of each kind, with every fault, as often as the faults can occur.
#[test]
fn one_contender_leaves_no_node() {
    for aim in AIMS {
        let states = search(right(vec![aim]));
        assert!(states > 500, "the search was cut short");
        search(Lives { refuses_signals: true, ..right(vec![aim]) });
    }
    search(Lives { refuses_downgrades: true, cuts: 2, creates: 1, ..right(vec![Aim::Lock(Mode::Write)]) });
}

/// Two contenders whose connections break once, or twice with `MODEL_CONTENDERS=4`. With three breaks the search has 50
/// times as many states, and needs 20 GB.
#[test]
fn two_contenders_leave_no_node_and_delete_only_their_own() {
    let is_long = std::env::var("MODEL_CONTENDERS").is_ok_and(|most| most == "4");
    for pair in [[AIMS[1], AIMS[1]], [AIMS[0], AIMS[1]], [AIMS[1], AIMS[2]]] {
        let cuts = if is_long { 2 } else { 1 };
        let states = search(Lives { cuts, ..right(pair.to_vec()) });
        assert!(states > 10_000, "the search was cut short");
    }
}
