//! Tests of `zklock --max-hold`, which limits how long a command may hold the lock.

use support::scene::*;
use support::server::shared_server;
use tokio::time::Instant;
use zk_rwlock::Semaphore;

use crate::{Running, immortal, last_stamp, run, scratch, server_lock, session_of, zklock};

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LIMIT: Duration = Duration::from_secs(1);

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970").as_nanos()
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_command_is_killed_before_the_next_starts() {
    let path = "/zklock/limited";
    let (_zk, lock) = server_lock(path).await;
    let files = scratch();
    let stamps = files.path().join("stamps");
    let began = Instant::now();
    let script = immortal(&stamps);
    let hangs = [&session_of("4s")[..], &["--max-hold", "1s", path, "-c", &script]].concat();
    let holder = Running::start(zklock(&hangs)).ready().await;
    let next = granted(writer(&lock)).await;
    let granted_at = now();
    assert!(began.elapsed() >= LIMIT);
    let run = holder.ends().await;
    assert_eq!(run.code, Some(75), "{run:#?}");
    assert!(
        run.stderr.contains("held for longer than its limit allows") && run.stderr.contains("was killed"),
        "{run:#?}"
    );
    assert!(u128::from(last_stamp(&stamps)) < granted_at, "the command still ran when the next contender was granted");
    next.release().await.unwrap();
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn max_hold_ends_a_permit_with_term() {
    let zk = connect(&shared_server().address()).await;
    let semaphore = Semaphore::new(&zk, "/zklock/limited-permits", 1).unwrap();
    let command = ["--max-hold", "300ms", "-j", "1", "/zklock/limited-permits", "sleep", "600"];
    let run = run(&command).await;
    assert_eq!(run.code, Some(75), "{run:#?}");
    assert!(run.stderr.contains("ended on TERM"), "{run:#?}");
    soon("a free permit", semaphore.acquire()).await.unwrap().release().await.unwrap();
}

#[support::judged]
async fn a_limit_of_zero_is_refused_and_one_hour_is_not() {
    assert_eq!(run(&["--max-hold", "0", "/zklock/unlimited", "true"]).await.code, Some(64));
    assert_eq!(run(&["--max-hold", "1h", "/zklock/unlimited", "-c", "exit 3"]).await.code, Some(3));
}
