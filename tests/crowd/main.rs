//! Thousands of waiters, and a swarm of clients while all around them fails: what keeps every core busy.

mod keepers;
mod permits;
mod scale;
mod swarm;
mod threads;
