//! Processes of Curator, of kazoo and of this test binary. A test controls them by lines on their standard input, and
//! they reply in lines that begin with [`SAYS`]. Use them to run other lock libraries against ours.
//! `tests/interop/setup.sh` installs what they need.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::Duration;

use super::process::{SAYS, test_in};
use super::scene::eventually;

/// The longest wait for a line. Twenty Java virtual machines that start at the same time on two cores need this time.
const PATIENCE: Duration = Duration::from_secs(180);

fn home() -> PathBuf {
    let home = std::env::var_os("INTEROP_HOME").map(PathBuf::from);
    home.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/interop"))
}

/// Returns the command that starts a Java program by its class. A test tells the program how to use a lock.
pub fn java(class: &str) -> Command {
    let mut java = Command::new("java");
    java.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]);
    java.arg(format!("{}/classes:{0}/jars/*", home().display())).arg(class).stderr(Stdio::null());
    java
}

/// Returns the command that starts a Python program by its file below `tests/`. A test tells the program how to use a lock.
pub fn python(file: &str) -> Command {
    let mut python = Command::new(home().join("venv/bin/python"));
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).stderr(Stdio::null());
    python
}

/// Returns a command that starts this test binary as a child, in the role of a peer. The child runs
/// `the_child_process_of_other_tests` of the module with this [`module_path!`].
pub fn child_of(module: &str) -> Command {
    let mut child = Command::new(std::env::current_exe().expect("the test binary is known"));
    child.args([&test_in(module, "the_child_process_of_other_tests"), "--exact", "--nocapture"]);
    child
}

pub struct Peer {
    pub child: Child,
    pub name: String,
    commands: ChildStdin,
    said: Receiver<String>,
}

impl Peer {
    /// Starts the process, and waits until it says `ready`.
    pub fn start(mut command: Command, name: &str) -> Peer {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("{name}: {error}; tests/interop/setup.sh provides it"));
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (sender, said) = mpsc::channel();
        thread::spawn(move || {
            let words = |line: String| line.strip_prefix(SAYS).map(str::to_owned);
            // The result is ignored, because the thread ends when the process ends or the receiver is dropped.
            let _ended = lines.map_while(Result::ok).filter_map(words).try_for_each(|words| sender.send(words));
        });
        let commands = child.stdin.take().expect("a pipe");
        Peer { child, name: name.to_owned(), commands, said }
    }

    pub fn send(&mut self, command: &str) {
        self.commands.write_all(format!("{command}\n").as_bytes()).expect("the process lives");
    }

    /// Returns the rest of the next line, which must begin with this word. Blocks until the line arrives.
    pub fn says(&mut self, word: &str) -> String {
        let line = self.says_within(PATIENCE).unwrap_or_else(|| panic!("{} never says {word}", self.name));
        let rest = line.strip_prefix(word).unwrap_or_else(|| panic!("{} says {line}, not {word}", self.name));
        rest.trim_start().to_owned()
    }

    pub fn says_within(&mut self, limit: Duration) -> Option<String> {
        match self.said.recv_timeout(limit) {
            Ok(words) => Some(words),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("{} has ended", self.name),
        }
    }

    /// Returns all lines that have arrived since the last call of this or another method that returns lines.
    pub fn has_said(&mut self) -> Vec<String> {
        self.said.try_iter().collect()
    }

    pub fn is_silent(&self) -> bool {
        matches!(self.said.try_recv(), Err(TryRecvError::Empty))
    }

    /// Waits until the process has ended. A process ends when a command fails.
    pub async fn ends(&self) {
        let has_ended = || matches!(self.said.try_recv(), Err(TryRecvError::Disconnected));
        eventually("the process ends", || async { has_ended() }).await;
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("the process lives");
        self.child.wait().expect("the process is a child");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The error is ignored, because killing fails only if the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
