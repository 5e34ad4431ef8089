//! Waiting for a node that does not exist; knows neither locks nor values.

use std::sync::Arc;
use std::time::Duration;

use crate::session::contract::Session;
use crate::session::follow::{PAUSE, unless_over};
use crate::session::request::Failure;
use crate::session::retry;
use crate::session::second_look::{self, SecondLook};

/// A directory that other clients use, too, is listed no more often than this.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Waits until the node may exist. Watches the children of the nearest existing directory above it. A watch on a node
/// that does not exist could never be taken back.
pub(crate) async fn possible(session: &Arc<dyn Session>, path: &str) -> Result<(), Failure> {
    let (mut wanted, mut look) = (path, SecondLook::new(session));
    loop {
        let (directory, name) = wanted.rsplit_once('/').unwrap_or_default();
        let directory = if directory.is_empty() { "/" } else { directory };
        match retry::until_known(session, || session.watch_children(directory)).await {
            Ok((names, _)) if names.iter().any(|it| it == name) => return Ok(()),
            Ok((names, change)) => {
                drop(names);
                tokio::select! {
                    biased;
                    event = change => unless_over(session, event).await?,
                    // This server may have it by now. If not, the next look comes after a longer pause.
                    () = look.finds_there(path) => {
                        second_look::report(session, path.to_owned(), None);
                        wanted = path;
                        continue;
                    }
                }
                if wanted != path {
                    session.sleep(LOOK_PAUSE).await;
                }
                return Ok(());
            }
            Err(Failure::NoNode) if directory != "/" => wanted = directory,
            Err(failure @ Failure::Over(_)) => return Err(failure),
            Err(_) => {
                session.sleep(PAUSE).await;
                return Ok(());
            }
        }
    }
}
