//! Tests of a value behind the lock on many threads: commits, reads and local copies, also with lost sessions and replies.

use std::sync::Arc;

use shuttle::future::block_on;
use shuttle::sync::Mutex;
use zk_rwlock::format::{Format, FormatError};
use zk_rwlock::{Error, Shared};

use crate::explore::explore;
use crate::locks::{LONG, cut_short, troubles};
use crate::world::{Client, World, draw, let_others_run, spawn, warned};

const PATH: &str = "/value";
const LOCK: &str = "/value/lock";

/// A format that writes numbers in decimal.
struct Decimal;

impl Format<u64> for Decimal {
    fn name(&self) -> &str {
        "decimal"
    }

    fn encode(&self, value: &u64) -> Result<Vec<u8>, FormatError> {
        Ok(value.to_string().into_bytes())
    }

    fn decode(&self, bytes: &[u8]) -> Result<u64, FormatError> {
        Ok(std::str::from_utf8(bytes)?.parse()?)
    }
}

fn shared(client: &Client) -> Shared<u64> {
    let builder = Shared::with_format(client, PATH, Decimal)
        .initial(|| 0)
        .lock(|lock| lock.host("h").warn_after_waiting(warned()));
    if draw(2) == 0 { builder.lock(|lock| lock.keep(LONG)) } else { builder }.build().expect("a value")
}

/// The numbers whose commit was reported as done. Each commit writes the number that it has read, plus one.
#[derive(Default)]
struct Register(Mutex<Vec<u64>>);

impl Register {
    fn newest(&self) -> u64 {
        self.0.lock().expect("no panic").iter().copied().max().unwrap_or(0)
    }

    fn has(&self, number: u64) {
        let mut committed = self.0.lock().expect("no panic");
        assert!(!committed.contains(&number), "two commits have written {number}: one of them is lost");
        committed.push(number);
    }
}

const KINDS: usize = 9;

async fn one_use(kind: usize, shared: &Shared<u64>, register: &Register) -> Result<(), Error> {
    let before = register.newest();
    let is_fresh = |saw: u64, is_held: bool| assert!(!is_held || saw >= before, "{saw} was read after {before}");
    match kind {
        0 | 1 => {
            let value = shared.read().await?;
            is_fresh(*value, value.lock().is_held());
        }
        2 => {
            let mut value = shared.write().await?;
            is_fresh(*value, value.lock().is_held());
            for _ in 0..1 + draw(2) {
                *value += 1;
                value.commit().await?;
                register.has(*value);
            }
        }
        3 => {
            let mut value = shared.write().await?;
            *value += 1;
            let wrote = *value;
            value.commit().await?;
            register.has(wrote);
            let value = value.downgrade().await?;
            assert!(!value.lock().is_held() || *value == wrote, "{} was read after {wrote} was written", *value);
        }
        4 => *shared.write().await? += 1_000,
        5 | 6 => {
            let number = shared.update(|value| {
                *value += 1;
                *value
            });
            register.has(number.await?.output);
        }
        7 => {
            // The number is not recorded, because a dropped update may have been done or not.
            let _ = cut_short(draw(12), shared.update(|value| *value += 1)).await.transpose()?;
        }
        _ => drop(cut_short(draw(10), shared.read()).await.transpose()?),
    }
    Ok(())
}

/// Reads the copy again and again, and fails if its number becomes lower.
fn follows(shared: &Shared<u64>) {
    let mut last = 0;
    let mut sees = |saw: u64| {
        assert!(saw >= last, "the copy went back from {last} to {saw}");
        last = saw;
    };
    let mut changes = shared.changes();
    for _ in 0..4 {
        match draw(2) {
            0 => drop(block_on(cut_short(draw(3), shared.live())).map(|live| live.map(|live| sees(**live.get())))),
            _ => drop(block_on(cut_short(draw(3), changes.next())).flatten().map(|value| value.map(|it| sees(**it)))),
        }
        let_others_run(32);
    }
}

fn threads_share_a_value(has_losses: bool) {
    // While no value exists, a task that waits for the first value retries after a pause, so timers must fire. With a
    // value, tasks are notified of changes.
    let is_new = !has_losses && draw(2) == 0;
    let (world, register) = (World::with_timers(has_losses || is_new), Arc::new(Register::default()));
    let clients = [world.client(), world.client()];
    let values = [0, 0, 1].map(|of| shared(&clients[of]));
    if !is_new {
        block_on(values[0].update(|_| {}).into_future()).expect("nothing fails yet");
    }
    if has_losses {
        // Begins the local copies here, while there is a session. Without a session they would begin on a thread of the
        // library, and the tests have no such thread.
        values.iter().for_each(|value| drop(value.changes()));
    }
    let kinds = [draw(KINDS), draw(KINDS), draw(KINDS)];
    let workers = (0..3).map(|number| {
        let (shared, register) = (values[draw(3)].clone(), Arc::clone(&register));
        spawn(move || {
            let_others_run(32);
            if number == 2 {
                return follows(&shared);
            }
            for _ in 0..2 {
                let answer = block_on(one_use(kinds[draw(3)], &shared, &register));
                assert!(has_losses || answer.is_ok(), "{answer:?}");
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    if has_losses {
        troubles(&clients);
    }
    workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    // Each copy must receive the last value.
    let written = loop {
        match block_on(values[2].read().into_future()) {
            Ok(value) => break *value,
            Err(error) => assert!(has_losses, "{error}"),
        }
    };
    assert!(written >= register.newest(), "{written} is older than {}", register.newest());
    for value in &values {
        let followed = block_on(value.wait_for(move |value| *value >= written).into_future());
        assert_eq!(followed.map(|value| **value).expect("a value"), written);
    }
    drop(values);
    world.ends(&[LOCK]);
}

#[test]
fn no_commit_is_lost_and_no_read_is_stale() {
    explore(600, || threads_share_a_value(false));
}

#[test]
fn no_commit_is_lost_when_sessions_end() {
    explore(600, || threads_share_a_value(true));
}
