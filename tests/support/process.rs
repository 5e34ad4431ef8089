//! Processes that a test can kill: the test binary itself, run again as a child of its own.
//!
//! A module that starts such processes has a test `the_life_of_a_child`, which does what [`role`] says, reports to its
//! parent in lines by [`say`], and does nothing in an ordinary run.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::thread;

const ROLE: &str = "ZK_RWLOCK_CHILD";

/// The prefix of a child's lines, among those of the test harness.
pub const SAYS: &str = "child says ";

/// The role of this process, if it is a child.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

pub fn say(words: &str) {
    // One write, which the harness does not capture as it captures the output of tests.
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{SAYS}{words}\n").as_bytes()).and_then(|()| out.flush()).expect("the parent listens");
}

/// What the test harness calls the test of this name, in the module with this [`module_path!`].
pub fn test_in(module: &str, name: &str) -> String {
    // The harness leaves out the name of the crate.
    module.split_once("::").map_or(name.to_owned(), |(_, module)| format!("{module}::{name}"))
}

/// Tells what a child complains of as the test that reads it tells: the harness shows it if the test fails.
pub fn tell_if_red(complaints: ChildStderr) {
    // The thread ends with the process.
    thread::spawn(move || {
        BufReader::new(complaints).lines().map_while(Result::ok).for_each(|line| eprintln!("{line}"))
    });
}

pub struct Process {
    pub child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Runs `the_life_of_a_child` of the module with this [`module_path!`].
    pub fn start(module: &str, role: &str) -> Process {
        Process::start_in(module, role, &[])
    }

    /// The same, with more in its environment.
    pub fn start_in(module: &str, role: &str, environment: &[(&str, PathBuf)]) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([&test_in(module, "the_life_of_a_child"), "--exact", "--nocapture"])
            .env(ROLE, role)
            .envs(environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        tell_if_red(child.stderr.take().unwrap());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Process { child, lines }
    }

    /// The next line that the child says; blocks until it comes.
    pub fn says(&mut self) -> String {
        self.said().next().expect("the child says something before it ends")
    }

    /// All that the child says, until it ends.
    pub fn said(&mut self) -> impl Iterator<Item = String> {
        self.lines.by_ref().map(Result::unwrap).filter_map(|line| line.strip_prefix(SAYS).map(str::to_owned))
    }

    pub fn signal(&self, name: &str) {
        signal(&self.child, name);
    }
}

pub fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

impl Drop for Process {
    fn drop(&mut self) {
        // Killing fails only if the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
