//! An instance of the service, which holds the read lock for as long as it relies on the schema.

use std::time::{Duration, Instant};

use sqlx::AnyConnection;
use tokio::time::sleep;
use zk_rwlock::RwLock;
use zk_rwlock::coordinator::Coordinator;

use crate::common::{Client, Result};
use crate::database::in_time;
use crate::{Site, asked_to_stop, migration};

/// Serves for this duration, or until it is asked to stop. Refuses to serve on another version of the schema than that
/// of this build.
pub(crate) async fn serve(site: &Site, name: &str, migrates: bool, duration: Option<Duration>) -> Result<()> {
    let zk = site.backend.connect().await?;
    tokio::select! {
        biased;
        () = asked_to_stop() => {}
        served = be_let_in_and_serve(site, &zk, name, migrates, duration) => served?,
    }
    // Ends the session, so that the lock or the place in the queue is freed now, and not one session timeout later.
    zk.close().await;
    println!("{name} stops");
    Ok(())
}

async fn be_let_in_and_serve(
    site: &Site,
    zk: &Client,
    name: &str,
    migrates: bool,
    duration: Option<Duration>,
) -> Result<()> {
    let lock = RwLock::new(zk, &site.lock)?;
    let alone = if migrates { migration::alone(site, name, &lock).await? } else { None };
    let guard = if let Some(writer) = alone {
        migration::run(site, name, &writer).await?;
        // The downgrade lets no other process change the schema between the migration and the first request.
        writer.downgrade().await?
    } else {
        let waits = format!("{name} waits:");
        // A waiting migration is ahead in the queue, so the read lock is granted when the migration is done.
        let acquire = lock.read().timeout(site.timeout).label(format!("{name}: serve on v{}", site.schema.version()));
        acquire.on_wait(move |progress| println!("{waits} {}", progress.blockers)).await?
    };
    let mut connection = site.database.connect(site.timeout).await?;
    let serve = async {
        // An earlier holder may have lost its connection while its commit was on the way to the database. After `raise`
        // the database refuses such a commit.
        site.fence(guard.fencing_token()).raise(name, &mut connection).await?;
        requests(site, name, &mut connection, duration).await
    };
    // When the lock is lost, `run` drops the work, because a migration may begin then.
    guard.run(serve).await?
}

async fn requests(site: &Site, name: &str, database: &mut AnyConnection, duration: Option<Duration>) -> Result<()> {
    let began = Instant::now();
    request(site, database).await?;
    println!("{name} serves on version {}", site.schema.version());
    while duration.is_none_or(|duration| began.elapsed() < duration) {
        sleep(Duration::from_millis(20)).await;
        request(site, database).await?;
    }
    Ok(())
}

/// Stands for the work of a service. It checks the version each time, although no process can migrate while the read
/// lock is held.
async fn request(site: &Site, database: &mut AnyConnection) -> Result<()> {
    Ok(site.schema.fits(&in_time(site.timeout, site.database.applied(database)).await?)?)
}
