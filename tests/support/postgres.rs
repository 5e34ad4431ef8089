//! A real PostgreSQL server with a new cluster, on a loopback port of its own. Use it for tests of fencing tokens in a
//! database.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::port::Port;
use super::rounds::{Ends, shared};
use super::server::{Home, Process, Verdict};

const STARTUP_LIMIT: Duration = Duration::from_secs(120);

/// The server's user when the tests run as root, because PostgreSQL refuses to run as root.
const NOBODY: &str = "nobody";

/// Returns the server that all tests of this process share. It dies with the process.
pub fn shared_postgres() -> &'static Postgres {
    static SHARED: OnceLock<Postgres> = OnceLock::new();
    shared(&SHARED, Postgres::start)
}

/// One server with a cluster of its own. Dropping it stops the server and removes the directory.
#[derive(Debug)]
pub struct Postgres {
    port: Port,
    process: Mutex<Process>,
    _home: Home,
}

impl Postgres {
    /// Starts a server. Blocks for about two seconds, until it serves.
    pub fn start() -> Self {
        let home = Home::new();
        let programs = programs();
        if is_root() {
            let [uid, gid] = ["-u", "-g"].map(|which| Some(id(&[which, NOBODY])));
            chown(&home.path, uid, gid).expect("root may give directories away");
        }
        let mut initdb = as_somebody(&programs.join("initdb"));
        initdb.args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "-D"]);
        let made = initdb.arg(home.data()).current_dir(&home.path).output().expect("initdb can be run");
        assert!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));

        let port = Port::reserve();
        let mut server = as_somebody(&programs.join("postgres"));
        server.arg("-D").arg(home.data()).args(["-p", &port.to_string(), "-h", "127.0.0.1", "-k", ""]);
        // fsync is off, because tests crash processes and never the machine.
        server.args(["-c", "fsync=off", "-c", "max_connections=100"]);
        // On SIGQUIT the server ends immediately and frees its shared memory. SIGKILL would leave the memory behind.
        let process = Process::guard(&home, "QUIT", &server);
        let deadline = Instant::now() + STARTUP_LIMIT;
        // The eighth line of `postmaster.pid` has the state of the server.
        while !fs::read_to_string(home.data().join("postmaster.pid"))
            .is_ok_and(|state| state.lines().nth(7).is_some_and(|line| line.trim() == "ready"))
        {
            assert!(Instant::now() < deadline, "PostgreSQL did not start, its log:\n{}", home.log());
            thread::sleep(Duration::from_millis(20));
        }
        Self { port, process: Mutex::new(process), _home: home }
    }

    /// Returns the URL of the database with this name. The database need not exist. The database `postgres` always exists.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address())
    }

    /// Returns the server's address, as `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.port.address().to_string()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.end();
    }
}

impl Ends for Postgres {
    fn end(&self) {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).stop(Verdict::Remove);
    }
}

/// Returns the directory that has `initdb` and `postgres`: a directory in PATH, or the directory of a version in
/// Debian's packages.
fn programs() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = versions.map(|version| version.path().join("bin"));
    let are_in = |directory: &PathBuf| directory.join("initdb").exists() && directory.join("postgres").exists();
    let found = std::env::split_paths(&path).find(are_in).or_else(|| debian.filter(are_in).max());
    found.unwrap_or_else(|| {
        panic!(
            "No PostgreSQL server to test against: there is no `initdb` in /usr/lib/postgresql/*/bin or in PATH.\n\
             On Debian and Ubuntu, `make test` installs it (or: apt-get install postgresql).\n\
             Elsewhere, install PostgreSQL and put the directory of `initdb` and `postgres` into PATH."
        )
    })
}

fn as_somebody(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    // `setpriv` becomes the program by `exec`, so that the pid which the parent knows is the program's.
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={}", id(&["-u", NOBODY]))).arg(format!("--regid={}", id(&["-g", NOBODY])));
    command.arg("--clear-groups").arg(program);
    command
}

fn is_root() -> bool {
    id(&["-u"]) == 0
}

fn id(arguments: &[&str]) -> u32 {
    let output = Command::new("id").args(arguments).output().expect("the id command can be run");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("id prints a number")
}
