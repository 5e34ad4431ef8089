//! Stands in for `src/sync/mod.rs` when the library is built for these tests. Shuttle switches threads at these types,
//! and the same schedule gives the same run.

#[path = "../src/sync/lock.rs"]
mod lock;
#[path = "waits.rs"]
mod waits;

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::panic::Location;
use std::pin::Pin;

use shuttle::rand::RngCore;
pub(crate) use shuttle::sync::{MutexGuard, atomic};

pub(crate) use lock::Mutex;
/// These channels are used as they are. Only sessions on a server use them, and no schedule runs such a session.
pub(crate) use tokio::sync::mpsc;

/// State that all schedules of a process share, and on which no schedule depends.
pub(crate) mod of_process {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
}

mod raw {
    pub(super) use shuttle::sync::MutexGuard;

    pub(super) use super::waits::Mutex;
}

/// A map whose iteration order is the same in every run.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// Returns a random number that depends only on the schedule.
pub(crate) fn random() -> u64 {
    shuttle::rand::thread_rng().next_u64()
}

/// Stands in for tokio's `Notified`, and lets shuttle switch threads before each poll. Without the switch, no other
/// thread could run between a check under a lock and the wait for a notification. Tokio's `oneshot` needs no switch,
/// because a task that polls it does nothing else.
pub(crate) type Notified<'a> = waits::Awaited<tokio::sync::futures::Notified<'a>>;

impl Notified<'_> {
    pub(crate) fn enable(mut self: Pin<&mut Self>) -> bool {
        self.future.as_mut().enable()
    }
}

#[derive(Debug)]
pub(crate) struct Notify(tokio::sync::Notify);

impl Notify {
    pub(crate) fn new() -> Notify {
        Notify(tokio::sync::Notify::new())
    }

    #[track_caller]
    pub(crate) fn notified(&self) -> Notified<'_> {
        self.notified_since(Location::caller(), "a notification")
    }

    fn notified_since(&self, at: &Location<'_>, what: &str) -> Notified<'_> {
        switch();
        waits::Awaited::since(at, what, self.0.notified())
    }

    pub(crate) fn notify_one(&self) {
        switch();
        self.0.notify_one();
    }

    pub(crate) fn notify_waiters(&self) {
        switch();
        self.0.notify_waiters();
    }
}

impl Default for Notify {
    fn default() -> Notify {
        Notify::new()
    }
}

/// Lets shuttle switch to another thread, as it does before each access to an atomic.
fn switch() {
    let _ = atomic::AtomicBool::new(false).load(atomic::Ordering::Relaxed);
}

/// Stands in for the standard library's `OnceLock`. While one thread makes the value, a second thread waits on
/// shuttle's lock. The standard library's type would block the operating system's thread, which runs all threads of a
/// test.
pub(crate) struct OnceLock<T> {
    begun: Mutex<()>,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> OnceLock<T> {
        OnceLock { begun: Mutex::new(()), value: std::sync::OnceLock::new() }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        switch();
        self.value.get()
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        let _alone = self.begun.lock();
        self.value.set(value)
    }

    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let _alone = self.begun.lock();
        self.value.get_or_init(make)
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}

/// The part of tokio's `watch` that the library uses, built on shuttle's lock. The value stays locked while it is read
/// or changed, and the reader may take other locks meanwhile.
pub(crate) mod watch {
    use std::ops::Deref;
    use std::panic::Location;
    use std::pin::pin;
    use std::sync::Arc;

    use shuttle::sync::RwLockReadGuard;

    use super::Notify;
    use super::atomic::{AtomicUsize, Ordering};
    use super::waits::RwLock;

    pub(crate) fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
        let sender = Sender::new(value);
        let receiver = sender.subscribe();
        (sender, receiver)
    }

    #[derive(Debug)]
    struct Channel<T> {
        state: RwLock<State<T>>,
        changed: Notify,
        receivers: AtomicUsize,
    }

    #[derive(Debug)]
    struct State<T> {
        value: T,
        version: usize,
        is_closed: bool,
    }

    pub(crate) struct Ref<'a, T>(RwLockReadGuard<'a, State<T>>);

    impl<T> Deref for Ref<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0.value
        }
    }

    #[derive(Debug)]
    pub(crate) struct Sender<T>(Arc<Open<T>>);

    /// The state of a channel, which is open until the last sender is dropped.
    #[derive(Debug)]
    struct Open<T>(Arc<Channel<T>>);

    impl<T> Sender<T> {
        pub(crate) fn new(value: T) -> Sender<T> {
            let state = RwLock::new(State { value, version: 0, is_closed: false });
            let channel = Arc::new(Channel { state, changed: Notify::new(), receivers: AtomicUsize::new(0) });
            Sender(Arc::new(Open(channel)))
        }

        fn channel(&self) -> &Arc<Channel<T>> {
            &self.0.0
        }

        pub(crate) fn subscribe(&self) -> Receiver<T> {
            Receiver::of(self.channel(), self.channel().state.read().version)
        }

        pub(crate) fn receiver_count(&self) -> usize {
            self.channel().receivers.load(Ordering::SeqCst)
        }

        pub(crate) fn borrow(&self) -> Ref<'_, T> {
            Ref(self.channel().state.read())
        }

        pub(crate) fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
            let mut state = self.channel().state.write();
            let is_changed = change(&mut state.value);
            state.version += usize::from(is_changed);
            drop(state);
            if is_changed {
                self.channel().changed.notify_waiters();
            }
            is_changed
        }

        pub(crate) fn send_modify(&self, change: impl FnOnce(&mut T)) {
            self.send_if_modified(|value| {
                change(value);
                true
            });
        }

        pub(crate) fn send_replace(&self, mut value: T) -> T {
            self.send_modify(|old| std::mem::swap(old, &mut value));
            value
        }
    }

    impl<T: Default> Default for Sender<T> {
        fn default() -> Sender<T> {
            Sender::new(T::default())
        }
    }

    impl<T> Clone for Sender<T> {
        fn clone(&self) -> Sender<T> {
            Sender(Arc::clone(&self.0))
        }
    }

    impl<T> Drop for Open<T> {
        fn drop(&mut self) {
            self.0.state.write().is_closed = true;
            self.0.changed.notify_waiters();
        }
    }

    /// The error of a receiver whose sender was dropped.
    #[derive(Debug)]
    pub(crate) struct Closed;

    pub(crate) struct Receiver<T> {
        channel: Arc<Channel<T>>,
        seen: usize,
    }

    impl<T> Receiver<T> {
        fn of(channel: &Arc<Channel<T>>, seen: usize) -> Receiver<T> {
            channel.receivers.fetch_add(1, Ordering::SeqCst);
            Receiver { channel: Arc::clone(channel), seen }
        }

        pub(crate) fn borrow_and_update(&mut self) -> Ref<'_, T> {
            let state = self.channel.state.read();
            self.seen = state.version;
            Ref(state)
        }

        pub(crate) fn has_changed(&self) -> Result<bool, Closed> {
            let state = self.channel.state.read();
            if state.is_closed { Err(Closed) } else { Ok(state.version != self.seen) }
        }

        #[track_caller]
        pub(crate) fn changed(&mut self) -> impl Future<Output = Result<(), Closed>> {
            let (seen, at) = (self.seen, Location::caller());
            async move { self.until(at, move |version, _| version != seen).await.map(drop) }
        }

        #[track_caller]
        pub(crate) fn wait_for(
            &mut self,
            mut is_awaited: impl FnMut(&T) -> bool,
        ) -> impl Future<Output = Result<Ref<'_, T>, Closed>> {
            self.until(Location::caller(), move |_, value| is_awaited(value))
        }

        async fn until(
            &mut self,
            at: &Location<'_>,
            mut is_awaited: impl FnMut(usize, &T) -> bool,
        ) -> Result<Ref<'_, T>, Closed> {
            let Receiver { channel, seen } = self;
            let mut look = || {
                let state = channel.state.read();
                *seen = state.version;
                match is_awaited(state.version, &state.value) {
                    true => Some(Ok(Ref(state))),
                    false => state.is_closed.then_some(Err(Closed)),
                }
            };
            loop {
                let mut changed = pin!(channel.changed.notified_since(at, "a change"));
                changed.as_mut().enable();
                if let Some(found) = look() {
                    return found;
                }
                changed.await;
            }
        }
    }

    impl<T> Clone for Receiver<T> {
        fn clone(&self) -> Receiver<T> {
            Receiver::of(&self.channel, self.seen)
        }
    }

    impl<T> Drop for Receiver<T> {
        fn drop(&mut self) {
            self.channel.receivers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
