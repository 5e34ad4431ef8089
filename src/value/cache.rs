//! A copy of the value, kept fresh by a watch; knows no locks.
//!
//! What comes from the ensemble is kept as it came, and made a value of by whoever asks for it first: the thread that
//! keeps the sessions alive runs no code of users.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::{oneshot, watch};

use crate::error::error::Error;
use crate::error::value::ValueError;
use crate::session::contract::{Berth, Coordinator, Session};
use crate::session::lease::Lease;
use crate::session::request::{Event, Failure, Stat, Watch};
use crate::session::thread::Keeper;
use crate::ticket::ticket;
use crate::value::shared::{Inner, Shared, Stored};

/// How soon it is tried again what was refused, or could not be asked.
const PAUSE: Duration = Duration::from_secs(1);

/// A directory that others use, too, is looked at no more often than that.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// How fresh the copy is that [`Shared::latest`] gives.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CopyState {
    /// Nothing has come yet.
    Fetching,
    /// The connection is up, and the node is watched: a change is told as soon as the server knows it.
    Current,
    /// The connection is lost. What has changed since then is told when it is back.
    Disconnected,
    /// What the node holds now is no value, or cannot be read. [`Shared::latest`] goes on giving the last one that was.
    Behind(Error),
    /// The coordinator was closed, and nothing more will come.
    Over(Error),
}

/// What is known of the node.
pub(crate) struct Copy<T> {
    /// The newest that looked like a value.
    newest: Option<Arc<Seen<T>>>,
    /// Why what is there now is none.
    trouble: Option<(u64, Error)>,
    /// Counts what came.
    news: u64,
    /// Of the session that watches.
    lease: Option<Arc<Lease>>,
    over: Option<Error>,
}

/// What was in the node once.
pub(crate) struct Seen<T> {
    news: u64,
    czxid: i64,
    version: i32,
    /// Emptied when a value is made of it.
    bytes: Mutex<Vec<u8>>,
    made: OnceLock<Result<Arc<Stored<T>>, Error>>,
}

impl<T> Default for Copy<T> {
    fn default() -> Self {
        Copy { newest: None, trouble: None, news: 0, lease: None, over: None }
    }
}

impl<T> Copy<T> {
    fn state(&self) -> CopyState {
        match (&self.over, &self.trouble, &self.lease) {
            (Some(error), ..) => CopyState::Over(error.clone()),
            (_, Some((_, error)), _) => CopyState::Behind(error.clone()),
            (.., Some(lease)) if self.newest.is_some() => match lease.is_connected() && lease.over().is_none() {
                true => CopyState::Current,
                false => CopyState::Disconnected,
            },
            _ => CopyState::Fetching,
        }
    }

    /// What came after `seen`: the value before what is wrong with the one that came later.
    fn news_after(&self, seen: u64) -> Option<News<T>> {
        let value = self.newest.as_ref().filter(|newest| newest.news > seen);
        let trouble = self.trouble.as_ref().filter(|(news, _)| *news > seen);
        match (value, trouble) {
            (Some(value), _) => Some(News::Value(Arc::clone(value))),
            (None, Some((news, error))) => Some(News::Trouble(*news, error.clone())),
            (None, None) => self.over.as_ref().map(|_| News::Over),
        }
    }

    fn troubled(&mut self, error: Error) -> bool {
        // The same as before is no news.
        if self.trouble.as_ref().is_some_and(|(_, before)| before.to_string() == error.to_string()) {
            return false;
        }
        self.news += 1;
        self.trouble = Some((self.news, error));
        true
    }

    /// A value came. One that is older than what is known is passed over: another server may not know yet.
    fn valued(&mut self, bytes: Vec<u8>, czxid: i64, version: i32) -> bool {
        let cleared = self.trouble.take().is_some();
        if let Some(newest) = &self.newest {
            let since = version.wrapping_sub(newest.version);
            let (is_older, is_same) = (czxid < newest.czxid, czxid == newest.czxid);
            if is_older || (is_same && since < 0) {
                return cleared;
            }
            // What could not be read for a while, and can be again, is told again.
            if is_same && since == 0 && !cleared {
                return false;
            }
        }
        self.news += 1;
        let (bytes, made) = (Mutex::new(bytes), OnceLock::new());
        self.newest = Some(Arc::new(Seen { news: self.news, czxid, version, bytes, made }));
        true
    }
}

enum News<T> {
    Value(Arc<Seen<T>>),
    Trouble(u64, Error),
    Over,
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// The newest value that has come from the ensemble: a copy in this process, kept fresh by a watch. Takes no lock,
    /// sends nothing and waits for nothing, so that it can be asked for each request that is served.
    ///
    /// The first call starts the watch, which then lasts for as long as a clone of this handle does, and usually gives
    /// `None`: wait for the first value with [`changes`](Self::changes). After that a call costs a look and an `Arc`; only
    /// the first one after a change makes a value of the new bytes.
    ///
    /// # How old it may be
    /// While connected, as old as the server's view, which is behind the others by milliseconds as a rule; a server that
    /// is cut off from its leader gives up after `syncLimit` ticks. While disconnected, as old as the disconnection:
    /// what has happened meanwhile is told after the reconnect, and also when the session had ended. It never goes back
    /// to an older value. The commits of this handle, and of its clones, are in it when they return, unless they made the
    /// node. [`copy_state`](Self::copy_state) says how fresh it is.
    ///
    /// If the node is deleted, or holds something that is no value, the last value stays, and `copy_state` and
    /// [`changes`](Self::changes) tell why.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use zk_rwlock::{Error, Memory, Shared};
    /// # let zk = Memory::new();
    /// let limit: Shared<u32> = Shared::new(&zk, "/limits/requests")?;
    /// limit.write().replacing(100).await?.commit().await?;
    ///
    /// limit.changes().next().await.expect("open")?; // once, at the start
    /// assert_eq!(**limit.latest().expect("has come"), 100);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn latest(&self) -> Option<Arc<Stored<T>>> {
        self.follow();
        let newest = self.inner.copy.borrow().newest.clone()?;
        match self.inner.made(&newest) {
            Ok(value) => Some(value),
            Err(_) => self.inner.last_good().clone().map(|(_, value)| value),
        }
    }

    /// How fresh [`latest`](Self::latest) is now. Sends nothing, and waits for nothing.
    pub fn copy_state(&self) -> CopyState {
        self.follow();
        let (state, newest) = {
            let copy = self.inner.copy.borrow();
            (copy.state(), copy.newest.clone())
        };
        match (state, newest) {
            (state @ (CopyState::Current | CopyState::Disconnected), Some(newest)) => {
                self.inner.made(&newest).map_or_else(CopyState::Behind, |_| state)
            }
            (state, _) => state,
        }
    }

    /// The values as they come, beginning with the present one. See [`ValueChanges`].
    pub fn changes(&self) -> ValueChanges<T> {
        self.follow();
        ValueChanges { shared: self.clone(), copy: self.inner.copy.subscribe(), seen: 0, changed: None }
    }

    /// Starts the watch, once.
    fn follow(&self) {
        let inner = &self.inner;
        inner.following.get_or_init(|| {
            let (stop, stopped) = oneshot::channel();
            start(inner, stopped);
            stop
        });
    }
}

impl<T: Send + Sync + 'static> Inner<T> {
    /// The value that was seen, made by the first who asks.
    fn made(&self, seen: &Seen<T>) -> Result<Arc<Stored<T>>, Error> {
        let make = || {
            // Kept until then, because a format may panic.
            let mut bytes = seen.bytes.lock().unwrap_or_else(PoisonError::into_inner);
            let opened = self.open(&bytes);
            *bytes = Vec::new();
            let value = Arc::new(opened.map_err(|error| self.fault(error))?);
            let mut last = self.last_good();
            if last.as_ref().is_none_or(|(news, _)| *news < seen.news) {
                *last = Some((seen.news, Arc::clone(&value)));
            }
            Ok(value)
        };
        seen.made.get_or_init(make).clone()
    }

    /// What we have committed ourselves is known before a watch tells.
    pub(crate) fn committed(&self, bytes: &[u8], version: i32) {
        if self.following.get().is_none() {
            return;
        }
        self.copy.send_if_modified(|copy| {
            let czxid = copy.newest.as_ref().map(|newest| newest.czxid);
            // The number of a node that was just made is not known yet; that of an earlier one would be wrong.
            czxid.filter(|_| version > 0).is_some_and(|czxid| copy.valued(bytes.to_vec(), czxid, version))
        });
    }

    fn came(&self, bytes: Vec<u8>, stat: Stat) {
        self.copy.send_if_modified(|copy| match self.check(&bytes) {
            Ok(()) => copy.valued(bytes, stat.czxid, stat.version),
            Err(error) => copy.troubled(self.fault(error)),
        });
    }

    fn troubled(&self, error: Error) {
        self.copy.send_if_modified(|copy| copy.troubled(error));
    }

    fn over(&self, error: Error) {
        self.copy.send_modify(|copy| copy.over = Some(error));
    }
}

type Berthing = Pin<Box<dyn Future<Output = Result<Berth, Failure>> + Send>>;

/// Has the node watched from now on: on the session's own thread, or, on the embedded ensemble, by whoever changes it.
fn start<T: Send + Sync + 'static>(inner: &Arc<Inner<T>>, stopped: oneshot::Receiver<()>) {
    let mut berthing = berth(Arc::clone(&inner.coordinator), inner.watched_bytes());
    let follower = Follower { inner: Arc::downgrade(inner) };
    // As a rule it is there at once, and the embedded ensemble has no thread of its own.
    match berthing.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(berth)) => {
            let session = Arc::clone(berth.session());
            session.spawn(Box::pin(follower.follow(Box::pin(std::future::ready(Ok(berth))), stopped)));
        }
        answer => {
            let berthing: Berthing = match answer {
                Poll::Ready(failure) => Box::pin(std::future::ready(failure)),
                Poll::Pending => berthing,
            };
            match Keeper::get() {
                Ok(keeper) => {
                    let handle = keeper.handle().clone();
                    handle.spawn(async move {
                        follower.follow(berthing, stopped).await;
                        drop(keeper);
                    });
                }
                Err(error) => inner.over(Error::Unreachable(error.to_string())),
            }
        }
    }
}

fn berth(coordinator: Arc<dyn Coordinator>, watched_bytes: usize) -> Berthing {
    Box::pin(async move { coordinator.berth(watched_bytes).await })
}

/// Watches the node for as long as anybody has the handle, without keeping it.
struct Follower<T> {
    inner: Weak<Inner<T>>,
}

impl<T: Send + Sync + 'static> Follower<T> {
    async fn follow(self, berthing: Berthing, stopped: oneshot::Receiver<()>) {
        tokio::select! {
            biased;
            _ = stopped => {}
            () = self.follow_on(berthing) => {}
        }
    }

    /// Session after session.
    async fn follow_on(&self, mut berthing: Berthing) {
        loop {
            let answer = berthing.await;
            match answer {
                Ok(berth) => self.watch(berth.session()).await,
                Err(failure) => {
                    let Some(inner) = self.inner.upgrade() else { return };
                    let is_over = matches!(failure, Failure::Over(_));
                    let error = Error::from_failure(failure, "watch", &inner.path);
                    match error {
                        error if is_over => return inner.over(error),
                        // The connection is lost, which is no news of the value.
                        Error::Unreachable(_) | Error::OutcomeUnknown { .. } => {}
                        error => inner.troubled(error),
                    }
                    let pause = inner.coordinator.sleep(PAUSE);
                    drop(inner);
                    pause.await;
                }
            }
            let Some(inner) = self.inner.upgrade() else { return };
            berthing = self::berth(Arc::clone(&inner.coordinator), inner.watched_bytes());
        }
    }

    /// Until the session is over.
    async fn watch(&self, session: &Arc<dyn Session>) {
        let Some(path) = self.inner.upgrade().map(|inner| {
            inner.copy.send_modify(|copy| copy.lease = Some(Arc::clone(session.lease())));
            inner.path.clone()
        }) else {
            return;
        };
        // Another server may not know yet what the last one has shown us.
        let mut synced = ticket::settled(session, || session.sync(&path)).await;
        loop {
            let looked = match synced {
                Ok(()) => look_and_watch(session, &path).await,
                Err(failure) => Err(failure),
            };
            synced = Ok(());
            let ended = match looked {
                Ok((bytes, stat, change)) => {
                    let Some(inner) = self.inner.upgrade() else { return };
                    // An empty node has been made for a value, by somebody who may do that.
                    if bytes.is_empty() {
                        inner.troubled(inner.fault(ValueError::Unset));
                    } else {
                        inner.came(bytes, stat);
                    }
                    drop(inner);
                    change.await == Event::Over
                }
                Err(Failure::NoNode) => {
                    let Some(inner) = self.inner.upgrade() else { return };
                    inner.troubled(inner.fault(ValueError::Unset));
                    drop(inner);
                    appears(session, &path).await.is_err()
                }
                Err(Failure::Over(_)) => true,
                Err(Failure::Unknown(_)) => {
                    session.sleep(PAUSE).await;
                    false
                }
                Err(failure) => {
                    let Some(inner) = self.inner.upgrade() else { return };
                    inner.troubled(Error::from_failure(failure, "watch", &inner.path));
                    drop(inner);
                    session.sleep(PAUSE).await;
                    false
                }
            };
            if ended {
                // Its requests fail a moment before it counts as over, and until then it is given out again.
                return tokio::select! {
                    _ = session.over() => {}
                    () = session.sleep(session.timeout() / 20) => {}
                };
            }
        }
    }
}

/// What is in the node, and a watch that tells of the first change after it.
async fn look_and_watch(session: &Arc<dyn Session>, path: &str) -> Result<(Vec<u8>, Stat, Watch), Failure> {
    let looked = ticket::settled(session, || {
        // In this order: what changes between the two is in the data, and told besides.
        let (change, node) = (session.watch(path), session.data(path));
        Box::pin(async move {
            let change = change.await?;
            let (bytes, stat) = node.await?;
            Ok((bytes, stat, change))
        })
    });
    looked.await
}

/// Waits until the node may be there. Watches the children of the nearest directory above it that exists: to watch what
/// does not exist would leave a watch behind that nobody can take back.
async fn appears(session: &Arc<dyn Session>, path: &str) -> Result<(), Failure> {
    let mut wanted = path;
    loop {
        let (directory, name) = wanted.rsplit_once('/').unwrap_or_default();
        let directory = if directory.is_empty() { "/" } else { directory };
        match ticket::settled(session, || session.watch_children(directory)).await {
            Ok((names, _)) if names.iter().any(|it| it == name) => return Ok(()),
            Ok((names, change)) => {
                drop(names);
                if change.await == Event::Over {
                    return Err(Failure::Over(session.over().await));
                }
                if wanted != path {
                    session.sleep(LOOK_PAUSE).await;
                }
                return Ok(());
            }
            Err(Failure::NoNode) if directory != "/" => wanted = directory,
            Err(failure @ Failure::Over(_)) => return Err(failure),
            Err(_) => {
                session.sleep(PAUSE).await;
                return Ok(());
            }
        }
    }
}

/// The values of a [`Shared`], as they come. Made by [`Shared::changes`]; it keeps the watch up for as long as it lives.
///
/// It is a [`Stream`] as well, of what [`next`](Self::next) gives, for the combinators of `futures` and `tokio-stream`.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "json")]
/// # tokio_test::block_on(async {
/// # use zk_rwlock::{Error, Memory, Shared};
/// # let zk = Memory::new();
/// let limit: Shared<u32> = Shared::builder(&zk, "/limits/requests").initial(|| 100).build()?;
/// limit.read().await?; // writes the first one
/// let mut changes = limit.changes();
/// assert_eq!(**changes.next().await.expect("open")?, 100);
/// limit.write().replacing(200).await?.commit().await?;
/// assert_eq!(**changes.next().await.expect("open")?, 200);
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
pub struct ValueChanges<T> {
    shared: Shared<T>,
    copy: watch::Receiver<Copy<T>>,
    seen: u64,
    /// Ends at the next change of the copy, which may be no news.
    changed: Option<Changed>,
}

type Changed = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl<T: Send + Sync + 'static> ValueChanges<T> {
    /// Waits for the next value; the first call gives the present one, as soon as it has come. Values that came and went
    /// between two calls are passed over, the newest never is. `None` once the coordinator was closed.
    ///
    /// An error tells, once, that what the node holds now is no value: [`ValueError`] says why; or that it cannot be
    /// watched just now. The next value ends that. A lost connection, or the end of a session, is no error: the watch is
    /// set up again, and what was missed is told.
    ///
    /// # Cancel safety
    /// No value is lost by dropping the future.
    pub async fn next(&mut self) -> Option<Result<Arc<Stored<T>>, Error>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl<T: Send + Sync + 'static> Stream for ValueChanges<T> {
    type Item = Result<Arc<Stored<T>>, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            let news = this.copy.borrow_and_update().news_after(this.seen);
            return Poll::Ready(match news {
                Some(News::Value(value)) => {
                    this.seen = value.news;
                    Some(this.shared.inner.made(&value))
                }
                Some(News::Trouble(news, error)) => {
                    this.seen = news;
                    Some(Err(error))
                }
                Some(News::Over) => None,
                None => {
                    let copy = &this.copy;
                    let changed = this.changed.get_or_insert_with(|| changed(copy.clone()));
                    ready!(changed.as_mut().poll(context));
                    this.changed = None;
                    continue;
                }
            });
        }
    }
}

/// Whoever has the handle, as the changes have, has the sender, so that it never ends for another reason.
fn changed<T: Send + Sync + 'static>(mut copy: watch::Receiver<Copy<T>>) -> Changed {
    Box::pin(async move {
        let _ = copy.changed().await;
    })
}

impl<T> fmt::Debug for ValueChanges<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueChanges").field("shared", &self.shared).finish_non_exhaustive()
    }
}
