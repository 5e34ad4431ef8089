//! What is made of the lock. No recipe imports another.

/// The write lock as leadership.
pub(crate) mod leadership {
    pub(crate) mod campaign;
    pub(crate) mod leader;
    pub(crate) mod leadership;
}

/// Several locks at once, all or none.
pub(crate) mod multi {
    pub(crate) mod guard;
    pub(crate) mod lock;
}

pub(crate) mod once;

/// A semaphore: at most so many holders at once.
pub(crate) mod semaphore {
    pub(crate) mod semaphore;
    pub(crate) mod state;
    pub(crate) mod take;
}

/// A value behind the lock.
pub(crate) mod shared {
    pub(crate) mod codec;
    pub(crate) mod guard;
    pub(crate) mod known;
    pub(crate) mod live;
    pub(crate) mod node;
    pub(crate) mod shared;
    pub(crate) mod store;
}
