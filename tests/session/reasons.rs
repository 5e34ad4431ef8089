//! Reasons why there is no session: each appears in the error of `connect`, in `ZooKeeper::state`, and in the error of an
//! acquisition that times out meanwhile.

use std::future::{IntoFuture, pending};
use std::time::Duration;

use support::ensemble::Ensemble;
use support::port::Port;
use support::scene::*;
use support::server::{Server, shared_server};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use zk_rwlock::{Error, ZooKeeper};

/// The connect timeout of the first try in tests whose servers give no session. A later try has a longer one.
const LIMIT: Duration = Duration::from_secs(3);

const FULL: [&str; 2] = ["closes every connection at once", "maxClientCnxns allows (60 by default)"];

/// Calls `connect` with this connect timeout, which must fail. Returns the text of the error.
async fn connect_error(limit: Duration, servers: &str) -> String {
    let builder = ZooKeeper::builder().session_timeout(CALM).connect_timeout(limit);
    let error = within(SOON + limit, "the refusal", builder.connect(servers)).await.expect_err("there is no session");
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    let (text, limit) = (error.to_string(), humantime::format_duration(limit));
    let begin = format!("ZooKeeper cannot be reached: no session with {servers} within {limit}: ");
    text.strip_prefix(&begin).unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// Checks that the error of `connect` gives the reason, with a timeout long enough to learn the reason.
async fn assert_reason(servers: &str, is_it: impl Fn(&str) -> bool) {
    with_time_enough(LIMIT, async |limit| {
        let why = connect_error(limit, servers).await;
        if is_it(&why) { Ok(()) } else { Err(why) }
    })
    .await;
}

/// A peer that does not speak ZooKeeper's protocol.
struct Stranger {
    address: String,
    task: JoinHandle<()>,
    _port: Port,
}

impl Stranger {
    /// Passes each connection to `serve`, and closes it when `serve` returns.
    fn start<F: Future<Output = ()> + Send + 'static>(serve: fn(TcpStream) -> F) -> Stranger {
        let port = Port::reserve();
        let listener = port.listen();
        listener.set_nonblocking(true).expect("a socket");
        let listener = TcpListener::from_std(listener).expect("a socket");
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        Stranger { address: port.address().to_string(), task, _port: port }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[support::judged]
async fn a_port_without_a_server_gives_the_systems_reason() {
    let port = Port::reserve();
    let address = port.address().to_string();
    assert_reason(&address, |why| why == format!("{address}: Connection refused (os error 111)")).await;
}

#[support::judged]
async fn an_unknown_host_is_reported_as_unknown() {
    assert_reason("nowhere.invalid:2181", |why| why.starts_with("nowhere.invalid:2181: the host is not known: ")).await;
}

#[support::judged]
async fn each_server_of_a_list_has_its_own_reason() {
    let (one, silent) = (Port::reserve(), Stranger::start(|stream| async { drop((stream, pending::<()>().await)) }));
    let (one, other) = (one.address().to_string(), &silent.address);
    let refused = format!("{one}: Connection refused (os error 111)");
    let expected = format!("{refused}; {other}: takes connections, and answers nothing");
    assert_reason(&format!("{one},{other}"), |why| why == expected).await;
}

#[support::judged]
async fn a_frozen_server_accepts_and_answers_nothing() {
    let server = Server::start();
    server.pause();
    let expected = format!("{}: takes connections, and answers nothing", server.address());
    assert_reason(&server.address(), |why| why == expected).await;
    server.resume();
}

#[support::judged]
async fn an_http_server_is_recognized_by_its_reply() {
    let web = Stranger::start(|stream| async {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        let _ = stream.read_line(&mut line).await;
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
    });
    let expected = format!("{}: speaks HTTP, and is no ZooKeeper: \"HTTP/1.1 400 Bad Request\"", web.address);
    assert_reason(&web.address, |why| why == expected).await;
}

#[support::judged]
async fn a_peer_that_speaks_first_is_named_by_its_banner() {
    let ssh = Stranger::start(|mut stream| async move {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n").await;
        pending().await
    });
    let expected = format!("{}: is no ZooKeeper: it says \"SSH-2.0-OpenSSH_9.6\"", ssh.address);
    assert_reason(&ssh.address, |why| why == expected).await;
}

/// The test uses both connection factories of a server: NIO and Netty.
#[support::judged]
async fn a_full_server_is_reported_with_its_limiting_option() {
    let netty = "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory";
    for lines in [&["maxClientCnxns=1"][..], &["maxClientCnxns=1", netty]] {
        let server = Server::start_with(lines, &[]);
        let zk = soon("the only place", ZooKeeper::connect(server.address())).await.expect("a place is free");
        let is_full = |why: &str| FULL.iter().all(|words| why.contains(words));
        assert_reason(&server.address(), |why| why.starts_with(&server.address()) && is_full(why)).await;
        soon("closed", zk.close()).await;
        let next = soon("the place", connect(&server.address())).await;
        assert!(next.state().is_connected());
    }
}

#[support::judged]
async fn a_plain_client_learns_that_a_port_is_for_tls() {
    let tls = Stranger::start(|mut stream| async move {
        // The alert `unexpected_message` of TLS 1.2, as OpenSSL sends it.
        let _ = stream.write_all(&[0x15, 3, 3, 0, 2, 2, 10]).await;
    });
    assert_reason(&tls.address, |why| why.ends_with("its port is one for TLS, which this client does not speak")).await;
}

#[support::judged]
async fn a_server_without_a_majority_is_reported() {
    let ensemble = tokio::task::spawn_blocking(Ensemble::start).await.expect("the ensemble starts");
    let left = ensemble.server(0);
    ensemble.server(1).kill();
    ensemble.server(2).kill();
    eventually("the loss is noticed", || async { !left.four_letter("srvr").contains("Mode") }).await;
    let expected = "is not currently serving requests: it may not reach the majority";
    assert_reason(&left.address(), |why| why.contains(expected)).await;
}

#[support::judged]
async fn a_read_only_server_is_reported_as_read_only() {
    let start = || Ensemble::start_with(&["-Dreadonlymode.enabled=true"]);
    let ensemble = tokio::task::spawn_blocking(start).await.expect("the ensemble starts");
    let left = ensemble.server(0);
    ensemble.server(1).kill();
    ensemble.server(2).kill();
    eventually("the server is read-only", || async { left.four_letter("srvr").contains("Mode: read-only") }).await;
    let expected = "is read-only: it does not reach the majority of its ensemble";
    assert_reason(&left.address(), |why| why.ends_with(expected)).await;
}

/// Returns the text of a timeout error, without the times if the text names the start of the disconnect.
fn cut_off(error: &Error, limit: Duration) -> String {
    let Error::Timeout { cut_off, .. } = error else { panic!("{error:?}") };
    assert!(cut_off.as_ref().is_none_or(|cut_off| cut_off.lasted > Duration::ZERO), "{cut_off:?}");
    let (text, limit) = (error.to_string(), humantime::format_duration(limit));
    let parts = text.split_once(&format!(" within {limit}: cut off for "));
    let without = parts.and_then(|(begin, rest)| Some(format!("{begin}: {}", rest.split_once(": ")?.1)));
    without.unwrap_or(text)
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_while_disconnected_gives_start_and_reason() {
    with_time_enough(Duration::from_secs(2), async |limit| {
        let server = Server::start();
        let refused = format!("{}: Connection refused (os error 111)", server.address());
        let [write, queue, behind] = timeouts_while_disconnected(&server, limit).await;
        let held = format!("not granted: {refused}; before that, held by WRITE ");
        let is_expected = write == format!("not done: {refused}")
            && queue == write
            && behind.starts_with(&held)
            && behind.ends_with("; 1 ahead");
        if is_expected { Ok(()) } else { Err([write, queue, behind]) }
    })
    .await;
}

/// Returns the timeout errors of three calls that are pending or start after the server is gone: a new acquisition, a read of the
/// queue, and an acquisition that waits since before.
async fn timeouts_while_disconnected(server: &Server, limit: Duration) -> [String; 3] {
    let (zk, other) = (connect(&server.address()).await, connect(&server.address()).await);
    let (free, taken) = (lock_at(&zk, "/reasons/free"), lock_at(&zk, "/reasons/taken"));
    let _held = lock_at(&other, "/reasons/taken").write().await.unwrap();
    let connected = soon("the timeout", taken.write().timeout(Duration::from_millis(100))).await.unwrap_err();
    assert!(matches!(connected, Error::Timeout { cut_off: None, .. }), "{connected:?}");
    let behind = tokio::spawn(taken.write().timeout(limit).into_future());
    // On a busy machine, the waiter may time out before its node is seen.
    eventually("the waiter waits", || async { behind.is_finished() || line(&taken).await == "W+ W-" }).await;

    server.kill();
    eventually("the loss is noticed", || async { !zk.state().is_connected() }).await;
    let slowly = SOON + limit;
    let write = within(slowly, "the timeout", free.write().timeout(limit)).await.unwrap_err();
    let queue = within(slowly, "the timeout", free.queue().timeout(limit)).await.unwrap_err();
    let behind = within(slowly, "the timeout", behind).await.unwrap().unwrap_err();
    [write, queue, behind].map(|error| cut_off(&error, limit))
}

/// The library makes the path at the end of a connect string, so a missing path does not prevent a session.
#[support::judged]
async fn a_missing_path_is_made_and_is_no_reason() {
    let zk = connect(&format!("{}/reasons/no/such/path", shared_server().address())).await;
    assert!(zk.state().is_connected());
}
