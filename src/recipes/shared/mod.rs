//! A value behind the lock.

pub(crate) mod acquire;
pub(crate) mod background;
pub(crate) mod changes;
pub(crate) mod codec;
pub(crate) mod envelope;
pub(crate) mod format;
pub(crate) mod guard;
pub(crate) mod known;
pub(crate) mod live;
pub(crate) mod node;
pub(crate) mod shared;
pub(crate) mod store;
pub(crate) mod update;
