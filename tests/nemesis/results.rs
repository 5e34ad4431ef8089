//! The results of the rounds: the lines of `docs/nemesis.jsonl`, and the table in `docs/comparison.md`.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

pub(crate) const BLACK_HOLE: &str = "black hole";
pub(crate) const ANSWERS_LOST: &str = "answers lost";
pub(crate) const REQUESTS_LOST: &str = "requests lost";
pub(crate) const PAUSE: &str = "paused for 2 T";
pub(crate) const CUT: &str = "follower cut from its leader";
pub(crate) const CUT_ALONE: &str = "the same, no other server known";
pub(crate) const DELETED: &str = "node deleted";
pub(crate) const BREAK: &str = "break of 0.4 T";
pub(crate) const FAULTS: [&str; 8] = [BLACK_HOLE, ANSWERS_LOST, REQUESTS_LOST, PAUSE, CUT, CUT_ALONE, DELETED, BREAK];

pub(crate) const OURS: &str = "zk-rwlock";
pub(crate) const LIBRARIES: [&str; 3] = [OURS, "Curator", "kazoo"];

/// In each library: the question to the API, the first signal that something is wrong, and the signal of a loss.
const CALLS: [&str; 3] = [
    "`is_held()`, `changes()`, `lost()`",
    "`isAcquiredInThisProcess()`, `SUSPENDED`, `LOST`",
    "`is_acquired`, `SUSPENDED`, `LOST`",
];

/// For how many milliseconds our lock may be held together with another, by any of its calls. After an operator's
/// deletion, the servers notify both contenders at the same moment. After a pause, each signal has to wake a task
/// first; a direct question gets the answer `lost` at once.
const IN_THE_ACT: f64 = 200.0;

/// One round. All times are milliseconds from the beginning of the fault. `None` means never during the round.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) fault: String,
    pub(crate) library: String,
    pub(crate) round: usize,
    /// How often this round was started before and was void, because the holder was in trouble before the fault.
    pub(crate) void: usize,
    /// When the other contender had the lock, by its own API.
    pub(crate) granted: Option<f64>,
    /// When the holder was resumed, if it was stopped.
    pub(crate) resumed: Option<f64>,
    /// The answer to the first question after that: `held` or `lost`.
    pub(crate) first_answer: Option<String>,
    /// When the holder last answered that it holds.
    pub(crate) held_until: f64,
    /// When it first answered that it does not.
    pub(crate) denied_from: Option<f64>,
    /// The first signal that something is wrong.
    pub(crate) signal: Option<f64>,
    /// The signal that the lock is lost.
    pub(crate) lost: Option<f64>,
    /// The time of the last question.
    pub(crate) end: f64,
}

impl Round {
    /// Returns how long the holder said that it holds after another contender's grant. `None` if it did so until the
    /// end.
    pub(crate) fn held_overlap(&self) -> Option<f64> {
        // Only a question after the grant counts: the answer to an earlier one may be older.
        self.overlap(self.denied_from.map(|_| self.held_until))
    }

    /// As [`Round::held_overlap`], but until the first signal.
    pub(crate) fn unsignalled_overlap(&self) -> Option<f64> {
        self.overlap(self.signal)
    }

    /// As [`Round::held_overlap`], but until the signal of the loss.
    pub(crate) fn unreported_overlap(&self) -> Option<f64> {
        self.overlap(self.lost)
    }

    /// Returns whether the holder kept the lock: no other grant, and no report of a loss.
    fn is_kept(&self) -> bool {
        [self.granted, self.denied_from, self.lost] == [None; 3]
    }

    /// Returns whether the holder's API reported trouble before the fault. That happens on a busy machine.
    pub(crate) fn is_void(&self) -> bool {
        [self.denied_from, self.signal, self.lost].into_iter().flatten().any(|time| time < 0.0)
    }

    fn overlap(&self, until: Option<f64>) -> Option<f64> {
        let Some(granted) = self.granted else { return Some(0.0) };
        // A stopped process says nothing.
        let from = self.resumed.map_or(granted, |resumed| granted.max(resumed));
        until.map(|until| (until - from).max(0.0))
    }
}

pub(crate) fn read(lines: &str) -> Vec<Round> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

/// Returns the rounds of one library under one fault.
pub(crate) fn of<'r>(rounds: &'r [Round], fault: &str, library: &str) -> Vec<&'r Round> {
    rounds.iter().filter(|round| round.fault == fault && round.library == library).collect()
}

/// Checks that `number` rounds of each library under each fault are there, that each fault had an effect, and that our
/// library keeps its promises.
pub(crate) fn judge(rounds: &[Round], number: usize) {
    for (fault, library) in FAULTS.iter().flat_map(|fault| LIBRARIES.map(|library| (*fault, library))) {
        let rounds = of(rounds, fault, library);
        let numbers: Vec<usize> = rounds.iter().map(|round| round.round).collect();
        assert_eq!(numbers, (0..number).collect::<Vec<_>>(), "{library}, {fault}");
        for round in rounds {
            // If the holder can reach another server, the other contender may never be granted.
            let is_granted = round.granted.is_some_and(|granted| (0.0..round.end).contains(&granted));
            assert!(is_granted || [CUT, BREAK].contains(&fault), "the fault has no effect: {round:?}");
            assert!(!round.is_void(), "{round:?}");
            assert_eq!(round.first_answer.is_some(), fault == PAUSE, "{round:?}");
            if library == OURS {
                assert_ne!(round.first_answer.as_deref(), Some("held"), "two hold at once: {round:?}");
                let asked = if fault == DELETED { IN_THE_ACT } else { 0.0 };
                let told = if fault == PAUSE { IN_THE_ACT } else { asked };
                for (overlap, most) in [
                    (round.held_overlap(), asked),
                    (round.unsignalled_overlap(), told),
                    (round.unreported_overlap(), told),
                ] {
                    assert!(overlap.is_some_and(|overlap| overlap <= most), "two hold, or a signal is late: {round:?}");
                }
                let may_be_lost = round.granted.is_some() && fault != BREAK;
                assert!(may_be_lost || round.is_kept(), "lost without another grant, or in a short break: {round:?}");
            }
        }
    }
}

/// Returns the table in Markdown: a row for each fault, a column for each library.
pub(crate) fn table(rounds: &[Round]) -> String {
    let columns: Vec<String> =
        LIBRARIES.iter().zip(CALLS).map(|(library, calls)| format!("{library}: {calls}")).collect();
    let mut table = format!("| | {} |\n|---|---|---|---|\n", columns.join(" | "));
    let mut row = |name: &str, cell: &dyn Fn(&str) -> String| {
        let cells: Vec<String> = LIBRARIES.iter().map(|library| cell(library)).collect();
        writeln!(table, "| {name} | {} |", cells.join(" | ")).expect("a string accepts all text");
    };
    for fault in FAULTS.iter().filter(|fault| **fault != BREAK) {
        row(fault, &|library| {
            let rounds = of(rounds, fault, library);
            let (granted, alone): (Vec<_>, Vec<_>) = rounds.into_iter().partition(|round| round.granted.is_some());
            let (kept, lost): (Vec<_>, Vec<_>) = alone.into_iter().partition(|round| round.is_kept());
            if granted.is_empty() && lost.is_empty() {
                return "kept".to_owned();
            }
            let overlap = [Round::held_overlap, Round::unsignalled_overlap, Round::unreported_overlap]
                .map(|measure| middle_and_worst(granted.iter().map(|round| measure(round))))
                .join(", ");
            let others = [("kept", kept.len()), ("lost for nobody", lost.len())];
            let others = others.iter().filter(|(_, number)| *number > 0);
            others.fold(overlap, |cell, (what, number)| format!("{cell}; {what}: {number}"))
        });
    }
    let count = |fault: &str, library: &str, is_so: &dyn Fn(&Round) -> bool| {
        let rounds = of(rounds, fault, library);
        format!("{}/{}", rounds.iter().filter(|round| is_so(round)).count(), rounds.len())
    };
    row("wrong first answer after the pause", &|library| {
        count(PAUSE, library, &|round| round.first_answer.as_deref() == Some("held"))
    });
    row("signal in a break of 0.4 T", &|library| count(BREAK, library, &|round| round.signal.is_some()));
    row("lost in it", &|library| count(BREAK, library, &|round| round.lost.is_some() || round.denied_from.is_some()));
    table
}

/// Returns the median and the maximum, in seconds, as one word.
fn middle_and_worst(all: impl Iterator<Item = Option<f64>>) -> String {
    let mut all: Vec<f64> = all.map(|milliseconds| milliseconds.unwrap_or(f64::INFINITY)).collect();
    all.sort_by(f64::total_cmp);
    let Some(worst) = all.last() else { return "-".to_owned() };
    let middle = if all.len().is_multiple_of(2) {
        f64::midpoint(all[all.len() / 2 - 1], all[all.len() / 2])
    } else {
        all[all.len() / 2]
    };
    let (middle, worst) = (seconds(middle), seconds(*worst));
    if middle == worst { middle } else { format!("{middle}–{worst}") }
}

fn seconds(milliseconds: f64) -> String {
    match milliseconds {
        f64::INFINITY => "never".to_owned(),
        0.0 => "0".to_owned(),
        // Rounded up to whole milliseconds.
        short if short < 100.0 => format!("{:.3}", short.ceil() / 1000.0),
        long => format!("{:.1}", long / 1000.0),
    }
}
