//! The snippets of `docs/serving.md`.

use zk_rwlock::{Loss, Memory};

#[support::judged]
async fn the_recipe() {
    // page: the-recipe
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::watch;
    use tokio::time::sleep;
    use zk_rwlock::{Error, ReadGuard, RwLock};

    /// Whether requests are served. Each request clones the guard, and the drop of the last clone releases the lock.
    #[derive(Clone, Debug)]
    enum Phase {
        Serves(Arc<ReadGuard>),
        /// `/ready` says no. Requests that come before the load balancers notice are still served.
        Drains(Arc<ReadGuard>, String),
        Waits(String),
    }

    /// Serves, makes way for writers and takes a lost lock again, until the client is closed.
    async fn hold_while_serving(lock: RwLock, phase: watch::Sender<Phase>, notice: Duration) -> Error {
        loop {
            let why = match serve_once(&lock, &phase, notice).await {
                Ok(why) => why,
                Err(closed @ Error::Closed(_)) => return closed,
                Err(error) => error.to_string(),
            };
            phase.send_replace(Phase::Waits(why));
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Returns why this instance makes way, or the error if the lock was lost or not granted.
    async fn serve_once(lock: &RwLock, phase: &watch::Sender<Phase>, notice: Duration) -> Result<String, Error> {
        let guard = Arc::new(lock.read().label("serves").await?);
        phase.send_replace(Phase::Serves(Arc::clone(&guard)));
        let why = format!("makes way for {}", guard.contended().await?);
        phase.send_replace(Phase::Drains(Arc::clone(&guard), why.clone()));
        guard.run(sleep(notice)).await?;
        Ok(why)
    }
    // end

    tokio::time::pause();
    let zk = Memory::new();
    let lock = RwLock::new(&zk, "/locks/app").unwrap();
    let (sender, mut phase) = watch::channel(Phase::Waits("starts".to_owned()));
    let serving = tokio::spawn(hold_while_serving(lock, sender, Duration::from_secs(5)));
    let mut guards = Vec::new();
    for _ in 0..2 {
        let Phase::Serves(guard) = phase.wait_for(|it| matches!(it, Phase::Serves(_))).await.unwrap().clone() else {
            unreachable!()
        };
        zk.faults().expire();
        assert!(matches!(guard.lost().await, Loss::SessionOver(_)));
        let why = phase.wait_for(|it| matches!(it, Phase::Waits(_))).await.unwrap().clone();
        assert!(matches!(&why, Phase::Waits(why) if why.contains("lost")), "{why:?}");
        guards.push(guard); // a request that does not notice the loss delays nobody
    }
    let Phase::Serves(request) = phase.wait_for(|it| matches!(it, Phase::Serves(_))).await.unwrap().clone() else {
        unreachable!()
    };
    let other = RwLock::new(&zk.connect(), "/locks/app").unwrap();
    let mut writer = tokio_test::task::spawn(async { other.write().label("maintenance").await });
    assert!(writer.poll().is_pending());
    let drains = phase.wait_for(|it| matches!(it, Phase::Drains(..))).await.unwrap().clone();
    assert!(matches!(&drains, Phase::Drains(guard, why) if guard.is_held() && why.contains("WRITE")), "{drains:?}");
    drop(drains);
    _ = phase.wait_for(|it| matches!(it, Phase::Waits(_))).await.unwrap();
    assert!(request.is_held() && !writer.is_woken(), "a request is in progress");
    drop(request);
    let written = writer.await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert!(matches!(&*phase.borrow(), Phase::Waits(_)), "a writer holds");
    written.release().await.unwrap();
    _ = phase.wait_for(|it| matches!(it, Phase::Serves(_))).await.unwrap();
    zk.faults().heal();
    zk.close().await;
    assert!(matches!(serving.await.unwrap(), Error::Closed(_)));
}
