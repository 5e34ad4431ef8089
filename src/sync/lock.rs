//! Mutexes that ignore poisoning, used by all other files. This file is compiled with the mutexes of the standard library,
//! and for the test `threads/` with mutexes that let the test decide every switch between threads.
//!
//! If a thread panics while it holds a mutex of the standard library, the mutex is poisoned, and returns an error to
//! every later caller. The library does not need this error, because the protected state is consistent even after a panic:
//! code that can panic (the user's code) runs while no mutex is locked, or under a mutex whose state only that code reads.
//! So a panic in one task need not keep the other tasks from the mutex.

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

    /// Locks without waiting. Returns `None` if another thread holds the lock.
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
