//! A loopback proxy that understands ZooKeeper's frames: it counts them, loses them and delays them
//! on request.
//!
//! It knows nothing of locks, nor of any client library, only of the protocol: every frame is a
//! length of four bytes and a body; the first frame each way is the handshake; after it, a request
//! begins with its xid and opcode and a reply with the xid of its request, which is -1 for a
//! notification of a watch.

use std::collections::HashMap;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as blocking};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

const NOTIFICATION_XID: i32 = -1;
const LONGEST_FRAME: usize = 16 << 20;

/// What a request asks for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Op {
    Create,
    Delete,
    Exists,
    GetData,
    SetData,
    GetAcl,
    SetAcl,
    GetChildren,
    Sync,
    Ping,
    GetChildren2,
    Check,
    Multi,
    Create2,
    RemoveWatches,
    CreateContainer,
    CreateTtl,
    Auth,
    SetWatches,
    CloseSession,
    Other(i32),
}

impl Op {
    fn from_code(code: i32) -> Self {
        match code {
            1 => Self::Create,
            2 => Self::Delete,
            3 => Self::Exists,
            4 => Self::GetData,
            5 => Self::SetData,
            6 => Self::GetAcl,
            7 => Self::SetAcl,
            8 => Self::GetChildren,
            9 => Self::Sync,
            11 => Self::Ping,
            12 => Self::GetChildren2,
            13 => Self::Check,
            14 => Self::Multi,
            15 => Self::Create2,
            18 => Self::RemoveWatches,
            19 => Self::CreateContainer,
            21 => Self::CreateTtl,
            100 => Self::Auth,
            101 => Self::SetWatches,
            -11 => Self::CloseSession,
            other => Self::Other(other),
        }
    }

    fn begins_with_a_path(self) -> bool {
        !matches!(self, Self::Ping | Self::Multi | Self::Auth | Self::SetWatches | Self::CloseSession | Self::Other(_))
    }
}

/// A proxy between clients and one server. Dropping it closes every connection through it.
///
/// It runs on a thread of its own, so that neither a blocked nor a paused runtime of a test can
/// stop it. Every control has taken effect when it returns.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    tap: Arc<Tap>,
    commands: Option<mpsc::UnboundedSender<(Command, blocking::Sender<()>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy on a free loopback port, for the server at `server_address`.
    pub fn start(server_address: impl Into<String>) -> Self {
        let server_address = server_address.into();
        let tap = Arc::new(Tap::default());
        let (commands, orders) = mpsc::unbounded_channel();
        let (ready, started) = blocking::channel();
        let thread = thread::spawn({
            let tap = tap.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime for the proxy");
                runtime.block_on(async {
                    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
                    let address = listener.local_addr().expect("a bound listener has an address");
                    ready.send(address).expect("start() waits for the address");
                    Switchboard::new(listener, address, server_address, tap).run(orders).await;
                });
            }
        });
        let address = started.recv().expect("the proxy's thread started");
        Self { address, tap, commands: Some(commands), thread: Some(thread) }
    }

    /// Where clients connect, as `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// How many requests of this kind clients have sent since [`Proxy::reset`], lost ones included.
    pub fn count(&self, op: Op) -> u64 {
        self.tap.traffic().counts.get(&op).copied().unwrap_or(0)
    }

    /// The requests since [`Proxy::reset`] in the order of sending, with the path each one names.
    ///
    /// For [`Op::Multi`] the second half lists the parts, as in `Check /a, Delete /b`. Pings are
    /// left out, because they depend on the clock; [`Proxy::count`] has them.
    pub fn requests(&self) -> Vec<(Op, String)> {
        self.tap.traffic().requests.clone()
    }

    /// How many notifications of watches the server has sent since [`Proxy::reset`].
    pub fn notifications(&self) -> u64 {
        self.tap.traffic().notifications
    }

    /// How many connections have reached the server since [`Proxy::reset`].
    pub fn connections(&self) -> u64 {
        self.tap.traffic().connections
    }

    /// How many bytes clients have sent since [`Proxy::reset`], handshakes and pings included.
    pub fn bytes_to_server(&self) -> u64 {
        self.tap.traffic().bytes_to_server
    }

    /// How many bytes the server has sent since [`Proxy::reset`], handshakes and pings included.
    pub fn bytes_to_client(&self) -> u64 {
        self.tap.traffic().bytes_to_client
    }

    /// Sets all numbers back to zero; rules and holes stay.
    pub fn reset(&self) {
        *self.tap.traffic() = Traffic::default();
    }

    /// Closes every connection and refuses new ones until [`Proxy::heal`].
    pub fn cut(&self) {
        self.order(Command::Cut);
    }

    /// Closes every connection; a client may come back at once.
    pub fn disconnect(&self) {
        self.order(Command::Disconnect);
    }

    /// Resets every connection (TCP RST); a client may come back at once.
    pub fn rst(&self) {
        self.order(Command::Rst);
    }

    /// Keeps every connection open and forwards nothing; new connections are accepted and left in
    /// silence.
    ///
    /// As on a broken network, what is sent meanwhile is not lost but late: [`Proxy::heal`]
    /// delivers it.
    pub fn black_hole(&self) {
        self.order(Command::Holes(Holes { to_server: true, to_client: true }));
    }

    /// As [`Proxy::black_hole`], for what clients send; the server is still heard.
    pub fn black_hole_to_server(&self) {
        self.order(Command::Holes(Holes { to_server: true, to_client: false }));
    }

    /// As [`Proxy::black_hole`], for what the server sends; clients are still heard.
    pub fn black_hole_to_client(&self) {
        self.order(Command::Holes(Holes { to_server: false, to_client: true }));
    }

    /// Ends [`Proxy::cut`] and all black holes: late frames are delivered and new connections
    /// accepted.
    ///
    /// Connections that were left in silence are closed, because their clients have long given up
    /// waiting for a handshake, and a late one would steal the session from its successor.
    pub fn heal(&self) {
        self.order(Command::Heal);
    }

    /// Loses the `nth` reply to this kind of request, counted from 1 and from now, and closes its
    /// connection.
    pub fn drop_reply(&self, op: Op, nth: u64) -> Fault {
        self.tap.add_rule(Direction::ToClient, op, nth, None)
    }

    /// Loses the `nth` request of this kind, counted from 1 and from now, and closes its
    /// connection.
    pub fn drop_request(&self, op: Op, nth: u64) -> Fault {
        self.tap.add_rule(Direction::ToServer, op, nth, None)
    }

    /// Holds back the next reply to this kind of request until the handle releases it or is
    /// dropped.
    ///
    /// ZooKeeper's replies are ordered, so all that the server sends later on the same connection
    /// waits behind it, the replies to pings too: a client gives up the connection when it hears
    /// nothing for long enough.
    #[must_use = "dropping the handle releases the reply"]
    pub fn hold_reply(&self, op: Op) -> Held {
        self.hold(Direction::ToClient, op)
    }

    /// Holds back the next request of this kind, and all that follow it, until the handle releases
    /// it or is dropped.
    #[must_use = "dropping the handle releases the request"]
    pub fn hold_request(&self, op: Op) -> Held {
        self.hold(Direction::ToServer, op)
    }

    /// Takes back every rule that has not struck yet.
    pub fn forget_rules(&self) {
        self.tap.rules().clear();
    }

    fn hold(&self, direction: Direction, op: Op) -> Held {
        let (release, released) = watch::channel(());
        let fault = self.tap.add_rule(direction, op, 1, Some(released));
        Held { fault, release }
    }

    fn order(&self, command: Command) {
        let (done, wait) = blocking::channel();
        let commands = self.commands.as_ref().expect("only drop takes the commands");
        commands.send((command, done)).expect("the proxy's thread runs");
        wait.recv().expect("the proxy's thread runs");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The end of the commands ends the thread.
        self.commands = None;
        let outcome = self.thread.take().map(JoinHandle::join);
        if let (Some(Err(_)), false) = (outcome, thread::panicking()) {
            panic!("the proxy's thread panicked");
        }
    }
}

/// Tells whether a rule has struck, so that a test can prove that its fault happened.
#[derive(Clone, Debug)]
pub struct Fault {
    struck: watch::Receiver<bool>,
}

impl Fault {
    pub fn has_struck(&self) -> bool {
        *self.struck.borrow()
    }

    /// Returns when the rule has struck; it waits for ever if the frame never comes, so put a
    /// timeout around it.
    pub async fn strikes(&self) {
        if self.struck.clone().wait_for(|struck| *struck).await.is_err() {
            // The proxy is gone, and the rule with it.
            pending().await
        }
    }
}

/// A frame that is held back, or will be. Dropping it releases the frame.
#[derive(Debug)]
pub struct Held {
    fault: Fault,
    release: watch::Sender<()>,
}

impl Held {
    /// Whether the frame has arrived at the proxy.
    pub fn has_arrived(&self) -> bool {
        self.fault.has_struck()
    }

    /// Returns when the frame has arrived at the proxy; put a timeout around it.
    pub async fn arrives(&self) {
        self.fault.strikes().await;
    }

    /// Lets the frame through, or cancels the rule if the frame has not come yet.
    pub fn release(self) {
        drop(self.release);
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Direction {
    ToServer,
    ToClient,
}

/// What the test and the connections share: the numbers and the rules.
#[derive(Debug, Default)]
struct Tap {
    traffic: Mutex<Traffic>,
    rules: Mutex<Vec<Rule>>,
}

#[derive(Debug, Default)]
struct Traffic {
    counts: HashMap<Op, u64>,
    requests: Vec<(Op, String)>,
    notifications: u64,
    connections: u64,
    bytes_to_server: u64,
    bytes_to_client: u64,
}

#[derive(Debug)]
struct Rule {
    direction: Direction,
    op: Op,
    /// How many matching frames are still to come, the struck one included.
    countdown: u64,
    /// Ends when the frame may pass; a rule without it loses the frame.
    released: Option<watch::Receiver<()>>,
    struck: watch::Sender<bool>,
}

/// What happens to one frame.
#[derive(Debug)]
enum Fate {
    Pass,
    Hold(watch::Receiver<()>),
    Lose,
}

impl Tap {
    fn traffic(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rules(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_rule(&self, direction: Direction, op: Op, nth: u64, released: Option<watch::Receiver<()>>) -> Fault {
        assert!(nth > 0, "frames are counted from 1");
        let (sender, struck) = watch::channel(false);
        self.rules().push(Rule { direction, op, countdown: nth, released, struck: sender });
        Fault { struck }
    }

    fn record_request(&self, op: Op, body: Fields<'_>) {
        let mut traffic = self.traffic();
        *traffic.counts.entry(op).or_default() += 1;
        if op != Op::Ping {
            traffic.requests.push((op, path(op, body)));
        }
    }

    /// Counts the frame against every rule; where several strike at once, the oldest decides.
    fn fate(&self, direction: Direction, op: Op) -> Fate {
        let mut fate = Fate::Pass;
        self.rules().retain_mut(|rule| {
            if rule.released.as_ref().is_some_and(|released| released.has_changed().is_err()) {
                // Released before its frame came.
                return false;
            }
            if (rule.direction, rule.op) != (direction, op) {
                return true;
            }
            rule.countdown -= 1;
            if rule.countdown > 0 {
                return true;
            }
            rule.struck.send_replace(true);
            if let Fate::Pass = fate {
                fate = rule.released.take().map_or(Fate::Lose, Fate::Hold);
            }
            false
        });
        fate
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Holes {
    to_server: bool,
    to_client: bool,
}

impl Holes {
    fn any(self) -> bool {
        self.to_server || self.to_client
    }

    fn swallow(self, direction: Direction) -> bool {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        }
    }
}

#[derive(Debug)]
enum Command {
    Cut,
    Disconnect,
    Rst,
    Holes(Holes),
    Heal,
}

/// The proxy's main loop: it accepts connections and obeys commands, one at a time.
struct Switchboard {
    listener: Option<TcpListener>,
    address: SocketAddr,
    server_address: String,
    tap: Arc<Tap>,
    holes: watch::Sender<Holes>,
    rst: watch::Sender<()>,
    connections: JoinSet<()>,
}

impl Switchboard {
    fn new(listener: TcpListener, address: SocketAddr, server_address: String, tap: Arc<Tap>) -> Self {
        Self {
            listener: Some(listener),
            address,
            server_address,
            tap,
            holes: watch::Sender::default(),
            rst: watch::Sender::default(),
            connections: JoinSet::new(),
        }
    }

    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<(Command, blocking::Sender<()>)>) {
        loop {
            tokio::select! {
                order = orders.recv() => {
                    let Some((command, done)) = order else { return };
                    self.obey(command).await;
                    // Nobody waits any more if the test has panicked.
                    let _ = done.send(());
                }
                client = accept(self.listener.as_ref()) => {
                    let connection = Connection {
                        tap: self.tap.clone(),
                        holes: self.holes.subscribe(),
                        rst: self.rst.subscribe(),
                        opcodes: Mutex::default(),
                    };
                    self.connections.spawn(connection.serve(client, self.server_address.clone()));
                }
                Some(ended) = self.connections.join_next() => ended.expect("no connection panics"),
            }
        }
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Cut => {
                self.listener = None;
                self.connections.shutdown().await;
            }
            Command::Disconnect => self.connections.shutdown().await,
            Command::Rst => {
                self.rst.send_replace(());
                while self.connections.join_next().await.is_some() {}
            }
            Command::Holes(holes) => {
                self.holes.send_replace(holes);
            }
            Command::Heal => {
                self.holes.send_replace(Holes::default());
                if self.listener.is_none() {
                    self.listener = Some(listen_again(self.address).await);
                }
            }
        }
    }
}

/// The next connection; it never returns when nothing listens.
async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    match listener {
        Some(listener) => listener.accept().await.expect("a loopback listener accepts").0,
        None => pending().await,
    }
}

async fn listen_again(address: SocketAddr) -> TcpListener {
    // Somebody's outgoing connection may sit on the port for a moment.
    for _ in 0..500 {
        if let Ok(listener) = TcpListener::bind(address).await {
            return listener;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the proxy's port {address} was taken by somebody else while it was closed");
}

/// What the writer of one direction is to do next, in order.
enum Step {
    Forward { frame: Vec<u8>, hold: Option<watch::Receiver<()>> },
    Close,
}

struct Connection {
    tap: Arc<Tap>,
    holes: watch::Receiver<Holes>,
    rst: watch::Receiver<()>,
    opcodes: Mutex<HashMap<i32, Op>>,
}

impl Connection {
    async fn serve(self, mut client: TcpStream, server_address: String) {
        let mut rst = self.rst.clone();
        let mut holes = self.holes.clone();
        if holes.borrow().any() {
            tokio::select! {
                _ = holes.wait_for(|holes| !holes.any()) => {}
                _ = rst.changed() => {
                    let _ = client.set_zero_linger();
                }
            }
            return;
        }
        // A server that is down looks to the client like a connection that is closed at once.
        let Ok(mut server) = TcpStream::connect(server_address).await else {
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        self.tap.traffic().connections += 1;

        let (mut from_client, mut into_client) = client.split();
        let (mut from_server, mut into_server) = server.split();
        let (to_server, requests) = mpsc::unbounded_channel();
        let (to_client, replies) = mpsc::unbounded_channel();
        let traffic = async {
            // The first error ends all four; the ordinary end of one direction leaves the other
            // alone.
            let _ = tokio::try_join!(
                self.read(Direction::ToServer, &mut from_client, to_server),
                self.read(Direction::ToClient, &mut from_server, to_client),
                self.write(Direction::ToServer, requests, &mut into_server),
                self.write(Direction::ToClient, replies, &mut into_client),
            );
        };
        tokio::select! {
            () = traffic => {}
            _ = rst.changed() => {
                // The kernel then resets the connections when the streams are dropped.
                let _ = (client.set_zero_linger(), server.set_zero_linger());
            }
        }
    }

    /// Reads even while nothing is forwarded, so that the numbers tell what was sent, whenever it
    /// arrives.
    async fn read(
        &self,
        direction: Direction,
        from: &mut (impl AsyncReadExt + Unpin),
        to: mpsc::UnboundedSender<Step>,
    ) -> io::Result<()> {
        let mut handshaken = false;
        // A reset by the sender ends the stream as a close does: what was read before still counts.
        while let Ok(frame) = read_frame(from).await {
            let fate = if handshaken {
                self.inspect(direction, &frame)
            } else {
                self.weigh(direction, &frame);
                Fate::Pass
            };
            handshaken = true;
            let hold = match fate {
                Fate::Pass => None,
                Fate::Hold(released) => Some(released),
                Fate::Lose => {
                    let _ = to.send(Step::Close);
                    return Ok(());
                }
            };
            let _ = to.send(Step::Forward { frame, hold });
        }
        Ok(())
    }

    async fn write(
        &self,
        direction: Direction,
        mut steps: mpsc::UnboundedReceiver<Step>,
        into: &mut (impl AsyncWriteExt + Unpin),
    ) -> io::Result<()> {
        let mut holes = self.holes.clone();
        while let Some(step) = steps.recv().await {
            match step {
                Step::Forward { frame, hold } => {
                    if let Some(mut released) = hold {
                        // The handle never sends a value: it is released by being dropped.
                        let _ = released.changed().await;
                    }
                    pass(&mut holes, direction).await?;
                    into.write_all(&frame).await?;
                }
                Step::Close => {
                    pass(&mut holes, direction).await?;
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
            }
        }
        pass(&mut holes, direction).await?;
        // The peer may be gone already.
        let _ = into.shutdown().await;
        Ok(())
    }
}

impl Connection {
    /// Records a frame after the handshake and decides what happens to it.
    fn inspect(&self, direction: Direction, frame: &[u8]) -> Fate {
        self.weigh(direction, frame);
        let mut fields = Fields::of(frame);
        let Some(xid) = fields.int() else {
            return Fate::Pass;
        };
        let mut opcodes = self.opcodes.lock().unwrap_or_else(PoisonError::into_inner);
        let op = match direction {
            Direction::ToServer => {
                let Some(code) = fields.int() else {
                    return Fate::Pass;
                };
                let op = Op::from_code(code);
                opcodes.insert(xid, op);
                self.tap.record_request(op, fields);
                op
            }
            Direction::ToClient if xid == NOTIFICATION_XID => {
                self.tap.traffic().notifications += 1;
                return Fate::Pass;
            }
            // Negative xids, such as that of pings, are used again and again.
            Direction::ToClient if xid < 0 => match opcodes.get(&xid) {
                Some(op) => *op,
                None => return Fate::Pass,
            },
            Direction::ToClient => match opcodes.remove(&xid) {
                Some(op) => op,
                None => return Fate::Pass,
            },
        };
        self.tap.fate(direction, op)
    }

    fn weigh(&self, direction: Direction, frame: &[u8]) {
        let mut traffic = self.tap.traffic();
        match direction {
            Direction::ToServer => traffic.bytes_to_server += frame.len() as u64,
            Direction::ToClient => traffic.bytes_to_client += frame.len() as u64,
        }
    }
}

/// Returns when no hole swallows this direction.
async fn pass(holes: &mut watch::Receiver<Holes>, direction: Direction) -> io::Result<()> {
    match holes.wait_for(|holes| !holes.swallow(direction)).await {
        Ok(_) => Ok(()),
        // The proxy is being dropped.
        Err(_) => Err(io::ErrorKind::ConnectionAborted.into()),
    }
}

/// One frame with its length in front.
async fn read_frame(from: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame).await?;
    let length = Fields(&frame).int().and_then(|length| usize::try_from(length).ok());
    match length {
        Some(length) if length <= LONGEST_FRAME => {
            frame.resize(4 + length, 0);
            from.read_exact(&mut frame[4..]).await?;
            Ok(frame)
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A reader of the fields of ZooKeeper's serialisation; it answers `None` where they end too early.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn of(frame: &'a [u8]) -> Self {
        Self(&frame[4..])
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(field)
    }

    fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn buffer(&mut self) -> Option<&'a [u8]> {
        // A missing buffer has the length -1.
        let length = self.int()?;
        self.take(usize::try_from(length).unwrap_or(0))
    }

    fn string(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(self.buffer()?).into_owned())
    }

    fn acls(&mut self) -> Option<()> {
        for _ in 0..self.int()? {
            let (_permissions, _scheme, _id) = (self.int()?, self.buffer()?, self.buffer()?);
        }
        Some(())
    }

    /// The rest of one part of a multi, after its path.
    fn skip_part(&mut self, op: Op) -> Option<()> {
        match op {
            Op::Create | Op::Create2 | Op::CreateContainer | Op::CreateTtl => {
                let _data = self.buffer()?;
                self.acls()?;
                let _mode = self.int()?;
                if op == Op::CreateTtl {
                    self.take(8)?;
                }
            }
            Op::SetData => {
                let (_data, _version) = (self.buffer()?, self.int()?);
            }
            Op::Delete | Op::Check => {
                self.int()?;
            }
            Op::GetData | Op::GetChildren => {
                let _watch = self.take(1)?;
            }
            _ => return None,
        }
        Some(())
    }

    /// The parts of a multi, as far as they can be read.
    fn parts(&mut self) -> Vec<String> {
        let mut parts = Vec::new();
        while let Some(code) = self.int() {
            let last = self.take(1).is_none_or(|done| done != [0]);
            let (false, Some(_error), Some(path)) = (last, self.int(), self.string()) else {
                break;
            };
            let op = Op::from_code(code);
            parts.push(format!("{op:?} {path}"));
            if self.skip_part(op).is_none() {
                break;
            }
        }
        parts
    }
}

/// The path that a request names, or the parts of a multi; empty for requests without a path.
fn path(op: Op, mut body: Fields<'_>) -> String {
    if op == Op::Multi {
        body.parts().join(", ")
    } else if op.begins_with_a_path() {
        body.string().unwrap_or_default()
    } else {
        String::new()
    }
}
