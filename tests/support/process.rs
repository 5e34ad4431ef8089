//! Child processes that a test can kill. A child is the test binary itself, started again.
//!
//! A module that starts children has a test `the_child_process_of_other_tests`. In a child, this test does what
//! [`role`] says and reports to the parent with [`say`]. In an ordinary run it does nothing.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

const ROLE: &str = "ZK_RWLOCK_CHILD";

/// The prefix of the lines that a child prints for its parent. The test harness prints other lines to the same output.
pub const SAYS: &str = "child says ";

/// Returns the role that the parent has given to this process, or `None` if this process is no child.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

pub fn say(words: &str) {
    // The line is written to stdout itself, because the test harness captures the output of `println!`.
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{SAYS}{words}\n").as_bytes()).and_then(|()| out.flush()).expect("the parent listens");
}

/// Returns the full name of a test, as the test harness spells it, from its function name and the [`module_path!`] of
/// its module.
pub fn test_in(module: &str, name: &str) -> String {
    // The harness omits the name of the crate.
    module.split_once("::").map_or(name.to_owned(), |(_, module)| format!("{module}::{name}"))
}

/// Copies a child's standard error to the output of the current test. The harness shows that output if the test fails.
pub fn show_if_red(complaints: ChildStderr) {
    // The thread ends when the child ends, so nothing joins it.
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

    /// Returns the next line that the child reports. Blocks until the line arrives.
    pub fn says(&mut self) -> String {
        self.said().next().expect("the child prints a line before it ends")
    }

    /// Returns all further lines that the child reports, until the child ends.
    pub fn said(&mut self) -> impl Iterator<Item = String> {
        self.lines.by_ref().map(Result::unwrap).filter_map(|line| line.strip_prefix(SAYS).map(str::to_owned))
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }
}

/// Sends the signal `name` to a process. For `STOP`, returns once the process has stopped.
pub fn signal(pid: u32, name: &str) {
    let kill = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    let status = kill.expect("the kill command can be run");
    assert!(status.success(), "kill -{name} {pid} ended with {status}");
    if name == "STOP" {
        // SIGSTOP reaches a thread only when the thread gets a core, and the other threads run until then. The wait
        // ends after about 5 s, because another process may resume this one before all its threads have stopped.
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
        // In `/proc/PID/stat` the state follows the name in parentheses. A thread that has ended counts as stopped.
        status.rsplit(") ").next().is_none_or(|state| !state.starts_with(['R', 'S', 'D']))
    })
}

impl Drop for Process {
    fn drop(&mut self) {
        // The error is ignored, because killing fails only if the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
