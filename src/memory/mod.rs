//! The embedded backend: an ensemble in this process, and its [`Faults`]. See [`Memory`](crate::Memory).

mod server;
mod session;
mod tasks;
mod tree;

pub(crate) mod client;

pub use self::client::Faults;
pub use self::tree::Backup;
