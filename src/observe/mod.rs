//! The queue as people see it, and what is traced of an acquisition.

pub(crate) mod display;
pub(crate) mod lock_paths;
pub(crate) mod on_wait;
pub(crate) mod progress;
pub(crate) mod read;
pub(crate) mod record;
pub(crate) mod survey;
pub(crate) mod trace;
