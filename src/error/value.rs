//! [`ValueError`], whose variants tell a caller what to do. Also [`Written`], the last write of a value.

use std::fmt;
use std::time::SystemTime;

use thiserror::Error;

use crate::queue::metadata::clamp_to_printable;
use crate::queue::quoted::quoted;

/// Why the value behind a lock cannot be read or written. The value in the ensemble stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ValueError {
    /// No value was ever written. Write one with [`replacing`](crate::Acquire::replacing), or give the handle an
    /// [`initial`](crate::shared::SharedBuilder::initial) value.
    #[error("no value has been written yet: write one with `replacing`, or give the handle an `initial` one")]
    Unset,

    /// The node of the value was deleted. The [initial](crate::shared::SharedBuilder::initial) value is not written in
    /// its place. Find out who deletes nodes, and write a value with [`replacing`](crate::Acquire::replacing).
    #[error("its node is gone, and so is the value that was set: write one with `replacing`")]
    Vanished,

    /// The bytes of the node were not written by a [`Shared`](crate::Shared). Look at the node. Then delete the node,
    /// or [replace](crate::Acquire::replacing) its bytes.
    #[error("its bytes are not a value of ours: {problem}; look at them, then delete the node, or replace them")]
    Foreign {
        /// The way in which the bytes differ from a value that this library writes.
        problem: String,
    },

    /// The value was written in another format. Use the same format everywhere.
    #[error("it is written as {}, and read as {expected:?}; last written by {written}", quoted(.found))]
    OtherFormat {
        /// The name of the format of the value.
        found: String,
        /// The name of this handle's format.
        expected: String,
        /// The last write of the value.
        written: Box<Written>,
    },

    /// The value has a newer schema than this program knows. Update this program.
    #[error("it has schema {}, and this program knows none after {known}: last written by {written}", written.schema)]
    NewerSchema {
        /// The newest schema that this program knows.
        known: u32,
        /// The last write of the value.
        written: Box<Written>,
    },

    /// The value was written with an older schema, and cannot be converted to the schema of this handle. Add the
    /// missing [migration](crate::shared::SharedBuilder::migrate), or fix the migration that failed.
    #[error("it has schema {}, which cannot be brought to {known}: {problem}; last written by {written}", written.schema)]
    OlderSchema {
        /// The schema of this handle.
        known: u32,
        /// The reason why the value cannot be converted.
        problem: String,
        /// The last write of the value.
        written: Box<Written>,
    },

    /// The value has the format and the schema of this handle, but does not fit the handle's type. Fix the type, or
    /// raise the [schema](crate::shared::SharedBuilder::schema).
    #[error("it does not fit the type: {problem}; last written by {written}")]
    WrongType {
        /// The text of the format's error.
        problem: String,
        /// The last write of the value.
        written: Box<Written>,
    },

    /// The new value cannot be encoded in the format of this handle, or it was encoded and cannot be decoded again.
    /// Nothing was sent.
    #[error("the new value cannot be written down so that it can be read again: {problem}")]
    Unwritable {
        /// The text of the format's error.
        problem: String,
    },

    /// The new value is too large. Nothing was changed.
    #[error("the new value takes {bytes} bytes{}", size_limit_text(*.limit))]
    TooLarge {
        /// The size of the value in bytes, including its header.
        bytes: usize,
        /// The [`size_limit`](crate::shared::SharedBuilder::size_limit). A value above this limit is not sent. `None`
        /// if the value is below the limit and was sent, and the servers closed the connection each time. The value
        /// then exceeds their `jute.maxbuffer`.
        limit: Option<usize>,
    },
}

impl ValueError {
    /// Returns whether the error is [`ValueError::Unset`] or [`ValueError::Vanished`]: no value exists.
    pub(crate) fn is_no_value(&self) -> bool {
        matches!(self, ValueError::Unset | ValueError::Vanished)
    }
}

fn size_limit_text(limit: Option<usize>) -> String {
    match limit {
        Some(limit) => format!(", and at most {limit} are allowed"),
        None => ", and the servers closed the connection each time it was sent: their jute.maxbuffer must be smaller"
            .to_owned(),
    }
}

/// The last write of a value: its host, its time, and the acquisition under which the value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// The host that the writer named.
    pub host: String,
    /// The label of the writer's acquisition.
    pub label: Option<String>,
    /// The fencing token of the hold under which the value was written.
    pub token: i64,
    /// The number of this commit among the commits under the same token. The first commit has the number 1.
    pub commit: u32,
    /// The time of the write, on the writer's clock.
    pub at: SystemTime,
    /// The schema of the value: see [`SharedBuilder::schema`](crate::shared::SharedBuilder::schema).
    pub schema: u32,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.host)?;
        if let Some(label) = &self.label {
            write!(f, " {}", quoted(label))?;
        }
        write!(f, " with token {} at {}", self.token, humantime::format_rfc3339_seconds(clamp_to_printable(self.at)))
    }
}
