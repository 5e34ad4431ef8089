//! A stub of a session for unit tests. It answers only the requests to which the test's [`Answers`] give an answer.

use std::fmt;
use std::future::pending;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::queue::dialect::Dialect;
use crate::queue::mode::Mode;
use crate::queue::node_name::AcquisitionTag;
use crate::session::contract::Session;
use crate::session::lease::{Lease, Moment};
use crate::session::node::Node;
use crate::session::request::{Created, Kind, Operation, Outcome, Reply, Stat, Task, Watch};
use crate::session::store::SessionStore;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::telemetry::meter::PathLabel;

/// The answers that a test gives to requests. By default, no request is answered.
pub(super) trait Answers: fmt::Debug + Send + Sync + 'static {
    fn store(&self) -> &Arc<SessionStore>;

    fn children(&self, _path: &str) -> Reply<Vec<String>> {
        Box::pin(pending())
    }

    fn data(&self, _path: &str) -> Reply<(Vec<u8>, Stat)> {
        Box::pin(pending())
    }

    fn is_kept_alive_by_reads(&self) -> bool {
        true
    }

    fn watch(&self, _path: &str) -> Reply<Watch> {
        Box::pin(pending())
    }

    fn transact(&self, _operations: &[Operation]) -> Reply<Vec<Outcome>> {
        Box::pin(pending())
    }
}

impl SessionStore {
    /// Returns the store of a session that begins now on this clock.
    pub(super) fn begun_on(timeout: Duration, clock: impl Fn() -> Moment + Send + Sync + 'static) -> Arc<SessionStore> {
        let store = Arc::new(SessionStore::new(Lease::with_clock(timeout, Box::new(clock))));
        store.record_begin(store.lease().now());
        store
    }

    /// Returns the store of a session that begins now, and its clock in milliseconds.
    pub(super) fn begun(timeout: Duration) -> (Arc<SessionStore>, Arc<AtomicU64>) {
        let clock = Arc::new(AtomicU64::new(100_000));
        let hands = Arc::clone(&clock);
        (SessionStore::begun_on(timeout, move || Duration::from_millis(hands.load(Ordering::SeqCst))), clock)
    }

    /// Adds a node that waits at this path.
    pub(super) fn enter(&self, path: String) -> Arc<Node> {
        let tag = AcquisitionTag::new(Dialect::Native, "host~id".to_owned());
        let node = self.new_node(&Arc::from("/lock"), &PathLabel::new(&Arc::from("/lock"), None), &tag, Mode::Write);
        node.waits_at(path);
        self.add_node(&node);
        node
    }
}

#[derive(Debug)]
pub(super) struct Stub<A>(pub(super) A);

impl<A> Deref for Stub<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.0
    }
}

impl<A: Answers> Session for Stub<A> {
    fn id(&self) -> i64 {
        1
    }

    fn store(&self) -> &Arc<SessionStore> {
        self.0.store()
    }

    fn create(&self, _: &str, _: &[u8], _: Kind) -> Reply<Created> {
        Box::pin(pending())
    }

    fn delete(&self, _: &str) -> Reply<()> {
        Box::pin(pending())
    }

    fn children_and_stat(&self, path: &str) -> Reply<(Vec<String>, Option<Stat>)> {
        let names = self.0.children(path);
        Box::pin(async move { Ok((names.await?, None)) })
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        self.0.data(path)
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        self.0.watch(path)
    }

    fn watch_children(&self, _: &str) -> Reply<(Vec<String>, Watch)> {
        Box::pin(pending())
    }

    fn is_kept_alive_by_reads(&self) -> bool {
        self.0.is_kept_alive_by_reads()
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        self.0.transact(operations)
    }

    fn spawn(&self, task: Task) {
        drop(tokio::spawn(task));
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep(duration))
    }
}
