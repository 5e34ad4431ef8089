//! [`Live`], a copy of a shared value in this process, and [`ValueChanges`], a stream of the values.
//!
//! If the node has no value, the caller encodes the initial value, and a background task writes it under the lock. The
//! caller's future does not hold the lock, so a caller that stops polling blocks no other client.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use futures_util::stream::unfold;
use tokio::sync::oneshot;

use crate::call::Call;
use crate::error::error::Error;
use crate::error::value::ValueError;
use crate::observe::changes::Changes;
use crate::recipes::shared::codec::Stored;
use crate::recipes::shared::known::{CopyState, LocalCopy};
use crate::recipes::shared::shared::Shared;
use crate::recipes::shared::store::{self, SharedState};
use crate::sync::watch;
use crate::telemetry::debug::debug;

/// A copy of a [`Shared`] value in this process, kept fresh by a watch. [`get`](Self::get) always has a value. Made by
/// [`Shared::live`].
///
/// The node is watched until all handles and streams of the value are dropped. A handle is cheap to clone, and clones
/// share the copy.
pub struct Live<T> {
    state: Arc<SharedState<T>>,
    /// The first value that came. `get` returns it if the copy has no value, which should not happen.
    first: Arc<Stored<T>>,
}

impl<T: Send + Sync + 'static> Live<T> {
    /// Returns the newest value that has come from the ensemble and can be decoded. Does not acquire the lock, sends
    /// nothing and waits for nothing.
    ///
    /// # How old it may be
    /// While connected, the copy is as old as the data of this client's server, which is usually behind other servers
    /// by milliseconds. A server that is cut off from the ensemble's leader drops its clients after `syncLimit` ticks.
    /// While disconnected, the copy does not change, however long that lasts, and [`state`](Self::state) returns
    /// `Disconnected`. After the reconnect the copy is updated, even if the session has ended. The copy goes back to an
    /// older value only if the ensemble does, for example after a restore from a backup.
    ///
    /// When a commit by a [`Shared`] returns, the copies of that handle and of its clones have the committed value.
    /// There are three exceptions: the same guard has created the node, the copy has not read the node yet, or the
    /// session has ended meanwhile. In these cases the watch delivers the value, about a round trip later.
    ///
    /// If the node is deleted, or holds no valid value, the copy keeps the last value, and `state` and
    /// [`changes`](Self::changes) say why. After a change, the first call decodes the new bytes, and later calls return
    /// the decoded value.
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
        self.state.latest_value().unwrap_or_else(|| Arc::clone(&self.first))
    }

    /// Returns how fresh [`get`](Self::get) is now. Sends nothing, and waits for nothing.
    pub fn state(&self) -> CopyState {
        self.state.copy_state()
    }

    /// Returns a stream of the values: first the present one, then each new one that is read. See [`ValueChanges`].
    pub fn changes(&self) -> ValueChanges<T> {
        value_changes(&self.state)
    }
}

impl<T> Clone for Live<T> {
    fn clone(&self) -> Self {
        Live { state: Arc::clone(&self.state), first: Arc::clone(&self.first) }
    }
}

debug!(Live<T> as "Live" for [T], |it| path: it.state.node.path);

impl<T: Send + Sync + 'static> Shared<T> {
    /// Waits for the first value, and returns a copy that always has one. Use this for a service that needs its
    /// configuration before it starts.
    ///
    /// Waits until the client is connected and the node has been read. If there is no value yet, and an
    /// [initial](crate::shared::SharedBuilder::initial) one was given, the initial value is written first, under the
    /// read lock. This write waits for a holder of the write lock, so the task that holds the write lock must not await
    /// this call. The call waits without a limit unless it gets a [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Errors
    /// [`Error::Value`] if there is no value and no initial one ([`ValueError::Unset`]), or if the node holds no value
    /// of this library. To wait until somebody has written a value, use [`wait_for`](Self::wait_for)`(|_| true)`.
    /// [`Error::PermissionDenied`] if the node may not be read, or the initial value may not be written.
    /// [`Error::Closed`] if the coordinator is closed.
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
        let state = Arc::clone(&self.state);
        Call::with_deadline(self.state.node.coordinator(), async move {
            let first = value_changes(&state).next().await;
            let first = first.unwrap_or_else(|| Err::<_, Error>(state.end_error()))?;
            Ok(Live { state, first })
        })
    }

    /// Returns a stream of the values: first the present one, then each new one that is read. If there is no value, and
    /// an [initial](crate::shared::SharedBuilder::initial) one was given, the initial value is written, and is the
    /// first item. See [`ValueChanges`].
    pub fn changes(&self) -> ValueChanges<T> {
        value_changes(&self.state)
    }

    /// Waits until `is_wanted` returns `true` for the value, and returns that value. Returns at once if the present
    /// value is wanted.
    ///
    /// The value is read without the lock, so it may have changed again when the call returns. If the value changes
    /// several times between two reads, only the last of these values is seen. `is_wanted` is called once for each
    /// value that is seen. The call waits without a limit, also for the first value and while the connection is lost,
    /// unless it gets a [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Errors
    /// [`Error::Value`] if the node holds bytes that cannot be used as a value. An empty or missing node is no error:
    /// the call waits until the node has a value. [`Error::PermissionDenied`] if the node may not be read.
    /// [`Error::Closed`] if the coordinator is closed.
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
        let state = Arc::clone(&self.state);
        Call::with_deadline(self.state.node.coordinator(), async move {
            let mut changes = value_changes(&state);
            loop {
                match changes.next().await {
                    Some(Ok(value)) if is_wanted(&value) => return Ok(value),
                    Some(Ok(_)) => {}
                    Some(Err(error)) if error.value_error().is_some_and(ValueError::is_no_value) => {}
                    Some(Err(error)) => return Err(error),
                    None => return Err(state.end_error()),
                }
            }
        })
    }
}

/// A stream of the values of a [`Shared`](crate::Shared). Made by [`Shared::changes`](crate::Shared::changes). The node
/// is watched until all handles and streams of the value are dropped.
///
/// The first call of [`next`](Changes::next) waits until the present value has been read, and returns it. If the value
/// changes several times between two reads, only the last value comes. The stream ends once the coordinator is closed.
///
/// An error is yielded once, in three cases: the node holds no value now ([`ValueError`](crate::error::ValueError) says
/// why), the node cannot be watched now, or this client's only server has missed a change that the ensemble has
/// ([`Error::Diverged`]). If the node holds no value at the beginning, and an
/// [initial](crate::shared::SharedBuilder::initial) value was given, that value is written and yielded instead of an
/// error. A lost connection, or the end of a session, is no error: the library sets the watch up again, and then
/// reports a missed change.
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

/// Starts the background task that watches the node, unless it runs. Returns a stream of the values.
fn value_changes<T: Send + Sync + 'static>(state: &Arc<SharedState<T>>) -> ValueChanges<T> {
    state.start_watcher();
    let (state, known) = (Arc::clone(state), state.known.subscribe());
    let subscriber = ValueSubscriber { state, known, is_new: true, before: 0, seen: 0, initial_write: None };
    Changes::new(unfold(subscriber, |mut subscriber| async {
        let next = subscriber.next().await?;
        subscriber.is_new = false;
        Some((next, subscriber))
    }))
}

/// The state of one stream of values. `seen` is the stream's position among the numbered events of the copy
/// ([`LocalCopy`]).
struct ValueSubscriber<T> {
    state: Arc<SharedState<T>>,
    known: watch::Receiver<LocalCopy>,
    /// Whether the stream has yielded nothing yet.
    is_new: bool,
    /// The value of the copy's field `vanished` when the stream yielded its first item: the event number of a value
    /// that the node no longer has, or 0.
    before: u64,
    seen: u64,
    /// The background write of the initial value, if one runs.
    initial_write: Option<InitialWriteHandle>,
}

/// Receives the error of the background write of the initial value. Dropping the receiver stops the write.
type InitialWriteHandle = oneshot::Receiver<Error>;

impl<T: Send + Sync + 'static> ValueSubscriber<T> {
    async fn next(&mut self) -> Option<Result<Arc<Stored<T>>, Error>> {
        loop {
            let (event, is_unset, is_over) = {
                let known = self.known.borrow_and_update();
                if self.is_new {
                    (self.before, self.seen) = (known.vanished, self.seen.max(known.vanished));
                }
                (known.event_after(self.seen), known.has_had_no_value_since(self.before), known.over.is_some())
            };
            if !is_unset {
                // The node has had a value since the write began, or it is unknown whether the node has one. Setting
                // this field to `None` drops the receiver, which stops the write of the initial value.
                self.initial_write = None;
            }
            self.seen = event.as_ref().map_or(self.seen, |(number, _)| *number);
            match event {
                Some((_, Ok(value))) => return Some(self.state.decode_seen(&value)),
                Some((_, Err(error))) => {
                    if is_unset && error.value_error() != Some(&ValueError::Vanished) {
                        self.initial_write = self.initial_write.take().or_else(|| self.start_initial_write());
                    }
                    if self.initial_write.is_none() {
                        return Some(Err(error));
                    }
                }
                None if is_over => return None,
                None => tokio::select! {
                    biased;
                    // `changed` cannot fail, because `state` owns the sender.
                    _ = self.known.changed() => {}
                    Some(answer) = OptionFuture::from(self.initial_write.as_mut()) => {
                        self.initial_write = None;
                        match answer {
                            Ok(error) => return Some(Err(error)),
                            // The background write has ended because the node had a value. Now that value is gone again.
                            Err(_) => self.initial_write = self.start_initial_write(),
                        }
                    }
                },
            }
        }
    }

    /// Starts a background task that writes the initial value. Returns `None` if the user gave no initial value. Dropping the
    /// returned receiver stops the write.
    ///
    /// The caller encodes the value, because user code must not run on the thread that keeps the sessions alive.
    fn start_initial_write(&self) -> Option<InitialWriteHandle> {
        let payload = self.state.encode(&self.state.codec.initial.as_ref()?());
        let ((mut failed, initial_write), node) = (oneshot::channel(), Arc::clone(&self.state.node));
        let (mut known, before) = (self.state.known.subscribe(), self.before);
        let write = async move {
            let write = async {
                match payload {
                    Ok(payload) => node.write_initial_repeatedly(&payload).await,
                    Err(error) => error,
                }
            };
            tokio::select! {
                biased;
                () = failed.closed() => {}
                // Stops the write once the node has a value. The stream cannot do this, because it may not be polled
                // for a long time. `map(drop)` ends the borrow of the copy before the write is dropped.
                () = known.wait_for(|known| !known.has_had_no_value_since(before)).map(drop) => {}
                error = write => drop(failed.send(error)),
            }
        };
        let started = store::start_in_background(self.state.node.coordinator(), Box::pin(write));
        started.unwrap_or_else(|error| self.state.record_end(error));
        Some(initial_write)
    }
}
