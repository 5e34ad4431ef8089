//! Makes a failing schedule smaller. Smaller schedules are tried, and those that also fail are kept.

use crate::world::plan::{ACTORS, After, HANDLES, Handle, Schedule, Speech, Step};

/// Returns the smallest schedule found that still fails. Leaves out steps and simplifies the others for as long as
/// `goes_on` returns true.
pub(crate) fn shrunk(
    mut schedule: Schedule,
    fails: impl Fn(&Schedule) -> bool,
    goes_on: impl Fn() -> bool,
) -> Schedule {
    loop {
        let before = schedule.clone();
        for candidate in Candidates::of(&before) {
            if !goes_on() {
                return schedule;
            }
            let smaller = candidate.apply(&schedule);
            if smaller != schedule && fails(&smaller) {
                schedule = smaller;
            }
        }
        if schedule == before {
            return schedule;
        }
    }
}

/// One way to make a schedule smaller or simpler.
#[derive(Clone, Copy, Debug)]
enum Candidate {
    /// Leaves out steps. The fields are the index of the first of these steps, and their number.
    Without(usize, usize),
    SettlesAfter(usize),
    Plain(usize),
    WithoutValue(usize),
    OneClient(usize),
    Unused,
    Seeing,
}

struct Candidates;

impl Candidates {
    /// Returns the possible changes of a schedule, large cuts first. Among cuts of one size, the last steps are cut first, so
    /// that earlier steps keep their indices.
    fn of(schedule: &Schedule) -> Vec<Candidate> {
        let length = schedule.steps.len();
        let widths = std::iter::successors(Some(length / 2), |width| Some(width / 2)).take_while(|width| *width > 0);
        let cut = |width: usize| (0..length.div_ceil(width)).rev().map(move |i| Candidate::Without(i * width, width));
        let mut all: Vec<_> = widths.flat_map(cut).collect();
        all.extend((0..length).map(Candidate::SettlesAfter));
        all.push(Candidate::Seeing);
        all.push(Candidate::Unused);
        all.extend(
            (0..HANDLES).flat_map(|i| [Candidate::Plain(i), Candidate::WithoutValue(i), Candidate::OneClient(i)]),
        );
        all
    }
}

impl Candidate {
    fn apply(self, schedule: &Schedule) -> Schedule {
        let mut smaller = schedule.clone();
        match self {
            Candidate::Without(from, width) => {
                let end = (from + width).min(smaller.steps.len());
                if from < end {
                    smaller.steps.drain(from..end);
                }
            }
            Candidate::SettlesAfter(i) => {
                if let Some(Step(_, _, after)) = smaller.steps.get_mut(i) {
                    *after = After::Settles;
                }
            }
            Candidate::Plain(i) => {
                let handle = &mut smaller.handles[i];
                (handle.keep, handle.dialect) = (None, Speech::Native);
            }
            Candidate::WithoutValue(i) => smaller.handles[i].has_value = false,
            Candidate::OneClient(i) => smaller.handles[i].client = 0,
            Candidate::Unused => {
                let acts = |actor| smaller.steps.iter().any(|Step(who, ..)| *who == actor);
                for actor in (0..ACTORS).filter(|actor| !acts(*actor)).collect::<Vec<_>>() {
                    smaller.handle_of[actor] = 0;
                }
                for i in (0..HANDLES).filter(|i| !smaller.handle_of.contains(i)).collect::<Vec<_>>() {
                    smaller.handles[i] = Handle { client: 0, dialect: Speech::Native, keep: None, has_value: false };
                }
            }
            Candidate::Seeing => smaller.are_blind = false,
        }
        smaller
    }
}
