//! One contender: an acquisition and its node, from the first request until the node is gone.
//!
//! - Acquire: [`acquisition`] has the options of a call, and runs it until the grant. [`config`] has the options of the lock.
//! - Wait: [`wait`] waits for the turn. [`warnings`] warns about long waits.
//! - Hold: [`contender`] owns the contender's node, which is in a [`directory`]. [`transaction`] commits only while a lock
//!   is held.
//! - Permits: [`permit_request`] takes the permits of a semaphore. [`semaphore`] has the number of its permits.
//! - Leave: [`remove`](crate::session::removal::remove) deletes the node. [`exchange`] replaces it by a permit or a READ
//!   node.
//!
//! The types: an `Acquisition` is one call of the user. A `Contender` owns the contender's node, and the guard of a granted
//! lock owns the `Contender`. A `Node` is the state of the node, which the `Contender` shares with the session's thread.
//! `NodeState` is the state machine inside a `Node`. `NodeName` is a parsed name. `Waiter` is the state machine that decides
//! the next step of a wait, and `PendingAcquisition` carries the steps out. `Leaving` is the state machine of a removal. A
//! `Member` is a contender as `zklock ls` shows it.

pub(crate) mod acquisition;
pub(crate) mod config;
pub(crate) mod contender;
pub(crate) mod directory;
pub(crate) mod exchange;
pub(crate) mod permit_request;
pub(crate) mod semaphore;
pub(crate) mod transaction;
pub(crate) mod wait;
pub(crate) mod warnings;
