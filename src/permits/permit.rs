//! The guard of permits: what their holder can do; knows neither how they were taken nor who waits for them.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::error::error::Error;
use crate::hold::changes::Changes;
use crate::hold::hold::{Hold, NodeData};
use crate::hold::transaction::Transaction;
use crate::queue::contender::Contender;
use crate::queue::metadata;
use crate::queue::permits::{self, PERMITS, Room};
use crate::session::loss::{HoldState, Loss};
use crate::session::request::Failure;
use crate::session::retry;

/// How soon to look again at who was about to take permits.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// One permit of a [`Semaphore`](crate::Semaphore), or several that were acquired together. Made by
/// [`Semaphore::acquire`](crate::Semaphore::acquire).
///
/// Dropping it gives the permits back in the background: from any thread, also outside a runtime and in a panic. A program
/// that ends right after that should [`release`](Self::release) it: see [`WriteGuard`](crate::WriteGuard).
#[must_use = "if unused, the permits are given back at once"]
pub struct Permit {
    held: Box<Hold>,
    count: u32,
}

impl Permit {
    pub(super) fn new(held: Box<Hold>, count: u32) -> Permit {
        Permit { held, count }
    }

    /// How many permits it is: as many as were asked for.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether the permits are still held. The last moment of `true` lies before any grant that takes them.
    ///
    /// There is one exception: if somebody deletes the permit's node by hand, its holder and the next contender hear of it
    /// at the same time.
    ///
    /// The answer comes from the clock and costs no request. So it is right also in the first call after the process was
    /// stopped, or its runtime blocked. Once `false`, it stays `false`.
    pub fn is_held(&self) -> bool {
        self.held.loss().is_none()
    }

    /// How sure it is that the permits are held: like [`is_held`](Self::is_held), but it also shows that the connection is
    /// lost while they are not.
    pub fn state(&self) -> HoldState {
        self.held.state()
    }

    /// The changes of [`state`](Self::state), as they come.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, HoldState, Loss, Memory, Semaphore};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let permit = Semaphore::new(&zk, "/limits/geocoder", 3)?.acquire().await?;
    /// let mut changes = permit.changes();
    /// assert_eq!(changes.next().await, Some(HoldState::Held));
    /// zk.cut();
    /// assert!(matches!(changes.next().await, Some(HoldState::Suspect { .. })));
    /// zk.expire();
    /// zk.heal();
    /// assert!(matches!(changes.next().await, Some(HoldState::Lost { why: Loss::SessionOver(_) })));
    /// assert_eq!(changes.next().await, None);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn changes(&self) -> Changes {
        self.held.changes()
    }

    /// Waits until the permits are lost, and says why: at the latest when the session's lease runs out, which is before the
    /// ensemble can give them to another contender. It is pending for as long as they are held.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Semaphore};
    /// # async fn process_batch() {}
    /// # tokio_test::block_on(async {
    /// # let limit = Semaphore::new(&Memory::new(), "/limits/batches", 3)?;
    /// let permit = limit.acquire().await?;
    /// tokio::select! {
    ///     () = process_batch() => permit.release().await?,
    ///     why = permit.lost() => eprintln!("stopped, because {why}"),
    /// }
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn lost(&self) -> Loss {
        self.held.lost().await
    }

    /// For how long the ensemble surely keeps the session, and so the permits. See
    /// [`WriteGuard::session_left`](crate::WriteGuard::session_left).
    pub fn session_left(&self) -> Duration {
        self.held.session_left()
    }

    /// Waits until somebody waits because too few permits are free, and gives the first who does. Ready at once if somebody
    /// waits already. Who is about to take permits that are free does not count.
    ///
    /// With this a long piece of work can make way at a good moment. See
    /// [`WriteGuard::contended`](crate::WriteGuard::contended) for what it costs; each time that somebody stands in the
    /// queue, it costs three reads more.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Errors
    /// [`Error::Lost`] once the permits are lost; [`Error::PermissionDenied`] if the queue may not be read.
    pub async fn contended(&self) -> Result<Contender, Error> {
        loop {
            let first = self.held.contended().await?;
            if self.finds_too_few(&first).await? {
                return Ok(first);
            }
            self.held.ticket().session().sleep(LOOK_PAUSE).await;
        }
    }

    /// Whether there are too few permits for this contender, which is the first in the queue.
    async fn finds_too_few(&self, first: &Contender) -> Result<bool, Error> {
        let (session, queue) = (self.held.ticket().session(), self.held.ticket().directory());
        let Some((semaphore, _)) = queue.rsplit_once('/') else { return Ok(true) };
        let (node, taken) = (format!("{queue}/{}", first.name()), format!("{semaphore}/{PERMITS}"));
        let read = || async {
            // All are on their way before one is answered.
            let (node, number, names) = (session.data(&node), session.data(semaphore), session.children(&taken));
            Ok((node.await.map(|(data, _)| metadata::read(&data).permits), number.await?.0, names.await?))
        };
        let (wanted, number, names) =
            retry::until_known(session, read).await.map_err(|failure| self.held.lost_by(failure, "read"))?;
        let wanted = match wanted {
            // It took its permits, or gave up.
            Err(Failure::NoNode) => return Ok(false),
            Err(_) => None,
            Ok(wanted) => wanted,
        };
        let number = permits::decode(&number).ok().flatten();
        let room = wanted.zip(number).map(|(wanted, number)| permits::room(number, &names, wanted));
        Ok(room != Some(Ok(Room::Enough)))
    }

    /// Runs `work` while the permits are held, and drops it as soon as they are lost. See
    /// [`WriteGuard::run`](crate::WriteGuard::run).
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`.
    ///
    /// # Errors
    /// [`Error::Lost`], also if the work was done but the permits had been lost by then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Semaphore};
    /// # tokio_test::block_on(async {
    /// let permit = Semaphore::new(&Memory::new(), "/limits/geocoder", 3)?.acquire().await?;
    /// assert_eq!(permit.run(async { 42 }).await?, 42);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        self.held.run(work).await
    }

    /// A number that is higher than that of every earlier grant of this semaphore: that of the transaction that made the
    /// permit's node (`czxid`).
    ///
    /// Others hold permits at the same time, so a resource cannot refuse every lower number. It can remember the numbers
    /// that it was shown, or refuse those of one slot: see [`WriteGuard::fencing_token`](crate::WriteGuard::fencing_token).
    pub fn fencing_token(&self) -> i64 {
        self.held.position().czxid
    }

    /// The path of the permit's node.
    ///
    /// A ZooKeeper transaction of any client that checks that this node exists is done only while the permits are held.
    pub fn path(&self) -> String {
        self.held.own_node().path_for_others()
    }

    /// Reads any node; `None` if it does not exist.
    ///
    /// It reads on the session that holds the permits.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// [`Error::Lost`] if the permits are gone; [`Error::PermissionDenied`], [`Error::InvalidInput`].
    pub async fn data(&self, path: impl AsRef<str>) -> Result<Option<NodeData>, Error> {
        self.held.data(path.as_ref()).await
    }

    /// Starts a transaction that is committed only if the permits are still held then. See [`Transaction`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Semaphore};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let permit = Semaphore::new(&zk, "/limits/geocoder", 3)?.acquire().await?;
    /// permit.transaction().create("/progress", "half").commit().await?;
    ///
    /// zk.remove(permit.path()); // an operator takes the permit away
    /// assert!(permit.transaction().set("/progress", "all").commit().await.unwrap_err().is_lost());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn transaction(&self) -> Transaction<'_> {
        Transaction::under(&self.held)
    }

    /// Gives the permits back, and returns when their node is surely gone.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the release goes on in the background. Before it, the permit is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] if the permits had been lost before. [`Error::PermissionDenied`] if the node may not be deleted: then
    /// it stays, and keeps the permits taken, until its session ends.
    pub async fn release(self) -> Result<(), Error> {
        self.held.release().await
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Permit");
        debug.field("path", &self.held.own_node().path()).field("count", &self.count);
        debug.field("fencing_token", &self.fencing_token()).field("is_held", &self.is_held()).finish()
    }
}
