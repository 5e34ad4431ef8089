//! `ls`: the queue as it is, or those of all locks below a path.

use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{Contender, Queue, Survey, ZooKeeper};

use crate::arguments::{Connection, Ls};
use crate::connect::{self, connect};
use crate::exit::Exit;
use crate::{output, table};

pub(crate) async fn ls(ls: &Ls, connection: &Connection) -> Result<u8, Exit> {
    let zk = connect(connection).await?;
    let text = if ls.tree {
        let survey = Survey::below(&zk, &ls.path).await?;
        match ls.json {
            true => format!("{:#}\n", table::json_of_survey(&survey, &ls.path)),
            false => table::tables(&survey, &ls.path, output::is_colourful()),
        }
    } else {
        let queue = connect::lock(&zk, &ls.path, connection)?.queue().await?;
        let others = if queue.members.is_empty() { others(&zk, &queue).await } else { 0 };
        if others > 0 {
            let what = "nodes here that are neither holders nor waiters; locks, perhaps: see zklock ls --tree";
            output::say(&format!("{}: {others} {what} {}", ls.path, ls.path));
        }
        match ls.json {
            true => format!("{:#}\n", table::json(&queue)),
            false => table::table(&queue, output::is_colourful()),
        }
    };
    output::print(&text)?;
    Ok(0)
}

/// How many nodes are in the directory of a free lock: whoever asked for a directory of locks is not to read that it is
/// free and go away.
async fn others(zk: &ZooKeeper, queue: &Queue) -> usize {
    let Ok(berth) = zk.berth(0).await else { return 0 };
    let names = berth.session().children(&queue.path).await.unwrap_or_default();
    names.iter().filter(|name| Contender::parse_as(name, queue.dialect).is_none()).count()
}
