//! The contract of `coordinator::Session`, clause by clause, on each backend.

// These functions are public, because a macro in `main.rs` calls them.
#![allow(unreachable_pub)]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use zk_rwlock::RwLock;
use zk_rwlock::coordinator::{Coordinator, Failure, Kind, Operation, Outcome, Reply, Session, Watch, WatchEvent};
use zk_rwlock::error::SessionEnd;

use support::harness::Harness;
use support::scene::{eventually, soon};

/// Two sessions, and a directory for this test alone.
struct Stage<C> {
    mine: C,
    _theirs: C,
    a: Arc<dyn Session>,
    b: Arc<dyn Session>,
    directory: String,
}

impl<C: Coordinator + Clone> Stage<C> {
    async fn set<H: Harness<C = C>>(h: &H) -> Stage<C> {
        let (mine, theirs) = (h.client().await, h.client().await);
        let (a, b) = (session(&mine).await, session(&theirs).await);
        let directory = h.directory();
        let parent = directory.rsplit_once('/').expect("absolute").0;
        for path in [parent, &directory] {
            match a.create(path, b"", Kind::Persistent).await {
                Ok(_) | Err(Failure::NodeExists) => {}
                Err(failure) => panic!("{path}: {failure}"),
            }
        }
        b.sync(&directory).await.expect("connected");
        Stage { mine, _theirs: theirs, a, b, directory }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }

    /// Makes a node with data on session `a`.
    async fn node(&self, name: &str, kind: Kind) -> String {
        let created = self.a.create(&self.path(name), b"data", kind).await.expect("created");
        self.b.sync(&self.directory).await.expect("connected");
        created.path
    }
}

async fn session<C: Coordinator>(client: &C) -> Arc<dyn Session> {
    Arc::clone(soon("a session slot", client.session_slot(0)).await.expect("reachable").session())
}

async fn event(watch: Watch) -> WatchEvent {
    soon("an event", watch).await
}

fn set(path: &str) -> Operation {
    Operation::Set { path: path.to_owned(), data: b"set".to_vec(), version: None }
}

fn delete(path: &str) -> Operation {
    Operation::Delete { path: path.to_owned(), version: None }
}

fn check(path: &str) -> Operation {
    Operation::Check { path: path.to_owned(), version: None }
}

fn create(path: &str) -> Operation {
    Operation::Create { path: path.to_owned(), data: b"new".to_vec(), kind: Kind::Persistent }
}

/// Removes a node as a contender does: with a hand-off, a transaction that writes to the node before it deletes the
/// node, or by a plain delete.
fn removal(session: &Arc<dyn Session>, path: &str, hands_off: bool) -> Reply<Vec<Outcome>> {
    if hands_off {
        return session.transact(&[set(path), delete(path)]);
    }
    let removed = session.delete(path);
    Box::pin(async move { removed.await.map(|()| Vec::new()) })
}

fn refused_at(index: usize, failure: Failure) -> Result<Vec<Outcome>, Failure> {
    Err(Failure::Operation { index, failure: Box::new(failure) })
}

// Clause 1: a request is sent at the call.

pub async fn a_request_is_sent_although_its_reply_is_dropped<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    drop(stage.a.create(&stage.path("sent"), b"", Kind::Persistent));
    // The session's next request takes effect after the create, so this reply shows that the create was sent.
    assert!(stage.a.data(&stage.path("sent")).await.is_ok());
}

pub async fn a_request_can_be_sent_from_a_plain_thread<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let (session, path) = (Arc::clone(&stage.a), stage.path("thread"));
    std::thread::spawn(move || drop(session.create(&path, b"", Kind::Persistent))).join().expect("no panic");
    assert!(stage.a.data(&stage.path("thread")).await.is_ok());
}

// Clause 2: the requests of a session take effect in the order of the calls.

pub async fn requests_take_effect_in_the_order_of_the_calls<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let path = stage.path("order");
    let created = stage.a.create(&path, b"", Kind::Persistent);
    let listed = stage.a.children(&stage.directory);
    let deleted = stage.a.delete(&path);
    let listed_again = stage.a.children(&stage.directory);
    // The replies are awaited in another order than that of the requests.
    assert_eq!(listed_again.await, Ok(Vec::new()));
    assert_eq!(listed.await, Ok(vec!["order".to_owned()]));
    assert!(created.await.is_ok() && deleted.await.is_ok());
}

pub async fn a_delete_and_the_next_create_keep_their_order<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let queue = stage.path("q-");
    for hands_off in [true, false] {
        let first = stage.a.create(&queue, b"", Kind::EphemeralSequential).await.expect("created");
        let watch = stage.a.watch(&first.path).await.expect("there");
        let removed = removal(&stage.a, &first.path, hands_off);
        let next = stage.a.create(&queue, b"next", Kind::EphemeralSequential);
        let listed = stage.a.children(&stage.directory);
        let (listed, next) = (listed.await.expect("listed"), next.await.expect("created"));
        let outcomes = if hands_off { vec![Outcome::Set { version: 1 }, Outcome::Deleted] } else { Vec::new() };
        assert_eq!(removed.await, Ok(outcomes));
        assert_eq!(event(watch).await, if hands_off { WatchEvent::Changed } else { WatchEvent::Deleted });
        assert_eq!(listed, [next.path.rsplit('/').next().expect("a path")]);
        assert!(next.czxid > first.czxid && next.path > first.path, "{first:?} {next:?}");
        stage.a.delete(&next.path).await.expect("there");
    }
}

pub async fn a_refused_delete_does_not_affect_the_next_create<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let (queue, missing) = (stage.path("q-"), stage.path("missing"));
    for hands_off in [true, false] {
        let removed = removal(&stage.a, &missing, hands_off);
        let created = stage.a.create(&queue, b"", Kind::EphemeralSequential);
        let refusal = if hands_off { refused_at(0, Failure::NoNode) } else { Err(Failure::NoNode) };
        assert_eq!(removed.await, refusal);
        stage.a.delete(&created.await.expect("created").path).await.expect("there");
    }
}

// Clause 3: a session sees its own writes.

pub async fn a_read_sent_after_a_write_sees_it<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let path = stage.node("read", Kind::Persistent).await;
    let written = stage.a.transact(&[set(&path)]);
    let read = stage.a.data(&path);
    assert_eq!(read.await.map(|(data, stat)| (data, stat.version)), Ok((b"set".to_vec(), 1)));
    assert!(written.await.is_ok());
}

pub async fn a_nodes_stat_is_that_of_its_creation<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let before = SystemTime::now() - Duration::from_secs(60);
    let created = stage.a.create(&stage.path("stat"), b"data", Kind::Ephemeral).await.expect("created");
    assert_eq!(created.path, stage.path("stat"));
    assert_eq!(created.ephemeral_owner, stage.a.id());
    let (data, stat) = stage.a.data(&created.path).await.expect("there");
    assert_eq!((data.as_slice(), stat.czxid, stat.ephemeral_owner), (&b"data"[..], created.czxid, stage.a.id()));
    assert!(stat.ctime > before && stat.version == 0);
    assert_eq!((stat.ctime, stat.mtime), (created.ctime, created.ctime));
    eventually("the data are set at a later time", || async {
        stage.a.transact(&[set(&created.path)]).await.expect("there");
        let (_, later) = stage.a.data(&created.path).await.expect("there");
        assert_eq!(later.ctime, created.ctime);
        later.mtime > later.ctime
    })
    .await;
    let lasting = stage.a.create(&stage.path("lasting"), b"", Kind::Persistent).await.expect("created");
    assert_eq!(lasting.ephemeral_owner, 0);
}

// Clause 4: reads may be stale until a sync.

pub async fn a_sync_shows_what_others_wrote<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    stage.a.create(&stage.path("theirs"), b"", Kind::Persistent).await.expect("created");
    let synced = stage.b.sync(&stage.directory);
    let listed = stage.b.children(&stage.directory);
    assert_eq!((synced.await, listed.await), (Ok(()), Ok(vec!["theirs".to_owned()])));
}

// Clause 5: the sequence numbers of sequential nodes rise.

pub async fn sequence_numbers_rise_and_have_ten_digits<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let mut paths = Vec::new();
    for session in [&stage.a, &stage.b, &stage.a] {
        paths.push(session.create(&stage.path("n-"), b"", Kind::EphemeralSequential).await.expect("created").path);
    }
    let expected = [0, 1, 2].map(|number| format!("{}/n-{number:010}", stage.directory));
    assert_eq!(paths, expected);
}

// Clause 6: the creation ids of nodes rise.

pub async fn creation_ids_rise_also_in_a_directory_made_anew<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let first = stage.a.create(&stage.path("n-"), b"", Kind::EphemeralSequential).await.expect("created");
    stage.a.delete(&first.path).await.expect("deleted");
    stage.a.delete(&stage.directory).await.expect("empty");
    stage.b.sync(&stage.directory).await.expect("connected");
    stage.b.create(&stage.directory, b"", Kind::Persistent).await.expect("created");
    let second = stage.b.create(&stage.path("n-"), b"", Kind::EphemeralSequential).await.expect("created");
    assert_eq!(second.path, first.path, "the sequence did not start again");
    assert!(second.czxid > first.czxid);
}

// Clause 7: a transaction takes effect as a whole or not at all.

pub async fn a_transaction_takes_effect_as_a_whole<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let (old, new) = (stage.node("old", Kind::Persistent).await, stage.path("new"));
    let outcomes = stage.a.transact(&[check(&old), set(&old), create(&new), delete(&old)]).await;
    let expected = vec![Outcome::Checked, Outcome::Set { version: 1 }, Outcome::Created, Outcome::Deleted];
    assert_eq!(outcomes, Ok(expected));
    assert_eq!(stage.a.children(&stage.directory).await, Ok(vec!["new".to_owned()]));
}

pub async fn a_failed_transaction_changes_nothing_and_says_why<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let (node, new, missing) = (stage.node("node", Kind::Persistent).await, stage.path("new"), stage.path("missing"));
    let versioned = |version| Operation::Set { path: node.clone(), data: Vec::new(), version: Some(version) };
    for (operations, refusal) in [
        (vec![set(&node), delete(&missing)], refused_at(1, Failure::NoNode)),
        (vec![create(&new), set(&node), create(&node)], refused_at(2, Failure::NodeExists)),
        (vec![create(&new), versioned(7)], refused_at(1, Failure::BadVersion)),
        (vec![set(&node), delete(&stage.directory)], refused_at(1, Failure::NotEmpty)),
        (vec![check(&missing), set(&node)], refused_at(0, Failure::NoNode)),
    ] {
        assert_eq!(stage.a.transact(&operations).await, refusal);
    }
    let (data, stat) = stage.a.data(&node).await.expect("there");
    assert_eq!((data.as_slice(), stat.version), (&b"data"[..], 0));
    assert_eq!(stage.a.data(&new).await.map(drop), Err(Failure::NoNode));
}

pub async fn a_check_changes_nothing_and_fires_no_watch<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let path = stage.node("checked", Kind::Persistent).await;
    let watch = stage.b.watch(&path).await.expect("there");
    assert_eq!(stage.a.transact(&[check(&path)]).await, Ok(vec![Outcome::Checked]));
    assert_eq!(stage.a.data(&path).await.map(|(_, stat)| stat.version), Ok(0));
    stage.a.delete(&path).await.expect("deleted");
    assert_eq!(event(watch).await, WatchEvent::Deleted, "the first event is not that of the deletion");
}

// Clause 8: a watch reports the next change of a node or of its children.

pub async fn a_watch_reports_new_data<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let path = stage.node("watched", Kind::Persistent).await;
    let watch = stage.b.watch(&path).await.expect("there");
    stage.a.transact(&[set(&path)]).await.expect("set");
    assert_eq!(event(watch).await, WatchEvent::Changed);
}

pub async fn a_watch_reports_a_deletion<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let path = stage.node("watched", Kind::Persistent).await;
    let watch = stage.b.watch(&path).await.expect("there");
    stage.a.delete(&path).await.expect("deleted");
    assert_eq!(event(watch).await, WatchEvent::Deleted);
}

pub async fn a_watch_reports_the_set_of_a_set_and_delete<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let path = stage.node("watched", Kind::Ephemeral).await;
    let (here, there) = (stage.a.watch(&path).await.expect("there"), stage.b.watch(&path).await.expect("there"));
    stage.a.transact(&[set(&path), delete(&path)]).await.expect("handed off");
    assert_eq!((event(here).await, event(there).await), (WatchEvent::Changed, WatchEvent::Changed));
}

pub async fn a_watch_reports_the_delete_of_a_replacement<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let path = stage.node("watched", Kind::Ephemeral).await;
    let watch = stage.b.watch(&path).await.expect("there");
    stage.a.transact(&[create(&stage.path("instead")), delete(&path)]).await.expect("replaced");
    assert_eq!(event(watch).await, WatchEvent::Deleted);
}

pub async fn a_missing_node_cannot_be_watched<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    assert_eq!(stage.a.watch(&stage.path("missing")).await.map(drop), Err(Failure::NoNode));
    assert_eq!(stage.a.watch(&stage.path("not/even/its/parent")).await.map(drop), Err(Failure::NoNode));
}

pub async fn several_watches_on_one_node_all_fire<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let path = stage.node("watched", Kind::Persistent).await;
    let first = stage.b.watch(&path).await.expect("there");
    let dropped = stage.b.watch(&path).await.expect("there");
    let last = stage.b.watch(&path).await.expect("there");
    drop(dropped);
    stage.a.delete(&path).await.expect("deleted");
    assert_eq!((event(first).await, event(last).await), (WatchEvent::Deleted, WatchEvent::Deleted));
}

pub async fn an_event_precedes_the_reply_that_shows_its_change<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    for number in 0..20 {
        let path = stage.node(&format!("watched-{number}"), Kind::Persistent).await;
        let mut watch = Box::pin(stage.b.watch(&path).await.expect("there"));
        stage.a.delete(&path).await.expect("deleted");
        let gone = || async { stage.b.data(&path).await.is_err() };
        eventually("the read shows the deletion", gone).await;
        let seen = std::future::poll_fn(|context| std::task::Poll::Ready(watch.as_mut().poll(context))).await;
        assert_eq!(seen, std::task::Poll::Ready(WatchEvent::Deleted), "the read overtook the event");
    }
}

pub async fn an_event_missed_while_cut_off_fires_on_reconnect<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let (set_on, deleted) = (stage.path("set"), stage.path("deleted"));
    for path in [&set_on, &deleted] {
        stage.b.create(path, b"", Kind::Persistent).await.expect("created");
    }
    stage.a.sync(&stage.directory).await.expect("connected");
    let (of_set, of_deleted) =
        (stage.a.watch(&set_on).await.expect("there"), stage.a.watch(&deleted).await.expect("there"));
    h.cut(&stage.mine).await;
    stage.b.transact(&[set(&set_on), delete(&deleted)]).await.expect("done");
    h.heal(&stage.mine).await;
    assert_eq!((event(of_set).await, event(of_deleted).await), (WatchEvent::LookAgain, WatchEvent::Deleted));
}

pub async fn a_child_watch_reports_a_child_made_or_deleted<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let (names, comes) = stage.b.watch_children(&stage.directory).await.expect("there");
    assert_eq!(names, Vec::<String>::new());
    let path = stage.node("child", Kind::Ephemeral).await;
    assert_eq!(event(comes).await, WatchEvent::Changed);
    let (names, goes) = stage.b.watch_children(&stage.directory).await.expect("there");
    assert_eq!(names, ["child"]);
    stage.a.delete(&path).await.expect("deleted");
    assert_eq!(event(goes).await, WatchEvent::Changed);
}

pub async fn a_child_watch_ignores_data_and_grandchildren<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let path = stage.node("child", Kind::Persistent).await;
    let (_, watch) = stage.b.watch_children(&stage.directory).await.expect("there");
    let mut watch = Box::pin(watch);
    let data = stage.b.watch(&path).await.expect("there");
    stage.a.create(&format!("{path}/grandchild"), b"", Kind::Ephemeral).await.expect("created");
    stage.a.transact(&[set(&path)]).await.expect("set");
    // Events arrive in order, so a wrong event of the child watch would have arrived before this event.
    assert_eq!(event(data).await, WatchEvent::Changed);
    let polled = std::future::poll_fn(|context| std::task::Poll::Ready(watch.as_mut().poll(context))).await;
    assert_eq!(polled, std::task::Poll::Pending);
    stage.node("another", Kind::Ephemeral).await;
    assert_eq!(soon("an event", watch).await, WatchEvent::Changed);
}

pub async fn a_child_watch_reports_its_deleted_parent<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let (_, watch) = stage.b.watch_children(&stage.directory).await.expect("there");
    stage.a.delete(&stage.directory).await.expect("empty");
    assert_eq!(event(watch).await, WatchEvent::Deleted);
    assert_eq!(stage.b.watch_children(&stage.directory).await.map(drop), Err(Failure::NoNode));
}

pub async fn a_missed_child_event_fires_on_reconnect<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let (coming, going) = (stage.path("coming"), stage.path("going"));
    for path in [&coming, &going] {
        stage.b.create(path, b"", Kind::Persistent).await.expect("created");
    }
    stage.b.create(&format!("{going}/child"), b"", Kind::Persistent).await.expect("created");
    stage.a.sync(&stage.directory).await.expect("connected");
    let (_, of_coming) = stage.a.watch_children(&coming).await.expect("there");
    let (_, of_going) = stage.a.watch_children(&going).await.expect("there");
    h.cut(&stage.mine).await;
    stage.b.create(&format!("{coming}/child"), b"", Kind::Persistent).await.expect("created");
    stage.b.delete(&format!("{going}/child")).await.expect("deleted");
    h.heal(&stage.mine).await;
    assert_eq!((event(of_coming).await, event(of_going).await), (WatchEvent::LookAgain, WatchEvent::LookAgain));
}

// Clause 9: ephemeral nodes are deleted at the end of their session.

pub async fn only_ephemeral_nodes_go_with_their_session<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let going = [stage.node("going", Kind::Ephemeral).await, stage.node("n-", Kind::EphemeralSequential).await];
    let staying = stage.node("staying", Kind::Persistent).await;
    let watch = stage.b.watch(&going[0]).await.expect("there");
    h.expire(&stage.mine).await;
    assert_eq!(event(watch).await, WatchEvent::Deleted);
    for path in &going {
        eventually("the node is gone", || async { stage.b.data(path).await.is_err() }).await;
    }
    assert!(stage.b.data(&staying).await.is_ok());
}

pub async fn an_ended_session_fails_every_request<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let path = stage.node("node", Kind::Persistent).await;
    let watch = stage.a.watch(&path).await.expect("there");
    h.expire(&stage.mine).await;
    assert_eq!(soon("the end", stage.a.store().until_over()).await, SessionEnd::Expired);
    assert_eq!(event(watch).await, WatchEvent::Over);
    let over = Failure::Over(SessionEnd::Expired);
    assert_eq!(stage.a.store().until_connected().await, Err(SessionEnd::Expired));
    assert_eq!(stage.a.create(&stage.path("late"), b"", Kind::Persistent).await, Err(over.clone()));
    assert_eq!(stage.a.delete(&path).await, Err(over.clone()));
    assert_eq!(stage.a.children(&stage.directory).await, Err(over.clone()));
    assert_eq!(stage.a.data(&path).await, Err(over.clone()));
    assert_eq!(stage.a.watch(&path).await.map(drop), Err(over.clone()));
    assert_eq!(stage.a.sync(&path).await, Err(over.clone()));
    assert_eq!(stage.a.transact(&[check(&path)]).await, Err(over));
    assert_eq!((stage.a.lease().ending(), stage.a.lease().remaining()), (Some(SessionEnd::Expired), None));
}

pub async fn after_an_end_the_next_slot_is_on_a_fresh_session<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    h.expire(&stage.mine).await;
    soon("the end", stage.a.store().until_over()).await;
    let fresh = session(&stage.mine).await;
    assert_ne!(fresh.id(), stage.a.id());
    fresh.create(&stage.path("fresh"), b"", Kind::Ephemeral).await.expect("the session is alive");
}

pub async fn closing_ends_the_session_and_refuses_slots<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let path = stage.node("going", Kind::Ephemeral).await;
    soon("the end", stage.mine.close()).await;
    assert_eq!(stage.a.store().until_over().await, SessionEnd::Closed);
    eventually("the nodes of the session are gone", || async { stage.b.data(&path).await.is_err() }).await;
    assert_eq!(stage.mine.session_slot(0).await.map(drop), Err(Failure::Over(SessionEnd::Closed)));
}

pub async fn a_disconnected_session_reconnects_after_the_cut<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let path = stage.node("kept", Kind::Ephemeral).await;
    h.cut(&stage.mine).await;
    eventually("the cut is noticed", || async {
        tokio::time::timeout(Duration::from_millis(1), stage.a.store().until_connected()).await.is_err()
    })
    .await;
    h.heal(&stage.mine).await;
    assert_eq!(soon("the connection", stage.a.store().until_connected()).await, Ok(()));
    assert_eq!(stage.a.data(&path).await.map(|(_, stat)| stat.ephemeral_owner), Ok(stage.a.id()));
}

// Clause 10: an unknown outcome of a request is never guessed.

pub async fn a_refusal_says_why<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let (node, ephemeral) = (stage.node("node", Kind::Persistent).await, stage.node("short", Kind::Ephemeral).await);
    let missing = stage.path("missing");
    assert_eq!(stage.a.create(&node, b"", Kind::Persistent).await, Err(Failure::NodeExists));
    assert_eq!(stage.a.create(&format!("{missing}/child"), b"", Kind::Persistent).await, Err(Failure::NoNode));
    let below_ephemeral = stage.a.create(&format!("{ephemeral}/child"), b"", Kind::EphemeralSequential);
    assert_eq!(below_ephemeral.await, Err(Failure::ParentIsEphemeral));
    assert_eq!(stage.a.delete(&missing).await, Err(Failure::NoNode));
    assert_eq!(stage.a.delete(&stage.directory).await, Err(Failure::NotEmpty));
    assert_eq!(stage.a.children(&missing).await, Err(Failure::NoNode));
    assert_eq!(stage.a.data(&missing).await, Err(Failure::NoNode));
}

pub async fn an_empty_container_can_be_deleted<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let container = stage.node("container", Kind::Container).await;
    let child = stage.a.create(&format!("{container}/n-"), b"", Kind::EphemeralSequential).await.expect("created");
    assert_eq!(stage.a.delete(&container).await, Err(Failure::NotEmpty));
    stage.a.delete(&child.path).await.expect("deleted");
    stage.a.delete(&container).await.expect("empty");
}

// Clause 11: the lease of a session ends before the session can end.

pub async fn a_write_makes_the_lease_valid<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let path = stage.node("written", Kind::Ephemeral).await;
    assert!(stage.a.lease().remaining().is_some());
    assert!(
        stage.a.lease().remaining() <= Some(stage.a.timeout()) || stage.a.lease().remaining() == Some(Duration::MAX)
    );
    stage.a.transact(&[check(&path)]).await.expect("there");
    assert!(stage.a.lease().remaining().is_some());
}

pub async fn a_lease_runs_out_when_no_quorum_answers<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    stage.node("written", Kind::Ephemeral).await;
    h.cut(&stage.mine).await;
    let start = std::time::Instant::now();
    while stage.a.lease().remaining().is_some() {
        assert!(start.elapsed() < stage.a.timeout() + Duration::from_secs(5), "the lease did not run out");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    h.heal(&stage.mine).await;
}

// Background tasks of a session, and the lock on top of the contract.

// Clause 12: a server that disagrees with its leader is left.

/// The client knows one server only.
pub async fn a_server_is_left_with_the_same_session<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    h.keep_server(&stage.mine);
    let (node, watched) = (stage.node("own", Kind::Ephemeral).await, stage.node("watched", Kind::Persistent).await);
    let watch = stage.a.watch(&watched).await.expect("armed");
    let left = async |connection| soon("an answer", stage.a.leave_server(connection, &node)).await;
    let mut connection = stage.a.store().connection_number();
    for _ in 0..3 {
        assert_eq!(left(connection).await, Ok(true));
        assert!(stage.a.data(&node).await.is_ok(), "the session and its node go on");
        assert_eq!(left(connection).await, Ok(false), "this connection is lost already");
        assert!(stage.a.store().connection_number() > connection);
        connection = stage.a.store().connection_number();
    }
    let diverged = left(connection).await.expect_err("no other server is left");
    assert!(matches!(&diverged, Failure::Diverged { node: about, .. } if *about == node), "{diverged}");
    assert_eq!(stage.a.store().connection_number(), connection);
    stage.b.delete(&watched).await.expect("deleted");
    assert_eq!(event(watch).await, WatchEvent::Deleted);
}

pub async fn a_background_task_runs_without_its_caller<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let (session, path) = (Arc::clone(&stage.a), stage.path("task"));
    stage.a.spawn(Box::pin(async move {
        session.create(&path, b"", Kind::Persistent).await.expect("created");
    }));
    eventually("the task is done", || async { stage.b.data(&stage.path("task")).await.is_ok() }).await;
}

pub async fn a_slot_of_either_client_serves_a_lock<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let lock = RwLock::new(&stage.mine, stage.path("lock")).expect("a valid path");
    soon("the lock", lock.write()).await.expect("free").release().await.expect("held");
    assert_eq!(stage.a.children(&stage.path("lock")).await, Ok(Vec::new()));
}
