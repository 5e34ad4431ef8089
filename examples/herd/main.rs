//! Empties the same queue with each of three ways to lock, and measures what each release costs the server. The example needs a
//! server that answers `mntr`.
//!
//! ```text
//! cargo run --release --example herd -- --zookeeper 127.0.0.1:2181 --n 200 --plot herd.svg
//! ```
//!
//! Contenders queue up behind a gate, which then opens. Each holder keeps the lock until all others are waiting again,
//! and then releases it. The cost of a release is the rise of the server's counters (`mntr`), divided by the number of
//! releases.

#[path = "../common/mod.rs"]
mod common;
mod plot;
mod ways;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::meter::{self, Meter};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use ways::{Scene, Way};
use zk_rwlock::ZooKeeper;

/// Empty the same queue with three ways to lock, and measure what each release costs the server
#[derive(clap::Parser)]
struct Arguments {
    /// The server (or servers, separated by commas), which must answer mntr
    #[arg(long, value_name = "HOST:PORT", value_parser = common::servers)]
    zookeeper: String,
    /// The number of contenders in the queue
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    n: u32,
    /// The number of measured releases, while the queue grows shorter [default: the number of contenders]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    releases: Option<u32>,
    /// The number of sessions that the contenders share [default: one each, as separate processes would have, or 50 if
    /// the server accepts fewer connections from one address]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sessions: Option<u32>,
    /// How long each contender holds the lock, at least
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    hold: u64,
    /// Measure an eighth, a quarter and a half of the contenders too, and draw the results into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print one line of JSON for each way instead of a table
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit(run(common::arguments()).await)
}

async fn run(arguments: Arguments) -> common::Result<()> {
    let (servers, root) = match arguments.zookeeper.split_once('/') {
        Some((servers, root)) => (servers, format!("/{}", root.trim_end_matches('/'))),
        None => (arguments.zookeeper.as_str(), String::new()),
    };
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let directory = format!("{}/zk-rwlock-examples/herd/{since_epoch}", root.trim_end_matches('/'));
    // zk-rwlock connects first, because it reports an unreachable server in one line.
    ZooKeeper::builder().connect_timeout(Duration::from_secs(3)).connect(servers).await?.close().await;
    let allowed = meter::connections_allowed(servers)?;

    let n = arguments.n as usize;
    let mut sizes = vec![n];
    if arguments.plot.is_some() {
        sizes = vec![n / 8, n / 4, n / 2, n];
        sizes.retain(|size| *size > 0);
        sizes.dedup();
    }
    let mut all = Vec::new();
    for n in sizes {
        // The gate needs one session more, and other programs may be connected from this address, too.
        let room = allowed.is_none_or(|allowed| n + 10 <= allowed);
        let sessions = arguments.sessions.map_or(if room { n } else { n.min(50) }, |sessions| n.min(sessions as usize));
        let releases = arguments.releases.map_or(n, |releases| n.min(releases as usize));
        let scene = Scene { servers: servers.to_owned(), directory: directory.clone(), n, sessions };
        if !arguments.json {
            println!("{}", heading(&scene, releases));
        }
        for way in Way::ALL {
            let cost = measure(way, &scene, releases, Duration::from_millis(arguments.hold)).await?;
            println!("{}", if arguments.json { cost.json().to_string() } else { cost.row() });
            all.push(cost);
        }
        if !arguments.json {
            println!();
        }
    }
    if !arguments.json {
        println!("answered: the bytes of the answers; those of notifications no server counts");
        println!("notified: once for each session, which tells all of its contenders that wait for the same");
        println!(
            "ours: one notification wakes the next contender, the other one ends the releaser's watch on its own node"
        );
    }
    if let Some(file) = arguments.plot {
        std::fs::write(&file, plot::svg(&all)).map_err(|error| format!("{}: {error}", file.display()))?;
        if !arguments.json {
            println!("drawn into {}", file.display());
        }
    }
    Ok(())
}

/// The average cost of a release. `n` contenders wait before the first release.
#[derive(Debug)]
struct Cost {
    way: Way,
    n: usize,
    sessions: usize,
    releases: usize,
    /// The watches that the server fired. Contenders of one session that watch the same node share a watch.
    notifications: f64,
    /// All requests that the server received: reads, writes, the removal of watches, pings.
    requests: f64,
    reads: f64,
    writes: f64,
    bytes_in: f64,
    /// The bytes of the answers. The server does not count the bytes of notifications.
    bytes_out: f64,
    /// The median time from the release until the next contender learned that it holds the lock.
    granted: Duration,
    /// The median time from the release until all other contenders were waiting again, too.
    settled: Duration,
}

/// Empties the queue one release at a time. The next release follows only when all contenders that the last release
/// woke wait again, so the counts do not depend on the speed of this machine.
async fn measure(way: Way, scene: &Scene, releases: usize, hold: Duration) -> common::Result<Cost> {
    let mut line = ways::queue_up(way, scene).await?;
    meter::quiet(&scene.servers, scene.sessions).await?;
    let (mut granted, mut settled) = (Vec::new(), Vec::new());
    let meter = Meter::start(&scene.servers)?;
    for released in 1..=releases {
        let before = Instant::now();
        let at = line.release_and_wait_for_the_next().await?;
        granted.push(at - before);
        line.all_wait(scene.n - released).await?;
        settled.push(before.elapsed());
        sleep(hold).await;
    }
    let counted = meter.stop()?;
    line.disperse().await;

    let per_release = |name: &str| -> common::Result<f64> { Ok(counted.of(name)? as f64 / releases as f64) };
    let mut notifications = 0.0;
    for change in ["created", "deleted", "changed", "children"] {
        notifications += per_release(&format!("sum_node_{change}_watch_count"))?;
    }
    Ok(Cost {
        way,
        n: scene.n,
        sessions: scene.sessions,
        releases,
        notifications,
        requests: per_release("packets_received")?,
        reads: per_release("cnt_readlatency")?,
        writes: per_release("cnt_updatelatency")?,
        bytes_in: per_release("bytes_received_count")?,
        bytes_out: per_release("response_bytes")?,
        granted: median(granted),
        settled: median(settled),
    })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn heading(scene: &Scene, releases: usize) -> String {
    let Scene { n, sessions, .. } = scene;
    // Before the first release n contenders wait, before the next one n - 1. This is the average over all releases.
    let waiting = (2 * n - releases + 1) as f64 / 2.0;
    format!(
        "{n} contenders on {sessions} sessions, {releases} releases; {waiting:.1} waited at a release, on average. \
         Per release:\n{:<34}{:>10}{:>10}{:>9}{:>9}{:>11}{:>12}{:>15}{:>17}",
        "", "notified", "requests", "reads", "writes", "bytes in", "answered", "next granted", "all wait again"
    )
}

impl Cost {
    fn row(&self) -> String {
        let millis = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
        format!(
            "{:<34}{:>10.1}{:>10.1}{:>9.1}{:>9.1}{:>11.0}{:>12.0}{:>15}{:>17}",
            self.way.title(),
            self.notifications,
            self.requests,
            self.reads,
            self.writes,
            self.bytes_in,
            self.bytes_out,
            millis(self.granted),
            millis(self.settled)
        )
    }

    fn json(&self) -> Value {
        json!({
            "way": self.way.name(),
            "n": self.n,
            "sessions": self.sessions,
            "releases": self.releases,
            "notifications": self.notifications,
            "requests": self.requests,
            "reads": self.reads,
            "writes": self.writes,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "granted_us": self.granted.as_secs_f64() * 1e6,
            "settled_us": self.settled.as_secs_f64() * 1e6,
        })
    }
}
