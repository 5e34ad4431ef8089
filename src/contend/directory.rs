//! How a lock directory is made, with the directories above it.

use std::sync::Arc;

use crate::session::contract::Session;
use crate::session::request::{Failure, Kind, parent};
use crate::session::retry::until_known;

/// Each directory on the way to `path`, outermost first, with `path` itself.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').skip(1).map(|(at, _)| &path[..at]).chain(Some(path))
}

/// Makes the lock directory at `path`, below ordinary nodes: a container, which the server reaps when it has been empty
/// for a while, unless it has to stay. Calls `made` with each directory as soon as it is made.
pub(crate) async fn make(
    session: &Arc<dyn Session>,
    path: &str,
    has_to_stay: bool,
    made: impl Fn(&str),
) -> Result<(), Failure> {
    let mut denied = None;
    for step in steps(path) {
        let kind = if step == path && !has_to_stay { Kind::Container } else { Kind::Persistent };
        match until_known(session, || session.create(step, &[], kind)).await {
            Ok(_) => made(step),
            Err(Failure::NodeExists) => {}
            // We may not create a directory here, but it may be there already.
            Err(failure @ Failure::NoAuth(_)) if step != path => denied = denied.or(Some(failure)),
            // It was not there, or what the connect string leads to is not there any more.
            Err(Failure::NoNode) if parent(step) == "/" => return Err(Failure::NoParent("/".to_owned())),
            Err(Failure::NoNode) => return Err(denied.unwrap_or(Failure::NoNode)),
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_lead_to_the_path() {
        assert_eq!(steps("/a/b/c").collect::<Vec<_>>(), ["/a", "/a/b", "/a/b/c"]);
        assert_eq!(steps("/a").collect::<Vec<_>>(), ["/a"]);
    }
}
