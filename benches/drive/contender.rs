//! The lock of one contender, for each of the compared libraries, and a check that the contenders exclude each other.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use clap::ValueEnum;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};
use zk_rwlock::semaphore::Permit;
use zk_rwlock::{ReadGuard, RwLock, Semaphore, WriteGuard};
use zookeeper_client::{Acls, Client, CreateMode, LockPrefix};

use crate::Result;

/// The weight of a held write lock. A read lock weighs 1, and a permit a quarter of a write lock. It is an error if the
/// contenders together hold more than this weight.
const ALL: u64 = 1_000_000;

/// The library whose lock is measured.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Peer {
    /// No lock: a contender creates and deletes a node. In the workloads with a gate (a first holder, behind which all
    /// contenders queue up), a writer also waits until the node before its own is deleted, and a reader until the gate is.
    Raw,
    ZookeeperClient,
    Ours,
    /// zk-rwlock with `RwLockBuilder::keep`: a process keeps its node between uses.
    Kept,
    /// `tokio::sync::RwLock`, in one process.
    Local,
}

#[derive(Clone)]
pub(crate) enum Lock {
    Raw(Client, Arc<str>),
    ZookeeperClient(Client, Arc<str>),
    Ours(RwLock),
    Permits(Semaphore),
    Local(Arc<tokio::sync::RwLock<()>>),
}

#[derive(Clone)]
pub(crate) struct Contender {
    pub(crate) lock: Lock,
    /// The node of the gate, the first holder, behind which all contenders queue up. Empty in workloads without a gate.
    /// Only [`Peer::Raw`] reads it.
    pub(crate) gate: Arc<OnceLock<String>>,
    /// The weight that the contenders hold now, and how often this weight was more than [`ALL`].
    pub(crate) held: Arc<(AtomicU64, AtomicU64)>,
}

#[allow(clippy::large_enum_variant, reason = "an allocation would be measured as part of the lock")]
pub(crate) enum Guard {
    Node(Client, String),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
    LocalRead(OwnedRwLockReadGuard<()>),
    LocalWrite(OwnedRwLockWriteGuard<()>),
}

impl Contender {
    pub(crate) async fn acquire(&self, write: bool) -> Result<Guard> {
        let held = match (&self.lock, write) {
            (Lock::Raw(client, directory), _) => self.node(client, directory, write).await?,
            (Lock::ZookeeperClient(client, directory), true) => {
                let prefix = LockPrefix::new_curator(directory, "__WRIT__")?;
                let lock = client.lock(prefix, b"", Acls::anyone_all()).await?;
                let node = lock.lock_path().to_owned();
                // The lock is leaked. Its drop would delete the node, but the release could not await the reply.
                mem::forget(lock);
                Guard::Node(client.clone(), node)
            }
            (Lock::ZookeeperClient(..), false) => return Err("zookeeper-client has no lock for readers".into()),
            (Lock::Ours(lock), true) => Guard::Write(lock.write().await?),
            (Lock::Ours(lock), false) => Guard::Read(lock.read().await?),
            (Lock::Permits(semaphore), _) => Guard::Permit(semaphore.acquire().await?),
            (Lock::Local(lock), true) => Guard::LocalWrite(Arc::clone(lock).write_owned().await),
            (Lock::Local(lock), false) => Guard::LocalRead(Arc::clone(lock).read_owned().await),
        };
        let weight = self.weight(&held);
        if self.held.0.fetch_add(weight, SeqCst) + weight > ALL {
            self.held.1.fetch_add(1, SeqCst);
        }
        Ok(held)
    }

    /// Creates a node whose name is as long as those of the lock's nodes. In a workload with a gate, a writer then waits
    /// until the node before its own is deleted, and a reader until the gate is deleted.
    async fn node(&self, client: &Client, directory: &str, write: bool) -> Result<Guard> {
        let prefix = format!("{directory}/localhost~00000000-WRITE-");
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (_, sequence) = client.create(&prefix, b"", &options).await?;
        let node = format!("{prefix}{sequence}");
        if let Some(gate) = self.gate.get() {
            let before = format!("{prefix}{:010}", sequence.into_i64() - 1);
            let (there, watcher) = client.check_and_watch_stat(if write { &before } else { gate }).await?;
            if there.is_some() {
                watcher.changed().await;
            }
        }
        Ok(Guard::Node(client.clone(), node))
    }

    pub(crate) async fn release(&self, held: Guard) -> Result<()> {
        self.held.0.fetch_sub(self.weight(&held), SeqCst);
        match held {
            Guard::Node(client, node) => client.delete(&node, None).await?,
            Guard::Read(guard) => guard.release().await?,
            Guard::Write(guard) => guard.release().await?,
            Guard::Permit(permit) => permit.release().await?,
            Guard::LocalRead(guard) => drop(guard),
            Guard::LocalWrite(guard) => drop(guard),
        }
        Ok(())
    }

    /// Returns how often the contenders held more than [`ALL`].
    pub(crate) fn errors(&self) -> u64 {
        self.held.1.load(SeqCst)
    }

    fn weight(&self, held: &Guard) -> u64 {
        match (held, &self.lock) {
            // The nodes of [`Lock::Raw`] are no lock, so many contenders have a node at the same time.
            (Guard::Node(..), Lock::Raw(..)) => 0,
            (Guard::Node(..) | Guard::Write(_) | Guard::LocalWrite(_), _) => ALL,
            (Guard::Read(_) | Guard::LocalRead(_), _) => 1,
            (Guard::Permit(_), _) => ALL / 4,
        }
    }
}
