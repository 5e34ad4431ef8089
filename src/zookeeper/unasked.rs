//! The task that the client crate spawns: what notices its end, and what holds it up.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use spawns_core::{Spawn, Task};
use tokio::sync::oneshot;

use crate::session::thread::Tasks;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::zookeeper::turns::Turns;

/// The client crate's task.
pub(super) struct ClientTask {
    /// Fires when it has ended, however it did. The crate's watcher of the state is silent when the task panics.
    pub(super) ended: oneshot::Receiver<()>,
    pub(super) gate: Arc<Gate>,
}

/// Before the client crate, which is polled through it. While it is shut, that is held up.
pub(super) struct Gate {
    turns: Mutex<Turns>,
    is_shut: AtomicBool,
    held: AtomicWaker,
}

/// The gate is shut until this is dropped.
pub(super) struct Shut<'a>(&'a Gate);

impl Gate {
    pub(super) fn shut(&self) -> Shut<'_> {
        self.is_shut.store(true, Ordering::SeqCst);
        Shut(self)
    }

    fn polled<T>(&self, context: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        if self.is_shut.load(Ordering::SeqCst) {
            self.held.register(context.waker());
            // It may have been opened meanwhile.
            if self.is_shut.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
        }
        self.turns.lock().polled(|| poll(context))
    }
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.0.turns.lock().draws_anew();
        self.0.is_shut.store(false, Ordering::SeqCst);
        self.0.held.wake();
    }
}

/// What a client is made by, and the task that the client crate spawns for it. Both come to the servers by these turns.
pub(super) async fn noticed<T>(tasks: &Tasks, turns: Turns, connecting: impl Future<Output = T>) -> (T, ClientTask) {
    let (tell, ended) = oneshot::channel();
    let gate =
        Arc::new(Gate { turns: Mutex::new(turns), is_shut: AtomicBool::new(false), held: AtomicWaker::default() });
    let spawner = Spawner { tasks: tasks.clone(), tell: Mutex::new(Some(tell)), gate: Arc::clone(&gate) };
    let mut connecting = pin!(connecting);
    let connected = poll_fn(|context| {
        let _scope = spawns_core::enter(&spawner);
        gate.polled(context, |context| connecting.as_mut().poll(context))
    });
    (connected.await, ClientTask { ended, gate })
}

struct Spawner {
    tasks: Tasks,
    tell: Mutex<Option<oneshot::Sender<()>>>,
    gate: Arc<Gate>,
}

impl Spawn for Spawner {
    fn spawn(&self, task: Task) {
        let (tell, gate) = (self.tell.lock().take(), Arc::clone(&self.gate));
        self.tasks.spawn(async move {
            let _told_when_dropped = tell;
            let mut task = Box::into_pin(task.future);
            poll_fn(|context| gate.polled(context, |context| task.as_mut().poll(context))).await;
        });
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::session::thread::BackgroundThread;

    #[tokio::test]
    async fn the_end_of_the_clients_task_is_noticed() {
        let background = BackgroundThread::get().expect("a thread");
        let (go_on, goes_on) = oneshot::channel::<()>();
        let begin = async { Some(spawns_core::spawn(async { panic!("{:?}", goes_on.await) })) };
        let (task, ClientTask { mut ended, .. }) =
            noticed(background.handle(), Turns::of(Vec::new(), Vec::new()), begin).await;
        assert!(ended.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        drop(go_on);
        assert!(ended.await.is_err());
        drop::<Option<spawns_core::JoinHandle<()>>>(task);
    }

    #[tokio::test]
    async fn a_task_that_is_held_up_goes_on_and_ends_once_the_gate_is_open() {
        let background = BackgroundThread::get().expect("a thread");
        let polls = Arc::new(Mutex::new((0, None)));
        let seen = Arc::clone(&polls);
        let task = poll_fn(move |context| {
            let mut polls = seen.lock();
            *polls = (polls.0 + 1, Some(context.waker().clone()));
            if polls.0 < 3 { Poll::Pending } else { Poll::Ready(()) }
        });
        let begin = async { Some(spawns_core::spawn(task)) };
        let (_task, ClientTask { ended, gate }) =
            noticed(background.handle(), Turns::of(Vec::new(), Vec::new()), begin).await;
        // What was spawned before has been run.
        let run = || background.handle().begin(async {}).expect("a thread");
        let wake = || polls.lock().1.clone().expect("it was polled").wake();
        run().await;
        assert_eq!(polls.lock().0, 1);
        let shut = gate.shut();
        for _ in 0..3 {
            wake();
            run().await;
        }
        assert_eq!(polls.lock().0, 1, "it is held up");
        drop(shut);
        run().await;
        assert_eq!(polls.lock().0, 2);
        wake();
        assert!(ended.await.is_err());
    }
}
