//! A recorder of what the library reports to `tracing`: one [`Event`] for each step of an acquisition or a hold. Use it
//! with [`support::replay`](crate::replay) to check a run against the server's log.
//!
//! The times of the events count from 1970. Each process reads the time of day once, and then adds its monotonic clock.
//! So the events of several processes on one machine can be compared with each other, and with a server's log.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::str::FromStr;
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

/// The kind of an event of an acquisition or a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The lock was requested.
    Asked,
    /// The contender's node was created.
    Created,
    /// The contender's turn has come. `how` says how the contender learned of its turn.
    Granted,
    /// The acquisition holds the lock. `token` is the token of its node.
    Got,
    /// The acquisition has ended, with or without a grant.
    Ended,
    /// A guard begins to hold the lock. `token` is the token of its node.
    Holds,
    /// The hold has ended by a release or a downgrade.
    Released,
    /// The holder was notified of the loss. `path` is the path of the node.
    Lost,
    /// The reply to a create was lost, and the contender found its node in a listing.
    Found,
    /// The reply to a create was lost, and the contender found no node. `how` is the random part of its node name.
    Missed,
    /// A process gave up a node that it kept between uses. `how` is the reason.
    GivenUp,
}

const ALL: [What; 11] = [
    What::Asked,
    What::Created,
    What::Granted,
    What::Got,
    What::Ended,
    What::Holds,
    What::Released,
    What::Lost,
    What::Found,
    What::Missed,
    What::GivenUp,
];

/// One event. A field that this kind of event does not use is empty, or 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub at: Duration,
    /// An id that all events of one acquisition have, or both events of one hold.
    pub who: u64,
    pub what: What,
    pub path: String,
    /// `READ`, `WRITE` or `PERMIT`.
    pub mode: String,
    pub token: i64,
    pub sequence: i64,
    pub how: String,
    /// Whether the library's log thread delivered the event. The step itself may then have been long before `at`.
    pub is_delayed: bool,
}

impl Event {
    /// Returns the earliest possible time of the step.
    pub fn earliest(&self) -> Duration {
        if self.is_delayed { Duration::ZERO } else { self.at }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { at, who, what, path, mode, token, sequence, how, is_delayed } = self;
        write!(f, "{}\t{who}\t{what:?}\t{path}\t{mode}\t{token:#x}\t{sequence}\t{how}\t{is_delayed}", at.as_nanos())
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Event, String> {
        let words: Vec<&str> = line.split('\t').collect();
        let [at, who, what, path, mode, token, sequence, how, is_delayed] = words[..] else {
            return Err(line.to_owned());
        };
        let read = || {
            Some(Event {
                at: Duration::from_nanos(at.parse().ok()?),
                who: who.parse().ok()?,
                what: ALL.into_iter().find(|it| format!("{it:?}") == what)?,
                path: path.to_owned(),
                mode: mode.to_owned(),
                token: i64::from_str_radix(token.strip_prefix("0x")?, 16).ok()?,
                sequence: sequence.parse().ok()?,
                how: how.to_owned(),
                is_delayed: is_delayed.parse().ok()?,
            })
        };
        read().ok_or_else(|| line.to_owned())
    }
}

/// Returns the current time on the clock of all events.
pub fn now() -> Duration {
    static BEGAN: LazyLock<(Duration, Instant)> = LazyLock::new(sample);
    let (time, instant) = *BEGAN;
    time + instant.elapsed()
}

/// Returns how far the machine's time of day has moved against the clock of the events since this process began.
pub fn drift() -> Duration {
    let here = now();
    let (time, instant) = sample();
    (time + instant.elapsed()).abs_diff(now().max(here))
}

/// Reads the time of day and the monotonic clock as close together as possible. The thread may be suspended between the
/// two readings, so the quickest of several pairs is used.
fn sample() -> (Duration, Instant) {
    let read = || {
        let before = Instant::now();
        let time = SystemTime::UNIX_EPOCH.elapsed().expect("the clock is right");
        (before.elapsed(), (time, before))
    };
    let readings = (0..32).map(|_| read());
    readings.min_by_key(|(took, _)| *took).expect("at least one reading").1
}

/// The recorded events of this process.
#[derive(Default)]
struct Book {
    /// The prefixes of the paths whose events are recorded.
    recorded: Vec<String>,
    events: Vec<Event>,
    spans: HashMap<u64, Open>,
    next: u64,
    /// A file that also receives the events, for another process to read.
    lines: Option<File>,
}

/// A span that is open, perhaps with several handles.
struct Open {
    handles: usize,
    event: Event,
}

fn book() -> MutexGuard<'static, Book> {
    static BOOK: OnceLock<Mutex<Book>> = OnceLock::new();
    BOOK.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts to record the events of paths with these prefixes. Drops the earlier events of such paths.
pub fn record(paths: &[&str]) {
    now();
    // The error is ignored, because another test of this process may have set the subscriber already.
    let _ = tracing::subscriber::set_global_default(Recorder);
    let is_old = |event: &Event| paths.iter().any(|path| event.path.starts_with(path));
    let mut book = book();
    book.events.retain(|event| !is_old(event));
    book.spans.retain(|_, open| !is_old(&open.event));
    book.recorded.extend(paths.iter().map(|path| (*path).to_owned()));
}

/// Records as [`record`] does, and appends each event to this file, which several processes may share.
pub fn record_to(file: &Path, paths: &[&str]) {
    let lines = File::options().create(true).append(true).open(file).expect("the file of the trace can be opened");
    {
        let mut book = book();
        book.lines = Some(lines);
        book.next = u64::from(std::process::id()) << 32;
    }
    record(paths);
}

/// Returns the events in this file. For each killed process, adds an end of each acquisition and hold that was still
/// open.
pub fn read(file: &Path, is_killed: impl Fn(u32) -> bool) -> Vec<Event> {
    let text = std::fs::read_to_string(file).expect("the file of the trace can be read");
    let mut events: Vec<Event> = text.lines().map(|line| line.parse().expect("a line of a trace")).collect();
    events.sort_by_key(|event| event.at);
    let of_killed = |event: &&Event| u32::try_from(event.who >> 32).is_ok_and(&is_killed);
    let ends: Vec<Event> =
        events.iter().filter(of_killed).map(|it| Event { what: What::Ended, ..it.clone() }).collect();
    [events, ends].concat()
}

/// Returns the recorded events on paths with these prefixes.
pub fn recorded(paths: &[&str]) -> Vec<Event> {
    // The library delivers events of its background threads from a thread of its own, so this call waits for them.
    assert!(zk_rwlock::coordinator::flush_events(Duration::from_secs(60)), "the events were not delivered in time");
    let book = book();
    let is_wanted = |event: &&Event| paths.iter().any(|path| event.path.starts_with(path));
    let mut events: Vec<Event> = book.events.iter().filter(is_wanted).cloned().collect();
    events.sort_by_key(|event| event.at);
    events
}

/// Returns the number of acquisitions in progress on paths with these prefixes.
pub fn waits(paths: &[&str]) -> usize {
    let is_wanted =
        |open: &&Open| open.event.what == What::Asked && paths.iter().any(|path| open.event.path.starts_with(path));
    book().spans.values().filter(is_wanted).count()
}

impl Book {
    fn note(&mut self, event: Event) {
        if self.recorded.iter().any(|path| event.path.starts_with(path)) {
            if let Some(lines) = &mut self.lines {
                // Each line is appended by one write, because several processes may append to the file.
                lines.write_all(format!("{event}\n").as_bytes()).expect("the file of the trace can be written");
            }
            self.events.push(event);
        }
    }
}

/// The subscriber that records the events.
struct Recorder;

/// The fields of a span or of an event.
struct Fields(Event);

impl Visit for Fields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        match field.name() {
            "token" => self.0.token = value,
            "sequence" => self.0.sequence = value,
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "path" => self.0.path = value.to_owned(),
            // The events `Lost` and `Found` have the node's path first and the lock's directory second. Only the first is kept.
            "node" if self.0.path.is_empty() => self.0.path = value.to_owned(),
            "mode" => self.0.mode = value.to_owned(),
            "kind" | "cause" | "owner" => self.0.how = value.to_owned(),
            "message" => {
                self.0.what = match value {
                    "granted" => What::Granted,
                    "a lock was lost while it was held" => What::Lost,
                    "the answer to a create was lost, and its node found" => What::Found,
                    "the answer to a create was lost, and there is no node" => What::Missed,
                    "a kept lock is given up" => What::GivenUp,
                    _ => What::Ended,
                }
            }
            _ => {}
        }
    }
}

fn event(what: What, who: u64) -> Event {
    let (path, mode, how) = Default::default();
    Event { at: now(), who, what, path, mode, token: 0, sequence: -1, how, is_delayed: is_log_thread() }
}

/// Returns whether this is the library's log thread, which delivers the events of the library's other threads.
fn is_log_thread() -> bool {
    thread::current().name() == Some("zk-rwlock-log")
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("zk_rwlock")
            && (metadata.is_event() || matches!(metadata.name(), "acquire" | "hold"))
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let what = if span.metadata().name() == "hold" { What::Holds } else { What::Asked };
        let mut fields = Fields(event(what, 0));
        span.record(&mut fields);
        let mut book = book();
        book.next += 1;
        let who = book.next;
        fields.0.who = who;
        book.note(fields.0.clone());
        book.spans.insert(who, Open { handles: 1, event: fields.0 });
        Id::from_u64(who)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut book = book();
        let Some(open) = book.spans.get_mut(&span.into_u64()) else { return };
        let mut fields = Fields(open.event.clone());
        values.record(&mut fields);
        let changed = (fields.0.token != open.event.token, fields.0.sequence != open.event.sequence);
        open.event = fields.0.clone();
        let what = match changed {
            (true, _) => What::Got,
            (false, true) => What::Created,
            (false, false) => return,
        };
        book.note(Event { at: now(), what, is_delayed: is_log_thread(), ..fields.0 });
    }

    fn event(&self, told: &tracing::Event<'_>) {
        let mut fields = Fields(event(What::Ended, 0));
        told.record(&mut fields);
        if fields.0.what != What::Ended {
            book().note(fields.0);
        }
    }

    fn clone_span(&self, span: &Id) -> Id {
        if let Some(open) = book().spans.get_mut(&span.into_u64()) {
            open.handles += 1;
        }
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let at = now();
        let mut book = book();
        let who = span.into_u64();
        let Some(open) = book.spans.get_mut(&who) else { return false };
        open.handles -= 1;
        if open.handles > 0 {
            return false;
        }
        if let Some(open) = book.spans.remove(&who) {
            let what = if open.event.what == What::Holds { What::Released } else { What::Ended };
            book.note(Event { at, what, is_delayed: is_log_thread(), ..open.event });
        }
        true
    }

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}
