//! A client of the embedded ensemble that has two sessions, and gives out one or the other.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use zk_rwlock::Memory;
use zk_rwlock::coordinator::{Coordinator, Failure, SessionSlot};

#[derive(Clone, Debug)]
pub struct TwoSessions {
    clients: [Memory; 2],
    which: fn(usize) -> usize,
    asked: Arc<AtomicUsize>,
}

impl TwoSessions {
    /// In turn.
    pub fn alternately(clients: &[Memory; 2]) -> TwoSessions {
        TwoSessions { clients: clients.clone(), which: |asked| asked % 2, asked: Arc::default() }
    }

    /// The first one once, and then always the second.
    pub fn one_after_the_other(clients: &[Memory; 2]) -> TwoSessions {
        TwoSessions { clients: clients.clone(), which: |asked| asked.min(1), asked: Arc::default() }
    }
}

#[async_trait]
impl Coordinator for TwoSessions {
    async fn session_slot(&self, watched_bytes: usize) -> Result<SessionSlot, Failure> {
        let which = (self.which)(self.asked.fetch_add(1, Ordering::Relaxed));
        self.clients[which].session_slot(watched_bytes).await
    }

    async fn close(&self) {
        for client in &self.clients {
            client.close().await;
        }
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.clients[0].sleep(duration)
    }
}
