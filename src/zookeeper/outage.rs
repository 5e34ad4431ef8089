//! The outage of a client, which is the time without a connected session: when it began, and the latest message about
//! it.
//!
//! When a program requests the state of a client during an outage, the servers are [probed](crate::zookeeper::probe)
//! for the reason, in the background.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::session::request::{Failure, SessionEnd};
use crate::session::thread::BackgroundThread;
use crate::sync::Mutex;
use crate::zookeeper::connect::NewSessionSchedule;
use crate::zookeeper::connections::ConnectConfig;
use crate::zookeeper::probe::{PROBE_LIMIT, probe_for_reason};

/// The least time between the end of a probe and the next probe.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// What is known about the outages of a client. An outage is the time without a session, or without a connection of the
/// session.
#[derive(Default)]
pub(super) struct Outage(Mutex<OutageState>);

#[derive(Default)]
struct OutageState {
    /// When the last session lost its connection, and when a new session may replace that session. `None` before any
    /// session has ended, and from the start of a new session until its end is recorded.
    lost: Option<(Instant, Option<NewSessionSchedule>)>,
    last_failure: Option<LastFailure>,
    is_probing: bool,
    /// When the last probe ended.
    probed: Option<Instant>,
}

struct LastFailure {
    at: Instant,
    message: String,
    /// Whether the message gives the reason for the outage. If not, the message says only that there is no session.
    is_reason: bool,
}

impl Outage {
    /// Records that the last session lost its connection at `lost`, and is over for the reason `ending`.
    pub(super) fn record_start(&self, lost: Instant, reconnect: Option<NewSessionSchedule>, ending: SessionEnd) {
        self.0.lock().lost = Some((lost, reconnect));
        self.record_message(ending.to_string(), ending == SessionEnd::AuthFailed);
    }

    /// Records that a new session has begun.
    pub(super) fn record_end(&self) {
        self.0.lock().lost = None;
    }

    /// Returns when the last session lost its connection. `None` while no end of a session is recorded, and after a new
    /// session has begun.
    pub(super) fn lost_at(&self) -> Option<Instant> {
        self.0.lock().lost.map(|(since, _)| since)
    }

    /// Returns when the next session may be opened, or `None` if it may be opened at once.
    pub(super) fn new_session_schedule(&self) -> Option<NewSessionSchedule> {
        self.0.lock().lost.and_then(|(_, reconnect)| reconnect)
    }

    /// Records a failed attempt to open a session.
    pub(super) fn record_failure(&self, failure: &Failure) {
        match failure {
            // The message of `Unreachable` mostly says only that no server gave a session, but not why.
            Failure::Unreachable(message) => self.record_message(message.clone(), false),
            Failure::Refused(message) => self.record_message(message.clone(), true),
            other => self.record_message(other.to_string(), true),
        }
    }

    fn record_message(&self, message: String, is_reason: bool) {
        let mut known = self.0.lock();
        // For two seconds, a message with a reason must not be replaced by a message without one.
        let stays =
            known.last_failure.as_ref().is_some_and(|last| last.is_reason && last.at.elapsed() < 2 * PROBE_INTERVAL);
        if is_reason || !stays {
            known.last_failure = Some(LastFailure { at: Instant::now(), message, is_reason });
        }
    }

    /// Returns the last recorded message, if it was recorded at `since` or later.
    pub(super) fn message_since(&self, since: Instant) -> Option<String> {
        let known = self.0.lock();
        known.last_failure.as_ref().filter(|last| last.at >= since).map(|last| last.message.clone())
    }

    /// Starts a probe of the servers in the background, which finds the reason for the outage. Does nothing if a probe
    /// is under way, or if the last probe ended less than [`PROBE_INTERVAL`] ago. Returns whether a probe was started.
    pub(super) fn start_probe_if_due(self: &Arc<Self>, config: &ConnectConfig, background: &BackgroundThread) -> bool {
        let mut known = self.0.lock();
        if known.is_probing || known.probed.is_some_and(|probed| probed.elapsed() < PROBE_INTERVAL) {
            return false;
        }
        known.is_probing = true;
        drop(known);
        let (outage, config) = (Arc::clone(self), config.clone());
        background.spawn(async move {
            let found = probe_for_reason(&config, PROBE_LIMIT).await;
            outage.record_message(found.words, found.is_known);
            let mut known = outage.0.lock();
            (known.is_probing, known.probed) = (false, Some(Instant::now()));
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zookeeper::options::ZooKeeperBuilder;
    use crate::zookeeper::servers::ConnectString;

    #[test]
    fn an_earlier_refusal_is_not_reported_as_the_reason() {
        let (outage, before) = (Outage::default(), Instant::now());
        outage.record_failure(&Failure::Refused("it is full".to_owned()));
        assert_eq!(outage.message_since(before).as_deref(), Some("it is full"));
        assert_eq!(outage.message_since(Instant::now() + Duration::from_nanos(1)), None);
    }

    #[test]
    fn a_message_without_a_reason_does_not_replace_one() {
        let (outage, before) = (Outage::default(), Instant::now());
        let message_after = |failure: Failure| {
            outage.record_failure(&failure);
            outage.message_since(before).expect("a failure")
        };
        assert_eq!(message_after(Failure::Unreachable("no answer".to_owned())), "no answer");
        assert_eq!(
            message_after(Failure::Unreachable("no route".to_owned())),
            "no route",
            "the newest message is reported"
        );
        assert_eq!(message_after(Failure::Refused("it is full".to_owned())), "it is full");
        assert_eq!(message_after(Failure::Unreachable("no answer".to_owned())), "it is full");
        assert_eq!(message_after(Failure::Over(SessionEnd::AuthFailed)), SessionEnd::AuthFailed.to_string());
    }

    #[test]
    fn servers_are_probed_at_most_once_a_second() {
        let outage = Arc::new(Outage::default());
        let (servers, background) =
            (ConnectString::parse("127.0.0.1:1").unwrap(), BackgroundThread::get_or_start().unwrap());
        let config = ConnectConfig { servers, options: ZooKeeperBuilder::new() };
        let probes = || outage.start_probe_if_due(&config, &background);
        assert_eq!([probes(), probes()], [true, false], "a probe is under way");
        for _ in 0..60_000 {
            if !outage.0.lock().is_probing {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // The end of the probe is recorded a minute too late. So the next probe is not due, even if the machine delays
        // the test.
        let ended = outage.0.lock().probed.replace(Instant::now() + Duration::from_secs(60));
        assert!(ended.is_some() && !probes(), "a probe ended just now");
        let earlier = Instant::now().checked_sub(2 * PROBE_INTERVAL).unwrap();
        outage.0.lock().probed = Some(earlier);
        assert!(probes());
    }

    #[test]
    fn an_outage_lasts_from_disconnect_to_the_next_session() {
        let (outage, lost) = (Outage::default(), Instant::now());
        assert_eq!(outage.lost_at(), None);
        outage.record_start(lost, None, SessionEnd::Expired);
        assert_eq!(outage.lost_at(), Some(lost));
        assert_eq!(outage.message_since(lost), Some(SessionEnd::Expired.to_string()));
        outage.record_failure(&Failure::Unreachable("no answer".to_owned()));
        assert_eq!(outage.message_since(lost).as_deref(), Some("no answer"), "an expiry is not a reason");
        outage.record_start(lost, None, SessionEnd::AuthFailed);
        outage.record_failure(&Failure::Unreachable("no answer".to_owned()));
        assert_eq!(outage.message_since(lost), Some(SessionEnd::AuthFailed.to_string()), "a refused login is a reason");
        outage.record_end();
        assert_eq!(outage.lost_at(), None);
    }
}
