//! The rules without I/O: the protocol in every interleaving, the lease in random histories, and the tests of the
//! tests' own judges.

mod history;
mod lease_model;
mod life;
mod model;
mod protocol;
mod rounds;
mod walks;
