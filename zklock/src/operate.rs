//! The subcommands by which an operator changes a lock or a semaphore: `ask`, `forget`, `permits` and `break`.

use std::io::{self, BufRead, IsTerminal, Write};

use zk_rwlock::{Error, Semaphore, ZooKeeper};

use crate::arguments::{AskArguments, BreakArguments, ConnectionArguments, ForgetArguments, PermitsArguments};
use crate::connect::{self, connect_for_path};
use crate::exit::{self, Exit};
use crate::output::{self, escape_controls};
use crate::place::{self, LockOrSemaphore};
use crate::show::table;

/// Asks the holders that keep this lock between uses to give it up. Does not wait until they do.
pub(crate) async fn ask_keepers(arguments: &AskArguments, connection: &ConnectionArguments) -> Result<u8, Exit> {
    let zk = connect_for_path(&arguments.path, connection).await?;
    connect::lock_at(&zk, &arguments.path, connection)?.ask().await?;
    place::report_if_missing(&zk, &arguments.path).await;
    Ok(0)
}

/// Removes the record of the last success under `--once-in`. Fails if there is none.
pub(crate) async fn forget_record(arguments: &ForgetArguments, connection: &ConnectionArguments) -> Result<u8, Exit> {
    let zk = connect_for_path(&arguments.path, connection).await?;
    match connect::lock_at(&zk, &arguments.path, connection)?.forget().await? {
        Some(done) => {
            output::print_result(&format!("forgot that it was {}\n", escape_controls(&done.to_string())))?;
            Ok(0)
        }
        None => {
            place::report_if_missing(&zk, &arguments.path).await;
            Err(Exit::new(exit::NEGATIVE, format!("{}: there is no record that it was done", arguments.path)))
        }
    }
}

/// Sets the number of permits of a semaphore, or with `--remove` removes the semaphore.
pub(crate) async fn set_or_remove_permits(
    arguments: &PermitsArguments,
    connection: &ConnectionArguments,
) -> Result<u8, Exit> {
    let zk = connect_for_path(&arguments.path, connection).await?;
    let mut builder = Semaphore::builder(&zk, &arguments.path);
    if arguments.create {
        builder = builder.at_existing_node();
    }
    let semaphore = builder.build()?;
    let Some(number) = arguments.number else { return remove_semaphore(&semaphore).await };
    // The path of a lock in use is refused, because a number of permits at the path would turn the path into a
    // semaphore.
    if !connect::lock_at(&zk, &arguments.path, connection)?.queue().await?.members.is_empty() {
        return Err(Exit::new(exit::IN_THE_WAY, format!("{} is a lock, and the lock is in use", arguments.path)));
    }
    semaphore.set_permits(number.get()).await?;
    Ok(0)
}

async fn remove_semaphore(semaphore: &Semaphore) -> Result<u8, Exit> {
    let path = semaphore.path();
    match semaphore.remove().await {
        Ok(Some(number)) => {
            output::print_result(&format!(
                "removed the semaphore {}, which had permits={number}\n",
                escape_controls(path)
            ))?;
            Ok(0)
        }
        Ok(None) => Err(Exit::new(exit::NEGATIVE, format!("{path}: there is no semaphore"))),
        Err(Error::WouldBlock { blockers }) => {
            Err(Exit::new(exit::IN_THE_WAY, format!("{path} is in use, and nothing was removed: {blockers}")))
        }
        Err(error) => Err(error.into()),
    }
}

/// Removes the contender with the given token. Without `--yes` the user must confirm the removal. Looks for the token
/// again after that, so another contender that has come meanwhile is never removed.
pub(crate) async fn evict_contender(arguments: &BreakArguments, connection: &ConnectionArguments) -> Result<u8, Exit> {
    let zk = connect_for_path(&arguments.path, connection).await?;
    let place = LockOrSemaphore::at(&zk, &arguments.path, connection.dialect)?;
    if !arguments.yes {
        let Some(member) = place.find_contender(arguments.token).await? else {
            return fail_with_unknown_token(&zk, &place, arguments).await;
        };
        if !io::stdin().is_terminal() {
            return Err(Exit::usage("break asks for confirmation, but standard input is no terminal: give --yes"));
        }
        if !ask_for_confirmation(&format!("{}: remove {}?", arguments.path, escape_controls(&member.to_string()))) {
            return Err(Exit::new(exit::NEGATIVE, "nothing was removed"));
        }
    }
    match place.evict(arguments.token).await? {
        Some(member) => {
            output::print_result(&format!("removed {}\n", escape_controls(&member.to_string())))?;
            Ok(0)
        }
        None => fail_with_unknown_token(&zk, &place, arguments).await,
    }
}

/// Fails with the message that no contender has the token. The message lists the present contenders.
async fn fail_with_unknown_token(
    zk: &ZooKeeper,
    place: &LockOrSemaphore,
    arguments: &BreakArguments,
) -> Result<u8, Exit> {
    let queue = place.queue().await?;
    place::report_if_missing(zk, &arguments.path).await;
    let now = table::queue_table(&queue, output::terminal_columns(&io::stderr()), false);
    let problem = format!(
        "{}: no holder or waiter has token {}; nothing was removed. The contenders now:",
        arguments.path, arguments.token
    );
    Err(Exit::new(exit::NEGATIVE, format!("{problem}\n{}", now.trim_end())))
}

fn ask_for_confirmation(question: &str) -> bool {
    let mut answer = String::new();
    let asked = write!(io::stderr().lock(), "{question} [y/N] ").is_ok();
    asked && io::stdin().lock().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
