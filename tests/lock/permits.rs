//! The semaphore on a real server: its cost, frame by frame, and faults of the network, of operators and of processes.

use std::future::IntoFuture;
use std::thread;
use std::time::Duration;

use support::process::{Process, role, say};
use support::scene::*;
use support::server::{Server, shared_server};
use support::wire::{Close, Frames, Op, Rule};
use tokio::task::JoinHandle;
use zk_rwlock::coordinator::{Failure, Operation};
use zk_rwlock::security::{Acl, Permissions};
use zk_rwlock::semaphore::Permit;
use zk_rwlock::{Error, Loss, Semaphore, ZooKeeper};

use crate::wire::{Tapped, ops};

const SHORT: Duration = Duration::from_secs(2);

fn open(zk: &ZooKeeper, path: &str, permits: u32) -> Semaphore {
    Semaphore::new(zk, path, permits).expect("valid")
}

fn acquiring(semaphore: &Semaphore) -> JoinHandle<Result<Permit, Error>> {
    tokio::spawn(semaphore.acquire().into_future())
}

async fn free(semaphore: &Semaphore) -> Permit {
    soon("a free permit", semaphore.acquire()).await.expect("free")
}

/// Returns a semaphore whose directories exist and whose handle has read the number of permits.
async fn used(zk: &ZooKeeper, path: &str, permits: u32) -> Semaphore {
    let semaphore = open(zk, path, permits);
    free(&semaphore).await.release().await.unwrap();
    semaphore
}

async fn nothing_is_left(zk: &ZooKeeper, path: &str) {
    for part in ["queue", "permits"] {
        becomes_empty(zk, &format!("{path}/{part}")).await;
    }
}

/// Waits until the server has this many watches, including those on children.
async fn all_watches(server: &Server, count: usize) {
    let watches = || server.counter("zk_watch_count");
    eventually(&format!("{count} watches"), || async { watches() == count as u64 }).await;
}

/// Removes the watch on the holder's own node from the requests. A holder sets that watch only 5 ms after the grant.
fn without_own_watch(ops: Vec<Op>) -> Vec<Op> {
    let mut rest = ops;
    if rest.last() == Some(&Op::RemoveWatches) {
        rest.pop();
    }
    rest
}

// --------------------------------------------------------------------------------------------------------------- Costs

#[support::judged]
async fn a_free_permit_costs_two_round_trips() {
    let tapped = Tapped::new(shared_server()).await;
    let semaphore = used(&tapped.zk, "/permits/round-trips", 3).await;
    let mut all = Vec::new();
    for _ in 0..20 {
        tapped.proxy.reset();
        // The first round trip: the client sends all of these requests before any of them is answered.
        let answer = tapped.proxy.hold_reply(Op::Create2);
        let acquisition = acquiring(&semaphore);
        soon("the answer to the create", answer.arrives()).await;
        eventually("all requests", || async { tapped.proxy.count(Op::GetData) == 1 }).await;
        let first = ops(&tapped.proxy);
        assert_eq!(first, [Op::Create2, Op::GetChildren2, Op::GetChildren2, Op::GetData]);
        // The second round trip: the transaction, and a read of the new permit just after it.
        let taken = tapped.proxy.hold_reply(Op::Multi);
        answer.release();
        soon("the answer to the transaction", taken.arrives()).await;
        eventually("all requests", || async { tapped.proxy.count(Op::GetData) >= 2 }).await;
        assert!(!acquisition.is_finished());
        taken.release();
        let permit = granted(acquisition).await;
        let held = ops(&tapped.proxy);
        permit.release().await.unwrap();
        all.push((held, ops(&tapped.proxy)));
    }
    all.sort_by_key(|(_, whole)| whole.len());
    let (held, whole) = all.swap_remove(0);
    assert_eq!(held, [Op::Create2, Op::GetChildren2, Op::GetChildren2, Op::GetData, Op::Multi, Op::GetData]);
    assert_eq!(without_own_watch(whole)[6..], [Op::Delete]);
}

#[support::judged]
async fn a_permit_is_taken_with_its_place_in_one_transaction() {
    let tapped = Tapped::new(shared_server()).await;
    let path = "/permits/one-transaction";
    let semaphore = used(&tapped.zk, path, 3).await;
    tapped.proxy.reset();
    let permit = free(&semaphore).await;
    let transactions: Vec<_> = tapped.proxy.requests().into_iter().filter(|(op, _)| *op == Op::Multi).collect();
    let [(_, parts)] = &transactions[..] else { panic!("{transactions:?}") };
    let parts: Vec<_> = parts.split(", ").collect();
    let place = parts[0].strip_prefix("Check ").expect("the place in the queue is checked first");
    assert!(place.starts_with(&format!("{path}/queue/")), "{parts:?}");
    let expected = [
        format!("Check {place}"),
        format!("Check {path}"),
        format!("Create2 {}", permit.node_path()),
        format!("SetData {place}"),
        format!("Delete {place}"),
    ];
    assert_eq!(parts, expected);
    permit.release().await.unwrap();
}

/// A holder of all permits, and waiters behind it. Each waiter has a session of its own and has armed its watches.
struct Line {
    server: Server,
    from: Tapped,
    held: Vec<Permit>,
    waiting: Vec<(Tapped, JoinHandle<Result<Permit, Error>>)>,
}

impl Line {
    async fn of(waiters: usize, permits: u32) -> Line {
        let server = Server::start();
        let from = Tapped::new(&server).await;
        let semaphore = open(&from.zk, "/permits/line", permits);
        let mut held = Vec::new();
        for _ in 0..permits {
            held.push(free(&semaphore).await);
        }
        let mut waiting = Vec::new();
        for already in 1..=waiters {
            let tapped = Tapped::new(&server).await;
            let task = acquiring(&open(&tapped.zk, "/permits/line", permits));
            let standing = || async { children(&from.zk, "/permits/line/queue").await.len() == already };
            eventually("the waiter stands in line", standing).await;
            waiting.push((tapped, task));
        }
        // One watch for each holder's node, two for each waiter (its own node and its predecessor's), and one more for the head,
        // which has no predecessor and watches the list of permits and the number of permits.
        all_watches(&server, held.len() + 2 * waiters + 1).await;
        for (tapped, _) in &waiting {
            tapped.settle().await;
            tapped.proxy.reset();
        }
        from.settle().await;
        from.proxy.reset();
        Line { server, from, held, waiting }
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_returned_permit_wakes_one_of_forty() {
    let Line { server, from, mut held, mut waiting } = Line::of(40, 3).await;
    let (head, task) = waiting.remove(0);
    let taking = head.proxy.hold_request(Op::Multi);
    held.remove(0).release().await.unwrap();
    soon("the transaction", taking.arrives()).await;
    // The proxy holds the head's transaction, so the transaction has had no effect. Before the transaction, the head got one
    // event and listed the permits once, with a new watch.
    assert_eq!(head.proxy.notifications(), 1);
    // On a slow machine, a heartbeat may follow the listing and the transaction.
    assert!(ops(&head.proxy).starts_with(&[Op::GetChildren2, Op::Multi]), "{:?}", ops(&head.proxy));
    let notified = async |waiting: &[(Tapped, JoinHandle<_>)]| {
        let mut all = Vec::new();
        for (tapped, _) in waiting {
            tapped.settle().await;
            all.push(tapped.proxy.notifications());
        }
        all
    };
    assert_eq!(notified(&waiting).await, [0; 39]);
    taking.release();
    held.push(granted(task).await);
    // The head leaves the queue when it takes its permit, and the next waiter becomes the head. The new head lists the permits
    // and waits.
    all_watches(&server, held.len() + 2 * waiting.len() + 1).await;
    assert_eq!(notified(&waiting).await[..2], [1, 0]);
    assert_eq!(notified(&waiting).await.iter().sum::<u64>(), 1);
    let requests = without_settle(&waiting[0].0);
    // The requests of the new head: the list of permits with a watch, the predecessor's permit, the number of permits, and the
    // same number again with a watch.
    assert_eq!(requests, [Op::GetChildren2, Op::GetData, Op::GetData, Op::GetData]);
    assert!(waiting.iter().skip(1).all(|(tapped, _)| without_settle(tapped).is_empty()));
    assert!(waiting.iter().all(|(_, task)| !task.is_finished()));
    assert!(from.proxy.count(Op::GetChildren2) == 0 && held.iter().all(|permit| permit.is_held()));
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_with_a_departed_predecessor_lists_once() {
    let Line { server: _server, from: _from, mut held, mut waiting } = Line::of(2, 1).await;
    let ((_head, first), (next, second)) = (waiting.remove(0), waiting.remove(0));
    let listing = next.proxy.hold_request(Op::GetChildren2);
    held.remove(0).release().await.unwrap();
    let permit = granted(first).await;
    soon("the listing", listing.arrives()).await;
    permit.release().await.unwrap();
    listing.release();
    let permit = granted(second).await;
    let requests = next.proxy.requests();
    let parts = |(op, path): &(Op, String)| Some((*op, path.strip_prefix("/permits/line")?.to_owned()));
    let reads = requests.iter().filter(|(op, _)| *op != Op::Multi).filter_map(parts).collect::<Vec<_>>();
    let (permits, number, queue) = ("/permits".to_owned(), String::new(), "/queue".to_owned());
    let listing = [(Op::GetChildren2, permits), (Op::GetData, number)];
    assert!(reads.starts_with(&[&listing[..], &[(Op::GetChildren2, queue)], &listing[..]].concat()), "{reads:?}");
    permit.release().await.unwrap();
}

/// Returns the requests of the session, without those of [`Tapped::settle`].
fn without_settle(tapped: &Tapped) -> Vec<Op> {
    tapped.proxy.requests().into_iter().filter(|(_, path)| path != "Check /").map(|(op, _)| op).collect()
}

/// A hundred contenders of one session queue up. Each takes a permit and gives it back.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_contenders_of_a_session_leave_no_watch() {
    const CONTENDERS: usize = 100;
    let server = Server::start();
    let (from, to) = (Tapped::new(&server).await, Tapped::new(&server).await);
    let held = free(&open(&from.zk, "/permits/drain", 1)).await;
    let theirs = open(&to.zk, "/permits/drain", 1);
    let mut drain = tokio::task::JoinSet::new();
    for _ in 0..CONTENDERS {
        let semaphore = theirs.clone();
        drain.spawn(async move { semaphore.acquire().await.unwrap().release().await.unwrap() });
    }
    eventually("all stand in line", || async { children(&from.zk, "/permits/drain/queue").await.len() == CONTENDERS })
        .await;
    held.release().await.unwrap();
    soon("everyone had the permit", drain.join_all()).await;
    nothing_is_left(&from.zk, "/permits/drain").await;
    all_watches(&server, 0).await;
    assert_eq!(to.proxy.count(Op::Multi), CONTENDERS as u64);
}

// ------------------------------------------------------------------------------------------------------ Network faults

/// Each round cuts the transaction that takes the permit after one more byte. In the last round the whole frame gets through, so
/// the transaction takes effect and only its reply is lost.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_cut_at_any_byte_takes_one_permit() {
    const SESSIONS: usize = 4;
    let all: Vec<_> = (0..SESSIONS)
        .map(|first| {
            tokio::spawn(async move {
                let path = format!("/permits/cut-{first}");
                let operator = connect(&shared_server().address()).await;
                let here = used(&operator, &path, 1).await;
                let tapped = Tapped::new(shared_server()).await;
                let semaphore = used(&tapped.zk, &path, 1).await;
                // The bytes of one acquisition and release are an upper limit for the length of the cut frame.
                tapped.proxy.reset();
                free(&semaphore).await.release().await.unwrap();
                let longest = usize::try_from(tapped.proxy.bytes_to_server()).unwrap();
                for how in [Close::Fin, Close::Rst] {
                    for bytes in (first..longest).step_by(SESSIONS) {
                        tapped.proxy.reset();
                        let cut = tapped.proxy.apply(Rule::on(Frames::requests(Op::Multi)).close(bytes, how));
                        let permit = soon("the grant", semaphore.acquire()).await.unwrap();
                        assert!(cut.has_happened() && permit.is_held());
                        let names = children(&operator, &format!("{path}/permits")).await;
                        assert!(
                            names.len() == 1 && permit.node_path().ends_with(&names[0]),
                            "{how:?} {bytes}: {names:?}"
                        );
                        assert!(here.try_acquire().await.is_err_and(|error| error.is_would_block()));
                        let takings = tapped.proxy.requests();
                        let takings = takings.iter().filter(|(op, parts)| *op == Op::Multi && parts.contains("Create"));
                        let takings = takings.count();
                        permit.release().await.unwrap();
                        nothing_is_left(&operator, &path).await;
                        assert!(takings == 1 || takings == 2, "{takings} takings after {how:?} at {bytes} bytes");
                    }
                }
            })
        })
        .collect();
    for one in all {
        one.await.unwrap();
    }
}

#[support::judged]
async fn lost_replies_and_events_cost_no_permit() {
    let path = "/permits/lost-answers";
    let operator = connect(&shared_server().address()).await;
    let here = used(&operator, path, 1).await;
    let tapped = Tapped::new(shared_server()).await;
    let semaphore = used(&tapped.zk, path, 1).await;
    for op in [Op::Create2, Op::GetChildren2, Op::GetData, Op::Multi] {
        for how in [Close::Fin, Close::Rst] {
            for request in [false, true] {
                let frames = if request { Frames::requests(op) } else { Frames::replies(op) };
                let lost = tapped.proxy.apply(Rule::on(frames).close(0, how));
                let permit = soon("the grant", semaphore.acquire()).await.unwrap();
                assert!(lost.has_happened(), "{op:?}");
                assert!(here.try_acquire().await.is_err_and(|error| error.is_would_block()));
                permit.release().await.unwrap();
                nothing_is_left(&operator, path).await;
            }
        }
    }
    for op in [Op::GetChildren2, Op::GetData, Op::WatchEvent, Op::Multi] {
        let held = free(&here).await;
        let lost = match op {
            Op::WatchEvent => tapped.proxy.apply(Rule::on(Frames::events()).close(0, Close::Fin)),
            Op::Multi => tapped.proxy.drop_reply(Op::Multi, 1),
            op => tapped.proxy.drop_reply(op, 1),
        };
        let waits = acquiring(&semaphore);
        eventually("the contender is queued", || async {
            children(&operator, &format!("{path}/queue")).await.len() == 1
        })
        .await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        held.release().await.unwrap();
        let permit = granted(waits).await;
        assert!(lost.has_happened() && permit.is_held(), "{op:?}");
        assert_eq!(children(&operator, &format!("{path}/permits")).await.len(), 1);
        permit.release().await.unwrap();
        nothing_is_left(&operator, path).await;
    }
}

#[support::judged]
async fn an_acquisition_dropped_at_any_poll_leaves_nothing() {
    let path = "/permits/cancelled";
    let server = Server::start();
    let operator = connect(&server.address()).await;
    let here = used(&operator, path, 2).await;
    let tapped = Tapped::new(&server).await;
    let semaphore = used(&tapped.zk, path, 2).await;
    let mut dice = Seeded(7);
    for round in 0..300 {
        let held = if round % 2 == 0 { Some(free(&here).await) } else { None };
        let tasks: Vec<_> = (0..3).map(|_| acquiring(&semaphore)).collect();
        tokio::time::sleep(Duration::from_micros(dice.below(2_500))).await;
        drop(held);
        tokio::time::sleep(Duration::from_micros(dice.below(1_500))).await;
        tasks.iter().for_each(JoinHandle::abort);
        if round % 30 == 0 {
            tapped.proxy.disconnect();
        }
    }
    nothing_is_left(&operator, path).await;
    all_watches(&server, 0).await;
    assert_eq!(soon("free permits", here.acquire_many(2)).await.unwrap().count(), 2);
}

#[support::judged]
async fn a_holder_in_a_black_hole_loses_the_lock_in_time() {
    let path = "/permits/black-hole";
    let proxy = support::wire::Proxy::start(shared_server().address());
    let zk = connect_with(&proxy.address(), SHORT).await;
    let operator = connect(&shared_server().address()).await;
    let held = free(&open(&zk, path, 1)).await;
    let waits = acquiring(&open(&operator, path, 1));
    eventually("the contender is queued", || async { children(&operator, &format!("{path}/queue")).await.len() == 1 })
        .await;
    proxy.black_hole();
    let witness = thread::spawn(move || {
        while held.is_held() {
            thread::sleep(Duration::from_millis(1));
        }
        (std::time::Instant::now(), held.is_held(), held)
    });
    let next = granted(waits).await;
    let granted_at = std::time::Instant::now();
    let (lost_at, still, held) = witness.join().unwrap();
    assert!(!still && lost_at < granted_at && next.is_held());
    assert!(!held.is_held());
}

// -------------------------------------------------------------------------------------------------- Operators and ACLs

#[support::judged]
async fn deleted_nodes_of_a_semaphore_end_its_holders() {
    let path = "/permits/deleted";
    let operator = connect(&shared_server().address()).await;
    let theirs = connect(&shared_server().address()).await;
    let (a, b) = (open(&operator, path, 1), open(&theirs, path, 1));
    let held = free(&a).await;
    let (head, next) = (acquiring(&b), acquiring(&a));
    eventually("both wait", || async { children(&operator, &format!("{path}/queue")).await.len() == 2 }).await;
    let session = session(&operator).await;
    for part in ["queue", "permits"] {
        let directory = format!("{path}/{part}");
        for name in children(&operator, &directory).await {
            session.delete(&format!("{directory}/{name}")).await.unwrap();
        }
        let _reaped_or_not_empty = session.delete(&directory).await;
    }
    assert_eq!(soon("the loss", held.lost()).await, Loss::Removed);
    for task in [head, next] {
        assert!(matches!(refused(task).await, Error::Evicted(Loss::Removed)));
    }
    assert!(free(&b).await.is_held());
}

/// The contender may not write its own node in the queue. So it cannot notify its successor when it leaves, and the successor
/// finds the free permit without a notification.
#[support::judged]
async fn a_contender_denied_its_own_place_takes_permits() {
    let path = "/permits/unwritable";
    let operator = connect(&shared_server().address()).await;
    let here = used(&operator, path, 1).await;
    let permissions = Permissions::READ | Permissions::CREATE | Permissions::DELETE;
    let builder = ZooKeeper::builder().session_timeout(CALM).acl(Acl::nobody().allow("world", "anyone", permissions));
    let zk = builder.connect(&shared_server().address()).await.unwrap();
    let theirs = open(&zk, path, 1);
    for _ in 0..3 {
        let held = free(&theirs).await;
        let waits = acquiring(&here);
        eventually("the waiter waits", || async { children(&operator, &format!("{path}/queue")).await.len() == 1 })
            .await;
        held.release().await.unwrap();
        let held = granted(waits).await;
        let (head, next) = (acquiring(&theirs), acquiring(&here));
        eventually("both wait", || async { children(&operator, &format!("{path}/queue")).await.len() == 2 }).await;
        held.release().await.unwrap();
        let (one, two) =
            tokio::join!(async { granted(head).await.release().await }, async { granted(next).await.release().await });
        assert!(one.is_ok() && two.is_ok());
        nothing_is_left(&operator, path).await;
    }
}

#[support::judged]
async fn a_forbidden_semaphore_is_an_error() {
    let path = "/permits-forbidden";
    let owner = ZooKeeper::builder().session_timeout(CALM).digest("owner", "secret");
    let owner = owner.connect(&shared_server().address()).await.unwrap();
    let theirs = used(&owner, path, 2).await;
    let stranger = connect(&shared_server().address()).await;
    let error = soon("the refusal", open(&stranger, path, 2).acquire()).await.unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
    let error = soon("the refusal", open(&stranger, path, 2).set_permits(3)).await.unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
    nothing_is_left(&owner, path).await;
    assert!(free(&theirs).await.is_held());
}

// ----------------------------------------------------------------------------------------------------------- Processes

#[test]
fn the_child_process_of_other_tests() {
    let Some(role) = role() else { return };
    let mut words = role.split(' ');
    let mut word = || words.next().expect("a server and a path");
    let (server, path) = (word().to_owned(), word().to_owned());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let zk = runtime.block_on(connect_with(&server, SHORT));
    let _held = open(&zk, &path, 2).acquire().blocking().unwrap();
    say("held");
    loop {
        thread::park();
    }
}

#[support::judged]
async fn a_killed_process_frees_its_permit_at_its_timeout() {
    let path = "/permits/killed";
    let zk = connect(&shared_server().address()).await;
    let semaphore = used(&zk, path, 2).await;
    let role = format!("{} {path}", shared_server().address());
    let mut children: Vec<_> = (0..2).map(|_| Process::start(module_path!(), &role)).collect();
    for child in &mut children {
        assert_eq!(child.says(), "held");
    }
    assert!(semaphore.try_acquire().await.is_err_and(|error| error.is_would_block()));
    let waits = acquiring(&semaphore);
    children[0].signal("KILL");
    let held = granted(waits).await;
    assert!(
        semaphore.try_acquire().await.is_err_and(|error| error.is_would_block()),
        "a permit is free, although the other process still holds"
    );
    children[1].signal("KILL");
    let both = free(&semaphore).await;
    assert!(held.is_held() && both.is_held());
    assert_eq!(session(&zk).await.children(&format!("{path}/permits")).await.map(|names| names.len()), Ok(2));
    let check = [Operation::Check { path: held.node_path(), version: None }];
    assert!(session(&zk).await.transact(&check).await.is_ok());
    assert_eq!(session(&zk).await.data(&format!("{path}/permits/x")).await, Err(Failure::NoNode));
}

#[support::judged]
async fn a_semaphore_denied_by_its_server_is_an_error() {
    let path = "/permits/unseen";
    let Tapped { proxy, zk } = Tapped::new(shared_server()).await;
    let well = connect(&shared_server().address()).await;
    used(&well, path, 3).await;
    proxy.apply(Rule::on(Frames::replies(Op::GetData).about(path)).and_all_later().claim_error(-101));
    proxy.reset();
    let error =
        soon("an error", open(&zk, path, 3).set_permits(4)).await.expect_err("the server denies it").to_string();
    assert!(error.contains("and the leader do not agree"), "{error}");
    let requests = proxy.requests();
    let reads = requests.iter().filter(|(op, at)| *op == Op::GetData && at == path).count();
    // The only server is left three times, and asked again after each.
    assert!(reads <= 5, "{requests:?}");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_denied_by_its_server_does_not_stay() {
    const PATH: &str = "/permits/denied";
    const NO_NODE: i32 = -101;
    let Tapped { proxy, zk } = Tapped::new(shared_server()).await;
    let well = connect(&shared_server().address()).await;
    let others = used(&well, PATH, 3).await;
    let semaphore = open(&zk, PATH, 3);
    let replies = Frames::replies(Op::GetData).about("/denied/permits/");
    // The proxy falsifies only the first reply about the new permit, so the contender takes its permit nevertheless.
    proxy.apply(Rule::on(replies.clone()).claim_error(NO_NODE));
    let permit = free(&semaphore).await;
    assert!(permit.is_held());
    permit.release().await.unwrap();
    proxy.apply(Rule::on(replies).and_all_later().claim_error(NO_NODE));
    for _ in 0..3 {
        let error = soon("an error", semaphore.acquire()).await.expect_err("the server denies it");
        assert!(matches!(error, Error::Diverged { .. }), "{error}");
    }
    nothing_is_left(&well, PATH).await;
    soon("all three", others.acquire_many(3)).await.unwrap().release().await.unwrap();
}
