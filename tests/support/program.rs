//! The programs of this repository, `zklock` and the examples, as `make programs` has built them. Use this module to run
//! a program as a user does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;

use tokio::process::Command;

/// Returns the path of this program. Panics if the program is missing, or older than its sources.
pub fn program(name: &str) -> PathBuf {
    // Test binaries are in `target/debug/deps`, programs in `target/debug`, and the root package's examples in
    // `target/debug/examples`.
    let test = std::env::current_exe().expect("a process knows its executable");
    let target = test.ancestors().nth(2).expect("the test is in target/debug/deps");
    let places = [target.join(name), target.join("examples").join(name)];
    let Some(program) = places.into_iter().find(|place| place.exists()) else {
        panic!("there is no {name} in {}: run `make programs` first", target.display())
    };
    let sources = fs::read_to_string(program.with_extension("d")).expect("cargo notes what it builds from");
    for source in sources_in(&sources) {
        let changed = modified(&source) > modified(&program);
        assert!(!changed, "{} is older than {}: run `make programs` first", program.display(), source.display());
    }
    program
}

/// Returns the source files that cargo's dep-info file of a program lists. The file has the program's path, a colon,
/// and the paths of the sources. A backslash stands before each space within a path.
pub fn sources_in(note: &str) -> Vec<PathBuf> {
    let (_, sources) = note.trim_end().split_once(": ").expect("a program and its sources");
    // A null byte stands for each escaped space during the split, because no path contains null bytes.
    let sources = sources.replace("\\ ", "\0");
    sources.split(' ').map(|source| source.replace('\0', " ").into()).collect()
}

/// Returns a command that runs this example without standard input. The process is killed when its handle is dropped.
pub fn example(name: &str) -> Command {
    let mut command = Command::new(program(name));
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Returns when the file was changed last. Returns `None`, which is less than any time, if the file does not exist or
/// its file system records no times.
fn modified(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).and_then(|file| file.modified()).ok()
}
