//! Commits with an unknown outcome, and initial values that another client removes immediately. The tests use the
//! embedded backend, where they can lose each reply.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio_test::{assert_pending, task};
use zk_rwlock::coordinator::{Failure, Kind, Operation};
use zk_rwlock::error::ValueError;
use zk_rwlock::{Error, Memory, Shared};

use crate::checks::{bytes, counter, put, session, write};
use support::hindered::{Hindered, Request};
use support::polled::{Lost, lose, now};
use support::scene::soon;

#[support::judged]
async fn a_commit_with_lost_messages_is_done_at_most_once() {
    use Lost::{Reply, Request};
    for faults in
        [&[Reply][..], &[Request], &[Request, Reply], &[Request, Request, Reply], &[Request; 3], &[Request; 4]]
    {
        for before in [None, Some(7)] {
            let (zk, path) = (Memory::new(), "/doubts");
            let shared = counter(&zk, path);
            if let Some(before) = before {
                write(&shared, before).await;
            }
            let mut guard = soon("the lock", shared.write()).await.unwrap();
            *guard = 9;
            lose(&zk, faults);
            let answer = soon("the commit", guard.commit()).await;
            if faults.len() == 4 {
                let error = answer.expect_err("smaller requests pass");
                assert!(matches!(error.value_error(), Some(ValueError::TooLarge { limit: None, .. })), "{error}");
                assert_eq!(bytes(&zk, path).await.is_some(), before.is_some());
                continue;
            }
            let written = answer.unwrap();
            let reader = soon("the downgrade", guard.downgrade()).await.unwrap();
            assert_eq!((*reader, reader.written()), (9, &written), "{faults:?}");
            let (_, stat) = session(&zk).await.data(&format!("{path}/value")).await.unwrap();
            assert_eq!(stat.version, i32::from(before.is_some()), "{faults:?}: the value was not written exactly once");
        }
    }
}

/// Returns a client that calls `fault` before each commit to an existing value, with the count of earlier commits. If
/// `fault` returns a failure, the commit fails with that failure.
fn line(zk: &Memory, fault: impl Fn(usize) -> Option<Failure> + Send + Sync + 'static) -> Hindered {
    let commits = AtomicUsize::new(0);
    Hindered::new(zk, move |asked| {
        let Request::Transact([_, Operation::Set { path, .. }]) = asked else { return None };
        path.ends_with("/value").then(|| fault(commits.fetch_add(1, Ordering::Relaxed))).flatten()
    })
}

fn no_answer() -> Option<Failure> {
    Some(Failure::Unknown("nobody has answered".to_owned()))
}

/// Returns the error of a commit whose first request is lost. Just before the commit's request number `at`, counted
/// from 0, another client writes the value `writes` times without the lock.
async fn disturbed(at: usize, writes: usize) -> Error {
    let (zk, path) = (Memory::new(), "/doubts");
    write(&counter(&zk, path), 7).await;
    let stranger = zk.connect();
    let line = line(&zk, move |number| {
        for _ in 0..if number == at { writes } else { 0 } {
            now(put(&stranger, path, b"a stranger's"));
        }
        if number == 0 { no_answer() } else { None }
    });
    let mut guard = soon("the lock", counter(&line, path).write()).await.unwrap();
    *guard = 9;
    let error = soon("the commit", guard.commit()).await.expect_err("another client was faster");
    assert_eq!(bytes(&zk, path).await.unwrap(), b"a stranger's");
    error
}

#[support::judged]
async fn a_commit_in_doubt_loses_to_another_write() {
    let error = disturbed(0, 1).await;
    assert!(matches!(error, Error::TransactionRefused { reason: Failure::BadVersion, .. }), "{error}");
}

#[support::judged]
async fn a_commit_followed_by_many_writes_stays_in_doubt() {
    // The other client writes before the first request or before the repeated request. In the second case, the repeated
    // request is refused.
    for at in [0, 1] {
        let error = disturbed(at, 3).await;
        assert!(matches!(&error, Error::OutcomeUnknown { reason, .. } if reason == "nobody has answered"), "{error}");
    }
}

#[support::judged]
async fn a_commit_in_doubt_is_settled_on_the_next_session() {
    for is_done in [true, false] {
        let (zk, path) = (Memory::new(), "/doubts");
        write(&counter(&zk, path), 7).await;
        let (client, is_asked) = (zk.clone(), AtomicBool::new(false));
        let line = Hindered::new(&zk, move |asked| match asked {
            Request::Transact([_, Operation::Set { path, .. }]) if path.ends_with("/value") => {
                is_asked.store(true, Ordering::Relaxed);
                if is_done {
                    client.faults().lose_next_reply();
                    return None;
                }
                no_answer()
            }
            Request::Data(path) if path.ends_with("/value") && is_asked.swap(false, Ordering::Relaxed) => {
                client.faults().expire();
                None
            }
            _ => None,
        });
        let mut guard = soon("the lock", counter(&line, path).write()).await.unwrap();
        *guard = 9;
        let answer = soon("the commit", guard.commit()).await;
        assert!(!guard.lock().is_held());
        match answer {
            Ok(written) => assert!(is_done, "{written:?}"),
            Err(error) => assert!(!is_done && matches!(error, Error::Lost(_)), "{error}"),
        }
        let now = soon("the value", counter(&zk.connect(), path).read()).await.unwrap();
        assert_eq!(*now, if is_done { 9 } else { 7 });
    }
}

/// The field `after` of a stored value names the commit before it. With this field, the library can find a commit with
/// an unknown outcome even if another commit has replaced its value: see [`Error::OutcomeUnknown`].
#[support::judged]
async fn each_value_names_the_commit_before_it() {
    let (zk, path) = (Memory::new(), "/doubts");
    let mut guard = soon("the lock", counter(&zk, path).write()).await.unwrap();
    for number in 1..=3 {
        let written = guard.commit().await.unwrap();
        let text = String::from_utf8(bytes(&zk, path).await.unwrap()).unwrap();
        let after = text.lines().find_map(|line| line.strip_prefix("after=")).map(str::to_owned);
        assert_eq!(after, (number > 1).then(|| format!("{}/{}", written.token, number - 1)), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_initial_value_is_written_again() {
    let (zk, path) = (Memory::new(), "/doubts");
    let (stranger, was_written, is_second) = (zk.connect(), AtomicBool::new(false), AtomicBool::new(false));
    let line = Hindered::new(&zk, move |asked| {
        match asked {
            Request::Transact([_, Operation::Create { path, .. }]) if path.ends_with("/value") => {
                was_written.store(!is_second.swap(true, Ordering::Relaxed), Ordering::Relaxed);
            }
            // The first time that the copy reads the initial value, another client deletes the value just before that
            // read.
            Request::Data(path) if path.ends_with("/value") && was_written.swap(false, Ordering::Relaxed) => {
                now(now(session(&stranger)).delete(path)).expect("the value was just written");
            }
            _ => {}
        }
        None
    });
    // The directory exists, so the copy watches the directory's children and reads the value right after it is created.
    // Without the directory, the copy would watch an ancestor, and pause for `LOOK_PAUSE` (20 ms) after the event.
    session(&zk).await.create(path, b"", Kind::Persistent).await.unwrap();
    let shared = Shared::builder(&line, path).initial(|| 7_u64).build().unwrap();
    let mut changes = shared.changes();
    assert_eq!(**soon("the first value", changes.next()).await.expect("never over").unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn an_initial_value_is_not_rewritten_while_unused() {
    let (zk, path) = (Memory::new(), "/doubts");
    let (line, contenders) = Hindered::counting(&zk, |_| ());
    let shared = Shared::builder(&line, path).initial(|| 7_u64).build().unwrap();
    let mut changes = shared.changes();
    let mut first = task::spawn(changes.next());
    assert_pending!(first.poll());
    let until_written = contenders.now();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(bytes(&zk, path).await.is_some());
    assert_eq!(contenders.now(), until_written);
    assert_eq!(**soon("the first value", first).await.expect("never over").unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn an_initial_value_waits_until_foreign_bytes_are_gone() {
    for is_polled in [true, false] {
        let (zk, path) = (Memory::new(), "/doubts");
        let stranger = zk.connect();
        let (line, contenders) = Hindered::counting(&zk, move |before| {
            // Before the first create of a contender, and so before the lock's directory exists, `stranger` writes
            // foreign bytes.
            if before == 0 {
                now(put(&stranger, path, b"a stranger's"));
            }
        });
        let shared = Shared::builder(&line, path).initial(|| 7_u64).build().unwrap();
        let mut changes = shared.changes();
        let mut first = task::spawn(changes.next());
        assert_pending!(first.poll());
        if is_polled {
            let error = soon("an error", first).await.expect("never over").expect_err("foreign bytes are no value");
            assert!(matches!(error.value_error(), Some(ValueError::Foreign { .. })), "{error}");
            first = task::spawn(changes.next());
            assert_pending!(first.poll());
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let asked = contenders.now();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(contenders.now(), asked);
        session(&zk).await.delete("/doubts/value").await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(**soon("the first value", first).await.expect("never over").unwrap(), 7);
    }
}

#[support::judged]
async fn a_removed_empty_node_fails_no_initial_write() {
    let (zk, path) = (Memory::new(), "/doubts");
    put(&zk, path, b"").await;
    let stranger = zk.connect();
    let line = Hindered::new(&zk, move |asked| {
        if let Request::Transact([_, Operation::Set { path, .. }]) = asked {
            now(now(session(&stranger)).delete(path)).expect("empty until now");
        }
        None
    });
    let shared = Shared::builder(&line, path).initial(|| 7_u64).build().unwrap();
    assert_eq!(*soon("the value", shared.read()).await.unwrap(), 7);
}
