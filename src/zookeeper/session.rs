//! A session of a ZooKeeper ensemble: the implementation of the trait [`Session`].

use std::fmt;
use std::future::ready;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::{FutureExt, TryFutureExt};
use tokio::sync::Semaphore;
use zookeeper_client as zk;

use crate::session::contract::{self, Session, SessionSlot};
use crate::session::keep_alive::keep_alive;
use crate::session::lease::Moment;
use crate::session::request::{
    self, Contents, Created, Ending, Failure, Kind, Operation, Outcome, Reply, Stat, Task, Watch, parent,
};
use crate::session::retry::{self, Tries};
use crate::session::shield::shielded;
use crate::session::store::SessionStore;
use crate::session::thread::{BackgroundThread, is_forked};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, watch};
use crate::telemetry::log::{self, emit};
use crate::validation::REQUEST_LIMIT;
use crate::zookeeper::abilities::{Abilities, KeeperMark};
use crate::zookeeper::options::ZooKeeperBuilder;
use crate::zookeeper::pipeline::{Identity, Pipeline, Request};
use crate::zookeeper::security::OwnRights;
use crate::zookeeper::server_order::ClientEnded;
use crate::zookeeper::servers::Servers;
use crate::zookeeper::sockets;
use crate::zookeeper::translate::{self, commit, event, is_removal, mode};

/// The most bytes of watched paths on one session. With more than 128 KiB, a reconnect fails for good. The difference
/// is left for watches that are not counted.
///
/// The paths of the session's ephemeral nodes are among the watched paths. The transaction that ends a session lists
/// these nodes, and a server cannot start again if its log has a request that is larger than the server accepts
/// (ZOOKEEPER-4306).
const WATCHED_BYTES_MAX: usize = 96 * 1024;
const _: () = assert!(WATCHED_BYTES_MAX < REQUEST_LIMIT / 2);

/// The library watches a node of ours from between this age and twice this age on: see [`keep_alive`]. Most nodes of short
/// holds are gone by then and cost no watch. No measurement of this value is on record.
const WATCH_OWN_AFTER: Duration = Duration::from_millis(5);

pub(super) struct ZooKeeperSession {
    id: i64,
    rights: Arc<OwnRights>,
    abilities: Arc<Abilities>,
    pipeline: Arc<Pipeline>,
    store: Arc<SessionStore>,
    /// A channel whose sender is dropped when [`follow_state`] ends, that is, when the client crate has reported the end
    /// of the session.
    follower: watch::Receiver<()>,
    background: Arc<BackgroundThread>,
    servers: Servers,
    /// The address of the server that the session is connected to; `None` while the address is uncertain.
    server: Mutex<Option<SocketAddr>>,
    /// The number of bytes of watched paths that are still free.
    room: Arc<Semaphore>,
    /// Whether the acquisition for which the session was opened has not taken its slot yet.
    is_fresh: AtomicBool,
    /// The length in bytes of the root, which is the path at the end of the connect string.
    root_bytes: usize,
    this: Weak<ZooKeeperSession>,
}

impl ZooKeeperSession {
    /// Creates a session whose handshake was sent at `started` or later, and starts its background tasks.
    pub(super) fn new(
        (client, ended): (zk::Client, ClientEnded),
        background: &Arc<BackgroundThread>,
        options: &ZooKeeperBuilder,
        started: Moment,
        keeper: Arc<KeeperMark>,
        servers: Servers,
    ) -> Result<Arc<ZooKeeperSession>, Failure> {
        let timeout = granted_timeout(&client, options)?;
        let store = Arc::new(SessionStore::new(options.lease(timeout)));
        store.began(started);
        let (states, (follows, follower)) = (client.state_watcher(), watch::channel(()));
        let (id, root_bytes) = (client.session_id().0, client.path().trim_end_matches('/').len());
        let whom = options.whom();
        log::mark_sessions_begun();
        background.sessions().insert(id);
        keeper.learn_from_session_id(id);
        let session = Arc::new_cyclic(|this: &Weak<ZooKeeperSession>| {
            let weak = Weak::clone(this);
            let confirm = move || {
                if let Some(session) = weak.upgrade() {
                    session.supervise(run_identity_check(Weak::clone(&weak)));
                }
            };
            let identity = Arc::new(Identity::new(id, &store, confirm));
            ZooKeeperSession {
                id,
                pipeline: Arc::new(Pipeline::new(client, &store, background, identity, whom)),
                rights: Arc::new(options.own_rights()),
                abilities: Arc::new(Abilities::of_session(id, keeper)),
                store,
                follower,
                background: Arc::clone(background),
                servers,
                server: Mutex::default(),
                room: Arc::new(Semaphore::new(WATCHED_BYTES_MAX)),
                is_fresh: AtomicBool::new(true),
                root_bytes,
                this: Weak::clone(this),
            }
        });
        session.begin(states, ended, follows);
        Ok(session)
    }

    /// Starts the tasks that run until the session is over.
    fn begin(self: &Arc<Self>, states: zk::StateWatcher, ended: ClientEnded, follows: watch::Sender<()>) {
        let follow = follow_state((states, ended), Arc::downgrade(self), Arc::clone(&self.store));
        self.background.run(self.supervised(follow).map(move |()| drop(follows)));
        let shared: Arc<dyn Session> = self.clone();
        self.supervise(keep_alive(Arc::downgrade(&shared), WATCH_OWN_AFTER));
        self.on_connection();
    }

    /// Spawns a task that the session needs. If the task panics or its thread ends, the session ends.
    fn supervise(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.background.handle().spawn(self.supervised(task));
    }

    /// Returns a future that runs the task, and that ends the session if the task panics or its thread ends.
    fn supervised<F: Future<Output = ()>>(&self, task: F) -> impl Future<Output = ()> + use<F> {
        let this = Weak::clone(&self.this);
        retry::on_early_end(task, move || {
            if let Some(session) = this.upgrade() {
                session.fail();
            }
        })
    }

    /// Ends the session because one of its tasks, or the client crate's task, has ended unexpectedly.
    fn fail(&self) {
        if self.store.lease().over().is_none() {
            let session = format!("{:x}", self.id);
            emit!(ERROR, session, "a task of a session has panicked, which ends the session");
            self.ended(Ending::Failed);
        }
    }

    /// Sets `TCP_NODELAY` on a new connection, and finds the address of the server at its other end.
    fn on_connection(&self) {
        let (servers, connection, this) = (self.servers.clone(), self.store.connection(), Weak::clone(&self.this));
        self.background.handle().spawn(async move {
            let found = sockets::set_on_connections_to(&servers).await;
            // The address is stored only if the same connection was up during the whole search.
            if let Some(session) = this.upgrade().filter(|it| it.is_up() && it.store.connection() == connection) {
                *session.server.lock() = found;
            }
        });
    }

    /// Reserves room for this many bytes of watched paths. Returns `None` if too little room is free.
    pub(super) fn reserve_slot(self: &Arc<Self>, watched_bytes: usize) -> Option<SessionSlot> {
        // The server counts each path with the root in front. A slot watches at most three paths: a waiter watches its
        // own node and its predecessor's; if its process may keep the node between uses, it also watches the directory.
        // The head of a semaphore's queue watches its own node, and the nodes of the number of permits and of the permits.
        let bytes = if watched_bytes == 0 { 0 } else { watched_bytes + 3 * self.root_bytes };
        let room = Arc::clone(&self.room).try_acquire_many_owned(u32::try_from(bytes).ok()?);
        let session: Arc<dyn Session> = self.clone();
        Some(SessionSlot::with_reservation(session, room.ok()?))
    }

    /// Sends a read that needs the right `READ` on `path`, before this function returns.
    fn read<T, F>(&self, path: &str, read: impl FnOnce(Arc<zk::Client>, String) -> F) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, zk::Error>> + Send + 'static,
    {
        let (path, failure) = (path.to_owned(), self.pipeline.failure("READ", path));
        self.pipeline.send(Request::Read, |client| read(client, path).map_err(failure))
    }

    /// Lists the session's own ephemeral nodes. If `path` is among them, the server has confirmed the session's
    /// identity on this connection. If `path` is not among them although this session owns the node, the server has
    /// replaced the session, and this ends the session. Returns `true` in these two cases, and `false` otherwise.
    async fn confirm_by_listing(&self, path: &str) -> Result<bool, Failure> {
        let (node, connection, abilities) = (path.to_owned(), self.store.connection(), Arc::clone(&self.abilities));
        let failure = self.pipeline.failure("READ", path);
        let owned = self.pipeline.send(Request::Read, move |client| async move {
            abilities.ephemerals.test(connection, &client).await?;
            abilities.ephemerals.known(connection, client.list_ephemerals(&node).await, failure)
        });
        if owned.await?.iter().any(|owned| owned == path) {
            self.pipeline.identity.mark_confirmed_on(connection);
            return Ok(true);
        }
        if matches!(self.data(path).await, Ok((_, stat)) if stat.ephemeral_owner == self.id) {
            self.ended(Ending::Replaced);
            return Ok(true);
        }
        Ok(false)
    }

    /// Creates a temporary node next to `path`, and deletes it. The owner of the new node shows which session the
    /// server continues on this connection. Returns `false` if the node existed already.
    async fn confirm_by_create(self: &Arc<Self>, path: &str) -> Result<bool, Failure> {
        let own = format!("{}/session-{:x}", contract::temporary_parent(path), self.id);
        let made = self.create(&own, &[], Kind::Ephemeral).await;
        // If the reply was lost, the node may exist, and the next check may be made in another directory or not at all.
        if matches!(made, Ok(_) | Err(Failure::NodeExists | Failure::Unknown(_))) {
            let shared: Arc<dyn Session> = self.clone();
            match retry::repeated(&shared, Tries::ENDLESS, || self.delete(&own)).await {
                Ok(()) | Err(Failure::NoNode) => {}
                Err(failure) => return Err(failure),
            }
        }
        match made {
            // An earlier connection may have made the node, so its owner shows nothing about this connection.
            Err(Failure::NodeExists) => Ok(false),
            made => made.map(|_| true),
        }
    }

    /// Returns whether the session has a user: a slot with reserved room, or the acquisition for which the session was
    /// opened.
    pub(super) fn is_needed(&self) -> bool {
        self.room.available_permits() < WATCHED_BYTES_MAX || self.is_fresh.load(Ordering::Acquire)
    }

    pub(super) fn is_up(&self) -> bool {
        self.lease().is_connected()
    }

    /// Returns when the connection was lost. `None` while the session is connected.
    ///
    /// A lost connection may go unreported: the client crate does not report a connection that breaks between the
    /// handshake and the first reply, and nothing is reported while the library's thread is blocked. In these two
    /// cases, the connection is taken as lost if no reply has come for a session timeout.
    pub(super) fn lost(&self) -> Option<Instant> {
        self.lease().lost().or_else(|| {
            let (lease, limit) = (self.lease(), self.timeout());
            let silent_for = lease.silent_for();
            let is_lost = silent_for > limit && (!lease.is_answered() || self.background.busy_for() > limit);
            is_lost.then(|| Instant::now().checked_sub(silent_for)).flatten()
        })
    }

    pub(super) fn mark_used(&self) {
        self.is_fresh.store(false, Ordering::Release);
    }

    /// Returns a channel whose sender is dropped when the client crate has reported the end of the session.
    pub(super) fn follower(&self) -> watch::Receiver<()> {
        self.follower.clone()
    }

    /// Records that the session is over, and drops the client, which requests the end of the session from the server.
    pub(super) fn ended(&self, why: Ending) {
        // The store's session ends first, so that the guards are lost before the server gives their locks to other
        // contenders.
        self.end(why);
        self.pipeline.close();
    }

    fn end(&self, why: Ending) {
        self.store.end(why);
        // Only ClickHouse Keeper replaces a session on a reconnect, so its missing features are marked.
        if why == Ending::Replaced {
            self.abilities.mark_as_clickhouse_keeper();
        }
    }

    /// Ends the session because the server has replaced it by another one.
    fn end_as_replaced(&self) -> Failure {
        self.end(Ending::Replaced);
        // The pipeline is closed in a task, because this function may run in the first poll of a request, which holds
        // the pipeline's mutex.
        let pipeline = Arc::clone(&self.pipeline);
        self.background.run(async move { pipeline.close() });
        Failure::Over(Ending::Replaced)
    }
}

#[async_trait]
impl Session for ZooKeeperSession {
    fn id(&self) -> i64 {
        self.id
    }

    fn is_own(&self, session: i64) -> bool {
        self.background.sessions().contains(&session)
    }

    fn server(&self) -> Option<String> {
        // Before the first reply, the connection may already be broken: see `ZooKeeperSession::lost`.
        let found = self.server.lock().filter(|_| self.is_up() && self.lease().is_answered());
        Some(found.map_or_else(|| format!("one of {}", self.servers.list()), |server| server.to_string()))
    }

    fn store(&self) -> &Arc<SessionStore> {
        &self.store
    }

    async fn connected(&self) -> Result<(), Ending> {
        if is_forked() {
            return Err(Ending::Forked);
        }
        self.store.until_connected().await
    }

    async fn over(&self) -> Ending {
        if is_forked() {
            return Ending::Forked;
        }
        self.store.until_over().await
    }

    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created> {
        let kind = match kind {
            Kind::Container if !self.abilities.has_containers() => Kind::Persistent,
            kind => kind,
        };
        let (path, data, rights, this) =
            (path.to_owned(), data.to_vec(), Arc::clone(&self.rights), Weak::clone(&self.this));
        let (identity, connection) = (Arc::clone(&self.pipeline.identity), self.store.connection());
        let (abilities, failure) = (Arc::clone(&self.abilities), self.pipeline.failure("CREATE", parent(&path)));
        self.pipeline.send(Request::Write, move |client| async move {
            let options = mode(kind).with_acls(zk::Acls::new(&rights.acl.entries));
            let shown = rights.is_refusing(kind).then(|| client.get_acl(parent(&path)));
            if kind == Kind::Container {
                abilities.containers.test(connection, &client).await?;
            }
            let created = client.create(&path, &data, &options).await;
            let (stat, sequence) = match kind {
                Kind::Container => abilities.containers.known(connection, created, failure)?,
                _ => created.map_err(failure)?,
            };
            let path = if kind == Kind::EphemeralSequential { format!("{path}{sequence}") } else { path };
            if let Some(shown) = shown {
                rights.refuse_wider(&client, shown, &path).await?;
            }
            match this.upgrade().filter(|_| !identity.confirm_by_create(stat.ephemeral_owner, connection)) {
                Some(session) => Err(session.end_as_replaced()),
                None => Ok(translate::created(path, &stat)),
            }
        })
    }

    fn delete(&self, path: &str) -> Reply<()> {
        let (path, failure) = (path.to_owned(), self.pipeline.failure("DELETE", parent(path)));
        self.pipeline
            .send(Request::Removal, move |client| async move { client.delete(&path, None).await.map_err(failure) })
    }

    fn make_root(&self) -> Reply<()> {
        if self.root_bytes == 0 {
            return Box::pin(ready(Ok(())));
        }
        let (rights, whom) = (Arc::clone(&self.rights), Arc::clone(&self.pipeline.whom));
        // Sent as a read, because if the root exists, no quorum has answered.
        self.pipeline.send(Request::Read, move |client| async move {
            let root = client.path().to_owned();
            let failure = |error, needs| translate::failure(error, needs, &whom);
            if client.check_stat("/").await.map_err(|error| failure(error, ("READ", &root)))?.is_some() {
                return Ok(());
            }
            let whole = client.as_ref().clone().chroot("/").map_err(|_| Failure::Refused(format!("path {root:?}")))?;
            let options = zk::CreateMode::Persistent.with_acls(zk::Acls::new(&rights.acl.entries));
            let Err(error) = whole.mkdir(&root, &options).await else { return Ok(()) };
            let mut above = parent(&root);
            while above != "/" && matches!(whole.check_stat(above).await, Ok(None)) {
                above = parent(above);
            }
            // Other errors name paths below the root, so this one says that the path is outside.
            let above = format!("{above} (the connect string's {root} is missing)");
            Err(failure(error, ("CREATE", &above)))
        })
    }

    fn children(&self, path: &str) -> Reply<Vec<String>> {
        self.read(path, |client, path| async move { client.list_children(&path).await })
    }

    fn children_and_stat(&self, path: &str) -> Reply<(Vec<String>, Option<Stat>)> {
        let store = Arc::clone(&self.store);
        self.read(path, |client, path| async move {
            let (names, stat) = client.get_children(&path).await?;
            store.record_zxid(stat.mzxid);
            Ok((names, Some(translate::stat(&stat))))
        })
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        let store = Arc::clone(&self.store);
        self.read(path, |client, path| async move {
            let (data, stat) = client.get_data(&path).await?;
            store.record_zxid(stat.mzxid);
            Ok((data, translate::stat(&stat)))
        })
    }

    fn data_of_each(&self, paths: &[String]) -> Reply<Contents> {
        if paths.len() < 2 || !self.abilities.has_several_reads() {
            return request::each_that_is_there(paths.iter().map(|path| self.data(path)).collect());
        }
        let (failure, abilities) = (self.pipeline.failure("READ", &paths[0]), Arc::clone(&self.abilities));
        let (paths, connection) = (paths.to_vec(), self.store.connection());
        self.pipeline.send(Request::Read, move |client| async move {
            abilities.several_reads.test(connection, &client).await?;
            abilities.several_reads.known(connection, translate::data_of_each(&client, &paths).await, failure)
        })
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        self.read(path, |client, path| async move {
            let (_, _, watcher) = client.get_and_watch_data(&path).await?;
            Ok(shielded(event(watcher.changed())).boxed())
        })
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)> {
        self.read(path, |client, path| async move {
            let (names, watcher) = client.list_and_watch_children(&path).await?;
            Ok((names, shielded(event(watcher.changed())).boxed()))
        })
    }

    fn wider_rights(&self, path: &str) -> Reply<Vec<String>> {
        let rights = Arc::clone(&self.rights);
        self.read(path, |client, path| async move { Ok(rights.wider(&client.get_acl(&path).await?.0)) })
    }

    fn refuses_wider_rights(&self) -> bool {
        self.rights.refuses
    }

    fn is_kept_by_reads(&self) -> bool {
        self.abilities.is_kept_by_reads()
    }

    fn request_bytes(&self, operations: &[Operation]) -> usize {
        request::bytes(operations, self.root_bytes, self.rights.acl.bytes())
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        let request = if is_removal(operations) { Request::Removal } else { Request::Write };
        let (operations, rights, whom) =
            (operations.to_vec(), Arc::clone(&self.rights), Arc::clone(&self.pipeline.whom));
        let store = Arc::clone(&self.store);
        self.pipeline.send(request, move |client| async move {
            let (outcomes, newest) = commit(&client, &operations, &rights.acl, &whom).await?;
            store.record_zxid(newest);
            Ok(outcomes)
        })
    }

    fn spawn(&self, task: Task) {
        self.background.run(self.supervised(task));
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.background.sleep(duration)
    }
}

impl Drop for ZooKeeperSession {
    fn drop(&mut self) {
        self.background.sessions().remove(&self.id);
    }
}

impl fmt::Debug for ZooKeeperSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperSession")
            .field("id", &self.id)
            .field("lease", self.store.lease())
            .finish_non_exhaustive()
    }
}

/// Returns the session timeout of a new session, and warns if it is shorter than requested.
fn granted_timeout(client: &zk::Client, options: &ZooKeeperBuilder) -> Result<Duration, Failure> {
    let requested = options.session_timeout;
    // If this server grants more than requested, another server may grant less on a reconnect. So the session uses no
    // more than the requested timeout.
    let timeout = client.session_timeout().min(requested);
    if timeout < requested {
        // On a reconnect the client crate requests this timeout again. If the new server grants less, the session
        // timeout becomes shorter, and the crate does not report that.
        emit!(
            WARN,
            ?timeout,
            ?requested,
            "the server grants a shorter session timeout than requested: no server may grant an even shorter one"
        );
    }
    let checked = options.check_lease(timeout);
    checked.map_err(|problem| Failure::Refused(format!("{problem}, which the servers grant")))?;
    Ok(timeout)
}

/// Reports each state of the client crate to the lease and to all waiters, until the session is over.
async fn follow_state(
    (mut states, mut ended): (zk::StateWatcher, ClientEnded),
    session: Weak<ZooKeeperSession>,
    store: Arc<SessionStore>,
) {
    let mut state = states.peek_state();
    loop {
        let is_up = match state {
            zk::SessionState::SyncConnected => true,
            // A read-only server reaches no quorum, so a connection to it is treated as none.
            zk::SessionState::Disconnected | zk::SessionState::ConnectedReadOnly => false,
            zk::SessionState::AuthFailed => return store.end(Ending::AuthFailed),
            zk::SessionState::Expired => return store.end(Ending::Expired),
            zk::SessionState::Closed => return store.end(Ending::Closed),
        };
        if let Some(session) = session.upgrade().filter(|session| session.is_up() != is_up) {
            *session.server.lock() = None;
            // Replies arrive on this thread, too. The replies of a new connection arrive after the state of that
            // connection. So the lease learns about the loss of the old connection before any reply of the new one.
            store.connected(is_up);
            if is_up {
                session.on_connection();
                session.pipeline.identity.start_check();
            }
        }
        state = tokio::select! {
            biased;
            state = states.changed() => state,
            // If the crate's task ends without a report that the session is over, the task has panicked.
            _ = &mut ended => {
                return session.upgrade().map_or_else(|| store.end(Ending::Failed), |session| session.fail());
            }
        };
    }
}

/// Confirms after a reconnect that the server continues the session that owns our nodes.
async fn run_identity_check(session: Weak<ZooKeeperSession>) {
    check_identity(&session).await;
    if let Some(session) = session.upgrade() {
        session.pipeline.identity.check_ended();
    }
}

async fn check_identity(session: &Weak<ZooKeeperSession>) {
    loop {
        let Some(session) = session.upgrade().filter(|session| session.store.lease().over().is_none()) else { return };
        // The session has no node, so no hold can be lost. The next reply that could renew the lease starts the check
        // again.
        let Some((_, path)) = session.store.to_check().into_iter().next() else { return };
        let lists = session.abilities.has_ephemerals();
        let shown = match lists {
            true => session.confirm_by_listing(&path).await,
            false => session.confirm_by_create(&path).await,
        };
        match shown {
            // A transaction that checks `path` is sent next. A quorum commits it, which proves that the server's leader
            // still leads.
            Ok(true) if session.pipeline.identity.is_known() => {
                let check = Operation::Check { path, version: None };
                return drop(session.transact(&[check]).await);
            }
            // The connection was lost meanwhile, so the check is repeated; or the server has replaced the session,
            // which ends the loop.
            Ok(true) => {}
            // The servers cannot list ephemeral nodes. The loop retries with a node that is created for the check. The
            // result of the wait is ignored, because the loop ends when the session is over.
            Err(Failure::Unknown(_)) if lists && !session.abilities.has_ephemerals() => {
                let _over = session.connected().await;
            }
            // The node is gone, which its watch will report. The loop retries with another node.
            Ok(false) | Err(Failure::NoNode) => session.sleep(session.timeout() / 20).await,
            Err(Failure::Unknown(_)) if session.connected().await.is_ok() => {
                session.sleep(session.timeout() / 20).await
            }
            // The next reply that could renew the lease starts the check again.
            Err(_) => return,
        }
    }
}
