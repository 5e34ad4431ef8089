//! How an own node is removed, by as many requests as that takes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::queue::contender::Owner;
use crate::session::contract::Session;
use crate::session::errand::errand;
use crate::session::request::{Created, Failure, Operation, Reply};
use crate::session::retry::{Tries, none_without_directory, repeated, synced};
use crate::telemetry::log::tell;
use crate::telemetry::meter::Present;
use crate::telemetry::names;

/// A node on its way out: a future of its removal, which goes on in the background if this is not polled, or is dropped.
pub(crate) struct Leaving {
    work: Option<Reply<()>>,
    session: Arc<dyn Session>,
    told: Option<Reply<()>>,
}

impl Leaving {
    pub(super) fn new(
        session: Arc<dyn Session>,
        work: impl Future<Output = Result<(), Failure>> + Send + 'static,
    ) -> Leaving {
        Leaving { work: Some(Box::pin(work)), session, told: None }
    }
}

impl Future for Leaving {
    type Output = Result<(), Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(work) = self.work.take() {
            self.told = Some(errand(&self.session, work, unheard));
        }
        self.told.as_mut().map_or(Poll::Ready(Ok(())), |told| told.as_mut().poll(context))
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.session.spawn(Box::pin(async move { unheard(work.await) }));
        }
    }
}

fn unheard(answer: Result<(), Failure>) {
    match answer {
        Ok(()) => {}
        Err(failure @ (Failure::NoNode | Failure::Over(_))) => {
            tell!(DEBUG, %failure, "a lock node was not there to be removed");
        }
        Err(failure) => {
            tell!(ERROR, %failure, "a lock node could not be removed and stays until its session ends");
        }
    }
}

/// A writer's release. A waiter that watches the node sees its data change, and so knows that the node was held and
/// released.
pub(super) fn hand_off(session: &Arc<dyn Session>, path: &str) -> Reply<()> {
    let released = session.transact(&[
        Operation::Set { path: path.to_owned(), data: Vec::new(), version: None },
        Operation::Delete { path: path.to_owned(), version: None },
    ]);
    Box::pin(async move { released.await.map(drop) })
}

/// Repeats the removal until it is certain. [`Failure::NoNode`] says that the node had gone before we asked.
pub(super) async fn remove(
    session: Arc<dyn Session>,
    path: String,
    mut reply: Reply<()>,
    mut signal: bool,
    restart: Option<Arc<str>>,
) -> Result<(), Failure> {
    let mut tries = Tries::ENDLESS;
    loop {
        let (index, failure) = match reply.await {
            Ok(()) => break,
            Err(Failure::Operation { index, failure }) => (index, *failure),
            Err(failure) => (0, failure),
        };
        reply = match failure {
            Failure::NoNode if tries.were_made() => break,
            Failure::Unknown(_) => {
                tries.pause(&session).await?;
                if signal { hand_off(&session, &path) } else { session.delete(&path) }
            }
            // A server that refuses the signal may still allow a plain delete, which waiters also see. A refused delete is about
            // this directory alone.
            Failure::NoAuth(_) | Failure::Refused(_) if signal && index == 0 => {
                signal = false;
                session.upkeep().signal_refused();
                session.delete(&path)
            }
            failure => return Err(failure),
        };
    }
    if let Some(directory) = restart {
        // Refused while any contender is queued. When it succeeds, the sequence starts again from 0.
        let _refused_unless_empty = session.delete(&directory).await;
    }
    Ok(())
}

pub(crate) async fn removed_in_background(session: Arc<dyn Session>, path: String, reply: Reply<()>) {
    let _pending = Present::new(names::REMOVALS_PENDING, None);
    match remove(session, path.clone(), reply, false, None).await {
        Ok(()) | Err(Failure::NoNode | Failure::Over(_)) => {}
        Err(failure) => {
            tell!(ERROR, path, %failure, "a lock node could not be removed and stays until its session ends")
        }
    }
}

/// Removes the node of an acquisition that was dropped while its create was under way.
pub(super) async fn remove_when_created(
    session: Arc<dyn Session>,
    directory: Arc<str>,
    owner: Owner,
    reply: Reply<Created>,
    unsure: bool,
) {
    let pending = Present::new(names::REMOVALS_PENDING, None);
    match reply.await {
        Ok(created) => {
            let deletion = session.delete(&created.path);
            drop(pending);
            removed_in_background(Arc::clone(&session), created.path, deletion).await;
        }
        // A server that errs can deny the directory of a node that it has made.
        Err(Failure::Unknown(_) | Failure::NoNode) => {
            drop(pending);
            return remove_all_of(session, directory, owner).await;
        }
        Err(_) => drop(pending),
    }
    if unsure {
        remove_all_of(session, directory, owner).await;
    }
}

/// Removes every node of this owner, also a node whose create took effect although its answer was lost. The sync is a
/// later write of this session, so the lost create cannot take effect after it.
pub(super) async fn remove_all_of(session: Arc<dyn Session>, directory: Arc<str>, owner: Owner) {
    let listing = repeated(&session, Tries::ENDLESS, || synced(&session, &directory, |it, path| it.children(path)));
    let children = match listing.await.or_else(none_without_directory) {
        Ok(children) => children,
        Err(Failure::Over(_)) => return,
        Err(failure) => {
            tell!(ERROR, %directory, %owner, %failure, "a node that a lost answer may have left cannot be looked for");
            return;
        }
    };
    for child in children.iter().filter(|child| owner.owns(child)) {
        let path = format!("{directory}/{child}");
        let reply = session.delete(&path);
        removed_in_background(Arc::clone(&session), path, reply).await;
    }
}
