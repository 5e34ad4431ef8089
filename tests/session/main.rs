//! The session and its lease, on one server and on three: renewals, losses in time, and protection against strangers.

mod alone;
mod breaks;
mod callbacks;
mod comeback;
mod connections;
mod cost;
mod ensemble;
#[cfg(target_os = "linux")]
mod forks;
mod garbled;
mod keeper;
mod kept;
mod kerberos;
mod lease;
mod liars;
#[cfg(target_os = "linux")]
mod named;
#[cfg(target_os = "linux")]
mod no_delay;
mod outages;
mod pauses;
mod ports;
mod processes;
mod reasons;
mod security;
mod sessions;
mod silence;
mod stops;
mod strangers;
mod turns;
mod vanished;
