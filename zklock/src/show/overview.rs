//! Shows several queues on one screen: a row for each, those with waiters first, and the totals.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use zk_rwlock::Queue;
use zk_rwlock::queue::Member;

use crate::output::{duration_in_two_units, escape_controls, shorten};
use crate::show::layout::{self, Column, Cut};
use crate::show::table;

/// How many of the last reads of a queue a sparkline shows. For each read it shows the number of waiters.
const LOOKS: usize = 20;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// What earlier reads of the queues have shown.
#[derive(Default)]
pub(crate) struct QueueHistory {
    /// When a holder was first seen to hold, by the lock's path and the holder's node.
    held_since: HashMap<(String, String), Instant>,
    /// The numbers of waiters in the last [`LOOKS`] reads, by the lock's path.
    waiting: BTreeMap<String, Vec<usize>>,
}

impl QueueHistory {
    pub(crate) fn add(&mut self, queues: &[Queue], now: Instant) {
        let holders = queues.iter().flat_map(|queue| queue.holders().map(|it| (queue.path.clone(), it.node.clone())));
        let hold: BTreeSet<_> = holders.collect();
        self.held_since.retain(|holder, _| hold.contains(holder));
        for holder in hold {
            self.held_since.entry(holder).or_insert(now);
        }
        let mut waiting = BTreeMap::new();
        for queue in queues {
            *waiting.entry(&queue.path).or_insert(0) += queue.waiters().count();
            self.waiting.entry(queue.path.clone()).or_default();
        }
        self.waiting.retain(|path, lengths| {
            lengths.push(waiting.get(path).copied().unwrap_or(0));
            lengths.drain(..lengths.len().saturating_sub(LOOKS));
            waiting.contains_key(path) || lengths.iter().any(|length| *length > 0)
        });
    }

    /// Returns for how long zklock has seen the present holders hold: the longest of their times. `None` if nobody
    /// holds.
    fn held_for(&self, queue: &Queue, now: Instant) -> Option<Duration> {
        let since = |holder: &Member| self.held_since.get(&(queue.path.clone(), holder.node.clone())).copied();
        queue.holders().filter_map(since).min().map(|since| now.saturating_duration_since(since))
    }

    /// Returns the line that says for how long a lock is held. Only the holder knows when it was granted the lock, so
    /// the line states a lower bound.
    pub(crate) fn held_line(&self, queue: &Queue, now: Instant) -> Option<String> {
        self.held_for(queue, now).map(|held| format!("held for at least {}", duration_in_two_units(held)))
    }

    fn sparkline(&self, path: &str) -> String {
        let lengths = self.waiting.get(path).map(Vec::as_slice).unwrap_or_default();
        let highest = lengths.iter().copied().max().unwrap_or(0).max(1);
        lengths.iter().map(|length| BARS[length * (BARS.len() - 1) / highest]).collect()
    }
}

/// Returns the totals and a row for each queue, in at most `columns` columns and `rows` rows. Rows that do not fit are
/// left out as in [`layout::limit_rows`].
pub(crate) fn overview_lines(queues: &[Queue], history: &QueueHistory, columns: usize, rows: usize) -> Vec<String> {
    let mut queues: Vec<&Queue> = queues.iter().collect();
    queues.sort_by_key(|queue| {
        (std::cmp::Reverse(queue.waiters().count()), queue.holders().next().is_none(), &queue.path)
    });
    let held = queues.iter().filter(|queue| queue.holders().next().is_some()).count();
    let waiting: usize = queues.iter().map(|queue| queue.waiters().count()).sum();
    let mut lines = vec![shorten(&format!("{} paths, {held} held, {waiting} waiting", queues.len()), columns)];
    let now = Instant::now();
    let column = |heading, cell: &dyn Fn(&Queue) -> String| {
        Column::new(heading, queues.iter().map(|queue| cell(queue)).collect())
    };
    let dash = || "-".to_owned();
    lines.extend(layout::table_lines(
        vec![
            column("PATH", &|queue| escape_controls(&queue.path)).with_cut(Cut::Middle),
            column("WAITING", &|queue| queue.waiters().count().to_string()),
            column("LONGEST", &|queue| longest_wait(queue).map_or_else(dash, duration_in_two_units)),
            column("HELD", &|queue| {
                history.held_for(queue, now).map_or_else(dash, |held| format!("{}+", duration_in_two_units(held)))
            }),
            column("HOLDER", &holder_text).with_cut(Cut::End),
            column("TREND", &|queue| history.sparkline(&queue.path)),
        ],
        Some(columns),
    ));
    layout::limit_rows(rows, lines, columns)
}

/// Returns how long ago the first of the waiters queued up. `None` if no waiter has a known time.
fn longest_wait(queue: &Queue) -> Option<Duration> {
    queue.waiters().filter_map(|member| member.since).min().map(table::age)
}

/// Returns the free permits of a semaphore, the first holder, and how many more holders there are. A lock without
/// holders is "free", or "free, with a record" if a job under the lock has recorded that it is done.
fn holder_text(queue: &Queue) -> String {
    let (mut holders, permits) = (queue.holders(), table::free_permits_text(queue));
    let first = match (holders.next(), &permits, &queue.done) {
        (Some(Member { host, label: Some(label), .. }), ..) => Some(format!("{host} {label:?}")),
        (Some(first), ..) => Some(first.host.clone()),
        (None, Some(_), _) => None,
        (None, None, None) => Some("free".to_owned()),
        (None, None, Some(_)) => Some("free, with a record".to_owned()),
    };
    let more = match holders.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    escape_controls(&(permits.into_iter().chain(first).collect::<Vec<_>>().join(": ") + &more))
}

#[cfg(test)]
mod tests {
    use std::future::IntoFuture;

    use tokio_test::block_on;
    use zk_rwlock::{Memory, RwLock};

    use super::*;

    /// Returns the queue of a lock that is held, and the queue of a lock that is held and waited for.
    fn two() -> Vec<Queue> {
        let zk = Memory::new();
        let [held, awaited] =
            ["/held", "/awaited"].map(|path| RwLock::builder(&zk, path).host("web").build().expect("valid"));
        let _held = [&held, &awaited].map(|lock| lock.write().label("migrate").blocking().expect("free"));
        let mut waits = tokio_test::task::spawn(awaited.write().into_future());
        assert!(waits.poll().is_pending());
        [held, awaited].iter().map(|lock| block_on(lock.queue().into_future()).expect("the ensemble answers")).collect()
    }

    #[test]
    fn queues_with_waiters_come_first_and_the_columns_that_matter_stay() {
        let (queues, mut history) = (two(), QueueHistory::default());
        let began = Instant::now();
        history.add(&queues, began);
        let wide = overview_lines(&queues, &history, 120, 10);
        assert_eq!(wide[0], "2 paths, 1 held, 1 waiting".replace("1 held", "2 held"));
        assert!(wide[1].starts_with("PATH      WAITING  LONGEST  HELD  HOLDER"), "{wide:?}");
        assert!(wide[2].starts_with("/awaited  1 ") && wide[3].starts_with("/held     0        -"), "{wide:?}");
        assert!(wide[2].contains("web \"migrate\"") && wide[2].ends_with('█'), "{wide:?}");
        for columns in [40, 30] {
            let narrow = overview_lines(&queues, &history, columns, 10);
            assert!(narrow.iter().all(|line| crate::output::width(line) <= columns), "{narrow:?}");
            assert!(narrow[1].starts_with("PATH") && narrow[1].contains("WAITING"), "{narrow:?}");
        }
        assert_eq!(overview_lines(&queues, &history, 120, 3).last().map(String::as_str), Some("... and 2 more"));
        let later = began + Duration::from_secs(90);
        assert_eq!(history.held_line(&queues[0], later).as_deref(), Some("held for at least 1m 30s"));
        history.add(&[], later);
        assert_eq!(history.held_line(&queues[0], later), None);
    }

    #[test]
    fn a_sparkline_rises_with_the_queue() {
        let (queues, mut history) = (two(), QueueHistory::default());
        history.add(&[queues[0].clone()], Instant::now());
        history.add(&queues, Instant::now());
        assert_eq!([history.sparkline("/held"), history.sparkline("/awaited")], ["▁▁", "█"]);
    }
}
