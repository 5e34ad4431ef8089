//! A lock of a Kerberos user. `make kerberos` sets up the realm by `tests/kerberos.sh` and runs this test.

// Without this cfg, the library is built without Kerberos.
#![cfg(zk_rwlock_gssapi)]

use std::time::Duration;

use support::scene::{CALM, SOON, becomes_empty, connect, granted, line_becomes, lock_at, session, soon, writer};
use support::server::Server;
use zk_rwlock::coordinator::Failure;
use zk_rwlock::security::Sasl;
use zk_rwlock::{Error, ZooKeeper, ZooKeeperBuilder};

fn start() -> Server {
    let realm = std::env::var("ZK_RWLOCK_REALM").expect("`make kerberos` names the realm's directory");
    let jaas = format!(
        "Server {{ com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true \
         useTicketCache=false keyTab=\"{realm}/zookeeper.keytab\" principal=\"zookeeper/localhost@LOCKS.TEST\"; }};\n"
    );
    Server::start_with_files(
        &[("jaas.conf", &jaas)],
        &["authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"],
        &[
            "-Djava.security.auth.login.config={home}/jaas.conf",
            &format!("-Djava.security.krb5.conf={realm}/krb5.conf"),
        ],
    )
}

/// Returns the server's address with the host name of the server's principal.
fn named(server: &Server) -> String {
    server.address().replace("127.0.0.1", "localhost")
}

fn as_service(service: &str, host: Option<&str>) -> ZooKeeperBuilder {
    ZooKeeper::builder().session_timeout(CALM).sasl(Sasl::gssapi(service, host))
}

#[support::judged]
async fn a_kerberos_users_lock_is_closed_to_strangers() {
    let (server, directory) = (start(), "/of-alice/lock");
    let alice = soon("the login", as_service("zookeeper", None).connect(&named(&server))).await.unwrap();
    let by_address = as_service("zookeeper", Some("localhost"));
    let colleague = soon("the login", by_address.connect(&server.address())).await.unwrap();
    let stranger = connect(&server.address()).await;
    let guard = lock_at(&alice, directory).write().await.unwrap();
    let waiter = writer(&lock_at(&colleague, directory));
    line_becomes(&lock_at(&alice, directory), "W+ W-").await;

    assert!(matches!(session(&stranger).await.delete(&guard.node_path()).await, Err(Failure::NoAuth(_))));
    let error = lock_at(&stranger, directory).write().await.unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
    guard.release().await.unwrap();
    drop(granted(waiter).await);
    becomes_empty(&alice, directory).await;
}

#[support::judged]
async fn a_principal_unknown_to_the_realm_is_refused() {
    let server = start();
    for (service, host) in [("nobody", None), ("zookeeper", Some("elsewhere.test"))] {
        let limit = Duration::from_secs(2);
        let attempt = as_service(service, host).connect_timeout(limit);
        let error = soon("the refusal", attempt.connect(&named(&server))).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    }
    for (service, host) in [("", None), ("zookeeper", Some(""))] {
        let error = as_service(service, host).connect_timeout(SOON).connect(&named(&server)).await.unwrap_err();
        assert!(matches!(error, Error::InvalidInput(_)), "{error:?}");
    }
}
