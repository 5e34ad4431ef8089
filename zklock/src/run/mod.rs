//! Runs a command under the lock: acquires the lock, watches the command and the lock, and releases the lock.

pub(crate) mod child;
mod guard;
pub(crate) mod key_listener;
mod order;
pub(crate) mod signals;
pub(crate) mod tie;
mod waiting;

use std::cell::Cell;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tokio::sync::watch;
use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::error::SessionEnd;
use zk_rwlock::once::{Record, Work};
use zk_rwlock::queue::Progress;
use zk_rwlock::semaphore::SemaphoreBuilder;
use zk_rwlock::{
    Acquire, ConnectionState, Dialect, Error, HoldState, Loss, Memory, RwLock, RwLockBuilder, Semaphore, Survey,
    ZooKeeper,
};

use crate::arguments::{ConnectionArguments, RunArguments};
use crate::connect::credentials;
use crate::connect::{self, connect_silently, connect_visibly, exit_for_error};
use crate::exit::{self, Exit};
use crate::output::{
    duration_text_to_millis, escape_and_shorten, escape_controls, print_message, print_message_within,
};
use crate::place::LockOrSemaphore;
use crate::run::child::{Child, ChildEvent, ChildOutcome, end_by_sigint_or_code};
use crate::run::guard::AnyGuard;
use crate::run::order::LockedCommand;
use crate::run::signals::Signals;
use crate::show::cycles;

/// The longest time for which zklock tries to reach a server under `-n` or `-w 0`, unless `--connect-timeout` is given.
const CONNECT_AT_ONCE: Duration = Duration::from_secs(3);

/// `-w` shortens the time for which zklock tries to reach a server, but not below this time. `-w 0` means `-n`.
const CONNECT_LEAST: Duration = Duration::from_secs(1);

/// The pause between two checks of a condition for which zklock gets no notification, such as whether the session still
/// has enough time left. [`end_rest_of_group`] begins with this pause and lengthens it.
const TICK: Duration = Duration::from_millis(10);

/// The longest wait, after the lock or the place in the queue was lost, until the client knows why it reaches no
/// server.
const REASON: Duration = Duration::from_millis(500);

/// The time limit of the search in [`find_and_describe_circle`].
const CIRCLE: Duration = Duration::from_secs(2);

const KILLED: &str = "the command was killed";

/// The time between two readings of the clock while zklock waits for the lock. If a reading comes late, zklock or the
/// machine was stopped meanwhile.
const BEAT: Duration = Duration::from_millis(500);

/// The suffix of an error message about the loss of the lock or of the place in the queue, if zklock or the machine
/// seems to have been stopped before the loss.
const STOOD_STILL: &str = " (zklock stood still meanwhile, or this machine did)";

/// The usual limit of a wait during the last steps of zklock, such as the end of the session.
/// [`release_and_end_session`] sets another limit for the release of a held lock.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long to wait at most until the servers confirm the end of the session, if zklock is not connected.
const FAREWELL_UNREACHED: Duration = Duration::from_millis(300);

pub(crate) async fn acquire_and_run(run: &RunArguments, connection: &ConnectionArguments) -> Result<u8, Exit> {
    let order = LockedCommand::from_arguments(run)?;
    if run.once_in == Some(Duration::ZERO) {
        return Err(Exit::usage("--once-in needs a time that is not zero"));
    }
    if run.permits.is_some() && connection.dialect != Dialect::Native {
        return Err(Exit::usage(
            "--permits cannot be used with --dialect: other programs do not see the nodes of a semaphore",
        ));
    }
    // The lock is opened on the library's in-memory backend first, so that a wrong path or option is reported before
    // zklock connects.
    open_lock_or_semaphore(&Memory::new(), run, &order, connection.dialect)?;
    let mut signals = Signals::listen(tie::can_use_launcher())?;
    child::start_orphan_reaper()?;
    let options = connect::client_options(connect_limit(run, connection), connection)?;
    let zk = tokio::select! {
        biased;
        signal = signals.next_signal() => return Ok(end_by_sigint_or_code(signal)),
        zk = connect_silently(&options, connection), if run.quiet => zk?,
        zk = connect_visibly(&options, connection), if !run.quiet => zk?,
    };
    let place = open_lock_or_semaphore(&zk, run, &order, connection.dialect)?;
    let stall = StallDetector::begin();
    let guard = tokio::select! {
        biased;
        signal = signals.next_signal() => {
            // `select!` has dropped the acquisition, and the end of the session removes the acquisition's node.
            end_session(&zk, &mut signals).await;
            return Ok(end_by_sigint_or_code(signal));
        }
        guard = stall.watch_during(acquire(&place, run, connection.verbose)) => guard,
    };
    let guard = match guard {
        Ok(Ok(guard)) => guard,
        Ok(Err(record)) => {
            report_job_already_done(&place, run, &record);
            end_session(&zk, &mut signals).await;
            return Ok(run.skipped_exit_code);
        }
        Err(error) => {
            let mut refusal = exit_for_refusal(error.clone(), run, connection, &zk, stall.longest_stop()).await;
            if matches!(error, Error::Timeout { cut_off: None, .. }) && !run.quiet {
                tokio::select! {
                    biased;
                    _ = signals.next_ending_signal() => {}
                    circle = find_and_describe_circle(&place, &zk) => refusal = refusal.with_suffix(&circle),
                }
            }
            end_session(&zk, &mut signals).await;
            return Err(refusal);
        }
    };
    let mut typed = None;
    let outcome = run_under_lock(&guard, run, &order, &zk, &mut signals, &mut typed).await;
    let late = release_and_end_session(guard, &zk, connection, &mut signals).await;
    if let Some(key) = typed {
        key_listener::pass_key_signal_on(key);
    }
    Ok(outcome?.exit_code(late))
}

/// Returns how long to try to reach a server. The time is the connect timeout or, if none is given, the session
/// timeout. `-w` shortens it to the time of the wait, but not below [`CONNECT_LEAST`]. If no connect timeout is given,
/// `-n` and `-w 0` shorten it to [`CONNECT_AT_ONCE`].
fn connect_limit(run: &RunArguments, connection: &ConnectionArguments) -> Duration {
    let wanted = connection.connect_timeout.unwrap_or(connection.session_timeout);
    match run.wait {
        Some(wait) if !run.does_not_wait() => wanted.min(wait.max(CONNECT_LEAST)),
        _ if run.does_not_wait() && connection.connect_timeout.is_none() => wanted.min(CONNECT_AT_ONCE),
        _ => wanted,
    }
}

fn open_lock_or_semaphore<C: Coordinator + Clone>(
    zk: &C,
    run: &RunArguments,
    order: &LockedCommand,
    dialect: Dialect,
) -> Result<LockOrSemaphore, Exit> {
    let named = |lock: RwLockBuilder| run.host.iter().fold(lock.label(&order.label), RwLockBuilder::host);
    let Some(permits) = run.permits else {
        let lock = named(RwLock::builder(zk, &order.path).dialect(dialect));
        return Ok(LockOrSemaphore::Lock(run.max_hold.into_iter().fold(lock, RwLockBuilder::max_hold).build()?));
    };
    let semaphore = Semaphore::builder(zk, &order.path).lock(named);
    let semaphore = permits.0.iter().fold(semaphore, |semaphore, number| semaphore.permits(number.get()));
    Ok(LockOrSemaphore::Semaphore(run.max_hold.into_iter().fold(semaphore, SemaphoreBuilder::max_hold).build()?))
}

/// Acquires the lock or a permit. With `--once-in`, if the job is not due, returns the record of the last success as
/// the inner error.
async fn acquire(
    place: &LockOrSemaphore,
    run: &RunArguments,
    is_verbose: bool,
) -> Result<Result<AnyGuard, Record>, Error> {
    let started = Instant::now();
    if run.does_not_wait() {
        return try_to_acquire(place, run).await;
    }
    let (sender, places) = watch::channel(0);
    let on_progress = move |progress: &Progress| {
        sender.send_replace(progress.place);
    };
    let shown = async {
        if !run.quiet {
            waiting::show_wait(place, wait_goal_text(run), places).await;
        }
        std::future::pending::<Infallible>().await
    };
    let guard = tokio::select! {
        biased;
        guard = acquire_with_progress(place, run, on_progress) => guard?,
        never = shown => match never {},
    };
    if let Some(guard) = guard.as_ref().ok().filter(|_| is_verbose) {
        let waited = duration_text_to_millis(started.elapsed());
        let words = format!("granted {} after {waited}, token {}", place.path(), guard.fencing_token());
        print_message_within(longest_message_wait(guard), &words);
    }
    Ok(guard)
}

/// Returns the words that the message about the wait uses for the goal, such as "to read".
fn wait_goal_text(run: &RunArguments) -> &'static str {
    match (run.permits, run.shared) {
        (Some(_), _) => "for a permit of",
        (None, true) => "to read",
        (None, false) => "to write",
    }
}

async fn try_to_acquire(place: &LockOrSemaphore, run: &RunArguments) -> Result<Result<AnyGuard, Record>, Error> {
    let lock = match place {
        LockOrSemaphore::Semaphore(semaphore) => return Ok(Ok(AnyGuard::Permit(semaphore.try_acquire().await?))),
        LockOrSemaphore::Lock(lock) | LockOrSemaphore::Either(lock, ..) => lock,
    };
    Ok(match run.once_in {
        Some(period) => guard_or_record(lock.try_once_in(period).await?),
        None if run.shared => Ok(AnyGuard::Read(lock.try_read().await?)),
        None => Ok(AnyGuard::Write(lock.try_write().await?)),
    })
}

async fn acquire_with_progress(
    place: &LockOrSemaphore,
    run: &RunArguments,
    on_progress: impl FnMut(&Progress) + Send + 'static,
) -> Result<Result<AnyGuard, Record>, Error> {
    let lock = match place {
        LockOrSemaphore::Semaphore(semaphore) => {
            return Ok(Ok(AnyGuard::Permit(with_progress_and_limit(semaphore.acquire(), run, on_progress).await?)));
        }
        LockOrSemaphore::Lock(lock) | LockOrSemaphore::Either(lock, ..) => lock,
    };
    Ok(match run.once_in {
        Some(period) => guard_or_record(with_progress_and_limit(lock.write(), run, on_progress).once_in(period).await?),
        None if run.shared => Ok(AnyGuard::Read(with_progress_and_limit(lock.read(), run, on_progress).await?)),
        None => Ok(AnyGuard::Write(with_progress_and_limit(lock.write(), run, on_progress).await?)),
    })
}

/// Adds to the acquisition the callback that reports the progress, and the time limit of `--wait` if `--wait` is given.
fn with_progress_and_limit<G: zk_rwlock::Guard>(
    acquire: Acquire<G>,
    run: &RunArguments,
    on_progress: impl FnMut(&Progress) + Send + 'static,
) -> Acquire<G> {
    let acquire = acquire.on_wait(on_progress);
    run.wait.into_iter().fold(acquire, Acquire::timeout)
}

/// Returns the guard of a job that is due, or the record of the last success.
fn guard_or_record(work: Work) -> Result<AnyGuard, Record> {
    match work {
        Work::Due(guard) => Ok(AnyGuard::Once(guard)),
        Work::Done(record) => Err(record),
    }
}

/// Prints that the command is not run because the job was already done, and which process did the job. Prints nothing
/// with `-q`.
fn report_job_already_done(place: &LockOrSemaphore, run: &RunArguments, record: &Record) {
    if run.quiet {
        return;
    }
    let period = humantime::format_duration(run.once_in.unwrap_or_default());
    let last = escape_controls(&record.to_string());
    print_message(&format!("{}: not run, because it was {last}, less than {period} ago", place.path()));
}

async fn exit_for_refusal(
    error: Error,
    run: &RunArguments,
    connection: &ConnectionArguments,
    zk: &ZooKeeper,
    longest_stop: Duration,
) -> Exit {
    let exit = exit_for_error(error.clone(), connection);
    let message = match &error {
        Error::Lost(why) | Error::Evicted(why)
            if may_come_from_stop(*why) && longest_stop > connection.session_timeout / 4 =>
        {
            format!("{}{STOOD_STILL}", exit.message())
        }
        Error::Lost(why) | Error::Evicted(why) => {
            format!("{}{}", exit.message(), describe_disconnection(*why, zk).await)
        }
        _ => exit.message().to_owned(),
    };
    let code = match &error {
        Error::Timeout { .. } | Error::WouldBlock { .. } => run.conflict_exit_code,
        Error::Lost(why) => exit::code_of_loss(*why, exit::PLACE_LOST),
        _ => exit.code(),
    };
    // With `-q` the exit code alone says that the lock was not granted, so that cron sends no mail. Other errors are
    // printed.
    let is_silent = run.quiet && matches!(error, Error::Timeout { .. } | Error::WouldBlock { .. });
    Exit::new(code, if is_silent { String::new() } else { message })
}

/// Looks for a circle of processes that wait for each other, which the wait of this process closes. Returns a text
/// about the circle, or an empty text if none is found. None is found if there is none, if it is not below the common
/// parent of the two locks, or if the search fails or takes longer than [`CIRCLE`]. Only a process that runs under
/// another `zklock` searches. Any other zklock holds no lock while it waits, so nobody waits for it, and the search
/// would load the servers for nothing.
async fn find_and_describe_circle(place: &LockOrSemaphore, zk: &ZooKeeper) -> String {
    let variable = |name| std::env::var(name).ok();
    let Some(outer) = variable("ZKLOCK_PATH") else { return String::new() };
    let prefix = common_parent(place.path(), &outer).to_owned();
    let under = variable("ZKLOCK_TOKEN").and_then(|token| token.parse().ok()).map(|token| (outer, token));
    let Ok(survey) = Survey::below(zk, &prefix).timeout(CIRCLE).await else { return String::new() };
    let Some(waits) = cycles::circle_closed_by_wait(&survey.queues, place.path(), under) else { return String::new() };
    let waits: Vec<String> = waits.iter().map(|wait| escape_controls(&wait.to_string())).collect();
    format!("; this wait closes a circle: {}", waits.join("; "))
}

/// Returns the path of the deepest node above both locks.
fn common_parent<'a>(one: &'a str, other: &str) -> &'a str {
    let steps = one.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
    let is_above = |at: &usize| other.strip_prefix(&one[..*at]).is_some_and(|rest| rest.starts_with('/'));
    steps.take_while(is_above).last().map_or("/", |end| &one[..end])
}

/// Returns whether a stop of zklock (by SIGSTOP, or because the machine was suspended) can have caused this loss.
fn may_come_from_stop(why: Loss) -> bool {
    matches!(why, Loss::LeaseRanOut | Loss::SessionOver(SessionEnd::Expired))
}

/// Estimates the longest time for which zklock or the machine was stopped while zklock waited. The clock is read
/// regularly. The estimate is the greatest delay of a reading.
struct StallDetector {
    last: Cell<Instant>,
    longest: Cell<Duration>,
}

impl StallDetector {
    fn begin() -> StallDetector {
        StallDetector { last: Cell::new(Instant::now()), longest: Cell::default() }
    }

    /// Awaits `work`, and reads the clock every [`BEAT`] meanwhile.
    async fn watch_during<T>(&self, work: impl Future<Output = T>) -> T {
        let stall = async {
            loop {
                tokio::time::sleep(BEAT).await;
                self.longest.set(self.longest_stop());
                self.last.set(Instant::now());
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            never = stall => never,
        }
    }

    /// Returns the greatest delay of a reading so far. If the next reading is overdue now, its delay counts, too.
    fn longest_stop(&self) -> Duration {
        self.longest.get().max(self.last.get().elapsed().saturating_sub(BEAT))
    }
}

/// Returns a suffix for the message of a loss. It says since when no server is reached, and why. Returns an empty text
/// if the lease did not run out, if zklock is connected, or if the client does not know the reason within [`REASON`].
async fn describe_disconnection(why: Loss, zk: &ZooKeeper) -> String {
    if why == Loss::LeaseRanOut && !zk.state().is_connected() {
        let started = Instant::now();
        while started.elapsed() < REASON {
            // If the client has no connection, a call of `state` makes it find out why it reaches no server.
            if let state @ ConnectionState::Connecting { why: Some(_), .. } = zk.state() {
                return format!(" ({state})");
            }
            tokio::time::sleep(TICK).await;
        }
    }
    String::new()
}

/// Runs the command until it ends. If the lock is lost, ends the command. Afterwards copies [`ChildOutcome::typed`] to
/// `typed`. If the lock is lost before the start, fails without running the command.
async fn run_under_lock(
    guard: &AnyGuard,
    run: &RunArguments,
    order: &LockedCommand,
    zk: &ZooKeeper,
    signals: &mut Signals,
    typed: &mut Option<Signal>,
) -> Result<ChildOutcome, Exit> {
    signals.listen_to_all()?;
    let environment = [
        ("ZKLOCK_PATH", order.path.clone()),
        ("ZKLOCK_MODE", guard.mode_name().to_owned()),
        ("ZKLOCK_TOKEN", guard.fencing_token().to_string()),
    ];
    if !guard.is_held() {
        let why = guard.lost().await;
        return fail_with_loss(why, exit::PLACE_LOST, client_unless_stalled(guard, why, zk), "nothing was run").await;
    }
    let without = if run.keep_credentials { &[][..] } else { &credentials::VARIABLES };
    let mut child = Child::spawn(&order.command, &environment, without, signals)?;
    let mut changes = guard.changes();
    let mut suspect = false;
    loop {
        tokio::select! {
            // With `biased` and this order of the branches, a loss of the lock is handled before all other events.
            biased;
            state = changes.next() => match state {
                Some(HoldState::Suspect { until }) => {
                    suspect = true;
                    let left = until.saturating_duration_since(Instant::now()).as_secs_f32();
                    let words = format!("the connection is lost; unless it comes back, the lock is lost in {left:.1} s");
                    print_message_within(longest_message_wait(guard), &words);
                }
                Some(HoldState::Held) if suspect => {
                    suspect = false;
                    print_message_within(longest_message_wait(guard), "the connection is back, and the lock is still held");
                }
                Some(HoldState::Lost { why }) => {
                    print_message_within(longest_message_wait(guard), &format!("the lock is lost: {why}; the command is ended"));
                    let client = client_unless_stalled(guard, why, zk);
                    let how = end_command(guard, run, child, typed).await;
                    return fail_with_loss(why, run.lost_exit_code, client, how).await;
                }
                Some(_) => {}
                None => std::future::pending().await,
            },
            event = child.next_event() => match event {
                ChildEvent::Stopped(by) => child.handle_stop(by),
                ChildEvent::Ended => {
                    // The lock may be lost by the time zklock sees that the command has ended. Then zklock reports the
                    // loss, because the command may have run without the lock.
                    let mut held = guard.is_held();
                    let reaped = child.reap();
                    *typed = reaped.typed;
                    if let Some(group) = reaped.cut_short.filter(|_| held) {
                        end_rest_of_group(group, guard, run, signals).await;
                        held = guard.is_held();
                    }
                    if !held {
                        let why = guard.lost().await;
                        let client = client_unless_stalled(guard, why, zk);
                        return fail_with_loss(why, run.lost_exit_code, client, "the command has ended").await;
                    }
                    return record_success(guard, run, reaped, signals).await;
                }
            },
            signal = signals.next_signal() => match signal {
                // The lock is lost, for example because zklock was stopped for too long. So the command must not be
                // continued. The loop handles the loss next.
                Signal::CONT if !guard.is_held() => {}
                Signal::CONT => child.resume(),
                signal => child.pass_signal_on(signal),
            },
        }
    }
}

/// With `--once-in`, records the success of a command that has exited with 0. In all other cases returns `reaped` at
/// once. If a signal comes while zklock waits for the servers' reply, the wait ends: a message says that the outcome is
/// unknown, and zklock then ends as [`end_by_sigint_or_code`] does for the signal.
///
/// # Errors
/// Fails if the success is not recorded, or if the outcome is unknown for another reason than a signal. Without the
/// record, the next zklock with `--once-in` runs the command again.
async fn record_success(
    guard: &AnyGuard,
    run: &RunArguments,
    reaped: ChildOutcome,
    signals: &mut Signals,
) -> Result<ChildOutcome, Exit> {
    let AnyGuard::Once(once) = guard else { return Ok(reaped) };
    if reaped.code != 0 {
        return Ok(reaped);
    }
    let recorded = tokio::select! {
        biased;
        // After a loss of the lock, zklock waits for the reply for [`FAREWELL`] longer, because the reply may still
        // come. The wait does no harm, because the command has ended.
        recorded = once.done() => recorded,
        why = async {
            let why = guard.lost().await;
            tokio::time::sleep(FAREWELL).await;
            why
        } => Err(Error::OutcomeUnknown { operation: "record", reason: why.to_string() }),
        signal = signals.next_ending_signal() => {
            let unknown = "a signal came before ZooKeeper confirmed the record in";
            let problem = format!("the command has succeeded, but {unknown} {}: without the record the command is run again", once.record());
            print_message(&escape_and_shorten(&problem));
            // The signal is put back, so that it also shortens the wait for the reply to the release.
            signals.put_back(signal);
            return Ok(reaped.then_ended_by(signal));
        }
    };
    let Err(error) = recorded else { return Ok(reaped) };
    let is_known = !matches!(error, Error::OutcomeUnknown { .. });
    let what =
        if is_known { "its success is not recorded in" } else { "it is not known whether its success is recorded in" };
    let exit = Exit::from(error.clone());
    let code = match error {
        Error::Lost(why) => exit::code_of_loss(why, run.lost_exit_code),
        _ if guard.is_held() => exit.code(),
        _ => run.lost_exit_code,
    };
    let problem = format!("the command has succeeded, but {what} {}", once.record());
    Err(Exit::new(code, format!("{problem}: {}; without the record the command is run again", exit.message())))
}

async fn fail_with_loss(why: Loss, code: u8, client: Option<&ZooKeeper>, how: &str) -> Result<ChildOutcome, Exit> {
    let because = match client {
        Some(zk) => describe_disconnection(why, zk).await,
        None => STOOD_STILL.to_owned(),
    };
    let problem = format!("the lock was lost: {why}{because}; {how}");
    Err(Exit::new(exit::code_of_loss(why, code), problem))
}

/// Returns the client, which may know why no server is reached. Returns `None` if the lease ran out, and the session
/// may have expired before zklock noticed this. Then zklock seems to have been stopped, and the servers are not the
/// cause.
fn client_unless_stalled<'z>(guard: &AnyGuard, why: Loss, zk: &'z ZooKeeper) -> Option<&'z ZooKeeper> {
    let is_late = why == Loss::LeaseRanOut && guard.session_left().is_zero();
    (!is_late).then_some(zk)
}

/// Returns the longest wait until a message is printed: an eighth of the time until the session can expire, or 200 ms
/// if that is shorter. An eighth leaves enough time for KILL.
fn longest_message_wait(guard: &AnyGuard) -> Duration {
    (guard.session_left() / 8).min(Duration::from_millis(200))
}

/// Divides `left`, the time until the session can expire. Reserves a sixth of `left` for KILL. Returns the grace, which
/// is the time between TERM and KILL, and the reserve. The grace is `wanted`, or the rest of `left` if that is shorter.
fn grace_and_reserve(wanted: Duration, left: Duration) -> (Duration, Duration) {
    let reserve = left / 6;
    (wanted.min(left - reserve), reserve)
}

/// Ends the command by TERM and, after the grace, by KILL. Returns a text that says how the command ended.
///
/// No other contender gets the lock before this session can expire, unless somebody removes this lock's node.
/// - KILL follows TERM after `--grace`, but not later than the moment when a sixth of the session's remaining time is
///   left. The remaining time is measured at TERM.
/// - If the session may have expired already, or if `--grace` is zero, KILL is sent at once, without TERM.
/// - If somebody has removed the node, the command still gets the grace, although another contender may have the lock.
async fn end_command(
    guard: &AnyGuard,
    run: &RunArguments,
    mut child: Child,
    typed: &mut Option<Signal>,
) -> &'static str {
    let how = end_by_term_and_kill(guard, run, &mut child).await;
    let reaped = child.reap();
    *typed = reaped.typed;
    // A command may have ended before KILL was sent, for example while zklock was stopped. Then it was not killed.
    match reaped.code == exit::code_of_signal(Signal::KILL.as_raw()) {
        false if how == KILLED => "the command has ended",
        _ => how,
    }
}

async fn end_by_term_and_kill(guard: &AnyGuard, run: &RunArguments, child: &mut Child) -> &'static str {
    let (grace, reserve) = grace_and_reserve(run.grace, guard.session_left());
    let started = Instant::now();
    if !grace.is_zero() {
        child.send_signal(Signal::TERM);
        // CONT follows, because a stopped command does not react to TERM.
        child.send_signal(Signal::CONT);
        // The loop reads the clock in short steps. A long timer would be late, because timers stand still while the
        // machine is suspended, but the session can still expire meanwhile.
        while started.elapsed() < grace && guard.session_left() > reserve {
            tokio::select! {
                biased;
                event = child.next_event() => if event == ChildEvent::Ended {
                    // The other processes of the command's group must not go on either.
                    child.send_signal(Signal::KILL);
                    return "the command has ended on TERM";
                },
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }
    if child.send_signal(Signal::KILL) {
        while child.next_event().await != ChildEvent::Ended {}
        return KILLED;
    }
    print_message("the command belongs to another user, and cannot be ended: it runs on without the lock");
    while child.next_event().await != ChildEvent::Ended {}
    "the command could not be ended, and has ended by itself"
}

/// Waits until the remaining processes of the command's group have ended, too. They got the signal that ended the
/// command. Kills them after the grace, or immediately if the lock is lost or another signal comes. After the kill,
/// waits for their end for [`FAREWELL`] at most.
async fn end_rest_of_group(group: Pid, guard: &AnyGuard, run: &RunArguments, signals: &mut Signals) {
    let ended = async || {
        let mut pause = TICK;
        while child::is_group_alive(group) {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(FAREWELL / 10);
        }
    };
    tokio::select! {
        biased;
        () = ended() => return,
        _ = guard.lost() => {}
        _ = signals.next_ending_signal() => {}
        () = tokio::time::sleep(run.grace) => {}
    }
    child::kill_group(group);
    let _ = tokio::time::timeout(FAREWELL, ended()).await;
}

/// Releases the lock and ends the session in one round trip. The release is sent first, because the release of a write
/// lock can grant the lock to the next contender in the same transaction. The end of the session only removes the node.
///
/// The wait for the replies has a limit. The limit is one session timeout if zklock is connected and holds the lock.
/// Otherwise it is [`FAREWELL`], or without a connection [`FAREWELL_UNREACHED`]. A signal that came before lowers the
/// limit to [`FAREWELL`]. If the limit ends the wait for a lock that was held, a message says for how long the lock may
/// stay taken. Returns the signal that came before or during the wait, if there is one.
async fn release_and_end_session(
    guard: AnyGuard,
    zk: &ZooKeeper,
    connection: &ConnectionArguments,
    signals: &mut Signals,
) -> Option<Signal> {
    let limit = match (is_server_reached(zk), guard.is_held()) {
        (true, true) => connection.session_timeout,
        (true, false) => FAREWELL,
        (false, _) => FAREWELL_UNREACHED,
    };
    // A signal that came before is taken from the stream, so that it does not end the wait at once. It only lowers the
    // limit.
    let pending = signals.take_pending();
    let limit = if pending.is_some() { limit.min(FAREWELL) } else { limit };
    let left = guard.is_held().then(|| guard.session_left());
    // `select!` and `join!` poll the release first, and that poll sends its request. An error of the release is
    // ignored, because the end of the session removes the node, too.
    let both = async { tokio::join!(biased; guard.release(), zk.close()) };
    tokio::select! {
        biased;
        done = tokio::time::timeout(limit, both) => {
            if let (Err(_), Some(left)) = (done, left) {
                let left = duration_text_to_millis(left);
                print_message(&format!("no server has confirmed the release: the lock is free when the session ends, in {left} at most"));
            }
            pending
        }
        // The user does not want to wait for the reply any longer. The end of the session removes the node.
        signal = signals.next_ending_signal() => Some(signal),
    }
}

/// Asks the servers to end the session, and so to remove all its nodes. Waits for the reply for a limited time, or
/// until a signal comes. If no server gets the request, the session ends later, by its timeout.
async fn end_session(zk: &ZooKeeper, signals: &mut Signals) {
    let limit = if is_server_reached(zk) { FAREWELL } else { FAREWELL_UNREACHED };
    tokio::select! {
        biased;
        _ = tokio::time::timeout(limit, zk.close()) => {}
        _ = signals.next_ending_signal() => {}
    }
}

fn is_server_reached(zk: &ZooKeeper) -> bool {
    !matches!(zk.state(), ConnectionState::Connecting { .. })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::Arguments;

    fn read(words: &[&str]) -> Arguments {
        Arguments::try_parse_from(["zklock"].iter().chain(words)).expect("valid arguments")
    }

    #[test]
    fn a_short_wait_shortens_the_connect_timeout() {
        for (words, milliseconds) in [
            (&[][..], 10_000),
            (&["-w", "5"], 5_000),
            (&["-w", "0.2"], 1_000),
            (&["-w", "60"], 10_000),
            (&["-n"], 3_000),
            (&["-w", "0"], 3_000),
            (&["-n", "--connect-timeout", "7"], 7_000),
            (&["-n", "--connect-timeout", "2"], 2_000),
            (&["-w", "5", "--connect-timeout", "7"], 5_000),
            (&["--connect-timeout", "70"], 70_000),
        ] {
            let given = read(&[words, &["--session-timeout", "10", "/l", "true"]].concat());
            assert_eq!(connect_limit(&given.run, &given.connection), Duration::from_millis(milliseconds), "{words:?}");
        }
    }

    #[test]
    fn a_common_parent_is_above_both_locks() {
        for (one, other, parent) in [
            ("/locks/a", "/locks/b", "/locks"),
            ("/locks/a", "/locks/a", "/locks"),
            ("/locks/deep/a", "/locks/b", "/locks"),
            ("/locks/a", "/lockset/a", "/"),
            ("/a", "/b", "/"),
            ("/locks", "/locks/b", "/"),
            ("/a/b/c", "/a/b/d/e", "/a/b"),
        ] {
            assert_eq!(common_parent(one, other), parent, "{one} {other}");
        }
    }

    #[test]
    fn option_n_and_a_wait_of_zero_do_not_wait() {
        let does_not_wait = |words: &[&str]| read(&[words, &["/l", "true"]].concat()).run.does_not_wait();
        assert!(does_not_wait(&["-n"]) && does_not_wait(&["-w", "0"]) && !does_not_wait(&["-w", "0.1"]));
        assert!(!does_not_wait(&[]));
    }

    #[test]
    fn the_grace_ends_before_the_session_can_expire() {
        let second = Duration::from_secs(1);
        assert_eq!(grace_and_reserve(5 * second, 3 * second), (second * 5 / 2, second / 2));
        assert_eq!(grace_and_reserve(2 * second, 3 * second).0, 2 * second);
        assert_eq!(grace_and_reserve(5 * second, Duration::ZERO), (Duration::ZERO, Duration::ZERO));
        assert_eq!(grace_and_reserve(5 * second, Duration::MAX).0, 5 * second, "no limit after a removal on purpose");
    }
}
