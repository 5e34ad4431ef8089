//! Collects when each contender queued up, was granted the lock and left, as watchers saw it. A watcher is a
//! `zklock watch --json`.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer};

use crate::arguments::TimelineArguments;
use crate::place::is_at_or_below;

/// A line of `zklock watch --json`. Unknown fields are ignored.
#[derive(Deserialize)]
pub(crate) struct WatchJsonLine<'l> {
    #[serde(deserialize_with = "deserialize_time")]
    pub(crate) at: SystemTime,
    #[serde(borrow)]
    path: Cow<'l, str>,
    #[serde(borrow)]
    event: Cow<'l, str>,
    #[serde(borrow, default)]
    members: Vec<ListedMember<'l>>,
}

/// A member of the queue, as a line of `zklock watch --json` lists it.
#[derive(Deserialize)]
struct ListedMember<'l> {
    #[serde(borrow)]
    node: Cow<'l, str>,
    #[serde(borrow)]
    state: Cow<'l, str>,
    #[serde(borrow)]
    mode: Cow<'l, str>,
    #[serde(borrow)]
    host: Cow<'l, str>,
    pid: Option<u32>,
    #[serde(borrow)]
    label: Option<Cow<'l, str>>,
    token: Option<i64>,
    #[serde(borrow)]
    session: Option<Cow<'l, str>>,
    #[serde(deserialize_with = "deserialize_optional_time")]
    since: Option<SystemTime>,
}

fn deserialize_time<'d, D: Deserializer<'d>>(from: D) -> Result<SystemTime, D::Error> {
    let text = Cow::<str>::deserialize(from)?;
    humantime::parse_rfc3339(&text).map_err(serde::de::Error::custom)
}

fn deserialize_optional_time<'d, D: Deserializer<'d>>(from: D) -> Result<Option<SystemTime>, D::Error> {
    let text = Option::<Cow<'_, str>>::deserialize(from)?;
    text.map(|text| humantime::parse_rfc3339(&text).map_err(serde::de::Error::custom)).transpose()
}

/// A row of the picture, which shows one contender.
#[derive(Clone, Debug)]
pub(crate) struct ContenderRow {
    pub(crate) mode: String,
    pub(crate) host: String,
    pub(crate) pid: Option<u32>,
    pub(crate) label: Option<String>,
    pub(crate) token: Option<i64>,
    session: Option<String>,
    /// The earlier of two times: when the contender queued up, if that is known, and when it was first seen.
    pub(crate) queued: SystemTime,
    /// When the contender was first seen to hold.
    pub(crate) granted: Option<SystemTime>,
    /// When the contender was first seen to be gone.
    pub(crate) went: Option<SystemTime>,
    /// How many other nodes of the session disappeared from the queue at the same time. `None` if a node of the session
    /// stayed, if the session is unknown, or if this contender was not seen to go. If several watchers saw the
    /// contender go, this is the least of their numbers.
    pub(crate) went_with: Option<usize>,
}

impl ContenderRow {
    fn of(seen: &ListedMember<'_>, at: SystemTime) -> ContenderRow {
        ContenderRow {
            mode: seen.mode.to_string(),
            host: seen.host.to_string(),
            pid: None,
            label: None,
            token: None,
            session: None,
            queued: seen.since.unwrap_or(at).min(at),
            granted: None,
            went: None,
            went_with: None,
        }
    }

    /// Returns for how long the contender waited. If nobody saw the wait end, the time runs until `end`.
    pub(crate) fn waited(&self, end: SystemTime) -> Duration {
        self.granted.or(self.went).unwrap_or(end).duration_since(self.queued).unwrap_or_default()
    }

    /// Returns for how long the contender held the lock. This is zero if it was never seen to hold. If nobody saw the
    /// hold end, the time runs until `end`.
    pub(crate) fn held(&self, end: SystemTime) -> Duration {
        let granted = self.granted.unwrap_or(end);
        self.went.unwrap_or(end).duration_since(granted).unwrap_or_default()
    }
}

/// A time in which a watcher (`zklock watch --json`) was not connected, so that it saw no changes at or below `path`.
#[derive(Clone, Debug)]
pub(crate) struct WatcherGap {
    pub(crate) path: String,
    pub(crate) from: SystemTime,
    pub(crate) to: Option<SystemTime>,
}

/// The queues as one watcher (a `zklock watch --json`) saw them last.
#[derive(Default)]
pub(crate) struct WatcherState {
    /// The nodes that the watcher saw last in the queue, by the path of the lock.
    there: HashMap<String, HashSet<String>>,
    /// The index in [`Picture::disconnections`] of the disconnection that has no end yet, by path.
    cut_off: HashMap<String, usize>,
}

/// What is drawn: the disconnections, and for each path the rows, by the nodes of their contenders.
///
/// If several watchers saw a contender, the earliest time of each event is used. A watcher sees an event late, but
/// never early if its clock is right.
pub(crate) struct Picture<'o> {
    pub(crate) order: &'o TimelineArguments,
    pub(crate) paths: BTreeMap<String, HashMap<String, ContenderRow>>,
    pub(crate) disconnections: Vec<WatcherGap>,
    /// The number of rows of all paths.
    pub(crate) count: usize,
    last: SystemTime,
}

impl<'o> Picture<'o> {
    pub(crate) fn new(order: &'o TimelineArguments) -> Picture<'o> {
        Picture { order, paths: BTreeMap::new(), disconnections: Vec::new(), count: 0, last: SystemTime::UNIX_EPOCH }
    }

    /// Adds a line of a watcher. Leaves out contenders that `order` does not select by their times or their path, but
    /// no disconnections.
    pub(crate) fn add_watch_line(&mut self, watcher: &mut WatcherState, line: &WatchJsonLine<'_>) {
        let path = line.path.to_string();
        self.last = self.last.max(line.at);
        match &*line.event {
            "disconnected" => {
                watcher.cut_off.insert(path.clone(), self.disconnections.len());
                self.disconnections.push(WatcherGap { path, from: line.at, to: None });
            }
            "connected" => _ = watcher.cut_off.remove(&path).map(|index| self.disconnections[index].to = Some(line.at)),
            _ if self.order.lock.as_ref().is_none_or(|above| is_at_or_below(&path, above)) => {
                self.add_queue_line(watcher, path, line);
            }
            _ => {}
        }
    }

    fn add_queue_line(&mut self, watcher: &mut WatcherState, path: String, line: &WatchJsonLine<'_>) {
        let (rows, at) = (self.paths.entry(path.clone()).or_default(), line.at);
        let count = rows.len();
        let there = watcher.there.entry(path).or_default();
        let now: HashSet<&str> = line.members.iter().map(|seen| &*seen.node).collect();
        let gone: Vec<String> = there.extract_if(|node| !now.contains(&**node)).collect();
        let is_there = |session: &str| line.members.iter().any(|seen| seen.session.as_deref() == Some(session));
        let sessions: Vec<Option<String>> =
            gone.iter().map(|node| rows.get(node)?.session.clone().filter(|session| !is_there(session))).collect();
        for (node, session) in gone.iter().zip(&sessions) {
            let with = session.as_ref().map(|_| sessions.iter().filter(|other| *other == session).count() - 1);
            if let Some(row) = rows.get_mut(node) {
                row.went = row.went.into_iter().chain([at]).min();
                row.went_with = row.went_with.into_iter().chain(with).min();
            }
        }
        for seen in &line.members {
            if !there.contains(&*seen.node) {
                there.insert(seen.node.to_string());
                // When a contender gets its permits, a node for the permits replaces the contender's node in the queue. Both
                // nodes share one row.
                let before = gone.iter().find(|node| is_one_contender(node, &seen.node));
                if let Some(row) = before.and_then(|node| rows.remove(node)) {
                    rows.insert(seen.node.to_string(), ContenderRow { went: None, went_with: None, ..row });
                } else if self.order.to.is_none_or(|to| at <= to) {
                    let row = rows.entry(seen.node.to_string()).or_insert_with(|| ContenderRow::of(seen, at));
                    row.queued = row.queued.min(seen.since.unwrap_or(at)).min(at);
                }
            }
            let Some(row) = rows.get_mut(&*seen.node) else { continue };
            (row.pid, row.token) = (seen.pid.or(row.pid), seen.token.or(row.token));
            row.label = row.label.take().or_else(|| seen.label.as_deref().map(str::to_owned));
            row.session = row.session.take().or_else(|| seen.session.as_deref().map(str::to_owned));
            if seen.state == "holds" {
                row.granted = row.granted.into_iter().chain([at]).min();
            }
        }
        for node in gone {
            let went = rows.get(&node).and_then(|row| row.went);
            if self.order.from.zip(went).is_some_and(|(from, went)| went < from) {
                rows.remove(&node);
            }
        }
        self.count = self.count + rows.len() - count;
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &ContenderRow> {
        self.paths.values().flat_map(HashMap::values)
    }

    /// Returns when the picture begins and ends. It begins at `--from`, or when the first contender queued up. It ends
    /// at `--to`, or at the last line.
    pub(crate) fn begin_and_end(&self) -> (SystemTime, SystemTime) {
        let first = self.rows().map(|row| row.queued).min().unwrap_or(self.last);
        (self.order.from.unwrap_or(first), self.order.to.unwrap_or(self.last))
    }
}

/// Returns whether these are two nodes of one contender: the parts of their names before the mode are equal.
fn is_one_contender(one: &str, other: &str) -> bool {
    let [one, other] =
        [one, other].map(|name| ["-READ-", "-WRITE-", "-PERMIT-"].iter().find_map(|mode| name.split_once(mode)));
    one.zip(other).is_some_and(|((one, _), (other, _))| one == other)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn line(seconds: u64, members: Value) -> String {
        let at = humantime::format_rfc3339_millis(at(seconds)).to_string();
        json!({ "at": at, "event": "queue", "path": "/l", "members": members, "unknown": 1 }).to_string()
    }

    fn member(node: &str, state: &str, session: &str) -> Value {
        json!({
            "node": node, "state": state, "mode": "WRITE", "host": "ants", "pid": 7, "label": null, "token": 9,
            "session": session, "since": null, "place": 1
        })
    }

    fn order(from: Option<SystemTime>, to: Option<SystemTime>, lock: Option<&str>) -> TimelineArguments {
        TimelineArguments { files: Vec::new(), from, to, lock: lock.map(str::to_owned) }
    }

    fn picture<'o>(order: &'o TimelineArguments, watchers: &[&[String]]) -> Picture<'o> {
        let mut picture = Picture::new(order);
        for lines in watchers {
            let mut watcher = WatcherState::default();
            lines
                .iter()
                .for_each(|line| picture.add_watch_line(&mut watcher, &serde_json::from_str(line).expect("a line")));
        }
        picture
    }

    /// Returns the rows in the order in which their contenders queued up.
    fn rows(picture: &Picture<'_>) -> Vec<ContenderRow> {
        let mut rows: Vec<_> = picture.paths.values().flatten().collect();
        rows.sort_by_key(|(node, row)| (row.queued, *node));
        rows.into_iter().map(|(_, row)| row.clone()).collect()
    }

    #[test]
    fn a_row_knows_when_its_contender_queued_up_was_granted_and_went() {
        let [holds, waits, granted] = [
            member("a~1-WRITE-0", "holds", "0x1"),
            member("b~2-WRITE-1", "waits", "0x2"),
            member("b~2-WRITE-1", "holds", "0x2"),
        ];
        let lines =
            [line(1, json!([holds])), line(2, json!([holds, waits])), line(4, json!([granted])), line(9, json!([]))];
        let times = |from, to, lock| -> Vec<_> {
            let order = order(from, to, lock);
            rows(&picture(&order, &[&lines]))
                .iter()
                .map(|row| (row.queued, row.granted, row.went, row.went_with))
                .collect()
        };
        let (one, other) = ((at(1), Some(at(1)), Some(at(4)), Some(0)), (at(2), Some(at(4)), Some(at(9)), Some(0)));
        assert_eq!(times(None, None, None), [one, other]);
        assert_eq!(times(Some(at(5)), None, Some("/l/")), [other]);
        assert_eq!(times(None, Some(at(1)), None), [one]);
        assert!(times(None, None, Some("/other")).is_empty());
        let order = order(Some(at(5)), None, None);
        assert_eq!(picture(&order, &[&lines]).begin_and_end(), (at(5), at(9)));
    }

    #[test]
    fn the_earliest_sight_of_several_watchers_counts() {
        let (waits, holds) = (member("a~1-WRITE-0", "waits", "0x1"), member("a~1-WRITE-0", "holds", "0x1"));
        let one = [line(1, json!([waits])), line(5, json!([holds])), line(9, json!([]))];
        let other = [line(2, json!([waits])), line(4, json!([holds]))];
        let order = order(None, None, None);
        let [row] = rows(&picture(&order, &[&one, &other])).try_into().expect("one row");
        assert_eq!((row.queued, row.granted, row.went), (at(1), Some(at(4)), Some(at(9))));
    }

    #[test]
    fn the_end_of_a_session_with_several_nodes_is_marked() {
        let lines = [
            line(
                1,
                json!([
                    member("a~1-WRITE-0", "holds", "0x1"),
                    member("a~2-WRITE-1", "waits", "0x1"),
                    member("b~3-WRITE-2", "waits", "0x2")
                ]),
            ),
            line(2, json!([member("b~3-WRITE-2", "holds", "0x2")])),
            line(3, json!([])),
        ];
        let order = order(None, None, None);
        let went_with: Vec<_> = rows(&picture(&order, &[&lines])).iter().map(|row| row.went_with).collect();
        assert_eq!(went_with, [Some(1), Some(1), Some(0)]);
    }

    #[test]
    fn permits_stand_in_the_row_of_their_contender() {
        let lines = [
            line(1, json!([member("a~1-WRITE-0", "waits", "0x1")])),
            line(2, json!([member("a~1-PERMIT-2", "holds", "0x1")])),
        ];
        let order = order(None, None, None);
        let [row] = rows(&picture(&order, &[&lines])).try_into().expect("one row");
        assert_eq!((row.queued, row.granted, row.went), (at(1), Some(at(2)), None));
    }
}
