//! Work that one of many processes does once in a period, on each backend.

// These functions are public, because a macro in `main.rs` calls them.
#![allow(unreachable_pub)]

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use zk_rwlock::coordinator::{Coordinator, Failure, Kind, Session};
use zk_rwlock::once::OnceGuard;
use zk_rwlock::{Dialect, Error, Loss, RwLock, Survey};

use support::harness::Harness;
use support::scene::{SOON, eventually, granted, line_becomes, soon};

const PERIOD: Duration = Duration::from_secs(3_600);

/// Two processes that do the same work, and an operator.
struct Stage<C> {
    mine: C,
    a: RwLock,
    b: RwLock,
    operator: Arc<dyn Session>,
    operators: C,
    directory: String,
}

impl<C: Coordinator + Clone> Stage<C> {
    async fn set<H: Harness<C = C>>(h: &H) -> Stage<C> {
        let (mine, theirs, operators) = (h.client().await, h.client().await, h.client().await);
        let directory = h.directory();
        let open = |client: &C, host: &str| {
            RwLock::builder(client, &directory).host(host).label("report").build().expect("valid")
        };
        let (a, b) = (open(&mine, "host-a"), open(&theirs, "host-b"));
        let operator = Arc::clone(operators.session_slot(0).await.expect("alive").session());
        Stage { mine, a, b, operator, operators, directory }
    }

    fn record(&self) -> String {
        format!("{}.done", self.directory)
    }
}

async fn due(lock: &RwLock) -> Option<OnceGuard> {
    soon("the lock", lock.write().once_in(PERIOD)).await.expect("granted").due()
}

async fn works(lock: &RwLock) {
    let guard = due(lock).await.expect("due");
    soon("the record", guard.done()).await.expect("recorded");
    soon("the release", guard.release()).await.expect("held");
}

pub async fn work_is_done_again_only_after_the_period<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    works(&stage.a).await;
    assert!(due(&stage.b).await.is_none() && due(&stage.a).await.is_none());
    let short = Duration::from_millis(100);
    eventually("the period is over", || async {
        soon("the lock", stage.b.write().once_in(short)).await.expect("granted").is_due()
    })
    .await;
    line_becomes(&stage.a, "").await;
}

pub async fn work_done_while_a_contender_waited_is_not_repeated<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let guard = due(&stage.a).await.expect("due");
    let waits = tokio::spawn(stage.b.write().once_in(PERIOD).into_future());
    line_becomes(&stage.a, "W+ W-").await;
    guard.done().await.expect("recorded");
    guard.release().await.expect("held");
    assert!(granted(waits).await.due().is_none());
    line_becomes(&stage.a, "").await;
}

pub async fn the_next_waiter_repeats_failed_work<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let guard = due(&stage.a).await.expect("due");
    let waits = tokio::spawn(stage.b.write().once_in(PERIOD).into_future());
    line_becomes(&stage.a, "W+ W-").await;
    guard.release().await.expect("held");
    let next = granted(waits).await.due().expect("due");
    next.done().await.expect("recorded");
    next.release().await.expect("held");
    assert!(due(&stage.a).await.is_none());
}

pub async fn one_of_many_contenders_does_the_work<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let mut tasks = Vec::new();
    for lock in [&stage.a, &stage.b].repeat(4) {
        let lock = lock.clone();
        tasks.push(tokio::spawn(async move {
            let Some(guard) = lock.write().timeout(SOON).once_in(PERIOD).await.expect("granted").due() else {
                return 0;
            };
            guard.done().await.expect("recorded");
            1
        }));
    }
    let mut done = 0;
    for task in tasks {
        done += soon("the work", task).await.expect("no panic");
    }
    assert_eq!(done, 1);
}

pub async fn a_holder_whose_session_ended_records_nothing<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let guard = due(&stage.a).await.expect("due");
    let waits = tokio::spawn(stage.b.write().once_in(PERIOD).into_future());
    line_becomes(&stage.b, "W+ W-").await;
    h.expire(&stage.mine).await;
    let next = granted(waits).await.due().expect("due");
    let lost = soon("the answer", guard.done()).await.expect_err("the session is over");
    assert!(lost.is_lost(), "{lost:?}");
    assert_eq!(stage.operator.data(&stage.record()).await, Err(Failure::NoNode));
    drop(next);
}

pub async fn a_holder_whose_node_was_removed_records_nothing<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    let guard = due(&stage.a).await.expect("due");
    stage.operator.delete(&guard.node_path()).await.expect("there");
    let lost = soon("the answer", guard.done()).await.expect_err("the node is gone");
    assert!(matches!(lost, Error::Lost(Loss::Removed)), "{lost:?}");
    assert_eq!(stage.operator.data(&stage.record()).await, Err(Failure::NoNode));
    works(&stage.b).await;
}

pub async fn the_record_outlives_the_directory<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    works(&stage.a).await;
    eventually("the directory is empty", || async { stage.operator.delete(&stage.directory).await.is_ok() }).await;
    assert!(due(&stage.b).await.is_none());
    let done = stage.b.queue().await.expect("readable").done.expect("recorded");
    let stat = stage.operator.data(&stage.record()).await.expect("there").1;
    assert_eq!((&done.host[..], done.label.as_deref(), done.at), ("host-a", Some("report"), stat.mtime));
    assert_eq!((done.pid, stat.ephemeral_owner), (Some(std::process::id()), 0));

    // A survey reads the lock while it is free, and while it is held.
    let survey = |prefix: String| Survey::below(&stage.operators, prefix);
    let parent = stage.directory.rsplit_once('/').expect("a path").0.to_owned();
    for prefix in [parent, stage.directory.clone()] {
        for is_held in [false, true] {
            let held = if is_held { Some(stage.b.write().await.expect("free")) } else { None };
            let seen = survey(prefix.clone()).await.expect("readable").queues;
            let queues: Vec<_> = seen.iter().filter(|queue| queue.path == stage.directory).collect();
            let [queue] = queues[..] else { panic!("{queues:?}") };
            assert_eq!((queue.members.len(), queue.done.as_ref()), (usize::from(is_held), Some(&done)));
            if let Some(held) = held {
                held.release().await.expect("held");
            }
        }
    }

    assert_eq!(soon("the answer", stage.b.forget()).await.expect("allowed"), Some(done));
    assert_eq!(soon("the answer", stage.b.forget()).await.expect("allowed"), None);
    assert!(due(&stage.b).await.is_some());
}

pub async fn a_node_that_is_no_record_is_refused_and_stays<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    drop(due(&stage.a).await);
    stage.operator.create(&stage.record(), b"minutes", Kind::Persistent).await.expect("created");
    let refused = soon("the refusal", stage.b.write().once_in(PERIOD)).await.expect_err("the node is no record");
    assert!(matches!(&refused, Error::ForeignRecord { path } if *path == stage.record()), "{refused:?}");
    assert!(matches!(stage.a.forget().await, Err(Error::ForeignRecord { .. })));
    line_becomes(&stage.a, "").await;
    assert_eq!(stage.operator.data(&stage.record()).await.expect("there").0, b"minutes");
}

pub async fn work_under_a_lock_of_any_dialect_is_done_once<H: Harness>(h: &H) {
    let stage = Stage::set(h).await;
    for dialect in [Dialect::Native, Dialect::Curator, Dialect::CuratorMutex, Dialect::Kazoo] {
        let path = format!("{}/{dialect}", stage.directory);
        let open = |client| RwLock::builder(client, &path).dialect(dialect).build().expect("valid");
        let (ours, theirs) = (open(&stage.mine), open(&stage.operators));
        let guard = due(&ours).await.expect("due");
        let other = theirs.clone();
        let waits = tokio::spawn(async move { other.write().once_in(PERIOD).await });
        line_becomes(&theirs, "W+ W-").await;
        guard.done().await.expect("recorded");
        guard.release().await.expect("held");
        assert!(granted(waits).await.due().is_none(), "{dialect}");
        assert!(theirs.queue().await.expect("readable").done.is_some(), "{dialect}");
    }
}
