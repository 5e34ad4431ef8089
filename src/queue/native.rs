//! How the native dialect spells a name.
//!
//! ```text
//! /locks/config/web-1~k3v9x2ma-READ-0000000007
//!               host  id       mode sequence
//! /locks/config/web-1~k3v9x2ma~keep-READ-0000000007     may be kept between uses: ask for it
//! ```
//!
//! Names are read from the right, because a host may itself contain `-WRITE-`.

use crate::queue::mode::{Mode, Slot};

/// The end of the owner of a node that its process may keep between uses.
///
/// It is in the name, and not in the node's data, so that a waiter can ask as soon as it has listed the queue.
pub(crate) const KEEP: &str = "~keep";

const HOST_BYTES: usize = 64;

/// The longest owner that a library of ours makes, `host~id~keep`.
pub(crate) const OWNER_BYTES: usize = HOST_BYTES + "~k3v9x2ma".len() + KEEP.len();

/// Whether a name looks as if it were kept. Quick, because only the end of the name is read.
pub(crate) fn may_keep(name: &str) -> bool {
    let before = name.trim_end_matches(|last: char| last.is_ascii_digit() || last == '-');
    before.strip_suffix("-READ").or_else(|| before.strip_suffix("-WRITE")).is_some_and(|owner| owner.ends_with(KEEP))
}

/// Splits a native name into its owner (`host`, `host~id` or `host~id~keep`) and its slot.
pub(crate) fn split(name: &str) -> Option<(&str, Slot)> {
    let (before, digits) = name.rsplit_once('-')?;
    let sign = usize::from(before.ends_with('-'));
    let before = &before[..before.len() - sign];
    let sequence = parse_sequence(&name[name.len() - digits.len() - sign..])?;
    let (owner, mode) = match before.strip_suffix("-WRITE") {
        Some(owner) => (owner, Mode::Write),
        None => (before.strip_suffix("-READ")?, Mode::Read),
    };
    let (host, id) = owner.strip_suffix(KEEP).unwrap_or(owner).split_once('~').unwrap_or((owner, "0"));
    let well_formed = host_problem(host).is_none() && !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric());
    well_formed.then_some((owner, Slot { mode, sequence }))
}

/// Accepts exactly what the server prints (`%010d`), so that one number has one spelling.
fn parse_sequence(digits: &str) -> Option<i64> {
    let sequence: i64 = digits.parse().ok()?;
    let printed_by_server = digits.len() >= 10 && !digits.starts_with('+');
    let padded = digits.len() == 10 || !digits.trim_start_matches('-').starts_with('0');
    (printed_by_server && padded).then_some(sequence)
}

/// The sequence number of a native contender, if it has ten digits and no sign. Quick, because only the end of the name
/// is read.
pub(crate) fn sequence_if_plain(name: &str) -> Option<i64> {
    let (before, digits) = name.as_bytes().split_last_chunk::<10>()?;
    if !(before.ends_with(b"E-") || before.ends_with(b"D-")) {
        return None;
    }
    digits.iter().try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0')))
}

/// Why a host could not be read back from a name.
pub(crate) fn host_problem(host: &str) -> Option<&'static str> {
    if host.is_empty() {
        Some("is empty")
    } else if host.len() > HOST_BYTES {
        Some("is longer than 64 bytes")
    } else if !host.bytes().all(is_host_byte) {
        Some("may only contain letters, digits, '.', '_' and '-'")
    } else {
        None
    }
}

/// The machine's name, made fit to be a host.
pub(crate) fn machine() -> String {
    let name = rustix::system::uname();
    let fit = |byte| if is_host_byte(byte) { char::from(byte) } else { '_' };
    let fit: String = name.nodename().to_string_lossy().bytes().take(HOST_BYTES).map(fit).collect();
    if fit.is_empty() { "localhost".to_owned() } else { fit }
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::contender::Contender;

    #[test]
    fn a_glance_sees_no_other_number_than_a_look() {
        for digits in ["0000000007", "2147483647", "9999999999", "-000000005", "-2147483648", "12147483647"] {
            for mode in ["READ", "WRITE"] {
                let name = format!("h-READ-0000000001~i-{mode}-{digits}");
                let looked = split(&name).map(|(_, slot)| slot.sequence);
                let glanced = sequence_if_plain(&name);
                assert!(glanced.is_none() || glanced == looked, "{name}: {glanced:?}, {looked:?}");
                assert_eq!(glanced.is_some(), digits.len() == 10 && !digits.starts_with('-'), "{name}");
            }
        }
        assert_eq!(sequence_if_plain("short"), None);
        assert_eq!(sequence_if_plain("h-READ-000000000x"), None);
    }

    #[test]
    fn a_host_has_at_most_64_bytes() {
        assert_eq!(host_problem(&"h".repeat(64)), None);
        assert_eq!(host_problem(&"h".repeat(65)), Some("is longer than 64 bytes"));
        assert_eq!(host_problem(&"h".repeat(66)), Some("is longer than 64 bytes"));
    }

    #[test]
    fn only_a_contenders_name_is_one_that_may_be_kept() {
        let keeps = |name| Contender::parse(name).is_some_and(|it| it.keeps());
        assert!(keeps("h~i~keep-READ-0000000001") && keeps("h~i~keep-WRITE--2147483648"));
        // It looks as if it were, and is no contender's.
        assert!(may_keep("a b~keep-READ-0000000001") && !keeps("a b~keep-READ-0000000001"));
        assert!(!keeps("h~i-READ-0000000001") && !may_keep("h~i-READ-0000000001"));
    }
}
