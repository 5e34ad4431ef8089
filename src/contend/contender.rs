//! One contender: creates its node, and removes the node when it leaves. The methods that replace the node are in
//! [`exchange`](crate::contend::exchange).

use std::future::{poll_fn, ready};
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::contend::directory;
use crate::error::error::Error;
use crate::observe::changes::ObservedHold;
use crate::observe::trace::HoldTrace;
use crate::queue::node_name::NodeName;
use crate::queue::permits::{self, PERMITS, PermitAvailability};
use crate::queue::{metadata, turn};
use crate::session::contract::{Coordinator, Session, SessionSlot};
use crate::session::lease::Moment;
use crate::session::leaving::NodeRemoval;
use crate::session::node::Node;
use crate::session::node::state::EntryStep;
use crate::session::presence::{self, LeaderRecheckTimer, existence_check};
use crate::session::removal::{log_removal_failure, remove_node};
use crate::session::request::{Created, Failure, Kind, Listing, Loss, Operation, Reply, SessionEnd, Stat, Watch};
use crate::session::retry::{self, repeat_until_known};
use crate::session::{follow, listing};
use crate::sync::Mutex;
use crate::telemetry::log::emit;
use crate::telemetry::{meter, names};
use crate::validation;

/// While a holder waits until another contender waits for it, changes of the queue cause at most one listing in this
/// time: at most 50 listings a second.
const LISTING_PAUSE: Duration = Duration::from_millis(20);

/// A contender before the grant, and the hold after the grant. A contender owns its node from the create on. Variables
/// of this type are named `entry` until the grant and `hold` after the grant, or `lock` where there are several.
///
/// Dropping the contender ends the hold and removes the node, even if the reply to the create has not come yet. In a
/// forked process, dropping it does neither.
pub(crate) struct Contender {
    pub(super) trace: Mutex<HoldTrace>,
    session_slot: SessionSlot,
    /// The paths of the directories and other persistent nodes that this contender created, in the order of their
    /// creation.
    made: Mutex<Vec<String>>,
    /// Whether the process may keep the node between uses.
    keeps: bool,
    node: Arc<Node>,
    /// The path that the user gave.
    user_path: Arc<str>,
    /// The data of the node, which tell people the host, the process id, the label and more.
    data: Vec<u8>,
    /// Keeps the coordinator alive, because the coordinator closes its sessions when it is dropped.
    _coordinator: Arc<dyn Coordinator>,
}

impl Contender {
    /// Creates the contender in an `Arc`, because the guards of a shared hold own it together. Before the grant, the
    /// contender is passed through several futures, and without the `Arc` each of them would be larger by the size of
    /// the contender.
    pub(crate) fn new(
        session_slot: SessionSlot,
        node: Arc<Node>,
        keeps: bool,
        user_path: &Arc<str>,
        coordinator: &Arc<dyn Coordinator>,
        data: Vec<u8>,
    ) -> Arc<Contender> {
        let (user_path, _coordinator) = (Arc::clone(user_path), Arc::clone(coordinator));
        let (trace, made) = (Mutex::default(), Mutex::default());
        Arc::new(Contender { trace, session_slot, made, keeps, node, user_path, data, _coordinator })
    }

    /// Sends the create of the node. If the process may keep the node between uses, first requests a watch on the
    /// directory. [`Contender::await_create`] waits for the reply to the create.
    pub(crate) fn send_create(&self) {
        let (session, now) = (self.session(), self.session().lease().now());
        let connection = session.store().connection_number();
        // The watch on the directory is requested before the create of the node. Other contenders see the node only
        // after its create, so the watch fires even at the first request to give up the node.
        let directory_watch = self.keeps.then(|| session.watch(self.directory()));
        let reply = session.create(&self.node.path(), &self.data, Kind::EphemeralSequential);
        let _unlocked = self.node.change(|it| {
            it.state.record_create_sent(now, connection);
            (it.creating.replace(reply), std::mem::replace(&mut it.directory_watch, directory_watch))
        });
    }

    /// Takes the watch on the lock's directory that was requested before the create. The watch fires when another
    /// contender requests that processes give up the nodes that they keep between uses. `None` if there is no such
    /// watch, or if its request failed.
    pub(crate) async fn take_directory_watch(&self) -> Option<Watch> {
        let directory_watch = self.node.change(|it| it.directory_watch.take())?;
        directory_watch.await.ok()
    }

    /// Waits for the reply to [`Contender::send_create`]. Returns `None` if the node was created, and the next step if
    /// the create failed. Fails if another create would not help, or if too many creates have failed. `listing` is the
    /// answer to the listing that was sent after the create.
    ///
    /// # Cancel safety
    /// Dropping the future does not cancel the create. Dropping the contender removes the node that the create makes.
    pub(crate) async fn await_create(&self, listing: &Result<Listing, Failure>) -> Result<Option<EntryStep>, Failure> {
        let answer = poll_fn(|context| {
            self.node.change(|it| match &mut it.creating {
                // Without `unconstrained`, tokio's budget may call the waker immediately, while the mutex is locked.
                Some(reply) => pin!(tokio::task::unconstrained(reply.as_mut())).poll(context),
                None => Poll::Ready(Err(Failure::Unknown("no node was asked for".to_owned()))),
            })
        });
        match answer.await {
            Ok(created) => self.record_created(&created).map(|()| None),
            Err(failure) => {
                let is_own = |name: &String| self.node.tag().is_tag_of(name);
                let is_listed = listing.as_ref().is_ok_and(|names| names.iter().any(is_own));
                // The failed create may still have made the node, perhaps before the watch was armed. A request to give
                // up the node may then have been missed, so the watch is dropped. If the node is found later, the
                // process does not keep it between uses, because there is no watch.
                let (step, _unlocked) = self.node.change(|it| {
                    let step = it.state.record_create_failure(failure, is_listed);
                    (step, (it.creating.take(), it.directory_watch.take()))
                });
                step.map(Some)
            }
        }
    }

    fn record_created(&self, created: &Created) -> Result<(), Failure> {
        self.session().store().record_created(&self.node, created, self.session().id())
    }

    /// Creates the lock directory and its parents, if they are missing. With `has_to_stay`, creates a directory that
    /// servers do not delete when it is empty.
    pub(crate) async fn make_directory(&self, has_to_stay: bool) -> Result<(), Failure> {
        directory::make_directories(self.session(), self.directory(), has_to_stay, |step| {
            self.record_created_path(step)
        })
        .await
    }

    /// Records that this contender created the directory or other persistent node at `path`, for
    /// [`Contender::remove_own_directories`].
    pub(crate) fn record_created_path(&self, path: &str) {
        self.made.lock().push(path.to_owned());
    }

    /// Removes the persistent nodes that this contender created, the last one first. Called after a server has refused
    /// a request for lack of rights. An ACL that this client gave these nodes and that keeps this client out would keep
    /// other clients out, too. Returns whether a node was removed. Ignores deletes that fail. ZooKeeper deletes only
    /// nodes without children, so no other client's node is lost.
    pub(crate) async fn remove_own_directories(&self) -> bool {
        let mut is_removed = false;
        let made = std::mem::take(&mut *self.made.lock());
        for step in made.iter().rev() {
            is_removed |= repeat_until_known(self.session(), || self.session().delete(step)).await.is_ok();
        }
        is_removed
    }

    /// Looks for the node, because its create may have made it although the reply was lost. Records the node if it
    /// exists and belongs to this session, and returns whether it does.
    ///
    /// A sync is sent before the listing, because a lagging server might not show the node. The caller would then
    /// create a second node, which could wait behind the first node for ever.
    pub(crate) async fn find_created_node(&self) -> Result<bool, Failure> {
        let (session, directory, tag) = (self.session(), self.directory(), self.node.tag());
        let listed = repeat_until_known(session, || listing::list_synced(session, directory)).await;
        let names = listed.or_else(retry::default_if_no_node)?;
        for child in names.iter().filter(|name| tag.is_tag_of(name)) {
            let path = self.child_path(child);
            match repeat_until_known(session, || session.data(&path)).await {
                Ok((_, stat)) if stat.ephemeral_owner == session.id() => {
                    retry::fail_if_rights_wider(session, directory).await?;
                    meter::increment_counter(names::RECOVERIES, Some(self.node.path_label()), &[]);
                    emit!(INFO, path = %directory, node = %child, "the answer to a create was lost, and its node found");
                    let Stat { czxid, ctime, ephemeral_owner, .. } = stat;
                    self.record_created(&Created { path, czxid, ctime, ephemeral_owner })?;
                    return Ok(true);
                }
                Ok(_) | Err(Failure::NoNode) => {}
                Err(failure) => return Err(failure),
            }
        }
        emit!(DEBUG, path = %directory, owner = %tag, "the answer to a create was lost, and there is no node");
        Ok(false)
    }

    /// Starts the removal of the orphans among these children. An orphan is a node that an earlier create of this
    /// contender made although the reply was lost. This session must have sent that create first, then some write, and
    /// then the listing of these children. A server carries out the requests of a session in order, so the listing
    /// shows all orphans.
    pub(crate) fn remove_orphans(&self, children: &[String]) {
        for orphan in self.node.read(|it| it.orphans(children)) {
            drop(remove_node(self.session(), &self.node, NodeRemoval::by_plain_delete(self.child_path(&orphan)), None));
        }
    }

    /// Lists the directory.
    pub(crate) fn list_queue(&self) -> Reply<Listing> {
        listing::list(self.session(), self.directory())
    }

    pub(crate) fn child_path(&self, name: &str) -> String {
        format!("{}/{name}", self.directory())
    }

    /// Limits the length of each later hold of this node to `longest`. Starts a task on the session's thread that
    /// removes the node some time after a hold has exceeded the limit, or after another loss that leaves the node in
    /// place.
    pub(crate) fn limit_each_hold(&self, longest: Duration) {
        let (node, session) = self.node_and_session();
        node.change(|it| it.state.limits.set_longest_once(longest));
        let by = Arc::clone(&session);
        by.spawn(Box::pin(remove_after_loss(node, session)));
    }

    /// Starts the time limit of one use of a node that the process keeps between uses. `None` if uses have no time
    /// limit.
    pub(crate) fn begin_limited_use(&self) -> Option<UseLimit> {
        let now = self.lease_now();
        let end = self.node().change(|it| it.state.limits.add_deadline(now))?;
        Some(UseLimit { node: Arc::clone(self.node()), end })
    }

    pub(crate) fn session(&self) -> &Arc<dyn Session> {
        self.session_slot.session()
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Returns the present time on the clock of the session's lease.
    pub(crate) fn lease_now(&self) -> Moment {
        self.session().lease().now()
    }

    /// Waits until the node is lost or given back.
    pub(crate) async fn until_lost(&self) -> Loss {
        self.node().until_lost(|pause| self.session().sleep(pause)).await
    }

    /// Returns the data of the node, which tell people the host, the process id, the label and more.
    pub(crate) fn node_data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the path that the user gave.
    pub(crate) fn user_path(&self) -> &str {
        &self.user_path
    }

    /// Returns for how long the session and the node exist at least, unless a client deletes the node. Zero if the
    /// session may be over, or if the owner has left the node.
    pub(crate) fn session_left(&self) -> Duration {
        let session_left = self.session().lease().session_left();
        if session_left.is_zero() || self.node().is_left() {
            return Duration::ZERO;
        }
        self.node().time_until_given_up().map_or(session_left, |left| left.min(session_left))
    }

    pub(crate) fn node_and_session(&self) -> ObservedHold {
        (Arc::clone(self.node()), Arc::clone(self.session()))
    }

    /// Checks our own node and `others` at the ensemble's leader now and then, until a check fails. Returns the indices
    /// in `others` of the checks that surely failed. If our own node is gone, records and returns the loss. The checks
    /// find changes whose events were lost. If `is_due`, the first check is sent at once.
    pub(crate) async fn until_check_fails(
        &self,
        mut is_due: bool,
        others: impl Fn() -> Vec<Operation>,
    ) -> Result<Vec<usize>, Loss> {
        let mut recheck = LeaderRecheckTimer::new(self.session());
        loop {
            if is_due {
                let checks = [vec![existence_check(self.node().path(), None)], others()].concat();
                // Boxed, because a waiter's future is as large as its largest step, and most waiters only pause here.
                let missed = Box::pin(presence::find_failed_checks(self.session(), &checks)).await;
                if missed.contains(&0) {
                    self.node().record_loss(Loss::Removed);
                    return Err(Loss::Removed);
                }
                if !missed.is_empty() {
                    return Ok(missed.into_iter().map(|index| index - 1).collect());
                }
            }
            recheck.until_recheck_due().await;
            is_due = true;
        }
    }

    pub(crate) async fn run_while_held<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        while_held(|| self.detect_loss(), self.until_lost(), work).await.map_err(Error::Lost)
    }

    pub(crate) async fn read_node(&self, path: &str) -> Result<Option<NodeData>, Error> {
        validation::check_path(path)?;
        let node = self.run_while_held(retry::read_data(self.session(), path, false)).await?;
        node.map(|node| node.map(NodeData::new))
            .map_err(|failure| Error::from_failure_under_lock(failure, "read", path))
    }

    /// Waits until a contender in the queue must wait for this hold. Returns the name of the first such contender.
    pub(crate) async fn until_contended(&self) -> Result<NodeName, Error> {
        self.run_while_held(self.wait_until_contended()).await?
    }

    async fn wait_until_contended(&self) -> Result<NodeName, Error> {
        let (mut before, mut pause) = (None, LISTING_PAUSE);
        loop {
            let first = self.until_hold_excludes_waiter().await?;
            if !self.is_of_semaphore() || self.lacks_free_permits_for(&first).await? {
                return Ok(first);
            }
            // Either `first` is gone, or enough permits are free for `first`, which takes them soon unless its process
            // is stopped. The queue is listed again after a pause. The pause doubles, up to the session timeout, while
            // the same contender is the first.
            let session = self.session();
            let first = Some(first.as_str().to_owned());
            pause = if before == first { (2 * pause).min(session.timeout()) } else { LISTING_PAUSE };
            before = first;
            session.sleep(pause).await;
        }
    }

    /// Returns whether this contender waits for permits of a semaphore, or holds such permits. The queue of a semaphore
    /// is a directory below the user's path, and the queue of a lock is that path itself.
    fn is_of_semaphore(&self) -> bool {
        self.user_path() != &**self.directory()
    }

    async fn until_hold_excludes_waiter(&self) -> Result<NodeName, Error> {
        let (session, directory) = (self.session(), self.directory());
        let (mut last_change, mut recheck) = (None::<Moment>, LeaderRecheckTimer::new(session));
        loop {
            let (names, mut change) =
                match retry::repeat_until_known(session, || session.watch_children(directory)).await {
                    Ok(seen) => seen,
                    // The servers delete the directory of a semaphore's queue after it was empty for a while. The next
                    // contender creates it again.
                    Err(Failure::NoNode) if self.is_of_semaphore() => {
                        match follow::until_node_may_exist(session, directory).await {
                            Ok(()) => continue,
                            Err(_) => return std::future::pending().await,
                        }
                    }
                    Err(failure) => return Err(self.holder_error(failure, "watch")),
                };
            if let Some(first) = turn::first_excluded_waiter(&self.node_name(), &names, self.is_of_semaphore()) {
                return Ok(first);
            }
            // The listing is dropped early, because a long listing would take memory during the wait for the event of
            // the watch.
            drop(names);
            // `wait` returns after the event of the watch. It also returns after a while without an event, because an
            // event may be lost. An error means that the session is over. The caller then reports the loss of the hold.
            if recheck.until_event_or_recheck(&mut change).await.is_err() {
                return std::future::pending().await;
            }
            // Each reader that comes or goes ends the wait, and there may be thousands. The pause limits the listings
            // to 50 a second.
            let since = last_change.map(|last| self.lease_now().saturating_sub(last));
            if let Some(rest) = since.and_then(|since| LISTING_PAUSE.checked_sub(since)) {
                session.sleep(rest).await;
            }
            last_change = Some(self.lease_now());
        }
    }

    /// Returns whether `first`, the first contender in the queue, asks for more permits than are free. Returns `false`
    /// if the node of `first` is gone. Returns `true` if it cannot be read how many permits are free, or how many
    /// `first` asks for.
    async fn lacks_free_permits_for(&self, first: &NodeName) -> Result<bool, Error> {
        let (session, queue) = (self.session(), self.directory());
        let Some((semaphore, _)) = queue.rsplit_once('/') else { return Ok(true) };
        let (node, taken) = (format!("{queue}/{}", first.as_str()), format!("{semaphore}/{PERMITS}"));
        let read = || async {
            // All requests are sent before the first reply is awaited, so that together they take one round trip.
            let (node, number, names) = (session.data(&node), session.data(semaphore), session.children(&taken));
            let wanted = match node.await {
                Err(failure @ (Failure::Unknown(_) | Failure::Over(_))) => return Err(failure),
                answer => answer.map(|(data, _)| metadata::parse_metadata(&data).permits),
            };
            Ok((wanted, number.await?.0, names.await?))
        };
        let (wanted, number, names) =
            retry::repeat_until_known(session, read).await.map_err(|failure| self.holder_error(failure, "read"))?;
        let wanted = match wanted {
            // The node of `first` is gone, because that contender took its permits or left.
            Err(Failure::NoNode) => return Ok(false),
            Err(_) => None,
            Ok(wanted) => wanted,
        };
        let number = permits::decode_permit_number(&number).ok().flatten();
        let room = wanted.zip(number).map(|(wanted, number)| permits::permit_availability(number, &names, wanted));
        Ok(room != Some(Ok(PermitAvailability::Enough)))
    }

    /// Leaves the queue or gives up the hold: marks the node as left, ends the trace, removes the node from the
    /// session's record ([`SessionStore::forget_node`](crate::session::store::SessionStore::forget_node)), and deletes
    /// the node. Sends the first request before it returns, unless the connection is lost. Returns the loss, if the
    /// node was lost or left before. Also returns the reply to the deletion. The deletion goes on even if the reply is
    /// dropped. In a forked process, changes and sends nothing, and returns the end of the session as the loss.
    pub(crate) fn leave(&self) -> (Option<Loss>, Reply<()>) {
        if self.node().is_in_forked_process() {
            let ending = SessionEnd::Forked;
            return (Some(Loss::SessionOver(ending)), Box::pin(ready(Err(Failure::Over(ending)))));
        }
        let (loss, leaving) = self.node.mark_left();
        // The trace of the hold ends now, even if the guard is dropped later or the deletion takes long.
        let trace = std::mem::take(&mut *self.trace.lock());
        drop(trace);
        self.session().store().forget_node(&self.node);
        let Some(leaving) = leaving else { return (loss, Box::pin(ready(Err(Failure::NoNode)))) };
        (loss, remove_node(self.session(), &self.node, leaving, None))
    }

    /// Gives the lock back: calls [`Contender::leave`], and waits until the node is gone. Fails if the lock was lost or
    /// given back before, if the node is gone already, or if it cannot be deleted.
    pub(crate) async fn give_back(&self) -> Result<(), Error> {
        // The node of a lost lock is also deleted, because the node may still exist, and other contenders would wait
        // for it.
        let (loss, answer) = self.leave();
        match (loss, answer.await) {
            (Some(loss), _) => Err(Error::Lost(loss)),
            (None, Ok(())) => Ok(()),
            (None, Err(Failure::NoAuth(lacks))) => Err(Error::own_node_undeletable(self.node().path(), lacks)),
            (None, Err(failure)) => Err(self.holder_error(failure, "release")),
        }
    }

    /// Returns the error of a holder whose request failed. If a node or directory was missing, the error says that the
    /// hold is lost.
    pub(crate) fn holder_error(&self, failure: Failure, operation: &'static str) -> Error {
        match failure {
            Failure::NoNode => Error::Lost(Loss::Removed),
            Failure::Operation { failure, .. } => self.holder_error(*failure, operation),
            failure => Error::from_failure_under_lock(failure, operation, &self.user_path),
        }
    }
}

impl Drop for Contender {
    /// Removes all nodes of the contender, in the background. After [`Contender::leave`], only two kinds of nodes can
    /// still exist: orphans, which creates without an answer may have made, and a permit node whose create had no
    /// answer. In a forked process, removes nothing.
    fn drop(&mut self) {
        let trace = std::mem::take(self.trace.get_mut());
        if self.node.is_in_forked_process() {
            // Ending the trace would need mutexes that a thread of the parent process may have held at the fork.
            return std::mem::forget(trace);
        }
        // The trace of the hold ends before the node is removed.
        drop(trace);
        let (removals, mut creating) = self.node.mark_left_in_any_phase();
        self.session().store().forget_node(&self.node);
        for leaving in removals {
            // The reply is dropped, because the removal goes on in the background.
            drop(remove_node(self.session(), &self.node, leaving, creating.take()));
        }
    }
}

/// The time limit of one use of a node that this process keeps between uses. Dropping this value ends the limit.
pub(crate) struct UseLimit {
    node: Arc<Node>,
    end: Moment,
}

impl Drop for UseLimit {
    fn drop(&mut self) {
        self.node.change(|it| it.state.limits.remove_deadline(self.end));
    }
}

/// Waits until the node is lost. Removes the node if it may still exist: if a hold exceeded its limit, the lease ran
/// out while the session lives on, or another client's write was taken for a hand-off. If a hold exceeded its limit,
/// the removal waits for a margin, in which the holder can stop its work. Ends without a removal if the owner leaves
/// the node first.
async fn remove_after_loss(node: Arc<Node>, session: Arc<dyn Session>) {
    if matches!(
        node.until_lost(|pause| session.sleep(pause)).await,
        Loss::SessionOver(_) | Loss::GivenBack | Loss::Removed
    ) {
        return;
    }
    let slice = session.timeout() / 20;
    while let Some(left) = node.time_until_given_up().filter(|left| !left.is_zero() && !node.is_left()) {
        // The task sleeps in slices, because timers stand still while the machine is suspended. So after a suspension,
        // the removal is late by one slice at most.
        session.sleep(left.min(slice)).await;
    }
    while !node.is_left() {
        let path = node.path();
        let answer = remove_node(&session, &node, NodeRemoval::by_plain_delete(path.clone()), None).await;
        // A downgrade may have replaced the node meanwhile. If so, the next round of the loop removes the new node.
        if node.path_if_in_place().as_ref() == Some(&path) {
            return log_removal_failure(answer);
        }
        session.sleep(slice).await;
    }
}

/// Derefs to the contender's node, for the node's name, directory and loss.
impl Deref for Contender {
    type Target = Arc<Node>;

    fn deref(&self) -> &Arc<Node> {
        &self.node
    }
}

/// Polls `work` while `loss` returns `None`. Returns the output of `work` only if `loss` still returns `None` after the
/// last poll. The future `lost`, which is ready at a loss, wakes the caller's task and also ends the wait.
///
/// After the process was paused, a reply that `work` awaits may wake the task before `lost` does, although the lease
/// has run out. So `loss`, which reads the clock, is called before each poll of `work`, and once more when `work` is
/// done.
pub(crate) async fn while_held<L, F: Future>(
    loss: impl Fn() -> Option<L>,
    lost: impl Future<Output = L>,
    work: F,
) -> Result<F::Output, L> {
    let (mut lost, mut work) = (pin!(lost), pin!(work));
    let until_lost = poll_fn(|context| {
        if let Some(loss) = loss() {
            return Poll::Ready(Err(loss));
        }
        if let Poll::Ready(loss) = lost.as_mut().poll(context) {
            return Poll::Ready(Err(loss));
        }
        work.as_mut().poll(context).map(|output| loss().map_or(Ok(output), Err))
    });
    until_lost.await
}

/// The data and the version of a node. Returned by [`Hold::read_node`](crate::Hold::read_node).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeData {
    /// The node's data.
    pub data: Vec<u8>,
    /// The node's version, which counts the writes to its data, for
    /// [`Transaction::set_version`](crate::Transaction::set_version).
    pub version: i32,
    pub(crate) czxid: i64,
}

impl NodeData {
    pub(crate) fn new((data, stat): (Vec<u8>, Stat)) -> NodeData {
        NodeData { data, version: stat.version, czxid: stat.czxid }
    }
}
