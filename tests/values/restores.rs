//! An ensemble that is restored to an earlier state. Copies of the value, and observers of its changes, go back to that state as
//! well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use zk_rwlock::Memory;
use zk_rwlock::coordinator::Failure;
use zk_rwlock::shared::CopyState;

use crate::checks::{counter, next, session, write};
use support::hindered::{Hindered, Request};
use support::scene::{CALM, connect, connect_with, eventually, lock_at, soon};
use support::server::Server;
use support::wire::Proxy;

/// The timeout of sessions that expire in a test.
const SHORT: Duration = Duration::from_secs(2);

/// The timeout of sessions in tests that wait for the next check at the leader.
const CHECKED: Duration = Duration::from_secs(10);

#[support::judged]
async fn a_copy_goes_back_with_a_restored_ensemble() {
    for is_made_anew in [false, true] {
        let (zk, path) = (Memory::new(), "/restored");
        let (here, there) = (counter(&zk, path), counter(&zk.connect(), path));
        write(&there, 20).await;
        let backup = zk.faults().back_up();
        if is_made_anew {
            zk.faults().remove("/restored/value");
        }
        for value in 100..=110 {
            write(&there, value).await;
        }
        let live = soon("the value", here.live()).await.unwrap();
        let mut changes = live.changes();
        assert_eq!((**live.get(), **next(&mut changes).await), (110, 110));
        zk.faults().restore(&backup);
        assert_eq!((**next(&mut changes).await, **live.get()), (20, 20));
        assert!(matches!(live.state(), CopyState::Current), "{:?}", live.state());
        // The copy still shows the client's own commits as soon as these commits return.
        here.update(|value| *value += 1).await.unwrap();
        assert_eq!(**live.get(), 21);
        assert_eq!(**soon("the commit", here.wait_for(|value| *value == 21)).await.unwrap(), 21);
        // The next restore undoes these commits.
        zk.faults().restore(&backup);
        assert_eq!(**soon("the value", here.wait_for(|value| *value == 20)).await.unwrap(), 20);
    }
}

#[support::judged]
async fn a_copy_rolls_back_its_own_unread_commit() {
    let (zk, path) = (Memory::new(), "/restored");
    let is_lost = Arc::new(AtomicBool::new(false));
    let hinders = Arc::clone(&is_lost);
    let line = Hindered::new(&zk, move |asked| {
        let loses = hinders.load(Ordering::Relaxed) && matches!(asked, Request::Data(_));
        loses.then(|| Failure::Unknown("lost".to_owned()))
    });
    let here = counter(&line, path);
    write(&here, 20).await;
    let backup = zk.faults().back_up();
    let live = soon("the value", here.live()).await.unwrap();
    let mut guard = soon("the lock", here.write()).await.unwrap();
    *guard += 1;
    is_lost.store(true, Ordering::Relaxed);
    soon("the commit", guard.commit()).await.unwrap();
    assert_eq!(**live.get(), 21);
    zk.faults().restore(&backup);
    is_lost.store(false, Ordering::Relaxed);
    eventually("the copy goes back", || async { **live.get() == 20 }).await;
}

#[support::judged]
async fn a_copy_is_current_only_after_a_read_on_the_session() {
    let (zk, path) = (Memory::new(), "/current");
    write(&counter(&zk.connect(), path), 1).await;
    let is_lost = Arc::new(AtomicBool::new(false));
    let hinders = Arc::clone(&is_lost);
    let line = Hindered::new(&zk, move |asked| {
        let loses = hinders.load(Ordering::Relaxed) && matches!(asked, Request::Transact(_) | Request::Data(_));
        loses.then(|| Failure::Unknown("lost".to_owned()))
    });
    let live = soon("the value", counter(&line, path).live()).await.unwrap();
    assert!(matches!(live.state(), CopyState::Current));
    is_lost.store(true, Ordering::Relaxed);
    zk.faults().expire();
    assert!(matches!(live.state(), CopyState::Disconnected), "{:?}", live.state());
    is_lost.store(false, Ordering::Relaxed);
    eventually("the copy was read", || async { matches!(live.state(), CopyState::Current) }).await;
}

#[support::judged]
async fn a_copy_goes_back_with_a_restored_server() {
    let server = Server::start();
    let here = counter(&connect_with(&server.address(), SHORT).await, "/restored/server");
    write(&here, 20).await;
    server.back_up();
    let there = connect(&server.address()).await;
    for value in 100..=110 {
        write(&counter(&there, "/restored/server"), value).await;
    }
    let live = soon("the value", here.live()).await.unwrap();
    eventually("the last commit", || async { **live.get() == 110 }).await;
    server.restore();
    // The restored server refuses a client that has seen a later zxid than the server's last. So the client's session
    // expires.
    eventually("the copy goes back", || async { **live.get() == 20 }).await;
    eventually("the copy is current", || async { matches!(live.state(), CopyState::Current) }).await;
}

/// The copy is cut off during the restore, and its session lives on. If the new commit's transaction has the number of a lost
/// transaction that the copy has seen, no event reports the new commit.
#[support::judged]
async fn a_copy_rolls_back_to_another_commit_of_its_version() {
    tokio::join!(follows_a_server_that_lost_a_commit(false), follows_a_server_that_lost_a_commit(true));
}

async fn follows_a_server_that_lost_a_commit(is_silent: bool) {
    const PATH: &str = "/restored/lost";
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let zk = connect_with(&proxy.address(), if is_silent { CHECKED } else { CALM }).await;
    let here = counter(&zk, PATH);
    write(&here, 1).await;
    server.back_up();
    write(&counter(&connect(&server.address()).await, PATH), 2).await;
    let live = soon("the value", here.live()).await.unwrap();
    eventually("the last commit", || async { **live.get() == 2 }).await;
    let before = session(&zk).await.id();
    proxy.cut();
    server.restore();
    let there = connect(&server.address()).await;
    let other = lock_at(&there, "/restored/other");
    if is_silent {
        write(&counter(&there, PATH), 3).await;
    }
    // After these 20 uses of the other lock, the zxid is higher than every zxid that the copy saw before the restore.
    for _ in 0..20 {
        other.write().await.unwrap().release().await.unwrap();
    }
    if !is_silent {
        write(&counter(&there, PATH), 3).await;
    }
    proxy.heal();
    eventually("the copy follows", || async { **live.get() == 3 }).await;
    // On a busy machine, the session with the shorter timeout may expire.
    assert!(is_silent || session(&zk).await.id() == before, "the client has another session");
}
