//! Shows the user how the wait for the lock goes. Where a status line is possible, this is one line that is redrawn in
//! place. Elsewhere nothing is printed for a second, and after that a line for each change of the place or the holders.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use zk_rwlock::queue::Member;

use crate::output::{self, duration_in_two_units, escape_controls, shorten, shorten_in_the_middle, width};
use crate::place::LockOrSemaphore;
use crate::show::{layout, table};
use crate::status_line::StatusLine;

/// The maximal width of a host or label on each level of detail, in columns. Level 0 has the most details. The line
/// leaves out the process id from level 2 on, the path from level 3, the second holder from level 4, the mode from
/// level 5, the goal of the wait from level 6, and the label on level 8.
///
/// The name of each holder ends with the time since the holder queued up. A line that is too long loses its end, and so
/// this time. So the levels leave out or shorten the other parts until the line fits, for example into 80 columns.
const LONGEST: [usize; 9] = [usize::MAX, 20, 16, 16, 11, 11, 11, 8, 8];

const SECOND: Duration = Duration::from_secs(1);

/// Shows this contender's place and the holders until `places` is closed. `places` gets this contender's place in the
/// queue whenever the place or the holders change. Dropping the future removes the status line. If no status line is
/// possible, nothing is printed in the first second. So a short wait sends no mail from cron, and prints no text
/// between the output of other programs.
pub(crate) async fn show_wait(waits_at: &LockOrSemaphore, goal: &str, mut places: watch::Receiver<usize>) {
    let mut line = StatusLine::default();
    let started = Instant::now();
    let (mut last, mut reported): (Option<WaitState>, Option<WaitState>) = (None, None);
    loop {
        tokio::select! {
            change = places.changed() => {
                if change.is_err() {
                    return;
                }
                let place = *places.borrow_and_update();
                let holders = waits_at.queue().await.map(|queue| queue.holders().cloned().collect());
                let seen = WaitState { place, holders: holders.unwrap_or_default() };
                last = Some(seen);
            }
            // The ages on the line change every second, and zklock may have moved to the foreground or the background.
            () = tokio::time::sleep(SECOND) => {}
        }
        let Some(seen) = &last else { continue };
        if StatusLine::can_be_drawn() {
            let waited = Some(started.elapsed());
            line.draw((0..LONGEST.len()).map(|level| seen.line(waits_at.path(), goal, waited, level)));
        } else if started.elapsed() >= SECOND
            && reported.as_ref().map(WaitState::reported_part) != Some(seen.reported_part())
        {
            output::print_message_within(Duration::ZERO, &seen.line(waits_at.path(), goal, None, 0));
            reported = last.clone();
        }
    }
}

/// The state of the wait that a line shows.
#[derive(Clone, Debug)]
struct WaitState {
    /// The place in the queue, counted from 1.
    place: usize,
    holders: Vec<Member>,
}

impl WaitState {
    /// Returns the line at this level of detail, an index of [`LONGEST`].
    fn line(&self, path: &str, goal: &str, waited: Option<Duration>, level: usize) -> String {
        let waited = waited.map_or_else(String::new, |waited| format!(" {}", duration_in_two_units(waited)));
        // The goal "for a permit of" loses its "of" on levels that leave out the path.
        let goal = match level {
            0..3 => format!(" {goal} {path}"),
            3..6 => format!(" {}", goal.trim_end_matches(" of")),
            _ => String::new(),
        };
        let named_most = if level < 4 { 2 } else { 1 };
        let mut words = format!("waiting{waited}{goal}: place {}", self.place);
        for (how, keeps) in [("held", false), ("kept", true)] {
            let holders = self.holders.iter().take(named_most).filter(|holder| holder.keeps == keeps);
            let named: Vec<String> = holders.map(|holder| describe_holder(holder, level)).collect();
            if !named.is_empty() {
                words.push_str(&format!(", {how} by {}", named.join(" and ")));
            }
        }
        let more = self.holders.len().saturating_sub(named_most);
        if more > 0 {
            words.push_str(&format!(" and {more} more"));
        }
        words
    }

    /// Returns the part of the state whose change is printed as a new line.
    fn reported_part(&self) -> (usize, Vec<&str>) {
        (self.place, self.holders.iter().map(|holder| &holder.node[..]).collect())
    }
}

fn describe_holder(member: &Member, level: usize) -> String {
    let mut words = Vec::new();
    if level < 5 {
        words.push(table::mode_text(member));
    }
    words.push(host_text_within(member, LONGEST[level]));
    if let Some(pid) = member.pid.filter(|_| level < 2) {
        words.push(format!("pid {pid}"));
    }
    if let Some(label) = member.label.as_ref().filter(|_| level < 8) {
        words.push(format!("\"{}\"", shorten(&escape_controls(label), LONGEST[level])));
    }
    words.extend(table::entered_ago(member));
    words.join(" ")
}

/// Returns the host. If it is wider than `longest` columns, its domain is left out, and the rest is shortened if it is
/// still too wide.
fn host_text_within(member: &Member, longest: usize) -> String {
    let host = escape_controls(&member.host);
    match width(&host) > longest {
        true => {
            layout::without_shared_domain(&[host]).iter().map(|host| shorten_in_the_middle(host, longest)).collect()
        }
        false => host,
    }
}

#[cfg(test)]
mod tests {
    use zk_rwlock::{Memory, RwLock};

    use super::*;

    /// Returns the state of a wait behind this many holders on the host `web.example`.
    fn behind(holders: usize) -> WaitState {
        let zk = Memory::new();
        let lock = RwLock::builder(&zk, "/l").host("web.example").label("migrate").build().expect("a valid path");
        let _held: Vec<_> = (0..holders).map(|_| lock.read().blocking().expect("readers share the lock")).collect();
        let mut members = lock.queue().blocking().expect("the ensemble answers").members;
        for member in &mut members {
            (member.pid, member.since) = (Some(4711), None);
        }
        WaitState { place: holders + 1, holders: members }
    }

    #[test]
    fn the_line_drops_details_that_do_not_fit() {
        let reported = |holders, goal, level| behind(holders).line("/l", goal, Some(9 * SECOND), level);
        let whole = "waiting 9s for a permit of /l: place 2, held by READ web.example pid 4711 \"migrate\"";
        assert_eq!(reported(1, "for a permit of", 0), whole);
        assert_eq!(behind(1).line("/l", "to read", None, 0).split(':').next(), Some("waiting to read /l"));
        let little = "waiting 9s for a permit: place 2, held by READ web.example \"migrate\"";
        assert_eq!(reported(1, "for a permit of", 4), little, "without the path there is no `of`");
        assert_eq!(reported(1, "to write", 6), "waiting 9s: place 2, held by web.example \"migrate\"");
        assert_eq!(
            reported(1, "to write", LONGEST.len() - 1),
            "waiting 9s: place 2, held by web…",
            "the domain goes first"
        );
    }

    #[test]
    fn holders_that_are_not_named_are_counted() {
        let reported = |holders| behind(holders).line("/l", "to write", None, 6);
        assert!(reported(1).ends_with("\"migrate\""), "{}", reported(1));
        assert!(reported(2).ends_with("\"migrate\" and 1 more"), "{}", reported(2));
        assert!(reported(4).ends_with("\"migrate\" and 3 more"), "{}", reported(4));
    }
}
