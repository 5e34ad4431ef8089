//! Tests of the local queue against a simulated directory with contenders of other sessions; know no real server.

use super::*;

mod cases;

/// A node as a server keeps it.
#[derive(Clone, Debug)]
struct Node {
    slot: Slot,
    /// The index of its contender, if that is of this session.
    own: Option<usize>,
}

/// One of our contenders.
#[derive(Clone, Copy, Debug)]
struct Own {
    slot: Slot,
    czxid: i64,
    connection: usize,
    is_entered: bool,
    is_granted: bool,
    has_left: bool,
    /// It has noticed the loss of its node.
    knows_its_loss: bool,
}

/// The lock's directory, contenders of other sessions, and what this session does and knows.
#[derive(Default)]
struct World {
    czxid: i64,
    next: i64,
    nodes: Vec<Node>,
    own: Vec<Own>,
    queue: LocalQueue<usize>,
    /// How often the connection was lost.
    connection: usize,
    seed: u64,
    /// No contender of another session comes, and nothing goes wrong.
    is_calm: bool,
    history: Vec<String>,
    known_on_entry: u64,
    let_in: u64,
}

impl World {
    /// SplitMix64.
    fn below(&mut self, limit: usize) -> usize {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % limit as u64).unwrap()
    }

    fn mode(&mut self) -> Mode {
        if self.below(2) == 0 { Mode::Read } else { Mode::Write }
    }

    fn any_own(&mut self, which: impl Fn(&Own) -> bool) -> Option<usize> {
        let some: Vec<usize> = (0..self.own.len()).filter(|i| which(&self.own[*i])).collect();
        (!some.is_empty()).then(|| some[self.below(some.len())])
    }

    fn key(&self, own: usize) -> Key {
        Key { number: self.own[own].slot.sequence, id: own as u64 }
    }

    fn is_there(&self, own: usize) -> bool {
        self.nodes.iter().any(|node| node.own == Some(own))
    }

    /// Its predecessor. A contender that has left does not count, though its node may still be there.
    fn in_the_way(&self, own: usize, by_a_look: bool) -> Option<&Node> {
        let me = &self.own[own];
        self.nodes
            .iter()
            .filter(|node| node.slot.sequence < me.slot.sequence && node.slot.mode.excludes(me.slot.mode))
            .filter(|node| by_a_look || node.own.is_none_or(|other| !self.own[other].has_left))
            .max_by_key(|node| node.slot.sequence)
    }

    fn create(&mut self, mode: Mode, own: Option<usize>) -> (Slot, i64) {
        let slot = Slot { mode, sequence: self.next };
        self.nodes.push(Node { slot, own });
        self.next += 1;
        self.czxid += 1;
        (slot, self.czxid)
    }

    fn change(&mut self, change: impl FnOnce(&mut LocalQueue<usize>) -> Vec<usize>) {
        let woken = change(&mut self.queue);
        for woken_one in woken {
            let turn = self.queue.turn(self.key(woken_one));
            self.history.push(format!("{woken_one} is woken, and stands {turn:?}"));
            assert!(!self.own[woken_one].has_left, "a contender that has left hears nothing: {:#?}", self.history);
            if let LocalTurn::Clear(_) = turn {
                self.let_in += 1;
                self.check_clear(woken_one);
            }
        }
    }

    fn check_clear(&self, own: usize) {
        // A contender that has lost its node will notice that itself, whatever the queue says of its turn.
        if self.is_there(own) {
            let other = self.in_the_way(own, false);
            assert!(other.is_none(), "{own} is let in past {other:?}: {:#?}", self.history);
        }
    }

    fn check(&self) {
        for (i, me) in self.own.iter().enumerate() {
            if me.has_left || !me.is_entered || !self.is_there(i) {
                continue;
            }
            match self.queue.turn(self.key(i)) {
                LocalTurn::Unknown => {}
                LocalTurn::Clear(_) => self.check_clear(i),
                LocalTurn::Behind(number) => {
                    let other = *self.queue.member(number).expect("the predecessor is in the queue");
                    // Otherwise its owner notices the loss, and the book wakes the waiter.
                    if self.is_there(other) {
                        let nearest = self.in_the_way(i, false).and_then(|node| node.own);
                        assert_eq!(nearest, Some(other), "{i} waits for the wrong one: {:#?}", self.history);
                    }
                }
                LocalTurn::BehindRemote(path) => {
                    if self.nodes.iter().any(|node| node.slot.sequence.to_string() == *path) {
                        let nearest = self.in_the_way(i, false).map(|node| node.slot.sequence.to_string());
                        assert_eq!(nearest.as_deref(), Some(&*path), "{i} waits wrongly: {:#?}", self.history);
                    }
                }
            }
        }
    }

    fn grant(&mut self, own: usize, evidence: &Evidence) {
        self.own[own].is_granted = true;
        let key = self.key(own);
        self.change(|queue| queue.granted(key, evidence));
    }

    fn step(&mut self) {
        let position = |own: &Own| own.is_entered && !own.has_left;
        match self.below(if self.is_calm { 12 } else { 15 }) {
            0..4 => {
                let (own, mode) = (self.own.len(), self.mode());
                let (slot, czxid) = self.create(mode, Some(own));
                let it = Own {
                    slot,
                    czxid,
                    connection: self.connection,
                    is_entered: false,
                    is_granted: false,
                    has_left: false,
                    knows_its_loss: false,
                };
                self.history.push(format!("{own} is created: {it:?}"));
                self.own.push(it);
                if self.below(4) > 0 {
                    self.enter(own);
                }
            }
            // The answer to a create comes late.
            4 => {
                if let Some(own) = self.any_own(|own| !own.is_entered && !own.has_left) {
                    self.enter(own);
                }
            }
            5 if self.is_calm => {}
            5 => {
                let mode = self.mode();
                let (slot, _) = self.create(mode, None);
                self.history.push(format!("a contender of another session comes: {slot:?}"));
            }
            6 => self.other_leaves(),
            7 | 8 => {
                if let Some(own) = self.any_own(position) {
                    self.look(own);
                }
            }
            9 | 10 => {
                if let Some(own) = self.any_own(position) {
                    self.leave(own);
                }
            }
            // The deletion of a node takes effect.
            11 => {
                let left: Vec<usize> = (0..self.own.len()).filter(|i| self.own[*i].has_left).collect();
                self.nodes.retain(|node| node.own.is_none_or(|own| !left.contains(&own)));
                self.czxid += 1;
            }
            12 => {
                let may = |own: &Own| position(own) && own.is_granted && own.slot.mode == Mode::Write;
                if let Some(own) = self.any_own(may).filter(|own| self.is_there(*own)) {
                    self.downgrade(own);
                }
            }
            13 if self.below(4) == 0 => self.crash(),
            _ => self.mishap(),
        }
        self.check();
    }

    fn enter(&mut self, own: usize) {
        self.own[own].is_entered = true;
        let (Own { slot, czxid, connection, .. }, key) = (self.own[own], self.key(own));
        if connection != self.connection {
            return;
        }
        self.history.push(format!("{own} has entered"));
        self.change(|queue| queue.enter(key.id, slot, czxid, &own));
        self.known_on_entry += u64::from(self.queue.turn(key) != LocalTurn::Unknown);
    }

    fn look(&mut self, own: usize) {
        if !self.is_there(own) {
            self.own[own].knows_its_loss = true;
            return;
        }
        let key = self.key(own);
        match self.in_the_way(own, true).cloned() {
            None => {
                self.history.push(format!("{own} looks, and is granted"));
                self.grant(own, &Evidence::Sure);
            }
            Some(Node { own: None, slot: other }) => {
                let path = other.sequence.to_string().into();
                self.history.push(format!("{own} looks, and waits for {path} of another session"));
                self.queue.waits_for(key, &path);
            }
            Some(Node { own: Some(other), .. }) => self.history.push(format!("{own} sees {other}")),
        }
    }

    fn leave(&mut self, own: usize) {
        let it = &mut self.own[own];
        it.has_left = true;
        let exit = match (it.knows_its_loss, it.is_granted, it.slot.mode) {
            (true, ..) => Exit::Lost,
            (_, true, Mode::Write) => Exit::LetGo,
            _ => Exit::Plain,
        };
        let key = self.key(own);
        self.history.push(format!("{own} leaves: {exit:?}"));
        if self.below(2) == 0 {
            self.nodes.retain(|node| node.own != Some(own));
            self.czxid += 1;
        }
        self.change(|queue| queue.left(key, exit));
    }

    fn downgrade(&mut self, own: usize) {
        self.history.push(format!("{own} holds to read from now on"));
        let key = self.key(own);
        self.own[own].slot.mode = Mode::Read;
        self.nodes.iter_mut().filter(|node| node.own == Some(own)).for_each(|it| it.slot.mode = Mode::Read);
        // Its new node takes a number, too.
        self.next += 1;
        self.czxid += 1;
        self.change(|queue| queue.downgraded(key, &own));
    }

    /// A contender of another session leaves. If it held, it hands off to the contenders of this session that wait for
    /// it.
    fn other_leaves(&mut self) {
        let others: Vec<Slot> = self.nodes.iter().filter(|node| node.own.is_none()).map(|node| node.slot).collect();
        if others.is_empty() {
            return;
        }
        let it = others[self.below(others.len())];
        let held = it.mode == Mode::Write && self.nodes.iter().all(|node| node.slot.sequence >= it.sequence);
        let waiting = |i: &usize| {
            let me = &self.own[*i];
            let nearest = || self.in_the_way(*i, true).map(|node| node.slot);
            me.is_entered && !me.has_left && self.is_there(*i) && nearest() == Some(it)
        };
        let waiting: Vec<usize> = (0..self.own.len()).filter(waiting).collect();
        self.history.push(format!("{it:?} of another session leaves, having held: {held}"));
        self.nodes.retain(|node| node.slot.sequence != it.sequence);
        self.czxid += 1;
        if held {
            let evidence = Evidence::HandOff(Arc::new(HandOff::new(it.sequence.to_string().into())));
            waiting.into_iter().for_each(|own| self.grant(own, &evidence));
        }
    }

    /// The server crashes, and loses its last moments: the newest node, and the fact that its number was given.
    fn crash(&mut self) {
        self.history.push("the server crashes".to_owned());
        self.connection += 1;
        if let Some(newest) = self.nodes.iter().map(|node| node.slot.sequence).max() {
            self.nodes.retain(|node| node.slot.sequence != newest);
            (self.next, self.czxid) = (newest, self.czxid - 1);
        }
        self.change(LocalQueue::forget_all);
    }

    fn mishap(&mut self) {
        match self.below(4) {
            // An operator removes an own node.
            0 => {
                let position = self.any_own(|own| !own.has_left);
                if let Some(own) = position {
                    self.history.push(format!("the node of {own} is removed"));
                    self.nodes.retain(|node| node.own != Some(own));
                    self.czxid += 1;
                }
            }
            // The ensemble is busy with something else.
            1 => self.czxid += 3,
            // There is a new leader.
            2 => self.czxid = ((self.czxid >> 32) + 1) << 32,
            _ => {
                self.history.push("the directory is made anew".to_owned());
                self.nodes.clear();
                self.next = 0;
                self.czxid += 2;
            }
        }
    }
}

#[test]
fn what_is_known_of_the_queue_is_true_whatever_anybody_does() {
    let (mut known, mut let_in) = (0, 0);
    for seed in 0..4_000 {
        let mut world = World { seed, is_calm: seed % 4 == 0, ..World::default() };
        (0..80).for_each(|_| world.step());
        known += world.known_on_entry;
        let_in += world.let_in;
    }
    assert!(known > 20_000 && let_in > 1_500, "of {known} it was known where they stood, {let_in} were let in");
}

fn key(number: i64) -> Key {
    Key { number, id: number.unsigned_abs() }
}

/// Contenders of one session alone, behind a writer that holds: their modes, and the order in which all leave.
fn alone(modes: &[Mode], leaving: &[i64]) {
    let mode = |number: i64| modes[usize::try_from(number).unwrap()];
    let mut queue = LocalQueue::default();
    let mut there: Vec<i64> = (0..).take(modes.len()).collect();
    for number in &there {
        let slot = Slot { mode: mode(*number), sequence: *number };
        assert!(queue.enter(key(*number).id, slot, number + 7, number).is_empty());
    }
    // The first contender lists the queue, and no other contender ever has to.
    let mut woken = queue.granted(key(0), &Evidence::Sure);
    let mut heard = vec![0];
    for leaver in leaving.iter().map(Some).chain([None]) {
        heard.append(&mut woken);
        for (at, number) in there.iter().enumerate() {
            let is_clear = there[..at].iter().all(|other| !mode(*other).excludes(mode(*number)));
            let turn = queue.turn(key(*number));
            assert_eq!(
                matches!(turn, LocalTurn::Clear(_)),
                is_clear,
                "{number} of {modes:?}, after {leaving:?}: {turn:?}"
            );
            assert_eq!(heard.contains(number), is_clear, "{number} of {modes:?}, after {leaving:?}");
        }
        let Some(leaver) = leaver else { break };
        let held = heard.contains(leaver) && mode(*leaver) == Mode::Write;
        woken = queue.left(key(*leaver), if held { Exit::LetGo } else { Exit::Plain });
        there.retain(|number| number != leaver);
    }
    let told_in_all = heard.len();
    heard.sort_unstable();
    heard.dedup();
    assert_eq!(heard.len(), told_in_all, "each is woken once");
}

#[test]
fn among_its_own_each_is_let_in_when_its_turn_has_come_and_is_told_once() {
    for modes in 0..1 << 4 {
        let mode = |i: i32| if modes >> i & 1 == 0 { Mode::Read } else { Mode::Write };
        let modes: Vec<Mode> = [Mode::Write].into_iter().chain((0..4).map(mode)).collect();
        permutations(&mut (0..5).collect(), 0, &mut |leaving| alone(&modes, leaving));
    }
}

fn permutations(of: &mut Vec<i64>, from: usize, each: &mut impl FnMut(&[i64])) {
    if from == of.len() {
        return each(of);
    }
    for i in from..of.len() {
        of.swap(from, i);
        permutations(of, from + 1, each);
        of.swap(from, i);
    }
}

#[test]
fn a_lone_contender_is_always_known_to_be_granted_and_nothing_piles_up() {
    let mut queue = LocalQueue::default();
    for number in 0..1_000 {
        let mode = if number % 3 == 0 { Mode::Write } else { Mode::Read };
        queue.enter(key(number).id, Slot { mode, sequence: number }, number * 2 + 7, &());
        let turn = queue.turn(key(number));
        // One reader before a writer does not show that there is no other reader; all of them together do.
        assert_eq!(turn == LocalTurn::Clear(Evidence::Sure), number > 0, "{number}");
        queue.granted(key(number), &Evidence::Sure);
        let exit = if mode == Mode::Write { Exit::LetGo } else { Exit::Plain };
        queue.left(key(number), exit);
        assert_eq!((queue.members.len(), queue.left), (1, 1));
    }
}

#[test]
fn of_those_whose_next_one_never_came_only_the_newest_are_remembered() {
    let mut queue = LocalQueue::default();
    for number in (0..1_000).map(|i| i * 2) {
        let slot = Slot { mode: Mode::Write, sequence: number };
        queue.enter(key(number).id, slot, number, &());
        queue.left(key(number), Exit::Plain);
        assert!(queue.members.len() <= REMEMBERED && queue.left == queue.members.len());
    }
    assert_eq!(queue.members.len(), REMEMBERED);
}

#[test]
fn after_the_numbers_began_anew_those_of_before_crowd_out_nobody() {
    let mut queue = LocalQueue::default();
    let mut use_once = |number: i64, czxid: i64| {
        queue.enter(key(number).id, Slot { mode: Mode::Write, sequence: number }, czxid, &());
        let is_known = queue.turn(key(number)) == LocalTurn::Clear(Evidence::Sure);
        queue.granted(key(number), &Evidence::Sure);
        queue.left(key(number), Exit::LetGo);
        is_known
    };
    (0..200).for_each(|i| assert!(!use_once(1_000 + i * 2, i * 2)));
    assert!(!use_once(0, 1_000));
    (1..200).for_each(|number| assert!(use_once(number, 1_000 + number), "{number}"));
}

#[test]
fn nothing_known_before_the_connection_was_lost_is_known_after_it() {
    let mut queue = LocalQueue::default();
    let slot = |sequence| Slot { mode: Mode::Write, sequence };
    for number in 0..3 {
        queue.enter(key(number).id, slot(number), 10 + number, &number);
    }
    queue.granted(key(0), &Evidence::Sure);
    assert_eq!(queue.turn(key(1)), LocalTurn::Behind(0));
    assert!(!queue.is_empty());
    assert_eq!(queue.forget_all(), [0, 1, 2], "all are to look");
    assert!(queue.is_empty());
    assert!(queue.left(key(0), Exit::LetGo).is_empty());
    assert_eq!(queue.turn(key(1)), LocalTurn::Unknown);
    queue.enter(key(3).id, slot(3), 13, &3);
    assert_eq!(queue.turn(key(3)), LocalTurn::Unknown);
}

#[test]
fn numbers_at_the_ends_of_their_range_are_next_to_nobody() {
    let mut queue = LocalQueue::default();
    for (number, czxid) in [(i64::MAX, 5), (i64::MIN, 6), (i64::MAX - 1, 7), (i64::MIN + 1, 8)] {
        queue.enter(key(number).id, Slot { mode: Mode::Write, sequence: number }, czxid, &number);
        queue.granted(key(number), &Evidence::Sure);
    }
    for number in [i64::MAX, i64::MIN] {
        assert!(queue.left(key(number), Exit::LetGo).is_empty());
    }
}

/// The one behind two readers is told when the nearer has left only if the other may keep its node, to ask for it.
#[test]
fn a_writer_is_told_of_a_reader_before_its_own_predecessor_only_if_it_may_be_asked() {
    for is_kept in [false, true] {
        let mut queue = LocalQueue::default();
        for (number, mode) in [(1, Mode::Write), (2, Mode::Read), (3, Mode::Read), (4, Mode::Write)] {
            let entered = queue.enter(key(number).id, Slot { mode, sequence: number }, 10 + number, &number);
            assert!(entered.is_empty(), "{number} looks for itself what to ask for");
            if is_kept && mode == Mode::Read {
                queue.may_keep(key(number));
            }
        }
        queue.granted(key(1), &Evidence::Sure);
        assert_eq!(queue.left(key(1), Exit::LetGo), [2, 3]);
        assert_eq!(queue.turn(key(4)), LocalTurn::Behind(3));
        let told: &[i64] = if is_kept { &[4] } else { &[] };
        assert_eq!(queue.left(key(3), Exit::Plain), told);
        assert_eq!(queue.turn(key(4)), LocalTurn::Behind(2));
        assert_eq!(queue.left(key(2), Exit::Plain), [4]);
    }
}
