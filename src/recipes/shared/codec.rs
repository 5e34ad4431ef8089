//! The content of a value's node: a header, and the value in the caller's format.
//!
//! The header is lines of text. An empty line follows, and then the bytes of the value:
//!
//! ```text
//! zk-rwlock value 1
//! format=json
//! schema=3
//! host=web-1
//! label=rotate keys
//! token=4294967301
//! commit=1
//! after=4294967290/2
//! at=2026-11-21T09:30:00.125Z
//!
//! {"endpoint":"db-1"}
//! ```
//!
//! The first line marks a value of this library. Readers ignore unknown fields, so that later versions can add fields.
//! A change that older versions must not ignore gets a new number in the first line.

use std::ops::Deref;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::error::Error;
use crate::error::value::{ValueError, Written};
use crate::queue::metadata::{clamp_to_printable, field_line};
use crate::queue::quoted::quoted;
use crate::validation::REQUEST_LIMIT;

/// The number of bytes in the request of a commit that are reserved for everything but the value: two paths, an ACL,
/// and the frames of the transaction.
pub(crate) const OVERHEAD: usize = 4096;

/// The default maximum size of a value with its header, in bytes: the largest request that servers accept by default,
/// less [`OVERHEAD`].
const SIZE_LIMIT: usize = REQUEST_LIMIT - OVERHEAD;

/// A value, with its writer and the time of the write. Derefs to the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<T> {
    pub(crate) value: T,
    pub(crate) written: Written,
}

impl<T> Stored<T> {
    /// Returns the writer of the value, and the time of the write.
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// Returns the value alone, without its writer.
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

/// The conditions that the bytes of a value must meet, whatever the type of the value.
pub(crate) struct ValueRules {
    /// The name of the format. The user's code has returned it. The name is stored, because the thread that keeps the
    /// sessions alive compares it with the header of each value, and must not run user code.
    pub(crate) name: String,
    pub(crate) schema: u32,
    pub(crate) size_limit: usize,
}

impl ValueRules {
    pub(crate) fn new(name: &str) -> ValueRules {
        ValueRules { name: name.to_owned(), schema: 1, size_limit: SIZE_LIMIT }
    }

    /// Fails unless the name of the format has 1 to 64 characters, all of them safe in the header.
    pub(crate) fn check_format_name(&self) -> Result<(), Error> {
        let name = &self.name;
        let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '+' | '-');
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_fit) {
            let rule = "1 to 64 letters, digits, '.', '_', '+' or '-'";
            return Err(Error::invalid(format!("the name of the format must be {rule}, and is {}", quoted(name))));
        }
        Ok(())
    }

    /// Splits a node's bytes into the header and the encoded value. Fails if there are no bytes, if they are not from
    /// this library, if the value has a newer schema, or if the value has the same schema in another format.
    pub(crate) fn split_and_check<'bytes>(&self, bytes: &'bytes [u8]) -> Result<(Written, &'bytes [u8]), ValueError> {
        if bytes.is_empty() {
            return Err(ValueError::Unset);
        }
        let (Header { format: found, written, .. }, payload) =
            Header::split_from(bytes).map_err(|problem| ValueError::Foreign { problem })?;
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

/// The user's functions: they encode and decode a value, make the initial value, and migrate a value of an older
/// schema.
pub(crate) struct Codec<T> {
    pub(crate) format: Box<dyn Format<T>>,
    pub(crate) initial: Option<InitialFn<T>>,
    pub(crate) migrate: Option<MigrateFn<T>>,
}

pub(crate) type InitialFn<T> = Box<dyn Fn() -> T + Send + Sync>;

pub(crate) type MigrateFn<T> = Box<dyn Fn(u32, &[u8]) -> Result<T, FormatError> + Send + Sync>;

impl<T: 'static> Codec<T> {
    pub(crate) fn decode(&self, rules: &ValueRules, bytes: &[u8]) -> Result<Stored<T>, ValueError> {
        let (written, payload) = rules.split_and_check(bytes)?;
        let known = rules.schema;
        let value = if written.schema == known {
            self.format.decode(payload).map_err(|problem| ValueError::WrongType {
                problem: problem.to_string(),
                written: Box::new(written.clone()),
            })
        } else {
            let migrated = match &self.migrate {
                Some(migrate) => migrate(written.schema, payload).map_err(|problem| problem.to_string()),
                None => Err("the handle has no migration".to_owned()),
            };
            migrated.map_err(|problem| ValueError::OlderSchema { known, problem, written: Box::new(written.clone()) })
        };
        Ok(Stored { value: value?, written })
    }

    /// Encodes a value. Fails if the bytes cannot be decoded again, so that no commit writes an unreadable value.
    pub(crate) fn encode(&self, value: &T) -> Result<Vec<u8>, ValueError> {
        let payload = self.format.encode(value).map_err(unwritable_error)?;
        self.format.decode(&payload).map_err(unwritable_error)?;
        Ok(payload)
    }
}

fn unwritable_error(problem: FormatError) -> ValueError {
    ValueError::Unwritable { problem: problem.to_string() }
}

const MAGIC: &str = "zk-rwlock value ";

const VERSION: &str = "1";

/// The identity of one commit: the fencing token of the commit's lock, and the id of the commit under that lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommitId {
    pub(crate) token: i64,
    pub(crate) commit: u32,
}

impl CommitId {
    pub(crate) fn new(written: &Written) -> CommitId {
        CommitId { token: written.token, commit: written.commit }
    }

    fn parse(text: &str) -> Option<CommitId> {
        let (token, commit) = text.split_once('/')?;
        Some(CommitId { token: token.parse().ok()?, commit: commit.parse().ok()? })
    }
}

/// The header of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) format: String,
    pub(crate) written: Written,
    /// The commit that wrote the previous value, if that commit is known. If the reply to that earlier commit was lost,
    /// this field shows the client that sent it that the commit was carried out.
    pub(crate) after: Option<CommitId>,
}

impl Header {
    /// Returns the bytes of a node: this header, followed by the value's own bytes.
    pub(crate) fn prepend_to(&self, payload: &[u8]) -> Vec<u8> {
        let Written { host, label, token, commit, at, schema } = &self.written;
        let (label, at) =
            (field_line("label", label.as_deref()), humantime::format_rfc3339_millis(clamp_to_printable(*at)));
        let after = field_line("after", self.after.map(|CommitId { token, commit }| format!("{token}/{commit}")));
        let form = format!("format={}\nschema={schema}", self.format);
        let commit = format!("token={token}\ncommit={commit}\n{after}at={at}");
        [format!("{MAGIC}{VERSION}\n{form}\nhost={host}\n{label}{commit}\n\n").as_bytes(), payload].concat()
    }

    /// Splits a node's bytes into the header and the value's own bytes. The error is the reason why the bytes are not from this
    /// library.
    pub(crate) fn split_from(bytes: &[u8]) -> Result<(Header, &[u8]), String> {
        let foreign = || format!("they begin with {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(24)]));
        if !bytes.starts_with(MAGIC.as_bytes()) {
            return Err(foreign());
        }
        let end = bytes.windows(2).position(|pair| pair == b"\n\n").ok_or("the header has no end")?;
        let header = std::str::from_utf8(&bytes[..end]).map_err(|_| "the header is not text")?;
        let mut lines = header.split('\n');
        let version = lines.next().and_then(|first| first.strip_prefix(MAGIC)).unwrap_or_default();
        if version != VERSION {
            return Err(format!("they have layout version {version:?}, and this library reads version {VERSION}"));
        }
        let fields: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once('=')).collect();
        let field = |name: &str| fields.iter().find(|(field, _)| *field == name).map(|(_, text)| *text);
        let needed = |name: &'static str| field(name).ok_or_else(|| format!("the header has no {name}"));
        let number = |name: &'static str| needed(name)?.parse().map_err(|_| format!("{name} is not a number"));
        let at = humantime::parse_rfc3339(needed("at")?).map_err(|_| "at is not a time")?;
        let written = Written {
            host: needed("host")?.to_owned(),
            label: field("label").map(str::to_owned),
            token: needed("token")?.parse().map_err(|_| "token is not a number")?,
            commit: number("commit")?,
            at,
            schema: number("schema")?,
        };
        let after = field("after").and_then(CommitId::parse);
        Ok((Header { format: needed("format")?.to_owned(), written, after }, &bytes[end + 2..]))
    }
}

/// Returns the present time, rounded down to milliseconds, the precision of the header.
pub(crate) fn now_to_the_millisecond() -> SystemTime {
    let since = clamp_to_printable(SystemTime::now()).duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_millis(u64::try_from(since.as_millis()).unwrap_or_default())
}

/// The error of a [`Format`].
pub type FormatError = Box<dyn std::error::Error + Send + Sync>;

/// A format that encodes and decodes values of type `T`. The default is [`Json`](crate::format::Json). To choose
/// another, see [`Shared::with_format`](crate::Shared::with_format).
///
/// [`decode`](Format::decode) must read the bytes that [`encode`](Format::encode) returns. A commit decodes the encoded
/// value before it sends anything. So a value that cannot be decoded never replaces a readable one.
///
/// # Examples
///
/// ```
/// use zk_rwlock::format::{Format, FormatError};
/// use zk_rwlock::{Error, Memory, Shared};
///
/// /// Numbers, big-endian.
/// struct BigEndian;
///
/// impl Format<u64> for BigEndian {
///     fn name(&self) -> &str {
///         "u64-be"
///     }
///
///     fn encode(&self, value: &u64) -> Result<Vec<u8>, FormatError> {
///         Ok(value.to_be_bytes().to_vec())
///     }
///
///     fn decode(&self, bytes: &[u8]) -> Result<u64, FormatError> {
///         Ok(u64::from_be_bytes(bytes.try_into()?))
///     }
/// }
/// # tokio_test::block_on(async {
/// let counter = Shared::with_format(&Memory::new(), "/counter", BigEndian).initial(|| 41).build()?;
/// *counter.write().await? += 0; // dropped without a commit: nothing is written
/// let mut value = counter.write().await?;
/// *value += 1;
/// value.commit().await?;
/// drop(value);
/// assert_eq!(*counter.read().await?, 42);
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot write and read a `{T}`",
    note = "with the format `Json` a value needs `serde::Serialize` and `serde::de::DeserializeOwned`; `Raw` is for bytes, such as `Vec<u8>` and `String`"
)]
pub trait Format<T>: Send + Sync + 'static {
    /// Returns the name of the format: at most 64 letters, digits, `.`, `_`, `+` and `-`. The name is stored in the header
    /// of each value. A value whose header has another name is not decoded, unless it has an older schema and is migrated.
    fn name(&self) -> &str;

    /// Encodes a value.
    ///
    /// # Errors
    /// An error if the format cannot express the value. The commit then fails, and sends nothing.
    fn encode(&self, value: &T) -> Result<Vec<u8>, FormatError>;

    /// Decodes a value.
    ///
    /// # Errors
    /// An error if the bytes are no valid `T`.
    fn decode(&self, bytes: &[u8]) -> Result<T, FormatError>;
}

/// The format JSON, by serde. People can read the values with `zkCli`, too. Numbers come back exactly, also floating-point
/// numbers, because this library turns on the feature `float_roundtrip` of `serde_json`. JSON has no infinities and no NaN,
/// so serde writes `null` for them. An `f64` cannot be read from `null`, so the commit is
/// [refused](crate::error::ValueError::Unwritable). `Some(f64::NAN)` and `Some(None)` come back as `None`.
///
/// A commit checks that the encoded value can be decoded, but not that the result is equal. So if the JSON of a value
/// fits several values, as for `Some(None)`, another of these values may come back. An enum with `#[serde(untagged)]`
/// comes back as the **first** variant that its JSON fits, whichever variant was written. An integer of more than 64
/// bits is read as a floating-point number, so a large `u128` may come back as a variant with an `f64`. Leave
/// `untagged` out, so that the JSON names the variant, or use `#[serde(tag = "kind", content = "value")]`.
///
/// # Examples
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # use zk_rwlock::{Error, Memory, Shared};
/// /// A limit in bytes, or as a part of the memory. The variants have the same JSON: a number.
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// #[serde(untagged)]
/// enum Ambiguous {
///     Part(f64),
///     Bytes(u64),
/// }
///
/// /// The JSON has the variant: `{"Bytes":1152921504606846977}`.
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// enum Named {
///     Part(f64),
///     Bytes(u64),
/// }
/// # tokio_test::block_on(async {
/// # let zk = Memory::new();
/// const BYTES: u64 = (1 << 60) + 1;
/// let limit = Shared::builder(&zk, "/ambiguous").initial(|| Ambiguous::Bytes(BYTES)).build()?;
/// assert_eq!(*limit.read().await?, Ambiguous::Part(1152921504606846976.0)); // another variant, and another number
///
/// let limit = Shared::builder(&zk, "/named").initial(|| Named::Bytes(BYTES)).build()?;
/// assert_eq!(*limit.read().await?, Named::Bytes(BYTES));
/// # let _ = Named::Part(0.5);
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[cfg(feature = "json")]
#[cfg_attr(docsrs, doc(cfg(feature = "json")))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

#[cfg(feature = "json")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> Format<T> for Json {
    fn name(&self) -> &str {
        "json"
    }

    fn encode(&self, value: &T) -> Result<Vec<u8>, FormatError> {
        Ok(serde_json::to_vec(value)?)
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, FormatError> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

/// A format that stores the plain bytes of a value, such as a `Vec<u8>`, a `Box<[u8]>` or a `String`. The bytes of a
/// `String` must be UTF-8.
///
/// # Examples
///
/// ```
/// # use zk_rwlock::format::Raw;
/// # use zk_rwlock::{Error, Memory, Shared};
/// # tokio_test::block_on(async {
/// let blob: Shared<Vec<u8>> = Shared::with_format(&Memory::new(), "/blob", Raw).build()?;
/// blob.write().replacing(vec![0, 255]).await?.commit().await?;
/// assert_eq!(*blob.read().await?, [0, 255]);
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl<T> Format<T> for Raw
where
    T: AsRef<[u8]> + TryFrom<Vec<u8>, Error: std::error::Error + Send + Sync + 'static>,
{
    fn name(&self) -> &str {
        "raw"
    }

    fn encode(&self, value: &T) -> Result<Vec<u8>, FormatError> {
        Ok(value.as_ref().to_vec())
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, FormatError> {
        Ok(T::try_from(bytes.to_vec())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::fuzz;

    #[test]
    fn a_format_name_has_one_to_64_plain_characters() {
        let is_fit = |name: &str| ValueRules::new(name).check_format_name().is_ok();
        assert!(is_fit("j") && is_fit("json+zstd_2.1-b") && is_fit(&"j".repeat(64)));
        assert!(!is_fit("") && !is_fit("a b") && !is_fit("é") && !is_fit(&"j".repeat(65)));
    }

    #[test]
    fn bytes_without_an_envelope_are_no_value() {
        let rules = ValueRules::new("byte");
        assert_eq!(rules.split_and_check(b""), Err(ValueError::Unset));
        assert!(matches!(rules.split_and_check(b"rubbish"), Err(ValueError::Foreign { .. })));
    }

    fn header() -> Header {
        let at = UNIX_EPOCH + Duration::from_millis(1_795_253_400_125);
        let label = Some("rotate = keys".to_owned());
        let written = Written { host: "web-1".to_owned(), label, token: 4_294_967_301, commit: 1, at, schema: 3 };
        Header { format: "json".to_owned(), written, after: Some(CommitId { token: 4_294_967_290, commit: 2 }) }
    }

    #[test]
    fn a_node_is_a_text_header_and_the_unchanged_value() {
        let bytes = header().prepend_to(b"{\"endpoint\":\"db-1\"}");
        let text = "zk-rwlock value 1\nformat=json\nschema=3\nhost=web-1\nlabel=rotate = keys\ntoken=4294967301\ncommit=1\n\
                    after=4294967290/2\nat=2026-11-21T09:30:00.125Z\n\n{\"endpoint\":\"db-1\"}";
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }

    #[test]
    fn any_bytes_can_be_the_value() {
        for payload in [&b""[..], b"\n\n", b"\n\nzk-rwlock value 1\n", &[0, 255, 10, 10, 0]] {
            let bytes = header().prepend_to(payload);
            assert_eq!(Header::split_from(&bytes), Ok((header(), payload)));
        }
    }

    #[test]
    fn foreign_bytes_are_refused_with_the_reason() {
        for (bytes, reason) in [
            (&b"{\"json\": true}"[..], "they begin with \"{\\\"json\\\": true}\""),
            (b"\xff\xfe", "they begin with \"\u{fffd}\u{fffd}\""),
            (b"zk-rwlock value 1\nformat=json\n", "the header has no end"),
            (b"zk-rwlock value 1\n\xff\n\n", "the header is not text"),
            (b"zk-rwlock value 2\n\n", "they have layout version \"2\", and this library reads version 1"),
            (b"zk-rwlock value 1\n\n", "the header has no at"),
            (b"zk-rwlock value 1\nat=now\n\n", "at is not a time"),
            (b"zk-rwlock value 1\nat=2026-11-21T09:30:00Z\nhost=a\ntoken=x\n\n", "token is not a number"),
            (b"zk-rwlock value 1\nat=2026-11-21T09:30:00Z\nhost=a\ntoken=1\ncommit=-1\n\n", "commit is not a number"),
        ] {
            assert_eq!(Header::split_from(bytes), Err(reason.to_owned()));
        }
    }

    #[test]
    fn fields_of_later_versions_are_ignored() {
        let text =
            String::from_utf8(header().prepend_to(b"1")).unwrap().replace("host=", "colour=blue\nnonsense\nhost=");
        assert_eq!(Header::split_from(text.as_bytes()), Ok((header(), &b"1"[..])));
    }

    #[test]
    fn any_bytes_are_refused_or_round_trip() {
        let bare = Header { after: None, ..header() };
        let written = Written { label: Some("keys\r".to_owned()), ..header().written };
        let returned = Header { written, ..header() };
        assert_eq!(Header::split_from(&returned.prepend_to(b"1")), Ok((returned, &b"1"[..])));
        let samples = [
            header().prepend_to(b"{\"endpoint\":\"db-1\"}"),
            bare.prepend_to(b"\n\n\0\xff"),
            b"zk-rwlock value 2\n\n".to_vec(),
        ];
        fuzz(&samples, |bytes| match Header::split_from(bytes) {
            Ok((header, payload)) => {
                assert!(bytes.ends_with(payload));
                // The header is encoded once more before the comparison, because the random bytes may spell numbers and
                // times in another way than this library.
                let written = header.prepend_to(payload);
                let (again, same) = Header::split_from(&written).unwrap();
                assert_eq!((again.prepend_to(same), same), (written.clone(), payload));
                assert_eq!((again.format, again.after), (header.format, header.after));
                assert_eq!(again.written.token, header.written.token);
                assert_eq!((again.written.host, again.written.label), (header.written.host, header.written.label));
            }
            Err(reason) => assert!(!reason.is_empty() && reason.len() < 3 * bytes.len() + 200, "{reason}"),
        });
    }
}
