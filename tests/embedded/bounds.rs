//! Limits of an acquisition: how often it repeats a failing request, and how many bytes it reserves on a session for
//! the paths that it watches.

use std::collections::HashSet;
use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use support::hindered::{Count, Hindered, LateCreate, Request, begun, refused_at};
use support::polled::now;
use support::slow::Slow;
use tokio::time::Instant;
use tokio_test::{assert_pending, task};
use zk_rwlock::coordinator::{Coordinator, Failure, Kind, Operation, SessionEnd, SessionSlot, SessionStore};
use zk_rwlock::error::ValueError;
use zk_rwlock::{Error, Loss, Memory, RwLock, Semaphore, Shared};

const PATH: &str = "/locks/of-a-service/config";

/// The first of the last 2^20 sequence numbers. From this number on, the lock refuses new contenders, because
/// ZooKeeper's numbers are about to end.
const REFUSED_FROM: i32 = i32::MAX - (1 << 20) + 1;

/// Acquires a lock on an ensemble that answers each create of a contender's node with `failure`. Returns the number of creates
/// and the error.
async fn answered_with(failure: Failure) -> (usize, Error) {
    let count = Count::default();
    let tries = count.clone();
    let zk = Hindered::new(&Memory::new(), move |asked| match asked {
        Request::Create(_, Kind::EphemeralSequential) => {
            tries.one_more();
            Some(failure.clone())
        }
        _ => None,
    });
    let error = RwLock::new(&zk, PATH).expect("valid").write().await.expect_err("each create fails");
    assert_eq!(zk.memory.watches(), 0);
    (count.now(), error)
}

#[tokio::test(start_paused = true)]
async fn a_timeout_names_holders_listed_shortly_before() {
    let zk = Memory::new();
    let _held = now(RwLock::new(&zk, PATH).expect("valid").write()).expect("free");
    let lock = RwLock::new(&Slow(zk.connect()), PATH).expect("valid");
    let mut waits = task::spawn(lock.write().timeout(Duration::from_secs(1)).into_future());
    assert_pending!(waits.poll());
    // The first advance ends shortly before the timeout of 1 s, and the second after the timeout. Until the first
    // advance ends, no listing has been answered.
    for passes in [900, 200] {
        tokio::time::advance(Duration::from_millis(passes)).await;
        for _ in 0..20 {
            if let Poll::Ready(ended) = waits.poll() {
                let error = ended.expect_err("the lock is taken").to_string();
                return assert!(error.contains("held by WRITE"), "{error}");
            }
        }
    }
    panic!("the acquisition did not time out");
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_is_tried_on_three_ended_sessions() {
    let began = Instant::now();
    let (tries, error) = answered_with(Failure::Over(SessionEnd::Expired)).await;
    assert_eq!(tries, 3);
    // The client notices the end of a session a twentieth of the session timeout after the failed request: two waits of 500 ms.
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    assert!(!error.is_timeout() && error.is_lost(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn each_session_of_an_acquisition_has_a_name_of_its_own() {
    let created = Arc::new(Mutex::new(Vec::new()));
    let creates = Arc::clone(&created);
    let zk = Hindered::new(&Memory::new(), move |asked| match asked {
        Request::Create(path, Kind::EphemeralSequential) => {
            creates.lock().expect("no panic").push(path.to_owned());
            Some(Failure::Over(SessionEnd::Expired))
        }
        _ => None,
    });
    RwLock::new(&zk, PATH).expect("valid").write().await.expect_err("each session ends");
    let created = created.lock().expect("no panic");
    let names: HashSet<_> = created.iter().collect();
    assert_eq!(names.len(), 3, "{created:?}");
}

#[tokio::test(start_paused = true)]
async fn a_vanishing_directory_is_made_64_times() {
    let makings = Count::default();
    let made = makings.clone();
    let zk = Hindered::new(&Memory::new(), move |asked| match asked {
        Request::Create(_, Kind::EphemeralSequential) => Some(Failure::NoNode),
        Request::Create(PATH, _) => {
            made.one_more();
            None
        }
        _ => None,
    });
    let error = RwLock::new(&zk, PATH).expect("valid").write().await.expect_err("the directory vanishes each time");
    assert_eq!(makings.now(), 64, "{error}");
    assert!(!error.is_lost() && error.to_string().ends_with("no such node"), "there was no node to lose: {error}");
}

#[tokio::test(start_paused = true)]
async fn a_removed_initial_value_is_written_64_times() {
    let writings = Count::default();
    let written = writings.clone();
    let zk = Hindered::new(&Memory::new(), move |asked| match asked {
        Request::Transact(operations) => {
            let at = operations.iter().position(|it| matches!(it, Operation::Create { .. }))?;
            written.one_more();
            Some(refused_at(at, Failure::NodeExists))
        }
        _ => None,
    });
    let value = Shared::builder(&zk, "/value").initial(|| 1_u8).build().expect("valid");
    let error = value.read().await.expect_err("the directory vanishes each time");
    assert_eq!((writings.now(), error.value_error()), (64, Some(&ValueError::Unset)));
}

/// The reply to the first commit is lost, so the client does not know whether the old or the new value is stored. The
/// next commit of the same guard must succeed in both cases.
#[tokio::test(start_paused = true)]
async fn a_guard_can_commit_again_after_a_commit_in_doubt() {
    let (memory, is_cut_off) = (Memory::new(), Arc::new(AtomicBool::new(false)));
    let cut = Arc::clone(&is_cut_off);
    let zk = Hindered::new(&memory, move |asked| match asked {
        Request::Data("/value/value") if cut.load(Ordering::Relaxed) => Some(Failure::Unknown("lost".to_owned())),
        _ => None,
    });
    let value = Shared::builder(&zk, "/value").initial(|| 1_u8).build().expect("valid");
    let mut guard = value.write().await.expect("free");
    for answer_is_lost in [true, false, true, false] {
        *guard += 1;
        is_cut_off.store(answer_is_lost, Ordering::Relaxed);
        if answer_is_lost {
            memory.faults().lose_next_reply();
        }
        let answer = guard.commit().await;
        assert_eq!(matches!(answer, Err(Error::OutcomeUnknown { .. })), answer_is_lost, "{answer:?}");
        assert!(answer.is_ok() || answer_is_lost, "{answer:?}");
    }
    guard.release().await.expect("held");
    assert_eq!(*value.read().await.expect("free"), 5);
}

#[tokio::test(start_paused = true)]
async fn a_create_with_lost_replies_is_sent_65_times() {
    let (tries, error) = answered_with(Failure::Unknown("lost".to_owned())).await;
    assert_eq!(tries, 65);
    assert!(error.to_string().contains("lost"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_create_that_is_carried_out_late_leaves_no_node() {
    let memory = Memory::new();
    let holder = RwLock::new(&memory, PATH).expect("valid").write().await.expect("free");
    let alone = memory.children(PATH);
    let late = LateCreate::of_a_timeout(&memory, PATH).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for is_back in [false, true] {
        late.arrives().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(memory.children(PATH), alone, "after another reconnect: {is_back}");
    }
    holder.release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn each_of_several_late_creates_leaves_no_node() {
    let memory = Memory::new();
    let holder = RwLock::new(&memory, PATH).expect("valid").write().await.expect("free");
    let alone = memory.children(PATH);
    let lost = [LateCreate::of_a_timeout(&memory, PATH).await, LateCreate::of_a_timeout(&memory, PATH).await];
    tokio::time::sleep(Duration::from_secs(1)).await;
    for (number, late) in lost.into_iter().enumerate() {
        late.arrives().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(memory.children(PATH), alone, "create {number}");
    }
    holder.release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_with_lost_replies_is_sent_65_times() {
    let tries = Count::default();
    let count = tries.clone();
    let zk = Hindered::new(&Memory::new(), move |asked| match asked {
        Request::Transact([Operation::Create { .. }, Operation::Delete { .. }]) => {
            count.one_more();
            Some(Failure::Unknown("lost".to_owned()))
        }
        _ => None,
    });
    let guard = RwLock::new(&zk, PATH).expect("valid").write().await.expect("free");
    let error = guard.downgrade().await.expect_err("the outcome is unknown");
    assert!(error.to_string().contains("lost"), "{error}");
    assert_eq!(tries.now(), 65);
    assert_eq!(zk.memory.children(PATH), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_directory_of_used_up_numbers_is_remade_8_times() {
    let memory = Memory::new();
    let (count, ensemble) = (Count::default(), memory.clone());
    let tries = count.clone();
    let zk = Hindered::new(&memory, move |asked| {
        if let Request::Create(_, Kind::EphemeralSequential) = asked {
            // A create in a missing directory fails and uses up no sequence number, so the test does not count that create.
            if !ensemble.children("/locks/of-a-service").is_empty() {
                tries.one_more();
                ensemble.faults().set_next_sequence(PATH, REFUSED_FROM);
            }
        }
        None
    });
    let error = RwLock::new(&zk, PATH).expect("valid").write().await.expect_err("no number may be used");
    assert!(matches!(&error, Error::SequenceExhausted { path } if path == PATH), "{error:?}");
    assert_eq!(count.now(), 9, "unexpected number of creates");
    assert_eq!(memory.children(PATH), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_read_on_three_ended_sessions() {
    let count = Count::default();
    let tries = count.clone();
    let zk = Hindered::new(&Memory::new(), move |asked| match asked {
        Request::Children(PATH) => {
            tries.one_more();
            Some(Failure::Over(SessionEnd::Expired))
        }
        _ => None,
    });
    let began = Instant::now();
    let error = RwLock::new(&zk, PATH).expect("valid").queue().await.expect_err("every session has ended");
    assert!(error.to_string().contains("expired"), "{error}");
    // Each new try gets the same ended session again until the client notices the end, which takes a twentieth of the
    // session timeout: 500 ms. So the three tries take 1 s.
    assert_eq!((count.now(), began.elapsed()), (3, Duration::from_secs(1)));
}

/// A reservation of bytes on a session. Giving the reservation back a second time fails the test.
struct Room(Count);

impl Drop for Room {
    fn drop(&mut self) {
        assert_eq!(self.0.one_more(), 0);
    }
}

#[support::judged]
async fn a_session_slot_returns_its_room_once() {
    let given_back = Count::default();
    let slot = {
        let (memory, given_back) = (Memory::new(), given_back.clone());
        let session = Arc::clone(memory.session_slot(0).await.expect("open").session());
        SessionSlot::with_reservation(session, Room(given_back))
    };
    assert_eq!(given_back.now(), 0);
    drop(slot);
    assert_eq!(given_back.now(), 1);

    let client = Arc::new(Memory::new());
    let held = RwLock::new(&client, PATH).expect("valid").write().await.expect("free");
    Coordinator::close(&client).await;
    assert!(!held.is_held());
}

/// Returns the store of a session whose lease has run out.
fn lapsed() -> Arc<SessionStore> {
    let (store, clock) = begun(Duration::from_secs(10));
    clock.fetch_add(3_600, Ordering::Relaxed);
    store
}

/// Acquires on a session whose lease has run out, so the acquisition must check at the leader that its own node exists. The
/// closure `answer` gives the failure of each check, or `None`. Returns the number of checks, the duration and the result of the
/// acquisition.
async fn confirmed_by(
    answer: impl Fn(usize, &SessionStore) -> Option<Failure> + Send + Sync + 'static,
) -> (usize, Duration, Result<(), Error>) {
    let store = lapsed();
    let (count, heard) = (Count::default(), Arc::clone(&store));
    let tries = count.clone();
    let zk = Hindered::new(&Memory::new(), move |asked| {
        let Request::Transact([Operation::Check { path, version: None }]) = asked else { return None };
        // Before the grant, the session also sends a check of the lock's directory, as a sync. The test counts only
        // checks of the contender's node.
        if !path.contains("-WRITE-") {
            return None;
        }
        tries.one_more();
        answer(tries.now(), &heard)
    });
    let began = Instant::now();
    let lock = RwLock::new(&zk.with_store(&store), PATH).expect("valid");
    let granted = lock.write().await;
    let held = granted.map(|guard| assert!(guard.is_held()));
    (count.now(), began.elapsed(), held)
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_has_run_out_is_renewed_before_the_grant() {
    let renew = |tries, store: &SessionStore| {
        if tries == 3 {
            store.record_begin(store.lease().now());
        }
        None
    };
    let (tries, took, granted) = confirmed_by(renew).await;
    granted.expect("the last check succeeded");
    // The second check follows the first without a pause. The third follows after a twentieth of the session timeout:
    // 500 ms.
    assert_eq!((tries, took), (3, Duration::from_millis(500)));
}

/// The lease has run out before the exchange, so the permit's node is confirmed before the permit counts as held.
#[tokio::test(start_paused = true)]
async fn a_permit_is_granted_only_under_a_valid_lease() {
    let store = lapsed();
    let (renewed, checks) = (Arc::clone(&store), Count::default());
    let checked = checks.clone();
    let zk = Hindered::new(&Memory::new(), move |asked| {
        if let Request::Transact([Operation::Check { path, .. }]) = asked
            && path.contains("-PERMIT-")
        {
            checked.one_more();
            renewed.record_begin(renewed.lease().now());
        }
        None
    });
    let semaphore = Semaphore::new(&zk.with_store(&store), "/limit", 1).expect("valid");
    let permit = semaphore.acquire().await.expect("free");
    assert_eq!((permit.is_held(), checks.now()), (true, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_never_renewed_grants_nothing() {
    let (tries, took, granted) = confirmed_by(|_, _| None).await;
    let error = granted.expect_err("the session may have ended");
    assert!(matches!(&error, Error::Unreachable(why) if why.contains("too late for the lease")), "{error:?}");
    assert_eq!((tries, took), (100, Duration::from_secs(49)));
}

#[tokio::test(start_paused = true)]
async fn a_loss_ends_an_acquisition_whose_lease_renewal_is_unanswered() {
    let store = lapsed();
    let over = Arc::clone(&store);
    let zk = Hindered::new(&Memory::new(), move |asked| {
        if let Request::Transact([Operation::Check { path, .. }]) = asked
            && path.contains("-WRITE-")
        {
            over.record_end_and_report(SessionEnd::Expired);
        }
        None
    });
    let began = Instant::now();
    let zk = zk.with_store(&store).with_commits_that_take(Duration::from_secs(3_600));
    let error = RwLock::new(&zk, PATH).expect("valid").write().await.expect_err("the session is over");
    assert!(error.is_lost() && began.elapsed() < Duration::from_secs(1), "{error:?} after {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_removed_node_found_at_the_lease_renewal_is_evicted() {
    let of_check = |failure: Failure| move |_, _: &SessionStore| Some(refused_at(0, failure.clone()));
    let (tries, _, gone) = confirmed_by(of_check(Failure::NoNode)).await;
    assert!(matches!(gone, Err(Error::Evicted(Loss::Removed))), "{gone:?}");
    assert_eq!(tries, 1);
    let (tries, _, refused) = confirmed_by(of_check(Failure::Refused("by an operator".to_owned()))).await;
    assert!(refused.as_ref().is_err_and(|it| it.to_string().contains("by an operator")), "{refused:?}");
    assert_eq!(tries, 1);
}

/// Returns the length of the longest path of a node in this directory.
fn longest(zk: &Hindered, directory: &str) -> usize {
    let names = zk.memory.children(directory);
    directory.len() + 1 + names.iter().map(String::len).max().expect("the directory has a node")
}

/// The transaction that ends a session names all ephemeral nodes of the session and must fit into one request. So a
/// session reserves room for the path of each node.
#[test]
fn every_hold_reserves_room_for_its_ephemeral_path() {
    let is_within = |zk: &Hindered, reserved: &AtomicUsize, directory: &str| {
        let reserved = reserved.load(Ordering::Relaxed);
        assert!(longest(zk, directory) <= reserved, "{directory}: {reserved} bytes are reserved");
        assert_eq!(zk.memory.children(directory).len(), 1);
    };
    let (zk, reserved) = Hindered::noting(&Memory::new());
    let kept = RwLock::builder(&zk, PATH).keep(Duration::from_secs(1)).build().expect("valid");
    drop(now(kept.read()).expect("free"));
    is_within(&zk, &reserved, PATH);
    let (zk, reserved) = Hindered::noting(&Memory::new());
    let _held = now(Semaphore::new(&zk, PATH, 1000).expect("valid").acquire_many(1000)).expect("free");
    is_within(&zk, &reserved, &format!("{PATH}/permits"));
}

/// ZooKeeper 3.10 may reap a container that has never had a child, so a new lock directory can vanish before its first use.
#[test]
fn a_directory_reaped_before_use_is_made_again() {
    let (memory, reaped) = (Memory::new(), Count::default());
    let (operator, count) = (memory.clone(), reaped.clone());
    let zk = Hindered::new(&memory, move |asked| {
        let reap = |path: &str, kind: Kind| {
            let (directory, _) = path.rsplit_once('/').expect("a path");
            let Some((above, name)) = directory.rsplit_once('/') else { return };
            let is_unused =
                operator.children(directory).is_empty() && operator.children(above).iter().any(|it| it == name);
            if matches!(kind, Kind::Ephemeral | Kind::EphemeralSequential) && is_unused && count.one_more() % 3 < 2 {
                operator.faults().remove(directory);
            }
        };
        match asked {
            Request::Create(path, kind) => reap(path, kind),
            Request::Transact(operations) => operations.iter().for_each(|operation| {
                if let Operation::Create { path, kind, .. } = operation {
                    reap(path, *kind);
                }
            }),
            _ => {}
        }
        None
    });
    assert!(now(RwLock::new(&zk, PATH).expect("valid").write()).expect("granted").is_held());
    assert_eq!(reaped.now(), 3, "expected two reaped directories and a third in use");
    assert!(now(Semaphore::new(&zk, "/limit/of", 2).expect("valid").acquire()).expect("granted").is_held());
    assert_eq!(reaped.now(), 9, "expected as many for the queue and for the permits");
}
