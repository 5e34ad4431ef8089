//! The programs of `examples/`, as `cargo test` has built them.

use std::path::PathBuf;
use std::process::Stdio;

use tokio::process::Command;

/// A run of this example that ends with its handle at the latest; only its standard input is decided.
pub fn example(name: &str) -> Command {
    // Examples are built beside the tests: in `target/debug/examples` and `target/debug/deps`.
    let test = std::env::current_exe().expect("a process knows its executable");
    let target = test.ancestors().nth(2).map(PathBuf::from).expect("the test is in target/debug/deps");
    let program = target.join("examples").join(name);
    assert!(program.exists(), "{} is missing: run `cargo build --examples` first", program.display());
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}
