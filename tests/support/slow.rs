//! The embedded ensemble with replies that need one more poll. Use it to drop a future between any two requests.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use zk_rwlock::Memory;
use zk_rwlock::coordinator::{
    Coordinator, Created, Failure, Kind, Operation, Outcome, Reply, Session, SessionSlot, SessionStore, Stat, Task,
    Watch,
};

/// A client whose replies are ready only at their second poll.
#[derive(Clone, Debug)]
pub struct Slow(pub Memory);

#[derive(Debug)]
pub struct SlowSession(pub Arc<dyn Session>, pub Arc<SessionStore>);

fn late<T: Send + 'static>(reply: Reply<T>) -> Reply<T> {
    let mut came = false;
    let wait = std::future::poll_fn(move |context: &mut Context<'_>| {
        if std::mem::replace(&mut came, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    });
    Box::pin(async move {
        wait.await;
        reply.await
    })
}

#[async_trait]
impl Coordinator for Slow {
    async fn session_slot(&self, own_bytes: usize) -> Result<SessionSlot, Failure> {
        let inner = late(Box::pin({
            let zk = self.0.clone();
            async move { zk.session_slot(own_bytes).await }
        }));
        let inner = Arc::clone(inner.await?.session());
        let store = Arc::clone(inner.store());
        Ok(SessionSlot::new(Arc::new(SlowSession(inner, store))))
    }

    async fn close(&self) {
        Coordinator::close(&self.0).await;
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.sleep(duration)
    }
}

impl Session for SlowSession {
    fn id(&self) -> i64 {
        self.0.id()
    }

    fn timeout(&self) -> Duration {
        self.0.timeout()
    }

    fn store(&self) -> &Arc<SessionStore> {
        &self.1
    }

    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created> {
        late(self.0.create(path, data, kind))
    }

    fn delete(&self, path: &str) -> Reply<()> {
        late(self.0.delete(path))
    }

    fn children_and_stat(&self, path: &str) -> Reply<(Vec<String>, Option<Stat>)> {
        late(self.0.children_and_stat(path))
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        late(self.0.data(path))
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        late(self.0.watch(path))
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)> {
        late(self.0.watch_children(path))
    }

    fn sync(&self, path: &str) -> Reply<()> {
        late(self.0.sync(path))
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        late(self.0.transact(operations))
    }

    fn leave_server(&self, connection: u64, node: &str) -> Reply<bool> {
        self.0.leave_server(connection, node)
    }

    fn spawn(&self, chore: Task) {
        self.0.spawn(chore);
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.sleep(duration)
    }
}
