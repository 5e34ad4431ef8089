//! A copy of a shared value that a test looks at whenever it likes, also before the first value has come.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use zk_rwlock::{CopyState, Error, Live, Shared, Stored};

type Begins<T> = Pin<Box<dyn Future<Output = Result<Live<T>, Error>> + Send>>;

/// A handle, and its copy, which clones share. Each look drives the wait for the first value.
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

    /// The newest value, if one has come.
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

    fn live(&self) -> Option<Live<T>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Waiting(begins, seen) = &mut *state {
            let shared = self.shared.clone();
            let future = begins.get_or_insert_with(|| Box::pin(async move { shared.live().await }));
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
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
