//! Chooses a random schedule.
//!
//! Most faults need only a few contenders on one path and an event at the worst moment. So each schedule has few
//! actors, one subject, one or two kinds of trouble, and weights of the steps, all chosen once for the whole schedule.
//! A schedule that leaves out some kinds of steps has more of the others (swarm testing: Groce and others, 2012). Steps
//! that belong together are chosen together: for example, a lost reply right before its request.

use crate::world::plan::{ACTORS, Action, After, CLIENTS, HANDLES, Handle, Part, Schedule, Speech, Step, WHILE};

/// The largest number of permits at the start of a schedule.
const NUMBER: u32 = 3;

/// A fast generator of random numbers from one seed. A schedule needs hundreds of numbers, and their quality does not
/// matter.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.roll() % end.max(1) as u64) as usize
    }

    /// Returns `true` with a probability of `percent`.
    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Returns a random one of these items, in proportion to their weights.
    fn weighed<T: Copy>(&mut self, all: &[(usize, T)]) -> T {
        let mut left = self.below(all.iter().map(|(weight, _)| weight).sum());
        for (weight, it) in all {
            if left < *weight {
                return *it;
            }
            left -= weight;
        }
        all[0].1
    }
}

/// The part of the library that a schedule uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Lock,
    Value,
    Permits,
    All,
    /// Nodes that are kept between uses, and are idle while time passes.
    Idle,
}

/// A kind of fault, or of another event that comes at a bad moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Stalling,
    Sleeping,
    Cutting,
    Expiring,
    Losing,
    Lagging,
    Removing,
    Reopening,
    Forgetting,
    Waiting,
    Brief,
    Number,
    Silence,
    Forging,
    Twice,
}

const TROUBLES: [Trouble; 15] = [
    Trouble::Stalling,
    Trouble::Sleeping,
    Trouble::Cutting,
    Trouble::Expiring,
    Trouble::Losing,
    Trouble::Lagging,
    Trouble::Removing,
    Trouble::Reopening,
    Trouble::Forgetting,
    Trouble::Waiting,
    Trouble::Brief,
    Trouble::Number,
    Trouble::Silence,
    Trouble::Forging,
    Trouble::Twice,
];

/// Returns the schedule of a seed. The same seed always gives the same schedule.
pub(crate) fn draw(seed: u64) -> Schedule {
    let mut dice = Dice(seed);
    let subjects =
        [(4, Subject::Lock), (3, Subject::Value), (3, Subject::Permits), (1, Subject::All), (1, Subject::Idle)];
    let subject = dice.weighed(&subjects);
    let crew = dice.weighed(&[(3, 2), (5, 3), (3, 4), (1, ACTORS)]);
    let permits = if dice.chance(60) { 1 } else { 1 + dice.below(NUMBER as usize) as u32 };
    let (handles, handle_of) = (handles(&mut dice, subject), handle_of(&mut dice));
    let troubles = troubles(&mut dice, subject);
    let forges = troubles.contains(&Trouble::Forging);
    let style = Style::draw(&mut dice, subject, crew, permits, troubles);
    let are_blind = dice.chance(25);
    // Half of the schedules in which a stranger forges a hand-off are short. A grant by such a hand-off is checked only
    // at the end of the schedule, when its guard must still exist.
    let is_short = forges && dice.chance(50);
    let length = if is_short { 8 } else { dice.weighed(&[(3, 8), (4, 20), (3, 50), (1, 110)]) };
    let mut steps = Vec::new();
    while steps.len() < length {
        style.next(&mut dice, &mut steps);
    }
    Schedule { finds: String::new(), permits, handles, handle_of, are_blind, steps }
}

fn handles(dice: &mut Dice, subject: Subject) -> Vec<Handle> {
    let speeches = [Speech::Curator, Speech::CuratorMutex, Speech::Kazoo];
    let of_all = if dice.chance(85) { Speech::Native } else { dice.one_of(&speeches) };
    // In some schedules one handle uses another dialect, as after an incomplete migration.
    let other = dice.chance(8).then(|| (dice.below(HANDLES), dice.one_of(&speeches)));
    let sessions = dice.weighed(&[(3, 1), (3, CLIENTS), (2, 2)]);
    let spread = dice.chance(50);
    let while_ms = WHILE.as_millis() as u64;
    // The time for which an unused node is kept ends before, at or after the next `Action::Wait`, or never.
    let times = [while_ms / 2, while_ms, while_ms * 3 / 2, 2 * while_ms, u64::MAX, u64::MAX, u64::MAX];
    // The percentages of handles that keep their nodes, and of handles that use the value.
    let (keep, value) = (dice.weighed(&[(3, 0), (3, 100), (2, 50)]), dice.weighed(&[(2, 100), (1, 60)]));
    let (keep, times) = if subject == Subject::Idle { (100, &times[..4]) } else { (keep, &times[..]) };
    let handle = |i: usize| {
        let client = if spread { i % sessions } else { dice.below(sessions) };
        let dialect = other.filter(|(at, _)| *at == i).map_or(of_all, |(_, speech)| speech);
        let keep = dice.chance(keep).then(|| dice.one_of(times));
        // Only handles with our dialect keep nodes between uses, because contenders of other libraries cannot ask for them.
        let keep = keep.filter(|_| dialect == Speech::Native);
        let has_value = match subject {
            Subject::Lock | Subject::Permits | Subject::Idle => false,
            Subject::Value => dice.chance(value),
            Subject::All => dice.chance(50),
        };
        Handle { client, dialect, keep, has_value }
    };
    (0..HANDLES).map(handle).collect()
}

/// Chooses the handle of each actor: one handle each, one for all, one for every two actors, or a random one.
fn handle_of(dice: &mut Dice) -> Vec<usize> {
    let (width, offset) = (dice.weighed(&[(3, 1), (2, ACTORS), (2, 2), (2, 0)]), dice.below(HANDLES));
    let of = |actor: usize| match width {
        0 => dice.below(HANDLES),
        width => (offset + actor / width) % HANDLES,
    };
    (0..ACTORS).map(of).collect()
}

/// Chooses one to three kinds of trouble, and seldom none or all. Trouble with requests in progress is the most frequent.
fn troubles(dice: &mut Dice, subject: Subject) -> Vec<Trouble> {
    if subject == Subject::Idle {
        return vec![Trouble::Waiting];
    }
    let many = dice.weighed(&[(1, 0), (4, 1), (4, 2), (2, 3), (1, TROUBLES.len())]);
    let weight = |trouble| match trouble {
        Trouble::Stalling => 6,
        Trouble::Twice => 4,
        // If there is a value, there are no forged hand-offs. A contender that is granted the lock by a forged hand-off
        // may write the value, and the checks cannot know of this write.
        Trouble::Forging if matches!(subject, Subject::Value | Subject::All) => 0,
        Trouble::Forging => 3,
        Trouble::Losing | Trouble::Cutting | Trouble::Lagging | Trouble::Removing | Trouble::Sleeping => 3,
        Trouble::Number if subject != Subject::Permits => 0,
        Trouble::Expiring | Trouble::Brief | Trouble::Waiting | Trouble::Number | Trouble::Silence => 2,
        Trouble::Reopening | Trouble::Forgetting => 1,
    };
    let mut left: Vec<_> = TROUBLES.map(|trouble| (weight(trouble), trouble)).to_vec();
    let mut chosen = Vec::new();
    while chosen.len() < many && left.iter().any(|(weight, _)| *weight > 0) {
        let trouble = dice.weighed(&left);
        left.retain(|(_, it)| *it != trouble);
        chosen.push(trouble);
    }
    chosen
}

/// The weights of the steps of one schedule.
struct Style {
    crew: usize,
    asking: Vec<(usize, Action)>,
    holding: Vec<(usize, Action)>,
    troubles: Vec<Trouble>,
    /// The kinds of steps, each with its weight.
    kinds: [(usize, Kind); 3],
    /// The percentage of steps after which everything runs until nothing moves.
    settles: usize,
    /// The percentage of steps after which every woken actor is polled once.
    polls: usize,
    /// The directories in which an operator deletes nodes.
    parts: Vec<Part>,
}

#[derive(Clone, Copy)]
enum Kind {
    Asks,
    Holds,
    Troubles,
}

impl Style {
    fn draw(dice: &mut Dice, subject: Subject, crew: usize, permits: u32, troubles: Vec<Trouble>) -> Style {
        use Action::*;
        let is_brief = troubles.contains(&Trouble::Brief);
        let swarm = |dice: &mut Dice, all: &[Action]| -> Vec<(usize, Action)> {
            all.iter().map(|action| (dice.one_of(&[0, 1, 2, 6]), *action)).collect()
        };
        let locks = subject != Subject::Permits;
        let (mut asking, mut holding, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        if locks {
            asking.extend([(dice.one_of(&[1, 3, 8]), Read), (dice.one_of(&[1, 3, 8]), Write)]);
            let changes = [Downgrade, Share, Unshare, Look, Commit];
            // Schedules about idle nodes have no commits, because a commit in progress may make a process give up the node
            // that it keeps.
            holding.extend(swarm(dice, if subject == Subject::Idle { &changes[..4] } else { &changes }));
            parts.push(Part::Lock);
            if is_brief {
                asking.extend(swarm(dice, &[ReadBriefly, WriteBriefly, TryRead, TryWrite]));
            }
        }
        if matches!(subject, Subject::Value | Subject::All) {
            asking.extend(swarm(dice, &[Update]));
            holding.extend([(3, Commit), (1, Latest)]);
        }
        if matches!(subject, Subject::Permits | Subject::All) {
            asking.extend([(8, Acquire(1)), (dice.one_of(&[0, 2, 6]), Acquire(2.min(permits)))]);
            holding.push((dice.one_of(&[0, 1]), Commit));
            parts.extend([Part::Queue, Part::Permits]);
            if is_brief {
                asking.extend(swarm(dice, &[AcquireBriefly(1), AcquireBriefly(2), TryAcquire(1), TryAcquire(2)]));
            }
        }
        holding.push((dice.one_of(&[3, 6, 12]), Release));
        holding.extend([(dice.one_of(&[0, 3, 8]), Drop), (dice.one_of(&[0, 6, 20]), Run)]);
        let trouble = if troubles.is_empty() { 0 } else { dice.one_of(&[1, 3, 6]) };
        let kinds = [(dice.one_of(&[4, 6, 9]), Kind::Asks), (6, Kind::Holds), (trouble, Kind::Troubles)];
        let (settles, polls) = dice.one_of(&[(100, 0), (70, 15), (40, 30), (12, 18)]);
        Style { crew, asking, holding, troubles, kinds, settles, polls, parts }
    }

    fn after(&self, dice: &mut Dice) -> After {
        match dice.below(100) {
            chance if chance < self.settles => After::Settles,
            chance if chance < self.settles + self.polls => After::Polls,
            _ => After::Nothing,
        }
    }

    fn actor(&self, dice: &mut Dice) -> usize {
        dice.below(self.crew)
    }

    fn act(&self, dice: &mut Dice) -> Action {
        if dice.chance(50) { dice.weighed(&self.asking) } else { dice.weighed(&self.holding) }
    }

    /// Adds the next step, or several steps that belong together.
    fn next(&self, dice: &mut Dice, steps: &mut Vec<Step>) {
        let (actor, after) = (self.actor(dice), self.after(dice));
        match dice.weighed(&self.kinds) {
            Kind::Asks => steps.push(Step(actor, dice.weighed(&self.asking), after)),
            Kind::Holds => steps.push(Step(actor, dice.weighed(&self.holding), after)),
            Kind::Troubles => {
                let trouble = dice.one_of(&self.troubles);
                self.trouble(dice, trouble, actor, steps);
            }
        }
    }

    fn trouble(&self, dice: &mut Dice, trouble: Trouble, actor: usize, steps: &mut Vec<Step>) {
        use Action::*;
        let after = self.after(dice);
        let (act, then, other) = (self.act(dice), self.act(dice), self.actor(dice));
        let mut add = |actor, action, after| steps.push(Step(actor, action, after));
        match trouble {
            Trouble::Losing => {
                let loses = dice.one_of(&[LoseReply, LoseRequest]);
                add(actor, loses, After::Nothing);
                add(actor, act, after);
                if dice.chance(25) {
                    add(actor, Drop, self.after(dice));
                }
            }
            Trouble::Stalling => self.stall(dice, actor, steps),
            Trouble::Forging => self.forge(dice, actor, steps),
            Trouble::Twice => self.twice(dice, actor, steps),
            Trouble::Sleeping => self.sleep(dice, actor, steps),
            Trouble::Cutting => {
                add(actor, Cut(dice.below(4)), after);
                if dice.chance(70) {
                    add(actor, act, self.after(dice));
                    add(other, then, self.after(dice));
                }
                if dice.chance(30) {
                    add(actor, Wait, self.after(dice));
                }
                if dice.chance(80) {
                    add(actor, Heal, self.after(dice));
                }
            }
            Trouble::Expiring => add(actor, Expire, after),
            Trouble::Lagging => {
                add(actor, Lag, After::Nothing);
                add(other, act, self.after(dice));
                add(actor, then, after);
                if dice.chance(60) {
                    add(actor, CatchUp, self.after(dice));
                }
            }
            Trouble::Removing => {
                let part = dice.one_of(&self.parts);
                let what = dice.weighed(&[(5, Remove(part)), (2, Clear(part)), (1, Reap)]);
                add(dice.below(ACTORS), what, after);
            }
            Trouble::Silence => {
                let part = dice.one_of(&self.parts);
                add(actor, dice.one_of(&[Forget, Freeze(part)]), after);
            }
            Trouble::Reopening => add(actor, Reopen, after),
            Trouble::Forgetting => {
                let forgets = dice.one_of(&[BackUp, Restore]);
                add(actor, forgets, after);
            }
            Trouble::Waiting => {
                if dice.chance(50) {
                    (0..self.crew).for_each(|all| add(all, Drop, After::Settles));
                }
                add(actor, Wait, after);
            }
            Trouble::Brief => add(actor, dice.weighed(&self.asking), after),
            Trouble::Number => add(actor, SetPermits(1 + dice.below(NUMBER as usize + 1) as u32), after),
        }
    }

    /// Adds actors that begin work and are not polled while their replies arrive and other actors act.
    fn sleep(&self, dice: &mut Dice, actor: usize, steps: &mut Vec<Step>) {
        use Action::*;
        let sleepers: Vec<_> = (actor..actor + 1 + dice.below(ACTORS - 1)).map(|i| i % ACTORS).collect();
        let mut add = |actor, action, after| steps.push(Step(actor, action, after));
        add(actor, Stall, After::Nothing);
        for sleeper in &sleepers {
            add(*sleeper, dice.weighed(&self.asking), After::Nothing);
            add(*sleeper, Run, After::Nothing);
        }
        for _ in 0..dice.below(4) {
            add(actor, dice.one_of(&[CarryOut, Deliver]), After::Nothing);
        }
        sleepers.iter().for_each(|sleeper| add(*sleeper, Sleep, After::Nothing));
        add(actor, Flow, self.after(dice));
        for _ in 0..1 + dice.below(3) {
            add(dice.below(ACTORS), self.act(dice), self.after(dice));
        }
        if dice.chance(80) {
            sleepers.iter().for_each(|sleeper| add(*sleeper, Awake, After::Nothing));
        }
    }

    /// Adds a stranger's write to a node. The write looks like a hand-off. The contender behind the node later gets the
    /// reply that shows the forgery, or that reply is lost.
    fn forge(&self, dice: &mut Dice, actor: usize, steps: &mut Vec<Step>) {
        use Action::*;
        let mut add = |actor, action, after| steps.push(Step(actor, action, after));
        if dice.chance(50) {
            add(self.actor(dice), dice.weighed(&self.asking), After::Settles);
            add(actor, dice.weighed(&self.asking), After::Settles);
        }
        if dice.chance(50) {
            add(actor, dice.one_of(&[LoseReply, LoseRequest, Lag, Stall]), After::Nothing);
        }
        let hushes = dice.chance(50);
        let after = if hushes { After::Nothing } else { self.after(dice) };
        add(dice.below(ACTORS), Forge(dice.one_of(&self.parts)), after);
        if hushes {
            add(actor, Hush, After::Nothing);
            add(actor, Run, self.after(dice));
        }
        if hushes && dice.chance(50) {
            add(actor, Cut(0), After::Nothing);
            add(actor, Heal, self.after(dice));
        }
        for _ in 0..dice.below(4) {
            let who = if dice.chance(50) { actor } else { self.actor(dice) };
            add(who, dice.weighed(&self.holding), self.after(dice));
        }
        add(actor, CatchUp, self.after(dice));
        add(actor, Flow, self.after(dice));
    }

    /// Adds two faults. The second begins before the first is repaired.
    fn twice(&self, dice: &mut Dice, actor: usize, steps: &mut Vec<Step>) {
        use Action::*;
        let (carried_out, part) = (dice.below(4), dice.one_of(&self.parts));
        let mut add = |actor, action, after| steps.push(Step(actor, action, after));
        if dice.chance(50) {
            add(actor, Lag, After::Nothing);
        }
        add(actor, Stall, After::Nothing);
        add(actor, dice.one_of(&[LoseReply, LoseReply, LoseRequest]), After::Nothing);
        add(actor, if dice.chance(60) { dice.weighed(&self.asking) } else { self.act(dice) }, After::Nothing);
        add(actor, Run, After::Nothing);
        for _ in 0..dice.below(3) {
            add(actor, Deliver, dice.one_of(&[After::Nothing, After::Polls]));
        }
        let faults = [LoseReply, LoseRequest, Lag, Hush, Cut(carried_out), Expire, Forget, Remove(part), Drop, Drop];
        add(actor, dice.one_of(&faults), After::Nothing);
        for _ in 0..dice.below(3) {
            add(actor, dice.one_of(&[Deliver, Run, Drop]), After::Nothing);
        }
        if dice.chance(50) {
            add(self.actor(dice), self.act(dice), self.after(dice));
        }
        for repair in [Heal, Flow, CatchUp] {
            if dice.chance(80) {
                add(actor, repair, self.after(dice));
            }
        }
    }

    /// Adds requests of one actor that are held up while others act.
    fn stall(&self, dice: &mut Dice, actor: usize, steps: &mut Vec<Step>) {
        use Action::*;
        let mut add = |actor, action, after| steps.push(Step(actor, action, after));
        add(actor, Stall, After::Nothing);
        let act = if dice.chance(60) { dice.weighed(&self.asking) } else { self.act(dice) };
        add(actor, act, After::Nothing);
        add(actor, Run, After::Nothing);
        for _ in 0..dice.below(4) {
            let (other, act) = (self.actor(dice), self.act(dice));
            let act = dice.weighed(&[(5, act), (3, Deliver), (2, CarryOut), (1, Run)]);
            let who = if matches!(act, Deliver | CarryOut) { actor } else { other };
            add(who, act, self.after(dice));
        }
        for _ in 0..dice.below(5) {
            add(actor, Deliver, dice.one_of(&[After::Nothing, After::Nothing, After::Polls]));
            if dice.chance(25) {
                add(self.actor(dice), self.act(dice), self.after(dice));
            }
        }
        let carried_out = dice.below(4);
        match dice.weighed(&[(6, Flow), (2, Cut(carried_out)), (1, Run)]) {
            Cut(carried_out) => {
                add(actor, Cut(carried_out), self.after(dice));
                add(actor, Heal, self.after(dice));
                add(actor, Flow, self.after(dice));
            }
            last => add(actor, last, self.after(dice)),
        }
    }
}
