//! The library's [`Mutex`], which ignores poisoning. Inside is a mutex of the standard library or, in a build for the
//! test `threads/`, a mutex that lets the test decide every switch between threads.
//!
//! If a thread panics while it holds a mutex of the standard library, the mutex is poisoned, and returns an error to
//! every later caller. The library ignores this error, and other tasks go on using the mutex. The protected state is
//! consistent even after a panic: code that can panic (mostly the user's) runs while no mutex is locked, or under a
//! mutex whose state no other code uses.

#![allow(dead_code, reason = "what is used depends on the features")]

use std::sync::{PoisonError, TryLockError};

use super::raw::{self, MutexGuard};

#[derive(Debug, Default)]
pub(crate) struct Mutex<T: ?Sized>(raw::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(raw::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks without waiting. Returns `None` if the mutex is locked already, by another thread or by this one.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
