//! The queues of many locks at once; knows no concrete backend.

use std::sync::Arc;

use crate::coordinator::{Coordinator, Failure, Session};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::path;
use crate::place;
use crate::queue::{self, Queue};

/// How many directories are listed at once.
const LISTINGS_IN_FLIGHT: usize = 256;

/// The queues of all locks below a prefix that somebody holds or waits for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Survey {
    /// The queues, in the order of their paths. Those of different locks are not of the same moment.
    pub queues: Vec<Queue>,
    /// The nodes whose children could not be listed, because we may not: locks may be below them.
    pub unreadable: Vec<String>,
}

impl Survey {
    /// Looks at every node at and below `prefix`, and reads the queues of those that have contenders.
    ///
    /// Costs a listing for each node that is not a contender itself, and a read for each contender. Each queue is seen
    /// in its own [dialect](Dialect); a directory in which several are spoken has a queue for each.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if `prefix` is not an absolute path; otherwise see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock, Survey};
    /// # tokio_test::block_on(async {
    /// let zk = Memory::new();
    /// let (one, two) = (RwLock::new(&zk, "/locks/a")?.write().await?, RwLock::new(&zk, "/locks/deep/b")?.read().await?);
    /// let survey = Survey::below(&zk, "/locks").await?;
    /// assert_eq!(survey.queues.iter().map(|queue| &queue.path[..]).collect::<Vec<_>>(), ["/locks/a", "/locks/deep/b"]);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn below<C: Coordinator>(coordinator: &C, prefix: &str) -> Result<Survey, Error> {
        path::check(prefix)?;
        let fault = |failure| Error::from_failure(failure, "list the locks below", prefix);
        let berth = coordinator.berth(0).await.map_err(fault)?;
        let mut survey = Survey { queues: Vec::new(), unreadable: Vec::new() };
        survey.walk(berth.session(), prefix).await.map_err(fault)?;
        survey.queues.sort_by(|one, other| one.path.cmp(&other.path));
        survey.unreadable.sort();
        Ok(survey)
    }

    async fn walk(&mut self, session: &Arc<dyn Session>, prefix: &str) -> Result<(), Failure> {
        let mut level = vec![prefix.to_owned()];
        while !level.is_empty() {
            let mut below = Vec::new();
            for some in level.chunks(LISTINGS_IN_FLIGHT) {
                // All are sent before the first is awaited.
                let replies: Vec<_> = some.iter().map(|node| session.children(node)).collect();
                for (node, reply) in some.iter().zip(replies) {
                    let children = match reply.await {
                        Err(Failure::Unknown(_)) => place::settled(session, || session.children(node)).await,
                        answer => answer,
                    };
                    match children {
                        Ok(children) => self.look(session, node, children, &mut below).await?,
                        Err(Failure::NoNode) => {}
                        Err(Failure::NoAuth) => self.unreadable.push(node.clone()),
                        Err(failure) => return Err(failure),
                    }
                }
            }
            level = below;
        }
        Ok(())
    }

    async fn look(
        &mut self,
        session: &Arc<dyn Session>,
        node: &str,
        children: Vec<String>,
        below: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let (contenders, others): (Vec<_>, Vec<_>) = children.into_iter().partition(|name| Dialect::of(name).is_some());
        let parent = if node == "/" { "" } else { node };
        // The servers' own tree holds no locks.
        below.extend(others.iter().map(|name| format!("{parent}/{name}")).filter(|path| path != "/zookeeper"));
        for dialect in Dialect::ALL {
            if contenders.iter().any(|name| Dialect::of(name) == Some(dialect)) {
                self.look_at_queue(session, node, dialect, &contenders).await?;
            }
        }
        Ok(())
    }

    async fn look_at_queue(
        &mut self,
        session: &Arc<dyn Session>,
        node: &str,
        dialect: Dialect,
        contenders: &[String],
    ) -> Result<(), Failure> {
        let mut tries = 0;
        loop {
            match queue::of(session, node, dialect, contenders).await {
                Err(Failure::Unknown(_)) if tries < place::UNKNOWN_TRIES => {
                    place::before_next_try(session, &mut tries).await?;
                }
                answer => {
                    // Those who have all left meanwhile leave nothing to see.
                    self.queues.extend(Some(answer?).filter(|queue| !queue.members.is_empty()));
                    return Ok(());
                }
            }
        }
    }
}
