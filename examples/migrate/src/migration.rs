//! Migrates the database to the version of this build, under the write lock.

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

/// How often a waiting process checks whether another process has migrated.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Acquires the write lock, and so waits until no instance uses the schema. Prints the instances that still use it.
/// Returns `None` as soon as another process has migrated the database, because that process may hold the read lock for
/// weeks while it serves.
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

/// Applies the missing migrations. If the lock is lost, it stops, and an open migration is rolled back.
pub(crate) async fn run(site: &Site, name: &str, guard: &WriteGuard) -> Result<()> {
    let work = apply(site, name, guard.fencing_token(), || guard.is_held());
    match guard.run(work).await? {
        // The next holder has already written its token. So the database may refuse this token before this process
        // notices the loss.
        Err(_) if !guard.is_held() => Err(Error::Lost(guard.lost().await).into()),
        done => done,
    }
}

/// Applies the missing migrations with this token. The token may be outdated: the database refuses an outdated token.
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
        // The history is read in the fenced transaction, so no earlier holder can change it any more.
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
        // The transaction of sqlx becomes a savepoint in this one. Statements, history and token are committed
        // together.
        transaction.apply(next).await?;
        // Safety does not need this check, because the fence excludes late holders. The check ends the migration early,
        // even right after a stop of this process.
        if !is_held() {
            return Err("the lock was lost before the commit".into());
        }
        transaction.commit().await?;
        println!("{name} has applied version {} in {:.1?}", next.version, began.elapsed());
    }
}
