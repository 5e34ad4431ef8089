//! Processes that are killed at every point of a commit: the value is the old one or the new one, and never a mixture.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use zk_rwlock::Shared;

use support::process::{Process, role, say};
use support::safe;
use support::scene::{SOON, connect, connect_with, within};
use support::server::shared_server;
use support::wire::{Close, Fault, Frames, Proxy, Rule};

/// The session timeout of the children. The lock of a killed child becomes free after that time.
const SHORT: Duration = Duration::from_secs(1);

/// The number of runs: a child is killed at each of its first 16 frames in one direction. A few commits need that many
/// frames.
const POINTS: u64 = 16;

/// Two matching halves, with enough data between them to need several packets.
#[derive(Serialize, Deserialize)]
struct Halves {
    left: u64,
    between: String,
    right: u64,
}

impl Halves {
    fn of(number: u64) -> Halves {
        Halves { left: number, between: number.to_string().repeat(5000), right: number }
    }

    fn number(&self) -> u64 {
        assert_eq!((self.left, &self.between), (self.right, &self.left.to_string().repeat(5000)));
        self.left
    }
}

/// The child process: commits rising numbers and prints each, until it is killed.
#[test]
fn the_child_process_of_other_tests() {
    let Some(role) = role() else { return };
    let (server, path) = role.split_once(' ').expect("a server and a path");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let zk = connect_with(server, SHORT).await;
        let shared: Shared<Halves> = Shared::builder(&zk, path).initial(|| Halves::of(0)).build().unwrap();
        loop {
            let mut guard = shared.write().await.unwrap();
            *guard = Halves::of(guard.number() + 1);
            guard.commit().await.unwrap();
            say(&guard.left.to_string());
            guard.release().await.unwrap();
        }
    });
}

/// Runs a child until the fault has happened, kills the child, and checks the value that is left.
async fn killed_at(path: &str, fault: impl FnOnce(&Proxy) -> Fault) {
    let wire = Proxy::start(shared_server().address());
    let zk = connect(&shared_server().address()).await;
    let shared: Shared<Halves> = Shared::builder(&zk, path).initial(|| Halves::of(0)).build().unwrap();
    assert_eq!(shared.read().await.unwrap().number(), 0);
    let fault = fault(&wire);
    let mut child = Process::start(module_path!(), &format!("{} {path}", wire.address()));
    within(SOON, path, fault.happens()).await;
    child.signal("KILL");
    let said = tokio::task::spawn_blocking(move || child.said().last().map_or(0, |said| said.parse().unwrap()));
    let said: u64 = said.await.unwrap();

    // If the child held the lock, the grant comes after the ensemble has expired the child's session.
    let mut guard = within(SOON, path, shared.write()).await.unwrap();
    let found = guard.number();
    safe!(found == said || found == said + 1, "{path}: it said {said}, and left {found}");
    *guard = Halves::of(100);
    guard.commit().await.unwrap();
    assert_eq!(guard.downgrade().await.unwrap().number(), 100);
}

async fn killed_at_each_point(name: &'static str, rule: fn(u64) -> Rule) {
    let mut points = JoinSet::new();
    for point in 1..=POINTS {
        points.spawn(async move {
            killed_at(&format!("/shared/{name}-{point}"), |wire| wire.apply(rule(point))).await;
        });
        // At most four children run at a time, so that a machine with two cores is not overloaded.
        if point % 4 == 0 {
            while let Some(ended) = points.join_next().await {
                ended.unwrap();
            }
        }
    }
}

#[support::judged]
async fn a_process_killed_at_a_request_leaves_a_whole_value() {
    killed_at_each_point("killed-request", |point| Rule::on(Frames::from_clients()).nth(point)).await;
}

#[support::judged]
async fn a_process_killed_at_a_reply_leaves_a_whole_value() {
    killed_at_each_point("killed-answer", |point| Rule::on(Frames::from_server()).nth(point).lose()).await;
}

#[support::judged]
async fn a_process_killed_amid_a_request_leaves_one_value() {
    let rule = |point: u64| Rule::on(Frames::from_clients()).nth(point).close(100 + 1000 * point as usize, Close::Rst);
    killed_at_each_point("killed-half", rule).await;
}
