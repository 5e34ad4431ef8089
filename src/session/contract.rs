//! The traits that a backend implements: [`Coordinator`] opens sessions, and [`Session`] sends requests. There are two
//! backends, [`ZooKeeper`](crate::ZooKeeper) and [`Memory`](crate::Memory).

use std::any::Any;
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::queue::permits::permits_in_name;
use crate::session::lease::Lease;
use crate::session::request::{
    self, Created, Failure, Kind, NodeContents, Operation, Outcome, Reply, Stat, Task, Watch,
};
use crate::session::store::SessionStore;

/// A check of the node at `path` creates a temporary node, and deletes it again. Returns the directory for this
/// temporary node. Usually this is the directory of `path`. For a permit of a semaphore, this is the parent of that
/// directory, because a node with any other name among the permits makes every count of the permits fail.
pub(crate) fn temporary_node_directory(path: &str) -> &str {
    let (directory, name) = path.rsplit_once('/').unwrap_or_default();
    if permits_in_name(name).is_some() { request::parent_path(directory) } else { directory }
}

/// A client of an ensemble: [`ZooKeeper`](crate::ZooKeeper), or [`Memory`](crate::Memory) for tests. Locks, semaphores
/// and values are opened on a client.
///
/// Handles are cheap to clone, and share their sessions.
///
/// Use a type parameter in a function that takes either client. A type that stores a client can store an
/// `Arc<dyn Coordinator>`, which is a client, too:
///
/// ```
/// use std::sync::Arc;
/// use zk_rwlock::{Coordinator, Error, Memory, RwLock};
///
/// fn migration_lock<C: Coordinator + Clone>(zk: &C) -> Result<RwLock, Error> {
///     RwLock::new(zk, "/locks/migration")
/// }
///
/// struct Service {
///     zk: Arc<dyn Coordinator>,
/// }
///
/// let zk = Memory::new(); // or: ZooKeeper::connect("127.0.0.1:2181").await?
/// let lock = migration_lock(&zk)?;
/// let service = Service { zk: Arc::new(zk) };
/// assert_eq!(migration_lock(&service.zk)?.path(), lock.path());
/// # Ok::<(), Error>(())
/// ```
///
/// Only types of this library can implement this trait. Its methods are internal, and may change in any release.
#[async_trait]
pub trait Coordinator: fmt::Debug + Send + Sync + 'static {
    /// Returns a session that is connected and alive now, in a slot. The slot reserves `own_bytes` bytes of the session
    /// for the paths of the caller's ephemeral nodes. A session has a limited number of such bytes, because the
    /// transaction that ends the session lists the paths of its nodes, and servers limit the size of a transaction.
    ///
    /// After a session ended, the next call opens a new one. While the session is disconnected, the call waits until
    /// the session is connected again or over.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Errors
    /// [`Failure::Unreachable`] if a new session is needed and no server answers within the backend's own limit.
    /// [`Failure::Over`] if this coordinator was closed or its credentials were refused.
    #[doc(hidden)]
    async fn session_slot(&self, own_bytes: usize) -> Result<SessionSlot, Failure>;

    /// Ends every session, so that the ensemble deletes the nodes of these sessions. Returns when the ensemble has
    /// confirmed the end, or after one session timeout without a confirmation.
    ///
    /// Guards on these sessions are lost, waiting acquisitions fail, and new acquisitions are refused.
    #[doc(hidden)]
    async fn close(&self);

    /// Sleeps for `duration`, even if the caller has no async runtime, or if the caller's runtime ends meanwhile.
    #[doc(hidden)]
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Returns whether the client is connected, for the error of a call that timed out. Returns immediately. The
    /// default implementation returns `Connected`.
    #[doc(hidden)]
    fn state(&self) -> ConnectionState {
        ConnectionState::Connected
    }

    /// Returns the names of the ensemble's servers, and the path of the node below which this client keeps all its
    /// nodes. The default implementation returns `None`.
    #[doc(hidden)]
    fn namespace(&self) -> Option<(Vec<String>, String)> {
        None
    }
}

// With an `Arc<dyn Coordinator>`, a program can choose its backend at run time.
#[async_trait]
impl<C: Coordinator + ?Sized> Coordinator for Arc<C> {
    async fn session_slot(&self, own_bytes: usize) -> Result<SessionSlot, Failure> {
        (**self).session_slot(own_bytes).await
    }

    async fn close(&self) {
        (**self).close().await;
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        (**self).sleep(duration)
    }

    fn state(&self) -> ConnectionState {
        (**self).state()
    }

    fn namespace(&self) -> Option<(Vec<String>, String)> {
        (**self).namespace()
    }
}

/// A session, and the bytes that are reserved in it for the paths of the caller's ephemeral nodes. The bytes stay
/// reserved until the slot is dropped.
#[derive(Debug)]
pub struct SessionSlot {
    session: Arc<dyn Session>,
    _reservation: Option<Box<dyn Any + Send + Sync>>,
}

impl SessionSlot {
    /// Returns a slot on a session that takes any number of nodes, so that no bytes are reserved.
    pub fn new(session: Arc<dyn Session>) -> SessionSlot {
        SessionSlot { session, _reservation: None }
    }

    /// Returns a slot whose bytes the backend has reserved. Dropping the slot drops `reservation`, which frees the
    /// bytes.
    pub fn with_reservation(session: Arc<dyn Session>, reservation: impl Any + Send + Sync) -> SessionSlot {
        SessionSlot { session, _reservation: Some(Box::new(reservation)) }
    }

    /// Returns the session.
    pub fn session(&self) -> &Arc<dyn Session> {
        &self.session
    }
}

/// One session: an ordered line of requests, and the owner of ephemeral nodes.
///
/// # Contract
/// 1. **Sent at the call.** A request is on its way when the method returns, whether or not its [`Reply`] is polled
///    or dropped. Methods may be called from any thread, outside a runtime, and in a panic.
/// 2. **One order.** A session's requests take effect, and are answered, in the order of the calls.
/// 3. **Own writes are seen.** A read sent after a write of this session sees that write, and everything before it.
/// 4. **Reads may be stale**, but never go back in time. [`Session::sync`] brings them up to date.
/// 5. **Sequence numbers** of one directory rise with every sequential create, up to the largest number. Then they
///    stay there or wrap around.
/// 6. **Creation ids** (`czxid`) rise ensemble-wide, and are never used twice, not even after the directory is
///    recreated.
/// 7. **A transaction** takes effect as a whole or not at all. No client sees a part of its effect.
/// 8. **A watch** fires once, with the first change after the server has armed it. If the node is gone before that, the
///    failure is [`Failure::NoNode`], and no watch is left. Events come in the order of the changes. An event comes
///    before the answer of any later read that shows its change. If a node may have changed while the connection was
///    lost, its watch fires after the reconnect with
///    [`WatchEvent::LookAgain`](crate::coordinator::WatchEvent::LookAgain), or with
///    [`WatchEvent::Deleted`](crate::coordinator::WatchEvent::Deleted) if the node is gone. Dropping a [`Watch`]
///    removes it.
/// 9. **Ephemeral nodes** live until deleted or until their session is over. A session that is over answers every
///    request with [`Failure::Over`], and never comes back.
/// 10. **An unknown outcome is never guessed.** [`Failure::Unknown`], [`Failure::Diverged`] and [`Failure::Over`] say
///     that the request may or may not have been carried out. Every other failure says that it was not carried out.
/// 11. **The store** ([`Session::store`]) gets a call for each of these events. The session
///     [began](SessionStore::record_begin). A request was certainly [answered](SessionStore::record_answer), or a
///     quorum has [acknowledged](SessionStore::record_quorum_answer) it. The [connection](SessionStore::set_connected)
///     was lost or is back. A handshake has [resumed](SessionStore::record_resume) the session. The session is
///     [over](SessionStore::record_end_and_report).
/// 12. **A server is left** by [`Session::leave_server`], which closes the connection. The session goes on at another
///     server, if one answers.
/// 13. **A session is called without a mutex.** The library holds none of its mutexes while it calls a method of a
///     session. So the session may wake tasks and report to its store inside that call, and a waker may poll its task
///     there.
///
/// # Implementing it
/// Spawn [`keep_alive`](crate::coordinator::keep_alive) once for each session.
pub trait Session: fmt::Debug + Send + Sync + 'static {
    /// Returns the session's id in the ensemble, the same as in `ephemeral_owner`.
    fn id(&self) -> i64;

    /// Returns whether the session with this id belongs to this process, as far as the backend knows. The default
    /// implementation knows no session but this one.
    fn is_session_of_process(&self, session: i64) -> bool {
        session == self.id()
    }

    /// Returns the negotiated session timeout. The default implementation returns the timeout of the lease.
    fn timeout(&self) -> Duration {
        self.lease().timeout()
    }

    /// Returns the address of the connected server, for people to read. Returns `None` if the address is not known. The
    /// default implementation returns `None`.
    fn server(&self) -> Option<String> {
        None
    }

    /// Returns the library's record of this session. The backend creates the store, and reports each event of the
    /// session to it.
    fn store(&self) -> &Arc<SessionStore>;

    /// Returns the lease, which says until when this session is surely alive.
    fn lease(&self) -> &Arc<Lease> {
        self.store().lease()
    }

    /// Creates a node. The name of a sequential node is `path` with ten digits appended.
    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created>;

    /// Deletes a node.
    fn delete(&self, path: &str) -> Reply<()>;

    /// Creates this client's root node again if another client has deleted it. The library names this node `/`. The
    /// default implementation does nothing, for a backend whose root cannot be deleted.
    fn make_root(&self) -> Reply<()> {
        Box::pin(ready(Ok(())))
    }

    /// Returns the names of a node's children, in no order.
    fn children(&self, path: &str) -> Reply<Vec<String>> {
        let listed = self.children_and_stat(path);
        Box::pin(async move { Ok(listed.await?.0) })
    }

    /// Like [`Session::children`]. Also returns the stat of the node itself at the moment of the listing, or `None` if
    /// the backend does not know the stat.
    fn children_and_stat(&self, path: &str) -> Reply<(Vec<String>, Option<Stat>)>;

    /// Returns a node's data and stat.
    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)>;

    /// Returns the data and stat of each of these nodes, and `None` for a node that does not exist, or that this client
    /// may not read. The default implementation sends one request for each node.
    fn data_of_each(&self, paths: &[String]) -> Reply<NodeContents> {
        request::join_optional_replies(paths.iter().map(|path| self.data(path)).collect())
    }

    /// Arms a one-shot watch on an existing node.
    fn watch(&self, path: &str) -> Reply<Watch>;

    /// Returns the names of a node's children, in no order, and a one-shot watch on them. The watch fires with
    /// [`WatchEvent::Changed`](crate::coordinator::WatchEvent::Changed) when a child is created or deleted, and not
    /// when the data of a child changes.
    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)>;

    /// Brings this session's reads up to date with the ensemble. Succeeds even if there is no node at `path`.
    ///
    /// The default implementation sends a transaction that checks the node at `path` and changes nothing. A transaction
    /// is answered only after a quorum has committed it, even if the check fails. ZooKeeper's own `sync` is not used,
    /// because a deposed leader, which does not know yet that it was deposed, may answer the `sync`
    /// ([ZOOKEEPER-1675](https://issues.apache.org/jira/browse/ZOOKEEPER-1675)).
    fn sync(&self, path: &str) -> Reply<()> {
        let checked = self.transact(&[Operation::Check { path: path.to_owned(), version: None }]);
        Box::pin(async move {
            let answer = checked.await;
            if request::is_from_quorum(&answer) { Ok(()) } else { answer.map(drop) }
        })
    }

    /// Returns the rights on a node that go beyond this client's own ACL, in words such as `world:anyone may CREATE,
    /// DELETE`. The default implementation returns none, for a backend without ACLs.
    fn wider_rights(&self, _path: &str) -> Reply<Vec<String>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    /// Returns whether this client refuses nodes that give [wider rights](Session::wider_rights). The default
    /// implementation returns `false`.
    fn refuses_wider_rights(&self) -> bool {
        false
    }

    /// Returns whether reads alone keep the session alive. On a follower of ClickHouse Keeper they do not, because the
    /// follower does not report reads to its leader. The library then sends transactions even while the session has no
    /// nodes. The default implementation returns `true`.
    fn is_kept_alive_by_reads(&self) -> bool {
        true
    }

    /// Returns how many bytes these operations take as one request.
    fn request_bytes(&self, operations: &[Operation]) -> usize {
        request::request_size(operations, 0, request::ACL_OF_ANYONE)
    }

    /// Carries out all operations or none. If an operation fails, the failure is [`Failure::Operation`].
    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>>;

    /// Closes the connection with this [number](SessionStore::connection_number), because its server and the ensemble's
    /// leader do not agree about `node`. The session goes on at another server. Returns `false` if that connection is
    /// lost already.
    ///
    /// Fails with [`Failure::Diverged`] if no other server may be tried. The default implementation always fails. A
    /// ZooKeeper client leaves an address at most once in ten minutes. If the client knows only one address, it leaves
    /// this address at most three times in ten minutes, because several servers may share the address.
    fn leave_server(&self, _connection: u64, node: &str) -> Reply<bool> {
        let server = self.server().unwrap_or_else(|| "unknown".to_owned());
        Box::pin(ready(Err(Failure::Diverged { node: node.to_owned(), server })))
    }

    /// Runs `task` in the background, even after the end of the session. Does not use the caller's runtime.
    fn spawn(&self, task: Task);

    /// Sleeps for `duration`, even if the caller has no async runtime, or if the caller's runtime ends meanwhile.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// Whether a client reaches its ensemble now. Returned by [`ZooKeeper::state`](crate::ZooKeeper::state) and
/// [`Memory::state`](crate::Memory::state).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionState {
    /// The client has a session, and the session is connected.
    Connected,
    /// The session has lost its connection, or is over, and the client tries to reconnect. Acquisitions wait.
    Connecting {
        /// When the connection was lost.
        since: Instant,
        /// Why the last attempt failed, in the words of the operating system or of a server, for people to read. `None`
        /// if nothing is known yet.
        why: Option<String>,
    },
    /// The client was closed, and stays closed.
    Closed,
}

impl ConnectionState {
    /// Returns whether the state is [`Connected`](ConnectionState::Connected).
    pub fn is_connected(&self) -> bool {
        *self == ConnectionState::Connected
    }

    /// Returns how long ago the connection was lost, and the reason, if it is known, why there is no connection now.
    /// `None` unless the state is [`Connecting`](ConnectionState::Connecting).
    pub(crate) fn into_cut_off(self) -> Option<CutOff> {
        match self {
            ConnectionState::Connecting { since, why } => Some(CutOff { lasted: since.elapsed(), why }),
            _ => None,
        }
    }
}

/// Says that the client was not connected when a call timed out. Part of [`Error::Timeout`](crate::Error::Timeout).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CutOff {
    /// How long ago the connection was lost.
    pub lasted: Duration,
    /// Why there is no connection, for people to read. `None` if the reason was not known yet.
    pub why: Option<String>,
}

/// Writes a text for people, such as `cut off for 3s 200ms: zk1:2181: Connection refused (os error 111)`.
impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lasted = Duration::from_millis(u64::try_from(self.lasted.as_millis()).unwrap_or(u64::MAX) / 100 * 100);
        write!(f, "cut off for {}", humantime::format_duration(lasted))?;
        self.why.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

/// Writes a text for logs and health checks, such as `connecting for 7s: zk1:2181: Connection refused (os error 111)`.
impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionState::Connected => f.write_str("connected"),
            ConnectionState::Connecting { since, why } => {
                let seconds = Duration::from_secs(since.elapsed().as_secs());
                write!(f, "connecting for {}", humantime::format_duration(seconds))?;
                why.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
            }
            ConnectionState::Closed => f.write_str("closed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_off_time_is_shown_in_tenths_of_a_second() {
        let cut_off = |millis, why: Option<&str>| {
            CutOff { lasted: Duration::from_millis(millis), why: why.map(str::to_owned) }.to_string()
        };
        assert_eq!(cut_off(3_299, None), "cut off for 3s 200ms");
        assert_eq!(cut_off(99, None), "cut off for 0s");
        assert_eq!(cut_off(60_000, Some("zk1: refused")), "cut off for 1m: zk1: refused");
    }

    #[test]
    fn each_connection_state_has_its_words() {
        // `later` is an hour in the future, so that the elapsed time is shown as "0s" even if the test is slow.
        let later = Instant::now() + Duration::from_secs(3600);
        let connecting = |why: Option<&str>| ConnectionState::Connecting { since: later, why: why.map(str::to_owned) };
        for (state, words) in [
            (ConnectionState::Connected, "connected"),
            (connecting(None), "connecting for 0s"),
            (connecting(Some("zk1: refused")), "connecting for 0s: zk1: refused"),
            (ConnectionState::Closed, "closed"),
        ] {
            assert_eq!(state.to_string(), words);
            assert_eq!(state.is_connected(), words == "connected");
            assert_eq!(state.into_cut_off().is_some(), words.starts_with("connecting"));
        }
    }
}
