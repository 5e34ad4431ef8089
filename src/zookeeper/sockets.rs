//! Sets `TCP_NODELAY` on a new connection to a server.
//!
//! Without the option, a small request waits until the previous one is acknowledged (Nagle's algorithm), which takes a
//! round trip. So two requests that are sent together would take two round trips. The client crate neither sets the
//! option nor exposes its sockets. `docs/upstream/nodelay.patch` makes the crate set the option. With that patch, this
//! file would not be needed.
//!
//! A system gives a new socket the lowest file descriptor that is free. So before the crate connects, this module looks
//! for the lowest free number, and notes the sockets near that number. After the crate has connected, it sets the
//! option on each new socket near that number that is connected to this server. If the socket is not found, and on
//! systems other than Linux, a request may wait until the previous request is acknowledged.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use nix::sys::socket::sockopt::TcpNoDelay;
use nix::sys::socket::{SockaddrStorage, getpeername, setsockopt};

/// How many file descriptors below and above the lowest free one are looked at. Other threads open and close files
/// meanwhile, so the new socket may get another descriptor than that one.
const BELOW: RawFd = 32;
const ABOVE: RawFd = 96;

/// The connected sockets whose file descriptors are near the lowest free one, before the client crate connects.
pub(super) struct SocketSnapshot {
    lowest: RawFd,
    before: Vec<(RawFd, SocketAddr)>,
}

impl SocketSnapshot {
    /// Notes the connected sockets near the lowest free file descriptor. Called before the client crate connects.
    pub(super) fn take() -> SocketSnapshot {
        let lowest = File::open("/dev/null").map_or(0, |file| file.as_raw_fd());
        SocketSnapshot { lowest, before: connected_sockets_near(lowest).collect() }
    }

    /// Sets `TCP_NODELAY` on the sockets that are not in the snapshot and that are connected to `address`. If `address`
    /// is `None`, takes the sockets that are connected to any address with this `port`. Returns on how many sockets the
    /// option was set.
    pub(super) fn set_nodelay_on_new(&self, address: Option<SocketAddr>, port: u16) -> usize {
        let is_new = |it: &(RawFd, SocketAddr)| !self.before.contains(it);
        let is_to =
            |it: &(RawFd, SocketAddr)| address.map_or(it.1.port() == port, |address| canonical(address) == it.1);
        let new = connected_sockets_near(self.lowest).filter(is_new).filter(is_to);
        new.filter(|(number, _)| setsockopt(*number, TcpNoDelay, &true).is_ok()).count()
    }
}

fn connected_sockets_near(lowest: RawFd) -> impl Iterator<Item = (RawFd, SocketAddr)> {
    ((lowest - BELOW).max(0)..lowest + ABOVE).filter_map(|number| Some((number, peer_of(number)?)))
}

/// Returns the address without its scope, and an IPv4-mapped IPv6 address as an IPv4 address.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

/// Returns the peer's IP address and port; `None` if the file descriptor is not a connected IP socket.
///
/// Another thread may close the descriptor at any time, and the system may then give the same number to another file. A
/// duplicate of the descriptor, made by `pidfd_getfd`, would prevent this. But containers refuse that call by default
/// (seccomp, without CAP_SYS_PTRACE). So this module calls the functions of `nix` that take the bare number of a
/// descriptor.
fn peer_of(number: RawFd) -> Option<SocketAddr> {
    let peer = getpeername::<SockaddrStorage>(number).ok()?;
    let of_four = || peer.as_sockaddr_in().map(|it| SocketAddr::V4((*it).into()));
    let of_six = || peer.as_sockaddr_in6().map(|it| SocketAddr::V6((*it).into()));
    of_four().or_else(of_six).map(canonical)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn nodelay_is_set_only_on_the_new_connection() {
        let [server, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = server.local_addr().unwrap();
        let earlier = TcpStream::connect(address).unwrap();
        let sockets = SocketSnapshot::take();
        let new = TcpStream::connect(address).unwrap();
        let to_other = TcpStream::connect(other.local_addr().unwrap()).unwrap();
        let no_tcp = UdpSocket::bind("127.0.0.1:0").unwrap();
        no_tcp.connect(other.local_addr().unwrap()).unwrap();
        assert_eq!(sockets.set_nodelay_on_new(Some(address), 0), 1);
        assert_eq!(sockets.set_nodelay_on_new(None, address.port()), 1);
        assert_eq!([&earlier, &new, &to_other].map(|it| it.nodelay().unwrap()), [false, true, false]);
    }
}
