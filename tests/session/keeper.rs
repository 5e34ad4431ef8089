//! Old ZooKeeper servers, and servers that differ from ZooKeeper, such as ClickHouse Keeper. A request that such a server does
//! not know is sent at most once. The client notices when the server has replaced its session.

use std::time::Duration;

use support::events;
use support::keeper::{READ_SEVERAL, clickhouse_keeper, converted_keeper, session_survives, zookeeper_3_5};
use support::scene::*;
use support::server::shared_server;
use support::wire::{Close, Frames, Op, Proxy, Rule};
use zk_rwlock::coordinator::SessionEnd;
use zk_rwlock::{Error, Loss, ZooKeeper};

/// A session timeout that is longer than any of these tests waits for a loss, so that the loss cannot come from the lease.
const LONG: Duration = Duration::from_secs(30);

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_session_is_noticed_by_its_own_node() {
    let keeper = clickhouse_keeper(shared_server().address());
    let zk = connect_with(&keeper.address(), LONG).await;
    let (lock, other) = (lock_at(&zk, "/keeper/changed"), lock_at(&zk, "/keeper/other"));
    for _ in 0..2 {
        let guard = soon("free", lock.write()).await.expect("free");
        let waiter = writer(&lock);
        line_becomes(&lock, "W+ W-").await;
        keeper.reset();
        keeper.disconnect();

        assert_eq!(soon("the loss", guard.lost()).await, Loss::SessionOver(SessionEnd::Replaced));
        let error = refused(waiter).await;
        assert!(matches!(error, Error::Evicted(Loss::SessionOver(SessionEnd::Replaced))), "{error:?}");
        // The lost guard still exists. These acquisitions must not open further sessions because of that guard.
        for _ in 0..20 {
            soon("another lock", other.write()).await.expect("free").release().await.expect("held");
        }
        assert!(keeper.connections() <= 4, "{} sessions", keeper.connections());
        assert!(matches!(guard.release().await, Err(Error::Lost(_))));
        // The server still has the client's former sessions, because the client could not close them.
        let operator = connect(&shared_server().address()).await;
        for name in children(&operator, "/keeper/changed").await {
            session(&operator).await.delete(&format!("/keeper/changed/{name}")).await.expect("there");
        }
    }
}

/// Keeper closes the connection at each request for a container, and replaces the session. The client then knows Keeper, and makes
/// its directories as persistent nodes.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_closes_the_connection_is_persistent() {
    let keeper = converted_keeper(shared_server().address());
    let zk = connect_with(&keeper.address(), LONG).await;
    for path in ["/keeper-three", "/keeper-four/lock", "/keeper-five"] {
        drop(soon("the lock", lock_at(&zk, path).write()).await.expect("free"));
        becomes_empty(&zk, path).await;
    }
    assert_eq!(keeper.count(Op::CreateContainer), 1);
    assert!(keeper.connections() <= 4, "{} sessions", keeper.connections());
}

/// Keeper would end the session at a request for a container, or at a request for the list of the session's nodes.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_on_keeper_keeps_its_locks() {
    let keeper = clickhouse_keeper(shared_server().address());
    let zk = connect_with(&keeper.address(), LONG).await;
    let first = soon("free", lock_at(&zk, "/keeper-one").write()).await.expect("free");
    let other = lock_at(&zk, "/keeper-two/lock");
    let held = [other.read().label("one"), other.read().label("other")];
    let held = futures::future::join_all(held.map(|read| async { soon("free", read).await.expect("free") })).await;
    let queue = other.queue().await.expect("readable");
    let mut labels: Vec<_> = queue.members.iter().map(|member| member.label.as_deref()).collect();
    labels.sort_unstable();
    assert_eq!(labels, [Some("one"), Some("other")]);
    assert!(first.is_held());
    for guard in held {
        guard.release().await.expect("held");
    }
    first.release().await.expect("held");
    assert_eq!((keeper.count(Op::CreateContainer), keeper.count(READ_SEVERAL), keeper.connections()), (0, 1, 1));
}

/// Enters a lock at each of these paths, and returns whether each directory was made as a container.
async fn makes_containers(proxy: &Proxy, zk: &ZooKeeper, paths: impl IntoIterator<Item = String>) -> Vec<bool> {
    let mut are_containers = Vec::new();
    for path in paths {
        drop(soon("the lock", lock_at(zk, &path).write()).await.expect("free"));
        // A container's stat does not differ from that of a persistent node.
        let requests = proxy.requests();
        let makes = [Op::CreateContainer, Op::Create, Op::Create2];
        let last = requests.iter().rfind(|(op, of)| makes.contains(op) && *of == path).expect("the directory was made");
        are_containers.push(last.0 == Op::CreateContainer);
    }
    are_containers
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn breaks_over_containers_prove_nothing() {
    let proxy = Proxy::start(shared_server().address());
    let zk = connect_with(&proxy.address(), LONG).await;
    let lost = [1, 2].map(|nth| proxy.drop_request(Op::CreateContainer, nth));
    let paths = ["/broken-twice", "/broken-before"].map(String::from);
    assert_eq!(makes_containers(&proxy, &zk, paths).await, [true; 2]);
    assert!(lost.iter().all(|it| it.has_happened()));
    assert_eq!(proxy.count(Op::CreateContainer), 4);
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_read_one_by_one_without_multi_read() {
    events::collect();
    let operator = connect(&shared_server().address()).await;
    let lock = lock_at(&operator, "/keeper-reads");
    let held = [lock.read().label("one").await.expect("free"), lock.read().label("other").await.expect("free")];
    let old = zookeeper_3_5(shared_server().address());
    let zk = connect_with(&old.address(), LONG).await;
    let ours = lock_at(&zk, "/keeper-reads-ours").write().await.expect("free");
    for _ in 0..2 {
        let queue = soon("the queue", lock_at(&zk, "/keeper-reads").queue()).await.expect("readable");
        let labels: Vec<_> = queue.members.iter().map(|member| member.label.as_deref()).collect();
        assert_eq!(labels, [Some("one"), Some("other")]);
    }
    assert_eq!(old.count(READ_SEVERAL), 1);
    let session = format!("session=\"{:x}\"", session(&zk).await.id());
    assert_eq!(events::with(&[&session, "the servers lack a feature"]).len(), 1);
    ours.release().await.expect("the session outlives the connection that the server has closed");
    drop(held);
}

/// The session's id in the handshake shows that it is the same session, so no node is made for that.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_server_resumes_a_session_without_a_node() {
    let old = zookeeper_3_5(shared_server().address());
    let zk = connect_with(&old.address(), Duration::from_secs(6)).await;
    let operator = connect(&shared_server().address()).await;
    let lock = lock_at(&zk, "/keeper-old");
    let guard = soon("free", lock.write()).await.expect("free");
    for _ in 0..3 {
        old.reset();
        old.disconnect();
        eventually("heartbeats", || async { old.count(Op::Multi) > 2 }).await;
        assert!(guard.is_held());
        let own = guard.node_path();
        assert_eq!(children(&operator, "/keeper-old").await, [own.rsplit('/').next().unwrap()]);
    }
    guard.release().await.expect("held");
    becomes_empty(&operator, "/keeper-old").await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquisition_fails_where_no_node_can_be_made() {
    let keeper = clickhouse_keeper(shared_server().address());
    let zk = connect_with(&keeper.address(), Duration::from_secs(4)).await;
    keeper.apply(Rule::on(Frames::requests(Op::Create2)).and_all_later().close(0, Close::Fin));
    let error = soon("an error", lock_at(&zk, "/keeper-older").write()).await.expect_err("no node can be made");
    assert!(matches!(error, Error::Evicted(Loss::SessionOver(SessionEnd::Replaced))), "{error}");
}

/// On Keeper, reads and pings that a follower answers do not extend a session, so an idle client must also write. On ZooKeeper
/// they extend the session, so an idle client writes nothing.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_session_writes_only_if_reads_do_not_renew() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let server = || shared_server().address();
    let (follower, converted, plain) =
        (clickhouse_keeper(server()), converted_keeper(server()), Proxy::start(server()));
    let connect = async |proxy: &Proxy| {
        let builder = ZooKeeper::builder().session_timeout(TIMEOUT).tick_time(TIMEOUT / 10).connect_timeout(SOON);
        builder.connect(proxy.address()).await.expect("reachable")
    };
    let (known, unknown, idle) = (connect(&follower).await, connect(&converted).await, connect(&plain).await);
    plain.reset();
    // The client makes a directory. At the request for a container, this server closes the connection and replaces the session,
    // so the client learns which kind of server it has.
    drop(soon("a lock", lock_at(&unknown, "/keeper-unknown").write()).await.expect("free"));
    let kept =
        async |follower: &Proxy| within(3 * SOON, "a session that lives", session_survives(follower, TIMEOUT)).await;
    tokio::join!(kept(&follower), kept(&converted));
    assert!(plain.count(Op::GetData) > 0, "the idle session sent no reads");
    assert_eq!(plain.count(Op::Multi), 0);
    for zk in [known, unknown, idle] {
        eventually("a connection", || async { zk.state().to_string().starts_with("connected") }).await;
    }
}
