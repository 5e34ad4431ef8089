//! How the lock of a value is asked for, and the value read under it; knows no nodes.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::acquisition::request::{AcquireRead, AcquireWrite};
use crate::call::{self, Call};
use crate::error::error::Error;
use crate::queue::member::Blockers;
use crate::snapshot::progress::Progress;
use crate::value::guard::{SharedReadGuard, SharedWriteGuard};
use crate::value::shared::{Inner, Shared};

/// A read that has not started: await it, or set options first. Made by [`Shared::read`].
#[must_use = "nothing is acquired before this is awaited"]
pub struct AcquireSharedRead<T> {
    acquire: AcquireRead,
    inner: Arc<Inner<T>>,
    options: Options,
}

/// A write that has not started: await it, or set options first. Made by [`Shared::write`].
#[must_use = "nothing is acquired before this is awaited"]
pub struct AcquireSharedWrite<T> {
    acquire: AcquireWrite,
    inner: Arc<Inner<T>>,
    options: Options,
    instead: Option<T>,
}

/// What the value's own part of an acquisition must know.
#[derive(Debug, Default)]
struct Options {
    timeout: Option<Duration>,
    label: Option<String>,
}

impl<T> Shared<T> {
    /// Acquires the lock to read, and reads the value: it stays so for as long as the guard is held.
    ///
    /// Await the returned builder, with or without options. Waits until every writer that came earlier has left: see
    /// [`RwLock`](crate::RwLock) for fairness. Costs one request more than the lock.
    ///
    /// The value is that of the last writer, whichever server we are connected to: the server that says we are granted the
    /// lock has seen our node and the release of the writer before us, and so all that was committed before; one session's
    /// reads never go back behind that.
    ///
    /// If there is no value yet, the [initial](crate::SharedBuilder::initial) one is written, once, whoever asks first.
    ///
    /// # Cancel safety
    /// As for [`RwLock::read`](crate::RwLock::read).
    ///
    /// # Errors
    /// As for [`RwLock::read`](crate::RwLock::read), and [`Error::Value`] if what is there is no value of ours: the lock is
    /// then given back.
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
    /// let value = limit.read().timeout(Duration::from_secs(5)).await?;
    /// assert_eq!(*value, 100);
    /// value.release().await?;
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn read(&self) -> AcquireSharedRead<T> {
        let (acquire, inner) = (self.inner.lock.read(), Arc::clone(&self.inner));
        AcquireSharedRead { acquire, inner, options: Options::default() }
    }

    /// Acquires the lock to write, and reads the value, which can then be changed and
    /// [committed](SharedWriteGuard::commit).
    ///
    /// Await the returned builder, with or without options. Waits until everyone who came earlier has left.
    ///
    /// # Cancel safety
    /// As for [`RwLock::write`](crate::RwLock::write).
    ///
    /// # Errors
    /// As for [`Shared::read`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use zk_rwlock::{Error, Memory, Shared};
    /// # let zk = Memory::new();
    /// let limit: Shared<u32> = Shared::builder(&zk, "/limits/requests").initial(|| 100).build()?;
    /// let mut value = limit.write().label("double").await?;
    /// *value *= 2;
    /// value.commit().await?;
    /// assert_eq!(*value.downgrade().await?, 200);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn write(&self) -> AcquireSharedWrite<T> {
        let (acquire, inner) = (self.inner.lock.write(), Arc::clone(&self.inner));
        AcquireSharedWrite { acquire, inner, options: Options::default(), instead: None }
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// Acquires the lock to read if no writer holds it or waits for it, and reads the value:
    /// [`RwLock::try_read`](crate::RwLock::try_read).
    ///
    /// # Cancel safety
    /// As there.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which says who is in the way; otherwise as for [`Shared::read`].
    pub fn try_read(&self) -> Call<SharedReadGuard<T>> {
        let inner = Arc::clone(&self.inner);
        Call::new(|timeout| async move {
            let rest = Rest::new(inner, timeout);
            let late = rest.late();
            let guard = rest.inner.lock.try_read().within(timeout).await?;
            let (coordinator, limit) = (Arc::clone(&rest.inner.coordinator), guard.held().place().session().timeout());
            in_time(late, call::bounded(&coordinator, limit, rest.finish_read(guard))).await
        })
    }

    /// Acquires the lock to write if nobody holds it or waits for it, and reads the value:
    /// [`RwLock::try_write`](crate::RwLock::try_write).
    ///
    /// # Cancel safety
    /// As there.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which says who is in the way; otherwise as for [`Shared::read`].
    pub fn try_write(&self) -> Call<SharedWriteGuard<T>> {
        let inner = Arc::clone(&self.inner);
        Call::new(|timeout| async move {
            let rest = Rest::new(inner, timeout);
            let late = rest.late();
            let guard = rest.inner.lock.try_write().within(timeout).await?;
            let (coordinator, limit) = (Arc::clone(&rest.inner.coordinator), guard.held().place().session().timeout());
            in_time(late, call::bounded(&coordinator, limit, rest.finish_write(guard))).await
        })
    }
}

type Acquiring<G> = Pin<Box<dyn Future<Output = Result<G, Error>> + Send>>;

macro_rules! acquire_shared {
    ($acquire:ident, $lock:ident, $guard:ident, $finish:ident) => {
        impl<T> $acquire<T> {
            #[doc = concat!("Gives up when the lock was not granted, or the value not read, within `timeout`: see [`", stringify!($lock), "::timeout`].")]
            pub fn timeout(mut self, timeout: Duration) -> Self {
                self.acquire = self.acquire.timeout(timeout);
                self.options.timeout = Some(timeout);
                self
            }

            #[doc = concat!("What it is for, in words for people; kept beside what is committed, too: see [`", stringify!($lock), "::label`].")]
            pub fn label(mut self, label: impl Into<String>) -> Self {
                let label = label.into();
                self.acquire = self.acquire.label(label.as_str());
                self.options.label = Some(label);
                self
            }

            #[doc = concat!("Calls `tell` if the lock is not granted at once: see [`", stringify!($lock), "::on_wait`].")]
            pub fn on_wait(mut self, tell: impl FnMut(&Progress) + Send + 'static) -> Self {
                self.acquire = self.acquire.on_wait(tell);
                self
            }

            #[doc = concat!("As [`on_wait`](Self::on_wait), and looks each `interval` besides: see [`", stringify!($lock), "::on_wait_every`].")]
            pub fn on_wait_every(mut self, interval: Duration, tell: impl FnMut(&Progress) + Send + 'static) -> Self {
                self.acquire = self.acquire.on_wait_every(interval, tell);
                self
            }
        }

        impl<T: Send + Sync + 'static> $acquire<T> {
            /// Blocks the thread until the lock is granted and the value read. Needs no runtime.
            ///
            /// # Errors
            /// As when awaited.
            pub fn blocking(self) -> Result<$guard<T>, Error> {
                let (acquire, rest) = self.parts();
                let late = rest.late();
                let guard = acquire.blocking()?;
                pollster::block_on(in_time(late, rest.$finish(guard)))
            }
        }

        impl<T: Send + Sync + 'static> IntoFuture for $acquire<T> {
            type Output = Result<$guard<T>, Error>;
            type IntoFuture = Acquiring<$guard<T>>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(async move {
                    let (acquire, rest) = self.parts();
                    let late = rest.late();
                    let guard = acquire.await?;
                    in_time(late, rest.$finish(guard)).await
                })
            }
        }

        impl<T> fmt::Debug for $acquire<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut debug = f.debug_struct(stringify!($acquire));
                debug.field("acquire", &self.acquire).field("path", &self.inner.path).finish_non_exhaustive()
            }
        }
    };
}

acquire_shared!(AcquireSharedRead, AcquireRead, SharedReadGuard, finish_read);
acquire_shared!(AcquireSharedWrite, AcquireWrite, SharedWriteGuard, finish_write);

impl<T> AcquireSharedWrite<T> {
    /// Begins with this value, whatever is there, also if nothing is or nothing that could be read. A
    /// [commit](SharedWriteGuard::commit) then puts it there.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use zk_rwlock::{Error, Memory, RwLock, Shared};
    /// # let zk = Memory::new();
    /// let limit: Shared<u32> = Shared::new(&zk, "/limits/requests")?;
    /// assert!(limit.write().await.is_err(), "there is nothing to change yet");
    /// limit.write().replacing(100).await?.commit().await?;
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn replacing(mut self, value: T) -> Self {
        self.instead = Some(value);
        self
    }

    fn parts(self) -> (AcquireWrite, Rest<T>) {
        let AcquireSharedWrite { acquire, inner, options, instead } = self;
        (acquire, Rest { inner, options, instead })
    }
}

impl<T> AcquireSharedRead<T> {
    fn parts(self) -> (AcquireRead, Rest<T>) {
        let AcquireSharedRead { acquire, inner, options } = self;
        (acquire, Rest { inner, options, instead: None })
    }
}

/// What is left to do once the lock is granted.
struct Rest<T> {
    inner: Arc<Inner<T>>,
    options: Options,
    instead: Option<T>,
}

/// When the time given is over, and how long it was.
type Late = Option<(Duration, Pin<Box<dyn Future<Output = ()> + Send>>)>;

/// The acquisition keeps its time by itself; this is for what follows.
async fn in_time<G>(late: Late, finished: impl Future<Output = Result<G, Error>>) -> Result<G, Error> {
    let Some((waited, late)) = late else {
        return finished.await;
    };
    tokio::select! {
        biased;
        answer = finished => answer,
        () = late => Err(Error::Timeout { waited, blockers: Blockers::default() }),
    }
}

impl<T: Send + Sync + 'static> Rest<T> {
    fn new(inner: Arc<Inner<T>>, timeout: Option<Duration>) -> Rest<T> {
        Rest { inner, options: Options { timeout, label: None }, instead: None }
    }

    fn late(&self) -> Late {
        self.options.timeout.map(|timeout| (timeout, self.inner.coordinator.sleep(timeout)))
    }

    async fn finish_read(self, guard: crate::ReadGuard) -> Result<SharedReadGuard<T>, Error> {
        let stored = self.inner.read(guard.held()).await?;
        Ok(SharedReadGuard::new(stored, guard))
    }

    async fn finish_write(self, guard: crate::WriteGuard) -> Result<SharedWriteGuard<T>, Error> {
        let loaded = match self.instead {
            Some(value) => self.inner.load_instead(guard.held(), value).await?,
            None => self.inner.load(guard.held()).await?,
        };
        let label = self.options.label.or_else(|| self.inner.label());
        Ok(SharedWriteGuard::new(loaded, label, self.inner, guard))
    }
}
