//! Tests of what `zklock check` reports about the servers of the connect string, and about a lock's record, permits and
//! ghosts.

use serde_json::Value;
use support::ensemble::Ensemble;
use support::scene::*;
use support::server::{Server, shared_server};
use support::wire::{Frames, Op, Proxy, Rule};
use tokio::net::TcpListener;
use zk_rwlock::coordinator::{Failure, Operation};
use zk_rwlock::{RwLock, Semaphore};

use crate::advice::{Altered, altered};
use crate::{Run, ended, run, server_lock, zklock_on};

pub(crate) async fn check(servers: &str, path: &str) -> Run {
    ended(zklock_on(servers, &["check", path])).await
}

/// Asserts that `check` has found nothing odd. The servers' release may have known vulnerabilities.
#[track_caller]
pub(crate) fn assert_clean(run: &Run, path: &str, seen: &str) {
    let rest = run.stdout.strip_prefix(&format!("{path}: nothing odd"));
    let is_clean = rest.is_some_and(|rest| rest.contains(&format!(", {seen}")) && rest.lines().count() == 1);
    assert!(run.code == Some(0) && is_clean, "{run:#?}");
}

#[support::judged]
async fn known_vulnerabilities_are_counted_and_not_odd() {
    let path = "/zklock/check/vulnerable";
    let (server, clean) = (shared_server().address(), run(&[path, "true"]).await);
    assert_eq!(clean.code, Some(0), "{clean:#?}");
    let known = json(&server, path).await["servers"][0]["vulnerabilities"].as_array().unwrap().len();
    let (named, found) = (server.clone(), check(&server, path).await);
    let page = "https://zookeeper.apache.org/security.html";
    let (last, note) = match known {
        0 => (format!("{path}: nothing odd, on 1 of 1 servers\n"), String::new()),
        1 => (format!("{path}: nothing odd; 1 known vulnerability above, on 1 of 1 servers: {page}\n"), named),
        _ => (format!("{path}: nothing odd; {known} known vulnerabilities above, on 1 of 1 servers: {page}\n"), named),
    };
    assert_eq!((found.code, &found.stdout), (Some(0), &last), "{found:#?}");
    assert!(found.stderr.starts_with(&format!("zklock: {note}")) || note.is_empty(), "{found:#?}");
    assert_eq!(found.stderr.contains(&format!("see {page}")), known > 0, "{found:#?}");
}

async fn json(servers: &str, path: &str) -> Value {
    let run = ended(zklock_on(servers, &["check", "--json", path])).await;
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:#?}"))
}

#[support::judged]
async fn foreign_data_in_the_record_is_odd() {
    let path = "/zklock/check/recorded";
    assert_eq!(run(&["--once-in", "1h", path, "true"]).await.code, Some(0));
    assert_clean(&run(&["check", path]).await, path, "on 1 of 1 servers");
    let (zk, _lock) = server_lock(path).await;
    let record = format!("{path}.done");
    let foreign = Operation::Set { path: record.clone(), data: b"theirs".to_vec(), version: None };
    session(&zk).await.transact(&[foreign]).await.unwrap();
    assert_eq!(run(&["--once-in", "1h", path, "true"]).await.code, Some(65));
    let odd = run(&["check", path]).await;
    assert_eq!(odd.code, Some(1), "{odd:#?}");
    assert!(odd.stdout.contains(&format!("{path}: {record}: its data is no valid record")), "{odd:#?}");
    assert_eq!(json(&shared_server().address(), path).await["odd"][0]["kind"], "record");
}

#[support::judged]
async fn a_semaphore_with_an_invalid_number_is_not_free() {
    let path = "/zklock/check/uncounted";
    let (zk, _lock) = server_lock(path).await;
    let held = Semaphore::new(&zk, path, 2).unwrap().acquire().await.unwrap();
    let garbage = Operation::Set { path: path.to_owned(), data: b"permits=two".to_vec(), version: None };
    let session = session(&zk).await;
    session.transact(&[garbage]).await.unwrap();
    // The test deletes the empty queue, as the server does a minute after the queue's last waiter.
    let reaped = session.delete(&format!("{path}/queue")).await;
    assert!(matches!(reaped, Ok(()) | Err(Failure::NoNode)), "{reaped:?}");
    for arguments in [&["ls", path][..], &["watch", path], &["break", "-y", path, "1"]] {
        let run = run(arguments).await;
        assert_eq!(run.code, Some(65), "{arguments:?}: {run:#?}");
        assert!(run.stderr.contains("its data \"permits=two\" is no number of permits"), "{run:#?}");
    }
    // The path counts as a semaphore also if the listing of its permits fails for another reason than their absence.
    let proxy = Proxy::start(shared_server().address());
    proxy.apply(Rule::on(Frames::replies(Op::GetChildren2).about(&format!("{path}/permits"))).claim_error(-1));
    let unlisted = ended(zklock_on(&proxy.address(), &["ls", path])).await;
    assert_eq!(unlisted.code, Some(65), "{unlisted:#?}");
    assert_eq!(json(&shared_server().address(), path).await["odd"][0]["kind"], "number");
    let tree = run(&["ls", "--tree", path]).await.stdout;
    assert!(tree.starts_with(&format!("{path}: the number of permits is invalid\n")), "{tree}");
    assert_eq!(tree.lines().count(), 3, "the tree must list the holder, too: {tree}");

    let cure = run(&["check", path]).await.stdout;
    assert!(cure.contains(&format!("set the number with zklock permits {path} N")), "{cure}");
    assert_eq!(run(&["permits", path, "3"]).await.code, Some(0));
    let repaired = run(&["ls", path]).await.stdout;
    assert!(repaired.starts_with(&format!("{path}: 2 of 3 permits free\n")), "{repaired}");

    let empty = Operation::Set { path: path.to_owned(), data: Vec::new(), version: None };
    session.transact(&[empty]).await.unwrap();
    let unknown = run(&["ls", path]).await;
    assert!(unknown.code == Some(65) && unknown.stderr.contains("has no number of permits yet"), "{unknown:#?}");
    assert_eq!(json(&shared_server().address(), path).await["odd"][0]["kind"], "number");
    assert!(held.is_held());
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn servers_with_different_nodes_are_named() {
    let path = "/zklock/check/differs";
    // Two standalone servers simulate an ensemble whose servers have diverged.
    let servers = [Server::start(), Server::start()];
    let mut clients = Vec::new();
    for server in &servers {
        let zk = connect(&server.address()).await;
        drop(lock_at(&zk, path).write().await.unwrap());
        clients.push(zk);
    }
    let both = servers.each_ref().map(Server::address).join(",");
    assert_clean(&check(&both, path).await, path, "on 2 of 2 servers");
    let held = RwLock::builder(&clients[1], path).host("ghost").build().unwrap().write().await.unwrap();
    let odd = check(&both, path).await;
    assert_eq!(odd.code, Some(1), "{odd:#?}");
    let [one, other] = servers.each_ref().map(Server::address);
    let told = format!(": {other} (standalone) shows it, and {one} (standalone) does not: ");
    assert!(odd.stdout.contains(&format!("{path}: ghost~")) && odd.stdout.contains(&told), "{odd:#?}");
    let kinds = json(&both, path).await;
    assert_eq!((&kinds["odd"][0]["kind"], kinds["odd"].as_array().unwrap().len()), (&"diverged".into(), 1));
    assert!(held.is_held());
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn each_server_is_asked_and_an_absent_one_is_named() {
    let path = "/zklock/check/ensemble";
    let ensemble = Ensemble::start();
    let zk = connect(&ensemble.addresses()).await;
    let held = lock_at(&zk, path).write().await.unwrap();
    let follower = ensemble.followers()[0];
    let clean = check(&ensemble.addresses(), path).await;
    assert_clean(&clean, path, "on 3 of 3 servers");
    // A follower's answer to `dump` has another format than a leader's. `check` understands both.
    let one = check(&ensemble.server(follower).address(), path).await;
    let others = format!("{path}: the servers: 1 of 3 were looked at: name all servers of the ensemble in --zk\n");
    assert_eq!((one.code, one.stdout), (Some(1), others), "{}", one.stderr);
    let said = json(&ensemble.addresses(), path).await;
    let servers = said["servers"].as_array().unwrap();
    let leads = servers.iter().filter(|server| server["mode"] == "leader").count();
    assert_eq!((servers.len(), leads), (3, 1), "{said:#}");
    for server in servers {
        assert_eq!(server["version"], ensemble.server(0).version(), "{said:#}");
    }
    ensemble.server(follower).kill();
    let away = check(&ensemble.addresses(), path).await;
    let named = format!("{path}: the servers: {} was not looked at: ", ensemble.server(follower).address());
    assert!(away.code == Some(1) && away.stdout.starts_with(&named), "{away:#?}");
    let (_, others) = away.stdout.split_once('\n').expect("check prints two lines");
    assert_eq!(others, format!("{path}: the servers: 2 of 3 were looked at\n"));
    let said = json(&ensemble.addresses(), path).await;
    assert_eq!(
        (&said["odd"][0]["kind"], &said["looked_at"], &said["of"]),
        (&"away".into(), &2.into(), &3.into()),
        "{said:#}"
    );
    assert!(held.is_held());
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn servers_are_asked_below_the_chroot() {
    let (path, server) = ("/zklock/check/below", shared_server().address());
    let below = format!("{server}/zklock/root");
    // Another lock with the same path exists outside of the chroot. `check` must not read its nodes.
    let (_whole, outside) = server_lock(path).await;
    let zk = connect(&below).await;
    let held = (outside.write().await.unwrap(), lock_at(&zk, path).write().await.unwrap());
    let clean = check(&below, path).await;
    assert_clean(&clean, path, "on 1 of 1 servers");
    let said = json(&below, path).await;
    assert_eq!(
        (&said["servers"][0]["server"], &said["servers"][0]["mode"]),
        (&server.clone().into(), &"standalone".into())
    );

    // `check` compares the nodes below the chroot with the sessions that the server knows, and with the nodes of the
    // other servers.
    let ghost = check(&format!("{}/zklock/root", forgetful(server.clone(), session(&zk).await.id()).await), path).await;
    let cure = format!("remove it with zklock break {path} {}", held.1.fencing_token());
    assert!(ghost.code == Some(1) && ghost.stdout.contains(&cure), "{ghost:#?}");
    let other = Server::start();
    let odd = check(&format!("{server},{}/zklock/root", other.address()), path).await;
    let told = format!(": {server} (standalone) shows it, and {} (standalone) does not: ", other.address());
    assert!(odd.code == Some(1) && odd.stdout.contains(&told), "{odd:#?}");
    assert_eq!(odd.stdout.lines().filter(|line| line.contains(&told)).count(), 1, "{odd:#?}");
}

/// The test does nothing on a machine whose loopback interface has no IPv6 address.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_asked_at_an_ipv6_address() {
    let (path, server) = ("/zklock/check/ipv6", shared_server().address());
    let (zk, lock) = server_lock(path).await;
    let Ok(listener) = TcpListener::bind("[::1]:0").await else { return };
    let held = lock.write().await.unwrap();
    let address = forwarded(listener, server.clone(), None);
    assert!(address.starts_with("[::1]:"), "{address}");
    let clean = check(&address, path).await;
    assert_clean(&clean, path, "on 1 of 1 servers");
    let said = json(&format!("{server},{address}"), path).await;
    assert_eq!((&said["servers"][1]["server"], &said["servers"][1]["mode"]), (&address.into(), &"standalone".into()));

    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let ghost = check(&forwarded(listener, server, Some(session(&zk).await.id())), path).await;
    let cure = format!("remove it with zklock break {path} {}", held.fencing_token());
    assert!(ghost.code == Some(1) && ghost.stdout.contains(&cure), "{ghost:#?}");
}

/// Starts a proxy that hides one session from the server's answers to `dump`.
async fn forgetful(server: String, session: i64) -> String {
    forwarded(TcpListener::bind("127.0.0.1:0").await.unwrap(), server, Some(session))
}

/// Starts a proxy on this listener, which hides the session if one is given. Returns the proxy's address.
fn forwarded(listener: TcpListener, server: String, session: Option<i64>) -> String {
    altered(listener, server, Altered { session, ..Altered::default() })
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_ghost_is_reported_with_the_break_command() {
    let path = "/zklock/check/ghost";
    let (zk, lock) = server_lock(path).await;
    let held = lock.write().await.unwrap();
    let id = session(&zk).await.id();
    let server = shared_server().address();
    assert_clean(&check(&server, path).await, path, "on 1 of 1 servers");
    let odd = check(&forgetful(server, id).await, path).await;
    assert_eq!(odd.code, Some(1), "{odd:#?}");
    let told = format!(
        ": its session {id:#x} is over, but the node is still there: remove it with zklock break {path} {}",
        held.fencing_token()
    );
    assert!(odd.stdout.contains(&told), "{odd:#?}");
    assert!(held.is_held());
}
