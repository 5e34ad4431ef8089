//! The subcommand `timeline`: draws lines of `zklock watch --json` as a picture (SVG).

mod rows;
mod svg;

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use crate::arguments::Timeline;
use crate::exit::{self, Exit};
use crate::output;
use crate::timeline::rows::{Line, Picture, Reader};

/// The most rows of a picture. More cannot be read, and make a browser slow.
const ROWS_MAX: usize = 2_000;

pub(crate) fn timeline(order: &Timeline) -> Result<u8, Exit> {
    let mut picture = Picture::default();
    if order.files.is_empty() {
        picture.add(read("standard input", io::stdin().lock())?);
    }
    for file in &order.files {
        let name = file.display().to_string();
        let open = File::open(file).map_err(|error| Exit::usage(format!("cannot read {name}: {error}")))?;
        picture.add(read(&name, BufReader::new(open))?);
    }
    picture.cut(order.from, order.to, order.lock.as_deref());
    match picture.rows.len() {
        0 => return Err(Exit::usage("nobody held or waited: there is nothing to draw")),
        many if many > ROWS_MAX => {
            return Err(Exit::usage(format!(
                "{many} rows are more than the {ROWS_MAX} that can be drawn: choose fewer with --from, --to or --lock"
            )));
        }
        _ => {}
    }
    output::print(&svg::drawn(&picture))?;
    Ok(0)
}

/// Reads the lines of one watcher.
fn read(name: &str, mut lines: impl BufRead) -> Result<Reader, Exit> {
    let (mut reader, mut text, mut number) = (Reader::default(), String::new(), 0);
    loop {
        text.clear();
        number += 1;
        match lines.read_line(&mut text) {
            Ok(0) => return Ok(reader),
            Ok(_) if text.trim().is_empty() => {}
            Ok(_) => match serde_json::from_str::<Line<'_>>(&text) {
                Ok(line) => reader.take(&line),
                // The watcher was killed while it wrote the last line.
                Err(error) if error.is_eof() && !text.ends_with('\n') => return Ok(reader),
                Err(error) => {
                    let why = format!("{name}: line {number} is no line of zklock watch --json: {error}");
                    return Err(Exit::new(exit::IN_THE_WAY, why));
                }
            },
            Err(error) => return Err(Exit::usage(format!("cannot read {name}: {error}"))),
        }
    }
}
