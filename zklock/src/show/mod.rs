//! The subcommand `ls`: prints the queue of a lock, or the queues of all locks at and below a path. The subcommand
//! `watch` is in `live`.

pub(crate) mod cycles;
mod follow;
pub(crate) mod layout;
pub(crate) mod live;
mod overview;
pub(crate) mod table;

use std::{io, slice};

use zk_rwlock::queue::NodeName;
use zk_rwlock::{Queue, Survey, ZooKeeper};

use crate::arguments::{ConnectionArguments, LsArguments};
use crate::connect::{self, connect_for_path};
use crate::exit::Exit;
use crate::output::escape_controls_in_json;
use crate::place::{LockOrSemaphore, is_at_or_below};
use crate::{output, place};

pub(crate) async fn list_queues(ls: &LsArguments, connection: &ConnectionArguments) -> Result<u8, Exit> {
    let (columns, colourful) = (output::terminal_columns(&io::stdout()), output::is_colourful());
    let zk = connect_for_path(&ls.path, connection).await?;
    let text = if ls.tree {
        let survey = Survey::below(&zk, &ls.path).await?;
        print_warnings(&free_lock_warnings(&zk, slice::from_ref(&ls.path), true, &survey.queues).await);
        match ls.json {
            true => escape_controls_in_json(&format!("{:#}\n", table::survey_json(&survey, &ls.path))),
            false => table::survey_tables(&survey, &ls.path, columns, colourful),
        }
    } else {
        let queue = LockOrSemaphore::at(&zk, &ls.path, connection.dialect)?.queue().await?;
        print_warnings(&free_lock_warnings(&zk, &[], false, slice::from_ref(&queue)).await);
        match ls.json {
            true => escape_controls_in_json(&format!("{:#}\n", table::queue_json(&queue))),
            false => table::queue_table(&queue, columns, colourful),
        }
    };
    output::print_result(&text)?;
    Ok(0)
}

pub(crate) fn print_warnings(warnings: &[String]) {
    warnings.iter().for_each(|words| output::print_message(words));
}

/// Returns warnings for cases in which the answer "free" alone could mislead the user. With `is_tree`, the warnings are
/// about those of `paths` at and below which no queue was found. Otherwise they are about `queues`.
pub(crate) async fn free_lock_warnings(
    zk: &ZooKeeper,
    paths: &[String],
    is_tree: bool,
    queues: &[Queue],
) -> Vec<String> {
    let mut warnings = Vec::new();
    match is_tree {
        true => {
            for path in paths.iter().filter(|path| !queues.iter().any(|queue| is_at_or_below(&queue.path, path))) {
                warnings.extend(place::missing_path_message(zk, path).await);
            }
        }
        false => {
            for queue in queues {
                warnings.extend(free_lock_warning(zk, queue).await);
            }
        }
    }
    warnings
}

/// Returns a warning about an empty queue of a lock, if the path does not exist, or if the user may have taken a value
/// or a directory of locks for the lock.
async fn free_lock_warning(zk: &ZooKeeper, queue: &Queue) -> Option<String> {
    if !queue.members.is_empty() || queue.permits.is_some() {
        return None;
    }
    let path = &queue.path;
    // The nodes in the directory that are no contenders. There are none if the directory cannot be listed.
    let mut others = connect::send_request(zk, |session| session.children(path)).await.unwrap_or_default();
    others.retain(|name| NodeName::parse_as(name, queue.dialect).is_none());
    match others.iter().any(|name| name == "value") {
        true => Some(format!("{path}: the path of a value that a lock guards; for the lock see zklock ls {path}/lock")),
        false if others.is_empty() => place::missing_path_message(zk, path).await,
        false => {
            Some(format!("{path}: the path has other nodes below it; if they are locks, see zklock ls --tree {path}"))
        }
    }
}
