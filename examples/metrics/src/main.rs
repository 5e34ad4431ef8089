//! Prints the metrics of the lock in the format of Prometheus. Without `--zookeeper` it needs no server.
//!
//! ```text
//! cargo run -p example-metrics
//! cargo run -p example-metrics -- --zookeeper 127.0.0.1:2181
//! ```

#[path = "../../common/mod.rs"]
mod common;

use std::future::IntoFuture;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::time::timeout;
use zk_rwlock::RwLock;

/// Print the metrics of the lock in the format of Prometheus
#[derive(clap::Parser)]
struct Arguments {
    #[command(flatten)]
    backend: common::Backend,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit(run(common::arguments()).await)
}

async fn run(Arguments { backend }: Arguments) -> common::Result<()> {
    // In a real program, the HTTP server answers `/metrics` with the text that this handle renders.
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &[0.001, 0.01, 0.1, 1.0, 10.0, 100.0])?
        .set_buckets_for_metric(Matcher::Suffix("_length".to_owned()), &[0.0, 1.0, 10.0, 100.0, 1000.0])?;
    let prometheus = builder.install_recorder()?;
    zk_rwlock::metrics::describe();

    let (zk, other) = (backend.connect().await?, backend.connect().await?);
    let path = format!("/zk-rwlock-examples/metrics-{}", std::process::id()); // a lock of this run's own
    let (lock, beside) = (RwLock::new(&zk, &path)?, RwLock::new(&other, &path)?);

    let held = lock.write().await?;
    assert!(beside.try_read().await.is_err_and(|error| error.is_would_block()));
    assert!(beside.write().timeout(Duration::from_millis(50)).await.is_err_and(|error| error.is_timeout()));
    held.release().await?;
    for _ in 0..3 {
        lock.read().await?.release().await?;
    }

    // The metrics are read while one contender holds the lock and another contender waits.
    let held = lock.write().await?;
    let mut waits = pin!(beside.read().into_future());
    assert!(timeout(Duration::from_millis(50), &mut waits).await.is_err());
    zk_rwlock::metrics::flush(); // before the program reads: the recorder is told by a thread of its own
    prometheus.run_upkeep();
    print!("{}", prometheus.render());
    held.release().await?;
    waits.await?.release().await?;
    Ok(())
}
