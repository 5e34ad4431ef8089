//! The record of when a job was last done: where it lies, what it says, and whether it is fresh; reads nothing.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::queue::metadata;

/// What the path of a record ends with. No contender's name ends so, in any dialect: they end with a number.
const SUFFIX: &str = ".done";

/// The first line of a record.
const HEADING: &str = "zk-rwlock done ";

/// The last second of the year 9999, since 1970: later times cannot be printed.
const LAST_SHOWN: Duration = Duration::from_secs(253_402_300_799);

/// Clocks that count the same time differ by less than one part in so many.
const DRIFT: u32 = 100;

/// When a job that runs [once in a while](crate::Acquire::once_in) last succeeded, and who did it. Its `Display` prints
/// it for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// When its success was recorded, on the ensemble's clock.
    pub at: SystemTime,
    /// The host that it gives; empty if it gives none.
    pub host: String,
    /// The process id that it gives.
    pub pid: Option<u32>,
    /// The label that it gives: what was done.
    pub label: Option<String>,
    /// The [fencing token](crate::Hold::fencing_token) under which it was done.
    pub token: Option<i64>,
}

/// Where the record of a lock lies: beside the lock's directory. The directory goes when it is empty, and the record stays.
pub(crate) fn path_of(directory: &str) -> String {
    format!("{directory}{SUFFIX}")
}

/// The lock whose record would lie at `path`.
pub(crate) fn lock_of(path: &str) -> Option<&str> {
    path.strip_suffix(SUFFIX).filter(|directory| !directory.ends_with('/'))
}

/// What a record says.
pub(crate) fn text(host: &str, label: Option<&str>, token: i64) -> Vec<u8> {
    let mut text = format!("{HEADING}1\nhost={host}\npid={}\ntoken={token}\n", std::process::id());
    if let Some(label) = label {
        text.push_str(&format!("label={label}\n"));
    }
    text.into_bytes()
}

/// Reads the record of when a job was last [done](crate::OnceGuard::done), which was written at that time. `None` if the
/// bytes are no record.
pub fn read(data: &[u8], at: SystemTime) -> Option<Done> {
    let text = std::str::from_utf8(data).ok()?.strip_prefix(HEADING)?;
    let token = text.split('\n').find_map(|line| line.strip_prefix("token=")).and_then(|token| token.parse().ok());
    let said = metadata::read(data);
    Some(Done { at: at.min(UNIX_EPOCH + LAST_SHOWN), host: said.host, pid: said.pid, label: said.label, token })
}

/// The present time on the ensemble's clock, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    earliest: SystemTime,
    latest: SystemTime,
}

impl Now {
    /// The time now, if at least `least` and at most `most` has passed since it was `then`, by a clock that only counts.
    pub(crate) fn since(then: SystemTime, least: Duration, most: Duration) -> Now {
        let (least, most) = (least - least / DRIFT, most.saturating_add(most / DRIFT));
        Now { earliest: then.checked_add(least).unwrap_or(then), latest: then.checked_add(most).unwrap_or(then) }
    }

    /// Whether less than `period` lies between `at` and now.
    ///
    /// A moment in the future shows that the ensemble's clock was set back, since a leader with another clock took over.
    /// How long ago it was is not known then. It counts as long as it is near, so that a small step does no harm, and not
    /// for ever.
    pub(crate) fn is_within(&self, period: Duration, at: SystemTime) -> bool {
        let is_late_enough = at.checked_add(period).is_none_or(|end| end > self.earliest);
        let is_early_enough = self.latest.checked_add(period).is_none_or(|end| at < end);
        is_late_enough && is_early_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::dialect::Dialect;
    use crate::queue::tests::fuzz;

    const MINUTE: Duration = Duration::from_secs(60);

    fn minutes(n: u32) -> SystemTime {
        UNIX_EPOCH + n * MINUTE
    }

    #[test]
    fn a_record_is_text_that_can_be_read_back() {
        let text = text("web-1", Some("report = daily"), 4294967301);
        let pid = std::process::id();
        let expected = format!("zk-rwlock done 1\nhost=web-1\npid={pid}\ntoken=4294967301\nlabel=report = daily\n");
        assert_eq!(String::from_utf8(text.clone()).unwrap(), expected);
        let (host, label) = ("web-1".to_owned(), Some("report = daily".to_owned()));
        let done = Done { at: minutes(7), host, pid: Some(pid), label, token: Some(4294967301) };
        assert_eq!(read(&text, minutes(7)), Some(done));
    }

    #[test]
    fn other_bytes_are_no_record() {
        for data in [&b""[..], b"\xff\xfe", b"host=web-1\npid=7\n", b"zk-rwlock value 1\n", b" zk-rwlock done 1\n"] {
            assert_eq!(read(data, minutes(7)), None);
        }
        let bare = Done { at: minutes(7), host: String::new(), pid: None, label: None, token: None };
        assert_eq!(read(b"zk-rwlock done 2\ntoken=x", minutes(7)), Some(bare));
    }

    #[test]
    fn a_carriage_return_belongs_to_the_text_that_it_ends() {
        let record = text("web-1\r", Some("report\r"), 7);
        let done = read(&record, minutes(7)).unwrap();
        assert_eq!((&*done.host, done.label.as_deref(), done.token), ("web-1\r", Some("report\r"), Some(7)));
    }

    #[test]
    fn a_records_name_is_no_contenders_in_any_dialect() {
        for lock in ["/cron/report", "/a-WRITE-0000000007", "/x/__lock__0000000007", "/y/lock-0000000007"] {
            let path = path_of(lock);
            assert_eq!(lock_of(&path), Some(lock));
            let name = path.rsplit('/').next().unwrap();
            assert_eq!(Dialect::of(name), None, "{name}");
            assert!(Dialect::ALL.iter().all(|dialect| dialect.foreign(name).is_none()), "{name}");
        }
        assert_eq!((lock_of("/cron/report"), lock_of("/cron/.done")), (None, None));
    }

    #[test]
    fn what_was_done_less_than_a_period_ago_is_fresh() {
        let now = Now::since(minutes(100), Duration::ZERO, Duration::ZERO);
        for (at, is_fresh) in [(49, false), (50, false), (51, true), (100, true), (149, true), (150, false)] {
            assert_eq!(now.is_within(50 * MINUTE, minutes(at)), is_fresh, "{at}");
        }
    }

    #[test]
    fn a_contender_that_waited_counts_its_wait() {
        let now = Now::since(minutes(100), 100 * MINUTE, 101 * MINUTE);
        assert!(!now.is_within(50 * MINUTE, minutes(149)), "done while it waited, and a period ago by now");
        assert!(now.is_within(50 * MINUTE, minutes(150)), "if its clock is fast, less than a period ago");
        assert!(now.is_within(MINUTE, minutes(202)), "done just now, as far as is known");
        assert!(!now.is_within(MINUTE, minutes(204)));
    }

    #[test]
    fn no_time_is_too_far_away() {
        let far = UNIX_EPOCH + Duration::from_millis(i64::MAX.unsigned_abs());
        for now in [Now::since(minutes(1), Duration::MAX, Duration::MAX), Now::since(far, MINUTE, MINUTE)] {
            assert!(now.is_within(Duration::MAX, minutes(1)) && now.is_within(Duration::MAX, far));
            assert!(!now.is_within(MINUTE, UNIX_EPOCH));
        }
        assert!(!Now::since(minutes(1), MINUTE, MINUTE).is_within(365 * 24 * 60 * MINUTE, far));
    }

    #[test]
    fn any_bytes_are_no_record_or_one_that_is_the_same_when_written_again() {
        let samples =
            [text("web-1", Some("report = daily"), 4294967301), text("h", None, -1), b"zk-rwlock done 2".to_vec()];
        fuzz(&samples, |data| {
            let Some(done) = read(data, minutes(7)) else { return };
            assert!(data.starts_with(HEADING.as_bytes()));
            let token = done.token.unwrap_or_default();
            let again = read(&text(&done.host, done.label.as_deref(), token), minutes(7)).unwrap();
            assert_eq!((again.host, again.label, again.token), (done.host, done.label, Some(token)));
        });
    }
}
