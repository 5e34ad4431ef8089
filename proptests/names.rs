//! Tests that a formatted name parses back to the same contender, and that no text makes the parser panic.

use proptest::prelude::*;
use zk_rwlock::Mode;
use zk_rwlock::coordinator::turn;
use zk_rwlock::queue::NodeName;

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Read), Just(Mode::Write)]
}

/// Generates texts that are almost a name, so that every branch of the parser is reached.
fn nearly_a_name() -> impl Strategy<Value = String> {
    let piece = prop_oneof!["[a-zA-Z0-9._~-]{0,8}", "-(READ|WRITE)-", "-?[0-9]{9,12}", "\\PC{0,3}"];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn a_name_is_read_back_as_it_was_written(
        host in "[A-Za-z0-9._-]{1,64}",
        id in prop::option::of("[a-z0-9]{1,12}"),
        mode in mode(),
        sequence in i32::MIN..=i32::MAX,
    ) {
        let owner = id.as_ref().map_or(host.clone(), |id| format!("{host}~{id}"));
        let name = format!("{owner}-{mode}-{sequence:010}");
        let contender = NodeName::parse(&name).expect("a well-formed name");
        prop_assert_eq!(contender.host(), host);
        prop_assert_eq!(contender.id(), id.as_deref());
        prop_assert_eq!((contender.mode(), contender.sequence()), (mode, i64::from(sequence)));
        prop_assert_eq!(contender.to_string(), name);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in prop_oneof![".*", nearly_a_name()]) {
        if let Some(contender) = NodeName::parse(&text) {
            prop_assert_eq!(contender.as_str(), &text);
            let written = format!("{}-{}-{:010}", contender.host(), contender.mode(), contender.sequence());
            let with_id = contender.id().map(|id| {
                format!("{}~{id}-{}-{:010}", contender.host(), contender.mode(), contender.sequence())
            });
            prop_assert_eq!(with_id.unwrap_or(written), text, "a contender has only one name");
        }
    }

    #[test]
    fn no_list_of_names_makes_the_decision_panic(names in prop::collection::vec(nearly_a_name(), 0..20)) {
        for me in names.iter().filter_map(|name| NodeName::parse(name)) {
            let _any = turn(&me, &names);
        }
    }
}
