//! The snippets of `README.md`.

use zk_rwlock::Error;

#[expect(dead_code, reason = "it needs a server")]
fn the_first_lock() -> Result<(), Error> {
    // page: the-first-lock
    use zk_rwlock::{RwLock, ZooKeeper};

    #[tokio::main]
    async fn main() -> Result<(), zk_rwlock::Error> {
        let zk = ZooKeeper::connect("127.0.0.1:2181").await?; // without a server: zk_rwlock::Memory::new()
        let lock = RwLock::new(&zk, "/locks/billing")?;

        let guard = lock.write().label("migrate v42").await?; // alone; lock.read() shares
        println!("{}", lock.queue().await?); // who holds, who waits
        guard.run(async { /* your work: dropped if the lock is lost */ }).await?;
        guard.release().await
    }
    // end
    main()
}
