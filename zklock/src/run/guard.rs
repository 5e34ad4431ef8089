//! The guard that zklock holds while the command runs.

use std::time::Duration;

use zk_rwlock::hold::Changes;
use zk_rwlock::once::OnceGuard;
use zk_rwlock::semaphore::Permit;
use zk_rwlock::{Error, Loss, ReadGuard, WriteGuard};

/// The guard of a lock, of a permit, or of a job under `--once-in`.
#[derive(Debug)]
pub(crate) enum AnyGuard {
    Read(ReadGuard),
    Write(WriteGuard),
    /// The guard under `--once-in`. It exists only if the job is due.
    Once(OnceGuard),
    Permit(Permit),
}

macro_rules! either {
    ($guard:expr, $held:ident => $answer:expr) => {
        match $guard {
            AnyGuard::Read($held) => $answer,
            AnyGuard::Write($held) => $answer,
            AnyGuard::Once($held) => $answer,
            AnyGuard::Permit($held) => $answer,
        }
    };
}

impl AnyGuard {
    /// Returns the mode for the environment variable `ZKLOCK_MODE` of the command.
    pub(crate) fn mode(&self) -> &'static str {
        match self {
            AnyGuard::Read(_) => "READ",
            AnyGuard::Write(_) | AnyGuard::Once(_) => "WRITE",
            AnyGuard::Permit(_) => "PERMIT",
        }
    }

    pub(crate) fn token(&self) -> i64 {
        either!(self, held => held.fencing_token())
    }

    pub(crate) fn is_held(&self) -> bool {
        either!(self, held => held.is_held())
    }

    pub(crate) fn session_left(&self) -> Duration {
        either!(self, held => held.session_left())
    }

    pub(crate) fn changes(&self) -> Changes {
        either!(self, held => held.changes())
    }

    pub(crate) async fn lost(&self) -> Loss {
        either!(self, held => held.lost().await)
    }

    pub(crate) async fn release(self) -> Result<(), Error> {
        either!(self, held => held.release().await)
    }
}
