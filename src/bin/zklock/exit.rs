//! The exit codes of zklock, and the errors that lead to them; knows no ZooKeeper and no child.

use zk_rwlock::Error;

/// Something odd was found, or no contender had the token.
pub(crate) const NEGATIVE: u8 = 1;
/// `EX_USAGE` of sysexits.h: the call was wrong.
pub(crate) const USAGE: u8 = 64;
/// `EX_UNAVAILABLE`: no server, or no such command.
pub(crate) const UNAVAILABLE: u8 = 69;
/// `EX_IOERR`: the answer could not be written.
pub(crate) const NOT_WRITTEN: u8 = 74;
/// `EX_TEMPFAIL`: the lock was lost; trying again may help.
pub(crate) const LOST: u8 = 75;
/// `EX_NOPERM`: not allowed.
pub(crate) const NO_PERMISSION: u8 = 77;

/// An end without a result: a message for people, and a code for scripts.
#[derive(Debug)]
pub(crate) struct Exit {
    code: u8,
    message: String,
}

impl Exit {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Exit {
        Exit { code, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Exit {
        Exit::new(USAGE, message)
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl From<Error> for Exit {
    fn from(error: Error) -> Exit {
        let code = match &error {
            Error::Timeout { .. } | Error::WouldBlock { .. } => NEGATIVE,
            Error::InvalidInput(_) | Error::EphemeralParent { .. } => USAGE,
            Error::PermissionDenied { .. } | Error::Closed(_) => NO_PERMISSION,
            Error::Lost(_) | Error::Evicted(_) => LOST,
            _ => UNAVAILABLE,
        };
        Exit::new(
            code,
            match &error {
                Error::ForeignContender { speaks, dialect, .. } if speaks != dialect => {
                    format!("{error}: try --dialect {speaks}")
                }
                error => error.to_string(),
            },
        )
    }
}

/// The exit code that a shell gives to a process that a signal ended.
pub(crate) fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
