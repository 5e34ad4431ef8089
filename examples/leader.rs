//! Leadership: one candidate leads, the others stand by, and an observer sees who leads. Without `--zookeeper` the example
//! needs no server.
//!
//! ```text
//! cargo run --example leader
//! cargo run --example leader -- --zookeeper 127.0.0.1:2181 --candidates 5
//! ```
//!
//! Each candidate leads once, does its work a few times, and steps down. Run the example in two terminals on one
//! server, and kill the process of the leader. The next candidate leads when the killed session has expired.

mod common;

use std::process::ExitCode;
use std::time::Duration;

use common::Client;
use tokio::task::JoinSet;
use tokio::time::sleep;
use zk_rwlock::Leadership;
use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::leadership::Term;

const PATH: &str = "/zk-rwlock-examples/leader";

/// Leadership: one candidate leads, the others stand by, and everybody can see who leads
#[derive(clap::Parser)]
struct Arguments {
    #[command(flatten)]
    backend: common::Backend,
    /// The number of candidates in this process, each with a session of its own
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    candidates: u32,
    /// How often a leader does its work before it steps down
    #[arg(long, default_value_t = 3)]
    beats: u32,
    /// How long a leader waits after each piece of work
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100)]
    interval: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit(run(common::arguments()).await)
}

async fn run(arguments: Arguments) -> common::Result<()> {
    let observer = arguments.backend.connect().await?;
    let observing = tokio::spawn(observe(observer.clone()));
    let (beats, interval) = (arguments.beats, Duration::from_millis(arguments.interval));
    let mut candidates = JoinSet::new();
    for number in 1..=arguments.candidates {
        candidates.spawn(stand(arguments.backend.connect().await?, format!("candidate {number}"), beats, interval));
    }
    common::all(candidates).await?;
    observer.close().await;
    observing.await?
}

/// Runs a candidate. If the candidate loses the leadership, its work is dropped at the next `await`, and the candidate
/// stands again. When the work ends by itself, the candidate steps down.
async fn stand(zk: Client, name: String, beats: u32, interval: Duration) -> common::Result<()> {
    let leadership = Leadership::builder(&zk, PATH).data(&name).build()?;
    leadership.lead(|term| work(&name, term, beats, interval)).await?;
    println!("{name} steps down");
    zk.close().await;
    Ok(())
}

async fn work(name: &str, term: Term, beats: u32, interval: Duration) {
    for beat in 1..=beats {
        // A leader sends the number of its term along with its writes to other systems, so that these systems can
        // refuse a former leader.
        println!("{name} leads in term {}: {beat} of {beats}", term.number());
        sleep(interval).await;
    }
}

/// Prints each change of the leader. An observer is no candidate and delays none.
async fn observe(zk: Client) -> common::Result<()> {
    let mut changes = Leadership::new(&zk, PATH)?.changes();
    while let Some(leader) = changes.next().await {
        match leader? {
            Some(leader) => println!("now leads: {leader}"),
            None => println!("nobody leads"),
        }
    }
    Ok(())
}
