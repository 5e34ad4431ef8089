//! Infrastructure of the tests: ports that tests reserve stay reserved, and the test runner counts the open file descriptors.

use std::collections::HashSet;
use std::net::TcpListener;
use std::process::Command;
use std::thread;

use support::port::{Port, given_by_the_system};
use support::process::{Process, role, say};
use support::scene::*;
use support::server::Server;
use support::wire::Proxy;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

#[test]
fn the_child_process_of_other_tests() {
    if let Some(number) = role() {
        say(if Port::claim(number.parse().unwrap()).is_some() { "mine" } else { "taken" });
    }
}

#[support::judged]
fn the_port_of_a_killed_server_is_given_to_nobody_else() {
    let server = Server::start();
    server.kill();
    let number = server.address().rsplit_once(':').unwrap().1.parse().unwrap();
    assert!(!given_by_the_system().contains(&number), "{number}");
    for _ in 0..5_000 {
        assert_ne!(TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port(), number);
    }
    let reserve = || (0..25).map(|_| Port::reserve()).collect::<Vec<_>>();
    let reserved: Vec<Port> = thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(reserve));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let numbers: HashSet<u16> = reserved.iter().map(Port::number).collect();
    assert!(numbers.len() == 100 && !numbers.contains(&number), "{number} {numbers:?}");
    let claimed_by_another_process =
        |says| assert_eq!(Process::start(module_path!(), &number.to_string()).says(), says);

    assert!(Port::claim(number).is_none());
    claimed_by_another_process("taken");
    server.start_again();
    assert!(Port::claim(number).is_none());
    drop(server);
    claimed_by_another_process("mine");
}

#[support::judged]
async fn a_proxy_in_front_of_itself_refuses() {
    let port = Port::reserve();
    let address = port.address();
    let proxy = Proxy::start_on(port, address.to_string());
    let mut client = TcpStream::connect(address).await.unwrap();
    assert_eq!(soon("the refusal", client.read(&mut [0])).await.unwrap(), 0);
    assert_eq!(proxy.connections(), 0);
}

#[support::judged]
fn the_runner_reports_the_open_descriptors() {
    let mut runner = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/descriptors.sh"));
    let output = runner
        .args(["bash", "-c", "for i in {1..40}; do exec {new}</dev/null; done; sleep 1; exit 7"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7));
    let said = String::from_utf8(output.stderr).unwrap();
    let most: u32 =
        said.trim_end().strip_prefix("bash: at most ").unwrap().strip_suffix(" descriptors").unwrap().parse().unwrap();
    assert!((43..50).contains(&most), "{said}");
}
