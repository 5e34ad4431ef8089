//! A server that is not quite ZooKeeper: a real one, behind a proxy that has it behave so.

use std::time::{Duration, Instant};

use super::wire::{Close, Frames, Hello, Op, Proxy, Rule, UNIMPLEMENTED};

/// The request for the list of the session's own ephemeral nodes. ZooKeeper has it since 3.6.
pub const LIST_EPHEMERALS: Op = Op::Other(103);

/// The request that reads several nodes. ZooKeeper has it since 3.6.
pub const READ_SEVERAL: Op = Op::Other(22);

/// Behaves as ClickHouse Keeper does since it knows `create2`, and before it knew containers: it numbers sessions from
/// one, each handshake begins a new session, and an unknown request closes the connection.
pub fn clickhouse_keeper(server: impl Into<String>) -> Proxy {
    as_keeper(Proxy::start_renumbering(server))
}

/// As [`clickhouse_keeper`], with data that came from ZooKeeper: it goes on from the numbers of ZooKeeper's sessions.
pub fn converted_keeper(server: impl Into<String>) -> Proxy {
    as_keeper(Proxy::start(server))
}

fn as_keeper(proxy: Proxy) -> Proxy {
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

/// Behaves as ZooKeeper 3.5 does: no client can list the ephemeral nodes of a session, or read several nodes with one
/// request. It closes the connection behind the answer that says so.
pub fn zookeeper_3_5(server: impl Into<String>) -> Proxy {
    let proxy = Proxy::start(server);
    for unknown in [LIST_EPHEMERALS, READ_SEVERAL] {
        proxy.apply(Rule::on(Frames::requests(unknown)).and_all_later().refuse(UNIMPLEMENTED));
    }
    proxy
}

/// Behaves as a follower of ClickHouse Keeper does: its leader hears of writes alone, and ends a session that has sent none
/// for a session timeout. Returns when a session has lived for three of them.
pub async fn has_session_kept(follower: &Proxy, session_timeout: Duration) {
    let mut alive_since = Instant::now();
    while alive_since.elapsed() < 3 * session_timeout {
        tokio::time::sleep(session_timeout / 50).await;
        let writes =
            [Op::Handshake, Op::Multi, Op::Create2, Op::Delete].map(|op| follower.arrivals(op).into_iter().max());
        if writes.into_iter().max().flatten().is_some_and(|written| written.elapsed() > session_timeout) {
            follower.reset();
            follower.disconnect();
            alive_since = Instant::now();
        }
    }
}
