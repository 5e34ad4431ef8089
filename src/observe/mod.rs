//! The queue as people see it; decides nothing.

pub(crate) mod display;
pub(crate) mod lock_paths;
pub(crate) mod on_wait;
pub(crate) mod progress;
pub(crate) mod read;
pub(crate) mod record;
pub(crate) mod survey;
pub(crate) mod trace;
