//! A wrapper of [`Shared::live`] for tests without tasks. A test may read the copy at any time, also before the first
//! value has arrived.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use tokio_test::task::{self, Spawn};
use zk_rwlock::shared::{CopyState, Live, Stored};
use zk_rwlock::{Error, Shared};

type Begins<T> = Spawn<Pin<Box<dyn Future<Output = Result<Live<T>, Error>> + Send>>>;

/// A shared value and its local copy. All clones share the copy. Until the first value has arrived, each read polls the
/// future of [`Shared::live`].
pub struct Copied<T> {
    shared: Shared<T>,
    state: Arc<Mutex<State<T>>>,
}

enum State<T> {
    Waiting(Option<Begins<T>>, CopyState),
    Live(Live<T>),
}

impl<T: Send + Sync + 'static> Copied<T> {
    pub fn of(shared: &Shared<T>) -> Copied<T> {
        Copied { shared: shared.clone(), state: Arc::new(Mutex::new(State::Waiting(None, CopyState::Fetching))) }
    }

    /// Returns the newest value, or `None` before the first value has arrived.
    pub fn latest(&self) -> Option<Arc<Stored<T>>> {
        self.live().map(|live| live.get())
    }

    pub fn copy_state(&self) -> CopyState {
        match (self.live(), &*self.state.lock().unwrap_or_else(PoisonError::into_inner)) {
            (Some(live), _) => live.state(),
            (None, State::Waiting(_, state)) => state.clone(),
            (None, State::Live(live)) => live.state(),
        }
    }

    /// Polls the future of [`Shared::live`] if its waker has fired. Returns whether the future was polled.
    pub fn goes_on(&self) -> bool {
        let is_woken = match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Waiting(Some(begins), _) => begins.is_woken(),
            _ => false,
        };
        if is_woken {
            self.live();
        }
        is_woken
    }

    fn live(&self) -> Option<Live<T>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Waiting(begins, seen) = &mut *state {
            let shared = self.shared.clone();
            let future = begins.get_or_insert_with(|| task::spawn(Box::pin(async move { shared.live().await })));
            match future.poll() {
                Poll::Ready(Ok(live)) => *state = State::Live(live),
                Poll::Ready(Err(error)) => {
                    let is_over = matches!(error, Error::Closed(_));
                    (*begins, *seen) = (None, if is_over { CopyState::Over(error) } else { CopyState::Behind(error) });
                }
                Poll::Pending => {}
            }
        }
        match &*state {
            State::Live(live) => Some(live.clone()),
            State::Waiting(..) => None,
        }
    }
}

impl<T> Clone for Copied<T> {
    fn clone(&self) -> Self {
        Copied { shared: self.shared.clone(), state: Arc::clone(&self.state) }
    }
}

impl<T> Deref for Copied<T> {
    type Target = Shared<T>;

    fn deref(&self) -> &Shared<T> {
        &self.shared
    }
}
