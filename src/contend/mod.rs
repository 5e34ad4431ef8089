//! What one contender does, from the first request of its acquisition until its node is gone.
//!
//! - Acquire: [`acquisition`] has the options of one acquisition, and runs it until it is granted or fails. [`config`]
//!   has the options of the lock.
//! - Wait: [`wait`] waits for the turn. [`warnings`] warns about long waits.
//! - Hold: [`contender`] owns the contender's node. [`directory`] creates the directory of that node. [`transaction`]
//!   commits only while a lock is held.
//! - Permits: [`permit_request`] takes the permits of a semaphore. [`semaphore`] has the number of its permits.
//! - Leave: [`remove_node`](crate::session::removal::remove_node) deletes the node. Earlier, [`exchange`] may have
//!   replaced it by a permit or a READ node.
//!
//! The types:
//!
//! - An `Acquisition` is one attempt to get a lock, or permits of a semaphore.
//! - A `Contender` owns the node of an acquisition. The guards of a granted lock own the `Contender`.
//! - A `Node` is the state of that node. The `Contender` shares the `Node` with the session's thread.
//! - `NodeState` is the state machine inside a `Node`, and `NodeRemoval` is the state machine of a node's removal.
//! - `NodeName` is the parsed name of a node.
//! - `Waiter` is the state machine that decides the next step of a wait. `PendingAcquisition` carries out these steps.
//! - A `Member` is a contender as `zklock ls` shows it.

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
