//! Temporary.
fn main() {}
