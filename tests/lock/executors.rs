//! The calls of a typical program on a real server, under each executor that the documentation names.

use std::future::IntoFuture;
use std::time::Duration;

use futures::join;
use support::server::shared_server;
use tokio::sync::Notify;
use zk_rwlock::leadership::Term;
use zk_rwlock::{Error, Leadership, RwLock, ZooKeeper};

/// Makes the calls of a typical program, some of them concurrently.
async fn round(directory: &str) -> Result<(), Error> {
    let zk = ZooKeeper::connect(&shared_server().address()).await?;
    let lock = RwLock::new(&zk, directory)?;
    let held = lock.write().await?;
    let late = lock.read().timeout(Duration::from_millis(50)).await.unwrap_err();
    assert!(late.is_timeout(), "{late}");
    let hand_over = async {
        while lock.queue().await?.waiters().count() < 1 {}
        held.release().await
    };
    let (next, released) = join!(lock.write().into_future(), hand_over);
    released?;
    let reader = next?.downgrade().await?;
    let (one, other) = join!(lock.try_read().timeout(Duration::from_secs(20)), lock.read().into_future());
    drop((reader, one?, other?));
    lock.write().await?.release().await?;
    let builder = Leadership::builder(&zk, format!("{directory}/leader"));
    let leadership = &builder.health(Duration::from_millis(5), || async { true }).build()?;
    let mut changes = leadership.changes();
    let none = changes.next().await.expect("open")?;
    let seen = Notify::new();
    let work = async |term: Term| {
        seen.notified().await;
        Ok::<_, Error>((term.number(), leadership.leader().await?.map(|it| it.term)))
    };
    let observe = async {
        let leader = changes.next().await.expect("open");
        seen.notify_one();
        leader
    };
    let (led, reported) = join!(leadership.lead(work), observe);
    let (term, leader) = led?.expect("not stopped")?;
    assert_eq!((none, leader, reported?.map(|it| it.term)), (None, Some(term), Some(term)));
    zk.close().await;
    Ok(())
}

#[support::judged]
fn under_tokio_with_many_threads() {
    tokio::runtime::Builder::new_multi_thread().build().unwrap().block_on(round("/executors/many")).unwrap();
}

/// The executor gives the lock neither tokio's timers nor its network.
#[support::judged]
fn under_tokio_with_one_thread_and_nothing_enabled() {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(round("/executors/one")).unwrap();
}

#[support::judged]
fn under_smol() {
    smol::block_on(async { smol::spawn(round("/executors/smol")).await }).unwrap();
}

#[support::judged]
fn under_the_executor_of_futures() {
    futures::executor::block_on(round("/executors/futures")).unwrap();
}
