//! Errors, by what the caller can do about them; knows no lock and no backend.

pub(crate) mod error;
pub(crate) mod value;
