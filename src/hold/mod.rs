//! Holding: the guard, its transactions, how it is lost; knows nothing of acquiring.

pub(crate) mod changes;
pub(crate) mod guard;
pub(crate) mod held;
pub(crate) mod hold;
pub(crate) mod kept;
pub(crate) mod trace;
pub(crate) mod transaction;
