//! One contender's lock, of whichever library, and how much is held in this process.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use clap::ValueEnum;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};
use zk_rwlock::semaphore::Permit;
use zk_rwlock::{ReadGuard, RwLock, Semaphore, WriteGuard};
use zookeeper_client::{Acls, Client, CreateMode, LockPrefix};

use crate::Result;

/// What a writer holds alone. A reader holds one of it, and a permit a quarter.
const ALL: u64 = 1_000_000;

/// Whose lock it is.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Peer {
    /// None: a node is made and deleted, and watches the node before it where a queue is measured.
    Raw,
    ZookeeperClient,
    Ours,
    /// Ours, with `keep`.
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
    /// The gate's node, once there is one: bare nodes behind it wait.
    pub(crate) gate: Arc<OnceLock<String>>,
    /// How much is held, and how often that was too much.
    pub(crate) held: Arc<(AtomicU64, AtomicU64)>,
}

#[allow(clippy::large_enum_variant, reason = "an allocation would be measured as part of the lock")]
pub(crate) enum Held {
    Node(Client, String),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
    LocalRead(OwnedRwLockReadGuard<()>),
    LocalWrite(OwnedRwLockWriteGuard<()>),
}

impl Contender {
    pub(crate) async fn acquire(&self, write: bool) -> Result<Held> {
        let held = match (&self.lock, write) {
            (Lock::Raw(client, directory), _) => self.node(client, directory, write).await?,
            (Lock::ZookeeperClient(client, directory), true) => {
                let prefix = LockPrefix::new_curator(directory, "__WRIT__")?;
                let lock = client.lock(prefix, b"", Acls::anyone_all()).await?;
                let node = lock.lock_path().to_owned();
                // Dropped, it would delete the node unseen.
                mem::forget(lock);
                Held::Node(client.clone(), node)
            }
            (Lock::ZookeeperClient(..), false) => return Err("zookeeper-client has no lock for readers".into()),
            (Lock::Ours(lock), true) => Held::Write(lock.write().await?),
            (Lock::Ours(lock), false) => Held::Read(lock.read().await?),
            (Lock::Permits(semaphore), _) => Held::Permit(semaphore.acquire().await?),
            (Lock::Local(lock), true) => Held::LocalWrite(Arc::clone(lock).write_owned().await),
            (Lock::Local(lock), false) => Held::LocalRead(Arc::clone(lock).read_owned().await),
        };
        let weight = self.weight(&held);
        if self.held.0.fetch_add(weight, SeqCst) + weight > ALL {
            self.held.1.fetch_add(1, SeqCst);
        }
        Ok(held)
    }

    /// A node as long as the lock's own, and behind a gate the wait for the one before it, or for the gate.
    async fn node(&self, client: &Client, directory: &str, write: bool) -> Result<Held> {
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
        Ok(Held::Node(client.clone(), node))
    }

    pub(crate) async fn release(&self, held: Held) -> Result<()> {
        self.held.0.fetch_sub(self.weight(&held), SeqCst);
        match held {
            Held::Node(client, node) => client.delete(&node, None).await?,
            Held::Read(guard) => guard.release().await?,
            Held::Write(guard) => guard.release().await?,
            Held::Permit(permit) => permit.release().await?,
            Held::LocalRead(guard) => drop(guard),
            Held::LocalWrite(guard) => drop(guard),
        }
        Ok(())
    }

    /// How often more was held than may be.
    pub(crate) fn errors(&self) -> u64 {
        self.held.1.load(SeqCst)
    }

    fn weight(&self, held: &Held) -> u64 {
        match (held, &self.lock) {
            // Bare nodes exclude nobody.
            (Held::Node(..), Lock::Raw(..)) => 0,
            (Held::Node(..) | Held::Write(_) | Held::LocalWrite(_), _) => ALL,
            (Held::Read(_) | Held::LocalRead(_), _) => 1,
            (Held::Permit(_), _) => ALL / 4,
        }
    }
}
