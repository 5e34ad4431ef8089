//! Spans, events and warnings of the library, on the embedded ensemble, polled by hand.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use support::hindered::{Hindered, Request};
use support::polled::now;
use support::several::several;
use tokio_test::task;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Metadata, Span, Subscriber};
use tracing_core::span::Current;
use zk_rwlock::coordinator::Failure;
use zk_rwlock::queue::MemberState;
use zk_rwlock::semaphore::Permit;
use zk_rwlock::{Error, Leadership, Memory, Mode, RwLock, Semaphore, Survey, WriteGuard};

const DIRECTORY: &str = "/lock";

/// The lines that the library logs on this thread while this value lives. A span is logged when it closes.
#[derive(Clone, Default)]
struct Log(Arc<Seen>);

#[derive(Default)]
struct Seen {
    lines: Mutex<Vec<String>>,
    next: AtomicU64,
    open: Mutex<HashMap<u64, (usize, String, &'static Metadata<'static>)>>,
    /// The spans that are entered, the innermost last.
    entered: Mutex<Vec<u64>>,
    /// Each span or event, with the span around it.
    inside: Mutex<Vec<(String, String)>>,
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value =
            if field.name() == "path" || field.name() == "node" { "..".to_owned() } else { format!("{value:?}") };
        write!(self.0, " {}={value}", field.name()).expect("a string");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("zk_rwlock") || metadata.target() == module_path!()
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed) + 1;
        let mut fields = Fields(attributes.metadata().name().to_owned());
        let parent = if attributes.is_contextual() { self.innermost() } else { attributes.parent().map(Id::into_u64) };
        self.note(fields.0.clone(), parent);
        attributes.record(&mut fields);
        self.0.open.lock().expect("no panic").insert(number, (1, fields.0, attributes.metadata()));
        Id::from_u64(number)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut open = self.0.open.lock().expect("no panic");
        let (_, text, _) = open.get_mut(&span.into_u64()).expect("open");
        let mut fields = Fields(std::mem::take(text));
        values.record(&mut fields);
        *text = fields.0;
    }

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(event.metadata().level().to_string());
        event.record(&mut fields);
        self.note(fields.0.clone(), self.innermost());
        self.0.lines.lock().expect("no panic").push(fields.0);
    }

    fn enter(&self, span: &Id) {
        self.0.entered.lock().expect("no panic").push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        assert_eq!(self.0.entered.lock().expect("no panic").pop(), Some(span.into_u64()));
    }

    fn current_span(&self) -> Current {
        let Some(innermost) = self.innermost() else { return Current::none() };
        Current::new(Id::from_u64(innermost), self.0.open.lock().expect("no panic")[&innermost].2)
    }

    fn clone_span(&self, span: &Id) -> Id {
        self.0.open.lock().expect("no panic").get_mut(&span.into_u64()).expect("open").0 += 1;
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let mut open = self.0.open.lock().expect("no panic");
        let count = &mut open.get_mut(&span.into_u64()).expect("open").0;
        *count -= 1;
        let is_closed = *count == 0;
        if is_closed && let Some((_, text, _)) = open.remove(&span.into_u64()) {
            self.0.lines.lock().expect("no panic").push(text);
        }
        is_closed
    }
}

/// A second subscriber. With a single subscriber, `tracing` asks only on the first thread that reaches a span whether
/// the span is wanted, and caches the answer for all threads. The first thread may run a test that does not want the
/// span.
static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Log::default()));

impl Log {
    fn start() -> (Log, DefaultGuard) {
        LazyLock::force(&ANOTHER);
        let log = Log::default();
        (log.clone(), tracing::subscriber::set_default(log))
    }

    fn lines(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lines.lock().expect("no panic"))
    }

    fn innermost(&self) -> Option<u64> {
        self.0.entered.lock().expect("no panic").last().copied()
    }

    fn note(&self, what: String, parent: Option<u64>) {
        let open = self.0.open.lock().expect("no panic");
        let parent =
            parent.map(|parent| open.get(&parent).expect("open").1.split(' ').next().expect("a name").to_owned());
        self.0.inside.lock().expect("no panic").push((what, parent.unwrap_or_default()));
    }

    /// Returns, for each line that begins with `begin`, the span around it, or an empty text.
    fn inside(&self, begin: &str) -> Vec<String> {
        let inside = self.0.inside.lock().expect("no panic");
        inside.iter().filter(|(what, _)| what.starts_with(begin)).map(|(_, parent)| parent.clone()).collect()
    }

    fn open_spans(&self) -> usize {
        self.0.open.lock().expect("no panic").len()
    }
}

fn open(zk: &Memory) -> RwLock {
    RwLock::new(zk, DIRECTORY).expect("valid")
}

/// Returns a lock whose directory exists and whose next contender gets number 1.
fn prepared() -> (Memory, RwLock) {
    let zk = Memory::new();
    let lock = open(&zk);
    drop(now(lock.read()).expect("free"));
    (zk, lock)
}

#[tokio::test(start_paused = true)]
async fn acquisitions_and_holds_are_spans_with_outcomes() {
    let (_zk, lock) = prepared();
    let (log, _guard) = Log::start();
    let first = now(lock.write().label("migrate")).expect("free");
    let token = first.fencing_token();
    assert_eq!(
        log.lines(),
        [
            format!("DEBUG message=granted path=.. mode=WRITE sequence=1 token={token} kind=\"at once\""),
            format!("acquire path=.. mode=WRITE label=\"migrate\" sequence=1 token={token} waited=0ns"),
        ]
    );

    let mut second = task::spawn(lock.read().into_future());
    assert_pending!(second.poll());
    tokio::time::advance(Duration::from_secs(3)).await;
    now(first.release()).expect("held");
    let held = format!("hold path=.. mode=WRITE sequence=1 token={token} label=\"migrate\" held=3s");
    assert_eq!(log.lines(), [held]);

    let second_guard = assert_ready_ok!(second.poll());
    drop(second);
    let token = second_guard.fencing_token();
    assert_eq!(
        log.lines(),
        [
            format!("DEBUG message=granted path=.. mode=READ sequence=2 token={token} kind=\"hand-off\""),
            format!("acquire path=.. mode=READ sequence=2 token={token} waited=3s"),
        ]
    );
    drop(second_guard);
    assert_eq!(log.lines(), [format!("hold path=.. mode=READ sequence=2 token={token} held=0ns")]);
    assert_eq!(log.open_spans(), 0);
}

#[tokio::test(start_paused = true)]
async fn terms_and_unhealthy_candidates_are_logged() {
    let (zk, well) = (Memory::new(), Arc::new(AtomicBool::new(true)));
    let check = {
        let well = Arc::clone(&well);
        move || std::future::ready(well.load(Ordering::Relaxed))
    };
    let builder = Leadership::builder(&zk, DIRECTORY).data("http://web-1");
    let leadership = builder.health(Duration::from_secs(5), check).build().expect("valid");
    let (log, _guard) = Log::start();
    let logged = || {
        let lines = log.lines().into_iter();
        lines.filter(|line| line.starts_with("INFO") || line.contains("health check")).collect::<Vec<_>>()
    };
    let mut campaign = task::spawn(leadership.lead(|_term| std::future::pending::<()>()));
    let mut goes_on = async |seconds| {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        assert_pending!(campaign.poll());
        leadership.term().map(|term| term.number())
    };
    let begins = |term| format!("INFO message=a term begins path=.. term={term} data=\"http://web-1\"");
    let ends = |term, lasted: &str, why: &str| {
        format!("INFO message=a term ends path=.. term={term} data=\"http://web-1\" lasted={lasted} why=\"{why}\"")
    };
    let term = goes_on(0).await.expect("the candidate leads");
    assert_eq!(logged(), [begins(term)]);
    let mut resigning = task::spawn(leadership.resign());
    assert_pending!(resigning.poll());
    let next = goes_on(2).await.expect("the candidate leads");
    assert_eq!(logged(), [ends(term, "2s", "resigned"), begins(next)]);
    well.store(false, Ordering::Relaxed);
    assert_eq!(goes_on(5).await, None);
    let unhealthy = "the health check failed: not campaigning until it succeeds path=.. data=\"http://web-1\"";
    assert_eq!(logged(), [format!("WARN message={unhealthy}"), ends(next, "5s", "unhealthy")]);
    assert_eq!(goes_on(5).await, None);
    assert_eq!(logged(), [""; 0], "logged more than once");
    well.store(true, Ordering::Relaxed);
    let last = goes_on(5).await.expect("the candidate leads");
    let healthy = "the health check succeeds: campaigning again path=.. data=\"http://web-1\" unhealthy=10s";
    assert_eq!(logged(), [format!("INFO message={healthy}"), begins(last)]);
    zk.faults().expire();
    assert_eq!(goes_on(0).await, None);
    assert_eq!(logged(), [ends(last, "0ns", "lost")]);
    let again = goes_on(60).await.expect("the candidate leads");
    assert_eq!(logged(), [begins(again)]);
    drop(campaign);
    assert_eq!(logged(), [ends(again, "0ns", "dropped")]);
    drop(resigning);
    let work = async |_term| ();
    now(leadership.lead(work)).expect("the candidate leads");
    assert_eq!(logged().last().map(|line| line.ends_with("lasted=0ns why=\"done\"")), Some(true));
}

#[test]
fn spans_have_the_right_parent_and_are_left_in_waits() {
    let (_zk, lock) = prepared();
    let held = now(lock.write()).expect("free");
    let (log, _guard) = Log::start();
    // The caller's span closes long before the grant.
    let mut waiting = tracing::info_span!("caller").in_scope(|| task::spawn(lock.write().into_future()));
    assert_pending!(waiting.poll());
    assert_eq!((log.innermost(), log.open_spans()), (None, 2));
    now(held.release()).expect("held");
    let guard = assert_ready_ok!(waiting.poll());
    drop(waiting);
    assert!(now(lock.try_read()).is_err());
    drop(guard);
    assert_eq!(log.inside("acquire"), ["caller", ""]);
    assert_eq!(log.inside("hold"), ["caller"]);
    assert_eq!(log.inside("DEBUG message=granted"), ["acquire"]);
    assert_eq!(log.inside("DEBUG message=not granted"), ["acquire"]);
    assert_eq!((log.innermost(), log.open_spans()), (None, 0));
    assert!(Span::current().is_none());
}

/// A waker that records at each wake-up whether the hold has already ended.
struct Sees {
    log: Log,
    had_ended: Mutex<Vec<bool>>,
}

impl Wake for Sees {
    fn wake(self: Arc<Self>) {
        let has_ended = self.log.0.lines.lock().expect("no panic").iter().any(|line| line.starts_with("hold"));
        self.had_ended.lock().expect("no panic").push(has_ended);
    }
}

#[test]
fn a_hold_of_a_dropped_guard_ends_before_its_node_goes() {
    let (zk, lock) = prepared();
    let other = open(&zk.connect());
    let (log, _guard) = Log::start();
    for is_dropped in [false, true] {
        let guard = now(lock.write()).expect("free");
        let sees = Arc::new(Sees { log: log.clone(), had_ended: Mutex::default() });
        let mut next = std::pin::pin!(other.write().into_future());
        assert_pending!(next.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&sees)))));
        drop(log.lines());
        if is_dropped {
            drop(guard);
        } else {
            now(guard.release()).expect("held");
        }
        assert_eq!(sees.had_ended.lock().expect("no panic").first(), Some(&true), "dropped: {is_dropped}");
    }
}

#[test]
fn a_grant_is_logged_with_its_evidence() {
    let (zk, lock) = prepared();
    let other = open(&zk.connect());
    let (log, _guard) = Log::start();
    let kind_of = |lines: Vec<String>| {
        let kinds = lines.iter().filter_map(|line| line.split("kind=").nth(1).map(str::to_owned));
        kinds.collect::<Vec<_>>()
    };
    drop(now(lock.write()).expect("free"));
    assert_eq!(kind_of(log.lines()), ["\"at once\""]);

    let reader = now(other.read()).expect("free");
    let mut writer = task::spawn(lock.write().into_future());
    assert_pending!(writer.poll());
    drop(reader);
    drop(assert_ready_ok!(writer.poll()));
    assert_eq!(kind_of(log.lines()), ["\"at once\"", "\"look\""]);
}

#[test]
fn a_dropped_or_refused_acquisition_closes_its_span() {
    let (_zk, lock) = prepared();
    let held = now(lock.write()).expect("free");
    let (log, _guard) = Log::start();
    let mut waiting = task::spawn(lock.write().into_future());
    assert_pending!(waiting.poll());
    assert_eq!((log.lines(), log.open_spans()), (Vec::new(), 1));
    drop(waiting);
    assert!(now(lock.try_read()).is_err());
    let lines = log.lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("acquire path=.. mode=WRITE sequence=2 waited="), "{lines:?}");
    assert!(
        lines[1].starts_with("DEBUG message=not granted path=.. mode=READ error=would block: held by"),
        "{lines:?}"
    );
    assert!(lines[2].starts_with("acquire path=.. mode=READ waited="), "{lines:?}");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn every_failed_acquisition_is_logged_once() {
    let (zk, lock) = prepared();
    let sharing = RwLock::builder(&zk, DIRECTORY).keep(Duration::from_secs(9)).build().expect("valid");
    let both = several(&zk, [("/a", Mode::Write), (DIRECTORY, Mode::Write)]).expect("valid");
    let _held = lock.write().await.expect("free");
    let second = Duration::from_secs(1);
    let (log, _guard) = Log::start();
    let not_granted = || {
        let lines = log
            .lines()
            .into_iter()
            .filter_map(|line| line.strip_prefix("DEBUG message=not granted path=.. ").map(str::to_owned));
        lines.map(|line| line.split(": held by").next().expect("a part").to_owned()).collect::<Vec<_>>()
    };
    assert!(lock.read().timeout(second).await.is_err());
    assert_eq!(not_granted(), ["mode=READ error=not granted within 1s"]);
    assert!(sharing.read().timeout(second).await.is_err());
    assert_eq!(not_granted(), ["mode=READ error=not granted within 1s"]);
    assert!(lock.try_write().await.is_err());
    assert_eq!(not_granted(), ["mode=WRITE error=would block"]);
    assert!(both.lock().timeout(second).await.is_err());
    assert_eq!(not_granted(), ["mode=WRITE error=not granted within 1s"]);
    assert!(both.try_lock().await.is_err());
    assert_eq!(not_granted(), ["mode=WRITE error=would block"]);
    assert!(lock.write().label("two\nlines").await.is_err());
    assert_eq!(not_granted().len(), 1);
    assert_eq!(log.open_spans(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_ends_the_write_hold_and_begins_a_read() {
    let (_zk, lock) = prepared();
    let (log, _guard) = Log::start();
    let second = Duration::from_secs(1);
    let writer = now(lock.write().label("migrate")).expect("free");
    let token = writer.fencing_token();
    tokio::time::advance(second * 3).await;
    log.lines();
    let reader = now(writer.downgrade()).expect("held");
    assert_eq!(log.lines(), [format!("hold path=.. mode=WRITE sequence=1 token={token} label=\"migrate\" held=3s")]);
    tokio::time::advance(second).await;
    drop(reader);
    assert_eq!(log.lines(), [format!("hold path=.. mode=READ sequence=1 token={token} label=\"migrate\" held=1s")]);
    assert_eq!(log.open_spans(), 0);
}

#[test]
fn a_hold_ends_when_its_release_begins() {
    let (zk, lock) = prepared();
    let (log, _guard) = Log::start();
    for guard in [Ok(now(lock.write()).expect("free")), Err(())] {
        let mut releasing: std::pin::Pin<Box<dyn Future<Output = Result<(), Error>>>> = match guard {
            Ok(writer) => Box::pin(writer.release()),
            Err(()) => Box::pin(now(lock.read()).expect("free").release()),
        };
        zk.faults().cut();
        let mut releasing = task::spawn(releasing.as_mut());
        assert_pending!(releasing.poll());
        assert_eq!(log.open_spans(), 0);
        zk.faults().heal();
        assert_ready_ok!(releasing.poll());
    }
}

#[test]
fn suspicion_and_loss_are_logged_once() {
    let (zk, lock) = prepared();
    let (log, _guard) = Log::start();
    let guard = now(lock.write()).expect("free");
    log.lines();
    zk.faults().cut();
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("WARN message=the connection is lost while a lock is held node=.. left="),
        "{lines:?}"
    );
    zk.faults().heal();
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("INFO message=the connection is back"), "{lines:?}");

    zk.faults().remove(guard.node_path());
    assert!(!guard.is_held());
    let lost =
        "WARN message=a lock was lost while it was held node=.. cause=the lock's node was removed by somebody else";
    assert_eq!(log.lines(), [lost]);
    assert!(!guard.is_held());
    zk.faults().expire();
    assert_eq!(log.lines(), Vec::<String>::new());
}

#[test]
fn an_evicted_waiter_is_not_logged_as_a_lost_hold() {
    let (zk, lock) = prepared();
    let other = open(&zk.connect());
    let _held = now(other.write()).expect("free");
    let mut waiting = task::spawn(lock.write().into_future());
    assert_pending!(waiting.poll());
    let (log, _guard) = Log::start();
    zk.faults().expire();
    assert!(assert_ready!(waiting.poll()).is_err());
    assert!(log.lines().iter().all(|line| !line.contains("lost while")));
}

#[test]
fn a_recovered_create_is_logged() {
    let (zk, lock) = prepared();
    let (log, _guard) = Log::start();
    zk.faults().lose_next_reply();
    let guard = now(lock.write()).expect("free");
    let found = log.lines().into_iter().filter(|line| line.starts_with("INFO")).collect::<Vec<_>>();
    assert_eq!(found, ["INFO message=the answer to a create was lost, and its node found path=.. node=.."]);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_is_warned_of_once_with_who_is_in_the_way() {
    let zk = Memory::new();
    let second = Duration::from_secs(1);
    let lock = RwLock::builder(&zk, DIRECTORY).warn_after_waiting(second).build().expect("valid");
    let held = now(lock.write().label("backup")).expect("free");
    let (log, _guard) = Log::start();
    let mut waiting = task::spawn(lock.read().label("report").into_future());
    assert_pending!(waiting.poll());
    tokio::time::advance(second / 2).await;
    assert_pending!(waiting.poll());
    assert_eq!(log.lines(), Vec::<String>::new());
    for _ in 0..3 {
        tokio::time::advance(second).await;
        assert_pending!(waiting.poll());
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let begin =
        "WARN message=it takes long to acquire a lock path=.. mode=READ label=\"report\" waited=1s blockers=held by";
    assert!(lines[0].starts_with(begin) && lines[0].contains("\"backup\""), "{lines:?}");
    assert!(lines[0].ends_with(" (this process); 1 ahead"), "{lines:?}");
    drop(held);
    drop(assert_ready_ok!(waiting.poll()));
}

#[tokio::test(start_paused = true)]
async fn a_warning_before_the_queue_is_not_repeated_in_it() {
    let (zk, second) = (Memory::new(), Duration::from_secs(1));
    let lock = RwLock::builder(&zk, DIRECTORY).warn_after_waiting(second).build().expect("valid");
    drop(now(lock.read()).expect("free"));
    let _held = now(RwLock::new(&zk.connect(), DIRECTORY).expect("valid").write()).expect("free");
    let (log, _guard) = Log::start();
    zk.faults().silence();
    let (mut waiting, mut lines) = (task::spawn(lock.read().into_future()), Vec::new());
    for replies in [false, true, true, true] {
        if replies {
            zk.faults().catch_up();
        }
        assert_pending!(waiting.poll());
        tokio::time::advance(2 * second).await;
        assert_pending!(waiting.poll());
        lines.extend(log.lines());
    }
    assert!(lines.len() == 1 && lines[0].starts_with("WARN message=it takes long"), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_has_just_come_is_not_warned_of() {
    let (zk, second) = (Memory::new(), Duration::from_secs(1));
    let lock = RwLock::builder(&zk, DIRECTORY).warn_after_waiting(second).build().expect("valid");
    let held = now(lock.write()).expect("free");
    let (log, _guard) = Log::start();
    let mut waiting = task::spawn(lock.read().into_future());
    assert_pending!(waiting.poll());
    drop(held);
    tokio::time::advance(second).await;
    drop(assert_ready_ok!(waiting.poll()));
    tokio::time::advance(second).await;
    let lines = log.lines();
    assert!(lines.iter().all(|line| !line.starts_with("WARN")), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_hold_is_not_warned_of_as_held_for_long() {
    let (zk, second) = (Memory::new(), Duration::from_secs(1));
    let lock = RwLock::builder(&zk, DIRECTORY).warn_after_holding(second).build().expect("valid");
    let guard = now(lock.write()).expect("free");
    let (log, _guard) = Log::start();
    zk.faults().remove(guard.node_path());
    tokio::time::advance(2 * second).await;
    assert!(!guard.is_held());
    tokio::time::advance(second).await;
    let lines = log.lines();
    assert!(lines.len() == 1 && lines[0].contains("a lock was lost"), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_outlives_its_limit_is_logged_once() {
    let denied = |asked: Request<'_>| matches!(asked, Request::Delete(_)).then(|| Failure::NoAuth(Box::default()));
    let (zk, second) = (Hindered::new(&Memory::new(), denied), Duration::from_secs(1));
    let lock = RwLock::builder(&zk, DIRECTORY).max_hold(second).build().expect("valid");
    let (log, _guard) = Log::start();
    let guard = now(lock.write()).expect("free");
    tokio::time::sleep(20 * second).await;
    let lines = log.lines();
    let errors: Vec<_> = lines.iter().filter(|line| line.starts_with("ERROR")).collect();
    assert!(errors.len() == 1 && errors[0].contains("could not be removed"), "{lines:?}");
    drop(guard);
}

/// The `on_wait` callback takes longer than the limit after which the library warns. The warning must still come, although the
/// limit has passed when the wait begins.
#[support::judged]
async fn a_long_wait_is_warned_of_despite_a_long_on_wait() {
    let (zk, limit) = (Memory::new(), Duration::from_millis(50));
    let lock = RwLock::builder(&zk, DIRECTORY).warn_after_waiting(limit).build().expect("valid");
    let _held = now(lock.write()).expect("free");
    let (log, _guard) = Log::start();
    let mut waiting = task::spawn(lock.read().on_wait(move |_| std::thread::sleep(2 * limit)).into_future());
    assert_pending!(waiting.poll());
    let logged = async {
        while log.lines().is_empty() {
            tokio::time::sleep(limit / 5).await;
            assert_pending!(waiting.poll());
        }
    };
    tokio::time::timeout(Duration::from_secs(60), logged).await.expect("the waiter is notified");
}

/// The acquisition is polled once, to queue up, and then never again. The session must log the warning.
#[tokio::test(start_paused = true)]
async fn a_long_wait_that_is_not_polled_is_warned_of_once() {
    let zk = Memory::new();
    let second = Duration::from_secs(1);
    let lock = RwLock::builder(&zk, DIRECTORY).warn_after_waiting(second);
    let lock = lock.build().expect("valid");
    let held = now(lock.write().label("backup")).expect("free");
    let (log, _guard) = Log::start();
    let mut forgotten = task::spawn(lock.write().label("report").into_future());
    assert_pending!(forgotten.poll());
    for _ in 0..3 {
        tokio::time::advance(second).await;
        tokio::task::yield_now().await;
    }
    let lines = log.lines();
    let begin =
        "WARN message=it takes long to acquire a lock path=.. mode=WRITE label=\"report\" waited=1s blockers=held by";
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with(begin) && lines[0].contains("\"backup\""), "{lines:?}");
    assert!(lines[0].ends_with(" (this process); 1 ahead"), "{lines:?}");
    drop(held);
    drop(assert_ready_ok!(forgotten.poll()));
    tokio::time::advance(second * 9).await;
    assert!(!log.lines().iter().any(|line| line.starts_with("WARN")), "the warning was logged again");
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_nobody_polls_is_warned_of() {
    let zk = Memory::new();
    let second = Duration::from_secs(1);
    let lock = RwLock::builder(&zk, DIRECTORY).warn_after_waiting(second);
    let lock = lock.build().expect("valid");
    let held = now(lock.write()).expect("free");
    let (log, _guard) = Log::start();
    let mut forgotten = task::spawn(lock.write().label("report").into_future());
    assert_pending!(forgotten.poll());
    drop(held);
    for _ in 0..3 {
        tokio::time::advance(second).await;
        tokio::task::yield_now().await;
    }
    let warnings = || log.lines().into_iter().filter(|line| line.starts_with("WARN")).collect::<Vec<_>>();
    let warning = "WARN message=the turn of an acquisition has come, and its future is not polled: all behind it wait \
                   path=.. mode=WRITE label=\"report\" node=.. waited=1s";
    assert_eq!(warnings(), [warning]);
    drop(forgotten);
    assert_eq!(log.open_spans(), 0, "a span is still open");
}

/// The warning is on by default, so that a program that waits for its own lock shows up in the log.
#[tokio::test(start_paused = true)]
async fn a_wait_of_30_s_is_warned_of_by_default() {
    let zk = Memory::new();
    let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
    let silent = RwLock::builder(&zk, "/silent").warn_after_waiting(None).build().expect("valid");
    let semaphore = Semaphore::builder(&zk, "/semaphore").permits(1).build().expect("valid");
    let candidates = [(); 2].map(|()| Leadership::new(&zk, "/leaders").expect("valid"));
    let _held = (now(lock.write()).expect("free"), now(silent.write()).expect("free"));
    let _permit = now(semaphore.acquire()).expect("free");
    let mut leads = task::spawn(candidates[0].lead(|_| std::future::pending::<()>()));
    assert_pending!(leads.poll());
    let (log, _guard) = Log::start();
    let warnings = || log.lines().iter().filter(|line| line.starts_with("WARN")).cloned().collect::<Vec<_>>();
    let waiting = [lock.write().into_future(), silent.write().into_future()];
    let mut waiting = waiting.map(task::spawn);
    waiting.iter_mut().for_each(|it| assert_pending!(it.poll()));
    let mut permit = task::spawn(semaphore.acquire().into_future());
    assert_pending!(permit.poll());
    let mut candidate = task::spawn(candidates[1].lead(|_| std::future::pending::<()>()));
    assert_pending!(candidate.poll());
    tokio::time::advance(Duration::from_secs(29)).await;
    assert_eq!(warnings(), Vec::<String>::new());
    for _ in 0..100 {
        tokio::time::advance(Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
    }
    let warnings = warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings.iter().all(|line| line.contains("it takes long to acquire a lock")), "{warnings:?}");
    assert!(warnings.iter().all(|line| line.contains("(this process)")), "{warnings:?}");
}

#[tokio::test(start_paused = true)]
async fn one_warning_covers_all_late_waiters_of_a_handle() {
    let zk = Memory::new();
    let second = Duration::from_secs(1);
    let lock = RwLock::builder(&zk, DIRECTORY).warn_after_waiting(second * 5).build().expect("valid");
    let held = now(lock.write()).expect("free");
    let (log, _guard) = Log::start();
    let mut waiting = [(); 20].map(|()| task::spawn(lock.write().into_future()));
    waiting.iter_mut().for_each(|it| assert_pending!(it.poll()));
    tokio::time::advance(second).await;
    let mut late = task::spawn(lock.write().label("late").into_future());
    assert_pending!(late.poll());
    let before = zk.requests();
    for _ in 0..20 {
        tokio::time::advance(second).await;
        tokio::task::yield_now().await;
    }
    let warnings: Vec<_> = log.lines().into_iter().filter(|line| line.starts_with("WARN")).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].ends_with(" others=19"), "{warnings:?}");
    assert!(warnings[1].contains("label=\"late\"") && !warnings[1].contains("others"), "{warnings:?}");
    // Each of the two warnings costs one listing, and one read for each contender that the warning names. A warning
    // names at most eight.
    assert!(zk.requests() - before <= 2 * 9, "{} requests", zk.requests() - before);
    drop(held);
}

/// A disconnected acquisition has neither a node in the queue nor a session that could log the warning.
#[tokio::test(start_paused = true)]
async fn a_contender_without_a_node_logs_its_own_warning() {
    let zk = Memory::new();
    let limit = Duration::from_millis(100);
    let lock = RwLock::builder(&zk, DIRECTORY).warn_after_waiting(limit).build().expect("valid");
    let (log, _guard) = Log::start();
    drop(now(lock.write()).expect("free"));
    zk.faults().cut();
    let mut waiting = task::spawn(lock.write().into_future());
    assert_pending!(waiting.poll());
    for _ in 0..3 {
        tokio::time::advance(limit).await;
        assert_pending!(waiting.poll());
    }
    zk.faults().heal();
    drop(assert_ready_ok!(waiting.poll()));
    let warnings = log.lines().into_iter().filter(|line| line.starts_with("WARN")).collect::<Vec<_>>();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("nobody is known to be in the way"), "{warnings:?}");
}

#[tokio::test(start_paused = true)]
async fn reads_waiting_for_one_node_are_warned_of_once() {
    let zk = Memory::new();
    let second = Duration::from_secs(1);
    let sharing = RwLock::builder(&zk, DIRECTORY).keep(second * 9).warn_after_waiting(second);
    let lock = sharing.build().expect("valid");
    let held = now(open(&zk.connect()).write()).expect("free");
    let (log, _guard) = Log::start();
    let mut reads = [(); 3].map(|()| task::spawn(lock.read().into_future()));
    let mut poll_all = || {
        for read in &mut reads {
            assert_pending!(read.poll());
        }
    };
    poll_all();
    let requests = zk.requests();
    tokio::time::advance(second).await;
    poll_all();
    assert_eq!(log.lines().iter().filter(|line| line.starts_with("WARN")).count(), 1);
    assert_eq!(zk.requests() - requests, 2, "expected a listing and a read of the holder's node");
    drop(held);
    drop(reads.each_mut().map(|read| assert_ready_ok!(read.poll())));
}

#[tokio::test(start_paused = true)]
async fn a_long_hold_is_warned_of_once() {
    let zk = Memory::new();
    let second = Duration::from_secs(1);
    let lock = RwLock::builder(&zk, DIRECTORY).warn_after_holding(second).build().expect("valid");
    let (log, _guard) = Log::start();
    let warnings = || log.lines().into_iter().filter(|line| line.starts_with("WARN")).collect::<Vec<_>>();
    drop(now(lock.write()).expect("free"));
    tokio::time::advance(second * 2).await;
    tokio::task::yield_now().await;
    assert_eq!(warnings(), Vec::<String>::new());

    let guard = now(lock.write().label("backup")).expect("free");
    for _ in 0..3 {
        tokio::time::advance(second).await;
        tokio::task::yield_now().await;
    }
    let token = guard.fencing_token();
    let warning =
        format!("WARN message=a lock is held for long path=.. node=.. label=\"backup\" token={token} held=1s");
    assert_eq!(warnings(), [warning]);
}

#[test]
fn each_use_of_a_kept_node_has_its_own_spans() {
    let zk = Memory::new();
    let lock = RwLock::builder(&zk, DIRECTORY).keep(Duration::from_secs(9)).build().expect("valid");
    let (log, _guard) = Log::start();
    let guards =
        [now(lock.read()).expect("free"), now(lock.read()).expect("kept"), now(lock.try_read()).expect("kept")];
    let lines = log.lines();
    let token = guards[0].fencing_token();
    let own = lines.iter().filter(|line| line.starts_with("acquire") && line.contains(&format!(" token={token} ")));
    assert_eq!((own.count(), log.open_spans()), (4, 3), "not one span for each use and one for the node: {lines:?}");
    drop(guards);
    let holds = log.lines().iter().filter(|line| line.starts_with("hold")).count();
    assert_eq!((holds, log.open_spans()), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_kept_node_is_logged_with_its_cause() {
    let zk = Memory::new();
    let lock = RwLock::builder(&zk, DIRECTORY).keep(Duration::from_secs(9)).build().expect("valid");
    let (log, _guard) = Log::start();
    let given_up =
        || log.lines().into_iter().filter(|line| line.contains("a kept lock is given up")).collect::<Vec<_>>();
    for _ in 0..3 {
        drop(now(lock.read()).expect("free or kept"));
    }
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(given_up(), Vec::<String>::new());
    now(open(&zk.connect()).ask()).expect("allowed");
    tokio::task::yield_now().await;
    assert_eq!(given_up(), ["DEBUG message=a kept lock is given up path=.. cause=\"asked\" uses=3 idle_for=2s"]);

    let guard = now(lock.write()).expect("free");
    drop(lock);
    assert_eq!(given_up(), Vec::<String>::new());
    drop(guard);
    assert_eq!(given_up(), ["DEBUG message=a kept lock is given up path=.. cause=\"closed\" uses=1 idle_for=0ns"]);
}

/// The head of a semaphore's queue waits for permits, although no contender is ahead of it.
#[tokio::test(start_paused = true)]
async fn a_permit_timeout_separates_holders_and_waiters() {
    let zk = Memory::new();
    let of = |host: &str| {
        Semaphore::builder(&zk.connect(), "/limit").permits(1).lock(|lock| lock.host(host)).build().expect("valid")
    };
    let (first, second, third, fourth) = (of("first"), of("second"), of("third"), of("fourth"));
    let _held = first.acquire().label("the holder").await.expect("free");
    let mut waits = Vec::new();
    for (semaphore, label) in [(&second, "the head"), (&third, "behind the head")] {
        waits.push(tokio::spawn(semaphore.acquire().label(label).into_future()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let error = fourth.acquire().timeout(Duration::from_secs(60)).await.expect_err("one permit is not enough");
    let Error::Timeout { blockers, .. } = &error else { panic!("{error}") };
    let named: Vec<_> = blockers.first.iter().map(|it| (it.host.as_str(), it.label.as_deref().unwrap_or(""))).collect();
    assert_eq!(named, [("first", "the holder"), ("second", "the head"), ("third", "behind the head")]);
    let states: Vec<_> = blockers.first.iter().map(|it| &it.state).collect();
    let MemberState::Waits { behind: head } = states[1] else { panic!("{states:?}") };
    let MemberState::Waits { behind } = states[2] else { panic!("{states:?}") };
    assert_eq!((states[0], head.as_str(), behind), (&MemberState::Holds, "permits", &blockers.first[1].node));
    assert_eq!(blockers.ahead, 3);
    waits.into_iter().for_each(|it| it.abort());
}

/// Returns a client that drops `guard` just before its first read of a contender's node. At that time, the client has
/// already listed the queue.
fn leaving<G: Send + 'static>(zk: &Memory, guard: G) -> Hindered {
    let leaves = Mutex::new(Some(guard));
    Hindered::new(&zk.connect(), move |asked| {
        if matches!(asked, Request::Data(node) if node.starts_with("/s/permits/") || node.starts_with("/lock/")) {
            drop(leaves.lock().expect("no panic").take());
        }
        None
    })
}

#[test]
fn a_read_queue_shows_a_holder_that_leaves_meanwhile() {
    let zk = Memory::new();
    let lock = RwLock::builder(&zk, DIRECTORY).host("web-1").build().expect("valid");
    let held = || {
        let holder: WriteGuard = now(lock.write().label("brief")).expect("free");
        let mut waits = task::spawn(lock.write().into_future());
        assert_pending!(waits.poll());
        (leaving(&zk, holder), waits)
    };
    let (client, _waits) = held();
    let queue = now(RwLock::new(&client, DIRECTORY).expect("valid").queue()).expect("readable");
    let holders: Vec<_> =
        queue.holders().map(|it| (it.host.as_str(), it.mode, it.label.as_deref(), it.token)).collect();
    assert_eq!((holders, queue.waiters().count()), (vec![("web-1", Mode::Write, None, None)], 1), "{queue}");
    drop(_waits);
    let (client, _waits) = held();
    let survey = now(Survey::below(&client, "/")).expect("readable");
    assert_eq!((survey.queues[0].holders().count(), survey.queues[0].waiters().count()), (1, 1), "{survey:?}");
    drop(_waits);
    let (client, _waits) = held();
    let taken = now(RwLock::new(&client, DIRECTORY).expect("valid").try_write()).unwrap_err();
    assert_eq!(taken.to_string(), "would block: held by WRITE web-1; 2 ahead");

    let semaphore = Semaphore::builder(&zk, "/s").permits(3).lock(|lock| lock.host("web-1")).build().expect("valid");
    let two: Permit = now(semaphore.acquire_many(2)).expect("free");
    let queue = now(Semaphore::new(&leaving(&zk, two), "/s", 3).expect("valid").queue()).expect("readable");
    assert_eq!((queue.holders().count(), queue.free()), (1, Some(1)), "{queue}");
}
