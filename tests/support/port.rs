//! A loopback port that stays reserved for one owner, also while nothing listens on the port. Use it for a server or a
//! proxy that a test stops and starts again.
//!
//! A port that the system picks does not stay free. While its server is down, the system may give the port to another
//! listener or to an outgoing connection. So these ports lie outside the range from which the system picks.

use std::fmt;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The lowest port to reserve. Lower ports belong to well-known servers.
const LOWEST: u16 = 10_000;

#[derive(Debug)]
pub struct Port {
    number: u16,
    /// A UDP socket on the same port, which marks the port as reserved. Only one socket on the machine can have the
    /// port, and the system frees it when the owning process ends.
    _claim: UdpSocket,
}

impl Port {
    /// Reserves a port on which nothing listens. No other owner gets the port until this value is dropped.
    pub fn reserve() -> Port {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let range = outside(given_by_the_system());
        let size = u32::from(range.end() - range.start()) + 1;
        // Each process begins its search at a different port, so that processes seldom try the same ones.
        let begin = std::process::id().wrapping_mul(7919);
        let candidates = (0..size).map(|_| begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % size);
        let claimed = candidates.filter_map(|at| Port::claim(range.start() + u16::try_from(at).ok()?)).next();
        claimed.expect("loopback has a free port")
    }

    /// Reserves the port `number`. Returns `None` if the port is reserved already or something listens on it.
    pub fn claim(number: u16) -> Option<Port> {
        let address = (Ipv4Addr::LOCALHOST, number);
        let claim = UdpSocket::bind(address).ok()?;
        TcpListener::bind(address).ok()?;
        Some(Port { number, _claim: claim })
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }

    /// Listens on the port. Retries while the port is in use. A child process inherits all sockets for some milliseconds
    /// while it starts, among them the socket with which [`Port::claim`] tried the port.
    pub fn listen(&self) -> TcpListener {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match TcpListener::bind(self.address()) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                bound => return bound.expect("the port is reserved"),
            }
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(out)
    }
}

/// Returns the range from which the system picks ports for listeners and outgoing connections.
pub fn given_by_the_system() -> RangeInclusive<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = range.split_whitespace().filter_map(|end| end.parse().ok());
    // A default for systems without `/proc/sys/net/ipv4/ip_local_port_range`.
    ends.next().unwrap_or(32_768)..=ends.next().unwrap_or(u16::MAX)
}

fn outside(given: RangeInclusive<u16>) -> RangeInclusive<u16> {
    let parts = [LOWEST..=given.start().saturating_sub(1), given.end().saturating_add(1)..=u16::MAX];
    // If the system picks from nearly all ports, use them all, because none is safer than another.
    parts.into_iter().find(|part| part.len() >= 1_000).unwrap_or(LOWEST..=u16::MAX)
}
