//! Connects to PostgreSQL or SQLite, and hides their differences.

use std::error::Error;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{AppliedMigration, Migrate, MigrateError};
use sqlx::{Any, AnyConnection, Connection, Transaction};

use crate::common::Result;

/// Whether the operation failed because it waited too long for a lock of the database.
pub(crate) fn is_locked(error: &(dyn Error + 'static)) -> bool {
    // The codes are SQLSTATE `lock_not_available` and SQLITE_BUSY. The error of a migration wraps the error of its
    // statement.
    let code = error.downcast_ref().and_then(sqlx::Error::as_database_error).and_then(|error| error.code());
    code.is_some_and(|code| ["55P03", "5"].contains(&code.as_ref())) || error.source().is_some_and(is_locked)
}

/// The error for a database that does not answer. Without a limit a connection over a cut network would wait for hours.
#[derive(Debug, thiserror::Error)]
#[error("the database has not answered within {0:?}")]
pub(crate) struct Silent(Duration);

/// Awaits an operation that a working database answers quickly. Fails after `limit`.
pub(crate) async fn in_time<T, E>(limit: Duration, asked: impl Future<Output = std::result::Result<T, E>>) -> Result<T>
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    tokio::time::timeout(limit, asked).await.map_err(|_| Silent(limit))?.map_err(Into::into)
}

/// Parses `postgres://USER@HOST/NAME`, or the name of a file.
pub(crate) fn place(text: &str) -> std::result::Result<String, String> {
    // An empty text, such as the value of an unset variable, is refused, because SQLite would open a temporary file for
    // it.
    let is_place = !text.is_empty() && (Database::from(text).is_postgres() || !text.contains("://"));
    is_place.then(|| text.to_owned()).ok_or_else(|| "it is neither postgres://... nor the name of a file".to_owned())
}

/// The address of the database.
#[derive(Clone, Debug)]
pub(crate) enum Database {
    Postgres(String),
    Sqlite(String),
}

impl From<&str> for Database {
    /// Parses `postgres://USER@HOST/NAME`, or else the name of a file.
    fn from(place: &str) -> Database {
        match place {
            _ if place.starts_with("postgres://") || place.starts_with("postgresql://") => {
                Database::Postgres(place.into())
            }
            file => Database::Sqlite(file.into()),
        }
    }
}

impl From<&Path> for Database {
    fn from(file: &Path) -> Database {
        Database::Sqlite(file.display().to_string())
    }
}

impl Database {
    fn is_postgres(&self) -> bool {
        matches!(self, Database::Postgres(_))
    }

    /// Returns the address as text, for another process.
    pub(crate) fn place(&self) -> &str {
        let (Database::Postgres(place) | Database::Sqlite(place)) = self;
        place
    }

    /// Opens a connection. `limit` bounds the connecting, and later each wait for a lock of the database.
    pub(crate) async fn connect(&self, limit: Duration) -> Result<AnyConnection> {
        sqlx::any::install_default_drivers();
        let milliseconds = limit.as_millis();
        let (url, setting) = match self {
            Database::Postgres(url) => (url.clone(), format!("SET lock_timeout = {milliseconds}")),
            Database::Sqlite(file) => (
                format!("sqlite:{}?mode=rwc", file.replace('%', "%25").replace('?', "%3f")),
                format!("PRAGMA busy_timeout = {milliseconds}"),
            ),
        };
        let connected = async {
            let mut connection = AnyConnection::connect(&url).await?;
            sqlx::query(&setting).execute(&mut connection).await?;
            Ok::<_, sqlx::Error>(connection)
        };
        in_time(limit, connected).await
    }

    /// Begins a transaction that will write.
    pub(crate) async fn begin<'c>(&self, connection: &'c mut AnyConnection) -> sqlx::Result<Transaction<'c, Any>> {
        connection
            .begin_with(match self {
                Database::Postgres(_) => "BEGIN",
                // SQLite has one writer at a time. IMMEDIATE locks the file when the transaction begins. By default
                // SQLite would lock the file at the first change, and could fail because another writer came in
                // between.
                Database::Sqlite(_) => "BEGIN IMMEDIATE",
            })
            .await
    }

    /// Whether the database has a fence and a history of migrations.
    pub(crate) async fn is_fenced(&self, connection: &mut AnyConnection) -> sqlx::Result<bool> {
        let tables = match self {
            Database::Postgres(_) => {
                "SELECT count(*) FROM pg_class WHERE oid IN (to_regclass('_sqlx_migrations'), to_regclass('lock_fence'))"
            }
            Database::Sqlite(_) => {
                "SELECT count(*) FROM sqlite_master WHERE name IN ('_sqlx_migrations', 'lock_fence')"
            }
        };
        Ok(sqlx::query_scalar::<_, i64>(tables).fetch_one(connection).await? == 2)
    }

    /// Returns the migrations that were applied, or none if there is no fence. Changes nothing.
    pub(crate) async fn applied(
        &self,
        connection: &mut AnyConnection,
    ) -> std::result::Result<Vec<AppliedMigration>, MigrateError> {
        match self.is_fenced(connection).await? {
            false => Ok(Vec::new()),
            true => connection.list_applied_migrations().await,
        }
    }
}
