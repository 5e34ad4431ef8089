//! Leadership beyond what every backend shows: at every poll and in virtual time, on the wire, and among processes.

mod embedded;
mod processes;
mod wire;
