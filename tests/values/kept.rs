//! Values behind a lock that is kept between uses: reads always give the newest value, and send nothing while no process
//! writes.

use std::future::IntoFuture;
use std::task::Poll;
use std::time::Duration;

use tokio_test::task::spawn;
use zk_rwlock::{Memory, RwLock, Shared, ZooKeeper};

use crate::checks::write;
use support::polled::poll_up_to;
use support::scene::{connect, eventually, soon};
use support::server::shared_server;
use support::slow::Slow;
use support::wire::{Close, Frames, Op, Proxy, Rule};

/// An idle time that is longer than any of these tests.
const IDLE: Duration = Duration::from_secs(600);

fn kept(client: &ZooKeeper, path: &str) -> Shared<u64> {
    Shared::builder(client, path).initial(|| 0).lock(|lock| lock.keep(IDLE)).build().expect("a valid path")
}

fn plain(client: &ZooKeeper, path: &str) -> Shared<u64> {
    Shared::builder(client, path).initial(|| 0).build().expect("a valid path")
}

#[support::judged]
async fn kept_reads_send_nothing_and_see_the_newest_value() {
    let wire = Proxy::start(shared_server().address());
    let (here, there) = (connect(&wire.address()).await, connect(&shared_server().address()).await);
    let (reader, writer) = (kept(&here, "/kept/newest"), plain(&there, "/kept/newest"));
    for value in 1..=20 {
        let mut guard = soon("the lock that is only kept", writer.write()).await.unwrap();
        *guard = value;
        guard.commit().await.unwrap();
        guard.release().await.unwrap();
        // The library keeps a node from the second read on.
        for _ in 0..2 {
            assert_eq!(*soon("a read", reader.read()).await.unwrap(), value);
        }
        // The session of the reader sets the watch on its own node shortly after the grant. The last round checks this.
        if value == 20 {
            eventually("the node is watched", || async { wire.count(Op::GetData) > 0 }).await;
        }
        let before = wire.requests().len();
        for _ in 0..1_000 {
            assert_eq!(*reader.read().await.unwrap(), value);
        }
        // Besides at most one heartbeat (a read and a check), only the watch on the node may be sent during the reads.
        assert!(wire.requests().len() - before <= 3, "{:?}", &wire.requests()[before..]);
    }
}

#[support::judged]
async fn commits_of_several_uses_of_one_node_are_distinct() {
    let wire = Proxy::start(shared_server().address());
    let zk = connect(&wire.address()).await;
    let shared = kept(&zk, "/kept/apart");
    let mut tokens = Vec::new();
    for value in 1..=6 {
        let mut guard = soon("the write", shared.write()).await.unwrap();
        assert_eq!(*guard, value - 1);
        *guard = value;
        let frames = if value % 2 == 1 { Frames::requests(Op::Multi) } else { Frames::replies(Op::Multi) };
        let fault = (value > 2).then(|| wire.apply(Rule::on(frames.about("/value")).close(0, Close::Rst)));
        let written = soon("the commit", guard.commit()).await.unwrap();
        assert!(fault.is_none_or(|fault| fault.has_happened()));
        tokens.push((written.token, written.commit));
        guard.release().await.unwrap();
    }
    assert_eq!(*soon("the read", shared.read()).await.unwrap(), 6);
    // A commit that was settled, and so can no longer be carried out late, lets the next one use the same node.
    assert_eq!(tokens[..], [1, 2, 3, 4, 5, 6].map(|commit| (tokens[0].0, commit)), "the commits used several nodes");
}

#[support::judged]
async fn a_read_sees_the_preceding_write_of_its_process() {
    let zk = Memory::new();
    let shared: Shared<u64> =
        Shared::builder(&zk, "/kept/own").initial(|| 0).lock(|lock| lock.keep(IDLE)).build().unwrap();
    for value in 1..=10 {
        let mut guard = shared.write().await.unwrap();
        *guard = value;
        guard.commit().await.unwrap();
        drop(guard);
        assert_eq!(*shared.read().await.unwrap(), value);
        assert_eq!(shared.read().await.unwrap().into_inner(), value);
    }
    let guard = shared.write().await.unwrap();
    let reader = guard.downgrade().await.unwrap();
    assert_eq!((*reader, *shared.read().await.unwrap()), (10, 10));
}

#[support::judged]
async fn the_next_kept_read_sees_a_manual_transaction() {
    let zk = Memory::new();
    let shared: Shared<String> = Shared::builder(&zk, "/kept/by-hand")
        .initial(|| "one".to_owned())
        .lock(|lock| lock.keep(IDLE))
        .build()
        .unwrap();
    let guard = shared.read().await.unwrap();
    let bytes = guard.lock().read_node(shared.value_path()).await.unwrap().unwrap().data;
    let other = String::from_utf8(bytes).unwrap().replace("one", "two");
    guard.lock().transaction().set(shared.value_path(), other).commit().await.unwrap();
    drop(guard);
    assert_eq!(*shared.read().await.unwrap(), "two");
}

/// The write comes at each poll of the read in turn. The read's reply may show the value from before the write, and arrive after
/// the event of the write.
#[support::judged]
async fn a_read_that_races_a_manual_write_is_not_cached() {
    let mut was_between = false;
    for polls in 0..40 {
        let zk = Memory::new();
        let shared: Shared<String> = Shared::builder(&Slow(zk.clone()), "/kept/meanwhile")
            .initial(|| "one".to_owned())
            .lock(|lock| lock.keep(IDLE))
            .build()
            .unwrap();
        drop(shared.write().replacing("one".to_owned()).await.unwrap().commit().await.unwrap());
        // This guard makes the handle keep the lock's node, but reads no value.
        let beside = shared.lock().read().await.unwrap();
        let bytes = beside.read_node(shared.value_path()).await.unwrap().unwrap().data;
        let mut reading = spawn(shared.read().into_future());
        let early = poll_up_to(&mut reading, polls);
        let other = String::from_utf8(bytes).unwrap().replace("one", "two");
        beside.transaction().set(shared.value_path(), other).commit().await.unwrap();
        let read = match early {
            Some(Poll::Ready(read)) => read.unwrap(),
            _ => reading.await.unwrap(),
        };
        was_between |= *read == "one";
        drop(read);
        assert_eq!(*shared.read().await.unwrap(), "two", "written after {polls} polls of the read");
    }
    assert!(was_between);
}

#[support::judged]
async fn no_read_sees_the_cached_value_after_a_restore() {
    let zk = Memory::new();
    let shared = Shared::builder(&zk, "/kept/restored").initial(|| 0_u64).lock(|lock| lock.keep(IDLE)).build().unwrap();
    let backup = zk.faults().back_up();
    let read = shared.read().await.unwrap();
    zk.faults().restore(&backup);
    drop(read);
    write(&shared, 1).await;
    // The new node has the same token as the node before the restore, and equally many commits were sent under both
    // nodes. So these numbers do not show that the cached value is old. The read must still return the new value.
    assert_eq!(*shared.read().await.unwrap(), 1);
}

#[support::judged]
async fn after_a_restore_kept_reads_cost_nothing_again() {
    let zk = Memory::new();
    let shared = Shared::builder(&zk, "/kept/cheap").initial(|| 0_u64).lock(|lock| lock.keep(IDLE)).build().unwrap();
    let backup = zk.faults().back_up();
    let other = RwLock::new(&zk, "/kept/other").unwrap();
    for _ in 0..10 {
        other.write().await.unwrap().release().await.unwrap();
    }
    // The other lock's uses raise the zxid, and the restore undoes them. So the token of this read is higher than the
    // first tokens after the restore.
    drop(shared.read().await.unwrap());
    zk.faults().restore(&backup);
    write(&shared, 0).await;
    for _ in 0..3 {
        assert_eq!(*shared.read().await.unwrap(), 0);
    }
    let before = zk.requests();
    for _ in 0..10 {
        assert_eq!(*shared.read().await.unwrap(), 0);
    }
    assert_eq!(zk.requests(), before);
}
