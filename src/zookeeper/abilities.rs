//! Records which requests the servers do not support. ClickHouse Keeper lacks some, and so does ZooKeeper before 3.6.
//!
//! The client crate does not report the kind and version of its server, and no patch in `docs/upstream/` changes that.
//! ZooKeeper before 3.6 answers an unknown request with an error, and closes the connection. ClickHouse Keeper closes
//! the connection without an answer, which ends the session. So after the first such request, all sessions of this
//! client send requests that every server knows instead.

use zookeeper_client as zk;

use crate::session::request::Failure;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The features that some servers lack. For each, whether this client's servers have it.
#[derive(Debug, Default)]
pub(crate) struct Abilities {
    pub(crate) containers: Ability,
    /// The request that reads several nodes.
    pub(crate) several_reads: Ability,
    /// The request that lists the session's own ephemeral nodes.
    pub(crate) ephemerals: Ability,
    /// Whether reads alone keep a session alive. A follower of ClickHouse Keeper does not report reads to its leader,
    /// so the leader ends a session that only reads.
    pub(crate) kept_by_reads: Ability,
}

impl Abilities {
    /// Recognizes ClickHouse Keeper by the id of a session, which is below 2^28. ClickHouse Keeper counts sessions up
    /// from one (`KeeperStorage`), unless its data came from ZooKeeper. A session id of ZooKeeper has the server's
    /// configured id in its highest byte, and from bit 16 on the milliseconds between the start of the machine and the
    /// start of the server (`SessionTrackerImpl`). So only a server 0 that starts within 4 s after its machine gives
    /// such a low id.
    pub(crate) fn learn_from_session_id(&self, session: i64) {
        if (1..1 << 28).contains(&session) {
            self.mark_as_clickhouse_keeper();
        }
    }

    /// Marks the features that some version of ClickHouse Keeper lacks as lacking. The request that reads several nodes
    /// is not among them, because every version that can host a lock has that request.
    pub(crate) fn mark_as_clickhouse_keeper(&self) {
        for lacking in [&self.containers, &self.ephemerals, &self.kept_by_reads] {
            lacking.mark_lacking();
        }
    }
}

/// Whether the servers have a feature, as far as their answers have shown it.
#[derive(Debug, Default)]
pub(crate) struct Ability {
    is_supported: AtomicBool,
    is_lacking: AtomicBool,
}

impl Ability {
    pub(crate) fn is_lacking(&self) -> bool {
        self.is_lacking.load(Ordering::Relaxed)
    }

    fn mark_lacking(&self) {
        self.is_lacking.store(true, Ordering::Relaxed);
    }

    /// Records whether the answer to a request shows that the servers have this feature, and maps an error of the
    /// answer to a failure. If the servers lack the feature, the failure is `Unknown`, so that the caller retries with
    /// a request that every server knows.
    ///
    /// If the connection is lost before any answer has shown the feature, the feature is marked as lacking, although
    /// the loss may have another cause.
    pub(crate) fn known<T>(
        &self,
        answer: Result<T, zk::Error>,
        failure: impl FnOnce(zk::Error) -> Failure,
    ) -> Result<T, Failure> {
        match &answer {
            // The lack is recorded even after an earlier success, because during an upgrade the ensemble also has
            // servers of the older version.
            Err(zk::Error::Unimplemented) => self.mark_lacking(),
            Err(zk::Error::ConnectionLoss | zk::Error::Custom(_)) if self.is_supported.load(Ordering::Relaxed) => {}
            Err(zk::Error::ConnectionLoss | zk::Error::Custom(_)) => self.mark_lacking(),
            Err(zk::Error::ClientClosed | zk::Error::SessionExpired | zk::Error::AuthFailed) => {}
            _ => self.is_supported.store(true, Ordering::Relaxed),
        }
        match answer {
            Err(_) if self.is_lacking() => Err(Failure::Unknown("the servers do not know the request".to_owned())),
            answer => answer.map_err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clickhouse_session_is_recognized_by_its_id() {
        let lacking = |session| {
            let shown = Abilities::default();
            shown.learn_from_session_id(session);
            assert!(!shown.several_reads.is_lacking());
            let [containers, others @ ..] =
                [shown.containers, shown.ephemerals, shown.kept_by_reads].map(|ability| ability.is_lacking());
            assert_eq!(others, [containers; 2]);
            containers
        };
        // The ids are of ZooKeeper's server 0, started 5 s after its machine, and of servers 1 and 255.
        let zookeepers = [5_000 << 16, 0x0100_0c5d_4f3a_0000, -0x00ff_f3a2_b0c5_fffe];
        assert!(![0, -1].into_iter().chain(zookeepers).any(lacking));
        assert!([1, 2, 200_000_000].into_iter().all(lacking));
    }

    #[test]
    fn the_first_reply_shows_if_a_request_is_supported() {
        let lost = || Err(zk::Error::ConnectionLoss);
        let record = |ability: &Ability, answer: Result<(), zk::Error>| {
            drop(ability.known(answer, |error| Failure::Unknown(error.to_string())));
        };
        let (shown, lacking, refused) = (Ability::default(), Ability::default(), Ability::default());
        record(&shown, Err(zk::Error::NoAuth));
        record(&shown, lost());
        record(&lacking, Err(zk::Error::ClientClosed));
        assert!(!lacking.is_lacking());
        record(&lacking, lost());
        record(&lacking, Ok(()));
        record(&refused, Err(zk::Error::Unimplemented));
        assert!(!shown.is_lacking() && lacking.is_lacking() && refused.is_lacking());
        record(&shown, Err(zk::Error::Unimplemented));
        assert!(shown.is_lacking(), "another server of the ensemble is older");
    }
}
