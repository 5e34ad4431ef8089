//! Sets `TCP_NODELAY` on the connections to the servers, and finds the server that a session is connected to.
//!
//! Without the option, a small request waits until the previous one is acknowledged (Nagle's algorithm), which takes a
//! round trip. So two requests that are sent together would cost two round trips. The client crate neither sets the
//! option nor exposes its sockets. With `docs/upstream/nodelay.patch`, this file need not set the option.
//!
//! This module scans the sockets of this process for those that lead to a server's port. These include sockets of other
//! clients in the process, whose small requests are then also sent without delay. Where the system does not allow the
//! scan, or has no `/proc`, requests only take longer.
//!
//! The scan compares ports and resolves no names. A lookup can take many seconds, and by then the connection may lead
//! to another server.

use std::io;
use std::net::SocketAddr;
#[cfg(target_os = "linux")]
use std::os::fd::RawFd;

use crate::telemetry::log::emit;
use crate::zookeeper::servers::Servers;

/// Sets `TCP_NODELAY` on all connections of this process to the ports of these servers. If there is exactly one such
/// connection, returns the address of its server. Of two connections, each could belong to another session.
pub(super) async fn set_on_connections_to(servers: &Servers) -> Option<SocketAddr> {
    let ports: Vec<u16> = servers.each().map(|server| server.port()).collect();
    // A process may have 100,000 files open. So the scan runs on another thread, so that heartbeats do not wait for it.
    let set = tokio::task::spawn_blocking(move || set(&ports)).await;
    match set.unwrap_or_else(|gone| Err(io::Error::other(gone))) {
        Ok(peers) => {
            emit!(TRACE, %servers, connections = peers.len(), "small requests are sent at once");
            peers.first().copied().filter(|_| peers.len() == 1)
        }
        Err(error) => {
            emit!(DEBUG, %servers, %error, "small requests may wait for an acknowledgement");
            None
        }
    }
}

/// Sets `TCP_NODELAY`, and returns the peers of the connections.
///
/// The calls take file descriptors by number, for which this version of `nix` has safe functions. A duplicate of the
/// descriptor by `pidfd_getfd` is no alternative: containers refuse that call by default (seccomp, without
/// CAP_SYS_PTRACE).
#[cfg(target_os = "linux")]
fn set(ports: &[u16]) -> io::Result<Vec<SocketAddr>> {
    use nix::sys::socket::setsockopt;
    use nix::sys::socket::sockopt::TcpNoDelay;

    let mut peers = Vec::new();
    for open in std::fs::read_dir("/proc/self/fd")? {
        let Some(number) = open?.file_name().to_str().and_then(|number| number.parse().ok()) else { continue };
        let Some(peer) = peer_of(number) else { continue };
        // The file descriptor may belong to another file by now. The call then fails, or sets the option on another
        // socket, which does no harm.
        if ports.contains(&peer.port()) && setsockopt(number, TcpNoDelay, &true).is_ok() {
            peers.push(peer);
        }
    }
    Ok(peers)
}

/// Returns the peer of this file descriptor; `None` if it is not a connected socket.
#[cfg(target_os = "linux")]
pub(super) fn peer_of(number: RawFd) -> Option<SocketAddr> {
    use nix::sys::socket::{SockaddrStorage, getpeername};

    let peer = getpeername::<SockaddrStorage>(number).ok()?;
    let of_four = || peer.as_sockaddr_in().map(|it| SocketAddr::V4((*it).into()));
    let of_six = || peer.as_sockaddr_in6().map(|it| SocketAddr::V6((*it).into()));
    of_four().or_else(of_six)
}

/// Returns the inode of a socket, which identifies the socket for as long as it is open.
#[cfg(target_os = "linux")]
pub(super) fn inode_of(number: RawFd) -> Option<u64> {
    let link = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(not(target_os = "linux"))]
fn set(_ports: &[u16]) -> io::Result<Vec<SocketAddr>> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn nodelay_is_set_only_on_connections_to_servers() {
        let [server, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [to_server, to_other] = [&server, &other].map(|it| TcpStream::connect(it.local_addr().unwrap()).unwrap());
        let no_tcp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        no_tcp.connect(address).unwrap();
        let (accepted, _) = server.accept().unwrap();
        assert_eq!(set(&[address.port()]).unwrap(), [address]);
        assert!(to_server.nodelay().unwrap());
        assert!(!to_other.nodelay().unwrap() && !accepted.nodelay().unwrap());
        assert_eq!(set(&[address.port()]).unwrap(), [address], "the option is already set");
    }

    #[tokio::test]
    async fn the_server_is_unknown_if_two_connections_match() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        // The host name has no address, so the scan succeeds only because it looks up no name.
        let servers = Servers::parse(&format!("name.invalid:{}", address.port())).unwrap();
        let _ours = TcpStream::connect(address).unwrap();
        assert_eq!(set_on_connections_to(&servers).await, Some(address));
        let other = TcpListener::bind(("127.0.0.2", address.port())).unwrap();
        let another = TcpStream::connect(other.local_addr().unwrap()).unwrap();
        assert_eq!(set_on_connections_to(&servers).await, None);
        drop(another);
        assert_eq!(set_on_connections_to(&servers).await, Some(address));
    }
}
