//! How long an acquisition may take, and the warning that it takes long; knows no queue.

use std::future::Future;
use std::time::Duration;

use crate::acquisition::report::LOOK_UP_AHEAD;
use crate::acquisition::request::Acquisition;
use crate::acquisition::waiting::Waiting;
use crate::call;
use crate::error::error::Error;
use crate::queue::member::Blockers;

impl Acquisition {
    /// Waits for the grant, and warns if that takes long, with the contenders in the way. Not if `in_the_way` gives `None`.
    pub(crate) async fn warned<G>(
        &self,
        in_the_way: impl FnOnce() -> Option<Blockers>,
        granted: impl Future<Output = Result<G, Error>>,
    ) -> Result<G, Error> {
        let Some(limit) = self.handle.warn_waiting else {
            return granted.await;
        };
        let mut granted = std::pin::pin!(granted);
        if let Some(answer) = call::unless(self.handle.coordinator.sleep(limit), &mut granted).await {
            return answer;
        }
        if let Some(blockers) = in_the_way() {
            self.warn(limit, &blockers);
        }
        granted.await
    }

    /// Waits for the grant until the timeout. The error then names the contenders in the way, by `waiting`.
    pub(crate) async fn within<G>(
        &self,
        timeout: Duration,
        waiting: &Waiting,
        granted: impl Future<Output = Result<G, Error>>,
    ) -> Result<G, Error> {
        let mut granted = std::pin::pin!(granted);
        let look_up = LOOK_UP_AHEAD.min(timeout / 5);
        let mut late = call::late(&self.handle.coordinator, timeout);
        let is_late = |blockers, cut_off| Err(Error::Timeout { waited: timeout, blockers, cut_off });
        tokio::select! {
            biased;
            answer = &mut granted => return answer,
            cut_off = &mut late => return is_late(waiting.seen_in_the_way(), cut_off),
            () = self.handle.coordinator.sleep(timeout - look_up) => {}
        }
        // While cut off, the last listing is the best answer.
        let mut blockers = waiting.seen_in_the_way();
        let mut looking = std::pin::pin!(self.in_the_way(waiting));
        let mut looked = false;
        loop {
            tokio::select! {
                biased;
                answer = &mut granted => return answer,
                found = &mut looking, if !looked => {
                    blockers = found;
                    looked = true;
                }
                cut_off = &mut late => return is_late(blockers, cut_off),
            }
        }
    }
}
