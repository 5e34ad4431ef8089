//! Access to a lock, and the data that an eavesdropper can read: digest, ACLs, TLS and SASL, on real servers that use them.

use support::scene::{
    CALM, SOON, becomes_empty, children, connect, eventually, granted, line_becomes, lock_at, reader, refused, session,
    soon, with_time_enough, within, writer,
};
use support::server::shared_server;
use support::several::several;
use support::wire::{Op, Proxy};
use zk_rwlock::coordinator::{Failure, Kind, Operation};
use zk_rwlock::security::{Acl, Permissions};
use zk_rwlock::{Error, HoldState, Loss, Mode, Semaphore, Shared, Transaction, ZooKeeper, ZooKeeperBuilder};
use zookeeper_client as zk;

fn options() -> ZooKeeperBuilder {
    ZooKeeper::builder().session_timeout(CALM).connect_timeout(SOON)
}

async fn user(address: &str, name: &str) -> ZooKeeper {
    options().digest(name, &format!("password of {name}")).connect(address).await.expect("the server can be reached")
}

fn is_denied(error: &Error) -> bool {
    matches!(error, Error::PermissionDenied { .. })
}

/// Makes a lock directory of the user `owner`, in which all other clients have the permissions `guests`.
async fn directory_for_guests(owner: &str, directory: &str, guests: Permissions) -> ZooKeeper {
    let acl = Acl::creator().allow("world", "anyone", guests);
    let owner = options().digest(owner, "secret").acl(acl).connect(&shared_server().address()).await.unwrap();
    soon("the directory", lock_at(&owner, directory).read()).await.unwrap().release().await.unwrap();
    owner
}

#[support::judged]
async fn a_directory_wider_than_its_acl_can_be_refused() {
    let address = shared_server().address();
    let directory = "/security/wider";
    let anybody = connect(&address).await;
    soon("the directory", lock_at(&anybody, directory).write()).await.unwrap().release().await.unwrap();
    let strict = options().digest("strict", "secret").refuse_wider_acl().connect(&address).await.unwrap();
    for refused in [lock_at(&strict, directory).write().await.err(), lock_at(&strict, directory).read().await.err()] {
        let refused = refused.expect("the lock is refused").to_string();
        let why =
            format!("the ACL of {directory} is wider than that of this client: world:anyone may READ, WRITE, CREATE,");
        assert!(refused.contains(&why), "{refused}");
    }
    assert_eq!(session(&anybody).await.children(directory).await, Ok(Vec::new()), "a node stays");
    let own = soon("its own directory", lock_at(&strict, "/security/own").write())
        .await
        .expect("the client made this directory");
    assert!(own.is_held());
    let lax = user(&address, "lax").await;
    assert!(soon("by default", lock_at(&lax, directory).write()).await.is_ok());
}

#[support::judged]
async fn a_semaphore_wider_than_its_acl_can_be_refused() {
    let address = shared_server().address();
    let anybody = connect(&address).await;
    let strict = options().digest("strict", "secret").refuse_wider_acl().connect(&address).await.unwrap();
    let wide = options().digest("strict", "secret").acl(Acl::anyone()).connect(&address).await.unwrap();
    let [number, permits, own] = ["/security/limits/number", "/security/limits/permits", "/security/own-limit"];
    let limit = |zk: &ZooKeeper, path: &str| Semaphore::new(zk, path, 1).unwrap();
    limit(&anybody, number).set_permits(1).await.unwrap();
    limit(&strict, permits).set_permits(1).await.unwrap();
    soon("a permit", limit(&wide, permits).acquire()).await.unwrap().release().await.unwrap();
    for (path, node) in [(number, number.to_owned()), (permits, format!("{permits}/permits"))] {
        // The queue that the client with the wide ACL made is deleted, so that the client with the strict ACL makes its own.
        let queue = format!("{path}/queue");
        session(&wide).await.delete(&queue).await.ok();
        let refused =
            soon("an answer", limit(&strict, path).acquire()).await.expect_err("the lock is refused").to_string();
        assert!(refused.contains(&format!("the ACL of {node} is wider than that of this client")), "{refused}");
        assert_eq!(session(&strict).await.children(&queue).await, Ok(Vec::new()), "a node stays in the queue");
    }
    soon("its own", limit(&strict, own).acquire()).await.unwrap().release().await.unwrap();
    soon("by default", limit(&wide, number).acquire()).await.unwrap().release().await.unwrap();
}

/// Sends every request that would disturb the contenders in the directory. The server must refuse each of them.
async fn assert_shut_out(stranger: &ZooKeeper, directory: &str, node: &str) {
    let session = session(stranger).await;
    let forged = format!("{directory}/evil~00000000-WRITE-");
    let attempts = [
        ("create", session.create(&forged, b"", Kind::EphemeralSequential).await.map(drop)),
        ("create a plain node", session.create(&forged, b"", Kind::Persistent).await.map(drop)),
        ("delete the node", session.delete(node).await),
        ("delete the directory", session.delete(directory).await),
        ("set", session.transact(&[set(node)]).await.map(drop)),
        ("list", session.children(directory).await.map(drop)),
        ("read", session.data(node).await.map(drop)),
        ("watch", session.watch(node).await.map(drop)),
    ];
    for (what, answer) in attempts {
        let denied = match &answer {
            Err(Failure::Operation { failure, .. }) => matches!(**failure, Failure::NoAuth(_)),
            Err(failure) => matches!(failure, Failure::NoAuth(_)),
            Ok(()) => false,
        };
        assert!(denied, "{what}: {answer:?}");
    }
    let lock = lock_at(stranger, directory);
    let answers = [
        lock.write().await.unwrap_err(),
        lock.read().await.unwrap_err(),
        lock.try_write().await.unwrap_err(),
        lock.queue().await.unwrap_err(),
    ];
    assert!(answers.iter().all(is_denied), "{answers:?}");
}

fn set(path: &str) -> Operation {
    Operation::Set { path: path.to_owned(), data: b"released".to_vec(), version: None }
}

// ------------------------------------------------------------------------------------ Contenders that can steal a lock

#[support::judged]
async fn a_digest_users_lock_is_closed_to_strangers() {
    let address = shared_server().address();
    let owner = user(&address, "owner").await;
    let guard = lock_at(&owner, "/owned/lock").write().await.unwrap();

    for stranger in [connect(&address).await, user(&address, "somebody-else").await] {
        assert_shut_out(&stranger, "/owned/lock", &guard.node_path()).await;
    }
    let wrong_password = options().digest("owner", "guessed").connect(&address).await.unwrap();
    assert_shut_out(&wrong_password, "/owned/lock", &guard.node_path()).await;
    assert_eq!(guard.state(), HoldState::Held);
    assert_eq!(children(&owner, "/owned/lock").await.len(), 1);
    guard.release().await.unwrap();
}

#[support::judged]
async fn anyone_can_steal_a_lock_that_is_open_to_anyone() {
    let address = shared_server().address();
    let owner = options().digest("owner", "secret").acl(Acl::anyone()).connect(&address).await.unwrap();
    let stranger = connect(&address).await;
    let guard = lock_at(&owner, "/open/lock").write().await.unwrap();
    let waiter = writer(&lock_at(&stranger, "/open/lock"));
    line_becomes(&lock_at(&stranger, "/open/lock"), "W+ W-").await;

    session(&stranger).await.delete(&guard.node_path()).await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Removed);
    assert!(!guard.is_held());
    drop(granted(waiter).await);
}

#[support::judged]
async fn a_queue_member_can_steal_despite_closed_nodes() {
    // The permissions on the directory decide who may delete the holder's node, and the node's own permissions do not.
    let directory = "/queueing/lock";
    let owner = directory_for_guests("landlord", directory, Permissions::CREATE | Permissions::DELETE).await;
    let tenant = options().digest("landlord", "secret").connect(&shared_server().address()).await.unwrap();
    let guard = lock_at(&tenant, directory).write().await.unwrap();
    let guest = connect(&shared_server().address()).await;

    assert!(matches!(session(&guest).await.data(&guard.node_path()).await, Err(Failure::NoAuth(_))));
    session(&guest).await.delete(&guard.node_path()).await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Removed);
    becomes_empty(&owner, directory).await;
}

#[support::judged]
async fn a_directory_first_made_by_a_stranger_stays_theirs() {
    let address = shared_server().address();
    let stranger = connect(&address).await;
    let owner = user(&address, "late-comer").await;
    session(&stranger).await.create("/squatted", b"", Kind::Persistent).await.unwrap();
    session(&stranger).await.create("/squatted/lock", b"", Kind::Container).await.unwrap();
    let guard = lock_at(&owner, "/squatted/lock").write().await.unwrap();

    session(&stranger).await.delete(&guard.node_path()).await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Removed);
}

#[support::judged]
async fn a_user_name_misread_by_the_server_is_refused() {
    let proxy = Proxy::start_opaque(shared_server().address());
    for name in ["", "a:b"] {
        let error = options().digest(name, "secret").connect(&proxy.address()).await.unwrap_err();
        assert!(matches!(&error, Error::InvalidInput(problem) if problem.contains("colon")), "{error:?}");
    }
    assert_eq!(proxy.connections(), 0);
}

// ------------------------------------------------------------------------ Contenders that lack some of the permissions

#[support::judged]
async fn a_guest_who_may_not_list_leaves_no_node() {
    let directory = "/partly-1/lock";
    let owner = directory_for_guests("owner", directory, Permissions::CREATE | Permissions::DELETE).await;
    let guest = connect(&shared_server().address()).await;
    for error in
        [refused(writer(&lock_at(&guest, directory))).await, refused(reader(&lock_at(&guest, directory))).await]
    {
        assert!(matches!(&error, Error::PermissionDenied { path, .. } if path == directory), "{error:?}");
        // The client waits for the reply to its delete before it returns the error, so its node is gone by now.
        assert_eq!(children(&owner, directory).await, Vec::<String>::new());
    }
}

#[support::judged]
async fn a_guest_who_may_not_create_leaves_no_node() {
    let directory = "/partly-2/lock";
    let owner = directory_for_guests("owner", directory, Permissions::READ | Permissions::DELETE).await;
    let guest = connect(&shared_server().address()).await;
    let lock = lock_at(&guest, directory);
    for error in [lock.write().await.unwrap_err(), lock.read().await.unwrap_err(), lock.try_write().await.unwrap_err()]
    {
        assert!(matches!(&error, Error::PermissionDenied { path, .. } if path == directory), "{error:?}");
    }
    assert_eq!(children(&owner, directory).await, Vec::<String>::new());
}

#[support::judged]
async fn a_guest_who_may_not_write_cannot_ask() {
    let directory = "/partly-6/lock";
    let owner = directory_for_guests("owner", directory, Permissions::READ).await;
    let guest = connect(&shared_server().address()).await;
    let error = lock_at(&guest, directory).ask().await.unwrap_err();
    let Error::PermissionDenied { operation, path, .. } = &error else { panic!("{error:?}") };
    assert_eq!((*operation, &path[..]), ("ask", directory));
    lock_at(&owner, directory).ask().await.unwrap();
}

#[support::judged]
async fn a_guest_who_may_not_delete_learns_a_node_stays() {
    let directory = "/partly-3/lock";
    let owner = directory_for_guests("owner", directory, Permissions::CREATE | Permissions::READ).await;
    let guest = connect(&shared_server().address()).await;
    let guard = lock_at(&guest, directory).write().await.unwrap();
    let node = guard.node_path();

    let error = guard.release().await.unwrap_err();
    let Error::PermissionDenied { operation, path, .. } = &error else { panic!("{error:?}") };
    assert_eq!((*operation, path), (Error::DELETE_OWN_NODE, &node));
    let words =
        format!("(it stays until its session ends) {node}: no DELETE on {directory} for a client without credentials");
    assert!(error.to_string().ends_with(&words), "{error}");
    assert_eq!(children(&owner, directory).await, [node.rsplit('/').next().unwrap()]);
    let next = writer(&lock_at(&owner, directory));
    line_becomes(&lock_at(&owner, directory), "W+ W-").await;
    guest.close().await;
    drop(granted(next).await);
    becomes_empty(&owner, directory).await;
}

#[support::judged]
async fn a_guest_who_may_only_create_learns_a_node_stays() {
    let directory = "/partly-4/lock";
    let owner = directory_for_guests("owner", directory, Permissions::CREATE).await;
    let guest = connect(&shared_server().address()).await;
    let error = refused(writer(&lock_at(&guest, directory))).await;
    let Error::PermissionDenied { operation, path, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*operation, Error::DELETE_OWN_NODE);
    assert_eq!(children(&owner, directory).await, [path.rsplit('/').next().unwrap()]);
    guest.close().await;
    becomes_empty(&owner, directory).await;
}

#[support::judged]
async fn a_guest_who_may_not_watch_leaves_no_node() {
    let directory = "/partly-5/lock";
    let all = Permissions::READ | Permissions::CREATE | Permissions::DELETE;
    let owner = directory_for_guests("owner", directory, all).await;
    let secretive = options().digest("owner", "secret").connect(&shared_server().address()).await.unwrap();
    let guest = connect(&shared_server().address()).await;
    let guard = lock_at(&secretive, directory).write().await.unwrap();

    let error = refused(reader(&lock_at(&guest, directory))).await;
    assert!(is_denied(&error), "{error:?}");
    assert_eq!(children(&owner, directory).await.len(), 1);
    assert!(lock_at(&guest, directory).try_write().await.unwrap_err().is_would_block());
    guard.release().await.unwrap();
    drop(soon("the lock", lock_at(&guest, directory).write()).await.unwrap());
    becomes_empty(&owner, directory).await;
}

#[support::judged]
async fn a_holder_denied_its_own_node_still_hands_off() {
    // A writer's release sends a write to its own node and the delete of that node in one transaction, to notify the next waiter.
    // Without WRITE the server refuses this transaction, and the client sends a plain delete.
    let acl = Acl::nobody().allow("world", "anyone", Permissions::READ | Permissions::CREATE | Permissions::DELETE);
    let address = shared_server().address();
    let zk = options().acl(acl).connect(&address).await.unwrap();
    let lock = lock_at(&zk, "/unwritable/lock");
    let guard = lock.write().await.unwrap();
    let (second, third) = (writer(&lock), reader(&lock));
    eventually("all are queued", || async { children(&zk, "/unwritable/lock").await.len() == 3 }).await;

    guard.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    granted(third).await.release().await.unwrap();
    becomes_empty(&zk, "/unwritable/lock").await;
}

/// The client's previous node is still being deleted when its next create is refused.
#[support::judged]
async fn a_client_that_may_not_create_again_still_leaves() {
    let (address, directory) = (shared_server().address(), "/left/lock");
    let (zk, other) = (connect(&address).await, connect(&address).await);
    // The directories are persistent, because servers delete empty containers.
    for path in ["/left", directory] {
        session(&other).await.create(path, b"", Kind::Persistent).await.unwrap();
    }
    let operator = zk::Client::connect(&address).await.unwrap();
    let may = async |all: zk::Permission| {
        operator.set_acl(directory, &[zk::Acl::new(all, zk::AuthId::anyone())], None).await.unwrap();
    };
    let not_create = zk::Permission::READ | zk::Permission::WRITE | zk::Permission::DELETE | zk::Permission::ADMIN;
    let lock = lock_at(&zk, directory);
    for _ in 0..3 {
        let guard = lock.write().await.unwrap();
        may(not_create).await;
        drop(guard);
        assert!(is_denied(&lock.write().await.unwrap_err()));
        becomes_empty(&other, directory).await;
        may(zk::Permission::ALL).await;
    }
}

#[support::judged]
async fn a_signal_that_the_own_node_refuses_is_sent_once() {
    let proxy = Proxy::start(shared_server().address());
    let acl = Acl::nobody().allow("world", "anyone", Permissions::READ | Permissions::CREATE | Permissions::DELETE);
    let zk = options().acl(acl).connect(&proxy.address()).await.unwrap();
    let lock = lock_at(&zk, "/unsignalled/lock");
    for _ in 0..22 {
        drop(soon("the lock", lock.write()).await.unwrap());
    }
    becomes_empty(&connect(&shared_server().address()).await, "/unsignalled/lock").await;
    let requests = proxy.requests();
    let signals = requests.iter().filter(|(op, parts)| *op == Op::Multi && parts.starts_with("SetData")).count();
    assert_eq!(signals, 1, "{requests:#?}");
}

/// An operator forbids a holder to change its own node. The hand-offs of the same session in other directories go on.
#[support::judged]
async fn a_refused_signal_leaves_those_of_other_directories() {
    let address = shared_server().address();
    let (here, there) = (Proxy::start(&address), Proxy::start(&address));
    let (zk, other) = (connect(&here.address()).await, connect(&there.address()).await);
    let operator = zk::Client::connect(&address).await.unwrap();
    let refusing = lock_at(&zk, "/refuses-signals").write().await.unwrap();
    let read_only = [zk::Acl::new(zk::Permission::READ, zk::AuthId::anyone())];
    operator.set_acl(&refusing.node_path(), &read_only, None).await.unwrap();
    refusing.release().await.expect("a plain delete serves as well");

    let (ours, theirs) = (lock_at(&zk, "/takes-signals"), lock_at(&other, "/takes-signals"));
    let guard = ours.write().await.unwrap();
    let waiter = writer(&theirs);
    line_becomes(&ours, "W+ W-").await;
    eventually("the watch", || async { there.count(Op::GetData) >= 2 }).await;
    here.reset();
    there.reset();
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    assert_eq!((here.count(Op::Multi), here.count(Op::Delete)), (1, 0), "{:#?}", here.requests());
    assert_eq!(there.count(Op::GetChildren2), 0, "{:#?}", there.requests());
}

/// The client may not delete in one directory. Its hand-offs in other directories must go on.
#[support::judged]
async fn a_directory_without_delete_leaves_foreign_signals() {
    let address = shared_server().address();
    let keep = Acl::nobody().allow("world", "anyone", Permissions::READ | Permissions::CREATE | Permissions::WRITE);
    let maker = options().acl(keep).connect(&address).await.unwrap();
    session(&maker).await.create("/undeletable", b"", Kind::Persistent).await.unwrap();
    let proxy = Proxy::start(&address);
    let zk = connect(&proxy.address()).await;
    let stays = lock_at(&zk, "/undeletable").write().await.unwrap().release().await.unwrap_err();
    assert!(matches!(stays, Error::PermissionDenied { .. }), "{stays:?}");
    let lock = lock_at(&zk, "/signalled");
    let guard = lock.write().await.unwrap();
    proxy.reset();
    guard.release().await.unwrap();
    assert_eq!(
        (proxy.count(Op::Multi), proxy.count(Op::Delete)),
        (1, 0),
        "the release is not one transaction with a signal"
    );
}

#[support::judged]
async fn a_directory_closed_to_its_maker_is_removed() {
    let address = shared_server().address();
    let operator = connect(&address).await;
    session(&operator).await.create("/shut-out", b"", Kind::Persistent).await.unwrap();
    let of_another = Acl::nobody().allow("digest", "other:7PYcjGmQ3sYfJDGSTrMnvTrrwKQ=", Permissions::ALL);
    let unreadable = Acl::nobody().allow("world", "anyone", Permissions::CREATE | Permissions::DELETE);
    for acl in [of_another, unreadable] {
        let zk = options().acl(acl).digest("me", "secret").connect(&address).await.unwrap();
        for path in ["/shut-out-lock", "/shut-out/lock", "/shut-out/a/b/lock"] {
            let lock = lock_at(&zk, path);
            for error in [
                soon("the refusal", lock.write()).await.unwrap_err(),
                soon("the refusal", lock.read()).await.unwrap_err(),
                soon("the refusal", lock.try_write()).await.unwrap_err(),
            ] {
                let Error::PermissionDenied { operation, path: named, .. } = &error else { panic!("{error:?}") };
                assert_eq!((*operation, &**named), (Error::ENTER_OWN_DIRECTORY, path), "{error}");
            }
            assert_eq!(children(&operator, "/shut-out").await, [""; 0]);
        }
    }
    for path in ["/shut-out-lock", "/shut-out/lock", "/shut-out/a/b/lock"] {
        drop(soon("the lock", lock_at(&operator, path).write()).await.expect("no contender is in the way"));
    }
}

#[support::judged]
async fn closed_parents_allow_old_directories_only() {
    let address = shared_server().address();
    let owner = directory_for_guests("owner", "/closed/above/lock", Permissions::READ).await;
    let guest = connect(&address).await;
    let error = lock_at(&guest, "/closed/above/another").write().await.unwrap_err();
    assert!(is_denied(&error), "{error:?}");
    let error = lock_at(&guest, "/closed/beside/lock").write().await.unwrap_err();
    assert!(is_denied(&error), "{error:?}");
    assert_eq!(children(&owner, "/closed").await, ["above"]);
    assert_eq!(children(&owner, "/closed/above").await, ["lock"]);

    let open = options().digest("owner", "secret").acl(Acl::anyone()).connect(&address).await.unwrap();
    drop(lock_at(&open, "/closed/above/open").write().await.unwrap());
    drop(soon("the lock", lock_at(&guest, "/closed/above/open").write()).await.unwrap());
}

#[support::judged]
async fn a_transaction_on_a_forbidden_node_keeps_the_lock() {
    let address = shared_server().address();
    let owner = user(&address, "owner").await;
    session(&owner).await.create("/forbidden", b"mine", Kind::Persistent).await.unwrap();
    let guest = connect(&address).await;
    let guard = lock_at(&guest, "/locks/forbidden").write().await.unwrap();

    let error = guard.transaction().set("/forbidden", "theirs").commit().await.unwrap_err();
    assert!(
        matches!(&error, Error::TransactionRefused { index: 0, reason: Failure::NoAuth(_), path } if path == "/forbidden"),
        "{error:?}"
    );
    let error = guard.read_node("/forbidden").await.unwrap_err();
    assert!(is_denied(&error), "{error:?}");
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[support::judged]
async fn each_refusal_names_the_right_the_node_and_the_user() {
    let (above, directory, closed) = ("/partly-7", "/partly-7/lock", "/partly-7/closed");
    // The semaphore has a path of its own, because a path is either a lock or a semaphore.
    let pool = "/partly-7/pool";
    let address = shared_server().address();
    let owner = directory_for_guests("owner", directory, Permissions::READ).await;
    let owner_of_pool = directory_for_guests("owner", pool, Permissions::READ).await;
    let of_owner = Semaphore::builder(&owner_of_pool, pool).permits(1).at_existing_node().build().unwrap();
    of_owner.set_permits(1).await.unwrap();
    session(&user(&address, "guest").await).await.create("/partly-8", b"", Kind::Persistent).await.unwrap();
    let keeper = options().digest("owner", "secret").connect(&address).await.unwrap();
    session(&keeper).await.create(closed, b"", Kind::Persistent).await.unwrap();
    let held = lock_at(&owner, directory).write().await.unwrap();

    let guest = user(&address, "guest").await;
    let lock = lock_at(&guest, directory);
    let limit = Semaphore::builder(&guest, pool).permits(1).build().unwrap();
    let both = several(&guest, [(directory, Mode::Write), ("/partly-8/lock", Mode::Write)]).unwrap();
    let value: Shared<u32> = Shared::builder(&guest, above).build().unwrap();
    let own = lock_at(&guest, "/partly-8/lock").write().await.unwrap();
    let commit = async |change: Transaction<'_>| change.commit().await.unwrap_err();
    for (error, right, node) in [
        (lock.write().await.unwrap_err(), "CREATE", directory),
        (lock.write().once_in(SOON).await.unwrap_err(), "CREATE", directory),
        (lock.ask().await.unwrap_err(), "WRITE", directory),
        (lock.evict(held.fencing_token()).await.unwrap_err(), "DELETE", directory),
        (lock_at(&guest, closed).queue().await.unwrap_err(), "READ", closed),
        (lock_at(&guest, closed).try_read().await.unwrap_err(), "READ", closed),
        (lock_at(&guest, "/partly-7/a/b").write().await.unwrap_err(), "CREATE", above),
        (value.write().await.unwrap_err(), "CREATE", directory),
        (limit.acquire().await.unwrap_err(), "CREATE", pool),
        (limit.set_permits(3).await.unwrap_err(), "WRITE", pool),
        (both.lock().await.unwrap_err(), "CREATE", directory),
        (own.read_node(closed).await.unwrap_err(), "READ", closed),
        (commit(own.transaction().set(above, "")).await, "WRITE", above),
        (commit(own.transaction().create("/partly-7/new", "")).await, "CREATE", above),
        (commit(own.transaction().delete(closed)).await, "DELETE", above),
        (commit(own.transaction().check_exists(closed)).await, "READ", closed),
    ] {
        let words = format!("no {right} on {node} for digest user \"guest\" with the password given");
        assert!(error.to_string().ends_with(&words), "{error}");
        assert!(!error.to_string().contains("password of guest"), "{error}");
    }
}

// ----------------------------------------------------------------------------------------------------------------- TLS

mod tls {
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod,
        KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
    };
    use zk_rwlock::security::Tls;

    use super::*;
    use support::port::Port;
    use support::program::program;
    use support::rounds::{Ends, shared};
    use support::server::Server;

    /// The connect timeout of the first try of a connection that must be refused. A later try has a longer one.
    const LIMIT: Duration = Duration::from_secs(4);

    /// Checks that the error of `connect` gives this reason, with a timeout long enough to learn the reason.
    async fn assert_unreachable(options: impl Fn() -> ZooKeeperBuilder, servers: &str, reason: &str) {
        with_time_enough(LIMIT, async |limit| {
            let connecting = options().session_timeout(CALM).connect_timeout(limit).connect(servers);
            match within(SOON + limit, "the refusal", connecting).await.unwrap_err() {
                Error::Unreachable(why) if why.contains(reason) => Ok(()),
                Error::Unreachable(why) => Err(why),
                error => panic!("{error:?}"),
            }
        })
        .await;
    }

    /// A certificate authority, made anew in each run.
    struct Authority {
        issuer: Issuer<'static, KeyPair>,
        pem: String,
    }

    #[derive(Clone)]
    struct Identity {
        certificate: String,
        key: String,
        serial: SerialNumber,
    }

    impl Authority {
        fn new() -> Authority {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(DnType::CommonName, "authority");
            let pem = params.self_signed(&key).unwrap().pem();
            Authority { issuer: Issuer::new(params, key), pem }
        }

        fn issue(&self, name: &str, host: &str) -> Identity {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new([host.to_owned()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            let serial = SerialNumber::from(0x5eed);
            params.serial_number = Some(serial.clone());
            let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
            Identity { certificate, key: key.serialize_pem(), serial }
        }

        fn revocation_list(&self, revoked: &Identity) -> String {
            let params = CertificateRevocationListParams {
                this_update: date_time_ymd(2020, 1, 1),
                next_update: date_time_ymd(2199, 1, 1),
                crl_number: SerialNumber::from(1),
                issuing_distribution_point: None,
                revoked_certs: vec![RevokedCertParams {
                    serial_number: revoked.serial.clone(),
                    revocation_time: date_time_ymd(2020, 1, 1),
                    reason_code: None,
                    invalidity_date: None,
                }],
                key_identifier_method: KeyIdMethod::Sha256,
            };
            params.signed_by(&self.issuer).unwrap().pem().unwrap()
        }
    }

    /// A server with a port for TLS and a port without TLS.
    struct Secured {
        server: Server,
        address: String,
        _port: Port,
        authority: Authority,
        identity: Identity,
    }

    impl Ends for Secured {
        fn end(&self) {
            self.server.end();
        }
    }

    impl Secured {
        fn start(client_auth: &str) -> Secured {
            let authority = Authority::new();
            let identity = authority.issue("server", "127.0.0.1");
            let (server, port) = Secured::start_as(&identity, &authority.pem, client_auth);
            Secured { server, address: port.address().to_string(), _port: port, authority, identity }
        }

        /// Starts a server with this certificate. Returns the server and its port for TLS.
        fn start_as(identity: &Identity, trusted: &str, client_auth: &str) -> (Server, Port) {
            let port = Port::reserve();
            let server = Server::start_with_files(
                &[("server.pem", &format!("{}{}", identity.key, identity.certificate)), ("authority.pem", trusted)],
                &[
                    "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                    &format!("secureClientPort={port}"),
                    "secureClientPortAddress=127.0.0.1",
                    "ssl.keyStore.location={home}/server.pem",
                    "ssl.keyStore.type=PEM",
                    "ssl.trustStore.location={home}/authority.pem",
                    "ssl.trustStore.type=PEM",
                    &format!("ssl.clientAuth={client_auth}"),
                ],
                &[],
            );
            (server, port)
        }

        fn tls(&self) -> Tls {
            Tls::from_ca_pem(&self.authority.pem).unwrap()
        }

        fn tls_as(&self, name: &str) -> Tls {
            let identity = self.authority.issue(name, "127.0.0.1");
            self.tls().identity_pem(&identity.certificate, &identity.key).unwrap()
        }
    }

    /// Returns a server that asks no client for a certificate.
    fn open() -> &'static Secured {
        static SHARED: OnceLock<Secured> = OnceLock::new();
        shared(&SHARED, || Secured::start("none"))
    }

    /// Returns a server that asks every client for a certificate.
    fn mutual() -> &'static Secured {
        static SHARED: OnceLock<Secured> = OnceLock::new();
        shared(&SHARED, || Secured::start("need"))
    }

    async fn connect_with(tls: Tls, address: &str) -> ZooKeeper {
        options().tls(tls).connect(address).await.expect("the server can be reached")
    }

    /// Checks that connecting fails in time, after the server has answered, and that the error gives the reason.
    async fn assert_refused(tls: Tls, host: &str, secured: &Secured, reason: &str) {
        let proxy = Proxy::start_opaque(&secured.address);
        let address = proxy.address().replace("127.0.0.1", host);
        assert_unreachable(|| ZooKeeper::builder().tls(tls.clone()), &address, reason).await;
        assert!(proxy.bytes_to_client() > 0, "no server was reached");
    }

    #[support::judged]
    async fn a_lock_over_tls_survives_hand_off_and_reconnect() {
        let (secured, directory) = (open(), "/tls/handed-off");
        let proxy = Proxy::start_opaque(&secured.address);
        let holder = connect_with(secured.tls(), &proxy.address()).await;
        let other = connect_with(secured.tls(), &proxy.address()).await;
        let first = lock_at(&holder, directory).write().await.unwrap();
        let second = writer(&lock_at(&other, directory));
        line_becomes(&lock_at(&other, directory), "W+ W-").await;
        let third = reader(&lock_at(&holder, directory));
        line_becomes(&lock_at(&other, directory), "W+ W- R-").await;

        let connections = proxy.connections();
        proxy.rst();
        line_becomes(&lock_at(&other, directory), "W+ W- R-").await;
        eventually("both are back", || async { proxy.connections() >= connections + 2 }).await;
        soon("the holder is back", session(&holder).await.store().until_connected()).await.unwrap();
        assert!(first.is_held());
        let token = first.fencing_token();
        first.release().await.unwrap();
        let second = granted(second).await;
        assert!(second.fencing_token() > token);
        let second = second.downgrade().await.unwrap();
        drop(granted(third).await);
        second.release().await.unwrap();
        becomes_empty(&other, directory).await;
        eventually("no watch is left", || async { secured.server.watches() == 0 }).await;
    }

    #[support::judged]
    async fn a_tls_holder_cut_off_loses_the_lock_in_time() {
        let (secured, directory) = (open(), "/tls/cut-off");
        let proxy = Proxy::start_opaque(&secured.address);
        let short = options().session_timeout(Duration::from_secs(3));
        let holder = short.tls(secured.tls()).connect(&proxy.address()).await.unwrap();
        let other = connect_with(secured.tls(), &secured.address).await;
        let guard = lock_at(&holder, directory).write().await.unwrap();
        let next = writer(&lock_at(&other, directory));
        line_becomes(&lock_at(&other, directory), "W+ W-").await;

        proxy.black_hole();
        let lost = tokio::spawn(async move {
            let loss = guard.lost().await;
            assert!(!guard.is_held());
            (Instant::now(), loss)
        });
        let next = granted(next).await;
        let granted_at = Instant::now();
        let (lost_at, _) = soon("the loss", lost).await.unwrap();
        assert!(lost_at < granted_at, "lost {:?} after the grant", lost_at - granted_at);
        next.release().await.unwrap();
    }

    #[support::judged]
    async fn a_tls_wire_shows_no_password_path_or_user() {
        let secured = open();
        let secrets = ["eavesdropper", "open sesame", "whispered", "the-label"];
        for encrypted in [false, true] {
            let target = if encrypted { secured.address.clone() } else { secured.server.address() };
            let proxy = Proxy::start_opaque(target);
            let mut builder = options().digest(secrets[0], secrets[1]);
            if encrypted {
                builder = builder.tls(secured.tls());
            }
            let zk = builder.connect(&proxy.address()).await.unwrap();
            let guard = lock_at(&zk, "/tls-whispered").write().label("the-label").await.unwrap();
            guard.release().await.unwrap();
            assert!(proxy.bytes_to_server() > 0 && proxy.bytes_to_client() > 0);
            for secret in secrets {
                // Without TLS the proxy can read everything, which shows that `overheard` works.
                assert_eq!(proxy.overheard(secret), !encrypted, "{secret:?}, encrypted: {encrypted}");
            }
        }
    }

    #[support::judged]
    async fn digest_over_tls_keeps_strangers_out() {
        let secured = open();
        let builder = options().digest("owner", "secret").tls(secured.tls());
        let owner = builder.connect(&secured.address).await.unwrap();
        let guard = lock_at(&owner, "/tls-owned/lock").write().await.unwrap();
        let stranger = connect_with(secured.tls(), &secured.address).await;
        assert_shut_out(&stranger, "/tls-owned/lock", &guard.node_path()).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
    }

    #[support::judged]
    async fn a_tls_client_shows_nothing_to_a_plain_port() {
        let proxy = Proxy::start_opaque(shared_server().address());
        let options = || ZooKeeper::builder().digest("eavesdropper", "open sesame").tls(open().tls());
        let servers = format!("{}/apps", proxy.address());
        assert_unreachable(options, &servers, "the port may be one for clear text").await;
        assert!(proxy.bytes_to_server() > 0, "the client sent nothing");
        assert!(!proxy.overheard("eavesdropper") && !proxy.overheard("open sesame") && !proxy.overheard("/apps"));
    }

    #[support::judged]
    async fn a_plain_client_is_refused_by_a_tls_port() {
        let reason = "closes them without an answer: the port may be one for TLS";
        assert_unreachable(ZooKeeper::builder, &open().address, reason).await;
    }

    #[support::judged]
    async fn a_connect_string_against_the_options_is_refused() {
        let (clear, encrypted) = (Proxy::start_opaque(shared_server().address()), Proxy::start_opaque(&open().address));
        let (a, b) = (encrypted.address(), clear.address());
        for servers in [format!("tcp://{b}"), format!("{a},tcp://{b}/apps"), format!("tcp://{b},tcp+tls://{a}")] {
            let error = options().tls(open().tls()).connect(&servers).await.unwrap_err();
            assert!(matches!(&error, Error::InvalidInput(problem) if problem.contains("clear text")), "{error:?}");
        }
        for servers in [format!("tcp+tls://{a}"), format!("{b},tcp+tls://{a}/apps")] {
            let error = options().connect(&servers).await.unwrap_err();
            assert!(matches!(&error, Error::InvalidInput(problem) if problem.contains("tls")), "{error:?}");
        }
        // The client crate would panic on these names, so the library must refuse them.
        for servers in [format!("{a},-bad-.example:2281"), "under score:2281".to_owned(), "[::1%eth0]:2281".to_owned()]
        {
            let error = options().tls(open().tls()).connect(&servers).await.unwrap_err();
            assert!(matches!(&error, Error::InvalidInput(problem) if problem.contains("host")), "{error:?}");
        }
        assert_eq!((clear.connections(), encrypted.connections()), (0, 0));
        drop(connect_with(open().tls(), &format!("tcp+tls://{a}/apps")).await);
    }

    #[support::judged]
    async fn a_server_of_another_authority_is_refused() {
        let stranger = Tls::from_ca_pem(&Authority::new().pem).unwrap();
        assert_refused(stranger, "127.0.0.1", open(), "TLS: its certificate is not accepted: invalid peer certificate")
            .await;
        // A certificate is accepted if its authority is one of several.
        let both = format!("{}{}", Authority::new().pem, open().authority.pem);
        drop(connect_with(Tls::from_ca_pem(&both).unwrap(), &open().address).await);
    }

    #[support::judged]
    async fn a_server_certified_for_another_host_is_refused() {
        assert_refused(open().tls(), "localhost", open(), "not valid for name \"localhost\"").await;
    }

    #[support::judged]
    async fn a_server_whose_certificate_was_revoked_is_refused() {
        let secured = open();
        let revoked = format!("{}{}", secured.authority.pem, secured.authority.revocation_list(&secured.identity));
        assert_refused(Tls::from_ca_pem(&revoked).unwrap(), "127.0.0.1", secured, "certificate: Revoked").await;
    }

    /// The command `zklock`, which reads its certificates from files.
    #[support::judged]
    async fn zklock_accepts_an_authority_and_a_certificate() {
        let files = tempfile::tempdir().unwrap();
        let identity = mutual().authority.issue("web-1", "127.0.0.1");
        for (name, pem) in
            [("ca", &mutual().authority.pem), ("certificate", &identity.certificate), ("key", &identity.key)]
        {
            std::fs::write(files.path().join(name), pem).unwrap();
        }
        let file = |name| files.path().join(name).display().to_string();
        let whole = ["--tls-ca", &file("ca"), "--tls-cert", &file("certificate"), "--tls-key", &file("key")];
        for (options, code) in [(&whole[..], 0), (&whole[..2], 69), (&[], 69), (&whole[..4], 64), (&whole[2..], 64)] {
            // A client that is refused tries until its limit, and a handshake may take seconds on a busy machine.
            let limit = if code == 69 { "1500ms" } else { "60s" };
            let mut command = tokio::process::Command::new(program("zklock"));
            command.args(["--zk", &mutual().address, "--connect-timeout", limit]).args(options);
            command.args(["/tls/zklock", "true"]).env_remove("ZK_AUTH").kill_on_drop(true);
            let output = soon("the end", command.output()).await.unwrap();
            assert_eq!(output.status.code(), Some(code), "{options:?}: {output:?}");
        }
    }

    #[support::judged]
    async fn a_client_without_a_required_certificate_is_refused() {
        assert_refused(mutual().tls(), "127.0.0.1", mutual(), "TLS: it does not accept this client").await;
    }

    #[support::judged]
    async fn a_client_of_another_authority_is_refused() {
        let foreign = Authority::new().issue("web-1", "127.0.0.1");
        let tls = mutual().tls().identity_pem(&foreign.certificate, &foreign.key).unwrap();
        assert_refused(tls, "127.0.0.1", mutual(), "TLS: it does not accept this client").await;
    }

    #[support::judged]
    async fn machines_share_a_lock_unless_its_acl_names_one() {
        let address = &mutual().address;
        let one = connect_with(mutual().tls_as("web-1"), address).await;
        let two = connect_with(mutual().tls_as("web-2"), address).await;
        let guard = lock_at(&one, "/machines/shared").write().await.unwrap();
        let waiter = writer(&lock_at(&two, "/machines/shared"));
        line_becomes(&lock_at(&one, "/machines/shared"), "W+ W-").await;
        guard.release().await.unwrap();
        drop(granted(waiter).await);

        let mine = options().tls(mutual().tls_as("web-1")).acl(Acl::creator()).connect(address).await.unwrap();
        let guard = lock_at(&mine, "/machines-mine/lock").write().await.unwrap();
        assert_shut_out(&two, "/machines-mine/lock", &guard.node_path()).await;
        session(&one)
            .await
            .delete(&guard.node_path())
            .await
            .expect("the same name in the certificate is the same user");
    }

    #[support::judged]
    async fn a_renewed_certificate_serves_the_next_connection() {
        let foreign = Authority::new().issue("web-1", "127.0.0.1");
        let ours = mutual().authority.issue("web-1", "127.0.0.1");
        let tls = Tls::from_ca_pem(&Authority::new().pem).unwrap();
        let tls = tls.identity_pem(&foreign.certificate, &foreign.key).unwrap();
        let waiting = tokio::spawn(options().tls(tls.clone()).connect(&mutual().address).into_future());
        assert_refused(tls.clone(), "127.0.0.1", mutual(), "TLS: its certificate is not accepted").await;

        let broken = tls.renew_identity_pem(&ours.certificate, &foreign.key).unwrap_err();
        assert!(matches!(broken, Error::InvalidInput(_)), "{broken:?}");
        assert!(!waiting.is_finished());
        tls.renew_ca_pem(&mutual().authority.pem).unwrap();
        tls.renew_identity_pem(&ours.certificate, &ours.key).unwrap();
        drop(
            soon("the connection", waiting)
                .await
                .unwrap()
                .expect("a connection that is still tried takes the new ones"),
        );
    }

    #[test]
    fn unusable_certificates_are_refused_with_the_reason() {
        let authority = Authority::new();
        let (one, two) = (authority.issue("one", "127.0.0.1"), authority.issue("two", "127.0.0.1"));
        let tls = || Tls::from_ca_pem(&authority.pem).unwrap();
        let torn = authority.pem.replace("-----END CERTIFICATE-----", "");
        let garbled = authority.pem.replace("\nMII", "\n!!!");
        let hollow = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let bad_list = format!("{}-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", authority.pem);
        let answers = [
            ("authorities", Tls::from_ca_pem("")),
            ("authorities", Tls::from_ca_pem("not PEM at all")),
            ("authorities", Tls::from_ca_pem(&one.key)),
            ("authorities", Tls::from_ca_pem(&torn)),
            ("authorities", Tls::from_ca_pem(&garbled)),
            ("authorities", Tls::from_ca_pem(hollow)),
            ("authorities", Tls::from_ca_pem(&bad_list)),
            ("certificate", tls().identity_pem("", &one.key)),
            ("certificate", tls().identity_pem(&garbled, &one.key)),
            ("certificate", tls().identity_pem(&one.key, &one.key)),
            ("key", tls().identity_pem(&one.certificate, "")),
            ("key", tls().identity_pem(&one.certificate, &one.certificate)),
            ("key", tls().identity_pem(&one.certificate, &two.key)),
        ];
        for (number, (whose, answer)) in answers.into_iter().enumerate() {
            let error = answer.unwrap_err();
            let Error::InvalidInput(problem) = &error else { panic!("{number}: {error:?}") };
            assert!(problem.to_lowercase().contains(whose), "{number}: {problem}");
        }
    }

    /// The files of a user who follows the advice of an error.
    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Files {
            Files(tempfile::tempdir().unwrap())
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.0.path().join(name), text).unwrap();
        }

        fn read(&self, name: &str) -> String {
            std::fs::read_to_string(self.0.path().join(name)).unwrap()
        }

        /// Runs this line in the directory of the files.
        #[track_caller]
        fn run(&self, line: &str) {
            let mut command = std::process::Command::new("sh");
            let output = command.args(["-c", line]).current_dir(self.0.path()).output().unwrap();
            assert!(output.status.success(), "{line}: {output:?}");
        }

        /// Runs the command that the error names, with these words in place of its capitals.
        #[track_caller]
        fn follow(&self, error: &str, words: &[(&str, &str)], more: &str) {
            let advised = error.split('`').find(|text| text.contains(" -out NEW")).unwrap_or_else(|| panic!("{error}"));
            let line = words.iter().fold(advised.to_owned(), |line, (capitals, word)| line.replace(capitals, word));
            self.run(&format!("{line} {more}"));
        }
    }

    fn invalid(answer: Result<Tls, Error>) -> String {
        match answer {
            Err(Error::InvalidInput(problem)) => problem,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_encrypted_key_names_the_command_that_decrypts_it() {
        let files = Files::new();
        // The default of `openssl req -x509` is the certificate of an authority, which servers accept of a client.
        files.run("openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out certificate -days 9 -subj /CN=web-1");
        let certificate = files.read("certificate");
        let with = |key: &str| Tls::from_ca_pem(&certificate).unwrap().identity_pem(&certificate, &files.read(key));
        drop(with("key").expect("the key as `openssl req` writes it"));
        files.run("openssl rsa -in key -traditional -out traditional");
        drop(with("traditional").expect("a key in the older form"));
        files.run("openssl pkcs8 -topk8 -in key -passout pass:it -out encrypted");
        files.run("openssl rsa -in key -traditional -aes256 -passout pass:it -out encrypted-traditional");
        for name in ["encrypted", "encrypted-traditional"] {
            let refused = invalid(with(name));
            assert!(refused.starts_with("TLS identity: the private key: it is encrypted, and"), "{refused}");
            files.follow(&refused, &[("KEY", name), ("NEW", "decrypted")], "-passin pass:it");
            drop(with("decrypted").unwrap());
        }
    }

    #[test]
    fn a_key_or_certificate_of_an_unusable_kind_names_a_usable_one() {
        let files = Files::new();
        files.run("openssl req -x509 -newkey rsa:2048 -nodes -keyout CA.key -out CA.pem -days 9 -subj /CN=authority");
        let tls = || Tls::from_ca_pem(&files.read("CA.pem")).unwrap();
        let with = |certificate: &str, key: &str| tls().identity_pem(&files.read(certificate), &files.read(key));
        for kind in
            ["-algorithm RSA -pkeyopt rsa_keygen_bits:1024", "-algorithm EC -pkeyopt ec_paramgen_curve:secp256k1"]
        {
            files.run(&format!("openssl genpkey {kind} -out key"));
            let refused = invalid(with("CA.pem", "key"));
            assert!(refused.starts_with("TLS identity: the private key: it is none of the keys that TLS"), "{refused}");
            files.follow(&refused, &[("NEW", "key")], "");
        }
        // The key is now the one that the advice makes.
        files.run("openssl req -new -key key -subj /CN=web-1 -out request");
        files.write("extensions", "basicConstraints=CA:FALSE\n");
        let sign = "openssl x509 -req -in request -CA CA.pem -CAkey CA.key -CAcreateserial -days 9 -out";
        files.run(&format!("{sign} first-version"));
        // Later releases of OpenSSL add extensions by themselves, and so make version 3.
        if let Err(refused) = with("first-version", "key") {
            let refused = refused.to_string();
            assert!(refused.contains("the certificate: it is a certificate of X.509 version 1"), "{refused}");
            files.follow(
                &refused,
                &[("REQUEST", "request"), ("EXTENSIONS", "extensions"), ("NEW", "first-version")],
                "",
            );
            drop(with("first-version", "key").unwrap());
        }
        let refused = invalid(with("request", "key"));
        assert!(refused.contains("the certificate: it is a request for a certificate"), "{refused}");
        files.follow(&refused, &[("FILE", "request"), ("EXTENSIONS", "extensions"), ("NEW", "signed")], "");
        drop(with("signed", "key").unwrap());
        files.run("openssl x509 -in signed -trustout -out trusted");
        let refused = invalid(with("trusted", "key"));
        assert!(refused.contains("the certificate: it is a certificate in the form of OpenSSL"), "{refused}");
        files.follow(&refused, &[("FILE", "trusted"), ("NEW", "plain")], "");
        drop(with("plain", "key").unwrap());

        let openssh = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n";
        let refused = invalid(tls().identity_pem(&files.read("signed"), openssh));
        assert!(refused.contains("in the form of OpenSSH: `ssh-keygen -p -m PKCS8 -f COPY`"), "{refused}");
        let refused = invalid(tls().identity_pem("no PEM", &files.read("key")));
        assert!(refused.contains("a line that starts with -----BEGIN"), "{refused}");
    }

    #[test]
    fn a_byte_order_mark_hides_no_certificate_and_no_key() {
        let authority = Authority::new();
        let identity = authority.issue("web-1", "127.0.0.1");
        let marked = |pem: &str| format!("\u{feff}{pem}");
        let tls = Tls::from_ca_pem(&marked(&authority.pem)).unwrap();
        tls.renew_ca_pem(&marked(&authority.pem)).unwrap();
        tls.renew_identity_pem(&marked(&identity.certificate), &marked(&identity.key)).unwrap();
    }

    #[support::judged(flavor = "multi_thread")]
    async fn a_server_with_an_authoritys_certificate_names_the_cure() {
        let files = Files::new();
        files.run(
            "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out certificate -days 9 -subj /CN=127.0.0.1 -addext \
             subjectAltName=IP:127.0.0.1",
        );
        let own = |files: &Files| {
            let serial = SerialNumber::from(1);
            Identity { certificate: files.read("certificate"), key: files.read("key"), serial }
        };
        let first = own(&files);
        let (server, port) = Secured::start_as(&first, &first.certificate, "none");
        let address = port.address().to_string();
        let trusting = |identity: &Identity| Tls::from_ca_pem(&identity.certificate).unwrap();
        let why = "it is the certificate of an authority (CA:TRUE), as `openssl req -x509` makes by default: make";
        assert_unreachable(|| ZooKeeper::builder().tls(trusting(&first)), &address, why).await;
        let refused = options().tls(trusting(&first)).connect_timeout(LIMIT).connect(&address).await.unwrap_err();
        let words = [("KEY", "key"), ("NEW", "certificate"), ("DNS:HOST", "IP:127.0.0.1"), ("HOST", "127.0.0.1")];
        files.follow(&refused.to_string(), &words, "-days 9");
        let second = own(&files);
        server.replace_file("server.pem", &format!("{}{}", second.key, second.certificate));
        tokio::task::block_in_place(|| server.restart());
        drop(connect_with(trusting(&second), &address).await);
    }

    #[test]
    fn no_debug_output_shows_a_secret() {
        let authority = Authority::new();
        let identity = authority.issue("web-1", "127.0.0.1");
        let tls = Tls::from_ca_pem(&authority.pem).unwrap();
        let tls = tls.identity_pem(&identity.certificate, &identity.key).unwrap();
        let shown = format!("{:?}", options().digest("user", "open sesame").tls(tls));
        assert!(shown.contains("user") && shown.contains("Tls"), "{shown}");
        assert!(!shown.contains("open sesame") && !shown.contains("PRIVATE") && shown.len() < 400, "{shown}");
    }
}

// ---------------------------------------------------------------------------------------------------------------- SASL

mod sasl {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::OnceLock;

    use zk_rwlock::error::SessionEnd;
    use zk_rwlock::security::Sasl;

    use super::*;
    use support::rounds::shared;
    use support::server::{Server, WITH_JAAS};

    #[test]
    fn no_debug_output_shows_a_password() {
        let shown = format!("{:?}", ZooKeeper::builder().sasl(Sasl::digest_md5("user", "open sesame")));
        assert!(shown.contains("user") && !shown.contains("open sesame"), "{shown}");
    }

    fn users(alice: &str) -> String {
        let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
        format!("Server {{ {module} required user_alice=\"{alice}\" user_bob=\"password of bob\"; }};\n")
    }

    fn start(more_lines: &[&str]) -> Server {
        let mut lines = vec!["authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"];
        lines.extend(more_lines);
        let files = [("jaas.conf", users("password of alice"))];
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        Server::start_with_files(&files, &lines, &WITH_JAAS)
    }

    fn server() -> &'static Server {
        static SHARED: OnceLock<Server> = OnceLock::new();
        shared(&SHARED, || start(&[]))
    }

    fn as_user(name: &str) -> ZooKeeperBuilder {
        options().sasl(Sasl::digest_md5(name, &format!("password of {name}")))
    }

    /// Connects clients one after the other: ZooKeeper 3.8.0 has a single place for the user name of all logins, so two
    /// concurrent logins may get each other's reply.
    async fn login(builder: ZooKeeperBuilder, address: &str) -> Result<ZooKeeper, Error> {
        static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let _turn = ONE_AT_A_TIME.lock().await;
        soon("an answer to the login", builder.connect(address)).await
    }

    async fn sasl_user(name: &str, address: &str) -> ZooKeeper {
        login(as_user(name), address).await.expect("the server can be reached")
    }

    /// Returns the ACL of a node, as `scheme:id`, as a client without a login sees it.
    fn acl(address: &str, path: &str) -> Vec<String> {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut ask = |body: &[u8]| {
            stream.write_all(&[&(body.len() as i32).to_be_bytes(), body].concat()).unwrap();
            let mut length = [0; 4];
            stream.read_exact(&mut length).unwrap();
            let mut answer = vec![0; i32::from_be_bytes(length) as usize];
            stream.read_exact(&mut answer).unwrap();
            answer
        };
        // A handshake: version, last zxid, a timeout of 10 s, no session yet, a password of 16 zeros, not read-only.
        ask(&[&[0; 4][..], &[0; 8], &10_000_i32.to_be_bytes(), &[0; 8], &16_i32.to_be_bytes(), &[0; 16], &[0]].concat());
        let path_length = (path.len() as i32).to_be_bytes();
        let answer = ask(&[&1_i32.to_be_bytes()[..], &6_i32.to_be_bytes(), &path_length, path.as_bytes()].concat());
        let (header, mut rest) = answer.split_at(16);
        assert_eq!(header[12..], [0; 4], "getACL {path} was refused");
        let int = |rest: &mut &[u8]| {
            let (int, after) = rest.split_at(4);
            *rest = after;
            i32::from_be_bytes(int.try_into().unwrap())
        };
        let mut entries = Vec::new();
        for _ in 0..int(&mut rest) {
            let _permissions = int(&mut rest);
            let [scheme, id] = [(); 2].map(|()| {
                let (text, after) =
                    rest.split_at(4).1.split_at(i32::from_be_bytes(rest[..4].try_into().unwrap()) as usize);
                rest = after;
                String::from_utf8(text.to_vec()).unwrap()
            });
            entries.push(format!("{scheme}:{id}"));
        }
        entries
    }

    #[support::judged]
    async fn the_nodes_of_a_sasl_user_belong_to_that_user() {
        let address = server().address();
        // Everyone may read the node, and therefore its ACL.
        let readable = Acl::creator().allow("world", "anyone", Permissions::READ);
        let alice = login(as_user("alice").acl(readable), &address).await.unwrap();
        let guard = lock_at(&alice, "/readable/lock").write().await.unwrap();
        for path in ["/readable", "/readable/lock", &guard.node_path()] {
            assert_eq!(acl(&address, path), ["sasl:alice", "world:anyone"], "{path}");
        }
        guard.release().await.unwrap();
    }

    #[support::judged]
    async fn a_sasl_users_lock_is_closed_to_strangers() {
        let address = server().address();
        let (alice, colleague) = (sasl_user("alice", &address).await, sasl_user("alice", &address).await);
        let guard = lock_at(&alice, "/of-alice/lock").write().await.unwrap();
        for stranger in [
            sasl_user("bob", &address).await,
            options().digest("alice", "password of alice").connect(&address).await.unwrap(),
            connect(&address).await,
        ] {
            assert_shut_out(&stranger, "/of-alice/lock", &guard.node_path()).await;
        }
        assert_eq!(guard.state(), HoldState::Held);
        let waiter = writer(&lock_at(&colleague, "/of-alice/lock"));
        line_becomes(&lock_at(&alice, "/of-alice/lock"), "W+ W-").await;
        guard.release().await.unwrap();
        drop(granted(waiter).await);
        becomes_empty(&alice, "/of-alice/lock").await;
    }

    #[support::judged]
    async fn a_sasl_users_open_lock_can_be_stolen() {
        let address = server().address();
        let alice = login(as_user("alice").acl(Acl::anyone()), &address).await.unwrap();
        let guard = lock_at(&alice, "/open-by-alice/lock").write().await.unwrap();
        session(&connect(&address).await).await.delete(&guard.node_path()).await.unwrap();
        assert_eq!(soon("the loss", guard.lost()).await, Loss::Removed);
    }

    #[support::judged]
    async fn a_wrong_password_is_refused_at_once() {
        let wrong = [("alice", "guessed"), ("alice", ""), ("nobody", "guessed")];
        for (name, password) in wrong {
            let attempt = options().sasl(Sasl::digest_md5(name, password));
            let error = login(attempt, &server().address()).await.unwrap_err();
            // If the client hung instead, the error would be `Unreachable`.
            assert!(matches!(error, Error::Closed(SessionEnd::AuthFailed)), "{name}: {error:?}");
        }
    }

    #[support::judged]
    async fn a_user_name_misread_by_the_client_is_refused() {
        let proxy = Proxy::start_opaque(server().address());
        for name in ["", "a\"b", "a\\b", "a\nb"] {
            let error = options().sasl(Sasl::digest_md5(name, "x")).connect(&proxy.address()).await.unwrap_err();
            assert!(matches!(&error, Error::InvalidInput(problem) if problem.contains("SASL user")), "{error:?}");
        }
        assert_eq!(proxy.connections(), 0);
    }

    /// A server hashes a text in ISO 8859-1 if all of the text is in that character set, and otherwise in UTF-8.
    #[support::judged]
    async fn a_password_in_iso_8859_1_is_refused_unsent() {
        let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
        let users =
            format!("Server {{ {module} required user_alice=\"päß\" user_bob=\"пароль\" user_carol=\"päß я\"; }};\n");
        let provider = "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider";
        let server = Server::start_with_files(&[("jaas.conf", &users)], &[provider], &WITH_JAAS);
        for (name, password) in [("bob", "пароль"), ("carol", "päß я")] {
            let accepted = login(options().sasl(Sasl::digest_md5(name, password)), &server.address()).await;
            accepted.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let proxy = Proxy::start_opaque(server.address());
        for (name, password, whose) in [("alice", "päß", "password"), ("Jörg", "пароль", "name")] {
            let attempt = options().sasl(Sasl::digest_md5(name, password));
            let error = login(attempt, &proxy.address()).await.unwrap_err();
            let Error::InvalidInput(problem) = &error else { panic!("{name}: {error:?}") };
            let why = format!("SASL user \"{name}\": its {whose} is not ASCII, but ISO 8859-1");
            assert!(problem.starts_with(&why) && !problem.contains(password), "{problem}");
        }
        assert_eq!(proxy.connections(), 0);
    }

    #[support::judged]
    async fn many_logins_in_a_row_succeed() {
        // Each login uses other random numbers. One number in 16 is shorter than the others, and must work as well: 60 logins
        // almost surely include such a number.
        for _ in 0..60 {
            drop(sasl_user("bob", &server().address()).await);
        }
    }

    #[support::judged]
    async fn a_password_is_unreadable_on_a_plain_wire() {
        let proxy = Proxy::start_opaque(server().address());
        let alice = sasl_user("alice", &proxy.address()).await;
        lock_at(&alice, "/listened-to/lock").write().await.unwrap().release().await.unwrap();
        assert!(!proxy.overheard("password of alice"));
        assert!(
            proxy.overheard("alice") && proxy.overheard("/listened-to/lock"),
            "the proxy did not overhear the user name and the path"
        );
    }

    #[support::judged]
    async fn a_server_that_requires_sasl_refuses_other_clients() {
        let server = start(&["sessionRequireClientSASLAuth=true"]);
        let error = soon("the refusal", options().connect(&server.address())).await.unwrap_err();
        assert!(matches!(error, Error::Closed(SessionEnd::AuthFailed)), "{error:?}");
        let alice = sasl_user("alice", &server.address()).await;
        drop(lock_at(&alice, "/locks/insisting").write().await.unwrap());
    }

    #[support::judged]
    async fn a_sasl_client_refuses_a_server_without_sasl() {
        let (address, directory) = (shared_server().address(), "/unauthenticated/lock");
        // The lock is open to all, so only the missing login can be the reason of the refusal.
        let nobody = connect(&address).await;
        drop(lock_at(&nobody, directory).write().await.unwrap());
        becomes_empty(&nobody, directory).await;
        let alice = sasl_user("alice", &address).await;
        let error = soon("the refusal", lock_at(&alice, directory).write()).await.unwrap_err();
        assert!(matches!(&error, Error::InvalidAcl { path } if path == directory), "{error:?}");
        assert!(error.to_string().contains("may not have authenticated this client"), "{error}");
        assert_eq!(children(&nobody, directory).await, Vec::<String>::new());
    }

    #[support::judged(flavor = "multi_thread")]
    async fn withdrawn_credentials_end_waiters_and_holders() {
        let server = start(&[]);
        let directory = "/withdrawn/lock";
        let (nobody, alice) = (connect(&server.address()).await, sasl_user("alice", &server.address()).await);
        let first = lock_at(&nobody, directory).write().await.unwrap();
        let lock = lock_at(&alice, directory);
        let held = lock_at(&alice, "/withdrawn/held").write().await.unwrap();
        let (writers, readers) = ([(); 4].map(|()| writer(&lock)), [(); 4].map(|()| reader(&lock)));
        eventually("all are queued", || async { children(&nobody, directory).await.len() == 9 }).await;

        server.replace_file("jaas.conf", &users("a new password"));
        tokio::task::block_in_place(|| server.restart());
        // The session timeout is a minute, and the test waits far less. So the refused login causes this loss, and not the end of
        // the lease.
        assert_eq!(soon("the loss", held.lost()).await, Loss::SessionOver(SessionEnd::AuthFailed));
        assert!(!held.is_held());
        let mut errors = Vec::new();
        for waiter in writers {
            errors.push(refused(waiter).await);
        }
        for waiter in readers {
            errors.push(refused(waiter).await);
        }
        for error in errors {
            assert!(matches!(error, Error::Closed(SessionEnd::AuthFailed)), "{error:?}");
        }
        let error = soon("the refusal", lock.write()).await.unwrap_err();
        assert!(matches!(error, Error::Closed(SessionEnd::AuthFailed)), "{error:?}");
        soon("others are back", session(&nobody).await.store().until_connected()).await.unwrap();
        assert!(first.is_held(), "another session was affected");

        server.replace_file("jaas.conf", &users("password of alice"));
        tokio::task::block_in_place(|| server.restart());
        drop(
            soon("the lock", lock_at(&alice, "/withdrawn/again").write())
                .await
                .expect("corrected credentials are accepted"),
        );
    }
}
