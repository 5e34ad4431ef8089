//! Rules for a [proxy](super::wire), which decide which frames are lost, delayed, cut or changed on their way between a
//! client and its server.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;

use super::frames::{Direction, Hello, Op};

/// A handle of a rule. With the handle a test finds out whether the rule has been applied to a frame.
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

    /// Waits until the rule has been applied to a frame. Waits for ever if no such frame arrives, so use a timeout.
    pub async fn happens(&self) {
        if self.happened.clone().wait_for(|happened| *happened > 0).await.is_err() {
            // The proxy was dropped, so the rule will never be applied.
            pending().await
        }
    }
}

/// The frames that a [`Rule`] applies to.
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

    /// Selects the clients' requests of this kind.
    pub fn requests(op: Op) -> Self {
        Self { op: Some(op), ..Self::all(Direction::ToServer) }
    }

    /// Selects the server's replies to requests of this kind.
    pub fn replies(op: Op) -> Self {
        Self { op: Some(op), ..Self::all(Direction::ToClient) }
    }

    /// Selects the events of watches.
    pub fn events() -> Self {
        Self::replies(Op::WatchEvent)
    }

    /// Selects all frames from the server, including handshakes.
    pub fn from_server() -> Self {
        Self::all(Direction::ToClient)
    }

    /// Selects all frames from clients, including handshakes.
    pub fn from_clients() -> Self {
        Self::all(Direction::ToServer)
    }

    /// Excludes these kinds of frames.
    pub fn but(self, except: &'static [Op]) -> Self {
        Self { except, ..self }
    }

    /// Selects only frames whose path contains this text. The path of a reply is the path of its request. The path of a
    /// transaction is the list of its operations, as in `Proxy::requests`.
    pub fn about(self, part_of_path: &str) -> Self {
        Self { path: Some(part_of_path.to_owned()), ..self }
    }

    /// Selects only replies with this error code. Code 0 is success.
    pub fn with_error(self, code: i32) -> Self {
        Self { error: Some(code), ..self }
    }

    fn contain(&self, frame: &FrameInfo<'_>) -> bool {
        self.direction == frame.direction
            && self.op.is_none_or(|op| op == frame.op)
            && !self.except.contains(&frame.op)
            && self.path.as_ref().is_none_or(|part| frame.path.contains(part.as_str()))
            && self.error.is_none_or(|code| frame.error == Some(code))
    }
}

/// A rule for frames. It selects frames, and says what happens to a selected frame. By default a rule applies to the
/// first selected frame, and lets this frame pass.
#[derive(Debug)]
pub struct Rule {
    frames: Frames,
    /// The number of matching frames until the rule applies. 1 means that it applies to the next one.
    countdown: u64,
    again: bool,
    fate: Fate,
}

impl Rule {
    pub fn on(frames: Frames) -> Self {
        Self { frames, countdown: 1, again: false, fate: Fate::Pass }
    }

    /// Applies the rule to the `nth` matching frame after `Proxy::apply`, counted from 1.
    pub fn nth(self, nth: u64) -> Self {
        assert!(nth > 0, "frames are counted from 1");
        Self { countdown: nth, ..self }
    }

    /// Applies the rule also to all later frames.
    pub fn and_all_later(self) -> Self {
        Self { again: true, ..self }
    }

    /// Holds back the frame, and all later frames in the same direction, until the sender of `released` is dropped.
    pub(super) fn hold(self, released: watch::Receiver<()>) -> Self {
        Self { fate: Fate::Hold(released), ..self }
    }

    /// Loses the frame. The connection stays open.
    pub fn lose(self) -> Self {
        Self { fate: Fate::Lose, ..self }
    }

    /// Delays the frame by this time. No later frame overtakes it.
    pub fn delay(self, by: Duration) -> Self {
        Self { fate: Fate::Delay(by), ..self }
    }

    /// Passes on the first `bytes` bytes of the frame, counted from its length field, and closes the connection.
    pub fn close(self, bytes: usize, how: Close) -> Self {
        Self { fate: Fate::Close(bytes, how), ..self }
    }

    /// Passes on the whole frame, and closes the connection.
    pub fn close_after(self, how: Close) -> Self {
        self.close(usize::MAX, how)
    }

    /// Replaces the error code of a reply, although the server has carried out the request.
    pub fn claim_error(self, code: i32) -> Self {
        assert_eq!(self.frames.direction, Direction::ToClient, "only replies have error codes");
        Self { fate: Fate::Claim(code), ..self }
    }

    /// Replies to a request with this error code, without passing the request on to the server. After [`UNIMPLEMENTED`]
    /// the proxy closes the connection, as ZooKeeper does (`UnimplementedRequestProcessor`).
    pub fn refuse(self, code: i32) -> Self {
        assert_eq!(self.frames.direction, Direction::ToServer, "only requests can be refused");
        Self { fate: Fate::Refuse(code), ..self }
    }

    /// Adds this name to a listing of children.
    pub fn show(self, name: &str) -> Self {
        let lists = [Some(Op::GetChildren), Some(Op::GetChildren2)].contains(&self.frames.op);
        assert!(lists && self.frames.error == Some(0), "only lists have names");
        Self { fate: Fate::Show(name.to_owned()), ..self }
    }

    /// Changes a handshake.
    pub fn falsify(self, how: fn(&mut Hello)) -> Self {
        assert_eq!(self.frames.op, Some(Op::Handshake), "only handshakes can be falsified");
        Self { fate: Fate::Falsify(how), ..self }
    }
}

/// The error code for a request that the server does not know.
pub const UNIMPLEMENTED: i32 = -6;

/// How the proxy closes a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Close {
    /// Closes with a FIN. Data that was sent before still arrives.
    Fin,
    /// Closes with a RST, which may overtake data that was sent before.
    Rst,
}

/// A rule that was given to the proxy.
#[derive(Debug)]
struct Active {
    rule: Rule,
    happened: watch::Sender<u64>,
}

/// The properties of a frame that rules compare.
#[derive(Debug)]
pub(super) struct FrameInfo<'a> {
    pub(super) direction: Direction,
    pub(super) op: Op,
    pub(super) path: &'a str,
    pub(super) error: Option<i32>,
}

/// What happens to a frame.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    Pass,
    /// The proxy holds the frame until the sender of this channel is dropped.
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
    /// Returns whether the test has dropped the handle that holds the frame back.
    fn is_over(&self) -> bool {
        matches!(self, Self::Hold(released) if released.has_changed().is_err())
    }
}

/// All rules that were given to the proxy, the oldest first.
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

    /// Counts the frame for every rule that selects it, and returns what happens to the frame. If several rules apply,
    /// the oldest decides.
    pub(super) fn fate(&mut self, frame: &FrameInfo<'_>) -> Fate {
        let mut fate = Fate::Pass;
        self.0.retain_mut(|Active { rule, happened }| {
            if rule.fate.is_over() {
                // The handle was dropped before a frame arrived, so the rule no longer applies.
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
