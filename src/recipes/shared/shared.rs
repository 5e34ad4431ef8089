//! [`Shared`], the handle of a value that is stored in a znode and protected by a lock, and its builder.

use std::sync::Arc;

use crate::error::error::Error;
use crate::lock::rw_lock::{RwLock, RwLockBuilder};
#[cfg(feature = "json")]
use crate::recipes::shared::codec::Json;
use crate::recipes::shared::codec::{Codec, Format, FormatError, ValueRules};
use crate::recipes::shared::node::ValueNode;
use crate::recipes::shared::store::SharedState;
use crate::session::contract::Coordinator;
use crate::telemetry::debug::debug;
use crate::validation;

/// A value that many machines share behind a read/write lock, as many tasks share a `tokio::sync::RwLock<T>`.
///
/// [`read`](Self::read) returns a guard that derefs to the value, as it is under the lock. [`write`](Self::write)
/// returns a guard for changes. [`commit`](crate::shared::SharedWriteGuard::commit) writes the changes, in a
/// transaction that checks that the lock is held. Changes without a commit are discarded. [`update`](Self::update)
/// acquires, changes, commits and releases in one call.
///
/// [`live`](Self::live) returns a copy in this process, kept fresh by a watch, for hot paths.
/// [`changes`](Self::changes) returns a stream of the values, and [`wait_for`](Self::wait_for) waits for one of them. A
/// handle is cheap to clone, and clones share the copy.
///
/// The value is encoded as [`Json`](crate::format::Json), or in a [`Format`] of your own.
///
/// # Where it is kept
/// Two nodes are below `path`: `lock`, the directory of the lock, and `value`, an ordinary node. The value node begins
/// with a header of a few lines of text: the format, the [schema](SharedBuilder::schema), and the last writer. An empty
/// line follows, and then the value as the format encodes it:
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
/// The header marks a value of this library. Other bytes are an [error](crate::error::ValueError::Foreign), and only a
/// commit after [`replacing`](crate::Acquire::replacing) overwrites them. An empty node counts as a node without a
/// value, so an operator can create the node beforehand, with an ACL of its own.
///
/// Other programs that use the same lock, such as `zklock`, use the path `/billing/database/lock`. A lock at
/// `/billing/database` would be another lock, and exclude no user of the value.
///
/// A commit checks that the node still has the version that this client has read. So the commit is refused if a client
/// without the lock has written the node meanwhile. There is one exception: that client has deleted the node, created
/// it again, and written it until the version was the same. If another ZooKeeper client writes the node under the lock,
/// its transaction must check that the lock's node exists. Take the path of that node from
/// [`prepare_foreign_transaction`](crate::Hold::prepare_foreign_transaction).
///
/// # How large it may be
/// At most 1,044,479 bytes, with the header, unless another [`size_limit`](SharedBuilder::size_limit) is set.
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
    pub(crate) state: Arc<SharedState<T>>,
}

#[cfg(feature = "json")]
impl<T> Shared<T>
where
    T: serde::Serialize + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    /// Opens the value at `path`, as JSON. Sends nothing. Missing nodes are created when needed.
    ///
    /// Until a value is [written](crate::Acquire::replacing), reads fail with
    /// [`ValueError::Unset`](crate::error::ValueError::Unset). [`SharedBuilder::initial`] prevents that.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if `path` is not an absolute ZooKeeper path, or is the root or in `/zookeeper`.
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    pub fn new<C: Coordinator + Clone>(coordinator: &C, path: impl AsRef<str>) -> Result<Shared<T>, Error> {
        Shared::builder(coordinator, path).build()
    }

    /// Like [`Shared::new`], with options.
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    pub fn builder<C: Coordinator + Clone>(coordinator: &C, path: impl AsRef<str>) -> SharedBuilder<T> {
        Shared::with_format(coordinator, path, Json)
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// Like [`Shared::builder`], in another format, for any type that the format can express. See [`Format`].
    pub fn with_format<C: Coordinator + Clone>(
        coordinator: &C,
        path: impl AsRef<str>,
        format: impl Format<T>,
    ) -> SharedBuilder<T> {
        let path = path.as_ref().to_owned();
        let (lock, rules) = (RwLock::builder(coordinator, format!("{path}/lock")), ValueRules::new(format.name()));
        let codec = Codec { format: Box::new(format), initial: None, migrate: None };
        SharedBuilder { lock, path, rules, codec }
    }
}

impl<T> Shared<T> {
    /// Returns the lock of the value. Use it to read the queue, or to hold the lock without the value.
    pub fn lock(&self) -> &RwLock {
        &self.state.node.lock
    }

    /// Returns the path of the value node.
    pub fn value_path(&self) -> &str {
        &self.state.node.path
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared { state: Arc::clone(&self.state) }
    }
}

debug!(Shared<T> as "Shared" for [T], |it| path: it.state.node.path, schema: it.state.node.rules.schema);

/// The options of a [`Shared`]. Made by [`Shared::builder`] and [`Shared::with_format`].
#[must_use = "nothing is opened before `build`"]
pub struct SharedBuilder<T> {
    lock: RwLockBuilder,
    path: String,
    rules: ValueRules,
    codec: Codec<T>,
}

impl<T: Send + Sync + 'static> SharedBuilder<T> {
    /// Sets the initial value. The first reader that finds no value writes the initial value, once, under the lock. A
    /// call of [`live`](Shared::live), [`changes`](Shared::changes) or [`wait_for`](Shared::wait_for) that finds no
    /// value writes it, too, and for this waits for a writer that holds the lock. A writer that finds no value gets a
    /// guard with the initial value.
    ///
    /// If the value node is deleted later, the initial value is not written again. Reads then fail with
    /// [`ValueError::Vanished`](crate::error::ValueError::Vanished), until a writer writes a value with
    /// [`replacing`](crate::Acquire::replacing). Default: no initial value.
    pub fn initial(mut self, initial: impl Fn() -> T + Send + Sync + 'static) -> Self {
        self.codec.initial = Some(Box::new(initial));
        self
    }

    /// Sets options of the lock: host, label, warnings, and whether the lock is [kept](RwLockBuilder::keep) between
    /// uses.
    ///
    /// While this process keeps the lock for reads, the first [`read`](Shared::read) reads the value from the ensemble.
    /// Later reads return the newest committed value without a request and without a wait. A writer must ask this process
    /// to give the lock up, and waits until that is done. A [`live`](Shared::live) copy blocks no writer, but may be older.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, Shared};
    /// # let zk = Memory::new();
    /// let limit: Shared<u32> = Shared::builder(&zk, "/limits/requests")
    ///     .initial(|| 100)
    ///     .lock(|lock| lock.host("web-1").keep(Duration::from_secs(60)))
    ///     .build()?;
    /// assert_eq!(*limit.read().await?, 100);
    /// let before = zk.requests();
    /// assert_eq!(*limit.read().await?, 100);
    /// assert_eq!(zk.requests(), before);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn lock(mut self, options: impl FnOnce(RwLockBuilder) -> RwLockBuilder) -> Self {
        self.lock = options(self.lock);
        self
    }

    /// Sets the schema: the version of the type, which is stored with each value. Raise the schema when older programs must
    /// not change what newer programs have written. Default: 1.
    ///
    /// A value of a newer schema is a [`ValueError::NewerSchema`](crate::error::ValueError::NewerSchema), and only a
    /// commit after [`replacing`](crate::Acquire::replacing) overwrites the value. A value of an older schema is passed
    /// to [`migrate`](Self::migrate).
    pub fn schema(mut self, schema: u32) -> Self {
        self.rules.schema = schema;
        self
    }

    /// Sets a function that converts a value of an older schema. The function gets the number of the older schema, and
    /// the bytes as the format wrote them. Without the function, reading a value of an older schema fails with
    /// [`ValueError::OlderSchema`](crate::error::ValueError::OlderSchema).
    ///
    /// Converting a value changes nothing in the ensemble. The next commit writes the value in the new schema, which
    /// older programs cannot read.
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
        self.codec.migrate = Some(Box::new(migrate));
        self
    }

    /// Sets the maximum size of a value in bytes, with its header. A larger value is a
    /// [`ValueError::TooLarge`](crate::error::ValueError::TooLarge), and nothing is sent. Default: 1,044,479, which
    /// fits into the largest request that servers accept by default. Lower the size if the servers' `jute.maxbuffer` is
    /// lower. Raise it only if `jute.maxbuffer` is higher everywhere, also on all clients that may read the node.
    pub fn size_limit(mut self, bytes: usize) -> Self {
        self.rules.size_limit = bytes;
        self
    }

    /// Opens the value. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] says which option is wrong, and why.
    pub fn build(self) -> Result<Shared<T>, Error> {
        validation::check_lock_directory(&self.path)?;
        let path = format!("{}/value", self.path);
        validation::check_path(&path)?;
        self.rules.check_format_name()?;
        let node = ValueNode { lock: self.lock.build()?, path, rules: self.rules };
        Ok(Shared { state: SharedState::new(node, self.codec) })
    }
}

debug!(SharedBuilder<T> as "SharedBuilder" for [T], |it| lock: it.lock, schema: it.rules.schema);
