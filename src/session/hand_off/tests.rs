//! Tests of the hand-offs of a session, without a backend. The tests of the requests of a check are in
//! `keep_alive/tests.rs`.

use std::time::Duration;

use super::*;
use crate::sync::atomic::Ordering;

fn names(own_nodes: &[Arc<Node>]) -> Vec<String> {
    own_nodes.iter().map(|node| node.path()).collect()
}

#[test]
fn a_refused_signal_is_tried_again_later_and_elsewhere_at_once() {
    let (store, clock) = SessionStore::begun(Duration::from_secs(10));
    store.record_signal_refused(&"/a".into());
    assert_eq!(["/a", "/b"].map(|directory| store.is_signal_refused(directory)), [true, false]);
    clock.fetch_add(u64::from(UNSIGNALLED_FOR) * 10_000, Ordering::SeqCst);
    assert!(!store.is_signal_refused("/a"));
}

#[test]
fn the_memory_of_refused_signals_is_bounded() {
    let (store, _clock) = SessionStore::begun(Duration::from_secs(10));
    for number in 0..3 * UNSIGNALLED_MAX {
        let directory = format!("/{number}").into();
        store.record_signal_refused(&directory);
        assert!(store.is_signal_refused(&directory));
    }
    assert!(store.record.lock().signals_refused.len() <= UNSIGNALLED_MAX);
}

#[test]
fn a_signal_refused_again_leaves_the_other_directories_known() {
    let (store, _clock) = SessionStore::begun(Duration::from_secs(10));
    let directories: Vec<Arc<str>> = (0..UNSIGNALLED_MAX).map(|number| format!("/{number}").into()).collect();
    directories.iter().chain(&directories[..1]).for_each(|directory| store.record_signal_refused(directory));
    assert!(directories.iter().all(|directory| store.is_signal_refused(directory)));
}

#[test]
fn a_hand_off_is_checked_once_for_all_it_granted() {
    let (store, _clock) = SessionStore::begun(Duration::from_secs(10));
    let [holder, other] = ["/a/2", "/a/3"].map(|path| store.enter(path.to_owned()));
    let path: Arc<str> = Arc::from("/a/1");
    store.request_hand_off_check(&path, &holder);
    assert!(store.begin_hand_off_checks().is_empty(), "no contender holds yet");
    holder.mark_held(0);
    store.request_hand_off_check(&path, &other);
    store.request_hand_off_check(&path, &holder);
    assert_eq!((store.begin_hand_off_checks(), store.begin_hand_off_checks()), (vec![Arc::clone(&path)], vec![]));
    store.request_hand_off_check(&path, &other);
    let granted = store.finish_hand_off_check(&path).expect("the check is under way");
    assert_eq!(names(&granted), ["/a/3", "/a/2", "/a/3"], "a check covers every node that was granted before its end");
    assert!(store.finish_hand_off_check(&path).is_none());
}

#[test]
fn the_last_confirmed_hand_off_is_not_checked_again() {
    let (store, _clock) = SessionStore::begun(Duration::from_secs(10));
    let holder = store.enter("/a/3".to_owned());
    holder.mark_held(0);
    let [gone, there]: [Arc<str>; 2] = ["/a/1", "/a/2"].map(Arc::from);
    for (path, is_gone) in [(&there, false), (&gone, true)] {
        store.request_hand_off_check(path, &holder);
        store.begin_hand_off_checks();
        let granted = store.finish_hand_off_check(path).expect("the check is under way");
        assert_eq!(names(&granted), ["/a/3"]);
        if is_gone {
            store.record.lock().last_confirmed = Some(Arc::clone(path));
        }
    }
    store.request_hand_off_check(&gone, &holder);
    assert!(store.begin_hand_off_checks().is_empty());
    store.request_hand_off_check(&there, &holder);
    assert_eq!(store.begin_hand_off_checks(), [there]);
}
