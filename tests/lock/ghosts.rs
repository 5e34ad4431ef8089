//! A server that lists a ghost: a node that the ensemble has deleted. A proxy plays that server. Calls and short waits have no
//! time for a later check at the leader, so they ask the leader immediately whether the listed node exists. If it does not, the
//! client leaves the server for another one, or fails if there is none.

use std::time::{Duration, Instant};

use support::scene::*;
use support::server::shared_server;
use support::wire::{Frames, Op, Proxy, Rule};
use zk_rwlock::{Error, Leadership, Mode, MultiLock, Semaphore, ZooKeeper};

use crate::wire::{Tapped, directory};

/// A timeout of calls and waits, shorter than the session timeout of 10 s.
const SHORT: Duration = Duration::from_secs(5);

/// Adds the node `name` to each later listing of `directory` that goes through the proxy.
fn shows(proxy: &Proxy, directory: &str, name: &str) {
    let lists = Frames::replies(Op::GetChildren2).about(directory).with_error(0);
    proxy.apply(Rule::on(lists).show(name).and_all_later());
}

fn name_of(path: &str) -> String {
    path.rsplit('/').next().expect("a path").to_owned()
}

/// Returns a client that is connected through the first proxy, and knows the second one, too.
async fn tapped_of_two() -> (Tapped, Proxy) {
    let [proxy, spare] = [(), ()].map(|()| Proxy::start(shared_server().address()));
    spare.cut();
    let zk = connect(&format!("{},{}", proxy.address(), spare.address())).await;
    spare.heal();
    (Tapped { proxy, zk }, spare)
}

/// Returns a client whose server lists a ghost in this lock, the proxy of its other server, a client with a correct server, and the
/// name of the ghost, which is the node of a former writer.
async fn ghosts_found(path: &str) -> (Tapped, Proxy, ZooKeeper, String) {
    let (tapped, spare) = tapped_of_two().await;
    let other = connect(&shared_server().address()).await;
    let lock = directory(&other, path).await;
    let held = lock.write().await.unwrap();
    let ghost = name_of(&held.node_path());
    held.release().await.unwrap();
    shows(&tapped.proxy, path, &ghost);
    (tapped, spare, other, ghost)
}

#[support::judged]
async fn calls_and_short_waits_leave_a_server_with_a_ghost() {
    let path = "/ghosts/passed";
    for call in 0..7 {
        let (tapped, _spare, other, _) = ghosts_found(path).await;
        let lock = lock_at(&tapped.zk, path);
        let both = MultiLock::new([(&lock, Mode::Write)]).unwrap();
        let began = Instant::now();
        match call {
            0 => lock.try_write().await.unwrap().release().await.unwrap(),
            1 => lock.try_read().await.unwrap().release().await.unwrap(),
            2 => drop(lock.try_once_in(SHORT).await.unwrap().due().expect("never done")),
            3 => both.try_lock().await.unwrap().release().await.unwrap(),
            4 => lock.read().timeout(SHORT).await.unwrap().release().await.unwrap(),
            5 => lock.write().timeout(SHORT).await.unwrap().release().await.unwrap(),
            _ => both.lock().timeout(SHORT).await.unwrap().release().await.unwrap(),
        }
        assert!(began.elapsed() < SHORT, "{call}: {:?}", began.elapsed());
        becomes_empty(&other, path).await;
    }
}

/// The proxy is the only server that the client knows, so it is left three times.
#[support::judged]
async fn a_ghost_at_the_only_server_ends_calls_and_short_waits() {
    let path = "/ghosts/alone";
    for call in 0..4 {
        let tapped = Tapped::new(shared_server()).await;
        let other = connect(&shared_server().address()).await;
        let held = directory(&other, path).await.write().await.unwrap();
        let ghost = held.node_path().to_owned();
        held.release().await.unwrap();
        shows(&tapped.proxy, path, &name_of(&ghost));
        let (lock, id) = (lock_at(&tapped.zk, path), session(&tapped.zk).await.id());
        tapped.proxy.reset();
        let began = Instant::now();
        let error = match call {
            0 => lock.try_write().await.map(drop),
            1 => lock.try_read().await.map(drop),
            2 => lock.read().timeout(SHORT).await.map(drop),
            _ => lock.write().timeout(SHORT).await.map(drop),
        };
        let error = error.expect_err("the ghost is shown again");
        assert!(began.elapsed() < SHORT, "{call}: {:?}", began.elapsed());
        let Error::Diverged { node, server } = &error else { panic!("{call}: {error:?}") };
        assert_eq!((node, server), (&ghost, &tapped.proxy.address()), "{call}");
        assert_eq!((tapped.proxy.arrivals(Op::Handshake).len(), session(&tapped.zk).await.id()), (3, id), "{call}");
        becomes_empty(&other, path).await;
    }
}

#[support::judged]
async fn an_error_names_the_holder_and_no_ghost() {
    let path = "/ghosts/named";
    let (tapped, _spare, other, ghost) = ghosts_found(path).await;
    let holder = lock_at(&other, path).write().await.unwrap();
    let lock = lock_at(&tapped.zk, path);
    let errors = [lock.try_write().await.unwrap_err(), lock.write().timeout(SHORT / 10).await.unwrap_err()];
    for error in errors {
        let (Error::WouldBlock { blockers } | Error::Timeout { blockers, .. }) = &error else { panic!("{error:?}") };
        let named: Vec<_> = blockers.first.iter().map(|it| it.node.clone()).collect();
        assert_eq!((blockers.ahead, named), (1, vec![name_of(&holder.node_path())]), "beside {ghost}");
    }
    holder.release().await.unwrap();
}

/// The server lists the node, but answers reads of the node with "no node", so no watch can be set.
#[support::judged]
async fn a_listed_and_denied_node_is_asked_for_at_the_leader() {
    let path = "/ghosts/denied";
    let (tapped, _spare, other, _) = ghosts_found(path).await;
    tapped.proxy.reset();
    soon("granted", lock_at(&tapped.zk, path).write()).await.unwrap().release().await.unwrap();
    assert!(tapped.proxy.count(Op::GetChildren2) <= 4, "{:?}", tapped.proxy.requests());
    becomes_empty(&other, path).await;
}

#[support::judged]
async fn a_ghost_permit_is_taken_at_once() {
    let path = "/ghosts/limit";
    for waits in [false, true] {
        let (tapped, _spare) = tapped_of_two().await;
        let other = connect(&shared_server().address()).await;
        let held = Semaphore::new(&other, path, 1).unwrap().acquire().await.unwrap();
        let ghost = name_of(&held.node_path());
        held.release().await.unwrap();
        shows(&tapped.proxy, &format!("{path}/permits"), &ghost);
        let limit = Semaphore::new(&tapped.zk, path, 1).unwrap();
        let permit = match waits {
            false => limit.try_acquire().await.unwrap(),
            true => limit.acquire().timeout(SHORT).await.unwrap(),
        };
        permit.release().await.unwrap();
    }
}

/// Another candidate leads now. In the first case, the server still shows the former leader's node with its data. In the second
/// case, the server lists that node, but answers reads of the node with "no node".
#[support::judged]
async fn no_call_returns_a_ghost_as_the_leader() {
    let path = "/ghosts/led";
    let (tapped, _spare, other, ghost) = ghosts_found(path).await;
    let here = Leadership::new(&tapped.zk, path).unwrap();
    assert_eq!(soon("an answer", here.leader()).await.unwrap(), None);
    let there = Leadership::new(&other, path).unwrap();
    let leads = tokio::spawn(async move { there.lead(|_| std::future::pending::<()>()).await.map(drop) });
    let there = Leadership::new(&other, path).unwrap();
    eventually("the candidate leads", async || there.leader().await.unwrap().is_some()).await;
    assert_eq!(here.leader().await.unwrap(), there.leader().await.unwrap());

    // The session of this client has not yet found out that the node is a ghost.
    let (fresh, _spare) = tapped_of_two().await;
    shows(&fresh.proxy, path, &ghost);
    let mut changes = Leadership::new(&fresh.zk, path).unwrap().changes();
    let first = soon("a change", changes.next()).await.expect("open").unwrap();
    assert_eq!(first, there.leader().await.unwrap());
    assert!(fresh.proxy.count(Op::GetChildren2) <= 4, "{:?}", fresh.proxy.requests());
    leads.abort();
}
