//! An instance of the service: it holds the read lock for as long as it relies on the schema.

use std::time::Duration;

use sqlx::AnyConnection;
use zk_rwlock::RwLock;
use zk_rwlock::coordinator::Coordinator;

use crate::common::Result;
use crate::fence::Fence;
use crate::{Site, migration};

/// Serves until `stop`, on the schema that this build is made for or not at all.
pub(crate) async fn serve(site: &Site, name: &str, migrates: bool, stop: impl Future<Output = ()>) -> Result<()> {
    let zk = site.backend.connect().await?;
    let lock = RwLock::new(&zk, &site.lock)?;
    let alone = if migrates { migration::alone(site, name, &lock).await? } else { None };
    let guard = if let Some(writer) = alone {
        migration::run(site, name, &writer).await?;
        // In place: nobody changes the schema between the migration and our first request.
        writer.downgrade().await?
    } else {
        let waits = format!("{name} waits:");
        // A migration that waits for its turn is before us in the queue: we are let in when it is done.
        let acquire = lock.read().timeout(site.timeout).label(format!("{name}: serve on v{}", site.schema.version()));
        acquire.on_wait(move |progress| println!("{waits} {}", progress.blockers)).await?
    };
    let mut connection = site.database.connect(site.timeout).await?;
    let served = async {
        // Whoever migrated last may have been cut off, and its commit still be on the way.
        Fence { database: &site.database, token: guard.fencing_token() }.raise(name, &mut connection).await?;
        requests(site, name, &mut connection, stop).await
    };
    // Dropped when the lock is lost: a migration may begin then.
    let served = guard.run(served).await?;
    guard.release().await?;
    zk.close().await;
    served
}

async fn requests(
    site: &Site,
    name: &str,
    connection: &mut AnyConnection,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let mut stop = std::pin::pin!(stop);
    let mut served = 0;
    loop {
        // Stands for a request. Once would be enough: while we hold the lock nobody migrates.
        site.schema.fits(&site.database.applied(connection).await?)?;
        if served == 0 {
            println!("{name} serves on version {}", site.schema.version());
        }
        served += 1;
        tokio::select! {
            biased;
            () = &mut stop => break,
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
    }
    println!("{name} stops after {served} requests");
    Ok(())
}
