//! From asking for a lock until it is granted or given up; knows nothing of what a holder does.

pub(crate) mod ask;
pub(crate) mod builder;
pub(crate) mod enqueue;
pub(crate) mod flow;
pub(crate) mod grant;
pub(crate) mod handle;
pub(crate) mod join;
pub(crate) mod keep;
pub(crate) mod limit;
pub(crate) mod options;
pub(crate) mod permit;
pub(crate) mod report;
pub(crate) mod request;
pub(crate) mod timeout;
pub(crate) mod wait;
pub(crate) mod waiting;
