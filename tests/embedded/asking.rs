//! `RwLock::ask` on the embedded ensemble. An operator asks processes to give up the nodes that they keep between uses of a lock.

use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::polled::*;
use tokio_test::{assert_pending, assert_ready_ok};
use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::queue::Progress;
use zk_rwlock::{Dialect, Error, Memory, RwLock};

const DIRECTORY: &str = "/lock";

fn keeping<C: Coordinator + Clone>(client: &C) -> RwLock {
    RwLock::builder(client, DIRECTORY).host("web-1").keep(Duration::from_secs(60)).build().expect("valid")
}

fn plain<C: Coordinator + Clone>(client: &C) -> RwLock {
    RwLock::new(client, DIRECTORY).expect("valid")
}

/// Returns the data version of the lock's directory. Each request to give up kept nodes (an ask) raises that version by
/// one.
fn version(zk: &Memory) -> i32 {
    let guard = now(plain(&zk.connect()).try_read()).expect("shared");
    now(guard.read_node(DIRECTORY)).expect("held").expect("the node exists").version
}

#[test]
fn idle_nodes_of_every_process_are_given_up_at_one_ask() {
    let zk = Memory::new();
    let clients = [(); 5].map(|()| zk.connect());
    let locks = clients.each_ref().map(keeping);
    for lock in &locks {
        drop(read(lock));
    }
    assert_eq!((zk.children(DIRECTORY).len(), version(&zk)), (5, 0));
    let before = zk.requests();
    now(plain(&zk).ask()).expect("allowed");
    assert_eq!(zk.requests() - before, 3 + 5, "expected a sync, a read, an ask, and the removals");
    assert_eq!((zk.children(DIRECTORY).len(), version(&zk)), (0, 1));
    assert_eq!(zk.watches(), 0);
}

#[test]
fn a_node_in_use_is_given_up_after_its_use() {
    let zk = Memory::new();
    let (kept, other) = (keeping(&zk), plain(&zk.connect()));
    let guard = write(&kept);
    now(other.ask()).expect("allowed");
    assert!(guard.is_held() && now(other.try_read()).is_err());
    let mut late = reading(&kept);
    assert_pending!(late.poll(), "a use joined a node that is asked for");
    drop(guard);
    assert!(assert_ready_ok!(late.poll()).is_held());
}

#[test]
fn a_handle_asks_for_the_nodes_of_its_own_process_too() {
    let zk = Memory::new();
    let kept = keeping(&zk);
    drop(read(&kept));
    now(kept.ask()).expect("allowed");
    assert_eq!(zk.children(DIRECTORY), Vec::<String>::new());
}

#[test]
fn asking_changes_no_data_and_no_plain_holder() {
    let zk = Memory::new();
    let lock = plain(&zk);
    let guard = write(&lock);
    now(guard.transaction().set(DIRECTORY, "what an application keeps there").commit()).expect("held");
    now(lock.ask()).expect("allowed");
    let node = now(guard.read_node(DIRECTORY)).expect("held").expect("the node exists");
    assert_eq!((&node.data[..], node.version), (&b"what an application keeps there"[..], 2));
    assert!(guard.is_held());
}

#[test]
fn asking_for_a_missing_lock_makes_no_directory() {
    let zk = Memory::new();
    now(plain(&zk).ask()).expect("no contender keeps a node");
    assert_eq!(zk.children("/"), Vec::<String>::new());
}

#[test]
fn asking_in_another_dialect_is_refused_unsent() {
    let zk = Memory::new();
    for dialect in [Dialect::Curator, Dialect::CuratorMutex, Dialect::Kazoo] {
        let lock = RwLock::builder(&zk, DIRECTORY).dialect(dialect).build().expect("valid");
        let before = zk.requests();
        let error = now(lock.ask()).expect_err("no node is kept there");
        assert_eq!(
            (error.to_string(), zk.requests() - before),
            (format!("invalid input: to ask in the dialect {dialect}, in which no node is kept"), 0)
        );
    }
}

#[test]
fn a_client_on_a_lagging_server_asks_for_unseen_nodes() {
    let zk = Memory::new();
    let (kept, other) = (keeping(&zk), zk.connect());
    drop(write(&plain(&other)));
    drop((read(&kept), read(&kept)));
    other.faults().lag();
    // From now on, the server of `other` shows no change: neither the next request to give up kept nodes, nor the node
    // that `kept` makes afterwards.
    now(plain(&zk).ask()).expect("allowed");
    drop(read(&kept));
    assert_eq!(zk.children(DIRECTORY).len(), 1);
    now(plain(&other).ask()).expect("allowed");
    assert_eq!(zk.children(DIRECTORY), Vec::<String>::new());
}

#[test]
fn an_ask_whose_answer_is_lost_is_sent_again() {
    let zk = Memory::new();
    let (kept, other) = (keeping(&zk), zk.connect());
    for lose in [|zk: &Memory| zk.faults().lose_next_reply(), |zk: &Memory| zk.faults().lose_next_request()] {
        drop((read(&kept), read(&kept)));
        lose(&other);
        now(plain(&other).ask()).expect("allowed");
        assert_eq!(zk.children(DIRECTORY), Vec::<String>::new());
    }
}

// Kept nodes in the texts that users read.

/// Returns the text without this process's id and without the ages of contenders ("queued 3s ago").
fn words(text: impl Display) -> String {
    let text = text.to_string().replace(&format!(" pid {}", std::process::id()), "");
    let mut parts = text.split(" queued ");
    let first = parts.next().unwrap_or_default().to_owned();
    first + &parts.map(|part| part.split_once(" ago").expect("an age").1).collect::<String>()
}

#[tokio::test(start_paused = true)]
async fn texts_mark_a_kept_lock_as_kept() {
    let zk = Memory::new();
    let (kept, other) = (keeping(&zk), plain(&zk.connect()));
    let _used = kept.read().label("reload").await.expect("free");
    let second = Duration::from_secs(1);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let waits_in_vain = || {
        let hears = Arc::clone(&heard);
        let hear = move |progress: &Progress| hears.lock().expect("no panic").push(words(progress));
        let wait = other.write().timeout(second).on_wait(hear);
        async { words(wait.await.unwrap_err()) }
    };
    let queue = other.queue().await.expect("readable");
    assert_eq!(words(&queue), "/lock:\n  READ web-1 \"reload\", keeps");
    assert_eq!(words(other.try_write().await.unwrap_err()), "would block: kept by READ web-1 \"reload\"; 1 ahead");
    assert_eq!(waits_in_vain().await, "not granted within 1s: kept by READ web-1 \"reload\"; 1 ahead");
    assert_eq!(*heard.lock().expect("no panic"), ["place 2 of 2: kept by READ web-1 \"reload\"; 1 ahead"]);

    let _held = RwLock::builder(&zk, DIRECTORY).host("web-2").build().expect("valid").read().await.expect("shared");
    let both = "held by READ web-2, kept by READ web-1 \"reload\"; 2 ahead";
    assert_eq!(waits_in_vain().await, format!("not granted within 1s: {both}"));
    assert_eq!(words(other.try_write().await.unwrap_err()), format!("would block: {both}"));
}

#[tokio::test(start_paused = true)]
async fn an_ask_that_is_cut_off_ends_in_time() {
    let zk = Memory::new();
    let lock = plain(&zk);
    drop(write(&lock));
    zk.faults().cut();
    let error = lock.ask().timeout(Duration::from_secs(1)).await.expect_err("the ask gets no reply");
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
}
