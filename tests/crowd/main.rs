//! Thousands of waiters, and a swarm of clients while all around them fails: what keeps every core busy.

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
