//! Makes a process fork, as a daemon or a server with workers does. Use it to test a session in the forked child. Rust
//! has no safe function for fork. So the C compiler that links the tests builds a small library, in which `getppid`
//! forks the process.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

const SHIM: &str = r"
#include <unistd.h>

pid_t getppid(void) {
    return fork();
}
";

/// The directory of the small library. Dropping this value removes the directory.
pub struct Forks(TempDir);

impl Forks {
    pub fn build() -> Forks {
        let forks = Forks(tempfile::tempdir().expect("the directory for temporary files is writable"));
        fs::write(forks.file("forks.c"), SHIM).expect("writable");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(forks.file("forks.so")).arg(forks.file("forks.c"));
        assert!(cc.status().expect("a C compiler").success());
        forks
    }

    /// Returns the environment variable that makes a process fork when it asks for its
    /// [parent](std::os::unix::process::parent_id).
    pub fn environment(&self) -> (&'static str, PathBuf) {
        ("LD_PRELOAD", self.file("forks.so"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Forks the calling process, which must have been started with the variable of [`Forks::environment`]. Returns whether
/// this process is the child.
pub fn fork() -> bool {
    std::os::unix::process::parent_id() == 0
}
