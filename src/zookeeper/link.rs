//! One connection to one server: a client of the client crate, and the task in which the crate serves the connection.
//!
//! The crate would connect again by itself when the connection breaks. So [`OpenedConnection::serve`] polls the crate's
//! task, and drops it as soon as the crate's state shows that the connection is lost.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use spawns_core::{Spawn, Task};
use zookeeper_client as zk;

use crate::session::request::SessionEnd;
use crate::sync::Mutex;
use crate::telemetry::user_thread::catch_panic;

/// A connection with a session. The task of the connection does not run yet. Dropping this value abandons the
/// connection, and does not close the session.
pub(super) struct OpenedConnection {
    pub(super) client: Arc<zk::Client>,
    task: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Why a connection has ended, or is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ConnectionEnd {
    #[error("it broke")]
    Lost,
    /// The client crate panicked, so it is not known which requests were sent.
    #[error("it broke")]
    Panicked,
    /// The server was left, because it disagrees with its leader.
    #[error("the server disagrees with its leader")]
    Left,
    /// The server was silent for too long.
    #[error("the server did not answer")]
    Silent,
    /// The session is over. If [`OpenedConnection::serve`] reports [`SessionEnd::Closed`], the server has confirmed the
    /// close of the session.
    #[error("{0}")]
    Over(SessionEnd),
}

/// Receives the task that the client crate spawns, and does not run the task.
#[derive(Default)]
struct SpawnedTaskCapture(Mutex<Option<Task>>);

impl Spawn for SpawnedTaskCapture {
    fn spawn(&self, task: Task) {
        *self.0.lock() = Some(task);
    }
}

impl OpenedConnection {
    /// Connects to the one server of this connect string.
    pub(super) async fn open(
        connector: zk::Connector,
        server: &str,
        is_encrypted: bool,
    ) -> Result<OpenedConnection, zk::Error> {
        let captured = SpawnedTaskCapture::default();
        let mut connecting = pin!(connect(connector, server, is_encrypted));
        let client = poll_fn(|context| {
            let _scope = spawns_core::enter(&captured);
            connecting.as_mut().poll(context)
        });
        let client = Arc::new(client.await?);
        let task = captured.0.lock().take();
        let task = task.ok_or_else(|| zk::Error::UnexpectedError("the client crate has spawned no task".to_owned()))?;
        Ok(OpenedConnection { client, task: Box::into_pin(task.future) })
    }

    /// Returns a future that serves the connection until the connection ends. `after_poll` is called whenever the crate
    /// may have received something. `end` is called when the connection has ended, before the crate's task is dropped.
    /// If the future is dropped earlier, `end` is not called.
    pub(super) fn serve(
        self,
        mut after_poll: impl FnMut() + Send + 'static,
        end: impl FnOnce(ConnectionEnd) + Send + 'static,
    ) -> impl Future<Output = ()> + Send {
        let states = self.client.state_watcher();
        // The session is closed when the last clone of the client is dropped. So the returned future must not keep a
        // clone.
        let (mut task, mut end) = (self.task, Some(end));
        poll_fn(move |context| {
            // The crate panics over some replies that are too short. The connection then ends as `Panicked`.
            let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context)));
            after_poll();
            let why = match (polled, states.peek_state()) {
                (Err(_), _) => ConnectionEnd::Panicked,
                (Ok(Poll::Pending), zk::SessionState::SyncConnected) => return Poll::Pending,
                (_, zk::SessionState::AuthFailed) => ConnectionEnd::Over(SessionEnd::AuthFailed),
                (_, zk::SessionState::Expired) => ConnectionEnd::Over(SessionEnd::Expired),
                (_, zk::SessionState::Closed) => ConnectionEnd::Over(SessionEnd::Closed),
                _ => ConnectionEnd::Lost,
            };
            // `end` runs before the crate's task is dropped, and so before the requests under way fail.
            end.take().into_iter().for_each(|end| end(why));
            Poll::Ready(())
        })
    }
}

/// Drops a client or a task of the client crate. Catches a panic in the drop, which is possible after an earlier panic
/// of the crate.
pub(super) fn drop_catching_panic<T>(it: T) {
    let _panicked = catch_panic(|| drop(it));
}

async fn connect(connector: zk::Connector, server: &str, is_encrypted: bool) -> Result<zk::Client, zk::Error> {
    #[cfg(feature = "tls")]
    if is_encrypted {
        return connector.secure_connect(server).await;
    }
    debug_assert!(!is_encrypted, "only the feature `tls` can encrypt");
    connector.connect(server).await
}
