//! Tests of `examples/migrate` on PostgreSQL, with a real ZooKeeper server. Its processes are killed, stopped and cut
//! off at every step of a migration. The tests check the output, the exit codes and the contents of the databases.

use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use sqlx::{Connection, Executor, PgConnection, Postgres, Transaction};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use zk_rwlock::RwLock;

use support::postgres::shared_postgres;
use support::program::example;
use support::scene::*;
use support::server::shared_server;
use support::wire::{Frames, Op, Proxy, Rule};

/// The session timeout of the processes, in seconds. A holder reports the loss of the lock after five sixths of this
/// time, and the next contender is granted the lock after all of it.
const SESSION_TIMEOUT: &str = "4";

/// The exit codes of the processes.
const DONE: Option<i32> = Some(0);
const FAILED: Option<i32> = Some(1);
const USAGE: Option<i32> = Some(64);
const MISMATCH: Option<i32> = Some(65);
const NOT_IN_TIME: Option<i32> = Some(69);
const LOST: Option<i32> = Some(75);

/// The versions of the schema, each a file name and its SQL. Each adds a row to the table `ledger`, so a version that
/// ran twice has two rows.
const VERSIONS: [(&str, &str); 3] = [
    ("0001_ledger.sql", "CREATE TABLE ledger (version BIGINT NOT NULL); INSERT INTO ledger VALUES (1);"),
    ("0002_note.sql", "ALTER TABLE ledger ADD COLUMN note TEXT; INSERT INTO ledger VALUES (2, 'two');"),
    ("0003_noted.sql", "CREATE INDEX ledger_by_note ON ledger (note); INSERT INTO ledger VALUES (3, 'three');"),
];

/// A test's own database and lock, and builds of the example with different migrations.
struct World {
    database: String,
    lock: String,
    directory: TempDir,
}

impl World {
    async fn new(name: &str) -> World {
        let postgres = tokio::task::spawn_blocking(shared_postgres).await.expect("the server starts");
        let mut connection = PgConnection::connect(&postgres.url("postgres")).await.expect("it serves");
        connection.execute(format!("CREATE DATABASE {name}").as_str()).await.expect("a new name");
        let (database, lock) = (postgres.url(name), format!("/migrations/{name}"));
        World { database, lock, directory: tempfile::tempdir().expect("a directory can be made") }
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.database).await.expect("it serves")
    }

    /// Returns the directory of a build with these versions of the schema.
    fn build(&self, name: &str, versions: &[(&str, &str)]) -> PathBuf {
        let directory = self.directory.path().join(name);
        fs::create_dir(&directory).expect("a new name");
        for (file, statements) in versions {
            fs::write(directory.join(file), statements).expect("a file can be written");
        }
        directory
    }

    /// Returns a build with the first `last` versions.
    fn up_to(&self, last: usize) -> PathBuf {
        self.build(&format!("up-to-{last}"), &VERSIONS[..last])
    }

    /// Returns a build whose migration to this version never ends.
    fn stuck_in(&self, version: usize) -> PathBuf {
        let stuck = format!("{} SELECT pg_sleep(3600);", VERSIONS[version - 1].1);
        let mut versions = VERSIONS;
        versions[version - 1].1 = &stuck;
        self.build(&format!("stuck-in-{version}"), &versions)
    }

    fn start_on(&self, zookeeper: &str, database: &str, build: &PathBuf, role: &[&str]) -> Process {
        let mut command = example("migrate");
        command.args(["--zookeeper", zookeeper, "--session-timeout", SESSION_TIMEOUT, "--lock", &self.lock]);
        command.args(["--database", database, "--migrations"]).arg(build).args(role);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be run");
        let lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        Process { child, lines, said: Vec::new() }
    }

    fn start(&self, build: &PathBuf, role: &[&str]) -> Process {
        self.start_on(&shared_server().address(), &self.database, build, role)
    }

    /// Runs the deploy job of this build to its end.
    async fn up(&self, build: &PathBuf) -> Ended {
        self.start(build, &["up"]).ends().await
    }

    async fn numbers(&self, query: &str) -> Vec<i64> {
        sqlx::query_scalar(query).fetch_all(&mut self.connect().await).await.unwrap_or_default()
    }

    /// Asserts that every version was applied once and completely, and that nothing of an aborted migration is left.
    async fn is_whole(&self) {
        assert_eq!(self.numbers("SELECT version FROM ledger ORDER BY version").await, [1, 2, 3]);
        assert_eq!(self.numbers("SELECT version FROM _sqlx_migrations ORDER BY version").await, [1, 2, 3]);
        assert_eq!(self.numbers("SELECT count(*) FROM ledger WHERE note IN ('two', 'three')").await, [2]);
    }

    /// Waits until one connection of a holder waits for this.
    async fn waits_for(&self, event: &str) {
        let waiting = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
            AND application_name LIKE 'lock_fence %' AND {event}"
        );
        eventually(event, || async { self.numbers(&waiting).await == [1] }).await;
    }

    /// Waits until a migration runs its endless statement.
    async fn is_in_the_middle(&self) {
        self.waits_for("wait_event = 'PgSleep'").await;
    }
}

/// A running process of the example, and its output.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    said: Vec<String>,
}

#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    said: String,
    stderr: String,
}

impl Process {
    /// Waits for a line of output that contains these words.
    async fn says(&mut self, words: &str) -> &mut Process {
        loop {
            let line = soon(words, self.lines.next_line()).await.expect("it prints text");
            let Some(line) = line else {
                let mut stderr = String::new();
                let mut pipe = self.child.stderr.take().expect("it is a pipe");
                let _ = tokio::io::AsyncReadExt::read_to_string(&mut pipe, &mut stderr).await;
                panic!("it ended before it said {words:?}: {:#?} {stderr}", self.said);
            };
            self.said.push(line);
            if self.said.last().is_some_and(|line| line.contains(words)) {
                return self;
            }
        }
    }

    fn pid(&self) -> u32 {
        self.child.id().expect("it has not ended")
    }

    /// Returns how others see this process in the queue.
    fn shown(&self, label: &str) -> String {
        format!("pid {} \"{label}\"", self.pid())
    }

    fn signal(&self, name: &str) {
        let status = std::process::Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(status.expect("the kill command can be run").success());
    }

    async fn ends(mut self) -> Ended {
        let rest = async {
            while let Some(line) = self.lines.next_line().await.expect("it prints text") {
                self.said.push(line);
            }
            self.child.wait_with_output().await.expect("it ends")
        };
        let Output { status, stderr, .. } = soon("the end of the process", rest).await;
        let stderr = String::from_utf8(stderr).expect("it prints text");
        Ended { code: status.code(), said: self.said.join("\n"), stderr }
    }

    async fn killed(self) {
        self.signal("KILL");
        assert_eq!(self.ends().await.code, None);
    }
}

impl Ended {
    #[track_caller]
    fn with(self, code: Option<i32>) -> Ended {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    #[track_caller]
    fn saying(self, words: &str) -> Ended {
        assert!(self.said.contains(words) || self.stderr.contains(words), "not {words:?}: {self:#?}");
        self
    }
}

async fn lock_of(world: &World) -> RwLock {
    lock_at(&connect(&shared_server().address()).await, &world.lock)
}

// ------------------------------------------------------------------------------------------- Processes that are killed

#[support::judged]
async fn killed_before_its_first_transaction() {
    let world = World::new("killed_before").await;
    let mut connection = world.connect().await;
    connection.execute("CREATE TABLE lock_fence (name TEXT PRIMARY KEY, token BIGINT NOT NULL)").await.unwrap();
    connection.execute("INSERT INTO lock_fence VALUES ('schema', 0)").await.unwrap();
    // A transaction locks the row of the fence, so that no process can write the row until the rollback.
    let mut fence = connection.begin().await.unwrap();
    fence.execute("UPDATE lock_fence SET token = token").await.unwrap();
    let build = world.up_to(3);
    let first = world.start(&build, &["up"]);
    line_becomes(&lock_of(&world).await, "W+").await;
    first.killed().await;
    fence.rollback().await.unwrap();
    world.up(&build).await.with(DONE).saying("has migrated from version 0 to 3");
    world.is_whole().await;
}

#[support::judged]
async fn killed_within_each_migration() {
    let worlds = [1, 2, 3].map(|version| async move {
        let world = World::new(&format!("killed_within_{version}")).await;
        let mut first = world.start(&world.stuck_in(version), &["up"]);
        first.says(&format!("applies version {version}")).await;
        world.is_in_the_middle().await;
        first.killed().await;
        let finished = format!("has migrated from version {} to 3", version - 1);
        world.up(&world.up_to(3)).await.with(DONE).saying(&finished);
        world.is_whole().await;
    });
    let [one, two, three] = worlds;
    tokio::join!(one, two, three);
}

#[support::judged]
async fn killed_between_two_migrations() {
    let world = World::new("killed_between").await;
    let mut first = world.start(&world.stuck_in(3), &["up"]);
    first.says("has applied version 2").await;
    first.killed().await;
    world.up(&world.up_to(3)).await.with(DONE).saying("has migrated from version 2 to 3");
    world.is_whole().await;
}

#[support::judged]
async fn killed_between_the_last_commit_and_the_release() {
    let world = World::new("killed_after").await;
    let proxy = Proxy::start(shared_server().address());
    let lost = proxy.apply(Rule::on(Frames::requests(Op::Multi).about("Delete")).lose());
    let build = world.up_to(3);
    let mut first = world.start_on(&proxy.address(), &world.database, &build, &["up"]);
    first.says("has migrated from version 0 to 3").await;
    soon("the release", lost.happens()).await;
    first.killed().await;
    // The database has the last version already, so the second process does not wait until the first session ends.
    world.up(&build).await.with(DONE).saying("nothing to do");
    let mut instance = world.start(&build, &["serve"]);
    instance.says("held by WRITE").await.says("serves on version 3").await.signal("TERM");
    instance.ends().await.with(DONE);
    world.is_whole().await;
}

#[support::judged]
async fn a_deploy_that_gets_term_releases_the_lock_at_once() {
    let world = World::new("asked").await;
    let lock = lock_of(&world).await;
    let mut first = world.start(&world.stuck_in(2), &["up"]);
    first.says("applies version 2").await;
    world.is_in_the_middle().await;
    let build = world.up_to(3);
    let mut second = world.start(&build, &["up"]);
    second.says("waits: held by WRITE").await;
    second.signal("INT");
    second.ends().await.with(FAILED).saying("asked to stop");
    assert_eq!(line(&lock).await, "W+");
    first.signal("TERM");
    first.ends().await.with(FAILED).saying("asked to stop");
    assert_eq!(line(&lock).await, "", "no process has to wait for its session to end");
    world.up(&build).await.with(DONE).saying("has migrated from version 1 to 3");
    world.is_whole().await;
}

// ------------------------------------------------------------------------------- Processes that are stopped or cut off

/// Stops a process during a migration, until its session ends and the next process is granted the lock.
#[support::judged]
async fn stopped_past_its_session() {
    let world = World::new("stopped").await;
    let lock = lock_of(&world).await;
    let mut first = world.start(&world.stuck_in(2), &["up"]);
    first.says("applies version 2").await;
    world.is_in_the_middle().await;
    let mut second = world.start(&world.up_to(3), &["up"]);
    second.says("waits: held by WRITE").await;
    line_becomes(&lock, "W+ W-").await;

    first.signal("STOP");
    // The transaction of the stopped process stays open, and the next process does not wait for its end.
    let second = second.ends().await.with(DONE);
    second.saying("ends what an earlier holder left open").saying("has migrated from version 1 to 3");
    world.is_whole().await;
    first.signal("CONT");
    first.ends().await.with(LOST);
    world.is_whole().await;
}

/// Cuts a process off from ZooKeeper during a migration. Its connection to the database stays open.
#[support::judged]
async fn cut_off_from_zookeeper_in_the_middle() {
    let world = World::new("cut_off").await;
    let proxy = Proxy::start(shared_server().address());
    let mut first = world.start_on(&proxy.address(), &world.database, &world.stuck_in(2), &["up"]);
    first.says("applies version 2").await;
    world.is_in_the_middle().await;
    let mut second = world.start(&world.up_to(3), &["up"]);
    second.says("waits: held by WRITE").await;

    proxy.black_hole();
    // The process ends by itself before the next process is granted the lock.
    let first = first.ends().await.with(LOST).saying("the lock was lost");
    assert!(!first.said.contains("has applied version 2"), "{first:#?}");
    let second = second.ends().await.with(DONE).saying("has migrated from version 1 to 3");
    // PostgreSQL has not noticed that its client is gone, so the endless statement still runs.
    second.saying("ends what an earlier holder left open");
    world.is_whole().await;
}

// ------------------------------------------------------------------------------------ Earlier holders that do not stop

/// Begins a transaction with the token of an earlier holder. Returns the transaction, and the number of rows that its
/// update of the fence changed: 0 if the fence refuses the token.
async fn stale(connection: &mut PgConnection, token: i64) -> (Transaction<'_, Postgres>, u64) {
    let mut transaction = connection.begin().await.expect("it serves");
    let show = format!("UPDATE lock_fence SET token = {token} WHERE name = 'schema' AND token <= {token}");
    let shown = transaction.execute(show.as_str()).await.expect("valid SQL").rows_affected();
    (transaction, shown)
}

/// The earlier holder's transaction is like that of `psql -f` under `zklock`. The example cannot recognize such a
/// transaction as an earlier holder's, so it waits for the transaction to end.
#[support::judged]
async fn an_earlier_holders_transaction_is_waited_for() {
    let world = World::new("others").await;
    world.up(&world.up_to(1)).await.with(DONE);
    let [token] = world.numbers("SELECT token FROM lock_fence").await[..] else { panic!("one fence") };
    let mut connection = world.connect().await;
    let (mut earlier, shown) = stale(&mut connection, token).await;
    assert_eq!(shown, 1);
    earlier.execute("CREATE TABLE beside (id BIGINT)").await.unwrap();

    let later = world.start(&world.up_to(3), &["up"]);
    line_becomes(&lock_of(&world).await, "W+").await;
    world.waits_for("wait_event_type = 'Lock'").await;
    assert_eq!(world.numbers("SELECT version FROM _sqlx_migrations").await, [1]);
    earlier.commit().await.unwrap();
    later.ends().await.with(DONE).saying("has migrated from version 1 to 3");
    assert_eq!(world.numbers("SELECT count(*) FROM beside").await, [0]);
    let (_transaction, shown) = stale(&mut connection, token).await;
    assert_eq!(shown, 0, "a later holder has been here");
    world.is_whole().await;
}

/// No migration and no instance begins while an earlier holder may still change the schema. Connections of others are
/// not ended.
#[support::judged]
async fn an_earlier_holder_cannot_commit() {
    for (name, role) in [("before_a_job", "up"), ("before_an_instance", "serve")] {
        let world = World::new(name).await;
        world.up(&world.up_to(1)).await.with(DONE);
        let [token] = world.numbers("SELECT token FROM lock_fence").await[..] else { panic!("one fence") };
        let named = async |name: String| {
            let mut connection = world.connect().await;
            connection.execute(format!("SET application_name = '{name}'").as_str()).await.unwrap();
            connection
        };
        let mut others = [named("psql".to_owned()).await, named(format!("lock_fence {}", i64::MAX)).await];
        let mut connection = named(format!("lock_fence {token}")).await;
        let (mut earlier, shown) = stale(&mut connection, token).await;
        assert_eq!(shown, 1);
        earlier.execute("CREATE TABLE stale (id BIGINT)").await.unwrap();

        let ends = format!("ends what an earlier holder left open: lock_fence {token}");
        if role == "up" {
            world.up(&world.build("all", &VERSIONS)).await.with(DONE).saying(&ends);
        } else {
            let mut later = world.start(&world.directory.path().join("up-to-1"), &["serve"]);
            later.says(&ends).await.says("serves on version 1").await.signal("TERM");
            later.ends().await.with(DONE);
        }
        earlier.commit().await.expect_err("its connection was ended");
        assert_eq!(world.numbers("SELECT count(*) FROM pg_class WHERE relname = 'stale'").await, [0]);
        for other in &mut others {
            other.execute("SELECT 1").await.expect("it is no earlier holder's");
        }
    }
}

#[support::judged]
async fn an_instance_that_serves_keeps_out_earlier_holders() {
    let world = World::new("kept_out").await;
    let build = world.up_to(3);
    world.up(&build).await.with(DONE);
    let [token] = world.numbers("SELECT token FROM lock_fence").await[..] else { panic!("one fence") };
    let mut connection = world.connect().await;
    let (transaction, shown) = stale(&mut connection, token).await;
    assert_eq!(shown, 1, "no holder has come since");
    transaction.rollback().await.unwrap();
    // The instances start in any order, but all after the process that migrated.
    let mut instances = [world.start(&build, &["serve"]), world.start(&build, &["serve"])];
    for instance in &mut instances {
        instance.says("serves on version 3").await;
    }
    let (transaction, shown) = stale(&mut connection, token).await;
    assert_eq!(shown, 0);
    transaction.rollback().await.unwrap();
    for instance in instances {
        instance.signal("TERM");
        instance.ends().await.with(DONE);
    }
}

/// Sends statements of an earlier holder while the next process migrates.
#[support::judged]
async fn statements_that_arrive_late_change_nothing() {
    let world = World::new("late").await;
    let (zookeeper, postgres) =
        (Proxy::start(shared_server().address()), Proxy::start_opaque(shared_postgres().address()));
    let through_proxy = world.database.replace(&shared_postgres().address(), &postgres.address());
    let mut gate = world.connect().await;
    gate.execute("SELECT pg_advisory_lock(1)").await.unwrap();
    let waits = format!("{} SELECT pg_advisory_xact_lock(1);", VERSIONS[1].1);
    let build = world.build("waits", &[VERSIONS[0], (VERSIONS[1].0, &waits), VERSIONS[2]]);
    let mut first = world.start_on(&zookeeper.address(), &through_proxy, &build, &["up"]);
    first.says("applies version 2").await;
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    eventually("it waits for the gate", || async { world.numbers(waiting).await == [1] }).await;

    postgres.reset();
    postgres.black_hole_to_server();
    gate.execute("SELECT pg_advisory_unlock(1)").await.unwrap();
    eventually("it goes on", || async { postgres.bytes_to_server() > 0 }).await;
    zookeeper.black_hole();
    first.ends().await.with(LOST);
    world.up(&world.up_to(3)).await.with(DONE).saying("ends what an earlier holder left open");
    postgres.heal();
    world.is_whole().await;
}

/// The session with ZooKeeper stays alive. So without a timeout the process would hold the lock for as long as the
/// database does not answer.
#[support::judged]
async fn a_process_without_its_database_releases_the_lock() {
    let world = World::new("silent").await;
    let postgres = Proxy::start_opaque(shared_postgres().address());
    let through_proxy = world.database.replace(&shared_postgres().address(), &postgres.address());
    let start = |build: &PathBuf, role: &[&str]| {
        let role = [&["--timeout", "2"], role].concat();
        world.start_on(&shared_server().address(), &through_proxy, build, &role)
    };
    let mut first = start(&world.stuck_in(2), &["up"]);
    first.says("applies version 2").await;
    world.is_in_the_middle().await;
    postgres.black_hole();
    first.ends().await.with(NOT_IN_TIME).saying("the database has not answered within 2s");
    assert_eq!(line(&lock_of(&world).await).await, "");
    let build = world.up_to(3);
    world.up(&build).await.with(DONE).saying("ends what an earlier holder left open");
    postgres.heal();
    world.is_whole().await;

    let mut instance = start(&build, &["serve"]);
    instance.says("serves on version 3").await;
    postgres.black_hole();
    instance.ends().await.with(NOT_IN_TIME).saying("the database has not answered");
    // PostgreSQL is still cut off, so a new process fails for the same reason.
    start(&build, &["up"]).ends().await.with(NOT_IN_TIME).saying("the database has not answered");
    assert_eq!(line(&lock_of(&world).await).await, "");
}

// ------------------------------------------------------------------------------------------------ Instances that serve

#[support::judged]
async fn instances_stop_before_a_migration_and_start_after_it() {
    let world = World::new("gate").await;
    let (old, new) = (world.up_to(1), world.up_to(3));
    world.up(&old).await.with(DONE);
    let mut running = Vec::new();
    for _ in 0..2 {
        let mut instance = world.start(&old, &["serve"]);
        instance.says("serves on version 1").await;
        running.push(instance);
    }
    let mut job = world.start(&new, &["up"]);
    job.says(&running[1].shown("serve on v1")).await;
    let mut late_old = world.start(&old, &["serve"]);
    late_old.says("waits:").await;
    let mut late_new = world.start(&new, &["serve"]);
    late_new.says("waits:").await;

    let lock = lock_of(&world).await;
    for (left, queue) in [(2, "R+ R+ W- R- R-"), (1, "R+ W- R- R-")] {
        line_becomes(&lock, queue).await;
        assert_eq!(world.numbers("SELECT version FROM _sqlx_migrations").await, [1], "{left} instances serve");
        let instance = running.pop().expect("as many as that");
        instance.signal("TERM");
        instance.ends().await.with(DONE);
    }
    job.ends().await.with(DONE).saying("has migrated from version 1 to 3");
    late_old.ends().await.with(MISMATCH).saying("too old to serve");
    late_new.says("serves on version 3").await;

    // While an instance serves, a deploy job without a new version has nothing to do and ends.
    world.up(&new).await.with(DONE).saying("nothing to do");
    late_new.signal("TERM");
    late_new.ends().await.with(DONE);
    world.is_whole().await;
}

#[support::judged]
async fn an_instance_that_is_cut_off_stops_before_the_migration() {
    let world = World::new("cut_off_instance").await;
    let old = world.up_to(1);
    world.up(&old).await.with(DONE);
    let proxy = Proxy::start(shared_server().address());
    let mut instance = world.start_on(&proxy.address(), &world.database, &old, &["serve"]);
    instance.says("serves on version 1").await;
    let mut job = world.start(&world.up_to(3), &["up"]);
    job.says("waits: held by READ").await;
    proxy.black_hole();
    // This exit code shows that no request of the instance met another version of the schema.
    instance.ends().await.with(LOST).saying("the lock was lost");
    job.ends().await.with(DONE).saying("has migrated from version 1 to 3");
    world.is_whole().await;
}

#[support::judged]
async fn of_several_deploys_one_migrates() {
    let world = World::new("several").await;
    let build = world.up_to(3);
    let jobs: Vec<Process> = (0..3).map(|_| world.start(&build, &["up"])).collect();
    let mut migrated = 0;
    for job in jobs {
        migrated += job.ends().await.with(DONE).said.matches("has migrated from version 0 to 3").count();
    }
    assert_eq!(migrated, 1);
    world.is_whole().await;
}

// ----------------------------------------------------------------------------------------- Migrations that are refused

#[support::judged]
async fn a_failed_migration_is_rolled_back_and_can_be_fixed() {
    let world = World::new("failed").await;
    let broken = format!("{} INSERT INTO nowhere VALUES (1);", VERSIONS[1].1);
    let broken = world.build("broken", &[VERSIONS[0], (VERSIONS[1].0, &broken), VERSIONS[2]]);
    let failed = world.up(&broken).await.with(FAILED).saying("has applied version 1").saying("nowhere");
    assert_eq!(failed.stderr.lines().count(), 1, "{failed:#?}");
    assert_eq!(world.numbers("SELECT version FROM ledger").await, [1]);
    world.up(&world.up_to(3)).await.with(DONE).saying("has migrated from version 1 to 3");
    world.is_whole().await;
}

#[support::judged]
async fn a_mismatched_database_or_build_is_refused() {
    let world = World::new("refused").await;
    let whole = world.up_to(3);
    let serve = async |build: &PathBuf| world.start(build, &["serve"]).ends().await;
    serve(&whole).await.with(MISMATCH).saying("at version 0, and this build needs version 3: migrate it first");

    let outside = world.build("outside", &[("0001_index.sql", "-- no-transaction\nCREATE TABLE ledger (id BIGINT);")]);
    world.up(&outside).await.with(MISMATCH).saying("no fence can keep a late one out");
    assert!(world.numbers("SELECT count(*) FROM ledger").await.is_empty(), "it was not applied");

    world.up(&whole).await.with(DONE);
    let reworded = [VERSIONS[0], (VERSIONS[1].0, "ALTER TABLE ledger ADD COLUMN remark TEXT;"), VERSIONS[2]];
    let reworded = world.build("reworded", &reworded);
    let inserted = world.build("inserted", &[VERSIONS[0], ("0002_between.sql", "SELECT 1;")]);
    for other in [&reworded, &inserted] {
        world.up(other).await.with(MISMATCH).saying("version 2 was applied to the database in another wording");
        serve(other).await.with(MISMATCH);
    }
    world.up(&world.up_to(1)).await.with(MISMATCH).saying("at version 3, and this build knows version 1");
    world.is_whole().await;
}

/// The tokens of a new ensemble begin with low numbers, so the fence refuses every holder.
#[support::judged]
async fn after_the_loss_of_the_ensemble_the_fence_is_lowered_by_hand() {
    let world = World::new("anew").await;
    world.up(&world.up_to(1)).await.with(DONE);
    world.connect().await.execute("UPDATE lock_fence SET token = 9223372036854775807").await.unwrap();
    let build = world.up_to(3);
    let said = world.up(&build).await.with(LOST).saying("has seen a newer holder").stderr;
    assert_eq!(world.numbers("SELECT version FROM _sqlx_migrations").await, [1]);
    let (_, advice) = said.trim_end().rsplit_once(": ").expect("it says what to do");
    world.connect().await.execute(advice).await.unwrap();
    world.up(&build).await.with(DONE).saying("has migrated from version 1 to 3");
    world.is_whole().await;
}

#[support::judged]
async fn a_refused_process_names_the_holder() {
    let world = World::new("in_vain").await;
    let old = world.up_to(1);
    world.up(&old).await.with(DONE);
    let mut instance = world.start(&old, &["serve"]);
    instance.says("serves on version 1").await;
    let in_vain = world.start(&world.up_to(3), &["--timeout", "1", "up"]).ends().await;
    in_vain.with(NOT_IN_TIME).saying("not granted within 1s: held by READ").saying(&instance.shown("serve on v1"));
    instance.signal("TERM");
    instance.ends().await.with(DONE);

    let mut connection = world.connect().await;
    let (_beside, shown) = stale(&mut connection, i64::MAX).await;
    assert_eq!(shown, 1);
    let in_vain = world.start(&world.build("all", &VERSIONS), &["--timeout", "1", "up"]).ends().await;
    in_vain.with(NOT_IN_TIME).saying("lock timeout");
    assert_eq!(world.numbers("SELECT version FROM _sqlx_migrations").await, [1]);
}

/// Another program uses the table without a fence, such as a long report.
#[support::judged]
async fn a_wait_for_a_busy_table_ends_at_its_limit() {
    let world = World::new("in_use").await;
    world.up(&world.up_to(1)).await.with(DONE);
    let mut connection = world.connect().await;
    let mut report = connection.begin().await.unwrap();
    report.execute("SELECT * FROM ledger").await.unwrap();
    let build = world.up_to(3);
    let in_vain = world.start(&build, &["--timeout", "1", "up"]).ends().await.with(NOT_IN_TIME);
    in_vain.saying("lock timeout");
    report.rollback().await.unwrap();
    world.up(&build).await.with(DONE).saying("has migrated from version 1 to 3");
    world.is_whole().await;
}

/// If such input were accepted, a deploy would report success although it has migrated nothing, or only a part.
#[support::judged]
async fn a_wrong_command_line_or_directory_is_refused() {
    let world = World::new("not_meant").await;
    let zookeeper = shared_server().address();
    for database in ["", "orders.db"] {
        let wrong = world.start_on(&zookeeper, database, &world.directory.path().into(), &["up"]);
        wrong.ends().await.with(USAGE).saying("--database <DATABASE>");
    }
    let statement = "CREATE TABLE ledger (version BIGINT NOT NULL);";
    for (build, files, reason) in [
        ("empty", &[][..], "there is no migration in it"),
        ("unread", &[VERSIONS[0], ("0002.sql", statement)], "0002.sql has no name such as 0001_customers.sql"),
        ("twice", &[VERSIONS[0], ("0001_again.sql", statement)], "version 1 is there twice"),
        ("unnumbered", &[("first_ledger.sql", statement)], "first_ledger.sql"),
    ] {
        world.up(&world.build(build, files)).await.with(FAILED).saying(reason);
    }
    let mut alone = example("migrate");
    let output = alone.args(["--database", &world.database, "up"]).output().await.expect("it can be run");
    assert_eq!(output.status.code(), USAGE);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--zookeeper <HOST:PORT>"), "{output:?}");
    assert!(world.numbers("SELECT count(*) FROM lock_fence").await.is_empty());
}
