//! The values as they come, as a stream.
//!
//! The initial value is made by the caller that follows, and written in the background. So a caller that is not polled holds
//! up no writer.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use futures_util::stream::unfold;
use tokio::sync::oneshot;

use crate::contend::changes::Changes;
use crate::error::error::Error;
use crate::error::value::ValueError;
use crate::recipes::shared::background;
use crate::recipes::shared::codec::Stored;
use crate::recipes::shared::known::Known;
use crate::recipes::shared::store::Store;
use crate::sync::watch;

/// The values of a [`Shared`](crate::Shared), in the order in which they come. Made by
/// [`Shared::changes`](crate::Shared::changes). It keeps the watch up for as long as it lives.
///
/// The first call of [`next`](Changes::next) gives the present value, as soon as it has come. It ends once the coordinator
/// was closed.
///
/// An error says, once, that the node holds no value now ([`ValueError`](crate::error::ValueError) says why), that it cannot be
/// watched just now, or that this client's server has missed what the ensemble has ([`Error::Refused`]). If no value was there from the beginning, the [initial](crate::SharedBuilder::initial) one comes
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
pub(crate) fn changes<T: Send + Sync + 'static>(store: &Arc<Store<T>>) -> ValueChanges<T> {
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
                Some((_, Ok(value))) => return Some(self.store.made(&value)),
                Some((_, Err(error))) => {
                    if is_unset && error.value_error() != Some(&ValueError::Vanished) {
                        self.begun = self.begun.take().or_else(|| self.begin());
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
                            Err(_) => self.begun = self.begin(),
                        }
                    }
                },
            }
        }
    }

    /// Sets out to write the initial value; `None` if there is none. Dropping what this returns ends that.
    ///
    /// The value is made here: no code of the user's runs on the thread that keeps the sessions alive.
    fn begin(&self) -> Option<Begun> {
        let payload = self.store.payload(&self.store.terms.initial.as_ref()?());
        let ((mut told, begun), node) = (oneshot::channel(), Arc::clone(&self.store.node));
        let (mut known, before) = (self.store.subscribe(), self.before);
        let write = async move {
            let write = async {
                match payload {
                    Ok(payload) => node.begin_until_seen(&payload).await,
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
        let started = background::start(self.store.node.coordinator(), 0, |_session_slot| Box::pin(write));
        started.unwrap_or_else(|error| self.store.over(error));
        Some(begun)
    }
}
