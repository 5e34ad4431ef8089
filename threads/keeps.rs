//! Tests with several uses of one kept node (a node that its process keeps between uses) on several threads. The session
//! is lost, another contender asks for the node before its grant, or a use gives up.

use std::sync::Arc;

use shuttle::future::block_on;
use zk_rwlock::{Error, RwLock};

use crate::explore::explore;
use crate::locks::{LONG, cut_short};
use crate::witness::Witness;
use crate::world::{Client, World, draw, let_others_run, spawn, warned};

const PATH: &str = "/lock";

fn keeping(client: &Client) -> RwLock {
    RwLock::builder(client, PATH).host("h").warn_after_waiting(warned()).keep(LONG).build().expect("a lock")
}

async fn reads_or_writes(lock: &RwLock, witness: &Witness) -> Result<(), Error> {
    match draw(2) {
        0 => drop(witness.works(lock.read().await?)),
        _ => drop(witness.works(lock.write().await?)),
    }
    Ok(())
}

#[test]
fn no_use_begins_under_a_node_whose_session_is_over() {
    explore(500, || {
        let (world, witness) = (World::new(), Witness::of_lock());
        let client = world.client();
        let lock = keeping(&client);
        let users = (0..2).map(|_| {
            let (lock, witness) = (lock.clone(), Arc::clone(&witness));
            spawn(move || {
                for _ in 0..3 {
                    let_others_run(32);
                    // The result is ignored, because the session may end at any moment.
                    let _ = block_on(reads_or_writes(&lock, &witness));
                }
            })
        });
        let users: Vec<_> = users.collect();
        for _ in 0..2 {
            let_others_run(96);
            client.memory.faults().expire();
            let is_held = match draw(2) {
                0 => block_on(lock.read().into_future()).map(|guard| guard.is_held()),
                _ => block_on(lock.write().into_future()).map(|guard| guard.is_held()),
            };
            // The acquisition may have joined an earlier one that failed because the session ended.
            assert!(matches!(is_held, Ok(true) | Err(Error::Evicted(_))), "{is_held:?}");
        }
        users.into_iter().for_each(|user| user.join().expect("no panic"));
        drop(lock);
        world.ends(&[PATH]);
    });
}

/// Another contender asks a process to give up a kept node whose turn has not come yet. After that, the process keeps the
/// node only for the uses that already wait for the node.
#[test]
fn cancelled_uses_leave_a_granted_node_to_the_asker() {
    explore(500, || {
        // Without timers, only the owner can give the node up.
        let (world, witness) = (World::with_timers(false), Witness::of_lock());
        let (ours, theirs) = (world.client(), world.client());
        let (kept, plain) = (
            keeping(&ours),
            RwLock::builder(&theirs, PATH).host("h").warn_after_waiting(warned()).build().expect("a lock"),
        );
        let first = block_on(plain.write().into_future()).expect("a guard");
        let users = (0..3).map(|_| {
            let (kept, witness) = (kept.clone(), Arc::clone(&witness));
            spawn(move || match draw(3) {
                0 => drop(witness.works(block_on(kept.read().into_future()).expect("a guard"))),
                _ => drop(block_on(cut_short(draw(8), kept.read())).transpose().expect("a guard, or none")),
            })
        });
        let users: Vec<_> = users.collect();
        let_others_run(128);
        let (asking, seen) = (plain.clone(), Arc::clone(&witness));
        let asker = spawn(move || drop(seen.works(block_on(asking.write().into_future()).expect("a guard"))));
        let_others_run(256);
        drop(witness.works(first));
        users.into_iter().for_each(|user| user.join().expect("no panic"));
        asker.join().expect("no panic");
        drop((kept, plain));
        world.ends(&[PATH]);
    });
}

/// If the acquisition of a kept node fails, each use that waits for this acquisition gets the acquisition's error.
#[test]
fn every_use_gets_the_error_of_its_failed_node() {
    explore(500, || {
        let (world, witness) = (World::with_timers(false), Witness::of_lock());
        let (ours, theirs) = (world.client(), world.client());
        let (kept, plain) = (
            keeping(&ours),
            RwLock::builder(&theirs, PATH).host("h").warn_after_waiting(warned()).build().expect("a lock"),
        );
        let first = block_on(plain.write().into_future()).expect("a guard");
        let users = (0..3).map(|_| {
            let (kept, witness) = (kept.clone(), Arc::clone(&witness));
            spawn(move || {
                let read = block_on(kept.read().into_future());
                assert!(matches!(read, Ok(_) | Err(Error::Evicted(_))), "{:?}", read.err());
                drop(read.map(|guard| witness.works(guard)));
            })
        });
        let users: Vec<_> = users.collect();
        let_others_run(256);
        ours.memory.faults().expire();
        let_others_run(64);
        drop(witness.works(first));
        users.into_iter().for_each(|user| user.join().expect("no panic"));
        drop((kept, plain));
        world.ends(&[PATH]);
    });
}

/// A contender of the same session sees the kept WRITE node in the queue. Before this contender asks the owner to give up
/// the node, a downgrade by the owner may replace the node by a READ node.
#[test]
fn a_kept_node_may_be_asked_for_during_a_downgrade() {
    explore(1_500, || {
        // Without timers, only the request of another contender can make the owner give the node up.
        let (world, witness) = (World::with_timers(false), Witness::of_lock());
        let client = world.client();
        let (kept, plain) = (
            keeping(&client),
            RwLock::builder(&client, PATH).host("h").warn_after_waiting(warned()).build().expect("a lock"),
        );
        let writer = block_on(kept.write().into_future()).expect("a guard");
        let (asking, seen) = (plain.clone(), Arc::clone(&witness));
        let asker = spawn(move || {
            let_others_run(8);
            drop(seen.works(block_on(asking.write().into_future()).expect("a guard")));
        });
        let_others_run(128);
        let reader = block_on(witness.works(writer).downgrade()).expect("held");
        drop(witness.works(reader));
        asker.join().expect("no panic");
        drop((kept, plain));
        world.ends(&[PATH]);
    });
}
