//! What servers may lack, as far as they have shown it.
//!
//! ZooKeeper before 3.6 answers a request that it does not know, and then closes the connection. ClickHouse Keeper closes it
//! without an answer, and that ends the session. They would do so over each repetition of it, too.

use zookeeper_client as zk;

use crate::session::request::Failure;
use crate::sync::atomic::{AtomicBool, Ordering};

/// What some servers lack.
#[derive(Debug, Default)]
pub(crate) struct Abilities {
    pub(crate) containers: Ability,
    /// The request that reads several nodes.
    pub(crate) several_reads: Ability,
    /// The request that lists the ephemeral nodes of our session.
    pub(crate) ephemerals: Ability,
    /// That a session lives on by reads alone. A follower of ClickHouse Keeper answers them, and its leader hears of none.
    pub(crate) kept_by_reads: Ability,
}

impl Abilities {
    /// What the number of a session tells. Keeper counts sessions from one (`KeeperStorage`), unless its data came from
    /// ZooKeeper. ZooKeeper's begin with the number of the server and the milliseconds from that machine's start to the
    /// server's (`SessionTrackerImpl`).
    pub(crate) fn learn_from_session_id(&self, session: i64) {
        if (1..1 << 28).contains(&session) {
            self.mark_as_clickhouse_keeper();
        }
    }

    /// The servers are of ClickHouse Keeper: they lack what some Keeper on which there can be a lock lacks. All of those
    /// read several nodes with one request.
    pub(crate) fn mark_as_clickhouse_keeper(&self) {
        for lacking in [&self.containers, &self.ephemerals, &self.kept_by_reads] {
            lacking.mark_lacking();
        }
    }
}

/// Whether the servers lack something, once it is known.
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

    /// What the answer to such a request says. The request is to be sent in another way if the servers do not know it.
    pub(crate) fn known<T>(
        &self,
        answer: Result<T, zk::Error>,
        failure: impl FnOnce(zk::Error) -> Failure,
    ) -> Result<T, Failure> {
        self.record(&answer);
        match answer {
            Err(_) if self.is_lacking() => Err(Failure::Unknown("the servers do not know the request".to_owned())),
            answer => answer.map_err(failure),
        }
    }

    /// Records what the answer to such a request shows. A connection that is lost during the first one may have been lost
    /// by chance. Then the substitute is used without need.
    fn record<T>(&self, answer: &Result<T, zk::Error>) {
        match answer {
            // Also later: the servers of an ensemble are of two versions while it is upgraded.
            Err(zk::Error::Unimplemented) => self.mark_lacking(),
            Err(zk::Error::ConnectionLoss | zk::Error::Custom(_)) if self.is_supported.load(Ordering::Relaxed) => {}
            Err(zk::Error::ConnectionLoss | zk::Error::Custom(_)) => self.mark_lacking(),
            Err(zk::Error::ClientClosed | zk::Error::SessionExpired | zk::Error::AuthFailed) => {}
            _ => self.is_supported.store(true, Ordering::Relaxed),
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
        // ZooKeeper's are of the server 0, whose machine had begun five seconds before, and of the servers 1 and 255.
        let zookeepers = [5_000 << 16, 0x0100_0c5d_4f3a_0000, -0x00ff_f3a2_b0c5_fffe];
        assert!(![0, -1].into_iter().chain(zookeepers).any(lacking));
        assert!([1, 2, 200_000_000].into_iter().all(lacking));
    }

    #[test]
    fn the_first_reply_shows_if_a_request_is_supported() {
        let lost = || Err::<(), _>(zk::Error::ConnectionLoss);
        let (shown, lacking, refused) = (Ability::default(), Ability::default(), Ability::default());
        shown.record(&Err::<(), _>(zk::Error::NoAuth));
        shown.record(&lost());
        lacking.record(&Err::<(), _>(zk::Error::ClientClosed));
        assert!(!lacking.is_lacking());
        lacking.record(&lost());
        lacking.record(&Ok(()));
        refused.record(&Err::<(), _>(zk::Error::Unimplemented));
        assert!(!shown.is_lacking() && lacking.is_lacking() && refused.is_lacking());
        shown.record(&Err::<(), _>(zk::Error::Unimplemented));
        assert!(shown.is_lacking(), "another server is older");
    }
}
