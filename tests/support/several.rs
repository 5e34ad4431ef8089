//! A helper that makes a lock over several locks of one client from their paths.

use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{Error, Mode, MultiLock, RwLock};

/// Makes a lock over the locks in these directories.
pub fn several<C, P>(client: &C, locks: impl IntoIterator<Item = (P, Mode)>) -> Result<MultiLock, Error>
where
    C: Coordinator + Clone,
    P: AsRef<str>,
{
    let open = |(path, mode): (P, Mode)| Ok((RwLock::new(client, path)?, mode));
    MultiLock::new(locks.into_iter().map(open).collect::<Result<Vec<_>, Error>>()?)
}
