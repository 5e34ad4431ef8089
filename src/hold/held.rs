//! A hold as its guard has it: alone, or as one use of a node that is kept; knows nothing of acquiring.

use std::ops::Deref;

use crate::error::error::Error;
use crate::hold::hold::Hold;
use crate::hold::kept::KeptUse;
use crate::queue::contender::Contender;

/// What a guard holds.
pub(crate) enum Held {
    Alone(Box<Hold>),
    Kept(KeptUse),
}

impl Held {
    /// Gives the lock back. Returns when its node is surely gone, or at once if the node is kept.
    pub(crate) async fn release(self) -> Result<(), Error> {
        match self {
            Held::Alone(hold) => hold.release().await,
            Held::Kept(used) => used.release().await,
        }
    }

    pub(crate) async fn contended(&self) -> Result<Contender, Error> {
        match self {
            Held::Alone(hold) => hold.contended().await,
            Held::Kept(used) => used.contended().await,
        }
    }

    pub(crate) async fn downgrade(&mut self) -> Result<(), Error> {
        match self {
            Held::Alone(hold) => hold.downgrade().await,
            Held::Kept(used) => used.downgrade().await,
        }
    }
}

impl Deref for Held {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        match self {
            Held::Alone(hold) => hold,
            Held::Kept(used) => used.hold(),
        }
    }
}
