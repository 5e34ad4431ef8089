//! Leadership on the embedded ensemble, polled by hand or in virtual time.

use std::future::pending;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::time::{Instant, advance, sleep};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};
use zk_rwlock::coordinator::{Coordinator, Failure, SessionSlot};
use zk_rwlock::leadership::Term;
use zk_rwlock::{Error, Leadership, Loss, Memory, RwLock};

use support::candidate::{Candidate, TermEvent, endless};
use support::hindered::{Hindered, Request};
use support::polled::{now, poll_up_to, write, writing};
use support::scene::soon;
use support::slow::Slow;
use support::two::TwoSessions;

const PATH: &str = "/leaders/scheduler";

/// More polls than any campaign takes.
const POLLS: usize = 80;

fn leadership(zk: &Memory) -> Leadership {
    Leadership::new(zk, PATH).expect("valid")
}

fn lock(zk: &Memory) -> RwLock {
    RwLock::new(zk, PATH).expect("valid")
}

#[test]
fn a_candidate_dropped_at_any_poll_leaves_nothing() {
    let mut led = 0;
    for polls in 0..POLLS {
        for contended in [false, true] {
            let (zk, other) = {
                let zk = Memory::new();
                (zk.connect(), zk)
            };
            now(write(&lock(&other)).release()).expect("held");
            let held = contended.then(|| write(&lock(&other)));
            let before = (other.children(PATH), other.watches());
            let candidate = Leadership::new(&Slow(zk), PATH).expect("valid");
            let (sender, mut events) = mpsc::unbounded_channel();
            let mut campaign = spawn(candidate.lead(endless(sender)));
            assert!(!matches!(poll_up_to(&mut campaign, polls), Some(Poll::Ready(_))));
            led += usize::from(candidate.is_leader());
            drop(campaign);
            assert!(!candidate.is_leader());
            assert_eq!((other.children(PATH), other.watches()), before, "at poll {polls}, contended: {contended}");
            if let Ok(TermEvent::Leads(term)) = events.try_recv() {
                assert!(matches!(events.try_recv(), Ok(TermEvent::Dropped(_))) && !term.is_leader());
            }
            drop(held);
            drop(write(&lock(&other)));
        }
    }
    assert!(led > 0, "{POLLS} polls are too few");
}

#[test]
fn a_dropped_resignation_or_stop_is_done_anyway() {
    let mut done = 0;
    for polls in 1..20 {
        for stops in [false, true] {
            let zk = Memory::new();
            let candidate = Leadership::new(&Slow(zk.clone()), PATH).expect("valid");
            let (sender, mut events) = mpsc::unbounded_channel();
            let mut campaign = spawn(candidate.lead(endless(sender)));
            assert!(poll_up_to(&mut campaign, POLLS).is_none());
            let Ok(TermEvent::Leads(term)) = events.try_recv() else { panic!("the candidate does not lead") };
            if stops {
                let _dropped = poll_up_to(&mut spawn(candidate.stop()), polls);
            } else {
                let _dropped = poll_up_to(&mut spawn(candidate.resign()), polls);
            }
            let ended = poll_up_to(&mut campaign, POLLS);
            assert!(!term.is_leader() && matches!(events.try_recv(), Ok(TermEvent::Dropped(_))));
            if stops {
                assert!(matches!(ended, Some(Poll::Ready(Ok(None)))), "{ended:?}");
                assert_eq!((zk.children(PATH).len(), zk.watches()), (0, 0));
            } else {
                // No other candidate waits, so the same candidate leads again.
                assert!(ended.is_none() && candidate.term().expect("the candidate leads").number() > term.number());
            }
            done += 1;
        }
    }
    assert_eq!(done, 38);
}

#[test]
fn a_second_campaign_of_one_candidate_is_refused() {
    let zk = Memory::new();
    let candidate = leadership(&zk);
    let mut first = spawn(candidate.lead(|_term| pending::<()>()));
    assert_pending!(first.poll());
    let term = candidate.term().expect("the candidate leads").number();
    let refused = now(candidate.lead(|_term| async {})).unwrap_err();
    assert!(
        matches!(&refused, Error::InvalidInput(text) if text.starts_with("this candidate campaigns already")),
        "{refused}"
    );
    assert_eq!(candidate.term().map(|term| term.number()), Some(term));
    drop(first);
    assert_eq!(now(candidate.lead(|_term| async { 1 })).expect("the first is over"), Some(1));
}

#[test]
fn a_stop_waits_until_the_lock_is_given_back() {
    let zk = Memory::new();
    let candidate = leadership(&zk);
    let mut campaign = spawn(candidate.lead(|_term| pending::<()>()));
    assert_pending!(campaign.poll());
    let mut stopping = spawn(candidate.stop());
    assert_pending!(stopping.poll());
    assert!(campaign.is_woken() && !stopping.is_woken());
    assert_eq!(assert_ready!(campaign.poll()).expect("held"), None);
    assert!(stopping.is_woken() && zk.children(PATH).is_empty());
    assert_ready!(stopping.poll());
}

#[tokio::test(start_paused = true)]
async fn a_campaign_survives_an_outage_of_the_servers() {
    let zk = Memory::new();
    now(write(&lock(&zk)).release()).expect("held");
    let mut candidate = Candidate::campaigns(Leadership::new(&Away(zk.clone(), Arc::default()), PATH).expect("valid"));
    let term = candidate.leads().await;
    assert!(term.is_leader() && !candidate.campaign.is_finished());
    candidate.leadership.stop().await;
}

/// An ensemble that is unreachable: the first two requests for a session fail, and all later ones succeed.
#[derive(Clone, Debug)]
struct Away(Memory, Arc<AtomicUsize>);

#[async_trait]
impl Coordinator for Away {
    async fn session_slot(&self, own_bytes: usize) -> Result<SessionSlot, Failure> {
        match self.1.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Failure::Unreachable("it is away".to_owned())),
            1 => Err(Failure::Unknown("it is coming back".to_owned())),
            _ => self.0.session_slot(own_bytes).await,
        }
    }

    async fn close(&self) {
        self.0.close().await;
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.sleep(duration)
    }
}

#[test]
fn an_observer_that_lags_sees_no_past_leader() {
    let (zk, clients) = {
        let zk = Memory::new();
        (zk.clone(), [zk.connect(), zk.connect()])
    };
    let before = write(&lock(&zk));
    let _session = now(clients[1].session_slot(0)).expect("open");
    clients[1].faults().lag();
    drop(before);
    let after = write(&lock(&zk));
    let observer = Leadership::new(&TwoSessions::one_after_the_other(&clients), PATH).expect("valid");
    let mut changes = observer.changes();
    let reported = now(changes.next()).expect("open").expect("readable").expect("somebody leads");
    assert_eq!(reported.term, after.fencing_token());
    clients[0].faults().expire();
    // Nothing has changed since the last poll.
    assert_pending!(spawn(changes.next()).poll());
    clients[1].faults().catch_up();
    drop(after);
    assert_eq!(now(changes.next()).expect("open").expect("readable"), None);
}

#[test]
fn an_observer_sees_a_reused_number_after_a_restore() {
    let zk = Memory::new();
    let (backup, clients) = (zk.faults().back_up(), [zk.connect(), zk.connect()]);
    let mut changes = leadership(&zk).changes();
    let [before, after] = [0, 1].map(|client| {
        let leader = write(&lock(&clients[client]));
        let reported = now(changes.next()).expect("open").expect("readable").expect("somebody leads");
        assert_eq!(reported.term, leader.fencing_token());
        zk.faults().restore(&backup);
        reported
    });
    assert_eq!(before.term, after.term);
    assert_ne!(before.session, after.session);
}

#[test]
fn an_observer_sees_each_leader_once_at_any_poll() {
    let mut came = 0;
    for polls in 0..POLLS {
        let zk = Memory::new();
        now(write(&lock(&zk)).release()).expect("held");
        let observer = Leadership::new(&Slow(zk.connect()), PATH).expect("valid");
        let mut changes = observer.changes();
        let mut reported = Vec::new();
        let mut watching = spawn(async {
            while let Some(change) = changes.next().await {
                reported.push(change.expect("readable").map(|leader| leader.term));
            }
        });
        let is_watching = poll_up_to(&mut watching, polls).is_none();
        let leader = write(&lock(&zk));
        assert!(poll_up_to(&mut watching, POLLS).is_none(), "an unchanged leader was reported");
        // A new waiter does not change the leader, so the observer reports nothing.
        drop(writing(&lock(&zk)));
        assert!(poll_up_to(&mut watching, POLLS).is_none());
        let term = leader.fencing_token();
        drop(leader);
        assert!(poll_up_to(&mut watching, POLLS).is_none());
        drop(watching);
        reported.retain(|term| term.is_some());
        assert_eq!(reported, [Some(term)], "the leader came after {polls} polls");
        came += usize::from(!is_watching);
    }
    assert!(came > 3, "{came}");
}

#[tokio::test(start_paused = true)]
async fn an_observer_of_a_missing_directory_backs_off() {
    let zk = Memory::new();
    let observer = Leadership::new(&zk, "/not/there/yet").expect("valid");
    let mut changes = observer.changes();
    assert_eq!(now(changes.next()).expect("open").expect("readable"), None);
    let mut next = spawn(changes.next());
    assert_pending!(next.poll());
    let before = zk.requests();
    for _ in 0..60 {
        sleep(Duration::from_secs(60)).await;
        assert!(!next.is_woken() || next.poll().is_pending());
    }
    let requests = zk.requests() - before;
    assert!((8..=12).contains(&requests), "{requests}");
    let leader = write(&RwLock::new(&zk, "/not/there/yet").expect("valid"));
    assert!(next.is_woken());
    let reported = next.await.expect("open").expect("readable").expect("somebody leads");
    assert_eq!(reported.term, leader.fencing_token());
}

#[test]
fn an_observer_dropped_at_any_poll_leaves_nothing() {
    let mut reported = 0;
    for polls in 0..POLLS {
        for leads in [false, true] {
            let zk = Memory::new();
            let held = leads.then(|| write(&lock(&zk)));
            let before = (zk.children(PATH), zk.watches());
            let observer = Leadership::new(&Slow(zk.connect()), PATH).expect("valid");
            let mut changes = observer.changes();
            if let Some(Poll::Ready(answer)) = poll_up_to(&mut spawn(changes.next()), polls) {
                assert_eq!(answer.expect("open").expect("readable").is_some(), leads);
                reported += 1;
            }
            drop(changes);
            if let Some(Poll::Ready(answer)) = poll_up_to(&mut spawn(observer.leader()), polls) {
                assert_eq!(answer.expect("readable").is_some(), leads);
            }
            assert_eq!((zk.children(PATH), zk.watches()), before, "at poll {polls}, leads: {leads}");
            drop(held);
        }
    }
    assert!(reported > 0, "{POLLS} polls are too few");
}

#[test]
fn a_leader_says_no_before_its_work_is_dropped() {
    let (zk, other) = {
        let zk = Memory::new();
        (zk.connect(), zk)
    };
    let candidate = leadership(&zk);
    let is_dropped = Arc::new(AtomicBool::new(false));
    struct Drops(Arc<AtomicBool>);
    impl Drop for Drops {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let drops = Arc::clone(&is_dropped);
    let mut campaign = spawn(candidate.lead(move |_| {
        let drops = Drops(Arc::clone(&drops));
        async move {
            let _drops = drops;
            pending::<()>().await
        }
    }));
    assert_pending!(campaign.poll());
    assert!(candidate.is_leader());
    let mut next = writing(&lock(&other));
    assert_pending!(next.poll());
    zk.faults().expire();
    assert!(!candidate.is_leader() && campaign.is_woken() && !is_dropped.load(Ordering::Relaxed));
    drop(assert_ready!(next.poll()).expect("granted"));
    assert_pending!(campaign.poll());
    assert!(is_dropped.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn a_leader_cut_off_says_no_before_its_session_ends() {
    let (zk, other) = {
        let zk = Memory::new();
        (zk.connect(), zk)
    };
    let mut a = Candidate::campaigns(leadership(&zk));
    let mut b = Candidate::campaigns(leadership(&other));
    let term = a.leads().await;
    zk.faults().cut();
    advance(Duration::from_secs(5)).await;
    assert!(a.leadership.is_leader() && term.is_leader(), "the leader lost its term during the lease");
    // Nine seconds after the cut, the lease has ended, but the session of ten seconds has not.
    advance(Duration::from_secs(4)).await;
    assert!(!a.leadership.is_leader() && !term.is_leader());
    assert_eq!(a.is_dropped().await, term.number());
    zk.faults().expire();
    let next = b.leads().await;
    sleep(Duration::from_secs(600)).await;
    assert!(next.is_leader() && !a.leadership.is_leader());
    zk.faults().heal();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(other.children(PATH).len(), 2, "the candidate does not campaign again");
}

#[tokio::test(start_paused = true)]
async fn a_candidate_pauses_after_a_loss_only() {
    for _ in 0..20 {
        let zk = Memory::new();
        let mut candidate = Candidate::campaigns(leadership(&zk));
        let mut term = candidate.leads().await;
        sleep(Duration::from_secs(600)).await;
        for resigns in [true, false, true] {
            let ended = Instant::now();
            if resigns {
                candidate.leadership.resign().await;
            } else {
                zk.faults().remove(format!("{PATH}/{}", zk.children(PATH)[0]));
            }
            assert_eq!(candidate.is_dropped().await, term.number());
            term = candidate.leads().await;
            let paused = ended.elapsed();
            let expected = if resigns { 0..=1 } else { 500..=1_001 };
            assert!(expected.contains(&paused.as_millis()), "resigns: {resigns}, {paused:?}");
            sleep(Duration::from_secs(600)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_candidate_leads_again_after_a_restore() {
    let zk = Memory::new();
    let backup = zk.faults().back_up();
    let mut candidate = Candidate::campaigns(leadership(&zk));
    let mut terms = vec![candidate.leads().await.number()];
    for resigned in 1..4 {
        assert!(soon("the resignation", candidate.leadership.resign()).await);
        candidate.is_dropped().await;
        let before = candidate.leads().await;
        zk.faults().restore(&backup);
        assert_eq!(candidate.is_dropped().await, before.number());
        let term = candidate.leads().await;
        assert!(term.number() <= *terms.iter().max().expect("some"), "{term:?} {terms:?}");
        let requests = zk.requests();
        sleep(Duration::from_secs(600)).await;
        assert!(term.is_leader() && candidate.events.is_empty(), "after {resigned}");
        // In these 600 s, the candidate sends nothing but the heartbeats that renew its lease.
        assert!(zk.requests() - requests < 1_000);
        terms.extend([before.number(), term.number()]);
    }
    soon("the stop", candidate.leadership.stop()).await;
}

#[tokio::test(start_paused = true)]
async fn work_that_fails_at_once_is_retried_with_backoff() {
    let zk = Memory::new();
    let candidate = leadership(&zk);
    let (begun, mut terms) = (Instant::now(), Vec::new());
    while begun.elapsed() < Duration::from_secs(300) {
        let failed = candidate.lead(|_| async { Err::<(), _>("no database") }).await.unwrap();
        assert_eq!(failed, Some(Err("no database")));
        terms.push(begun.elapsed());
    }
    let pauses: Vec<_> = terms.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    for (pause, longest) in pauses.iter().zip([1, 2, 4, 8, 16, 32, 32, 32, 32]) {
        let longest = f64::from(longest);
        assert!((longest / 2.0 - 0.01..=longest + 0.01).contains(pause), "{pauses:?}");
    }
    assert!((12..=24).contains(&terms.len()), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_an_hour_is_asked_seldom_and_ends_soon() {
    let zk = Memory::new();
    let mut candidate = Candidate::campaigns(leadership(&zk));
    candidate.leads().await;
    zk.faults().cut();
    sleep(Duration::from_secs(3_600)).await;
    candidate.is_dropped().await;
    let before = zk.requests();
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(zk.requests(), before, "requests were queued for the reconnect");
    zk.faults().expire();
    zk.faults().heal();
    let healed = Instant::now();
    candidate.leads().await;
    assert!(healed.elapsed() <= Duration::from_secs(33), "{:?}", healed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_health_check_without_an_answer_fails() {
    let zk = Memory::new();
    let (well, checks) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let check = {
        let (well, checks) = (Arc::clone(&well), Arc::clone(&checks));
        move || {
            checks.fetch_add(1, Ordering::Relaxed);
            let well = Arc::clone(&well);
            async move {
                if !well.load(Ordering::Relaxed) {
                    pending::<()>().await;
                }
                true
            }
        }
    };
    let built = Leadership::builder(&zk, PATH).health(Duration::from_secs(5), check).build().unwrap();
    let mut candidate = Candidate::campaigns(built);
    let term = candidate.leads().await;
    sleep(Duration::from_secs(501)).await;
    // One health check before the campaign, and one every five seconds.
    assert_eq!(checks.load(Ordering::Relaxed), 101);
    well.store(false, Ordering::Relaxed);
    let unwell = Instant::now();
    assert_eq!(candidate.is_dropped().await, term.number());
    assert!(unwell.elapsed() <= Duration::from_secs(10), "{:?}", unwell.elapsed());
    sleep(Duration::from_secs(600)).await;
    assert!(zk.children(PATH).is_empty() && !candidate.leadership.is_leader());
    well.store(true, Ordering::Relaxed);
    let next = candidate.leads().await;
    assert!(next.number() > term.number());
    soon("the stop", candidate.leadership.stop()).await;
}

#[test]
fn a_loss_at_the_end_of_the_work_repeats_the_work() {
    let zk = Memory::new();
    let candidate = leadership(&zk);
    let operator = zk.clone();
    let mut campaign = spawn(candidate.lead(move |term: Term| {
        let operator = operator.clone();
        async move {
            operator.faults().remove(format!("{PATH}/{}", operator.children(PATH)[0]));
            let refused = term.transaction().create("/work", "done").commit().await.unwrap_err();
            assert!(matches!(refused, Error::Lost(Loss::Removed)), "{refused}");
            Err::<(), Error>(refused)
        }
    }));
    assert_pending!(campaign.poll());
    assert_eq!(zk.children("/work").len(), 0);
    drop(campaign);
    assert_eq!((zk.children(PATH).len(), zk.watches()), (0, 0));
}

/// The server could carry out a transaction of a past term late, under the next leader. So the client must not send
/// such a transaction.
#[test]
fn a_transaction_of_a_past_term_is_not_sent() {
    let zk = Memory::new();
    let candidate = leadership(&zk);
    let (sender, mut events) = mpsc::unbounded_channel();
    let mut campaign = spawn(candidate.lead(endless(sender)));
    assert_pending!(campaign.poll());
    let Ok(TermEvent::Leads(term)) = events.try_recv() else { panic!("the candidate does not lead") };
    zk.faults().lose_next_request();
    drop(campaign);
    let before = zk.requests();
    let refused = now(term.transaction().create("/late", "").commit()).unwrap_err();
    assert!(matches!(refused, Error::Lost(Loss::GivenBack)), "{refused}");
    assert_eq!(zk.requests(), before);
    assert!(zk.children("/").iter().all(|name| name != "late"));
}

/// The campaign is dropped just before the transaction is sent, as another thread could do.
#[test]
fn a_transaction_sent_after_the_term_is_refused() {
    let memory = Memory::new();
    let ends: Arc<Mutex<Option<Box<dyn Send>>>> = Arc::default();
    let end = Arc::clone(&ends);
    let zk = Hindered::new(&memory, move |asked| {
        if matches!(asked, Request::Transact(operations) if operations.iter().any(|it| it.path() == "/late")) {
            drop(end.lock().unwrap().take());
        }
        None
    });
    let candidate = Leadership::new(&zk, "/leaders").expect("valid");
    let (sender, mut events) = mpsc::unbounded_channel();
    let mut campaign = spawn(async move { candidate.lead(endless(sender)).await });
    assert_pending!(campaign.poll());
    let Ok(TermEvent::Leads(term)) = events.try_recv() else { panic!("the candidate does not lead") };
    *ends.lock().unwrap() = Some(Box::new(campaign));
    let refused = now(term.transaction().create("/late", "").commit()).unwrap_err();
    assert!(matches!(refused, Error::Lost(Loss::GivenBack)), "{refused}");
    assert_eq!(now(term.lost()), Loss::GivenBack);
}

/// A read under a past term might return writes of the next leader, and the caller would take them for writes of an
/// earlier leader.
#[test]
fn a_read_of_a_past_term_is_not_sent() {
    let zk = Memory::new();
    let candidate = leadership(&zk);
    let (sender, mut events) = mpsc::unbounded_channel();
    let mut campaign = spawn(candidate.lead(endless(sender)));
    assert_pending!(campaign.poll());
    let Ok(TermEvent::Leads(term)) = events.try_recv() else { panic!("the candidate does not lead") };
    assert!(now(term.read_node("/leaders")).expect("the candidate leads").is_some());
    drop(campaign);
    let before = zk.requests();
    let refused = now(term.read_node("/leaders")).unwrap_err();
    assert!(matches!(refused, Error::Lost(Loss::GivenBack)), "{refused}");
    assert_eq!(zk.requests(), before);
}

/// The four candidates resign in turn, 400 times in all. At every time, at most one of them works as leader, and
/// `is_leader` is true for at most one.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_one_of_many_candidates_leads() {
    let zk = Memory::new();
    let leaders = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let candidates: Vec<_> = (0..4).map(|_| leadership(&zk.connect())).collect();
    let mut campaigns = tokio::task::JoinSet::new();
    for candidate in candidates.clone() {
        let (leaders, most) = (Arc::clone(&leaders), Arc::clone(&most));
        campaigns.spawn(async move {
            let work = move |term: Term| {
                let (leaders, most) = (Arc::clone(&leaders), Arc::clone(&most));
                async move {
                    struct Steps(Arc<AtomicUsize>);
                    impl Drop for Steps {
                        fn drop(&mut self) {
                            self.0.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                    most.fetch_max(leaders.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    let _steps = Steps(leaders);
                    assert!(term.is_leader());
                    pending::<()>().await
                }
            };
            candidate.lead(work).await
        });
    }
    for round in 0..400 {
        candidates[round % 4].resign().await;
        assert!(candidates.iter().filter(|candidate| candidate.is_leader()).count() <= 1);
        if round % 50 == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
    for candidate in &candidates {
        soon("the stop", candidate.stop()).await;
    }
    while let Some(ended) = campaigns.join_next().await {
        assert_eq!(ended.unwrap().unwrap(), None);
    }
    assert_eq!((most.load(Ordering::SeqCst), leaders.load(Ordering::SeqCst)), (1, 0));
    assert_eq!((zk.children(PATH).len(), zk.watches()), (0, 0));
}

#[test]
fn futures_are_send_and_types_are_send_and_sync() {
    fn is_send<T: Send>(it: T) -> T {
        it
    }
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Leadership>();
    is_send_and_sync::<Term>();
    is_send_and_sync::<zk_rwlock::leadership::LeaderChanges>();
    is_send_and_sync::<zk_rwlock::leadership::LeadershipBuilder>();
    let candidate = leadership(&Memory::new());
    let (text, mut changes) = ("borrowed".to_owned(), candidate.changes());
    drop(is_send(candidate.lead(|_term| async { text.len() })));
    drop(is_send(candidate.lead(async |term: Term| term.number())));
    drop(is_send(candidate.resign()));
    drop(is_send(candidate.stop()));
    drop(is_send(candidate.leader()));
    drop(is_send(changes.next()));
}
