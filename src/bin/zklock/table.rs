//! Queues as tables and as JSON; sends nothing.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use zk_rwlock::{Dialect, Member, MemberState, Queue, Survey};

use crate::cycles;
use crate::output::{shorten, tame, width};

const HEADINGS: [&str; 10] = ["PLACE", "STATE", "MODE", "HOST", "PID", "LABEL", "SINCE", "SESSION", "BEHIND", "TOKEN"];

/// A label may be 256 bytes long, but a table must stay readable.
const LABEL_SHOWN: usize = 40;

/// A line of a table, and the colour that it may have.
struct Line {
    text: String,
    colour: &'static str,
}

impl Line {
    fn painted(&self, colourful: bool) -> String {
        match colourful && !self.colour.is_empty() {
            true => format!("\x1b[{}m{}\x1b[0m", self.colour, self.text),
            false => self.text.clone(),
        }
    }
}

/// The queue as a table, or one word if it is empty.
pub(crate) fn table(queue: &Queue, colourful: bool) -> String {
    let mut text = match (free(queue), queue.members.is_empty()) {
        (Some(free), _) => format!("{}: {free}\n", queue.path),
        (None, true) => format!("{}: free\n", queue.path),
        (None, false) => String::new(),
    };
    if !queue.members.is_empty() {
        text.extend(lines(queue).iter().map(|line| line.painted(colourful) + "\n"));
    }
    text.extend(last_done(queue).map(|words| words + "\n"));
    text
}

/// The same, cut to so many columns and rows. The last row says how many members were left out.
pub(crate) fn table_within(queue: &Queue, columns: usize, rows: usize, colourful: bool) -> Vec<String> {
    let plain = |text| Line { text, colour: "" };
    let mut lines = match queue.members.is_empty() {
        true if queue.permits.is_none() => vec![plain("free".to_owned())],
        true => Vec::new(),
        false => lines(queue),
    };
    if let Some(free) = free(queue) {
        lines.insert(0, plain(free));
    }
    lines.extend(last_done(queue).map(|text| Line { text, colour: "" }));
    if lines.len() > rows {
        let shown = rows.saturating_sub(1);
        let text = format!("... and {} more", lines.len() - shown);
        lines.truncate(shown);
        lines.push(Line { text, colour: "" });
    }
    let cut = |line: Line| Line { text: shorten(&line.text, columns), ..line };
    lines.into_iter().map(|line| cut(line).painted(colourful)).collect()
}

/// How many permits are free, if it is a semaphore.
fn free(queue: &Queue) -> Option<String> {
    let (all, free) = (queue.permits?, queue.free()?);
    Some(format!("{free} of {all} permit{} free", if all == 1 { "" } else { "s" }))
}

/// What it holds or waits for.
pub(crate) fn mode(member: &Member) -> String {
    match member.permits {
        Some(1) => "PERMIT".to_owned(),
        Some(many) => format!("{many} PERMITS"),
        None => member.mode.to_string(),
    }
}

/// When a command was last done, if that is recorded.
fn last_done(queue: &Queue) -> Option<String> {
    queue.done.as_ref().map(|done| format!("last {}", tame(&done.to_string())))
}

fn lines(queue: &Queue) -> Vec<Line> {
    let rows: Vec<_> = queue.members.iter().enumerate().map(|(i, member)| row(queue, i + 1, member)).collect();
    let mut widths = HEADINGS.map(str::len);
    for row in &rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width(cell));
        }
    }
    let line = |cells: &[String; 10], colour| {
        let padded = cells.iter().zip(widths).map(|(cell, widest)| format!("{cell}{:1$}", "", widest - width(cell)));
        Line { text: padded.collect::<Vec<_>>().join("  ").trim_end().to_owned(), colour }
    };
    let headings = line(&HEADINGS.map(str::to_owned), "1");
    let members = rows.iter().zip(&queue.members).map(|(cells, member)| line(cells, colour(&member.state)));
    std::iter::once(headings).chain(members).collect()
}

/// Every queue of a survey, each under its path.
pub(crate) fn tables(survey: &Survey, prefix: &str, colourful: bool) -> String {
    let heading = |queue: &Queue| match queue.dialect {
        // Its table begins with its path.
        _ if queue.permits.is_some() => String::new(),
        Dialect::Native => format!("{}:\n", queue.path),
        other => format!("{} ({other}):\n", queue.path),
    };
    let mut parts: Vec<String> = survey.queues.iter().map(|queue| heading(queue) + &table(queue, colourful)).collect();
    if parts.is_empty() {
        parts.push(format!("{prefix}: no lock here has a holder or a waiter\n"));
    }
    parts.extend(survey.unreadable.iter().map(|path| format!("{path}: may not be listed\n")));
    for cycle in cycles::cycles(&survey.queues) {
        let waits: Vec<String> = cycle.iter().map(|wait| format!("  {wait}\n")).collect();
        parts.push(format!("in a circle, and stuck if each waits with what it holds:\n{}", waits.concat()));
    }
    parts.join("\n")
}

/// The queue as `ls --json` prints it. `zklock ls --help` says what it means, and that does not change.
pub(crate) fn json(queue: &Queue) -> Value {
    let members = queue.members.iter().enumerate().map(|(i, member)| {
        json!({
            "place": i + 1,
            "state": state(&member.state),
            "keeps": member.keeps,
            "mode": if member.permits.is_some() { "PERMIT".to_owned() } else { member.mode.to_string() },
            "permits": member.permits,
            "host": member.host,
            "pid": member.pid,
            "label": member.label,
            "since": member.since.map(|since| humantime::format_rfc3339_millis(since).to_string()),
            "session": member.session.map(session),
            "behind": place_ahead(queue, member),
            "node": member.node,
            "token": member.token,
        })
    });
    let done = queue.done.as_ref().map(|done| {
        let at = humantime::format_rfc3339_millis(done.at).to_string();
        json!({ "at": at, "host": done.host, "pid": done.pid, "label": done.label, "token": done.token })
    });
    let members: Vec<Value> = members.collect();
    let permits = queue.permits.map(|all| json!({ "all": all, "free": queue.free() }));
    let dialect = queue.dialect.to_string();
    json!({ "path": queue.path, "dialect": dialect, "done": done, "permits": permits, "members": members })
}

/// As [`json()`], for a survey.
pub(crate) fn json_of_survey(survey: &Survey, prefix: &str) -> Value {
    let locks: Vec<Value> = survey.queues.iter().map(json).collect();
    let cycles = cycles::json_of(&cycles::cycles(&survey.queues));
    json!({ "prefix": prefix, "locks": locks, "unreadable": survey.unreadable, "cycles": cycles })
}

/// How long something has lasted, in whole seconds where there are any.
pub(crate) fn age(since: SystemTime) -> String {
    // The clocks of two machines differ. A moment in the future counts as now.
    let age = SystemTime::now().duration_since(since).unwrap_or(Duration::ZERO);
    humantime::format_duration(Duration::from_secs(age.as_secs())).to_string()
}

fn row(queue: &Queue, place: usize, member: &Member) -> [String; 10] {
    let unknown = || "-".to_owned();
    let host = |member: &Member| if member.host.is_empty() { unknown() } else { tame(&member.host) };
    let behind = place_ahead(queue, member).map(|ahead| format!("{ahead} {}", host(&queue.members[ahead - 1])));
    let left = || match &member.state {
        MemberState::Waits { behind } if queue.permits.is_some() && behind == "permits" => "the holders".to_owned(),
        MemberState::Waits { .. } => "one that left".to_owned(),
        _ => unknown(),
    };
    [
        place.to_string(),
        if is_kept(member) { "keeps" } else { state(&member.state) }.to_owned(),
        mode(member),
        host(member),
        member.pid.map_or_else(unknown, |pid| pid.to_string()),
        member.label.as_deref().map_or_else(unknown, |label| shorten(&tame(label), LABEL_SHOWN)),
        member.since.map_or_else(unknown, age),
        member.session.map_or_else(unknown, session),
        behind.unwrap_or_else(left),
        member.token.map_or_else(unknown, |token| token.to_string()),
    ]
}

/// The place of this member's predecessor, unless the predecessor has left since the queue was listed.
fn place_ahead(queue: &Queue, member: &Member) -> Option<usize> {
    let MemberState::Waits { behind } = &member.state else { return None };
    queue.members.iter().position(|other| other.node == *behind).map(|at| at + 1)
}

fn session(id: i64) -> String {
    match id {
        0 => "none".to_owned(),
        id => format!("{id:#x}"),
    }
}

/// Whether it holds the lock, or is idle and gives the lock up when asked.
fn is_kept(member: &Member) -> bool {
    member.keeps && member.state == MemberState::Holds
}

fn state(state: &MemberState) -> &'static str {
    match state {
        MemberState::Holds => "holds",
        MemberState::Waits { .. } => "waits",
        _ => "stuck",
    }
}

fn colour(state: &MemberState) -> &'static str {
    match state {
        MemberState::Holds => "32",
        MemberState::Waits { .. } => "",
        _ => "31",
    }
}
