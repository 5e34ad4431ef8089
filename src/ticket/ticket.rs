//! One place in a queue, from asking for it until it is surely gone; knows nothing of turns.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use crate::queue::contender::{Contender, Owner};
use crate::queue::local::{Key, Parting};
use crate::queue::mode::{self, Mode};
use crate::session::books::Book;
use crate::session::contract::{Berth, Session};
use crate::session::listing::{self, Names};
use crate::session::node::{Loss, Tenure};
use crate::session::request::{Chore, Created, Failure, Kind, Operation, Outcome, Reply, Stat};
use crate::telemetry::meter;
use crate::ticket::directory;

/// How often an answer may be lost before that is the answer: a broken server must not be asked for ever.
pub(crate) const UNKNOWN_TRIES: u32 = 64;

/// What tells the places of this process apart.
static IDS: AtomicU64 = AtomicU64::new(0);

/// A node in a lock directory, or one that is being created there. Dropping it removes the node, however far it got.
#[derive(Debug)]
pub(crate) struct Place {
    berth: Berth,
    directory: Arc<str>,
    owner: Owner,
    book: Arc<Book>,
    node: Mutex<Node>,
}

#[derive(Debug)]
struct Node {
    step: Step,
    /// On which connection the node was asked for.
    connection: u64,
    /// A create's answer was lost, so there may be a node that nobody saw.
    unsure: bool,
    /// The directories that we made to get here, the outermost first.
    made: Vec<String>,
}

/// A node of ours that is in the directory.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) contender: Contender,
    /// The number of the transaction that created the first node of this place: ensemble-wide, rising, never reset.
    pub(crate) czxid: i64,
    pub(crate) tenure: Arc<Tenure>,
    number: u64,
    /// What no other place of this process has.
    id: u64,
}

impl Standing {
    pub(crate) fn new(contender: Contender, czxid: i64, tenure: Arc<Tenure>, number: u64, id: u64) -> Standing {
        Standing { contender, czxid, tenure, number, id }
    }

    pub(crate) fn key(&self) -> Key {
        Key { number: self.contender.sequence(), id: self.id }
    }
}

enum Step {
    /// Nothing was asked for, or what was asked for was refused.
    Absent,
    Coming(Reply<Created>),
    Standing(Arc<Standing>),
    /// Being deleted, or deleted.
    Left,
}

impl Place {
    pub(crate) fn new(berth: Berth, directory: Arc<str>, owner: Owner) -> Place {
        let book = berth.session().lease().books().of(&directory, owner.dialect());
        let node = Mutex::new(Node { step: Step::Absent, connection: 0, unsure: false, made: Vec::new() });
        Place { berth, directory, owner, book, node }
    }

    /// What its session knows of the queue.
    pub(crate) fn book(&self) -> &Arc<Book> {
        &self.book
    }

    pub(crate) fn session(&self) -> &Arc<dyn Session> {
        self.berth.session()
    }

    /// Asks for a node, and returns when the answer is there.
    ///
    /// # Cancel safety
    /// Dropping the future keeps the request; dropping the place removes what it makes.
    pub(crate) async fn enter(&self, mode: Mode, data: &[u8]) -> Result<(), Failure> {
        self.ask_for_node(mode, data);
        self.entered().await
    }

    /// As [`Place::enter`], with a look at the directory as it is once the node is there: both requests are on their
    /// way before either is answered.
    pub(crate) async fn enter_and_list(&self, mode: Mode, data: &[u8]) -> Result<Result<Names, Failure>, Failure> {
        self.ask_for_node(mode, data);
        // It is answered after the create, so waiting for it first wakes the task once, and not twice.
        let names = self.list().await;
        self.entered().await?;
        Ok(names)
    }

    fn ask_for_node(&self, mode: Mode, data: &[u8]) {
        let prefix = self.child(&self.owner.prefix(mode));
        let connection = self.book.connection();
        let reply = self.session().create(&prefix, data, Kind::EphemeralSequential);
        let mut node = self.node();
        (node.step, node.connection) = (Step::Coming(reply), connection);
    }

    async fn entered(&self) -> Result<(), Failure> {
        let answer = poll_fn(|context| match &mut self.node().step {
            Step::Coming(reply) => reply.as_mut().poll(context),
            _ => Poll::Ready(Err(Failure::Unknown("no node was asked for".to_owned()))),
        })
        .await;
        let mut node = self.node();
        node.step = Step::Absent;
        match answer {
            Ok(created) => {
                drop(node);
                self.stand_at(created)
            }
            Err(failure) => {
                node.unsure |= matches!(failure, Failure::Unknown(_));
                Err(failure)
            }
        }
    }

    /// Makes the lock directory, below ordinary nodes: a container, which the server reaps when it has been empty for a
    /// while, unless it has to stay.
    pub(crate) async fn make_directory(&self, has_to_stay: bool) -> Result<(), Failure> {
        let session = self.session();
        let mut denied = false;
        for step in directory::steps(&self.directory) {
            let kind = if step == &*self.directory && !has_to_stay { Kind::Container } else { Kind::Persistent };
            match settled(session, || session.create(step, &[], kind)).await {
                Ok(_) => self.node().made.push(step.to_owned()),
                Err(Failure::NodeExists) => {}
                // We may not create up there, but what is needed may be there already.
                Err(Failure::NoAuth) if step != &*self.directory => denied = true,
                // It was not.
                Err(Failure::NoNode) if denied => return Err(Failure::NoAuth),
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Removes the directories that we made and, by their ACL, cannot use, or others would fail on them: whether there
    /// was one. Nobody else can have put anything into one that is removed, since only an empty one is.
    pub(crate) async fn unmake_directory(&self) -> bool {
        let (session, made) = (self.session(), std::mem::take(&mut self.node().made));
        let mut is_removed = false;
        for step in made.iter().rev() {
            is_removed |= settled(session, || session.delete(step)).await.is_ok();
        }
        is_removed
    }

    /// After a lost answer: looks for a node that nobody saw, and takes it for ours if it is there.
    ///
    /// Without the sync a lagging server could hide it, and a second one would queue behind it for ever.
    pub(crate) async fn recover(&self) -> Result<bool, Failure> {
        let session = self.session();
        let children = settled(session, || synced(session, &self.directory, |it, path| it.children(path)));
        let children = children.await.or_else(none_without_directory)?;
        for child in children.iter().filter(|child| self.owner.owns(child)) {
            let path = self.child(child);
            match settled(session, || session.data(&path)).await {
                Ok((_, stat)) if stat.ephemeral_owner == session.id() => {
                    meter::recovered();
                    tracing::info!(path = %self.directory, node = %child, "the answer to a create was lost, and its node found");
                    self.stand_at(Created { path, czxid: stat.czxid, ephemeral_owner: stat.ephemeral_owner })?;
                    return Ok(true);
                }
                Ok(_) | Err(Failure::NoNode) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(false)
    }

    /// The second look after a lost answer: a listing that follows a later write of ours shows every node that the
    /// lost request made. Only the one we stand at may stay.
    pub(crate) fn remove_strays(&self, children: &[String]) {
        if !self.is_unsure() {
            return;
        }
        let Some(standing) = self.standing() else {
            return;
        };
        for stray in children.iter().filter(|child| self.owner.owns(child)) {
            if stray != standing.contender.name() {
                let (session, path) = (self.session(), self.child(stray));
                let reply = session.delete(&path);
                session.spawn(Box::pin(removed_in_background(Arc::clone(session), path, reply)));
            }
        }
    }

    /// Whether there may be a node of ours that nobody saw.
    pub(crate) fn is_unsure(&self) -> bool {
        self.node().unsure
    }

    /// The children of the directory.
    pub(crate) fn list(&self) -> Reply<Names> {
        listing::list(self.session(), &self.directory)
    }

    pub(crate) fn child(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }

    /// Deletes the node. The request is on its way when this returns.
    pub(crate) fn leave(&self) -> Leaving {
        let session = Arc::clone(self.session());
        let Some(standing) = self.take_standing() else {
            let nothing = async { Err(Failure::NoNode) };
            return Leaving { work: Some(Box::pin(nothing)), session };
        };
        let path = self.child(standing.contender.name());
        // Looked at in any case: it is told if it has been lost.
        let loss = standing.tenure.loss(session.lease());
        let held_alone = standing.tenure.is_holding() && standing.contender.mode() == Mode::Write;
        let may_signal = self.owner.dialect().hands_off() && !session.lease().is_signal_refused();
        let signal = may_signal && held_alone && loss != Some(Loss::Interfered);
        let parting = match loss {
            Some(_) => Parting::Lost,
            None if held_alone => Parting::LetGo,
            None => Parting::Plain,
        };
        standing.tenure.left();
        session.lease().roll().strike(standing.number);
        session.lease().holds().end(standing.czxid);
        let reply = if signal { hand_off(&session, &path) } else { session.delete(&path) };
        // The next local holder may write before our removal commits. It must not overtake a transaction of ours that is
        // still unanswered. What it reads on this session comes after our removal, so it sees what we wrote.
        let is_settled = !standing.tenure.may_yet_write();
        if is_settled {
            self.book.left(&standing, parting);
        }
        let is_old = !(0..mode::RESTART_FROM).contains(&standing.contender.sequence());
        let is_old = is_old && !self.owner.dialect().keeps_directories();
        let restart = is_old.then(|| Arc::clone(&self.directory));
        let removal = remove(Arc::clone(&session), path, reply, signal, restart);
        let pending = meter::Removal::begin();
        let book = Arc::clone(&self.book);
        let work = async move {
            let answer = removal.await;
            drop(pending);
            if !is_settled {
                book.left(&standing, if answer.is_ok() { parting } else { Parting::Lost });
            }
            answer
        };
        Leaving { work: Some(Box::pin(work)), session }
    }

    /// Replaces a WRITE node by a READ node of the same number, in one transaction.
    pub(crate) async fn downgrade(&self, data: &[u8]) -> Result<(), Failure> {
        let Some(standing) = self.standing() else {
            return Err(Failure::NoNode);
        };
        let read = self.owner.name(Mode::Read, standing.contender.sequence());
        let (from, to) = (self.child(standing.contender.name()), self.child(&read));
        let Some(contender) = Contender::parse_as(&read, self.owner.dialect()) else {
            return Err(Failure::NoNode);
        };
        let swap = [
            Operation::Create { path: to.clone(), data: data.to_vec(), kind: Kind::Ephemeral },
            Operation::Delete { path: from.clone(), version: None },
        ];
        let session = self.session();
        // From here on either name may be ours; if this future is dropped, both are removed.
        self.node().unsure = true;
        standing.tenure.moving();
        let mut reply = session.transact(&swap);
        let mut tries = 0;
        loop {
            match reply.await {
                Ok(_) => break,
                Err(Failure::Unknown(_)) => {
                    before_next_try(session, &mut tries).await?;
                    reply = session.transact(&swap);
                }
                // An earlier try, whose answer was lost, did it.
                Err(Failure::Operation { failure, .. }) if *failure == Failure::NodeExists => break,
                Err(failure) => {
                    standing.tenure.moved(from);
                    return Err(failure);
                }
            }
        }
        standing.tenure.moved(to);
        let (czxid, tenure) = (standing.czxid, Arc::clone(&standing.tenure));
        let (number, id) = (standing.number, standing.id);
        session.lease().roll().watch(&standing.tenure);
        let standing = Arc::new(Standing::new(contender, czxid, tenure, number, id));
        let mut node = self.node();
        node.unsure = false;
        node.step = Step::Standing(Arc::clone(&standing));
        drop(node);
        self.book.downgraded(&standing);
        Ok(())
    }

    fn stand_at(&self, created: Created) -> Result<(), Failure> {
        let session = self.session();
        let name = created.path.rsplit('/').next().unwrap_or_default();
        if created.ephemeral_owner != session.id() {
            // The ensemble changed the session under us; nothing made under the old one is ours.
            return Err(Failure::Refused(format!("node {name} belongs to another session")));
        }
        let Some(contender) = Contender::parse_as(name, self.owner.dialect()) else {
            return Err(Failure::Refused(format!("the server named the node {name:?}, which is no contender's name")));
        };
        let tenure = Tenure::new(self.child(name), session.lease());
        let number = session.lease().roll().enter(&tenure);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let standing = Arc::new(Standing::new(contender, created.czxid, tenure, number, id));
        let mut node = self.node();
        node.step = Step::Standing(Arc::clone(&standing));
        let connection = node.connection;
        drop(node);
        self.book.entered(&standing, connection);
        Ok(())
    }

    /// Our node, once there is one.
    pub(crate) fn standing(&self) -> Option<Arc<Standing>> {
        match &self.node().step {
            Step::Standing(standing) => Some(Arc::clone(standing)),
            _ => None,
        }
    }

    fn take_standing(&self) -> Option<Arc<Standing>> {
        let mut node = self.node();
        match std::mem::replace(&mut node.step, Step::Left) {
            Step::Standing(standing) => Some(standing),
            other => {
                node.step = other;
                None
            }
        }
    }

    fn node(&self) -> MutexGuard<'_, Node> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let session = Arc::clone(self.berth.session());
        let (step, unsure) = {
            let mut node = self.node();
            match &node.step {
                Step::Standing(_) => (None, node.unsure),
                _ => (Some(std::mem::replace(&mut node.step, Step::Left)), node.unsure),
            }
        };
        let (directory, owner) = (Arc::clone(&self.directory), self.owner.clone());
        match step {
            // Dropping it lets it go on in the background.
            None => drop(self.leave()),
            Some(Step::Coming(reply)) => {
                session.clone().spawn(Box::pin(remove_when_created(session, directory, owner, reply, unsure)));
                return;
            }
            Some(_) => {}
        }
        if unsure {
            session.clone().spawn(Box::pin(remove_all_of(session, directory, owner)));
        }
    }
}

/// A node on its way out: a future of its removal. Dropping it lets the removal go on in the background.
pub(crate) struct Leaving {
    work: Option<Reply<()>>,
    session: Arc<dyn Session>,
}

impl Future for Leaving {
    type Output = Result<(), Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.work else {
            return Poll::Ready(Ok(()));
        };
        let answer = work.as_mut().poll(context);
        if answer.is_ready() {
            self.work = None;
        }
        answer
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            let chore: Chore = Box::pin(async move {
                match work.await {
                    Ok(()) => {}
                    Err(failure @ (Failure::NoNode | Failure::Over(_))) => {
                        tracing::debug!(%failure, "a lock node was not there to be removed");
                    }
                    Err(failure) => {
                        tracing::error!(%failure, "a lock node could not be removed and stays until its session ends");
                    }
                }
            });
            self.session.spawn(chore);
        }
    }
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Absent => f.write_str("Absent"),
            Step::Coming(_) => f.write_str("Coming"),
            Step::Standing(standing) => write!(f, "Standing({})", standing.contender),
            Step::Left => f.write_str("Left"),
        }
    }
}

/// A holder's release: whoever watches the node sees its data change, and knows that it was held and let go.
fn hand_off(session: &Arc<dyn Session>, path: &str) -> Reply<()> {
    nothing_of(session.transact(&[
        Operation::Set { path: path.to_owned(), data: Vec::new(), version: None },
        Operation::Delete { path: path.to_owned(), version: None },
    ]))
}

fn nothing_of(reply: Reply<Vec<Outcome>>) -> Reply<()> {
    Box::pin(async move { reply.await.map(drop) })
}

/// Repeats the removal until it is certain. [`Failure::NoNode`] says that the node had gone before we asked.
async fn remove(
    session: Arc<dyn Session>,
    path: String,
    mut reply: Reply<()>,
    mut signal: bool,
    restart: Option<Arc<str>>,
) -> Result<(), Failure> {
    let mut tries = 0;
    loop {
        let (index, failure) = match reply.await {
            Ok(()) => break,
            Err(Failure::Operation { index, failure }) => (index, *failure),
            Err(failure) => (0, failure),
        };
        reply = match failure {
            Failure::NoNode if tries > 0 => break,
            Failure::Unknown(_) => {
                before_next_try(&session, &mut tries).await?;
                if signal { hand_off(&session, &path) } else { session.delete(&path) }
            }
            // A server that refuses the signal may still allow a plain delete, which waiters also see. A refused delete is about
            // this directory alone.
            Failure::NoAuth | Failure::Refused(_) if signal && index == 0 => {
                signal = false;
                session.lease().signal_refused();
                session.delete(&path)
            }
            failure => return Err(failure),
        };
    }
    if let Some(directory) = restart {
        // Refused while anybody is queued; when it succeeds, the sequence starts again from 0.
        let _refused_unless_empty = session.delete(&directory).await;
    }
    Ok(())
}

async fn removed_in_background(session: Arc<dyn Session>, path: String, reply: Reply<()>) {
    let _pending = meter::Removal::begin();
    match remove(session, path.clone(), reply, false, None).await {
        Ok(()) | Err(Failure::NoNode | Failure::Over(_)) => {}
        Err(failure) => {
            tracing::error!(path, %failure, "a lock node could not be removed and stays until its session ends")
        }
    }
}

/// For an acquisition that was dropped while its create was under way.
async fn remove_when_created(
    session: Arc<dyn Session>,
    directory: Arc<str>,
    owner: Owner,
    reply: Reply<Created>,
    unsure: bool,
) {
    let pending = meter::Removal::begin();
    match reply.await {
        Ok(created) => {
            let deletion = session.delete(&created.path);
            drop(pending);
            removed_in_background(Arc::clone(&session), created.path, deletion).await;
        }
        Err(Failure::Unknown(_)) => {
            drop(pending);
            return remove_all_of(session, directory, owner).await;
        }
        Err(_) => drop(pending),
    }
    if unsure {
        remove_all_of(session, directory, owner).await;
    }
}

/// Removes every node of this owner, also one whose create took effect although its answer was lost: the lost request
/// cannot follow the sync any more, which is a write of ours.
async fn remove_all_of(session: Arc<dyn Session>, directory: Arc<str>, owner: Owner) {
    let listing = settled_at_last(&session, || synced(&session, &directory, |it, path| it.children(path)));
    let children = match listing.await.or_else(none_without_directory) {
        Ok(children) => children,
        Err(Failure::Over(_)) => return,
        Err(failure) => {
            tracing::error!(%directory, %owner, %failure, "a node that a lost answer may have left cannot be looked for");
            return;
        }
    };
    for child in children.iter().filter(|child| owner.owns(child)) {
        let path = format!("{directory}/{child}");
        let reply = session.delete(&path);
        removed_in_background(Arc::clone(&session), path, reply).await;
    }
}

/// Asks, and asks again after each reconnect until the outcome is known.
pub(crate) async fn settled<T, F>(session: &Arc<dyn Session>, ask: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    settled_within(UNKNOWN_TRIES, session, ask).await
}

/// As [`settled`], for as long as the session lives: nobody waits for it, and what it is about must not stay.
async fn settled_at_last<T>(session: &Arc<dyn Session>, ask: impl Fn() -> Reply<T>) -> Result<T, Failure> {
    settled_within(u32::MAX, session, ask).await
}

async fn settled_within<T, F>(most: u32, session: &Arc<dyn Session>, ask: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut tries = 0;
    loop {
        match ask().await {
            Err(Failure::Unknown(_)) if tries < most => before_next_try(session, &mut tries).await?,
            answer => return answer,
        }
    }
}

/// What `read` finds after a sync; both requests are on their way when this returns.
pub(crate) fn synced<T: 'static>(
    session: &Arc<dyn Session>,
    path: &str,
    read: fn(&dyn Session, &str) -> Reply<T>,
) -> Reply<T> {
    let (synced, read) = (session.sync(path), read(&**session, path));
    Box::pin(async move {
        synced.await?;
        read.await
    })
}

/// What is in a node, `None` if it does not exist; after a sync if it may not be older than this call.
pub(crate) async fn read(
    session: &Arc<dyn Session>,
    path: &str,
    is_synced: bool,
) -> Result<Option<(Vec<u8>, Stat)>, Failure> {
    let data = |session: &dyn Session, path: &str| session.data(path);
    let node = settled(session, || if is_synced { synced(session, path, data) } else { session.data(path) });
    match node.await {
        Ok(node) => Ok(Some(node)),
        Err(Failure::NoNode) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Waits for the connection, and longer and longer if the answers are lost again and again while it is there.
pub(crate) async fn before_next_try(session: &Arc<dyn Session>, tries: &mut u32) -> Result<(), Failure> {
    session.connected().await.map_err(Failure::Over)?;
    *tries = tries.saturating_add(1);
    if *tries > 3 {
        session.sleep(session.timeout() / 50 * (*tries - 3).min(12)).await;
    }
    Ok(())
}

pub(crate) fn none_without_directory(failure: Failure) -> Result<Vec<String>, Failure> {
    if failure == Failure::NoNode { Ok(Vec::new()) } else { Err(failure) }
}
