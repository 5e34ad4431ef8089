//! Tests on many threads, in which an operator removes nodes. Each method by which a guard reports a loss must report
//! the loss, and a waiter must get an error.

use std::future::pending;
use std::sync::Arc;

use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread;
use zk_rwlock::{Error, HoldState, Mode, MultiLock, RwLock, Semaphore};

use crate::explore::explore;
use crate::locks::LONG;
use crate::world::{Client, World, draw, let_others_run, spawn, warned};

const PATH: &str = "/lock";

/// Waits until the guard reports the loss: by `run`, by `changes` or by `lost`, at random. Then checks that `lost`
/// returns and that the guard is not held.
macro_rules! hears {
    ($guard:expr, $granted:expr) => {{
        let guard = $guard.expect("a guard");
        $granted.store(true, Ordering::SeqCst);
        match draw(3) {
            0 => assert!(block_on(guard.run(pending::<()>())).is_err()),
            1 => {
                let mut changes = guard.changes();
                while !matches!(block_on(changes.next()).expect("not released"), HoldState::Lost { .. }) {}
            }
            _ => {}
        }
        // `lost` must also return if it is called after the loss.
        let _loss = block_on(guard.lost());
        assert!(!guard.is_held());
    }};
}

#[test]
fn a_holder_whose_node_is_removed_learns_of_the_loss() {
    explore(800, || {
        let world = World::with_timers(false);
        let client = world.client();
        let lock = RwLock::builder(&client, PATH).host("h").warn_after_waiting(warned());
        let (kept, lock) = (lock.clone().keep(LONG).build().expect("a lock"), lock.build().expect("a lock"));
        let pool = Semaphore::builder(&client, "/pool")
            .permits(2)
            .lock(|lock| lock.host("h"))
            .lock(|lock| lock.warn_after_waiting(warned()))
            .build()
            .expect("a semaphore");
        let open =
            |path| RwLock::builder(&client, path).host("h").warn_after_waiting(warned()).build().expect("a lock");
        let both = MultiLock::new(["/one", "/two"].map(|path| (open(path), Mode::Write))).expect("locks");
        let kind = draw(5);
        let directory = [PATH, PATH, PATH, "/pool/permits", ["/one", "/two"][draw(2)]][kind];
        let is_granted = Arc::new(AtomicBool::new(false));
        let granted = Arc::clone(&is_granted);
        let holder = spawn(move || match kind {
            0 => hears!(block_on(lock.write().into_future()), granted),
            1 => hears!(block_on(lock.read().into_future()), granted),
            2 => hears!(block_on(kept.write().into_future()), granted),
            3 => hears!(block_on(pool.acquire().into_future()), granted),
            _ => hears!(block_on(both.lock().into_future()), granted),
        });
        while !is_granted.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let_others_run(64);
        let name = client.memory.children(directory).into_iter().next().expect("a node");
        client.memory.faults().remove(format!("{directory}/{name}"));
        holder.join().expect("no panic");
        world.ends(&[PATH, "/pool/queue", "/pool/permits", "/one", "/two"]);
    });
}

#[test]
fn a_waiter_whose_node_is_removed_gets_an_error() {
    explore(800, || {
        let world = World::with_timers(false);
        let (ours, theirs) = (world.client(), world.client());
        let lock = |client: &Client| {
            RwLock::builder(client, PATH).host("h").warn_after_waiting(warned()).build().expect("a lock")
        };
        let (first, waiting) = (lock(&ours), lock([&ours, &theirs][draw(2)]));
        let guard = block_on(first.write().into_future()).expect("a guard");
        let waiter = spawn(move || block_on(waiting.write().into_future()).map(drop));
        let waits = |name: &String| !guard.node_path().ends_with(name.as_str());
        let name = loop {
            match ours.memory.children(PATH).into_iter().find(waits) {
                Some(name) => break name,
                None => thread::yield_now(),
            }
        };
        let_others_run(128);
        ours.memory.faults().remove(format!("{PATH}/{name}"));
        let told = waiter.join().expect("no panic");
        assert!(matches!(told, Err(Error::Evicted(_))), "{told:?}");
        drop((guard, first));
        world.ends(&[PATH]);
    });
}
