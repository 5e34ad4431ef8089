//! The guard that zklock holds while the command runs.

use std::ops::Deref;

use zk_rwlock::once::OnceGuard;
use zk_rwlock::semaphore::Permit;
use zk_rwlock::{Error, Hold, ReadGuard, WriteGuard};

/// The guard of a lock, of a permit, or of a job under `--once-in`.
#[derive(Debug)]
pub(crate) enum AnyGuard {
    Read(ReadGuard),
    Write(WriteGuard),
    /// The guard under `--once-in`. It exists only if the job is due.
    Once(OnceGuard),
    Permit(Permit),
}

impl Deref for AnyGuard {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        match self {
            AnyGuard::Read(guard) => guard,
            AnyGuard::Write(guard) => guard,
            AnyGuard::Once(guard) => guard,
            AnyGuard::Permit(guard) => guard,
        }
    }
}

impl AnyGuard {
    /// Returns the mode for the environment variable `ZKLOCK_MODE` of the command.
    pub(crate) fn mode_name(&self) -> &'static str {
        match self {
            AnyGuard::Read(_) => "READ",
            AnyGuard::Write(_) | AnyGuard::Once(_) => "WRITE",
            AnyGuard::Permit(_) => "PERMIT",
        }
    }

    pub(crate) async fn release(self) -> Result<(), Error> {
        match self {
            AnyGuard::Read(guard) => guard.release().await,
            AnyGuard::Write(guard) => guard.release().await,
            AnyGuard::Once(guard) => guard.release().await,
            AnyGuard::Permit(guard) => guard.release().await,
        }
    }
}
