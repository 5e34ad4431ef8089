//! What a program sees of the library besides the lock: errors, paths, deadlines, and the blocking form of every call.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zk_rwlock::{Error, Failure, Loss, Memory, Mode, MultiLock, RwLock, Shared, Survey, ValueError, ZooKeeper};

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_program_without_a_runtime_can_do_all_that_others_can() {
    let zk = Memory::new();
    let lock = RwLock::new(&zk, "/locks/config").unwrap();
    let writer = lock.write().timeout(LONG).label("migrate").blocking().unwrap();
    writer.transaction().create("/config", "v1").blocking_commit().unwrap();
    assert_eq!(writer.blocking_data("/config").unwrap().unwrap().data, b"v1");
    assert_eq!(lock.queue().blocking().unwrap().holders().count(), 1);
    assert!(lock.try_read().blocking().unwrap_err().is_would_block());
    let reader = writer.blocking_downgrade().unwrap();
    lock.try_read().blocking().unwrap().blocking_release().unwrap();
    reader.blocking_release().unwrap();

    let both = MultiLock::new(&zk, [("/locks/a", Mode::Write), ("/locks/b", Mode::Read)]).unwrap();
    let guard = both.blocking_lock().unwrap();
    assert_eq!(guard.blocking_data("/config").unwrap().unwrap().data, b"v1");
    guard.blocking_release().unwrap();

    let limit: Shared<u32> = Shared::builder(&zk, "/limit").initial(|| 1).build().unwrap();
    let mut value = limit.write().blocking().unwrap();
    *value = 2;
    value.blocking_commit().unwrap();
    let value = value.blocking_downgrade().unwrap();
    assert_eq!(*value, 2);
    value.blocking_release().unwrap();
    zk.blocking_close();
    assert!(matches!(lock.blocking_read(), Err(Error::Closed(_))));
}

#[test]
fn a_connection_that_cannot_be_is_refused_without_a_runtime_too() {
    assert!(matches!(ZooKeeper::blocking_connect("no list"), Err(Error::InvalidInput(_))));
}

#[tokio::test]
async fn a_deadline_that_has_passed_sends_nothing() {
    let zk = Memory::new();
    let lock = RwLock::new(&zk, "/locks/config").unwrap();
    // A client cannot be cut off before it has a session.
    lock.read().await.unwrap().release().await.unwrap();
    zk.cut();
    let (past, soon) = (Instant::now(), Instant::now() + Duration::from_millis(20));
    assert!(lock.write().deadline(past).await.unwrap_err().is_timeout());
    assert!(lock.try_write().deadline(past).await.unwrap_err().is_timeout());
    assert!(lock.read().deadline(soon).await.unwrap_err().is_timeout());
    assert!(lock.queue().deadline(soon).await.unwrap_err().is_timeout());
    zk.heal();
    assert_eq!(lock.queue().await.unwrap().members.len(), 0);
    // What was set last counts.
    assert!(lock.write().deadline(past).timeout(LONG).await.unwrap().is_held());
}

#[test]
fn a_path_may_be_any_kind_of_text() {
    let zk = Memory::new();
    let (owned, counted): (String, Arc<str>) = ("/locks/owned".to_owned(), "/locks/counted".into());
    for lock in [RwLock::new(&zk, &owned), RwLock::new(&zk, owned.clone()), RwLock::builder(&zk, &counted).build()] {
        assert!(lock.unwrap().path().starts_with("/locks/"));
    }
    let both = MultiLock::builder(&zk).read(&owned).write(&counted).build().unwrap();
    assert_eq!(both.paths().count(), 2);
    assert!(Shared::<u32>::new(&zk, &owned).is_ok());
    let guard = both.blocking_lock().unwrap();
    guard.transaction().create(String::from("/made"), "").check_exists(&owned).blocking_commit().unwrap();
    assert_eq!(Survey::below(&zk, String::from("/locks")).blocking().unwrap().queues.len(), 2);
}

#[test]
fn an_error_has_a_source_and_a_kind() {
    let kind = |error: Error| io::Error::from(error).kind();
    let (waited, blockers) = (LONG, Default::default());
    assert_eq!(kind(Error::Timeout { waited, blockers }), io::ErrorKind::TimedOut);
    assert_eq!(kind(Error::WouldBlock { blockers: Default::default() }), io::ErrorKind::WouldBlock);
    assert_eq!(kind(Error::InvalidInput("x".to_owned())), io::ErrorKind::InvalidInput);
    assert_eq!(kind(Error::Unreachable("x".to_owned())), io::ErrorKind::NotConnected);
    let refused = |reason| Error::TransactionRefused { index: 0, path: "/a".to_owned(), reason };
    assert_eq!(kind(refused(Failure::NoNode)), io::ErrorKind::NotFound);
    assert_eq!(kind(refused(Failure::NodeExists)), io::ErrorKind::AlreadyExists);

    let lost = || Error::Lost(Loss::Removed);
    let source = lost();
    assert!(matches!(source.source().unwrap().downcast_ref(), Some(Loss::Removed)));
    let one = Error::OneOfMany { path: "/a".to_owned(), error: Box::new(lost()) };
    assert!(one.source().unwrap().source().unwrap().is::<Loss>());
    assert_eq!(kind(one), kind(lost()), "an error of one lock of many has the kind of that lock's error");
    let value = Error::Value { path: "/v".to_owned(), error: ValueError::Unset };
    assert!(value.source().unwrap().is::<ValueError>());
    let back = io::Error::from(value).into_inner().unwrap();
    assert!(back.downcast::<Error>().unwrap().value_error().is_some());
}
