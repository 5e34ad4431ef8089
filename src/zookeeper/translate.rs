//! Conversions between the client crate's types and this library's.
//!
//! After many errors of the client crate, the outcome of a request is unknown. This file maps such errors to
//! [`Failure::Unknown`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zookeeper_client as zk;

use crate::queue::metadata::LAST_WRITTEN;
use crate::session::request::{DeniedRight, Failure, Kind, NodeContents, Operation, Outcome, SessionEnd, Stat};
use crate::zookeeper::security::Acl;

pub(super) fn create_mode(kind: Kind) -> zk::CreateMode {
    match kind {
        Kind::Persistent => zk::CreateMode::Persistent,
        Kind::Container => zk::CreateMode::Container,
        Kind::Ephemeral => zk::CreateMode::Ephemeral,
        Kind::EphemeralSequential => zk::CreateMode::EphemeralSequential,
    }
}

/// Commits all operations or none. Also returns the transaction's id, or 0 if the reply does not show it. The request
/// is sent in the first poll. If the crate refuses an operation, nothing is sent.
pub(super) async fn commit(
    client: &zk::Client,
    operations: &[Operation],
    acl: &Acl,
    whom: &str,
) -> Result<(Vec<Outcome>, i64), Failure> {
    let failure = |index: usize, error| {
        let needs = operations.get(index).map(Operation::required_right).unwrap_or_default();
        translate_error(error, needs, whom)
    };
    let of = |index: usize| move |error| Failure::Operation { index, failure: Box::new(failure(index, error)) };
    let mut writer = client.new_multi_writer();
    for (index, operation) in operations.iter().enumerate() {
        let added = match operation {
            Operation::Create { path, data, kind } => {
                writer.add_create(path, data, &create_mode(*kind).with_acls(zk::Acls::new(&acl.entries)))
            }
            Operation::Set { path, data, version } => writer.add_set_data(path, data, *version),
            Operation::Delete { path, version } => writer.add_delete(path, *version),
            Operation::Check { path, version } => writer.add_check_version(path, version.unwrap_or(-1)),
        };
        added.map_err(of(index))?;
    }
    let results = writer.commit().await.map_err(|error| match error {
        zk::MultiWriteError::RequestFailed { source } => failure(0, source),
        zk::MultiWriteError::OperationFailed { index, source } => of(index)(source),
    })?;
    let (outcomes, zxids): (_, Vec<_>) = results.into_iter().map(outcome_and_zxid).unzip();
    Ok((outcomes, zxids.into_iter().max().unwrap_or_default()))
}

/// Reads the data of several nodes in one request, which is sent in the first poll. The result is `None` for a node
/// that does not exist or that this client may not read.
pub(super) async fn data_of_each(client: &zk::Client, paths: &[String]) -> Result<NodeContents, zk::Error> {
    let mut reader = client.new_multi_reader();
    paths.iter().try_for_each(|path| reader.add_get_data(path))?;
    let nodes = reader.commit().await?;
    let none = || zk::Error::UnexpectedError(format!("{} answers to {} reads", nodes.len(), paths.len()));
    if nodes.len() != paths.len() {
        return Err(none());
    }
    let node = |node| match node {
        zk::MultiReadResult::Data { data, stat: of_node } => Ok(Some((data, translate_stat(&of_node)))),
        zk::MultiReadResult::Error { err: zk::Error::NoNode | zk::Error::NoAuth } => Ok(None),
        zk::MultiReadResult::Error { err } => Err(err),
        _ => Err(zk::Error::UnexpectedError("an answer to another request".to_owned())),
    };
    nodes.into_iter().map(node).collect()
}

/// Returns the outcome of an operation, and the transaction's id, or 0 if the result does not show the id.
fn outcome_and_zxid(result: zk::MultiWriteResult) -> (Outcome, i64) {
    match result {
        zk::MultiWriteResult::Create { stat, .. } => (Outcome::Created, stat.mzxid),
        zk::MultiWriteResult::SetData { stat } => (Outcome::Set { version: stat.version }, stat.mzxid),
        zk::MultiWriteResult::Delete => (Outcome::Deleted, 0),
        _ => (Outcome::Checked, 0),
    }
}

/// Maps an error to a failure. Unless the error is a clear refusal or the end of the session, the outcome of the
/// request is unknown. The client crate reports a reset or silent connection as `Custom`, and an orderly close as
/// `ConnectionLoss`. In both cases the request may have been executed.
///
/// `SessionMoved` and `Throttled` are temporary refusals. They are mapped to an unknown outcome, because a request with
/// an unknown outcome is sent again, and the session goes on.
///
/// `right` is the right that the request needs on `node`. `whom` describes the client's user.
pub(super) fn translate_error(error: zk::Error, (right, node): (&'static str, &str), whom: &str) -> Failure {
    match error {
        zk::Error::NoNode => Failure::NoNode,
        zk::Error::NodeExists => Failure::NodeExists,
        zk::Error::NotEmpty => Failure::NotEmpty,
        zk::Error::BadVersion => Failure::BadVersion,
        zk::Error::NoAuth => {
            Failure::NoAuth(Box::new(DeniedRight { right, node: node.to_owned(), whom: whom.to_owned() }))
        }
        zk::Error::NoChildrenForEphemerals => Failure::ParentIsEphemeral,
        zk::Error::SessionExpired => Failure::Over(SessionEnd::Expired),
        zk::Error::AuthFailed => Failure::Over(SessionEnd::AuthFailed),
        zk::Error::ClientClosed => Failure::Over(SessionEnd::Closed),
        zk::Error::InvalidAcl => Failure::InvalidAcl,
        zk::Error::NoHosts
        | zk::Error::BadArguments(_)
        | zk::Error::NotReadOnly
        | zk::Error::NoWatcher
        | zk::Error::QuotaExceeded
        | zk::Error::MarshallingError
        | zk::Error::Unimplemented
        | zk::Error::ReconfigDisabled => Failure::Refused(error.to_string()),
        // The crate uses these words for a request that was still in the crate's queue when the queue was dropped. Each
        // request that was sent has got an answer from the crate's `Depot::error` before. So a request with these words
        // was not sent.
        zk::Error::UnexpectedError(words) if words.starts_with("BUG: ") && words.ends_with("but got none") => {
            Failure::Unknown(NOT_SENT.to_owned())
        }
        _ => Failure::Unknown(error.to_string()),
    }
}

pub(super) fn translate_stat(stat: &zk::Stat) -> Stat {
    Stat {
        czxid: stat.czxid,
        version: stat.version,
        ctime: time_from_millis(stat.ctime),
        mtime: time_from_millis(stat.mtime),
        ephemeral_owner: stat.ephemeral_owner,
        data_length: usize::try_from(stat.data_length).unwrap_or(0),
    }
}

/// Converts a time of the ensemble's clock, in milliseconds since 1970. The sign is dropped. A time that is too late to
/// be printed becomes the latest time that can be printed.
pub(super) fn time_from_millis(milliseconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(milliseconds.unsigned_abs()).min(LAST_WRITTEN)
}

/// Maps an error of an attempt to open a session to a failure.
pub(super) fn connect_failure(error: zk::Error, servers: &str) -> Failure {
    match error {
        zk::Error::BadArguments(problem) => Failure::Refused((*problem).to_owned()),
        zk::Error::AuthFailed => Failure::Over(SessionEnd::AuthFailed),
        // While the client crate connects, it reports network errors as timeouts. So `Custom` here is an error about
        // certificates. No request was sent yet.
        zk::Error::Custom(problem) => Failure::Refused(problem.to_string()),
        error => Failure::Unreachable(format!("{servers}: {error}")),
    }
}

/// The message for a request that the client crate had not sent yet when the connection broke.
const NOT_SENT: &str = "the connection broke before the request was sent";

/// Returns whether the request that ended in `failure` was not sent. If the library itself has given up the connection
/// of the request, the answer may be wrong.
pub(super) fn is_not_sent(failure: &Failure) -> bool {
    matches!(failure, Failure::Unknown(words) if words == NOT_SENT)
}

/// Returns whether the transaction only sets and deletes one node, and ends with a deletion.
pub(super) fn is_removal(operations: &[Operation]) -> bool {
    let Some(Operation::Delete { path, .. }) = operations.last() else { return false };
    operations.iter().all(|operation| match operation {
        Operation::Set { path: other, .. } | Operation::Delete { path: other, .. } => other == path,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_of_a_server_can_be_printed() {
        for milliseconds in [0, 1, -1, i64::MAX, i64::MIN] {
            assert!(!humantime::format_rfc3339_millis(time_from_millis(milliseconds)).to_string().is_empty());
        }
    }

    #[test]
    fn only_a_clear_refusal_means_not_executed() {
        use zk::Error::*;
        let failure = |error| translate_error(error, ("READ", "/lock"), "digest user \"a\"");
        let denied = failure(NoAuth);
        assert_eq!(denied.to_string(), "permission denied: no READ on /lock for digest user \"a\"");
        for (error, expected) in [
            (NoNode, Failure::NoNode),
            (NodeExists, Failure::NodeExists),
            (NotEmpty, Failure::NotEmpty),
            (BadVersion, Failure::BadVersion),
            (NoChildrenForEphemerals, Failure::ParentIsEphemeral),
            (InvalidAcl, Failure::InvalidAcl),
            (SessionExpired, Failure::Over(SessionEnd::Expired)),
            (AuthFailed, Failure::Over(SessionEnd::AuthFailed)),
            (ClientClosed, Failure::Over(SessionEnd::Closed)),
        ] {
            assert_eq!(failure(error), expected);
        }
        for error in [NoHosts, NotReadOnly, NoWatcher, QuotaExceeded, MarshallingError, Unimplemented, ReconfigDisabled]
        {
            assert!(matches!(failure(error.clone()), Failure::Refused(words) if words == error.to_string()), "{error}");
        }
        for error in [ConnectionLoss, Timeout, SessionMoved, Throttled, RuntimeInconsistent, UnexpectedErrorCode(-99)] {
            assert!(matches!(failure(error.clone()), Failure::Unknown(words) if words == error.to_string()), "{error}");
        }
    }

    #[test]
    fn refused_and_unreachable_are_distinguished() {
        assert_eq!(connect_failure(zk::Error::AuthFailed, "a:1"), Failure::Over(SessionEnd::AuthFailed));
        let refused = connect_failure(zk::Error::BadArguments(&"no servers"), "a:1");
        assert_eq!(refused, Failure::Refused("no servers".to_owned()));
        let away = connect_failure(zk::Error::NoHosts, "a:1");
        assert!(matches!(&away, Failure::Unreachable(words) if words.starts_with("a:1: ")), "{away:?}");
    }
}
