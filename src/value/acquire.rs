//! How a caller asks for the lock of a value, and how the value is read under it; knows no nodes.

use std::sync::Arc;
use std::time::Duration;

use crate::acquisition::request::Options;
use crate::call::{self, Call};
use crate::error::error::Error;
use crate::guard::acquire::{Acquire, Granting, Guard};
use crate::guard::guard::{ReadGuard, WriteGuard};
use crate::hold::trace;
use crate::keep::join::Lock;
use crate::queue::mode::{Aim, Mode};
use crate::value::guard::{SharedReadGuard, SharedWriteGuard};
use crate::value::shared::Shared;
use crate::value::store::Store;

impl<T: Send + Sync + 'static> Shared<T> {
    /// Acquires the lock to read, and reads the value. The value does not change for as long as the guard is held.
    ///
    /// Await the returned builder, with or without options. Waits until every earlier writer has left: see
    /// [`RwLock`](crate::RwLock) for fairness. Costs one request more than the lock.
    ///
    /// The value is the last writer's, whichever server this client is connected to. The server that shows the lock as
    /// ours has seen our node and the earlier writer's release, and so every commit before it. The reads of one session
    /// never go back behind that.
    ///
    /// If there is no value yet, the first reader writes the [initial](crate::SharedBuilder::initial) one, once.
    ///
    /// # Cancel safety
    /// As for [`RwLock::read`](crate::RwLock::read).
    ///
    /// # Errors
    /// As for [`RwLock::read`](crate::RwLock::read), and [`Error::Value`] if the node holds no value of ours. The lock
    /// is then given back.
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
    pub fn read(&self) -> Acquire<SharedReadGuard<T>> {
        Acquire::new(self.clone())
    }

    /// Acquires the lock to write, and reads the value, which can then be changed and
    /// [committed](SharedWriteGuard::commit).
    ///
    /// Await the returned builder, with or without options. Waits until every earlier contender has left.
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
    pub fn write(&self) -> Acquire<SharedWriteGuard<T>> {
        Acquire::new((self.clone(), None))
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// Acquires the lock to read if no writer holds it or waits for it, and reads the value. See
    /// [`RwLock::try_read`](crate::RwLock::try_read).
    ///
    /// # Cancel safety
    /// As for [`RwLock::try_read`](crate::RwLock::try_read).
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which names the contenders in the way. Otherwise as for [`Shared::read`].
    pub fn try_read(&self) -> Call<SharedReadGuard<T>> {
        let store = Arc::clone(&self.store);
        Call::new(|timeout| async move {
            let rest = Rest::new(store, None);
            let late = rest.late(timeout);
            let guard = rest.store.lock.try_read().within(timeout).await?;
            let (coordinator, limit) =
                (Arc::clone(&rest.store.cache.coordinator), guard.held().ticket().session().timeout());
            call::in_time_for(late, call::bounded(&coordinator, limit, rest.finish_read(guard))).await
        })
    }

    /// Acquires the lock to write if no contender holds it or waits for it, and reads the value. See
    /// [`RwLock::try_write`](crate::RwLock::try_write).
    ///
    /// # Cancel safety
    /// As for [`RwLock::try_write`](crate::RwLock::try_write).
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which names the contenders in the way. Otherwise as for [`Shared::read`].
    pub fn try_write(&self) -> Call<SharedWriteGuard<T>> {
        let store = Arc::clone(&self.store);
        Call::new(|timeout| async move {
            let rest = Rest::new(store, None);
            let late = rest.late(timeout);
            let guard = rest.store.lock.try_write().within(timeout).await?;
            let (coordinator, limit) =
                (Arc::clone(&rest.store.cache.coordinator), guard.held().ticket().session().timeout());
            call::in_time_for(late, call::bounded(&coordinator, limit, rest.finish_write(guard))).await
        })
    }
}

impl<T: Send + Sync + 'static> Guard for SharedReadGuard<T> {
    type Source = Shared<T>;

    fn acquire(shared: Shared<T>, options: Options) -> Granting<SharedReadGuard<T>> {
        Granting::by(async move {
            let rest = Rest::new(shared.store, options.label.clone());
            let late = rest.late(rest.timeout(&options, Mode::Read)?);
            let guard = Acquire::<ReadGuard> { source: rest.lock(), options }.await?;
            call::in_time_for(late, rest.finish_read(guard)).await
        })
    }
}

impl<T: Send + Sync + 'static> Guard for SharedWriteGuard<T> {
    /// With the value to begin with, if it replaces the node's value.
    type Source = (Shared<T>, Option<T>);

    fn acquire((shared, instead): Self::Source, options: Options) -> Granting<SharedWriteGuard<T>> {
        Granting::by(async move {
            let rest = Rest { instead, ..Rest::new(shared.store, options.label.clone()) };
            let late = rest.late(rest.timeout(&options, Mode::Write)?);
            let guard = Acquire::<WriteGuard> { source: rest.lock(), options }.await?;
            call::in_time_for(late, rest.finish_write(guard)).await
        })
    }
}

impl<T: Send + Sync + 'static> Acquire<SharedWriteGuard<T>> {
    /// Begins with this value, whatever the node holds: also if it holds nothing, or nothing that can be read. A
    /// [commit](SharedWriteGuard::commit) then writes it.
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
        self.source.1 = Some(value);
        self
    }
}

/// What remains to be done once the lock is granted.
struct Rest<T> {
    store: Arc<Store<T>>,
    label: Option<String>,
    instead: Option<T>,
}

impl<T: Send + Sync + 'static> Rest<T> {
    fn new(store: Arc<Store<T>>, label: Option<String>) -> Rest<T> {
        Rest { store, label, instead: None }
    }

    fn lock(&self) -> Arc<Lock> {
        Arc::clone(&self.store.lock.lock)
    }

    /// How long the acquisition may take. Reports a deadline that has passed.
    fn timeout(&self, options: &Options, mode: Mode) -> Result<Option<Duration>, Error> {
        options
            .timeout()
            .inspect_err(|error| trace::not_granted(&self.store.lock.handle().path, Aim::Lock(mode), error))
    }

    fn late(&self, timeout: Option<Duration>) -> call::Late {
        timeout.map(|timeout| (timeout, call::late(&self.store.cache.coordinator, timeout)))
    }

    async fn finish_read(self, guard: ReadGuard) -> Result<SharedReadGuard<T>, Error> {
        let stored = self.store.read_under(&guard).await?;
        Ok(SharedReadGuard::new(stored, guard))
    }

    async fn finish_write(self, guard: WriteGuard) -> Result<SharedWriteGuard<T>, Error> {
        let loaded = match self.instead {
            Some(value) => self.store.load_instead(guard.held(), value).await?,
            None => self.store.load(guard.held()).await?,
        };
        let label = self.label.or_else(|| self.store.label());
        Ok(SharedWriteGuard::new(loaded, label, self.store, guard))
    }
}
