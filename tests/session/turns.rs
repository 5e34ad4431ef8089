//! Servers that never answer. The client tries every other server before it tries a silent server again, so it opens a session in
//! time and reconnects soon.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use support::scene::*;
use support::server::shared_server;
use support::wire::Proxy;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use zk_rwlock::ZooKeeper;

/// The connect timeout of `zklock -n`.
const AT_ONCE: Duration = Duration::from_secs(3);

/// Returns an address that drops every packet of a new connection, as a host without power does, because the queue of its
/// listener is full. The queue stays full while the returned listener and connections exist.
async fn black_hole() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let listener = socket.listen(1).expect("a listening socket");
    let (address, mut waiting) = (listener.local_addr().expect("an address"), Vec::new());
    while let Ok(connected) = tokio::time::timeout(SOON / 40, TcpStream::connect(address)).await {
        waiting.push(connected.expect("there is room"));
    }
    (address, listener, waiting)
}

/// Makes fifty attempts to connect with the timeout of `zklock -n`, five at a time. Returns the errors of the attempts that
/// failed.
async fn failing(servers: &str) -> Vec<String> {
    let mut failed = Vec::new();
    for _ in 0..10 {
        let mut tasks = JoinSet::new();
        for _ in 0..5 {
            let servers = servers.to_owned();
            tasks.spawn(async move { ZooKeeper::builder().connect_timeout(AT_ONCE).connect(servers).await });
        }
        failed.extend(tasks.join_all().await.into_iter().filter_map(|connected| Some(connected.err()?.to_string())));
    }
    failed
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_drops_packets_fails_no_connect() {
    let (address, _listener, _waiting) = black_hole().await;
    let failed = failing(&format!("{address},{}", shared_server().address())).await;
    assert!(failed.is_empty(), "{failed:?}");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_fails_no_connect() {
    let still = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = still.local_addr().expect("an address");
    let accepting = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = still.accept().await {
            open.push(stream);
        }
    });
    let failed = failing(&format!("{},{address}", shared_server().address())).await;
    accepting.abort();
    assert!(failed.is_empty(), "{failed:?}");
}

/// After each disconnect, the client tries the silent server at most once. That attempt ends after a twelfth of the session
/// timeout at the latest, although the client crate would wait longer.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconnect_tries_a_silent_server_once() {
    let still = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, came) = (still.local_addr().expect("an address"), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&came);
    let accepting = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = still.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            open.push(stream);
        }
    });
    let proxy = Proxy::start(shared_server().address());
    let builder = ZooKeeper::builder().session_timeout(Duration::from_secs(6)).connect_timeout(SOON);
    let zk = builder.connect(format!("{address},{}", proxy.address())).await.expect("one answers");
    let session = session(&zk).await;
    for round in 0..12 {
        let (before, connections) = (came.load(Ordering::Relaxed), proxy.connections());
        proxy.disconnect();
        eventually("the client has reconnected", || async { proxy.connections() > connections }).await;
        eventually("an answer", || async { session.sync("/").await.is_ok() }).await;
        let tries = came.load(Ordering::Relaxed) - before;
        assert!(tries <= 1, "round {round}: the client tried the silent server {tries} times");
    }
    accepting.abort();
}
