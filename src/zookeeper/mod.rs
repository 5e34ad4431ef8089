//! The ZooKeeper backend: the only place that names the client crate.

pub(crate) mod abilities;
pub(crate) mod client;
pub(crate) mod pipeline;
pub(crate) mod security;
pub(crate) mod servers;
