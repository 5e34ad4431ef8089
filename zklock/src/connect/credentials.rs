//! Reads users and passwords from an option, a variable or a file, and names the variables that the command under the
//! lock does not inherit.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::connect::settings::{GivenValue, without_bom_and_newline};
use crate::exit::Exit;

/// The environment variables that the command under the lock inherits only with `--keep-credentials`.
pub(crate) const VARIABLES: [&str; 6] =
    ["ZK_AUTH", "ZK_AUTH_FILE", "ZK_SASL", "ZK_SASL_FILE", "ZK_TLS_CERT", "ZK_TLS_KEY"];

/// The maximal number of bytes of a file with user and password.
const MOST: usize = 1 << 16;

/// The two settings that can give user and password: the text itself, and the name of a file with the text.
pub(crate) type CredentialSettings = (Option<GivenValue>, Option<GivenValue>);

/// Returns user and password from the text or from the only line of the file, or `None` if neither is given. No error
/// message contains the user or the password.
///
/// # Errors
/// Fails if text and file are both given, if the file cannot be read or has more than [`MOST`] bytes, or if what is
/// given is not exactly one line of UTF-8, `USER:PASSWORD`, with a user that is not empty.
pub(crate) fn read_credentials(settings: CredentialSettings) -> Result<Option<(String, String)>, Exit> {
    let Some(source) = source_of_credentials(&settings) else { return Ok(None) };
    let text = match settings {
        (None, None) => return Ok(None),
        (Some(given), Some(file)) => {
            return Err(Exit::usage(format!(
                "{} and {} are both given: give one of them, not both",
                given.setting_name(),
                file.setting_name()
            )));
        }
        (Some(given), None) => {
            let text = given.as_text()?;
            check_one_line(text).map_err(|problem| given.usage_error(problem))?;
            text.to_owned()
        }
        (None, Some(file)) => {
            let bytes = read_file(file.as_file_path()).map_err(|error| file.file_error(error))?;
            let text = std::str::from_utf8(without_bom_and_newline(&bytes))
                .map_err(|_| file.file_error("it is not valid UTF-8"))?;
            check_one_line(text).map_err(|problem| file.file_error(problem))?;
            text.to_owned()
        }
    };
    let wrong = |what| Err(Exit::usage(format!("{source} must be USER:PASSWORD: {what}")));
    match text.split_once(':') {
        None => wrong("it has no colon"),
        Some(("", _)) => wrong("it has no user before the colon"),
        Some((user, password)) => Ok(Some((user.to_owned(), password.to_owned()))),
    }
}

/// Returns the name of the option or variable that gave user and password, followed by the name of the file if they
/// come from one. `None` if they are not given.
pub(crate) fn source_of_credentials(settings: &CredentialSettings) -> Option<String> {
    match settings {
        (None, None) => None,
        (None, Some(file)) => Some(format!("{} {}", file.setting_name(), file.as_file_path().display())),
        (Some(given), _) => Some(given.setting_name().to_owned()),
    }
}

fn read_file(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match File::open(file)?.take(MOST as u64 + 1).read_to_end(&mut bytes)? {
        0..=MOST => Ok(bytes),
        _ => Err(io::Error::other(format!("it has more than {MOST} bytes"))),
    }
}

fn check_one_line(text: &str) -> Result<(), &'static str> {
    match (text.is_empty(), text.contains(['\n', '\r'])) {
        (false, false) => Ok(()),
        (true, _) => Err("it is empty, and should be one line, USER:PASSWORD"),
        (_, true) => Err("it has more than one line, and should be one, USER:PASSWORD"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_the_most_bytes_is_read_whole() {
        let files = tempfile::tempdir().unwrap();
        let file = files.path().join("credentials");
        for (bytes, read) in [(MOST, Some(MOST)), (MOST + 1, None)] {
            std::fs::write(&file, vec![b'x'; bytes]).unwrap();
            assert_eq!(read_file(&file).ok().map(|read| read.len()), read);
        }
    }

    #[test]
    fn user_and_password_are_one_line() {
        assert_eq!(check_one_line("me:it"), Ok(()));
        for text in ["", "me:it\n", "me:it\nyou:it", "\nme:it", "me:it\rx"] {
            assert!(check_one_line(text).is_err_and(|problem| !problem.contains("me:")), "{text:?}");
        }
    }
}
