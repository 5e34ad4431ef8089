//! The number of a semaphore's permits, which its node and that node's twin give.

use std::sync::Arc;

use crate::error::error::Error;
use crate::error::permits::PermitsError;
use crate::queue::{permits, twin};
use crate::recipes::semaphore::state::SemaphoreState;
use crate::session::contract::Session;
use crate::session::presence::{self, SecondLook};
use crate::session::request::{Failure, Kind, Operation, Stat};
use crate::session::retry;

/// What the second node says of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Twin {
    Missing,
    /// It is no number.
    Silent,
    Says(u32),
}

impl SemaphoreState {
    /// The number of permits that the semaphore's node gives, and the node's version. Writes the number if nobody has
    /// yet.
    pub(super) async fn agree(
        &self,
        session: &Arc<dyn Session>,
        (mut data, mut stat): (Vec<u8>, Stat),
    ) -> Result<(u32, i32), Error> {
        let (path, mut rounds) = (self.handle.shown(), 0);
        loop {
            if let Some(number) = self.number(&data)? {
                self.limit.sees(path, number)?;
                return Ok((number, stat.version));
            }
            let twin = self.twin(session).await.map_err(|failure| self.no_permit(failure))?;
            match (self.limit.known(), twin) {
                (known, Twin::Says(was)) if known != Some(was) => {
                    // Our server may have missed the number, and another client may have written it since. So the leader says.
                    match presence::is_there(session, &**path, Some(stat.version)).await {
                        Ok(true) => return Err(self.doubt(PermitsError::Vanished { was })),
                        _ => SemaphoreState::before_next_round(session, path, Some(stat.version), &mut rounds).await,
                    }
                }
                (None, _) => return Err(self.doubt(PermitsError::Unset)),
                (Some(number), twin) => {
                    // A number that is written beside a lock would shut its users out.
                    self.check_for_lock(session, None).await?;
                    match self.write(session, number, stat.version, twin).await {
                        Ok(()) => {
                            self.limit.is_set(number);
                            return Ok((number, stat.version.wrapping_add(1)));
                        }
                        // Another contender came first, or an earlier try of ours.
                        Err(Failure::BadVersion) => {
                            SemaphoreState::before_next_round(session, path, Some(stat.version), &mut rounds).await;
                        }
                        Err(failure) => return Err(self.no_permit(failure)),
                    }
                }
            }
            (data, stat) =
                retry::until_known(session, || session.data(path)).await.map_err(|failure| self.no_permit(failure))?;
        }
    }

    /// The number that the data of the semaphore's node give; `None` if they give none yet.
    pub(super) fn number(&self, data: &[u8]) -> Result<Option<u32>, Error> {
        let doubtful = |what: String| self.doubtful(format!("its data are {what:?}, and not a number of permits"));
        permits::decode(data).map_err(doubtful)
    }

    /// What the twin of the semaphore's node says.
    pub(super) async fn twin(&self, session: &Arc<dyn Session>) -> Result<Twin, Failure> {
        Ok(match retry::data(session, &twin::of(self.handle.shown()), false).await? {
            None => Twin::Missing,
            Some((data, _)) => permits::decode(&data).ok().flatten().map_or(Twin::Silent, Twin::Says),
        })
    }

    /// Writes the number, if its node has this version, and the same to its twin. A twin that may not be written is left out:
    /// an operator may have made the semaphore's node alone.
    pub(super) async fn write(
        &self,
        session: &Arc<dyn Session>,
        number: u32,
        version: i32,
        twin: Twin,
    ) -> Result<(), Failure> {
        let (path, data) = (self.handle.shown().to_string(), permits::encode(number));
        let twin_path = twin::of(&path);
        let second = match twin {
            Twin::Missing => Operation::Create { path: twin_path, data: data.clone(), kind: Kind::Persistent },
            Twin::Silent | Twin::Says(_) => Operation::Set { path: twin_path, data: data.clone(), version: None },
        };
        let mut set = vec![Operation::Set { path, data, version: Some(version) }, second];
        loop {
            match retry::until_known(session, || session.transact(&set)).await {
                Ok(_) => return Ok(()),
                Err(Failure::Operation { index: 1, failure }) => match *failure {
                    // It has come or gone since: look again.
                    Failure::NodeExists | Failure::NoNode => return Err(Failure::BadVersion),
                    _ => set.truncate(1),
                },
                Err(Failure::Operation { failure, .. }) => return Err(*failure),
                Err(failure) => return Err(failure),
            }
        }
    }

    /// The leader has this node otherwise than our server has shown it. Once, that may be a change just now.
    pub(super) async fn before_next_round(
        session: &Arc<dyn Session>,
        path: &str,
        version: Option<i32>,
        rounds: &mut u32,
    ) {
        *rounds += 1;
        if *rounds > 1 {
            presence::report(session, path, version);
            SecondLook::new(session).pause().await;
        }
    }
}
