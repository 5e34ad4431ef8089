//! The routes and probes of the service, and the HTTP status for each error of the lock.

use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep;
use zk_rwlock::{Error, RwLock, Shared, ZooKeeper};

use crate::serving::Phase;

/// How long a request waits for a lock. A probe waits less, because it must answer within its own time limit.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the read lock of the configuration is kept between requests. The process gives the lock up earlier if
/// another process waits to write.
const KEEP: Duration = Duration::from_secs(60);

/// The configuration. All instances read it, and any instance may change it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Config {
    greeting: String,
}

/// The state that requests need. All clones share one session and its locks.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) zk: ZooKeeper,
    config: Shared<Config>,
    report: RwLock,
    report_takes: Duration,
    phase: watch::Receiver<Phase>,
}

impl Service {
    pub(crate) fn new(zk: ZooKeeper, report_takes: Duration, phase: watch::Receiver<Phase>) -> Result<Service, Error> {
        let first = || Config { greeting: "good morning".to_owned() };
        let config = Shared::builder(&zk, "/orders/config").initial(first).lock(|lock| lock.keep(KEEP)).build()?;
        let report = RwLock::builder(&zk, "/orders/report").label("POST /report").build()?;
        Ok(Service { zk, config, report, report_takes, phase })
    }
}

/// The service, or the reason why there is no session with ZooKeeper yet.
pub(crate) type Offered = watch::Receiver<Result<Service, Failure>>;

pub(crate) fn router(offered: Offered) -> Router {
    Router::new()
        .route("/", get(greet))
        .route("/greeting", put(change_greeting))
        .route("/report", post(report))
        .route_layer(from_fn_with_state(offered.clone(), while_held))
        .route("/live", get(live))
        .route("/ready", get(ready))
        .with_state(offered)
}

/// The liveness probe. It fails only if the process cannot answer. While ZooKeeper is unreachable the client reconnects
/// by itself, and a restart would lose all locks.
async fn live() -> &'static str {
    "live\n"
}

/// The readiness probe. It succeeds if a request could be served now.
async fn ready(State(offered): State<Offered>) -> Result<&'static str, Failure> {
    let service = offered.borrow().clone()?;
    let state = service.zk.state();
    if !state.is_connected() {
        return Err(Failure::unavailable(&state.to_string())); // connecting for 7s: zk1:2181: Connection refused
    }
    match &*service.phase.borrow() {
        Phase::Serves(_) => {}
        Phase::Drains(_, why) | Phase::Waits(why) => return Err(Failure::unavailable(why)),
    }
    // A connection does not prove a valid lease, so the probe takes the read lock. While the kept lock is valid, taking
    // it sends no request.
    drop(service.config.read().timeout(PROBE_TIMEOUT).await?);
    Ok("ready\n")
}

/// Serves a request while this instance holds its lock. The work is dropped if the lock is lost.
async fn while_held(State(offered): State<Offered>, request: Request, next: Next) -> Result<Response, Failure> {
    let service = offered.borrow().clone()?;
    let phase = service.phase.borrow().clone();
    match phase {
        Phase::Serves(guard) | Phase::Drains(guard, _) => Ok(guard.run(next.run(request)).await?),
        Phase::Waits(why) => Err(Failure::unavailable(&why)),
    }
}

/// Reads the configuration. No process can change it before the answer is complete.
async fn greet(State(offered): State<Offered>) -> Result<String, Failure> {
    let service = offered.borrow().clone()?;
    let config = service.config.read().timeout(LOCK_TIMEOUT).await?;
    Ok(format!("{}\n", config.greeting))
}

async fn change_greeting(State(offered): State<Offered>, greeting: String) -> Result<(), Failure> {
    let service = offered.borrow().clone()?;
    let change = move |config: &mut Config| config.greeting.clone_from(&greeting);
    service.config.update(change).timeout(LOCK_TIMEOUT).label("PUT /greeting").await?;
    Ok(())
}

/// Makes a report, in one instance at a time. If the client disconnects, axum drops this future, and the guard releases
/// the lock.
async fn report(State(offered): State<Offered>) -> Result<String, Failure> {
    let service = offered.borrow().clone()?;
    let guard = service.report.try_write().timeout(LOCK_TIMEOUT).await?;
    let report = guard.run(write_report(guard.fencing_token(), service.report_takes)).await?;
    guard.release().await?;
    Ok(report)
}

/// Stands for the slow work of a service. A real service sends the token along with each write to another system.
async fn write_report(token: i64, takes: Duration) -> String {
    sleep(takes).await;
    format!("report {token}\n")
}

/// The HTTP status and the message of an answer that reports an error.
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
