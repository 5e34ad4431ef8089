//! The subcommand `watch`: shows the queue as it changes. In the foreground of a terminal the screen is redrawn in
//! place. Elsewhere each change is printed as a table or a line of JSON.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal as RawSignal;
use tokio::signal::unix::{Signal, SignalKind, signal};
use zk_rwlock::queue::MemberState;
use zk_rwlock::{Error, Queue, ZooKeeper};

use crate::arguments::{Connection, WatchOrder};
use crate::connect::connect_to;
use crate::exit::{self, Exit};
use crate::output::{self, shorten, shorten_in_the_middle, width, wrapped};
use crate::place::Place;
use crate::show::doubt;
use crate::show::table;
use crate::terminal;

/// How often the screen is redrawn without a change of the queue, because it shows how long ago things happened.
const TICK: Duration = Duration::from_secs(1);

/// If ZooKeeper has not answered for this time, the screen says so.
const SILENCE: Duration = Duration::from_secs(3);

/// The last second of the year 9999, in seconds since 1970. RFC 3339 has no later times.
const LAST_WRITTEN: Duration = Duration::from_secs(253_402_300_799);

/// Shows the queue until a signal ends zklock.
pub(crate) async fn watch(watch: &WatchOrder, connection: &Connection) -> Result<u8, Exit> {
    let zk = connect_to(&watch.path, connection).await?;
    let place = Place::whatever(&zk, &watch.path, connection.dialect)?;
    if output::is_screen(&io::stdout()) && !watch.json {
        on_a_screen(&zk, &place, watch.interval).await
    } else {
        in_lines(&zk, &place, watch).await
    }
}

/// The state of the screen.
struct Screen {
    path: String,
    queue: Option<Queue>,
    /// Why the first answers, "free", may mislead ([`doubt`]).
    doubt: Option<String>,
    /// When the request that waits for an answer was sent. `None` if no request waits.
    unanswered: Option<Instant>,
    resized: Signal,
    continued: Signal,
    /// Whether standard output is the controlling terminal of zklock's Unix session (setsid(2)). Only for this terminal
    /// the system says which process group is in the foreground.
    is_ours: bool,
}

async fn on_a_screen(zk: &ZooKeeper, place: &Place, interval: Duration) -> Result<u8, Exit> {
    let mut screen = Screen {
        path: place.path().to_owned(),
        queue: None,
        doubt: None,
        unanswered: None,
        resized: listen(SignalKind::window_change())?,
        // `fg` sends SIGCONT. Then the screen is redrawn immediately.
        continued: listen(SignalKind::from_raw(RawSignal::CONT.as_raw()))?,
        is_ours: terminal::is_background(io::stdout()).is_some(),
    };
    loop {
        screen.unanswered.get_or_insert_with(Instant::now);
        let is_doubtful = screen.queue.is_none() || screen.doubt.is_some();
        let look = async {
            let Some(queue) = answer(place.queue().await)? else { return Ok(None) };
            let doubt = if is_doubtful { doubt(zk, &queue).await } else { None };
            Ok::<_, Exit>(Some((queue, doubt)))
        };
        let Some(looked) = screen.drawn_during(look).await? else { return Ok(0) };
        if let Some((queue, doubt)) = looked? {
            (screen.queue, screen.doubt, screen.unanswered) = (Some(queue), doubt, None);
        }
        let waited = screen.draw()? && screen.drawn_during(tokio::time::sleep(interval)).await?.is_some();
        if !waited {
            return Ok(0);
        }
    }
}

fn listen(to: SignalKind) -> Result<Signal, Exit> {
    signal(to).map_err(|error| Exit::new(exit::SYSTEM, format!("cannot listen to signals: {error}")))
}

impl Screen {
    /// Redraws the screen until the future is ready. Returns `None` if [`Screen::draw`] reports that the screen is
    /// gone.
    async fn drawn_during<F: Future>(&mut self, what: F) -> Result<Option<F::Output>, Exit> {
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
    /// `false` if the screen is gone: standard output has no reader, or the shell has ended.
    fn draw(&self) -> Result<bool, Exit> {
        match terminal::is_background(io::stdout()) {
            Some(true) => return Ok(true),
            // The terminal is no longer the controlling terminal: the shell has ended, and another user may have the
            // terminal now.
            None if self.is_ours => return Ok(false),
            Some(false) | None => {}
        }
        let (columns, rows) = terminal::size(io::stdout());
        let silent = self.unanswered.map_or(Duration::ZERO, |since| since.elapsed());
        let status = if silent > SILENCE {
            let silent = humantime::format_duration(Duration::from_secs(silent.as_secs()));
            format!("  no answer for {silent}; the last answer:")
        } else {
            format!("  {}", humantime::format_rfc3339_seconds(SystemTime::now().min(UNIX_EPOCH + LAST_WRITTEN)))
        };
        let heading = shorten_in_the_middle(&self.path, columns.saturating_sub(width(&status)).max(1)) + &status;
        let mut lines = vec![shorten(&heading, columns), String::new()];
        if let Some(queue) = &self.queue {
            let doubt = self.doubt.iter().map(|words| wrapped(words, Some(columns))).collect::<String>();
            // The last row stays empty, because a cursor in it would scroll the screen.
            let left = rows.saturating_sub(lines.len() + doubt.lines().count() + 1);
            lines.extend(table::table_within(queue, columns, left, output::is_colourful()));
            lines.extend(doubt.lines().map(str::to_owned));
        }
        // The text moves the cursor to the top left corner, and clears the rest of each line and the rows below.
        output::print(&format!("\x1b[H{}\x1b[K\n\x1b[J", lines.join("\x1b[K\n")))
    }
}

async fn in_lines(zk: &ZooKeeper, place: &Place, watch: &WatchOrder) -> Result<u8, Exit> {
    let mut last = None;
    while output::is_read() {
        let mut looked = pin!(place.queue());
        let looked = match tokio::time::timeout(SILENCE, &mut looked).await {
            Ok(looked) => looked,
            Err(_) => {
                output::say(&format!("{}: no answer for {}", watch.path, humantime::format_duration(SILENCE)));
                looked.await
            }
        };
        if let Some(queue) = answer(looked)? {
            if last.is_none() {
                doubt(zk, &queue).await.iter().for_each(|words| output::say(words));
            }
            let gist = gist(&queue);
            if last.as_ref() != Some(&gist) {
                last = Some(gist);
                let text = if watch.json {
                    output::escape_json(&table::json(&queue).to_string())
                } else {
                    table::table(&queue, output::columns(&io::stdout()), false)
                };
                output::print(&format!("{text}\n"))?;
            }
        }
        tokio::time::sleep(watch.interval).await;
    }
    Ok(0)
}

/// Turns the outcome of a read into the queue. Returns `None` after an error that may pass: the connection may come
/// back, or a new session may be opened.
fn answer(looked: Result<Queue, Error>) -> Result<Option<Queue>, Exit> {
    match looked {
        Ok(queue) => Ok(Some(queue)),
        Err(Error::Unreachable(_) | Error::OutcomeUnknown { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the part of a queue whose change is printed. The ages of members are not in this part, because they change
/// all the time.
fn gist(queue: &Queue) -> (Vec<(String, bool)>, Option<SystemTime>, Option<u32>) {
    let members = queue.members.iter().map(|member| (member.node.clone(), member.state == MemberState::Holds));
    (members.collect(), queue.done.as_ref().map(|done| done.at), queue.permits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_survives_outages_and_ends_on_lasting_errors() {
        let away = Error::Unreachable("it is away".to_owned());
        let unknown = Error::OutcomeUnknown { operation: "read", reason: "it was cut".to_owned() };
        for passes in [away, unknown] {
            assert!(answer(Err(passes)).is_ok_and(|queue| queue.is_none()));
        }
        let denied = Error::PermissionDenied { operation: "read", path: "/lock".to_owned(), lacks: Box::default() };
        assert!(answer(Err(denied)).is_err_and(|exit| exit.code() == exit::NO_PERMISSION));
    }
}
