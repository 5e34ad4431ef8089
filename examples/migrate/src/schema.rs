//! The versions of the schema that this build knows, and how they differ from those of the database.

use std::fs;
use std::path::Path;

use sqlx::migrate::{AppliedMigration, Migration, Migrator};

use crate::Refused;
use crate::common::Result;

pub(crate) struct Schema {
    pub(crate) version: i64,
    versions: Vec<Migration>,
}

impl Schema {
    /// Reads all files with names such as `0001_customers.sql`. There must be at least one.
    pub(crate) async fn read(directory: &Path) -> Result<Schema> {
        let all = Migrator::new(directory).await?;
        let up: Vec<_> = all.iter().filter(|one| !one.migration_type.is_down_migration()).cloned().collect();
        let mut names = fs::read_dir(directory)?.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
        // `sqlx` silently ignores a file whose name has no underscore.
        let ignored = names.find(|name| name.ends_with(".sql") && !name.contains('_'));
        let twice = up.windows(2).find(|pair| pair[0].version == pair[1].version);
        let wrong = match (ignored, twice, up.last()) {
            (Some(name), ..) => format!("{name} has no name such as 0001_customers.sql"),
            (_, Some(twice), _) => format!("version {} is there twice", twice[0].version),
            (.., None) => "there is no migration in it".to_owned(),
            (.., Some(last)) => return Ok(Schema { version: last.version, versions: up }),
        };
        Err(format!("{}: {wrong}", directory.display()).into())
    }

    /// Returns the migrations that are not applied yet. The applied ones must be the first of this build, in the same order.
    pub(crate) fn pending(&self, applied: &[AppliedMigration]) -> Result<&[Migration]> {
        if let Some(unfenced) = self.versions.iter().find(|migration| migration.no_tx) {
            return Err(Refused::Unfenced(unfenced.version).into());
        }
        let mut pairs = self.versions.iter().zip(applied);
        if let Some((_, it)) = pairs.find(|(ours, it)| (ours.version, &ours.checksum) != (it.version, &it.checksum)) {
            return Err(Refused::Changed(it.version).into());
        }
        let pending = self.versions.get(applied.len()..);
        Ok(pending.ok_or(Refused::Ahead { found: version(applied), needed: self.version })?)
    }
}

pub(crate) fn version(applied: &[AppliedMigration]) -> i64 {
    applied.last().map_or(0, |last| last.version)
}
