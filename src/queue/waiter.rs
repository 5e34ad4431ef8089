//! How one contender waits for its turn: a value that takes news and says what to do next; knows no I/O and no clock.
//!
//! ```text
//!              new
//!               |
//!               v     nothing      +------+   behind    +-------+
//!   +------> Consult ------------> | List | ----------> | Await |
//!   |           |                  +------+             +-------+
//!   |           |  behind, if the book may be trusted    ^  |  |
//!   |           +----------------------------------------+  |  |
//!   |           |                      | granted            |  | signalled by a writer
//!   |           | granted              v                    |  v
//!   |           +-------------------> Take <----------------|--+
//!   |                                                       |
//!   +-------------------------------------------------------+
//!                     the predecessor has gone
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
use crate::queue::native;
use crate::queue::turn::{self, Turn};

/// One contender that waits. `C` is its [`Contender`], or a reference to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiter<C> {
    me: C,
    rules: Rules,
    has_waited: bool,
    awaited: Option<Awaited>,
    /// All contenders before it were asked to give up nodes that they may only keep.
    has_asked: bool,
    /// The names of contenders that have left by what the leader says, and that the server still shows. None of them ever
    /// comes again, so they are passed over.
    ghosts: Vec<Arc<str>>,
}

/// What a waiter may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// A writer that held signals its release by a write to its node.
    pub hands_off: bool,
    /// The waiter may take its predecessor from the book of its session. Not so if the caller wants reports of the
    /// contenders in the way, because only a listing shows them.
    pub trusts_book: bool,
}

/// The nearest contender before a waiter that excludes the waiter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Predecessor {
    /// The name of its node.
    pub name: Arc<str>,
    /// Its mode.
    pub mode: Mode,
    /// It is of the same session, so the session's book reports when it has left or lost its node.
    pub is_local: bool,
}

/// Where a contender stands, as far as the book of its session knows. `E` is the evidence of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known<E> {
    /// Nothing.
    Nothing,
    /// Nothing excludes it.
    Granted(E),
    /// This contender is its predecessor.
    Behind(Predecessor),
}

/// What a waiter learns.
#[derive(Debug)]
pub enum News<'a, E> {
    /// What the book knows: the answer to [`Step::Consult`].
    Known {
        /// Where the contender stands.
        known: Known<E>,
        /// A listing just as new is at hand, and costs nothing.
        has_listing: bool,
    },
    /// The names in the directory: the answer to [`Step::List`].
    Listed {
        /// The names in the directory, in any order.
        names: &'a [String],
        /// What the book knows.
        known: Known<E>,
    },
    /// What became of the predecessor: the answer to [`Step::Await`].
    Departed(Departure),
}

/// What became of a predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Its node was written to.
    Signalled,
    /// Something else happened to its node, or the book reported that it has gone.
    Gone,
    /// The leader no longer has its node, nor one after a downgrade that would be in the way, although nothing was heard of that.
    Missed,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<E> {
    /// Ask the book.
    Consult,
    /// List the directory.
    List,
    /// Wait until the predecessor has gone.
    Await {
        /// The contender to wait for.
        predecessor: Predecessor,
        /// Whether to watch its node. If not, the book reports when it has gone.
        watches: bool,
        /// Whether to ask the contenders before us to give up nodes that they may only keep, once the predecessor's node
        /// is watched. A predecessor of the same session is asked in any case, without the ensemble.
        asks: bool,
    },
    /// Take the lock.
    Take(Take<E>),
    /// Give up: our node is not in the queue, or has no number of its own.
    Evicted,
    /// Give up: the node of this name is a foreign contender, so nothing shows whose turn it is.
    Foreign(String),
}

/// The contender's turn has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take<E> {
    /// How the contender knows.
    pub evidence: Proof<E>,
    /// The contender had to wait.
    pub has_waited: bool,
    /// The contenders that it has passed over: they have left, and the server still shows them.
    pub ghosts: Vec<Arc<str>>,
}

/// How a contender knows that it is its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof<E> {
    /// The book knows.
    Book(E),
    /// A listing shows it.
    Listing,
    /// The node of this name was written to, as a writer does on its release.
    Signal(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Awaited {
    predecessor: Predecessor,
    watches: bool,
}

impl<C: Borrow<Contender>> Waiter<C> {
    /// A contender that has its node. Its first step is [`Step::Consult`].
    pub fn new(me: C, rules: Rules) -> Waiter<C> {
        Waiter { me, rules, has_waited: false, awaited: None, has_asked: false, ghosts: Vec::new() }
    }

    /// What to do next, now that the last step has brought this news.
    pub fn next<E>(&mut self, news: News<'_, E>) -> Step<E> {
        match news {
            News::Known { known, has_listing } => self.after_book(known, has_listing),
            News::Listed { names, known } => self.after_listing(names, known),
            News::Departed(departure) => self.after_departure(departure),
        }
    }

    /// Whether the contender has waited for another.
    pub fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Whether the server has shown contenders that had left.
    pub fn is_haunted(&self) -> bool {
        !self.ghosts.is_empty()
    }

    fn after_book<E>(&mut self, known: Known<E>, has_listing: bool) -> Step<E> {
        let awaited = self.awaited.take();
        // Before a reader that may only keep its node, other readers may keep theirs. Only a listing shows them.
        let is_kept_reader = |it: &Predecessor| it.mode == Mode::Read && native::keeps(&it.name);
        // A watch may report the end of a node before the book knows of it.
        let is_gone = |it: &Predecessor| awaited.is_some_and(|last| last.watches && last.predecessor.name == it.name);
        match known {
            // In a dialect without hand-offs, contenders of a foreign rule may have come meanwhile. So a contender that
            // has waited lists the queue.
            Known::Granted(evidence) if self.rules.hands_off || !self.has_waited => self.take(Proof::Book(evidence)),
            Known::Behind(predecessor)
                if self.rules.trusts_book
                    && !has_listing
                    && !is_gone(&predecessor)
                    && !self.ghosts.contains(&predecessor.name)
                    && !is_kept_reader(&predecessor) =>
            {
                self.wait(predecessor, false)
            }
            _ => Step::List,
        }
    }

    fn after_listing<E>(&mut self, names: &[String], known: Known<E>) -> Step<E> {
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
            (Turn::Granted, None) => self.take(Proof::Listing),
            (Turn::Behind(nearest), None) => {
                let predecessor = match known {
                    Known::Behind(predecessor) if *predecessor.name == *nearest.name() => predecessor,
                    _ => Predecessor { name: nearest.name().into(), mode: nearest.mode(), is_local: false },
                };
                // A predecessor of this session is asked without the ensemble.
                let local = predecessor.is_local.then_some(&*predecessor.name);
                let is_kept = match predecessor.mode {
                    Mode::Write => local.is_none() && native::keeps(&predecessor.name),
                    Mode::Read => turn::is_reader_kept_before(self.me.borrow(), names, local),
                };
                self.wait(predecessor, is_kept)
            }
        }
    }

    fn after_departure<E>(&mut self, departure: Departure) -> Step<E> {
        let Some(Awaited { predecessor, .. }) = &self.awaited else { return Step::Consult };
        if departure == Departure::Missed {
            self.ghosts.push(Arc::clone(&predecessor.name));
        }
        // Only a writer that held writes to its node when it leaves, and then no contender before us is left. In another
        // dialect any client may have written, for any reason.
        if predecessor.mode == Mode::Write && departure == Departure::Signalled && self.rules.hands_off {
            return self.take(Proof::Signal(Arc::clone(&predecessor.name)));
        }
        Step::Consult
    }

    /// `is_kept` says whether a node is in the way that may only be kept, and that this contender has to ask for.
    fn wait<E>(&mut self, predecessor: Predecessor, is_kept: bool) -> Step<E> {
        self.has_waited = true;
        let watches = !(predecessor.is_local && self.rules.trusts_book);
        self.awaited = Some(Awaited { predecessor: predecessor.clone(), watches });
        // One change of the directory asks for every node that was there when ours was created.
        let asks = is_kept && !self.has_asked;
        // A writer of our own session is asked alone: it asks the others. If it leaves before it has, we ask them.
        self.has_asked |= asks && predecessor.mode == Mode::Read;
        Step::Await { predecessor, watches, asks }
    }

    fn take<E>(&mut self, evidence: Proof<E>) -> Step<E> {
        let ghosts = std::mem::take(&mut self.ghosts);
        Step::Take(Take { evidence, has_waited: self.has_waited, ghosts })
    }
}

#[cfg(test)]
mod tests;
