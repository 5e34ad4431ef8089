//! The subcommand `permits`: sets a semaphore's number of permits, or removes the semaphore.

use zk_rwlock::{Error, Semaphore};

use crate::arguments::{Connection, SetPermits};
use crate::connect::{self, connect_to};
use crate::exit::{self, Exit};
use crate::output::{self, escape_controls};

pub(crate) async fn permits(which: &SetPermits, connection: &Connection) -> Result<u8, Exit> {
    let zk = connect_to(&which.path, connection).await?;
    let mut builder = Semaphore::builder(&zk, &which.path);
    if which.create {
        builder = builder.at_existing_node();
    }
    let semaphore = builder.build()?;
    let Some(number) = which.number else { return remove(&semaphore).await };
    // If the path is a lock in use, setting the number would turn the path into a semaphore.
    if !connect::lock(&zk, &which.path, connection)?.queue().await?.members.is_empty() {
        return Err(Exit::new(exit::IN_THE_WAY, format!("{} is a lock, and the lock is in use", which.path)));
    }
    semaphore.set_permits(number.get()).await?;
    Ok(0)
}

async fn remove(semaphore: &Semaphore) -> Result<u8, Exit> {
    let path = semaphore.path();
    match semaphore.remove().await {
        Ok(Some(number)) => {
            output::print(&format!("removed the semaphore {}, which had permits={number}\n", escape_controls(path)))?;
            Ok(0)
        }
        Ok(None) => Err(Exit::new(exit::NEGATIVE, format!("{path}: there is no semaphore"))),
        Err(Error::WouldBlock { blockers }) => {
            Err(Exit::new(exit::IN_THE_WAY, format!("{path} is in use, and nothing was removed: {blockers}")))
        }
        Err(error) => Err(error.into()),
    }
}
