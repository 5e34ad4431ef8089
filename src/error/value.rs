//! What can be wrong with a value, by what the caller can do about it.

use std::fmt;
use std::time::SystemTime;

use thiserror::Error;

use crate::queue::metadata::date;

/// Why the value behind a lock cannot be read or written. The value in the ensemble stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ValueError {
    /// There is no value: it was never written. Write one with [`replacing`](crate::Acquire::replacing), or give the handle an
    /// [`initial`](crate::shared::SharedBuilder::initial) value.
    #[error("no value has been written yet: write one with `replacing`, or give the handle an `initial` one")]
    Unset,

    /// There was a value, and its node is gone: somebody has deleted it. The [initial](crate::shared::SharedBuilder::initial) value is not
    /// written in its place. Find out who deletes nodes, and write a value with [`replacing`](crate::Acquire::replacing).
    #[error("its node is gone, and so is the value that was set: write one with `replacing`")]
    Vanished,

    /// The node holds something that no [`Shared`](crate::Shared) wrote. Look at it; then delete it, or
    /// [replace](crate::Acquire::replacing) it.
    #[error("its bytes are not a value of ours: {problem}; look at them, then delete the node, or replace them")]
    Foreign {
        /// How that shows.
        problem: String,
    },

    /// The value was written in another format. Use the same format everywhere.
    #[error("it is written as {found:?}, and read as {expected:?}; last written by {written}")]
    OtherFormat {
        /// The name of the format it was written in.
        found: String,
        /// The name of ours.
        expected: String,
        /// The last write.
        written: Box<Written>,
    },

    /// The value was written by a program that knows a newer schema. Update this program.
    #[error("it has schema {}, and this program knows none after {known}: last written by {written}", written.schema)]
    NewerSchema {
        /// The newest schema that this program knows.
        known: u32,
        /// The last write.
        written: Box<Written>,
    },

    /// The value was written with an older schema, and cannot be brought to ours. Mend the
    /// [migration](crate::shared::SharedBuilder::migrate).
    #[error("it has schema {}, which cannot be brought to {known}: {problem}; last written by {written}", written.schema)]
    OlderSchema {
        /// Our schema.
        known: u32,
        /// Why it cannot.
        problem: String,
        /// The last write.
        written: Box<Written>,
    },

    /// The value has our format and our schema, but does not fit our type. Mend the type, or raise the
    /// [schema](crate::shared::SharedBuilder::schema).
    #[error("it does not fit the type: {problem}; last written by {written}")]
    WrongType {
        /// What the format said.
        problem: String,
        /// The last write.
        written: Box<Written>,
    },

    /// The new value cannot be written in this format, or could not be read again. Nothing was sent.
    #[error("the new value cannot be written down so that it can be read again: {problem}")]
    Unwritable {
        /// What the format said.
        problem: String,
    },

    /// The new value is too large. Nothing was changed.
    #[error("the new value takes {bytes} bytes{}", too_large(*.limit))]
    TooLarge {
        /// How many bytes it takes, with what is kept beside it.
        bytes: usize,
        /// How many bytes [`size_limit`](crate::shared::SharedBuilder::size_limit) allows: then nothing was sent. `None` if the
        /// servers closed the connection each time the value was sent, and at no other request: their `jute.maxbuffer`
        /// is smaller.
        limit: Option<usize>,
    },
}

impl ValueError {
    /// Whether the node holds nothing at all.
    pub(crate) fn is_no_value(&self) -> bool {
        matches!(self, ValueError::Unset | ValueError::Vanished)
    }
}

fn too_large(limit: Option<usize>) -> String {
    match limit {
        Some(limit) => format!(", and at most {limit} are allowed"),
        None => ", and the servers closed the connection each time it was sent: their jute.maxbuffer must be smaller"
            .to_owned(),
    }
}

/// The last write of a value: by which host and acquisition, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// The host it says it ran on.
    pub host: String,
    /// The label of the acquisition that it was written under.
    pub label: Option<String>,
    /// The fencing token of that acquisition.
    pub token: i64,
    /// Which commit under that token it was, counted from 1.
    pub commit: u32,
    /// When, on that host's clock.
    pub at: SystemTime,
    /// The schema it was written with: see [`SharedBuilder::schema`](crate::shared::SharedBuilder::schema).
    pub schema: u32,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.host)?;
        if let Some(label) = &self.label {
            write!(f, " {label:?}")?;
        }
        write!(f, " with token {} at {}", self.token, humantime::format_rfc3339_seconds(date(self.at)))
    }
}
