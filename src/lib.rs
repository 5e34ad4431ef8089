//! One read/write lock for many machines, kept in Apache ZooKeeper.

mod error;
mod guard;
mod keeper;
mod lease;
mod lock;
mod memory;
mod name;
mod path;
mod place;
mod queue;
mod tenure;
mod transaction;
mod turn;
mod zookeeper;

pub mod coordinator;

pub use crate::coordinator::{Ending, Failure, Outcome};
pub use crate::error::Error;
pub use crate::guard::{NodeData, ReadGuard, WriteGuard};
pub use crate::lock::{AcquireRead, AcquireWrite, RwLock, RwLockBuilder};
pub use crate::memory::Memory;
pub use crate::name::{Contender, Mode};
pub use crate::queue::{Blockers, Member, MemberState, Queue};
pub use crate::tenure::{Changes, HoldState, Loss};
pub use crate::transaction::Transaction;
pub use crate::turn::{Turn, turn};
pub use crate::zookeeper::{Acl, Permissions, ZooKeeper, ZooKeeperBuilder};
