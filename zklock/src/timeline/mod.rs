//! The subcommand `timeline`: draws lines of `zklock watch --json` as a picture (SVG).

mod rows;
mod svg;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::time::SystemTime;

use crate::arguments::TimelineArguments;
use crate::exit::{self, Exit};
use crate::output;
use crate::timeline::rows::{Picture, WatchJsonLine, WatcherState};

/// The maximal number of rows of a picture. A picture with more rows is unreadable, and makes a browser slow.
const ROWS_MAX: usize = 2_000;

pub(crate) fn print_timeline(order: &TimelineArguments) -> Result<u8, Exit> {
    let mut picture = Picture::new(order);
    if order.files.is_empty() {
        read_watch_lines("standard input", io::stdin().lock(), &mut picture)?;
    }
    for file in &order.files {
        let name = file.display().to_string();
        let open = File::open(file).map_err(|error| Exit::usage(format!("cannot read {name}: {error}")))?;
        read_watch_lines(&name, BufReader::new(open), &mut picture)?;
    }
    if picture.count == 0 {
        return Err(Exit::usage("nobody held or waited: there is nothing to draw"));
    }
    let (begin, end) = picture.begin_and_end();
    check_row_count(&picture, end.max(begin))?;
    output::print_result(&svg::svg_text(&picture))?;
    Ok(0)
}

/// Adds the lines of one watcher (a `zklock watch --json`) to the picture. Fails as soon as the picture has too many
/// rows, so that a long file needs little memory. Before `--from`, too many rows are no failure.
fn read_watch_lines(name: &str, mut lines: impl BufRead, picture: &mut Picture<'_>) -> Result<(), Exit> {
    let (mut watcher, mut text, mut number) = (WatcherState::default(), String::new(), 0);
    loop {
        text.clear();
        number += 1;
        match lines.read_line(&mut text) {
            Ok(0) => return Ok(()),
            Ok(_) if text.trim().is_empty() => {}
            Ok(_) => match serde_json::from_str::<WatchJsonLine<'_>>(&text) {
                Ok(line) => {
                    picture.add_watch_line(&mut watcher, &line);
                    check_row_count(picture, line.at)?;
                }
                // An incomplete last line is ignored: the watcher may have been killed while it wrote the line.
                Err(error) if error.is_eof() && !text.ends_with('\n') => return Ok(()),
                Err(error) => {
                    let why = format!("{name}: line {number} is no line of zklock watch --json: {error}");
                    return Err(Exit::new(exit::IN_THE_WAY, why));
                }
            },
            Err(error) => return Err(Exit::usage(format!("cannot read {name}: {error}"))),
        }
    }
}

/// Fails if the picture has too many rows after a line of time `at`. Before `--from`, too many rows are no error:
/// contenders that leave before `--from` are not drawn, so their rows will go.
fn check_row_count(picture: &Picture<'_>, at: SystemTime) -> Result<(), Exit> {
    if picture.count <= ROWS_MAX || picture.order.from.is_some_and(|from| at < from) {
        return Ok(());
    }
    let [begin, end] = [picture.begin_and_end().0, at].map(humantime::format_rfc3339_millis);
    Err(Exit::usage(format!(
        "from {begin} to {end} alone there are more than the {ROWS_MAX} rows that can be drawn: choose fewer with \
         --from, --to or --lock"
    )))
}
