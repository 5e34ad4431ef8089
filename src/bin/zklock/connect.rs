//! From options to a connection; knows no queues.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use zk_rwlock::coordinator::{Failure, Reply, Session};
use zk_rwlock::{Ending, Error, Loss, Memory, RwLock, Sasl, Tls, ZooKeeper};

use crate::arguments::Connection;
use crate::credentials::{credentials, source};
use crate::exit::Exit;

/// Connects to look at `path`, and waits for a session. Refuses at once a path that no lock can have.
pub(crate) async fn connect_to(path: &str, connection: &Connection) -> Result<ZooKeeper, Exit> {
    // The root is no lock, but locks may be below it.
    if path != "/" {
        RwLock::new(&Memory::new(), path)?;
    }
    connect(connection).await
}

/// Connects, and waits for a session.
pub(crate) async fn connect(connection: &Connection) -> Result<ZooKeeper, Exit> {
    connect_within(connection.connect_timeout.unwrap_or(connection.session_timeout), connection).await
}

/// Connects, and tries to reach a server for so long at most.
pub(crate) async fn connect_within(limit: Duration, connection: &Connection) -> Result<ZooKeeper, Exit> {
    // A quarter of the session timeout is left for the command to stop in when the lock is lost. `docs/zklock.md` promises
    // that a break of 0.4 of the session timeout costs no lock. With more than a quarter, that would take several
    // heartbeats a second.
    let timeout = connection.session_timeout;
    let mut builder = ZooKeeper::builder().session_timeout(timeout).connect_timeout(limit);
    if !timeout.is_zero() {
        builder = builder.stop_margin(timeout / 4);
    }
    if let Some(tick) = connection.tick_time {
        builder = builder.tick_time(tick);
    }
    if let Some((user, password)) = credentials("--auth", connection.auth.as_deref(), connection.auth_file.as_deref())?
    {
        builder = builder.digest(&user, &password);
    }
    if let Some((user, password)) = credentials("--sasl", connection.sasl.as_deref(), connection.sasl_file.as_deref())?
    {
        builder = builder.sasl(Sasl::digest_md5(&user, &password));
    }
    if let Some(tls) = tls(connection)? {
        builder = builder.tls(tls);
    }
    builder.connect(&connection.zk).await.map_err(|error| told(error, connection))
}

/// An error in words of the command line, where it is about what was set there.
pub(crate) fn told(error: Error, connection: &Connection) -> Exit {
    let exit = Exit::from(error.clone());
    let sasl = source("--sasl", connection.sasl.as_deref(), connection.sasl_file.as_deref());
    let set = sasl.or_else(|| source("--auth", connection.auth.as_deref(), connection.auth_file.as_deref()));
    let words = match (error, set) {
        (Error::InvalidAcl { .. }, Some(set)) => {
            format!("{set} is set, but these servers have not authenticated its user: they may not be set up for it")
        }
        (Error::Closed(Ending::AuthFailed), Some(set)) => format!("the servers refuse the credentials in {set}"),
        (Error::Closed(Ending::AuthFailed), None) => {
            "the servers refuse a client without credentials: set ZK_SASL or ZK_AUTH".to_owned()
        }
        (Error::Lost(why) | Error::Evicted(why), Some(set)) if why == Loss::SessionOver(Ending::AuthFailed) => {
            format!("{}; they are those in {set}", exit.message())
        }
        _ => return exit,
    };
    Exit::new(exit.code(), words)
}

/// The lock at `path`, to read its queue.
pub(crate) fn lock(zk: &ZooKeeper, path: &str, connection: &Connection) -> Result<RwLock, Error> {
    RwLock::builder(zk, path).dialect(connection.dialect).build()
}

/// The answer, unless the server gives none within a session timeout.
pub(crate) async fn answered<T>(session: &Arc<dyn Session>, reply: Reply<T>) -> Result<T, Failure> {
    let limit = session.timeout();
    tokio::time::timeout(limit, reply).await.unwrap_or_else(|_| {
        Err(Failure::Unreachable(format!("no answer within {}", humantime::format_duration(limit))))
    })
}

fn tls(connection: &Connection) -> Result<Option<Tls>, Exit> {
    let given = |file: &Option<PathBuf>| file.clone().filter(|file| !file.as_os_str().is_empty());
    let identity = match (given(&connection.tls_cert), given(&connection.tls_key)) {
        (Some(certificate), Some(key)) => Some((read(&certificate)?, read(&key)?)),
        (None, None) => None,
        _ => return Err(Exit::usage("--tls-cert and --tls-key go together")),
    };
    match (given(&connection.tls_ca), identity) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Exit::usage("--tls-cert needs --tls-ca")),
        (Some(ca), None) => Ok(Some(Tls::from_ca_pem(&read(&ca)?)?)),
        (Some(ca), Some((certificate, key))) => {
            Ok(Some(Tls::from_ca_pem(&read(&ca)?)?.identity_pem(&certificate, &key)?))
        }
    }
}

fn read(file: &Path) -> Result<String, Exit> {
    fs::read_to_string(file).map_err(|error| Exit::usage(format!("{}: {error}", file.display())))
}
