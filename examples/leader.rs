//! Leadership: one candidate leads, the others wait for their turn, and everybody can see who leads.
//!
//! ```text
//! cargo run --example leader
//! cargo run --example leader -- --zookeeper 127.0.0.1:2181 --candidates 5
//! ```
//!
//! Each candidate leads once, does its work a few times, and steps down. On the embedded ensemble the first leader
//! loses its session meanwhile, and leads again when the others have led. An observer prints who leads. The leader shows
//! the number of its term with each write, and what it writes to refuses a leader of the past. Run it in two terminals on
//! one server, and kill the process that leads: the next leader takes over when the session has expired.

mod common;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::Client;
use tokio::task::JoinSet;
use tokio::time::sleep;
use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{Leadership, Memory, Term};

const PATH: &str = "/zk-rwlock-examples/leader";

/// Leadership: one candidate leads, the others wait for their turn, and everybody can see who leads
#[derive(clap::Parser)]
struct Arguments {
    #[command(flatten)]
    backend: common::Backend,
    /// How many candidates this process runs, each with a session of its own
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    candidates: u32,
    /// How often a leader does its work before it steps down
    #[arg(long, default_value_t = 3)]
    beats: u32,
    /// How long it waits between
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100)]
    interval: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit(run(common::arguments()).await)
}

async fn run(arguments: Arguments) -> common::Result<()> {
    let resource = Arc::new(Resource::default());
    let observer = arguments.backend.connect().await?;
    let observing = tokio::spawn(observe(Arc::clone(&observer)));
    let mut candidates = JoinSet::new();
    for number in 1..=arguments.candidates {
        // The client of the first leader is kept here too, so that its session can be expired.
        let embedded = arguments.backend.embedded();
        let zk = match &embedded {
            Some(memory) => Arc::new(memory.clone()),
            None => arguments.backend.connect().await?,
        };
        let candidate = Candidate {
            name: format!("candidate {number}"),
            zk,
            embedded,
            resource: Arc::clone(&resource),
            beats: arguments.beats,
            interval: Duration::from_millis(arguments.interval),
        };
        candidates.spawn(candidate.run());
    }
    common::all(candidates).await?;
    observer.close().await;
    observing.await??;
    println!("terms: {}, one after the other, and never two leaders at once", resource.terms());
    Ok(())
}

struct Candidate {
    name: String,
    zk: Client,
    /// The same client again, when its session can be expired.
    embedded: Option<Memory>,
    resource: Arc<Resource>,
    beats: u32,
    interval: Duration,
}

impl Candidate {
    /// Leads to the end of the work, in a second term if the first one is lost.
    async fn run(self) -> common::Result<()> {
        let leadership = Leadership::builder(&self.zk, PATH).data(&self.name).build()?;
        if let Some(done) = leadership.lead(|term| self.work(term)).await? {
            done?;
            println!("{} steps down", self.name);
        }
        self.zk.close().await;
        Ok(())
    }

    /// Dropped at the next `await` once leadership is lost.
    async fn work(&self, term: Term) -> common::Result<()> {
        println!("{} leads, in term {}", self.name, term.number());
        for beat in 1..=self.beats {
            self.resource.write(term.number())?;
            println!("{} has done its work in term {}, {beat} of {}", self.name, term.number(), self.beats);
            if let Some(memory) = self.embedded.as_ref().filter(|_| beat > 1 && self.resource.is_first(term.number())) {
                println!("the ensemble gives up the session of {}", self.name);
                memory.expire();
            }
            sleep(self.interval).await;
        }
        Ok(())
    }
}

/// Prints who leads whenever that changes. It is no candidate, and disturbs none.
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

/// What only the leader may write to. It does not ask who leads: it refuses every term but the newest it has seen.
#[derive(Default)]
struct Resource {
    terms: Mutex<Vec<i64>>,
}

impl Resource {
    fn write(&self, term: i64) -> common::Result<()> {
        let mut terms = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        match terms.last() {
            Some(newest) if term < *newest => return Err(format!("term {term} wrote after term {newest}").into()),
            Some(newest) if term == *newest => {}
            _ => terms.push(term),
        }
        Ok(())
    }

    fn is_first(&self, term: i64) -> bool {
        self.terms.lock().unwrap_or_else(PoisonError::into_inner).first() == Some(&term)
    }

    fn terms(&self) -> usize {
        self.terms.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
