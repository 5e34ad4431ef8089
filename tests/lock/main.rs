//! One lock on a server: its promises, its costs, and every fault of the network, the server or the caller.

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
