//! What a contender writes into its node, for people to read.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::queue::native;

/// The last second that is written with a year of four digits, in seconds since 1970.
const LAST_WRITTEN: Duration = Duration::from_secs(253_402_300_799);

/// The moment, or the nearest that can be written as a date. A clock can be set to any.
pub(crate) fn date(at: SystemTime) -> SystemTime {
    at.clamp(UNIX_EPOCH, UNIX_EPOCH + LAST_WRITTEN)
}

/// What a contender writes into its node, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) label: Option<String>,
    pub(crate) since: SystemTime,
    /// How many permits it wants, if it stands in the queue of a semaphore.
    pub(crate) permits: Option<u32>,
}

impl Metadata {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let since = humantime::format_rfc3339_millis(date(self.since));
        let mut text = format!("host={}\npid={}\nsince={since}\n", self.host, self.pid);
        if let Some(permits) = self.permits {
            text.push_str(&format!("permits={permits}\n"));
        }
        if let Some(label) = &self.label {
            text.push_str(&format!("label={label}\n"));
        }
        text.into_bytes()
    }
}

/// What the data of a contender's node say of its process. Any client may have written them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// Empty if it does not say.
    pub(crate) host: String,
    pub(crate) pid: Option<u32>,
    pub(crate) label: Option<String>,
    pub(crate) permits: Option<u32>,
}

impl Said {
    /// What a contender's name says of its process, and the data of its node if they could be read.
    pub(crate) fn of(contender: &Contender, data: Option<&[u8]>) -> Said {
        let noted = data.map(read).unwrap_or_default();
        match (contender.dialect(), data) {
            (Dialect::Native, _) | (_, None) => Said { host: contender.host().to_owned(), ..noted },
            // Only this library writes a process id.
            _ if noted.pid.is_some() => match native::host_problem(&noted.host) {
                Some(_) => Said { host: String::new(), ..noted },
                None => noted,
            },
            (_, Some(data)) => read_foreign(data),
        }
    }
}

/// Reads the metadata out of a node's data, whatever else the data hold.
pub(crate) fn read(data: &[u8]) -> Said {
    let text = String::from_utf8_lossy(data);
    let field = |name: &str| text.split('\n').find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    Said {
        host: field("host").unwrap_or_default().to_owned(),
        pid: field("pid").and_then(|pid| pid.parse().ok()),
        label: field("label").map(str::to_owned),
        permits: field("permits").and_then(|permits| permits.parse().ok()),
    }
}

/// Reads the data of another library's node as a host or a label. Curator writes its address; kazoo writes the
/// identifier that its user gave.
fn read_foreign(data: &[u8]) -> Said {
    let text = std::str::from_utf8(data).unwrap_or_default().trim();
    if text.is_empty() || text.len() > 256 || text.chars().any(char::is_control) {
        return Said::default();
    }
    match text.parse::<IpAddr>() {
        Ok(_) => Said { host: text.to_owned(), ..Said::default() },
        Err(_) => Said { label: Some(text.to_owned()), ..Said::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::fuzz;

    #[test]
    fn a_note_is_text_that_can_be_read_back() {
        let since = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        let label = Some("migrate = v42".to_owned());
        let note = Metadata { host: "web-1".to_owned(), pid: 42, label: label.clone(), since, permits: None };
        let text = String::from_utf8(note.encode()).unwrap();
        assert_eq!(text, "host=web-1\npid=42\nsince=2023-11-14T22:13:20.123Z\nlabel=migrate = v42\n");
        let said = Said { host: "web-1".to_owned(), pid: Some(42), label, permits: None };
        assert_eq!(read(text.as_bytes()), said);
        let text = String::from_utf8(Metadata { permits: Some(3), ..note }.encode()).unwrap();
        assert_eq!(text, "host=web-1\npid=42\nsince=2023-11-14T22:13:20.123Z\npermits=3\nlabel=migrate = v42\n");
        assert_eq!(read(text.as_bytes()), Said { permits: Some(3), ..said });
    }

    #[test]
    fn a_note_is_written_whatever_the_clock_is_set_to() {
        let day = Duration::from_secs(24 * 60 * 60);
        for (since, written) in [
            (UNIX_EPOCH - day, "1970-01-01T00:00:00.000Z"),
            (UNIX_EPOCH + day * 2_932_896, "9999-12-31T00:00:00.000Z"),
            (UNIX_EPOCH + day * 2_932_897, "9999-12-31T23:59:59.000Z"),
            (UNIX_EPOCH + day * 100_000_000, "9999-12-31T23:59:59.000Z"),
        ] {
            let note = Metadata { host: "web-1".to_owned(), pid: 42, label: None, since, permits: None };
            let text = String::from_utf8(note.encode()).unwrap();
            assert_eq!(text, format!("host=web-1\npid=42\nsince={written}\n"));
        }
    }

    #[test]
    fn an_address_is_curators_host_and_other_words_are_kazoos_identifier() {
        let said = |data| (read_foreign(data).host, read_foreign(data).label);
        assert_eq!(said(b"10.1.2.3"), ("10.1.2.3".to_owned(), None));
        assert_eq!(said(b"nightly report"), (String::new(), Some("nightly report".to_owned())));
        let of_bytes = |count| "x".repeat(count);
        assert_eq!(said(of_bytes(256).as_bytes()), (String::new(), Some(of_bytes(256))));
        for data in [&b""[..], b"\xff\xfe", b"two\nlines", of_bytes(257).as_bytes(), of_bytes(1000).as_bytes()] {
            assert_eq!(read_foreign(data), Said::default());
        }
    }

    #[test]
    fn a_note_in_another_dialect_says_its_host_unless_no_host_is_called_so() {
        let contender = Contender::parse_as("x__lock__0000000001", Dialect::Kazoo).unwrap();
        for (host, said) in [("web-1", "web-1"), ("two words", ""), ("", "")] {
            let note = format!("host={host}\npid=42\nlabel=x\n");
            let expected = Said { host: said.to_owned(), pid: Some(42), label: Some("x".to_owned()), permits: None };
            assert_eq!(Said::of(&contender, Some(note.as_bytes())), expected);
        }
    }

    #[test]
    fn any_data_may_stand_where_a_note_should() {
        for data in [&b""[..], b"\xff\xfe", b"pid=x\nlabel", b"=\n="] {
            assert_eq!(read(data), Said::default());
        }
    }

    #[test]
    fn any_data_are_read_and_a_note_is_the_same_when_written_again() {
        let note = "host=web-1\npid=42\nsince=2023-11-14T22:13:20.123Z\npermits=3\nlabel=migrate = v42\n";
        fuzz(&[note, "10.1.2.3", "nightly report"], |data| {
            let said = read(data);
            let (since, pid) = (UNIX_EPOCH, said.pid.unwrap_or_default());
            let Said { host, label, permits, .. } = said;
            let again = read(&Metadata { host: host.clone(), pid, label: label.clone(), since, permits }.encode());
            assert_eq!(again, Said { host, pid: Some(pid), label, permits });
            for name in ["h~i-READ-0000000001", "x__lock__0000000001", "_c_x__WRIT__0000000001"] {
                let dialect = Dialect::of(name).unwrap();
                let said = Said::of(&Contender::parse_as(name, dialect).unwrap(), Some(data));
                assert!(dialect == Dialect::Native || !said.host.contains(char::is_control), "{said:?}");
            }
        });
    }
}
