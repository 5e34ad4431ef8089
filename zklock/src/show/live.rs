//! The subcommand `watch` on a screen: shows one queue, or a row for each of several, and redraws the screen in place. If
//! standard output is no screen, or with `--json`, [`follow_queue`] prints each change.

use std::future::{Future, IntoFuture};
use std::io;
use std::pin::pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::try_join_all;
use rustix::process::Signal as RawSignal;
use tokio::signal::unix::{Signal, SignalKind};
use zk_rwlock::{Dialect, Error, Queue, RwLock, Survey, ZooKeeper};

use crate::arguments::{ConnectionArguments, WatchArguments};
use crate::connect::connect_for_path;
use crate::exit::Exit;
use crate::output::{self, shorten, shorten_in_the_middle, width, wrap_line};
use crate::place::LockOrSemaphore;
use crate::run::signals;
use crate::show::overview::{self, QueueHistory};
use crate::show::{follow, free_lock_warnings, table};
use crate::terminal;

/// The longest time between two drawings of the screen. It is short, because the screen shows how long ago things happened.
const TICK: Duration = Duration::from_secs(1);

/// zklock prints a message if ZooKeeper has not answered for this time.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);

/// The last second of the year 9999, in seconds since 1970. RFC 3339 has no later times.
const LAST_WRITTEN: Duration = Duration::from_secs(253_402_300_799);

/// Shows the queues until a signal ends zklock, until standard output has no reader or is no longer zklock's terminal,
/// or until an error that is not expected to pass.
pub(crate) async fn watch_queues(watch: &WatchArguments, connection: &ConnectionArguments) -> Result<u8, Exit> {
    let zk = connect_for_path(&watch.paths[0], connection).await?;
    for path in &watch.paths[1..] {
        RwLock::new(&zk, path)?;
    }
    if output::has_cursor_control(&io::stdout()) && !watch.json {
        watch_on_screen(&zk, watch, connection.dialect).await
    } else {
        follow::print_changes(&zk, watch, connection).await
    }
}

/// The state of the screen.
struct Screen {
    title: String,
    /// Whether the screen has a row for each queue, and not one for each member of a single queue.
    is_overview: bool,
    seen: Option<Vec<Queue>>,
    history: QueueHistory,
    /// The messages of [`free_lock_warnings`], which say why the answer "free" may mislead.
    warnings: Vec<String>,
    /// When the first request after the last answer was sent. `None` if no request has been sent since.
    unanswered: Option<Instant>,
    resized: Signal,
    continued: Signal,
    /// Whether standard output is the controlling terminal of zklock's Unix session (setsid(2)). Only for this terminal
    /// the system tells zklock which process group is in the foreground.
    is_ours: bool,
}

async fn watch_on_screen(zk: &ZooKeeper, watch: &WatchArguments, dialect: Dialect) -> Result<u8, Exit> {
    let mut screen = Screen {
        title: watch.paths.join(" "),
        is_overview: watch.tree || watch.paths.len() > 1,
        seen: None,
        history: QueueHistory::default(),
        warnings: Vec::new(),
        unanswered: None,
        resized: signals::signal_stream(SignalKind::window_change())?,
        // The shell's `fg` sends SIGCONT. When zklock receives it, zklock redraws the screen immediately.
        continued: signals::signal_stream(SignalKind::from_raw(RawSignal::CONT.as_raw()))?,
        is_ours: terminal::is_background(io::stdout()).is_some(),
    };
    loop {
        screen.unanswered.get_or_insert_with(Instant::now);
        let is_doubtful = screen.seen.is_none() || !screen.warnings.is_empty();
        let look = async {
            let Some(seen) = read_queues(zk, watch, dialect).await? else { return Ok(None) };
            let warnings =
                if is_doubtful { free_lock_warnings(zk, &watch.paths, watch.tree, &seen).await } else { Vec::new() };
            Ok::<_, Exit>(Some((seen, warnings)))
        };
        let Some(looked) = screen.redraw_until(look).await? else { return Ok(0) };
        if let Some((seen, warnings)) = looked? {
            screen.history.add(&seen, Instant::now());
            (screen.seen, screen.warnings, screen.unanswered) = (Some(seen), warnings, None);
        }
        let waited = screen.draw()? && screen.redraw_until(tokio::time::sleep(watch.interval)).await?.is_some();
        if !waited {
            return Ok(0);
        }
    }
}

/// Reads the queues of all paths, or with `--tree` of all locks at and below them. Returns `None` if there was no
/// answer.
async fn read_queues(zk: &ZooKeeper, watch: &WatchArguments, dialect: Dialect) -> Result<Option<Vec<Queue>>, Exit> {
    if watch.tree {
        let surveys = watch.paths.iter().map(|path| Survey::below(zk, path).into_future());
        return none_if_transient(
            try_join_all(surveys).await.map(|all| all.into_iter().flat_map(|it| it.queues).collect()),
        );
    }
    let places = watch.paths.iter().map(|path| LockOrSemaphore::at(zk, path, dialect));
    let places = places.collect::<Result<Vec<_>, _>>()?;
    none_if_transient(try_join_all(places.iter().map(LockOrSemaphore::queue)).await)
}

impl Screen {
    /// Redraws the screen until the future is ready. Returns `None` if [`Screen::draw`] reports that the screen is
    /// gone.
    async fn redraw_until<F: Future>(&mut self, what: F) -> Result<Option<F::Output>, Exit> {
        let mut what = pin!(what);
        loop {
            tokio::select! {
                biased;
                outcome = &mut what => return Ok(Some(outcome)),
                _ = self.resized.recv() => {}
                _ = self.continued.recv() => {}
                () = tokio::time::sleep(TICK) => {}
            }
            if !self.draw()? {
                return Ok(None);
            }
        }
    }

    /// Draws the screen. In the background nothing is drawn, because the terminal shows another program. Returns
    /// `false` if the screen is gone: nobody reads standard output any more, or it is no longer the controlling
    /// terminal.
    fn draw(&self) -> Result<bool, Exit> {
        match terminal::is_background(io::stdout()) {
            Some(true) => return Ok(true),
            // Standard output is no longer the controlling terminal: the shell has ended, and another user may have the
            // terminal now.
            None if self.is_ours => return Ok(false),
            Some(false) | None => {}
        }
        let (columns, rows) = terminal::columns_and_rows(io::stdout());
        let silent = self.unanswered.map_or(Duration::ZERO, |since| since.elapsed());
        let status = if silent > SILENCE {
            let silent = humantime::format_duration(Duration::from_secs(silent.as_secs()));
            format!("  no answer for {silent}; the last answer:")
        } else {
            format!("  {}", humantime::format_rfc3339_seconds(SystemTime::now().min(UNIX_EPOCH + LAST_WRITTEN)))
        };
        let heading = shorten_in_the_middle(&self.title, columns.saturating_sub(width(&status)).max(1)) + &status;
        let mut lines = vec![shorten(&heading, columns), String::new()];
        if let Some(seen) = &self.seen {
            let warnings = self.warnings.iter().map(|words| wrap_line(words, Some(columns)) + "\n").collect::<String>();
            // The last row stays empty, because a line break at the end of that row would scroll the screen.
            let left = rows.saturating_sub(lines.len() + warnings.lines().count() + 1);
            lines.extend(match &seen[..] {
                [queue] if !self.is_overview => {
                    let mut table = table::table_within(queue, columns, left, output::is_colourful());
                    let held = self.history.held_line(queue, Instant::now()).filter(|_| table.len() < left);
                    table.extend(held.map(|held| shorten(&held, columns)));
                    table
                }
                queues => overview::overview_lines(queues, &self.history, columns, left),
            });
            lines.extend(warnings.lines().map(str::to_owned));
        }
        // The text moves the cursor to the top left corner, and clears the rest of each line and the rows below.
        output::print_result(&format!("\x1b[H{}\x1b[K\n\x1b[J", lines.join("\x1b[K\n")))
    }
}

/// Returns what was read. Returns `None` after an error that may pass: the connection may come back, or a new session
/// may be opened.
pub(crate) fn none_if_transient<T>(looked: Result<T, Error>) -> Result<Option<T>, Exit> {
    match looked {
        Ok(seen) => Ok(Some(seen)),
        Err(Error::Unreachable(_) | Error::OutcomeUnknown { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit;

    #[test]
    fn watch_survives_outages_and_ends_on_lasting_errors() {
        let away = Error::Unreachable("it is away".to_owned());
        let unknown = Error::OutcomeUnknown { operation: "read", reason: "it was cut".to_owned() };
        for passes in [away, unknown] {
            assert!(none_if_transient::<Queue>(Err(passes)).is_ok_and(|queue| queue.is_none()));
        }
        let denied = Error::PermissionDenied { operation: "read", path: "/lock".to_owned(), lacks: Box::default() };
        assert!(none_if_transient::<Queue>(Err(denied)).is_err_and(|exit| exit.code() == exit::NO_PERMISSION));
    }
}
