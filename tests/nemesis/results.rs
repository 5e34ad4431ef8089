//! The results of the rounds: the lines of `docs/nemesis.jsonl`, and the table in `docs/choosing.md`.

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

/// For each library: the call that asks whether the lock is held, the first signal of trouble, and the signal of a
/// loss.
const CALLS: [&str; 3] = [
    "`is_held()`, `changes()`, `lost()`",
    "`isAcquiredInThisProcess()`, `SUSPENDED`, `LOST`",
    "`is_acquired`, `SUSPENDED`, `LOST`",
];

/// The longest time in milliseconds for which our lock may still be reported as held after another grant. After an
/// operator's deletion, the servers notify both contenders at the same time. After a pause of the process, a signal
/// first has to wake a task, while a direct question is immediately answered with `lost`.
const IN_THE_ACT: f64 = 200.0;

/// The results of one round. All times are milliseconds since the beginning of the fault. `None` means never during the
/// round.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) fault: String,
    pub(crate) library: String,
    pub(crate) round: usize,
    /// The number of earlier starts of this round that were void, because the holder was in trouble before the fault.
    pub(crate) void: usize,
    /// The time at which the other contender's API reported its grant.
    pub(crate) granted: Option<f64>,
    /// The time at which the holder's process was resumed, if it was stopped.
    pub(crate) resumed: Option<f64>,
    /// The answer to the first question after `resumed`: `held` or `lost`.
    pub(crate) first_answer: Option<String>,
    /// The time of the last question to which the holder's API answered that the lock is held.
    pub(crate) held_until: f64,
    /// The time of the first question to which the holder's API answered that the lock is not held.
    pub(crate) denied_from: Option<f64>,
    /// The time of the first signal of trouble.
    pub(crate) signal: Option<f64>,
    /// The time of the signal that the lock is lost.
    pub(crate) lost: Option<f64>,
    /// The time of the last question.
    pub(crate) end: f64,
}

impl Round {
    /// Returns for how many milliseconds after another contender's grant the holder's API still said "held". Returns
    /// `None` if it said so until the end.
    pub(crate) fn held_overlap(&self) -> Option<f64> {
        // `held_until` is the time of a question, and counts only if that question came after the grant.
        self.overlap(self.denied_from.map(|_| self.held_until))
    }

    /// As [`Round::held_overlap`], but until the first signal of trouble.
    pub(crate) fn unsignalled_overlap(&self) -> Option<f64> {
        self.overlap(self.signal)
    }

    /// As [`Round::held_overlap`], but until the signal of a loss.
    pub(crate) fn unreported_overlap(&self) -> Option<f64> {
        self.overlap(self.lost)
    }

    /// Returns whether the holder kept the lock: the other contender was not granted, and no loss was reported.
    fn is_kept(&self) -> bool {
        [self.granted, self.denied_from, self.lost] == [None; 3]
    }

    /// Returns whether the round is void: the holder's API reported trouble before the fault, as happens on a busy
    /// machine.
    pub(crate) fn is_void(&self) -> bool {
        [self.denied_from, self.signal, self.lost].into_iter().flatten().any(|time| time < 0.0)
    }

    fn overlap(&self, until: Option<f64>) -> Option<f64> {
        let Some(granted) = self.granted else { return Some(0.0) };
        // A stopped process cannot answer, so the overlap begins when it is resumed.
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

/// Checks that there are `number` rounds of each library under each fault, that each fault had an effect, and that our
/// library keeps its promises.
pub(crate) fn judge(rounds: &[Round], number: usize) {
    for (fault, library) in FAULTS.iter().flat_map(|fault| LIBRARIES.map(|library| (*fault, library))) {
        let rounds = of(rounds, fault, library);
        let numbers: Vec<usize> = rounds.iter().map(|round| round.round).collect();
        assert_eq!(numbers, (0..number).collect::<Vec<_>>(), "{library}, {fault}");
        for round in rounds {
            // If the holder can reach another server, it may keep the lock until the end of the round.
            let is_granted = round.granted.is_some_and(|granted| (0.0..round.end).contains(&granted));
            assert!(is_granted || [CUT, BREAK].contains(&fault), "the fault has no effect: {round:?}");
            assert!(!round.is_void(), "{round:?}");
            assert_eq!(round.first_answer.is_some(), fault == PAUSE, "{round:?}");
            if library == OURS {
                assert_ne!(round.first_answer.as_deref(), Some("held"), "two contenders hold at once: {round:?}");
                let asked = if fault == DELETED { IN_THE_ACT } else { 0.0 };
                let told = if fault == PAUSE { IN_THE_ACT } else { asked };
                for (overlap, most) in [
                    (round.held_overlap(), asked),
                    (round.unsignalled_overlap(), told),
                    (round.unreported_overlap(), told),
                ] {
                    assert!(
                        overlap.is_some_and(|overlap| overlap <= most),
                        "two contenders hold at once, or the signal of the loss is late: {round:?}"
                    );
                }
                let may_be_lost = round.granted.is_some() && fault != BREAK;
                assert!(
                    may_be_lost || round.is_kept(),
                    "the lock was lost without another grant, or in a short break: {round:?}"
                );
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

/// Returns the median and the maximum in seconds, as one text.
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
        // Short times are rounded up to whole milliseconds.
        short if short < 100.0 => format!("{:.3}", short.ceil() / 1000.0),
        long => format!("{:.1}", long / 1000.0),
    }
}
