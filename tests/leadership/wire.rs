//! The cost of leadership on the wire, and faults of the network.

use std::time::Duration;

use zk_rwlock::leadership::{Leader, LeaderChanges};
use zk_rwlock::{Leadership, ZooKeeper};

use support::candidate::Candidate;
use support::safe;
use support::scene::{becomes_empty, connect, connect_with, eventually, lock_at, soon};
use support::server::{Server, shared_server};
use support::wire::{Close, Frames, Op, Proxy, Rule};

/// The session timeout of a leader that is cut off.
const SHORT: Duration = Duration::from_secs(2);

fn leadership(zk: &ZooKeeper, path: &str) -> Leadership {
    Leadership::builder(zk, path).pause(Duration::from_millis(10)).build().expect("valid")
}

async fn next(changes: &mut LeaderChanges) -> Option<Leader> {
    soon("the next leader", changes.next()).await.expect("open").expect("readable")
}

/// Returns the requests, without the watches of contenders on their own nodes.
fn requests(wire: &Proxy, own: &str) -> Vec<Op> {
    let sent = wire.requests().into_iter();
    sent.filter(|(op, path)| *op != Op::GetData || !path.contains(own)).map(|(op, _)| op).collect()
}

#[support::judged]
async fn an_observer_costs_four_requests_a_change() {
    const PATH: &str = "/leaders/observed";
    let server = shared_server();
    let (tapped, watched, waiting) =
        (Proxy::start(server.address()), Proxy::start(server.address()), Proxy::start(server.address()));
    let (observer, leads, waits) =
        (connect(&tapped.address()).await, connect(&watched.address()).await, connect(&waiting.address()).await);
    let mut a =
        Candidate::campaigns(Leadership::builder(&leads, PATH).lock(|lock| lock.host("host-a")).build().unwrap());
    let first = a.leads().await.number();
    tapped.reset();
    let mut changes = leadership(&observer, PATH).changes();
    assert_eq!(next(&mut changes).await.map(|leader| leader.term), Some(first));
    let asked = [Op::GetChildren2, Op::GetData, Op::GetData, Op::Multi];
    assert_eq!(requests(&tapped, "none"), asked, "the ensemble's leader was not asked");
    tapped.reset();
    assert_eq!(leadership(&observer, PATH).leader().await.unwrap().map(|leader| leader.term), Some(first));
    assert_eq!(
        requests(&tapped, "none"),
        [Op::GetChildren2, Op::GetData, Op::Multi],
        "the ensemble's leader was not asked"
    );

    // Candidates that join or leave the queue do not change the leader.
    tapped.reset();
    let mut b =
        Candidate::campaigns(Leadership::builder(&waits, PATH).lock(|lock| lock.host("host-b")).build().unwrap());
    let lock = lock_at(&leads, PATH);
    eventually("the waiter waits", || async { lock.queue().await.unwrap().members.len() == 2 }).await;
    for _ in 0..10 {
        let other = Candidate::campaigns(leadership(&leads, PATH));
        eventually("the waiter waits", || async { lock.queue().await.unwrap().members.len() == 3 }).await;
        soon("the stop", other.leadership.stop()).await;
    }
    assert!(tokio_test::task::spawn(changes.next()).poll().is_pending());
    assert_eq!((tapped.requests(), tapped.notifications()), (vec![], 0));

    // Twenty more observers watch the leader. The candidates must not send or receive more for them when the leader
    // changes.
    let mut crowd: Vec<_> = (0..20).map(|_| leadership(&observer, PATH).changes()).collect();
    for changes in &mut crowd {
        assert_eq!(next(changes).await.map(|leader| leader.term), Some(first));
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    [&tapped, &watched, &waiting].iter().for_each(|wire| wire.reset());
    soon("the stop", a.leadership.stop()).await;
    let second = b.leads().await.number();
    for changes in crowd.iter_mut().chain([&mut changes]) {
        assert_eq!(next(changes).await.map(|leader| leader.term), Some(second));
    }
    let asked = requests(&tapped, "none");
    assert_eq!((asked.len(), tapped.notifications()), (21 * 4, 1), "{asked:?}");
    // The leader that stops hands over in one transaction, and the next leader gets one notification.
    assert_eq!(requests(&watched, "host-a"), [Op::Multi]);
    assert_eq!(waiting.notifications(), 1);
    let woken = requests(&waiting, "none");
    assert!(
        woken.iter().all(|op| *op == Op::GetData) && woken.len() <= 2,
        "more than a check of the hand-off: {woken:?}"
    );
    soon("the stop", b.leadership.stop()).await;
}

#[support::judged]
async fn an_observer_survives_a_session_that_ends_at_once() {
    let (server, proxy) = (shared_server(), Proxy::start(shared_server().address()));
    let mut leads = Candidate::campaigns(leadership(&connect(&server.address()).await, "/leaders-of/sessions"));
    let term = leads.leads().await.number();
    let observer = connect(&format!("{}/leaders-of", proxy.address())).await;
    let mut changes = leadership(&observer, "/sessions").changes();
    assert_eq!(next(&mut changes).await.map(|leader| leader.term), Some(term));
    // The client sends an `exists` request to look up the chroot of its connect string. The proxy holds that request
    // back.
    let lookup = proxy.hold_request(Op::Exists);
    let ends = || {
        proxy.cut();
        server.end_session(&proxy.granted().expect("a session"));
        proxy.heal();
    };
    ends();
    let change = tokio::spawn(async move { next(&mut changes).await });
    soon("the next session", lookup.arrives()).await;
    ends();
    lookup.release();
    soon("the stop", leads.leadership.stop()).await;
    assert_eq!(change.await.expect("the observer goes on"), None);
}

#[support::judged]
async fn dropped_observers_leave_no_watch() {
    let server = Server::start();
    let (zk, other) = (connect(&server.address()).await, connect(&server.address()).await);
    let mut watchers: Vec<_> = ["/not/there", "/leaders/none", "/leaders/one"]
        .into_iter()
        .map(|path| leadership(&zk, path).changes())
        .collect();
    let one = lock_at(&other, "/leaders/one").write().await.unwrap();
    lock_at(&other, "/leaders/none").write().await.unwrap().release().await.unwrap();
    for changes in &mut watchers {
        next(changes).await;
    }
    // While the directory is missing, the observer has no watch. The observer sets a watch when it next waits for a
    // change.
    let waiting = tokio::time::timeout(Duration::from_millis(200), watchers[0].next()).await;
    assert!(waiting.is_err(), "{waiting:?}");
    // The server's counter includes watches on nodes and on children. The holder sets the watch on its own node shortly
    // after the grant, so the test waits for the sum.
    let watches = || async { server.counter("zk_watch_count") };
    eventually("all watch", || async { watches().await == 4 }).await;
    drop(watchers);
    one.release().await.unwrap();
    eventually("no watch is left", || async { watches().await == 0 }).await;
}

#[support::judged]
async fn a_leader_in_a_black_hole_says_no_before_the_next_leads() {
    const PATH: &str = "/leaders/black-hole";
    let (wire, there) = (Proxy::start(shared_server().address()), connect(&shared_server().address()).await);
    let here = connect_with(&wire.address(), SHORT).await;
    let mut a = Candidate::campaigns(leadership(&here, PATH));
    let term = a.leads().await;
    let mut b = Candidate::campaigns(leadership(&there, PATH));
    let lock = lock_at(&there, PATH);
    eventually("the waiter waits", || async { lock.queue().await.unwrap().waiters().count() == 1 }).await;
    wire.black_hole();
    let next = b.leads().await;
    safe!(!a.leadership.is_leader() && !term.is_leader(), "another candidate leads in {next:?}");
    assert_eq!(a.is_dropped().await, term.number());
    wire.heal();
    eventually("the candidate campaigns again", || async { lock.queue().await.unwrap().waiters().count() == 1 }).await;
    soon("the resignation", b.leadership.resign()).await;
    assert!(a.leads().await.number() > next.number());
    for it in [a, b] {
        soon("the stop", it.leadership.stop()).await;
    }
    becomes_empty(&there, PATH).await;
}

#[support::judged]
async fn a_candidate_with_lost_messages_leads_once() {
    let (wire, there) = (Proxy::start(shared_server().address()), connect(&shared_server().address()).await);
    let here = connect_with(&wire.address(), SHORT).await;
    let frames = [
        Frames::requests(Op::Create2),
        Frames::replies(Op::Create2),
        Frames::replies(Op::GetChildren2),
        Frames::requests(Op::Multi),
        Frames::replies(Op::Multi),
    ];
    for (number, frames) in frames.into_iter().enumerate() {
        for how in [Close::Fin, Close::Rst] {
            let path = format!("/leaders/lost-{number}-{how:?}");
            lock_at(&there, &path).write().await.unwrap().release().await.unwrap();
            let fault = wire.apply(Rule::on(frames.clone().about(&path)).close(0, how));
            let mut candidate = Candidate::campaigns(leadership(&here, &path));
            let term = candidate.leads().await;
            // The transaction of the resignation is a hand-off.
            soon("the resignation", candidate.leadership.resign()).await;
            soon("the fault", fault.happens()).await;
            assert!(candidate.is_dropped().await >= term.number());
            soon("the stop", candidate.leadership.stop()).await;
            becomes_empty(&there, &path).await;
        }
    }
}

#[support::judged]
async fn a_server_that_restarts_has_one_leader_again() {
    let server = Server::start();
    let (one, two) = (connect_with(&server.address(), SHORT).await, connect_with(&server.address(), SHORT).await);
    let (a, b) = (leadership(&one, "/leaders/crash"), leadership(&two, "/leaders/crash"));
    let candidates = [Candidate::campaigns(a.clone()), Candidate::campaigns(b.clone())];
    let lock = lock_at(&one, "/leaders/crash");
    let both_are_there = || async { lock.queue().await.is_ok_and(|queue| queue.members.len() == 2) };
    eventually("one candidate leads and the other waits", both_are_there).await;
    for _ in 0..2 {
        server.kill();
        // The wait is longer than a lease, which is shorter than the session timeout.
        tokio::time::sleep(SHORT + SHORT / 2).await;
        assert!(!a.is_leader() && !b.is_leader());
        server.start_again();
        eventually("a candidate leads", || async { a.is_leader() || b.is_leader() }).await;
        assert!(!(a.is_leader() && b.is_leader()));
        eventually("the other waits", both_are_there).await;
    }
    for candidate in candidates {
        soon("the stop", candidate.leadership.stop()).await;
    }
}

#[support::judged]
async fn a_resigned_candidate_leads_on_an_emptied_server() {
    let server = Server::start();
    let zk = connect_with(&server.address(), SHORT).await;
    let mut candidate = Candidate::campaigns(leadership(&zk, "/leaders/empty"));
    let first = candidate.leads().await.number();
    // These uses raise the server's zxid, and with it the later fencing tokens. The tokens of the emptied server stay
    // below them for a long time.
    let others = lock_at(&zk, "/leaders/others");
    for _ in 0..50 {
        others.write().await.expect("free").release().await.expect("held");
    }
    assert!(candidate.leadership.resign().await);
    assert_eq!(candidate.is_dropped().await, first);
    let resigned = candidate.leads().await.number();
    assert!(candidate.leadership.resign().await);
    assert_eq!(candidate.is_dropped().await, resigned);
    let last = candidate.leads().await;
    server.start_over();
    assert_eq!(candidate.is_dropped().await, last.number());
    let term = candidate.leads().await;
    assert!(term.number() < resigned, "{term:?}");
    // The leader's node stays in the queue and its work goes on. So another writer is not granted.
    let waiting = lock_at(&zk, "/leaders/empty").write().timeout(SHORT / 2).await;
    assert!(waiting.is_err_and(|error| error.is_timeout()) && term.is_leader() && candidate.events.is_empty());
    soon("the stop", candidate.leadership.stop()).await;
}
