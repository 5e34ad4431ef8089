//! The promises of leadership, through its public interface, on each backend.

// These functions are public, because a macro in `main.rs` calls them.
#![allow(unreachable_pub)]

use std::time::Duration;

use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::leadership::{Leader, LeaderChanges};
use zk_rwlock::{Error, HoldState, Leadership, Loss, RwLock};

use support::candidate::Candidate;
use support::harness::Harness;
use support::scene::{eventually, soon};

/// The pause between two terms of a candidate, too short to slow down a test.
const PAUSE: Duration = Duration::from_millis(10);

fn candidate<C: Coordinator + Clone>(client: &C, path: &str, host: &str) -> Leadership {
    let builder =
        Leadership::builder(client, path).lock(|lock| lock.host(host)).data(format!("http://{host}")).pause(PAUSE);
    builder.build().expect("valid")
}

/// Two candidates in two processes: the first leads and the second waits. A third client only observes.
struct Stage<C> {
    path: String,
    mine: C,
    theirs: C,
    others: C,
    a: Candidate,
    b: Candidate,
    first: i64,
}

impl<C: Coordinator + Clone> Stage<C> {
    async fn set<H: Harness<C = C>>(h: &H) -> Stage<C> {
        let (mine, theirs, others, path) = (h.client().await, h.client().await, h.client().await, h.directory());
        let mut a = Candidate::campaigns(candidate(&mine, &path, "host-a"));
        let first = a.leads().await.number();
        let b = Candidate::campaigns(candidate(&theirs, &path, "host-b"));
        let stage = Stage { path, mine, theirs, others, a, b, first };
        stage.becomes(2).await;
        stage
    }

    fn lock(&self) -> RwLock {
        RwLock::new(&self.others, &self.path).expect("valid")
    }

    async fn becomes(&self, candidates: usize) {
        let lock = self.lock();
        eventually("so many candidates", || async { lock.queue().await.unwrap().members.len() == candidates }).await;
    }

    /// Ends both campaigns, and waits until no candidate is left.
    async fn ends(self) {
        for it in [&self.a, &self.b] {
            soon("the stop", it.leadership.stop()).await;
        }
        self.becomes(0).await;
        for campaign in [self.a.campaign, self.b.campaign] {
            assert_eq!(soon("the end", campaign).await.unwrap().unwrap(), None);
        }
    }
}

async fn next(changes: &mut LeaderChanges) -> Option<Leader> {
    soon("the next leader", changes.next()).await.expect("open").expect("readable")
}

pub async fn one_candidate_leads_and_everybody_can_ask_who(h: &impl Harness) {
    let mut stage = Stage::set(h).await;
    let observer = candidate(&stage.others, &stage.path, "host-c");
    let leader = soon("the answer", observer.leader()).await.unwrap().expect("somebody leads");
    assert_eq!((leader.host.as_str(), leader.data.as_deref()), ("host-a", Some("http://host-a")));
    assert_eq!((leader.term, leader.pid), (stage.first, Some(std::process::id())));
    assert_eq!(
        leader.to_string(),
        format!("host-a pid {} \"http://host-a\" in term {}", std::process::id(), stage.first)
    );
    let (a, b) = (&stage.a.leadership, &stage.b.leadership);
    assert_eq!((a.is_leader(), b.is_leader(), observer.is_leader()), (true, false, false));
    assert_eq!(a.term().map(|term| term.number()), Some(stage.first));
    assert!(b.term().is_none());
    assert_eq!(soon("the answer", b.leader()).await.unwrap(), Some(leader));
    soon("the stop", a.stop()).await;
    assert!(!stage.a.leadership.is_leader());
    assert!(stage.b.leads().await.number() > stage.first);
    stage.ends().await;
    assert_eq!(soon("the answer", observer.leader()).await.unwrap(), None);
}

pub async fn a_resigning_leader_queues_up_behind_the_next(h: &impl Harness) {
    let mut stage = Stage::set(h).await;
    assert!(!soon("nothing to resign", stage.b.leadership.resign()).await);
    let mut last = stage.first;
    for round in 0..4 {
        let (leads, waits) = if round % 2 == 0 { (&mut stage.a, &mut stage.b) } else { (&mut stage.b, &mut stage.a) };
        assert!(soon("the resignation", leads.leadership.resign()).await);
        assert!(!leads.leadership.is_leader());
        assert_eq!(leads.is_dropped().await, last);
        let term = waits.leads().await;
        assert!(term.number() > last && term.is_leader());
        last = term.number();
        stage.becomes(2).await;
    }
    stage.ends().await;
}

pub async fn a_transaction_of_a_past_term_is_refused(h: &impl Harness) {
    let mut stage = Stage::set(h).await;
    let term = stage.a.leadership.term().expect("the candidate leads");
    let node = format!("{}-written", stage.path);
    term.transaction().create(&node, "by the leader").commit().await.unwrap();
    assert_eq!(term.read_node(&node).await.unwrap().expect("written").data, b"by the leader");
    assert!(term.is_leader() && term.session_left() > Duration::ZERO);
    soon("the resignation", stage.a.leadership.resign()).await;
    let next = stage.b.leads().await;
    // The program still has the value of the past term, although the next candidate leads already.
    assert!(!term.is_leader() && term.session_left().is_zero());
    let refused = soon("the refusal", term.transaction().set(&node, "too late").commit()).await.unwrap_err();
    assert!(refused.is_lost(), "{refused}");
    // A term that has ended keeps the state `GivenBack`, even if its session ends later.
    let given_back = || term.state() == HoldState::Lost { why: Loss::GivenBack };
    assert!(given_back() && soon("the end", term.lost()).await == Loss::GivenBack);
    h.expire(&stage.mine).await;
    assert!(given_back() && soon("the end", term.run(async {})).await.is_err());
    assert_eq!(next.read_node(&node).await.unwrap().expect("written").data, b"by the leader");
    stage.ends().await;
}

pub async fn an_expired_leader_campaigns_on_a_new_session(h: &impl Harness) {
    let mut stage = Stage::set(h).await;
    h.expire(&stage.mine).await;
    assert_eq!(stage.a.is_dropped().await, stage.first);
    assert!(!stage.a.leadership.is_leader());
    let second = stage.b.leads().await;
    stage.becomes(2).await;
    h.expire(&stage.theirs).await;
    assert!(stage.a.leads().await.number() > second.number());
    assert_eq!(stage.b.is_dropped().await, second.number());
    stage.becomes(2).await;
    stage.ends().await;
}

pub async fn an_evicted_leader_campaigns_again(h: &impl Harness) {
    let mut stage = Stage::set(h).await;
    let members = stage.lock().queue().await.unwrap().members;
    assert!(members.len() == 2 && members.iter().all(|it| it.is_candidate), "{members:?}");
    let broken = soon("the removal", stage.lock().evict(stage.first)).await.unwrap().expect("the node existed");
    assert_eq!(broken.label.as_deref(), Some("http://host-a"));
    assert_eq!(stage.a.is_dropped().await, stage.first);
    let second = stage.b.leads().await;
    stage.becomes(2).await;
    // An operator can also evict a waiting candidate. That candidate queues up again.
    let waits = stage.lock().queue().await.unwrap().members[1].token.expect("readable");
    soon("the removal", stage.lock().evict(waits)).await.unwrap().expect("the node existed");
    eventually("the candidate is queued again", || async {
        let members = stage.lock().queue().await.unwrap().members;
        members.len() == 2 && members[1].token.is_some_and(|token| token > waits)
    })
    .await;
    assert!(second.is_leader());
    stage.ends().await;
}

pub async fn a_stopped_or_dropped_candidate_leaves(h: &impl Harness) {
    let stage = Stage::set(h).await;
    soon("the stop", stage.b.leadership.stop()).await;
    stage.becomes(1).await;
    let stopped = candidate(&stage.theirs, &stage.path, "host-b");
    soon("the stop", stopped.stop()).await;
    assert_eq!(soon("nothing", stopped.lead(|_| async {})).await.unwrap(), None);
    let dropped = Candidate::campaigns(candidate(&stage.theirs, &stage.path, "host-b"));
    stage.becomes(2).await;
    dropped.campaign.abort();
    stage.becomes(1).await;
    stage.a.campaign.abort();
    stage.becomes(0).await;
    assert!(!stage.a.leadership.is_leader());
    assert!(!soon("nothing to resign", stage.a.leadership.resign()).await);
}

pub async fn the_result_of_the_work_ends_the_campaign(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let leadership = candidate(&zk, &path, "host-a");
    let mut last = 0;
    for number in 0..3 {
        let work = |term: zk_rwlock::leadership::Term| async move {
            if number == 1 { Err("no more") } else { Ok(term.number()) }
        };
        match soon("the work", leadership.lead(work)).await.unwrap().expect("not stopped") {
            Ok(term) => assert!(std::mem::replace(&mut last, term) < term),
            Err(error) => assert_eq!((error, number), ("no more", 1)),
        }
        assert_eq!(leadership.lock().queue().await.unwrap().members.len(), 0);
    }
    let second = Candidate::campaigns(leadership.clone());
    eventually("the candidate leads", || async { leadership.is_leader() }).await;
    let refused = soon("the refusal", leadership.lead(|_| async {})).await.unwrap_err();
    assert!(matches!(refused, Error::InvalidInput(_)), "{refused}");
    second.campaign.abort();
}

pub async fn a_panic_of_the_work_gives_the_lock_back(h: &impl Harness) {
    let mut stage = Stage::set(h).await;
    let leadership = candidate(&stage.others, &stage.path, "host-c");
    let panics = leadership.clone();
    let panicked =
        tokio::spawn(async move { panics.lead(|_| async { panic!("on purpose") }).await.map(|_: Option<()>| ()) });
    stage.becomes(3).await;
    soon("the stop", stage.a.leadership.stop()).await;
    stage.b.leads().await;
    soon("the stop", stage.b.leadership.stop()).await;
    assert!(soon("the panic", panicked).await.unwrap_err().is_panic());
    stage.becomes(0).await;
    assert!(!leadership.is_leader());
    assert_eq!(soon("another campaign", leadership.lead(|_| async { 1 })).await.unwrap(), Some(1));
}

pub async fn closing_ends_the_campaign_with_an_error(h: &impl Harness) {
    let mut stage = Stage::set(h).await;
    stage.mine.close().await;
    assert_eq!(stage.a.is_dropped().await, stage.first);
    let error = soon("the end", &mut stage.a.campaign).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Closed(_)), "{error}");
    stage.b.leads().await;
    stage.theirs.close().await;
    let error = soon("the end", stage.b.campaign).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Closed(_)), "{error}");
}

pub async fn a_candidate_resigns_while_it_is_unhealthy(h: &impl Harness) {
    let (mine, path) = (h.client().await, h.directory());
    let (well, wellness) = tokio::sync::watch::channel(false);
    let check = move || {
        let is_well = *wellness.borrow();
        async move { is_well }
    };
    let builder =
        Leadership::builder(&mine, &path).lock(|lock| lock.host("host-a")).pause(PAUSE).health(2 * PAUSE, check);
    let mut a = Candidate::campaigns(builder.build().expect("valid"));
    // The candidate does not campaign before its health check succeeds.
    let others = h.client().await;
    let mut b = Candidate::campaigns(candidate(&others, &path, "host-b"));
    let mut last = b.leads().await.number();
    let lock = RwLock::new(&others, &path).expect("valid");
    for _ in 0..2 {
        well.send_replace(true);
        eventually("the waiter waits", || async { lock.queue().await.unwrap().waiters().count() == 1 }).await;
        // A waiting candidate that fails its health check leaves the queue.
        well.send_replace(false);
        eventually("the candidate has left", || async { lock.queue().await.unwrap().members.len() == 1 }).await;
        well.send_replace(true);
        eventually("the waiter waits", || async { lock.queue().await.unwrap().waiters().count() == 1 }).await;
        soon("the resignation", b.leadership.resign()).await;
        b.is_dropped().await;
        let term = a.leads().await.number();
        assert!(term > last);
        eventually("the other one waits", || async { lock.queue().await.unwrap().waiters().count() == 1 }).await;
        well.send_replace(false);
        assert_eq!(a.is_dropped().await, term);
        last = b.leads().await.number();
        assert!(last > term);
    }
    for it in [a, b] {
        soon("the stop", it.leadership.stop()).await;
    }
}

pub async fn an_observer_sees_each_leader_and_none(h: &impl Harness) {
    let (mine, others, path) = (h.client().await, h.client().await, format!("{}/not/there/yet", h.directory()));
    let mut changes = candidate(&others, &path, "host-c").changes();
    assert_eq!(next(&mut changes).await, None);
    for round in 0..3 {
        let mut a = Candidate::campaigns(candidate(&mine, &path, "host-a"));
        let term = a.leads().await.number();
        let leader = next(&mut changes).await.expect("somebody leads");
        assert_eq!((leader.term, leader.host.as_str()), (term, "host-a"));
        match round {
            0 => soon("the stop", a.leadership.stop()).await,
            1 => a.campaign.abort(),
            _ => {
                let lock = RwLock::new(&others, &path).expect("valid");
                soon("the removal", lock.evict(term)).await.unwrap().expect("the node existed");
                // The evicted leader campaigns again immediately, so the observer may miss the time without a leader.
                while next(&mut changes).await.is_none_or(|leader| leader.term == term) {}
                soon("the stop", a.leadership.stop()).await;
            }
        }
        assert_eq!(next(&mut changes).await, None);
    }
    // A reader of the same lock is not a leader.
    let reader = RwLock::new(&mine, &path).unwrap().read().await.unwrap();
    assert_eq!(candidate(&others, &path, "host-c").leader().await.unwrap(), None);
    reader.release().await.unwrap();
    // Changes that happen while the observer is cut off are reported after the cut.
    h.cut(&others).await;
    let mut a = Candidate::campaigns(candidate(&mine, &path, "host-a"));
    let term = a.leads().await.number();
    h.heal(&others).await;
    assert_eq!(next(&mut changes).await.map(|leader| leader.term), Some(term));
    h.expire(&others).await;
    soon("the resignation", a.leadership.resign()).await;
    let again = loop {
        match next(&mut changes).await {
            Some(leader) => break leader.term,
            None => continue,
        }
    };
    assert!(again > term);
    soon("the stop", a.leadership.stop()).await;
    assert_eq!(next(&mut changes).await, None);
    others.close().await;
    assert!(soon("the end", changes.next()).await.is_none());
    assert!(soon("the end", changes.next()).await.is_none());
}

pub async fn wrong_options_are_refused_unsent(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let builder = || Leadership::builder(&zk, &path);
    for (wrong, reason) in [
        (Leadership::new(&zk, "relative"), "must start with '/'"),
        (builder().lock(|lock| lock.host("a/b")).build(), "host"),
        (builder().data("two\nlines").build(), r#"data "two\nlines" contains"#),
        (builder().data("x".repeat(257)).build(), "invalid input: data of 257 bytes"),
        (builder().pause(Duration::ZERO).build(), "the pause between campaigns is zero"),
        (builder().health(Duration::ZERO, || async { true }).build(), "the interval between health checks is zero"),
        (builder().lock(|lock| lock.keep(Duration::from_secs(1))).build(), "a leadership cannot use keep"),
    ] {
        let error = wrong.expect_err("refused").to_string();
        assert!(error.starts_with("invalid input: ") && error.contains(reason), "{error}");
    }
    let ended = RwLock::new(&zk, &path).unwrap().queue().await.unwrap();
    assert_eq!(ended.members.len(), 0);
}
