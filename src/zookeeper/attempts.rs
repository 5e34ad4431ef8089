//! Ends slow attempts to connect to a server, on Linux.
//!
//! An attempt to connect without an answer must be given up sooner than an open connection that is silent. The client
//! crate has one limit for both, and does not expose its sockets. `docs/upstream/read-timeout.patch` makes this file
//! unnecessary.
//!
//! While a session has no connection, this module scans the sockets of this process for those that lead to one of the
//! session's servers. The kernel's tables of sockets (`/proc/self/net/tcp` and `tcp6`) show which sockets have received
//! data. A socket that has been open for too long and has received nothing belongs to an attempt without an answer.
//! This module shuts such a socket down. The crate's attempt then fails, and the crate tries the next server. An
//! established session is safe, because the server's reply to the handshake has arrived on its socket.
//!
//! One session scans for all sessions of the process, because a scan reads all sockets of the process and all of the
//! machine. If each session did so, the scans of a hundred sessions would take all processors.
//!
//! A socket may belong to another client of this process. So the limit of a socket is the longest limit of all clients
//! that have a server with its port. Sockets of probes are left alone, because a probe has a timeout of its own. Their
//! mark is the option `SO_KEEPALIVE`, which the client crate never sets.
//!
//! On systems without such tables, attempts to connect and silent connections have the same limit.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
#[cfg(target_os = "linux")]
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

#[cfg(target_os = "linux")]
use futures_util::future::join_all;
#[cfg(target_os = "linux")]
use tokio::time::Instant;

use crate::session::lease::Lease;
#[cfg(target_os = "linux")]
use crate::session::shield::shielded;
use crate::session::store::SessionStore;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
#[cfg(target_os = "linux")]
use crate::zookeeper::lookup::addresses;
use crate::zookeeper::servers::Servers;

/// The number of scans of the sockets within the limit of an attempt to connect.
const SCANS: u32 = 8;

/// The least time between the starts of two scans, as a multiple of the processor time of the earlier scan. So scans
/// use at most a quarter of one processor, even with very many open files and many sessions.
const SHARE: u32 = 4;

/// For each client of this process: the ports of its servers, and the time that an attempt to connect to them may take.
/// The key is the id in the client's [`Limit`].
static LIMITS: Mutex<BTreeMap<usize, (BTreeSet<u16>, Duration)>> = Mutex::new(BTreeMap::new());

/// For each session of this process without a connection: the addresses of its servers, and the time that an attempt to
/// connect may take. The key is the id in the session's [`Search`].
#[cfg(target_os = "linux")]
static SEARCHES: Mutex<BTreeMap<usize, (Vec<SocketAddr>, Duration)>> = Mutex::new(BTreeMap::new());

/// Locked by the session that scans for all sessions. When that session is back, another one goes on.
#[cfg(target_os = "linux")]
static SCANNER: tokio::sync::Mutex<system::FirstSeen> = tokio::sync::Mutex::const_new(BTreeMap::new());

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The registration of a session in [`SEARCHES`]. Dropping it removes the session.
#[cfg(target_os = "linux")]
struct Search(usize);

#[cfg(target_os = "linux")]
impl Search {
    fn begin(servers: Vec<SocketAddr>, limit: Duration) -> Search {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        SEARCHES.lock().insert(number, (servers, limit));
        Search(number)
    }

    /// Returns the addresses of the servers of all searches, and the shortest limit.
    fn all() -> (BTreeSet<SocketAddr>, Duration) {
        let searches = SEARCHES.lock();
        let servers = searches.values().flat_map(|(servers, _)| servers).copied().map(system::canonical).collect();
        (servers, searches.values().map(|(_, limit)| *limit).min().unwrap_or(Duration::MAX))
    }
}

#[cfg(target_os = "linux")]
impl Drop for Search {
    fn drop(&mut self) {
        SEARCHES.lock().remove(&self.0);
    }
}

/// The registration of a client's limit in [`LIMITS`], by the id of the entry. Dropping it removes the entry.
pub(super) struct Limit(usize);

impl Limit {
    /// Registers a limit for attempts to connect to these servers. With `None`, only the client crate's own limit
    /// applies.
    pub(super) fn of(servers: &Servers, limit: Option<Duration>) -> Limit {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let ports = servers.each().map(|server| server.port()).collect();
        LIMITS.lock().insert(number, (ports, limit.unwrap_or(Duration::MAX)));
        Limit(number)
    }

    /// Returns the longest limit of all clients that have a server with this port.
    #[cfg(target_os = "linux")]
    fn longest(port: u16) -> Duration {
        let limits = LIMITS.lock();
        let of_these = limits.values().filter(|(ports, _)| ports.contains(&port));
        of_these.map(|(_, limit)| *limit).max().unwrap_or(Duration::MAX)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        LIMITS.lock().remove(&self.0);
    }
}

/// Returns whether this system shows which attempts to connect are unanswered, so that this module can end them.
pub(super) fn can_end_attempts() -> bool {
    #[cfg(target_os = "linux")]
    return system::tables_show_replies();
    #[cfg(not(target_os = "linux"))]
    return false;
}

/// Ends attempts to connect to `servers` that take longer than `than`, until the future is dropped. The future never
/// completes.
pub(super) async fn end_slow_attempts(than: Option<Duration>, servers: &Servers) {
    let Some(limit) = than.filter(|_| can_end_attempts()) else { return pending().await };
    #[cfg(target_os = "linux")]
    {
        // A server whose host name is not resolved in time is skipped, because an attempt to connect to it has no
        // socket yet.
        let found = servers.each().map(|server| async move {
            tokio::time::timeout(limit / 2, addresses(&server.address())).await.ok()?.ok()
        });
        let found: Vec<_> = join_all(found).await.into_iter().flatten().flatten().collect();
        let _search = Search::begin(found, limit);
        let mut seen = shielded(SCANNER.lock()).await;
        // An attempt may begin right after a scan, and a scan may be half an interval late. So the age that scans
        // measure is too short by up to one and a half intervals, and the limit is lowered by as much.
        let age_limit = |limit: Duration| limit - limit / (2 * SCANS) * 3;
        let mut next = Instant::now();
        loop {
            tokio::time::sleep_until(next).await;
            let (began, (servers, limit)) = (Instant::now(), Search::all());
            let scan = move || {
                let port_limit = |port| age_limit(Limit::longest(port));
                let took = system::scan(&mut seen, &servers, age_limit(limit), port_limit);
                (seen, took)
            };
            // The scan runs on another thread, so that heartbeats do not wait for it.
            let Ok((scanned, took)) = tokio::task::spawn_blocking(scan).await else { return pending().await };
            seen = scanned;
            next = began + (limit / SCANS).max(took * SHARE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _unused = (limit, servers, SCANS, SHARE);
        pending().await
    }
}

/// Calls [`end_slow_attempts`] whenever a session has no connection, until the session is over.
pub(super) async fn end_slow_reconnects(than: Option<Duration>, servers: Servers, store: Arc<SessionStore>) {
    let _of_this_client = Limit::of(&servers, than);
    let lease = store.lease();
    let Some(limit) = than.filter(|_| can_end_attempts()) else {
        store.until_over().await;
        return;
    };
    while lease.over().is_none() {
        store.until(Lease::lost).await;
        // The client crate does not report a connection that breaks before its first answer. So the session is
        // connected only if the server has answered a request on this connection.
        let is_back = async {
            while lease.over().is_none() && !(lease.is_connected() && lease.is_answered()) {
                tokio::time::sleep(limit / SCANS).await;
            }
        };
        tokio::select! {
            biased;
            () = is_back => {}
            () = end_slow_attempts(Some(limit), &servers) => {}
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::cell::LazyCell;
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::io::{self, Write};
    use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::os::fd::RawFd;
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    use nix::errno::Errno;
    use nix::sys::socket::sockopt::KeepAlive;
    use nix::sys::socket::{Shutdown, SockaddrStorage, getpeername, getsockopt, shutdown};
    use rustix::time::{ClockId, clock_gettime};

    #[cfg(test)]
    use crate::sync::atomic::{AtomicUsize, Ordering};
    use crate::telemetry::log::emit;
    use crate::zookeeper::sockets::{inode_of, peer_of};

    const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];

    /// The states of a socket as the tables print them: `SYN_SENT` and `ESTABLISHED`.
    const CONNECTING: &str = "02";
    const CONNECTED: &str = "01";

    /// Returns whether the tables have the column that shows whether a socket has received data. Some systems omit the
    /// last columns. Found out once, by a connection of this process to itself. If that connection fails, the next call
    /// tries again.
    pub(super) fn tables_show_replies() -> bool {
        static FOUND: OnceLock<bool> = OnceLock::new();
        let shows = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let address = listener.local_addr()?;
            let _near = TcpStream::connect(address)?;
            let count = || unanswered().iter().filter(|(of, _)| *of == address).count();
            let before = count();
            listener.accept()?.0.write_all(b"x")?;
            Ok::<_, io::Error>((before, count()) == (1, 0))
        };
        FOUND.get().copied().unwrap_or_else(|| shows().is_ok_and(|found| *FOUND.get_or_init(|| found)))
    }

    /// When a scan first saw each socket, by inode. `None` for a socket that needs no further check.
    pub(super) type FirstSeen = BTreeMap<u64, Option<Instant>>;

    #[cfg(test)]
    pub(super) static MADE: AtomicUsize = AtomicUsize::new(0);

    /// Ends the attempts to connect to these servers that have been open both for `limit` and for the limit of their
    /// port. Returns the processor time that the scan took.
    pub(super) fn scan(
        first_seen: &mut FirstSeen,
        servers: &BTreeSet<SocketAddr>,
        limit: Duration,
        port_limit: impl Fn(u16) -> Duration,
    ) -> Duration {
        let busy = || {
            let busy = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(busy.tv_sec.unsigned_abs(), u32::try_from(busy.tv_nsec).unwrap_or(0))
        };
        let began = busy();
        #[cfg(test)]
        MADE.fetch_add(1, Ordering::Relaxed);
        let (open, now) = (sockets_to(servers), Instant::now());
        first_seen.retain(|socket, _| open.iter().any(|(_, of)| of == socket));
        // The tables are read after the list of open sockets, so that a socket that has just received data counts
        // as answered. They are not read while all attempts are in time.
        let unanswered = LazyCell::new(|| {
            let to_them = unanswered().into_iter().filter(|(peer, _)| servers.contains(peer));
            to_them.map(|(peer, socket)| (socket, peer.port())).collect::<BTreeMap<u64, u16>>()
        });
        for (number, socket) in open {
            let since = first_seen.entry(socket).or_insert(Some(now));
            let age = since.map(|since| now.duration_since(since));
            let Some(age) = age.filter(|age| *age >= limit) else { continue };
            let port = unanswered.get(&socket);
            if port.is_some_and(|port| age < port_limit(*port)) {
                continue;
            }
            // Since the list was made, the file descriptor may have been closed and reused for another file. So the
            // inode is compared.
            let is_probe = getsockopt(number, KeepAlive) != Ok(false);
            let is_still = !is_probe && port.is_some() && inode_of(number) == Some(socket);
            if is_still && shutdown(number, Shutdown::Both).is_ok() {
                emit!(DEBUG, "an attempt to connect takes too long and is ended");
            }
            *since = None;
        }
        busy().saturating_sub(began)
    }

    /// Returns the file descriptor and the inode of each socket of this process that is connected to one of these
    /// servers, or not connected yet.
    fn sockets_to(servers: &BTreeSet<SocketAddr>) -> Vec<(RawFd, u64)> {
        let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers = open.filter_map(|open| open.file_name().to_str()?.parse().ok());
        let leads_there = |number: &RawFd| match peer_of(*number) {
            Some(peer) => servers.contains(&canonical(peer)),
            None => getpeername::<SockaddrStorage>(*number).is_err_and(|error| error == Errno::ENOTCONN),
        };
        numbers.filter(leads_there).filter_map(|number| Some((number, inode_of(number)?))).collect()
    }

    /// Returns the address in the form that the tables are compared in: an IPv4-mapped IPv6 address as IPv4, and
    /// without a scope.
    pub(super) fn canonical(peer: SocketAddr) -> SocketAddr {
        SocketAddr::new(peer.ip().to_canonical(), peer.port())
    }

    /// Returns the peer's address and the inode of each socket that has received nothing, in this process's network
    /// namespace.
    fn unanswered() -> Vec<(SocketAddr, u64)> {
        let tables = TABLES.map(|table| fs::read_to_string(table).unwrap_or_default());
        tables.iter().flat_map(|table| table.lines()).filter_map(unanswered_in).collect()
    }

    /// Parses an address as `/proc/self/net/tcp` and `tcp6` print it, `0100007F:0885`: the IP address as hexadecimal
    /// words of four bytes in this machine's byte order, then the port in hexadecimal.
    fn peer_in(word: &str) -> Option<SocketAddr> {
        let (ip, port) = word.split_once(':')?;
        let words = (0..ip.len() / 8).map(|at| u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok());
        let bytes: Vec<u8> = words.collect::<Option<Vec<_>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
        let ip = match bytes.len() {
            4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
            _ => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        };
        Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
    }

    /// Returns the peer's address and the inode of the socket in a line of the tables, if the socket has received
    /// nothing.
    ///
    /// Such a socket has zero in the column `ato`, the delay of acknowledgements, because the kernel sets that delay
    /// when the first data arrive.
    fn unanswered_in(line: &str) -> Option<(SocketAddr, u64)> {
        let mut words = line.split_ascii_whitespace().skip(2);
        let (peer, state) = (words.next()?, words.next()?);
        if ![CONNECTING, CONNECTED].contains(&state) {
            return None;
        }
        let inode = words.nth(5)?.parse().ok()?;
        let peer = peer_in(peer)?;
        (state == CONNECTING || words.nth(3)? == "0").then_some((peer, inode))
    }
}

#[cfg(all(test, target_os = "linux", not(shuttle)))]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use nix::sys::socket::setsockopt;
    use nix::sys::socket::sockopt::KeepAlive;
    use tokio::net::TcpSocket;

    use super::system::{MADE, scan};
    use super::*;

    fn address(of: &TcpListener) -> SocketAddr {
        of.local_addr().unwrap()
    }

    /// Returns whether the other end of this connection was shut down.
    fn is_ended(mut accepted: TcpStream) -> bool {
        accepted.set_nonblocking(true).unwrap();
        match accepted.read(&mut [0]) {
            Ok(0) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn only_unanswered_connections_to_servers_are_closed() {
        assert!(can_end_attempts());
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpListener::bind(("127.0.0.2", address(&server).port())).unwrap();
        let to = |listener: &TcpListener| {
            let near = TcpStream::connect(address(listener)).unwrap();
            (near, listener.accept().unwrap().0)
        };
        let (unanswered, answered, elsewhere) = (to(&server), to(&server), to(&other));
        (&answered.1).write_all(b"x").unwrap();
        let probing = TcpSocket::new_v4().unwrap();
        probing.set_keepalive(true).unwrap();
        let probing = probing.connect(address(&server)).await.unwrap();
        let probed = server.accept().unwrap().0;
        let servers = BTreeSet::from([address(&server)]);
        let scan = || scan(&mut BTreeMap::new(), &servers, Duration::ZERO, |_| Duration::ZERO);
        scan();
        assert_eq!([unanswered.1, answered.1, elsewhere.1].map(is_ended), [true, false, false]);
        assert!(!is_ended(probed.try_clone().unwrap()));
        setsockopt(probing.as_raw_fd(), KeepAlive, &false).unwrap();
        scan();
        assert!(is_ended(probed));
    }

    #[test]
    fn the_longest_limit_of_a_servers_clients_applies() {
        let ms = |limit| Some(Duration::from_millis(limit));
        let of = |servers, limit| Limit::of(&Servers::parse(servers).unwrap(), limit);
        let clients = [of("a:1", ms(500)), of("a:1,b:2", ms(900)), of("b:2", ms(700)), of("c:3", None)];
        assert_eq!([1, 2].map(Limit::longest), [ms(900).unwrap(); 2]);
        assert_eq!([3, 4].map(Limit::longest), [Duration::MAX; 2]);
        let [short, long, ..] = clients;
        drop(long);
        assert_eq!(Limit::longest(1), ms(500).unwrap());
        drop(short);
    }

    /// If each of forty sessions scanned for itself, there would be forty times as many scans. The other tests of this
    /// file make some scans at the same time.
    #[tokio::test]
    async fn many_sessions_without_a_connection_share_one_scan() {
        let servers = Servers::parse("127.0.0.1:1").unwrap();
        let (limit, time) = (Duration::from_millis(400), Duration::from_millis(800));
        let before = MADE.load(Ordering::Relaxed);
        let sessions = join_all((0..40).map(|_| end_slow_attempts(Some(limit), &servers)));
        assert!(tokio::time::timeout(time, sessions).await.is_err());
        let made = MADE.load(Ordering::Relaxed) - before;
        assert!(made <= 100, "{made} scans");
    }

    #[tokio::test]
    async fn an_attempt_without_an_answer_ends_at_its_limit() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(1).unwrap();
        let servers = Servers::parse(&full.local_addr().unwrap().to_string()).unwrap();
        let limit = Duration::from_millis(400);
        let connect = || tokio::time::timeout(limit / 2, tokio::net::TcpStream::connect(full.local_addr().unwrap()));
        let mut waiting = Vec::new();
        while let Ok(connected) = connect().await {
            waiting.push(connected.unwrap());
        }
        let _client = Limit::of(&servers, Some(limit));
        let began = std::time::Instant::now();
        let ended = tokio::select! {
            ended = tokio::net::TcpStream::connect(full.local_addr().unwrap()) => ended,
            () = end_slow_attempts(Some(limit), &servers) => panic!("the attempt was not ended"),
        };
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(began.elapsed() > limit / 2, "{:?}", began.elapsed());
    }
}
