//! Processes that a test can kill: the test binary itself, run again as a child.
//!
//! A module that starts such processes has a test `the_child_process_of_other_tests`. In a child it does what [`role`]
//! says and reports to the parent with [`say`]. In an ordinary run it does nothing.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

const ROLE: &str = "ZK_RWLOCK_CHILD";

/// The prefix of a child's lines, among those of the test harness.
pub const SAYS: &str = "child says ";

/// Returns the role of this process, or `None` if it is no child.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

pub fn say(words: &str) {
    // One write, past the harness, which captures only the output of `println!`.
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{SAYS}{words}\n").as_bytes()).and_then(|()| out.flush()).expect("the parent listens");
}

/// Returns the test harness's name for this test, in the module with this [`module_path!`].
pub fn test_in(module: &str, name: &str) -> String {
    // The harness omits the name of the crate.
    module.split_once("::").map_or(name.to_owned(), |(_, module)| format!("{module}::{name}"))
}

/// Prints a child's standard error as output of the current test: the harness shows it if the test fails.
pub fn show_if_red(complaints: ChildStderr) {
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
    /// Starts a child that runs `the_child_process_of_other_tests` of the module with this [`module_path!`].
    pub fn start(module: &str, role: &str) -> Process {
        Process::start_in(module, role, &[])
    }

    /// Starts a child as [`Process::start`] does, with more environment variables.
    pub fn start_in(module: &str, role: &str, environment: &[(&str, PathBuf)]) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([&test_in(module, "the_child_process_of_other_tests"), "--exact", "--nocapture"])
            .env(ROLE, role)
            .envs(environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        show_if_red(child.stderr.take().unwrap());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Process { child, lines }
    }

    /// Returns the next line of the child. Blocks until there is one.
    pub fn says(&mut self) -> String {
        self.said().next().expect("the child prints a line before it ends")
    }

    /// Returns all lines of the child, until it ends.
    pub fn said(&mut self) -> impl Iterator<Item = String> {
        self.lines.by_ref().map(Result::unwrap).filter_map(|line| line.strip_prefix(SAYS).map(str::to_owned))
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }
}

/// Sends a signal to a process. For `STOP`, returns after the process has stopped.
pub fn signal(pid: u32, name: &str) {
    let kill = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    let status = kill.expect("the kill command can be run");
    assert!(status.success(), "kill -{name} {pid} ended with {status}");
    if name == "STOP" {
        // A thread that waits for a core stops only when it gets one, and the other threads run until then. Someone
        // else may also resume the process, so the wait has a limit.
        let mut left = 5_000;
        while left > 0 && !stands_still(pid) {
            thread::sleep(Duration::from_millis(1));
            left -= 1;
        }
    }
}

fn stands_still(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let status = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses. The thread may have ended meanwhile.
        status.rsplit(") ").next().is_none_or(|state| !state.starts_with(['R', 'S', 'D']))
    })
}

impl Drop for Process {
    fn drop(&mut self) {
        // Killing fails only if the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
