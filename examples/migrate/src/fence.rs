//! The fence: the row of the database that stores the highest fencing token.
//!
//! Every migration is one transaction that first writes its holder's token into the row. The write locks the row until
//! the commit, so only one holder at a time has a migration open. A late holder finds a higher token in the row, and is
//! refused.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use sqlx::{Any, AnyConnection, Row, Transaction};
use tokio::time::sleep;

use crate::common::Result;
use crate::database::{Database, in_time};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS lock_fence (name TEXT PRIMARY KEY, token BIGINT NOT NULL)";
const ROW: &str = "INSERT INTO lock_fence VALUES ('schema', 0) ON CONFLICT DO NOTHING";
/// Writes the holder's token into the row, unless the row has a higher token. The condition is `<=` and not `<`, so
/// that one holder can run several migrations.
const SHOW: &str = "UPDATE lock_fence SET token = $1 WHERE name = 'schema' AND token <= $1";
const RAISE: &str = "UPDATE lock_fence SET token = $1 WHERE name = 'schema' AND token < $1";

/// Sets the connection's name in `pg_stat_activity`, so that later holders can recognize the connection.
const SIGN: &str = "SELECT set_config('application_name', 'lock_fence ' || $1::text, false)";
/// Selects the connections of earlier holders. The process that runs this statement has the lock, so the earlier
/// holders have lost it.
const EARLIER: &str = "SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database()
    AND substring(application_name FROM '^lock_fence (\\d+)$')::bigint < $1";
/// Ends a connection. The name is compared again, because PostgreSQL may have given the process id to another
/// connection.
const END: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND application_name = $2";
const IN_THE_WAY: &str =
    "SELECT pid, application_name, state FROM pg_stat_activity WHERE pid = ANY(pg_blocking_pids($1))";

const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
#[error(
    "the database has seen a newer holder of the lock than the one with token {token}; if ZooKeeper was set up anew, with \
     tokens that begin anew: UPDATE lock_fence SET token = 0"
)]
pub(crate) struct TooLate {
    token: i64,
}

#[derive(Debug)]
pub(crate) struct Fence<'a> {
    pub(crate) database: &'a Database,
    pub(crate) token: i64,
    /// The longest wait for an answer of the database.
    pub(crate) limit: Duration,
}

impl Fence<'_> {
    /// Returns the process id of the connection in PostgreSQL.
    pub(crate) async fn pid(&self, connection: &mut AnyConnection) -> sqlx::Result<i32> {
        match self.database {
            Database::Postgres(_) => sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(connection).await,
            Database::Sqlite(_) => Ok(0),
        }
    }

    /// Names the connection, and creates the row if it is missing. Both are done outside of the migrations'
    /// transactions, so that each migration can rely on them.
    pub(crate) async fn prepare(&self, connection: &mut AnyConnection) -> sqlx::Result<()> {
        if let Database::Postgres(_) = self.database {
            sqlx::query(SIGN).bind(self.token).execute(&mut *connection).await?;
        }
        sqlx::query(TABLE).execute(&mut *connection).await?;
        sqlx::query(ROW).execute(&mut *connection).await?;
        Ok(())
    }

    /// Begins a transaction that cannot overlap with a transaction of another holder. Fails if a later holder has
    /// already written its token.
    pub(crate) async fn begin<'c>(&self, connection: &'c mut AnyConnection) -> Result<Transaction<'c, Any>> {
        let mut transaction = self.database.begin(connection).await?;
        match sqlx::query(SHOW).bind(self.token).execute(&mut *transaction).await?.rows_affected() {
            0 => Err(TooLate { token: self.token }.into()),
            _ => Ok(transaction),
        }
    }

    /// Excludes all earlier holders: they can commit nothing after this call.
    ///
    /// Holders of the read lock call this function. Several readers hold the lock at the same time, so the row may
    /// already have a higher token than this one. A process that may migrate later has a higher token than all these
    /// readers.
    pub(crate) async fn raise(&self, name: &str, connection: &mut AnyConnection) -> Result<()> {
        if self.database.is_fenced(connection).await? {
            let pid = self.pid(connection).await?;
            tokio::select! {
                raised = sqlx::query(RAISE).bind(self.token).execute(connection) => raised.map(drop)?,
                failure = self.clear_the_way(name, pid) => match failure? {},
            }
        }
        Ok(())
    }

    /// While polled, ends the transactions that earlier holders have left open in PostgreSQL, because they block this
    /// holder and could still commit. Prints the other connections that block the connection with this process id.
    /// Fails if the database does not answer. A second connection is asked, because a long statement alone is no sign
    /// of a failure.
    ///
    /// SQLite cannot end another transaction. An earlier holder's transaction ends with its process at the latest.
    /// Until then it locks the whole file, so no other process can begin or commit a transaction.
    pub(crate) async fn clear_the_way(&self, name: &str, pid: i32) -> Result<Infallible> {
        let Database::Postgres(_) = self.database else { return pending().await };
        let mut connection = self.database.connect(self.limit).await?;
        let mut told = Vec::new();
        loop {
            let earlier = sqlx::query(EARLIER).bind(self.token).fetch_all(&mut connection);
            for row in in_time(self.limit, earlier).await? {
                let (pid, program): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
                // Printed first, because the migration goes on at once, and may end before this function is polled again.
                println!("{name} ends what an earlier holder left open: {program}");
                in_time(self.limit, sqlx::query(END).bind(pid).bind(program).execute(&mut connection)).await?;
            }
            let mut in_the_way = Vec::new();
            let rows = sqlx::query(IN_THE_WAY).bind(pid).fetch_all(&mut connection);
            for row in in_time(self.limit, rows).await? {
                let (pid, program, state): (i32, String, Option<String>) =
                    (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
                in_the_way.push(format!("pid {pid} ({program:?}, {})", state.as_deref().unwrap_or("state unknown")));
            }
            if in_the_way != told {
                told = in_the_way;
                if !told.is_empty() {
                    println!("{name} waits in the database for {}", told.join(", "));
                }
            }
            sleep(LOOK_AGAIN_AFTER).await;
        }
    }
}
