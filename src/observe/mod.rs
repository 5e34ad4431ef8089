//! Snapshots of the queue for operators and errors, and the traces of acquisitions and holds.

pub(crate) mod changes;
pub(crate) mod lock_paths;
pub(crate) mod on_wait;
pub(crate) mod queue_view;
pub(crate) mod survey;
pub(crate) mod trace;
