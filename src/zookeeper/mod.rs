//! The ZooKeeper backend, on the client crate `zookeeper-client` 0.11.2. In `src/`, only this folder names the crate.
//!
//! This library implements the session, and the crate implements the connection. Each connection is a client of the
//! crate for one server ([`link`]). This library decides where and when to connect ([`connection`]), resumes the
//! session on the next connection ([`connections`]), lets requests wait while there is no connection ([`pipeline`]),
//! and arms the watches again after a reconnect ([`watches`]).
//!
//! The backend works around these limits of the crate. `docs/upstream/` has patches for some of them.
//! - The crate sends a request only when its future is first polled. So each future is polled once before the function
//!   that creates it returns ([`pipeline`]).
//! - After an error other than a clear refusal, the outcome of a request is unknown ([`translate::translate_error`]).
//! - The crate begins to connect again in the same poll in which it reports that the connection is lost. So the crate's
//!   task is dropped in that poll ([`link`]).
//! - Some replies that are too short make the crate panic ([`pipeline`], [`link`]).
//! - A one-shot watcher panics if it is polled after the task of its connection is dropped. So a watcher is dropped as
//!   soon as its connection is lost ([`watches`]).
//! - The crate loses persistent watchers on a reconnect. So this backend uses none (`persistent-watches.patch`).
//! - The crate accepts a connect string with encrypted and unencrypted servers, and panics over a server name that TLS
//!   cannot verify. This backend refuses such strings and names before the crate gets them ([`options`]).
//! - The crate reports the reason for a failed attempt to connect or TLS handshake only in its log. So this library
//!   finds the reason on connections of its own ([`probe`]).
//! - The crate does not set `TCP_NODELAY`. Without this option, requests that are sent together take a round trip each.
//!   So this backend sets the option on the crate's sockets ([`sockets`], `nodelay.patch`).

pub(crate) mod client;
pub(crate) mod options;
pub(crate) mod security;
#[cfg(feature = "tls")]
pub(crate) mod tls;

mod abilities;
mod connect;
pub(crate) mod connection;
mod connections;
mod link;
mod lookup;
mod outage;
mod pipeline;
pub(crate) mod probe;
pub(crate) mod servers;
mod session;
#[cfg(target_os = "linux")]
mod sockets;
mod translate;
mod watches;
