//! The embedded backend: a simulated ensemble in this process, and the [`Faults`] that a test can inject. See
//! [`Memory`](crate::Memory).

mod server;
mod session;
mod tasks;
mod tree;

pub(crate) mod client;

pub use self::client::Faults;
pub use self::tree::Backup;
