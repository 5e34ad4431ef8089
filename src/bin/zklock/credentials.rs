//! Users and passwords: from an option, a variable or a file, and kept from the command; knows no ZooKeeper.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::exit::Exit;

/// What the command does not get without --keep-credentials.
pub(crate) const VARIABLES: [&str; 6] =
    ["ZK_AUTH", "ZK_AUTH_FILE", "ZK_SASL", "ZK_SASL_FILE", "ZK_TLS_CERT", "ZK_TLS_KEY"];

/// No user and password are longer.
const MOST: u64 = 1 << 16;

/// User and password, as `option` or else the file of `{option}-file` has them. What is empty counts as not given, so
/// that a variable of the environment can be switched off. No message shows what was read.
///
/// # Errors
/// Both are given, the file cannot be read or has not one line, or there is no colon.
pub(crate) fn credentials(
    option: &str,
    given: Option<&str>,
    file: Option<&Path>,
) -> Result<Option<(String, String)>, Exit> {
    let given = given.filter(|given| !given.is_empty());
    let file = file.filter(|file| !file.as_os_str().is_empty());
    let Some(source) = source(option, given, file) else { return Ok(None) };
    let text = match (given, file) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(Exit::usage(format!("{option} and {option}-file, or their variables: one of them, not both")));
        }
        (Some(given), None) => given.to_owned(),
        (None, Some(file)) => {
            let text = read(file).map_err(|error| Exit::usage(format!("{source}: {error}")))?;
            one_line(&text).map_err(|problem| Exit::usage(format!("{source}: {problem}")))?.to_owned()
        }
    };
    let wrong = |what| Err(Exit::usage(format!("{source} must be USER:PASSWORD: {what}")));
    match text.split_once(':') {
        None => wrong("it has no colon"),
        Some(("", _)) => wrong("it has no user before the colon"),
        Some((user, password)) => Ok(Some((user.to_owned(), password.to_owned()))),
    }
}

/// Where user and password were given, in words of the command line: the option, its variable, or the file.
pub(crate) fn source(option: &str, given: Option<&str>, file: Option<&Path>) -> Option<String> {
    let given = given.filter(|given| !given.is_empty());
    let file = file.filter(|file| !file.as_os_str().is_empty());
    let variable = format!("ZK_{}", option.trim_start_matches('-').to_uppercase());
    match (given, file) {
        (None, None) => None,
        (None, Some(file)) => Some(format!("{option}-file {}", file.display())),
        (Some(given), _) if std::env::var(&variable).is_ok_and(|set| set == given) => Some(variable),
        (Some(_), _) => Some(option.to_owned()),
    }
}

fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

/// The only line of a file, without its end.
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
    fn a_file_has_one_line_with_or_without_an_end() {
        for text in ["me:it", "me:it\n", "me:it\r\n"] {
            assert_eq!(one_line(text), Ok("me:it"));
        }
        for text in ["", "\n", "\r\n", "me:it\n\n", "me:it\nyou:it", "\nme:it", "me:it\rx"] {
            assert!(one_line(text).is_err_and(|problem| !problem.contains("me:")), "{text:?}");
        }
    }
}
