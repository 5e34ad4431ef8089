//! How an acquisition gets its ticket; knows no turns.

use std::sync::Arc;
use std::time::SystemTime;

use crate::acquisition::request::Acquisition;
use crate::call::{self, SESSION_TRIES};
use crate::error::error::Error;
use crate::hold::hold::Hold;
use crate::queue::contender::{Contender, Owner};
use crate::queue::metadata::Metadata;
use crate::queue::mode;
use crate::session::listings::Names;
use crate::session::request::Failure;
use crate::session::retry;
use crate::sync::random;
use crate::ticket::ticket::Ticket;

/// How often a directory may vanish after it was made and before we enter it. More often means that something is wrong.
pub(crate) const DIRECTORY_TRIES: usize = 64;

/// Whether no contender may hold the lock by this number: two contenders may get the same, or a later one a lower
/// number.
pub(crate) fn is_used_up(contender: &Contender) -> bool {
    !(0..mode::REFUSED_FROM).contains(&contender.sequence())
}

impl Acquisition {
    /// Takes a ticket at the end of the queue, and lists the queue with it.
    pub(crate) async fn queue_up(&self) -> Result<(Box<Hold>, Option<Result<Names, Failure>>), Error> {
        let handle = &self.handle;
        // By this number we tell our node from all others, also after the answer to its create was lost.
        let owner = Owner::new(handle.dialect, handle.dialect.new_owner(&handle.host, self.kept.is_some(), random));
        let note = Metadata {
            host: handle.host.clone(),
            pid: std::process::id(),
            label: self.options.label.clone(),
            since: SystemTime::now(),
            permits: self.wanted.as_ref().map(|wanted| wanted.count),
        };
        let data = note.encode();
        // Each waiter watches two nodes: its own, and its predecessor's.
        let mut watched = 2 * (handle.path.len() + owner.len() + "/READ-lock-0000000000".len());
        if self.kept.is_some() {
            watched += handle.path.len();
        }
        // The first in the queue of a semaphore watches its number and its permits.
        if let Some(permits) = &handle.site.permits {
            watched += handle.shown().len() + permits.len();
        }
        let mut tries = 0;
        let (ticket, look) = loop {
            let session_slot = handle.coordinator.session_slot(watched).await.map_err(|failure| self.stop(failure))?;
            let ticket = Ticket::new(session_slot, Arc::clone(&handle.path), owner.clone(), self.kept.is_some());
            tries += 1;
            match self.take_place(&ticket, &data).await {
                Ok(look) => break (ticket, look),
                // The session ended unnoticed while it was idle. It had no node of ours, so a fresh session will do.
                Err(Failure::Over(_)) if tries < SESSION_TRIES => {
                    call::is_known_to_be_over(ticket.session()).await;
                }
                Err(Failure::NoAuth(lacks)) if ticket.unmake_directory().await => {
                    return Err(Error::shut_out(&handle.path, lacks));
                }
                Err(failure) => return Err(self.stop(failure)),
            }
        };
        let held =
            Hold::new(ticket, handle.shown(), &handle.coordinator, data).ok_or_else(|| self.stop(Failure::NoNode))?;
        Ok((held, look))
    }

    /// Creates the node in the directory, and lists the children. Gives no listing if the answer to the create was lost.
    pub(crate) async fn take_place(
        &self,
        ticket: &Ticket,
        data: &[u8],
    ) -> Result<Option<Result<Names, Failure>>, Failure> {
        let (mut missing, mut unknown) = (0, 0_u32);
        loop {
            // All requests are on their way before one is answered.
            ticket.ask_for_node(self.mode, data);
            let (listing, is_sent) = ticket.list_or_join();
            self.look_at_permits(ticket, is_sent);
            // The listing is answered after the create, so waiting for the listing first wakes the task once, and not
            // twice.
            let look = listing.await;
            match ticket.entered().await {
                Ok(()) => return Ok(Some(look)),
                // The directory can vanish again between its making and the next try: the server reaps it when it is
                // empty.
                Err(Failure::NoNode) if missing < DIRECTORY_TRIES => {
                    missing += 1;
                    let has_to_stay = self.handle.dialect.keeps_directories();
                    match ticket.make_directory(has_to_stay).await {
                        // A directory above it may be a container, too, if Curator made it.
                        Ok(()) | Err(Failure::NoNode) => {}
                        Err(failure) => return Err(failure),
                    }
                }
                Err(Failure::Unknown(_)) if unknown < retry::UNKNOWN_TRIES => {
                    unknown += 1;
                    if ticket.recover().await? {
                        return Ok(None);
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Leaves a directory whose numbers are used up. Says whether the directory may be made anew: it may if only
    /// contenders are left in it that will find the numbers used up, too.
    pub(crate) async fn restarts(&self, held: Box<Hold>) -> Result<bool, Error> {
        let (ticket, dialect) = (held.ticket(), self.handle.dialect);
        match ticket.leave().await {
            Ok(()) | Err(Failure::NoNode) => {}
            Err(Failure::NoAuth(lacks)) => return Err(Error::stays(held.own_node().path(), lacks)),
            Err(failure) => return Err(self.stop(failure)),
        }
        if dialect.keeps_directories() {
            return Ok(false);
        }
        let is_passing = |name: &String| Contender::parse_as(name, dialect).is_some_and(|other| is_used_up(&other));
        match retry::until_known(ticket.session(), || ticket.list()).await {
            Ok(names) => Ok(names.iter().all(is_passing)),
            Err(Failure::NoNode) => Ok(true),
            Err(failure) => Err(self.stop(failure)),
        }
    }
}
