//! Since when there is no session, and the last reason; knows no sessions.
//!
//! The client crate reports the reason of a failed attempt only in its log. So when a program asks for it, each
//! server's port is tried, in the background. That distinguishes a server that is down, a network that is down, and a
//! silent server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::session::request::{Ending, Failure};
use crate::session::thread::BackgroundThread;
use crate::zookeeper::servers::Servers;
use crate::zookeeper::translate::UNTRUSTED_HINT;

/// Servers are tried no more often than this, however often a program asks.
const BETWEEN_TRIALS: Duration = Duration::from_secs(1);

/// A server that has not accepted the connection by then is reported as not answering.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is known of the time without a session, or without a connection of the session.
#[derive(Debug, Default)]
pub(super) struct Outage(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// When the last session lost its connection, if that session is over and no other has begun.
    since: Option<Instant>,
    refusal: Option<Refusal>,
    is_tried: bool,
    tried: Option<Instant>,
}

#[derive(Debug)]
struct Refusal {
    at: Instant,
    words: String,
    /// Whether the words give the reason, and not merely the fact.
    is_reason: bool,
}

impl Outage {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last session is over. It lost its connection at `lost`.
    pub(super) fn begins(&self, lost: Instant, ending: Ending) {
        self.known().since = Some(lost);
        self.refused(ending.to_string(), ending == Ending::AuthFailed);
    }

    /// There is a session again.
    pub(super) fn ends(&self) {
        self.known().since = None;
    }

    /// When the last session lost its connection, if no other has begun.
    pub(super) fn since(&self) -> Option<Instant> {
        self.known().since
    }

    /// An attempt to open a session has failed.
    pub(super) fn failed(&self, failure: &Failure) {
        match failure {
            // No server has given a reason.
            Failure::Unreachable(words) => self.refused(words.clone(), false),
            Failure::Over(ending) => self.refused(ending.to_string(), true),
            Failure::Refused(words) => self.refused(words.clone(), true),
            other => self.refused(other.to_string(), true),
        }
    }

    fn refused(&self, words: String, is_reason: bool) {
        let mut known = self.known();
        // Words without a reason must not hide words with one.
        let stays = known.refusal.as_ref().is_some_and(|last| last.is_reason && last.at.elapsed() < 2 * BETWEEN_TRIALS);
        if is_reason || !stays {
            known.refusal = Some(Refusal { at: Instant::now(), words, is_reason });
        }
    }

    /// The words of the last refusal after `since`.
    pub(super) fn why(&self, since: Instant) -> Option<String> {
        let known = self.known();
        known.refusal.as_ref().filter(|refusal| refusal.at >= since).map(|refusal| refusal.words.clone())
    }

    /// Tries the ports of the servers in the background, unless a trial is under way or ended just now. Returns whether
    /// a trial is under way.
    pub(super) fn look_into(
        self: &Arc<Self>,
        servers: &Servers,
        is_encrypted: bool,
        background: &BackgroundThread,
    ) -> bool {
        let mut known = self.known();
        if known.is_tried || known.tried.is_some_and(|tried| tried.elapsed() < BETWEEN_TRIALS) {
            return false;
        }
        known.is_tried = true;
        drop(known);
        let (outage, addresses) = (Arc::clone(self), servers.each().map(|server| server.address()).collect());
        background.handle().spawn(async move {
            let (mut words, is_reason) = tried(addresses).await;
            if !is_reason && is_encrypted {
                words.push_str(UNTRUSTED_HINT);
            }
            outage.refused(words, is_reason);
            let mut known = outage.known();
            (known.is_tried, known.tried) = (false, Some(Instant::now()));
        });
        true
    }
}

/// Connects to each server, and sends nothing. Returns the outcome in words, and whether they give the reason.
async fn tried(addresses: Vec<String>) -> (String, bool) {
    let mut trials = JoinSet::new();
    for (index, address) in addresses.into_iter().enumerate() {
        trials.spawn(async move {
            let (words, takes) = match tokio::time::timeout(PATIENCE, TcpStream::connect(&address)).await {
                Ok(Ok(_)) => (format!("{address} takes connections, but no session comes of them"), true),
                Ok(Err(error)) => (format!("{address}: {error}"), false),
                Err(_) => (format!("{address} does not answer"), false),
            };
            (index, words, takes)
        });
    }
    let mut answers = trials.join_all().await;
    answers.sort_unstable_by_key(|(index, ..)| *index);
    let is_reason = answers.iter().all(|(_, _, takes)| !takes);
    let words: Vec<_> = answers.into_iter().map(|(_, words, _)| words).collect();
    (words.join("; "), is_reason)
}
