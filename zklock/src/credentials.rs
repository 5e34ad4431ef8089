//! Users and passwords: read from an option, a variable or a file, and hidden from the command.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::exit::Exit;
use crate::settings::Given;

/// The variables that the command does not get without `--keep-credentials`.
pub(crate) const VARIABLES: [&str; 6] =
    ["ZK_AUTH", "ZK_AUTH_FILE", "ZK_SASL", "ZK_SASL_FILE", "ZK_TLS_CERT", "ZK_TLS_KEY"];

/// The maximal length of user and password together, in bytes.
const MOST: u64 = 1 << 16;

/// The two settings that can give user and password: the text itself, and the name of a file with the text.
pub(crate) type Either = (Option<Given>, Option<Given>);

/// Returns user and password, from the text or from the only line of the file. No error message contains them.
///
/// # Errors
/// Fails if text and file are both given, if the file cannot be read or is not exactly one line, or if the text is not
/// `USER:PASSWORD`.
pub(crate) fn credentials(either: Either) -> Result<Option<(String, String)>, Exit> {
    let Some(source) = source(&either) else { return Ok(None) };
    let text = match either {
        (None, None) => return Ok(None),
        (Some(given), Some(file)) => {
            return Err(Exit::usage(format!(
                "{} and {} are both given: give one of them, not both",
                given.name(),
                file.name()
            )));
        }
        (Some(given), None) => given.text()?.to_owned(),
        (None, Some(file)) => {
            let text = read(file.file()).map_err(|error| file.wrong_file(error))?;
            one_line(&text).map_err(|problem| file.wrong_file(problem))?.to_owned()
        }
    };
    let wrong = |what| Err(Exit::usage(format!("{source} must be USER:PASSWORD: {what}")));
    match text.split_once(':') {
        None => wrong("it has no colon"),
        Some(("", _)) => wrong("it has no user before the colon"),
        Some((user, password)) => Ok(Some((user.to_owned(), password.to_owned()))),
    }
}

/// Returns the option, variable or file that gave user and password.
pub(crate) fn source(either: &Either) -> Option<String> {
    match either {
        (None, None) => None,
        (None, Some(file)) => Some(format!("{} {}", file.name(), file.file().display())),
        (Some(given), _) => Some(given.name().to_owned()),
    }
}

fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the only line of a file, without its newline.
fn one_line(text: &str) -> Result<&str, &'static str> {
    let line = text.strip_suffix('\n').unwrap_or(text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    match (line.is_empty(), line.contains(['\n', '\r'])) {
        (false, false) => Ok(line),
        (true, _) => Err("it is empty, and should be one line, USER:PASSWORD"),
        (_, true) => Err("it has more than one line, and should be one, USER:PASSWORD"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_line_with_or_without_a_newline() {
        for text in ["me:it", "me:it\n", "me:it\r\n"] {
            assert_eq!(one_line(text), Ok("me:it"));
        }
        for text in ["", "\n", "\r\n", "me:it\n\n", "me:it\nyou:it", "\nme:it", "me:it\rx"] {
            assert!(one_line(text).is_err_and(|problem| !problem.contains("me:")), "{text:?}");
        }
    }
}
