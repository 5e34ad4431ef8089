//! Whom a hold keeps out: a writer behind a reader, anybody behind a writer, or who finds too few permits.

use std::time::Duration;

use crate::contend::tenure::Tenure;
use crate::error::error::Error;
use crate::queue::contender::Contender;
use crate::queue::mode::Mode;
use crate::queue::permits::{self, PERMITS, Room};
use crate::queue::{metadata, turn};
use crate::session::follow;
use crate::session::lease::Moment;
use crate::session::presence::SecondLook;
use crate::session::request::Failure;
use crate::session::retry;

/// A holder that waits for contention looks at the queue no more often than this.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

impl Tenure {
    /// Waits until a contender waits that this hold keeps out, and gives the first one.
    pub(crate) async fn contended(&self) -> Result<Contender, Error> {
        self.run(self.somebody_waits()).await?
    }

    async fn somebody_waits(&self) -> Result<Contender, Error> {
        let (mut before, mut pause) = (None, LOOK_PAUSE);
        loop {
            let first = self.somebody_kept_out().await?;
            if !self.is_of_semaphore() || self.finds_too_few(&first).await? {
                return Ok(first);
            }
            // It is about to take permits that are free, unless its process stands still.
            let session = self.ticket().session();
            let first = Some(first.name().to_owned());
            pause = if before == first { (2 * pause).min(session.timeout()) } else { LOOK_PAUSE };
            before = first;
            session.sleep(pause).await;
        }
    }

    /// Its queue is that of a semaphore, whose own directory is above it.
    fn is_of_semaphore(&self) -> bool {
        self.directory() != &**self.ticket().directory()
    }

    async fn somebody_kept_out(&self) -> Result<Contender, Error> {
        let (session, directory) = (self.ticket().session(), self.ticket().directory());
        let (mut last_change, mut look) = (None::<Moment>, SecondLook::new(session));
        loop {
            let (names, mut change) = match retry::until_known(session, || session.watch_children(directory)).await {
                Ok(seen) => seen,
                // An empty queue of a semaphore is removed by the servers, and made anew by the next who comes.
                Err(Failure::NoNode) if self.is_of_semaphore() => match follow::possible(session, directory).await {
                    Ok(()) => continue,
                    Err(_) => return std::future::pending().await,
                },
                Err(failure) => return Err(self.lost_by(failure, "watch")),
            };
            let there = session.upkeep().ghosts().without(directory, &names, Mode::Write);
            let first = match self.is_of_semaphore() {
                true => turn::first_in_queue(&self.contender(), &there),
                false => turn::first_kept_out(&self.contender(), &there),
            };
            drop(there);
            if let Some(first) = first {
                return Ok(first);
            }
            // A long listing would take memory for as long as the watch is out.
            drop(names);
            // The event may have been lost. If the session is over, `lost` says what that means for the hold.
            if look.hears(&mut change).await.is_err() {
                return std::future::pending().await;
            }
            // Readers may come and go by the thousand: pause between two listings.
            let since = last_change.map(|last| self.now().saturating_sub(last));
            if let Some(rest) = since.and_then(|since| LOOK_PAUSE.checked_sub(since)) {
                session.sleep(rest).await;
            }
            last_change = Some(self.now());
        }
    }

    /// Whether there are too few permits for this contender, which is the first in the queue.
    async fn finds_too_few(&self, first: &Contender) -> Result<bool, Error> {
        let (session, queue) = (self.ticket().session(), self.ticket().directory());
        let Some((semaphore, _)) = queue.rsplit_once('/') else { return Ok(true) };
        let (node, taken) = (format!("{queue}/{}", first.name()), format!("{semaphore}/{PERMITS}"));
        let read = || async {
            // All are on their way before one is answered.
            let (node, number, names) = (session.data(&node), session.data(semaphore), session.children(&taken));
            let wanted = match node.await {
                Err(failure @ (Failure::Unknown(_) | Failure::Over(_))) => return Err(failure),
                answer => answer.map(|(data, _)| metadata::read(&data).permits),
            };
            Ok((wanted, number.await?.0, names.await?))
        };
        let (wanted, number, names) =
            retry::until_known(session, read).await.map_err(|failure| self.lost_by(failure, "read"))?;
        let wanted = match wanted {
            // It took its permits, or gave up.
            Err(Failure::NoNode) => return Ok(false),
            Err(_) => None,
            Ok(wanted) => wanted,
        };
        let number = permits::decode(&number).ok().flatten();
        let room = wanted.zip(number).map(|(wanted, number)| permits::room(number, &names, wanted));
        Ok(room != Some(Ok(Room::Enough)))
    }
}
