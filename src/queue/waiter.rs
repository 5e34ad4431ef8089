//! How one contender waits for its turn: a value that takes news and says what to do next.
//!
//! ```text
//!          the predecessor has gone
//!         +-----------------------+
//!         v                       |
//! new -> List -- behind --> Await-+
//!         |                   |
//!         | granted           | signalled by a writer
//!         +------> Take <-----+
//! ```
//!
//! A predecessor may have gone without a word, and be shown all the same: then it is passed over from then on.
//!
//! `List` can also end the wait: with `Evicted` if our node is not in the queue, or with `Foreign` if a foreign
//! contender is there, whose rule may differ.
//!
//! The acquisition carries the steps out. The exhaustive model and the property tests drive the same value.

use std::borrow::Borrow;
use std::sync::Arc;

use crate::queue::contender::Contender;
use crate::queue::mode::Mode;
use crate::queue::turn::{self, Turn};

/// One contender that waits. `C` is its [`Contender`], or a reference to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiter<C> {
    me: C,
    /// A writer that held signals its release by a write to its node.
    hands_off: bool,
    awaited: Option<Predecessor>,
    /// The contender had to wait.
    has_waited: bool,
    /// All contenders before it were asked to give up nodes that they may only keep.
    has_asked: bool,
    /// The names of contenders that have left by what the leader says, and that the server still shows. None of them ever
    /// comes again, so they are passed over.
    ghosts: Vec<Arc<str>>,
}

/// The nearest contender before a waiter that excludes the waiter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Predecessor {
    /// The name of its node.
    pub name: Arc<str>,
    /// Its mode.
    pub mode: Mode,
}

/// What a waiter learns.
#[derive(Debug)]
pub enum News<'a> {
    /// The answer to [`Step::List`].
    Listed {
        /// The names in the directory, in any order.
        names: &'a [String],
        /// Those of them that leave soon by themselves, and need not be asked for.
        leaving: &'a [String],
    },
    /// What became of the predecessor: the answer to [`Step::Await`].
    Departed(Departure),
}

/// What became of a predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Its node was written to.
    Signalled,
    /// Something else happened to its node, perhaps before it could be watched; or another listing may show more.
    ListAgain,
    /// The leader no longer has its node, nor one after a downgrade that would be in the way, although nothing was heard of that.
    GoneAtLeader,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// List the directory.
    List,
    /// Watch the predecessor's node, and wait until something happens to it.
    Await {
        /// The contender to wait for.
        predecessor: Predecessor,
        /// Whether to ask the contenders before us to give up nodes that they may only keep, once the predecessor's node
        /// is watched.
        asks: bool,
    },
    /// Take the lock.
    Take(Take),
    /// Give up: our node is not in the queue, or has no number of its own.
    Evicted,
    /// Give up: the node of this name is a foreign contender, so nothing shows whose turn it is.
    Foreign(String),
}

/// The contender's turn has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// The name of the writer whose signal shows it. `None` if a listing does.
    pub signalled_by: Option<Arc<str>>,
    /// The contender had to wait.
    pub has_waited: bool,
    /// The contenders that it has passed over: they have left, and the server still shows them.
    pub ghosts: Vec<Arc<str>>,
}

impl<C: Borrow<Contender>> Waiter<C> {
    /// A contender that has its node. Its first step is [`Step::List`]. `hands_off` says whether a writer that held signals
    /// its release by a write to its node.
    pub fn new(me: C, hands_off: bool) -> Waiter<C> {
        Waiter { me, hands_off, awaited: None, has_waited: false, has_asked: false, ghosts: Vec::new() }
    }

    /// What to do next, now that the last step has brought this news.
    pub fn next(&mut self, news: News<'_>) -> Step {
        match news {
            News::Listed { names, leaving } => self.after_listing(names, leaving),
            News::Departed(departure) => self.after_departure(departure),
        }
    }

    /// Whether the contender has waited for another.
    pub fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Whether the server has shown contenders that had left.
    pub fn has_ghosts(&self) -> bool {
        !self.ghosts.is_empty()
    }

    /// These contenders have left, by what the leader says, although the server shows them.
    pub fn pass_over(&mut self, ghosts: impl IntoIterator<Item = Arc<str>>) {
        for ghost in ghosts {
            if !self.ghosts.contains(&ghost) {
                self.ghosts.push(ghost);
            }
        }
    }

    fn after_listing(&mut self, names: &[String], leaving: &[String]) -> Step {
        self.ghosts.retain(|ghost| names.iter().any(|name| **name == **ghost));
        let without_ghosts: Vec<String>;
        let names = if self.ghosts.is_empty() {
            names
        } else {
            let is_ghost = |name: &&String| self.ghosts.iter().any(|ghost| ***name == **ghost);
            without_ghosts = names.iter().filter(|name| !is_ghost(name)).cloned().collect();
            &without_ghosts
        };
        let (turn, foreign) = turn::turn_among_foreign(self.me.borrow(), names);
        match (turn, foreign) {
            (Turn::Evicted, _) => Step::Evicted,
            (_, Some(name)) => Step::Foreign(name.to_owned()),
            (Turn::Granted, None) => self.take(None),
            (Turn::Behind(nearest), None) => {
                let is_kept = match nearest.mode() {
                    Mode::Write => nearest.keeps() && leaving.iter().all(|name| name != nearest.name()),
                    Mode::Read => turn::is_reader_kept_before(self.me.borrow(), names, leaving),
                };
                // One change of the directory asks for every node that was there when ours was created.
                let asks = is_kept && !self.has_asked;
                self.has_asked |= asks;
                self.has_waited = true;
                let predecessor = Predecessor { name: nearest.name().into(), mode: nearest.mode() };
                self.awaited = Some(predecessor.clone());
                Step::Await { predecessor, asks }
            }
        }
    }

    fn after_departure(&mut self, departure: Departure) -> Step {
        let Some(predecessor) = self.awaited.take() else { return Step::List };
        match departure {
            // Only a writer that held writes to its node when it leaves, and then no contender before us is left. In
            // another dialect any client may have written, for any reason.
            Departure::Signalled if self.hands_off && predecessor.mode == Mode::Write => {
                self.take(Some(predecessor.name))
            }
            Departure::GoneAtLeader => {
                self.ghosts.push(predecessor.name);
                Step::List
            }
            Departure::Signalled | Departure::ListAgain => Step::List,
        }
    }

    fn take(&self, signalled_by: Option<Arc<str>>) -> Step {
        Step::Take(Take { signalled_by, has_waited: self.has_waited, ghosts: self.ghosts.clone() })
    }
}

#[cfg(test)]
mod tests;
