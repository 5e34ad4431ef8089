//! What the bytes of a value must be, and how a value is made of them; knows neither locks nor nodes.

use std::ops::Deref;
use std::sync::Arc;

use crate::error::error::Error;
use crate::error::value::{ValueError, Written};
use crate::validation::REQUEST_LIMIT;
use crate::value::envelope::{Envelope, Mark};
use crate::value::format::{Format, FormatError};

/// What servers take in one request by default, less what is sent with the value: two paths, an ACL, and the frames of the
/// transaction.
const SIZE_LIMIT: usize = REQUEST_LIMIT - 4096;

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

/// What the bytes of a value must be, and how a value is made of them.
pub(crate) struct Terms<T> {
    /// The format's name, asked for once: bytes are also checked on the thread that keeps the sessions alive, where no user
    /// code runs.
    pub(crate) name: String,
    pub(crate) format: Arc<dyn Format<T>>,
    pub(crate) schema: u32,
    pub(crate) initial: Option<Initial<T>>,
    pub(crate) migrate: Option<Migrate<T>>,
    pub(crate) size_limit: usize,
}

pub(crate) type Initial<T> = Box<dyn Fn() -> T + Send + Sync>;

pub(crate) type Migrate<T> = Box<dyn Fn(u32, &[u8]) -> Result<T, FormatError> + Send + Sync>;

impl<T: 'static> Terms<T> {
    /// The terms of a handle without options.
    pub(crate) fn new(format: impl Format<T>) -> Terms<T> {
        let name = format.name().to_owned();
        Terms { name, format: Arc::new(format), schema: 1, initial: None, migrate: None, size_limit: SIZE_LIMIT }
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

    /// Whether these bytes look like a value that this library can read.
    pub(crate) fn check(&self, bytes: &[u8]) -> Result<(), ValueError> {
        self.envelope(bytes).map(drop)
    }

    fn envelope<'bytes>(&self, bytes: &'bytes [u8]) -> Result<(Envelope, &'bytes [u8]), ValueError> {
        if bytes.is_empty() {
            return Err(ValueError::Unset);
        }
        let (envelope, payload) = Envelope::open(bytes).map_err(|problem| ValueError::Foreign { problem })?;
        if envelope.written.schema > self.schema {
            return Err(ValueError::NewerSchema { known: self.schema, written: Box::new(envelope.written) });
        }
        if envelope.format != self.name && envelope.written.schema == self.schema {
            let expected = self.name.clone();
            return Err(ValueError::OtherFormat {
                found: envelope.format,
                expected,
                written: Box::new(envelope.written),
            });
        }
        Ok((envelope, payload))
    }

    /// The value of these bytes.
    pub(crate) fn open(&self, bytes: &[u8]) -> Result<Stored<T>, ValueError> {
        let (Envelope { written, .. }, payload) = self.envelope(bytes)?;
        let known = self.schema;
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

    /// The bytes of a value, with what is kept beside it. The value is read back, so that nobody commits what nobody can read.
    pub(crate) fn seal(&self, value: &T, written: &Written, after: Option<Mark>) -> Result<Vec<u8>, ValueError> {
        let payload = self.format.encode(value).map_err(unwritable)?;
        let bytes = self.wrap(&payload, written, after)?;
        self.format.decode(&payload).map_err(unwritable)?;
        Ok(bytes)
    }

    /// The bytes of a value alone, read back.
    pub(crate) fn payload(&self, value: &T) -> Result<Vec<u8>, ValueError> {
        let payload = self.format.encode(value).map_err(unwritable)?;
        self.format.decode(&payload).map_err(unwritable)?;
        Ok(payload)
    }

    /// These bytes of a value, with what is kept beside it.
    pub(crate) fn wrap(&self, payload: &[u8], written: &Written, after: Option<Mark>) -> Result<Vec<u8>, ValueError> {
        let envelope = Envelope { format: self.name.clone(), written: written.clone(), after };
        let bytes = envelope.seal(payload);
        if bytes.len() > self.size_limit {
            return Err(ValueError::TooLarge { bytes: bytes.len(), limit: Some(self.size_limit) });
        }
        Ok(bytes)
    }
}

fn unwritable(problem: FormatError) -> ValueError {
    ValueError::Unwritable { problem: problem.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Named(String);

    impl Format<u8> for Named {
        fn name(&self) -> &str {
            &self.0
        }

        fn encode(&self, value: &u8) -> Result<Vec<u8>, FormatError> {
            Ok(vec![*value])
        }

        fn decode(&self, bytes: &[u8]) -> Result<u8, FormatError> {
            bytes.first().copied().ok_or_else(|| "there is no byte".into())
        }
    }

    #[test]
    fn a_format_has_a_name_of_one_to_64_plain_characters() {
        let is_fit = |name: &str| Terms::new(Named(name.to_owned())).check_name().is_ok();
        assert!(is_fit("j") && is_fit("json+zstd_2.1-b") && is_fit(&"j".repeat(64)));
        assert!(!is_fit("") && !is_fit("a b") && !is_fit("é") && !is_fit(&"j".repeat(65)));
    }

    #[test]
    fn bytes_without_an_envelope_are_no_value() {
        let terms = Terms::new(Named("byte".to_owned()));
        assert_eq!(terms.check(b""), Err(ValueError::Unset));
        assert!(matches!(terms.check(b"rubbish"), Err(ValueError::Foreign { .. })));
    }
}
