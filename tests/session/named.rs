//! The servers of a connect string: the name of the connected one in warnings, and names with several addresses.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use support::port::Port;
use support::program::program;
use support::scene::*;
use support::server::shared_server;
use support::wire::{Frames, Op, Proxy};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::process::Command;
use zk_rwlock::ZooKeeper;
use zk_rwlock::coordinator::Session;

fn named(session: &Arc<dyn Session>) -> String {
    session.server().expect("the backend knows its servers")
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_named_only_while_it_is_connected() {
    let proxies = [(); 2].map(|()| Proxy::start(shared_server().address()));
    let servers = format!("{},{}", proxies[0].address(), proxies[1].address());
    let zk = ZooKeeper::builder().session_timeout(SOON).connect(&servers).await.expect("reachable");
    let session = session(&zk).await;
    let one_of = format!("one of {servers}");
    for _ in 0..3 {
        let is_one = |name: String| proxies.iter().position(|proxy| proxy.address() == name);
        eventually("the server is known", || async { is_one(named(&session)).is_some() }).await;
        let connected = is_one(named(&session)).expect("the server is known");
        proxies[connected].cut();
        eventually("the other one is named", || async { named(&session) == proxies[1 - connected].address() }).await;
        proxies[connected].heal();
    }
    proxies.iter().for_each(Proxy::cut);
    eventually("none is named", || async { named(&session) == one_of }).await;
}

/// A server that takes a connection, and has not shown yet that it reaches a quorum, is not the connected one.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_none_before_a_quorum_has_answered_on_it() {
    let proxy = Proxy::start(shared_server().address());
    let zk = connect_with(&proxy.address(), Duration::from_secs(30)).await;
    let _guard = lock_at(&zk, "/named/quorum").write().await.expect("free");
    let session = session(&zk).await;
    assert_eq!(named(&session), proxy.address());
    let unanswered = proxy.hold(Frames::replies(Op::Multi));
    proxy.disconnect();
    soon("the check of another connection", unanswered.arrives()).await;
    assert_eq!(named(&session), format!("one of {}", proxy.address()));
    assert!(!zk.state().is_connected());
    unanswered.release();
    eventually("the server is named again", || async { named(&session) == proxy.address() }).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_at_one_port_of_two_addresses_are_told_apart() {
    let (port, server) = (Port::reserve(), shared_server().address());
    let other = format!("127.0.0.2:{}", port.number());
    let (one, relay) =
        (Proxy::start_on(port, server.clone()), TcpListener::bind(&other).await.expect("the port is ours"));
    let relaying = tokio::spawn(async move {
        while let Ok((mut near, _)) = relay.accept().await {
            let mut far = TcpStream::connect(&server).await.expect("the server is there");
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
    let (first, second) = (connect(&one.address()).await, connect(&other).await);
    assert_eq!((named(&session(&first).await), named(&session(&second).await)), (one.address(), other));
    relaying.abort();
}

/// A command that runs with a file of names of its own.
fn with_names(names: &Path, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""]).arg(names).arg(program);
    command.kill_on_drop(true).stdout(Stdio::piped());
    command
}

/// The name has two addresses, as that of a headless service, and one of them drops every packet (ZOOKEEPER-2184).
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn each_address_of_a_name_is_tried() {
    let port = Port::reserve();
    let number = port.number();
    let bad = TcpSocket::new_v4().expect("a socket");
    bad.bind(SocketAddr::from(([127, 0, 0, 2], number))).expect("the port is ours");
    let (bad, mut waiting) = (bad.listen(1).expect("a listening socket"), Vec::new());
    let address = bad.local_addr().expect("an address");
    while let Ok(connected) = tokio::time::timeout(SOON / 40, TcpStream::connect(address)).await {
        waiting.push(connected.expect("there is room"));
    }
    let good = Proxy::start_on(port, shared_server().address());
    let files = tempfile::tempdir().expect("a directory");
    let (names, goes_on) = (files.path().join("hosts"), files.path().join("goes-on"));
    std::fs::write(&names, "127.0.0.2 twin\n127.0.0.1 twin\n").expect("a file");
    std::fs::write(&goes_on, "").expect("a file");
    let mut holder = with_names(&names, &program("zklock"))
        .args(["--zk", &format!("twin:{number}"), "--session-timeout", "6s", "/named/twin", "sh", "-c"])
        .arg("echo held; while [ -e \"$0\" ]; do sleep 0.1; done")
        .arg(&goes_on)
        .spawn()
        .expect("unshare");
    let mut says = BufReader::new(holder.stdout.take().expect("its output")).lines();
    assert_eq!(soon("the lock", says.next_line()).await.expect("text").as_deref(), Some("held"));
    for _ in 0..6 {
        let connections = good.connections();
        good.disconnect();
        eventually("another connection", || async { good.connections() > connections }).await;
        // Each reconnect may first try the address that answers nothing, for half a second. So the lease is renewed before
        // the next break, by a heartbeat after the request that the session sends at its return.
        let before = good.count(Op::Multi);
        eventually("a heartbeat", || async { good.count(Op::Multi) > before + 1 }).await;
    }
    std::fs::remove_file(&goes_on).expect("the file");
    assert_eq!(soon("the end", holder.wait()).await.expect("a status").code(), Some(0));
}
