//! The embedded backend: an ensemble in this process, and its [`Faults`]. See [`Memory`](crate::Memory).

mod clock;
mod executor;
mod index;
mod link;
mod server;
mod session;
mod tree;

pub(crate) mod client;
pub(crate) mod faults;

pub use self::faults::Faults;
pub use self::tree::Backup;
