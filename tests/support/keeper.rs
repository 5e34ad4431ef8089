//! A server that is not quite ZooKeeper: a real one, behind a proxy that has it behave so.
//!
//! It knows nothing of locks, nor of any client library.

use super::wire::{Close, Frames, Hello, Op, Proxy, Rule};

/// The request for the list of the session's own ephemeral nodes. ZooKeeper has it since 3.6.
pub const LIST_EPHEMERALS: Op = Op::Other(103);

const UNIMPLEMENTED: i32 = -6;

/// Behaves as ClickHouse Keeper does: each handshake begins a new session, and an unknown request closes the
/// connection.
pub fn clickhouse_keeper(server: impl Into<String>) -> Proxy {
    let proxy = Proxy::start(server);
    let afresh = |hello: &mut Hello| {
        hello.session = 0;
        hello.password = vec![0; 16];
    };
    proxy.apply(Rule::on(Frames::requests(Op::Handshake)).and_all_later().falsify(afresh));
    for unknown in [LIST_EPHEMERALS, Op::CreateContainer] {
        proxy.apply(Rule::on(Frames::requests(unknown)).and_all_later().close(0, Close::Fin));
    }
    proxy
}

/// Behaves as ZooKeeper 3.5 does: no client can list the ephemeral nodes of a session.
pub fn zookeeper_3_5(server: impl Into<String>) -> Proxy {
    let proxy = Proxy::start(server);
    proxy.apply(Rule::on(Frames::requests(LIST_EPHEMERALS)).and_all_later().refuse(UNIMPLEMENTED));
    proxy
}
