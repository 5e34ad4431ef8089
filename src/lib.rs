//! One read/write lock for many machines, kept in [Apache ZooKeeper](https://zookeeper.apache.org).
//!
//! Many readers or one writer, first come first served; a holder that loses the lock knows it before anyone else can
//! be granted it. If the state you guard is one znode, one process or one database, you need less: a conditional set,
//! tokio's own `RwLock`, or that database's locks.
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
//! // Alone; gives up after 30 s with an error that names who was in the way.
//! let writer = lock.write().timeout(Duration::from_secs(30)).label("rotate keys").await?;
//!
//! // Done only if the lock is still held when ZooKeeper commits it.
//! writer.transaction().create("/config", "v2").commit().await?;
//!
//! // Dropped as soon as the lock is lost.
//! let token = writer.fencing_token();
//! writer.run(async { /* tell other systems `token`, so that they can refuse an older one */ }).await?;
//! # let _ = token;
//! # Ok::<(), Error>(()) }).unwrap();
//! ```
//!
//! # Where to look
//!
//! - [`RwLock`]: the lock, its fairness, and how to acquire it: [`read`](RwLock::read), [`write`](RwLock::write),
//!   `try_*`, `blocking_*`, and the [`queue`](RwLock::queue) for people to see.
//! - [`ReadGuard`], [`WriteGuard`]: what holding means: [`release`](WriteGuard::release) or drop,
//!   [`is_held`](WriteGuard::is_held), [`lost`](WriteGuard::lost), [`run`](WriteGuard::run),
//!   [`fencing_token`](WriteGuard::fencing_token), [`downgrade`](WriteGuard::downgrade),
//!   [`share`](ReadGuard::share).
//! - [`Transaction`]: writes that ZooKeeper does only while the lock is held.
//! - [`ZooKeeper`]: the backend; its options, and [`Acl`]: who may queue may also steal.
//! - [`Memory`]: the same without a server, for tests: it can be cut off, made to lag, lose answers and sessions.
//! - [`Error`]: what went wrong, told apart by what you can do about it. [`Loss`]: why a lock was lost.
//! - [`coordinator`]: the contract between the lock and a backend, for those who want to write another one.
//! - [`turn`]: the one decision that all of this serves, as a function of names.
//!
//! # How a holder knows in time
//!
//! ZooKeeper gives a session up one session timeout after the last packet it got, and tells its client only when that
//! comes back. Until then everything may look healthy: the connection, and even reads of one's own node, on a server
//! that is cut off from its leader. So a lock counts as held only until two thirds of the session timeout after the
//! *sending* of the newest request that a quorum answered. While anything is held or waited for, a check-only
//! transaction renews that lease each quarter of the session timeout, on a thread of the library's own.
//! [`is_held`](WriteGuard::is_held) compares the clock itself, so it is right also in the first call after the process
//! was stopped.

mod error;
mod guard;
mod keeper;
mod lease;
mod lock;
mod memory;
mod name;
mod path;
mod place;
mod queue;
mod tenure;
mod transaction;
mod turn;
mod zookeeper;

pub mod coordinator;

pub use crate::coordinator::{Ending, Failure, Outcome};
pub use crate::error::Error;
pub use crate::guard::{NodeData, ReadGuard, WriteGuard};
pub use crate::lock::{AcquireRead, AcquireWrite, RwLock, RwLockBuilder};
pub use crate::memory::Memory;
pub use crate::name::{Contender, Mode};
pub use crate::queue::{Blockers, Member, MemberState, Queue};
pub use crate::tenure::{Changes, HoldState, Loss};
pub use crate::transaction::Transaction;
pub use crate::turn::{Turn, turn};
pub use crate::zookeeper::{Acl, Permissions, ZooKeeper, ZooKeeperBuilder};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
