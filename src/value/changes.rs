//! The values as they come, as a stream; knows neither watches nor locks.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_util::StreamExt;

use crate::error::error::Error;
use crate::error::value::ValueError;
use crate::sync::watch;
use crate::value::begin::Begun;
use crate::value::codec::Stored;
use crate::value::known::{Known, ValueNews};
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
    store: Arc<Store<T>>,
    known: watch::Receiver<Known<T>>,
    seen: u64,
    /// The initial value is being written, while there is none.
    begun: Option<Begun>,
    /// Ends at the next change of the copy, which may be no news.
    changed: Option<Changed>,
}

type Changed = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl<T: Send + Sync + 'static> ValueChanges<T> {
    /// Starts the watch, if it has not been started.
    pub(crate) fn of(store: &Arc<Store<T>>) -> ValueChanges<T> {
        store.cache.follow();
        ValueChanges { store: Arc::clone(store), known: store.cache.subscribe(), seen: 0, begun: None, changed: None }
    }

    /// The error with which the coordinator was closed.
    pub(crate) fn over(&self) -> Option<Error> {
        self.known.borrow().over().cloned()
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

impl<T: Send + Sync + 'static> Stream for ValueChanges<T> {
    type Item = Result<Arc<Stored<T>>, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            let known = this.known.borrow_and_update();
            let (news, is_set) = (known.news_after(this.seen), known.newest.is_some());
            drop(known);
            if is_set {
                // Whoever wrote the first value.
                this.begun = None;
            }
            return Poll::Ready(match news {
                Some(ValueNews::Value(value)) => {
                    this.seen = value.news;
                    Some(this.store.cache.made(&value))
                }
                Some(ValueNews::Trouble(news, error)) => {
                    this.seen = news;
                    if !is_set && error.value_error() == Some(&ValueError::Unset) {
                        this.begun = this.begun.take().or_else(|| this.store.begin());
                        if this.begun.is_some() {
                            continue;
                        }
                    }
                    Some(Err(error))
                }
                Some(ValueNews::Over) => None,
                None => {
                    if let Some(begun) = &mut this.begun
                        && let Poll::Ready(answer) = Pin::new(begun).poll(context)
                    {
                        // Without an answer it ended with its session.
                        this.begun = if answer.is_err() { this.store.begin() } else { None };
                        match answer {
                            Ok(Ok(())) => this.store.cache.was_set(),
                            Ok(Err(error)) => return Poll::Ready(Some(Err(error))),
                            Err(_) => continue,
                        }
                    }
                    let known = &this.known;
                    let changed = this.changed.get_or_insert_with(|| changed(known.clone()));
                    ready!(changed.as_mut().poll(context));
                    this.changed = None;
                    continue;
                }
            });
        }
    }
}

/// Every handle, and every `ValueChanges`, keeps the sender alive, so the receiver never ends for another reason.
fn changed<T: Send + Sync + 'static>(mut known: watch::Receiver<Known<T>>) -> Changed {
    Box::pin(async move {
        let _ = known.changed().await;
    })
}

impl<T> fmt::Debug for ValueChanges<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueChanges").field("path", &self.store.cache.path).finish_non_exhaustive()
    }
}
