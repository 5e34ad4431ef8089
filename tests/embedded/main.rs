//! The lock on the embedded backend, polled by hand or in virtual time: orders of events that cannot be repeated on a real
//! server.

mod asking;
mod bounds;
mod denials;
mod dialects;
mod durations;
mod face;
mod ghosts;
mod idle;
mod inline;
mod kept;
mod kept_waits;
mod limits;
mod memory;
mod once;
mod one_path;
mod pauses;
mod permits;
mod refusals;
mod seeing;
mod unheard;
