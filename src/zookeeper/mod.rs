//! The ZooKeeper backend, on the client crate `zookeeper-client` 0.11.2. Only this folder names the crate.
//!
//! It works around these limits of the crate. `docs/upstream/` has patches for some of them.
//! - The crate sends a request only in the first poll of its future. So each future is polled once in the call that
//!   creates it ([`pipeline`]).
//! - After an error other than a clear refusal, the outcome of a request is unknown ([`translate::failure`]).
//! - While disconnected, the crate queues requests without a limit. So a session slot is given out only while its
//!   session is connected.
//! - With more than 128 KiB of watched paths, a reconnect is impossible. So a session takes at most `WATCHED_BYTES_MAX`
//!   ([`session`]), and further sessions are opened beyond that.
//! - Some replies that are too short make the crate panic ([`pipeline`]).
//! - A one-shot watcher panics when its session's task is gone ([`translate::event`]).
//! - Persistent watchers are lost on a reconnect, and are not used (`persistent-watches.patch`). Watches are set with
//!   `getData`, because `exists` would leave a watch on a node that never comes back.
//! - After `Expired`, a client of the crate cannot be used any more. So the next session slot belongs to a new session.
//! - A reconnect may silently change the session id; ClickHouse Keeper does that. So the session checks the owner of
//!   its nodes after each reconnect, and until then no reply renews the lease ([`pipeline`]).
//! - The crate does not retry requests after a lost connection. `session/retry.rs` does, unless the servers do not know
//!   the request ([`abilities`]).
//! - The crate accepts a connect string with encrypted and unencrypted servers, and panics over a server name that TLS
//!   cannot verify. This backend refuses both before the crate gets the string ([`options`]).
//! - The crate reports the reason for a failed attempt to connect or TLS handshake only in its log. So each server is
//!   probed on a connection of this library ([`probe`]).
//! - The crate does not set `TCP_NODELAY`, so requests that are sent together would take a round trip each
//!   ([`sockets`], `nodelay.patch`).
//! - The crate's pauses between attempts to connect grow too fast for the lease (`connect_string` in [`connect`]). For
//!   many clients that reconnect at the same time, the pauses are too short ([`connect_policy`]).
//! - The crate has one limit for silent connections and for attempts to connect. So this backend ends slow attempts by
//!   shutting down their sockets ([`attempts`], `read-timeout.patch`).
//! - The crate does not report a connection that breaks between the handshake and the first reply. So a session is
//!   taken as connected only once the server has replied (`lost` in [`session`]).
//! - The crate shuffles its list of servers, and may try a dead server several times in a row ([`server_order`]).
//! - The crate reports `Expired` only after 1.4 session timeouts. So the lease reports the loss of a lock.

pub(crate) mod client;
pub(crate) mod options;
pub(crate) mod security;
#[cfg(feature = "tls")]
pub(crate) mod tls;

mod abilities;
mod attempts;
mod connect;
pub(crate) mod connect_policy;
mod lookup;
mod outage;
mod pipeline;
pub(crate) mod probe;
mod server_order;
pub(crate) mod servers;
mod session;
mod sockets;
mod translate;
