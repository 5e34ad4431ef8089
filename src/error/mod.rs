//! Errors, by what the caller can do.

pub(crate) mod error;
pub(crate) mod value;
