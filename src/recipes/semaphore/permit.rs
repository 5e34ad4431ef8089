//! The guard of permits: what their holder can do.

use std::fmt;
use std::ops::Deref;

use crate::contend::tenure::Tenure;
use crate::error::error::Error;
use crate::keep::join::Held;
use crate::lock::hold::Hold;

/// One permit of a [`Semaphore`](crate::Semaphore), or several that were acquired together. Made by
/// [`Semaphore::acquire`](crate::Semaphore::acquire).
///
/// It derefs to [`Hold`], with all that holding means. Others hold permits at the same time, so a resource cannot refuse
/// every lower [token](Hold::fencing_token): it can remember the tokens that it was shown, or refuse those of one slot.
///
/// Dropping it gives the permits back in the background: from any thread, also outside a runtime and in a panic. A program
/// that ends right after that should [`release`](Self::release) it: see [`WriteGuard`](crate::WriteGuard).
#[must_use = "if unused, the permits are given back at once"]
pub struct Permit {
    hold: Hold,
    count: u32,
}

impl Permit {
    pub(super) fn new(held: Box<Tenure>, count: u32) -> Permit {
        Permit { hold: Hold::new(Held::alone(held)), count }
    }

    /// How many permits it is: as many as were asked for.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Gives the permits back, and returns when their node is surely gone.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the release goes on in the background. Before it, the permit is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] if the permits had been lost before. [`Error::PermissionDenied`] if the node may not be deleted: then
    /// it stays, and keeps the permits taken, until its session ends.
    pub async fn release(self) -> Result<(), Error> {
        self.hold.into_held().release().await
    }
}

impl Deref for Permit {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Permit");
        debug.field("count", &self.count);
        self.hold.describe(debug)
    }
}
