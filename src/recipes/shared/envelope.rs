//! What is kept beside a value, in the same node.
//!
//! Lines of text, an empty line, and then the value's own bytes to the end:
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
//! The first line tells our values from foreign bytes. Unknown fields are ignored, so that later versions can add
//! fields. A change that older versions must not ignore gets a new number in the first line.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::value::Written;
use crate::queue::metadata::date;

const MAGIC: &str = "zk-rwlock value ";

const VERSION: &str = "1";

/// A number that names one commit among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) token: i64,
    pub(crate) commit: u32,
}

impl Mark {
    /// The mark of the commit that wrote this.
    pub(crate) fn of(written: &Written) -> Mark {
        Mark { token: written.token, commit: written.commit }
    }

    fn parse(text: &str) -> Option<Mark> {
        let (token, commit) = text.split_once('/')?;
        Some(Mark { token: token.parse().ok()?, commit: commit.parse().ok()? })
    }
}

/// Everything that is kept beside a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) format: String,
    pub(crate) written: Written,
    /// The commit that this one replaced. By it a writer that reconnects late can still tell the outcome of its own
    /// commit.
    pub(crate) after: Option<Mark>,
}

impl Envelope {
    /// The bytes of a node.
    pub(crate) fn seal(&self, payload: &[u8]) -> Vec<u8> {
        let Written { host, label, token, commit, at, schema } = &self.written;
        let mut head = format!("{MAGIC}{VERSION}\nformat={}\nschema={schema}\nhost={host}\n", self.format);
        if let Some(label) = label {
            head.push_str(&format!("label={label}\n"));
        }
        head.push_str(&format!("token={token}\ncommit={commit}\n"));
        if let Some(Mark { token, commit }) = self.after {
            head.push_str(&format!("after={token}/{commit}\n"));
        }
        head.push_str(&format!("at={}\n\n", humantime::format_rfc3339_millis(date(*at))));
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(payload);
        bytes
    }

    /// The envelope and the value's own bytes. Otherwise the reason why the bytes are not ours.
    pub(crate) fn open(bytes: &[u8]) -> Result<(Envelope, &[u8]), String> {
        let foreign = || format!("they begin with {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(24)]));
        if !bytes.starts_with(MAGIC.as_bytes()) {
            return Err(foreign());
        }
        let end = bytes.windows(2).position(|pair| pair == b"\n\n").ok_or("the head has no end")?;
        let head = std::str::from_utf8(&bytes[..end]).map_err(|_| "the head is no text")?;
        let mut lines = head.split('\n');
        let version = lines.next().and_then(|first| first.strip_prefix(MAGIC)).unwrap_or_default();
        if version != VERSION {
            return Err(format!("they are laid out in version {version:?}, and this library knows {VERSION}"));
        }
        let fields: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once('=')).collect();
        let field = |name: &str| fields.iter().find(|(field, _)| *field == name).map(|(_, text)| *text);
        let needed = |name: &'static str| field(name).ok_or_else(|| format!("the head has no {name}"));
        let number = |name: &'static str| needed(name)?.parse().map_err(|_| format!("{name} is no number"));
        let at = humantime::parse_rfc3339(needed("at")?).map_err(|_| "at is no time")?;
        let written = Written {
            host: needed("host")?.to_owned(),
            label: field("label").map(str::to_owned),
            token: needed("token")?.parse().map_err(|_| "token is no number")?,
            commit: number("commit")?,
            at,
            schema: number("schema")?,
        };
        let after = field("after").and_then(Mark::parse);
        Ok((Envelope { format: needed("format")?.to_owned(), written, after }, &bytes[end + 2..]))
    }
}

/// The present time, as exactly as the envelope keeps it.
pub(crate) fn now() -> SystemTime {
    let since = date(SystemTime::now()).duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_millis(u64::try_from(since.as_millis()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::fuzz;

    fn envelope() -> Envelope {
        let at = UNIX_EPOCH + Duration::from_millis(1_795_253_400_125);
        let label = Some("rotate = keys".to_owned());
        let written = Written { host: "web-1".to_owned(), label, token: 4_294_967_301, commit: 1, at, schema: 3 };
        Envelope { format: "json".to_owned(), written, after: Some(Mark { token: 4_294_967_290, commit: 2 }) }
    }

    #[test]
    fn a_node_is_text_for_people_and_the_value_as_it_is() {
        let bytes = envelope().seal(b"{\"endpoint\":\"db-1\"}");
        let text = "zk-rwlock value 1\nformat=json\nschema=3\nhost=web-1\nlabel=rotate = keys\ntoken=4294967301\ncommit=1\n\
                    after=4294967290/2\nat=2026-11-21T09:30:00.125Z\n\n{\"endpoint\":\"db-1\"}";
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }

    #[test]
    fn any_bytes_can_be_the_value() {
        for payload in [&b""[..], b"\n\n", b"\n\nzk-rwlock value 1\n", &[0, 255, 10, 10, 0]] {
            let bytes = envelope().seal(payload);
            assert_eq!(Envelope::open(&bytes), Ok((envelope(), payload)));
        }
    }

    #[test]
    fn what_is_not_ours_is_told_with_the_reason() {
        for (bytes, reason) in [
            (&b"{\"json\": true}"[..], "they begin with \"{\\\"json\\\": true}\""),
            (b"\xff\xfe", "they begin with \"\u{fffd}\u{fffd}\""),
            (b"zk-rwlock value 1\nformat=json\n", "the head has no end"),
            (b"zk-rwlock value 1\n\xff\n\n", "the head is no text"),
            (b"zk-rwlock value 2\n\n", "they are laid out in version \"2\", and this library knows 1"),
            (b"zk-rwlock value 1\n\n", "the head has no at"),
            (b"zk-rwlock value 1\nat=now\n\n", "at is no time"),
            (b"zk-rwlock value 1\nat=2026-11-21T09:30:00Z\nhost=a\ntoken=x\n\n", "token is no number"),
            (b"zk-rwlock value 1\nat=2026-11-21T09:30:00Z\nhost=a\ntoken=1\ncommit=-1\n\n", "commit is no number"),
        ] {
            assert_eq!(Envelope::open(bytes), Err(reason.to_owned()));
        }
    }

    #[test]
    fn fields_of_later_versions_are_passed_over() {
        let text = String::from_utf8(envelope().seal(b"1")).unwrap().replace("host=", "colour=blue\nnonsense\nhost=");
        assert_eq!(Envelope::open(text.as_bytes()), Ok((envelope(), &b"1"[..])));
    }

    #[test]
    fn any_bytes_are_refused_or_read_back_as_they_are_written() {
        let bare = Envelope { after: None, ..envelope() };
        let written = Written { label: Some("keys\r".to_owned()), ..envelope().written };
        let returned = Envelope { written, ..envelope() };
        assert_eq!(Envelope::open(&returned.seal(b"1")), Ok((returned, &b"1"[..])));
        let samples =
            [envelope().seal(b"{\"endpoint\":\"db-1\"}"), bare.seal(b"\n\n\0\xff"), b"zk-rwlock value 2\n\n".to_vec()];
        fuzz(&samples, |bytes| match Envelope::open(bytes) {
            Ok((envelope, payload)) => {
                assert!(bytes.ends_with(payload));
                // Written as we write it: numbers without a sign, times in milliseconds, and no fields of later versions.
                let written = envelope.seal(payload);
                let (again, same) = Envelope::open(&written).unwrap();
                assert_eq!((again.seal(same), same), (written.clone(), payload));
                assert_eq!((again.format, again.after), (envelope.format, envelope.after));
                assert_eq!(again.written.token, envelope.written.token);
                assert_eq!((again.written.host, again.written.label), (envelope.written.host, envelope.written.label));
            }
            Err(reason) => assert!(!reason.is_empty() && reason.len() < 3 * bytes.len() + 200, "{reason}"),
        });
    }
}
