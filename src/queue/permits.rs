//! The names of permit nodes, and the rule that decides whether a semaphore has enough free permits for a request.
//!
//! ```text
//! /limits/geocoder                                      data: permits=10
//! /limits/geocoder/permits/web-1~k3v9x2ma-PERMIT-2
//!                          host  id              number of permits that the holder took
//! ```
//!
//! A child of `permits` with a malformed name is an error: no permit is granted while the child exists.

use crate::queue::dialect;

/// The name of the directory of the queue, inside the semaphore's directory.
pub(crate) const QUEUE: &str = "queue";

/// The name of the directory of the taken permits, inside the semaphore's directory.
pub(crate) const PERMITS: &str = "permits";

const MARKER: &str = "-PERMIT-";
const NUMBER: &str = "permits=";

/// The parts of the name of a permit holder's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitNameParts<'n> {
    pub(crate) host: &'n str,
    /// The number of permits that the holder took.
    pub(crate) count: u32,
}

/// Returns the name of a permit holder's node. `owner` is the holder's `host~id`, which no other holder has.
pub(crate) fn permit_node_name(owner: &str, count: u32) -> String {
    format!("{owner}{MARKER}{count}")
}

/// Returns whether `name` is the name of a node of the permit holder `owner`.
pub(crate) fn is_node_of_owner(name: &str, owner: &str) -> bool {
    name.rsplit_once(MARKER).is_some_and(|(it, _)| it == owner)
}

/// Parses the name of a permit holder's node. `None` if the name is not exactly as [`permit_node_name`] makes it.
pub(crate) fn parse_permit_name(name: &str) -> Option<PermitNameParts<'_>> {
    let (owner, count) = name.rsplit_once(MARKER)?;
    let (host, id) = owner.split_once('~')?;
    let is_sound = dialect::host_problem(host).is_none() && !id.is_empty();
    let count = parse_positive(count)?;
    (is_sound && id.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(PermitNameParts { host, count })
}

/// Returns the number of permits that a node of this name takes from a [`Semaphore`](crate::Semaphore); `None` if the
/// name is not a permit's.
///
/// ```
/// use zk_rwlock::coordinator::permits_in_name;
/// assert_eq!(permits_in_name("web-1~k3v9x2ma-PERMIT-2"), Some(2));
/// assert_eq!(permits_in_name("web-1~k3v9x2ma-PERMIT-02"), None);
/// ```
pub fn permits_in_name(name: &str) -> Option<u32> {
    parse_permit_name(name).map(|by| by.count)
}

/// Returns the number of permits that the nodes with these names take.
///
/// # Errors
/// Returns the first malformed name in text order.
pub(crate) fn count_taken_permits(names: &[String]) -> Result<u64, &str> {
    let mut taken = 0;
    let mut doubtful: Option<&str> = None;
    for name in names {
        match parse_permit_name(name) {
            Some(by) => taken += u64::from(by.count),
            None => doubtful = Some(doubtful.map_or(name, |first| first.min(name))),
        }
    }
    doubtful.map_or(Ok(taken), Err)
}

/// Whether a request for permits can be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitAvailability {
    Enough,
    /// The request has to wait until other holders have given permits back.
    Short,
    /// The semaphore has fewer permits in total than the request needs.
    Never,
}

/// Returns whether `wanted` permits can be taken from a semaphore of `number` permits while nodes with these names
/// exist.
///
/// # Errors
/// The errors of [`count_taken_permits`].
pub(crate) fn permit_availability(number: u32, names: &[String], wanted: u32) -> Result<PermitAvailability, &str> {
    let taken = count_taken_permits(names)?;
    Ok(match wanted {
        _ if wanted > number => PermitAvailability::Never,
        _ if taken + u64::from(wanted) <= u64::from(number) => PermitAvailability::Enough,
        _ => PermitAvailability::Short,
    })
}

/// Returns the data of the node of a semaphore that has this number of permits.
pub(crate) fn encode_permit_number(number: u32) -> Vec<u8> {
    format!("{NUMBER}{number}").into_bytes()
}

/// Parses the data of a semaphore's node: its number of permits, or `None` if the data are empty. Ignores one newline
/// at the end.
///
/// # Errors
/// The data are not a number of permits. The error contains their first 40 characters.
pub(crate) fn decode_permit_number(data: &[u8]) -> Result<Option<u32>, String> {
    let text = String::from_utf8_lossy(data);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    if text.is_empty() {
        return Ok(None);
    }
    let number = text.strip_prefix(NUMBER).and_then(parse_positive);
    number.map(Some).ok_or_else(|| text.chars().take(40).collect())
}

/// Returns whether data of this length may be a number of permits.
pub(crate) fn may_be_permit_number_length(length: usize) -> bool {
    (NUMBER.len() + 1..=encode_permit_number(u32::MAX).len() + 1).contains(&length)
}

/// Parses a positive number only in the spelling that [`encode_permit_number`] writes, so that each number has one
/// spelling.
fn parse_positive(digits: &str) -> Option<u32> {
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::{fuzz, fuzz_text};

    fn names<const N: usize>(names: [&str; N]) -> [String; N] {
        names.map(str::to_owned)
    }

    #[test]
    fn a_permit_name_is_parsed_back() {
        for (owner, host, count) in [("web-1~k3v9x2ma", "web-1", 1), ("a-PERMIT-3~x", "a-PERMIT-3", u32::MAX)] {
            assert_eq!(parse_permit_name(&permit_node_name(owner, count)), Some(PermitNameParts { host, count }));
            assert!(
                is_node_of_owner(&permit_node_name(owner, count), owner)
                    && !is_node_of_owner(&permit_node_name(owner, count), host)
                    && !is_node_of_owner(owner, owner)
            );
        }
    }

    #[test]
    fn malformed_permit_names_are_rejected() {
        for name in ["", "h~a", "h~a-PERMIT-", "h~a-PERMIT-0", "h~a-PERMIT-01", "h~a-PERMIT-+1", "h~a-PERMIT--1"] {
            assert_eq!(parse_permit_name(name), None, "{name:?}");
        }
        for name in ["h-PERMIT-1", "~a-PERMIT-1", "h~-PERMIT-1", "h~a~b-PERMIT-1", "h~a b-PERMIT-1", "é~a-PERMIT-1"] {
            assert_eq!(parse_permit_name(name), None, "{name:?}");
        }
        for name in ["h~a-PERMIT-1x", "h~a-permit-1", "h~a-PERMIT-4294967296", "h~a-PERMIT-1 ", "h~a-READ-0000000001"] {
            assert_eq!(parse_permit_name(name), None, "{name:?}");
        }
    }

    #[test]
    fn permits_are_counted_unless_a_name_is_malformed() {
        let three = names(["a~1-PERMIT-1", "b~2-PERMIT-2"]);
        assert_eq!(count_taken_permits(&three), Ok(3));
        for (number, wanted, expected) in [
            (4, 1, PermitAvailability::Enough),
            (3, 1, PermitAvailability::Short),
            (4, 2, PermitAvailability::Short),
            (2, 1, PermitAvailability::Short),
            (2, 3, PermitAvailability::Never),
        ] {
            assert_eq!(permit_availability(number, &three, wanted), Ok(expected), "{wanted} of {number}");
        }
        assert_eq!(permit_availability(u32::MAX, &[], u32::MAX), Ok(PermitAvailability::Enough));
        assert_eq!(permit_availability(u32::MAX, &names(["a~1-PERMIT-4294967295"]), 1), Ok(PermitAvailability::Short));
        assert_eq!(permit_availability(9, &names(["z", "a~1-PERMIT-1", "b"]), 1), Err("b"));
    }

    #[test]
    fn only_an_encoded_number_is_decoded() {
        assert_eq!(decode_permit_number(&encode_permit_number(10)), Ok(Some(10)));
        assert_eq!(decode_permit_number(b"permits=7\n"), Ok(Some(7)), "an editor appends a newline");
        assert_eq!(decode_permit_number(b""), Ok(None));
        for data in ["permits=", "permits=0", "permits=07", "permits=-1", "permits=4294967296", "7", "permits=7 "] {
            assert_eq!(decode_permit_number(data.as_bytes()), Err(data.to_owned()));
        }
        assert_eq!(decode_permit_number(&[0xff; 999]).unwrap_err().chars().count(), 40);
    }

    #[test]
    fn a_fuzzed_permit_name_is_rejected_or_parsed_back() {
        fuzz_text(&["web-1~k3v9x2ma-PERMIT-2", "a-PERMIT-3~x-PERMIT-4294967295"], |text| {
            let Some(PermitNameParts { host, count }) = parse_permit_name(text) else { return };
            let (owner, _) = text.rsplit_once(MARKER).unwrap();
            assert_eq!((permit_node_name(owner, count).as_str(), owner.starts_with(host)), (text, true));
            assert_eq!(count_taken_permits(&[text.to_owned()]), Ok(count.into()));
        });
    }

    #[test]
    fn fuzzed_data_are_rejected_or_decoded_exactly() {
        fuzz(&["permits=10", "permits=4294967295\n", ""], |data| match decode_permit_number(data) {
            Ok(Some(number)) => assert_eq!(data.strip_suffix(b"\n").unwrap_or(data), encode_permit_number(number)),
            Ok(None) => assert!(data.is_empty() || data == b"\n"),
            Err(text) => assert!(text.chars().count() <= 40),
        });
    }

    #[test]
    fn permits_of_reads_the_count_in_a_name() {
        assert_eq!(permits_in_name("web-1~k3v9x2ma-PERMIT-2"), Some(2));
        assert_eq!(permits_in_name("web-1~k3v9x2ma-PERMIT-02"), None);
    }
}
