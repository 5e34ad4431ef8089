//! How a session is opened, and how patiently; knows nothing of what it is used for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zookeeper_client as zk;

use crate::session::lease::{Moment, since_boot};
use crate::session::request::Failure;
use crate::session::thread::Keeper;
use crate::zookeeper::abilities::Abilities;
use crate::zookeeper::options::ZooKeeperBuilder;
use crate::zookeeper::session::ZooKeeperSession;
use crate::zookeeper::translate::{UNTRUSTED_HINT, connect_failure};

/// A server that grants less, zero say, does not mean to keep the session; the client would make 8 ms of it.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(20);

/// From this session timeout on a silent connection is given up sooner than the client crate would.
const LONG: Duration = Duration::from_secs(3);

/// As soon as that is possible without taking every pause of a server's for a break.
const QUICKEST: Duration = Duration::from_millis(500);

/// How soon a silent connection is given up for a fresh one, and each attempt at one: the sooner, the sooner a break
/// is over when it is over, since the kernel sends what was lost again after longer and longer pauses.
///
/// A session of a moment has the client crate's own measure: less would take every pause of a server's for a break.
fn quick(session_timeout: Duration) -> Duration {
    if session_timeout < LONG { session_timeout * 2 / 5 } else { (session_timeout / 12).max(QUICKEST) }
}

/// Opens a session, and tells when it was asked for at the earliest.
///
/// A server that takes longer to answer than a quick client waits is met with patience, for as long as the session lasts.
async fn open(servers: &str, options: &ZooKeeperBuilder) -> Result<(zk::Client, Moment), zk::Error> {
    let (named, quick, encrypted) =
        (to_connect_to(servers, options.session_timeout), quick(options.session_timeout), options.is_encrypted());
    for patience in [Some(quick), None].into_iter().cycle() {
        let (asked, limit) = (since_boot(), options.session_timeout / if patience.is_some() { 4 } else { 1 });
        let connecting = connect(options.connector(patience), &named, encrypted);
        let client = match tokio::time::timeout(limit, connecting).await {
            // It gives up after a session timeout, whatever time it has.
            Err(_) | Ok(Err(zk::Error::Timeout)) => continue,
            Ok(answer) => answer?,
        };
        let checked = Instant::now();
        // It was not slow, but away.
        if patience.is_some() || client.check_stat("/").await.is_err() || checked.elapsed() > quick / 4 {
            return Ok((client, asked));
        }
    }
    Err(zk::Error::Timeout)
}

/// Opens a session, and makes the path that the connect string ends with.
pub(super) async fn new_session(
    servers: String,
    options: ZooKeeperBuilder,
    keeper: Arc<Keeper>,
    abilities: Arc<Abilities>,
) -> Result<Arc<ZooKeeperSession>, Failure> {
    let encrypted = options.is_encrypted();
    let connecting = open(&servers, &options);
    let bound = options.bound();
    let Ok(connected) = tokio::time::timeout(bound, connecting).await else {
        let waited = humantime::format_duration(bound);
        let hint = if encrypted { UNTRUSTED_HINT } else { "" };
        return Err(Failure::Unreachable(format!("no session with {servers} within {waited}{hint}")));
    };
    let (client, asked) = connected.map_err(|error| connect_failure(error, &servers, encrypted))?;
    if client.session_timeout() < SHORTEST_TIMEOUT {
        return Err(Failure::Unreachable(format!("{servers} grants sessions no time to live")));
    }
    let session = ZooKeeperSession::new(client, &keeper, &options, asked, abilities)?;
    let late =
        || Failure::Unreachable(format!("{servers} does not answer within {}", humantime::format_duration(bound)));
    tokio::time::timeout(bound, session.make_root()).await.map_err(|_| late())??;
    Ok(session)
}

async fn connect(connector: zk::Connector, servers: &str, encrypted: bool) -> Result<zk::Client, zk::Error> {
    #[cfg(feature = "tls")]
    if encrypted {
        return connector.secure_connect(servers).await;
    }
    debug_assert!(!encrypted, "only the feature can ask for it");
    connector.connect(servers).await
}

/// The list of servers as the client is given it: each is named several times.
///
/// The client doubles its pauses with each round through the list, so that it would come back only up to twice as long
/// after a break began as the break lasted: too late for the lease. Within a round the pauses grow by 50 ms only, and in
/// the first there are none. It shuffles the list, so a frozen one of several may come twice in a row, which costs
/// [little](quick).
fn to_connect_to(servers: &str, session_timeout: Duration) -> String {
    let last = servers.rfind(',').map_or(0, |comma| comma + 1);
    let scheme = servers[last..].find("://").map_or(last, |colon| last + colon + "://".len());
    let root = servers[scheme..].find('/').map_or(servers.len(), |slash| scheme + slash);
    let (servers, root) = servers.split_at(root);
    // The second round begins after 100 ms for each name, at most 1 s, and the third half a session timeout later.
    let names = (session_timeout.as_millis() / 300).clamp(2, 24);
    let times = (names as usize).div_ceil(servers.split(',').count());
    vec![servers; times].join(",") + root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_named_several_times() {
        let second = Duration::from_secs(1);
        assert_eq!(to_connect_to("a:1,b:2/root", second), "a:1,b:2,a:1,b:2/root");
        assert_eq!(to_connect_to("a:1/root/of", second), "a:1,a:1,a:1/root/of");
        assert_eq!(to_connect_to("tcp://[::1]:2181", second), "tcp://[::1]:2181,tcp://[::1]:2181,tcp://[::1]:2181");
        assert_eq!(to_connect_to("tcp://a,tcp://b/c", second), "tcp://a,tcp://b,tcp://a,tcp://b/c");
        assert_eq!(to_connect_to("a", 60 * second).split(',').count(), 24);
        assert_eq!(to_connect_to("a,b,c,d,e", 60 * second).split(',').count(), 25);
    }
}
