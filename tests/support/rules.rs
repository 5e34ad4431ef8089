//! Rules: what happens to which frames on their way between a client and its server.
//!
//! It knows the frames ([`super::frames`]) and nothing of connections: it only decides.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;

use super::frames::{Direction, Hello, Op};

/// Tells whether a rule has struck, so that a test can prove that its fault happened.
#[derive(Clone, Debug)]
pub struct Fault {
    happened: watch::Receiver<u64>,
}

impl Fault {
    pub fn has_happened(&self) -> bool {
        self.times() > 0
    }

    pub fn times(&self) -> u64 {
        *self.happened.borrow()
    }

    /// Returns when the rule has struck; it waits for ever if the frame never comes, so put a
    /// timeout around it.
    pub async fn happens(&self) {
        if self.happened.clone().wait_for(|happened| *happened > 0).await.is_err() {
            // The proxy is gone, and the rule with it.
            pending().await
        }
    }
}

/// Which frames a [`Rule`] is about.
#[derive(Clone, Debug)]
pub struct Frames {
    direction: Direction,
    op: Option<Op>,
    except: &'static [Op],
    path: Option<String>,
    error: Option<i32>,
}

impl Frames {
    fn all(direction: Direction) -> Self {
        Self { direction, op: None, except: &[], path: None, error: None }
    }

    /// What clients ask of this kind.
    pub fn requests(op: Op) -> Self {
        Self { op: Some(op), ..Self::all(Direction::ToServer) }
    }

    /// What the server answers to this kind of request.
    pub fn replies(op: Op) -> Self {
        Self { op: Some(op), ..Self::all(Direction::ToClient) }
    }

    /// The events of watches, and nothing else.
    pub fn events() -> Self {
        Self::replies(Op::Event)
    }

    /// Everything the server sends, handshakes included.
    pub fn from_server() -> Self {
        Self::all(Direction::ToClient)
    }

    /// Everything clients send, handshakes included.
    pub fn from_clients() -> Self {
        Self::all(Direction::ToServer)
    }

    /// All but these.
    pub fn but(self, except: &'static [Op]) -> Self {
        Self { except, ..self }
    }

    /// Only those whose path, or whose list of parts as in [`Proxy::requests`], contains this. A reply has the path
    /// of its request.
    pub fn about(self, part_of_path: &str) -> Self {
        Self { path: Some(part_of_path.to_owned()), ..self }
    }

    /// Only replies with this error code, 0 for none.
    pub fn with_error(self, code: i32) -> Self {
        Self { error: Some(code), ..self }
    }

    fn contain(&self, frame: &Seen<'_>) -> bool {
        self.direction == frame.direction
            && self.op.is_none_or(|op| op == frame.op)
            && !self.except.contains(&frame.op)
            && self.path.as_ref().is_none_or(|part| frame.path.contains(part.as_str()))
            && self.error.is_none_or(|code| frame.error == Some(code))
    }
}

/// What happens to which frames; by default, nothing happens to the first.
#[derive(Debug)]
pub struct Rule {
    frames: Frames,
    /// How many of them are still to come, the struck one included.
    countdown: u64,
    again: bool,
    fate: Fate,
}

impl Rule {
    pub fn on(frames: Frames) -> Self {
        Self { frames, countdown: 1, again: false, fate: Fate::Pass }
    }

    /// Strikes the `nth` of the frames, counted from 1 and from when the rule is applied.
    pub fn nth(self, nth: u64) -> Self {
        assert!(nth > 0, "frames are counted from 1");
        Self { countdown: nth, ..self }
    }

    /// Strikes also all later ones.
    pub fn and_all_later(self) -> Self {
        Self { again: true, ..self }
    }

    /// The frame, and what follows it the same way, passes when this ends.
    pub(super) fn hold(self, released: watch::Receiver<()>) -> Self {
        Self { fate: Fate::Hold(released), ..self }
    }

    /// The frame is lost, and the connection stays.
    pub fn lose(self) -> Self {
        Self { fate: Fate::Lose, ..self }
    }

    /// The frame passes so much later, and nothing overtakes it.
    pub fn delay(self, by: Duration) -> Self {
        Self { fate: Fate::Delay(by), ..self }
    }

    /// Only the first `bytes` of the frame, its length included, are passed on before the connection is closed.
    pub fn close(self, bytes: usize, how: Close) -> Self {
        Self { fate: Fate::Close(bytes, how), ..self }
    }

    /// As [`Rule::close`], after the whole frame.
    pub fn close_after(self, how: Close) -> Self {
        self.close(usize::MAX, how)
    }

    /// A reply says this instead: what was asked for has been done all the same.
    pub fn claim_error(self, code: i32) -> Self {
        assert_eq!(self.frames.direction, Direction::ToClient, "only replies have error codes");
        Self { fate: Fate::Claim(code), ..self }
    }

    /// The server never sees the request, and the proxy answers with this error. After [`UNIMPLEMENTED`] it closes the
    /// connection, as ZooKeeper does (`UnimplementedRequestProcessor`).
    pub fn refuse(self, code: i32) -> Self {
        assert_eq!(self.frames.direction, Direction::ToServer, "only requests can be refused");
        Self { fate: Fate::Refuse(code), ..self }
    }

    /// A list of children has this name, too.
    pub fn show(self, name: &str) -> Self {
        let lists = [Some(Op::GetChildren), Some(Op::GetChildren2)].contains(&self.frames.op);
        assert!(lists && self.frames.error == Some(0), "only lists have names");
        Self { fate: Fate::Show(name.to_owned()), ..self }
    }

    /// A handshake says something else.
    pub fn falsify(self, how: fn(&mut Hello)) -> Self {
        assert_eq!(self.frames.op, Some(Op::Handshake), "only handshakes can be falsified");
        Self { fate: Fate::Falsify(how), ..self }
    }
}

/// A server's error for a request that it does not know.
pub const UNIMPLEMENTED: i32 = -6;

/// How a connection is closed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Close {
    /// In order: what was sent before arrives.
    Fin,
    /// With a reset, which may overtake what was sent before.
    Rst,
}

/// A rule that is in force.
#[derive(Debug)]
struct Active {
    rule: Rule,
    happened: watch::Sender<u64>,
}

/// What a frame was recognised as.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub(super) direction: Direction,
    pub(super) op: Op,
    pub(super) path: &'a str,
    pub(super) error: Option<i32>,
}

/// What happens to one frame.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    Pass,
    /// The frame may pass when this ends.
    Hold(watch::Receiver<()>),
    Lose,
    Delay(Duration),
    Close(usize, Close),
    Claim(i32),
    Refuse(i32),
    Falsify(fn(&mut Hello)),
    Show(String),
}

impl Fate {
    /// The handle of a frame that was to be held back is gone.
    fn is_over(&self) -> bool {
        matches!(self, Self::Hold(released) if released.has_changed().is_err())
    }
}

/// All rules that are in force.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Active>);

impl Rules {
    pub(super) fn add(&mut self, rule: Rule) -> Fault {
        let (sender, happened) = watch::channel(0);
        self.0.push(Active { rule, happened: sender });
        Fault { happened }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Counts the frame against every rule; where several strike at once, the oldest decides.
    pub(super) fn fate(&mut self, frame: &Seen<'_>) -> Fate {
        let mut fate = Fate::Pass;
        self.0.retain_mut(|Active { rule, happened }| {
            if rule.fate.is_over() {
                // Released before its frame came.
                return false;
            }
            if !rule.frames.contain(frame) {
                return true;
            }
            rule.countdown = rule.countdown.saturating_sub(1);
            if rule.countdown > 0 {
                return true;
            }
            happened.send_modify(|times| *times += 1);
            if let Fate::Pass = fate {
                fate = rule.fate.clone();
            }
            rule.again
        });
        fate
    }
}
