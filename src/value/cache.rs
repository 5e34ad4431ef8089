//! A copy of the value, kept fresh by a watch; knows no locks.
//!
//! The bytes are kept as they come from the ensemble. The first caller that asks for the value decodes them. So the
//! thread that keeps the sessions alive runs no user code.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::call;
use crate::error::error::Error;
use crate::error::value::ValueError;
use crate::session::contract::{Coordinator, Session};
use crate::session::existence;
use crate::session::lease::Lease;
use crate::session::request::{Event, Failure, Stat, Watch};
use crate::session::retry;
use crate::session::second_look::{self, SecondLook};
use crate::sync::{Mutex, OnceLock, watch};
use crate::value::background::{self, Reserving};
use crate::value::codec::{Stored, Terms};
use crate::value::known::{CopyState, Known, Seen};

/// How long to wait before the next try after a refusal, or after a request that could not be sent.
const PAUSE: Duration = Duration::from_secs(1);

/// The operation that an error names.
const WATCH: &str = "watch";

/// A copy of the value in this process, and the watch that keeps it fresh.
pub(crate) struct Cache<T> {
    /// Dropped first, so that the watch and its session slot are given up before the coordinator is.
    following: OnceLock<oneshot::Sender<()>>,
    known: watch::Sender<Known<T>>,
    last_good: Mutex<LastGood<T>>,
    pub(crate) coordinator: Arc<dyn Coordinator>,
    /// The value's node.
    pub(crate) path: String,
    pub(crate) terms: Terms<T>,
}

/// The newest value of the copy, and the number of its news.
type LastGood<T> = Option<(u64, Arc<Stored<T>>)>;

impl<T> Cache<T> {
    pub(crate) fn new(coordinator: Arc<dyn Coordinator>, path: String, terms: Terms<T>) -> Arc<Cache<T>> {
        let (following, known) = (OnceLock::new(), watch::Sender::new(Known::default()));
        Arc::new(Cache { following, known, last_good: Mutex::new(None), coordinator, path, terms })
    }

    pub(crate) fn fault(&self, error: ValueError) -> Error {
        Error::Value { path: self.path.clone(), error }
    }

    /// How many bytes of paths are watched: the node's, or a directory's above it.
    fn watched_bytes(&self) -> usize {
        self.path.len()
    }
}

impl<T: Send + Sync + 'static> Cache<T> {
    /// The newest value that has come from the ensemble.
    pub(crate) fn latest(self: &Arc<Self>) -> Option<Arc<Stored<T>>> {
        self.follow();
        let newest = self.known.borrow().newest.clone()?;
        match self.made(&newest) {
            Ok(value) => Some(value),
            Err(_) => self.last_good.lock().clone().map(|(_, value)| value),
        }
    }

    /// How fresh the newest value is.
    pub(crate) fn state(self: &Arc<Self>) -> CopyState {
        self.follow();
        let (state, newest) = {
            let known = self.known.borrow();
            (known.state(), known.newest.clone())
        };
        match (state, newest) {
            (state @ (CopyState::Current | CopyState::Disconnected), Some(newest)) => {
                self.made(&newest).map_or_else(CopyState::Behind, |_| state)
            }
            (state, _) => state,
        }
    }

    /// What is known, and its changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Known<T>> {
        self.known.subscribe()
    }

    /// Starts the watch, once.
    pub(crate) fn follow(self: &Arc<Self>) {
        self.following.get_or_init(|| {
            let (stop, stopped) = oneshot::channel();
            let follower = Follower { cache: Arc::downgrade(self) };
            let started = background::start(&self.coordinator, self.watched_bytes(), |reserving| {
                Box::pin(follower.follow(reserving, stopped))
            });
            if let Err(error) = started {
                self.over(Error::Unreachable(error.to_string()));
            }
            stop
        });
    }

    /// The value of the bytes that were seen. The first caller that asks decodes them.
    ///
    /// A format is the user's code: it may take long, panic, or look at this copy. So no lock is held meanwhile, and another
    /// caller does not wait for the first one, but decodes, too.
    pub(crate) fn made(&self, seen: &Seen<T>) -> Result<Arc<Stored<T>>, Error> {
        if let Some(made) = seen.made.get() {
            return made.clone();
        }
        let bytes = Arc::clone(&seen.bytes());
        let made = self.terms.open(&bytes).map(Arc::new).map_err(|error| self.fault(error));
        let made = seen.made.get_or_init(|| made).clone();
        *seen.bytes() = Arc::default();
        // The value that all share: it is kept on, and so is not dropped where it is replaced, on the session's thread.
        if let Ok(value) = &made {
            self.is_good(seen.news, value);
        }
        made
    }

    fn is_good(&self, news: u64, value: &Arc<Stored<T>>) {
        let mut last = self.last_good.lock();
        let is_newer = last.as_ref().is_none_or(|(before, _)| *before < news);
        let before = is_newer.then(|| last.replace((news, Arc::clone(value))));
        drop(last);
        // Not under the lock: a value may do anything when it is dropped.
        drop(before);
    }

    /// A commit of our own, on the session with this lease, is known before a watch reports it.
    pub(crate) fn committed(&self, lease: &Lease, bytes: &[u8], version: i32) {
        if self.following.get().is_none() {
            return;
        }
        // After the end of its session the ensemble may have come back without it.
        self.known.send_if_modified(|known| lease.over().is_none() && known.committed(bytes, version));
    }

    fn came(&self, bytes: Vec<u8>, stat: Stat, lease: &Arc<Lease>, synced: u64) {
        self.known.send_if_modified(|known| {
            known.lease = Some(Arc::clone(lease));
            match self.terms.check(&bytes) {
                Ok(()) => known.read(bytes, stat.czxid, stat.version, synced),
                Err(error) => known.troubled(self.fault(error)),
            }
        });
    }

    /// There is no value.
    fn unset(&self) {
        self.troubled(self.fault(ValueError::Unset));
    }

    /// There was a value a moment ago. If there is none again, that is news.
    pub(crate) fn was_set(&self) {
        self.known.send_if_modified(|known| {
            let is_unset = |(_, error): &mut (u64, Error)| error.value_error() == Some(&ValueError::Unset);
            drop(known.trouble.take_if(is_unset));
            false
        });
    }

    fn troubled(&self, error: Error) {
        self.known.send_if_modified(|known| known.troubled(error));
    }

    pub(crate) fn over(&self, error: Error) {
        self.known.send_modify(|known| known.over = Some(error));
    }
}

/// Watches the node for as long as a handle exists, without keeping the handle alive.
struct Follower<T> {
    cache: Weak<Cache<T>>,
}

impl<T: Send + Sync + 'static> Follower<T> {
    async fn follow(self, reserving: Reserving, stopped: oneshot::Receiver<()>) {
        tokio::select! {
            biased;
            _ = stopped => {}
            () = self.follow_on(reserving) => {}
        }
    }

    /// Watches on one session after the other.
    async fn follow_on(&self, mut reserving: Reserving) {
        loop {
            let answer = reserving.await;
            match answer {
                Ok(session_slot) => self.watch(session_slot.session()).await,
                Err(failure) => {
                    let Some(cache) = self.cache.upgrade() else { return };
                    let is_over = matches!(failure, Failure::Over(_));
                    let error = Error::from_failure(failure, WATCH, &cache.path);
                    match error {
                        error if is_over => return cache.over(error),
                        // The connection is lost. That says nothing about the value.
                        Error::Unreachable(_) | Error::OutcomeUnknown { .. } => {}
                        error => cache.troubled(error),
                    }
                    let pause = cache.coordinator.sleep(PAUSE);
                    drop(cache);
                    pause.await;
                }
            }
            let Some(cache) = self.cache.upgrade() else { return };
            reserving = background::session_slot(Arc::clone(&cache.coordinator), cache.watched_bytes());
        }
    }

    /// Watches until the session is over.
    async fn watch(&self, session: &Arc<dyn Session>) {
        let (cache, look) = (&self.cache, SecondLook::new(session));
        let Some(path) = cache.upgrade().map(|cache| cache.path.clone()) else { return };
        let mut shown = Shown { cache, session, path, synced: None, outdated: None, look };
        while !shown.follow().await {}
        call::is_known_to_be_over(session).await;
    }
}

/// What the server of one session shows of the node.
struct Shown<'a, T> {
    cache: &'a Weak<Cache<T>>,
    session: &'a Arc<dyn Session>,
    path: String,
    /// What was known when the server was last brought up to date: it may lag behind what another one has shown us.
    synced: Option<u64>,
    /// What it has shown, and the leader did not have any more.
    outdated: Option<Stat>,
    look: SecondLook<'a>,
}

impl<T: Send + Sync + 'static> Shown<'_, T> {
    /// Looks once, and waits until the node may hold something else. Returns whether the session is over, or the handle gone.
    async fn follow(&mut self) -> bool {
        let looked = self.look_and_watch().await;
        let Some(cache) = self.cache.upgrade() else { return true };
        match looked {
            Ok((bytes, stat, change)) => {
                self.tell(&cache, bytes, stat);
                drop(cache);
                return self.wait_for_change(stat, change).await;
            }
            Err(Failure::NoNode) => {
                cache.unset();
                drop(cache);
                return existence::possible(self.session, &self.path).await.is_err();
            }
            Err(Failure::Over(_)) => return true,
            // The answer was lost. That says nothing about the value.
            Err(Failure::Unknown(_)) => {}
            Err(failure) => cache.troubled(Error::from_failure(failure, WATCH, &self.path)),
        }
        drop(cache);
        self.session.sleep(PAUSE).await;
        false
    }

    /// Reads the node, and arms a watch that reports the first change after the read.
    async fn look_and_watch(&mut self) -> Result<(Vec<u8>, Stat, Watch), Failure> {
        let (session, path) = (self.session, &self.path);
        if self.synced.is_none() {
            let known = self.news();
            retry::until_known(session, || session.sync(path)).await?;
            self.synced = Some(known);
        }
        let looked = retry::until_known(session, || {
            // The watch is sent first: a change between the two requests is in the data, and is reported too.
            let (change, node) = (session.watch(path), session.data(path));
            Box::pin(async move {
                let change = change.await?;
                let (bytes, stat) = node.await?;
                Ok((bytes, stat, change))
            })
        });
        looked.await
    }

    fn tell(&self, cache: &Cache<T>, bytes: Vec<u8>, stat: Stat) {
        if self.outdated == Some(stat) {
            let (path, reason) = (self.path.clone(), second_look::diverged(self.session, &self.path));
            cache.troubled(Error::Refused { operation: WATCH, path, reason });
        } else if bytes.is_empty() {
            // An operator has made an empty node for a value to come.
            cache.unset();
        } else {
            cache.came(bytes, stat, self.session.lease(), self.synced.unwrap_or_default());
        }
    }

    /// Waits until the node may hold something else. Returns whether the session is over.
    async fn wait_for_change(&mut self, stat: Stat, change: Watch) -> bool {
        tokio::select! {
            biased;
            event = change => {
                self.look.heard();
                return event == Event::Over;
            }
            () = self.look.pause() => {}
        }
        // Read in any case: what a server has lost may have come again with the same version. The leader's answer brings it
        // up to date.
        let known = self.news();
        if let Some(is_there) = second_look::is_there(self.session, self.path.clone(), Some(stat.version)).await {
            (self.synced, self.outdated) = (Some(known), (!is_there).then_some(stat));
        }
        false
    }

    fn news(&self) -> u64 {
        self.cache.upgrade().map_or(0, |cache| cache.known.borrow().news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::client::Memory;
    use crate::session::request::Ending;
    use crate::value::format::Raw;

    fn trouble(reason: &str) -> Error {
        Error::Unreachable(reason.to_owned())
    }

    /// A copy that follows nothing by itself.
    fn copy() -> Arc<Cache<String>> {
        let copy = Cache::new(Arc::new(Memory::new()), "/value".to_owned(), Terms::new(Raw));
        let (stop, _) = oneshot::channel();
        copy.following.set(stop).expect("it does not follow yet");
        copy
    }

    #[test]
    fn a_commit_is_in_the_copy_at_once_unless_it_made_the_node() {
        let copy = copy();
        let version = |copy: &Cache<String>| copy.known.borrow().newest.as_ref().map(|newest| newest.version);
        let lease = Lease::new(Duration::from_secs(6));
        copy.committed(&lease, b"x", 1);
        assert_eq!(version(&copy), None, "nothing is known of the node");
        copy.known.send_modify(|known| assert!(known.read(Vec::new(), 10, -5, 0)));
        for (committed, known) in [(0, -5), (1, 1), (2, 2)] {
            copy.committed(&lease, b"x", committed);
            assert_eq!(version(&copy), Some(known), "version {committed} was committed");
        }
        lease.end(Ending::Expired);
        copy.committed(&lease, b"x", 3);
        assert_eq!(version(&copy), Some(2), "the ensemble may have come back without it");
    }

    #[test]
    fn a_copy_that_cannot_follow_says_why() {
        let copy = copy();
        assert!(matches!(copy.state(), CopyState::Fetching));
        copy.troubled(trouble("a"));
        assert!(matches!(copy.state(), CopyState::Behind(Error::Unreachable(reason)) if reason == "a"));
    }
}
