//! The public face of leadership: the handle of a candidate, and its builder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::call::Call;
use crate::error::error::Error;
use crate::lock::rw_lock::{RwLock, RwLockBuilder};
use crate::recipes::leadership::campaign::{Candidate, HealthCheck, Term};
use crate::recipes::leadership::leader::{self, Leader, LeaderChanges};
use crate::session::contract::Coordinator;
use crate::telemetry::debug::debug;
use crate::validation;

/// The default of the first pause before a candidate campaigns again.
const PAUSE: Duration = Duration::from_secs(1);

/// One leader among many candidates. The leader runs work that only one process may do at a time. When the leader is
/// gone, the next candidate leads and does the work.
///
/// [`lead`](Self::lead) campaigns, runs your work while this candidate leads, and drops the work as soon as the
/// candidate no longer leads. Any program can ask [who leads](Self::leader), and [follow](Self::changes) the changes. A
/// handle is cheap to clone, and all clones are one candidate.
///
/// # It is a write lock
/// The directory at `path` is the directory of an [`RwLock`], and the holder of its write lock leads. So candidates
/// lead in the order in which they queued up, and `zklock ls` shows the leader and the waiting candidates. A term keeps
/// every promise of a [guard](crate::WriteGuard): [`is_leader`](Self::is_leader) has already turned false when another
/// candidate can lead, also on a machine that is cut off or was suspended, unless somebody deletes the leader's node.
/// As with any lock, requests to other systems that are under way may arrive late. The number of the
/// [term](Term::number) protects against them.
///
/// # Pauses
/// After a term that was lost or short, and after a campaign that failed, the candidate waits [a
/// second](LeadershipBuilder::pause) before it campaigns again. A term is short if it lasts no longer than the pause
/// that would follow it. With each failed campaign or short term in a row, the pause doubles, up to 32 times its first
/// length. The actual pause is random, between half of that time and all of it, because several candidates may have
/// failed at once. There is no pause after a long term that was not lost, nor after [`resign`](Self::resign). The same
/// pauses apply when a program calls [`lead`](Self::lead) again.
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
    /// Opens the leadership at the directory `path`. Sends nothing. Missing directories are created when needed.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if [`RwLock::new`] would refuse the path.
    pub fn new<C: Coordinator + Clone>(coordinator: &C, path: impl AsRef<str>) -> Result<Leadership, Error> {
        Leadership::builder(coordinator, path).build()
    }

    /// Returns a builder, to open the leadership at the directory `path` with options.
    pub fn builder<C: Coordinator + Clone>(coordinator: &C, path: impl AsRef<str>) -> LeadershipBuilder {
        let mut lock = RwLock::builder(coordinator, path).warn_after_waiting(None);
        lock.is_election = true;
        LeadershipBuilder { lock, data: None, health: None, pause: PAUSE }
    }

    /// Campaigns, and runs `work` while this candidate leads. Returns the output of the work when the work ends by
    /// itself, or `None` when this candidate was [stopped](Self::stop).
    ///
    /// `work` is called at the beginning of each term, and returns the future for that term. For an `async move`
    /// closure that owns state there is [`lead_mut`](Self::lead_mut). The future is dropped as soon as the term ends:
    /// because leadership was lost, because this candidate [resigned](Self::resign) or was stopped, or because its
    /// [health check](LeadershipBuilder::health) failed. Then the candidate queues up again, behind all waiting
    /// candidates, unless it was stopped.
    ///
    /// If leadership is already lost when the work ends, the output of the work is dropped, and the campaign goes on.
    /// So if the loss makes the work fail, that error does not end the campaign. [`Hold::run`](crate::Hold::run) says
    /// how soon the work is dropped after a loss, and what the work may have done by then.
    ///
    /// When the work ends by itself, with any result, this candidate hands over and leaves the queue. When `lead`
    /// returns, the next candidate can lead, if there is one. To campaign again, call `lead` in a loop.
    ///
    /// A campaign that fails for a temporary reason (no server is reachable, the session is over) begins again, after a
    /// [pause](Leadership#pauses).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and hands over to the next candidate in the background. A program can stop
    /// in this way. The candidate's node and watches are removed once the server can be reached.
    ///
    /// # Errors
    /// Errors that another campaign does not fix: [`Error::PermissionDenied`], [`Error::Closed`],
    /// [`Error::ForeignContender`] and so on. [`Error::InvalidInput`] if this candidate campaigns already.
    ///
    /// # Panics
    /// A panic of `work` is passed on to the caller. The lock is given back.
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
        while let Some(term) = campaign.next_term().await? {
            let lasting = term.term.clone();
            if let Some(output) = term.run(async { work(lasting).await }).await? {
                return Ok(Some(output));
            }
        }
        Ok(None)
    }

    /// Like [`lead`](Self::lead), for work whose futures borrow from the closure: an `async move` closure that owns
    /// state. The next term goes on with the same state.
    ///
    /// This method does not replace `lead`, because the compiler accepts fewer programs with an `AsyncFnMut`: it
    /// refuses work whose type is a type parameter of the calling function. In a spawned task, it also refuses a
    /// closure that borrows a variable of the calling function.
    ///
    /// # Cancel safety
    /// Same as for [`lead`](Self::lead).
    ///
    /// # Errors
    /// The errors of [`lead`](Self::lead).
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
        while let Some(term) = campaign.next_term().await? {
            let lasting = term.term.clone();
            if let Some(output) = term.run(async { work(lasting).await }).await? {
                return Ok(Some(output));
            }
        }
        Ok(None)
    }

    /// Returns whether this candidate leads. The method reads the clock and sends nothing. The answer has already
    /// turned `false` when another candidate can lead, with one exception: see [`Hold::is_held`](crate::Hold::is_held).
    pub fn is_leader(&self) -> bool {
        self.term().is_some()
    }

    /// Returns the present term, if this candidate leads. The [number](Term::number) of the term is the fencing token.
    pub fn term(&self) -> Option<Term> {
        let term = self.candidate.status.borrow().term.clone();
        // The borrow of the status must end before `is_leader` is called. If `is_leader` finds that the term is lost,
        // it wakes tasks that lock the status.
        term.filter(Term::is_leader)
    }

    /// Hands over to the next candidate, and returns whether this candidate led. The work is dropped, and
    /// [`lead`](Self::lead) goes on campaigning, behind all waiting candidates. If no candidate waits, this candidate
    /// leads again at once, in another term.
    ///
    /// Waits until the work was dropped and the lock given back. This happens inside `lead`, so `lead` must be polled
    /// meanwhile. The work itself may call `resign`, and is dropped at that point. A candidate that does not lead keeps
    /// its place in the queue.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the candidate still resigns.
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
        self.candidate.status.send_modify(|status| status.is_resigned |= status.is_present_term(&term));
        // `wait_for` fails only if the sender is gone, and `self` owns the sender.
        let _ended = status.wait_for(|status| !status.is_present_term(&term)).await;
        true
    }

    /// Ends the campaign. This candidate hands over if it leads, or leaves the queue if it waits, and never campaigns
    /// again. Then [`lead`](Self::lead) returns `None`, and later calls of `lead` return `None` at once.
    ///
    /// Waits until the lock was given back. This happens inside `lead`, so `lead` must be polled meanwhile. A program
    /// that shuts down should call `stop`, or drop the future of `lead`, before it [closes](crate::ZooKeeper::close)
    /// the client.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the campaign still ends.
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
        let _ended = status.wait_for(|status| !status.is_campaigning).await;
    }

    /// Reads who leads now. Returns `None` if nobody leads. A program that only asks does not become a candidate.
    ///
    /// Sends one request that lists the candidates. Then reads the leader's node, and at the same time asks the
    /// ensemble's leader whether that node exists. So a leader whose node the ensemble no longer has is not returned,
    /// even if this client's server still shows the node. The answer may still be out of date: the server may not show
    /// a successor yet, and a leader that is cut off is returned until its session ends. So send the
    /// [term](Leader::term) with each message to the leader, and let the leader refuse the number of another term.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing, because the call only reads.
    ///
    /// # Errors
    /// The errors of [`RwLock::queue`], and [`Error::PermissionDenied`] if the leader's node may not be read.
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
        leader::read_leader(&self.candidate.lock.config)
    }

    /// Returns a stream of the leaders: first the present leader, and then each new leader. Changes between two polls
    /// may be skipped, but never the newest.
    ///
    /// Usually sends four requests for each change. Like [`leader`](Self::leader), the stream does not return a leader
    /// whose node the ensemble no longer has. If no change comes for a session timeout, the stream asks the ensemble's
    /// leader whether an event was lost, and repeats this less and less often. The stream watches the node of the
    /// leading candidate. If nobody leads, it watches the directory until the first candidate queues up. The stream
    /// wakes no candidate.
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
        leader::leader_changes(&self.candidate.lock.config)
    }

    /// Returns the lock on which the candidates are elected, for its queue and for its calls for operators.
    pub fn lock(&self) -> &RwLock {
        &self.candidate.lock
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_campaigning = self.candidate.status.borrow().is_campaigning;
        let mut debug = f.debug_struct("Leadership");
        debug.field("path", &self.lock().path()).field("is_campaigning", &is_campaigning).field("term", &self.term());
        debug.finish_non_exhaustive()
    }
}

/// The options of a [`Leadership`]. Made by [`Leadership::builder`].
#[must_use = "nothing is opened before `build`"]
pub struct LeadershipBuilder {
    lock: RwLockBuilder,
    data: Option<String>,
    health: Option<(Duration, HealthCheck)>,
    pause: Duration,
}

impl LeadershipBuilder {
    /// Sets the data that this candidate publishes while it leads, such as the address of its service.
    /// [`build`](Self::build) refuses data of more than 256 bytes or with a control character. Default: no data.
    ///
    /// The data is the label of the candidate's node, so `zklock ls` shows it, too. The data does not change during a term.
    /// Put larger data, or data that changes, into a node that the leader writes by a
    /// [transaction](crate::Hold::transaction).
    pub fn data(mut self, data: impl Into<String>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// Sets a health check. A candidate whose check fails does not campaign, and resigns if it leads.
    ///
    /// `check` is called before each campaign, and then every `interval`, while the candidate waits and while it leads.
    /// When `check` returns `false`, or does not answer within an `interval`, a leader resigns, and a waiting candidate
    /// leaves the queue. The candidate campaigns again, at the end of the queue, when `check` returns `true`.
    ///
    /// `check` runs as a part of [`lead`](Leadership::lead), concurrently with the work. Work that blocks its task
    /// delays `check`.
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

    /// Sets the first pause before the candidate campaigns again: see [pauses](Leadership#pauses). The longest pause is
    /// 32 times as long. Default: one second.
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Sets options of the lock: its host, warnings, and so on. [`build`](Self::build) refuses the option
    /// [`keep`](RwLockBuilder::keep). With it, a leader that resigns would keep the lock instead of handing over.
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

    /// Opens the leadership. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] says which option is wrong, and why.
    pub fn build(mut self) -> Result<Leadership, Error> {
        if self.health.as_ref().is_some_and(|(interval, _)| interval.is_zero()) {
            return Err(Error::invalid("the interval between health checks is zero"));
        }
        if self.pause.is_zero() {
            return Err(Error::invalid("the pause between campaigns is zero"));
        }
        if let Some(data) = self.data {
            validation::check_text("data", &data)?;
            self.lock = self.lock.label(data);
        }
        let lock = self.lock.build()?;
        if lock.cache.is_some() {
            return Err(Error::invalid("a leadership cannot use keep, because a leader that resigns hands over"));
        }
        Ok(Leadership { candidate: Arc::new(Candidate::new(lock, self.health, self.pause)) })
    }
}

debug!(LeadershipBuilder as "LeadershipBuilder", |it| lock: it.lock, pause: it.pause);
