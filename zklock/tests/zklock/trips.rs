//! Counts the round trips of one run of `zklock`.

use super::*;
use support::wire::Op;

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_run_takes_five_round_trips() {
    let path = "/zklock/trips";
    assert_eq!(run(&[path, "true"]).await.code, Some(0), "the first run must create the directory");
    for (option, node) in [("-x", "WRITE"), ("-s", "READ")] {
        let leaving = if node == "WRITE" { Op::Multi } else { Op::Delete };
        let mut proxy = run_once(option, path, leaving).await;
        // On a busy machine a handshake can take so long that zklock gives up the attempt to connect, and makes another.
        for _ in 0..3 {
            if proxy.connections() > 1 {
                proxy = run_once(option, path, leaving).await;
            }
        }
        // The round trips are: the TCP connection, the handshake, the client's ping, the create, and the delete.
        assert_eq!((proxy.connections(), proxy.count(Op::Ping)), (1, 1), "{option} {:?}", proxy.requests());
        // On a busy machine the command runs so long that the holder begins to watch its node, and later removes the
        // watch. The run does not wait for the replies to these requests.
        let waited_for = |op: &Op| !matches!(op, Op::GetData | Op::RemoveWatches);
        let sent: Vec<Op> = proxy.requests().into_iter().map(|(op, _)| op).filter(waited_for).collect();
        assert_eq!(sent, [Op::Create2, Op::GetChildren2, leaving, Op::CloseSession], "{node}");
    }
}

/// Runs `true` under the lock, through a proxy of its own, which is returned. zklock sends the create and the listing
/// together, and later the delete and the close together. The proxy holds back the reply to the first request of a pair
/// until the second request has arrived. So the run can end only if zklock does not wait in between.
async fn run_once(option: &str, path: &str, leaving: Op) -> Proxy {
    let proxy = Proxy::start(shared_server().address());
    let (created, left) = (proxy.hold_reply(Op::Create2), proxy.hold_reply(leaving));
    let running = Running::start(zklock_on(&proxy.address(), &[option, path, "true"]));
    created.arrives().await;
    eventually("the queue is listed", || async { proxy.count(Op::GetChildren2) == 1 }).await;
    created.release();
    left.arrives().await;
    eventually("the session is asked to end", || async { proxy.count(Op::CloseSession) == 1 }).await;
    left.release();
    let run = running.ends().await;
    assert_eq!((run.code, &run.stderr[..]), (Some(0), ""));
    proxy
}
