//! The requests that the servers understand, as far as they have shown it; knows no sessions.
//!
//! ClickHouse Keeper, and ZooKeeper before 3.6, close the connection over a request that they do not know. They would
//! do so over each repetition of it, too. On Keeper that ends the session, so it is never asked.

use zookeeper_client as zk;

use crate::session::request::Failure;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The requests that some servers do not know.
#[derive(Debug, Default)]
pub(crate) struct Abilities {
    pub(crate) containers: Ability,
    /// The request that reads several nodes.
    pub(crate) several_reads: Ability,
    /// The request that lists the ephemeral nodes of our session.
    pub(crate) ephemerals: Ability,
}

/// Whether this is the number of a session of ClickHouse Keeper, which counts them from one (`KeeperStorage`). ZooKeeper's
/// begin with the number of a server and the milliseconds since that machine began (`SessionTrackerImpl`).
pub(crate) fn is_keepers(session: i64) -> bool {
    (0..1 << 32).contains(&session)
}

impl Abilities {
    /// What the number of a session tells.
    pub(crate) fn shown_by(&self, session: i64) {
        if is_keepers(session) {
            for ability in [&self.containers, &self.several_reads, &self.ephemerals] {
                ability.is_missed();
            }
        }
    }
}

/// Whether the servers lack one kind of request, once it is known.
#[derive(Debug, Default)]
pub(crate) struct Ability(AtomicBool);

impl Ability {
    pub(crate) fn is_lacking(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn is_missed(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// What the answer to such a request says. The request is to be sent in another way if the servers do not know it.
    pub(crate) fn known<T>(
        &self,
        answer: Result<T, zk::Error>,
        failure: impl FnOnce(zk::Error) -> Failure,
    ) -> Result<T, Failure> {
        if let Err(zk::Error::Unimplemented) = &answer {
            self.is_missed();
            return Err(Failure::Unknown("the servers do not know the request".to_owned()));
        }
        answer.map_err(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keepers_sessions_are_told_from_zookeepers_by_their_numbers() {
        // Those of ZooKeeper are of the servers 0 (a minute after its machine began), 1, 2 and 255.
        let zookeepers = [0x0000_0001_0000_0000, 0x0100_0c5d_4f3a_0000, 0x0200_0c5d_4f3a_0001, -0x00ff_f3a2_b0c5_fffe];
        assert!(!zookeepers.into_iter().any(is_keepers));
        assert!([1, 2, 4_000_000_000].into_iter().all(is_keepers));
        let (keepers, zookeepers) = (Abilities::default(), Abilities::default());
        keepers.shown_by(1);
        zookeepers.shown_by(0x0100_0c5d_4f3a_0000);
        let lacking =
            |them: Abilities| [them.containers, them.several_reads, them.ephemerals].map(|it| it.is_lacking());
        assert_eq!([keepers, zookeepers].map(lacking), [[true; 3], [false; 3]]);
    }

    #[test]
    fn a_request_is_lacking_once_a_server_says_that_it_does_not_know_it() {
        let ability = Ability::default();
        let answered =
            |error: zk::Error| ability.known(Err::<(), _>(error), |error| Failure::Refused(error.to_string()));
        // A connection that is lost may have been lost by chance.
        for error in [zk::Error::ConnectionLoss, zk::Error::NoAuth, zk::Error::ClientClosed] {
            assert!(matches!(answered(error), Err(Failure::Refused(_))) && !ability.is_lacking());
        }
        assert!(matches!(answered(zk::Error::Unimplemented), Err(Failure::Unknown(_))) && ability.is_lacking());
    }
}
