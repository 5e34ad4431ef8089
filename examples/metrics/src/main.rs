//! Prints the metrics of the lock in the format of Prometheus. Without `--zookeeper` the example needs no server.
//!
//! ```text
//! cargo run -p example-metrics
//! cargo run -p example-metrics -- --zookeeper 127.0.0.1:2181
//! cargo run -p example-metrics -- --zookeeper 127.0.0.1:2181 --listen 127.0.0.1:9464
//! ```
//!
//! With `--listen` the example uses some locks for ever, and serves the metrics to a Prometheus server: see
//! `examples/monitoring`.

#[path = "../../common/mod.rs"]
mod common;

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use zk_rwlock::RwLock;

/// Print the metrics of the lock in the format of Prometheus
#[derive(clap::Parser)]
struct Arguments {
    #[command(flatten)]
    backend: common::Backend,
    /// Use some locks for ever, and serve the metrics at this address
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit(run(common::arguments()).await)
}

async fn run(Arguments { backend, listen }: Arguments) -> common::Result<()> {
    // In a real program, the HTTP server answers `/metrics` with the text that this handle renders.
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &[0.001, 0.01, 0.1, 1.0, 10.0, 100.0])?
        .set_buckets_for_metric(Matcher::Suffix("_length".to_owned()), &[0.0, 1.0, 10.0, 100.0, 1000.0])?;
    let prometheus = builder.install_recorder()?;
    zk_rwlock::metrics::describe();
    if let Some(address) = listen {
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(TcpListener::bind(address).await?, prometheus));
        (0..4).for_each(|number| _ = tasks.spawn(use_locks(backend.clone(), number)));
        return common::all(tasks).await;
    }

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

/// Answers each request with the metrics. A real program has an HTTP server.
async fn serve(listener: TcpListener, prometheus: PrometheusHandle) -> common::Result<()> {
    loop {
        let (mut client, _) = listener.accept().await?;
        let _request = timeout(Duration::from_secs(1), client.read(&mut [0; 4096])).await;
        prometheus.run_upkeep();
        let text = prometheus.render();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\nconnection: close\r\n";
        // The errors are ignored, because a client that does not read its answer does not need it.
        let answer = format!("{head}content-length: {}\r\n\r\n{text}", text.len());
        let _written = timeout(Duration::from_secs(1), client.write_all(answer.as_bytes())).await;
    }
}

/// Uses a lock of a configuration and three locks of orders, as a busy process might, in one session after another. The process
/// with the number 3 sometimes holds the lock of the configuration for too long.
async fn use_locks(backend: common::Backend, process: u64) -> common::Result<()> {
    for round in 0.. {
        let Ok(zk) = backend.connect().await else { continue };
        for turn in 0..20 {
            let order = format!("/locks/orders/{}", turn % 3);
            let order = RwLock::builder(&zk, order).metrics_by_path(|_| "/locks/orders".to_owned()).build()?;
            let config = RwLock::builder(&zk, "/locks/config").metrics_by_path(str::to_owned);
            let config = config.max_hold(Duration::from_millis(200)).build()?;
            // The errors are ignored, because a lost connection or lock shows in the metrics.
            if process == 3 {
                let Ok(guard) = config.write().await else { continue };
                sleep(Duration::from_millis(if turn == 0 && round % 2 == 0 { 400 } else { 50 })).await;
                drop(guard);
                sleep(Duration::from_millis(500)).await;
                let _taken = config.try_write().await;
            } else {
                let _read = config.read().timeout(Duration::from_millis(100)).await;
                let Ok(guard) = order.write().await else { continue };
                sleep(Duration::from_millis(20 * (process + 1))).await;
                let _released = guard.release().await;
            }
        }
        zk.close().await;
    }
    Ok(())
}
