//! How a caller asks for the lock of a value, and how the value is read under it.

use std::sync::Arc;

use crate::call::Call;
use crate::contend::request::Options;
use crate::error::error::Error;
use crate::lock::acquire::{self, Acquire, Granting, Guard};
use crate::lock::hold::{ReadGuard, WriteGuard};
use crate::queue::mode::Mode;
use crate::recipes::shared::guard::{SharedReadGuard, SharedWriteGuard};
use crate::recipes::shared::shared::Shared;
use crate::recipes::shared::store::Store;

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

    /// Acquires the lock to read if no writer holds it or waits for it, and reads the value. See
    /// [`RwLock::try_read`](crate::RwLock::try_read).
    ///
    /// # Cancel safety
    /// As for [`RwLock::try_read`](crate::RwLock::try_read).
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which names the contenders in the way. Otherwise as for [`Shared::read`].
    pub fn try_read(&self) -> Call<SharedReadGuard<T>> {
        let Shared { store } = self.clone();
        Call::new(|timeout| acquire::attempt(store.lock(), Mode::Read, timeout, ReadGuard::new, |it| read(store, it)))
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
        let Shared { store } = self.clone();
        Call::new(|timeout| {
            acquire::attempt(store.lock(), Mode::Write, timeout, WriteGuard::new, |it| write(store, None, None, it))
        })
    }
}

impl<T: Send + Sync + 'static> Guard for SharedReadGuard<T> {
    type Source = Shared<T>;

    fn acquire(Shared { store }: Shared<T>, options: Options) -> Granting<SharedReadGuard<T>> {
        Granting::by(acquire::acquire_and(store.lock(), options, |guard| read(store, guard)))
    }
}

impl<T: Send + Sync + 'static> Guard for SharedWriteGuard<T> {
    /// With the value to begin with, if it replaces the node's value.
    type Source = (Shared<T>, Option<T>);

    fn acquire((Shared { store }, instead): Self::Source, options: Options) -> Granting<SharedWriteGuard<T>> {
        let label = options.label.clone();
        Granting::by(acquire::acquire_and(store.lock(), options, |guard| write(store, instead, label, guard)))
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

async fn read<T>(store: Arc<Store<T>>, guard: ReadGuard) -> Result<SharedReadGuard<T>, Error>
where
    T: Send + Sync + 'static,
{
    let stored = store.read_under(&guard).await?;
    Ok(SharedReadGuard::new(stored, guard))
}

async fn write<T>(
    store: Arc<Store<T>>,
    instead: Option<T>,
    label: Option<String>,
    guard: WriteGuard,
) -> Result<SharedWriteGuard<T>, Error>
where
    T: Send + Sync + 'static,
{
    let loaded = store.load(guard.held(), instead).await?;
    let label = label.or_else(|| store.node.label().clone());
    Ok(SharedWriteGuard::new(loaded, label, store, guard))
}
