//! A process that forks, as a daemon or a server with workers does. Rust has no safe call for that: a small library makes one
//! of a call of the C library that nothing else needs. It is built by the compiler that links the tests.

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

/// The library, for as long as it is needed.
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

    /// The environment of a process that forks when it asks for its [parent](std::os::unix::process::parent_id).
    pub fn environment(&self) -> (&'static str, PathBuf) {
        ("LD_PRELOAD", self.file("forks.so"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Forks, in a process with this environment. Whether this is the child.
pub fn fork() -> bool {
    std::os::unix::process::parent_id() == 0
}
