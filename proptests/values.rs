//! Tests that a shared value of any type and size is read back as it was written.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use support::copy::Copied;
use zk_rwlock::error::ValueError;
use zk_rwlock::format::{Format, FormatError, Json, Raw};
use zk_rwlock::{Memory, Shared};

/// A nested value, such as a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Tree {
    Nothing,
    Flag(bool),
    Number(f64),
    Text(String),
    Small { signed: i8, letter: char },
    Pair(i64, u128),
    List(Vec<Tree>),
    Table(BTreeMap<String, Tree>),
}

fn trees() -> impl Strategy<Value = Tree> {
    let number = prop_oneof![any::<f64>(), any::<i64>().prop_map(|number| number as f64)];
    let leaf = prop_oneof![
        Just(Tree::Nothing),
        any::<bool>().prop_map(Tree::Flag),
        number.prop_filter("JSON has only finite numbers", |number| number.is_finite()).prop_map(Tree::Number),
        any::<String>().prop_map(Tree::Text),
        (any::<i8>(), any::<char>()).prop_map(|(signed, letter)| Tree::Small { signed, letter }),
        (any::<i64>(), any::<u128>()).prop_map(|(signed, large)| Tree::Pair(signed, large)),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..8).prop_map(Tree::List),
            btree_map(any::<String>(), inner, 0..8).prop_map(Tree::Table),
        ]
    })
}

/// Writes the value through one handle and reads it through another. Writes and reads twice, because only the first write
/// creates the node.
fn comes_back<T>(format: impl Format<T> + Copy, value: &T) -> Result<(), TestCaseError>
where
    T: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let (zk, path) = (Memory::new(), "/proptests/value");
    let there = Shared::with_format(&zk.connect(), path, format).build().expect("a valid path");
    let there = Copied::of(&there);
    let here = Shared::with_format(&zk, path, format).build().expect("a valid path");
    pollster::block_on(async {
        for _ in 0..2 {
            let mut guard = here.write().replacing(value.clone()).await.expect("free");
            let written = guard.commit().await.expect("the value can be written");
            drop(guard);
            let reader = there.read().await.expect("the value can be read");
            prop_assert_eq!((&*reader, reader.written()), (value, &written));
            let first = there.changes().next().await.expect("open").expect("a value");
            prop_assert_eq!((&**first, &**there.latest().expect("has come")), (value, value));
        }
        Ok(())
    })
}

fn comes_back_as_json<T>(value: &T) -> Result<(), TestCaseError>
where
    T: Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    comes_back(Json, value)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nested_values_come_back(value in trees()) {
        comes_back_as_json(&value)?;
    }

    #[test]
    fn numbers_of_every_width_come_back(
        small in any::<(i8, u8, i16, u16, i32, u32)>(),
        large in any::<(i64, u64, i128, u128)>(),
        exact in any::<f64>().prop_filter("JSON has only finite numbers", |number| number.is_finite()),
    ) {
        comes_back_as_json(&small)?;
        comes_back_as_json(&large)?;
        comes_back_as_json(&exact)?;
        comes_back_as_json(&(exact as f32).clamp(f32::MIN, f32::MAX))?;
    }

    #[test]
    fn any_number_comes_back_or_is_refused(numbers in vec(proptest::num::f64::ANY, 0..8)) {
        if numbers.iter().all(|number| number.is_finite()) {
            comes_back_as_json(&numbers)?;
        } else {
            let shared = Shared::new(&Memory::new(), "/proptests/value").expect("a valid path");
            pollster::block_on(async {
                let mut guard = shared.write().replacing(numbers).await.expect("free");
                let error = guard.commit().await.expect_err("JSON does not keep this number");
                prop_assert!(matches!(error.value_error(), Some(ValueError::Unwritable { .. })), "{}", error);
                drop(guard);
                let error = shared.read().await.expect_err("nothing was written");
                prop_assert!(matches!(error.value_error(), Some(ValueError::Unset)), "{}", error);
                Ok(())
            })?;
        }
    }

    #[test]
    fn collections_come_back(
        list in vec(option::of(any::<String>()), 0..20),
        table in btree_map(any::<i64>(), vec(any::<bool>(), 0..4), 0..20),
        set in btree_set(any::<char>(), 0..20),
    ) {
        comes_back_as_json(&list)?;
        comes_back_as_json(&table)?;
        comes_back_as_json(&set)?;
        comes_back_as_json(&Some((list, table, set)))?;
    }

    #[test]
    fn any_bytes_and_any_text_come_back(bytes in vec(any::<u8>(), 0..5000), text in any::<String>()) {
        comes_back(Raw, &bytes)?;
        comes_back(Raw, &bytes.into_boxed_slice())?;
        comes_back(Raw, &text)?;
    }

    /// For any bytes in the node, a read returns a value or an error, and never panics.
    #[test]
    fn any_bytes_in_the_node_are_read_or_refused(head in "(zk-rwlock value [0-9]\n)?([a-z]{1,6}=[^\n]{0,12}\n){0,8}\n?", tail in vec(any::<u8>(), 0..40)) {
        let zk = Memory::new();
        let shared: Shared<BTreeSet<u8>> = Shared::new(&zk, "/proptests/value").expect("a valid path");
        let shared = Copied::of(&shared);
        let bytes = [head.as_bytes(), &tail].concat();
        pollster::block_on(async {
            let guard = shared.lock().write().await.expect("free");
            guard.transaction().create(shared.value_path(), bytes).commit().await.expect("held");
            drop(guard);
            prop_assert!(shared.read().await.err().is_some_and(|error| error.value_error().is_some()));
            prop_assert!(shared.latest().is_none());
            Ok(())
        })?;
    }
}

/// A format that fails to write some values, and to read others.
#[derive(Clone, Copy)]
struct Odd;

impl Format<u8> for Odd {
    fn name(&self) -> &str {
        "odd"
    }

    fn encode(&self, value: &u8) -> Result<Vec<u8>, FormatError> {
        if value.is_multiple_of(3) { Err("not threes".into()) } else { Ok(vec![*value]) }
    }

    fn decode(&self, bytes: &[u8]) -> Result<u8, FormatError> {
        bytes.first().copied().filter(|value| value % 2 == 1).ok_or_else(|| "not even".into())
    }
}

proptest! {
    /// A read always returns the value of the last write that succeeded.
    #[test]
    fn a_read_gives_the_last_value_that_could_be_written(values in vec(any::<u8>(), 1..40)) {
        let shared = Shared::with_format(&Memory::new(), "/proptests/odd", Odd).initial(|| 1).build().expect("valid");
        let shared = Copied::of(&shared);
        pollster::block_on(async {
            let mut last = 1;
            for value in values {
                let mut guard = shared.write().await.expect("free");
                prop_assert_eq!(*guard, last);
                *guard = value;
                let is_fit = value % 2 == 1 && value % 3 != 0;
                prop_assert_eq!(guard.commit().await.is_ok(), is_fit);
                drop(guard);
                if is_fit { last = value; }
                prop_assert_eq!(*shared.read().await.expect("the value can be read"), last);
                prop_assert_eq!(shared.latest().map(|latest| **latest), Some(last));
            }
            Ok(())
        })?;
    }
}
