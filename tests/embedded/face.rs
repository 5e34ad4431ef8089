//! The public interface besides the lock itself: errors, paths, and the blocking form of every call.

use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use support::polled::now;
use support::several::several;
use zk_rwlock::error::ValueError;
use zk_rwlock::leadership::Term;
use zk_rwlock::queue::Blockers;
use zk_rwlock::{Error, Leadership, Loss, Memory, Mode, RwLock, Semaphore, Shared, Survey, ZooKeeper, block_on};

const LONG: Duration = Duration::from_secs(600);

#[test]
fn every_call_works_without_a_runtime() {
    let zk = Memory::new();
    let lock = RwLock::new(&zk, "/locks/config").unwrap();
    let writer = lock.write().timeout(LONG).label("migrate").blocking().unwrap();
    block_on(writer.transaction().create("/config", "v1").commit()).unwrap();
    assert_eq!(block_on(writer.read_node("/config")).unwrap().unwrap().data, b"v1");
    assert_eq!(lock.queue().blocking().unwrap().holders().count(), 1);
    assert!(lock.try_read().blocking().unwrap_err().is_would_block());
    let reader = block_on(writer.downgrade()).unwrap();
    block_on(lock.try_read().blocking().unwrap().release()).unwrap();
    block_on(reader.release()).unwrap();

    let both = several(&zk, [("/locks/a", Mode::Write), ("/locks/b", Mode::Read)]).unwrap();
    let guard = both.lock().blocking().unwrap();
    assert_eq!(block_on(guard.read_node("/config")).unwrap().unwrap().data, b"v1");
    block_on(guard.release()).unwrap();

    let limit: Shared<u32> = Shared::builder(&zk, "/limit").initial(|| 1).build().unwrap();
    let mut value = limit.write().blocking().unwrap();
    *value = 2;
    block_on(value.commit()).unwrap();
    let value = block_on(value.downgrade()).unwrap();
    assert_eq!(*value, 2);
    block_on(value.release()).unwrap();
    block_on(zk.close());
    assert!(matches!(lock.read().blocking(), Err(Error::Closed(_))));
}

#[tokio::test(start_paused = true)]
async fn errors_and_queues_mark_contenders_of_this_process() {
    let ours = Memory::new();
    let theirs = ours.connect();
    let lock = |zk: &Memory| RwLock::builder(zk, "/lock").host("web-1").build().unwrap();
    let permits =
        |zk: &Memory| Semaphore::builder(zk, "/permits").permits(1).lock(|lock| lock.host("web-1")).build().unwrap();
    let (_held, _taken) = (now(lock(&ours).write()).unwrap(), now(permits(&ours).acquire()).unwrap());
    for (zk, is_own) in [(&ours, true), (&theirs, false)] {
        let (lock, permits) = (lock(zk), permits(zk));
        for queue in [now(lock.queue()).unwrap(), now(permits.queue()).unwrap()] {
            assert_eq!(queue.to_string().contains(" (this process), holds"), is_own, "{queue}");
            assert!(queue.members.iter().all(|member| member.is_own == is_own), "{queue:?}");
        }
        for error in [now(lock.try_write()).unwrap_err(), now(permits.try_acquire()).unwrap_err()] {
            assert_eq!(error.to_string().ends_with(" (this process); 1 ahead"), is_own, "{error}");
        }
        let late = lock.write().timeout(Duration::from_millis(20)).await.unwrap_err();
        let no_permit = permits.acquire().timeout(Duration::from_millis(20)).await.unwrap_err();
        for error in [late, no_permit] {
            assert!(error.is_timeout(), "{error}");
            assert_eq!(error.to_string().ends_with(" (this process); 1 ahead"), is_own, "{error}");
        }
    }
    // With `keep`, a use waits for another use of the same node in this process, and reads nothing from the server.
    let kept = RwLock::builder(&ours, "/kept").keep(LONG).build().unwrap();
    let _used = now(kept.write()).unwrap();
    let late = kept.write().timeout(Duration::from_millis(20)).await.unwrap_err();
    for error in [now(kept.try_write()).unwrap_err(), late] {
        assert!(error.to_string().ends_with(" (this process); 1 ahead"), "{error}");
    }
}

#[test]
fn errors_name_a_missing_parent() {
    let guard = now(RwLock::new(&Memory::new(), "/lock").unwrap().write()).unwrap();
    for (parent, node) in [("/none", "/none/node"), ("/none/below", "/none/below/node")] {
        let error = now(guard.transaction().create("/made", "").create(node, "").commit()).unwrap_err();
        let words = format!("operation 1 on {node} failed, and nothing was changed: no such node: the parent {parent}");
        assert_eq!(error.to_string(), words);
    }
    let error = now(guard.transaction().delete("/none").commit()).unwrap_err();
    assert_eq!(error.to_string(), "operation 0 on /none failed, and nothing was changed: no such node");
}

#[test]
fn a_blocking_release_of_a_lost_lock_is_an_error() {
    let zk = Memory::new();
    let lock = |path: &str| RwLock::new(&zk, path).unwrap();
    let read = lock("/read").read().blocking().unwrap();
    let write = lock("/write").write().blocking().unwrap();
    let both = several(&zk, [("/a", Mode::Write), ("/b", Mode::Read)]).unwrap().lock().blocking().unwrap();
    let once = lock("/job").try_once_in(LONG).blocking().unwrap().due().unwrap();
    let permit = Semaphore::builder(&zk, "/permits").permits(2).build().unwrap().acquire().blocking().unwrap();
    block_on(write.transaction().create("/config", "v1").commit()).unwrap();
    assert_eq!(block_on(permit.read_node("/config")).unwrap().unwrap().data, b"v1");
    zk.faults().expire();
    for released in [
        block_on(read.release()),
        block_on(write.release()),
        block_on(both.release()),
        block_on(once.release()),
        block_on(permit.release()),
    ] {
        assert!(released.as_ref().is_err_and(Error::is_lost), "{released:?}");
    }
}

#[tokio::test]
async fn a_blocking_call_in_a_runtime_panics_and_sends_nothing() {
    let zk = Memory::new();
    let lock = RwLock::new(&zk, "/lock").unwrap();
    let before = zk.requests();
    let calls: [fn(&RwLock); 3] = [
        |lock| drop(lock.write().blocking()),
        |lock| drop(lock.queue().blocking()),
        |lock| drop(block_on(async { lock.write().await })),
    ];
    for call in calls {
        let panic = catch_unwind(AssertUnwindSafe(|| call(&lock))).unwrap_err();
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.unwrap_or_else(|| panic.downcast_ref::<&str>().copied().unwrap_or_default().to_owned());
        assert!(message.contains("write `.await`") && message.contains("`tokio::task::spawn_blocking"), "{message}");
    }
    assert_eq!(zk.requests(), before, "a refused call sent a request");
    let allowed = lock.clone();
    tokio::task::spawn_blocking(move || allowed.write().blocking().map(drop)).await.unwrap().unwrap();
}

#[test]
fn an_invalid_connection_is_refused_without_a_runtime() {
    assert!(matches!(block_on(ZooKeeper::connect("no list of servers")), Err(Error::InvalidInput(_))));
}

#[test]
fn a_path_may_be_any_kind_of_text() {
    let zk = Memory::new();
    let (owned, counted): (String, Arc<str>) = ("/locks/owned".to_owned(), "/locks/counted".into());
    for lock in [RwLock::new(&zk, &owned), RwLock::new(&zk, owned.clone()), RwLock::builder(&zk, &counted).build()] {
        assert!(lock.unwrap().path().starts_with("/locks/"));
    }
    let both = several(&zk, [(owned.as_str(), Mode::Read), (&counted, Mode::Write)]).unwrap();
    assert_eq!(both.paths().count(), 2);
    assert!(Shared::<u32>::new(&zk, &owned).is_ok());
    let guard = both.lock().blocking().unwrap();
    block_on(guard.transaction().create(String::from("/made"), "").check_exists(&owned).commit()).unwrap();
    assert_eq!(Survey::below(&zk, String::from("/locks")).blocking().unwrap().queues.len(), 2);
}

#[test]
fn each_question_of_an_error_fits_one_kind() {
    let (waited, blockers) = (LONG, Blockers::default);
    let asked =
        |error: Error| [error.is_would_block(), error.is_timeout(), error.is_lost(), error.value_error().is_some()];
    for (error, answers) in [
        (Error::WouldBlock { blockers: blockers() }, [true, false, false, false]),
        (Error::Timeout { waited, blockers: blockers(), cut_off: None }, [false, true, false, false]),
        (Error::Lost(Loss::Removed), [false, false, true, false]),
        (Error::Evicted(Loss::Removed), [false, false, true, false]),
        (Error::Value { path: "/v".to_owned(), error: ValueError::Unset }, [false, false, false, true]),
        (Error::Unreachable("away".to_owned()), [false; 4]),
    ] {
        let (shown, of_many) =
            (error.to_string(), Error::OneOfMany { path: "/a".to_owned(), error: Box::new(error.clone()) });
        assert_eq!(asked(of_many), answers, "one of many: {shown}");
        assert_eq!(asked(error), answers, "{shown}");
    }
}

#[test]
fn an_error_has_its_source() {
    let lost = || Error::Lost(Loss::Removed);
    let source = lost();
    assert!(matches!(source.source().unwrap().downcast_ref(), Some(Loss::Removed)));
    let one = Error::OneOfMany { path: "/a".to_owned(), error: Box::new(lost()) };
    assert!(one.source().unwrap().source().unwrap().is::<Loss>());
    let value = Error::Value { path: "/v".to_owned(), error: ValueError::Unset };
    assert!(value.source().unwrap().is::<ValueError>());
}

/// The future of `lead` must be `Send`, because the test spawns that future on a runtime with several threads.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn leader_work_is_a_closure_or_a_function() {
    async fn number(term: Term) -> i64 {
        term.number()
    }
    let zk = Memory::new();
    let leadership = Leadership::new(&zk, "/leader").expect("valid");
    let leads = leadership.clone();
    let (mut seen, resigns) = (Vec::new(), leadership.clone());
    let owned = async move |term: Term| {
        seen.push(term.number());
        if seen.len() == 1 {
            // The closure's state outlives the term: the next term also sees this entry of `seen`.
            assert!(resigns.resign().await);
            std::future::pending::<()>().await;
        }
        seen.clone()
    };
    let terms = tokio::spawn(async move { leads.lead_mut(owned).await }).await.expect("no panic");
    let terms = terms.expect("granted").expect("not stopped");
    assert!(terms.len() == 2 && terms[0] < terms[1], "{terms:?}");

    let leads = leadership.clone();
    let led = tokio::spawn(async move { leads.lead(|term: Term| async move { term.number() }).await });
    assert!(led.await.expect("no panic").expect("granted") > terms.last().copied());
    let leads = leadership.clone();
    let led = tokio::spawn(async move { leads.lead(number).await }).await.expect("no panic");
    assert!(led.expect("granted") > terms.last().copied());
}
