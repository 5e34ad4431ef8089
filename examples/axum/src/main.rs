//! A web service on axum with locks in its state. It shows probes that report an unreachable ZooKeeper, instances that
//! make way for a migration, and a clean stop that frees every lock immediately. The example needs a server.
//!
//! ```text
//! ZK_HOSTS=127.0.0.1:2181 LISTEN=127.0.0.1:8080 cargo run -p example-axum
//!
//! curl 127.0.0.1:8080/ready                                   # 503 and the reason, if requests cannot be served now
//! curl 127.0.0.1:8080/live                                    # 200 as long as the process answers
//! curl 127.0.0.1:8080/                                        # reads the configuration under the read lock
//! curl -X PUT --data 'good evening' 127.0.0.1:8080/greeting   # changes it under the write lock
//! curl -X POST 127.0.0.1:8080/report                          # one instance at a time; 409 names the instance with it
//! zklock /orders/active -- ./migrate                          # while no instance serves; after it, all serve again
//! ```
//!
//! `examples/kubernetes/deployment.yaml` runs a service with these probes. To start a service of your own, copy this
//! folder and replace the path of zk-rwlock in `Cargo.toml` by its version.

mod service;
mod serving;

use std::convert::Infallible;
use std::env;
use std::future::pending;
use std::process::ExitCode;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;
use zk_rwlock::{Error, RwLock, ZooKeeper};

use service::{Failure, Service};
use serving::{Phase, hold_while_serving};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let servers = variable("ZK_HOSTS", "127.0.0.1:2181");
    let drain = Duration::from_secs(variable("DRAIN_SECONDS", "10").parse()?);
    let report_takes = Duration::from_secs(variable("REPORT_SECONDS", "1").parse()?);
    let notice = Duration::from_secs(variable("NOTICE_SECONDS", "5").parse()?);

    let listener = TcpListener::bind(variable("LISTEN", "127.0.0.1:8080")).await?;
    println!("listens on {}", listener.local_addr()?);
    let offer = watch::Sender::new(Err(Failure::unavailable("no session with ZooKeeper yet")));
    let server = axum::serve(listener, service::router(offer.subscribe()));
    tokio::select! {
        served = server.with_graceful_shutdown(asked_to_stop()).into_future() => served?,
        () = asked_to_stop_before(drain) => eprintln!("requests still run {drain:?} after the signal: they lose their locks"),
        failed = connect_and_hold(&servers, report_takes, notice, &offer) => match failed? {},
    }

    // The end of the session frees every lock that is held, kept between uses, or waited for. Without it, the locks would
    // be free only one session timeout later.
    let service = offer.borrow().clone();
    if let Ok(service) = service {
        service.zk.close().await;
    }
    println!("stopped");
    Ok(())
}

fn variable(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.to_owned())
}

/// Connects, offers the service, and holds its lock. While ZooKeeper is unreachable, this function tries again, and the
/// process is alive but not ready. It returns only an error that another try cannot solve, such as refused credentials
/// or a wrong address.
async fn connect_and_hold(
    servers: &str,
    report_takes: Duration,
    notice: Duration,
    offer: &watch::Sender<std::result::Result<Service, Failure>>,
) -> std::result::Result<Infallible, Error> {
    let set = |outcome| drop(offer.send_replace(outcome));
    loop {
        match ZooKeeper::builder().connect_timeout(Duration::from_secs(3)).connect(servers).await {
            Ok(zk) => {
                let active = RwLock::new(&zk, "/orders/active")?;
                let (phase, seen) = watch::channel(Phase::Waits("waits for /orders/active".to_owned()));
                set(Ok(Service::new(zk, report_takes, seen)?));
                return Err(hold_while_serving(active, phase, notice).await);
            }
            Err(error @ Error::Unreachable(_)) => set(Err(Failure::unavailable(&error.to_string()))),
            Err(error) => return Err(error),
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// Waits for Ctrl-C or SIGTERM. Several tasks may wait concurrently.
async fn asked_to_stop() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return pending().await };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = ctrl_c() => {}
    }
}

async fn asked_to_stop_before(drain: Duration) {
    asked_to_stop().await;
    sleep(drain).await;
}
