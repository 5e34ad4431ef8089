//! `ask`: asks the processes that only keep a lock to give it up.

use crate::arguments::{Ask, Connection};
use crate::connect::{self, connect_to};
use crate::exit::Exit;
use crate::place;

pub(crate) async fn ask(which: &Ask, connection: &Connection) -> Result<u8, Exit> {
    let zk = connect_to(&which.path, connection).await?;
    connect::lock(&zk, &which.path, connection)?.ask().await?;
    place::tell_if_missing(&zk, &which.path).await;
    Ok(0)
}
