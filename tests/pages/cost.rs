//! The snippets of `docs/cost.md`.

use zk_rwlock::{Error, Memory};

#[support::judged]
async fn a_lock_that_is_read_all_the_time() -> Result<(), Error> {
    let zk = Memory::new();
    // page: a-lock-that-is-read-all-the-time
    use std::time::Duration;
    use zk_rwlock::RwLock;

    let lock = RwLock::builder(&zk, "/locks/config").keep(Duration::from_secs(60)).build()?;
    drop(lock.read().await?); // makes a node, which stays
    let before = zk.requests(); // `Memory` counts them
    drop(lock.read().await?);
    assert_eq!(zk.requests(), before);
    // end
    Ok(())
}
