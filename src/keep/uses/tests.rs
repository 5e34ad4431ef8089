//! Runs [`Uses`] through every short sequence of steps and through long random sequences, and checks the invariants after each
//! step.

use super::*;

const RUNS: UseState<(), ()> = UseState::Runs(());
const WAITS: UseState<(), ()> = UseState::Waits(());

/// One step of a sequence of calls on [`Uses`].
#[derive(Clone, Copy, Debug)]
enum Step {
    Joins(Mode),
    /// The waiting use at this index of `Sequence::left` is polled.
    IsPolled(usize),
    Leaves(usize),
    Granted,
    Closed,
    Failed,
    Downgraded,
}

/// A use that is neither refused nor ended, and its expected state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    number: u64,
    mode: Mode,
    standing: UseState<(), ()>,
    /// Whether the use was polled while it waited, so that it has a waker, which must be called when its state changes.
    /// `true` for a use that ran at once.
    is_polled: bool,
}

#[derive(Clone)]
struct Sequence {
    /// The uses of the node under test. The waker of each use is its id.
    uses: Uses<u64>,
    left: Vec<Use>,
    is_granted: bool,
    is_closed: bool,
    has_failed: bool,
    steps: Vec<Step>,
}

impl Sequence {
    fn of(mode: Mode) -> Sequence {
        let (uses, left, steps) = (Uses::new(mode), Vec::new(), Vec::new());
        Sequence { uses, left, is_granted: false, is_closed: false, has_failed: false, steps }
    }

    /// Returns whether this step is possible now.
    fn allows(&self, step: Step) -> bool {
        match step {
            Step::Joins(_) | Step::Closed => true,
            Step::IsPolled(place) => self.left.get(place).is_some_and(|it| !it.is_polled),
            Step::Leaves(place) => place < self.left.len(),
            Step::Granted | Step::Failed => !self.is_granted && !self.has_failed,
            Step::Downgraded => self.writer().is_some(),
        }
    }

    /// Returns the running write, if there is one.
    fn writer(&self) -> Option<Use> {
        self.left.iter().copied().find(|it| it.mode == Mode::Write && it.standing == RUNS)
    }

    fn take(&mut self, step: Step) {
        self.steps.push(step);
        let before = self.left.clone();
        let woken = match step {
            Step::Joins(mode) => return self.join(mode),
            Step::IsPolled(place) => {
                let polled = &mut self.left[place];
                assert_eq!(
                    self.uses.poll_state(polled.number, &polled.number),
                    polled.standing,
                    "the state changed without a wake-up"
                );
                polled.is_polled = true;
                return;
            }
            Step::Leaves(place) => {
                let number = self.left.remove(place).number;
                self.is_closed |= !self.is_granted && self.left.is_empty();
                self.uses.end_share(number)
            }
            Step::Granted => {
                self.is_granted = true;
                self.uses.record_grant()
            }
            Step::Closed => {
                self.is_closed = true;
                self.uses.close()
            }
            Step::Failed => {
                (self.is_closed, self.has_failed) = (true, true);
                self.uses.record_failure()
            }
            Step::Downgraded => {
                let writer = self.writer().expect("allowed");
                let at = self.left.iter().position(|it| *it == writer).expect("it is left");
                self.left[at].mode = Mode::Read;
                self.uses.record_downgrade(writer.number)
            }
        };
        self.compare(step, &before, &woken);
    }

    fn join(&mut self, mode: Mode) {
        let waits = self.left.iter().any(|it| it.standing == WAITS);
        let is_covered = mode == Mode::Read || self.uses.mode == Mode::Write;
        let standing = match self.uses.join(mode) {
            UseState::Refused => {
                assert!(self.is_closed || !is_covered, "a use was refused for no reason: {:?}", self.steps);
                return;
            }
            UseState::Runs(number) => Use { number, mode, standing: RUNS, is_polled: true },
            UseState::Waits(number) => Use { number, mode, standing: WAITS, is_polled: false },
        };
        assert!(
            !self.is_closed && is_covered,
            "a use joined a closed node, or a mode that the node does not cover: {:?}",
            self.steps
        );
        assert!(standing.standing == WAITS || !waits, "a use overtook another: {:?}", self.steps);
        self.left.push(standing);
        self.check();
    }

    /// Compares the state of each use with its state before the step. `woken` must have exactly the uses whose state
    /// changed and that were polled before.
    fn compare(&mut self, step: Step, before: &[Use], woken: &[u64]) {
        let mut uses = self.uses.clone();
        // When the node is closed before the grant, the reads ahead of the first write stay or, if there are none, that
        // write.
        let stay = before.iter().take_while(|it| it.mode == Mode::Read).count().max(1);
        let stays = |it: &Use| before.iter().take(stay).any(|other| other.number == it.number);
        let refusable = |it: &Use| match step {
            Step::Closed if self.is_granted => true,
            Step::Closed => !stays(it),
            Step::Failed => true,
            Step::Downgraded => it.mode == Mode::Write,
            _ => false,
        };
        let mut changed = Vec::new();
        for it in &mut self.left {
            let standing = uses.poll_state(it.number, &it.number);
            if standing != it.standing {
                assert_eq!(it.standing, WAITS, "the state of a running use changed: {:?}", self.steps);
                assert!(standing == RUNS || refusable(it), "{it:?} was refused: {:?}", self.steps);
                changed.extend(it.is_polled.then_some(it.number));
                it.standing = standing;
            }
        }
        let refused = self.left.iter().filter(|it| it.standing == UseState::Refused).count();
        let expected = self.left.iter().zip(before).filter(|(_, was)| was.standing == WAITS);
        let must_be = match step {
            Step::Closed | Step::Failed | Step::Downgraded => expected.filter(|(it, _)| refusable(it)).count(),
            _ => 0,
        };
        assert_eq!(refused, must_be, "{:?}", self.steps);
        let mut woken = woken.to_vec();
        woken.sort_unstable();
        assert_eq!(woken, changed, "exactly the uses whose state changed are woken: {:?}", self.steps);
        self.left.retain(|it| it.standing != UseState::Refused);
        self.check();
    }

    /// Checks the invariants that hold between any two steps.
    fn check(&self) {
        let of = |standing| self.left.iter().filter(move |it| it.standing == standing);
        let (running, mut waiting) = (of(RUNS), of(WAITS));
        let running: Vec<_> = running.copied().collect();
        let has_write = running.iter().any(|it| it.mode == Mode::Write);
        assert!(running.len() < 2 || !has_write, "a write runs with another use: {:?}", self.steps);
        assert!(!has_write || self.uses.mode == Mode::Write, "a write runs under a READ node: {:?}", self.steps);
        assert!(running.is_empty() || self.is_granted, "a use runs before the grant: {:?}", self.steps);
        let modes: Vec<_> = self.uses.running.iter().map(|it| it.mode).collect();
        assert_eq!(modes, running.iter().map(|it| it.mode).collect::<Vec<_>>(), "{:?}", self.steps);
        if let Some(first) = waiting.next() {
            let is_in_turn = running.iter().all(|it| it.number < first.number);
            assert!(is_in_turn, "a later use runs before the first waiting use: {:?}", self.steps);
            let is_kept_out = running.iter().any(|it| it.mode.excludes(first.mode));
            assert!(!self.is_granted || is_kept_out, "the first waiting use could run: {:?}", self.steps);
            assert!(!(self.is_granted && self.is_closed), "a use waits for a closed node: {:?}", self.steps);
        }
        let is_over = self.is_closed && self.left.is_empty();
        assert_eq!(self.uses.is_over(), is_over, "{:?}", self.steps);
        assert_eq!(self.uses.is_idle(), self.left.is_empty(), "{:?}", self.steps);
    }

    /// Ends the sequence: grants the node, unless it is granted or its acquisition has failed, ends each running use,
    /// and closes the node. Fails if a use is left that waits, or if the node is not given up.
    fn finish(mut self) {
        if !self.is_granted && !self.has_failed {
            self.take(Step::Granted);
        }
        while let Some(running) = self.left.iter().position(|it| it.standing == RUNS) {
            self.take(Step::Leaves(running));
        }
        assert_eq!(self.left, [], "a use waits for ever: {:?}", self.steps);
        self.take(Step::Closed);
        assert!(self.uses.is_over(), "{:?}", self.steps);
    }
}

/// Returns the steps to try on a node with this many uses. [`Sequence::allows`] leaves out those that are not possible now.
fn possible_steps(uses: usize) -> impl Iterator<Item = Step> {
    let always = [Step::Joins(Mode::Read), Step::Joins(Mode::Write)].into_iter();
    let once = [Step::Granted, Step::Closed, Step::Failed, Step::Downgraded].into_iter();
    always.chain(once).chain((0..uses).flat_map(|place| [Step::IsPolled(place), Step::Leaves(place)]))
}

/// Runs every sequence that continues this sequence by at most `steps` steps. Returns the number of sequences that were
/// run.
fn run_all(sequence: &Sequence, steps: usize) -> u64 {
    sequence.clone().finish();
    if steps == 0 {
        return 1;
    }
    let next = possible_steps(sequence.left.len()).filter(|step| sequence.allows(*step));
    let count = next.map(|step| {
        let mut sequence = sequence.clone();
        sequence.take(step);
        run_all(&sequence, steps - 1)
    });
    1 + count.sum::<u64>()
}

#[test]
fn every_short_sequence_of_steps_keeps_the_rules() {
    let count: u64 = [Mode::Read, Mode::Write].iter().map(|mode| run_all(&Sequence::of(*mode), 6)).sum();
    assert!(count > 40_000, "only {count} sequences were run");
}

#[test]
fn long_random_sequences_keep_the_rules() {
    for seed in 0..2_000_u64 {
        let mut random = seed;
        let mut below = |limit: usize| {
            // The constants of Knuth's MMIX random number generator.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % limit
        };
        let mut sequence = Sequence::of(if seed % 3 == 0 { Mode::Read } else { Mode::Write });
        for _ in 0..60 {
            let mut next: Vec<_> = possible_steps(sequence.left.len()).filter(|step| sequence.allows(*step)).collect();
            // After one of these two steps, no use can join the node. So each is tried only one time in ten.
            next.retain(|step| !matches!(step, Step::Closed | Step::Failed) || below(10) == 0);
            sequence.take(next[below(next.len())]);
        }
        sequence.finish();
    }
}

#[test]
fn only_uses_that_joined_are_counted() {
    let mut uses: Uses<u64> = Uses::new(Mode::Read);
    assert_eq!((uses.join(Mode::Write), uses.joined_so_far()), (UseState::Refused, 0));
    assert_eq!((uses.join(Mode::Read), uses.joined_so_far()), (UseState::Waits(0), 1));
    assert!(uses.record_grant().is_empty() && uses.wakers().is_empty(), "a waker of a use that was never polled");
    assert_eq!((uses.join(Mode::Read), uses.joined_so_far()), (UseState::Runs(1), 2));
    assert!(!uses.is_closed);
    assert!(uses.close().is_empty());
    assert!(uses.is_closed);
    assert_eq!((uses.join(Mode::Read), uses.joined_so_far()), (UseState::Refused, 2));
}

#[test]
fn a_shared_use_ends_with_its_last_share() {
    let mut uses: Uses<u64> = Uses::new(Mode::Write);
    assert!(uses.record_grant().is_empty());
    assert_eq!(uses.join(Mode::Read), UseState::Runs(0));
    uses.add_guard(0);
    assert_eq!((uses.join(Mode::Write), uses.poll_state(1, &7)), (UseState::Waits(1), WAITS));
    assert_eq!((uses.end_share(0), uses.poll_state(1, &7)), (vec![], WAITS));
    assert_eq!((uses.end_share(0), uses.poll_state(1, &7)), (vec![7], RUNS));
    assert_eq!(uses.joined_so_far(), 2, "a share was counted as a use");
}
