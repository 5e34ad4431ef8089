//! Real runs, checked by `support::replay` against their server's transaction log. One scripted run, the scene,
//! contains every step of the protocol. Each other test changes the scene's trace in one way, and the check must refuse
//! the changed trace.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use support::history::{History, Hold};
use support::replay::{MILLISECOND, OF_THE_MODEL, OTHERS, Run, judge};
use support::rounds::{self, How};
use support::scene::*;
use support::server::Server;
use support::trace::{self, Event, What};
use support::txn_log::{Op as Write, Txn};
use support::wire::{Op, Proxy};
use zk_rwlock::{Mode, RwLock, Semaphore, ZooKeeper};

/// Checks the run of a swarm. Each of `steps` must occur in the run. A failure prints `replay`, the command that
/// repeats the swarm.
pub(super) fn replayed(run: &Run, steps: &[&str], replay: &str) {
    let verdict = judge(run);
    println!("{} transactions and {} events replayed: {:?}", run.log.len(), run.events.len(), verdict.seen);
    let faults = &verdict.faults;
    assert!(
        faults.is_empty(),
        "{} faults:\n{}\nreplay: {replay}",
        faults.len(),
        faults[..faults.len().min(10)].join("\n")
    );
    let missing: Vec<_> = steps.iter().filter(|step| !verdict.seen.contains_key(**step)).collect();
    assert!(missing.is_empty(), "no {missing:?} in {:?}: {replay}", verdict.seen);
}

// -------------------------------------------------------------------------------------------------- The scripted scene

const PATH: &str = "/traced/lock";
const LIMIT: &str = "/traced/limit";
/// The session timeout of a client whose session must end soon after the client is cut off.
const SHORT: Duration = Duration::from_secs(4);

struct Scene {
    server: Server,
    history: History,
    operator: ZooKeeper,
    locks: [RwLock; 2],
}

impl Scene {
    async fn start() -> Scene {
        trace::record(&["/traced/"]);
        let server = tokio::task::spawn_blocking(Server::start).await.expect("the server starts");
        let operator = connect(&server.address()).await;
        let locks = [connect(&server.address()).await, connect(&server.address()).await].map(|zk| lock_at(&zk, PATH));
        Scene { server, history: History::start(), operator, locks }
    }

    /// Plays a commit by a holder, a hand-off to a writer that then downgrades, and a waiter that gives up.
    async fn wait(&self) {
        let [one, other] = &self.locks;
        let first = self.history.granted(one.write().await.expect("free"), "one");
        let second = writer(other);
        line_becomes(one, "W+ W-").await;
        first.transaction().create("/traced-value", "1").commit().await.expect("held");
        first.leave().release().await.expect("held");
        let second = self.history.granted(granted(second).await, "other");
        let third = reader(one);
        line_becomes(one, "W+ R-").await;
        let second = second.changed(async |guard| guard.downgrade().await).await.expect("held");
        let third = self.history.granted(granted(third).await, "one");
        third.leave().release().await.expect("held");
        let gives_up = writer(one);
        line_becomes(one, "R+ W-").await;
        gives_up.abort();
        line_becomes(one, "R+").await;
        second.leave().release().await.expect("held");
    }

    /// Plays a kept node: a node that its process keeps between uses. It is used again, given up because a contender or
    /// an operator asks for it, and given up after its idle time.
    async fn keep(&self) {
        let zk = connect(&self.server.address()).await;
        let keep = |idle| RwLock::builder(&zk, PATH).keep(idle).build().expect("valid");
        let (lock, by_operator) = (keep(Duration::MAX), lock_at(&self.operator, PATH));
        for _ in 0..2 {
            self.history.granted(lock.read().await.expect("free"), "keeper").leave().release().await.expect("held");
        }
        let guard = soon("the grant", self.locks[0].write()).await.expect("asked for");
        guard.release().await.expect("held");
        lock.read().await.expect("free").release().await.expect("held");
        by_operator.ask().await.expect("may be asked for");
        becomes_empty(&self.operator, PATH).await;
        keep(Duration::from_millis(50)).read().await.expect("free").release().await.expect("held");
        becomes_empty(&self.operator, PATH).await;
    }

    /// Plays a lost reply and a lost request of a create, a session that ends while it holds the lock and a permit, and
    /// an operator who deletes a holder's node.
    async fn lose(&self) {
        let proxy = Proxy::start(self.server.address());
        let zk = connect(&proxy.address()).await;
        drop(proxy.drop_reply(Op::Create2, 1));
        lock_at(&zk, PATH).write().await.expect("free").release().await.expect("held");
        drop(proxy.drop_request(Op::Create2, 1));
        lock_at(&zk, PATH).write().await.expect("free").release().await.expect("held");

        let zk = connect_with(&proxy.address(), SHORT).await;
        let lost = lock_at(&zk, PATH).write().await.expect("free");
        let limit = Semaphore::new(&zk, LIMIT, 2).expect("valid");
        let permit = limit.acquire().await.expect("free");
        let lost = self.history.granted(lost, "lost");
        proxy.black_hole();
        let next = soon("the grant", self.locks[0].write()).await.expect("the session is over");
        let next = self.history.granted(next, "next");
        assert!(!lost.is_held() && !permit.is_held());
        drop((lost, permit, limit));
        proxy.heal();

        let token = next.fencing_token();
        self.history.operator_deleted(&next.node_path(), self.history.now());
        lock_at(&self.operator, PATH).evict(token).await.expect("may be deleted").expect("the node exists");
        eventually("the loss", async || !next.is_held()).await;
    }

    /// Plays a semaphore with two permits and two waiters.
    async fn limit(&self) {
        let zk = [connect(&self.server.address()).await, connect(&self.server.address()).await];
        let limits = zk.map(|zk| Semaphore::new(&zk, LIMIT, 2).expect("valid"));
        let both = limits[0].acquire_many(2).await.expect("free");
        let queue = format!("{LIMIT}/queue");
        let mut waiting = Vec::new();
        for (before, limit) in limits.iter().enumerate() {
            waiting.push(tokio::spawn(limit.acquire().into_future()));
            eventually("the acquisition waits", async || children(&self.operator, &queue).await.len() == before + 1)
                .await;
        }
        both.release().await.expect("held");
        for permit in waiting {
            granted(permit).await.release().await.expect("held");
        }
    }
}

async fn play() -> Run {
    let scene = Scene::start().await;
    scene.wait().await;
    scene.keep().await;
    scene.lose().await;
    scene.limit().await;
    becomes_empty(&scene.operator, PATH).await;
    becomes_empty(&scene.operator, &format!("{LIMIT}/permits")).await;
    let operators = scene.history.deletions().into_keys().chain([PATH.to_owned()]).collect();
    let mut run = Run::of(&["/traced/"], scene.server.transactions(), scene.history.traced(), operators);
    run.guarded = words(["/traced-value"]);
    run
}

/// Returns the trace of the scene. The scene is played once for all tests, and again only if the machine stood still.
fn scene() -> Run {
    static SCENE: OnceLock<Option<Run>> = OnceLock::new();
    let played = SCENE.get_or_init(|| {
        let played = Mutex::default();
        let play = async || *played.lock().unwrap_or_else(PoisonError::into_inner) = Some(play().await);
        let how = How { has_threads: true, worker_threads: None };
        // The panic is ignored here, because its message is printed already and the missing trace fails the test below.
        let _told = catch_unwind(AssertUnwindSafe(|| rounds::judge(how, play)));
        played.into_inner().unwrap_or_else(PoisonError::into_inner)
    });
    played.clone().expect("the scene is played")
}

#[test]
fn every_step_of_the_model_occurs_in_a_real_run() {
    let verdict = judge(&scene());
    assert_eq!(verdict.faults, Vec::<String>::new());
    let seen = |step: &&str| verdict.seen.get(*step).copied().unwrap_or(0);
    for step in OF_THE_MODEL.iter().chain(&OTHERS) {
        println!("{:6} {step}", seen(step));
    }
    let missing: Vec<_> = OF_THE_MODEL.iter().chain(&OTHERS).filter(|step| seen(step) == 0).collect();
    assert_eq!(missing, Vec::<&&str>::new(), "these steps do not occur");
}

// ---------------------------------------------------------------------------------------------------- Falsified traces

/// Changes the scene's trace by `falsify`, which returns words, and checks that one fault in the verdict contains all
/// these words.
#[track_caller]
fn assert_found(falsify: impl FnOnce(&mut Run) -> Vec<String>) {
    let mut run = scene();
    assert_eq!(judge(&run).faults, Vec::<String>::new());
    let words = falsify(&mut run);
    let faults = judge(&run).faults;
    let tells = |fault: &String| words.iter().all(|word| fault.contains(word));
    assert!(faults.iter().any(tells), "no message has all of {words:?}:\n{}", faults.join("\n"));
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn at_zxid(txn: &Txn) -> String {
    format!("{:#x}", txn.zxid)
}

/// Returns the path of the node that this transaction deletes in `directory`, or `None`.
fn left<'t>(txn: &'t Txn, directory: &str) -> Option<&'t str> {
    let deleted = txn.ops.iter().find_map(|op| match op {
        Write::Delete { path } => Some(path.as_str()),
        _ => None,
    });
    deleted.filter(|path| path.rsplit_once('/').is_some_and(|(parent, _)| parent == directory))
}

/// Returns whether the transaction is a writer's release, which signals a hand-off.
fn signals(txn: &Txn) -> bool {
    left(txn, PATH).is_some() && matches!(txn.ops[..], [Write::Set { .. }, Write::Delete { .. }])
}

/// Returns whether the transaction is a downgrade.
fn downgrades(txn: &Txn) -> bool {
    left(txn, PATH).is_some() && txn.ops.iter().any(|op| matches!(op, Write::Create { ephemeral: true, .. }))
}

/// Returns whether the transaction asks the owners of kept nodes to give them up.
fn asks(txn: &Txn) -> bool {
    matches!(&txn.ops[..], [Write::Set { path, .. }] if path == PATH)
}

/// Returns whether the transaction takes permits.
fn takes_permits(txn: &Txn) -> bool {
    left(txn, &format!("{LIMIT}/queue")).is_some()
}

/// Returns the index of the first event of a grant that followed a hand-off, and the transaction of the hand-off.
fn hand_off(run: &Run) -> (usize, Txn) {
    let is_it = |event: &Event| event.what == What::Granted && event.how == "hand-off" && event.path == PATH;
    let at = run.events.iter().position(is_it).expect("a contender was granted by a hand-off");
    let granted = &run.events[at];
    let by = run.log.iter().filter(|txn| signals(txn) && txn.time <= granted.at).max_by_key(|txn| txn.zxid);
    (at, by.expect("a release precedes the grant").clone())
}

/// Returns the transactions that created and deleted the node of the contender that gave up.
fn gave_up(run: &Run) -> (Txn, Txn) {
    let told: Vec<i64> = run.events.iter().map(|event| event.token).collect();
    let created = |path: &str| {
        let creates = |op: &Write| matches!(op, Write::Create { path: it, .. } if it == path);
        run.log.iter().find(|txn| txn.ops.iter().any(creates))
    };
    let mut left = run.log.iter().filter_map(|txn| Some((created(left(txn, PATH)?)?.clone(), txn.clone())));
    left.find(|(created, _)| !told.contains(&created.zxid)).expect("a waiter gave up")
}

fn find(run: &mut Run, wanted: impl Fn(&Txn) -> bool) -> &mut Txn {
    run.log.iter_mut().find(|txn| wanted(txn)).expect("the scene has such a transaction")
}

/// Swaps the operations and sessions of the first two transactions that `wanted` selects. Returns the earlier of the
/// two as it is after the swap.
fn swap(run: &mut Run, wanted: impl Fn(&Txn) -> bool) -> Txn {
    let mut found = run.log.iter().enumerate().filter(|(_, txn)| wanted(txn)).map(|(at, _)| at);
    let (one, other) = (found.next().expect("two transactions"), found.next().expect("two transactions"));
    let (first, second) = (run.log[one].clone(), run.log[other].clone());
    (run.log[one].ops, run.log[one].session) = (second.ops, second.session);
    (run.log[other].ops, run.log[other].session) = (first.ops, first.session);
    run.log[one].clone()
}

/// Inserts a transaction of the same session with these operations right after `after`.
fn then(run: &mut Run, after: &Txn, ops: Vec<Write>) {
    let at = run.log.iter().position(|txn| txn.zxid == after.zxid).expect("the transaction is in the log");
    run.log.insert(at + 1, Txn { ops, ..after.clone() });
}

#[test]
fn a_grant_before_its_turn_is_found() {
    assert_found(|run| {
        let (at, by) = hand_off(run);
        run.events[at].at = by.time - run.leeway - MILLISECOND;
        let token = format!("zxid {:#x}", run.events[at].token);
        words(["Grant", &token, &format!("only with the transaction {:#x}", by.zxid)])
    });
}

#[test]
fn a_grant_after_its_node_is_gone_is_found() {
    assert_found(|run| {
        let at = hand_off(run).0;
        let (token, end) = (run.events[at].token, format!("-READ-{:010}", run.events[at].sequence));
        let gone = find(run, |txn| left(txn, PATH).is_some_and(|path| path.ends_with(&end))).clone();
        run.events[at].at = gone.time + run.leeway + 2 * MILLISECOND;
        words(["Grant", &format!("zxid {token:#x}"), &format!("had left at zxid {}", at_zxid(&gone)), "Deleted"])
    });
}

#[test]
fn a_hand_off_without_a_predecessor_is_found() {
    assert_found(|run| {
        let is_it = |event: &&mut Event| event.what == What::Granted && event.how == "at once" && event.path == PATH;
        let granted = run.events.iter_mut().find(is_it).expect("the lock was free");
        "hand-off".clone_into(&mut granted.how);
        let token = format!("{:#x}", granted.token);
        words(["Grant", &format!("zxid {token}"), &format!("by a hand-off, and zxid {token} is none")])
    });
}

#[test]
fn a_hand_off_without_a_signal_is_found() {
    assert_found(|run| {
        let (at, by) = hand_off(run);
        find(run, |txn| txn.zxid == by.zxid).ops.remove(0);
        let token = format!("zxid {:#x}", run.events[at].token);
        words(["Grant", &token, &at_zxid(&by), "is none"])
    });
}

#[test]
fn a_grant_with_a_foreign_token_is_found() {
    assert_found(|run| {
        let (at, by) = hand_off(run);
        run.events[at].token = by.zxid;
        words(["Grant", &at_zxid(&by), "no such node"])
    });
}

#[test]
fn a_grant_to_a_waiter_that_gave_up_is_found() {
    assert_found(|run| {
        let (created, left_by) = gave_up(run);
        let path = left(&left_by, PATH).expect("the node was deleted");
        let at = hand_off(run).0;
        run.events[at].token = created.zxid;
        run.events[at].sequence = path[path.len() - 10..].parse().expect("a number");
        words(["Grant", &at_zxid(&created), path, "it was never its turn"])
    });
}

#[test]
fn a_signal_by_a_waiter_is_found() {
    assert_found(|run| {
        let zxid = gave_up(run).1.zxid;
        let txn = find(run, |txn| txn.zxid == zxid);
        let path = left(txn, PATH).expect("the node was deleted").to_owned();
        txn.ops.insert(0, Write::Set { path: path.clone(), data: Vec::new() });
        words(["Release", &path, &at_zxid(txn), "only a holder signals"])
    });
}

#[test]
fn a_signal_by_a_reader_is_found() {
    assert_found(|run| {
        let txn = find(run, |txn| left(txn, PATH).is_some_and(|path| path.contains("-READ-")));
        let path = left(txn, PATH).expect("the node was deleted").to_owned();
        txn.ops.insert(0, Write::Set { path: path.clone(), data: Vec::new() });
        words(["Release", &path, &at_zxid(txn), "only a writer signals"])
    });
}

#[test]
fn a_writer_that_releases_without_a_signal_is_found() {
    assert_found(|run| {
        let txn = find(run, signals);
        txn.ops.remove(0);
        words([
            "Release",
            left(txn, PATH).expect("the node was deleted"),
            &at_zxid(txn),
            "a writer that held must signal",
        ])
    });
}

#[test]
fn two_releases_in_the_wrong_order_are_found() {
    assert_found(|run| {
        // Transactions that remove a node of the lock and have two operations. [`swap`] takes the first two of them:
        // the first holder's release, which signals a hand-off, and the downgrade by the waiter behind that holder.
        let is_one = |txn: &Txn| left(txn, PATH).is_some() && txn.ops.len() == 2;
        let first = swap(run, is_one);
        let path = left(&first, PATH).expect("the node was deleted").to_owned();
        words(["Downgrade", &path, &at_zxid(&first), "only a holder"])
    });
}

#[test]
fn a_delete_by_another_session_is_found() {
    assert_found(|run| {
        let txn = find(run, signals);
        txn.session += 1;
        words(["Delete", left(txn, PATH).expect("the node was deleted"), &at_zxid(txn), "another's"])
    });
}

#[test]
fn a_write_to_a_node_that_stays_is_found() {
    assert_found(|run| {
        let txn = find(run, signals);
        let path = left(txn, PATH).expect("the node was deleted").to_owned();
        txn.ops.pop();
        words(["Set", &path, &at_zxid(txn), "nobody writes"])
    });
}

#[test]
fn an_ask_without_a_kept_node_ahead_is_found() {
    assert_found(|run| {
        run.operators.remove(PATH);
        // The log has two transactions that ask for a kept node: a contender's, and then the operator's.
        let asks: Vec<i64> = run.log.iter().filter(|txn| asks(txn)).map(|txn| txn.zxid).collect();
        assert_eq!(asks.len(), 2, "a contender and an operator asked");
        words(["Ask", PATH, &format!("{:#x}", asks[1]), "only a contender behind a kept node"])
    });
}

#[test]
fn a_second_ask_of_one_contender_is_found() {
    assert_found(|run| {
        run.operators.remove(PATH);
        let first = find(run, asks).clone();
        then(run, &first, first.ops.clone());
        words(["Ask", PATH, &at_zxid(&first), "each once"])
    });
}

#[test]
fn a_second_node_before_a_lost_create_reply_is_found() {
    second_node_is_found(|run, txn, owner| {
        let excuse = run.events.iter().find(|event| event.what == What::Missed && event.path == PATH);
        let at = txn.time + run.leeway + 10 * MILLISECOND;
        let excuse = Event { at, how: owner.to_owned(), ..excuse.expect("a request was lost").clone() };
        run.events.push(excuse);
    });
}

#[test]
fn a_second_node_of_one_contender_is_found() {
    second_node_is_found(|_, _, _| {});
}

/// Checks that a second node of one contender is found. `excuse` gets the run, the transaction that creates the second
/// node, and the name of the contender. It may add an event to the run.
fn second_node_is_found(excuse: impl FnOnce(&mut Run, &Txn, &str)) {
    assert_found(|run| {
        let (at, by) = hand_off(run);
        let (token, holder) = (run.events[at].token, left(&by, PATH).expect("the node was deleted").to_owned());
        let txn = find(run, |txn| txn.zxid == token);
        let Some(Write::Create { path, .. }) = txn.ops.first_mut() else { panic!("{txn:?}") };
        *path = format!("{}{}", &holder[..holder.len() - 10], &path[path.len() - 10..]);
        let (path, txn) = (path.clone(), txn.clone());
        let owner = holder.rsplit_once("-WRITE-").expect("a writer handed over").0;
        excuse(run, &txn, owner.strip_prefix(&format!("{PATH}/")).expect("its node"));
        words(["Enter", &path, &at_zxid(&txn), "has a node already"])
    });
}

#[test]
fn two_nodes_with_one_number_are_found() {
    assert_found(|run| {
        let (zxid, used) = {
            let mut creates = run.log.iter().flat_map(|txn| txn.ops.iter().map(move |op| (txn.zxid, op)));
            let mut next = || {
                creates.by_ref().find_map(|(zxid, op)| match op {
                    Write::Create { path, ephemeral: true, .. } => Some((zxid, path.clone())),
                    _ => None,
                })
            };
            let (first, second) = (next().expect("some"), next().expect("some"));
            (second.0, first.1[first.1.len() - 10..].to_owned())
        };
        let txn = find(run, |txn| txn.zxid == zxid);
        let Some(Write::Create { path, .. }) = txn.ops.first_mut() else { panic!("{txn:?}") };
        path.replace_range(path.len() - 10.., &used);
        let path = path.clone();
        words(["Enter", &path, &at_zxid(txn), "comes next"])
    });
}

#[test]
fn a_downgrade_that_changes_its_number_is_found() {
    assert_found(|run| {
        let txn = find(run, downgrades);
        let old = left(txn, PATH).expect("the node was deleted").to_owned();
        for op in &mut txn.ops {
            if let Write::Create { path, .. } = op {
                path.replace_range(path.len() - 1.., "9");
            }
        }
        words(["Downgrade", &old, &at_zxid(txn), "keeps its place"])
    });
}

#[test]
fn a_downgrade_of_a_reader_is_found() {
    assert_found(|run| {
        let txn = find(run, |txn| left(txn, PATH).is_some_and(|path| path.contains("-READ-")));
        let path = left(txn, PATH).expect("the node was deleted").to_owned();
        txn.ops.insert(0, Write::Create { path: path.clone(), data: Vec::new(), ephemeral: true });
        words(["Downgrade", &path, &at_zxid(txn), "only a writer becomes a reader"])
    });
}

#[test]
fn a_downgrade_on_another_session_is_found() {
    assert_found(|run| {
        let txn = find(run, downgrades);
        txn.session += 1;
        words(["Delete", left(txn, PATH).expect("the node was deleted"), &at_zxid(txn), "another's"])
    });
}

#[test]
fn a_commit_under_a_foreign_node_is_found() {
    assert_found(|run| {
        let txn = find(run, |txn| matches!(txn.ops[..], [Write::Check { .. }, Write::Create { .. }]));
        txn.session += 1;
        words(["Commit", PATH, &at_zxid(txn), "another session's"])
    });
}

#[test]
fn a_commit_of_a_waiter_is_found() {
    assert_found(|run| {
        let (created, left_by) = gave_up(run);
        let path = left(&left_by, PATH).expect("the node was deleted").to_owned();
        let sets = Write::Set { path: "/traced-value".to_owned(), data: b"2".to_vec() };
        then(run, &created, vec![Write::Check { path: path.clone() }, sets]);
        words(["Commit", &path, &at_zxid(&created), "only a holder commits"])
    });
}

#[test]
fn a_write_without_the_lock_is_found() {
    assert_found(|run| {
        let txn = find(run, |txn| matches!(txn.ops[..], [Write::Check { .. }, Write::Create { .. }]));
        txn.ops.remove(0);
        words(["Commit", "/traced-value", &at_zxid(txn), "only a holder writes it"])
    });
}

#[test]
fn a_write_without_the_lock_in_a_transaction_is_found() {
    assert_found(|run| {
        let txn = find(run, |txn| matches!(txn.ops[..], [Write::Check { .. }, Write::Create { .. }]));
        txn.ops[0] = Write::Set { path: "/traced/other".to_owned(), data: b"1".to_vec() };
        words(["Commit", "/traced-value", &at_zxid(txn), "only a holder writes it"])
    });
}

#[test]
fn a_write_under_another_lock_is_found() {
    assert_found(|run| {
        let txn = find(run, takes_permits).clone();
        let creates = |op: &Write| match op {
            Write::Create { path, .. } => Some(path.clone()),
            _ => None,
        };
        let path = txn.ops.iter().find_map(creates).expect("a permit");
        let sets = Write::Set { path: "/traced-value".to_owned(), data: b"2".to_vec() };
        then(run, &txn, vec![Write::Check { path }, sets]);
        words(["Commit", "/traced-value", &at_zxid(&txn), &format!("under {PATH}, and not under {LIMIT}/permits")])
    });
}

#[test]
fn more_permits_than_exist_are_found() {
    assert_found(|run| {
        let txn = find(run, takes_permits);
        for op in &mut txn.ops {
            if let Write::Create { path, .. } = op {
                path.replace_range(path.len() - 1.., "3");
            }
        }
        words(["TakePermit", LIMIT, &at_zxid(txn), "0 of 2 permits are taken, and it takes 3"])
    });
}

#[test]
fn a_permit_taken_without_giving_up_its_place_is_found() {
    assert_found(|run| {
        let txn = find(run, takes_permits);
        txn.ops.retain(|op| !matches!(op, Write::Delete { .. }));
        words(["TakePermit", LIMIT, &at_zxid(txn), "in exchange for a place"])
    });
}

#[test]
fn a_permit_taken_behind_the_head_is_found() {
    assert_found(|run| {
        // The last two contenders that took permits waited at the same time, so their transactions can be swapped.
        let taken: Vec<i64> = run.log.iter().filter(|txn| takes_permits(txn)).map(|txn| txn.zxid).collect();
        let last = taken[taken.len() - 2..].to_vec();
        let first = swap(run, |txn| last.contains(&txn.zxid));
        words(["TakePermit", LIMIT, &at_zxid(&first), "only the head"])
    });
}

/// Returns the hold with this host and mode.
fn hold<'r>(run: &'r mut Run, host: &str, mode: Mode) -> &'r mut Hold {
    run.holds.iter_mut().find(|hold| hold.host == host && hold.mode == mode).expect("the contender held")
}

/// Returns the zxid at which the session of the node with this token ended.
fn session_end(run: &mut Run, token: i64) -> String {
    let session = find(run, |txn| txn.zxid == token).session;
    at_zxid(find(run, |txn| txn.session == session && txn.ops == [Write::End]))
}

/// Returns the event that ended the hold with this token.
fn released(run: &mut Run, token: i64) -> &mut Event {
    let is_it = |event: &&mut Event| event.what == What::Released && event.token == token;
    run.events.iter_mut().find(is_it).expect("the hold was released")
}

#[test]
fn a_loss_without_an_event_is_found() {
    assert_found(|run| {
        let Hold { node, token, .. } = hold(run, "lost", Mode::Write).clone();
        run.events.retain(|event| event.what != What::Lost || event.path != node);
        released(run, token).at += SHORT;
        let ended = session_end(run, token);
        words(["Hold", &node, "not notified of a loss", &format!("had left at zxid {ended}"), "Expired"])
    });
}

#[test]
fn a_loss_that_only_the_end_of_the_hold_reports_is_found() {
    assert_found(|run| {
        let Hold { node, token, .. } = hold(run, "lost", Mode::Write).clone();
        released(run, token).at += 10 * SHORT;
        let until = released(run, token).at;
        let is_it = |event: &&mut Event| event.what == What::Lost && event.path == node;
        run.events.iter_mut().filter(is_it).for_each(|event| event.at = until + MILLISECOND);
        words(["Hold", &node, "not notified of a loss", "Expired"])
    });
}

#[test]
fn a_hold_after_its_node_is_gone_is_found() {
    assert_found(|run| {
        let Hold { node, token, .. } = hold(run, "one", Mode::Write).clone();
        let gone = find(run, |txn| left(txn, PATH) == Some(&node)).clone();
        released(run, token).at = gone.time + run.leeway + 2 * MILLISECOND;
        words(["Hold", &node, "not notified of a loss", &format!("had left at zxid {}", at_zxid(&gone)), "Signalled"])
    });
}

/// The initial value of a shared value is written on a thread of the library, and its log thread tells the subscriber of
/// the grant and the release, when it gets to run.
#[test]
fn a_hold_that_the_log_thread_reports_late_is_no_fault() {
    let mut run = scene();
    let Hold { token, .. } = *hold(&mut run, "one", Mode::Write);
    for event in run.events.iter_mut().filter(|event| event.token == token) {
        (event.at, event.is_delayed) = (event.at + SHORT, true);
    }
    assert_eq!(judge(&run).faults, Vec::<String>::new());
}

#[test]
fn a_hold_before_its_turn_is_found() {
    assert_found(|run| {
        let (at, by) = hand_off(run);
        let (token, from) = (run.events[at].token, by.time - run.leeway - MILLISECOND);
        let early = run.holds.iter_mut().find(|hold| hold.token == token).expect("the contender held");
        early.from = from;
        let node = early.node.clone();
        words(["Hold", &node, &format!("it began before zxid {}", at_zxid(&by))])
    });
}

#[test]
fn a_hold_without_a_node_is_found() {
    assert_found(|run| {
        let hold = hold(run, "one", Mode::Write);
        hold.node.push('9');
        words(["Hold", &hold.node, &format!("token {:#x}", hold.token), "no transaction has created its node"])
    });
}

#[test]
fn a_guard_that_says_held_after_its_loss_is_found() {
    assert_found(|run| {
        let end = hold(run, "next", Mode::Write).from;
        let lost = hold(run, "lost", Mode::Write);
        assert!(lost.lost);
        (lost.until, lost.lost) = (end + Duration::from_secs(1), false);
        let (node, token) = (lost.node.clone(), lost.token);
        let ended = session_end(run, token);
        words(["Hold", &node, &format!("had left at zxid {ended}, Expired")])
    });
}

#[test]
fn holds_that_overlap_are_found() {
    assert_found(|run| {
        let next = hold(run, "other", Mode::Write).clone();
        let first = hold(run, "one", Mode::Write);
        first.until = next.from + Duration::from_millis(1);
        words(["two holders at", &first.node, &next.node, &format!("{:#x}", next.token)])
    });
}

#[test]
fn a_token_that_falls_is_found() {
    assert_found(|run| {
        let other = hold(run, "other", Mode::Write).token;
        hold(run, "one", Mode::Write).token = other + 1;
        words(["the fencing token fell", &format!("{:#x}", other + 1), &format!("{other:#x}")])
    });
}

#[test]
fn a_wait_without_an_end_is_found() {
    assert_found(|run| {
        let (at, by) = hand_off(run);
        let sequence = run.events[at].sequence;
        let is_it = |event: &Event| event.path == PATH && event.sequence == sequence && event.mode == "WRITE";
        let who = run
            .events
            .iter()
            .find(|event| event.what == What::Created && is_it(event))
            .expect("the contender waited")
            .who;
        run.events.retain(|event| event.who != who || event.what != What::Ended);
        let last = run.log.last().map_or(by.zxid, |txn| txn.zxid);
        let number = format!("number {sequence}");
        words(["Wait", PATH, &number, "of session", "created at zxid", &format!("{last:#x}"), "every wait ends"])
    });
}
