//! One contender's lock, and the holders in this process as far as its contenders know; knows no workload.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

use clap::ValueEnum;
use zk_rwlock::{Error, ReadGuard, RwLock, WriteGuard};

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Release {
    Await,
    Drop,
}

/// One contender's lock, and the holders in this process as far as its contenders know.
#[derive(Clone)]
pub(crate) struct Contender {
    pub(crate) lock: Lock,
    pub(crate) release: Release,
    pub(crate) census: Arc<Census>,
}

/// The lock that is measured, or the one of this process that it is compared with.
#[derive(Clone)]
pub(crate) enum Lock {
    Fleet(RwLock),
    Local(Arc<tokio::sync::RwLock<()>>),
}

#[derive(Default)]
pub(crate) struct Census {
    writers: AtomicI64,
    readers: AtomicI64,
    violations: AtomicU64,
}

impl Census {
    /// How often a grant found a holder that it excludes.
    pub(crate) fn violations(&self) -> u64 {
        self.violations.load(SeqCst)
    }
}

#[allow(clippy::large_enum_variant, reason = "an allocation would be measured as part of the lock")]
pub(crate) enum Held {
    Read(ReadGuard),
    Write(WriteGuard),
    LocalRead(tokio::sync::OwnedRwLockReadGuard<()>),
    LocalWrite(tokio::sync::OwnedRwLockWriteGuard<()>),
}

impl Contender {
    pub(crate) async fn acquire(&self, write: bool) -> Result<Held, Error> {
        let Census { writers, readers, violations } = &*self.census;
        let held = match (&self.lock, write) {
            (Lock::Fleet(lock), true) => Held::Write(lock.write().await?),
            (Lock::Fleet(lock), false) => Held::Read(lock.read().await?),
            (Lock::Local(lock), true) => Held::LocalWrite(Arc::clone(lock).write_owned().await),
            (Lock::Local(lock), false) => Held::LocalRead(Arc::clone(lock).read_owned().await),
        };
        let alone = if write {
            writers.fetch_add(1, SeqCst) == 0 && readers.load(SeqCst) == 0
        } else {
            readers.fetch_add(1, SeqCst);
            writers.load(SeqCst) == 0
        };
        if !alone {
            violations.fetch_add(1, SeqCst);
        }
        Ok(held)
    }

    pub(crate) async fn release(&self, held: Held) -> Result<(), Error> {
        let of = match held {
            Held::Read(_) | Held::LocalRead(_) => &self.census.readers,
            Held::Write(_) | Held::LocalWrite(_) => &self.census.writers,
        };
        of.fetch_sub(1, SeqCst);
        let awaited = self.release == Release::Await;
        match held {
            Held::Read(guard) if awaited => guard.release().await?,
            Held::Write(guard) if awaited => guard.release().await?,
            Held::Read(guard) => drop(guard),
            Held::Write(guard) => drop(guard),
            Held::LocalRead(guard) => drop(guard),
            Held::LocalWrite(guard) => drop(guard),
        }
        Ok(())
    }
}
