//! Ghosts: nodes that a server still shows although the leader has removed them. Calls that do not wait, and waits with a short
//! timeout, leave such a server. If no other server is left, they end with an error that says so. The tests run in virtual time.

use std::future::IntoFuture;
use std::sync::Mutex;
use std::time::Duration;

use support::hindered::{Count, Hindered, Request, refused_at};
use support::polled::{now, read, write, writing};
use tokio::task::{JoinHandle, spawn};
use tokio::time::{Instant, sleep, timeout};
use tokio_test::assert_pending;
use zk_rwlock::coordinator::{Coordinator, Failure, Operation};
use zk_rwlock::{Error, Leadership, Memory, Mode, MultiLock, RwLock, Semaphore};

use crate::unheard::{PATH, SECOND, diverged, limit, lock_of, sole_node, two};

/// Returns another client, whose server goes on showing all nodes that are now at and below `path`.
fn client_that_shows(theirs: &Memory, path: &str) -> Memory {
    let ours = theirs.connect();
    drop(now(ours.session_slot(0)).expect("open"));
    ours.faults().freeze(path);
    ours
}

/// Returns a client whose server goes on showing the node of a writer that has left, and that node's path.
fn client_that_shows_a_writer(theirs: &Memory) -> (Memory, String) {
    let held = write(&lock_of(theirs));
    let node = held.node_path();
    let ours = client_that_shows(theirs, &node);
    drop(held);
    assert!(theirs.children(PATH).is_empty());
    (ours, node)
}

/// Returns a client, the number of its transactions that contain only checks, and the number of its creates.
fn counted(zk: &Memory) -> (Hindered, Count, Count) {
    let (checks, creates) = (Count::default(), Count::default());
    let (checked, created) = (checks.clone(), creates.clone());
    let line = Hindered::new(zk, move |asked| {
        match asked {
            Request::Transact(all) if all.iter().all(|it| matches!(it, Operation::Check { .. })) => {
                checked.one_more();
            }
            Request::Create(..) => {
                created.one_more();
            }
            _ => {}
        }
        None
    });
    (line, checks, creates)
}

// Calls that do not wait for other contenders, and that meet a ghost.

#[tokio::test(start_paused = true)]
async fn a_try_leaves_a_server_with_a_ghost() {
    for attempt in 0..5 {
        let errors = diverged();
        let theirs = Memory::new();
        let (ours, node) = client_that_shows_a_writer(&theirs);
        let lock = lock_of(&ours);
        let hour = 3_600 * SECOND;
        match attempt {
            0 => drop(lock.try_write().await.expect("free")),
            1 => drop(lock.try_read().await.expect("free")),
            2 => drop(lock.try_once_in(hour).await.expect("free").due().expect("never done")),
            3 => drop(MultiLock::new([(&lock, Mode::Write)]).expect("valid").try_lock().await.expect("free")),
            _ => {
                let kept = RwLock::builder(&ours, PATH).keep(hour).build().expect("valid");
                drop(kept.try_write().await.expect("free"));
            }
        }
        sleep(SECOND).await;
        assert_eq!((errors(), theirs.children(PATH).len()), (vec![node], 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_asks_the_leader_once_only_if_the_lock_is_taken() {
    let theirs = Memory::new();
    let (line, checks, creates) = counted(&theirs.connect());
    let lock = RwLock::new(&line, PATH).expect("valid");
    drop(lock.try_write().await.expect("free"));
    drop(lock.try_read().await.expect("free"));
    sleep(SECOND).await;
    assert_eq!(checks.now(), 0);
    let made = creates.now();
    let held = write(&lock_of(&theirs));
    for tries in 1..4 {
        assert!(lock.try_write().await.expect_err("taken").is_would_block());
        assert_eq!((checks.now(), creates.now()), (tries, made));
    }
    drop(held);
}

/// Whenever the try asks the leader for the writer that it has listed, this writer has left, and another one holds.
#[tokio::test(start_paused = true)]
async fn a_try_on_a_lock_that_always_changes_hands_ends_after_three_listings() {
    let theirs = Memory::new();
    let holder = Mutex::new(Some(write(&lock_of(&theirs))));
    let (listings, checks) = (Count::default(), Count::default());
    let (listed, checked) = (listings.clone(), checks.clone());
    let line = Hindered::new(&theirs.connect(), move |asked| {
        match asked {
            Request::Children(PATH) => _ = listed.one_more(),
            Request::Transact([Operation::Check { .. }]) => {
                checked.one_more();
                let mut holder = holder.lock().expect("nothing panics here");
                drop(holder.take());
                *holder = Some(write(&lock_of(&theirs)));
            }
            _ => {}
        }
        None
    });
    let error = RwLock::new(&line, PATH).expect("valid").try_write().await.expect_err("taken");
    assert!(error.is_would_block(), "{error}");
    // After each check, one more listing shows whether the server has to be left.
    assert_eq!((checks.now(), listings.now()), (3, 3 + 3));
}

#[tokio::test(start_paused = true)]
async fn a_try_names_holders_and_no_ghost() {
    let theirs = Memory::new();
    let other = lock_of(&theirs);
    let ghosts: Vec<_> = (0..12).map(|_| read(&other)).collect();
    let ours = theirs.connect();
    drop(now(ours.session_slot(0)).expect("open"));
    ghosts.iter().for_each(|ghost| ours.faults().freeze(ghost.node_path()));
    drop(ghosts);
    let holder = read(&other);
    let error = lock_of(&ours).try_write().await.expect_err("taken");
    let Error::WouldBlock { blockers } = &error else { panic!("{error:?}") };
    let named: Vec<_> = blockers.first.iter().map(|it| format!("{PATH}/{}", it.node)).collect();
    assert_eq!((blockers.ahead, named), (1, vec![holder.node_path()]));
    drop(holder);
    drop(lock_of(&ours).try_write().await.expect("free"));
}

#[tokio::test(start_paused = true)]
async fn a_server_with_a_ghost_is_left_and_logged_once() {
    let errors = diverged();
    let theirs = Memory::new();
    let (ours, node) = client_that_shows_a_writer(&theirs);
    let (line, checks, _) = counted(&ours);
    let lock = RwLock::new(&line, PATH).expect("valid");
    drop(lock.try_read().await.expect("free"));
    sleep(SECOND).await;
    let before = checks.now();
    for _ in 0..3 {
        drop(lock.try_read().await.expect("free"));
        drop(lock.try_write().await.expect("free"));
        let began = Instant::now();
        drop(lock.write().await.expect("free"));
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
    assert_eq!((checks.now() - before, errors()), (0, vec![node]));
}

/// The server still shows the writer's node, and hides the reader's node that replaced it by the downgrade. The reader holds, so
/// a writer must not be granted.
#[tokio::test(start_paused = true)]
async fn a_try_write_fails_where_a_downgrade_was_missed() {
    let theirs = Memory::new();
    let held = write(&lock_of(&theirs));
    let ours = client_that_shows(&theirs, &held.node_path());
    ours.faults().freeze(held.node_path().replace("-WRITE-", "-READ-"));
    let reader = held.downgrade().await.expect("held");
    for _ in 0..3 {
        assert!(lock_of(&ours).try_write().await.expect_err("taken").is_would_block());
        drop(lock_of(&ours).try_read().await.expect("beside the reader"));
    }
    assert!(lock_of(&ours).write().timeout(5 * SECOND).await.expect_err("taken").is_timeout());
    assert!(reader.is_held());
    drop(reader);
    drop(lock_of(&ours).try_write().await.expect("free"));
}

#[tokio::test(start_paused = true)]
async fn a_ghost_behind_an_unreadable_node_is_found() {
    let theirs = Memory::new();
    let other = lock_of(&theirs);
    let (first, ghost) = (read(&other), read(&other));
    let ours = client_that_shows(&theirs, &ghost.node_path());
    let denied = first.node_path();
    let line = Hindered::new(&ours, move |asked| match asked {
        Request::Transact(all) => {
            let index = all.iter().position(|it| matches!(it, Operation::Check { path, .. } if *path == denied))?;
            Some(refused_at(index, Failure::NoAuth(Box::default())))
        }
        _ => None,
    });
    drop(ghost);
    let error = RwLock::new(&line, PATH).expect("valid").try_write().await.expect_err("taken");
    let Error::WouldBlock { blockers } = &error else { panic!("{error:?}") };
    assert_eq!((blockers.ahead, format!("{PATH}/{}", blockers.first[0].node)), (1, first.node_path()));
}

// Acquisitions with a short timeout that meet a ghost.

#[tokio::test(start_paused = true)]
async fn a_short_wait_leaves_a_server_with_a_ghost() {
    for is_kept in [false, true] {
        for limit in [SECOND / 50, SECOND, 5 * SECOND] {
            let errors = diverged();
            let theirs = Memory::new();
            let (ours, node) = client_that_shows_a_writer(&theirs);
            let builder = RwLock::builder(&ours, PATH);
            let lock = if is_kept { builder.keep(SECOND) } else { builder }.build().expect("valid");
            let began = Instant::now();
            let read = lock.read().timeout(limit).await;
            drop(read.unwrap_or_else(|error| panic!("{is_kept}, {limit:?}: {error}")));
            assert!(began.elapsed() < limit);
            drop(lock.write().timeout(limit).await.expect("granted"));
            let both = MultiLock::new([(&lock, Mode::Write)]).expect("valid");
            drop(both.lock().timeout(limit).await.expect("granted"));
            sleep(2 * SECOND).await;
            assert_eq!((errors(), theirs.children(PATH).len()), (vec![node], 0));
        }
    }
}

/// The client is cut off when the leader is first asked for ghosts, so its acquisition has not listed the queue yet.
#[tokio::test(start_paused = true)]
async fn a_wait_that_enters_late_leaves_a_server_with_a_ghost() {
    let (ours, theirs) = two();
    let held = write(&lock_of(&theirs));
    ours.faults().cut();
    let waiter = spawn(lock_of(&ours).write().timeout(5 * SECOND).into_future());
    sleep(7 * SECOND / 2).await;
    ours.faults().heal();
    ours.faults().freeze(held.node_path());
    drop(held);
    drop(waiter.await.expect("no panic").expect("granted"));
}

/// The ghosts are the nodes of one expired session: a holder and 20 waiters. An acquisition with a short timeout is
/// granted although all of them are ahead.
#[tokio::test(start_paused = true)]
async fn a_short_wait_leaves_a_server_with_many_ghosts() {
    let theirs = Memory::new();
    let (dying, other) = (theirs.connect(), lock_of(&theirs));
    let dead = lock_of(&dying);
    let held = write(&dead);
    let mut ghosts: Vec<_> = (0..20).map(|_| writing(&dead)).collect();
    ghosts.iter_mut().for_each(|ghost| assert_pending!(ghost.poll()));
    let ours = theirs.connect();
    drop(now(ours.session_slot(0)).expect("open"));
    theirs.children(PATH).iter().for_each(|name| ours.faults().freeze(format!("{PATH}/{name}")));
    dying.faults().expire();
    drop((held, ghosts));
    let began = Instant::now();
    drop(lock_of(&ours).write().timeout(5 * SECOND).await.expect("granted"));
    assert!((3 * SECOND..4 * SECOND).contains(&began.elapsed()), "{:?}", began.elapsed());

    let holder = write(&other);
    let late = lock_of(&ours).write().timeout(5 * SECOND).await.expect_err("taken");
    let Error::Timeout { blockers, .. } = &late else { panic!("{late:?}") };
    assert_eq!((blockers.ahead, format!("{PATH}/{}", blockers.first[0].node)), (1, holder.node_path()));
}

/// The contender stands behind a holder, and the server shows a ghost ahead of both. The error must name only the
/// holder.
#[tokio::test(start_paused = true)]
async fn the_error_of_a_timeout_names_no_ghost() {
    let theirs = Memory::new();
    let (ours, _) = client_that_shows_a_writer(&theirs);
    let holder = write(&lock_of(&theirs));
    for _ in 0..2 {
        let late = lock_of(&ours).write().timeout(SECOND).await.expect_err("taken");
        let Error::Timeout { blockers, .. } = &late else { panic!("{late:?}") };
        assert_eq!((blockers.ahead, format!("{PATH}/{}", blockers.first[0].node)), (1, holder.node_path()), "{late}");
        assert!(late.to_string().contains("held by") && !late.to_string().contains("waits"), "{late}");
    }
}

// Ghosts in the queue of a semaphore and among its permits.

#[tokio::test(start_paused = true)]
async fn a_ghost_permit_is_taken_at_once() {
    for waits in [false, true] {
        for permits in [1, 20, 600] {
            let errors = diverged();
            let theirs = Memory::new();
            let other = limit(&theirs, permits);
            let mut held = Vec::new();
            for _ in 0..permits {
                held.push(other.acquire().await.expect("free"));
            }
            let ours = theirs.connect();
            drop(now(ours.session_slot(0)).expect("open"));
            let ghost = held.swap_remove(held.len() / 2);
            let node = ghost.node_path();
            ours.faults().freeze(&node);
            let semaphore = limit(&ours, permits);
            assert!(semaphore.try_acquire().await.expect_err("taken").is_would_block());
            assert!(semaphore.acquire().timeout(SECOND).await.expect_err("taken").is_timeout());
            drop(ghost);
            let permit = match waits {
                false => semaphore.try_acquire().await.expect("free"),
                true => semaphore.acquire().timeout(SECOND).await.expect("granted"),
            };
            assert!(held.iter().all(|it| it.is_held()) && permit.is_held());
            assert!(semaphore.try_acquire().await.expect_err("taken").is_would_block());
            sleep(SECOND).await;
            assert_eq!(errors(), [node]);
        }
    }
}

/// The permit is taken, and its release missed by the server, after the try has found the permit free.
#[test]
fn a_try_leaves_a_server_with_a_late_ghost_permit() {
    let theirs = Memory::new();
    let (ours, other) = (theirs.connect(), limit(&theirs, 1));
    drop(now(other.acquire()).expect("free"));
    let frozen = ours.clone();
    let line = Hindered::new(&ours, move |asked| {
        if let Request::Create(path, _) = asked
            && path.starts_with("/limit/queue/")
        {
            let permit = now(other.acquire()).expect("free");
            frozen.faults().freeze(permit.node_path());
        }
        None
    });
    assert!(now(Semaphore::new(&line, "/limit", 1).expect("valid").try_acquire()).expect("free").is_held());
}

/// The server has missed the transaction in which a contender left the queue and took a permit. So the server shows the
/// contender's place in the queue as a ghost, and hides the permit. The permit must count, whether or not the session already
/// knows the ghost.
#[tokio::test(start_paused = true)]
async fn a_permit_hidden_beside_a_queue_ghost_counts() {
    let theirs = Memory::new();
    let other = limit(&theirs, 1);
    let first = now(other.acquire()).expect("free");
    let mut second = tokio_test::task::spawn(other.acquire().into_future());
    assert_pending!(second.poll());
    let place = theirs.children("/limit/queue").into_iter().find(|name| name.ends_with('1')).expect("the second");
    let (owner, _) = place.split_once("-WRITE-").expect("a contender");
    let ours = client_that_shows(&theirs, &format!("/limit/queue/{place}"));
    ours.faults().freeze(format!("/limit/permits/{owner}-PERMIT-1"));
    drop(first);
    let std::task::Poll::Ready(Ok(second)) = second.poll() else { panic!("the waiter's turn has come") };
    let semaphore = limit(&ours, 1);
    for _ in 0..2 {
        assert!(semaphore.try_acquire().await.expect_err("taken").is_would_block());
        assert!(semaphore.acquire().timeout(SECOND).await.expect_err("taken").is_timeout());
    }
    assert!(second.is_held());
    drop(second);
    drop(semaphore.try_acquire().await.expect("free"));
}

/// Returns a client whose server shows a waiter for the only permit, although that waiter has left and the permit is free.
fn client_that_shows_a_waiter_for_permits() -> Memory {
    let theirs = Memory::new();
    let other = limit(&theirs, 1);
    let permit = now(other.acquire()).expect("free");
    let mut ghost = tokio_test::task::spawn(other.acquire().into_future());
    assert_pending!(ghost.poll());
    let ours = client_that_shows(&theirs, &sole_node(&theirs, "/limit/queue"));
    drop((ghost, permit));
    ours
}

#[tokio::test(start_paused = true)]
async fn a_ghost_in_the_queue_of_a_semaphore_blocks_nobody() {
    let ours = client_that_shows_a_waiter_for_permits();
    drop(limit(&ours, 1).try_acquire().await.expect("free"));
    drop(limit(&ours, 1).acquire().timeout(SECOND).await.expect("free"));
}

/// Each transaction takes 250 ms. Within its timeout, the acquisition must find time for two checks of the ghost at the
/// leader, a listing of the permits, and the exchange for a permit.
#[tokio::test(start_paused = true)]
async fn a_short_wait_behind_a_ghost_tolerates_slow_commits() {
    let ours = client_that_shows_a_waiter_for_permits();
    let ours = Hindered::new(&ours, |_| None).with_commits_that_take(SECOND / 4);
    drop(Semaphore::new(&ours, "/limit", 1).expect("valid").acquire().timeout(5 * SECOND).await.expect("in time"));
}

// Ghosts of elected leaders, and holders that wait until a contender comes.

/// Leads until the task is aborted.
fn leads(zk: &Memory) -> JoinHandle<Result<(), Error>> {
    let leadership = Leadership::new(zk, PATH).expect("valid");
    spawn(async move { leadership.lead(|_| std::future::pending::<()>()).await.map(drop) })
}

#[tokio::test(start_paused = true)]
async fn the_first_reported_leader_is_no_ghost() {
    for another_leads in [false, true] {
        let (ours, theirs) = two();
        let (first, _session) = (leads(&theirs), ours.session_slot(0).await.expect("open"));
        sleep(SECOND).await;
        ours.faults().freeze(sole_node(&theirs, PATH));
        first.abort();
        sleep(SECOND).await;
        let _second = another_leads.then(|| leads(&theirs));
        sleep(SECOND).await;
        let [here, there] = [&ours, &theirs].map(|zk| Leadership::new(zk, PATH).expect("valid"));
        let leader = there.leader().await.expect("readable");
        assert_eq!(here.changes().next().await.expect("open").expect("readable"), leader);
        assert_eq!((here.leader().await.expect("readable"), leader.is_some()), (leader, another_leads));
    }
}

#[tokio::test(start_paused = true)]
async fn no_call_returns_a_ghost_as_leader() {
    let (ours, theirs) = two();
    let first = leads(&theirs);
    sleep(SECOND).await;
    let here = Leadership::new(&ours, PATH).expect("valid");
    let mut changes = here.changes();
    let dead = changes.next().await.expect("open").expect("readable").expect("the candidate leads").term;
    ours.faults().freeze(sole_node(&theirs, PATH));
    first.abort();
    sleep(SECOND).await;
    let _second = leads(&theirs);
    sleep(SECOND).await;
    assert!(here.leader().await.expect("readable").expect("the candidate leads").term > dead);
    sleep(12 * SECOND).await;
    let reported = changes.next().await.expect("open").expect("readable").expect("the candidate leads").term;
    assert!(reported > dead);
    assert_eq!(here.leader().await.expect("readable").expect("the candidate leads").term, reported);
}

#[tokio::test(start_paused = true)]
async fn a_ghost_does_not_contend_at_another_server() {
    let (ours, theirs) = two();
    let held = read(&lock_of(&ours));
    let other = lock_of(&theirs);
    let mut ghost = writing(&other);
    assert_pending!(ghost.poll());
    let name = theirs.children(PATH).into_iter().find(|name| name.ends_with('1')).expect("the writer");
    ours.faults().freeze(format!("{PATH}/{name}"));
    drop(ghost);
    assert_eq!(held.contended().await.expect("held").as_str(), name, "not the name that the server shows");
    drop(lock_of(&ours).try_read().await.expect("beside it"));
    assert!(timeout(SECOND, held.contended()).await.is_err());
}

/// Some servers list a ghost but deny that it exists. The library logs such a ghost like any other, and does not ask
/// the ensemble's leader about the ghost for ever.
#[tokio::test(start_paused = true)]
async fn a_listed_and_denied_ghost_is_left_and_logged() {
    for waits in [false, true] {
        let errors = diverged();
        let theirs = Memory::new();
        let (ours, node) = client_that_shows_a_writer(&theirs);
        let denied = node.clone();
        let line = Hindered::new(&ours, move |asked| {
            let denies = matches!(asked, Request::Data(path) | Request::Watch(path) if *path == *denied);
            denies.then_some(Failure::NoNode)
        });
        let (lock, began) = (RwLock::new(&line, PATH).expect("valid"), Instant::now());
        drop(if waits { lock.write().await } else { lock.try_write().await }.expect("free"));
        assert!(began.elapsed() < SECOND, "the leader was asked only after {:?}", began.elapsed());
        sleep(SECOND).await;
        assert_eq!(errors(), [node]);
    }
}

// A client that knows one server only.

/// Returns a client whose only server shows the node of a writer that has left.
fn client_of_one_server(theirs: &Memory) -> (Memory, String) {
    let (ours, node) = client_that_shows_a_writer(theirs);
    ours.faults().keep_server();
    (ours, node)
}

#[tokio::test(start_paused = true)]
async fn a_ghost_at_the_only_server_ends_calls_with_an_error() {
    for call in 0..8 {
        let errors = diverged();
        let theirs = Memory::new();
        let (ours, node) = client_of_one_server(&theirs);
        let lock = lock_of(&ours);
        let kept = RwLock::builder(&ours, PATH).keep(3_600 * SECOND).build().expect("valid");
        let both = MultiLock::new([(&lock, Mode::Write)]).expect("valid");
        let error = match call {
            0 => lock.try_write().await.map(drop),
            1 => lock.try_read().await.map(drop),
            2 => both.try_lock().await.map(drop),
            3 => lock.read().timeout(SECOND / 50).await.map(drop),
            4 => lock.write().timeout(5 * SECOND).await.map(drop),
            5 => both.lock().timeout(5 * SECOND).await.map(drop),
            6 => kept.write().timeout(5 * SECOND).await.map(drop),
            _ => lock.write().await.map(drop),
        };
        let error = error.expect_err("the ghost is shown again");
        assert!(matches!(error.cause(), Error::Diverged { node: about, .. } if *about == node), "{call}: {error:?}");
        assert!(error.to_string().contains("zklock check"), "{error}");
        sleep(SECOND).await;
        assert_eq!((errors(), theirs.children(PATH).len()), (vec![node; 3], 0), "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_ghost_permit_at_the_only_server_ends_calls_with_an_error() {
    for is_waiter in [false, true] {
        for call in 0..3 {
            let theirs = Memory::new();
            let (ours, node) = if is_waiter {
                (client_that_shows_a_waiter_for_permits(), None)
            } else {
                let permit = now(limit(&theirs, 1).acquire()).expect("free");
                (client_that_shows(&theirs, &permit.node_path()), Some(permit.node_path().to_owned()))
            };
            ours.faults().keep_server();
            let semaphore = limit(&ours, 1);
            let error = match call {
                0 => semaphore.try_acquire().await.map(drop),
                1 => semaphore.acquire().timeout(5 * SECOND).await.map(drop),
                _ => semaphore.acquire().await.map(drop),
            };
            let error = error.expect_err("the ghost is shown again");
            let Error::Diverged { node: about, .. } = &error else { panic!("{is_waiter}, {call}: {error:?}") };
            assert!(node.is_none_or(|node| node == *about), "{error}");
        }
    }
}

/// A candidate goes on with its campaign. The calls that read the leader say that the server is wrong.
#[tokio::test(start_paused = true)]
async fn a_candidate_with_a_ghost_at_the_only_server_goes_on() {
    let theirs = Memory::new();
    let (ours, _) = client_of_one_server(&theirs);
    let here = Leadership::new(&ours, PATH).expect("valid");
    let mut candidate = leads(&ours);
    assert!(timeout(600 * SECOND, &mut candidate).await.is_err());
    assert!(matches!(here.leader().await, Err(Error::Diverged { .. })));
    let mut changes = here.changes();
    assert!(matches!(changes.next().await, Some(Err(Error::Diverged { .. }))));
    assert!(timeout(600 * SECOND, changes.next()).await.is_err(), "an error is yielded once");
    candidate.abort();
}
