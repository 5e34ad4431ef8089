//! The subcommand `break`: removes the contender with the given token.
//!
//! The library checks the token again at the moment of the removal, so the time that the user takes to confirm does not
//! matter.

use std::io::{self, BufRead, IsTerminal, Write};

use zk_rwlock::ZooKeeper;

use crate::arguments::{Break, Connection};
use crate::connect::connect_to;
use crate::exit::{self, Exit};
use crate::output::{self, escape_controls};
use crate::place::{self, Place};
use crate::show::table;

pub(crate) async fn evict(which: &Break, connection: &Connection) -> Result<u8, Exit> {
    let zk = connect_to(&which.path, connection).await?;
    let place = Place::whatever(&zk, &which.path, connection.dialect)?;
    if !which.yes {
        let Some(member) = place.find(which.token).await? else { return stale(&zk, &place, which).await };
        if !io::stdin().is_terminal() {
            return Err(Exit::usage("break asks for confirmation, but standard input is no terminal: give --yes"));
        }
        if !agrees(&format!("{}: remove {}?", which.path, escape_controls(&member.to_string()))) {
            return Err(Exit::new(exit::NEGATIVE, "nothing was removed"));
        }
    }
    match place.evict(which.token).await? {
        Some(member) => {
            output::print(&format!("removed {}\n", escape_controls(&member.to_string())))?;
            Ok(0)
        }
        None => stale(&zk, &place, which).await,
    }
}

/// Reports that no contender has the token, and lists the present contenders.
async fn stale(zk: &ZooKeeper, place: &Place, which: &Break) -> Result<u8, Exit> {
    let queue = place.queue().await?;
    place::report_if_missing(zk, &which.path).await;
    let now = table::table(&queue, output::columns(&io::stderr()), false);
    let problem = format!(
        "{}: no holder or waiter has token {}; nothing was removed. The contenders now:",
        which.path, which.token
    );
    Err(Exit::new(exit::NEGATIVE, format!("{problem}\n{}", now.trim_end())))
}

fn agrees(question: &str) -> bool {
    let mut answer = String::new();
    let asked = write!(io::stderr().lock(), "{question} [y/N] ").is_ok();
    asked && io::stdin().lock().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
