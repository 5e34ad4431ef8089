//! Tests of the checkers in `support::history`. Each checker gets a correct history and a wrong one.

use std::collections::HashMap;
use std::time::Duration;

use support::history::*;
use zk_rwlock::{Memory, Mode, RwLock};

fn ms(moment: u64) -> Duration {
    Duration::from_millis(moment)
}

/// Returns a hold of the lock `/l` from `from` to `until` (milliseconds). `token` is also the sequence number of its
/// node.
fn hold(mode: Mode, token: i64, from: u64, until: u64) -> Hold {
    let acquisition = token.unsigned_abs();
    let (path, node, host) = ("/l".to_owned(), format!("/l/{token}"), "h".to_owned());
    Hold { acquisition, path, node, host, mode, token, from: ms(from), until: ms(until), lost: false }
}

fn read(token: i64, from: u64, until: u64) -> Hold {
    hold(Mode::Read, token, from, until)
}

fn write(token: i64, from: u64, until: u64) -> Hold {
    hold(Mode::Write, token, from, until)
}

fn faults(holds: &[Hold]) -> (usize, usize, usize) {
    (overlaps(holds).len(), falling_fences(holds).len(), overtakings(holds).len())
}

#[test]
fn a_right_history_has_no_faults() {
    let mut downgraded = read(6, 70, 80);
    downgraded.acquisition = 6;
    let holds =
        [write(1, 0, 10), read(3, 11, 30), read(2, 12, 20), write(4, 31, 40), read(5, 41, 60), write(6, 60, 70)];
    assert_eq!(faults(&[&holds[..], &[downgraded, read(7, 71, 90)]].concat()), (0, 0, 0));
}

#[test]
fn two_holders_at_once_are_found_unless_both_read() {
    assert_eq!(overlaps(&[write(1, 0, 10), write(2, 9, 20)]).len(), 1);
    assert_eq!(overlaps(&[read(1, 0, 10), write(2, 9, 20)]).len(), 1);
    assert_eq!(overlaps(&[write(1, 0, 10), read(2, 9, 20)]).len(), 1);
    assert_eq!(overlaps(&[read(1, 0, 10), read(2, 9, 20)]).len(), 0);
    // The hold that overlaps the writer's is the first, and shorter holds lie between the two.
    assert_eq!(overlaps(&[read(1, 0, 100), read(2, 5, 10), read(3, 20, 30), write(4, 50, 60)]).len(), 1);
}

#[test]
fn other_paths_are_other_locks() {
    let mut elsewhere = write(2, 5, 15);
    elsewhere.path = "/other".to_owned();
    assert_eq!(faults(&[write(9, 0, 10), elsewhere]), (0, 0, 0));
}

#[test]
fn too_many_permits_are_found() {
    let taken = |count: u32, token, from, until| Hold {
        node: format!("/l/h~{token}-PERMIT-{count}"),
        ..read(token, from, until)
    };
    let right = [taken(2, 1, 0, 10), taken(1, 2, 5, 20), taken(2, 3, 10, 30), taken(3, 4, 30, 40)];
    assert_eq!(overdrawn(&right, 3).len(), 0);
    assert_eq!(overdrawn(&right, 2).len(), 3);
    // The hold that overlaps the last is the first, and shorter holds lie between the two.
    let long = [taken(1, 1, 0, 100), taken(1, 2, 5, 10), taken(1, 3, 20, 30), taken(2, 4, 50, 60)];
    assert_eq!(overdrawn(&long, 2).len(), 1);
}

#[test]
fn a_token_that_falls_or_repeats_is_found() {
    assert_eq!(falling_fences(&[write(2, 0, 10), write(1, 11, 20)]).len(), 1);
    assert_eq!(falling_fences(&[write(2, 0, 10), read(1, 11, 20)]).len(), 1);
    assert_eq!(falling_fences(&[read(2, 0, 10), write(1, 11, 20)]).len(), 1);
    assert_eq!(falling_fences(&[read(2, 0, 10), read(1, 11, 20)]).len(), 0);
    let mut twin = write(1, 11, 20);
    twin.acquisition = 7;
    assert_eq!(falling_fences(&[write(1, 0, 10), twin]).len(), 1);
    // Several acquisitions of one kept node have the token of that node, as readers or as writers. No other node may
    // have this token.
    let kept = |acquisition, node: &str, from| {
        let node = format!("/l/{node}-0000000001");
        Hold { acquisition, node, ..write(1, from, from + 10) }
    };
    let uses = [kept(1, "h~a~keep-WRITE", 0), kept(2, "h~a~keep-WRITE", 11), kept(3, "h~a~keep-READ", 21)];
    assert_eq!(falling_fences(&uses).len(), 0);
    assert_eq!(falling_fences(&[kept(1, "h~a~keep-WRITE", 0), kept(2, "h~b~keep-WRITE", 11)]).len(), 1);
}

#[test]
fn overtaking_is_found_also_in_overlapping_intervals() {
    assert_eq!(overtakings(&[write(2, 0, 10), write(1, 5, 20)]).len(), 1);
    assert_eq!(overtakings(&[read(2, 0, 10), write(1, 5, 20)]).len(), 1);
    assert_eq!(overtakings(&[write(2, 0, 10), read(1, 5, 20)]).len(), 1);
    assert_eq!(overtakings(&[read(2, 0, 10), read(1, 5, 20)]).len(), 0);
}

#[test]
fn an_operators_deletion_ends_one_hold_only() {
    let deletions = HashMap::from([("/l/1".to_owned(), ms(8)), ("/l/3".to_owned(), ms(15))]);
    let holds = [write(1, 0, 10), write(2, 9, 20), write(3, 16, 18), write(4, 19, 30)];
    let definite = definite(&holds, &deletions);
    assert_eq!(definite.iter().map(|hold| hold.token).collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!(overlaps(&definite).len(), 1, "the overlap of the holds 2 and 4 is not found");
}

fn access(deed: Deed, acquisition: u64, at: u64) -> Access {
    let node = format!("/l/{acquisition}");
    let (granted, began, done) = (ms(100 * acquisition), ms(at - 5), ms(at + 1));
    Access { deed, acquisition, node, granted, began, at: ms(at), done, sure: true }
}

#[test]
fn a_lost_update_is_found_unless_an_operator_caused_it() {
    let update = |acquisition, read, wrote, at| access(Deed::Update { read, wrote }, acquisition, at);
    let none = HashMap::new();
    assert_eq!(lost_updates(&[update(1, 0, 1, 110), update(2, 1, 2, 210), update(2, 2, 3, 220)], &none).len(), 0);
    let lost = [update(1, 0, 1, 110), update(2, 0, 2, 112)];
    assert_eq!(lost_updates(&lost, &none).len(), 1);
    // The second update did not read the first update's value, and overwrote it. That is excused, because an operator
    // deleted the first holder's node.
    let deleted = HashMap::from([("/l/1".to_owned(), ms(105))]);
    assert_eq!(lost_updates(&lost, &deleted).len(), 0);
    // The third update lost the second. The operator's deletion of the first holder's node does not excuse that.
    let later = [update(1, 0, 1, 110), update(2, 1, 2, 210), update(3, 1, 3, 310)];
    assert_eq!(lost_updates(&later, &deleted).len(), 1);
}

#[test]
fn a_value_that_changes_under_a_reader_is_found() {
    let none = HashMap::new();
    assert_eq!(lost_updates(&[access(Deed::Look { first: 4, second: 4 }, 1, 110)], &none).len(), 0);
    let changed = access(Deed::Look { first: 4, second: 5 }, 1, 110);
    assert_eq!(lost_updates(std::slice::from_ref(&changed), &none).len(), 1);
    let unsure = Access { sure: false, ..changed };
    assert_eq!(lost_updates(&[unsure], &none).len(), 0, "a holder that lost the lock was judged");
}

#[test]
fn a_store_that_takes_or_refuses_wrongly_is_found() {
    let none = HashMap::new();
    let fenced = |acquisition, token, accepted, at| access(Deed::Fenced { token, accepted }, acquisition, at);
    let late = Access { sure: false, ..fenced(1, 1, false, 215) };
    let right = [fenced(1, 1, true, 110), fenced(2, 2, true, 210), late.clone()];
    assert_eq!((wrong_fences(&right, &none).len(), refused_by_fence(&right)), (0, 1));
    assert_eq!(wrong_fences(&[fenced(1, 1, false, 110)], &none).len(), 1);
    let let_in = Access { deed: Deed::Fenced { token: 1, accepted: true }, ..late };
    assert_eq!(wrong_fences(&[fenced(2, 2, true, 210), let_in], &none).len(), 1);
}

#[test]
fn the_grant_of_a_deleted_node_may_be_received_after_the_next_grant() {
    let written = |token, granted: u64, at| Access {
        granted: Duration::from_millis(granted),
        node: format!("/l/n-WRITE-{token}"),
        ..access(Deed::Fenced { token, accepted: true }, token as u64, at)
    };
    let accesses = [written(1, 105, 110), written(2, 100, 120)];
    let deleted = |node: &str| HashMap::from([(node.to_owned(), Duration::from_millis(99))]);
    assert_eq!(wrong_fences(&accesses, &HashMap::new()).len(), 1);
    assert_eq!(wrong_fences(&accesses, &deleted("/l/n-WRITE-1")).len(), 0);
    assert_eq!(wrong_fences(&accesses, &deleted("/l/n-WRITE-3")).len(), 1);
}

/// Tests the recorder of histories with a lock whose loss its holder has not noticed.
#[support::judged]
async fn the_witness_ends_an_interval_at_the_loss() {
    let zk = Memory::new();
    let lock = RwLock::new(&zk, "/l").expect("a valid path");
    let history = History::start();
    let store = Store::default();
    let first = history.granted(lock.write().await.expect("free"), "first");
    store.update(&first, tokio::task::yield_now()).await;
    store.write_fenced(&first);
    let before = history.now();
    zk.faults().expire();
    let after = history.now();
    store.update(&first, tokio::task::yield_now()).await;
    let second = history.granted(lock.write().await.expect("the session is over"), "second");
    store.write_fenced(&second);
    store.write_fenced(&first);
    drop(first);
    let reader = second.changed(async |writer| writer.downgrade().await).await.expect("held");
    let shared = reader.also(reader.share());
    store.look(&reader, tokio::task::yield_now()).await;
    reader.leave().release().await.expect("held");
    drop(shared);

    let holds = history.holds();
    let told: Vec<_> = holds.iter().map(|hold| (hold.host.as_str(), hold.mode, hold.lost)).collect();
    let expected = [
        ("first", Mode::Write, true),
        ("second", Mode::Write, false),
        ("second", Mode::Read, false),
        ("second", Mode::Read, false),
    ];
    assert_eq!(told, expected);
    assert!(holds[0].until >= holds[0].from && holds[0].until <= after, "{:?}, {before:?} to {after:?}", holds[0]);
    assert_eq!(history.faults(), Vec::<String>::new());
    let accesses = store.accesses();
    assert_eq!(accesses.len(), 5, "the second update was given up: {accesses:?}");
    assert_eq!(refused_by_fence(&accesses), 1);
    assert_eq!(lost_updates(&accesses, &HashMap::new()), Vec::<String>::new());
    assert_eq!(wrong_fences(&accesses, &HashMap::new()), Vec::<String>::new());
}
