//! Records which requests the servers do not support. ClickHouse Keeper and ZooKeeper before 3.6 lack some requests.
//!
//! The client crate does not report the kind and version of its server, and no patch in `docs/upstream/` changes that.
//! ZooKeeper before 3.6 answers an unknown request with an error, and closes the connection. ClickHouse Keeper closes
//! the connection without an answer, which ends the session.
//!
//! A lost answer alone proves nothing, because each break of a connection loses answers. So a session counts a feature
//! as lacking only in two cases:
//! - An answer says that the server does not know the request.
//! - Two connections of the session broke while a request for the feature was not answered. In between, no such request
//!   was carried out or refused. The second connection had answered a read before ([`ServerFeature::test_connection`]).
//!
//! In the second case both breaks may be chance, so the next session tries the feature again. On ClickHouse Keeper each
//! try would end a session. So all sessions of a client share one mark that the servers are ClickHouse Keeper
//! ([`ClickHouseMark`]).

use std::error::Error;
use std::sync::Arc;

use zookeeper_client as zk;

use crate::session::request::Failure;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::telemetry::log::emit;

/// Whether the servers of a client are ClickHouse Keeper. All sessions of the client share this value.
#[derive(Debug, Default)]
pub(crate) struct ClickHouseMark(AtomicBool);

impl ClickHouseMark {
    /// Takes the servers for ClickHouse Keeper if the id of a session is from 1 to 2^28 - 1. ClickHouse Keeper counts
    /// sessions up from one (`KeeperStorage`), unless its data came from ZooKeeper. A session id of ZooKeeper has the
    /// server's configured id in its highest byte, and from bit 16 on the milliseconds between the start of the machine
    /// and the start of the server (`SessionTrackerImpl`). So ZooKeeper gives an id below 2^28 only if a server with
    /// the id 0 starts within 4 s after its machine.
    pub(crate) fn learn_from_session_id(&self, session: i64) {
        if (1..1 << 28).contains(&session) {
            self.mark_as_clickhouse();
        }
    }

    /// Records that the servers are ClickHouse Keeper.
    pub(crate) fn mark_as_clickhouse(&self) {
        if !self.0.swap(true, Ordering::Relaxed) {
            emit!(
                WARN,
                "the servers are taken for ClickHouse Keeper: they get no request for containers, so the directories of locks stay when they are empty"
            );
        }
    }

    fn is_clickhouse(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whether the servers of one session have the features that some servers lack.
#[derive(Debug)]
pub(crate) struct ServerFeatures {
    pub(crate) keeper: Arc<ClickHouseMark>,
    pub(crate) containers: ServerFeature,
    /// The request that reads several nodes.
    pub(crate) multi_read: ServerFeature,
}

impl ServerFeatures {
    /// Returns the features of the servers of the new session with this id. No answer has shown yet whether its servers lack a feature.
    pub(crate) fn of_session(session: i64, keeper: Arc<ClickHouseMark>) -> ServerFeatures {
        let feature = |feature, effect| ServerFeature { session, feature, effect, verdict: Mutex::default() };
        ServerFeatures {
            keeper,
            containers: feature("containers", "the directories of locks stay when they are empty"),
            multi_read: feature("reads of several nodes", "each node is read by a request of its own"),
        }
    }

    pub(crate) fn has_containers(&self) -> bool {
        !self.keeper.is_clickhouse() && !self.containers.is_lacking()
    }

    /// Returns whether the servers may have the request that reads several nodes. The [`ClickHouseMark`] does not matter here,
    /// because every version of ClickHouse Keeper that can host a lock has this request.
    pub(crate) fn has_multi_read(&self) -> bool {
        !self.multi_read.is_lacking()
    }

    /// Returns whether reads alone keep a session alive. A follower of ClickHouse Keeper does not report reads to its
    /// leader, so the leader ends a session that only reads.
    pub(crate) fn reads_keep_alive(&self) -> bool {
        !self.keeper.is_clickhouse()
    }
}

/// A feature, and whether the servers of one session have it, as far as their answers have shown.
#[derive(Debug)]
pub(crate) struct ServerFeature {
    session: i64,
    feature: &'static str,
    /// What a user notices if the servers lack the feature.
    effect: &'static str,
    verdict: Mutex<Verdict>,
}

impl ServerFeature {
    fn is_lacking(&self) -> bool {
        *self.verdict.lock() == Verdict::Lacking
    }

    /// Tests this connection before a request for the feature. If an earlier connection broke during a request for the
    /// feature, reads a node, and fails if the read is not answered. Without this read, the connection may break for
    /// another reason than the feature.
    pub(crate) async fn test_connection(&self, connection: u64, client: &zk::Client) -> Result<(), Failure> {
        let verdict = *self.verdict.lock();
        if verdict.may_send_on(connection) {
            return Ok(());
        }
        let answer = client.check_stat("/").await;
        answer.map(drop).map_err(|error| Failure::Unknown(error.to_string()))
    }

    /// Records what the answer to a request shows about this feature, and maps an error of the answer to a failure. If
    /// the answer says that the servers lack the feature, the failure is `Unknown`, so that the caller tries again, and
    /// then without the feature. `connection` is the connection on which the request was sent.
    pub(crate) fn learn_from_answer<T>(
        &self,
        connection: u64,
        answer: Result<T, zk::Error>,
        failure: impl FnOnce(zk::Error) -> Failure,
    ) -> Result<T, Failure> {
        let mut verdict = self.verdict.lock();
        let before = *verdict;
        *verdict = before.after_answer(&answer, connection);
        let has_lost = before != Verdict::Lacking && *verdict == Verdict::Lacking;
        drop(verdict);
        if has_lost {
            let (session, feature, effect) = (format!("{:x}", self.session), self.feature, self.effect);
            emit!(WARN, session, feature, effect, "the servers seem to lack a feature: this session does without it");
        }
        answer.map_err(|error| match error {
            zk::Error::Unimplemented => Failure::Unknown(error.to_string()),
            error => failure(error),
        })
    }
}

/// What the answers so far show about a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Verdict {
    #[default]
    Open,
    /// This connection broke during a request for the feature. The number is the one that
    /// [`SessionStore::connection`](crate::session::store::SessionStore::connection) returns.
    ClosedOn(u64),
    Lacking,
}

impl Verdict {
    /// Returns whether a request for the feature may be sent on this connection without a test of the connection.
    /// Returns `false` if another connection broke during the last request for the feature.
    fn may_send_on(self, connection: u64) -> bool {
        !matches!(self, Verdict::ClosedOn(earlier) if earlier != connection)
    }

    /// Returns the verdict after an answer to a request that was sent on this connection. Requests that are lost at one
    /// break of the connection count once.
    fn after_answer<T>(self, answer: &Result<T, zk::Error>, connection: u64) -> Verdict {
        use zk::Error::*;
        let is_closed = match answer {
            // These answers certainly came from a server that has carried out, or refused, a request that it knows.
            Ok(_) | Err(NoNode | NodeExists | NoAuth | NoChildrenForEphemerals | QuotaExceeded) => {
                return Verdict::Open;
            }
            Err(Unimplemented) => return Verdict::Lacking,
            Err(ConnectionLoss) => true,
            // The error of a reset connection has a source, the system's error. The error of a silent connection, which
            // the client has given up, has no source.
            Err(Custom(error)) => error.source().is_some(),
            Err(_) => false,
        };
        match self {
            Verdict::Open if is_closed => Verdict::ClosedOn(connection),
            Verdict::ClosedOn(earlier) if is_closed && earlier != connection => Verdict::Lacking,
            it => it,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_session(session: i64) -> ServerFeatures {
        let keeper = Arc::new(ClickHouseMark::default());
        keeper.learn_from_session_id(session);
        ServerFeatures::of_session(session, keeper)
    }

    #[test]
    fn a_clickhouse_session_is_recognized_by_its_id() {
        let lacking = |session| {
            let shown = of_session(session);
            assert!(shown.has_multi_read());
            assert_eq!(shown.reads_keep_alive(), shown.has_containers());
            !shown.has_containers()
        };
        // The ids are of ZooKeeper's server 0, started 5 s after its machine, and of servers 1 and 255.
        let zookeepers = [5_000 << 16, 0x0100_0c5d_4f3a_0000, -0x00ff_f3a2_b0c5_fffe];
        assert!(![0, -1].into_iter().chain(zookeepers).any(lacking));
        assert!([1, 2, 200_000_000].into_iter().all(lacking));
    }

    #[test]
    fn keeper_is_recognized_for_all_sessions_of_a_client() {
        let keeper = Arc::new(ClickHouseMark::default());
        let other = ServerFeatures::of_session(1 << 41, Arc::clone(&keeper));
        keeper.mark_as_clickhouse();
        assert!(!other.has_containers() && !ServerFeatures::of_session(1 << 42, keeper).has_containers());
    }

    type Answer = Result<(), zk::Error>;

    const DONE: Answer = Ok(());
    const CLOSED: Answer = Err(zk::Error::ConnectionLoss);
    const UNIMPLEMENTED: Answer = Err(zk::Error::Unimplemented);
    /// The client crate makes this answer itself, so the answer shows nothing about the servers.
    const NOTHING: Answer = Err(zk::Error::Timeout);

    fn after(answers: &[(Answer, u64)]) -> Verdict {
        answers.iter().fold(Verdict::Open, |verdict, (answer, connection)| verdict.after_answer(answer, *connection))
    }

    #[test]
    fn one_break_proves_nothing_however_much_it_loses() {
        assert_eq!(after(&vec![(CLOSED, 0); 50]), Verdict::ClosedOn(0));
        assert_eq!(after(&[(NOTHING, 0), (NOTHING, 1), (NOTHING, 2)]), Verdict::Open);
        assert_eq!(after(&[(CLOSED, 3), (NOTHING, 4), (NOTHING, 5)]), Verdict::ClosedOn(3));
    }

    #[test]
    fn a_connection_after_a_closed_one_must_work_first() {
        let closed = after(&[(CLOSED, 3)]);
        assert_eq!([Verdict::Open, closed, closed, Verdict::Lacking].map(|it| it.may_send_on(3)), [true; 4]);
        assert!(!closed.may_send_on(4));
    }

    #[test]
    fn two_closed_connections_are_believed() {
        assert_eq!(after(&[(CLOSED, 0), (CLOSED, 1)]), Verdict::Lacking);
        assert_eq!(after(&[(CLOSED, 0), (CLOSED, 0), (CLOSED, 7)]), Verdict::Lacking);
    }

    #[test]
    fn an_answer_that_says_so_is_believed_at_once() {
        // During an upgrade, a session may move from a new server, which knows the request, to an old one. The numbers
        // of the connections do not matter here.
        assert_eq!(after(&[(DONE, 0), (UNIMPLEMENTED, 0)]), Verdict::Lacking);
        assert_eq!(after(&[(UNIMPLEMENTED, 0), (CLOSED, 0), (NOTHING, 1)]), Verdict::Lacking);
    }

    #[test]
    fn a_success_clears_the_count_and_the_verdict() {
        assert_eq!(after(&[(CLOSED, 0), (DONE, 1), (CLOSED, 1)]), Verdict::ClosedOn(1));
        assert_eq!(after(&[(CLOSED, 0), (CLOSED, 1), (DONE, 1)]), Verdict::Open);
        assert_eq!(after(&[(UNIMPLEMENTED, 0), (DONE, 0)]), Verdict::Open);
    }

    #[test]
    fn each_answer_shows_what_it_proves() {
        use zk::Error::*;
        for refused in [NoNode, NodeExists, NoAuth, NoChildrenForEphemerals, QuotaExceeded] {
            assert_eq!(after(&[(UNIMPLEMENTED, 0), (Err(refused), 0)]), Verdict::Open);
        }
        for nothing in [ClientClosed, SessionExpired, SessionMoved, AuthFailed, Throttled, Timeout, InvalidAcl] {
            let answer = Err(nothing);
            assert_eq!(after(&[(answer.clone(), 0)]), Verdict::Open);
            assert_eq!(after(&[(UNIMPLEMENTED, 0), (answer, 0)]), Verdict::Lacking);
        }
    }

    #[test]
    fn a_lacking_feature_is_an_unknown_outcome() {
        let features = of_session(1 << 40);
        let known = |answer: Result<(), zk::Error>| {
            features.containers.learn_from_answer(0, answer, |error| Failure::Refused(error.to_string()))
        };
        assert!(matches!(known(Err(zk::Error::Unimplemented)), Err(Failure::Unknown(_))));
        assert!(!features.has_containers() && features.has_multi_read());
        assert!(matches!(known(Err(zk::Error::NoAuth)), Err(Failure::Refused(_))));
        assert!(features.has_containers());
    }
}
