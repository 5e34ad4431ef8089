//! The settings that come from an option or, without the option, from an environment variable.
//!
//! An error message that this module makes begins with the name of the option or variable that gave the value. clap
//! reads the options, and this module reads the variables.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::exit::Exit;
use crate::output::shorten_argument;

/// The option and the environment variable of a setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) option: &'static str,
    pub(crate) variable: &'static str,
}

pub(crate) const HOSTS: Setting = Setting { option: "--zk", variable: "ZK_HOSTS" };
pub(crate) const TICK_TIME: Setting = Setting { option: "--tick-time", variable: "ZK_TICK_TIME" };
pub(crate) const AUTH: Setting = Setting { option: "--auth", variable: "ZK_AUTH" };
pub(crate) const AUTH_FILE: Setting = Setting { option: "--auth-file", variable: "ZK_AUTH_FILE" };
pub(crate) const SASL: Setting = Setting { option: "--sasl", variable: "ZK_SASL" };
pub(crate) const SASL_FILE: Setting = Setting { option: "--sasl-file", variable: "ZK_SASL_FILE" };
pub(crate) const TLS_CA: Setting = Setting { option: "--tls-ca", variable: "ZK_TLS_CA" };
pub(crate) const TLS_CERT: Setting = Setting { option: "--tls-cert", variable: "ZK_TLS_CERT" };
pub(crate) const TLS_KEY: Setting = Setting { option: "--tls-key", variable: "ZK_TLS_KEY" };

/// The value of a setting, and the option or variable that gave it.
#[derive(Clone)]
pub(crate) struct GivenValue {
    text: OsString,
    name: &'static str,
}

impl Setting {
    /// Returns the value of the option. If the option is not given, returns the value of the environment variable. Both
    /// are changed as [`without_bom_and_newline`] does. An empty value counts as not given, so that an empty variable
    /// is the same as an unset one. An empty option hides the variable.
    pub(crate) fn given_value(self, option: Option<&OsString>) -> Option<GivenValue> {
        self.option_or_variable(option.cloned(), std::env::var_os(self.variable))
    }

    fn option_or_variable(self, option: Option<OsString>, variable: Option<OsString>) -> Option<GivenValue> {
        let (text, name) = match (option, variable) {
            (Some(text), _) => (text, self.option),
            (None, Some(text)) => (text, self.variable),
            (None, None) => return None,
        };
        let line = OsStr::from_bytes(without_bom_and_newline(text.as_bytes()));
        (!text.is_empty()).then(|| GivenValue { text: line.to_owned(), name })
    }
}

/// Returns the text without a byte order mark at its beginning and without one newline at its end. A text from a file
/// may have these, and so may the value of a variable, because Kubernetes can set a variable to the content of a file.
pub(crate) fn without_bom_and_newline(text: &[u8]) -> &[u8] {
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.strip_suffix(b"\r").unwrap_or(text)
}

impl GivenValue {
    /// Returns the option or variable that gave the value.
    pub(crate) fn setting_name(&self) -> &'static str {
        self.name
    }

    /// Returns the value as text. Fails if the value is not valid UTF-8. The error does not show the value, because it
    /// may be a password.
    pub(crate) fn as_text(&self) -> Result<&str, Exit> {
        self.text.to_str().ok_or_else(|| self.usage_error("the value is not valid UTF-8"))
    }

    /// Returns the value as the name of a file.
    pub(crate) fn as_file_path(&self) -> &Path {
        Path::new::<OsStr>(&self.text)
    }

    /// Returns a usage error about this value: the name of the option or variable, and `problem`.
    pub(crate) fn usage_error(&self, problem: impl Display) -> Exit {
        Exit::usage(format!("{}: {problem}", self.name))
    }

    /// Returns a usage error about the file that this value names: the name of the option or variable, the file, and
    /// `problem`.
    pub(crate) fn file_error(&self, problem: impl Display) -> Exit {
        self.usage_error(format!("{}: {problem}", shorten_argument(&self.as_file_path().display().to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_override_variables_and_empty_is_unset() {
        let given = |option: Option<&str>, variable: Option<&str>| {
            let given = TICK_TIME.option_or_variable(option.map(OsString::from), variable.map(OsString::from));
            given.map(|given| (given.setting_name(), given.as_text().unwrap().to_owned()))
        };
        assert_eq!(given(None, None), None);
        assert_eq!(given(None, Some("2s")), Some(("ZK_TICK_TIME", "2s".to_owned())));
        assert_eq!(given(Some("1s"), Some("2s")), Some(("--tick-time", "1s".to_owned())));
        assert_eq!(given(Some(""), Some("2s")), None);
        assert_eq!(given(None, Some("")), None);
    }

    #[test]
    fn a_text_of_a_file_loses_its_mark_and_one_newline() {
        for text in ["me:it", "me:it\n", "me:it\r\n", "\u{feff}me:it", "\u{feff}me:it\r\n"] {
            assert_eq!(without_bom_and_newline(text.as_bytes()), b"me:it", "{text:?}");
        }
        for (text, rest) in [("me:it\n\n", "me:it\n"), ("\nme:it", "\nme:it"), (" me:it ", " me:it ")] {
            assert_eq!(without_bom_and_newline(text.as_bytes()), rest.as_bytes(), "{text:?}");
        }
    }
}
