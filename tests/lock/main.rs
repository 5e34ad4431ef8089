//! One lock on a server: what it does, what it costs, and what any fault of network, server or caller can do to it.

mod calls;
mod doubts;
mod executors;
mod faults;
mod ghosts;
mod integration;
mod kept;
mod multi;
mod once;
mod one_session;
mod permits;
mod refusals;
mod sequence;
mod wire;
