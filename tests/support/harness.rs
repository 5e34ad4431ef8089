//! The two backends behind one trait, so that one check runs against both. The suites in `tests/conformance/` use it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use zk_rwlock::coordinator::{Coordinator, Failure, Kind};
use zk_rwlock::{Dialect, Memory, RwLockBuilder, ZooKeeper};

use super::keeper::clickhouse_keeper;
use super::scene::{SOON, eventually};
use super::server::{Server, TICK, shared_server};
use super::wire::Proxy;

/// The session timeout on ZooKeeper. A check that needs an expiry waits this long. The timeout is ten ticks, because at
/// least five ticks pass before a heartbeat extends the lease, and the rest leaves room for the pauses of a busy
/// machine.
const SHORT: Duration = Duration::from_secs(2);

#[allow(async_fn_in_trait, reason = "no check needs to know that its futures are `Send`")]
pub trait Harness {
    type C: Coordinator + Clone + Send + Sync + 'static;
    async fn start() -> Self;
    async fn client(&self) -> Self::C;
    /// Returns a new absolute path that does not exist yet.
    fn directory(&self) -> String;
    async fn expire(&self, client: &Self::C);
    async fn cut(&self, client: &Self::C);
    async fn heal(&self, client: &Self::C);
    /// Leaves the client only one server. On ZooKeeper each client has only one from the start.
    fn keep_server(&self, _client: &Self::C) {}
    /// Returns the dialect in which the locks name their nodes.
    fn dialect(&self) -> Dialect {
        Dialect::Native
    }
    /// Returns whether the locks keep their nodes between uses.
    fn keeps(&self) -> bool {
        false
    }
    /// Adds this backend's settings to the builder of a lock.
    fn lock(&self, builder: RwLockBuilder) -> RwLockBuilder {
        builder.dialect(self.dialect())
    }
}

/// A backend whose locks keep their nodes between uses, for longer than any check takes.
pub struct Keeping<H>(pub H);

impl<H: Harness + Sync> Harness for Keeping<H> {
    type C = H::C;

    async fn start() -> Self {
        Keeping(H::start().await)
    }

    async fn client(&self) -> H::C {
        self.0.client().await
    }

    fn directory(&self) -> String {
        self.0.directory()
    }

    async fn expire(&self, client: &H::C) {
        self.0.expire(client).await;
    }

    async fn cut(&self, client: &H::C) {
        self.0.cut(client).await;
    }

    async fn heal(&self, client: &H::C) {
        self.0.heal(client).await;
    }

    fn keeps(&self) -> bool {
        true
    }

    fn lock(&self, builder: RwLockBuilder) -> RwLockBuilder {
        builder.keep(Duration::from_secs(600))
    }
}

/// A backend whose locks name their nodes in this dialect.
pub struct Speaking<H>(pub Dialect, pub H);

impl<H: Harness + Sync> Harness for Speaking<H> {
    type C = H::C;

    async fn start() -> Self {
        unreachable!("the check makes it, with a dialect")
    }

    async fn client(&self) -> H::C {
        self.1.client().await
    }

    fn directory(&self) -> String {
        self.1.directory()
    }

    async fn expire(&self, client: &H::C) {
        self.1.expire(client).await;
    }

    async fn cut(&self, client: &H::C) {
        self.1.cut(client).await;
    }

    async fn heal(&self, client: &H::C) {
        self.1.heal(client).await;
    }

    fn dialect(&self) -> Dialect {
        self.0
    }
}

fn fresh() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("/conformance/{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub struct OnMemory(Memory);

impl Harness for OnMemory {
    type C = Memory;

    async fn start() -> Self {
        OnMemory(Memory::new())
    }

    async fn client(&self) -> Memory {
        self.0.connect()
    }

    fn directory(&self) -> String {
        fresh()
    }

    async fn expire(&self, client: &Memory) {
        client.faults().expire();
    }

    async fn cut(&self, client: &Memory) {
        client.faults().cut();
    }

    async fn heal(&self, client: &Memory) {
        client.faults().heal();
    }

    fn keep_server(&self, client: &Memory) {
        client.faults().keep_server();
    }
}

pub struct OnZooKeeper {
    server: &'static Server,
    operator: ZooKeeper,
    wires: Mutex<Vec<(Arc<ZooKeeper>, Arc<Proxy>)>>,
}

impl OnZooKeeper {
    fn wire(&self, client: &Arc<ZooKeeper>) -> Arc<Proxy> {
        let wires = self.wires.lock().expect("no check panics here");
        let wire = wires.iter().find(|(zk, _)| Arc::ptr_eq(zk, client)).map(|(_, wire)| Arc::clone(wire));
        wire.expect("this harness's client")
    }
}

impl Harness for OnZooKeeper {
    type C = Arc<ZooKeeper>;

    async fn start() -> Self {
        let server = shared_server();
        let operator = super::scene::connect(&server.address()).await;
        OnZooKeeper { server, operator, wires: Mutex::default() }
    }

    async fn client(&self) -> Arc<ZooKeeper> {
        // `make versions` runs the same checks against a proxy that behaves like ClickHouse Keeper.
        let is_keeper = std::env::var_os("ZK_RWLOCK_KEEPER").is_some();
        let start = if is_keeper { clickhouse_keeper } else { Proxy::start };
        let wire = Arc::new(start(self.server.address()));
        // On ClickHouse Keeper a session ends with its connection, and a client closes its connection after two thirds
        // of the session timeout without a reply. So the timeout is longer there.
        let timeout = if is_keeper { 3 * SHORT } else { SHORT };
        let builder = ZooKeeper::builder().session_timeout(timeout).tick_time(TICK).connect_timeout(SOON);
        let zk = Arc::new(builder.connect(&wire.address()).await.expect("the server can be reached"));
        self.wires.lock().expect("no check panics here").push((Arc::clone(&zk), wire));
        zk
    }

    fn directory(&self) -> String {
        fresh()
    }

    async fn expire(&self, client: &Arc<ZooKeeper>) {
        let (session, wire) = (super::scene::session(client).await, self.wire(client));
        let mark = fresh().replacen("/conformance/", "/mark-", 1);
        session.create(&mark, &[], Kind::Ephemeral).await.expect("created");
        wire.cut();
        let operator = super::scene::session(&self.operator).await;
        let (operator, mark) = (&operator, &mark);
        eventually("the session expires", || async { operator.data(mark).await == Err(Failure::NoNode) }).await;
        wire.heal();
    }

    async fn cut(&self, client: &Arc<ZooKeeper>) {
        self.wire(client).cut();
    }

    async fn heal(&self, client: &Arc<ZooKeeper>) {
        self.wire(client).heal();
    }
}
