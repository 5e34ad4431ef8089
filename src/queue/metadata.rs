//! The data that this library writes into nodes: a contender's metadata, and the record of a job's last success. This
//! file also makes the paths of records, and of the [twins](twin_path) of persistent nodes.

use std::fmt::Display;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::queue::dialect::{self, Dialect};
use crate::queue::node_name::NodeName;

/// The last second before the year 10000, in seconds since 1970. A later time has no date with a year of four digits.
pub(crate) const LAST_WRITTEN: Duration = Duration::from_secs(253_402_300_799);

/// Returns `at`, or the nearest time that can be printed as a date. A wrong clock may give a time that cannot be
/// printed.
pub(crate) fn clamp_to_printable(at: SystemTime) -> SystemTime {
    at.clamp(UNIX_EPOCH, UNIX_EPOCH + LAST_WRITTEN)
}

/// A contender's metadata, which the contender writes into its node for people to read. Do not trust metadata that were
/// read: any client may have written the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    /// The host of the contender's process. Empty if the data have no host.
    pub(crate) host: String,
    pub(crate) pid: Option<u32>,
    pub(crate) label: Option<String>,
    /// The number of permits that the contender waits for, in the queue of a semaphore.
    pub(crate) permits: Option<u32>,
    /// Whether the contender is a candidate of an election.
    pub(crate) is_candidate: bool,
}

impl Metadata {
    /// Encodes the metadata as the data of the contender's node. `since` is when the contender queued up.
    pub(crate) fn encode(&self, since: SystemTime) -> Vec<u8> {
        let since = humantime::format_rfc3339_millis(clamp_to_printable(since));
        let (pid, permits) = (field_line("pid", self.pid), field_line("permits", self.permits));
        let candidate = field_line("candidate", self.is_candidate.then_some("yes"));
        let label = field_line("label", self.label.as_deref());
        format!("host={}\n{pid}since={since}\n{permits}{candidate}{label}", self.host).into_bytes()
    }

    /// Returns a contender's metadata, from the name of its node, and from the node's `data` if the node could be read.
    pub(crate) fn new(contender: &NodeName, data: Option<&[u8]>) -> Metadata {
        let in_data = data.map(parse_metadata).unwrap_or_default();
        match (contender.dialect(), data) {
            (Dialect::Native, _) | (_, None) => Metadata { host: contender.host().to_owned(), ..in_data },
            // Only this library writes a process id. So if the data have one, the other fields are ours, too. A host
            // that is not valid is left out even then.
            _ if in_data.pid.is_some() => match dialect::host_problem(&in_data.host) {
                Some(_) => Metadata { host: String::new(), ..in_data },
                None => in_data,
            },
            (_, Some(data)) => parse_foreign_data(data),
        }
    }
}

/// Returns the line of a field, or no text if the field has no value.
pub(crate) fn field_line(field: &str, value: Option<impl Display>) -> String {
    value.map(|value| format!("{field}={value}\n")).unwrap_or_default()
}

/// Parses the metadata in a node's data. Ignores unknown lines and invalid numbers.
pub(crate) fn parse_metadata(data: &[u8]) -> Metadata {
    let text = String::from_utf8_lossy(data);
    let field = |name: &str| text.split('\n').find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    Metadata {
        host: field("host").unwrap_or_default().to_owned(),
        pid: field("pid").and_then(|pid| pid.parse().ok()),
        label: field("label").map(str::to_owned),
        permits: field("permits").and_then(|permits| permits.parse().ok()),
        is_candidate: field("candidate") == Some("yes"),
    }
}

/// Parses the data of another library's node. An IP address is taken as the host, because Curator writes the address of
/// its machine. Other text is taken as the label, because kazoo writes the identifier that its user set. Ignores data
/// that are empty, longer than 256 bytes, or not printable text.
fn parse_foreign_data(data: &[u8]) -> Metadata {
    let text = std::str::from_utf8(data).unwrap_or_default().trim();
    if text.is_empty() || text.len() > 256 || text.chars().any(char::is_control) {
        return Metadata::default();
    }
    match text.parse::<IpAddr>() {
        Ok(_) => Metadata { host: text.to_owned(), ..Metadata::default() },
        Err(_) => Metadata { label: Some(text.to_owned()), ..Metadata::default() },
    }
}

/// The suffix of the path of a record of a job's last success. No contender's name ends like this in any dialect,
/// because contenders' names end with a number.
const RECORD_SUFFIX: &str = ".done";

/// The beginning of the first line of a job's record. A version number follows.
const HEADING: &str = "zk-rwlock done ";

/// The assumed limit of clock drift: if two clocks measure the same duration, they differ by less than one part in 100.
const DRIFT: u32 = 100;

/// The last success of a job that runs [once in a while](crate::Acquire::once_in), and the process that did
/// it. The `Display` of a record is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// When the success was recorded, on the ensemble's clock.
    pub at: SystemTime,
    /// The host of the process that did the job; empty if the record has none.
    pub host: String,
    /// The id of the process that did the job.
    pub pid: Option<u32>,
    /// The label of the job: what was done.
    pub label: Option<String>,
    /// The [fencing token](crate::Hold::fencing_token) of the hold under which the job was done.
    pub token: Option<i64>,
}

/// Returns the path of the record of a job under this lock. The record is a sibling of the lock's directory, so it
/// stays when the empty directory is deleted.
pub(crate) fn record_path(directory: &str) -> String {
    format!("{directory}{RECORD_SUFFIX}")
}

/// Returns the path of the lock whose record is at `path`. `None` if `path` does not look like the path of a record.
pub(crate) fn lock_path_of_record(path: &str) -> Option<&str> {
    path.strip_suffix(RECORD_SUFFIX).filter(|directory| !directory.ends_with('/'))
}

pub(crate) fn encode_record(host: &str, label: Option<&str>, token: i64) -> Vec<u8> {
    let (pid, label) = (std::process::id(), field_line("label", label));
    format!("{HEADING}1\nhost={host}\npid={pid}\ntoken={token}\n{label}").into_bytes()
}

/// Parses the record of a job's last [success](crate::once::OnceGuard::done). `at` is when the record was written.
/// `None` if the data are not a record.
pub fn parse_record(data: &[u8], at: SystemTime) -> Option<Record> {
    let text = std::str::from_utf8(data).ok()?.strip_prefix(HEADING)?;
    let token = text.split('\n').find_map(|line| line.strip_prefix("token=")).and_then(|token| token.parse().ok());
    let Metadata { host, pid, label, .. } = parse_metadata(data);
    Some(Record { at: clamp_to_printable(at), host, pid, label, token })
}

/// The present time on the ensemble's clock, as a range because the exact time is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NowRange {
    earliest: SystemTime,
    latest: SystemTime,
}

impl NowRange {
    /// Returns the range of the present time, which is at least `least` and at most `most` after `then`. A local clock
    /// measured these durations, so the range is widened by that clock's possible drift.
    pub(crate) fn from_elapsed(then: SystemTime, least: Duration, most: Duration) -> NowRange {
        let (least, most) = (least - least / DRIFT, most.saturating_add(most / DRIFT));
        NowRange { earliest: then.checked_add(least).unwrap_or(then), latest: then.checked_add(most).unwrap_or(then) }
    }

    /// Returns whether less than `period` may lie between `at` and now, whichever of the two is earlier.
    ///
    /// If `at` is in the future, the clock of the ensemble's leader was set back, or another server, whose clock is
    /// behind, has become the leader. The true age of `at` is then unknown. A time in the future counts as recent only
    /// while it is less than `period` ahead. So a small step of the clock does no harm, and a large step does not block
    /// the job for ever.
    pub(crate) fn may_be_within(&self, period: Duration, at: SystemTime) -> bool {
        let is_late_enough = at.checked_add(period).is_none_or(|end| end > self.earliest);
        let is_early_enough = self.latest.checked_add(period).is_none_or(|end| at < end);
        is_late_enough && is_early_enough
    }
}

const TWIN_SUFFIX: &str = ".twin";

/// The name of the [twin](twin_path) of a [`Shared`](crate::Shared) value. The twin is a node that shows whether the
/// value's node was deleted.
pub(crate) const VALUE_TWIN: &str = "value.twin";

/// Returns the path of the twin of the persistent node at `path`. The twin is a sibling node. If the node itself is
/// deleted by mistake, the twin stays, and so shows the loss.
///
/// Servers before 3.8.7 and 3.9.6 let any client delete a persistent node that has no children (CVE-2026-79993), and an
/// operator may delete one by mistake. Without a twin, a deleted node would look like a node that was never written. So
/// the transaction that writes the node for the first time also creates the twin.
pub(crate) fn twin_path(path: &str) -> String {
    format!("{path}{TWIN_SUFFIX}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::fuzz;

    #[test]
    fn encoded_metadata_is_parsed_back() {
        let since = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        let label = Some("migrate = v42".to_owned());
        let metadata = Metadata { host: "web-1".to_owned(), pid: Some(42), label, permits: None, is_candidate: false };
        let text = String::from_utf8(metadata.encode(since)).unwrap();
        assert_eq!(text, "host=web-1\npid=42\nsince=2023-11-14T22:13:20.123Z\nlabel=migrate = v42\n");
        assert_eq!(parse_metadata(text.as_bytes()), metadata);
        let metadata = Metadata { permits: Some(3), is_candidate: true, ..metadata };
        let text = String::from_utf8(metadata.encode(since)).unwrap();
        assert_eq!(
            text,
            "host=web-1\npid=42\nsince=2023-11-14T22:13:20.123Z\npermits=3\ncandidate=yes\nlabel=migrate = v42\n"
        );
        assert_eq!(parse_metadata(text.as_bytes()), metadata);
    }

    #[test]
    fn metadata_is_written_at_any_clock_setting() {
        let day = Duration::from_secs(24 * 60 * 60);
        for (since, written) in [
            (UNIX_EPOCH - day, "1970-01-01T00:00:00.000Z"),
            (UNIX_EPOCH + day * 2_932_896, "9999-12-31T00:00:00.000Z"),
            (UNIX_EPOCH + day * 2_932_897, "9999-12-31T23:59:59.000Z"),
            (UNIX_EPOCH + day * 100_000_000, "9999-12-31T23:59:59.000Z"),
        ] {
            let metadata = Metadata { host: "web-1".to_owned(), pid: Some(42), ..Metadata::default() };
            let text = String::from_utf8(metadata.encode(since)).unwrap();
            assert_eq!(text, format!("host=web-1\npid=42\nsince={written}\n"));
        }
    }

    #[test]
    fn foreign_data_are_a_host_if_an_address_else_a_label() {
        let read_as = |data| (parse_foreign_data(data).host, parse_foreign_data(data).label);
        assert_eq!(read_as(b"10.1.2.3"), ("10.1.2.3".to_owned(), None));
        assert_eq!(read_as(b"nightly report"), (String::new(), Some("nightly report".to_owned())));
        let of_bytes = |count| "x".repeat(count);
        assert_eq!(read_as(of_bytes(256).as_bytes()), (String::new(), Some(of_bytes(256))));
        for data in [&b""[..], b"\xff\xfe", b"two\nlines", of_bytes(257).as_bytes(), of_bytes(1000).as_bytes()] {
            assert_eq!(parse_foreign_data(data), Metadata::default());
        }
    }

    #[test]
    fn an_invalid_host_in_a_nodes_data_is_ignored() {
        let contender = NodeName::parse_as("x__lock__0000000001", Dialect::Kazoo).unwrap();
        for (host, expected_host) in [("web-1", "web-1"), ("two words", ""), ("", "")] {
            let metadata = format!("host={host}\npid=42\nlabel=x\n");
            let expected = Metadata {
                host: expected_host.to_owned(),
                pid: Some(42),
                label: Some("x".to_owned()),
                ..Metadata::default()
            };
            assert_eq!(Metadata::new(&contender, Some(metadata.as_bytes())), expected);
        }
    }

    #[test]
    fn garbage_reads_as_empty_metadata() {
        for data in [&b""[..], b"\xff\xfe", b"pid=x\nlabel", b"=\n="] {
            assert_eq!(parse_metadata(data), Metadata::default());
        }
    }

    #[test]
    fn fuzzed_metadata_is_the_same_when_written_again() {
        let metadata = "host=web-1\npid=42\nsince=2023-11-14T22:13:20.123Z\npermits=3\nlabel=migrate = v42\n";
        fuzz(&[metadata, "10.1.2.3", "nightly report"], |data| {
            let metadata = Metadata { pid: parse_metadata(data).pid.or(Some(7)), ..parse_metadata(data) };
            assert_eq!(parse_metadata(&metadata.encode(UNIX_EPOCH)), metadata);
            for name in ["h~i-READ-0000000001", "x__lock__0000000001", "_c_x__WRIT__0000000001"] {
                let dialect = Dialect::of(name).unwrap();
                let metadata = Metadata::new(&NodeName::parse_as(name, dialect).unwrap(), Some(data));
                assert!(dialect == Dialect::Native || !metadata.host.contains(char::is_control), "{metadata:?}");
            }
        });
    }

    const MINUTE: Duration = Duration::from_secs(60);

    fn minutes(n: u32) -> SystemTime {
        UNIX_EPOCH + n * MINUTE
    }

    #[test]
    fn an_encoded_record_is_parsed_back() {
        let text = encode_record("web-1", Some("report = daily"), 4294967301);
        let pid = std::process::id();
        let expected = format!("zk-rwlock done 1\nhost=web-1\npid={pid}\ntoken=4294967301\nlabel=report = daily\n");
        assert_eq!(String::from_utf8(text.clone()).unwrap(), expected);
        let (host, label) = ("web-1".to_owned(), Some("report = daily".to_owned()));
        let done = Record { at: minutes(7), host, pid: Some(pid), label, token: Some(4294967301) };
        assert_eq!(parse_record(&text, minutes(7)), Some(done));
    }

    #[test]
    fn data_without_the_heading_are_no_record() {
        for data in [&b""[..], b"\xff\xfe", b"host=web-1\npid=7\n", b"zk-rwlock value 1\n", b" zk-rwlock done 1\n"] {
            assert_eq!(parse_record(data, minutes(7)), None);
        }
        let bare = Record { at: minutes(7), host: String::new(), pid: None, label: None, token: None };
        assert_eq!(parse_record(b"zk-rwlock done 2\ntoken=x", minutes(7)), Some(bare));
    }

    #[test]
    fn a_trailing_carriage_return_stays_in_the_text() {
        let record = encode_record("web-1\r", Some("report\r"), 7);
        let done = parse_record(&record, minutes(7)).unwrap();
        assert_eq!((&*done.host, done.label.as_deref(), done.token), ("web-1\r", Some("report\r"), Some(7)));
    }

    #[test]
    fn a_records_name_is_no_contenders_in_any_dialect() {
        for lock in ["/cron/report", "/a-WRITE-0000000007", "/x/__lock__0000000007", "/y/lock-0000000007"] {
            let path = record_path(lock);
            assert_eq!(lock_path_of_record(&path), Some(lock));
            let name = path.rsplit('/').next().unwrap();
            assert_eq!(Dialect::of(name), None, "{name}");
            assert!(Dialect::ALL.iter().all(|dialect| dialect.foreign(name).is_none()), "{name}");
        }
        assert_eq!((lock_path_of_record("/cron/report"), lock_path_of_record("/cron/.done")), (None, None));
    }

    #[test]
    fn a_job_done_less_than_a_period_ago_is_fresh() {
        let now = NowRange::from_elapsed(minutes(100), Duration::ZERO, Duration::ZERO);
        for (at, is_fresh) in [(49, false), (50, false), (51, true), (100, true), (149, true), (150, false)] {
            assert_eq!(now.may_be_within(50 * MINUTE, minutes(at)), is_fresh, "{at}");
        }
    }

    #[test]
    fn now_includes_the_time_spent_waiting() {
        let now = NowRange::from_elapsed(minutes(100), 100 * MINUTE, 101 * MINUTE);
        assert!(!now.may_be_within(50 * MINUTE, minutes(149)), "done at least a period ago");
        assert!(now.may_be_within(50 * MINUTE, minutes(150)), "possibly done less than a period ago");
        assert!(now.may_be_within(MINUTE, minutes(202)), "possibly done just now");
        assert!(!now.may_be_within(MINUTE, minutes(204)));
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        let far = UNIX_EPOCH + Duration::from_millis(i64::MAX.unsigned_abs());
        for now in [
            NowRange::from_elapsed(minutes(1), Duration::MAX, Duration::MAX),
            NowRange::from_elapsed(far, MINUTE, MINUTE),
        ] {
            assert!(now.may_be_within(Duration::MAX, minutes(1)) && now.may_be_within(Duration::MAX, far));
            assert!(!now.may_be_within(MINUTE, UNIX_EPOCH));
        }
        assert!(!NowRange::from_elapsed(minutes(1), MINUTE, MINUTE).may_be_within(365 * 24 * 60 * MINUTE, far));
    }

    #[test]
    fn a_fuzzed_record_is_the_same_when_written_again() {
        let samples = [
            encode_record("web-1", Some("report = daily"), 4294967301),
            encode_record("h", None, -1),
            b"zk-rwlock done 2".to_vec(),
        ];
        fuzz(&samples, |data| {
            let Some(done) = parse_record(data, minutes(7)) else { return };
            assert!(data.starts_with(HEADING.as_bytes()));
            let token = done.token.unwrap_or_default();
            let again = parse_record(&encode_record(&done.host, done.label.as_deref(), token), minutes(7)).unwrap();
            assert_eq!((again.host, again.label, again.token), (done.host, done.label, Some(token)));
        });
    }
}
