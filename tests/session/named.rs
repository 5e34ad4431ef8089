//! The name of the connected server in warnings: the library names a server only if it is certain, because an operator acts
//! on that name.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use support::port::Port;
use support::scene::*;
use support::server::shared_server;
use support::wire::{Frames, Op, Proxy};
use zk_rwlock::ZooKeeper;
use zk_rwlock::coordinator::Session;

use crate::no_delay::no_delay_flags;

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

/// The client crate does not report a connection that breaks before the reply to its first ping. The library must find out by
/// itself that no server is connected.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_broken_before_its_reply_names_no_server() {
    let proxy = Proxy::start(shared_server().address());
    let zk = connect_with(&proxy.address(), Duration::from_secs(4)).await;
    let session = session(&zk).await;
    eventually("the server is known", || async { named(&session) == proxy.address() }).await;
    let unanswered = proxy.hold(Frames::replies(Op::Ping));
    proxy.disconnect();
    soon("another connection", unanswered.arrives()).await;
    let address = proxy.address().parse().expect("an address");
    eventually("the sockets were examined", || async { no_delay_flags(address) == [true] }).await;
    proxy.cut();
    eventually("none is named", || async { named(&session) == format!("one of {}", proxy.address()) }).await;
    assert!(session.lease().over().is_none(), "the session ended before its time");
    eventually("the client is disconnected", || async { !zk.state().is_connected() }).await;
    assert!(session.lease().over().is_none(), "the session ended before its time");
}

fn forward(listener: TcpListener, server: String) {
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&server) else { continue };
            for (from, to) in [(&near, &far), (&far, &near)] {
                let [mut from, mut to] = [from, to].map(|stream| stream.try_clone().expect("a descriptor"));
                thread::spawn(move || io::copy(&mut from, &mut to));
            }
        }
    });
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_at_two_addresses_names_no_server() {
    let port = Port::reserve();
    let addresses = ["127.0.0.1", "127.0.0.2"].map(|host| format!("{host}:{}", port.number()));
    for address in &addresses {
        forward(TcpListener::bind(address).expect("the port is ours"), shared_server().address());
    }
    let first = connect(&addresses[0]).await;
    let first = session(&first).await;
    eventually("a single server is named", || async { named(&first) == addresses[0] }).await;
    let second = connect(&addresses[1]).await;
    let second = session(&second).await;
    eventually("the sockets were examined", || async { no_delay_flags(addresses[1].parse().unwrap()) == [true] }).await;
    for _ in 0..50 {
        assert_eq!(named(&second), format!("one of {}", addresses[1]));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
