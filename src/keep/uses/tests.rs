//! Runs [`Uses`] through every short sequence of steps and through long random sequences, and checks the invariants after each
//! step.

use super::*;

const RUNS: Joined<(), ()> = Joined::Runs(());
const WAITS: Joined<(), ()> = Joined::Waits(());

/// One step of a sequence.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Joins(Mode),
    /// The waiting use at this index of `Story::left` is polled.
    IsPolled(usize),
    Leaves(usize),
    Granted,
    Closed,
    Failed,
    Downgraded,
}

/// A use that has neither been refused nor left, and its expected state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    number: u64,
    mode: Mode,
    standing: Joined<(), ()>,
    /// Whether the use was polled while it waited, so that its waker must be called.
    is_polled: bool,
}

#[derive(Clone)]
struct Story {
    /// The node under test. The waker of each use is the use's number.
    uses: Uses<u64>,
    left: Vec<Use>,
    is_granted: bool,
    is_closed: bool,
    has_failed: bool,
    steps: Vec<Happens>,
}

impl Story {
    fn of(mode: Mode) -> Story {
        let (uses, left, steps) = (Uses::new(mode), Vec::new(), Vec::new());
        Story { uses, left, is_granted: false, is_closed: false, has_failed: false, steps }
    }

    /// Returns whether this step is possible now.
    fn allows(&self, step: Happens) -> bool {
        match step {
            Happens::Joins(_) | Happens::Closed => true,
            Happens::IsPolled(place) => self.left.get(place).is_some_and(|it| !it.is_polled),
            Happens::Leaves(place) => place < self.left.len(),
            Happens::Granted | Happens::Failed => !self.is_granted && !self.has_failed,
            Happens::Downgraded => self.writer().is_some(),
        }
    }

    /// Returns the running write, if there is one.
    fn writer(&self) -> Option<Use> {
        self.left.iter().copied().find(|it| it.mode == Mode::Write && it.standing == RUNS)
    }

    fn take(&mut self, step: Happens) {
        self.steps.push(step);
        let before = self.left.clone();
        let woken = match step {
            Happens::Joins(mode) => return self.join(mode),
            Happens::IsPolled(place) => {
                let polled = &mut self.left[place];
                assert_eq!(self.uses.standing(polled.number, &polled.number), polled.standing, "it changed unseen");
                polled.is_polled = true;
                return;
            }
            Happens::Leaves(place) => self.uses.leave(self.left.remove(place).number),
            Happens::Granted => {
                self.is_granted = true;
                self.uses.grant()
            }
            Happens::Closed => {
                self.is_closed = true;
                self.uses.close()
            }
            Happens::Failed => {
                (self.is_closed, self.has_failed) = (true, true);
                self.uses.fail()
            }
            Happens::Downgraded => {
                let writer = self.writer().expect("allowed");
                let at = self.left.iter().position(|it| *it == writer).expect("it is left");
                self.left[at].mode = Mode::Read;
                self.uses.downgraded(writer.number)
            }
        };
        self.look(step, &before, &woken);
    }

    fn join(&mut self, mode: Mode) {
        let waits = self.left.iter().any(|it| it.standing == WAITS);
        let is_covered = mode == Mode::Read || self.uses.mode() == Mode::Write;
        let standing = match self.uses.join(mode) {
            Joined::Refused => {
                assert!(self.is_closed || !is_covered, "refused for no reason: {:?}", self.steps);
                return;
            }
            Joined::Runs(number) => Use { number, mode, standing: RUNS, is_polled: true },
            Joined::Waits(number) => Use { number, mode, standing: WAITS, is_polled: false },
        };
        assert!(!self.is_closed && is_covered, "a use joined: {:?}", self.steps);
        assert!(standing.standing == WAITS || !waits, "a use overtook another: {:?}", self.steps);
        self.left.push(standing);
        self.check();
    }

    /// Compares the state of each use with its state before the step. Exactly the uses whose state changed must have been woken.
    fn look(&mut self, step: Happens, before: &[Use], woken: &[u64]) {
        let mut uses = self.uses.clone();
        // If the node is asked for before its grant, the reads at the front stay, or else the first write.
        let stay = before.iter().take_while(|it| it.mode == Mode::Read).count().max(1);
        let stays = |it: &Use| before.iter().take(stay).any(|other| other.number == it.number);
        let refusable = |it: &Use| match step {
            Happens::Closed if self.is_granted => true,
            Happens::Closed => !stays(it),
            Happens::Failed => true,
            Happens::Downgraded => it.mode == Mode::Write,
            _ => false,
        };
        let mut changed = Vec::new();
        for it in &mut self.left {
            let standing = uses.standing(it.number, &it.number);
            if standing != it.standing {
                assert_eq!(it.standing, WAITS, "a use that ran or was refused: {:?}", self.steps);
                assert!(standing == RUNS || refusable(it), "{it:?} was refused: {:?}", self.steps);
                changed.extend(it.is_polled.then_some(it.number));
                it.standing = standing;
            }
        }
        let refused = self.left.iter().filter(|it| it.standing == Joined::Refused).count();
        let expected = self.left.iter().zip(before).filter(|(_, was)| was.standing == WAITS);
        let must_be = match step {
            Happens::Closed | Happens::Failed | Happens::Downgraded => expected.filter(|(it, _)| refusable(it)).count(),
            _ => 0,
        };
        assert_eq!(refused, must_be, "{:?}", self.steps);
        let mut woken = woken.to_vec();
        woken.sort_unstable();
        assert_eq!(woken, changed, "those whose standing changed are woken, and no others: {:?}", self.steps);
        self.left.retain(|it| it.standing != Joined::Refused);
        self.check();
    }

    /// Checks the invariants that hold between any two steps.
    fn check(&self) {
        let of = |standing| self.left.iter().filter(move |it| it.standing == standing);
        let (running, mut waiting) = (of(RUNS), of(WAITS));
        let running: Vec<_> = running.copied().collect();
        let has_write = running.iter().any(|it| it.mode == Mode::Write);
        assert!(running.len() < 2 || !has_write, "a write runs alone: {:?}", self.steps);
        assert!(!has_write || self.uses.mode() == Mode::Write, "a READ node covers no write: {:?}", self.steps);
        assert!(running.is_empty() || self.is_granted, "nothing runs before the grant: {:?}", self.steps);
        let told: Vec<_> = self.uses.running.iter().map(|it| it.mode).collect();
        assert_eq!(told, running.iter().map(|it| it.mode).collect::<Vec<_>>(), "{:?}", self.steps);
        if let Some(first) = waiting.next() {
            let is_in_turn = running.iter().all(|it| it.number < first.number);
            assert!(is_in_turn, "first come, first served: {:?}", self.steps);
            let is_kept_out = running.iter().any(|it| it.mode.excludes(first.mode));
            assert!(!self.is_granted || is_kept_out, "the first waits for nothing: {:?}", self.steps);
            assert!(!(self.is_granted && self.is_closed), "it waits for a node to be given up: {:?}", self.steps);
        }
        let is_over = self.is_granted && self.is_closed && self.left.is_empty();
        assert_eq!(self.uses.is_over(), is_over, "{:?}", self.steps);
        assert_eq!(self.uses.is_idle(), self.left.is_empty(), "{:?}", self.steps);
    }

    /// Ends the sequence: grants the node unless it has failed, ends each running use, and asks for the node. Fails if a use
    /// waits for ever, or the node is not given up.
    fn comes_to_rest(mut self) {
        if !self.is_granted && !self.has_failed {
            self.take(Happens::Granted);
        }
        while let Some(running) = self.left.iter().position(|it| it.standing == RUNS) {
            self.take(Happens::Leaves(running));
        }
        assert_eq!(self.left, [], "a use waits for ever: {:?}", self.steps);
        self.take(Happens::Closed);
        assert_eq!(self.uses.is_over(), !self.has_failed, "{:?}", self.steps);
    }
}

/// Returns each possible step of a node with this many uses.
fn all_that_happens(uses: usize) -> impl Iterator<Item = Happens> {
    let always = [Happens::Joins(Mode::Read), Happens::Joins(Mode::Write)].into_iter();
    let once = [Happens::Granted, Happens::Closed, Happens::Failed, Happens::Downgraded].into_iter();
    always.chain(once).chain((0..uses).flat_map(|place| [Happens::IsPolled(place), Happens::Leaves(place)]))
}

/// Runs every sequence that continues this one by at most `steps` steps. Returns the number of sequences.
fn tell_all(story: &Story, steps: usize) -> u64 {
    story.clone().comes_to_rest();
    if steps == 0 {
        return 1;
    }
    let next = all_that_happens(story.left.len()).filter(|step| story.allows(*step));
    let told = next.map(|step| {
        let mut story = story.clone();
        story.take(step);
        tell_all(&story, steps - 1)
    });
    1 + told.sum::<u64>()
}

#[test]
fn every_short_story_of_a_node_keeps_its_rules() {
    let told: u64 = [Mode::Read, Mode::Write].iter().map(|mode| tell_all(&Story::of(*mode), 6)).sum();
    assert!(told > 40_000, "only {told} stories were told");
}

#[test]
fn long_stories_of_a_node_keep_its_rules() {
    for seed in 0..2_000_u64 {
        let mut random = seed;
        let mut below = |limit: usize| {
            // The constants of Knuth's MMIX generator.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % limit
        };
        let mut story = Story::of(if seed % 3 == 0 { Mode::Read } else { Mode::Write });
        for _ in 0..60 {
            let mut next: Vec<_> = all_that_happens(story.left.len()).filter(|step| story.allows(*step)).collect();
            // A node that is asked for, or has failed, soon has no uses. So these two steps are rare.
            next.retain(|step| !matches!(step, Happens::Closed | Happens::Failed) || below(10) == 0);
            story.take(next[below(next.len())]);
        }
        story.comes_to_rest();
    }
}

#[test]
fn uses_that_joined_are_counted_and_those_refused_are_not() {
    let mut uses: Uses<u64> = Uses::new(Mode::Read);
    assert_eq!((uses.join(Mode::Write), uses.count()), (Joined::Refused, 0));
    assert_eq!((uses.join(Mode::Read), uses.count()), (Joined::Waits(0), 1));
    assert!(uses.grant().is_empty() && uses.wakers().is_empty(), "it was never polled");
    assert_eq!((uses.join(Mode::Read), uses.count()), (Joined::Runs(1), 2));
    assert!(!uses.is_closed() && uses.close().is_empty() && uses.is_closed());
    assert_eq!((uses.join(Mode::Read), uses.count()), (Joined::Refused, 2));
}

#[test]
fn a_use_that_is_shared_ends_when_its_last_share_leaves() {
    let mut uses: Uses<u64> = Uses::new(Mode::Write);
    assert!(uses.grant().is_empty());
    assert_eq!(uses.join(Mode::Read), Joined::Runs(0));
    uses.share(0);
    assert_eq!((uses.join(Mode::Write), uses.standing(1, &7)), (Joined::Waits(1), WAITS));
    assert_eq!((uses.leave(0), uses.standing(1, &7)), (vec![], WAITS));
    assert_eq!((uses.leave(0), uses.standing(1, &7)), (vec![7], RUNS));
    assert_eq!(uses.count(), 2, "a share is no use of its own");
}
