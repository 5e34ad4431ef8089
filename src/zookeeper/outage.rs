//! Since when there is no session, and the last reason.
//!
//! When a program asks for the reason, each server is [asked](crate::zookeeper::probe), in the background.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::session::request::{Ending, Failure};
use crate::session::thread::BackgroundThread;
use crate::sync::Mutex;
use crate::zookeeper::connect::Reconnect;
use crate::zookeeper::options::ZooKeeperBuilder;
use crate::zookeeper::probe::{PROBE_LIMIT, reason};
use crate::zookeeper::servers::Servers;

/// Servers are asked no more often than this, however often a program asks.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// What is known of the time without a session, or without a connection of the session.
#[derive(Default)]
pub(super) struct Outage(Mutex<OutageState>);

#[derive(Default)]
struct OutageState {
    /// When the last session lost its connection, if that session is over and no other has begun. And when the next session
    /// may be asked for, if the last one was lost.
    lost: Option<(Instant, Option<Reconnect>)>,
    refusal: Option<Refusal>,
    is_probing: bool,
    probed: Option<Instant>,
}

struct Refusal {
    at: Instant,
    words: String,
    /// Whether the words give the reason, and not merely the fact.
    is_reason: bool,
}

impl Outage {
    /// The last session is over. It lost its connection at `lost`.
    pub(super) fn begins(&self, lost: Instant, reconnect: Option<Reconnect>, ending: Ending) {
        self.0.lock().lost = Some((lost, reconnect));
        self.refused(ending.to_string(), ending == Ending::AuthFailed);
    }

    /// There is a session again.
    pub(super) fn ends(&self) {
        self.0.lock().lost = None;
    }

    /// When the last session lost its connection, if no other has begun.
    pub(super) fn since(&self) -> Option<Instant> {
        self.0.lock().lost.map(|(since, _)| since)
    }

    /// When the next session may be asked for, if it takes the place of a lost one.
    pub(super) fn reconnect(&self) -> Option<Reconnect> {
        self.0.lock().lost.and_then(|(_, reconnect)| reconnect)
    }

    /// An attempt to open a session has failed.
    pub(super) fn failed(&self, failure: &Failure) {
        match failure {
            // No server has given a reason.
            Failure::Unreachable(words) => self.refused(words.clone(), false),
            Failure::Refused(words) => self.refused(words.clone(), true),
            other => self.refused(other.to_string(), true),
        }
    }

    fn refused(&self, words: String, is_reason: bool) {
        let mut known = self.0.lock();
        // Words without a reason must not hide words with one.
        let stays = known.refusal.as_ref().is_some_and(|last| last.is_reason && last.at.elapsed() < 2 * PROBE_INTERVAL);
        if is_reason || !stays {
            known.refusal = Some(Refusal { at: Instant::now(), words, is_reason });
        }
    }

    /// The words of the last refusal after `since`.
    pub(super) fn why(&self, since: Instant) -> Option<String> {
        let known = self.0.lock();
        known.refusal.as_ref().filter(|refusal| refusal.at >= since).map(|refusal| refusal.words.clone())
    }

    /// Asks the servers for the reason, in the background, unless they are being asked or were asked just now. Returns
    /// whether it begins to ask.
    pub(super) fn probe(
        self: &Arc<Self>,
        servers: &Servers,
        options: &ZooKeeperBuilder,
        background: &BackgroundThread,
    ) -> bool {
        let mut known = self.0.lock();
        if known.is_probing || known.probed.is_some_and(|probed| probed.elapsed() < PROBE_INTERVAL) {
            return false;
        }
        known.is_probing = true;
        drop(known);
        let (outage, servers, options) = (Arc::clone(self), servers.clone(), options.clone());
        background.handle().spawn(async move {
            let found = reason(&servers, &options, PROBE_LIMIT).await;
            outage.refused(found.words, found.is_known);
            let mut known = outage.0.lock();
            (known.is_probing, known.probed) = (false, Some(Instant::now()));
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_refusal_is_not_reported_as_the_reason() {
        let (outage, before) = (Outage::default(), Instant::now());
        outage.failed(&Failure::Refused("it is full".to_owned()));
        assert_eq!(outage.why(before).as_deref(), Some("it is full"));
        assert_eq!(outage.why(Instant::now() + Duration::from_nanos(1)), None);
    }

    #[test]
    fn a_message_without_a_reason_does_not_replace_one() {
        let (outage, before) = (Outage::default(), Instant::now());
        let told = |failure: Failure| {
            outage.failed(&failure);
            outage.why(before).expect("it was refused")
        };
        assert_eq!(told(Failure::Unreachable("no answer".to_owned())), "no answer");
        assert_eq!(told(Failure::Unreachable("no route".to_owned())), "no route", "the newest words");
        assert_eq!(told(Failure::Refused("it is full".to_owned())), "it is full");
        assert_eq!(told(Failure::Unreachable("no answer".to_owned())), "it is full");
        assert_eq!(told(Failure::Over(Ending::AuthFailed)), Ending::AuthFailed.to_string());
    }

    #[test]
    fn servers_are_probed_at_most_once_a_second() {
        let outage = Arc::new(Outage::default());
        let (servers, background) = (Servers::parse("127.0.0.1:1").unwrap(), BackgroundThread::get().unwrap());
        let looks = || outage.probe(&servers, &ZooKeeperBuilder::new(), &background);
        assert_eq!([looks(), looks()], [true, false], "they are being asked");
        for _ in 0..60_000 {
            if !outage.0.lock().is_probing {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Later than now, so that a machine that pauses here changes nothing.
        let asked = outage.0.lock().probed.replace(Instant::now() + Duration::from_secs(60));
        assert!(asked.is_some() && !looks(), "they were asked just now");
        let earlier = Instant::now().checked_sub(2 * PROBE_INTERVAL).unwrap();
        outage.0.lock().probed = Some(earlier);
        assert!(looks());
    }

    #[test]
    fn an_outage_lasts_from_disconnect_to_the_next_session() {
        let (outage, lost) = (Outage::default(), Instant::now());
        assert_eq!(outage.since(), None);
        outage.begins(lost, None, Ending::Expired);
        assert_eq!(outage.since(), Some(lost));
        assert_eq!(outage.why(lost), Some(Ending::Expired.to_string()));
        outage.failed(&Failure::Unreachable("no answer".to_owned()));
        assert_eq!(outage.why(lost).as_deref(), Some("no answer"), "that it has expired is no reason");
        outage.begins(lost, None, Ending::AuthFailed);
        outage.failed(&Failure::Unreachable("no answer".to_owned()));
        assert_eq!(outage.why(lost), Some(Ending::AuthFailed.to_string()), "that it was refused is one");
        outage.ends();
        assert_eq!(outage.since(), None);
    }
}
