//! Work that one of many processes does once in a period, on an ensemble whose clock the test sets. Nothing sleeps.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use crate::memory::costs;
use support::hindered::{Hindered, Request, refused_at};
use support::polled::*;
use support::scene::Seeded;
use support::slow::Slow;
use tokio::time::Instant;
use tokio_test::task;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};
use zk_rwlock::coordinator::{Coordinator, Failure, Kind, Operation, Session};
use zk_rwlock::once::{OnceGuard, Work};
use zk_rwlock::{Dialect, Error, Loss, Memory, RwLock, block_on};

const DIRECTORY: &str = "/cron/report";

const RECORD: &str = "/cron/report.done";

const MINUTE: Duration = Duration::from_secs(60);

/// More polls than an acquisition takes, and more than the write of the record of finished work takes.
const POLLS: usize = 40;

const PERIOD: Duration = Duration::from_secs(50 * 60);

fn open(client: &Memory, host: &str) -> RwLock {
    RwLock::builder(client, DIRECTORY).host(host).label("report").build().expect("valid")
}

/// Returns two clients of one ensemble, each with the lock.
fn two() -> (Memory, Memory, RwLock, RwLock) {
    let one = Memory::new();
    let other = one.connect();
    let (a, b) = (open(&one, "host-a"), open(&other, "host-b"));
    (one, other, a, b)
}

fn due(lock: &RwLock) -> Option<OnceGuard> {
    now(lock.write().once_in(PERIOD)).expect("granted").due()
}

fn asking(lock: &RwLock) -> Acquiring<Work> {
    task::spawn(lock.write().once_in(PERIOD).into_future())
}

fn works(lock: &RwLock) {
    let guard = due(lock).expect("due");
    now(guard.done()).expect("recorded");
    now(guard.release()).expect("held");
}

fn session(client: &Memory) -> Arc<dyn Session> {
    Arc::clone(now(client.session_slot(0)).expect("open").session())
}

fn recorded(client: &Memory) -> Option<Vec<u8>> {
    now(session(client).data(RECORD)).ok().map(|(data, _)| data)
}

#[track_caller]
fn assert_nothing_left(zk: &Memory) {
    assert_eq!((zk.children(DIRECTORY), zk.watches()), (Vec::new(), 0));
}

// Work that becomes due by the ensemble's clock, and not by the clocks of hosts.

#[test]
fn work_is_due_after_a_period_of_the_ensembles_clock() {
    let (zk, _other, a, b) = two();
    works(&a);
    assert!(due(&b).is_none() && due(&a).is_none());
    zk.faults().set_clock_forward(49 * MINUTE);
    assert!(due(&b).is_none());
    zk.faults().set_clock_forward(MINUTE);
    works(&b);
    assert!(due(&a).is_none());
    assert_nothing_left(&zk);
}

#[test]
fn the_clocks_of_hosts_do_not_matter() {
    let years = 365 * 24 * 60 * MINUTE;
    let (behind, before) = (Memory::new(), Memory::new());
    behind.faults().set_clock_back(30 * years);
    before.faults().set_clock_forward(30 * years);
    for zk in [behind, before] {
        let (a, b) = (open(&zk, "host-a"), open(&zk.connect(), "host-b"));
        works(&a);
        let at = now(b.queue()).expect("readable").done.expect("recorded").at;
        let differ = SystemTime::now().duration_since(at).unwrap_or_else(|later| later.duration());
        assert!(differ > 29 * years, "{differ:?}");
        assert!(due(&b).is_none());
        zk.faults().set_clock_forward(PERIOD);
        assert!(due(&b).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn work_becomes_due_during_a_long_wait() {
    let (zk, _other, a, b) = two();
    works(&a);
    let idle = now(a.write()).expect("free");
    zk.faults().set_clock_forward(30 * MINUTE);
    let mut waits = asking(&b);
    assert_pending!(waits.poll());
    // The record was half an hour old when the contender made its node. After this advance, the record is two and a
    // half hours old, and the work is due.
    tokio::time::advance(120 * MINUTE).await;
    zk.faults().set_clock_forward(120 * MINUTE);
    now(idle.release()).expect("held");
    assert!(waits.is_woken());
    assert!(assert_ready_ok!(waits.poll()).is_due(), "the work is not due after a period");
    assert_nothing_left(&zk);
}

#[tokio::test(start_paused = true)]
async fn work_done_recently_while_waiting_is_fresh() {
    let (zk, _other, a, b) = two();
    for (wait, is_due) in [(Duration::ZERO, false), (40 * MINUTE, false), (600 * MINUTE, false)] {
        zk.faults().set_clock_forward(10 * PERIOD);
        let guard = due(&a).expect("due");
        let mut waits = asking(&b);
        assert_pending!(waits.poll());
        tokio::time::advance(wait).await;
        zk.faults().set_clock_forward(wait);
        now(guard.done()).expect("recorded");
        now(guard.release()).expect("held");
        assert_eq!(assert_ready_ok!(waits.poll()).is_due(), is_due, "{wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn work_done_early_in_a_long_wait_is_stale_at_its_end() {
    let (zk, third, a, b) = two();
    let guard = due(&a).expect("due");
    let other = open(&third.connect(), "host-c");
    let (mut between, mut waits) = (task::spawn(other.write().into_future()), asking(&b));
    assert_pending!(between.poll());
    assert_pending!(waits.poll());
    now(guard.done()).expect("recorded");
    now(guard.release()).expect("held");
    let between = assert_ready_ok!(between.poll());
    tokio::time::advance(60 * MINUTE).await;
    zk.faults().set_clock_forward(60 * MINUTE);
    now(between.release()).expect("held");
    assert!(assert_ready_ok!(waits.poll()).is_due());
}

#[test]
fn a_clock_set_back_a_little_repeats_no_work() {
    let (zk, _other, a, b) = two();
    works(&a);
    zk.faults().set_clock_back(49 * MINUTE);
    assert!(due(&b).is_none());
}

#[test]
fn a_clock_set_far_back_does_not_block_the_work_for_ever() {
    let (zk, _other, a, b) = two();
    works(&a);
    zk.faults().set_clock_back(365 * 24 * 60 * MINUTE);
    works(&b);
    assert!(due(&a).is_none(), "the work is due in spite of the new record");
    zk.faults().set_clock_forward(50 * MINUTE);
    assert!(due(&a).is_some());
}

#[test]
fn a_clock_set_back_delays_the_work_by_at_most_a_period() {
    let (zk, _other, a, b) = two();
    works(&a);
    zk.faults().set_clock_back(30 * MINUTE);
    for _ in 0..79 {
        assert!(due(&b).is_none());
        zk.faults().set_clock_forward(MINUTE);
    }
    zk.faults().set_clock_forward(MINUTE);
    assert!(due(&b).is_some(), "the work is not due 80 minutes later");
}

// The record: a node that says when the work was last done, and by which host.

#[test]
fn the_record_names_the_worker_and_outlives_the_directory() {
    let (zk, _other, a, b) = two();
    let guard = due(&a).expect("due");
    let token = guard.fencing_token();
    assert_eq!((guard.record(), recorded(&zk)), (RECORD.to_owned(), None));
    now(guard.done()).expect("recorded");
    now(guard.release()).expect("held");
    let pid = std::process::id();
    let text = format!("zk-rwlock done 1\nhost=host-a\npid={pid}\ntoken={token}\nlabel=report\n");
    assert_eq!(recorded(&zk), Some(text.into_bytes()));
    zk.faults().reap_containers();
    assert_eq!(zk.children("/cron"), ["report.done", "report.done.twin"]);
    assert!(due(&b).is_none());
    let queue = now(b.queue()).expect("readable");
    let done = queue.done.as_ref().expect("recorded");
    assert_eq!((&done.host[..], done.pid, done.token), ("host-a", Some(pid), Some(token)));
    let at = humantime::format_rfc3339_seconds(done.at);
    assert_eq!(queue.to_string(), format!("/cron/report: free\n  last done at {at} by host-a pid {pid} \"report\""));
}

#[test]
fn an_acquisitions_own_label_is_in_the_record() {
    let (zk, _other, a, _) = two();
    let guard = now(a.write().once_in(PERIOD).label("by hand")).expect("granted").due().expect("due");
    now(guard.done()).expect("recorded");
    assert!(String::from_utf8(recorded(&zk).expect("there")).expect("text").ends_with("\nlabel=by hand\n"));
}

#[test]
fn a_record_deleted_during_the_work_is_written_anew() {
    let (zk, _other, a, b) = two();
    works(&a);
    zk.faults().set_clock_forward(PERIOD);
    let guard = due(&b).expect("due");
    assert!(now(a.forget()).expect("allowed").is_some());
    assert_eq!(recorded(&zk), None);
    now(guard.done()).expect("recorded");
    assert!(recorded(&zk).is_some());
    now(guard.done()).expect("and once more");
    now(a.forget()).expect("allowed").expect("recorded");
    let (c, d) = (zk.connect(), zk.connect());
    drop(guard);
    let first = due(&open(&c, "host-c")).expect("nothing is recorded");
    now(session(&d).create(RECORD, b"", Kind::Persistent)).expect("created");
    now(first.done()).expect("recorded, though the node came meanwhile");
}

#[test]
fn an_empty_record_is_none_and_a_foreign_one_is_refused() {
    let (zk, _other, a, b) = two();
    let operator = session(&zk);
    now(operator.create("/cron", b"", Kind::Persistent)).expect("created");
    now(operator.create(RECORD, b"", Kind::Persistent)).expect("created");
    assert_eq!(now(a.forget()).expect("allowed"), None);
    works(&a);
    zk.faults().remove(RECORD);
    now(operator.create(RECORD, b"minutes of a meeting", Kind::Persistent)).expect("created");
    let refused = now(b.write().once_in(PERIOD)).expect_err("the node is no record");
    assert!(matches!(&refused, Error::ForeignRecord { path } if path == RECORD), "{refused:?}");
    assert!(matches!(now(b.forget()), Err(Error::ForeignRecord { .. })));
    assert!(matches!(now(b.try_once_in(PERIOD)), Err(Error::ForeignRecord { .. })));
    assert_eq!(now(b.queue()).expect("readable").done, None);
    assert_eq!(recorded(&zk), Some(b"minutes of a meeting".to_vec()));
    assert_nothing_left(&zk);
}

/// Whether the request deletes the record of the last work.
fn forgets(asked: Request<'_>) -> bool {
    match asked {
        Request::Delete(path) => path == RECORD,
        Request::Transact([Operation::Delete { path, .. }, ..]) => path == RECORD,
        _ => false,
    }
}

#[test]
fn a_delete_is_skipped_only_if_the_record_is_gone() {
    let (zk, _other, a, _b) = two();
    works(&a);
    for failure in [Failure::NoNode, Failure::NoAuth(Box::default())] {
        let is_gone = failure == Failure::NoNode;
        let line = Hindered::new(&zk, move |asked| forgets(asked).then(|| refused_at(0, failure.clone())));
        let forgotten = now(RwLock::new(&line, DIRECTORY).expect("valid").forget());
        assert!(if is_gone { matches!(forgotten, Ok(Some(_))) } else { forgotten.is_err() }, "{forgotten:?}");
    }
}

#[test]
fn forgetting_makes_the_work_due() {
    let (zk, _other, a, b) = two();
    assert_eq!(now(b.forget()).expect("allowed"), None);
    works(&a);
    let forgotten = now(b.forget()).expect("allowed").expect("a record existed");
    assert_eq!(forgotten.host, "host-a");
    assert_eq!((recorded(&zk), now(b.forget()).expect("allowed")), (None, None));
    works(&b);
}

#[test]
fn a_success_recorded_during_a_forget_stays() {
    for loses in [false, true] {
        let (zk, _other, a, b) = two();
        works(&a);
        zk.faults().set_clock_forward(PERIOD);
        let (guard, operator) = (Mutex::new(Some(due(&b).expect("due"))), zk.connect());
        let line = Hindered::new(&zk.connect(), move |asked| {
            let guard = if forgets(asked) { guard.lock().unwrap().take() } else { None };
            let guard = guard?;
            if loses {
                // The delete takes effect, but its reply is lost. The next record has the same version as the deleted record, and
                // so has its twin.
                operator.faults().remove(RECORD);
                operator.faults().remove(format!("{RECORD}.twin"));
            }
            now(guard.done()).expect("recorded");
            loses.then(|| Failure::Unknown("lost".to_owned()))
        });
        let forgotten = now(RwLock::new(&line, DIRECTORY).expect("valid").forget()).expect("allowed");
        assert_eq!(forgotten.expect("a record existed").host, "host-a");
        assert!(due(&a).is_none(), "the record of host-b was deleted, loses: {loses}");
    }
}

#[test]
fn forget_reports_the_record_despite_a_lost_reply() {
    for after in [None, Some(&b""[..]), Some(b"minutes of a meeting")] {
        let (zk, _other, a, _b) = two();
        works(&a);
        let (operator, has_lost) = (session(&zk), AtomicBool::new(false));
        let (memory, after) = (zk.clone(), after.map(<[u8]>::to_vec));
        let line = Hindered::new(&zk.connect(), move |asked| {
            let loses = forgets(asked) && !has_lost.swap(true, Ordering::Relaxed);
            loses.then(|| {
                memory.faults().remove(RECORD);
                after.iter().for_each(|data| drop(now(operator.create(RECORD, data, Kind::Persistent)).expect("gone")));
                Failure::Unknown("lost".to_owned())
            })
        });
        let forgotten = now(RwLock::new(&line, DIRECTORY).expect("valid").forget()).expect("allowed");
        assert_eq!(forgotten.expect("a record existed").host, "host-a");
    }
}

#[test]
fn a_record_hidden_by_a_lagging_server_is_forgotten() {
    let (_zk, other, a, b) = two();
    now(b.queue()).expect("readable");
    other.faults().lag();
    works(&a);
    assert!(now(b.queue()).expect("readable").done.is_none(), "the server does not lag");
    assert!(now(b.forget()).expect("allowed").is_some());
    assert!(due(&a).is_some());
}

#[test]
fn a_record_is_no_contender_in_any_dialect() {
    for dialect in [Dialect::Native, Dialect::Curator, Dialect::CuratorMutex, Dialect::Kazoo] {
        let zk = Memory::new();
        let lock = RwLock::builder(&zk, DIRECTORY).dialect(dialect).build().expect("valid");
        let outer = RwLock::builder(&zk, "/cron").dialect(dialect).build().expect("valid");
        works(&lock);
        assert!(due(&lock).is_none(), "{dialect}");
        // The record lies in the directory `/cron` of another lock, `outer`. It is no contender there: `outer` is
        // granted, and its queue is empty.
        drop(now(outer.write()).expect("free"));
        assert_eq!(now(outer.queue()).expect("readable").members.len(), 0, "{dialect}");
        zk.faults().set_clock_forward(PERIOD);
        assert!(due(&lock).is_some(), "{dialect}");
    }
}

// Work that fails, and records whose request or reply is lost.

#[test]
fn the_next_waiter_repeats_failed_work() {
    let (zk, _other, a, b) = two();
    let guard = due(&a).expect("due");
    let mut waits = asking(&b);
    assert_pending!(waits.poll());
    drop(guard);
    let guard = assert_ready_ok!(waits.poll()).due().expect("due");
    now(guard.done()).expect("recorded");
    now(guard.release()).expect("held");
    assert!(due(&a).is_none());
    assert_nothing_left(&zk);
}

#[test]
fn a_holder_that_died_leaves_the_work_to_the_next() {
    let (zk, _other, a, b) = two();
    let guard = due(&a).expect("due");
    zk.faults().expire();
    let lost = now(guard.done()).expect_err("the session is over");
    assert!(matches!(lost, Error::Lost(Loss::SessionOver(_))), "{lost:?}");
    assert_eq!(recorded(&zk), None);
    works(&b);
    drop(guard);
    assert!(due(&a).is_none());
}

#[test]
fn a_holder_whose_node_was_removed_records_nothing() {
    let (zk, _other, a, b) = two();
    let guard = due(&a).expect("due");
    now(b.evict(guard.fencing_token())).expect("allowed").expect("there");
    let next = due(&b).expect("due");
    assert!(matches!(now(guard.done()), Err(Error::Lost(Loss::Removed))));
    assert_eq!(recorded(&zk), None);
    drop(next);
}

#[test]
fn a_record_whose_request_or_answer_is_lost_is_written() {
    let (zk, _other, a, b) = two();
    for lose in [|zk: &Memory| zk.faults().lose_next_reply(), |zk: &Memory| zk.faults().lose_next_request()] {
        for _ in 0..2 {
            let guard = due(&a).expect("due");
            lose(&zk);
            now(guard.done()).expect("recorded");
            drop(guard);
            assert!(due(&b).is_none());
            zk.faults().set_clock_forward(PERIOD);
        }
        now(b.forget()).expect("allowed").expect("a record existed");
    }
}

#[test]
fn a_record_unsent_at_the_sessions_end_is_not_written() {
    let (zk, other, a, b) = two();
    let guard = due(&a).expect("due");
    zk.faults().cut();
    let mut recording = task::spawn(guard.done());
    assert_pending!(recording.poll());
    zk.faults().expire();
    zk.faults().heal();
    let lost = assert_ready_err!(recording.poll());
    assert!(lost.is_lost(), "{lost:?}");
    drop(recording);
    assert_eq!(recorded(&other), None);
    works(&b);
    drop(guard);
}

/// Returns the output of a future, or `None` if the future is still pending after this many polls.
fn within<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = task::spawn(Box::pin(future));
    (0..polls).find_map(|_| match future.poll() {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    })
}

#[test]
fn an_acquisition_dropped_at_any_poll_leaves_nothing() {
    let (mut given, mut refused) = (0, 0);
    for is_due in [true, false] {
        for polls in 0..POLLS {
            let (zk, _other, a, b) = two();
            works(&a);
            if is_due {
                zk.faults().set_clock_forward(PERIOD);
            }
            let before = recorded(&zk);
            let slow = RwLock::new(&Slow(zk.connect()), DIRECTORY).expect("valid");
            match within(polls, slow.write().once_in(PERIOD).into_future()) {
                Some(answer) if answer.as_ref().is_ok_and(Work::is_due) => given += 1,
                Some(answer) => {
                    assert!(!answer.expect("granted").is_due());
                    refused += 1;
                }
                None => {}
            }
            assert_nothing_left(&zk);
            assert_eq!(recorded(&zk), before);
            assert_eq!(due(&b).is_some(), is_due, "{polls}");
        }
    }
    assert!(given > 0 && refused > 0, "{POLLS} polls are too few: {given}, {refused}");
}

#[test]
fn a_record_dropped_at_any_poll_is_written_or_not() {
    let (mut claimed, mut dropped) = (0, 0);
    for lose in
        [|_: &Memory| {}, |zk: &Memory| zk.faults().lose_next_reply(), |zk: &Memory| zk.faults().lose_next_request()]
    {
        for polls in 0..POLLS {
            let (zk, other, _, b) = two();
            let slow = RwLock::new(&Slow(zk.clone()), DIRECTORY).expect("valid");
            let guard = within(POLLS, slow.write().once_in(PERIOD).into_future());
            let guard = guard.expect("enough polls").expect("granted").due().expect("due");
            lose(&zk);
            match within(polls, guard.done()) {
                Some(answer) => {
                    answer.expect("recorded");
                    claimed += 1;
                    assert!(recorded(&other).is_some());
                }
                None => dropped += 1,
            }
            drop(guard);
            assert_nothing_left(&zk);
            assert_eq!(due(&b).is_none(), recorded(&other).is_some(), "{polls}");
        }
    }
    assert!(claimed > 0 && dropped > 0, "{claimed}, {dropped}");
}

#[test]
fn a_recorded_success_may_be_unknown_but_never_lost() {
    let mut unknown = 0;
    for polls in 0..POLLS {
        let (zk, other, ..) = two();
        let slow = RwLock::new(&Slow(zk.clone()), DIRECTORY).expect("valid");
        let guard = within(POLLS, slow.write().once_in(PERIOD).into_future());
        let guard = guard.expect("enough polls").expect("granted").due().expect("due");
        zk.faults().lose_next_reply();
        let mut recording = task::spawn(Box::pin(guard.done()));
        if (0..polls).any(|_| recording.poll().is_ready()) {
            break;
        }
        zk.faults().remove(format!("{DIRECTORY}/{}", zk.children(DIRECTORY)[0]));
        match (0..POLLS).find_map(|_| Some(recording.poll()).filter(Poll::is_ready)).expect("enough polls") {
            Poll::Ready(Ok(())) => assert!(recorded(&other).is_some()),
            Poll::Ready(Err(Error::OutcomeUnknown { .. })) => unknown += usize::from(recorded(&other).is_some()),
            answer => assert!(recorded(&other).is_none(), "{polls}: {answer:?}"),
        }
    }
    assert!(unknown > 0);
}

#[test]
fn work_counts_as_done_without_a_reply_to_the_release() {
    let mut found = 0;
    for polls in 0..POLLS {
        let (zk, other, a, _) = two();
        works(&a);
        let lock = RwLock::new(&Slow(other.clone()), DIRECTORY).expect("valid");
        let mut asking = task::spawn(lock.write().once_in(PERIOD).into_future());
        if (0..polls).any(|_| asking.poll().is_ready()) {
            break;
        }
        let is_in = !zk.children(DIRECTORY).is_empty();
        other.faults().cut();
        if let Poll::Ready(Ok(Work::Done(_))) = asking.poll() {
            found += usize::from(is_in);
        }
    }
    assert!(found > 0);
}

#[tokio::test(start_paused = true)]
async fn a_look_at_the_record_without_an_answer_ends_in_time() {
    let mut ended = 0;
    for polls in 0..POLLS {
        let (_zk, other, ..) = two();
        let lock = RwLock::new(&Slow(other.clone()), DIRECTORY).expect("valid");
        let mut asking = task::spawn(lock.write().once_in(PERIOD).timeout(MINUTE / 12).into_future());
        if (0..polls).any(|_| asking.poll().is_ready()) {
            break;
        }
        other.faults().cut();
        let begun = Instant::now();
        // The acquisition succeeds if its last reply came before the cut.
        let Err(error) = asking.await else { continue };
        assert!(error.is_timeout(), "{polls}: {error}");
        assert!(begun.elapsed() <= MINUTE / 12, "{polls}: {:?}", begun.elapsed());
        ended += 1;
        other.faults().heal();
    }
    assert!(ended > 3, "{ended}");
}

/// How the turn of a host ends after the host was granted the work.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Succeeds,
    SucceedsUnheard,
    Fails,
    Dies,
    DiesAfterwards,
}

#[test]
fn work_is_due_a_period_after_a_success_of_any_host() {
    let fates = [Fate::Succeeds, Fate::SucceedsUnheard, Fate::Fails, Fate::Dies, Fate::DiesAfterwards];
    let mut given = [0; 5];
    for seed in 0..200 {
        let mut random = Seeded(seed);
        let zk = Memory::new();
        let hosts: Vec<Memory> = (0..3).map(|_| zk.connect()).collect();
        // `time` is the current minute of the ensemble's clock, and `last` is the minute of the last recorded success.
        let (mut time, mut last) = (0, None);
        for _ in 0..40 {
            let minutes = u32::try_from(random.below(30)).expect("small");
            zk.faults().set_clock_forward(minutes * MINUTE);
            time += minutes;
            let host = &hosts[usize::try_from(random.below(3)).expect("small")];
            let guard = due(&open(host, "host"));
            let is_due = last.is_none_or(|last| time - last >= 50);
            assert_eq!(guard.is_some(), is_due, "seed {seed}, minute {time}, last {last:?}");
            let Some(guard) = guard else { continue };
            let fate = usize::try_from(random.below(5)).expect("small");
            given[fate] += 1;
            let (works, is_lost, dies) = match fates[fate] {
                Fate::Succeeds => (true, false, false),
                Fate::SucceedsUnheard => (true, true, false),
                Fate::Fails => (false, false, false),
                Fate::Dies => (false, false, true),
                Fate::DiesAfterwards => (true, false, true),
            };
            let work = u32::try_from(random.below(20)).expect("small");
            zk.faults().set_clock_forward(work * MINUTE);
            time += work;
            if is_lost {
                host.faults().lose_next_reply();
            }
            if works {
                now(guard.done()).expect("recorded");
                last = Some(time);
            }
            if dies {
                host.faults().expire();
            }
            drop(guard);
            zk.faults().reap_containers();
        }
        assert_nothing_left(&zk);
    }
    assert!(given.iter().all(|times| *times > 100), "{given:?}");
}

// Refused input, and the number of requests.

#[test]
fn wrong_input_is_refused_unsent() {
    let zk = Memory::new();
    let lock = open(&zk, "host-a");
    let kept = RwLock::builder(&zk, DIRECTORY).keep(MINUTE).build().expect("valid");
    let long = RwLock::new(&zk, format!("/{}", "x".repeat(1020))).expect("valid");
    let before = zk.requests();
    for (lock, period, problem) in [
        (&lock, Duration::ZERO, "the period of once_in is zero"),
        (&kept, PERIOD, "once_in on a kept lock"),
        (&long, PERIOD, "is longer than 1024 bytes"),
    ] {
        for refused in [now(lock.write().once_in(period)).map(drop), now(lock.try_once_in(period)).map(drop)] {
            let Err(Error::InvalidInput(text)) = refused else { panic!("{refused:?}") };
            assert!(text.contains(problem), "{text}");
        }
    }
    assert!(matches!(now(lock.write().once_in(PERIOD).timeout(Duration::ZERO)), Err(Error::InvalidInput(_))));
    assert_eq!(zk.requests(), before);
}

#[test]
fn once_costs_one_read_and_one_transaction() {
    let zk = Memory::new();
    let lock = open(&zk, "host-a");
    works(&lock);
    zk.faults().set_clock_forward(PERIOD);
    let held = costs(&zk, 3, "the create, the listing, and the watch on our own node", || write(&lock));
    costs(&zk, 1, "the delete", || now(held.release()).expect("held"));
    let guard = costs(&zk, 4, "one read more", || due(&lock).expect("due"));
    costs(&zk, 1, "the record", || now(guard.done()).expect("recorded"));
    costs(&zk, 1, "the delete", || now(guard.release()).expect("held"));
    costs(&zk, 5, "the lock, its delete, and one read more", || assert!(due(&lock).is_none()));
}

#[test]
fn a_try_of_a_taken_lock_would_block() {
    let (zk, _other, a, b) = two();
    let guard = now(a.try_once_in(PERIOD)).expect("free").due().expect("due");
    assert!(now(b.try_once_in(PERIOD)).expect_err("taken").is_would_block());
    now(guard.done()).expect("recorded");
    now(guard.release()).expect("held");
    assert!(!now(b.try_once_in(PERIOD)).expect("free").is_due());
    assert_nothing_left(&zk);
}

#[test]
fn once_works_on_a_thread_without_a_runtime() {
    let (_zk, _other, a, b) = two();
    let guard = a.write().once_in(PERIOD).blocking().expect("free").due().expect("due");
    block_on(guard.done()).expect("recorded");
    block_on(guard.release()).expect("held");
    assert!(!b.try_once_in(PERIOD).blocking().expect("free").is_due());
}
