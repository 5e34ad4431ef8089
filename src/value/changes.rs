//! The values as they come, as a stream; knows neither watches nor locks.
//!
//! The initial value is made by the caller that follows, and written in the background. So a caller that is not polled holds
//! up no writer.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_util::future::OptionFuture;
use futures_util::{StreamExt, stream};
use tokio::sync::oneshot;

use crate::error::error::Error;
use crate::error::value::ValueError;
use crate::sync::{Mutex, watch};
use crate::value::background;
use crate::value::codec::Stored;
use crate::value::known::Known;
use crate::value::store::Store;

/// The values of a [`Shared`](crate::Shared), in the order in which they come. Made by
/// [`Shared::changes`](crate::Shared::changes). It keeps the watch up for as long as it lives.
///
/// It is also a [`Stream`] of what [`next`](Self::next) gives, for the combinators of `futures` and `tokio-stream`.
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
pub struct ValueChanges<T> {
    path: String,
    /// The mutex is never contended: it makes this `Sync`.
    values: Mutex<Values<T>>,
}

type Values<T> = Pin<Box<dyn Stream<Item = Result<Arc<Stored<T>>, Error>> + Send>>;

impl<T: Send + Sync + 'static> ValueChanges<T> {
    /// Starts the watch, if it has not been started.
    pub(crate) fn of(store: &Arc<Store<T>>) -> ValueChanges<T> {
        store.cache.follow();
        let (path, known) = (store.node().path.clone(), store.cache.subscribe());
        let seeing = Seeing { store: Arc::clone(store), known, seen: 0, begun: None };
        let values = stream::unfold(seeing, |mut seeing| async { Some((seeing.next().await?, seeing)) }).fuse();
        ValueChanges { path, values: Mutex::new(Box::pin(values)) }
    }

    /// Waits for the next value. The first call gives the present value, as soon as it has come. Values that came and
    /// went between two calls are skipped, but never the newest. `None` once the coordinator was closed.
    ///
    /// An error says, once, that the node holds no value now ([`ValueError`](crate::error::ValueError) says why), that it cannot be
    /// watched just now, or that this client's server has missed what the ensemble has ([`Error::Refused`]). If no value was there from the beginning, the [initial](crate::SharedBuilder::initial) one comes
    /// in place of that error. The next value ends that state. A lost connection, or the end of a session, is no error: the watch is
    /// set up again, and a missed change is reported then.
    ///
    /// # Cancel safety
    /// No value is lost by dropping the future.
    pub async fn next(&mut self) -> Option<Result<Arc<Stored<T>>, Error>> {
        StreamExt::next(self).await
    }
}

impl<T> Stream for ValueChanges<T> {
    type Item = Result<Arc<Stored<T>>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.values.get_mut().as_mut().poll_next(context)
    }
}

impl<T> fmt::Debug for ValueChanges<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueChanges").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What one caller has seen of the values.
struct Seeing<T> {
    store: Arc<Store<T>>,
    known: watch::Receiver<Known<T>>,
    seen: u64,
    /// The initial value is being written, while there is none.
    begun: Option<Begun>,
}

/// What became of the write of the initial value. It ends without an answer if its session does.
type Begun = oneshot::Receiver<Result<(), Error>>;

impl<T: Send + Sync + 'static> Seeing<T> {
    async fn next(&mut self) -> Option<Result<Arc<Stored<T>>, Error>> {
        loop {
            let (news, is_set, is_over) = {
                let known = self.known.borrow_and_update();
                (known.news_after(self.seen), known.newest.is_some(), known.over.is_some())
            };
            if is_set {
                // Whoever wrote the first value.
                self.begun = None;
            }
            self.seen = news.as_ref().map_or(self.seen, |(number, _)| *number);
            match news {
                Some((_, Ok(value))) => return Some(self.store.cache.made(&value)),
                Some((_, Err(error))) => {
                    let is_unset = !is_set && error.value_error() == Some(&ValueError::Unset);
                    if is_unset {
                        self.begun = self.begun.take().or_else(|| begin(&self.store));
                    }
                    if !is_unset || self.begun.is_none() {
                        return Some(Err(error));
                    }
                }
                None if is_over => return None,
                None => tokio::select! {
                    biased;
                    Some(answer) = OptionFuture::from(self.begun.as_mut()) => {
                        self.begun = None;
                        match answer {
                            Ok(Ok(())) => self.store.cache.was_set(),
                            Ok(Err(error)) => return Some(Err(error)),
                            // It ended with its session.
                            Err(_) => self.begun = begin(&self.store),
                        }
                    }
                    // The sender is gone only with the store.
                    _ = self.known.changed() => {}
                },
            }
        }
    }
}

/// Sets out to write the initial value; `None` if there is none. Dropping what this returns ends that.
///
/// The value is made here: no code of the user's runs on the thread that keeps the sessions alive.
fn begin<T: Send + Sync + 'static>(store: &Store<T>) -> Option<Begun> {
    let payload = store.payload(&store.cache.terms.initial.as_ref()?());
    let ((mut told, begun), node) = (oneshot::channel(), Arc::clone(store.node()));
    let write = async move {
        let write = async { node.begin_at_last(&payload?).await };
        tokio::select! {
            biased;
            () = told.closed() => {}
            answer = write => drop(told.send(answer)),
        }
    };
    let started = background::start(store.node().coordinator(), 0, |_session_slot| Box::pin(write));
    started.unwrap_or_else(|error| store.cache.over(error));
    Some(begun)
}
