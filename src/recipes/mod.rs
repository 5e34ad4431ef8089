//! The recipes: tools built on the lock. No recipe imports another recipe.

/// Leader election on the write lock.
pub(crate) mod leadership {
    pub(crate) mod campaign;
    pub(crate) mod leader;
    pub(crate) mod leadership;
}

/// Several locks, acquired together.
pub(crate) mod multi {
    pub(crate) mod guard;
    pub(crate) mod lock;
}

pub(crate) mod once;

pub(crate) mod semaphore;

/// A value that a lock guards.
pub(crate) mod shared {
    pub(crate) mod codec;
    pub(crate) mod guard;
    pub(crate) mod known;
    pub(crate) mod live;
    pub(crate) mod node;
    pub(crate) mod shared;
    pub(crate) mod store;
}
