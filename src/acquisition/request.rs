//! How a lock is acquired, from asking for it until it is granted or given up; knows no concrete backend.

use std::collections::hash_map::RandomState;
use std::future::{Future, IntoFuture, poll_fn};
use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use crate::acquisition::shared_reads::Work;
use crate::call::{self, Call, SESSION_TRIES};
use crate::error::error::Error;
use crate::hold::guard::{Held, ReadGuard, WriteGuard};
use crate::hold::trace::{self, Acquiring};
use crate::lock::rw_lock::{RwLock, Shared, check_label};
use crate::queue::contender::{Contender, Owner};
use crate::queue::local::Ground;
use crate::queue::member::Blockers;
use crate::queue::mode::{self, Mode};
use crate::queue::note::Note;
use crate::queue::turn::{self, Turn};
use crate::session::books::{Ahead, Found};
use crate::session::contract::Session;
use crate::session::listing::Names;
use crate::session::node::{self, Loss};
use crate::session::request::{Ending, Event, Failure, Operation, Watch};
use crate::snapshot::progress::{OnWait, Progress};
use crate::snapshot::read;
use crate::telemetry::meter;
use crate::ticket::deadlock::{Asker, Deadlock, OwnHold};
use crate::ticket::ticket::{self, Place};

/// How often a directory may vanish between its making and our entering before something must be wrong.
const DIRECTORY_TRIES: usize = 64;

/// How often a quorum may confirm our node without the lease becoming valid, before something must be wrong.
const LEASE_TRIES: u32 = 100;

/// How often one that finds the directory's numbers used up has it made anew, beside others who do the same.
const RESTARTS: u32 = 8;

/// A timed-out acquisition looks up who is in its way so long before its time is over, at most.
const LOOK_UP_AHEAD: Duration = Duration::from_millis(200);

/// A read acquisition that has not started: await it, or set options first. Made by [`RwLock::read`].
#[derive(Debug)]
#[must_use = "nothing is acquired before this is awaited"]
pub struct AcquireRead(Acquisition);

/// A write acquisition that has not started: await it, or set options first. Made by [`RwLock::write`].
#[derive(Debug)]
#[must_use = "nothing is acquired before this is awaited"]
pub struct AcquireWrite(Acquisition);

macro_rules! acquire {
    ($acquire:ident, $guard:ident, $mode:ident, $granting:ident, $acquire_name:literal) => {
        impl $acquire {
            pub(crate) fn new(shared: &Arc<Shared>) -> $acquire {
                $acquire(Acquisition::new(shared, Mode::$mode))
            }

            /// Gives up, and leaves the queue, when the lock was not granted within `timeout`.
            ///
            /// The error is told in time, also while disconnected. Zero is refused: that is what the `try_` methods
            /// are for.
            pub fn timeout(mut self, timeout: Duration) -> Self {
                self.0.timeout = Some(timeout);
                self
            }

            /// What this acquisition is for, in words for people: [`RwLock::queue`] and the errors of those who
            /// wait show it. At most 256 bytes, without control characters.
            pub fn label(mut self, label: impl Into<String>) -> Self {
                self.0.label = Some(label.into());
                self
            }

            /// Calls `tell` with its place in the queue and who is in the way, if the lock is not granted at once, and
            /// again whenever it finds that changed.
            ///
            /// It finds out when it looks at the queue anyway, at first and when the one whom it waits for has left and it
            /// has to go on waiting; and it looks on purpose after each second, or after as many milliseconds as its
            /// place times the length of the queue, if that is more. So all who wait and listen read fewer than 10,000
            /// names a second together, however many they are. To hear sooner or less often, use
            /// [`on_wait_every`](Self::on_wait_every). Costs also a read for each of those named (at most 8) whenever it
            /// tells.
            ///
            /// `tell` holds up the acquisition for as long as it runs; if it panics, the place in the queue is given up.
            ///
            /// # Examples
            ///
            /// ```
            /// # use zk_rwlock::{Error, Memory, RwLock};
            /// # tokio_test::block_on(async {
            /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
            #[doc = concat!("let guard = lock.", $acquire_name, "().on_wait(|progress| eprintln!(\"waiting at {progress}\")).await?;")]
            /// # Ok::<(), Error>(()) }).unwrap();
            /// ```
            pub fn on_wait(mut self, tell: impl FnMut(&Progress) + Send + 'static) -> Self {
                self.0.on_wait = Some(OnWait::new(tell, None));
                self
            }

            /// As [`on_wait`](Self::on_wait), and looks at the queue on purpose after each `interval`.
            ///
            /// Each look costs the server a listing, which is as long as the queue. Zero is refused.
            pub fn on_wait_every(mut self, interval: Duration, tell: impl FnMut(&Progress) + Send + 'static) -> Self {
                self.0.on_wait = Some(OnWait::new(tell, Some(interval)));
                self
            }

            /// Blocks the thread until the lock is granted. Needs no runtime.
            ///
            /// # Errors
            /// As when awaited.
            pub fn blocking(self) -> Result<$guard, Error> {
                let mut acquisition = self.0;
                acquisition.is_blocking = true;
                pollster::block_on(acquisition.$granting())
            }
        }

        impl IntoFuture for $acquire {
            type Output = Result<$guard, Error>;
            type IntoFuture = Granting<$guard>;

            fn into_future(self) -> Self::IntoFuture {
                self.0.$granting()
            }
        }
    };
}

acquire!(AcquireRead, ReadGuard, Read, read, "read");
acquire!(AcquireWrite, WriteGuard, Write, write, "write");

impl AcquireRead {
    pub(crate) fn attempt(mut self) -> Call<ReadGuard> {
        Call::new(|timeout| async move {
            let shared = Arc::clone(&self.0.shared);
            if let Some(held) = shared.reads.join() {
                meter::granted(Mode::Read, "joined");
                return Ok(ReadGuard::on(held));
            }
            self.0.is_for_all = shared.reads.are_shared();
            let held = Arc::from(self.0.attempt(timeout).await?);
            shared.reads.offer(&held);
            Ok(ReadGuard::on(held))
        })
    }
}

impl AcquireWrite {
    pub(crate) fn attempt(self) -> Call<WriteGuard> {
        Call::new(|timeout| async move { self.0.attempt(timeout).await.map(WriteGuard::new) })
    }
}

pub(crate) type Granting<G> = Pin<Box<dyn Future<Output = Result<G, Error>> + Send>>;

#[derive(Debug)]
struct Acquisition {
    shared: Arc<Shared>,
    mode: Mode,
    timeout: Option<Duration>,
    label: Option<String>,
    on_wait: Option<Box<OnWait>>,
    trace: Acquiring,
    is_blocking: bool,
    /// Whether reads of others may share its hold, so that it is nobody's own.
    is_for_all: bool,
}

/// Where an acquisition waits, for the error that its timeout gives, and for the warning that it takes long.
pub(crate) struct Waiting {
    began: Instant,
    waits: Mutex<Option<Waits>>,
    /// One warning is enough: the acquisition's own, or that of the session's background.
    is_warned_of: AtomicBool,
    /// Ends the background's part, when this is dropped.
    background: OnceLock<oneshot::Sender<()>>,
}

impl Waiting {
    fn begin() -> Waiting {
        Waiting {
            began: Instant::now(),
            waits: Mutex::default(),
            is_warned_of: AtomicBool::new(false),
            background: OnceLock::new(),
        }
    }

    fn waits(&self) -> MutexGuard<'_, Option<Waits>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the warning is left to whoever asks.
    fn takes_warning_on(&self) -> bool {
        !self.is_warned_of.swap(true, Ordering::Relaxed)
    }

    /// Who was in the way when it last looked.
    fn seen_in_the_way(&self) -> Blockers {
        self.waits().as_ref().map(|waits| waits.seen.blockers.clone()).unwrap_or_default()
    }
}

#[derive(Clone)]
pub(crate) struct Waits {
    session: Arc<dyn Session>,
    me: Contender,
    /// Where it stood when it last looked.
    seen: Progress,
    /// How often it has looked.
    looks: usize,
}

/// What to do when the contender in the way would have to be waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Wait,
    GiveUp,
}

/// What an acquisition that has its place keeps until its turn has come.
struct Wait<'a> {
    patience: Patience,
    /// Is told who is in the way.
    waiting: Option<&'a Arc<Waiting>>,
    on_wait: Option<Box<OnWait>>,
    /// What was to be seen when it came, if it has asked.
    look: Option<Result<Names, Failure>>,
    /// The last writer that vanished, and may have held.
    vanished: Option<Vanished>,
    has_waited: bool,
}

impl Wait<'_> {
    /// Whether there is nobody to be told what only a look at the queue shows.
    fn needs_no_look(&self) -> bool {
        self.patience == Patience::Wait && self.waiting.is_none() && self.on_wait.is_none()
    }
}

/// Whether nobody may have the lock by this number: several may get it, or a lower one later.
fn is_used_up(contender: &Contender) -> bool {
    !(0..mode::REFUSED_FROM).contains(&contender.sequence())
}

struct Vanished {
    writer: Contender,
    /// Its session, if that is known.
    owner: Option<i64>,
}

/// That it is our turn, and how that is known.
struct Grant {
    ground: Ground,
    /// The kind of the grant, for traces and metrics.
    kind: &'static str,
}

/// What became of the predecessor.
enum Departure {
    /// This happened to its node, which this session owned.
    Seen(Event, Option<i64>),
    /// It let us in, or its node had gone before it could be watched.
    Unseen,
}

/// What a waiter watches beside its own node.
enum Vigil {
    /// The predecessor's node.
    Predecessor(Watch),
    /// Nothing: the book of the session tells of the predecessor.
    Book,
    /// The predecessor's node had gone already.
    Gone,
}

impl Acquisition {
    fn new(shared: &Arc<Shared>, mode: Mode) -> Acquisition {
        Acquisition {
            shared: Arc::clone(shared),
            mode,
            timeout: None,
            label: shared.label.clone(),
            on_wait: None,
            trace: Acquiring::default(),
            is_blocking: false,
            is_for_all: false,
        }
    }

    async fn acquire(&mut self) -> Result<Box<Held>, Error> {
        let (timeout, on_wait) = (self.timeout, self.on_wait.take());
        let answer = match self.check(on_wait.as_deref()) {
            Err(error) => Err(error),
            Ok(()) if timeout.is_none() && self.shared.warn_waiting.is_none() => {
                self.enter(Patience::Wait, None, on_wait).await
            }
            // Boxed, as all that few of thousands of waiters need: their futures are as large as the largest step.
            Ok(()) => Box::pin(self.enter_watched(timeout, on_wait)).await,
        };
        self.told(answer)
    }

    /// Has it seen from outside if it failed.
    fn told<G>(&self, answer: Result<G, Error>) -> Result<G, Error> {
        answer.inspect_err(|error| trace::not_granted(&self.shared.path, self.mode, error))
    }

    fn begin(&mut self) -> Span {
        self.trace = Acquiring::begin(&self.shared.path, self.mode, self.label.as_deref());
        self.trace.span()
    }

    fn check(&self, on_wait: Option<&OnWait>) -> Result<(), Error> {
        check_label(self.label.as_deref())?;
        if self.timeout == Some(Duration::ZERO) {
            return Err(Error::invalid("a timeout of zero; to not wait at all, use try_read or try_write"));
        }
        if on_wait.is_some_and(|on_wait| on_wait.every == Some(Duration::ZERO)) {
            return Err(Error::invalid("an interval of zero between looks at the queue"));
        }
        Ok(())
    }

    async fn enter_watched(&self, timeout: Option<Duration>, on_wait: Option<Box<OnWait>>) -> Result<Box<Held>, Error> {
        let waiting = Arc::new(Waiting::begin());
        let granted = self.warned(&waiting, self.enter(Patience::Wait, Some(&waiting), on_wait));
        match timeout {
            None => granted.await,
            Some(timeout) => self.within(timeout, &waiting, granted).await,
        }
    }

    /// What is granted, with a warning if that takes long.
    async fn warned<G>(&self, waiting: &Waiting, granted: impl Future<Output = Result<G, Error>>) -> Result<G, Error> {
        let Some(limit) = self.shared.warn_waiting else {
            return granted.await;
        };
        let mut granted = std::pin::pin!(granted);
        if let Some(answer) = call::unless(self.shared.coordinator.sleep(limit), &mut granted).await {
            return answer;
        }
        // With a place in the queue, the background warns.
        if waiting.takes_warning_on() {
            self.warn(limit, &Blockers::default());
        }
        granted.await
    }

    fn warn(&self, limit: Duration, blockers: &Blockers) {
        let (path, label) = (&*self.shared.path, self.label.as_deref());
        tracing::warn!(path, mode = %self.mode, label, waited = ?limit, %blockers, "it takes long to acquire a lock");
    }

    /// Has the session's background warn if it takes long. An acquisition that is not polled could not do that, and is in
    /// everybody's way once its turn has come.
    fn warn_in_background(&self, held: &Held, waiting: &Arc<Waiting>) {
        let Some(limit) = self.shared.warn_waiting.filter(|_| waiting.takes_warning_on()) else {
            return;
        };
        let (end, ended) = oneshot::channel();
        let _first = waiting.background.set(end);
        let mut acquisition = Acquisition::new(&self.shared, self.mode);
        acquisition.label = self.label.clone();
        let (session, tenure, me) =
            (Arc::clone(held.place().session()), Arc::clone(held.tenure()), held.contender().clone());
        let (left, waiting) = (limit.saturating_sub(waiting.began.elapsed()), Arc::downgrade(waiting));
        let work = async move {
            let mut ended = std::pin::pin!(async { drop(ended.await) });
            if call::unless(&mut ended, session.sleep(left)).await.is_none() || tenure.is_holding() {
                return;
            }
            let Some(found) = call::unless(&mut ended, acquisition.turn_and_blockers(&session, &me)).await else {
                return;
            };
            let is_its_turn = matches!(found, Some((Turn::Granted, _)));
            // Cut off, what was seen before is the best to tell.
            let seen = || waiting.upgrade().map(|waiting| waiting.seen_in_the_way()).unwrap_or_default();
            let blockers = found.map_or_else(seen, |(_, blockers)| blockers);
            let grace = acquisition.shared.lock_delay + LOOK_UP_AHEAD;
            if is_its_turn && call::unless(&mut ended, session.sleep(grace)).await.is_some() && !tenure.is_holding() {
                let (path, node, label) = (&*acquisition.shared.path, me.name(), acquisition.label.as_deref());
                tracing::warn!(
                    path,
                    mode = %acquisition.mode,
                    label,
                    node,
                    waited = ?limit,
                    "the turn of an acquisition has come, and its future is not polled: all behind it wait"
                );
            } else {
                acquisition.warn(limit, &blockers);
            }
        };
        held.place().session().spawn(Box::pin(work.instrument(self.trace.span())));
    }

    /// Whether it is our turn, and who is in the way; `None` if that cannot be read soon.
    async fn turn_and_blockers(&self, session: &Arc<dyn Session>, me: &Contender) -> Option<(Turn, Blockers)> {
        let look = async {
            let names = session.children(&self.shared.path).await.ok()?;
            let blockers = read::blockers(session, &self.shared.path, &names, me).await;
            Some((turn::turn(me, &names), blockers))
        };
        call::unless(session.sleep(LOOK_UP_AHEAD), look).await.flatten()
    }

    /// What is granted in time, or who was in the way of the one that `waiting` tells of.
    async fn within<G>(
        &self,
        timeout: Duration,
        waiting: &Waiting,
        granted: impl Future<Output = Result<G, Error>>,
    ) -> Result<G, Error> {
        let mut granted = std::pin::pin!(granted);
        let look_up = LOOK_UP_AHEAD.min(timeout / 5);
        let sleep = |duration| self.shared.coordinator.sleep(duration);
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

    /// Acquires without waiting, and without writing when the lock is taken.
    async fn attempt(mut self, timeout: Option<Duration>) -> Result<Box<Held>, Error> {
        let span = self.begin();
        let attempt = async {
            let limit = self.look().await?;
            self.take_now(limit).await
        };
        let told = async { self.told(call::in_time(&self.shared.coordinator, timeout, attempt).await) };
        told.instrument(span).await
    }

    /// Fails if a newcomer would have to wait. Writes nothing. Returns the session timeout.
    async fn look(&self) -> Result<Duration, Error> {
        check_label(self.label.as_deref())?;
        let path = &self.shared.path;
        let seen = call::on_a_session(&self.shared.coordinator, |session| async move {
            let names = call::names(&session, path, false).await?;
            Ok((session, names))
        });
        let (session, names) = seen.await.map_err(|failure| Error::from_failure(failure, "list", path))?;
        self.shared.check_for_strangers(&names)?;
        let newcomer = (self.shared.dialect, self.mode);
        let blockers = read::blockers_of_newcomer(&session, path, &names, newcomer).await;
        if blockers.ahead > 0 {
            return Err(Error::WouldBlock { blockers });
        }
        Ok(session.timeout())
    }

    /// Takes the lock after a look, without waiting for anybody, and no longer than `limit` for the servers.
    async fn take_now(&self, limit: Duration) -> Result<Box<Held>, Error> {
        call::bounded(&self.shared.coordinator, limit, self.enter(Patience::GiveUp, None, None)).await
    }

    /// Queues up and waits, telling `waiting`, if anybody asks, who is in the way.
    async fn enter(
        &self,
        patience: Patience,
        waiting: Option<&Arc<Waiting>>,
        on_wait: Option<Box<OnWait>>,
    ) -> Result<Box<Held>, Error> {
        let (mut held, mut look) = Box::pin(self.queue_up()).await?;
        let mut tries = 0;
        while is_used_up(held.contender()) {
            tries += 1;
            if tries > RESTARTS || !Box::pin(self.restarts(held)).await? {
                return Err(Error::SequenceExhausted { path: self.shared.path.to_string() });
            }
            (held, look) = Box::pin(self.queue_up()).await?;
        }
        self.trace.entered(held.standing());
        if let Some(waiting) = waiting {
            self.warn_in_background(&held, waiting);
        }
        let mut wait = Wait { patience, waiting, on_wait, look, vanished: None, has_waited: false };
        let turn = tokio::select! {
            biased;
            turn = self.wait_for_turn(&held, &mut wait) => turn,
            // Also while an answer is missing.
            loss = held.lost() => Err(self.evicted(loss)),
        };
        let granted = match turn {
            Ok(grant) => self.grant(&held, grant).await,
            Err(error) => Err(error),
        };
        match granted {
            Ok(()) => {
                self.begin_hold(&mut held);
                Ok(held)
            }
            // Who may not do all that it takes may not be allowed to leave either, and must be told.
            Err(error @ Error::PermissionDenied { .. }) => match held.place().leave().await {
                Err(Failure::NoAuth) => Err(Error::stays(held.tenure().path())),
                Ok(()) if held.place().unmake_directory().await => Err(Error::shut_out(&self.shared.path)),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Leaves a directory whose numbers are used up: whether they may begin anew, because nobody is in it any more but
    /// those who will find the same.
    async fn restarts(&self, held: Box<Held>) -> Result<bool, Error> {
        let (place, dialect) = (held.place(), self.shared.dialect);
        match place.leave().await {
            Ok(()) | Err(Failure::NoNode) => {}
            Err(Failure::NoAuth) => return Err(Error::stays(held.tenure().path())),
            Err(failure) => return Err(self.stop(failure)),
        }
        if dialect.keeps_directories() {
            return Ok(false);
        }
        let is_passing = |name: &String| Contender::parse_as(name, dialect).is_some_and(|other| is_used_up(&other));
        match ticket::settled(place.session(), || place.list()).await {
            Ok(names) => Ok(names.iter().all(is_passing)),
            Err(Failure::NoNode) => Ok(true),
            Err(failure) => Err(self.stop(failure)),
        }
    }

    fn asker(&self) -> Asker {
        if self.is_for_all { Asker::Unknown } else { Asker::here(self.is_blocking) }
    }

    /// Whether it may be going to wait for a hold of its own: then it looks who is before it.
    fn may_deadlock(&self, held: &Held) -> bool {
        let holds = held.place().session().lease().holds();
        match self.shared.deadlock {
            Deadlock::Ignore => false,
            Deadlock::Warn | Deadlock::Refuse => holds.has_one_of(&self.shared.path, self.asker()),
            Deadlock::RefuseInProcess => holds.has_one(&self.shared.path),
        }
    }

    /// Says so, or fails, if what it is going to wait for is its own.
    fn check_for_deadlock(&self, held: &Held, queue: &[String], nearest: &Contender) -> Result<(), Error> {
        let deadlock = self.shared.deadlock;
        if deadlock == Deadlock::Ignore {
            return Ok(());
        }
        let holds = held.place().session().lease().holds();
        let Some(own) = holds.waited_for(&self.shared.path, queue, nearest.sequence(), self.asker()) else {
            return Ok(());
        };
        let OwnHold { node: holder, is_of_the_same: same_task } = own;
        match deadlock {
            Deadlock::Refuse if same_task => return Err(Error::WouldDeadlock { holder, same_task }),
            Deadlock::RefuseInProcess => return Err(Error::WouldDeadlock { holder, same_task }),
            Deadlock::Warn if same_task => {
                let (path, label) = (&*self.shared.path, self.label.as_deref());
                tracing::warn!(path, mode = %self.mode, label, holder, "a task waits for a lock that it was granted itself");
            }
            _ => {}
        }
        Ok(())
    }

    /// Has it seen from outside that the lock is held.
    fn begin_hold(&self, held: &mut Held) {
        let (standing, lease) = (held.standing(), held.place().session().lease());
        let sequence = standing.contender.sequence();
        lease.holds().begin(standing.czxid, &self.shared.path, sequence, self.asker(), &standing.tenure);
        held.granted(self.trace.granted(&self.shared.path, self.label.as_deref(), held.standing()));
        let Some(limit) = self.shared.warn_holding else {
            return;
        };
        let (session, tenure) = (Arc::clone(held.place().session()), Arc::clone(held.tenure()));
        let (path, label, token) = (Arc::clone(&self.shared.path), self.label.clone(), held.standing().czxid);
        let watch = Arc::clone(&session);
        session.spawn(Box::pin(async move {
            tokio::select! {
                biased;
                () = tenure.ended(&watch) => {}
                () = watch.sleep(limit) => {
                    let node = tenure.path();
                    tracing::warn!(path = &*path, node, label, token, held = ?limit, "a lock is held for long");
                }
            }
        }));
    }

    /// Takes a place at the end of the queue, with a look at the queue as it is then, unless none may be needed.
    async fn queue_up(&self) -> Result<(Box<Held>, Option<Result<Names, Failure>>), Error> {
        let shared = &self.shared;
        let owner = Owner::new(shared.dialect, shared.dialect.new_owner(&shared.host, random));
        let note = Note {
            host: shared.host.clone(),
            pid: std::process::id(),
            label: self.label.clone(),
            since: SystemTime::now(),
        };
        let data = note.encode();
        // Each waiter watches two nodes: its own, and the one before it.
        let watched = 2 * (shared.path.len() + owner.len() + "/READ-lock-0000000000".len());
        let mut tries = 0;
        let (place, look) = loop {
            let berth = shared.coordinator.berth(watched).await.map_err(|failure| self.stop(failure))?;
            let place = Place::new(berth, Arc::clone(&shared.path), owner.clone());
            *shared.book.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(place.book()));
            tries += 1;
            match self.take_place(&place, &data).await {
                Ok(look) => break (place, look),
                // The session ended unnoticed while it was idle: nothing of ours was in it, so a fresh one will do.
                Err(Failure::Over(_)) if tries < SESSION_TRIES => {
                    call::is_known_to_be_over(place.session()).await;
                }
                Err(Failure::NoAuth) if place.unmake_directory().await => return Err(Error::shut_out(&shared.path)),
                Err(failure) => return Err(self.stop(failure)),
            }
        };
        let held = Held::new(place, Arc::clone(shared), data).ok_or_else(|| self.stop(Failure::NoNode))?;
        Ok((held, look))
    }

    /// Puts a node into the directory, with a look at the children as they are then, unless none may be needed.
    async fn take_place(&self, place: &Place, data: &[u8]) -> Result<Option<Result<Names, Failure>>, Failure> {
        let (mut missing, mut unknown) = (0, 0_u32);
        loop {
            let entered = if place.book().expects_others() {
                place.enter_and_list(self.mode, data).await.map(Some)
            } else {
                place.enter(self.mode, data).await.map(|()| None)
            };
            match entered {
                Ok(look) => return Ok(look),
                // The directory can vanish again between its making and the next try: the server reaps it when empty.
                Err(Failure::NoNode) if missing < DIRECTORY_TRIES => {
                    missing += 1;
                    let has_to_stay = self.shared.dialect.keeps_directories();
                    match place.make_directory(has_to_stay).await {
                        // One above it may be a container, too, where Curator made it.
                        Ok(()) | Err(Failure::NoNode) => {}
                        Err(failure) => return Err(failure),
                    }
                }
                Err(Failure::NotTried) if unknown < ticket::UNKNOWN_TRIES => unknown += 1,
                Err(Failure::Unknown(_)) if unknown < ticket::UNKNOWN_TRIES => {
                    unknown += 1;
                    if place.recover().await? {
                        return Ok(None);
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Look, wait, and look again, until it is our turn.
    ///
    /// What is alive here while it waits is kept for each of the thousands who may wait; so nothing else is done here.
    async fn wait_for_turn(&self, held: &Held, wait: &mut Wait<'_>) -> Result<Grant, Error> {
        let session = held.place().session();
        let hands_off = self.shared.dialect.hands_off();
        let may_skip = hands_off && wait.needs_no_look() && !self.may_deadlock(held);
        // Whom it waits for, or has waited for last.
        let mut ahead: Option<Ahead> = None;
        loop {
            ahead = match self.known(held, wait.has_waited, ahead.as_ref()) {
                Found::Granted(ground) => {
                    return Ok(Grant { ground, kind: if wait.has_waited { "pass" } else { "next" } });
                }
                Found::Behind(ahead) if may_skip && wait.look.is_none() => Some(ahead),
                _ => Box::pin(self.look_from(held, wait)).await?,
            };
            let Some(nearest) = &mut ahead else {
                return Ok(Grant { ground: Ground::Sure, kind: if wait.has_waited { "look" } else { "at once" } });
            };
            wait.has_waited = true;
            held.place().book().waits(held.standing(), nearest);
            // How the predecessor goes is only to be seen by its node, and that is also what `on_wait` reports.
            nearest.is_local &= may_skip && self.shared.lock_delay.is_zero();
            let departure = match &mut wait.on_wait {
                None => self.departure(held, nearest).await?,
                Some(on_wait) => Box::pin(self.departure_watched(held, nearest, on_wait)).await?,
            };
            let owner = match departure {
                Departure::Seen(_, owner) => owner,
                Departure::Unseen => None,
            };
            // A writer that vanished while its predecessor was still there has only waited. It may have held if both are of
            // one session, because the earlier one lets the later one in before its own node is gone.
            wait.vanished.take_if(|it| owner.is_some() && it.owner.is_some() && it.owner != owner);
            match departure {
                // Only a writer that held says so when it goes; then nothing before us is left. Elsewhere anybody may have
                // written, for any reason.
                Departure::Seen(Event::Changed, _) if nearest.mode == Mode::Write && hands_off => {
                    if wait.vanished.is_some() {
                        self.delay(held).await?;
                    }
                    let signal = session.lease().roll().hand_off(&nearest.path);
                    return Ok(Grant { ground: Ground::HandOff(signal), kind: "hand-off" });
                }
                Departure::Seen(..) | Departure::Unseen => {}
            }
            if nearest.mode == Mode::Write {
                let name = nearest.path.rsplit('/').next().unwrap_or_default();
                let writer = Contender::parse_as(name, self.shared.dialect);
                wait.vanished = writer.map(|writer| Vanished { writer, owner });
            }
        }
    }

    /// Looks at the queue from our place in it, and tells whoever asked: the nearest one before us that excludes us, if there is one.
    async fn look_from(&self, held: &Held, wait: &mut Wait<'_>) -> Result<Option<Ahead>, Error> {
        let (place, me) = (held.place(), held.contender());
        let session = place.session();
        let names = match wait.look.take() {
            // The answer was lost: ask again.
            None | Some(Err(Failure::Unknown(_))) => ticket::settled(session, || place.list()).await,
            Some(names) => names,
        };
        let names = names.map_err(|failure| self.stop(failure))?;
        place.remove_strays(&names);
        if !wait.has_waited {
            meter::entered(self.mode, names.len().saturating_sub(1));
        }
        // A writer that became a reader is still there, and lets go as readers do.
        wait.vanished.take_if(|Vanished { writer, .. }| {
            let reader = writer.downgraded();
            names.iter().any(|name| *name == reader || name == writer.name())
        });
        let (turn, stranger) = turn::turn_among_strangers(me, &names);
        if let Some(stranger) = stranger.filter(|_| turn != Turn::Evicted) {
            return Err(self.shared.doubt(stranger));
        }
        let nearest = match turn {
            Turn::Granted => {
                if wait.vanished.is_some() {
                    self.delay(held).await?;
                }
                return Ok(None);
            }
            Turn::Evicted => return Err(Error::Evicted(held.loss().unwrap_or(Loss::Removed))),
            Turn::Behind(nearest) => nearest,
        };
        if wait.patience == Patience::GiveUp {
            let blockers = read::blockers(session, &self.shared.path, &names, me).await;
            return Err(Error::WouldBlock { blockers });
        }
        if !wait.has_waited {
            self.check_for_deadlock(held, &names, &nearest)?;
        }
        if let Some(on_wait) = &mut wait.on_wait {
            on_wait.tell(session, &self.shared.path, me.dialect(), Progress::by_name(&names, me)).await;
        }
        if let Some(waiting) = wait.waiting {
            let seen = Progress::by_name(&names, me);
            let mut waiting = waiting.waits();
            let looks = waiting.as_ref().map_or(1, |waits| waits.looks + 1);
            *waiting = Some(Waits { session: Arc::clone(session), me: me.clone(), seen, looks });
        }
        let path = place.child(nearest.name());
        Ok(Some(match place.book().find(held.standing()) {
            Found::Behind(ahead) if *ahead.path == *path => ahead,
            _ => Ahead { path: path.into(), mode: nearest.mode(), is_local: false },
        }))
    }

    /// Where we stand, as far as that is known without a look, and `watched`, whose node has told something, does not make
    /// a look necessary.
    fn known(&self, held: &Held, has_waited: bool, watched: Option<&Ahead>) -> Found {
        let place = held.place();
        // A listing shows whether there is a second node of ours, which has to go.
        if place.is_unsure() {
            return Found::Nothing;
        }
        match place.book().find(held.standing()) {
            // Where contenders of other libraries may come, which go by another rule, a waiter looks for them.
            Found::Granted(_) if has_waited && !self.shared.dialect.hands_off() => Found::Nothing,
            // The book does not know yet that it has gone.
            Found::Behind(ahead) if watched.is_some_and(|it| !it.is_local && it.path == ahead.path) => Found::Nothing,
            found => found,
        }
    }

    /// Lets pass what a writer that vanished may have sent.
    async fn delay(&self, held: &Held) -> Result<(), Error> {
        let delay = self.shared.lock_delay;
        if delay.is_zero() {
            return Ok(());
        }
        tokio::select! {
            () = held.place().session().sleep(delay) => Ok(()),
            loss = held.lost() => Err(Error::Evicted(loss)),
        }
    }

    /// Watches our own node, and that of the predecessor. Both requests are on their way before either is answered.
    ///
    /// Events come in the order of the changes. Our own watch is armed first, so if our node is removed before the
    /// predecessor lets us in, we hear of that first.
    async fn keep_vigil(&self, held: &Held, ahead: &Ahead) -> Result<Vigil, Error> {
        let (session, tenure) = (held.place().session(), held.tenure());
        let mut needs_watch = !ahead.is_local;
        let mut tries = 0;
        loop {
            let own = tenure.ask_to_watch(session);
            let watch = needs_watch.then(|| session.watch(&ahead.path));
            // Answered last, so waiting for it first wakes the task once, and not twice.
            let watch = match watch {
                Some(watch) => Some(watch.await),
                None => None,
            };
            let own = match own {
                Some(asked) => tenure.watched(asked).await,
                None => Ok(()),
            };
            let failure = match (own, watch) {
                (Err(failure @ (Failure::Unknown(_) | Failure::Over(_))), _) => failure,
                // It does not hear of its own node, and so perhaps not of the predecessor's either.
                (Err(failure), None) => {
                    node::cannot_watch(tenure, &failure);
                    needs_watch = true;
                    continue;
                }
                (Ok(()), None) => return Ok(Vigil::Book),
                (own, Some(watch)) => {
                    if let Err(failure) = own {
                        node::cannot_watch(tenure, &failure);
                    }
                    match watch {
                        Ok(watch) => return Ok(Vigil::Predecessor(watch)),
                        Err(Failure::NoNode) => return Ok(Vigil::Gone),
                        Err(failure) => failure,
                    }
                }
            };
            match failure {
                Failure::Unknown(_) if tries < ticket::UNKNOWN_TRIES => {
                    ticket::before_next_try(session, &mut tries).await.map_err(|failure| self.stop(failure))?;
                }
                failure => return Err(self.stop(failure)),
            }
        }
    }

    /// Waits until the predecessor has let us in, or something happened to its node.
    async fn departure(&self, held: &Held, ahead: &Ahead) -> Result<Departure, Error> {
        let (session, tenure) = (held.place().session(), held.tenure());
        let mut watch = match Box::pin(self.keep_vigil(held, ahead)).await? {
            Vigil::Predecessor(watch) => watch,
            Vigil::Gone => return Ok(Departure::Unseen),
            Vigil::Book => {
                tenure.called(session).await.map_err(|loss| self.evicted(loss))?;
                return Ok(Departure::Unseen);
            }
        };
        let owner = watch.owner();
        loop {
            tokio::select! {
                biased;
                called = tenure.called(session) => {
                    called.map_err(|loss| self.evicted(loss))?;
                    if matches!(self.known(held, true, None), Found::Granted(_)) {
                        // The watch's event is on the way. To take it back would cost a request.
                        session.spawn(Box::pin(async move {
                            let _gone = watch.await;
                        }));
                        return Ok(Departure::Unseen);
                    }
                }
                event = &mut watch => return Ok(Departure::Seen(event, owner)),
            }
        }
    }

    /// As [`Self::departure`], and tells meanwhile what changes.
    async fn departure_watched(&self, held: &Held, ahead: &Ahead, on_wait: &mut OnWait) -> Result<Departure, Error> {
        tokio::select! {
            biased;
            departure = self.departure(held, ahead) => departure,
            () = on_wait.keep_looking(held.place().session(), &self.shared.path, held.contender()) => {
                Ok(Departure::Unseen)
            }
        }
    }

    /// Takes the lock, now that nothing before us excludes us.
    ///
    /// What we know may be old, if we were cut off: only under a valid lease is it certain that the session, and so
    /// our node, still exists. Without one a quorum is asked first.
    async fn grant(&self, held: &Held, grant: Grant) -> Result<(), Error> {
        // A waiter that does not watch its own node, because a stranger's write has used the watch up, might have been evicted.
        let is_deaf = matches!(grant.kind, "pass" | "hand-off") && !held.tenure().is_armed();
        let granted = if is_deaf { None } else { self.granted(held, &grant) };
        match granted {
            Some(answer) => answer,
            None => Box::pin(self.grant_once_confirmed(held, &grant)).await,
        }
    }

    /// As [`Self::grant`]; `None` if a quorum has to be asked.
    fn granted(&self, held: &Held, grant: &Grant) -> Option<Result<(), Error>> {
        let (session, tenure) = (held.place().session(), held.tenure());
        if let Some(loss) = held.loss() {
            return Some(Err(Error::Evicted(loss)));
        }
        tenure.hold(tenure.stretch(session.lease())?);
        held.place().book().granted(held.standing(), &grant.ground);
        let roll = session.lease().roll();
        if let Ground::HandOff(signal) = &grant.ground {
            roll.confirm_gone(signal, tenure);
        }
        let kind = grant.kind;
        meter::granted(self.mode, kind);
        let (sequence, token) = (held.contender().sequence(), held.standing().czxid);
        tracing::debug!(path = &*self.shared.path, mode = %self.mode, sequence, token, kind, "granted");
        Some(Ok(()))
    }

    async fn grant_once_confirmed(&self, held: &Held, grant: &Grant) -> Result<(), Error> {
        let (session, tenure) = (held.place().session(), held.tenure());
        for tries in 0..LEASE_TRIES {
            if tries > 1 {
                session.sleep(session.timeout() / 20).await;
            }
            let check = [Operation::Check { path: tenure.path(), version: None }];
            match ticket::settled(session, || session.transact(&check)).await {
                Ok(_) => {}
                Err(Failure::Operation { failure, .. }) if *failure == Failure::NoNode => tenure.lose(Loss::Removed),
                Err(failure) => return Err(self.stop(failure)),
            }
            if let Some(answer) = self.granted(held, grant) {
                return answer;
            }
        }
        // Its answers take longer than the lease, or it does not say whose session this is.
        Err(Error::Unreachable("the servers answer too late to hold a lock by".to_owned()))
    }

    /// Who is in the way of one that waits, as far as that can be read now.
    async fn in_the_way(&self, waiting: &Waiting) -> Blockers {
        let waits = waiting.waits().clone();
        let Some(Waits { session, me, seen, .. }) = waits else {
            return Blockers::default();
        };
        match session.children(&self.shared.path).await {
            Ok(children) => read::blockers(&session, &self.shared.path, &children, &me).await,
            Err(_) => seen.blockers,
        }
    }

    fn evicted(&self, loss: Loss) -> Error {
        match loss {
            Loss::SessionOver(ending) => self.stop(Failure::Over(ending)),
            loss => Error::Evicted(loss),
        }
    }

    fn stop(&self, failure: Failure) -> Error {
        match failure {
            // The directory went while we stood in it, and our node with it.
            Failure::NoNode => Error::Evicted(Loss::Removed),
            Failure::Over(ending @ (Ending::Expired | Ending::Replaced)) => Error::Evicted(Loss::SessionOver(ending)),
            failure => Error::from_failure(failure, "enter", &self.shared.path),
        }
    }
}

/// How a builder becomes a guard, and what reads of one process share on the way.
impl Acquisition {
    fn write(mut self) -> Granting<WriteGuard> {
        let span = self.begin();
        Acquiring::around(span, Box::pin(async move { self.acquire().await.map(WriteGuard::new) }))
    }

    fn read(mut self) -> Granting<ReadGuard> {
        let span = self.begin();
        // A label of its own must be seen in the queue, and whatever is wrong must be told.
        if self.shared.reads.are_shared()
            && self.label == self.shared.label
            && self.check(self.on_wait.as_deref()).is_ok()
        {
            Acquiring::around(span, Box::pin(self.shared_read()))
        } else {
            Acquiring::around(span, Box::pin(async move { self.acquire().await.map(ReadGuard::new) }))
        }
    }

    async fn shared_read(mut self) -> Result<ReadGuard, Error> {
        // A task that does nothing but join must let others run, too.
        tokio::task::consume_budget().await;
        let on_wait = self.on_wait.take();
        let held = match self.shared.reads.join() {
            Some(held) => {
                meter::granted(Mode::Read, "joined");
                held
            }
            // Boxed, because a future that only joins is small.
            None => Box::pin(async { self.told(self.enter_shared(on_wait).await) }).await?,
        };
        self.trace.shares(held.standing());
        Ok(ReadGuard::on(held))
    }

    /// Waits, together with all who do, for the one that enters.
    async fn enter_shared(&self, on_wait: Option<Box<OnWait>>) -> Result<Arc<Held>, Error> {
        let reads = &self.shared.reads;
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
        let answer = match self.timeout {
            None => granted.await,
            Some(timeout) => self.within(timeout, &entry.waiting, granted).await,
        };
        answer.inspect(|_| self.trace.waited(Mode::Read))
    }

    /// Tells how far the acquisition that all wait for has come, whenever that changes.
    async fn tell_of(&self, waiting: &Waiting, on_wait: &mut OnWait) {
        let mut waits = looked_since(waiting, 0).await;
        loop {
            on_wait.tell(&waits.session, &self.shared.path, waits.me.dialect(), waits.seen.clone()).await;
            waits = tokio::select! {
                biased;
                later = looked_since(waiting, waits.looks) => later,
                () = on_wait.keep_looking(&waits.session, &self.shared.path, &waits.me) => return,
            };
        }
    }

    /// The acquisition of all who wait for it. Their timeouts are their own, but know by it who is in the way.
    fn for_all(&self) -> (Work, Arc<Waiting>) {
        let waiting = Arc::new(Waiting::begin());
        let mut all = Acquisition::new(&self.shared, Mode::Read);
        all.is_for_all = true;
        let span = all.begin();
        all.trace = all.trace.for_others(&self.trace);
        let its_own = Arc::clone(&waiting);
        let work = async move { all.warned(&its_own, all.enter(Patience::Wait, Some(&its_own), None)).await };
        (Acquiring::around(span, Box::pin(work)), waiting)
    }
}

/// Where it waits, once it has looked more than so often. Whoever takes a shared acquisition on has been woken by that,
/// and so have all who wait for it.
async fn looked_since(waiting: &Waiting, looks: usize) -> Waits {
    poll_fn(|_| match &*waiting.waits() {
        Some(waits) if waits.looks > looks => Poll::Ready(waits.clone()),
        _ => Poll::Pending,
    })
    .await
}
/// What a [`MultiLock`](crate::MultiLock) does with each of its locks.
impl RwLock {
    /// Waits for the lock, as the builders do.
    pub(crate) async fn take(
        &self,
        mode: Mode,
        timeout: Option<Duration>,
        label: Option<String>,
        on_wait: Option<Box<OnWait>>,
    ) -> Result<Box<Held>, Error> {
        let mut acquisition = Acquisition::new(&self.shared, mode);
        acquisition.timeout = timeout;
        acquisition.on_wait = on_wait;
        acquisition.label = label.or(acquisition.label);
        let span = acquisition.begin();
        acquisition.acquire().instrument(span).await
    }

    /// Fails if the lock is taken. Writes nothing. Returns the session timeout.
    pub(crate) async fn look(&self, mode: Mode) -> Result<Duration, Error> {
        Acquisition::new(&self.shared, mode).look().await
    }

    /// Has it seen from outside that this is why it was not granted together with others.
    pub(crate) fn refused(&self, mode: Mode, error: Error) -> Error {
        trace::not_granted(self.path(), mode, &error);
        error
    }

    /// Takes the lock after a [look](Self::look), without waiting for anybody, and no longer than `limit` for the servers.
    pub(crate) async fn take_now(&self, mode: Mode, limit: Duration) -> Result<Box<Held>, Error> {
        let mut acquisition = Acquisition::new(&self.shared, mode);
        let span = acquisition.begin();
        let take = async { acquisition.told(acquisition.take_now(limit).await) };
        take.instrument(span).await
    }
}

/// What no other acquisition has: it tells our node from everyone else's, also after the answer to its create was lost.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
