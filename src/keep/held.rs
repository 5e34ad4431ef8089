//! A hold as its guards have it: with a node of its own, or as one use of a node that is kept.

use std::ops::Deref;
use std::sync::Arc;

use crate::contend::tenure::Tenure;
use crate::error::error::Error;
use crate::keep::kept::KeptUse;
use crate::queue::contender::Contender;

/// What a guard holds. Several guards may share it.
pub(crate) enum Held {
    Alone(Arc<Tenure>),
    Kept(KeptUse),
}

impl Held {
    pub(crate) fn alone(hold: Box<Tenure>) -> Held {
        Held::Alone(Arc::from(hold))
    }

    /// The same once more. It ends with the last of them.
    pub(crate) fn share(&self) -> Held {
        match self {
            Held::Alone(hold) => Held::Alone(Arc::clone(hold)),
            Held::Kept(used) => Held::Kept(used.share()),
        }
    }

    /// Gives the lock back. Returns when its node is surely gone, or at once if the node is kept, or is shared.
    pub(crate) async fn release(self) -> Result<(), Error> {
        match self {
            Held::Alone(hold) => {
                let loss = hold.loss();
                match Arc::into_inner(hold) {
                    Some(hold) => hold.give_back().await,
                    None => loss.map_or(Ok(()), |loss| Err(Error::Lost(loss))),
                }
            }
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
    type Target = Tenure;

    fn deref(&self) -> &Tenure {
        match self {
            Held::Alone(hold) => hold,
            Held::Kept(used) => used.hold(),
        }
    }
}
