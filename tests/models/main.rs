//! The rules alone: the protocol in every interleaving, the lease in every history, and the checkers of histories.

mod history;
mod lease_model;
mod life;
mod model;
mod protocol;
mod rounds;
mod walks;
