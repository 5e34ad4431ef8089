//! A session of an embedded ensemble, which implements the contract of [`Session`].

use std::future::{poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::memory::server::{Delivery, Ensemble, EnsembleState, SessionRequest};
use crate::memory::tree::{Tree, TreeNode, children_of, children_watch_key};
use crate::session::contract::Session;
use crate::session::lease::Lease;
use crate::session::request::{Created, Failure, Kind, Operation, Outcome, Reply, SessionEnd, Stat, Task, Watch};
use crate::session::retry;
use crate::session::store::SessionStore;
use crate::session::thread;
use crate::sync::atomic::Ordering;
use crate::telemetry::debug::debug;

/// The timeout of every session of an embedded ensemble.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct MemorySession {
    id: i64,
    ensemble: Arc<Ensemble>,
    store: Arc<SessionStore>,
}

impl MemorySession {
    pub(super) fn open(ensemble: &Arc<Ensemble>) -> Arc<MemorySession> {
        let opened = Instant::now();
        // This clock never says zero, because a lease that ends at zero counts as not valid.
        let clock = move || opened.elapsed() + Duration::from_nanos(1);
        let store = Arc::new(SessionStore::new(Lease::with_clock(SESSION_TIMEOUT, Box::new(clock))));
        store.set_endless(true);
        let id = ensemble.change_and_deliver(|world, _| world.open_session(&store));
        Arc::new(MemorySession { id, ensemble: Arc::clone(ensemble), store })
    }

    /// Executes a request immediately. If the connection is cut, executes the request when the connection is restored.
    /// Returns the reply.
    fn send_request<T: Send + 'static>(
        &self,
        is_write: bool,
        act: impl FnOnce(&mut EnsembleState, &mut Vec<Delivery>) -> Result<T, Failure> + Send + 'static,
    ) -> Reply<T> {
        let ((reply, answer), id, store) = (oneshot::channel(), self.id, Arc::clone(&self.store));
        let request: SessionRequest = Box::new(move |world, fired| {
            let result = world.execute_request(id, &store, is_write, act, fired);
            let withheld = world.sessions.get_mut(&id).and_then(|state| state.withheld.as_mut());
            withheld.unwrap_or(fired).push(Box::new(move |comes| {
                let lost = || Err(Failure::Unknown("the connection broke before the answer".to_owned()));
                drop(reply.send(if comes { result } else { lost() }));
            }));
        });
        self.ensemble.requests.fetch_add(1, Ordering::Relaxed);
        self.ensemble.change_and_deliver(|world, fired| {
            match world.sessions.get_mut(&id).filter(|state| state.is_cut) {
                Some(cut_off) => cut_off.waiting.push(request),
                None => request(world, fired),
            }
        });
        Box::pin(async move { answer.await.unwrap_or_else(|_| Err(Failure::Unknown("no answer came".to_owned()))) })
    }

    fn send_read<T: Send + 'static>(
        &self,
        path: &str,
        read: impl FnOnce(&Tree, &str) -> Result<T, Failure> + Send + 'static,
    ) -> Reply<T> {
        let (id, path) = (self.id, path.to_owned());
        self.send_request(false, move |world, _| read(&world.tree_shown_to(id), &path))
    }
}

impl Session for MemorySession {
    fn id(&self) -> i64 {
        self.id
    }

    fn store(&self) -> &Arc<SessionStore> {
        &self.store
    }

    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created> {
        let id = self.id;
        let create = [Operation::Create { path: path.to_owned(), data: data.to_vec(), kind }];
        self.send_request(true, move |world, fired| {
            let outcomes = world.apply_operations(id, &create, fired).map_err(|(_, failure)| failure)?;
            let path = outcomes.into_iter().map(|(_, path)| path).next().unwrap_or_default();
            let node = world.tree.get(&path).ok_or(Failure::NoNode)?;
            Ok(Created { czxid: node.czxid, ctime: node.ctime, ephemeral_owner: node.owner, path })
        })
    }

    fn delete(&self, path: &str) -> Reply<()> {
        let id = self.id;
        let delete = [Operation::Delete { path: path.to_owned(), version: None }];
        self.send_request(true, move |world, fired| {
            world.apply_operations(id, &delete, fired).map(drop).map_err(|(_, failure)| failure)
        })
    }

    fn children_and_stat(&self, path: &str) -> Reply<(Vec<String>, Option<Stat>)> {
        self.send_read(path, children_and_stat_of)
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        self.send_read(path, |tree, path| {
            let node = tree.get(path).ok_or(Failure::NoNode)?;
            Ok((node.data.clone(), node.stat()))
        })
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        let (id, path, ensemble) = (self.id, path.to_owned(), Arc::downgrade(&self.ensemble));
        self.send_request(false, move |world, _| {
            world.tree_shown_to(id).get(&path).ok_or(Failure::NoNode)?;
            Ok(world.set_watch(id, path, ensemble))
        })
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)> {
        let (id, path, ensemble) = (self.id, path.to_owned(), Arc::downgrade(&self.ensemble));
        self.send_request(false, move |world, _| {
            let (names, _) = children_and_stat_of(&world.tree_shown_to(id), &path)?;
            Ok((names, world.set_watch(id, children_watch_key(&path), ensemble)))
        })
    }

    fn sync(&self, _path: &str) -> Reply<()> {
        let id = self.id;
        self.send_request(false, move |world, fired| {
            world.update_view(id, fired);
            Ok(())
        })
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        let (id, operations) = (self.id, operations.to_vec());
        self.send_request(true, move |world, fired| match world.apply_operations(id, &operations, fired) {
            Ok(outcomes) => Ok(outcomes.into_iter().map(|(outcome, _)| outcome).collect()),
            Err((index, failure)) => Err(Failure::Operation { index, failure: Box::new(failure) }),
        })
    }

    fn leave_server(&self, connection: u64, node: &str) -> Reply<bool> {
        let left = self.ensemble.change_and_deliver(|world, fired| world.leave_server(self.id, connection, fired));
        let answer = left.ok_or_else(|| Failure::Diverged { node: node.to_owned(), server: "embedded".to_owned() });
        Box::pin(ready(answer))
    }

    fn spawn(&self, task: Task) {
        let (id, ensemble) = (self.id, Arc::downgrade(&self.ensemble));
        // Without any one of its tasks, a session cannot go on. So a panic of a task ends the session.
        self.ensemble.executor.spawn(Box::pin(retry::with_panic_handler(task, move || {
            if let Some(ensemble) = ensemble.upgrade() {
                ensemble.change_and_deliver(|world, fired| world.end_session(id, SessionEnd::Failed, fired));
            }
        })));
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        sleep(duration)
    }
}

debug!(MemorySession as "MemorySession", |it| id: it.id, lease: it.store.lease());

impl Drop for MemorySession {
    fn drop(&mut self) {
        self.ensemble.change_and_deliver(|world, fired| world.end_session(self.id, SessionEnd::Closed, fired));
    }
}

/// Returns the names of a node's children, and the node's stat. The root `/` always exists, and may have no stat.
fn children_and_stat_of(tree: &Tree, path: &str) -> Result<(Vec<String>, Option<Stat>), Failure> {
    match tree.get(path) {
        None if path != "/" => Err(Failure::NoNode),
        node => Ok((children_of(tree, path), node.map(TreeNode::stat))),
    }
}

/// Returns a timer on the clock of the caller's tokio runtime, which a test may have paused. Without a runtime, or in a
/// runtime without timers, returns a timer on the real clock. If the runtime ends before the timer fires, the rest of
/// the time is measured on the real clock, too.
pub(super) fn sleep(duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    // In a runtime without timers, tokio's `sleep` panics. There is no other way to learn whether the runtime has
    // timers.
    if let Ok(runtime) = Handle::try_current()
        && let Ok(mut sleep) = catch_unwind(AssertUnwindSafe(|| Box::pin(tokio::time::sleep(duration))))
    {
        return Box::pin(async move {
            // When the runtime ends, its timers count as elapsed, even if it is too early. Tokio's timer panics if it
            // is polled after that.
            poll_fn(|context| match sleep.is_elapsed() {
                true => Poll::Ready(()),
                false => catch_unwind(AssertUnwindSafe(|| sleep.as_mut().poll(context))).unwrap_or(Poll::Ready(())),
            })
            .await;
            // This future may be polled outside the runtime. But the deadline of the timer is a time on the runtime's
            // clock, so the present time is read inside the runtime.
            let now = {
                let _in_the_runtime = runtime.enter();
                Instant::now()
            };
            thread::sleep(sleep.deadline().saturating_duration_since(now)).await;
        });
    }
    Box::pin(thread::sleep(duration))
}
