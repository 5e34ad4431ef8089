//! The versions of the schema, and the migration to them under the write lock.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::AnyConnection;
use sqlx::migrate::{AppliedMigration, Migrate, Migration, Migrator};
use tokio::time::timeout;
use zk_rwlock::{Error, WriteGuard};

use crate::Site;
use crate::common::Result;

/// How often a waiting process checks whether another process has migrated.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// The reasons why a database does not match this build.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Mismatch {
    #[error("the database is at version {found}, and this build needs version {needed}: migrate it first")]
    Behind { found: i64, needed: i64 },
    #[error("the database is at version {found}, and this build knows version {needed}: it is too old to serve")]
    Ahead { found: i64, needed: i64 },
    #[error("version {0} was applied to the database in another wording than this build's, or in another order")]
    Changed(i64),
    #[error(
        "version {0} is marked `-- no-transaction`, so no fence can keep a late one out: run its statements when the deploy \
         is over, beside the instances"
    )]
    Unfenced(i64),
}

/// The schema of this build.
#[derive(Debug)]
pub(crate) struct Schema(Vec<Migration>);

impl Schema {
    /// Reads all files with names such as `0001_customers.sql`. There must be at least one.
    pub(crate) async fn read(directory: &Path) -> Result<Schema> {
        let wrong = |why: String| format!("{}: {why}", directory.display());
        let all = Migrator::new(directory).await?;
        for file in fs::read_dir(directory)? {
            // `sqlx` silently ignores a file whose name has no underscore.
            let name = file?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".sql") && !name.contains('_') {
                return Err(wrong(format!("{name} has no name such as 0001_customers.sql")).into());
            }
        }
        let up: Vec<_> = all.iter().filter(|one| !one.migration_type.is_down_migration()).cloned().collect();
        match up.windows(2).find(|pair| pair[0].version == pair[1].version) {
            _ if up.is_empty() => Err(wrong("there is no migration in it".to_owned()).into()),
            Some(twice) => Err(wrong(format!("version {} is there twice", twice[0].version)).into()),
            None => Ok(Schema(up)),
        }
    }

    pub(crate) fn version(&self) -> i64 {
        self.0.last().map_or(0, |last| last.version)
    }

    /// Returns the migrations that are not applied yet. The applied ones must be the first of this build, in the same order.
    fn pending(&self, applied: &[AppliedMigration]) -> std::result::Result<&[Migration], Mismatch> {
        if let Some(unfenced) = self.0.iter().find(|migration| migration.no_tx) {
            return Err(Mismatch::Unfenced(unfenced.version));
        }
        let mut pairs = self.0.iter().zip(applied);
        if let Some((_, other)) = pairs.find(|(ours, it)| (ours.version, &ours.checksum) != (it.version, &it.checksum))
        {
            return Err(Mismatch::Changed(other.version));
        }
        let ahead = Mismatch::Ahead { found: version(applied), needed: self.version() };
        self.0.get(applied.len()..).ok_or(ahead)
    }

    /// Checks that the applied versions are exactly the versions of this build.
    pub(crate) fn fits(&self, applied: &[AppliedMigration]) -> std::result::Result<(), Mismatch> {
        match self.pending(applied)? {
            [] => Ok(()),
            _ => Err(Mismatch::Behind { found: version(applied), needed: self.version() }),
        }
    }
}

fn version(applied: &[AppliedMigration]) -> i64 {
    applied.last().map_or(0, |last| last.version)
}

/// Acquires the write lock, and so waits until no instance uses the schema. Prints the instances that still use it.
/// Returns `None` as soon as another process has migrated, because that process may hold the read lock for weeks.
pub(crate) async fn alone(site: &Site) -> Result<Option<WriteGuard>> {
    let mut connection = site.database.connect().await?;
    let acquire =
        site.lock.write().timeout(site.timeout()).label(format!("{}: migrate to v{}", site.name, site.version()));
    let mut granted = std::pin::pin!(acquire.on_wait(site.telling()).into_future());
    let mut guard: Option<WriteGuard> = None;
    while !site.schema.pending(&site.database.applied(&mut connection).await?)?.is_empty() {
        match guard {
            Some(_) => return Ok(guard),
            None => guard = timeout(LOOK_AGAIN_AFTER, &mut granted).await.ok().transpose()?,
        }
    }
    println!("{}: the database is migrated, nothing to do", site.name);
    if let Some(guard) = guard {
        guard.release().await?;
    }
    Ok(None)
}

/// Applies the missing migrations. If the lock is lost, the work is dropped, and an open migration is rolled back.
pub(crate) async fn migrate(site: &Site, guard: &WriteGuard) -> Result<()> {
    let work = async {
        let mut connection = site.database.connect().await?;
        let each = async |connection: &mut AnyConnection| apply_each(site, guard, connection).await;
        site.database.unobstructed(&site.name, &mut connection, guard.fencing_token(), each).await
    };
    match guard.run(work).await? {
        // The next holder may have written its token, which refuses this one's, before this process notices the loss.
        Err(_) if !guard.is_held() => Err(Error::Lost(guard.lost().await).into()),
        done => done,
    }
}

async fn apply_each(site: &Site, guard: &WriteGuard, connection: &mut AnyConnection) -> Result<()> {
    let (name, token) = (&site.name, guard.fencing_token());
    site.database.prepare(connection, token).await?;
    let mut from = None;
    loop {
        let mut transaction = site.database.begin(connection, token).await?;
        transaction.ensure_migrations_table().await?;
        // The history is read in the fenced transaction, so no earlier holder can change it any more.
        let applied = transaction.list_applied_migrations().await?;
        if from.is_none() {
            println!("{name} migrates, with fencing token {token}");
        }
        let from = *from.get_or_insert(version(&applied));
        let Some(next) = site.schema.pending(&applied)?.first() else {
            transaction.commit().await?;
            println!("{name} has migrated from version {from} to {}", site.version());
            return Ok(());
        };
        println!("{name} applies version {}, {}", next.version, next.description);
        let began = Instant::now();
        // sqlx's transaction is a savepoint in this one. Statements, history and token are committed together.
        transaction.apply(next).await?;
        // The fence excludes late holders anyway. This check ends a migration early, even right after a stop of the process.
        if !guard.is_held() {
            return Err("the lock was lost before the commit".into());
        }
        transaction.commit().await?;
        println!("{name} has applied version {} in {:.1?}", next.version, began.elapsed());
    }
}
