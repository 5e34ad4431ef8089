//! Tests of when listings are sent, by one session and by several, on tokio's paused clock.

use std::sync::Mutex;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::*;
use crate::session::lease::Lease;
use crate::session::request::{Operation, Outcome};
use crate::session::tests::{Answers, Stub};

/// A directory that several sessions list.
#[derive(Debug)]
struct Directory {
    begun: Instant,
    names: usize,
    /// How long the server takes to answer a listing.
    takes: Duration,
    /// When each listing was sent, in milliseconds after the start of the test.
    sent: Mutex<Vec<u128>>,
    /// When each sync was sent.
    synced: Mutex<Vec<u128>>,
}

impl Directory {
    fn new(names: usize, takes: Duration) -> Arc<Directory> {
        Arc::new(Directory { begun: Instant::now(), names, takes, sent: Mutex::default(), synced: Mutex::default() })
    }

    fn session(self: &Arc<Directory>) -> Arc<dyn Session> {
        let store = Arc::new(SessionStore::new(Lease::new(Duration::from_secs(6))));
        Arc::new(Stub(Lists { store, directory: Arc::clone(self) }))
    }

    /// On each of `sessions` sessions, lists the directory `callers` times concurrently. Returns when the listings were
    /// sent.
    async fn listed(self: &Arc<Directory>, sessions: usize, callers: usize) -> Vec<u128> {
        let mut answers = JoinSet::new();
        for _ in 0..sessions {
            let session = self.session();
            for _ in 0..callers {
                answers.spawn(list(&session, &Arc::from("/lock")));
            }
        }
        for answer in answers.join_all().await {
            assert_eq!(answer.expect("it is answered").len(), self.names);
        }
        std::mem::take(&mut *self.sent.lock().unwrap())
    }
}

#[derive(Debug)]
struct Lists {
    store: Arc<SessionStore>,
    directory: Arc<Directory>,
}

impl Answers for Lists {
    fn store(&self) -> &Arc<SessionStore> {
        &self.store
    }

    fn children(&self, _: &str) -> Reply<Vec<String>> {
        let directory = Arc::clone(&self.directory);
        directory.sent.lock().unwrap().push(directory.begun.elapsed().as_millis());
        Box::pin(async move {
            tokio::time::sleep(directory.takes).await;
            Ok(vec![String::new(); directory.names])
        })
    }

    fn transact(&self, _: &[Operation]) -> Reply<Vec<Outcome>> {
        self.directory.synced.lock().unwrap().push(self.directory.begun.elapsed().as_millis());
        Box::pin(async { Ok(Vec::new()) })
    }
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[tokio::test(start_paused = true)]
async fn further_callers_share_the_next_listing() {
    assert_eq!(Directory::new(256, ms(100)).listed(1, 1_000).await, [0, 0, 0, 0, 100]);
    assert_eq!(Directory::new(256, ms(100)).listed(3, 5).await, [[0; 12].as_slice(), &[100; 3]].concat());
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_caller_delays_no_other_caller() {
    for names in [256, 257] {
        let directory = Directory::new(names, ms(100));
        let session = directory.session();
        let list = || list(&session, &Arc::from("/lock"));
        let mut idle: Vec<_> = (0..5).map(|_| list()).collect();
        for it in &mut idle {
            assert!(futures_util::poll!(it).is_pending());
        }
        let answer = tokio::time::timeout(ms(1_000), list()).await.expect("unpolled callers delay the listing");
        assert_eq!(answer.expect("it is answered").len(), names);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_listing_delays_others_one_timeout() {
    assert_eq!(Directory::new(256, ms(10_000)).listed(1, 5).await, [0, 0, 0, 0, 6_000]);
}

/// Lists each of `directories` directories after a sync, with `callers` callers each. Returns when the syncs and the
/// listings were sent.
async fn listed_synced(takes: Duration, directories: usize, callers: usize) -> (Vec<u128>, Vec<u128>) {
    let directory = Directory::new(1, takes);
    let session = directory.session();
    let names = (0..directories).map(|number| Arc::from(format!("/lock/{number}"))).cycle();
    let answers = names.take(directories * callers).map(|name| list_synced(&session, &name));
    for answer in join_all(answers).await {
        assert_eq!(answer.expect("it is answered").len(), 1);
    }
    (directory.synced.lock().unwrap().clone(), directory.sent.lock().unwrap().clone())
}

#[tokio::test(start_paused = true)]
async fn callers_before_a_sync_share_one_listing() {
    assert_eq!(listed_synced(ms(100), 1, 1_000).await, (vec![0], vec![0]));
}

#[tokio::test(start_paused = true)]
async fn at_most_128_directories_are_listed_behind_one_sync() {
    let (syncs, listings) = listed_synced(ms(100), 300, 2).await;
    assert_eq!(syncs, [0, 100, 200]);
    assert_eq!(listings, [[0; 128].as_slice(), &[100; 128], &[200; 44]].concat());
}

#[tokio::test(start_paused = true)]
async fn unanswered_listings_delay_the_next_sync_one_timeout() {
    let (syncs, _) = listed_synced(ms(10_000), 129, 1).await;
    assert_eq!(syncs, [0, 6_000]);
}

#[tokio::test(start_paused = true)]
async fn a_listing_across_two_connections_is_not_used() {
    let session = Directory::new(1, ms(100)).session();
    let answer = list_synced(&session, &Arc::from("/lock"));
    let breaks = async {
        tokio::time::sleep(ms(50)).await;
        session.store().set_connected(false);
        session.store().set_connected(true);
    };
    let (answer, ()) = tokio::join!(answer, breaks);
    assert!(matches!(answer, Err(Failure::Unknown(_))), "the listing may come from a server that lags");
}

fn store() -> SessionStore {
    SessionStore::new(Lease::new(Duration::from_secs(6)))
}

const FEW: bool = false;
const LARGE: bool = true;

/// Begins a listing for each of `callers` callers. Returns how many of them must send a listing, and the receivers
/// of the others.
fn begin(
    listings: &SessionStore,
    directory: &Arc<str>,
    callers: usize,
) -> (usize, Vec<watch::Receiver<ListingAnswer>>) {
    let all = (0..callers).map(|_| listings.join_or_begin_listing(directory));
    let joined: Vec<_> = all.filter(|(_, sends)| sends.is_none()).map(|(answer, _)| answer).collect();
    (callers - joined.len(), joined)
}

#[test]
fn at_most_four_listings_of_a_small_directory_run() {
    let (listings, directory) = (store(), Arc::from("/lock"));
    let (sent, joined) = begin(&listings, &directory, 6);
    assert_eq!((sent, joined.len()), (4, 2));
    let next = listings.end_listing(&directory, FEW).expect("two callers wait for the next listing");
    assert_eq!(next.receiver_count(), 2);
    // The next listing is under way in place of the answered one, so a new caller still has to wait.
    assert_eq!(begin(&listings, &directory, 1).0, 0);
    let other = Arc::from("/other");
    assert_eq!(begin(&listings, &other, 4).0, 4, "each directory has its own limit");
}

#[test]
fn a_large_directory_has_one_listing_at_a_time() {
    let (listings, directory) = (store(), Arc::from("/lock"));
    assert_eq!(begin(&listings, &directory, 2).0, 2);
    assert!(listings.end_listing(&directory, LARGE).is_none(), "no caller waits");
    let (sent, joined) = begin(&listings, &directory, 1);
    assert_eq!((sent, joined.len()), (0, 1), "one is under way");
    let next = listings.end_listing(&directory, LARGE).expect("one caller waits");
    assert_eq!(next.receiver_count(), 1);
}

#[test]
fn a_new_limit_applies_to_listings_under_way() {
    let (listings, directory) = (store(), Arc::from("/lock"));
    let (_, joined) = begin(&listings, &directory, 5);
    assert_eq!(joined.len(), 1);
    for left in [3, 2, 1] {
        assert!(listings.end_listing(&directory, LARGE).is_none(), "{left} are under way");
    }
    assert!(listings.end_listing(&directory, LARGE).is_some(), "no other listing is under way");
}

#[test]
fn no_listing_is_sent_for_dropped_callers() {
    let (listings, directory) = (store(), Arc::from("/lock"));
    drop(begin(&listings, &directory, 6));
    for _ in 0..4 {
        assert!(listings.end_listing(&directory, FEW).is_none());
    }
    assert!(listings.record.lock().listings.is_empty(), "a directory that is not listed takes no memory");
    assert!(listings.end_listing(&directory, FEW).is_none());
}
