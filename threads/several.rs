//! Tests with guards that each hold several locks, on many threads, while other threads take one of these locks.

use std::sync::Arc;

use shuttle::future::block_on;
use zk_rwlock::{Error, Mode, MultiGuard, MultiLock, RwLock};

use crate::explore::explore;
use crate::locks::{LONG, cut_short, troubles};
use crate::witness::{Says, Witness};
use crate::world::{Client, World, draw, let_others_run, spawn, warned};

const PATHS: [&str; 3] = ["/a", "/b", "/c"];

/// One of the locks that a guard of several locks holds.
struct Part {
    guard: Arc<MultiGuard>,
    mode: Mode,
}

impl Says for Part {
    fn weight(&self, whole: usize) -> usize {
        if self.mode == Mode::Write { whole } else { 1 }
    }

    fn says_held(&self) -> bool {
        self.guard.is_held()
    }
}

/// Returns a [`MultiLock`] over two or three of the locks in random order, and their numbers and modes.
fn some_of_them(client: &Client) -> (MultiLock, Vec<(usize, Mode)>) {
    let mut which = vec![0, 1, 2];
    which.swap(0, draw(3));
    which.swap(1, 1 + draw(2));
    which.truncate(2 + draw(2));
    let which: Vec<_> = which.into_iter().map(|at| (at, [Mode::Write, Mode::Read][draw(2)])).collect();
    let warned = warned();
    let open = |at: usize| RwLock::builder(client, PATHS[at]).host("h").warn_after_waiting(warned).build();
    let locks = which.iter().map(|(at, mode)| (open(*at).expect("a lock"), *mode));
    (MultiLock::new(locks).expect("locks"), which)
}

type Witnesses = [Arc<Witness>; 3];

fn works(guard: MultiGuard, which: &[(usize, Mode)], witnesses: &Witnesses) -> MultiGuard {
    let guard = Arc::new(guard);
    let parts = which.iter().map(|(at, mode)| (*at, Part { guard: Arc::clone(&guard), mode: *mode }));
    drop(parts.map(|(at, part)| witnesses[at].works(part)).collect::<Vec<_>>());
    Arc::into_inner(guard).expect("the last clone")
}

async fn one_use(client: &Client, lock: &(RwLock, usize), witnesses: &Witnesses) -> Result<(), Error> {
    let (locks, which) = some_of_them(client);
    match draw(6) {
        0 => drop(works(locks.lock().await?, &which, witnesses)),
        1 => works(locks.lock().await?, &which, witnesses).release().await?,
        2 => match locks.lock().timeout(LONG).await {
            Err(Error::OneOfMany { error, .. }) if matches!(*error, Error::Timeout { .. }) => {}
            granted => drop(works(granted?, &which, witnesses)),
        },
        3 => drop(cut_short(draw(12), locks.lock()).await.transpose()?.map(|guard| works(guard, &which, witnesses))),
        4 => drop(witnesses[lock.1].works(lock.0.write().await?)),
        _ => drop(witnesses[lock.1].works(lock.0.read().await?)),
    }
    Ok(())
}

fn threads_take_several(has_losses: bool) {
    let (world, witnesses) = (World::new(), [(); 3].map(|()| Witness::of_lock()));
    let clients = [world.client(), world.client()];
    let workers = (0..3).map(|number| {
        let (client, witnesses) = (clients[number % 2].clone(), witnesses.clone());
        spawn(move || {
            let at = draw(3);
            let lock =
                RwLock::builder(&client, PATHS[at]).host("h").warn_after_waiting(warned()).build().expect("a lock");
            let lock = (lock, at);
            for _ in 0..2 {
                let_others_run(32);
                let answer = block_on(one_use(&client, &lock, &witnesses));
                assert!(has_losses || answer.is_ok(), "{answer:?}");
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    if has_losses {
        troubles(&clients);
    }
    workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    world.ends(&PATHS);
}

#[test]
fn several_locks_exclude_each_other_and_never_hang() {
    explore(400, || threads_take_several(false));
}

#[test]
fn several_locks_exclude_each_other_after_a_loss() {
    explore(400, || threads_take_several(true));
}
