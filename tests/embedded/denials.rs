//! Servers that deny or hide nodes that the ensemble has committed. A read from such a server does not make a
//! successful commit count as failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::hindered::{Count, Hindered, Request};
use support::polled::{Lost, lose, now, write};
use zk_rwlock::coordinator::{Failure, Operation};
use zk_rwlock::{Error, Memory, RwLock, Semaphore, Shared};

const SEMAPHORE: &str = "/limit";
const LOCK: &str = "/lock";

/// Returns a client whose server answers the next `reads` reads of paths that contain `of` with `failure`. Also returns
/// the count of such reads that are left. The client knows no other server.
fn denying(memory: &Memory, of: &'static str, failure: Failure, reads: usize) -> (Hindered, Arc<AtomicUsize>) {
    memory.faults().keep_server();
    let left = Arc::new(AtomicUsize::new(reads));
    let counted = Arc::clone(&left);
    let line = Hindered::new(memory, move |asked| match asked {
        Request::Data(path) | Request::Watch(path) if path.contains(of) => {
            let denies = |left: usize| left.checked_sub(1);
            counted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, denies).is_ok().then(|| failure.clone())
        }
        _ => None,
    });
    (line, left)
}

#[test]
fn a_permit_that_a_server_denies_at_first_is_taken() {
    for lost in [&[][..], &[Lost::Reply], &[Lost::Reply, Lost::Reply]] {
        let memory = Memory::new();
        drop(now(Semaphore::new(&memory, SEMAPHORE, 3).expect("valid").acquire()).expect("free"));
        let (zk, left) = denying(&memory, "/permits/", Failure::NoNode, 2);
        let semaphore = Semaphore::new(&zk, SEMAPHORE, 3).expect("valid");
        lose(&memory, lost);
        let permit = now(semaphore.acquire()).expect("free");
        assert!(permit.is_held());
        assert_eq!((left.load(Ordering::SeqCst), memory.children("/limit/permits").len()), (0, 1));
        now(permit.release()).expect("held");
        assert_eq!(memory.children("/limit/permits"), [""; 0]);
    }
}

/// The reply to the exchange is lost, and the server denies the permit's node twice.
#[test]
fn a_permit_whose_reply_is_lost_is_taken_despite_denials() {
    let memory = Memory::new();
    drop(now(Semaphore::new(&memory, SEMAPHORE, 3).expect("valid").acquire()).expect("free"));
    let (ensemble, exchanges, reads) = (memory.clone(), Count::default(), Count::default());
    let zk = Hindered::new(&memory, move |asked| match asked {
        Request::Transact([_, _, Operation::Create { .. }, ..]) => {
            if exchanges.one_more() == 0 {
                ensemble.faults().lose_next_reply();
            }
            None
        }
        Request::Data(path) if path.contains("/permits/") => (reads.one_more() < 2).then_some(Failure::NoNode),
        _ => None,
    });
    let permit = now(Semaphore::new(&zk, SEMAPHORE, 3).expect("valid").acquire()).expect("free");
    assert!(permit.is_held());
    now(permit.release()).expect("held");
    assert_eq!(memory.children("/limit/permits"), [""; 0]);
}

/// Returns a client whose only server leaves the contender's own node out of the next `listings` listings.
fn leaving_out(memory: &Memory, listings: usize) -> Hindered {
    memory.faults().keep_server();
    let left = AtomicUsize::new(listings);
    Hindered::new(memory, |_| None).with_listings(move |mut names| {
        let denies = |left: usize| left.checked_sub(1);
        if names.iter().any(|name| name.starts_with("ours~"))
            && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, denies).is_ok()
        {
            names.retain(|name| !name.starts_with("ours~"));
        }
        names
    })
}

#[tokio::test(start_paused = true)]
async fn an_unlisted_own_node_is_asked_for_at_the_leader() {
    // After three of them, the server is left three times.
    for (listings, is_granted) in [(1, true), (3, true), (6, true), (7, false), (usize::MAX, false)] {
        let memory = Memory::new();
        for tries in [false, true] {
            let zk = leaving_out(&memory.connect(), listings);
            let lock = RwLock::builder(&zk, LOCK).host("ours").build().expect("valid");
            let granted = if tries { lock.try_write().await } else { lock.write().await };
            match granted {
                Ok(guard) => assert!(is_granted && guard.is_held(), "{listings}"),
                Err(error) => assert!(!is_granted && matches!(error, Error::Diverged { .. }), "{listings}: {error}"),
            }
            let semaphore = Semaphore::builder(&zk, SEMAPHORE).permits(1).lock(|lock| lock.host("ours"));
            let permit = semaphore.build().expect("valid").acquire().await;
            assert_eq!(permit.is_ok(), listings != usize::MAX, "{listings}: {permit:?}");
            drop(permit);
            tokio::time::sleep(Duration::from_secs(1)).await;
            let left = [LOCK, "/limit/queue", "/limit/permits"].map(|directory| memory.children(directory));
            assert_eq!(left, [const { Vec::<String>::new() }; 3], "{listings}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_permit_stays_if_a_server_denies_or_hides_it() {
    for failure in [Failure::NoNode, Failure::NoAuth(Box::default()), Failure::Unknown("cut".to_owned())] {
        let memory = Memory::new();
        let well = Semaphore::new(&memory.connect(), SEMAPHORE, 3).expect("valid");
        drop(well.acquire_many(3).await.expect("free"));
        let (zk, _) = denying(&memory, "/permits/", failure.clone(), usize::MAX);
        let semaphore = Semaphore::new(&zk, SEMAPHORE, 3).expect("valid");
        for _ in 0..3 {
            let error = semaphore.acquire().await.expect_err("the server hides the node");
            assert!(!error.is_lost() && !matches!(error, Error::Evicted(_)), "{failure}: {error}");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let left = (memory.children("/limit/queue"), memory.children("/limit/permits"));
        assert_eq!(left, (vec![], vec![]), "{failure}");
        drop(well.acquire_many(3).await.expect("free"));
    }
}

#[test]
fn a_downgrade_with_a_lost_reply_survives_a_denial() {
    for failure in [Failure::NoNode, Failure::NoAuth(Box::default())] {
        let memory = Memory::new();
        let (zk, _) = denying(&memory, "-READ-", failure, usize::MAX);
        let guard = write(&RwLock::new(&zk, LOCK).expect("valid"));
        memory.faults().lose_next_reply();
        let guard = now(guard.downgrade()).expect("the ensemble did it");
        let nodes = memory.children(LOCK);
        assert!(guard.is_held() && nodes.len() == 1 && nodes[0].contains("-READ-"), "{nodes:?}");
    }
}

/// A copy that finds no node does not report that no value was written, if the leader has the node.
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_denied_value_does_not_report_it_as_unwritten() {
    for (reads, is_read) in [(1, true), (3, true), (usize::MAX, false)] {
        for has_initial in [false, true] {
            let memory = Memory::new();
            let well = Shared::builder(&memory.connect(), "/v").initial(|| 1_u64).build().expect("valid");
            well.update(|value| *value = 7).await.expect("free");
            let value = || {
                let builder = Shared::builder(&denying(&memory, "/v/value", Failure::NoNode, reads).0, "/v");
                if has_initial { builder.initial(|| 1_u64).build() } else { builder.build() }.expect("valid")
            };
            let check_error = |error: Error| {
                assert!(!is_read && error.value_error().is_none(), "{reads}: {error}");
                assert!(error.to_string().contains("the leader do not agree about it"), "{error}");
            };
            // With an initial value, `live` waits until the server shows the value's node.
            let live = tokio::time::timeout(Duration::from_secs(60), value().live()).await;
            match live {
                Ok(Ok(live)) => assert_eq!(**live.get(), 7),
                Ok(Err(error)) => check_error(error),
                Err(_) => assert!(has_initial && !is_read),
            }
        }
    }
}
