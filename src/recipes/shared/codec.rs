//! What the bytes of a value must be, and how a value is made of them.

use std::ops::Deref;

use crate::error::error::Error;
use crate::error::value::{ValueError, Written};
use crate::recipes::shared::envelope::Envelope;
use crate::recipes::shared::format::{Format, FormatError};
use crate::validation::REQUEST_LIMIT;

/// What is sent with a value: two paths, an ACL, and the frames of the transaction.
pub(crate) const ROOM: usize = 4096;

/// What servers take in one request by default, less that.
const SIZE_LIMIT: usize = REQUEST_LIMIT - ROOM;

/// A value, with its writer and the time of writing. Derefs to the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<T> {
    pub(crate) value: T,
    pub(crate) written: Written,
}

impl<T> Stored<T> {
    /// The writer of the value, and the time.
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// The value alone, without its writer.
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl<T> Deref for Stored<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// What the bytes of a value must be, whatever its type.
pub(crate) struct Form {
    /// The format's name, asked for once: bytes are also checked on the thread that keeps the sessions alive, where no user
    /// code runs.
    pub(crate) name: String,
    pub(crate) schema: u32,
    pub(crate) size_limit: usize,
}

impl Form {
    /// The form of a handle without options.
    pub(crate) fn new(name: &str) -> Form {
        Form { name: name.to_owned(), schema: 1, size_limit: SIZE_LIMIT }
    }

    /// Refuses a format with a name that could not be read back.
    pub(crate) fn check_name(&self) -> Result<(), Error> {
        let name = &self.name;
        let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '+' | '-');
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_fit) {
            return Err(Error::invalid(format!("the name of the format is {name:?}")));
        }
        Ok(())
    }

    /// What is kept beside a value, and the bytes of the value alone, if this library can read them.
    pub(crate) fn open<'bytes>(&self, bytes: &'bytes [u8]) -> Result<(Written, &'bytes [u8]), ValueError> {
        if bytes.is_empty() {
            return Err(ValueError::Unset);
        }
        let (Envelope { format: found, written, .. }, payload) =
            Envelope::open(bytes).map_err(|problem| ValueError::Foreign { problem })?;
        if written.schema > self.schema {
            return Err(ValueError::NewerSchema { known: self.schema, written: Box::new(written) });
        }
        if found != self.name && written.schema == self.schema {
            let (expected, written) = (self.name.clone(), Box::new(written));
            return Err(ValueError::OtherFormat { found, expected, written });
        }
        Ok((written, payload))
    }
}

/// How a value is made of bytes, and bytes of a value.
pub(crate) struct Terms<T> {
    pub(crate) format: Box<dyn Format<T>>,
    pub(crate) initial: Option<Initial<T>>,
    pub(crate) migrate: Option<Migrate<T>>,
}

pub(crate) type Initial<T> = Box<dyn Fn() -> T + Send + Sync>;

pub(crate) type Migrate<T> = Box<dyn Fn(u32, &[u8]) -> Result<T, FormatError> + Send + Sync>;

impl<T: 'static> Terms<T> {
    /// The value of these bytes.
    pub(crate) fn open(&self, form: &Form, bytes: &[u8]) -> Result<Stored<T>, ValueError> {
        let (written, payload) = form.open(bytes)?;
        let known = form.schema;
        let value = if written.schema == known {
            self.format.decode(payload).map_err(|problem| ValueError::WrongType {
                problem: problem.to_string(),
                written: Box::new(written.clone()),
            })
        } else {
            let migrated = match &self.migrate {
                Some(migrate) => migrate(written.schema, payload).map_err(|problem| problem.to_string()),
                None => Err("there is no migration".to_owned()),
            };
            migrated.map_err(|problem| ValueError::OlderSchema { known, problem, written: Box::new(written.clone()) })
        };
        Ok(Stored { value: value?, written })
    }

    /// The bytes of a value alone. It is read back, so that nobody commits what nobody can read.
    pub(crate) fn payload(&self, value: &T) -> Result<Vec<u8>, ValueError> {
        let payload = self.format.encode(value).map_err(unwritable)?;
        self.format.decode(&payload).map_err(unwritable)?;
        Ok(payload)
    }
}

fn unwritable(problem: FormatError) -> ValueError {
    ValueError::Unwritable { problem: problem.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_has_a_name_of_one_to_64_plain_characters() {
        let is_fit = |name: &str| Form::new(name).check_name().is_ok();
        assert!(is_fit("j") && is_fit("json+zstd_2.1-b") && is_fit(&"j".repeat(64)));
        assert!(!is_fit("") && !is_fit("a b") && !is_fit("é") && !is_fit(&"j".repeat(65)));
    }

    #[test]
    fn bytes_without_an_envelope_are_no_value() {
        let form = Form::new("byte");
        assert_eq!(form.open(b""), Err(ValueError::Unset));
        assert!(matches!(form.open(b"rubbish"), Err(ValueError::Foreign { .. })));
    }
}
