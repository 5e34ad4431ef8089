//! Leadership beyond the tests that run on every backend: at every poll, in virtual time, on the wire, and among processes.

mod embedded;
mod processes;
mod wire;
