//! Tests of names in each dialect: how they are written and parsed.

use super::*;
use crate::queue::node_name::{AcquisitionTag, NodeName};
use crate::queue::tests::fuzz_text;

const UUID: &str = "5cf2ad84-2a9c-4f12-a1ab-0f4d8ce1a4a9";

/// Returns the first letter of the mode, and the sequence number, of a contender's name.
fn read(dialect: Dialect, name: &str) -> Option<(char, i64)> {
    let place = dialect.parse_mode_and_sequence(name)?;
    Some((if place.mode == Mode::Read { 'R' } else { 'W' }, place.sequence))
}

#[test]
fn each_dialect_reads_its_own_names_and_no_others() {
    let hex = UUID.replace('-', "");
    for (dialect, reader, writer) in [
        (Dialect::Native, "web-1~k3v9x2ma-READ-".to_owned(), "web-1~k3v9x2ma-WRITE-".to_owned()),
        (Dialect::Curator, format!("_c_{UUID}-__READ__"), format!("_c_{UUID}-__WRIT__")),
        (Dialect::CuratorMutex, format!("_c_{UUID}-READ-lock-"), format!("_c_{UUID}-lock-")),
        (Dialect::Kazoo, format!("{hex}__rlock__"), format!("{hex}__lock__")),
    ] {
        for (digits, number) in [("0000000007", 7), ("2147483647", 2147483647), ("-2147483648", -2147483648)] {
            let (reader, writer) = (format!("{reader}{digits}"), format!("{writer}{digits}"));
            for other in Dialect::ALL {
                let is_own = other == dialect;
                assert_eq!(read(other, &reader), is_own.then_some(('R', number)), "{reader} as {other}");
                assert_eq!(read(other, &writer), is_own.then_some(('W', number)), "{writer} as {other}");
                assert_eq!(other.foreign(&reader), (!is_own).then_some(dialect), "{reader} among {other}");
                assert_eq!(other.foreign(&writer), (!is_own).then_some(dialect), "{writer} among {other}");
            }
        }
    }
}

#[test]
fn a_written_name_is_parsed_back() {
    let mut number = 0_u64;
    for dialect in Dialect::ALL {
        let tag = dialect.new_tag("web-1", false, || {
            number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
            number
        });
        let tag = AcquisitionTag::new(dialect, tag);
        for mode in [Mode::Read, Mode::Write] {
            let name = format!("{}0000000042", tag.name_prefix(mode));
            assert_eq!(dialect.parse_mode_and_sequence(&name), Some(ModeAndSequence { mode, sequence: 42 }), "{name}");
            assert!(name.starts_with(&tag.name_prefix(mode)) && tag.is_tag_of(&name), "{name}");
            assert_eq!(name.len(), tag.len() + dialect.mode_marker(mode).len() + "0000000042".len(), "{name}");
            assert_eq!(Dialect::of(&name), Some(dialect), "{name}");
        }
    }
}

#[test]
fn the_uuid_in_a_tag_has_version_four() {
    let uuids = [(Dialect::Curator, "_c_", "-"), (Dialect::CuratorMutex, "_c_", "-"), (Dialect::Kazoo, "", "")];
    for (dialect, before, after) in uuids {
        for bits in [0, u64::MAX] {
            let tag = dialect.new_tag("web-1", false, || bits);
            let uuid = tag.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).expect("its affixes");
            let digits = uuid.replace('-', "");
            assert_eq!(digits.len(), 32);
            assert_eq!(&digits[12..13], "4", "{uuid}");
            assert!(matches!(&digits[16..17], "8" | "b"), "{uuid}");
            assert_eq!(Dialect::id_in_tag(&tag), uuid);
        }
    }
}

#[test]
fn a_tag_has_all_random_bits_except_the_uuid_version() {
    for (dialect, tag) in [
        (Dialect::Curator, "_c_01234567-89ab-4def-bedc-ba9876543210-"),
        (Dialect::CuratorMutex, "_c_01234567-89ab-4def-bedc-ba9876543210-"),
        (Dialect::Kazoo, "0123456789ab4defbedcba9876543210"),
    ] {
        let mut numbers = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210].into_iter();
        assert_eq!(dialect.new_tag("web-1", false, || numbers.next().expect("a third number")), tag);
    }
    assert_eq!(Dialect::Native.new_tag("web-1", false, || 36 + 2), "web-1~21000000");
    assert_eq!(Dialect::Native.new_tag("web-1", true, || 35), "web-1~z0000000~keep");
}

#[test]
fn any_text_may_precede_the_marker() {
    assert_eq!(read(Dialect::Curator, "3f2a__WRIT__0000000005"), Some(('W', 5)));
    assert_eq!(read(Dialect::Curator, "__READ__0000000005"), Some(('R', 5)));
    assert_eq!(read(Dialect::CuratorMutex, "lock-0000000005"), Some(('W', 5)));
    assert_eq!(
        read(Dialect::CuratorMutex, "block-0000000005"),
        Some(('W', 5)),
        "Curator and zookeeper-client accept this name, too"
    );
    assert_eq!(read(Dialect::Kazoo, "__lock__0000000005"), Some(('W', 5)));
}

#[test]
fn among_mutexes_only_our_own_readers_are_readers() {
    let no_digit = format!("_c_{}-READ-lock-0000000005", UUID.replace('5', "x"));
    let short = "_c_5cf2ad84-READ-lock-0000000005";
    for name in ["READ-lock-0000000005", "x-READ-lock-0000000005", "_c_x-READ-lock-0000000005", short, &no_digit] {
        assert_eq!(read(Dialect::CuratorMutex, name), Some(('W', 5)), "{name}");
    }
}

#[test]
fn any_name_with_curators_write_marker_is_a_writer() {
    assert_eq!(read(Dialect::Curator, "__WRIT__0000000001__READ__0000000005"), Some(('W', 5)));
    assert_eq!(read(Dialect::Curator, "__READ__0000000001__WRIT__0000000005"), Some(('W', 5)));
}

#[test]
fn a_marker_without_a_number_is_foreign_everywhere() {
    for (name, dialect) in [
        ("a__WRIT__-x-0000000005", Dialect::Curator),
        ("a__READ__00000000005", Dialect::Curator),
        ("a__lock__00000000005", Dialect::Kazoo),
        ("x-lock-1f-0000000005", Dialect::CuratorMutex),
    ] {
        for among in Dialect::ALL {
            assert_eq!(among.foreign(name), Some(dialect), "{name} among {among}");
        }
    }
}

#[test]
fn names_that_are_no_contenders_are_ignored() {
    for name in ["", "foo", "leases", "__lock__", "config-0000000005", "0000000005", "x-READ-abc", "a-WRITE-12"] {
        for among in Dialect::ALL {
            assert_eq!((among.foreign(name), Dialect::of(name)), (None, None), "{name} among {among}");
        }
    }
    for among in [Dialect::Native, Dialect::Curator, Dialect::Kazoo] {
        assert_eq!(among.foreign("block-0000000005"), None, "`block` is a common word, among {among}");
    }
}

#[test]
fn odd_names_do_not_panic() {
    for name in ["é__lock__0000000001", "ü0000000001", "_c_é-lock-0000000001", "\u{200b}", "-", "--0000000001"] {
        for dialect in Dialect::ALL {
            let _results = (dialect.split_name(name), dialect.foreign(name));
        }
    }
    assert_eq!(read(Dialect::Kazoo, "é__lock__0000000001"), Some(('W', 1)));
}

#[test]
fn a_fuzzed_name_has_one_parse_and_is_written_back() {
    let samples = [
        "web-1~k3v9x2ma-READ-0000000007".to_owned(),
        "web-1~k3v9x2ma~keep-WRITE--2147483648".to_owned(),
        format!("_c_{UUID}-__WRIT__0000000007"),
        format!("_c_{UUID}-READ-lock-0000000007"),
        format!("{}__rlock__-000000005", UUID.replace('-', "")),
    ];
    fuzz_text(&samples.each_ref().map(String::as_str), |name| {
        for dialect in Dialect::ALL {
            let foreign = dialect.foreign(name);
            let Some((tag, ModeAndSequence { mode, sequence })) = dialect.split_name(name) else { continue };
            assert_eq!(foreign, None, "{dialect}");
            let contender = NodeName::parse_as(name, dialect).unwrap();
            assert_eq!((contender.mode(), contender.sequence(), contender.as_str()), (mode, sequence, name));
            assert!(contender.host().len() + contender.id().map_or(0, str::len) <= tag.len());
            // In Curator's dialect, a name that ends with a reader's marker is a writer's if it also contains a
            // writer's marker. So the marker of `Read` is tried, too.
            let modes = [mode, Mode::Read];
            let tag = AcquisitionTag::new(dialect, tag.to_owned());
            let is_written_back = |mode: &Mode| {
                let begins = name.strip_prefix(&tag.name_prefix(*mode));
                begins.is_some_and(|number| number.parse() == Ok(sequence))
            };
            assert!(modes.iter().any(is_written_back) && tag.is_tag_of(name), "{dialect}");
        }
    });
}

#[test]
fn the_quick_parser_agrees_with_the_full_parser() {
    for digits in ["0000000007", "2147483647", "9999999999", "-000000005", "-2147483648", "12147483647"] {
        for mode in ["READ", "WRITE"] {
            let name = format!("h-READ-0000000001~i-{mode}-{digits}");
            let full = split_native(&name).map(|(_, place)| place.sequence);
            let quick = unsigned_sequence_at_end(&name);
            assert!(quick.is_none() || quick == full, "{name}: {quick:?}, {full:?}");
            assert_eq!(quick.is_some(), digits.len() == 10 && !digits.starts_with('-'), "{name}");
        }
    }
    assert_eq!(unsigned_sequence_at_end("short"), None);
    assert_eq!(unsigned_sequence_at_end("h-READ-000000000x"), None);
}

#[test]
fn a_host_has_at_most_64_bytes() {
    assert_eq!(host_problem(&"h".repeat(64)), None);
    assert_eq!(host_problem(&"h".repeat(65)), Some("is longer than 64 bytes"));
    assert_eq!(host_problem(&"h".repeat(66)), Some("is longer than 64 bytes"));
}

#[test]
fn a_name_that_looks_kept_may_be_no_contender() {
    let keeps = |name| NodeName::parse(name).is_some_and(|it| it.keeps());
    assert!(keeps("h~i~keep-READ-0000000001") && keeps("h~i~keep-WRITE--2147483648"));
    // `looks_kept` reads only the end of a name, so it also accepts a name that is not a contender's.
    assert!(looks_kept("a b~keep-READ-0000000001") && !keeps("a b~keep-READ-0000000001"));
    assert!(!keeps("h~i-READ-0000000001") && !looks_kept("h~i-READ-0000000001"));
}
