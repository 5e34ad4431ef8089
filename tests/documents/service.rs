//! Tests of `examples/axum` as a process on a real server: the answers of its probes, the lock that it holds while it serves, and
//! a clean stop.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use support::page::snippets;
use support::program::example;
use support::scene::*;
use support::server::Server;
use support::wire::{Frames, Op, Proxy};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout};

/// An instance of the service.
struct Instance {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Instance {
    /// Starts an instance without waiting until it is ready. The instance's periodic report, every 600 s, never runs
    /// during a test.
    async fn start(servers: &str) -> Instance {
        let mut command = example("axum-service");
        command.env("ZK_HOSTS", servers).env("LISTEN", "127.0.0.1:0");
        command.env("REPORT_SECONDS", "600").env("DRAIN_SECONDS", "0").env("NOTICE_SECONDS", "0");
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it can be run");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let first = soon("a line", lines.next_line()).await.expect("text").expect("it listens");
        let address = first.strip_prefix("listens on ").expect("where").to_owned();
        Instance { child, lines, address }
    }

    /// Sends an HTTP request, and returns the status and the body of the response.
    async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        soon("an answer", answer(self.address.clone(), method, path, body)).await
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path, "").await
    }

    async fn becomes_ready(&self) {
        eventually("it is ready", || async { self.get("/ready").await == (200, "ready\n".to_owned()) }).await;
    }

    async fn becomes_unready(&self, why: &str) {
        eventually(why, || async { matches!(self.get("/ready").await, (503, text) if text.contains(why)) }).await;
    }
}

async fn answer(address: String, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(&address).await.expect("it listens");
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}");
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers in text");
    let (head, text) = answer.split_once("\r\n\r\n").expect("an empty line after the head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), text.to_owned())
}

#[support::judged]
async fn a_service_is_ready_and_stops_cleanly() {
    let server = tokio::task::spawn_blocking(Server::start).await.expect("the server starts");
    server.kill();
    let mut service = Instance::start(&server.address()).await;
    let live = (200, "live\n".to_owned());
    assert_eq!(service.get("/live").await, live);
    assert_eq!(service.get("/ready").await, (503, "no session with ZooKeeper yet\n".to_owned()));
    assert_eq!(service.get("/").await.0, 503);

    server.start_again();
    service.becomes_ready().await;
    assert_eq!(service.get("/").await, (200, "good morning\n".to_owned()));
    assert_eq!(service.ask("PUT", "/greeting", "good evening").await.0, 200);
    assert_eq!(service.get("/").await, (200, "good evening\n".to_owned()));

    let zk = connect(&server.address()).await;
    let (config, report) = (lock_at(&zk, "/orders/config/lock"), lock_at(&zk, "/orders/report"));
    let held = report.write().label("another instance").await.unwrap();
    let (status, text) = service.ask("POST", "/report", "").await;
    assert!(status == 409 && text.contains("\"another instance\""), "{status} {text}");
    held.release().await.unwrap();

    server.kill();
    let refused = format!("{}: Connection refused (os error 111)\n", server.address());
    eventually("it says why it is not ready", || async {
        let (status, text) = service.get("/ready").await;
        status == 503 && text.starts_with("connecting for ") && text.ends_with(&refused)
    })
    .await;
    assert_eq!(service.get("/live").await, live);
    server.start_again();
    service.becomes_ready().await;

    // The instance is stopped while a request holds one lock and the instance keeps the node of another.
    let address = service.address.clone();
    let request = tokio::spawn(async move { answer(address, "POST", "/report", "").await });
    line_becomes(&report, "W+").await;
    assert_eq!(service.get("/").await.0, 200);
    assert_eq!(line(&config).await, "W+", "kept since the greeting was changed");
    let pid = service.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).expect("it runs");
    kill_process(pid, Signal::TERM).unwrap();
    let status = soon("the end", service.child.wait()).await.unwrap();
    assert_eq!((line(&report).await, line(&config).await), (String::new(), String::new()));
    assert!(status.success(), "{status}");
    assert_eq!(service.lines.next_line().await.unwrap().as_deref(), Some("stopped"));
    drop(request);
}

/// Returns the text without indentation. In the page's file the recipe is part of a function, and some names are private.
fn plain(code: &str) -> String {
    code.lines().map(|line| line.trim().replacen("pub(crate) ", "", 1) + "\n").collect()
}

#[test]
fn the_service_has_the_recipe_of_the_page() {
    let [recipe] = snippets(include_str!("../pages/serving.rs")).try_into().expect("one snippet");
    assert!(plain(include_str!("../../examples/axum/src/serving.rs")).ends_with(&plain(&recipe.code)));
}

#[support::judged]
async fn a_service_serves_again_after_a_loss_and_after_a_writer() {
    let server = tokio::task::spawn_blocking(Server::start).await.expect("the server starts");
    let proxy = Proxy::start(server.address());
    let service = Instance::start(&proxy.address()).await;
    service.becomes_ready().await;
    let zk = connect(&server.address()).await;
    let [active, report] = ["/orders/active", "/orders/report"].map(|path| lock_at(&zk, path));
    assert_eq!(line(&active).await, "R+");

    // The next acquisition waits until the test has seen that the service is not ready.
    let again = proxy.hold(Frames::requests(Op::Create).about("/orders/active"));
    let [node] = children(&zk, "/orders/active").await.try_into().expect("one instance");
    session(&zk).await.delete(&format!("/orders/active/{node}")).await.unwrap();
    service.becomes_unready("lost").await;
    assert_eq!(service.get("/").await.0, 503);
    again.release();
    service.becomes_ready().await;
    assert_eq!((line(&active).await, service.get("/").await.0), ("R+".to_owned(), 200));

    // A writer waits for the request in progress, and the service for the writer.
    let address = service.address.clone();
    let request = tokio::spawn(async move { answer(address, "POST", "/report", "").await });
    line_becomes(&report, "W+").await;
    let writer = writer(&active);
    service.becomes_unready("makes way for").await;
    eventually("no new request is served", || async { service.get("/").await.0 == 503 }).await;
    line_becomes(&active, "R+ W- R-").await;
    request.abort();
    let written = granted(writer).await;
    line_becomes(&active, "W+ R-").await;
    assert_eq!((service.get("/ready").await.0, service.get("/").await.0), (503, 503));
    written.release().await.unwrap();
    service.becomes_ready().await;
    assert_eq!((line(&active).await, service.get("/").await.0), ("R+".to_owned(), 200));
}
