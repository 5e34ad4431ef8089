//! The directory of a lock: its creation, and the write to its data by which a waiter requests that other processes
//! give up the nodes that they keep between uses.

use std::sync::Arc;

use crate::session::contract::Session;
use crate::session::request::{Failure, Kind, Operation, Stat, parent_path};
use crate::session::retry::{self, repeat_until_known};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::telemetry::log::emit;

/// Returns the paths of all directories on the way to `path`, from the outermost (below `/`) to `path` itself.
fn ancestors_and_self(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').skip(1).map(|(at, _)| &path[..at]).chain(Some(path))
}

/// Creates what is missing of three things: the path at the end of the connect string, the parents of the directory,
/// and the directory at `path`. The parents are persistent nodes. The directory itself is a container, which servers
/// delete after it was empty for a while. With `has_to_stay`, it is a persistent node. Calls `made` for each directory
/// that this function created, except the path of the connect string.
pub(crate) async fn make_directories(
    session: &Arc<dyn Session>,
    path: &str,
    has_to_stay: bool,
    made: impl Fn(&str),
) -> Result<(), Failure> {
    let mut denied = None;
    for step in ancestors_and_self(path) {
        let kind = if step == path && !has_to_stay { Kind::Container } else { Kind::Persistent };
        let create = || repeat_until_known(session, || session.create(step, &[], kind));
        let created = match create().await {
            Err(Failure::NoNode) if parent_path(step) == "/" => {
                repeat_until_known(session, || session.make_root()).await?;
                create().await
            }
            created => created,
        };
        match created {
            Ok(_) => made(step),
            Err(Failure::NodeExists) => {}
            // This client is not allowed to create this directory, which may exist already. So the error is returned
            // only if a later create fails because its parent is missing.
            Err(failure @ Failure::NoAuth(_)) if step != path => denied = denied.or(Some(failure)),
            Err(Failure::NoNode) => return Err(denied.unwrap_or(Failure::NoNode)),
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// Requests that processes give up the nodes that they keep between uses in this directory, by a write to the
/// directory's data. If `seen` says that the directory has no data, the write is sent before this function returns, and
/// otherwise after a read of the data.
///
/// `seen` is the stat of the directory in the listing that showed a kept node. A process watches the directory before
/// it creates a node to keep. So a write after that listing notifies the process. If another client has written since
/// the listing, that write has notified the process, and the servers refuse our write because of the directory's
/// version.
///
/// If the write fails, logs a warning, unless one was logged before (`has_warned`), or the directory is gone, or the
/// session is over.
pub(crate) fn ask_keepers_in_background(
    directory: &Arc<str>,
    has_warned: &Arc<AtomicBool>,
    session: &Arc<dyn Session>,
    seen: Option<Stat>,
) {
    let first = seen
        .filter(|stat| stat.data_length == 0)
        .map(|stat| write_directory_data(session, directory, Vec::new(), stat.version));
    let (path, has_warned, session) = (Arc::clone(directory), Arc::clone(has_warned), Arc::clone(session));
    let task = Arc::clone(&session);
    task.spawn(Box::pin(async move {
        let answer = match first {
            Some(first) => first.await,
            None => Err(Failure::Unknown(String::new())),
        };
        let answer = match answer {
            Err(Failure::Unknown(_)) => fire_directory_watches(&session, &path, seen).await,
            answer => answer,
        };
        match answer {
            Ok(()) | Err(Failure::NoNode | Failure::Over(_)) => {}
            Err(failure) if !has_warned.swap(true, Ordering::Relaxed) => {
                emit!(WARN, path = &*path, %failure, "cannot ask for a lock that is only kept: waiting until it was idle for long, or its process looks at the queue");
            }
            Err(_) => {}
        }
    }));
}

/// Reads the directory's data, and writes the same data again, which fires the watches of the processes that keep
/// nodes. Writes nothing if `seen` is given and the directory has another version. Also writes nothing if the directory is
/// another one, which was created after `seen`, because its nodes are not the ones that were to be given up.
pub(crate) async fn fire_directory_watches(
    session: &Arc<dyn Session>,
    directory: &str,
    seen: Option<Stat>,
) -> Result<(), Failure> {
    let ask = || async {
        let (data, stat) = session.data(directory).await?;
        if seen.is_some_and(|seen| (seen.czxid, seen.version) != (stat.czxid, stat.version)) {
            return Ok(());
        }
        write_directory_data(session, directory, data, stat.version).await
    };
    retry::repeat_until_known(session, ask).await
}

/// Writes the directory's data if the directory has this version. Sends the write before it returns. Also succeeds if
/// the directory has another version, because then another client's write has notified the same processes.
fn write_directory_data(
    session: &Arc<dyn Session>,
    directory: &str,
    data: Vec<u8>,
    version: i32,
) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
    let set = [Operation::Set { path: directory.to_owned(), data, version: Some(version) }];
    let reply = session.transact(&set);
    async move {
        match reply.await {
            Err(Failure::Operation { failure, .. }) if *failure == Failure::BadVersion => Ok(()),
            Err(Failure::Operation { failure, .. }) => Err(*failure),
            answer => answer.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_lead_to_the_path() {
        assert_eq!(ancestors_and_self("/a/b/c").collect::<Vec<_>>(), ["/a", "/a/b", "/a/b/c"]);
        assert_eq!(ancestors_and_self("/a").collect::<Vec<_>>(), ["/a"]);
    }
}
