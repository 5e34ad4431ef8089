//! Brings the database to this build's version, under the write lock.

use std::time::{Duration, Instant};

use sqlx::AnyConnection;
use sqlx::migrate::Migrate;
use tokio::time::timeout;
use zk_rwlock::{Error, RwLock, WriteGuard};

use crate::Site;
use crate::common::Result;
use crate::fence::Fence;
use crate::schema::version;

/// How often one who waits to migrate looks whether somebody else has.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Waits until nobody uses the schema, and says for whom. `None` if there is nothing to do, or nothing any more: whoever
/// was faster may serve by now, and hold the lock to read for weeks.
pub(crate) async fn alone(site: &Site, name: &str, lock: &RwLock) -> Result<Option<WriteGuard>> {
    let mut connection = site.database.connect(site.timeout).await?;
    let waits = format!("{name} waits:");
    let mut granted = std::pin::pin!(async {
        let acquire =
            lock.write().timeout(site.timeout).label(format!("{name}: migrate to v{}", site.schema.version()));
        acquire.on_wait(move |progress| println!("{waits} {}", progress.blockers)).await
    });
    loop {
        if site.schema.pending(&site.database.applied(&mut connection).await?)?.is_empty() {
            println!("{name}: the database is migrated, nothing to do");
            return Ok(None);
        }
        if let Ok(guard) = timeout(LOOK_AGAIN_AFTER, &mut granted).await {
            return Ok(Some(guard?));
        }
    }
}

/// Applies what is missing. Stops when the lock is lost: a migration that is open then is rolled back.
pub(crate) async fn run(site: &Site, name: &str, guard: &WriteGuard) -> Result<()> {
    let work = apply(site, name, guard.fencing_token(), || guard.is_held());
    match guard.run(work).await? {
        // The database may have noticed before we did, because the next holder was there.
        Err(_) if !guard.is_held() => Err(Error::Lost(guard.lost().await).into()),
        done => done,
    }
}

/// Applies what is missing as the holder with this token, which need not be true: the database judges that.
pub(crate) async fn apply(site: &Site, name: &str, token: i64, is_held: impl Fn() -> bool) -> Result<()> {
    let mut connection = site.database.connect(site.timeout).await?;
    let fence = Fence { database: &site.database, token };
    let pid = fence.sign(&mut connection).await?;
    tokio::select! {
        done = apply_each(site, name, &fence, connection, is_held) => done,
        failure = fence.clear_the_way(name, pid) => match failure? {},
    }
}

async fn apply_each(
    site: &Site,
    name: &str,
    fence: &Fence<'_>,
    mut connection: AnyConnection,
    is_held: impl Fn() -> bool,
) -> Result<()> {
    fence.prepare(&mut connection).await?;
    let mut from = None;
    loop {
        let mut transaction = fence.begin(&mut connection).await?;
        transaction.ensure_migrations_table().await?;
        // Read behind the fence: whatever earlier holders could commit, they have.
        let applied = transaction.list_applied_migrations().await?;
        let next = site.schema.pending(&applied)?.first();
        if from.is_none() {
            from = Some(version(&applied));
            match next {
                Some(_) => println!("{name} migrates, with fencing token {}", fence.token),
                None => println!("{name}: the database is migrated, nothing to do"),
            }
        }
        let began = Instant::now();
        if let Some(migration) = next {
            println!("{name} applies version {}, {}", migration.version, migration.description);
            // In our transaction that of sqlx is a savepoint: statements, history and token are committed together.
            transaction.apply(migration).await?;
        }
        // After a stop this tells before anybody was told. Nothing would be wrong in the database, but it would be rude.
        if !is_held() {
            return Err("the lock was lost before the commit".into());
        }
        transaction.commit().await?;
        match (next, from) {
            (Some(migration), _) => {
                println!("{name} has applied version {} in {:.1?}", migration.version, began.elapsed())
            }
            (None, Some(from)) if from < site.schema.version() => {
                return Ok(println!("{name} has migrated from version {from} to {}", site.schema.version()));
            }
            (None, _) => return Ok(()),
        }
    }
}
