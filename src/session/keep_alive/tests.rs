//! Tests of the requests that keep a session alive, on tokio's paused clock.

use std::future::{pending, ready};
use std::pin::pin;
use std::sync::Mutex;
use std::time::UNIX_EPOCH;

use tokio::time::Instant;

use super::*;
use crate::session::lease::Lease;
use crate::session::request::{Loss, Operation, Outcome, Reply, SessionEnd, Stat, Watch};
use crate::session::store::SessionStore;
use crate::session::tests::{Answers, Stub};

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const GRACE: Duration = ms(100);

/// A session that records each request. Its timeout is 6 s, and the tick of its servers 2 s, so the settling time is
/// 1,250 ms.
#[derive(Debug)]
struct Noted {
    store: Arc<SessionStore>,
    start: Instant,
    notes: Mutex<Vec<(u128, String)>>,
    /// The failures with which checks and listings are answered, each with the path of the checked or listed node.
    wrong: Mutex<Vec<(String, Failure)>>,
    /// Whether every request fails with an unknown outcome.
    is_cut_off: Mutex<bool>,
    /// Whether the answer to each request for a watch is that the node does not exist.
    denies_watches: Mutex<bool>,
    is_kept_alive_by_reads: Mutex<bool>,
}

impl Noted {
    /// Returns a session that begins now, and its running keep-alive task.
    fn kept_alive() -> (Arc<Stub<Noted>>, tokio::task::JoinHandle<()>) {
        let start = Instant::now();
        let lease = Lease::with_clock(ms(6_000), Box::new(move || ms(100_000) + start.elapsed()));
        let store = Arc::new(SessionStore::new(lease.with_tick_time(ms(2_000))));
        store.record_begin(store.lease().now());
        let (notes, wrong, is_kept_alive_by_reads) = (Mutex::default(), Mutex::default(), Mutex::new(true));
        let (is_cut_off, denies_watches) = (Mutex::default(), Mutex::default());
        let noted = Noted { store, start, notes, wrong, is_cut_off, denies_watches, is_kept_alive_by_reads };
        let noted = Arc::new(Stub(noted));
        let session: Arc<dyn Session> = Arc::clone(&noted) as _;
        let task = tokio::spawn(keep_alive(Arc::downgrade(&session), GRACE));
        (noted, task)
    }

    fn holder(&self, name: &str) -> Arc<Node> {
        let node = self.store.enter(name.to_owned());
        node.mark_held(self.store.lease().epoch().unwrap());
        node
    }

    /// Waits until `milliseconds` after the start of the test. Returns the requests since the last call, each with its
    /// time.
    async fn after(&self, milliseconds: u64) -> Vec<(u128, String)> {
        tokio::time::sleep_until(self.start + ms(milliseconds)).await;
        std::mem::take(&mut *self.notes.lock().unwrap())
    }

    fn note(&self, what: String) -> Result<(), Failure> {
        self.notes.lock().unwrap().push((self.start.elapsed().as_millis(), what));
        if *self.is_cut_off.lock().unwrap() { Err(Failure::Unknown(String::new())) } else { Ok(()) }
    }

    fn wrong_with(&self, path: &str) -> Option<Failure> {
        self.wrong.lock().unwrap().iter().find(|(wrong, _)| wrong == path).map(|(_, failure)| failure.clone())
    }
}

impl Answers for Noted {
    fn store(&self) -> &Arc<SessionStore> {
        &self.store
    }

    fn children(&self, path: &str) -> Reply<Vec<String>> {
        let listed = || self.wrong_with(path).map_or(Ok(Vec::new()), Err);
        Box::pin(ready(self.note(format!("list {path}")).and_then(|()| listed())))
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        let noted = self.note(format!("read {path}"));
        if noted.is_ok() {
            self.store.record_answer(self.store.lease().now());
        }
        let (version, data_length) = (0, 0);
        let stat = Stat { czxid: 1, version, ctime: UNIX_EPOCH, mtime: UNIX_EPOCH, ephemeral_owner: 0, data_length };
        Box::pin(ready(noted.map(|()| (Vec::new(), stat))))
    }

    fn is_kept_alive_by_reads(&self) -> bool {
        *self.is_kept_alive_by_reads.lock().unwrap()
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        let mut noted = self.note(format!("watch {path}"));
        if *self.denies_watches.lock().unwrap() {
            noted = Err(Failure::NoNode);
        }
        Box::pin(ready(noted.map(|()| Box::pin(pending()) as Watch)))
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        let paths = operations.iter().map(|operation| match operation {
            Operation::Check { path, version: None } => path.as_str(),
            other => panic!("{other:?} is more than a check"),
        });
        let noted = self.note(format!("check {}", paths.clone().collect::<Vec<_>>().join(" ")));
        if noted.is_ok() {
            self.store.record_quorum_answer(self.store.lease().now());
        }
        let mut failures = paths.enumerate().filter_map(|(index, path)| Some((index, self.wrong_with(path)?)));
        let failed = failures.next();
        let checked = vec![Outcome::Checked; operations.len()];
        let outcome = move |()| match failed {
            Some((index, failure)) => Err(Failure::Operation { index, failure: Box::new(failure) }),
            None => Ok(checked),
        };
        Box::pin(ready(noted.and_then(outcome)))
    }
}

fn notes<const N: usize>(notes: [(u128, &str); N]) -> Vec<(u128, String)> {
    notes.map(|(at, what)| (at, what.to_owned())).to_vec()
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_is_touched_each_quarter_timeout() {
    let (session, task) = Noted::kept_alive();
    let touches =
        notes([(1_500, "read /"), (3_000, "read /"), (4_500, "read /"), (6_000, "read /"), (7_500, "read /")]);
    assert_eq!(session.after(8_900).await, touches);
    session.store.record_end_and_report(SessionEnd::Closed);
    task.await.unwrap();
    assert_eq!(session.after(60_000).await, []);
}

#[tokio::test(start_paused = true)]
async fn reads_alone_keep_an_idle_session_where_possible() {
    let (session, _task) = Noted::kept_alive();
    *session.is_kept_alive_by_reads.lock().unwrap() = false;
    let sent = [(1_500, "read /"), (2_750, "check /"), (4_250, "check /")];
    assert_eq!(session.after(5_000).await, notes(sent));
    *session.is_kept_alive_by_reads.lock().unwrap() = true;
    assert_eq!(session.after(8_900).await, notes([(6_000, "read /"), (7_500, "read /")]));
}

#[tokio::test(start_paused = true)]
async fn a_check_follows_each_touch_by_the_settling_time() {
    let (session, _task) = Noted::kept_alive();
    let node = session.holder("/a/1");
    let sent = [(200, "watch /a/1"), (1_200, "read /"), (2_400, "read /"), (2_450, "check /a/1"), (3_600, "read /")];
    assert_eq!(session.after(3_640).await, notes(sent));
    assert_eq!(session.after(3_660).await, notes([(3_650, "check /a/1")]));
    session.after(120_000).await;
    assert_eq!(node.detect_loss(), None);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_moves_keeps_its_lease() {
    let (session, _task) = Noted::kept_alive();
    let node = session.holder("/a/1");
    node.change(|it| it.state.begin_replacement(None));
    let sent = session.after(20_000).await;
    assert!(sent.iter().all(|(_, what)| what == "read /" || what == "check /" || what == "watch /a/1"), "{sent:?}");
    assert_eq!(node.detect_loss(), None);
}

#[tokio::test(start_paused = true)]
async fn a_busy_session_sends_no_touch_and_no_check() {
    let (session, _task) = Noted::kept_alive();
    let node = session.holder("/a/1");
    for now in (250..20_000).step_by(250) {
        session.after(now).await;
        assert_eq!(*session.notes.lock().unwrap(), [], "{now}");
        session.store.record_quorum_answer(session.lease().now());
    }
    assert_eq!(node.detect_loss(), None);
}

#[tokio::test(start_paused = true)]
async fn a_reconnect_sends_the_overdue_heartbeat_at_once() {
    let (session, _task) = Noted::kept_alive();
    session.holder("/a/1");
    session.after(500).await;
    session.store.set_connected(false);
    assert_eq!(session.after(3_000).await, []);
    session.store.set_connected(true);
    let sent = [(3_000, "read /"), (4_200, "read /"), (4_250, "check /a/1")];
    assert_eq!(session.after(4_300).await, notes(sent));
}

#[tokio::test(start_paused = true)]
async fn a_reconnect_sends_a_heartbeat_early() {
    let (session, _task) = Noted::kept_alive();
    session.holder("/a/1");
    session.after(500).await;
    session.store.set_connected(false);
    assert_eq!(session.after(700).await, []);
    session.store.set_connected(true);
    assert_eq!(session.after(1_000).await, notes([(700, "read /")]));
}

#[tokio::test(start_paused = true)]
async fn steady_mode_sends_no_heartbeat() {
    let (session, _task) = Noted::kept_alive();
    session.store.set_endless(true);
    session.holder("/a/1");
    assert_eq!(session.after(60_000).await, notes([(200, "watch /a/1")]));
    session.store.set_endless(false);
    assert_eq!(session.after(61_240).await, notes([(60_000, "read /"), (61_200, "read /")]));
}

/// A holder that waits for its loss sends nothing and sleeps, so keep-alive must wake it.
#[tokio::test(start_paused = true)]
async fn a_lapse_of_the_lease_wakes_the_holder_at_once() {
    let (session, _task) = Noted::kept_alive();
    let node = session.holder("/a/1");
    *session.is_cut_off.lock().unwrap() = true;
    let woken = tokio::spawn(async move {
        node.changed.notified().await;
        node
    });
    session.after(4_999).await;
    assert!(!woken.is_finished());
    session.after(5_001).await;
    assert!(woken.is_finished());
    let node = woken.await.unwrap();
    node.record_loss(Loss::Removed);
    assert_eq!(node.detect_loss(), Some(Loss::LeaseRanOut));
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_ends_only_the_hold_of_a_missing_node() {
    for (failure, loss) in [(Failure::NoNode, Some(Loss::Removed)), (Failure::NoAuth(Box::default()), None)] {
        let (session, _task) = Noted::kept_alive();
        let own_nodes = ["/a/1", "/a/2", "/a/3"].map(|path| session.holder(path));
        session.wrong.lock().unwrap().push(("/a/2".to_owned(), failure));
        session.after(2_500).await;
        assert_eq!(own_nodes.map(|node| node.detect_loss()), [None, loss, None]);
    }
}

/// A server closes the connection when it receives a request of 1 MiB, and the client would repeat the request after
/// each reconnect. So a heartbeat divides its checks into several transactions.
#[tokio::test(start_paused = true)]
async fn heartbeats_stay_below_the_request_limit() {
    let (session, _task) = Noted::kept_alive();
    let paths: Vec<_> = (0..1_000).map(|number| format!("/{}/{number:04}", "a".repeat(1_100))).collect();
    let own_nodes: Vec<_> = paths.iter().map(|path| session.holder(path)).collect();
    let checks =
        session.after(2_500).await.into_iter().filter_map(|(_, what)| Some(what.strip_prefix("check ")?.to_owned()));
    let checks: Vec<_> = checks.collect();
    assert!(checks.iter().all(|checks| checks.len() < 512 * 1_024), "{:?}", checks.iter().map(String::len));
    let mut checked: Vec<_> = checks.iter().flat_map(|checks| checks.split(' ')).collect();
    checked.sort_unstable();
    assert_eq!(checked, paths, "each node is checked once");
    drop(own_nodes);
}

/// If a lost request for a watch were not repeated, the holder would learn of its node's removal only by the next
/// heartbeat.
#[tokio::test(start_paused = true)]
async fn a_watch_request_with_a_lost_answer_is_repeated() {
    let (session, _task) = Noted::kept_alive();
    session.holder("/a/1");
    *session.is_cut_off.lock().unwrap() = true;
    let asked = (200, "watch /a/1");
    assert_eq!(session.after(250).await, notes([asked; 4]));
    *session.is_cut_off.lock().unwrap() = false;
    assert_eq!(session.after(1_000).await, notes([(320, "watch /a/1")]));
}

#[tokio::test(start_paused = true)]
async fn watch_retries_back_off_and_end_with_the_node() {
    let (session, _task) = Noted::kept_alive();
    let node = session.holder("/a/1");
    *session.is_cut_off.lock().unwrap() = true;
    let mut watches = session.after(60_000).await;
    watches.retain(|(_, what)| what == "watch /a/1");
    // The first four tries come at once. Then the pauses grow for twelve tries, by 120 ms at each. Every further pause
    // is 1,440 ms.
    assert_eq!(watches.len(), 4 + 12 + (60_000 - 200 - 120 * 78) / 1_440, "{watches:?}");
    node.mark_left();
    session.after(62_000).await;
    assert!(session.after(70_000).await.iter().all(|(_, what)| what != "watch /a/1"));
}

#[tokio::test(start_paused = true)]
async fn a_denied_watch_ends_a_hold_if_the_leader_agrees() {
    let (noted, _task) = Noted::kept_alive();
    let session: Arc<dyn Session> = Arc::clone(&noted) as _;
    let holder = noted.holder("/lock/node");
    *noted.denies_watches.lock().unwrap() = true;
    let request = || holder.request_watch(&session).expect("no watch was requested");
    assert!(matches!(request().await, Err(Failure::Diverged { .. })));
    assert_eq!(holder.detect_loss(), None);
    noted.wrong.lock().unwrap().push(("/lock/node".to_owned(), Failure::NoNode));
    assert_eq!(request().await, Ok(()));
    assert_eq!(holder.detect_loss(), Some(Loss::Removed));
}

/// Requests a check of the hand-off by a holder that has left, and lets that check end. Returns how many listings the
/// check has sent.
async fn checked(session: &Stub<Noted>, granted: &Arc<Node>) -> usize {
    let path = "/a/gone-WRITE-0000000001";
    session.wrong.lock().unwrap().push((path.to_owned(), Failure::NoNode));
    session.store.request_hand_off_check(&Arc::from(path), granted);
    tokio::time::sleep(ms(2_000)).await;
    let sent = std::mem::take(&mut *session.notes.lock().unwrap());
    sent.iter().filter(|(_, what)| what == "list /a").count()
}

#[tokio::test(start_paused = true)]
async fn a_hand_off_whose_check_failed_is_checked_again() {
    let (session, _task) = Noted::kept_alive();
    let granted = session.holder("/a/reader-READ-0000000002");
    session.wrong.lock().unwrap().push(("/a".to_owned(), Failure::NoAuth(Box::default())));
    assert_eq!(checked(&session, &granted).await, 1);
    session.wrong.lock().unwrap().clear();
    assert_eq!(checked(&session, &granted).await, 1, "a check that failed counts as a confirmation");
    assert_eq!(checked(&session, &granted).await, 0, "the hand-off is confirmed already");
}

#[tokio::test(start_paused = true)]
async fn a_hand_off_to_a_short_or_lost_hold_costs_no_listing() {
    for is_lost in [false, true] {
        let (session, _task) = Noted::kept_alive();
        let granted = session.holder("/a/writer-WRITE-0000000002");
        let ends = async {
            tokio::time::sleep(ms(500)).await;
            match is_lost {
                true => granted.record_loss(Loss::Removed),
                false => {
                    granted.mark_left();
                    session.store.forget_node(&granted);
                }
            }
        };
        assert_eq!(tokio::join!(checked(&session, &granted), ends).0, 0, "{is_lost}");
    }
}

#[test]
fn a_first_node_wakes_only_a_renewal_that_is_too_late() {
    let (store, _clock) = SessionStore::begun(ms(6_000));
    let lease = store.lease();
    let is_woken = || pin!(store.renewal_wake.notified()).enable();
    assert!(store.record_next_renewal(lease.now() + lease.heartbeat_period(), true));
    let enter = |name| store.enter(format!("/a/{name}"));
    let first = enter("1");
    assert!(!is_woken());
    assert!(!store.record_next_renewal(lease.now() + lease.timeout(), true), "the session has a node");
    let second = enter("2");
    store.forget_node(&first);
    store.forget_node(&second);
    assert!(store.has_no_nodes() && !is_woken());
    let _third = enter("3");
    assert!(is_woken());
    let _fourth = enter("4");
    assert!(!is_woken(), "only the first node of a session wakes the renewal");
}

#[test]
fn all_holders_are_checked_or_else_one_waiter() {
    let (store, _clock) = SessionStore::begun(ms(6_000));
    let [first, second, third] = ["/a/1", "/a/2", "/a/3"].map(|path| store.enter(path.to_owned()));
    let to_check = || {
        let mut paths: Vec<_> = store.nodes_to_check().into_iter().map(|(_, path)| path).collect();
        paths.sort();
        paths
    };
    assert_eq!(to_check().len(), 1);
    first.mark_held(0);
    second.mark_held(0);
    assert_eq!(to_check(), ["/a/1", "/a/2"]);
    first.mark_left();
    assert_eq!(to_check(), ["/a/2"]);
    second.change(|it| it.state.begin_replacement(None));
    assert_eq!(to_check(), ["/a/3"]);
    third.mark_left();
    assert!(to_check().is_empty());
}
