//! The ZooKeeper backend: the only place that names the client crate.
//!
//! What it works around in version 0.11.2 of that crate:
//! - Requests are sent at the call. So their futures are polled once at once, and can then be dropped ([`pipeline`]).
//! - Errors other than a clear refusal leave the outcome unknown, whatever their name ([`translate::failure`]).
//! - While disconnected it queues requests without bound. So a session slot is given only on a session that is
//!   connected.
//! - More than 128 KiB of watched paths make a reconnect impossible. So a session takes no more than
//!   `WATCHED_BYTES_MAX` ([`session`]), and further sessions are opened beyond that.
//! - Some answers that are too short make the caller panic ([`pipeline`]).
//! - A one-shot watcher panics when its session's task is gone ([`translate::event`]). Persistent watchers are
//!   lost on a reconnect, and are not used. Watches are armed with `getData`: `exists` would leave one on a node that
//!   never returns.
//! - After `Expired` a client is dead for good: the next session slot is on a fresh one.
//! - Its session id may change silently on a reconnect (ClickHouse Keeper does that). So the owner of our nodes is
//!   looked up after each reconnect, and until then no answer renews the lease ([`pipeline`]).
//! - It repeats no request after a lost connection, but we do, unless a server may have closed it over the request
//!   ([`abilities`]).
//! - The servers of one connect string may differ in encryption, and it panics over a server name that TLS cannot
//!   verify. Both are refused before it gets the string ([`options`]).
//! - It reports the reason of a failed attempt, or of a failed TLS handshake, only in its log. So each server is asked
//!   once more, on a connection of our own ([`probe`]).
//! - It does not set `TCP_NODELAY`, so requests that are sent together would take a round trip each ([`sockets`]).
//! - Its pauses before it tries a server again grow too fast for the lease (`to_connect_to` in [`connect`]), and it
//!   gives up a silent connection too late (`ConnectPolicy` there). For a whole fleet without sessions they are too short
//!   (`Reconnect` there).
//! - It has one limit for a connection that is silent and for an attempt at one. So attempts that take longer than they should
//!   are ended by their sockets ([`attempts`]).
//! - It does not tell of a connection that breaks between the handshake and the first answer, and stays "connected" until it
//!   has another one. So a server is named, and counts as connected, by what it has answered (`lost` in [`session`]).
//! - It shuffles its list of servers, in which each is named several times: one that is dead may come several times running
//!   ([`turns`]).
//! - It reports `Expired` only at 1.4 session timeouts. So the lease reports that a lock is lost.

pub(crate) mod client;
pub(crate) mod options;
pub(crate) mod security;
#[cfg(feature = "tls")]
pub(crate) mod tls;

mod abilities;
mod attempts;
mod connect;
pub(crate) mod connect_policy;
mod link;
mod lookup;
mod outage;
mod pipeline;
pub(crate) mod probe;
mod server_order;
pub(crate) mod servers;
mod session;
mod sockets;
mod translate;
