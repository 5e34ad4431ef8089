//! A loopback proxy that understands ZooKeeper's frames. It counts and lists requests. If a test asks, it loses,
//! delays, truncates and changes frames. Use it to cause a network fault at an exact frame, and to count the requests
//! of an operation.

use std::collections::HashMap;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as blocking};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::frames::{Direction, Fields, NOTIFICATION_XID, path, read_frame, refusal, with_name};
pub use super::frames::{Hello, Op};
use super::port::Port;
pub use super::rules::{Close, Fault, Frames, Rule, UNIMPLEMENTED};
use super::rules::{Fate, FrameInfo, Rules};

/// A proxy between clients and one server. Dropping the proxy closes all its connections.
///
/// The proxy runs on a thread of its own, so that a test whose runtime is blocked or paused cannot stop it. Each method
/// returns only after its effect is complete.
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
        Self::start_on(Port::reserve(), server_address)
    }

    /// Starts a proxy on this port. If the server's address is the proxy's own, the proxy closes every connection
    /// immediately.
    pub fn start_on(port: Port, server_address: impl Into<String>) -> Self {
        Self::start_with(port, server_address.into(), Tap::default())
    }

    /// Starts a proxy for encrypted traffic. It forwards all bytes and keeps a copy of them for [`Proxy::overheard`].
    /// Rules and counters have no effect.
    pub fn start_opaque(server_address: impl Into<String>) -> Self {
        Self::start_with(Port::reserve(), server_address.into(), Tap { opaque: true, ..Tap::default() })
    }

    /// Starts a proxy that replaces session ids by 1, 2, 3 and so on, in handshakes and in the owners of nodes.
    pub fn start_renumbering(server_address: impl Into<String>) -> Self {
        Self::start_with(Port::reserve(), server_address.into(), Tap { renumbers: true, ..Tap::default() })
    }

    fn start_with(port: Port, server_address: String, tap: Tap) -> Self {
        let address = port.address();
        let tap = Arc::new(tap);
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
                    let listener = listen(&port);
                    ready.send(()).expect("start() waits for the signal");
                    Switchboard::new(listener, port, server_address, tap).run(orders).await;
                });
            }
        });
        started.recv().expect("the proxy's thread started");
        Self { address, tap, commands: Some(commands), thread: Some(thread) }
    }

    /// Returns the address for clients, as `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns the number of requests of this kind since [`Proxy::reset`], including lost ones, without handshakes.
    pub fn count(&self, op: Op) -> u64 {
        self.tap.traffic().counts.get(&op).copied().unwrap_or(0)
    }

    /// Returns the requests since [`Proxy::reset`] in the order of sending, each with its path.
    ///
    /// For [`Op::Multi`] the text lists the operations, as in `Check /a, Delete /b`. Pings are left out, because their
    /// number depends on time, but [`Proxy::count`] counts them.
    pub fn requests(&self) -> Vec<(Op, String)> {
        self.tap.traffic().requests.clone()
    }

    /// Returns the times at which requests of this kind, or handshakes, reached the proxy since [`Proxy::reset`].
    pub fn arrivals(&self, op: Op) -> Vec<Instant> {
        self.tap.traffic().arrivals.get(&op).cloned().unwrap_or_default()
    }

    /// Returns the server's handshake on the newest connection. With this handshake a test can resume the session from
    /// another connection.
    pub fn granted(&self) -> Option<Hello> {
        self.tap.granted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of watch events that the server has sent since [`Proxy::reset`].
    pub fn notifications(&self) -> u64 {
        self.tap.traffic().notifications
    }

    /// Returns the number of connections on which the client has sent something since [`Proxy::reset`].
    pub fn connections(&self) -> u64 {
        self.tap.traffic().connections
    }

    /// Returns the number of bytes from clients since [`Proxy::reset`], including handshakes and pings.
    pub fn bytes_to_server(&self) -> u64 {
        self.tap.traffic().bytes_to_server
    }

    /// Returns the number of bytes from the server since [`Proxy::reset`], including handshakes and pings.
    pub fn bytes_to_client(&self) -> u64 {
        self.tap.traffic().bytes_to_client
    }

    /// Returns whether this text was sent in either direction since [`Proxy::reset`]. Panics unless the proxy was
    /// started by [`Proxy::start_opaque`].
    pub fn overheard(&self, text: &str) -> bool {
        assert!(self.tap.opaque, "this proxy keeps no copy");
        let traffic = self.tap.traffic();
        [&traffic.copy_to_server, &traffic.copy_to_client]
            .iter()
            .any(|copy| copy.windows(text.len()).any(|window| window == text.as_bytes()))
    }

    /// Sets all counters to zero. Rules and black holes stay.
    pub fn reset(&self) {
        *self.tap.traffic() = Traffic::default();
    }

    /// Closes every connection and refuses new ones until [`Proxy::heal`].
    pub fn cut(&self) {
        self.order(Command::Cut);
    }

    /// Closes every connection. Clients may reconnect immediately.
    pub fn disconnect(&self) {
        self.order(Command::Disconnect);
    }

    /// Resets every connection (TCP RST). Clients may reconnect immediately.
    pub fn rst(&self) {
        self.order(Command::Rst);
    }

    /// Keeps every connection open and forwards nothing. Accepts new connections and does not serve them.
    ///
    /// As on a broken network, data sent meanwhile is late and not lost: [`Proxy::heal`] delivers it.
    pub fn black_hole(&self) {
        self.order(Command::Holes(Holes { to_server: true, to_client: true }));
    }

    /// Acts as [`Proxy::black_hole`] does, but only on data from clients. Data from the server still arrives.
    pub fn black_hole_to_server(&self) {
        self.order(Command::Holes(Holes { to_server: true, to_client: false }));
    }

    /// Acts as [`Proxy::black_hole`] does, but only on data from the server. Data from clients still arrives.
    pub fn black_hole_to_client(&self) {
        self.order(Command::Holes(Holes { to_server: false, to_client: true }));
    }

    /// Ends [`Proxy::cut`] and all black holes: delivers late frames and accepts new connections.
    ///
    /// Connections that were accepted in a black hole are closed. Their clients no longer wait for a handshake, and a
    /// late handshake would move the session away from a newer connection.
    pub fn heal(&self) {
        self.order(Command::Heal);
    }

    /// Applies this rule from now on, and returns its handle.
    ///
    /// If several rules select one frame, the frame counts for all of them, and the oldest decides.
    pub fn apply(&self, rule: Rule) -> Fault {
        self.tap.rules().add(rule)
    }

    /// Loses every request except pings. So sessions stay alive, but nothing else is answered.
    pub fn answer_only_pings(&self) -> Fault {
        self.apply(Rule::on(Frames::from_clients().but(&[Op::Handshake, Op::Ping])).and_all_later().lose())
    }

    /// Removes every rule. Frames that are held back now stay held back.
    pub fn forget_rules(&self) {
        self.tap.rules().clear();
    }

    /// Loses the `nth` reply to this kind of request from now on, counted from 1, and closes its connection.
    pub fn drop_reply(&self, op: Op, nth: u64) -> Fault {
        self.apply(Rule::on(Frames::replies(op)).nth(nth).close(0, Close::Fin))
    }

    /// Loses the `nth` request of this kind from now on, counted from 1, and closes its connection.
    pub fn drop_request(&self, op: Op, nth: u64) -> Fault {
        self.apply(Rule::on(Frames::requests(op)).nth(nth).close(0, Close::Fin))
    }

    /// Holds back the next reply to this kind of request until the returned handle releases it or is dropped.
    ///
    /// ZooKeeper's replies are ordered. So all later frames of the server on the same connection wait too, including
    /// replies to pings. If the silence is long, the client closes the connection.
    #[must_use = "dropping the handle releases the reply"]
    pub fn hold_reply(&self, op: Op) -> Held {
        self.hold(Frames::replies(op))
    }

    /// Holds back the next request of this kind, and all later requests on its connection, until the returned handle
    /// releases them or is dropped.
    #[must_use = "dropping the handle releases the request"]
    pub fn hold_request(&self, op: Op) -> Held {
        self.hold(Frames::requests(op))
    }

    /// Holds back the next frame that `frames` selects, and all later frames in the same direction.
    #[must_use = "dropping the handle releases the frame"]
    pub fn hold(&self, frames: Frames) -> Held {
        let (release, released) = watch::channel(());
        let fault = self.apply(Rule::on(frames).hold(released));
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
        // Closes the channel of commands, which ends the thread.
        self.commands = None;
        let outcome = self.thread.take().map(JoinHandle::join);
        if let (Some(Err(_)), false) = (outcome, thread::panicking()) {
            panic!("the proxy's thread panicked");
        }
    }
}

/// A handle of a frame that the proxy holds back. Dropping the handle releases the frame.
#[derive(Debug)]
pub struct Held {
    fault: Fault,
    release: watch::Sender<()>,
}

impl Held {
    /// Returns whether the frame has arrived at the proxy.
    pub fn has_arrived(&self) -> bool {
        self.fault.has_happened()
    }

    /// Waits until the frame has arrived at the proxy. Use a timeout, because the frame may never arrive.
    pub async fn arrives(&self) {
        self.fault.happens().await;
    }

    /// Releases the frame. If the frame has not arrived yet, cancels the rule.
    pub fn release(self) {
        drop(self.release);
    }
}

/// The counters and the rules, shared by the proxy's handle and its connections.
#[derive(Debug, Default)]
struct Tap {
    opaque: bool,
    traffic: Mutex<Traffic>,
    rules: Mutex<Rules>,
    granted: Mutex<Option<Hello>>,
    renumbers: bool,
}

#[derive(Debug, Default)]
struct Traffic {
    counts: HashMap<Op, u64>,
    arrivals: HashMap<Op, Vec<Instant>>,
    requests: Vec<(Op, String)>,
    notifications: u64,
    connections: u64,
    bytes_to_server: u64,
    bytes_to_client: u64,
    copy_to_server: Vec<u8>,
    copy_to_client: Vec<u8>,
}

impl Tap {
    fn traffic(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renumber(&self, frame: &mut [u8], handshaken: bool) {
        // All proxies that renumber sessions share this list, so that they act as one server. A session's new id is the
        // index of its real id, plus one.
        static SESSIONS: Mutex<Vec<[u8; 8]>> = Mutex::new(Vec::new());
        if !self.renumbers {
            return;
        }
        let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hello) = Hello::read(Direction::ToClient, frame).filter(|hello| !handshaken && hello.session != 0) {
            sessions.push(hello.session.to_be_bytes());
        }
        // Every occurrence of the id is replaced. ZooKeeper's ids have so many different bytes that no other field equals an
        // id.
        for at in 0..frame.len().saturating_sub(7) {
            if let Some(place) = sessions.iter().position(|session| frame[at..at + 8] == *session) {
                frame[at..at + 8].copy_from_slice(&(place as u64 + 1).to_be_bytes());
            }
        }
    }

    fn record_request(&self, op: Op, path: &str) {
        let mut traffic = self.traffic();
        *traffic.counts.entry(op).or_default() += 1;
        traffic.arrivals.entry(op).or_default().push(Instant::now());
        if op != Op::Ping {
            traffic.requests.push((op, path.to_owned()));
        }
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

/// The proxy's main loop: it accepts connections and carries out commands, one at a time.
struct Switchboard {
    listener: Option<TcpListener>,
    port: Port,
    server_address: String,
    tap: Arc<Tap>,
    holes: watch::Sender<Holes>,
    rst: watch::Sender<()>,
    connections: JoinSet<()>,
}

impl Switchboard {
    fn new(listener: TcpListener, port: Port, server_address: String, tap: Arc<Tap>) -> Self {
        Self {
            listener: Some(listener),
            port,
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
                    // The error is ignored, because a test that has panicked no longer waits for the reply.
                    let _ = done.send(());
                }
                client = accept(self.listener.as_ref()) => {
                    let connection = Connection {
                        tap: self.tap.clone(),
                        holes: self.holes.subscribe(),
                        rst: self.rst.subscribe(),
                        asked: Mutex::default(),
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
                    self.listener = Some(listen(&self.port));
                }
            }
        }
    }
}

/// Returns the next connection. Waits for ever if there is no listener.
async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    match listener {
        Some(listener) => listener.accept().await.expect("a loopback listener accepts").0,
        None => pending().await,
    }
}

fn listen(port: &Port) -> TcpListener {
    let listener = port.listen();
    listener.set_nonblocking(true).expect("the listener can be made non-blocking");
    TcpListener::from_std(listener).expect("the proxy's runtime is there")
}

/// The next step of the task that writes in one direction.
enum Step {
    Forward(Vec<u8>),
    Hold(watch::Receiver<()>),
    Wait(Instant),
    Close(Close),
}

struct Connection {
    tap: Arc<Tap>,
    holes: watch::Receiver<Holes>,
    rst: watch::Receiver<()>,
    /// The requests that have no reply yet, by xid.
    asked: Mutex<HashMap<i32, (Op, String)>>,
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
        // A proxy whose server's address is its own address would connect to itself without end.
        if client.local_addr().is_ok_and(|ours| ours.to_string() == server_address) {
            return;
        }
        // If the server is down, the proxy closes the client's connection immediately.
        let Ok(mut server) = TcpStream::connect(server_address).await else {
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));

        let (mut from_client, mut into_client) = client.split();
        let (mut from_server, mut into_server) = server.split();
        let (to_server, requests) = mpsc::unbounded_channel();
        let (to_client, replies) = mpsc::unbounded_channel();
        // The proxy's own replies use a weak sender, so that this sender does not keep the connection open after the
        // server has closed it.
        let answers = to_client.downgrade();
        let traffic = async {
            // An error in any of the four tasks ends all of them. An orderly end of one direction leaves the other
            // direction open.
            tokio::try_join!(
                self.read(Direction::ToServer, &mut from_client, to_server, answers.clone()),
                self.read(Direction::ToClient, &mut from_server, to_client, answers),
                self.write(Direction::ToServer, requests, &mut into_server),
                self.write(Direction::ToClient, replies, &mut into_client),
            )
        };
        let reset = tokio::select! {
            ended = traffic => ended.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset),
            _ = rst.changed() => true,
        };
        if reset {
            // With a linger of zero, the kernel sends a RST when the streams are dropped.
            let _ = (client.set_zero_linger(), server.set_zero_linger());
        }
    }

    /// Reads frames also during a black hole, so that the counters include frames that were sent and have not arrived.
    async fn read(
        &self,
        direction: Direction,
        from: &mut (impl AsyncReadExt + Unpin),
        to: mpsc::UnboundedSender<Step>,
        answers: mpsc::WeakUnboundedSender<Step>,
    ) -> io::Result<()> {
        let mut handshaken = false;
        // A RST from the sender ends the stream as a FIN does. Frames that were read before the RST still count.
        while let Ok(mut frame) = self.next_piece(from).await {
            let (fate, xid) = if self.tap.opaque {
                self.copy(direction, &frame);
                (Fate::Pass, 0)
            } else {
                self.inspect(direction, &frame, handshaken)
            };
            // A connection counts only from its first frame, because the client crate leaves some connections before that.
            if direction == Direction::ToServer && !handshaken {
                self.tap.traffic().connections += 1;
            }
            if direction == Direction::ToClient {
                self.tap.renumber(&mut frame, handshaken);
            }
            handshaken = true;
            let before = match fate {
                Fate::Pass => None,
                Fate::Hold(released) => Some(Step::Hold(released)),
                Fate::Delay(by) => Some(Step::Wait(Instant::now() + by)),
                Fate::Lose => continue,
                Fate::Close(bytes, how) => {
                    frame.truncate(bytes);
                    let _ = (to.send(Step::Forward(frame)), to.send(Step::Close(how)));
                    return Ok(());
                }
                Fate::Claim(code) => {
                    frame = refusal(xid, code);
                    None
                }
                Fate::Refuse(code) => {
                    self.asked().remove(&xid);
                    if let Some(answers) = answers.upgrade() {
                        let _ = answers.send(Step::Forward(refusal(xid, code)));
                        if code == UNIMPLEMENTED {
                            let _ = answers.send(Step::Close(Close::Fin));
                        }
                    }
                    continue;
                }
                Fate::Show(name) => {
                    frame = with_name(&frame, &name);
                    None
                }
                Fate::Falsify(how) => {
                    if let Some(mut hello) = Hello::read(direction, &frame) {
                        how(&mut hello);
                        frame = hello.frame();
                    }
                    None
                }
            };
            let _ = before.map(|step| to.send(step));
            let _ = to.send(Step::Forward(frame));
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
                Step::Forward(frame) => {
                    pass(&mut holes, direction).await?;
                    into.write_all(&frame).await?;
                }
                Step::Hold(mut released) => {
                    // The channel carries no value. The wait ends when the handle is dropped.
                    let _ = released.changed().await;
                }
                Step::Wait(until) => tokio::time::sleep_until(until.into()).await,
                Step::Close(how) => {
                    pass(&mut holes, direction).await?;
                    if how == Close::Rst {
                        return Err(io::ErrorKind::ConnectionReset.into());
                    }
                    let _ = into.shutdown().await;
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
            }
        }
        pass(&mut holes, direction).await?;
        // The error is ignored, because the peer may have closed already.
        let _ = into.shutdown().await;
        Ok(())
    }
}

impl Connection {
    async fn next_piece(&self, from: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Vec<u8>> {
        if !self.tap.opaque {
            return read_frame(from).await;
        }
        let mut piece = Vec::with_capacity(16 << 10);
        match from.read_buf(&mut piece).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(piece),
        }
    }

    fn copy(&self, direction: Direction, piece: &[u8]) {
        self.weigh(direction, piece);
        let mut traffic = self.tap.traffic();
        match direction {
            Direction::ToServer => traffic.copy_to_server.extend_from_slice(piece),
            Direction::ToClient => traffic.copy_to_client.extend_from_slice(piece),
        }
    }

    /// Records a frame. Returns what happens to the frame, and its xid.
    fn inspect(&self, direction: Direction, frame: &[u8], handshaken: bool) -> (Fate, i32) {
        self.weigh(direction, frame);
        if !handshaken {
            match direction {
                Direction::ToServer => {
                    self.tap.traffic().arrivals.entry(Op::Handshake).or_default().push(Instant::now())
                }
                Direction::ToClient => {
                    *self.tap.granted.lock().unwrap_or_else(PoisonError::into_inner) = Hello::read(direction, frame);
                }
            }
            let seen = FrameInfo { direction, op: Op::Handshake, path: "", error: None };
            return (self.tap.rules().fate(&seen), 0);
        }
        let mut fields = Fields::of(frame);
        let Some(xid) = fields.int() else {
            return (Fate::Pass, 0);
        };
        let what = match direction {
            Direction::ToServer => self.asks(xid, fields).map(|(op, path)| (op, path, None)),
            Direction::ToClient => self.answers(xid, fields),
        };
        let fate = what.map_or(Fate::Pass, |(op, path, error)| {
            self.tap.rules().fate(&FrameInfo { direction, op, path: &path, error })
        });
        (fate, xid)
    }

    fn asks(&self, xid: i32, mut fields: Fields<'_>) -> Option<(Op, String)> {
        let op = Op::from_code(fields.int()?);
        let path = path(op, fields);
        self.tap.record_request(op, &path);
        self.asked().insert(xid, (op, path.clone()));
        Some((op, path))
    }

    fn answers(&self, xid: i32, mut fields: Fields<'_>) -> Option<(Op, String, Option<i32>)> {
        let (_zxid, error) = (fields.long()?, fields.int()?);
        if xid == NOTIFICATION_XID {
            self.tap.traffic().notifications += 1;
            let (_kind, _state) = (fields.int()?, fields.int()?);
            return Some((Op::WatchEvent, fields.string()?, None));
        }
        // Negative xids, such as the ping's, are reused, so their entry stays.
        let (op, path) = if xid < 0 { self.asked().get(&xid).cloned() } else { self.asked().remove(&xid) }?;
        Some((op, path, Some(error)))
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<i32, (Op, String)>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn weigh(&self, direction: Direction, frame: &[u8]) {
        let mut traffic = self.tap.traffic();
        match direction {
            Direction::ToServer => traffic.bytes_to_server += frame.len() as u64,
            Direction::ToClient => traffic.bytes_to_client += frame.len() as u64,
        }
    }
}

/// Waits while a black hole holds back this direction.
async fn pass(holes: &mut watch::Receiver<Holes>, direction: Direction) -> io::Result<()> {
    match holes.wait_for(|holes| !holes.swallow(direction)).await {
        Ok(_) => Ok(()),
        // The sender was dropped, because the proxy is being dropped.
        Err(_) => Err(io::ErrorKind::ConnectionAborted.into()),
    }
}
