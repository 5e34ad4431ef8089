//! One read/write lock for many machines, kept in [Apache ZooKeeper](https://zookeeper.apache.org).
//!
//! Many readers or one writer, first come first served. A holder that loses its session learns of the loss before
//! another contender can be granted the lock. You may need less. For state in one znode, a conditional set suffices.
//! For state in one process, use the `RwLock` of tokio, and for state in one database the locks of that database.
//!
//! ```
//! use std::time::Duration;
//! use zk_rwlock::{Error, Memory, RwLock};
//!
//! # tokio_test::block_on(async {
//! let zk = Memory::new(); // or: ZooKeeper::connect("zk1:2181,zk2:2181,zk3:2181").await?
//! let lock = RwLock::new(&zk, "/locks/config")?;
//!
//! // Together with other readers.
//! let reader = lock.read().await?;
//! reader.release().await?;
//!
//! // Alone; gives up after 30 s with an error that names the contenders in the way.
//! let writer = lock.write().timeout(Duration::from_secs(30)).label("rotate keys").await?;
//!
//! // ZooKeeper commits this transaction only if the lock is still held.
//! writer.transaction().create("/config", "v2").commit().await?;
//!
//! // The future in `run` is dropped as soon as the lock is lost.
//! let token = writer.fencing_token();
//! writer.run(async { /* send `token` to other systems, so that they can refuse an older one */ }).await?;
//! # let _ = token;
//! # Ok::<(), Error>(()) }).unwrap();
//! ```
//!
//! | I want | use |
//! |---|---|
//! | a configuration that many read and one changes | [`Shared`], its copy [`live()`](Shared::live), its [formats](mod@format) |
//! | a migration while no instance runs | [`RwLock::write`] in the deploy, [`RwLock::read`] in the service |
//! | work shared out among workers | [`RwLock::try_write`] |
//! | one leader among many processes | [`Leadership`] |
//! | a job that every host starts, done once | [`Acquire::once_in`] |
//! | at most so many at once, from all machines | [`Semaphore`] |
//! | several locks at once, without deadlocks | [`MultiLock`] |
//! | to take a lock often, without a request | [`RwLockBuilder::keep`] |
//! | to know whether I still hold a lock, and to stop if not | [`Hold`], which every guard derefs to |
//! | changes in ZooKeeper only while the lock is held | [`Hold::transaction`] |
//! | a database that refuses a late holder | [`Hold::fencing_token`] |
//! | a timeout, a label, the progress of a wait | [`Acquire`] |
//! | to see who holds and who waits | [`RwLock::queue`], [`Survey`] |
//! | one path together with Curator or kazoo | [`Dialect`] |
//! | no asynchronous runtime | [`Acquire::blocking`], [`block_on`] |
//! | tests without a server | [`Memory`], and its [faults](memory::Faults) |
//! | TLS, SASL, an ACL, a session timeout | [`ZooKeeperBuilder`], [`security`] |
//! | what to do about an error | [`Error`] |
//!
//! Pages: [a guide](guide), task by task; [what is promised, and what is not](guarantees);
//! [who can take a lock away](security); [what it costs](cost); [how to operate it](operating);
//! [coming from Curator, kazoo, etcd or flock](coming_from).
//!
//! # How a holder knows in time
//!
//! ZooKeeper expires a session one session timeout after its leader last heard from the client. The client learns of
//! the expiry only when it reconnects. A client whose server is cut off from the leader notices nothing at first: its
//! connection works, and reads of the lock's own node succeed.
//!
//! So every session has a lease, and a lock counts as held only until the lease ends. While a lock is held or waited
//! for, the library sends a read in each fifth of the session timeout. Half a `tickTime` and some slack after the
//! answer to this read, the library sends a check-only transaction. Once a quorum has acknowledged this transaction,
//! the leader has surely heard of the session since the read was *sent*. The lease then ends five sixths of the session
//! timeout after the read was sent, or a little earlier if the session timeout is short. An idle session sends a read
//! in each quarter of the session timeout. All this runs on a thread of the library. [`is_held`](Hold::is_held) itself
//! compares the present time with the end of the lease. So even if the process was stopped, the first call after the
//! stop is right.
//!
//! The lease does not cover two cases. First, a request that is under way to another system may arrive after the loss
//! of the lock: use the fencing token. Second, a client that may delete the lock's node can take the lock away. A watch
//! then notifies the holder, but perhaps only after the next contender was granted the lock.
//!
//! # Seeing inside
//!
//! With [`tracing`](https://docs.rs/tracing) the library records these spans and events, and also warnings and errors
//! about single nodes. Their targets begin with `zk_rwlock`.
//!
//! | what | level | fields |
//! |---|---|---|
//! | span `acquire`: from asking until granted, refused or dropped | debug | `path`, `mode`, `label`, and as they become known `sequence`, `token`, `waited` |
//! | span `hold`: from the grant until the release begins or the guard is dropped. It follows from `acquire`, and is inside the caller's span. A downgrade ends the writer's span, and a reader's span follows from that one | debug | `path`, `mode`, `sequence`, `token`, `label`, `held` |
//! | granted | debug | `path`, `mode`, `sequence`, `token`, and the `kind`: how the turn was proven. `at once`: by a listing before any wait. `look`: by a listing after a wait. `hand-off`: by the predecessor |
//! | not granted | debug | `path`, `mode`, `error` |
//! | the reason of each server for [no session](Error::Unreachable), if the servers were asked | debug | `reason` |
//! | the node of a create whose answer was lost is found | info | `path`, `node` |
//! | work that is done [once in a while](Acquire::once_in) is not due; its success is recorded | debug | `path`; `host` and `at` of the record, or `token` |
//! | a kept lock is given up | debug | `path`, the `cause` (as in the metrics: `asked`, `idle`, `lost`, `closed`, `replaced`, `unsure`), how many `uses` its node had, `idle_for` |
//! | a [`Leadership`]'s term begins; it ends | info | `path`, `term`, `data`; `lasted`, and `why`: `done`, `resigned` (or stopped), `unhealthy`, `lost`, or `dropped` with the future of `lead` |
//! | the health check of a candidate fails; it succeeds again | warn; info | `path`, `data`; for how long it was `unhealthy` |
//! | the connection is lost while a lock is held; it is back in time | warn; info | `node`, `left` |
//! | a held lock was lost, even if no caller has noticed | warn | `node`, `cause` |
//! | a wait takes longer than [`warn_after_waiting`](RwLockBuilder::warn_after_waiting), 30 s by default | warn | `path`, `label`; `mode`, `waited`, `blockers`, and in `others` how many more acquisitions have waited too long. Or `node`, if the turn has come and the future of the acquisition is not polled |
//! | a hold takes longer than [`warn_after_holding`](RwLockBuilder::warn_after_holding) | warn | `path`, `label`, `node`, `token`, `held` |
//!
//! With the feature `metrics` the library also records metrics. The module `metrics` lists them.

#![cfg_attr(docsrs, feature(doc_cfg))]
// Some files have the name of their folder, such as `error/error.rs`.
#![allow(clippy::module_inception)]

mod call;
mod contend;
pub mod error;
mod keep;
mod lock;
pub mod memory;
mod observe;
pub mod queue;
mod recipes;
mod session;
#[cfg_attr(shuttle, path = "../threads/sync.rs")]
mod sync;
mod telemetry;
mod validation;
mod zookeeper;

pub use crate::call::{Call, block_on};
pub use crate::contend::transaction::Transaction;
pub use crate::error::error::Error;
pub use crate::lock::acquire::{Acquire, Granting, Guard};
pub use crate::lock::hold::{Hold, ReadGuard, WriteGuard};
pub use crate::lock::rw_lock::{RwLock, RwLockBuilder};
pub use crate::memory::client::Memory;
pub use crate::observe::survey::Survey;
pub use crate::queue::dialect::Dialect;
pub use crate::queue::member::Queue;
pub use crate::queue::mode::Mode;
pub use crate::recipes::leadership::leadership::Leadership;
pub use crate::recipes::multi::guard::MultiGuard;
pub use crate::recipes::multi::lock::MultiLock;
pub use crate::recipes::semaphore::Semaphore;
pub use crate::recipes::shared::shared::Shared;
pub use crate::session::contract::{ConnectionState, Coordinator};
pub use crate::session::request::{HoldState, Loss};
#[cfg(feature = "metrics")]
pub use crate::telemetry::metrics;
pub use crate::zookeeper::client::ZooKeeper;
pub use crate::zookeeper::options::ZooKeeperBuilder;

/// Types that methods of a [`Hold`] return: the changes of its state, the data of a node, the outcomes of a
/// transaction.
pub mod hold {
    pub use crate::contend::contender::NodeData;
    pub use crate::observe::changes::Changes;
    pub use crate::session::request::Outcome;
}

/// The types that go with a [`Shared`] value, such as its builder, its guards, and its live copy.
pub mod shared {
    pub use crate::error::value::Written;
    pub use crate::recipes::shared::codec::Stored;
    pub use crate::recipes::shared::guard::{SharedReadGuard, SharedWriteGuard, Updated};
    pub use crate::recipes::shared::known::CopyState;
    pub use crate::recipes::shared::live::{Live, ValueChanges};
    pub use crate::recipes::shared::shared::SharedBuilder;
}

/// The types that go with a [`Leadership`]: its builder, a term of office, the current leader, and the changes of
/// leader.
pub mod leadership {
    pub use crate::recipes::leadership::campaign::Term;
    pub use crate::recipes::leadership::leader::{Leader, LeaderChanges};
    pub use crate::recipes::leadership::leadership::LeadershipBuilder;
}

/// The types that go with a [`Semaphore`]: its builder and its permits.
pub mod semaphore {
    pub use crate::recipes::semaphore::{Permit, SemaphoreBuilder};
}

/// Work that is done once in a while by one of many hosts: see [`Acquire::once_in`].
pub mod once {
    pub use crate::queue::metadata::Record;
    pub use crate::recipes::once::{OnceGuard, Work};
}

/// The internals of the lock, for the authors of a backend, of a tool such as `zklock`, or of an exhaustive search such
/// as `tests/models`. **Semantic versioning does not cover this module**: it may change in any release.
///
/// A backend is a [`Coordinator`](coordinator::Coordinator), which opens [`Session`](coordinator::Session)s. This crate
/// has two backends: [`Memory`] and [`ZooKeeper`]. Both keep the [contract](coordinator::Session#contract) of a
/// session. The tests in `tests/conformance` check each clause of the contract on both backends.
///
/// [`turn()`](coordinator::turn) decides from the names of the nodes alone whose turn it is.
/// [`Waiter`](coordinator::Waiter) is the state machine of a waiting contender. Its caller reports what has happened,
/// and the state machine returns the next step.
#[doc(hidden)]
pub mod coordinator {
    pub use crate::queue::metadata::parse_record as done_of;
    pub use crate::queue::mode::{REFUSED_FROM, RESTART_FROM};
    pub use crate::queue::node_name::NodeName;
    pub use crate::queue::permits::permits_in_name;
    pub use crate::queue::turn::{
        GrantSource, IfTaken, ListingClaim, Predecessor, PredecessorNews, Step, Turn, Waiter, turn,
    };
    pub use crate::session::contract::{Coordinator, Session, SessionSlot};
    pub use crate::session::keep_alive::keep_alive;
    pub use crate::session::lease::{Lease, Moment};
    pub use crate::session::leaving::{Deletion, NodeRemoval, RemovalReport, RemovalStepAnswer};
    pub use crate::session::node::state::{EntryStep, NodeState, Phase};
    pub use crate::session::request::{
        Created, DeniedRight, Failure, Kind, NodeContents, Operation, Outcome, Reply, SessionEnd, Stat, Task, Watch,
        WatchEvent,
    };
    pub use crate::session::store::SessionStore;
    pub use crate::telemetry::log::flush_events;
    pub use crate::zookeeper::connection::{
        AttemptFailure, Attempts, ConnectStep, ConnectTarget, attempt_time_limit, new_session_jitter,
    };
    pub use crate::zookeeper::probe::{send_four_letter_word, why_no_session};
    pub use crate::zookeeper::servers::split_connect_string;
}

/// The formats in which the value of a [`Shared`] can be encoded, and the trait [`Format`](format::Format) for others.
pub mod format {
    #[cfg(feature = "json")]
    pub use crate::recipes::shared::codec::Json;
    pub use crate::recipes::shared::codec::{Format, FormatError, Raw};
}

/// How to use one lock well, task by task.
///
/// [promises]: crate::guarantees
/// [cost]: crate::cost
/// [performance]: https://docs.rs/crate/zk-rwlock/latest/source/docs/performance.md
/// [coming-from]: crate::coming_from
/// [subclasses]: crate::coming_from#kazoo-and-curator-in-one-queue
/// [operating]: crate::operating
/// [fencing]: crate::fencing
/// [restore]: crate::fencing#after-a-restore
/// [errors]: crate::what_to_do
/// [breaks]: crate::operating#breaks-of-the-connection
/// [asking]: crate::operating#asking-for-a-lock-that-is-only-kept
/// [permissions]: crate::operating#who-may-do-what
/// [vanish]: https://docs.rs/crate/zk-rwlock/latest/source/docs/versions.md
/// [batch-worker]: https://docs.rs/crate/zk-rwlock/latest/source/examples/batch_worker.rs
/// [zklock]: https://docs.rs/crate/zk-rwlock/latest/source/docs/zklock.md
/// [migrations]: https://docs.rs/crate/zk-rwlock/latest/source/docs/migrations.md
/// [serving]: https://docs.rs/crate/zk-rwlock/latest/source/docs/serving.md
///
// Each page of `docs/` defines the targets of its links itself, for readers outside rustdoc. In rustdoc, the first
// definition of a target counts, so the definitions above replace those of the page. `tests/pages/main.rs` runs the
// examples of the pages and of the README.
#[cfg(all(doc, not(doctest)))]
#[doc = include_str!("../docs/pictures.txt")]
#[doc = include_str!("../docs/guide.md")]
pub mod guide {}

/// How a database or another system refuses the late write of a holder that has lost the lock.
///
/// [promises]: crate::guarantees
///
#[cfg(all(doc, not(doctest)))]
#[doc = include_str!("../docs/pictures.txt")]
#[doc = include_str!("../docs/fencing.md")]
pub mod fencing {}

/// What each error means, and what to do.
///
/// [herd]: https://docs.rs/crate/zk-rwlock/latest/source/docs/performance.md
/// [permissions]: crate::operating#who-may-do-what
/// [mixed]: crate::guide#mixed-fleets
/// [permits]: crate::guide#at-most-so-many-at-once
/// [guarded]: crate::guide#guarded-writes
///
#[cfg(all(doc, not(doctest)))]
#[doc = include_str!("../docs/errors.md")]
pub mod what_to_do {}

/// The calls of Curator, kazoo, etcd and flock, beside those of this library.
///
/// [mixed-fleets]: crate::guide#mixed-fleets
///
#[cfg(all(doc, not(doctest)))]
#[doc = include_str!("../docs/coming-from.md")]
pub mod coming_from {}

/// What the lock promises, how a holder knows of a loss in time, and what no lock can promise.
///
/// [breaks]: crate::operating#breaks-of-the-connection
/// [keep]: crate::guide#keep-the-lock-between-uses
/// [upgrade]: crate::guide#from-reading-to-writing
/// [beyond]: crate::guide#what-a-lock-cannot-promise
/// [tick]: crate::guide#choosing-a-session-timeout
/// [fencing]: crate::fencing
/// [security]: crate::security
///
#[cfg(all(doc, not(doctest)))]
#[doc = include_str!("../docs/pictures.txt")]
#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}

/// Who can take a lock away, and how to connect with TLS, SASL and Kerberos.
///
/// [keep]: crate::guide#keep-the-lock-between-uses
/// [releases]: https://docs.rs/crate/zk-rwlock/latest/source/docs/versions.md
/// [vanish]: https://docs.rs/crate/zk-rwlock/latest/source/docs/versions.md
/// [patches]: https://docs.rs/crate/zk-rwlock/latest/source/docs/upstream/README.md
///
#[cfg_attr(all(doc, not(doctest)), doc = include_str!("../docs/security.md"))]
pub mod security {
    #[cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))]
    pub use crate::zookeeper::security::Sasl;
    pub use crate::zookeeper::security::{Acl, Permissions};
    #[cfg(feature = "tls")]
    pub use crate::zookeeper::tls::Tls;
}

/// What each step costs the ensemble.
///
/// [performance]: https://docs.rs/crate/zk-rwlock/latest/source/docs/performance.md
/// [kept]: https://docs.rs/crate/zk-rwlock/latest/source/docs/performance.md
/// [keep]: crate::guide#keep-the-lock-between-uses
///
#[cfg(all(doc, not(doctest)))]
#[doc = include_str!("../docs/cost.md")]
pub mod cost {}

/// How to look into a queue, what to watch, and what to do when a lock is stuck.
///
/// [security]: crate::security
/// [cron]: crate::guide#jobs-that-cron-starts-on-every-host
/// [keep]: crate::guide#keep-the-lock-between-uses
/// [monitoring]: https://docs.rs/crate/zk-rwlock/latest/source/examples/monitoring/README.md
/// [timeline]: https://docs.rs/crate/zk-rwlock/latest/source/docs/zklock.md
/// [leader]: crate::guide#one-leader
/// [semaphore]: crate::guide#at-most-so-many-at-once
/// [kubernetes]: https://docs.rs/crate/zk-rwlock/latest/source/examples/kubernetes/README.md
/// [service]: https://docs.rs/crate/zk-rwlock/latest/source/examples/README.md
/// [serving]: https://docs.rs/crate/zk-rwlock/latest/source/docs/serving.md
/// [guarded]: crate::guide#guarded-writes
/// [versions]: https://docs.rs/crate/zk-rwlock/latest/source/docs/versions.md
/// [timeout]: crate::guide#choosing-a-session-timeout
///
#[cfg(all(doc, not(doctest)))]
#[doc = include_str!("../docs/operating.md")]
pub mod operating {}
