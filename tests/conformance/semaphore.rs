//! The promises of the semaphore, through its public interface, on each backend.

// These functions are public, because a macro in `main.rs` calls them.
#![allow(unreachable_pub)]

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tokio::task::JoinHandle;
use zk_rwlock::coordinator::{Coordinator, Failure, Kind, Operation, Session};
use zk_rwlock::error::PermitsError;
use zk_rwlock::queue::MemberState;
use zk_rwlock::semaphore::Permit;
use zk_rwlock::{Error, HoldState, Leadership, Loss, Mode, RwLock, Semaphore, Shared, Survey, block_on};

use support::harness::Harness;
use support::scene::{SOON, eventually, granted, refused, soon, with_time_enough};

/// Two processes that use one semaphore, and an operator that makes and deletes nodes directly.
struct Stage<C> {
    path: String,
    mine: C,
    theirs: C,
    a: Semaphore,
    b: Semaphore,
    operator: Arc<dyn Session>,
}

impl<C: Coordinator + Clone> Stage<C> {
    async fn set<H: Harness<C = C>>(h: &H, permits: u32) -> Stage<C> {
        let (mine, theirs, operator) = (h.client().await, h.client().await, h.client().await);
        let path = h.directory();
        let open = |client: &C, host: &str| {
            Semaphore::builder(client, &path).permits(permits).lock(|lock| lock.host(host)).build().expect("valid")
        };
        let operator = Arc::clone(operator.session_slot(0).await.expect("the session is alive").session());
        Stage { a: open(&mine, "host-a"), b: open(&theirs, "host-b"), mine, theirs, operator, path }
    }

    fn in_it(&self, part: &str) -> String {
        format!("{}/{part}", self.path)
    }

    async fn children(&self, part: &str) -> Vec<String> {
        let directory = self.in_it(part);
        let synced = self.operator.sync(&directory);
        let children = self.operator.children(&directory);
        let _nothing_to_sync = synced.await;
        match children.await {
            Ok(mut children) => {
                children.sort();
                children
            }
            Err(Failure::NoNode) => Vec::new(),
            Err(failure) => panic!("{directory} cannot be listed: {failure}"),
        }
    }

    async fn set_data(&self, path: &str, data: &[u8]) {
        let set = Operation::Set { path: path.to_owned(), data: data.to_vec(), version: None };
        self.operator.transact(&[set]).await.expect("allowed");
    }

    /// Waits until no permit is taken and no contender waits.
    async fn becomes_empty(&self) {
        for part in ["permits", "queue"] {
            eventually("nothing is left", || async { self.children(part).await.is_empty() }).await;
        }
    }

    /// Acquires permits in a task of its own, and waits until that contender is in the queue.
    async fn queue_up(&self, semaphore: &Semaphore, permits: u32) -> JoinHandle<Result<Permit, Error>> {
        let before = self.children("queue").await.len();
        let task = tokio::spawn(semaphore.acquire_many(permits).into_future());
        eventually("the contender is queued", || async { self.children("queue").await.len() > before }).await;
        task
    }
}

async fn take_all(semaphore: &Semaphore, count: usize) -> Vec<Permit> {
    let mut permits = Vec::new();
    for _ in 0..count {
        permits.push(soon("a free permit", semaphore.acquire()).await.expect("free"));
    }
    permits
}

/// Returns the members in order, each with its number of permits and `+` for a holder or `-` for a waiter.
async fn line(semaphore: &Semaphore) -> String {
    let queue = semaphore.queue().await.expect("readable");
    let word = |state: &MemberState| if *state == MemberState::Holds { '+' } else { '-' };
    let words: Vec<_> = queue
        .members
        .iter()
        .map(|member| format!("{}{}", member.permits.expect("readable"), word(&member.state)))
        .collect();
    words.join(" ")
}

async fn line_becomes(semaphore: &Semaphore, expected: &str) {
    eventually(&format!("the queue is {expected:?}"), || async { line(semaphore).await == expected }).await;
}

async fn cancel(task: JoinHandle<Result<Permit, Error>>) {
    task.abort();
    assert!(task.await.is_err_and(|stop| stop.is_cancelled()), "the acquisition ended before it was cancelled");
}

// Holders of permits, and the order of grants.

pub async fn there_are_never_more_holders_than_permits<H: Harness>(h: &H) {
    let s = Stage::set(h, 3).await;
    let mut held = take_all(&s.a, 2).await;
    held.extend(take_all(&s.b, 1).await);
    assert!(held.iter().all(|permit| permit.is_held()));
    let (one, two) = (s.queue_up(&s.a, 1).await, s.queue_up(&s.b, 1).await);
    line_becomes(&s.b, "1+ 1+ 1+ 1- 1-").await;
    assert!(!one.is_finished() && !two.is_finished());
    held.remove(0).release().await.expect("held");
    let one = granted(one).await;
    line_becomes(&s.b, "1+ 1+ 1+ 1-").await;
    assert!(!two.is_finished());
    drop(one);
    assert!(granted(two).await.is_held());
}

pub async fn permits_are_granted_in_the_order_of_arrival<H: Harness>(h: &H) {
    let s = Stage::set(h, 1).await;
    let mut held = soon("a free permit", s.a.acquire()).await.expect("free");
    let mut tasks = Vec::new();
    for semaphore in [&s.b, &s.a, &s.a, &s.b, &s.b, &s.a] {
        tasks.push(s.queue_up(semaphore, 1).await);
    }
    while !tasks.is_empty() {
        held.release().await.expect("held");
        held = granted(tasks.remove(0)).await;
        assert!(tasks.iter().all(|task| !task.is_finished()), "a contender overtook another");
    }
    held.release().await.expect("held");
    s.becomes_empty().await;
}

pub async fn a_waiter_for_several_permits_blocks_the_queue<H: Harness>(h: &H) {
    let s = Stage::set(h, 3).await;
    let mut held = take_all(&s.a, 2).await;
    let several = s.queue_up(&s.b, 3).await;
    let one = s.queue_up(&s.a, 1).await;
    line_becomes(&s.a, "1+ 1+ 3- 1-").await;
    held.remove(0).release().await.expect("held");
    line_becomes(&s.a, "1+ 3- 1-").await;
    assert!(!several.is_finished() && !one.is_finished());
    held.remove(0).release().await.expect("held");
    let several = granted(several).await;
    assert_eq!(several.count(), 3);
    line_becomes(&s.a, "3+ 1-").await;
    several.release().await.expect("held");
    assert!(granted(one).await.is_held());
}

pub async fn several_permits_are_taken_and_returned_at_once<H: Harness>(h: &H) {
    let s = Stage::set(h, 5).await;
    let three = soon("free permits", s.a.acquire_many(3)).await.expect("free");
    let two = soon("free permits", s.b.acquire_many(2)).await.expect("free");
    assert_eq!((three.count(), two.count()), (3, 2));
    assert_eq!(line(&s.b).await, "3+ 2+");
    assert!(s.b.try_acquire().await.is_err_and(|error| error.is_would_block()));
    three.release().await.expect("held");
    assert!(s.b.try_acquire_many(4).await.is_err_and(|error| error.is_would_block()));
    assert_eq!(s.b.try_acquire_many(3).await.expect("free").count(), 3);
}

pub async fn a_try_without_a_free_permit_names_the_holders<H: Harness>(h: &H) {
    let s = Stage::set(h, 1).await;
    let held = soon("a free permit", s.b.try_acquire()).await.expect("free");
    let parent = async || s.operator.data(&s.in_it("queue")).await.expect("made").1;
    let before = (parent().await, s.children("permits").await);
    let error = soon("the refusal", s.a.try_acquire()).await.expect_err("taken");
    assert!(error.is_would_block() && error.to_string().contains("held by PERMIT host-b pid "), "{error}");
    assert_eq!((parent().await, s.children("permits").await), before);
    assert!(s.children("queue").await.is_empty());
    held.release().await.expect("held");
    assert!(soon("a free permit", s.a.try_acquire()).await.expect("free").is_held());
}

pub async fn a_try_for_a_permit_overtakes_no_waiter<H: Harness>(h: &H) {
    let s = Stage::set(h, 3).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let waits = s.queue_up(&s.b, 3).await;
    let error = soon("the refusal", s.a.try_acquire()).await.expect_err("another waits");
    assert!(error.is_would_block() && error.to_string().ends_with("2 ahead"), "{error}");
    held.release().await.expect("held");
    granted(waits).await.release().await.expect("held");
}

pub async fn a_timeout_names_holders_and_leaves_no_node<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    let held = soon("free permits", s.b.acquire_many(2).label("import")).await.expect("free");
    // On a busy machine, the acquisition may time out before the members' data is read.
    let times_out = async |limit: Duration, ending: &str| {
        let late = s.a.acquire().timeout(limit).await.expect_err("taken");
        let (text, begin) = (late.to_string(), format!("not granted within {limit:?}: held by 2 PERMITS host-b pid "));
        assert!(late.is_timeout(), "{late}");
        let is_expected = text.starts_with(&begin) && text.contains("\"import\"") && text.ends_with(ending);
        if is_expected { Ok(()) } else { Err(text) }
    };
    for _ in 0..2 {
        with_time_enough(Duration::from_millis(250), async |limit| times_out(limit, "; 1 ahead").await).await;
    }
    eventually("the queue is empty", || async { s.children("queue").await.is_empty() }).await;
    let first = s.queue_up(&s.b, 1).await;
    with_time_enough(Duration::from_millis(250), async |limit| times_out(limit, "; 2 ahead").await).await;
    held.release().await.expect("held");
    granted(first).await.release().await.expect("held");
    s.becomes_empty().await;
}

pub async fn a_cancelled_head_lets_in_the_next_waiter<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    for (first, second) in [(&s.a, &s.b), (&s.a, &s.a), (&s.b, &s.a)] {
        let (first, second) = (s.queue_up(first, 2).await, s.queue_up(second, 1).await);
        line_becomes(&s.b, "1+ 2- 1-").await;
        cancel(first).await;
        granted(second).await.release().await.expect("held");
        line_becomes(&s.b, "1+").await;
    }
    held.release().await.expect("held");
    s.becomes_empty().await;
}

// The number of permits that a semaphore has.

pub async fn a_different_number_of_permits_is_an_error<H: Harness>(h: &H) {
    let s = Stage::set(h, 3).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let other = Semaphore::new(&s.theirs, &s.path, 4).expect("valid");
    let error = soon("the refusal", other.acquire()).await.expect_err("another number");
    assert!(matches!(error, Error::Permits { reason: PermitsError::Other { ours: 4, theirs: 3 }, .. }), "{error}");
    assert!(error.to_string().starts_with(&format!("{} has 3 permits, and was opened here with 4: ", s.path)));
    let error = soon("the refusal", other.try_acquire()).await.expect_err("another number");
    assert!(matches!(error, Error::Permits { reason: PermitsError::Other { ours: 4, theirs: 3 }, .. }), "{error}");
    // The same error comes even while no permit is free and other contenders wait: this acquisition could never be granted.
    let rest = soon("free permits", s.a.acquire_many(2)).await.expect("free");
    let refused = async || {
        let error = soon("the refusal", other.try_acquire()).await.expect_err("another number");
        assert!(matches!(error, Error::Permits { reason: PermitsError::Other { ours: 4, theirs: 3 }, .. }), "{error}");
    };
    refused().await;
    let waits = s.queue_up(&s.a, 1).await;
    refused().await;
    cancel(waits).await;
    drop(rest);
    assert_eq!(other.permits().await.expect("readable"), Some(3));
    held.release().await.expect("held");
    s.becomes_empty().await;
}

pub async fn only_one_of_two_first_numbers_of_permits_is_set<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    for round in 0..10 {
        let path = format!("{}-{round}", s.path);
        let open = |client: &H::C, permits| Semaphore::new(client, &path, permits).expect("valid");
        let (two, three) = (open(&s.mine, 2), open(&s.theirs, 3));
        let (two, three) = soon("both", async { tokio::join!(two.acquire().into_future(), three.acquire()) }).await;
        let number = open(&s.mine, 1).permits().await.expect("readable");
        match (number, two, three) {
            (Some(2), Ok(_), Err(Error::Permits { reason: PermitsError::Other { ours: 3, theirs: 2 }, .. })) => {}
            (Some(3), Err(Error::Permits { reason: PermitsError::Other { ours: 2, theirs: 3 }, .. }), Ok(_)) => {}
            all => panic!("{all:?}"),
        }
    }
}

pub async fn a_handle_without_a_number_of_permits_reads_it<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    let plain = Semaphore::builder(&s.theirs, &s.path).build().expect("valid");
    assert_eq!(plain.permits().await.expect("readable"), None);
    let error = soon("the refusal", plain.acquire()).await.expect_err("no number");
    assert!(matches!(error, Error::Permits { .. }), "{error}");
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    assert_eq!(plain.permits().await.expect("readable"), Some(2));
    let error = soon("the refusal", plain.acquire_many(3)).await.expect_err("too many");
    assert!(matches!(error, Error::Permits { reason: PermitsError::TooFew { wanted: 3, permits: 2 }, .. }), "{error}");
    let other = soon("a free permit", plain.acquire()).await.expect("free");
    assert!(plain.try_acquire().await.is_err_and(|error| error.is_would_block()));
    drop((held, other));
    s.becomes_empty().await;
}

pub async fn more_permits_than_exist_are_refused_unsent<H: Harness>(h: &H) {
    let s = Stage::set(h, 3).await;
    let error = soon("the refusal", s.a.acquire_many(4)).await.expect_err("too many");
    assert!(error.to_string().starts_with(&format!("{} has 3 permits, and 4 are wanted: ", s.path)));
    assert!(matches!(
        s.a.try_acquire_many(4).await,
        Err(Error::Permits { reason: PermitsError::TooFew { wanted: 4, permits: 3 }, .. })
    ));
    assert!(matches!(s.a.acquire_many(0).await, Err(Error::InvalidInput(_))));
    assert!(matches!(s.a.try_acquire_many(0).await, Err(Error::InvalidInput(_))));
    assert_eq!(s.operator.data(&s.path).await, Err(Failure::NoNode));
}

pub async fn a_raised_number_of_permits_lets_in_waiters<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    let held = soon("free permits", s.a.acquire_many(2)).await.expect("free");
    let (one, two) = (s.queue_up(&s.a, 1).await, s.queue_up(&s.b, 2).await);
    line_becomes(&s.b, "2+ 1- 2-").await;
    soon("the change", s.b.set_permits(5)).await.expect("allowed");
    let (one, two) = (granted(one).await, granted(two).await);
    assert!(held.is_held() && one.is_held() && two.is_held());
    assert_eq!(s.a.queue().await.expect("readable").free(), Some(0));
    // A handle that was used before the change still works, although it was opened with the old number. A new handle
    // with the old number is refused.
    drop((held, one, two));
    s.becomes_empty().await;
    assert_eq!(soon("free permits", s.a.acquire_many(5)).await.expect("free").count(), 5);
    let late = Semaphore::new(&s.mine, &s.path, 2).expect("valid");
    assert!(matches!(
        late.acquire().await,
        Err(Error::Permits { reason: PermitsError::Other { ours: 2, theirs: 5 }, .. })
    ));
}

pub async fn a_lowered_number_of_permits_evicts_nobody<H: Harness>(h: &H) {
    let s = Stage::set(h, 3).await;
    let mut held = take_all(&s.a, 3).await;
    let waits = s.queue_up(&s.b, 1).await;
    soon("the change", s.a.set_permits(1)).await.expect("allowed");
    assert!(held.iter().all(|permit| permit.is_held()));
    assert_eq!(s.b.queue().await.expect("readable").free(), Some(0));
    for _ in 0..2 {
        held.remove(0).release().await.expect("held");
        let left = vec!["1+"; held.len()].join(" ");
        line_becomes(&s.b, &format!("{left} 1-")).await;
        assert!(!waits.is_finished());
    }
    held.remove(0).release().await.expect("held");
    assert!(granted(waits).await.is_held());
    let error = soon("the refusal", s.a.acquire_many(2)).await.expect_err("too many");
    assert!(matches!(error, Error::Permits { reason: PermitsError::TooFew { wanted: 2, permits: 1 }, .. }), "{error}");
}

pub async fn a_waiter_for_more_permits_than_are_left_fails<H: Harness>(h: &H) {
    let s = Stage::set(h, 3).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let (head, next, last) = (s.queue_up(&s.b, 3).await, s.queue_up(&s.b, 3).await, s.queue_up(&s.a, 1).await);
    soon("the change", s.a.set_permits(2)).await.expect("allowed");
    for task in [head, next] {
        let error = refused(task).await;
        assert!(
            matches!(error, Error::Permits { reason: PermitsError::TooFew { wanted: 3, permits: 2 }, .. }),
            "{error}"
        );
    }
    assert!(granted(last).await.is_held() && held.is_held());
}

pub async fn a_number_of_permits_changed_by_hand_is_noticed<H: Harness>(h: &H) {
    let s = Stage::set(h, 1).await;
    // A handle compares its number of permits with the semaphore's at its first use. So the test uses this handle
    // before the change.
    soon("a free permit", s.b.acquire()).await.expect("free").release().await.expect("held");
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let waits = s.queue_up(&s.b, 1).await;
    s.set_data(&s.path, b"permits=2\n").await;
    let second = granted(waits).await;
    assert!(second.is_held() && held.is_held());
    let waits = s.queue_up(&s.b, 1).await;
    s.set_data(&s.path, b"lots").await;
    let error = refused(waits).await;
    assert!(error.to_string().contains("its data \"lots\" is no number of permits"), "{error}");
}

// Permits that are lost, and waiters that are evicted.

pub async fn a_removed_permit_is_lost_and_free_again<H: Harness>(h: &H) {
    let s = Stage::set(h, 1).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let waits = s.queue_up(&s.b, 1).await;
    s.operator.delete(&held.node_path()).await.expect("there");
    assert_eq!(soon("the loss", held.lost()).await, Loss::Removed);
    assert!(!held.is_held());
    assert!(matches!(held.run(std::future::pending::<()>()).await, Err(Error::Lost(Loss::Removed))));
    assert!(matches!(held.release().await, Err(Error::Lost(Loss::Removed))));
    granted(waits).await.release().await.expect("held");
    s.becomes_empty().await;
}

pub async fn a_removed_waiter_for_a_permit_is_evicted<H: Harness>(h: &H) {
    let s = Stage::set(h, 1).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let (head, next) = (s.queue_up(&s.b, 1).await, s.queue_up(&s.a, 1).await);
    for name in s.children("queue").await {
        s.operator.delete(&format!("{}/{name}", s.in_it("queue"))).await.expect("there");
    }
    for task in [head, next] {
        assert!(matches!(refused(task).await, Error::Evicted(Loss::Removed)));
    }
    assert!(held.is_held());
    held.release().await.expect("held");
    s.becomes_empty().await;
}

pub async fn evicting_by_token_removes_one_holder_or_waiter<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    let held = take_all(&s.a, 2).await;
    let (head, next) = (s.queue_up(&s.b, 1).await, s.queue_up(&s.b, 1).await);
    let queue = s.a.queue().await.expect("readable");
    let waiter = queue.waiters().nth(1).expect("two wait").token.expect("readable");
    let evicted = soon("the eviction", s.a.evict(waiter)).await.expect("allowed").expect("there");
    assert_eq!((evicted.host.as_str(), evicted.token), ("host-b", Some(waiter)));
    assert!(matches!(refused(next).await, Error::Evicted(Loss::Removed)));
    let token = held[1].fencing_token();
    let evicted = soon("the eviction", s.b.evict(token)).await.expect("allowed").expect("there");
    assert_eq!((evicted.host.as_str(), evicted.permits), ("host-a", Some(1)));
    assert_eq!(soon("the loss", held[1].lost()).await, Loss::Removed);
    assert!(granted(head).await.is_held() && held[0].is_held());
    assert!(soon("the eviction", s.b.evict(token)).await.expect("readable").is_none());
}

pub async fn an_expired_permit_is_lost_and_free_again<H: Harness>(h: &H) {
    let s = Stage::set(h, 1).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let waits = s.queue_up(&s.b, 1).await;
    h.expire(&s.mine).await;
    assert!(!soon("the grant", async { granted(waits).await.is_held() && held.is_held() }).await);
    soon("the loss", held.lost()).await;
    assert!(held.release().await.is_err_and(|error| error.is_lost()));
    let again = soon("a fresh session", s.a.acquire().timeout(SOON)).await.expect("free");
    assert!(again.is_held());
}

pub async fn a_waiter_whose_session_ends_gets_no_permit<H: Harness>(h: &H) {
    let s = Stage::set(h, 1).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let (head, next) = (s.queue_up(&s.b, 1).await, s.queue_up(&s.a, 1).await);
    h.expire(&s.theirs).await;
    assert!(refused(head).await.is_lost());
    held.release().await.expect("held");
    granted(next).await.release().await.expect("held");
    s.becomes_empty().await;
}

pub async fn a_permit_cut_off_is_suspect_until_reconnected<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let mut changes = held.changes();
    assert_eq!(changes.next().await, Some(HoldState::Held));
    h.cut(&s.mine).await;
    assert!(matches!(soon("the cut", changes.next()).await, Some(HoldState::Suspect { .. })));
    assert!(held.is_held());
    h.heal(&s.mine).await;
    assert_eq!(soon("the mending", changes.next()).await, Some(HoldState::Held));
    held.release().await.expect("held");
}

// Transactions under a permit.

pub async fn a_transaction_commits_while_a_permit_is_held<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let beside = format!("{}-beside", s.path);
    held.transaction().create(&beside, "one").commit().await.expect("held");
    assert_eq!(held.read_node(&beside).await.expect("held").expect("there").data, b"one");
    s.operator.delete(&held.node_path()).await.expect("there");
    let error = held.transaction().set(&beside, "two").commit().await.expect_err("lost");
    assert!(matches!(error, Error::Lost(Loss::Removed)), "{error}");
    assert_eq!(s.operator.data(&beside).await.expect("there").0, b"one");
}

pub async fn a_transaction_refuses_paths_inside_the_semaphore<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    for path in [held.node_path(), s.in_it("permits/x"), s.in_it("queue/x")] {
        let refused = held.transaction().set(&path, "x").commit().await;
        assert!(matches!(refused, Err(Error::InvalidInput(_))), "{path}");
    }
    assert!(held.is_held());
}

// Foreign nodes, and directories whose number of permits is unreadable.

pub async fn a_foreign_node_among_permits_is_an_error<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    soon("a free permit", s.a.acquire()).await.expect("free").release().await.expect("held");
    for name in ["x", "h~a-PERMIT-01", "h~a-PERMIT-0", "h-PERMIT-1", "h~a-WRITE-0000000001"] {
        let foreign = format!("{}/{name}", s.in_it("permits"));
        s.operator.create(&foreign, &[], Kind::Persistent).await.expect("created");
        let error = soon("the refusal", s.a.acquire()).await.expect_err("doubtful");
        assert_eq!(error.to_string(), format!("{} cannot be counted: {name:?} is no permit", s.path));
        assert!(matches!(s.b.queue().await, Err(Error::Permits { .. })));
        s.operator.delete(&foreign).await.expect("there");
    }
    // The permit of another program counts as many permits as the number in its node's name.
    let other = format!("{}/h~a-PERMIT-2", s.in_it("permits"));
    s.operator.create(&other, &[], Kind::Ephemeral).await.expect("created");
    assert!(s.a.try_acquire().await.is_err_and(|error| error.is_would_block()));
    s.operator.delete(&other).await.expect("there");
    assert!(soon("a free permit", s.a.acquire()).await.expect("free").is_held());
}

pub async fn an_unreadable_number_of_permits_is_an_error<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    soon("a free permit", s.a.acquire()).await.expect("free").release().await.expect("held");
    for data in ["permits=0", "permits=", "10", "\u{feff}permits=2"] {
        s.set_data(&s.path, data.as_bytes()).await;
        for semaphore in [&s.a, &s.b] {
            let error = soon("the refusal", semaphore.acquire()).await.expect_err("doubtful");
            assert!(matches!(error, Error::Permits { .. }), "{error}");
        }
        s.b.set_permits(2).await.expect("the cure");
        assert!(soon("a free permit", s.a.acquire()).await.expect("free").is_held());
    }
    s.set_data(&s.path, b"").await;
    assert!(soon("a free permit", s.a.acquire()).await.expect("free").is_held());
    assert_eq!(s.b.permits().await.expect("readable"), Some(2));
    s.becomes_empty().await;
    // As long as no permit was ever taken, the directory's data may belong to another program. `set_permits` must not
    // replace that data.
    let never = Stage::set(h, 2).await;
    never.operator.create(&never.path, b"theirs", Kind::Persistent).await.expect("created");
    assert!(matches!(never.a.set_permits(3).await, Err(Error::Permits { .. })));
}

// The queue as the public interface shows it.

pub async fn a_permits_tokens_rise_with_every_grant<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    let mut last = 0;
    for round in 0..6 {
        let semaphore = if round % 2 == 0 { &s.a } else { &s.b };
        let held = soon("a free permit", semaphore.acquire()).await.expect("free");
        let (_, stat) = s.operator.data(&held.node_path()).await.expect("there");
        assert_eq!(held.fencing_token(), stat.czxid);
        assert!(held.fencing_token() > last);
        last = held.fencing_token();
        held.release().await.expect("held");
    }
}

pub async fn the_queue_of_a_semaphore_shows_all_members<H: Harness>(h: &H) {
    let s = Stage::set(h, 4).await;
    let one = soon("a free permit", s.a.acquire().label("one")).await.expect("free");
    let two = soon("free permits", s.b.acquire_many(2).label("two")).await.expect("free");
    let head = s.queue_up(&s.b, 3).await;
    let next = s.queue_up(&s.a, 1).await;
    line_becomes(&s.a, "1+ 2+ 3- 1-").await;
    let queue = s.a.queue().await.expect("readable");
    assert_eq!((&queue.path, queue.permits, queue.free()), (&s.path, Some(4), Some(1)));
    let seen: Vec<_> = queue.members.iter().map(|it| (it.host.as_str(), it.label.as_deref(), it.mode)).collect();
    let all = [("host-a", Some("one")), ("host-b", Some("two")), ("host-b", None), ("host-a", None)];
    assert_eq!(seen, all.map(|(host, label)| (host, label, Mode::Write)));
    assert_eq!(queue.holders().map(|it| it.token).collect::<Vec<_>>(), [&one, &two].map(|it| Some(it.fencing_token())));
    assert!(queue.members.iter().all(|it| it.pid == Some(std::process::id()) && it.since.is_some() && !it.keeps));
    let waiting: Vec<_> = queue.waiters().map(|it| it.state.clone()).collect();
    assert_eq!(waiting[0], MemberState::Waits { behind: "permits".to_owned() });
    assert_eq!(waiting[1], MemberState::Waits { behind: queue.members[2].node.clone() });
    let text = queue.to_string();
    assert!(text.starts_with(&format!("{}: 1 of 4 permits free\n  PERMIT host-a pid ", s.path)), "{text}");
    assert!(text.contains("\n  2 PERMITS host-b pid ") && text.contains("holds\n  3 PERMITS host-b pid "), "{text}");
    assert!(text.contains(", waits behind permits\n  PERMIT host-a pid "), "{text}");
    drop((one, two));
    granted(head).await.release().await.expect("held");
    granted(next).await.release().await.expect("held");
    s.becomes_empty().await;
    let text = s.b.queue().await.expect("readable").to_string();
    assert_eq!(text, format!("{}: 4 of 4 permits free", s.path));
}

pub async fn a_holder_of_a_permit_learns_of_the_first_waiter<H: Harness>(h: &H) {
    let s = Stage::set(h, 1).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let learns = tokio::time::timeout(SOON, held.contended());
    let (first, waits) = tokio::join!(learns, s.queue_up(&s.b, 1));
    assert_eq!(first.expect("in time").expect("held").host(), "host-b");
    assert_eq!(soon("at once", held.contended()).await.expect("held").host(), "host-b");
    held.release().await.expect("held");
    granted(waits).await.release().await.expect("held");
}

pub async fn on_wait_names_the_holders_of_permits<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    let held = take_all(&s.b, 2).await;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&heard);
    let acquire = s.a.acquire().on_wait(move |progress| {
        sink.lock().expect("no panic").push((progress.path.to_string(), progress.to_string()));
    });
    let waits = tokio::spawn(acquire.into_future());
    eventually("the waiter is notified", || async { !heard.lock().expect("no panic").is_empty() }).await;
    let (path, text) = heard.lock().expect("no panic")[0].clone();
    assert_eq!(path, s.path);
    assert!(text.starts_with("place 1 of 1: held by PERMIT host-b pid ") && text.ends_with("; 2 ahead"), "{text}");
    s.a.set_permits(1).await.expect("allowed");
    drop(held);
    assert!(granted(waits).await.is_held());
}

// Dropped permits, deleted nodes, refused input, and surveys.

pub async fn a_permit_dropped_outside_a_runtime_is_free_again<H: Harness>(h: &H) {
    let s = Stage::set(h, 1).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    thread::spawn(move || drop(held)).join().expect("no panic");
    soon("a free permit", s.b.acquire()).await.expect("free").release().await.expect("held");
    s.becomes_empty().await;
}

pub async fn a_plain_thread_acquires_a_permit_by_blocking<H: Harness>(h: &H) {
    let s = Stage::set(h, 1).await;
    let semaphore = s.a.clone();
    let worked = tokio::task::spawn_blocking(move || {
        let held = semaphore.acquire().blocking().expect("free");
        assert!(semaphore.try_acquire().blocking().is_err_and(|error| error.is_would_block()));
        block_on(held.release())
    });
    soon("the thread", worked).await.expect("no panic").expect("held");
    s.becomes_empty().await;
}

pub async fn deleted_nodes_of_a_semaphore_are_made_again<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    for parts in [&["permits"][..], &["queue"], &["queue", "permits"], &["queue", "permits", ""]] {
        soon("a free permit", s.a.acquire()).await.expect("free").release().await.expect("held");
        s.becomes_empty().await;
        for part in parts {
            let path = s.in_it(part);
            s.operator.delete(path.trim_end_matches('/')).await.expect("there, and empty");
        }
        assert!(soon("a free permit", s.b.acquire()).await.expect("free").is_held());
        assert_eq!(s.a.permits().await.expect("readable"), Some(2));
        s.becomes_empty().await;
    }
}

pub async fn wrong_numbers_and_paths_are_refused_unsent<H: Harness>(h: &H) {
    let client = h.client().await;
    let is_invalid = |answer: Result<Semaphore, Error>| matches!(answer, Err(Error::InvalidInput(_)));
    for path in ["", "locks", "/", "/zookeeper", "/a/", "/a//b", "/a/./b"] {
        assert!(is_invalid(Semaphore::new(&client, path, 1)), "{path}");
    }
    assert!(is_invalid(Semaphore::new(&client, "/a", 0)));
    let builder = || Semaphore::builder(&client, "/a").permits(1);
    assert!(
        is_invalid(builder().lock(|lock| lock.host("a/b")).build())
            && is_invalid(builder().lock(|lock| lock.label("two\nlines")).build())
    );
    let semaphore = builder().build().expect("valid");
    assert!(matches!(semaphore.set_permits(0).await, Err(Error::InvalidInput(_))));
    assert!(matches!(semaphore.acquire().timeout(Duration::ZERO).await, Err(Error::InvalidInput(_))));
    assert!(matches!(semaphore.acquire().label("a\u{7}").await, Err(Error::InvalidInput(_))));
}

pub async fn closing_loses_permits_and_fails_waiters<H: Harness>(h: &H) {
    let s = Stage::set(h, 1).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let waits = s.queue_up(&s.a, 1).await;
    soon("the close", s.mine.close()).await;
    assert!(!held.is_held());
    let error = refused(waits).await;
    assert!(matches!(error, Error::Closed(_)), "{error}");
    assert!(matches!(s.a.acquire().await, Err(Error::Closed(_))));
    assert!(soon("a free permit", s.b.acquire()).await.expect("free").is_held());
}

pub async fn a_survey_shows_a_semaphore_as_one_queue<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let waits = s.queue_up(&s.b, 2).await;
    let lock = RwLock::new(&s.mine, s.in_it("lock")).expect("valid").write().await.expect("free");
    let survey = soon("the survey", Survey::below(&s.theirs, &s.path)).await.expect("readable");
    let seen: Vec<_> = survey.queues.iter().map(|it| (it.path.clone(), it.permits, it.members.len())).collect();
    assert_eq!(seen, [(s.path.clone(), Some(2), 2), (s.in_it("lock"), None, 1)]);
    assert!(survey.unreadable.is_empty());
    drop((held, lock));
    granted(waits).await.release().await.expect("held");
    s.becomes_empty().await;
    let survey = soon("the survey", Survey::below(&s.theirs, &s.path)).await.expect("readable");
    assert!(survey.queues.iter().all(|queue| queue.permits.is_none()), "{survey:?}");
}

pub async fn a_survey_shows_holders_of_a_damaged_semaphore<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    let seen = async || {
        let survey = soon("the survey", Survey::below(&s.theirs, &s.path)).await.expect("readable");
        survey.queues.iter().map(|it| (it.path.clone(), it.permits, it.members.len())).collect::<Vec<_>>()
    };
    let held = soon("a free permit", s.a.acquire()).await.expect("free");
    let reaped = s.operator.delete(&s.in_it("queue")).await;
    assert!(matches!(reaped, Ok(()) | Err(Failure::NoNode)), "{reaped:?}");
    assert_eq!(seen().await, [(s.path.clone(), Some(2), 1)]);
    for data in ["permits=two", ""] {
        s.set_data(&s.path, data.as_bytes()).await;
        assert_eq!(seen().await, [(s.path.clone(), Some(0), 1)], "{data:?}");
    }
    held.release().await.expect("held");
    // A lock uses the subdirectory `permits`, and nothing else shows that there is a semaphore. The survey must list
    // only the lock.
    let lock = RwLock::new(&s.mine, s.in_it("permits")).expect("valid").write().await.expect("free");
    for data in ["config", ""] {
        s.set_data(&s.path, data.as_bytes()).await;
        assert_eq!(seen().await, [(s.in_it("permits"), None, 1)], "{data:?}");
    }
    assert!(lock.is_held());
}

// Paths that are used for something else, and the removal of a semaphore.

/// Returns the data and the children of a node; `None` if there is no such node.
async fn seen(operator: &Arc<dyn Session>, path: &str) -> Option<(Vec<u8>, Vec<String>)> {
    let _nothing_to_sync = operator.sync(path).await;
    let (data, _) = operator.data(path).await.ok()?;
    let mut children = operator.children(path).await.ok()?;
    children.sort();
    Some((data, children))
}

pub async fn a_path_of_a_value_is_no_lock<H: Harness>(h: &H) {
    let (zk, path) = (h.client().await, h.directory());
    let value = Shared::builder(&zk, &path).initial(|| 1_u8).build().expect("valid");
    soon("the value", value.read()).await.expect("written").release().await.expect("held");
    let lock = RwLock::new(&zk, &path).expect("a valid path");
    for refused in [soon("a refusal", lock.write()).await.map(drop), soon("a refusal", lock.try_read()).await.map(drop)]
    {
        let error = refused.expect_err("nobody would be kept out").to_string();
        assert!(error.ends_with(&format!("the lock of that value is {path}/lock")), "{error}");
    }
    let _held =
        soon("the value's lock", RwLock::new(&zk, format!("{path}/lock")).expect("valid").write()).await.expect("free");
}

pub async fn a_path_of_something_else_gets_no_number<H: Harness>(h: &H) {
    const HOUR: Duration = Duration::from_secs(3600);
    let zk = h.client().await;
    let operator = Arc::clone(zk.session_slot(0).await.expect("the session is alive").session());
    let lock = |path: &str| RwLock::new(&zk, path).expect("valid");
    let use_lock = async |path: &str| {
        soon("free", lock(path).write()).await.expect("free").release().await.expect("held");
    };
    for (kind, may_be_allowed) in [
        ("idle lock", true),
        ("empty node", true),
        ("leader", true),
        ("record", false),
        ("record without its lock's node", false),
        ("copy of a record", false),
        ("value", false),
        ("parent of locks", false),
    ] {
        let path = h.directory();
        match kind {
            "idle lock" => use_lock(&path).await,
            "empty node" => drop(operator.create(&path, &[], Kind::Persistent).await.expect("created")),
            "leader" => {
                let leadership = Leadership::new(&zk, &path).expect("valid");
                soon("the term", leadership.lead(async |_| ())).await.expect("granted");
            }
            "value" => {
                let value = Shared::builder(&zk, &path).initial(|| 1_u8).build().expect("valid");
                soon("the value", value.read()).await.expect("written").release().await.expect("held");
            }
            "parent of locks" => use_lock(&format!("{path}/a")).await,
            _ => {
                let work = soon("the job", lock(&path).write().once_in(HOUR)).await.expect("granted");
                let guard = work.due().expect("never done");
                guard.done().await.expect("recorded");
                guard.release().await.expect("held");
                if kind != "record" {
                    let reaped = operator.delete(&path).await;
                    assert!(matches!(reaped, Ok(()) | Err(Failure::NoNode)), "{reaped:?}");
                }
                if kind == "copy of a record" {
                    operator.delete(&format!("{path}.done")).await.expect("recorded");
                }
            }
        }
        let before = seen(&operator, &path).await;
        let open = |number: Option<u32>, is_allowed: bool| {
            let builder = Semaphore::builder(&zk, &path);
            let builder = if is_allowed { builder.at_existing_node() } else { builder };
            number.into_iter().fold(builder, |builder, number| builder.permits(number)).build().expect("valid")
        };
        let allowed: &[bool] = if may_be_allowed { &[false] } else { &[false, true] };
        for is_allowed in allowed {
            for (call, answer) in [
                ("set_permits", soon("the refusal", open(None, *is_allowed).set_permits(3)).await),
                ("acquire", soon("the refusal", open(Some(3), *is_allowed).acquire()).await.map(drop)),
                ("several", soon("the refusal", open(Some(3), *is_allowed).acquire_many(2)).await.map(drop)),
                ("try_acquire", soon("the refusal", open(Some(3), *is_allowed).try_acquire()).await.map(drop)),
            ] {
                let error = answer.expect_err(kind);
                let Error::Permits { reason, .. } = &error else { panic!("{call} at {kind}: {error:?}") };
                let is_empty = matches!(reason, PermitsError::EmptyNode);
                assert!(is_empty || matches!(reason, PermitsError::OtherUse(_)), "{call} at {kind}: {error}");
                assert_eq!(is_empty, may_be_allowed, "{call} at {kind}: {error}");
                assert_eq!(seen(&operator, &path).await, before, "{call} at {kind} has changed something");
            }
        }
        if may_be_allowed {
            open(None, true).set_permits(3).await.expect("allowed");
            assert!(soon("a free permit", open(None, false).acquire_many(3)).await.expect("free").is_held());
        }
    }
}

/// A permit without a number makes nothing that the operator's number would then be refused for.
pub async fn a_refused_user_without_a_number_leaves_no_node<H: Harness>(h: &H) {
    let (zk, path) = (h.client().await, h.directory());
    let operator = Arc::clone(zk.session_slot(0).await.expect("the session is alive").session());
    let semaphore = Semaphore::builder(&zk, &path).build().expect("valid");
    for answer in [soon("the refusal", semaphore.acquire()).await, soon("the refusal", semaphore.try_acquire()).await] {
        assert!(matches!(answer, Err(Error::Permits { reason: PermitsError::Unset, .. })), "{answer:?}");
        assert_eq!(seen(&operator, &path).await, None);
    }
    semaphore.set_permits(1).await.expect("no node is in the way");
    assert!(soon("a free permit", semaphore.acquire()).await.expect("free").is_held());
}

pub async fn first_users_at_once_make_one_semaphore<H: Harness>(h: &H) {
    let clients = [h.client().await, h.client().await, h.client().await];
    for round in 0..10 {
        let path = format!("{}/new/{round}", h.directory());
        let all: Vec<_> = clients
            .iter()
            .flat_map(|zk| {
                let semaphore = Semaphore::new(zk, &path, 9).expect("valid");
                let sets = semaphore.clone();
                let set = tokio::spawn(async move { sets.set_permits(9).await });
                [tokio::spawn(async move { semaphore.acquire().await.map(drop) }), set]
            })
            .collect();
        for task in all {
            soon("an answer", task).await.expect("no panic").expect("one of them made the semaphore");
        }
    }
}

pub async fn a_semaphore_is_removed_unless_it_is_used<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    assert_eq!(soon("an answer", s.a.remove()).await.expect("nothing is there"), None);
    let held = soon("a free permit", s.a.acquire_many(2).label("busy")).await.expect("free");
    let waits = s.queue_up(&s.b, 1).await;
    let before = seen(&s.operator, &s.path).await;
    let error = soon("the refusal", s.b.remove()).await.expect_err("in use");
    assert!(error.is_would_block(), "{error}");
    let said = error.to_string();
    assert!(said.contains("held by 2 PERMITS host-a") && said.contains("busy") && said.ends_with("2 ahead"), "{said}");
    assert_eq!(seen(&s.operator, &s.path).await, before, "a refused removal has changed something");
    held.release().await.expect("held");
    let next = granted(waits).await;
    assert!(s.a.remove().await.is_err_and(|error| error.is_would_block()), "a holder alone is in the way");
    next.release().await.expect("held");
    assert_eq!(soon("the removal", s.a.remove()).await.expect("unused"), Some(2));
    for node in [s.path.clone(), format!("{}.twin", s.path)] {
        assert_eq!(seen(&s.operator, &node).await, None, "{node}");
    }
    assert!(matches!(s.a.acquire().await, Err(Error::Permits { reason: PermitsError::Unset, .. })));
    let lock = RwLock::new(&s.mine, &s.path).expect("valid");
    drop(soon("a lock", lock.write()).await.expect("no semaphore is there"));
}

/// What else is below the semaphore's node stays. Of a semaphore that lost its node, or the number in it, the rest is removed.
pub async fn a_removal_spares_what_is_no_part_of_the_semaphore<H: Harness>(h: &H) {
    let s = Stage::set(h, 2).await;
    soon("a free permit", s.a.acquire()).await.expect("free").release().await.expect("held");
    let other = s.in_it("other");
    s.operator.create(&other, b"theirs", Kind::Persistent).await.expect("created");
    assert_eq!(soon("the removal", s.a.remove()).await.expect("unused"), Some(2));
    assert_eq!(seen(&s.operator, &s.path).await, Some((Vec::new(), vec!["other".to_owned()])));
    assert_eq!(seen(&s.operator, &other).await, Some((b"theirs".to_vec(), Vec::new())));
    for is_node_left in [true, false] {
        let s = Stage::set(h, 2).await;
        s.a.set_permits(2).await.expect("a new path");
        match is_node_left {
            true => s.set_data(&s.path, b"").await,
            false => s.operator.delete(&s.path).await.expect("there"),
        }
        assert_eq!(soon("the removal", s.b.remove()).await.expect("unused"), Some(2));
        assert_eq!(seen(&s.operator, &s.path).await, None);
        assert_eq!(seen(&s.operator, &format!("{}.twin", s.path)).await, None);
    }
    let theirs = Stage::set(h, 2).await;
    theirs.operator.create(&theirs.path, b"theirs", Kind::Persistent).await.expect("created");
    assert!(matches!(theirs.a.remove().await, Err(Error::Permits { .. })));
}
