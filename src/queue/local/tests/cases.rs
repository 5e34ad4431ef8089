//! What the local queue concludes in one case after the other; knows no directory.

use super::*;

/// A queue in which these have entered, and nothing is known of those of other sessions.
fn entered(modes: &[(i64, Mode)]) -> LocalQueue<i64> {
    let mut queue = LocalQueue::default();
    for &(number, mode) in modes {
        assert!(queue.enter(key(number).id, Slot { mode, sequence: number }, 10 + number, &number).is_empty());
    }
    queue
}

#[test]
fn a_contender_whose_create_is_answered_late_is_known_to_whoever_came_after_it() {
    let queue = entered(&[(2, Mode::Write), (1, Mode::Write)]);
    assert_eq!(queue.turn(key(2)), LocalTurn::Behind(1));
    let mut queue = entered(&[(2, Mode::Write)]);
    queue.left(key(2), Exit::Lost);
    queue.enter(key(1).id, Slot { mode: Mode::Write, sequence: 1 }, 11, &1);
    queue.enter(key(3).id, Slot { mode: Mode::Write, sequence: 3 }, 13, &3);
    assert_eq!(queue.turn(key(3)), LocalTurn::Unknown, "nothing is concluded from one that has lost its node");
}

#[test]
fn a_grant_counts_only_for_the_contender_that_was_granted() {
    let mut queue = entered(&[(1, Mode::Write), (2, Mode::Write)]);
    let of_before = Key { number: 1, id: 77 };
    assert!(queue.granted(of_before, &Evidence::Sure).is_empty());
    assert_eq!(queue.turn(key(1)), LocalTurn::Unknown, "its number was given twice");
    assert!(queue.left(of_before, Exit::LetGo).is_empty() && queue.is_here(key(1)));
    let mut queue = entered(&[(1, Mode::Write)]);
    queue.left(key(1), Exit::Lost);
    queue.granted(key(1), &Evidence::Sure);
    queue.enter(key(2).id, Slot { mode: Mode::Write, sequence: 2 }, 12, &2);
    assert_eq!(queue.turn(key(2)), LocalTurn::Unknown, "a grant that comes after the loss");
}

#[test]
fn a_grant_stays_a_grant_whoever_leaves_before_it() {
    let mut queue = entered(&[(1, Mode::Read), (2, Mode::Read)]);
    queue.granted(key(2), &Evidence::Sure);
    assert!(queue.left(key(1), Exit::Lost).is_empty(), "a holder is not told to look");
    assert_eq!(queue.turn(key(2)), LocalTurn::Clear(Evidence::Sure));
}

#[test]
fn a_reader_that_was_granted_had_no_writer_before_it() {
    // The writer has lost its node, and has not noticed. So the next reader needs no look, and a writer needs one.
    for (next, turn) in [(Mode::Read, LocalTurn::Clear(Evidence::Sure)), (Mode::Write, LocalTurn::Unknown)] {
        let mut queue = entered(&[(1, Mode::Write), (2, Mode::Read)]);
        queue.granted(key(2), &Evidence::Sure);
        queue.left(key(2), Exit::Plain);
        queue.enter(key(3).id, Slot { mode: next, sequence: 3 }, 13, &3);
        assert_eq!(queue.turn(key(3)), turn);
    }
    // Here it is known of another reader that it is still there.
    let mut queue = entered(&[(1, Mode::Read), (2, Mode::Read), (3, Mode::Write)]);
    queue.granted(key(1), &Evidence::Sure);
    queue.granted(key(2), &Evidence::Sure);
    queue.left(key(2), Exit::Plain);
    assert_eq!(queue.turn(key(3)), LocalTurn::Behind(1));
}

#[test]
fn readers_wait_together_for_a_writer_of_another_session() {
    let mut queue = entered(&[(5, Mode::Read)]);
    let remote = |name: &str| LocalTurn::BehindRemote(name.into());
    queue.waits_for(Key { number: 5, id: 77 }, &"w4".into());
    assert_eq!(queue.turn(key(5)), LocalTurn::Unknown);
    for name in ["w4", "w3"] {
        queue.waits_for(key(5), &name.into());
        assert_eq!(queue.turn(key(5)), remote(name));
    }
    queue.enter(key(6).id, Slot { mode: Mode::Read, sequence: 6 }, 16, &6);
    queue.enter(key(7).id, Slot { mode: Mode::Write, sequence: 7 }, 17, &7);
    assert_eq!((queue.turn(key(6)), queue.turn(key(7))), (remote("w3"), LocalTurn::Behind(6)));
    let mut queue = entered(&[(5, Mode::Write)]);
    queue.waits_for(key(5), &"r4".into());
    assert_eq!(queue.turn(key(5)), LocalTurn::Unknown, "a writer's predecessor is no other's");
    queue.granted(key(5), &Evidence::Sure);
    queue.downgraded(key(5), &5);
    queue.waits_for(key(5), &"w4".into());
    assert_eq!(queue.turn(key(5)), LocalTurn::Clear(Evidence::Sure));
}

#[test]
fn a_signal_is_told_from_that_of_another_holder() {
    let signal = |path: &str| HandOff::new(path.into());
    assert!(signal("/l/a") == signal("/l/a") && signal("/l/a") != signal("/l/b"));
    let signal = signal("/l/a");
    assert!(!signal.is_confirmed());
    signal.confirm();
    assert!(signal.is_confirmed());
}
