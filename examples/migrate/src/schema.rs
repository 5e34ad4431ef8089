//! The versions of a schema, and their comparison with the versions in a database.

use std::fs;
use std::path::Path;

use sqlx::migrate::{AppliedMigration, Migration, MigrationType, Migrator};

use crate::common::Result;

/// The built-in migrations: version, description, statements.
const BUILT_IN: [(i64, &str, &str); 3] = [
    (1, "customers", include_str!("../migrations/0001_customers.sql")),
    (2, "full name", include_str!("../migrations/0002_full_name.sql")),
    (3, "fill full name", include_str!("../migrations/0003_fill_full_name.sql")),
];

/// The schema of this build.
#[derive(Clone, Debug)]
pub(crate) struct Schema(Vec<Migration>);

/// The reasons why a database does not match this build.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Mismatch {
    #[error("the database is at version {found}, and this build needs version {needed}: migrate it first")]
    Behind { found: i64, needed: i64 },
    #[error("the database is at version {found}, and this build knows version {needed}: it is too old to serve")]
    Ahead { found: i64, needed: i64 },
    #[error("version {version} was applied to the database in another wording than this build's, or in another order")]
    Changed { version: i64 },
    #[error(
        "version {version} is marked `-- no-transaction`, so no fence can keep a late one out: run its statements when \
         the deploy is over, beside the instances"
    )]
    Unfenced { version: i64 },
}

impl Schema {
    pub(crate) fn built_in() -> Schema {
        let migration = |(version, description, sql): (i64, &'static str, &'static str)| {
            Migration::new(version, description.into(), MigrationType::Simple, sql.into(), false)
        };
        Schema(BUILT_IN.map(migration).into())
    }

    /// Reads all files with names such as `0001_customers.sql`. There must be at least one.
    pub(crate) async fn read(directory: &Path) -> Result<Schema> {
        let all = Migrator::new(directory).await?;
        for file in fs::read_dir(directory)? {
            // `sqlx` silently ignores a file whose name has no underscore, so the check is here.
            let name = file?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".sql") && !name.contains('_') {
                return Err(format!("{}: {name} has no name such as 0001_customers.sql", directory.display()).into());
            }
        }
        let up: Vec<_> = all.iter().filter(|one| !one.migration_type.is_down_migration()).cloned().collect();
        if up.is_empty() {
            return Err(format!("{}: there is no migration in it", directory.display()).into());
        }
        if let Some(twice) = up.windows(2).find(|pair| pair[0].version == pair[1].version) {
            return Err(format!("{}: version {} is there twice", directory.display(), twice[0].version).into());
        }
        Ok(Schema(up))
    }

    pub(crate) fn version(&self) -> i64 {
        self.0.last().map_or(0, |last| last.version)
    }

    /// Returns the migrations that are not applied yet. The applied migrations must be the first migrations of this
    /// build, in the same order.
    pub(crate) fn pending(&self, applied: &[AppliedMigration]) -> std::result::Result<&[Migration], Mismatch> {
        if let Some(Migration { version, .. }) = self.0.iter().find(|migration| migration.no_tx) {
            return Err(Mismatch::Unfenced { version: *version });
        }
        for (ours, theirs) in self.0.iter().zip(applied) {
            if (ours.version, &ours.checksum) != (theirs.version, &theirs.checksum) {
                return Err(Mismatch::Changed { version: theirs.version });
            }
        }
        match self.0.get(applied.len()..) {
            Some(pending) => Ok(pending),
            None => Err(Mismatch::Ahead { found: version(applied), needed: self.version() }),
        }
    }

    /// Checks that the applied versions are exactly those of this build.
    pub(crate) fn fits(&self, applied: &[AppliedMigration]) -> std::result::Result<(), Mismatch> {
        match self.pending(applied)? {
            [] => Ok(()),
            _ => Err(Mismatch::Behind { found: version(applied), needed: self.version() }),
        }
    }
}

pub(crate) fn version(applied: &[AppliedMigration]) -> i64 {
    applied.last().map_or(0, |last| last.version)
}
