//! The write lock as leadership.

pub(crate) mod campaign;
pub(crate) mod leader;
pub(crate) mod leadership;
pub(crate) mod observe;
pub(crate) mod pause;
pub(crate) mod term;
