//! What notices the end of the task that the client crate spawns.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use spawns_core::{Spawn, Task};
use tokio::sync::oneshot;

use crate::session::thread::Tasks;
use crate::sync::Mutex;
use crate::zookeeper::turns::Turns;

/// Fires when the client crate's task has ended, however it did.
pub(super) type ClientEnded = oneshot::Receiver<()>;

/// What a client is made by, and the end of the task that the client crate spawns for it. The crate's watcher of the state is
/// silent when that task panics. Both come to the servers by these turns.
pub(super) async fn noticed<T>(tasks: &Tasks, turns: Turns, connecting: impl Future<Output = T>) -> (T, ClientEnded) {
    let (tell, ended) = oneshot::channel();
    let turns = Arc::new(Mutex::new(turns));
    let spawner = Spawner { tasks: tasks.clone(), tell: Mutex::new(Some(tell)), turns: Arc::clone(&turns) };
    let mut connecting = pin!(connecting);
    let connected = poll_fn(|context| {
        let _scope = spawns_core::enter(&spawner);
        turns.lock().polled(|| connecting.as_mut().poll(context))
    });
    (connected.await, ended)
}

struct Spawner {
    tasks: Tasks,
    tell: Mutex<Option<oneshot::Sender<()>>>,
    turns: Arc<Mutex<Turns>>,
}

impl Spawn for Spawner {
    fn spawn(&self, task: Task) {
        let (tell, turns) = (self.tell.lock().take(), Arc::clone(&self.turns));
        self.tasks.spawn(async move {
            let _told_when_dropped = tell;
            let mut task = Box::into_pin(task.future);
            poll_fn(|context| turns.lock().polled(|| task.as_mut().poll(context))).await;
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
        let (task, mut ended) = noticed(background.handle(), Turns::of(Vec::new()), begin).await;
        assert!(ended.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        drop(go_on);
        assert!(ended.await.is_err());
        drop::<Option<spawns_core::JoinHandle<()>>>(task);
    }
}
