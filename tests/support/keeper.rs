//! A real ZooKeeper server behind a proxy that imitates ClickHouse Keeper or ZooKeeper 3.5. Use it to test the
//! library's workarounds without those servers.

use std::time::{Duration, Instant};

use super::wire::{Close, Frames, Hello, Op, Proxy, Rule, UNIMPLEMENTED};

/// The request for the list of a session's own ephemeral nodes. ZooKeeper has this request since 3.6.
pub const LIST_EPHEMERALS: Op = Op::Other(103);

/// The request that reads several nodes. ZooKeeper has this request since 3.6.
pub const READ_SEVERAL: Op = Op::Other(22);

/// Starts a proxy that imitates a ClickHouse Keeper with `create2` and without containers: sessions are numbered from
/// one, each handshake begins a new session, and an unknown request closes the connection.
pub fn clickhouse_keeper(server: impl Into<String>) -> Proxy {
    as_keeper(Proxy::start_renumbering(server))
}

/// Starts a proxy that imitates a ClickHouse Keeper whose data was converted from ZooKeeper. It does what
/// [`clickhouse_keeper`] does, except that session ids continue after ZooKeeper's.
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

/// Starts a proxy that imitates ZooKeeper 3.5. It refuses [`LIST_EPHEMERALS`] and [`READ_SEVERAL`], and closes the
/// connection after the refusal.
pub fn zookeeper_3_5(server: impl Into<String>) -> Proxy {
    let proxy = Proxy::start(server);
    for unknown in [LIST_EPHEMERALS, READ_SEVERAL] {
        proxy.apply(Rule::on(Frames::requests(unknown)).and_all_later().refuse(UNIMPLEMENTED));
    }
    proxy
}

/// Acts as the leader of ClickHouse Keeper behind this follower. A follower passes only writes on to its leader, so the
/// leader ends a session that sends no write for a session timeout. Returns once a session has lived for three session
/// timeouts.
pub async fn session_survives(follower: &Proxy, session_timeout: Duration) {
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
