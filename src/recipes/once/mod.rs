//! Work that is done once in a while, by whichever process comes first; knows no concrete backend.

pub(crate) mod acquire;
pub(crate) mod guard;
