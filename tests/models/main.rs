//! Tests without I/O: the protocol in every interleaving, the lease in random histories, and tests of the checkers that
//! other tests use.

mod history;
mod lease_model;
mod life;
mod model;
mod protocol;
mod rounds;
mod walks;
