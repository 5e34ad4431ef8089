//! What a run costs on the wire, counted in round trips.

use super::*;
use support::wire::Op;

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_run_takes_five_round_trips() {
    let path = "/zklock/trips";
    assert_eq!(run(&[path, "true"]).await.code, Some(0), "the directory is there now");
    for (option, node) in [("-x", "WRITE"), ("-s", "READ")] {
        let proxy = Proxy::start(shared_server().address());
        // No answer to the first of two that go out together comes before the second is there.
        let leaving = if node == "WRITE" { Op::Multi } else { Op::Delete };
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
        // To connect is one, the handshake the second, the client's ping behind it the third, to queue up the fourth, to
        // leave the fifth.
        assert_eq!((proxy.connections(), proxy.count(Op::Ping)), (1, 1), "{option} {:?}", proxy.requests());
        // On a busy machine the command takes long enough for the holder to watch its node meanwhile: nobody waits for that.
        let waited_for = |op: &Op| *op != Op::GetData;
        let sent: Vec<Op> = proxy.requests().into_iter().map(|(op, _)| op).filter(waited_for).collect();
        assert_eq!(sent, [Op::Create2, Op::GetChildren2, leaving, Op::CloseSession], "{node}");
    }
}
