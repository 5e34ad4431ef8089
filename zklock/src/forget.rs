//! The subcommand `forget`: removes the record of the last run under `--once-in`.

use crate::arguments::{Connection, Forget};
use crate::connect::{self, connect_to};
use crate::exit::{self, Exit};
use crate::output::{self, escape_controls};
use crate::place;

pub(crate) async fn forget(which: &Forget, connection: &Connection) -> Result<u8, Exit> {
    let zk = connect_to(&which.path, connection).await?;
    match connect::lock(&zk, &which.path, connection)?.forget().await? {
        Some(done) => {
            output::print(&format!("forgot that it was {}\n", escape_controls(&done.to_string())))?;
            Ok(0)
        }
        None => {
            place::report_if_missing(&zk, &which.path).await;
            Err(Exit::new(exit::NEGATIVE, format!("{}: there is no record that it was done", which.path)))
        }
    }
}
