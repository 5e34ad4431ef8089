//! What the service answers: its routes, its probes, and which status an error of the lock becomes.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep;
use zk_rwlock::{Error, RwLock, Shared, ZooKeeper};

/// How long a request waits for a lock. A probe must answer within its own time limit, so it waits for less.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_OF_A_PROBE: Duration = Duration::from_secs(1);

/// The read lock of the configuration is kept between requests for so long, or until another process wants to write.
const KEEP: Duration = Duration::from_secs(60);

/// What all instances read and one of them changes now and then.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Config {
    greeting: String,
}

/// What requests need. All of it is made once: a clone is another handle.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) zk: ZooKeeper,
    config: Shared<Config>,
    report: RwLock,
    report_takes: Duration,
}

impl Service {
    pub(crate) fn new(zk: ZooKeeper, report_takes: Duration) -> Result<Service, Error> {
        let first = || Config { greeting: "good morning".to_owned() };
        let config = Shared::builder(&zk, "/orders/config").initial(first).lock(|lock| lock.keep(KEEP)).build()?;
        let report = RwLock::builder(&zk, "/orders/report").label("POST /report").build()?;
        Ok(Service { zk, config, report, report_takes })
    }
}

/// The service, as soon as there is a session with ZooKeeper; until then the reason why there is none.
pub(crate) type Offered = watch::Receiver<Result<Service, Failure>>;

pub(crate) fn router(offered: Offered) -> Router {
    Router::new()
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/", get(greet))
        .route("/greeting", put(change_greeting))
        .route("/report", post(report))
        .with_state(offered)
}

/// Whether to restart this process: no, if it can say so. When ZooKeeper is away the client comes back by itself, and a
/// restart would lose all locks for certain.
async fn live() -> &'static str {
    "live\n"
}

/// Whether to send requests here: yes, if one could be served now.
async fn ready(State(offered): State<Offered>) -> Result<&'static str, Failure> {
    let service = offered.borrow().clone()?;
    let state = service.zk.state();
    if !state.is_connected() {
        return Err(Failure::unavailable(&state.to_string())); // connecting for 7s: zk1:2181: Connection refused
    }
    // The connection alone says nothing of the lease. While the kept lock is good, this sends nothing.
    drop(service.config.read().timeout(PATIENCE_OF_A_PROBE).await?);
    Ok("ready\n")
}

/// No process changes the configuration between the read and the answer.
async fn greet(State(offered): State<Offered>) -> Result<String, Failure> {
    let service = offered.borrow().clone()?;
    let config = service.config.read().timeout(PATIENCE).await?;
    Ok(format!("{}\n", config.greeting))
}

async fn change_greeting(State(offered): State<Offered>, greeting: String) -> Result<(), Failure> {
    let service = offered.borrow().clone()?;
    let change = move |config: &mut Config| config.greeting.clone_from(&greeting);
    service.config.update(change).timeout(PATIENCE).label("PUT /greeting").await?;
    Ok(())
}

/// Done by one instance at a time. If the client goes away, axum drops this future, and the guard gives the lock back.
async fn report(State(offered): State<Offered>) -> Result<String, Failure> {
    let service = offered.borrow().clone()?;
    let guard = service.report.try_write().timeout(PATIENCE).await?;
    let report = guard.run(write_report(guard.fencing_token(), service.report_takes)).await?;
    guard.release().await?;
    Ok(report)
}

/// Whatever takes a while, in your service. Send the token along with each write to another system.
async fn write_report(token: i64, takes: Duration) -> String {
    sleep(takes).await;
    format!("report {token}\n")
}

/// A status, and what to say.
#[derive(Clone, Debug)]
pub(crate) struct Failure(StatusCode, String);

impl Failure {
    pub(crate) fn unavailable(why: &str) -> Failure {
        Failure(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match error {
            Error::WouldBlock { .. } => StatusCode::CONFLICT, // the error names the holder
            Error::Timeout { .. } | Error::Lost(_) | Error::Evicted(_) => StatusCode::SERVICE_UNAVAILABLE,
            Error::Unreachable(_) | Error::OutcomeUnknown { .. } | Error::Closed(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Failure(status, format!("{error}\n"))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}
