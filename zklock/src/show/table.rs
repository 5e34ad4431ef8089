//! Renders queues as tables and as JSON.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use zk_rwlock::queue::{Member, MemberState};
use zk_rwlock::{Dialect, Queue, Survey};

use crate::output::{duration_in_two_units, escape_controls, shorten, wrap_line};
use crate::show::cycles;
use crate::show::layout::{self, Column, Cut};

/// The width, in columns, to which a label is shortened. A label may be 256 bytes long.
const LABEL_SHOWN: usize = 40;

/// Returns the queue as a table. If a lock is free, a line says so instead. The table of a semaphore begins with the
/// number of free permits. A line about the record follows, if there is one. If `columns` is given, a line is wider
/// only if a single word is wider, such as a long path.
pub(crate) fn queue_table(queue: &Queue, columns: Option<usize>, colourful: bool) -> String {
    let first = headline(queue).map(|words| wrap_line(&format!("{}: {words}", queue.path), columns));
    let members = member_lines(queue, columns, colourful);
    let last = last_done_text(queue).into_iter().map(|line| wrap_line(&line, columns));
    first.into_iter().chain(members).chain(last).map(|line| line + "\n").collect()
}

/// Returns the table in at most `columns` columns and `rows` rows, without the path. Rows that do not fit are left out
/// as in [`layout::limit_rows`].
pub(crate) fn table_within(queue: &Queue, columns: usize, rows: usize, colourful: bool) -> Vec<String> {
    let plain = |text: String| shorten(&text, columns);
    let mut table: Vec<String> = headline(queue).into_iter().map(plain).collect();
    table.extend(member_lines(queue, Some(columns), colourful));
    table.extend(last_done_text(queue).map(plain));
    layout::limit_rows(rows, table, columns)
}

/// Returns the text before the members: how many permits are free, or that a lock is free.
fn headline(queue: &Queue) -> Option<String> {
    free_permits_text(queue).or_else(|| queue.members.is_empty().then(|| "free".to_owned()))
}

/// Returns the text about how many permits of a semaphore are free, or that their number is invalid. `None` for a lock.
pub(crate) fn free_permits_text(queue: &Queue) -> Option<String> {
    let (all, free) = (queue.permits?, queue.free()?);
    if all == 0 {
        return Some("the number of permits is invalid".to_owned());
    }
    Some(format!("{free} of {all} permit{} free", if all == 1 { "" } else { "s" }))
}

/// Returns the mode, or the number of permits, which the member holds or waits for.
pub(crate) fn mode_text(member: &Member) -> String {
    match member.permits {
        Some(1) => "PERMIT".to_owned(),
        Some(many) => format!("{many} PERMITS"),
        None => member.mode.to_string(),
    }
}

/// Returns the text about the record of the last success under `--once-in`, if there is a record.
fn last_done_text(queue: &Queue) -> Option<String> {
    queue.done.as_ref().map(|done| format!("last {}", escape_controls(&done.to_string())))
}

/// Returns a line for the headings and one for each member. Without members there is no line.
fn member_lines(queue: &Queue, most: Option<usize>, colourful: bool) -> Vec<String> {
    if queue.members.is_empty() {
        return Vec::new();
    }
    let colours = std::iter::once("1").chain(queue.members.iter().map(|member| colour_code(&member.state)));
    let painted = |(text, colour): (String, &str)| match colourful && !colour.is_empty() {
        true => format!("\x1b[{colour}m{text}\x1b[0m"),
        false => text,
    };
    layout::table_lines(queue_columns(queue), most).into_iter().zip(colours).map(painted).collect()
}

/// Returns the tables of all queues of a survey, each under its path, or a line that says that no lock was found. Lines
/// about unreadable paths and about circles of waiting processes follow.
pub(crate) fn survey_tables(survey: &Survey, prefix: &str, columns: Option<usize>, colourful: bool) -> String {
    let line = |text: String| wrap_line(&text, columns) + "\n";
    let heading = |queue: &Queue| match queue.dialect {
        // The table of a semaphore or of an empty queue begins with the path itself.
        _ if queue.permits.is_some() || queue.members.is_empty() => String::new(),
        Dialect::Native => line(format!("{}:", queue.path)),
        other => line(format!("{} ({other}):", queue.path)),
    };
    let part = |queue: &Queue| heading(queue) + &queue_table(queue, columns, colourful);
    let mut parts: Vec<String> = survey.queues.iter().map(part).collect();
    if parts.is_empty() && survey.unreadable.is_empty() {
        parts.push(line(format!("{prefix}: no lock at or below this path has a holder or a waiter")));
    } else if parts.is_empty() {
        parts.push(line(format!("{prefix}: no lock that this client may look for has a holder or a waiter")));
    }
    let hidden = |path: &String| format!("{path}: may not be listed, so locks at or below this path are not shown");
    parts.extend(survey.unreadable.iter().map(|path| line(hidden(path))));
    for cycle in cycles::cycles(&survey.queues) {
        let heading = line("waiting for each other in a circle, and stuck if each keeps what it holds:".to_owned());
        parts.push(heading + &cycle.iter().map(|wait| line(format!("  {wait}"))).collect::<String>());
    }
    parts.join("\n")
}

/// Returns the queue as `ls --json` prints it. `zklock ls --help` documents the fields, which must not change.
pub(crate) fn queue_json(queue: &Queue) -> Value {
    let members = queue.members.iter().zip(predecessor_places(queue)).zip(1..).map(|((member, ahead), place)| {
        json!({
            "place": place,
            "state": state_text(&member.state),
            "keeps": member.keeps,
            "candidate": member.is_candidate,
            "mode": if member.permits.is_some() { "PERMIT".to_owned() } else { member.mode.to_string() },
            "permits": member.permits,
            "host": member.host,
            "pid": member.pid,
            "label": member.label,
            "since": member.since.map(|since| humantime::format_rfc3339_millis(since).to_string()),
            "session": member.session.map(session_text),
            "behind": ahead,
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

/// Returns a survey as `ls --tree --json` prints it.
pub(crate) fn survey_json(survey: &Survey, prefix: &str) -> Value {
    let locks: Vec<Value> = survey.queues.iter().map(queue_json).collect();
    let cycles = cycles::cycles_json(&cycles::cycles(&survey.queues));
    json!({ "prefix": prefix, "locks": locks, "unreadable": survey.unreadable, "cycles": cycles })
}

/// Returns a text that says how long ago the member queued up, as in `queued 3days 4h ago`. For a holder of permits,
/// the text says how long ago they were granted. For a lock, the time of the grant is not known. `None` if no time is
/// known at all.
pub(crate) fn entered_ago(member: &Member) -> Option<String> {
    let is_permit = member.permits.is_some() && member.state == MemberState::Holds;
    let how = if is_permit { "granted" } else { "queued" };
    Some(format!("{how} {} ago", duration_in_two_units(age(member.since?))))
}

/// Returns how long ago `since` was. The clocks of two machines differ, so a time in the future counts as now.
pub(crate) fn age(since: SystemTime) -> Duration {
    SystemTime::now().duration_since(since).unwrap_or_default()
}

/// Returns the columns of the table, with a row for each member.
fn queue_columns(queue: &Queue) -> Vec<Column> {
    let unknown = || "-".to_owned();
    let column =
        |heading, cell: &dyn Fn(&Member) -> String| Column::new(heading, queue.members.iter().map(cell).collect());
    let hosts: Vec<String> = queue.members.iter().map(host_text).collect();
    let label = |label: &str| shorten(&escape_controls(label), LABEL_SHOWN);
    let (behind, brief) = predecessor_texts(queue).into_iter().map(<(String, String)>::from).unzip();
    vec![
        Column::new("PLACE", (1..=queue.members.len()).map(|place| place.to_string()).collect()),
        column("STATE", &|member| shown_state(member).to_owned()),
        column("MODE", &mode_text),
        Column::new("HOST", hosts.clone())
            .with_cut(Cut::Middle)
            .with_brief_cells(layout::without_shared_domain(&hosts)),
        column("PID", &|member| member.pid.map_or_else(unknown, |pid| pid.to_string())),
        column("LABEL", &|member| member.label.as_deref().map_or_else(unknown, label)).with_cut(Cut::End),
        column("QUEUED", &|member| {
            entered_ago(member).map_or_else(unknown, |words| words.trim_start_matches("queued ").to_owned())
        }),
        column("SESSION", &|member| member.session.map_or_else(unknown, session_text)),
        Column::new("BEHIND", behind).with_brief_cells(brief),
        column("TOKEN", &|member| member.token.map_or_else(unknown, |token| token.to_string())),
    ]
}

fn host_text(member: &Member) -> String {
    if member.host.is_empty() { "-".to_owned() } else { escape_controls(&member.host) }
}

/// Returns for each member what it waits for. This is the place and host of its predecessor, the holders of permits, or
/// a predecessor that has left. A member that does not wait gets `-`. The second text for each member is shorter, for
/// narrow terminals.
fn predecessor_texts(queue: &Queue) -> Vec<[String; 2]> {
    let words = |(member, ahead): (&Member, Option<usize>)| match (ahead, &member.state) {
        (Some(ahead), _) => [format!("{ahead} {}", host_text(&queue.members[ahead - 1])), ahead.to_string()],
        (None, MemberState::Waits { behind }) if behind == "permits" && queue.permits.is_some() => {
            ["the holders", "holders"].map(str::to_owned)
        }
        (None, MemberState::Waits { .. }) => ["one that left", "left"].map(str::to_owned),
        (None, _) => ["-", "-"].map(str::to_owned),
    };
    queue.members.iter().zip(predecessor_places(queue)).map(words).collect()
}

/// Returns the place of each member's predecessor. `None` if the member does not wait, if it waits for permits, or if
/// the predecessor has left since the queue was listed.
fn predecessor_places(queue: &Queue) -> Vec<Option<usize>> {
    let places: HashMap<&str, usize> = queue.members.iter().map(|member| &member.node[..]).zip(1..).collect();
    let ahead = |member: &Member| match &member.state {
        MemberState::Waits { behind } => places.get(&behind[..]).copied(),
        _ => None,
    };
    queue.members.iter().map(ahead).collect()
}

fn session_text(id: i64) -> String {
    match id {
        0 => "none".to_owned(),
        id => format!("{id:#x}"),
    }
}

fn shown_state(member: &Member) -> &'static str {
    match member.state {
        MemberState::Holds if member.is_candidate => "leads",
        // The member holds a lock that its process may keep between uses.
        MemberState::Holds if member.keeps => "keeps",
        _ => state_text(&member.state),
    }
}

fn state_text(state: &MemberState) -> &'static str {
    match state {
        MemberState::Holds => "holds",
        MemberState::Waits { .. } => "waits",
        _ => "stuck",
    }
}

/// Returns the colour of a member's line as an SGR code, or an empty text for the default colour.
fn colour_code(state: &MemberState) -> &'static str {
    match state {
        MemberState::Holds => "32",
        MemberState::Waits { .. } => "",
        _ => "31",
    }
}

#[cfg(test)]
mod tests {
    use std::future::IntoFuture;

    use tokio_test::block_on;
    use zk_rwlock::{Memory, RwLock};

    use super::*;

    /// Returns a queue of one holder and two waiters.
    fn three() -> Queue {
        let zk = Memory::new();
        let lock = RwLock::builder(&zk, "/l").host("web").build().expect("a valid path");
        let _held = lock.write().blocking().expect("the lock is free");
        let _waits = [lock.write(), lock.write()].map(|next| {
            let mut next = tokio_test::task::spawn(next.into_future());
            assert!(next.poll().is_pending());
            next
        });
        let mut queue = block_on(lock.queue().into_future()).expect("the ensemble answers");
        // The times are removed, because a table shows how long ago they were, which differs from one rendering to the
        // next.
        queue.members.iter_mut().for_each(|member| member.since = None);
        queue
    }

    #[test]
    fn a_waiter_names_the_place_of_its_predecessor() {
        let mut queue = three();
        assert_eq!(predecessor_texts(&queue), [["-", "-"], ["1 web", "1"], ["2 web", "2"]]);
        let gone = || MemberState::Waits { behind: "web~1-WRITE-0000000000".to_owned() };
        let for_permits = || MemberState::Waits { behind: "permits".to_owned() };
        queue.members[2].state = gone();
        assert_eq!(predecessor_texts(&queue)[2], ["one that left", "left"]);
        queue.members[2].state = for_permits();
        assert_eq!(predecessor_texts(&queue)[2], ["one that left", "left"], "a lock has no permits");
        queue.permits = Some(4);
        assert_eq!(predecessor_texts(&queue)[2], ["the holders", "holders"]);
        queue.members[2].state = gone();
        assert_eq!(predecessor_texts(&queue)[2], ["one that left", "left"]);
    }

    #[test]
    fn rows_that_do_not_fit_are_counted() {
        let queue = three();
        let within = |rows| table_within(&queue, 200, rows, false);
        assert_eq!(within(4), queue_table(&queue, None, false).lines().collect::<Vec<_>>());
        assert_eq!(within(3).len(), 3);
        assert_eq!(within(3).last().map(String::as_str), Some("... and 2 more"));
        assert_eq!(within(0), ["... and 4 more"]);
    }

    #[test]
    fn only_holders_are_green() {
        let lines = table_within(&three(), 200, 10, true);
        let green: Vec<_> =
            lines.iter().map(|line| line.starts_with("\x1b[32m") && line.ends_with("\x1b[0m")).collect();
        assert_eq!(green, [false, true, false, false]);
        assert!(!lines[2].contains('\x1b'), "{lines:?}");
    }
}
