//! Reads the records of when jobs were last done.

use std::sync::Arc;

use crate::call;
use crate::queue::done::{self, Done};
use crate::session::contract::Session;
use crate::session::request::Failure;
use crate::session::retry;

/// What lies where a lock's record would lie.
pub(crate) enum Record {
    /// No node, or an empty one, as an operator may make it beforehand.
    None { is_there: bool },
    /// With the version of its node.
    Done(Done, i32),
    /// A node with other content.
    Foreign,
}

impl Record {
    /// What it says, and the version of its node.
    pub(crate) fn done(&self) -> Option<(&Done, i32)> {
        match self {
            Record::Done(done, version) => Some((done, *version)),
            Record::None { .. } | Record::Foreign => None,
        }
    }
}

/// Reads the record at `path`.
pub(crate) async fn at(session: &Arc<dyn Session>, path: &str) -> Result<Record, Failure> {
    let node = retry::data(session, path, false).await?;
    Ok(match node {
        None => Record::None { is_there: false },
        Some((data, _)) if data.is_empty() => Record::None { is_there: true },
        Some((data, stat)) => match done::read(&data, stat.mtime) {
            Some(last) => Record::Done(last, stat.version),
            None => Record::Foreign,
        },
    })
}

/// The record of the lock in this directory, for people to see: none if it may not be read, or says nothing.
pub(crate) async fn of(session: &Arc<dyn Session>, directory: &str) -> Result<Option<Done>, Failure> {
    let path = done::path_of(directory);
    match call::answered(session, || at(session, &path)).await {
        Ok(Record::Done(done, _)) => Ok(Some(done)),
        Ok(Record::None { .. } | Record::Foreign) | Err(Failure::NoAuth(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}
