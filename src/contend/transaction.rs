//! Transactions that are committed only while locks are held, and the search for the outcome of a transaction whose
//! reply was lost.

use std::sync::Arc;

use futures_util::future::select_all;

use crate::contend::contender::{Contender, while_held};
use crate::error::error::Error;
use crate::queue::mode::Mode;
use crate::queue::quoted::quoted;
use crate::session::contract::Session;
use crate::session::request::{Failure, Kind, Loss, NodeContents, Operation, Outcome, Stat, parent_path};
use crate::session::retry;
use crate::telemetry::debug::debug;
use crate::validation::{self, REQUEST_LIMIT};

/// Operations on nodes outside the lock's own directory, committed in one ZooKeeper transaction with a check that the
/// lock is still held.
///
/// Made by [`Hold::transaction`](crate::Hold::transaction), and by
/// [`MultiGuard::transaction`](crate::MultiGuard::transaction), which checks each of its locks. Nothing is sent before
/// [`commit`](Transaction::commit). Then all operations take effect, or none does. This protection does not depend on
/// any clock, because the ensemble puts the transaction and the requests of all contenders in one order.
///
/// # Examples
///
/// ```
/// # use zk_rwlock::{Memory, RwLock, Error};
/// # tokio_test::block_on(async {
/// let zk = Memory::new();
/// let lock = RwLock::new(&zk, "/locks/config")?;
/// let guard = lock.write().await?;
/// guard.transaction().create("/config", "v1").commit().await?;
/// guard.transaction().check("/config", 0).set("/config", "v2").commit().await?;
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[must_use = "nothing is sent before `commit`"]
pub struct Transaction<'guard> {
    /// The locks of the transaction. The last one was granted last, and its session sends the transaction.
    locks: Vec<&'guard Contender>,
    /// Whether the locks are those of a [`MultiGuard`](crate::MultiGuard). If so, the error of a lost lock names that
    /// lock.
    is_of_several: bool,
    operations: Vec<Operation>,
    size_limit: usize,
    /// Whether a lost answer ends the commit, because the caller itself looks for the outcome.
    is_sent_once: bool,
}

impl<'guard> Transaction<'guard> {
    /// Begins a transaction under these locks, at least one.
    pub(crate) fn new(locks: Vec<&'guard Contender>, is_of_several: bool) -> Self {
        Transaction { locks, is_of_several, operations: Vec::new(), size_limit: REQUEST_LIMIT, is_sent_once: false }
    }

    /// Sets a node's data.
    pub fn set(self, path: impl AsRef<str>, data: impl Into<Vec<u8>>) -> Self {
        self.push(Operation::Set { path: path.as_ref().to_owned(), data: data.into(), version: None })
    }

    /// Sets a node's data. Fails the transaction unless the node has this version.
    pub fn set_version(self, path: impl AsRef<str>, data: impl Into<Vec<u8>>, version: i32) -> Self {
        self.push(Operation::Set { path: path.as_ref().to_owned(), data: data.into(), version: Some(version) })
    }

    /// Creates a persistent node, whose parent must exist.
    pub fn create(self, path: impl AsRef<str>, data: impl Into<Vec<u8>>) -> Self {
        self.push(Operation::Create { path: path.as_ref().to_owned(), data: data.into(), kind: Kind::Persistent })
    }

    /// Creates an ephemeral node, which is deleted when the session of the lock ends. Do not create thousands of such
    /// nodes. If their paths together are longer than the servers' `jute.maxbuffer`, the ensemble may not start again
    /// ([ZOOKEEPER-4306](https://issues.apache.org/jira/browse/ZOOKEEPER-4306)).
    pub fn create_ephemeral(self, path: impl AsRef<str>, data: impl Into<Vec<u8>>) -> Self {
        self.push(Operation::Create { path: path.as_ref().to_owned(), data: data.into(), kind: Kind::Ephemeral })
    }

    /// Deletes a node, which must not have children.
    pub fn delete(self, path: impl AsRef<str>) -> Self {
        self.push(Operation::Delete { path: path.as_ref().to_owned(), version: None })
    }

    /// Deletes a node, which must not have children. Fails the transaction unless the node has this version.
    pub fn delete_version(self, path: impl AsRef<str>, version: i32) -> Self {
        self.push(Operation::Delete { path: path.as_ref().to_owned(), version: Some(version) })
    }

    /// Fails the transaction unless the node has this version.
    pub fn check(self, path: impl AsRef<str>, version: i32) -> Self {
        self.push(Operation::Check { path: path.as_ref().to_owned(), version: Some(version) })
    }

    /// Fails the transaction unless the node exists.
    pub fn check_exists(self, path: impl AsRef<str>) -> Self {
        self.push(Operation::Check { path: path.as_ref().to_owned(), version: None })
    }

    /// Sets the limit for the size of the whole request, in bytes. Defaults to 1,048,575, the default of ZooKeeper's
    /// `jute.maxbuffer`. Use the value of your servers.
    pub fn size_limit(mut self, bytes: usize) -> Self {
        self.size_limit = bytes;
        self
    }

    /// Commits like [`commit`](Transaction::commit), but returns [`Error::OutcomeUnknown`] immediately if the reply is
    /// lost.
    pub(crate) async fn commit_without_retry(mut self) -> Result<Vec<Outcome>, Error> {
        self.is_sent_once = true;
        self.commit().await
    }

    fn push(mut self, operation: Operation) -> Self {
        self.operations.push(operation);
        self
    }

    /// Commits all operations if the lock is still held. Returns the outcome of each operation, in the order in which
    /// they were added.
    ///
    /// A commit without operations asks the ensemble whether the lock is still held, and changes nothing.
    ///
    /// If the lock is lost after the ensemble has carried out the operations and before the answer comes, the answer is
    /// still returned, because the lock was held when the operations took effect.
    ///
    /// # Lost answers
    /// If the connection breaks before the answer comes, the library looks for evidence of the outcome on the next
    /// connection. Only nodes that the transaction changes once are evidence:
    /// - A transaction of checks alone is sent again.
    /// - If a node that the transaction changes is unchanged, nothing was done, and the transaction is sent again. This
    ///   works for a node that existed before, if the transaction deletes the node, or sets its data with a version
    ///   ([`set_version`](Self::set_version)).
    /// - If all locks are write locks, and a node has the next version and the data that the transaction sets, or was
    ///   created as the transaction creates it, everything was done.
    ///
    /// So give versions where you can. If nothing shows the outcome, for example because a client without the lock has
    /// written to the nodes, the result is [`Error::OutcomeUnknown`]. If that client wrote the very same data, its
    /// write counts as this transaction's.
    ///
    /// # Cancel safety
    /// The transaction is sent at the first poll. Dropping the future afterwards does not cancel the transaction.
    ///
    /// # Errors
    /// - [`Error::Lost`]: the lock is lost, and nothing was changed.
    /// - [`Error::TransactionRefused`]: an operation could not be carried out, and nothing was changed.
    /// - [`Error::OutcomeUnknown`]: the connection broke, or the client was closed, before the answer came, and nothing
    ///   shows the outcome. Either everything was done, or nothing.
    /// - [`Error::InvalidInput`]: a path is invalid, or lies inside the lock's own directory, where a write would look
    ///   like a release to waiters. Or the request exceeds its [limit](Self::size_limit), so that a server would close
    ///   the connection. Nothing was sent.
    pub async fn commit(self) -> Result<Vec<Outcome>, Error> {
        let Transaction { locks, is_of_several, operations: wanted, size_limit, is_sent_once } = self;
        let lost = |lock: &Contender, loss| match is_of_several {
            true => Error::Lost(loss).with_lock_path(lock.user_path()),
            false => Error::Lost(loss),
        };
        for operation in &wanted {
            locks.iter().try_for_each(|lock| check_path_is_outside(operation.path(), lock.user_path()))?;
        }
        if let Some((lock, loss)) = locks.iter().find_map(|lock| Some((lock, lock.detect_loss()?))) {
            return Err(lost(lock, loss));
        }
        // The session of the last lock sends the transaction. A session can also check nodes that other sessions have
        // created.
        let Some(last) = locks.last() else {
            return Err(Error::invalid("a transaction under no lock"));
        };
        let check_node = |lock: &&Contender| Operation::Check { path: lock.node().path(), version: None };
        let mut operations: Vec<_> = locks.iter().map(check_node).collect();
        let checks = operations.len();
        operations.extend(wanted);
        // `count_sent_write` counts an unsettled write on each lock's node: a write that may still be carried out.
        // Until that write is settled, a process that keeps the node between uses does not use the node again. The
        // reply settles the write only on the nodes of the session that sent the transaction, because the requests of
        // two sessions have no common order. On the nodes of other sessions, the write stays unsettled.
        let session = last.session();
        let bytes = session.request_bytes(&operations);
        if bytes > size_limit {
            return Err(Error::invalid(format!("a transaction of {bytes} bytes; at most {size_limit} may be sent")));
        }
        locks.iter().for_each(|lock| lock.node().count_sent_write());
        // The lock of an elected leader may have been given back before `count_sent_write`, because its term has ended.
        // If so, nothing is sent.
        if let Some(lock) = locks.iter().find(|lock| lock.node().is_left()) {
            locks.iter().for_each(|lock| lock.node().settle_write());
            return Err(lost(lock, Loss::GivenBack));
        }
        let own = locks.iter().map(|lock| lock.node().token()).max().unwrap_or_default();
        let newest = session.store().newest_zxid().max(own);
        let answer = CommitAttempt { locks: &locks, session, operations: &operations, newest, is_sent_once }
            .send_and_find_outcome()
            .await;
        if !matches!(answer, Err(Failure::Unknown(_) | Failure::Over(_))) {
            let of_this_session = locks.iter().filter(|lock| Arc::ptr_eq(lock.session(), session));
            of_this_session.for_each(|lock| lock.node().settle_write());
        }
        match answer {
            Ok(mut outcomes) => {
                outcomes.drain(..checks.min(outcomes.len()));
                Ok(outcomes)
            }
            Err(Failure::Operation { index, failure }) => match locks.get(index) {
                Some(lock) if *failure == Failure::NoNode => {
                    // If the lock was given back meanwhile, the missing node is no loss.
                    if !lock.node().is_left() {
                        lock.node().record_loss(Loss::Removed);
                    }
                    Err(lost(lock, lock.detect_loss().unwrap_or(Loss::Removed)))
                }
                _ => Err(refusal_error(operations.get(index), index.saturating_sub(checks), *failure)),
            },
            Err(Failure::Over(ending)) => Err(lost(last, Loss::SessionOver(ending))),
            Err(failure) => Err(Error::from_failure(failure, "commit under the lock", last.user_path())),
        }
    }
}

/// Returns the error for a refused operation. `index` is its index among the caller's operations. If a create failed
/// with `NoNode`, the parent of its node is missing, and the error says so.
fn refusal_error(operation: Option<&Operation>, index: usize, failure: Failure) -> Error {
    let reason = match (operation, failure) {
        (Some(Operation::Create { path, .. }), Failure::NoNode) => Failure::NoParent(parent_path(path).to_owned()),
        (_, failure) => failure,
    };
    let path = operation.map(|operation| operation.path().to_owned()).unwrap_or_default();
    Error::TransactionRefused { index, path, reason }
}

debug!(Transaction<'_> as "Transaction", |it| operations: it.operations);

fn check_path_is_outside(path: &str, directory: &str) -> Result<(), Error> {
    validation::check_path(path)?;
    if validation::is_inside(path, directory) {
        return Err(Error::invalid(format!(
            "path {} lies inside the lock's own directory, where a write would pass for a hand-off",
            quoted(path)
        )));
    }
    Ok(())
}

/// How often, at most, a transaction is sent. There is a limit, because a server closes the connection whenever it gets
/// a transaction that is too large, and the reply is then lost every time.
pub(crate) const TRIES: u32 = 4;

/// A transaction whose reply may be lost, and the search for its outcome.
struct CommitAttempt<'a> {
    locks: &'a [&'a Contender],
    session: &'a Arc<dyn Session>,
    /// The checks of the locks' nodes, followed by the caller's operations.
    operations: &'a [Operation],
    /// The newest zxid that this client knew before it sent the transaction. A later change has a greater zxid.
    newest: i64,
    is_sent_once: bool,
}

/// What became of a transaction whose answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransactionFate {
    Done,
    /// The transaction was not carried out, and never will be.
    Undone,
    Unknown,
}

impl<'a> CommitAttempt<'a> {
    /// Sends the transaction, and returns its outcome. If the reply is lost, looks for the outcome on the next
    /// connection, and sends the transaction again, a limited number of times, if it was certainly not carried out.
    /// With `is_sent_once`, does neither. If the search finds nothing, or a lock is lost during the search, returns
    /// `Failure::Unknown`.
    async fn send_and_find_outcome(&self) -> Result<Vec<Outcome>, Failure> {
        let answer = self.session.transact(self.operations);
        self.refresh_newest_zxid();
        let answer = answer.await;
        if !matches!(answer, Err(Failure::Unknown(_))) || self.is_sent_once {
            return answer;
        }
        let lost = select_all(self.locks.iter().map(|lock| Box::pin(lock.until_lost())));
        let find_out = async {
            let (mut answer, mut tries) = (answer.clone(), 1);
            // The nodes are also read after a refusal of a retry, because an earlier try may have been carried out
            // late, and may be the cause of the refusal.
            while let Err(failure) = &answer {
                let (is_unknown, nodes) = (matches!(failure, Failure::Unknown(_)), self.read_nodes().await?);
                match self.fate_shown_by(&nodes) {
                    TransactionFate::Done => return self.outcomes_shown_by(&nodes),
                    TransactionFate::Undone if is_unknown && tries < TRIES => {
                        answer = self.session.transact(self.operations).await;
                        tries += 1;
                    }
                    TransactionFate::Undone | TransactionFate::Unknown => break,
                }
            }
            Some(answer)
        };
        let found =
            while_held(|| self.locks.iter().find_map(|lock| lock.detect_loss()), async { lost.await.0 }, find_out);
        found.await.ok().flatten().unwrap_or(answer)
    }

    /// Sends a read of one node that the transaction creates and does not change otherwise, right after the
    /// transaction. Nobody awaits the reply, but the session still receives it. The reply contains the zxid of the
    /// create, which the reply to the transaction lacks, and the session records the zxid as its newest. Without the
    /// read, `newest` of the next transaction could be lower than that zxid. If the reply to the next transaction were
    /// lost, [`fate_of`] would then take the node for a newer one. [`Transaction::commit_without_retry`] sends no such
    /// read.
    fn refresh_newest_zxid(&self) {
        let is_made = |operation: &&Operation| matches!(operation, Operation::Create { .. });
        let create = self.changing_operations().filter(is_made).find(|create| self.is_changed_once(create.path()));
        if let Some(create) = create.filter(|_| !self.is_sent_once) {
            drop(self.session.children_and_stat(create.path()));
        }
    }

    /// Reads the nodes that the transaction changes, after a check of the locks. Returns `None` if the session is over,
    /// a lock is lost, or a read fails.
    ///
    /// The nodes show the final outcome of a transaction whose reply was lost, because servers refuse a request that
    /// the session sent to another server before the reconnect. There is one exception: if the session comes back to a
    /// server that was stopped or cut off, that server may still carry out the transaction (see the top of
    /// `session/removal.rs`).
    async fn read_nodes(&self) -> Option<NodeContents> {
        let session = self.session;
        let paths: Vec<String> = self.changing_operations().map(|operation| operation.path().to_owned()).collect();
        let checks = self.locks.len().min(self.operations.len());
        session.store().until_connected().await.ok()?;
        let look = || {
            // A quorum commits the check, so the reads after it are up to date.
            let (held, nodes) = (session.transact(&self.operations[..checks]), session.data_of_each(&paths));
            async move { held.await.and(nodes.await) }
        };
        retry::repeat_until_known(session, look).await.ok()
    }

    /// Returns the operations that change a node.
    fn changing_operations(&self) -> impl Iterator<Item = &'a Operation> + use<'a> {
        self.operations.iter().filter(|operation| !matches!(operation, Operation::Check { .. }))
    }

    fn is_changed_once(&self, path: &str) -> bool {
        self.changing_operations().filter(|other| other.path() == path).count() == 1
    }

    fn fate_shown_by(&self, nodes: &NodeContents) -> TransactionFate {
        let fates =
            self.changing_operations().zip(nodes).filter(|(operation, _)| self.is_changed_once(operation.path()));
        // If all locks are write locks, and none is a permit, then no other client holds any of them.
        let is_of_a_lock = |lock: &Contender| parent_path(&lock.node().path()) == lock.user_path();
        let is_alone = self.locks.iter().all(|lock| lock.node_name().mode() == Mode::Write && is_of_a_lock(lock));
        let session = self.session.id();
        let fates = fates.map(|(operation, node)| fate_of(operation, node.as_ref(), self.newest, session, is_alone));
        let fates: Vec<_> = fates.collect();
        // A transaction of checks alone changes nothing, so it counts as undone, and is sent again.
        let changes_nothing = self.changing_operations().next().is_none();
        match (changes_nothing || fates.contains(&TransactionFate::Undone), fates.contains(&TransactionFate::Done)) {
            (true, _) => TransactionFate::Undone,
            (false, true) => TransactionFate::Done,
            (false, false) => TransactionFate::Unknown,
        }
    }

    /// Returns the outcomes of a transaction that was carried out. `None` if `nodes` do not show the new version of a
    /// node that the transaction set.
    fn outcomes_shown_by(&self, nodes: &NodeContents) -> Option<Result<Vec<Outcome>, Failure>> {
        let mut nodes = nodes.iter();
        let outcome = |operation: &Operation| {
            let node = if matches!(operation, Operation::Check { .. }) { None } else { nodes.next() };
            Some(match (operation, node) {
                (Operation::Check { .. }, _) => Outcome::Checked,
                (Operation::Create { .. }, _) => Outcome::Created,
                (Operation::Delete { .. }, _) => Outcome::Deleted,
                (Operation::Set { version: Some(version @ 0..), .. }, _) => {
                    Outcome::Set { version: version.wrapping_add(1) }
                }
                (Operation::Set { data, .. }, Some(Some((now, stat)))) if now == data => {
                    Outcome::Set { version: stat.version }
                }
                (Operation::Set { .. }, _) => return None,
            })
        };
        self.operations.iter().map(outcome).collect::<Option<Vec<_>>>().map(Ok)
    }
}

/// Returns what one node shows about the outcome of a transaction. `operation` is the only operation on that node.
/// `newest` is the newest zxid that was known before the transaction was sent, and `session` the id of the session that
/// sent it. `is_alone` says that no other client can hold any of the transaction's locks.
fn fate_of(
    operation: &Operation,
    node: Option<&(Vec<u8>, Stat)>,
    newest: i64,
    session: i64,
    is_alone: bool,
) -> TransactionFate {
    // A missing node shows nothing, because another client may have deleted it.
    let Some((now, stat)) = node else { return TransactionFate::Unknown };
    let was_there = stat.czxid <= newest;
    match operation {
        // Each write raises the version by one, so exactly one write has made a version from the one before it.
        Operation::Set { data, version: Some(version @ 0..), .. } if was_there => {
            match stat.version.wrapping_sub(*version) {
                0 => TransactionFate::Undone,
                1 if now != data => TransactionFate::Undone,
                1 if is_alone => TransactionFate::Done,
                _ => TransactionFate::Unknown,
            }
        }
        Operation::Create { .. } | Operation::Delete { .. } if was_there => TransactionFate::Undone,
        Operation::Create { data, kind, .. } if is_alone && now == data && stat.version == 0 => {
            let owner = if *kind == Kind::Persistent { 0 } else { session };
            if stat.ephemeral_owner == owner { TransactionFate::Done } else { TransactionFate::Unknown }
        }
        _ => TransactionFate::Unknown,
    }
}
