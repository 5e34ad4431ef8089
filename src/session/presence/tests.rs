//! Tests of the checks at the ensemble's leader, of their results, and of the pauses between them.

use super::*;

/// Returns the leader's answer to the transaction of the checks `part`, where `fails` gives the failure of each check.
fn answer(part: &Range<usize>, fails: &dyn Fn(usize) -> Option<Failure>) -> Result<(), Failure> {
    let first = part.clone().find_map(|check| Some((check, fails(check)?)));
    first.map_or(Ok(()), |(check, failure)| {
        Err(Failure::Operation { index: check - part.start, failure: Box::new(failure) })
    })
}

/// Runs `checks` checks, to which [`answer`] gives the answers, until none is left to send. Returns the results, and
/// the numbers of rounds and transactions.
fn run_all(checks: usize, fails: &dyn Fn(usize) -> Option<Failure>) -> (Vec<CheckResult>, usize, usize) {
    let (mut results, mut rounds, mut transactions) = (CheckResults::new(checks, 100), 0, 0);
    loop {
        let parts = results.take_unsent();
        if parts.is_empty() {
            return (results.known, rounds, transactions);
        }
        rounds += 1;
        transactions += parts.len();
        parts.iter().for_each(|part| results.record(part, answer(part, fails)));
    }
}

#[test]
fn every_subset_of_failing_checks_is_found() {
    for checks in 0..=10_usize {
        for failing in 0_u32..1 << checks {
            let fails = |check| (failing >> check & 1 == 1).then_some(Failure::NoNode);
            let expected: Vec<_> = (0..checks).map(|check| Ok(fails(check).is_none())).collect();
            assert_eq!(run_all(checks, &fails).0, expected);
        }
    }
}

#[test]
fn a_denied_check_leaves_only_its_own_node_unknown() {
    let no_auth = || Failure::NoAuth(Box::default());
    for denied in 0..6 {
        let fails = |check| match check {
            _ if check == denied => Some(no_auth()),
            2 | 4 => Some(Failure::NoNode),
            _ => None,
        };
        let known = run_all(6, &fails).0;
        for (check, holds) in known.into_iter().enumerate() {
            let expected = if check == denied { Err(no_auth()) } else { Ok(check != 2 && check != 4) };
            assert_eq!(holds, expected, "check {check}, with {denied} denied");
        }
    }
}

#[test]
fn a_lost_answer_leaves_only_its_own_checks_unknown() {
    let mut results = CheckResults::new(CHECKS_MAX + 1, 100);
    let parts = results.take_unsent();
    assert_eq!(parts, [0..CHECKS_MAX, CHECKS_MAX..CHECKS_MAX + 1]);
    results.record(&parts[0], Err(Failure::Unknown("the connection broke".to_owned())));
    results.record(&parts[1], Ok(()));
    assert!(results.take_unsent().is_empty());
    assert!(results.known[..CHECKS_MAX].iter().all(Result::is_err) && results.known[CHECKS_MAX] == Ok(true));
    let beyond = Failure::Operation { index: CHECKS_MAX, failure: Box::new(Failure::NoNode) };
    results.record(&parts[0], Err(beyond.clone()));
    assert_eq!(
        (results.take_unsent().len(), &results.known[0]),
        (0, &Err(beyond)),
        "the index is outside the transaction"
    );
}

#[test]
fn transactions_stay_below_256_kib() {
    for (longest, expected) in [(60, 1_000), (262, 1_000), (300, 873), (1_100, 238), (1_000_000, 1)] {
        let mut results = CheckResults::new(3_000, longest);
        assert!(results.take_unsent().into_iter().take(2).all(|part| part.len() == expected), "{longest}");
    }
}

/// The cases: all of 1,000 nodes exist, none of 17, all but one of 1,000, and none of 1,000.
#[test]
fn each_failing_check_costs_one_more_transaction() {
    let (_, rounds, transactions) = run_all(CHECKS_MAX, &|_| None);
    assert_eq!((rounds, transactions), (1, 1));
    let (_, rounds, transactions) = run_all(17, &|_| Some(Failure::NoNode));
    assert_eq!((rounds, transactions), (2, 17));
    let (_, rounds, transactions) = run_all(CHECKS_MAX, &|check| (check == 300).then_some(Failure::NoNode));
    assert_eq!((rounds, transactions), (2, 1 + 16));
    let (_, rounds, transactions) = run_all(CHECKS_MAX, &|_| Some(Failure::NoNode));
    assert_eq!((rounds, transactions), (4, CHECKS_MAX));
}

const T: Duration = Duration::from_secs(10);

#[test]
fn pauses_double_up_to_ten_minutes() {
    let pauses = std::iter::successors(Some(T), |pause| Some(next_pause(*pause, T)));
    let seconds: Vec<_> = pauses.map(|pause| pause.as_secs()).take(9).collect();
    assert_eq!(seconds, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
    assert_eq!(next_pause(Duration::ZERO, T), T, "after an immediate check");
    assert_eq!(next_pause(2 * PAUSE_MAX, 2 * PAUSE_MAX), 2 * PAUSE_MAX, "at least one session timeout");
}

#[test]
fn jitter_adds_up_to_a_tenth() {
    for (random, most) in [(0, 10_000), (500, 10_500), (999, 10_999), (1_000, 10_000), (u64::MAX, 10_615)] {
        assert_eq!(with_jitter(T, random).as_millis(), most);
    }
}
