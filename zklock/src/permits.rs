//! The subcommand `permits`: sets a semaphore's number of permits.

use zk_rwlock::Semaphore;

use crate::arguments::{Connection, SetPermits};
use crate::connect::{self, connect_to};
use crate::exit::{self, Exit};

pub(crate) async fn set(which: &SetPermits, connection: &Connection) -> Result<u8, Exit> {
    let zk = connect_to(&which.path, connection).await?;
    // If the path is a lock in use, setting the number would turn the path into a semaphore.
    if !connect::lock(&zk, &which.path, connection)?.queue().await?.members.is_empty() {
        return Err(Exit::new(exit::IN_THE_WAY, format!("{} is a lock, and the lock is in use", which.path)));
    }
    Semaphore::builder(&zk, &which.path).build()?.set_permits(which.number.get()).await?;
    Ok(0)
}
