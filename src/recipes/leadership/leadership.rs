//! Leadership, and its options.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::call::Call;
use crate::contend::tenure::while_held;
use crate::error::error::Error;
use crate::lock::rw_lock::{RwLock, RwLockBuilder};
use crate::recipes::leadership::campaign::{Candidate, Check, Term};
use crate::recipes::leadership::leader::{self, Leader, LeaderChanges};
use crate::session::contract::Coordinator;
use crate::validation;

/// How long a candidate waits at first before it campaigns again.
const PAUSE: Duration = Duration::from_secs(1);

/// One leader among many candidates: work that runs in one process at a time, and goes on in another when that process is
/// gone.
///
/// [`lead`](Self::lead) campaigns, runs your work while this candidate leads, and drops the work as soon as it does not.
/// Everybody can ask [who leads](Self::leader), and [hear](Self::changes) when that changes. A handle is cheap to clone, and
/// all clones are one candidate.
///
/// # It is a write lock
/// The directory at `path` is that of an [`RwLock`], and the holder of its write lock leads. So candidates lead in the order in
/// which they queued up, `zklock ls` shows who leads and who waits, and what is said of a [guard](crate::WriteGuard) is true
/// of a term: [`is_leader`](Self::is_leader) is false before another candidate can lead, also on a machine that is cut off
/// or was suspended. As with any lock, requests to other systems that are under way may arrive late, hence the number of
/// the [term](Term::number).
///
/// # Pauses
/// After a term that was lost, and after a campaign that failed, the candidate waits before it campaigns again: for
/// [a second](LeadershipBuilder::pause). If tries fail, or terms are no longer than the next pause would be, the pause is
/// doubled each time, up to 32 seconds. The time is drawn at random between half of that and all of it, because several
/// candidates may have lost at once. After a long term whose end was wanted, and after [`resign`](Self::resign), there is no
/// pause. It is the same for a program that calls [`lead`](Self::lead) again.
///
/// # Examples
///
/// ```
/// use zk_rwlock::leadership::Term;
/// use zk_rwlock::{Error, Leadership, Memory};
///
/// async fn schedule(term: Term) -> u32 {
///     // ... for as long as there is work to do; `term.number()` goes with each write to other systems
///     # assert!(term.is_leader());
///     42
/// }
///
/// # tokio_test::block_on(async {
/// let zk = Memory::new(); // or: ZooKeeper::connect("zk1:2181,zk2:2181,zk3:2181").await?
/// let leadership = Leadership::builder(&zk, "/leaders/scheduler").data("http://web-1:8080").build()?;
/// assert_eq!(leadership.lead(schedule).await?, Some(42));
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Leadership {
    candidate: Arc<Candidate>,
}

impl Leadership {
    /// Opens the leadership that is kept in the directory `path`. Nothing is sent. Missing directories are made when
    /// needed.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if [`RwLock::new`] would refuse the path.
    pub fn new<C: Coordinator + Clone>(coordinator: &C, path: impl AsRef<str>) -> Result<Leadership, Error> {
        Leadership::builder(coordinator, path).build()
    }

    /// As [`Leadership::new`], with options.
    pub fn builder<C: Coordinator + Clone>(coordinator: &C, path: impl AsRef<str>) -> LeadershipBuilder {
        let lock = RwLock::builder(coordinator, path).warn_after_waiting(None);
        LeadershipBuilder { lock, data: None, health: None, pause: PAUSE }
    }

    /// Campaigns, and runs `work` while this candidate leads. Returns what the work gives when it ends by itself; `None`
    /// when this candidate was [stopped](Self::stop).
    ///
    /// Each term has a work of its own: `work` is called when it begins, and makes the future. For an `async move` closure that
    /// owns state there is [`lead_mut`](Self::lead_mut). That future is dropped as
    /// soon as the term ends before it: because leadership was lost, because this candidate [resigned](Self::resign) or was
    /// stopped, or because it is [not healthy](LeadershipBuilder::health) any more. Then the campaign goes on, behind the
    /// candidates that wait by now. If leadership was lost by the time that the work ended, what it gives is dropped, and
    /// the campaign goes on, too: so an error of the work that is due to the loss does not end it. The clock is read before
    /// each poll of the work: see [`Hold::run`](crate::Hold::run), also for what may have been done by then.
    ///
    /// When the work ends by itself, with whatever result, this candidate hands over and stands no more. To go on, call
    /// `lead` again, in a loop. The next candidate leads when this returns, if there is one.
    ///
    /// A campaign that fails for a reason that may pass (the servers are away, the session is over) is begun again, after a
    /// [pause](Leadership#pauses).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and hands over in the background. So a program can stop by that, too. It
    /// leaves neither node nor watch behind, as soon as the server can be reached.
    ///
    /// # Errors
    /// Errors that time alone does not mend: [`Error::PermissionDenied`], [`Error::Closed`], [`Error::ForeignContender`] and
    /// so on. [`Error::InvalidInput`] if this candidate campaigns already.
    ///
    /// # Panics
    /// A panic of `work` goes on to the caller. The lock is given back.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::leadership::Term;
    /// # use zk_rwlock::{Error, Leadership, Memory};
    /// # async fn next_job() -> Option<u32> { None }
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let leadership = Leadership::new(&zk, "/leaders/scheduler")?;
    /// let schedule = |term: Term| async move {
    ///     while let Some(job) = next_job().await {
    ///         // Refused by the ensemble if another candidate leads by now.
    ///         term.transaction().create(format!("/jobs/{job}"), "to do").commit().await?;
    ///     }
    ///     Ok::<_, Error>("all jobs are handed out")
    /// };
    /// if let Some(done) = leadership.lead(schedule).await? {
    ///     println!("{}", done?);
    /// }
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn lead<W, F>(&self, mut work: W) -> Result<Option<F::Output>, Error>
    where
        W: FnMut(Term) -> F,
        F: Future,
    {
        let campaign = self.candidate.begin_campaign()?;
        while let Some(turn) = campaign.next().await? {
            // The work is dropped before the lock is given back.
            let ended = while_held(turn.loss(), turn.wait_for_end(), async { work(turn.term()).await }).await;
            if let Some(output) = turn.finish(ended).await? {
                return Ok(Some(output));
            }
        }
        Ok(None)
    }

    /// As [`lead`](Self::lead), for work whose futures borrow what the closure owns: an `async move` closure with state, which
    /// the next term goes on with.
    ///
    /// `lead` takes whatever makes a future, also where it is a type parameter or borrows from the function that calls `lead`
    /// in a task of its own. The compiler does not take all of that for an `AsyncFnMut`, so there are two.
    ///
    /// # Cancel safety
    /// As for [`lead`](Self::lead).
    ///
    /// # Errors
    /// As for [`lead`](Self::lead).
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::leadership::Term;
    /// # use zk_rwlock::{Error, Leadership, Memory};
    /// # async fn next_job() -> Option<u32> { None }
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let leadership = Leadership::new(&zk, "/leaders/scheduler")?;
    /// let mut handed_out = 0; // goes on with the next term
    /// let schedule = async move |term: Term| {
    ///     while let Some(job) = next_job().await {
    ///         term.transaction().create(format!("/jobs/{job}"), "to do").commit().await?;
    ///         handed_out += 1;
    ///     }
    ///     Ok::<_, Error>(handed_out)
    /// };
    /// if let Some(done) = leadership.lead_mut(schedule).await? {
    ///     println!("{} jobs are handed out", done?);
    /// }
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn lead_mut<T>(&self, mut work: impl AsyncFnMut(Term) -> T) -> Result<Option<T>, Error> {
        let campaign = self.candidate.begin_campaign()?;
        while let Some(turn) = campaign.next().await? {
            let ended = while_held(turn.loss(), turn.wait_for_end(), async { work(turn.term()).await }).await;
            if let Some(output) = turn.finish(ended).await? {
                return Ok(Some(output));
            }
        }
        Ok(None)
    }

    /// Whether this candidate leads. The last moment of `true` lies before another candidate leads. The answer comes from
    /// the clock, and costs no request: see [`Hold::is_held`](crate::Hold::is_held).
    pub fn is_leader(&self) -> bool {
        self.term().is_some()
    }

    /// The present term, if this candidate leads. Its [number](Term::number) is the fencing token.
    pub fn term(&self) -> Option<Term> {
        let term = self.candidate.status.borrow().term.clone();
        // Not while the status is locked: to find the loss of a term wakes the tasks that end it.
        term.filter(Term::is_leader)
    }

    /// Hands over to the next candidate, if this one leads, and says whether it did. Its work is dropped, and
    /// [`lead`](Self::lead) campaigns on, behind all that wait by now. If nobody waits, it leads again at once, in another
    /// term.
    ///
    /// Waits until the work was dropped and the lock given back, so until `lead` has been polled. The work itself may call
    /// it, and is dropped there. A candidate that does not lead keeps its place in the queue.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the candidate resigns all the same.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Leadership, Memory};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let leadership = Leadership::new(&zk, "/leaders/scheduler")?;
    /// let admin = leadership.clone();
    /// let mut terms = 0;
    /// let work = |_term| {
    ///     terms += 1;
    ///     let (is_first, admin) = (terms == 1, admin.clone());
    ///     async move {
    ///         if is_first {
    ///             admin.resign().await; // the work ends here
    ///         }
    ///     }
    /// };
    /// leadership.lead(work).await?;
    /// assert_eq!(terms, 2);
    /// assert!(!leadership.resign().await, "it leads no more");
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn resign(&self) -> bool {
        let mut status = self.candidate.status.subscribe();
        let Some(term) = self.term() else { return false };
        self.candidate.status.send_modify(|status| status.is_resigned |= status.is_in(&term));
        // It fails if the sender is gone, and we have it.
        let _ended = status.wait_for(|status| !status.is_in(&term)).await;
        true
    }

    /// Ends the campaign for good: hands over if this candidate leads, leaves the queue if it waits. [`lead`](Self::lead)
    /// then returns `None`, at once also if it is called later.
    ///
    /// Waits until the lock was given back, so until `lead` has been polled. For a program that is asked to end: call it, or
    /// drop the future of `lead`, before you [close](crate::ZooKeeper::close) the client.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the campaign ends all the same.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Leadership, Memory};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let leadership = Leadership::new(&zk, "/leaders/scheduler")?;
    /// let forever = leadership.lead(|_term| std::future::pending::<()>());
    /// let (led, ()) = tokio::join!(forever, leadership.stop());
    /// assert_eq!(led?, None);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn stop(&self) {
        let mut status = self.candidate.status.subscribe();
        self.candidate.status.send_modify(|status| status.is_stopped = true);
        let _ended = status.wait_for(|status| !status.campaigns).await;
    }

    /// Who leads now, for everybody: a program that only asks is no candidate. `None` if nobody leads.
    ///
    /// Costs one listing, and one read that goes out together with a check at the ensemble's leader: a server may keep a
    /// leader that the ensemble no longer has, and that one is passed over. Otherwise the answer is what this client's server
    /// shows: a successor may be missing yet, and a leader that is cut off is shown until its session ends. So send the
    /// [term](Leader::term) along with what must reach the leader, and have it refuse another.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// As for [`RwLock::queue`], and [`Error::PermissionDenied`] if the leader's node may not be read.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Leadership, Memory};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let leadership = Leadership::builder(&zk, "/leaders/scheduler").data("http://web-1:8080").build()?;
    /// let observer = Leadership::new(&zk.connect(), "/leaders/scheduler")?;
    /// assert_eq!(observer.leader().await?, None);
    /// let work = async |_term| observer.leader().await;
    /// let leader = leadership.lead(work).await?.expect("not stopped")?.expect("somebody leads");
    /// assert_eq!(leader.data.as_deref(), Some("http://web-1:8080"));
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn leader(&self) -> Call<Option<Leader>> {
        leader::leader(self.candidate.lock.handle())
    }

    /// Who leads, and each change of that, beginning with the present leader.
    ///
    /// Costs four requests for each change: as [`leader`](Self::leader) does, it passes over a leader that the ensemble no longer
    /// has. Between them it checks after a session timeout of silence, then ever more seldom. It wakes no candidate: it watches
    /// the leader's node, or, when nobody leads, the directory until the first
    /// candidate comes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Leadership, Memory};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let leadership = Leadership::builder(&zk, "/leaders/scheduler").lock(|lock| lock.host("web-1")).build()?;
    /// let mut changes = Leadership::new(&zk.connect(), "/leaders/scheduler")?.changes();
    /// assert_eq!(changes.next().await.expect("open")?, None);
    /// # let campaign = leadership.lead(|_term| std::future::pending::<()>());
    /// # let observe = async {
    /// let leader = changes.next().await.expect("open")?.expect("somebody leads by now");
    /// println!("{leader}"); // web-1 pid 4242 in term 4294967301
    /// # assert_eq!(leader.host, "web-1");
    /// # Ok::<(), Error>(())
    /// # };
    /// # tokio::select! {
    /// #     led = campaign => panic!("{led:?}"),
    /// #     observed = observe => observed?,
    /// # }
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn changes(&self) -> LeaderChanges {
        leader::changes(self.candidate.lock.handle())
    }

    /// The lock, for its queue and for operators.
    pub fn lock(&self) -> &RwLock {
        &self.candidate.lock
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.candidate.status.borrow();
        let (campaigns, term) = (status.campaigns, status.term.clone());
        drop(status);
        let mut debug = f.debug_struct("Leadership");
        debug.field("path", &self.candidate.lock.path()).field("campaigns", &campaigns).field("term", &term);
        debug.finish_non_exhaustive()
    }
}

/// Options of a [`Leadership`]. Made by [`Leadership::builder`].
#[must_use = "nothing is opened before `build`"]
pub struct LeadershipBuilder {
    lock: RwLockBuilder,
    data: Option<String>,
    health: Option<(Duration, Check)>,
    pause: Duration,
}

impl LeadershipBuilder {
    /// What others read of this candidate while it leads: the address of its service, say. At most 256 bytes, without
    /// control characters. Default: nothing.
    ///
    /// It is the label of the candidate's node, so `zklock ls` shows it, too. It does not change during a term. Larger data,
    /// or data that changes, belong into a node that the leader writes by a [transaction](crate::Hold::transaction).
    pub fn data(mut self, data: impl Into<String>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// Leads and campaigns only while `check` says `true`.
    ///
    /// `check` is called before each campaign, and then after each `interval`, both while the candidate waits and while it
    /// leads. When it says `false`, or nothing for an `interval`, a leader resigns, and a candidate leaves the queue. It
    /// campaigns again, at the end of the queue, when `check` says `true`.
    ///
    /// `check` runs as a part of [`lead`](Leadership::lead), beside the work. Work that blocks its task holds it up.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Leadership, Memory};
    /// # async fn database_answers() -> bool { true }
    /// # let zk = Memory::new();
    /// let leadership = Leadership::builder(&zk, "/leaders/scheduler")
    ///     .health(Duration::from_secs(5), || async { database_answers().await })
    ///     .build()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn health<F>(mut self, interval: Duration, check: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        self.health = Some((interval, Box::new(move || Box::pin(check()))));
        self
    }

    /// How long the candidate waits before it campaigns again, at first: see [pauses](Leadership#pauses). It waits 32
    /// times as long at most. Default: one second.
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Options of the lock: its host, warnings, and so on. To
    /// [keep](RwLockBuilder::keep) it between uses is refused: a leader that resigns hands over.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Leadership, Memory};
    /// # let zk = Memory::new();
    /// let leadership = Leadership::builder(&zk, "/leaders/scheduler")
    ///     .lock(|lock| lock.warn_after_holding(Duration::from_secs(3600)))
    ///     .build()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn lock(mut self, options: impl FnOnce(RwLockBuilder) -> RwLockBuilder) -> Self {
        self.lock = options(self.lock);
        self
    }

    /// Opens the leadership. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] says which option was wrong, and how.
    pub fn build(mut self) -> Result<Leadership, Error> {
        if self.health.as_ref().is_some_and(|(interval, _)| interval.is_zero()) {
            return Err(Error::invalid("an interval of zero between health checks"));
        }
        if self.pause.is_zero() {
            return Err(Error::invalid("a pause of zero between campaigns"));
        }
        if let Some(data) = self.data {
            validation::check_said("data", &data)?;
            self.lock = self.lock.label(data);
        }
        let lock = self.lock.build()?;
        if lock.lock.cache.is_some() {
            return Err(Error::invalid("keep in a leadership; a leader that resigns hands over"));
        }
        Ok(Leadership { candidate: Arc::new(Candidate::new(lock, self.health, self.pause)) })
    }
}

impl fmt::Debug for LeadershipBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("LeadershipBuilder");
        debug.field("lock", &self.lock).field("pause", &self.pause).finish_non_exhaustive()
    }
}
