//! The requests that the servers understand, as far as they have shown it; knows no sessions.
//!
//! ClickHouse Keeper, and ZooKeeper before 3.6, close the connection over a request that they do not know. They would
//! do so over each repetition of it, too.

use zookeeper_client as zk;

use crate::session::request::Failure;
use crate::sync::OnceLock;

/// The requests that some servers do not know.
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

/// Whether the servers lack one kind of request, once it is known.
#[derive(Debug, Default)]
pub(crate) struct Ability(OnceLock<bool>);

impl Ability {
    pub(crate) fn is_lacking(&self) -> bool {
        self.0.get() == Some(&true)
    }

    pub(crate) fn is_missed(&self) {
        let _decided = self.0.set(true);
    }

    /// What the answer to such a request says. The request is to be sent in another way if the servers do not know it.
    pub(crate) fn known<T>(
        &self,
        answer: Result<T, zk::Error>,
        failure: impl FnOnce(zk::Error) -> Failure,
    ) -> Result<T, Failure> {
        self.heard(&answer);
        match answer {
            Err(_) if self.is_lacking() => Err(Failure::Unknown("the servers do not know the request".to_owned())),
            answer => answer.map_err(failure),
        }
    }

    /// Records the first answer to such a request, which decides. A connection that is lost during the request may have
    /// been lost by chance. Then the substitute is used without need.
    fn heard<T>(&self, answer: &Result<T, zk::Error>) {
        let lacks = match answer {
            Err(zk::Error::Unimplemented | zk::Error::ConnectionLoss | zk::Error::Custom(_)) => true,
            Err(zk::Error::ClientClosed | zk::Error::SessionExpired | zk::Error::AuthFailed) => return,
            _ => false,
        };
        let _decided = self.0.set(lacks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_answer_shows_whether_a_request_is_understood() {
        let lost = || Err::<(), _>(zk::Error::ConnectionLoss);
        let (shown, lacking, refused) = (Ability::default(), Ability::default(), Ability::default());
        shown.heard(&Err::<(), _>(zk::Error::NoAuth));
        shown.heard(&lost());
        lacking.heard(&Err::<(), _>(zk::Error::ClientClosed));
        assert!(!lacking.is_lacking());
        lacking.heard(&lost());
        lacking.heard(&Ok(()));
        refused.heard(&Err::<(), _>(zk::Error::Unimplemented));
        assert!(!shown.is_lacking() && lacking.is_lacking() && refused.is_lacking());
    }
}
