//! Work that is done once in a while, by whichever process comes first.

pub(crate) mod acquire;
pub(crate) mod guard;
