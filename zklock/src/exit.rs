//! The exit codes of zklock, and [`Exit`], the failure that carries one.

use zk_rwlock::error::PermitsError;
use zk_rwlock::error::SessionEnd;
use zk_rwlock::{Error, Loss};

/// The answer is no: the lock was not granted (`-n`, `-w`; `-E` sets another code), `check` found an oddity, `break`,
/// `forget` or `permits --remove` found nothing to remove, or the user did not confirm `break`.
pub(crate) const NEGATIVE: u8 = 1;
/// `EX_USAGE` of sysexits.h: the command line is wrong, or a setting or a file that the command line or the environment
/// names is wrong.
pub(crate) const USAGE: u8 = 64;
/// `EX_DATAERR`: the data in ZooKeeper prevents the operation (for example the nodes of another program), or the
/// servers refuse the operation (for example because of a quota). Also the code of errors that have no other code.
pub(crate) const IN_THE_WAY: u8 = 65;
/// `EX_UNAVAILABLE`: no server can be reached, or the connection was lost before the servers answered.
pub(crate) const UNAVAILABLE: u8 = 69;
/// `EX_SOFTWARE`: a server does not agree with the ensemble's leader about a node, and no other server can be used.
pub(crate) const DIVERGED: u8 = 70;
/// `EX_OSERR`: the system lacks a resource, such as a thread, or refuses a call, such as to register a signal handler.
pub(crate) const SYSTEM: u8 = 71;
/// `EX_IOERR`: writing to standard output failed. If nobody reads standard output any more, that is no failure.
pub(crate) const NOT_WRITTEN: u8 = 74;
/// `EX_TEMPFAIL`: the lock was lost while the command ran (`--lost-exit-code` sets another code). Another try may
/// succeed.
pub(crate) const LOST: u8 = 75;
/// The place in the queue, or the lock, was lost before the command was started. Another try may succeed. sysexits.h
/// has no code for this.
pub(crate) const PLACE_LOST: u8 = 76;
/// `EX_NOPERM`: ZooKeeper denies a right, refuses an ACL or the credentials, or the client cannot connect any more.
pub(crate) const NO_PERMISSION: u8 = 77;
/// The command cannot be executed, for example because its file is no program. Shells and env(1) use the same code.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command does not exist. Shells and env(1) use the same code.
pub(crate) const NO_SUCH_COMMAND: u8 = 127;

/// A failure: a message for people, which may be empty, and an exit code for scripts.
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

    /// Returns this exit with `more` appended to its message.
    pub(crate) fn with_suffix(self, more: &str) -> Exit {
        Exit { message: format!("{}{more}", self.message), ..self }
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
            Error::Permits { reason: PermitsError::TooFew { .. } | PermitsError::Other { .. }, .. } => USAGE,
            Error::PermissionDenied { .. } | Error::Closed(_) | Error::InvalidAcl { .. } => NO_PERMISSION,
            Error::Lost(why) => code_of_loss(*why, LOST),
            Error::Evicted(why) => code_of_loss(*why, PLACE_LOST),
            Error::Diverged { .. } => DIVERGED,
            Error::Refused { operation: "start the thread for", .. } => SYSTEM,
            Error::Unreachable(_) | Error::OutcomeUnknown { .. } => UNAVAILABLE,
            _ => IN_THE_WAY,
        };
        Exit::new(
            code,
            match &error {
                Error::ForeignContender { speaks, dialect, .. } if speaks != dialect => {
                    format!("{error}: try --dialect {speaks}")
                }
                Error::PermissionDenied { lacks, .. } if lacks.whom.is_empty() => {
                    format!("{error}: set ZK_AUTH or ZK_SASL")
                }
                Error::Permits { path, reason: PermitsError::NoLock } => {
                    format!("{error}: zklock permits {path} --remove")
                }
                Error::Permits { path, reason: PermitsError::EmptyNode } => {
                    format!("{error}; or, if it is surely no lock, zklock permits {path} N --create")
                }
                error => error.to_string(),
            },
        )
    }
}

/// Returns the exit code for the loss of a lock or of a place in the queue: [`NO_PERMISSION`] if the session ended
/// because the servers refused the credentials, and `usually` otherwise.
pub(crate) fn code_of_loss(why: Loss, usually: u8) -> u8 {
    match why {
        Loss::SessionOver(SessionEnd::AuthFailed) => NO_PERMISSION,
        _ => usually,
    }
}

/// Returns the exit code that a shell reports for a process that a signal ended: 128 plus the number of the signal, but
/// at most 255.
pub(crate) fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use zk_rwlock::Dialect;

    use super::*;

    #[test]
    fn a_foreign_node_error_suggests_its_dialect() {
        let said = |speaks| {
            let (path, node) = ("/l".to_owned(), "n".to_owned());
            Exit::from(Error::ForeignContender { path, node, speaks, dialect: Dialect::Native }).message
        };
        assert!(said(Dialect::Kazoo).ends_with(": try --dialect kazoo"), "{}", said(Dialect::Kazoo));
        assert!(!said(Dialect::Native).contains("--dialect"), "{}", said(Dialect::Native));
    }
}
