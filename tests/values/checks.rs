//! Tests of values that run on every backend, each with a fresh path.

use std::collections::{BTreeMap, HashMap};
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio_test::{assert_pending, task};
use zk_rwlock::coordinator::{Coordinator, Failure, Kind, Operation, Session};
use zk_rwlock::error::ValueError;
use zk_rwlock::format::{Format, FormatError, Json, Raw};
use zk_rwlock::shared::{CopyState, Stored, ValueChanges, Written};
use zk_rwlock::{Error, Shared};

use support::copy::Copied;
use support::harness::Harness;
use support::safe;
use support::scene::{eventually, soon};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Config {
    pub(crate) endpoint: String,
    pub(crate) weights: BTreeMap<u8, f64>,
    pub(crate) limit: Option<u64>,
}

pub(crate) fn config(number: u64) -> Config {
    let weights = BTreeMap::from([(1, 0.1 + number as f64), (2, f64::MIN_POSITIVE)]);
    Config { endpoint: format!("db-{number} \u{1f511}\n\"quoted\""), weights, limit: Some(u64::MAX - number) }
}

fn open<C: Coordinator + Clone>(client: &C, path: &str) -> Shared<Config> {
    Shared::new(client, path).expect("a valid path")
}

pub(crate) fn counter<C: Coordinator + Clone>(client: &C, path: &str) -> Shared<u64> {
    Shared::builder(client, path).initial(|| 0).build().expect("a valid path")
}

pub(crate) async fn write<T: Send + Sync + 'static>(shared: &Shared<T>, value: T) -> Written {
    let mut guard = shared.write().replacing(value).await.expect("the lock is granted");
    let written = guard.commit().await.expect("committed");
    guard.release().await.expect("released");
    written
}

pub(crate) async fn session(client: &impl Coordinator) -> Arc<dyn Session> {
    Arc::clone(client.session_slot(0).await.expect("the session is alive").session())
}

/// Returns the data of the value's node, read by an operator. Returns `None` if the node does not exist.
pub(crate) async fn bytes(client: &impl Coordinator, path: &str) -> Option<Vec<u8>> {
    let (session, node) = (session(client).await, format!("{path}/value"));
    session.sync(&node).await.expect("synced");
    match session.data(&node).await {
        Ok((bytes, _)) => Some(bytes),
        Err(Failure::NoNode) => None,
        Err(failure) => panic!("{node} cannot be read: {failure}"),
    }
}

/// Writes the value's node as an operator might, without the lock.
pub(crate) async fn put(client: &impl Coordinator, path: &str, data: &[u8]) {
    let session = session(client).await;
    let node = format!("{path}/value");
    let set = Operation::Set { path: node.clone(), data: data.to_vec(), version: None };
    let answer = session.transact(&[set]).await;
    if matches!(answer, Err(Failure::Operation { ref failure, .. }) if **failure == Failure::NoNode) {
        for (at, _) in node.match_indices('/').skip(1) {
            let made = session.create(&node[..at], &[], Kind::Persistent).await;
            assert!(matches!(made, Ok(_) | Err(Failure::NodeExists)), "{made:?}");
        }
        session.create(&node, data, Kind::Persistent).await.expect("created");
    } else {
        answer.expect("set");
    }
}

pub(crate) fn value_error(error: &Error) -> &ValueError {
    error.value_error().unwrap_or_else(|| panic!("another error: {error}"))
}

/// Checks that reads and writes fail as expected, and that the node is unchanged.
async fn assert_refused<T: Send + Sync + 'static>(
    client: &impl Coordinator,
    path: &str,
    shared: &Shared<T>,
    expected: impl Fn(&ValueError) -> bool,
) {
    let before = bytes(client, path).await;
    for error in [
        shared.read().await.err().expect("the read fails"),
        shared.write().await.err().expect("the write fails"),
        shared.try_read().await.err().expect("the read fails"),
        shared.try_write().await.err().expect("the write fails"),
    ] {
        assert!(expected(value_error(&error)), "{error}");
        assert!(error.to_string().starts_with(&format!("{path}/value: ")), "{error}");
    }
    assert_eq!(bytes(client, path).await, before);
}

pub(crate) async fn everyone_reads_the_committed_value(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (open(&one, &path), open(&two, &path));
    for number in 0..5 {
        write(&here, config(number)).await;
        assert_eq!(*there.read().await.unwrap(), config(number));
        let mut guard = there.write().await.unwrap();
        assert_eq!(*guard, config(number));
        guard.limit = None;
        guard.commit().await.unwrap();
        guard.release().await.unwrap();
        assert_eq!(*here.try_read().await.unwrap(), Config { limit: None, ..config(number) });
    }
}

pub(crate) async fn an_uncommitted_change_is_discarded(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared = open(&zk, &path);
    write(&shared, config(1)).await;
    let before = bytes(&zk, &path).await;
    let mut guard = shared.write().await.unwrap();
    guard.limit = None;
    assert_eq!(guard.limit, None);
    drop(guard);
    let mut guard = shared.write().replacing(config(2)).await.unwrap();
    guard.limit = None;
    guard.release().await.unwrap();
    assert_eq!(*shared.read().await.unwrap(), config(1));
    assert_eq!(bytes(&zk, &path).await, before);
}

pub(crate) async fn a_missing_value_is_an_error(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared = open(&zk, &path);
    assert_refused(&zk, &path, &shared, |error| *error == ValueError::Unset).await;
    assert_eq!(bytes(&zk, &path).await, None);
    assert!(shared.lock().try_write().await.is_ok(), "the lock was not given back");

    let guard = shared.write().replacing(config(1)).await.unwrap();
    assert_eq!(guard.written(), None);
    drop(guard);
    assert_refused(&zk, &path, &shared, |error| *error == ValueError::Unset).await;
    write(&shared, config(1)).await;
    assert_eq!(*shared.read().await.unwrap(), config(1));
}

pub(crate) async fn an_empty_node_counts_as_never_written(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    put(&zk, &path, b"").await;
    assert_refused(&zk, &path, &open(&zk, &path), |error| *error == ValueError::Unset).await;
    assert_eq!(*counter(&zk, &path).read().await.unwrap(), 0);
    put(&zk, &path, b"").await;
    let shared = counter(&zk, &path);
    let mut guard = shared.write().await.unwrap();
    *guard = 7;
    guard.commit().await.unwrap();
    assert_eq!(*guard.downgrade().await.unwrap(), 7);
}

pub(crate) async fn the_initial_value_is_written_once(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let asked = Arc::new(AtomicUsize::new(0));
    let open = |client| {
        let asked = Arc::clone(&asked);
        let initial = move || asked.fetch_add(1, Ordering::Relaxed);
        Shared::builder(client, &path).initial(initial).build().unwrap()
    };
    let mut readers = JoinSet::new();
    for number in 0..8 {
        let shared: Shared<usize> = if number % 2 == 0 { open(&one) } else { open(&two) };
        readers.spawn(async move {
            let guard = shared.read().await.unwrap();
            (*guard, guard.written().clone())
        });
    }
    let read = soon("all read", readers.join_all()).await;
    assert!(read.iter().all(|it| *it == read[0]), "{read:?}");
    assert_eq!(read[0].1.commit, 1);
    let later = asked.load(Ordering::Relaxed);
    assert_eq!(*open(&one).read().await.unwrap(), read[0].0);
    assert_eq!(asked.load(Ordering::Relaxed), later);
}

pub(crate) async fn a_write_starts_from_the_initial_value(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared = Shared::builder(&zk, &path).initial(|| config(1)).build().unwrap();
    let mut guard = shared.write().await.unwrap();
    assert_eq!((&*guard, guard.written()), (&config(1), None));
    assert_eq!(bytes(&zk, &path).await, None);
    let written = guard.commit().await.unwrap();
    assert_eq!(guard.written(), Some(&written));
    drop(guard);
    assert_eq!(*open(&zk, &path).read().await.unwrap(), config(1));
}

pub(crate) async fn commits_under_one_lock_are_counted_and_signed(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared: Shared<u64> =
        Shared::builder(&zk, &path).initial(|| 0).lock(|lock| lock.host("web-1").label("billing")).build().unwrap();
    let mut guard = shared.write().label("rotate = keys").await.unwrap();
    let (token, mut last) = (guard.lock().fencing_token(), None);
    for number in 1..=3 {
        *guard = u64::from(number);
        let written = guard.commit().await.unwrap();
        assert_eq!((written.token, written.commit, written.schema), (token, number, 1));
        assert_eq!((written.host.as_str(), written.label.as_deref()), ("web-1", Some("rotate = keys")));
        assert!(last.replace(written.clone()).is_none_or(|last: Written| last.at <= written.at));
    }
    assert!(guard.lock().is_held() && guard.lock().is_held());
    guard.release().await.unwrap();
    let guard = shared.read().await.unwrap();
    assert_eq!((*guard, Some(guard.written().clone())), (3, last));
    drop(guard);
    assert_eq!(write(&shared, 4).await.label.as_deref(), Some("billing"));
    assert_eq!(shared.read().await.unwrap().written().commit, 1);
}

pub(crate) async fn an_operator_sees_lines_of_text_and_the_value(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared: Shared<Vec<String>> = Shared::builder(&zk, &path).lock(|lock| lock.host("web-1")).build().unwrap();
    let first = write(&shared, vec![]).await;
    let written = write(&shared, vec!["a".to_owned(), "b".to_owned()]).await;
    let text = String::from_utf8(bytes(&zk, &path).await.unwrap()).unwrap();
    let (head, value) = text.split_once("\n\n").unwrap();
    assert_eq!(value, r#"["a","b"]"#);
    let head: Vec<&str> = head.lines().collect();
    let (token, after) = (format!("token={}", written.token), format!("after={}/1", first.token));
    assert_eq!(head[..7], ["zk-rwlock value 1", "format=json", "schema=1", "host=web-1", &token, "commit=1", &after]);
    assert!(head[7].starts_with("at=20") && head.len() == 8, "{head:?}");
    let mut below = session(&zk).await.children(&path).await.unwrap();
    below.sort();
    assert_eq!(below, ["lock", "value", "value.twin"]);
    assert_eq!((shared.value_path(), shared.lock().path()), (&*format!("{path}/value"), &*format!("{path}/lock")));
}

pub(crate) async fn increments_of_many_tasks_are_never_lost(h: &impl Harness) {
    const TASKS: u64 = 8;
    const ROUNDS: u64 = 10;
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let shared = if task % 2 == 0 { counter(&one, &path) } else { counter(&two, &path) };
        tasks.spawn(async move {
            for round in 0..ROUNDS {
                let mut guard = shared.write().await.unwrap();
                *guard += 1;
                guard.commit().await.unwrap();
                if round % 2 == 0 {
                    guard.release().await.unwrap();
                }
            }
        });
    }
    soon("all tasks", tasks.join_all()).await;
    let counted = *counter(&one, &path).read().await.unwrap();
    safe!(counted == TASKS * ROUNDS, "{counted} of {} increments", TASKS * ROUNDS);
}

pub(crate) async fn a_value_stays_as_it_is_while_it_is_read(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (counter(&one, &path), counter(&two, &path));
    let reader = here.read().await.unwrap();
    assert!(there.try_write().await.unwrap_err().is_would_block());
    assert_eq!(*there.try_read().await.unwrap(), *reader);
    let writer = tokio::spawn(async move {
        let mut guard = there.write().await.unwrap();
        *guard = 1;
        guard.commit().await.unwrap();
    });
    assert_eq!(*reader, 0);
    assert_eq!(reader.into_inner(), 0);
    soon("the writer", writer).await.unwrap();
    assert_eq!(*here.read().await.unwrap(), 1);
}

pub(crate) async fn foreign_bytes_are_an_error_until_they_are_replaced(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared = open(&zk, &path);
    let long = vec![b'x'; 100_000];
    for foreign in [
        &b"{\"endpoint\":\"db-1\"}"[..],
        b"\xff\xfe\x00",
        b"\n\n",
        b"zk-rwlock value 1",
        b"zk-rwlock value 1\nformat=json\n\n{}",
        b"zk-rwlock value 2\nanything\n\n{}",
        &long,
    ] {
        put(&zk, &path, foreign).await;
        assert_refused(&zk, &path, &shared, |error| matches!(error, ValueError::Foreign { .. })).await;
        let mut guard = shared.write().replacing(config(1)).await.unwrap();
        assert_eq!(bytes(&zk, &path).await.as_deref(), Some(foreign));
        guard.commit().await.unwrap();
        drop(guard);
        assert_eq!(*shared.read().await.unwrap(), config(1));
    }
}

pub(crate) async fn a_value_of_another_type_is_an_error_and_stays(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let written = write(&open(&zk, &path), config(1)).await;
    let other: Shared<u64> = counter(&zk, &path);
    let expected = |error: &ValueError| match error {
        ValueError::WrongType { problem, written: by } => problem.contains("expected u64") && **by == written,
        _ => false,
    };
    assert_refused(&zk, &path, &other, expected).await;
    assert_eq!(*open(&zk, &path).read().await.unwrap(), config(1));
}

pub(crate) async fn a_value_of_another_format_is_an_error_and_stays(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    write(&open(&zk, &path), config(1)).await;
    let raw: Shared<Vec<u8>> = Shared::with_format(&zk, &path, Raw).build().unwrap();
    let expected = |error: &ValueError| matches!(error, ValueError::OtherFormat { found, expected, .. } if found == "json" && expected == "raw");
    assert_refused(&zk, &path, &raw, expected).await;
}

pub(crate) async fn a_value_of_a_newer_schema_is_an_error_and_stays(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let newer: Shared<u64> = Shared::builder(&zk, &path).schema(3).build().unwrap();
    let written = write(&newer, 1).await;
    assert_eq!(written.schema, 3);
    for known in [1, 2] {
        let older: Shared<u64> =
            Shared::builder(&zk, &path).schema(known).migrate(|_, _| Ok(0)).initial(|| 0).build().unwrap();
        let expected = |error: &ValueError| matches!(error, ValueError::NewerSchema { known: by, written: it } if *by == known && **it == written);
        assert_refused(&zk, &path, &older, expected).await;
    }
    assert_eq!(*newer.read().await.unwrap(), 1);
}

pub(crate) async fn a_value_of_an_older_schema_is_migrated(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let old: Shared<u64> = Shared::new(&zk, &path).unwrap();
    write(&old, 5).await;
    let without: Shared<Config> = Shared::builder(&zk, &path).schema(2).build().unwrap();
    assert_refused(&zk, &path, &without, |error| matches!(error, ValueError::OlderSchema { known: 2, .. })).await;
    let failing: Shared<Config> =
        Shared::builder(&zk, &path).schema(2).migrate(|_, _| Err("it is too old".into())).build().unwrap();
    let expected =
        |error: &ValueError| matches!(error, ValueError::OlderSchema { problem, .. } if problem == "it is too old");
    assert_refused(&zk, &path, &failing, expected).await;

    let migrate = |schema: u32, bytes: &[u8]| -> Result<Config, FormatError> {
        assert_eq!(schema, 1);
        Ok(config(std::str::from_utf8(bytes)?.parse()?))
    };
    let new: Shared<Config> = Shared::builder(&zk, &path).schema(2).migrate(migrate).build().unwrap();
    let before = bytes(&zk, &path).await;
    let guard = new.read().await.unwrap();
    assert_eq!((&*guard, guard.written().schema), (&config(5), 1));
    drop(guard);
    let mut guard = new.write().await.unwrap();
    assert_eq!((&*guard, guard.written().unwrap().schema), (&config(5), 1));
    assert_eq!(bytes(&zk, &path).await, before);
    assert_eq!(guard.commit().await.unwrap().schema, 2);
    drop(guard);
    assert_eq!(*new.read().await.unwrap(), config(5));
    assert_refused(&zk, &path, &old, |error| matches!(error, ValueError::NewerSchema { known: 1, .. })).await;
}

/// A list within a list, to any depth.
#[derive(Debug, Serialize, Deserialize)]
struct Deep(Vec<Deep>);

pub(crate) async fn a_value_that_cannot_be_decoded_is_not_written(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    async fn unwritable<T: Send + Sync + 'static>(shared: Shared<T>, good: T, bad: T, reason: &str) {
        let mut guard = shared.write().replacing(good).await.unwrap();
        let good = guard.commit().await.unwrap();
        *guard = bad;
        for _ in 0..2 {
            let error = guard.commit().await.unwrap_err();
            assert!(matches!(value_error(&error), ValueError::Unwritable { .. }), "{error}");
            assert!(error.to_string().contains(reason), "{error}");
        }
        guard.release().await.unwrap();
        assert_eq!(*shared.read().await.unwrap().written(), good);
    }
    let at = |name: &str| format!("{path}/{name}");
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        unwritable(Shared::new(&zk, at("finite")).unwrap(), 1.5, bad, "invalid type: null, expected f64").await;
    }
    let (good, bad) = (HashMap::new(), HashMap::from([((1, 2), 3)]));
    unwritable(Shared::<HashMap<(u8, u8), u8>>::new(&zk, at("keys")).unwrap(), good, bad, "key must be a string").await;
    let deep = (0..200).fold(Deep(Vec::new()), |inner, _| Deep(vec![inner]));
    unwritable(Shared::new(&zk, at("deep")).unwrap(), Deep(Vec::new()), deep, "recursion limit").await;
}

pub(crate) async fn only_values_within_the_size_limit_are_written(h: &impl Harness) {
    const ALLOWED: usize = 1_044_479;
    let (one, two) = (h.client().await, h.client().await);
    // The transaction that writes the value also contains the paths. So a long path leaves less room for the value.
    let path = format!("{}/{}", h.directory(), "p".repeat(900));
    let blob: Shared<Vec<u8>> = Shared::with_format(&one, &path, Raw).build().unwrap();
    let first = write(&blob, Vec::new()).await;
    let beside = write(&blob, Vec::new()).await;
    let mut guard = blob.write().await.unwrap();
    let (head, tail) = (bytes(&one, &path).await.unwrap().len(), |token: i64| token.to_string().len());
    // The value's header contains two tokens. Their texts may be longer in the next commit than in the first.
    let head = head + tail(guard.lock().fencing_token()) - tail(first.token);
    guard.resize(ALLOWED - head + 1, 7);
    let error = guard.commit().await.unwrap_err();
    assert_eq!(*value_error(&error), ValueError::TooLarge { bytes: ALLOWED + 1, limit: Some(ALLOWED) });
    assert_eq!(*blob.lock().path(), format!("{path}/lock"));
    assert!(bytes(&one, &path).await.unwrap().len() <= head);
    guard.pop();
    assert_eq!(guard.commit().await.unwrap().commit, 1);
    guard.release().await.unwrap();
    assert_eq!(bytes(&one, &path).await.unwrap().len(), ALLOWED);
    let there: Shared<Vec<u8>> = Shared::with_format(&two, &path, Raw).build().unwrap();
    let read = there.read().await.unwrap();
    assert!(read.len() == ALLOWED - head && read.iter().all(|byte| *byte == 7));
    assert!(read.written().token > beside.token);
    drop(read);

    // The same limit holds for a commit that creates the node.
    let fresh: Shared<Vec<u8>> = Shared::with_format(&one, format!("{path}2"), Raw).build().unwrap();
    write(&fresh, vec![1; ALLOWED - head]).await;
    let small: Shared<Vec<u8>> = Shared::with_format(&one, &path, Raw).size_limit(1000).build().unwrap();
    let error = small.write().await.unwrap().commit().await.unwrap_err();
    assert!(matches!(value_error(&error), ValueError::TooLarge { limit: Some(1000), .. }), "{error}");
    write(&small, vec![1; 100]).await;
}

pub(crate) async fn a_commit_after_the_lock_was_lost_changes_nothing(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (counter(&one, &path), counter(&two, &path));
    write(&there, 1).await;
    let mut guard = here.write().await.unwrap();
    *guard = 2;
    // An operator deletes the lock's node. The transaction itself is refused, even if the holder has not noticed yet.
    session(&two).await.delete(guard.lock().node_path().as_str()).await.unwrap();
    let error = guard.commit().await.unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
    assert_eq!(*there.read().await.unwrap(), 1);

    let mut guard = here.write().await.unwrap();
    *guard = 2;
    h.expire(&one).await;
    write(&there, 3).await;
    let error = soon("the commit", guard.commit()).await.unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
    soon("the loss", guard.lock().lost()).await;
    assert!(!guard.lock().is_held());
    assert_eq!(*there.read().await.unwrap(), 3);
    // The handle works again, on a fresh session.
    assert_eq!(write(&here, 4).await.commit, 1);
    assert_eq!(*there.read().await.unwrap(), 4);
}

pub(crate) async fn a_write_without_the_lock_is_noticed_and_not_replaced(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared = counter(&zk, &path);
    write(&shared, 1).await;
    let theirs = bytes(&zk, &path).await.unwrap();
    let mut guard = shared.write().await.unwrap();
    put(&zk, &path, &theirs).await;
    *guard = 2;
    for _ in 0..2 {
        let error = guard.commit().await.unwrap_err();
        let expected = matches!(error, Error::TransactionRefused { index: 0, reason: Failure::BadVersion, .. });
        assert!(expected, "{error}");
        assert!(guard.lock().is_held());
    }
    drop(guard);
    assert_eq!(*shared.read().await.unwrap(), 1);
}

pub(crate) async fn a_deletion_without_the_lock_is_noticed(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared = counter(&zk, &path);
    write(&shared, 1).await;
    let mut guard = shared.write().await.unwrap();
    session(&zk).await.delete(shared.value_path()).await.unwrap();
    let error = guard.commit().await.unwrap_err();
    assert!(matches!(error, Error::TransactionRefused { reason: Failure::NoNode, .. }), "{error}");
    drop(guard);
    for client in [&zk, &h.client().await] {
        let error = counter(client, &path).read().await.expect_err("the initial value is not written again");
        assert_eq!(value_error(&error), &ValueError::Vanished);
    }
    assert_eq!(value_error(&shared.write().await.expect_err("nor changed")), &ValueError::Vanished);
    assert_eq!(bytes(&zk, &path).await, None);
    write(&shared, 2).await;
    assert_eq!(*shared.read().await.unwrap(), 2);
}

pub(crate) async fn a_dropped_commit_is_settled_by_the_next_one(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared = counter(&zk, &path);
    for existing in [false, true] {
        let mut guard = shared.write().await.unwrap();
        assert_eq!(guard.written().is_some(), existing);
        for number in 1..=3 {
            *guard = number;
            let sent = tokio_test::task::spawn(guard.commit()).poll();
            drop(sent);
        }
        *guard += 10;
        let written = guard.commit().await.unwrap();
        // Each commit first finds out whether the previous commit was done. A commit that is dropped during that time
        // sends nothing, so the number of commits varies.
        assert!((2..=4).contains(&written.commit), "{written:?}");
        assert_eq!(*guard.downgrade().await.unwrap(), 13);
    }
}

pub(crate) async fn a_downgrade_keeps_the_lock_and_the_committed_value(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (counter(&one, &path), counter(&two, &path));
    let mut guard = here.write().await.unwrap();
    let token = guard.lock().fencing_token();
    *guard = 1;
    guard.commit().await.unwrap();
    *guard = 2;
    let guard = guard.downgrade().await.unwrap();
    assert_eq!((*guard, guard.lock().fencing_token(), guard.written().token), (1, token, token));
    assert_eq!(*there.try_read().await.unwrap(), 1);
    assert!(there.try_write().await.unwrap_err().is_would_block());
    guard.release().await.unwrap();
}

pub(crate) async fn failed_tries_and_waits_name_the_holder(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (counter(&one, &path), counter(&two, &path));
    let guard = here.write().label("rotate keys").await.unwrap();
    for error in [there.try_read().await.unwrap_err(), there.try_write().await.unwrap_err()] {
        assert!(error.is_would_block() && error.to_string().contains("rotate keys"), "{error}");
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let on_wait = move |_: &zk_rwlock::queue::Progress| {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let late = there.read().timeout(Duration::from_secs(1)).on_wait(on_wait.clone()).await.unwrap_err();
    assert!(late.is_timeout() && late.to_string().contains("rotate keys"), "{late}");
    let late = there.write().on_wait(on_wait).timeout(Duration::from_secs(1)).await.unwrap_err();
    assert!(late.is_timeout() && late.to_string().contains("rotate keys"), "{late}");
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    guard.release().await.unwrap();
    assert_eq!(*there.try_read().await.unwrap(), 0);
}

pub(crate) async fn reads_can_be_kept(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared: Shared<u64> =
        Shared::builder(&zk, &path).initial(|| 5).lock(|lock| lock.keep(Duration::from_secs(60))).build().unwrap();
    let (one, two) = tokio::join!(shared.read(), shared.clone().read());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!((*one, *two, one.lock().node_path()), (5, 5, two.lock().node_path()));
    drop((one, two));
    write(&shared, 6).await;
    assert_eq!(*shared.read().await.unwrap(), 6);
}

pub(crate) async fn a_plain_thread_reads_and_writes_by_blocking(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared = counter(&zk, &path);
    let thread = std::thread::spawn(move || {
        let mut guard = shared.write().label("of a thread").blocking().unwrap();
        *guard = 3;
        let written = pollster::block_on(guard.commit()).unwrap();
        drop(guard);
        let guard = shared.read().timeout(Duration::from_secs(10)).blocking().unwrap();
        (*guard, *guard.written() == written)
    });
    let joined = tokio::task::spawn_blocking(move || thread.join().unwrap());
    assert_eq!(soon("the thread", joined).await.unwrap(), (3, true));
}

pub(crate) async fn wrong_options_are_refused_unsent(h: &impl Harness) {
    let zk = h.client().await;
    for (path, reason) in [
        ("relative", "must start with '/'"),
        ("/", "cannot be a lock directory"),
        ("/zookeeper/quota", "cannot be a lock directory"),
        ("/a//b", "has an empty component"),
        (&format!("/{}", "x".repeat(1020)), "is longer than 1024 bytes"),
    ] {
        let error = Shared::<u64>::new(&zk, path).unwrap_err().to_string();
        assert!(error.starts_with("invalid input: ") && error.contains(reason), "{error}");
    }
    let path = h.directory();
    let error = Shared::<u64>::builder(&zk, &path).lock(|lock| lock.host("a/b")).build().unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error}");
    for name in ["", "two words", "a\nb", &"x".repeat(65)] {
        let error = Shared::with_format(&zk, &path, Named(name.to_owned())).build().unwrap_err();
        assert!(error.to_string().contains("the name of the format"), "{error}");
    }
    let error = counter(&zk, &path).read().timeout(Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, Error::InvalidInput(_)), "{error}");
    assert_eq!(bytes(&zk, &path).await, None);
}

/// The JSON format under another name.
struct Named(String);

impl Format<u64> for Named {
    fn name(&self) -> &str {
        &self.0
    }

    fn encode(&self, value: &u64) -> Result<Vec<u8>, FormatError> {
        Json.encode(value)
    }

    fn decode(&self, bytes: &[u8]) -> Result<u64, FormatError> {
        Json.decode(bytes)
    }
}

pub(crate) async fn bytes_strings_and_custom_formats_are_stored_as_given(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let at = |name: &str| format!("{path}/{name}");
    let all: Vec<u8> = (0..=255).chain(*b"\n\n").collect();
    let raw: Shared<Vec<u8>> = Shared::with_format(&zk, at("bytes"), Raw).build().unwrap();
    for value in [Vec::new(), b"\n\n".to_vec(), all.clone()] {
        write(&raw, value.clone()).await;
        assert_eq!(*raw.read().await.unwrap(), value);
    }
    let text: Shared<String> = Shared::with_format(&zk, at("bytes"), Raw).build().unwrap();
    assert_refused(&zk, &at("bytes"), &text, |error| matches!(error, ValueError::WrongType { .. })).await;
    write(&text, "\u{1f511}\n\n".to_owned()).await;
    assert_eq!(*text.read().await.unwrap(), "\u{1f511}\n\n");
    let named = Shared::with_format(&zk, at("named"), Named("json-2.0".to_owned())).initial(|| 9).build().unwrap();
    assert_eq!(*named.read().await.unwrap(), 9);
    assert_refused(&zk, &at("named"), &counter(&zk, &at("named")), |error| {
        matches!(error, ValueError::OtherFormat { .. })
    })
    .await;
}

/// Returns the next change, which must be a value.
pub(crate) async fn next<T: Send + Sync + 'static>(changes: &mut ValueChanges<T>) -> Arc<Stored<T>> {
    soon("a value", changes.next()).await.expect("open").expect("a value")
}

pub(crate) async fn next_error<T: Send + Sync + 'static>(changes: &mut ValueChanges<T>) -> Error {
    soon("an error", changes.next()).await.expect("open").err().expect("no value")
}

pub(crate) async fn the_copy_and_the_changes_follow_other_commits(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (counter(&one, &path), counter(&two, &path));
    let here = Copied::of(&here);
    write(&there, 1).await;
    let mut changes = here.changes();
    let first = next(&mut changes).await;
    assert_eq!((**first, &*here.latest().unwrap()), (1, &*first));
    for number in 2..10 {
        let written = write(&there, number).await;
        let value = next(&mut changes).await;
        assert_eq!((**value, value.written()), (number, &written));
        let latest = here.latest().unwrap();
        assert!(Arc::ptr_eq(&latest, &here.latest().unwrap()), "an unchanged value was decoded again");
        assert!(Arc::ptr_eq(&latest, &value));
        assert!(matches!(here.copy_state(), CopyState::Current), "{:?}", here.copy_state());
    }
}

pub(crate) async fn a_poll_of_the_changes_gives_the_newest_value(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (counter(&one, &path), counter(&two, &path));
    write(&there, 1).await;
    let mut changes = here.changes();
    let mut last = **next(&mut changes).await;
    for number in 2..=50 {
        write(&there, number).await;
    }
    while last < 50 {
        let value = **next(&mut changes).await;
        assert!(value > last, "{value} after {last}");
        last = value;
    }
    assert!(tokio_test::task::spawn(changes.next()).poll().is_pending());
}

pub(crate) async fn the_changes_are_a_stream(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (counter(&one, &path), counter(&two, &path));
    let mut changes = tokio_test::task::spawn(here.changes());
    let mut latest = 0;
    for number in 1..5 {
        write(&there, number).await;
        while latest < number {
            match changes.poll_next() {
                Poll::Ready(change) => latest = change.expect("open").map_or(0, |value| **value),
                Poll::Pending => eventually("the waiter is woken", || async { changes.is_woken() }).await,
            }
        }
        assert!(changes.poll_next().is_pending(), "a change was reported twice");
    }
    one.close().await;
    eventually("the waiter is woken", || async { changes.is_woken() }).await;
    assert!(matches!(changes.poll_next(), Poll::Ready(None)));
}

pub(crate) async fn a_commit_updates_the_copy_before_it_returns(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared = counter(&zk, &path);
    let shared = Copied::of(&shared);
    write(&shared, 0).await;
    next(&mut shared.changes()).await;
    let mut guard = shared.write().await.unwrap();
    for number in 1..20 {
        *guard = number;
        let written = guard.commit().await.unwrap();
        assert_eq!(shared.latest().unwrap().written(), &written);
        assert_eq!(**shared.clone().latest().unwrap(), number);
    }
}

pub(crate) async fn the_changes_report_a_value_made_later(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let path = format!("{path}/not/there/yet");
    let (here, there): (Shared<u64>, _) = (Shared::new(&one, &path).unwrap(), counter(&two, &path));
    let here = Copied::of(&here);
    let mut changes = here.changes();
    assert_eq!(value_error(&next_error(&mut changes).await), &ValueError::Unset);
    assert!(here.latest().is_none());
    assert!(matches!(here.copy_state(), CopyState::Behind(_)), "{:?}", here.copy_state());
    assert_eq!(bytes(&two, &path).await, None, "an observer wrote a value");
    write(&there, 1).await;
    assert_eq!(**next(&mut changes).await, 1);
    assert_eq!(**here.latest().unwrap(), 1);
}

pub(crate) async fn the_changes_report_a_deletion_and_foreign_bytes(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (counter(&one, &path), counter(&two, &path));
    let here = Copied::of(&here);
    write(&there, 1).await;
    let mut changes = here.changes();
    next(&mut changes).await;
    assert_eq!(**here.latest().unwrap(), 1);

    session(&two).await.delete(here.value_path()).await.unwrap();
    assert_eq!(value_error(&next_error(&mut changes).await), &ValueError::Vanished);
    assert_eq!(**here.latest().unwrap(), 1);
    assert!(matches!(here.copy_state(), CopyState::Behind(_)));
    write(&there, 2).await;
    assert_eq!(**next(&mut changes).await, 2);

    put(&two, &path, b"rubbish").await;
    let error = next_error(&mut changes).await;
    assert!(matches!(value_error(&error), ValueError::Foreign { .. }), "{error}");
    assert_eq!(**here.latest().unwrap(), 2);
    assert!(matches!(here.copy_state(), CopyState::Behind(_)));
    write(&there, 3).await;
    assert_eq!(**next(&mut changes).await, 3);
    assert!(matches!(here.copy_state(), CopyState::Current));

    // A valid value, but of another type.
    let text: Shared<String> = Shared::new(&two, &path).unwrap();
    write(&text, "three".to_owned()).await;
    let error = next_error(&mut changes).await;
    assert!(matches!(value_error(&error), ValueError::WrongType { .. }), "{error}");
    assert_eq!(**here.latest().unwrap(), 3);
    assert!(matches!(here.copy_state(), CopyState::Behind(_)));
    write(&there, 4).await;
    assert_eq!(**next(&mut changes).await, 4);
}

pub(crate) async fn a_deleted_value_is_not_given_to_new_observers(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let shared: Shared<u64> = Shared::new(&one, &path).unwrap();
    let here = Copied::of(&shared);
    let mut earlier = here.changes();
    next_error(&mut earlier).await;
    for value in [41, 42] {
        write(&shared, value).await;
        assert_eq!(**next(&mut earlier).await, value);
    }
    assert_eq!(**here.latest().unwrap(), 42);
    let mut made_before = here.changes();

    session(&two).await.delete(here.value_path()).await.unwrap();
    assert_eq!(value_error(&next_error(&mut earlier).await), &ValueError::Vanished);
    assert_eq!(**here.latest().unwrap(), 42);
    for changes in [&mut made_before, &mut here.changes()] {
        assert_eq!(value_error(&next_error(changes).await), &ValueError::Vanished);
    }
    assert_eq!(value_error(&soon("an error", here.live()).await.expect_err("no value")), &ValueError::Vanished);
    let mut later = task::spawn(here.wait_for(|value| *value >= 42).into_future());
    assert_pending!(later.poll());
    write(&shared, 43).await;
    assert_eq!(**soon("the value", later).await.unwrap(), 43);

    let shared = Shared::builder(&one, &path).initial(|| 7_u64).build().unwrap();
    let mut earlier = shared.changes();
    next(&mut earlier).await;
    session(&two).await.delete(shared.value_path()).await.unwrap();
    assert_eq!(value_error(&next_error(&mut earlier).await), &ValueError::Vanished);
    assert_eq!(
        value_error(&next_error(&mut shared.changes()).await),
        &ValueError::Vanished,
        "the vanished value was written again"
    );
    put(&two, &path, b"").await;
    assert_eq!(value_error(&next_error(&mut earlier).await), &ValueError::Unset);
    assert_eq!(**next(&mut shared.changes()).await, 7, "the value was not written after an operator had made room");
    assert_eq!(**next(&mut earlier).await, 7);
}

pub(crate) async fn the_changes_report_a_commit_after_the_reconnect(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (counter(&one, &path), counter(&two, &path));
    let here = Copied::of(&here);
    write(&there, 1).await;
    let mut changes = here.changes();
    next(&mut changes).await;
    h.cut(&one).await;
    write(&there, 2).await;
    eventually("the copy says so", || async { matches!(here.copy_state(), CopyState::Disconnected) }).await;
    assert_eq!(**here.latest().unwrap(), 1);
    h.heal(&one).await;
    assert_eq!(**next(&mut changes).await, 2);
    eventually("and that it is over", || async { matches!(here.copy_state(), CopyState::Current) }).await;
    write(&there, 3).await;
    assert_eq!(**next(&mut changes).await, 3);
}

pub(crate) async fn the_end_of_a_session_does_not_end_the_watch(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (counter(&one, &path), counter(&two, &path));
    let here = Copied::of(&here);
    write(&there, 1).await;
    let mut changes = here.changes();
    next(&mut changes).await;
    h.expire(&one).await;
    for number in 2..5 {
        write(&there, number).await;
        let mut value = **next(&mut changes).await;
        while value < number {
            value = **next(&mut changes).await;
        }
        assert_eq!((value, **here.latest().unwrap()), (number, number));
    }
    assert!(matches!(here.copy_state(), CopyState::Current), "{:?}", here.copy_state());
}

pub(crate) async fn closing_ends_the_changes_and_keeps_the_last_value(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared = counter(&zk, &path);
    let shared = Copied::of(&shared);
    write(&shared, 1).await;
    let mut changes = shared.changes();
    next(&mut changes).await;
    zk.close().await;
    assert!(soon("the end", changes.next()).await.is_none());
    assert!(soon("the end", changes.next()).await.is_none());
    assert_eq!(**shared.latest().unwrap(), 1);
    assert!(matches!(shared.copy_state(), CopyState::Over(Error::Closed(_))), "{:?}", shared.copy_state());
}

pub(crate) async fn the_copy_never_goes_back_for_any_of_many_threads(h: &impl Harness) {
    const LAST: u64 = 100;
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (counter(&one, &path), counter(&two, &path));
    let here = Copied::of(&here);
    write(&there, 0).await;
    next(&mut here.changes()).await;
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let here = here.clone();
            std::thread::spawn(move || {
                let mut last = 0;
                while last < LAST {
                    let value = **here.latest().expect("has come");
                    assert!(value >= last, "{value} after {last}");
                    last = value;
                    std::thread::yield_now();
                }
            })
        })
        .collect();
    for number in 1..=LAST {
        write(&there, number).await;
    }
    let joined = tokio::task::spawn_blocking(|| threads.into_iter().for_each(|thread| thread.join().unwrap()));
    soon("all threads", joined).await.unwrap();
}
