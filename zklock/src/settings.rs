//! Settings that an option gives, or else a variable of the environment: their names, and which of the two it was.
//!
//! Each message about a setting begins with the name by which it was given. So the variables are read here and not while
//! the arguments are parsed, which knows only the options.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::Path;

use crate::exit::Exit;

/// A setting by its two names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) option: &'static str,
    pub(crate) variable: &'static str,
}

const fn setting(option: &'static str, variable: &'static str) -> Setting {
    Setting { option, variable }
}

pub(crate) const HOSTS: Setting = setting("--zk", "ZK_HOSTS");
pub(crate) const TICK_TIME: Setting = setting("--tick-time", "ZK_TICK_TIME");
pub(crate) const AUTH: Setting = setting("--auth", "ZK_AUTH");
pub(crate) const AUTH_FILE: Setting = setting("--auth-file", "ZK_AUTH_FILE");
pub(crate) const SASL: Setting = setting("--sasl", "ZK_SASL");
pub(crate) const SASL_FILE: Setting = setting("--sasl-file", "ZK_SASL_FILE");
pub(crate) const TLS_CA: Setting = setting("--tls-ca", "ZK_TLS_CA");
pub(crate) const TLS_CERT: Setting = setting("--tls-cert", "ZK_TLS_CERT");
pub(crate) const TLS_KEY: Setting = setting("--tls-key", "ZK_TLS_KEY");

/// What was given, and by which name.
#[derive(Clone)]
pub(crate) struct Given {
    text: OsString,
    name: &'static str,
}

impl Setting {
    /// What the option gives, or else the variable. What is empty counts as not given, so that a variable can be
    /// switched off.
    pub(crate) fn given(self, option: Option<&OsString>) -> Option<Given> {
        self.of(option.cloned(), std::env::var_os(self.variable))
    }

    fn of(self, option: Option<OsString>, variable: Option<OsString>) -> Option<Given> {
        let (text, name) = match (option, variable) {
            (Some(text), _) => (text, self.option),
            (None, Some(text)) => (text, self.variable),
            (None, None) => return None,
        };
        (!text.is_empty()).then_some(Given { text, name })
    }
}

impl Given {
    /// The option or the variable.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The text. No message shows it, because it may be a password.
    pub(crate) fn text(&self) -> Result<&str, Exit> {
        self.text.to_str().ok_or_else(|| self.wrong("it is no text in UTF-8"))
    }

    /// The text as the name of a file.
    pub(crate) fn file(&self) -> &Path {
        Path::new::<OsStr>(&self.text)
    }

    /// The refusal of what was given.
    pub(crate) fn wrong(&self, problem: impl Display) -> Exit {
        Exit::usage(format!("{}: {problem}", self.name))
    }

    /// The refusal of what was found in the file.
    pub(crate) fn wrong_file(&self, problem: impl Display) -> Exit {
        self.wrong(format!("{}: {problem}", self.file().display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_overrides_its_variable_empty_is_unset() {
        let given = |option: Option<&str>, variable: Option<&str>| {
            let given = TICK_TIME.of(option.map(OsString::from), variable.map(OsString::from));
            given.map(|given| (given.name(), given.text().unwrap().to_owned()))
        };
        assert_eq!(given(None, None), None);
        assert_eq!(given(None, Some("2s")), Some(("ZK_TICK_TIME", "2s".to_owned())));
        assert_eq!(given(Some("1s"), Some("2s")), Some(("--tick-time", "1s".to_owned())));
        assert_eq!(given(Some(""), Some("2s")), None);
        assert_eq!(given(None, Some("")), None);
    }
}
