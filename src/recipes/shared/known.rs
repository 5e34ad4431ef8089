//! What this process knows of a shared value's node: the newest value, and numbered events for the streams of values.
//! Reads and commits update this copy. The copy stores the value as bytes, so the library's threads can drop it without
//! running user code.

use std::fmt;
use std::sync::Arc;

use crate::error::error::Error;
use crate::error::value::ValueError;
use crate::session::lease::Lease;

/// How fresh this process's copy of a shared value is. Returned by [`Live::state`](crate::shared::Live::state).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CopyState {
    /// No value has come from the ensemble yet.
    Fetching,
    /// The connection is up, and the node is watched. A change arrives as soon as the server knows it.
    Current,
    /// The connection is lost, or the session has ended. A change that is made meanwhile arrives after the reconnect.
    Disconnected,
    /// The node holds no value now, or cannot be read. Or this client's server lacks a change that the ensemble has,
    /// and must be repaired. [`Live::get`](crate::shared::Live::get) still returns the last value.
    Behind(Error),
    /// The coordinator was closed, or no longer works, as the error says. No more changes will come.
    Over(Error),
}

/// Writes a text for logs and health checks: `current`, or `behind: ` with the error, and so on.
impl fmt::Display for CopyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyState::Fetching => f.write_str("fetching"),
            CopyState::Current => f.write_str("current"),
            CopyState::Disconnected => f.write_str("disconnected"),
            CopyState::Behind(error) => write!(f, "behind: {error}"),
            CopyState::Over(error) => write!(f, "over: {error}"),
        }
    }
}

#[derive(Default)]
pub(crate) struct LocalCopy {
    /// Whether this process has read or written a value. If so, a node that is missing now was deleted. This holds even
    /// if the node's twin, an empty node that shows that the value existed, is missing, too.
    pub(super) was_seen: bool,
    /// The newest content of the node with a valid header.
    pub(crate) newest: Option<Arc<SeenContent>>,
    /// The last error, with its event number. `None` once a value was read or committed after the error.
    pub(super) trouble: Option<(u64, Error)>,
    /// The event number of the newest value, if a later read found no value in the node, or bytes that this process
    /// cannot use as a value. 0 otherwise.
    pub(super) vanished: u64,
    /// The number of the last event. Each new value is an event, and so is each new error.
    pub(super) last_event: u64,
    /// The event number of this process's last commit, until a later read is recorded. 0 if there is no such commit.
    own_commit: u64,
    /// The lease of the session that has read the node and watches it.
    pub(super) lease: Option<Arc<Lease>>,
    pub(super) over: Option<Error>,
}

/// A value or an error, with the number of its event.
pub(crate) type NumberedEvent = (u64, Result<Arc<SeenContent>, Error>);

/// The content of the node at one time.
pub(crate) struct SeenContent {
    pub(crate) event: u64,
    czxid: i64,
    pub(super) version: i32,
    pub(super) bytes: Vec<u8>,
}

impl LocalCopy {
    pub(super) fn copy_state(&self) -> CopyState {
        match (&self.over, &self.trouble, &self.lease) {
            (Some(error), ..) => CopyState::Over(error.clone()),
            (_, Some((_, error)), _) => CopyState::Behind(error.clone()),
            (.., Some(lease)) if self.newest.is_some() => match lease.is_connected() && lease.ending().is_none() {
                true => CopyState::Current,
                false => CopyState::Disconnected,
            },
            _ => CopyState::Fetching,
        }
    }

    /// Looks for an event after the event number `seen`. Returns the newest value if it came after `seen`. Otherwise
    /// returns the present error if that came after `seen`.
    pub(crate) fn event_after(&self, seen: u64) -> Option<NumberedEvent> {
        let value = self.newest.iter().map(|newest| (newest.event, Ok(Arc::clone(newest))));
        let trouble = self.trouble.iter().map(|(event, error)| (*event, Err(error.clone())));
        value.chain(trouble).find(|(event, _)| *event > seen)
    }

    /// Returns whether the last error says that the node has no value, and no value came after the event number
    /// `before`.
    pub(super) fn has_had_no_value_since(&self, before: u64) -> bool {
        let is_unset = |(_, error): &(u64, Error)| error.value_error().is_some_and(ValueError::is_no_value);
        self.newest.as_ref().is_none_or(|newest| newest.event <= before) && self.trouble.as_ref().is_some_and(is_unset)
    }

    pub(super) fn record_error(&mut self, error: Error) -> bool {
        // An error with the same text as the last one is not reported again.
        if self.trouble.as_ref().is_some_and(|(_, before)| before.to_string() == error.to_string()) {
            return false;
        }
        if error.value_error().is_some() {
            self.vanished = self.newest.as_ref().map_or(0, |newest| newest.event);
        }
        self.last_event += 1;
        self.trouble = Some((self.last_event, error));
        true
    }

    /// Records the content of a read. `synced` is the number of the last event that was recorded before the server's
    /// last sync. Returns whether anything has changed.
    ///
    /// The reads of one session never go back in time, and a sync precedes the first read of each session. So if a read
    /// is older than the newest value, that value came from an earlier session or from a commit of this process. If
    /// this process has committed since the last sync, the older read is ignored, because a lagging server may not show
    /// the commit yet. Otherwise the ensemble was restored from a backup, and the older read is recorded as the newest
    /// value.
    pub(super) fn record_read(&mut self, bytes: Vec<u8>, czxid: i64, version: i32, synced: u64) -> bool {
        let cleared = self.trouble.take().is_some();
        self.vanished = 0;
        if let Some(newest) = &self.newest {
            let since = version.wrapping_sub(newest.version);
            let is_older = czxid < newest.czxid || (czxid == newest.czxid && since < 0);
            if is_older && self.own_commit > synced {
                return cleared;
            }
            self.own_commit = 0;
            // A value that equals the last one is not reported again, unless an error was reported in between. The
            // bytes are compared, too: the `mzxid` would identify the write, but the reply to a commit does not contain
            // it.
            if !cleared && (czxid, version, &bytes) == (newest.czxid, newest.version, &newest.bytes) {
                return false;
            }
        }
        self.set_newest(bytes, czxid, version);
        true
    }

    /// Records a commit of this process, if the newest value that is known has the same czxid and a lower version.
    /// Otherwise ignores the commit, and returns `false`. With another czxid, it is unknown which of the two nodes is
    /// newer, because the ensemble may have been restored from a backup. `czxid` is `None`, and the commit is always
    /// ignored, if the committing holder created the node.
    pub(super) fn record_commit(&mut self, bytes: &[u8], czxid: Option<i64>, version: i32) -> bool {
        let is_before = |newest: &SeenContent| Some(newest.czxid) == czxid && version.wrapping_sub(newest.version) > 0;
        let Some(czxid) = self.newest.as_ref().filter(|it| is_before(it)).map(|it| it.czxid) else { return false };
        self.trouble = None;
        self.set_newest(bytes.to_vec(), czxid, version);
        self.own_commit = self.last_event;
        true
    }

    fn set_newest(&mut self, bytes: Vec<u8>, czxid: i64, version: i32) {
        self.last_event += 1;
        self.was_seen = true;
        self.newest = Some(Arc::new(SeenContent { event: self.last_event, czxid, version, bytes }));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn trouble(reason: &str) -> Error {
        Error::Unreachable(reason.to_owned())
    }

    /// Returns the [`LocalCopy`] of a process that has read the value once, from a synced server.
    fn known_at(czxid: i64, version: i32) -> LocalCopy {
        let mut known = LocalCopy::default();
        assert!(known.record_read(b"a".to_vec(), czxid, version, 0));
        known
    }

    fn newest(known: &LocalCopy) -> (i64, i32) {
        known.newest.as_ref().map(|newest| (newest.czxid, newest.version)).expect("a value was read")
    }

    #[test]
    fn a_read_replaces_all_also_after_a_restore() {
        let mut known = known_at(10, 3);
        assert!(known.newest.is_some() && known.over.is_none());
        for (bytes, czxid, version, is_event) in [
            (b"a", 10, 3, false),
            (b"b", 10, 4, true),
            (b"c", 10, 4, true),
            (b"c", 10, 4, false),
            (b"c", 10, 2, true),
            (b"d", 9, 7, true),
            (b"d", 11, 0, true),
            (b"d", 12, i32::MAX, true),
            (b"e", 12, i32::MIN, true),
        ] {
            assert_eq!(known.record_read(bytes.to_vec(), czxid, version, 0), is_event, "{czxid}, {version}");
            assert_eq!(newest(&known), (czxid, version));
        }
    }

    #[test]
    fn our_own_commit_stays_until_a_read_is_newer() {
        for (czxid, version) in [(10, 3), (9, 8)] {
            let mut known = known_at(10, 3);
            let before = known.last_event;
            let ours = Some(10);
            assert!(
                !known.record_commit(b"a", ours, 3)
                    && known.record_commit(b"b", ours, 5)
                    && !known.record_commit(b"a", ours, 4)
            );
            assert!(!known.record_read(b"a".to_vec(), czxid, version, before), "this server lags");
            assert_eq!(newest(&known), (10, 5));
            let after = known.last_event;
            assert!(known.record_read(b"a".to_vec(), czxid, version, after), "the commit is gone");
            assert_eq!(newest(&known), (czxid, version));

            let mut known = known_at(10, 3);
            assert!(
                known.record_commit(b"b", Some(10), 5) && !known.record_read(b"b".to_vec(), 10, 5, before),
                "the commit was known before the read"
            );
            assert!(
                known.record_read(b"a".to_vec(), czxid, version, before),
                "this session has shown the commit before"
            );
        }
        let mut known = known_at(10, 3);
        assert!(
            known.record_commit(b"b", Some(10), 5) && known.record_read(b"c".to_vec(), 10, 6, 1),
            "another commit came after ours"
        );
        assert!(
            known.record_commit(b"d", Some(10), 7) && known.record_read(b"e".to_vec(), 11, 0, 1),
            "the node was recreated"
        );
    }

    #[test]
    fn a_commit_to_another_node_is_known_once_read() {
        let mut known = known_at(10, 3);
        assert!(known.record_error(trouble("a")) && !known.record_commit(b"b", Some(5), 4));
        assert!(known.record_read(b"c".to_vec(), 5, 5, 0));
        assert_eq!(newest(&known), (5, 5));
        assert!(known.record_commit(b"d", Some(5), 6) && !known.record_commit(b"e", None, 7));
    }

    #[test]
    fn a_watched_copy_without_a_value_is_fetching() {
        let lease = Some(Arc::new(Lease::new(Duration::from_secs(6))));
        let mut known = LocalCopy { lease, ..LocalCopy::default() };
        assert!(matches!(known.copy_state(), CopyState::Fetching));
        assert!(known.record_read(Vec::new(), 10, 3, 0));
        assert!(!matches!(known.copy_state(), CopyState::Fetching));
    }

    #[test]
    fn repeated_trouble_is_reported_once() {
        let mut known = known_at(10, 3);
        assert!(known.record_commit(b"b", Some(10), 4));
        assert!(
            known.record_error(trouble("a")) && !known.record_error(trouble("a")) && known.record_error(trouble("b"))
        );
        let seen = known.last_event;
        assert!(matches!(known.event_after(seen - 1), Some((event, Err(_))) if event == seen));
        // A read that is older than our own commit clears the error. The older value is not reported.
        assert!(known.record_read(b"a".to_vec(), 10, 3, 1) && known.event_after(seen).is_none());
        assert!(known.record_error(trouble("b")) && known.record_read(b"b".to_vec(), 10, 4, 1));
        assert!(matches!(known.event_after(known.last_event - 1), Some((_, Ok(value))) if value.version == 4));
    }
}
