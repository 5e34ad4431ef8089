//! Whose turn it is: names, numbers and rules; pure, without I/O and without a clock.

pub(crate) mod contender;
pub(crate) mod dialect;
pub(crate) mod member;
pub(crate) mod metadata;
pub(crate) mod mode;
pub(crate) mod permits;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod turn;
