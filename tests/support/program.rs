//! The programs of this repository: `zklock` and the examples, as `make programs` has built them.
//!
//! It knows where cargo puts them, and nothing of what they do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;

use tokio::process::Command;

/// Where the program of this name is; refuses one that is missing, or older than what it was built from.
pub fn program(name: &str) -> PathBuf {
    // Test binaries are in `target/debug/deps`, programs in `target/debug`, and the examples of the root in `examples` there.
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

/// What a program was built from, as cargo notes it: its file, and behind a colon the others, with a backslash before each space that
/// is part of a name.
pub fn sources_in(note: &str) -> Vec<PathBuf> {
    let (_, sources) = note.trim_end().split_once(": ").expect("the program, and the files that it was built from");
    // No name has this character in it.
    let sources = sources.replace("\\ ", "\0");
    sources.split(' ').map(|source| source.replace('\0', " ").into()).collect()
}

/// A command that runs this example without standard input, and kills it when its handle is dropped.
pub fn example(name: &str) -> Command {
    let mut command = Command::new(program(name));
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// When the file was changed; `None`, which is less than any time, if it does not exist or the system does not say.
fn modified(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).and_then(|file| file.modified()).ok()
}
