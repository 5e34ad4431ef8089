//! Tests of the output and the exit codes of the examples, on the embedded ensemble and on a server.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;
use zk_rwlock::{RwLock, ZooKeeper};

use support::port::Port;
use support::program::example;
use support::server::{Server, shared_server};

/// The examples that are run with a wrong command line and without a server.
const ALL: [&str; 7] = ["quickstart", "shared_config", "batch_worker", "leader", "kept_reads", "herd", "metrics"];

/// The time limit for one example, far above what any example needs.
const LIMIT: Duration = Duration::from_secs(60);

/// The backend that an example uses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Embedded,
    Server,
}

#[derive(Debug)]
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl On {
    /// Returns the command-line arguments that select the backend. On the server, each check has a lock path of its
    /// own.
    fn arguments(self, check: &str) -> Vec<String> {
        match self {
            On::Embedded => Vec::new(),
            On::Server => vec!["--zookeeper".to_owned(), format!("{}/{check}", shared_server().address())],
        }
    }
}

impl Run {
    #[track_caller]
    fn succeeded(&self) -> &Run {
        assert_eq!(self.code, Some(0), "{self:#?}");
        assert_eq!(self.stderr, "", "{self:#?}");
        self
    }

    #[track_caller]
    fn says(&self, text: &str) -> &Run {
        assert!(self.stdout.contains(text), "it does not say {text:?}: {self:#?}");
        self
    }

    #[track_caller]
    fn says_in_lines(&self, text: &str, lines: usize) -> &Run {
        let found = self.stdout.lines().filter(|line| line.contains(text)).count();
        assert_eq!(found, lines, "lines with {text:?} in {self:#?}");
        self
    }
}

async fn run(name: &str, arguments: &[String]) -> Run {
    let output = timeout(LIMIT, example(name).args(arguments).output()).await;
    let output = output.unwrap_or_else(|_| panic!("{name} {arguments:?} did not end")).expect("it can be run");
    let text = |bytes| String::from_utf8(bytes).expect("it prints text");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

async fn quickstart(on: On) {
    run("quickstart", &on.arguments("quickstart"))
        .await
        .succeeded()
        .says("not granted within 300ms: held by READ web-1")
        .says("admin waits at place 3 of 3: held by READ web-1")
        .says_in_lines("WRITE admin", 2)
        .says(", waits behind web-2~")
        .says("this one ")
        .says_in_lines(": free", 2);
}

async fn shared_config(on: On) {
    run("shared_config", &on.arguments("shared_config"))
        .await
        .succeeded()
        .says_in_lines("published version", 12)
        .says_in_lines("published version 12 under fencing token", 1)
        .says_in_lines("read the configuration 15 times, and always found a pair", 4)
        .says("no change was lost");
}

/// Runs the example without the lock, where changes must be lost. Otherwise the check with the lock would prove
/// nothing.
async fn shared_config_without_the_lock(on: On) {
    let mut arguments = on.arguments("shared_config_without_the_lock");
    arguments.extend(["--without-lock", "--changes", "20"].map(str::to_owned));
    let run = run("shared_config", &arguments).await;
    assert_eq!(run.code, Some(1), "{run:#?}");
    assert!(run.stderr.ends_with(" of 80 changes were lost\n"), "{run:#?}");
}

async fn batch_worker(on: On) {
    let run = run("batch_worker", &on.arguments("batch_worker")).await;
    run.succeeded().says_in_lines("has done partition", 8).says("every partition was processed exactly once");
    if on == On::Embedded {
        run.says("worker 1 drops partition 1: the lock was lost: the session expired").says("has done partition 1\n");
    }
}

async fn leader(on: On) {
    let run = run("leader", &on.arguments("leader")).await;
    run.succeeded().says_in_lines("steps down", 3).says("now leads: ").says("\"candidate 1\" in term ");
    let terms: Vec<_> = run.stdout.lines().filter_map(|line| line.split_once(" leads in term ")).collect();
    assert_eq!(terms.len(), 9, "three candidates do their work three times: {terms:?}");
    // Each term has ended before the next begins, so the numbers rise.
    let numbers = terms.iter().map(|(_, rest)| rest.split_once(':').expect("a number").0.parse::<i64>().expect("one"));
    assert!(numbers.is_sorted(), "{terms:?}");
}

async fn kept_reads(on: On) {
    let mut arguments = on.arguments("kept_reads");
    arguments.extend(["--duration", "500ms", "--tasks", "20"].map(str::to_owned));
    run("kept_reads", &arguments)
        .await
        .succeeded()
        .says_in_lines(" reads a second: ", 2)
        .says(" writes, of which the longest waited ")
        .says("; the longest read took ");
    let mut as_json = arguments.clone();
    as_json.push("--json".to_owned());
    let run_as_json = run("kept_reads", &as_json).await;
    let line: Value = serde_json::from_str(&run_as_json.succeeded().stdout).expect("a line of JSON");
    assert_eq!((&line["workload"], &line["peer"], &line["n"]), (&"shared".into(), &"ours-kept".into(), &20.into()));
    assert_eq!(line["extra"]["nodes"], 1, "{line}");
    assert_eq!(line["extra"]["requests_per_op"].is_number(), on == On::Server, "{line}");
    arguments.push("--without-keeping".to_owned());
    let alone = run("kept_reads", &arguments).await;
    alone.succeeded().says_in_lines(" reads a second: ", 2);
    for line in alone.stdout.lines().filter_map(|line| line.split_once(" reads a second: ")) {
        let words: Vec<_> = line.1.split(' ').collect();
        let [reads, "reads", "on", nodes, "nodes"] = words[..] else { panic!("{words:?}") };
        assert_eq!(reads, nodes, "each read has a node of its own");
    }
}

macro_rules! on_both {
    ($($check:ident)*) => {
        mod embedded {
            $(#[support::judged]
            async fn $check() {
                super::$check(super::On::Embedded).await;
            })*
        }

        mod server {
            $(#[support::judged]
            async fn $check() {
                super::$check(super::On::Server).await;
            })*
        }
    };
}

on_both! {
    quickstart
    shared_config
    shared_config_without_the_lock
    batch_worker
    leader
    kept_reads
}

mod with_metrics {
    use std::collections::{BTreeMap, BTreeSet};

    use super::{On, run};

    /// Parses Prometheus' text format as strictly as Prometheus does, and returns the samples by their series.
    #[track_caller]
    fn parsed(text: &str) -> BTreeMap<String, f64> {
        let (mut types, mut helps, mut samples) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let mut last = (String::new(), -1.0);
        assert!(text.ends_with('\n'));
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let name = help.split_once(' ').expect("a name and words").0;
                assert!(helps.insert(name), "{name} has two help texts");
                continue;
            }
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a name and a type");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(types.insert(name, kind).is_none(), "{name} has two types");
                continue;
            }
            let (series, value) = line.rsplit_once(' ').expect("a series and a value");
            let value: f64 = value.parse().expect("a number");
            let (name, labels) = series.split_once('{').map_or((series, ""), |(name, labels)| (name, labels));
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
            let labels = labels.strip_suffix('}').unwrap_or(labels);
            for label in labels.split(',').filter(|label| !label.is_empty()) {
                let (_, text) = label.split_once('=').expect("a name and a value");
                assert!(text.len() > 2 && text.starts_with('"') && text.ends_with('"'), "{line}");
            }
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end).filter(|family| types.get(family) == Some(&"histogram")));
            let family = family.unwrap_or(name);
            assert!(types.contains_key(family) && helps.contains(family), "{line}: it has no type or no help text");
            assert!(types[family] != "counter" || family.ends_with("_total"), "{line}");
            if let Some((of, _)) = series.split_once("le=\"").filter(|_| name.ends_with("_bucket")) {
                assert!(last.0 != of || value >= last.1, "{line}: buckets count what is in those before, too");
                last = (of.to_owned(), value);
            }
            assert!(samples.insert(series.to_owned(), value).is_none(), "{series} comes twice");
        }
        let names: BTreeSet<_> = types.keys().copied().collect();
        assert_eq!(names, helps);
        samples
    }

    async fn metrics(on: On) {
        let run = run("metrics", &on.arguments("metrics")).await;
        let samples = parsed(&run.succeeded().stdout);
        let buckets = samples.keys().filter(|series| series.ends_with("le=\"+Inf\"}")).collect::<Vec<_>>();
        let modes = |histogram: &str| buckets.iter().filter(|bucket| bucket.starts_with(histogram)).count();
        assert_eq!((modes("zk_rwlock_acquire_wait_seconds"), modes("zk_rwlock_hold_seconds")), (2, 2), "{buckets:?}");
        assert!(modes("zk_rwlock_queue_length") > 0, "the first one had to look: {buckets:?}");
        for bucket in buckets {
            let count = bucket.replace("_bucket{", "_count{").replace(",le=\"+Inf\"", "");
            assert_eq!(samples[bucket], samples[&count], "{bucket}");
        }
        for (gauge, mode) in [("waiting", "read"), ("holding", "write")] {
            let present = samples.iter().filter(|(series, _)| series.starts_with(&format!("zk_rwlock_{gauge}{{path=")));
            let present: Vec<_> = present.filter(|(_, value)| **value != 0.0).collect();
            let [(series, 1.0)] = present[..] else { panic!("one is {gauge}: {present:?}") };
            assert!(series.ends_with(&format!(",mode=\"{mode}\"}}")), "{series}");
        }
        run.succeeded()
            .says("# TYPE zk_rwlock_acquire_wait_seconds histogram")
            .says("zk_rwlock_acquire_wait_seconds_bucket{mode=\"read\",le=\"+Inf\"} 3\n")
            .says("zk_rwlock_hold_seconds_count{mode=\"write\"} 1\n")
            .says("zk_rwlock_would_block_total{mode=\"read\"} 1\n")
            .says("zk_rwlock_timeouts_total{mode=\"write\"} 1\n")
            .says("zk_rwlock_removals_pending ");
    }

    on_both! {
        metrics
    }
}

#[support::judged]
async fn two_processes_share_a_batch() {
    let mut arguments = On::Server.arguments("two_processes_share_a_batch");
    arguments.extend(["--batch", "shared", "--workers", "1"].map(str::to_owned));
    let (one, other) = tokio::join!(run("batch_worker", &arguments), run("batch_worker", &arguments));
    one.succeeded().says("every partition was processed exactly once");
    other.succeeded().says("every partition was processed exactly once");
    let done = format!("{}{}", one.stdout, other.stdout);
    for partition in 1..=8 {
        let line = format!("worker 1 has done partition {partition}");
        assert_eq!(done.lines().filter(|found| *found == line).count(), 1, "{line}: {one:#?} {other:#?}");
    }
}

#[support::judged]
async fn a_stopped_batch_worker_frees_its_partitions() {
    for (signal, path) in [("TERM", "stop_by_term"), ("INT", "stop_by_int")] {
        let arguments = On::Server.arguments(path);
        let zk = ZooKeeper::connect(&arguments[1]).await.unwrap();
        let mut command = example("batch_worker");
        let mut child = command.args(&arguments).args(["--work", "600000"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut taken = Vec::new();
        while taken.len() < 3 {
            let line = timeout(LIMIT, lines.next_line()).await.unwrap().unwrap().expect("three workers take one each");
            let partition = line.split_once("takes partition ").and_then(|(_, rest)| rest.split_once(','));
            taken.extend(partition.map(|(partition, _)| partition.to_owned()));
        }
        let path = |partition: &str| format!("/zk-rwlock-examples/batch_worker/partition-{partition}/lock");
        for partition in &taken {
            let lock = RwLock::new(&zk, path(partition)).unwrap();
            assert_eq!(lock.queue().await.unwrap().holders().count(), 1, "partition {partition}");
        }

        let pid = child.id().expect("it has not ended").to_string();
        let asked = Instant::now();
        assert!(std::process::Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
        let status = timeout(LIMIT, child.wait()).await.unwrap().unwrap();
        let took = asked.elapsed();

        for partition in &taken {
            let queue = RwLock::new(&zk, path(partition)).unwrap().queue().await.unwrap();
            assert!(queue.members.is_empty(), "after SIG{signal}: {queue}");
        }
        assert!(status.success(), "SIG{signal}: {status}");
        // The limit is half of the session timeout, so no example waited for a session to expire.
        assert!(took < Duration::from_secs(5), "it took {took:?} to stop");
        let mut last = String::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            last = line;
        }
        assert_eq!(last, "stopped; 8 of 8 partitions are left to others");
    }
}

/// In the naive locks the cost of a release grows with the number of waiters. In ours the cost is constant.
#[support::judged]
async fn only_watching_the_predecessor_wakes_no_herd() {
    // Starts a server of its own, because a server counts the requests of all its clients together.
    let server = tokio::task::spawn_blocking(Server::start).await.expect("the server starts");
    let directory = tempfile::tempdir().expect("a directory can be made");
    let plot = directory.path().join("herd.svg");
    let mut arguments = vec!["--zookeeper".to_owned(), server.address()];
    arguments.extend(["--n", "16", "--json", "--plot", &plot.display().to_string()].map(str::to_owned));
    let run = run("herd", &arguments).await;
    let costs: Vec<Value> =
        run.succeeded().stdout.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let ways: Vec<_> = costs.iter().map(|cost| (cost["n"].as_u64(), cost["way"].as_str())).collect();
    let expected = [2, 4, 8, 16].map(|n| ["one-node", "children", "ours"].map(|way| (Some(n), Some(way))));
    assert_eq!(ways, expected.concat());

    for cost in &costs {
        let number = |name: &str| cost[name].as_f64().unwrap_or_else(|| panic!("no {name} in {cost}"));
        assert_eq!((number("sessions"), number("releases")), (number("n"), number("n")), "{cost}");
        // The mean number of waiters: the first release leaves n, the last one 1.
        let waiting = f64::midpoint(number("n"), 1.0);
        match cost["way"].as_str() {
            // All waiters are notified. The winner may be notified too, if it still watches its own node.
            Some("one-node") => {
                assert!((waiting..=waiting + 1.0).contains(&number("notifications")), "{cost}");
                // Each waiter that is notified sends a create and a read of the node.
                assert!(number("requests") >= 2.0 * waiting, "{cost}");
            }
            Some("children") => {
                assert!((waiting..=waiting + 1.0).contains(&number("notifications")), "{cost}");
                assert!(number("reads") >= waiting, "{cost}");
            }
            // Two contenders are notified: the next contender, and the releasing contender, which watches its own node.
            _ => {
                assert!((1.0..=2.0).contains(&number("notifications")), "{cost}");
                // A release is one transaction. On a slow machine, the next contender also reads its predecessor's
                // node.
                assert!(number("requests") <= 3.0, "{cost}");
                assert!(number("bytes_in") + number("bytes_out") < 1_000.0, "{cost}");
            }
        }
    }
    is_well_formed(&std::fs::read_to_string(plot).expect("the plot was written"));
}

/// Checks that the tags of an SVG picture are balanced below one root element.
#[track_caller]
fn is_well_formed(svg: &str) {
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').unwrap_or_else(|| panic!("<{tag} has no end"));
        let name = tag.split([' ', '/']).find(|name| !name.is_empty()).expect("an element has a name");
        assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
        assert!(!text.contains(['>', '&']), "{text}");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "</{name}>");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        assert!(!open.is_empty() || name == "svg", "<{tag}> is outside");
    }
    assert_eq!(open, Vec::<&str>::new());
    assert_eq!(svg.matches("<polyline ").count(), 9, "three lines in each of three panels");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

/// Checks the output of the example that drives the benchmarks, which `benches/compare.py` reads. With empty input,
/// this program does not wait before its measurement.
#[support::judged]
async fn the_driver_runs_every_workload_without_errors() {
    let server = tokio::task::spawn_blocking(|| shared_server().address()).await.expect("the server starts");
    for (peer, kind, acquisitions, times) in [
        ("raw", "contend", "40", 1),
        ("raw", "drain", "4", 1),
        ("raw", "readers", "4", 1),
        ("zookeeper-client", "contend", "40", 1),
        ("zookeeper-client", "drain", "4", 1),
        ("ours", "contend", "40", 1),
        ("ours", "permits", "40", 1),
        ("ours", "drain", "4", 1),
        ("ours", "readers", "4", 1),
        ("kept", "contend", "40", 1),
        ("kept", "keepers", "2", 2),
        ("local", "contend", "40", 1),
    ] {
        let (sessions, one_in) = ("2", if peer == "zookeeper-client" { "1" } else { "3" });
        let arguments = [peer, &server, kind, "4", acquisitions, sessions, "2", one_in, "1"];
        let run = run("drive", &arguments.map(str::to_owned)).await;
        let lines: Vec<_> = run.succeeded().stdout.lines().collect();
        assert_eq!(lines.len(), 2 * times, "{peer} {kind}: {lines:?}");
        for said in lines.chunks(2) {
            let numbers: Vec<u64> = said[1].split(' ').map(|number| number.parse().expect("a number")).collect();
            assert!(said[0] == "ready" && numbers[0] > 0 && numbers[1..] == [numbers[1], 0], "{peer} {kind}: {said:?}");
        }
    }
}

#[test]
fn the_sources_of_a_program_are_found_despite_a_space() {
    let note = r"/a\ b/target/debug/herd: /a\ b/examples/herd/main.rs /a\ b/src/lib.rs";
    let sources = support::program::sources_in(note);
    assert_eq!(sources, [Path::new("/a b/examples/herd/main.rs"), Path::new("/a b/src/lib.rs")]);
}

#[support::judged]
async fn the_herd_needs_a_server() {
    let run = run("herd", &[]).await;
    assert_eq!(run.code, Some(64), "{run:#?}");
    assert!(run.stderr.contains("--zookeeper <HOST:PORT>") && run.stderr.contains("Usage: herd"), "{run:#?}");
}

#[support::judged]
async fn a_wrong_command_line_ends_with_64_and_the_usage() {
    for example in ALL {
        for wrong in [&["--no-such-option"][..], &["--zookeeper"], &["--zookeeper", "nowhere"], &["argument"]] {
            let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
            let run = run(example, &wrong).await;
            assert_eq!(run.code, Some(64), "{example} {wrong:?}: {run:#?}");
            assert_eq!(run.stdout, "", "{example} {wrong:?}");
            assert!(run.stderr.contains(&format!("Usage: {example}")), "{example} {wrong:?}: {run:#?}");
        }
    }
}

#[support::judged]
async fn help_is_no_error() {
    for example in ALL {
        run(example, &["--help".to_owned()]).await.succeeded().says("--zookeeper <HOST:PORT>");
    }
}

#[support::judged]
async fn a_missing_server_is_reported_in_one_line() {
    let port = Port::reserve();
    let address = port.address();
    for example in ALL {
        let began = Instant::now();
        let run = run(example, &["--zookeeper".to_owned(), address.to_string()]).await;
        assert!(began.elapsed() < Duration::from_secs(10), "{example} took {:?}", began.elapsed());
        assert_eq!(run.code, Some(1), "{example}: {run:#?}");
        let why = format!("no session with {address} within 3s: {address}: Connection refused (os error 111)");
        let expected = format!("error: ZooKeeper cannot be reached: {why}\n");
        assert_eq!(run.stderr, expected, "{example}");
    }
}
