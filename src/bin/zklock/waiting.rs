//! What people see while we wait: on a terminal one live line, elsewhere a plain line when something changes.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{Member, Mode, Queue, RwLock, ZooKeeper};

use crate::output::{self, shorten, tame};
use crate::{table, terminal};

/// At most so many holders are named.
const HOLDERS_NAMED: usize = 2;

/// Shows who is in the way, for as long as this future is polled. Dropped, it takes the live line away.
pub(crate) async fn show(zk: &ZooKeeper, lock: &RwLock, mode: Mode) {
    let mut line = Line { is_live: io::stderr().is_terminal(), is_drawn: false };
    let started = Instant::now();
    let mut last = None;
    loop {
        let asked = Instant::now();
        if let Some(place) = look(zk, lock).await {
            if line.is_live {
                line.draw(&place.words(lock.path(), mode, Some(started.elapsed())));
            } else if last.as_ref() != Some(&place.gist()) {
                last = Some(place.gist());
                output::say(&place.words(lock.path(), mode, None));
            }
        }
        // A long queue costs a read for each of its members, so those who stand in it look less often.
        let pace = if line.is_live { Duration::from_secs(1) } else { Duration::from_secs(2) };
        tokio::time::sleep(pace + asked.elapsed() * 20).await;
    }
}

/// Where we stand.
#[derive(Debug)]
struct Place {
    /// Ours, counted from 1.
    place: usize,
    /// How many are in the queue.
    length: usize,
    holders: Vec<Member>,
}

/// Where we stand now, if that can be seen. The one thing here that asks the ensemble.
async fn look(zk: &ZooKeeper, lock: &RwLock) -> Option<Place> {
    let session = zk.berth(0).await.ok()?.session().id();
    let queue = lock.queue().await.ok()?;
    // We stand in it once.
    let ours = queue.members.iter().position(|member| member.session == Some(session))?;
    Some(Place { place: ours + 1, length: queue.members.len(), holders: holders(&queue) })
}

fn holders(queue: &Queue) -> Vec<Member> {
    queue.holders().cloned().collect()
}

impl Place {
    fn words(&self, path: &str, mode: Mode, waited: Option<Duration>) -> String {
        let what = if mode == Mode::Read { "read" } else { "write" };
        let waited = waited.map_or_else(String::new, |waited| {
            format!(" {}", humantime::format_duration(Duration::from_secs(waited.as_secs())))
        });
        let mut words = format!("waiting{waited} to {what} {path}: place {} of {}", self.place, self.length);
        let named: Vec<String> = self.holders.iter().take(HOLDERS_NAMED).map(name).collect();
        if !named.is_empty() {
            words.push_str(&format!(", held by {}", named.join(" and ")));
        }
        let more = self.holders.len().saturating_sub(HOLDERS_NAMED);
        if more > 0 {
            words.push_str(&format!(" and {more} more"));
        }
        words
    }

    /// What of it is worth another line when it changes.
    fn gist(&self) -> (usize, Vec<String>) {
        (self.place, self.holders.iter().map(|holder| holder.node.clone()).collect())
    }
}

fn name(member: &Member) -> String {
    let mut name = format!("{} {}", member.mode, member.host);
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

/// A line that is written over.
#[derive(Debug)]
struct Line {
    is_live: bool,
    is_drawn: bool,
}

impl Line {
    fn draw(&mut self, words: &str) {
        let line = shorten(&format!("zklock: {words}"), terminal::columns().saturating_sub(1));
        let _ = write!(io::stderr().lock(), "\r\x1b[K{line}");
        self.is_drawn = true;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.is_drawn {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}
