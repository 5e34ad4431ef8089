//! How a connection is kept from holding small requests back (Nagle's algorithm); knows no session and no request.
//!
//! Without `TCP_NODELAY` a small request that follows another one waits until the other is acknowledged, which takes a
//! round trip. So requests that are sent together would cost two. The client crate neither sets the option nor shows
//! its sockets. So we look through the sockets of this process for those that lead to the servers: also those of another
//! client in this process, which then sends its small requests at once, too. Where the system does not allow that, or has no
//! `/proc`, requests only take longer.

use std::io;
use std::net::SocketAddr;

use crate::zookeeper::servers::Servers;

/// Sets the option on the connections of this process to these servers. Returns the server of the one that there is, if there
/// is no other: a session that has just connected knows its server by that.
pub(super) async fn set_on_connections_to(servers: &Servers) -> Option<SocketAddr> {
    let mut addresses = Vec::new();
    for server in servers.each() {
        // A name that cannot be looked up now leads nowhere.
        addresses.extend(tokio::net::lookup_host(server.address()).await.into_iter().flatten());
    }
    // A process may have a hundred thousand files open, and heartbeats must not wait for the look at them.
    let set = tokio::task::spawn_blocking(move || set(&addresses)).await;
    match set.unwrap_or_else(|gone| Err(io::Error::other(gone))) {
        Ok(peers) => {
            tracing::trace!(%servers, connections = peers.len(), "small requests are sent at once");
            peers.first().copied().filter(|_| peers.len() == 1)
        }
        Err(error) => {
            tracing::debug!(%servers, %error, "small requests may wait for an acknowledgement");
            None
        }
    }
}

/// Returns the servers at the other end of all these connections.
///
/// It takes the sockets by their numbers, for which the older `nix` has safe calls. To duplicate a socket of one's own, as
/// `pidfd_getfd` does, is refused in containers by default (seccomp, without CAP_SYS_PTRACE).
#[cfg(target_os = "linux")]
fn set(servers: &[SocketAddr]) -> io::Result<Vec<SocketAddr>> {
    use nix::sys::socket::setsockopt;
    use nix::sys::socket::sockopt::TcpNoDelay;

    // A server may be told of as a mapped address of IPv6.
    let address = |it: &SocketAddr| (it.ip().to_canonical(), it.port());
    let mut peers = Vec::new();
    for open in std::fs::read_dir("/proc/self/fd")? {
        let Some(number) = open?.file_name().to_str().and_then(|number| number.parse().ok()) else { continue };
        let Some(peer) = peer_of(number) else { continue };
        // The number may stand for another socket by now. Then that one sends small requests at once, or is no connection of
        // TCP, and the call fails.
        if servers.iter().any(|it| address(it) == address(&peer)) && setsockopt(number, TcpNoDelay, &true).is_ok() {
            peers.push(peer);
        }
    }
    Ok(peers)
}

/// Where the connection of this number leads to; `None` if it is no connection.
#[cfg(target_os = "linux")]
fn peer_of(number: std::os::fd::RawFd) -> Option<SocketAddr> {
    use nix::sys::socket::{SockaddrStorage, getpeername};

    let peer = getpeername::<SockaddrStorage>(number).ok()?;
    let of_four = || peer.as_sockaddr_in().map(|it| SocketAddr::V4((*it).into()));
    let of_six = || peer.as_sockaddr_in6().map(|it| SocketAddr::V6((*it).into()));
    of_four().or_else(of_six)
}

#[cfg(not(target_os = "linux"))]
fn set(_servers: &[SocketAddr]) -> io::Result<Vec<SocketAddr>> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn it_is_set_on_connections_to_the_servers_and_on_no_other() {
        let [server, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [to_server, to_other] = [&server, &other].map(|it| TcpStream::connect(it.local_addr().unwrap()).unwrap());
        let no_tcp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        no_tcp.connect(address).unwrap();
        let (accepted, _) = server.accept().unwrap();
        assert_eq!(set(&[address]).unwrap(), [address]);
        assert!(to_server.nodelay().unwrap());
        assert!(!to_other.nodelay().unwrap() && !accepted.nodelay().unwrap());
        assert_eq!(set(&[address]).unwrap(), [address], "it is set already");
    }

    #[test]
    fn a_server_is_known_by_its_mapped_address_too() {
        let listening = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listening.local_addr().unwrap();
        let to_server = TcpStream::connect(server).unwrap();
        let mapped = SocketAddr::new("::ffff:127.0.0.1".parse().unwrap(), server.port());
        assert_eq!(set(&[mapped]).unwrap(), [server]);
        assert!(to_server.nodelay().unwrap());
    }
}
