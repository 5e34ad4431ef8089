//! How a session is opened, and how patiently; knows nothing of its use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zookeeper_client as zk;

use crate::session::lease::{Moment, since_boot};
use crate::session::request::Failure;
use crate::session::thread::BackgroundThread;
use crate::zookeeper::abilities::Abilities;
use crate::zookeeper::options::{SHORTEST_TIMEOUT, ZooKeeperBuilder};
use crate::zookeeper::probe::reason;
use crate::zookeeper::servers::Servers;
use crate::zookeeper::session::ZooKeeperSession;
use crate::zookeeper::translate::connect_failure;

/// How long before an attempt ends, at most, the servers are asked why there is no session. A slow one may need that long.
const ASKED_AHEAD: Duration = Duration::from_secs(3);

/// From this session timeout on, a silent connection is given up sooner than the client crate would.
const LONG: Duration = Duration::from_secs(3);

/// A shorter limit would take every pause of a server for a break.
const QUICKEST: Duration = Duration::from_millis(350);

/// How long a client bears with a silent server. Quick and patient attempts take turns, so that a slow server is
/// reached, too, although it answers later than a quick client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// Soon gives up a silent connection, or an attempt at one, for a fresh one. After a break the kernel sends lost
    /// data again after longer and longer pauses, so a fresh connection is sooner back.
    Quick,
    /// Gives up a silent connection as late as the client crate does by default: for slow servers.
    Patient,
}

impl Patience {
    /// How soon a quick client's connection counts as silent.
    ///
    /// Short sessions have the client crate's own limit: a shorter one would take every pause of a server for a break.
    fn quick(session_timeout: Duration) -> Duration {
        if session_timeout < LONG { session_timeout * 2 / 5 } else { (session_timeout / 12).max(QUICKEST) }
    }

    /// How long a connection may be silent; `None` for the client crate's default.
    fn silence(self, session_timeout: Duration) -> Option<Duration> {
        match self {
            Patience::Quick => Some(Patience::quick(session_timeout)),
            Patience::Patient => None,
        }
    }

    /// How long one attempt to open a session may take.
    fn limit(self, session_timeout: Duration) -> Duration {
        match self {
            Patience::Quick => session_timeout / 4,
            Patience::Patient => session_timeout,
        }
    }

    /// Whether a session that was opened this way is kept. A patient client's session is not, if the server is quick
    /// now: the server was away, and not slow.
    async fn suits(self, client: &zk::Client, session_timeout: Duration) -> bool {
        let asked = Instant::now();
        self == Patience::Quick
            || client.check_stat("/").await.is_err()
            || asked.elapsed() > Patience::quick(session_timeout) / 4
    }
}

/// Opens a session. Also returns the earliest moment at which the session can have begun. Tries for as long as it is
/// polled.
async fn open(servers: &Servers, options: &ZooKeeperBuilder) -> Result<(zk::Client, Moment), zk::Error> {
    let timeout = options.session_timeout;
    let (named, encrypted) = (to_connect_to(servers, timeout), options.is_encrypted());
    for patience in [Patience::Quick, Patience::Patient].into_iter().cycle() {
        let asked = since_boot();
        let connecting = connect(options.connector(patience.silence(timeout)), &named, encrypted);
        let client = match tokio::time::timeout(patience.limit(timeout), connecting).await {
            // The client crate gives up after a session timeout, whatever limit it is given.
            Err(_) | Ok(Err(zk::Error::Timeout)) => continue,
            Ok(answer) => answer?,
        };
        if patience.suits(&client, timeout).await {
            return Ok((client, asked));
        }
    }
    Err(zk::Error::Timeout)
}

/// Opens a session, and makes the path at the end of the connect string.
pub(super) async fn new_session(
    servers: Servers,
    options: ZooKeeperBuilder,
    background: Arc<BackgroundThread>,
    abilities: Arc<Abilities>,
) -> Result<Arc<ZooKeeperSession>, Failure> {
    let bound = options.bound();
    let (client, asked) = tokio::select! {
        biased;
        connected = open(&servers, &options) => connected.map_err(|error| connect_failure(error, servers.as_str()))?,
        why = reason_at_the_end(&servers, &options, bound) => {
            let waited = humantime::format_duration(bound);
            return Err(Failure::Unreachable(format!("no session with {servers} within {waited}: {why}")));
        }
    };
    if client.session_timeout() < SHORTEST_TIMEOUT {
        return Err(Failure::Unreachable(format!("{servers} grants sessions no time to live")));
    }
    let session = ZooKeeperSession::new(client, &background, &options, asked, abilities, servers.clone())?;
    let late =
        || Failure::Unreachable(format!("{servers} does not answer within {}", humantime::format_duration(bound)));
    tokio::time::timeout(bound, session.make_root()).await.map_err(|_| late())??;
    Ok(session)
}

/// Waits for so long, and asks the servers why there is no session when that is nearly over.
async fn reason_at_the_end(servers: &Servers, options: &ZooKeeperBuilder, bound: Duration) -> String {
    let end = tokio::time::Instant::now() + bound;
    let patience = ASKED_AHEAD.min(bound / 2);
    tokio::time::sleep_until(end - patience).await;
    let why = reason(servers, options, patience).await.words;
    tokio::time::sleep_until(end).await;
    why
}

async fn connect(connector: zk::Connector, servers: &str, encrypted: bool) -> Result<zk::Client, zk::Error> {
    #[cfg(feature = "tls")]
    if encrypted {
        return connector.secure_connect(servers).await;
    }
    debug_assert!(!encrypted, "only the feature can ask for it");
    connector.connect(servers).await
}

/// The list of servers for the client crate. Each server is named several times.
///
/// The client crate doubles its pauses with each round through the list. So with a short list it might come back only
/// when twice the length of the break has passed: too late for the lease. Within a round the pauses grow by 50 ms only,
/// and the first round has none. The client crate shuffles the list, so a frozen server of several may come twice in a
/// row, which costs [little](Patience::Quick).
fn to_connect_to(servers: &Servers, session_timeout: Duration) -> String {
    // The second round begins after 100 ms for each name, at most 1 s, and the third half a session timeout later.
    let names = (session_timeout.as_millis() / 300).clamp(2, 24);
    let times = (names as usize).div_ceil(servers.each().count());
    vec![servers.list(); times].join(",") + servers.root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_named_several_times() {
        let second = Duration::from_secs(1);
        let to_connect_to = |servers, timeout| to_connect_to(&Servers::parse(servers).unwrap(), timeout);
        assert_eq!(to_connect_to("a:1,b:2/root", second), "a:1,b:2,a:1,b:2/root");
        assert_eq!(to_connect_to("a:1/root/of", second), "a:1,a:1,a:1/root/of");
        assert_eq!(to_connect_to("tcp://[::1]:2181", second), "tcp://[::1]:2181,tcp://[::1]:2181,tcp://[::1]:2181");
        assert_eq!(to_connect_to("tcp://a,tcp://b/c", second), "tcp://a,tcp://b,tcp://a,tcp://b/c");
        assert_eq!(to_connect_to("a", 60 * second).split(',').count(), 24);
        assert_eq!(to_connect_to("a,b,c,d,e", 60 * second).split(',').count(), 25);
    }

    /// By a clock that stands still while anything is done, so a busy machine changes nothing.
    #[tokio::test(start_paused = true)]
    async fn why_there_is_no_session_is_told_when_the_limit_is_over_and_no_later() {
        let servers = Servers::parse("127.0.0.1:1").unwrap();
        for limit in [Duration::from_secs(3), Duration::from_millis(300), Duration::from_secs(3600)] {
            let begun = tokio::time::Instant::now();
            let why = reason_at_the_end(&servers, &ZooKeeperBuilder::new(), limit).await;
            assert!(why.starts_with("127.0.0.1:1: "), "{why}");
            assert_eq!(begun.elapsed(), limit);
        }
    }
}
