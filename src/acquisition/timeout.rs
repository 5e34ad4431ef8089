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
    /// What is granted, with a warning if that takes long.
    pub(crate) async fn warned<G>(
        &self,
        waiting: &Waiting,
        granted: impl Future<Output = Result<G, Error>>,
    ) -> Result<G, Error> {
        let Some(limit) = self.handle.warn_waiting else {
            return granted.await;
        };
        let mut granted = std::pin::pin!(granted);
        if let Some(answer) = call::unless(self.handle.coordinator.sleep(limit), &mut granted).await {
            return answer;
        }
        // With a place in the queue, the background warns.
        if waiting.takes_warning_on() {
            self.warn(limit, &Blockers::default());
        }
        granted.await
    }

    /// What is granted in time, or who was in the way of the one that `waiting` tells of.
    pub(crate) async fn within<G>(
        &self,
        timeout: Duration,
        waiting: &Waiting,
        granted: impl Future<Output = Result<G, Error>>,
    ) -> Result<G, Error> {
        let mut granted = std::pin::pin!(granted);
        let look_up = LOOK_UP_AHEAD.min(timeout / 5);
        let sleep = |duration| self.handle.coordinator.sleep(duration);
        tokio::select! {
            biased;
            answer = &mut granted => return answer,
            () = sleep(timeout - look_up) => {}
        }
        let mut in_time = sleep(look_up);
        // Cut off, there is nobody to ask; what was seen before is then the best to tell.
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
                () = &mut in_time => return Err(Error::Timeout { waited: timeout, blockers }),
            }
        }
    }
}
