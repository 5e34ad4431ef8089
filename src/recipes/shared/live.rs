//! The copy of a value that follows the node: as a handle, and as a stream of the values as they come.
//!
//! The initial value is made by the caller that follows, and written in the background. So a caller that is not polled holds
//! up no writer.

use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use futures_util::stream::unfold;
use tokio::sync::oneshot;

use crate::call::Call;
use crate::contend::changes::Changes;
use crate::error::error::Error;
use crate::error::value::ValueError;
use crate::recipes::shared::codec::Stored;
use crate::recipes::shared::known::{CopyState, Known};
use crate::recipes::shared::shared::Shared;
use crate::recipes::shared::store::{self, Store};
use crate::sync::watch;

/// A copy of a [`Shared`] value in this process, kept fresh by a watch. [`get`](Self::get) always has a value. Made by
/// [`Shared::live`].
///
/// It keeps the watch up for as long as it lives. It is cheap to clone, and clones share the copy.
pub struct Live<T> {
    store: Arc<Store<T>>,
    /// For a caller to whom the copy has nothing to give, which does not happen once a value has come.
    first: Arc<Stored<T>>,
}

impl<T: Send + Sync + 'static> Live<T> {
    /// The newest value that has come from the ensemble. It takes no lock, sends nothing and waits for nothing.
    ///
    /// # How old it may be
    /// While connected, the copy is as old as the server's view, which is usually behind other servers by milliseconds.
    /// A server that is cut off from its leader gives up after `syncLimit` ticks. While disconnected, the copy is as old as
    /// the disconnection, however long that lasts, and [`state`](Self::state) says so. It catches up after the reconnect,
    /// even if the session has ended. It goes back to an older value only if the ensemble does, as after a restore from a
    /// backup. Commits of this handle, and of its clones, are in it when they return. To a node that the same guard has made,
    /// or that the copy has not read yet, and where the session has ended meanwhile, they come with the watch, about a round
    /// trip later.
    ///
    /// If the node is deleted, or holds something that is no value, the last value stays, and `state` and
    /// [`changes`](Self::changes) say why. Only the first call after a change decodes the new bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use zk_rwlock::shared::CopyState;
    /// # use zk_rwlock::{Error, Memory, Shared};
    /// # let zk = Memory::new();
    /// let limit: Shared<u32> = Shared::builder(&zk, "/limits/requests").initial(|| 100).build()?;
    /// let live = limit.live().await?;
    /// limit.update(|limit| *limit = 200).await?;
    /// assert_eq!(**live.get(), 200);
    ///
    /// zk.faults().cut();
    /// assert_eq!(**live.get(), 200);
    /// assert!(matches!(live.state(), CopyState::Disconnected));
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn get(&self) -> Arc<Stored<T>> {
        self.store.latest().unwrap_or_else(|| Arc::clone(&self.first))
    }

    /// How fresh [`get`](Self::get) is now. Sends nothing, and waits for nothing.
    pub fn state(&self) -> CopyState {
        self.store.state()
    }

    /// The values, in the order in which they come, beginning with the present one. See [`ValueChanges`].
    pub fn changes(&self) -> ValueChanges<T> {
        changes(&self.store)
    }
}

impl<T> Clone for Live<T> {
    fn clone(&self) -> Self {
        Live { store: Arc::clone(&self.store), first: Arc::clone(&self.first) }
    }
}

impl<T> fmt::Debug for Live<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("path", &self.store.node.path).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// Waits for the first value, and then gives a copy that always has one, for a service that needs its configuration
    /// before it starts.
    ///
    /// Waits until the connection is there and the node has been read. If there is no value yet, and an
    /// [initial](crate::shared::SharedBuilder::initial) one was given, that is written first, under the lock to read. So it then
    /// also waits for a writer, and must not be awaited by the task that holds the lock to write. The call waits for as
    /// long as that takes: bound it with [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Errors
    /// [`Error::Value`] if there is no value and no initial one ([`ValueError::Unset`]), or if the node holds no value of
    /// ours. To wait until somebody has written one: [`wait_for`](Self::wait_for)`(|_| true)`. [`Error::PermissionDenied`]
    /// if the node may not be read, or the initial value not be written. [`Error::Closed`] if the coordinator is closed.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, Shared};
    /// # let zk = Memory::new();
    /// let limit: Shared<u32> = Shared::builder(&zk, "/limits/requests").initial(|| 100).build()?;
    /// let live = limit.live().timeout(Duration::from_secs(5)).await?;
    /// assert_eq!(**live.get(), 100); // in each request that is served
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn live(&self) -> Call<Live<T>> {
        let store = Arc::clone(&self.store);
        Call::in_time(self.store.node.coordinator(), async move {
            let first = changes(&store).next().await;
            let first = first.unwrap_or_else(|| Err::<_, Error>(store.why_over()))?;
            Ok(Live { store, first })
        })
    }

    /// The values, in the order in which they come, beginning with the present one, or with the
    /// [initial](crate::shared::SharedBuilder::initial) one, which is then written first. See [`ValueChanges`].
    pub fn changes(&self) -> ValueChanges<T> {
        changes(&self.store)
    }

    /// Waits until the value is as `is_wanted` wants it, and gives that value: at once, if the present one is.
    ///
    /// The value is seen as by [`live`](Self::live), without a lock, so it may have changed again by now. A value that
    /// came and went between two looks is passed over. `is_wanted` is called once for each value that is seen. The call
    /// waits for as long as it takes, also for the first value and while the connection is lost: bound it with
    /// [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Errors
    /// [`Error::Value`] if the node holds no value of ours. If it holds no value at all, the call goes on waiting.
    /// [`Error::PermissionDenied`] if the node may not be read. [`Error::Closed`] if the coordinator is closed.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, Shared};
    /// # let zk = Memory::new();
    /// let version: Shared<u32> = Shared::builder(&zk, "/schema/version").initial(|| 41).build()?;
    /// # let deploy = version.clone();
    /// # let done = tokio::spawn(async move { deploy.update(|version| *version = 42).await });
    /// let migrated = version.wait_for(|version| *version >= 42).timeout(Duration::from_secs(600)).await?;
    /// println!("{} since {}", **migrated, migrated.written());
    /// # done.await.unwrap()?;
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn wait_for(&self, mut is_wanted: impl FnMut(&T) -> bool + Send + 'static) -> Call<Arc<Stored<T>>> {
        let store = Arc::clone(&self.store);
        Call::in_time(self.store.node.coordinator(), async move {
            let mut changes = changes(&store);
            loop {
                match changes.next().await {
                    Some(Ok(value)) if is_wanted(&value) => return Ok(value),
                    Some(Ok(_)) => {}
                    Some(Err(error)) if error.value_error().is_some_and(ValueError::is_no_value) => {}
                    Some(Err(error)) => return Err(error),
                    None => return Err(store.why_over()),
                }
            }
        })
    }
}

/// The values of a [`Shared`](crate::Shared), in the order in which they come. Made by
/// [`Shared::changes`](crate::Shared::changes). It keeps the watch up for as long as it lives.
///
/// The first call of [`next`](Changes::next) gives the present value, as soon as it has come. It ends once the coordinator
/// was closed.
///
/// An error says, once, that the node holds no value now ([`ValueError`](crate::error::ValueError) says why), that it cannot be
/// watched just now, or that this client's server has missed what the ensemble has ([`Error::Refused`]). If no value was there from the beginning, the [initial](crate::shared::SharedBuilder::initial) one comes
/// in place of that error. The next value ends that state. A lost connection, or the end of a session, is no error: the watch is
/// set up again, and a missed change is reported then.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "json")]
/// # tokio_test::block_on(async {
/// # use zk_rwlock::{Error, Memory, Shared};
/// # let zk = Memory::new();
/// let limit: Shared<u32> = Shared::builder(&zk, "/limits/requests").initial(|| 100).build()?;
/// let mut changes = limit.changes();
/// assert_eq!(**changes.next().await.expect("open")?, 100);
/// limit.write().replacing(200).await?.commit().await?;
/// assert_eq!(**changes.next().await.expect("open")?, 200);
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
pub type ValueChanges<T> = Changes<Result<Arc<Stored<T>>, Error>>;

/// Starts the watch, if it has not been started.
fn changes<T: Send + Sync + 'static>(store: &Arc<Store<T>>) -> ValueChanges<T> {
    store.follow();
    let (store, known) = (Arc::clone(store), store.subscribe());
    let seeing = Seeing { store, known, is_new: true, before: 0, seen: 0, begun: None };
    Changes::of(unfold(seeing, |mut seeing| async {
        let next = seeing.next().await?;
        seeing.is_new = false;
        Some((next, seeing))
    }))
}

/// What one caller has seen of the values.
struct Seeing<T> {
    store: Arc<Store<T>>,
    known: watch::Receiver<Known<T>>,
    /// Nothing was given to this caller yet.
    is_new: bool,
    /// The news of the last value that was gone by then.
    before: u64,
    seen: u64,
    /// The initial value is being written, while there is none.
    begun: Option<Begun>,
}

/// Why the initial value cannot be written. It ends without an answer once that is not wanted.
type Begun = oneshot::Receiver<Error>;

impl<T: Send + Sync + 'static> Seeing<T> {
    async fn next(&mut self) -> Option<Result<Arc<Stored<T>>, Error>> {
        loop {
            let (news, is_unset, is_over) = {
                let known = self.known.borrow_and_update();
                if self.is_new {
                    (self.before, self.seen) = (known.gone, self.seen.max(known.gone));
                }
                (known.news_after(self.seen), known.is_unset_since(self.before), known.over.is_some())
            };
            if !is_unset {
                // Another client wrote the first value, or foreign bytes.
                self.begun = None;
            }
            self.seen = news.as_ref().map_or(self.seen, |(number, _)| *number);
            match news {
                Some((_, Ok(value))) => return Some(self.store.value_of(&value)),
                Some((_, Err(error))) => {
                    if is_unset && error.value_error() != Some(&ValueError::Vanished) {
                        self.begun = self.begun.take().or_else(|| self.start_initial_write());
                    }
                    if self.begun.is_none() {
                        return Some(Err(error));
                    }
                }
                None if is_over => return None,
                None => tokio::select! {
                    biased;
                    // The sender is gone only with the store.
                    _ = self.known.changed() => {}
                    Some(answer) = OptionFuture::from(self.begun.as_mut()) => {
                        self.begun = None;
                        match answer {
                            Ok(error) => return Some(Err(error)),
                            // There was something for a while.
                            Err(_) => self.begun = self.start_initial_write(),
                        }
                    }
                },
            }
        }
    }

    /// Sets out to write the initial value; `None` if there is none. Dropping what this returns ends that.
    ///
    /// The value is made here: no code of the user's runs on the thread that keeps the sessions alive.
    fn start_initial_write(&self) -> Option<Begun> {
        let payload = self.store.payload(&self.store.terms.initial.as_ref()?());
        let ((mut told, begun), node) = (oneshot::channel(), Arc::clone(&self.store.node));
        let (mut known, before) = (self.store.subscribe(), self.before);
        let write = async move {
            let write = async {
                match payload {
                    Ok(payload) => node.write_initial_until_seen(&payload).await,
                    Err(error) => error,
                }
            };
            tokio::select! {
                biased;
                () = told.closed() => {}
                // Who asked may be polled again much later. What is known must not be borrowed when the write is dropped.
                () = known.wait_for(|known| !known.is_unset_since(before)).map(drop) => {}
                error = write => drop(told.send(error)),
            }
        };
        let started = store::start_in_background(self.store.node.coordinator(), 0, |_session_slot| Box::pin(write));
        started.unwrap_or_else(|error| self.store.end(error));
        Some(begun)
    }
}
