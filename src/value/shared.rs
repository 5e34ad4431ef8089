//! A value in a znode, behind the lock; knows no concrete backend, and of the lock only what any user of it does.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{oneshot, watch};

use crate::error::error::Error;
use crate::error::value::{ValueError, Written};
use crate::hold::guard::Held;
use crate::lock::rw_lock::{RwLock, RwLockBuilder};
use crate::session::contract::Coordinator;
use crate::session::request::Failure;
use crate::ticket::ticket;
use crate::validation;
use crate::value::cache::Copy;
use crate::value::commit::{Base, Commit};
use crate::value::envelope::{Envelope, Mark};
#[cfg(feature = "json")]
use crate::value::format::Json;
use crate::value::format::{Format, FormatError};

/// What servers take in one request unless they are told otherwise (`jute.maxbuffer`, 1 MiB less one byte), less what
/// goes with the value: two paths, an ACL, and the frames of the transaction.
const SIZE_LIMIT: usize = 0xf_ffff - 4096;

/// A value for many machines behind a read/write lock of theirs: what `tokio::sync::RwLock<T>` is for many tasks.
///
/// [`read`](Self::read) gives a guard that derefs to the value, fresh under the lock; [`write`](Self::write) one whose
/// changes go out with [`commit`](SharedWriteGuard::commit), in a transaction that checks that the lock is held, and are
/// discarded without. [`latest`](Self::latest) is a copy in this process, kept fresh by a watch, for hot paths;
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
/// By these lines it is told from foreign bytes, which are an [error](ValueError::Foreign), and are left alone. An empty
/// node counts as one that was never written, so that an operator can make it beforehand, with an ACL of its own.
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
    pub(crate) inner: Arc<Inner<T>>,
}

/// What clones share.
pub(crate) struct Inner<T> {
    /// Dropped first, so that the watch and its place on a session are given up before the coordinator is.
    pub(crate) following: OnceLock<oneshot::Sender<()>>,
    pub(crate) copy: watch::Sender<Copy<T>>,
    last_good: Mutex<LastGood<T>>,
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) lock: RwLock,
    /// The value's node.
    pub(crate) path: String,
    terms: Terms<T>,
}

/// What the bytes of a value must be, and what may be made of them.
struct Terms<T> {
    format: Arc<dyn Format<T>>,
    schema: u32,
    initial: Option<Initial<T>>,
    migrate: Option<Migrate<T>>,
    size_limit: usize,
}

/// The newest of the values that the copy was, and when it came.
type LastGood<T> = Option<(u64, Arc<Stored<T>>)>;

type Initial<T> = Box<dyn Fn() -> T + Send + Sync>;

type Migrate<T> = Box<dyn Fn(u32, &[u8]) -> Result<T, FormatError> + Send + Sync>;

/// A value, and who wrote it. Derefs to the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<T> {
    value: T,
    written: Written,
}

impl<T> Stored<T> {
    /// Who wrote it, and when.
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// The value alone.
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl<T> Deref for Stored<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(feature = "json")]
impl<T> Shared<T>
where
    T: serde::Serialize + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    /// Opens the value that is kept at `path`, as JSON. Nothing is sent; what is missing is made by the first who needs it.
    ///
    /// Until somebody has [written](crate::Acquire::replacing) one there is no value, and to read it is
    /// [`ValueError::Unset`]; [`SharedBuilder::initial`] sees to that.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if `path` is not an absolute ZooKeeper path, or is the root or in `/zookeeper`.
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    pub fn new<C: Coordinator + Clone>(coordinator: &C, path: &str) -> Result<Shared<T>, Error> {
        Shared::builder(coordinator, path).build()
    }

    /// As [`Shared::new`], with options.
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    pub fn builder<C: Coordinator + Clone>(coordinator: &C, path: &str) -> SharedBuilder<T> {
        Shared::with_format(coordinator, path, Json)
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// As [`Shared::builder`], in a format of your choice, for any type that this format can write down. See [`Format`].
    pub fn with_format<C: Coordinator + Clone>(
        coordinator: &C,
        path: &str,
        format: impl Format<T>,
    ) -> SharedBuilder<T> {
        let coordinator: Arc<dyn Coordinator> = Arc::new(coordinator.clone());
        SharedBuilder {
            lock: RwLock::builder(&coordinator, &format!("{path}/lock")),
            coordinator,
            path: path.to_owned(),
            terms: Terms { format: Arc::new(format), schema: 1, initial: None, migrate: None, size_limit: SIZE_LIMIT },
        }
    }
}

impl<T> Shared<T> {
    /// The lock: for its queue, and for those who need no value.
    pub fn lock(&self) -> &RwLock {
        &self.inner.lock
    }

    /// The node that the value is kept in.
    pub fn value_path(&self) -> &str {
        &self.inner.path
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared { inner: Arc::clone(&self.inner) }
    }
}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("path", &self.inner.path)
            .field("schema", &self.inner.terms.schema)
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
    /// A value of a newer schema is [`ValueError::NewerSchema`], and left alone. One of an older schema goes through
    /// [`migrate`](Self::migrate).
    pub fn schema(mut self, schema: u32) -> Self {
        self.terms.schema = schema;
        self
    }

    /// How a value that was written with an older schema becomes one of ours: from its schema, and its bytes as the
    /// format has them. Without it such a value is [`ValueError::OlderSchema`].
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

    /// How many bytes a value may take, with the lines beside it: a larger one is [`ValueError::TooLarge`], and nothing is
    /// sent. Default: 1,044,479, which fits into what servers take by default. Lower it if their `jute.maxbuffer` is
    /// lower; raise it if it is higher everywhere, on all clients that may read the node, too.
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
        check_name(self.terms.format.name())?;
        let inner = Inner {
            following: OnceLock::new(),
            copy: watch::Sender::new(Copy::default()),
            last_good: Mutex::new(None),
            coordinator: self.coordinator,
            lock: self.lock.build()?,
            path,
            terms: self.terms,
        };
        Ok(Shared { inner: Arc::new(inner) })
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

fn check_name(name: &str) -> Result<(), Error> {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '+' | '-');
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_fit) {
        return Err(Error::invalid(format!("the name of the format is {name:?}")));
    }
    Ok(())
}

/// What a write begins with.
pub(crate) struct Loaded<T> {
    pub(crate) value: T,
    pub(crate) written: Option<Written>,
    pub(crate) base: Base,
}

impl<T> Inner<T> {
    pub(crate) fn fault(&self, error: ValueError) -> Error {
        Error::Value { path: self.path.clone(), error }
    }

    pub(crate) fn label(&self) -> Option<String> {
        self.lock.handle.label.clone()
    }

    /// The node, or a directory above it, is watched.
    pub(crate) fn watched_bytes(&self) -> usize {
        self.path.len()
    }

    pub(crate) fn last_good(&self) -> MutexGuard<'_, LastGood<T>> {
        self.last_good.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + Sync + 'static> Inner<T> {
    /// Whether these bytes look like a value that we can read.
    pub(crate) fn check(&self, bytes: &[u8]) -> Result<(), ValueError> {
        self.envelope(bytes).map(drop)
    }

    fn envelope<'bytes>(&self, bytes: &'bytes [u8]) -> Result<(Envelope, &'bytes [u8]), ValueError> {
        if bytes.is_empty() {
            return Err(ValueError::Unset);
        }
        let (envelope, payload) = Envelope::open(bytes).map_err(|problem| ValueError::Foreign { problem })?;
        if envelope.written.schema > self.terms.schema {
            return Err(ValueError::NewerSchema { known: self.terms.schema, written: Box::new(envelope.written) });
        }
        if envelope.format != self.terms.format.name() && envelope.written.schema == self.terms.schema {
            let expected = self.terms.format.name().to_owned();
            return Err(ValueError::OtherFormat {
                found: envelope.format,
                expected,
                written: Box::new(envelope.written),
            });
        }
        Ok((envelope, payload))
    }

    /// The value that these bytes are.
    pub(crate) fn open(&self, bytes: &[u8]) -> Result<Stored<T>, ValueError> {
        let (Envelope { written, .. }, payload) = self.envelope(bytes)?;
        let known = self.terms.schema;
        let value = if written.schema == known {
            self.terms.format.decode(payload).map_err(|problem| ValueError::WrongType {
                problem: problem.to_string(),
                written: Box::new(written.clone()),
            })
        } else {
            let migrated = match &self.terms.migrate {
                Some(migrate) => migrate(written.schema, payload).map_err(|problem| problem.to_string()),
                None => Err("there is no migration".to_owned()),
            };
            migrated.map_err(|problem| ValueError::OlderSchema { known, problem, written: Box::new(written.clone()) })
        };
        Ok(Stored { value: value?, written })
    }

    /// The bytes of a value, and what is kept beside it; nothing that could not be read again.
    pub(crate) fn seal(
        &self,
        value: &T,
        held: &Held,
        label: &Option<String>,
        commit: u32,
        base: Base,
    ) -> Result<(Vec<u8>, Written), Error> {
        let unwritable = |problem: FormatError| self.fault(ValueError::Unwritable { problem: problem.to_string() });
        let payload = self.terms.format.encode(value).map_err(unwritable)?;
        let written = Written {
            host: self.lock.handle.host.clone(),
            label: label.clone(),
            token: held.standing().czxid,
            commit,
            at: crate::value::envelope::now(),
            schema: self.terms.schema,
        };
        let envelope =
            Envelope { format: self.terms.format.name().to_owned(), written: written.clone(), after: base.mark };
        let bytes = envelope.seal(&payload);
        if bytes.len() > self.terms.size_limit {
            let (bytes, limit) = (bytes.len(), Some(self.terms.size_limit));
            return Err(self.fault(ValueError::TooLarge { bytes, limit }));
        }
        self.terms.format.decode(&payload).map_err(unwritable)?;
        Ok((bytes, written))
    }

    /// Puts the bytes into the node, and says which version that made.
    pub(crate) async fn put(&self, held: &Held, bytes: &[u8], written: &Written, base: Base) -> Result<i32, Error> {
        let Written { token, commit, .. } = *written;
        let mark = Mark { token, commit };
        Commit { held, coordinator: &self.coordinator, path: &self.path, bytes, mark, base }.put().await
    }

    /// What is in the node, after a commit of ours of which nobody knows what became; whatever holders before us, or
    /// others without the lock, have put there is not what a commit of ours may replace.
    pub(crate) async fn base(&self, held: &Held, before: Base) -> Result<Base, Error> {
        if let Some(loss) = held.loss() {
            return Err(Error::Lost(loss));
        }
        let node = match crate::value::commit::look(held.place().session(), &self.path).await {
            Ok(node) => node,
            Err(Failure::Over(ending)) => return Err(Error::Lost(crate::Loss::SessionOver(ending))),
            Err(failure) => return Err(Error::from_failure(failure, "read", &self.path)),
        };
        let now = Base::of(node.as_ref().map(|(bytes, stat)| (bytes.as_slice(), stat.version)));
        let is_ours = now.mark.is_some_and(|mark| mark.token == held.standing().czxid);
        Ok(if is_ours { now } else { before })
    }

    /// The value, read under the lock.
    pub(crate) async fn read(&self, held: &Held) -> Result<Stored<T>, Error> {
        let mut tries = 0;
        loop {
            let node = held.data(&self.path).await?;
            let (bytes, version) = node.map_or((Vec::new(), None), |node| (node.data, Some(node.version)));
            match (self.open(&bytes), &self.terms.initial) {
                (Err(ValueError::Unset), Some(initial)) if tries < ticket::UNKNOWN_TRIES => {
                    tries += 1;
                    self.begin(held, initial(), Base { version, mark: None }).await?;
                }
                (answer, _) => return answer.map_err(|error| self.fault(error)),
            }
        }
    }

    /// Puts the first value there, unless another reader has been faster.
    async fn begin(&self, held: &Held, value: T, base: Base) -> Result<(), Error> {
        let (bytes, written) = self.seal(&value, held, &self.label(), 1, base)?;
        drop(value);
        match self.put(held, &bytes, &written, base).await {
            Ok(version) => {
                self.committed(&bytes, version);
                Ok(())
            }
            Err(Error::TransactionRefused { reason: Failure::NodeExists | Failure::BadVersion, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What a write begins with: the value as it is, or the initial one, which is not there yet.
    pub(crate) async fn load(&self, held: &Held) -> Result<Loaded<T>, Error> {
        let (bytes, base) = self.node(held).await?;
        match (self.open(&bytes), &self.terms.initial) {
            (Ok(Stored { value, written }), _) => Ok(Loaded { value, written: Some(written), base }),
            (Err(ValueError::Unset), Some(initial)) => Ok(Loaded { value: initial(), written: None, base }),
            (Err(error), _) => Err(self.fault(error)),
        }
    }

    /// What a write begins with that replaces whatever is there.
    pub(crate) async fn load_instead(&self, held: &Held, value: T) -> Result<Loaded<T>, Error> {
        let (bytes, base) = self.node(held).await?;
        let written = Envelope::open(&bytes).ok().map(|(envelope, _)| envelope.written);
        Ok(Loaded { value, written, base })
    }

    async fn node(&self, held: &Held) -> Result<(Vec<u8>, Base), Error> {
        let node = held.data(&self.path).await?;
        let base = Base::of(node.as_ref().map(|node| (node.data.as_slice(), node.version)));
        Ok((node.map(|node| node.data).unwrap_or_default(), base))
    }
}
