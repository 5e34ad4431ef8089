//! PostgreSQL with a fence, the row that stores the highest fencing token, and the end of what earlier holders left open.

use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use sqlx::migrate::{AppliedMigration, Migrate};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;

use crate::Refused;
use crate::common::Result;

/// Makes the row of the fence, outside of the transactions that rely on it.
pub(crate) const SET_UP: &str = "CREATE TABLE IF NOT EXISTS lock_fence (name TEXT PRIMARY KEY, token BIGINT NOT NULL);
    INSERT INTO lock_fence VALUES ('schema', 0) ON CONFLICT DO NOTHING";
const FENCE: &str = "UPDATE lock_fence SET token = $1 WHERE name = 'schema' AND token <= $1";
const IS_FENCED: &str = "SELECT to_regclass('lock_fence') IS NOT NULL AND to_regclass('_sqlx_migrations') IS NOT NULL";
/// Ends the connections of earlier holders, which have lost the lock, because the process that runs this holds it. The call is a
/// column: PostgreSQL checks conditions in any order, and would begin with such a call, for every connection of the server.
const END_EARLIER: &str =
    "SELECT application_name, pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
    AND substring(application_name FROM '^lock_fence (\\d+)$')::bigint < $1";

#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) options: PgConnectOptions,
    /// The longest wait for an answer.
    pub(crate) limit: Duration,
}

impl Database {
    pub(crate) async fn connect(&self, name: &str) -> Result<PgConnection> {
        Ok(PgConnection::connect_with(&self.options.clone().application_name(name)).await?)
    }

    /// Awaits an operation that a working database answers quickly.
    pub(crate) async fn in_time<T>(&self, asked: impl Future<Output = Result<T>>) -> Result<T> {
        timeout(self.limit, asked).await.map_err(|_| Refused::Silent(self.limit))?
    }

    /// Does the work of a holder. Each half second, on a second connection, ends what earlier holders left open, which would
    /// block the work, and fails if the database does not answer there: a statement of the work may rightly take hours.
    pub(crate) async fn watched<T>(&self, token: i64, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut connection = self.in_time(self.connect("migrate")).await?;
        let mut work = pin!(work);
        loop {
            let end = async { Ok(sqlx::query_as(END_EARLIER).bind(token).fetch_all(&mut connection).await?) };
            let ended: Vec<(String, bool)> = self.in_time(end).await?;
            ended.iter().for_each(|(name, _)| println!("ends what an earlier holder left open: {name}"));
            if let Ok(done) = timeout(Duration::from_millis(500), &mut work).await {
                return done;
            }
        }
    }
}

/// Writes the token, or returns `false` if a later holder has written its own. In a transaction, locks the row to the end.
pub(crate) async fn fence(connection: &mut PgConnection, token: i64) -> Result<bool> {
    Ok(sqlx::query(FENCE).bind(token).execute(connection).await?.rows_affected() > 0)
}

/// Returns the migrations that were applied, or none if there is no fence. Changes nothing.
pub(crate) async fn applied(connection: &mut PgConnection) -> Result<Vec<AppliedMigration>> {
    let is_fenced: bool = sqlx::query_scalar(IS_FENCED).fetch_one(&mut *connection).await?;
    Ok(if is_fenced { connection.list_applied_migrations().await? } else { Vec::new() })
}

/// Returns whether the operation waited too long for a lock of the database. The error may be within that of a migration.
pub(crate) fn is_locked(error: &(dyn Error + 'static)) -> bool {
    let code = error.downcast_ref().and_then(sqlx::Error::as_database_error).and_then(|error| error.code());
    code.is_some_and(|code| code == "55P03") || error.source().is_some_and(is_locked)
}
