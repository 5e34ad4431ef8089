//! Clients that say that they reach one ensemble, as those of one process do that were opened with one text. Otherwise
//! each client of a test is as in a process of its own.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use zk_rwlock::coordinator::{Berth, Coordinator, Failure};

/// A client that says what its ensemble is called.
#[derive(Clone, Debug)]
#[allow(unreachable_pub, reason = "some test programs include this file as a module of their own")]
pub struct Named<C> {
    pub client: C,
    pub ensemble: Option<String>,
}

#[async_trait]
impl<C: Coordinator> Coordinator for Named<C> {
    async fn berth(&self, watched_bytes: usize) -> Result<Berth, Failure> {
        self.client.berth(watched_bytes).await
    }

    async fn close(&self) {
        self.client.close().await;
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.client.sleep(duration)
    }

    fn ensemble(&self) -> Option<String> {
        self.ensemble.clone()
    }
}
