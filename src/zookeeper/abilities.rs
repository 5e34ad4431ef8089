//! Records which requests the servers do not support. ClickHouse Keeper and ZooKeeper before 3.6 lack some requests.
//!
//! The client crate does not report the kind and version of its server, and no patch in `docs/upstream/` makes the
//! crate report them. ZooKeeper before 3.6 answers an unknown request with an error, and closes the connection.
//! ClickHouse Keeper closes the connection without an answer, which ends the session.
//!
//! A lost answer does not show a lacking feature, because each break of a connection loses answers. So a session takes
//! a feature for lacking only if an answer says that the server does not know the request.
//!
//! This rule does not suffice for container nodes: on ClickHouse Keeper each request for a container would end a
//! session. So all sessions of a client share one flag, which says that the servers are ClickHouse Keeper
//! ([`ClickHouseMark`]). Once the flag is set, no session requests a container.

use std::sync::Arc;

use zookeeper_client as zk;

use crate::session::request::Failure;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::telemetry::log::emit;

/// Whether the servers of a client were recognized as ClickHouse Keeper. All sessions of the client share this value.
#[derive(Debug, Default)]
pub(crate) struct ClickHouseMark(AtomicBool);

impl ClickHouseMark {
    /// Marks the servers as ClickHouse Keeper if the id of a session is from 1 to 2^28 - 1. ClickHouse Keeper gives its
    /// sessions the ids 1, 2, 3 and so on (`KeeperStorage`), unless its data came from ZooKeeper. A session id of
    /// ZooKeeper has the server's configured id in its highest byte, and above its lowest 16 bits the milliseconds
    /// between the start of the machine and the start of the server (`SessionTrackerImpl`). So ZooKeeper gives an id in
    /// this range only if a server with the id 0 starts within 4.1 s after its machine.
    pub(crate) fn mark_by_session_id(&self, session: i64) {
        if (1..1 << 28).contains(&session) {
            self.mark_as_clickhouse();
        }
    }

    /// Records that the servers are ClickHouse Keeper, and logs this once.
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

/// The features that some servers lack, and whether the servers of one session have them.
#[derive(Debug)]
pub(crate) struct ServerFeatures {
    pub(crate) keeper: Arc<ClickHouseMark>,
    pub(crate) containers: ServerFeature,
    /// The feature to read several nodes by one request.
    pub(crate) multi_read: ServerFeature,
}

impl ServerFeatures {
    /// Returns the features of the new session with this id. At first each feature counts as present. Only if `keeper`
    /// already marks the servers as ClickHouse Keeper, the session has no containers.
    pub(crate) fn of_session(session: i64, keeper: Arc<ClickHouseMark>) -> ServerFeatures {
        let feature = |feature, effect| ServerFeature { session, feature, effect, is_lacking: AtomicBool::new(false) };
        ServerFeatures {
            keeper,
            containers: feature("containers", "the directories of locks stay when they are empty"),
            multi_read: feature("reads of several nodes", "each node is read by a request of its own"),
        }
    }

    pub(crate) fn has_containers(&self) -> bool {
        !self.keeper.is_clickhouse() && !self.containers.is_lacking()
    }

    /// Returns whether the servers may have the request that reads several nodes. The [`ClickHouseMark`] does not
    /// matter here, because every version of ClickHouse Keeper that can host a lock has this request.
    pub(crate) fn has_multi_read(&self) -> bool {
        !self.multi_read.is_lacking()
    }

    /// Returns whether reads alone keep a session alive. On ClickHouse Keeper they do not: a follower does not report
    /// reads to its leader, so the leader ends a session that only reads.
    pub(crate) fn reads_keep_alive(&self) -> bool {
        !self.keeper.is_clickhouse()
    }
}

/// A feature, and whether an answer has shown that the servers of one session lack it.
#[derive(Debug)]
pub(crate) struct ServerFeature {
    session: i64,
    feature: &'static str,
    /// What a user notices if the servers lack the feature.
    effect: &'static str,
    is_lacking: AtomicBool,
}

impl ServerFeature {
    fn is_lacking(&self) -> bool {
        self.is_lacking.load(Ordering::Relaxed)
    }

    /// Maps an error in the answer to a failure. If the error says that the servers lack this feature, this session
    /// does without it from now on. The failure is then `Unknown`, so that the caller sends the request again.
    pub(crate) fn record_if_unimplemented<T>(
        &self,
        answer: Result<T, zk::Error>,
        failure: impl FnOnce(zk::Error) -> Failure,
    ) -> Result<T, Failure> {
        answer.map_err(|error| match error {
            zk::Error::Unimplemented => {
                if !self.is_lacking.swap(true, Ordering::Relaxed) {
                    let (session, feature, effect) = (format!("{:x}", self.session), self.feature, self.effect);
                    emit!(WARN, session, feature, effect, "the servers lack a feature: this session does without it");
                }
                Failure::Unknown(error.to_string())
            }
            error => failure(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_session(session: i64) -> ServerFeatures {
        let keeper = Arc::new(ClickHouseMark::default());
        keeper.mark_by_session_id(session);
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
        // These are ids of ZooKeeper's server 0 that started 5 s after its machine, of server 1, and of server 255.
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

    #[test]
    fn a_lacking_feature_is_an_unknown_outcome() {
        let features = of_session(1 << 40);
        let known = |answer: Result<(), zk::Error>| {
            features.containers.record_if_unimplemented(answer, |error| Failure::Refused(error.to_string()))
        };
        assert!(matches!(known(Err(zk::Error::Unimplemented)), Err(Failure::Unknown(_))));
        assert!(!features.has_containers() && features.has_multi_read());
        assert!(matches!(known(Err(zk::Error::NoAuth)), Err(Failure::Refused(_))));
        assert!(!features.has_containers());
    }
}
