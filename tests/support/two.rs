//! A client of the embedded ensemble with two sessions. Use it to let the acquisitions of one lock use different
//! sessions.

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
    /// Returns a client that alternates between its two sessions.
    pub fn alternately(clients: &[Memory; 2]) -> TwoSessions {
        TwoSessions { clients: clients.clone(), which: |asked| asked % 2, asked: Arc::default() }
    }

    /// Returns a client that uses the first session once, and the second from then on.
    pub fn one_after_the_other(clients: &[Memory; 2]) -> TwoSessions {
        TwoSessions { clients: clients.clone(), which: |asked| asked.min(1), asked: Arc::default() }
    }
}

#[async_trait]
impl Coordinator for TwoSessions {
    async fn session_slot(&self, own_bytes: usize) -> Result<SessionSlot, Failure> {
        let which = (self.which)(self.asked.fetch_add(1, Ordering::Relaxed));
        self.clients[which].session_slot(own_bytes).await
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
