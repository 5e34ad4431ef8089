//! Brings the database to this build's version, under the write lock.

use std::time::{Duration, Instant};

use sqlx::AnyConnection;
use sqlx::migrate::Migrate;
use tokio::time::timeout;
use zk_rwlock::{Error, RwLock, WriteGuard};

use crate::Site;
use crate::common::Result;
use crate::database::in_time;
use crate::fence::Fence;
use crate::schema::version;

/// How often a process that waits to migrate looks whether another one has migrated.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Waits until no instance uses the schema, and says for which it waits. `None` if there is nothing to do, or nothing
/// any more: a faster process may serve by now, and hold the read lock for weeks.
pub(crate) async fn alone(site: &Site, name: &str, lock: &RwLock) -> Result<Option<WriteGuard>> {
    let mut connection = site.database.connect(site.timeout).await?;
    let waits = format!("{name} waits:");
    let mut granted = std::pin::pin!(async {
        let acquire =
            lock.write().timeout(site.timeout).label(format!("{name}: migrate to v{}", site.schema.version()));
        acquire.on_wait(move |progress| println!("{waits} {}", progress.blockers)).await
    });
    let mut guard: Option<WriteGuard> = None;
    loop {
        let applied = in_time(site.timeout, site.database.applied(&mut connection)).await?;
        let is_migrated = site.schema.pending(&applied)?.is_empty();
        match guard {
            _ if is_migrated => break println!("{name}: the database is migrated, nothing to do"),
            Some(guard) => return Ok(Some(guard)),
            None => guard = timeout(LOOK_AGAIN_AFTER, &mut granted).await.ok().transpose()?,
        }
    }
    if let Some(guard) = guard {
        guard.release().await?;
    }
    Ok(None)
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
    let fence = site.fence(token);
    let pid = fence.pid(&mut connection).await?;
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
        if from.is_none() {
            println!("{name} migrates, with fencing token {}", fence.token);
        }
        let from = *from.get_or_insert(version(&applied));
        let Some(next) = site.schema.pending(&applied)?.first() else {
            transaction.commit().await?;
            println!("{name} has migrated from version {from} to {}", site.schema.version());
            return Ok(());
        };
        println!("{name} applies version {}, {}", next.version, next.description);
        let began = Instant::now();
        // In our transaction that of sqlx is a savepoint: statements, history and token are committed together.
        transaction.apply(next).await?;
        // Right also in the first moment after a stop. Not needed for safety, which is the fence's, but civil.
        if !is_held() {
            return Err("the lock was lost before the commit".into());
        }
        transaction.commit().await?;
        println!("{name} has applied version {} in {:.1?}", next.version, began.elapsed());
    }
}
