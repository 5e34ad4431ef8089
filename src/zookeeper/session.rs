//! A session of a ZooKeeper ensemble: the implementation of the trait [`Session`].

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{Semaphore, oneshot};
use zookeeper_client as zk;

use crate::session::contract::{Session, SessionSlot};
use crate::session::keep_alive::keep_alive;
use crate::session::lease::Moment;
use crate::session::request::{
    self, Created, Failure, Kind, NodeContents, Operation, Outcome, Reply, Stat, Task, Watch, parent_path,
};
use crate::session::store::SessionStore;
use crate::session::thread::{BackgroundThread, sleep};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, mpsc, watch};
use crate::telemetry::debug::debug;
use crate::telemetry::log;
use crate::validation::REQUEST_LIMIT;
use crate::zookeeper::abilities::{ClickHouseMark, ServerFeatures};
use crate::zookeeper::connection::ConnectTarget;
use crate::zookeeper::connections::{ConnectDriver, LeaveServerRequest, SessionConnections};
use crate::zookeeper::link::OpenedConnection;
use crate::zookeeper::pipeline::{RequestKind, RequestPipeline};
use crate::zookeeper::translate::{self, commit, create_mode, is_removal};
use crate::zookeeper::watches::WatchKind;

/// The most bytes that the paths of a session's ephemeral nodes may have together: half of the largest request that a
/// server accepts. The transaction that ends a session lists these paths, with some more bytes for each. If this
/// transaction is larger than the server accepts, the server cannot start again, because it cannot read its own log
/// (ZOOKEEPER-4306).
const OWN_BYTES_MAX: usize = REQUEST_LIMIT / 2;

/// [`keep_alive`] watches the nodes of this session that are older than this. It begins to watch a node at the latest
/// at twice this age. Most nodes of short holds are gone by then, and cost no watch. The value is a guess, and was not
/// measured.
const WATCH_OWN_AFTER: Duration = Duration::from_millis(5);

pub(super) struct ZooKeeperSession {
    pub(super) connections: Arc<SessionConnections>,
    /// A channel whose sender is dropped when the session has lost its last connection and will not get another.
    pub(super) follower: watch::Receiver<()>,
    /// A counter of the bytes of [`OWN_BYTES_MAX`] that are not reserved.
    room: Arc<Semaphore>,
    /// `true` until the acquisition for which the session was opened has reserved the bytes for its node.
    is_fresh: AtomicBool,
}

impl ZooKeeperSession {
    /// Creates a session on its first connection, whose handshake was sent at `started` or later, and starts its
    /// background tasks. Fails if the options leave no time to renew the lease.
    pub(super) fn new(
        (connection, target): (OpenedConnection, ConnectTarget),
        mut finder: ConnectDriver,
        background: &Arc<BackgroundThread>,
        started: Moment,
        keeper: Arc<ClickHouseMark>,
    ) -> Result<Arc<ZooKeeperSession>, Failure> {
        let (client, options) = (&connection.client, &finder.config.options);
        options.check_lease().map_err(|problem| Failure::Refused(format!("{problem}, which the servers grant")))?;
        let store = Arc::new(SessionStore::new(options.new_lease()));
        store.record_begin(started);
        let ((follows, follower), (leaves, asked)) = (watch::channel(()), mpsc::unbounded_channel());
        let id = client.session_id().0;
        log::mark_sessions_begun();
        background.sessions.lock().insert(id);
        keeper.mark_by_session_id(id);
        let connections = Arc::new(SessionConnections {
            pipeline: Arc::new(RequestPipeline::new(&store, background)),
            rights: options.acl_policy(),
            whom: options.describe_user(),
            features: ServerFeatures::of_session(id, keeper),
            root_bytes: client.path().trim_end_matches('/').len(),
            session: client.session().clone(),
            granted: client.session_timeout(),
            watches: Arc::default(),
            background: Arc::clone(background),
            server: Mutex::default(),
            leaves,
            store,
            config: finder.config.clone(),
        });
        let mut served = connections.start_serving(connection, target);
        connections.adopt_connection(&mut served, &mut finder.attempts, true);
        let serving = Arc::clone(&connections).serve_session(served, finder, asked);
        background.spawn(connections.end_session_on_panic(serving).map(move |()| drop(follows)));
        let session = Arc::new(ZooKeeperSession {
            connections,
            follower,
            room: Arc::new(Semaphore::new(OWN_BYTES_MAX)),
            is_fresh: AtomicBool::new(true),
        });
        let shared: Arc<dyn Session> = session.clone();
        let kept_alive = keep_alive(Arc::downgrade(&shared), WATCH_OWN_AFTER);
        background.spawn(session.connections.end_session_on_panic(kept_alive));
        Ok(session)
    }

    /// Reserves bytes of [`OWN_BYTES_MAX`] for ephemeral nodes whose paths have `own_bytes` bytes without the root.
    /// Returns `None` if too few bytes are free.
    pub(super) fn reserve_slot(self: &Arc<Self>, own_bytes: usize) -> Option<SessionSlot> {
        // The server puts the root in front of each path. One reservation is for at most two nodes: a contender for
        // permits has a node in the queue, and later the node of its permit.
        let bytes = if own_bytes == 0 { 0 } else { own_bytes + 2 * self.connections.root_bytes };
        let room = Arc::clone(&self.room).try_acquire_many_owned(u32::try_from(bytes).ok()?);
        let session: Arc<dyn Session> = self.clone();
        Some(SessionSlot::with_reservation(session, room.ok()?))
    }

    /// Sends a request about the node at `path`, as [`RequestPipeline::send`] does.
    fn send_request<T, F>(
        &self,
        kind: RequestKind,
        path: &str,
        send: impl Fn(Arc<zk::Client>, Arc<SessionConnections>, Arc<str>) -> F + Send + 'static,
    ) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let (it, path): (_, Arc<str>) = (Arc::clone(&self.connections), path.into());
        self.connections.pipeline.send(kind, move |client| send(client, Arc::clone(&it), Arc::clone(&path)))
    }

    /// Sends a read that needs the right `READ` on `path`, as [`RequestPipeline::send`] does.
    fn send_read<T, F>(
        &self,
        path: &str,
        read: impl Fn(Arc<zk::Client>, Arc<SessionConnections>, Arc<str>) -> F + Send + 'static,
    ) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, zk::Error>> + Send + 'static,
    {
        self.send_request(RequestKind::Read, path, move |client, it, path| {
            let answer = read(client, Arc::clone(&it), Arc::clone(&path));
            async move { answer.await.map_err(|error| it.translate_error(error, ("READ", &path))) }
        })
    }

    /// Returns whether a contender uses the session. It does so if it has reserved bytes of [`OWN_BYTES_MAX`] for its
    /// node. The contender for which the session was opened uses the session even before it has reserved any.
    pub(super) fn is_in_use(&self) -> bool {
        self.room.available_permits() < OWN_BYTES_MAX || self.is_fresh.load(Ordering::Acquire)
    }

    pub(super) fn mark_used(&self) {
        self.is_fresh.store(false, Ordering::Release);
    }
}

impl Session for ZooKeeperSession {
    fn id(&self) -> i64 {
        self.connections.session.id().0
    }

    fn is_session_of_process(&self, session: i64) -> bool {
        self.connections.background.sessions.lock().contains(&session)
    }

    fn server(&self) -> Option<String> {
        let server = self.connections.server.lock().clone();
        Some(server.unwrap_or_else(|| format!("one of {}", self.connections.config.servers.without_root())))
    }

    fn store(&self) -> &Arc<SessionStore> {
        &self.connections.store
    }

    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created> {
        let kind = match kind {
            Kind::Container if !self.connections.features.has_containers() => Kind::Persistent,
            kind => kind,
        };
        let data: Arc<[u8]> = data.into();
        self.send_request(RequestKind::Write, path, move |client, it, path| {
            let (data, newest) = (Arc::clone(&data), it.store.newest_zxid());
            async move {
                let failure = |error| it.translate_error(error, ("CREATE", parent_path(&path)));
                let options = create_mode(kind).with_acls(zk::Acls::new(&it.rights.acl.entries));
                let created = client.create(&path, &data, &options).await;
                let (stat, sequence) = match kind {
                    Kind::Container => it.features.containers.record_if_unimplemented(created, failure)?,
                    _ => created.map_err(failure)?,
                };
                let path =
                    if kind == Kind::EphemeralSequential { format!("{path}{sequence}") } else { path.to_string() };
                if stat.czxid <= newest {
                    Err(it.end_after_ensemble_restore())
                } else {
                    let Stat { czxid, ctime, ephemeral_owner, .. } = translate::translate_stat(&stat);
                    Ok(Created { path, czxid, ctime, ephemeral_owner })
                }
            }
        })
    }

    fn delete(&self, path: &str) -> Reply<()> {
        self.send_request(RequestKind::Removal, path, |client, it, path| async move {
            client.delete(&path, None).await.map_err(|error| it.translate_error(error, ("DELETE", parent_path(&path))))
        })
    }

    fn make_root(&self) -> Reply<()> {
        if self.connections.root_bytes == 0 {
            return Box::pin(ready(Ok(())));
        }
        // If the root exists already, this request only reads, and its answer does not come from a quorum. So the
        // request always counts as a read.
        self.send_request(RequestKind::Read, "/", |client, it, _| make_root(client, it))
    }

    fn children_and_stat(&self, path: &str) -> Reply<(Vec<String>, Option<Stat>)> {
        self.send_read(path, |client, it, path| async move {
            let (names, stat) = client.get_children(&path).await?;
            it.store.record_zxid(stat.mzxid);
            Ok((names, Some(translate::translate_stat(&stat))))
        })
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        self.send_read(path, |client, it, path| async move {
            let (data, stat) = client.get_data(&path).await?;
            it.store.record_zxid(stat.mzxid);
            Ok((data, translate::translate_stat(&stat)))
        })
    }

    fn data_of_each(&self, paths: &[String]) -> Reply<NodeContents> {
        if paths.len() < 2 || !self.connections.features.has_multi_read() {
            return request::join_optional_replies(paths.iter().map(|path| self.data(path)).collect());
        }
        let each: Arc<[String]> = paths.into();
        self.send_request(RequestKind::Read, &paths[0], move |client, it, first| {
            let each = Arc::clone(&each);
            async move {
                let read = translate::data_of_each(&client, &each).await;
                it.features
                    .multi_read
                    .record_if_unimplemented(read, |error| it.translate_error(error, ("READ", &first)))
            }
        })
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        self.send_read(path, |client, it, path| {
            let connection = it.watches.connection_number();
            async move {
                let (_, stat, watcher) = client.get_and_watch_data(&path).await?;
                Ok(it.watches.add((path, WatchKind::Data), &stat, (connection, watcher)))
            }
        })
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)> {
        self.send_read(path, |client, it, path| {
            let connection = it.watches.connection_number();
            async move {
                let (names, stat, watcher) = client.get_and_watch_children(&path).await?;
                Ok((names, it.watches.add((path, WatchKind::Children), &stat, (connection, watcher))))
            }
        })
    }

    fn wider_rights(&self, path: &str) -> Reply<Vec<String>> {
        self.send_read(path, |client, it, path| async move {
            Ok(it.rights.rights_beyond_own(&client.get_acl(&path).await?.0))
        })
    }

    fn refuses_wider_rights(&self) -> bool {
        self.connections.rights.refuses
    }

    fn is_kept_alive_by_reads(&self) -> bool {
        self.connections.features.reads_keep_alive()
    }

    fn request_bytes(&self, operations: &[Operation]) -> usize {
        request::request_size(operations, self.connections.root_bytes, self.connections.rights.acl.request_size())
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        let request = if is_removal(operations) { RequestKind::Removal } else { RequestKind::Write };
        let (it, operations): (_, Arc<[Operation]>) = (Arc::clone(&self.connections), operations.into());
        self.connections.pipeline.send(request, move |client| {
            let (it, operations, before) = (Arc::clone(&it), Arc::clone(&operations), it.store.newest_zxid());
            async move {
                let (outcomes, newest) = commit(&client, &operations, &it.rights.acl, &it.whom).await?;
                it.store.record_zxid(newest);
                if (1..=before).contains(&newest) { Err(it.end_after_ensemble_restore()) } else { Ok(outcomes) }
            }
        })
    }

    fn leave_server(&self, connection: u64, node: &str) -> Reply<bool> {
        let (answer, left) = oneshot::channel();
        let _over = self.connections.leaves.send(LeaveServerRequest { connection, node: node.to_owned(), answer });
        let store = Arc::clone(self.store());
        Box::pin(async move {
            tokio::select! {
                biased;
                Ok(answer) = left => answer,
                ending = store.until_over() => Err(Failure::Over(ending)),
            }
        })
    }

    fn spawn(&self, task: Task) {
        self.connections.background.spawn(self.connections.end_session_on_panic(task));
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(sleep(duration))
    }
}

impl Drop for ZooKeeperSession {
    fn drop(&mut self) {
        self.connections.background.sessions.lock().remove(&self.id());
        self.connections.pipeline.close();
    }
}

debug!(ZooKeeperSession as "ZooKeeperSession", |it| id: it.id(), lease: it.lease());

/// Creates the path at the end of the connect string, unless it exists.
async fn make_root(client: Arc<zk::Client>, it: Arc<SessionConnections>) -> Result<(), Failure> {
    let root = client.path().to_owned();
    if client.check_stat("/").await.map_err(|error| it.translate_error(error, ("READ", &root)))?.is_some() {
        return Ok(());
    }
    let whole = client.as_ref().clone().chroot("/").map_err(|_| Failure::Refused(format!("path {root:?}")))?;
    let options = zk::CreateMode::Persistent.with_acls(zk::Acls::new(&it.rights.acl.entries));
    let Err(error) = whole.mkdir(&root, &options).await else { return Ok(()) };
    let mut above = parent_path(&root);
    while above != "/" && matches!(whole.check_stat(above).await, Ok(None)) {
        above = parent_path(above);
    }
    // The paths in other errors do not contain the root. The path in this error lies above the root, so the error also
    // says what the root is.
    let above = format!("{above} (the connect string's {root} is missing)");
    Err(it.translate_error(error, ("CREATE", &above)))
}
