//! The contenders of a timeline: when each of them queued up, was granted and went, as watchers saw it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::SystemTime;

use serde::{Deserialize, Deserializer};

/// A line of `zklock watch --json`. Unknown fields are ignored.
#[derive(Deserialize)]
pub(crate) struct Line<'l> {
    #[serde(deserialize_with = "time")]
    at: SystemTime,
    #[serde(borrow)]
    path: Cow<'l, str>,
    #[serde(borrow)]
    event: Cow<'l, str>,
    #[serde(borrow, default)]
    members: Vec<Seen<'l>>,
}

/// A member of a line.
#[derive(Deserialize)]
struct Seen<'l> {
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
    #[serde(deserialize_with = "maybe_time")]
    since: Option<SystemTime>,
}

fn time<'d, D: Deserializer<'d>>(from: D) -> Result<SystemTime, D::Error> {
    let text = Cow::<str>::deserialize(from)?;
    humantime::parse_rfc3339(&text).map_err(serde::de::Error::custom)
}

fn maybe_time<'d, D: Deserializer<'d>>(from: D) -> Result<Option<SystemTime>, D::Error> {
    let text = Option::<Cow<'_, str>>::deserialize(from)?;
    text.map(|text| humantime::parse_rfc3339(&text).map_err(serde::de::Error::custom)).transpose()
}

/// A contender.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) path: String,
    pub(crate) mode: String,
    pub(crate) host: String,
    pub(crate) pid: Option<u32>,
    pub(crate) label: Option<String>,
    pub(crate) token: Option<i64>,
    session: Option<String>,
    /// When the contender queued up.
    pub(crate) queued: SystemTime,
    /// When it was first seen to hold.
    pub(crate) granted: Option<SystemTime>,
    /// When it was first seen to be gone.
    pub(crate) went: Option<SystemTime>,
    /// The number of other nodes of its session that went at the same time, if no node of the session stayed.
    pub(crate) went_with: usize,
    node: String,
}

/// A time in which a watcher was cut off.
#[derive(Clone, Debug)]
pub(crate) struct Break {
    pub(crate) path: String,
    pub(crate) from: SystemTime,
    pub(crate) to: Option<SystemTime>,
}

/// What one watcher saw.
#[derive(Default)]
pub(crate) struct Reader {
    /// By the path and the node.
    rows: HashMap<(String, String), Row>,
    /// The nodes that were there in the last line of each path.
    there: HashMap<String, HashSet<String>>,
    breaks: Vec<Break>,
    last: Option<SystemTime>,
}

impl Reader {
    pub(crate) fn take(&mut self, line: &Line<'_>) {
        self.last = self.last.max(Some(line.at));
        let is_open = |it: &&mut Break| it.path == line.path && it.to.is_none();
        match &*line.event {
            "disconnected" => self.breaks.push(Break { path: line.path.to_string(), from: line.at, to: None }),
            "connected" => self.breaks.iter_mut().filter(is_open).for_each(|it| it.to = Some(line.at)),
            _ => self.take_queue(line),
        }
    }

    fn take_queue(&mut self, line: &Line<'_>) {
        let (path, at) = (line.path.to_string(), line.at);
        let before = self.there.remove(&path).unwrap_or_default();
        let now: HashSet<String> = line.members.iter().map(|seen| seen.node.to_string()).collect();
        let mut sessions: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
        let gone: Vec<&String> = before.difference(&now).collect();
        for &node in &gone {
            let key = (path.clone(), node.clone());
            if let Some(row) = self.rows.get_mut(&key) {
                row.went = Some(at);
                if let Some(session) = &row.session {
                    sessions.entry(session.clone()).or_default().push(key);
                }
            }
        }
        sessions
            .retain(|session, _| line.members.iter().all(|seen| seen.session.as_ref() != Some(&Cow::from(session))));
        for together in sessions.into_values() {
            for key in &together {
                self.rows.entry(key.clone()).and_modify(|row| row.went_with = together.len() - 1);
            }
        }
        for seen in &line.members {
            // The permits of a contender are a node of their own, which takes the place of the contender's node.
            let predecessor = gone.iter().find(|node| is_one_contender(node, &seen.node)).map(|node| (*node).clone());
            let moved = predecessor.and_then(|node| self.rows.remove(&(path.clone(), node)));
            let row = self.rows.entry((path.clone(), seen.node.to_string())).or_insert_with(|| {
                moved.unwrap_or_else(|| Row {
                    path: path.clone(),
                    mode: seen.mode.to_string(),
                    host: seen.host.to_string(),
                    pid: None,
                    label: None,
                    token: None,
                    session: None,
                    queued: seen.since.unwrap_or(at).min(at),
                    granted: None,
                    went: None,
                    went_with: 0,
                    node: seen.node.to_string(),
                })
            });
            row.went = None;
            row.pid = seen.pid.or(row.pid);
            row.token = seen.token.or(row.token);
            row.label = seen.label.as_deref().map(str::to_owned).or(row.label.take());
            row.session = seen.session.as_deref().map(str::to_owned).or(row.session.take());
            if seen.state == "holds" {
                row.granted.get_or_insert(at);
            }
        }
        self.there.insert(path, now);
    }
}

/// Whether these are two nodes of one contender: their names differ only behind the mode.
fn is_one_contender(one: &str, other: &str) -> bool {
    let [one, other] =
        [one, other].map(|name| ["-READ-", "-WRITE-", "-PERMIT-"].iter().find_map(|mode| name.split_once(mode)));
    one.zip(other).is_some_and(|((one, _), (other, _))| one == other)
}

/// Whether the first path is the second, or below it.
pub(crate) fn is_at_or_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What is drawn.
#[derive(Default)]
pub(crate) struct Picture {
    pub(crate) rows: Vec<Row>,
    pub(crate) breaks: Vec<Break>,
    pub(crate) from: Option<SystemTime>,
    pub(crate) to: Option<SystemTime>,
    known: HashMap<(String, String), usize>,
}

impl Picture {
    /// Adds what a watcher saw. If several watchers saw a contender, the earliest time of each event counts, because a watcher
    /// sees an event late, never early.
    pub(crate) fn add(&mut self, seen: Reader) {
        self.to = self.to.max(seen.last);
        self.breaks.extend(seen.breaks);
        for (key, row) in seen.rows {
            match self.known.get(&key) {
                None => {
                    self.known.insert(key, self.rows.len());
                    self.rows.push(row);
                }
                Some(at) => {
                    let known = &mut self.rows[*at];
                    let earliest = |one: Option<SystemTime>, other| one.into_iter().chain(other).min();
                    known.queued = known.queued.min(row.queued);
                    known.granted = earliest(known.granted, row.granted);
                    known.went = earliest(known.went, row.went);
                    known.went_with = known.went_with.min(row.went_with);
                }
            }
        }
    }

    /// Leaves out what is outside of these times, or neither at nor below this path. Sorts the rows by path and arrival.
    pub(crate) fn cut(&mut self, from: Option<SystemTime>, to: Option<SystemTime>, path: Option<&str>) {
        let is_wanted = |at: &str| path.is_none_or(|path| is_at_or_below(at, path));
        let is_within = |begin: SystemTime, end: Option<SystemTime>| {
            to.is_none_or(|to| begin <= to) && from.is_none_or(|from| end.is_none_or(|end| end >= from))
        };
        self.rows.retain(|row| is_wanted(&row.path) && is_within(row.queued, row.went));
        self.breaks.retain(|it| is_within(it.from, it.to));
        self.from = from.or(self.rows.iter().map(|row| row.queued).min());
        self.to = to.or(self.to);
        self.rows.sort_by_cached_key(|row| (row.path.clone(), row.queued, row.token, row.node.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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

    fn picture(watchers: &[&[String]]) -> Picture {
        let mut picture = Picture::default();
        for lines in watchers {
            let mut reader = Reader::default();
            lines.iter().for_each(|line| reader.take(&serde_json::from_str(line).expect("a line")));
            picture.add(reader);
        }
        picture
    }

    #[test]
    fn a_row_knows_when_its_contender_queued_up_was_granted_and_went() {
        let [holds, waits, granted] = [
            member("a~1-WRITE-0", "holds", "0x1"),
            member("b~2-WRITE-1", "waits", "0x2"),
            member("b~2-WRITE-1", "holds", "0x2"),
        ];
        let mut picture = picture(&[&[
            line(1, json!([holds])),
            line(2, json!([holds, waits])),
            line(4, json!([granted])),
            line(9, json!([])),
        ]]);
        picture.cut(None, None, None);
        let times: Vec<_> = picture.rows.iter().map(|row| (row.queued, row.granted, row.went, row.went_with)).collect();
        let expected = [(at(1), Some(at(1)), Some(at(4)), 0), (at(2), Some(at(4)), Some(at(9)), 0)];
        assert_eq!(times, expected);
        picture.cut(Some(at(5)), None, Some("/l/"));
        assert_eq!((picture.rows.len(), picture.from, picture.to), (1, Some(at(5)), Some(at(9))));
        picture.cut(None, None, Some("/other"));
        assert!(picture.rows.is_empty());
    }

    #[test]
    fn the_earliest_sight_of_several_watchers_counts() {
        let (waits, holds) = (member("a~1-WRITE-0", "waits", "0x1"), member("a~1-WRITE-0", "holds", "0x1"));
        let one = [line(1, json!([waits])), line(5, json!([holds])), line(9, json!([]))];
        let other = [line(2, json!([waits])), line(4, json!([holds]))];
        let picture = picture(&[&one, &other]);
        assert_eq!(picture.rows.len(), 1);
        assert_eq!(
            (picture.rows[0].queued, picture.rows[0].granted, picture.rows[0].went),
            (at(1), Some(at(4)), Some(at(9)))
        );
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
        let mut picture = picture(&[&lines]);
        picture.cut(None, None, None);
        assert_eq!(picture.rows.iter().map(|row| row.went_with).collect::<Vec<_>>(), [1, 1, 0]);
    }

    #[test]
    fn permits_stand_in_the_row_of_their_contender() {
        let lines = [
            line(1, json!([member("a~1-WRITE-0", "waits", "0x1")])),
            line(2, json!([member("a~1-PERMIT-2", "holds", "0x1")])),
        ];
        let picture = picture(&[&lines]);
        assert_eq!(picture.rows.len(), 1);
        assert_eq!((picture.rows[0].queued, picture.rows[0].granted, picture.rows[0].went), (at(1), Some(at(2)), None));
    }
}
