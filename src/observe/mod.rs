//! The queue as people see it, and what is traced of an acquisition.

pub(crate) mod lock_paths;
pub(crate) mod on_wait;
pub(crate) mod survey;
pub(crate) mod trace;
