//! Thousands of waiters, random swarms of clients under faults, and the judges of their histories. These tests keep
//! every core busy.

mod faults;
mod herd;
mod judge;
mod kept_reads;
mod linear;
mod permits;
mod scale;
mod swarm;
mod threads;
mod traces;
