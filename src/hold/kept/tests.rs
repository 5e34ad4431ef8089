use super::*;

const IDLE: Duration = Duration::from_secs(1);

/// A node that is being acquired, with so many uses that wait for it, and the account of its lock.
fn entering(uses: usize) -> (Arc<Kept>, Vec<Join>, Arc<Mutex<Payoff>>) {
    let payoff = Arc::default();
    let kept = Kept::new(Mode::Read, IDLE, &payoff);
    let uses = (0..uses).map(|_| kept.join(Mode::Read)).collect();
    (kept, uses, payoff)
}

fn of(payoff: &Mutex<Payoff>) -> Payoff {
    *payoff.lock()
}

/// An account of nodes that were asked for, after so many uses each.
fn asked_after(uses: &[u64]) -> Payoff {
    let mut payoff = Payoff::default();
    uses.iter().for_each(|uses| payoff.asked_after(*uses));
    payoff
}

#[test]
fn a_node_that_was_asked_for_without_a_reuse_is_counted_once() {
    let (kept, _uses, payoff) = entering(1);
    kept.give_up(Why::Asked);
    kept.give_up(Why::Asked);
    assert_eq!(of(&payoff), asked_after(&[1]));
    assert_ne!(of(&payoff), asked_after(&[1, 1]), "the second ask of one node says nothing new");
}

#[test]
fn a_node_that_was_used_again_pays_off() {
    let (kept, _uses, payoff) = entering(2);
    *payoff.lock() = asked_after(&[1, 1]);
    kept.give_up(Why::Asked);
    assert_eq!(of(&payoff), asked_after(&[1, 1, 2]));
}

#[test]
fn a_node_that_nobody_asked_for_says_nothing_of_the_payoff() {
    for why in [Why::Idle, Why::Lost, Why::Closed, Why::Replaced, Why::Unsure] {
        let (kept, _uses, payoff) = entering(1);
        kept.give_up(why);
        kept.give_up(Why::Asked);
        assert_eq!(of(&payoff), Payoff::default(), "{why:?}");
    }
}

#[test]
fn an_acquisition_that_asks_for_other_nodes_says_nothing_of_the_payoff() {
    let (kept, _uses, payoff) = entering(1);
    kept.asks();
    kept.give_up(Why::Asked);
    assert_eq!(of(&payoff), Payoff::default());
}

#[test]
fn a_node_is_abandoned_once_the_last_use_that_waits_has_gone() {
    let (kept, mut uses, _) = entering(2);
    assert!(!kept.is_abandoned());
    uses.pop();
    assert!(!kept.is_abandoned());
    uses.pop();
    assert!(kept.is_abandoned());
}

#[test]
fn a_node_that_is_not_granted_yet_is_not_idle() {
    let (kept, uses, _) = entering(1);
    drop(uses);
    assert_eq!(kept.may_idle(Moment::ZERO.saturating_add(10 * IDLE)), IDLE);
}

/// The names that `zk_rwlock_kept_given_up_total` is documented with.
#[test]
fn every_reason_to_give_a_node_up_has_its_name_in_the_metrics() {
    let closed = Why::by(Loss::SessionOver(Ending::Closed));
    let names = [Why::Asked, Why::Idle, Why::by(Loss::Removed), closed, Why::Replaced, Why::Unsure].map(Why::label);
    assert_eq!(names, ["asked", "idle", "lost", "closed", "replaced", "unsure"]);
    assert_eq!(Why::by(Loss::LeaseRanOut), Why::Lost);
}
