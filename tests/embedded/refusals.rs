//! Single requests that a server refuses, and the reaction of acquisitions, semaphores and transactions.

use std::future::IntoFuture;
use std::sync::Mutex;
use std::time::Duration;

use support::hindered::{Count, Hindered, Request, refused_at};
use support::polled::now;
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use zk_rwlock::coordinator::{Coordinator, Failure, Kind, Operation, SessionEnd};
use zk_rwlock::{Dialect, Error, Loss, Memory, RwLock, Semaphore, Shared, WriteGuard};

const ABOVE: &str = "/locks";
const PATH: &str = "/locks/config";
const LIMIT: &str = "/limit";
const PERMITS: &str = "/limit/permits";

/// Returns the result of a write acquisition on an ensemble that answers a request with a failure if `refuses` returns
/// one.
fn write_where(
    memory: &Memory,
    refuses: impl Fn(Request<'_>) -> Option<Failure> + Send + Sync + 'static,
) -> Result<WriteGuard, Error> {
    now(RwLock::new(&Hindered::new(memory, refuses), PATH).expect("valid").write())
}

#[test]
fn a_lost_create_grants_nothing_in_a_directory_that_is_refused() {
    let memory = Memory::new();
    let line = Hindered::new(&memory, |_| None).with_wider_rights("world:anyone may WRITE");
    drop(now(RwLock::new(&memory, PATH).expect("valid").write()).expect("free"));
    memory.faults().lose_next_reply();
    let refused = now(RwLock::new(&line, PATH).expect("valid").write()).expect_err("others may write").to_string();
    assert!(refused.contains("wider than that of this client: world:anyone may WRITE"), "{refused}");
    assert_eq!(memory.children(PATH), Vec::<String>::new());
}

#[test]
fn a_refused_entry_whose_node_stays_says_so() {
    let memory = with_directory();
    let refuses = |asked: Request<'_>| matches!(asked, Request::Delete(_)).then(|| Failure::NoAuth(Box::default()));
    let line = Hindered::new(&memory, refuses).with_wider_rights("world:anyone may WRITE");
    let (operation, path) = denied(now(RwLock::new(&line, PATH).expect("valid").write()));
    assert_eq!(
        (operation, vec![path]),
        (Error::DELETE_OWN_NODE, memory.children(PATH).iter().map(|it| format!("{PATH}/{it}")).collect())
    );
}

/// Returns the operation and the path of the `PermissionDenied` error. Panics on any other result.
fn denied(granted: Result<WriteGuard, Error>) -> (&'static str, String) {
    match granted {
        Err(Error::PermissionDenied { operation, path, .. }) => (operation, path),
        other => panic!("not refused: {other:?}"),
    }
}

/// Returns an ensemble where the lock's directory exists, because another client has used the lock.
fn with_directory() -> Memory {
    let memory = Memory::new();
    drop(now(RwLock::new(&memory.connect(), PATH).expect("valid").write()).expect("free"));
    memory
}

// Refused requests for the lock's directory.

#[test]
fn an_existing_parent_needs_no_right_to_create() {
    let refuses =
        |asked: Request<'_>| matches!(asked, Request::Create(ABOVE, _)).then_some(Failure::NoAuth(Box::default()));
    let memory = Memory::new();
    drop(now(RwLock::new(&memory.connect(), "/locks/other").expect("valid").write()).expect("free"));
    assert!(write_where(&memory, refuses).expect("the node exists").is_held());

    let (_, path) = denied(write_where(&Memory::new(), refuses));
    assert_eq!(path, PATH, "the error names another path than the directory's");
}

#[test]
fn a_forbidden_directory_is_requested_once() {
    let tries = Count::default();
    let count = tries.clone();
    let refused = write_where(&Memory::new(), move |asked| match asked {
        Request::Create(PATH, _) => {
            count.one_more();
            Some(Failure::NoAuth(Box::default()))
        }
        _ => None,
    });
    assert_eq!(denied(refused).1, PATH);
    assert_eq!(tries.now(), 1);
}

#[test]
fn a_parent_that_vanishes_is_made_again() {
    let tries = Count::default();
    let granted = write_where(&Memory::new(), move |asked| match asked {
        Request::Create(PATH, _) if tries.one_more() == 0 => Some(Failure::NoNode),
        _ => None,
    });
    assert!(granted.expect("made again").is_held());
}

#[test]
fn a_contender_denied_its_new_directory_removes_it() {
    let refuses = |memory: &Memory| {
        let ensemble = memory.clone();
        move |asked: Request<'_>| match asked {
            Request::Create(path, Kind::EphemeralSequential) if path.starts_with(PATH) => {
                let is_there = ensemble.children(ABOVE).iter().any(|it| it == "config");
                is_there.then_some(Failure::NoAuth(Box::default()))
            }
            _ => None,
        }
    };
    let memory = Memory::new();
    let (own, path) = denied(write_where(&memory, refuses(&memory)));
    assert_eq!((path.as_str(), memory.children("/")), (PATH, vec![]));

    let memory = with_directory();
    let (others, _) = denied(write_where(&memory, refuses(&memory)));
    assert_eq!(memory.children(ABOVE), ["config"]);
    assert_ne!(own, others, "the errors for an own and a foreign directory are equal");
}

#[test]
fn a_contender_denied_the_listing_leaves_the_queue() {
    let may_not_list =
        |asked: Request<'_>| matches!(asked, Request::Children(PATH)).then_some(Failure::NoAuth(Box::default()));
    let memory = Memory::new();
    let (own, path) = denied(write_where(&memory, may_not_list));
    assert_eq!((path.as_str(), memory.children("/")), (PATH, vec![]));

    let memory = with_directory();
    let (others, _) = denied(write_where(&memory, may_not_list));
    assert_eq!((memory.children(ABOVE), memory.children(PATH)), (vec!["config".to_owned()], vec![]));
    assert_ne!(own, others);
}

#[test]
fn a_contender_that_cannot_leave_names_its_node() {
    let refused = write_where(&with_directory(), |asked| match asked {
        Request::Children(PATH) => Some(Failure::NoAuth(Box::default())),
        Request::Delete(_) | Request::Transact(_) => Some(Failure::NoAuth(Box::default())),
        _ => None,
    });
    let (_, path) = denied(refused);
    assert!(path.starts_with(PATH) && path.contains("-WRITE-"), "{path}");
}

#[test]
fn a_used_up_number_that_cannot_be_left_is_named() {
    let memory = with_directory();
    memory.faults().set_next_sequence(PATH, i32::MAX - 1);
    let (_, path) = denied(write_where(&memory, |asked| match asked {
        Request::Delete(_) => Some(Failure::NoAuth(Box::default())),
        _ => None,
    }));
    assert!(path.starts_with(PATH) && path.contains("-WRITE-"), "{path}");
}

#[test]
fn a_try_that_is_refused_at_once_makes_no_node() {
    let memory = Memory::new();
    let (line, creates) = Hindered::counting(&memory, |_| ());
    let _foreign = now(RwLock::builder(&memory, PATH).dialect(Dialect::Curator).build().expect("valid").write());
    let refused = now(RwLock::new(&line, PATH).expect("valid").try_write());
    assert!(matches!(refused, Err(Error::ForeignContender { .. })), "{refused:?}");
    drop(now(Semaphore::new(&memory, LIMIT, 1).expect("valid").acquire()).expect("free"));
    let refused = now(RwLock::new(&line, LIMIT).expect("valid").try_write());
    assert!(matches!(refused, Err(Error::Permits { .. })), "{refused:?}");
    assert_eq!(creates.now(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_try_whose_session_has_ended_is_made_on_the_next() {
    let listings = Count::default();
    let line = Hindered::new(&with_directory(), move |asked| match asked {
        // The second listing follows the create.
        Request::Children(PATH) if listings.one_more() == 1 => Some(Failure::Over(SessionEnd::Expired)),
        _ => None,
    });
    let granted = RwLock::new(&line, PATH).expect("valid").try_write().await;
    assert!(granted.expect("the lock is free").is_held());
}

// Refused transactions.

/// Returns the result of a transaction whose check of the lock's own node fails with `failure`, and the guard.
fn committed_with(failure: Failure) -> (Result<(), Error>, WriteGuard) {
    let refuses = move |asked: Request<'_>| match asked {
        Request::Transact([Operation::Check { .. }, Operation::Set { .. }, ..]) => Some(refused_at(0, failure.clone())),
        _ => None,
    };
    let guard = write_where(&Memory::new(), refuses).expect("free");
    (now(guard.transaction().set("/config", b"new").commit()).map(drop), guard)
}

#[test]
fn a_transaction_on_a_removed_own_node_loses_the_lock() {
    let (answer, guard) = committed_with(Failure::NoNode);
    assert!(matches!(answer, Err(Error::Lost(Loss::Removed))), "{answer:?}");
    assert!(!guard.is_held());
}

#[test]
fn a_transaction_denied_its_check_keeps_the_lock() {
    let (answer, guard) = committed_with(Failure::NoAuth(Box::default()));
    assert!(matches!(answer, Err(Error::TransactionRefused { reason: Failure::NoAuth(_), .. })), "{answer:?}");
    assert!(guard.is_held());
}

// Lost replies, and other kinds of refusals.

#[tokio::test(start_paused = true)]
async fn a_queue_with_lost_listings_is_listed_66_times() {
    let tries = Count::default();
    let count = tries.clone();
    let zk = Hindered::new(&with_directory(), move |asked| match asked {
        Request::Children(PATH) => {
            count.one_more();
            Some(Failure::Unknown("lost".to_owned()))
        }
        _ => None,
    });
    // The warning about a long wait is off, because each warning would list the queue as well.
    let lock = RwLock::builder(&zk, PATH).warn_after_waiting(None).build().expect("valid");
    let error = lock.write().await.expect_err("the queue is unknown");
    assert!(error.to_string().contains("lost"), "{error}");
    // The first listing is sent together with the create. The contender then lists the queue again, and repeats that
    // listing 64 times.
    assert_eq!(tries.now(), 66);
}

/// Returns a client whose server refuses every signal, and the number of signals sent. A signal is a write to a
/// contender's node just before the node is deleted. The write tells the next waiter that the delete is a hand-off.
fn without_signals(memory: &Memory, failure: Failure) -> (Hindered, Count) {
    let tries = Count::default();
    let count = tries.clone();
    let zk = Hindered::new(memory, move |asked| {
        let Request::Transact(operations) = asked else { return None };
        let is_signal = |it: &Operation| matches!(it, Operation::Set { path, .. } if path.contains("-WRITE-"));
        let index = operations.iter().position(is_signal)?;
        count.one_more();
        Some(refused_at(index, failure.clone()))
    });
    (zk, tries)
}

#[test]
fn a_refused_signal_is_sent_once() {
    for failure in [Failure::NoAuth(Box::default()), Failure::Refused("no".to_owned())] {
        let memory = Memory::new();
        let (zk, tries) = without_signals(&memory, failure.clone());
        let lock = RwLock::new(&zk, PATH).expect("valid");
        for _ in 0..2 {
            now(now(lock.write()).expect("free").release()).expect("a plain delete serves as well");
        }
        assert_eq!((memory.children(PATH), tries.now()), (vec![], 1));

        let (zk, tries) = without_signals(&Memory::new(), failure);
        let limit = semaphore(&zk);
        for _ in 0..2 {
            now(now(limit.acquire()).expect("free").release()).expect("the exchange works without the signal");
        }
        assert_eq!(tries.now(), 1);
    }
}

#[test]
fn a_place_that_cannot_be_deleted_is_not_exchanged() {
    let tries = Count::default();
    let count = tries.clone();
    let zk = Hindered::new(&Memory::new(), move |asked| {
        let Request::Transact(operations) = asked else { return None };
        if !matches!(operations, [_, _, Operation::Create { .. }, ..]) {
            return None;
        }
        count.one_more();
        let place = operations.iter().position(|it| matches!(it, Operation::Delete { .. }));
        place.map(|index| refused_at(index, Failure::NoAuth(Box::default())))
    });
    let refused = now(semaphore(&zk).acquire());
    assert!(matches!(refused, Err(Error::PermissionDenied { .. })), "{refused:?}");
    assert_eq!(tries.now(), 1, "the exchange is repeated without the signal");
}

#[test]
fn a_release_says_whether_the_node_was_gone_before() {
    let removed = |is_lost: bool| {
        let (memory, tries) = (Memory::new(), Count::default());
        let ensemble = memory.connect();
        let granted = write_where(&memory, move |asked| match asked {
            Request::Transact([Operation::Set { path, .. }, Operation::Delete { .. }]) => {
                let slot = now(ensemble.session_slot(0)).expect("open");
                let _gone = now(slot.session().delete(path));
                let is_first = tries.one_more() == 0;
                let failure = refused_at(0, Failure::NoNode);
                Some(if is_first && is_lost { Failure::Unknown("lost".to_owned()) } else { failure })
            }
            _ => None,
        });
        now(granted.expect("free").release())
    };
    assert!(matches!(removed(false), Err(Error::Lost(Loss::Removed))), "{:?}", removed(false));
    removed(true).expect("the first try may have removed it");
}

#[test]
fn a_refused_delete_is_not_retried_without_the_signal() {
    let refuses = |asked: Request<'_>| match asked {
        Request::Transact([Operation::Set { .. }, Operation::Delete { .. }]) => {
            Some(refused_at(1, Failure::NoAuth(Box::default())))
        }
        _ => None,
    };
    let memory = Memory::new();
    let guard = write_where(&memory, refuses).expect("free");
    let node = guard.node_path();
    match now(guard.release()) {
        Err(Error::PermissionDenied { path, .. }) => {
            assert_eq!(path, node, "the error does not name the node that stays")
        }
        other => panic!("not refused: {other:?}"),
    }
    assert_eq!(memory.children(PATH).len(), 1, "the node did not stay");
}

#[test]
fn a_sync_needs_no_node_and_no_permission() {
    let is_synced = |failure: Failure| {
        let answer = failure.clone();
        let zk = Hindered::new(&Memory::new(), move |asked| match asked {
            Request::Transact([Operation::Check { .. }]) => Some(answer.clone()),
            _ => None,
        });
        let slot = now(zk.session_slot(0)).expect("open");
        now(slot.session().sync("/any")).is_ok()
    };
    let of_check = |failure| refused_at(0, failure);
    for failure in [Failure::NoNode, Failure::NoAuth(Box::default()), Failure::BadVersion] {
        assert!(is_synced(of_check(failure.clone())), "{failure}");
    }
    for failure in [Failure::Refused("no".to_owned()), Failure::InvalidAcl] {
        assert!(!is_synced(of_check(failure.clone())), "{failure}");
    }
    assert!(!is_synced(Failure::Unknown("lost".to_owned())));
}

/// Calls `done` for work that is due, while each write of the work's record fails with the result of `answers`. Returns
/// the number of writes and the error.
async fn recorded_with(answers: impl Fn(&Operation) -> Failure + Send + Sync + 'static) -> (usize, Error) {
    recorded_on(&Memory::new(), answers).await
}

async fn recorded_on(
    memory: &Memory,
    answers: impl Fn(&Operation) -> Failure + Send + Sync + 'static,
) -> (usize, Error) {
    let tries = Count::default();
    let count = tries.clone();
    let zk = Hindered::new(memory, move |asked| match asked {
        Request::Transact([Operation::Check { .. }, write, _twin]) if write.path().ends_with(".done") => {
            count.one_more();
            Some(answers(write))
        }
        _ => None,
    });
    let lock = RwLock::new(&zk, PATH).expect("valid");
    let guard = lock.write().once_in(Duration::from_millis(1)).await.expect("free").due().expect("the work is due");
    let error = guard.done().await.expect_err("the record is never written");
    (tries.now(), error)
}

#[tokio::test(start_paused = true)]
async fn a_vanishing_record_is_written_64_times() {
    let comes_and_goes = |write: &Operation| {
        let failure = if matches!(write, Operation::Set { .. }) { Failure::NoNode } else { Failure::NodeExists };
        refused_at(1, failure)
    };
    let memory = Memory::new();
    for is_there in [false, true] {
        let (tries, error) = recorded_on(&memory, comes_and_goes).await;
        assert!(matches!(error, Error::TransactionRefused { .. }), "{error:?}");
        assert_eq!(tries, 64, "the record exists at first: {is_there}");
        let once = RwLock::new(&memory, PATH).expect("valid").write().once_in(Duration::from_millis(1));
        let guard = once.await.expect("free").due().expect("long ago");
        guard.done().await.expect("no contender is in the way");
        guard.release().await.expect("held");
        memory.faults().set_clock_forward(Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_is_in_doubt_after_33_lost_replies() {
    let (tries, error) = recorded_with(|_| Failure::Unknown("lost".to_owned())).await;
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
    // Each failed write counts twice towards the limit of retries: as a try and as a lost reply.
    assert_eq!(tries, 33);
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_record_is_refused_at_once() {
    let may_not = |_: &Operation| refused_at(1, Failure::NoAuth(Box::default()));
    let (tries, error) = recorded_with(may_not).await;
    assert!(matches!(&error, Error::PermissionDenied { path, .. } if path.ends_with(".done")), "{error:?}");
    assert_eq!(tries, 1);
}

#[tokio::test(start_paused = true)]
async fn a_value_written_just_before_the_watch_is_seen() {
    let memory = Memory::new();
    let other = Shared::builder(&memory.connect(), "/value").initial(|| 0_u64).build().expect("valid");
    let tries = Count::default();
    let zk = Hindered::new(&memory, move |asked| {
        if matches!(asked, Request::WatchChildren(_)) && tries.one_more() == 0 {
            let mut value = now(other.write()).expect("free");
            *value = 7;
            now(value.commit()).expect("held");
        }
        None
    });
    let shared = Shared::<u64>::new(&zk, "/value").expect("valid");
    let seen = shared.wait_for(|value| *value == 7).timeout(Duration::from_millis(500)).await;
    assert_eq!(**seen.expect("the node exists"), 7);
}

// Creates whose replies are lost and that the server carries out late or on another session.

/// The reply to the contender's first create is lost. The server carries that create out only just before the second one, in the
/// session of `late`. Returns the contenders in the directory once the lock is granted.
fn granted_after_a_late_create(memory: &Memory, late: Memory) -> Vec<String> {
    let first = Mutex::new(None);
    let granted = write_where(memory, move |asked| match asked {
        Request::Create(path, kind @ Kind::EphemeralSequential) => {
            let mut first = first.lock().expect("no panic");
            match first.take() {
                None => {
                    *first = Some(path.to_owned());
                    return Some(Failure::Unknown("lost".to_owned()));
                }
                Some(path) => {
                    let slot = now(late.session_slot(0)).expect("open");
                    now(slot.session().create(&path, b"", kind)).expect("the directory is there");
                }
            }
            None
        }
        _ => None,
    });
    let guard = granted.expect("no other contender");
    assert!(guard.is_held());
    memory.children(PATH)
}

#[test]
fn a_create_that_is_done_late_leaves_no_second_node() {
    let memory = with_directory();
    let contenders = granted_after_a_late_create(&memory, memory.clone());
    assert_eq!(contenders.len(), 1, "{contenders:?}");
    assert!(contenders[0].ends_with("-WRITE-0000000002"), "a second node stays: {contenders:?}");
}

#[test]
fn a_foreign_sessions_node_is_not_taken_as_own() {
    let memory = with_directory();
    let contenders = granted_after_a_late_create(&memory, memory.connect());
    assert_eq!(contenders.len(), 1, "{contenders:?}");

    let (other, tries) = (memory.connect(), Count::default());
    let granted = write_where(&memory, move |asked| match asked {
        Request::Create(path, kind @ Kind::EphemeralSequential) if tries.one_more() == 0 => {
            let slot = now(other.session_slot(0)).expect("open");
            now(slot.session().create(path, b"", kind)).expect("the directory is there");
            Some(Failure::Unknown("lost".to_owned()))
        }
        _ => None,
    });
    assert!(granted.expect("a second create, on the own session").is_held());
}

/// The server makes the contender's node and yet answers that the directory is missing.
#[test]
fn a_node_in_a_directory_said_to_be_missing_is_used() {
    let memory = with_directory();
    for (late, is_own) in [(memory.clone(), true), (memory.connect(), false)] {
        let tries = Count::default();
        let count = tries.clone();
        let granted = write_where(&memory, move |asked| match asked {
            Request::Create(path, kind @ Kind::EphemeralSequential) if tries.one_more() == 0 => {
                let slot = now(late.session_slot(0)).expect("open");
                now(slot.session().create(path, b"", kind)).expect("the directory is there");
                Some(Failure::NoNode)
            }
            _ => None,
        });
        assert!(granted.expect("no other contender").is_held());
        assert_eq!(count.now(), if is_own { 1 } else { 2 });
        assert_eq!(memory.children(PATH), Vec::<String>::new());
    }
}

#[test]
fn a_refused_downgrade_is_an_error() {
    let guard = write_where(&Memory::new(), |asked| match asked {
        Request::Transact([Operation::Create { .. }, Operation::Delete { .. }]) => {
            Some(refused_at(0, Failure::NoAuth(Box::default())))
        }
        _ => None,
    });
    let refused = now(guard.expect("free").downgrade());
    assert!(matches!(refused, Err(Error::PermissionDenied { .. })), "{refused:?}");
}

#[test]
fn a_transaction_too_large_is_refused_unsent() {
    let sent = Count::default();
    let count = sent.clone();
    // The server closes the connection at each transaction of two or more operations, as if the transaction were too
    // large. To learn the outcome, the guard sends only the check, a transaction of one operation.
    let guard = write_where(&Memory::new(), move |asked| match asked {
        Request::Transact([_, _, ..]) => {
            count.one_more();
            Some(Failure::Unknown("the server has closed the connection".to_owned()))
        }
        _ => None,
    });
    let guard = guard.expect("free");
    let large = || guard.transaction().create("/large", vec![7; 1 << 20]);
    let many = (0..20_000).fold(guard.transaction(), |all, it| all.create(format!("/many/{it}"), [7; 20]));
    for too_large in [large(), many, guard.transaction().check_exists("/x").size_limit(10)] {
        let error = now(too_large.commit()).expect_err("too large").to_string();
        assert!(error.starts_with("invalid input: a transaction of ") && error.contains(" bytes; at most "), "{error}");
    }
    assert_eq!((sent.now(), guard.is_held()), (0, true));
    let error = now(large().size_limit(2 << 20).commit()).expect_err("the reply is lost").to_string();
    assert!(error.starts_with("commit under the lock: the outcome is unknown"), "{error}");
    assert_eq!(sent.now(), 1);
}

/// Without a check of the node's owner, the holder would take the foreign node for its own, and would report its lock
/// as lost when the foreign node is deleted.
#[test]
fn a_foreign_node_at_a_downgrade_is_not_taken_as_own() {
    let memory = Memory::new();
    let guard = now(RwLock::new(&memory, PATH).expect("valid").write()).expect("free");
    let (stranger, own) = (memory.connect(), guard.node_path());
    let session = now(stranger.session_slot(0)).expect("open");
    let forged = own.replace("-WRITE-", "-READ-");
    now(session.session().create(&forged, b"", Kind::Ephemeral)).expect("made");

    let refused = now(guard.downgrade());
    assert!(refused.is_err_and(|error| error.to_string().contains("the node exists already")));
    assert_eq!(memory.children(PATH), Vec::<String>::new(), "the contender's own node stays");
}

/// A foreign READ node is not taken for the contender's own either if the WRITE node goes at the same moment.
#[test]
fn a_foreign_node_is_not_taken_as_own_by_an_evicted_writer() {
    let memory = Memory::new();
    let stranger = memory.connect();
    let is_replaced = Count::default();
    let count = is_replaced.clone();
    let guard = write_where(&memory, move |asked| {
        let Request::Transact([Operation::Create { path: to, .. }, Operation::Delete { path: own, .. }]) = asked else {
            return None;
        };
        let session = now(stranger.session_slot(0)).expect("open");
        now(session.session().create(to, b"", Kind::Ephemeral)).expect("made");
        assert_eq!(now(session.session().delete(own)), Ok(()));
        count.one_more();
        None
    });
    let refused = now(guard.expect("free").downgrade());
    assert_eq!((is_replaced.now(), refused.is_err()), (1, true));
}

// Refused requests of a semaphore.

/// Tries to take a permit while each exchange fails with `failure`. Returns the number of exchanges and the result.
async fn taken_with(failure: Failure) -> (usize, Result<(), Error>) {
    let tries = Count::default();
    let count = tries.clone();
    let zk = Hindered::new(&Memory::new(), move |asked| match asked {
        Request::Transact([_, _, Operation::Create { .. }, ..]) => {
            count.one_more();
            Some(failure.clone())
        }
        _ => None,
    });
    let taken = semaphore(&zk).acquire().await.map(drop);
    (tries.now(), taken)
}

#[tokio::test(start_paused = true)]
async fn a_permit_with_lost_replies_is_asked_for_65_times() {
    let (tries, taken) = taken_with(Failure::Unknown("lost".to_owned())).await;
    assert!(taken.as_ref().is_err_and(|it| it.to_string().contains("lost")), "{taken:?}");
    assert_eq!(tries, 65);
}

#[tokio::test(start_paused = true)]
async fn a_head_whose_place_is_gone_is_evicted() {
    let (tries, taken) = taken_with(refused_at(0, Failure::NoNode)).await;
    assert!(matches!(taken, Err(Error::Evicted(Loss::Removed))), "{taken:?}");
    assert_eq!(tries, 1);
}

/// The number of permits falls in the last moment, so the head waits on. The head watches its place again.
#[test]
fn a_head_refused_its_exchange_hears_of_evictions() {
    let (memory, tries) = (Memory::new(), Count::default());
    let other = Semaphore::new(&memory.connect(), LIMIT, 2).expect("valid");
    let held = now(other.acquire()).expect("free");
    let zk = Hindered::new(&memory, move |asked| {
        if matches!(asked, Request::Transact([_, _, Operation::Create { .. }, ..])) && tries.one_more() == 0 {
            now(other.set_permits(1)).expect("allowed");
        }
        None
    });
    let mut head = task::spawn(Semaphore::builder(&zk, LIMIT).build().expect("valid").acquire().into_future());
    assert_pending!(head.poll());
    let place = memory.children("/limit/queue").remove(0);
    memory.faults().remove(format!("/limit/queue/{place}"));
    assert!(head.is_woken(), "the eviction is not noticed");
    let error = assert_ready_err!(head.poll());
    assert!(matches!(error, Error::Evicted(Loss::Removed)), "{error:?}");
    drop(held);
}

fn semaphore(zk: &Hindered) -> Semaphore {
    Semaphore::new(zk, LIMIT, 1).expect("valid")
}

#[tokio::test(start_paused = true)]
async fn permits_with_lost_replies_are_listed_65_times() {
    let tries = Count::default();
    let count = tries.clone();
    let zk = Hindered::new(&Memory::new(), move |asked| match asked {
        Request::WatchChildren(PERMITS) => {
            count.one_more();
            Some(Failure::Unknown("lost".to_owned()))
        }
        _ => None,
    });
    let began = Instant::now();
    let error = semaphore(&zk).acquire().await.expect_err("the number of taken permits is unknown");
    assert!(error.to_string().contains("lost"), "{error}");
    // The first four tries follow each other without a pause. The next pauses are one fiftieth of the session timeout
    // of 10 s, two fiftieths, and so on up to twelve fiftieths, which is then the pause before each further try.
    let fiftieths: u32 = (4..=64).map(|tries: u32| (tries - 3).min(12)).sum();
    assert_eq!(began.elapsed(), Duration::from_secs(10) / 50 * fiftieths);
    assert_eq!(tries.now(), 65);
    assert_eq!(zk.memory.children("/limit/queue"), Vec::<String>::new());
}

#[test]
fn a_number_of_permits_first_set_by_another_is_used() {
    let memory = Memory::new();
    let (other, tries) = (memory.connect(), Count::default());
    let first = Hindered::new(&memory, move |asked| match asked {
        Request::Transact([Operation::Create { path, .. } | Operation::Set { path, .. }, _twin, ..])
            if path == LIMIT =>
        {
            if tries.one_more() == 0 {
                now(Semaphore::new(&other, LIMIT, 1).expect("valid").set_permits(1)).expect("allowed");
            }
            None
        }
        _ => None,
    });
    assert!(now(semaphore(&first).acquire()).expect("one permit exists").is_held());
}

#[test]
fn a_forbidden_number_of_permits_is_refused_at_once() {
    let tries = Count::default();
    let count = tries.clone();
    let zk = Hindered::new(&Memory::new(), move |asked| match asked {
        Request::Transact([Operation::Create { path, .. } | Operation::Set { path, .. }, _twin, ..])
            if path == LIMIT =>
        {
            count.one_more();
            Some(refused_at(0, Failure::NoAuth(Box::default())))
        }
        _ => None,
    });
    let error = now(semaphore(&zk).acquire()).expect_err("refused");
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
    assert_eq!(tries.now(), 1);
}

#[test]
fn a_number_of_permits_changed_meanwhile_is_set_again() {
    let memory = Memory::new();
    let (other, tries) = (memory.connect(), Count::default());
    let count = tries.clone();
    let zk = Hindered::new(&memory, move |asked| match asked {
        Request::Transact([Operation::Create { path, .. } | Operation::Set { path, .. }, _twin, ..])
            if path == LIMIT =>
        {
            match count.one_more() {
                0 => now(Semaphore::new(&other, LIMIT, 1).expect("valid").set_permits(3)).expect("allowed"),
                1 => {}
                2 => return Some(refused_at(0, Failure::NoAuth(Box::default()))),
                _ => panic!("the number is set again without end"),
            }
            None
        }
        _ => None,
    });
    let limit = semaphore(&zk);
    now(limit.set_permits(2)).expect("at the second try");
    let slot = now(memory.session_slot(0)).expect("open");
    assert_eq!(now(slot.session().data(LIMIT)).expect("the node exists").0, b"permits=2");
    let refused = now(limit.set_permits(4));
    assert!(matches!(refused, Err(Error::PermissionDenied { .. })), "{refused:?}");
    assert_eq!(tries.now(), 3);
}

#[test]
fn permits_added_just_before_the_watch_are_noticed() {
    let memory = Memory::new();
    let (other, tries) = (memory.connect(), Count::default());
    let admin = Semaphore::new(&other, LIMIT, 1).expect("valid");
    let _held = now(admin.acquire()).expect("free");
    let late = Hindered::new(&memory, move |asked| {
        if matches!(asked, Request::Watch(LIMIT)) && tries.one_more() == 0 {
            now(admin.set_permits(2)).expect("allowed");
        }
        None
    });
    let waiting = Semaphore::builder(&late, LIMIT).build().expect("valid");
    let mut waits = task::spawn(waiting.acquire().into_future());
    let second = match waits.poll() {
        std::task::Poll::Ready(granted) => granted.expect("two permits exist now"),
        std::task::Poll::Pending => {
            assert!(waits.is_woken(), "the waiter missed a change");
            assert_ready_ok!(waits.poll())
        }
    };
    assert!(second.is_held());
    let mut third = task::spawn(waiting.acquire().into_future());
    assert_pending!(third.poll());
}
