//! Whether a value has numbers that JSON cannot express; knows neither bytes nor nodes.
//!
//! `serde_json` writes infinities and NaN as `null`. An `Option` then reads back as `None`, without an error.

use serde::de::value::Error;
use serde::ser::{self, Serialize, Serializer};

/// A serializer that walks through a value, and writes nothing.
pub(crate) struct Finite;

fn checked(is_finite: bool) -> Result<(), Error> {
    if is_finite { Ok(()) } else { Err(ser::Error::custom("an infinite number, or NaN, would come back as null")) }
}

macro_rules! leaves {
    ($($method:ident($type:ty)),* $(,)?) => {
        $(fn $method(self, _: $type) -> Result<(), Error> {
            Ok(())
        })*
    };
}

macro_rules! begun {
    ($($method:ident($($argument:ty),*)),* $(,)?) => {
        $(fn $method(self, $(_: $argument),*) -> Result<Finite, Error> {
            Ok(Finite)
        })*
    };
}

impl Serializer for Finite {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    fn serialize_f32(self, number: f32) -> Result<(), Error> {
        checked(number.is_finite())
    }

    fn serialize_f64(self, number: f64) -> Result<(), Error> {
        checked(number.is_finite())
    }

    leaves! {
        serialize_bool(bool), serialize_char(char), serialize_str(&str), serialize_bytes(&[u8]),
        serialize_i8(i8), serialize_i16(i16), serialize_i32(i32), serialize_i64(i64), serialize_i128(i128),
        serialize_u8(u8), serialize_u16(u16), serialize_u32(u32), serialize_u64(u64), serialize_u128(u128),
        serialize_unit_struct(&'static str),
    }

    begun! {
        serialize_seq(Option<usize>), serialize_tuple(usize), serialize_map(Option<usize>),
        serialize_tuple_struct(&'static str, usize), serialize_struct(&'static str, usize),
        serialize_tuple_variant(&'static str, u32, &'static str, usize),
        serialize_struct_variant(&'static str, u32, &'static str, usize),
    }

    fn serialize_none(self) -> Result<(), Error> {
        Ok(())
    }

    fn serialize_unit(self) -> Result<(), Error> {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<(), Error> {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(Finite)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Error> {
        value.serialize(Finite)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(Finite)
    }
}

macro_rules! compounds {
    ($($compound:ident: $method:ident($($name:ty)?)),* $(,)?) => {
        $(impl ser::$compound for Finite {
            type Ok = ();
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, $(_: $name,)? value: &T) -> Result<(), Error> {
                value.serialize(Finite)
            }

            fn end(self) -> Result<(), Error> {
                Ok(())
            }
        })*
    };
}

compounds! {
    SerializeSeq: serialize_element(),
    SerializeTuple: serialize_element(),
    SerializeTupleStruct: serialize_field(),
    SerializeTupleVariant: serialize_field(),
    SerializeStruct: serialize_field(&'static str),
    SerializeStructVariant: serialize_field(&'static str),
}

impl ser::SerializeMap for Finite {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Result<(), Error> {
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(Finite)
    }

    fn end(self) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(serde::Serialize)]
    struct Alone(f64);

    #[derive(serde::Serialize)]
    enum Either {
        One(f64),
        Two(u8, f64),
        Named { value: f64 },
    }

    #[test]
    fn a_number_that_is_not_finite_is_found_wherever_it_stands() {
        let checks = |value: f64| {
            [
                value.serialize(Finite),
                Some(value).serialize(Finite),
                vec![0.5, value].serialize(Finite),
                (1, value).serialize(Finite),
                BTreeMap::from([("key", value)]).serialize(Finite),
                Alone(value).serialize(Finite),
                Either::One(value).serialize(Finite),
                Either::Two(1, value).serialize(Finite),
                Either::Named { value }.serialize(Finite),
            ]
        };
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(checks(value).iter().all(Result::is_err), "{:?}", checks(value));
        }
        assert!(checks(1.5).iter().all(Result::is_ok));
    }
}
