//! Opens a session: repeats the attempts to connect, and finds the reason if none succeeds in time.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client as zk;

use crate::session::contract::Session;
use crate::session::lease::{Lease, Moment, since_boot};
use crate::session::request::{Failure, SessionEnd};
use crate::session::retry::{self, RetryBudget};
use crate::session::thread::{BackgroundThread, sleep};
use crate::sync::random;
use crate::telemetry::log::emit;
use crate::zookeeper::abilities::ClickHouseMark;
use crate::zookeeper::connection::{AttemptFailure, ConnectTarget, new_session_jitter};
use crate::zookeeper::connections::{ConnectConfig, ConnectDriver};
use crate::zookeeper::link::OpenedConnection;
use crate::zookeeper::options::{SHORTEST_TIMEOUT, ZooKeeperBuilder};
use crate::zookeeper::probe::probe_for_reason;
use crate::zookeeper::session::ZooKeeperSession;
use crate::zookeeper::translate::connect_failure;

/// If [`new_session`] has no session this long before its time limit, it probes the servers, to find out why none gives
/// a session. With a time limit below 6 s, the probe begins after half the limit. A slow server may need 3 s to answer
/// a probe.
const PROBE_AHEAD: Duration = Duration::from_secs(3);

/// When a new session may replace a lost one.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewSessionSchedule {
    /// When the lost session sent the newest of its requests that were answered.
    answered: Moment,
    /// When the first attempt to open a new session may start.
    due: Moment,
}

impl NewSessionSchedule {
    /// Returns when a new session may replace the session of this lease. Returns `None` unless that session has expired
    /// or was replaced. It was replaced if a server gave the client another session on a reconnect.
    pub(super) fn after_loss(lease: &Lease) -> Option<NewSessionSchedule> {
        let is_lost = matches!(lease.ending(), Some(SessionEnd::Expired | SessionEnd::Replaced));
        let (answered, ended) = lease.last_answered_sent_at_and_end().filter(|_| is_lost)?;
        let due = ended + new_session_jitter(ended.saturating_sub(answered), lease.timeout(), random());
        Some(NewSessionSchedule { answered, due })
    }

    /// Returns the time until the first attempt may start: at most half of `bound`, which is the time limit for all
    /// attempts together.
    fn first_pause(self, now: Moment, bound: Duration) -> Duration {
        self.due.saturating_sub(now).min(bound / 2)
    }

    /// Returns a random pause between two rounds of attempts.
    fn next_pause(self, now: Moment, options: &ZooKeeperBuilder) -> Duration {
        let away = now.saturating_sub(self.answered);
        new_session_jitter(away, options.session_timeout.min(options.opening_time_limit()), random())
    }
}

/// Opens a session, or resumes `session`: tries one address after another until a server gives a session. Also returns
/// the address, and a moment shortly before the session's handshake was sent. After the errors `NoHosts`, `Timeout` and
/// `SessionExpired`, tries the next address. Any other error is returned.
///
/// If the session replaces a `lost` one, a random pause follows each failed round of attempts, so that not all clients
/// of an ensemble come back within a second.
async fn open_or_resume_session(
    finder: &mut ConnectDriver,
    lost: Option<NewSessionSchedule>,
    session: Option<(&zk::SessionInfo, Duration)>,
) -> Result<(OpenedConnection, ConnectTarget, Moment), zk::Error> {
    finder.begin_all_lookups();
    loop {
        let (target, limit, started, opened) = finder.make_next_attempt(session).await;
        let why = match opened {
            Some(Ok(connection)) => return Ok((connection, target, started)),
            None => AttemptFailure::Silent,
            Some(Err(zk::Error::NoHosts | zk::Error::Timeout | zk::Error::SessionExpired)) => AttemptFailure::Refused,
            Some(Err(error)) => return Err(error),
        };
        let server = finder.config.address_text(target);
        emit!(DEBUG, server, ?limit, ?why, "an attempt to open a session has failed");
        finder.record_failure(target, why);
        if let Some(lost) = lost.filter(|_| finder.attempts.is_round_over()) {
            sleep(lost.next_pause(since_boot(), &finder.config.options)).await;
            finder.attempts.record_pause();
        }
    }
}

/// Opens a session. If the session replaces a `lost` one, a random pause comes first.
///
/// If the servers grant a shorter timeout than requested, but not less than [`SHORTEST_TIMEOUT`], connects again with
/// options for the granted timeout, and resumes the session. The client crate must know before it connects how long a
/// connection may be silent. That time depends on the session timeout, so a shorter session timeout needs a new
/// connection.
async fn open_with_granted_timeout(
    finder: &mut ConnectDriver,
    lost: Option<NewSessionSchedule>,
    bound: Duration,
) -> Result<(OpenedConnection, ConnectTarget, Moment), zk::Error> {
    if let Some(lost) = lost {
        sleep(lost.first_pause(since_boot(), bound)).await;
    }
    let (mut connection, mut target, started) = open_or_resume_session(finder, lost, None).await?;
    loop {
        let (requested, timeout) = (finder.config.options.session_timeout, connection.client.session_timeout());
        if timeout >= requested || timeout < SHORTEST_TIMEOUT {
            return Ok((connection, target, started));
        }
        emit!(
            WARN,
            ?timeout,
            ?requested,
            "the server grants a shorter session timeout than requested: ask for no more, or raise its maxSessionTimeout"
        );
        let ConnectConfig { servers, options } = finder.config.clone();
        *finder = ConnectDriver::new(ConnectConfig { servers, options: options.with_granted_timeout(timeout) });
        let session = connection.client.session().clone();
        drop(connection);
        (connection, target, _) = open_or_resume_session(finder, lost, Some((&session, timeout))).await?;
    }
}

/// Opens a session within the connect timeout. Also creates the root (the path at the end of the connect string),
/// unless an option leaves its creation to the first acquisition. If the session replaces a `lost` one, a random pause
/// comes first.
pub(super) async fn new_session(
    config: ConnectConfig,
    background: Arc<BackgroundThread>,
    keeper: Arc<ClickHouseMark>,
    lost: Option<NewSessionSchedule>,
) -> Result<Arc<ZooKeeperSession>, Failure> {
    let (servers, bound) = (config.servers.as_str(), config.options.opening_time_limit());
    let mut finder = ConnectDriver::new(config.clone());
    let opened = open_with_granted_timeout(&mut finder, lost, bound);
    let (connection, target, started) = tokio::select! {
        biased;
        connected = opened => connected.map_err(|error| connect_failure(error, servers))?,
        why = wait_and_find_reason(&config, bound) => {
            let waited = humantime::format_duration(bound);
            return Err(Failure::Unreachable(format!("no session with {servers} within {waited}: {why}")));
        }
    };
    if connection.client.session_timeout() < SHORTEST_TIMEOUT {
        let (granted, least) = (connection.client.session_timeout(), SHORTEST_TIMEOUT);
        return Err(Failure::Unreachable(format!(
            "{servers} grants a session timeout of {granted:?}: it must be from {least:?}"
        )));
    }
    let server = config.address_text(target);
    let options = finder.config.options.clone();
    let session = ZooKeeperSession::new((connection, target), finder, &background, started, keeper)?;
    let (timeout, rides_out) = (session.lease().timeout(), options.longest_survivable_break(session.lease()));
    emit!(
        INFO,
        server,
        ?timeout,
        ?rides_out,
        "a session begins: a break of the connection that lasts no longer costs no lock"
    );
    let late =
        || Failure::Unreachable(format!("{servers} does not answer within {}", humantime::format_duration(bound)));
    let shared: Arc<dyn Session> = session.clone();
    if !options.makes_root_at_once {
        return Ok(session);
    }
    let root_made = retry::repeat_within_limit(&shared, RetryBudget::ENDLESS, || shared.make_root());
    match retry::run_until(sleep(bound), root_made).await.unwrap_or_else(|| Err(late())) {
        // The failure is mapped to `Unreachable`, because `Over` would tell callers that no later session can succeed.
        Err(Failure::Over(SessionEnd::Expired | SessionEnd::Replaced | SessionEnd::Failed)) => {
            Err(Failure::Unreachable(format!("a session with {servers} was over before its first answer")))
        }
        made => made.map(|()| session),
    }
}

/// Waits for `bound`, and returns the reason why there is no session. Finds the reason by a probe of the servers, which
/// begins shortly before the end of the wait.
async fn wait_and_find_reason(config: &ConnectConfig, bound: Duration) -> String {
    let ahead = PROBE_AHEAD.min(bound / 2);
    let (nearly, end) = (sleep(bound - ahead), sleep(bound));
    nearly.await;
    let why = probe_for_reason(config, ahead).await.words;
    end.await;
    why
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::session::store::SessionStore;
    use crate::sync::atomic::{AtomicU64, Ordering};
    use crate::zookeeper::servers::ConnectString;

    #[test]
    fn only_a_lost_sessions_successor_pauses_at_random() {
        let second = Duration::from_secs(1);
        let over = |why| {
            let began = AtomicU64::new(0);
            // The first reading of this clock is 1 s, when the lease begins. Each later reading is 41 s, when the
            // session ends.
            let clock = move || second + 40 * second * u32::from(began.fetch_add(1, Ordering::Relaxed) > 0);
            let store = SessionStore::new(Lease::with_clock(30 * second, Box::new(clock)));
            store.record_begin(second);
            store.record_end_and_report(why);
            NewSessionSchedule::after_loss(store.lease())
        };
        for why in [SessionEnd::Closed, SessionEnd::AuthFailed] {
            assert!(over(why).is_none(), "{why}");
        }
        for why in [SessionEnd::Expired, SessionEnd::Replaced] {
            let NewSessionSchedule { answered, due } = over(why).unwrap();
            assert_eq!(answered, second);
            assert!((41 * second..51 * second).contains(&due), "{due:?}");
        }
        assert!(NewSessionSchedule::after_loss(&Lease::new(second)).is_none(), "the session is not over");
        let due: BTreeSet<_> = (0..20).filter_map(|_| over(SessionEnd::Expired)).map(|it| it.due).collect();
        assert!(due.len() > 1, "all clients come back at the same moment");
    }

    #[test]
    fn the_first_pause_is_at_most_half_the_connect_timeout() {
        let second = Duration::from_secs(1);
        let pause =
            |due: Moment| NewSessionSchedule { answered: Moment::ZERO, due }.first_pause(10 * second, 10_000 * second);
        assert_eq!(pause(100_000 * second), 5_000 * second);
        assert_eq!(pause(1_000 * second), 990 * second);
        assert_eq!(pause(Moment::ZERO), Duration::ZERO);
    }

    #[test]
    fn tries_are_separated_by_random_pauses() {
        let second = Duration::from_secs(1);
        let options = ZooKeeperBuilder::new().session_timeout(10 * second);
        let lost = NewSessionSchedule { answered: Moment::ZERO, due: Moment::ZERO };
        let pauses: BTreeSet<_> = (0..20).map(|_| lost.next_pause(40 * second, &options)).collect();
        assert!(pauses.len() > 10, "{pauses:?}");
    }

    #[test]
    fn the_reason_is_reported_at_the_limit_and_not_before() {
        let servers = ConnectString::parse("127.0.0.1:1").unwrap();
        let config = ConnectConfig { servers, options: ZooKeeperBuilder::new() };
        let (began, limit) = (std::time::Instant::now(), Duration::from_millis(50));
        let why = pollster::block_on(wait_and_find_reason(&config, limit));
        assert!(why.starts_with("127.0.0.1:1: "), "{why}");
        assert!(began.elapsed() >= limit);
    }
}
