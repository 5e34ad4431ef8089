//! How a waiter asks for nodes that are only kept: it sets the data of the lock's directory, as they are.
//!
//! A process that keeps a node has armed a watch on the directory's data before it created the node. So a change of the
//! data reports to all of them at once.

use std::sync::Arc;

use crate::session::contract::Session;
use crate::session::request::{Failure, Operation, Stat};
use crate::session::retry;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::telemetry::log::tell;

/// Asks for every node in the directory that is only kept. The first request is on its way when this returns.
///
/// `seen` is what a listing showed of the directory together with such a node. A process armed its watch before it
/// created its node. So if the directory has changed since the listing, that process was asked already.
pub(crate) fn ask(directory: &Arc<str>, asking: &Arc<Asking>, session: &Arc<dyn Session>, seen: Option<Stat>) {
    let first = seen.filter(|stat| stat.data_length == 0).map(|stat| set(session, directory, Vec::new(), stat.version));
    let (directory, asking, session) = (Arc::clone(directory), Arc::clone(asking), Arc::clone(session));
    let task = Arc::clone(&session);
    task.spawn(Box::pin(async move {
        let answer = match first {
            Some(first) => first.await,
            None => Err(Failure::Unknown(String::new())),
        };
        let answer = match answer {
            Err(Failure::Unknown(_)) => ask_as_it_is(&session, &directory, seen.map(|stat| stat.version)).await,
            answer => answer,
        };
        match answer {
            Ok(()) | Err(Failure::NoNode | Failure::Over(_)) => {}
            Err(failure) => asking.refused(&directory, &failure),
        }
    }));
}

/// Reads the directory's data, and sets the same data.
pub(crate) async fn ask_as_it_is(
    session: &Arc<dyn Session>,
    directory: &str,
    seen: Option<i32>,
) -> Result<(), Failure> {
    let ask = || async {
        let (data, stat) = session.data(directory).await?;
        if seen.is_some_and(|seen| seen != stat.version) {
            return Ok(());
        }
        set(session, directory, data, stat.version).await
    };
    retry::until_known(session, ask).await
}

/// Sets the directory's data if it has this version. If it has another one by now, the nodes were asked for already.
fn set(
    session: &Arc<dyn Session>,
    directory: &str,
    data: Vec<u8>,
    version: i32,
) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
    let set = [Operation::Set { path: directory.to_owned(), data, version: Some(version) }];
    let reply = session.transact(&set);
    async move {
        match reply.await {
            Ok(_) => Ok(()),
            Err(Failure::Operation { failure, .. }) => match *failure {
                Failure::BadVersion => Ok(()),
                failure => Err(failure),
            },
            Err(failure) => Err(failure),
        }
    }
}

/// Whether asking was refused before.
#[derive(Default)]
pub(crate) struct Asking(AtomicBool);

impl Asking {
    /// Reports a refusal, once for each handle.
    fn refused(&self, path: &str, failure: &Failure) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tell!(WARN, path, %failure, "cannot ask for a lock that is only kept: waiting until it was idle for long, or its process looks at the queue");
        }
    }
}
