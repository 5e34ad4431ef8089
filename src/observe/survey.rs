//! A survey: the queues of all locks and semaphores below a path.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::try_join_all;

use crate::call::{self, Call};
use crate::observe::lock_paths::{LockPaths, NODES_A_REQUEST};
use crate::queue::dialect::Dialect;
use crate::queue::member::Queue;
use crate::queue::metadata;
use crate::queue::permits::{self, PERMITS, QUEUE};
use crate::session::contract::{Coordinator, Session};
use crate::session::request::{Failure, none_if_no_node_or_no_auth};
use crate::session::retry;
use crate::validation;

/// The maximum number of listings in flight.
const LISTINGS_IN_FLIGHT: usize = 256;

/// The queues of the locks and semaphores at and below a path. A lock or semaphore is left out if it has neither
/// contenders nor the [record](Queue::done) of a job.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Survey {
    /// The queues, sorted by their paths. A queue without members is that of a lock with the [record](Queue::done) of a
    /// job. The queues of different locks are read at different moments.
    pub queues: Vec<Queue>,
    /// Nodes whose children this client may not list. Locks at and below these nodes are missing in `queues`.
    pub unreadable: Vec<String>,
}

impl Survey {
    /// Looks at every node at and below `prefix`, and reads the queue of each node that has contenders. A
    /// [`Semaphore`](crate::Semaphore) is one queue, with its [permits](Queue::permits). The
    /// [record](crate::Queue::done) of a job that was done under a lock is read, too. A lock that has a record and no
    /// contender has an empty queue here.
    ///
    /// Costs a listing for each node that is not a contender itself, and a read for each semaphore. To read the members
    /// of the queues and the records, one request is sent for each 256 nodes. If the servers do not support
    /// multi-reads, one request is sent for each node. Each queue is read in its own [dialect](Dialect). A directory
    /// with contenders of several dialects has a queue for each dialect. [Each step](Call#how-long-it-takes) takes at
    /// most the session timeout. To limit the time of the whole call, use [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// The call only reads, so it can be dropped at any time.
    ///
    /// # Errors
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) if `prefix` is not an absolute path; otherwise see
    /// [`Error`](crate::Error).
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
    pub fn below<C: Coordinator + Clone>(coordinator: &C, prefix: impl AsRef<str>) -> Call<Survey> {
        let coordinator: Arc<dyn Coordinator> = Arc::new(coordinator.clone());
        let prefix = prefix.as_ref().to_owned();
        Call::with_deadline(&Arc::clone(&coordinator), async move {
            validation::check_path(&prefix)?;
            let operation = ("list the locks below", &*prefix);
            call::retry_on_fresh_session(&coordinator, operation, |session| Survey::walk(session, &prefix)).await
        })
    }

    async fn walk(session: Arc<dyn Session>, prefix: &str) -> Result<Survey, Failure> {
        let mut survey = Survey { queues: Vec::new(), unreadable: Vec::new() };
        let mut level = vec![prefix.to_owned()];
        let mut records = Vec::from_iter((prefix != "/").then(|| metadata::record_path(prefix)));
        while !level.is_empty() {
            let mut below = Vec::new();
            for some in level.chunks(LISTINGS_IN_FLIGHT) {
                // The closure returns `None` for a node whose children may not be listed.
                let list = |node: &String| {
                    session
                        .children(node)
                        .map(|listed| none_if_no_node_or_no_auth(listed.or_else(retry::default_if_no_node)))
                };
                let listings = call::ask_until_answered(&session, || try_join_all(some.iter().map(list))).await?;
                for (node, children) in some.iter().zip(listings) {
                    match children {
                        Some(children) => survey.add_queues_at(&session, node, children, &mut below).await?,
                        None => survey.unreadable.push(node.clone()),
                    }
                }
            }
            records.extend(below.iter().filter(|path| metadata::lock_path_of_record(path).is_some()).cloned());
            level = below;
        }
        survey.add_job_records(&session, &records).await?;
        survey.queues.sort_by(|one, other| one.path.cmp(&other.path));
        survey.unreadable.sort();
        Ok(survey)
    }

    async fn add_queues_at(
        &mut self,
        session: &Arc<dyn Session>,
        node: &str,
        children: Vec<String>,
        below: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let (contenders, mut others): (Vec<_>, Vec<_>) =
            children.into_iter().partition(|name| Dialect::of(name).is_some());
        // A semaphore is recognized by the directory of its permits. The directory of its queue may be missing, because
        // servers delete that directory when it is empty.
        if others.iter().any(|name| name == PERMITS)
            && let Some(queue) = read_semaphore_queue(session, node).await?
        {
            self.queues.extend(Some(queue).filter(|queue| !queue.members.is_empty()));
            others.retain(|name| name != QUEUE && name != PERMITS);
        }
        let parent = if node == "/" { "" } else { node };
        // ZooKeeper's own nodes are below `/zookeeper`, where no lock can be.
        below.extend(others.iter().map(|name| format!("{parent}/{name}")).filter(|path| path != "/zookeeper"));
        for dialect in Dialect::ALL {
            if contenders.iter().any(|name| Dialect::of(name) == Some(dialect)) {
                let queue_paths = LockPaths::of_lock(node.into(), dialect);
                self.queues.push(queue_paths.read_queue(session, (&[], &contenders), None).await?);
            }
        }
        Ok(())
    }

    /// Reads the records of jobs at these paths, and adds each record to the queues of its lock. For a record whose
    /// lock has no queue, adds an empty queue.
    async fn add_job_records(&mut self, session: &Arc<dyn Session>, paths: &[String]) -> Result<(), Failure> {
        let mut records = BTreeMap::new();
        for some in paths.chunks(NODES_A_REQUEST) {
            let nodes = call::ask_until_answered(session, || session.data_of_each(some)).await?;
            let locks = some.iter().filter_map(|path| metadata::lock_path_of_record(path));
            // A node is left out if it is gone, if this client may not read it, or if it is not a record.
            records.extend(locks.zip(nodes).filter_map(|(lock, node)| {
                let (data, stat) = node?;
                Some((lock, metadata::parse_record(&data, stat.mtime)?))
            }));
        }
        let mut free = records.clone();
        for queue in &mut self.queues {
            queue.done = records.get(&queue.path[..]).cloned();
            free.remove(&queue.path[..]);
        }
        let dialect = Dialect::Native;
        self.queues.extend(free.into_iter().map(|(lock, done)| {
            let (path, members) = (lock.to_owned(), Vec::new());
            Queue { path, dialect, members, done: Some(done), permits: None }
        }));
        Ok(())
    }
}

/// Reads the queue of the semaphore at this node. Returns `None` if nothing shows that the node is a semaphore, such as
/// a number of permits or a permit that is taken. Also returns `None` if the node is gone, or if this client may not
/// read the node or list its directories.
async fn read_semaphore_queue(session: &Arc<dyn Session>, node: &str) -> Result<Option<Queue>, Failure> {
    let queue_paths = LockPaths::of_semaphore(node.into(), Dialect::Native);
    let read = call::ask_until_answered(session, || session.data(node)).await;
    let Some((data, _)) = none_if_no_node_or_no_auth(read)? else { return Ok(None) };
    // If this client may not list a directory, this function returns `None`. The survey then looks at the directory as
    // at any other node, and reports it in `unreadable`.
    let Some((taken, queued)) = none_if_no_node_or_no_auth(queue_paths.list_permits_and_queue(session, false).await)?
    else {
        return Ok(None);
    };
    let number = match permits::decode_permit_number(&data) {
        Ok(Some(number)) => number,
        Ok(None) if taken.iter().all(|name| permits::parse_permit_name(name).is_none()) => return Ok(None),
        _ => 0,
    };
    let queue = queue_paths.read_queue(session, (&taken, &queued), Some(number)).await?;
    Ok((number > 0 || !queue.members.is_empty()).then_some(queue))
}
