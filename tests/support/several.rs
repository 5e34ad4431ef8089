//! A helper that makes a [`MultiLock`] from the paths of its locks.

use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{Error, Mode, MultiLock, RwLock};

/// Makes a [`MultiLock`] over the locks in these directories, each in its mode.
pub fn several<C, P>(client: &C, locks: impl IntoIterator<Item = (P, Mode)>) -> Result<MultiLock, Error>
where
    C: Coordinator + Clone,
    P: AsRef<str>,
{
    let open = |(path, mode): (P, Mode)| Ok((RwLock::new(client, path)?, mode));
    MultiLock::new(locks.into_iter().map(open).collect::<Result<Vec<_>, Error>>()?)
}
