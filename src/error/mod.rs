//! The types of the fields of an [`Error`](crate::Error).

#[allow(clippy::module_inception)]
pub(crate) mod error;
pub(crate) mod value;

pub use self::error::PermitsError;
pub use self::value::ValueError;
pub use crate::session::contract::CutOff;
pub use crate::session::request::{DeniedRight, Failure, SessionEnd};
