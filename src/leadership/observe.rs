//! Looking who leads, once or for good, without disturbing a candidate; knows no campaign.
//!
//! An observer watches the leader's node, as the first candidate behind it does, and no other. When there is no leader it
//! watches the children of the directory, until the first candidate comes. So candidates that come and go in the queue
//! wake no observer, and an observer wakes no candidate.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use futures_util::{StreamExt, stream};

use crate::acquisition::request::Handle;
use crate::call::{self, Call};
use crate::error::error::Error;
use crate::leadership::leader::{Leader, leading};
use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::session::contract::{Coordinator, Session, SessionSlot};
use crate::session::existence;
use crate::session::request::{Ending, Event, Failure, Watch};
use crate::session::retry;
use crate::session::second_look::{self, SecondLook, check};
use crate::sync::Mutex;

/// How long to wait before the next look after a refusal, or after a request that could not be sent.
const PAUSE: Duration = Duration::from_secs(1);

/// How many bytes a node's name has at most.
const NAME_BYTES: usize = 128;

/// Who leads now.
pub(crate) fn leader(handle: &Arc<Handle>) -> Call<Option<Leader>> {
    let handle = Arc::clone(handle);
    Call::new(|timeout| async move {
        let look = async {
            let (path, dialect) = (&handle.path, handle.dialect);
            let seen = call::on_a_session(&handle.coordinator, |session| async move {
                loop {
                    let names = call::names(&session, path, false).await?;
                    let Some(first) = leading(dialect, &names) else { return Ok((names, None)) };
                    let node = format!("{path}/{}", first.name());
                    match call::answered(&session, || session.data(&node)).await {
                        Ok((data, stat)) => return Ok((names, Some(Leader::of(&first, &data, stat)))),
                        // It has left just now.
                        Err(Failure::NoNode) => {}
                        Err(failure) => return Err(failure),
                    }
                }
            });
            let (names, leader) = seen.await.map_err(|failure| refused(failure, path))?;
            handle.check_for_foreign(&names)?;
            Ok(leader)
        };
        call::in_time(&handle.coordinator, timeout, look).await
    })
}

fn refused(failure: Failure, path: &str) -> Error {
    Error::from_failure(failure, "read the leader of", path)
}

/// The leaders, as they change. Made by [`Leadership::changes`](crate::Leadership::changes).
///
/// It is also a [`Stream`] of what [`next`](Self::next) gives, for the combinators of `futures` and `tokio-stream`. The
/// watch is taken back when this is dropped. Nothing is sent while nobody polls it.
pub struct LeaderChanges {
    path: Arc<str>,
    /// The mutex is never contended: it makes this `Sync`.
    changes: Mutex<Changes>,
}

type Changes = Pin<Box<dyn Stream<Item = Result<Option<Leader>, Error>> + Send>>;

impl LeaderChanges {
    pub(crate) fn new(handle: &Arc<Handle>) -> LeaderChanges {
        let observer =
            Observer { handle: Arc::clone(handle), session_slot: None, change: None, told: None, ghosts: Vec::new() };
        let changes =
            stream::unfold(observer, |mut observer| async { Some((observer.next().await?, observer)) }).fuse();
        LeaderChanges { path: Arc::clone(&handle.path), changes: Mutex::new(Box::pin(changes)) }
    }

    /// Waits for the next leader. The first call gives the present one. `None` in it says that nobody leads.
    ///
    /// Leaders that came and went between two calls are passed over, but never the newest. A lost connection, or the end of
    /// this client's session, is no news: what was missed is told when the connection is back. An error says, once, that
    /// the directory cannot be watched just now.
    ///
    /// The stream ends with `None` once the coordinator was closed.
    ///
    /// # Cancel safety
    /// No change is lost by dropping the future.
    pub async fn next(&mut self) -> Option<Result<Option<Leader>, Error>> {
        StreamExt::next(self).await
    }
}

impl Stream for LeaderChanges {
    type Item = Result<Option<Leader>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.changes.get_mut().as_mut().poll_next(context)
    }
}

impl fmt::Debug for LeaderChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderChanges").field("path", &self.path).finish_non_exhaustive()
    }
}

struct Observer {
    handle: Arc<Handle>,
    session_slot: Option<SessionSlot>,
    /// Ends when there may be another leader.
    change: Option<Change>,
    /// What was told last.
    told: Option<Told>,
    /// The names of candidates that have left, and that the server still shows.
    ghosts: Vec<String>,
}

type Change = Pin<Box<dyn Future<Output = SeenLeader> + Send>>;

/// What has ended the wait for another leader.
enum SeenLeader {
    Event(Event),
    /// No event has told that this candidate has left.
    Missed(String),
}

#[derive(PartialEq, Eq)]
enum Told {
    Leader(Option<i64>),
    Error(String),
}

impl Observer {
    async fn next(&mut self) -> Option<Result<Option<Leader>, Error>> {
        loop {
            if let Some(change) = &mut self.change {
                let seen = change.await;
                self.change = None;
                match seen {
                    SeenLeader::Event(Event::Over) => self.session_is_over().await,
                    SeenLeader::Event(_) => {}
                    SeenLeader::Missed(name) => self.ghosts.push(name),
                }
            }
            let seen = match self.session().await {
                Ok(session) => look_and_watch(&session, &self.handle, &mut self.ghosts).await,
                Err(failure) => Err(failure),
            };
            let (news, told) = match seen {
                Ok((news, change)) => {
                    self.change = Some(change);
                    let told = match &news {
                        Ok(leader) => Told::Leader(leader.as_ref().map(|leader| leader.term)),
                        Err(error) => Told::Error(error.to_string()),
                    };
                    (news, told)
                }
                Err(Failure::Over(Ending::Closed | Ending::AuthFailed)) => return None,
                Err(Failure::Over(_)) => {
                    self.session_is_over().await;
                    continue;
                }
                Err(failure) => {
                    self.change = Some(pause(&self.handle));
                    match refused(failure, &self.handle.path) {
                        Error::Unreachable(_) | Error::OutcomeUnknown { .. } => continue,
                        error => {
                            let told = Told::Error(error.to_string());
                            (Err(error), told)
                        }
                    }
                }
            };
            if self.told.as_ref() != Some(&told) {
                self.told = Some(told);
                return Some(news);
            }
        }
    }

    /// A session that is alive, and shows what the last one did.
    async fn session(&mut self) -> Result<Arc<dyn Session>, Failure> {
        if let Some(session_slot) = &self.session_slot {
            return Ok(Arc::clone(session_slot.session()));
        }
        let path = &self.handle.path;
        let session_slot = self.handle.coordinator.session_slot(path.len() + NAME_BYTES).await?;
        let session = Arc::clone(session_slot.session());
        // Another server may lag behind what the last one has shown us.
        if self.told.is_some() {
            retry::until_known(&session, || session.sync(path)).await?;
        }
        self.session_slot = Some(session_slot);
        Ok(session)
    }

    async fn session_is_over(&mut self) {
        if let Some(session_slot) = self.session_slot.take() {
            call::is_known_to_be_over(session_slot.session()).await;
        }
    }
}

fn pause(handle: &Handle) -> Change {
    let pause = handle.coordinator.sleep(PAUSE);
    Box::pin(async move {
        pause.await;
        SeenLeader::Event(Event::Changed)
    })
}

type LeaderNews = Result<Option<Leader>, Error>;

/// The leader among these names, but for those that have left.
fn leading_but(ghosts: &[String], dialect: Dialect, names: &[String]) -> Option<Contender> {
    let there: Vec<String> = names.iter().filter(|name| !ghosts.contains(name)).cloned().collect();
    leading(dialect, &there)
}

/// Waits until a candidate has come, also if no event tells of it.
fn somebody_comes(
    session: Arc<dyn Session>,
    handle: &Handle,
    ghosts: Vec<String>,
    mut change: Watch,
) -> impl Future<Output = SeenLeader> + Send + use<> {
    let (path, dialect) = (Arc::clone(&handle.path), handle.dialect);
    async move {
        let mut look = SecondLook::new(&session);
        loop {
            tokio::select! {
                biased;
                event = &mut change => return SeenLeader::Event(event),
                () = look.pause() => {}
            }
            let names = session.children(&path).await;
            if !names.is_ok_and(|names| leading_but(&ghosts, dialect, &names).is_none()) {
                return SeenLeader::Event(Event::Changed);
            }
        }
    }
}

/// Waits until the candidate that leads has left, also if no event tells of it.
async fn it_leaves(session: Arc<dyn Session>, node: String, name: String, change: Watch) -> SeenLeader {
    let mut look = SecondLook::new(&session);
    tokio::select! {
        biased;
        event = change => return SeenLeader::Event(event),
        _ = look.finds(|| vec![check(node.clone(), None)]) => {}
    }
    second_look::report(&session, node, None);
    SeenLeader::Missed(name)
}

/// Who leads, and what ends when that may have changed.
async fn look_and_watch(
    session: &Arc<dyn Session>,
    handle: &Handle,
    ghosts: &mut Vec<String>,
) -> Result<(LeaderNews, Change), Failure> {
    let (path, dialect) = (&handle.path, handle.dialect);
    loop {
        let names = match retry::until_known(session, || session.children(path)).await {
            Ok(names) => names,
            Err(Failure::NoNode) => {
                let (session, path) = (Arc::clone(session), Arc::clone(path));
                let made = async move {
                    SeenLeader::Event(
                        existence::possible(&session, &path).await.map_or(Event::Over, |()| Event::Changed),
                    )
                };
                return Ok((Ok(None), Box::pin(made)));
            }
            Err(failure) => return Err(failure),
        };
        if let Err(error) = handle.check_for_foreign(&names) {
            return Ok((Err(error), pause(handle)));
        }
        ghosts.retain(|ghost| names.contains(ghost));
        let Some(first) = leading_but(ghosts, dialect, &names) else {
            match retry::until_known(session, || session.watch_children(path)).await {
                // A candidate has come just now.
                Ok((names, _)) if leading_but(ghosts, dialect, &names).is_some() => continue,
                Ok((_, change)) => {
                    let change = somebody_comes(Arc::clone(session), handle, ghosts.clone(), change);
                    return Ok((Ok(None), Box::pin(change)));
                }
                Err(Failure::NoNode) => continue,
                Err(failure) => return Err(failure),
            }
        };
        let node = format!("{path}/{}", first.name());
        let looked = retry::until_known(session, || {
            // The watch is sent first: whoever leaves between the two requests is told of, too.
            let (change, data) = (session.watch(&node), session.data(&node));
            Box::pin(async move { Ok((change.await?, data.await?)) })
        });
        match looked.await {
            Ok((change, (data, stat))) => {
                let change = it_leaves(Arc::clone(session), node, first.name().to_owned(), change);
                return Ok((Ok(Some(Leader::of(&first, &data, stat))), Box::pin(change)));
            }
            // It has left just now.
            Err(Failure::NoNode) => {}
            Err(failure) => return Err(failure),
        }
    }
}
