//! How reads of one process share one acquisition and its node; knows neither queue nor turns.

use std::sync::Arc;
use std::time::Duration;

use crate::acquisition::handle::Handle;
use crate::acquisition::options::Options;
use crate::acquisition::request::Acquisition;
use crate::acquisition::shared_reads::Work;
use crate::acquisition::wait::Patience;
use crate::acquisition::waiting::{Waiting, looked_since};
use crate::call::Call;
use crate::error::error::Error;
use crate::hold::guard::ReadGuard;
use crate::hold::hold::Hold;
use crate::hold::trace::Acquiring;
use crate::queue::mode::Mode;
use crate::snapshot::progress::OnWait;
use crate::telemetry::meter;

/// Takes the read lock if no writer holds it or waits for it, or joins a read that may be joined.
pub(crate) fn try_read(handle: Arc<Handle>) -> Call<ReadGuard> {
    Call::new(|timeout| async move {
        if let Some(held) = handle.reads.join() {
            meter::granted(Mode::Read, "joined");
            return Ok(ReadGuard::on(held));
        }
        let mut acquisition = Acquisition::new(&handle, Mode::Read, Options::default());
        acquisition.is_for_all = handle.reads.are_shared();
        let held = Arc::from(acquisition.attempt(timeout).await?);
        handle.reads.offer(&held);
        Ok(ReadGuard::on(held))
    })
}

impl Acquisition {
    /// Whether this read may share another read's node. A read with its own label enters by itself, so that the queue
    /// shows the label. A read with a wrong option enters by itself, so that the error is reported.
    pub(crate) fn may_join(&self) -> bool {
        self.handle.reads.are_shared() && self.options.label == self.handle.label && self.options.timeout().is_ok()
    }

    pub(crate) async fn shared_read(mut self) -> Result<ReadGuard, Error> {
        // A task that does nothing but join must let other tasks run, too.
        tokio::task::consume_budget().await;
        // Its deadline may have passed before the first poll.
        let timeout = self.reported(self.options.timeout())?;
        let held = match self.handle.reads.join() {
            Some(held) => {
                meter::granted(Mode::Read, "joined");
                held
            }
            // Boxed, to keep the future of a read that only joins small.
            None => {
                let answer = Box::pin(self.enter_shared(timeout)).await;
                self.reported(answer)?
            }
        };
        self.trace.shares(held.position());
        Ok(ReadGuard::on(held))
    }

    /// Waits for the acquisition that all reads of this moment share.
    pub(crate) async fn enter_shared(&mut self, timeout: Option<Duration>) -> Result<Arc<Hold>, Error> {
        let on_wait = self.options.on_wait.take().map(OnWait::new);
        let reads = &self.handle.reads;
        let entry = match reads.join_or_enter(|| self.for_all()) {
            Ok(held) => {
                meter::granted(Mode::Read, "joined");
                return Ok(held);
            }
            Err(entry) => entry,
        };
        let granted = async {
            let mut granted = std::pin::pin!(reads.granted(&entry));
            if let Some(mut on_wait) = on_wait {
                tokio::select! {
                    biased;
                    answer = &mut granted => return answer,
                    () = self.tell_of(&entry.waiting, &mut on_wait) => {}
                }
            }
            granted.await
        };
        let answer = match timeout {
            None => granted.await,
            Some(timeout) => self.within(timeout, &entry.waiting, granted).await,
        };
        answer.inspect(|_| self.trace.waited(Mode::Read))
    }

    /// Reports how far the shared acquisition has come, whenever that changes.
    pub(crate) async fn tell_of(&self, waiting: &Waiting, on_wait: &mut OnWait) {
        let mut waits = looked_since(waiting, 0).await;
        loop {
            on_wait.tell(&waits.session, waits.me.dialect(), waits.seen.clone()).await;
            waits = tokio::select! {
                biased;
                later = looked_since(waiting, waits.looks) => later,
                () = on_wait.keep_looking(&waits.session, &self.handle.path, &waits.me) => return,
            };
        }
    }

    /// The acquisition that several reads share. Each read has its own timeout. The error of that timeout names the
    /// contenders that the shared acquisition waits for.
    pub(crate) fn for_all(&self) -> (Work, Arc<Waiting>) {
        let waiting = Arc::new(Waiting::begin());
        let mut all = Acquisition::new(&self.handle, Mode::Read, Options::default());
        all.is_for_all = true;
        let span = all.begin();
        all.trace = all.trace.for_others(&self.trace);
        let its_own = Arc::clone(&waiting);
        let work = async move { all.warned(&its_own, all.enter(Patience::Wait, Some(&its_own), None)).await };
        (Acquiring::around(span, Box::pin(work)), waiting)
    }
}
