//! Since when there is no session, and the words of the last refusal; knows no sessions.
//!
//! The client crate tells the reason of a failed attempt to its log alone. So when a program asks why, each server's port
//! is tried, in the background. That tells apart a server that is down, a network that is, and a server that is silent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::session::request::{Ending, Failure};
use crate::session::thread::BackgroundThread;
use crate::zookeeper::servers::Servers;
use crate::zookeeper::translate::UNTRUSTED_HINT;

/// A program may ask as often as it likes; servers are tried no more often than this.
const BETWEEN_TRIALS: Duration = Duration::from_secs(1);

/// A server that has not taken the connection by then is said not to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is known of the time without a session, or without a connection of it.
#[derive(Debug, Default)]
pub(super) struct Outage(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// When the last session lost its connection, if that session is over and there has been none since.
    since: Option<Instant>,
    refusal: Option<Refusal>,
    is_tried: bool,
    tried: Option<Instant>,
}

#[derive(Debug)]
struct Refusal {
    at: Instant,
    words: String,
    /// Whether the words say what is wrong, rather than merely that something is.
    is_reason: bool,
}

impl Outage {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last session is over, which lost its connection then.
    pub(super) fn begins(&self, lost: Instant, ending: Ending) {
        self.known().since = Some(lost);
        self.refused(ending.to_string(), ending == Ending::AuthFailed);
    }

    /// There is a session again.
    pub(super) fn ends(&self) {
        self.known().since = None;
    }

    /// When the last session lost its connection, if there has been none since.
    pub(super) fn since(&self) -> Option<Instant> {
        self.known().since
    }

    /// An attempt to open a session has failed.
    pub(super) fn failed(&self, failure: &Failure) {
        match failure {
            // Nobody has said anything.
            Failure::Unreachable(words) => self.refused(words.clone(), false),
            Failure::Over(ending) => self.refused(ending.to_string(), true),
            Failure::Refused(words) => self.refused(words.clone(), true),
            other => self.refused(other.to_string(), true),
        }
    }

    fn refused(&self, words: String, is_reason: bool) {
        let mut known = self.known();
        // What says nothing must not hide what says something.
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

    /// Tries the ports of the servers, in the background, unless that is being done or was done just now. Whether it is
    /// done.
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

/// Connects to each server, sends nothing, and tells what came of it, and whether that says what is wrong.
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
