//! The promises of the lock, through its public interface, on each backend.

// These functions are public, because a macro in `main.rs` calls them.
#![allow(unreachable_pub)]

use std::future::IntoFuture;
use std::panic;
use std::pin::Pin;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinHandle;
use zk_rwlock::coordinator::{Coordinator, Failure, Kind, Operation, Outcome, Session};
use zk_rwlock::error::SessionEnd;
use zk_rwlock::queue::{MemberState, NodeName};
use zk_rwlock::{Dialect, Error, HoldState, Loss, Mode, RwLock, Survey, WriteGuard};

use support::harness::Harness;
use support::safe;
use support::scene::{
    SOON, eventually, granted, line, line_becomes, reader, refused, soon, with_time_enough, within, writer,
};

/// Two processes that use one lock, and an operator that makes and deletes nodes directly.
struct Stage<C> {
    directory: String,
    mine: C,
    theirs: C,
    a: RwLock,
    b: RwLock,
    operator: Arc<dyn Session>,
    operators: C,
    dialect: Dialect,
    keeps: bool,
}

impl<C: Coordinator + Clone> Stage<C> {
    async fn set<H: Harness<C = C>>(h: &H) -> Stage<C> {
        let (mine, theirs, operator) = (h.client().await, h.client().await, h.client().await);
        let directory = h.directory();
        let open =
            |client: &C, host: &str| h.lock(RwLock::builder(client, &directory).host(host)).build().expect("valid");
        Stage {
            a: open(&mine, "host-a"),
            b: open(&theirs, "host-b"),
            operator: session(&operator).await,
            mine,
            theirs,
            operators: operator,
            dialect: h.dialect(),
            directory,
            keeps: h.keeps(),
        }
    }

    /// Makes the lock's directory, which is empty.
    async fn with_directory(self) -> Stage<C> {
        let lock = RwLock::builder(&self.operators, &self.directory).dialect(self.dialect).build().expect("valid");
        soon("a free lock", lock.write()).await.expect("free").release().await.expect("held");
        self
    }

    async fn children(&self) -> Vec<String> {
        let synced = self.operator.sync(&self.directory);
        let children = self.operator.children(&self.directory);
        let _nothing_to_sync = synced.await;
        match children.await {
            Ok(mut children) => {
                children.sort();
                children
            }
            Err(Failure::NoNode) => Vec::new(),
            Err(failure) => panic!("{} cannot be listed: {failure}", self.directory),
        }
    }

    async fn ask(&self) {
        let set = Operation::Set { path: self.directory.clone(), data: Vec::new(), version: None };
        self.operator.transact(&[set]).await.expect("allowed");
    }

    /// Asks both processes to give up the nodes that they keep between uses, and waits until no node is left.
    async fn becomes_empty(&self) {
        if self.keeps {
            self.ask().await;
        }
        eventually("the directory is empty", || async { self.children().await.is_empty() }).await;
    }

    fn beside(&self, name: &str) -> String {
        format!("{}-{name}", self.directory)
    }

    /// Returns the data at `path`, read by the operator.
    async fn data(&self, path: &str) -> Option<Vec<u8>> {
        let synced = self.operator.sync(path);
        let data = self.operator.data(path);
        let _nothing_to_sync = synced.await;
        match data.await {
            Ok((data, _)) => Some(data),
            Err(Failure::NoNode) => None,
            Err(failure) => panic!("{path} cannot be read: {failure}"),
        }
    }

    /// Starts a writer, appends ` W-` (a waiting writer) to the expected queue `after`, and waits until the queue is as
    /// expected.
    async fn queue_writer(&self, lock: &RwLock, after: &mut String) -> JoinHandle<Result<WriteGuard, Error>> {
        let task = writer(lock);
        after.push_str(" W-");
        line_becomes(&self.b, after.trim()).await;
        task
    }
}

async fn session<C: Coordinator>(client: &C) -> Arc<dyn Session> {
    Arc::clone(client.session_slot(0).await.expect("the session is alive").session())
}

async fn cancel<G>(task: JoinHandle<Result<G, Error>>) {
    task.abort();
    assert!(task.await.is_err_and(|stop| stop.is_cancelled()), "the acquisition ended before it was cancelled");
}

/// Joins a thread without blocking the runtime.
async fn joined<T: Send + 'static>(thread: thread::JoinHandle<T>) -> thread::Result<T> {
    soon("the end of the thread", tokio::task::spawn_blocking(|| thread.join())).await.expect("joining does not panic")
}

fn is_invalid<T>(answer: Result<T, Error>) -> bool {
    matches!(answer, Err(Error::InvalidInput(_)))
}

// Contenders that may hold together, and the order of grants.

pub async fn readers_hold_together<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let one = soon("a free lock", s.a.read()).await.expect("free");
    let two = soon("beside a reader", s.b.read()).await.expect("shared");
    let three = soon("beside readers", s.b.read()).await.expect("shared");
    assert!(one.is_held() && two.is_held() && three.is_held());
    assert_eq!(line(&s.a).await, "R+ R+ R+");
    one.release().await.expect("held");
    assert!(two.is_held() && three.is_held());
}

pub async fn a_writer_holds_alone<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let write = writer(&s.b);
    line_becomes(&s.a, "W+ W-").await;
    let read = reader(&s.b);
    line_becomes(&s.a, "W+ W- R-").await;
    assert!(!write.is_finished() && !read.is_finished());
    held.release().await.expect("held");
    let write = granted(write).await;
    assert!(!read.is_finished());
    write.release().await.expect("held");
    granted(read).await.release().await.expect("held");
}

pub async fn a_reader_never_overtakes_a_queued_writer<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let first = soon("a free lock", s.a.read()).await.expect("free");
    let write = writer(&s.b);
    line_becomes(&s.a, "R+ W-").await;
    let late = reader(&s.a);
    line_becomes(&s.a, "R+ W- R-").await;
    let later = reader(&s.b);
    line_becomes(&s.a, "R+ W- R- R-").await;
    first.release().await.expect("held");
    let write = granted(write).await;
    assert_eq!(line(&s.a).await, "W+ R- R-");
    assert!(!late.is_finished() && !later.is_finished());
    write.release().await.expect("held");
    let (late, later) = (granted(late).await, granted(later).await);
    assert!(late.is_held() && later.is_held());
}

pub async fn readers_between_two_writers_run_together<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let first = soon("a free lock", s.a.write()).await.expect("free");
    let one = reader(&s.a);
    line_becomes(&s.a, "W+ R-").await;
    let two = reader(&s.b);
    line_becomes(&s.a, "W+ R- R-").await;
    let last = writer(&s.b);
    line_becomes(&s.a, "W+ R- R- W-").await;
    first.release().await.expect("held");
    let (one, two) = (granted(one).await, granted(two).await);
    assert!(one.is_held() && two.is_held() && !last.is_finished());
    assert_eq!(line(&s.a).await, "R+ R+ W-");
    two.release().await.expect("held");
    assert_eq!(line(&s.a).await, "R+ W-");
    one.release().await.expect("held");
    assert!(granted(last).await.is_held());
}

pub async fn writers_are_granted_in_the_order_of_their_arrival<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let first = soon("a free lock", s.a.write()).await.expect("free");
    let mut queue = "W+".to_owned();
    let mut waiting = Vec::new();
    for i in 0..6 {
        waiting.push(s.queue_writer(if i % 2 == 0 { &s.b } else { &s.a }, &mut queue).await);
    }
    let mut token = first.fencing_token();
    first.release().await.expect("held");
    for write in waiting {
        let guard = granted(write).await;
        assert!(guard.fencing_token() > token, "{} after {token}", guard.fencing_token());
        token = guard.fencing_token();
        assert!(line(&s.a).await.starts_with("W+"));
        guard.release().await.expect("held");
    }
    s.becomes_empty().await;
}

pub async fn a_holder_that_asks_again_is_last_in_the_queue<H: Harness>(h: &H) {
    let s = Stage::set(h).await.with_directory().await;
    let mut held = soon("a free lock", s.a.write()).await.expect("free");
    for _ in 0..10 {
        let mut queue = "W+".to_owned();
        let other = s.queue_writer(&s.b, &mut queue).await;
        let last = held.fencing_token();
        drop(held);
        let again = writer(&s.a);
        let other = granted(other).await;
        line_becomes(&s.b, "W+ W-").await;
        assert!(!again.is_finished() && other.fencing_token() > last);
        let token = other.fencing_token();
        other.release().await.expect("held");
        held = granted(again).await;
        assert!(held.fencing_token() > token);
    }
    drop(held);
    s.becomes_empty().await;
}

pub async fn a_contender_that_lost_the_lock_can_get_it_again<H: Harness>(h: &H) {
    let s = Stage::set(h).await.with_directory().await;
    for of_readers in [true, false].repeat(5) {
        let (path, guard): (String, Box<dyn Send>) = if of_readers {
            let held = soon("a free lock", s.a.read()).await.expect("free");
            (held.node_path(), Box::new(held))
        } else {
            let held = soon("a free lock", s.a.write()).await.expect("free");
            // A kept node would serve the next use until the event of its removal arrives. After
            // `prepare_foreign_transaction`, the library does not keep this node after its use.
            (held.prepare_foreign_transaction(), Box::new(held))
        };
        s.operator.delete(&path).await.expect("the node existed");
        drop(guard);
        let again = soon("the lock", s.a.write()).await.expect("free");
        assert_ne!(again.node_path(), path);
        assert_eq!(line(&s.b).await, "W+");
        again.release().await.expect("held");
        s.becomes_empty().await;
    }
}

pub async fn two_writers_behind_a_reader_hold_in_turn<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let read = soon("a free lock", s.a.read()).await.expect("free");
    let mut queue = "R+".to_owned();
    let one = s.queue_writer(&s.b, &mut queue).await;
    let two = s.queue_writer(&s.a, &mut queue).await;
    read.release().await.expect("held");
    let one = granted(one).await;
    assert_eq!(line(&s.a).await, "W+ W-");
    assert!(!two.is_finished());
    one.release().await.expect("held");
    granted(two).await.release().await.expect("held");
}

// Tries of a taken lock, and acquisitions that time out.

pub async fn a_try_of_a_taken_lock_names_the_holder<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write().label("rotate keys")).await.expect("free");
    let before = s.children().await;
    for _ in 0..3 {
        let errors = [s.b.try_read().await.expect_err("taken"), s.b.try_write().await.expect_err("taken")];
        for error in errors {
            assert!(error.is_would_block());
            let Error::WouldBlock { blockers } = &error else { panic!("{error}") };
            assert_eq!((blockers.ahead, blockers.first.len()), (1, 1));
            let holder = &blockers.first[0];
            assert_eq!((holder.mode, holder.state.clone()), (Mode::Write, MemberState::Holds));
            assert_eq!((holder.host.as_str(), holder.label.as_deref()), ("host-a", Some("rotate keys")));
            let text = error.to_string();
            assert!(["WRITE", "host-a", "rotate keys"].iter().all(|word| text.contains(word)), "{text}");
        }
    }
    assert_eq!(s.children().await, before);
    held.release().await.expect("held");
    let next = s.b.try_write().await.expect("free");
    let sequence = |name: &str| NodeName::parse_as(name, h.dialect()).expect("a contender").sequence();
    let name = next.node_path().rsplit('/').next().map(str::to_owned).expect("a path");
    assert_eq!(sequence(&name), sequence(&before[0]) + 1, "the tries have used up sequence numbers");
}

pub async fn try_read_fails_behind_a_waiting_writer<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let one = s.a.try_read().await.expect("free");
    let two = s.b.try_read().await.expect("shared");
    assert!(s.b.try_write().await.is_err_and(|error| error.is_would_block()));
    let write = writer(&s.a);
    line_becomes(&s.b, "R+ R+ W-").await;
    let error = s.b.try_read().await.expect_err("a writer waits");
    let Error::WouldBlock { blockers } = &error else { panic!("{error}") };
    assert_eq!((blockers.ahead, blockers.first[0].mode), (1, Mode::Write));
    assert!(matches!(blockers.first[0].state, MemberState::Waits { .. }));
    assert_eq!(line(&s.b).await, "R+ R+ W-");
    one.release().await.expect("held");
    two.release().await.expect("held");
    granted(write).await.release().await.expect("held");
    s.b.try_write().await.expect("free").release().await.expect("held");
}

pub async fn a_timeout_names_the_holder_and_leaves_no_node<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let entered = SystemTime::now();
    let held = soon("a free lock", s.a.read().label("nightly report")).await.expect("free");
    let write = tokio::spawn(s.a.write().label("migrate").into_future());
    line_becomes(&s.b, "R+ W-").await;
    let before = s.children().await;
    // An acquisition reads the blocking nodes in the last fifth of a second of its timeout. On a busy machine that may be
    // too late. Then the error names only the predecessor.
    let (timeout, error) = with_time_enough(Duration::from_secs(2), async |timeout| {
        let start = Instant::now();
        let error = within(2 * timeout + SOON, "the timeout", s.b.write().timeout(timeout)).await.expect_err("taken");
        assert!(start.elapsed() >= timeout && error.is_timeout(), "{:?} of {timeout:?}: {error}", start.elapsed());
        match &error {
            Error::Timeout { blockers, .. } if blockers.ahead > 1 => Ok((timeout, error)),
            _ => Err(error),
        }
    })
    .await;
    let Error::Timeout { waited, blockers, .. } = &error else { panic!("{error}") };
    assert_eq!((*waited, blockers.ahead, blockers.first.len()), (timeout, 2, 2));
    let (holder, waiter) = (&blockers.first[0], &blockers.first[1]);
    assert_eq!((holder.mode, holder.host.as_str(), holder.pid), (Mode::Read, "host-a", Some(process::id())));
    assert_eq!((holder.label.as_deref(), waiter.label.as_deref()), (Some("nightly report"), Some("migrate")));
    assert_eq!((&holder.state, waiter.mode), (&MemberState::Holds, Mode::Write));
    assert!(matches!(waiter.state, MemberState::Waits { .. }));
    // The slack allows for two clocks, the server's and this process's, and for the server's timestamps in whole
    // milliseconds.
    let since = holder.since.expect("the holder's node can be read");
    let slack = Duration::from_secs(2);
    assert!(since + slack >= entered && since <= SystemTime::now() + slack, "{since:?}");
    let (text, within) = (error.to_string(), format!("within {timeout:?}"));
    assert!([&*within, "READ", "host-a", "nightly report", "2 ahead"].iter().all(|w| text.contains(w)), "{text}");
    eventually("the node of the one that gave up is gone", || async { s.children().await == before }).await;
    held.release().await.expect("held");
    granted(write).await.release().await.expect("held");
}

// Waiters that are cancelled.

pub async fn a_cancelled_waiter_leaves_no_node_and_wakes_nobody<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let alone = s.children().await;
    let write = writer(&s.b);
    line_becomes(&s.a, "W+ W-").await;
    cancel(write).await;
    eventually("the node of the cancelled waiter is gone", || async { s.children().await == alone }).await;

    let mut queue = "W+".to_owned();
    let first = s.queue_writer(&s.b, &mut queue).await;
    let second = s.queue_writer(&s.a, &mut queue).await;
    let third = s.queue_writer(&s.b, &mut queue).await;
    cancel(third).await;
    line_becomes(&s.a, "W+ W- W-").await;
    cancel(first).await;
    line_becomes(&s.a, "W+ W-").await;
    // A later call of each session is answered after the cancelled waiters' requests. So no effect of the cancellations
    // is still to come.
    for lock in [&s.a, &s.b] {
        assert!(lock.try_write().await.is_err_and(|error| error.is_would_block()));
    }
    assert!(held.is_held() && !second.is_finished());
    held.release().await.expect("held");
    granted(second).await.release().await.expect("held");
    s.becomes_empty().await;
}

pub async fn a_waiter_behind_a_cancelled_one_keeps_waiting<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let mut queue = "W+".to_owned();
    let middle = s.queue_writer(&s.b, &mut queue).await;
    let last = s.queue_writer(&s.a, &mut queue).await;
    cancel(middle).await;
    line_becomes(&s.a, "W+ W-").await;
    let members = s.a.queue().await.expect("readable").members;
    assert_eq!(members[1].state, MemberState::Waits { behind: members[0].node.clone() });
    assert!(!last.is_finished());
    held.release().await.expect("held");
    granted(last).await.release().await.expect("held");
}

pub async fn readers_behind_a_cancelled_writer_hold<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.read()).await.expect("free");
    let write = writer(&s.b);
    line_becomes(&s.a, "R+ W-").await;
    let read = reader(&s.b);
    line_becomes(&s.a, "R+ W- R-").await;
    cancel(write).await;
    assert!(granted(read).await.is_held() && held.is_held());
}

// Guards: downgrades, shares, kept nodes and losses.

pub async fn a_downgrade_keeps_the_token_and_lets_readers_in<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write().label("publish")).await.expect("free");
    let one = reader(&s.b);
    line_becomes(&s.a, "W+ R-").await;
    let two = reader(&s.a);
    line_becomes(&s.a, "W+ R- R-").await;
    let write = writer(&s.b);
    line_becomes(&s.a, "W+ R- R- W-").await;
    let last = reader(&s.a);
    line_becomes(&s.a, "W+ R- R- W- R-").await;
    let (token, path) = (held.fencing_token(), held.node_path());
    let held = soon("the downgrade", held.downgrade()).await.expect("held");
    assert_eq!(held.fencing_token(), token);
    assert_ne!(held.node_path(), path);
    let (one, two) = (granted(one).await, granted(two).await);
    assert_eq!(line(&s.b).await, "R+ R+ R+ W- R-");
    assert_eq!(s.a.queue().await.expect("readable").members[0].label.as_deref(), Some("publish"));
    assert!(held.is_held() && !write.is_finished() && !last.is_finished());
    held.transaction().commit().await.expect("held");
    for guard in [held, one, two] {
        assert!(!write.is_finished());
        guard.release().await.expect("held");
    }
    granted(write).await.release().await.expect("held");
    granted(last).await.release().await.expect("held");
}

pub async fn a_shared_guard_keeps_the_node_until_the_last_one<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let one = soon("a free lock", s.a.read()).await.expect("free");
    let (two, three) = (one.share(), one.share());
    assert_eq!((two.node_path(), two.fencing_token()), (one.node_path(), one.fencing_token()));
    assert_eq!(s.children().await.len(), 1);
    let write = writer(&s.b);
    line_becomes(&s.a, "R+ W-").await;
    // A share of a guard holds immediately, and does not queue up behind the writer.
    let four = three.share();
    drop(one);
    two.release().await.expect("held");
    drop(three);
    assert_eq!(line(&s.a).await, "R+ W-");
    assert!(four.is_held() && !write.is_finished());
    four.release().await.expect("held");
    granted(write).await.release().await.expect("held");
}

pub async fn shared_guards_are_lost_together<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let one = soon("a free lock", s.a.read()).await.expect("free");
    let two = one.share();
    s.operator.delete(&one.node_path()).await.expect("there");
    assert_eq!(soon("the loss", one.lost()).await, Loss::Removed);
    assert!(!one.is_held() && !two.is_held());
    assert!(matches!(two.release().await, Err(Error::Lost(Loss::Removed))));
}

/// An idle time for checks that need no particular idle time. It is longer than any of them.
const IDLE: Duration = Duration::from_secs(60);

impl<C: Coordinator + Clone> Stage<C> {
    /// Returns a lock of the first process. The lock keeps its node between uses.
    fn keeping(&self) -> RwLock {
        RwLock::builder(&self.mine, &self.directory).host("keeper").keep(IDLE).build().expect("valid")
    }
}

pub async fn uses_of_a_kept_node_share_its_loss<H: Harness>(h: &H) {
    let s = Stage::set(h).await.with_directory().await;
    let kept = s.keeping();
    let write = soon("a free lock", s.b.write()).await.expect("free");
    let tasks: Vec<_> = (0..20).map(|_| reader(&kept)).collect();
    line_becomes(&s.b, "W+ R-").await;
    write.release().await.expect("held");
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(granted(task).await);
    }
    let one = soon("a kept node", kept.read()).await.expect("kept");
    assert!(guards.iter().all(|guard| guard.is_held() && guard.node_path() == one.node_path()));
    assert_eq!((s.children().await.len(), line(&s.b).await.as_str()), (1, "R+"));
    one.transaction().create(s.beside("kept"), "x").commit().await.expect("held");
    assert_eq!(s.data(&s.beside("kept")).await.as_deref(), Some(b"x".as_slice()));

    s.operator.delete(&one.node_path()).await.expect("there");
    assert_eq!(soon("the loss", one.lost()).await, Loss::Removed);
    assert!(guards.iter().all(|guard| !guard.is_held()));
    let next = soon("a fresh node", kept.read()).await.expect("free");
    assert!(next.is_held() && next.fencing_token() > one.fencing_token());
    next.release().await.expect("held");
    assert_eq!(s.children().await.len(), 1, "the node is not kept");
    drop(kept);
    s.becomes_empty().await;
}

pub async fn an_idle_node_is_given_up_to_a_waiter<H: Harness>(h: &H) {
    let s = Stage::set(h).await.with_directory().await;
    let kept = s.keeping();
    // The waiter belongs to another session first, and then to the session that keeps the node.
    for other in [&s.b, &s.a] {
        for writes in [false, true] {
            // After two uses, the library keeps the node.
            for _ in 0..2 {
                if writes {
                    soon("the lock", kept.write()).await.expect("free").release().await.expect("held");
                } else {
                    soon("the lock", kept.read()).await.expect("free").release().await.expect("held");
                }
            }
            assert_eq!(s.children().await.len(), 1, "the node is not kept");
            let guard = soon("a lock that is only kept", other.write()).await.expect("asked for");
            line_becomes(&s.b, "W+").await;
            guard.release().await.expect("held");
            s.becomes_empty().await;
        }
    }
}

pub async fn a_node_that_was_asked_for_admits_no_new_use<H: Harness>(h: &H) {
    let s = Stage::set(h).await.with_directory().await;
    let kept = s.keeping();
    let (one, two) = (soon("a free lock", kept.read()).await.expect("free"), kept.read().await.expect("kept"));
    let write = writer(&s.b);
    line_becomes(&s.a, "R+ W-").await;
    // The session that keeps the node receives the writer's request as an event. Until then, a new use still joins the
    // kept node.
    eventually("the node is asked for", || async { kept.try_read().await.is_err_and(|error| error.is_would_block()) })
        .await;
    let (three, four) = (reader(&kept), reader(&kept));
    line_becomes(&s.a, "R+ W- R-").await;
    one.release().await.expect("held");
    assert!(!write.is_finished());
    two.release().await.expect("held");
    let write = granted(write).await;
    assert!(!three.is_finished() && !four.is_finished());
    write.release().await.expect("held");
    let (three, four) = (granted(three).await, granted(four).await);
    assert_eq!(three.node_path(), four.node_path());
    three.release().await.expect("held");
    four.release().await.expect("held");
    drop(kept);
    s.becomes_empty().await;
}

pub async fn an_operators_ask_call_ends_a_kept_node_after_its_use<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    soon("an answer", s.b.ask()).await.expect("an ask without a directory");
    assert_eq!(s.data(&s.directory).await, None, "the ask made a directory");
    let kept = s.keeping();
    for is_used in [false, true] {
        let one = soon("a free lock", kept.read()).await.expect("free");
        let two = soon("a kept node", kept.read()).await.expect("kept");
        two.release().await.expect("held");
        let one = if is_used {
            Some(one)
        } else {
            one.release().await.expect("held");
            None
        };
        // The session that keeps the node asks for an idle node. Another session asks for a node that is in use.
        let asks = if is_used { &s.b } else { &s.a };
        soon("an answer", asks.ask()).await.expect("allowed");
        if let Some(one) = one {
            assert!(one.is_held() && s.b.try_write().await.is_err_and(|error| error.is_would_block()));
            one.release().await.expect("held");
        }
        s.becomes_empty().await;
    }
}

pub async fn an_operator_asks_by_setting_the_directorys_data<H: Harness>(h: &H) {
    let s = Stage::set(h).await.with_directory().await;
    let kept = s.keeping();
    soon("a free lock", kept.write()).await.expect("free").release().await.expect("held");
    assert_eq!(s.children().await.len(), 1, "the node is not kept");
    s.ask().await;
    s.becomes_empty().await;
}

pub async fn a_node_that_idles_too_long_is_given_up<H: Harness>(h: &H) {
    let s = Stage::set(h).await.with_directory().await;
    let idle = Duration::from_millis(500);
    let kept = RwLock::builder(&s.mine, &s.directory).keep(idle).build().expect("valid");
    let guard = soon("a free lock", kept.read()).await.expect("free");
    tokio::time::sleep(2 * idle).await;
    assert!(guard.is_held(), "a node in use was given up");
    guard.release().await.expect("held");
    assert_eq!(s.children().await.len(), 1, "the node is not kept");
    s.becomes_empty().await;
}

pub async fn each_use_restarts_the_idle_time<H: Harness>(h: &H) {
    let s = Stage::set(h).await.with_directory().await;
    let idle = Duration::from_secs(1);
    let kept = RwLock::builder(&s.mine, &s.directory).keep(idle).build().expect("valid");
    let (mut granted, mut late_uses) = (None, 0);
    // A busy machine may pause for longer than the idle time. Then the library gives the node up, and the test starts
    // to count anew with the next node.
    for _ in 0..100 {
        let guard = soon("a free lock", kept.write()).await.expect("free");
        let (token, now) = (guard.fencing_token(), Instant::now());
        match granted {
            Some((before, at, _)) if token == before => {
                late_uses += u32::from(now > at + 2 * idle);
                granted = Some((token, at, Instant::now()));
            }
            Some((before, _, used)) if now - used < idle / 2 => {
                panic!("the node with token {before} was given up after only {:?} without a use", now - used)
            }
            _ => granted = Some((token, now, Instant::now())),
        }
        drop(guard);
        if late_uses > 0 {
            return;
        }
        tokio::time::sleep(idle / 5).await;
    }
    panic!("no node was used again in time");
}

pub async fn releasing_a_removed_node_is_a_loss<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let write = soon("a free lock", s.a.write()).await.expect("free");
    s.operator.delete(&write.node_path()).await.expect("there");
    assert!(matches!(write.release().await, Err(Error::Lost(Loss::Removed))));
    let read = soon("a free lock", s.a.read()).await.expect("free");
    s.operator.delete(&read.node_path()).await.expect("there");
    assert!(matches!(read.release().await, Err(Error::Lost(Loss::Removed))));
    s.becomes_empty().await;
}

pub async fn downgrading_a_removed_node_is_a_loss<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    s.operator.delete(&held.node_path()).await.expect("there");
    assert!(matches!(soon("the downgrade", held.downgrade()).await, Err(Error::Lost(Loss::Removed))));
    s.becomes_empty().await;
    soon("a free lock", s.b.write()).await.expect("free").release().await.expect("held");
}

/// Sets the flag when it is dropped.
struct Canary(Arc<AtomicBool>);

impl Drop for Canary {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

pub async fn a_removed_node_loses_the_lock_and_stops_the_work<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    assert_eq!(held.run(async { 42 }).await.expect("held"), 42);
    let dropped = Arc::new(AtomicBool::new(false));
    let canary = Canary(Arc::clone(&dropped));
    let (lost, stopped, removed) = soon("the loss", async {
        tokio::join!(
            held.lost(),
            held.run(async move {
                let _canary = canary;
                std::future::pending::<()>().await;
            }),
            s.operator.delete(&held.node_path()),
        )
    })
    .await;
    removed.expect("there");
    assert_eq!(lost, Loss::Removed);
    assert!(matches!(stopped, Err(Error::Lost(Loss::Removed))));
    assert!(dropped.load(Ordering::Acquire), "the work was not dropped");
    assert!(!held.is_held());
    assert_eq!(held.state(), HoldState::Lost { why: Loss::Removed });
    // Even work that is ready at its first poll is refused.
    assert!(matches!(held.run(async {}).await, Err(Error::Lost(Loss::Removed))));
    assert!(matches!(held.read_node(&s.directory).await, Err(Error::Lost(Loss::Removed))));
    soon("a free lock", s.b.write()).await.expect("free").release().await.expect("held");
}

/// The waiter and the lost node belong to one session. The waiter learns of the loss from that session, and must not wait until
/// the lost guard is dropped.
pub async fn a_waiter_behind_a_lost_local_node_is_granted<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let waits = writer(&s.a);
    line_becomes(&s.b, if s.keeps { "W+" } else { "W+ W-" }).await;
    s.operator.delete(&held.node_path()).await.expect("there");
    let next = granted(waits).await;
    // The node may be deleted before the guard's watch on it is set. Then the guard notices the loss when the watch is
    // set.
    eventually("the guard is lost", || async { !held.is_held() }).await;
    drop((held, next));
}

pub async fn a_removed_waiter_is_evicted<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let write = writer(&s.b);
    line_becomes(&s.a, "W+ W-").await;
    let node = s.a.queue().await.expect("readable").members[1].node.clone();
    s.operator.delete(&format!("{}/{node}", s.directory)).await.expect("there");
    let error = refused(write).await;
    assert!(matches!(error, Error::Evicted(Loss::Removed)) && error.is_lost(), "{error:?}");
    held.release().await.expect("held");
}

pub async fn a_guard_dropped_outside_a_runtime_frees_the_lock<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let write = writer(&s.b);
    line_becomes(&s.a, "W+ W-").await;
    joined(thread::spawn(move || drop(held))).await.expect("dropping does not panic");
    let held = granted(write).await;
    let read = reader(&s.a);
    line_becomes(&s.a, "W+ R-").await;
    drop(held);
    drop(granted(read).await);
    s.becomes_empty().await;
}

/// A task that its waker polls inside the call that wakes the task.
struct InlineTask {
    work: Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>,
    is_woken: AtomicBool,
    is_over: AtomicBool,
}

impl Wake for InlineTask {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        while self.is_woken.load(Ordering::SeqCst) && !self.is_over.load(Ordering::SeqCst) {
            // If another call is polling the task, that call polls the task once more.
            let Ok(mut work) = self.work.try_lock() else { return };
            self.is_woken.store(false, Ordering::SeqCst);
            let waker = Waker::from(Arc::clone(&self));
            if work.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.is_over.store(true, Ordering::SeqCst);
            }
        }
    }
}

pub async fn a_waker_may_poll_its_task_inside_a_request<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let (report, granted) = mpsc::channel();
    let mut queue = "W+".to_owned();
    for number in 0..12 {
        let (lock, report) = (if number % 2 == 0 { &s.a } else { &s.b }, report.clone());
        let write = lock.write().into_future();
        let work = Mutex::new(Box::pin(async move {
            let guard = write.await.expect("the lock is granted");
            report.send((number, guard.is_held())).expect("the test waits for it");
            // The release may wake the next task before `drop` returns.
            drop(guard);
        }) as Pin<Box<dyn Future<Output = ()> + Send>>);
        let (is_woken, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Waker::from(Arc::new(InlineTask { work, is_woken, is_over })).wake();
        queue.push_str(" W-");
        // With `keep`, the acquisitions of one handle share one node, so the queue shows no further contender.
        if !s.keeps {
            line_becomes(&s.b, &queue).await;
        }
    }
    drop((held, report));
    let in_order = tokio::task::spawn_blocking(move || granted.iter().collect::<Vec<_>>());
    let mut in_order = soon("the end of all", in_order).await.expect("no panic");
    if s.keeps {
        in_order.sort_unstable();
    }
    assert_eq!(in_order, (0..12).map(|number| (number, true)).collect::<Vec<_>>());
    s.becomes_empty().await;
}

pub async fn a_guard_dropped_in_a_panic_frees_the_lock<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let panics = thread::spawn(move || {
        let _held = held;
        // This unwinds like a panic, but prints no message.
        panic::resume_unwind(Box::new("meant to be"));
    });
    assert!(joined(panics).await.is_err());
    soon("the lock is free", s.b.write()).await.expect("free").release().await.expect("held");
}

pub async fn a_plain_thread_acquires_by_blocking<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let (a, b) = (s.a.clone(), s.b.clone());
    let plain = thread::spawn(move || {
        let (one, two) = (a.read().blocking().expect("free"), b.read().blocking().expect("shared"));
        assert!(one.is_held() && two.is_held());
        let late = b.write().timeout(Duration::from_millis(50)).blocking();
        assert!(late.is_err_and(|error| error.is_timeout()));
        drop((one, two));
        drop(b.write().blocking().expect("freed"));
    });
    joined(plain).await.expect("the thread acquires and releases");

    let held = soon("a free lock", s.a.write()).await.expect("free");
    let b = s.b.clone();
    let waits = thread::spawn(move || b.write().blocking().map(drop));
    line_becomes(&s.a, "W+ W-").await;
    held.release().await.expect("held");
    joined(waits).await.expect("does not panic").expect("granted");
    s.becomes_empty().await;
}

// Transactions under a lock.

pub async fn a_transaction_commits_while_the_lock_is_held<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let (config, mark) = (s.beside("config"), s.beside("mark"));
    assert_eq!(held.read_node(&config).await.expect("held"), None);
    let outcomes = held.transaction().create(&config, "v1").create_ephemeral(&mark, "").commit().await;
    assert_eq!(outcomes.expect("held"), [Outcome::Created, Outcome::Created]);
    let outcomes = held.transaction().check(&config, 0).set_version(&config, "v2", 0).set(&config, "v3").commit().await;
    let expected = [Outcome::Checked, Outcome::Set { version: 1 }, Outcome::Set { version: 2 }];
    assert_eq!(outcomes.expect("held"), expected);
    let data = held.read_node(&config).await.expect("held").expect("there");
    assert_eq!((data.data.as_slice(), data.version), (b"v3".as_slice(), 2));
    let outcomes = held.transaction().check_exists(&config).delete_version(&config, 2).delete(&mark).commit().await;
    assert_eq!(outcomes.expect("held"), [Outcome::Checked, Outcome::Deleted, Outcome::Deleted]);
    assert_eq!(held.transaction().commit().await.expect("held"), []);
    assert_eq!((s.data(&config).await, s.data(&mark).await), (None, None));
    held.release().await.expect("held");
    // A reader can commit as well.
    let read = soon("a free lock", s.b.read()).await.expect("free");
    read.transaction().create(&config, "v4").commit().await.expect("held");
    assert_eq!(s.data(&config).await.as_deref(), Some(b"v4".as_slice()));
}

pub async fn a_transaction_after_a_removal_changes_nothing<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let config = s.beside("config");
    held.transaction().create(&config, "v1").commit().await.expect("held");
    s.operator.delete(&held.node_path()).await.expect("there");
    let answer = held.transaction().set(&config, "v2").commit().await;
    assert!(matches!(answer, Err(Error::Lost(Loss::Removed))), "{answer:?}");
    assert!(!held.is_held());
    assert!(matches!(held.transaction().commit().await, Err(Error::Lost(Loss::Removed))));
    assert_eq!(s.data(&config).await.as_deref(), Some(b"v1".as_slice()));
}

pub async fn a_transaction_refuses_paths_inside_the_directory<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let (directory, config) = (s.directory.clone(), s.beside("config"));
    let before = s.children().await;
    for path in [format!("{directory}/foo"), held.node_path(), format!("{directory}/foo/bar")] {
        let t = || held.transaction().create(&config, "v1");
        let all = [
            t().set(&path, ""),
            t().set_version(&path, "", 0),
            t().create(&path, ""),
            t().create_ephemeral(&path, ""),
            t().delete(&path),
            t().delete_version(&path, 0),
        ];
        for transaction in all {
            assert!(is_invalid(transaction.commit().await), "{path}");
        }
    }
    for path in ["", "relative", "/trailing/", "/double//slash", "/a/../b"] {
        assert!(is_invalid(held.transaction().create(&config, "").set(path, "").commit().await), "{path:?}");
        assert!(is_invalid(held.read_node(path).await), "{path:?}");
    }
    assert_eq!((s.children().await, s.data(&config).await), (before, None));
    held.release().await.expect("held");
}

pub async fn a_refused_transaction_says_which_operation_and_why<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let (config, other) = (s.beside("config"), s.beside("other"));
    held.transaction().create(&config, "v1").commit().await.expect("held");
    let below = format!("{config}/below");
    let t = || held.transaction().set(&config, "v2");
    let cases = [
        (t().check(&config, 7), config.as_str(), Failure::BadVersion),
        (t().set_version(&config, "", 0), &config, Failure::BadVersion),
        (t().create(&config, ""), &config, Failure::NodeExists),
        (t().create(format!("{other}/x"), ""), &format!("{other}/x"), Failure::NoParent(other.clone())),
        (t().delete(&other), &other, Failure::NoNode),
        (t().check_exists(&other), &other, Failure::NoNode),
        (t().delete_version(&config, 0), &config, Failure::BadVersion),
    ];
    for (transaction, expected_path, expected) in cases {
        match transaction.commit().await {
            Err(Error::TransactionRefused { index, path, reason }) => {
                assert_eq!((index, path.as_str(), reason), (1, expected_path, expected));
            }
            answer => panic!("{answer:?} for {expected_path}, expected {expected}"),
        }
    }
    held.transaction().create(&below, "").commit().await.expect("held");
    let answer = held.transaction().delete(&config).commit().await;
    let Err(Error::TransactionRefused { index: 0, reason: Failure::NotEmpty, .. }) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(s.data(&config).await.as_deref(), Some(b"v1".as_slice()));
    held.release().await.expect("a refused transaction loses nothing");
}

// The lock's directory and its nodes.

pub async fn missing_directories_are_made<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let deep = format!("{}/a/b/c", s.directory);
    let lock = RwLock::new(&s.mine, &deep).expect("valid");
    assert!(lock.queue().await.expect("readable").members.is_empty());
    assert_eq!(lock.path(), deep);
    let held = soon("a free lock", lock.write()).await.expect("free");
    assert!(held.node_path().starts_with(&format!("{deep}/")));
    let tried = RwLock::new(&s.theirs, format!("{}/x/y", s.directory)).expect("valid");
    soon("a free lock", tried.try_read()).await.expect("free").release().await.expect("held");
}

pub async fn a_directory_deleted_between_uses_is_made_again<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let mut token = 0;
    for round in 0..3 {
        let held = soon("a free lock", s.a.write()).await.expect("free");
        assert!(held.node_path().ends_with("0000000000"), "{}", held.node_path());
        assert!(held.fencing_token() > token, "round {round}: {} after {token}", held.fencing_token());
        token = held.fencing_token();
        held.release().await.expect("held");
        s.becomes_empty().await;
        s.operator.delete(&s.directory).await.expect("empty");
    }
    soon("a free lock", s.b.try_write()).await.expect("free").release().await.expect("held");
}

pub async fn an_ephemeral_node_is_no_lock_directory<H: Harness>(h: &H) {
    let s = Stage::set(h).await.with_directory().await;
    let ephemeral = format!("{}/ephemeral", s.directory);
    s.operator.create(&ephemeral, b"", Kind::Ephemeral).await.expect("created");
    for path in [ephemeral.clone(), format!("{ephemeral}/lock"), format!("{ephemeral}/a/b")] {
        let lock = RwLock::new(&s.mine, &path).expect("valid");
        for error in [
            soon("the refusal", lock.write()).await.expect_err("no directory"),
            soon("the refusal", lock.try_read()).await.expect_err("no directory"),
        ] {
            assert!(matches!(&error, Error::EphemeralParent { path: named } if *named == path), "{error:?}");
        }
    }
}

pub async fn wrong_input_is_refused_unsent<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    for path in ["", "/", "relative", "a/b", "/a/", "/a//b", "//a", "/a/./b", "/a/..", "/zookeeper", "/zookeeper/a"] {
        assert!(is_invalid(RwLock::new(&s.mine, path)), "{path:?}");
    }
    for path in ["/a\0b", "/a\nb", "/a\u{7f}", "/a\u{e000}", "/a\u{f8ff}", "/a\u{fff0}", "/a\u{ffff}", "/a\u{1f512}"] {
        assert!(is_invalid(RwLock::new(&s.mine, path)), "{path:?}");
    }
    let odd = RwLock::new(&s.mine, format!("{}-\u{d7ff}\u{f900}\u{ffef}", s.directory)).expect("allowed");
    soon("a free lock", odd.write()).await.expect("free").release().await.expect("held");
    let builder = || RwLock::builder(&s.mine, &s.directory);
    for host in ["", " ", "a b", "a/b", "a~b", "h\u{f6}st", "a\nb", &"x".repeat(65)] {
        assert!(is_invalid(builder().host(host).build()), "{host:?}");
    }
    assert!(builder().host("x".repeat(64)).build().is_ok());
    assert!(builder().host("web-1.example_com-WRITE-0000000001").build().is_ok());
    for label in ["a\nb", "a\tb", "\0", "\u{7f}", "\u{85}", &"x".repeat(257)] {
        assert!(is_invalid(builder().label(label).build()), "{label:?}");
        assert!(is_invalid(s.a.read().label(label).await), "{label:?}");
        assert!(is_invalid(s.a.write().label(label).await), "{label:?}");
    }
    assert!(is_invalid(s.a.read().timeout(Duration::ZERO).await));
    assert!(is_invalid(s.a.write().timeout(Duration::ZERO).await));
    assert_eq!(s.operator.children(&s.directory).await, Err(Failure::NoNode));
    let longest = "x".repeat(256);
    let held = soon("a free lock", s.a.write().label(&longest)).await.expect("free");
    assert_eq!(s.b.queue().await.expect("readable").members[0].label.as_deref(), Some(longest.as_str()));
    held.release().await.expect("held");
}

pub async fn foreign_children_are_no_contenders<H: Harness>(h: &H) {
    let s = Stage::set(h).await.with_directory().await;
    let foreign = ["foo", "x-READ-abc", "a-WRITE-12", "sub", "-WRITE-", "a-WRITE-00000000001"];
    for name in foreign {
        s.operator.create(&format!("{}/{name}", s.directory), b"", Kind::Persistent).await.expect("created");
    }
    s.operator.create(&format!("{}/sub/a-WRITE-0000000000", s.directory), b"", Kind::Ephemeral).await.expect("created");
    let held = soon("a free lock", s.a.write()).await.expect("free");
    assert_eq!(line(&s.b).await, "W+");
    let error = s.b.try_read().await.expect_err("taken");
    assert!(matches!(&error, Error::WouldBlock { blockers } if blockers.ahead == 1), "{error:?}");
    let write = writer(&s.b);
    line_becomes(&s.a, "W+ W-").await;
    held.release().await.expect("held");
    granted(write).await.release().await.expect("held");
    s.b.try_write().await.expect("free").release().await.expect("held");
    assert_eq!(s.children().await.len(), foreign.len());
}

pub async fn a_node_of_another_program_takes_part_in_the_queue<H: Harness>(h: &H) {
    let s = Stage::set(h).await.with_directory().await;
    let other = format!("{}/other-WRITE-0000000000", s.directory);
    s.operator.create(&other, b"not our data", Kind::Ephemeral).await.expect("created");
    let error = s.b.try_read().await.expect_err("taken");
    let Error::WouldBlock { blockers } = &error else { panic!("{error}") };
    assert_eq!((blockers.first[0].host.as_str(), blockers.first[0].pid), ("other", None));
    let read = reader(&s.a);
    line_becomes(&s.b, "W+ R-").await;
    let members = s.b.queue().await.expect("readable").members;
    assert_eq!(members[1].state, MemberState::Waits { behind: "other-WRITE-0000000000".to_owned() });
    assert!(!read.is_finished());
    s.operator.delete(&other).await.expect("there");
    granted(read).await.release().await.expect("held");

    let other = format!("{}/other-READ-0000000000", s.directory);
    s.operator.create(&other, b"", Kind::Ephemeral).await.expect("created");
    soon("beside a reader", s.a.read()).await.expect("shared").release().await.expect("held");
    let write = writer(&s.a);
    line_becomes(&s.b, "R+ W-").await;
    s.operator.delete(&other).await.expect("there");
    granted(write).await.release().await.expect("held");
}

pub async fn the_queue_shows_holders_and_waiters_in_order<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let start = SystemTime::now();
    assert_eq!(s.a.queue().await.expect("readable").to_string(), format!("{}: free", s.directory));
    let held = soon("a free lock", s.a.read().label("report")).await.expect("free");
    let write = tokio::spawn(s.b.write().label("migrate").into_future());
    line_becomes(&s.a, "R+ W-").await;
    let read = reader(&s.a);
    line_becomes(&s.a, "R+ W- R-").await;

    let queue = s.b.queue().await.expect("readable");
    assert_eq!(queue.path, s.directory);
    let mine = session(&s.mine).await.id();
    let theirs = session(&s.theirs).await.id();
    let states: Vec<_> = queue
        .members
        .iter()
        .map(|m| (m.mode, m.host.as_str(), m.pid, m.label.as_deref(), m.session, m.state.clone()))
        .collect();
    let pid = Some(process::id());
    let behind = |i: usize| MemberState::Waits { behind: queue.members[i].node.clone() };
    assert_eq!(
        states,
        [
            (Mode::Read, "host-a", pid, Some("report"), Some(mine), MemberState::Holds),
            (Mode::Write, "host-b", pid, Some("migrate"), Some(theirs), behind(0)),
            (Mode::Read, "host-a", pid, None, Some(mine), behind(1)),
        ]
    );
    let slack = Duration::from_secs(2);
    let since: Vec<_> = queue.members.iter().map(|m| m.since.expect("its node can be read")).collect();
    assert!(since.is_sorted() && since[0] + slack >= start && since[2] <= SystemTime::now() + slack, "{since:?}");
    assert!(held.node_path().ends_with(&queue.members[0].node));
    assert_eq!((queue.holders().count(), queue.waiters().count()), (1, 2));
    let text = queue.to_string();
    assert!(text.contains("READ host-a") && text.contains("\"migrate\"") && text.contains("waits behind"), "{text}");

    held.release().await.expect("held");
    granted(write).await.release().await.expect("held");
    granted(read).await.release().await.expect("held");
}

pub async fn fencing_tokens_rise_with_every_exclusive_grant<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let mut token = 0;
    for round in 0..4 {
        let write = soon("a free lock", s.a.write()).await.expect("free");
        assert!(write.fencing_token() > token);
        token = write.fencing_token();
        drop(write);
        let (one, two) =
            (soon("freed", s.b.read()).await.expect("free"), soon("shared", s.a.read()).await.expect("free"));
        assert!(one.fencing_token() > token && two.fencing_token() > token, "round {round}");
        token = one.fencing_token().max(two.fencing_token());
        one.release().await.expect("held");
        two.release().await.expect("held");
        if round % 2 == 1 {
            s.operator.delete(&s.directory).await.expect("empty");
        }
    }
}

// Contenders that lose their session or are evicted, and surveys of queues.

pub async fn a_waiter_whose_session_ends_is_evicted<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let write = writer(&s.b);
    line_becomes(&s.a, "W+ W-").await;
    h.expire(&s.theirs).await;
    let error = refused(write).await;
    assert!(matches!(error, Error::Evicted(Loss::SessionOver(_) | Loss::LeaseRanOut)) && error.is_lost(), "{error:?}");
    line_becomes(&s.a, "W+").await;
    held.release().await.expect("held");
    soon("a fresh session", s.b.write()).await.expect("free").release().await.expect("held");
}

pub async fn an_expired_guard_is_lost_and_its_handle_works<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let token = held.fencing_token();
    let write = writer(&s.b);
    line_becomes(&s.b, "W+ W-").await;
    h.expire(&s.mine).await;
    let next = granted(write).await;
    safe!(!held.is_held(), "two contenders hold");
    safe!(next.fencing_token() > token);
    let why = soon("the loss", held.lost()).await;
    assert!(matches!(why, Loss::SessionOver(_) | Loss::LeaseRanOut), "{why:?}");
    assert!(matches!(held.run(async {}).await, Err(Error::Lost(_))));
    assert!(matches!(held.transaction().commit().await, Err(Error::Lost(_))));
    assert!(matches!(soon("the release", held.release()).await, Err(Error::Lost(lost)) if lost == why));
    next.release().await.expect("held");
    let again = soon("a fresh session", s.a.write()).await.expect("free");
    assert!(again.is_held());
    again.release().await.expect("held");
}

pub async fn closing_ends_guards_waiters_and_acquisitions<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.read()).await.expect("free");
    let theirs = soon("beside a reader", s.b.read()).await.expect("shared");
    let write = writer(&s.a);
    line_becomes(&s.b, "R+ R+ W-").await;
    let next = writer(&s.b);
    line_becomes(&s.b, "R+ R+ W- W-").await;

    soon("the end of the session", s.mine.close()).await;
    assert!(!held.is_held());
    assert_eq!(soon("the loss", held.lost()).await, Loss::SessionOver(SessionEnd::Closed));
    let error = refused(write).await;
    let is_closed = matches!(&error, Error::Closed(SessionEnd::Closed));
    assert!(is_closed, "{error:?}");
    for error in [
        soon("the refusal", s.a.read()).await.expect_err("closed"),
        soon("the refusal", s.a.write()).await.expect_err("closed"),
        soon("the refusal", s.a.try_read()).await.expect_err("closed"),
        soon("the refusal", s.a.try_write()).await.expect_err("closed"),
        soon("the refusal", s.a.queue()).await.expect_err("closed"),
    ] {
        assert!(matches!(error, Error::Closed(SessionEnd::Closed)), "{error:?}");
    }
    assert_eq!(line(&s.b).await, "R+ W-", "the nodes of the session are still there");
    assert!(matches!(held.release().await, Err(Error::Lost(Loss::SessionOver(SessionEnd::Closed)))));
    theirs.release().await.expect("held");
    granted(next).await.release().await.expect("held");
    soon("closed already", s.mine.close()).await;
}

pub async fn a_guard_cut_off_is_suspect_until_the_reconnect<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let mut changes = held.changes();
    assert_eq!(soon("the present state", changes.next()).await, Some(HoldState::Held));
    assert_eq!(held.state(), HoldState::Held);
    h.cut(&s.mine).await;
    let suspect = soon("the cut is noticed", changes.next()).await;
    let Some(HoldState::Suspect { until }) = suspect else { panic!("{suspect:?}") };
    h.heal(&s.mine).await;
    assert!(until > Instant::now() - Duration::from_secs(1));
    assert_eq!(soon("the connection is back", changes.next()).await, Some(HoldState::Held));
    assert!(held.is_held());
    held.transaction().commit().await.expect("held");
    h.expire(&s.mine).await;
    let mut last = soon("the end", changes.next()).await;
    while !matches!(last, Some(HoldState::Lost { .. })) {
        last = soon("the end", changes.next()).await;
        assert!(last.is_some(), "the changes end before the loss");
    }
    assert_eq!(changes.next().await, None);
    assert!(!held.is_held());
    assert!(matches!(held.state(), HoldState::Lost { .. }));
}

/// A holder that hands the lock over writes to its node. A write that a waiter has missed is none: the waiter does not know
/// what was written.
pub async fn a_write_that_a_waiter_missed_while_cut_off_is_no_hand_off<H: Harness>(h: &H) {
    let s = Stage::set(h).await.with_directory().await;
    waits_through_a_missed_write(h, &s, writer, "W+ W-").await;
    waits_through_a_missed_write(h, &s, reader, "W+ R-").await;
}

async fn waits_through_a_missed_write<H: Harness<C = C>, C: Coordinator + Clone, G>(
    h: &H,
    s: &Stage<C>,
    begin: impl FnOnce(&RwLock) -> JoinHandle<Result<G, Error>>,
    queue: &str,
) {
    let name = format!("{}/operator-WRITE-", s.directory);
    let before = s.operator.create(&name, b"", Kind::EphemeralSequential).await.expect("allowed").path;
    let mut waiter = begin(&s.a);
    line_becomes(&s.b, queue).await;
    h.cut(&s.mine).await;
    let write = Operation::Set { path: before.clone(), data: Vec::new(), version: None };
    s.operator.transact(&[write]).await.expect("allowed");
    h.heal(&s.mine).await;
    soon("the reconnect", session(&s.mine).await.sync(&s.directory)).await.expect("connected");
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut waiter).await.is_err(), "granted by a missed write");
    s.operator.delete(&before).await.expect("there");
    drop(granted(waiter).await);
    s.becomes_empty().await;
}

pub async fn evicting_by_token_removes_that_member_only<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let waits = writer(&s.b);
    line_becomes(&s.a, "W+ W-").await;
    let tokens: Vec<_> = s.a.queue().await.expect("readable").members.iter().map(|member| member.token).collect();
    assert_eq!(tokens[0], Some(held.fencing_token()));
    let unused = held.fencing_token() - 1;
    assert!(s.b.evict(unused).await.expect("reachable").is_none());
    assert_eq!(line(&s.a).await, "W+ W-");

    let evicted = s.b.evict(held.fencing_token()).await.expect("allowed").expect("in the queue");
    assert_eq!((evicted.host.as_str(), evicted.token), ("host-a", tokens[0]));
    assert_eq!(soon("the loss", held.lost()).await, Loss::Removed);
    let next = granted(waits).await;
    assert_eq!(Some(next.fencing_token()), tokens[1]);
    // The former holder's token no longer evicts any contender.
    assert!(s.b.evict(held.fencing_token()).await.expect("reachable").is_none());
    assert!(next.is_held());
    next.release().await.expect("held");
    assert!(s.b.evict(tokens[1].expect("readable")).await.expect("reachable").is_none());
}

pub async fn a_session_outlasts_the_lease_of_its_guards<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.write()).await.expect("free");
    let timeout = session(&s.mine).await.timeout();
    assert!(held.session_left() > timeout / 3);
    h.cut(&s.mine).await;
    assert_eq!(soon("the loss", held.lost()).await, Loss::LeaseRanOut);
    let left = held.session_left();
    assert!(left <= timeout / 3, "{left:?} of {timeout:?}");
    eventually("the session is over", || async { held.session_left().is_zero() }).await;
}

pub async fn a_survey_finds_every_queue_below_a_prefix<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let open = |path: &str| RwLock::new(&s.mine, format!("{}/{path}", s.directory)).expect("valid");
    let mut guards = Vec::new();
    for path in ["one", "deep/er/two", "deep/three"] {
        guards.push(soon("a free lock", open(path).write().label(path)).await.expect("free"));
    }
    soon("a free lock", open("unused").write()).await.expect("free").release().await.expect("held");
    let survey = Survey::below(&s.theirs, &s.directory).await.expect("readable");
    let found: Vec<_> =
        survey.queues.iter().map(|q| (q.path.replacen(&s.directory, "", 1), q.members[0].label.clone())).collect();
    let expected = ["deep/er/two", "deep/three", "one"];
    assert_eq!(found, expected.map(|path| (format!("/{path}"), Some(path.to_owned()))));
    assert!(survey.unreadable.is_empty());
    assert_eq!(Survey::below(&s.theirs, format!("{}/one", s.directory)).await.expect("readable").queues.len(), 1);
    let everything = Survey::below(&s.theirs, "/").await.expect("readable");
    assert!(everything.queues.iter().any(|queue| queue.path.ends_with("deep/er/two")), "{everything:?}");
    assert!(Survey::below(&s.theirs, "locks").await.is_err());
}

pub async fn a_holder_learns_of_its_first_waiter<H: Harness>(h: &H) {
    let s = Stage::set(h).await;
    let held = soon("a free lock", s.a.read()).await.expect("free");
    let (learns, beside) = (tokio::time::timeout(SOON, held.contended()), async {
        let beside = soon("a shared lock", s.b.read()).await.expect("shared");
        (writer(&s.b), beside)
    });
    let (first, (write, beside)) = tokio::join!(learns, beside);
    let first = first.expect("in time").expect("held");
    assert_eq!((first.mode(), first.host()), (Mode::Write, "host-b"));
    held.release().await.expect("held");
    beside.release().await.expect("held");

    let held = granted(write).await;
    let (learns, read) = (tokio::time::timeout(SOON, held.contended()), async {
        let read: JoinHandle<_> = reader(&s.a);
        (read,)
    });
    let (first, (read,)) = tokio::join!(learns, read);
    let first = first.expect("in time").expect("held");
    assert_eq!((first.mode(), first.host()), (Mode::Read, "host-a"));
    held.release().await.expect("held");
    granted(read).await.release().await.expect("held");
}
