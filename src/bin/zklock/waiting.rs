//! What people see while zklock waits: one live line on a terminal whose foreground is ours; elsewhere nothing for a
//! second, and then a plain line when something changes.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use zk_rwlock::Member;

use crate::output::{self, shorten, tame};
use crate::place::Place;
use crate::{table, terminal};

/// At most so many holders are named.
const HOLDERS_NAMED: usize = 2;

const SECOND: Duration = Duration::from_secs(1);

/// How often the queue is listed.
pub(crate) fn pace() -> Duration {
    // Each listing costs the servers an answer, and off a terminal nobody watches.
    if is_live() { SECOND } else { 2 * SECOND }
}

/// Shows the contenders in the way, for as long as this future is polled. `places` gives our place in the queue when
/// that, or the contenders in the way, have changed. Dropping the future removes the live line. What is over within a
/// second is not worth a mail from cron, nor a word on the terminal that another program has.
pub(crate) async fn show(waits_at: &Place, what: &str, mut places: watch::Receiver<usize>) {
    let mut line = Line::default();
    let started = Instant::now();
    let (mut last, mut told): (Option<Waiting>, Option<Waiting>) = (None, None);
    loop {
        tokio::select! {
            change = places.changed() => {
                if change.is_err() {
                    return;
                }
                let place = *places.borrow_and_update();
                let holders = waits_at.queue().await.map(|queue| queue.holders().cloned().collect());
                let seen = Waiting { place, holders: holders.unwrap_or_default() };
                last = Some(seen);
            }
            // For how long the holders have held changes all the time, and showing that takes no request. The foreground
            // may be ours now, or no longer.
            () = tokio::time::sleep(SECOND) => {}
        }
        let Some(seen) = &last else { continue };
        if is_live() {
            line.draw(&seen.words(waits_at.path(), what, Some(started.elapsed())));
        } else if started.elapsed() >= SECOND && told.as_ref().map(Waiting::gist) != Some(seen.gist()) {
            output::say(&seen.words(waits_at.path(), what, None));
            told = last.clone();
        }
    }
}

fn is_live() -> bool {
    output::is_screen(&io::stderr()) && terminal::is_foreground(io::stderr())
}

/// Our place in the queue.
#[derive(Clone, Debug)]
struct Waiting {
    /// Counted from 1.
    place: usize,
    holders: Vec<Member>,
}

impl Waiting {
    fn words(&self, path: &str, what: &str, waited: Option<Duration>) -> String {
        let waited = waited.map_or_else(String::new, |waited| {
            format!(" {}", humantime::format_duration(Duration::from_secs(waited.as_secs())))
        });
        let mut words = format!("waiting{waited} {what} {path}: place {}", self.place);
        for (how, keeps) in [("held", false), ("kept", true)] {
            let holders = self.holders.iter().take(HOLDERS_NAMED).filter(|holder| holder.keeps == keeps);
            let named: Vec<String> = holders.map(name).collect();
            if !named.is_empty() {
                words.push_str(&format!(", {how} by {}", named.join(" and ")));
            }
        }
        let more = self.holders.len().saturating_sub(HOLDERS_NAMED);
        if more > 0 {
            words.push_str(&format!(" and {more} more"));
        }
        words
    }

    /// The part of it whose change is worth another line.
    fn gist(&self) -> (usize, Vec<&str>) {
        (self.place, self.holders.iter().map(|holder| &holder.node[..]).collect())
    }
}

fn name(member: &Member) -> String {
    let mut name = format!("{} {}", table::mode(member), member.host);
    if let Some(pid) = member.pid {
        name.push_str(&format!(" pid {pid}"));
    }
    if let Some(label) = &member.label {
        name.push_str(&format!(" \"{}\"", tame(label)));
    }
    if let Some(since) = member.since {
        name.push_str(&format!(" for {}", table::age(since)));
    }
    name
}

/// A line on the terminal that the next text overwrites.
#[derive(Debug, Default)]
struct Line {
    is_drawn: bool,
}

impl Line {
    fn draw(&mut self, words: &str) {
        let (columns, _) = terminal::size(io::stderr());
        let line = shorten(&format!("zklock: {words}"), columns.saturating_sub(1));
        let _ = write!(io::stderr().lock(), "\r\x1b[K{line}");
        self.is_drawn = true;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // In the background, that line has gone up and another is there, such as a prompt.
        if self.is_drawn && is_live() {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}
