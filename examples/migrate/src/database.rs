//! Connects to PostgreSQL or SQLite, hides their differences, and keeps the fence: the row that stores the highest fencing token.
//!
//! Every migration is one transaction that first writes its holder's token into the row. The write locks the row until
//! the commit, so only one holder at a time has a migration open. A late holder finds a higher token, and is refused.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::time::Duration;

use sqlx::migrate::{AppliedMigration, Migrate, MigrateError};
use sqlx::{Any, AnyConnection, Connection, Row, Transaction};
use tokio::time::sleep;

use crate::common::Result;

const SET_UP: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS lock_fence (name TEXT PRIMARY KEY, token BIGINT NOT NULL)",
    "INSERT INTO lock_fence VALUES ('schema', 0) ON CONFLICT DO NOTHING",
];
/// Writes the token, unless the row has a higher one. The condition is `<=`, so that one holder can run several migrations.
const FENCE: &str = "UPDATE lock_fence SET token = $1 WHERE name = 'schema' AND token <= $1";

/// Names the connection in `pg_stat_activity`, so that later holders recognize it.
const SIGN: &str = "SELECT set_config('application_name', 'lock_fence ' || $1::text, false)";
/// Selects the connections of earlier holders. The process that runs this has the lock, so they have lost it.
const EARLIER: &str = "SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database()
    AND substring(application_name FROM '^lock_fence (\\d+)$')::bigint < $1";
/// Ends a connection. The name is compared again, because another connection may have got the process id.
const END: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND application_name = $2";
const IN_THE_WAY: &str = "SELECT format('pid %s (\"%s\", %s)', pid, application_name, coalesce(state, 'state unknown'))
    FROM pg_stat_activity WHERE pid = ANY(pg_blocking_pids($1))";

const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
#[error(
    "the database has seen a newer holder of the lock than the one with token {0}; if ZooKeeper was set up anew, with \
     tokens that begin anew: UPDATE lock_fence SET token = 0"
)]
pub(crate) struct TooLate(i64);

/// The error for a database that does not answer. Without a limit a connection over a cut network would wait for hours.
#[derive(Debug, thiserror::Error)]
#[error("the database has not answered within {0:?}")]
pub(crate) struct Silent(Duration);

/// Returns whether the operation failed because it waited too long for a lock of the database.
pub(crate) fn is_locked(error: &(dyn Error + 'static)) -> bool {
    // SQLSTATE `lock_not_available` and SQLITE_BUSY. The error of a migration wraps the error of its statement.
    let code = error.downcast_ref().and_then(sqlx::Error::as_database_error).and_then(|error| error.code());
    code.is_some_and(|code| ["55P03", "5"].contains(&code.as_ref())) || error.source().is_some_and(is_locked)
}

#[derive(Debug)]
pub(crate) struct Database {
    /// `postgres://USER@HOST/NAME`, or the name of a file.
    pub(crate) place: String,
    /// The longest wait for an answer, and for a lock of the database.
    pub(crate) limit: Duration,
}

impl Database {
    /// Checks the place. An empty text, such as the value of an unset variable, would be a temporary file for SQLite.
    pub(crate) fn parse(place: &str) -> std::result::Result<String, String> {
        let is_place = is_postgres(place) || !place.is_empty() && !place.contains("://");
        is_place
            .then(|| place.to_owned())
            .ok_or_else(|| "it is neither postgres://... nor the name of a file".to_owned())
    }

    /// Awaits an operation that a working database answers quickly.
    async fn in_time<T, E>(&self, asked: impl Future<Output = std::result::Result<T, E>>) -> Result<T>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        tokio::time::timeout(self.limit, asked).await.map_err(|_| Silent(self.limit))?.map_err(Into::into)
    }

    pub(crate) async fn connect(&self) -> Result<AnyConnection> {
        sqlx::any::install_default_drivers();
        let (place, milliseconds) = (&self.place, self.limit.as_millis());
        let (url, setting) = match is_postgres(place) {
            true => (place.clone(), format!("SET lock_timeout = {milliseconds}")),
            false => (
                format!("sqlite:{}?mode=rwc", place.replace('%', "%25").replace('?', "%3f")),
                format!("PRAGMA busy_timeout = {milliseconds}"),
            ),
        };
        let connected = async {
            let mut connection = AnyConnection::connect(&url).await?;
            sqlx::query(&setting).execute(&mut connection).await?;
            Ok::<_, sqlx::Error>(connection)
        };
        self.in_time(connected).await
    }

    /// Returns whether the database has a fence and a history of migrations.
    async fn is_fenced(&self, connection: &mut AnyConnection) -> sqlx::Result<bool> {
        let tables = match is_postgres(&self.place) {
            true => {
                "SELECT count(*) FROM pg_class WHERE oid IN (to_regclass('_sqlx_migrations'), to_regclass('lock_fence'))"
            }
            false => "SELECT count(*) FROM sqlite_master WHERE name IN ('_sqlx_migrations', 'lock_fence')",
        };
        Ok(sqlx::query_scalar::<_, i64>(tables).fetch_one(connection).await? == 2)
    }

    /// Returns the migrations that were applied, or none if there is no fence. Changes nothing.
    pub(crate) async fn applied(&self, connection: &mut AnyConnection) -> Result<Vec<AppliedMigration>> {
        let applied = async {
            match self.is_fenced(connection).await? {
                false => Ok(Vec::new()),
                true => connection.list_applied_migrations().await,
            }
        };
        self.in_time::<_, MigrateError>(applied).await
    }

    /// Names the connection, and makes the row of the fence, outside of the transactions that rely on both.
    pub(crate) async fn prepare(&self, connection: &mut AnyConnection, token: i64) -> sqlx::Result<()> {
        if is_postgres(&self.place) {
            sqlx::query(SIGN).bind(token).execute(&mut *connection).await?;
        }
        for statement in SET_UP {
            sqlx::query(statement).execute(&mut *connection).await?;
        }
        Ok(())
    }

    /// Begins a transaction that overlaps with none of another holder. Fails if a later holder has written its token.
    pub(crate) async fn begin<'c>(&self, on: &'c mut AnyConnection, token: i64) -> Result<Transaction<'c, Any>> {
        // SQLite has one writer at a time. By default it would lock the file at the first change, and fail if another
        // writer came in between.
        let begin = if is_postgres(&self.place) { "BEGIN" } else { "BEGIN IMMEDIATE" };
        let mut transaction = on.begin_with(begin).await?;
        match sqlx::query(FENCE).bind(token).execute(&mut *transaction).await?.rows_affected() {
            0 => Err(TooLate(token).into()),
            _ => Ok(transaction),
        }
    }

    /// Excludes all earlier holders, which can commit nothing after this call of a reader. Another reader may have written
    /// a higher token. That does no harm, because a process that migrates later has a higher token than all these readers.
    pub(crate) async fn raise(&self, name: &str, connection: &mut AnyConnection, token: i64) -> Result<()> {
        if self.is_fenced(connection).await? {
            let raised = async |on: &mut AnyConnection| sqlx::query(FENCE).bind(token).execute(on).await.map(drop);
            self.unobstructed(name, connection, token, async |on| Ok(raised(on).await?)).await?;
        }
        Ok(())
    }

    /// Does the work on a connection. Meanwhile ends the transactions that earlier holders have left open in PostgreSQL,
    /// which block this holder and could still commit, and prints the other connections that block it. Fails if the
    /// database does not answer on a second connection, because a long statement alone is no sign of a failure.
    ///
    /// SQLite cannot end the transaction of another connection. That transaction ends with its process at the latest, and
    /// locks the whole file until then.
    pub(crate) async fn unobstructed<T>(
        &self,
        name: &str,
        connection: &mut AnyConnection,
        token: i64,
        work: impl AsyncFnOnce(&mut AnyConnection) -> Result<T>,
    ) -> Result<T> {
        if !is_postgres(&self.place) {
            return work(connection).await;
        }
        let pid = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *connection).await?;
        tokio::select! {
            done = work(connection) => done,
            failure = self.clear_the_way(name, pid, token) => match failure? {},
        }
    }

    async fn clear_the_way(&self, name: &str, pid: i32, token: i64) -> Result<Infallible> {
        let (mut connection, mut told) = (self.connect().await?, Vec::new());
        loop {
            for row in self.in_time(sqlx::query(EARLIER).bind(token).fetch_all(&mut connection)).await? {
                let (pid, program): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
                // This line is printed first, because the migration goes on at once, and may end before this function is
                // polled again.
                println!("{name} ends what an earlier holder left open: {program}");
                self.in_time(sqlx::query(END).bind(pid).bind(program).execute(&mut connection)).await?;
            }
            let blockers = sqlx::query_scalar(IN_THE_WAY).bind(pid).fetch_all(&mut connection);
            let in_the_way: Vec<String> = self.in_time(blockers).await?;
            if in_the_way != told && !in_the_way.is_empty() {
                println!("{name} waits in the database for {}", in_the_way.join(", "));
            }
            told = in_the_way;
            sleep(LOOK_AGAIN_AFTER).await;
        }
    }
}

fn is_postgres(place: &str) -> bool {
    place.starts_with("postgres://") || place.starts_with("postgresql://")
}
