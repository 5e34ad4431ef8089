//! Checks the layers of `src/`: no folder imports a folder above it, and no two files import each other in a circle. The files
//! of `zklock` import each other in no circle either.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The folders and files of `src/` from the lowest to the highest. Each has the list of the folders that it may import,
/// which stand earlier in this list.
pub(super) const LAYERS: [(&str, &[&str]); 18] = [
    ("sync", &[]),
    ("queue", &["sync"]),
    ("telemetry", &["sync", "queue"]),
    ("session", &["sync", "queue", "telemetry"]),
    ("error", &["queue", "session"]),
    ("validation", &["queue", "error"]),
    ("call", &["sync", "telemetry", "session", "error"]),
    ("memory", &["sync", "telemetry", "session"]),
    ("zookeeper", &["sync", "queue", "telemetry", "session", "error", "validation"]),
    ("observe", &["sync", "queue", "telemetry", "session", "error", "validation", "call"]),
    ("contend", &["sync", "queue", "telemetry", "session", "error", "validation", "call", "observe"]),
    ("keep", &["sync", "queue", "telemetry", "session", "error", "call", "observe", "contend"]),
    ("lock", &["sync", "queue", "telemetry", "session", "error", "validation", "call", "observe", "contend", "keep"]),
    (
        "recipes/leadership",
        &["sync", "queue", "telemetry", "session", "error", "validation", "call", "observe", "contend", "lock"],
    ),
    ("recipes/semaphore", &["sync", "queue", "session", "error", "call", "contend", "lock"]),
    (
        "recipes/multi",
        &["sync", "queue", "telemetry", "session", "error", "validation", "call", "observe", "contend", "lock"],
    ),
    ("recipes/once", &["queue", "telemetry", "session", "error", "validation", "call", "observe", "contend", "lock"]),
    (
        "recipes/shared",
        &["sync", "queue", "telemetry", "session", "error", "validation", "call", "observe", "contend", "lock"],
    ),
];

/// Returns the files of the library or the command, each with the files that it imports.
fn imports(files: BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<String>> {
    let modules: BTreeSet<String> = files.keys().cloned().collect();
    let imports = |code: String| -> BTreeSet<String> {
        let paths = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let paths = paths.flat_map(|line| line.split("crate::").skip(1).map(str::to_owned).collect::<Vec<_>>());
        // Each name in braces directly after `crate::` is a path of its own.
        let paths = paths.flat_map(|path| match path.strip_prefix('{') {
            Some(names) => {
                names.split(['{', '}', ';']).next().unwrap_or_default().split(", ").map(str::to_owned).collect()
            }
            None => vec![path],
        });
        // Finds the file of an import: the longest prefix of its path that names a file.
        let module = |path: String| {
            let path: String = path.chars().take_while(|c| c.is_ascii_alphanumeric() || "_:".contains(*c)).collect();
            let parts: Vec<&str> = path.split("::").collect();
            (1..=parts.len()).rev().map(|n| parts[..n].join("::")).find(|name| modules.contains(name))
        };
        paths.filter_map(module).collect()
    };
    // Leaves out the file itself, because a macro names the file in which it is defined.
    let others = |name: &str, all: BTreeSet<String>| all.into_iter().filter(|it| it != name).collect();
    files.into_iter().map(|(name, code)| (name.clone(), others(&name, imports(code)))).collect()
}

/// Reads the files below a folder into `files`, without their unit tests.
fn visit(folder: &Path, prefix: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("a folder of the project").flatten() {
        let (path, name) = (entry.path(), entry.file_name().into_string().expect("a plain name"));
        if path.is_dir() && name != "bin" && name != "tests" {
            visit(&path, &format!("{prefix}{name}::"), files);
        } else if let Some(stem) = name.strip_suffix(".rs").filter(|stem| !matches!(*stem, "lib" | "tests")) {
            let code = fs::read_to_string(&path).expect("a source file");
            let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            // Skips a `mod.rs` that only lists the other files of its folder.
            if stem != "mod" {
                files.insert(format!("{prefix}{stem}"), code.to_owned());
            } else if ["\npub use ", "\npub(crate) use ", "\npub(crate) async fn "].iter().any(|it| code.contains(it)) {
                files.insert(prefix.trim_end_matches("::").to_owned(), code.to_owned());
            }
        }
    }
}

/// Returns the files of the library, each with the files whose methods it calls on `self`. Such a call needs no import,
/// if the `impl`s of a type are in several files.
fn calls_through_self() -> BTreeMap<String, BTreeSet<String>> {
    let mut files = BTreeMap::new();
    visit(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src")), "", &mut files);
    // Each inherent `impl`: its type and its text.
    let impls = |code: &str| -> Vec<(String, String)> {
        let blocks = code.split("\nimpl").skip(1).filter_map(|block| block.split_once("\n}").map(|(block, _)| block));
        let own = blocks.filter_map(|block| block.split_once('{').filter(|(head, _)| !head.contains(" for ")));
        let word = |head: &str| head.trim_start().chars().take_while(|c| c.is_alphanumeric()).collect::<String>();
        let named = |head: &str| match head.strip_prefix('<') {
            Some(generic) => word(generic.rsplit_once("> ").map_or(generic, |(_, name)| name)),
            None => word(head),
        };
        own.map(|(head, body)| (named(head), body.to_owned())).collect()
    };
    // Whether only one type has this name. The text of the code does not tell types of the same name apart, so they are
    // left out.
    let is_one = |name: &str| {
        let types = [format!("struct {name}"), format!("enum {name}")];
        let defines = |line: &str| {
            let after = types.iter().find_map(|it| line.split_once(&**it)).map(|(_, after)| after);
            after.is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric()))
        };
        files.values().flat_map(|code| code.lines()).filter(|line| defines(line)).count() == 1
    };
    let mut defined: BTreeMap<(String, String), String> = BTreeMap::new();
    for (file, code) in &files {
        for (of, body) in impls(code).into_iter().filter(|(of, _)| is_one(of)) {
            let names =
                body.split(" fn ").skip(1).map(|rest| rest.split(['(', '<']).next().unwrap_or_default().to_owned());
            defined.extend(names.map(|name| ((of.clone(), name), file.clone())));
        }
    }
    let called = |file: &String, code: &String| -> BTreeSet<String> {
        let calls = impls(code).into_iter().flat_map(|(of, body)| {
            let calls = body.split("self.").chain(body.split("Self::")).skip(1).map(str::to_owned).collect::<Vec<_>>();
            calls
                .into_iter()
                .map(move |rest| (of.clone(), rest.split(['(', ':']).next().unwrap_or_default().to_owned()))
        });
        calls.filter_map(|call| defined.get(&call).filter(|other| *other != file).cloned()).collect()
    };
    files.iter().map(|(file, code)| (file.clone(), called(file, code))).collect()
}

/// Returns the folder of a file. A file of a recipe is in the folder `recipes/NAME`.
fn folder(module: &str) -> String {
    let parts: Vec<&str> = module.split("::").collect();
    parts[..if parts[0] == "recipes" { 2 } else { 1 }].join("/")
}

fn imports_and_calls() -> BTreeMap<String, BTreeSet<String>> {
    let mut files = BTreeMap::new();
    visit(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src")), "", &mut files);
    let mut all = imports(files);
    for (file, called) in calls_through_self() {
        all.entry(file).or_default().extend(called);
    }
    all
}

#[test]
fn no_folder_imports_a_higher_folder() {
    let (imports, mut wrong) = (imports_and_calls(), Vec::new());
    assert!(imports.len() > 60, "{} files", imports.len());
    for (file, imported) in &imports {
        let may = LAYERS.iter().find(|(name, _)| *name == folder(file)).map(|(_, may)| *may);
        let may = may.unwrap_or_else(|| panic!("{file} is in no layer"));
        let upward = imported.iter().filter(|it| folder(it) != folder(file) && !may.contains(&&*folder(it)));
        wrong.extend(upward.map(|it| format!("{file} imports {it}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn assert_no_circle(mut imports: BTreeMap<String, BTreeSet<String>>) {
    // Removes each file that imports no remaining file, because such a file is in no circle.
    while let Some(done) = imports.iter().find(|(_, imported)| imported.is_empty()).map(|(file, _)| file.clone()) {
        imports.remove(&done);
        imports.values_mut().for_each(|imported| imported.retain(|other| *other != done));
    }
    assert!(imports.is_empty(), "among these files there is a circle: {imports:#?}");
}

#[test]
fn no_two_files_import_each_other_in_a_circle() {
    assert_no_circle(imports_and_calls());
    let mut command = BTreeMap::new();
    visit(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../zklock/src")), "", &mut command);
    let command = imports(command);
    assert!(command["place"].contains("connect") && command["show"].contains("output"), "{command:#?}");
    assert_no_circle(command);
}

#[test]
fn each_folder_may_import_only_earlier_folders() {
    for (at, (name, may)) in LAYERS.iter().enumerate() {
        for other in *may {
            assert!(LAYERS[..at].iter().any(|(earlier, _)| earlier == other), "{other} stands before {name}");
        }
    }
}

/// Locks, atomics and random numbers come from `src/sync`. The tests in `threads/` replace it, in order to decide at
/// each lock and atomic which thread runs next.
#[test]
fn locks_atomics_and_random_numbers_come_from_one_file() {
    let mut files = BTreeMap::new();
    visit(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src")), "", &mut files);
    // The thread of the user's code uses the standard library's channel.
    let apart = ["sync", "telemetry::user_thread"];
    let names =
        ["Mutex", "RwLock", "Condvar", "Barrier", "Once", "atomic", "mpsc", "HashMap", "HashSet", "Notify", "watch"];
    let takes = |code: &str| {
        let elsewhere = ["use std::sync::", "use std::collections::", "use tokio::sync::"];
        let from_there = code.lines().filter(|line| elsewhere.iter().any(|it| line.starts_with(it)));
        from_there.filter(|line| names.iter().any(|name| line.contains(name))).count() > 0
    };
    let wrong = files.iter().filter(|(file, code)| takes(code) != apart.contains(&file.as_str()) && *file != "sync");
    assert_eq!(wrong.map(|(file, _)| file).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// The check of a node by the leader is in `session::presence`. The other files send a check only within a transaction
/// that changes something, or before reads that must be current.
#[test]
fn one_place_asks_the_leader_about_a_node() {
    let mut files = BTreeMap::new();
    visit(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src")), "", &mut files);
    let makes = |line: &str| line.contains("Operation::Check {") && !line.contains("..") && !line.contains("=>");
    let asking = files.iter().filter(|(_, code)| code.lines().any(makes)).map(|(file, _)| file.as_str());
    let others = [
        "contend::exchange",
        "contend::transaction",
        "session::contract",
        "session::presence",
        "zookeeper::connections",
    ];
    assert_eq!(asking.collect::<Vec<_>>(), others);
}

/// A user's `tracing` subscriber may block or panic. So only `telemetry` calls the subscriber and holds spans.
#[test]
fn only_telemetry_sends_events_and_holds_spans() {
    let mut files = BTreeMap::new();
    visit(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src")), "", &mut files);
    let past_it = ["error!(", "warn!(", "info!(", "debug!(", "trace!(", "event!(", "enabled!(", "Instrument"];
    let tells = |code: &str| past_it.iter().any(|it| code.contains(&format!("tracing::{it}")));
    let holds = |code: &str| code.contains(": Span,") || code.contains("tracing::{Instrument");
    let wrong = files.iter().filter(|(file, code)| folder(file) != "telemetry" && (tells(code) || holds(code)));
    assert_eq!(wrong.map(|(file, _)| file).collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(tells(&files["telemetry::log"]));
}

#[test]
fn no_hosts_time_of_day_decides_whether_work_is_due() {
    let mut files = BTreeMap::new();
    visit(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src")), "", &mut files);
    let deciding = ["recipes::once", "queue::metadata", "lock::admin", "session::node::state"];
    let asks = |file: &str| ["SystemTime::now", "Instant::now"].iter().any(|now| files[file].contains(now));
    assert_eq!(deciding.into_iter().filter(|file| asks(file)).collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(asks("contend::acquisition"), "the time in a node's data is from the host's clock");
}

/// A call on `self` of a method in another file needs no import, and once hid a circle of two files.
#[test]
fn a_call_through_self_counts_as_an_import() {
    let calls = calls_through_self();
    let knows = |file: &str, other: &str| calls[file].contains(other);
    assert!(knows("contend::exchange", "contend::contender"), "{calls:?}");
    assert!(!knows("contend::contender", "contend::exchange"));
}
