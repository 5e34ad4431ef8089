//! Tests of `tests/chapters.sh`, which runs the test binaries ("chapters") of `make test`: with chapters that fail,
//! hang or run no test. Small programs stand in for the real chapters.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::snippets::root;

/// A chapter, by name and source, whose test starts a ZooKeeper server. `chapters.sh` fails unless some chapter starts
/// a server.
const SERVER: (&str, &str) = (
    "lock",
    r#"#[test]
    fn starts_a_server() {
        println!("chatter of a green test");
        eprintln!("the machine was busy or stood still: the round before this one is not judged");
        let missing = b"\n!!! fish is not installed: NOT tried\n";
        std::io::Write::write_all(&mut std::io::stderr(), missing).unwrap();
        std::fs::write(std::env::var("ZK_RWLOCK_SERVERS").unwrap(), "lock-1 1 127.0.0.1:1 3.8.0\n").unwrap();
    }"#,
);

/// A small repository with chapters, in a directory whose path has a space.
struct Chapters {
    _home: TempDir,
    root: PathBuf,
}

fn executable(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

impl Chapters {
    /// Compiles a chapter from each pair of a name and a source. The fake `cargo` reports two passing tests of the
    /// documentation.
    fn new(programs: &[(&str, &str)]) -> Chapters {
        let home = TempDir::new().unwrap();
        let root = home.path().join("a b");
        for folder in ["bin", "tests"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in ["chapters.sh", "chapters.awk"] {
            fs::copy(self::root().join("tests").join(file), root.join("tests").join(file)).unwrap();
        }
        let built = programs.iter().map(|(name, source)| {
            let [source_file, program] = ["rs", "program"].map(|end| root.join(format!("{name}.{end}")));
            fs::write(&source_file, source).unwrap();
            let mut compiler = Command::new("rustc");
            compiler.args(["--test", "--edition=2024", "-o"]).args([&program, &source_file]);
            assert!(compiler.status().expect("the compiler can be run").success());
            let [manifest, program] = [root.join("Cargo.toml"), program].map(|file| file.display().to_string());
            format!(
                r#"{{"manifest_path":"{manifest}","target":{{"kind":["test"],"name":"{name}"}},"profile":{{"test":true}},"executable":"{program}"}}"#
            )
        });
        let built: Vec<String> = built.collect();
        fs::write(root.join("built"), built.join("\n") + "\n").unwrap();
        let chapters = Chapters { _home: home, root };
        chapters.cargo("cat built");
        chapters
    }

    /// Replaces `cargo` by a script that runs `build` when it is asked to build the tests.
    fn cargo(&self, build: &str) {
        let documentation =
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        let cargo = format!(
            "#!/bin/bash\ncase $* in\nmetadata*) cat metadata ;;\n*--no-run*) {build} ;;\n*line*) echo '{documentation}' ;;\nesac\n"
        );
        executable(&self.root.join("bin/cargo"), &cargo);
    }

    /// Runs `chapters.sh` with these arguments, and returns the lines of its output and its exit code.
    fn run(&self, words: &[&str]) -> (Vec<String>, Option<i32>) {
        self.run_with(words, &[])
    }

    fn run_with(&self, words: &[&str], variables: &[(&str, &str)]) -> (Vec<String>, Option<i32>) {
        let path = format!("{}:{}", self.root.join("bin").display(), std::env::var("PATH").unwrap());
        let mut run = Command::new("bash");
        run.arg("-c").arg("exec 2>&1; exec tests/chapters.sh \"$@\"").arg("bash").args(words);
        run.current_dir(&self.root).env("PATH", path).env("TEST_SECONDS", "5").env_remove("TEST_ORDER");
        run.envs(variables.iter().copied()).stdin(Stdio::null());
        let output = run.output().unwrap();
        (String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect(), output.status.code())
    }

    fn log(&self, chapter: &str) -> String {
        fs::read_to_string(self.root.join(format!("target/test-logs/{chapter}.log"))).unwrap()
    }
}

/// Returns the list of failures at the end of the output.
fn red(lines: &[String]) -> Vec<&str> {
    let list = lines.iter().skip_while(|line| !line.starts_with("make test: FAILED")).skip(1);
    list.map(|line| line.trim()).collect()
}

#[test]
fn a_green_run_lists_its_chapters_without_output() {
    let chapters = Chapters::new(&[SERVER]);
    fs::write(chapters.root.join("metadata"), r#"{"test":true},{"test":false}"#).unwrap();
    let (plan, code) = chapters.run(&["plan", "zookeeper", "postgresql"]);
    assert_eq!(code, Some(0), "{plan:#?}");
    assert!(plan[0].contains("runs 2 chapters, on the ZooKeeper of Debian"), "{plan:#?}");
    assert!(plan[1].contains("installs first: zookeeper postgresql"), "{plan:#?}");
    let (lines, code) = chapters.run(&["run"]);
    assert_eq!((code, red(&lines)), (Some(0), vec![]), "{lines:#?}");
    for said in [
        "1 of 2: doc: 2 passed",
        "2 of 2: lock: 1 passed, rounds run again on a busy machine: 1, ",
        "make test: fish is not installed: NOT tried",
        "started ZooKeeper 3.8.0: 1 times",
        "3 tests passed",
    ] {
        assert!(lines.iter().any(|line| line.contains(said)), "{said}: {lines:#?}");
    }
    assert!(!lines.iter().any(|line| line.contains("chatter")), "{lines:#?}");
    assert!(chapters.log("lock").contains("chatter of a green test"));
    let (plan, _) = chapters.run(&["plan"]);
    assert!(plan[1].contains("nothing") && plan[2].contains("the last run took "), "{plan:#?}");
}

#[test]
fn a_red_chapter_is_listed_and_the_run_goes_on() {
    let failing = r#"
        mod leases {
            #[test]
            fn are_equal() {
                println!("what the test printed\n    leases::are_well\nfailures:\nmore");
                assert_eq!(1, 2, "they differ");
            }
            #[test]
            fn are_well() {
                println!("chatter");
                eprintln!("test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out");
            }
            #[test]
            fn end() -> Result<(), String> {
                let _ = std::thread::spawn(|| panic!("of another thread")).join();
                Err("it goes on".into())
            }
            #[test]
            #[should_panic]
            fn are_refused() {}
        }"#;
    let chapters = Chapters::new(&[("alone", failing), SERVER]);
    let (lines, code) = chapters.run(&["run"]);
    let log = "target/test-logs/alone.log";
    let expected = [
        &format!("alone: leases::are_equal: assertion `left == right` failed: they differ; {log}"),
        &format!("alone: leases::are_refused: note: test did not panic as expected at alone.rs:20:16; {log}"),
        &format!("alone: leases::end: \"it goes on\"; {log}"),
    ];
    let here = format!("{}/", chapters.root.display());
    let seen: Vec<String> = red(&lines).iter().map(|line| line.replace(&here, "")).collect();
    assert_eq!((code, seen.iter().collect::<Vec<_>>()), (Some(1), expected.to_vec()), "{lines:#?}");
    assert!(chapters.log("alone").contains("they differ"));
    for said in ["alone: 1 passed, 3 FAILED", "lock: 1 passed", "what the test printed"] {
        assert!(lines.iter().any(|line| line.contains(said)), "{said}: {lines:#?}");
    }
    assert!(!lines.iter().any(|line| line.contains("chatter")), "{lines:#?}");
}

#[test]
fn an_unjudged_test_is_listed_without_its_name() {
    let failing = r#"
        #[test]
        fn a_pause_makes_two_holders() {
            let ran = std::thread::spawn(|| panic!("the machine stood still for 3 s")).join();
            assert!(ran.is_err());
            panic!("the machine stood still for 3 s");
        }
        #[test]
        fn a_break_makes_two_holders() {
            panic!("two hold it, although the machine stood still for no moment");
        }"#;
    let chapters = Chapters::new(&[("crowd", failing), SERVER]);
    let (lines, code) = chapters.run(&["run"]);
    let log = "target/test-logs/crowd.log";
    let expected = [
        format!("crowd: a_break_makes_two_holders: two hold it, although the machine stood still for no moment; {log}"),
        format!("crowd: a test could not be judged: the machine stood still; {log}"),
    ];
    assert_eq!((code, red(&lines)), (Some(1), expected.iter().map(String::as_str).collect()), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("crowd: 0 passed, 1 FAILED, 1 not judged")), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("a_pause_makes_two_holders")), "{lines:#?}");
    assert!(chapters.log("crowd").contains("a_pause_makes_two_holders"));
}

#[test]
fn a_chapter_without_a_result_is_red() {
    let killed = r#"
        #[test]
        fn good() {}
        #[test]
        fn dies() {
            std::thread::sleep(std::time::Duration::from_secs(1));
            std::process::abort();
        }"#;
    let hangs = r#"
        #[test]
        fn good() {}
        #[test]
        fn hangs() {
            let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
            std::fs::write("child", child.id().to_string()).unwrap();
            let slow = b"test hangs has been running for over 60 seconds\n";
            std::io::Write::write_all(&mut std::io::stdout(), slow).unwrap();
            child.wait().unwrap();
        }
        #[test]
        fn may_not_have_begun() {
            loop {
                std::thread::park();
            }
        }"#;
    let silent = "#[test] fn leaves() { std::process::exit(0) }";
    let chapters = Chapters::new(&[("killed", killed), ("hangs", hangs), ("silent", silent), SERVER]);
    let (lines, code) = chapters.run(&["run"]);
    let mut seen = red(&lines);
    seen.sort_unstable();
    let expected = [
        "hangs: (the program): it was ended, because no test had ended for 5 s, without a result; not ended: hangs; target/test-logs/hangs.log",
        "killed: (the program): it ended with code 134 (signal 6), without a result; not ended: dies; target/test-logs/killed.log",
        "silent: (the program): it ended with code 0, without a result; not ended: leaves; target/test-logs/silent.log",
    ];
    assert_eq!((code, &seen[..]), (Some(1), &expected[..]), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("lock: 1 passed")), "{lines:#?}");
    let child = Path::new("/proc").join(fs::read_to_string(chapters.root.join("child")).unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.exists() {
        assert!(Instant::now() < deadline, "the child of a chapter that was ended lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A test hangs, and prints all the time. Another fails before, and its panic's message is lost with the program.
#[test]
fn a_red_or_slow_test_is_named_while_another_hangs() {
    let hangs = r#"
        #[test]
        fn a_red_one() {
            panic!("a planted fault");
        }
        #[test]
        fn hangs() {
            let write = |line: &[u8]| std::io::Write::write_all(&mut std::io::stdout(), line).unwrap();
            write(b"test hangs has been running for over 60 seconds\ntest no_test_of_ours ... FAILED\n");
            loop {
                write(b"chatter\n");
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }"#;
    let (lines, code) = Chapters::new(&[("hangs", hangs), SERVER]).run(&["run"]);
    let at = |line: &str| lines.iter().position(|it| it == line);
    let result = lines.iter().position(|line| line.starts_with("make test: 2 of 3: hangs: 0 passed, 2 FAILED"));
    assert_eq!(code, Some(1), "{lines:#?}");
    for named in ["make test: hangs: FAILED: a_red_one", "make test: hangs: has run for over a minute: hangs"] {
        assert!(at(named).is_some() && at(named) < result, "{named}: {lines:#?}");
    }
    assert!(!lines.iter().any(|line| line.contains("no_test_of_ours")), "{lines:#?}");
    let expected = [
        "hangs: a_red_one: it failed, and the program ended before it said why; target/test-logs/hangs.log",
        "hangs: (the program): it was ended, because no test had ended for 5 s, without a result; not ended: hangs; target/test-logs/hangs.log",
    ];
    assert_eq!(red(&lines), expected, "{lines:#?}");
}

#[test]
fn tests_run_in_a_random_order_that_can_be_repeated() {
    let tests: String =
        (0..20).map(|number| format!("#[test] fn number_{number}() {{ eprintln!(\"number {number}\") }}\n")).collect();
    let chapters = Chapters::new(&[("ordered", &tests), SERVER]);
    let order = |seed: &[(&str, &str)]| {
        let (lines, code) = chapters.run_with(&["run"], &[seed, &[("RUST_TEST_THREADS", "1")]].concat());
        assert_eq!(code, Some(0), "{lines:#?}");
        let log = chapters.log("ordered");
        let began = log.lines().filter(|line| line.starts_with("test number_")).map(str::to_owned);
        (lines[0].clone(), began.collect::<Vec<_>>())
    };
    let (said, first) = order(&[]);
    let seed = said.split("TEST_ORDER=").nth(1).and_then(|rest| rest.split(' ').next()).expect("the seed");
    let (_, again) = order(&[("TEST_ORDER", seed)]);
    let (_, other) = order(&[("TEST_ORDER", "7")]);
    assert_eq!((first.len(), &first), (20, &again));
    assert_ne!(first, other);
}

#[test]
fn a_run_that_started_no_server_is_red() {
    let (lines, code) = Chapters::new(&[("pages", "#[test] fn good() {}")]).run(&["run"]);
    assert_eq!(code, Some(1), "{lines:#?}");
    let [line] = red(&lines)[..] else { panic!("{lines:#?}") };
    assert!(line.starts_with("no test started a ZooKeeper server: "), "{line}");
}

#[test]
fn a_compile_error_ends_the_run_at_once() {
    let chapters = Chapters::new(&[SERVER]);
    chapters.cargo("cat built; echo 'error[E0425]: cannot find value' >&2; exit 101");
    let (lines, code) = chapters.run(&["run"]);
    assert_eq!((code, &lines[1..]), (Some(101), &["error[E0425]: cannot find value".to_owned()][..]), "{lines:#?}");
}

/// Stand-ins for `id` and `sudo` say that the user is not root and that `sudo` fails.
#[test]
fn without_root_the_install_command_is_printed() {
    let bin = TempDir::new().unwrap();
    executable(&bin.path().join("id"), "#!/bin/sh\necho 1000\n");
    executable(&bin.path().join("sudo"), "#!/bin/sh\nexit 1\n");
    for program in ["apt-get", "cargo"] {
        executable(&bin.path().join(program), "#!/bin/sh\n: >\"$0.was-run\"\n");
    }
    let mut make = Command::new("make");
    make.args(["--no-print-directory", "DEBIAN_JAR=/nowhere", "servers", "programs"]).current_dir(root());
    make.env_remove("ZOOKEEPER_CLASSPATH").env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    make.env("PATH", format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap()));
    let output = make.stdin(Stdio::null()).output().expect("make can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("only root can install them"), "{said}");
    assert!(said.contains("\n    apt-get update && apt-get install -y --no-install-recommends zookeeper"), "{said}");
    for program in ["apt-get.was-run", "cargo.was-run"] {
        assert!(!bin.path().join(program).exists(), "{program}");
    }
}
