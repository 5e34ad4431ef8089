//! The ZooKeeper backend: the only place that names the client crate; knows neither modes nor turns.
//!
//! What it works around in version 0.11.2 of that crate:
//! - Requests are sent at the call, so their futures are polled once at once and can then be dropped ([`pipeline`]).
//! - Errors other than a clear refusal leave the outcome unknown, whatever their name ([`translate::failure`]).
//! - While disconnected it queues requests without bound: a session slot is given only on a session that is connected.
//! - More than 128 KiB of watched paths make a reconnect impossible, so a session takes no more than
//!   `WATCHED_BYTES_MAX` ([`session`]), and further ones are opened beyond that.
//! - Some answers that are too short make the caller panic (`Survived` in [`pipeline`]).
//! - A one-shot watcher panics when its session's task is gone (`Watched` in [`translate`]); persistent ones are lost on a
//!   reconnect and are not used. Watches are armed with `getData`: `exists` would leave one on a node that never returns.
//! - After `Expired` a client is dead for good: the next session slot is on a fresh one.
//! - Its session id may change silently on a reconnect (ClickHouse Keeper does that): who owns our nodes is looked
//!   up after each one, and until then no answer renews the lease ([`identity`]).
//! - It repeats nothing, but we do, after a lost connection: not what a server closes connections over ([`abilities`]).
//! - Servers of one connect string may differ in encryption, and one whose name TLS cannot verify makes it panic: both
//!   are refused before it is asked ([`options`]). Why a handshake failed only its log tells.
//! - It sends each request as it comes: a removal that the next create may join is held back on our side ([`pipeline`]).
//! - Its pauses before it tries a server again grow too fast for the lease (`to_connect_to` in [`connect`]), and a silent
//!   connection is given up too late (`Patience` there).
//! - It says `Expired` only at 1.4 session timeouts: the lease is what tells that a lock is lost.

pub(crate) mod client;
pub(crate) mod options;
pub(crate) mod security;

mod abilities;
mod connect;
mod identity;
mod outage;
mod pipeline;
mod servers;
mod session;
mod translate;
