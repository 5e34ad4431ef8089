//! A value in a znode, behind the lock; knows no concrete backend, and of the lock only what any user of it does.

use std::fmt;
use std::sync::Arc;

use crate::error::error::Error;
use crate::lock::rw_lock::{RwLock, RwLockBuilder};
use crate::session::contract::Coordinator;
use crate::validation;
use crate::value::cache::{Cache, CopyState, ValueChanges};
use crate::value::codec::{Stored, Terms};
#[cfg(feature = "json")]
use crate::value::format::Json;
use crate::value::format::{Format, FormatError};
use crate::value::store::Store;

/// A value for many machines behind a read/write lock of theirs: what `tokio::sync::RwLock<T>` is for many tasks.
///
/// [`read`](Self::read) gives a guard that derefs to the value, fresh under the lock; [`write`](Self::write) one whose
/// changes go out with [`commit`](crate::SharedWriteGuard::commit), in a transaction that checks that the lock is held,
/// and are discarded without. [`latest`](Self::latest) is a copy in this process, kept fresh by a watch, for hot paths;
/// [`changes`](Self::changes) gives the values as they come. A handle is cheap to clone, and clones share the copy.
///
/// Serialised by serde to [`Json`](crate::Json), or by a [`Format`] of your own.
///
/// # Where it is kept
/// Below `path` are two nodes: `lock`, the directory of the lock, and `value`, an ordinary node. It has a few lines of text
/// first: the format, the [schema](SharedBuilder::schema), and who wrote it last; then an empty line, and the value as the
/// format has it:
///
/// ```text
/// [zk: localhost:2181(CONNECTED) 0] get /billing/database/value
/// zk-rwlock value 1
/// format=json
/// schema=1
/// host=web-1
/// label=rotate password
/// token=4294967301
/// commit=1
/// at=2026-11-21T09:30:00.125Z
///
/// {"endpoint":"db-1","password":"secret"}
/// ```
///
/// By these lines it is told from foreign bytes, which are an [error](crate::ValueError::Foreign), and are left alone. An
/// empty node counts as one that was never written, so that an operator can make it beforehand, with an ACL of its own.
///
/// Others who are to have part in the lock, such as `zklock`, find it at `/billing/database/lock`: one at the path itself
/// would be another lock, and exclude nobody here.
///
/// Whoever writes the node without the lock is noticed: a commit says which version it replaces, and is refused.
///
/// # How large it may be
/// With those lines, 1,044,479 bytes: see [`size_limit`](SharedBuilder::size_limit).
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "json")]
/// # tokio_test::block_on(async {
/// use serde::{Deserialize, Serialize};
/// use zk_rwlock::{Error, Memory, Shared};
///
/// #[derive(Serialize, Deserialize)]
/// struct Database {
///     endpoint: String,
///     password: String,
/// }
///
/// let zk = Memory::new(); // or: ZooKeeper::connect("zk1:2181,zk2:2181,zk3:2181").await?
/// let database: Shared<Database> = Shared::new(&zk, "/billing/database")?;
///
/// let first = Database { endpoint: "db-1".to_owned(), password: "secret".to_owned() };
/// database.write().replacing(first).await?.commit().await?;
///
/// let mut value = database.write().label("rotate password").await?;
/// value.password = "more secret".to_owned();
/// value.commit().await?;
/// value.release().await?;
///
/// assert_eq!(database.read().await?.password, "more secret");
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
pub struct Shared<T> {
    pub(crate) store: Arc<Store<T>>,
}

#[cfg(feature = "json")]
impl<T> Shared<T>
where
    T: serde::Serialize + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    /// Opens the value that is kept at `path`, as JSON. Nothing is sent; what is missing is made by the first who needs it.
    ///
    /// Until somebody has [written](crate::Acquire::replacing) one there is no value, and to read it is
    /// [`ValueError::Unset`](crate::ValueError::Unset); [`SharedBuilder::initial`] sees to that.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if `path` is not an absolute ZooKeeper path, or is the root or in `/zookeeper`.
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    pub fn new<C: Coordinator + Clone>(coordinator: &C, path: impl AsRef<str>) -> Result<Shared<T>, Error> {
        Shared::builder(coordinator, path).build()
    }

    /// As [`Shared::new`], with options.
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    pub fn builder<C: Coordinator + Clone>(coordinator: &C, path: impl AsRef<str>) -> SharedBuilder<T> {
        Shared::with_format(coordinator, path, Json)
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// As [`Shared::builder`], in a format of your choice, for any type that this format can write down. See [`Format`].
    pub fn with_format<C: Coordinator + Clone>(
        coordinator: &C,
        path: impl AsRef<str>,
        format: impl Format<T>,
    ) -> SharedBuilder<T> {
        let coordinator: Arc<dyn Coordinator> = Arc::new(coordinator.clone());
        let path = path.as_ref();
        SharedBuilder {
            lock: RwLock::builder(&coordinator, format!("{path}/lock")),
            coordinator,
            path: path.to_owned(),
            terms: Terms::new(format),
        }
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// The newest value that has come from the ensemble: a copy in this process, kept fresh by a watch. Takes no lock,
    /// sends nothing and waits for nothing, so that it can be asked for each request that is served.
    ///
    /// The first call starts the watch, which then lasts for as long as a clone of this handle does, and usually gives
    /// `None`: wait for the first value with [`changes`](Self::changes). After that a call costs a look and an `Arc`; only
    /// the first one after a change makes a value of the new bytes.
    ///
    /// # How old it may be
    /// While connected, as old as the server's view, which is behind the others by milliseconds as a rule; a server that
    /// is cut off from its leader gives up after `syncLimit` ticks. While disconnected, as old as the disconnection:
    /// what has happened meanwhile is told after the reconnect, and also when the session had ended. It never goes back
    /// to an older value. The commits of this handle, and of its clones, are in it when they return, unless they made the
    /// node. [`copy_state`](Self::copy_state) says how fresh it is.
    ///
    /// If the node is deleted, or holds something that is no value, the last value stays, and `copy_state` and
    /// [`changes`](Self::changes) tell why.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use zk_rwlock::{Error, Memory, Shared};
    /// # let zk = Memory::new();
    /// let limit: Shared<u32> = Shared::new(&zk, "/limits/requests")?;
    /// limit.write().replacing(100).await?.commit().await?;
    ///
    /// limit.changes().next().await.expect("open")?; // once, at the start
    /// assert_eq!(**limit.latest().expect("has come"), 100);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn latest(&self) -> Option<Arc<Stored<T>>> {
        self.store.cache.latest()
    }

    /// How fresh [`latest`](Self::latest) is now. Sends nothing, and waits for nothing.
    pub fn copy_state(&self) -> CopyState {
        self.store.cache.state()
    }

    /// The values as they come, beginning with the present one. See [`ValueChanges`].
    pub fn changes(&self) -> ValueChanges<T> {
        self.store.cache.changes()
    }
}

impl<T> Shared<T> {
    /// The lock: for its queue, and for those who need no value.
    pub fn lock(&self) -> &RwLock {
        &self.store.lock
    }

    /// The node that the value is kept in.
    pub fn value_path(&self) -> &str {
        &self.store.cache.path
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared { store: Arc::clone(&self.store) }
    }
}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("path", &self.store.cache.path)
            .field("schema", &self.store.cache.terms.schema)
            .finish_non_exhaustive()
    }
}

/// Options of a [`Shared`]. Made by [`Shared::builder`] and [`Shared::with_format`].
#[must_use = "nothing is opened before `build`"]
pub struct SharedBuilder<T> {
    coordinator: Arc<dyn Coordinator>,
    lock: RwLockBuilder,
    path: String,
    terms: Terms<T>,
}

impl<T: Send + Sync + 'static> SharedBuilder<T> {
    /// The value to begin with. Whoever reads first, and finds none, writes it: once, under the lock; a write that finds
    /// none begins with it. Default: none.
    pub fn initial(mut self, initial: impl Fn() -> T + Send + Sync + 'static) -> Self {
        self.terms.initial = Some(Box::new(initial));
        self
    }

    /// Options of the lock: its host and label, sharing of reads, warnings, and so on.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # fn main() -> Result<(), zk_rwlock::Error> {
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Memory, Shared};
    /// # let zk = Memory::new();
    /// let limit: Shared<u32> = Shared::builder(&zk, "/limits/requests")
    ///     .lock(|lock| lock.host("web-1").share_reads(Duration::from_millis(100)))
    ///     .build()?;
    /// # Ok(()) }
    /// # #[cfg(not(feature = "json"))]
    /// # fn main() {}
    /// ```
    pub fn lock(mut self, options: impl FnOnce(RwLockBuilder) -> RwLockBuilder) -> Self {
        self.lock = options(self.lock);
        self
    }

    /// The version of the type, which is kept beside the value: raise it whenever programs that know only the last one
    /// must not touch what newer ones have written. Default: 1.
    ///
    /// A value of a newer schema is [`ValueError::NewerSchema`](crate::ValueError::NewerSchema), and left alone. One of an
    /// older schema goes through [`migrate`](Self::migrate).
    pub fn schema(mut self, schema: u32) -> Self {
        self.terms.schema = schema;
        self
    }

    /// How a value that was written with an older schema becomes one of ours: from its schema, and its bytes as the
    /// format has them. Without it such a value is [`ValueError::OlderSchema`](crate::ValueError::OlderSchema).
    ///
    /// Reading it changes nothing in the ensemble; with the next commit it is kept in our schema, which older programs
    /// cannot read.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use serde::{Deserialize, Serialize};
    /// # use zk_rwlock::{Error, Memory, Shared};
    /// # let zk = Memory::new();
    /// # let old: Shared<u64> = Shared::new(&zk, "/limits/timeout")?;
    /// # old.write().replacing(5).await?.commit().await?;
    /// #[derive(Serialize, Deserialize)]
    /// struct Timeout {
    ///     milliseconds: u64,
    /// }
    ///
    /// let timeout: Shared<Timeout> = Shared::builder(&zk, "/limits/timeout")
    ///     .schema(2)
    ///     .migrate(|schema, bytes| match schema {
    ///         1 => Ok(Timeout { milliseconds: 1000 * serde_json::from_slice::<u64>(bytes)? }),
    ///         _ => Err("there was no such schema".into()),
    ///     })
    ///     .build()?;
    /// assert_eq!(timeout.read().await?.milliseconds, 5000);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn migrate(mut self, migrate: impl Fn(u32, &[u8]) -> Result<T, FormatError> + Send + Sync + 'static) -> Self {
        self.terms.migrate = Some(Box::new(migrate));
        self
    }

    /// How many bytes a value may take, with the lines beside it. A larger one is
    /// [`ValueError::TooLarge`](crate::ValueError::TooLarge), and nothing is sent. Default: 1,044,479, which fits into what
    /// servers take by default. Lower it if their `jute.maxbuffer` is lower; raise it if it is higher everywhere, on all
    /// clients that may read the node, too.
    pub fn size_limit(mut self, bytes: usize) -> Self {
        self.terms.size_limit = bytes;
        self
    }

    /// Opens the value. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] says which option was wrong, and how.
    pub fn build(self) -> Result<Shared<T>, Error> {
        validation::check_directory(&self.path)?;
        let path = format!("{}/value", self.path);
        validation::check(&path)?;
        self.terms.check_name()?;
        let lock = self.lock.build()?;
        let cache = Cache::new(self.coordinator, path, self.terms);
        Ok(Shared { store: Arc::new(Store { cache, lock }) })
    }
}

impl<T> fmt::Debug for SharedBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuilder")
            .field("lock", &self.lock)
            .field("schema", &self.terms.schema)
            .finish_non_exhaustive()
    }
}
