//! Tests of a semaphore on many threads. An acquisition takes one or several permits, is dropped at any poll, or is lost.

use std::sync::Arc;

use shuttle::future::block_on;
use zk_rwlock::{Error, Semaphore};

use crate::explore::explore;
use crate::locks::{LONG, cut_short, troubles};
use crate::witness::Witness;
use crate::world::{World, draw, spawn, warned};

const PATH: &str = "/pool";
const PERMITS: u32 = 2;

const KINDS: usize = 5;

async fn one_use(kind: usize, pool: &Semaphore, witness: &Witness) -> Result<(), Error> {
    let count = if draw(3) == 0 { PERMITS } else { 1 };
    match kind {
        0 => drop(witness.works(pool.acquire_many(count).await?)),
        1 => witness.works(pool.acquire_many(count).await?).release().await?,
        2 => match pool.acquire_many(count).timeout(LONG).await {
            Err(Error::Timeout { .. }) => {}
            granted => drop(witness.works(granted?)),
        },
        3 => match pool.try_acquire().await {
            Err(Error::WouldBlock { .. } | Error::Unreachable(_)) => {}
            granted => drop(witness.works(granted?)),
        },
        _ => drop(cut_short(draw(10), pool.acquire_many(count)).await.transpose()?.map(|it| witness.works(it))),
    }
    Ok(())
}

fn threads_take_permits(has_losses: bool) {
    let (world, witness) = (World::new(), Witness::of_permits(2));
    let clients = [world.client(), world.client()];
    let pools = [0, 1].map(|of| {
        Semaphore::builder(&clients[of], PATH)
            .permits(PERMITS)
            .lock(|lock| lock.host("h"))
            .lock(|lock| lock.warn_after_waiting(warned()))
            .build()
            .expect("a semaphore")
    });
    let kinds = [draw(KINDS), draw(KINDS)];
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (pool, witness) = (pools[draw(2)].clone(), Arc::clone(&witness));
            spawn(move || {
                for _ in 0..2 {
                    let answer = block_on(one_use(kinds[draw(2)], &pool, &witness));
                    assert!(has_losses || answer.is_ok(), "{answer:?}");
                }
            })
        })
        .collect();
    drop(pools);
    if has_losses {
        troubles(&clients);
    }
    workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    world.ends(&["/pool/queue", "/pool/permits"]);
}

#[test]
fn threads_never_hold_too_many_permits_or_hang() {
    explore(1_000, || threads_take_permits(false));
}

#[test]
fn threads_that_lose_permits_never_take_too_many() {
    explore(1_000, || threads_take_permits(true));
}
