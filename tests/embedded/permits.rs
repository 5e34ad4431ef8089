//! Orders of events in a semaphore that cannot be repeated on a real server. The futures are polled by hand, without threads and
//! sleeps.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use support::hindered::{Count, Hindered, Request, refused_at};
use support::polled::{Acquiring, FAULTS, lose, now, poll_up_to};
use support::slow::Slow;
use support::wired::Wired;
use tokio::time::timeout;
use tokio_test::task;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};
use zk_rwlock::coordinator::{
    Coordinator, Created, Failure, Kind, Operation, Outcome, Reply, Session, SessionSlot, SessionStore, Stat, Task,
    Watch,
};
use zk_rwlock::error::PermitsError;
use zk_rwlock::semaphore::Permit;
use zk_rwlock::{Error, Loss, Memory, RwLock, Semaphore};

const PATH: &str = "/limit";
const QUEUE: &str = "/limit/queue";
const PERMITS: &str = "/limit/permits";

fn open<C: Coordinator + Clone>(client: &C, permits: u32) -> Semaphore {
    Semaphore::new(client, PATH, permits).expect("valid")
}

fn acquiring(semaphore: &Semaphore, permits: u32) -> Acquiring<Permit> {
    task::spawn(semaphore.acquire_many(permits).into_future())
}

fn acquire(semaphore: &Semaphore) -> Permit {
    now(semaphore.acquire()).expect("free")
}

/// Returns two clients of one ensemble, each with the semaphore. The semaphore's directories exist and are empty.
fn two(permits: u32) -> (Memory, Memory, Semaphore, Semaphore) {
    let one = Memory::new();
    let other = one.connect();
    let (a, b) = (open(&one, permits), open(&other, permits));
    for semaphore in [&a, &b] {
        now(acquire(semaphore).release()).expect("held");
    }
    assert_eq!(left(&one), (vec![], vec![], 0));
    (one, other, a, b)
}

/// Returns the nodes in the queue, the nodes of the holders, and the number of watches.
fn left(zk: &Memory) -> (Vec<String>, Vec<String>, usize) {
    (zk.children(QUEUE), zk.children(PERMITS), zk.watches())
}

fn session(client: &Memory) -> Arc<dyn Session> {
    Arc::clone(now(client.session_slot(0)).expect("open").session())
}

/// Writes to a waiter's node from a foreign client. To the library, this write looks like a hand-off.
fn forge_hand_off(stranger: &Memory, place: &str) {
    let set = Operation::Set { path: format!("{QUEUE}/{place}"), data: vec![], version: None };
    now(session(stranger).transact(&[set])).expect("allowed");
}

/// An acquisition without a timeout reads the number of permits without a time limit. The silence of the server must
/// not end that read.
#[tokio::test(start_paused = true)]
async fn an_acquisition_waits_for_the_number_of_permits() {
    let zk = Memory::new();
    open(&zk, 3).acquire().await.expect("free").release().await.expect("held");
    let other = zk.connect();
    let semaphore = Semaphore::builder(&other, PATH).build().expect("valid");
    other.faults().silence();
    let (permit, ()) = tokio::join!(semaphore.acquire_many(2).into_future(), async {
        // The server stays silent for three session timeouts.
        tokio::time::sleep(Duration::from_secs(30)).await;
        other.faults().catch_up();
    });
    permit.expect("the reply was only late").release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn the_number_of_permits_is_set_on_the_next_session() {
    let (zk, is_over) = (Memory::new(), AtomicBool::new(false));
    let client = zk.clone();
    let line = Hindered::new(&zk, move |asked| {
        if matches!(asked, Request::Children(PATH)) && !is_over.swap(true, Ordering::Relaxed) {
            client.faults().expire();
        }
        None
    });
    let semaphore = Semaphore::builder(&line, PATH).build().expect("valid");
    semaphore.set_permits(3).await.expect("a session is open");
    assert_eq!(semaphore.permits().await.expect("readable"), Some(3));
}

/// The lock is acquired after the last listing that shows none, and before the number of permits keeps locks out.
#[tokio::test(start_paused = true)]
async fn a_lock_acquired_before_the_number_is_written_is_found() {
    for exists in [false, true] {
        let zk = Memory::new();
        let (other, held) = (RwLock::new(&zk.connect(), PATH).expect("valid"), Arc::new(OnceLock::new()));
        if exists {
            now(now(other.write()).expect("free").release()).expect("held");
        }
        let by_other = Arc::clone(&held);
        let line = Hindered::new(&zk, move |asked| {
            if let Request::Transact([Operation::Set { path, .. } | Operation::Create { path, .. }, ..]) = asked
                && path == PATH
            {
                by_other.get_or_init(|| now(other.write()).expect("free"));
            }
            None
        });
        let semaphore = Semaphore::builder(&line, PATH).permits(1).at_existing_node().build().expect("valid");
        let error = semaphore.acquire().await.expect_err("the path is a lock's");
        assert!(matches!(error, Error::Permits { reason: PermitsError::IsLocked { .. }, .. }), "{exists}: {error}");
        assert!(held.get().is_some_and(|guard| guard.is_held()));
    }
}

/// As above, for a handle that took a permit before the semaphore was deleted. What it knew of the path is out of date.
#[tokio::test(start_paused = true)]
async fn a_lock_is_looked_for_again_when_the_number_is_written_again() {
    let zk = Memory::new();
    let (other, held) = (RwLock::new(&zk.connect(), PATH).expect("valid"), Arc::new(OnceLock::new()));
    let (by_other, is_deleted) = (Arc::clone(&held), Arc::new(AtomicBool::new(false)));
    let may_acquire = Arc::clone(&is_deleted);
    let line = Hindered::new(&zk, move |asked| {
        let writes = matches!(asked, Request::Transact([Operation::Create { path, .. }, ..]) if path == PATH);
        if writes && may_acquire.load(Ordering::Relaxed) {
            by_other.get_or_init(|| now(other.write()).expect("free"));
        }
        None
    });
    let semaphore = open(&line, 1);
    semaphore.acquire().await.expect("free").release().await.expect("held");
    for path in [PATH, "/limit.twin"] {
        zk.faults().remove(path);
    }
    is_deleted.store(true, Ordering::Relaxed);
    let error = semaphore.acquire().await.expect_err("the path is a lock's");
    assert!(matches!(error, Error::Permits { reason: PermitsError::IsLocked { .. }, .. }), "{error}");
    assert!(held.get().is_some_and(|guard| guard.is_held()));
}

// Acquisitions and releases of permits whose requests or replies are lost.

#[test]
fn a_permit_taken_with_lost_messages_is_one_node() {
    for faults in FAULTS {
        let (zk, other, a, b) = two(1);
        let held = acquire(&b);
        let mut waits = acquiring(&a, 1);
        assert_pending!(waits.poll());
        drop(held);
        assert!(waits.is_woken());
        lose(&zk, faults);
        let taken = assert_ready_ok!(waits.poll());
        assert!(taken.is_held(), "{faults:?}");
        assert_eq!(zk.children(PERMITS).len(), 1, "{faults:?}");
        assert!(taken.node_path().ends_with(&zk.children(PERMITS)[0]));
        assert!(now(b.try_acquire()).is_err_and(|error| error.is_would_block()));
        drop((taken, waits));
        assert_eq!(left(&other), (vec![], vec![], 0), "{faults:?}");
    }
}

#[test]
fn a_release_of_a_permit_survives_lost_messages() {
    for faults in FAULTS {
        let (zk, _other, a, b) = two(1);
        let held = acquire(&a);
        lose(&zk, faults);
        now(held.release()).expect("held");
        drop(acquire(&b));
        assert_eq!(left(&zk), (vec![], vec![], 0), "{faults:?}");
    }
}

#[test]
fn making_a_semaphore_survives_lost_messages() {
    for lose in
        [(|zk: &Memory| zk.faults().lose_next_reply()) as fn(&Memory), |zk: &Memory| zk.faults().lose_next_request()]
    {
        for times in 1..9 {
            let zk = Memory::new();
            let semaphore = Semaphore::new(&zk, "/a/b/limit", 2).expect("valid");
            for _ in 0..times {
                lose(&zk);
            }
            let held = acquire(&semaphore);
            assert_eq!(zk.children("/a/b/limit/permits").len(), 1, "{times} lost");
            assert_eq!(now(semaphore.permits()).expect("readable"), Some(2));
            drop(held);
            assert_eq!((zk.children("/a/b/limit/permits").len(), zk.children("/a/b/limit/queue").len()), (0, 0));
        }
    }
}

#[test]
fn a_handle_without_a_number_may_take_all_permits() {
    let (zk, other, _a, _b) = two(2);
    let plain = || Semaphore::builder(&other, PATH).build().expect("valid");
    let before = zk.requests();
    let error = now(plain().acquire_many(3)).expect_err("too many");
    assert!(matches!(error, Error::Permits { reason: PermitsError::TooFew { wanted: 3, permits: 2 }, .. }), "{error}");
    assert_eq!(zk.requests() - before, 1);
    assert_eq!(now(plain().acquire_many(2)).expect("all are free").count(), 2);
}

// Futures of acquisitions and releases of permits, dropped after each number of polls.

/// More polls than any acquisition takes.
const POLLS: usize = 80;

#[test]
fn an_acquisition_dropped_at_any_poll_leaves_nothing() {
    for faults in FAULTS {
        for is_fresh in [false, true] {
            let mut granted = false;
            for polls in 0..POLLS {
                let (zk, b) = if is_fresh {
                    let zk = Memory::new();
                    let b = open(&zk.connect(), 2);
                    (zk, b)
                } else {
                    let (zk, _other, _a, b) = two(2);
                    (zk, b)
                };
                let semaphore = open(&Slow(zk.clone()), 2);
                lose(&zk, faults);
                let mut acquiring = acquiring(&semaphore, 2);
                granted |= matches!(poll_up_to(&mut acquiring, polls), Some(Poll::Ready(Ok(_))));
                drop(acquiring);
                assert_eq!(left(&zk), (vec![], vec![], 0), "{faults:?} at poll {polls}");
                assert_eq!(now(b.try_acquire_many(2)).expect("free").count(), 2, "{faults:?} at poll {polls}");
            }
            assert!(granted, "{faults:?}: {POLLS} polls are too few");
        }
    }
}

/// The head of the queue is dropped just as a permit becomes free for the head. The next contender gets that permit.
#[test]
fn a_head_dropped_at_any_poll_yields_its_permits() {
    for faults in FAULTS {
        for is_same_session in [false, true] {
            let mut granted = false;
            for polls in 0..POLLS {
                let (zk, other, a, b) = two(2);
                let held = now(b.acquire_many(2)).expect("free");
                let head = open(&Slow(zk.clone()), 2);
                let mut head = acquiring(&head, 2);
                assert!(poll_up_to(&mut head, POLLS).is_none());
                let mut next = acquiring(if is_same_session { &a } else { &b }, 1);
                assert_pending!(next.poll());
                drop(held);
                assert!(head.is_woken() && !next.is_woken());
                lose(&zk, faults);
                let taken = poll_up_to(&mut head, polls);
                granted |= matches!(taken, Some(Poll::Ready(Ok(_))));
                if next.is_woken() {
                    assert_pending!(next.poll());
                }
                drop((taken, head));
                assert!(next.is_woken(), "{faults:?} at poll {polls}");
                let next = assert_ready_ok!(next.poll());
                assert!(next.is_held());
                assert_eq!((zk.children(QUEUE).len(), zk.children(PERMITS).len()), (0, 1));
                drop(next);
                assert_eq!(left(&other), (vec![], vec![], 0), "{faults:?} at poll {polls}");
            }
            assert!(granted, "{faults:?}: {POLLS} polls are too few");
        }
    }
}

#[test]
fn a_waiter_dropped_at_any_poll_disturbs_no_other() {
    for faults in FAULTS {
        let mut waited = false;
        for polls in 0..POLLS {
            let (zk, other, a, b) = two(1);
            let third = zk.connect();
            let held = acquire(&a);
            let mut head = acquiring(&b, 1);
            assert_pending!(head.poll());
            let before = left(&zk);
            let semaphore = open(&Slow(third.clone()), 1);
            lose(&third, faults);
            let mut waits = acquiring(&semaphore, 1);
            waited |= poll_up_to(&mut waits, polls).is_none();
            drop(waits);
            assert_eq!(left(&zk), before, "{faults:?} at poll {polls}");
            assert!(held.is_held() && !head.is_woken());
            drop(held);
            drop(assert_ready_ok!(head.poll()));
            drop(head);
            assert_eq!(left(&other), (vec![], vec![], 0));
        }
        assert!(waited, "{faults:?}: {POLLS} polls are too few");
    }
}

#[test]
fn a_try_dropped_at_any_poll_leaves_nothing() {
    for faults in FAULTS {
        for is_taken in [false, true] {
            for polls in 0..POLLS {
                let (zk, other, a, _b) = two(1);
                let held = is_taken.then(|| acquire(&a));
                let before = left(&zk);
                let semaphore = open(&Slow(other.clone()), 1);
                lose(&other, faults);
                let mut trying = task::spawn(semaphore.try_acquire());
                let answer = poll_up_to(&mut trying, polls);
                if let Some(Poll::Ready(answer)) = &answer {
                    assert_eq!(answer.is_ok(), !is_taken, "{answer:?}");
                }
                drop((answer, trying));
                assert_eq!(left(&zk), before, "{faults:?} at poll {polls}");
                drop(held);
            }
        }
    }
}

#[test]
fn an_acquisition_dropped_while_cut_off_leaves_nothing() {
    let (zk, other, a, b) = two(1);
    let held = acquire(&b);
    let mut head = acquiring(&a, 1);
    assert_pending!(head.poll());
    zk.faults().cut();
    drop(held);
    drop(head);
    zk.faults().heal();
    assert_eq!(left(&other), (vec![], vec![], 0));
    // Some of these cuts interrupt the transaction that exchanges the contender's place in the queue for a permit.
    let slow = open(&Slow(zk.clone()), 1);
    for polls in 1..POLLS {
        let mut taking = acquiring(&slow, 1);
        let taken = poll_up_to(&mut taking, polls);
        zk.faults().cut();
        drop((taken, taking));
        zk.faults().heal();
        assert_eq!(left(&other), (vec![], vec![], 0), "at poll {polls}");
    }
}

// Several contenders for permits in one session.

#[test]
fn a_successor_in_the_session_counts_permits_anew() {
    for polls in 1..POLLS {
        let (zk, other, a, b) = two(1);
        let held = acquire(&b);
        let slow = open(&Slow(zk.clone()), 1);
        let mut head = acquiring(&slow, 1);
        assert!(poll_up_to(&mut head, POLLS).is_none());
        let mut next = acquiring(&a, 1);
        assert_pending!(next.poll());
        drop(held);
        // The successor may be polled between any two polls of the head, even without a wake-up.
        let mut taken = poll_up_to(&mut head, polls);
        assert_pending!(next.poll());
        if taken.is_none() || matches!(taken, Some(Poll::Pending)) {
            taken = poll_up_to(&mut head, POLLS);
        }
        let Some(Poll::Ready(Ok(taken))) = taken else { panic!("not granted") };
        assert_pending!(next.poll());
        assert_eq!(zk.children(PERMITS).len(), 1);
        drop(taken);
        drop(assert_ready_ok!(next.poll()));
        drop((head, next));
        assert_eq!(left(&other), (vec![], vec![], 0));
    }
}

/// A newcomer sends its listing of the permits together with its create. After that listing, the newcomer's predecessor
/// may take a permit and leave the queue. The newcomer, now the head, must list the permits again.
#[test]
fn a_newcomer_counts_permits_after_its_predecessor() {
    for is_same_session in [false, true] {
        for first in 0..40 {
            for second in 0..25 {
                let (zk, other, _a, b) = two(1);
                let (slow, newcomer) =
                    (Slow(zk.clone()), Slow(if is_same_session { zk.clone() } else { other.clone() }));
                let held = acquire(&b);
                let mut head = acquiring(&open(&slow, 1), 1);
                poll_up_to(&mut head, first);
                drop(held);
                let mut next = acquiring(&open(&newcomer, 1), 1);
                let early = poll_up_to(&mut next, second);
                let taken = poll_up_to(&mut head, POLLS);
                let late = match early {
                    Some(Poll::Ready(early)) => Some(Poll::Ready(early)),
                    _ => poll_up_to(&mut next, POLLS),
                };
                let granted = [&taken, &late].iter().filter(|it| matches!(it, Some(Poll::Ready(Ok(_))))).count();
                assert_eq!((granted, zk.children(PERMITS).len()), (1, 1), "{first} and {second}");
                drop((taken, late, head, next));
                assert_eq!(left(&zk), (vec![], vec![], 0));
            }
        }
    }
}

/// The newcomer and its predecessor belong to one session. A contender of another session takes permits; then the predecessor
/// becomes the head, and gives up. The newcomer is now the head, and its early listing of the permits is too old.
#[test]
fn a_newcomer_recounts_after_a_predecessor_gave_up() {
    for polls in 0..25 {
        for tries in [false, true] {
            let (zk, other, a, b) = two(1);
            let held = acquire(&open(&zk.connect(), 1));
            let (mut first, mut second) = (acquiring(&b, 1), acquiring(&a, 1));
            assert_pending!(first.poll());
            assert_pending!(second.poll());
            drop(held);
            let mut newcomer = acquiring(&open(&Slow(zk.clone()), 1), 1);
            poll_up_to(&mut newcomer, polls);
            let taken = assert_ready_ok!(first.poll());
            if tries {
                assert_pending!(second.poll());
            }
            drop(second);
            let late = poll_up_to(&mut newcomer, POLLS);
            assert!(matches!(late, None | Some(Poll::Pending)), "two hold one permit, at poll {polls}: {late:?}");
            assert_eq!(zk.children(PERMITS).len(), 1, "at poll {polls}");
            drop(taken);
            let Some(Poll::Ready(Ok(late))) = poll_up_to(&mut newcomer, POLLS) else { panic!("the acquisition hangs") };
            drop((first, newcomer, late));
            assert_eq!(left(&other), (vec![], vec![], 0), "at poll {polls}");
        }
    }
}

/// Four listings of the queue are under way, so the newcomer shares the next listing. A predecessor takes the permit between
/// the newcomer's create and that listing.
#[test]
fn a_newcomer_that_shares_a_listing_counts_after_it() {
    let (zk, other, _a, b) = two(1);
    let wired = Wired::new(zk.clone());
    let ours = open(&wired, 1);
    drop(acquire(&ours));
    let held = acquire(&b);
    let mut predecessor = acquiring(&b, 1);
    assert_pending!(predecessor.poll());
    wired.stall();
    let mut all: Vec<_> = (0..5).map(|_| acquiring(&ours, 1)).collect();
    all.iter_mut().for_each(|it| assert_pending!(it.poll()));
    drop(held);
    (0..50).for_each(|_| wired.carry_out());
    let taken = assert_ready_ok!(predecessor.poll());
    let (queue, mut newcomer) = (zk.children(QUEUE), all.pop().expect("five"));
    let last = queue.iter().max_by_key(|name| name.rsplit('-').next().map(str::to_owned)).expect("five");
    queue.iter().filter(|name| *name != last).for_each(|name| other.faults().remove(format!("{QUEUE}/{name}")));
    wired.flow();
    while wired.deliver() {}
    assert_eq!(zk.children(QUEUE), [last.as_str()]);
    assert_pending!(newcomer.poll(), "two hold one permit");
    drop(taken);
    assert!(assert_ready_ok!(newcomer.poll()).is_held());
}

/// The answer to the newcomer's first listing is lost. A predecessor takes the permit just before the second listing.
#[test]
fn a_newcomer_that_lists_again_counts_permits_after_it() {
    let (zk, _other, a, b) = two(1);
    let held = acquire(&b);
    let mut predecessor = acquiring(&b, 1);
    assert_pending!(predecessor.poll());
    drop((held, a));
    let (listings, predecessor, taken) = (Count::default(), Mutex::new(predecessor), Arc::new(Mutex::new(None)));
    let taken_before = Arc::clone(&taken);
    let line = Hindered::new(&zk, move |asked| match asked {
        Request::Children(QUEUE) if listings.one_more() == 0 => Some(Failure::Unknown("lost".to_owned())),
        Request::Children(QUEUE) if taken.lock().expect("no panic").is_none() => {
            let permit = assert_ready_ok!(predecessor.lock().expect("no panic").poll());
            *taken.lock().expect("no panic") = Some(permit);
            None
        }
        _ => None,
    });
    let mut newcomer = acquiring(&open(&line, 1), 1);
    assert_pending!(newcomer.poll(), "two hold one permit");
    assert!(taken_before.lock().expect("no panic").take().expect("granted").is_held());
    assert!(assert_ready_ok!(newcomer.poll()).is_held());
}

#[test]
fn tasks_of_one_session_never_exceed_the_permits() {
    let (zk, _other, a, _b) = two(3);
    let mut waiting: Vec<Acquiring<Permit>> = (0..12).map(|_| acquiring(&a, 1)).collect();
    let mut held = Vec::new();
    let mut order = Vec::new();
    for _ in 0..40 {
        for (number, task) in waiting.iter_mut().enumerate() {
            if !order.contains(&number)
                && let Poll::Ready(permit) = task.poll()
            {
                held.push(permit.expect("granted"));
                order.push(number);
            }
        }
        assert!(held.len() <= 3 && zk.children(PERMITS).len() == held.len());
        if held.len() == 3 || order.len() == 12 {
            held.pop();
        }
    }
    assert_eq!(order, (0..12).collect::<Vec<_>>());
    drop((held, waiting));
    assert_eq!(left(&zk), (vec![], vec![], 0));
}

// Foreign clients, evictions and servers that lag.

#[test]
fn a_forged_hand_off_gives_nobody_a_permit() {
    let (zk, other, a, b) = two(1);
    let third = zk.connect();
    let held = acquire(&a);
    let (mut head, c) = (acquiring(&b, 1), open(&third, 1));
    assert_pending!(head.poll());
    let first = zk.children(QUEUE).remove(0);
    let mut next = acquiring(&c, 1);
    assert_pending!(next.poll());
    forge_hand_off(&other, &first);
    assert!(matches!(assert_ready_err!(next.poll()), Error::Evicted(Loss::Interfered)));
    drop(held);
    assert!(assert_ready_ok!(head.poll()).is_held());
    drop((head, next));
    assert_eq!(left(&zk), (vec![], vec![], 0));
}

#[test]
fn a_forged_hand_off_of_a_departed_waiter_grants_none() {
    let (zk, other, a, b) = two(1);
    let (second, third) = (open(&zk.connect(), 1), open(&zk.connect(), 1));
    let held = acquire(&a);
    let mut head = acquiring(&b, 1);
    assert_pending!(head.poll());
    let first = zk.children(QUEUE).remove(0);
    let mut gives_up = acquiring(&second, 1);
    assert_pending!(gives_up.poll());
    let waits = zk.children(QUEUE).into_iter().find(|name| *name != first).expect("the waiter waits");
    let mut next = acquiring(&third, 1);
    assert_pending!(next.poll());
    forge_hand_off(&other, &waits);
    drop((gives_up, held));
    assert!(matches!(assert_ready_err!(next.poll()), Error::Evicted(Loss::Interfered)));
    assert!(assert_ready_ok!(head.poll()).is_held());
    drop((head, next));
    assert_eq!(left(&zk), (vec![], vec![], 0));
}

/// The forger makes the contender the head before its predecessor. The leader does not say whether the predecessor is there.
#[test]
fn an_unconfirmed_hand_off_gives_nobody_a_permit() {
    let (zk, other, a, b) = two(2);
    let held = acquire(&a);
    let mut head = acquiring(&b, 2);
    assert_pending!(head.poll());
    let first = zk.children(QUEUE).remove(0);
    let is_of_queue = |it: &Operation| matches!(it, Operation::Check { path, .. } if path.starts_with("/limit/queue/"));
    let line = Hindered::new(&zk.connect(), move |asked| match asked {
        Request::Transact(checks) if checks.iter().all(is_of_queue) => {
            Some(refused_at(0, Failure::NoAuth(Box::default())))
        }
        _ => None,
    });
    let mut next = acquiring(&open(&line, 2), 1);
    assert_pending!(next.poll());
    forge_hand_off(&other, &first);
    let error = assert_ready_err!(next.poll());
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
    assert_eq!(zk.children(PERMITS).len(), 1);
    drop((held, head));
}

#[test]
fn a_permit_whose_place_is_still_shown_counts() {
    let (zk, other, a, b) = two(1);
    let held = acquire(&a);
    let mut head = acquiring(&b, 1);
    assert_pending!(head.poll());
    let first = zk.children(QUEUE).remove(0);
    let mut next = acquiring(&a, 1);
    assert_pending!(next.poll());
    zk.faults().lag();
    forge_hand_off(&other, &first);
    drop(held);
    assert!(next.is_woken(), "the signal did not wake the waiter");
    let taken = assert_ready_ok!(head.poll());
    assert_pending!(next.poll());
    assert!(taken.is_held());
    drop((taken, head));
    zk.faults().catch_up();
    assert!(assert_ready_ok!(next.poll()).is_held());
    drop(next);
    assert_eq!(left(&zk), (vec![], vec![], 0));
}

#[test]
fn a_hand_off_with_returned_permits_grants_the_next() {
    let (zk, _other, a, b) = two(1);
    let third = open(&zk.connect(), 1);
    let held = acquire(&a);
    let (mut head, mut next) = (acquiring(&b, 1), acquiring(&third, 1));
    assert_pending!(head.poll());
    assert_pending!(next.poll());
    drop(held);
    drop(assert_ready_ok!(head.poll()));
    assert!(assert_ready_ok!(next.poll()).is_held());
    drop((head, next));
    assert_eq!(left(&zk), (vec![], vec![], 0));
}

#[test]
fn a_permit_removed_while_it_is_taken_is_no_grant() {
    let (zk, _other, a, b) = two(1);
    let wired = Wired::new(zk.clone());
    let mut taking = acquiring(&open(&wired, 1), 1);
    wired.stall();
    // The permit's node exists, but the reply has not reached its contender yet.
    while zk.children(PERMITS).is_empty() {
        wired.deliver();
        assert_pending!(taking.poll());
        wired.carry_out();
    }
    for part in [PERMITS, QUEUE] {
        zk.children(part).iter().for_each(|name| zk.faults().remove(format!("{part}/{name}")));
    }
    wired.flow();
    while wired.deliver() {}
    let error = assert_ready_err!(taking.poll());
    assert!(error.is_lost(), "{error}");
    drop(taking);
    assert_eq!(left(&zk), (vec![], vec![], 0));
    drop((acquire(&a), b));
}

#[test]
fn a_number_of_permits_changed_in_an_exchange_is_used() {
    let slow_polls = 1..POLLS;
    let mut refused = false;
    for polls in slow_polls {
        let (zk, _other, _a, b) = two(2);
        let slow = open(&Slow(zk.clone()), 2);
        drop({
            let mut first = acquiring(&slow, 1);
            poll_up_to(&mut first, POLLS)
        });
        let held = acquire(&b);
        let mut taking = acquiring(&slow, 1);
        let taken = poll_up_to(&mut taking, polls);
        let is_granted = matches!(taken, Some(Poll::Ready(Ok(_))));
        let is_taken = zk.children(PERMITS).len() == 2;
        now(b.set_permits(1)).expect("allowed");
        if !is_granted {
            let taken = poll_up_to(&mut taking, POLLS);
            assert_eq!(matches!(taken, Some(Poll::Ready(Ok(_)))), is_taken, "at poll {polls}");
            refused |= !is_taken;
        }
        drop((held, taken, taking));
        assert_eq!(left(&zk), (vec![], vec![], 0), "at poll {polls}");
    }
    assert!(refused);
}

/// A session on a lagging server. Until the session sends a sync, the server lists the permits in `shows`, if that is
/// set.
#[derive(Debug)]
struct Lagging {
    inner: Arc<dyn Session>,
    shows: Mutex<Option<Vec<String>>>,
    syncs: AtomicBool,
    /// If set, the session id that the server shows as the owner of each permit.
    owner: Option<i64>,
}

/// A client that returns this session on the lagging server to every caller.
#[derive(Clone, Debug)]
struct ToLagging(Memory, Arc<Lagging>);

#[async_trait]
impl Coordinator for ToLagging {
    async fn session_slot(&self, _own_bytes: usize) -> Result<SessionSlot, Failure> {
        Ok(SessionSlot::new(Arc::clone(&self.1) as Arc<dyn Session>))
    }

    async fn close(&self) {
        Coordinator::close(&self.0).await;
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.sleep(duration)
    }
}

impl Session for Lagging {
    fn id(&self) -> i64 {
        self.inner.id()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn store(&self) -> &Arc<SessionStore> {
        self.inner.store()
    }

    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created> {
        self.inner.create(path, data, kind)
    }

    fn delete(&self, path: &str) -> Reply<()> {
        self.inner.delete(path)
    }

    fn children_and_stat(&self, path: &str) -> Reply<(Vec<String>, Option<Stat>)> {
        self.inner.children_and_stat(path)
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        let (node, owner) = (self.inner.data(path), self.owner.filter(|_| path.starts_with(PERMITS)));
        Box::pin(async move {
            let (data, stat) = node.await?;
            Ok((data, Stat { ephemeral_owner: owner.unwrap_or(stat.ephemeral_owner), ..stat }))
        })
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        self.inner.watch(path)
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)> {
        let shown = self.shows.lock().expect("no panic").clone();
        let reply = self.inner.watch_children(path);
        Box::pin(async move {
            let (names, watch) = reply.await?;
            Ok((shown.unwrap_or(names), watch))
        })
    }

    fn sync(&self, path: &str) -> Reply<()> {
        self.syncs.store(true, Ordering::Relaxed);
        *self.shows.lock().expect("no panic") = None;
        self.inner.sync(path)
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        self.inner.transact(operations)
    }

    fn leave_server(&self, connection: u64, node: &str) -> Reply<bool> {
        self.inner.leave_server(connection, node)
    }

    fn spawn(&self, task: Task) {
        self.inner.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.inner.sleep(duration)
    }
}

/// The head learned on its old connection that its turn has come. The server of the new connection does not show yet which
/// permits the predecessor took.
#[test]
fn a_reconnected_head_counts_permits_after_a_sync() {
    for reconnects in [false, true] {
        let (zk, _other, a, _b) = two(1);
        let third = zk.connect();
        let inner = session(&third);
        let lagging = Arc::new(Lagging { inner, shows: Mutex::default(), syncs: AtomicBool::new(false), owner: None });
        let late = open(&ToLagging(third, Arc::clone(&lagging)), 1);
        let held = acquire(&a);
        let mut head = acquiring(&a, 1);
        assert_pending!(head.poll());
        let mut next = acquiring(&late, 1);
        assert_pending!(next.poll());
        drop(held);
        let taken = assert_ready_ok!(head.poll());
        assert!(next.is_woken(), "the signal did not wake the waiter");
        if reconnects {
            lagging.store().set_connected(false);
            lagging.store().set_connected(true);
            *lagging.shows.lock().expect("no panic") = Some(Vec::new());
        }
        assert_pending!(next.poll());
        assert_eq!(lagging.syncs.load(Ordering::Relaxed), reconnects);
        assert_eq!(zk.children(PERMITS).len(), 1);
        drop(taken);
        assert!(assert_ready_ok!(next.poll()).is_held());
    }
}

#[test]
fn a_holder_hears_only_of_waiters_that_lack_permits() {
    for polls in 1..POLLS {
        let (zk, _other, _a, b) = two(2);
        let held = acquire(&b);
        let slow = open(&Slow(zk.clone()), 2);
        let mut newcomer = acquiring(&slow, 1);
        let taken = poll_up_to(&mut newcomer, polls);
        let mut contended = task::spawn(held.contended());
        assert!(contended.poll().is_pending(), "{polls} polls");
        drop(contended);
        drop(taken);
    }
}

/// Returns a waiter that could take one of two permits, but is never polled again.
fn queued_and_polled_no_more(zk: &Memory) -> Acquiring<Permit> {
    let mut stands_still = acquiring(&open(&Slow(zk.connect()), 2), 1);
    while zk.children(QUEUE).is_empty() {
        assert_pending!(stands_still.poll());
    }
    stands_still
}

#[tokio::test(start_paused = true)]
async fn a_holder_backs_off_from_a_waiter_that_idles() {
    let (zk, ..) = two(2);
    let listings = Count::default();
    let line = Hindered::new(&zk.connect(), {
        let listings = listings.clone();
        move |asked| {
            if let Request::WatchChildren(QUEUE) = asked {
                listings.one_more();
            }
            None
        }
    });
    let held = acquire(&open(&line, 2));
    let _stands_still = queued_and_polled_no_more(&zk);
    let before = listings.now();
    assert!(
        timeout(Duration::from_secs(600), held.contended()).await.is_err(),
        "the holder heard of a waiter that finds enough permits"
    );
    // Each pause between two listings of the queue is twice as long as the last, up to the session timeout of 10 s. So
    // about 60 listings fit into the 600 s.
    assert!((60..=75).contains(&(listings.now() - before)), "{} listings", listings.now() - before);
}

#[test]
fn a_lost_reply_reports_no_waiter_that_finds_enough() {
    let (zk, ..) = two(2);
    let is_lost = AtomicBool::new(false);
    let line = Hindered::new(&zk.connect(), move |asked| match asked {
        Request::Data(path) if path.starts_with(QUEUE) && !is_lost.swap(true, Ordering::Relaxed) => {
            Some(Failure::Unknown("lost".to_owned()))
        }
        _ => None,
    });
    let held = acquire(&open(&line, 2));
    let _stands_still = queued_and_polled_no_more(&zk);
    assert!(task::spawn(held.contended()).poll().is_pending());
}

#[test]
fn a_holder_learns_who_waits_in_a_recreated_queue() {
    for is_asked_before in [true, false] {
        let (zk, _other, a, b) = two(1);
        let held = acquire(&a);
        let mut contended = task::spawn(held.contended());
        if is_asked_before {
            assert!(contended.poll().is_pending());
        }
        zk.faults().reap_containers();
        assert!(contended.poll().is_pending(), "a held permit without a waiter was reported as contended");
        let mut waits = acquiring(&b, 1);
        assert_pending!(waits.poll());
        let first = poll_up_to(&mut contended, 20).expect("the head is woken");
        assert!(matches!(&first, Poll::Ready(Ok(it)) if zk.children(QUEUE) == [it.as_str()]), "{first:?}");
        assert!(held.is_held());
    }
}

#[test]
fn a_permit_of_another_session_is_no_grant() {
    let (zk, ..) = two(1);
    let (inner, shows, syncs) = (session(&zk), Mutex::default(), AtomicBool::new(false));
    let replaced = Arc::new(Lagging { inner, shows, syncs, owner: Some(7) });
    let refused = now(open(&ToLagging(zk.clone(), replaced), 1).acquire()).unwrap_err();
    assert!(refused.to_string().ends_with("is of another session"), "{refused}");
    assert_eq!(left(&zk), (vec![], vec![], 0));
}

#[test]
fn a_handle_uses_the_number_of_permits_that_it_set() {
    let zk = Memory::new();
    let a = open(&zk, 2);
    now(a.set_permits(3)).expect("allowed");
    let _three = [(); 3].map(|()| acquire(&a));
    assert!(now(a.try_acquire()).expect_err("all are taken").is_would_block());
    let refused = now(open(&zk.connect(), 2).acquire()).unwrap_err();
    assert!(matches!(refused, Error::Permits { reason: PermitsError::Other { ours: 2, theirs: 3 }, .. }), "{refused}");
}

#[test]
fn a_permit_hidden_by_a_lagging_server_can_be_evicted() {
    let (zk, other, a, b) = two(1);
    now(b.queue()).expect("readable");
    other.faults().lag();
    let permit = acquire(&a);
    assert!(now(b.queue()).expect("readable").members.is_empty(), "the server does not lag");
    let gone = now(b.evict(permit.fencing_token())).expect("allowed").expect("the node exists");
    assert_eq!(gone.token, Some(permit.fencing_token()));
    assert!(!permit.is_held() && zk.children(PERMITS).is_empty());
}

// The first number, and the removal.

#[test]
fn a_semaphores_node_is_made_with_its_number() {
    let memory = Memory::new();
    let seen = memory.connect();
    let zk = Hindered::new(&memory, move |asked| {
        // Before each request of the first user, the semaphore's node is missing, or has its number and its twin.
        let slot = now(seen.session_slot(0)).expect("the session is alive");
        if let Ok((data, _)) = now(slot.session().data("/new/limit")) {
            assert_eq!(data, b"permits=2", "before {asked:?}");
            assert_eq!(now(slot.session().data("/new/limit.twin")).expect("made with the node").0, data);
        }
        None
    });
    let permit = now(Semaphore::new(&zk, "/new/limit", 2).expect("valid").acquire()).expect("free");
    assert!(permit.is_held());
}

#[test]
fn a_removal_with_a_lost_message_is_done_once() {
    for lose in
        [(|zk: &Memory| zk.faults().lose_next_reply()) as fn(&Memory), |zk: &Memory| zk.faults().lose_next_request()]
    {
        for request in 0..8 {
            let zk = Memory::new();
            let other = zk.connect();
            let semaphore = Semaphore::new(&zk, "/limit", 2).expect("valid");
            drop(now(semaphore.acquire()).expect("free"));
            let (sent, losing) = (Count::default(), zk.clone());
            let hindered = Hindered::new(&zk, move |_| {
                if sent.one_more() == request {
                    lose(&losing);
                }
                None
            });
            let removes = Semaphore::builder(&hindered, "/limit").build().expect("valid");
            assert_eq!(now(removes.remove()).expect("unused"), Some(2), "request {request}");
            assert_eq!(other.children("/"), Vec::<String>::new(), "request {request}");
        }
    }
}
