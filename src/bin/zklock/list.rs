//! `ls` and `watch`: the queue as it is, once and live.

use std::io::{self, IsTerminal};

use zk_rwlock::{Error, Queue, Survey};

use crate::arguments::{Connection, Ls, Watch};
use crate::connect::{self, connect};
use crate::exit::Exit;
use crate::{output, table};

pub(crate) async fn ls(ls: &Ls, connection: &Connection) -> Result<u8, Exit> {
    let text = if ls.tree {
        let zk = connect(connection).await?;
        let survey = Survey::below(&zk, &ls.path).await?;
        match ls.json {
            true => format!("{:#}\n", table::json_of_survey(&survey, &ls.path)),
            false => table::tables(&survey, &ls.path, output::is_colourful()),
        }
    } else {
        let zk = connect(connection).await?;
        let queue = connect::lock(&zk, &ls.path, connection)?.queue().await?;
        match ls.json {
            true => format!("{:#}\n", table::json(&queue)),
            false => table::table(&queue, output::is_colourful()),
        }
    };
    output::print(&text);
    Ok(0)
}

/// Shows the queue until interrupted: on a terminal again and again in one place, elsewhere when it changes.
pub(crate) async fn watch(watch: &Watch, connection: &Connection) -> Result<u8, Exit> {
    let zk = connect(connection).await?;
    let lock = connect::lock(&zk, &watch.path, connection)?;
    let redraws = io::stdout().is_terminal() && !watch.json;
    let mut last = None;
    loop {
        let text = match lock.queue().await {
            Ok(queue) if redraws => {
                let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now());
                // To the top left corner, and what follows the table is wiped.
                let table = table::table(&queue, output::is_colourful()).replace('\n', "\x1b[K\n");
                format!("\x1b[H{}  {now}\x1b[K\n\n{table}\x1b[J", queue.path)
            }
            Ok(queue) => {
                let members = gist(&queue);
                let is_news = last.as_ref() != Some(&members);
                last = Some(members);
                match (is_news, watch.json) {
                    (false, _) => String::new(),
                    (true, true) => format!("{}\n", table::json(&queue)),
                    (true, false) => format!("{}\n", table::table(&queue, false)),
                }
            }
            // It comes back, or a fresh session is opened.
            Err(error @ (Error::Unreachable(_) | Error::OutcomeUnknown { .. } | Error::Evicted(_))) => {
                output::say(&error.to_string());
                String::new()
            }
            Err(error) => return Err(error.into()),
        };
        if !output::print(&text) {
            return Ok(0);
        }
        tokio::time::sleep(watch.interval).await;
    }
}

/// What of a queue is worth another line when it changes: not how long it has lasted.
fn gist(queue: &Queue) -> Vec<(String, bool)> {
    queue.members.iter().map(|member| (member.node.clone(), queue.holders().any(|h| h.node == member.node))).collect()
}
