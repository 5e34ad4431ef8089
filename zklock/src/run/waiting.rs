//! Shows the user how the wait for the lock goes. In the foreground of a terminal this is one line that is redrawn in
//! place. Elsewhere nothing is printed for a second, and after that a line for each change.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use zk_rwlock::queue::Member;

use crate::output::{self, escape_controls, rounded, shorten, shorten_in_the_middle, width};
use crate::place::Place;
use crate::show::{layout, table};
use crate::status_line::StatusLine;

/// How many details of the wait and of the holders the line shows.
#[derive(Clone, Copy, Debug)]
struct Detail {
    /// The maximal number of holders that are named.
    holders: usize,
    /// The maximal number of columns of a host or label.
    longest: usize,
    has_what: bool,
    has_path: bool,
    has_pid: bool,
    has_mode: bool,
    has_label: bool,
}

const WHOLE: Detail = Detail {
    holders: 2,
    longest: usize::MAX,
    has_what: true,
    has_path: true,
    has_pid: true,
    has_mode: true,
    has_label: true,
};
const LITTLE: Detail = Detail { holders: 1, longest: 11, has_path: false, has_pid: false, ..WHOLE };
const LEAST: Detail = Detail { has_mode: false, has_what: false, ..LITTLE };

/// The levels of detail, from the most to the least. 80 columns have room for the host, the label, and the time since
/// the holder queued up. The user knows the path, and `zklock ls` shows the rest. The time stands at the end of the
/// line, so all other parts are shortened before the time is cut off.
const BRIEFER: [Detail; 9] = [
    WHOLE,
    Detail { longest: 20, ..WHOLE },
    Detail { longest: 16, has_pid: false, ..WHOLE },
    Detail { longest: 16, has_pid: false, has_path: false, ..WHOLE },
    LITTLE,
    Detail { has_mode: false, ..LITTLE },
    LEAST,
    Detail { longest: 8, ..LEAST },
    Detail { longest: 8, has_label: false, ..LEAST },
];

const SECOND: Duration = Duration::from_secs(1);

/// Shows the holders for as long as this future is polled. `places` has this contender's place in the queue, and
/// changes when the place or the holders change. Dropping the future removes the live line. Without a live line, a wait
/// of less than a second prints nothing: cron would send a mail about it, or the text would appear between the output
/// of other programs.
pub(crate) async fn show(waits_at: &Place, what: &str, mut places: watch::Receiver<usize>) {
    let mut line = StatusLine::default();
    let started = Instant::now();
    let (mut last, mut reported): (Option<WaitLog>, Option<WaitLog>) = (None, None);
    loop {
        tokio::select! {
            change = places.changed() => {
                if change.is_err() {
                    return;
                }
                let place = *places.borrow_and_update();
                let holders = waits_at.queue().await.map(|queue| queue.holders().cloned().collect());
                let seen = WaitLog { place, holders: holders.unwrap_or_default() };
                last = Some(seen);
            }
            // The ages on the line change every second, and zklock may have moved to the foreground or the background.
            () = tokio::time::sleep(SECOND) => {}
        }
        let Some(seen) = &last else { continue };
        if StatusLine::is_possible() {
            let waited = Some(started.elapsed());
            line.draw(BRIEFER.map(|detail| seen.words(waits_at.path(), what, waited, detail)));
        } else if started.elapsed() >= SECOND && reported.as_ref().map(WaitLog::gist) != Some(seen.gist()) {
            output::say_within(Duration::ZERO, &seen.words(waits_at.path(), what, None, WHOLE));
            reported = last.clone();
        }
    }
}

/// The state of the wait that a line shows.
#[derive(Clone, Debug)]
struct WaitLog {
    /// The place in the queue, counted from 1.
    place: usize,
    holders: Vec<Member>,
}

impl WaitLog {
    fn words(&self, path: &str, what: &str, waited: Option<Duration>, detail: Detail) -> String {
        let waited = waited.map_or_else(String::new, |waited| format!(" {}", rounded(waited)));
        let path = if detail.has_path { format!(" {path}") } else { String::new() };
        // "for a permit of" loses its "of" if the path does not follow.
        let what = match detail {
            Detail { has_what: false, .. } => String::new(),
            Detail { has_path: false, .. } => format!(" {}", what.trim_end_matches(" of")),
            _ => format!(" {what}"),
        };
        let mut words = format!("waiting{waited}{what}{path}: place {}", self.place);
        for (how, keeps) in [("held", false), ("kept", true)] {
            let holders = self.holders.iter().take(detail.holders).filter(|holder| holder.keeps == keeps);
            let named: Vec<String> = holders.map(|holder| name(holder, detail)).collect();
            if !named.is_empty() {
                words.push_str(&format!(", {how} by {}", named.join(" and ")));
            }
        }
        let more = self.holders.len().saturating_sub(detail.holders);
        if more > 0 {
            words.push_str(&format!(" and {more} more"));
        }
        words
    }

    /// Returns the part of the state whose change is printed as a new line.
    fn gist(&self) -> (usize, Vec<&str>) {
        (self.place, self.holders.iter().map(|holder| &holder.node[..]).collect())
    }
}

fn name(member: &Member, detail: Detail) -> String {
    let mut words = Vec::new();
    if detail.has_mode {
        words.push(table::mode(member));
    }
    words.push(host(member, detail.longest));
    if let Some(pid) = member.pid.filter(|_| detail.has_pid) {
        words.push(format!("pid {pid}"));
    }
    if let Some(label) = member.label.as_ref().filter(|_| detail.has_label) {
        words.push(format!("\"{}\"", shorten(&escape_controls(label), detail.longest)));
    }
    words.extend(table::entered(member));
    words.join(" ")
}

/// Returns the host, without its domain and shortened if it is wider than `longest`.
fn host(member: &Member, longest: usize) -> String {
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

    /// Returns the state of a wait behind so many holders, on a host with a long name.
    fn behind(holders: usize) -> WaitLog {
        let zk = Memory::new();
        let lock = RwLock::builder(&zk, "/l").host("web.example").label("migrate").build().expect("a valid path");
        let _held: Vec<_> = (0..holders).map(|_| lock.read().blocking().expect("readers share the lock")).collect();
        let mut members = lock.queue().blocking().expect("the ensemble answers").members;
        for member in &mut members {
            (member.pid, member.since) = (Some(4711), None);
        }
        WaitLog { place: holders + 1, holders: members }
    }

    #[test]
    fn the_line_drops_details_that_do_not_fit() {
        let reported = |holders, what, detail| behind(holders).words("/l", what, Some(9 * SECOND), detail);
        let whole = "waiting 9s for a permit of /l: place 2, held by READ web.example pid 4711 \"migrate\"";
        assert_eq!(reported(1, "for a permit of", WHOLE), whole);
        assert_eq!(behind(1).words("/l", "to read", None, WHOLE).split(':').next(), Some("waiting to read /l"));
        let little = "waiting 9s for a permit: place 2, held by READ web.example \"migrate\"";
        assert_eq!(reported(1, "for a permit of", LITTLE), little, "without the path there is no `of`");
        assert_eq!(reported(1, "to write", LEAST), "waiting 9s: place 2, held by web.example \"migrate\"");
        assert_eq!(
            reported(1, "to write", *BRIEFER.last().expect("BRIEFER has levels")),
            "waiting 9s: place 2, held by web…",
            "the domain goes first"
        );
    }

    #[test]
    fn holders_that_are_not_named_are_counted() {
        let reported = |holders| behind(holders).words("/l", "to write", None, LEAST);
        assert!(reported(1).ends_with("\"migrate\""), "{}", reported(1));
        assert!(reported(2).ends_with("\"migrate\" and 1 more"), "{}", reported(2));
        assert!(reported(4).ends_with("\"migrate\" and 3 more"), "{}", reported(4));
    }
}
