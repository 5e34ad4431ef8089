//! How an acquisition joins a node that its process keeps, or acquires one to be kept; knows neither queue nor turns.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::acquisition::grant::GrantKind;
use crate::acquisition::handle::Handle;
use crate::acquisition::keep::{Found, Keeper, WaitingEntry, Work};
use crate::acquisition::options::Options;
use crate::acquisition::request::Acquisition;
use crate::acquisition::wait::Patience;
use crate::acquisition::waiting::{Waiting, looked_since};
use crate::call::{self, Limit};
use crate::error::error::Error;
use crate::hold::held::Held;
use crate::hold::hold::Hold;
use crate::hold::kept::{Join, Kept, KeptUse};
use crate::hold::trace::Acquiring;
use crate::queue::member::Blockers;
use crate::queue::mode::Mode;
use crate::session::loss::Loss;
use crate::snapshot::on_wait::OnWait;
use crate::snapshot::progress::Progress;
use crate::snapshot::read;
use crate::telemetry::meter;

impl Acquisition {
    /// A task that does nothing but join must let other tasks run, too. Tokio counts 128 steps of a task before it must;
    /// a use is so short that each fourth is a step.
    pub(crate) fn proceeds(&self, context: &mut Context<'_>) -> Poll<()> {
        thread_local!(static USES: Cell<u8> = const { Cell::new(0) });
        let uses = USES.get().wrapping_add(1);
        USES.set(uses);
        if !uses.is_multiple_of(4) { Poll::Ready(()) } else { pin!(tokio::task::consume_budget()).poll(context) }
    }

    /// What there is to join, and how long this acquisition may take.
    pub(crate) fn join(&self) -> Result<(Found, Option<Duration>), Error> {
        // Its deadline may have passed before the first poll.
        let timeout = self.reported(self.options.timeout())?;
        let found = self.handle.keeper.as_ref().map_or(Found::Nothing, |keeper| keeper.join(self.mode));
        Ok((found, timeout))
    }

    /// Acquires the lock by a node that this process keeps, now that there is none to join without waiting: waits for one,
    /// or acquires one.
    pub(crate) async fn acquire_patiently(&mut self, found: Found, timeout: Option<Duration>) -> Result<Held, Error> {
        let handle = Arc::clone(&self.handle);
        let Some(keeper) = &handle.keeper else { return self.acquire().await.map(Held::alone) };
        match self.enter_kept(keeper, found, timeout).await {
            Ok(Some(used)) => Ok(Held::Kept(self.begin_use(used))),
            Ok(None) => {
                let answer = self.acquire().await.map(Held::alone);
                answer.map_err(|error| in_all(error, timeout))
            }
            Err(error) => self.reported(Err(in_all(error, timeout))),
        }
    }

    /// Joins a node that this process keeps, or acquires one, without waiting for another contender, nor for another use of
    /// this process.
    async fn attempt_kept(mut self, keeper: &Keeper, timeout: Option<Duration>) -> Result<Held, Error> {
        match keeper.join(self.mode) {
            Found::Runs(used) => {
                let _span = self.begin();
                return Ok(Held::Kept(self.begin_use(used)));
            }
            Found::Waits(waits) if waits.kept().hold().is_some() => {
                return self.reported(Err(Error::WouldBlock { blockers: by_own_node(waits.kept()) }));
            }
            // Another use has begun to acquire a node. It may have to wait for it, and this one must not.
            Found::Waits(waits) => {
                drop(waits);
                return self.attempt(timeout).await.map(Held::alone);
            }
            Found::Nothing => {}
        }
        let Some(kept) = keeper.begins(self.mode) else {
            return self.attempt_beside_kept(keeper, timeout).await.map(Held::alone);
        };
        let Join::Waits(mut waits) = kept.join(self.mode) else {
            return self.attempt_beside_kept(keeper, timeout).await.map(Held::alone);
        };
        self.kept = Some(Arc::clone(&kept));
        let mut this = self.twin();
        let _span = this.begin();
        let hold: Arc<Hold> = Arc::from(self.attempt_beside_kept(keeper, timeout).await?);
        kept.granted(Arc::clone(&hold));
        let used = std::future::poll_fn(|context| waits.poll(context.waker())).await;
        keeper.adopt(&kept);
        let lost = || Error::Evicted(hold.loss().unwrap_or(Loss::Removed));
        used.map(|used| Held::Kept(this.begin_use(used))).ok_or_else(lost)
    }

    /// As [`Self::attempt`]. A node that this process keeps, and that is idle, is in the way of nobody: it is given up
    /// once nothing else is in the way.
    async fn attempt_beside_kept(self, keeper: &Keeper, timeout: Option<Duration>) -> Result<Box<Hold>, Error> {
        let own = keeper.idle_node();
        self.attempt_beside(timeout, own.as_deref(), || keeper.let_go()).await
    }

    /// Waits for a node that is kept, or is being acquired to be kept. `None` if this acquisition has to enter the queue
    /// by itself.
    async fn enter_kept(
        &mut self,
        keeper: &Keeper,
        mut found: Found,
        timeout: Option<Duration>,
    ) -> Result<Option<KeptUse>, Error> {
        let began = Instant::now();
        loop {
            if let Found::Nothing = found {
                found = keeper.join_or_begin(self.mode, |kept| self.for_all(kept));
            }
            let mut waits = match std::mem::replace(&mut found, Found::Nothing) {
                Found::Runs(used) => return Ok(Some(used)),
                Found::Nothing => break,
                Found::Waits(waits) => waits,
            };
            let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
            match self.wait_for(&mut waits, left).await {
                Ok(Some(used)) => return Ok(Some(used)),
                // It queues up behind the contender that asked, with a node of its own. Reads can share one.
                Ok(None) if self.mode == Mode::Write => break,
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(timeout) = timeout {
            let left = timeout.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
            self.options.limit = Some(Limit::Timeout(left));
        }
        Ok(None)
    }

    /// Waits until the use may run; `None` if the node is not kept any more.
    async fn wait_for(&mut self, waits: &mut WaitingEntry, left: Option<Duration>) -> Result<Option<KeptUse>, Error> {
        let (waiting, kept) = (Arc::clone(waits.waiting()), Arc::clone(waits.kept()));
        let on_wait = self.options.on_wait.clone().map(OnWait::new);
        if kept.hold().is_some() {
            return self.wait_for_local(waits, &kept, on_wait, left).await;
        }
        let granted = async {
            let mut granted = std::pin::pin!(waits.granted());
            if let Some(mut on_wait) = on_wait {
                tokio::select! {
                    biased;
                    answer = &mut granted => return answer,
                    () = self.tell_of(&waiting, &mut on_wait) => {}
                }
            }
            granted.await
        };
        let answer = match left {
            None => granted.await,
            Some(left) => self.within(left, &waiting, granted).await,
        };
        match answer {
            Err(Error::Timeout { waited, blockers, cut_off }) if blockers.ahead == 0 => {
                Err(Error::Timeout { waited, blockers: by_own_node(&kept), cut_off })
            }
            answer => answer,
        }
    }

    /// Waits for other uses of this process, under a node that is granted.
    async fn wait_for_local(
        &self,
        waits: &mut WaitingEntry,
        kept: &Kept,
        on_wait: Option<Box<OnWait>>,
        left: Option<Duration>,
    ) -> Result<Option<KeptUse>, Error> {
        if let Some(mut on_wait) = on_wait {
            let (path, uses) = (Arc::clone(&self.handle.path), kept.uses());
            on_wait.tell_at_once(Progress { path, place: uses, length: uses, blockers: by_own_node(kept) });
        }
        let granted = self.warned(|| Some(by_own_node(kept)), waits.granted());
        let Some(left) = left else { return granted.await };
        let late = || Err(Error::Timeout { waited: left, blockers: by_own_node(kept), cut_off: None });
        call::unless(self.handle.coordinator.sleep(left), granted).await.unwrap_or_else(late)
    }

    /// Reports how far the shared acquisition has come, whenever that changes.
    async fn tell_of(&self, waiting: &Waiting, on_wait: &mut OnWait) {
        let mut waits = looked_since(waiting, 0).await;
        loop {
            on_wait.tell(&waits.session, &self.handle.site, waits.me.dialect(), waits.seen.clone()).await;
            waits = tokio::select! {
                biased;
                later = looked_since(waiting, waits.looks) => later,
                () = on_wait.keep_looking(&waits.session, &self.handle.site, &waits.me) => return,
            };
        }
    }

    /// The acquisition of a node that several uses share. Each use has its own timeout. The error of that timeout names
    /// the contenders that the shared acquisition waits for.
    fn for_all(&self, kept: &Arc<Kept>) -> (Work, Arc<Waiting>) {
        let waiting = Arc::new(Waiting::begin());
        let mut all = self.twin();
        all.kept = Some(Arc::clone(kept));
        let span = all.begin();
        all.trace.for_others(&self.trace);
        let its_own = Arc::clone(&waiting);
        let work =
            async move { all.warned(|| its_own.unwarned(), all.enter(Patience::Wait, Some(&its_own), None)).await };
        (Acquiring::around(span, Box::pin(work)), waiting)
    }

    /// An acquisition of the same lock in the same mode, with the same label, and no other option.
    fn twin(&self) -> Acquisition {
        let options = Options { label: self.options.label.clone(), ..Options::default() };
        Acquisition::new(Arc::clone(&self.handle), self.mode, options)
    }

    /// A use of a kept node begins.
    pub(crate) fn begin_use(&self, mut used: KeptUse) -> KeptUse {
        meter::granted(self.aim(), GrantKind::Kept.as_str());
        self.trace.entered(used.hold().position());
        used.granted(self.holding(used.hold()));
        used
    }
}

/// Takes the lock if no contender is in the way, or joins a node that this process keeps.
pub(crate) async fn attempt(handle: Arc<Handle>, mode: Mode, timeout: Option<Duration>) -> Result<Held, Error> {
    let acquisition = Acquisition::new(Arc::clone(&handle), mode, Options::default());
    match &handle.keeper {
        Some(keeper) => acquisition.attempt_kept(keeper, timeout).await,
        None => acquisition.attempt(timeout).await.map(Held::alone),
    }
}

/// The error of a timeout tells of the whole wait, of which the last part alone has timed out.
fn in_all(error: Error, timeout: Option<Duration>) -> Error {
    match (error, timeout) {
        (Error::Timeout { blockers, cut_off, .. }, Some(waited)) => Error::Timeout { waited, blockers, cut_off },
        (error, _) => error,
    }
}

/// The node of this process whose uses are in the way.
fn by_own_node(kept: &Kept) -> Blockers {
    kept.hold().map(|hold| read::blocked_by(hold.contender(), hold.note(), hold.position().czxid)).unwrap_or_default()
}
