//! Opens a session. Repeats the attempts to connect, pauses between them, and finds the reason if none succeeds.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use zookeeper_client as zk;

use crate::session::contract::Session;
use crate::session::lease::{Lease, Moment, since_boot};
use crate::session::request::{Ending, Failure};
use crate::session::retry::{self, Tries};
use crate::session::thread::{BackgroundThread, Tasks};
use crate::sync::random;
use crate::telemetry::log::emit;
use crate::zookeeper::abilities::KeeperMark;
use crate::zookeeper::attempts::{Limit, end_slow_attempts, end_slow_reconnects};
use crate::zookeeper::connect_policy::{ConnectPolicy, reconnect_jitter};
use crate::zookeeper::options::{SHORTEST_TIMEOUT, ZooKeeperBuilder};
use crate::zookeeper::probe::{reason, silent};
use crate::zookeeper::server_order::{ClientEnded, ServerOrder, connect_in_order};
use crate::zookeeper::servers::Servers;
use crate::zookeeper::session::ZooKeeperSession;
use crate::zookeeper::translate::connect_failure;

/// The longest time before the end of `connect` at which the servers are probed for the reason of its failure. A slow
/// server may need so long to answer a probe.
const PROBE_AHEAD: Duration = Duration::from_secs(3);

/// The time after which an attempt to open a session is slow, so that the servers are probed. Such an attempt may be
/// waiting for a server that answers nothing.
const LONG_FOR_AN_ATTEMPT: Duration = Duration::from_millis(150);

/// The longest time that servers get to answer a probe while an attempt to open a session is under way.
const LONG_FOR_AN_ANSWER: Duration = Duration::from_millis(300);

/// When a lost session may be replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reconnect {
    /// When the last request of the lost session that was answered was sent.
    answered: Moment,
    /// When the first attempt to open a new session may start.
    due: Moment,
}

impl Reconnect {
    /// Returns when a session that expired, or that a server replaced, may be replaced by a new one. `None` if the
    /// session is not over, or is over for another reason.
    pub(super) fn after(lease: &Lease) -> Option<Reconnect> {
        let is_lost = matches!(lease.over(), Some(Ending::Expired | Ending::Replaced));
        let (answered, ended) = lease.away().filter(|_| is_lost)?;
        let due = ended + reconnect_jitter(ended.saturating_sub(answered), lease.timeout(), random());
        Some(Reconnect { answered, due })
    }

    /// Waits until the first attempt may start, but at most for half of `bound`, the time limit for all attempts
    /// together.
    async fn is_due(self, bound: Duration) {
        tokio::time::sleep(self.due.saturating_sub(since_boot()).min(bound / 2)).await;
    }

    /// Waits for a random pause between two attempts.
    async fn rest(self, options: &ZooKeeperBuilder) {
        let away = since_boot().saturating_sub(self.answered);
        tokio::time::sleep(reconnect_jitter(away, options.session_timeout.min(options.bound()), random())).await;
    }
}

/// Opens a session. An attempt that times out is repeated until the future is dropped. Also returns the limit of an
/// attempt to connect to one server, and a moment before the handshake of the session was sent.
///
/// If the session replaces a lost one, each attempt goes through the list of servers once, and a random pause follows a
/// failed attempt. The client crate by itself would repeat the list with pauses of at most a second, so all clients of
/// an ensemble would come back within a second.
async fn open(
    tasks: &Tasks,
    servers: &Servers,
    options: &ZooKeeperBuilder,
    lost: Option<Reconnect>,
) -> Result<(zk::Client, ClientEnded, Option<Duration>, Moment), zk::Error> {
    let (timeout, encrypted) = (options.session_timeout, options.is_encrypted());
    let mut silent = Silent::default();
    let (mut policy, mut was_given_up) = (ConnectPolicy::Quick, false);
    loop {
        let started = since_boot();
        let attempt = options.attempt(policy);
        let _of_this_client = Limit::of(servers, attempt);
        let limit = policy.limit(timeout).max(attempt.unwrap_or_default());
        let (named, order) = connect_string(servers, timeout, &silent.servers);
        let connecting = connect(options.connector(options.silence(policy), lost.is_some()), &named, encrypted);
        let (connected, ended) = tokio::select! {
            biased;
            connected = connect_in_order(tasks, order, tokio::time::timeout(limit, connecting)) => connected,
            () = silent.are_found(servers, options) => continue,
            () = end_slow_attempts(attempt, servers) => continue,
        };
        match connected {
            // The client crate itself gives up after a session timeout, even if `limit` is longer.
            Err(_) | Ok(Err(zk::Error::Timeout)) => policy = policy.after_silence(),
            Ok(Err(zk::Error::NoHosts)) if lost.is_some() => {
                policy = policy.after_refusals(since_boot().saturating_sub(started), timeout);
            }
            Ok(answer) => {
                let client = answer?;
                // The session of a second patient attempt is used without a test. The quick attempt between the two
                // patient attempts has failed, so the handshake or the name service is slow.
                if !policy.is_tried() || was_given_up || suits(&client, timeout).await {
                    return Ok((client, ended, attempt, started));
                }
                (policy, was_given_up) = (ConnectPolicy::Quick, true);
                continue;
            }
        }
        if let Some(lost) = lost {
            lost.rest(options).await;
        }
    }
}

/// The servers that do not answer at all, not even with a refusal. The client crate would wait for such a server each
/// time that its list names it, and the list may name it several times in a row.
#[derive(Default)]
struct Silent {
    servers: BTreeSet<usize>,
    is_known: bool,
}

impl Silent {
    /// Waits until the present attempt to open a session is slow, and probes the servers once, on other connections.
    /// Returns if some servers are silent; otherwise the future never completes.
    async fn are_found(&mut self, servers: &Servers, options: &ZooKeeperBuilder) {
        if self.is_known || servers.each().count() == 1 {
            return pending().await;
        }
        tokio::time::sleep(LONG_FOR_AN_ATTEMPT).await;
        let found = silent(servers, options, LONG_FOR_AN_ANSWER).await;
        self.is_known = true;
        if found.is_empty() {
            return pending().await;
        }
        emit!(DEBUG, %servers, silent = ?found, "some servers answer nothing: the others are tried more often");
        self.servers = found;
    }
}

/// Tests a session that a patient attempt has opened, by one request. Returns whether the session is good enough to be
/// used: see [`ConnectPolicy::suits`].
async fn suits(client: &zk::Client, session_timeout: Duration) -> bool {
    let sent = since_boot();
    client.check_stat("/").await.is_err() || ConnectPolicy::suits(since_boot().saturating_sub(sent), session_timeout)
}

/// Opens a session, and creates the path at the end of the connect string unless an option says otherwise. If the
/// session replaces a `lost` one, a random pause comes first.
pub(super) async fn new_session(
    servers: Servers,
    options: ZooKeeperBuilder,
    background: Arc<BackgroundThread>,
    keeper: Arc<KeeperMark>,
    lost: Option<Reconnect>,
) -> Result<Arc<ZooKeeperSession>, Failure> {
    let bound = options.bound();
    let opened = async {
        if let Some(lost) = lost {
            lost.is_due(bound).await;
        }
        open(background.handle(), &servers, &options, lost).await
    };
    let (client, ended, attempt, started) = tokio::select! {
        biased;
        connected = opened => connected.map_err(|error| connect_failure(error, servers.as_str()))?,
        why = reason_at_the_end(&servers, &options, bound) => {
            let waited = humantime::format_duration(bound);
            return Err(Failure::Unreachable(format!("no session with {servers} within {waited}: {why}")));
        }
    };
    if client.session_timeout() < SHORTEST_TIMEOUT {
        let (granted, least) = (client.session_timeout(), SHORTEST_TIMEOUT);
        return Err(Failure::Unreachable(format!(
            "{servers} grants a session timeout of {granted:?}: it must be from {least:?}"
        )));
    }
    let session = ZooKeeperSession::new((client, ended), &background, &options, started, keeper, servers.clone())?;
    background.handle().spawn(end_slow_reconnects(attempt, servers.clone(), Arc::clone(session.store())));
    let (timeout, rides_out) = (session.lease().timeout(), options.rides_out(session.lease()));
    emit!(INFO, ?timeout, ?rides_out, "a session begins: a break of the connection that lasts no longer costs no lock");
    let late =
        || Failure::Unreachable(format!("{servers} does not answer within {}", humantime::format_duration(bound)));
    let shared: Arc<dyn Session> = session.clone();
    if !options.makes_root_at_once {
        return Ok(session);
    }
    let root_made = retry::repeated(&shared, Tries::ENDLESS, || shared.make_root());
    match tokio::time::timeout(bound, root_made).await.unwrap_or_else(|_| Err(late())) {
        // The failure is mapped to `Unreachable`, because `Over` would tell callers that no later session can succeed.
        Err(Failure::Over(Ending::Expired | Ending::Replaced | Ending::Failed)) => {
            Err(Failure::Unreachable(format!("a session with {servers} was over before its first answer")))
        }
        made => made.map(|()| session),
    }
}

/// Waits for `bound`, and returns the reason why there is no session. Probes the servers for the reason shortly before
/// the end.
async fn reason_at_the_end(servers: &Servers, options: &ZooKeeperBuilder, bound: Duration) -> String {
    let ahead = PROBE_AHEAD.min(bound / 2);
    // Two timers, and no `sleep_until(Instant::now() + bound)` after the probe, because that sum overflows if `bound`
    // is very long.
    let (nearly, end) = (tokio::time::sleep(bound - ahead), tokio::time::sleep(bound));
    nearly.await;
    let why = reason(servers, options, ahead).await.words;
    end.await;
    why
}

async fn connect(connector: zk::Connector, servers: &str, encrypted: bool) -> Result<zk::Client, zk::Error> {
    #[cfg(feature = "tls")]
    if encrypted {
        return connector.secure_connect(servers).await;
    }
    debug_assert!(!encrypted, "only the feature `tls` can encrypt");
    connector.connect(servers).await
}

/// Returns the connect string for the client crate, and the order of the servers in it. The string names each server
/// several times, but a silent server only once.
///
/// The client crate doubles its pauses with each round through the list. With a short list, a pause could be as long as
/// the break of the connection before it. The next attempt would then come too late for the lease. Within a round the
/// pauses grow by only 50 ms, and the first round has none.
fn connect_string(servers: &Servers, session_timeout: Duration, silent: &BTreeSet<usize>) -> (String, ServerOrder) {
    // The client crate begins the second round 100 ms after the first for each name in the list, but at most 1 s after
    // it. It begins the third round half a session timeout later.
    let names = (session_timeout.as_millis() / 300).clamp(2, 24);
    let of = |is_silent| {
        let some = servers.each().enumerate().filter(move |(index, _)| silent.contains(index) == is_silent);
        some.map(|(index, server)| (index, server.text)).collect::<Vec<_>>()
    };
    let responsive = of(false);
    let times = (names as usize).div_ceil(responsive.len().max(1));
    let (order, names): (Vec<usize>, Vec<_>) =
        [vec![responsive; times].concat(), of(true)].concat().into_iter().unzip();
    (names.join(",") + servers.root(), ServerOrder::of(order))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::store::SessionStore;
    use crate::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn the_list_names_each_server_several_times() {
        let second = Duration::from_secs(1);
        let silent = |silent: &[usize], servers, timeout| {
            connect_string(&Servers::parse(servers).unwrap(), timeout, &silent.iter().copied().collect()).0
        };
        let connect_string = |servers, timeout| silent(&[], servers, timeout);
        assert_eq!(silent(&[1], "a:1,b:2/root", second), "a:1,a:1,a:1,b:2/root");
        assert_eq!(silent(&[0, 2], "a,b,c", second), "b,b,b,a,c");
        assert_eq!(connect_string("a:1,b:2/root", second), "a:1,b:2,a:1,b:2/root");
        assert_eq!(connect_string("a:1/root/of", second), "a:1,a:1,a:1/root/of");
        assert_eq!(connect_string("tcp://[::1]:2181", second), "tcp://[::1]:2181,tcp://[::1]:2181,tcp://[::1]:2181");
        assert_eq!(connect_string("tcp://a,tcp://b/c", second), "tcp://a,tcp://b,tcp://a,tcp://b/c");
        assert_eq!(connect_string("a", 60 * second).split(',').count(), 24);
        assert_eq!(connect_string("a,b,c,d,e", 60 * second).split(',').count(), 25);
    }

    #[test]
    fn only_a_lost_sessions_successor_pauses_at_random() {
        let second = Duration::from_secs(1);
        let over = |why| {
            let began = AtomicU64::new(0);
            // The first reading of this clock is 1 s, when the lease begins. Each later reading is 41 s, when the
            // session ends.
            let clock = move || second + 40 * second * u32::from(began.fetch_add(1, Ordering::Relaxed) > 0);
            let store = SessionStore::new(Lease::with_clock(30 * second, Box::new(clock)));
            store.began(second);
            store.end(why);
            Reconnect::after(store.lease())
        };
        for why in [Ending::Closed, Ending::AuthFailed] {
            assert!(over(why).is_none(), "{why}");
        }
        for why in [Ending::Expired, Ending::Replaced] {
            let Reconnect { answered, due } = over(why).unwrap();
            assert_eq!(answered, second);
            assert!((41 * second..51 * second).contains(&due), "{due:?}");
        }
        assert!(Reconnect::after(&Lease::new(second)).is_none(), "the session is not over");
        let due: BTreeSet<_> = (0..20).filter_map(|_| over(Ending::Expired)).map(|it| it.due).collect();
        assert!(due.len() > 1, "all clients come back at the same moment");
    }

    /// `Reconnect` uses the real clock and not tokio's paused one. So the durations here are long compared with any
    /// pause of a busy machine.
    #[tokio::test(start_paused = true)]
    async fn the_first_pause_is_at_most_half_the_connect_timeout() {
        let second = Duration::from_secs(1);
        let paused = async |due: Moment| {
            let begun = tokio::time::Instant::now();
            Reconnect { answered: Moment::ZERO, due }.is_due(10_000 * second).await;
            begun.elapsed().as_secs()
        };
        assert_eq!(paused(since_boot() + 100_000 * second).await, 5_000);
        let due_before = paused(since_boot() + 1_000 * second).await;
        assert!((900..=1_000).contains(&due_before), "{due_before}");
        assert_eq!(paused(Moment::ZERO).await, 0);
    }

    /// On Linux only, because only there the clock counts from the start of the machine. Elsewhere the clock counts
    /// from the start of the process.
    #[cfg(target_os = "linux")]
    #[tokio::test(start_paused = true)]
    async fn tries_are_separated_by_random_pauses() {
        let options = ZooKeeperBuilder::new().session_timeout(Duration::from_secs(10));
        let mut pauses = BTreeSet::new();
        for _ in 0..20 {
            let begun = tokio::time::Instant::now();
            Reconnect { answered: Moment::ZERO, due: Moment::ZERO }.rest(&options).await;
            pauses.insert(begun.elapsed());
        }
        assert!(pauses.len() > 10, "{pauses:?}");
    }

    /// Runs with tokio's paused clock, so that a busy machine changes nothing.
    #[tokio::test(start_paused = true)]
    async fn the_reason_is_reported_exactly_at_the_limit() {
        let servers = Servers::parse("127.0.0.1:1").unwrap();
        for limit in [Duration::from_secs(3), Duration::from_millis(300), Duration::from_secs(3600)] {
            let begun = tokio::time::Instant::now();
            let why = reason_at_the_end(&servers, &ZooKeeperBuilder::new(), limit).await;
            assert!(why.starts_with("127.0.0.1:1: "), "{why}");
            assert_eq!(begun.elapsed(), limit);
        }
    }
}
