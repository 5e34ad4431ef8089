//! A loopback port that belongs to one owner, also while it has no listener. Use it for a server or a proxy that a test
//! stops and starts again.
//!
//! A port picked by the system does not stay free: while its server is down, the system may give the port to another
//! listener or to an outgoing connection. So these ports come from outside the system's range.

use std::fmt;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Below this number are the ports of well-known servers.
const LOWEST: u16 = 10_000;

#[derive(Debug)]
pub struct Port {
    number: u16,
    /// The claim: the UDP port of the same number. Only one socket on the machine can have it, and the system frees it
    /// when its owner ends.
    _claim: UdpSocket,
}

impl Port {
    /// Reserves a port without a listener. No other owner gets the port until this value is dropped.
    pub fn reserve() -> Port {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let range = outside(given_by_the_system());
        let size = u32::from(range.end() - range.start()) + 1;
        // Each process begins at a different place, so that processes seldom collide.
        let begin = std::process::id().wrapping_mul(7919);
        let candidates = (0..size).map(|_| begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % size);
        let claimed = candidates.filter_map(|at| Port::claim(range.start() + u16::try_from(at).ok()?)).next();
        claimed.expect("loopback has a free port")
    }

    /// Claims this port, unless it is claimed already or has a listener.
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

    /// Listens on the port. A process that is being started inherits all sockets for some milliseconds, also the socket
    /// by which [`Port::claim`] tried the port. So a port that seems to be in use is tried again.
    pub fn listen(&self) -> TcpListener {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match TcpListener::bind(self.address()) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                bound => return bound.expect("the port is ours"),
            }
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(out)
    }
}

/// Returns the range of ports that the system picks for listeners and outgoing connections.
pub fn given_by_the_system() -> RangeInclusive<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = range.split_whitespace().filter_map(|end| end.parse().ok());
    // The range of other systems, if this system does not give its own.
    ends.next().unwrap_or(32_768)..=ends.next().unwrap_or(u16::MAX)
}

fn outside(given: RangeInclusive<u16>) -> RangeInclusive<u16> {
    let parts = [LOWEST..=given.start().saturating_sub(1), given.end().saturating_add(1)..=u16::MAX];
    // If the system picks from all ports, no port is better than another.
    parts.into_iter().find(|part| part.len() >= 1_000).unwrap_or(LOWEST..=u16::MAX)
}
