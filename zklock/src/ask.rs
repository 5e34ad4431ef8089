//! The subcommand `ask`: asks processes that keep an idle lock to give the lock up.

use crate::arguments::{Ask, Connection};
use crate::connect::{self, connect_to};
use crate::exit::Exit;
use crate::place;

pub(crate) async fn ask(which: &Ask, connection: &Connection) -> Result<u8, Exit> {
    let zk = connect_to(&which.path, connection).await?;
    connect::lock(&zk, &which.path, connection)?.ask().await?;
    place::report_if_missing(&zk, &which.path).await;
    Ok(0)
}
